"""S3's pipeline in seconds, on digits, for the tests: a shift, both spaces searched, two budgets, finetuning.

Expected:  that it ends; the accuracy means nothing.
Cost:      seconds on one core.
Command:   python tools/search.py debug_s3
"""

import dataclasses

from s3zoo.search.config import ArchSearch, Final, SearchRun
from s3zoo.search.space_search import SpaceSearch
from s3zoo.space import s3_space
from s3zoo.training.config import Train, load_config

_train = Train(epochs=2, batch_size=16, lr=1e-2, warmup_epochs=0.5, drop_path=0.0, sampling="sandwich", warm_start=True)
config = SearchRun(
    name="debug_s3",
    threads=1,
    space=s3_space(
        "debug_s3",
        depth=(1, 2),
        embed=(8, 16),
        window=(2, 4),
        heads=(1, 2),
        mlp=(1, 2),
        steps=(1, 8, 2, 1, 1),
        head_dim=8,
        num_stages=2,
        patch_size=2,
    ),
    data=dataclasses.replace(load_config("digits", SearchRun, "search").data, holdout=100, train_limit=160),
    supernet=_train,
    space_search=SpaceSearch(method="s3", iterations=1, samples=16, tau=10.0, backtrack=True, search_each_space=True),
    arch_search=ArchSearch(
        budgets=("params<=20K", "macs<=150K"), population=6, generations=2, parents=3, crossover=2, mutation=2
    ),
    final=Final(mode="finetune", train=dataclasses.replace(_train, epochs=1, lr=3e-3)),
)
