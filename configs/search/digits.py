"""The whole S3 pipeline on scikit-learn's digits (1,797 grey images of 8 x 8), for two cores.

Command:  make search          (= python tools/search.py digits)
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
        embed=(16, 24, 32),
        window=(2, 4),
        heads=(1, 2, 3),
        mlp=(1, 1.5, 2),
        steps=(1, 8, 2, 1, 0.5),
        head_dim=8,
        num_stages=3,
        patch_size=1,
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
    supernet=Train(
        epochs=20,
        batch_size=64,
        lr=3e-3,
        warmup_epochs=2,
        weight_decay=0.05,
        label_smoothing=0.1,
        drop_path=0.0,
        sampling="sandwich",
    ),
    space_search=SpaceSearch(method="s3", iterations=2, samples=300),
    arch_search=ArchSearch(budgets=("params<=150K",), population=50, generations=8),
    final=Final(mode="finetune", train=Train(epochs=15, batch_size=64, lr=1e-3, warmup_epochs=1, drop_path=0.0)),
)
