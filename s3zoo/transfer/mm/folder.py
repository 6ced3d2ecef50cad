"""Detectors and segmenters as folders: `model.safetensors`, `config.py` (for mmengine) and `config.json`.

mmengine takes a `type` in a config for a path of Python to import, and registered classes open what their arguments
name, so that a config from elsewhere can run anything. Of a folder's config only the model and its test pipeline are
used. Every `type` in them must be a name in the registries of mmengine, mmcv, mmdet, mmseg or s3zoo (in a pipeline: one
of STEPS), every other text a plain word (mmcv evaluates some as Python) that is no module (mmengine imports a word that
is not registered), and what initialises weights is left out. Datasets, metrics and hooks are those of the task, made
here.
"""

from __future__ import annotations

import ast
import importlib.util
import json
import re
from collections.abc import Mapping
from importlib.metadata import packages_distributions, version
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import timm
from mmengine.config import Config
from mmengine.registry import MODELS, TASK_UTILS, TRANSFORMS, Registry
from torch import Tensor

from s3zoo import __version__
from s3zoo.files import check_fields
from s3zoo.models.folder import CONFIG, WEIGHTS, Kind, check_args
from s3zoo.models.official import read_checkpoint
from s3zoo.transfer.mm.config import register

CONFIG_PY = "config.py"
KIND = Kind("the folder of a detector or segmenter")

SCOPES = ("mmdet", "mmseg")
PACKAGES = ("mmengine", "mmcv", *SCOPES)
# Named by `type`, but not registered: mmcv evaluates the word of `nms`, mmdet takes a `roi_layer` from mmcv.ops.
UNREGISTERED = {"nms": ("nms", "soft_nms"), "roi_layer": ("RoIAlign", "RoIPool")}
WORD = re.compile(r"[\w +-]*")
# Parts that fetch something by default, or what a plain word names, from the Hub or elsewhere
OUTSIDE = {
    "BertModel", "ATSSVLFusionHead", "RandomSamplingNegPos", "VPD", "TIMMBackbone", "GLIP", "GroundingDINO",
}  # fmt: skip
# What prepares a test image; other transforms unpickle files or take names of further code.
STEPS = {
    "LoadImageFromFile", "LoadAnnotations", "Resize", "RandomFlip", "Pad", "Normalize", "CenterCrop", "TestTimeAug",
    "PackDetInputs", "PackSegInputs",
}  # fmt: skip
DROPPED = ("init_cfg", "pretrained", "backend_args", "file_client_args", "_scope_", "_delete_")
FILE_KEY = re.compile(r".*(path|file|filename|url|root|dir|prefix|checkpoint|ckpt)|class_weight|teacher_config")


class Exported(NamedTuple):
    cfg: Config  # what is safe to build: model, test pipeline and what testing needs
    state_dict: dict[str, Tensor]
    dataset_meta: dict[str, Any]  # classes, palette


# Writing


