"""`s3zoo extract RUN`: networks of a finished run's supernet as model folders, with the weights they have there."""

from __future__ import annotations

import argparse
import dataclasses
import functools
from pathlib import Path
from typing import Any

from torch import nn

from s3zoo.arch import Arch
from s3zoo.artefact import save_model
from s3zoo.families import FAMILIES
from s3zoo.files import check_writable, read_json
from s3zoo.search.budget import Budget, Pricer
from s3zoo.search.evolution import Scored, pareto
from s3zoo.search.published import FinishedRun
from s3zoo.supernet import recalibrate
from s3zoo.training.data import ImageData
from s3zoo.training.distributed import start
from s3zoo.training.features import tower_of
from s3zoo.training.provenance import provenance


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="s3zoo extract",
        description="Write networks of a finished search's supernet as model folders: the best that was scored within a"
        " budget, some of the Pareto front, or any architecture of the space. Nothing is trained or scored.",
    )
    parser.add_argument("run", type=Path, metavar="RUN", help="folder of a finished search")
    which = parser.add_mutually_exclusive_group()
    which.add_argument(
        "--budget", default="", metavar="LIMITS", help="the best within, say 'params<=5M' (default: of all)"
    )
    which.add_argument("--pareto", type=int, metavar="K", help="K networks from the smallest to the best, by MACs")
    which.add_argument("--arch", metavar="FILE", help="this architecture: a JSON file, or its JSON")
    parser.add_argument("--data", metavar="ROOT", help="where the images are now, for networks with batch norms")
    parser.add_argument("--out", type=Path, required=True, help="folder of the model (with --pareto: of one for each)")
    arguments = parser.parse_args(argv)
    check_writable(arguments.out, "--out", folder=True)
    run = FinishedRun(arguments.run)
    if run.folder.resolve() in (arguments.out.resolve(), *arguments.out.resolve().parents):
        raise ValueError(f"--out is {str(arguments.out)!r}, in the folder of the run that is read; give another place.")
    if arguments.arch:
        chosen = [named(run, Arch.parse(arguments.arch))]
    else:
        chosen = choose(run.scored(), Budget.parse(arguments.budget), arguments.pareto)
    price, networks = Pricer(**run.config.priced), Networks(run, arguments.data)
    for index, (arch, score) in enumerate(chosen):
        folder = arguments.out / f"{index}" if arguments.pareto else arguments.out
        networks.write(arch, score, folder)
        costs = price(arch)
        known = "not scored" if score is None else f"{score:.2f} % of the held-out images with the supernet's weights"
        print(f"{folder}: {costs['params'] / 1e6:.3g}M parameters, {costs['macs'] / 1e6:.4g}M MACs, {known}")
    return 0


def named(run: FinishedRun, arch: Arch) -> tuple[Arch, float | None]:
    """An architecture with its score, if it has one. Scored ones are stored without their genes that have no effect."""
    size = run.config.data.img_size
    scores = {Arch.from_dict(row["arch"]): row["accuracy"] for row in run.scored()}
    if arch.effective(size) not in scores:
        run.space.values(arch)  # says if it is not of this space
    return arch, scores.get(arch.effective(size))


def choose(rows: list[dict[str, Any]], budget: Budget, count: int | None) -> list[tuple[Arch, float | None]]:
    """Of scored networks the best within the budget, or so many of the Pareto front, the ends among them."""
    if "latency" in budget.limits and not all("latency" in row for row in rows):
        raise ValueError("The run has no latencies; give a budget of params and macs, or search it again with --from.")
    costs = ("params", "macs", "latency")
    scored: list[Scored] = [
        (Arch.from_dict(row["arch"]), row["accuracy"], {key: row[key] for key in costs if key in row}) for row in rows
    ]
    inside = [each for each in scored if not budget.excess(each[2])]
    if not inside:
        raise ValueError(f"None of the {len(rows)} scored networks is within {budget}; search again with --from.")
    if count is None:
        arch, score, _ = max(inside, key=lambda each: (each[1], each[0].key))
        return [(arch, score)]
    if count < 1:
        raise ValueError(f"--pareto is {count}, but must be at least 1.")
    front = [(arch, score) for arch, score, _ in pareto(inside, "macs")]
    last, count = len(front) - 1, min(count, len(front))
    return [front[place] for place in sorted({round(last - i * last / max(1, count - 1)) for i in range(count)})]


class Networks:
    """The networks of a finished run's supernet."""

    def __init__(self, run: FinishedRun, root: str | None) -> None:
        self.run, self.config, self.ranks = run, run.config, start("cpu")
        data = self.config.data if root is None else dataclasses.replace(self.config.data, root=root)
        reads_tower = FAMILIES[run.space.family].reads_tower
        args = {"tower": tower_of(self.config.tower, data, self.ranks.device)} if reads_tower else {}
        self.supernet = run.supernet(self.ranks.device, args)
        self._images = functools.cache(lambda: ImageData(data, self.config.seed))

    def write_whole(self, folder: Path) -> None:
        """The whole supernet as a model folder, of which any network can be loaded."""
        self._save(folder, self.supernet.whole(), {}, supernet=self.run.space)

    def write(self, arch: Arch, score: float | None, folder: Path) -> None:
        """A model folder, described as those that the run itself wrote."""
        model = self.supernet.extract(arch)
        if any(isinstance(module, nn.modules.batchnorm._BatchNorm) for module in model.modules()):
            recalibrate(model, self._images().calibration_batches(self.config.arch_search.calibration_images))
        metrics = {} if score is None else {"held-out": {"top1": score, "images": self.config.data.holdout}}
        self._save(folder, model, metrics)

    def _save(self, folder: Path, model: nn.Module, metrics: dict[str, Any], **options: Any) -> None:
        record = provenance("search", self.config, self.run.folder, self.ranks, metrics=metrics)
        record |= {"space": self.run.space.name, "final": "inherit"}
        written = read_json(min(self.run.folder.glob("model*/config.json")), {"pretrained_cfg": dict})["pretrained_cfg"]
        kept = ("mean", "std", "crop_pct", "interpolation", "label_names")
        cfg = {key: written[key] for key in kept if key in written}
        save_model(folder, model, provenance=record, pretrained_cfg=cfg, **options)
