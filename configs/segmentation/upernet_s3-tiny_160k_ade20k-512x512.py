"""UperNet with S3-T on ADE20K, 160,000 iterations.

Expected:  44.87 mIoU, and 46.27 at several scales and flipped, with 60M parameters and 954G FLOPs (the paper's
           figures, its Table 3; the authors' runs with Swin's recipe; not run here).
Size:      60.0M parameters, 954.3G multiply-accumulates at 2048 x 512 (by `s3zoo flops_mm`).
Cost:      160,000 iterations with 16 images of 512 x 512; 3.7 x 10^18 FLOP, or 2.1 GPU-days at an assumed 20 TFLOP/s
           (estimate). The paper used 8 V100 GPUs and gives no hours.
Command:   torchrun --nproc-per-node 8 -m s3zoo train_mm upernet_s3-tiny_160k_ade20k-512x512 --data /path/to/ade20k
"""

_base_ = "./_base_/upernet_160k_ade20k-512x512.py"
model = dict(
    backbone=dict(model="s3_tiny", drop_path_rate=0.3),
    decode_head=dict(in_channels=[96, 192, 384, 768]),
    auxiliary_head=dict(in_channels=384),
)
