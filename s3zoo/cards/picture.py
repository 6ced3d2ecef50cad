"""The genome as SVG, written by hand so that the bytes depend on no library: a column per block, a row per gene."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any
from xml.sax.saxutils import escape

from s3zoo.arch import Arch, Block, GLiTBlock

CELL, ROW, LABEL, GAP, TOP, EDGE = 34, 24, 104, 12, 42, 12
INK, PALE, DEEP = "#1f2937", (222, 235, 250), (30, 64, 145)


def genes(block: Block) -> dict[str, int | float | None]:
    """The genes of a block by name; None where a gene has no effect, being one of an absent branch."""
    out = {f.name: getattr(block, f.name) for f in dataclasses.fields(block) if f.name != "locality"}
    if isinstance(block, GLiTBlock):
        absent = [] if block.local_heads else ["kernel_size", "expansion"]
        out |= dict.fromkeys(absent + ([] if block.global_heads else ["head_dim"]))
    return out


def feature_map(arch: Arch, stage: int, size: tuple[int, int]) -> str:
    return " x ".join(str(-(-side // (arch.patch_size * 2**stage))) for side in size)


def draw(arch: Arch, size: tuple[int, int], title: str) -> str:
    """The darker a cell, the larger the gene within its row."""
    columns = [(i, {"embed_dim": s.embed_dim, **genes(b)}) for i, s in enumerate(arch.stages) for b in s.blocks]
    values = [value for _, value in columns]
    left = [LABEL + j * CELL + i * GAP for j, (i, _) in enumerate(columns)]
    width, height = left[-1] + CELL + EDGE, TOP + ROW * len(values[0]) + EDGE
    frame = f'viewBox="0 0 {width} {height}" width="{width}" height="{height}"'
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" {frame} font-family="sans-serif" font-size="12" role="img">',
        f"<title>{escape(title)}</title>",
        f'<rect width="{width}" height="{height}" rx="8" fill="#ffffff"/>',
        *_stages(arch, left, size),
        *_rows(values, left),
        "</svg>",
    ]
    return "\n".join(lines) + "\n"


def _stages(arch: Arch, left: list[int], size: tuple[int, int]) -> Iterator[str]:
    first = 0
    for i, stage in enumerate(arch.stages):
        x, end = left[first], left[first + stage.depth - 1] + CELL
        where = feature_map(arch, i, size) if stage.depth > 1 else f"{i + 1}"
        label = where if len(arch.stages) > 1 else f"{stage.depth} blocks on {feature_map(arch, 0, size)} patches"
        yield f'<text x="{x + 1}" y="20" fill="{INK}">{label}</text>'
        yield f'<line x1="{x + 1}" y1="28" x2="{end - 1}" y2="28" stroke="{INK}" stroke-width="2"/>'
        first += stage.depth


def _rows(values: list[dict[str, Any]], left: list[int]) -> Iterator[str]:
    for r, name in enumerate(values[0]):
        y = TOP - 6 + r * ROW
        yield f'<text x="{LABEL - 8}" y="{y + 16}" text-anchor="end" fill="{INK}">{name}</text>'
        known = [v[name] for v in values if v[name] is not None]
        low, high = (min(known), max(known)) if known else (0, 0)
        for x, block in zip(left, values, strict=True):
            value = block[name]
            if value is None:
                continue
            share = (value - low) / (high - low) if high > low else 0.2
            fill = "#" + "".join(f"{round(a + (b - a) * share):02x}" for a, b in zip(PALE, DEEP, strict=True))
            box = f'x="{x + 1}" y="{y + 1}" width="{CELL - 2}" height="{ROW - 2}" rx="3"'
            ink = "#ffffff" if share > 0.5 else INK
            yield f'<rect {box} fill="{fill}"/>'
            yield f'<text x="{x + CELL // 2}" y="{y + 16}" text-anchor="middle" fill="{ink}">{value:g}</text>'
