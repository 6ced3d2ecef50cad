"""The folder that is a model: safetensors, a `config.json` that describes them, and what else a kind of folder has.

Whoever made a folder decides what stands in it, so it is read as data: JSON of a closed list of fields and types, of
which nothing opens a file or an address outside the folder. `config.json` records the sha256 of the weights and, in
`schema_version`, the form it has; older forms are migrated.
"""

from __future__ import annotations

import functools
import inspect
import math
import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Annotated, Any, Literal

import timm
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from timm.models import PretrainedCfg
from torch import Tensor

from s3zoo.arch import Arch
from s3zoo.checks import COST, COUNT, LATENCY, PERCENT_IF_ANY, TEST, Fields, Interpolation, Range, Text, typed
from s3zoo.files import CONFIG_BYTES, parse_json, read_bytes, regular, replacing_files, settle, sha256, write_json
from s3zoo.versions import Migration, migrated

WEIGHTS = "model.safetensors"
CONFIG = "config.json"
ALLOW_NONFINITE = "S3ZOO_ALLOW_NONFINITE"  # environment variable: whoever wants to look at broken weights sets it to 1
LARGEST_IMAGE = 1 << 28
LARGEST = 1 << 20  # of sizes and counts in a config: more is a mistake, or meant to fill the memory

_Side = Annotated[int, Range(1, LARGEST)]
_Classes = Annotated[int, Range(0, LARGEST)]
_Image, _Channels = tuple[_Side, _Side, _Side], tuple[float] | tuple[float, float, float]
# What a config.json may hold, by field: besides the network's arguments, timm's pretrained config and our own section
_ZOO_ARGS: dict[str, Any] = {
    "arch": dict, "img_size": _Side | tuple[_Side, _Side], "in_chans": _Side, "num_classes": int,
    "global_pool": str, "dynamic_img_size": bool, "drop_rate": float, "drop_path_rate": float, "tower": str,
    "pretrained_tower": bool | str, "tower_sha256": str, "as_printed": bool, "ladder": str, "gate": bool,
}  # fmt: skip
_CFG_FIELDS: dict[str, Any] = {
    **dict.fromkeys(_SIZES := ("input_size", "test_input_size", "min_input_size"), _Image),
    **dict.fromkeys(("pool_size", "test_pool_size"), tuple[_Side, _Side]),
    **dict.fromkeys(("first_conv", "classifier"), Text | tuple[Text, ...]),
    **dict.fromkeys(("crop_pct", "test_crop_pct"), Annotated[float, Range(0, 10, above=True)]),
    "mean": Annotated[_Channels, Range(-(10**6), 10**6)],
    "std": Annotated[_Channels, Range(0, 10**6, above=True)],
    "num_classes": _Classes,
    "label_offset": int,
    "label_names": tuple[Text, ...],
    "label_descriptions": dict[str, Text],
    "interpolation": Literal[Interpolation, "random"],
    "crop_mode": Literal["center", "squash", "border"],
    "paper_ids": str | tuple[str, ...],
    "notes": tuple[Any, ...],
    "custom_load": bool | str,
    "fixed_input_size": bool,
}
# Of where a network comes from and what was measured of it, all that is told in more than the words that stand there
_FILE: Fields = {"file": str, "sha256": str}
_PROVENANCE: Fields = {
    "kind?": str, "command?": str | None, "data?": str | dict[str, str | None], "versions?": dict[str, str],
    "cost?": {"seconds?": COST, "elapsed_seconds?": COST, "subnets_scored?": COUNT}, "latency?": LATENCY,
    "supernet?": _FILE,
    "trajectory?": [{"size?": float, "params?": [COST], "macs?": [COST], "choices?": dict}],
    "controls?": [
        {"control": str, "test": TEST, "params": COST, "macs": COST, "latency?": COST, "command?": str | None}
    ],
    "base?": {"name": str, "sha256": str}, "teacher?": {"name": str, "kind": str, "sha256": str},
    "converted_from?": _FILE,
}  # fmt: skip
_SECTION: Fields = {
    "version?": str, "arch_key?": str, "params?": COUNT, "sha256?": str | dict[str, str | None], "arch?": dict,
    "model?": str, "supernet?": dict, "title?": Text, "license?": str, "sample?": {"head": [str], "rows": [list]},
    "latency?": {"ms": COST, "device": str, "threads": COUNT, "batch": COUNT, "runtime": str},
    "provenance?": _PROVENANCE,
}  # fmt: skip
_MEASURED: Fields = {
    "metrics?": [
        {"dataset": str, "split": str, "metric": str, "value": PERCENT_IF_ANY, "images?": COUNT | None}
        | dict.fromkeys(("low?", "high?"), PERCENT_IF_ANY)
    ],
}  # fmt: skip
_ELSEWHERE = {"state_dict", "url", "file"}  # of PretrainedCfg: other sources of weights


