"""Configs of mmdet and mmseg: found by name, changed for a user's data, and checked before anything is built."""

from __future__ import annotations

import colorsys
import contextlib
import difflib
import importlib
import io
import os
import warnings
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from mmengine.config import Config, ConfigDict
from mmengine.registry import DATASETS, MODELS, init_default_scope
from mmengine.utils import import_modules_from_strings

from s3zoo.paths import configs_dir
from s3zoo.transfer.mm import require
from s3zoo.transfer.mm.coco import check_coco

FOLDERS = ("detection", "segmentation")
SPLITS = ("train", "val", "test")


def first() -> bool:
    """Whether this is the first (or only) process of `torchrun`."""
    return not int(os.environ.get("RANK", "0"))


def load_mm_config(source: str, options: dict[str, Any] | None = None, backbone: str | None = None) -> Config:
    """A config by path, or by the name of a file in configs/detection or configs/segmentation, with another backbone
    and with options set."""
    known = {path.stem: path for folder in FOLDERS for path in sorted((configs_dir() / folder).glob("[!_]*.py"))}
    path = Path(source).expanduser()
    if path.suffix != ".py":
        if source not in known:
            raise ValueError(f"No config is called {source!r}; {_nearest(source, known)}")
        path = known[source]
    if not path.is_file():
        raise ValueError(f"There is no config file at {source!r}; {_nearest(path.stem, known)}")
    try:
        cfg = Config.fromfile(path, import_custom_modules=False)
    except FileNotFoundError as error:
        raise ValueError(
            f"The config {source!r} reads a file that does not exist ({error.filename or error}); correct the path"
            " (that of a _base_ begins in the config's own folder)."
        ) from None
    except Exception as error:  # a config is a program: anything can go wrong in it
        said = f"{error.strerror}: {error.filename!r}" if isinstance(error, OSError) and error.errno else str(error)
        said = f"{type(error).__name__}: {said.rstrip('.')}"
        raise ValueError(f"The config {source!r} cannot be read: {said}; correct it.") from error
    if "model" not in cfg or cfg.get("default_scope") not in ("mmdet", "mmseg"):
        raise ValueError(f"The config {source!r} is not one of mmdet or mmseg: it has no model or no default_scope.")
    require(cfg.default_scope)
    try:
        import_modules_from_strings(**cfg.get("custom_imports", {}))
    except Exception as error:  # modules of the user's, with errors of their own
        raise ValueError(
            f"The config {source!r} has custom_imports that cannot be imported ({type(error).__name__}: {error});"
            " correct them, or put the folder of the modules on PYTHONPATH."
        ) from error
    if backbone is not None:
        set_backbone(cfg, backbone)
    check_keys(cfg, options or {})
    cfg.merge_from_dict(options or {})
    _check_dicts(cfg, source)
    return cfg


def _check_dicts(cfg: Config, source: str) -> None:
    """What is looked at before anything is built."""
    loaders = [f"{split}_dataloader" for split in SPLITS if cfg.get(f"{split}_dataloader") is not None]
    for key in ("model", "model.backbone", *loaders, *(f"{loader}.dataset" for loader in loaders)):
        node: Any = cfg
        for name in key.split("."):
            node = node.get(name)
        if not isinstance(node, dict):
            raise ValueError(f"The config {source!r} has {node!r:.60} as {key}, but that must be a dict; correct it.")


def _nearest(name: str, known: Mapping[str, Path]) -> str:
    """What may have been meant: at most three names, as there are dozens."""
    near = [other for other in known if name in other][:3] or difflib.get_close_matches(name, known, n=1, cutoff=0.5)
    if near:
        return f"did you mean {' or '.join(map(repr, near))}?"
    examples = [other for other in known if "_s3-tiny_" in other]
    return (
        f"give a path ending in .py or one of the {len(known)} names in configs/{' and configs/'.join(FOLDERS)}, "
        f"such as {' or '.join(map(repr, examples))}."
    )


