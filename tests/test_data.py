"""Images: splits that never mix, batches that depend on their arguments alone, and one sentence for each mistake."""

import dataclasses
import hashlib
import io
import multiprocessing
import os
import pickle
import random
import sys
import tarfile
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from sklearn.datasets import load_digits
from timm.data import create_transform
from torch import Tensor

from s3zoo.training import apart
from s3zoo.training import data as data_module
from s3zoo.training import images as images_module
from s3zoo.training.config import Data, Train
from s3zoo.training.data import ImageData
from s3zoo.training.images import posterized
from s3zoo.training.splits import balanced_order, divided, find_split

DIGITS = Data(
    name="digits", holdout=300, num_classes=10, img_size=8, in_chans=1, mean=(0.25,), std=(0.5,), crop_pct=1.0,
    random_crop_pad=1, hflip=0.0, color_jitter=0.0,
)  # fmt: skip
# Images of one colour, seen as they are: a pixel tells which image it is.
PLAIN = Data(
    name="", holdout=0, num_classes=2, img_size=6, mean=(0.0, 0.0, 0.0), std=(1.0, 1.0, 1.0), crop_pct=1.0,
    scale=(1.0, 1.0), ratio=(1.0, 1.0), hflip=0.0, color_jitter=0.0,
)  # fmt: skip
STRONG = {"auto_augment": "rand-m9-mstd0.5-inc1", "reprob": 0.5, "hflip": 0.5}


def changed(config: Data, **values: Any) -> Data:
    return dataclasses.replace(config, **values)


def digest(batches: Iterable[tuple[Tensor, ...]]) -> str:
    sha = hashlib.sha256()
    for batch in batches:
        for tensor in batch:
            sha.update(f"{tensor.dtype}{tuple(tensor.shape)}".encode() + tensor.numpy().tobytes())
    return sha.hexdigest()


