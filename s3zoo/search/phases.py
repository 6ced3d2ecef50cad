"""The phases of a search as functions: each takes what it needs, leaves its result in the run's folder and returns it.

A phase that finds its result there passes over its work. What all of them share is the `Context`; networks that were
chosen are finished in finish.py, and where a space moves is asked in moves.py.
"""

from __future__ import annotations

import itertools
import random
import statistics
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from s3zoo.arch import Arch
from s3zoo.files import Records, read_json, sha256, write_json
from s3zoo.search.budget import Budget, Feasible, check_feasible, extents
from s3zoo.search.config import SearchRun
from s3zoo.search.context import Context, Finished, Found, make_evaluator
from s3zoo.search.evaluate import Evaluator, RacingEvaluator
from s3zoo.search.evolution import Evolution, RandomSearch, pareto
from s3zoo.search.finish import choose_stock, finish, finish_best, finish_stock
from s3zoo.search.latency import check_measured
from s3zoo.search.moves import choose_move
from s3zoo.search.published import FinishedRun, official_autoformer_supernet
from s3zoo.search.records import check_scored, check_timed
from s3zoo.search.space_search import Decision
from s3zoo.search.start import begin, check_family, read_start
from s3zoo.space import Space
from s3zoo.supernet import Supernet
from s3zoo.training.config import Train
from s3zoo.training.features import FeatureData
from s3zoo.training.loop import SupernetTask, seed_from
from s3zoo.training.resumable import Row, resumable

HEALTH_IMAGES = 512
TOP = 50  # networks of every generation that are listed
DRAWN, RARE = 200, 0.05  # networks of a space that are looked at, and the share within a budget that is too small
PASSED_OVER = 9  # networks of a search at most whose latency as a whole breaks the budget


# Spaces


def measure_latencies(context: Context, space: Space) -> None:
    """Let the latency table, if there is one, cover a space."""
    if (table := context.latency) is None:
        return
    repeats = context.run.arch_search.latency_repeats
    measured = context.records(context.folder / "latency.part.jsonl", check_measured)
    with context.course.clock.phase(f"latencies of {space.name}"):
        table.cover(space, repeats, log=context.log, measured=measured, ranks=context.ranks, stop=context.stop)
    if context.ranks.first:
        table.save(context.folder / "latency.json")
    measured.clear()


def measure_winner(context: Context, budget: int, arch: Arch | None) -> dict[str, Any]:
    """How long a network takes whose latency is promised, and where; on another device than the table's it is not
    measured. What was measured once is kept in clock.json. The promise is its time as a whole when it was chosen, or
    the table's prediction if it was not timed then."""
    table, known = context.latency, context.course.clock.latency
    if table is None or arch is None:
        return {}
    if context.ranks.first and str(budget) not in known:
        if (timing := table.measured(arch, context.run.arch_search.latency_repeats)) is not None:
            context.course.measured(budget, *timing)
    setting = table.setting
    where = {key: getattr(setting, key) for key in ("device", "device_name", "threads", "batch_size", "runtime")}
    measured, slower = context.ranks.from_first((known.get(str(budget)), context.course.clock.slower.get(str(budget))))
    promised = _timed(_timings(context)).get(arch, context.pricer(arch)["latency"])
    check = {"promised": promised, "measured": measured, "slower": slower}
    return {"latency_check": check | {"others": table.others, **where}}


def _timings(context: Context) -> Records:
    """The networks that were timed as a whole before they were finished, of all spaces and budgets."""
    return context.records(context.folder / "timed.jsonl", check_timed)


def _timed(timings: Records) -> dict[Arch, float]:
    """The milliseconds of each, at the table's speed."""
    return {Arch.from_dict(row["arch"]): row["ms"] for row in timings.rows}


def reach_layers(context: Context, space: Space) -> None:
    """Let the features of a frozen tower have the layers that this space's decoders read."""
    if isinstance(context.data, FeatureData):
        with context.course.clock.phase(f"features for {space.name}"):
            context.data.reach(space.largest().depths[0])


def some_feasible(context: Context, space: Space) -> bool:
    """Whether the space has a network within each budget."""
    try:
        for budget in context.run.budgets:
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


