"""Record which held-out images of CIFAR-10 the subnets of a small supernet get right, for benchmarks/racing.py.

    python benchmarks/record_correctness.py --data /path/to/cifar10 --work /tmp/correctness

Trains an S3 supernet, then scores in full whatever an evolution asks for. About 25 minutes on one core; the same
command resumes. The images' place holds train/ and test/ with class folders, or train.tar and test.tar.
"""

import argparse
import dataclasses
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch

from s3zoo.arch import Arch
from s3zoo.files import Records
from s3zoo.search.budget import Pricer
from s3zoo.search.evaluate import Evaluator
from s3zoo.search.evolution import Evolution
from s3zoo.space import Space, s3_space
from s3zoo.supernet import Supernet
from s3zoo.training.config import Data, Train
from s3zoo.training.data import ImageData
from s3zoo.training.distributed import Ranks
from s3zoo.training.log import Log
from s3zoo.training.loop import Stop, SupernetTask, fit
from s3zoo.training.recipes import CIFAR10

RECORDED = Path(__file__).parent / "data" / "cifar10_correctness.npz"
SPACE = s3_space(
    "cifar10_recorded", depth=(1, 2), embed=(24, 32), window=(4, 8), heads=(1, 2, 3), mlp=(1, 1.5, 2),
    head_dim=16, num_stages=2, patch_size=4,
).replaced(  # feature maps of 8 x 8 and 4 x 4
    {"stage2.depth": (2, 3), "stage2.embed_dim": (48, 64), "stage2.window_size": (2, 4), "stage2.qkv_heads": (2, 3, 4)}
)  # fmt: skip
TRAIN = Train(epochs=14, batch_size=128, lr=3e-3, warmup_epochs=1, drop_path=0.0, sampling="uniform")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", required=True)
    parser.add_argument("--work", type=Path, required=True, help="folder for checkpoints and what is scored so far")
    parser.add_argument("--generations", type=int, default=20)
    parser.add_argument("--out", type=Path, default=RECORDED)
    arguments = parser.parse_args()
    images, log = dataclasses.replace(CIFAR10, root=arguments.data), Log(arguments.work, tracks=False)
    evaluator = trained(SPACE, images, TRAIN, arguments.work / "supernet", log)
    every = np.arange(evaluator.data.search_size)
    # The generations are those of a search in which every candidate sees every image.
    engine = Evolution(SPACE, seed=0, generations=arguments.generations, identity=evaluator.identity)
    generations: list[list[Arch]] = []
    rows: list[np.ndarray] = []
    while archs := engine.ask():
        path = arguments.work / f"generation-{len(generations)}.npy"
        if not path.exists():
            np.save(path, np.stack([evaluator.correct(arch, every) for arch in archs]))
        right = np.load(path)
        engine.tell(list(zip(archs, 100 * right.mean(1), strict=True)))
        generations.append(archs)
        rows.append(right)
        log.say(f"generation {len(generations)}: best {engine.best[1]:.2f} %, mean {engine.history[-1]['mean']:.2f} %")
    write(arguments.out, SPACE, generations, np.concatenate(rows))


def trained(space: Space, images: Data, train: Train, folder: Path, log: Log) -> Evaluator:
    """A supernet that is trained in this folder, or was, to be asked about its subnets."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    data, ranks, stop = ImageData(images, 0), Ranks(0, 1, torch.device("cpu")), Stop()
    shape: dict[str, Any] = {key: getattr(images, key) for key in ("img_size", "num_classes", "in_chans")}
    supernet = Supernet(space, **shape)
    evaluator = Evaluator(supernet, data, ranks, log, Records(None), stop, price=Pricer(**shape))

    def health(epoch: int) -> dict[str, float]:
        some, ends = np.arange(data.search_size)[:1000], {"smallest": space.smallest(), "largest": space.largest()}
        return {name: 100 * float(evaluator.correct(arch, some).mean()) for name, arch in ends.items()}

    with stop.listening():
        fit(
            SupernetTask(supernet, train, 0), train, data, seed=0, ranks=ranks, folder=folder, log=log,
            name="supernet", stop=stop, at_epoch_end=health,
        )  # fmt: skip
    return evaluator


def write(path: Path, space: Space, generations: list[list[Arch]], right: np.ndarray) -> None:
    """Bits by image and architecture, turned over where most are set: nearly all are 0 and compress."""
    often = right.mean(0) > 0.5
    table = {"space": space.to_dict(), "archs": [[values(space, arch) for arch in archs] for archs in generations]}
    path.parent.mkdir(exist_ok=True)
    np.savez_compressed(path, often=often, dissent=np.packbits((right ^ often).T, axis=1), archs=json.dumps(table))


def values(space: Space, arch: Arch) -> list[object]:
    """The choices of an architecture in the order of the space's dimensions that have any."""
    chosen = space.values(arch)
    return [chosen[dim.name] for dim in space.dims if len(dim.choices) > 1]


def arch_of(space: Space, chosen: list[object]) -> Arch:
    """The inverse of `values`."""
    rest: Iterator[object] = iter(chosen)
    single = {dim.name: dim.choices[0] for dim in space.dims if len(dim.choices) == 1}
    free = {dim.name: next(rest) for dim in space.dims if len(dim.choices) > 1}
    return space.build(single | {name: tuple(v) if isinstance(v, list) else v for name, v in free.items()})


def read(path: Path = RECORDED) -> tuple[list[list[Arch]], np.ndarray]:
    """The architectures of each generation, and which images (columns) each of them (rows, in order) gets right."""
    with np.load(path) as file:
        table, often, dissent = json.loads(str(file["archs"])), file["often"], file["dissent"]
    space = Space.from_dict(table["space"])
    generations = [[arch_of(space, chosen) for chosen in archs] for archs in table["archs"]]
    right = np.unpackbits(dissent, axis=1, count=sum(map(len, generations))).astype(bool).T ^ often
    return generations, right


if __name__ == "__main__":
    main()
