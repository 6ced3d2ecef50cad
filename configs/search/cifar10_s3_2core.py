"""S3 on CIFAR-10 at 32 x 32 for two cores: a small hierarchical space, two shifts, the winner finetuned.

Expected:  not measured at this length; no paper has a figure for networks this small. A trial with
           `--set data.train_limit=5000 --set data.holdout=1000 --set threads=1` (seed 0, 13 minutes of one core) gave
           42.7 % of the test images with 186K parameters.
Cost:      3 x 3 epochs of supernets with four networks a step, 300 + 200 scored networks, 12 epochs of finetuning;
           55 TMACs (estimate), or about 70 minutes at an assumed 14 GMAC/s in training and 10 GMAC/s in scoring.
Command:   python tools/search.py cifar10_s3_2core --data /path/to/cifar10

The place holds train/ and test/ with class folders, or train.tar and test.tar. Or let torchvision fetch the images:
`--set data.name=torch/cifar10 --set data.download=true --data cifar10`.
Unlike the paper's, each supernet begins with the previous one's weights, evolve steps are a choice apart or less, and
tau is 1: briefly trained small networks differ by more percentage points, and the space would run away with 0.4.
"""

from s3zoo.search.config import ArchSearch, Final, SearchRun
from s3zoo.search.space_search import SpaceSearch
from s3zoo.space import s3_space
from s3zoo.training.config import Train
from s3zoo.training.recipes import CIFAR10

config = SearchRun(
    name="cifar10_s3_2core",
    space=s3_space(  # feature maps of 8 x 8, 4 x 4 and 2 x 2: no window is larger than 8
        "cifar10_s3",
        depth=(1, 2, 3),
        embed=(32, 48, 64),
        window=(2, 4),
        heads=(2, 3, 4),
        mlp=(2, 2.5, 3),
        steps=(1, 8, 2, 1, 0.5),
        head_dim=16,
        num_stages=3,
        patch_size=4,
    ),
    data=CIFAR10,
    supernet=Train(
        epochs=3, batch_size=128, lr=2e-3, warmup_epochs=0.5, drop_path=0.0, sampling="sandwich", warm_start=True
    ),
    space_search=SpaceSearch(
        method="s3", iterations=2, samples=150, tau=1.0, limit_metric="macs", upper=6e6, backtrack=True
    ),
    arch_search=ArchSearch(
        budgets=("params<=250K, macs<=6M",), population=40, generations=5, crossover=20, mutation=20
    ),
    final=Final(mode="finetune", train=Train(epochs=12, batch_size=128, lr=1e-3, warmup_epochs=0.5, drop_path=0.0)),
)
