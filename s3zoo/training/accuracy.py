"""How many images of a split a network classifies rightly, and how sure that number is."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from s3zoo.files import check_count, check_run, read_json, write_json
from s3zoo.training.distributed import Ranks
from s3zoo.training.loop import Stop
from s3zoo.training.resumable import AUTOSAVE_SECONDS, Row, resumable


@torch.no_grad()
def hits(model: nn.Module, images: Tensor, targets: Tensor, device: torch.device) -> Tensor:
    return model(images.to(device)).argmax(1).cpu() == targets


def resumable_accuracy(
    path: Path, model: nn.Module, batches: Callable[[int], Iterable[tuple[Tensor, Tensor]]], ranks: Ranks, stop: Stop,
    *, run: str = "",
) -> dict[str, float]:  # fmt: skip
    """Top-1 accuracy in percent, with the 95 % interval of Wilson, of a whole split. `batches(n)` begins with batch n.

    The count so far is in a file, which a later process continues; the file of another run is refused. Images come one
    after the other, so the first rank counts and the others wait.
    """
    count = _Count(path, ranks, run)

    def counted(firsts: list[int]) -> Iterator[Row]:
        for first in firsts:
            for images, targets in batches(first):
                right = int(hits(model, images, targets, ranks.device).sum()) if len(targets) else 0
                yield {"right": right, "images": len(targets)}

    def reached() -> str:
        return f"scoring: stopped after {count.state['images']} images"

    model.eval()
    items = [] if count.state["whole"] else [count.state["batches"]]
    for _ in resumable(items, counted, count, ranks, stop, reached=reached, every=AUTOSAVE_SECONDS):
        pass
    if items and count.state["images"]:
        count.write(whole=True)
    right, total = count.state["right"], count.state["images"]
    if not total:
        raise ValueError("None of the images can be read; mend them, and the same command goes on.")
    low, high = wilson(right, total)
    return {"top1": 100 * right / total, "low": 100 * low, "high": 100 * high, "images": total}


class _Count:
    """How many images of how many batches were right: a file that is replaced, not appended to."""

    def __init__(self, path: Path, ranks: Ranks, run: str) -> None:
        self.path, self.ranks = path, ranks
        begun: dict[str, Any] = {"batches": 0, "right": 0, "images": 0, "whole": False} | ({"run": run} if run else {})
        found = ranks.from_first(read_json(path, check_count) if ranks.first and path.exists() else begun)
        check_run(found.get("run", ""), run, path)
        self.state = found if found["images"] else begun  # what could not be read may be mended by now

    def append(self, rows: Iterable[Row]) -> None:
        for row in rows:
            self.state["batches"] += 1
            self.state |= {key: self.state[key] + value for key, value in row.items()}
        self.write()

    def write(self, **changes: Any) -> None:
        self.state |= changes
        if self.ranks.first:
            write_json(self.path, self.state)


def wilson(right: int, total: int) -> tuple[float, float]:
    """Wilson's 95 % interval of a share."""
    p, z = right / total, 1.96
    middle = (p + z * z / (2 * total)) / (1 + z * z / total)
    half = z * math.sqrt(p * (1 - p) / total + z * z / (4 * total * total)) / (1 + z * z / total)
    return max(0.0, middle - half), min(1.0, middle + half)  # rounding would leave it where all are right, or none
