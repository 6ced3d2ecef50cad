"""`s3zoo train_mm | test_mm | predict_mm`: detectors and segmenters of mmdet and mmseg, from a config to pictures."""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import logging
import os
import re
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import mmcv
import torch
from mmengine.config import Config, DictAction
from mmengine.logging import MMLogger
from mmengine.model import MMDistributedDataParallel, is_model_wrapper, revert_sync_batchnorm
from mmengine.runner import Runner
from torch import Tensor

from s3zoo.files import CONFIG_BYTES, check_writable, read_bytes
from s3zoo.models.loading import load_weights
from s3zoo.models.open import model_folder
from s3zoo.paths import commit
from s3zoo.training import distributed
from s3zoo.transfer.mm import checkpoints, shapes
from s3zoo.transfer.mm.config import (
    check_data,
    check_keys,
    first,
    load_mm_config,
    plain_text,
    portable,
    quiet,
    set_classes,
    set_data,
    without_pretrained,
)
from s3zoo.transfer.mm.folder import export_detector, load_detector, running_config

STDERR = 2  # where code that is not Python's writes
UNREADABLE = "no label map"
MODEL = "model"  # below the work folder: the trained model as safetensors and config


class _Lines(logging.Formatter):
    """A line as a person reads it; the log file has it in full."""

    def format(self, record: logging.LogRecord) -> str:
        message = record.getMessage()
        message = re.sub(r"(\bloss: \S+).*", r"\1", message, flags=re.DOTALL)  # the sum, without its fifteen parts
        message = re.sub(r" *\b(base_lr|memory|data_time): \S+", "", message)
        return message if record.levelno < logging.WARNING else f"{record.levelname.lower()}: {message}"


def _wanted(record: logging.LogRecord) -> bool:
    """Progress, results, checkpoints and warnings; not the machine, the config or three lines for each parameter."""
    message = record.getMessage()
    if record.levelno >= logging.WARNING:
        return not re.search("deprecated|Failed to search registry|prefix is not set in metric", message)
    if "(test)" in message and re.search("mAP|mIoU", message):
        return False  # printed as a table
    return message.startswith(("Epoch(", "Iter(", "Saving checkpoint", "resumed epoch"))


class _Aside(io.TextIOBase):
    """Where pycocotools and others print to: the log file, but not the screen."""

    def __init__(self, logger: logging.Logger) -> None:
        self.logger = logger

    def write(self, text: str) -> int:
        if text.strip():
            self.logger.info(text.rstrip())
        return len(text)


class _Runner(Runner):
    """mmengine's runner, that says less and knows processes without GPUs."""

    runs = False  # whether a step of training has gone well

    def build_logger(self, *args: Any, **kwargs: Any) -> MMLogger:
        logger = super().build_logger(*args, **kwargs)
        for handler in logger.handlers:
            if type(handler) is logging.StreamHandler:
                handler.setFormatter(_Lines())
                handler.addFilter(_wanted)
        return logger

    def call_hook(self, fn_name: str, **kwargs: Any) -> None:
        self.runs = self.runs or fn_name == "after_train_iter"
        super().call_hook(fn_name, **kwargs)

    def wrap_model(self, model_wrapper_cfg: Any, model: Any) -> Any:
        if not self.distributed or torch.cuda.is_available() or model_wrapper_cfg or is_model_wrapper(model):
            return super().wrap_model(model_wrapper_cfg, model)
        return MMDistributedDataParallel(
            module=revert_sync_batchnorm(model),  # which exist for GPUs only
            broadcast_buffers=False,
            find_unused_parameters=self.cfg.get("find_unused_parameters", False),
        )

    def load_checkpoint(self, *args: Any, **kwargs: Any) -> Any:
        checkpoint = super().load_checkpoint(*args, **kwargs)
        if isinstance(checkpoint.get("meta"), dict):
            checkpoint["meta"].pop("config", None)  # Python text, which mmengine would run on resuming
        return checkpoint


