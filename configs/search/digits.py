"""The whole S3 pipeline on scikit-learn's digits (1,797 grey images of 8 x 8): three spaces, three supernets.

Command:  make search          (= python tools/search.py digits)
Expected: 97.3 +- 0.3 % of the test images (5 seeds, measured; docs/results.md)
Cost:     about 4 minutes of one core
"""

from s3zoo.search.config import ArchSearch, Final, SearchRun
from s3zoo.search.space_search import SpaceSearch
from s3zoo.space import s3_space
from s3zoo.training.config import Data, Train

config = SearchRun(
    name="digits",
    space=s3_space(
        "digits",
        depth=(1, 2, 3),
        embed=(24, 32, 40),
        window=(2, 4),
        heads=(2, 3, 4),
        mlp=(1, 1.5, 2),
        steps=(1, 8, 2, 1, 0.5),
        head_dim=8,
        num_stages=3,
        patch_size=2,
    ),
    data=Data(
        name="digits",
        holdout=300,
        num_classes=10,
        img_size=8,
        in_chans=1,
        mean=(0.3,),
        std=(0.37,),
        crop_pct=1.0,
        random_crop_pad=1,
        hflip=0.0,
        color_jitter=0.0,
    ),
    threads=1,  # layers this small do not gain from a second core
    supernet=Train(
        epochs=20, batch_size=128, lr=1e-2, warmup_epochs=2, label_smoothing=0.1, drop_path=0.0, sampling="sandwich"
    ),
    # The paper's threshold of 0.4 points per step is for errors of ImageNet; a young supernet on digits differs by
    # points from choice to choice, and would leap.
    space_search=SpaceSearch(method="s3", iterations=2, samples=300, tau=2.0),
    arch_search=ArchSearch(budgets=("params<=150K",), population=50, generations=8),
    final=Final(mode="finetune", train=Train(epochs=60, batch_size=64, lr=2e-3, warmup_epochs=2, drop_path=0.0)),
)
