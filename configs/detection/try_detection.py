"""A small Cascade Mask R-CNN learns drawn discs and boxes, on a CPU: to see the commands work, and to begin from.

The images are drawn when the training begins, into the folder `shapes` of the run: 200 to train on and 50 others to
validate with. `--data` and `--classes` put your own in their place.

Expected:  0.69 box AP and 0.69 mask AP on the 50 other images after four of the six epochs (one run).
Size:      0.9M parameters.
Cost:      600 iterations with 2 images; about 150 seconds of processor time on one thread
           (extrapolated from four epochs).
Command:   s3zoo train_mm try_detection
"""

_base_ = "./cascade-mask-rcnn_s3-tiny_fpn_1x_coco.py"
drawn_shapes = dict(train=200, val=50, seed=0)
classes = dict(classes=("disc", "box"), palette=[(220, 60, 40), (40, 90, 230)])

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
bbox_head, rcnn = _base_.model.roi_head.bbox_head, _base_.model.train_cfg.rcnn
for head, stage in zip(bbox_head, rcnn, strict=True):
    head.update(num_classes=2, num_shared_convs=1, in_channels=32, conv_out_channels=32, fc_out_channels=64)
    stage.sampler.num = 32
model = dict(
    backbone=dict(model="s3", model_args=dict(arch=arch), pretrained=None, drop_path_rate=0.0),
    neck=dict(in_channels=[24, 48, 96, 192], out_channels=32),
    rpn_head=dict(in_channels=32, feat_channels=32, anchor_generator=dict(scales=[4])),
    roi_head=dict(
        bbox_roi_extractor=dict(out_channels=32),
        bbox_head=bbox_head,
        mask_roi_extractor=dict(out_channels=32),
        mask_head=dict(num_classes=2, num_convs=1, in_channels=32, conv_out_channels=32),
    ),
    train_cfg=dict(rpn_proposal=dict(nms_pre=200, max_per_img=64), rcnn=rcnn),
    test_cfg=dict(rpn=dict(nms_pre=200, max_per_img=64), rcnn=dict(score_thr=0.0)),
)

load, annotations = dict(type="LoadImageFromFile"), dict(type="LoadAnnotations", with_bbox=True, with_mask=True)
resize = dict(type="Resize", scale=(128, 96), keep_ratio=True)
train_pipeline = [load, annotations, resize, dict(type="RandomFlip", prob=0.5), dict(type="PackDetInputs")]
keys = ("img_id", "img_path", "ori_shape", "img_shape", "scale_factor")
test_pipeline = [load, resize, annotations, dict(type="PackDetInputs", meta_keys=keys)]
loading = dict(num_workers=0, persistent_workers=False)
train_dataloader = dict(
    **loading, dataset=dict(pipeline=train_pipeline, metainfo=classes, filter_cfg=dict(min_size=8))
)
val_dataloader = dict(**loading, dataset=dict(pipeline=test_pipeline, metainfo=classes))
test_dataloader = dict(**loading, dataset=dict(pipeline=test_pipeline, metainfo=classes))

train_cfg = dict(max_epochs=6, val_interval=2)
param_scheduler = [
    dict(type="LinearLR", start_factor=0.1, by_epoch=False, begin=0, end=20),
    dict(type="CosineAnnealingLR", begin=0, end=6, by_epoch=True, convert_to_iter_based=True),
]
optim_wrapper = dict(optimizer=dict(lr=1e-3))
default_hooks = dict(logger=dict(interval=20), checkpoint=dict(interval=2))
del arch, bbox_head, classes, rcnn, head, stage, load, annotations, resize, keys, loading
