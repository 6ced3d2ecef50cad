"""AutoFormer's networks on ImageNet-1k: retrained, finetuned, at 384 x 384, distilled."""

from dataclasses import replace

from s3zoo.training.config import Distil, Train, TrainRun
from s3zoo.training.recipes import IMAGENET
from s3zoo.training.registry import Registry

configs = Registry()


@configs.add
def autoformer_scratch() -> TrainRun:
    """AutoFormer-T (or S, B) retrained from scratch on ImageNet-1k, 300 epochs.

    Expected:  74.9 / 81.7 / 82.6 % top-1 for T / S / B (the paper's figures, its Table 4; not run here).
    Cost:      300 epochs of 1,251 steps; T: 3 x 10^18 FLOP (estimate from 1.3G MACs), or 42 GPU-hours at an assumed
               20 TFLOP/s.
    Command:   torchrun --nproc-per-node 8 -m s3zoo train autoformer_scratch --data /path/to/imagenet [--model …_small]
    """
    return TrainRun(
        name="autoformer_scratch",
        model="autoformer_tiny",
        data=replace(IMAGENET, holdout=0),
        train=Train(epochs=300, batch_size=1024, lr=1e-3, min_lr=1e-5, warmup_epochs=20, drop_path=0.1),  # its Table 3
    )


@configs.add
def autoformer_finetune() -> TrainRun:
    """AutoFormer-T (or S, B) finetuned for 40 epochs on ImageNet-1k from the weights inherited from the supernet.

    Expected:  74.7 -> 74.9, 81.7 -> 81.8, 82.4 -> 82.6 % top-1 for T, S, B (the paper's Table 4; not run here).
    Cost:      40 epochs of 1,251 steps; T: 4 x 10^17 FLOP (estimate), or 6 GPU-hours at an assumed 20 TFLOP/s.
    Command:   torchrun --nproc-per-node 8 -m s3zoo train autoformer_finetune --data /path/to/imagenet [--model …_small]

    The paper prints the 40 epochs and no other setting; the learning rate here, a tenth of the supernet's, is ours.
    """
    return TrainRun(
        name="autoformer_finetune",
        model="autoformer_tiny",
        mode="finetune",
        data=replace(IMAGENET, holdout=0),
        train=Train(epochs=40, batch_size=1024, lr=1e-4, min_lr=1e-6, warmup_epochs=5, drop_path=0.1),
    )


@configs.add
def autoformer_384() -> TrainRun:
    """AutoFormer-S finetuned at 384 x 384 on ImageNet-1k; the position embeddings are interpolated.

    Expected:  81.7 -> 83.4 % top-1 (the paper's figure, its Table 6; not run here).
    Cost:      30 epochs of 2,502 steps; 4.5 x 10^18 FLOP (estimate from 19.4G MACs), or 62 GPU-hours at an assumed
               20 TFLOP/s.
    Command:   torchrun --nproc-per-node 8 -m s3zoo train autoformer_384 --data /path/to/imagenet

    The paper prints no setting and follows DeiT, whose command for 384 x 384 is this one: 30 epochs, constant
    5e-6 x batch / 512, decay 1e-8. Drop path 0.1 is the supernet's.
    """
    return TrainRun(
        name="autoformer_384",
        model="autoformer_small_384",
        weights="autoformer_small",
        mode="finetune",
        data=replace(IMAGENET, holdout=0, img_size=384),
        train=Train(epochs=30, batch_size=512, schedule="constant", lr=5e-6, weight_decay=1e-8, drop_path=0.1),
    )


@configs.add
def autoformer_distil() -> TrainRun:
    """AutoFormer-T (or S, B) with hard labels of a RegNetY-32GF beside the true ones.

    Expected:  74.7 -> 75.7, 81.7 -> 82.4, 82.4 -> 82.9 % top-1 for T, S, B (the paper's figures, its 4.4; not run
               here).
    Cost:      300 epochs of 1,251 steps with 32G MACs of the teacher for each image; 2.9 x 10^19 FLOP (estimate),
               or 17 GPU-days at an assumed 20 TFLOP/s.
    Command:   torchrun --nproc-per-node 8 -m s3zoo train autoformer_distil --data /path/to/imagenet [--model …_small]

    The paper names the teacher and "hard labels", no more: half of the loss is the teacher's as in DeiT, and
    AutoFormer has no distillation token, so both halves are for one classifier. This RegNetY-32GF of timm saw
    ImageNet-1k only.
    """
    return TrainRun(
        name="autoformer_distil",
        model="autoformer_tiny",
        data=replace(IMAGENET, holdout=0),
        distil=Distil(teacher="regnety_320.tv2_in1k", kind="hard", weight=0.5),
        train=Train(epochs=300, batch_size=1024, lr=1e-3, min_lr=1e-5, warmup_epochs=20, drop_path=0.1),
    )
