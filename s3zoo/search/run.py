"""From a config to a network: space search, supernet, architecture search, finish, export, in a folder that resumes.

Every phase leaves its result in the run's folder and is passed over when it is found there, so the same command goes
on wherever the last one ended:

    run.json                 config, data fingerprint, tower, versions, commit
    space0/ space1/ …        one folder per visited space: space.json, supernet/ (checkpoints), scores.jsonl (space
                             search), evaluated.jsonl (architecture search, all budgets), random.jsonl (if asked for)
    space_search.jsonl       the decision of every iteration, complete enough to be recomputed by hand
    features/                what a decoder's frozen tower made of the images, if that is kept (tower.cache)
    clock.json               seconds of every phase; no result depends on it
    hours.jsonl              where the config limits the hours: what each phase was shortened to
    latency.json             where a budget limits latency: the milliseconds of every block, measured once
    timed.jsonl              and of the best networks as a whole, before they are finished
    space…/search-0/         the architecture search of budget 0: winner.json, pareto.json,
                             generations.json (the best so far), finish-…/
    report/                  what happened, on one page and as figures
    test-0.json …            how many test images the winner of each budget got right, and each of its controls
    model/                   the exported network (model-0/, model-1/ … with several budgets)
    result.json              what was found; written last, after the test images (once for each winner)
"""

from __future__ import annotations

import dataclasses
import random
from pathlib import Path
from typing import Any

import torch

from s3zoo.artefact import save_model
from s3zoo.drawing import quantity, told_control, told_latency
from s3zoo.families import FAMILIES
from s3zoo.files import Records, read_json, write_json
from s3zoo.search import glit, s3
from s3zoo.search.budget import Budget, Pricer, check_feasible, extents
from s3zoo.search.config import SearchRun
from s3zoo.search.context import Context, Finished, Found, count_correct
from s3zoo.search.course import Course
from s3zoo.search.finish import audit_ranking
from s3zoo.search.forecast import typical_macs
from s3zoo.search.latency import LatencyTable, this_device
from s3zoo.search.moves import within_limit
from s3zoo.search.phases import (
    check_beginning,
    decide_move,
    measure_latencies,
    measure_winner,
    reach_layers,
    score_random,
    search_architectures,
    show_decision,
    show_space,
    some_feasible,
    space_row,
    train_supernet,
)
from s3zoo.search.plan import Pace
from s3zoo.search.records import read_result, read_space
from s3zoo.search.space_search import Decision, backtrack
from s3zoo.space import Space, glit_split
from s3zoo.supernet import Supernet
from s3zoo.training.config import to_dict
from s3zoo.training.data import ImageData
from s3zoo.training.distributed import Ranks, mixed_precision
from s3zoo.training.features import FeatureData, tower_of, tower_record
from s3zoo.training.folder import check_folder, claim_folder
from s3zoo.training.log import Log
from s3zoo.training.loop import Stop, check
from s3zoo.training.provenance import command, provenance


def search(
    run: SearchRun, folder: Path, ranks: Ranks, log: Log, stop: Stop, *, check_data: bool = False
) -> dict[str, Any]:
    """Search a network in this folder, or go on with it; what result.json says."""
    context = prepare(run, folder, ranks, log, stop, check_data)
    path = folder / "result.json"
    if path.exists():
        log.say(f"This run is finished; its result is in {path}")
        return read_result(path)
    if run.hierarchy == "glit":
        found, visited = glit.search_hierarchy(context)
    else:
        found, visited = search_spaces(context)
    return conclude(context, found, visited)


# Before the first step


