"""Run configurations: frozen dataclasses that people write in Python and change with `--set`; machines store JSON."""

from __future__ import annotations

import ast
import dataclasses
import difflib
import importlib.util
import math
import types
import typing
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from s3zoo.paths import configs_dir
from s3zoo.space import SPACES, Space

BELOW_ONE = math.nextafter(1.0, 0.0)


def check_range(config: Any, where: str, names: str, low: float, high: float = math.inf) -> None:
    """The numbers of these fields (all of a tuple) lie from low to high, or a sentence."""
    for name in names.split():
        value = getattr(config, name)
        if not all(low <= v <= high for v in (value if isinstance(value, tuple) else (value,))):
            upto = "" if high == math.inf else " and below 1" if high == BELOW_ONE else f" and at most {high:g}"
            raise ValueError(f"{where}{name} is {value!r}, but must be at least {low:g}{upto}.")


def check_word(config: Any, where: str, name: str, *words: str) -> None:
    """The field has one of these values, or a sentence."""
    value = getattr(config, name)
    if value not in words:
        listed = ", ".join(map(repr, words[:-1]))
        raise ValueError(f"{where}{name} is {value!r}, but must be {listed} or {words[-1]!r}.")


@dataclass(frozen=True)
class Data:
    """Where images come from, how they are split and how they are seen.

    `name` is "digits" (scikit-learn's, bundled) or whatever `timm.data.create_dataset` reads: "" for a folder or tar
    file at `root` (with class folders), "torch/cifar10", "hfds/org/name", …
    """

    name: str = "digits"
    root: str = ""
    train_split: str = "train"
    test_split: str = "test"  # opened once, at the very end
    download: bool = False  # let torchvision fetch a "torch/…" dataset
    holdout: int = 10_000  # images carved from the training split for the search; never trained on
    train_limit: int = 0  # use only so many training images (0: all)
    classes: tuple[str, ...] = ()  # only these, in this order (empty: all)
    num_classes: int = 1000  # 0: as many as there are
    img_size: int = 224
    in_chans: int = 3
    mean: tuple[float, ...] = (0.485, 0.456, 0.406)
    std: tuple[float, ...] = (0.229, 0.224, 0.225)
    interpolation: str = "bicubic"
    crop_pct: float = 0.875
    # augmentation of training images (timm's names)
    scale: tuple[float, float] = (0.08, 1.0)
    ratio: tuple[float, float] = (3 / 4, 4 / 3)
    random_crop_pad: int = 0  # > 0: pad and crop instead of a random resized crop (CIFAR's habit)
    hflip: float = 0.5
    color_jitter: float = 0.4
    auto_augment: str = ""  # e.g. "rand-m9-mstd0.5-inc1"
    reprob: float = 0.0
    mixup: float = 0.0
    cutmix: float = 0.0
    workers: int = 0
    max_unreadable: int = 10  # images that cannot be read are skipped and counted up to here

    def __post_init__(self) -> None:
        counts = "holdout num_classes img_size in_chans random_crop_pad workers max_unreadable"
        check_range(self, "data.", counts + " color_jitter mixup cutmix", 0)
        check_range(self, "data.", "hflip reprob crop_pct", 0, 1)
        for name in ("scale", "ratio"):
            low, high = getattr(self, name)
            if not 0 < low <= high:
                raise ValueError(f"data.{name} is {(low, high)}, but must go from a number above 0 upwards.")
        if not all(value > 0 for value in self.std):
            raise ValueError(f"data.std is {self.std}, but images are divided by it: all of it must be above 0.")


