"""The configuration of a visual-question-answering run."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Literal

from s3zoo.checks import Amount, Count, Interpolation, Positive, Range, Seed, Share, Threads, Workers, check
from s3zoo.training.config import Train


@dataclass(frozen=True)
class VqaData:
    """Questions, answers and images, and how they are seen."""

    # The published JSON files and COCO images at `root`; or "easy_vqa", from its package
    name: Literal["easy_vqa", "vqa_v2"] = "vqa_v2"
    root: str = ""
    train_splits: tuple[str, ...] = ("train",)  # ("train", "val") for a test-server entry
    val_split: str = "val"  # evaluated at the end of training; "": nothing is
    vocabulary_splits: tuple[str, ...] = ("train", "val")  # the usual 3129 answers are those of both
    min_occurrences: Positive = 9  # an answer is in the vocabulary if it is the majority answer of so many questions
    questions_per_image: Annotated[int, Range(1, 1000)] = 4  # of one sample: its image is encoded once
    max_tokens: Annotated[int, Range(3, 10**4)] = 16  # of a question, [CLS] and [SEP] included
    train_limit: Count = 0  # use the questions of only so many training images (0: all)
    # Images are resized to this square, whole: a question may be about a corner
    img_size: Annotated[int, Range(1, 8192)] = 384
    random_crop_pad: Annotated[int, Range(0, 1024)] = 0  # > 0: pad by so many pixels and crop at a random place
    image_dropout: Share = 0.0  # share of training samples that show something else, to learn what to answer then
    # What they show: "blank", the mean colour; "shuffle", the image of another question
    dropped_image: Literal["blank", "shuffle"] = "blank"
    mean: Annotated[tuple[float, float, float], Range(-(10**6), 10**6)] = (0.485, 0.456, 0.406)
    std: Annotated[tuple[float, float, float], Range(0, 10**6, above=True)] = (0.229, 0.224, 0.225)
    interpolation: Interpolation = "bicubic"
    workers: Workers = 0

    def __post_init__(self) -> None:
        check(self)
        if not self.train_splits:
            raise ValueError("train_splits is empty; name at least one split, for example ('train',).")


@dataclass(frozen=True)
class VqaModelConfig:
    """Backbone, BERT and answer head."""

    backbone: str = "s3_tiny"  # whatever timm.create_model takes: a name, "local-dir:FOLDER", "hf-hub:ORG/NAME"
    backbone_args: dict = field(default_factory=dict)  # further arguments of it, for example an arch
    pretrained: bool = True  # load the backbone's published weights
    # "package:NAME" is a folder with config.json in an installed package; "": small, random, words from the questions
    bert: str = "bert-base-uncased"
    layers: Annotated[int, Range(1, 1000)] = 3  # the first so many of BERT's
    hidden: Annotated[int, Range(1, 65_536)] = 128  # of a random BERT, as are the next two
    heads: Annotated[int, Range(1, 1024)] = 4
    dropout: Share = 0.1
    head_dropout: Share = 0.5
    matching: Amount = 0.0  # weight of the image-text matching loss: does the question belong to the image?

    def __post_init__(self) -> None:
        check(self)
        if not self.bert and self.hidden % self.heads:
            raise ValueError(f"hidden is {self.hidden}, but must be a multiple of heads ({self.heads}).")


@dataclass(frozen=True)
class VqaRun:
    """One training and its evaluation."""

    name: str
    data: VqaData = field(default_factory=VqaData)
    model: VqaModelConfig = field(default_factory=VqaModelConfig)
    # batch_size counts images; lr is that of everything but the backbone; label_smoothing has no meaning here
    train: Train = field(default_factory=Train)
    backbone_lr_scale: Amount = 0.1  # S3 supplement: 5e-6 for the backbone, 5e-5 for the rest
    seed: Seed = 0
    threads: Threads = 2
    device: Literal["auto", "cpu", "cuda"] = "auto"
    amp: bool = True  # mixed precision, on a GPU only

    def __post_init__(self) -> None:
        check(self)
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
