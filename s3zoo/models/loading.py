"""How weights come into a network: where they are found, that they are what they say, and how they are made to fit.

A folder or a Hub repository holds `model.safetensors` and a `config.json` that records its sha256. timm would load the
first without looking at the second, and fall back to a pickle if it does not find it; here it gets a checked file.
"""

import dataclasses
import inspect
import logging
import math
import sys
import warnings
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import torch
from huggingface_hub import get_hf_file_metadata, hf_hub_url, try_to_load_from_cache
from huggingface_hub.errors import EntryNotFoundError, HfHubHTTPError, HTTPError, LocalEntryNotFoundError
from timm.data import IMAGENET_DEFAULT_MEAN, IMAGENET_DEFAULT_STD
from timm.layers import resample_abs_pos_embed
from timm.models import PretrainedCfg, build_model_with_cfg, generate_default_cfgs, register_model
from timm.models._builder import resolve_pretrained_cfg
from timm.models._hub import download_from_hf, hf_split
from torch import Tensor, nn
from torch.nn.modules.module import register_module_parameter_registration_hook

from s3zoo import cost
from s3zoo.arch import Arch
from s3zoo.families import FAMILIES
from s3zoo.models._base import Hierarchical, Plain, ZooModel
from s3zoo.models.folder import (
    CONFIG,
    WEIGHTS,
    check_safetensors,
    check_sums,
    config_beside,
    read_json_object,
    read_network,
    section,
)
from s3zoo.models.layers import centered_axes, corner
from s3zoo.models.official import read_checkpoint
from s3zoo.models.plain import native_state_dict
from s3zoo.space import Space

_logger = logging.getLogger(__name__)

BUNDLED = Path(__file__).resolve().parent.parent / "weights"  # folders that come with s3zoo

IMAGENET: dict[str, Any] = {
    "num_classes": 1000,
    "input_size": (3, 224, 224),
    "interpolation": "bicubic",
    "mean": IMAGENET_DEFAULT_MEAN,
    "std": IMAGENET_DEFAULT_STD,
    "first_conv": "patch_embed.proj",
}
LARGEST_NEW = 1 << 26  # parameters that a network may have beyond those of its weights: new classes, channels, sizes
LARGEST_UNKNOWN = 1 << 31, 1 << 14  # parameters and tensors of a network whose weights are not there
PLAIN = "plain"  # the layout of weights whose layers are torch's own, see plain.py
FOLDER = "timm.create_model('local-dir:<folder>', pretrained=True)"
NOTHING_PUBLISHED = f"No weights of {{}} are published; use pretrained=False, or load a trained folder with {FOLDER}."
ON_A_DRIVE = (
    "The weights of {} are published only behind a link that cannot be fetched automatically; use pretrained=False, or"
    f" convert the official checkpoint with `s3zoo convert` and load the folder with {FOLDER}."
)

NOT_FETCHED = (
    "{} of {} is not in the cache and could not be fetched; connect to the Hub once, or name another cache with"
    " cache_dir or HF_HUB_CACHE."
)


def fit_weights(
    weights: Mapping[str, Tensor], model: Any, adapt: Callable[[str, Tensor, torch.Size], Tensor]
) -> dict[str, Tensor]:
    """The weights as adapt(name, value, shape of the parameter) makes them, once they are sure to fit the model.

    Only what timm adapts after this may differ: the channels of images, and the classifier if classes differ.
    """
    head, conv = model.classifier + ".", model.first_conv + ".weight"
    new_head = model.num_classes != (getattr(model, "pretrained_cfg", None) or {}).get("num_classes")
    shapes, out = {name: value.shape for name, value in model.state_dict().items()}, {}
    for name, value in weights.items():
        if name in shapes:
            # A foreign shape is told below, and timm's resizing warns about itself.
            with warnings.catch_warnings(), suppress(RuntimeError, IndexError):
                warnings.simplefilter("ignore")
                value = adapt(name, value, shapes[name])
        out[name] = value.contiguous()
    free = {name for name in (*shapes, *out) if new_head and name.startswith(head)}
    if conv in out and out[conv].ndim == 4 and out[conv].shape[1] == 3 != model.in_chans:
        free.add(conv)
    if wrong := differences(model, out, free):
        raise ValueError(
            f"The checkpoint does not fit this {type(model).__name__} network: {wrong}; load weights of this"
            " architecture."
        )
    return out


