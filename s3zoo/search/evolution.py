"""Evolution and random search over a space by ask and tell: no model, no data, no clock, no hidden randomness.

The questions of generation g are a function of the seed, g and the scores told before. So a search that is told the
same scores asks the same questions, and resuming is replaying: telling it the scores that are already known.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from dataclasses import KW_ONLY, dataclass

from s3zoo.arch import Arch
from s3zoo.space import Draft, Space

ENUMERABLE = 10_000  # spaces up to this size are searched to the last architecture

Scored = tuple[Arch, float, Mapping[str, float]]  # architecture, score, costs


@dataclass(eq=False)
class Evolution:
    """S3 supplement, Alg. 2: random candidates first, then crossover and mutation of the best of all evaluated so far.

    `feasible` is the budget, `draw` a random architecture within it (None if it found none; default: a uniform draw),
    `identity` what makes two architectures the same network, for example `lambda a: a.effective(img_size)`.
    After `max_tries` children in a row outside the budget or known, the rest of the generation is drawn at random.
    The settings are those of `search.config.ArchSearch`, which checks them.
    """

    space: Space
    _: KW_ONLY
    seed: int
    feasible: Callable[[Arch], bool] = lambda arch: True
    draw: Callable[[random.Random], Arch | None] | None = None
    identity: Callable[[Arch], Hashable] = lambda arch: arch
    population: int = 50
    generations: int = 20
    parents: int = 10
    crossover: int = 25
    mutation: int = 25
    p_depth: float = 0.2
    p_embed: float = 0.2
    p_block: float = 0.4
    max_tries: int = 200

    def __post_init__(self) -> None:
        self.evaluated: dict[Arch, float] = {}  # in the order in which they were asked for
        self.history: list[dict[str, float]] = []  # one row per generation: scores, and how many were drawn in vain
        self._known: set[Hashable] = set()  # identities asked for, ever
        self._asked: dict[Hashable, Arch] = {}  # the generation under way
        self._told: dict[Hashable, float] = {}
        self._vain = {"outside": 0, "repeated": 0}
        self._over = False

    # Asking

    def ask(self) -> list[Arch]:
        """The next generation, or what is still to be told of the current one; [] when the search is over."""
        if not self._asked and not self._over:
            self._vain = dict.fromkeys(self._vain, 0)
            self._next(random.Random(f"{self.seed}/{len(self.history)}"))
            self._over = not self._asked  # nothing new is left in the space
        return [arch for identity, arch in self._asked.items() if identity not in self._told]

    def _next(self, rng: random.Random) -> None:
        for count, breed in self._breeders(rng):
            self._fill(min(len(self._asked) + count, self.population), breed)
        draw = self.draw or self.space.sample
        self._fill(self.population, lambda: draw(rng))
        if len(self._asked) < self.population and self.space.size() <= ENUMERABLE:
            rest = list(self.space.enumerate())
            rng.shuffle(rest)
            for arch in rest:
                if len(self._asked) < self.population:
                    self._add(arch)

    def _breeders(self, rng: random.Random) -> Iterator[tuple[int, Callable[[], Draft]]]:
        parents = [self.space.draft(arch) for arch, _ in self.top(self.parents)]
        rates = {"p_depth": self.p_depth, "p_embed": self.p_embed, "p_block": self.p_block}

        def crossed() -> Draft:
            first, second = rng.sample(parents, 2)
            return self.space.crossed(first, second, rng)

        if len(parents) > 1:
            yield self.crossover, crossed
        if parents:
            yield self.mutation, lambda: self.space.mutated(rng.choice(parents), rng, **rates)

    def _fill(self, size: int, make: Callable[[], Arch | Draft | None]) -> None:
        """Add what `make` gives until the generation has this size, or `max_tries` in a row were in vain."""
        misses = 0
        while len(self._asked) < size and misses < self.max_tries:
            arch = make()
            misses = 0 if arch is not None and self._add(arch) else misses + 1

    def _add(self, found: Arch | Draft) -> bool:
        """A draft is built when it is known to be within the budget, where that can be told before."""
        if isinstance(found, Draft) and hasattr(self.feasible, "fits") and not self.feasible.fits(found):
            self._vain["outside"] += 1
            return False
        arch = self.space.built(found) if isinstance(found, Draft) else found
        identity = self.identity(arch)
        if identity in self._known:
            self._vain["repeated"] += 1
            return False
        if not self.feasible(arch):
            self._vain["outside"] += 1
            return False
        self._known.add(identity)
        self._asked[identity] = arch
        return True

    # Telling

    def tell(self, scores: Iterable[tuple[Arch, float]]) -> None:
        """Scores (higher is better) of architectures that were asked for, in any order and in any portions."""
        for arch, score in scores:
            identity = self.identity(arch)
            if identity not in self._asked:
                raise ValueError(f"architecture {arch.key} was not asked for; tell the scores of what ask() gave.")
            if not math.isfinite(score):
                raise ValueError(f"the score of architecture {arch.key} is {score}; it must be a finite number.")
            self._told[identity] = float(score)
        if self._asked and len(self._told) == len(self._asked):
            self.evaluated |= {arch: self._told[identity] for identity, arch in self._asked.items()}
            mean = math.fsum(self._told.values()) / len(self._told)
            self.history.append({"best": self.best[1], "mean": mean, "size": len(self._told), **self._vain})
            self._asked, self._told = {}, {}
            self._over = len(self.history) == self.generations

    # The result

    def top(self, count: int) -> list[tuple[Arch, float]]:
        """The best of all evaluated; equal scores in the order of their keys."""
        return sorted(self.evaluated.items(), key=lambda item: (-item[1], item[0].key))[:count]

    @property
    def best(self) -> tuple[Arch, float]:
        if not self.evaluated:
            raise ValueError("Nothing is evaluated yet; there is no best architecture.")
        return self.top(1)[0]


class RandomSearch(Evolution):
    """The baseline at equal evaluations: every generation is drawn at random."""

    def _breeders(self, rng: random.Random) -> Iterator[tuple[int, Callable[[], Draft]]]:
        return iter(())


def pareto(records: Iterable[Scored], cost_key: str) -> list[Scored]:
    """The records that no other beats in score at the same or a lower cost, from cheap to dear.

    Of equal ones (score and cost) the one with the first key stays. Give fully evaluated records only.
    """
    front: list[Scored] = []
    for record in sorted(records, key=lambda r: (r[2][cost_key], -r[1], r[0].key)):
        if not front or record[1] > front[-1][1]:
            front.append(record)
    return front
