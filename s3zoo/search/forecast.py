"""How much a search will compute, phase by phase, before anything is trained."""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from s3zoo import cost
from s3zoo.arch import Arch
from s3zoo.search.budget import Budget, Feasible, Pricer, extents
from s3zoo.search.config import SearchRun
from s3zoo.space import Space, glit_details, glit_split
from s3zoo.training.config import TrainRun

DRAWN = 200  # networks behind a mean
BACKWARD = 2  # a backward pass computes about twice as much as a forward pass


class Work(NamedTuple):
    """Multiply-adds of one phase, by how they are computed: whole training steps, and forward passes alone."""

    phase: str
    training: float = 0.0
    scoring: float = 0.0

    def seconds(self, training: float, scoring: float) -> float:
        """At so many multiply-adds per second."""
        return self.training / training + self.scoring / scoring


def forecast(run: SearchRun, images: int) -> list[Work]:
    """The phases of a run with so many training images (after the held-out ones are taken away).

    Spaces that are still to be found are taken to be like the first. Racing saves a part of the scoring that is not
    known before.
    """
    price, moves, search = Pricer(**run.priced), run.space_search, run.arch_search
    shifts = moves.iterations if moves.method != "none" else 0
    spaces = [run.space] * (shifts + 1)
    if run.hierarchy == "glit":
        spaces = [glit_split(run.space), glit_details(run.space, run.space.sample(random.Random(0)))]
    budgets = [Budget.parse(text) for text in search.budgets] or [moves.budget]
    held_out = run.data.holdout
    phases = []
    for index, space in enumerate(spaces):
        mean = mean_macs(space, Budget(), price)
        if not run.supernet_weights:
            low, high = extents(space, price)["macs"]
            step = low + high + 2 * mean if run.supernet.sampling == "sandwich" else mean
            phases.append(Work(f"supernet {index}", training=_trained(run.supernet.epochs, images, step)))
        scores = moves.random_samples
        if index < shifts:
            scores += moves.samples if moves.method == "s3" else 2 * moves.pairs * len(space.searched)
        if scores:
            phases.append(Work(f"scores {index}", scoring=scores * held_out * mean))
    searched = len(spaces) if run.hierarchy == "glit" or moves.search_each_space else 1
    for budget in budgets:
        mean = mean_macs(run.space, budget, price)
        scores = search.population * search.generations * (searched + run.controls.random_search)
        phases.append(Work("architecture search", scoring=scores * held_out * mean))
        if run.final.mode != "inherit":
            extra = held_out if run.final.use_held_out else 0
            one = _trained(run.final.train.epochs, images + extra, mean)
            phases.append(Work(f"final training ({run.final.mode})", training=one * searched * run.final.top))
            if run.controls:
                phases.append(Work(f"{len(run.controls)} controls", training=one * len(run.controls)))
    if moves.audit:
        mean = mean_macs(run.space, Budget(), price)
        each = sum(_trained(train.epochs, images, mean) for train in run.audit_trains.values())
        phases.append(Work("audit", training=each * moves.audit, scoring=moves.audit * held_out * mean))
    return phases


def mean_macs(space: Space, budget: Budget, price: Pricer) -> float:
    """Of networks of the space within what the budget says about parameters and MACs; of any, if it has none."""
    limits = {metric: limit for metric, limit in budget.limits.items() if metric != "latency"}
    rng = random.Random(0)
    for allowed in (Budget(limits), Budget()):
        feasible = Feasible(space, allowed, price)
        drawn = [feasible.draw(rng) for _ in range(DRAWN)]
        if found := [price(arch)["macs"] for arch in drawn if arch is not None]:
            return statistics.fmean(found)
    raise AssertionError("a space has networks")


def _trained(epochs: int, images: int, macs: float) -> float:
    return epochs * images * macs * (1 + BACKWARD)


def training_forecast(run: TrainRun, images: int) -> tuple[Work, tuple[float, float]]:
    """What a training of a network of ours computes, and the speed at which this machine does it now."""
    arch = Arch.parse(run.model_args["arch"])
    shape = {"img_size": run.data.img_size, "in_chans": run.data.in_chans, "num_classes": run.data.num_classes}
    work = Work(f"{run.train.epochs} epochs", training=_trained(run.train.epochs, images, cost.macs(arch, **shape)))
    return work, speed_of(arch, shape, run.train.batch_size)


def measured_speed(
    run: SearchRun, seconds: float = 3.0, *, threads: int = 1, clock: Callable[[], float] = time.process_time
) -> tuple[float, float]:
    """Multiply-adds per second in training and in scoring, of a network of the space."""
    price = Pricer(**run.priced)
    limits = Budget.parse((*run.arch_search.budgets, "")[0]).limits
    known = Budget({metric: limit for metric, limit in limits.items() if metric != "latency"})
    arch = Feasible(run.space, known, price).draw(random.Random(0)) or run.space.smallest()
    return speed_of(arch, run.shape, run.supernet.batch_size, seconds, threads=threads, clock=clock)


def speed_of(
    arch: Arch, shape: Mapping[str, Any], batch: int, seconds: float = 3.0, *, threads: int = 1,
    clock: Callable[[], float] = time.process_time,
) -> tuple[float, float]:  # fmt: skip
    """Multiply-adds per second in training and in scoring, of this network."""
    import torch

    from s3zoo.models import MODELS

    before = torch.get_num_threads()
    with torch.random.fork_rng(devices=[]):
        model = MODELS[arch.family](arch, **shape)
        images = torch.randn(batch, shape["in_chans"], shape["img_size"], shape["img_size"])
    macs = cost.macs(arch, **shape) * batch

    def train() -> None:
        model.train()(images).square().mean().backward()

    def score() -> None:
        with torch.no_grad():
            model.eval()(images)

    def speed(step: Callable[[], None], passes: int) -> float:
        step()
        begun, count = clock(), 0
        while clock() - begun < seconds:
            step()
            count += 1
        return count * passes * macs / (clock() - begun)

    torch.set_num_threads(threads)
    try:
        return speed(train, 1 + BACKWARD), speed(score, 1)
    finally:
        torch.set_num_threads(before)
