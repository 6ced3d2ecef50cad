"""How many images of a split a network classifies rightly, and how sure that number is."""

from __future__ import annotations

import math
from collections.abc import Iterable

import torch
from torch import Tensor, nn


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
    low, high = wilson(right, total)
    return {"top1": 100 * right / total, "low": 100 * low, "high": 100 * high, "images": total}


def wilson(right: int, total: int, z: float = 1.96) -> tuple[float, float]:
    p = right / total
    middle = (p + z * z / (2 * total)) / (1 + z * z / total)
    half = z * math.sqrt(p * (1 - p) / total + z * z / (4 * total * total)) / (1 + z * z / total)
    return middle - half, middle + half