def differences(model: nn.Module, weights: Mapping[str, Tensor], free: Collection[str] = ()) -> str:
    """How weights differ from those of a model, which may be on the meta device, but for the `free` ones; empty if they
    fit."""
    ours = {name: value.shape for name, value in model.state_dict().items() if name not in free}
    theirs = {name: value.shape for name, value in weights.items() if name not in free}
    wrong = [f"{name!r} is missing" for name in ours if name not in theirs]
    wrong += [f"{name!r} is not part of the model" for name in theirs if name not in ours]
    wrong += [
        f"{name!r} has shape {list(shape)} instead of {list(ours[name])}"
        for name, shape in theirs.items()
        if ours.get(name, shape) != shape
    ]
    more = f" (and {len(wrong) - 1} more such differences)" if len(wrong) > 1 else ""
    return wrong[0] + more if wrong else ""


def load_weights(model: nn.Module, state_dict: Mapping[str, Tensor], source: str = "The checkpoint") -> None:
    """Load all weights of a model, or say in one sentence what does not fit."""
    check_fit(model, state_dict, source)
    model.load_state_dict(dict(state_dict))


def check_fit(model: nn.Module, state_dict: Mapping[str, Tensor], source: str) -> None:
    """Say in one sentence what of the weights does not fit a model, which may be on the meta device."""
    if wrong := differences(model, state_dict):
        raise ValueError(
            f"{source} does not fit the model: {wrong}; give the config and the classes it was trained with."
        )


def grid_side(pos_embed: Tensor) -> int:
    """The side of the square grid of patches that an embedding (1, 1 + patches, channels) of positions is for."""
    patches = pos_embed.shape[1] - 1 if pos_embed.ndim == 3 else 0
    side = math.isqrt(max(patches, 0))
    if not side or side * side != patches:
        raise ValueError(
            f"The checkpoint's pos_embed has shape {list(pos_embed.shape)}, but must be [1, 1 + patches, channels] of a"
            " square grid of patches; give the file that the authors published."
        )
    return side


