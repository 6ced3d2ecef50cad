"""The phases of a search as functions: each takes what it needs, leaves its result in the run's folder and returns it.

A phase that finds its result there passes over its work. `Context` is what all of them share; nothing in it changes but
the latency table, which grows with the spaces that are visited.
"""

from __future__ import annotations

import itertools
import math
import random
import statistics
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import nn

from s3zoo.arch import Arch
from s3zoo.files import Records, read_json, sha256, write_json
from s3zoo.models import MODELS
from s3zoo.search import s3, s4, stock
from s3zoo.search.budget import Budget, Feasible, Pricer, check_feasible, extents
from s3zoo.search.config import SearchRun
from s3zoo.search.course import Course
from s3zoo.search.evaluate import Evaluator, RacingEvaluator
from s3zoo.search.evolution import Evolution, RandomSearch, pareto
from s3zoo.search.latency import LatencyTable
from s3zoo.search.plan import Pace
from s3zoo.search.published import FinishedRun, official_autoformer_supernet
from s3zoo.search.space_search import Decision, SpaceSearch, equivalent_dims, rank_correlation
from s3zoo.search.start import begin, read_start
from s3zoo.space import Space
from s3zoo.supernet import Supernet, recalibrate
from s3zoo.training.accuracy import resumable_accuracy
from s3zoo.training.config import Train
from s3zoo.training.data import Batch, ImageData
from s3zoo.training.distributed import Ranks, mixed_precision
from s3zoo.training.features import FeatureData
from s3zoo.training.log import Log
from s3zoo.training.loop import ModelTask, Stop, SupernetTask, fit, seed_from

HEALTH_IMAGES = 512
TOP = 50  # networks of every generation that are listed


@dataclass(frozen=True)
class Context:
    """Where and on what a run works."""

    run: SearchRun
    folder: Path
    ranks: Ranks
    log: Log
    stop: Stop
    data: ImageData
    tower: Any  # the frozen one that decoders read, or None
    budgets: tuple[Budget, ...]
    sizes: Pricer  # costs of networks of any space
    latency: LatencyTable | None  # where a budget limits latency
    pricer: Pricer  # costs of networks of visited spaces, latency included
    name: str  # names this run in its files
    course: Course
    pace: Pace

    @property
    def amp(self) -> torch.dtype | None:
        return mixed_precision(self.run.amp, self.ranks.device, self.run.amp_dtype)

    @property
    def model_args(self) -> dict[str, Any]:
        return {} if self.tower is None else {"tower": self.tower}  # one for all networks of the run

    def records(self, path: Path) -> Records:
        return self.ranks.rank0_first(lambda: Records(path, write=self.ranks.first, run=self.name))

    def row(self, arch: Arch, accuracy: float | None) -> dict[str, Any]:
        return {"accuracy": accuracy, **self.pricer(arch), "arch": arch.to_dict()}


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
        lost = {} if self.lost is None else {"finetuned": self.lost, "kept": "inherited"}
        if self.arch is None:
            return {"inherited": None, "accuracy": self.accuracy, **self.stock}
        return {"inherited": self.inherited, **context.row(self.arch, self.accuracy), **lost}


class Found(NamedTuple):
    """What the search of a space gave under one budget: the finished networks, best first."""

    budget: Budget
    networks: list[Finished]
    controls: dict[str, Finished]  # what the winner is compared with; only in the last space


# Spaces


def measure_latencies(context: Context, space: Space) -> None:
    """Let the latency table, if there is one, cover a space."""
    if (table := context.latency) is None:
        return
    repeats, measured = context.run.arch_search.latency_repeats, context.records(context.folder / "latency.part.jsonl")
    table.cover(space, repeats, log=context.log, measured=measured, ranks=context.ranks, stop=context.stop)
    if context.ranks.first:
        table.save(context.folder / "latency.json")
    measured.clear()


def measure_winner(context: Context, budget: int, arch: Arch | None) -> dict[str, Any]:
    """How long a network takes whose latency the table promises, and where; on another device than the table's it is
    not measured. What was measured once is kept in clock.json."""
    table, known = context.latency, context.course.latency
    if table is None or arch is None:
        return {}
    if context.ranks.first and str(budget) not in known:
        if (ms := table.measured(arch, context.run.arch_search.latency_repeats)) is not None:
            context.course.measured(budget, ms)
    setting = table.setting
    where = {key: getattr(setting, key) for key in ("device", "device_name", "threads", "batch_size", "runtime")}
    measured = context.ranks.from_first(known.get(str(budget)))
    return {"latency_check": {"promised": context.pricer(arch)["latency"], "measured": measured, **where}}


