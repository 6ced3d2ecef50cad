"""S4-Shunted on CIFAR-100 at 224 x 224: as s4_shunted_cifar10.

Expected:  85.66 % top-1 with 21.6M parameters (the paper's figure, its Tables 3 and 6; not run here).
Cost:      4 x 500 epochs of 351 steps and 300 epochs of retraining; 1.8 x 10^18 FLOP by closed form (estimate), or 25
           GPU-hours at an assumed 20 TFLOP/s. Not measured; the paper names no hardware.
Command:   torchrun --nproc-per-node 4 tools/search.py s4_shunted_cifar100 --data /path/to/cifar100

Images as for s4_vit_cifar100.
"""

import dataclasses

from s3zoo.search.config import SearchRun
from s3zoo.training.config import load_config

_cifar10 = load_config("s4_shunted_cifar10", SearchRun, "search")
config = dataclasses.replace(
    _cifar10, name="s4_shunted_cifar100", data=dataclasses.replace(_cifar10.data, num_classes=100)
)
