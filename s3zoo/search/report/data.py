"""The numbers behind the figures of a report, from a run's files alone: finished, under way or broken off.

`read` gives a `Run`; what its files do not hold (yet) is empty. The functions below it compute what is drawn. A score
that racing only estimated is marked (`Network.full` is False) and is in no distribution and on no front.
"""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from s3zoo import cost
from s3zoo.arch import Arch
from s3zoo.checks import COUNT, PERCENT, Fields, typed
from s3zoo.families import FAMILIES
from s3zoo.files import Check, Records, check_count, read_json
from s3zoo.picture import genes
from s3zoo.search.budget import Budget
from s3zoo.search.config import SearchRun
from s3zoo.search.evolution import pareto
from s3zoo.search.forecast import Phase, planned
from s3zoo.search.records import AUDITED, GENERATION, REMEDY, WINNER, check_scored, numbered, read_result, read_space
from s3zoo.search.s3 import et_error
from s3zoo.search.space_search import Decision, resampled
from s3zoo.space import Dim, Space, Value
from s3zoo.training.clock import FILE as CLOCK
from s3zoo.training.clock import read_clock
from s3zoo.training.config import flat, to_dict

EPOCH: Fields = {"step": COUNT, "loss?": float, **dict.fromkeys(("smallest?", "largest?", "random?"), PERCENT)}
COMMAND: Fields = {"s3zoo?": {"provenance?": {"command?": str | None}}}
GRID = 200  # points at most at which a distribution is drawn
LABEL = 44  # letters of a method's name
LEVEL = 95  # percent of bootstrap samples within a band
# What of a config makes no other method: runs that differ in these alone are seeds of one.
SEED_KEYS = ("seed", "device", "data.root", "data.workers", "data.download", "tower.cache", "tower.cache_dir")


@dataclass(frozen=True)
class Network:
    """A scored network."""

    arch: Arch
    accuracy: float  # percent of the held-out images, with the supernet's weights
    costs: dict[str, float]  # params, macs, and latency where it is limited
    full: bool = True  # False: racing's estimate

    @property
    def key(self) -> str:
        return self.arch.key

    @property
    def error(self) -> float:
        return 100 - self.accuracy


@dataclass
class Search:
    """The architecture search of a space under one budget."""

    budget: str
    generations: list[list[dict[str, Any]]]  # after each, the best so far: key, accuracy, costs
    sizes: list[int]  # how many networks were scored until the end of each
    random: list[list[dict[str, Any]]]  # the same of random search beside it, if there was one
    winner: Network | None = None
    finished: list[float | None] = field(default_factory=list)  # accuracies of the chosen as finished; None: not (yet)
    chosen: list[dict[str, Any]] = field(default_factory=list)  # networks to be finished, best first: key, accuracy


@dataclass
class Visit:
    """A visited space."""

    index: int
    space: Space
    epochs: list[dict[str, Any]]  # of its supernet
    scores: list[Network]  # asked for by the space search
    random: list[Network]
    drawn: list[Network]  # by random search beside the search
    evaluated: list[Network]  # by the architecture search
    forwards: int | None  # of racing: images x networks
    searches: list[Search]
    audit: list[dict[str, Any]]  # networks: arch, inherited, finetune, retrain
    trainings: dict[str, int]  # steps by folder: supernet, search-0/finish-0, …

    @property
    def networks(self) -> list[Network]:
        """All that its supernet scored; of one that several files have the full score."""
        found: dict[Arch, Network] = {}
        for network in itertools.chain(self.random, self.drawn, self.scores, self.evaluated):
            if network.arch not in found or network.full:
                found[network.arch] = network
        return list(found.values())


@dataclass
class Run:
    """What the folder of a run tells."""

    folder: Path
    config: dict[str, Any]
    about: dict[str, Any]  # the rest of run.json: data, versions, commit, command
    visits: list[Visit]
    decisions: list[Decision]
    result: dict[str, Any] | None
    seconds: dict[str, float]  # by phase
    latency: dict[str, float]  # by budget, the milliseconds that the winner takes
    tests: list[dict[str, Any]]  # counts of test images by budget, also where they are not complete

    @property
    def name(self) -> str:
        return self.config["name"]

    @property
    def seed(self) -> int:
        return self.config["seed"]

    @property
    def img_size(self) -> int:
        return self.config["data"]["img_size"]

    @property
    def winners(self) -> list[dict[str, Any]]:
        """The best network of every budget as far as it is known: from result.json, else of the last search."""
        if self.result is not None:
            return self.result["winners"]
        for visit in reversed(self.visits):
            found = [
                {"budget": search.budget, "inherited": best.accuracy, **best.costs, "arch": best.arch.to_dict(),
                 "accuracy": next((score for score in search.finished if score is not None), None)}
                for search in visit.searches if (best := search.winner) is not None
            ]  # fmt: skip
            if found:
                return found
        return []