def reach_layers(context: Context, space: Space) -> None:
    """Let the features of a frozen tower have the layers that this space's decoders read."""
    if isinstance(context.data, FeatureData):
        context.data.reach(space.largest().depths[0])


def some_feasible(context: Context, space: Space) -> bool:
    """Whether the space has a network within each budget."""
    try:
        for budget in context.budgets:
            check_feasible(space, budget, context.pricer, random.Random(0))
    except ValueError:
        return False
    return True


def space_row(context: Context, space: Space, index: int) -> dict[str, Any]:
    """A visited space, as result.json tells of it."""
    ends = {metric: list(pair) for metric, pair in extents(space, context.pricer).items()}
    return {"space": space.name, "size": space.size(), "index": index, **ends}


def show_space(context: Context, space: Space, index: int) -> None:
    """The space in TensorBoard: of each dimension the choices that it begins and ends with."""
    for dim in space.searched:
        context.log.curve(f"space/{dim.name}", index, {"lowest": dim.choices[0], "highest": dim.choices[-1]})


def show_decision(context: Context, decision: Decision, index: int) -> None:
    """What moves the space, in TensorBoard."""
    record = decision.record
    slopes = {row["name"]: row.get("slope", row.get("z")) for row in record["dims"]}
    context.log.curve("slope", index, {name: slope for name, slope in slopes.items() if slope is not None})
    numbers = {key: record[key] for key in ("cosine", "legal", "neighbours") if record.get(key) is not None}
    quality = {f"error {key}": record["quality"][key] for key in ("mean", "top", "et")} if "quality" in record else {}
    context.log.curve("space search", index, numbers | quality)


def decide_move(context: Context, supernet: Supernet, place: Path, index: int) -> Decision:
    """Score architectures of the space and ask S3 or S4 where to go."""
    name = f"space{index}: scores"
    evaluate = make_evaluator(context, supernet, place / "scores.jsonl", name)
    with context.course.phase(name):
        return choose_move(context.run, supernet.space, index, context.sizes, evaluate)


def choose_move(
    run: SearchRun, space: Space, index: int, sizes: Pricer, evaluate: Callable[[list[Arch]], list[float]]
) -> Decision:
    """Where S3 or S4 goes from a space, by the accuracies of the architectures that it asks for."""
    config = run.space_search
    rng = random.Random(seed_from(run.seed, "space", index))
    frozen = equivalent_dims(space, run.data.img_size)
    if config.method == "s3":
        identity: Callable[[Arch], Arch] = lambda arch: arch.effective(run.data.img_size)  # noqa: E731
        archs = s3.samples(space, config.samples, rng, within_limit(config, sizes), identity)
        if not archs:
            record = {"method": "s3", "samples": 0, "dims": []}
            return Decision(space, False, "it has no network within the limits", record)
        errors = [100 - score for score in evaluate(archs)]
        return s3.decide(space, list(zip(archs, errors, strict=True)), config, frozen=frozen)
    pairs = s4.pairs(space, config.pairs, rng, frozen=frozen)
    scores = evaluate([arch for pair in pairs for arch in (pair.low_arch, pair.high_arch)])
    measured = [(pair, scores[2 * i], scores[2 * i + 1]) for i, pair in enumerate(pairs)]
    price: Callable[[Arch], float] = lambda arch: sizes(arch)[config.limit_metric]  # noqa: E731
    return s4.decide(space, measured, config, price, frozen=frozen)


def score_random(context: Context, supernet: Supernet, place: Path) -> None:
    """Record what random networks of a space are worth, scored in full (S3 Figs. 3 and 6)."""
    if count := context.run.space_search.random_samples:
        rng = random.Random(seed_from(context.run.seed, "random", place.name))
        name = f"{place.name}: random networks"
        evaluate = make_evaluator(context, supernet, place / "random.jsonl", name)
        with context.course.phase(name):
            evaluate([supernet.space.sample(rng) for _ in range(count)])