def score_random(context: Context, supernet: Supernet, place: Path) -> None:
    """Record what random networks of a space are worth, scored in full (S3 Figs. 3 and 6)."""
    if count := context.run.space_search.random_samples:
        rng = random.Random(seed_from(context.run.seed, "random", place.name))
        name = f"{place.name}: random networks"
        evaluate = make_evaluator(context, supernet, place / "random.jsonl", name)
        with context.course.phase(name):
            evaluate([supernet.space.sample(rng) for _ in range(count)])


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
    _tell_rare(context, space, place)
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
        context.fit(task, train, place / "supernet", name, run.seed, at_epoch_end=health)
    return supernet


def _tell_rare(context: Context, space: Space, place: Path) -> None:
    """Say where a supernet will hardly ever train a network that the search may choose: it cannot rank these well."""
    for budget in context.run.budgets:
        rng = random.Random(0)
        kept = sum(budget.allows(context.pricer(space.sample(rng))) for _ in range(DRAWN))
        if kept < RARE * DRAWN:
            context.log.say(
                f"{place.name}: {kept} of {DRAWN} random networks are within {budget}, so its supernet mostly trains"
                " others and may rank those badly; a space nearer to the budget, or smaller moves of it"
                " (space_search.tau, space_search.rounding=nearest), would help"
            )


def _same_source(context: Context, record: Path, source: dict[str, Any], place: Any) -> None:
    """What a run begins from stays the same while it lasts."""
    if record.exists() and read_json(record) != source:
        raise ValueError(
            f"{context.folder} holds a run with another file than {place}; restore that, or give another --out."
        )
    context.ranks.wait()
    if context.ranks.first:
        write_json(record, source)


def check_beginning(context: Context) -> None:
    """Refuse weights that a run cannot begin from, before it leaves anything behind."""
    if context.run.start:
        check_family(read_start(context.run.start), context.run.space)
    if context.run.supernet_weights:
        _open_supernet(context, context.run.space)


def _open_supernet(context: Context, space: Space) -> tuple[Supernet, FinishedRun | None]:
    """The supernet of a file or of another run, and that run."""
    path = Path(context.run.supernet_weights).expanduser()
    if path.is_dir():
        finished = FinishedRun(path)
        return finished.supernet(context.ranks.device, context.model_args), finished
    return official_autoformer_supernet(path, space, **context.run.shape, device=context.ranks.device), None


def _given_supernet(context: Context, space: Space, place: Path) -> Supernet:
    """The supernet of a file or of another run, as it is; it must stay the same while this run lasts."""
    path, record = Path(context.run.supernet_weights).expanduser(), place / "supernet.json"
    supernet, finished = _open_supernet(context, space)
    file, name = (path, path.name) if finished is None else (finished.weights, path.resolve().name)
    same = finished is not None and finished.data == context.data.fingerprint
    source = {"file": name, "sha256": sha256(file)}
    _same_source(context, record, source, path)
    if context.ranks.first:
        write_json(place / "space.json", space.to_dict())
    warning = "; the supernet may have been trained on the held-out images, so take their accuracies as a ranking"
    context.log.say(
        f"{place.name}: {space.size():.3g} architectures, {len(supernet.flat):,} weights of {name}"
        + ("" if same else warning)
    )
    if finished is not None and same:  # what it scored needs not be scored again
        evaluated = context.records(place / "evaluated.jsonl", check_scored)
        if not evaluated.rows and (rows := finished.scored()):
            # Costs are this run's: a latency may be that of another device, runtime or time
            scores = [{key: value for key, value in row.items() if key != "latency"} for row in rows]
            taken = [row | context.pricer(Arch.from_dict(row["arch"])) for row in scores]
            end = [{"race": {"forwards": 0, "taken": True}}] if context.run.arch_search.racing else []
            evaluated.append([*taken, *end])
            context.log.say(f"{place.name}: {len(rows)} scores are those of {name}")
    return supernet


# Architectures


class Hunt(NamedTuple):
    """The architecture search of a space under one budget."""

    number: int  # of the budget
    folder: Path
    feasible: Feasible
    engine: Evolution


