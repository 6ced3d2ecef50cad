"""Cascade Mask R-CNN with Swin-T on COCO, 36 epochs.

Expected:  50.4 box AP and 43.7 mask AP with 86M parameters and 745G FLOPs (the paper's figures, its Table 2, taken
           from Swin's paper and repository: Swin's recipe; not run here).
Size:      85.6M parameters, 745.6G multiply-accumulates at 1280 x 800 (by `s3zoo flops_mm`).
Cost:      36 epochs of 7,330 iterations with 16 images; 18.9 x 10^18 FLOP, or 10.9 GPU-days at an assumed 20 TFLOP/s
           (estimate). The paper used 8 V100 GPUs and gives no hours.
Command:   torchrun --nproc-per-node 8 -m s3zoo train_mm cascade-mask-rcnn_swin-tiny_fpn_ms-3x_coco --data
           /path/to/coco

A baseline of the paper, under the recipe and through the wrapper of S3.
"""

_base_ = "./_base_/cascade-mask-rcnn_ms-3x_coco.py"
model = dict(
    backbone=dict(model="swin_tiny_patch4_window7_224", drop_path_rate=0.2),
    neck=dict(in_channels=[96, 192, 384, 768]),
)
