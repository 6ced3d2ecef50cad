"""What it costs to switch the architecture, as a share of a training step (AutoFormer-T, batch 64 at 224 x 224).

    python benchmarks/switching.py

Cold: no view of the architecture's blocks exists yet. Warm: all of them are cached. Times are the processor's, of one
thread, so that other work on the machine does not matter; with n threads a step is up to n times shorter.
"""

import argparse
import random
import statistics

import torch
import torch.nn.functional as F
from bench import seconds

from s3zoo.space import AUTOFORMER_TINY
from s3zoo.supernet import Supernet


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--switches", type=int, default=30)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    rng = random.Random(0)
    supernet = Supernet(AUTOFORMER_TINY)
    optimizer = torch.optim.AdamW(supernet.bank.values())
    images, targets = torch.randn(64, 3, 224, 224), torch.randint(1000, (64,))

    def step() -> None:
        supernet.gradient.zero_()
        F.cross_entropy(model(images), targets).backward()
        optimizer.step()

    steps = []
    for _ in range(arguments.steps):
        model = supernet.subnet(AUTOFORMER_TINY.sample(rng)).train()
        steps.append(seconds(step))
    archs = [AUTOFORMER_TINY.sample(rng) for _ in range(arguments.switches)]
    cold, warm = [], []
    for arch in archs:
        supernet._blocks.clear()
        supernet._frames.clear()
        supernet._slices.clear()
        cold.append(seconds(lambda: supernet.subnet(arch)))  # noqa: B023
        warm.append(seconds(lambda: supernet.subnet(arch)))  # noqa: B023
    whole = statistics.median(steps)
    print(f"a step takes {whole:.2f} s")
    for name, times in (("cold", cold), ("warm", warm)):
        median, worst = statistics.median(times), max(times)
        print(f"{name}: {median / whole:.3%} of a step (largest {worst / whole:.3%}), {1000 * median:.2f} ms")


if __name__ == "__main__":
    main()
