"""The folder of a run: whose it is. `run.json` holds the config, what the run depends on besides, and versions."""

from __future__ import annotations

import hashlib
import json
import platform
from pathlib import Path
from typing import Any

import timm
import torch

import s3zoo
from s3zoo.files import check_run, parse_json, read_bytes, read_json, write_json
from s3zoo.models.folder import CONFIG
from s3zoo.paths import commit
from s3zoo.training.config import completed, difference, flat, to_dict
from s3zoo.training.distributed import Ranks

# Settings that change how a run is done, not what comes out.
HARMLESS = (
    "data.workers", "data.root", "data.download", "data.max_unreadable", "device", "tower.weights", "tower.cache",
    "tower.cache_dir",
)  # fmt: skip


def check_folder(folder: Path, run: Any, **identity: Any) -> str:
    """Refuse a folder with a run of another config, other data or anything else of `identity`, naming what differs.

    `run` is the run's config, a dataclass. Returns what names the run in each of its files, so that these are not taken
    for those of another one if run.json gets lost.
    """
    name = _name(to_dict(run), identity)
    if (folder / CONFIG).is_file():
        raise ValueError(f"{folder} is the folder of a model, which would hide that of the run; give another --out.")
    if not (folder / "run.json").exists():
        for pattern in ("*.json", "**/state.json", "**/score.json", "**/*.jsonl"):
            for path in sorted(folder.glob(pattern)):
                check_run(_owner(path), name, path)
        return name
    then = read_json(folder / "run.json", {"config": dict})
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
    return then.get("run") or name


def _owner(path: Path) -> str:
    """The run that a file names, if it does; what is wrong with it otherwise is said by whoever needs it."""
    try:
        content = read_bytes(path)
        content = parse_json(content.partition(b"\n")[0] if path.suffix == ".jsonl" else content)
        return content.get("run", "")
    except (ValueError, OSError, AttributeError):
        return ""


def _name(config: dict[str, Any], identity: dict[str, Any]) -> str:
    matters = [(key, value) for key, value in sorted(flat(config).items()) if not _harmless(key)]
    return hashlib.sha256(json.dumps([matters, identity], sort_keys=True).encode()).hexdigest()[:16]


def claim_folder(folder: Path, run: Any, ranks: Ranks, *, command: str | None = None, **identity: Any) -> None:
    """Make it the folder of this run, if it is not yet; `command` is what to type to do the run again."""
    path = folder / "run.json"
    if ranks.first and not path.exists():
        versions = {
            "s3zoo": s3zoo.__version__,
            "torch": torch.__version__,
            "timm": timm.__version__,
            "python": platform.python_version(),
        }
        name = _name(to_dict(run), identity)
        record = {"config": to_dict(run), **identity, "run": name, "versions": versions, "commit": commit()}
        write_json(path, record | ({} if command is None else {"command": command}))
    ranks.wait()
    seen = ranks.gather([path.read_text(encoding="utf-8") if path.exists() else ""])
    if len(set(seen)) > 1:  # each would resume from its own checkpoints
        raise ValueError(
            f"{folder} is not the same folder for all {ranks.world} processes; give an --out that all nodes share."
        )


def _harmless(key: str) -> bool:
    return key in HARMLESS or key.endswith("checkpoint_seconds")
