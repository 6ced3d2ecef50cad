"""AutoFormer as its authors' code runs a subnet of a published supernet, in plain tensor code: nothing of s3zoo.

A supernet is a state dict with the official names; a subnet is (embed_dim, heads of each block, MLP ratio of each
block). The relative position tensors are built in full, tokens x tokens x head_dim.
"""

from __future__ import annotations

import argparse
import random
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor


class Supernet(NamedTuple):
    """The shape of a published supernet and the choices that it was trained with."""

    embed_dim: int
    num_heads: int
    depth: int
    embed_dims: tuple[int, ...]
    depths: tuple[int, ...]
    heads: tuple[int, ...]
    mlp_ratios: tuple[float, ...]


SUPERNETS = {
    "tiny": Supernet(256, 4, 14, (192, 216, 240), (12, 13, 14), (3, 4), (3.5, 4.0)),
    "small": Supernet(448, 7, 14, (320, 384, 448), (12, 13, 14), (5, 6, 7), (3.0, 3.5, 4.0)),
    "base": Supernet(640, 10, 16, (528, 576, 624), (14, 15, 16), (8, 9, 10), (3.0, 3.5, 4.0)),
}


class Subnet(NamedTuple):
    embed_dim: int
    heads: tuple[int, ...]
    mlp_ratios: tuple[float, ...]


PUBLISHED = {
    "tiny": Subnet(
        192,
        (3, 3, 3, 3, 3, 3, 3, 3, 3, 3, 4, 3, 3),
        (3.5, 3.5, 3, 3.5, 3, 3, 4, 4, 3.5, 4, 3.5, 4, 3.5),
    ),
    "small": Subnet(
        384,
        (6, 6, 5, 7, 5, 5, 5, 6, 6, 7, 7, 6, 7),
        (3, 3.5, 3, 3.5, 4, 4, 4, 4, 4, 4, 4, 3.5, 4),
    ),
    "base": Subnet(
        576,
        (9, 9, 9, 9, 9, 10, 9, 9, 10, 9, 10, 9, 9, 10),
        (3.5, 3.5, 4, 3.5, 4, 3.5, 3.5, 3, 4, 4, 3, 4, 3, 3.5),
    ),
}


def random_subnet(shape: Supernet, rng: random.Random) -> Subnet:
    depth = rng.choice(shape.depths)
    return Subnet(
        rng.choice(shape.embed_dims),
        tuple(rng.choice(shape.heads) for _ in range(depth)),
        tuple(rng.choice(shape.mlp_ratios) for _ in range(depth)),
    )


def random_supernet(
    embed_dim: int, num_heads: int, depth: int, *, patches: int = 196, patch_size: int = 16, classes: int = 1000, seed=0
) -> dict[str, Tensor]:
    """Every tensor random, biases, norms and tables too, at scales that keep the logits around 1."""
    generator = torch.Generator().manual_seed(seed)

    def normal(*size: int, std: float = 0.2, mean: float = 0.0) -> Tensor:
        return torch.empty(size).normal_(mean, std, generator=generator)

    def linear(name: str, out: int, inp: int) -> dict[str, Tensor]:
        return {f"{name}.weight": normal(out, inp, std=inp**-0.5), f"{name}.bias": normal(out)}

    def norm(name: str) -> dict[str, Tensor]:
        return {f"{name}.weight": normal(embed_dim, mean=1.0), f"{name}.bias": normal(embed_dim)}

    E, head_dim = embed_dim, embed_dim // num_heads
    weights = {
        "pos_embed": normal(1, patches + 1, E),
        "cls_token": normal(1, 1, E),
        "patch_embed_super.proj.weight": normal(E, 3, patch_size, patch_size, std=(3 * patch_size**2) ** -0.5),
        "patch_embed_super.proj.bias": normal(E),
    }
    for i in range(depth):
        b = f"blocks.{i}."
        weights |= norm(b + "attn_layer_norm") | norm(b + "ffn_layer_norm")
        weights |= linear(b + "attn.qkv", 3 * E, E) | linear(b + "attn.proj", E, E)
        weights |= linear(b + "fc1", 4 * E, E) | linear(b + "fc2", E, 4 * E)
        for component in "kv":
            for axis in "vh":
                table = normal(30, head_dim, std=0.5)
                weights[f"{b}attn.rel_pos_embed_{component}.embeddings_table_{axis}"] = table
    return weights | norm("norm") | linear("head", classes, E)


