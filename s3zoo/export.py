"""Write a model for other tools: in timm's own layout, as ONNX, or with layers of torch; checked before it is kept.

--to timm: a folder that plain timm loads, of an S3 network whose stages are uniform (timm's Swin has one setting per
stage). The logits are the same at sizes where no shifted window is padded; at others timm computes something else, and
the export is refused. --to onnx: one file for any model of the zoo, with any batch size and one input size.

--to plain: a folder of any model of the zoo whose weights are those of nn.Linear and nn.Conv2d (`s3zoo.to_plain`).

examples:
  s3zoo export s3_tiny --to timm --out s3_tiny_timm
  s3zoo export runs/digits/model --to onnx --out digits.onnx
  s3zoo export s3_tiny --to onnx --img-size 256 320 --out s3_tiny.onnx
"""

from __future__ import annotations

import argparse
import json
import math
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import timm
import torch
from timm.models._pretrained import filter_pretrained_cfg
from torch import Tensor

from s3zoo import __version__, cards
from s3zoo.artefact import load_model_config, save_model
from s3zoo.files import check_not_read, check_writable, replacing, replacing_files, sha256, write_json, write_text
from s3zoo.models.as_onnx import OPSET, OPSETS, check_onnx_packages, onnx_proto
from s3zoo.models.folder import CONFIG, WEIGHTS, new_folder, save_tensors
from s3zoo.models.open import TIMM_WEIGHTS, model_folder, open_model, source
from s3zoo.models.plain import to_plain
from s3zoo.models.s3 import S3, timm_differs, timm_model_args, to_timm_state_dict

TIMM_ARCHITECTURE = "swin_s3_tiny_224"  # timm's Swin takes every gene that a uniform stage has as an argument
TOLERANCE = 1e-5  # of logits, relative to the largest one where that is above 1
LARGEST_SIDE = 8192  # of images, in pixels
REPOSITORY = (WEIGHTS, "README.md", cards.PICTURE, cards.SAMPLE, CONFIG)


def load(spec: str, *, img_size: tuple[int, int] | None = None, untrained: bool = False) -> tuple[Any, dict]:
    """The model of a folder, of a name of the zoo or of `hf-hub:org/name`, and its config (empty without a folder)."""
    place, config = source(spec), {}
    if place.startswith("local-dir:"):
        config = load_model_config(place.removeprefix("local-dir:"))
    elif ":" not in place:
        cfg = timm.get_pretrained_cfg(place)
        if place.partition(".")[0] not in cards.registered_names():
            raise ValueError(f"{spec!r} is neither a folder nor a model of the zoo; `s3zoo zoo` lists the names.")
        if not untrained and (cfg is None or not cfg.has_weights):
            raise ValueError(
                f"No weights of {spec} can be fetched; give the folder of trained or converted ones, or --untrained."
            )
    torch.manual_seed(0)
    model: Any = open_model(spec, pretrained=not untrained, **({"img_size": img_size} if img_size else {}))
    if untrained:
        for field in ("tag", "license", "label_names"):  # of weights that it does not have
            model.pretrained_cfg.pop(field, None)
        config = {}
    return model.eval(), config


def check_out(out: Path, spec: str | Path) -> None:
    """Refuse to write over the model that is read."""
    folder = model_folder(str(spec).removeprefix("local-dir:"))
    if folder is not None:
        check_not_read(out, "--out", (folder, *(folder / name for name in (WEIGHTS, CONFIG, TIMM_WEIGHTS))))


def write_repository(
    folder: Path, config: dict[str, Any], put_weights: Callable[[Path], Any], *, repo_id: str | None = None,
    sample: Path | None = None,
) -> list[Path]:  # fmt: skip
    """Make `folder` hold weights, card and config, all at once; gives the files."""
    folder = new_folder(folder)
    with replacing_files(folder, REPOSITORY) as new:
        put_weights(new / WEIGHTS)
        if sample is None:
            config["s3zoo"].pop("sample", None)  # else the card would show a picture that is not there
        else:
            shutil.copyfile(sample, new / cards.SAMPLE)
        config["s3zoo"]["sha256"] = sha256(new / WEIGHTS)
        for name, text in cards.files(config, repo_id=repo_id).items():
            write_text(new / name, text)
        write_json(new / CONFIG, config, indent=2)
    return written(folder)


def written(folder: Path) -> list[Path]:
    """The files of a repository that are there: not every one has a sample."""
    return [folder / name for name in REPOSITORY if (folder / name).is_file()]


def largest_difference(ours: Tensor, theirs: Tensor) -> float:
    """The largest difference of logits, relative to the largest logit where that is above 1."""
    assert ours.shape == theirs.shape
    return float((ours - theirs).abs().max() / max(1.0, float(ours.abs().max())))


def _size(model: Any) -> tuple[int, int]:
    return tuple(getattr(model, "img_size", None) or model.patch_embed.img_size)  # type: ignore[return-value]


