"""Run configurations: frozen dataclasses that people write in Python and change with `--set`; machines store JSON."""

from __future__ import annotations

import ast
import contextlib
import dataclasses
import difflib
import math
import re
import typing
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal, TypeVar

from s3zoo.checks import (
    Amount,
    BelowOne,
    Count,
    Interpolation,
    Range,
    Seed,
    Share,
    Threads,
    check,
    declared,
    nearest,
    show,
    typed,
)
from s3zoo.files import shown
from s3zoo.space import SPACES, Space
from s3zoo.training.registry import load_config as load_config  # for configs of users


@dataclass(frozen=True)
class Data:
    """Where images come from, how they are split and how they are seen."""

    # "digits" (bundled), "" for class folders or tar files at root, "torch/cifar10" (torchvision), "hfds/org/name", …
    name: str = "digits"
    root: str = ""  # the folder of the images
    train_split: str = "train"  # what networks are trained on
    test_split: str = "test"  # what the results are measured on; opened at the very end
    # > 0: the root has class folders and no splits; this share of each class is the test split, drawn by split_seed
    test_share: BelowOne = 0.0
    split_seed: Count = 0  # draws these test images
    download: bool = False  # let torchvision fetch a "torch/…" dataset
    holdout: Count = 10_000  # images carved from the training split for the search; never trained on
    train_limit: Count = 0  # use only so many training images (0: all)
    classes: tuple[str, ...] = ()  # only these, in this order (empty: all)
    num_classes: Annotated[int, Range(0, 10**6)] = 1000  # 0: as many as there are
    img_size: Annotated[int, Range(0, 8192)] = 224  # side of the square that networks see
    in_chans: Annotated[int, Range(0, 64)] = 3  # channels of images: 1 is grey
    # Subtracted from each channel
    mean: Annotated[tuple[float, ...], Range(-(10**6), 10**6)] = (0.485, 0.456, 0.406)
    # Each channel is divided by it
    std: Annotated[tuple[float, ...], Range(0, 10**6, above=True)] = (0.229, 0.224, 0.225)
    interpolation: Literal["", Interpolation] = "bicubic"  # with which images are resized
    crop_pct: Share = 0.875  # share of an image's side that is looked at in evaluation
    # Augmentation of training images (timm's names): the share of the area that a random crop takes
    scale: Annotated[tuple[float, float], Range(0, 100, above=True)] = (0.08, 1.0)
    # Width to height of a random crop
    ratio: Annotated[tuple[float, float], Range(0, 100, above=True)] = (3 / 4, 4 / 3)
    # > 0: pad and crop instead of a random resized crop (CIFAR's habit)
    random_crop_pad: Annotated[int, Range(0, 1024)] = 0
    hflip: Share = 0.5  # probability that an image is mirrored
    color_jitter: Amount = 0.4  # range of brightness, contrast and saturation, without auto_augment
    auto_augment: str = ""  # timm's policy, e.g. "rand-m9-mstd0.5-inc1"
    reprob: Share = 0.0  # probability that a part of an image is erased
    mixup: Amount = 0.0  # alpha of Mixup; 0: none
    cutmix: Amount = 0.0  # alpha of CutMix; 0: none
    repeated_aug: Annotated[int, Range(1, 64)] = 1  # > 1: each image so often in a batch, augmented anew (DeiT: 3)
    workers: Annotated[int, Range(-1, 512)] = -1  # processes that decode images; -1: as many as help
    max_unreadable: Count = 10  # images that cannot be read are skipped and counted up to here

    def __post_init__(self) -> None:
        check(self)
        for name in ("scale", "ratio"):
            low, high = getattr(self, name)
            if low > high:
                raise ValueError(f"{name} is {(low, high)}, but must go from a number above 0 upwards.")


