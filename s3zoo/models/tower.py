"""The frozen timm ViT that decoders of family "ladder" read: built, known by its weights, and held outside of them."""

import copy
import hashlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import timm
import torch
from timm.layers import register_notrace_module
from torch import Tensor, nn

from s3zoo.models._base import Size
from s3zoo.models.loading import accepting, find_weights

TOWER = "vit_base_patch16_clip_quickgelu_224.openai"  # the plain name builds exact GELU around QuickGELU's weights


@accepting()
def build_tower(
    name: str = TOWER,
    pretrained: bool | str | Path = False,
    img_size: Size = 224,
    in_chans: int = 3,
    device=None,
    dtype=None,
    sha256: str = "",
) -> nn.Module:
    """A frozen timm ViT for any number of decoders.

    Args:
        pretrained: load the published weights, or those of a file. Without, they are random but the same each time, so
            that what was trained on such a tower is of use again (in tests and trials).
        sha256: the `fingerprint` that the weights must have; empty: any.
    """
    device = torch.empty(0, device=device).device
    args: dict[str, Any] = dict(num_classes=0, img_size=img_size, in_chans=in_chans)
    source = dict(name=name, pretrained=pretrained, img_size=img_size, in_chans=in_chans, dtype=dtype, sha256=sha256)
    if device.type == "meta":
        with device:
            tower = _created(name, **args)
    else:
        tower = _loaded(name, _weights(name, pretrained), args) if pretrained else _seeded(0, name, args)
        source["sha256"] = fingerprint(tower)
        if sha256 and source["sha256"] != sha256:
            raise ValueError(
                f"The weights of the tower {name} are not those that the decoder was trained with (their sha256 is "
                f"{source['sha256']} instead of {sha256}); give the file that holds them as pretrained_tower."
            )
    tower.tower_source = source  # type: ignore[assignment]
    return tower.to(device=device, dtype=dtype).eval().requires_grad_(False)


def _weights(name: str, pretrained: bool | str | Path) -> Path | None:
    """The file with a tower's weights, from the Hub only safetensors; None if timm has another source."""
    if pretrained is not True:
        file = Path(str(pretrained)).expanduser()
        if not file.is_file():
            raise ValueError(f"There is no file with weights of the tower at {str(file)!r}; give its path.")
        return file
    try:
        cfg = timm.get_pretrained_cfg(name) if timm.is_model(name) else None
        return None if cfg is None else find_weights(cfg)
    except RuntimeError:
        return None  # a tag that does not exist: timm tells
    except FileNotFoundError as error:
        raise ValueError(
            f"The weights of the tower {name} are not in the cache and could not be fetched from the Hub; go online "
            "once, or give a file that holds them (tower.weights in a search, pretrained_tower in Python)."
        ) from error


def _seeded(seed: int, name: str, args: dict[str, Any]) -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return _created(name, **args)


def _loaded(name: str, file: Path | None, args: dict[str, Any]) -> nn.Module:
    """A tower with weights: without a classifier timm loads those that fit, and leaves the rest as it was drawn.

    What equals a draw of the same seed was not loaded. The seed is not that of towers without weights, since a file may
    hold theirs.
    """
    drawn = _seeded(1, name, args).state_dict()
    overlay = None if file is None else dict(file=str(file))
    tower = _seeded(1, name, args | dict(pretrained=True, pretrained_cfg_overlay=overlay))
    for key, value in tower.state_dict().items():
        if value.equal(drawn[key]) and value.min() < value.max():  # zeros and ones are the same with weights
            raise _no_weights(name, f"{key!r} is missing")
    return tower


def _created(name: str, **args: Any) -> nn.Module:
    """timm.create_model, its many ways to fail as one sentence."""
    if not timm.is_model(name):
        raise ValueError(
            f"The tower is {name!r}, which timm does not know; take a vision transformer such as {TOWER!r}."
        )
    try:
        return timm.create_model(name, **args)
    except TypeError:
        raise no_transformer(name) from None
    except Exception as error:  # from the Hub, the network, the disk, or weights of another network
        why = " ".join(str(error).split()).partition(". ")[0].rstrip(".")
        if args.get("pretrained"):
            raise _no_weights(name, why) from error
        raise ValueError(f"The tower {name} cannot be built: {why}.") from error


def _no_weights(name: str, why: str) -> ValueError:
    return ValueError(
        f"The tower {name} cannot be built: its weights cannot be loaded ({why}); give a file with weights of this"
        " model."
    )


