"""Parameters and FLOPs of a detector or segmenter by its parts, in the convention of the S3 and Swin papers.

"FLOPs" there are multiply-accumulates of a network that looks at one image (1280 x 800 for detection, 2048 x 512 for
segmentation), with the matrix products of attention and the padding of windows:

- a detector is its backbone, FPN and RPN, each box head for 1000 proposals and each mask head for 100 of them (what
  mmdet's own counter sends through the mask heads, 1000 a head, is more than they see at test time);
- a segmenter is its backbone and decode head. The auxiliary head, which only training needs, counts as parameters.

Norms and resampling count as mmengine's FlopAnalyzer has them. All on the meta device: no memory, no arithmetic.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from functools import partial
from typing import Annotated, Any

import torch
from mmengine.config import Config
from mmengine.registry import MODELS
from torch import nn

from s3zoo.checks import Range, typed
from s3zoo.compat import count_macs
from s3zoo.transfer.mm.config import load_mm_config, quiet, register, without_pretrained
from s3zoo.transfer.mm.folder import running_config

BOXES, MASKS = 1000, 100
DETECTION, SEGMENTATION = (800, 1280), (512, 2048)


@dataclass(frozen=True)
class Part:
    name: str
    params: int
    macs: int


def _numel(factor: int) -> Callable[..., int]:
    """So many operations per element of the result. FlopCounterMode counts 2 for a multiply-accumulate, we count 1."""

    def count(*args: Any, out_shape: Any, **kwargs: Any) -> int:
        shape = out_shape[0] if isinstance(out_shape[0], torch.Size | tuple | list) else out_shape
        return 2 * factor * math.prod(shape)

    return count


_aten: Any = torch.ops.aten
_CHEAP = {  # operations per element, as mmengine's FlopAnalyzer counts them
    _aten.native_layer_norm: _numel(5),
    _aten.native_batch_norm: _numel(2),
    _aten._native_batch_norm_legit_no_training: _numel(2),
    _aten.native_group_norm: _numel(5),
    _aten.upsample_nearest2d: _numel(1),
    _aten.upsample_bilinear2d: _numel(4),
}


def _params(module: nn.Module | None) -> int:
    return sum(p.numel() for p in module.parameters()) if module is not None else 0


def _heads(heads: Any) -> list[Any]:
    if heads is None:
        return []
    return list(heads) if isinstance(heads, Iterable) else [heads]


def parts(model: nn.Module, size: tuple[int, int] | None = None) -> list[Part]:
    """The parts of a two-stage detector or an encoder-decoder, moved to the meta device; `size` is (height, width)."""
    model = model.to("meta").eval()
    detector = hasattr(model, "roi_head")
    if not detector and not hasattr(model, "decode_head"):
        raise ValueError(f"{type(model).__name__} is neither a two-stage detector nor an encoder with a decode head.")
    image = torch.empty(1, 3, *(size or (DETECTION if detector else SEGMENTATION)), device="meta")
    found = []

    def add(name: str, module: nn.Module, call: Callable[[], Any]) -> Any:
        macs, result = count_macs(call, _CHEAP)
        found.append(Part(name, _params(module), macs))
        return result

    net: Any = model
    maps = add("backbone", net.backbone, lambda: net.backbone(image))
    if getattr(net, "neck", None) is not None:
        maps = add("neck", net.neck, lambda: net.neck(maps))
    if not detector:
        add("decode head", net.decode_head, lambda: net.decode_head(maps))
        for head in _heads(getattr(net, "auxiliary_head", None)):
            found.append(Part("auxiliary head", _params(head), 0))
    else:
        add("RPN", net.rpn_head, lambda: net.rpn_head(maps))
        for kind, prefix, rois in (("box", "bbox", BOXES), ("mask", "mask", MASKS)):
            heads = _heads(getattr(net.roi_head, f"{prefix}_head", None))
            extractors = _heads(getattr(net.roi_head, f"{prefix}_roi_extractor", None))
            for i, (head, extractor) in enumerate(zip(heads, extractors, strict=True), 1):
                side = extractor.roi_layers[0].output_size
                regions = torch.empty(rois, extractor.out_channels, *side, device="meta")
                add(f"{kind} head {i} x {rois}", head, partial(head, regions))
    counted = sum(part.params for part in found)
    assert counted == _params(model), f"{_params(model) - counted} parameters belong to no part"
    return found


def report(cfg: Config, size: tuple[int, int] | None = None) -> list[Part]:
    """The parts of a config's model; its pretrained weights are not looked at."""
    cfg = cfg.copy()
    without_pretrained(cfg)
    register(cfg)
    with torch.device("meta"):
        return parts(MODELS.build(cfg.model), size)


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="s3zoo flops_mm",
        description="Parameters and FLOPs (multiply-accumulates) of detectors and segmenters by part, counted as the\n"
        "papers count: 1280 x 800 with 1000 boxes and 100 masks a head, or 2048 x 512 without the auxiliary head.",
        epilog="example:\n  s3zoo flops_mm cascade-mask-rcnn_s3-tiny_fpn_1x_coco upernet_s3-tiny_160k_ade20k-512x512",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("config", nargs="+", help="names of configs in configs/, or .py files")
    parser.add_argument("--size", type=int, nargs=2, metavar=("HEIGHT", "WIDTH"), help="another size of the image")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    args = parser.parse_args(argv)
    typed(args.size or [], tuple[Annotated[int, Range(1, 100_000)], ...], "--size")
    quiet()
    found = {}
    for name in args.config:
        with running_config(name):
            rows = found[name] = report(load_mm_config(name), tuple(args.size) if args.size else None)
        if not args.json:
            total = Part("total", sum(row.params for row in rows), sum(row.macs for row in rows))
            print(name)
            for row in (*rows, total):
                print(f"  {row.name:<20} {row.params / 1e6:>9.2f}M {row.macs / 1e9:>9.1f}G")
    if args.json:
        print(json.dumps({name: [asdict(row) for row in rows] for name, rows in found.items()}, indent=1))
    return 0