def replayed_moves(run: SearchRun, folder: Path) -> Iterator[str]:
    """What each visited space of a run would have moved to under these settings of the space search, in a line.

    Nothing is trained or scored: the accuracies are those in the run's scores.jsonl files.
    """
    if run.space_search.method == "none":
        raise ValueError(f"The config {run.name} moves no space (space_search.method is 'none'), so none is replayed.")
    places = list(itertools.takewhile(lambda place: (place / "scores.jsonl").exists(), map(
        lambda index: folder / f"space{index}", itertools.count()
    )))  # fmt: skip
    if not places:
        raise ValueError(
            f"{str(folder / 'space0' / 'scores.jsonl')!r} does not exist; give the folder of a run as --out."
        )
    for index, place in enumerate(places):
        rows = Records(place / "scores.jsonl", write=False).rows
        scores = {Arch.from_dict(row["arch"]): row["accuracy"] for row in rows if "arch" in row}

        def recorded(archs: list[Arch], scores: dict[Arch, float] = scores, place: Path = place) -> list[float]:
            same = [arch.effective(run.data.img_size) for arch in archs]
            if lacking := [arch for arch in same if arch not in scores]:
                raise ValueError(
                    f"{place / 'scores.jsonl'} has no score of {len(lacking)} of the {len(same)} networks that this"
                    " config asks for; give the run's own config and seed, and change only what decides on scores, such"
                    " as space_search.tau, rounding or significance."
                )
            return [scores[arch] for arch in same]

        space = Space.from_dict(read_json(place / "space.json"))
        yield f"{place.name}: {choose_move(run, space, index, Pricer(**run.priced), recorded).told()}"


def within_limit(config: SpaceSearch, sizes: Pricer) -> Callable[[Arch], bool]:
    return lambda arch: config.allows(sizes(arch)[config.limit_metric])


# Supernets


def train_supernet(context: Context, space: Space, place: Path, previous: Supernet | None) -> Supernet:
    """The trained supernet of a space, with `previous` to begin from if the config says so."""
    run = context.run
    measure_latencies(context, space)
    reach_layers(context, space)
    if run.supernet_weights:
        return _given_supernet(context, space, place)
    name = f"{place.name}: supernet"
    train = context.pace.at(name).supernet
    torch.manual_seed(seed_from(run.seed, "init", place.name))
    supernet = Supernet(
        space, sharing=train.sharing, drop_path_rate=train.drop_path, device=context.ranks.device, **run.shape,
        model_args=context.model_args,
    )  # fmt: skip
    if context.ranks.first:
        write_json(place / "space.json", space.to_dict())
    if run.start and previous is None:
        start = read_start(run.start)
        _same_source(context, place / "start.json", start.record, run.start)
        share = begin(supernet, start) / len(supernet.flat)
        context.log.say(f"{place.name}: {share:.0%} of the weights begin as those of {start.name}")
    if train.warm_start and previous is not None:
        taken = supernet.warm_start(previous.state_dict())
        context.log.say(f"{place.name}: {taken} of {len(supernet.flat)} weights begin from the previous supernet's")
    context.log.say(f"{place.name}: {space.size():.3g} architectures, supernet with {len(supernet.flat):,} weights")
    some = space.sample(random.Random(seed_from(run.seed, "health", place.name)))

    def health(epoch: int) -> dict[str, float]:
        images = np.arange(min(HEALTH_IMAGES, context.data.search_size))
        probe = make_evaluator(context, supernet, None, "health")
        return {
            name: float(probe.correct(arch, images).mean() * 100)
            for name, arch in (("smallest", space.smallest()), ("largest", space.largest()), ("random", some))
        }

    task = SupernetTask(supernet, train, run.seed)
    with context.course.phase(name):
        _fit(context, task, train, context.data, place / "supernet", name, run.seed, at_epoch_end=health)
    return supernet


def _fit(
    context: Context, task: Any, train: Train, data: ImageData, folder: Path, name: str, seed: int, **options: Any
) -> None:
    fit(
        task, train, data, seed=seed, ranks=context.ranks, folder=folder, log=context.log, name=name,
        stop=context.stop, amp=context.amp, run=context.name, **options,
    )  # fmt: skip


def _same_source(context: Context, record: Path, source: dict[str, Any], place: Any) -> None:
    """What a run begins from stays the same while it lasts."""
    if record.exists() and read_json(record) != source:
        raise ValueError(
            f"{context.folder} holds a run with another file than {place}; restore that, or give another --out."
        )
    context.ranks.wait()
    if context.ranks.first:
        write_json(record, source)


