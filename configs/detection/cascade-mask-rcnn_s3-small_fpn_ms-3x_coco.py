"""Cascade Mask R-CNN with S3-S on COCO, 36 epochs.

Expected:  52.6 box AP and 45.5 mask AP with 107M parameters and 855G FLOPs (the paper's figures, its Table 2; the
           authors' runs with Swin's recipe; not run here).
Size:      107.1M parameters, 854.1G multiply-accumulates at 1280 x 800 (by `s3zoo flops_mm`).
Cost:      36 epochs of 7,330 iterations with 16 images; 21.6 x 10^18 FLOP, or 12.5 GPU-days at an assumed 20 TFLOP/s
           (estimate). The paper used 8 V100 GPUs and gives no hours.
Command:   torchrun --nproc-per-node 8 -m s3zoo train_mm cascade-mask-rcnn_s3-small_fpn_ms-3x_coco --data /path/to/coco
"""

_base_ = "./_base_/cascade-mask-rcnn_ms-3x_coco.py"
model = dict(
    backbone=dict(model="s3_small", drop_path_rate=0.2),
    neck=dict(in_channels=[96, 192, 384, 768]),
)
