"""Discs and boxes on noise, with exact masks: tiny datasets in the folder layouts of COCO and ADE20K.

The configs `try_detection` and `try_segmentation` train on them.
"""

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from s3zoo.files import move

CLASSES = ("disc", "box")
SEGMENTS = ("ground", *CLASSES)  # what ADE20K's format has besides: a label for every pixel
COLOURS = ((220, 60, 40), (40, 90, 230))
Shapes = list[tuple[int, np.ndarray]]  # class and mask


def draw(rng: np.random.Generator) -> tuple[np.ndarray, Shapes]:
    """An image and its three shapes, of which a later one hides what it covers of the earlier ones."""
    height, width = 96, 128
    image = rng.integers(90, 150, (height, width, 3)).astype(np.uint8)
    rows, cols = np.mgrid[:height, :width]
    shapes: Shapes = []
    for index in range(3):
        label = index % 2 if index < 2 else int(rng.integers(2))  # both classes in every image
        half = int(rng.integers(height // 7, height // 4))
        y, x = int(rng.integers(half, height - half)), int(rng.integers(half, width - half))
        if label == 0:
            mask = (rows - y) ** 2 + (cols - x) ** 2 <= half**2
        else:
            mask = (abs(rows - y) <= half) & (abs(cols - x) <= half)
        image[mask] = np.clip(np.array(COLOURS[label]) + rng.integers(-20, 21, 3), 0, 255)
        shapes = [(kind, earlier & ~mask) for kind, earlier in shapes] + [(label, mask)]
    return image, [(kind, mask) for kind, mask in shapes if mask.sum() >= 20]


def rle(mask: np.ndarray) -> dict[str, list[int]]:
    """COCO's uncompressed run lengths: column by column, beginning with zeros."""
    flat = mask.T.ravel()
    starts = np.flatnonzero(np.diff(flat)) + 1
    edges = [0, *starts.tolist(), flat.size]
    counts = [b - a for a, b in zip(edges, edges[1:], strict=False)]
    return {"size": list(mask.shape), "counts": [0, *counts] if flat[0] else counts}


def box(mask: np.ndarray) -> list[float]:
    """x, y, width and height."""
    rows, cols = np.flatnonzero(mask.any(1)), np.flatnonzero(mask.any(0))
    return [float(v) for v in (cols[0], rows[0], cols[-1] - cols[0] + 1, rows[-1] - rows[0] + 1)]


def write(root: Path, scope: str, train: int, val: int, seed: int = 0) -> Path:
    """A dataset for mmdet or mmseg, unless it is there already."""
    if not root.is_dir():
        temporary = root.with_name(f".{root.name}.partial")
        shutil.rmtree(temporary, ignore_errors=True)
        (write_coco if scope == "mmdet" else write_ade)(temporary, train, seed, held_out=val)
        move(temporary, root)
    return root


def _splits(
    names: tuple[str, str], images: int, held_out: int, seed: int
) -> list[tuple[str, int, np.random.Generator]]:
    """The same images for training and validation, or that many others."""
    train, val = names
    other = (held_out, np.random.default_rng([seed, 1])) if held_out else (images, np.random.default_rng(seed))
    return [(train, images, np.random.default_rng(seed)), (val, *other)]


def write_coco(root: Path, images: int = 4, seed: int = 0, held_out: int = 0) -> Path:
    """Validation has the training images, which a network that can learn must get right, or `held_out` others."""
    categories = [{"id": 3 * i + 1, "name": name} for i, name in enumerate(CLASSES)]  # ids with gaps, as COCO has them
    (root / "annotations").mkdir(parents=True)
    for split, count, rng in _splits(("train2017", "val2017"), images, held_out, seed):
        (root / split).mkdir()
        listed: list[dict[str, Any]] = []
        annotations: list[dict[str, Any]] = []
        for i in range(count):
            image, shapes = draw(rng)
            Image.fromarray(image).save(root / split / f"{i:012d}.jpg", quality=95)
            height, width = image.shape[:2]
            listed.append({"id": i, "file_name": f"{i:012d}.jpg", "height": height, "width": width})
            for label, mask in shapes:
                annotations.append(
                    {
                        "id": len(annotations) + 1,  # CocoEval takes an id of 0 for "not matched"
                        "image_id": i,
                        "category_id": categories[label]["id"],
                        "bbox": box(mask),
                        "area": float(mask.sum()),
                        "segmentation": rle(mask),
                        "iscrowd": 0,
                    }
                )
        content = {"images": listed, "annotations": annotations, "categories": categories}
        (root / "annotations" / f"instances_{split}.json").write_text(json.dumps(content))
    return root


def write_ade(root: Path, images: int = 4, seed: int = 0, suffix: str = ".jpg", held_out: int = 0) -> Path:
    """Labels from 1 on, 0 for pixels that are not judged: here a strip at the top."""
    for split, count, rng in _splits(("training", "validation"), images, held_out, seed):
        for kind in ("images", "annotations"):
            (root / kind / split).mkdir(parents=True)
        for i in range(count):
            image, shapes = draw(rng)
            labels = np.ones(image.shape[:2], np.uint8)
            for label, mask in shapes:
                labels[mask] = 2 + label
            labels[:2] = 0
            Image.fromarray(image).save(root / "images" / split / f"shapes_{i:08d}{suffix}", quality=95)
            Image.fromarray(labels).save(root / "annotations" / split / f"shapes_{i:08d}.png")
    return root
