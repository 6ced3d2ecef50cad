"""Searching the search space: the decisions of S3 (Alg. 1) and S4 (section 4), as pure functions.

Who trains the supernets and scores architectures asks here what to score and, with the scores, where the space moves.
A `Decision` carries the next space and a record, ready for JSON, from which the move can be recomputed by hand.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import itertools
import math
import random
from collections import Counter
from collections.abc import Callable, Collection, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal, NamedTuple

import numpy as np

from s3zoo.arch import Arch
from s3zoo.checks import Count, Positive, Range, check
from s3zoo.space import Dim, Space, Value

MAX_S4_DIMS = 13  # 3^13 - 1 = 1.6 million neighbours, each priced
EVEN_TRIES, TRIES = 8, 200  # draws for one S3 sample: with shares kept even in all dimensions first, then freely
DIGITS = 9  # slopes that differ by less are equal: floor() must not turn the noise of a sum into a step
BEST = 5  # S4 directions shown in the record


@dataclass(frozen=True)
class SpaceSearch:
    """How the space is searched. Limits are counted in `limit_metric`: `lower` <= cost < `upper`."""

    method: Literal["s3", "s4", "none"] = "s3"
    # Shifts of the space (S3: 2, S4: 3), with a supernet before each and one after the last
    iterations: Annotated[int, Range(0, 1000)] = 2
    samples: Positive = 1000  # S3's N, which the paper does not print
    pairs: Positive = 40  # S4's N, per dimension
    # S3's threshold: percentage points of error per unit of x
    tau: Annotated[float, Range(0, 10**6, above=True)] = 0.4
    top: Positive = 50  # S3's top tier: the best min(top, top_share of the subset), at least one
    top_share: Annotated[float, Range(0, 1, above=True)] = 0.05
    # x in evolve "step"s or in "raw" units; "": step for S3, raw for S4 (the paper's Eq. 5)
    slope_unit: Literal["", "step", "raw"] = ""
    rounding: Literal["floor", "nearest"] = "floor"  # S3's Eq. 8; "nearest" does not grow on the slightest gain
    # S4's step of a bound: the distance of two choices, or the "span" from lowest to highest
    step: Literal["choice", "span"] = "choice"
    limit_metric: Literal["params", "macs"] = "params"
    lower: Annotated[float, Range(0)] = 0.0
    upper: Annotated[float, Range(0)] = math.inf
    max_space_size: Annotated[float, Range(1)] = math.inf  # S3's Eq. 2: at most so many architectures
    backtrack: bool = False  # S3: go back to the last visited space that has an architecture within the limits
    keep_illegal: bool = False  # S4: where every legal direction loses accuracy, stop even above the limit
    search_each_space: bool = False
    audit: Count = 0

    def __post_init__(self) -> None:
        check(self)
        if self.lower >= self.upper:
            raise ValueError(f"lower is {self.lower}, but must be below upper ({self.upper}).")
        if self.backtrack and self.method != "s3":
            raise ValueError(f"backtrack is True, but method is {self.method!r}, and only S3 leaves the limits.")

    @property
    def unit(self) -> str:
        return self.slope_unit or ("raw" if self.method == "s4" else "step")

    def allows(self, cost: float) -> bool:
        return self.lower <= cost < self.upper


@dataclass(frozen=True)
class Decision:
    """Where the space goes, and why."""

    space: Space  # to go on with
    moved: bool
    reason: str  # why it stays, or what is special about the move; may be empty
    record: dict[str, Any]  # how it was found, in JSON's types

    def to_dict(self) -> dict[str, Any]:
        return {**self.record, "moved": self.moved, "reason": self.reason, "space": self.space.to_dict()}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Decision:
        record = {key: value for key, value in data.items() if key not in ("moved", "reason", "space")}
        return cls(Space.from_dict(data["space"]), data["moved"], data["reason"], record)


def _options(config: SpaceSearch) -> dict[str, Any]:
    """The settings behind a decision; JSON has no infinity, so "no limit" is null."""
    options = dataclasses.asdict(config) | {"slope_unit": config.unit}
    return {key: None if value == math.inf else value for key, value in options.items()}


def equivalent_dims(space: Space, img_size: int | tuple[int, int]) -> set[str]:
    """Dimensions whose choices are all the same network at this input size: windows not below the feature map."""

    def networks(dim: Dim, end: int) -> int:
        others = {other.name: other.choices[end] for other in space.dims}
        return len({space.build(others | {dim.name: choice}).effective(img_size) for choice in dim.choices})

    return {d.name for d in space.searched if len(d.choices) > 1 and networks(d, 0) == networks(d, -1) == 1}


def _still(dim: Dim, frozen: Collection[str]) -> str:
    """Why a dimension cannot move, whatever the scores say; empty if it can."""
    if dim.name in frozen:
        return "frozen: its choices are the same network at this input size"
    return "" if len(dim.choices) > 1 else "has one choice"


def backtrack(spaces: Sequence[Space], feasible: Callable[[Space], bool]) -> int:
    """The last visited space that holds an architecture within the limits (S4 Table 5, for S3)."""
    for index in range(len(spaces) - 1, -1, -1):
        if feasible(spaces[index]):
            return index
    raise ValueError(f"None of the {len(spaces)} visited spaces has an architecture within the limits; widen them.")


# S3


def _itself(arch: Arch) -> Hashable:
    return arch


def s3_samples(
    space: Space, n: int, rng: random.Random, feasible: Callable[[Arch], bool],
    identity: Callable[[Arch], Hashable] = _itself,
) -> list[Arch]:  # fmt: skip
    """Up to `n` feasible architectures, different by `identity`, with every choice's share as even as feasibility lets.

    Reading: a gene per block has one value for all blocks of a stage. The answer is shorter than `n` where the space
    has fewer such architectures; a choice that none of them has gets a count of 0 in the decision.
    """
    found: dict[Hashable, Arch] = {}
    if math.prod(len(dim.choices) for dim in space.dims) <= 10 * n:  # few: all of them, or know that n can be drawn
        for chosen in itertools.product(*(dim.choices for dim in space.dims)):
            arch = space.build({dim.name: value for dim, value in zip(space.dims, chosen, strict=True)})
            if feasible(arch):
                found.setdefault(identity(arch), arch)
        if len(found) <= n:
            return list(found.values())
        found = {}

    counts: Counter[tuple[str, Value]] = Counter()
    # A (dimension, choice) is open until no new feasible architecture with it turns up, so the loop ends.
    open_ = {dim.name: list(dim.choices) for dim in space.dims if len(dim.choices) > 1}
    while len(found) < n and any(open_.values()):
        cells = [(name, choice) for name, choices in open_.items() for choice in choices]
        needy = min(cells, key=lambda cell: counts[cell] * len(space[cell[0]].choices))
        for values in _draws(space, needy, counts, open_, rng):
            arch = space.build(values)
            if feasible(arch) and identity(arch) not in found:
                found[identity(arch)] = arch
                counts.update(values.items())
                break
        else:
            open_[needy[0]].remove(needy[1])
    return list(found.values())


def _draws(
    space: Space, needy: tuple[str, Value], counts: Counter[tuple[str, Value]], open_: dict[str, list[Value]],
    rng: random.Random,
) -> Iterator[dict[str, Value]]:  # fmt: skip
    for attempt in range(TRIES):
        values = {}
        for dim in space.dims:
            pool: Sequence[Value] = dim.choices
            if attempt < EVEN_TRIES and open_.get(dim.name):
                least = min(counts[dim.name, choice] for choice in open_[dim.name])
                pool = [choice for choice in open_[dim.name] if counts[dim.name, choice] == least]
            values[dim.name] = rng.choice(pool)
        yield values | {needy[0]: needy[1]}


def s3_decide(
    space: Space, scored: Sequence[tuple[Arch, float]], config: SpaceSearch, *, frozen: Collection[str] = ()
) -> Decision:
    """S3's shift of every dimension (Eq. 5-8), from the errors in percent of samples within the limits."""
    if not scored:
        raise ValueError("No architecture within the limits was scored; widen lower and upper, or take more samples.")
    errors: dict[tuple[str, Value], list[float]] = {}
    for arch, error in scored:
        if not 0 <= error <= 100:
            raise ValueError(f"architecture {arch.key} has error {error}; S3 takes errors in percent, from 0 to 100.")
        for name, value in _tied_values(space, arch).items():
            errors.setdefault((name, value), []).append(error)

    rows = [_s3_row(dim, errors, config, _still(dim, frozen)) for dim in space.searched]
    notes = _cap_depths(space, rows, config.max_space_size)
    after = space.moved({row["name"]: row["steps"] * row["step"] for row in rows})
    for row in rows:
        row["shift"] = row["steps"] * row["step"]
        row["after"] = list(after[row["name"]].choices)
        row["dropped"] = [v + row["shift"] for v in row["before"] if v + row["shift"] not in row["after"]]
    record = {
        "method": "s3",
        "options": _options(config),
        "samples": len(scored),
        "quality": _et_error([error for _, error in scored], config),
        "dims": rows,
        "frozen": [row["name"] for row in rows if row["name"] in frozen],
        "size_before": space.size(),
        "size_after": after.size(),
    }
    moved = after != space
    reason = "; ".join(notes) if moved or notes else "no dimension moves"
    return Decision(after, moved, reason, record)


