"""CLIP ladder: S4's decoder beside a frozen CLIP tower.

The decoder is priced (a bottleneck, no gate); the tower's own cost is left out: it is the same for every decoder.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from s3zoo.arch import Arch, Stage
from s3zoo.families import AttentionBlock, Cost, Family, Shape, register
from s3zoo.families.autoformer import plain_space
from s3zoo.families.parts import attention, grid, head, mlp
from s3zoo.space import Space


class LadderBlock(AttentionBlock):
    """A decoder layer: a query reads the features of a frozen tower; the stage's width is the ladder's bottleneck."""


class Ladder(Family):
    name = "ladder"
    block = LadderBlock
    patch_size = 16
    stages = 1
    reads_tower = True
    model = "s3zoo.models.ladder:Ladder"
    entrypoint = "clip_ladder"
    title = "CLIP ladder"
    summary = "CLIP ladder: a side-tuning decoder on a frozen CLIP encoder"
    found = "S4's decoder before any search."
    source = "s4"
    colour = "slate"
    marker = "P"

    def frame_cost(self, widths: tuple[int, ...], shape: Shape) -> Cost:
        dim = shape.tower_dim
        macs = dim * shape.num_classes
        return Cost(3 * dim + head(dim, shape), macs, macs)  # query, norm, classifier

    def block_cost(self, block: Any, width: int, stage: int, shape: Shape) -> Cost:
        """Keys, values and the ladder run on every token of the tower, the rest on the query alone."""
        dim, tokens, inner = shape.tower_dim, grid(self.name, shape) + 1, block.qkv_dim
        hidden = int(dim * block.mlp_ratio)
        params = 6 * dim + 2 * dim * width + width + dim + attention(dim, inner) + mlp(dim, hidden)
        macs = 2 * tokens * (dim * width + dim * inner + inner) + 2 * dim * (inner + hidden)
        return Cost(params, macs, macs)

    def priced(self, model_args: Mapping[str, Any]) -> bool:
        return model_args.get("ladder", "bottleneck") == "bottleneck" and not model_args.get("gate")

    def spaces(self) -> tuple[Space, ...]:
        return (S4_CLIP,)

    def designed(self) -> dict[str, Arch]:
        return {"S4's decoder before any search": BASE}


register(Ladder())

S4_CLIP = plain_space("s4_clip", (3, 4), (336, 360, 384), (2, 4, 6, 8, 10, 12, 14), (3.5, 4), family="ladder")
BASE = Arch("ladder", (Stage(384, (LadderBlock(num_heads=12, head_dim=64, mlp_ratio=4.0),) * 4),))