@dataclass(frozen=True)
class Kind:
    """A kind of folder: which files it has beside `config.json`, and what it is in a sentence.

    Args:
        files: those of which the config records the sha256.
        migrations: from older schema versions, as `versions.migrated` takes them; they get the whole config.
        measured: what its provenance says of measurements.
    """

    what: str
    files: tuple[str, ...] = (WEIGHTS,)
    schema_version: int = 1
    migrations: Mapping[int, Migration] = field(default_factory=dict)
    measured: Fields = field(default_factory=lambda: _MEASURED)

    def write(
        self,
        folder: str | Path,
        tensors: Mapping[str, Tensor],
        config: dict[str, Any],
        texts: Mapping[str, str] | None = None,
        header: Mapping[str, str] | None = None,
    ) -> Path:
        """Write weights, further files and config, which gets their sha256; a kill leaves the old folder or the new.

        `header` is what the file of weights says of itself (see `save_tensors`).
        """
        folder, texts = new_folder(folder), texts or {}
        with replacing_files(folder, (*self.files, *(name for name in texts if name not in self.files), CONFIG)) as new:
            save_tensors(tensors, new / WEIGHTS, header)
            for name, text in texts.items():
                (new / name).write_text(text, encoding="utf-8")
            sums = {name: sha256(new / name) for name in self.files}
            config["s3zoo"]["sha256"] = sums if len(sums) > 1 else sums[WEIGHTS]
            write_json(new / CONFIG, config, indent=2)
        return folder

    def read(self, folder: str | Path, *, verify: bool = True) -> dict[str, Any]:
        """The config of a folder in the form of today's version; with `verify`, its files are those it describes."""
        folder = Path(folder).expanduser()
        settle(folder)
        for name in (CONFIG, *self.files):
            if not (folder / name).is_file():
                need = f"{', '.join(self.files)} and {CONFIG}"
                raise ValueError(f"{str(folder)!r} holds no {name}; give a folder with {need}, which is {self.what}.")
        config = read_json_object(folder / CONFIG)
        where = f"{str(folder / CONFIG)!r} "
        ours = section(config, where, self.measured)
        for name in ("schema_version", "sha256"):
            if name not in ours:
                raise ValueError(f"{where}does not say its {name}, so s3zoo did not write it; give {self.what}.")
        whole = {**config, "schema_version": ours["schema_version"]}
        config = migrated(whole, self.schema_version, self.migrations, f"{str(folder / CONFIG)!r}: ")
        config["s3zoo"] = {**section(config, where, self.measured), "schema_version": config.pop("schema_version")}
        if verify:
            check_sums(folder, self.files, config["s3zoo"]["sha256"])
        return config


def first_checksum(*others: str) -> Migration:
    """From a version that recorded the checksum of the weights alone, and none of the `others`."""

    def migrate(config: dict[str, Any]) -> dict[str, Any]:
        ours = config["s3zoo"]
        return {**config, "s3zoo": {**ours, "sha256": {WEIGHTS: ours["sha256"], **dict.fromkeys(others)}}}

    return migrate


def new_folder(folder: str | Path) -> Path:
    folder = Path(folder).expanduser()
    if folder.exists() and not folder.is_dir():
        raise ValueError(f"{str(folder)!r} is a file, but must be a folder to write the model into.")
    return folder


def save_tensors(tensors: Mapping[str, Tensor], path: Path, header: Mapping[str, str] | None = None) -> None:
    """Clones: a subnet is a view of its supernet's storage, and safetensors takes neither views nor shared tensors.

    The header has one key: with more, the bytes vary between runs.
    """
    copies = {
        name: tensor.detach().cpu().clone(memory_format=torch.contiguous_format) for name, tensor in tensors.items()
    }
    try:
        save_file(copies, path, metadata=dict(header or {"format": "pt"}))
    except SafetensorError as error:
        code = re.search(r"os error (\d+)", str(error))  # a full disk, say: the caller knows OSErrors
        if code is None:
            raise
        raise OSError(int(code[1]), os.strerror(int(code[1])), str(path)) from error


