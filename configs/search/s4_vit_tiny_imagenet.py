"""S4-ViT on Tiny ImageNet at 224 x 224: as s4_vit_cifar10.

Expected:  67.92 % top-1 with 27.5M parameters (the paper's figure, its Tables 2 and 4; not run here).
Cost:      4 x 500 epochs of 703 steps and 300 epochs of retraining; 6.4 x 10^18 FLOP by closed form (estimate), or
           89 GPU-hours at an assumed 20 TFLOP/s. The paper names no hardware.
Command:   torchrun --nproc-per-node 4 tools/search.py s4_vit_tiny_imagenet --data /path/to/tiny_imagenet

The folder is tiny-imagenet-200 as its archive unpacks, or holds train/<class>/ and val/<class>/. Or, with
`pip install datasets` (not tried here): `--set data.name=hfds/zh-plus/tiny-imagenet --set data.test_split=valid`
instead of --data. The labelled validation images are the test, as everywhere for this dataset.
"""

import dataclasses

from s3zoo.search.config import SearchRun
from s3zoo.training.config import load_config

_cifar10 = load_config("s4_vit_cifar10", SearchRun, "search")
config = dataclasses.replace(
    _cifar10,
    name="s4_vit_tiny_imagenet",
    data=dataclasses.replace(_cifar10.data, num_classes=200, holdout=10_000, test_split="val"),
)
