"""How weights come into a network: what every family does with checkpoints and pretrained configs."""

import math
from collections.abc import Callable, Mapping
from typing import Any

import torch
from timm.data import IMAGENET_DEFAULT_MEAN, IMAGENET_DEFAULT_STD
from timm.layers import resample_abs_pos_embed
from timm.models import build_model_with_cfg
from timm.models._builder import resolve_pretrained_cfg
from torch import Tensor

from s3zoo.arch import Arch
from s3zoo.models.frame import Frame, Plain

IMAGENET = {
    "num_classes": 1000,
    "input_size": (3, 224, 224),
    "interpolation": "bicubic",
    "mean": IMAGENET_DEFAULT_MEAN,
    "std": IMAGENET_DEFAULT_STD,
    "first_conv": "patch_embed.proj",
}
FOLDER = "timm.create_model('local-dir:<folder>', pretrained=True)"
NOTHING_PUBLISHED = f"No weights of {{}} are published; use pretrained=False, or load a trained folder with {FOLDER}."


def unwrap(state_dict: Mapping[str, Any]) -> dict[str, Tensor]:
    """The weights of a training script's file, where they lie beside the optimizer's state."""
    for wrapper in ("model", "state_dict"):
        state_dict = state_dict[wrapper] if isinstance(state_dict.get(wrapper), Mapping) else state_dict
    return dict(state_dict)


def fit_weights(
    weights: Mapping[str, Tensor], model: Any, adapt: Callable[[str, Tensor, torch.Size], Tensor]
) -> dict[str, Tensor]:
    """The weights as adapt(name, value, shape of the parameter) makes them, once they are sure to fit the model.

    Only what timm adapts after this may differ: the channels of images, and the classifier if classes differ.
    """
    head = model.classifier + "."
    new_head = model.num_classes != (getattr(model, "pretrained_cfg", None) or {}).get("num_classes")
    out, wrong = {}, []
    for name, target in model.state_dict().items():
        if name not in weights:
            wrong += [] if new_head and name.startswith(head) else [f"{name!r} is missing"]
            continue
        value = weights[name]
        try:
            value = adapt(name, value, target.shape)
        except (RuntimeError, IndexError):
            pass  # a foreign shape: named below
        channels = name == model.first_conv + ".weight" and value.ndim == 4 and value.shape[1] == 3 != model.in_chans
        if value.shape != target.shape and not channels and not (new_head and name.startswith(head)):
            wrong.append(f"{name!r} has shape {list(value.shape)} instead of {list(target.shape)}")
        out[name] = value.contiguous()
    unknown = [name for name in weights if name not in out]
    out.update({name: weights[name] for name in unknown if new_head and name.startswith(head)})
    wrong += [f"{name!r} is not part of the model" for name in unknown if name not in out]
    if wrong:
        more = f" (and {len(wrong) - 1} more such differences)" if len(wrong) > 1 else ""
        raise ValueError(
            f"The checkpoint does not fit this {type(model).__name__} network: {wrong[0]}{more}; load weights of this "
            "architecture."
        )
    return out


def fit_pos_embed(pos_embed: Tensor, model: Plain) -> Tensor:
    """The embedding on the grid of the model; it was made for that of the config, else the model's, else a square."""
    grid, tokens = model.patch_embed.grid_size, pos_embed.shape[1] - 1
    size = (getattr(model, "pretrained_cfg", None) or {}).get("input_size")
    named = [(size[-2] // model.patch_size, size[-1] // model.patch_size)] if size else []
    side = math.isqrt(max(tokens, 0))
    for old in (*named, grid, (side, side)):
        if old[0] * old[1] == tokens > 0:
            return resample_abs_pos_embed(pos_embed, new_size=list(grid), old_size=list(old))
    raise ValueError(
        f"The checkpoint's position embedding has {tokens} patches, which is no square grid; name its input_size in "
        "pretrained_cfg_overlay."
    )


def build(
    model: type[Frame], filter_fn: Callable[..., Any], variant: str, pretrained: bool, refusal: str, **kwargs: Any
) -> Any:
    """timm's builder; `refusal` is the sentence if weights are wanted where none are published."""
    if pretrained:
        cfg = resolve_pretrained_cfg(variant, kwargs.get("pretrained_cfg"), kwargs.get("pretrained_cfg_overlay"))
        if not (cfg.has_weights or cfg.state_dict):
            raise ValueError(refusal.format(variant))
    kwargs["arch"] = arch = Arch.parse(kwargs["arch"])
    out_indices = 3 if issubclass(model, Plain) else tuple(range(len(arch.stages)))
    feature_cfg = dict(out_indices=out_indices, flatten_sequential=True, feature_cls="getter")
    feature_cfg |= kwargs.pop("feature_cfg", None) or {}
    return build_model_with_cfg(
        model, variant, pretrained, pretrained_filter_fn=filter_fn, feature_cfg=feature_cfg, **kwargs
    )
