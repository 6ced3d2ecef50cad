"""Budgets: limits on parameters, MACs and latency, read from text and checked before anything is evaluated."""

from __future__ import annotations

import functools
import math
import random
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from decimal import ROUND_CEILING, ROUND_FLOOR, ROUND_HALF_EVEN, Decimal
from typing import Any

from s3zoo import cost
from s3zoo.arch import Arch
from s3zoo.families import FAMILIES
from s3zoo.space import Draft, Space

METRICS = ("params", "macs", "latency")  # latency in milliseconds
SUFFIXES = {"k": 3, "m": 6, "g": 9}
ENUMERABLE = 2_000  # spaces up to this size are looked through, larger ones drawn from
DRAWS = 1_000  # networks of these that are looked at before a budget counts as one that nothing meets

Price = Callable[[Arch], dict[str, float]]


@dataclass(frozen=True)
class Limit:
    """Both ends belong to the budget."""

    low: float = 0.0
    high: float = math.inf

    def __post_init__(self) -> None:
        if not 0 <= self.low <= self.high or self.high == 0 or self.low == math.inf:
            raise ValueError(f"A limit from {self.low:g} to {self.high:g} is empty; give 0 <= low <= high, high > 0.")

    def excess(self, value: float) -> float:
        """How far outside a value lies, relative to the bound it breaks; 0 inside."""
        if value > self.high:
            return value / self.high - 1
        return 1 - value / self.low if value < self.low else 0.0


@dataclass(frozen=True)
class Budget:
    """Limits by metric, for example `Budget.parse("params<=5M, 1G<=macs<=1.3G")`."""

    limits: Mapping[str, Limit] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for metric in self.limits:
            if metric not in METRICS:
                raise ValueError(f"A budget names {metric!r}, but can limit only {', '.join(METRICS)}.")
        bounded = {m: self.limits[m] for m in METRICS if m in self.limits and self.limits[m] != Limit()}
        object.__setattr__(self, "limits", bounded)

    def __hash__(self) -> int:
        return hash(tuple(self.limits.items()))

    @property
    def without_latency(self) -> Budget:
        """What it says of parameters and MACs, which are known without measuring anything."""
        return Budget({metric: limit for metric, limit in self.limits.items() if metric != "latency"})

    def allows(self, costs: Mapping[str, float]) -> bool:
        return all(limit.low <= costs[metric] <= limit.high for metric, limit in self.limits.items())

    def excess(self, costs: Mapping[str, float]) -> float:
        return sum(limit.excess(costs[metric]) for metric, limit in self.limits.items())

    @classmethod
    def parse(cls, text: str) -> Budget:
        """Reads what `str` writes, and `params=4M..6M`; several limits are separated by commas."""
        limits: dict[str, Limit] = {}
        if text.strip().lower() not in ("", "no limit"):
            for term in text.split(","):
                metric, low, high = _term(term)
                old = limits.get(metric, Limit())
                limits[metric] = Limit(max(low, old.low), min(high, old.high))
        return cls(limits)

    def __str__(self) -> str:
        terms = []
        for metric, limit in self.limits.items():
            left = f"{_number(metric, limit.low)} <= " if limit.low else ""
            terms.append(f"{left}{metric}" + (f" <= {_number(metric, limit.high)}" if limit.high < math.inf else ""))
        return ", ".join(terms) or "no limit"


_VALUE = r"(?:\d+\.?\d*|\.\d+)(?:e[+-]?\d+)?\s*[a-z]*"
_FORMS = tuple(
    re.compile(form.format(v=_VALUE), re.IGNORECASE)
    for form in (
        r"(?:(?P<low>{v})\s*(?:<=|≤))?\s*(?P<metric>[a-z]+)\s*(?:(?:<=|≤)\s*(?P<high>{v}))?",
        r"(?:(?P<high>{v})\s*(?:>=|≥))?\s*(?P<metric>[a-z]+)\s*(?:(?:>=|≥)\s*(?P<low>{v}))?",
        r"(?P<metric>[a-z]+)\s*=\s*(?P<low>{v})?\s*\.\.\s*(?P<high>{v})?",
    )
)


def _term(text: str) -> tuple[str, float, float]:
    for form in _FORMS:
        match = form.fullmatch(text.strip())
        if match and (match["low"] or match["high"]) and match["metric"].lower() in METRICS:
            metric = match["metric"].lower()
            low, high = (_read(metric, part) if part else None for part in (match["low"], match["high"]))
            return metric, 0.0 if low is None else low, math.inf if high is None else high
    raise ValueError(
        f"{text.strip()!r} is no limit of a budget; write params<=5M, 1G<=macs<=1.3G, latency<=20ms or params=4M..6M."
    )


