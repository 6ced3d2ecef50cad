"""AutoFormer-T on ImageNet-1k: uniform sampling, weight entanglement, evolution, weights as inherited.

Expected:  74.7 % top-1 with 5.7M parameters and 1.3G MACs (the paper's figure, its Tables 4 and 5; not run here).
Cost:      500 epochs of 1,241 steps; 6.6 x 10^18 FLOP by closed form (estimate), or 90 GPU-hours at an assumed
           20 TFLOP/s. The paper used V100 GPUs and gives no hours.
Command:   torchrun --nproc-per-node 8 tools/search.py autoformer_tiny --data /path/to/imagenet

The folder holds train/<class>/ and val/<class>/. The released AutoFormer-T has MLP ratios of 3, outside the paper's
Table 1; this space is the paper's. `--set final.mode=retrain` trains the winner anew (74.9 %, the paper's figure).
"""

from s3zoo.search.config import ArchSearch, Final, SearchRun
from s3zoo.search.space_search import SpaceSearch
from s3zoo.space import AUTOFORMER_TINY
from s3zoo.training.config import Train
from s3zoo.training.recipes import IMAGENET

config = SearchRun(
    name="autoformer_tiny",
    space=AUTOFORMER_TINY,
    data=IMAGENET,  # 10,000 images held out, as the paper prints; its code took 100 of each class, 100,000
    # Table 3; the paper prints no lowest learning rate, 1e-5 is DeiT's.
    supernet=Train(epochs=500, lr=1e-3, min_lr=1e-5, warmup_epochs=20, drop_path=0.1, sampling="uniform"),
    space_search=SpaceSearch(method="none"),
    arch_search=ArchSearch(budgets=("params<=6M",)),  # with the relative positions, which the paper's 5.7M leaves out
    final=Final(mode="inherit", train=Train(epochs=300, lr=1e-3, min_lr=1e-5, warmup_epochs=20, drop_path=0.1)),
)
