"""`s3zoo evaluate MODEL… --data DATA`: accuracy, size, speed and memory of models, in one table.

Images are seen by timm's own transforms with the model's own settings, as timm's validation script does, so the numbers
are timm's.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import statistics
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import torch
from PIL import Image
from timm.data import resolve_model_data_config
from torch import Tensor, nn
from torch.profiler import ProfilerActivity, profile

from s3zoo import cost
from s3zoo.checks import Count, Range, Threads, Workers, typed
from s3zoo.compat import count_macs
from s3zoo.drawing import aligned
from s3zoo.families import FAMILIES
from s3zoo.models.folder import check_finite
from s3zoo.models.open import label_names, open_model
from s3zoo.training.accuracy import wilson
from s3zoo.training.config import Data
from s3zoo.training.datasets import DATASETS, find_data
from s3zoo.training.distributed import start
from s3zoo.training.images import as_validated, make_loader
from s3zoo.training.splits import TEST_NAMES, TRAIN_NAMES, Split, open_split

PASSES, SECONDS = 20, 3.0  # of the measurement of speed: so many passes or so long, at least three
LIMITS = {
    "batch_size": Annotated[int, Range(1, 100_000)],
    "limit": Count,
    "workers": Workers,
}
COLUMNS = ("top1", "top5", "params", "macs", "throughput", "memory")


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="s3zoo evaluate",
        description="Accuracy with a 95 % interval, size, speed and memory of models. Without --data, no accuracy.",
        epilog="example: s3zoo evaluate s3_tiny resnet50 runs/mine --data /path/to/imagenet --json",
    )
    add = parser.add_argument
    add("models", metavar="MODEL", nargs="+", help="timm name, hf-hub:…, or a folder with a model or a run")
    add_options(parser, limit="only N images, drawn at random and always the same (0: all)", required=False)
    add("--threads", type=int, default=0, help="of the CPU (0: as torch has them)")
    add("--sort", default="top1", choices=COLUMNS, help="column to sort by, best first (default: top1)")
    add("--no-speed", action="store_true", help="measure neither speed nor memory")
    add("--untrained", action="store_true", help="random weights: for size and speed where none are published")
    add("--compile", action="store_true", help="with torch.compile: minutes before the first image")
    add("--json", action="store_true", help="a JSON list instead of the table")
    arguments = parser.parse_args(argv)
    check_options(arguments)
    if arguments.untrained and arguments.data:
        raise ValueError("--untrained networks have no accuracy worth measuring; leave --data out.")
    if arguments.threads:
        torch.set_num_threads(typed(arguments.threads, Threads, "--threads"))
    device = start(arguments.device).device
    split = chosen_split(arguments) if arguments.data else None
    rows = []
    for spec in arguments.models:
        model = open_model(spec, pretrained=not arguments.untrained).to(device).eval()
        row: dict[str, Any] = {"model": spec}
        sizes = size(model, device)
        if arguments.compile:
            model.compile()
        if split is not None:
            row |= score(model, spec, split, device, arguments.batch_size, arguments.workers, arguments.limit)
        row |= sizes
        if not arguments.no_speed:
            row |= speed(model, device, arguments.batch_size)
        rows.append(row)
        if len(arguments.models) > 1:
            print(f"s3zoo: {spec} done", file=sys.stderr)
    rows = sort_rows(rows, arguments.sort)
    print(json.dumps(rows, indent=1) if arguments.json else table(rows))
    return 0


def add_options(parser: argparse.ArgumentParser, limit: str, required: bool) -> None:
    """On which images, and how, accuracy is measured."""
    add = parser.add_argument
    folders = f"folder with test/ or val/ or classes; {', '.join(DATASETS)}; torch/…; hfds/…"
    add("--data", metavar="DATA", required=required, help=folders)
    add("--root", default="", help="with a dataset's name: where it is, or is to be downloaded to")
    add("--download", action="store_true", help="let torchvision download the dataset")
    add("--split", help="which split (default: the test or validation split)")
    add("--limit", type=int, default=0, metavar="N", help=limit)
    add("--batch-size", type=int, default=32)
    add("--workers", type=int, default=0)
    add("--device", default="auto", help="cpu, cuda or auto")


def check_options(arguments: argparse.Namespace) -> None:
    for name, kind in LIMITS.items():
        typed(getattr(arguments, name), kind, f"--{name.replace('_', '-')}")


# Accuracy


def chosen_split(arguments: argparse.Namespace) -> Split:
    """The images that the options name; what is odd about them is said."""
    split = test_split(find_data(arguments.data, arguments.root, arguments.download), arguments.split)
    if split.warning:
        print(f"s3zoo: {split.warning}", file=sys.stderr)
    return split


def test_split(data: Data, wanted: str | None) -> Split:
    """The test images; a folder may also be the split itself, with classes in it."""
    root = Path(data.root).expanduser()
    names = [wanted] if wanted else [*TEST_NAMES, *TRAIN_NAMES]
    if not data.name and root.is_dir() and not any((root / n).exists() or (root / f"{n}.tar").exists() for n in names):
        if wanted:
            raise ValueError(f"{str(root)!r} holds no split called {wanted!r}; give another --split.")
        root = root.resolve()
        data = dataclasses.replace(data, root=str(root.parent), test_split=root.name, train_split="")
        return open_split(data, root.name)
    if wanted and wanted == data.train_split:
        return open_split(data, data.train_split)
    return open_split(dataclasses.replace(data, test_split=wanted or data.test_split), wanted or data.test_split)


class Seen:
    """Chunks of image indices -> tensors as timm's transform makes them, None where unreadable; for a loader."""

    def __init__(self, split: Split, model: nn.Module) -> None:
        self.split = split
        _, self.transform, self.mode = as_validated(model)

    def __getitem__(self, indices: np.ndarray) -> list[Tensor | None]:
        images: list[Image.Image | None] = [self.split.image(int(i), self.mode) for i in indices]
        return [None if image is None else self.transform(image) for image in images]


