"""GLiT on CIFAR-10 at 32 x 32 for two cores: the split of the heads, then the details of the blocks.

Expected:  not measured yet; no paper has a figure for networks this small.
Cost:      in each of two stages a supernet of 10 epochs, 200 scored networks and two trainings of 8 epochs; 83 TMACs
           (estimate), or about 60 minutes at an assumed 25 GMAC/s in training and 20 GMAC/s in scoring.
Command:   python tools/search.py cifar10_glit_2core --data /path/to/cifar10

Images as for cifar10_s3_2core. Kernels span one, two and three rows of the 8 x 8 tokens and a little more, as the
paper's 17, 31 and 45 do for its 14 x 14. The learning rate is the paper's, scaled to the batch.
"""

from s3zoo.search.config import ArchSearch, Final, SearchRun
from s3zoo.search.space_search import SpaceSearch
from s3zoo.space import glit_space
from s3zoo.training.config import Train
from s3zoo.training.recipes import CIFAR10

config = SearchRun(
    name="cifar10_glit_2core",
    space=glit_space("cifar10_glit", 48, 3, depth=6, kernels=(11, 19, 27), mlp=(1, 2, 3), patch_size=4),
    hierarchy="glit",
    data=CIFAR10,
    supernet=Train(
        epochs=10,
        batch_size=128,
        opt="sgd",
        lr=0.025,
        min_lr=0.0,
        warmup_epochs=0,
        weight_decay=1e-4,
        drop_path=0.0,
        sampling="uniform",
        sharing="classical",
    ),
    space_search=SpaceSearch(method="none"),
    arch_search=ArchSearch(budgets=("macs<=9M",), population=40, generations=5, crossover=20, mutation=20, p_block=0.1),
    final=Final(mode="retrain", top=2, train=Train(epochs=8, batch_size=128, lr=2e-3, warmup_epochs=1, drop_path=0.0)),
)
