"""GLiT's two stages in seconds, on digits, for the tests: classical sharing, batch norms, two networks retrained.

Expected:  that it ends; the accuracy means nothing.
Cost:      seconds on one core.
Command:   python tools/search.py debug_glit
"""

from s3zoo.search.config import ArchSearch, Final, SearchRun
from s3zoo.search.space_search import SpaceSearch
from s3zoo.space import glit_space
from s3zoo.training.config import Train, load_config

config = SearchRun(
    name="debug_glit",
    threads=1,
    space=glit_space("debug_glit", 24, 3, depth=3, kernels=(3, 5, 7), expansions=(1, 2), mlp=(1, 2, 3), patch_size=2),
    hierarchy="glit",
    data=load_config("debug_s3", SearchRun, "search").data,
    supernet=Train(
        epochs=2, batch_size=16, opt="sgd", lr=0.1, min_lr=0.0, warmup_epochs=0, weight_decay=1e-4, drop_path=0.0,
        sampling="uniform", sharing="classical",
    ),
    space_search=SpaceSearch(method="none"),
    arch_search=ArchSearch(
        budgets=("macs<=450K",), population=6, generations=2, parents=3, crossover=2, mutation=2, calibration_images=64
    ),
    final=Final(mode="retrain", top=2, train=Train(epochs=2, batch_size=16, lr=1e-2, warmup_epochs=0.5)),
)  # fmt: skip