def _images(model: Any, batch: int) -> Tensor:
    from_seed = torch.Generator().manual_seed(batch)
    return torch.randn(batch, model.in_chans, *_size(model), generator=from_seed)


# Plain timm


def to_timm(
    folder: str | Path, model: Any, config: dict[str, Any] | None = None, *, repo_id: str | None = None,
    sample: Path | None = None,
) -> float:  # fmt: skip
    """Write `folder` in timm's own layout and give the largest difference of logits that was seen before.

    Args:
        config: that of the folder the model comes from; its provenance, and what its card says besides, go along.
    """
    folder, args = new_folder(folder), timm_args(model)
    tensors = {k: v.detach().cpu().clone() for k, v in to_timm_state_dict(model).items()}
    out = _timm_config(model, args, config or {})
    cfg = {**out["pretrained_cfg"], "state_dict": tensors}
    options = {"pretrained": True, "pretrained_cfg": cfg, "num_classes": model.num_classes, **out["model_args"]}
    theirs = timm.create_model(TIMM_ARCHITECTURE, **options).eval()
    images = _images(model, 2)
    with torch.inference_mode():
        seen = largest_difference(model(images), theirs(images))
    if not seen <= TOLERANCE:  # also NaN
        raise ValueError(f"timm's logits differ by {seen:.1e} from the model's, above {TOLERANCE}; export as ONNX.")
    write_repository(folder, out, partial(save_tensors, tensors), repo_id=repo_id, sample=sample)
    return seen


def timm_args(model: Any) -> dict[str, Any]:
    """The arguments with which timm builds this model; a `ValueError` with the reason where it cannot."""
    if not isinstance(model, S3):
        what = f"family {model.arch.family!r}" if hasattr(model, "arch") else f"{type(model).__name__}"
        raise ValueError(f"Plain timm can only build networks of family 's3', not of {what}; export it as ONNX.")
    arch = model.arch
    args = timm_model_args(arch)
    reason = timm_differs(arch, model.img_size)
    if reason:
        raise ValueError(f"Plain timm would not compute the same: {reason}; choose another size, or export as ONNX.")
    if len(arch.stages) == 2:  # a list of two would be height and width; one number is cut to the maps
        args["window_size"] = max(stage.blocks[0].window_size for stage in arch.effective(model.img_size).stages)
    args |= {"img_size": list(model.img_size), "global_pool": model.global_pool}
    return args | ({"in_chans": model.in_chans} if model.in_chans != 3 else {})


def _timm_config(model: Any, args: dict[str, Any], config: dict[str, Any]) -> dict[str, Any]:
    cfg = filter_pretrained_cfg(model.pretrained_cfg, remove_source=True)
    for field in ("state_dict", "architecture", "custom_load", "test_input_size", "min_input_size", "test_pool_size"):
        cfg.pop(field, None)
    reduction = model.feature_info[-1]["reduction"]
    cfg |= {"input_size": (model.in_chans, *model.img_size), "num_classes": model.num_classes, "classifier": "head.fc"}
    cfg |= {"pool_size": [math.ceil(side / reduction) for side in model.img_size]}
    cfg |= {"first_conv": "patch_embed.proj" if model.in_chans == 3 else None, "hf_hub_filename": WEIGHTS}
    out = {
        "architecture": TIMM_ARCHITECTURE,
        "num_classes": model.num_classes,
        "num_features": model.num_features,
        "global_pool": model.global_pool,
        "model_args": args,
        "pretrained_cfg": cfg,
        "s3zoo": {
            "version": __version__,
            "layout": "timm: equal to s3zoo's model at input sizes where no shifted window is padded, such as "
            + " x ".join(map(str, model.img_size)),
            "model": config.get("architecture", model.pretrained_cfg.get("architecture", S3.family)),
            "arch": model.arch.to_dict(),
            "arch_key": model.arch.key,
            "params": sum(p.numel() for p in model.parameters()),
            "sha256": "",
            "provenance": config.get("s3zoo", {}).get("provenance", {}),
            **{key: config["s3zoo"][key] for key in ("title", "sample", "latency") if key in config.get("s3zoo", {})},
        },
    }
    return json.loads(json.dumps(out, allow_nan=False))


# Layers of torch


def to_plain_folder(folder: str | Path, model: Any, config: dict[str, Any] | None = None) -> float:
    """Write `folder` with the weights of `to_plain(model)`; gives the largest difference of their logits."""
    if not hasattr(model, "arch"):
        raise ValueError(f"{type(model).__name__} is no network of the zoo, so its layers are as they are.")
    images = _images(model, 2)
    with torch.inference_mode():
        seen = largest_difference(model(images), to_plain(model)(images))
    if not seen <= TOLERANCE:  # also NaN
        raise ValueError(f"The logits of plain layers differ by {seen:.1e} from the model's, above {TOLERANCE}.")
    save_model(folder, model, provenance=(config or {}).get("s3zoo", {}).get("provenance"), plain=True)
    return seen


# ONNX


