"""S4's decoder beside a frozen CLIP tower, on CIFAR-10 at 224 x 224: the space moves three times below 30M parameters.

Expected:  97.23 % top-1 with 20M parameters (the paper's figure, its Table 3; not run here).
Cost:      4 x 500 epochs of 351 steps and 300 epochs of retraining; 4.2 x 10^18 FLOP by closed form, the tower's
           forward passes included (estimate), or 59 GPU-hours at an assumed 20 TFLOP/s. Not measured; the paper names
           no hardware.
Command:   torchrun --nproc-per-node 4 tools/search.py s4_clip_cifar10 --data /path/to/cifar10

As s4_vit_cifar10 but for the space and the tower, CLIP's ViT-B/16 (the paper does not say which). Only the decoder is
searched, trained and counted; what it looks like is our reading (s3zoo/models/ladder.py). The first space reaches 32.3M
parameters. Features of the 5,000 held-out images are kept on disk, 3.0 GB for each layer of the decoder; training
images are augmented as the paper says, so the tower sees them in every epoch. Weights of your own:
`--set tower.weights=FILE`. Images as for s4_vit_cifar10.
"""

import dataclasses

from s3zoo.search.config import SearchRun
from s3zoo.space import S4_CLIP
from s3zoo.training.config import Tower, load_config

_vit = load_config("s4_vit_cifar10", SearchRun, "search")
_seen = {"mean": (0.48145466, 0.4578275, 0.40821073), "std": (0.26862954, 0.26130258, 0.27577711)}  # CLIP's
config = dataclasses.replace(
    _vit,
    name="s4_clip_cifar10",
    space=S4_CLIP,
    data=dataclasses.replace(_vit.data, **_seen),
    tower=Tower("vit_base_patch16_clip_quickgelu_224.openai", cache="scored"),
)
