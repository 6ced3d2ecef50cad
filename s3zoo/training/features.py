"""What decoders read of a frozen tower, in the place of images: computed once a batch, or once an image and kept.

A kept set of features is a folder `train-<key>` or `scored-<key>` with `key.json`, `targets.npy` and one
`block-<index>.npy` (images, tokens, width) for each block of the tower, so that a deeper decoder adds a file. The key
is everything that features depend on: the tower's weights, the images and their division, how they are seen, and what
computes.
"""

from __future__ import annotations

import hashlib
import json
import math
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, nullcontext
from pathlib import Path
from typing import Any, Self

import numpy as np
import timm
import torch
from torch import Tensor, nn

from s3zoo.files import locked, write_json
from s3zoo.models.tower import build_tower, fingerprint, tower_features
from s3zoo.training.config import Data, Tower
from s3zoo.training.data import Batch, ImageData
from s3zoo.training.distributed import Ranks
from s3zoo.training.log import Log
from s3zoo.training.loop import Stop
from s3zoo.training.resumable import AUTOSAVE_SECONDS, Column, fill_arrays, open_array, row_groups

# On a CPU, how a product of matrices is summed up depends on the number of rows: in groups of one size, an image has
# the same features whatever stands beside it.
GROUP = 32
VERSION = 1  # of the files
SPARE = 2**28  # bytes that are left free on the disk

Source = Callable[[list[np.ndarray]], Iterator[Batch]]  # groups of places -> images and targets of each
Compute = Callable[[Tensor], Tensor]  # images -> features


def tower_of(config: Tower, data: Data, device: torch.device | str) -> Any:
    """The tower of a run."""
    weights: bool | str = {"pretrained": True, "random": False}.get(config.weights, config.weights)
    return build_tower(config.name, weights, data.img_size, data.in_chans, device)


def tower_record(tower: Any) -> dict[str, str]:
    """Which tower this is, wherever its weights came from."""
    source = getattr(tower, "tower_source", {})
    return {"name": source.get("name", type(tower).__name__), "sha256": source.get("sha256") or fingerprint(tower)}


def check_not_augmented(data: Data, setting: str, kept: str, instead: str) -> None:
    """Refuse to keep what is computed of training images that look different from epoch to epoch."""
    still: dict[str, Any] = {
        "scale": (1, 1), "ratio": (1, 1), "random_crop_pad": 0, "hflip": 0, "color_jitter": 0, "auto_augment": "",
        "reprob": 0, "mixup": 0, "cutmix": 0, "repeated_aug": 1,
    }  # fmt: skip
    if varied := [f"data.{key}" for key, value in still.items() if getattr(data, key) != value]:
        raise ValueError(
            f"{setting}, but training images are augmented ({', '.join(varied)}), so that {kept} differ from epoch to"
            f" epoch; use {instead}, or switch the augmentation off (scale and ratio (1, 1), the others 0 or empty)."
        )


