"""Racing: score candidates on growing parts of the held-out images and drop those that cannot become parents.

Most images tell nothing: all networks of a supernet get them right, or all get them wrong. So the networks scored in
full so far predict each image, p_i = the share that got it right, and a candidate is first asked about the images whose
answer is uncertain. Images are ordered by priority w_i / u_i with w_i = sqrt(p_i (1 - p_i)) and u_i uniform in (0, 1),
fixed by the seed; the first n of them are a sample in which image i is with probability pi_i = min(1, w_i / t), t being
the priority of image n + 1 (priority sampling). All candidates see the same images, and

    accuracy = mean(p) + 1/N sum over the sample of (x_i - p_i) / pi_i        x_i: right or wrong

is an unbiased estimate, whose error vanishes as the sample becomes the whole.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Sequence
from typing import Any, NamedTuple

import numpy as np

from s3zoo.arch import Arch

# Which images (columns, by index) each architecture (rows) classifies rightly
Correct = Callable[[Sequence[Arch], np.ndarray], np.ndarray]


class Score(NamedTuple):
    """Accuracy in percent. One that is not `full` is an estimate and ranks below every parent."""

    accuracy: float
    full: bool
    images: int  # that were seen for it


def evaluate_plain(archs: Sequence[Arch], correct: Correct, total_images: int) -> list[Score]:
    """Every candidate on every image."""
    if not archs:
        return []
    right = correct(archs, np.arange(total_images))
    return [Score(100 * float(row.mean()), True, total_images) for row in right]


class Race:
    """Scores generations of candidates; `forwards` counts images x networks.

    A candidate is dropped when it is not among the `keep` best (of incumbents and candidates) and the percentage
    points by which it is expected to surpass the worst of them, E[max(0, difference)], are below `tolerance`.
    Estimates are not remembered; full scores are, in `known`, so that several searches in a supernet may share a race.
    """

    def __init__(
        self,
        total_images: int,
        correct: Correct,
        *,
        seed: int = 0,
        keep: int = 10,
        tolerance: float = 0.01,
        first: int | None = None,
        growth: float = 1.2,
        pilots: int = 5,
        identity: Callable[[Arch], Hashable] = lambda arch: arch,
    ) -> None:
        first = max(64, total_images // 40) if first is None else first
        if min(total_images, keep, first) < 1 or pilots < 2 or growth <= 1 or tolerance < 0:
            raise ValueError(
                f"A race got total_images {total_images}, keep {keep}, pilots {pilots}, growth {growth}, tolerance "
                f"{tolerance}, first {first}; it needs at least one image, keep >= 1, pilots >= 2, growth > 1, "
                "tolerance >= 0 and first >= 1."
            )
        self.total = total_images
        self.correct = correct
        self.keep = keep
        self.tolerance = tolerance
        self.first = first
        self.growth = growth
        self.pilots = pilots
        self.identity = identity
        self.forwards = 0
        self.known: dict[Hashable, float] = {}
        self._uniform = 1 - np.random.default_rng(seed).random(total_images)  # in (0, 1]
        self._right = np.zeros(total_images, np.int64)  # by image: how many of the references got it right
        self._references = 0

    def __call__(self, archs: Sequence[Arch], incumbents: Sequence[float] = ()) -> list[Score]:
        """Scores of one generation; `incumbents` are the full scores of the best `keep` so far."""
        scores: dict[Hashable, Score] = {}
        racers: dict[Hashable, Arch] = {}
        for arch in archs:
            identity = self.identity(arch)
            if identity in self.known:
                scores[identity] = Score(self.known[identity], True, 0)
            else:
                racers.setdefault(identity, arch)
        missing = max(0, self.pilots - self._references)  # so many are needed to predict images
        scores |= self._full(dict(list(racers.items())[:missing]))
        racers = {identity: arch for identity, arch in racers.items() if identity not in scores}
        if racers:
            scores |= self._race(racers, [*incumbents, *(score.accuracy for score in scores.values())])
        return [scores[self.identity(arch)] for arch in archs]

    def _full(self, racers: dict[Hashable, Arch]) -> dict[Hashable, Score]:
        if not racers:
            return {}
        right = self._ask(list(racers.values()), np.arange(self.total))
        return {identity: self._finish(identity, row) for identity, row in zip(racers, right, strict=True)}

    def _ask(self, archs: Sequence[Arch], images: np.ndarray) -> np.ndarray:
        right = np.asarray(self.correct(archs, images), bool)
        assert right.shape == (len(archs), len(images)), f"{right.shape} answers for {len(archs)} x {len(images)}"
        self.forwards += right.size
        return right

    def _finish(self, identity: Hashable, right: np.ndarray) -> Score:
        self._right += right
        self._references += 1
        self.known[identity] = 100 * float(right.mean())
        return Score(self.known[identity], True, self.total)

    # The race

    def _race(self, racers: dict[Hashable, Arch], exact: list[float]) -> dict[Hashable, Score]:
        predicted = self._predicted()
        spread = predicted * (1 - predicted)
        weight = np.sqrt(spread)
        priority = weight / self._uniform
        order = np.argsort(-priority, kind="stable")
        right = np.zeros((len(racers), 0), bool)  # (racers, images seen)
        names, archs = list(racers), list(racers.values())
        live = np.arange(len(racers))
        dropped: dict[int, tuple[float, int]] = {}  # estimate, images seen
        for seen in self._stages():
            right = np.concatenate([right, self._ask([archs[i] for i in live], order[right.shape[1] : seen])], axis=1)
            if seen == self.total:
                break
            chance = np.minimum(1, weight / priority[order[seen]])  # of each image to be in the sample
            sample = order[:seen]
            off = right - predicted[sample]  # (racers, images seen)
            estimate = 100 * (predicted.mean() + (off / chance[sample]).sum(1) / self.total)
            square = (1 - chance[sample]) / chance[sample] ** 2
            # With few images the variance seen may be far too small, down to 0: half of the expected one is the least.
            least = 0.5 * float((spread * (1 - chance) / chance).sum())

            bound, holder = self._bound(exact, estimate)
            own = off if holder is None else off - off[holder]
            variance = np.maximum((own**2 * square).sum(1), least if holder is None else 2 * least)
            loss = _expected_excess(estimate - bound, 100 * np.sqrt(variance) / self.total)
            stay = (loss >= self.tolerance) | (estimate >= bound)
            dropped |= {int(i): (float(e), seen) for i, e, s in zip(live, estimate, stay, strict=True) if not s}
            live, right = live[stay], right[stay]
            if not len(live):
                break
        back = np.argsort(order)
        scores = {names[i]: self._finish(names[i], row[back]) for i, row in zip(live, right, strict=True)}
        best = sorted([*exact, *(score.accuracy for score in scores.values())], reverse=True)[: self.keep]
        ceiling = best[-1] - 100 / self.total if best else 100.0  # one image below the worst parent
        return scores | {names[i]: Score(min(e, ceiling), False, seen) for i, (e, seen) in dropped.items()}

    def _predicted(self) -> np.ndarray:
        """The chance that a network gets an image right: the references' share, drawn a little towards a half.

        How far is read off the references: an image on which all others agree is dissented from by the one left out in
        a share q of cases, and unanimous images shall be predicted so.
        """
        n, right = self._references, self._right
        unanimous = int(((right == 0) | (right == n)).sum())
        single = int(((right == 1) | (right == n - 1)).sum())
        q = (single + 0.5) / (single + 0.5 + n * unanimous + 0.5)
        prior = min(0.5, n * q / max(1 - 2 * q, 0.1))
        return (right + prior) / (n + 2 * prior)

    def _stages(self) -> list[int]:
        """Sizes of the sample: a geometric sequence that ends in all images without a short last step."""
        sizes, size = [], float(self.first)
        while size * math.sqrt(self.growth) < self.total:
            sizes.append(int(size))
            size *= self.growth
        return [*sizes, self.total]

    def _bound(self, exact: list[float], estimate: np.ndarray) -> tuple[float, int | None]:
        """The accuracy of the worst of the `keep` best, and which racer has it (None: it is an exact one)."""
        ranked = sorted(
            [(-score, -1) for score in exact] + [(-float(score), i) for i, score in enumerate(estimate)],
        )
        if len(ranked) < self.keep:
            return -math.inf, None
        score, holder = ranked[self.keep - 1]
        return -score, holder if holder >= 0 else None

    # Resuming

    def state(self) -> dict[str, Any]:
        """What later races depend on besides `known`, for JSON; take it between two generations."""
        return {"forwards": self.forwards, "references": self._references, "right": self._right.tolist()}

    def restore(self, state: dict[str, Any]) -> None:
        if len(state["right"]) != self.total:
            raise ValueError(f"The race's state is of {len(state['right'])} images, but there are {self.total}.")
        self.forwards, self._references = state["forwards"], state["references"]
        self._right = np.array(state["right"], np.int64)


def _expected_excess(difference: np.ndarray, error: np.ndarray) -> np.ndarray:
    """E[max(0, d)] of a normal d."""
    u = difference / error
    density = np.exp(-(u**2) / 2) / math.sqrt(2 * math.pi)
    below = np.array([0.5 * math.erfc(-x / math.sqrt(2)) for x in u])
    return error * (density + u * below)
