"""A search without a config: look at the images and at this machine, write a config that fits the hours, and keep them.

`make_plan` decides on everything that a config says, each with its reason, and on the time of every phase. The config
is an ordinary one, `config.py` in the run's folder. While it runs, `Pace` compares the time that is left with what the
phases to come will take and makes them shorter where it must.
"""

from __future__ import annotations

import dataclasses
import math
import os
import re
import time
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from s3zoo.arch import Arch
from s3zoo.checks import typed
from s3zoo.drawing import RUNTIMES, duration, quantity, told_others
from s3zoo.files import Records
from s3zoo.models import MODELS
from s3zoo.search import stock
from s3zoo.search.around import around as around_network
from s3zoo.search.around import network, space_around
from s3zoo.search.budget import Budget, Limit, Pricer, extents
from s3zoo.search.config import ArchSearch, Controls, Final, SearchRun
from s3zoo.search.course import Course
from s3zoo.search.forecast import STEP, Macs, Phase, forecast, typical_macs
from s3zoo.search.latency_runtime import (
    check_runtime,
    measured_speed,
    runner,
    threads_set,
    timed_in_turns,
    watch_others,
)
from s3zoo.search.space_search import SpaceSearch
from s3zoo.search.start import SHARE, check_family, known_starts, read_start
from s3zoo.space import Dim, Space
from s3zoo.training.apart import check_elsewhere
from s3zoo.training.config import Data, Train, flat, overridden, to_dict
from s3zoo.training.distributed import Ranks
from s3zoo.training.log import Log
from s3zoo.training.splits import TEST_NAMES, TRAIN_NAMES, balanced_order, find_split, open_split

SAMPLE = 200  # training images that are looked at
SIZES = (8, 16, 32, 64, 96, 128, 224)  # of images, in pixels
WIDTHS = (192, 128, 96, 64, 48, 32, 16)  # of a space
TEST_SHARE = 0.2  # of images in class folders without splits
HELD_OUT = 0.2  # of the training images, at most 5,000
# How the hours are divided; the rest is for measuring, reading and the test images
SUPERNET, SEARCH, FINAL = 0.22, 0.08, 0.55
OVERHEAD = 1.4  # of a training step: optimizer, reading and augmenting images
EPOCHS, STEPS = 15, 800  # of the supernet and of a network at least, where the hours allow it
NEARLY = 0.75  # where they do not: of the epochs that the narrowest space gets, for a wider one
FEW = 10_000  # training images: with fewer, weights that are there are worth more than a space made for the images
GLANCE = 0.1  # seconds for the latency of a network: the run itself measures better
CALIBRATION = 128  # images for the batch norms of a network that is scored


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
        lines += ["", "expected time, if this machine stays as busy as it is now:"]
        wide = max(len(name) for name, _ in self.phases)
        lines += [f"  {name:<{wide}}  {seconds / 60:6.1f} minutes" for name, seconds in self.phases]
        total = sum(seconds for _, seconds in self.phases)
        return "\n".join([*lines, f"  {'together':<{wide}}  {total / 60:6.1f} of {60 * self.config.hours:g} minutes"])


