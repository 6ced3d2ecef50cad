"""Cascade Mask R-CNN with GLiT-S on COCO, 12 epochs.

Expected:  no figure in a paper; not run here.
Size:      85.5M parameters, 873.1G multiply-accumulates at 1280 x 800 (by `s3zoo flops_mm`).
Cost:      12 epochs of 7,330 iterations with 16 images; 7.4 x 10^18 FLOP, or 4.3 GPU-days at an assumed 20 TFLOP/s
           (estimate).
Command:   torchrun --nproc-per-node 8 -m s3zoo train_mm cascade-mask-rcnn_glit-small_fpn_1x_coco --data /path/to/coco

A plain transformer has one map at stride 16; the wrapper makes a pyramid of it by transposed convolutions and pooling.

No weights can be fetched: convert the authors' checkpoint (`s3zoo convert`) or train your own, and add --cfg-options
model.backbone.pretrained=FOLDER. Without, training starts from random weights.
"""

_base_ = "./_base_/cascade-mask-rcnn_1x_coco.py"
model = dict(
    backbone=dict(model="glit_small", drop_path_rate=0.1, pretrained=None),
    neck=dict(in_channels=[256, 256, 256, 256]),
)
