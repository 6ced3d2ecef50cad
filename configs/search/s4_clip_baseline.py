"""CLIP's decoder without S4, the other half of its row in the paper's Table 3: one network, trained from scratch.

Expected:  97.21 / 86.44 / 79.81 / 83.35 % top-1 with 31M / 31M / 31M / 32M parameters on CIFAR-10, CIFAR-100, Tiny
           ImageNet and SUN397 (the paper's figure, its Table 3; not run here).
Cost:      300 epochs of 351 steps on CIFAR-10; 5.9 x 10^17 FLOP by closed form, the tower's forward passes included
           (estimate), or 8 GPU-hours at an assumed 20 TFLOP/s. Not measured; the paper names no hardware.
Command:   torchrun --nproc-per-node 4 tools/search.py s4_clip_baseline --data /path/to/cifar10

The decoder of 4 layers with 12 heads, MLP ratio 4 and a bottleneck of 384 beside CLIP's frozen ViT-B/16; sizes are the
decoder's, rounded up as in the paper. A space with one architecture: no supernet is trained, and the network is
retrained exactly as s4_clip_cifar10 retrains its winner, with the same images held out. 30,731,530 parameters with 10
classes.

The other datasets, with images as for s4_vit_cifar100 and so on: `--set data.num_classes=100`,
`--set data.num_classes=200 --set data.holdout=10000 --set data.test_split=val` (Tiny ImageNet),
`--set data.num_classes=397 --set data.holdout=3970` (SUN397), each with an --out of its own.
"""

import dataclasses

from s3zoo.search.config import ArchSearch, SearchRun
from s3zoo.search.space_search import SpaceSearch
from s3zoo.training.config import load_config

_s4 = load_config("s4_clip_cifar10", SearchRun, "search")
_choices = {"depth": (4,), "embed_dim": (384,), "num_heads": (12,), "mlp_ratio": (4,)}
config = dataclasses.replace(
    _s4,
    name="s4_clip_baseline",
    space=_s4.space.replaced(_choices, name="s4_clip_baseline"),
    supernet=dataclasses.replace(_s4.supernet, epochs=0),
    space_search=SpaceSearch(method="none"),
    arch_search=ArchSearch(population=1, generations=1, crossover=0, mutation=0),
)
