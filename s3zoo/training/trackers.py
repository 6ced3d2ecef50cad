"""Where the curves of a run go besides its own files: TensorBoard, Weights & Biases, or a class of one's own.

The environment variable S3ZOO_TRACKERS names them: "tensorboard,wandb", "none", or "package.module:Class" for another.
They are no setting of a run: its result does not depend on who watches. Without the variable it is TensorBoard, where
that is installed.
"""

from __future__ import annotations

import hashlib
import importlib
import os
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Protocol

from s3zoo.files import read_json

VARIABLE = "S3ZOO_TRACKERS"


class Tracker(Protocol):
    """Built with the folder of a run, when there is something to track."""

    def __init__(self, folder: Path) -> None: ...

    def curve(self, name: str, step: int, values: Mapping[str, float]) -> None:
        """Points at `step`, which counts from 0 for each name and starts where it stopped when a run resumes."""

    def close(self) -> None: ...


class TensorBoard:
    def __init__(self, folder: Path) -> None:
        from torch.utils.tensorboard import SummaryWriter  # slow to import, so only when there is something to write

        self._writer = SummaryWriter(str(folder / "tensorboard"))

    def curve(self, name: str, step: int, values: Mapping[str, float]) -> None:
        for key, value in values.items():
            self._writer.add_scalar(f"{name}/{key}", value, step)

    def close(self) -> None:
        self._writer.close()


class WandB:
    """One W&B run for a folder, continued when the run resumes. W&B's own variables apply: WANDB_MODE=offline, …"""

    def __init__(self, folder: Path) -> None:
        import wandb

        record = folder / "run.json"
        config = read_json(record, {"config": dict})["config"] if record.is_file() else {}
        self._run = wandb.init(
            project=os.environ.get("WANDB_PROJECT", "s3zoo"),
            name=os.environ.get("WANDB_NAME", folder.name),
            id=hashlib.sha256(str(folder.resolve()).encode()).hexdigest()[:16],
            resume="allow",
            dir=str(folder),
            config=config,
        )
        self._names: set[str] = set()

    def curve(self, name: str, step: int, values: Mapping[str, float]) -> None:
        if name not in self._names:  # each name counts steps of its own, W&B's own must rise over all of them
            self._names.add(name)
            self._run.define_metric(f"{name}/*", step_metric=f"{name}/step")
        self._run.log({f"{name}/step": step} | {f"{name}/{key}": value for key, value in values.items()})

    def close(self) -> None:
        self._run.finish()


BUILT_IN: dict[str, type[Any]] = {"tensorboard": TensorBoard, "wandb": WandB}


def chosen() -> dict[str, type[Any]]:
    """The trackers that the environment names, by name; one that cannot be had is refused before any work."""
    text = os.environ.get(VARIABLE)
    if text is None:
        return {"tensorboard": TensorBoard} if find_spec("tensorboard") else {}
    names = [name.strip() for name in text.split(",") if name.strip() not in ("", "none")]
    return {name: _find(name) for name in names}


def _find(name: str) -> type[Any]:
    if name in BUILT_IN:
        if find_spec(name) is None:
            raise ValueError(f"{VARIABLE} names {name}, which is not installed; `pip install {name}`, or leave it out.")
        return BUILT_IN[name]
    module, _, attribute = name.partition(":")
    if not attribute:
        raise ValueError(
            f"{VARIABLE} names {name!r}, but must name {', '.join(BUILT_IN)}, none, or a class as module:Class."
        )
    try:
        return getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError) as error:
        raise ValueError(f"{VARIABLE} names {name!r}, which cannot be imported ({error}).") from None
