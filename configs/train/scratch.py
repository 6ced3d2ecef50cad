"""A network from scratch on your own images by DeiT's recipe: what `train MODEL --data FOLDER --scratch` does.

Command:  s3zoo train s3_tiny --data /path/to/folder --scratch
Expected: depends on the images; below some hundred thousand of them, finetuning is the better choice.
Cost:     300 epochs.
"""

import dataclasses

from s3zoo.training.config import TrainRun
from s3zoo.training.datasets import AS_MODEL
from s3zoo.training.recipes import DEIT, DEIT_AUGMENTATION

config = TrainRun(
    name="scratch",
    data=dataclasses.replace(AS_MODEL, **DEIT_AUGMENTATION, workers=2),
    train=dataclasses.replace(DEIT, batch_size=256, lr=2.5e-4),  # DeiT's lr = 5e-4 x batch / 512
)
