"""Detectors and segmenters as folders: `model.safetensors`, `config.py` (for mmengine) and `config.json`.

mmengine takes a `type` in a config for a path of Python to import, and registered classes open what their arguments
name, so that a config from elsewhere can run anything. Of a folder's config only the model and its test pipeline are
used. Every `type` in them must be one of PARTS or STEPS, every other text a plain word (mmcv evaluates some as Python)
that is no module (mmengine imports a word that is not registered), and what initialises weights is left out. Datasets,
metrics and hooks are those of the task, made here. The model is built without memory for its weights first: those in
the folder must be all that it asks for.
"""

from __future__ import annotations

import ast
import contextlib
import importlib.util
import json
import re
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from importlib.metadata import packages_distributions, version
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import numpy as np
import timm
import torch
from mmengine.config import Config
from mmengine.dataset import Compose
from mmengine.registry import MODELS, TASK_UTILS, TRANSFORMS, Registry
from torch import Tensor, nn

from s3zoo import __version__
from s3zoo.checks import Range, Text, typed
from s3zoo.files import CONFIG_BYTES, read_bytes
from s3zoo.models.folder import WEIGHTS, Kind, check_args, first_checksum
from s3zoo.models.loading import check_fit
from s3zoo.models.official import read_checkpoint
from s3zoo.transfer.mm import checkpoints
from s3zoo.transfer.mm.config import heads, quiet, register

CONFIG_PY, MEASURED = "config.py", {"metrics?": dict[str, float]}
KIND = Kind("the folder of a detector or segmenter", (WEIGHTS, CONFIG_PY), 2, {1: first_checksum(CONFIG_PY)}, MEASURED)

_BYTE = Annotated[int, Range(0, 255)]
_META = {"classes": [Text], "palette?": tuple[tuple[_BYTE, _BYTE, _BYTE], ...] | None}

SCOPES = ("mmdet", "mmseg")
PACKAGES = ("mmengine", "mmcv", *SCOPES)
# What a model may be made of: s3zoo's configs, and the usual detectors and segmenters that they can be turned into.
PARTS = {
    "CascadeRCNN", "FasterRCNN", "MaskRCNN", "RetinaNet", "EncoderDecoder", "DetTTAModel", "SegTTAModel",
    "DetDataPreprocessor", "SegDataPreProcessor",
    "S3ZooBackbone", "ResNet", "ResNetV1c", "ResNeXt", "FPN", "UPerHead", "FCNHead", "RPNHead", "RetinaHead",
    "StandardRoIHead", "CascadeRoIHead", "SingleRoIExtractor", "FCNMaskHead", "ConvFCBBoxHead", "Shared2FCBBoxHead",
    "Shared4Conv1FCBBoxHead", "BN", "SyncBN", "GN", "LN", "Conv2d", "ReLU", "GELU", "deconv",
    "AnchorGenerator", "DeltaXYWHBBoxCoder", "MaxIoUAssigner", "RandomSampler", "PseudoSampler", "CrossEntropyLoss",
    "FocalLoss", "L1Loss", "SmoothL1Loss", "GIoULoss",
}  # fmt: skip
# Named by `type`, but not registered: mmcv evaluates the word of `nms`, mmdet takes a `roi_layer` from mmcv.ops.
UNREGISTERED = {"nms": ("nms", "soft_nms"), "roi_layer": ("RoIAlign", "RoIPool")}
WORD = re.compile(r"[\w +-]*")
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
    folder: Path

    @contextlib.contextmanager
    def running(self) -> Iterator[None]:
        """Around whatever is done with a model that is built from it."""
        with warnings.catch_warnings(), running(f"The model in {str(self.folder)!r}"):
            quiet()
            yield


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
            "packages": {name: version(packages[name][0]) for name in ("torch", "timm", *PACKAGES) if name in packages},
            "provenance": dict(provenance or {}),
        },
    }
    try:
        content = json.loads(json.dumps(content, default=_plain, allow_nan=False))
    except (TypeError, ValueError) as error:
        raise ValueError(f"The config, classes or provenance are not plain JSON ({error}).") from None
    header = {checkpoints.META: json.dumps(content["dataset_meta"])} if dataset_meta else None
    return KIND.write(folder, state_dict, content, {CONFIG_PY: text}, header)


