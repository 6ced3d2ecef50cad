"""Cascade Mask R-CNN with AutoFormer-S on COCO, 12 epochs.

Expected:  no figure in a paper; not run here.
Size:      83.8M parameters, 1300.1G multiply-accumulates at 1280 x 800 (by `s3zoo flops_mm`; 960.5G of them without the
           columns that relative positions append to queries, keys and values).
Cost:      12 epochs of 7,330 iterations with 16 images; 8.1 x 10^18 FLOP, or 4.7 GPU-days at an assumed 20 TFLOP/s
           (estimate).
Command:   torchrun --nproc-per-node 8 -m s3zoo train_mm cascade-mask-rcnn_autoformer-small_fpn_1x_coco --data
           /path/to/coco

A plain transformer has one map at stride 16; the wrapper makes a pyramid of it by transposed convolutions and pooling.
"""

_base_ = "./_base_/cascade-mask-rcnn_1x_coco.py"
model = dict(
    backbone=dict(model="autoformer_small", drop_path_rate=0.1),
    neck=dict(in_channels=[256, 256, 256, 256]),
)