def _tied_values(space: Space, arch: Arch) -> dict[str, Value]:
    values = {}
    for name, value in space.values(arch).items():
        if isinstance(value, tuple):
            if len(set(value)) > 1:
                raise ValueError(
                    f"architecture {arch.key} has blocks that differ in {name}; S3's samples have one value per stage."
                )
            value = value[0]
        values[name] = value
    return values


def _et_error(errors: Sequence[float], config: SpaceSearch) -> dict[str, Any]:
    """Expected error, top-tier error and their mean (S3 section 2.3)."""
    # Reading: with few samples a fixed 50 would be the whole subset, and the two errors the same.
    count = max(1, min(config.top, int(config.top_share * len(errors) + 1e-9)))
    expected = math.fsum(errors) / len(errors)
    top = math.fsum(sorted(errors)[:count]) / count
    return {"samples": len(errors), "mean": expected, "top_count": count, "top": top, "et": (expected + top) / 2}


def _s3_row(
    dim: Dim, errors: Mapping[tuple[str, Value], list[float]], config: SpaceSearch, note: str
) -> dict[str, Any]:  # fmt: skip
    """One dimension: E-T error per choice, the line through them and the shift in evolve steps."""
    choices: list[dict[str, Any]] = []
    for value in dim.choices:
        subset = errors.get((dim.name, value), [])
        # Reading: x is measured in evolve steps, so that one tau serves all dimensions.
        x = value * dim.unit if config.unit == "raw" else value / dim.step if dim.step else None
        choices.append({"value": value, "x": x, **(_et_error(subset, config) if subset else {"samples": 0})})
    row: dict[str, Any] = {
        "name": dim.name, "step": dim.step, "unit": dim.unit, "choices": choices, "before": list(dim.choices),
        "infeasible": [c["value"] for c in choices if not c["samples"]],
        "slope": None, "intercept": None, "ratio": None, "wanted": 0, "steps": 0, "note": note,
    }  # fmt: skip
    points = [(c["x"], c["et"]) for c in choices if c["samples"]]
    if not note and not dim.step:
        row["note"] = "has no evolve step"
    elif not note and len(points) < 2:  # Reading: an infeasible choice takes no part, and one point is no line
        row["note"] = "fewer than two choices have a sample within the limits"
    if row["note"]:
        return row
    mean_x, mean_y = (math.fsum(column) / len(points) for column in zip(*points, strict=True))
    slope = math.fsum((x - mean_x) * (y - mean_y) for x, y in points) / math.fsum((x - mean_x) ** 2 for x, _ in points)
    ratio = round(slope / config.tau, DIGITS)
    row |= {"slope": slope, "intercept": mean_y - slope * mean_x, "ratio": ratio}
    row["wanted"] = -math.floor(ratio if config.rounding == "floor" else ratio + 0.5)  # Eq. 8
    row["steps"] = _possible_steps(dim, row["wanted"])
    if row["steps"] != row["wanted"]:
        row["note"] = f"{row['wanted']} steps would leave no choice"
    return row


