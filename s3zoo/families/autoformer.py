"""AutoFormer: plain vision transformers with searched width, depth, heads and MLP ratios."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from s3zoo.arch import Arch, Stage
from s3zoo.families import AttentionBlock, Cost, Family, Official, Shape, register
from s3zoo.families.parts import DEIT_HEADS, attention, grid, mlp, plain_frame
from s3zoo.space import Dim, Space

RELATIVE_ROWS = 30  # of a table of relative positions: distances -14..14, and a row for pairs with the class token


class AutoFormerBlock(AttentionBlock):
    """Global attention with 2-D relative positions on keys and values, and an MLP."""


class AutoFormer(Family):
    name = "autoformer"
    block = AutoFormerBlock
    patch_size = 16
    stages = 1
    model = "s3zoo.models.autoformer:AutoFormer"
    entrypoint = "autoformer"
    official = Official(
        tensor="patch_embed_super.proj.weight",
        first_conv="patch_embed_super.proj.weight",
        models={256: "autoformer_tiny", 448: "autoformer_small", 640: "autoformer_base"},
        supernet=True,
    )
    title = "AutoFormer"
    summary = "AutoFormer: a plain vision transformer with searched heads, MLP ratios, width and depth"
    found = (
        "Found by the authors in a supernet trained on ImageNet-1k; this project's implementation:"
        " `s3zoo search {name}`."
    )
    source = "autoformer"
    colour = "amber"
    marker = "s"

    def frame_cost(self, widths: tuple[int, ...], shape: Shape) -> Cost:
        """AutoFormer's own counter has the class token, half the position embedding and the head on every token."""
        (dim,) = widths
        frame, patches = plain_frame(self.name, dim, shape), grid(self.name, shape)
        paper = patches * shape.patch_size**2 * shape.in_chans * dim + dim + (patches + 1) * dim / 2
        return frame._replace(macs_paper=paper + (patches + 1) * dim * shape.num_classes)

    def block_cost(self, block: Any, width: int, stage: int, shape: Shape) -> Cost:
        """Relative positions cost four products of tokens x 30 rows, not of tokens x tokens. (What the model computes
        besides, because one wider product is faster than several narrow ones, does not count.)

        AutoFormer's own counter takes the class token twice, norms as one MAC per element, biases never, and 14 per
        pair of tokens for the relative positions.
        """
        inner, hidden, tokens = block.qkv_dim, int(width * block.mlp_ratio), grid(self.name, shape) + 1
        tables = 4 * RELATIVE_ROWS
        params = 4 * width + attention(width, inner) + tables * block.head_dim + mlp(width, hidden)
        macs = tokens * inner * (4 * width + 2 * tokens + tables) + 2 * tokens * width * hidden
        twice, reach = tokens + 1, RELATIVE_ROWS // 2 - 1
        paper = twice * (2 * width + 4 * width * inner + 2 * width * hidden)
        paper += 2 * twice**2 * inner + 2 * reach * twice**2
        return Cost(params, macs, paper + twice**2 / 2 + twice * inner / 2)

    def spaces(self) -> tuple[Space, ...]:
        return AUTOFORMER_TINY, AUTOFORMER_SMALL, AUTOFORMER_BASE, S4_VIT

    def designed(self) -> dict[str, Arch]:
        """DeiT, but for the relative positions."""
        return {
            name: Arch("autoformer", (Stage(64 * n, (AutoFormerBlock(n, 64, 4.0),) * 12),))
            for name, n in DEIT_HEADS.items()
        }


register(AutoFormer())


def plain_space(
    name: str, depth: tuple[int, ...], embed: tuple[int, ...], heads: tuple[int, ...], mlp: tuple[float, ...],
    head_dim: int = 64, patch_size: int = 16, family: str = "autoformer",
) -> Space:  # fmt: skip
    """AutoFormer Table 1; the evolve steps are the distances between choices."""
    dims = (
        Dim("depth", depth, step=1),
        Dim("embed_dim", embed, step=embed[1] - embed[0] if len(embed) > 1 else 0),
        Dim("num_heads", heads, step=heads[1] - heads[0] if len(heads) > 1 else 0, per_block=True),
        Dim("mlp_ratio", mlp, step=0.5, per_block=True),
        Dim("head_dim", (head_dim,)),
    )
    return Space(name, family, dims, patch_size=patch_size)


AUTOFORMER_TINY = plain_space("autoformer_tiny", (12, 13, 14), (192, 216, 240), (3, 4), (3.5, 4))
AUTOFORMER_SMALL = plain_space("autoformer_small", (12, 13, 14), (320, 384, 448), (5, 6, 7), (3, 3.5, 4))
AUTOFORMER_BASE = plain_space("autoformer_base", (14, 15, 16), (528, 576, 624), (8, 9, 10), (3, 3.5, 4))
S4_VIT = plain_space("s4_vit", (12, 13, 14), (336, 360, 384), (2, 4, 6, 8, 10, 12, 14), (3.5, 4))


def _arch(embed_dim: int, num_heads: str, mlp_ratios: Sequence[float]) -> Arch:
    blocks = (AutoFormerBlock(int(h), 64, r) for h, r in zip(num_heads.split(), mlp_ratios, strict=True))
    return Arch("autoformer", (Stage(embed_dim, tuple(blocks)),))


# The published subnets.
TINY = _arch(192, "3 3 3 3 3 3 3 3 3 3 4 3 3", (3.5, 3.5, 3, 3.5, 3, 3, 4, 4, 3.5, 4, 3.5, 4, 3.5))
SMALL = _arch(384, "6 6 5 7 5 5 5 6 6 7 7 6 7", (3, 3.5, 3, 3.5, 4, 4, 4, 4, 4, 4, 4, 3.5, 4))
BASE = _arch(576, "9 9 9 9 9 10 9 9 10 9 10 9 9 10", (3.5, 3.5, 4, 3.5, 4, 3.5, 3.5, 3, 4, 4, 3, 4, 3, 3.5))
