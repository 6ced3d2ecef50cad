"""A network that S4 found, retrained from scratch for 300 epochs at 224 x 224.

Expected:  S4-ViT: CIFAR-10 94.32, CIFAR-100 78.68, Tiny ImageNet 67.92, SUN397 68.82 % top-1 (the paper's figures, its
           Table 2; not run here).
Cost:      300 epochs; Tiny ImageNet: 1.1 x 10^18 FLOP for 6G MACs (estimate), or 15 GPU-hours at an assumed 20 TFLOP/s.
Command:   torchrun --nproc-per-node 4 -m s3zoo train s4_scratch --model runs/s4_vit_cifar100/model --data cifar100
           (and --root /path/to/cifar100 or --root PLACE --download)

The paper's 6.1: "all same as supernet" but for the epochs, hence batch 128, drop path 0.2 and random erasing, on every
dataset and at 224 x 224.
"""

import dataclasses

from s3zoo.training.config import Train, TrainRun
from s3zoo.training.datasets import DATASETS

config = TrainRun(
    name="s4_scratch",
    model="autoformer_small",
    data=dataclasses.replace(DATASETS["tiny_imagenet"], reprob=0.25),
    train=Train(epochs=300, batch_size=128, lr=5e-4, min_lr=1e-5, warmup_epochs=5, drop_path=0.2),
)