def _plain(value: Any) -> Any:
    if isinstance(value, np.generic | np.ndarray | Tensor):
        return value.tolist()
    raise TypeError(f"{type(value).__name__} in it")


# Reading


def load_detector(folder: str | Path) -> Exported:
    """What `export_detector` wrote, as far as it is safe to build."""
    folder = Path(folder).expanduser()
    content = KIND.read(folder)
    try:
        cfg = _parse(read_bytes(folder / CONFIG_PY, CONFIG_BYTES).decode())
    except (SyntaxError, ValueError, TypeError, RecursionError, MemoryError) as error:
        said = " ".join(str(error).split())[:100]
        raise ValueError(f"{str(folder / CONFIG_PY)!r} is no config of literals ({said}); export it again.") from None
    try:
        meta = _checked_meta(content.get("dataset_meta"))
        checked = Config(_checked(cfg, meta))
        twin = _built(checked)
        _check_heads(checked, meta)
        if json.loads(json.dumps(cfg, default=str)) != content.get("config"):  # from which its card is made
            raise ValueError(f"its config.json holds another config than its {CONFIG_PY}")
    except ValueError as refused:
        said = str(refused).rstrip(".")
        raise ValueError(
            f"{str(folder)!r} is refused: {said}; a folder may hold a model and a pipeline of known parts only, any"
            " other is opened by the config that it was trained with and its checkpoint."
        ) from None
    weights = read_checkpoint(folder / WEIGHTS)
    check_fit(twin, weights, repr(str(folder)))
    return Exported(checked, weights, meta, folder)


def _built(cfg: Config) -> nn.Module:
    """The model without memory for its weights, and the pipelines for nothing: what cannot be built is refused here."""
    try:
        for steps in (cfg.test_dataloader.dataset.pipeline, cfg.get("tta_pipeline", [])):
            Compose(steps)
        with torch.device("meta"), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of parts about their arguments
            return MODELS.build(cfg.model)
    except Exception as error:  # numbers and words that the parts do not expect can fail anywhere in them
        said = " ".join(str(error).split())[:200]
        raise ValueError(f"its parts do not fit each other ({type(error).__name__}: {said})") from error


@contextlib.contextmanager
def running(
    what: str,
    remedy: str = "get it again, or use the config it was trained with and its checkpoint",
    until: Callable[[], bool] = lambda: False,
) -> Iterator[None]:
    """Parts that could be built can still fail on images, by numbers that they only use there.

    A config of the user's is a program of parts that anybody wrote: what goes wrong in it `until` it has shown that it
    runs is told in the same way.
    """
    try:
        yield
    except (ValueError, OSError):
        raise
    except Exception as error:
        if until():
            raise
        said = " ".join(str(error).split()).partition(" Please check")[0][:200]  # mmengine goes on for lines
        raise ValueError(f"{what} does not run ({type(error).__name__}: {said}); {remedy}.") from error


def running_config(name: str, until: Callable[[], bool] = lambda: False) -> AbstractContextManager[None]:
    return running(f"The config {name!r}", "correct it (S3ZOO_DEBUG=1 shows where it fails)", until)


def _checked_meta(meta: Any) -> dict[str, Any]:
    if not meta:
        return {}
    typed(meta, _META, "its dataset_meta")
    classes, colours = tuple(meta["classes"]), [tuple(colour) for colour in meta.get("palette") or ()]
    if colours and len(colours) != len(classes):
        raise ValueError(f"its dataset_meta has {len(classes)} classes and {len(colours)} colours")
    return {"classes": classes, **({"palette": colours} if colours else {})}