def check_keys(cfg: Config, options: dict[str, Any]) -> None:
    """The last name of an option may be new (an argument that has a default), what it belongs to may not."""
    for key in options:
        node: Any = cfg
        *above, _ = key.split(".")
        for i, name in enumerate(above or [key]):
            try:
                node = node[int(name)] if isinstance(node, list | tuple) else node[name]
            except (KeyError, IndexError, ValueError, TypeError):
                near = difflib.get_close_matches(name, list(node) if isinstance(node, dict | Config) else [], n=1)
                hint = f"; did you mean {'.'.join([*above[:i], near[0]])!r}?" if near else "."
                raise ValueError(f"--cfg-options sets {key!r}, but the config has no {name!r} there{hint}") from None


def register(cfg: Config) -> None:
    """Import what a config of mmdet or mmseg may name; they print what they miss while being imported."""
    with contextlib.redirect_stdout(io.StringIO()), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for part in ("datasets", "models", "engine", "evaluation", "visualization"):
            importlib.import_module(f"{cfg.default_scope}.{part}")
    init_default_scope(cfg.default_scope)


def quiet() -> None:
    """No warnings of packages about themselves."""
    warnings.filterwarnings("ignore", module=r"(mmengine|mmcv|mmdet|mmseg|pycocotools|torch\.utils\.data)\b")


def without_pretrained(cfg: Config) -> None:
    """Nothing to download for the backbone: its weights come from a checkpoint, or are not looked at."""
    for part in (cfg.model, cfg.model.backbone):  # mmseg's own configs name the weights beside the backbone
        part.update({key: None for key in ("pretrained", "init_cfg") if key in part})  # not all know both


@contextlib.contextmanager
def plain_text() -> Iterator[None]:
    """Leave the text of configs as mmengine puts it together: yapf works on it for seconds, at the start of a run and
    for every checkpoint, and all it adds are shorter lists.
    """
    from yapf.yapflib import yapf_api

    format_code = yapf_api.FormatCode
    yapf_api.FormatCode = lambda text, **_: (text, False)
    try:
        yield
    finally:
        yapf_api.FormatCode = format_code


def datasets(cfg: Config) -> Iterator[tuple[str, Any]]:
    """Every split's dataset config, without the wrappers (RepeatDataset and the like)."""
    for split in SPLITS:
        loader = cfg.get(f"{split}_dataloader")
        if loader:
            data = loader.dataset
            while "data_root" not in data and isinstance(data.get("dataset"), dict):
                data = data.dataset
            yield split, data


def set_data(cfg: Config, root: str | None) -> None:
    """Read every split from `root`, if one is given, and let the metrics read the annotations that the splits have."""
    for split, data in datasets(cfg):
        if root is not None:
            data.data_root = str(Path(root).expanduser()) if root else ""
        evaluator = cfg.get(f"{split}_evaluator")
        if data.get("ann_file") and isinstance(evaluator, dict) and evaluator.get("ann_file"):
            evaluator["ann_file"] = str(Path(data.get("data_root") or "") / data.ann_file)