def prepare(run: SearchRun, folder: Path, ranks: Ranks, log: Log, stop: Stop, check_data: bool = False) -> Context:
    """Open the images, refuse what cannot work out, and make the folder this run's."""
    torch.set_num_threads(run.threads)
    tower = _open_tower(run, ranks)
    data = _open_images(run, folder, tower, ranks, log, stop)
    data.check_splits(check_data)
    identity = {"data": data.fingerprint} | ({} if tower is None else {"tower": tower_record(tower)})
    name = check_folder(folder, run, **identity)  # before minutes are spent on measuring
    if not run.supernet_weights:
        check(run.supernet, data, ranks)
    if run.final.mode != "inherit" or run.space_search.audit:
        check(run.final.train, data, ranks)
    if run.space_search.audit:
        check(run.audit_trains["finetune"], data, ranks)
    latency = _open_latencies(run, folder, tower, ranks)
    sizes, pricer = Pricer(**run.priced), Pricer(**run.priced, latency=latency)
    course = Course(folder, to_dict(run), data.train_size, log, write=ranks.first, run=name, macs=typical_macs(run))
    log.clock = course.clock
    pace = Pace(run, folder, course, data.train_size, ranks, log, name)
    context = Context(run, folder, ranks, log, stop, data, tower, sizes, latency, pricer, name, course, pace)
    if not (folder / "run.json").exists():
        check_beginning(context)
    measure_latencies(context, run.space)
    _check_feasible(context)
    claim_folder(folder, run, ranks, command=command("search", run), **identity)
    if run.space_search.method != "none" and not some_feasible(context, run.space):
        listed = " or ".join(map(str, run.budgets))
        log.say(f"{run.space.name} has no network within {listed}: it must be left, or the search will fail")
    return context


def _open_tower(run: SearchRun, ranks: Ranks) -> Any:
    if not FAMILIES[run.space.family].reads_tower:
        return None
    tower = tower_of(run.tower, run.data, ranks.device)
    deepest = run.space.largest().depths[0]
    if deepest > len(tower.blocks):
        raise ValueError(
            f"Space {run.space.name!r} has decoders of {deepest} layers, but the tower {run.tower.name} has fewer"
            " blocks; take a deeper tower or a shallower space."
        )
    return tower


def _open_images(run: SearchRun, folder: Path, tower: Any, ranks: Ranks, log: Log, stop: Stop) -> ImageData:
    if tower is None:
        return ImageData(
            run.data, run.seed, rank=ranks.rank, world=ranks.world, say=log.say, folder=folder, device=ranks.device
        )
    return FeatureData(
        run.data, run.seed, tower, ranks, amp=mixed_precision(run.amp, ranks.device, run.amp_dtype),
        cache=run.tower.cache, folder=Path(run.tower.cache_dir or folder / "features"), run_folder=folder, log=log,
        stop=stop,
    )  # fmt: skip


def _open_latencies(run: SearchRun, folder: Path, tower: Any, ranks: Ranks) -> LatencyTable | None:
    """If a budget limits latency: this run's table, or the one that the config names, or an empty one."""
    if not any("latency" in budget.limits for budget in run.budgets):
        return None
    table, options, path = None, run.arch_search, folder / "latency.json"
    shape = run.shape | {"tower": "" if tower is None else run.tower.name}
    if ranks.first:
        asked: dict[str, Any] = {"batch_size": options.latency_batch, "runtime": options.latency_runtime}
        threads = options.latency_threads
        if options.latency_table:
            table = LatencyTable.load(path if path.exists() else options.latency_table, **shape)
        elif path.exists():
            table = LatencyTable.load(path, **shape, **asked, **this_device(ranks.device, threads))
        else:
            table = LatencyTable.empty(run.space, **shape, **asked, device=ranks.device, threads=threads)
    table = ranks.from_first(table)
    assert table is not None
    table.tower = tower
    return table


def _check_feasible(context: Context) -> None:
    """Say at once what the first space cannot give, as far as the search does not leave it."""
    run, moves = context.run, context.run.space_search
    if run.controls.designed:
        arch = run.controls.designed_arch(run.space)
        costs = (context.pricer if run.space.contains(arch) else context.sizes)(arch)
        if broken := [str(budget) for budget in run.budgets if budget.excess(costs)]:
            sizes = f"{costs['params']:,.0f} parameters and {costs['macs']:,.0f} MACs"
            raise ValueError(f"controls.designed has {sizes}, which is not within {broken[0]}; make it smaller.")
    if moves.method == "none":  # the only space there will be
        first = glit_split(run.space) if run.hierarchy == "glit" else run.space
        for budget in run.budgets:
            check_feasible(first, budget, context.pricer, random.Random(run.seed))
    elif moves.method == "s3" and not s3.samples(run.space, 1, random.Random(0), within_limit(moves, context.sizes)):
        extent = "{:,.0f} to {:,.0f}".format(*extents(run.space, context.sizes)[moves.limit_metric])
        raise ValueError(
            f"No sampled network of space {run.space.name!r} is within space_search.lower and upper; its"
            f" {moves.limit_metric} go from {extent}, so change the limits or the space."
        )


