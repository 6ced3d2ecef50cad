"""What the files of a search hold. A folder may come from someone else: whoever reads it checks its files by this.

What is wrong is a ValueError, in which the readers of `files` name the file.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

from s3zoo.arch import Arch
from s3zoo.checks import COST, COUNT, LATENCY, PERCENT, PERCENT_IF_ANY, TEST, Fields, Range, typed
from s3zoo.files import read_json
from s3zoo.space import Space

REMEDY = "remove it, and the search's own command makes it again"

COSTS: Fields = {"params": COST, "macs": COST, "latency?": COST}
# An estimate of a race may lie beside what an accuracy can be.
SCORED: Fields = {"arch": dict, "accuracy": Annotated[float, Range(-(10**6), 10**6)], "full?": bool, **COSTS}
TRAINED: Fields = {
    "budget": str, "test": TEST, "inherited": PERCENT_IF_ANY, "accuracy": PERCENT_IF_ANY, "arch?": dict, **COSTS,
    "latency_check?": LATENCY,
}  # fmt: skip
RESULT: Fields = {
    "name": str, "seed": int, "winners": [{**TRAINED, "arch": dict}], "spaces": list,
    "controls?": [{**TRAINED, "control": str, "model?": str, "within_budget?": bool, "from_scratch?": bool}],
}  # fmt: skip
ABOUT: Fields = {
    "config": dict, "data?": str, "run?": str, "command?": str | None, "commit?": str | None,
    "versions?": {"*": str}, "config.py?": str,
}  # fmt: skip
WINNER: Fields = {
    **SCORED, "budget": str, "history": [{"size": COUNT}], "chosen?": [{"key": str, "accuracy": SCORED["accuracy"]}],
}  # fmt: skip
GENERATION: Fields = {"key": str, "accuracy": PERCENT, **COSTS}
AUDITED: Fields = {"arch": dict, "inherited": PERCENT, "finetune": PERCENT, "retrain": PERCENT}


def check_scored(row: dict[str, Any]) -> None:
    """A line of a file of scored networks; where networks race, some lines are the race's."""
    if "race" in row:
        typed(row, {"race": {"forwards": COUNT}}, "")
    else:
        typed(row, {**SCORED, "answers?": str}, "")
        Arch.from_dict(row["arch"])


def check_timed(row: dict[str, Any]) -> None:
    """A network with its milliseconds as a whole, and what the table predicts."""
    typed(row, {"arch": dict, "predicted": COST, "ms": COST}, "")
    Arch.from_dict(row["arch"])


def read_result(path: Path) -> dict[str, Any]:
    """What a finished search says of itself."""

    def check(result: Any) -> None:
        typed(result, RESULT, "")
        if not result["winners"]:
            raise ValueError("it has no winner")
        for row in (*result["winners"], *result.get("controls", [])):
            if "arch" in row:
                Arch.from_dict(row["arch"])

    return read_json(path, check, remedy=REMEDY)


def read_space(path: Path) -> Space:
    return Space.from_dict(read_json(path, Space.from_dict, remedy=REMEDY))


def numbered(folder: Path, prefix: str) -> Iterator[tuple[int, Path]]:
    """The folders of that name and a number, such as space0, in order; a copy by another name is none of the run's."""
    found = (re.fullmatch(rf"{re.escape(prefix)}(0|[1-9]\d{{0,5}})", path.name) for path in folder.glob(f"{prefix}*"))
    for number in sorted(int(match[1]) for match in found if match):
        if (path := folder / f"{prefix}{number}").is_dir():
            yield number, path
