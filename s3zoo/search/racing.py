"""Racing: score candidates on growing parts of the held-out images and drop those that cannot become parents.

Most images tell nothing: all networks of a supernet get them right, or all get them wrong. So the networks scored in
full so far (the references) predict each image, p_i = the share that got it right, and a candidate is first asked about
the images whose answer is uncertain. Images are ordered by priority w_i / u_i with w_i = sqrt(p_i (1 - p_i)) and u_i
uniform in (0, 1), fixed by the seed; the first n of them are a sample in which image i is with probability
pi_i = min(1, w_i / t), t being the priority of image n + 1 (priority sampling). All candidates see the same images, and

    accuracy = mean(q) + 1/N sum over the sample of (x_i - q_i) / pi_i        x_i: right or wrong

estimates a candidate's accuracy for any prediction q, with an error that vanishes as the sample becomes the whole and
is the smaller, the better q is.

A worked example, with q = p. Of five images the references predict, and the seed draws:

    image             1      2      3      4      5
    p             0.98   0.90   0.50   0.50   0.02     mean 0.58: what is expected of a network not yet seen
    w             0.14   0.30   0.50   0.50   0.14
    u             0.70   0.60   0.40   0.50   0.90
    w / u         0.20   0.50   1.25   1.00   0.16     so they are asked in the order 3, 4, 2, 1, 5

A candidate gets image 3 right. The next priority is t = 1, so pi_3 = 0.5 / 1: image 3 stands for two like it, and

    accuracy = 0.58 + 1/5 (1 - 0.5) / 0.5 = 0.78            (0.38 if it had been wrong)

It gets image 4 wrong. Now t = 0.5, pi_3 = pi_4 = 1: both were certain to be asked, and stand for themselves alone:

    accuracy = 0.58 + 1/5 ((1 - 0.5) / 1 + (0 - 0.5) / 1) = 0.58

Images 1, 2 and 5 were not asked; that their answers are taken from the references costs little, as these agree on them.
The 1 / pi make the estimate right on average: an image that is asked half the time counts twice when it is.

Relatives err alike, so a better prediction than p is q_i = p_i + sum over references of b_r (x_ri - p_i): a candidate
that has agreed with reference r where r surprised (x_ri - p_i is large) probably does so on images not asked, too.
Ridge regression on the sample gives the b_r.
"""

from __future__ import annotations

import base64
import math
from collections.abc import Callable, Hashable, Sequence
from dataclasses import KW_ONLY, dataclass
from typing import Any, NamedTuple

import numpy as np

from s3zoo.arch import Arch

RELATIVES = 100  # references, the best ones, among whom relatives of a candidate are looked for
GROWTH = 1.2  # of the sample, from one decision to the next

# Which images (columns, by index) each architecture (rows) classifies rightly
Correct = Callable[[Sequence[Arch], np.ndarray], np.ndarray]


class Score(NamedTuple):
    """Accuracy in percent. One that is not `full` is an estimate and ranks below every parent."""

    accuracy: float
    full: bool
    images: int  # that were seen for it


