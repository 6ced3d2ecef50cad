"""What the phases of a search share: where and on what a run works, and what they hand on to each other."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from torch import nn

from s3zoo.arch import Arch
from s3zoo.checks import Fields
from s3zoo.files import Check, Records
from s3zoo.search.budget import Budget, Pricer
from s3zoo.search.config import SearchRun
from s3zoo.search.course import Course
from s3zoo.search.evaluate import Evaluator, RacingEvaluator
from s3zoo.search.latency import LatencyTable
from s3zoo.search.plan import Pace
from s3zoo.search.records import check_scored
from s3zoo.supernet import Supernet
from s3zoo.training.accuracy import resumable_accuracy
from s3zoo.training.config import Train
from s3zoo.training.data import Batch, ImageData
from s3zoo.training.distributed import Ranks, mixed_precision
from s3zoo.training.log import Log
from s3zoo.training.loop import Stop, TrainTask, fit, seed_from

UNFINISHED: Fields = {"arch": str, "images": str, "right": str}  # a line of counts that a stop cut short


@dataclass(frozen=True)
class Context:
    """Where and on what a run works. Nothing in it changes but the latency table, which grows with the spaces."""

    run: SearchRun
    folder: Path
    ranks: Ranks
    log: Log
    stop: Stop
    data: ImageData
    tower: Any  # the frozen one that decoders read, or None
    sizes: Pricer  # costs of networks of any space
    latency: LatencyTable | None  # where a budget limits latency
    pricer: Pricer  # costs of networks of visited spaces, latency included
    name: str  # names this run in its files
    course: Course
    pace: Pace

    @property
    def model_args(self) -> dict[str, Any]:
        return {} if self.tower is None else {"tower": self.tower}  # one for all networks of the run

    def records(self, path: Path, check: Check) -> Records:
        return self.ranks.rank0_first(lambda: Records(path, check=check, write=self.ranks.first, run=self.name))

    def row(self, arch: Arch, accuracy: float | None) -> dict[str, Any]:
        return {"accuracy": accuracy, **self.pricer(arch), "arch": arch.to_dict()}

    def fit(
        self, task: TrainTask, train: Train, folder: Path, name: str, seed: int, *, data: ImageData | None = None,
        **options: Any,
    ) -> None:  # fmt: skip
        """Train in a folder of the run, on its images unless others are given."""
        amp = mixed_precision(self.run.amp, self.ranks.device, self.run.amp_dtype)
        fit(
            task, train, data or self.data, seed=seed, ranks=self.ranks, folder=folder, log=self.log, name=name,
            stop=self.stop, amp=amp, run=self.name, **options,
        )  # fmt: skip


@dataclass
class Finished:
    """A network with its weights and what is known of it."""

    arch: Arch | None  # None: of timm
    model: nn.Module
    inherited: float | None  # accuracy on the held-out images with the supernet's weights, if that scored it
    accuracy: float | None  # the same as finished; None if it was trained on them
    lost: float | None = None  # accuracy after finetuning, if that was lower and the inherited weights were kept
    stock: dict[str, Any] = field(default_factory=dict)  # name and costs of a network of timm

    def row(self, context: Context) -> dict[str, Any]:
        if self.arch is None:
            return {"inherited": None, "accuracy": self.accuracy, **self.stock}
        lost = {} if self.lost is None else {"finetuned": self.lost, "kept": "inherited"}
        return {"inherited": self.inherited, **context.row(self.arch, self.accuracy), **lost}


class Found(NamedTuple):
    """What the search of a space gave under one budget: the finished networks, best first."""

    budget: Budget
    networks: list[Finished]
    controls: dict[str, Finished]  # what the winner is compared with; only in the last space


def make_evaluator(
    context: Context, supernet: Supernet, path: Path | None, name: str, *, racing: bool = False
) -> Evaluator:
    """Scores of a supernet's subnets, kept in a file, or nowhere."""
    run, options = context.run, context.run.arch_search
    common: dict[str, Any] = {"price": context.pricer, "calibration_images": options.calibration_images, "name": name}
    records = Records(None) if path is None else context.records(path, check_scored)
    if path is not None:
        common["unfinished"] = context.records(path.with_suffix(".part.jsonl"), UNFINISHED)
    if racing:
        common |= {"seed": seed_from(run.seed, "race"), "keep": max(options.parents, run.final.top)}
    kind = RacingEvaluator if racing else Evaluator
    return kind(supernet, context.data, context.ranks, context.log, records, context.stop, **common)


def count_correct(
    context: Context, path: Path, model: nn.Module, images: Callable[[int], Iterable[Batch]]
) -> dict[str, float]:
    """How many images are right, as `images(n)` gives them from batch n on; the count so far is in a file."""
    return resumable_accuracy(path, model, images, context.ranks, context.stop, run=context.name)
