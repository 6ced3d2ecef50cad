"""S4-Shunted on Tiny ImageNet at 224 x 224: as s4_shunted_cifar10.

Expected:  75.59 % top-1 with 21.3M parameters (the paper's figure, its Tables 3 and 5; not run here).
Cost:      4 x 500 epochs of 703 steps and 300 epochs of retraining; 3.6 x 10^18 FLOP by closed form (estimate), or 50
           GPU-hours at an assumed 20 TFLOP/s. Not measured; the paper names no hardware.
Command:   torchrun --nproc-per-node 4 tools/search.py s4_shunted_tiny_imagenet --data /path/to/tiny_imagenet

Images as for s4_vit_tiny_imagenet.
"""

import dataclasses

from s3zoo.search.config import SearchRun
from s3zoo.training.config import load_config

_cifar10 = load_config("s4_shunted_cifar10", SearchRun, "search")
config = dataclasses.replace(
    _cifar10,
    name="s4_shunted_tiny_imagenet",
    data=dataclasses.replace(_cifar10.data, num_classes=200, holdout=10_000, test_split="val"),
)
