"""Cascade Mask R-CNN with S3-T on COCO, 36 epochs.

Expected:  50.5 box AP and 43.8 mask AP with 86M parameters and 748G FLOPs (the paper's figures, its Table 2; the
           authors' runs with Swin's recipe; not run here).
Size:      85.7M parameters, 748.7G multiply-accumulates at 1280 x 800 (by `s3zoo flops_mm`).
Cost:      36 epochs of 7,330 iterations with 16 images; 19.0 x 10^18 FLOP, or 11.0 GPU-days at an assumed 20 TFLOP/s
           (estimate). The paper used 8 V100 GPUs and gives no hours.
Command:   torchrun --nproc-per-node 8 -m s3zoo train_mm cascade-mask-rcnn_s3-tiny_fpn_ms-3x_coco --data /path/to/coco
"""

_base_ = "./_base_/cascade-mask-rcnn_ms-3x_coco.py"
model = dict(
    backbone=dict(model="s3_tiny", drop_path_rate=0.2),
    neck=dict(in_channels=[96, 192, 384, 768]),
)
