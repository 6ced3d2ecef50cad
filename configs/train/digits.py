"""A small S3 network from scratch on scikit-learn's digits (1,437 training images of 8 x 8, grey): to try things.

Command:  s3zoo train digits
Expected: 97.2 % of the 360 test images (95.0 to 98.5; one run, seed 0, measured)
Cost:     47 seconds of one core
"""

from s3zoo.training.config import Data, Train, TrainRun

_STAGES = [
    {"embed_dim": dim, "blocks": [{"window_size": 2, "num_heads": 2, "head_dim": 8, "mlp_ratio": 2.0}] * 2}
    for dim in (24, 40)
]

config = TrainRun(
    name="digits",
    model="s3",
    model_args={"arch": {"schema_version": 1, "family": "s3", "patch_size": 2, "stages": _STAGES}},
    data=Data(
        name="digits",
        holdout=0,
        num_classes=10,
        img_size=8,
        in_chans=1,
        mean=(0.3,),
        std=(0.37,),
        crop_pct=1.0,
        random_crop_pad=1,
        hflip=0.0,
        color_jitter=0.0,
    ),  # fmt: skip
    threads=1,
    train=Train(epochs=60, batch_size=64, lr=5e-3, warmup_epochs=3, drop_path=0.0, checkpoint_seconds=45),
)