@dataclass(frozen=True)
class Train:
    """One training: a supernet's, a finetune or a retraining."""

    epochs: Annotated[int, Range(0, 10**6)] = 300  # passes over the training images
    batch_size: Annotated[int, Range(1, 10**6)] = 1024  # images a step, over all ranks
    accumulate: Annotated[int, Range(1, 10**6)] = 1  # micro-batches per step
    opt: str = "adamw"  # timm's name of the optimizer
    lr: Amount = 1e-3  # the highest learning rate, as it stands: it is not scaled with the batch
    min_lr: Amount = 1e-5  # where the cosine ends
    warmup_epochs: Amount = 20  # over which the rate rises from warmup_lr to lr
    warmup_steps: Count = 0  # > 0: instead of warmup_epochs
    warmup_lr: Amount = 1e-6  # at the first step
    # Of the learning rate; "step": lr times decay_rate at each of the milestones
    schedule: Literal["cosine", "step", "constant"] = "cosine"
    milestones: Annotated[tuple[float, ...], Range(0, 10**6)] = ()  # of schedule "step", in epochs
    decay_rate: Amount = 0.1  # of schedule "step"
    weight_decay: Amount = 0.05  # not on biases, norms and positions
    momentum: Share = 0.9  # of SGD and its like
    label_smoothing: Share = 0.1  # share of the target that goes to all classes alike
    drop_path: BelowOne = 0.1  # stochastic depth of the last block; it rises linearly from 0 at the first
    clip_grad: Amount = 0.0  # norm; 0: none
    ema: BelowOne = 0.0  # decay of an exponential moving average of the weights; 0: none
    checkpoint_seconds: Amount = 300.0  # between two checkpoints: a kill loses no more
    # Supernets only: "uniform": one architecture a step; "sandwich": largest, smallest and two random ones
    sampling: Literal["uniform", "sandwich"] = "uniform"
    # Supernets only: weights of a layer are one tensor for all candidates, or one for each candidate block or module
    # (attention, MLP, …)
    sharing: Literal["entangled", "classical", "module"] = "entangled"
    # Supernets only: "inplace": the largest of a sandwich teaches the others (BigNAS)
    distil: Literal["none", "inplace"] = "none"
    # Supernets only: weights outside a step's networks stay: the paper's words, the official code lets decay and
    # momentum move them
    freeze_unsampled: bool = False
    warm_start: bool = False  # Supernets only: begin from the previous space's supernet

    def __post_init__(self) -> None:
        check(self)
        self.check_batch(1)
        if self.distil == "inplace" and self.sampling != "sandwich":
            raise ValueError(
                f"distil is 'inplace', but sampling is {self.sampling!r}; only a step of sampling 'sandwich' has the"
                " largest network, which teaches the others."
            )

    def check_batch(self, world: int) -> None:
        """A batch divides into micro-batches and ranks; places that mirror each other stay on one rank."""
        parts, of = self.accumulate, f"accumulate ({self.accumulate})"
        if world > 1:
            parts, of = 2 * world * parts, f"{2 * world * parts}, twice the {world} processes times {of}"
        if self.batch_size % parts:
            raise ValueError(f"batch_size is {self.batch_size}, but must be a multiple of {of}; change one of them.")


@dataclass(frozen=True)
class Tower:
    """The frozen vision transformer that decoders of family "ladder" read; networks of other families read none."""

    name: str = "vit_base_patch16_clip_quickgelu_224.openai"  # of the frozen network, in timm
    weights: str = "pretrained"  # timm's; those of a file; or "random" (the same each time), for trials
    # Features on disk, so that the tower sees an image once: of the images that networks are scored on ("scored"), or
    # of the training images too ("all"), which must then not be augmented.
    cache: Literal["none", "scored", "all"] = "none"
    cache_dir: str = ""  # may be shared by runs; empty: features/ in the run's folder

    def __post_init__(self) -> None:
        check(self)
        if not self.name or not self.weights:
            raise ValueError("name and weights must not be empty; name a timm ViT and its weights.")
        if not re.fullmatch(r"[\w.-]+", self.name):  # nothing that timm would open or fetch
            raise ValueError(f"name is {show(self.name)}, but must be the name of a ViT in timm.")