def no_transformer(name: str) -> ValueError:
    return ValueError(f"The tower is {name}, but must be a timm vision transformer; take one such as {TOWER!r}.")


def fingerprint(tower: nn.Module) -> str:
    """A sha256 over the weights, but for those that timm resamples for another input size or other channels."""
    sha = hashlib.sha256()
    for name, value in sorted(tower.state_dict().items()):
        if name not in ("pos_embed", "patch_embed.proj.weight"):
            sha.update(f"{name}\0{value.dtype}\0{tuple(value.shape)}\0".encode())
            sha.update(value.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy())
    return sha.hexdigest()


@torch.no_grad()  # not inference_mode: the decoder's backward pass needs the features
def tower_features(tower: nn.Module, images: Tensor, depth: int) -> Tensor:
    """What the last `depth` blocks of a tower put out, its class token first: (batch, depth, tokens, width)."""
    vit: Any = tower
    if vit.training:
        vit.eval()
    taken = vit.forward_intermediates(
        images.to(next(vit.parameters()).dtype),
        indices=depth,
        return_prefix_tokens=True,
        output_fmt="NLC",
        intermediates_only=True,
    )
    layers = [torch.cat([y[1], y[0]], dim=1) if isinstance(y, tuple) else y for y in taken]  # (B, T, D)
    return torch.stack(layers, dim=1)  # (B, depth, T, D)


@register_notrace_module  # reason: it reads the actual shape, and runs a network that is no part of this one
class Reader(nn.Module):
    """The frozen tower, and what decoders read of it.

    The tower is no submodule: it is in neither `parameters()` nor `state_dict()`, and copies share it. It goes where
    the decoder goes; on leaving the meta device it is built.
    """

    tower: nn.Module

    def __init__(self, tower: nn.Module) -> None:
        super().__init__()
        self.set_tower(tower)
        vit: Any = tower
        self.in_chans: int = vit.patch_embed.proj.weight.shape[1]
        self.img_size: tuple[int, int] = tuple(vit.patch_embed.img_size)
        self.grid_size: tuple[int, int] = vit.patch_embed.grid_size
        self.num_prefix_tokens: int = vit.num_prefix_tokens
        self.num_tokens = vit.patch_embed.num_patches + vit.num_prefix_tokens
        self.embed_dim: int = vit.embed_dim

    def set_tower(self, tower: nn.Module) -> None:
        self.__dict__["tower"] = tower.eval().requires_grad_(False)  # past nn.Module, which would register it

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> "Reader":
        super()._apply(fn, recurse)
        there = next(self.tower.parameters()).device
        here = fn(torch.empty(0, device=there)).device
        if here != there and here.type != "meta":
            if there.type != "meta":
                self.set_tower(copy.deepcopy(self.tower).to(here))  # a copy: others may read this one
            elif hasattr(self.tower, "tower_source"):
                self.set_tower(build_tower(**self.tower.tower_source, device=here))  # type: ignore[arg-type]
            else:
                raise ValueError("The tower has no weights (it is on the meta device); give it by its name in timm.")
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> "Reader":
        twin = self.__class__.__new__(self.__class__)
        memo |= {id(self): twin, id(self.tower): self.tower}
        twin.__dict__ = copy.deepcopy(self.__dict__, memo)
        return twin

    def features(self, images: Tensor, depth: int) -> Tensor:
        """What the last `depth` blocks put out: (batch, depth, tokens, width)."""
        if images.ndim != 4 or tuple(images.shape[1:]) != (self.in_chans, *self.img_size):
            raise ValueError(
                f"The input has shape {list(images.shape)}, but must be (batch, {self.in_chans}, {self.img_size[0]}, "
                f"{self.img_size[1]}), or (batch, layers, {self.num_tokens}, {self.embed_dim}) for features; resize "
                "the images, or build the model for theirs."
            )
        return tower_features(self.tower, images, depth)

    def forward(self, x: Tensor | Sequence[Tensor], depth: int) -> Tensor:
        """The last `depth` layers of the features that were given, or of those of the images that were."""
        if not isinstance(x, Tensor):
            x = torch.stack(list(x), dim=1)  # (B, layers, T, D)
        if x.ndim != 4 or tuple(x.shape[2:]) != (self.num_tokens, self.embed_dim):
            x = self.features(x, depth)
        if x.shape[1] < depth:
            raise ValueError(
                f"The features have {x.shape[1]} layers, but the decoder reads {depth}; take them with "
                f"tower_features(images, depth={depth}) or more."
            )
        return x[:, -depth:]