def write_images(folder: Path, counts: dict[str, int], first: int = 0, size: int = 6) -> None:
    """PNG images of one grey each: `first` in the first image of the first class, then one more each time."""
    value = first
    for name, count in counts.items():
        (folder / name).mkdir(parents=True, exist_ok=True)
        for number in range(count):
            Image.new("RGB", (size, size), (value,) * 3).save(folder / name / f"{number:03}.png")
            value += 1


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_images(tmp_path / "train", {"cat": 20, "dog": 20})
    write_images(tmp_path / "test", {"cat": 3, "dog": 4}, first=100)
    return tmp_path


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Noisy JPEG images of several sizes, as folders and as tar files."""
    root = tmp_path_factory.mktemp("photos")
    generator = np.random.default_rng(0)
    (root / "tars").mkdir()
    for split, count in (("train", 15), ("test", 3)):
        with tarfile.open(root / "tars" / f"{split}.tar", "w") as tar:
            for name in ("cat", "dog"):
                (root / "folders" / split / name).mkdir(parents=True)
                for number in range(count):
                    height, width = generator.integers(20, 30, 2)
                    coarse = Image.fromarray(generator.integers(0, 256, (4, 4, 3)).astype(np.uint8))
                    path = root / "folders" / split / name / f"{number}.jpg"
                    coarse.resize((width, height), Image.Resampling.BICUBIC).save(path)
                    tar.add(path, f"./{name}/{number}.jpg")
    return root


def greys(batches: Iterable[tuple[Tensor, ...]]) -> list[int]:
    """Which image each sample of `PLAIN` is."""
    return [round(float(image[0, 0, 0]) * 255) for batch in batches for image in batch[0]]


# Splits


def test_a_division_by_hand() -> None:
    """The example of balanced_order's and divided's docstrings."""
    classes = np.array([0, 0, 0, 0, 1, 1, 1, 2, 2])
    assert balanced_order(classes, 0).tolist() == [0, 8, 4, 1, 7, 6, 2, 5, 3]
    split: Any = SimpleNamespace(targets=classes, where="here")
    for limit, trained in ((0, [2, 3, 5, 6, 7]), (3, [2, 6, 7])):
        held_out, rest = divided(split, Data(holdout=4, train_limit=limit), 0)
        assert held_out.tolist() == [0, 8, 4, 1] and rest.tolist() == trained


def test_digits_are_divided_into_training_search_and_test() -> None:
    data = ImageData(DIGITS, seed=0)
    assert data.train_size == 1797 - 360 - 300 and data.search_size == 300
    parts = {
        "train": torch.cat(list(data.calibration_batches(2000))),
        "search": torch.cat([images for images, _ in data.search_images()]),
        "test": torch.cat([images for images, _ in data.test_batches()]),
    }
    assert [tuple(part.shape) for part in parts.values()] == [(1137, 1, 8, 8), (300, 1, 8, 8), (360, 1, 8, 8)]
    # together they are scikit-learn's images, each once: 0 … 16 as bytes 0 … 255
    found = Counter(bytes((((image * 0.5 + 0.25) * 255).round()).byte().numpy()) for p in parts.values() for image in p)
    bunch = load_digits()
    assert found == Counter(bytes(np.rint(image * 255 / 16).astype(np.uint8)) for image in bunch.images)
    label = {bytes(np.rint(i * 255 / 16).astype(np.uint8)): t for i, t in zip(bunch.images, bunch.target, strict=True)}
    for images, targets in [*data.search_images(), *data.test_batches(batch_size=100)]:
        for image, target in zip(images, targets, strict=True):
            assert label[bytes((((image * 0.5 + 0.25) * 255).round()).byte().numpy())] == target


def test_held_out_images_are_balanced_in_every_beginning_and_follow_the_seed() -> None:
    data, other = ImageData(DIGITS, seed=3), ImageData(DIGITS, seed=4)
    targets = torch.cat([targets for _, targets in data.search_images()])
    for end in (10, 15, 100, 300):
        counts = np.bincount(targets[:end], minlength=10)
        assert counts.max() - counts.min() <= (0 if end % 10 == 0 else 1)
    assert not set(data.search_indices) & set(data.train_indices)
    assert len({*data.search_indices, *data.train_indices}) == 1437
    assert set(data.search_indices) != set(other.search_indices)
    few = ImageData(changed(DIGITS, train_limit=50), seed=3)
    assert list(few.search_indices) == list(data.search_indices) and set(few.train_indices) < set(data.train_indices)
    assert Counter(few.split.targets[few.train_indices].tolist()) == dict.fromkeys(range(10), 5)


def test_a_small_class_keeps_an_image_for_training(tmp_path: Path) -> None:
    write_images(tmp_path / "train", {"cat": 2, "dog": 10})
    data = ImageData(changed(PLAIN, root=str(tmp_path), holdout=6), seed=0)
    assert Counter(data.split.targets[data.search_indices].tolist()) == {0: 1, 1: 5}
    assert Counter(data.split.targets[data.train_indices].tolist()) == {0: 1, 1: 5}


AUDIT: list[tuple[str, str]] | None = None


@pytest.fixture
def touched() -> Iterable[list[tuple[str, str]]]:
    """Every path that is opened or listed, as the interpreter itself reports it."""
    global AUDIT
    AUDIT = []

    def hook(event: str, arguments: tuple[Any, ...]) -> None:
        if AUDIT is not None and event in ("open", "os.listdir", "os.scandir") and arguments:
            AUDIT.append((event, str(arguments[0])))

    sys.addaudithook(hook)
    yield AUDIT
    AUDIT = None


@pytest.mark.parametrize("kind", ["folders", "tars"])
def test_the_test_split_is_opened_by_its_own_method_alone(photos: Path, touched: list, kind: str) -> None:
    root = photos / kind
    test = str(root / ("test" if kind == "folders" else "test.tar"))
    data = ImageData(changed(PLAIN, root=str(root), holdout=6), seed=0)
    digest(data.train_batches(0, 4))
    assert data.search_size == 6 and data.fingerprint
    list(data.calibration_batches(5))
    assert any(path.startswith(str(root / "train")) for _, path in touched)
    assert not [path for _, path in touched if path.startswith(test)]
    data.check_splits()
    sizes = {path.stat().st_size for path in (root / "train").rglob("*.jpg")}  # bytes are compared where sizes coincide
    opened = [path for event, path in touched if path.startswith(test) and event == "open"]
    assert not [path for path in opened if os.path.getsize(path) not in sizes]
    assert sum(len(targets) for _, targets in data.test_batches()) == 6
    assert [path for event, path in touched if path.startswith(test) and event == "open"]


def test_fingerprint_follows_names_sizes_labels_and_division_but_not_the_place(folder: Path, tmp_path: Path) -> None:
    def fingerprint(seed: int = 0, root: Path = folder, **values: Any) -> str:
        return ImageData(changed(PLAIN, root=str(root), **values), seed).fingerprint

    first = fingerprint(holdout=4)
    assert first == fingerprint(holdout=4)
    seen = [first, fingerprint(holdout=5), fingerprint(seed=1, holdout=4)]
    moved = folder.parent / f"{folder.name}-moved"
    folder.rename(moved)
    assert fingerprint(root=moved, holdout=4) == first
    file = moved / "train" / "cat" / "000.png"
    file.write_bytes(file.read_bytes() + b"\0")
    seen.append(fingerprint(root=moved, holdout=4))
    file.rename(moved / "train" / "dog" / "999.png")
    seen.append(fingerprint(root=moved, holdout=4))
    assert len(set(seen)) == len(seen)
    assert ImageData(DIGITS, 0).fingerprint == ImageData(DIGITS, 0).fingerprint != ImageData(DIGITS, 1).fingerprint


# Training batches


def test_shifts_are_crops_of_the_padded_image_and_all_occur() -> None:
    config = changed(DIGITS, hflip=0.5, holdout=0)
    data = ImageData(config, seed=0)
    originals = np.stack([np.array(data.split.dataset[i][0]) for i in range(data.train_size)])
    seen: Counter[tuple[int, int, bool]] = Counter()
    flat = {}
    for number, image in enumerate(originals):
        padded = np.pad(image, 1)
        for top in range(3):
            for left in range(3):
                window = padded[top : top + 8, left : left + 8]
                flat[window.tobytes()] = number, (top, left, False)
                flat[window[:, ::-1].tobytes()] = number, (top, left, True)
    numbers = []
    for images, targets, _ in data.train_batches(0, 64):
        assert images.dtype == torch.float32 and images.shape == (64, 1, 8, 8)
        for image, target in zip(images, targets, strict=True):
            number, how = flat[bytes(((image * 0.5 + 0.25) * 255).round().byte().numpy())]
            assert data.split.targets[number] == target
            numbers.append(number)
            seen[how] += 1
    assert len(set(numbers)) >= 0.99 * len(numbers)  # a permutation; some shifted digits are the same picture
    assert len(seen) == 18 and max(seen.values()) < 2 * 1408 / 18 and min(seen.values()) > 0.5 * 1408 / 18


CROPS = {"img_size": 16, "scale": (0.3, 1.0), "ratio": (0.75, 1.33)}
MODES: dict[str, Callable[[Path], Data]] = {
    "shift": lambda photos: changed(DIGITS, holdout=1300),
    "strong grey": lambda photos: changed(DIGITS, holdout=1300, **STRONG),
    "strong shift": lambda photos: changed(PLAIN, root=str(photos / "folders"), random_crop_pad=2, **STRONG),
    "crops": lambda photos: changed(PLAIN, root=str(photos / "tars"), hflip=0.5, color_jitter=0.4, **CROPS),
    "strong crops": lambda photos: changed(PLAIN, root=str(photos / "tars"), **CROPS, **STRONG),
}


@pytest.mark.parametrize("mode", MODES)
def test_workers_and_memory_do_not_change_the_batches(mode: str, photos: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = MODES[mode](photos)

    def run(workers: int, cached: bool = True) -> list[str]:
        random.seed(workers)
        np.random.seed(workers)
        torch.manual_seed(workers)
        before = random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state().tolist()  # type: ignore[index]
        monkeypatch.setattr(images_module, "CACHE_BYTES", 2**28 if cached else 0)
        data = ImageData(changed(config, workers=workers), seed=5)
        assert data.split.image(0, "RGB") is not None  # a tar file is open before the workers start
        next(data.train_batches(0, 10))  # left in its middle
        found = [digest(data.train_batches(epoch, 10)) for epoch in (0, 1)]
        found.append(digest(data.train_batches(1, 10, start_batch=1)))
        after = random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state().tolist()  # type: ignore[index]
        assert before == after
        return found

    expected = run(0)
    assert len(set(expected)) == 3
    for workers, cached in ((0, False), (1, True), (2, False)):
        assert run(workers, cached) == expected, (workers, cached)


@pytest.mark.parametrize("mode", ["shift", "strong crops"])
def test_an_epoch_can_start_in_its_middle_and_batch_size_does_not_matter_to_a_sample(mode: str, photos: Path) -> None:
    data = ImageData(MODES[mode](photos), seed=1)
    whole = list(data.train_batches(2, 8))
    assert len(whole) == data.train_size // 8
    assert digest(data.train_batches(2, 8, start_batch=2)) == digest(whole[2:])
    assert list(data.train_batches(2, 8, start_batch=len(whole))) == []
    images = torch.cat([batch[0] for batch in whole])
    others = torch.cat([batch[0] for batch in data.train_batches(2, 6)])
    common = min(len(images), len(others))
    assert common > 20 and torch.equal(images[:common], others[:common])


@pytest.mark.parametrize("cached", [True, False])
def test_repeated_augmentation_shows_an_image_several_times_in_a_batch(
    photos: Path, monkeypatch: pytest.MonkeyPatch, cached: bool
) -> None:
    monkeypatch.setattr(images_module, "CACHE_BYTES", 2**28 if cached else 0)
    config = MODES["strong crops"](photos)
    once, thrice = (ImageData(changed(config, repeated_aug=repeats), seed=1) for repeats in (1, 3))
    order = [p for batch in once.batch_positions(2, 6)[0] for p in batch]
    positions = [p for batch in thrice.batch_positions(2, 6)[0] for p in batch]
    assert [p % 30 for p in positions] == [p for p in order[:10] for _ in range(3)]  # as many batches, of fewer images
    assert [p // 30 for p in positions] == [0, 1, 2] * 10
    plain = torch.cat([images for images, _, _ in once.train_batches(2, 6)])
    batches = list(thrice.train_batches(2, 6))
    images, targets = (torch.cat([batch[k] for batch in batches]) for k in (0, 1))
    assert torch.equal(images[::3], plain[:10]) and torch.equal(targets[::3], targets[1::3])
    assert len({image.numpy().tobytes() for image in images}) == 30
    assert digest(thrice.train_batches(2, 6, start_batch=3)) == digest(batches[3:])
    parts = [ImageData(changed(config, repeated_aug=3, workers=1), 1, rank=rank, world=3) for rank in range(3)]
    for batch, *shares in zip(batches, *(part.train_batches(2, 6) for part in parts), strict=True):
        for share in shares:
            assert torch.equal(share[0], batch[0][share[2]])


def test_workers_by_default(photos: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "cpu_count", lambda: 6)
    assert ImageData(DIGITS, 0).workers == 0  # in memory
    data = ImageData(MODES["strong crops"](photos), 0)
    assert (
        data.workers == 6 and data._train_workers(4) == 6 and ImageData(changed(data.config, workers=3), 0).workers == 3
    )
    room = 5 * 4 * (4 * 4 * 3 * 16 * 16)  # for five workers
    full = os.statvfs_result([1, 1, 0, 0, room, 0, 0, 0, 0, 0])
    monkeypatch.setattr(os, "statvfs", lambda path: full)
    assert data._train_workers(4) == 5
    shifted = ImageData(changed(PLAIN, root=str(photos / "folders"), random_crop_pad=2), 0)
    shifted._train.fill_cache(0)
    assert shifted._train_workers(4) == 0  # one operation on a whole batch in memory
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "3")
    assert ImageData(data.config, 0).workers == 2


def test_bytes_are_normalised_alike_on_every_device() -> None:
    images = np.random.default_rng(0).integers(0, 256, (5, 3, 9, 7), np.uint8)
    config = Data()
    expected = images_module.normalised(images, config)
    assert torch.equal(images_module.normalised_there(torch.from_numpy(images), config), expected)


@pytest.mark.parametrize("world", [2, 3])
def test_ranks_share_the_global_batch_in_mirrored_pairs(world: int) -> None:
    config = changed(DIGITS, mixup=0.8, cutmix=1.0, holdout=1200)
    alone = ImageData(config, seed=0)
    ranks = [ImageData(config, seed=0, rank=rank, world=world) for rank in range(world)]
    runs = [list(rank.train_batches(4, 24)) for rank in ranks]
    for step, (images, targets, rows) in enumerate(alone.train_batches(4, 24)):
        assert rows.tolist() == list(range(24))
        shares = [run[step] for run in runs]
        assert sorted(torch.cat([share[2] for share in shares]).tolist()) == list(range(24))
        mixed_images, mixed_targets = alone.mixup(images, targets, step, smoothing=0.1)
        for rank, (part_images, part_targets, part_rows) in zip(ranks, shares, strict=True):
            assert len(part_rows) == 24 // world
            assert part_rows.tolist() == [23 - row for row in reversed(part_rows.tolist())]
            assert torch.equal(part_images, images[part_rows]) and torch.equal(part_targets, targets[part_rows])
            own_images, own_targets = rank.mixup(part_images, part_targets, step, smoothing=0.1)
            assert torch.equal(own_images, mixed_images[part_rows])
            assert torch.equal(own_targets, mixed_targets[part_rows])


def test_mixup_is_a_function_of_seed_and_step() -> None:
    data = ImageData(changed(DIGITS, mixup=1.0), seed=0)
    images, targets, _ = next(data.train_batches(0, 16))
    before, state = images.clone(), np.random.get_state()[1].tolist()  # type: ignore[index]
    lams = []
    for step in range(20):
        mixed, probabilities = data.mixup(images, targets, step, smoothing=0.1)
        assert torch.equal(images, before)
        again = data.mixup(images, targets, step, smoothing=0.1)
        assert torch.equal(mixed, again[0]) and torch.equal(probabilities, again[1])
        # rows of different classes: probabilities are 0.9 lam + 0.01 and 0.9 (1 - lam) + 0.01
        row = next(i for i in range(16) if targets[i] != targets[15 - i])
        lam = (float(probabilities[row, targets[row]]) - 0.01) / 0.9
        torch.testing.assert_close(mixed, lam * images + (1 - lam) * images.flip(0), atol=1e-5, rtol=0)
        torch.testing.assert_close(probabilities.sum(1), torch.ones(16))
        lams.append(round(lam, 6))
    assert len(set(lams)) == 20
    assert state == np.random.get_state()[1].tolist()  # type: ignore[index]
    other = ImageData(changed(DIGITS, mixup=1.0), seed=1).mixup(images, targets, 0)[0]
    assert not torch.equal(other, data.mixup(images, targets, 0)[0])


def test_without_mixup_targets_stay_class_indices() -> None:
    images, targets = torch.rand(3, 1, 8, 8), torch.tensor([1, 2, 3])
    result = ImageData(DIGITS, seed=0).mixup(images, targets, 0, smoothing=0.1)
    assert result[0] is images and result[1] is targets


def test_the_strongest_posterisation_gives_black() -> None:
    image = Image.new("RGB", (2, 2), (200, 100, 50))
    assert np.array(posterized(image, 0)).max() == 0
    assert np.array(posterized(image, 1)).tolist()[0][0] == [128, 0, 0]
    data = ImageData(changed(DIGITS, auto_augment="rand-m10-n8-inc1"), seed=0)  # asks for it about every fourth time
    assert len(list(data.train_batches(0, 100))) == 11


def test_workers_do_not_hear_ctrl_c() -> None:
    data = ImageData(changed(DIGITS, workers=2), seed=0)
    batches = data.train_batches(0, 64)
    next(batches), next(batches)  # one from each worker
    workers = [child.pid for child in multiprocessing.active_children() if child.pid]
    assert len(workers) >= 2 and all(os.getpgid(pid) != os.getpgrp() for pid in workers)


# Evaluation


@pytest.mark.parametrize("kind", ["folders", "tars"])
def test_evaluation_sees_what_timm_s_transform_gives(photos: Path, kind: str) -> None:
    config = changed(PLAIN, root=str(photos / kind), img_size=16, crop_pct=0.875, mean=(0.5, 0.4, 0.3), std=(0.2,) * 3)
    data = ImageData(config, seed=0)
    transform = create_transform(16, crop_pct=0.875, interpolation="bicubic", mean=config.mean, std=config.std)
    expected = []
    for name in ("cat", "dog"):
        for number in range(3):
            content = (photos / "folders" / "test" / name / f"{number}.jpg").read_bytes()
            expected.append(transform(Image.open(io.BytesIO(content)).convert("RGB")))
    images, targets = zip(*data.test_batches(batch_size=4), strict=True)
    assert [len(part) for part in images] == [4, 2]
    assert torch.equal(torch.cat(images), torch.stack(expected))  # type: ignore[arg-type]
    assert torch.cat(targets).tolist() == [0, 0, 0, 1, 1, 1]


def test_tar_files_and_folders_give_the_same_run(photos: Path) -> None:
    config = changed(MODES["crops"](photos), holdout=6)
    folders, tars = (ImageData(changed(config, root=str(photos / kind)), seed=0) for kind in ("folders", "tars"))
    assert folders.classes == tars.classes == ("cat", "dog")
    assert digest(folders.train_batches(0, 8)) == digest(tars.train_batches(0, 8))
    assert digest(folders.search_images()) == digest(tars.search_images())
    single = ImageData(changed(config, root=str(photos / "tars" / "train.tar")), seed=0)
    assert digest(single.test_batches()) == digest(tars.test_batches())


def test_parts_of_the_search_split(photos: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = changed(PLAIN, root=str(photos / "tars"), img_size=16, holdout=20)
    data = ImageData(config, seed=0)
    ((images, targets),) = data.search_images()
    assert images.shape == (20, 3, 16, 16)
    part = data.search_at(np.arange(7, 13))
    assert torch.equal(part[0], images[7:13]) and torch.equal(part[1], targets[7:13])
    batches = list(data.search_images(batch_size=6))
    assert [len(batch[1]) for batch in batches] == [6, 6, 6, 2]
    assert torch.equal(torch.cat([batch[0] for batch in batches]), images)
    assert [len(batch[1]) for batch in data.search_images(3, batch_size=6)] == [2]
    monkeypatch.setattr(data_module, "search_bytes", lambda: 0)  # too many for memory: read when asked for
    assert digest([ImageData(config, seed=0).search_at(np.arange(7, 13))]) == digest([part])


def test_calibration_uses_training_images_without_augmentation(folder: Path) -> None:
    data = ImageData(changed(PLAIN, root=str(folder), holdout=10, random_crop_pad=2, hflip=0.5), seed=0)
    batches = list(data.calibration_batches(12, batch_size=5))
    assert [len(batch) for batch in batches] == [5, 5, 2]
    found = greys((batch,) for batch in batches)
    assert set(found) <= set(data.train_indices.tolist()) and len(set(found)) == 12
    assert sum(number < 20 for number in found) == 6
    assert all(image.min() == image.max() for batch in batches for image in batch)


def test_split_names_and_grey_images(folder: Path) -> None:
    (folder / "test").rename(folder / "validation")
    data = ImageData(changed(PLAIN, root=str(folder), in_chans=1, mean=(0.0,), std=(1.0,)), seed=0)
    data.check_splits()
    images, targets = next(data.test_batches())
    assert images.shape == (7, 1, 6, 6) and greys([(images,)]) == list(range(100, 107))
    assert targets.tolist() == [0, 0, 0, 1, 1, 1, 1]
    config = changed(PLAIN, root=str(folder), train_split="validation")
    with pytest.raises(ValueError, match="holds no split called 'test'"):  # and not the training split in its place
        find_split(config, "test")


def test_torchvision_datasets(tmp_path: Path) -> None:
    """MNIST's file format, with ten images of our own in each split."""
    raw = tmp_path / "MNIST" / "raw"
    raw.mkdir(parents=True)
    for name, first in (("train", 0), ("t10k", 100)):
        pixels = np.repeat(np.arange(first, first + 10, dtype=np.uint8), 28 * 28).tobytes()
        header = b"".join(n.to_bytes(4, "big") for n in (2051, 10, 28, 28))
        (raw / f"{name}-images-idx3-ubyte").write_bytes(header + pixels)
        labels = (2049).to_bytes(4, "big") + (10).to_bytes(4, "big") + bytes(range(10))
        (raw / f"{name}-labels-idx1-ubyte").write_bytes(labels)
    data = ImageData(changed(PLAIN, name="torch/mnist", root=str(tmp_path), num_classes=10), seed=0)
    data.check_splits()
    assert data.classes[3] == "3 - three" and data.fingerprint
    images, targets, _ = next(data.train_batches(0, 10))
    assert greys([(images,)]) == targets.tolist() and sorted(targets.tolist()) == list(range(10))
    assert greys(data.test_batches()) == list(range(100, 110))


