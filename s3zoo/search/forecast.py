"""The phases of a search and how much each computes, before anything is trained."""

from __future__ import annotations

import random
import statistics
from collections.abc import Mapping
from typing import Any, NamedTuple

from s3zoo import cost
from s3zoo.arch import Arch
from s3zoo.families import FAMILIES
from s3zoo.search.budget import Budget, Feasible, Pricer, extents
from s3zoo.space import Space
from s3zoo.training.config import TrainRun, to_dict

DRAWN = 200  # networks behind a mean
STEP = 3  # a training step computes about as much as so many forward passes


class Macs(NamedTuple):
    """Multiply-adds of a forward pass of one image; as they stand, forward passes are counted."""

    supernet: float = 1.0  # the mean of the networks that a step of the supernet trains
    drawn: float = 1.0  # of random networks of the space
    searched: float = 1.0  # of those within the budgets
    stock: float = 2.0  # of timm's two networks beside a winner, together


PASSES = Macs()


class Phase(NamedTuple):
    """What is computed at most; racing saves a part of it."""

    name: str
    images: int = 0  # that its networks see: images x networks
    training: bool = False
    macs: float = 1.0  # of a forward pass

    @property
    def work(self) -> float:
        return self.images * self.macs * (STEP if self.training else 1)

    def seconds(self, training: float, scoring: float) -> float:
        """At so much work per second."""
        return self.work / (training if self.training else scoring)


def planned(
    config: Mapping[str, Any], train_images: int = 0, *, last: int | None = None, visited: int = 0, macs: Macs = PASSES
) -> list[Phase]:
    """The phases of a run with this config (as run.json has it), in their order.

    `last` is the space that is searched for the result, `visited` how many are visited: where the space search stays
    or goes back these are known when it ends; before, they are as the config has them. Later spaces are taken to be
    like the first.
    """
    moves, search, final, data = (config[key] for key in ("space_search", "arch_search", "final", "data"))
    glit = config["hierarchy"] == "glit"
    shifts = 0 if moves["method"] == "none" else moves["iterations"]
    spaces = visited or (2 if glit else shifts + 1)
    last = spaces - 1 if last is None else last
    held_out, budgets = data["holdout"], max(1, len(search["budgets"]))
    supernet, controls = config["supernet"], config["controls"]
    networks = 4 if supernet["sampling"] == "sandwich" else 1
    dims = sum(len(dim["choices"]) > 1 for dim in config["space"]["dims"])
    asked = moves["samples"] if moves["method"] == "s3" else 2 * moves["pairs"] * dims
    norms = search["calibration_images"] if FAMILIES[config["space"]["family"]].batch_norms else 0
    scored = search["population"] * search["generations"] * budgets * (held_out + norms)
    epochs = 0 if final["mode"] == "inherit" else final["train"]["epochs"]
    trained = epochs * (train_images + (held_out if final["use_held_out"] else 0))

    def searched(index: int) -> list[Phase]:
        only = glit and index == 0 and final["top"] == 1  # then nothing is trained, as there is nothing to choose from
        finish = budgets * final["top"] * (held_out if only or not trained else trained)
        return [
            Phase(f"space{index}: search", scored, macs=macs.searched),
            Phase(f"space{index}: finish", finish, trained > 0 and not only, macs.searched),
        ]

    found = []
    for index in range(spaces):
        if not config["supernet_weights"]:
            passes = supernet["epochs"] * train_images * networks
            found.append(Phase(f"space{index}: supernet", passes, True, macs.supernet))
        if moves["random_samples"]:
            found.append(Phase(f"space{index}: random networks", moves["random_samples"] * held_out, macs=macs.drawn))
        if glit:
            found += searched(index)
        elif index < shifts:
            found += searched(index) if moves["search_each_space"] else []
            found.append(Phase(f"space{index}: scores", asked * held_out, macs=macs.drawn))
    if moves["audit"]:
        finetuned = config["audit_finetune"]["epochs"] or final["train"]["epochs"]
        passes = moves["audit"] * (finetuned + final["train"]["epochs"]) * train_images
        found.append(Phase(f"space{last}: audit", passes, True, macs.drawn))
    found += [phase for phase in searched(last) if phase.name not in {each.name for each in found}]
    if any(controls.values()):
        own, stock = sum(bool(each) for name, each in controls.items() if name != "stock"), int(controls["stock"])
        count = own + 2 * stock
        mean = (own * macs.searched + stock * macs.stock) / count
        passes = budgets * count * trained + (scored // STEP if controls["random_search"] else 0)
        found.append(Phase(f"space{last}: controls", passes, True, mean))
    return [*found, Phase("test images", held_out, macs=macs.searched)]


def forecast(run: Any, images: int, macs: Macs | None = None) -> list[Phase]:
    """The phases of a SearchRun with so many training images, without those held out, in multiply-adds."""
    return planned(to_dict(run), images, macs=macs or typical_macs(run))


def typical_macs(run: Any) -> Macs:
    """Of the networks of a SearchRun."""
    price = Pricer(**run.priced)
    supernet = drawn = mean_macs(run.space, Budget(), price)
    if run.supernet.sampling == "sandwich":
        supernet = (sum(extents(run.space, price)["macs"]) + 2 * drawn) / 4
    searched = statistics.fmean(mean_macs(run.space, budget, price) for budget in run.budgets)
    return Macs(supernet, drawn, searched, 2 * searched)


def mean_macs(space: Space, budget: Budget, price: Pricer) -> float:
    """Of networks of the space within what the budget says about parameters and MACs; of any, if it has none."""
    rng = random.Random(0)
    for allowed in (budget.without_latency, Budget()):
        feasible = Feasible(space, allowed, price)
        if feasible.draw(rng) is None:  # what was not found once is not looked for so many times
            continue
        drawn = [feasible.draw(rng) for _ in range(DRAWN)]
        if found := [price(arch)["macs"] for arch in drawn if arch is not None]:
            return statistics.fmean(found)
    raise AssertionError("a space has networks")


def shape_of(run: TrainRun) -> dict[str, int]:
    """What its network is built for."""
    data = run.data
    return {"img_size": data.img_size, "in_chans": data.in_chans, "num_classes": data.num_classes}


def training_forecast(run: TrainRun, images: int) -> Phase:
    """What a training of a network of ours computes."""
    macs = cost.macs(Arch.parse(run.model_args["arch"]), **shape_of(run))
    return Phase(f"{run.train.epochs} epochs", run.train.epochs * images, True, macs)
