"""UperNet with ResNet-50 on ADE20K, 160,000 iterations.

Expected:  42.05 mIoU, and 42.78 at several scales and flipped, with 67M parameters and 951G FLOPs (the paper's
           figures, its Table 3; not run here).
Size:      66.5M parameters, 947.6G multiply-accumulates at 2048 x 512 (by `s3zoo flops_mm`).
Cost:      160,000 iterations with 16 images of 512 x 512; 3.6 x 10^18 FLOP, or 2.1 GPU-days at an assumed 20 TFLOP/s
           (estimate). The paper used 8 V100 GPUs and gives no hours.
Command:   torchrun --nproc-per-node 8 tools/train_mm.py upernet_resnet-50_160k_ade20k-512x512 --data /path/to/ade20k

A baseline of the paper, under the recipe and through the wrapper of S3; batch norms keep their statistics and the stem
and first stage are frozen, as in mmdet.
"""

_base_ = "./_base_/upernet_160k_ade20k-512x512.py"
model = dict(
    backbone=dict(model="resnet50", frozen_stages=1, norm_eval=True),
    decode_head=dict(in_channels=[256, 512, 1024, 2048]),
    auxiliary_head=dict(in_channels=1024),
)
# Its norms are called bn1 to bn3 and downsample.1.
optim_wrapper = dict(
    paramwise_cfg=dict(custom_keys={key: dict(decay_mult=0.0) for key in ("bn1", "bn2", "bn3", "downsample.1")})
)
