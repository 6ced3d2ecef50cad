"""S4's move of a space (section 4): among the neighbours whose networks all fit the limit, the one uphill.

Asked in this order: `pairs` says which networks to score; `decide` takes their accuracies. The gradient z has, for each
dimension, the mean gain in accuracy per unit of its value. A neighbour of the space moves every dimension by -1, 0 or 1
of its steps; of those within the limit the one with the highest cosine to z is next.
"""

from __future__ import annotations

import contextlib
import functools
import math
import random
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from s3zoo.arch import Arch
from s3zoo.search.space_search import Decision, SpaceSearch, is_noise, options, resampled, standard_error, why_still
from s3zoo.space import Dim, Space

MAX_DIMS = 13  # 3^13 - 1 = 1.6 million neighbours, each priced
BEST = 5  # directions shown in the record


class Pair(NamedTuple):
    """Two architectures that differ in one dimension alone, by `delta` in raw units."""

    dim: str
    low_arch: Arch
    high_arch: Arch
    delta: float


def pairs(space: Space, n: int, rng: random.Random, *, frozen: Collection[str] = ()) -> list[Pair]:
    """`n` pairs for each dimension that can move.

    Reading: a gene per block has one value for all blocks, so that the shallower network of a pair in depth is the
    beginning of the deeper one.
    """
    found = []
    for dim in space.searched:
        for _ in range(0 if why_still(dim, frozen) else n):
            values = {other.name: rng.choice(other.choices) for other in space.dims}
            low, high = sorted(rng.sample(dim.choices, 2))
            first, second = (space.build(values | {dim.name: value}) for value in (low, high))
            found.append(Pair(dim.name, first, second, (high - low) * dim.unit))
    return found


def decide(
    space: Space, measured: Sequence[tuple[Pair, float, float]], config: SpaceSearch, price: Callable[[Arch], float],
    *, frozen: Collection[str] = (),
) -> Decision:  # fmt: skip
    """S4's move to the legal neighbour most coherent with the accuracy gradient (Eq. 2-6).

    `measured` are pairs with the accuracies (in percent) of the low and the high architecture. Of directions with the
    same cosine the one with fewer moves wins, then the first in the order of (-1, 0, 1) per dimension.
    """
    rows = [_row(dim, measured, config, why_still(dim, frozen)) for dim in space.searched]
    moving = [row for row in rows if not row["note"]]
    if len(moving) > MAX_DIMS:
        raise ValueError(
            f"S4 prices all 3^n - 1 neighbours of a space, and {space.name!r} has n = {len(moving)} dimensions that can"
            f" move; fix some of them with one choice each (at most {MAX_DIMS} may move) or use method 's3'."
        )
    # A component that is noise counts as 0: such a dimension moves only where the limit demands it.
    z = np.array([0.0 if is_noise(row["z"], row["z_error"], config) else row["z"] for row in moving], dtype=np.float64)
    directions: np.ndarray = np.indices((3,) * len(moving), dtype=np.int8)
    directions = directions.reshape(len(moving), 3 ** len(moving)).T - 1  # (3^n, n)
    directions = directions[np.any(directions, axis=1)]  # (3^n - 1, n): the paper's gammas
    length = np.sqrt((directions != 0).sum(axis=1))
    cosines = np.round(directions @ z / (length * (np.linalg.norm(z) or 1.0)), 12)

    steps = {row["name"]: row["step"] for row in moving}
    before = float(price(space.dearest(price)))
    sizes = _sizes(space, steps, directions, config, price)  # NaN: no such network
    legal = (sizes >= config.lower) & (sizes <= config.upper)
    inside = config.allows(before)
    relaxed = not legal.any() and not inside
    if relaxed:  # Reading: an illegal start is allowed, and goes towards the limits
        legal = sizes < before if before > config.upper else sizes > before
    order = np.flatnonzero(legal)
    order = order[np.lexsort((length[order], -cosines[order]))]  # stable, and rows are in lexicographic order

    reason, chosen = "", None
    if not z.any():
        zero = "the gradient is zero" if not config.significance else "no component of the gradient is significant"
        reason = zero if moving else "no dimension can move"
    elif not order.size:
        reason = "no neighbour is legal"
    elif cosines[order[0]] < 0 and (inside or config.keep_illegal):
        reason = "every legal direction loses accuracy"
    elif cosines[order[0]] == 0 and inside and config.significance:  # only what is noise would move
        reason = "no legal direction gains accuracy beyond its error"
    else:
        chosen = int(order[0])
        if cosines[chosen] < 0:  # Reading: a space outside the limits is no place to stop at
            reason = "loses accuracy, to come within the limits"
    if chosen is None and not inside:
        reason += "; the largest network stays outside the limits, so the architecture search has to filter"

    direction = [0] * len(moving) if chosen is None else directions[chosen].tolist()
    deltas = {row["name"]: sign * row["step"] for row, sign in zip(moving, direction, strict=True)}
    after = space.moved(deltas)
    for row in rows:
        row["after"] = list(after[row["name"]].choices)
    record = {
        "method": "s4",
        "options": options(config),
        "dims": rows,
        "frozen": [row["name"] for row in rows if row["name"] in frozen],
        "moving": list(steps),  # the order of z and of directions
        "z": z.tolist(),
        "neighbours": len(directions),
        "legal": len(order),
        "relaxed": relaxed,
        "best": [
            {"direction": directions[i].tolist(), "cosine": float(cosines[i]), "largest": float(sizes[i])}
            for i in order[:BEST]
        ],
        "direction": direction,
        "cosine": None if chosen is None else float(cosines[chosen]),
        "largest_before": before,
        "largest_after": before if chosen is None else float(sizes[chosen]),
        "size_before": space.size(),
        "size_after": after.size(),
    }
    return Decision(after, chosen is not None, reason, record)


