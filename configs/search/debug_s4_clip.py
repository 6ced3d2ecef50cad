"""S4's pipeline in seconds with decoders beside a tiny frozen tower of random weights, on digits, for the tests.

Expected:  that it ends; the accuracy means nothing.
Cost:      seconds on one core.
Command:   python tools/search.py debug_s4_clip

Images are not augmented, so the features of all of them are kept: the tower sees each image once.
"""

import dataclasses

from s3zoo.search.config import SearchRun
from s3zoo.search.space_search import SpaceSearch
from s3zoo.space import S4_CLIP
from s3zoo.training.config import Tower, load_config

_vit = load_config("debug_s4", SearchRun, "search")
_choices = {"depth": (2, 3), "embed_dim": (8, 12), "num_heads": (1, 2, 3), "mlp_ratio": (0.5, 1), "head_dim": (8,)}
config = dataclasses.replace(
    _vit,
    name="debug_s4_clip",
    space=S4_CLIP.replaced(_choices, name="debug_s4_clip"),
    data=dataclasses.replace(_vit.data, img_size=32, scale=(1, 1), ratio=(1, 1), random_crop_pad=0),
    space_search=SpaceSearch(method="s4", iterations=2, pairs=3, upper=42e3),
    arch_search=dataclasses.replace(_vit.arch_search, budgets=("params<=42K",)),
    tower=Tower("test_vit", weights="random", cache="all"),
)
