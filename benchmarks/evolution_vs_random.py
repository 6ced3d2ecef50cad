"""Evolution against random search at equal evaluations, on a table of all networks of a trained supernet's space.

    python benchmarks/evolution_vs_random.py

The table is the one that benchmarks/exhaustive_table.py records; a search costs nothing here, so there may be many.
"""

import argparse
import statistics
from collections.abc import Mapping

from exhaustive_table import read
from scipy.stats import binomtest

from s3zoo.arch import Arch
from s3zoo.search.evolution import Evolution, RandomSearch
from s3zoo.space import Space

OPTIONS = {"population": 20, "generations": 10, "parents": 5, "crossover": 10, "mutation": 10}  # 200 evaluations


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=20)
    arguments = parser.parse_args()
    space, scores = read()
    pairs = compare(space, scores, arguments.seeds)
    wins, losses = sum(a > b for a, b in pairs), sum(a < b for a, b in pairs)
    evolution, chance = (statistics.fmean(column) for column in zip(*pairs, strict=True))
    evaluations = OPTIONS["population"] * OPTIONS["generations"]
    print(f"{len(scores)} networks, the best has {max(scores.values()):.2f} %; {evaluations} evaluations a search")
    print(f"mean of the best: evolution {evolution:.3f} %, random search {chance:.3f} %")
    ties = len(pairs) - wins - losses
    print(f"evolution wins {wins}, loses {losses}, ties {ties}; p = {binomtest(wins, wins + losses).pvalue:.2g}")


def compare(space: Space, scores: Mapping[Arch, float], seeds: int) -> list[tuple[float, float]]:
    """For each seed the best score that evolution finds, and that random search finds."""
    found = []
    for seed in range(seeds):
        engines = [kind(space, seed=seed, **OPTIONS) for kind in (Evolution, RandomSearch)]  # type: ignore[arg-type]
        for engine in engines:
            while archs := engine.ask():
                engine.tell((arch, scores[arch]) for arch in archs)
        assert len({len(engine.evaluated) for engine in engines}) == 1, "unequal evaluations"
        found.append((engines[0].best[1], engines[1].best[1]))
    return found


if __name__ == "__main__":
    main()
