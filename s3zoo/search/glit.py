"""GLiT's hierarchy (GLiT 3.3): the split of heads over blocks, then, with that split, the details of the blocks."""

from __future__ import annotations

from typing import Any

from s3zoo.search.context import Context, Found
from s3zoo.search.phases import score_random, search_architectures, show_space, space_row, train_supernet
from s3zoo.space import glit_details, glit_split


def search_hierarchy(context: Context) -> tuple[list[Found], list[dict[str, Any]]]:
    """What was found in the second space, and both spaces as result.json tells of them."""
    visited: list[dict[str, Any]] = []
    found: list[Found] = []
    space = glit_split(context.run.space)  # all splits into global and local heads, with plain details
    for index in range(2):
        place = context.folder / f"space{index}"
        supernet = train_supernet(context, space, place, None)
        score_random(context, supernet, place)
        # Of one split there is nothing to choose, so only several are trained; the last networks are in any case.
        train = index == 1 or context.run.final.top > 1
        found = search_architectures(context, supernet, place, controls=index == 1, train=train)
        best = found[0].networks[0]
        show_space(context, space, index)
        visited.append(space_row(context, space, index) | {"best": [best.row(context)]})
        space = glit_details(context.run.space, best.arch)
    return found, visited
