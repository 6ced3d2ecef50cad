"""`s3zoo search --start PLACE`: a supernet that begins from weights that are there.

They are those of an official AutoFormer supernet (its file), of a network (a name, a folder, hf-hub:...), or of a
finished run's supernet. They enter by the corner rule; the classifier is new, positions and the embedding of patches
are resized where they must.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import timm
import torch
from timm.layers import resample_abs_pos_embed, resample_patch_embed
from timm.models import SwinTransformer, adapt_input_conv
from torch import Tensor

from s3zoo.arch import Arch
from s3zoo.models import MODELS, autoformer
from s3zoo.models.folder import CONFIG, WEIGHTS, read_json_object
from s3zoo.models.loading import BUNDLED, grid_side
from s3zoo.models.official import read_checkpoint
from s3zoo.models.open import digest, open_model, source
from s3zoo.models.s3 import swin_arch
from s3zoo.search.around import space_around
from s3zoo.search.config import SearchRun
from s3zoo.search.published import FinishedRun
from s3zoo.space import SPACES, Space
from s3zoo.supernet import Supernet

SHARE = 5  # of the epochs that a supernet takes from scratch, a start takes one part
FOR_PHOTOS = "s3_tiny"  # the smallest published network whose weights are fetched: ImageNet's, for 224 pixels
LARGE, SMALL = 96, 32  # pixels from which on these are for photos, and bundled ones for images of their own size


@dataclass(frozen=True)
class Start:
    """A network whose weights are the beginning; that of a supernet is its largest."""

    name: str
    model: Any
    weights: Mapping[str, Tensor]
    own: Space | None = None  # of a supernet
    rate: float | None = None  # of learning, of a finished search

    @property
    def space(self) -> Space:
        """The supernet's; around a network."""
        return self.own or space_around(self.model.arch, f"around_{self.name.rpartition('/')[2].partition('.')[0]}")

    @property
    def side(self) -> int:
        """Of its images."""
        return (getattr(self.model, "img_size", None) or self.model.patch_embed.img_size)[0]

    @property
    def record(self) -> dict[str, Any]:
        """What a card says of it."""
        terms = (getattr(self.model, "pretrained_cfg", None) or {}).get("license")
        return {"name": self.name, "license": terms, "sha256": digest(self.model)}


def started(run: SearchRun, place: str) -> SearchRun:
    """The run with its supernet begun there, finetuned for a part of the epochs, and the winner finetuned."""
    train = run.supernet
    short = replace(train, epochs=-(-train.epochs // SHARE), warmup_epochs=train.warmup_epochs / SHARE)
    return replace(run, start=place, supernet=short, final=replace(run.final, mode="finetune"))


def known_starts(size: int, in_chans: int) -> list[str]:
    """Networks whose weights a search on images of this kind may begin from, without being asked to; those with the
    best accuracy on the images that they were made for come first."""
    found = []
    for folder in sorted(BUNDLED.glob("*.*")) if size >= SMALL else ():
        config = read_json_object(folder / CONFIG)
        if list(config["pretrained_cfg"]["input_size"]) == [in_chans, size, size]:
            found.append((-config["s3zoo"]["provenance"]["metrics"][0]["value"], folder.name))
    names = [name for _, name in sorted(found)]
    return [*names, FOR_PHOTOS] if size >= LARGE and in_chans == 3 else names


def read_start(place: str) -> Start:
    path = Path(place).expanduser()
    if path.is_dir() and (path / "run.json").is_file() and (path / "result.json").is_file():
        run = FinishedRun(path)
        supernet = run.supernet(torch.device("cpu"))
        largest, rate = supernet.extract(run.space.largest()), run.config.supernet.lr
        return Start(path.resolve().name, largest, supernet.state_dict(), run.space, rate)
    if path.is_file() and path.name != WEIGHTS:
        weights = read_checkpoint(path)
        arch = autoformer.largest_arch(weights)
        shape = {
            "num_classes": len(weights["head.weight"]),
            "img_size": grid_side(weights["pos_embed"]) * arch.patch_size,
        }
        model: Any = MODELS["autoformer"](arch, **shape, in_chans=weights["patch_embed_super.proj.weight"].shape[1])  # type: ignore[call-arg]
        model.load_state_dict(autoformer.checkpoint_filter_fn(weights, model))
        return Start(path.name, model, model.state_dict(), _inside(arch))
    model = _network(place)
    return Start(place if source(place) == place else path.resolve().name, model, model.state_dict())


def _inside(arch: Arch) -> Space:
    """The space of a supernet whose largest network this is: the published one, else what lies below it."""
    for space in SPACES.values():
        if space.family == arch.family and space.largest() == arch:
            return space
    values = (space := space_around(arch, "inside")).values(arch)
    dims = (
        d if d.per_block else replace(d, choices=tuple(c for c in d.choices if c <= values[d.name])) for d in space.dims
    )
    return replace(space, dims=tuple(dims))


def _network(place: str) -> Any:
    """A Swin of timm's is the S3 that it equals."""
    if source(place) == place and ":" not in place:
        net = timm.create_model(place, device="meta")
        if isinstance(net, SwinTransformer):
            known: Any = timm.get_pretrained_cfg(place)
            cfg = replace(known, hf_hub_filename=WEIGHTS)
            options: dict[str, Any] = {"pretrained_cfg": cfg, "num_classes": cfg.num_classes, "arch": swin_arch(net)}
            return timm.create_model("s3", pretrained=True, **options)
    model = open_model(place)
    if not hasattr(model, "arch"):
        raise ValueError(f"start is {place!r}, a {type(model).__name__}; give a network of the zoo or a Swin of timm.")
    return model


def check_family(start: Start, space: Space) -> None:
    family = start.model.arch.family
    if family != space.family:
        raise ValueError(
            f"start is {start.name!r}, a network of family {family!r}, but the space {space.name!r} is of"
            f" {space.family!r}; give another start or space."
        )


def begin(supernet: Supernet, start: Start) -> int:
    """Put the weights into the supernet where they fit; gives how many of its numbers they are."""
    check_family(start, supernet.space)
    head, conv = start.model.classifier + ".", start.model.first_conv + ".weight"
    taken = {name: value for name, value in start.weights.items() if not name.startswith(head)}
    target: Any = supernet.subnet(supernet.space.largest())
    if conv in taken:
        taken[conv] = _fit_conv(taken[conv], supernet.bank[conv].shape)
    if "pos_embed" in taken:
        grids = [list(model.patch_embed.grid_size) for model in (target, start.model)]
        prefix = start.model.num_prefix_tokens
        if prefix == target.num_prefix_tokens and grids[0] != grids[1]:
            taken["pos_embed"] = resample_abs_pos_embed(taken["pos_embed"], *grids, num_prefix_tokens=prefix)
    return supernet.warm_start(taken)


def _fit_conv(weight: Tensor, shape: torch.Size) -> Tensor:
    """The embedding of patches for other channels and another size of patches, as timm makes them fit."""
    if weight.shape[1] != shape[1]:
        if weight.shape[1] == 1:
            weight = weight.repeat(1, 3, 1, 1) / 3
        weight = adapt_input_conv(shape[1], weight) if shape[1] != weight.shape[1] else weight
    return resample_patch_embed(weight, list(shape[2:])) if weight.shape[2:] != shape[2:] else weight
