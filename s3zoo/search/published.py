"""Supernets that their authors trained and published, to be searched without training one."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from s3zoo.models import autoformer
from s3zoo.models.loading import grid_side
from s3zoo.models.official import read_checkpoint
from s3zoo.space import Space
from s3zoo.supernet import Supernet


def official_autoformer_supernet(
    source: Mapping[str, Tensor] | str | Path,
    space: Space,
    *,
    img_size: int | tuple[int, int] | None = None,
    num_classes: int | None = None,
    in_chans: int | None = None,
    device: torch.device | str = "cpu",
) -> Supernet:
    """A supernet with the weights of an official one (its tensors, or the file), for any space inside it.

    Every subnet is exactly the network that the authors' code runs. All weights nest; the qkv biases do not, and are
    kept once for every number of heads. Rows and columns that no network of the space has are left out. Another
    `img_size` than the one it was trained with resizes the position embedding.
    """
    weights = read_checkpoint(source) if isinstance(source, str | Path) else dict(source)
    largest = autoformer.largest_arch(weights)
    if space.family != largest.family:
        raise ValueError(
            f"Space {space.name!r} is of family {space.family!r}, but the supernet is of {largest.family!r}."
        )
    own: dict[str, Any] = {
        "num_classes": weights["head.weight"].shape[0],
        "in_chans": weights["patch_embed_super.proj.weight"].shape[1],
    }
    for key, value in (("num_classes", num_classes), ("in_chans", in_chans)):
        if value is not None and value != own[key]:
            raise ValueError(
                f"{key} is {value}, but the supernet was trained with {own[key]}; search it on such data, or train a"
                " supernet on yours."
            )
    if img_size is None:
        img_size = grid_side(weights["pos_embed"]) * largest.patch_size
    supernet = Supernet(space, img_size=img_size, **own, device=device, bias_per_head_count=True)
    heads = next(dim for dim in space.dims if dim.gene == "num_heads")
    most = {dim.name: dim.choices[-1] for dim in space.dims}
    with torch.no_grad():
        for count in heads.choices:  # the largest network of each number of heads: written through, they fill the bank
            subnet = supernet.subnet(space.build(most | {heads.name: count}))
            values = autoformer.checkpoint_filter_fn(weights, subnet)  # type: ignore[arg-type]
            for name, view in subnet.named_parameters():
                view.copy_(values[name])
    return supernet