# The spaces


def search_spaces(context: Context) -> tuple[list[Found], list[dict[str, Any]]]:
    """Visit spaces as S3 or S4 leads, then search the last one (or, with backtracking, the last feasible one).

    Returns what was found there, and the visited spaces as result.json tells of them.
    """
    config, folder = context.run.space_search, context.folder
    iterations = config.iterations if config.method != "none" else 0
    decisions = context.records(folder / "space_search.jsonl", lambda row: Decision.from_dict(row.get("decision")))
    supernets: list[Supernet] = []
    visited: list[dict[str, Any]] = []
    space: Space | None = first_space(context)
    while space is not None:
        index, place = len(supernets), folder / f"space{len(supernets)}"
        supernets.append(train_supernet(context, space, place, supernets[-1] if supernets else None))
        score_random(context, supernets[-1], place)
        visited.append(space_row(context, space, index))
        show_space(context, space, index)
        if index == iterations:
            break
        if config.search_each_space:  # S3 may leave the budget and come back
            some = search_architectures(context, supernets[-1], place) if some_feasible(context, space) else None
            visited[-1]["best"] = some and best_rows(context, some)
        if index < len(decisions.rows):
            decision = Decision.from_dict(decisions.rows[index]["decision"])
        else:
            decision = decide_move(context, supernets[-1], place, index)
            decisions.append([{"iteration": index, "decision": decision.to_dict()}])
        context.log.say(f"space{index}: {decision.told()}")
        show_decision(context, decision, index)
        name = f"{context.run.space.name}_{index + 1}"
        space = dataclasses.replace(decision.space, name=name) if decision.moved else None
    last = len(supernets) - 1
    if config.backtrack:
        last = backtrack([supernet.space for supernet in supernets], lambda each: some_feasible(context, each))
        if last < len(supernets) - 1:
            context.log.say(f"backtracked to space{last}: the later ones have no network within the budget")
            reach_layers(context, supernets[last].space)
    context.course.ends(last=last, visited=len(supernets))
    if config.audit:
        with context.course.phase(f"space{last}: audit"):
            audit_ranking(context, supernets[last], folder / f"space{last}")
    found = search_architectures(context, supernets[last], folder / f"space{last}", controls=True)
    visited[last]["best"] = best_rows(context, found)
    return found, visited


def first_space(context: Context) -> Space:
    """The config's; decoders never grow deeper than their tower."""
    space, tower = context.run.space, context.tower
    if tower is None:
        return space
    high = float(len(tower.blocks))
    dims = (dataclasses.replace(dim, high=high) if dim.gene == "depth" else dim for dim in space.dims)
    return dataclasses.replace(space, dims=tuple(dims))


def best_rows(context: Context, found: list[Found]) -> list[dict[str, Any]]:
    return [each.networks[0].row(context) for each in found]


# The end


def conclude(context: Context, found: list[Found], visited: list[dict[str, Any]]) -> dict[str, Any]:
    """Open the test images, once for each winner and each control, and export the winners with what they give."""
    run, folder = context.run, context.folder
    rows: list[dict[str, Any]] = []
    controls: list[dict[str, Any]] = []
    with context.course.phase("test images"):
        for index, (budget, (best, *_), beside) in enumerate(found):
            context.course.part(index, len(found))
            row = _tested(context, f"test-{index}", best, budget) | measure_winner(context, index, best.arch)
            own = [
                {"control": name, **_tested(context, f"test-{index}-{name}", network, budget)}
                for name, network in beside.items()
            ]
            place, test = folder / ("model" if len(found) == 1 else f"model-{index}"), row["test"]
            latency = f", {told_latency(row['latency_check'])}" if "latency_check" in row else ""
            context.log.say(
                f"{budget if budget.limits else 'winner'}: {test['top1']:.2f} % of {test['images']} test images"
                f" ({test['low']:.2f} to {test['high']:.2f}), {row['params'] / 1e6:.3g}M parameters,"
                f" {row['macs'] / 1e6:.4g}M MACs{latency}; in {place}"
            )
            if own:
                context.log.say(compared(row, own))
            if context.ranks.first:
                _export(context, place, best, row, visited, own)
            rows.append(row)
            controls += own
    result = {"name": run.name, "seed": run.seed, "winners": rows, "spaces": visited}
    if controls:
        result["controls"] = controls
    if run.final.use_held_out:
        result["use_held_out"] = True  # so there are no accuracies on these images
    context.ranks.wait()  # all have listed what they could not read
    result |= context.data.lost()
    if context.ranks.first:
        write_json(folder / "result.json", result | {"run": context.name})
    context.ranks.wait()
    return result


