"""AutoFormer-S finetuned at 384 x 384 on ImageNet-1k; the position embeddings are interpolated.

Expected:  81.7 -> 83.4 % top-1 (the paper's figure, its Table 6; not run here).
Cost:      30 epochs of 2,502 steps; 4.5 x 10^18 FLOP (estimate from 19.4G MACs), or 62 GPU-hours at an assumed
           20 TFLOP/s.
Command:   torchrun --nproc-per-node 8 tools/train.py autoformer_384 --data /path/to/imagenet

The paper follows DeiT, whose command for 384 x 384 is this one: 30 epochs, constant 5e-6 x batch / 512, decay 1e-8.
"""

import dataclasses

from s3zoo.training.config import Train, TrainRun
from s3zoo.training.recipes import IMAGENET

config = TrainRun(
    name="autoformer_384",
    model="autoformer_small_384",
    weights="autoformer_small",
    mode="finetune",
    data=dataclasses.replace(IMAGENET, holdout=0, img_size=384),
    train=Train(epochs=30, batch_size=512, schedule="constant", lr=5e-6, weight_decay=1e-8, drop_path=0.1),
)
