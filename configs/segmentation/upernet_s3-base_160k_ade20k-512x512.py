"""UperNet with S3-B on ADE20K, 160,000 iterations.

Expected:  no figure in the S3 paper; not run here.
Size:      102.8M parameters, 1175.1G multiply-accumulates at 2048 x 512 (by `s3zoo flops_mm`).
Cost:      160,000 iterations with 16 images of 512 x 512; 4.5 x 10^18 FLOP, or 2.6 GPU-days at an assumed 20 TFLOP/s
           (estimate).
Command:   torchrun --nproc-per-node 8 -m s3zoo train_mm upernet_s3-base_160k_ade20k-512x512 --data /path/to/ade20k
"""

_base_ = "./_base_/upernet_160k_ade20k-512x512.py"
model = dict(
    backbone=dict(model="s3_base", drop_path_rate=0.3),
    decode_head=dict(in_channels=[96, 192, 384, 768]),
    auxiliary_head=dict(in_channels=384),
)
