"""The folder of a run: whose it is. `run.json` holds the config, what the run depends on besides, and versions."""

from __future__ import annotations

import dataclasses
import platform
from pathlib import Path
from typing import Any

import timm
import torch

import s3zoo
from s3zoo.files import read_json, write_json
from s3zoo.paths import commit
from s3zoo.space import Space
from s3zoo.training.config import difference, to_dict
from s3zoo.training.distributed import Ranks

# Settings that change how a run is done, not what comes out.
HARMLESS = (
    "data.workers", "data.root", "data.download", "data.max_unreadable", "device", "tower.weights", "tower.cache",
    "tower.cache_dir",
)  # fmt: skip


def check_folder(folder: Path, run: Any, **identity: Any) -> None:
    """Refuse a folder with a run of another config, other data or anything else of `identity`, naming what differs.

    `run` is the run's config, a dataclass.
    """
    if not (folder / "run.json").exists():
        return
    then = read_json(folder / "run.json")
    changed = [key for key in difference(completed(then["config"], run), to_dict(run)) if not _harmless(key)]
    if changed:
        raise ValueError(
            f"{folder} holds a run with another config (it differs in {', '.join(changed)}); give another"
            " --out, or remove the folder to start anew."
        )
    for key, value in identity.items():
        if then.get(key) != value:
            what = {"data": "on other data"}.get(key, f"with another {key}")
            raise ValueError(f"{folder} holds a run {what}; give another --out, or remove the folder.")


def claim_folder(folder: Path, run: Any, ranks: Ranks, **identity: Any) -> None:
    """Make it the folder of this run, if it is not yet."""
    path = folder / "run.json"
    if ranks.first and not path.exists():
        versions = {
            "s3zoo": s3zoo.__version__,
            "torch": torch.__version__,
            "timm": timm.__version__,
            "python": platform.python_version(),
        }
        write_json(path, {"config": to_dict(run), **identity, "versions": versions, "commit": commit()})
    ranks.wait()
    seen = ranks.gather([path.read_text(encoding="utf-8") if path.exists() else ""])
    if len(set(seen)) > 1:  # each would resume from its own checkpoints
        raise ValueError(
            f"{folder} is not the same folder for all {ranks.world} processes; give an --out that all nodes share."
        )


def completed(stored: dict[str, Any], run: Any) -> dict[str, Any]:
    """The config that an earlier release stored, with the settings that it did not have yet at their defaults."""
    full = dict(stored)
    for field in dataclasses.fields(run):
        value = getattr(run, field.name)
        if field.name not in stored:
            made = field.default_factory() if callable(field.default_factory) else field.default
            if made is not dataclasses.MISSING:
                full |= to_dict({field.name: made})
        elif dataclasses.is_dataclass(value) and not isinstance(value, Space):
            full[field.name] = completed(stored[field.name], value)
    return full


def _harmless(key: str) -> bool:
    return key in HARMLESS or key.endswith("checkpoint_seconds")