def save_supernet(weights: dict[str, Tensor], path) -> None:
    """As the official training script saves: more than tensors in the pickle."""
    args = argparse.Namespace(lr=5e-4, cfg="supernet.yaml", relative_position=True, betas=(0.9, 0.999))
    torch.save({"model": weights, "epoch": 499, "args": args, "max_accuracy": np.float64(75.3)}, path)


def logits(
    weights: dict[str, Tensor], subnet: Subnet, images: Tensor, *, head_dim: int = 64, split_bias: bool = False
) -> Tensor:
    """The rules of the official code. `split_bias` breaks one of them: the qkv bias de-interleaved like the weight."""
    d = subnet.embed_dim
    patch = weights["patch_embed_super.proj.weight"].shape[-1]
    h, w = images.shape[2] // patch, images.shape[3] // patch
    conv = weights["patch_embed_super.proj.weight"][:d], weights["patch_embed_super.proj.bias"][:d]
    x = F.conv2d(images, *conv, stride=patch)
    x = x.reshape(x.shape[0], d, h * w).transpose(1, 2)
    cls = weights["cls_token"][..., :d].expand(x.shape[0], 1, d)
    x = torch.cat([cls, x], dim=1) + weights["pos_embed"][..., :d]
    N = h * w + 1

    # Table rows: 0 where the class token is query or key, else 15 + the clamped distance key - query.
    token = torch.arange(h * w)
    index = torch.zeros(2, N, N, dtype=torch.long)
    for axis, position in enumerate((token // w, token % w)):
        index[axis, 1:, 1:] = (position[None, :] - position[:, None]).clamp(-14, 14) + 15

    for i, (heads, ratio) in enumerate(zip(subnet.heads, subnet.mlp_ratios, strict=True)):
        p = {k.removeprefix(f"blocks.{i}."): v for k, v in weights.items() if k.startswith(f"blocks.{i}.")}
        q, f = heads * head_dim, int(d * ratio)
        y = F.layer_norm(x, (d,), p["attn_layer_norm.weight"][:d], p["attn_layer_norm.bias"][:d], 1e-5)
        rows = p["attn.qkv.weight"][:, :d]
        weight = torch.cat([rows[0 : 3 * q : 3], rows[1 : 3 * q : 3], rows[2 : 3 * q : 3]])
        bias = p["attn.qkv.bias"][: 3 * q]
        if split_bias:
            bias = torch.cat([bias[0::3], bias[1::3], bias[2::3]])
        qkv = F.linear(y, weight, bias).reshape(-1, N, 3, heads, head_dim).permute(2, 0, 3, 1, 4)
        query, key, value = qkv[0], qkv[1], qkv[2]  # (B, heads, N, head_dim)
        table = {c + a: p[f"attn.rel_pos_embed_{c}.embeddings_table_{a}"] for c in "kv" for a in "vh"}
        relative_k = table["kv"][index[0]] + table["kh"][index[1]]  # (N, N, head_dim)
        relative_v = table["vv"][index[0]] + table["vh"][index[1]]
        scores = torch.einsum("bhid,bhjd->bhij", query, key) + torch.einsum("bhid,ijd->bhij", query, relative_k)
        attention = (scores * head_dim**-0.5).softmax(-1)
        out = torch.einsum("bhij,bhjd->bhid", attention, value) + torch.einsum("bhij,ijd->bhid", attention, relative_v)
        out = out.permute(0, 2, 1, 3).reshape(-1, N, q)
        x = x + F.linear(out, p["attn.proj.weight"][:d, :q], p["attn.proj.bias"][:d])
        y = F.layer_norm(x, (d,), p["ffn_layer_norm.weight"][:d], p["ffn_layer_norm.bias"][:d], 1e-5)
        y = F.gelu(F.linear(y, p["fc1.weight"][:f, :d], p["fc1.bias"][:f]))
        x = x + F.linear(y, p["fc2.weight"][:d, :f], p["fc2.bias"][:d])
    x = F.layer_norm(x, (d,), weights["norm.weight"][:d], weights["norm.bias"][:d], 1e-5)
    return F.linear(x[:, 1:].mean(1), weights["head.weight"][:, :d], weights["head.bias"])