def _possible_steps(dim: Dim, steps: int) -> int:
    """As many of the steps as leave a choice: 0 blocks or width is no network, and a dimension is never empty."""
    while steps and not any(dim.low <= v + steps * dim.step <= dim.high for v in dim.choices):
        steps -= 1 if steps > 0 else -1
    return steps


def _cap_depths(space: Space, rows: list[dict[str, Any]], cap: float) -> list[str]:
    """Take back growth until the space has at most `cap` architectures; what was taken back.

    Only deeper stages make a space larger (the other dimensions keep or lose choices), so only they are taken back:
    the steepest slope keeps its steps first.
    """

    def size() -> int:
        return space.moved({row["name"]: row["steps"] * row["step"] for row in rows}).size()

    growing = sorted(
        (row for row in rows if space[row["name"]].gene == "depth" and row["steps"] > 0), key=lambda row: row["slope"]
    )
    if size() <= cap:
        return []
    wanted = [row["steps"] for row in growing]
    for row in growing:
        row["steps"] = 0
    for row, steps in zip(growing, wanted, strict=True):
        row["steps"] = steps
        while row["steps"] and size() > cap:
            row["steps"] -= 1
        if row["steps"] < steps:
            row["note"] = f"grows by {row['steps']} of {steps} steps: max_space_size"
    over = [] if size() <= cap else [f"the space has {size()} architectures without growing, more than max_space_size"]
    return over + [f"{row['name']} {row['note']}" for row in growing if row["note"]]


