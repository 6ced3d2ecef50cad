"""S3's networks on ImageNet-1k: retrained, and at 384 x 384."""

from dataclasses import replace

from s3zoo.training.config import Train, TrainRun
from s3zoo.training.recipes import IMAGENET
from s3zoo.training.registry import Registry

configs = Registry()


@configs.add
def s3_scratch() -> TrainRun:
    """S3-T (or S3-S, S3-B) retrained from scratch on ImageNet-1k at 224 x 224 in the manner of DeiT.

    Expected:  82.1 / 83.7 / 84.0 % top-1 for T / S / B (the paper's figures, its Table 1, for weights inherited
               from the supernet; its Fig. 5 shows retrained networks about level. Not run here).
    Cost:      300 epochs of 1,251 steps; T: 5.3 x 10^18 FLOP (3 passes x 2 x 4.6G MACs, estimate), or 74 GPU-hours
               at an assumed 20 TFLOP/s.
    Command:   torchrun --nproc-per-node 8 -m s3zoo train s3_scratch --data /path/to/imagenet [--model s3_small]

    Batch, learning rates, warm-up, decay and drop path are those of the paper's supernets (its 4.1).
    """
    return TrainRun(
        name="s3_scratch",
        model="s3_tiny",
        data=replace(IMAGENET, holdout=0, crop_pct=0.9),
        train=Train(epochs=300, batch_size=1024, lr=1e-3, min_lr=1e-5, warmup_epochs=20, drop_path=0.2),
    )


@configs.add
def s3_384() -> TrainRun:
    """S3-S (or S3-B) finetuned at 384 x 384 on ImageNet-1k, the tables of relative positions resized with the windows.

    Expected:  83.7 -> 84.5 % for S, 84.0 -> 84.7 % for B (the paper's figures, its Table 1; not run here).
    Cost:      10 epochs of 2,502 steps; S: 2.5 x 10^18 FLOP (estimate from 33G MACs), or 35 GPU-hours at an assumed
               20 TFLOP/s.
    Command:   torchrun --nproc-per-node 8 -m s3zoo train s3_384 --data /path/to/imagenet
               For S3-B add: --model s3_base_384 --weights s3_base

    Epochs, constant learning rate and decay are the paper's (4.3). What it does not print is ours: batch 512, drop
    path 0.2 as in its supernets, gradients clipped at 5; and the augmentation is DeiT's. Windows of 24 and 12 in the
    place of 14 and 7 give the paper's MACs.
    """
    return TrainRun(
        name="s3_384",
        model="s3_small_384",
        weights="s3_small",
        mode="finetune",
        data=replace(IMAGENET, holdout=0, img_size=384, crop_pct=1.0),
        train=Train(
            epochs=10, batch_size=512, schedule="constant", lr=1e-5, weight_decay=1e-8, drop_path=0.2, clip_grad=5.0
        ),
    )
