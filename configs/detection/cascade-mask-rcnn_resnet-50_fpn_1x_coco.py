"""Cascade Mask R-CNN with ResNet-50 on COCO, 12 epochs.

Expected:  41.2 box AP and 35.9 mask AP with 82M parameters and 739G FLOPs (the paper's figures, its Table 2; mmdet's
           own result, with mmdet's recipe; not run here).
Size:      77.3M parameters, 393.4G multiply-accumulates at 1280 x 800 (by `s3zoo flops_mm`).
Cost:      12 epochs of 7,330 iterations with 16 images; 3.3 x 10^18 FLOP, or 1.9 GPU-days at an assumed 20 TFLOP/s
           (estimate). mmdet names 8 V100 GPUs.
Command:   torchrun --nproc-per-node 8 -m s3zoo train_mm cascade-mask-rcnn_resnet-50_fpn_1x_coco --data /path/to/coco

mmdet's own config as it is: its ResNet, box heads of two linear layers, SGD, one scale. The paper's AP are those that
mmdet lists for it, while its parameters and FLOPs are those of the network with Swin's box heads, as in
cascade-mask-rcnn_resnet-50_fpn_ms-3x_coco.
"""

_base_ = __import__("mmdet").__path__[0] + "/.mim/configs/cascade_rcnn/cascade-mask-rcnn_r50_fpn_1x_coco.py"
custom_imports = dict(imports=["s3zoo.transfer.mm"], allow_failed_imports=False)
default_hooks = dict(checkpoint=dict(max_keep_ckpts=3))
randomness = dict(seed=0)
