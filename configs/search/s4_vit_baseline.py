"""ViT without S4, the first row of the paper's Table 2: one network, trained from scratch.

Expected:  93.59 / 76.45 / 67.16 / 68.33 % top-1 with 29M / 29M / 29M / 30M parameters on CIFAR-10, CIFAR-100, Tiny
           ImageNet and SUN397 (the paper's figure, its Table 2; not run here).
Cost:      300 epochs of 351 steps on CIFAR-10; 5.3 x 10^17 FLOP by closed form (estimate), or 7 GPU-hours at an assumed
           20 TFLOP/s. Not measured; the paper names no hardware.
Command:   torchrun --nproc-per-node 4 tools/search.py s4_vit_baseline --data /path/to/cifar10

12 blocks of width 384, 12 heads of 64, MLP ratio 4, with AutoFormer's relative positions. The paper does not say what
its ViT is; this one has the sizes that its tables print (rounded up). A space with one architecture: no supernet is
trained, and the network is retrained exactly as s4_vit_cifar10 retrains its winner, with the same images held out.
28,853,386 parameters with 10 classes.

The other datasets, with images as for s4_vit_cifar100 and so on: `--set data.num_classes=100`,
`--set data.num_classes=200 --set data.holdout=10000 --set data.test_split=val` (Tiny ImageNet),
`--set data.num_classes=397 --set data.holdout=3970` (SUN397), each with an --out of its own.
"""

import dataclasses

from s3zoo.search.config import ArchSearch, SearchRun
from s3zoo.search.space_search import SpaceSearch
from s3zoo.training.config import load_config

_s4 = load_config("s4_vit_cifar10", SearchRun, "search")
_choices = {"depth": (12,), "embed_dim": (384,), "num_heads": (12,), "mlp_ratio": (4,)}
config = dataclasses.replace(
    _s4,
    name="s4_vit_baseline",
    space=_s4.space.replaced(_choices, name="s4_vit_baseline"),
    supernet=dataclasses.replace(_s4.supernet, epochs=0),
    space_search=SpaceSearch(method="none"),
    arch_search=ArchSearch(population=1, generations=1, crossover=0, mutation=0),
)
