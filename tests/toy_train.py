"""A training of a second, for tests: a network of 4,000 weights on digits."""

from s3zoo.training.config import Data, Train, TrainRun

ARCH = {
    "schema_version": 1,
    "family": "s3",
    "patch_size": 2,
    "stages": [
        {"embed_dim": dim, "blocks": [{"window_size": 2, "num_heads": 2, "head_dim": 4, "mlp_ratio": 2.0}]}
        for dim in (12, 20)
    ],
}
DIGITS = Data(
    name="digits", holdout=0, train_limit=128, num_classes=10, img_size=8, in_chans=1, mean=(0.3,), std=(0.35,),
    crop_pct=1.0, random_crop_pad=1, hflip=0.0, color_jitter=0.0,
)  # fmt: skip

config = TrainRun(
    name="toy_train",
    model="s3",
    model_args={"arch": ARCH},
    data=DIGITS,
    threads=1,
    train=Train(
        epochs=3, batch_size=32, lr=5e-3, warmup_epochs=0.5, drop_path=0.1, ema=0.9, checkpoint_seconds=0
    ),
)
