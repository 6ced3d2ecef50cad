"""S4-ViT on CIFAR-100 at 224 x 224: as s4_vit_cifar10.

Expected:  78.68 % top-1 with 26.5M parameters (the paper's figure, its Tables 2 and 6; not run here).
Cost:      4 x 500 epochs of 351 steps and 300 epochs of retraining; 3.2 x 10^18 FLOP by closed form (estimate), or
           44 GPU-hours at an assumed 20 TFLOP/s. The paper names no hardware.
Command:   torchrun --nproc-per-node 4 tools/search.py s4_vit_cifar100 --data /path/to/cifar100

Images as for CIFAR-10, or fetched by torchvision:
`--set data.name=torch/cifar100 --set data.download=true --data cifar100`.
"""

import dataclasses

from s3zoo.search.config import SearchRun
from s3zoo.training.config import load_config

_cifar10 = load_config("s4_vit_cifar10", SearchRun, "search")
config = dataclasses.replace(
    _cifar10,
    name="s4_vit_cifar100",
    data=dataclasses.replace(_cifar10.data, num_classes=100, holdout=5_000),
)
