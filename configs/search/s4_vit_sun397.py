"""S4-ViT on SUN397 at 224 x 224: as s4_vit_cifar10.

Expected:  68.82 % top-1 with 28.7M parameters (the paper's figure, its Tables 2 and 5; not run here).
Cost:      4 x 500 epochs of 750 steps and 300 epochs of retraining; 6.8 x 10^18 FLOP by closed form (estimate), or
           95 GPU-hours at an assumed 20 TFLOP/s. The paper names no hardware.
Command:   torchrun --nproc-per-node 4 tools/search.py s4_vit_sun397 --data /path/to/sun397

The paper speaks of 100,000 images and prints no split; the cost is for 100,000 training images, ten of each class held
out. The folder holds train/<class>/ and test/<class>/; the archive's nested classes (such as
apartment_building/outdoor) need one folder with one name each. Or, with `pip install datasets` (not tried here):
`--set data.name=hfds/tanganke/sun397` instead of --data.
"""

import dataclasses

from s3zoo.search.config import SearchRun
from s3zoo.training.config import load_config

_cifar10 = load_config("s4_vit_cifar10", SearchRun, "search")
config = dataclasses.replace(
    _cifar10,
    name="s4_vit_sun397",
    data=dataclasses.replace(_cifar10.data, num_classes=397, holdout=3_970),
)
