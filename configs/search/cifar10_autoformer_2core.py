"""AutoFormer on CIFAR-10 at 32 x 32 for two cores: one supernet, one search, weights as inherited.

Expected:  not measured at this length; no paper has a figure for networks this small. A trial with
           `--set data.train_limit=5000 --set data.holdout=1000 --set threads=1` (seed 0, 15 minutes of one core) gave
           38.1 % of the test images with 125K parameters.
Cost:      20 epochs of the supernet and 250 scored networks; 51 TMACs (estimate), or about 50 minutes at an assumed
           18 GMAC/s in training and 14 GMAC/s in scoring.
Command:   python tools/search.py cifar10_autoformer_2core --data /path/to/cifar10

Images as for cifar10_s3_2core.
"""

import dataclasses

from s3zoo.search.config import ArchSearch, Final, SearchRun
from s3zoo.search.space_search import SpaceSearch
from s3zoo.space import AUTOFORMER_TINY
from s3zoo.training.config import Train
from s3zoo.training.recipes import CIFAR10

_choices = {
    "depth": (4, 5, 6),
    "embed_dim": (48, 64, 80),
    "num_heads": (2, 3, 4),
    "mlp_ratio": (1.5, 2),
    "head_dim": (16,),
}
config = SearchRun(
    name="cifar10_autoformer_2core",
    space=dataclasses.replace(AUTOFORMER_TINY.replaced(_choices, name="cifar10_autoformer"), patch_size=4),
    data=CIFAR10,
    supernet=Train(epochs=20, batch_size=128, lr=2e-3, warmup_epochs=1, drop_path=0.0, sampling="uniform"),
    space_search=SpaceSearch(method="none"),
    arch_search=ArchSearch(budgets=("params<=150K",), population=50, generations=5),
    final=Final(mode="inherit", train=Train(epochs=20, batch_size=128, lr=2e-3, warmup_epochs=1, drop_path=0.0)),
)
