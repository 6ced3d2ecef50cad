"""A model by its name, folder, file or Hub id: built, loaded, and every way in which that can fail said in a sentence.

Every command opens models here: timm's and the zoo's names ("s3_tiny"), folders of a model or of a run that holds one
("runs/mine"), "hf-hub:owner/name", and weights from a file.
"""

from __future__ import annotations

import contextlib
import difflib
import hashlib
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import timm
import torch
from huggingface_hub.errors import EntryNotFoundError, HfHubHTTPError, HFValidationError
from timm.data import ImageNetInfo, infer_imagenet_subset, resolve_data_config
from timm.models import PretrainedCfg, is_model, parse_model_name
from torch import Tensor, nn

import s3zoo  # noqa: F401  (its models are timm's from here on)
from s3zoo.files import settle
from s3zoo.models.folder import (
    CONFIG,
    WEIGHTS,
    check_finite,
    check_network,
    check_safetensors,
    check_sums,
    config_beside,
    is_ours,
    read_network,
)
from s3zoo.models.loading import fetch, find_weights, no_larger_than
from s3zoo.models.official import read_checkpoint

TIMM_WEIGHTS = "pytorch_model.bin"  # as timm.models.save_for_hf calls them unless told otherwise
OPTIONAL = ("img_size", "drop_path_rate")  # not every network of timm takes them


def model_folder(path: str | Path) -> Path | None:
    """The folder of a model that a path stands for: itself, or `model` in the folder of a run; None if neither is."""
    path = Path(path).expanduser()
    for folder in (path, path / "model"):
        settle(folder)
        if (folder / CONFIG).is_file():
            return folder
    return None


def source(spec: str) -> str:
    """What timm.create_model understands; a folder, of a model or of a run that holds one, becomes local-dir:FOLDER."""
    if spec.startswith(("hf-hub:", "hf_hub:")):
        return spec
    name = spec.partition(".")[0]
    local = spec.startswith("local-dir:") or "/" in spec
    if is_model(name) and not local:  # a folder of that name is "./name"
        return spec
    path = Path(spec.removeprefix("local-dir:")).expanduser()
    try:
        folder = model_folder(path)
        if path.is_file() and path.name == WEIGHTS and (path.parent / CONFIG).is_file():
            folder = path.parent
        exists = path.exists()
    except OSError as error:  # a name of more than 255 bytes, a link to itself
        raise ValueError(f"{spec[:60]!r} cannot be looked up ({error.strerror}); give another path.") from None
    if folder is not None:
        return f"local-dir:{folder}"
    if exists and path.is_dir():
        raise ValueError(f"The folder {str(path)!r} holds no model; give one with {CONFIG} and {WEIGHTS}.")
    if exists:
        raise ValueError(
            f"{spec!r} is a file, which does not say of which network; name the network and give the file as weights."
        )
    near = difflib.get_close_matches(name, timm.list_models(), n=1)
    hint = f"; did you mean {near[0]!r}?" if near else "; timm.list_models() and `s3zoo zoo` have the names."
    raise ValueError(f"There is no model or folder {spec!r}{hint}")


def described(spec: str) -> dict[str, Any]:
    """The checked config.json of a folder or Hub repository as `source` gives it; empty for a name."""
    kind, place = parse_model_name(spec)
    if kind == "local-dir":
        return read_network(place)
    if kind == "hf-hub":
        return _in_one_sentence(spec, lambda: read_network(fetch(place, CONFIG).parent))
    return {}


def open_model(spec: str, *, pretrained: bool = True, **options: Any) -> Any:
    """A model of timm, of this zoo or of a folder. An option that only some networks have is left out where it must."""
    name = source(spec)
    config, state = described(name), None
    if pretrained and config and "pretrained_cfg_overlay" not in options and not is_ours(config["architecture"]):
        state = _in_one_sentence(spec, lambda: _checked_weights(name, config))
        options["pretrained_cfg_overlay"] = {"source": "", "state_dict": state, "custom_load": False}
    for key in ("pretrained_cfg", "pretrained_cfg_overlay") if pretrained and not config and not is_ours(name) else ():
        given = options.get(key)
        if isinstance(given, dict) and given.get("file"):  # of the user's own; timm would look at no checksum
            state = read_checkpoint(str(given["file"]))
            options[key] = given | {"file": None, "source": "", "state_dict": state}
    if options.get("checkpoint_path"):  # timm reads it, but of a damaged one torch advises to read it without care
        read_checkpoint(str(options["checkpoint_path"]))
    shapes: Any = None if state is None else (value.shape for value in state.values())
    if config and not pretrained:  # only the config is read, which may ask for anything
        shapes = _shapes(name)
    with contextlib.nullcontext() if shapes is None else no_larger_than(shapes, spec):
        model = _created(spec, name, pretrained, options)
    model.pretrained_cfg.pop("state_dict", None)
    if pretrained:
        check_finite(model.state_dict(), spec)
    return model