# Reading


def read(folder: Path) -> Run:
    """A run of `s3zoo search`; a ValueError with one sentence if the folder holds none."""
    path = folder / "run.json"
    if not path.is_file():
        there = "has no run.json (yet)" if folder.is_dir() else "is no folder"
        raise ValueError(f"{str(folder)!r} {there}; give the folder of a search, as `s3zoo search --out` made it.")
    stored, about = SearchRun.read(path)
    config = to_dict(stored)
    for path in sorted(folder.glob("model*/config.json")):  # where an earlier version kept the command
        about.setdefault("command", read_json(path, COMMAND).get("s3zoo", {}).get("provenance", {}).get("command"))
    found = (folder / f"space{index}" for index in itertools.count())
    visits = [_visit(place, config) for place in itertools.takewhile(lambda p: (p / "space.json").exists(), found)]
    rows = _rows(folder / "space_search.jsonl", lambda row: Decision.from_dict(row["decision"]))
    result = folder / "result.json"
    clock = folder / CLOCK
    kept = read_clock(clock) if clock.exists() else {"phases": []}
    tests = [folder / f"test-{index}.json" for index in range(max(1, len(stored.arch_search.budgets)))]
    return Run(
        folder,
        config,
        about,
        visits,
        [Decision.from_dict(row["decision"]) for row in rows],
        read_result(result) if result.exists() else None,
        {row["name"]: row["seconds"] for row in kept["phases"]},
        kept.get("latency", {}),
        [read_json(path, check_count, remedy=REMEDY) for path in tests if path.exists()],
    )


def read_all(folders: Sequence[Path]) -> list[Run]:
    """The runs of these folders; one with seed0/, seed1/ … stands for all of them."""
    found = []
    for folder in folders:
        seeds = [] if (folder / "run.json").exists() else sorted(folder.glob("seed*/run.json"))
        found += [read(path.parent) for path in seeds] or [read(folder)]
    return found


def _rows(path: Path, check: Check) -> list[dict[str, Any]]:
    """The whole lines of a file that may still be written to."""
    return Records(path, check=check, write=False).rows


def _networks(path: Path) -> list[Network]:
    return [_network(row) for row in _rows(path, check_scored) if "race" not in row]


def _network(row: Mapping[str, Any]) -> Network:
    costs = {metric: row[metric] for metric in ("params", "macs", "latency") if metric in row}
    return Network(Arch.from_dict(row["arch"]), row["accuracy"], costs, row.get("full", True))


def _visit(place: Path, config: Mapping[str, Any]) -> Visit:
    evaluated = place / "evaluated.jsonl"
    forwards = [row["race"]["forwards"] for row in _rows(evaluated, check_scored) if "race" in row]
    epochs = {path.parent: _rows(path, EPOCH) for path in sorted(place.glob("**/epochs.jsonl"))}
    return Visit(
        int(place.name.removeprefix("space")),
        read_space(place / "space.json"),
        epochs.get(place / "supernet", []),
        _networks(place / "scores.jsonl"),
        _networks(place / "random.jsonl"),
        _networks(place / "random_search.jsonl"),
        _networks(evaluated),
        forwards[-1] if forwards else None,
        [_search(i, path, config) for i, path in numbered(place, "search-") if (path / "generations.json").exists()],
        _audit(place / "audit.json"),
        {str(path.relative_to(place)): rows[-1]["step"] for path, rows in epochs.items() if rows},
    )


def _search(index: int, folder: Path, config: Mapping[str, Any]) -> Search:
    budgets, population = config["arch_search"]["budgets"], config["arch_search"]["population"]
    generations = _generations(folder / "generations.json")
    winner = folder / "winner.json"
    budget = str(Budget.parse(budgets[index])) if index < len(budgets) else ""
    sizes = [population] * len(generations)
    found, chosen = None, generations[-1] if generations else []
    if winner.exists():
        row = read_json(winner, WINNER, remedy=REMEDY)
        budget, found, sizes = row["budget"], _network(row), [int(each["size"]) for each in row["history"]]
        chosen = row.get("chosen", chosen)  # an earlier version finished the best in any case
    finished = [_score(path / "score.json") for _, path in numbered(folder, "finish-")]
    random = folder / "random_generations.json"
    beside = _generations(random) if random.exists() else []
    return Search(budget, generations, list(itertools.accumulate(sizes)), beside, found, finished, chosen)