def label_numbers(model: Any, spec: str, split: Split) -> np.ndarray:
    """The model's number of each class of the data: by name where names are known, else by order."""
    known, classes = label_names(model), split.classes
    if known is not None and set(classes) <= set(known):
        return np.array([known.index(name) for name in classes])
    if len(classes) != model.num_classes:
        raise ValueError(
            f"The model {spec} has {model.num_classes} classes, but {split.where} has {len(classes)}; give data with"
            " the classes that the model knows, or train it on these."
        )
    if model.pretrained_cfg.get("label_names"):
        raise ValueError(
            f"The model {spec} knows other classes ({', '.join(known[:3])}, …) than {split.where}"  # type: ignore[index]
            f" ({', '.join(classes[:3])}, …); give data with the model's classes, or train it on these."
        )
    return np.arange(len(classes))


def logits_of(
    model: nn.Module, split: Split, indices: np.ndarray, device: torch.device, batch_size: int, workers: int
) -> Iterator[tuple[np.ndarray, Tensor]]:
    """Batch by batch the readable images' indices and the model's logits."""
    chunks = [indices[begin : begin + batch_size] for begin in range(0, len(indices), batch_size)]
    loader = make_loader(Seen(split, model), chunks, workers)
    for chunk, tensors in zip(chunks, loader, strict=True):
        good = np.array([tensor is not None for tensor in tensors])
        if good.any():
            with torch.inference_mode():
                yield chunk[good], model(torch.stack([t for t in tensors if t is not None]).to(device)).float().cpu()


def score(
    model: nn.Module, spec: str, split: Split, device: torch.device, batch_size: int, workers: int, limit: int
) -> dict[str, Any]:
    """Top-1 and top-5 in percent with Wilson's 95 % intervals."""
    numbers = label_numbers(model, spec, split)
    indices = np.arange(len(split))
    if 0 < limit < len(indices):
        indices = np.sort(np.random.default_rng(0).permutation(indices)[:limit])
    first = five = total = 0
    for chunk, logits in logits_of(model, split, indices, device, batch_size, workers):
        check_finite({"its answers": logits}, spec)
        targets = torch.from_numpy(numbers[split.targets[chunk]])
        best = logits.topk(min(5, logits.shape[1]), dim=1).indices
        first += int((best[:, 0] == targets).sum())
        five += int((best == targets[:, None]).any(1).sum())
        total += len(targets)
    if not total:
        raise ValueError(f"None of the {len(indices)} images of {split.where} can be read; mend them, or give others.")
    row: dict[str, Any] = {"images": total, "unreadable": len(indices) - total}
    for name, right in (("top1", first), ("top5", five)):
        low, high = wilson(right, total)
        row |= {name: 100 * right / total, f"{name}_low": 100 * low, f"{name}_high": 100 * high}
    return row


# Size, speed, memory