@dataclass(frozen=True)
class Run:
    """What every run has."""

    name: str  # of the run, and of its folder below runs/
    data: Data = field(default_factory=Data)
    seed: Seed = 0  # of everything that is random
    threads: Threads = 2  # of the CPU; part of the result: sums depend on it in the last bits
    device: Literal["auto", "cpu", "cuda"] = "auto"  # auto: a GPU where there is one
    amp: bool = True  # mixed precision, on a GPU only
    amp_dtype: Literal["auto", "bfloat16", "float16"] = "auto"  # auto: bfloat16 where the GPU has it
    compile: bool = False  # torch.compile for the training of one network; a supernet's many stay eager

    def __post_init__(self) -> None:
        check(self)
        if "/" in self.name or self.name in (".", "..") or shown(self.name) != self.name:
            raise ValueError(f"name is {show(self.name)}, but must be a name for the run's folder, without '/'.")


@dataclass(frozen=True)
class Distil:
    """A teacher whose answers are learned beside the labels: (1 - weight) labels + weight teacher."""

    teacher: str = ""  # a timm name, "hf-hub:…" or a folder with a model; empty: none
    # "hard": the teacher's first choice as a label (DeiT, AutoFormer 4.4); "soft": its probabilities
    kind: Literal["hard", "soft"] = "hard"
    weight: Share = 0.5  # of the teacher's answers in the loss
    temperature: Annotated[float, Range(0, 1000, above=True)] = 1.0  # divides logits before the softmax; "soft" only
    cache: bool = False  # ask the teacher once an image; training images must then not be augmented

    def __post_init__(self) -> None:
        check(self)


@dataclass(frozen=True)
class TrainRun(Run):
    """One network trained, finetuned or probed.

    In `data`, img_size 0, in_chans 0, mean (), std (), interpolation "" and crop_pct 0 stand for the model's own.
    """

    model: str = "s3_tiny"  # a timm name, "hf-hub:…" or a folder with a model
    model_args: dict = field(default_factory=dict)  # further arguments of timm.create_model
    # "finetune" all weights, or "probe": the classifier alone on frozen features
    mode: Literal["scratch", "finetune", "probe"] = "scratch"
    weights: str = ""  # where finetuning begins: a timm name, folder or file; empty: the model's own weights
    freeze: Count = 0  # parts from the input on that stay as they are: 1 is the stem, 2 the stem and the first stage, …
    # Factor on the learning rate from each layer to the one before it
    layer_decay: Annotated[float, Range(0, 1, above=True)] = 1.0
    distil: Distil = field(default_factory=Distil)
    train: Train = field(default_factory=Train)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.mode == "scratch" and (self.weights or self.freeze):
            given = f"weights={self.weights}" if self.weights else f"freeze={self.freeze}"
            raise ValueError(f"mode is 'scratch', but {given} is set, which needs mode=finetune.")


T = TypeVar("T")


# `--set a.b=value`


def overridden(config: T, settings: Sequence[str]) -> T:
    """The config with `path=value` settings applied, each checked against the field's type; their order is no matter.

    Of two values for one key the last one counts.
    """
    changes: dict[str, Any] = {}
    for setting in sorted(settings, key=lambda each: each.partition("=")[0].count(".")):  # space, then space.depth
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
        valid, given = list(keys(config)), ".".join(parts)
        near = [key for key in valid if key.endswith(f".{given}")] or difflib.get_close_matches(
            given, valid, n=1, cutoff=0.5
        )
        done = path.removesuffix(given)
        hint = f"did you mean {done + near[0]!r}?" if near else f"valid here: {', '.join(names)}."
        raise ValueError(f"--set names the unknown key {path!r}; {hint}")
    value = getattr(config, head)
    if not rest:
        changes[head] = _parse(text, declared(type(config))[head], path)
    elif _has_keys(value):
        _note(changes.setdefault(head, {}), value, rest, text, path)
    elif isinstance(value, Space):
        space, name = changes.get(head, value), ".".join(rest)
        changes[head] = space.replaced({space[name].name: _choices(text, path)})
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
    """Whether it is set key by key; a space is set as a whole, and then by the choices of its dimensions."""
    return dataclasses.is_dataclass(value) and not isinstance(value, Space)


