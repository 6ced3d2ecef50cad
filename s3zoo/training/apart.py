"""The test images are not the training images under another name: places are compared, and the bytes of files where
their sizes coincide."""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from pathlib import Path

from s3zoo.files import sha256
from s3zoo.training.config import Data
from s3zoo.training.splits import Split, class_folders, file_size, find_split, named_as_image, open_split

COMPARED_BYTES = 2**28  # of training and test images of the same size, up to here compared without being asked


def check_elsewhere(config: Data, folder: Path) -> None:
    """Refuse to write a run among the images: its folders would be classes from then on."""
    if config.name or not config.root:
        return
    root, place = Path(config.root).expanduser().resolve(), folder.resolve()
    splits = [find_split(config, wanted).resolve() for wanted in (config.train_split, config.test_split)]
    if place == root or any(split in (place, *place.parents) for split in splits):
        raise ValueError(f"--out is {str(folder)!r}, among the images of {config.root!r}; give another folder.")


def check_folders(config: Data) -> None:
    """Complain early about a missing test split, other class folders in it, or the same files; none is opened unless
    there is one of the same size."""
    if config.name or config.test_share:
        return
    train, test = find_split(config, config.train_split), find_split(config, config.test_split)
    places = [path.resolve() for path in (train, test)]
    if places[0] in (places[1], *places[1].parents) or places[1] in places[0].parents or train.samefile(test):
        raise ValueError(
            f"The training split ({train}) and the test split ({test}) are the same files, or one is within the other;"
            " give two different ones, as data.train_split and data.test_split."
        )
    if train.is_dir() and test.is_dir():
        names = [set(class_folders(split)) for split in (train, test)]
        wanted = set(config.classes) or names[0] | names[1]
        check_classes(names[0] & wanted, names[1] & wanted, str(test))
    elif train.is_file() and test.is_file() and file_size(train) == file_size(test) and sha256(train) == sha256(test):
        raise ValueError(f"{train} and {test} are copies of one file; give two different ones for training and test.")


def check_apart(config: Data, train: Split, say: Callable[[str], None], *, everything: bool = False) -> None:
    """Say how many test images are training images, too; refuse if all are, or if files of one are links to the other.

    Images in class folders are compared by their bytes where sizes coincide, up to COMPARED_BYTES. With `everything`,
    all images are decoded and their pixels compared, whatever they lie in.
    """
    if everything:
        test = open_split(config, config.test_split)
        seen = {_pixels(train, index) for index in range(len(train))} - {None}
        shared = [test.name(i) for i in range(len(test)) if _pixels(test, i) in seen]
        count, how = len(test), "pixel by pixel"
    elif config.name or config.test_share or not (root := find_split(config, config.test_split)).is_dir():
        return
    else:
        found = os.walk(root, followlinks=True)  # as timm does
        files = [os.path.join(place, name) for place, _, names in found for name in names if named_as_image(name)]
        shared, complete = _same_bytes([p for i in range(len(train)) if (p := train.path(i))], files)
        count, how = len(files), "byte for byte"
        if not complete:
            say("data: too many images have the size of another to compare them all; --check-data does.")
    if count and len(shared) == count:
        raise ValueError(f"All {count} test images are training images, too ({how}); give other images for the test.")
    if shared:
        say(
            f"data: {len(shared)} of {count} test images are training images, too ({how}; first: {shared[0]}), which"
            " makes the result look better than it is."
        )


def _same_bytes(train: list[str], test: list[str]) -> tuple[list[str], bool]:
    """The test files that have the bytes of a training file; whether all were compared."""
    places: dict[tuple[int, int], str] = {}
    sizes: dict[int, list[str]] = {}
    for path, found in _files(train):
        places[found.st_dev, found.st_ino] = path
        sizes.setdefault(found.st_size, []).append(path)
    alike = [(path, found) for path, found in _files(test) if found.st_size in sizes]
    linked = [(path, places[at]) for path, found in alike if (at := (found.st_dev, found.st_ino)) in places]
    if linked:
        raise ValueError(
            f"{len(linked)} test images are links to training images (first: {linked[0][0]} and {linked[0][1]}); give"
            " other images for the test."
        )
    common = {found.st_size for _, found in alike}
    if sum(found.st_size for _, found in alike) + sum(size * len(sizes[size]) for size in common) > COMPARED_BYTES:
        return [], False
    known = {sha256(Path(path)) for size in common for path in sizes[size]}
    return [path for path, _ in alike if sha256(Path(path)) in known], True


def _files(paths: list[str]) -> Iterator[tuple[str, os.stat_result]]:
    """Those that are files with something in them."""
    for path in paths:
        with suppress(OSError):
            if stat.S_ISREG((found := os.stat(path)).st_mode) and found.st_size:
                yield path, found


def _pixels(split: Split, index: int) -> bytes | None:
    image = split.image(index, "RGB")
    return None if image is None else hashlib.sha256(f"{image.size}".encode() + image.tobytes()).digest()


def check_classes(train: Iterable[str], test: Iterable[str], where: str) -> None:
    for name in sorted(set(train) ^ set(test)):
        has, lacks = ("training", "test") if name in set(train) else ("test", "training")
        raise ValueError(
            f"The class {name!r} is in the {has} split but not in the {lacks} split ({where}); give both the same"
            " class folders."
        )
