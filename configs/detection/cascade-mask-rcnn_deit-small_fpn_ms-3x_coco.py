"""Cascade Mask R-CNN with DeiT-S on COCO, 36 epochs.

Expected:  48.0 box AP and 41.4 mask AP with 80M parameters and 889G FLOPs (the paper's figures, its Table 2, taken
           from Swin's paper: Swin's recipe; not run here).
Size:      79.8M parameters, 889.0G multiply-accumulates at 1280 x 800 (by `s3zoo flops_mm`).
Cost:      36 epochs of 7,330 iterations with 16 images; 22.5 x 10^18 FLOP, or 13.0 GPU-days at an assumed 20 TFLOP/s
           (estimate). The paper used 8 V100 GPUs and gives no hours.
Command:   torchrun --nproc-per-node 8 -m s3zoo train_mm cascade-mask-rcnn_deit-small_fpn_ms-3x_coco --data
           /path/to/coco

A baseline of the paper, under the recipe and through the wrapper of S3. The last map, enlarged and halved without any
parameter, is the pyramid: that has the paper's size and FLOPs, though Swin's paper speaks of deconvolutions. Drop path
0.1 is DeiT's own.
"""

_base_ = "./_base_/cascade-mask-rcnn_ms-3x_coco.py"
model = dict(
    backbone=dict(model="deit_small_patch16_224", drop_path_rate=0.1, pyramid="resize"),
    neck=dict(in_channels=[384, 384, 384, 384]),
)
