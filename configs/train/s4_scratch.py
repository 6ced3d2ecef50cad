"""A network that S4 found, retrained from scratch for 300 epochs at 224 x 224.

Expected:  S4-ViT: CIFAR-10 94.32, CIFAR-100 78.68, Tiny ImageNet 67.92, SUN397 68.82 % top-1 (the paper's figures, its
           Table 2; not run here).
Cost:      300 epochs; Tiny ImageNet: 1.1 x 10^18 FLOP for 6G MACs (estimate), or 15 GPU-hours at an assumed 20 TFLOP/s.
Command:   torchrun --nproc-per-node 4 tools/train.py s4_scratch --model runs/s4_vit_cifar100/model --data cifar100 \
             --root /path/to/cifar100 --img-size 224

Learning rates, warm-up, augmentation and epochs are the paper's; it prints no batch: 512 fits DeiT's lr rule.
"""

import dataclasses

from s3zoo.training.config import Train, TrainRun
from s3zoo.training.datasets import DATASETS

config = TrainRun(
    name="s4_scratch",
    model="autoformer_small",
    data=dataclasses.replace(DATASETS["tiny_imagenet"], reprob=0.25),
    train=Train(epochs=300, batch_size=512, lr=5e-4, min_lr=1e-5, warmup_epochs=5, drop_path=0.1),
)