def _read(metric: str, text: str) -> float:
    digits = text.rstrip("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ ")
    suffix = text[len(digits) :].strip().lower()
    powers = {"": 0, "ms": 0} if metric == "latency" else {"": 0, **SUFFIXES}
    if suffix in powers and math.isfinite(value := float(Decimal(digits).scaleb(powers[suffix]))):
        return value
    valid = "milliseconds (ms)" if metric == "latency" else "a number with or without K, M or G"
    raise ValueError(f"{metric} is limited by {text.strip()!r}, but must be limited by {valid}.")


def _number(metric: str, value: float, rounding: str | None = None) -> str:
    """The value with its suffix; exact, or to four digits with a direction to round in."""
    number = Decimal(repr(float(value)))
    power = 0 if metric == "latency" else max((p for p in SUFFIXES.values() if number >= 10**p), default=0)
    number = number.scaleb(-power)
    if rounding and number:
        number = number.quantize(Decimal(1).scaleb(number.adjusted() - 3), rounding)
    suffix = next((s.upper() for s, p in SUFFIXES.items() if p == power), "")
    return f"{number.normalize():f}{' ms' if metric == 'latency' else suffix}"


class Pricer:
    """The costs of an architecture at one input size, remembered by the network that it is there."""

    def __init__(
        self, img_size: int | tuple[int, int] = 224, num_classes: int = 1000, in_chans: int = 3,
        tower_dim: int = cost.TOWER_DIM, latency: Callable[[Arch], float] | None = None,
    ) -> None:  # fmt: skip
        shape = {"img_size": img_size, "num_classes": num_classes, "in_chans": in_chans, "tower_dim": tower_dim}
        self._shape: dict[str, Any] = shape
        self.latency = latency
        remember = functools.lru_cache(maxsize=2**14)
        network = remember(self._price)
        self._priced = remember(lambda arch: network(arch.effective(img_size)))

    def __call__(self, arch: Arch) -> dict[str, float]:
        return dict(self._priced(arch))

    def of_drafts(self, space: Space, metric: str) -> Callable[[Draft], int]:
        """Parameters or MACs of networks of a space that are not built: sums over tables, made when they are needed.

        A block's costs are looked up by its number, so that nothing is gained by remembering what a mutation kept.
        """
        shape = cost.shape_of(space.largest(), **self._shape)
        which, family, plans = cost.Cost._fields.index(metric), FAMILIES[space.family], space.plans
        size = (shape.height, shape.width)
        tables: list[dict[Any, tuple[int, list[int]]]] = [{} for _ in plans]
        frame = functools.lru_cache(maxsize=2**16)(lambda *widths: family.frame_cost(widths, shape)[which])

        def table(stage: int, shared: tuple[Any, ...]) -> tuple[int, list[int]]:
            width, blocks = plans[stage].blocks(shared)
            same = [family.effective(block, stage, size, shape.patch_size) for block in blocks]
            return width, [int(family.block_cost(block, width, stage, shape)[which]) for block in same]

        def price(draft: Draft) -> int:
            total, widths = 0, []
            for stage, picks in enumerate(draft.picks):
                key = plans[stage].key(draft.shared)
                found = tables[stage].get(key)
                if found is None:
                    found = tables[stage][key] = table(stage, draft.shared)
                widths.append(found[0])
                total += sum(map(found[1].__getitem__, picks))
            return total + int(frame(*widths))

        return price

    def _price(self, arch: Arch) -> dict[str, float]:
        costs: dict[str, float] = {"params": cost.params(arch, **self._shape), "macs": cost.macs(arch, **self._shape)}
        if self.latency is not None:
            costs["latency"] = self.latency(arch)
        return costs


# What a space can cost


def _one(price: Price, metric: str) -> Callable[[Arch], float]:
    return lambda arch: price(arch)[metric]


def extents(space: Space, price: Price) -> dict[str, tuple[float, float]]:
    """The lowest and the highest value of each cost in the space; of a latency, which is measured, nearly."""
    metrics = price(space.smallest())
    return {metric: space.extent(_one(price, metric), measured=metric == "latency") for metric in metrics}


