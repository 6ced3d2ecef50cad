"""Networks of timm beside a winner: the transformer and the CNN of a fixed list that cost nearly as much."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping
from typing import Any

import timm
import torch
from torch import nn

from s3zoo.checks import typed
from s3zoo.compat import count_macs, refuse_empty_maps
from s3zoo.search.budget import Budget
from s3zoo.search.records import COSTS

Costs = dict[str, dict[str, float]]  # by name

LISTS = {
    "transformer": ("test_vit", "test_vit2", "test_vit3", "vit_tiny_patch16_224", "vit_small_patch16_224"),
    "cnn": (
        "test_resnet", "test_convnext", "test_efficientnet", "lcnet_050", "mobilenetv3_small_050", "resnet10t",
        "convnext_atto", "resnet18", "resnet50",
    ),
}  # fmt: skip


def check_chosen(content: Any) -> None:
    """What a run's folder says to have chosen: networks of the lists."""
    typed(content, {"*": {"model": str, "within_budget": bool, "from_scratch?": bool, **COSTS}}, "")
    for kind, row in content.items():
        if row["model"] not in LISTS.get(kind, ()):
            raise ValueError(f"its {kind!r} is {row['model'][:60]!r}, which is not in the list of these")


def build(name: str, shape: Mapping[str, Any]) -> nn.Module:
    """One of them with random weights for images of this shape; a ViT has at least 8 x 8 patches."""
    options: dict[str, Any] = {"num_classes": shape["num_classes"], "in_chans": shape["in_chans"]}
    if "vit" in name:
        options |= {"img_size": shape["img_size"], "patch_size": max(1, min(16, shape["img_size"] // 8))}
    return timm.create_model(name, pretrained=False, **options)


@functools.cache
def _sizes(name: str, img_size: int, in_chans: int, num_classes: int) -> dict[str, float] | None:
    """Parameters and MACs; None if it is made for larger images."""
    with torch.device("meta"):
        model = build(name, {"img_size": img_size, "in_chans": in_chans, "num_classes": num_classes}).eval()
        model.requires_grad_(False)  # torch's counter fails where a parameter is an input (test_vit3)
        refuse_empty_maps(model)
        try:
            macs, _ = count_macs(lambda: model(torch.zeros(1, in_chans, img_size, img_size)))
        except RuntimeError:  # a map has become smaller than a kernel
            return None
    return {"params": float(sum(p.numel() for p in model.parameters())), "macs": float(macs)}


def price_list(
    kind: str, shape: Mapping[str, Any], latency: Callable[[str], float] | None, limit: float = math.inf
) -> Costs:
    """Parameters, MACs and, where it can be measured, latency of the networks of a list that take such images.

    They are timed from the smallest on, until one takes twice the limit.
    """
    known = [(name, costs) for name in LISTS[kind] if (costs := _sizes(name, **shape)) is not None]
    if latency is None:
        return dict(known)
    timed: Costs = {}
    for name, costs in sorted(known, key=lambda each: each[1]["macs"]):
        timed[name] = costs | {"latency": latency(name)}
        if timed[name]["latency"] > 2 * limit:
            break
    return timed


def nearest(known: Costs, target: Mapping[str, float], budget: Budget, metric: str) -> dict[str, Any] | None:
    """The network whose latency or MACs, say, are nearest to the target's; within the budget if any is. None if there
    are none."""
    if not known:
        return None
    limits = Budget({m: limit for m, limit in budget.limits.items() if m != "latency" or metric == "latency"})
    inside = {name: costs for name, costs in known.items() if limits.allows(costs)} or known
    name = min(inside, key=lambda each: abs(inside[each][metric] / target[metric] - 1))
    return {"model": name, "within_budget": limits.allows(inside[name]), **inside[name]}
