"""Questions, human answers and images: the published VQA v2 files with COCO's images, and the easy-VQA package.

As in `s3zoo.training.data`, every random choice is a function of its arguments: the order of an epoch and the grouping
of an image's questions of (seed, epoch), so an epoch can start in its middle and ranks agree without talking.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from torch.utils.data import DataLoader

from s3zoo.files import parse_json, read_bytes
from s3zoo.images import read_image
from s3zoo.training.images import CACHE_BYTES, channels_first, make_loader, normalised, random_crops
from s3zoo.training.splits import AUGMENT, ORDER, hashed, uniform
from s3zoo.transfer.vqa import metric
from s3zoo.transfer.vqa.config import VqaData
from s3zoo.transfer.vqa.model import Words

QUESTIONS = "v2_OpenEnded_mscoco_{}_questions.json"
ANNOTATIONS = "v2_mscoco_{}_annotations.json"
# split -> its name in the questions' file, in the annotations' file (none for a test), and in the images' folder
VQA_V2 = {
    "train": ("train2014", "train2014", "train2014"),
    "val": ("val2014", "val2014", "val2014"),
    "test-dev": ("test-dev2015", "", "test2015"),
    "test-std": ("test2015", "", "test2015"),  # what the server wants; it scores test-dev from it too
}
EASY_VQA = ("train", "test", "fit", "val")  # val is every tenth image of train, fit the others: to choose settings
FILL, SWAP, DROP, DONOR = 101, 102, 103, 104  # streams of random numbers besides those of s3zoo.training.splits


@dataclass(frozen=True, slots=True)
class Question:
    question_id: int
    image_id: int
    text: str
    answers: tuple[str, ...] = ()  # of the ten humans; none in a test split
    majority: str = ""
    answer_type: str = ""


@dataclass(frozen=True)
class VqaSplit:
    """The questions of a split and the file of each image."""

    questions: list[Question]
    images: dict[int, Path]

    @cached_property
    def by_image(self) -> dict[int, np.ndarray]:
        """Image -> places of its questions, images in the order of their ids."""
        places: dict[int, list[int]] = {}
        for place, question in enumerate(self.questions):
            places.setdefault(question.image_id, []).append(place)
        return {image: np.array(places[image]) for image in sorted(places)}

    @property
    def humans(self) -> dict[int, tuple[Sequence[str], str]]:
        """What `metric.scores` compares with."""
        return {q.question_id: (q.answers, q.answer_type) for q in self.questions}


def read_split(config: VqaData, name: str) -> VqaSplit:
    split = _read_easy_vqa(name) if config.name == "easy_vqa" else _read_vqa_v2(config.root, name)
    if not split.questions:
        raise ValueError(f"The split {name!r} of {config.name} has no questions; check its files.")
    missing = [image for image in split.by_image if image not in split.images]
    if missing:
        where = config.root or config.name
        raise ValueError(
            f"{len(missing)} of {len(split.by_image)} images of the split {name!r} are missing in {where!r}"
            f" (first: image {missing[0]}); put them where docs/vqa.md says."
        )
    return split


# VQA v2


def _read_vqa_v2(root: str, name: str) -> VqaSplit:
    if name not in VQA_V2:
        raise ValueError(f"There is no split {name!r} in VQA v2; use one of {', '.join(VQA_V2)}.")
    if not root:
        raise ValueError("data.root is empty; give the folder with VQA v2's files: --data FOLDER.")
    if not Path(root).is_dir():
        raise ValueError(f"data.root is {root!r}, but there is no such folder.")
    questions_of, annotations_of, images_of = VQA_V2[name]
    path = _find(root, QUESTIONS.format(questions_of))
    questions = {}
    for row in _rows(path, "questions", {"question_id": int, "image_id": int, "question": str}):
        if row["question_id"] in questions:
            raise ValueError(f"{path} has question {row['question_id']} twice; copy the file again.")
        questions[row["question_id"]] = Question(row["question_id"], row["image_id"], row["question"])
    if annotations_of:
        path = _find(root, ANNOTATIONS.format(annotations_of))
        fields = {"question_id": int, "answers": list, "multiple_choice_answer": str, "answer_type": str}
        answered = set()
        for row in _rows(path, "annotations", fields):
            asked = questions.get(row["question_id"])
            if asked is None:
                raise ValueError(
                    f"{path} answers question {row['question_id']}, which the questions' file does not have; take both"
                    " files of the same split."
                )
            humans = tuple(sys.intern(_text(human, path)) for human in row["answers"])
            if not humans:
                raise ValueError(f"{path} has no answers to question {row['question_id']}; copy the file again.")
            majority, kind = sys.intern(row["multiple_choice_answer"]), sys.intern(row["answer_type"])
            questions[asked.question_id] = replace(asked, answers=humans, majority=majority, answer_type=kind)
            answered.add(asked.question_id)
        metric.check_ids(answered, questions)
    return VqaSplit(list(questions.values()), _coco_images(Path(root), images_of))


def _text(human: Any, path: Path) -> str:
    if not isinstance(human, dict) or not isinstance(human.get("answer"), str):
        raise ValueError(f"{path} has the human answer {human!r}; each must be an object with the text 'answer'.")
    return human["answer"]


def _find(root: str, name: str) -> Path:
    """A file of VQA v2, in the folder itself or in the usual one below."""
    for below in ("", "questions", "annotations"):
        path = Path(root, below, name)
        if path.is_file():
            return path
    raise ValueError(f"There is no {name} in {root!r} (nor in questions or annotations below it); see docs/vqa.md.")


def _rows(path: Path, key: str, fields: Mapping[str, type]) -> list[dict[str, Any]]:
    try:
        content = parse_json(read_bytes(path))
    except ValueError as error:
        raise ValueError(f"{path} is not whole or not JSON ({error}); download it again.") from None
    rows = content.get(key) if isinstance(content, dict) else None
    if not isinstance(rows, list):
        raise ValueError(f"{path} has no list {key!r}; give VQA v2's own file.")
    for row in rows:
        wrong = [f for f, kind in fields.items() if not isinstance(row, dict) or not isinstance(row.get(f), kind)]
        if wrong:
            raise ValueError(f"{path} has an entry without a valid {wrong[0]!r}: {str(row)[:80]}; download it again.")
    return rows


def _coco_images(root: Path, name: str) -> dict[int, Path]:
    """COCO's files by image id; copies of the 2017 release have no prefix and divide train and val otherwise."""
    years = {"test2015": ["test2015", "test2017"], "train2014": ["train2014"], "val2014": ["val2014"]}[name]
    folders = [root / below / year for below in ("", "images") for year in years]
    if not any(folder.is_dir() for folder in folders) and name != "test2015":
        folders = [root / below / year for below in ("", "images") for year in ("train2017", "val2017")]
    found = [folder for folder in folders if folder.is_dir()]
    if not found:
        raise ValueError(f"There is no folder {name!r} with images in {str(root)!r} (nor in images below it).")
    images = {}
    for folder in found:
        for entry in os.scandir(folder):
            match = re.fullmatch(r"(?:COCO_\w+_)?(\d{12})\.(?:jpg|jpeg|png)", entry.name)
            if match:
                images[int(match[1])] = Path(entry.path)
    return images