@dataclass(eq=False)
class Race:
    """Scores generations of candidates; `forwards` counts images x networks.

    A candidate is dropped when it is not among the `keep` best (of incumbents and candidates) and the percentage
    points by which it is expected to surpass the worst of them, E[max(0, difference)], are below `tolerance`.
    Estimates are not remembered; full scores are, in `known`, so that several searches in a supernet may share a race.
    Where several processes race on the same answers, `agreed` gives all of them the first one's decision: sums may
    differ in the last bit between machines.
    """

    total_images: int
    correct: Correct
    _: KW_ONLY
    seed: int = 0
    keep: int = 10
    tolerance: float = 0.03
    first: int = 0  # images of the first sample; 0: 1 of 40, but at least 64
    pilots: int = 5  # networks scored in full before images can be predicted
    identity: Callable[[Arch], Hashable] = lambda arch: arch
    agreed: Callable[[Any], Any] = lambda value: value

    def __post_init__(self) -> None:
        assert min(self.total_images, self.keep) >= 1 and self.pilots >= 2
        self.forwards = 0
        self.known: dict[Hashable, float] = {}
        self._uniform = 1 - np.random.default_rng(self.seed).random(self.total_images)  # in (0, 1]
        self._references: dict[Hashable, np.ndarray] = {}  # which images each network that saw all of them got right

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
        missing = max(0, self.pilots - len(self._references))  # so many are needed to predict images
        scores |= self._full(dict(list(racers.items())[:missing]))
        racers = {identity: arch for identity, arch in racers.items() if identity not in scores}
        if racers:
            scores |= self._race(racers, [*incumbents, *(score.accuracy for score in scores.values())])
        return [scores[self.identity(arch)] for arch in archs]

    def _full(self, racers: dict[Hashable, Arch]) -> dict[Hashable, Score]:
        if not racers:
            return {}
        right = self._ask(list(racers.values()), np.arange(self.total_images))
        return {identity: self._finish(identity, row) for identity, row in zip(racers, right, strict=True)}

    def _ask(self, archs: Sequence[Arch], images: np.ndarray) -> np.ndarray:
        right = np.asarray(self.correct(archs, images), bool)
        assert right.shape == (len(archs), len(images)), f"{right.shape} answers for {len(archs)} x {len(images)}"
        self.forwards += right.size
        return right

    def _finish(self, identity: Hashable, right: np.ndarray) -> Score:
        self._references[identity] = right
        self.known[identity] = 100 * float(right.mean())
        return Score(self.known[identity], True, self.total_images)

    # The race

    def _race(self, racers: dict[Hashable, Arch], exact: list[float]) -> dict[Hashable, Score]:
        sampling = _Sampling(np.stack(list(self._references.values())), self._uniform)
        right: np.ndarray = np.zeros((len(racers), 0), bool)  # (racers, images seen)
        names, archs = list(racers), list(racers.values())
        live: np.ndarray = np.arange(len(racers))
        dropped: dict[int, tuple[float, int]] = {}  # estimate, images seen
        for seen in self._stages():
            asked = sampling.order[right.shape[1] : seen]
            right = np.concatenate([right, self._ask([archs[i] for i in live], asked)], axis=1)
            if seen == self.total_images:
                break
            estimate, variance = sampling.estimates(right)
            bound, holder = self._bound(exact, estimate)
            loss = _expected_excess(estimate - bound, np.sqrt(variance(holder)))
            estimate, stay = self.agreed((estimate, (loss >= self.tolerance) | (estimate >= bound)))
            dropped |= {int(i): (float(e), seen) for i, e, s in zip(live, estimate, stay, strict=True) if not s}
            live, right = live[stay], right[stay]
            if not len(live):
                break
        back = np.argsort(sampling.order)
        scores = {names[i]: self._finish(names[i], row[back]) for i, row in zip(live, right, strict=True)}
        best = sorted([*exact, *(score.accuracy for score in scores.values())], reverse=True)[: self.keep]
        ceiling = best[-1] - 100 / self.total_images if best else 100.0  # one image below the worst parent
        return scores | {names[i]: Score(min(e, ceiling), False, seen) for i, (e, seen) in dropped.items()}

    def _stages(self) -> list[int]:
        """Sizes of the sample: a geometric sequence that ends in all images without a short last step."""
        sizes, size = [], float(self.first or max(64, self.total_images // 40))
        while size * math.sqrt(GROWTH) < self.total_images:
            sizes.append(int(size))
            size *= GROWTH
        return [*sizes, self.total_images]

    def _bound(self, exact: list[float], estimate: np.ndarray) -> tuple[float, int | None]:
        """The accuracy of the worst of the `keep` best, and which racer has it (None: it is an exact one)."""
        ranked = sorted([(-score, -1) for score in exact] + [(-float(score), i) for i, score in enumerate(estimate)])
        if len(ranked) < self.keep:
            return -math.inf, None
        score, holder = ranked[self.keep - 1]
        return -score, holder if holder >= 0 else None

    # Resuming

    def answers(self, identity: Hashable) -> str:
        """What to keep of a network with a full score, for JSON: later races depend on it. See `remember`."""
        return packed(self._references[identity])

    def remember(self, identity: Hashable, answers: str) -> None:
        """Take over a full score of an earlier race of the same images, in the order in which they were made."""
        self._finish(identity, unpacked(answers, self.total_images))


def packed(right: np.ndarray) -> str:
    """Right or wrong, as text for JSON."""
    return base64.b85encode(np.packbits(right).tobytes()).decode()


def unpacked(text: str, count: int) -> np.ndarray:
    try:
        bits = np.frombuffer(base64.b85decode(text), np.uint8)
    except ValueError:
        raise ValueError("The recorded answers of a network are not what s3zoo writes; give another --out.") from None
    if len(bits) != -(-count // 8):
        raise ValueError(
            f"The recorded answers of a network are of {8 * len(bits)} images, but there are {count}; give another"
            " --out."
        )
    return np.unpackbits(bits, count=count).astype(bool)


class _Sampling:
    """The order of images, and estimates of accuracies from the first of them, given what the references answered."""

    def __init__(self, references: np.ndarray, uniform: np.ndarray) -> None:
        self.predicted = _predicted(references.sum(0), len(references))
        self.spread = self.predicted * (1 - self.predicted)
        self.weight = np.sqrt(self.spread)
        self.priority = self.weight / uniform
        self.order = np.argsort(-self.priority, kind="stable")
        best = np.argsort(-references.mean(1), kind="stable")[:RELATIVES]
        self.others = references[best] - self.predicted  # (references, images)

    def estimates(self, right: np.ndarray) -> tuple[np.ndarray, Callable[[int | None], np.ndarray]]:
        """Estimated accuracies in percent of candidates, and a function that gives their variances.

        `right` has a row for each candidate: its answers to the first images of the order. The function takes None for
        the variance of each accuracy, or the number of a candidate for that of the difference from its accuracy: two
        candidates see the same images, so what they have in common cancels.
        """
        total, seen = len(self.order), right.shape[1]
        chance = np.minimum(1, self.weight / self.priority[self.order[seen]])  # of each image to be in the sample
        sample = self.order[:seen]
        off = right - self.predicted[sample]  # (racers, images seen)
        # Terms of the variance of a sum over a Poisson sample; where the chance is 1 there is none.
        square = (100 / total / chance[sample]) ** 2 * (1 - chance[sample])
        unsure = max(int((square > 0).sum()), 1)
        plain = float((off**2 @ square).mean())
        # b = (A diag(square) A' + ridge)^-1 A diag(square) off, with A the references' surprises on the sample: least
        # squares with the weights of the variance to be made small. Before any image is seen, each b_r is expected to
        # be of the order 1 / references: that fixes the strength of the ridge, in units of the noise.
        others = self.others[:, sample]
        gram = (others * square) @ others.T
        ridge = gram + (len(others) * plain / unsure + 1e-12) * np.eye(len(others))
        solved = np.linalg.solve(ridge, others * square)  # (references, images seen)
        coefficients = off @ solved.T  # (racers, references)
        # Residuals with the image itself left out of the fit (the diagonal of the hat matrix): a prediction that has
        # seen the answer would make the estimate biased.
        rest = (off - coefficients @ others) / (1 - (solved * others).sum(0))
        mean = self.predicted.mean() + coefficients @ self.others.mean(1)
        estimate = 100 * (mean + (rest / chance[sample]).sum(1) / total)
        # With few images the variance seen may be far too small, down to 0: a quarter of what is expected without any
        # relatives is the least.
        least = 0.25 * float((self.spread * (1 - chance) / chance).sum()) * (100 / total) ** 2

        def variance(holder: int | None) -> np.ndarray:
            own = rest if holder is None else rest - rest[holder]
            return np.maximum(own**2 @ square, least if holder is None else 2 * least)

        return estimate, variance


def _predicted(right: np.ndarray, n: int) -> np.ndarray:
    """The chance that a network gets an image right: the share of the n references, drawn a little towards a half.

    If all references are right, the chance is not 1 but 1 - q, and q can be read off the references: leave each out in
    turn; of the images on which all the others agree, it disagrees with them on a share q (counting from 0.5, so that
    it is neither 0 nor 1). With right = n, (right + prior) / (n + 2 prior) is 1 - q if prior = n q / (1 - 2 q). For
    example, with n = 10 references, 900 images unanimous and 30 with one dissenter: q = 30.5 / (30.5 + 10 * 900.05)
    = 0.34 %, prior = 0.034, and unanimity means 0.9966 instead of 1.
    """
    unanimous = int(((right == 0) | (right == n)).sum())
    single = int(((right == 1) | (right == n - 1)).sum())
    q = (single + 0.5) / (single + 0.5 + n * unanimous + 0.5)
    prior = min(0.5, n * q / max(1 - 2 * q, 0.1))
    return (right + prior) / (n + 2 * prior)


def _expected_excess(difference: np.ndarray, error: np.ndarray) -> np.ndarray:
    """E[max(0, d)] of a normal d."""
    u = difference / error
    density = np.exp(-(u**2) / 2) / math.sqrt(2 * math.pi)
    below = np.array([0.5 * math.erfc(-x / math.sqrt(2)) for x in u])
    return error * (density + u * below)
