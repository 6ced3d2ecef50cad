"""Turn an official checkpoint (S3, AutoFormer, GLiT, Shunted) into a folder with safetensors and config.json.

timm loads the folder: `timm.create_model("local-dir:FOLDER", pretrained=True)`. An AutoFormer checkpoint is a supernet:
the published subnet is cut from it, or with --arch any other that it holds.
"""

from __future__ import annotations

import argparse
import math
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import timm
from torch import Tensor, nn

from s3zoo.arch import Arch
from s3zoo.artefact import save_model
from s3zoo.files import sha256
from s3zoo.models import autoformer, glit, s3, shunted
from s3zoo.models.official import StateDict, read_checkpoint
from s3zoo.search.published import official_autoformer_supernet

__all__ = ["autoformer_subnet", "convert", "official_autoformer_supernet"]

_FILTERS: dict[str, Callable[[StateDict, Any], StateDict]] = {
    "s3": s3.checkpoint_filter_fn,
    "autoformer": autoformer.checkpoint_filter_fn,
    "glit": glit.checkpoint_filter_fn,
    "shunted": shunted.checkpoint_filter_fn,
}
_FIRST_CONV = {
    "s3": "patch_embed.proj.weight",
    "autoformer": "patch_embed_super.proj.weight",
    "glit": "patch_embed.proj.weight",
    "shunted": "patch_embed1.conv.0.weight",
}
# Where the blocks of the third stage are, and which network has how many.
_STAGE_3: dict[str, tuple[str, dict[int, str]]] = {
    "s3": ("layers.2.blocks.", {6: "tiny", 18: "small", 30: "base"}),
    "shunted": ("block3.", {4: "tiny", 12: "small", 24: "base"}),
}


def convert(
    checkpoint: str | Path, folder: str | Path, *, model: str | None = None, arch: Arch | str | Path | None = None
) -> Any:
    """Write `folder` from an official checkpoint and give the model; nothing is written if anything is wrong.

    Args:
        model: the name it is an instance of, such as s3_tiny; by default the published one that fits the checkpoint.
        arch: the architecture if it is none of the published; of an AutoFormer supernet, the subnet to cut.
    """
    state_dict = read_checkpoint(checkpoint)
    family = _family(state_dict)
    if arch is not None:
        arch = Arch.parse(arch)
        if arch.family != family:
            raise ValueError(f"The architecture is of family {arch.family!r}, but the checkpoint is of {family!r}.")
    name = model or (family if arch is not None else _published_name(family, state_dict))
    _check_name(name, family)
    built = _build(name, family, state_dict, arch)
    path = Path(checkpoint).expanduser()
    source = {"file": path.name, "sha256": sha256(path), "model": name}
    save_model(folder, built, provenance={"converted_from": source})
    return built


def _family(state_dict: Mapping[str, Tensor]) -> str:
    if autoformer.is_official(state_dict):
        return "autoformer"
    if "layers.0.blocks.0.attn.relative_position_bias_table" in state_dict:
        return "s3"
    if "blocks.0.0.norm1.weight" in state_dict:
        return "glit"
    if "patch_embed1.conv.0.weight" in state_dict:
        return "shunted"
    raise ValueError(
        f"The checkpoint is none of S3, AutoFormer, GLiT or Shunted (its first tensor is {next(iter(state_dict))!r}); "
        "give one that the authors published."
    )


def _published_name(family: str, state_dict: Mapping[str, Tensor]) -> str:
    """Which published network a checkpoint is, by its depth or width."""
    if family in _STAGE_3:
        prefix, sizes = _STAGE_3[family]
        depth = len({key[len(prefix) :].split(".")[0] for key in state_dict if key.startswith(prefix)})
        what, name = f"{depth} blocks in stage 3", f"{family}_{sizes[depth]}" if depth in sizes else None
    else:
        width = state_dict[_FIRST_CONV[family]].shape[0]
        sizes = {"autoformer": {256: "tiny", 448: "small", 640: "base"}, "glit": {192: "tiny"}}[family]
        what, name = f"width {width}", f"{family}_{sizes[width]}" if width in sizes else None
    if name is None:
        raise ValueError(f"No published {family} network has {what}; name the model or give its architecture.")
    return name


