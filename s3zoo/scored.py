"""Networks that searches have scored, as a table: to study search algorithms without training anything.

`load("cifar10")` reads the table that comes with s3zoo (tables/README.md is its card), `load(FILE)` one that
`s3zoo study NAME --table FILE` wrote: JSON lines, compressed by xz. `outcome` is what one finished run reached.
"""

from __future__ import annotations

import json
import lzma
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from s3zoo import cost
from s3zoo.arch import Arch
from s3zoo.checks import COUNT, PERCENT, PERCENT_IF_ANY, TEST, Fields, typed
from s3zoo.files import parse_json, read_json, replacing
from s3zoo.search.records import read_result

BUNDLED = Path(__file__).resolve().parent / "tables"
LARGEST = 1 << 28  # bytes of a table, not compressed
FIELDS: Fields = {
    "run": str, "seed": int, "space": str, "arch": dict, "params": COUNT, "macs": COUNT, "accuracy": PERCENT_IF_ANY,
    "full?": bool, "role?": str, "trained?": PERCENT_IF_ANY, "test?": PERCENT_IF_ANY,
}  # fmt: skip
TRAINED: Fields = {"params": COUNT, "test": TEST, "held-out?": {"top1": PERCENT}}  # the result of a training


@dataclass(frozen=True)
class ScoredNetwork:
    """A network and what was measured of it; accuracies are percent."""

    run: str
    seed: int
    space: str
    arch: Arch
    params: int
    macs: int
    accuracy: float | None  # of the held-out images, with the supernet's weights; None: it was not scored in it
    full: bool = True  # False: racing has ended the count early, and the accuracy is its estimate
    role: str = ""  # "winner", or the control it is: "designed", "random", "random_search"; such networks were trained
    trained: float | None = None  # of the held-out images, after training
    test: float | None = None  # of the test images, after training


def load(table: str | Path = "cifar10") -> list[ScoredNetwork]:
    """The networks of a table, by the name of one that comes with s3zoo or by its file."""
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
            typed(row, FIELDS, "")
        return [ScoredNetwork(**row | {"arch": Arch.from_dict(row["arch"])}) for row in rows]
    except (lzma.LZMAError, EOFError, ValueError, TypeError) as error:
        why = " ".join(str(error).split()).rstrip(".")
        raise ValueError(f"{path} is no table of scored networks ({why}); `s3zoo study --table` writes one.") from None


def save(networks: Iterable[ScoredNetwork], path: Path) -> int:
    """Write a table; how many networks it has."""
    lines = [json.dumps(asdict(each) | {"arch": each.arch.to_dict()}, separators=(",", ":")) for each in networks]
    with replacing(path) as temporary:
        temporary.write_bytes(lzma.compress(("\n".join(lines) + "\n").encode(), preset=9))
    return len(lines)


def of_runs(folders: Iterable[Path]) -> list[ScoredNetwork]:
    """The networks of several searches, each once: one that searched another's supernet has its scores, too."""
    found: dict[tuple[Any, ...], ScoredNetwork] = {}
    for each in (network for folder in folders for network in of_run(folder)):
        key = each.run, each.space, each.arch, each.role
        if key not in found or each.full:
            found[key] = each
    return list(found.values())


def of_run(folder: Path) -> Iterator[ScoredNetwork]:
    """All networks that a search has scored, and those that it trained.

    Those of a search in the supernet of another run beside it (`search --from`) are told as that run's; what it trained
    is then a control of that run, where it searched at random.
    """
    from s3zoo.search.report import data

    run = data.read(folder)
    name, best = folder.name, "winner"
    if (source := Path(run.config["supernet_weights"]).name) and (folder.parent / source).is_dir():
        name, search = source, run.config["arch_search"]
        if search["method"] == "random":
            best = "random_search" if search["population"] * search["generations"] > 1 else "random"
    for visit in run.visits:
        for each in visit.networks:
            sizes: Any = {metric: int(each.costs[metric]) for metric in ("params", "macs")}
            yield ScoredNetwork(name, run.seed, visit.space.name, each.arch, **sizes, accuracy=each.accuracy,
                                full=each.full)  # fmt: skip
    trained = run.winners + run.result.get("controls", []) if run.result else []
    searched = [visit for visit in run.visits if visit.searches] or run.visits  # the search may have gone back
    for row in (row for row in trained if "arch" in row):  # networks of timm have none
        yield ScoredNetwork(
            name, run.seed, searched[-1].space.name, Arch.from_dict(row["arch"]), row["params"], row["macs"],
            row["inherited"], True, row.get("control", best), row["accuracy"], row["test"]["top1"],
        )  # fmt: skip


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