class FeatureData(ImageData):
    """The images of a run as features: batches hold what the last blocks of the tower put out, (batch, layers, tokens,
    width). The test images stay images: they are seen once.

    `reach` must be called before the first batch.
    """

    def __init__(
        self, config: Data, seed: int, tower: nn.Module, ranks: Ranks, *, amp: torch.dtype | None = None,
        cache: str = "none", folder: Path | None = None, run_folder: Path | None = None, log: Log | None = None,
        stop: Stop | None = None,
    ) -> None:  # fmt: skip
        log, stop = log or Log(None, speaks=False), stop or Stop()
        super().__init__(
            config, seed, rank=ranks.rank, world=ranks.world, say=log.say, folder=run_folder, device=ranks.device
        )
        if cache == "all":
            check_not_augmented(config, "tower.cache is 'all'", "their features", "tower.cache=scored")
        self.tower, self.ranks, self.amp = tower, ranks, amp
        self.depth, self._blocks = 0, range(0)
        self._kept: dict[str, Cache] = {}
        self._cached_in = folder, log, stop
        for kind in {"none": (), "scored": ("scored",), "all": ("scored", "train")}[cache]:
            self._kept[kind] = self._cache(kind)

    def _cache(self, kind: str) -> Cache:
        folder, log, stop = self._cached_in
        assert folder is not None, "a cache needs a folder"
        return Cache(folder, kind, self._key(kind), self.ranks, log, stop)

    def with_held_out(self) -> Self:
        other = super().with_held_out()
        if "train" in self._kept:
            other._kept = self._kept | {"train": other._cache("train")}
        other.reach(self.depth)
        return other

    def _key(self, kind: str) -> dict[str, Any]:
        data = self.config
        seen = {key: getattr(data, key) for key in ("img_size", "in_chans", "mean", "std", "interpolation")}
        seen["crop_pct"] = 1.0 if kind == "train" else data.crop_pct  # whole images are trained on
        device = self.ranks.device
        computed = {
            "device": device.type,
            "amp": {None: False, torch.bfloat16: True}.get(self.amp, str(self.amp)),
            "threads": torch.get_num_threads() if device.type == "cpu" else 0,
            "torch": torch.__version__,
            "timm": timm.__version__,
        }
        key = {"version": VERSION, "kind": kind, "tower": tower_record(self.tower), "dataset": data.name}
        return json.loads(json.dumps(key | {"data": self.fingerprint, "seen": seen, "computed": computed}))

    def reach(self, depth: int) -> None:
        """Let batches hold the last `depth` blocks' features; what a cache lacks of them is computed now."""
        tower: Any = self.tower
        assert depth <= len(tower.blocks)
        self.depth = depth
        self._blocks = blocks = range(len(tower.blocks) - depth, len(tower.blocks))
        tokens = tower.patch_embed.num_patches + tower.num_prefix_tokens
        for kind, cache in self._kept.items():
            size = self.train_size if kind == "train" else self.search_size
            cache.cover(blocks, (size, tokens, tower.embed_dim), self._source(kind), self.features)

    def features(self, images: Tensor) -> Tensor:
        """What decoders of up to `depth` layers read."""
        assert self.depth, "reach() says how many layers"
        parts = []
        for group in images.to(self.ranks.device).split(GROUP):
            lacking = GROUP - len(group)
            whole = torch.cat([group, group[-1:].expand(lacking, -1, -1, -1)]) if lacking else group
            with torch.autocast(self.ranks.device.type, dtype=self.amp) if self.amp else nullcontext():
                parts.append(tower_features(self.tower, whole, self.depth)[: len(group)].float())
        return torch.cat(parts)

    def _source(self, kind: str) -> Source:
        def scored(places: list[np.ndarray]) -> Iterator[Batch]:
            return map(super(FeatureData, self).search_at, places)

        return scored if kind == "scored" else self.train_groups

    # What is asked of data

    def train_batches(
        self, epoch: int, batch_size: int, start_batch: int = 0
    ) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        if "train" not in self._kept:
            return super().train_batches(epoch, batch_size, start_batch)
        positions, rows = self.batch_positions(epoch, batch_size, start_batch)
        places = torch.from_numpy(rows)
        return ((*self._kept["train"].read(batch, self._blocks), places) for batch in positions)

    def mixup(self, images: Tensor, targets: Tensor, step: int, smoothing: float = 0.0) -> Batch:
        """The last thing that happens to images; the features of what comes out."""
        if "train" in self._kept:
            return images, targets  # features already, of images that are not mixed
        images, targets = super().mixup(images, targets, step, smoothing)
        return self.features(images), targets

    def search_at(self, places: np.ndarray) -> Batch:
        if "scored" in self._kept:
            return self._kept["scored"].read(places, self._blocks)
        images, targets = super().search_at(places)
        return self.features(images), targets


