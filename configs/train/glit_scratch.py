"""GLiT-Tiny retrained from scratch on ImageNet-1k with DeiT's settings, as the paper says (its 4.1).

Expected:  76.3 % top-1 (the paper's figure, its Table 3; not run here).
Cost:      300 epochs of 1,251 steps; 3.4 x 10^18 FLOP (estimate from 1.47G MACs), or 47 GPU-hours at an assumed
           20 TFLOP/s.
Command:   torchrun --nproc-per-node 8 -m s3zoo train glit_scratch --data /path/to/imagenet
"""

import dataclasses

from s3zoo.training.config import TrainRun
from s3zoo.training.recipes import DEIT, IMAGENET

config = TrainRun(
    name="glit_scratch", model="glit_tiny", data=dataclasses.replace(IMAGENET, holdout=0, repeated_aug=3), train=DEIT
)