def _decoded(decode: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """What libraries below OpenCV print about an image that they give up is not shown, only the sentence about it.

    Decoders fail with errors of any kind. An image that is None is named by mmcv, a label map has no such check.
    """
    with tempfile.TemporaryFile() as said:
        before = os.dup(STDERR)
        os.dup2(said.fileno(), STDERR)
        try:
            image = decode(*args, **kwargs)
        except Exception as error:
            if kwargs.get("flag") == "unchanged":
                raise SyntaxError(UNREADABLE) from error
            image = None
        finally:
            os.dup2(before, STDERR)
            os.close(before)
        if image is not None:
            said.seek(0)
            os.write(STDERR, said.read())
    return image


@contextlib.contextmanager
def _readable() -> Iterator[None]:
    """An image or label map of the dataset that cannot be decoded is named in a sentence."""
    decode = mmcv.imfrombytes
    mmcv.imfrombytes = partial(_decoded, decode)  # the processes of data loaders inherit it
    try:
        yield
    except (AssertionError, SyntaxError) as error:  # mmcv's, and the one above
        found = re.search(rf"failed to load image(?:: (\S+))?|{UNREADABLE}", str(error))
        if found is None:
            raise
        what = f"The image {found[1]!r}" if found[1] else "A label map of the dataset"
        raise ValueError(f"{what} cannot be decoded; repair or remove it and repeat the command.") from error
    finally:
        mmcv.imfrombytes = decode


def _runner(cfg: Config) -> _Runner:
    """Under torchrun the processes are joined here: mmengine would want a GPU for it."""
    ranks = distributed.start()
    cfg = cfg.copy()
    cfg.launcher = "pytorch" if ranks.world > 1 else "none"
    if "visualizer" in cfg:  # mmengine gives the one of that name again, which writes into the folder of an earlier run
        cfg.visualizer.name = f"visualizer-{time.time_ns()}"
    return _Runner.from_cfg(cfg)


def _parser(name: str, usage: str, description: str, *examples: str) -> argparse.ArgumentParser:
    return argparse.ArgumentParser(
        prog=f"s3zoo {name}",
        usage=f"s3zoo {name} {usage} [options]",
        description=description,
        epilog="examples:\n" + "".join(f"  s3zoo {name} {example}\n" for example in examples),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )


def _add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--data", metavar="ROOT", help="the top folder of the dataset, laid out as COCO or ADE20K")
    parser.add_argument("--classes", metavar="A,B", help="names of your own classes, in place of COCO's or ADE20K's")
    parser.add_argument(
        "--cfg-options", nargs="+", action=DictAction, default={}, metavar="KEY=VALUE",
        help="change settings of the config, e.g. train_dataloader.batch_size=4 model.backbone.pretrained=FOLDER",
    )  # fmt: skip


@plain_text()
def train(argv: list[str] | None = None) -> int:
    parser = _parser(
        "train_mm",
        "CONFIG",
        "Train a detector (mmdet) or segmenter (mmseg); afterwards WORK_DIR/model has it as safetensors and config.\n"
        "Under torchrun the work is shared by all processes.",
        "cascade-mask-rcnn_s3-tiny_fpn_1x_coco --data /path/to/coco",
        "upernet_s3-tiny_160k_ade20k-512x512 --data mine --classes road,roof --work-dir runs/roofs",
        "try_detection --backbone runs/mine",
    )
    parser.add_argument("config", help="name of a config in configs/detection or configs/segmentation, or a .py file")
    _add_options(parser)
    parser.add_argument(
        "--backbone", metavar="NETWORK",
        help="another network, with its weights: a name, the folder of a run or model, hf-hub:owner/name",
    )  # fmt: skip
    parser.add_argument("--work-dir", type=Path, help="folder of the run (default: runs/<name of the config>)")
    parser.add_argument("--resume", action="store_true", help="go on from the last checkpoint in the work folder")
    parser.add_argument("--amp", action="store_true", help="mixed precision, on a GPU only")
    parser.add_argument(
        "--auto-scale-lr", action="store_true", help="scale the learning rate to the batch over all processes"
    )
    parser.add_argument("--dry-run", action="store_true", help="show what would be done; needs no data")
    args = parser.parse_args(argv)
    cfg = load_mm_config(args.config, args.cfg_options, args.backbone)
    cfg.work_dir = str(args.work_dir or Path("runs") / Path(args.config).stem)
    own = partial(running_config, args.config)
    if args.dry_run:
        with own():
            print(_plan(cfg))
        return 0
    check_writable(Path(cfg.work_dir), "--work-dir", folder=True)
    last = _last_checkpoint(Path(cfg.work_dir))
    if last and not args.resume:
        raise ValueError(
            f"{cfg.work_dir!r} holds a run already ({Path(last).name}); go on with --resume or name another --work-dir."
        )
    begin = cfg.get("load_from")
    if begin and not last and not re.match(r"[\w-]+:", str(begin)) and not Path(str(begin)).is_file():  # no address
        raise ValueError(f"load_from is {begin!r}, but there is no such file; give a checkpoint, or leave it out.")
    if args.amp:
        if not torch.cuda.is_available():
            raise ValueError("--amp needs a GPU, and torch sees none; leave it out.")
        cfg.optim_wrapper.type, cfg.optim_wrapper.loss_scale = "AmpOptimWrapper", "dynamic"
    if args.auto_scale_lr:
        if "base_batch_size" not in cfg.get("auto_scale_lr", {}):
            raise ValueError("--auto-scale-lr needs auto_scale_lr.base_batch_size in the config, which has none.")
        cfg.auto_scale_lr.enable = True
    with own():
        _prepare(cfg, args, ("train", "val"))
    cfg.resume = bool(last)
    if last:
        cfg.load_from = last
    elif args.resume and first():
        print(f"{cfg.work_dir} has no checkpoint yet: the run begins.")
    try:
        with own():
            runner = _runner(cfg)
        net: Any = runner.model.module if is_model_wrapper(runner.model) else runner.model
        if last:  # mmengine would leave out what does not fit, and fail later
            load_weights(net, checkpoints.read_weights(last), repr(last))
            net.backbone._is_init = True  # its pretrained weights are not wanted again, and may be gone
        if first():
            size = sum(p.numel() for p in net.parameters())
            print(f"{type(net).__name__}, {size / 1e6:.1f}M parameters; log and checkpoints in {cfg.work_dir}")
        with contextlib.redirect_stdout(_Aside(runner.logger)), own(lambda: runner.runs), _readable():
            runner.train()
        if first():
            meta = dict(runner.train_dataloader.dataset.metainfo)
            provenance = {
                "config": Path(args.config).stem,
                "epochs": runner.epoch,
                "iterations": runner.iter,
                "metrics": {
                    name.removeprefix("val/"): values.current()
                    for name, values in runner.message_hub.log_scalars.items()
                    if name.startswith("val/") and not name.endswith("time")
                },
                "commit": commit(),
            }
            folder = Path(cfg.work_dir) / MODEL
            lasting = portable(cfg, getattr(net.backbone, "written_out", None), meta)
            export_detector(lasting, net.state_dict(), folder, meta, provenance)
            print(f"The model is in {folder}; {_how_to_open(folder)}")
    except KeyboardInterrupt:
        if first() and (Path(cfg.work_dir) / "last_checkpoint").is_file():
            print("\nThe same command with --resume goes on from the last checkpoint.", file=sys.stderr)
        raise
    finally:
        distributed.stop()
    return 0


def _last_checkpoint(folder: Path) -> str | None:
    """The one that the file last_checkpoint names, in the run's own folder: that may have been moved, or come from
    someone else."""
    note = folder / "last_checkpoint"
    if not note.is_file():
        return None
    path = folder / Path(read_bytes(note, CONFIG_BYTES).decode(errors="replace").strip()).name
    if not path.is_file():
        raise ValueError(f"{str(note)!r} names {path.name[:60]!r}, which is not there; restore it, or remove the note.")
    return str(path)


def _how_to_open(folder: Path) -> str:
    """A folder of parts that are not known is for mmdet and mmseg themselves: a config of the user's may have any."""
    try:
        load_detector(folder)
    except ValueError as refusal:
        return str(refusal)
    return f"try s3zoo predict_mm {folder} IMAGE --out pictures"


def _plan(cfg: Config) -> str:
    """What a training would do."""
    loop, data, backbone = cfg.train_cfg, cfg.train_dataloader, cfg.model.backbone
    optimizer = cfg.optim_wrapper.optimizer
    length = f"{loop.max_epochs} epochs" if "max_epochs" in loop else f"{loop.max_iters:,} iterations"
    name, rate = backbone.get("model", backbone.type), backbone.get("drop_path_rate", 0)
    return "\n".join((
        f"run       {cfg.work_dir}",
        f"model     {cfg.model.type} with {name}, drop path {rate}",
        f"train     {length}, {data.batch_size} images a process, {optimizer.type}, lr {optimizer.lr:g}",
    ))  # fmt: skip


def _prepare(cfg: Config, args: argparse.Namespace, splits: Sequence[str]) -> None:
    quiet()
    if args.classes:
        set_classes(cfg, [name.strip() for name in args.classes.split(",")])
    if args.data is None and "drawn_shapes" in cfg:
        args.data = str(Path(cfg.work_dir) / "shapes")
        if first():
            shapes.write(Path(args.data), cfg.default_scope, **cfg.drawn_shapes)
        while not Path(args.data).is_dir():  # the first process is drawing
            time.sleep(0.1)
    set_data(cfg, args.data)
    check_data(cfg, splits)


class _Opened(NamedTuple):
    cfg: Config
    weights: dict[str, Tensor]
    name: str  # of the weights
    rest: list[str]  # words that follow
    running: Callable[[], AbstractContextManager[None]]  # around what the model does


def _opened(words: list[str], options: dict[str, Any]) -> _Opened:
    """What CONFIG CHECKPOINT … stands for, or the FOLDER that training wrote.

    A config is a program of the user's; a folder may come from anywhere, and only what is harmless in it is used.
    """
    folder = model_folder(words[0])
    if folder is None and not Path(words[0]).expanduser().is_dir():
        if len(words) < 2:
            raise ValueError(f"{words[0]!r} is no folder of an exported model; give a config and its checkpoint.")
        cfg = load_mm_config(words[0], options)
        own = partial(running_config, words[0])
        return _Opened(cfg, checkpoints.read_weights(words[1]), repr(words[1]), words[2:], own)
    exported = load_detector(folder or words[0])
    check_keys(exported.cfg, options)
    exported.cfg.merge_from_dict(options)
    return _Opened(exported.cfg, exported.state_dict, repr(str(folder)), words[1:], exported.running)


@plain_text()
def test(argv: list[str] | None = None) -> int:
    parser = _parser(
        "test_mm",
        "(CONFIG CHECKPOINT | FOLDER)",
        "Evaluate a detector (box and mask AP) or segmenter (mIoU) on the test split of its config.\n"
        "Under torchrun the images are shared by all processes.",
        "cascade-mask-rcnn_s3-tiny_fpn_1x_coco runs/x/epoch_12.pth --data /path/to/coco",
        "runs/x/model --data /path/to/ade --tta",
    )
    parser.add_argument(
        "model", nargs="+", metavar="MODEL",
        help="config and checkpoint (.pth or .safetensors), or the folder `model` that training wrote",
    )  # fmt: skip
    _add_options(parser)
    parser.add_argument("--work-dir", type=Path, default=Path("runs/test_mm"), help="folder of the log and metrics")
    parser.add_argument("--tta", action="store_true", help="test at several scales and flipped (the config's tta_*)")
    args = parser.parse_args(argv)
    opened = _opened(args.model, args.cfg_options)
    cfg = opened.cfg
    if opened.rest:
        raise ValueError(f"{opened.rest[0]!r} is one argument too many; give CONFIG CHECKPOINT or FOLDER.")
    if args.tta:
        if "tta_model" not in cfg or "tta_pipeline" not in cfg:
            raise ValueError("--tta needs tta_model and tta_pipeline in the config, which mmdet has for boxes only.")
        cfg.test_dataloader.dataset.pipeline = cfg.tta_pipeline
    cfg.work_dir = str(args.work_dir)
    check_writable(args.work_dir, "--work-dir", folder=True)
    with opened.running():
        _prepare(cfg, args, ("test",))
    without_pretrained(cfg)
    if args.tta:
        cfg.model = dict(**cfg.tta_model, module=cfg.model)
    try:
        with opened.running():
            runner = _runner(cfg)
        model = runner.model.module if is_model_wrapper(runner.model) else runner.model
        load_weights(model.module if args.tta else model, opened.weights, opened.name)
        with contextlib.redirect_stdout(_Aside(runner.logger)), opened.running(), _readable():
            metrics = runner.test()
        if first():
            path = Path(cfg.work_dir) / "metrics.json"
            path.write_text(json.dumps({k: float(v) for k, v in metrics.items()}, indent=2) + "\n", encoding="utf-8")
            print("\n".join(f"{name:<20} {float(value):.4g}" for name, value in metrics.items()))
            if not metrics:
                print("Nothing was found in the whole dataset, so there is nothing to measure.")
    finally:
        distributed.stop()
    return 0


def predict(argv: list[str] | None = None) -> int:
    parser = _parser(
        "predict_mm",
        "(CONFIG CHECKPOINT | FOLDER) IMAGE... --out DIR",
        "Draw what a detector or segmenter finds on images; predictions.json has it for machines.",
        "runs/x/model photos/*.jpg --out pictures",
    )
    parser.add_argument(
        "model", nargs="+", metavar="MODEL",
        help="config and checkpoint (.pth or .safetensors), or the folder `model` that training wrote; then images",
    )  # fmt: skip
    parser.add_argument("--out", type=Path, required=True, metavar="DIR", help="folder for pictures and JSON")
    parser.add_argument("--classes", metavar="A,B", help="the classes it was trained with, if not the config's")
    parser.add_argument("--threshold", type=float, default=0.3, help="least score of a detected object (default: 0.3)")
    parser.add_argument("--device", default="auto", help="cpu, cuda or auto")
    args = parser.parse_args(argv)
    if not 0 <= args.threshold <= 1:
        raise ValueError(f"--threshold is {args.threshold:g}, but scores are from 0 to 1; give one of these.")
    device = distributed.start(args.device).device
    check_writable(args.out, "--out", folder=True)
    quiet()
    opened = _opened(args.model, {})
    images = opened.rest
    if args.classes:
        with opened.running():
            set_classes(opened.cfg, [name.strip() for name in args.classes.split(",")])
    if not images:
        raise ValueError("No image was given; name one or more after the model.")
    for image in images:
        if not Path(image).is_file():
            raise FileNotFoundError(f"There is no image at {image!r}; give files, as in photos/*.jpg.")
    from s3zoo.transfer.mm.drawing import Predictor

    with opened.running():
        predictor = Predictor(opened.cfg, opened.weights, opened.name, str(device), args.threshold)
    rows = []
    try:
        for image in images:
            with opened.running():
                rows.append(predictor(Path(image), args.out))
    finally:  # what was found before an image that cannot be read is kept
        if rows:
            (args.out / "predictions.json").write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")
    print(f"{len(rows)} picture{'s' if len(rows) > 1 else ''} and predictions.json in {args.out}")
    return 0
