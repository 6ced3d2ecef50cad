"""Annotations in COCO's format: what pycocotools writes is taken, in all three forms of masks; the rest is refused."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pycocotools import mask as masks

from s3zoo.transfer.mm.coco import _decoded, check_coco
from s3zoo.transfer.mm.shapes import CLASSES, draw, rle, write_coco

FILE = "annotations/instances_val2017.json"


def test_compressed_run_lengths_are_those_that_pycocotools_packed() -> None:
    rng = np.random.default_rng(0)
    for mask in [*(mask for _ in range(20) for _, mask in draw(rng)[1]), rng.random((57, 91)) < 0.5]:
        packed = masks.encode(np.asfortranarray(mask.astype(np.uint8)))["counts"].decode()
        assert _decoded(packed) == rle(mask)["counts"]


def compressed(row: dict[str, Any]) -> dict[str, Any]:
    packed = masks.frPyObjects(row["segmentation"], *row["segmentation"]["size"])
    return {"size": packed["size"], "counts": packed["counts"].decode()}


@pytest.mark.parametrize(
    "shape", [dict(segmentation=[[1, 2, 30.5, 4, 5, 60]]), dict(segmentation=[]), dict(ignore=1), compressed]
)
def test_every_form_of_a_mask_is_taken(tmp_path: Path, shape: Any) -> None:
    path = write_coco(tmp_path / "coco", images=1) / FILE
    check_coco(path, CLASSES)
    content = json.loads(path.read_text())
    row = content["annotations"][0]
    row |= {"segmentation": shape(row)} if callable(shape) else shape
    path.write_text(json.dumps(content))
    check_coco(path, CLASSES)
    if callable(shape):
        for damage in (row["segmentation"]["counts"][:-1], row["segmentation"]["counts"] + "o"):
            row["segmentation"]["counts"] = damage
            path.write_text(json.dumps(content))
            with pytest.raises(ValueError, match="row 0 of its 'annotations': its 'segmentation' has run lengths"):
                check_coco(path, CLASSES)


def test_images_without_annotations_are_taken(tmp_path: Path) -> None:
    path = write_coco(tmp_path / "coco", images=1) / FILE
    content = json.loads(path.read_text())
    del content["annotations"]
    path.write_text(json.dumps(content))
    check_coco(path, CLASSES)
    with pytest.raises(ValueError, match="such as 'cat', but .* --classes disc,box"):
        check_coco(path, ("cat",))