def _generations(path: Path) -> list[list[dict[str, Any]]]:
    """After each generation the best so far, a list that is not empty."""

    def check(content: Any) -> None:
        typed(content, [[GENERATION]], "")
        if not all(content):
            raise ValueError("a generation has no network")

    return read_json(path, check, remedy=REMEDY)


def _score(path: Path) -> float | None:
    """The accuracy that a whole count of images gives."""
    if not path.exists():
        return None
    count = read_json(path, check_count, remedy=REMEDY)
    return 100 * count["right"] / count["images"] if count["whole"] and count["images"] else None


def _audit(path: Path) -> list[dict[str, Any]]:
    """The audited networks that are trained by now."""
    rows = read_json(path, {"networks": [AUDITED]}, remedy=REMEDY)["networks"] if path.exists() else []
    return [row | {"arch": Arch.from_dict(row["arch"])} for row in rows]


# Progress


def phases(run: Run) -> list[tuple[str, float]]:
    """The phases of the run and the share of each that is done, by what its files hold."""
    visits = run.visits
    over = run.result is not None or any(not decision.moved for decision in run.decisions)
    last = max((visit.index for visit in visits if visit.searches), default=None) if run.result else None
    every = planned(run.config, last=last, visited=len(visits) if over else 0)
    shares = [1.0 if run.result is not None else _share(run, phase) for phase in every]
    begun = max((i for i, share in enumerate(shares) if share), default=0)
    begun = len(every) - 1 if run.tests else begun  # what comes before is over
    return [(phase.name, 1.0 if i < begun else shares[i]) for i, phase in enumerate(every)]


def _share(run: Run, phase: Phase) -> float:
    config, held_out = run.config, run.config["data"]["holdout"]
    budgets, (place, _, what) = max(1, len(config["arch_search"]["budgets"])), phase.name.partition(": ")
    if not what:
        return sum(test["whole"] for test in run.tests) / budgets
    visit = next((visit for visit in run.visits if f"space{visit.index}" == place), None)
    if visit is None or what == "controls":  # whose files do not say how far they are
        return 0.0
    done: float
    if what == "supernet":
        done, total = len(visit.epochs), config["supernet"]["epochs"]
    elif what == "random networks":
        done, total = len(visit.random) * held_out, phase.images
    elif what == "scores":
        if visit.index < len(run.decisions):
            return 1.0
        done, total = min(len(visit.scores) * held_out, 0.99 * phase.images), phase.images
    elif what == "search":
        length = config["arch_search"]["generations"]
        done, total = sum(1 if s.winner else len(s.generations) / length for s in visit.searches), budgets
    elif what == "finish":
        done = sum(score is not None for search in visit.searches for score in search.finished)
        total = budgets * config["final"]["top"]
    else:
        done, total = len(visit.audit), config["space_search"]["audit"]
    return min(1.0, done / total) if total else 1.0


# Distributions


def edf(errors: Sequence[float]) -> tuple[np.ndarray, np.ndarray]:
    """The empirical distribution function: errors in increasing order, and the share of networks with no more."""
    xs, counts = np.unique(np.asarray(errors, dtype=float), return_counts=True)
    return xs, np.cumsum(counts) / max(1, len(errors))


def edf_at(errors: Sequence[float] | np.ndarray, xs: np.ndarray) -> np.ndarray:
    """The same function at these errors; 0 without any network."""
    return np.searchsorted(np.sort(np.asarray(errors, dtype=float)), xs, side="right") / max(1, len(errors))


def edf_band(errors: Sequence[float], xs: np.ndarray, name: str) -> tuple[np.ndarray, np.ndarray]:
    """Where the function would lie, in 95 of 100 cases, with other networks of the same space: by the bootstrap."""
    drawn = np.stack([edf_at(row, xs) for row in resampled(list(errors), name)])
    low, high = np.percentile(drawn, [(100 - LEVEL) / 2, (100 + LEVEL) / 2], axis=0)
    return low, high


