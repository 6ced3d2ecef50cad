"""The folder that is a model: `model.safetensors` and a `config.json` that timm reads.

`timm.create_model("local-dir:FOLDER", pretrained=True)` builds and loads it once s3zoo is imported. The config names
the family's generic entrypoint and carries the architecture, so that any searched network comes back the same way; it
records the sha256 of the weights, which is checked when they are loaded.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import timm
from timm.models import PretrainedCfg
from timm.models._pretrained import filter_pretrained_cfg
from timm.utils import unwrap_model
from torch import nn

from s3zoo import __version__
from s3zoo.arch import Arch
from s3zoo.checks import Fields, typed
from s3zoo.models import ENTRYPOINTS
from s3zoo.models.folder import CONFIG, WEIGHTS, Kind, check_sums, read_network
from s3zoo.models.loading import PLAIN, differences
from s3zoo.models.plain import plain_state_dict
from s3zoo.space import Space

KIND = Kind("a model of s3zoo")
# What a card needs besides
_TOLD: Fields = {
    "num_classes": int, "s3zoo": {"params": int},
    "pretrained_cfg": {"mean": list, "std": list, "crop_pct": float, "interpolation": str, "input_size": list},
}  # fmt: skip


def save_model(
    folder: str | Path,
    model: nn.Module,
    *,
    provenance: Mapping[str, Any] | None = None,
    pretrained_cfg: Mapping[str, Any] | None = None,
    plain: bool = False,
    supernet: Space | None = None,
) -> Path:
    """Write the folder that is `model` and give its path; an earlier model in it is replaced.

    Whenever the process is killed, a reader finds the old model or the new one.

    Args:
        provenance: where the weights come from, as JSON: data, config, seed, commit, source file.
        pretrained_cfg: fields of timm's pretrained config to set (mean, std, license, label_names, ...).
        plain: write the weights as `to_plain(model)` has them; they load into the same network.
        supernet: the space whose supernet the model is (`Supernet.whole`): any network of it can then be loaded.
    """
    model = unwrap_model(model)
    if not isinstance(getattr(model, "arch", None), Arch):
        raise ValueError(f"{type(model).__name__} has no architecture; save a model of s3zoo, not a wrapper around it.")
    if any(tensor.is_meta for tensor in model.state_dict().values()):
        raise ValueError("The model has no weights (it is on the meta device); load or initialise it before saving.")
    config = _config(model, provenance or {}, pretrained_cfg or {})
    _check_loadable(model, config)
    if supernet is not None:
        config["s3zoo"]["supernet"] = supernet.to_dict()
    if plain:
        config["s3zoo"]["layout"] = PLAIN
        return KIND.write(folder, plain_state_dict(model.state_dict(), model), config)
    return KIND.write(folder, model.state_dict(), config)


def _config(model: Any, provenance: Mapping[str, Any], overlay: Mapping[str, Any]) -> dict[str, Any]:
    arch: Arch = model.arch
    in_chans, height, width = input_size = _input_size(model)
    model_args: dict[str, Any] = {"arch": arch.to_dict(), "img_size": [height, width], "global_pool": model.global_pool}
    if in_chans != 3:
        model_args["in_chans"] = in_chans
    if getattr(model, "dynamic_img_size", False):
        model_args["dynamic_img_size"] = True
    if hasattr(model, "model_args"):
        model_args |= model.model_args()
    cfg = _pretrained_cfg(model, input_size) | dict(overlay)
    try:
        PretrainedCfg(**cfg)
    except TypeError as error:
        raise ValueError(f"pretrained_cfg has a field that timm does not know ({error}).") from None
    config = {
        "architecture": ENTRYPOINTS[arch.family],
        "num_classes": model.num_classes,
        "num_features": model.num_features,
        "global_pool": model.global_pool,
        "model_args": model_args,
        "pretrained_cfg": cfg,
        "s3zoo": {
            "schema_version": KIND.schema_version,
            "version": __version__,
            "arch_key": arch.key,
            "params": sum(p.numel() for p in model.parameters()),
            "sha256": "",
            "provenance": dict(provenance),
        },
    }
    try:
        return json.loads(json.dumps(config, allow_nan=False))  # tuples become the lists that a reader will see
    except (TypeError, ValueError) as error:
        raise ValueError(f"The provenance or pretrained_cfg is not plain JSON ({error}).") from None


def _input_size(model: Any) -> tuple[int, int, int]:
    """Channels, height and width that the model is built for."""
    first_conv = _default_cfg(model)["first_conv"]
    if not first_conv:  # that of a frozen tower, which is no part of the model
        return (model.in_chans, *model.img_size)
    in_chans = model.get_submodule(first_conv).weight.shape[1]
    embed: Any = getattr(model, "patch_embed", None)
    if getattr(embed, "img_size", None):  # timm's PatchEmbed
        return (in_chans, *embed.img_size)
    if getattr(embed, "grid_size", None):
        return (in_chans, *(side * model.arch.patch_size for side in embed.grid_size))
    return (in_chans, *model.img_size)


def _default_cfg(model: Any) -> dict[str, Any]:
    cfg = timm.get_pretrained_cfg(ENTRYPOINTS[model.arch.family])
    assert cfg is not None
    return cfg.to_dict()


def _pretrained_cfg(model: Any, input_size: tuple[int, int, int]) -> dict[str, Any]:
    """timm's config of the model as it is now: its input size and classes, and nothing on where weights came from."""
    own = getattr(model, "pretrained_cfg", None)  # absent if the model was not built by timm.create_model
    cfg = filter_pretrained_cfg(own or _default_cfg(model), remove_source=True)
    # Without its own config, the model holds none of the weights whose licence the family's names.
    for field in ("state_dict", "architecture", "custom_load", *(() if own else ("license",))):
        cfg.pop(field, None)
    if cfg.get("tag") == "untrained":
        del cfg["tag"]
    if tuple(cfg.get("input_size", ())) != input_size:
        for field in ("test_input_size", "min_input_size", "test_pool_size"):
            cfg.pop(field, None)
        if cfg.get("pool_size"):
            reduction = model.feature_info[-1]["reduction"]
            cfg["pool_size"] = tuple(-(-side // reduction) for side in input_size[1:])
    # timm adapts it from 3 channels, leaves it alone if there is 1, and would drop the weights otherwise.
    cfg["first_conv"] = _default_cfg(model)["first_conv"] if input_size[0] in (1, 3) else None
    if not model.num_classes:
        cfg.pop("label_names", None)
    # With the name of the file, timm asks the Hub for no other: it would fall back to a pickle.
    return cfg | {"input_size": input_size, "num_classes": model.num_classes, "hf_hub_filename": WEIGHTS}


def _check_loadable(model: nn.Module, config: dict[str, Any]) -> None:
    """The config must describe the model: a pruned or hand-changed one would be written but never read again."""
    twin = timm.create_model(
        config["architecture"], num_classes=config["num_classes"], device="meta", **config["model_args"]
    )
    if wrong := differences(twin, model.state_dict()):
        raise ValueError(
            f"The model differs from its architecture: {wrong}; save it as it was built, before layers are pruned or"
            " replaced."
        )


def load_model_config(folder: str | Path, *, verify: bool = False, plain: bool = False) -> dict[str, Any]:
    """The config of a folder that `save_model` wrote, checked; with `verify`, the weights too (sha256).

    With `plain`, the folder may also be one that was exported for plain timm.
    """
    folder = Path(folder).expanduser()
    config = read_network(folder)
    if not (folder / WEIGHTS).is_file():
        raise ValueError(f"{str(folder)!r} holds no {WEIGHTS}; give a folder with {WEIGHTS} and {CONFIG}.")
    ours, args, where = config.get("s3zoo") or {}, config.get("model_args") or {}, repr(str(folder / CONFIG))
    if ours.keys() == {"provenance"}:  # by `s3zoo train`
        raise ValueError(
            f"{where} describes {config['architecture']!r}, a network of timm's own, which has no genome; timm loads it"
            " as it is, and timm.models.push_to_hf_hub publishes it."
        )
    if "arch" in args:
        config = KIND.read(folder, verify=verify)
    elif not (plain and "arch" in ours):
        raise ValueError(f"{where} was not written by s3zoo; give a folder that save_model wrote.")
    else:
        Arch.from_dict(ours["arch"])
        if verify:
            check_sums(folder, [WEIGHTS], ours.get("sha256", ""))
    config["s3zoo"].setdefault("provenance", {})
    typed(config, _TOLD, f"{where}: ")
    return config