@dataclass(frozen=True)
class Train:
    """One training: a supernet's, a finetune or a retraining."""

    epochs: int = 300
    batch_size: int = 1024  # over all ranks
    accumulate: int = 1  # micro-batches per step
    opt: str = "adamw"
    lr: float = 1e-3
    min_lr: float = 1e-5
    warmup_epochs: float = 20
    warmup_steps: int = 0  # > 0: instead of warmup_epochs
    warmup_lr: float = 1e-6
    schedule: str = "cosine"  # or "step" (lr times decay_rate at each of the milestones), or "constant"
    milestones: tuple[float, ...] = ()  # epochs
    decay_rate: float = 0.1
    weight_decay: float = 0.05
    momentum: float = 0.9
    label_smoothing: float = 0.1
    drop_path: float = 0.1
    clip_grad: float = 0.0  # norm; 0: none
    ema: float = 0.0  # decay of an exponential moving average of the weights; 0: none
    checkpoint_seconds: float = 45.0
    # supernets only
    sampling: str = "uniform"  # "uniform": one architecture a step; "sandwich": largest, smallest and two random ones
    sharing: str = "entangled"  # or "classical"
    freeze_unsampled: bool = False  # the paper's words; the official code lets decay and momentum move them
    warm_start: bool = False  # begin from the previous space's supernet

    def __post_init__(self) -> None:
        check_range(self, "", "batch_size accumulate", 1)
        check_range(self, "", "epochs lr min_lr warmup_epochs warmup_steps warmup_lr milestones decay_rate", 0)
        check_range(self, "", "weight_decay clip_grad checkpoint_seconds", 0)
        check_range(self, "", "momentum label_smoothing", 0, 1)
        check_range(self, "", "drop_path ema", 0, BELOW_ONE)
        check_word(self, "", "schedule", "cosine", "step", "constant")
        check_word(self, "", "sampling", "uniform", "sandwich")
        check_word(self, "", "sharing", "entangled", "classical")
        if self.batch_size % self.accumulate:
            raise ValueError(
                f"batch_size is {self.batch_size}, but must be a multiple of accumulate ({self.accumulate}); change one"
                " of them."
            )


@dataclass(frozen=True)
class Tower:
    """The frozen vision transformer that decoders of family "ladder" read; networks of other families read none."""

    name: str = "vit_base_patch16_clip_quickgelu_224.openai"  # in timm
    weights: str = "pretrained"  # timm's; those of a file; or "random" (the same each time), for trials
    # Features on disk, so that the tower sees an image once: of the images that networks are scored on ("scored"), or
    # of the training images too ("all"), which must then not be augmented.
    cache: str = "none"
    cache_dir: str = ""  # may be shared by runs; empty: features/ in the run's folder

    def __post_init__(self) -> None:
        check_word(self, "tower.", "cache", "none", "scored", "all")
        if not self.name or not self.weights:
            raise ValueError("tower.name and tower.weights must not be empty; name a timm ViT and its weights.")


@dataclass(frozen=True)
class Run:
    """What every run has."""

    name: str
    data: Data = field(default_factory=Data)
    seed: int = 0
    threads: int = 2  # part of the result: sums depend on it in the last bits
    device: str = "auto"  # "cpu", "cuda", or "auto"
    amp: bool = True  # mixed precision, on a GPU only

    def __post_init__(self) -> None:
        check_range(self, "", "threads", 1)
        check_word(self, "", "device", "auto", "cpu", "cuda")


@dataclass(frozen=True)
class Distil:
    """A teacher whose answers are learned beside the labels: (1 - weight) labels + weight teacher."""

    teacher: str = ""  # a timm name, "hf-hub:…" or a folder with a model; empty: none
    kind: str = "hard"  # the teacher's first choice as a label (DeiT, AutoFormer 4.4); or "soft": its probabilities
    weight: float = 0.5
    temperature: float = 1.0  # "soft" only
    cache: bool = False  # ask the teacher once an image; training images must then not be augmented

    def __post_init__(self) -> None:
        check_word(self, "distil.", "kind", "hard", "soft")
        if not 0 <= self.weight <= 1 or self.temperature <= 0:
            raise ValueError(
                f"distil.weight is {self.weight:g} and distil.temperature {self.temperature:g}; use a weight from 0 to"
                " 1 and a temperature above 0."
            )