# easy-VQA


def _read_easy_vqa(name: str) -> VqaSplit:
    try:
        import easy_vqa
    except ImportError:
        raise ValueError("data.name is 'easy_vqa', but its package is not installed; pip install easy-vqa.") from None
    if name not in EASY_VQA:
        raise ValueError(f"There is no split {name!r} in easy-VQA; use one of {', '.join(EASY_VQA)}.")
    train = name != "test"
    texts, answers, images = easy_vqa.get_train_questions() if train else easy_vqa.get_test_questions()
    paths = easy_vqa.get_train_image_paths() if train else easy_vqa.get_test_image_paths()
    kinds = {"yes": "yes/no", "no": "yes/no", "circle": "shape", "rectangle": "shape", "triangle": "shape"}
    questions = [
        Question(place, image, text, (answer,) * 10, answer, kinds.get(answer, "color"))
        for place, (text, answer, image) in enumerate(zip(texts, answers, images, strict=True))
        if name in ("train", "test") or (name == "val") == (image % 10 == 0)
    ]
    return VqaSplit(questions, {image: Path(path) for image, path in paths.items()})


# Answers


def answer_vocabulary(questions: Iterator[Question] | Sequence[Question], min_occurrences: int) -> list[str]:
    """Majority answers of at least so many questions, the frequent ones first; "" may be among them ("a", "the")."""
    counts = Counter(metric.vocabulary_form(question.majority) for question in questions)
    kept = [answer for answer, count in counts.items() if count >= min_occurrences]
    if not kept:
        raise ValueError(
            f"The answer vocabulary is empty: no answer is the majority of {min_occurrences} questions; lower"
            " data.min_occurrences or give more questions."
        )
    return sorted(kept, key=lambda answer: (-counts[answer], answer))


