"""Supernets that are there already, to be searched without training one: their authors', and those of finished runs."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from s3zoo.files import Records
from s3zoo.models import autoformer
from s3zoo.models.folder import check_finite
from s3zoo.models.loading import grid_side
from s3zoo.models.official import read_checkpoint
from s3zoo.search.config import SearchRun
from s3zoo.search.records import check_scored, numbered, read_space
from s3zoo.search.space_search import SpaceSearch
from s3zoo.space import Space
from s3zoo.supernet import Supernet
from s3zoo.training import checkpoint


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


class FinishedRun:
    """A run whose supernet is used again: that of the space which it searched last."""

    def __init__(self, folder: Path) -> None:
        if not (folder / "result.json").exists():
            raise ValueError(
                f"{str(folder)!r} is not the folder of a finished search (it has no result.json); let it end first."
            )
        self.folder = folder
        config, about = SearchRun.read(folder / "run.json")
        # What it began from is in its weights, and a folder does not say where something is written.
        self.config = dataclasses.replace(config, start="", tower=dataclasses.replace(config.tower, cache_dir=""))
        self.data = about.get("data", "")
        searched = [place for _, place in numbered(folder, "space") if (place / "search-0" / "winner.json").exists()]
        if not searched:
            raise ValueError(f"{str(folder)!r} has a result but no space that was searched; give another folder.")
        self.place = searched[-1]
        self.space = read_space(self.place / "space.json")
        steps = checkpoint.steps(self.place / "supernet")
        if not steps:
            raise ValueError(
                f"{str(folder)!r} has no supernet of its own: it was given one, or its checkpoints were removed; give"
                " a run that has one, or do this run again in another folder."
            )
        self.weights = steps[-1] / "tensors.safetensors"

    def supernet(self, device: torch.device, model_args: Mapping[str, Any] | None = None) -> Supernet:
        said: list[str] = []
        found = checkpoint.load(self.place / "supernet", said.append)
        if found is None:
            raise ValueError(f"The supernet of {str(self.folder)!r} cannot be used: {' '.join(said)}")
        train = self.config.supernet
        supernet = Supernet(
            self.space, sharing=train.sharing, drop_path_rate=train.drop_path, device=device, **self.config.shape,
            model_args=dict(model_args or {}),
        )  # fmt: skip
        kind = "average." if train.ema else "weight."  # what the run used, too
        weights = {key.removeprefix(kind): t for key, t in found[0].items() if key.startswith(kind)}
        check_finite(weights, f"The supernet of {str(self.folder)!r}")
        supernet.load_state_dict(weights)
        return supernet

    def scored(self) -> list[dict[str, Any]]:
        """Architectures of the space with their accuracies and costs, each once; estimates of races are left out."""
        found: dict[str, dict[str, Any]] = {}
        for name in ("evaluated", "random", "random_search", "scores"):
            for row in Records(self.place / f"{name}.jsonl", check=check_scored, write=False).rows:
                if "arch" in row and row.get("full", True):
                    found.setdefault(str(row["arch"]), row)
        return list(found.values())

    def again(self, budgets: tuple[str, ...]) -> SearchRun:
        """The config that searches the same supernet under other budgets."""
        search = dataclasses.replace(self.config.arch_search, budgets=budgets or self.config.arch_search.budgets)
        return searched_again(dataclasses.replace(self.config, arch_search=search), self.space, str(self.folder))


def searched_again(run: SearchRun, space: Space, folder: str) -> SearchRun:
    """A run once more, in this space and with the supernet that it left in its folder."""
    return dataclasses.replace(
        run, name=f"{run.name}_again", space=space, hierarchy="none", supernet_weights=folder,
        space_search=SpaceSearch(method="none"),
    )  # fmt: skip
