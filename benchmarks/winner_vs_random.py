"""Does the search find more than luck? The winner against random subnets of its size, on the test images.

    python tools/search.py digits --seeds 5 --out runs/digits
    python benchmarks/winner_vs_random.py runs/digits/seed*

Both sides have inherited weights of the same supernet; "its size" is within 10 % of the winner's parameters.
"""

import argparse
import json
import random
import statistics
from pathlib import Path

import torch

from s3zoo.arch import Arch
from s3zoo.search.budget import Budget, Limit, Pricer, check_feasible
from s3zoo.space import Space
from s3zoo.supernet import Supernet
from s3zoo.training import checkpoint
from s3zoo.training.accuracy import hits
from s3zoo.training.config import Data, Tower
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
    config = json.loads((folder / "run.json").read_text())["config"]
    torch.set_num_threads(config["threads"])
    data = ImageData(
        Data(**{k: tuple(v) if isinstance(v, list) else v for k, v in config["data"].items()}), config["seed"]
    )
    place = max(folder.glob("space*/search-0")).parent
    space = Space.from_dict(json.loads((place / "space.json").read_text()))
    shape = {k: config["data"][k] for k in ("img_size", "num_classes", "in_chans")}
    priced, model_args = dict(shape), {}
    if space.family == "ladder":
        model_args["tower"] = tower = tower_of(Tower(**config["tower"]), data.config, "cpu")
        priced["tower_dim"] = tower.embed_dim
    supernet = Supernet(space, sharing=config["supernet"]["sharing"], **shape, model_args=model_args)
    saved = checkpoint.load(place / "supernet")
    assert saved is not None
    supernet.load_state_dict({n.removeprefix("weight."): t for n, t in saved[0].items() if n.startswith("weight.")})
    winner = json.loads((place / "search-0/winner.json").read_text())
    near = Budget({"params": Limit(0.9 * winner["params"], 1.1 * winner["params"])})
    rng = random.Random(0)
    feasible = check_feasible(space, near, Pricer(**priced), rng)
    drawn = (feasible.draw(rng) for _ in range(count))
    batches = list(data.test_batches())

    def score(arch: Arch) -> float:
        right = [hits(supernet.subnet(arch).eval(), *batch, torch.device("cpu")) for batch in batches]
        return 100 * float(torch.cat(right).float().mean())

    return score(Arch.from_dict(winner["arch"])), [score(arch) for arch in drawn if arch is not None]


if __name__ == "__main__":
    main()
