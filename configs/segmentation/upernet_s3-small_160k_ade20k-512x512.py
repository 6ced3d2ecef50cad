"""UperNet with S3-S on ADE20K, 160,000 iterations.

Expected:  48.04 mIoU, and 49.31 at several scales and flipped, with 81M parameters and 1071G FLOPs (the paper's
           figures, its Table 3; the authors' runs with Swin's recipe; not run here).
Size:      81.4M parameters, 1071.4G multiply-accumulates at 2048 x 512 (by `s3zoo flops_mm`).
Cost:      160,000 iterations with 16 images of 512 x 512; 4.1 x 10^18 FLOP, or 2.4 GPU-days at an assumed 20 TFLOP/s
           (estimate). The paper used 8 V100 GPUs and gives no hours.
Command:   torchrun --nproc-per-node 8 -m s3zoo train_mm upernet_s3-small_160k_ade20k-512x512 --data /path/to/ade20k
"""

_base_ = "./_base_/upernet_160k_ade20k-512x512.py"
model = dict(
    backbone=dict(model="s3_small", drop_path_rate=0.3),
    decode_head=dict(in_channels=[96, 192, 384, 768]),
    auxiliary_head=dict(in_channels=384),
)
