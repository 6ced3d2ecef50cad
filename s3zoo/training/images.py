"""Images decoded and augmented: what workers do, if there are any.

The augmentation of a sample is a function of (seed, epoch, index), so batches do not depend on the number of workers.
"""

from __future__ import annotations

import os
import random
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import chain
from typing import Any

import numpy as np
import torch
from numpy.lib.stride_tricks import sliding_window_view
from PIL import Image
from timm.data import auto_augment, create_transform, resolve_model_data_config
from timm.data.random_erasing import RandomErasing
from torch import Tensor
from torch.utils.data import DataLoader

from s3zoo.training.config import Data
from s3zoo.training.splits import AUGMENT, Split, hashed, uniform

CACHE_BYTES = 256 * 2**20  # decoded training images up to here stay in memory


@contextmanager
def global_generators_kept() -> Iterator[None]:
    """timm's augmentations draw from global generators: give those back as they were."""
    kept = random.getstate(), np.random.get_state(), torch.get_rng_state()
    try:
        yield
    finally:
        random.setstate(kept[0])
        np.random.set_state(kept[1])
        torch.set_rng_state(kept[2])


def normalised(images: np.ndarray, config: Data) -> Tensor:
    """Bytes (n, channels, height, width) -> floats, bit for bit as timm's transforms give them.

    In numpy, because threads that wait for each other on a busy machine cost more here than they gain.
    """
    mean, std = (np.array(values, np.float32).reshape(1, -1, 1, 1) for values in (config.mean, config.std))
    floats = images.astype(np.float32)
    floats /= np.float32(255)
    floats -= mean
    floats /= std
    return torch.from_numpy(floats)


def normalised_there(images: Tensor, config: Data) -> Tensor:
    """The same on the device where the bytes are, bit for bit."""
    mean, std = (torch.tensor(v, device=images.device).view(1, -1, 1, 1) for v in (config.mean, config.std))
    return images.float().div_(255).sub_(mean).div_(std)


def as_validated(model: Any) -> tuple[dict[str, Any], Any, str]:
    """How timm's validation script shows images to a model: data config, transform, and the mode of Pillow's images."""
    config = resolve_model_data_config(model, use_test_size=True)
    return config, create_transform(**config, is_training=False), "L" if config["input_size"][0] == 1 else "RGB"


# Datasets in the loader's sense, used by workers if there are any


class Decoder:
    """Chunks of image indices -> byte arrays, None where unreadable.

    With a crop, (channels, height, width) as timm's evaluation sees the image; without, the image as it is.
    """

    def __init__(self, split: Split, config: Data, crop_pct: float | None) -> None:
        self.split, self.crop_pct = split, crop_pct
        self.mode = "L" if config.in_chans == 1 else "RGB"
        self.size = (config.img_size, config.img_size)
        self.resized = create_transform(
            config.img_size, interpolation=config.interpolation, crop_pct=crop_pct, normalize=False
        )

    def read(self, index: int) -> np.ndarray | None:
        image = self.split.image(index, self.mode)
        if image is None:
            return None
        if self.crop_pct is None:
            return np.array(image)
        if self.crop_pct == 1 and image.size == self.size:  # nothing to do, and timm takes long to do it
            return channels_first(image)
        return self.resized(image).numpy()

    def __getitem__(self, indices: np.ndarray) -> list[np.ndarray | None]:
        return [self.read(int(index)) for index in indices]


def channels_first(image: Image.Image) -> np.ndarray:
    return np.ascontiguousarray(np.atleast_3d(np.array(image)).transpose(2, 0, 1))  # (channels, height, width)


def posterized(image: Image.Image, bits: int, **options: Any) -> Image.Image:
    """timm's strongest posterisation keeps 0 bits: a black image, which newer Pillows refuse to make."""
    return auto_augment.posterize(image, bits, **options) if bits > 0 else image.point(lambda value: 0)


def random_crops(images: np.ndarray, pad: int, draws: np.ndarray, mode: Any = "constant") -> np.ndarray:
    """Images (n, channels, height, width), padded and cropped to their size again, each at a place of its own draw."""
    padded = np.pad(images, [(0, 0), (0, 0), (pad, pad), (pad, pad)], mode=mode)
    top, left = ((uniform(hashed(draws, axis)) * (2 * pad + 1)).astype(int) for axis in (0, 1))
    windows = sliding_window_view(padded, images.shape[2:], axis=(2, 3))  # type: ignore[call-overload]
    return windows[np.arange(len(images)), :, top, left]


