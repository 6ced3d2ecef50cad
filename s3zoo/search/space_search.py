"""Searching the search space: what the pure decisions of S3 (s3.py) and S4 (s4.py) share.

Who trains the supernets and scores architectures asks them what to score and, with the scores, where the space moves.
A `Decision` carries the next space and a record, ready for JSON, from which the move can be recomputed by hand.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import numpy as np

from s3zoo.checks import Count, Fields, Positive, Range, check, typed
from s3zoo.search.budget import Budget, Limit
from s3zoo.space import Dim, Space

RESAMPLES = 200  # of the bootstrap: standard errors are right within about 5 %


@dataclass(frozen=True)
class SpaceSearch:
    """How the space is searched.

    A step is the distance by which one move shifts all choices of a dimension: in S3 its evolve step (`Dim.step`, the
    paper's gamma), in S4 as `step` says (the paper's tau_k).
    """

    method: Literal["s3", "s4", "none"] = "s3"  # whose rule moves the space; "none": it stays
    # Shifts of the space (S3: 2, S4: 3), with a supernet before each and one after the last
    iterations: Annotated[int, Range(0, 1000)] = 2
    samples: Positive = 1000  # S3's N, which the paper does not print
    pairs: Positive = 40  # S4's N, per dimension
    # S3's threshold: percentage points of error per unit of x
    tau: Annotated[float, Range(0, 10**6, above=True)] = 0.4
    top: Positive = 50  # S3's top tier: the best min(top, top_share of the subset), at least one
    top_share: Annotated[float, Range(0, 1, above=True)] = 0.05  # see top
    # x in evolve "step"s or in "raw" units; "": step for S3, raw for S4 (the paper's Eq. 5)
    slope_unit: Literal["", "step", "raw"] = ""
    rounding: Literal["floor", "nearest"] = "floor"  # S3's Eq. 8; "nearest" does not grow on the slightest gain
    # S4's step of a bound: the distance of two choices, or the "span" from lowest to highest
    step: Literal["choice", "span"] = "choice"
    limit: str = ""  # written like a budget, "params<=30M" or "1G<=macs<=1.3G"; it sets the three below
    limit_metric: Literal["params", "macs"] = "params"  # of lower and upper
    lower: Annotated[float, Range(0)] = 0.0  # networks below it are not looked at
    upper: Annotated[float, Range(0)] = math.inf  # networks above it are not looked at
    max_space_size: Annotated[float, Range(1)] = math.inf  # S3's Eq. 2: at most so many architectures
    # Ours: a dimension moves only where its slope (S3) or gradient (S4) exceeds so many standard errors; 0: the papers'
    significance: Annotated[float, Range(0, 100)] = 0.0
    backtrack: bool = False  # S3: go back to the last visited space that has an architecture within the limits
    keep_illegal: bool = False  # S4: where every legal direction loses accuracy, stop even above the limit
    search_each_space: bool = False  # an architecture search after each move, not only after the last
    random_samples: Count = 0  # of each visited space, blocks drawn one by one, scored in full: S3's Figs. 3 and 6
    audit: Count = 0  # random networks finetuned and retrained, to see how well the supernet ranks (S3 Fig. 5)

    def __post_init__(self) -> None:
        if self.limit:
            limits = Budget.parse(self.limit).limits
            if len(limits) != 1:
                raise ValueError(f"limit is {self.limit!r}, but must limit one of params and macs: params<=30M, say.")
            (metric, limit), *_ = limits.items()
            for field, value in (("limit_metric", metric), ("lower", limit.low), ("upper", limit.high), ("limit", "")):
                object.__setattr__(self, field, value)
        check(self)
        if self.lower >= self.upper:
            raise ValueError(f"lower is {self.lower}, but must be below upper ({self.upper}).")
        if self.backtrack and self.method != "s3":
            raise ValueError(f"backtrack is True, but method is {self.method!r}, and only S3 leaves the limits.")

    @property
    def x_in_steps(self) -> bool:
        """Whether slopes are per step, and not per unit of the gene."""
        return (self.slope_unit or ("raw" if self.method == "s4" else "step")) == "step"

    @property
    def budget(self) -> Budget:
        """The limit."""
        return Budget({self.limit_metric: Limit(self.lower, self.upper)})

    def allows(self, cost: float) -> bool:
        return self.lower <= cost <= self.upper


_NUMBER, _CHOICES = float | None, [float | str]
_FIELDS: Fields = {
    "moved": bool, "reason": str, "space": dict, "method": str,
    "dims": [
        {"name": str, "before": _CHOICES, "after": _CHOICES, "note?": str}
        | dict.fromkeys(("slope?", "slope_error?", "z?", "z_error?"), _NUMBER)
    ],
    "options?": {"tau?": _NUMBER, "rounding?": str, "slope_unit?": str},
    "quality?": dict.fromkeys(("mean?", "top?", "et?"), _NUMBER),
    "cosine?": _NUMBER, "legal?": int, "neighbours?": int, "moving?": [str],
    "best?": [{"cosine": float, "largest": float, "direction": [int]}],
}  # fmt: skip
_S4_FIELDS: Fields = {"options": {"slope_unit": str}}
_S3_FIELDS: Fields = {"options": {"slope_unit": str, "tau": float, "rounding": str}}
_OWN_KEYS = ("moved", "reason", "space")
_OLD_KEYS = {"gamma": "direction", "tau": "step"}  # of records that were written before these names


@dataclass(frozen=True)
class Decision:
    """Where the space goes, and why."""

    space: Space  # to go on with
    moved: bool
    reason: str  # why it stays, or what is special about the move; may be empty
    record: dict[str, Any]  # how it was found, in JSON's types

    def told(self) -> str:
        """In a line for the user."""
        rows = [row for row in self.record["dims"] if row["before"] != row["after"]]
        moves = "; ".join(f"{row['name']} {row['before']} -> {row['after']}" for row in rows)
        return (moves or "stays") + (f" ({self.reason})" if self.reason else "")

    def to_dict(self) -> dict[str, Any]:
        return {**self.record, "moved": self.moved, "reason": self.reason, "space": self.space.to_dict()}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Decision:
        typed(data, _FIELDS, "")
        for row in data["dims"]:
            if row.get("slope", row.get("z")) is not None:
                typed(row, {"before": [float], "after": [float]}, "")
                typed(data, _S3_FIELDS if "slope" in row else _S4_FIELDS, "")
                if not (row["before"] and row["after"]):
                    raise ValueError(f"its dimension {row['name']!r} has no choices")
        if any(len(move["direction"]) != len(data.get("moving", ())) for move in data.get("best", ())):
            raise ValueError("a direction in 'best' is not of the dimensions in 'moving'")
        record = {_OLD_KEYS.get(key, key): value for key, value in data.items() if key not in _OWN_KEYS}
        record["dims"] = [{_OLD_KEYS.get(key, key): value for key, value in row.items()} for row in record["dims"]]
        return cls(Space.from_dict(data["space"]), data["moved"], data["reason"], record)


def options(config: SpaceSearch) -> dict[str, Any]:
    """The settings behind a decision; JSON has no infinity, so "no limit" is null."""
    found = dataclasses.asdict(config) | {"slope_unit": "step" if config.x_in_steps else "raw"}
    return {key: None if value == math.inf else value for key, value in found.items() if key != "limit"}


def standard_error(statistic: np.ndarray) -> float:
    """Of a number, from its values over `resampled` measurements."""
    return float(statistic.std(ddof=1))


def resampled(values: Sequence[float], name: str) -> np.ndarray:
    """The bootstrap: as many of the values, drawn with replacement, (RESAMPLES, values); for a name always the same."""
    rng = np.random.default_rng(list(name.encode()))
    return np.asarray(values)[rng.integers(0, len(values), (RESAMPLES, len(values)))]


def rank_correlation(a: Sequence[float], b: Sequence[float]) -> float:
    """Kendall's tau-b; 0 where it is not defined because one of the lists has a single value."""
    x, y = (np.sign(np.subtract.outer(values, values)) for values in (np.array(a), np.array(b)))  # by pairs of networks
    untied = float(np.abs(x).sum()) * float(np.abs(y).sum())
    return float((x * y).sum()) / untied**0.5 if untied else 0.0


def is_noise(number: float, error: float | None, config: SpaceSearch) -> bool:
    """Whether a slope is too small, in standard errors, to move a dimension; without an error it is not known to be."""
    return bool(config.significance) and (error is None or abs(number) <= config.significance * error)


def equivalent_dims(space: Space, img_size: int | tuple[int, int]) -> set[str]:
    """Dimensions whose choices are all the same network at this input size: windows not below the feature map."""

    def networks(dim: Dim, end: int) -> int:
        others = {other.name: other.choices[end] for other in space.dims}
        return len({space.build(others | {dim.name: choice}).effective(img_size) for choice in dim.choices})

    return {d.name for d in space.searched if len(d.choices) > 1 and networks(d, 0) == networks(d, -1) == 1}


def why_still(dim: Dim, frozen: Collection[str]) -> str:
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
