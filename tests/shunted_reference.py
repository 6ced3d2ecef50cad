"""Shunted as its authors' code runs it, in plain tensor code on the official names and layouts.

Of s3zoo only `Arch` is used, to say which network is meant.
"""

from __future__ import annotations

import math
import random
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from s3zoo.arch import Arch, ShuntedBlock, Stage

RATES = (8, 4, 2, 1)
# name -> depths, extra convolutions of the stem, parameters, entries of the state dict, GMACs at 224
PUBLISHED = {
    "shunted_tiny": ((1, 2, 4, 1), 0, 11_553_576, 260, 2.147),
    "shunted_small": ((2, 4, 12, 1), 1, 22_401_256, 596, 4.993),
    "shunted_base": ((3, 4, 24, 2), 2, 39_614_376, 1010, 8.150),
}


def published_arch(name: str) -> Arch:
    depths, stem_depth, *_ = PUBLISHED[name]
    table = zip((64, 128, 256, 512), (2, 4, 8, 16), (8, 8, 4, 4), depths, strict=True)
    stages = tuple(Stage(dim, (ShuntedBlock(heads, 32, ratio),) * depth) for dim, heads, ratio, depth in table)
    return Arch("shunted", stages, stem_depth=stem_depth)


def random_arch(seed: int) -> Arch:
    """Any widths, depths and ratios; the official code ties the heads' width to the stage's, ours does not."""
    rng = random.Random(seed)
    stages = []
    for i in range(4):
        blocks = tuple(
            ShuntedBlock(
                rng.choice([2, 4, 6] if i < 3 else [1, 2, 3]), rng.choice([2, 3, 8]), rng.choice([0.5, 2, 3.3])
            )
            for _ in range(rng.randint(1, 2))
        )
        stages.append(Stage(rng.randint(4, 20), blocks))
    return Arch("shunted", tuple(stages), stem_depth=rng.randint(0, 2))


