"""`s3zoo train CONFIG | MODEL`: train, finetune, probe or distil one network."""

from __future__ import annotations

import argparse
import dataclasses
import re
from pathlib import Path
from typing import Any

from s3zoo.training.config import TrainRun, load_config, overridden
from s3zoo.training.datasets import DATASETS, find_data
from s3zoo.training.registry import listing, names

EXAMPLES = """examples:
  s3zoo train digits                                    needs no download: from scratch on scikit-learn's digits
  s3zoo train s3_tiny --data ~/flowers                  finetune on your folder: train/<class>/, test/<class>/
  s3zoo train runs/digits/model --data digits --probe   a linear probe on the features of a network of your own
  s3zoo train s3_384 --data /path/to/imagenet           a recipe of the papers: S3-S finetuned at 384 x 384
  s3zoo train transfer --data cifar100 --root ~/data --download
"""


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="s3zoo train",
        description="Train a network on your images. TARGET is a config (a recipe with its model) or a model, which is"
        " finetuned by the config `finetune` (--probe: `probe`, --scratch: `scratch`). The same"
        " command resumes an interrupted run. Under torchrun the work is shared by all processes.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add(
        "target",
        metavar="TARGET",
        nargs="?",
        help="config in configs/train or .py file; or model: timm name, hf-hub:…, folder",
    )
    add("--model", help="with a config: another model than its own")
    add("--data", metavar="DATA", help=f"folder with train/ and test/ or val/; {', '.join(DATASETS)}; torch/…; hfds/…")
    add("--root", default="", help="with a dataset's name: where it is, or is to be downloaded to")
    add("--download", action="store_true", help="let torchvision download the dataset")
    mode = parser.add_mutually_exclusive_group()
    mode.add_argument("--scratch", action="store_true", help="train from scratch")
    mode.add_argument("--probe", action="store_true", help="train the classifier alone, on frozen features")
    add("--weights", metavar="WEIGHTS", help="begin with these: timm name, folder or file (default: the model's own)")
    add("--teacher", metavar="MODEL", help="distil from this model (short for --set distil.teacher=MODEL)")
    add("--img-size", type=int, metavar="N", help="side of the images (0: the model's own)")
    add("--epochs", type=int, metavar="N", help="short for --set train.epochs=N")
    add("--set", action="append", default=[], metavar="KEY=VALUE", help="change a setting, e.g. train.lr=1e-4")
    add("--out", type=Path, help="folder of the run (default: runs/<name>)")
    add("--check-data", action="store_true", help="first compare all test images with all training images")
    add("--dry-run", action="store_true", help="show what would be done; needs no data")
    add("--list", action="store_true", help="show the configs; `s3zoo config NAME` shows one whole")
    arguments = parser.parse_args(argv)
    if arguments.list:
        print(listing("train"))
        return 0
    if arguments.target is None:
        parser.error("name a config or a model; --list shows the configs")
    run, name = configured(arguments)
    if arguments.dry_run:
        print(plan(run))
        return 0
    from s3zoo.training.run import Training  # torch is needed from here on
    from s3zoo.training.session import run_job

    def job(*args: Any) -> dict[str, Any]:
        return Training(*args, check_data=arguments.check_data)()

    return run_job(run, arguments.out or Path("runs") / name, job)


def configured(arguments: argparse.Namespace) -> tuple[TrainRun, str]:
    """The run that the command line asks for, and a name for its folder."""
    target = arguments.target
    is_config = target.endswith(".py") or target in names("train")
    if is_config:
        run, name = load_config(target, TrainRun, "train"), ""
    else:
        from s3zoo.models.open import source  # with torch

        source(target)  # says what is wrong with it
        recipe = "scratch" if arguments.scratch else "probe" if arguments.probe else "finetune"
        run, name = dataclasses.replace(load_config(recipe, TrainRun, "train"), model=target), target
    changes: dict[str, object] = {}
    if arguments.model:
        changes |= {"model": arguments.model, "model_args": {}, "weights": ""}
        name = arguments.model
    if arguments.data:
        changes["data"] = find_data(arguments.data, arguments.root, arguments.download, run.data)
    elif arguments.root:
        raise ValueError(f"--root is {arguments.root!r} without --data; name the dataset, or give the folder as --data")
    if arguments.scratch:
        changes |= {"mode": "scratch", "weights": "", "freeze": 0}
    elif arguments.probe:
        changes["mode"] = "probe"
    if arguments.weights:
        changes |= {"weights": arguments.weights}
        if run.mode == "scratch" and "mode" not in changes:
            changes["mode"] = "finetune"
    run = dataclasses.replace(run, **changes)  # type: ignore[arg-type]
    short = {"data.img_size": arguments.img_size, "train.epochs": arguments.epochs, "distil.teacher": arguments.teacher}
    settings = [f"{key}={value}" for key, value in short.items() if value not in (None, "")]
    run = overridden(run, [*settings, *arguments.set])
    if not run.data.name and not run.data.root:
        raise ValueError(f"No images are named; add --data FOLDER, or --data with one of {', '.join(DATASETS)}.")
    data = Path(arguments.data).name if arguments.data else ""
    words = [run.name if is_config else "", Path(name).parent.name if Path(name).name == "model" else Path(name).name]
    words += [data, "" if is_config else run.mode]
    return run, re.sub(r"[^\w.-]+", "-", "-".join(filter(None, words)))


def plan(run: TrainRun) -> str:
    """What a run would do."""
    from s3zoo.training.run import resolved

    data, train = resolved(run), run.train
    begin = {"scratch": "random weights"}.get(run.mode, f"the weights of {run.weights or run.model}")
    lines = [
        f"run       {run.name}, seed {run.seed}: {run.mode} {run.model}, from {begin}",
        f"data      {data.name or 'folder'} {data.root}, {data.img_size} x {data.img_size}, "
        + (f"{data.num_classes} classes" if data.num_classes else "as many classes as there are"),
        f"train     {train.epochs} epochs, batch {train.batch_size}, {train.opt}, lr {train.lr:g} ({train.schedule}),"
        f" weight decay {train.weight_decay:g}"
        + (f", layer decay {run.layer_decay:g}" if run.layer_decay < 1 else "")
        + (f", the first {run.freeze} parts frozen" if run.freeze else "")
        + (f", EMA {train.ema:g}" if train.ema else ""),
    ]
    if run.distil.teacher:
        lines.append(f"teacher   {run.distil.teacher}, {run.distil.kind}, weight {run.distil.weight:g}")
    return "\n".join(lines)
