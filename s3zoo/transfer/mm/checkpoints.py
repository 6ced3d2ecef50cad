"""Checkpoints of mmengine read without running what they contain.

onedl-mmengine reads a file with `weights_only=True` and, where that fails, silently again without; from the web it
reads without at once. `install` puts loaders in their place that refuse instead, and lets them rebuild what mmengine's
own training checkpoints hold besides tensors: curves.
"""

from __future__ import annotations

import contextlib
import json
import pickle
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mmengine.logging import HistoryBuffer
from mmengine.model import is_model_wrapper
from mmengine.runner import checkpoint as mm
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn

from s3zoo.models.folder import WEIGHTS, check_finite
from s3zoo.models.official import allow, fetched, read_checkpoint, read_file

META = "dataset_meta"  # mmengine's word for names and colours of classes


def _statistic(owner: Any, name: str) -> Any:
    """What stands for `getattr` in a checkpoint: the statistics of a HistoryBuffer are pickled by it, nothing else."""
    if owner is HistoryBuffer and name in HistoryBuffer._statistics_methods:
        return HistoryBuffer._statistics_methods[name]
    raise pickle.UnpicklingError(f"GLOBAL builtins.getattr of {name!r} is not allowed")


def read(file: Any, map_location: Any = "cpu", weights_only: bool | None = None) -> Any:
    """The content of a checkpoint (a path or an open file; .pth or .safetensors); nothing in it is run.

    It has the signature of the loader that it replaces; `weights_only` makes no difference. Safetensors that
    `export_detector` wrote say the classes in their header; mmdet's and mmseg's inferencers look for them in `meta`.
    """
    content = read_file(file, map_location)
    if isinstance(file, str | Path):
        with contextlib.suppress(SafetensorError, OSError, KeyError, TypeError, ValueError):  # a pickle, or without
            with safe_open(Path(file).expanduser(), "pt") as opened:
                return {"state_dict": content, "meta": {META: json.loads(opened.metadata()[META])}}
    return content


def read_url(url: str, model_dir: str | None = None, map_location: Any = "cpu", progress: bool = True) -> Any:
    """The content of a checkpoint on the web, fetched once; the loader that this replaces runs what it finds there."""
    return read(fetched(url, model_dir), map_location)


def read_weights(path: str | Path) -> dict[str, Tensor]:
    """The tensors by name in a training checkpoint, a weights file, or a folder that `export_detector` wrote."""
    path = Path(path).expanduser()
    return read_checkpoint(path / WEIGHTS if path.is_dir() else path)


def install() -> None:
    """Make mmengine load every checkpoint through `read`, and refuse one of which nothing fits; again is harmless."""
    if mm._safe_torch_load is read:
        return
    HistoryBuffer()  # the first one made registers the statistics
    allow(HistoryBuffer, (_statistic, "builtins.getattr"))
    mm._safe_torch_load, mm.load_url = read, read_url
    load_state_dict = mm.load_state_dict

    def load_state_dict_that_fits(
        module: nn.Module, state_dict: Mapping[str, Tensor], strict: bool = False, logger: Any = None
    ) -> None:
        inner: Any = module.module if is_model_wrapper(module) else module
        names = inner.state_dict().keys()
        if not names & state_dict.keys():
            example = f" (its first weight is {next(iter(state_dict))!r})" if state_dict else ""
            raise ValueError(
                f"Nothing in the checkpoint{example} fits the {type(module).__name__}, whose first weight is "
                f"{next(iter(names), None)!r}; use the config it was trained with."
            )
        check_finite(state_dict, "The checkpoint")
        load_state_dict(module, state_dict, strict, logger)

    mm.load_state_dict = load_state_dict_that_fits
