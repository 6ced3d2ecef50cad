"""UperNet on ADE20K as Swin trains it, 160,000 iterations. A config names the backbone and its channels.

The batch of 16 is 8 processes with 2 images each: with other numbers use --auto-scale-lr or
--cfg-options train_dataloader.batch_size=N. `s3zoo test_mm --tta` (mmseg's own switch, too) tests at six scales and
flipped: `tta_model` and `tta_pipeline`.
"""

from importlib import import_module  # mmengine takes no other imports in such a config

# By path, as `mmseg::` asks for a distribution called mmsegmentation, which the maintained fork is not.
_base_ = [
    __import__("mmseg").__path__[0] + "/.mim/configs/_base_/" + name
    for name in (
        "models/upernet_swin.py",
        "datasets/ade20k.py",
        "default_runtime.py",
        "schedules/schedule_160k.py",
    )
]
custom_imports = dict(imports=["s3zoo.transfer.mm"], allow_failed_imports=False)

crop_size = (512, 512)
data_preprocessor = dict(size=crop_size)
model = dict(
    data_preprocessor=data_preprocessor,
    backbone=dict(_delete_=True, type="S3ZooBackbone", pretrained=True),
    decode_head=dict(num_classes=150),
    auxiliary_head=dict(num_classes=150),
)
train_dataloader = dict(batch_size=2)

# Multiples of the scale that testing has; upstream's pipeline has multiples of the image's own size.
tta_pipeline = [
    dict(type="LoadImageFromFile", backend_args=None),
    dict(
        type="TestTimeAug",
        transforms=[
            [
                dict(type="Resize", scale=(int(2048 * ratio), int(512 * ratio)), keep_ratio=True)
                for ratio in (0.5, 0.75, 1.0, 1.25, 1.5, 1.75)
            ],
            [dict(type="RandomFlip", prob=prob, direction="horizontal") for prob in (0.0, 1.0)],
            [dict(type="LoadAnnotations")],
            [dict(type="PackSegInputs")],
        ],
    ),
]

# No decay on norms, relative-position tables and embeddings of positions.
optim_wrapper = dict(
    _delete_=True,
    type="OptimWrapper",
    optimizer=dict(type="AdamW", lr=6e-5, betas=(0.9, 0.999), weight_decay=0.01),
    paramwise_cfg=dict(custom_keys=import_module("s3zoo.transfer.mm").decay_exempt_keys()),
)
param_scheduler = [
    dict(type="LinearLR", start_factor=1e-6, by_epoch=False, begin=0, end=1500),
    dict(type="PolyLR", eta_min=0.0, power=1.0, begin=1500, end=160000, by_epoch=False),
]
auto_scale_lr = dict(enable=False, base_batch_size=16)
default_hooks = dict(checkpoint=dict(max_keep_ckpts=3))
randomness = dict(seed=0)
