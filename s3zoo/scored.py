"""Networks that searches have scored, as a table: to study search algorithms without training anything.

`load("cifar10")` reads the table that comes with s3zoo (tables/README.md is its card), `load(FILE)` one that
`s3zoo study NAME --table FILE` wrote: JSON lines, compressed by xz. `spaces` are those that its networks are from.
`outcome` is what one finished run reached.
"""

from __future__ import annotations

import json
import lzma
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, TypeVar

from s3zoo import cost
from s3zoo.arch import Arch
from s3zoo.checks import COUNT, PERCENT, PERCENT_IF_ANY, TEST, Fields, typed
from s3zoo.files import parse_json, read_json, replacing
from s3zoo.search.records import read_result
from s3zoo.space import Space

if TYPE_CHECKING:
    from s3zoo.search.report import data

T = TypeVar("T")
BUNDLED = Path(__file__).resolve().parent / "tables"
LARGEST = 1 << 28  # bytes of a table, not compressed
FIELDS: Fields = {
    "run": str, "seed": int, "space": str, "arch": dict, "params": COUNT, "macs": COUNT, "accuracy": PERCENT_IF_ANY,
    "full?": bool, "role?": str, "trained?": PERCENT_IF_ANY, "test?": PERCENT_IF_ANY, "origin?": str,
}  # fmt: skip
SPACE: Fields = {"run": str, "space": str, "definition": dict}  # a line that holds a space, and no network
TRAINED: Fields = {"params": COUNT, "test": TEST, "held-out?": {"top1": PERCENT}}  # the result of a training


@dataclass(frozen=True)
class ScoredNetwork:
    """A network and what was measured of it; accuracies are percent.

    One that was trained is there once more, with its role. `origin` tells how a network came to be scored: "random"
    (drawn from the whole space), "random_within_limit" (drawn from what a search may choose, by random search or for
    the first generation of evolution), "space" (to decide where the space moves) or "search" (later in evolution). It
    is empty for networks with a role, and where an earlier version wrote the table. Of several budgets only the first
    one's first generation is known as drawn.
    """

    run: str
    seed: int
    space: str  # of that run: another run's space of this name has another supernet, and often other choices
    arch: Arch  # as `Arch.effective` gives it, by which it is looked up
    params: int
    macs: int
    accuracy: float | None  # of the held-out images, with the supernet's weights; None: it was not scored in it
    full: bool = True  # False: racing has ended the count early, and the accuracy is its estimate
    role: str = ""  # "winner", or the control it is: "designed", "random", "random_search"; such networks were trained
    trained: float | None = None  # of the held-out images, after training
    test: float | None = None  # of the test images, after training
    origin: str = ""


def load(table: str | Path = "cifar10") -> list[ScoredNetwork]:
    """The networks of a table, by the name of one that comes with s3zoo or by its file."""
    return _read(table, FIELDS, lambda row: ScoredNetwork(**row | {"arch": Arch.from_dict(row["arch"])}))


def spaces(table: str | Path = "cifar10") -> dict[tuple[str, str], Space]:
    """The spaces of a table by run and name; none where an earlier version wrote it.

    An architecture of a space is in the table as `arch.effective(img_size)`, which need not be in the space itself.
    """
    return dict(_read(table, SPACE, lambda row: ((row["run"], row["space"]), Space.from_dict(row["definition"]))))


def _read(table: str | Path, fields: Fields, made: Callable[[dict[str, Any]], T]) -> list[T]:
    """What is made of the lines of a table that hold spaces, or of those that hold networks."""
    path = BUNDLED / f"{table}.jsonl.xz"
    path = path if path.is_file() else Path(table)
    if not path.is_file():
        names = ", ".join(sorted(each.name.partition(".")[0] for each in BUNDLED.glob("*.xz")))
        raise ValueError(
            f"There is no table {str(table)!r}; give a file that `s3zoo study --table` wrote, or one of {names}."
        )
    try:
        with lzma.open(path) as file:
            content = file.read(LARGEST + 1)
        if len(content) > LARGEST:
            raise ValueError(f"it has more than {LARGEST:,} bytes")
        rows = [parse_json(line) for line in content.splitlines()]
        for row in rows:
            typed(row, SPACE if "definition" in row else FIELDS, "")
        return [made(row) for row in rows if ("definition" in row) == ("definition" in fields)]
    except (lzma.LZMAError, EOFError, ValueError, TypeError) as error:
        why = " ".join(str(error).split()).rstrip(".")
        raise ValueError(f"{path} is no table of scored networks ({why}); `s3zoo study --table` writes one.") from None


def save(
    networks: Iterable[ScoredNetwork], path: Path, spaces: Mapping[tuple[str, str], Space] = MappingProxyType({})
) -> int:
    """Write a table, with the spaces of its networks by run and name; how many networks it has."""
    rows: list[Any] = [asdict(each) | {"arch": each.arch.to_dict()} for each in networks]
    held = [{"run": run, "space": name, "definition": each.to_dict()} for (run, name), each in spaces.items()]
    lines = [json.dumps(row, separators=(",", ":")) for row in [*held, *rows]]
    with replacing(path) as temporary:
        temporary.write_bytes(lzma.compress(("\n".join(lines) + "\n").encode(), preset=9))
    return len(rows)


