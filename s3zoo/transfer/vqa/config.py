"""The configuration of a visual-question-answering run."""

from __future__ import annotations

from dataclasses import dataclass, field

from s3zoo.training.config import Train

SETS = ("easy_vqa", "vqa_v2")
CONTROLS = ("blank", "shuffle")  # what can be shown instead of an image


@dataclass(frozen=True)
class VqaData:
    """Questions, answers and images, and how they are seen."""

    name: str = "vqa_v2"  # the published JSON files and COCO images at `root`; or "easy_vqa", from its package
    root: str = ""
    train_splits: tuple[str, ...] = ("train",)  # ("train", "val") for a test-server entry
    val_split: str = "val"  # evaluated at the end of training; "": nothing is
    vocabulary_splits: tuple[str, ...] = ("train", "val")  # the usual 3129 answers are those of both
    min_occurrences: int = 9  # an answer is in the vocabulary if it is the majority answer of so many questions
    questions_per_image: int = 4  # of one sample: its image is encoded once
    max_tokens: int = 16  # of a question, [CLS] and [SEP] included
    train_limit: int = 0  # use the questions of only so many training images (0: all)
    img_size: int = 384  # images are resized to this square, whole: a question may be about a corner
    random_crop_pad: int = 0  # > 0: pad by so many pixels and crop at a random place
    image_dropout: float = 0.0  # share of training samples that show something else, to learn what to answer then
    dropped_image: str = "blank"  # what they show: "blank", the mean colour; "shuffle", the image of another question
    mean: tuple[float, ...] = (0.485, 0.456, 0.406)
    std: tuple[float, ...] = (0.229, 0.224, 0.225)
    interpolation: str = "bicubic"
    workers: int = 0

    def __post_init__(self) -> None:
        if self.name not in SETS:
            raise ValueError(f"data.name is {self.name!r}, but must be one of {', '.join(map(repr, SETS))}.")
        for key in ("min_occurrences", "questions_per_image", "img_size"):
            if getattr(self, key) < 1:
                raise ValueError(f"data.{key} is {getattr(self, key)}, but must be at least 1.")
        if not 0 <= self.image_dropout <= 1:
            raise ValueError(f"data.image_dropout is {self.image_dropout}, but must be a share from 0 to 1.")
        if self.dropped_image not in CONTROLS:
            known = " or ".join(map(repr, CONTROLS))
            raise ValueError(f"data.dropped_image is {self.dropped_image!r}, but must be {known}.")
        if self.max_tokens < 3:
            raise ValueError(f"data.max_tokens is {self.max_tokens}, but must be at least 3: [CLS], a word, [SEP].")
        if not len(self.mean) == len(self.std) == 3:
            raise ValueError(f"data.mean and data.std have {len(self.mean)} and {len(self.std)} values; give 3 each.")
        if not self.train_splits:
            raise ValueError("data.train_splits is empty; name at least one split, for example ('train',).")


@dataclass(frozen=True)
class VqaModelConfig:
    """Backbone, BERT and answer head."""

    backbone: str = "s3_tiny"  # whatever timm.create_model takes: a name, "local-dir:FOLDER", "hf-hub:ORG/NAME"
    backbone_args: dict = field(default_factory=dict)  # further arguments of it, for example an arch
    pretrained: bool = True  # load the backbone's published weights
    # "package:NAME" is a folder with config.json in an installed package; "": small, random, words from the questions
    bert: str = "bert-base-uncased"
    layers: int = 3  # the first so many of BERT's
    hidden: int = 128  # of a random BERT, as are the next two
    heads: int = 4
    dropout: float = 0.1
    head_dropout: float = 0.5
    matching: float = 0.0  # weight of the image-text matching loss: does the question belong to the image?


@dataclass(frozen=True)
class VqaRun:
    """One training and its evaluation."""

    name: str
    data: VqaData = field(default_factory=VqaData)
    model: VqaModelConfig = field(default_factory=VqaModelConfig)
    # batch_size counts images; lr is that of everything but the backbone; label_smoothing has no meaning here
    train: Train = field(default_factory=Train)
    backbone_lr_scale: float = 0.1  # S3 supplement: 5e-6 for the backbone, 5e-5 for the rest
    seed: int = 0
    threads: int = 2
    device: str = "auto"
    amp: bool = True  # mixed precision, on a GPU only

    def __post_init__(self) -> None:
        if self.model.matching and self.data.image_dropout:
            raise ValueError(
                "model.matching asks whether a question belongs to its image, and data.image_dropout takes the image"
                " away; set one of them to 0."
            )


def vqa_v2(name: str, backbone: str) -> VqaRun:
    """The recipe of S3's supplement; where it is silent, that of SOHO's released VQA config (docs/vqa.md)."""
    train = Train(
        epochs=40,
        batch_size=512,  # images, with four questions each: 2048
        lr=5e-5,
        schedule="step",
        milestones=(25, 35),
        decay_rate=0.1,
        warmup_steps=500,
        warmup_lr=5e-5 / 3,
        weight_decay=0.01,
        clip_grad=4.0,
        drop_path=0.0,
        checkpoint_seconds=600,
    )
    data = VqaData(train_splits=("train", "val"), val_split="", workers=8)
    return VqaRun(name=name, data=data, model=VqaModelConfig(backbone=backbone), train=train)
