"""A search without a config: look at the images and at this machine, write a config that fits the hours, and keep them.

`make_plan` decides on everything that a config says, each with its reason, and on the time of every phase. The config
is an ordinary one, `config.py` in the run's folder. While it runs, `Pace` compares the time that is left with what the
phases to come will take and makes them shorter where it must.
"""

from __future__ import annotations

import dataclasses
import math
import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from s3zoo.drawing import duration, quantity
from s3zoo.files import Records
from s3zoo.models import MODELS
from s3zoo.search.budget import Budget, Pricer, extents
from s3zoo.search.config import ArchSearch, Controls, Final, SearchRun
from s3zoo.search.course import Course
from s3zoo.search.forecast import forecast, mean_macs, measured_speed
from s3zoo.search.latency_runtime import runner, threads_set, timed_in_turns
from s3zoo.search.space_search import SpaceSearch
from s3zoo.space import Space, s3_space
from s3zoo.training.config import Data, Train, overridden
from s3zoo.training.data import ImageData
from s3zoo.training.distributed import Ranks
from s3zoo.training.log import Log
from s3zoo.training.splits import TEST_NAMES, TRAIN_NAMES, balanced_order, open_split

SAMPLE = 200  # training images that are looked at
SIZES = (8, 16, 32, 64, 96, 128, 224)  # of images, in pixels
WIDTHS = (96, 64, 48, 32, 24, 16, 8)  # the narrowest choice of a space
TEST_SHARE = 0.2  # of images in class folders without splits
HELD_OUT = 0.2  # of the training images, at most 5,000
# How the hours are divided; the rest is for measuring, reading and the test images
SUPERNET, SEARCH, FINAL = 0.40, 0.12, 0.33
OVERHEAD = 1.4  # of a training step: optimizer, reading and augmenting images
EPOCHS = 15  # of the supernet and of a network at least, where the hours allow it


class Reason(NamedTuple):
    what: str
    value: str
    why: str


@dataclass(frozen=True)
class Plan:
    """A config, why it is like that, and the seconds of each phase."""

    config: SearchRun
    reasons: list[Reason]
    phases: list[tuple[str, float]]

    def told(self) -> str:
        width = max(len(reason.what) for reason in self.reasons)
        lines = [f"{each.what:<{width}}  {each.value}  ({each.why})" for each in self.reasons]
        lines += ["", "expected time, if nothing else runs on this machine:"]
        wide = max(len(name) for name, _ in self.phases)
        lines += [f"  {name:<{wide}}  {seconds / 60:6.1f} minutes" for name, seconds in self.phases]
        total = sum(seconds for _, seconds in self.phases)
        return "\n".join([*lines, f"  {'together':<{wide}}  {total / 60:6.1f} of {60 * self.config.hours:g} minutes"])


def make_plan(
    root: str, budgets: tuple[str, ...] = (), hours: float = 1.0, *, controls: bool = True, runtime: str = "torch"
) -> Plan:
    """Everything about a search on these images, on this machine, in so many hours."""
    if not 0 < hours < math.inf:
        raise ValueError(f"--hours is {hours}, but must be above 0.")
    limits = [Budget.parse(text) for text in budgets]
    data, reasons = look(root)
    images = len(open_split(data, data.train_split)) - data.holdout
    cores = os.cpu_count() or 1
    run, speeds = _fitting(
        _draft(root, data, budgets, hours, controls, runtime, images), limits, images, cores, reasons
    )
    run = _timed(run, images, speeds)
    search, final = run.arch_search, run.final.train
    seconds = hours * 3600
    reasons += [
        Reason(
            "supernet", f"{run.supernet.epochs} epochs of batch {run.supernet.batch_size}",
            f"{SUPERNET:.0%} of the time",
        ),
        Reason(
            "search", f"population {search.population}, {search.generations} generations, racing",
            f"{SEARCH:.0%} of the time, without what racing saves",
        ),
        Reason(
            "final training", f"{final.epochs} epochs from scratch", f"{FINAL:.0%} of the time for the winner"
            + (f" and {len(run.controls)} networks beside it, trained alike" if controls else ""),
        ),
    ]  # fmt: skip
    phases = [("measuring, reading", 0.03 * seconds)]
    phases += [
        (phase.phase, phase.seconds(*speeds) * (OVERHEAD if phase.training else 1)) for phase in forecast(run, images)
    ]
    return Plan(run, reasons, [*phases, ("test images, report", 0.02 * seconds)])


# The images


