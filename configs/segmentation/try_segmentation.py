"""A small UperNet learns drawn discs and boxes, on a CPU: to see the commands work, and to begin from.

The images are drawn when the training begins, into the folder `shapes` of the run: 200 to train on and 50 others to
validate with. `--data` and `--classes` put your own in their place.

Expected:  98.3 mIoU on the 50 other images (one run).
Size:      0.7M parameters.
Cost:      1,000 iterations with 2 images; 66 seconds of processor time on one thread.
Command:   s3zoo train_mm try_segmentation
"""

_base_ = "./upernet_s3-tiny_160k_ade20k-512x512.py"
drawn_shapes = dict(train=200, val=50, seed=0)

arch = dict(
    schema_version=1,
    family="s3",
    stages=[
        dict(
            embed_dim=24 * 2**i,
            blocks=[dict(window_size=4, num_heads=2**i, head_dim=12, mlp_ratio=2.0)] * depth,
        )
        for i, depth in enumerate((1, 1, 2, 1))
    ],
)
model = dict(
    data_preprocessor=dict(size=(64, 64)),
    backbone=dict(model="s3", model_args=dict(arch=arch), pretrained=None, drop_path_rate=0.0),
    decode_head=dict(in_channels=[24, 48, 96, 192], channels=32, num_classes=3),
    auxiliary_head=dict(in_channels=96, channels=16, num_classes=3),
)

load, annotations, pack = dict(type="LoadImageFromFile"), dict(type="LoadAnnotations"), dict(type="PackSegInputs")
crop = dict(type="RandomCrop", crop_size=(64, 64))
train_pipeline = [load, annotations, crop, dict(type="RandomFlip", prob=0.5), pack]
test_pipeline = [load, annotations, pack]
scales = [dict(type="Resize", scale_factor=factor, keep_ratio=True) for factor in (0.5, 1.0)]
flips = [dict(type="RandomFlip", prob=prob) for prob in (0.0, 1.0)]
tta_pipeline = [load, dict(type="TestTimeAug", transforms=[scales, flips, [annotations], [pack]])]
# Labels count from 1; 0 stands for pixels that are not judged.
shapes = dict(
    type="BaseSegDataset",
    reduce_zero_label=True,
    metainfo=dict(classes=("ground", "disc", "box"), palette=[(128, 128, 128), (220, 60, 40), (40, 90, 230)]),
)
loading = dict(num_workers=0, persistent_workers=False)
train_dataloader = dict(**loading, dataset=dict(pipeline=train_pipeline, **shapes))
val_dataloader = dict(**loading, dataset=dict(pipeline=test_pipeline, **shapes))
test_dataloader = dict(**loading, dataset=dict(pipeline=test_pipeline, **shapes))

train_cfg = dict(max_iters=1000, val_interval=500)
param_scheduler = [
    dict(type="LinearLR", start_factor=0.1, by_epoch=False, begin=0, end=20),
    dict(type="PolyLR", eta_min=0.0, power=1.0, begin=20, end=1000, by_epoch=False),
]
optim_wrapper = dict(optimizer=dict(lr=3e-3))
default_hooks = dict(logger=dict(interval=50), checkpoint=dict(interval=500))
del arch, load, annotations, pack, crop, scales, flips, shapes, loading
