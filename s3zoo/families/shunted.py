"""Shunted Transformer: hierarchical, halves of the heads attend to tokens merged at two rates."""

from __future__ import annotations

from typing import Any

from s3zoo.arch import Arch, Stage
from s3zoo.families import AttentionBlock, Cost, Family, Official, Shape, register
from s3zoo.families.parts import head, mlp
from s3zoo.space import Dim, Space

STEM_DIM = 64  # channels of the stem's convolutions, whatever the width of the network
MERGING_RATES = (8, 4, 2, 1)  # of the coarse branch, by stage; the fine branch merges half as much in each direction


class ShuntedBlock(AttentionBlock):
    """Attention to tokens merged at two rates, and an MLP with a depthwise convolution inside."""


class Shunted(Family):
    name = "shunted"
    block = ShuntedBlock
    patch_size = 4
    stages = len(MERGING_RATES)
    has_stem_depth = True
    batch_norms = True
    model = "s3zoo.models.shunted:Shunted"
    entrypoint = "shunted"
    official = Official(
        tensor="patch_embed1.conv.0.weight",
        first_conv="patch_embed1.conv.0.weight",
        models={4: "shunted_tiny", 12: "shunted_small", 24: "shunted_base"},
        blocks="block3.",
    )
    title = "Shunted"
    summary = "Shunted: hierarchical, heads attend to keys and values downsampled at two rates"
    found = "Designed by its authors, not searched."
    source = "shunted"
    colour = "magenta"
    marker = "D"

    def frame_cost(self, widths: tuple[int, ...], shape: Shape) -> Cost:
        areas = [height * width for height, width in (_map(stage, shape) for stage in range(len(widths)))]
        stem = -(-shape.height // 2) * -(-shape.width // 2)  # the map inside the stem
        patch = (shape.patch_size // 2) ** 2 * STEM_DIM
        params = (49 * shape.in_chans + 2) * STEM_DIM + shape.stem_depth * (9 * STEM_DIM + 2) * STEM_DIM
        params += (patch + 3) * widths[0] + 2 * sum(widths) + head(widths[-1], shape)
        macs = stem * (49 * shape.in_chans + 9 * STEM_DIM * shape.stem_depth) * STEM_DIM
        macs += areas[0] * patch * widths[0] + widths[-1] * shape.num_classes
        for area, before, width in zip(areas[1:], widths, widths[1:], strict=False):
            params += (9 * before + 3) * width
            macs += 9 * area * before * width
        return Cost(params, macs, macs)

    def block_cost(self, block: Any, width: int, stage: int, shape: Shape) -> Cost:
        coarse = MERGING_RATES[stage]
        rates = (coarse, coarse // 2) if coarse > 1 else ()  # of the two halves of the heads; (): nothing is merged
        if rates and block.num_heads % 2:
            raise ValueError(f"num_heads is {block.num_heads}, but must be even in stage {stage + 1} of 'shunted'.")
        side = _map(stage, shape)
        tokens, inner, hidden = side[0] * side[1], block.qkv_dim, int(width * block.mlp_ratio)
        params = 4 * width + (width + 1) * inner + (inner + 1) * width  # norms, queries, projection
        params += mlp(width, hidden) + 10 * hidden
        macs = tokens * (2 * width * inner + 2 * width * hidden + 9 * hidden)
        # Merging and its norm, keys and values, local convolution: of half the heads each, or of all of them at once.
        for rate in rates:  # a map smaller than the rate is padded to it
            merged = max(side[0] // rate, 1) * max(side[1] // rate, 1)
            params += rate**2 * width**2 + 3 * width + (width + 1) * inner + 5 * inner
            macs += merged * (rate**2 * width**2 + width * inner + tokens * inner) + 9 * merged * inner // 2
        if not rates:
            params += 2 * (width + 1) * inner + 10 * inner
            macs += tokens * inner * (2 * width + 2 * tokens + 9)
        return Cost(params, macs, macs)

    def spaces(self) -> tuple[Space, ...]:
        return (S4_SHUNTED,)

    def designed(self) -> dict[str, Arch]:
        return {f"Shunted-{name.partition('_')[2][0].upper()}": arch for name, arch in ARCHS.items()}


def _map(stage: int, shape: Shape) -> tuple[int, int]:
    """Height and width of a stage's feature map."""
    sides = [-(-shape.height // 2), -(-shape.width // 2)]
    patch = shape.patch_size // 2
    if shape.patch_size % 2 or min(sides) < patch:
        raise ValueError(
            f"img_size is {shape.height} x {shape.width} with patch_size {shape.patch_size}, but family 'shunted' needs"
            f" an even patch size and sides of at least {shape.patch_size - 1}."
        )
    sides = [side // patch for side in sides]
    for _ in range(stage):
        sides = [-(-side // 2) for side in sides]
    return sides[0], sides[1]


register(Shunted())

# One MLP ratio m means (m, m, m/2, m/2), a reading that fits the official 8, 8, 4, 4 and the paper's smallest network.
S4_SHUNTED = Space(
    "s4_shunted",
    "shunted",
    (
        Dim("embed_dim", (36, 48, 60), (1, 2, 4, 8), 12),
        Dim("mlp_ratio", (6, 7, 8), (1, 1, 0.5, 0.5), 1),
        Dim("depth", (3, 4), (0, 1, 3, 0), 1),
        Dim("depth", (2,), (1, 0, 0, 0.5), label="other_depths"),
        Dim("num_heads", (2,), (1, 2, 4, 8)),
    ),
    num_stages=4,
    stem_depth=1,
)


def _published(depths: tuple[int, ...], stem_depth: int) -> Arch:
    """The published networks differ in depth only, that of the stem included."""
    stages = (
        Stage(64 * 2**i, (ShuntedBlock(num_heads=2 * 2**i, head_dim=32, mlp_ratio=ratio),) * depth)
        for i, (depth, ratio) in enumerate(zip(depths, (8.0, 8.0, 4.0, 4.0), strict=True))
    )
    return Arch("shunted", tuple(stages), stem_depth=stem_depth)


ARCHS = {
    "shunted_tiny": _published((1, 2, 4, 1), stem_depth=0),
    "shunted_small": _published((2, 4, 12, 1), stem_depth=1),
    "shunted_base": _published((3, 4, 24, 2), stem_depth=2),
}