# Reading


def read_json_object(path: Path) -> dict[str, Any]:
    try:
        content = parse_json(read_bytes(path, CONFIG_BYTES))
        typed(content, {}, "")
    except (ValueError, OSError) as error:
        said = error.strerror if isinstance(error, OSError) else str(error).rstrip(".")
        raise ValueError(f"{str(path)!r} is not valid ({said}); get it again, or write the model again.") from None
    return content


def config_beside(path: Path) -> dict[str, Any]:
    """The config that lies beside a file of weights; empty if there is none."""
    config = path.with_name(CONFIG)
    return read_json_object(config) if config.is_file() else {}


def section(config: Mapping[str, Any], where: str, measured: Fields = _MEASURED) -> dict[str, Any]:
    """What s3zoo says about a folder in its config: the field "s3zoo", checked."""
    ours = config.get("s3zoo")
    if not isinstance(ours, dict):
        raise ValueError(f"{where}was not written by s3zoo; give a folder that save_model wrote.")
    typed(ours, _SECTION, f"{where}s3zoo")
    return typed(ours, {"provenance?": measured}, f"{where}s3zoo")


def check_sums(folder: Path, files: Iterable[str], sums: Any) -> None:
    """Refuse files that are not those whose sha256 a config records."""
    sums = {WEIGHTS: sums} if isinstance(sums, str) else sums
    for name in files:
        if name.endswith(".safetensors"):  # before as much is read as the file pretends to hold
            check_safetensors(folder / name)
        if sums.get(name, "") not in (None, sha256(folder / name)):  # None: its version recorded none
            raise ValueError(
                f"{str(folder / name)!r} is not the file that {CONFIG} describes (their sha256 differs): it was changed"
                " or damaged on the way; get it again."
            )


def check_safetensors(path: Path) -> list[list[int]]:
    """The shapes of its tensors, by its header; what follows has the size that this says."""
    try:
        with safe_open(regular(path), "pt") as file:
            return [file.get_slice(name).get_shape() for name in file.keys()]
    except (SafetensorError, OSError, ValueError) as error:
        raise ValueError(f"{str(path)!r} is no intact safetensors file ({error}); get it again.") from None


def check_finite(tensors: Mapping[str, Tensor], where: str) -> None:
    """Refuse weights and statistics that are not numbers, which no training that went well leaves behind."""
    for name, tensor in tensors.items():
        if tensor.is_floating_point() and not tensor.is_meta and not bool(tensor.isfinite().all()):
            if os.environ.get(ALLOW_NONFINITE) == "1":
                return
            raise ValueError(
                f"{where} has NaN or infinite values in {name}: the training diverged or the file is damaged; get other"
                f" weights, or set {ALLOW_NONFINITE}=1 to look at these."
            )


def read_network(folder: str | Path) -> dict[str, Any]:
    """The config of a folder in timm's layout, of any network of timm or s3zoo, checked whole.

    Its arguments and timm's pretrained config have the fields and types of a closed list, so that building the network
    opens nothing else.
    """
    folder = Path(folder).expanduser()
    settle(folder)
    if not (folder / CONFIG).is_file():
        raise ValueError(f"{str(folder)!r} holds no {CONFIG}; give a folder with {WEIGHTS} and {CONFIG}.")
    return check_network(read_json_object(folder / CONFIG), str(folder / CONFIG))


def check_network(config: dict[str, Any], name: str) -> dict[str, Any]:
    where = f"{name!r}: "
    architecture = typed(config.get("architecture"), str, f"{where}architecture")
    if not re.fullmatch(r"[\w.]+", architecture) or not timm.is_model(architecture.partition(".")[0]):
        raise ValueError(f"{where}its architecture {architecture[:60]!r} is no model of timm or s3zoo.")
    _check(config, {"num_classes": _Classes, "num_features": int, "global_pool": str, "s3zoo": dict}, where)
    if "s3zoo" in config:
        section(config, where)
    _check_pretrained_cfg(config.get("pretrained_cfg", config), where, strict="pretrained_cfg" in config)
    above = {key: config[key] for key in ("label_names", "label_descriptions") if key in config}
    _check_pretrained_cfg(above, where, strict=True)  # which timm prefers
    if config.get("model_args") is not None:
        check_args(architecture, config["model_args"], where)
    return config