def make_plan(
    root: str, budgets: tuple[str, ...] = (), hours: float = 1.0, *, controls: bool = True, runtime: str = "torch",
    start: str | None = None, around: str | None = None, settings: Sequence[str] = (), out: Path | None = None,
) -> Plan:  # fmt: skip
    """Everything about a search on these images, on this machine, in so many hours, to be written to `out`.

    `start` is where the supernet begins; "" is from random weights, and None lets the plan decide. `around` is a
    network whose dimensions the space has. `settings` (KEY=VALUE) change what was decided.
    """
    if not 0 < hours < math.inf:
        raise ValueError(f"--hours is {hours}, but must be above 0.")
    limits = [Budget.parse(text) for text in budgets]
    if timed := any("latency" in budget.limits for budget in limits):
        check_runtime(runtime, "cpu")
    data, reasons = look(root)
    if out is not None:
        check_elsewhere(data, out)
    images = len(open_split(data, data.train_split)) - data.holdout
    draft = _draft(root, data, budgets, hours, controls, runtime, images)
    find = _Fitting(limits, images, reasons)
    fit: _Fit | None = None
    if around:
        fit = find.first(_around(draft, around, start or "", find), 1, f"around {around}", must=True)
    elif start:
        found = read_start(start)
        runs = _from_start(draft, start, found.space, found.side, found.rate)
        fit = find.first(runs, 1, f"what {found.name} holds", must=True)
        reasons.append(Reason("weights", f"the supernet begins with those of {found.name}", "as asked for"))
    elif start is None:
        fit = find.begun(draft)
    fit = fit or find.first(_made(draft), 2, "family glit, one head of four attends, the others convolve", must=True)
    assert fit is not None
    run = overridden(fit.run, settings)
    search, final = run.arch_search, run.final.train
    seconds, begun = hours * 3600, "from the supernet's weights" if run.start else "from scratch"
    beside = f" and {len(run.controls)} networks beside it" if run.controls else ""
    reasons += [
        Reason(
            "supernet", f"{run.supernet.epochs} epochs of batch {run.supernet.batch_size}",
            f"{SUPERNET:.0%} of the time",
        ),
        Reason(
            "search", f"population {search.population}, {search.generations} generations, racing",
            f"{SEARCH:.0%} of the time, less what racing saves: networks that fall behind are dropped early",
        ),
        Reason("final training", f"{final.epochs} epochs {begun}", f"{FINAL:.0%} of the time for the winner{beside}"),
    ]  # fmt: skip
    if timed:
        where = f"of one image on one thread in {RUNTIMES[search.latency_runtime]}"
        reasons.append(Reason("latency", where, "what the budget limits; the winner is timed as a whole"))
    if settings:
        reasons.append(Reason("set", ", ".join(settings), "as asked for, whatever reasons are given above"))
    phases = [(phase.name, _seconds(phase, fit.speeds)) for phase in forecast(run, images, fit.macs)]
    return Plan(run, reasons, [("measuring, reading", 0.05 * seconds), *phases, ("report", 0.02 * seconds)])


def _seconds(phase: Phase, speeds: tuple[float, float]) -> float:
    return phase.seconds(*speeds) * (OVERHEAD if phase.training else 1)


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
            "data", f"{len(split):,} training images of {len(counts)} classes ({_range(counts.tolist())} each)",
            f"{kind}, shorter side {_range(sides)} pixels in a sample of {len(pictures)}",
        ),
        Reason(
            "test images",
            str(find_split(data, data.test_split)) if splits else f"{TEST_SHARE:.0%} of every class, drawn by a seed",
            "as the folder has them" if splits else "the folder has no splits; copies of an image stay together",
        ),
        Reason("held out", f"{holdout:,} images", "of the training images, to compare networks on"),
    ]  # fmt: skip


def _range(values: Collection[int]) -> str:
    return " to ".join(f"{value:,}" for value in sorted({min(values), max(values)}))