def look(root: str) -> tuple[Data, list[Reason]]:
    """What the images are, and how they are divided and seen."""
    place = Path(root).expanduser()
    if not place.is_dir():
        raise ValueError(f"--data is {root!r}, which is no folder; give one with a folder for each class.")
    has = {entry.name.removesuffix(".tar") for entry in place.iterdir()}
    splits = bool(has & set(TRAIN_NAMES)) and bool(has & set(TEST_NAMES))
    data = Data(name="", root=root, holdout=0, num_classes=0, test_share=0.0 if splits else TEST_SHARE)
    split = open_split(data, data.train_split)
    counts = np.bincount(split.targets, minlength=len(split.classes))
    if len(counts) < 2 or counts.min() < 3:
        few = split.classes[int(counts.argmin())]
        raise ValueError(
            f"{root} has {len(counts)} classes, the smallest of which ({few!r}) has {counts.min()} training images; a"
            " search needs at least 2 classes and 3 training images of each."
        )
    order = balanced_order(split.targets, 0)[:SAMPLE]
    pictures = [picture for index in order if (picture := split.image(int(index), "RGB")) is not None]
    if not pictures:
        raise ValueError(f"None of {len(order)} training images of {root} can be read; mend them.")
    sides = [min(picture.size) for picture in pictures]
    side = int(np.median(sides))
    pixels = np.stack([np.asarray(picture.resize((32, 32))) for picture in pictures]) / 255
    grey = bool((pixels == pixels[..., :1]).all())
    pixels = pixels[..., :1] if grey else pixels
    mean, std = (tuple(round(float(v), 4) for v in of(axis=(0, 1, 2))) for of in (pixels.mean, pixels.std))
    holdout = min(5_000, int(HELD_OUT * len(split)))
    size = max((each for each in SIZES if each <= 1.25 * side), default=SIZES[0])
    data = dataclasses.replace(
        data, holdout=holdout, num_classes=len(counts), in_chans=1 if grey else 3, mean=mean,
        std=tuple(max(value, 0.01) for value in std), crop_pct=1.0, img_size=size,
    )  # fmt: skip
    kind = "grey" if grey else "coloured"
    return data, [
        Reason(
            "data", f"{len(split):,} training images of {len(counts)} classes ({counts.min()} to {counts.max()} each)",
            f"{kind}, shorter side {min(sides)} to {max(sides)} pixels in a sample of {len(pictures)}",
        ),
        Reason(
            "test images", f"{place}/test" if splits else f"{TEST_SHARE:.0%} of every class, drawn by a seed",
            "as the folder has them" if splits else "the folder has no splits; copies of an image stay together",
        ),
        Reason("held out", f"{holdout:,} images", "of the training images, to compare networks on"),
    ]  # fmt: skip


