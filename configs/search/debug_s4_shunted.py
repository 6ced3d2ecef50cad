"""S4's pipeline in seconds on Shunted's body, on digits, for the tests: an illegal start, a limit, retraining.

Expected:  that it ends; the accuracy means nothing.
Cost:      seconds on one core.
Command:   python tools/search.py debug_s4_shunted
"""

import dataclasses

from s3zoo.search.config import SearchRun
from s3zoo.search.space_search import SpaceSearch
from s3zoo.space import S4_SHUNTED
from s3zoo.training.config import load_config

_vit = load_config("debug_s4", SearchRun, "search")
_choices = {"embed_dim": (4, 6), "mlp_ratio": (2, 3, 4), "depth": (1, 2)}
config = dataclasses.replace(
    _vit,
    name="debug_s4_shunted",
    space=dataclasses.replace(S4_SHUNTED.replaced(_choices, name="debug_s4_shunted"), patch_size=2),
    space_search=SpaceSearch(method="s4", iterations=2, pairs=2, upper=110e3),
    arch_search=dataclasses.replace(_vit.arch_search, budgets=("params<=110K",), calibration_images=64),
)
