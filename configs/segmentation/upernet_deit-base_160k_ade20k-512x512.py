"""UperNet with DeiT-B on ADE20K, 160,000 iterations.

Expected:  44.09 mIoU, and 45.68 at several scales and flipped, with 121M parameters and 2772G FLOPs (the paper's
           figures, its Table 3; with a recipe that it does not print; not run here).
Size:      119.9M parameters, 1534.8G multiply-accumulates at 2048 x 512 (by `s3zoo flops_mm`).
Cost:      160,000 iterations with 16 images of 512 x 512; 5.9 x 10^18 FLOP, or 3.4 GPU-days at an assumed 20 TFLOP/s
           (estimate). The paper used 8 V100 GPUs and gives no hours.
Command:   torchrun --nproc-per-node 8 -m s3zoo train_mm upernet_deit-base_160k_ade20k-512x512 --data /path/to/ade20k

Position embeddings are interpolated (bicubic) to the image. The last map, enlarged and halved without any parameter,
is the pyramid, as the paper adds no deconvolutions; which blocks its maps come from is not printed. That gives the
paper's size, if DeiT's classifier (0.8M) counts, and not its FLOPs: no part of the network could need another 1237G.
The recipe is Swin's.
"""

_base_ = "./_base_/upernet_160k_ade20k-512x512.py"
model = dict(
    backbone=dict(model="deit_base_patch16_224", drop_path_rate=0.1, pyramid="resize"),
    decode_head=dict(in_channels=[768, 768, 768, 768]),
    auxiliary_head=dict(in_channels=768),
)
