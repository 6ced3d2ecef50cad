"""The splits of a dataset: found, opened, listed in a fixed order, and divided.

A split is opened by `open_split` alone, so that whoever does not call it for the test split has not seen it.
"""

from __future__ import annotations

import errno
import hashlib
import io
import os
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image
from timm.data import create_dataset
from timm.data.readers.img_extensions import get_img_extensions

from s3zoo.files import exists, regular, sha256, shown
from s3zoo.images import LARGEST_IMAGE, read_image
from s3zoo.training.config import Data

DIGITS_TEST = 360  # of 1797
SPLIT, ORDER, AUGMENT, MIXUP, DIGITS = range(5)  # streams of random numbers

TRAIN_NAMES = ("train", "training")
TEST_NAMES = ("test", "val", "valid", "validation", "eval", "evaluation")
LAYOUT = (
    "expected are the folders train/<class>/<image> and test/<class>/<image>, or train.tar and test.tar with class"
    " folders inside"
)
KINDS = (
    "'digits', '' for class folders or tar files at data.root, 'torch/<dataset>' (torchvision) or"
    " 'hfds/<dataset>' (Hugging Face)"
)


def hashed(*words: int | np.ndarray) -> np.ndarray:
    """A uniform 64-bit number for each combination of integers (splitmix64 steps), the same on every machine.

    Arrays are combined element by element: `hashed(seed, SPLIT, np.arange(n))` is a number for each of n images, which
    another seed or another stream (SPLIT, ORDER, …) makes an independent one. Unlike a generator it has no state: image
    7's number is the same whether or not the others are asked for, so ranks, loader workers and resumed runs agree.
    """
    state: np.ndarray = np.zeros(1, np.uint64)
    for word in words:
        value = np.asarray(word & (2**64 - 1) if isinstance(word, int) else word).astype(np.uint64)
        state = state + value + np.uint64(0x9E3779B97F4A7C15)
        state = (state ^ (state >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        state = (state ^ (state >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        state = state ^ (state >> np.uint64(31))
    return state


def uniform(words: np.ndarray) -> np.ndarray:
    """Numbers in [0, 1) from 64-bit ones."""
    return (words >> np.uint64(11)).astype(np.float64) * 2.0**-53


class Digits:
    """Handwritten digits of 8 x 8, those of scikit-learn, split once and for all; like a torchvision dataset."""

    classes = tuple("0123456789")

    def __init__(self, train: bool) -> None:
        with np.load(Path(__file__).with_name("digits.npz")) as file:  # pixels from 0 to 16
            images, targets = file["images"], file["targets"].astype(np.int64)
        order = np.argsort(hashed(DIGITS, np.arange(len(targets))), kind="stable")
        rows = np.sort(order[DIGITS_TEST:] if train else order[:DIGITS_TEST])
        self.data = np.rint(images[rows] * (255 / 16)).astype(np.uint8)
        self.targets = targets[rows]

    def __getitem__(self, index: int) -> tuple[Image.Image, int]:
        return Image.fromarray(self.data[index]), int(self.targets[index])


class ImageFiles:
    """Images in files of their own, and the classes of each."""

    files: list[Path]
    targets: list[int]

    def __getitem__(self, index: int) -> tuple[Image.Image, int]:
        return read_image(self.files[index], "RGB"), self.targets[index]

    @property
    def data(self) -> np.ndarray:
        """What the digest identifies them by: their sizes."""
        return np.array([file_size(path) for path in self.files])


class Torchvision(ImageFiles):
    """A dataset of torchvision that timm does not list; "train+val" is one split after the other."""

    names = {"flowers102": "Flowers102", "stanford_cars": "StanfordCars", "oxford_iiit_pet": "OxfordIIITPet"}

    def __init__(self, name: str, root: str, split: str, download: bool) -> None:
        from torchvision import datasets

        make = getattr(datasets, self.names[name])
        self.parts = [make(root, split=part, download=download) for part in split.split("+")]
        self.classes = self.parts[0].classes
        files: list[tuple[Any, int]] = []
        for part in self.parts:
            paths = getattr(part, "_image_files", None) or getattr(part, "_images", None)
            files += part._samples if paths is None else zip(paths, part._labels, strict=True)
        self.files = [Path(path) for path, _ in files]
        self.targets = [int(target) for _, target in files]


class TinyImageNet(ImageFiles):
    """tiny-imagenet-200 as it is unpacked: train/<class>/images/, and val/images/ with a list of their classes."""

    def __init__(self, root: Path, train: bool) -> None:
        self.classes = sorted(regular(root / "wnids.txt").read_text().split())
        number = {name: index for index, name in enumerate(self.classes)}
        if train:
            files = [(path, name) for name in self.classes for path in sorted((root / "train" / name).rglob("*.JPEG"))]
        else:
            lines = regular(root / "val" / "val_annotations.txt").read_text().splitlines()
            files = [(root / "val" / "images" / line.split("\t")[0], line.split("\t")[1]) for line in lines]
        self.files, self.targets = [path for path, _ in files], [number[name] for _, name in files]


def file_size(path: str | Path) -> int:
    """In bytes; -1 for a link to nowhere, which is an image that cannot be read."""
    try:
        return os.stat(path).st_size
    except OSError:
        return -1


class Split:
    """The images of one split in an order that does not depend on the file system."""

    def __init__(self, dataset: Any, where: str) -> None:
        self.dataset, self.where = dataset, where
        self.reader: Any = getattr(dataset, "reader", None)  # timm's own datasets have one, torchvision's do not
        source = dataset if self.reader is None else self.reader
        self.files = self.reader is not None and hasattr(self.reader, "samples")  # class folders or a tar file
        if self.files:
            names = [source.filename(i) for i in range(len(source))]
            self.order = np.array(sorted(range(len(names)), key=names.__getitem__))
            listed = source.targets if hasattr(source, "targets") else [target for _, target in source.samples]
            targets = np.asarray(listed)[self.order]
        else:
            column = getattr(source, "targets", None) if self.reader is None else source.dataset[source.label_key]
            targets = np.array([] if column is None else list(column))
            self.order = np.arange(len(targets))
        if not len(targets) or targets.ndim > 1 or targets.dtype.kind not in "iu" or targets.min() < 0:
            raise ValueError(f"{where} does not give one class label for each image; choose a split that does.")
        self.targets = targets.astype(np.int64)
        self.classes = self._classes(source)
        self.chosen: tuple[str, ...] = ()
        self.warning = ""  # what is odd about it, but no reason to stop
        self._process = os.getpid()

    def keep(self, kept: np.ndarray) -> None:
        """Leave only these images."""
        self.order, self.targets = self.order[kept], self.targets[kept]

    def choose(self, names: tuple[str, ...]) -> None:
        """Leave only these classes, numbered in this order."""
        unknown = [name for name in names if name not in self.classes]
        if unknown or len(set(names)) < len(names):
            what = f"{unknown[0]!r} is not among the classes" if unknown else "a class is named twice"
            some = ", ".join(self.classes[:10]) + (", …" if len(self.classes) > 10 else "")
            raise ValueError(f"data.classes: {what} of {self.where}, which has {some}; name each class once.")
        numbers = np.full(len(self.classes), -1)
        numbers[[self.classes.index(name) for name in names]] = np.arange(len(names))
        self.keep(numbers[self.targets] >= 0)
        self.targets = numbers[self.targets]
        self.classes = self.chosen = names

    def _classes(self, source: Any) -> tuple[str, ...]:
        numbers = getattr(source, "class_to_idx", None) or getattr(source, "class_name_to_idx", None) or {}
        names = getattr(source, "classes", None) or sorted(numbers, key=numbers.__getitem__)
        names = names or range(int(self.targets.max()) + 1)
        return tuple(", ".join(name) if isinstance(name, tuple) else str(name) for name in names)

    def __len__(self) -> int:
        return len(self.targets)

    def __getstate__(self) -> dict[str, Any]:
        self._close()  # for platforms that send a copy to their workers
        return self.__dict__

    def name(self, index: int) -> str:
        """Of a file: relative to the split."""
        return str(self.reader.filename(int(self.order[index]))) if self.files else f"image {index}"

    def path(self, index: int) -> str | None:
        """Of an image that is a file of its own."""
        if self.files:
            sample = self.reader.samples[self.order[index]][0]
            return sample if isinstance(sample, str) else None
        files = getattr(self.dataset, "files", None)
        return None if files is None else str(files[self.order[index]])

    def image(self, index: int, mode: str) -> Image.Image | None:
        """The decoded image, or None if it cannot be read."""
        if self._process != os.getpid():  # a forked worker must not share its parent's position in a tar file
            self._close()
            self._process = os.getpid()
        try:
            if self.reader is None:
                return self.dataset[int(self.order[index])][0].convert(mode)
            if (path := self.path(index)) is not None:
                regular(Path(path))
            with self.reader[int(self.order[index])][0] as file:
                return read_image(io.BytesIO(file.read(LARGEST_IMAGE)), mode)  # many small reads are slow
        except (OSError, ValueError, EOFError, tarfile.TarError) as error:
            if getattr(error, "errno", None) in (errno.EMFILE, errno.ENFILE, errno.ENOMEM):
                raise  # the machine's fault, not the image's
            return None

    def _close(self) -> None:
        """timm keeps a tar file open; it opens it again when needed."""
        if state := getattr(self.reader, "tar_state", None):
            for part in (state, *state.children.values()):
                part.reset()

    def digest(self) -> bytes:
        """What identifies the images: names, sizes and labels of files, or pixels that are in memory anyway."""
        sha = hashlib.sha256()
        if self.files:
            for index, target in enumerate(self.targets):
                sample = self.reader.samples[self.order[index]][0]
                size = sample.size if isinstance(sample, tarfile.TarInfo) else file_size(sample)
                sha.update(f"{self.name(index)}\0{size}\0{target}\n".encode(errors="surrogateescape"))
        else:
            if hasattr(self.dataset, "data"):
                sha.update(np.ascontiguousarray(self.dataset.data).tobytes())
            sha.update(self.targets.astype("<i8").tobytes())
        for name in self.chosen:
            sha.update(f"{name}\0".encode())
        return sha.digest()


def find_split(config: Data, wanted: str) -> Path:
    """The folder or tar file of a split at `data.root`."""
    if not config.root:
        raise ValueError(f"data.root is empty; {LAYOUT}, at the place that data.root names.")
    root = Path(os.path.expanduser(config.root))
    if not exists(root, "data.root"):
        raise ValueError(f"data.root is {config.root!r}, which does not exist; {LAYOUT}.")
    if config.test_share:
        if not root.is_dir():
            raise ValueError(f"data.test_share is set, but data.root {config.root!r} is no folder with class folders.")
        return root
    if root.is_file():
        if root.suffix != ".tar":
            raise ValueError(f"data.root is {config.root!r}, which is a file and no tar file; {LAYOUT}.")
        if wanted == config.train_split:
            return root
        root = root.parent
    synonyms, taken = (
        (TRAIN_NAMES, config.test_split) if wanted == config.train_split else (TEST_NAMES, config.train_split)
    )
    names = [wanted, *(name for name in synonyms if wanted in synonyms and name != taken)]
    for path in [path for name in names for path in (root / name, root / f"{name}.tar")]:
        if exists(path, f"The {wanted} split"):
            return path
    raise ValueError(f"{str(root)!r} holds no split called {wanted!r}; {LAYOUT}.")


def open_split(config: Data, wanted: str) -> Split:
    """The only door to a split: nothing of it is read before."""
    if common := set(config.train_split.split("+")) & set(config.test_split.split("+")):
        raise ValueError(
            f"data.train_split is {config.train_split!r} and data.test_split {config.test_split!r}, which share"
            f" {common.pop()!r}; name two different splits."
        )
    if config.test_share and config.name:
        raise ValueError(
            f"data.test_share is {config.test_share:g}, but {config.name} has a test split; set data.test_share=0."
        )
    split = _opened(config, wanted)
    if "" in split.classes:
        raise ValueError(
            f"{split.where} has images outside of class folders; move each into a folder named after its class."
        )
    if odd := [name for name in split.classes if shown(name) != name]:
        raise ValueError(
            f"{split.where} has a class folder {shown(odd[0])!r}, whose name is not in UTF-8 or cannot be shown;"
            " rename it."
        )
    if config.test_share:
        split.keep(test_images(split, config) ^ (wanted == config.train_split))
    if config.classes:
        split.choose(config.classes)
    return split


def test_images(split: Split, config: Data) -> np.ndarray:
    """Which images of a folder without splits are its test images: of every class the same share, by the seed.

    Copies of an image (the same bytes, in whatever class) go where the first of them goes.
    """
    chance = uniform(hashed(config.split_seed, SPLIT, 2, np.arange(len(split))))
    test: np.ndarray = np.zeros(len(split), bool)
    for number in range(len(split.classes)):
        own = np.flatnonzero(split.targets == number)
        count = min(max(1, round(config.test_share * len(own))), len(own) - 1)
        test[own[np.argsort(chance[own], kind="stable")[: max(0, count)]]] = True
    sizes: dict[int, list[int]] = {}
    for index in range(len(split)):
        path = split.path(index)
        sizes.setdefault(file_size(path) if path else -1, []).append(index)
    first: dict[str, int] = {}
    for size, indices in sizes.items():
        for index in indices if size > 0 and len(indices) > 1 else ():
            leader = first.setdefault(sha256(Path(str(split.path(index)))), index)
            test[index] = test[leader]
    return test


def _opened(config: Data, wanted: str) -> Split:
    if config.name == "digits":
        return Split(Digits(train=wanted == config.train_split), "digits")
    kind = config.name.partition("/")[0]
    if kind not in ("", "torch", "hfds"):
        raise ValueError(f"data.name is {config.name!r}, but must be {KINDS}.")
    root = os.path.expanduser(config.root) if kind else str(find_split(config, wanted))
    tiny = kind == "" and not config.root.endswith(".tar") and (Path(root).parent / "wnids.txt").is_file()
    ends, options = True, dict[str, Any]()
    if kind == "torch":
        if not root:
            raise ValueError(
                f"data.name is {config.name!r}, but no place for it is given; say where it is, or is to be downloaded"
                " to (--root FOLDER, or --set data.root=FOLDER)."
            )
        options["download"] = config.download
    elif not kind and os.path.isdir(root):
        list(class_folders(Path(root)))  # what timm would pass over in silence
    elif not kind:
        if not os.path.isfile(root):
            raise ValueError(f"{root!r} is neither a folder nor a file; {LAYOUT}.")
        ends = _check_tar(Path(root))
        if root.endswith(".tar"):
            options["cache_tarinfo"] = False  # timm would write a pickle beside a large one
    where = f"{config.name} ({wanted})" if kind else root
    try:
        if tiny:
            dataset: Any = TinyImageNet(Path(root).parent, train=wanted == config.train_split)
        elif (name := config.name.removeprefix("torch/")) in Torchvision.names:
            dataset = Torchvision(name, root, wanted, config.download)
        else:
            dataset = create_dataset(config.name, root=root or None, split=wanted, search_split=bool(kind), **options)
    except ImportError as error:
        raise ValueError(f"{where} needs the package {error.name!r}; install it with pip.") from error
    except (RuntimeError, ValueError, LookupError, OSError, AssertionError, tarfile.TarError) as error:
        if tiny:
            why = f"its lists of classes and images are not Tiny ImageNet's ({type(error).__name__}: {error})"
        elif not kind and isinstance(error, RuntimeError | ValueError):  # what timm raises when it finds nothing
            why = f"there are no images in it; {LAYOUT}"
        else:
            why = " ".join(str(error).split()).partition(". ")[0].rstrip(".") or type(error).__name__
        hint = "; check data.root, or set data.download=true" if kind == "torch" else ""
        raise ValueError(f"{where} cannot be used as data: {why}{hint}.") from error
    split = Split(dataset, where)
    if not ends:
        split.warning = f"{root} lacks the end that tar files have, so it may be cut: {len(split)} images are in it."
    return split


def class_folders(root: Path) -> Iterator[str]:
    """The class folders by timm's rule: an image's class is the innermost folder it is in.

    Refuses what timm passes over in silence or walks through for ever: folders that cannot be listed, and links that
    lead nowhere or into a circle.
    """

    def inside(folder: Path, above: tuple[tuple[int, int], ...]) -> Iterator[str]:
        try:
            entries = sorted(os.scandir(folder), key=lambda entry: entry.name)
            here = os.stat(folder)
        except OSError as error:
            raise ValueError(f"The folder {folder} cannot be listed ({error.strerror}); make it readable.") from None
        if (here.st_dev, here.st_ino) in above:
            raise ValueError(f"{folder} is a link to a folder that it lies in; remove it.")
        inner = False
        for entry in entries:
            if os.path.isdir(entry):
                inner = True
                yield from inside(folder / entry.name, (*above, (here.st_dev, here.st_ino)))
            elif entry.is_symlink() and not os.path.exists(entry) and not named_as_image(entry.name):
                raise ValueError(f"{folder / entry.name} is a link that leads nowhere or to itself; remove or mend it.")
        if not inner and folder != root and not folder.name.startswith("."):
            yield folder.name

    yield from inside(root, ())


def named_as_image(name: str) -> bool:
    return os.path.splitext(name)[1].lower() in get_img_extensions(as_set=True)


def _check_tar(path: Path) -> bool:
    """Refuse a tar file that was cut within a member or is damaged: reading stops there without a word. Whether it has
    the end of a tar file, which one that was cut between its members has not.
    """
    block = b""
    try:
        with tarfile.open(path, "r:") as tar:
            for member in tar:
                if member.isreg() and member.offset_data + member.size > os.path.getsize(path):
                    raise tarfile.ReadError
            assert tar.fileobj is not None
            tar.fileobj.seek(tar.offset)  # type: ignore[attr-defined]
            block = tar.fileobj.read(512)
    except tarfile.ReadError:
        block = b"cut"
    if any(block):
        raise ValueError(
            f"{path} cannot be used as data: it is no tar file, or is cut or damaged in its middle; copy it again."
        )
    return len(block) == 512


def balanced_order(targets: np.ndarray, seed: int) -> np.ndarray:
    """All images in a seeded order whose every beginning has the classes in numbers as equal as can be.

    The images of each class are shuffled, then the classes take turns: every class's first image, every class's second,
    and so on, within a turn in a drawn order of the classes. For example, with classes 0 0 0 0 1 1 1 2 2 and seed 0:

        images     0 8 4   1 7 6   2 5   3
        classes    0 2 1   0 2 1   0 1   0
    """
    shuffled = np.argsort(hashed(seed, SPLIT, np.arange(len(targets))), kind="stable")
    by_class = shuffled[np.argsort(targets[shuffled], kind="stable")]
    counts = np.bincount(targets)
    turn = np.concatenate([np.arange(count) for count in counts])  # place within the class
    lot = hashed(seed, SPLIT, 1, np.arange(len(counts)))[targets[by_class]]
    return by_class[np.lexsort((lot, turn))]


def divided(split: Split, config: Data, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """The held-out images in their order, and the training images; both balanced over classes and disjoint.

    In the example of `balanced_order`, the last image of each class (7, 5 and 3) is never held out, so that no class is
    without training images. A holdout of 4 is the beginning of the rest, 0 8 4 1; trained on are 2 3 5 6 7, or with a
    train_limit of 3 the next three in the order: 7, 6 and 2.
    """
    order = balanced_order(split.targets, seed)
    _, last = np.unique(split.targets[order][::-1], return_index=True)
    stays = np.zeros(len(order), bool)
    stays[len(order) - 1 - last] = True  # one image of every class is left for training
    free = order[~stays]
    if config.holdout > len(free):
        raise ValueError(
            f"data.holdout is {config.holdout}, but of the {len(order)} training images of {split.where} between 0 and"
            f" {len(free)} can be held out; set data.holdout accordingly."
        )
    held_out = free[: config.holdout]
    rest = order[~np.isin(order, held_out)]
    return held_out, np.sort(rest[: config.train_limit or None])
