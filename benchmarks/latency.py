"""Predicted latencies of random networks against measured ones, on one thread of this CPU, in processor time.

    python benchmarks/latency.py --runtime onnx

The table and its correction are measured first, as a search does; then other networks of the space are timed whole, as
a search times its winner.
"""

import argparse
import random
import statistics

from scipy.stats import spearmanr

from s3zoo.families.autoformer import plain_space
from s3zoo.families.s3 import s3_space
from s3zoo.search.latency import LatencyTable
from s3zoo.search.plan import space_of
from s3zoo.training.log import Log

S3 = s3_space(
    "small_s3", (1, 2), (16, 32), (4, 8), (1, 2), (1.0, 2.0), steps=(1, 16, 4, 1, 1.0), head_dim=16, num_stages=3
)
AUTOFORMER = plain_space("small_autoformer", (2, 4, 6), (64, 96, 128), (1, 2, 4), (2, 4), head_dim=32, patch_size=8)
SPACES = {"glit": (space_of(32, 64), 32), "s3": (S3, 32), "autoformer": (AUTOFORMER, 64)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runtime", choices=("torch", "onnx"), default="torch")
    parser.add_argument("--space", choices=SPACES, action="append", help="default: all")
    parser.add_argument("--count", type=int, default=30, help="networks")
    parser.add_argument("--seed", type=int, default=1, help="of the networks")
    arguments = parser.parse_args()
    for name in arguments.space or SPACES:
        space, size = SPACES[name]
        shape = {"img_size": size, "num_classes": 10, "in_chans": 3}
        table = LatencyTable.empty(space, **shape, threads=1, runtime=arguments.runtime)
        table.cover(space, log=Log(None))
        rng = random.Random(arguments.seed)
        archs = [space.sample(rng) for _ in range(arguments.count)]
        timings = [timing for arch in archs if (timing := table.measured(arch)) is not None]
        measured = [timing.ms for timing in timings]
        slower = [timing.slower or 1.0 for timing in timings]
        predicted = [table(arch) for arch in archs]
        error = statistics.fmean(abs(a / b - 1) for a, b in zip(predicted, measured, strict=True))
        rank = spearmanr(predicted, measured).statistic
        print(
            f"{space.name}, {arguments.runtime}: {len(archs)} networks of {min(measured):.2f} to {max(measured):.2f}"
            f" ms: Spearman {rank:.3f}, mean error {error:.1%}; the machine was {min(slower):.2f} to {max(slower):.2f}"
            f" times as slow as for the table, when others used {table.others:.0%} of it",
            flush=True,
        )


if __name__ == "__main__":
    main()