@dataclass(frozen=True)
class TrainRun(Run):
    """One network trained, finetuned or probed.

    In `data`, img_size 0, in_chans 0, mean (), std (), interpolation "" and crop_pct 0 stand for the model's own.
    """

    model: str = "s3_tiny"  # a timm name, "hf-hub:…" or a folder with a model
    model_args: dict = field(default_factory=dict)  # further arguments of timm.create_model
    mode: str = "scratch"  # "finetune" all weights, or "probe": the classifier alone on frozen features
    weights: str = ""  # where finetuning begins: a timm name, folder or file; empty: the model's own weights
    freeze: int = 0  # parts from the input on that stay as they are: 1 is the stem, 2 the stem and the first stage, …
    layer_decay: float = 1.0  # factor on the learning rate from each layer to the one before it
    distil: Distil = field(default_factory=Distil)
    train: Train = field(default_factory=Train)

    def __post_init__(self) -> None:
        super().__post_init__()
        check_word(self, "", "mode", "scratch", "finetune", "probe")
        if self.mode == "scratch" and (self.weights or self.freeze):
            given = f"weights={self.weights}" if self.weights else f"freeze={self.freeze}"
            raise ValueError(f"mode is 'scratch', but {given} is set, which needs mode=finetune.")
        if self.freeze < 0 or not 0 < self.layer_decay <= 1:
            raise ValueError(
                f"freeze is {self.freeze} and layer_decay {self.layer_decay:g}; use a number of parts from 0 on and a"
                " factor above 0 and at most 1."
            )


T = TypeVar("T")


