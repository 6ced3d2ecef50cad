"""UperNet with DeiT-S on ADE20K, 160,000 iterations.

Expected:  43.15 mIoU, and 43.85 at several scales and flipped, with 52M parameters and 1099G FLOPs (the paper's
           figures, its Table 3; with a recipe that it does not print; not run here).
Size:      51.8M parameters, 1098.9G multiply-accumulates at 2048 x 512 (by `s3zoo flops_mm`).
Cost:      160,000 iterations with 16 images of 512 x 512; 4.2 x 10^18 FLOP, or 2.4 GPU-days at an assumed 20 TFLOP/s
           (estimate). The paper used 8 V100 GPUs and gives no hours.
Command:   torchrun --nproc-per-node 8 -m s3zoo train_mm upernet_deit-small_160k_ade20k-512x512 --data /path/to/ade20k

Position embeddings are interpolated (bicubic) to the image. The last map, enlarged and halved without any parameter,
is the pyramid, as the paper adds no deconvolutions; which blocks its maps come from is not printed. That gives the
paper's size and FLOPs. The recipe is Swin's.
"""

_base_ = "./_base_/upernet_160k_ade20k-512x512.py"
model = dict(
    backbone=dict(model="deit_small_patch16_224", drop_path_rate=0.1, pyramid="resize"),
    decode_head=dict(in_channels=[384, 384, 384, 384]),
    auxiliary_head=dict(in_channels=384),
)