def search_architectures(
    context: Context, supernet: Supernet, place: Path, *, controls: bool = False, train: bool = True
) -> list[Found]:
    """The best networks of a space for every budget, finished, and if asked for the controls.

    Without `train` they keep the supernet's weights. Without a budget in the config, the limit of the space search is
    one, if the space has a network within it.
    """
    run, budgets = context.pace.at(f"{place.name}: search"), context.run.budgets
    rng = random.Random(seed_from(run.seed, "budget"))
    if not run.arch_search.budgets and not some_feasible(context, supernet.space):
        context.log.say(f"{place.name}: no network is within {budgets[0]}, so the search goes without limits")
        budgets = (Budget(),)
    filters = [check_feasible(supernet.space, budget, context.pricer, rng) for budget in budgets]
    method = run.arch_search.method
    racing = run.arch_search.racing and method == "evolution"  # what is compared is scored in full
    evaluate = make_evaluator(context, supernet, place / "evaluated.jsonl", f"{place.name}: search", racing=racing)
    hunts = [
        Hunt(i, place / f"search-{i}", feasible, _make_engine(run, feasible, evaluate, i, method))
        for i, feasible in enumerate(filters)
    ]
    mode, top = run.final.mode if train else "inherit", run.final.top
    chosen: list[list[tuple[Arch, float]]] = []  # of each budget, best first
    with context.course.phase(f"{place.name}: search"):
        for hunt in hunts:
            budget = hunt.feasible.budget
            where = f"{place.name}: {budget}" if budget.limits else place.name
            _evolve(context, hunt.engine, evaluate, where, hunt.folder / "generations.json", (hunt.number, len(hunts)))
            chosen.append(choose_winners(context, hunt, evaluate, where, top))
            if context.ranks.first:
                _write_archive(context, hunt, evaluate, chosen[-1])
    beside: list[dict[str, Any]] = []
    if controls and run.controls.stock:
        beside = [choose_stock(context, h.folder, chosen[h.number][0][0], h.feasible.budget) for h in hunts]
        context.course.beside(statistics.fmean(sum(row["macs"] for row in rows.values()) for rows in beside))
    found, recipe = [], context.pace.at(f"{place.name}: finish").final.train
    with context.course.phase(f"{place.name}: finish"):
        for hunt in hunts:
            networks = []
            for i, (arch, score) in enumerate(chosen[hunt.number]):
                context.course.part(hunt.number * top + i, len(hunts) * top)
                networks.append(finish_best(context, supernet, arch, score, hunt.folder, i, mode, recipe))
            networks.sort(key=lambda network: -(network.accuracy or 0))
            found.append(Found(hunt.feasible.budget, networks, {}))
    if controls and run.controls:
        with context.course.phase(f"{place.name}: controls"):
            for hunt in hunts:
                context.course.part(hunt.number, len(hunts))
                compared = finish_controls(context, supernet, place, hunt, recipe)
                if beside:
                    compared |= finish_stock(context, hunt.folder, beside[hunt.number], recipe)
                found[hunt.number] = found[hunt.number]._replace(controls=compared)
    return found


