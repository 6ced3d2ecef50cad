"""Sizes of whole detectors and segmenters by formulas written out here; the paper's are in test_mm_configs.py."""

import json
import math
from typing import Any

import pytest

pytest.importorskip("mmdet")
pytest.importorskip("mmseg")

from s3zoo.transfer.mm.config import load_mm_config  # noqa: E402
from s3zoo.transfer.mm.flops import main, report  # noqa: E402

DETECTOR, SEGMENTER = "cascade-mask-rcnn_{}_fpn_1x_coco", "upernet_{}_160k_ade20k-512x512"


def parts_of(name: str) -> dict[str, Any]:
    return {part.name: part for part in report(load_mm_config(name))}


def conv(cin: int, cout: int, kernel: int, places: int) -> int:
    return cin * cout * kernel**2 * places


def test_a_detector_by_formula() -> None:
    found = parts_of(DETECTOR.format("s3-tiny"))
    sizes = [(800 // s, 1280 // s) for s in (4, 8, 16, 32)]
    places = [h * w for h, w in sizes]
    dims, depths, windows = (96, 192, 384, 768), (2, 2, 6, 2), (7, 7, 14, 7)

    fpn = sum(conv(d, 256, 1, n) + conv(256, 256, 3, n) for d, n in zip(dims, places, strict=True))
    fpn += 256 * sum(places[:3])  # each coarser map is repeated to the size of the finer one
    assert found["neck"].macs == fpn
    extra = 13 * 20  # the fifth map, at stride 64
    rpn = sum(conv(256, 256, 3, n) + conv(256, 3 * (1 + 4), 1, n) for n in (*places, extra))
    assert found["RPN"].macs == rpn
    box = 4 * (conv(256, 256, 3, 49) + 2 * 256 * 49) + 256 * 49 * 1024 + 1024 * (81 + 4 * 80)
    assert [found[f"box head {i} x 1000"].macs for i in (1, 2, 3)] == [1000 * box] * 3
    mask = 4 * conv(256, 256, 3, 14 * 14) + conv(256, 256, 2, 14 * 14) + conv(256, 80, 1, 28 * 28)
    assert [found[f"mask head {i} x 100"].macs for i in (1, 2, 3)] == [100 * mask] * 3

    backbone = conv(3, 96, 4, places[0]) + 5 * 96 * places[0]  # patches and their norm
    for i, (dim, depth, window, (h, w)) in enumerate(zip(dims, depths, windows, sizes, strict=True)):
        padded = math.ceil(h / window) * math.ceil(w / window) * window**2
        attention = padded * (4 * dim**2 + 2 * window**2 * dim)  # qkv and projection; two products in a window
        block = attention + h * w * (8 * dim**2 + 2 * 5 * dim)  # MLP and two norms
        backbone += depth * block + 5 * dim * h * w  # and the norm of the output
        if i:
            backbone += h * w * (2 * dim * dim + 5 * 2 * dim)  # merging: 4 x dim / 2 to dim, with a norm
    assert found["backbone"].macs == backbone


def test_a_segmenter_by_formula() -> None:
    """The auxiliary head, needed in training alone, has parameters and no FLOPs."""
    found = parts_of(SEGMENTER.format("s3-tiny"))
    places = [512 // s * (2048 // s) for s in (4, 8, 16, 32)]
    dims, width = (96, 192, 384, 768), 512

    def module(cin: int, kernel: int, n: int) -> int:
        return conv(cin, width, kernel, n) + 2 * width * n  # with its batch norm

    head = sum(module(768, 1, s * s) + 4 * width * places[3] for s in (1, 2, 3, 6))  # pooled, and back (bilinear)
    head += module(768 + 4 * width, 3, places[3])
    head += sum(module(d, 1, n) + module(width, 3, n) for d, n in zip(dims[:3], places[:3], strict=True))
    head += sum(4 * width * n for n in places[:3])  # from coarse to fine
    head += 3 * 4 * width * places[0]  # all to the finest
    head += module(4 * width, 3, places[0]) + conv(width, 150, 1, places[0])
    assert found["decode head"].macs == head
    auxiliary = 384 * 256 * 9 + 2 * 256 + 256 * 150 + 150
    assert (found["auxiliary head"].params, found["auxiliary head"].macs) == (auxiliary, 0)


@pytest.mark.parametrize(("size", "dim"), [("small", 384), ("base", 768)])
def test_deit_with_resized_maps_by_formula(size: str, dim: int) -> None:
    """12 blocks over a class token and patches of 16 x 16, and the one map at four sizes."""
    found = parts_of(SEGMENTER.format(f"deit-{size}"))
    places = [512 // s * (2048 // s) for s in (4, 8, 16, 32)]
    tokens = places[2] + 1
    block = tokens * 12 * dim**2 + 2 * tokens**2 * dim + 2 * 5 * dim * tokens  # layers, attention's products, norms
    resized = 4 * dim * (places[0] + places[1] + places[3])  # bilinear
    assert found["backbone"].macs == conv(3, dim, 16, places[2]) + 12 * block + 5 * dim * places[2] + resized
    weights = 12 * (12 * dim**2 + 13 * dim) + (16 * 16 * 3 + 1) * dim + 2 * dim  # blocks, patches, norm
    assert found["backbone"].params == weights + dim * (14 * 14 + 2)  # class token, and its and the patches' places


def test_the_command(capsys: pytest.CaptureFixture[str]) -> None:
    name = SEGMENTER.format("s3-tiny")
    assert main([name]) == 0
    *parts, total = [line.split() for line in capsys.readouterr().out.splitlines()[1:]]
    assert total == ["total", "59.98M", "954.3G"]  # the paper: 60M, 954G
    assert sum(float(part[-2].rstrip("M")) for part in parts) == pytest.approx(59.98, abs=0.02)
    assert main([name, "--json", "--size", "128", "256"]) == 0
    small = json.loads(capsys.readouterr().out)[name]
    assert sum(part["params"] for part in small) / 1e6 == pytest.approx(59.98, abs=0.005)
    assert sum(part["macs"] for part in small) / 1e9 == pytest.approx(954.3 / 32, rel=0.05)  # a 32nd of the pixels
