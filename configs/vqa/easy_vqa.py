"""easy-VQA (4,000 + 1,000 images of 64 x 64 with one coloured shape, 13 answers): a network that learns to look.

Command:  s3zoo vqa train          (the package easy-vqa brings the images; nothing is downloaded)
Expected: 86.4 +- 0.2 % of the test questions (3 seeds, measured; docs/vqa.md); 66.9 % with blank images, where
          the likeliest answers are right for 67.0 %; 61.8 % with shuffled ones (59.4 % for who sees everything)
Cost:     about 4.5 minutes of one core
"""

from s3zoo.arch import Arch, S3Block, Stage
from s3zoo.training.config import Train
from s3zoo.transfer.vqa.config import VqaData, VqaModelConfig, VqaRun

# A small S3 of three stages: 64 x 64 pixels become 4 x 4 tokens as wide as the small BERT, so they are not projected.
ARCH = Arch(
    "s3",
    tuple(
        Stage(dim, (S3Block(window_size=8, num_heads=dim // 16, head_dim=16, mlp_ratio=2.0),)) for dim in (16, 32, 64)
    ),
    patch_size=4,
)

config = VqaRun(
    name="easy_vqa",
    data=VqaData(
        name="easy_vqa",
        val_split="test",
        vocabulary_splits=("train",),
        questions_per_image=4,
        max_tokens=12,
        img_size=64,
        image_dropout=0.1,  # without it, it takes a blank image for one of a gray shape
        mean=(0.5, 0.5, 0.5),
        std=(0.25, 0.25, 0.25),
    ),
    model=VqaModelConfig(
        backbone="s3",
        backbone_args={"arch": ARCH.to_dict()},
        pretrained=False,
        bert="",
        layers=2,
        hidden=64,
        heads=4,
        dropout=0.0,
        head_dropout=0.1,
    ),
    train=Train(epochs=6, batch_size=32, lr=1.5e-3, warmup_steps=100, weight_decay=0.01, clip_grad=1.0, drop_path=0.0),
    backbone_lr_scale=1.0,  # it begins with random weights, like the rest
    threads=1,
)
