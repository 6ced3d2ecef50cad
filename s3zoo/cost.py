"""Parameters and multiply-accumulates of an `Arch` in closed form: no model is built, torch is not needed.

`params` equals the built model's parameter count and `macs` half of what `torch.utils.flop_counter` counts in its
forward pass, exactly; of AutoFormer without the columns that it appends to queries, keys and values for its positions
(7 % of AutoFormer-T's products), which stand for passes that nobody counts. `macs_paper` follows the convention of the
family's paper where that differs. The formulas stand with the families (`s3zoo/families/`). Of a network beside a
frozen tower of width `tower_dim`, the tower is left out.
"""

from __future__ import annotations

import functools
from typing import Any

from s3zoo.arch import Arch
from s3zoo.families import FAMILIES, Cost, Shape

Size = int | tuple[int, int]
TOWER_DIM = 768  # CLIP ViT-B's width


def params(arch: Arch, **shape: Any) -> int:
    """Trainable parameters of the built model; `shape` as for `costs`."""
    return costs(arch, **shape).params


def macs(arch: Arch, **shape: Any) -> int:
    """Multiply-accumulates of one forward pass on one image, as executed; `shape` as for `costs`."""
    return costs(arch, **shape).macs


def macs_paper(arch: Arch, **shape: Any) -> int:
    """Multiply-accumulates in the convention of the family's paper; `shape` as for `costs`."""
    return int(costs(arch, **shape).macs_paper)


def costs(
    arch: Arch, *, img_size: Size = 224, num_classes: int = 1000, in_chans: int = 3, tower_dim: int = TOWER_DIM
) -> Cost:
    """All three at once, for this input and these classes."""
    shape = shape_of(arch, img_size, num_classes, in_chans, tower_dim)
    parts = [FAMILIES[arch.family].frame_cost(arch.embed_dims, shape)]
    for i, stage in enumerate(arch.stages):
        parts += [_block(arch.family, block, stage.embed_dim, i, shape) for block in stage.blocks]
    return Cost(*map(sum, zip(*parts, strict=True)))


@functools.lru_cache(maxsize=2**16)  # a search prices the same few blocks again and again
def _block(family: str, block: Any, width: int, stage: int, shape: Shape) -> Cost:
    return FAMILIES[family].block_cost(block, width, stage, shape)


def shape_of(arch: Arch, img_size: Size, num_classes: int, in_chans: int, tower_dim: int) -> Shape:
    """What costs depend on besides widths and genes; patch, stem and class token are those of the architecture."""
    height, width = (img_size, img_size) if isinstance(img_size, int) else img_size
    if min(height, width, in_chans, tower_dim) < 1 or num_classes < 0:
        raise ValueError(
            f"img_size {img_size}, in_chans {in_chans}, tower_dim {tower_dim} and num_classes {num_classes} were given;"
            " the first three must be positive, the last 0 or more."
        )
    class_token = FAMILIES[arch.family].class_token(arch)
    return Shape(height, width, num_classes, in_chans, tower_dim, arch.patch_size, arch.stem_depth, class_token)