def check_onnx(path: str | Path, opset: int = OPSET) -> Path:
    """The path of the file to write, once it is sure that it can be written with the packages that are here."""
    if opset not in OPSETS:
        raise ValueError(f"--opset is {opset}, but must be from {OPSETS[0]} to {OPSETS[-1]}.")
    path = Path(path).expanduser()
    if path.is_dir():
        raise ValueError(f"{str(path)!r} is a folder, but --out must be a file such as {str(path / 'model.onnx')!r}.")
    check_onnx_packages()
    return path


def to_onnx(path: str | Path, model: Any, *, opset: int = OPSET) -> float:
    """Write the model as one ONNX file (input "image", output "logits", any batch) and give the largest difference."""
    path = check_onnx(path, opset)
    import onnx
    import onnxruntime

    proto = onnx_proto(model, _images(model, 2), opset, ({0: torch.export.Dim("batch")},))
    if [o.version for o in proto.opset_import if not o.domain] != [opset]:
        raise ValueError(f"The model cannot be written with opset {opset}; try the default, {OPSET}.")
    _strip(proto)
    for key, value in _description(model).items():
        proto.metadata_props.add(key=key, value=value)
    onnx.checker.check_model(proto)
    with replacing(path) as temporary:
        temporary.write_bytes(proto.SerializeToString(deterministic=True))
        session = onnxruntime.InferenceSession(str(temporary), providers=["CPUExecutionProvider"])
        seen = 0.0
        for batch in (1, 3):  # neither is the batch it was traced with
            images = _images(model, batch)
            with torch.inference_mode():
                expected = model(images)
            (found,) = session.run(None, {"image": images.numpy()})
            seen = max(seen, largest_difference(expected, torch.from_numpy(found)))
        if not seen <= 10 * TOLERANCE:
            raise ValueError(f"onnxruntime's logits differ by {seen:.1e} from PyTorch's; try another --opset.")
    return seen


def _strip(proto: Any) -> None:
    """Drop the exporter's notes: they hold paths of this machine's source files."""
    for graph in (proto.graph, *proto.functions):
        for part in (graph, *graph.node, *getattr(graph, "initializer", ()), *graph.input, *graph.output):
            for field in ("metadata_props", "doc_string"):
                if field in part.DESCRIPTOR.fields_by_name:
                    part.ClearField(field)
    proto.graph.ClearField("value_info")  # runtimes infer these shapes, and quantisers trip over them


def _description(model: Any) -> dict[str, str]:
    """What is needed to use the file without this package: how images are prepared, and what the classes are."""
    cfg = model.pretrained_cfg
    fields = {name: cfg.get(name) for name in ("mean", "std", "interpolation", "crop_pct", "label_names", "license")}
    fields |= {"input_size": (model.in_chans, *_size(model)), "arch": model.arch.to_dict(), "s3zoo": __version__}
    return {name: json.dumps(value) for name, value in fields.items() if value is not None}


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="s3zoo export", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model", metavar="MODEL|FOLDER", help="a name of the zoo, hf-hub:org/name, or a model's folder")
    parser.add_argument("--to", required=True, choices=("timm", "onnx", "plain"))
    parser.add_argument("--out", required=True, metavar="PATH", help="a folder for timm and plain, a file for ONNX")
    parser.add_argument("--img-size", type=int, nargs="+", metavar="N", help="side, or height and width")
    parser.add_argument("--opset", type=int, default=OPSET, help="of ONNX (default: %(default)s)")
    parser.add_argument("--untrained", action="store_true", help="random weights instead of the published ones")
    args = parser.parse_args(argv)
    size = None
    if args.img_size:
        if len(args.img_size) > 2 or not 1 <= min(args.img_size) <= max(args.img_size) <= LARGEST_SIDE:
            raise ValueError(
                f"--img-size is {args.img_size}, but must be one number, or height and width, from 1 to {LARGEST_SIDE}."
            )
        size = (args.img_size[0], args.img_size[-1])
    if args.to == "onnx":
        check_onnx(args.out, args.opset)  # before weights are fetched
    out = Path(args.out).expanduser()
    check_out(out, args.model)
    check_writable(out, "--out", folder=args.to != "onnx")
    model, config = load(args.model, img_size=size, untrained=args.untrained)
    height, width = _size(model)
    if args.to == "timm":
        seen = to_timm(args.out, model, config)
        print(f"{args.out}: plain timm gives the same logits at {height} x {width} (largest difference {seen:.1e})")
        print(f'load it with: import timm; timm.create_model("local-dir:{args.out}", pretrained=True)')
    elif args.to == "plain":
        seen = to_plain_folder(args.out, model, config)
        print(f"{args.out}: layers of torch give the same logits (largest difference {seen:.1e})")
        print(f'load it with: s3zoo.to_plain(timm.create_model("local-dir:{args.out}", pretrained=True))')
    else:
        print(f"exporting at {height} x {width}, any batch size; this takes up to a minute", flush=True)
        seen = to_onnx(args.out, model, opset=args.opset)
        print(f"{args.out}: onnxruntime gives the same logits as PyTorch (largest difference {seen:.1e})")
    return 0
