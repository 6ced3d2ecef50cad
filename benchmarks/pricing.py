"""Architectures priced per second in closed form, against building each model without memory and counting.

    python benchmarks/pricing.py

The formula gives parameters and MACs, the model on the meta device is only asked for its parameters. Times are the
processor's.
"""

import argparse
import random
import time
from collections.abc import Callable, Sequence

from s3zoo import cost
from s3zoo.arch import Arch
from s3zoo.models import MODELS
from s3zoo.space import AUTOFORMER_TINY, GLIT_TINY, S3_INITIAL


def built(arch: Arch) -> int:
    model = MODELS[arch.family](arch, img_size=224, num_classes=1000, device="meta")
    return sum(p.numel() for p in model.parameters())


def rate(price: Callable[[Arch], object], archs: Sequence[Arch]) -> float:
    start = time.process_time()
    for arch in archs:
        price(arch)
    return len(archs) / (time.process_time() - start)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=2000, help="architectures priced; a hundredth of them are built")
    arguments = parser.parse_args()
    rng = random.Random(0)
    for space in (AUTOFORMER_TINY, S3_INITIAL, GLIT_TINY):
        archs = [space.sample(rng) for _ in range(arguments.count)]
        some = archs[: max(2, arguments.count // 100)]
        assert all(built(arch) == cost.params(arch) for arch in some[:2]), "the two must agree"
        formula = rate(lambda arch: (cost.params(arch), cost.macs(arch)), archs)
        model = rate(built, some)
        print(f"{space.name}: {formula:,.0f} architectures per second, {formula / model:,.0f} times as many as built")


if __name__ == "__main__":
    main()
