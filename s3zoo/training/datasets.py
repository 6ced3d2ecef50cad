"""Datasets by name: where they come from, how they are divided, and how the papers show them to a network.

Sizes are those of AutoFormer's Table 6 (384: CIFAR, Flowers, Cars, Pets) and of S4 (224: Tiny ImageNet, SUN397);
`--img-size` gives another. The augmentation is the one of DeiT's transfer, which both build on: that of its ImageNet
training without random erasing (said by its first author in facebookresearch/deit#45).
"""

from __future__ import annotations

import dataclasses
import os
from pathlib import Path

from s3zoo.checks import nearest
from s3zoo.files import exists
from s3zoo.training.config import Data

# How images are seen is the model's to say; nothing is held out.
AS_MODEL = Data(
    name="", holdout=0, num_classes=0, img_size=0, in_chans=0, mean=(), std=(), interpolation="", crop_pct=0.0
)
_TRANSFER = dataclasses.replace(AS_MODEL, auto_augment="rand-m9-mstd0.5-inc1", mixup=0.8, cutmix=1.0, workers=2)


def _set(name: str, num_classes: int, img_size: int, **options: str) -> Data:
    return dataclasses.replace(_TRANSFER, name=name, num_classes=num_classes, img_size=img_size, **options)  # type: ignore[arg-type]


# Images for training and test, as used by the papers' tables.
DATASETS = {
    "cifar10": _set("torch/cifar10", 10, 384),  # 50,000 and 10,000
    "cifar100": _set("torch/cifar100", 100, 384),  # 50,000 and 10,000
    "flowers": _set("torch/flowers102", 102, 384, train_split="train+val"),  # 2,040 and 6,149
    "cars": _set("torch/stanford_cars", 196, 384),  # 8,144 and 8,041; torchvision can no longer download it
    "pets": _set("torch/oxford_iiit_pet", 37, 384, train_split="trainval"),  # 3,680 and 3,669
    "tiny_imagenet": _set("hfds/zh-plus/tiny-imagenet", 200, 224, test_split="valid"),  # 100,000 and 10,000
    "sun397": _set("hfds/tanganke/sun397", 397, 224),  # S4 does not print its division
    "digits": dataclasses.replace(
        AS_MODEL, name="digits", num_classes=10, random_crop_pad=1, hflip=0.0, color_jitter=0.0
    ),  # 1,437 and 360; bundled
}


def find_data(spec: str, root: str = "", download: bool = False, like: Data = AS_MODEL) -> Data:
    """The dataset that `--data` names, seen as the recipe `like` says: its augmentation, and its size if it has one.

    A folder without a training split is where the dataset of `like` lies, if that has a name.
    """
    if spec == "digits":  # 8 x 8 grey pixels are seen in a way of their own
        return dataclasses.replace(DATASETS[spec], root=root, download=download)
    if spec in DATASETS:
        own = {key: getattr(DATASETS[spec], key) for key in ("name", "train_split", "test_split", "num_classes")}
        size = like.img_size or DATASETS[spec].img_size
        data = dataclasses.replace(like, **own, img_size=size, classes=(), root=root, download=download)
        return _in_folders(data) if root and _has_training(root) else data
    if spec.startswith(("torch/", "hfds/")):
        return dataclasses.replace(like, name=spec, root=root, download=download, num_classes=0)
    if exists(Path(os.path.expanduser(spec)), "--data"):
        if like.name == "digits" or (like.name and _has_training(spec)):  # other images than the recipe's
            like = dataclasses.replace(_in_folders(like), num_classes=0)
        return dataclasses.replace(like, root=spec)
    names = () if "/" in spec else DATASETS  # a path is no misspelt name
    raise ValueError(
        f"--data is {spec!r}, which is neither a folder nor one of {', '.join(DATASETS)}, torch/<dataset>,"
        f" hfds/<dataset>; {nearest(spec, names, 'give a folder that exists or one of these.')}"
    )


def _has_training(root: str) -> bool:
    """Whether a folder holds a training split, as class folders or a tar file."""
    from s3zoo.training.splits import TRAIN_NAMES  # with torch, for which --help should not wait

    place = Path(os.path.expanduser(root))
    return place.is_file() or any((place / n).exists() for train in TRAIN_NAMES for n in (train, f"{train}.tar"))


def _in_folders(data: Data) -> Data:
    return dataclasses.replace(data, name="", train_split="train", test_split="test")