def portable(
    cfg: Config, written_out: Mapping[str, Any] | None = None, meta: Mapping[str, Any] | None = None
) -> Config:
    """The config without what is true of this run or this machine alone: folders of data, weights that it began with.

    `written_out` is the backbone's, where the config has its network by a folder or a repository; `meta` has the names
    and colours of a segmenter's classes, which mmseg's inferencer shows if the visualizer knows them.
    """
    cfg = Config({k: v for k, v in cfg.to_dict().items() if k not in ("work_dir", "resume", "load_from")})
    set_data(cfg, "")
    backbone = cfg.model.backbone
    for key in ("pretrained", "init_cfg"):
        source = backbone[key].get("checkpoint") if isinstance(backbone.get(key), dict) else backbone.get(key)
        if source and (written_out or isinstance(source, str) and Path(source).expanduser().exists()):
            backbone[key] = None
    backbone.update(written_out or {})
    if cfg.get("default_scope") == "mmseg" and meta and meta.get("palette"):
        own = {key: [*map(_listed, meta[key])] for key in ("classes", "palette")}
        cfg.visualizer = dict(cfg.get("visualizer") or {}, type="OwnClassesVisualizer", **own)
        imports = (cfg.get("custom_imports") or {}).get("imports") or [__package__]
        imports = list(dict.fromkeys([*imports, f"{__package__}.visualizer"]))
        cfg.custom_imports = dict(imports=imports, allow_failed_imports=False)

    def names_only(node: Any) -> Any:
        if isinstance(node, dict):
            return {key: names_only(value) for key, value in node.items()}
        if isinstance(node, list | tuple):
            return type(node)(names_only(value) for value in node)
        return Path(node).name if isinstance(node, str) and Path(node).is_absolute() else node

    return Config(names_only(cfg.to_dict()))


def _listed(value: Any) -> Any:
    return value if isinstance(value, str) else [int(channel) for channel in value]


def set_classes(cfg: Config, names: Sequence[str]) -> None:
    """Other classes than the dataset's own: for every split and every head of the model."""
    if len(set(names)) != len(names) or not all(names):
        raise ValueError(f"--classes is {','.join(names)!r}, but must be different names separated by commas.")
    if cfg.default_scope == "mmseg" and len(names) == 1:
        raise ValueError(
            f"--classes is {names[0]!r} alone, but pixels with label 0 are not judged, so all others would be right; "
            "give the background a label and a name of its own."
        )
    colours = [colorsys.hsv_to_rgb(i / len(names), 0.75, 0.95) for i in range(len(names))]
    palette = [tuple(round(255 * channel) for channel in colour) for colour in colours]
    for _, data in datasets(cfg):
        data.metainfo = dict(classes=tuple(names), palette=palette)
        if cfg.default_scope == "mmseg" and data.type == "ADE20KDataset":
            # ADE20KDataset takes subsets of its own 150 classes only. Labels still count from 1, 0 is not judged.
            data.update(type="BaseSegDataset", reduce_zero_label=True, seg_map_suffix=".png", img_suffix=".jpg")
    for head in heads(cfg):
        head["num_classes"] = len(names)


def heads(cfg: Config) -> Iterator[dict[str, Any]]:
    """The parts of the model that say for how many classes they are."""
    rest: list[Any] = [part for name, part in cfg.model.items() if name != "backbone"]
    while rest:
        node = rest.pop()
        if isinstance(node, dict):
            if "num_classes" in node:
                yield node
            rest += node.values()
        elif isinstance(node, list | tuple):
            rest += node


def set_backbone(cfg: Config, network: str) -> None:
    """Another network (a name, a folder, hf-hub:...), with its weights, and what necks and heads must know of its maps.

    Strides that a network does not have go on by doubling, as the maps that a pyramid adds do.
    """
    register(cfg)
    old = cfg.model.backbone
    kept = {key: old[key] for key in ("drop_path_rate", "frozen_stages", "norm_eval", "with_cp") if key in old}
    ours = dict(type="S3ZooBackbone", model=network, pretrained=True)
    cfg.model.backbone = ConfigDict(**ours, **(kept if old.type == ours["type"] else {}))
    with torch.device("meta"):
        built: Any = MODELS.build(cfg.model.backbone)
    if built.args.get("in_chans", 3) != 3:
        raise ValueError(
            f"{network!r} is for images of {built.args['in_chans']} channels, and mm's have 3; use another."
        )
    if not built.published:
        cfg.model.backbone.pretrained = None  # none to be had: it begins from random weights
    channels, strides = list(built.out_channels), list(built.strides)
    while len(strides) < 5:
        strides.append(2 * strides[-1])

    def fit(node: Any) -> None:
        for key, value in node.items():
            if key == "featmap_strides":
                node[key] = strides[: len(value)]
            parts = value if isinstance(value, list) else [value]  # a model may have several of a kind
            for part in (part for part in parts if isinstance(part, dict)):
                fit(part)
                if key == "anchor_generator" and "strides" in part:
                    part["strides"] = strides[: len(part["strides"])]
                elif key in ("neck", "decode_head") and isinstance(part.get("in_channels"), list | tuple):
                    part["in_channels"] = channels
                    part.update({"in_index": list(range(len(channels)))} if "in_index" in part else {})
                elif key == "auxiliary_head" and isinstance(part.get("in_index", -1), int):
                    part["in_index"] = min(part.get("in_index", -1), len(channels) - 1)
                    part["in_channels"] = channels[part["in_index"]]

    fit(cfg.model)