def _check_name(name: str, family: str) -> None:
    known = [n for n in timm.list_models(f"{family}*") if re.fullmatch(rf"{family}(_.*)?", n)]
    if name not in known:
        raise ValueError(f"The model is {name!r}, but the checkpoint is of {family}: use one of {', '.join(known)}.")


def _build(name: str, family: str, state_dict: StateDict, arch: Arch | None) -> nn.Module:
    """The model with the checkpoint's weights; built without any, so that none of ours can stay in it."""
    kwargs: dict[str, Any] = {} if arch is None else {"arch": arch}
    if "head.weight" in state_dict:
        kwargs["num_classes"] = state_dict["head.weight"].shape[0]
    try:
        kwargs["in_chans"] = state_dict[_FIRST_CONV[family]].shape[1]
        if "pos_embed" in state_dict:  # the size it was trained at
            side = math.isqrt(state_dict["pos_embed"].shape[1] - 1)
            kwargs["img_size"] = side * state_dict[_FIRST_CONV[family]].shape[-1]
        model = timm.create_model(name, device="meta", **kwargs)
        if family == "s3":
            _check_windows(state_dict, model)
        weights = _FILTERS[family](dict(state_dict), model)
    except KeyError as error:
        raise ValueError(f"The checkpoint is no {name}: it lacks {error}; name its model or give all of it.") from None
    except (IndexError, RuntimeError) as error:  # tensors of another rank or size
        raise ValueError(f"The checkpoint is no {name} ({error}); name its model.") from None
    expected = model.state_dict()
    for key in sorted(expected.keys() | weights.keys()):
        got = tuple(weights[key].shape) if key in weights else "absent"
        want = tuple(expected[key].shape) if key in expected else "absent"
        if got != want:
            raise ValueError(f"The checkpoint is no {name}: {key} is {got} instead of {want}; name its model.")
    weights = {key: v.float() if v.is_floating_point() else v for key, v in weights.items()}
    model.load_state_dict(weights, assign=True)
    return model


def _check_windows(state_dict: Mapping[str, Tensor], model: Any) -> None:
    """A filter resizes tables to the model's windows; a conversion must not: Swin-T is no S3-T with other windows."""
    for s, stage in enumerate(model.arch.stages):
        for b, block in enumerate(stage.blocks):
            rows = state_dict[f"layers.{s}.blocks.{b}.attn.relative_position_bias_table"].shape[0]
            if rows != (2 * block.window_size - 1) ** 2:
                raise ValueError(
                    f"Block {b} of stage {s} has window {(math.isqrt(rows) + 1) // 2} in the checkpoint, but "
                    f"{block.window_size} in the architecture; give the checkpoint's architecture."
                )


def autoformer_subnet(state_dict: Mapping[str, Tensor], arch: Arch) -> StateDict:
    """The weights of any subnet of an official supernet, in our layout, exactly as the authors' code runs it."""
    return autoformer.subnet_state_dict(state_dict, arch)


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="s3zoo convert", description=__doc__)
    parser.add_argument("checkpoint", help="the .pth or .safetensors file that the authors published")
    parser.add_argument("--to", required=True, metavar="FOLDER", help="where model.safetensors and config.json go")
    parser.add_argument("--model", help="such as autoformer_tiny or s3_tiny (default: the published one that fits)")
    parser.add_argument("--arch", metavar="JSON", help="architecture file, if it is none of the published networks")
    args = parser.parse_args(argv)
    model = convert(args.checkpoint, args.to, model=args.model, arch=args.arch)
    count = sum(p.numel() for p in model.parameters())
    print(f"{args.to}: {model.arch.family} network {model.arch.key} with {count:,} parameters")
    print(f'load it with: import s3zoo, timm; timm.create_model("local-dir:{args.to}", pretrained=True)')
    return 0