def _given_supernet(context: Context, space: Space, place: Path) -> Supernet:
    """The supernet of a file or of another run, as it is; it must stay the same while this run lasts."""
    path, record = Path(context.run.supernet_weights).expanduser(), place / "supernet.json"
    if path.is_dir():
        finished = FinishedRun(path)
        supernet, file = finished.supernet(context.ranks.device, context.model_args), finished.weights
        name, same = path.resolve().name, finished.data == context.data.fingerprint
    else:
        supernet = official_autoformer_supernet(path, space, **context.run.shape, device=context.ranks.device)
        name, file, same = path.name, path, False
    source = {"file": name, "sha256": sha256(file)}
    _same_source(context, record, source, path)
    if context.ranks.first:
        write_json(place / "space.json", space.to_dict())
    warning = "; the supernet may have been trained on the held-out images, so take their accuracies as a ranking"
    context.log.say(
        f"{place.name}: {space.size():.3g} architectures, {len(supernet.flat):,} weights of {name}"
        + ("" if same else warning)
    )
    if same:  # what it scored needs not be scored again
        evaluated = context.records(place / "evaluated.jsonl")
        if not evaluated.rows and (rows := finished.scored()):
            evaluated.append(rows)
            context.log.say(f"{place.name}: {len(rows)} scores are those of {name}")
    return supernet


# Architectures


def make_evaluator(
    context: Context, supernet: Supernet, path: Path | None, name: str, *, racing: bool = False
) -> Evaluator:
    """Scores of a supernet's subnets, kept in a file, or nowhere."""
    run, options = context.run, context.run.arch_search
    common: dict[str, Any] = {"price": context.pricer, "calibration_images": options.calibration_images, "name": name}
    records = Records(None) if path is None else context.records(path)
    if path is not None:
        common["unfinished"] = context.records(path.with_suffix(".part.jsonl"))
    if racing:
        common |= {"seed": seed_from(run.seed, "race"), "keep": max(options.parents, run.final.top)}
    kind = RacingEvaluator if racing else Evaluator
    return kind(supernet, context.data, context.ranks, context.log, records, context.stop, **common)


def search_architectures(
    context: Context, supernet: Supernet, place: Path, *, controls: bool = False, train: bool = True
) -> list[Found]:
    """The best networks of a space for every budget, finished, and if asked for the controls.

    Without `train` they keep the supernet's weights. Without a budget in the config, the limit of the space search is
    one, if the space has a network within it.
    """
    run, space, budgets = context.pace.at(f"{place.name}: search"), supernet.space, context.budgets
    rng = random.Random(seed_from(run.seed, "budget"))
    if not run.arch_search.budgets and not some_feasible(context, space):
        context.log.say(f"{place.name}: no network is within {budgets[0]}, so the search goes without limits")
        budgets = (Budget(),)
    filters = [check_feasible(space, budget, context.pricer, rng) for budget in budgets]
    racing = run.arch_search.racing and run.arch_search.method == "evolution"  # what is compared is scored in full
    evaluate = make_evaluator(context, supernet, place / "evaluated.jsonl", f"{place.name}: search", racing=racing)
    method, same = run.arch_search.method, evaluate.identity
    engines = [_make_engine(run, space, feasible, same, index, method) for index, feasible in enumerate(filters)]
    with context.course.phase(f"{place.name}: search"):
        for index, (budget, engine) in enumerate(zip(budgets, engines, strict=True)):
            where = f"{place.name}: {budget}" if budget.limits else place.name
            generations = place / f"search-{index}" / "generations.json"
            _evolve(context, engine, evaluate, where, generations, (index, len(budgets)))
            if context.ranks.first:
                _write_archive(context, place / f"search-{index}", engine, budget, evaluate)
    if controls and run.controls.stock:
        best = [(engine.best[0], budget) for budget, engine in zip(budgets, engines, strict=True)]
        rows = [choose_stock(context, place / f"search-{i}", *each) for i, each in enumerate(best)]
        context.course.beside(statistics.fmean(sum(row["macs"] for row in each.values()) for each in rows))
    found, recipe = [], context.pace.at(f"{place.name}: finish").final.train
    mode = run.final.mode if train else "inherit"
    with context.course.phase(f"{place.name}: finish"):
        for index, (budget, engine) in enumerate(zip(budgets, engines, strict=True)):
            finished = []
            for i, (arch, score) in enumerate(engine.top(run.final.top)):
                context.course.part(index * run.final.top + i, len(budgets) * run.final.top)
                folder = place / f"search-{index}" / f"finish-{i}"
                done = finish(context, supernet, arch, score, folder, mode, recipe)
                if mode == "finetune" and done.accuracy is not None and score > done.accuracy:
                    context.log.say(
                        f"{arch.key}: {done.accuracy:.2f} % of the held-out images after finetuning, {score:.2f} %"
                        " before, so the inherited weights are kept"
                    )
                    lost, folder = done.accuracy, folder.with_name(f"inherit-{i}")
                    done = finish(context, supernet, arch, score, folder, "inherit", recipe)
                    done.lost = lost
                finished.append(done)
            found.append(Found(budget, sorted(finished, key=lambda each: -(each.accuracy or 0)), {}))
    if controls and run.controls:
        with context.course.phase(f"{place.name}: controls"):
            for index, feasible in enumerate(filters):
                context.course.part(index, len(filters))
                beside = finish_controls(context, supernet, place, index, feasible, recipe)
                if run.controls.stock:
                    beside |= finish_stock(context, place / f"search-{index}", rows[index], recipe)
                found[index] = found[index]._replace(controls=beside)
    return found