# Images


class Images:
    """Decoded and resized images by id, kept in memory where they are small enough."""

    def __init__(self, files: Mapping[int, Path], config: VqaData) -> None:
        self.files, self.config = files, config
        self._cache: dict[int, np.ndarray] = {}
        self._keep = len(files) * 3 * config.img_size**2 <= CACHE_BYTES

    def __getitem__(self, image: int) -> np.ndarray:
        """(3, img_size, img_size), bytes."""
        array = self._cache.get(image)
        if array is None:
            array = decode(self.files[image], self.config)
            if self._keep:
                self._cache[image] = array
        return array


def decode(path: Path, config: VqaData) -> np.ndarray:
    """A file as bytes (3, img_size, img_size)."""
    size = (config.img_size, config.img_size)
    if not path.is_file():
        raise ValueError(f"There is no image at {str(path)!r}; give one that exists.")
    image = read_image(path, "RGB")
    if image.size != size:
        image = image.resize(size, Image.Resampling[config.interpolation.upper()])
    return channels_first(image)


# What the training loop sees


class TrainSamples:
    """(epoch, places of samples) -> their inputs and targets, or the sentence of an error; used by workers."""

    def __init__(self, split: VqaSplit, config: VqaData, words: Words, answers: Sequence[str], seed: int, swap: bool):
        self.config, self.seed, self.swap = config, seed, swap
        self.images = Images(split.images, config)
        self.groups = list(split.by_image)  # image ids
        if config.image_dropout and config.dropped_image == "shuffle" and len(self.groups) < 2:
            raise ValueError("Images can be shuffled only where there are two or more.")
        self.own = list(split.by_image.values())  # the places of each group's questions
        size = config.questions_per_image
        self.chunks = np.array([(g, k) for g, own in enumerate(self.own) for k in range(-(-len(own) // size))])
        texts = list(dict.fromkeys(question.text for question in split.questions))
        self.ids, self.mask = words(texts, config.max_tokens)
        row = {text: place for place, text in enumerate(texts)}
        self.rows = np.array([row[question.text] for question in split.questions])
        self.image_of = np.array([question.image_id for question in split.questions])
        labels = {answer: label for label, answer in enumerate(answers)}
        self.num_answers = len(answers)
        self.targets = [metric.soft_targets(question.answers, labels) for question in split.questions]

    def questions(self, epoch: int, sample: int) -> tuple[int, np.ndarray, np.ndarray]:
        """Image, its questions in this sample, and which of them belong to it.

        An image's questions are shuffled and cut into samples; the last one is filled up with questions drawn anew.
        Where matching is learned, half of them are questions about other images ("two of four match").
        """
        group, chunk = self.chunks[sample]
        image, own, size = self.groups[group], self.own[group], self.config.questions_per_image
        order = own[np.argsort(hashed(self.seed, ORDER, epoch, own), kind="stable")]
        chosen = order[chunk * size : (chunk + 1) * size].copy()
        if lacking := size - len(chosen):
            draws = hashed(self.seed, FILL, epoch, sample, np.arange(lacking))
            chosen = np.concatenate([chosen, order[(draws % np.uint64(len(order))).astype(int)]])
        matched = np.ones(size, bool)
        if self.swap:
            for place in range(size // 2):
                draws = hashed(self.seed, SWAP, epoch, sample, place, np.arange(16)) % np.uint64(len(self.rows))
                others = [int(draw) for draw in draws if self.image_of[int(draw)] != image]
                if others:
                    chosen[place], matched[place] = others[0], False
        return image, chosen, matched

    def shown(self, epoch: int, samples: np.ndarray) -> tuple[list[int], np.ndarray]:
        """The image that each sample shows, and which of them are made blank (`data.image_dropout`)."""
        groups, count = self.chunks[samples, 0], len(self.groups)
        dropped = uniform(hashed(self.seed, DROP, epoch, samples)) < self.config.image_dropout
        if dropped.any() and self.config.dropped_image == "shuffle":
            steps = 1 + (hashed(self.seed, DONOR, epoch, samples) % np.uint64(count - 1)).astype(int)  # never its own
            groups, dropped = np.where(dropped, (groups + steps) % count, groups), np.zeros_like(dropped)
        return [self.groups[group] for group in groups], dropped

    def __getitem__(self, key: tuple[int, np.ndarray]) -> tuple[dict[str, Tensor], Tensor] | str:
        epoch, samples = key
        picked = [self.questions(epoch, int(sample)) for sample in samples]
        try:
            shown, blank = self.shown(epoch, samples)
            arrays = np.stack([self.images[image] for image in shown])
        except ValueError as error:
            return str(error)
        chosen = np.stack([questions for _, questions, _ in picked])  # (samples, questions)
        targets = np.zeros((*chosen.shape, self.num_answers), np.float32)
        for place, question in np.ndenumerate(chosen):
            labels, scores = self.targets[question]
            targets[place][labels] = scores
        if pad := self.config.random_crop_pad:  # the border is repeated outwards
            arrays = random_crops(arrays, pad, hashed(self.seed, AUGMENT, epoch, samples), "edge")
        images = normalised(arrays, self.config)  # type: ignore[arg-type]
        images[torch.from_numpy(blank)] = 0  # the mean colour, as in the control of `eval`
        inputs = {
            "images": images,
            "ids": self.ids[self.rows[chosen]],  # (samples, questions, text)
            "mask": self.mask[self.rows[chosen]],
            "matched": torch.from_numpy(np.stack([matched for _, _, matched in picked])),
        }
        return inputs, torch.from_numpy(targets)


class VqaTrainData:
    """The training questions of a run, as `s3zoo.training.loop.fit` asks for them; a sample is an image."""

    def __init__(
        self, split: VqaSplit, config: VqaData, words: Words, answers: Sequence[str], seed: int, *, swap: bool = False,
        rank: int = 0, world: int = 1,
    ) -> None:  # fmt: skip
        self.config, self.seed, self.rank, self.world = config, seed, rank, world
        self.samples = TrainSamples(split, config, words, answers, seed, swap)
        self.train_size = len(self.samples.chunks)
        self._keys: list[Any] = []
        self._loader: DataLoader | None = None

    def train_batches(
        self, epoch: int, batch_size: int, start_batch: int = 0
    ) -> Iterator[tuple[dict[str, Tensor], Tensor, Tensor]]:
        """This rank's (inputs, targets, rows) of each global batch; rows are places in the global batch."""
        rows = np.arange(self.rank, batch_size, self.world)
        order = np.argsort(hashed(self.seed, ORDER, epoch, np.arange(self.train_size)), kind="stable")
        self._keys[:] = [
            (epoch, order[batch * batch_size + rows]) for batch in range(start_batch, self.train_size // batch_size)
        ]
        if self._loader is None:
            self._loader = make_loader(self.samples, self._keys, self.config.workers, keep=True)
        for batch in self._loader:
            if isinstance(batch, str):
                raise ValueError(batch)
            inputs, targets = batch
            yield inputs, targets, torch.from_numpy(rows)

    def mixup(self, images: Any, targets: Tensor, step: int, smoothing: float = 0.0) -> tuple[Any, Tensor]:
        """Questions about a mixture of images have no answer."""
        return images, targets


def limited(split: VqaSplit, images: int) -> VqaSplit:
    """The questions of the first `images` images only; all of them for 0."""
    if not images:
        return split
    kept = set(list(split.by_image)[:images])
    return VqaSplit([question for question in split.questions if question.image_id in kept], split.images)


def joined(splits: Sequence[VqaSplit]) -> VqaSplit:
    """train and val as one; COCO's image ids are unique over both."""
    images = {image: path for split in splits for image, path in split.images.items()}
    return VqaSplit([question for split in splits for question in split.questions], images)


def fingerprint(split: VqaSplit, answers: Sequence[str]) -> str:
    """Changes with the questions, their answers or the vocabulary."""
    sha = hashlib.sha256(json.dumps(list(answers)).encode())
    for question in split.questions:
        sha.update(repr(question).encode())
    return sha.hexdigest()
