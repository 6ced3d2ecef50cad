"""S4-Swin on CIFAR-10 at 32 x 32 for two cores: a space of small Swins moves three times below 500K parameters.

Expected:  not measured yet; no paper has a figure for networks this small.
Cost:      4 x 6 epochs of supernets, all networks of four spaces (27 each) scored, 20 epochs of retraining; about 75
           minutes of one core, extrapolated from 20 measured steps.
Command:   python tools/search.py cifar10_s4_swin_2core --data /path/to/cifar10

Images as for cifar10_s3_2core. Maps of 16, 8, 4 and 2 patches a side, windows of 4. As in the paper, the first space
breaks the limit: its largest network has 716K parameters.
"""

import dataclasses

from s3zoo.search.config import SearchRun
from s3zoo.space import S4_SWIN
from s3zoo.training.config import load_config

_vit = load_config("cifar10_s4_vit_2core", SearchRun, "search")
_choices = {
    "embed_dim": (12, 18, 24),
    "mlp_ratio": (1.5, 2, 2.5),
    "stage3.depth": (1, 2, 3),
    "other_depths": (1,),
    "window_size": (4,),
}
config = dataclasses.replace(
    _vit,
    name="cifar10_s4_swin_2core",
    space=dataclasses.replace(S4_SWIN.replaced(_choices, name="cifar10_s4_swin"), patch_size=2),
    space_search=dataclasses.replace(_vit.space_search, upper=500e3),
    arch_search=dataclasses.replace(
        _vit.arch_search, budgets=("params<=500K",), population=20, generations=2, crossover=8, mutation=8
    ),
)
