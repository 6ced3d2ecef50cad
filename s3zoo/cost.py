"""Parameters and multiply-accumulates of an `Arch` in closed form: no model is built, torch is not needed.

`params` equals the built model's parameter count and `macs` half of what `torch.utils.flop_counter` counts in its
forward pass, exactly. `macs_paper` follows the convention of the family's paper where that differs. Of family
"ladder" the decoder is priced (a bottleneck, no gate) beside a tower of width `tower_dim`, which itself is left out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from s3zoo.arch import Arch, AutoFormerBlock, GLiTBlock, LadderBlock, S3Block, ShuntedBlock

Size = int | tuple[int, int]
RELATIVE_ROWS = 30  # AutoFormer: distances -14..14, and a row for pairs with the class token
SHUNTED_STEM = 64  # channels of the stem's convolutions, whatever the width of the network
SHUNTED_RATES = ((8, 4), (4, 2), (2, 1), ())  # by stage: how far each half of the heads has its tokens merged
TOWER_DIM = 768  # of the frozen tower that a ladder decoder reads: CLIP ViT-B's width


class Shape(NamedTuple):
    """The shapes around the blocks."""

    height: int
    width: int
    num_classes: int
    in_chans: int
    tower_dim: int  # family "ladder" only


def params(
    arch: Arch, *, img_size: Size = 224, num_classes: int = 1000, in_chans: int = 3, tower_dim: int = TOWER_DIM
) -> int:
    """Trainable parameters of the built model."""
    return _FAMILIES[_known(arch)].params(arch, _shape(img_size, num_classes, in_chans, tower_dim))


def macs(
    arch: Arch, *, img_size: Size = 224, num_classes: int = 1000, in_chans: int = 3, tower_dim: int = TOWER_DIM
) -> int:
    """Multiply-accumulates of one forward pass on one image, as executed."""
    return _FAMILIES[_known(arch)].macs(arch, _shape(img_size, num_classes, in_chans, tower_dim))


def macs_paper(
    arch: Arch, *, img_size: Size = 224, num_classes: int = 1000, in_chans: int = 3, tower_dim: int = TOWER_DIM
) -> int:
    """Multiply-accumulates in the convention of the family's paper (S3 counts what is executed)."""
    return _FAMILIES[_known(arch)].macs_paper(arch, _shape(img_size, num_classes, in_chans, tower_dim))


def _known(arch: Arch) -> str:
    if arch.family not in _FAMILIES:
        raise ValueError(f"family is {arch.family!r}, but a closed-form cost exists only for {', '.join(_FAMILIES)}.")
    return arch.family


def _shape(img_size: Size, num_classes: int, in_chans: int, tower_dim: int) -> Shape:
    height, width = (img_size, img_size) if isinstance(img_size, int) else img_size
    if min(height, width, in_chans, tower_dim) < 1 or num_classes < 0:
        raise ValueError(
            f"img_size {img_size}, in_chans {in_chans}, tower_dim {tower_dim} and num_classes {num_classes} were given;"
            " the first three must be positive, the last 0 or more."
        )
    return Shape(height, width, num_classes, in_chans, tower_dim)


def _head(dim: int, shape: Shape) -> int:
    return shape.num_classes * (dim + 1)


def _mlp(dim: int, ratio: float) -> int:
    hidden = int(dim * ratio)
    return 2 * dim * hidden + hidden + dim


def _attention(dim: int, inner: int) -> int:
    return 3 * dim * inner + 3 * inner + inner * dim + dim


# S3: windows, patch merging


def _s3_params(arch: Arch, shape: Shape) -> int:
    total = (arch.patch_size**2 * shape.in_chans + 1 + 2) * arch.embed_dims[0]  # convolution and its norm
    for before, stage in zip((None, *arch.stages), arch.stages, strict=False):
        dim = stage.embed_dim
        if before is not None:  # norm and reduction of patch merging
            total += 8 * before.embed_dim + 4 * before.embed_dim * dim
        for block in stage.blocks:
            assert isinstance(block, S3Block)
            table = (2 * block.window_size - 1) ** 2 * block.num_heads
            total += 4 * dim + _attention(dim, block.qkv_dim) + table + _mlp(dim, block.mlp_ratio)
    return total + 2 * arch.embed_dims[-1] + _head(arch.embed_dims[-1], shape)