def fit_pos_embed(pos_embed: Tensor, model: Plain) -> Tensor:
    """The embedding on the grid of the model; it was made for that of the config, else the model's, else a square."""
    grid, prefix = model.patch_embed.grid_size, model.num_prefix_tokens
    tokens = pos_embed.shape[1] - prefix
    size = (getattr(model, "pretrained_cfg", None) or {}).get("input_size")
    named = [(size[-2] // model.patch_size, size[-1] // model.patch_size)] if size else []
    side = math.isqrt(max(tokens, 0))
    for old in (*named, grid, (side, side)):
        if old[0] * old[1] == tokens > 0:
            return resample_abs_pos_embed(pos_embed, list(grid), list(old), num_prefix_tokens=prefix)
    raise ValueError(
        f"The checkpoint's position embedding has {tokens} patches, which is no square grid; name its input_size in "
        "pretrained_cfg_overlay."
    )


# Files


def find_weights(cfg: PretrainedCfg, cache_dir: str | Path | None = None) -> Path | None:
    """The checked weights of a config that names a folder or a Hub repository; None if it names neither.

    The order of sources is timm's, to which a `file` that is a folder is new.
    """
    chosen = cfg.source if cfg.source in ("hf-hub", "local-dir") else "state_dict" if cfg.state_dict else "file"
    if chosen == "hf-hub" or (chosen == "file" and not cfg.file and cfg.hf_hub_id):
        path, where = _from_hub(cfg, cache_dir), f"hf-hub:{cfg.hf_hub_id}"
    elif chosen == "local-dir" or (chosen == "file" and cfg.file and Path(cfg.file).is_dir()):
        path, where = Path(str(cfg.file)) / WEIGHTS, str(cfg.file)
        if not path.is_file():
            raise ValueError(f"{str(path.parent)!r} holds no {WEIGHTS}, and no other file is loaded; give its folder.")
    else:
        return None
    _check(path, where)
    return path


def _from_hub(cfg: PretrainedCfg, cache_dir: str | Path | None) -> Path:
    repo, name = str(cfg.hf_hub_id), cfg.hf_hub_filename or WEIGHTS
    if not name.endswith(".safetensors"):
        raise ValueError(f"hf_hub_filename is {name!r}, but only safetensors are loaded from the Hub; name such a one.")
    try:
        path = fetch(repo, name, cache_dir)
    except EntryNotFoundError as error:
        raise ValueError(f"{repo} on the Hub has no {name}, and nothing else is loaded from there.") from error
    if cfg.source == "hf-hub" and not path.with_name(CONFIG).exists():  # timm has just read it, of another commit
        raise ValueError(f"{repo} on the Hub changed while it was being loaded; load it again.")
    return path


def fetch(repo: str, name: str, cache_dir: str | Path | None = None) -> Path:
    """A file of a Hub repository, from the cache or the Hub; where the Hub cannot be reached, that is said at once."""
    check_reachable(repo, name, cache_dir)
    try:
        return Path(download_from_hf(repo, name, cache_dir=cache_dir))
    except LocalEntryNotFoundError as error:
        raise FileNotFoundError(NOT_FETCHED.format(name, repo)) from error


def check_reachable(repo: str, name: str = WEIGHTS, cache_dir: str | Path | None = None) -> None:
    """Ask the Hub once for a file that is not in the cache: its client asks six times, half a minute, with no network.

    What the Hub answers, if it does, is the client's to judge.
    """
    repo, revision = hf_split(repo)
    if try_to_load_from_cache(repo, name, cache_dir=cache_dir, revision=revision) is not None:
        return
    try:
        get_hf_file_metadata(hf_hub_url(repo, name, revision=revision))
    except HfHubHTTPError:
        return
    except (HTTPError, OSError) as error:
        raise FileNotFoundError(NOT_FETCHED.format(name, repo)) from error


def _cut(
    weights: dict[str, Tensor], path: Path, space: Any, arch: Arch, kind: type[ZooModel]
) -> tuple[dict[str, Tensor], Arch]:
    """A network's weights out of those of a supernet, by the corner rule, and its architecture as they are for it."""
    args = dict(read_network(path.parent)["model_args"])
    whole, searched = Arch.from_dict(args.pop("arch")), Space.from_dict(space)
    inside = arch.effective(args["img_size"])
    if inside != whole and not searched.contains(arch):
        raise ValueError(
            f"The architecture {arch.key} is not in the space {searched.name!r} whose supernet {str(path.parent)!r} is;"
            f" draw one with its sample(), or give none for the largest."
        )
    known = inspect.signature(kind.__init__).parameters
    build_twin: Any = kind  # the families take arguments that their base does not
    twin = build_twin(inside, device="meta", **{key: value for key, value in args.items() if key in known})
    axes, out = centered_axes(twin), {}
    for name, target in twin.state_dict().items():
        if name in weights and weights[name].ndim == target.ndim and not name.startswith(twin.classifier + "."):
            out[name] = weights[name][corner(target.shape, weights[name].shape, axes.get(name, ()))]
    head = {name: value for name, value in weights.items() if name.startswith(twin.classifier + ".")}
    last = inside.stages[-1].embed_dim
    return out | {name: value[:, :last] if value.ndim == 2 else value for name, value in head.items()}, inside


_unverified: dict[str, bool] = {}  # sources of which nobody recorded a sha256, and whether that was said


@contextmanager
def accepting() -> Iterator[None]:
    """Around the loading of weights: that they are unverified is said when they fit, and a refusal is one sentence."""
    before = _unverified.copy()
    try:
        yield
    except BaseException:
        _unverified.clear()
        _unverified.update(before)
        raise
    for where in [where for where, said in _unverified.items() if not said]:
        _unverified[where] = True
        _logger.warning("The weights of %s are unverified: nobody recorded their sha256 for s3zoo.", where)


def _check(path: Path, where: str) -> None:
    """Refuse a file that is no safetensors, or not the one that the config beside it describes."""
    config = config_beside(path)
    ours = section(config, f"{str(path.with_name(CONFIG))!r} ") if "s3zoo" in config else {}
    recorded = ours.get("sha256")  # None: not by us
    if recorded is not None:
        check_sums(path.parent, [path.name], recorded if isinstance(recorded, dict) else {path.name: recorded})
    else:
        check_safetensors(path)
        _unverified.setdefault(where, False)


def _check_size(arch: Arch, weights: Mapping[str, Tensor], where: str) -> None:
    """Refuse a network that is much larger than its weights, before memory is taken for it."""
    asked, there = cost.params(arch), sum(value.numel() for value in weights.values())
    if asked > 4 * there + LARGEST_NEW:
        raise ValueError(
            f"{where!r} holds {there:,} weights, but the network that they are for has about {asked:,}; get the"
            " architecture and the weights again."
        )


@contextmanager
def no_larger_than(shapes: Iterable[Sequence[int]], where: str) -> Iterator[None]:
    """Around the building of a network whose formula of costs is not known: the same as `_check_size`, by the shapes of
    its weights."""
    known = [math.prod(shape) for shape in shapes]
    numbers, tensors = (4 * sum(known) + LARGEST_NEW, 4 * len(known) + 1000) if known else LARGEST_UNKNOWN

    def count(module: nn.Module, name: str, parameter: nn.Parameter) -> None:
        nonlocal numbers, tensors
        numbers, tensors = numbers - parameter.numel(), tensors - 1
        if min(numbers, tensors) < 0:
            beyond = "much larger than its weights" if known else "larger than any that timm has"
            raise ValueError(
                f"{where!r} has a network that is {beyond}; get the architecture and the weights again."
            )

    hook = register_module_parameter_registration_hook(count)
    try:
        yield
    finally:
        hook.remove()


@accepting()
def build(
    model: type[ZooModel], filter_fn: Callable[..., Any], variant: str, pretrained: bool, refusal: str, **kwargs: Any
) -> Any:
    """timm's builder, which gets the weights of a folder or Hub repository as a checked file.

    `refusal` is the sentence if weights are wanted where none are published.
    """
    chosen, overlay = kwargs.pop("pretrained_cfg", None), kwargs.pop("pretrained_cfg_overlay", None)
    cfg = resolve_pretrained_cfg(variant, chosen, overlay)
    if pretrained and not (cfg.has_weights or cfg.state_dict):
        raise ValueError(refusal.format(variant))
    cache_dir = kwargs.get("cache_dir")
    if cfg.source == "local-dir":  # timm has read its config without a look at what it asks for
        read_network(str(cfg.file))
    elif cfg.source == "hf-hub":
        read_network(fetch(str(cfg.hf_hub_id), CONFIG, cache_dir).parent)
    kwargs["arch"] = arch = Arch.parse(kwargs["arch"])
    out_indices = tuple(range(len(arch.stages))) if issubclass(model, Hierarchical) else 3
    feature_cfg = dict(out_indices=out_indices, flatten_sequential=True, feature_cls="getter")
    feature_cfg |= kwargs.pop("feature_cfg", None) or {}
    given: Any = cfg
    path = find_weights(cfg, cache_dir) if pretrained else None
    if path is not None:
        given = dataclasses.replace(cfg, source=None, file=str(path), state_dict=None)
    if pretrained and given.file and not given.state_dict:  # read here: timm would prefer averaged weights
        weights = read_checkpoint(given.file)
        _check_size(arch, weights, given.file)
        ours = config_beside(Path(given.file)).get("s3zoo")
        ours = ours if isinstance(ours, dict) else {}
        if space := ours.get("supernet"):
            weights, kwargs["arch"] = _cut(weights, Path(given.file), space, arch, model)
        if ours.get("layout") == PLAIN:
            fit = filter_fn
            filter_fn = lambda state, model: fit(native_state_dict(state, model), model)  # noqa: E731
        given = dataclasses.replace(given, source=None, file=None, state_dict=weights)
    kwargs |= {"pretrained_filter_fn": filter_fn, "feature_cfg": feature_cfg, "pretrained_cfg": given}
    built: Any = build_model_with_cfg(model, variant, pretrained, **kwargs)
    if given is not cfg:  # what the model tells about itself is where the weights are, not how they came here
        built.pretrained_cfg.pop("state_dict", None)
        built.pretrained_cfg |= {k: v for k, v in (("source", cfg.source), ("file", cfg.file)) if v is not None}
    return built


# Registration


def register(
    model: Any,
    name: str,
    what: str,
    refusal: str = NOTHING_PUBLISHED,
    *,
    create: Callable[..., Any] = build,
    **given: Any,
) -> None:
    """Register a model with timm, in the module of its family; `what` is its docstring.

    Args:
        refusal: the sentence if weights are wanted where none are published; {} is the name.
        create: takes what `build` does, in its place.
        given: arguments unless others are asked for.
    """
    module = sys.modules[FAMILIES[model.family].module]

    def entrypoint(pretrained: bool = False, **kwargs: Any) -> nn.Module:
        return create(model, module.checkpoint_filter_fn, name, pretrained, refusal, **given | kwargs)

    entrypoint.__name__ = entrypoint.__qualname__ = name
    entrypoint.__module__, entrypoint.__doc__ = module.__name__, what
    setattr(module, name, register_model(entrypoint))


def register_bundled(model: Any) -> None:
    """Register the networks of a family, given by its class, whose weights come with s3zoo.

    A folder in s3zoo/weights with the name of a model and its tag is all that such a network needs.
    """
    for folder in sorted(BUNDLED.glob("*.*")):
        config = read_json_object(folder / CONFIG)
        arch, size = Arch.from_dict(config["model_args"]["arch"]), config["model_args"]["img_size"]
        if arch.family != model.family:
            continue
        name, _, data = folder.name.partition(".")
        cfg = {k: tuple(v) if isinstance(v, list) else v for k, v in config["pretrained_cfg"].items()}
        module: Any = sys.modules[FAMILIES[arch.family].module]
        module.default_cfgs |= generate_default_cfgs({folder.name: cfg | {"file": str(folder)}})
        what = f"Found and trained on {data} with s3zoo, for images of {size[0]} x {size[1]}."
        register(model, name, what, arch=arch, img_size=size)
