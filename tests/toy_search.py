"""A search of seconds, for tests."""

from s3zoo.search.config import ArchSearch, Final, SearchRun
from s3zoo.search.space_search import SpaceSearch
from s3zoo.space import s3_space
from s3zoo.training.config import Data, Train

config = SearchRun(
    name="toy_search",
    threads=1,
    space=s3_space(
        "toy", (1, 2), (8, 12), (2, 4), (1, 2), (1, 2), steps=(1, 4, 2, 1, 1), head_dim=4, num_stages=2, patch_size=2
    ),
    data=Data(
        name="digits", holdout=60, train_limit=128, num_classes=10, img_size=8, in_chans=1, mean=(0.3,), std=(0.35,),
        crop_pct=1.0, random_crop_pad=1, hflip=0.0, color_jitter=0.0,
    ),
    supernet=Train(
        epochs=2, batch_size=32, lr=5e-3, warmup_epochs=0.5, drop_path=0.1, sampling="sandwich", checkpoint_seconds=0
    ),
    space_search=SpaceSearch(method="s3", iterations=1, samples=20, tau=15),
    arch_search=ArchSearch(budgets=("params<=6K",), population=12, generations=3, parents=4, crossover=5, mutation=5),
    final=Final(
        mode="finetune",
        top=2,
        train=Train(epochs=2, batch_size=32, lr=1e-3, warmup_epochs=0, drop_path=0.0, checkpoint_seconds=0),
    ),
)  # fmt: skip
