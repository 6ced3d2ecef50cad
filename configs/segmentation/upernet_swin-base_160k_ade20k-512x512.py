"""UperNet with Swin-B on ADE20K, 160,000 iterations.

Expected:  no figure in the S3 paper; not run here.
Size:      121.3M parameters, 1189.0G multiply-accumulates at 2048 x 512 (by `s3zoo flops_mm`).
Cost:      160,000 iterations with 16 images of 512 x 512; 4.6 x 10^18 FLOP, or 2.6 GPU-days at an assumed 20 TFLOP/s
           (estimate).
Command:   torchrun --nproc-per-node 8 -m s3zoo train_mm upernet_swin-base_160k_ade20k-512x512 --data /path/to/ade20k

A baseline of the paper, under the recipe and through the wrapper of S3. For Swin-B the S3 paper has no figure.
"""

_base_ = "./_base_/upernet_160k_ade20k-512x512.py"
model = dict(
    backbone=dict(model="swin_base_patch4_window7_224", drop_path_rate=0.3),
    decode_head=dict(in_channels=[128, 256, 512, 1024]),
    auxiliary_head=dict(in_channels=512),
)
