"""Cascade Mask R-CNN with ResNeXt-101-64x4d on COCO, 12 epochs.

Expected:  45.3 box AP and 39.2 mask AP with 140M parameters and 972G FLOPs (the paper's figures, its Table 2; mmdet's
           own result, with mmdet's recipe; not run here).
Size:      135.2M parameters, 626.3G multiply-accumulates at 1280 x 800 (by `s3zoo flops_mm`).
Cost:      12 epochs of 7,330 iterations with 16 images; 5.3 x 10^18 FLOP, or 3.1 GPU-days at an assumed 20 TFLOP/s
           (estimate). mmdet names 8 V100 GPUs.
Command:   torchrun --nproc-per-node 8 -m s3zoo train_mm cascade-mask-rcnn_resnext-101-64x4d_fpn_1x_coco --data
           /path/to/coco

mmdet's own config as it is: its ResNeXt, box heads of two linear layers, SGD, one scale. The paper's AP are those that
mmdet lists for it, while its parameters and FLOPs are those of the network with Swin's box heads, as in
cascade-mask-rcnn_resnext-101-64x4d_fpn_ms-3x_coco.
"""

_base_ = __import__("mmdet").__path__[0] + "/.mim/configs/cascade_rcnn/cascade-mask-rcnn_x101-64x4d_fpn_1x_coco.py"
custom_imports = dict(imports=["s3zoo.transfer.mm"], allow_failed_imports=False)
default_hooks = dict(checkpoint=dict(max_keep_ckpts=3))
randomness = dict(seed=0)
