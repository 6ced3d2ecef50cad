"""Discs and boxes on noise, with exact masks: tiny datasets in the folder layouts of COCO and ADE20K."""

import json
from pathlib import Path

import numpy as np
from PIL import Image

CLASSES = ("disc", "box")
SEGMENTS = ("ground", *CLASSES)  # what ADE20K's format has besides: a label for every pixel
COLOURS = ((220, 60, 40), (40, 90, 230))
Shapes = list[tuple[int, np.ndarray]]  # class and mask


def draw(rng: np.random.Generator, height: int = 96, width: int = 128, count: int = 3) -> tuple[np.ndarray, Shapes]:
    """An image and its shapes, of which a later one hides what it covers of the earlier ones."""
    image = rng.integers(90, 150, (height, width, 3)).astype(np.uint8)
    rows, cols = np.mgrid[:height, :width]
    shapes: Shapes = []
    for index in range(count):
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


def write_coco(root: Path, images: int = 4, seed: int = 0, classes: tuple[str, ...] = CLASSES) -> Path:
    """The same images for training and validation: what a network that can learn must get right."""
    categories = [{"id": 3 * i + 1, "name": name} for i, name in enumerate(classes)]  # ids with gaps, as COCO has them
    (root / "annotations").mkdir(parents=True)
    for split in ("train2017", "val2017"):
        rng = np.random.default_rng(seed)
        (root / split).mkdir()
        listed, annotations = [], []
        for i in range(images):
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


def write_ade(root: Path, images: int = 4, seed: int = 0, suffix: str = ".jpg") -> Path:
    """Labels from 1 on, 0 for pixels that are not judged: here a strip at the top."""
    for split in ("training", "validation"):
        rng = np.random.default_rng(seed)
        for kind in ("images", "annotations"):
            (root / kind / split).mkdir(parents=True)
        for i in range(images):
            image, shapes = draw(rng)
            labels = np.ones(image.shape[:2], np.uint8)
            for label, mask in shapes:
                labels[mask] = 2 + label
            labels[:2] = 0
            Image.fromarray(image).save(root / "images" / split / f"shapes_{i:08d}{suffix}", quality=95)
            Image.fromarray(labels).save(root / "annotations" / split / f"shapes_{i:08d}.png")
    return root