# S4


class Pair(NamedTuple):
    """Two architectures that differ in one dimension alone, by `delta` in raw units."""

    dim: str
    low_arch: Arch
    high_arch: Arch
    delta: float


def s4_pairs(space: Space, n: int, rng: random.Random, *, frozen: Collection[str] = ()) -> list[Pair]:
    """`n` pairs for each dimension that can move.

    Reading: a gene per block has one value for all blocks, so that the shallower network of a pair in depth is the
    beginning of the deeper one.
    """
    pairs = []
    for dim in space.searched:
        for _ in range(0 if _still(dim, frozen) else n):
            values = {other.name: rng.choice(other.choices) for other in space.dims}
            low, high = sorted(rng.sample(dim.choices, 2))
            first, second = (space.build(values | {dim.name: value}) for value in (low, high))
            pairs.append(Pair(dim.name, first, second, (high - low) * dim.unit))
    return pairs


def s4_decide(
    space: Space, measured: Sequence[tuple[Pair, float, float]], config: SpaceSearch, price: Callable[[Arch], float],
    *, frozen: Collection[str] = (),
) -> Decision:  # fmt: skip
    """S4's move to the legal neighbour most coherent with the accuracy gradient (Eq. 2-6).

    `measured` are pairs with the accuracies (in percent) of the low and the high architecture. Of directions with the
    same cosine the one with fewer moves wins, then the first in the order of (-1, 0, 1) per dimension.
    """
    rows = [_s4_row(dim, measured, config, _still(dim, frozen)) for dim in space.searched]
    moving = [row for row in rows if not row["note"]]
    if len(moving) > MAX_S4_DIMS:
        raise ValueError(
            f"S4 prices all 3^n - 1 neighbours of a space, and {space.name!r} has n = {len(moving)} dimensions that can"
            f" move; fix some of them with one choice each (at most {MAX_S4_DIMS} may move) or use method 's3'."
        )
    z = np.array([row["z"] for row in moving], dtype=np.float64)
    gammas: np.ndarray = np.indices((3,) * len(moving), dtype=np.int8)
    gammas = gammas.reshape(len(moving), 3 ** len(moving)).T - 1  # (3^n, n)
    gammas = gammas[np.any(gammas, axis=1)]  # (3^n - 1, n)
    length = np.sqrt((gammas != 0).sum(axis=1))
    cosines = np.round(gammas @ z / (length * (np.linalg.norm(z) or 1.0)), 12)

    taus = {row["name"]: row["tau"] for row in moving}
    before = float(price(space.dearest(price)))
    sizes = _sizes(space, taus, gammas, config, price)  # NaN: no such network
    legal = (sizes >= config.lower) & (sizes < config.upper)
    inside = config.allows(before)
    relaxed = not legal.any() and not inside
    if relaxed:  # Reading: an illegal start is allowed, and goes towards the limits
        legal = sizes < before if before >= config.upper else sizes > before
    order = np.flatnonzero(legal)
    order = order[np.lexsort((length[order], -cosines[order]))]  # stable, and rows are in lexicographic order

    reason, chosen = "", None
    if not z.any():
        reason = "the gradient is zero" if moving else "no dimension can move"
    elif not order.size:
        reason = "no neighbour is legal"
    elif cosines[order[0]] < 0 and (inside or config.keep_illegal):
        reason = "every legal direction loses accuracy"
    else:
        chosen = int(order[0])
        if cosines[chosen] < 0:  # Reading: a space outside the limits is no place to stop at
            reason = "loses accuracy, to come within the limits"
    if chosen is None and not inside:
        reason += "; the largest network stays outside the limits, so the architecture search has to filter"

    gamma = [0] * len(moving) if chosen is None else gammas[chosen].tolist()
    deltas = {row["name"]: g * row["tau"] for row, g in zip(moving, gamma, strict=True)}
    after = space.moved(deltas)
    for row in rows:
        row["after"] = list(after[row["name"]].choices)
    record = {
        "method": "s4",
        "options": _options(config),
        "dims": rows,
        "frozen": [row["name"] for row in rows if row["name"] in frozen],
        "moving": list(taus),  # the order of z and gamma
        "z": z.tolist(),
        "neighbours": len(gammas),
        "legal": len(order),
        "relaxed": relaxed,
        "best": [
            {"gamma": gammas[i].tolist(), "cosine": float(cosines[i]), "largest": float(sizes[i])} for i in order[:BEST]
        ],
        "gamma": gamma,
        "cosine": None if chosen is None else float(cosines[chosen]),
        "largest_before": before,
        "largest_after": before if chosen is None else float(sizes[chosen]),
        "size_before": space.size(),
        "size_after": after.size(),
    }
    return Decision(after, chosen is not None, reason, record)


