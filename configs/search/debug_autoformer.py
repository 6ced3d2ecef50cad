"""AutoFormer's pipeline in seconds, on digits, for the tests: Mixup, accumulation, averaged weights, inheritance.

Expected:  that it ends; the accuracy means nothing.
Cost:      seconds on one core.
Command:   python tools/search.py debug_autoformer
"""

import dataclasses

from s3zoo.search.config import ArchSearch, Final, SearchRun
from s3zoo.search.space_search import SpaceSearch
from s3zoo.training.config import Train, load_config

_s4 = load_config("debug_s4", SearchRun, "search")
config = SearchRun(
    name="debug_autoformer",
    threads=1,
    space=dataclasses.replace(_s4.space, name="debug_autoformer"),
    data=dataclasses.replace(_s4.data, mixup=0.2, cutmix=0.5, reprob=0.1),
    supernet=Train(
        epochs=3,
        batch_size=16,
        accumulate=2,
        lr=1e-2,
        warmup_epochs=0.5,
        clip_grad=1.0,
        ema=0.9,
        sampling="uniform",
        freeze_unsampled=True,
    ),
    space_search=SpaceSearch(method="none"),
    arch_search=ArchSearch(
        budgets=("params<=14K, 100K<=macs<=400K",), population=6, generations=2, parents=3, crossover=2, mutation=2
    ),
    final=Final(mode="inherit", train=_s4.final.train),
)
