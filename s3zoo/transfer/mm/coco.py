"""Annotations in COCO's format, checked whole before anything is built.

mmdet and pycocotools take a file as it is: what is wrong in one of a million rows ends a training when that row's turn
comes, and run lengths that are not those of their image end the process.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path, PurePosixPath
from typing import Any

from s3zoo.checks import Fields, Shown, typed
from s3zoo.files import read_json

LARGEST_SIDE = 100_000
REMEDY = "correct it, or write the annotations again"
_ID = int | str
_TABLES: dict[str, Fields] = {
    "categories": {"id": _ID, "name": str},
    "images": {"id": _ID, "file_name": str, "height": int, "width": int},
    "annotations": {"id": _ID, "image_id": _ID, "category_id": _ID, "bbox": list, "area": float},
}


def check_coco(path: Path, names: Sequence[str]) -> None:
    """Refuse a file that does not hold annotations of these classes."""
    content = {"annotations": []} | read_json(path, {"categories": list, "images": list}, remedy=REMEDY)
    sizes: dict[Any, tuple[int, int]] = {}
    for table, fields in _TABLES.items():
        place = f"its {table!r}"
        try:
            typed(content, {table: list}, "")
            ids = set()
            for number, row in enumerate(content[table]):
                place = f"row {number} of its {table!r}"
                typed(row, fields, "")
                if row["id"] in ids:
                    raise ValueError(f"its 'id' {row['id']!r} is that of another row")
                ids.add(row["id"])
                if table == "images":
                    sizes[row["id"]] = _size_of_image(row)
                elif table == "annotations":
                    _check_annotation(row, sizes.get(row["image_id"]))
            if len({type(each) for each in ids}) > 1:
                raise ValueError("some 'id' are numbers and some are text")
        except ValueError as error:
            raise ValueError(f"{path.as_posix()!r} is not in COCO's format: {place}: {error}; {REMEDY}.") from None
    listed = [row["name"] for row in content["categories"]]
    absent = [name for name in names if name not in listed]
    if absent:  # mmdet leaves out what has another name, and then finds nothing in the whole dataset
        raise ValueError(
            f"The model is for {len(names)} classes such as {absent[0]!r}, but {path.as_posix()!r} has "
            f"{', '.join(map(repr, listed[:20]))}{' and more' if len(listed) > 20 else ''}; "
            f"name those to be detected, as in --classes {','.join(listed[:3])}."
        )


def _size_of_image(row: dict[str, Any]) -> tuple[int, int]:
    name, size = row["file_name"], (row["height"], row["width"])
    if not name or name not in Shown() or PurePosixPath(name).is_absolute() or ".." in PurePosixPath(name).parts:
        raise ValueError(f"its 'file_name' {name[:60]!r} is no place below the folder of images")
    if not all(1 <= side <= LARGEST_SIDE for side in size):
        raise ValueError(f"its height and width must be from 1 to {LARGEST_SIDE}")
    return size


def _check_annotation(row: dict[str, Any], size: tuple[int, int] | None) -> None:
    if len(row["bbox"]) != 4 or not _numbers(row["bbox"]):
        raise ValueError("its 'bbox' is no list of four numbers")
    if row.get("iscrowd", 0) not in (0, 1):
        raise ValueError("its 'iscrowd' is neither 0 nor 1")
    shape = row.get("segmentation")
    if not shape or size is None:  # of boxes only, or of an image that the file does not list
        return
    height, width = size
    if isinstance(shape, list):
        most = 2 * max(size)  # what lies far outside of the image would be drawn all the same
        for line in shape:
            if not isinstance(line, list) or not _numbers(line):
                raise ValueError("its 'segmentation' is neither a list of polygons nor run lengths")
            if line and not -most <= min(line) <= max(line) <= most:
                raise ValueError("its 'segmentation' lies far outside of the image")
        return
    typed(shape, {"size": list, "counts": str | list}, "segmentation")
    counts = _decoded(shape["counts"]) if isinstance(shape["counts"], str) else shape["counts"]
    whole = all(type(count) is int and count >= 0 for count in counts)
    if shape["size"] != [height, width] or not whole or sum(counts) != height * width:
        raise ValueError(f"its 'segmentation' has run lengths that are not those of {height} x {width} pixels")


def _numbers(values: list[Any]) -> bool:
    return {*map(type, values)} <= {int, float}


def _decoded(text: str) -> list[int]:
    """COCO's compressed run lengths: digits of five bits, lowest first; from the fourth on, differences to the last
    but one.
    """
    counts: list[int] = []
    value = shift = 0
    for character in text:
        digit = ord(character) - 48
        if not 0 <= digit < 64:
            raise ValueError("its 'segmentation' has run lengths that COCO does not write")
        value |= (digit & 31) << shift
        shift += 5
        if digit & 32:
            continue
        if digit & 16:
            value -= 1 << shift
        counts.append(value + (counts[-2] if len(counts) > 2 else 0))
        value = shift = 0
    return counts if not shift else []
