"""What becomes of an architecture that was chosen: it keeps the supernet's weights, is finetuned or retrained."""

from __future__ import annotations

import math
import random
from pathlib import Path
from typing import Any

import torch

from s3zoo.arch import Arch
from s3zoo.files import read_json, write_json
from s3zoo.models import MODELS
from s3zoo.search import stock
from s3zoo.search.budget import Budget
from s3zoo.search.context import Context, Finished, count_correct, make_evaluator
from s3zoo.search.latency import PATIENCE
from s3zoo.search.records import REMEDY
from s3zoo.search.space_search import rank_correlation
from s3zoo.supernet import Supernet, recalibrate
from s3zoo.training.config import Train
from s3zoo.training.loop import ModelTask, seed_from


def finish(
    context: Context, supernet: Supernet, arch: Arch, inherited: float | None, place: Path, mode: str, train: Train
) -> Finished:  # fmt: skip
    """Inherit, finetune or retrain one architecture."""
    run, data, device = context.run, context.data, context.ranks.device
    arch = arch.effective(run.data.img_size)
    if mode == "retrain":
        torch.manual_seed(seed_from(run.seed, "retrain", arch.key))
        args = {**run.shape, **context.model_args, "drop_path_rate": train.drop_path}
        model = MODELS[arch.family](arch, **args).to(device)
    else:
        options = {} if mode == "inherit" else {"drop_path_rate": train.drop_path}
        model = supernet.extract(arch, **options)
        recalibrate(model, (x.to(device) for x in data.calibration_batches(run.arch_search.calibration_images)))
    if mode != "inherit":
        if run.compile:
            model.compile()
        images = data.with_held_out() if run.final.use_held_out else data
        context.fit(ModelTask(model), train, place, f"{mode} {arch.key}", seed_from(run.seed, arch.key), data=images)
    if run.final.use_held_out:
        return Finished(arch, model, inherited, None)
    score = count_correct(context, place / "score.json", model, data.search_images)
    return Finished(arch, model, inherited, score["top1"])


def finish_best(
    context: Context, supernet: Supernet, arch: Arch, inherited: float, folder: Path, number: int, mode: str,
    train: Train,
) -> Finished:  # fmt: skip
    """The same of one of the best networks of a search; where finetuning loses, the inherited weights are kept."""
    done = finish(context, supernet, arch, inherited, folder / f"finish-{number}", mode, train)
    if mode != "finetune" or done.accuracy is None or inherited <= done.accuracy:
        return done
    context.log.say(
        f"{arch.key}: {done.accuracy:.2f} % of the held-out images after finetuning, {inherited:.2f} % before, so the"
        " inherited weights are kept"
    )
    kept = finish(context, supernet, arch, inherited, folder / f"inherit-{number}", "inherit", train)
    kept.lost = done.accuracy
    return kept


# timm's networks beside the winner


def choose_stock(context: Context, place: Path, winner: Arch, budget: Budget) -> dict[str, dict[str, Any]]:
    """timm's transformer and CNN nearest to a network, which are kept in stock.json."""
    run, path, table = context.run, place / "stock.json", context.latency
    if context.ranks.first and not path.exists():
        repeats, costs = run.arch_search.latency_repeats, context.pricer(winner)
        here = table is not None and table.is_here
        metric, limit = ("latency", costs["latency"]) if here else ("macs", math.inf)
        if here:
            context.log.say(f"{place.parent.name}: timm's networks are timed, to find the nearest to the winner")

        def timed(name: str, patience: int = 1) -> float:
            assert table is not None
            return table.measured_model(stock.build(name, run.shape), repeats, patience).then

        chosen: dict[str, Any] = {}
        for kind in stock.LISTS:
            known = stock.price_list(kind, run.shape, timed if here else None, limit)
            near = stock.nearest(known, costs, budget, metric)
            if near and here:  # once is enough to choose; what is chosen is timed like the winner
                name = near["model"]
                near = stock.nearest({name: known[name] | {"latency": timed(name, PATIENCE)}}, costs, budget, metric)
            if near:
                # others begin with the supernet's weights where they are finetuned
                chosen[kind] = near | ({"from_scratch": True} if run.final.mode == "finetune" else {})
        write_json(path, chosen)
    context.ranks.wait()
    return read_json(path, stock.check_chosen, remedy=REMEDY)


def finish_stock(context: Context, place: Path, rows: dict[str, dict[str, Any]], train: Train) -> dict[str, Finished]:
    """Those of timm, trained like the winner."""
    run, finished = context.run, {}
    for kind, row in rows.items():
        torch.manual_seed(seed_from(run.seed, "stock", row["model"]))
        model = stock.build(row["model"], run.shape).to(context.ranks.device)
        folder = place / f"control-{kind}"
        context.fit(ModelTask(model), train, folder, f"timm's {row['model']}", run.seed)
        score = count_correct(context, folder / "score.json", model, context.data.search_images)
        finished[kind] = Finished(None, model, None, score["top1"], stock=row)
    return finished


def audit_ranking(context: Context, supernet: Supernet, place: Path) -> None:
    """How well inherited accuracy ranks networks: finetune and retrain random ones (S3 Fig. 5)."""
    run, count = context.run, context.run.space_search.audit
    rng = random.Random(seed_from(run.seed, "audit"))
    archs = [supernet.space.sample(rng) for _ in range(count)]
    inherited = make_evaluator(context, supernet, place / "audit" / "scores.jsonl", "audit")(archs)
    report: dict[str, Any] = {"networks": []}
    rows = report["networks"]
    for number, (arch, score) in enumerate(zip(archs, inherited, strict=True)):
        row: dict[str, Any] = {"arch": arch.to_dict(), "inherited": score}
        for second, (mode, train) in enumerate(run.audit_trains.items()):
            context.course.part(2 * number + second, 2 * count)
            folder = place / "audit" / f"{mode}-{arch.key}"
            row[mode] = finish(context, supernet, arch, score, folder, mode, train).accuracy
        rows.append(row)
        if context.ranks.first:  # for a report of the run so far
            write_json(place / "audit.json", report)
    for mode in ("finetune", "retrain"):
        report[f"kendall_{mode}"] = correlation = rank_correlation(inherited, [row[mode] for row in rows])
        context.log.say(f"audit: rank correlation with inherited accuracy after {mode}: {correlation:.3f}")
    if context.ranks.first:
        write_json(place / "audit.json", report)