def _created(spec: str, name: str, pretrained: bool, options: dict[str, Any]) -> Any:
    while True:
        try:
            return _in_one_sentence(spec, lambda: timm.create_model(name, pretrained=pretrained, **options))
        except TypeError as error:
            match = re.search(r"unexpected keyword argument '(\w+)'", str(error))
            if match is None or match[1] not in options:
                raise ValueError(f"The model {spec} does not take its arguments ({error}).") from None
            if match[1] not in OPTIONAL:
                raise ValueError(f"{spec} takes no argument {match[1]!r}; remove it from model_args.") from None
            del options[match[1]]


def _checked_weights(name: str, config: dict[str, Any]) -> dict[str, Tensor]:
    """The weights of a network of timm's own: timm would look at no checksum, neither a recorded one nor a pickle's."""
    kind, place = parse_model_name(name)
    path = fetch(place, WEIGHTS) if kind == "hf-hub" else Path(place) / WEIGHTS
    if "sha256" in config.get("s3zoo", {}) and path.is_file():
        check_sums(path.parent, [WEIGHTS], config["s3zoo"]["sha256"])
    elif not path.is_file() and path.with_name(TIMM_WEIGHTS).is_file() and "s3zoo" not in config:
        path = path.with_name(TIMM_WEIGHTS)
    if not path.is_file():
        raise ValueError(f"{place!r} holds no {WEIGHTS}, and no other file is loaded; give its folder.")
    return read_checkpoint(path)


def _shapes(name: str) -> list[list[int]]:
    """Those of the weights in a folder, if it has them."""
    kind, place = parse_model_name(name)
    path = Path(place) / WEIGHTS
    return check_safetensors(path) if kind == "local-dir" and path.is_file() else []


def _in_one_sentence(spec: str, action: Callable[[], Any]) -> Any:
    """What timm, torch and the Hub's client raise in many kinds."""
    try:
        return action()
    except (
        RuntimeError, OSError, HfHubHTTPError, HFValidationError, AssertionError,
        AttributeError, LookupError, ArithmeticError,  # arguments of a folder that do not fit each other
    ) as error:  # fmt: skip
        said = " ".join(str(error).split()) or type(error).__name__
        if isinstance(error, AssertionError | AttributeError | LookupError | ArithmeticError):
            said = f"its arguments do not fit each other ({type(error).__name__}: {said})"
        if "Invalid pretrained tag" in said:
            known = timm.list_pretrained(f"{spec.partition('.')[0]}.*")
            there = f"its weights are {', '.join(known)}" if known else "leave the tag out"
            said = f"it has no weights of that name; {there}"
        if _offline(error):
            said = "the Hugging Face Hub cannot be reached and the weights are not in the cache"
        raise ValueError(f"The model {spec} cannot be opened: {said[:300].rstrip('.')}.") from error


def _offline(error: BaseException | None) -> bool:
    while error is not None:
        if type(error).__name__ in ("LocalEntryNotFoundError", "ConnectError", "ConnectionError", "ProxyError"):
            return True
        error = error.__cause__ or error.__context__
    return False


def model_with(spec: str, weights: str, **options: Any) -> Any:
    """The network `spec` with the weights of another model (name or folder) or of a file; they are fitted to it."""
    path = Path(weights).expanduser()
    if path.is_file():
        state, names, what, licence = read_checkpoint(path), None, f"the file {weights}", None
    else:
        other = open_model(weights)
        state, names, what = other.state_dict(), label_names(other), weights
        licence = other.pretrained_cfg.get("license")
        options.setdefault("num_classes", other.num_classes)
    plain = open_model(spec, pretrained=False, **options)
    cfg = plain.pretrained_cfg
    classifier = cfg.get("classifier")
    if not isinstance(classifier, str):
        raise ValueError(f"{spec} has no single classifier, so weights from elsewhere cannot be put into it.")
    head = state.get(f"{classifier}.weight", state.get(f"{classifier.partition('.')[0]}.weight"))
    classes = 0 if head is None else len(head)
    overlay = {"state_dict": state, "source": "", "num_classes": classes, "label_names": names}
    if not hasattr(plain, "arch"):
        _check_names(plain, state, classifier, what, spec)
    try:
        model = open_model(spec, pretrained_cfg_overlay=overlay, **options)
    except ValueError as error:
        raise ValueError(f"The weights of {what} do not fit the model {spec}: {_reason(error)}") from None
    # What the model says of itself is its own again; the licence is that of the weights.
    model.pretrained_cfg = cfg | {"label_names": names, "num_classes": classes, "license": licence}
    return model