def input_size(model: Any) -> tuple[int, int, int]:
    return tuple(resolve_model_data_config(model, use_test_size=True)["input_size"])


def size(model: Any, device: torch.device) -> dict[str, Any]:
    """Parameters and MACs of one image: in closed form for networks of the zoo, counted in a pass for others."""
    chans, height, width = input_size(model)
    params = sum(p.numel() for p in model.parameters())
    if hasattr(model, "arch") and not FAMILIES[model.arch.family].reads_tower:
        macs = cost.macs(model.arch, img_size=(height, width), num_classes=model.num_classes, in_chans=chans)
    else:
        macs, _ = count_macs(lambda: model(torch.zeros(1, chans, height, width, device=device)))
    return {"params": params, "macs": macs, "input_size": [chans, height, width]}


def speed(model: nn.Module, device: torch.device, batch_size: int) -> dict[str, Any]:
    """Images a second (median pass), and the bytes of weights, images and activations at their peak."""
    images = torch.randn(batch_size, *input_size(model), device=device)
    on_gpu = device.type == "cuda"
    times: list[float] = []
    with torch.inference_mode():
        memory = peak_memory(model, images)  # the first pass, which also warms up
        while len(times) < 3 or (len(times) < PASSES and sum(times) < SECONDS):
            begin = time.perf_counter()
            model(images)
            if on_gpu:
                torch.cuda.synchronize()
            times.append(time.perf_counter() - begin)
    here = {"batch_size": batch_size, "device": device.type, "threads": torch.get_num_threads()}
    return {"throughput": batch_size / statistics.median(times), "memory": memory, **here}


def peak_memory(model: nn.Module, images: Tensor) -> int:
    if images.is_cuda:
        torch.cuda.reset_peak_memory_stats(images.device)
        model(images)
        return torch.cuda.max_memory_allocated(images.device)
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # else it writes to the terminal
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        model(images)
    # Every allocation (+) and release (-) of the pass; torch has a public view of their sums alone.
    events = [e for e in profiler.profiler.kineto_results.events() if e.name() == "[memory]"]  # type: ignore[union-attr]
    changes = [e.nbytes() for e in sorted(events, key=lambda e: e.start_ns())]
    fixed = sum(t.nbytes for t in model.state_dict().values()) + images.nbytes
    return fixed + int(max(np.cumsum([0, *changes])))


# What is printed


def sort_rows(rows: Sequence[dict[str, Any]], column: str) -> list[dict[str, Any]]:
    """Best first: accuracy and throughput downwards, costs upwards."""
    if not all(column in row for row in rows):
        column = "params"
    sign = -1 if column in ("top1", "top5", "throughput") else 1
    return sorted(rows, key=lambda row: sign * row[column])


def table(rows: Sequence[dict[str, Any]]) -> str:
    heads = {
        "model": "model", "input_size": "pixels", "top1": "top-1 (95 % interval)", "top5": "top-5", "params": "params",
        "macs": "MACs", "throughput": "images/s", "memory": "memory",
    }  # fmt: skip
    columns = [key for key in heads if key in rows[0]]
    cells = [[heads[key] for key in columns]] + [[_cell(row, key) for key in columns] for row in rows]
    lines = [aligned(cells, "<" + ">" * (len(columns) - 1))]
    if "images" in rows[0]:
        lost = max(row["unreadable"] for row in rows)
        lines.append(f"{rows[0]['images']} images" + (f", {lost} more could not be read" if lost else ""))
    if "throughput" in rows[0]:
        row = rows[0]
        lines.append(f"speed and memory: batches of {row['batch_size']} on {row['device']}, {row['threads']} thread(s)")
    return "\n".join(lines)


def _cell(row: dict[str, Any], key: str) -> str:
    value = row[key]
    if key == "top1":
        return f"{value:.2f} ({row['top1_low']:.2f} to {row['top1_high']:.2f})"
    if key == "macs":
        return f"{value / 1e9:.2f}G" if value >= 1e8 else f"{value / 1e6:.2f}M"
    return {
        "input_size": lambda: f"{value[1]}x{value[2]}",
        "top5": lambda: f"{value:.2f}",
        "params": lambda: f"{value / 1e6:.3g}M",
        "throughput": lambda: f"{value:.3g}" if value < 1000 else f"{value:,.0f}",
        "memory": lambda: f"{value / 2**20:.0f} MiB" if value >= 2**20 else f"{value / 2**10:.0f} KiB",
        "model": lambda: str(value),
    }[key]()
