"""S4-Swin on CIFAR-10 at 224 x 224: the space moves three times and stays below 30M parameters, then retraining.

Expected:  95.65 % top-1 with 25.4M parameters (the paper's figure, its Tables 3 and 6; not run here).
Cost:      4 x 500 epochs of 351 steps and 300 epochs of retraining; 2.0 x 10^18 FLOP by closed form (estimate), or 28
           GPU-hours at an assumed 20 TFLOP/s. Not measured; the paper names no hardware.
Command:   torchrun --nproc-per-node 4 tools/search.py s4_swin_cifar10 --data /path/to/cifar10

As s4_vit_cifar10 but for the space: one width, one MLP ratio and the depth of stage 3 are searched. The first space
reaches 31.1M parameters. Heads are Swin's 3, 6, 12 and 24 (the paper's text prints 12 for the last). Images as for
s4_vit_cifar10.
"""

import dataclasses

from s3zoo.search.config import SearchRun
from s3zoo.space import S4_SWIN
from s3zoo.training.config import load_config

config = dataclasses.replace(load_config("s4_vit_cifar10", SearchRun, "search"), name="s4_swin_cifar10", space=S4_SWIN)
