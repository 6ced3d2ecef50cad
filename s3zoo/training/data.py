"""Images as a network sees them: in which order, augmented how, and who sees which.

Every random choice is a function of its arguments: the split of the seed, the order of an epoch of (seed, epoch), the
augmentation of a sample of (seed, epoch, index), Mixup of (seed, step). So batches do not depend on the number of
workers, an epoch can start in its middle, and ranks agree without talking.
"""

from __future__ import annotations

import copy
import hashlib
import os
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch
from timm.data import Mixup
from torch import Tensor
from torch.utils.data import DataLoader

from s3zoo.checks import Fields
from s3zoo.files import Records
from s3zoo.training.apart import check_apart, check_classes, check_elsewhere, check_folders
from s3zoo.training.config import Data
from s3zoo.training.images import (
    Decoder,
    TrainImages,
    decoded,
    global_generators_kept,
    make_loader,
    normalised,
    normalised_there,
)
from s3zoo.training.splits import MIXUP, ORDER, Split, balanced_order, divided, hashed, open_split

UNREADABLE: Fields = {"image": str, "split": str}  # a line of the list of images that cannot be read
MOST_WORKERS = 8  # of a process, unless data.workers says otherwise

Batch = tuple[Tensor, Tensor]  # images and targets


def search_bytes() -> int:
    """Up to here the held-out images stay in memory: every candidate is scored on them. A quarter of what is free,
    for all processes of this machine, but 2 GiB at least."""
    try:
        lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
        free = next(1024 * int(line.split()[1]) for line in lines if line.startswith("MemAvailable:"))
    except (OSError, StopIteration):  # not Linux
        free = 0
    return max(2 * 2**30, free // 4 // int(os.environ.get("LOCAL_WORLD_SIZE", "1")))


class ImageData:
    """The training, search and test images of a run.

    Args:
        say: told what a user should know: odd files, images that cannot be read.
        device: where networks compute; for a GPU, training batches are pinned and held-out images kept on it.
        folder: the run's. Images that cannot be read are listed there, in unreadable-<rank>.jsonl, for the result.
    """

    def __init__(
        self, config: Data, seed: int, *, rank: int = 0, world: int = 1, say: Callable[[str], None] = lambda text: None,
        folder: Path | None = None, device: torch.device | None = None,
    ) -> None:  # fmt: skip
        self.config, self.seed, self.rank, self.world = config, seed, rank, world
        self.say, self.folder, self.device = say, folder, device or torch.device("cpu")
        if config.in_chans not in (1, 3) or not len(config.mean) == len(config.std) == config.in_chans:
            raise ValueError(
                f"data.in_chans is {config.in_chans}, data.mean has {len(config.mean)} values and data.std"
                f" {len(config.std)}; use 1 (grey) or 3 (colour) channels and as many values in each."
            )
        if folder is not None:
            check_elsewhere(config, folder)
        self.split = open_split(config, config.train_split)
        self.classes = self.split.classes
        self.num_classes = len(self.classes)
        if config.num_classes not in (0, self.num_classes):
            raise ValueError(
                f"data.num_classes is {config.num_classes}, but {self.split.where} has {self.num_classes} classes;"
                f" set data.num_classes={self.num_classes}."
            )
        self.search_indices, self.train_indices = divided(self.split, config, seed)
        self.train_size = len(self.train_indices)
        self.warnings: list[str] = []  # for the result
        self._warn(self.split)
        self._listed = Records(None if folder is None else folder / f"unreadable-{rank}.jsonl", check=UNREADABLE)
        self._train = TrainImages(self.split, self.train_indices, config, seed)
        self._keys: list[Any] = []  # of the epoch's batches; the loader and its workers outlive an epoch
        self._loader: DataLoader | None = None
        self._epochs_begun = 0
        self._calibration: tuple[int, np.ndarray] | None = None
        self._test: Split | None = None

    def with_held_out(self) -> Self:
        """The same images, with the held-out ones among those to train on: for a network that is chosen already."""
        other = copy.copy(self)
        other.__dict__.pop("fingerprint", None)
        other.train_indices = np.sort(np.concatenate([self.train_indices, self.search_indices]))
        other.train_size = len(other.train_indices)
        other._train = TrainImages(self.split, other.train_indices, self.config, self.seed)
        other._keys, other._loader, other._epochs_begun, other._calibration = [], None, 0, None
        return other

    @cached_property
    def fingerprint(self) -> str:
        """Changes with the training images or their division; the test split is not looked at."""
        sha = hashlib.sha256(self.split.digest())
        for indices in (self.train_indices, self.search_indices):
            sha.update(len(indices).to_bytes(8, "little") + indices.astype("<i8").tobytes())
        return sha.hexdigest()

    def check_splits(self, everything: bool = False) -> None:
        """Complain early about a missing test split, other class folders in it, or images of the training split; no
        test image is opened but those as large as a training image, or with `everything` all."""
        check_folders(self.config)
        check_apart(self.config, self.split, self.say, everything=everything)

    def _warn(self, split: Split) -> None:
        if split.warning:
            self.warnings.append(split.warning)
            self.say(f"data: {split.warning}")

    @property
    def unreadable(self) -> dict[str, str]:
        """The images that could not be read, in the order of discovery, and the split of each."""
        return {row["image"]: row["split"] for row in self._listed.rows}

    def _skip(self, split: Split, indices: Sequence[int]) -> None:
        """Note that these images cannot be read."""
        kind, known = "training" if split is self.split else "test", self.unreadable
        names = [os.path.join(split.where, split.name(index)) for index in indices]
        for name in [name for name in names if name not in known]:
            self._listed.append([{"image": name, "split": kind}])
            self.say(f"data: {name} cannot be read; the run goes on without it ({len(self.unreadable)} so far)")
        if len(self.unreadable) > self.config.max_unreadable:
            first = ", ".join(list(self.unreadable)[:3])
            raise ValueError(
                f"At least {len(self.unreadable)} images cannot be read (first: {first}), and data.max_unreadable is"
                f" {self.config.max_unreadable}; raise it to do without them, or repair them and begin anew."
            )

    def lost(self) -> dict[str, Any]:
        """What a result says of images that were not there; nothing if all were."""
        parts = {"unreadable": self.unreadable_counts(), "data_warnings": self.warnings}
        return {name: part for name, part in parts.items() if part}

    def unreadable_counts(self) -> dict[str, int]:
        """Of each split, how many images all ranks could not read; they share the folder."""
        found = self.unreadable
        for path in sorted(self.folder.glob("unreadable-*.jsonl")) if self.folder is not None else []:
            found |= {row["image"]: row["split"] for row in Records(path, check=UNREADABLE, write=False).rows}
        return dict(Counter(found.values()))

    def _all_unreadable(self, what: str, where: str, count: int) -> ValueError:
        return ValueError(
            f"None of the {count} {what} images of {where} can be read; mend them, and the same command goes on."
        )

    def _note_broken(self, images: Tensor | None, broken: set[int]) -> None:
        """What the workers could not read of the training images; they give up if that is too much."""
        if broken:
            self._skip(self.split, self.train_indices[sorted(broken)].tolist())
        if images is None:
            raise self._all_unreadable("training", self.split.where, self.train_size)

    # Training

    @cached_property
    def workers(self) -> int:
        """Processes that decode images. By default as many as there are processors for, none for images in memory."""
        if self.config.workers >= 0:
            return self.config.workers
        if self.split.reader is None and self.split.path(0) is None:
            return 0
        return min(MOST_WORKERS, (os.cpu_count() or 1) // int(os.environ.get("LOCAL_WORLD_SIZE", "1")))

    def _train_workers(self, batch: int) -> int:
        """The same for training batches: none where there is next to nothing to do, or no room to hand batches over."""
        if self.config.workers >= 0 or not self.workers:
            return self.workers
        images = self._train
        if images.cache is not None and images.whole and not images.colour.transforms and images.erase is None:
            return 0
        size = 4 * batch * self.config.in_chans * self.config.img_size**2
        try:
            shared = os.statvfs("/dev/shm")
        except (OSError, AttributeError):  # another system, which hands them over otherwise
            return self.workers
        return min(self.workers, shared.f_bavail * shared.f_frsize // (4 * size))  # each has two batches under way

    def train_batches(
        self, epoch: int, batch_size: int, start_batch: int = 0
    ) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        """This rank's (images, targets, rows) of each global batch of an epoch; rows are places in the global batch."""
        positions, rows = self.batch_positions(epoch, batch_size, start_batch)
        if self._loader is None:
            self._train.fill_cache(self.workers)
            workers = self._train_workers(batch_size // self.world)
            pinned = self.device.type == "cuda"
            self._loader = make_loader(self._train, self._keys, workers, keep=True, pinned=pinned)
        self._keys[:] = [(epoch, batch) for batch in positions]
        self._epochs_begun += 1
        return self._epoch(self._epochs_begun, iter(self._loader), torch.from_numpy(rows))

    def batch_positions(self, epoch: int, batch_size: int, start: int = 0) -> tuple[list[np.ndarray], np.ndarray]:
        """Which training images this rank sees in each batch of an epoch, and their places in the global batch.

        Mirrored places stay together, so that Mixup's partner (the batch in reverse) is on the same rank. With repeated
        augmentation an epoch has as many batches, of fewer images, each several times in a batch (as in DeiT).
        """
        assert 0 < batch_size <= self.train_size and (self.world == 1 or batch_size % (2 * self.world) == 0)
        place = np.arange(batch_size)
        rows = place[np.minimum(place, batch_size - 1 - place) % self.world == self.rank]
        order = np.argsort(hashed(self.seed, ORDER, epoch, np.arange(self.train_size)), kind="stable")
        if (repeats := self.config.repeated_aug) > 1:
            first = np.repeat(order[: -(-self.train_size // repeats)], repeats)[: self.train_size]
            order = first + self.train_size * (np.arange(self.train_size) % repeats)
        return [order[batch * batch_size + rows] for batch in range(start, self.train_size // batch_size)], rows

    def _epoch(self, number: int, batches: Iterator[Any], rows: Tensor) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        for images, targets, broken in batches:
            assert number == self._epochs_begun, "a newer epoch has taken the workers over"
            self._note_broken(images, broken)
            yield images, targets, rows

    def train_groups(self, groups: Sequence[np.ndarray]) -> Iterator[Batch]:
        """Training images at these positions, group by group, as epoch 0 shows them."""
        loader = make_loader(self._train, [(0, group) for group in groups], self.workers)
        for images, targets, broken in loader:
            self._note_broken(images, broken)
            yield images, targets

    def mixup(self, images: Tensor, targets: Tensor, step: int, smoothing: float = 0.0) -> Batch:
        """Mixup or CutMix of a rank's batch, targets becoming smoothed probabilities; if off, nothing changes."""
        if not (self.config.mixup or self.config.cutmix):
            return images, targets
        if len(images) % 2:
            raise ValueError(f"Mixup and CutMix pair images, but the batch has {len(images)}; use an even batch_size.")
        mix = Mixup(self.config.mixup, self.config.cutmix, label_smoothing=smoothing, num_classes=self.num_classes)
        with global_generators_kept():
            np.random.seed(int(hashed(self.seed, MIXUP, step)[0]) & 0xFFFFFFFF)
            return mix(images.clone(), targets)

    # Evaluation

    def _read(self, split: Split, indices: np.ndarray) -> Iterator[tuple[int, np.ndarray | None]]:
        """Indices and bytes of images; None for those that cannot be read."""
        arrays = decoded(Decoder(split, self.config, self.config.crop_pct), indices, self.workers)
        for index, array in zip(indices.tolist(), arrays, strict=True):
            if array is None:
                self._skip(split, [index])
            yield index, array

    def _stacked(self, items: Iterable[tuple[int, np.ndarray | None]], most: int) -> tuple[np.ndarray, np.ndarray]:
        """The indices of those (of at most so many) that can be read, and all their bytes."""
        size = self.config.img_size
        images = np.empty((most, self.config.in_chans, size, size), np.uint8)
        indices: list[int] = []
        for index, array in items:
            if array is not None:
                images[len(indices)] = array
                indices.append(index)
        return np.array(indices, int), images[: len(indices)]

    @cached_property
    def _search(self) -> tuple[np.ndarray, np.ndarray | None]:
        """The indices of the readable held-out images, and their bytes if these fit into memory."""
        count, images = len(self.search_indices), None
        items = self._read(self.split, self.search_indices)
        if count * self.config.in_chans * self.config.img_size**2 <= search_bytes():
            indices, images = self._stacked(items, count)
        else:
            indices = np.array([index for index, array in items if array is not None], int)
        if count and not len(indices):
            raise self._all_unreadable("held-out", self.split.where, count)
        return indices, images

    @property
    def search_size(self) -> int:
        """The number of held-out images that can be read."""
        return len(self._search[0])

    @cached_property
    def _search_on_device(self) -> Tensor | None:
        """The bytes of the held-out images on a GPU, if a quarter of what is free there holds them."""
        images = self._search[1]
        if images is None or self.device.type != "cuda" or images.nbytes > torch.cuda.mem_get_info(self.device)[0] // 4:
            return None
        return torch.from_numpy(images).to(self.device)

    def search_at(self, places: np.ndarray) -> Batch:
        """Held-out images at these places of a fixed order, every beginning of which is balanced over classes."""
        indices, images = self._search
        part = indices[places]
        targets = torch.from_numpy(self.split.targets[part])
        if (there := self._search_on_device) is not None:
            return normalised_there(there[torch.from_numpy(places).to(self.device)], self.config), targets
        chosen = self._stacked(self._read(self.split, part), len(part))[1] if images is None else images[places]
        return normalised(chosen, self.config), targets

    def search_images(self, first: int = 0, batch_size: int = 256) -> Iterator[Batch]:
        """All held-out images in their order, from batch `first` on."""
        for start in range(first * batch_size, self.search_size, batch_size):
            yield self.search_at(np.arange(start, min(start + batch_size, self.search_size)))

    def calibration_batches(self, count: int, batch_size: int = 256) -> Iterator[Tensor]:
        """`count` training images, balanced over classes, without augmentation: for BatchNorm's statistics."""
        if self._calibration is None or self._calibration[0] != count:
            order = balanced_order(self.split.targets, self.seed)
            chosen = order[np.isin(order, self.train_indices)][:count]
            self._calibration = count, self._stacked(self._read(self.split, chosen), len(chosen))[1]
        images = self._calibration[1]
        for start in range(0, len(images), batch_size):
            yield normalised(images[start : start + batch_size], self.config)

    def test_batches(self, first: int = 0, batch_size: int = 256) -> Iterator[Batch]:
        """Opens the test split, for the very end of a run; batches from `first` on, without what cannot be read."""
        if self._test is None:
            test = open_split(self.config, self.config.test_split)
            check_classes(self.classes, test.classes, test.where)
            self._warn(test)
            self._test = test
        if not first and "test" in self.unreadable.values():  # those of an earlier attempt may be mended
            rows = [row for row in self._listed.rows if row["split"] != "test"]
            self._listed.clear()
            self._listed.append(rows)
        return self._test_batches(self._test, first, batch_size)

    def _test_batches(self, split: Split, first: int, batch_size: int) -> Iterator[Batch]:
        items = self._read(split, np.arange(first * batch_size, len(split)))
        readable = first
        while part := list(islice(items, batch_size)):
            indices, images = self._stacked(part, len(part))
            readable += len(indices)
            yield normalised(images, self.config), torch.from_numpy(split.targets[indices])
        if not readable:
            raise self._all_unreadable("test", split.where, len(split))