def finish_controls(
    context: Context, supernet: Supernet, place: Path, index: int, feasible: Feasible, train: Train
) -> dict[str, Finished]:
    """The networks beside the winner of a budget, by what they are."""
    run, controls = context.run, context.run.controls
    chosen: dict[str, tuple[Arch, float | None]] = {}
    if controls.designed:
        chosen["designed"] = controls.designed_arch(run.space), None
    if controls.random:
        rng = random.Random(seed_from(run.seed, "random control", index))
        drawn = Feasible(run.space, feasible.budget, context.pricer).draw(rng) or feasible.draw(rng)
        assert drawn is not None  # the searched space has networks within the budget
        chosen["random"] = drawn, None
    if controls.random_search:
        path = place / "random_search.jsonl"
        evaluate = make_evaluator(context, supernet, path, f"{place.name}: random search")
        engine = _make_engine(run, supernet.space, feasible, evaluate.identity, index, "random")
        generations = place / f"search-{index}" / "random_generations.json"
        number = index, len(context.budgets)
        _evolve(context, engine, evaluate, f"{place.name}: {feasible.budget}, random search", generations, number)
        chosen["random_search"] = engine.best
    folder = place / f"search-{index}"
    return {
        name: finish(context, supernet, arch, score, folder / f"control-{name}", run.final.mode, train)
        for name, (arch, score) in chosen.items()
    }


def choose_stock(context: Context, place: Path, winner: Arch, budget: Budget) -> dict[str, dict[str, Any]]:
    """timm's transformer and CNN nearest to a network, which are kept in stock.json."""
    run, path, table = context.run, place / "stock.json", context.latency
    if context.ranks.first and not path.exists():
        repeats, costs = run.arch_search.latency_repeats, context.pricer(winner)
        here = table is not None and table.is_here
        latency = (lambda model: table.measured_model(model, repeats)) if table is not None and here else None
        chosen: dict[str, Any] = {}
        for kind in stock.LISTS:
            known = stock.price_list(kind, run.shape, latency, costs["latency"] if here else math.inf)
            if near := stock.nearest(known, costs, budget, "latency" if here else "macs"):
                # others begin with the supernet's weights where they are finetuned
                chosen[kind] = near | ({"from_scratch": True} if run.final.mode == "finetune" else {})
        write_json(path, chosen)
    context.ranks.wait()
    return read_json(path)


def finish_stock(context: Context, place: Path, rows: dict[str, dict[str, Any]], train: Train) -> dict[str, Finished]:
    """Those of timm, trained like the winner."""
    run, finished = context.run, {}
    for kind, row in rows.items():
        torch.manual_seed(seed_from(run.seed, "stock", row["model"]))
        model = stock.build(row["model"], run.shape).to(context.ranks.device)
        folder = place / f"control-{kind}"
        _fit(context, ModelTask(model), train, context.data, folder, f"timm's {row['model']}", run.seed)
        images = lambda first: context.data.search_images(first=first)  # noqa: E731
        score = count_correct(context, folder / "score.json", model, images)
        finished[kind] = Finished(None, model, None, score["top1"], stock=row)
    return finished