def of_runs(folders: Iterable[Path]) -> list[ScoredNetwork]:
    """The networks of several searches, each once; a search comes before those in its supernet.

    These begin with its full scores, so that such a network keeps the origin that it had there.
    """
    found: dict[tuple[Any, ...], ScoredNetwork] = {}
    for each in (network for folder in folders for network in of_run(folder)):
        known = found.get(key := (each.run, each.space, each.arch, each.role))
        if known is None or each.full:
            found[key] = replace(each, origin=known.origin) if known and known.full else each
    return list(found.values())


def spaces_of_runs(folders: Iterable[Path]) -> dict[tuple[str, str], Space]:
    """The spaces of several searches, by the run and the name that their networks have in `of_runs`."""
    from s3zoo.search.report import data

    found: dict[tuple[str, str], Space] = {}
    for run in map(data.read, folders):
        for visit in run.visits:
            found.setdefault((_source(run) or run.folder.name, visit.space.name), visit.space)
    return found


def of_run(folder: Path) -> Iterator[ScoredNetwork]:
    """All networks that a search has scored, and those that it trained.

    Those of a search in the supernet of another run beside it (`search --from`) are told as that run's; what it trained
    is then a control of that run, where it searched at random.
    """
    from s3zoo.search.report import data

    run = data.read(folder)
    search, source, best = run.config["arch_search"], _source(run), "winner"
    if source and search["method"] == "random":
        best = "random_search" if search["population"] * search["generations"] > 1 else "random"
    name = source or folder.name
    for visit in run.visits:
        origins = _origins(run, visit)
        for each in visit.networks:
            sizes: Any = {metric: int(each.costs[metric]) for metric in ("params", "macs")}
            yield ScoredNetwork(name, run.seed, visit.space.name, each.arch, **sizes, accuracy=each.accuracy,
                                full=each.full, origin=origins[each.arch])  # fmt: skip
    trained = run.winners + run.result.get("controls", []) if run.result else []
    searched = [visit for visit in run.visits if visit.searches] or run.visits  # the search may have gone back
    for row in (row for row in trained if "arch" in row):  # networks of timm have none
        yield ScoredNetwork(
            name, run.seed, searched[-1].space.name, Arch.from_dict(row["arch"]), row["params"], row["macs"],
            row["inherited"], True, row.get("control", best), row["accuracy"], row["test"]["top1"],
        )  # fmt: skip


def _source(run: data.Run) -> str:
    """The run beside this one whose supernet it searched, if it did."""
    name = Path(run.config["supernet_weights"]).name
    return name if name and (run.folder.parent / name).is_dir() else ""


def _origins(run: data.Run, visit: data.Visit) -> dict[Arch, str]:
    """How each network of a space came to be scored; of one that did several times, the one that chose least."""
    drawn = len(visit.evaluated)
    if run.config["arch_search"]["method"] != "random":  # the first generation, if no scores of another run come first
        drawn = sum(visit.searches[0].sizes[:1]) if visit.searches and not run.config["supernet_weights"] else 0
    ways = {
        "random": visit.random,
        "random_within_limit": [*visit.drawn, *visit.evaluated[:drawn]],
        "space": visit.scores,
        "search": visit.evaluated[drawn:],
    }
    found: dict[Arch, str] = {}
    for origin, networks in ways.items():
        for each in networks:
            found.setdefault(each.arch, origin)
    return found


@dataclass(frozen=True)
class Outcome:
    """What a finished run says of its network; accuracies are percent."""

    name: str
    test: dict[str, float]
    held_out: float | None
    params: int
    macs: int
    command: str | None = None  # which does the run again


def outcome(folder: Path) -> Outcome:
    """Of a finished search, its first winner; of a finished training, its network, which has an architecture."""
    if not (folder / "result.json").is_file():
        raise ValueError(f"{str(folder)!r} is not the folder of a finished run (no result.json); let it end first.")
    from s3zoo.models.folder import read_network  # torch is needed from here on

    if "winners" in read_json(folder / "result.json", {}):
        row = read_result(folder / "result.json")["winners"][0]
        models = sorted(folder.glob("model*/config.json"))
        command = _command(read_network(models[0].parent)) if models else None
        command = command or _search_from(folder)
        return Outcome(folder.name, row["test"], row["accuracy"], row["params"], row["macs"], command)
    result = read_json(folder / "result.json", TRAINED)
    config = read_network(folder / "model")
    if "arch" not in config.get("model_args", {}):
        raise ValueError(f"The run in {folder} trained a network of timm's; give one of a network of s3zoo's.")
    chans, *size = config["pretrained_cfg"]["input_size"]
    arch = Arch.from_dict(config["model_args"]["arch"])
    macs = cost.macs(arch, img_size=tuple(size), in_chans=chans, num_classes=config["num_classes"])
    held_out = result.get("held-out", {}).get("top1")
    return Outcome(folder.name, result["test"], held_out, result["params"], macs, _command(config))


def _search_from(folder: Path) -> str | None:
    """The command of a search in the supernet of another run beside it."""
    from s3zoo.search.config import SearchRun
    from s3zoo.search.published import searched_again
    from s3zoo.training.provenance import with_changes

    if not (folder / "run.json").is_file():
        return None
    run, _ = SearchRun.read(folder / "run.json")
    other = folder.parent / Path(run.supernet_weights).name / "run.json"
    if not run.supernet_weights or not other.is_file():
        return None
    begun = searched_again(SearchRun.read(other)[0], run.space, run.supernet_weights)
    return with_changes(["s3zoo", "search", "--from", other.parent.name], begun, run)


def _command(config: dict[str, Any]) -> str | None:
    """What made the network that a config describes."""
    return config.get("s3zoo", {}).get("provenance", {}).get("command")