def _s4_row(
    dim: Dim, measured: Sequence[tuple[Pair, float, float]], config: SpaceSearch, note: str
) -> dict[str, Any]:  # fmt: skip
    """One dimension: its step and its part of the gradient, the mean of accuracy difference / value difference."""
    span = dim.choices[-1] - dim.choices[0]
    tau = span if config.step == "span" and span else dim.spacing
    pairs = [[pair.delta, low, high] for pair, low, high in measured if pair.dim == dim.name]
    unit = dim.unit * tau if config.unit == "step" else 1.0
    slopes = [(high - low) / delta * unit for delta, low, high in pairs]
    if not all(map(math.isfinite, slopes)):
        raise ValueError(f"the accuracies of pairs in {dim.name} are not all finite; score them again.")
    return {
        "name": dim.name, "unit": dim.unit, "tau": tau, "before": list(dim.choices), "pairs": pairs,
        "count": len(pairs), "z": math.fsum(slopes) / len(slopes) if slopes else None,
        "note": note or ("" if pairs else "has no pairs"),
    }  # fmt: skip


def _sizes(
    space: Space, taus: Mapping[str, float], gammas: np.ndarray, config: SpaceSearch, price: Callable[[Arch], float]
) -> np.ndarray:
    """The cost of the dearest network of every neighbour: all of its networks are below a limit if that one is.

    NaN where bounds are impossible or the space would break its size cap.
    """

    @functools.cache
    def architectures(deeper: tuple[tuple[str, float], ...]) -> int:  # moves of depths alone change the number
        return space.moved(dict(deeper)).size()

    room = max(config.max_space_size, space.size())
    dims = [space[name] for name in taus]
    sizes = np.full(len(gammas), math.nan)
    for i, gamma in enumerate(gammas.tolist()):
        deltas = {dim.name: g * taus[dim.name] for dim, g in zip(dims, gamma, strict=True)}
        if any(d.choices[0] + deltas[d.name] < d.low or d.choices[-1] + deltas[d.name] > d.high for d in dims):
            continue
        if architectures(tuple((d.name, deltas[d.name]) for d in dims if d.gene == "depth")) <= room:
            with contextlib.suppress(ValueError):  # no such network: more global heads than heads, say
                sizes[i] = price(space.moved(deltas).dearest(price))
    return sizes
