"""Score every architecture of a small trained supernet on held-out digits, for benchmarks/evolution_vs_random.py.

    python benchmarks/exhaustive_table.py

2,430 networks on 700 images; about five minutes on one core.
"""

import argparse
import dataclasses
import gzip
import json
import tempfile
from pathlib import Path

import numpy as np
from record_correctness import trained

from s3zoo.arch import Arch
from s3zoo.space import AUTOFORMER_TINY, Space
from s3zoo.training.config import Data, Train
from s3zoo.training.log import Log

TABLE = Path(__file__).parent / "data" / "digits_table.json.gz"
DATA = Data(
    name="digits", holdout=700, num_classes=10, img_size=8, in_chans=1, mean=(0.3,), std=(0.37,), crop_pct=1.0,
    random_crop_pad=1, hflip=0.0, color_jitter=0.0,
)  # fmt: skip
TRAIN = Train(epochs=100, batch_size=128, lr=5e-3, warmup_epochs=5, drop_path=0.0, sampling="uniform")
CHOICES = {
    "depth": (2, 3), "embed_dim": (16, 24, 32), "num_heads": (1, 2, 3), "mlp_ratio": (1, 1.5, 2), "head_dim": (8,)
}  # fmt: skip
SPACE = dataclasses.replace(AUTOFORMER_TINY.replaced(CHOICES, name="digits_table"), patch_size=2)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=TABLE)
    arguments = parser.parse_args()
    log = Log(None)
    with tempfile.TemporaryDirectory() as folder:
        evaluator = trained(SPACE, DATA, TRAIN, Path(folder), log)
    every, archs = np.arange(evaluator.data.search_size), list(SPACE.enumerate())
    meter = log.progress("networks", len(archs))
    scores: list[float] = []
    for arch in archs:
        scores.append(round(100 * float(evaluator.correct(arch, every).mean()), 4))
        meter.update(len(scores))
    log.say(f"{len(scores)} networks: {min(scores):.2f} to {max(scores):.2f} %, mean {np.mean(scores):.2f} %")
    rows = [[SPACE.values(arch), score] for arch, score in zip(archs, scores, strict=True)]
    table = {"images": len(every), "space": SPACE.to_dict(), "networks": rows}
    arguments.out.parent.mkdir(exist_ok=True)
    arguments.out.write_bytes(gzip.compress(json.dumps(table).encode(), mtime=0))


def read(path: Path = TABLE) -> tuple[Space, dict[Arch, float]]:
    """The space and the accuracy in percent of each of its architectures."""
    table = json.loads(gzip.decompress(path.read_bytes()))
    space = Space.from_dict(table["space"])
    scores = {}
    for values, score in table["networks"]:
        scores[space.build({k: tuple(v) if isinstance(v, list) else v for k, v in values.items()})] = score
    return space, scores


if __name__ == "__main__":
    main()
