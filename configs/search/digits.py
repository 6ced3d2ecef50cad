"""The whole S3 pipeline on scikit-learn's digits (1,797 grey images of 8 x 8): up to three spaces and supernets.

Command:  make search          (= s3zoo search digits)
Expected: 97.3 +- 0.8 % of the test images (5 seeds, measured; docs/results.md)
Cost:     about 2 minutes of one core
"""

from s3zoo.search.config import ArchSearch, Final, SearchRun
from s3zoo.search.space_search import SpaceSearch
from s3zoo.space import s3_space
from s3zoo.training.config import Data, Train

config = SearchRun(
    name="digits",
    # Wide choices: networks of one size then differ by several points, more than the noise of the held-out images.
    space=s3_space(
        "digits",
        depth=(1, 2, 3),
        embed=(8, 16, 24, 32, 40, 48),
        window=(2, 4),
        heads=(1, 2, 3, 4),
        mlp=(0.5, 1, 1.5, 2),
        steps=(1, 8, 2, 1, 0.5),
        head_dim=8,
        num_stages=3,
        patch_size=2,
    ),
    data=Data(
        name="digits",
        holdout=500,
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
        epochs=12,
        batch_size=128,
        lr=1e-2,
        warmup_epochs=2,
        label_smoothing=0.1,
        drop_path=0.0,
        checkpoint_seconds=45,
        sampling="sandwich",
    ),
    # The paper's threshold of 0.4 points per step is for errors of ImageNet; a young supernet on digits differs by
    # points from choice to choice, and would leap. The slightest gain is noise here, so slopes are rounded, and errors
    # count within the budget: both keep the spaces around the budget, where networks of one size differ most.
    space_search=SpaceSearch(method="s3", iterations=2, samples=300, tau=2.0, rounding="nearest", upper=100e3),
    arch_search=ArchSearch(budgets=("params<=100K",), population=50, generations=10),
    final=Final(
        mode="finetune",
        train=Train(epochs=60, batch_size=64, lr=2e-3, warmup_epochs=2, drop_path=0.0, checkpoint_seconds=45),
    ),
)
