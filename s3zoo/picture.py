"""The genome of a network as a picture: a column per block, a row per gene, the darker the larger within its row."""

from __future__ import annotations

import dataclasses
from itertools import accumulate
from typing import Any

from s3zoo import drawing
from s3zoo.arch import Arch
from s3zoo.families import Block

CELL, ROW, LABEL, GAP, TOP, EDGE = 34, 24, 104, 12, 42, 12  # pixels: a cell, the row names, gaps and margins
CHARACTER = 7  # pixels for one, where a line is longer than its cells


def genes(block: Block) -> dict[str, int | float | None]:
    """The genes of a block by name; None where a gene has no effect, being one of an absent branch."""
    values = {f.name: getattr(block, f.name) for f in dataclasses.fields(block)}
    return {
        name: None if name in block.idle else value for name, value in values.items() if isinstance(value, int | float)
    }


def feature_map(arch: Arch, stage: int, size: tuple[int, int]) -> str:
    return " x ".join(str(-(-side // (arch.patch_size * 2**stage))) for side in size)


@drawing.style()
def draw(arch: Arch, size: tuple[int, int], title: str) -> str:
    """The picture as an SVG file for light and dark pages."""
    return drawing.svg(picture(arch, size), "genome", label=title, standalone=True)


def picture(arch: Arch, size: tuple[int, int]) -> Any:
    """The picture as a matplotlib figure."""
    from matplotlib.patches import FancyBboxPatch

    columns: list[dict[str, Any]] = [
        {"embed_dim": stage.embed_dim, **genes(block)} for stage in arch.stages for block in stage.blocks
    ]
    stage_of = [i for i, stage in enumerate(arch.stages) for _ in stage.blocks]
    left = [LABEL + j * CELL + i * GAP for j, i in enumerate(stage_of)]
    stages = []  # where each begins and ends, and what stands above it
    for i, (end, depth) in enumerate(zip(accumulate(arch.depths), arch.depths, strict=True)):
        text = feature_map(arch, i, size) if depth > 1 else f"{i + 1}"
        if len(arch.stages) == 1:
            text = f"{depth} block{'s' * (depth > 1)} on {feature_map(arch, 0, size)} patches"
        stages.append((left[end - depth], left[end - 1] + CELL, text))
    width = max(max(last, x + CHARACTER * len(text)) for x, last, text in stages) + EDGE
    height = TOP + ROW * len(columns[0]) + EDGE
    figure, ax = drawing.figure(width, height)
    figure.set_layout_engine("none")
    ax.set_position((0, 0, 1, 1))
    ax.set_xlim(0, width)
    ax.set_ylim(height, 0)
    ax.set_axis_off()
    card, ink = drawing.colour("card"), drawing.colour("ink")

    for x, last, text in stages:
        ax.text(x + 1, 20, text, size=12)
        ax.plot((x + 1, last - 1), (28, 28), color=ink, linewidth=2, clip_on=False)
    for r, name in enumerate(columns[0]):
        y = TOP - 6 + r * ROW
        ax.text(LABEL - 8, y + 16, name, size=12, horizontalalignment="right")
        known = [column[name] for column in columns if column[name] is not None]
        low, high = (min(known), max(known)) if known else (0, 0)
        for block, (x, column) in enumerate(zip(left, columns, strict=True)):
            value = column[name]
            if value is None:
                continue
            share = (value - low) / (high - low) if high > low else 0.2
            cell = FancyBboxPatch(
                (x + 4, y + 4), CELL - 8, ROW - 8, boxstyle="round,pad=3,rounding_size=3", linewidth=0,
                facecolor=drawing.colour("blue"), alpha=round(0.12 + 0.88 * share, 2), clip_on=False,
            )  # fmt: skip
            ax.add_artist(drawing.tag(cell, "cell", block=f"{block}"))
            ax.text(x + CELL / 2, y + 16, f"{value:g}", size=12, color=card if share > 0.6 else ink,
                    horizontalalignment="center")  # fmt: skip
    return figure