def export_detector(
    cfg: Config,
    state_dict: Mapping[str, Tensor],
    folder: str | Path,
    dataset_meta: Mapping[str, Any] | None = None,
    provenance: Mapping[str, Any] | None = None,
) -> Path:
    """Write a detector or segmenter as a folder.

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
    content = {
        "config": cfg.to_dict(),
        "dataset_meta": dict(dataset_meta or {}),
        "s3zoo": {
            "schema_version": KIND.schema_version,
            "version": __version__,
            "params": sum(value.numel() for value in state_dict.values()),
            "sha256": "",
            "packages": {
                name: version(packages[name][0]) for name in ("torch", "timm", *PACKAGES) if name in packages
            },
            "provenance": dict(provenance or {}),
        },
    }
    try:
        content = json.loads(json.dumps(content, default=_plain, allow_nan=False))
    except (TypeError, ValueError) as error:
        raise ValueError(f"The config, classes or provenance are not plain JSON ({error}).") from None
    return KIND.write(folder, state_dict, content, {CONFIG_PY: text})


def _plain(value: Any) -> Any:
    if isinstance(value, np.generic | np.ndarray | Tensor):
        return value.tolist()
    raise TypeError(f"{type(value).__name__} in it")


# Reading


def load_detector(folder: str | Path) -> Exported:
    """What `export_detector` wrote, as far as it is safe to build."""
    folder = Path(folder).expanduser()
    content = KIND.read(folder)
    if not (folder / CONFIG_PY).is_file():
        need = f"{WEIGHTS}, {CONFIG_PY} and {CONFIG}"
        raise ValueError(f"{str(folder)!r} holds no {CONFIG_PY}; give a folder with {need}.")
    try:
        cfg = _parse((folder / CONFIG_PY).read_text(encoding="utf-8"))
    except (SyntaxError, ValueError, TypeError, RecursionError, MemoryError) as error:
        said = " ".join(str(error).split())[:100]
        raise ValueError(f"{str(folder / CONFIG_PY)!r} is no config of literals ({said}); export it again.") from None
    try:
        meta = _checked_meta(content.get("dataset_meta"))
        cfg = _checked(cfg, meta)
    except _Refused as refused:
        raise ValueError(
            f"{str(folder)!r} is refused: {refused}; a folder may hold a model and a pipeline of registered parts only."
        ) from None
    return Exported(Config(cfg), read_checkpoint(folder / WEIGHTS), meta)


class _Refused(ValueError):
    pass


def _checked_meta(meta: Any) -> dict[str, Any]:
    if not meta:
        return {}
    check_fields(meta, {"classes": list})
    if not all(isinstance(name, str) for name in meta["classes"]):
        raise _Refused("its classes are not all text")
    colours = meta.get("palette") or []
    good = isinstance(colours, list) and all(
        isinstance(c, list) and len(c) == 3 and all(type(v) is int and 0 <= v < 256 for v in c) for c in colours
    )
    if not good:
        raise _Refused("its palette is no list of colours")
    palette = {"palette": [tuple(colour) for colour in colours]} if colours else {}
    return {"classes": tuple(meta["classes"]), **palette}


def _checked(cfg: dict[str, Any], meta: dict[str, Any]) -> dict[str, Any]:
    """A config with the model, the pipelines and a test of its scope, and nothing else of `cfg`."""
    scope = cfg.get("default_scope")
    if scope not in SCOPES:
        raise _Refused(f"its default_scope is {scope!r:.60} instead of {' or '.join(SCOPES)}")
    register(Config(dict(default_scope=scope)))
    models = _registered(MODELS, TASK_UTILS)
    transforms = {name for name in _registered(TRANSFORMS) if _bare(name) in STEPS}
    loader = _dict(cfg.get("test_dataloader"), "test_dataloader")
    stored = _dict(loader.get("dataset"), "test_dataloader.dataset")
    if not isinstance(stored.get("pipeline"), list | tuple):
        raise _Refused("it has no list of steps as test_dataloader.dataset.pipeline")
    dataset = _dataset(scope, stored, meta, _part(list(stored["pipeline"]), transforms, "test pipeline"))
    out: dict[str, Any] = {
        "default_scope": scope,
        "model": _part(_dict(cfg.get("model"), "model"), models, "model"),
        "test_dataloader": {
            "batch_size": 1,
            "num_workers": 2 if loader.get("num_workers", 2) else 0,
            "persistent_workers": bool(loader.get("num_workers", 2)),
            "sampler": dict(type="DefaultSampler", shuffle=False),
            "dataset": dataset,
        },
        "test_cfg": dict(type="TestLoop"),
        "test_evaluator": _metric(scope, cfg.get("test_evaluator"), dataset),
        "visualizer": dict(type="DetLocalVisualizer" if scope == "mmdet" else "SegLocalVisualizer", name="visualizer"),
        "env_cfg": dict(cudnn_benchmark=False, mp_cfg=dict(mp_start_method="fork", opencv_num_threads=0)),
        "log_processor": dict(by_epoch=scope == "mmdet"),
    }
    for key, allowed in (("tta_model", models), ("tta_pipeline", transforms)):
        if cfg.get(key):
            out[key] = _part(cfg[key], allowed, key)
    return out


def _dict(value: Any, where: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise _Refused(f"it has no {where}")
    return value


def _registered(*kinds: Registry) -> set[str]:
    """The names in registries of these kinds that stand for classes of the packages named above, also with a scope."""
    names: set[str] = set()
    for root in kinds:
        for registry in (root, *(root.children[scope] for scope in PACKAGES if scope in root.children)):
            for name, made in registry.module_dict.items():
                home = getattr(made, "__module__", "").partition(".")[0]
                if home in (*PACKAGES, "s3zoo", "torch") and "." not in name and name not in OUTSIDE:
                    names |= {name, f"{registry.scope}.{name}"}
    return names


def _part(node: Any, allowed: set[str], where: str) -> Any:
    """A part of a config with every `type`, word and number in it checked."""
    if isinstance(node, dict):
        out: dict[Any, Any] = {}
        for key, value in node.items():
            if key in DROPPED:
                continue
            if not isinstance(key, str | int) or (isinstance(key, str) and not WORD.fullmatch(key)):
                raise _Refused(f"{where} has the key {str(key)[:60]!r}")
            inside = f"{where}.{key}"
            if key == "type" and isinstance(value, str):
                if value not in allowed and value not in UNREGISTERED.get(where.rpartition(".")[2], ()):
                    raise _Refused(f"{inside} is {str(value)[:60]!r}, which is no registered name that may be used")
                out[key] = value
            elif _bare(node.get("type")) == "S3ZooBackbone" and key in ("model", "model_args"):
                out[key] = value
            elif key == "type":
                raise _Refused(f"{inside} is a {type(value).__name__}")
            elif isinstance(value, str) and FILE_KEY.fullmatch(str(key)):
                raise _Refused(f"{inside} names a file or an address")
            else:
                out[key] = _part(value, allowed, inside)
        if _bare(out.get("type")) == "S3ZooBackbone":
            _check_backbone(out, where)
        return out
    if isinstance(node, list | tuple):
        return type(node)(_part(value, allowed, f"{where}[{i}]") for i, value in enumerate(node))
    if isinstance(node, str) and not WORD.fullmatch(node):
        raise _Refused(f"{where} is {node[:60]!r}, which is no plain word")
    if isinstance(node, str) and _is_module(node):
        raise _Refused(f"{where} is {node[:60]!r}, the name of a Python module")
    if node is not None and not isinstance(node, str | bool | int | float):
        raise _Refused(f"{where} is a {type(node).__name__}")
    return node


def _bare(name: Any) -> str:
    """A registered name without its scope."""
    return str(name).rpartition(".")[2]


def _is_module(word: str) -> bool:
    """Whether `import word` would find something; nothing is imported."""
    return word.isidentifier() and importlib.util.find_spec(word) is not None


def _check_backbone(cfg: dict[str, Any], where: str) -> None:
    name = cfg.get("model", "s3_tiny")
    if not isinstance(name, str) or not re.fullmatch(r"[\w.]+", name) or not timm.is_model(name.partition(".")[0]):
        raise _Refused(f"{where}.model is {str(name)[:60]!r}, which is no network of timm or s3zoo")
    if cfg.get("model_args"):
        try:
            check_args(name, cfg["model_args"], f"{where}: ")
        except ValueError as error:
            raise _Refused(str(error).rstrip(".")) from None


def _dataset(scope: str, stored: dict[str, Any], meta: dict[str, Any], pipeline: list[Any]) -> dict[str, Any]:
    """The task's dataset below a root that the user gives, with the folder's file names, classes and pipeline."""
    kinds = {"mmdet": ("CocoDataset",), "mmseg": ("BaseSegDataset", "ADE20KDataset")}[scope]
    kind = stored.get("type") if stored.get("type") in kinds else kinds[0]
    out = {"type": kind, "data_root": "", "pipeline": pipeline, "test_mode": True}
    for key, values in (("data_prefix", stored.get("data_prefix") or {}), ("", stored)):
        places = {
            name: value
            for name, value in _dict(values, "data_prefix").items()
            if name in ("img", "img_path", "seg_map_path", "seg", "ann_file", "img_suffix", "seg_map_suffix")
        }
        for name, value in places.items():
            if not isinstance(value, str) or not re.fullmatch(r"[\w ./-]*", value) or ".." in value or value[:1] == "/":
                raise _Refused(f"{name} of its test data is {str(value)[:60]!r}, which is not below the data's folder")
        out |= {key: places} if key else places
    if type(stored.get("reduce_zero_label")) is bool:
        out["reduce_zero_label"] = stored["reduce_zero_label"]
    own = meta or _checked_meta(json.loads(json.dumps(_part(stored.get("metainfo") or {}, set(), "metainfo"))))
    return out | ({"metainfo": own} if own else {})


def _metric(scope: str, stored: Any, dataset: dict[str, Any]) -> dict[str, Any]:
    if scope == "mmseg":
        return dict(type="IoUMetric", iou_metrics=["mIoU"])
    asked = stored.get("metric") if isinstance(stored, dict) else None
    asked = [asked] if isinstance(asked, str) else asked if isinstance(asked, list | tuple) else []
    metric = [kind for kind in ("bbox", "segm") if kind in asked] or ["bbox"]
    return dict(type="CocoMetric", metric=metric, ann_file=dataset.get("ann_file"))


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
