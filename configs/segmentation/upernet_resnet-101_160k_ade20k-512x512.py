"""UperNet with ResNet-101 on ADE20K, 160,000 iterations.

Expected:  43.82 mIoU, and 44.85 at several scales and flipped, with 86M parameters and 1029G FLOPs (the paper's
           figures, its Table 3; mmseg's own result, with mmseg's recipe; not run here).
Size:      85.5M parameters, 1030.4G multiply-accumulates at 2048 x 512 (by `s3zoo flops_mm`).
Cost:      160,000 iterations with 16 images of 512 x 512; 4.0 x 10^18 FLOP, or 2.3 GPU-days at an assumed 20 TFLOP/s
           (estimate). mmseg names 4 V100 GPUs.
Command:   torchrun --nproc-per-node 4 -m s3zoo train_mm upernet_resnet-101_160k_ade20k-512x512 --data /path/to/ade20k

mmseg's own config as it is: ResNetV1c, whose batch norms learn over all processes (SyncBN, norm_eval=False), and SGD,
with 4 processes of 4 images. Its tests at several scales take multiples of the image's own size.
"""

_base_ = __import__("mmseg").__path__[0] + "/.mim/configs/upernet/upernet_r101_4xb4-160k_ade20k-512x512.py"
custom_imports = dict(imports=["s3zoo.transfer.mm"], allow_failed_imports=False)
auto_scale_lr = dict(enable=False, base_batch_size=16)
default_hooks = dict(checkpoint=dict(max_keep_ckpts=3))
randomness = dict(seed=0)
