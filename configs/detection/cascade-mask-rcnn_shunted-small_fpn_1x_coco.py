"""Cascade Mask R-CNN with Shunted-S on COCO, 12 epochs.

Expected:  no figure in a paper; not run here.
Size:      79.9M parameters, 888.3G multiply-accumulates at 1280 x 800 (by `s3zoo flops_mm`).
Cost:      12 epochs of 7,330 iterations with 16 images; 7.5 x 10^18 FLOP, or 4.3 GPU-days at an assumed 20 TFLOP/s
           (estimate).
Command:   torchrun --nproc-per-node 8 -m s3zoo train_mm cascade-mask-rcnn_shunted-small_fpn_1x_coco --data
           /path/to/coco

No weights can be fetched: convert the authors' checkpoint (`s3zoo convert`) or train your own, and add --cfg-options
model.backbone.pretrained=FOLDER. Without, training starts from random weights.
"""

_base_ = "./_base_/cascade-mask-rcnn_1x_coco.py"
model = dict(
    backbone=dict(model="shunted_small", drop_path_rate=0.2, pretrained=None),
    neck=dict(in_channels=[64, 128, 256, 512]),
)
# The batch norms of its stem have numbers for names.
optim_wrapper = dict(
    paramwise_cfg=dict(custom_keys={key: dict(decay_mult=0.0) for key in ("patch_embed.conv.1", "patch_embed.conv.4")})
)
