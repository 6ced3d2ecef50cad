"""S4's pipeline in seconds on Swin's body, on digits, for the tests: an illegal start, a limit, retraining.

Expected:  that it ends; the accuracy means nothing.
Cost:      seconds on one core.
Command:   python tools/search.py debug_s4_swin
"""

import dataclasses

from s3zoo.search.config import SearchRun
from s3zoo.search.space_search import SpaceSearch
from s3zoo.space import S4_SWIN
from s3zoo.training.config import load_config

_vit = load_config("debug_s4", SearchRun, "search")
_choices = {
    "embed_dim": (6, 9),
    "mlp_ratio": (1, 1.5, 2),
    "stage3.depth": (1, 2),
    "other_depths": (1,),
    "window_size": (2,),
}
config = dataclasses.replace(
    _vit,
    name="debug_s4_swin",
    space=dataclasses.replace(S4_SWIN.replaced(_choices, name="debug_s4_swin"), patch_size=1),
    space_search=SpaceSearch(method="s4", iterations=2, pairs=2, upper=75e3),
    arch_search=dataclasses.replace(_vit.arch_search, budgets=("params<=75K",)),
)
