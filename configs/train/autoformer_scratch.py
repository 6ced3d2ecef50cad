"""AutoFormer-T (or S, B) retrained from scratch on ImageNet-1k, 300 epochs.

Expected:  74.9 / 81.7 / 82.6 % top-1 for T / S / B (the paper's figures, its Table 4; not run here).
Cost:      300 epochs of 1,251 steps; T: 3 x 10^18 FLOP (estimate from 1.3G MACs), or 42 GPU-hours at an assumed
           20 TFLOP/s.
Command:   torchrun --nproc-per-node 8 tools/train.py autoformer_scratch --data /path/to/imagenet [--model …_small]
"""

import dataclasses

from s3zoo.training.config import Train, TrainRun
from s3zoo.training.recipes import IMAGENET

config = TrainRun(
    name="autoformer_scratch",
    model="autoformer_tiny",
    data=dataclasses.replace(IMAGENET, holdout=0),
    train=Train(epochs=300, batch_size=1024, lr=1e-3, min_lr=1e-5, warmup_epochs=20, drop_path=0.1),  # its Table 3
)
