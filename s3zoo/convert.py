"""Turn an official checkpoint (S3, AutoFormer, GLiT, Shunted) into a folder with safetensors and config.json.

timm loads the folder: `timm.create_model("local-dir:FOLDER", pretrained=True)`. An AutoFormer checkpoint is a supernet:
the published subnet is cut from it, or with --arch any other that it holds.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import Any

import timm
from torch import Tensor, nn

from s3zoo.arch import Arch
from s3zoo.artefact import save_model
from s3zoo.families import FAMILIES, Family, Official
from s3zoo.files import check_writable, sha256
from s3zoo.models import model_names
from s3zoo.models.folder import WEIGHTS
from s3zoo.models.loading import differences, grid_side
from s3zoo.models.official import StateDict, read_checkpoint


def convert(
    checkpoint: str | Path,
    folder: str | Path,
    *,
    model: str | None = None,
    arch: Arch | str | Path | None = None,
    ema: bool = False,
) -> Any:
    """Write `folder` from an official checkpoint and give the model; nothing is written if anything is wrong.

    Args:
        model: the name it is an instance of, such as s3_tiny; by default the published one that fits the checkpoint.
        arch: the architecture if it is none of the published; of an AutoFormer supernet, the subnet to cut.
        ema: take the averaged weights of a file that has both.
    """
    if Path(checkpoint).expanduser().resolve() == (Path(folder).expanduser() / WEIGHTS).resolve():
        raise ValueError(f"--to is {str(folder)!r}, which holds the checkpoint that is read; give another folder.")
    state_dict = read_checkpoint(checkpoint, ema=ema)
    family, official = _family(state_dict)
    if arch is not None:
        arch = Arch.parse(arch)
        if arch.family != family.name:
            raise ValueError(
                f"The architecture is of family {arch.family!r}, but the checkpoint is of {family.name!r}; give one of"
                " that family."
            )
    name = model or (family.entrypoint if arch is not None else _published_name(family, official, state_dict))
    if name not in (known := model_names(family.name)):
        raise ValueError(
            f"The model is {name!r}, but the checkpoint is of {family.name}: use one of {', '.join(known)}."
        )
    built = _build(name, family, official, state_dict, arch)
    path = Path(checkpoint).expanduser()
    source = {"file": path.name, "sha256": sha256(path), "model": name}
    save_model(folder, built, provenance={"converted_from": source})
    return built


def _family(state_dict: Mapping[str, Tensor]) -> tuple[Family, Official]:
    known = [(family, family.official) for family in FAMILIES.values() if family.official]
    for family, official in known:
        if official.tensor in state_dict:
            return family, official
    *titles, last = (family.title for family, _ in known)
    raise ValueError(
        f"The checkpoint is none of {', '.join(titles)} or {last} (its first tensor is {next(iter(state_dict))!r}); "
        "give one that the authors published."
    )


def _published_name(family: Family, official: Official, state_dict: Mapping[str, Tensor]) -> str:
    """Which published network a checkpoint is, by its depth or width, and by its tables where sizes differ in these."""
    if prefix := official.blocks:
        number = len({key[len(prefix) :].split(".")[0] for key in state_dict if key.startswith(prefix)})
        what = f"{number} blocks in {prefix.rstrip('.')}"
    else:
        if official.first_conv not in state_dict:
            raise ValueError(
                f"The checkpoint is no whole {family.name} network: it lacks {official.first_conv!r}; give all of it."
            )
        number = len(state_dict[official.first_conv])
        what = f"width {number}"
    if number not in official.models:
        raise ValueError(f"No published {family.name} network has {what}; name the model or give its architecture.")
    name = official.models[number]
    check: Any = getattr(import_module(family.module), "check_official", None)
    for larger in model_names(family.name) if check else []:  # s3_small_384 is s3_small with other windows
        if larger.startswith(f"{name}_"):
            with suppress(ValueError, KeyError):
                check(state_dict, timm.create_model(larger, device="meta"))
                return larger
    return name


def _build(name: str, family: Family, official: Official, state_dict: StateDict, arch: Arch | None) -> nn.Module:
    """The model with the checkpoint's weights; built without any, so that none of ours can stay in it."""
    kwargs: dict[str, Any] = {} if arch is None else {"arch": arch}
    if "head.weight" in state_dict:
        kwargs["num_classes"] = state_dict["head.weight"].shape[0]
    try:
        kwargs["in_chans"] = state_dict[official.first_conv].shape[1]
        if "pos_embed" in state_dict:  # the size it was trained at
            kwargs["img_size"] = grid_side(state_dict["pos_embed"]) * state_dict[official.first_conv].shape[-1]
        model = timm.create_model(name, device="meta", **kwargs)
        module: Any = import_module(family.module)
        if hasattr(module, "check_official"):
            module.check_official(state_dict, model)
        weights = module.checkpoint_filter_fn(dict(state_dict), model)
    except KeyError as error:
        raise ValueError(f"The checkpoint is no {name}: it lacks {error}; name its model or give all of it.") from None
    except (IndexError, RuntimeError) as error:  # tensors of another rank or size
        raise ValueError(f"The checkpoint is no {name} ({error}); name its model.") from None
    if wrong := differences(model, weights):
        raise ValueError(f"The checkpoint is no {name}: {wrong}; name its model.")
    weights = {key: v.float() if v.is_floating_point() else v for key, v in weights.items()}
    model.load_state_dict(weights, assign=True)
    return model


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="s3zoo convert", description=__doc__)
    parser.add_argument("checkpoint", help="the .pth or .safetensors file that the authors published")
    parser.add_argument("--to", required=True, metavar="FOLDER", help="where model.safetensors and config.json go")
    parser.add_argument("--model", help="such as autoformer_tiny or s3_tiny (default: the published one that fits)")
    parser.add_argument("--arch", metavar="JSON", help="architecture file, if it is none of the published networks")
    parser.add_argument("--ema", action="store_true", help="take the averaged weights where a file has both")
    args = parser.parse_args(argv)
    check_writable(Path(args.to).expanduser(), "--to", folder=True)
    model = convert(args.checkpoint, args.to, model=args.model, arch=args.arch, ema=args.ema)
    count = sum(p.numel() for p in model.parameters())
    print(f"{args.to}: {model.arch.family} network {model.arch.key} with {count:,} parameters")
    print(f'load it with: import s3zoo, timm; timm.create_model("local-dir:{args.to}", pretrained=True)')
    return 0
