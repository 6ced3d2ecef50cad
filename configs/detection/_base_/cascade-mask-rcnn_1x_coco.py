"""Cascade Mask R-CNN on COCO as Swin trains it, 12 epochs. A config names the backbone and its channels.

The S3 paper takes over Swin's settings: box heads of four convolutions and one linear layer with batch norms over all
processes, GIoU loss, training at many scales, AdamW. The batch of 16 is 8 processes with 2 images each: with other
numbers use --auto-scale-lr or --cfg-options train_dataloader.batch_size=N.
"""

from importlib import import_module  # mmengine takes no other imports in such a config

# By path: `mmdet::` would do, but it reads 400 files on all of mmdet's models first.
_base_ = [
    __import__("mmdet").__path__[0] + "/.mim/configs/_base_/" + name
    for name in (
        "models/cascade-mask-rcnn_r50_fpn.py",
        "datasets/coco_instance.py",
        "schedules/schedule_1x.py",
        "default_runtime.py",
    )
]
custom_imports = dict(imports=["s3zoo.transfer.mm"], allow_failed_imports=False)

model = dict(
    backbone=dict(_delete_=True, type="S3ZooBackbone", pretrained=True),
    roi_head=dict(
        bbox_head=[
            dict(
                type="ConvFCBBoxHead",
                num_shared_convs=4,
                num_shared_fcs=1,
                in_channels=256,
                conv_out_channels=256,
                fc_out_channels=1024,
                roi_feat_size=7,
                num_classes=80,
                bbox_coder=dict(type="DeltaXYWHBBoxCoder", target_means=[0.0] * 4, target_stds=stds),
                reg_class_agnostic=False,
                reg_decoded_bbox=True,
                norm_cfg=dict(type="SyncBN", requires_grad=True),
                loss_cls=dict(type="CrossEntropyLoss", use_sigmoid=False, loss_weight=1.0),
                loss_bbox=dict(type="GIoULoss", loss_weight=10.0),
            )
            for stds in ([0.1, 0.1, 0.2, 0.2], [0.05, 0.05, 0.1, 0.1], [0.033, 0.033, 0.067, 0.067])
        ]
    ),
)

# Either a scale, or a crop at a smaller scale that is then brought to one (DETR's augmentation).
train_pipeline = [
    dict(type="LoadImageFromFile", backend_args=None),
    dict(type="LoadAnnotations", with_bbox=True, with_mask=True),
    dict(type="RandomFlip", prob=0.5),
    dict(
        type="RandomChoice",
        transforms=[
            [
                dict(type="RandomChoiceResize", scales=[(s, 1333) for s in range(480, 801, 32)], keep_ratio=True),
            ],
            [
                dict(type="RandomChoiceResize", scales=[(s, 1333) for s in (400, 500, 600)], keep_ratio=True),
                dict(
                    type="RandomCrop", crop_type="absolute_range", crop_size=(384, 600), allow_negative_crop=True
                ),
                dict(type="RandomChoiceResize", scales=[(s, 1333) for s in range(480, 801, 32)], keep_ratio=True),
            ],
        ],
    ),
    dict(type="PackDetInputs"),
]
train_dataloader = dict(batch_size=2, dataset=dict(pipeline=train_pipeline))

# No decay on norms, relative-position tables and embeddings of positions.
optim_wrapper = dict(
    _delete_=True,
    type="OptimWrapper",
    optimizer=dict(type="AdamW", lr=1e-4, betas=(0.9, 0.999), weight_decay=0.05),
    paramwise_cfg=dict(custom_keys=import_module("s3zoo.transfer.mm").decay_exempt_keys()),
)
param_scheduler = [
    dict(type="LinearLR", start_factor=0.001, by_epoch=False, begin=0, end=1000),
    dict(type="MultiStepLR", begin=0, end=12, by_epoch=True, milestones=[8, 11], gamma=0.1),
]
default_hooks = dict(checkpoint=dict(max_keep_ckpts=3))
randomness = dict(seed=0)