def _padded(size: int, window: int) -> tuple[int, int]:
    """The window on an axis of the feature map, and the length of the axis after padding to whole windows."""
    return (size, size) if size <= window else (window, -(-size // window) * window)


def _s3_macs(arch: Arch, shape: Shape) -> int:
    height, width = -(-shape.height // arch.patch_size), -(-shape.width // arch.patch_size)
    total = height * width * arch.patch_size**2 * shape.in_chans * arch.embed_dims[0]
    for before, stage in zip((None, *arch.stages), arch.stages, strict=False):
        dim = stage.embed_dim
        if before is not None:
            height, width = -(-height // 2), -(-width // 2)
            total += height * width * 4 * before.embed_dim * dim
        for block in stage.blocks:
            assert isinstance(block, S3Block)
            window_h, padded_h = _padded(height, block.window_size)
            window_w, padded_w = _padded(width, block.window_size)
            tokens = padded_h * padded_w
            total += tokens * block.qkv_dim * (4 * dim + 2 * window_h * window_w)
            total += 2 * height * width * dim * int(dim * block.mlp_ratio)
    return total + arch.embed_dims[-1] * shape.num_classes


# Plain transformers: a class token and a position embedding


def _grid(arch: Arch, shape: Shape) -> int:
    if shape.height % arch.patch_size or shape.width % arch.patch_size:
        raise ValueError(
            f"img_size is {shape.height} x {shape.width}, but must be a multiple of {arch.patch_size} in family"
            f" {arch.family!r} with this patch size."
        )
    return (shape.height // arch.patch_size) * (shape.width // arch.patch_size)


def _plain(arch: Arch) -> tuple[int, tuple[Any, ...]]:
    return arch.stages[0].embed_dim, arch.stages[0].blocks


def _frame_params(arch: Arch, shape: Shape) -> int:
    dim, _ = _plain(arch)
    patch = (arch.patch_size**2 * shape.in_chans + 1) * dim
    return patch + dim + (_grid(arch, shape) + 1) * dim + 2 * dim + _head(dim, shape)


def _frame_macs(arch: Arch, shape: Shape) -> int:
    dim, _ = _plain(arch)
    return _grid(arch, shape) * arch.patch_size**2 * shape.in_chans * dim + dim * shape.num_classes


def _autoformer_blocks(arch: Arch) -> Iterator[tuple[int, AutoFormerBlock]]:
    dim, blocks = _plain(arch)
    return ((dim, block) for block in blocks)


def _autoformer_params(arch: Arch, shape: Shape) -> int:
    return _frame_params(arch, shape) + sum(
        4 * dim + _attention(dim, b.qkv_dim) + 4 * RELATIVE_ROWS * b.head_dim + _mlp(dim, b.mlp_ratio)
        for dim, b in _autoformer_blocks(arch)
    )


def _autoformer_macs(arch: Arch, shape: Shape) -> int:
    """Relative positions cost four products of tokens x 30 rows, not of tokens x tokens."""
    tokens = _grid(arch, shape) + 1
    return _frame_macs(arch, shape) + sum(
        tokens * b.qkv_dim * (4 * dim + 2 * tokens + 4 * RELATIVE_ROWS) + 2 * tokens * dim * int(dim * b.mlp_ratio)
        for dim, b in _autoformer_blocks(arch)
    )


def _autoformer_macs_paper(arch: Arch, shape: Shape) -> int:
    """What AutoFormer's own counter reports: the class token twice, the head on every token, norms as one MAC per
    element, biases never, and 14 per pair of tokens for the relative positions."""
    grid = _grid(arch, shape)
    tokens = grid + 2
    dim, _ = _plain(arch)
    reach = RELATIVE_ROWS // 2 - 1
    total: float = grid * arch.patch_size**2 * shape.in_chans * dim + dim + (grid + 1) * dim / 2
    for _, b in _autoformer_blocks(arch):
        total += tokens * (2 * dim + 4 * dim * b.qkv_dim + 2 * dim * int(dim * b.mlp_ratio))
        total += 2 * tokens**2 * b.qkv_dim + 2 * reach * tokens**2 + tokens**2 / 2 + tokens * b.qkv_dim / 2
    return int(total + (grid + 1) * dim * shape.num_classes)


# GLiT: attention on the first channels, a convolution module on the others


def _glit_branches(dim: int, block: GLiTBlock) -> tuple[int, int, int]:
    """Channels of the global and of the local branch, and the local branch's inner width."""
    local = dim * block.local_heads // block.num_heads
    return dim - local, local, int(local * block.expansion)


def _glit_params(arch: Arch, shape: Shape) -> int:
    dim, blocks = _plain(arch)
    total = _frame_params(arch, shape)
    for b in blocks:
        attended, local, inner = _glit_branches(dim, b)
        total += 4 * dim + _mlp(dim, b.mlp_ratio)
        if attended:
            total += _attention(attended, b.qkv_dim)
        if local:  # pointwise to pairs, depthwise, batch norm, pointwise
            total += 2 * local * inner + 2 * inner + inner * b.kernel_size + inner + 2 * inner + inner * local + local
    return total


def _glit_macs(arch: Arch, shape: Shape, gate: int = 1) -> int:
    dim, blocks = _plain(arch)
    tokens = _grid(arch, shape) + 1
    total = _frame_macs(arch, shape)
    for b in blocks:
        attended, local, inner = _glit_branches(dim, b)
        total += 2 * tokens * dim * int(dim * b.mlp_ratio)
        total += tokens * b.qkv_dim * (4 * attended + 2 * tokens)
        total += tokens * inner * (local * (1 + gate) + b.kernel_size + local)
    return total


def _glit_macs_paper(arch: Arch, shape: Shape) -> int:
    """GLiT's own counter takes the first pointwise convolution without its gate (half of its outputs)."""
    return _glit_macs(arch, shape, gate=0)


# Shunted: halves of the heads attend to tokens merged at two rates, convolutions in the values and in the MLP


def _shunted_blocks(arch: Arch) -> Iterator[tuple[int, int, ShuntedBlock, tuple[int, ...]]]:
    """Stage, width, genes and merging rates of every block."""
    for s, (stage, rates) in enumerate(zip(arch.stages, SHUNTED_RATES, strict=True)):
        for block in stage.blocks:
            assert isinstance(block, ShuntedBlock)
            if rates and block.num_heads % 2:
                raise ValueError(f"num_heads is {block.num_heads}, but must be even in stage {s + 1} of 'shunted'.")
            yield s, stage.embed_dim, block, rates


def _shunted_sides(arch: Arch, shape: Shape) -> tuple[tuple[int, int], list[tuple[int, int]]]:
    """The map inside the stem, and those of the stages."""
    half = (-(-shape.height // 2), -(-shape.width // 2))
    patch = arch.patch_size // 2
    if arch.patch_size % 2 or min(half) < patch:
        raise ValueError(
            f"img_size is {shape.height} x {shape.width} with patch_size {arch.patch_size}, but family 'shunted' needs"
            f" an even patch size and sides of at least {arch.patch_size - 1}."
        )
    sides = [(half[0] // patch, half[1] // patch)]
    while len(sides) < len(arch.stages):
        sides.append((-(-sides[-1][0] // 2), -(-sides[-1][1] // 2)))
    return half, sides


def _shunted_params(arch: Arch, shape: Shape) -> int:
    _shunted_sides(arch, shape)
    dims = arch.embed_dims
    stem = (49 * shape.in_chans + 2) * SHUNTED_STEM + arch.stem_depth * (9 * SHUNTED_STEM + 2) * SHUNTED_STEM
    total = stem + ((arch.patch_size // 2) ** 2 * SHUNTED_STEM + 3) * dims[0]
    total += sum((9 * before + 3) * dim for before, dim in zip(dims, dims[1:], strict=False))
    for _, dim, b, rates in _shunted_blocks(arch):
        inner, hidden = b.qkv_dim, int(dim * b.mlp_ratio)
        total += 4 * dim + (dim + 1) * inner + (inner + 1) * dim  # norms, queries, projection
        total += _mlp(dim, b.mlp_ratio) + 10 * hidden
        # Merging and its norm, keys and values, local convolution: of half the heads each, or of all of them at once.
        total += sum(rate**2 * dim**2 + 3 * dim + (dim + 1) * inner + 5 * inner for rate in rates)
        total += 0 if rates else 2 * (dim + 1) * inner + 10 * inner
    return total + 2 * sum(dims) + _head(dims[-1], shape)


def _shunted_macs(arch: Arch, shape: Shape) -> int:
    half, sides = _shunted_sides(arch, shape)
    dims, areas = arch.embed_dims, [height * width for height, width in sides]
    total = half[0] * half[1] * (49 * shape.in_chans + 9 * SHUNTED_STEM * arch.stem_depth) * SHUNTED_STEM
    total += areas[0] * (arch.patch_size // 2) ** 2 * SHUNTED_STEM * dims[0]
    total += sum(9 * area * before * dim for area, before, dim in zip(areas[1:], dims, dims[1:], strict=False))
    for s, dim, b, rates in _shunted_blocks(arch):
        tokens, inner, hidden = areas[s], b.qkv_dim, int(dim * b.mlp_ratio)
        total += tokens * (2 * dim * inner + 2 * dim * hidden + 9 * hidden)
        for rate in rates:  # a map smaller than the rate is padded to it
            merged = max(sides[s][0] // rate, 1) * max(sides[s][1] // rate, 1)
            total += merged * (rate**2 * dim**2 + dim * inner + tokens * inner) + 9 * merged * inner // 2
        total += 0 if rates else tokens * inner * (2 * dim + 2 * tokens + 9)
    return total + dims[-1] * shape.num_classes


# Ladder: a query reads the tokens of a frozen tower, whose own cost is left out: it is the same for every decoder


def _ladder_blocks(arch: Arch) -> Iterator[tuple[int, LadderBlock]]:
    """Bottleneck and genes of every layer; the reading with neither gate nor another ladder."""
    bottleneck, blocks = _plain(arch)
    return ((bottleneck, block) for block in blocks)


def _ladder_params(arch: Arch, shape: Shape) -> int:
    dim = shape.tower_dim
    frame = 3 * dim + _head(dim, shape)  # query, norm, classifier
    return frame + sum(
        6 * dim + 2 * dim * bottleneck + bottleneck + dim + _attention(dim, b.qkv_dim) + _mlp(dim, b.mlp_ratio)
        for bottleneck, b in _ladder_blocks(arch)
    )


def _ladder_macs(arch: Arch, shape: Shape) -> int:
    """Keys, values and the ladder run on every token of the tower, the rest on the query alone."""
    dim, tokens = shape.tower_dim, _grid(arch, shape) + 1
    return dim * shape.num_classes + sum(
        2 * tokens * (dim * bottleneck + dim * b.qkv_dim + b.qkv_dim) + 2 * dim * (b.qkv_dim + int(dim * b.mlp_ratio))
        for bottleneck, b in _ladder_blocks(arch)
    )


class _Cost(NamedTuple):
    params: Callable[[Arch, Shape], int]
    macs: Callable[[Arch, Shape], int]
    macs_paper: Callable[[Arch, Shape], int]


_FAMILIES: dict[str, _Cost] = {
    "s3": _Cost(_s3_params, _s3_macs, _s3_macs),
    "autoformer": _Cost(_autoformer_params, _autoformer_macs, _autoformer_macs_paper),
    "glit": _Cost(_glit_params, _glit_macs, _glit_macs_paper),
    "shunted": _Cost(_shunted_params, _shunted_macs, _shunted_macs),
    "ladder": _Cost(_ladder_params, _ladder_macs, _ladder_macs),
}
