"""S4-ViT on CIFAR-10 at 32 x 32 for two cores: a space of small ViTs moves three times below 120K parameters.

Expected:  not measured yet; no paper has a figure for networks this small.
Cost:      4 x 6 epochs of supernets, 480 + 200 scored networks, 20 epochs of retraining; 66 TMACs (estimate), or about
           65 minutes at an assumed 18 GMAC/s in training and 14 GMAC/s in scoring.
Command:   python tools/search.py cifar10_s4_vit_2core --data /path/to/cifar10

Images as for cifar10_s3_2core. As in the paper, the first space breaks the limit: its largest network has 154K
parameters.
"""

import dataclasses

from s3zoo.search.config import ArchSearch, Final, SearchRun
from s3zoo.search.space_search import SpaceSearch
from s3zoo.space import S4_VIT
from s3zoo.training.config import Train
from s3zoo.training.recipes import CIFAR10

_choices = {
    "depth": (3, 4, 5),
    "embed_dim": (40, 48, 56),
    "num_heads": (1, 2, 3, 4),
    "mlp_ratio": (1.5, 2),
    "head_dim": (16,),
}
config = SearchRun(
    name="cifar10_s4_vit_2core",
    space=dataclasses.replace(S4_VIT.replaced(_choices, name="cifar10_s4_vit"), patch_size=4),
    data=CIFAR10,
    supernet=Train(
        epochs=6, batch_size=128, lr=2e-3, warmup_epochs=0.5, drop_path=0.0, sampling="uniform", warm_start=True
    ),
    space_search=SpaceSearch(method="s4", iterations=3, pairs=20, limit_metric="params", upper=120e3),
    arch_search=ArchSearch(budgets=("params<=120K",), population=40, generations=5, crossover=20, mutation=20),
    final=Final(mode="retrain", train=Train(epochs=20, batch_size=128, lr=2e-3, warmup_epochs=1, drop_path=0.0)),
)
