"""Does the search find more than luck? The winner against random subnets of its size, on the test images.

    python tools/search.py digits --seeds 5 --out runs/digits
    python benchmarks/winner_vs_random.py runs/digits/seed*

Both sides have inherited weights of the same supernet; "its size" is within 10 % of the winner's parameters.
"""

import argparse
import random
import statistics
from pathlib import Path

import torch

from s3zoo.arch import Arch
from s3zoo.families import FAMILIES
from s3zoo.files import read_json
from s3zoo.search.budget import Budget, Limit, Pricer, check_feasible
from s3zoo.search.published import FinishedRun
from s3zoo.training.accuracy import hits
from s3zoo.training.data import ImageData
from s3zoo.training.features import tower_of


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", nargs="+", type=Path)
    parser.add_argument("--count", type=int, default=50, help="random subnets per run")
    arguments = parser.parse_args()
    wins = 0
    for folder in arguments.runs:
        winner, others = compare(folder, arguments.count)
        median = statistics.median(others)
        wins += winner > median
        print(
            f"{folder}: winner {winner:.2f} %, random median {median:.2f} %, best of {len(others)} {max(others):.2f} %"
        )
    print(f"the winner is above the median in {wins} of {len(arguments.runs)} runs")


def compare(folder: Path, count: int) -> tuple[float, list[float]]:
    run, device = FinishedRun(folder), torch.device("cpu")
    config = run.config
    torch.set_num_threads(config.threads)
    reads_tower = FAMILIES[run.space.family].reads_tower
    supernet = run.supernet(device, {"tower": tower_of(config.tower, config.data, device)} if reads_tower else {})
    winner = read_json(run.place / "search-0/winner.json")
    near = Budget({"params": Limit(0.9 * winner["params"], 1.1 * winner["params"])})
    rng = random.Random(0)
    feasible = check_feasible(run.space, near, Pricer(**config.priced), rng)
    drawn = (feasible.draw(rng) for _ in range(count))
    batches = list(ImageData(config.data, config.seed).test_batches())

    def score(arch: Arch) -> float:
        right = [hits(supernet.subnet(arch).eval(), *batch, device) for batch in batches]
        return 100 * float(torch.cat(right).float().mean())

    return score(Arch.from_dict(winner["arch"])), [score(arch) for arch in drawn if arch is not None]


if __name__ == "__main__":
    main()
