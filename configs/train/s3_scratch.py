"""S3-T (or S3-S, S3-B) retrained from scratch on ImageNet-1k at 224 x 224 in the manner of DeiT.

Expected:  82.1 / 83.7 / 84.0 % top-1 for T / S / B (the paper's figures, its Table 1, for weights inherited from the
           supernet; its Fig. 5 shows retrained networks about level. Not run here).
Cost:      300 epochs of 1,251 steps; T: 5.3 x 10^18 FLOP (3 passes x 2 x 4.6G MACs, estimate), or 74 GPU-hours at an
           assumed 20 TFLOP/s.
Command:   torchrun --nproc-per-node 8 tools/train.py s3_scratch --data /path/to/imagenet [--model s3_small]

Batch, learning rates, warm-up, decay and drop path are those of the paper's supernets (its 4.1).
"""

import dataclasses

from s3zoo.training.config import Train, TrainRun
from s3zoo.training.recipes import IMAGENET

config = TrainRun(
    name="s3_scratch",
    model="s3_tiny",
    data=dataclasses.replace(IMAGENET, holdout=0, crop_pct=0.9),
    train=Train(epochs=300, batch_size=1024, lr=1e-3, min_lr=1e-5, warmup_epochs=20, drop_path=0.2),
)