def shapes(arch: Arch, num_classes: int = 1000, in_chans: int = 3) -> dict[str, tuple[int, ...]]:
    """Names and shapes of an official checkpoint."""
    out: dict[str, tuple[int, ...]] = {}

    def layer(name: str, *shape: int, bias: bool = True) -> None:
        out[f"{name}.weight"] = shape
        if bias:
            out[f"{name}.bias"] = shape[:1]

    def batch_norm(name: str) -> None:
        layer(name, 64)
        out.update({f"{name}.running_mean": (64,), f"{name}.running_var": (64,), f"{name}.num_batches_tracked": ()})

    stem = "patch_embed1.conv."
    layer(stem + "0", 64, in_chans, 7, 7, bias=False)
    batch_norm(stem + "1")
    for i in range(arch.stem_depth):
        layer(f"{stem}{3 * i + 3}", 64, 64, 3, 3, bias=False)
        batch_norm(f"{stem}{3 * i + 4}")
    layer(f"{stem}{3 * arch.stem_depth + 3}", arch.embed_dims[0], 64, 2, 2)
    for n, (stage, rate) in enumerate(zip(arch.stages, RATES, strict=True), start=1):
        D = stage.embed_dim
        if n > 1:
            layer(f"patch_embed{n}.proj", D, arch.embed_dims[n - 2], 3, 3)
        layer(f"patch_embed{n}.norm", D)
        for j, b in enumerate(stage.blocks):
            k = f"block{n}.{j}."
            inner, hidden = b.num_heads * b.head_dim, int(D * b.mlp_ratio)
            layer(k + "norm1", D)
            layer(k + "attn.q", inner, D)
            if rate > 1:
                for branch, kernel in ((1, rate), (2, rate // 2)):
                    layer(f"{k}attn.sr{branch}", D, D, kernel, kernel)
                    layer(f"{k}attn.norm{branch}", D)
                    layer(f"{k}attn.kv{branch}", inner, D)
                    layer(f"{k}attn.local_conv{branch}", inner // 2, 1, 3, 3)
            else:
                layer(k + "attn.kv", 2 * inner, D)
                layer(k + "attn.local_conv", inner, 1, 3, 3)
            layer(k + "attn.proj", D, inner)
            layer(k + "norm2", D)
            layer(k + "mlp.fc1", hidden, D)
            layer(k + "mlp.dwconv.dwconv", hidden, 1, 3, 3)
            layer(k + "mlp.fc2", D, hidden)
        layer(f"norm{n}", D)
    layer("head", num_classes, arch.embed_dims[-1])
    return out


def random_state(arch: Arch, seed: int = 0, **kwargs: Any) -> dict[str, Tensor]:
    """An official checkpoint with every tensor random, statistics included."""
    g = torch.Generator().manual_seed(seed)
    state = {}
    for name, shape in shapes(arch, **kwargs).items():
        if name.endswith("num_batches_tracked"):
            state[name] = torch.randint(1, 1000, (), generator=g)
        elif name.endswith("running_var"):
            state[name] = torch.rand(shape, generator=g) + 0.5
        elif len(shape) == 1:
            scale = name.endswith("weight")  # of a norm
            state[name] = 0.2 * torch.randn(shape, generator=g) + (1.0 if scale else 0.0)
        else:
            state[name] = torch.randn(shape, generator=g) / math.sqrt(math.prod(shape[1:]))
    return state


def layer_norm(x: Tensor, s: dict[str, Tensor], key: str, eps: float) -> Tensor:
    centred = x - x.mean(-1, keepdim=True)
    normed = centred / (centred.square().mean(-1, keepdim=True) + eps).sqrt()
    return normed * s[key + ".weight"] + s[key + ".bias"]


def gelu(x: Tensor) -> Tensor:
    return x * 0.5 * (1 + torch.erf(x / math.sqrt(2)))


def linear(x: Tensor, s: dict[str, Tensor], key: str) -> Tensor:
    return x @ s[key + ".weight"].T + s[key + ".bias"]


def depthwise(x: Tensor, s: dict[str, Tensor], key: str) -> Tensor:
    """A 3 x 3 convolution of every channel of (B, H, W, C) by itself, as nine shifted products."""
    _, H, W, _ = x.shape
    padded = F.pad(x, (0, 0, 1, 1, 1, 1))
    kernel = s[key + ".weight"][:, 0]
    taps = (padded[:, i : i + H, j : j + W] * kernel[:, i, j] for i in range(3) for j in range(3))
    return sum(taps, s[key + ".bias"])


def attend(q: Tensor, k: Tensor, v: Tensor, heads: int) -> Tensor:
    """(B, N, h * d), (B, M, h * d) twice -> (B, N, h * d)"""
    q, k, v = (y.reshape(y.shape[0], y.shape[1], heads, -1).transpose(1, 2) for y in (q, k, v))
    logits = torch.einsum("bhid,bhjd->bhij", q, k) * q.shape[-1] ** -0.5
    weights = (logits - logits.amax(-1, keepdim=True)).exp()
    y = torch.einsum("bhij,bhjd->bihd", weights / weights.sum(-1, keepdim=True), v)
    return y.reshape(y.shape[0], y.shape[1], -1)


def attention(x: Tensor, s: dict[str, Tensor], k: str, heads: int, rate: int) -> Tensor:
    B, H, W, _ = x.shape
    q = linear(x, s, k + "q").flatten(1, 2)
    inner = q.shape[-1]
    if rate == 1:
        kv = linear(x, s, k + "kv")
        key, value = kv[..., :inner], kv[..., inner:]
        y = attend(q, key.flatten(1, 2), value.flatten(1, 2), heads).reshape(B, H, W, inner)
        return linear(y + depthwise(value, s, k + "local_conv"), s, k + "proj")
    parts = []
    for branch, kernel, queries in ((1, rate, q[..., : inner // 2]), (2, rate // 2, q[..., inner // 2 :])):
        merged = F.conv2d(x.permute(0, 3, 1, 2), s[f"{k}sr{branch}.weight"], s[f"{k}sr{branch}.bias"], stride=kernel)
        merged = gelu(layer_norm(merged.permute(0, 2, 3, 1), s, f"{k}norm{branch}", 1e-5))
        kv = linear(merged, s, f"{k}kv{branch}")
        key, value = kv[..., : inner // 2], kv[..., inner // 2 :]
        value = value + depthwise(value, s, f"{k}local_conv{branch}")
        parts.append(attend(queries, key.flatten(1, 2), value.flatten(1, 2), heads // 2))
    return linear(torch.cat(parts, dim=-1).reshape(B, H, W, inner), s, k + "proj")


def oracle(s: dict[str, Tensor], arch: Arch, x: Tensor) -> tuple[Tensor, list[Tensor]]:
    """The logits and the maps (B, C, H, W) of the stages, by the rules of the official code."""
    maps: list[Tensor] = []
    for i in range(arch.stem_depth + 1):
        conv, norm = f"patch_embed1.conv.{3 * i}", f"patch_embed1.conv.{3 * i + 1}"
        x = F.conv2d(x, s[conv + ".weight"], stride=1 if i else 2, padding=1 if i else 3)
        mean, var, weight, bias = (
            s[f"{norm}.{p}"][:, None, None] for p in ("running_mean", "running_var", "weight", "bias")
        )
        x = ((x - mean) / (var + 1e-5).sqrt() * weight + bias).clamp(min=0)
    last = f"patch_embed1.conv.{3 * arch.stem_depth + 3}"
    x = F.conv2d(x, s[last + ".weight"], s[last + ".bias"], stride=2)
    for n, (stage, rate) in enumerate(zip(arch.stages, RATES, strict=True), start=1):
        if n > 1:
            x = F.conv2d(x, s[f"patch_embed{n}.proj.weight"], s[f"patch_embed{n}.proj.bias"], stride=2, padding=1)
        x = layer_norm(x.permute(0, 2, 3, 1), s, f"patch_embed{n}.norm", 1e-5)
        for j, b in enumerate(stage.blocks):
            k = f"block{n}.{j}."
            x = x + attention(layer_norm(x, s, k + "norm1", 1e-6), s, k + "attn.", b.num_heads, rate)
            y = linear(layer_norm(x, s, k + "norm2", 1e-6), s, k + "mlp.fc1")
            x = x + linear(gelu(y + depthwise(y, s, k + "mlp.dwconv.dwconv")), s, k + "mlp.fc2")
        x = layer_norm(x, s, f"norm{n}", 1e-6).permute(0, 3, 1, 2)
        maps.append(x)
    return linear(x.mean((2, 3)), s, "head"), maps
