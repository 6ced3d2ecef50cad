"""Cascade Mask R-CNN with S3-B on COCO, 12 epochs.

Expected:  50.8 box AP and 43.7 mask AP with 128M parameters and 947G FLOPs (the paper's figures, its Table 2; the
           authors' runs with Swin's recipe; not run here).
Size:      128.5M parameters, 945.9G multiply-accumulates at 1280 x 800 (by `s3zoo flops_mm`).
Cost:      12 epochs of 7,330 iterations with 16 images; 8.0 x 10^18 FLOP, or 4.6 GPU-days at an assumed 20 TFLOP/s
           (estimate). The paper used 8 V100 GPUs and gives no hours.
Command:   torchrun --nproc-per-node 8 -m s3zoo train_mm cascade-mask-rcnn_s3-base_fpn_1x_coco --data /path/to/coco
"""

_base_ = "./_base_/cascade-mask-rcnn_1x_coco.py"
model = dict(
    backbone=dict(model="s3_base", drop_path_rate=0.3),
    neck=dict(in_channels=[96, 192, 384, 768]),
)