def _row(dim: Dim, measured: Sequence[tuple[Pair, float, float]], config: SpaceSearch, note: str) -> dict[str, Any]:
    """One dimension: its step and its part of the gradient, the mean of accuracy difference / value difference."""
    span = dim.choices[-1] - dim.choices[0]
    step = span if config.step == "span" and span else dim.spacing
    own = [[pair.delta, low, high] for pair, low, high in measured if pair.dim == dim.name]
    scale = dim.unit * step if config.x_in_steps else 1.0
    slopes = [(high - low) / delta * scale for delta, low, high in own]
    if not all(map(math.isfinite, slopes)):
        raise ValueError(f"the accuracies of pairs in {dim.name} are not all finite; score them again.")
    return {
        "name": dim.name, "unit": dim.unit, "step": step, "before": list(dim.choices), "pairs": own,
        "count": len(own), "z": math.fsum(slopes) / len(slopes) if slopes else None,
        "z_error": standard_error(resampled(slopes, dim.name).mean(1)) if len(slopes) > 1 else None,
        "note": note or ("" if own else "has no pairs"),
    }  # fmt: skip


def _sizes(
    space: Space, steps: Mapping[str, float], directions: np.ndarray, config: SpaceSearch,
    price: Callable[[Arch], float],
) -> np.ndarray:  # fmt: skip
    """The cost of the dearest network of every neighbour: all of its networks are below a limit if that one is.

    NaN where bounds are impossible or the space would break its size cap.
    """

    @functools.cache
    def architectures(deeper: tuple[tuple[str, float], ...]) -> int:  # moves of depths alone change the number
        return space.moved(dict(deeper)).size()

    room = max(config.max_space_size, space.size())
    dims = [space[name] for name in steps]
    sizes = np.full(len(directions), math.nan)
    for i, direction in enumerate(directions.tolist()):
        deltas = {dim.name: sign * steps[dim.name] for dim, sign in zip(dims, direction, strict=True)}
        if any(d.choices[0] + deltas[d.name] < d.low or d.choices[-1] + deltas[d.name] > d.high for d in dims):
            continue
        if architectures(tuple((d.name, deltas[d.name]) for d in dims if d.gene == "depth")) <= room:
            with contextlib.suppress(ValueError):  # no such network: more global heads than heads, say
                sizes[i] = price(space.moved(deltas).dearest(price))
    return sizes
