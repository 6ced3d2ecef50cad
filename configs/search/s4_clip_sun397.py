"""S4-CLIP on SUN397 at 224 x 224: as s4_clip_cifar10.

Expected:  85.87 % top-1 with 30M parameters (the paper's figure, its Table 3; not run here).
Cost:      4 x 500 epochs of 750 steps and 300 epochs of retraining; 9.0 x 10^18 FLOP by closed form, the tower's
           forward passes included (estimate), or 125 GPU-hours at an assumed 20 TFLOP/s. Not measured; the paper names
           no hardware.
Command:   torchrun --nproc-per-node 4 tools/search.py s4_clip_sun397 --data /path/to/sun397

Images as for s4_vit_sun397.
"""

import dataclasses

from s3zoo.search.config import SearchRun
from s3zoo.training.config import load_config

_cifar10 = load_config("s4_clip_cifar10", SearchRun, "search")
config = dataclasses.replace(
    _cifar10, name="s4_clip_sun397", data=dataclasses.replace(_cifar10.data, num_classes=397, holdout=3_970)
)
