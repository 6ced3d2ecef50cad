"""GLiT's two stages in seconds, for tests."""

from s3zoo.search.config import ArchSearch, Final, SearchRun
from s3zoo.space import glit_space
from s3zoo.training.config import Data, Train

config = SearchRun(
    name="toy_glit",
    threads=1,
    hierarchy="glit",
    space=glit_space(
        "glit", 12, 3, depth=3, kernels=(3, 5, 7), expansions=(1, 2, 4), head_dims=(2, 4, 8), mlp=(1, 2, 3),
        patch_size=4,
    ),
    data=Data(
        name="digits", holdout=60, train_limit=128, num_classes=10, img_size=8, in_chans=1, mean=(0.3,), std=(0.35,),
        crop_pct=1.0, random_crop_pad=1, hflip=0.0, color_jitter=0.0,
    ),
    supernet=Train(
        epochs=2, batch_size=32, lr=5e-3, warmup_epochs=0.5, drop_path=0.0, sampling="uniform", sharing="classical",
        checkpoint_seconds=0,
    ),
    arch_search=ArchSearch(
        budgets=("macs<=60K",), population=12, generations=3, parents=4, crossover=5, mutation=5, calibration_images=64
    ),
    final=Final(mode="inherit"),
)  # fmt: skip
