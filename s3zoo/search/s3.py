"""S3's move of a space (Alg. 1): every dimension goes where the error of its choices falls.

Asked in this order: `samples` says which networks to score; `decide` takes their errors. For each dimension the errors
are averaged by choice and a line is fitted through them; the choices shift by as many steps as its slope, over the
threshold tau, says. For example, with widths 32, 48 and 64 (step 16) at errors of 21, 20 and 19.4 percent:

    x = width / step = 2, 3, 4      slope = -0.8 points per step      tau = 0.4
    shift = -floor(-0.8 / 0.4) = 2 steps, to the widths 64, 80 and 96
"""

from __future__ import annotations

import itertools
import math
import random
from collections import Counter
from collections.abc import Callable, Collection, Hashable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from s3zoo.arch import Arch
from s3zoo.search.space_search import Decision, SpaceSearch, is_noise, options, resampled, standard_error, why_still
from s3zoo.space import Dim, Space, Value

EVEN_TRIES, TRIES = 8, 200  # draws for one sample: with shares kept even in all dimensions first, then freely
DIGITS = 9  # slopes that differ by less are equal: floor() must not turn the noise of a sum into a step


def samples(
    space: Space, n: int, rng: random.Random, feasible: Callable[[Arch], bool],
    identity: Callable[[Arch], Hashable] = lambda arch: arch,
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


def decide(
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

    rows = [_row(dim, errors, config, why_still(dim, frozen)) for dim in space.searched]
    notes = _cap_depths(space, rows, config.max_space_size)
    after = space.moved({row["name"]: row["steps"] * row["step"] for row in rows})
    for row in rows:
        row["shift"] = row["steps"] * row["step"]
        row["after"] = list(after[row["name"]].choices)
        row["dropped"] = [v + row["shift"] for v in row["before"] if v + row["shift"] not in row["after"]]
    record = {
        "method": "s3",
        "options": options(config),
        "samples": len(scored),
        "quality": _quality([error for _, error in scored], config),
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


def et_error(errors: Sequence[float], top: int, top_share: float) -> dict[str, Any]:
    """Expected error, top-tier error and their mean (S3 section 2.3)."""
    # Reading: with few samples a fixed 50 would be the whole subset, and the two errors the same.
    count = max(1, min(top, int(top_share * len(errors) + 1e-9)))
    expected = math.fsum(errors) / len(errors)
    best = math.fsum(sorted(errors)[:count]) / count
    return {"samples": len(errors), "mean": expected, "top_count": count, "top": best, "et": (expected + best) / 2}


def _quality(errors: Sequence[float], config: SpaceSearch) -> dict[str, Any]:
    return et_error(errors, config.top, config.top_share) if errors else {"samples": 0}


def _row(dim: Dim, errors: Mapping[tuple[str, Value], list[float]], config: SpaceSearch, note: str) -> dict[str, Any]:
    """One dimension: E-T error per choice, the line through them and the shift in evolve steps."""
    choices: list[dict[str, Any]] = []
    for value in dim.choices:
        subset = errors.get((dim.name, value), [])
        # Reading: x is measured in evolve steps, so that one tau serves all dimensions.
        x = value * dim.unit if not config.x_in_steps else value / dim.step if dim.step else None
        choices.append({"value": value, "x": x, **_quality(subset, config)})
    row: dict[str, Any] = {
        "name": dim.name, "step": dim.step, "unit": dim.unit, "choices": choices, "before": list(dim.choices),
        "infeasible": [c["value"] for c in choices if not c["samples"]],
        "slope": None, "slope_error": None, "intercept": None, "ratio": None, "wanted": 0, "steps": 0, "note": note,
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
    error = _slope_error(dim, errors, choices)
    row |= {"slope": slope, "slope_error": error, "intercept": mean_y - slope * mean_x, "ratio": ratio}
    row["wanted"] = -math.floor(ratio if config.rounding == "floor" else ratio + 0.5)  # Eq. 8
    if is_noise(slope, error, config):
        row["note"] = f"its slope does not exceed {config.significance:g} standard errors"
        return row
    row["steps"] = _possible_steps(dim, row["wanted"])
    if row["steps"] != row["wanted"]:
        row["note"] = f"{row['wanted']} steps would leave no choice"
    return row


def _slope_error(
    dim: Dim, errors: Mapping[tuple[str, Value], list[float]], choices: Sequence[Mapping[str, Any]]
) -> float | None:
    """The standard error of a slope: how much it differs when other networks with the same choices are sampled.

    By the bootstrap within each choice, whose share of the samples is given. A choice with one sample has none.
    """
    seen = [choice for choice in choices if choice["samples"]]
    if any(choice["samples"] < 2 for choice in seen):
        return None
    columns = []
    for choice in seen:
        drawn = np.sort(resampled(errors[dim.name, choice["value"]], f"{dim.name} {choice['value']}"), axis=1)
        columns.append((drawn.mean(1) + drawn[:, : choice["top_count"]].mean(1)) / 2)
    x = np.array([choice["x"] for choice in seen]) - np.mean([choice["x"] for choice in seen])
    return standard_error(x @ np.array(columns) / (x @ x))


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