def is_ours(architecture: str) -> bool:
    """Whether a network is s3zoo's, or a package's for it, and not timm's own."""
    return not timm.models.model_entrypoint(architecture.partition(".")[0]).__module__.startswith("timm.")


def check_args(architecture: str, args: Any, where: str = "") -> None:
    """Refuse arguments of a network that are none of its constructor, or of another type than they have there."""
    if not isinstance(args, dict):
        raise ValueError(f"{where}model_args must be an object with arguments of the network.")
    name, zoo = architecture.partition(".")[0], is_ours(architecture)
    known: Any = _ZOO_ARGS if zoo else _constructor(name)
    unknown = sorted(set(args) - set(known))
    if unknown:
        raise ValueError(f"{where}model_args has {unknown[0]!r}, which is no argument of {name}; remove it.")
    if zoo:
        for key, value in args.items():
            typed(value, _ZOO_ARGS[key], f"{where}model_args.{key}")
        _check_zoo_args(args, where)
    elif not _plain(args):
        raise ValueError(f"{where}model_args must hold numbers, truth values, short words and lists of these only.")
    else:
        for key, value in args.items():  # which Python would take for a number
            if isinstance(value, bool) and isinstance(known[key], int | float) and not isinstance(known[key], bool):
                raise ValueError(f"{where}model_args has {key} {value}, but {name} takes a number there.")


def _check_zoo_args(args: dict[str, Any], where: str) -> None:
    if "arch" in args:
        Arch.from_dict(args["arch"])
    tower, weights = args.get("tower", ""), args.get("pretrained_tower")
    if tower and not timm.is_model(tower.partition(".")[0]):
        raise ValueError(f"{where}model_args has the tower {tower[:60]!r}, which is no model of timm.")
    if weights and not (args.get("tower_sha256") and (weights is True or weights.endswith(".safetensors"))):
        raise ValueError(
            f"{where}model_args has pretrained_tower {str(weights)[:60]!r}; a folder must record the tower_sha256, and"
            " name a safetensors file or say true for the published weights."
        )


@functools.cache
def _constructor(name: str) -> dict[str, Any]:
    """The arguments by name that a network of timm has, and their defaults."""
    kind = type(timm.create_model(name, device="meta"))
    found = inspect.signature(kind.__init__).parameters
    return {key: each.default for key, each in found.items() if key not in ("self", "args", "kwargs")}


def _plain(value: Any, depth: int = 0) -> bool:
    if isinstance(value, dict):
        return depth < 3 and all(_plain(item, depth + 1) for item in value.values())
    if isinstance(value, list):
        return depth < 3 and len(value) <= 1000 and all(_plain(item, depth + 1) for item in value)
    if isinstance(value, str):
        return bool(re.fullmatch(r"[\w+-]{0,60}", value))
    return value is None or (isinstance(value, int | float) and math.isfinite(value) and abs(value) <= LARGEST)


def _check_pretrained_cfg(cfg: Any, where: str, strict: bool) -> None:
    where += "pretrained_cfg"
    if not isinstance(cfg, dict):
        raise ValueError(f"{where} must be an object with timm's fields.")
    known = [f.name for f in fields(PretrainedCfg)]
    unknown = sorted(set(cfg) - set(known)) if strict else []
    if unknown:
        raise ValueError(f"{where} has a field that timm does not know ({unknown[0]!r}); remove it.")
    for key in _ELSEWHERE & cfg.keys():
        if cfg[key]:
            raise ValueError(f"{where} has {key!r}, another source of weights than the folder; remove it.")
    _check(cfg, {key: _CFG_FIELDS.get(key, str) for key in known if key not in _ELSEWHERE}, f"{where}.")
    for key in _SIZES:
        if math.prod(cfg.get(key) or ()) > LARGEST_IMAGE:
            raise ValueError(f"{where} has {key} {cfg[key]!r}, which is more than {LARGEST_IMAGE:,} numbers an image.")


def _check(content: dict[str, Any], kinds: dict[str, Any], where: str) -> None:
    """Of the fields that are there, each has its type."""
    for key, kind in kinds.items():
        if content.get(key) is not None:
            typed(content[key], kind, f"{where}{key}")
