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
from s3zoo.files import read_json, replacing

BUNDLED = Path(__file__).resolve().parent / "tables"


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
        with lzma.open(path, "rt", encoding="utf-8") as file:
            rows = [json.loads(line) for line in file]
        return [ScoredNetwork(**row | {"arch": Arch.from_dict(row["arch"])}) for row in rows]
    except (lzma.LZMAError, EOFError, ValueError, TypeError, KeyError) as error:
        why = " ".join(str(error).split())
        raise ValueError(
            f"{path} is no table of scored networks ({why}); `s3zoo study --table` writes one."
        ) from None


def save(networks: Iterable[ScoredNetwork], path: Path) -> int:
    """Write a table; how many networks it has."""
    lines = [json.dumps(asdict(each) | {"arch": each.arch.to_dict()}, separators=(",", ":")) for each in networks]
    with replacing(path) as temporary:
        temporary.write_bytes(lzma.compress(("\n".join(lines) + "\n").encode(), preset=9))
    return len(lines)


def of_run(folder: Path) -> Iterator[ScoredNetwork]:
    """All networks that a search has scored, and those that it trained."""
    from s3zoo.search.report import data

    run = data.read(folder)
    for visit in run.visits:
        for each in visit.networks:
            sizes: Any = {metric: int(each.costs[metric]) for metric in ("params", "macs")}
            yield ScoredNetwork(folder.name, run.seed, visit.space.name, each.arch, **sizes, accuracy=each.accuracy,
                                full=each.full)  # fmt: skip
    trained = run.winners + run.result.get("controls", []) if run.result else []
    for row in (row for row in trained if "arch" in row):  # networks of timm have none
        yield ScoredNetwork(
            folder.name, run.seed, run.visits[-1].space.name, Arch.from_dict(row["arch"]), row["params"], row["macs"],
            row["inherited"], True, row.get("control", "winner"), row["accuracy"], row["test"]["top1"],
        )  # fmt: skip


@dataclass(frozen=True)
class Outcome:
    """What a finished run says of its network; accuracies are percent."""

    name: str
    test: dict[str, float]
    held_out: float | None
    params: int
    macs: int


def outcome(folder: Path) -> Outcome:
    """Of a finished search, its first winner; of a finished training, its network, which has an architecture."""
    if not (folder / "result.json").is_file():
        raise ValueError(f"{str(folder)!r} is not the folder of a finished run (no result.json); let it end first.")
    result = read_json(folder / "result.json")
    if "winners" in result:
        (row, *_) = result["winners"]
        return Outcome(folder.name, row["test"], row["accuracy"], row["params"], row["macs"])
    config = read_json(folder / "model" / "config.json")
    if "arch" not in config["model_args"]:
        raise ValueError(f"The run in {folder} trained a network of timm's; give one of a network of s3zoo's.")
    chans, *size = config["pretrained_cfg"]["input_size"]
    arch = Arch.from_dict(config["model_args"]["arch"])
    macs = cost.macs(arch, img_size=tuple(size), in_chans=chans, num_classes=config["num_classes"])
    return Outcome(folder.name, result["test"], result.get("held-out", {}).get("top1"), result["params"], macs)
