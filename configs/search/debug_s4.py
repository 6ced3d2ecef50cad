"""S4's pipeline in seconds, on digits, for the tests: an illegal start, a limit, an audit, retraining.

Expected:  that it ends; the accuracy means nothing.
Cost:      seconds on one core.
Command:   python tools/search.py debug_s4
"""

import dataclasses

from s3zoo.search.config import ArchSearch, Final, SearchRun
from s3zoo.search.space_search import SpaceSearch
from s3zoo.space import S4_VIT
from s3zoo.training.config import Train, load_config

_choices = {
    "depth": (2, 3),
    "embed_dim": (16, 24),
    "num_heads": (1, 2, 3),
    "mlp_ratio": (1.5, 2),
    "head_dim": (8,),
}
_train = Train(epochs=2, batch_size=16, lr=1e-2, warmup_epochs=0.5, drop_path=0.1, sampling="uniform")
config = SearchRun(
    name="debug_s4",
    threads=1,
    space=dataclasses.replace(S4_VIT.replaced(_choices, name="debug_s4"), patch_size=2),
    data=load_config("debug_s3", SearchRun, "search").data,
    supernet=_train,
    space_search=SpaceSearch(method="s4", iterations=2, pairs=3, upper=14e3, audit=2),
    arch_search=ArchSearch(budgets=("params<=14K",), population=6, generations=2, parents=3, crossover=2, mutation=2),
    final=Final(mode="retrain", train=dataclasses.replace(_train, epochs=1)),
)