def _make_engine(
    run: SearchRun, space: Space, feasible: Feasible, identity: Callable[[Arch], Arch], index: int, method: str
) -> Evolution:
    engine = RandomSearch if method == "random" else Evolution
    names = ("population", "generations", "parents", "crossover", "mutation", "p_depth", "p_embed", "p_block")
    options: dict[str, Any] = {name: getattr(run.arch_search, name) for name in names}
    options["seed"] = seed_from(run.seed, "evolution", index)
    return engine(space, feasible=feasible, draw=feasible.draw, identity=identity, **options)


def _evolve(
    context: Context, engine: Evolution, evaluate: Evaluator, where: str, path: Path, budget: tuple[int, int]
) -> None:
    """Ask and tell until the search is over; the best after each generation are kept in the file `path`. `budget` is
    the number of this one, and how many there are."""
    while archs := engine.ask():
        context.course.part(budget[0] * engine.generations + len(engine.history), budget[1] * engine.generations)
        if isinstance(evaluate, RacingEvaluator):
            scores = evaluate.generation(archs, [arch for arch, _ in engine.top(evaluate.keep)])
        else:
            scores = evaluate(archs)
        engine.tell(list(zip(archs, scores, strict=True)))
        generation, (best, score) = len(engine.history), engine.best
        context.log.say(
            f"{where}: generation {generation}: best {score:.2f} % with"
            f" {context.pricer(best)['params'] / 1e6:.3g}M parameters, {len(engine.evaluated)} scored"
        )
        context.course.best = max(score, context.course.best or 0.0)
        listed = [each for _, each in engine.top(TOP)]
        curves = {"best": score, "mean": statistics.fmean(scores), f"mean of the best {TOP}": statistics.fmean(listed)}
        context.log.curve(where, generation, curves)
        if context.ranks.first:
            write_json(path, _generations(context, engine, evaluate))


def _write_archive(context: Context, folder: Path, engine: Evolution, budget: Budget, evaluate: Evaluator) -> None:
    records = [(arch, score, context.pricer(arch)) for arch, score in _full(engine, evaluate).items()]
    fronts = {metric: pareto(records, metric) for metric in context.pricer(records[0][0])}
    archive = {metric: [context.row(arch, score) for arch, score, _ in front] for metric, front in fronts.items()}
    write_json(folder / "pareto.json", archive)
    winner = {"budget": str(budget), "history": engine.history, **context.row(*engine.best)}
    write_json(folder / "winner.json", winner)


def _full(engine: Evolution, evaluate: Evaluator) -> dict[Arch, float]:
    """What the search has seen, without racing's estimates."""
    return {arch: score for arch, score in engine.evaluated.items() if evaluate.identity(arch) in evaluate.scores}


def _generations(context: Context, engine: Evolution, evaluate: Evaluator) -> list[list[dict[str, Any]]]:
    """After each generation the best networks so far, of those that are scored in full (AutoFormer Fig. 6).

    They are named as in evaluated.jsonl: by the key of the network that they are at this input size.
    """
    full, asked, seen, found = _full(engine, evaluate), iter(engine.evaluated), dict[Arch, float](), []
    for row in engine.history:
        seen |= {arch: full[arch] for arch in itertools.islice(asked, int(row["size"])) if arch in full}
        best = sorted(seen.items(), key=lambda item: (-item[1], item[0].key))[:TOP]
        found.append([
            {"key": evaluate.identity(arch).key, "accuracy": score, **context.pricer(arch)} for arch, score in best
        ])  # fmt: skip
    return found


# Finish


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
        _fit(context, ModelTask(model), train, images, place, f"{mode} {arch.key}", seed_from(run.seed, arch.key))
    if run.final.use_held_out:
        return Finished(arch, model, inherited, None)
    score = count_correct(context, place / "score.json", model, lambda first: data.search_images(first=first))
    return Finished(arch, model, inherited, score["top1"])


def count_correct(
    context: Context, path: Path, model: nn.Module, batches: Callable[[int], Iterable[Batch]]
) -> dict[str, float]:
    return resumable_accuracy(path, model, batches, context.ranks, context.stop, run=context.name)


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
