"""AutoFormer-T (or S, B) finetuned for 40 epochs on ImageNet-1k from the weights inherited from the supernet.

Expected:  74.7 -> 74.9, 81.7 -> 81.8, 82.4 -> 82.6 % top-1 for T, S, B (the paper's Table 4; not run here).
Cost:      40 epochs of 1,251 steps; T: 4 x 10^17 FLOP (estimate), or 6 GPU-hours at an assumed 20 TFLOP/s.
Command:   torchrun --nproc-per-node 8 tools/train.py autoformer_finetune --data /path/to/imagenet [--model …_small]

The paper prints the 40 epochs and no other setting; the learning rate here, a tenth of the supernet's, is ours.
"""

import dataclasses

from s3zoo.training.config import Train, TrainRun
from s3zoo.training.recipes import IMAGENET

config = TrainRun(
    name="autoformer_finetune",
    model="autoformer_tiny",
    mode="finetune",
    data=dataclasses.replace(IMAGENET, holdout=0),
    train=Train(epochs=40, batch_size=1024, lr=1e-4, min_lr=1e-6, warmup_epochs=5, drop_path=0.1),
)
