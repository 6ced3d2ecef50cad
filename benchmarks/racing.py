"""Racing against full evaluation, on recorded answers of a CIFAR-10 supernet's subnets.

    python benchmarks/racing.py

The candidates are those that a search with full evaluation asks for, generation by generation; the race orders the
images anew with every seed. benchmarks/record_correctness.py recorded the answers.
"""

import argparse
import statistics
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from record_correctness import read

from s3zoo.arch import Arch
from s3zoo.search.racing import Race, Score


class Outcome(NamedTuple):
    lost: float  # points of accuracy by which the race's winner is below the best
    share: float  # of the image forwards of full evaluation


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--orders", type=int, default=20)
    arguments = parser.parse_args()
    generations, right = read()
    accuracy = 100 * right.mean(1)
    print(
        f"{len(right)} networks on {right.shape[1]} images: {accuracy.min():.2f} to {accuracy.max():.2f} %,"
        f" standard deviation {accuracy.std():.2f} points"
    )
    outcomes = [raced(generations, right, order) for order in range(arguments.orders)]
    close = sum(outcome.lost <= 0.1 for outcome in outcomes)
    shares = [outcome.share for outcome in outcomes]
    print(f"the race's winner is within 0.1 point in {close} of {len(outcomes)} orders, at most", end=" ")
    print(f"{max(outcome.lost for outcome in outcomes):.2f} below the best")
    print(f"share of the image forwards: mean {statistics.fmean(shares):.3f}, largest {max(shares):.3f}")


def raced(generations: Sequence[Sequence[Arch]], right: np.ndarray, order: int) -> Outcome:
    """One search with racing."""
    row = {arch: index for index, arch in enumerate(arch for archs in generations for arch in archs)}
    race = Race(right.shape[1], lambda archs, images: right[[row[a] for a in archs]][:, images], seed=order)
    scores: dict[Arch, Score] = {}
    for archs in generations:
        best = sorted((score.accuracy for score in scores.values()), reverse=True)[: race.keep]
        scores |= zip(archs, race(archs, best), strict=True)
    winner = max(scores, key=lambda arch: scores[arch].accuracy)
    accuracy = 100 * right.mean(1)
    return Outcome(round(float(accuracy.max() - accuracy[row[winner]]), 6), race.forwards / right.size)


if __name__ == "__main__":
    main()