def at_size(data: Data, size: int) -> Data:
    """Images of so many pixels, augmented as is usual for them."""
    colour = data.in_chans == 3
    small: dict[str, Any] = {"random_crop_pad": max(1, size // 8), "color_jitter": 0.0}
    options = small if size <= 64 else {"scale": (0.35, 1.0), "color_jitter": 0.4 if colour else 0.0}
    return dataclasses.replace(data, img_size=size, hflip=0.5 if colour else 0.0, **options)


# The space


def space_of(size: int, width: int) -> Space:
    """S3's kind of space for images of this size: all stages begin with the same choices."""
    patch = 2 if size <= 32 else 4 if size <= 96 else 8
    windows = {8: (2, 4), 224: (7, 14)}.get(size, (4, 8))
    head = 8 if width < 16 else 16
    return s3_space(
        f"s3_{size}_{width}", depth=(1, 2, 3), embed=(width, 2 * width, 3 * width), window=windows, heads=(1, 2, 3),
        mlp=(1.0, 2.0, 3.0), steps=(1, width, windows[0], 1, 1.0), head_dim=head, num_stages=2 if size == 8 else 3,
        patch_size=patch,
    )  # fmt: skip


def _draft(
    root: str, data: Data, budgets: tuple[str, ...], hours: float, controls: bool, runtime: Any, images: int
) -> SearchRun:
    """All but the space and the lengths of the phases."""
    batch = max(8, min(128, 2 ** int(math.log2(max(8, images / 16)))))
    train = Train(batch_size=batch, lr=2e-3, warmup_epochs=1, drop_path=0.0, checkpoint_seconds=60)
    return SearchRun(
        name="".join(c if c.isalnum() else "_" for c in Path(root).resolve().name) or "mine",
        data=data,
        space=space_of(data.img_size, WIDTHS[-1]),
        # A step of the sandwich costs five times as much: fewer steps in the same time (see cifar10_s3_2core).
        supernet=dataclasses.replace(train, sampling="uniform"),
        space_search=SpaceSearch(method="none"),
        arch_search=ArchSearch(budgets=budgets, racing=True, latency_threads=1, latency_runtime=runtime),
        final=Final(mode="retrain", train=train),
        controls=Controls(random=controls, stock=controls),
        hours=hours,
    )


def _fitting(
    run: SearchRun, limits: list[Budget], images: int, cores: int, reasons: list[Reason]
) -> tuple[SearchRun, tuple[float, float]]:
    """The largest images and the widest space that the budgets and the hours allow; the speeds that they have."""
    sizes = [size for size in reversed(SIZES) if size <= run.data.img_size]
    wished, found, speeds, enough = sizes[0], None, (1.0, 1.0), False
    for size in sizes:
        data = at_size(run.data, size)
        fits = [
            width
            for width in WIDTHS
            if _within(dataclasses.replace(run, data=data, space=space_of(size, width)), limits)
        ]
        fastest: tuple[float, float] | None = None
        for width in fits:
            found = dataclasses.replace(run, data=data, space=space_of(size, width), threads=1)
            if fastest is None:
                fastest = measured_speed(found, 1.5, clock=time.perf_counter)
                if cores > 1:
                    shared = measured_speed(found, 1.5, threads=cores, clock=time.perf_counter)
                    many = shared[0] > 1.1 * fastest[0]
                    fastest, threads = (shared, cores) if many else (fastest, 1)
                else:
                    threads = 1
            speeds, found = fastest, dataclasses.replace(found, threads=threads)
            trial = _timed(found, images, speeds)
            if enough := min(trial.supernet.epochs, trial.final.train.epochs) >= EPOCHS:
                break
        else:
            continue
        break
    if found is None:
        price = Pricer(**run.priced)
        low = {metric: ends[0] for metric, ends in extents(space_of(SIZES[0], WIDTHS[-1]), price).items()}
        raise ValueError(
            f"No network of this kind is within {' or '.join(map(str, limits))}; the smallest has"
            f" {quantity(low['params'])} parameters and {quantity(low['macs'])} MACs, so loosen the budget."
        )
    data, space = found.data, found.space
    ends = extents(space, Pricer(**found.priced))
    reasons += [
        Reason(
            "image size", f"{data.img_size} x {data.img_size}",
            "as large as the images are" if data.img_size == wished else "larger ones would take too long to train on",
        ),
        Reason(
            "space",
            f"{space.name}: {space.size():.2g} networks of {space.num_stages} stages,"
            f" {' to '.join(map(quantity, ends['params']))} parameters,"
            f" {' to '.join(map(quantity, ends['macs']))} MACs",
            f"family s3, the widest of {len(WIDTHS)} that trains {EPOCHS} epochs in the time"
            + (" and has networks at half of the budget" if limits else "")
            if enough else f"family s3; no space trains {EPOCHS} epochs in the time, this one comes nearest",
        ),
        Reason(
            "threads", f"{found.threads}", f"{speeds[0] / 1e9:.1f} GMAC/s in training, {speeds[1] / 1e9:.1f} in scoring"
        ),
    ]  # fmt: skip
    return found, speeds


def _within(run: SearchRun, limits: list[Budget]) -> bool:
    """Whether the smallest network has at most half of what each budget allows, so that there is a choice."""
    if not limits:
        return True
    price, smallest = Pricer(**run.priced), run.space.smallest()
    costs = price(smallest)
    if any("latency" in budget.limits for budget in limits):
        size, chans = run.data.img_size, run.data.in_chans
        with torch.random.fork_rng(devices=[]), threads_set(1):
            model = MODELS[smallest.family](smallest.effective(size), **run.shape)
            call = runner(model, torch.randn(run.arch_search.latency_batch, chans, size, size), "torch", 1)
            (costs["latency"],) = timed_in_turns([call], 5, "cpu", 1)
    halves = {metric: limit.high / 2 for budget in limits for metric, limit in budget.limits.items()}
    largest = price(run.space.largest())
    enough = all(largest[m] >= limit.low for b in limits for m, limit in b.limits.items() if m != "latency")
    return enough and all(costs[metric] <= half for metric, half in halves.items())


def _timed(run: SearchRun, images: int, speeds: tuple[float, float]) -> SearchRun:
    """Epochs and generations for the hours at these speeds."""
    seconds, price = run.hours * 3600, Pricer(**run.priced)
    mean = mean_macs(run.space, Budget(), price)
    step = 3 * images * OVERHEAD / speeds[0]
    budgets = [Budget.parse(text) for text in run.arch_search.budgets] or [Budget()]
    own = sum(mean_macs(run.space, budget, price) for budget in budgets)
    supernet = _bounded(SUPERNET * seconds / (mean * step), 1, 300)
    final = _bounded(FINAL * seconds / (own * (1 + len(run.controls)) * step), 1, 300)
    scored = SEARCH * seconds / (run.data.holdout * own / speeds[1])
    population = _bounded(scored / 5, 10, 50)
    generations = _bounded(scored / population, 2, 20)
    half = population // 2
    search = dataclasses.replace(
        run.arch_search, population=population, generations=generations, parents=min(10, half), crossover=half,
        mutation=half,
    )  # fmt: skip
    warm: dict[str, Any] = {"warmup_epochs": 1 if min(supernet, final) > 5 else 0.2}
    return dataclasses.replace(
        run, arch_search=search, supernet=dataclasses.replace(run.supernet, epochs=supernet, **warm),
        final=dataclasses.replace(run.final, train=dataclasses.replace(run.final.train, epochs=final, **warm)),
    )  # fmt: skip


def _bounded(value: float, low: int, high: int) -> int:
    return max(low, min(high, int(value)))


def check_images(run: SearchRun, say: Any) -> None:
    """Open the images as the run will, and compare the splits."""
    ImageData(run.data, run.seed, say=say).check_splits()


# The hours


class Pace:
    """Keeps to the hours of a run. What a phase is shortened to is recorded in `hours.jsonl` before it begins, so that
    a resumed run does the same."""

    def __init__(
        self, run: SearchRun, folder: Path, course: Course, images: int, ranks: Ranks, log: Log, name: str
    ) -> None:
        self.run, self.course, self.images, self.ranks, self.log = run, course, images, ranks, log
        self._begun, self._before = time.monotonic(), sum(course.seconds.values())
        self._kept = None
        if run.hours:
            self._kept = ranks.rank0_first(lambda: Records(folder / "hours.jsonl", write=ranks.first, run=name))

    def at(self, phase: str) -> SearchRun:
        """The config as it is from this phase on, for example "space0: search"."""
        if self._kept is None:
            return self.run
        rows = {row["phase"]: row for row in self._kept.rows}
        if phase not in rows:
            row = self.ranks.from_first(self._decided(phase))
            if self.ranks.first:
                self._kept.append([row])
            else:
                self._kept.rows.append(row)
            rows[phase] = row
            if row["set"]:
                self.log.say(
                    f"{phase}: {duration(row['left'])} of {self.run.hours:g} h are left, but {duration(row['needed'])}"
                    f" are needed, so {' and '.join(row['set'])} from here on"
                )
        settings = []
        for name, row in rows.items():
            settings += row["set"]
            if name == phase:
                break
        run = overridden(self.run, settings)
        self.course.follow(run)
        return run

    def _decided(self, phase: str) -> dict[str, Any]:
        left = 3600 * self.run.hours - self._before - (time.monotonic() - self._begun)
        run = overridden(self.run, [each for row in (self._kept.rows if self._kept else ()) for each in row["set"]])
        needed = self.course.needed(phase)
        if needed is None and phase.endswith("supernet"):  # nothing has been timed yet
            train, score = measured_speed(run, 1.0, threads=run.threads, clock=time.perf_counter)
            needed = sum(
                work.seconds(train, score) * (OVERHEAD if work.training else 1) for work in forecast(run, self.images)
            )
        row: dict[str, Any] = {"phase": phase, "left": round(left), "needed": round(needed or 0), "set": []}
        if needed is None or needed <= max(left, 0.0):
            return row
        share, final = max(left, 0.0) / needed, run.final.train.epochs
        changes: dict[str, tuple[int, int]] = {}
        if phase.endswith("supernet"):
            changes["supernet.epochs"] = (
                run.supernet.epochs,
                _bounded(share * run.supernet.epochs, 1, run.supernet.epochs),
            )
        if phase.endswith("search"):
            generations = run.arch_search.generations
            changes["arch_search.generations"] = generations, _bounded(share * generations, 1, generations)
        if phase.endswith("finish"):
            changes["final.train.epochs"] = final, _bounded(share * final, 1, final)
        row["set"] = [f"{key}={new}" for key, (old, new) in changes.items() if new < old]
        return row