def read_weights(spec: str) -> tuple[dict[str, Tensor], tuple[int, ...] | None]:
    """The weights in a file, a folder or a repository of the Hub, and the input size that a config beside them says."""
    path = Path(spec).expanduser()
    repository = spec.removeprefix("hf-hub:").removeprefix("hf_hub:")
    if path.is_dir():
        path = find_weights(PretrainedCfg(source="local-dir", file=str(model_folder(path) or path))) or path
    elif not path.exists():
        if repository == spec and (spec.count("/") != 1 or path.suffix in (".pth", ".pt", ".safetensors")):
            raise ValueError(
                f"{spec!r} is no file or folder here, no network, and no Hub id (user/repository); correct the path or"
                " the name."
            )
        path = _in_one_sentence(spec, lambda: _fetch(repository))
    config = config_beside(path)
    # Else it is a detector's, say.
    network = check_network(config, str(path.with_name(CONFIG))) if "architecture" in config else {}
    size = (network.get("pretrained_cfg") or {}).get("input_size")
    return read_checkpoint(path), tuple(size) if size else None


def _fetch(repository: str) -> Path:
    with contextlib.suppress(EntryNotFoundError, FileNotFoundError):
        fetch(repository, CONFIG)  # beside the weights, it has their sha256
    path = find_weights(PretrainedCfg(hf_hub_id=repository))
    assert path is not None
    return path


def _check_names(model: nn.Module, state: dict[str, Tensor], classifier: str, what: str, spec: str) -> None:
    """timm loads what it finds if only the classifier is new; weights of another network must not pass for these."""
    other = (classifier + ".", "num_batches_tracked")
    own = {n for n in model.state_dict() if not n.startswith(other[0]) and not n.endswith(other[1])}
    if missing := sorted(own - state.keys()):
        raise ValueError(
            f"The weights of {what} do not fit the model {spec}: {missing[0]!r} is missing"
            f" (and {len(missing) - 1} more); give weights of this architecture."
        )


def _reason(error: ValueError) -> str:
    text = str(error)
    if "size mismatch for" in text:
        return "a " + text[text.index("size mismatch for") :].partition(". ")[0].rstrip(".") + "."
    return text.removeprefix("The checkpoint does not fit this ")


def reset_head(model: Any, classes: Sequence[str]) -> bool:
    """A new classifier if the weights' one is for other classes of the same number; whether it was."""
    known = label_names(model)
    if known is None or model.num_classes != len(known) or list(known) == list(classes):
        return False
    model.reset_classifier(len(classes))
    return True


# What a model says of itself


def seen(spec: str) -> dict[str, Any]:
    """The preprocessing of a model that need not be built: timm's data config, with in_chans."""
    name = source(spec)
    kind, rest = parse_model_name(name)
    if kind is not None:
        config = described(name)
        cfg = config.get("pretrained_cfg", config)
    else:
        try:
            found = timm.get_pretrained_cfg(rest, allow_unregistered=False)
        except RuntimeError as error:
            raise ValueError(f"{error} timm.list_pretrained('{rest.partition('.')[0]}*') has the tags.") from None
        cfg = found.to_dict() if found is not None else {}
    return resolve_data_config(pretrained_cfg=cfg or {"input_size": (3, 224, 224)})


def label_names(model: Any) -> list[str] | None:
    """The classes by the names that the weights' config has, or ImageNet's synsets by their number."""
    cfg = model.pretrained_cfg
    if names := cfg.get("label_names"):
        return list(names)
    subset = infer_imagenet_subset({"num_classes": cfg.get("num_classes")})
    if subset and cfg.get("num_classes") == model.num_classes:
        return list(ImageNetInfo(subset).label_names())
    return None


def digest(model: nn.Module) -> str:
    """What identifies weights, whatever file they came from."""
    sha = hashlib.sha256()
    for name, tensor in model.state_dict().items():
        sha.update(f"{name}{list(tensor.shape)}{tensor.dtype}".encode())
        sha.update(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
    return sha.hexdigest()


def class_names(model: Any) -> list[str]:
    """The classes as a person calls them: label_names, ImageNet's words, or numbers where nothing is known."""
    names = label_names(model)
    if names is None:
        return [f"class {index}" for index in range(model.num_classes)]
    described = model.pretrained_cfg.get("label_descriptions") or {}
    subset = infer_imagenet_subset({"num_classes": model.num_classes})
    if not model.pretrained_cfg.get("label_names") and subset:
        return list(ImageNetInfo(subset).label_descriptions())
    return [described.get(name, name) for name in names]
