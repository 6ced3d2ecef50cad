"""How many images of a split a network classifies rightly, and how sure that number is."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable
from pathlib import Path

import torch
from torch import Tensor, nn

from s3zoo.files import read_json, write_json
from s3zoo.training.checkpoint import AUTOSAVE_SECONDS
from s3zoo.training.distributed import Ranks
from s3zoo.training.loop import Interrupted, Stop


@torch.no_grad()
def hits(model: nn.Module, images: Tensor, targets: Tensor, device: torch.device) -> Tensor:
    return (model(images.to(device)).argmax(1).cpu() == targets).cpu()


def accuracy(model: nn.Module, batches: Iterable[tuple[Tensor, Tensor]], device: torch.device) -> dict[str, float]:
    """Top-1 accuracy in percent, with the 95 % interval of Wilson, over a whole split."""
    model.eval()
    right = total = 0
    for images, targets in batches:
        right += int(hits(model, images, targets, device).sum())
        total += len(targets)
    return _with_interval(right, total)


def resumable_accuracy(
    path: Path, model: nn.Module, batches: Callable[[int], Iterable[tuple[Tensor, Tensor]]], ranks: Ranks, stop: Stop
) -> dict[str, float]:
    """The same with the count in a file, where a later process takes it up. `batches(n)` begins with batch n."""
    state = {"batches": 0, "right": 0, "images": 0, "whole": False}
    state = ranks.from_first(read_json(path) if ranks.first and path.exists() else state)

    def secure() -> None:
        if ranks.first:
            write_json(path, state)

    model.eval()
    secured = time.monotonic()
    for images, targets in () if state["whole"] else batches(state["batches"]):
        state["batches"] += 1
        state["images"] += len(targets)
        state["right"] += int(hits(model, images, targets, ranks.device).sum()) if len(targets) else 0
        asked = any(ranks.gather([stop.asked]))
        if asked or time.monotonic() - secured > AUTOSAVE_SECONDS:
            secure()
            secured = time.monotonic()
        if asked:
            raise Interrupted(f"scoring: stopped after {state['images']} images; the same command resumes there.")
    if not state["whole"]:
        state = ranks.from_first(state | {"whole": True})  # unlike devices may differ in an image
        secure()
    return _with_interval(state["right"], state["images"])


def _with_interval(right: int, total: int) -> dict[str, float]:
    low, high = wilson(right, total)
    return {"top1": 100 * right / total, "low": 100 * low, "high": 100 * high, "images": total}


def wilson(right: int, total: int, z: float = 1.96) -> tuple[float, float]:
    p = right / total
    middle = (p + z * z / (2 * total)) / (1 + z * z / total)
    half = z * math.sqrt(p * (1 - p) / total + z * z / (4 * total * total)) / (1 + z * z / total)
    return middle - half, middle + half
