"""S4-Shunted on CIFAR-10 at 224 x 224: the space moves three times and stays below 22M parameters, then retraining.

Expected:  97.67 % top-1 with 20.2M parameters (the paper's figure, its Tables 3 and 6; not run here).
Cost:      4 x 500 epochs of 351 steps and 300 epochs of retraining; 1.8 x 10^18 FLOP by closed form (estimate), or 25
           GPU-hours at an assumed 20 TFLOP/s. Not measured; the paper names no hardware.
Command:   torchrun --nproc-per-node 4 tools/search.py s4_shunted_cifar10 --data /path/to/cifar10

As s4_vit_cifar10 but for the space and its limit: one width, the depth x (blocks 2, x, 3x, 1) and one MLP ratio m,
which means (m, m, m/2, m/2) over the stages, our reading. The first space is below the limit: its largest network has
19.3M. Images as for s4_vit_cifar10.
"""

import dataclasses

from s3zoo.search.config import SearchRun
from s3zoo.space import S4_SHUNTED
from s3zoo.training.config import load_config

_vit = load_config("s4_vit_cifar10", SearchRun, "search")
config = dataclasses.replace(
    _vit,
    name="s4_shunted_cifar10",
    space=S4_SHUNTED,
    space_search=dataclasses.replace(_vit.space_search, upper=22e6),
    arch_search=dataclasses.replace(_vit.arch_search, budgets=("params<=22M",)),
)
