"""S4-Shunted on CIFAR-10 at 32 x 32 for two cores: a space of small networks moves three times below 900K parameters.

Expected:  not measured yet; no paper has a figure for networks this small.
Cost:      4 x 6 epochs of supernets, all networks of four spaces (18 each) scored, 20 epochs of retraining; about 70
           minutes of one core (estimate).
Command:   python tools/search.py cifar10_s4_shunted_2core --data /path/to/cifar10

Images as for cifar10_s3_2core. Maps of 8, 4, 2 and 1 patches a side; the stem has no extra convolution, which would
cost more than all else at this size. The first space breaks the limit (the paper's does not): its largest network has
1.16M parameters.
"""

import dataclasses

from s3zoo.search.config import SearchRun
from s3zoo.space import S4_SHUNTED
from s3zoo.training.config import load_config

_swin = load_config("cifar10_s4_swin_2core", SearchRun, "search")
_choices = {"embed_dim": (12, 16, 20), "mlp_ratio": (3, 4, 5), "depth": (1, 2)}
config = dataclasses.replace(
    _swin,
    name="cifar10_s4_shunted_2core",
    space=dataclasses.replace(S4_SHUNTED.replaced(_choices, name="cifar10_s4_shunted"), stem_depth=0),
    space_search=dataclasses.replace(_swin.space_search, upper=900e3),
    arch_search=dataclasses.replace(_swin.arch_search, budgets=("params<=900K",), calibration_images=512),
)
