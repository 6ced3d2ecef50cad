"""Checkpoints of mmengine read without running what they contain, and detectors kept as safetensors.

onedl-mmengine reads a file with `weights_only=True` and, where that fails, silently again without; from the web it
reads without at once. `install` puts loaders in their place that refuse instead. What mmengine's own training
checkpoints hold besides tensors (curves as numpy arrays) is read by a list of harmless types.
"""

from __future__ import annotations

import argparse
import ast
import json
import pickle
import re
import warnings
from collections.abc import Mapping
from importlib.metadata import packages_distributions, version
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlparse

import numpy as np
import torch
from mmengine.config import Config
from mmengine.logging import HistoryBuffer
from mmengine.model import is_model_wrapper
from mmengine.runner import checkpoint as mm
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from s3zoo import __version__
from s3zoo.files import replacing, sha256
from s3zoo.models.loading import WEIGHTS

SCHEMA_VERSION = 1
CONFIG_PY = "config.py"
CONFIG_JSON = "config.json"

_scalar = np.float64(0).__reduce__()[0]
_reconstruct = np.zeros(0).__reduce__()[0]


def _statistic(owner: Any, name: str) -> Any:
    """What stands for `getattr` in a checkpoint: the statistics of a HistoryBuffer are pickled by it, nothing else."""
    if owner is HistoryBuffer and name in HistoryBuffer._statistics_methods:
        return HistoryBuffer._statistics_methods[name]
    raise pickle.UnpicklingError(f"GLOBAL builtins.getattr of {name!r} is not allowed")


_SAFE_GLOBALS: list[Any] = [
    argparse.Namespace,  # in the files of many authors
    HistoryBuffer,
    (_statistic, "builtins.getattr"),
    slice,
    np.ndarray,
    np.dtype,
    *((f, f"{core}.multiarray.{n}") for core in ("numpy.core", "numpy._core")
      for f, n in ((_scalar, "scalar"), (_reconstruct, "_reconstruct"))),
    *(kind for kind in vars(np.dtypes).values() if isinstance(kind, type)),
]  # fmt: skip


# Reading


def read(file: Any, map_location: Any = "cpu", weights_only: bool | None = None) -> Any:
    """The content of a checkpoint (a path or an open file; .pth or .safetensors); nothing in it is run.

    It has the signature of the loader that it replaces; `weights_only` makes no difference.
    """
    name = repr(str(file)) if isinstance(file, str | Path) else "The checkpoint"
    if isinstance(file, str | Path):
        path = Path(file).expanduser()
        if not path.is_file():
            raise FileNotFoundError(f"There is no checkpoint at {name}; give a .pth or .safetensors file.")
        with path.open("rb") as opened:
            if opened.read(9)[8:] == b"{":  # 8 bytes of length, then JSON
                return _read_safetensors(path, map_location)
        file = path
    HistoryBuffer()  # the first one made registers the statistics
    with torch.serialization.safe_globals(_SAFE_GLOBALS), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # on pickle protocols: what cannot be read is refused
        try:
            return torch.load(file, map_location=map_location, weights_only=True)
        except pickle.UnpicklingError as error:
            found = re.search(r"GLOBAL ([\w.]+)", str(error))
            what = f" ({found[1]})" if found else ""
            raise ValueError(
                f"{name} wants to run code while it is read{what}, which is refused; give a checkpoint that mmengine "
                "wrote here, or one that holds tensors only, such as safetensors."
            ) from None
        except (EOFError, RuntimeError) as error:
            first = str(error).splitlines()[0] if str(error) else type(error).__name__
            raise ValueError(f"{name} is truncated or not a checkpoint ({first}); give another file.") from None


def read_url(url: str, model_dir: str | None = None, map_location: Any = "cpu", progress: bool = True) -> Any:
    """The content of a checkpoint on the web, fetched once; the loader that this replaces runs what it finds there."""
    path = Path(model_dir or torch.hub.get_dir() + "/checkpoints") / Path(urlparse(url).path).name
    if not path.is_file():
        with replacing(path) as temporary:
            torch.hub.download_url_to_file(url, str(temporary), progress=progress)
    return read(path, map_location)


