"""Networks tried per second under a budget that about 1 % of the space meets, on one thread, in processor time.

    python benchmarks/sampling.py

Each space is drawn from without a limit first, to find the budget; then `Feasible.draw` looks for networks within it.
"""

import argparse
import random
import time

from s3zoo.search.budget import Budget, Feasible, Limit, Pricer
from s3zoo.space import AUTOFORMER_TINY, GLIT_TINY, S3_INITIAL, Space, glit_details


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tries", type=int, default=50_000)
    tries = parser.parse_args().tries
    details = glit_details(GLIT_TINY, GLIT_TINY.sample(random.Random(0)))
    for space in (S3_INITIAL, AUTOFORMER_TINY, GLIT_TINY, details):
        plain, rate, share = rates(space, tries)
        print(
            f"{space.name}: {plain:,.0f} uniform draws, {rate:,.0f} tries of Feasible.draw a second ({share:.2%} met)"
        )


def rates(space: Space, tries: int) -> tuple[float, float, float]:
    """Uniform draws and tries of `Feasible.draw` a second; the share of the former within the budget."""
    rng, price = random.Random(0), Pricer(224)
    drawn = sorted(price(space.sample(rng))["params"] for _ in range(2000))
    budget = Budget({"params": Limit(high=drawn[len(drawn) // 100])})
    uniform = Feasible(space, budget, price)
    start, met = time.process_time(), 0
    while uniform.checked < tries:
        met += uniform.fits(space.draw(rng))
    plain = uniform.checked / (time.process_time() - start)
    feasible = Feasible(space, budget, price)
    start = time.process_time()
    while feasible.checked < tries:
        feasible.draw(rng)
    return plain, feasible.checked / (time.process_time() - start), met / uniform.checked


if __name__ == "__main__":
    main()