def _tested(context: Context, name: str, network: Finished, budget: Budget) -> dict[str, Any]:
    """A network as result.json tells of it; the count of its test images is kept under this name."""
    test = count_correct(context, context.folder / f"{name}.json", network.model, context.data.test_batches)
    return {"budget": str(budget), "test": test, **network.row(context)}


def compared(winner: dict[str, Any], controls: list[dict[str, Any]]) -> str:
    """A table of a winner and the networks beside it, with 95 % intervals."""
    lines = [f"{'network':<50} {'test %':>6} {'interval':>15} {'parameters':>10} {'MACs':>8} {'ms':>6}"]
    for row in (winner, *controls):
        name, test, ms = told_control(row), row["test"], row.get("latency")
        lines.append(
            f"{name:<50} {test['top1']:>6.2f} {test['low']:>6.2f} to {test['high']:>5.2f} {quantity(row['params']):>10}"
            f" {quantity(row['macs']):>8} {'-' if ms is None else f'{ms:.3g}':>6}"
        )
    return "\n".join(lines)


def _export(
    context: Context, folder: Path, best: Finished, row: dict[str, Any], visited: list[dict[str, Any]],
    controls: list[dict[str, Any]],
) -> None:  # fmt: skip
    """A folder that timm opens, with where the network comes from."""
    run, data = context.run, context.run.data
    metrics = {"test": row["test"]}
    if best.accuracy is not None:
        metrics["held-out"] = {"top1": best.accuracy, "images": context.data.search_size}
    context.course.clock.save()
    record = provenance("search", run, context.folder, context.ranks, metrics=metrics)
    record |= {"space": run.space.name, "budget": row["budget"], "final": run.final.mode}
    if run.final.use_held_out:
        record["use_held_out"] = True
    if controls:
        kept = ("control", "model", "within_budget", "from_scratch", "test", "params", "macs", "latency")
        record["controls"] = [{key: each[key] for key in kept if key in each} for each in controls]
    if best.lost is not None:
        record["final"] = "inherit (finetuning lost)"
    if "latency_check" in row:
        record["latency"] = row["latency_check"]
    record["trajectory"] = _trajectory(context.folder, visited)
    record["cost"]["subnets_scored"] = _subnets_scored(context.folder)
    if run.supernet_weights:
        record["supernet"] = read_json(context.folder / "space0" / "supernet.json")
    if run.start:
        record["base"] = read_json(context.folder / "space0" / "start.json")
    if context.tower is not None:
        record["tower"] = tower_record(context.tower)
    cfg = {key: getattr(data, key) for key in ("mean", "std", "crop_pct", "interpolation")}
    cfg["label_names"] = list(context.data.classes)
    save_model(folder, best.model, provenance=record, pretrained_cfg=cfg)


def _trajectory(folder: Path, visited: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The visited spaces: sizes, ranges, and the choices of what had several in one of them."""
    spaces = [read_space(folder / f"space{row['index']}" / "space.json") for row in visited]
    several = {dim.name for space in spaces for dim in space.dims if len(dim.choices) > 1}
    rows = []
    for row, space in zip(visited, spaces, strict=True):
        choices = {dim.name: list(dim.choices) for dim in space.dims if dim.name in several}
        rows.append({key: value for key, value in row.items() if key != "best"} | {"choices": choices})
    return rows


def _subnets_scored(folder: Path) -> int:
    """Over all spaces, each architecture as often as a supernet scored it anew."""
    names = ("scores", "evaluated", "random", "random_search")
    files = [path for name in names for path in folder.glob(f"space*/{name}.jsonl")]
    return sum("arch" in row for path in files for row in Records(path, write=False).rows)