def _read_safetensors(path: Path, map_location: Any) -> dict[str, Tensor]:
    try:
        return load_file(path, device=str(map_location) if isinstance(map_location, str | torch.device) else "cpu")
    except SafetensorError as error:
        raise ValueError(f"{str(path)!r} is truncated or damaged ({error}); copy or download it again.") from None


def read_weights(path: str | Path) -> dict[str, Tensor]:
    """The tensors by name in a training checkpoint, a weights file, or a folder that `export_detector` wrote."""
    path = Path(path).expanduser()
    content = read(path / WEIGHTS if path.is_dir() else path)
    if isinstance(content, Mapping):
        content = next((content[k] for k in ("state_dict", "model") if isinstance(content.get(k), Mapping)), content)
    if not isinstance(content, Mapping) or not content or not all(isinstance(v, Tensor) for v in content.values()):
        raise ValueError(f"{str(path)!r} holds no model weights (tensors by name, directly or under 'state_dict').")
    return {name.removeprefix("module."): value for name, value in content.items()}


def load_weights(model: nn.Module, state_dict: Mapping[str, Tensor], source: str = "The checkpoint") -> None:
    """Load all weights of a model, or say in one sentence what does not fit."""
    ours = {name: value.shape for name, value in model.state_dict().items()}
    wrong = [f"{name!r} is missing" for name in ours if name not in state_dict]
    wrong += [f"{name!r} is not part of the model" for name in state_dict if name not in ours]
    wrong += [
        f"{name!r} has shape {list(value.shape)} instead of {list(ours[name])}"
        for name, value in state_dict.items()
        if name in ours and value.shape != ours[name]
    ]
    if wrong:
        more = f" (and {len(wrong) - 1} more such differences)" if len(wrong) > 1 else ""
        raise ValueError(
            f"{source} does not fit the model: {wrong[0]}{more}; give the config and the classes it was trained with."
        )
    model.load_state_dict(dict(state_dict))


def install() -> None:
    """Make mmengine load every checkpoint through `read`, and refuse one of which nothing fits; again is harmless."""
    if mm._safe_torch_load is read:
        return
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
        load_state_dict(module, state_dict, strict, logger)

    mm.load_state_dict = load_state_dict_that_fits


# Detectors and segmenters as folders


class Exported(NamedTuple):
    cfg: Config
    state_dict: dict[str, Tensor]
    dataset_meta: dict[str, Any]  # classes, palette


def export_detector(
    cfg: Config,
    state_dict: Mapping[str, Tensor],
    folder: str | Path,
    dataset_meta: Mapping[str, Any] | None = None,
    provenance: Mapping[str, Any] | None = None,
) -> Path:
    """Write a detector or segmenter as `model.safetensors`, `config.py` (for mmengine) and `config.json`.

    Args:
        state_dict: the weights of the whole model.
        dataset_meta: names and colours of the classes, as mmengine's checkpoints have them in `meta`.
        provenance: where the weights come from, as JSON.
    """
    text = cfg.pretty_text
    try:
        same = _parse(text) == cfg.to_dict()
    except (SyntaxError, ValueError):
        same = False
    if not same:
        raise ValueError("The config holds more than numbers, strings, lists and dicts; write such values out.")
    packages = packages_distributions()
    try:
        config = json.dumps(
            {
                "config": cfg.to_dict(),
                "dataset_meta": dict(dataset_meta or {}),
                "s3zoo": {
                    "schema_version": SCHEMA_VERSION,
                    "version": __version__,
                    "params": sum(value.numel() for value in state_dict.values()),
                    "sha256": "",
                    "packages": {
                        name: version(packages[name][0])
                        for name in ("torch", "timm", "mmengine", "mmcv", "mmdet", "mmseg")
                        if name in packages
                    },
                    "provenance": dict(provenance or {}),
                },
            },
            default=_plain,
        )
    except (TypeError, ValueError) as error:
        raise ValueError(f"The config, classes or provenance are not plain JSON ({error}).") from None
    folder = Path(folder).expanduser()
    if folder.exists() and not folder.is_dir():
        raise ValueError(f"{str(folder)!r} is a file, but must be a folder to write the model into.")
    tensors = {name: value.detach().cpu().clone().contiguous() for name, value in state_dict.items()}
    with replacing(folder / WEIGHTS) as temporary:
        save_file(tensors, temporary, metadata={"format": "pt"})
        digest = sha256(temporary)
    with replacing(folder / CONFIG_PY) as temporary:
        temporary.write_text(text, encoding="utf-8")
    content = json.loads(config)
    content["s3zoo"]["sha256"] = digest
    with replacing(folder / CONFIG_JSON) as temporary:
        temporary.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
    return folder