def grid(samples: Iterable[Sequence[float]]) -> np.ndarray:
    """The errors at which several distributions change, thinned out to `GRID`."""
    xs = np.unique(np.concatenate([np.asarray(errors, dtype=float) for errors in samples]))
    return xs if len(xs) <= GRID else xs[np.linspace(0, len(xs) - 1, GRID).round().astype(int)]


def sample_of(run: Run, visit: Visit) -> tuple[list[Network], str]:
    """Networks that stand for a space, and how they were drawn; none where every score is of a search.

    The first generation of a search is drawn at random, and full if racing estimated none of it.
    """
    first = visit.evaluated[: run.config["arch_search"]["population"]]
    pairs = run.config["space_search"]["method"] == "s4"
    for found, how in (
        (visit.random, "random networks"),
        (visit.scores, "networks of S4's pairs" if pairs else "S3's samples, one value per stage"),
        (first if all(network.full for network in first) else [], "first generation, within the budget"),
    ):
        if found:
            return found, how
    return [], ""


def chosen(arch: Arch, dim: Dim, space: Space) -> Value | None:
    """Which choice of a dimension a network has; None if its blocks differ in it, or it has another value."""
    number, stage = dim.stages[0], arch.stages[dim.stages[0]]
    if dim.gene in ("depth", "embed_dim"):
        read = {getattr(stage, dim.gene)}
    else:
        read = {getattr(block, dim.gene) for j, block in enumerate(stage.blocks) if dim.covers(j)}
    return next((choice for choice in dim.choices if {space.at(dim, number, choice)} == read), None)


def by_choice(networks: Sequence[Network], dim: Dim, space: Space) -> dict[Value, list[float]]:
    """The errors of fully scored networks by their choice in one dimension (S3 Fig. 3)."""
    found: dict[Value, list[float]] = {choice: [] for choice in dim.choices}
    for network in networks:
        choice = chosen(network.arch, dim, space) if network.full else None
        if choice is not None:
            found[choice].append(network.error)
    return {choice: errors for choice, errors in found.items() if errors}


def tiers(errors: Mapping[Value, Sequence[float]], config: Mapping[str, Any]) -> dict[Value, dict[str, Any]]:
    """Mean and top-tier error of every choice, as S3 takes them."""
    moves = config["space_search"]
    return {choice: et_error(own, moves["top"], moves["top_share"]) for choice, own in errors.items()}


# Search


def front(networks: Sequence[Network], metric: str) -> list[Network]:
    """The fully scored networks that no other beats in accuracy at the same or a lower cost, from cheap to dear."""
    known = [(n, n.accuracy, n.costs) for n in networks if n.full and metric in n.costs]
    found: list[Any] = pareto(known, metric)  # type: ignore[arg-type]
    return [network for network, _, _ in found]


def random_search(visit: Visit, search: Search, top: int) -> list[list[Network]]:
    """What random search finds in the space: the best so far after as many networks as each generation had.

    By the random search beside it (controls.random_search), else by the networks of random.jsonl that are within the
    budget, in their order.
    """
    if search.random:
        known = {network.key: network for network in visit.networks}
        found = ([known[row["key"]] for row in rows[:top] if row["key"] in known] for rows in search.random)
        return list(itertools.takewhile(bool, found))
    budget = Budget.parse(search.budget) if search.budget else Budget()
    within = [network for network in visit.random if budget.allows(network.costs)]
    firsts = [0, *search.sizes]  # networks before each generation
    return [
        sorted(within[:size], key=lambda network: (-network.accuracy, network.key))[:top]
        for before, size in itertools.pairwise(firsts) if before < len(within)
    ]  # fmt: skip


# Costs


def images(run: Run) -> dict[str, int]:
    """How many images the networks of each phase saw (images x networks), by what was recorded.

    Trained ones count once for each network of a step. The images that recalibrate batch norms are left out, and so are
    the looks at a supernet after each epoch.
    """
    config = run.config
    held_out, found = config["data"]["holdout"], dict[str, int]()
    for visit in run.visits:
        for place, steps in visit.trainings.items():
            train = config["supernet"] if place == "supernet" else config["final"]["train"]
            what = {"supernet": "supernet", "audit": "audit"}.get(place.partition("/")[0], "finish")
            what = "controls" if "/control-" in place else what
            networks = 4 if place == "supernet" and train["sampling"] == "sandwich" else 1
            if place.startswith("audit/finetune") and config["audit_finetune"]["epochs"]:
                train = config["audit_finetune"]
            _add(found, f"space{visit.index}: {what}", steps * train["batch_size"] * networks)
        for what, scored in (("random networks", visit.random), ("scores", visit.scores), ("controls", visit.drawn)):
            _add(found, f"space{visit.index}: {what}", len(scored) * held_out)
        searched = len(visit.evaluated) * held_out if visit.forwards is None else visit.forwards
        _add(found, f"space{visit.index}: search", searched)
    _add(found, "test images", sum(test["images"] for test in run.tests))
    return found