class Cache:
    """Features of a fixed list of images in a folder."""

    def __init__(self, folder: Path, kind: str, key: Mapping[str, Any], ranks: Ranks, log: Log, stop: Stop) -> None:
        digest = hashlib.sha256(json.dumps(key, sort_keys=True).encode()).hexdigest()
        self.folder = Path(folder).expanduser() / f"{kind}-{digest[:16]}"
        self.kind, self.key, self.ranks, self.log, self.stop = kind, key, ranks, log, stop
        self._opened: dict[str, np.ndarray] = {}

    def read(self, places: np.ndarray, blocks: range) -> Batch:
        """The features of the images at these places after these blocks, and the images' classes."""
        stacked = np.stack([self._opened[f"block-{i}"][places] for i in blocks], axis=1)  # (n, depth, T, D)
        return torch.from_numpy(stacked), torch.from_numpy(self._opened["targets"][places])

    def cover(self, blocks: range, shape: tuple[int, int, int], source: Source, compute: Compute) -> None:
        """Let the cache hold these blocks; `shape` is (images, tokens, width)."""
        columns: dict[str, Column] = {f"block-{i}": ("<f4", shape) for i in blocks} | {"targets": ("<i8", shape[:1])}
        if columns.keys() <= self._opened.keys():
            return
        with self._locked():
            lacking = self.ranks.from_first({c: v for c, v in columns.items() if not self._path(c).exists()})
            if lacking:
                self._fill(lacking, blocks, source, compute)
        remedy = f"remove {self.folder} to compute it again"
        self._opened |= {name: open_array(self._path(name), column, remedy) for name, column in columns.items()}
        if lacking != columns:  # the rest is of an earlier run
            self._check(blocks, shape[0], source, compute)

    def _path(self, column: str) -> Path:
        return self.folder / f"{column}.npy"

    def _check(self, blocks: range, rows: int, source: Source, compute: Compute) -> None:
        """Compute a group of features again: the same bits on a CPU."""
        places = np.unique(np.linspace(0, rows - 1, GROUP).astype(int))
        images, targets = next(source([places]))
        kept, classes = self.read(places, blocks)
        now = compute(images).cpu()
        same = torch.equal(now, kept) if self.ranks.device.type == "cpu" else torch.allclose(now, kept, 1e-2, 1e-2)
        if not same or not torch.equal(classes, targets):
            raise ValueError(
                f"{self.folder} holds other features than the tower gives now: images or files were changed since;"
                " remove that folder to compute them again."
            )

    def _fill(self, columns: dict[str, Column], blocks: range, source: Source, compute: Compute) -> None:
        """Compute the columns, ranks taking turns at groups of images."""
        self._check_room(columns)
        name, rows = f"features ({self.kind})", next(iter(columns.values()))[1][0]
        meter = self.log.progress(name, rows)

        def computed(own: list[range]) -> Iterator[dict[str, np.ndarray]]:
            for images, targets in source([np.arange(group.start, group.stop) for group in own]):
                features = compute(images).cpu().numpy()  # (n, depth, T, D)
                values = {f"block-{i}": features[:, k] for k, i in enumerate(blocks)}
                yield values | {"targets": targets.numpy()}

        options: Any = {"name": name, "every": AUTOSAVE_SECONDS, "meter": meter}
        fill_arrays(self.folder, columns, row_groups(rows, GROUP), computed, self.ranks, self.stop, **options)
        self.log.close_progress()

    def _check_room(self, columns: dict[str, Column]) -> None:
        """Say how much will be written, and refuse if the disk has no room for it."""
        if not self.ranks.first:
            return
        rows, layers = next(iter(columns.values()))[1][0], sum(name != "targets" for name in columns)
        size = sum(math.prod(shape) * np.dtype(dtype).itemsize for dtype, shape in columns.values())
        begun = [path.stat() for name in columns if (path := self.folder / f"{name}.npy.part").exists()]
        there = sum(512 * stat.st_blocks for stat in begun)  # of an earlier attempt: files grow as they are filled
        free = shutil.disk_usage(self.folder).free - SPARE
        self.log.say(
            f"features ({self.kind}): {layers} layers of {rows:,} images, {shown(size)} in {self.folder}"
            + (f"; {shown(there)} are there" if there else "")
        )
        if size - there > free:
            raise ValueError(
                f"Features of {shown(size - there)} are to be written to {self.folder}, but only"
                f" {shown(max(free, 0))} can be taken there; name a place with more room as tower.cache_dir, or"
                " set tower.cache to 'scored' or 'none'."
            )

    @contextmanager
    def _locked(self) -> Iterator[None]:
        """One run at a time fills a cache; another one waits."""
        with ExitStack() as stack:
            if self.ranks.first:
                self.folder.mkdir(parents=True, exist_ok=True)
                told = f"features ({self.kind}): waiting for another run that fills {self.folder}"
                stack.enter_context(locked(self.folder / ".lock", waiting=lambda: self.log.say(told)))
                write_json(self.folder / "key.json", self.key)
            self.ranks.wait()
            yield


def shown(size: int) -> str:
    return f"{size / 1e9:,.3g} GB" if size >= 1e9 else f"{size / 1e6:.3g} MB"