# Data, looked at before anything is built


def check_data(cfg: Config, splits: Sequence[str]) -> None:
    """Every file and folder that the splits need is there, and annotations are in their format."""
    wanted: dict[Path, bool] = {}
    used = [(split, data) for split, data in datasets(cfg) if split in splits]
    for _, data in used:
        root = Path(data.get("data_root") or ".")
        if data.get("ann_file"):
            wanted[root / data.ann_file] = True
        for prefix in (data.get("data_prefix") or {}).values():
            wanted[root / prefix] = False
    for path, is_file in wanted.items():
        if not (path.is_file() if is_file else path.is_dir() and any(path.iterdir())):
            names = [f"{other.as_posix()}{'' if is_file else '/'}" for other, is_file in wanted.items()]
            raise ValueError(
                f"{path.as_posix()!r} is no {'file' if is_file else 'folder with files in it'}; the config reads "
                f"{', '.join(names)}: give the folder above these with --data."
            )
    for path, is_file in wanted.items():
        for entry in [] if is_file else os.scandir(path):
            if not (entry.is_file() or entry.is_dir()):  # reading never ends, or it is passed over without a word
                what = "a pipe or a device" if os.path.exists(entry) else "a link that leads nowhere"
                raise ValueError(f"{entry.path!r} is no file, but {what}; remove it.")
    register(cfg)
    annotated: dict[Path, Any] = {}
    for _, data in used:
        if cfg.default_scope == "mmseg":
            _check_suffix(data)
        elif "ann_file" in data:
            annotated[Path(data.get("data_root") or ".") / data.ann_file] = data
    for path, data in annotated.items():
        from mmdet.datasets import CocoDataset

        if _type_of(data).load_data_list is CocoDataset.load_data_list:  # mmdet knows other formats, too
            check_coco(path, classes_of(data)["classes"])


def classes_of(data: Any) -> dict[str, Any]:
    """Names and colours of a dataset's classes: the config's own or those that come with the dataset's type."""
    return {**_type_of(data).METAINFO, **(data.get("metainfo") or {})}


def _type_of(data: Any) -> Any:
    with DATASETS.switch_scope_and_registry(None) as registry:  # that of the default scope
        kind = registry.get(data.type)
    if kind is None:
        raise ValueError(f"There is no dataset type {data.type!r}; import its module with the config's custom_imports.")
    return kind


def first_label(data: Any) -> int:
    """The number of the first class in masks: 1 where a dataset's 0 is for pixels that are not judged."""
    return int(bool(data.get("reduce_zero_label", data.type == "ADE20KDataset")))


def _check_suffix(data: Any) -> None:
    """Own images may be .png; mmseg looks for one suffix and takes a folder without it for an empty dataset."""
    folder = Path(data.get("data_root") or ".") / data.data_prefix.img_path
    found = sorted({path.suffix for path in folder.iterdir() if path.is_file()})
    suffix = data.get("img_suffix", ".jpg")
    if suffix in found:
        return
    if data.type == "BaseSegDataset" and len(found) == 1:
        data.img_suffix = found[0]
        return
    raise ValueError(f"{folder.as_posix()!r} has no images ending in {suffix!r}; it has {', '.join(found)}.")
