"""`s3zoo predict MODEL IMAGE…`: the likeliest classes of images, by name."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from s3zoo.files import exists, shown
from s3zoo.images import read_image

SUFFIXES = (".jpg", ".jpeg", ".png", ".bmp", ".gif", ".webp", ".tif", ".tiff", ".ppm", ".pgm")
BATCH = 32


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="s3zoo predict",
        description="Print the likeliest classes of images.",
        epilog="example: s3zoo predict s3_tiny cat.jpg holiday/   (a folder stands for the images in it)",
    )
    parser.add_argument("model", metavar="MODEL", help="timm name, hf-hub:…, or a folder with a model or a run")
    parser.add_argument("images", metavar="IMAGE", nargs="+", type=Path, help="image, or folder of images")
    parser.add_argument("--top", type=int, default=5, metavar="K", help="so many classes (default: 5)")
    parser.add_argument("--json", action="store_true", help="one JSON object a line")
    parser.add_argument("--device", default="auto", help="cpu, cuda or auto")
    arguments = parser.parse_args(argv)
    if arguments.top < 1:
        raise ValueError(f"--top is {arguments.top}, but must be at least 1.")
    paths = list(find_images(arguments.images))
    unreadable = 0
    for row in predict(arguments.model, paths, top=arguments.top, device=arguments.device):
        if "error" in row:
            unreadable += 1
            print(f"s3zoo: {shown(row['error'])}", file=sys.stderr)
        elif arguments.json:
            print(json.dumps(row, ensure_ascii=False))
        else:
            print(shown(row["image"]))
            for guess in row["classes"]:
                print(f"  {100 * guess['probability']:5.1f} %  {guess['name']}")
    return 2 if unreadable else 0


def find_images(given: Iterable[Path]) -> Iterator[Path]:
    """The images that paths stand for, those of a folder sorted by name."""
    for path in given:
        path = path.expanduser()
        if path.is_dir():
            found = sorted(p for p in path.rglob("*") if p.suffix.lower() in SUFFIXES and p.is_file())
            if not found:
                raise ValueError(f"The folder {str(path)!r} holds no image ({', '.join(SUFFIXES)}).")
            yield from found
        elif path.is_file():
            yield path
        elif exists(path, "The image"):
            raise ValueError(f"{str(path)!r} is neither an image file nor a folder; give another path.")
        else:
            raise ValueError(f"There is no image or folder at {str(path)!r}; give paths that exist.")


def predict(spec: str, paths: list[Path], *, top: int = 5, device: str = "auto") -> Iterator[dict[str, Any]]:
    """For each image its likeliest classes; for one that cannot be read, an "error"."""
    import torch

    from s3zoo.models.folder import check_finite
    from s3zoo.models.open import class_names, open_model
    from s3zoo.training.distributed import start
    from s3zoo.training.images import as_validated

    where = start(device).device
    model = open_model(spec).to(where).eval()
    _, transform, mode = as_validated(model)
    names = class_names(model)
    for begin in range(0, len(paths), BATCH):
        part, tensors, rows = paths[begin : begin + BATCH], [], []
        for path in part:
            try:
                tensors.append(transform(read_image(path, mode)))
                rows.append(path)
            except ValueError as error:
                yield {"image": str(path), "error": str(error)}
        if not tensors:
            continue
        with torch.inference_mode():
            probabilities = model(torch.stack(tensors).to(where)).float().softmax(1).cpu()
        check_finite({"its answers": probabilities}, spec)
        for path, row in zip(rows, probabilities, strict=True):
            values, indices = row.topk(min(top, len(row)))
            classes = [
                {"index": i, "name": names[i], "probability": value}
                for i, value in zip(indices.tolist(), values.tolist(), strict=True)
            ]
            yield {"image": str(path), "classes": classes}
