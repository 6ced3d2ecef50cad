"""AutoFormer-T (or S, B) with hard labels of a RegNetY-32GF beside the true ones.

Expected:  74.7 -> 75.7, 81.7 -> 82.4, 82.4 -> 82.9 % top-1 for T, S, B (the paper's figures, its 4.4; not run here).
Cost:      300 epochs of 1,251 steps with 32G MACs of the teacher for each image; 2.9 x 10^19 FLOP (estimate), or
           17 GPU-days at an assumed 20 TFLOP/s.
Command:   torchrun --nproc-per-node 8 tools/train.py autoformer_distil --data /path/to/imagenet [--model …_small]

The paper names the teacher and "hard labels", no more: half of the loss is the teacher's as in DeiT, and AutoFormer has
no distillation token, so both halves are for one classifier. This RegNetY-32GF of timm saw ImageNet-1k only.
"""

import dataclasses

from s3zoo.training.config import Distil, Train, TrainRun
from s3zoo.training.recipes import IMAGENET

config = TrainRun(
    name="autoformer_distil",
    model="autoformer_tiny",
    data=dataclasses.replace(IMAGENET, holdout=0),
    distil=Distil(teacher="regnety_320.tv2_in1k", kind="hard", weight=0.5),
    train=Train(epochs=300, batch_size=1024, lr=1e-3, min_lr=1e-5, warmup_epochs=20, drop_path=0.1),
)
