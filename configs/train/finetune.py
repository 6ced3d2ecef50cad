"""A pretrained network on your own images: what `train MODEL --data FOLDER` does.

Command:  s3zoo train s3_tiny --data /path/to/folder    (train/<class>/<image> and test/<class>/<image>)
Expected: depends on the images.
Cost:     30 epochs; three forward passes' worth for each image and epoch.

The settings are ours, for some hundred to some ten thousand images: layers near the input learn more slowly (0.75 for
each layer), and the augmentation is moderate. Input size and normalisation are the model's.
"""

import dataclasses

from s3zoo.training.config import Train, TrainRun
from s3zoo.training.datasets import AS_MODEL

config = TrainRun(
    name="finetune",
    mode="finetune",
    data=dataclasses.replace(AS_MODEL, scale=(0.35, 1.0), auto_augment="rand-m6-mstd0.5-inc1", reprob=0.1, workers=2),
    layer_decay=0.75,
    train=Train(epochs=30, batch_size=64, lr=1e-3, min_lr=1e-6, warmup_epochs=3, drop_path=0.1, checkpoint_seconds=300),
)
