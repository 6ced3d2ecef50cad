"""UperNet with AutoFormer-S on ADE20K, 160,000 iterations.

Expected:  no figure in a paper; not run here.
Size:      54.6M parameters, 1608.9G multiply-accumulates at 2048 x 512 (by `s3zoo flops_mm`; 1169.0G of them without
           the columns that relative positions append to queries, keys and values).
Cost:      160,000 iterations with 16 images of 512 x 512; 4.5 x 10^18 FLOP, or 2.6 GPU-days at an assumed 20 TFLOP/s
           (estimate).
Command:   torchrun --nproc-per-node 8 -m s3zoo train_mm upernet_autoformer-small_160k_ade20k-512x512 --data
           /path/to/ade20k

A plain transformer has one map at stride 16; the wrapper makes a pyramid of it by transposed convolutions and pooling.
"""

_base_ = "./_base_/upernet_160k_ade20k-512x512.py"
model = dict(
    backbone=dict(model="autoformer_small", drop_path_rate=0.3),
    decode_head=dict(in_channels=[256, 256, 256, 256]),
    auxiliary_head=dict(in_channels=256),
)