def _parse(text: str, kind: Any, path: str) -> Any:
    if kind is str or typing.get_origin(kind) is Literal:
        return typed(text, kind, path)
    if isinstance(kind, type) and issubclass(kind, Space):
        if text not in SPACES:
            hint = nearest(text, SPACES, "give one of these.")
            raise ValueError(f"{path} is {text!r}, but must be one of {', '.join(SPACES)}; {hint}")
        return SPACES[text]
    if kind is bool:
        if text.lower() not in ("true", "false"):
            raise ValueError(f"{path} is {text!r}, but must be true or false.")
        return text.lower() == "true"
    try:
        value = ast.literal_eval(text)
    except (ValueError, SyntaxError, RecursionError, MemoryError):
        value = math.inf if text == "inf" else text  # "no limit", for which Python has no literal
    if typing.get_origin(kind) is tuple and isinstance(value, str):
        value = (value,)  # one budget need not be written as a tuple
    return typed(value, kind, path)


def _choices(text: str, path: str) -> tuple[int | float, ...]:
    """One number, or several."""
    with contextlib.suppress(ValueError, SyntaxError, RecursionError, MemoryError):
        value = ast.literal_eval(text)
        return typed(value if isinstance(value, tuple | list) else (value,), tuple[int | float, ...], path)
    raise ValueError(
        f"{path} is {text!r}, but must be the choices of a dimension: a number, or several as in (12, 14)."
    )


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


def from_dict(kind: type[T], stored: Any, where: str = "") -> T:
    """The config that `to_dict` made plain; settings that it lacks are at their defaults."""
    if not isinstance(stored, Mapping):
        raise ValueError(f"{where or 'config'} is {show(stored)}, but must be an object with settings.")
    prefix = f"{where}." if where else ""
    values = {name: _read(stored[name], hint, prefix + name) for name, hint in declared(kind).items() if name in stored}
    try:
        return kind(**values)
    except TypeError:  # a setting that has no default
        raise ValueError(f"{where or 'config'} lacks a setting of {kind.__name__}.") from None


def _read(value: Any, hint: Any, path: str) -> Any:
    kind = typing.get_args(hint)[0] if typing.get_origin(hint) is Annotated else hint
    if isinstance(kind, type) and issubclass(kind, Space):
        return Space.from_dict(value)
    if isinstance(kind, type) and dataclasses.is_dataclass(kind):
        return from_dict(kind, value, path)
    if kind is float and value in ("inf", "-inf"):  # JSON has no infinity
        value = float(value)
    return typed(value, hint, path)


def completed(stored: dict[str, Any], run: Any) -> dict[str, Any]:
    """The config that an earlier release stored, with the settings that it did not have yet at their defaults."""
    full = dict(stored)
    for f in dataclasses.fields(run):
        value = getattr(run, f.name)
        if f.name not in stored:
            made = f.default_factory() if callable(f.default_factory) else f.default
            if made is not dataclasses.MISSING:
                full |= to_dict({f.name: made})
        elif _has_keys(value) and isinstance(stored[f.name], dict):  # else it differs as a whole
            full[f.name] = completed(stored[f.name], value)
    return full


def flat(stored: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """A stored config by dotted keys."""
    found: dict[str, Any] = {}
    for key, value in stored.items():
        found |= flat(value, f"{prefix}{key}.") if isinstance(value, dict) else {prefix + key: value}
    return found


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