def load_config(source: str, kind: type[T], folder: str) -> T:
    """The `config` of a Python file, given by path or by the name of a file in `configs/<folder>`."""
    known = {path.stem: path for path in sorted((configs_dir() / folder).glob("[!_]*.py"))}
    path = Path(source).expanduser()
    if path.suffix != ".py":
        if source not in known:
            near = difflib.get_close_matches(source, known, n=1)
            hint = f"; did you mean {near[0]!r}?" if near else "."
            raise ValueError(
                f"No config is called {source!r}; there are {', '.join(known)}, or give a path ending in .py{hint}"
            )
        path = known[source]
    if not path.is_file():
        raise ValueError(f"No config file at {source!r}; give a path ending in .py or one of {', '.join(known)}.")
    spec = importlib.util.spec_from_file_location(f"s3zoo_config_{path.stem}", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except Exception as error:  # a config is a program: anything may go wrong in it
        reason = " ".join(str(error).split()).rstrip(".")
        kind_of = "" if isinstance(error, ValueError) else f"{type(error).__name__}: "
        raise ValueError(f"The config {source!r} cannot be read: {kind_of}{reason}.") from error
    config = getattr(module, "config", None)
    if not isinstance(config, kind):
        raise ValueError(
            f"The config {source!r} must define `config`, a {kind.__name__}; it has {type(config).__name__}."
        )
    return config


# `--set a.b=value`


def overridden(config: T, settings: Sequence[str]) -> T:
    """The config with `path=value` settings applied, each checked against the field's type; their order is no matter.

    Of two values for one key the last one counts.
    """
    changes: dict[str, Any] = {}
    for setting in settings:
        path, equals, text = setting.partition("=")
        if not equals:
            raise ValueError(f"--set was given {setting!r}; write it as name=value, for example supernet.lr=1e-3.")
        _note(changes, config, path.strip().split("."), text.strip(), path.strip())
    return _changed(config, changes)


def _note(changes: dict[str, Any], config: Any, parts: list[str], text: str, path: str) -> None:
    """Enter one setting into a tree of changes."""
    names = [f.name for f in dataclasses.fields(config)]
    head, *rest = parts
    if head not in names:
        valid = list(keys(config))
        done = path[: len(path) - len(".".join(parts))]
        near = difflib.get_close_matches(".".join(parts), valid, n=1, cutoff=0.4) or difflib.get_close_matches(
            head, names, n=1
        )
        hint = f"did you mean {done + near[0]!r}?" if near else f"valid here: {', '.join(names)}."
        raise ValueError(f"--set names the unknown key {path!r}; {hint}")
    value = getattr(config, head)
    if not rest:
        changes[head] = _parse(text, typing.get_type_hints(type(config))[head], path)
    elif _has_keys(value):
        _note(changes.setdefault(head, {}), value, rest, text, path)
    else:
        raise ValueError(f"--set names {path!r}, but {head!r} holds no further keys; set {head!r} itself.")


def _changed(config: T, changes: dict[str, Any], where: str = "") -> T:
    """All changes at once, so that checks of two keys see both."""
    values = {
        name: _changed(old, new, f"{where}{name}.") if _has_keys(old := getattr(config, name)) else new
        for name, new in changes.items()
    }
    try:
        return dataclasses.replace(config, **values)  # type: ignore[type-var]
    except ValueError as error:  # a part does not know where it stands in the whole
        own = str(error).partition(" ")[0] in {f.name for f in dataclasses.fields(config)}  # type: ignore[arg-type]
        raise ValueError(f"{where if own else ''}{error}") from None


def _has_keys(value: Any) -> bool:
    """Whether it is set key by key; a space is set as a whole."""
    return dataclasses.is_dataclass(value) and not isinstance(value, Space)


def _parse(text: str, kind: Any, path: str) -> Any:
    if kind is str:
        return text
    if isinstance(kind, type) and issubclass(kind, Space):
        if text not in SPACES:
            raise ValueError(f"{path} is {text!r}, but must be one of {', '.join(SPACES)}.")
        return SPACES[text]
    if kind is bool:
        if text.lower() not in ("true", "false"):
            raise ValueError(f"{path} is {text!r}, but must be true or false.")
        return text.lower() == "true"
    try:
        value = ast.literal_eval(text)
    except (ValueError, SyntaxError):
        value = math.inf if text == "inf" else text  # "no limit", for which Python has no literal
    if typing.get_origin(kind) is tuple and isinstance(value, str):
        value = (value,)  # one budget need not be written as a tuple
    return check_type(value, kind, path)


def check_type(value: Any, kind: Any, path: str) -> Any:
    """The value in the field's type, or a sentence."""
    origin, args = typing.get_origin(kind), typing.get_args(kind)
    if origin in (typing.Union, types.UnionType):
        for option in args:
            try:
                return check_type(value, option, path)
            except ValueError:
                continue
    elif kind is float and isinstance(value, int | float) and not isinstance(value, bool):
        return float(value)
    elif origin is tuple and isinstance(value, list | tuple):
        inner = [args[0]] * len(value) if len(args) == 2 and args[1] is Ellipsis else list(args)
        if len(inner) == len(value):
            return tuple(check_type(v, k, path) for v, k in zip(value, inner, strict=True))
    elif kind is type(None) and value is None:
        return None
    elif isinstance(kind, type) and isinstance(value, kind) and not (kind is int and isinstance(value, bool)):
        return value
    name = getattr(kind, "__name__", str(kind)) if origin is None else str(kind).replace("typing.", "")
    raise ValueError(f"{path} is {value!r}, but must be of type {name}.")


def keys(config: Any, prefix: str = "") -> Iterator[str]:
    """Every settable key, dotted."""
    for f in dataclasses.fields(config):
        value = getattr(config, f.name)
        if _has_keys(value):
            yield from keys(value, f"{prefix}{f.name}.")
        else:
            yield prefix + f.name


def to_dict(config: Any) -> dict[str, Any]:
    """The config as plain JSON values."""

    def plain(value: Any) -> Any:
        if isinstance(value, Space):
            return plain(value.to_dict())
        if dataclasses.is_dataclass(value):
            return {f.name: plain(getattr(value, f.name)) for f in dataclasses.fields(value)}
        if isinstance(value, dict):
            return {k: plain(v) for k, v in value.items()}
        if isinstance(value, float) and not math.isfinite(value):
            return str(value)  # JSON has no infinity
        return [plain(v) for v in value] if isinstance(value, list | tuple) else value

    return plain(config)


def difference(old: dict[str, Any], new: dict[str, Any], prefix: str = "") -> list[str]:
    """The dotted keys in which two stored configs differ."""
    changed = []
    for key in sorted(old.keys() | new.keys()):
        a, b = old.get(key), new.get(key)
        if isinstance(a, dict) and isinstance(b, dict):
            changed += difference(a, b, f"{prefix}{key}.")
        elif a != b:
            changed.append(prefix + key)
    return changed
