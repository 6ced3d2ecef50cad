"""S4's rival on CIFAR-10: S3 in the same space, backtracking to the last space that has networks within 30M parameters.

Expected:  94.23 % top-1 with 29M parameters (the paper's figure, its Table 2; not run here).
Cost:      4 x 500 epochs of 351 steps and 300 epochs of retraining; 3.2 x 10^18 FLOP by closed form if the space stays
           as large as the first (estimate), or 44 GPU-hours at an assumed 20 TFLOP/s. The paper names no hardware.
Command:   torchrun --nproc-per-node 4 tools/search.py s4_vit_cifar10_s3 --data /path/to/cifar10

Only the rule that moves the space differs from s4_vit_cifar10. S3 knows no limit there: the limit comes in with the
architecture search. Its evolve steps are the distances of the choices, and tau is S3's own.
"""

import dataclasses

from s3zoo.search.config import SearchRun
from s3zoo.search.space_search import SpaceSearch
from s3zoo.training.config import load_config

config = dataclasses.replace(
    load_config("s4_vit_cifar10", SearchRun, "search"),
    name="s4_vit_cifar10_s3",
    space_search=SpaceSearch(method="s3", iterations=3, samples=1000, tau=0.4, backtrack=True),
)