def choose_winners(
    context: Context, hunt: Hunt, evaluate: Evaluator, where: str, top: int
) -> list[tuple[Arch, float]]:  # fmt: skip
    """The best networks of a search, so many. Where it limits the latency of this device, those of the best that keep
    the limit as a whole: a prediction is right on average, but what is chosen by it is often what it takes for too
    fast."""
    table, limit, predicted = context.latency, hunt.feasible.budget.limits.get("latency"), hunt.engine.top(top)
    if table is None or limit is None:
        return predicted
    # What is finished by now was chosen before, maybe on another device or by an older version: that choice stays.
    may_time = context.ranks.from_first(table.is_here and not (hunt.folder / "finish-0").exists())
    timings, limited, full = _timings(context), Budget({"latency": limit}), _full(hunt.engine, evaluate)

    def measured(own: list[Arch]) -> Iterator[Row]:
        for arch in own:
            timing = table.measured(arch, context.run.arch_search.latency_repeats)
            assert timing is not None  # this is the table's device
            yield {"arch": arch.to_dict(), "predicted": table(arch), "ms": timing.then}

    def reached() -> str:
        return f"{where}: stopped while the best networks are timed"

    kept: list[tuple[Arch, float]] = []
    missed: list[tuple[float, Arch, float]] = []  # by how much, the network, its score
    best = [each for each in hunt.engine.top(len(hunt.engine.evaluated)) if each[0] in full]
    for arch, score in best[: top + PASSED_OVER]:
        network = arch.effective(context.run.data.img_size)
        if network not in _timed(timings):
            if not may_time:
                return predicted
            for _ in resumable([network], measured, timings, context.ranks, context.stop, reached=reached, every=0.0):
                pass  # `timings` has it now
        ms = _timed(timings)[network]
        if excess := limit.excess(ms):
            missed.append((excess, arch, score))
            context.log.say(
                f"{where}: {network.key} is passed over: {table(network):.3g} ms predicted, but {ms:.3g} ms as a whole,"
                f" not {limited}"
            )
        else:
            kept.append((arch, score))
        if len(kept) == top:
            break
    if not kept:
        excess, arch, score = min(missed, key=lambda each: each[0])
        kept = [(arch, score)]
        context.log.say(
            f"{where}: none of the {len(missed)} networks timed as a whole keeps {limited}, so"
            f" {arch.effective(context.run.data.img_size).key} is taken, which misses it least, by {excess:.1%}"
        )
    return kept


def finish_controls(
    context: Context, supernet: Supernet, place: Path, hunt: Hunt, train: Train
) -> dict[str, Finished]:  # fmt: skip
    """The networks beside the winner of a budget, by what they are."""
    run, controls, feasible = context.run, context.run.controls, hunt.feasible
    chosen: dict[str, tuple[Arch, float | None]] = {}
    if controls.designed:
        chosen["designed"] = controls.designed_arch(run.space), None
    if controls.random:
        rng = random.Random(seed_from(run.seed, "random control", hunt.number))
        # To be finetuned, it must be in the supernet that is there by now.
        space = run.space if run.final.mode == "retrain" else supernet.space
        drawn = Feasible(space, feasible.budget, context.pricer).draw(rng) or feasible.draw(rng)
        assert drawn is not None  # the searched space has networks within the budget
        chosen["random"] = drawn, None
    if controls.random_search:
        path = place / "random_search.jsonl"
        evaluate = make_evaluator(context, supernet, path, f"{place.name}: random search")
        engine = _make_engine(run, feasible, evaluate, hunt.number, "random")
        where, number = f"{place.name}: {feasible.budget}, random search", (hunt.number, len(context.run.budgets))
        _evolve(context, engine, evaluate, where, hunt.folder / "random_generations.json", number)
        chosen["random_search"] = engine.best
    return {
        name: finish(context, supernet, arch, score, hunt.folder / f"control-{name}", run.final.mode, train)
        for name, (arch, score) in chosen.items()
    }


def _make_engine(run: SearchRun, feasible: Feasible, evaluate: Evaluator, index: int, method: str) -> Evolution:
    engine = RandomSearch if method == "random" else Evolution
    names = ("population", "generations", "parents", "crossover", "mutation", "p_depth", "p_embed", "p_block")
    options: dict[str, Any] = {name: getattr(run.arch_search, name) for name in names}
    options |= {"feasible": feasible, "draw": feasible.draw, "identity": evaluate.identity}
    return engine(feasible.space, seed=seed_from(run.seed, "evolution", index), **options)


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


def _write_archive(
    context: Context, hunt: Hunt, evaluate: Evaluator, chosen: list[tuple[Arch, float]]
) -> None:  # fmt: skip
    records = [(arch, score, context.pricer(arch)) for arch, score in _full(hunt.engine, evaluate).items()]
    fronts = {metric: pareto(records, metric) for metric in context.pricer(records[0][0])}
    archive = {metric: [context.row(arch, score) for arch, score, _ in front] for metric, front in fronts.items()}
    write_json(hunt.folder / "pareto.json", archive)
    winner = {"budget": str(hunt.feasible.budget), "history": hunt.engine.history, **context.row(*chosen[0])}
    rows = [{"key": evaluate.identity(arch).key, "accuracy": score} for arch, score in chosen]
    write_json(hunt.folder / "winner.json", winner | {"chosen": rows})


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