def _plain(value: Any) -> Any:
    if isinstance(value, np.generic | np.ndarray | Tensor):
        return value.tolist()
    raise TypeError(f"{type(value).__name__} in it")


def load_detector(folder: str | Path) -> Exported:
    """What `export_detector` wrote; the config is read as data, not run."""
    folder = Path(folder).expanduser()
    for name in (CONFIG_JSON, CONFIG_PY, WEIGHTS):
        if not (folder / name).is_file():
            raise ValueError(
                f"{str(folder)!r} holds no {name}; give a folder with {WEIGHTS}, {CONFIG_PY} and {CONFIG_JSON}."
            )
    try:
        content = json.loads((folder / CONFIG_JSON).read_text(encoding="utf-8"))
        info, meta = content["s3zoo"], dict(content.get("dataset_meta") or {})
        schema, digest = info["schema_version"], info["sha256"]
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{str(folder / CONFIG_JSON)!r} is not what s3zoo wrote ({error}); export it again.") from None
    if schema != SCHEMA_VERSION:
        raise ValueError(
            f"{str(folder / CONFIG_JSON)!r} has schema_version {schema!r}, but this release reads {SCHEMA_VERSION}; "
            "use the release that wrote it."
        )
    if sha256(folder / WEIGHTS) != digest:
        raise ValueError(
            f"{str(folder / WEIGHTS)!r} is not the file that {CONFIG_JSON} describes; copy or export it again."
        )
    try:
        cfg = Config(_parse((folder / CONFIG_PY).read_text(encoding="utf-8")))
    except (SyntaxError, ValueError) as error:
        raise ValueError(f"{str(folder / CONFIG_PY)!r} is no config of literals ({error}); export it again.") from None
    return Exported(cfg, read_weights(folder / WEIGHTS), meta)


def _parse(text: str) -> dict[str, Any]:
    """The variables of a config that assigns nothing but literals and dict(...): JSON would turn tuples into lists."""

    def value(node: ast.expr) -> Any:
        if isinstance(node, ast.List | ast.Tuple | ast.Set):
            kind = {ast.List: list, ast.Tuple: tuple, ast.Set: set}[type(node)]
            return kind(value(item) for item in node.elts)
        if isinstance(node, ast.Dict) and None not in node.keys:
            return {value(key): value(item) for key, item in zip(node.keys, node.values, strict=True)}  # type: ignore[arg-type]
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "dict":
            out: dict[Any, Any] = {}
            for argument in node.args:
                out |= value(argument)
            return out | {str(keyword.arg): value(keyword.value) for keyword in node.keywords}
        return ast.literal_eval(node)

    out = {}
    for statement in ast.parse(text).body:
        if not isinstance(statement, ast.Assign) or not isinstance(statement.targets[0], ast.Name):
            raise ValueError(f"line {statement.lineno} is no assignment")
        out[statement.targets[0].id] = value(statement.value)
    return out