def _check_heads(cfg: Config, meta: Mapping[str, Any]) -> None:
    """A head that tells more classes than there are names for would fail on the first image where it does."""
    named = len(meta.get("classes", ()))
    for head in heads(cfg):
        if named and head["num_classes"] != named:
            raise ValueError(f"it has names of {named} classes, but a head for {head['num_classes']}")


def _checked(cfg: dict[str, Any], meta: dict[str, Any]) -> dict[str, Any]:
    """A config with the model, the pipelines and a test of its scope, and nothing else of `cfg`."""
    scope = cfg.get("default_scope")
    if scope not in SCOPES:
        raise ValueError(f"its default_scope is {scope!r:.60} instead of {' or '.join(SCOPES)}")
    register(Config(dict(default_scope=scope)))
    models, transforms = _registered(scope, MODELS, TASK_UTILS) & PARTS, _registered(scope, TRANSFORMS) & STEPS
    loader = _dict(cfg.get("test_dataloader"), "test_dataloader")
    stored = _dict(loader.get("dataset"), "test_dataloader.dataset")
    if not isinstance(stored.get("pipeline"), list | tuple):
        raise ValueError("it has no list of steps as test_dataloader.dataset.pipeline")
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
        raise ValueError(f"it has no {where}")
    return value


def _registered(scope: str, *kinds: Registry) -> set[str]:
    """The names that mmengine finds in registries of these kinds."""
    return {name for root in kinds for registry in (root, root.children[scope]) for name in registry.module_dict}


def _part(node: Any, allowed: set[str], where: str) -> Any:
    """A part of a config with every `type`, word and number in it checked."""
    if isinstance(node, dict):
        out: dict[Any, Any] = {}
        for key, value in node.items():
            if key in DROPPED:
                continue
            if not isinstance(key, str | int) or (isinstance(key, str) and not WORD.fullmatch(key)):
                raise ValueError(f"{where} has the key {str(key)[:60]!r}")
            inside = f"{where}.{key}"
            if key == "type" and isinstance(value, str):
                known = UNREGISTERED.get(where.rpartition(".")[2], ())
                if value not in known and (value not in allowed or _is_module(value)):
                    raise ValueError(f"{inside} is {value[:60]!r}, which is none of the parts that a folder may name")
                out[key] = value
            elif node.get("type") == "S3ZooBackbone" and key in ("model", "model_args"):
                out[key] = value
            elif key == "type":
                raise ValueError(f"{inside} is a {type(value).__name__}")
            elif isinstance(value, str) and FILE_KEY.fullmatch(str(key)):
                raise ValueError(f"{inside} names a file or an address")
            else:
                out[key] = _part(value, allowed, inside)
        if out.get("type") == "S3ZooBackbone":
            _check_backbone(out, where)
        return out
    if isinstance(node, list | tuple):
        return type(node)(_part(value, allowed, f"{where}[{i}]") for i, value in enumerate(node))
    if isinstance(node, str) and not WORD.fullmatch(node):
        raise ValueError(f"{where} is {node[:60]!r}, which is no plain word")
    if isinstance(node, str) and _is_module(node):
        raise ValueError(f"{where} is {node[:60]!r}, the name of a Python module")
    if node is not None and not isinstance(node, str | bool | int | float):
        raise ValueError(f"{where} is a {type(node).__name__}")
    return node


def _is_module(word: str) -> bool:
    """Whether `import word` would find something; nothing is imported."""
    return word.isidentifier() and importlib.util.find_spec(word) is not None


def _check_backbone(cfg: dict[str, Any], where: str) -> None:
    name = cfg.get("model", "s3_tiny")
    if not isinstance(name, str) or not re.fullmatch(r"[\w.]+", name) or not timm.is_model(name.partition(".")[0]):
        raise ValueError(f"{where}.model is {str(name)[:60]!r}, which is no network of timm or s3zoo")
    if cfg.get("model_args"):
        check_args(name, cfg["model_args"], f"{where}: ")


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
                raise ValueError(f"{name} of its test data is {str(value)[:60]!r}, which is not in the data's folder")
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