def test_a_forked_process_does_not_move_in_its_parent_s_tar_file(photos: Path) -> None:
    split = ImageData(changed(PLAIN, root=str(photos / "tars")), seed=0).split
    assert split.image(0, "RGB") is not None
    file = split.reader.tar_state.tf.fileobj.fileno()
    place = os.lseek(file, 0, os.SEEK_CUR)
    child = multiprocessing.get_context("fork").Process(target=split.image, args=(25, "RGB"))
    child.start()
    child.join()
    assert child.exitcode == 0 and os.lseek(file, 0, os.SEEK_CUR) == place


def test_a_split_can_be_sent_to_another_process(photos: Path) -> None:
    split = ImageData(changed(PLAIN, root=str(photos / "tars")), seed=0).split
    image = split.image(3, "RGB")
    copy = pickle.loads(pickle.dumps(split)).image(3, "RGB")
    assert image is not None and copy is not None and image.tobytes() == copy.tobytes()


# Mistakes


@pytest.mark.parametrize("cached", [True, False])
@pytest.mark.parametrize("workers", [0, 2])
def test_unreadable_images_are_skipped_and_counted(
    folder: Path, monkeypatch: pytest.MonkeyPatch, cached: bool, workers: int
) -> None:
    monkeypatch.setattr(images_module, "CACHE_BYTES", 2**28 if cached else 0)
    good = (folder / "train" / "cat" / "005.png").read_bytes()
    (folder / "train" / "cat" / "005.png").write_bytes(b"no image")  # number 5
    (folder / "train" / "dog" / "018.png").write_bytes(good[: len(good) // 2])  # number 38
    (folder / "train" / "dog" / "019.png").write_bytes(b"")  # number 39, the last
    (folder / "test" / "cat" / "001.png").write_bytes(b"no image")
    data = ImageData(changed(PLAIN, root=str(folder), workers=workers, max_unreadable=4), seed=0)
    for epoch in (0, 1):
        batches = list(data.train_batches(epoch, 8))
        assert [len(batch[0]) for batch in batches] == [8] * 5
        # the next readable one in place of each: 6 for 5, and around the end 0 for 38 and 39
        assert Counter(greys(batches)) == Counter([*(k for k in range(40) if k not in (5, 38, 39)), 6, 0, 0])
        assert all(target == (number >= 20) for b in batches for number, target in zip(greys([b]), b[1], strict=True))
    assert sorted(Path(name).relative_to(folder).as_posix() for name in data.unreadable) == [
        "train/cat/005.png", "train/dog/018.png", "train/dog/019.png",
    ]  # fmt: skip
    assert greys(data.test_batches()) == [100, *range(102, 107)]
    assert [greys([batch]) for batch in data.test_batches(batch_size=2)] == [[100], [102, 103], [104, 105], [106]]
    assert [greys([batch]) for batch in data.test_batches(2, batch_size=2)] == [[104, 105], [106]]
    assert len(data.unreadable) == 4


def test_unreadable_images_are_left_out_of_the_search_split(folder: Path) -> None:
    readable = ImageData(changed(PLAIN, root=str(folder), holdout=10), seed=0)
    expected = greys(readable.search_images())
    assert len(set(expected)) == 10
    broken = expected.pop(4)
    (folder / "train" / ("cat" if broken < 20 else "dog") / f"{broken % 20:03}.png").write_bytes(b"no image")
    data = ImageData(changed(PLAIN, root=str(folder), holdout=10), seed=0)
    assert data.search_size == 9 and greys(data.search_images()) == expected and len(data.unreadable) == 1


@pytest.mark.parametrize("cached", [True, False])
@pytest.mark.parametrize("use", ["train", "search", "all"])
def test_too_many_unreadable_images_are_an_error(
    folder: Path, monkeypatch: pytest.MonkeyPatch, cached: bool, use: str
) -> None:
    monkeypatch.setattr(images_module, "CACHE_BYTES", 2**28 if cached else 0)
    for path in sorted((folder / "train").rglob("*.png"))[:: 1 if use == "all" else 7]:  # 6 of 40, or all
        path.write_bytes(b"no image")
    holdout = 38 if use == "search" else 0
    limit = 100 if use == "all" else 3
    data = ImageData(changed(PLAIN, root=str(folder), max_unreadable=limit, holdout=holdout), seed=0)
    said = r"cannot be read \(first: .*\.png, .*data\.max_unreadable is 3; raise it"
    if use == "all":  # to raise the limit would not help
        said = "None of the 40 training images of .*train can be read; mend them"
    with pytest.raises(ValueError, match=said) as error:
        list(data.search_images() if use == "search" else data.train_batches(0, 40))
    assert "\n" not in str(error.value)


def complaint(config: Data, action: Callable[[ImageData], Any] = lambda data: None, **options: Any) -> str:
    with pytest.raises(ValueError) as error:
        result = action(ImageData(config, seed=0, **options))
        if result is not None:
            list(result)
    sentence = str(error.value)
    assert "\n" not in sentence and sentence.endswith("."), sentence
    return sentence


def test_each_mistake_has_its_sentence(
    folder: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = changed(PLAIN, root=str(folder))
    other = tmp_path_factory.mktemp("other")
    layout = "train/<class>/<image>"

    assert "num_classes is 5" in (said := complaint(changed(config, num_classes=5))) and "2 classes" in said
    assert "in_chans is 1" in complaint(changed(config, in_chans=1))
    assert "auto_augment is 'strong'" in complaint(changed(config, auto_augment="strong"))
    assert "holdout is 39" in (said := complaint(changed(config, holdout=39))) and "between 0 and 38" in said
    assert "which share 'train'" in complaint(changed(config, test_split="train"))
    assert "digits has a test split" in complaint(changed(DIGITS, test_share=0.2))
    assert "name is 'cifar'" in (said := complaint(changed(config, name="cifar"))) and "'torch/<dataset>'" in said
    assert "tfds/x" in complaint(changed(config, name="tfds/x"))
    assert "data.download=true" in complaint(changed(config, name="torch/cifar10", root=str(other)))
    monkeypatch.setitem(sys.modules, "datasets", None)
    monkeypatch.delitem(sys.modules, "timm.data.readers.reader_hfds", raising=False)
    assert "needs the package 'datasets'" in complaint(changed(config, name="hfds/owner/name"))

    assert "root is empty" in (said := complaint(changed(config, root=""))) and layout in said
    assert "does not exist" in (said := complaint(changed(config, root=str(other / "no")))) and layout in said
    assert "is a file and no tar file" in complaint(changed(config, root=__file__))
    assert "no split called 'train'" in (said := complaint(changed(config, root=str(other)))) and layout in said
    (other / "train" / "cat").mkdir(parents=True)
    assert "no images" in (said := complaint(changed(config, root=str(other)))) and layout in said
    Image.new("L", (4, 4)).save(other / "train" / "stray.png")
    assert "outside of class folders" in complaint(changed(config, root=str(other)))

    with pytest.raises(ValueError, match="batch_size is 6, but must be a multiple of 4"):
        Train(batch_size=6).check_batch(world=2)
    mixed = changed(config, mixup=0.5)
    assert "even" in complaint(mixed, lambda data: data.mixup(torch.rand(3, 3, 6, 6), torch.tensor([0, 1, 0]), 0))


def test_what_cannot_be_read_is_said_and_listed_for_the_result(folder: Path, tmp_path: Path) -> None:
    (folder / "train" / "cat" / "005.png").write_bytes(b"no image")
    (folder / "test" / "dog" / "001.png").write_bytes(b"no image")
    said: list[str] = []
    config, run = changed(PLAIN, root=str(folder)), tmp_path / "run"
    for rank in range(2):
        data = ImageData(config, seed=0, rank=rank, world=2, folder=run, **({} if rank else {"say": said.append}))
        list(data.train_batches(0, 40))
    assert len(said) == 1 and "cat/005.png cannot be read; the run goes on without it (1 so far)" in said[0]
    list(data.test_batches())
    assert data.unreadable_counts() == {"training": 1, "test": 1}
    again = ImageData(config, seed=0, say=said.append, folder=run)  # a later process, which has read nothing yet
    assert again.unreadable_counts() == {"training": 1, "test": 1} and len(said) == 1


@pytest.mark.parametrize("use", ["search", "test"])
def test_no_score_of_no_images(folder: Path, use: str) -> None:
    for path in (folder / ("test" if use == "test" else "train")).rglob("*.png"):
        path.write_bytes(b"no image")
    data = ImageData(changed(PLAIN, root=str(folder), holdout=7, max_unreadable=99), seed=0)
    with pytest.raises(ValueError, match=r"None of the 7 (held-out|test) images of .* can be read; mend them"):
        list(data.search_images() if use == "search" else data.test_batches())


@pytest.mark.parametrize("kind", ["pipe", "device", "nowhere", "circle", "folder", "unreadable"])
def test_what_is_no_file_is_an_unreadable_image(folder: Path, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    path = folder / "train" / "cat" / "005.png"
    path.unlink()
    if kind == "pipe":
        os.mkfifo(path)  # whoever opens it waits for ever
    elif kind == "folder":
        (folder / "elsewhere.png").mkdir()
        path.symlink_to(folder / "elsewhere.png")
    elif kind == "unreadable":
        path.write_bytes(b"no image")
        path.chmod(0)
    else:
        path.symlink_to({"device": "/dev/zero", "nowhere": folder / "none", "circle": path}[kind])
    config = changed(PLAIN, root=str(folder))
    if kind == "folder":  # a class of its own, by timm's rule, without images
        assert "'005.png' is in the training split but not" in complaint(config, ImageData.check_splits)
        return
    data = ImageData(config, seed=0)
    data.check_splits()
    assert data.fingerprint and len(greys(data.train_batches(0, 40))) == 40
    assert [Path(name).name for name in data.unreadable] == ["005.png"]


def test_folders_that_would_be_passed_over_have_their_sentence(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = changed(PLAIN, root=str(folder))
    (folder / "train" / "emu").symlink_to(folder / "train" / "emu")
    assert "train/emu is a link that leads nowhere or to itself" in complaint(config)
    (folder / "train" / "emu").unlink()
    (folder / "test" / "cat" / "again").symlink_to(folder / "test")
    assert "test/cat/again is a link to a folder that it lies in" in complaint(config, ImageData.check_splits)
    (folder / "test" / "cat" / "again").unlink()
    listed = os.scandir

    def refusing(path: Any) -> Any:  # as for a user who may not list it; tests may run as one who may do everything
        if str(path).endswith("train/dog"):
            raise PermissionError(13, "Permission denied", str(path))
        return listed(path)

    monkeypatch.setattr(os, "scandir", refusing)
    assert "train/dog cannot be listed (Permission denied)" in complaint(config)


# Training and test images


def test_the_test_split_is_not_the_training_split_under_another_name(folder: Path, photos: Path) -> None:
    config = changed(PLAIN, root=str(folder))
    same = "are the same files, or one is within the other"
    for split in ("./train", "../" + folder.name + "/train", "train/cat", "link"):
        (folder / "link").is_symlink() or (folder / "link").symlink_to("train")
        assert same in complaint(changed(config, test_split=split), ImageData.check_splits), split
    assert same in complaint(changed(PLAIN, root=str(photos / "tars" / "test.tar")), ImageData.check_splits)
    assert "share 'val'" in complaint(changed(config, train_split="train+val", test_split="val"), lambda d: None)
    tars = folder / "tars"
    tars.mkdir()
    for name in ("train", "test"):
        (tars / f"{name}.tar").write_bytes((photos / "tars" / "train.tar").read_bytes())
    assert "copies of one file" in complaint(changed(PLAIN, root=str(tars)), ImageData.check_splits)
    linked = folder / "linked"
    (linked / "test").mkdir(parents=True)
    for name, to in (("train", "train"), ("test/cat", "train/cat"), ("test/dog", "train/dog")):  # folders, not files
        (linked / name).symlink_to(folder / to)
    said = complaint(changed(PLAIN, root=str(linked)), ImageData.check_splits)
    assert "40 test images are links to training images" in said


def test_shared_images_are_counted(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = changed(PLAIN, root=str(folder))
    said: list[str] = []
    data = ImageData(config, seed=0, say=said.append)
    data.check_splits()
    data.check_splits(everything=True)
    assert said == []
    for number in range(2):
        copy = (folder / "train" / "dog" / f"00{number}.png").read_bytes()
        (folder / "test" / "cat" / f"00{number}.png").write_bytes(copy)
    data.check_splits()
    assert len(said) == 1 and "2 of 7 test images are training images, too (byte for byte; first: " in said[0]
    Image.open(folder / "train" / "cat" / "003.png").save(
        folder / "test" / "dog" / "000.png", compress_level=0
    )  # the same pixels in other bytes
    data.check_splits(everything=True)
    assert "3 of 7 test images are training images, too (pixel by pixel" in said.pop()
    monkeypatch.setattr(apart, "COMPARED_BYTES", 10)
    data.check_splits()
    assert "--check-data does" in said[-1]
    monkeypatch.undo()
    os.link(folder / "train" / "cat" / "007.png", folder / "test" / "cat" / "linked.png")
    assert "1 test images are links to training images" in complaint(config, ImageData.check_splits)
    for path in (folder / "test").rglob("*.*"):
        path.unlink()
    for name in ("cat", "dog"):
        (folder / "test" / name / "x.png").write_bytes((folder / "train" / name / "003.png").read_bytes())
    assert "All 2 test images are training images" in complaint(config, ImageData.check_splits)


@pytest.mark.parametrize("cut", ["in an image", "in a header", "before a header", "at the end", "a flipped header"])
def test_cut_tar_files_are_refused_and_odd_ones_said(photos: Path, tmp_path: Path, cut: str) -> None:
    whole = (photos / "tars" / "train.tar").read_bytes()
    with tarfile.open(photos / "tars" / "train.tar") as tar:
        member = tar.getmembers()[20]
    end = member.offset_data + -(-member.size // 512) * 512
    kept = {
        "in an image": whole[: member.offset_data + member.size // 2],
        "in a header": whole[: end + 100],
        "before a header": whole[:end],
        "at the end": whole.rstrip(b"\0") + b"\0" * (-len(whole.rstrip(b"\0")) % 512),
        "a flipped header": whole[: end + 3] + bytes([whole[end + 3] ^ 1]) + whole[end + 4 :],
    }[cut]
    (tmp_path / "train.tar").write_bytes(kept)
    config = changed(PLAIN, root=str(tmp_path))
    if cut in ("before a header", "at the end"):  # it cannot be known whether something is missing
        said: list[str] = []
        data = ImageData(config, seed=0, say=said.append)
        left = 21 if cut == "before a header" else 30
        assert data.train_size == left and len(said) == 1
        assert f"lacks the end that tar files have, so it may be cut: {left} images are in it" in said[0]
        assert [f"data: {text}" for text in data.lost()["data_warnings"]] == said
    else:
        assert "is cut or damaged in its middle; copy it again" in complaint(config)


def test_splits_with_other_classes_are_refused(folder: Path) -> None:
    config = changed(PLAIN, root=str(folder))
    ImageData(config, seed=0).check_splits()
    write_images(folder / "test", {"bird": 1, "emu": 1})
    for action in (ImageData.check_splits, ImageData.test_batches):
        assert "'bird' is in the test split but not in the training split" in complaint(config, action)
    chosen = ImageData(changed(config, classes=("dog", "cat")), seed=0)  # the others do not matter
    chosen.check_splits()
    assert [targets.tolist() for _, targets in chosen.test_batches()] == [[1, 1, 1, 0, 0, 0, 0]]
    for name in ("bird", "emu", "dog"):
        (folder / "test" / name).rename(folder / f"was-{name}")
    for action in (ImageData.check_splits, ImageData.test_batches):
        assert "'dog' is in the training split but not in the test split" in complaint(config, action)
    few = changed(config, classes=("dog", "cat"))
    assert "'dog' is in the training split but not in the test split" in complaint(few, ImageData.check_splits)
    (folder / "test").rename(folder / "elsewhere")
    for action in (ImageData.check_splits, ImageData.test_batches):
        assert "no split called 'test'" in complaint(config, action)


def test_held_out_images_can_be_given_back() -> None:
    """All training images, once each, beside an untouched original; the held-out ones stay what they were."""
    data = ImageData(DIGITS, seed=0)
    before = data.fingerprint, data.train_indices.copy()
    whole = data.with_held_out()
    assert sorted({*data.train_indices, *data.search_indices}) == whole.train_indices.tolist()
    assert whole.train_size == data.train_size + len(data.search_indices) and whole.fingerprint != before[0]
    assert data.fingerprint == before[0] and (data.train_indices == before[1]).all()
    seen = [label for _, labels, _ in whole.train_batches(0, whole.train_size) for label in labels.tolist()]
    assert sorted(seen) == sorted(whole.split.targets[whole.train_indices].tolist())
    for ours, theirs in zip(data.search_images(), whole.search_images(), strict=True):
        assert torch.equal(ours[0], theirs[0])