class TrainImages:
    """(epoch, positions) -> augmented images, targets, and the positions known to be unreadable.

    Position p + c n, of n images, is the image at position p once more, augmented otherwise. An unreadable image is
    replaced by the next readable one, so that batches keep their size.
    """

    def __init__(self, split: Split, indices: np.ndarray, config: Data, seed: int) -> None:
        self.indices, self.config, self.seed = indices, config, seed
        self.targets = split.targets[indices]
        # Whole images, perhaps shifted and flipped, need no resized crop: a batch is done at once.
        self.whole = config.random_crop_pad > 0 or (tuple(config.scale), tuple(config.ratio)) == ((1, 1), (1, 1))
        try:
            self.crop, self.colour, _ = create_transform(
                config.img_size,
                interpolation=config.interpolation,
                is_training=True,
                separate=True,
                scale=config.scale,
                ratio=config.ratio,
                hflip=config.hflip,
                color_jitter=config.color_jitter or None,  # type: ignore[arg-type]
                auto_augment=config.auto_augment or None,
                mean=config.mean if config.in_chans == 3 else config.mean * 3,  # see _augmented
            )
        except (AssertionError, KeyError, ValueError, IndexError) as error:
            raise ValueError(
                f"data.auto_augment is {config.auto_augment!r}, which timm does not understand; write for example"
                " 'rand-m9-mstd0.5-inc1', or leave it empty."
            ) from error
        self.erase = RandomErasing(config.reprob, mode="pixel", device="cpu") if config.reprob else None
        for transform in self.colour.transforms:
            for op in [*getattr(transform, "ops", ()), *chain(*getattr(transform, "policy", ()))]:
                if op.aug_fn is auto_augment.posterize:
                    op.aug_fn = posterized
        self.decoder = Decoder(split, config, 1.0 if self.whole else None)
        self.broken: set[int] = set()
        self.cache: Any = None  # position -> array
        self.readable: np.ndarray = np.arange(len(indices))  # position -> itself or, once all was read, its substitute

    def fill_cache(self, workers: int) -> None:
        """Keep all decoded images in memory if they are small enough; to be called before workers are forked."""
        tries = self.indices[: self.config.max_unreadable + 1]
        sample = next((a for a in map(self.decoder.read, tries.tolist()) if a is not None), None)
        if sample is None or sample.nbytes * len(self.indices) > CACHE_BYTES:
            return
        arrays: list[np.ndarray | None] = []
        size = 0
        for array in decoded(self.decoder, self.indices, workers):
            arrays.append(array)
            size += 0 if array is None else array.nbytes
            if size > CACHE_BYTES:  # the first image was a small one
                return
        good = np.array([k for k, array in enumerate(arrays) if array is not None])
        self.broken = set(range(len(arrays))) - set(good.tolist())
        self.readable = good[np.searchsorted(good, np.arange(len(arrays))) % len(good)]
        self.cache = np.stack([sample if a is None else a for a in arrays]) if self.whole else arrays

    def _fetch(self, positions: np.ndarray) -> tuple[Any, np.ndarray] | None:
        """Decoded images and the positions they come from; None if too many are unreadable."""
        if self.cache is not None:
            used = self.readable[positions]
            return (self.cache[used] if self.whole else [self.cache[k] for k in used]), used
        arrays, places = [], []
        for position in positions.tolist():
            while position in self.broken or (array := self.decoder.read(int(self.indices[position]))) is None:
                self.broken.add(position)
                if len(self.broken) > min(self.config.max_unreadable, len(self.indices) - 1):
                    return None
                position = (position + 1) % len(self.indices)
            arrays.append(array)
            places.append(position)
        return (np.stack(arrays) if self.whole else arrays), np.array(places)

    def __getitem__(self, key: tuple[int, np.ndarray]) -> tuple[Tensor | None, Tensor | None, set[int]]:
        epoch, places = key
        copies, positions = np.divmod(places, len(self.indices))
        fetched = self._fetch(positions)
        if fetched is None:
            return None, None, self.broken
        arrays, used = fetched
        draws = hashed(self.seed, AUGMENT, epoch + (copies << 32), self.indices[positions])
        if self.whole:
            arrays = self._shifted(arrays, draws)
        if self.whole and not self.colour.transforms and self.erase is None:
            images = normalised(arrays, self.config)
        else:
            with global_generators_kept():
                images = torch.stack([self._augmented(a, int(draw)) for a, draw in zip(arrays, draws, strict=True)])
        return images, torch.from_numpy(self.targets[used]), self.broken

    def _shifted(self, images: np.ndarray, draws: np.ndarray) -> np.ndarray:
        """Pad with black, crop at a random place, flip at random: each image by its own draw."""
        if pad := self.config.random_crop_pad:
            images = random_crops(images, pad, draws)
        flip = uniform(hashed(draws, 2)) < self.config.hflip
        images[flip] = images[flip, :, :, ::-1]
        return images

    def _augmented(self, array: np.ndarray, draw: int) -> Tensor:
        """timm's augmentations of one image."""
        random.seed(draw)
        np.random.seed(draw & 0xFFFFFFFF)
        torch.default_generator.manual_seed(draw >> 1)  # torch.manual_seed would touch CUDA's generators too
        if self.whole:
            array = array[0] if len(array) == 1 else np.ascontiguousarray(array.transpose(1, 2, 0))
        image = Image.fromarray(array)  # from (height, width) or (height, width, channels)
        if not self.whole:
            image = self.crop(image)
        if self.colour.transforms:  # made for colours; plain grey survives the way there and back unchanged
            image = self.colour(image.convert("RGB")).convert(self.decoder.mode)
        tensor = normalised(channels_first(image)[None], self.config)[0]
        return tensor if self.erase is None else self.erase(tensor)


def decoded(decoder: Decoder, indices: np.ndarray, workers: int) -> Iterator[np.ndarray | None]:
    """The images in order; workers help if there is enough for them to do."""
    chunk = min(64, max(16, len(indices) // 8))
    chunks = [indices[start : start + chunk] for start in range(0, len(indices), chunk)]
    for arrays in make_loader(decoder, chunks, workers if len(chunks) >= 8 else 0):
        yield from arrays


def make_loader(
    dataset: Any, keys: Sequence[Any], workers: int, keep: bool = False, pinned: bool = False
) -> DataLoader:
    return DataLoader(
        dataset,
        sampler=keys,
        batch_size=None,
        collate_fn=as_it_is,
        num_workers=workers,
        persistent_workers=keep and workers > 0,
        worker_init_fn=leave_process_group,
        pin_memory=pinned,
        generator=torch.Generator(),  # else it would draw from the global one
    )


def as_it_is(batch: Any) -> Any:
    return batch


def leave_process_group(worker: int) -> None:
    """Ctrl-C is for the main process, which saves first and then ends its workers."""
    if hasattr(os, "setpgid"):
        os.setpgid(0, 0)
