"""What several recipes share: data and training settings of DeiT, which the papers build on, and CIFAR's habits."""

from __future__ import annotations

from typing import Any

from s3zoo.training.config import Data, Train

# DeiT's augmentation but for repeated augmentation (data.repeated_aug=3), which AutoFormer leaves out too.
# The folder is given by --data.
DEIT_AUGMENTATION: dict[str, Any] = {
    "auto_augment": "rand-m9-mstd0.5-inc1",  # timm leaves color_jitter out where this is on, as DeiT does
    "reprob": 0.25,
    "mixup": 0.8,
    "cutmix": 1.0,
}
IMAGENET = Data(name="", test_split="val", holdout=10_000, **DEIT_AUGMENTATION, workers=8)

# DeiT's training: lr = 5e-4 x batch / 512.
DEIT = Train(epochs=300, batch_size=1024, lr=1e-3, min_lr=1e-5, warmup_epochs=5, weight_decay=0.05, drop_path=0.1)

# CIFAR-10 in its own size: pad, crop and flip.
CIFAR10 = Data(
    name="",
    holdout=5_000,
    num_classes=10,
    img_size=32,
    mean=(0.4914, 0.4822, 0.4465),
    std=(0.2470, 0.2435, 0.2616),
    crop_pct=1.0,
    random_crop_pad=4,
    color_jitter=0.0,
)
