"""S4-ViT on CIFAR-10 without a limit: as s4_vit_cifar10, but the space goes where accuracy leads.

Expected:  94.49 % top-1 with 35.4M parameters (the paper's figure, its Table 6; not run here).
Cost:      4 x 500 epochs of 351 steps and 300 epochs of retraining; 3.2 x 10^18 FLOP by closed form if the space stays
           as large as the first (estimate), or 44 GPU-hours at an assumed 20 TFLOP/s. The paper names no hardware.
Command:   torchrun --nproc-per-node 4 tools/search.py s4_vit_cifar10_unconstrained --data /path/to/cifar10
"""

import dataclasses
import math

from s3zoo.search.config import ArchSearch, SearchRun
from s3zoo.training.config import load_config

_limited = load_config("s4_vit_cifar10", SearchRun, "search")
config = dataclasses.replace(
    _limited,
    name="s4_vit_cifar10_unconstrained",
    space_search=dataclasses.replace(_limited.space_search, upper=math.inf),
    arch_search=ArchSearch(),
)
