"""A linear classifier on the frozen features of a network: what `train MODEL --data FOLDER --probe` does.

Command:  s3zoo train s3_tiny --data /path/to/folder --probe
Expected: depends on the images.
Cost:     20 epochs of forward passes; only the classifier has gradients.

The settings are ours.
"""

import dataclasses

from s3zoo.training.config import Train, TrainRun
from s3zoo.training.datasets import AS_MODEL

config = TrainRun(
    name="probe",
    mode="probe",
    data=dataclasses.replace(AS_MODEL, scale=(0.35, 1.0), color_jitter=0.0, workers=2),
    train=Train(
        epochs=20, batch_size=64, lr=1e-2, min_lr=1e-5, warmup_epochs=1, weight_decay=0.0, label_smoothing=0.0,
        drop_path=0.0, checkpoint_seconds=300,
    ),  # fmt: skip
)