def _add(found: dict[str, int], name: str, count: int) -> None:
    if count:
        found[name] = found.get(name, 0) + count


def saving(run: Run) -> list[dict[str, Any]]:
    """What racing saved in each space: images that networks saw, and would have seen if each had seen all."""
    rows = []
    for visit in (visit for visit in run.visits if visit.forwards is not None):
        count = len({network.arch for network in visit.evaluated})
        full = len({network.arch for network in visit.evaluated if network.full})
        without = count * run.config["data"]["holdout"]
        rows.append(
            {"space": visit.index, "networks": count, "full": full, "images": visit.forwards, "without": without}
        )
    return rows


# Several runs


@dataclass
class Group:
    """Runs that differ in their seed alone."""

    label: str
    runs: list[Run]


def grouped(runs: Sequence[Run]) -> list[Group]:
    """Runs by method. The label of a method is its config's name or, where two have the same, what differs."""
    flats = [flat(run.config) for run in runs]
    found: dict[str, list[int]] = {}
    for number, keys in enumerate(flats):
        own = {key: value for key, value in keys.items() if not key.endswith("checkpoint_seconds")}
        found.setdefault(repr([(k, v) for k, v in sorted(own.items()) if k not in SEED_KEYS]), []).append(number)
    groups = []
    for numbers in found.values():
        name, ours = runs[numbers[0]].name, flats[numbers[0]]
        rivals = [flats[other[0]] for other in found.values() if other is not numbers and runs[other[0]].name == name]
        differing = sorted({k for rival in rivals for k in ours.keys() | rival.keys() if ours.get(k) != rival.get(k)})
        differs = [f"{key.rpartition('.')[2]}={ours.get(key)}" for key in differing if key not in SEED_KEYS]
        label = ", ".join(differs) or name
        groups.append(Group(label if len(label) <= LABEL else f"{label[: LABEL - 1]}…", [runs[n] for n in numbers]))
    return groups


def band(curves: Sequence[Sequence[float]]) -> list[tuple[float, float, float]]:
    """Lowest, mean and highest value over seeds at each place that all of them have reached."""
    return [(min(own), statistics.fmean(own), max(own)) for own in zip(*curves, strict=False)]


# Words


def told(arch: Arch) -> str:
    """The genes of a network, a line each: stages after a dot, and a stage's value once where all blocks have it."""
    lines = [f"depth {' · '.join(map(str, arch.depths))}", f"embed_dim {' · '.join(map(str, arch.embed_dims))}"]
    for gene in genes(arch.stages[0].blocks[0]):
        stages = []
        for stage in arch.stages:
            values = ["–" if (v := genes(block)[gene]) is None else f"{v:g}" for block in stage.blocks]
            stages.append(values[0] if len(set(values)) == 1 else " ".join(values))
        lines.append(f"{gene} {' · '.join(stages)}")
    return "\n".join(lines)


def designed(run: Run, arch: Arch, row: Mapping[str, Any]) -> list[tuple[str, Arch, int]]:
    """What people designed, to stand beside a winner: name, architecture and size of images. The run's own control if
    it has one, else a published network of the same kind."""
    controls = [each for each in (run.result or {}).get("controls", []) if each["control"] == "designed"]
    own = [Arch.from_dict(each["arch"]) for each in controls if each["budget"] == row["budget"]]
    known = baseline(arch, row["params"])
    return [("control", each, run.img_size) for each in own] or ([] if known is None else [(*known, 224)])


def baseline(arch: Arch, params: float) -> tuple[str, Arch] | None:
    """Of the networks that people designed of the same kind, for images of 224 x 224, the one nearest in size."""
    known = FAMILIES[arch.family].designed()
    return min(known.items(), key=lambda item: abs(np.log(cost.params(item[1], tower_dim=768) / params)), default=None)
