"""AutoFormer-S carried to a smaller dataset at 384 x 384 by DeiT's transfer recipe.

Expected:  CIFAR-10 99.1, CIFAR-100 91.1, Flowers 98.8, Cars 93.4, Pets 94.9 % top-1 (the paper's figures, its Table 6;
           not run here).
Cost:      1,000 epochs; CIFAR: 65 steps each and 5.8 x 10^18 FLOP in all (estimate from 19.4G MACs), or 81 GPU-hours at
           an assumed 20 TFLOP/s. `--epochs 100` is a good deal cheaper.
Command:   torchrun --nproc-per-node 8 -m s3zoo train transfer --data cifar100 --root ~/data --download

The paper follows DeiT; its first author gave the settings for CIFAR-10 and Cars (facebookresearch/deit#45): batch 768,
SGD with 0.01, decay 1e-4, 1,000 epochs, ImageNet's augmentation without random erasing, no drop path. Other sets:
--data cifar10, flowers, cars, pets; another network: --model s3_tiny --img-size 224, or a folder.
"""

from s3zoo.training.config import Train, TrainRun
from s3zoo.training.datasets import DATASETS

config = TrainRun(
    name="transfer",
    model="autoformer_small_384",
    weights="autoformer_small",
    mode="finetune",
    data=DATASETS["cifar10"],
    train=Train(
        epochs=1000, batch_size=768, opt="sgd", lr=0.01, min_lr=1e-5, warmup_epochs=5, weight_decay=1e-4, drop_path=0.0
    ),
)
