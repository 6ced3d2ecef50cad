"""S4-ViT on CIFAR-10 at 224 x 224: the space moves three times and stays below 30M parameters; the winner is retrained.

Expected:  94.32 % top-1 with 25.4M parameters (the paper's figure, its Tables 2 and 6; not run here).
Cost:      4 x 500 epochs of 351 steps and 300 epochs of retraining; 3.2 x 10^18 FLOP by closed form (estimate), or
           44 GPU-hours at an assumed 20 TFLOP/s. The paper names no hardware.
Command:   torchrun --nproc-per-node 4 tools/search.py s4_vit_cifar10 --data /path/to/cifar10

The place holds train/ and test/ with class folders, or train.tar and test.tar. Or let torchvision fetch the images:
`--set data.name=torch/cifar10 --set data.download=true --data cifar10`.
The first space reaches 36.4M parameters; while no neighbour is below the limit, the space moves towards it.
The paper is silent about the held-out images; 500 of each class are. `--set space_search.search_each_space=true`
searches and retrains in every visited space.
"""

import dataclasses

from s3zoo.search.config import ArchSearch, Final, SearchRun
from s3zoo.search.space_search import SpaceSearch
from s3zoo.space import S4_VIT
from s3zoo.training.config import Train
from s3zoo.training.recipes import IMAGENET

_train = Train(epochs=500, batch_size=128, lr=5e-4, min_lr=1e-5, warmup_epochs=5, drop_path=0.2, sampling="uniform")
config = SearchRun(
    name="s4_vit_cifar10",
    space=S4_VIT,
    data=dataclasses.replace(IMAGENET, num_classes=10, holdout=5_000, test_split="test"),
    supernet=_train,
    space_search=SpaceSearch(method="s4", iterations=3, pairs=40, limit_metric="params", upper=30e6),
    arch_search=ArchSearch(budgets=("params<=30M",)),  # refuses nothing unless the space could not reach the limit
    final=Final(mode="retrain", train=dataclasses.replace(_train, epochs=300)),
)