def at_size(data: Data, size: int) -> Data:
    """Images of so many pixels, augmented as is usual for them."""
    colour = data.in_chans == 3
    small: dict[str, Any] = {"random_crop_pad": max(1, size // 8), "color_jitter": 0.0}
    options = small if size <= 64 else {"scale": (0.35, 1.0), "color_jitter": 0.4 if colour else 0.0}
    return dataclasses.replace(data, img_size=size, hflip=0.5 if colour else 0.0, **options)


# The space


def space_of(size: int, width: int) -> Space:
    """GLiT's kind of space for images of this size: one head of four attends, the others are convolutions of the map.

    The width is the same for all networks, so that the same channels attend in all of them.
    """
    patch = {8: 2, 224: 16}.get(size, size // 8)
    return Space(
        f"glit_{size}_{width}",
        "glit",
        (
            Dim("depth", (1, 2, 3, 4, 5, 6), step=1),
            Dim("embed_dim", (width,)),
            Dim("num_heads", (4,)),
            Dim("global_heads", (1,)),
            Dim("head_dim", (max(8, width // 4),)),
            Dim("kernel_size", (3, 5, 7), step=2, per_block=True),
            Dim("expansion", (1, 2), step=1, per_block=True),
            Dim("mlp_ratio", (1, 2, 3), step=1, per_block=True),
            Dim("locality", ("conv2d",)),
        ),
        patch_size=patch,
    )


def _draft(
    root: str, data: Data, budgets: tuple[str, ...], hours: float, controls: bool, runtime: Any, images: int
) -> SearchRun:
    """All but the space and the lengths of the phases."""
    batch = max(8, min(128, 2 ** int(math.log2(max(8, images / 16)))))
    train = Train(batch_size=batch, lr=2e-3, warmup_epochs=1, drop_path=0.0, checkpoint_seconds=60)
    search = ArchSearch(
        budgets=budgets, racing=True, latency_threads=1, latency_runtime=runtime, calibration_images=CALIBRATION
    )
    return SearchRun(
        name="".join(c if c.isalnum() else "_" for c in Path(root).resolve().name) or "mine",
        data=data,
        space=space_of(data.img_size, WIDTHS[-1]),
        # A step of the sandwich costs five times as much: fewer steps in the same time (see cifar10_s3_2core).
        supernet=dataclasses.replace(train, sampling="uniform"),
        space_search=SpaceSearch(method="none"),
        arch_search=search,
        final=Final(mode="retrain", train=train),
        controls=Controls(random=controls, stock=controls),
        hours=hours,
    )


def _made(draft: SearchRun) -> Iterator[SearchRun]:
    """Spaces made for the images, from the largest images and the widest networks on."""
    for size in (size for size in reversed(SIZES) if size <= draft.data.img_size):
        for width in WIDTHS:
            yield dataclasses.replace(draft, data=at_size(draft.data, size), space=space_of(size, width))


def _from_start(
    draft: SearchRun, place: str, space: Space, side: int, rate: float | None = None
) -> Iterator[SearchRun]:
    """The space of these weights, for images as large as they know, then for smaller ones.

    Images are enlarged to that, as is usual; the last stage keeps a map of two patches a side.
    """
    smallest = 2 * space.patch_size * 2 ** (space.num_stages - 1)
    for size in [side, *(size for size in reversed(SIZES) if smallest <= size < side)]:
        yield _begun(dataclasses.replace(draft, data=at_size(draft.data, size), space=space), place, rate)


def _begun(run: SearchRun, place: str, rate: float | None) -> SearchRun:
    """All that is the supernet's goes on with its weights, at the rate of the search that they come from: a quarter of
    it took away what the start was worth (docs/results.md). Networks that learned for long go on at a lower one."""
    lr = run.supernet.lr
    supernet = dataclasses.replace(run.supernet, lr=lr / 4 if rate is None else min(lr, rate))
    final = dataclasses.replace(run.final, mode="finetune", train=dataclasses.replace(run.final.train, lr=supernet.lr))
    return dataclasses.replace(run, start=place, supernet=supernet, final=final)


def _around(draft: SearchRun, name: str, start: str, find: _Fitting) -> Iterator[SearchRun]:
    """The space around a network; its size limits what is searched, beside the budgets."""
    arch, side = network(name)
    size = max((size for size in SIZES if size <= min(side, draft.data.img_size)), default=SIZES[0])
    run = around_network(dataclasses.replace(draft, data=at_size(draft.data, size)), name)
    (own,) = run.arch_search.budgets
    budgets = tuple(
        text if "params" in Budget.parse(text).limits else f"{text}, {own}" for text in draft.arch_search.budgets
    )
    controls = run.controls if draft.controls else draft.controls
    if controls.designed:
        costs = find.costs(run, controls.designed_arch(run.space))
        if not all(limit.allows(costs) for limit in find.limits):
            controls = draft.controls
            find.reasons.append(Reason("beside the winner", f"not {name} itself", "it is beyond the budget"))
    search = dataclasses.replace(run.arch_search, budgets=budgets or (own,))
    run = dataclasses.replace(
        run, name=draft.name, arch_search=search, controls=controls, space_search=draft.space_search
    )
    if start:
        found = read_start(start)
        check_family(found, run.space)
        run = _begun(run, start, found.rate)
        find.reasons.append(Reason("weights", f"the supernet begins with those of {start}", "as asked for"))
    yield run


class _Fit(NamedTuple):
    run: SearchRun
    speeds: tuple[float, float]
    macs: Macs

    @property
    def epochs(self) -> int:
        """Of the supernet or of a network, whichever has fewer."""
        return min(self.run.supernet.epochs, self.run.final.train.epochs)


class _Speed(NamedTuple):
    threads: int
    macs: tuple[float, float]  # a second, in training and in scoring
    why: str


class _Fitting:
    """Looks for what the budgets and the hours allow."""

    def __init__(self, limits: list[Budget], images: int, reasons: list[Reason]) -> None:
        self.limits, self.images, self.reasons = limits, images, reasons
        self.tried: list[_Fit] = []  # of the last kind that was looked for: what the budgets allow
        self._speeds: dict[tuple[str, int], _Speed] = {}

    def first(self, runs: Iterable[SearchRun], share: int, what: str, *, must: bool) -> _Fit | None:
        """The first of these that has networks at this share of the budgets and trains long enough; if one `must` be
        found, else the first that trains nearly as long as any of them can."""
        self.tried, enough, wished = [], False, 0
        for run in runs:
            wished = wished or run.data.img_size
            if not self._within(run, share):
                continue
            threads, speeds, _ = self._speed(run)
            macs = macs_beside(run)
            trial = _timed(dataclasses.replace(run, threads=threads), self.images, speeds, macs)
            self.tried.append(_Fit(trial, speeds, macs))
            least = max(EPOCHS, STEPS * run.supernet.batch_size / self.images) / (SHARE if run.start else 1)
            if enough := self.tried[-1].epochs >= int(least):
                break
        if must and not self.tried:
            low = self.costs(run, run.space.smallest())
            takes = f" and takes {low['latency']:.2g} ms" if "latency" in low else ""
            raise ValueError(
                f"No network of this kind is within {' or '.join(map(str, self.limits))}; the smallest has"
                f" {quantity(low['params'])} parameters and {quantity(low['macs'])} MACs{takes}, so loosen the budget."
            )
        if not (enough or must):
            return None
        most = max(fit.epochs for fit in self.tried)
        near = [fit for fit in self.tried if fit.epochs >= NEARLY * most]
        found = self.tried[-1] if enough else near[0 if most > 3 else -1]  # with so few, what takes least
        run, speeds, _ = found
        why = self._speed(run).why
        ends = extents(run.space, Pricer(**run.priced))
        size = run.data.img_size
        self.reasons += [
            Reason(
                "image size", f"{size} x {size}",
                ("as those that the weights know" if run.start else "next to the images' own")
                if size == wished else "larger ones would take too long",
            ),
            Reason(
                "space",
                f"{run.space.name}: {run.space.size():.2g} networks,"
                f" {' to '.join(map(quantity, ends['params']))} parameters,"
                f" {' to '.join(map(quantity, ends['macs']))} MACs",
                what if enough else f"{what}; every such space should train longer, so more hours help",
            ),
            Reason(
                "threads", f"{run.threads}",
                f"{why}; {speeds[0] / 1e9:.1f} GMAC/s in training, {speeds[1] / 1e9:.1f} in scoring",
            ),
        ]  # fmt: skip
        return found

    def begun(self, draft: SearchRun) -> _Fit | None:
        """With few images: from weights that are there or can be fetched, where the hours and the budgets allow it."""
        if self.images >= FEW:
            self.reasons.append(Reason("weights", "random", f"there are {FEW:,} training images or more"))
            return None
        why = "none that s3zoo knows is for such images"
        for name in known_starts(draft.data.img_size, draft.data.in_chans):
            arch, side = network(name)
            kept = list(self.reasons)
            space = space_around(arch, f"around_{name.partition('.')[0]}")
            fit = self.first(_from_start(draft, name, space, side), 1, f"around {name}", must=False)
            if fit is None:
                why = f"the space around {name} is beyond the {'hours' if self.tried else 'budget'}"
                continue
            try:
                read_start(name)
            except ValueError as error:
                self.reasons[:] = kept
                why = f"{error} A search without them goes on"
                continue
            told = "few images; if yours are among those that it was trained on, give --no-start"
            self.reasons.append(Reason("weights", f"the supernet begins with those of {name}", told))
            return fit
        self.reasons.append(Reason("weights", "random", why))
        return None

    def costs(self, run: SearchRun, arch: Arch) -> dict[str, float]:
        """Parameters, MACs and, where a budget limits it, latency."""
        costs = Pricer(**run.priced)(arch)
        if any("latency" in budget.limits for budget in self.limits):
            with torch.random.fork_rng(devices=[]):
                costs["latency"] = _latency(run, MODELS[arch.family](arch.effective(run.data.img_size), **run.shape))
        return costs

    def _within(self, run: SearchRun, share: int) -> bool:
        """Whether the smallest network has at most this part of what each budget allows, and the largest enough."""
        if not self.limits:
            return True
        costs, largest = self.costs(run, run.space.smallest()), Pricer(**run.priced)(run.space.largest())
        every = [(metric, limit) for budget in self.limits for metric, limit in budget.limits.items()]
        enough = all(largest[metric] >= limit.low for metric, limit in every if metric != "latency")
        return enough and all(costs[metric] <= limit.high / share for metric, limit in every)

    def _speed(self, run: SearchRun) -> _Speed:
        """How many threads are fastest, and how fast they are; networks of the same kind and image size are alike."""
        key = run.space.family, run.data.img_size
        if key not in self._speeds:
            cores, watched = os.cpu_count() or 1, watch_others()
            alone = measured_speed(run, 1.5, clock=time.perf_counter)
            others = watched()
            found = _Speed(1, alone, told_others(others) if cores > 1 else "there is one core")
            if cores * (1 - others) > 1.5:  # threads that wait for each other are slow beside other programs
                shared = measured_speed(run, 1.5, threads=cores, clock=time.perf_counter)
                faster = shared[0] > 1.1 * alone[0]
                found = _Speed(cores, shared, "faster than one") if faster else _Speed(1, alone, "more are no faster")
            self._speeds[key] = found
        return self._speeds[key]


_TIMED: dict[tuple[Any, ...], float] = {}  # networks of timm: a plan and the run that follows it ask for the same


def price_lists(run: SearchRun) -> dict[str, stock.Costs]:
    """What the networks of timm cost that may stand beside a winner."""
    limit = max((each.limits["latency"].high for each in run.budgets if "latency" in each.limits), default=0.0)

    def latency(name: str) -> float:
        key = name, str(run.shape), run.arch_search.latency_batch, run.arch_search.latency_runtime
        if key not in _TIMED:
            _TIMED[key] = _latency(run, stock.build(name, run.shape))
        return _TIMED[key]

    with torch.random.fork_rng(devices=[]):
        return {kind: stock.price_list(kind, run.shape, latency if limit else None, limit) for kind in stock.LISTS}


def macs_beside(run: SearchRun) -> Macs:
    """Of the run's networks and of those of timm, beside winners that use up what the budgets allow."""
    macs = typical_macs(run)
    if not run.controls.stock:
        return macs
    lists, total = price_lists(run), 0.0
    for budget in run.budgets:
        limit = budget.limits.get("latency", Limit()).high
        metric, aim = ("macs", macs.searched) if math.isinf(limit) else ("latency", limit)
        chosen = [stock.nearest(known, {metric: aim}, budget, metric) for known in lists.values()]
        total += sum(row["macs"] for row in chosen if row is not None)
    return macs._replace(stock=total / len(run.budgets))


def _latency(run: SearchRun, model: Any) -> float:
    """Milliseconds on one thread, in the run's runtime; compiling so many networks would take too long."""
    size, runtime = run.data.img_size, run.arch_search.latency_runtime
    with threads_set(1):
        images = torch.randn(run.arch_search.latency_batch, run.data.in_chans, size, size)
        run_once = runner(model, images, "torch" if runtime == "compile" else runtime, 1)
        return timed_in_turns([run_once], 5, "cpu", 1, GLANCE)[0]


def _timed(run: SearchRun, images: int, speeds: tuple[float, float], macs: Macs) -> SearchRun:
    """Epochs and generations for the hours at these speeds."""
    seconds = run.hours * 3600
    step, budgets = STEP * images * OVERHEAD / speeds[0], len(run.budgets)
    work = {phase.name.partition(": ")[2]: phase.work for phase in forecast(run, images, macs)}
    trained = (work["finish"] + work.get("controls", 0.0)) / run.final.train.epochs  # an epoch of all networks
    supernet = _bounded(SUPERNET * seconds / (macs.supernet * step), 1, 300)
    final = _bounded(FINAL * seconds / (trained * OVERHEAD / speeds[0]), 1, 300)
    scored = SEARCH * seconds / ((run.data.holdout + CALIBRATION) * budgets * macs.searched / speeds[1])
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


# The hours


SHORTENED = {"supernet": "supernet.epochs", "search": "arch_search.generations", "finish": "final.train.epochs"}


def check_hours(row: dict[str, Any]) -> None:
    """What a phase was shortened to, and nothing else, can come from the folder of a run."""
    typed(row, {"phase": str, "left": float, "needed": float, "set": [str]}, "")
    for setting in row["set"]:
        key, _, value = setting.partition("=")
        if key not in SHORTENED.values() or not re.fullmatch(r"\d{1,6}", value):
            raise ValueError(f"it sets {setting[:60]!r}, which no phase is shortened to")


class Pace:
    """Keeps to the hours of a run. What a phase is shortened to is recorded in `hours.jsonl` before it begins, so that
    a resumed run does the same."""

    def __init__(
        self, run: SearchRun, folder: Path, course: Course, images: int, ranks: Ranks, log: Log, name: str
    ) -> None:
        self.run, self.course, self.images, self.ranks, self.log = run, course, images, ranks, log
        self._begun, self._before = time.monotonic(), sum(course.clock.seconds.values())
        path = folder / "hours.jsonl" if run.hours else None
        self._kept = ranks.rank0_first(lambda: Records(path, check=check_hours, write=ranks.first, run=name))

    def at(self, phase: str) -> SearchRun:
        """The config as it is from this phase on, for example "space0: search"."""
        if not self.run.hours:
            return self.run
        rows = self._kept.rows
        at = next((i for i, row in enumerate(rows) if row["phase"] == phase), len(rows))
        before = overridden(self.run, [each for row in rows[:at] for each in row["set"]])
        if at == len(rows):
            row = self.ranks.from_first(self._decided(phase, before))
            self._kept.append([row])
            if row["set"]:
                left, needed = duration(max(0, row["left"])), duration(row["needed"])
                self.log.say(
                    f"{phase}: {left} of {self.run.hours:g} h are left, but {needed} are needed, so"
                    f" {row['set'][0]} from here on"
                )
        run = overridden(before, self._kept.rows[at]["set"])
        self.course.follow(run)
        return run

    def _decided(self, phase: str, run: SearchRun) -> dict[str, Any]:
        """What becomes of this phase, and that of the config, as it is before."""
        left = 3600 * self.run.hours - self._before - (time.monotonic() - self._begun)
        needed = self.course.needed(phase)
        if needed is None and phase.endswith("supernet"):  # nothing has been timed yet
            speeds = measured_speed(run, 1.0, threads=run.threads, clock=time.perf_counter)
            macs = macs_beside(run)
            self.course.beside(macs.stock)
            needed = sum(_seconds(each, speeds) for each in forecast(run, self.images, macs))
        row: dict[str, Any] = {"phase": phase, "left": round(left), "needed": round(needed or 0), "set": []}
        if needed is None or needed <= max(left, 0.0):
            return row
        key = SHORTENED[phase.partition(": ")[2]]
        old = flat(to_dict(run))[key]
        new = _bounded(max(left, 0.0) / needed * old, 1, old)
        row["set"] = [f"{key}={new}"] if new < old else []
        return row