class Feasible:
    """A budget as a filter on a space, and a way to draw from what passes it. Counts what it looks at."""

    PLAIN_TRIES = 50  # uniform draws first, so that the draw is uniform wherever the budget is not narrow
    STEPS = 400

    def __init__(self, space: Space, budget: Budget, price: Price) -> None:
        self.space = space
        self.budget = budget
        self.price = price
        self.checked = 0
        self.nearest: tuple[float, Arch] | None = None  # the least excess seen
        self._quick: list[tuple[Limit, Callable[[Draft], int]]] | None = None  # None: networks must be built
        if isinstance(price, Pricer) and "latency" not in budget.limits:
            self._quick = [(limit, price.of_drafts(space, metric)) for metric, limit in budget.limits.items()]

    def __call__(self, arch: Arch) -> bool:
        return self.excess(arch) == 0

    def fits(self, draft: Draft) -> bool:
        return self._excess(draft) == 0

    def excess(self, arch: Arch) -> float:
        return self._seen(self.budget.excess(self.price(arch)), lambda: arch)

    def _excess(self, draft: Draft) -> float:
        if self._quick is None:
            return self.excess(self.space.built(draft))
        excess = 0.0
        for limit, price in self._quick:
            excess += limit.excess(price(draft))
        return self._seen(excess, lambda: self.space.built(draft))

    def _seen(self, excess: float, arch: Callable[[], Arch]) -> float:
        self.checked += 1
        if self.nearest is None or excess < self.nearest[0]:
            self.nearest = (excess, arch())
        return excess

    @functools.cached_property
    def _anchors(self) -> list[Draft]:
        """The extreme networks towards which the limits push."""
        found = []
        for metric, limit in self.budget.limits.items():
            price, measured = _one(self.price, metric), metric == "latency"
            if limit.high < math.inf:
                found.append(self.space.cheapest(price, measured=measured))
            if limit.low > 0:
                found.append(self.space.dearest(price, measured=measured))
        return [self.space.draft(arch) for arch in found]

    def draw(self, rng: random.Random) -> Arch | None:
        """A random architecture within the budget, or None.

        Where uniform draws fail (a budget near the end of the range), one of them walks towards the budget by small
        mutations and by crossover with extreme architectures, never moving further away.
        """
        for _ in range(self.PLAIN_TRIES):
            draft = self.space.draw(rng)
            if (excess := self._excess(draft)) == 0:
                return self.space.built(draft)
        for _ in range(self.STEPS):
            if rng.random() < 0.5:
                child = self.space.mutated(draft, rng, p_depth=0.1, p_embed=0.1, p_block=0.1)
            else:
                child = self.space.crossed(draft, rng.choice(self._anchors), rng)
            if (moved := self._excess(child)) <= excess:
                draft, excess = child, moved
            if excess == 0:
                return self.space.built(draft)
        return None


def check_feasible(space: Space, budget: Budget, price: Price, rng: random.Random) -> Feasible:
    """The filter for a budget, or one sentence that says why the space has nothing within it."""
    if "latency" in budget.limits and "latency" not in price(space.smallest()):
        raise ValueError(f"The budget is {budget}, but latency is not measured; measure it or drop that limit.")
    feasible = Feasible(space, budget, price)
    ends = extents(space, price) if budget.limits else {}
    has = " and ".join(  # rounded inwards: what is printed is feasible
        f"{m} from {_number(m, low, ROUND_CEILING)} to {_number(m, high, ROUND_FLOOR)}"
        for m, (low, high) in ends.items()
    )
    for metric, limit in budget.limits.items():
        low, high = ends[metric]
        if metric != "latency" and (limit.high < low or limit.low > high):  # a latency's range is not exact
            raise ValueError(
                f"No architecture of space {space.name!r} is within {Budget({metric: limit})}; the space has {has}, "
                "so change the budget or the space."
            )
    small = space.size() <= ENUMERABLE
    if small and any(map(feasible, space.enumerate())):
        return feasible
    while not small and feasible.checked < DRAWS:
        if feasible.draw(rng) is not None:
            return feasible
    looked = "the whole space" if small else f"{feasible.checked} draws"
    assert feasible.nearest is not None
    nearest = price(feasible.nearest[1])
    near = ", ".join(f"{metric} {_number(metric, nearest[metric], ROUND_HALF_EVEN)}" for metric in budget.limits)
    raise ValueError(
        f"No architecture of space {space.name!r} within {budget} was found in {looked}; the nearest has {near} and "
        f"the space has {has}, so loosen the budget or change the space."
    )
