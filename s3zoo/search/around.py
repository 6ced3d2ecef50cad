"""`s3zoo search --around NAME`: a space around a network's own dimensions, below its own size.

S4 plugs into backbones that there are: it begins at their dimensions and moves on, with their parameters as the limit.
The network itself is trained beside the winner, as the control "designed".
"""

from __future__ import annotations

import dataclasses
import math
from dataclasses import replace
from typing import Any

import timm
from timm.models import SwinTransformer, VisionTransformer

from s3zoo.arch import Arch, AutoFormerBlock, Stage
from s3zoo.families import FAMILIES
from s3zoo.models.open import open_model, source
from s3zoo.models.s3 import swin_arch
from s3zoo.search.budget import Pricer
from s3zoo.search.config import SearchRun
from s3zoo.space import Dim, Space

FRACTIONS = ("mlp_ratio", "expansion")
SHARE = 8  # a width's step is so small a part of it


def around(run: SearchRun, name: str) -> SearchRun:
    """The run with the space around a network, its parameters as the limit and itself as the control."""
    arch, side = network(name)
    patch = arch.patch_size
    if run.data.img_size < side:  # as many patches as it has there
        even = 2 if FAMILIES[arch.family].has_stem_depth else 1  # a stem halves the image by itself
        patch = max(even, round(patch * run.data.img_size / side / even) * even)
    arch = replace(arch, patch_size=patch)
    space = space_around(arch, space_name(name))
    given = replace(run, space=space, hierarchy="none")
    limit = f"params<={int(Pricer(**given.priced)(arch)['params'])}"
    return replace(
        given,
        name=f"{run.name}_{space.name}",
        space_search=replace(run.space_search, limit=limit),
        arch_search=replace(run.arch_search, budgets=(limit,)),
        final=replace(run.final, mode="retrain", use_held_out=False),
        controls=replace(run.controls, designed=arch.to_dict()),
    )


def space_name(network: str) -> str:
    """Of the space around it."""
    return f"around_{source(network).removeprefix('local-dir:').rpartition('/')[2].partition('.')[0]}"


def network(name: str) -> tuple[Arch, int]:
    """The architecture of a network of the zoo, of timm's ViT, DeiT or Swin, and the side of its images.

    A ViT becomes a network of AutoFormer's family, which is a ViT with relative positions besides.
    """
    model: Any = open_model(name, pretrained=False) if source(name) != name else timm.create_model(name, device="meta")
    side = model.pretrained_cfg["input_size"][-1]
    if isinstance(getattr(model, "arch", None), Arch):
        if FAMILIES[model.arch.family].reads_tower:
            raise ValueError(f"--around is {name!r}, a decoder on a frozen network; search the space s4_clip instead.")
        return model.arch, side
    if isinstance(model, SwinTransformer):
        return swin_arch(model), side
    if isinstance(model, VisionTransformer):
        blocks = []
        for block in model.blocks:
            attention: Any = getattr(block, "attn", None)
            mlp: Any = getattr(block, "mlp", None)
            if attention is None or not hasattr(mlp, "fc1"):
                raise ValueError(f"--around is {name!r}, whose blocks are no plain attention and MLP; take another.")
            heads = attention.num_heads
            ratio = mlp.fc1.out_features / model.embed_dim
            blocks.append(AutoFormerBlock(heads, attention.qkv.out_features // 3 // heads, ratio))
        stage = Stage(model.embed_dim, tuple(blocks))
        return Arch("autoformer", (stage,), model.patch_embed.patch_size[0]), side
    raise ValueError(
        f"--around is {name!r}, a {type(model).__name__}; give a ViT, DeiT or Swin of timm, or a network of the zoo."
    )


def space_around(arch: Arch, name: str) -> Space:
    """The space in whose middle an architecture lies.

    Searched are one width for all stages, the depth of the deepest, MLP ratios and, of plain ViTs, heads. A gene
    that differs between the blocks of a stage is searched block by block among the values that it has there.
    """
    count, widths = len(arch.stages), arch.embed_dims
    # Heads share the width in stages and in GLiT, so there they stay, and the width keeps to whole heads.
    sharing = count > 1 or "num_heads" in FAMILIES[arch.family].trading
    part = math.lcm(*(block.num_heads for block in arch.stages[0].blocks)) if sharing else 8
    step = max(1, round(widths[0] / SHARE / part)) * part
    dims = [Dim("embed_dim", _beside(widths[0], step), tuple(width / widths[0] for width in widths), step)]
    deepest = max(range(count), key=lambda i: arch.depths[i])
    for i, depth in enumerate(arch.depths):
        jump = (2 if depth >= 6 and count > 1 else 1) if i == deepest else 0
        dims.append(Dim("depth", _beside(depth, jump), _only(i, count), jump, low=1))
    derived = count > 1 and all(b.num_heads * b.head_dim == s.embed_dim for s in arch.stages for b in s.blocks)
    for field in dataclasses.fields(FAMILIES[arch.family].block):
        gene = field.name
        if gene == "head_dim" and derived:  # the width over the heads
            continue
        for i, stage in enumerate(arch.stages):
            value = _uniform(stage, gene)
            if value is None:
                choices = tuple({getattr(block, gene) for block in stage.blocks})
                gap = 0.5 if gene in FRACTIONS else 1
                low = 0 if 0 in choices else Dim.low
                dims.append(Dim(gene, choices, _only(i, count), gap, per_block=True, low=low))
                continue
            near = 0.5 if gene == "mlp_ratio" else 1 if gene == "num_heads" and not sharing else 0
            near = near if isinstance(value, int | float) and value > near else 0
            dims.append(Dim(gene, _beside(value, near), _only(i, count), near))
    return Space(name, arch.family, tuple(dims), count, arch.patch_size, arch.stem_depth)


def _uniform(stage: Stage, gene: str) -> Any:
    """What all blocks have, or None."""
    found = {getattr(block, gene) for block in stage.blocks}
    return found.pop() if len(found) == 1 else None


def _beside(value: Any, step: float) -> tuple[Any, ...]:
    return tuple(each for each in (value - step, value, value + step) if each > 0) if step else (value,)


def _only(stage: int, count: int) -> tuple[float, ...]:
    return tuple(float(i == stage) for i in range(count))
