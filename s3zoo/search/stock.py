"""Networks of timm beside a winner: the transformer and the CNN of a fixed list that cost nearly as much."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from typing import Any

import timm
import torch
from torch import nn

from s3zoo.compat import count_macs
from s3zoo.search.budget import Budget

LISTS = {
    "transformer": ("test_vit", "test_vit2", "test_vit3", "vit_tiny_patch16_224", "vit_small_patch16_224"),
    "cnn": (
        "test_resnet", "test_convnext", "test_efficientnet", "lcnet_050", "mobilenetv3_small_050", "resnet10t",
        "convnext_atto", "resnet18", "resnet50",
    ),
}  # fmt: skip


def build(name: str, shape: Mapping[str, Any]) -> nn.Module:
    """One of them with random weights for images of this shape; a ViT has at least 8 x 8 patches."""
    options: dict[str, Any] = {"num_classes": shape["num_classes"], "in_chans": shape["in_chans"]}
    if "vit" in name:
        options |= {"img_size": shape["img_size"], "patch_size": max(1, min(16, shape["img_size"] // 8))}
    return timm.create_model(name, pretrained=False, **options)


def costs_of(
    model: nn.Module, shape: Mapping[str, Any], latency: Callable[[nn.Module], float] | None
) -> dict[str, float]:
    """Parameters, MACs and, where it can be measured, latency."""
    size = shape["img_size"]
    images = torch.zeros(1, shape["in_chans"], size, size)
    model.eval().requires_grad_(False)  # torch's counter fails where a parameter is an input (test_vit3)
    macs, _ = count_macs(lambda: model(images))
    found = {"params": float(sum(p.numel() for p in model.parameters())), "macs": float(macs)}
    return found if latency is None else found | {"latency": latency(model)}


def nearest(
    kind: str, shape: Mapping[str, Any], target: Mapping[str, float], budget: Budget,
    latency: Callable[[nn.Module], float] | None,
) -> dict[str, Any] | None:  # fmt: skip
    """The network of a list whose latency, else whose MACs are nearest to the target's; within the budget if any is.

    None if all of them are made for larger images.
    """
    metric, known = "macs" if latency is None else "latency", {}
    for name in LISTS[kind]:
        with contextlib.suppress(RuntimeError):  # a map has become smaller than a kernel
            known[name] = costs_of(build(name, shape), shape, latency)
    if not known:
        return None
    limits = Budget({m: limit for m, limit in budget.limits.items() if m != "latency" or latency is not None})
    inside = {name: costs for name, costs in known.items() if limits.allows(costs)} or known
    name = min(inside, key=lambda each: abs(inside[each][metric] / target[metric] - 1))
    return {"model": name, "within_budget": limits.allows(inside[name]), **inside[name]}
