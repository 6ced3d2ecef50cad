"""Cascade Mask R-CNN with ResNet-50 on COCO, 36 epochs.

Expected:  46.3 box AP and 40.1 mask AP with 82M parameters and 739G FLOPs (the paper's figures, its Table 2, taken
           from Swin's paper: Swin's recipe; not run here).
Size:      82.2M parameters, 738.3G multiply-accumulates at 1280 x 800 (by `s3zoo flops_mm`).
Cost:      36 epochs of 7,330 iterations with 16 images; 18.7 x 10^18 FLOP, or 10.8 GPU-days at an assumed 20 TFLOP/s
           (estimate). The paper used 8 V100 GPUs and gives no hours.
Command:   torchrun --nproc-per-node 8 -m s3zoo train_mm cascade-mask-rcnn_resnet-50_fpn_ms-3x_coco --data
           /path/to/coco

A baseline of the paper, under the recipe and through the wrapper of S3; batch norms keep their statistics and the stem
and first stage are frozen, as in mmdet. The weights it begins with are torchvision's, as mmdet's.
"""

_base_ = "./_base_/cascade-mask-rcnn_ms-3x_coco.py"
model = dict(
    backbone=dict(model="resnet50.tv_in1k", frozen_stages=1, norm_eval=True),
    neck=dict(in_channels=[256, 512, 1024, 2048]),
)
# Its norms are called bn1 to bn3 and downsample.1.
optim_wrapper = dict(
    paramwise_cfg=dict(custom_keys={key: dict(decay_mult=0.0) for key in ("bn1", "bn2", "bn3", "downsample.1")})
)
