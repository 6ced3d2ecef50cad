"""Where a network comes from, as its config.json tells it: one record for searched and trained networks.

Nothing in it names a place on the machine that made it: the record is published with the weights.
"""

from __future__ import annotations

import dataclasses
import re
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from s3zoo.files import read_json
from s3zoo.space import SPACES, Space
from s3zoo.training.clock import seconds_of
from s3zoo.training.config import Data, Run, difference, load_config, to_dict
from s3zoo.training.distributed import Ranks

# How a run is done on a machine, not what comes out of it.
LOCAL = ("data.workers", "data.root", "device", "checkpoint_seconds", "tower.cache", "tower.cache_dir")
# Licences of data that is known by name (SPDX, as the Hub writes it).
DATA_LICENSES = {"digits": "cc-by-4.0"}  # UCI's Optical Recognition of Handwritten Digits


def provenance(
    kind: str, run: Run, folder: Path, ranks: Ranks, *, metrics: Mapping[str, Mapping[str, float]]
) -> dict[str, Any]:
    """The record of a run in its folder (with the run.json that it began with).

    Args:
        kind: the subcommand, "search" or "train"; also the folder of its configs.
        metrics: by split, what was measured on it: top1, images, and where it is an estimate low and high.
    """
    written = read_json(folder / "run.json", {"data": str, "versions": dict})
    dataset, seconds = data_name(run.data), seconds_of(folder)
    again = command(kind, run)
    return {
        "kind": kind,
        "command": again,
        "config": run.name,
        "settings": None if again else _without_places(to_dict(run)),
        "seed": run.seed,
        "data": {"name": dataset, "fingerprint": written["data"], "license": DATA_LICENSES.get(dataset)},
        "versions": written["versions"],
        "commit": written.get("commit"),
        "cost": {
            **({} if seconds is None else {"seconds": round(seconds, 1)}),
            "device": torch.cuda.get_device_name(ranks.device) if ranks.device.type == "cuda" else ranks.device.type,
            "threads": run.threads,
            "processes": ranks.world,
        },
        "metrics": [measured(dataset, split, values) for split, values in metrics.items()],
    }


def measured(dataset: str, split: str, values: Mapping[str, float]) -> dict[str, Any]:
    """One measurement: percent of the images that were classified rightly, and the 95 % interval if there is one."""
    interval = {"low": values.get("low"), "high": values.get("high")}
    common = {"dataset": dataset, "split": split, "metric": "top1", "value": values["top1"]}
    return common | interval | {"images": values.get("images")}


def data_name(data: Data) -> str:
    """The dataset's name; of a folder or tar file, that of the folder it lies in."""
    return data.name or Path(data.root).expanduser().resolve().name


def command(kind: str, run: Run) -> str | None:
    """What to type to do the run again, or None if that needs a config that s3zoo does not bring along."""
    try:
        shipped = load_config(run.name, type(run), kind)
    except ValueError:
        return None
    return with_changes(["s3zoo", kind, run.name], shipped, run)


def with_changes(words: Sequence[str], begun: Run, run: Run) -> str | None:
    """A command line of these words that makes one run of another, or None if no command line can say it."""
    words = list(words)
    for key, value in _changes(begun, run).items():
        if key == "space":
            value = next((name for name, space in SPACES.items() if space == value), None)
            if value is None:
                return None
        value = _placeless(value) if isinstance(value, str) else value
        words += ["--set", f"{key}={str(value).lower() if isinstance(value, bool) else value}"]
    return " ".join(map(_quoted, [*words, *(["--set", "data.root=ROOT"] if run.data.root else [])]))


def _quoted(word: str) -> str:
    """As a person would: shlex puts '"'"' for every quote in a word."""
    plain = "'" in word and not re.search(r'["$`\\!]', word)
    return f'"{word}"' if plain else shlex.quote(word)


def _changes(shipped: Run, run: Run) -> dict[str, Any]:
    """The settings in which two runs differ, as `--set` names them, with the values of the second."""
    changed = {}
    for key in difference(to_dict(shipped), to_dict(run)):
        if key.endswith(LOCAL):
            continue
        name, value = "", run
        for part in key.split("."):
            if not dataclasses.is_dataclass(value) or isinstance(value, Space):  # it is set as a whole
                break
            name, value = f"{name}.{part}" if name else part, getattr(value, part)
        changed[name] = value
    return changed


def _without_places(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_places(item) for key, item in value.items()}
    return _placeless(value) if isinstance(value, str) else value


def _placeless(text: str) -> str:
    """A file or folder of this machine by its last name only."""
    path = text.removeprefix("local-dir:")
    return text.replace(path, Path(path).name) if Path(path).is_absolute() or path.startswith(("~", "..")) else text
