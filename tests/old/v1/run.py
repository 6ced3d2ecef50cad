"""The config of the run in the folder run: one epoch of a tiny network on scikit-learn's digits."""

from s3zoo.training.config import Data, Train, TrainRun

_STAGES = [{"embed_dim": 8, "blocks": [{"window_size": 2, "num_heads": 1, "head_dim": 8, "mlp_ratio": 1.0}]}] * 2

config = TrainRun(
    name="tiny",
    model="s3",
    model_args={"arch": {"schema_version": 1, "family": "s3", "patch_size": 2, "stages": _STAGES}},
    data=Data(
        name="digits", holdout=0, num_classes=10, img_size=8, in_chans=1, mean=(0.3,), std=(0.37,), crop_pct=1.0,
        random_crop_pad=1, hflip=0.0, color_jitter=0.0,
    ),  # fmt: skip
    threads=1,
    train=Train(epochs=1, batch_size=64, lr=5e-3, warmup_epochs=0, drop_path=0.0),
)
