"""GLiT: Neural Architecture Search for Global and Local Image Transformer (https://arxiv.org/abs/2107.02960).

In every block the first heads' channels attend globally and the others pass a convolution over the token sequence.
Differences between the paper and its released code are settled in favour of the code, which the weights were trained
with: GELU in the MLP, a gated linear unit after the first pointwise convolution, one batch norm, no dropout.
"""

# No `from __future__ import annotations` here: a traced model is scripted with the annotation of forward's argument,
# which must then be the type and not its name.
import contextlib
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import torch
import torch.nn.functional as F
from timm.data import IMAGENET_DEFAULT_MEAN, IMAGENET_DEFAULT_STD
from timm.layers import Mlp, get_device_dtype, resample_abs_pos_embed
from timm.models import build_model_with_cfg, generate_default_cfgs, named_apply, register_model
from timm.models._builder import resolve_pretrained_cfg
from timm.models._features import feature_take_indices
from timm.models._features_fx import register_notrace_module
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from s3zoo.arch import Arch, GLiTBlock, Stage

from .layers import DropPath, HeadProjection, QkvLinear, trunc_normal_

ArchLike = Arch | Mapping[str, Any] | str | Path


class Attention(nn.Module):
    """Self-attention among the global channels of a block."""

    def __init__(self, dim: int, num_heads: int, head_dim: int, device=None, dtype=None) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.head_dim = head_dim
        self.qkv = QkvLinear(dim, num_heads, head_dim, device=device, dtype=dtype)
        self.proj = HeadProjection(num_heads, head_dim, dim, device=device, dtype=dtype)

    def forward(self, x: Tensor) -> Tensor:
        B, N, _ = x.shape
        qkv = self.qkv(x).view(B, N, self.num_heads, 3, self.head_dim).permute(3, 0, 2, 1, 4)  # (3, B, h, N, d)
        q, k, v = qkv.unbind(0)
        x = F.scaled_dot_product_attention(q, k, v)  # (B, h, N, d), scaled by d^-0.5
        return self.proj(x.transpose(1, 2).flatten(2))  # (B, N, C)


class GatedLinear(nn.Module):
    """Linear layer and gated linear unit; weight (out, 2, in), so that a value and its gate are cut together."""

    def __init__(self, in_dim: int, out_dim: int, device=None, dtype=None) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(out_dim, 2, in_dim, device=device, dtype=dtype))
        self.bias = nn.Parameter(torch.empty(out_dim, 2, device=device, dtype=dtype))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        bound = 1 / math.sqrt(self.weight.shape[-1])  # torch's default of the pointwise convolution that this is
        nn.init.uniform_(self.weight, -bound, bound)
        nn.init.uniform_(self.bias, -bound, bound)

    def forward(self, x: Tensor) -> Tensor:
        # The weight is reordered, not the output: a GLU over interleaved pairs takes three times as long backwards.
        weight = self.weight.transpose(0, 1).flatten(0, 1)  # (2 * out, in)
        return F.glu(F.linear(x, weight, self.bias.t().flatten()))  # (B, N, out)


class LocalConv1d(nn.Module):
    """Locality "conv1d": gated expansion, depthwise convolution along the raster sequence of tokens, projection.

    The class token takes part as the first element of the sequence.
    """

    center_cropped = {"conv.weight": (2,)}

    def __init__(self, dim: int, genes: GLiTBlock, device=None, dtype=None) -> None:
        super().__init__()
        dd = {"device": device, "dtype": dtype}
        hidden = int(dim * genes.expansion)
        self.expand = GatedLinear(dim, hidden, **dd)
        self.padding = genes.kernel_size // 2
        self.conv = nn.Conv1d(hidden, hidden, genes.kernel_size, padding=self.padding, groups=hidden, **dd)
        self.norm = nn.BatchNorm1d(hidden, **dd)
        self.act = nn.SiLU()
        self.proj = nn.Linear(hidden, dim, **dd)

    def init_weights(self) -> None:
        self.proj.reset_parameters()  # a pointwise convolution: torch's default, not the 0.02 of the linear layers

    def forward(self, x: Tensor) -> Tensor:
        B, N, _ = x.shape
        x = self.expand(x).transpose(1, 2).unsqueeze(2)  # (B, I, 1, N), channels last in memory
        # As 2-D convolution of one row: several times faster than conv1d, which has no channels-last kernel.
        weight = self.conv.weight.unsqueeze(2)  # (I, 1, 1, K)
        x = F.conv2d(x, weight, self.conv.bias, padding=(0, self.padding), groups=weight.shape[0])
        x = x.squeeze(2).transpose(1, 2).flatten(0, 1)  # (B * N, I)
        return self.proj(self.act(self.norm(x))).view(B, N, -1)  # (B, N, C)


# The gene `locality` chooses the module; it is built as module(dim, genes, device=, dtype=) and maps (B, N, dim).
LOCALITIES: dict[str, Any] = {"conv1d": LocalConv1d}


class Block(nn.Module):
    """Pre-norm block: attention on the first channels, locality on the others, concatenated; then an MLP."""

    def __init__(self, dim: int, genes: GLiTBlock, drop_path: float = 0.0, device=None, dtype=None) -> None:
        super().__init__()
        dd = {"device": device, "dtype": dtype}
        self.global_dim = dim * genes.global_heads // genes.num_heads
        self.local_dim = dim * genes.local_heads // genes.num_heads
        self.norm1 = nn.LayerNorm(dim, eps=1e-6, **dd)
        self.attn = Attention(self.global_dim, genes.global_heads, genes.head_dim, **dd) if genes.global_heads else None
        self.local = LOCALITIES[genes.locality](self.local_dim, genes, **dd) if genes.local_heads else None
        self.norm2 = nn.LayerNorm(dim, eps=1e-6, **dd)
        self.mlp = Mlp(dim, int(dim * genes.mlp_ratio), act_layer=nn.GELU, **dd)
        self.drop_path = DropPath(drop_path)

    def mix(self, x: Tensor) -> Tensor:
        if self.local is None:
            return self.attn(x)  # type: ignore[misc]
        if self.attn is None:
            return self.local(x)
        x_global, x_local = x.split([self.global_dim, self.local_dim], dim=2)
        return torch.cat([self.attn(x_global), self.local(x_local)], dim=2)  # (B, N, C), no joint projection

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.drop_path(self.mix(self.norm1(x)))
        return x + self.drop_path(self.mlp(self.norm2(x)))


def _grid_size(img_size: int | Sequence[int], patch_size: int) -> tuple[int, int]:
    sizes = tuple(img_size) if isinstance(img_size, tuple | list) else (img_size, img_size)
    if len(sizes) != 2 or any(isinstance(s, bool) or not isinstance(s, int) or s < 1 or s % patch_size for s in sizes):
        raise ValueError(
            f"img_size is {img_size!r}, but must be a multiple of the patch size {patch_size}, or a pair (height, "
            "width) of such; resize the images."
        )
    return sizes[0] // patch_size, sizes[1] // patch_size


@register_notrace_module  # the checks read the actual size
class PatchEmbed(nn.Module):
    """Image to a grid of tokens (B, h, w, C)."""

    def __init__(
        self,
        grid_size: tuple[int, int],
        patch_size: int,
        in_chans: int,
        embed_dim: int,
        dynamic: bool,
        device=None,
        dtype=None,
    ) -> None:
        super().__init__()
        self.grid_size = grid_size
        self.patch_size = patch_size
        self.in_chans = in_chans
        self.dynamic = dynamic
        self.proj = nn.Conv2d(in_chans, embed_dim, patch_size, stride=patch_size, device=device, dtype=dtype)

    def forward(self, x: Tensor) -> Tensor:
        if x.ndim != 4 or x.shape[1] != self.in_chans:
            raise ValueError(
                f"The input has shape {list(x.shape)}, but the model takes (batch, {self.in_chans}, height, width); "
                "build it with in_chans=… for another number of channels."
            )
        height, width = x.shape[2], x.shape[3]
        if self.dynamic:
            if height % self.patch_size or width % self.patch_size or not height or not width:
                raise ValueError(
                    f"The input is {height} x {width}, but both must be multiples of the patch size "
                    f"{self.patch_size}; resize the images."
                )
        elif height != self.grid_size[0] * self.patch_size or width != self.grid_size[1] * self.patch_size:
            raise ValueError(
                f"The input is {height} x {width}, but the model was built for "
                f"{self.grid_size[0] * self.patch_size} x {self.grid_size[1] * self.patch_size}; call "
                "set_input_size((height, width)) or build it with img_size=… or dynamic_img_size=True."
            )
        return self.proj(x).permute(0, 2, 3, 1)  # (B, h, w, C)


@contextlib.contextmanager
def _frozen_statistics(module: nn.Module) -> Iterator[None]:
    """Batch norms see the batch but do not record it: for the second forward of activation checkpointing."""
    norms = [m for m in module.modules() if isinstance(m, nn.modules.batchnorm._BatchNorm)]
    saved = [(m.momentum, m.num_batches_tracked) for m in norms]
    for m in norms:
        m.momentum = 0.0
        m.num_batches_tracked = None if m.num_batches_tracked is None else m.num_batches_tracked.clone()
    try:
        yield
    finally:
        for m, (momentum, count) in zip(norms, saved, strict=True):
            m.momentum, m.num_batches_tracked = momentum, count


class GLiT(nn.Module):
    """Any network of the GLiT family.

    Args:
        arch: an `Arch` of family "glit", its dict, its JSON, or the path of its JSON file.
        img_size: input size (one number or height and width), a multiple of the patch size.
        global_pool: 'token' (the class token, as trained), 'avg' (mean over the patch tokens) or '' (no pooling).
        dynamic_img_size: take any multiple of the patch size and resample the position embedding in `forward`.
    """

    dynamic_img_size: Final[bool]  # lets TorchScript leave out a branch

    def __init__(
        self,
        arch: ArchLike,
        img_size: int | tuple[int, int] = 224,
        in_chans: int = 3,
        num_classes: int = 1000,
        global_pool: str = "token",
        drop_rate: float = 0.0,
        drop_path_rate: float = 0.0,
        dynamic_img_size: bool = False,
        device=None,
        dtype=None,
    ) -> None:
        super().__init__()
        dd = {"device": device, "dtype": dtype}
        arch = Arch.parse(arch)
        if arch.family != "glit":
            raise ValueError(
                f"The architecture is of family {arch.family!r}, but GLiT builds family 'glit'; "
                f"use the model {arch.family!r}."
            )
        _check_pool(global_pool)
        self.arch = arch
        self.num_classes = num_classes
        self.global_pool = global_pool
        self.dynamic_img_size = dynamic_img_size
        self.embed_dim = self.num_features = self.head_hidden_size = arch.stages[0].embed_dim
        self.num_prefix_tokens = 1
        self.output_fmt = "NLC"
        self.grad_checkpointing = False

        grid = _grid_size(img_size, arch.patch_size)
        self.patch_embed = PatchEmbed(grid, arch.patch_size, in_chans, self.embed_dim, dynamic_img_size, **dd)
        self.cls_token = nn.Parameter(torch.empty(1, 1, self.embed_dim, **dd))
        self.pos_embed = nn.Parameter(torch.empty(1, 1 + grid[0] * grid[1], self.embed_dim, **dd))
        depth = arch.stages[0].depth
        rates = [drop_path_rate * i / max(depth - 1, 1) for i in range(depth)]
        self.blocks = nn.Sequential(*[self.make_block(arch, 0, i, drop_path=r, **dd) for i, r in enumerate(rates)])
        self.feature_info = [
            dict(num_chs=self.embed_dim, reduction=arch.patch_size, module=f"blocks.{i}") for i in range(depth)
        ]
        self.norm: nn.Module = nn.LayerNorm(self.embed_dim, eps=1e-6, **dd)
        self.head_drop = nn.Dropout(drop_rate)
        self.head = nn.Linear(self.embed_dim, num_classes, **dd) if num_classes > 0 else nn.Identity()
        self.init_weights(needs_reset=False)

    @staticmethod
    def make_block(arch: Arch, stage: int, index: int, *, drop_path: float = 0.0, device=None, dtype=None) -> Block:
        where = arch.stages[stage]
        return Block(where.embed_dim, where.blocks[index], drop_path, device=device, dtype=dtype)  # type: ignore[arg-type]

    @staticmethod
    def blocks_path(stage: int) -> str:
        return "blocks"

    @torch.jit.ignore
    def init_weights(self, mode: str = "", needs_reset: bool = True) -> None:
        """Initialise as the official code; `needs_reset` also where modules have initialised themselves."""
        if mode:
            raise ValueError(f"The initialisation mode is {mode!r}, but GLiT has one only; leave the mode empty.")
        trunc_normal_(self.pos_embed, std=0.02)
        trunc_normal_(self.cls_token, std=0.02)

        def init(module: nn.Module, name: str) -> None:
            if isinstance(module, nn.Linear):
                trunc_normal_(module.weight, std=0.02)
                nn.init.zeros_(module.bias)
            elif hasattr(module, "init_weights"):
                module.init_weights()  # type: ignore[operator]
            elif needs_reset and hasattr(module, "reset_parameters"):
                module.reset_parameters()  # type: ignore[operator]

        named_apply(init, self)

    @torch.jit.ignore
    def no_weight_decay(self) -> set[str]:
        factored = {n for n, p in self.named_parameters() if n.endswith(".bias") and p.ndim > 1}
        return {"cls_token", "pos_embed"} | factored

    @torch.jit.ignore
    def group_matcher(self, coarse: bool = False) -> dict[str, Any]:
        return dict(
            stem=r"^cls_token|pos_embed|patch_embed",
            blocks=[(r"^blocks\.(\d+)", None), (r"^norm", (99999,))],
        )

    @torch.jit.ignore
    def set_grad_checkpointing(self, enable: bool = True) -> None:
        self.grad_checkpointing = enable

    @torch.jit.ignore
    def get_classifier(self) -> nn.Module:
        return self.head

    @torch.jit.ignore
    def reset_classifier(self, num_classes: int, global_pool: str | None = None) -> None:
        dd = get_device_dtype(self)
        if global_pool is not None:
            _check_pool(global_pool)
            self.global_pool = global_pool
        self.num_classes = num_classes
        self.head = nn.Linear(self.embed_dim, num_classes, **dd) if num_classes > 0 else nn.Identity()
        self.head.train(self.training)

    @torch.jit.ignore
    def set_input_size(self, img_size: int | tuple[int, int]) -> None:
        """Take images of another size from now on; the position embedding is resampled."""
        old, new = self.patch_embed.grid_size, _grid_size(img_size, self.patch_embed.patch_size)
        if new != old:
            with torch.no_grad():
                pos_embed = resample_abs_pos_embed(self.pos_embed, list(new), list(old), num_prefix_tokens=1)
            self.pos_embed = nn.Parameter(pos_embed, requires_grad=self.pos_embed.requires_grad)
            self.patch_embed.grid_size = new

    def _embed(self, x: Tensor) -> Tensor:
        x = self.patch_embed(x)
        pos_embed = self.pos_embed
        if self.dynamic_img_size:
            grid = self.patch_embed.grid_size
            pos_embed = resample_abs_pos_embed(
                pos_embed, [x.shape[1], x.shape[2]], [grid[0], grid[1]], num_prefix_tokens=1
            )
        cls_token = self.cls_token.expand(x.shape[0], -1, -1)
        return torch.cat([cls_token, x.flatten(1, 2)], dim=1) + pos_embed  # (B, 1 + h * w, C)

    def _block(self, block: nn.Module, x: Tensor) -> Tensor:
        if self.grad_checkpointing and not torch.jit.is_scripting():
            if torch.compiler.is_compiling():  # records statistics once by itself, and knows no context_fn
                return checkpoint(block, x, use_reentrant=False)
            contexts = lambda: (contextlib.nullcontext(), _frozen_statistics(block))  # noqa: E731
            return checkpoint(block, x, use_reentrant=False, context_fn=contexts)
        return block(x)

    def forward_intermediates(
        self,
        x: Tensor,
        indices: int | list[int] | None = None,
        return_prefix_tokens: bool = False,
        norm: bool = False,
        stop_early: bool = False,
        output_fmt: str = "NCHW",
        intermediates_only: bool = False,
    ) -> Any:
        """The outputs of the blocks `indices` (the last n, or all), and the final features as `forward_features`."""
        if output_fmt not in ("NCHW", "NLC"):
            raise ValueError(f"output_fmt is {output_fmt!r}, but must be 'NCHW' or 'NLC'.")
        take, last = feature_take_indices(len(self.blocks), indices)
        patch = self.patch_embed.patch_size
        height, width = x.shape[2] // patch, x.shape[3] // patch
        x = self._embed(x)
        taken = []
        for i, block in enumerate(self.blocks[: last + 1] if stop_early else self.blocks):
            x = self._block(block, x)
            if i in take:
                taken.append(self.norm(x) if norm else x)
        prefix = [y[:, :1] for y in taken]
        taken = [y[:, 1:] for y in taken]
        if output_fmt == "NCHW":
            taken = [y.transpose(1, 2).unflatten(2, (height, width)).contiguous() for y in taken]  # (B, C, h, w)
        intermediates = list(zip(taken, prefix, strict=True)) if return_prefix_tokens else taken
        return intermediates if intermediates_only else (self.norm(x), intermediates)

    @torch.jit.ignore
    def prune_intermediate_layers(
        self, indices: int | list[int] = 1, prune_norm: bool = False, prune_head: bool = True
    ) -> list[int]:
        """Drop what the intermediates `indices` do not need."""
        take, last = feature_take_indices(len(self.blocks), indices)
        self.blocks = self.blocks[: last + 1]
        self.arch = replace(self.arch, stages=(Stage(self.embed_dim, self.arch.stages[0].blocks[: last + 1]),))
        if prune_norm:
            self.norm = nn.Identity()
        if prune_head:
            self.reset_classifier(0, "")
        return take

    def forward_features(self, x: Tensor) -> Tensor:
        x = self._embed(x)
        if self.grad_checkpointing and not torch.jit.is_scripting():
            for block in self.blocks:
                x = self._block(block, x)
        else:
            x = self.blocks(x)
        return self.norm(x)

    def forward_head(self, x: Tensor, pre_logits: bool = False) -> Tensor:
        if self.global_pool == "token":
            x = x[:, 0]
        elif self.global_pool == "avg":
            x = x[:, 1:].mean(dim=1)
        x = self.head_drop(x)
        return x if pre_logits else self.head(x)

    def forward(self, x: Tensor) -> Tensor:
        return self.forward_head(self.forward_features(x))


def _check_pool(global_pool: str) -> None:
    if global_pool not in ("token", "avg", ""):
        raise ValueError(f"global_pool is {global_pool!r}, but must be 'token', 'avg' or '' (no pooling).")


# Checkpoints


def checkpoint_filter_fn(state_dict: Mapping[str, Any], model: GLiT) -> dict[str, Tensor]:
    """Weights of our own or the official layout for this model, the position embedding resized to its grid."""
    for wrapper in ("model", "state_dict"):
        state_dict = state_dict[wrapper] if isinstance(state_dict.get(wrapper), Mapping) else state_dict
    weights = dict(state_dict)
    official = any(key.startswith("blocks.0.0.") for key in weights)
    if official:
        weights = {_from_official_name(key): value for key, value in weights.items()}

    out, wrong = {}, []
    for name, target in model.state_dict().items():
        if name not in weights:
            # timm drops a classifier of another size after this filter; one that should be there must be.
            ours = model.num_classes == getattr(model, "pretrained_cfg", {}).get("num_classes")
            wrong += [f"{name!r} is missing"] if ours or not name.startswith("head.") else []
            continue
        value = weights[name]
        if official and value.numel() == target.numel():
            value = _from_official(name, value, target.shape)
        if name == "pos_embed":
            value = _fit_pos_embed(value, model)
        # timm fits channels and classes to the model after this filter.
        if value.shape != target.shape and name not in ("patch_embed.proj.weight", "head.weight", "head.bias"):
            wrong.append(f"{name!r} has shape {list(value.shape)} instead of {list(target.shape)}")
        out[name] = value.contiguous()
    for name in weights.keys() - out.keys():
        if name.startswith("head."):
            out[name] = weights[name]
        else:
            wrong.append(f"{name!r} is not part of the model")
    if wrong:
        more = f" (and {len(wrong) - 1} more such differences)" if len(wrong) > 1 else ""
        raise ValueError(
            f"The checkpoint does not fit this GLiT network: {min(wrong)}{more}; load weights of this architecture."
        )
    return out


# Our modules for the official `attn.net`; its others (reordering, GLU, Swish) have no parameters.
_NET = {"1": "expand", "3.conv": "conv", "4": "norm", "6": "proj"}


def _from_official_name(key: str) -> str:
    """Blocks stand in a list of one (`blocks.{i}.0.`), the local branch is a sequence inside the attention."""
    key = re.sub(r"^(blocks\.\d+)\.0\.", r"\1.", key)
    return re.sub(r"\.attn\.net\.(1|3\.conv|4|6)\.", lambda m: f".local.{_NET[m[1]]}.", key)


def _from_official(name: str, value: Tensor, shape: torch.Size) -> Tensor:
    """A tensor of the official layout in ours; `shape` is the parameter's."""
    if ".attn.qkv." in name:  # rows are (3, heads, head_dim)
        value = value.reshape(3, shape[0], *shape[2:]).transpose(0, 1)
    elif ".local.expand." in name:  # rows are (values, gates)
        value = value.reshape(2, shape[0], *shape[2:]).transpose(0, 1)
    return value.reshape(shape)


def _fit_pos_embed(pos_embed: Tensor, model: GLiT) -> Tensor:
    """The embedding on the grid of the model; it was made for that of the config, else the model's, else a square."""
    grid, patch, tokens = model.patch_embed.grid_size, model.patch_embed.patch_size, pos_embed.shape[1] - 1
    size = getattr(model, "pretrained_cfg", {}).get("input_size")
    named = [(size[-2] // patch, size[-1] // patch)] if size else []
    side = math.isqrt(max(tokens, 0))
    for old in (*named, grid, (side, side)):
        if old[0] * old[1] == tokens > 0:
            return resample_abs_pos_embed(pos_embed, list(grid), list(old), num_prefix_tokens=1)
    raise ValueError(
        f"The checkpoint's position embedding has {tokens} patches, which is no square grid; name its input_size in "
        "pretrained_cfg_overlay."
    )


# Registration


def _create_glit(variant: str, pretrained: bool = False, **kwargs: Any) -> GLiT:
    if pretrained:
        cfg = resolve_pretrained_cfg(variant, kwargs.get("pretrained_cfg"), kwargs.get("pretrained_cfg_overlay"))
        if not (cfg.has_weights or cfg.state_dict):
            raise ValueError(_NO_WEIGHTS.get(variant, _NOTHING_PUBLISHED).format(variant))
    feature_cfg = {"out_indices": 3, "feature_cls": "getter", **(kwargs.pop("feature_cfg", None) or {})}
    return build_model_with_cfg(
        GLiT,
        variant,
        pretrained,
        pretrained_filter_fn=checkpoint_filter_fn,
        feature_cfg=feature_cfg,
        **kwargs,
    )


_FOLDER = "timm.create_model('local-dir:<folder>', pretrained=True)"
_NOTHING_PUBLISHED = f"No weights of {{}} are published; use pretrained=False, or load a trained folder with {_FOLDER}."
_NO_WEIGHTS = {
    "glit_tiny": "The weights of {} are published only as a file behind a link that cannot be fetched automatically; "
    f"use pretrained=False, or convert the official checkpoint with `s3zoo convert` and load the folder with {_FOLDER}."
}


def _cfg(**kwargs: Any) -> dict[str, Any]:
    return {
        "num_classes": 1000,
        "input_size": (3, 224, 224),
        "fixed_input_size": True,
        "pool_size": None,
        "crop_pct": 0.875,
        "interpolation": "bicubic",
        "mean": IMAGENET_DEFAULT_MEAN,
        "std": IMAGENET_DEFAULT_STD,
        "first_conv": "patch_embed.proj",
        "classifier": "head",
        "license": "apache-2.0",
        "origin_url": "https://github.com/bychen515/GLiT",
        "paper_name": "GLiT: Neural Architecture Search for Global and Local Image Transformer",
        "paper_ids": "arXiv:2107.02960",
        **kwargs,
    }


default_cfgs = generate_default_cfgs(
    {
        "glit_tiny.in1k": _cfg(license="unknown"),  # of the weights: their repository has no licence file
        "glit_small.untrained": _cfg(),
        "glit_base.untrained": _cfg(),
        "glit.untrained": _cfg(),
    }
)


def arch_from_codes(embed_dim: int, num_heads: int, codes: Sequence[int], thirds: Sequence[int]) -> Arch:
    """The architecture of the official genome: per block the attending thirds of the heads and a code 0..8.

    The meaning of a code depends on the kind of block: (kernel, expansion) where all heads are local, (head width,
    MLP ratio) where all are global, (expansion, MLP ratio) where both occur.
    """
    blocks = []
    width = embed_dim // num_heads
    for third, code in zip(thirds, codes, strict=True):
        high, low = divmod(code, 3)
        genes = dict(head_dim=width, kernel_size=31, expansion=1.0, mlp_ratio=4.0)
        if third == 0:
            genes |= dict(kernel_size=(17, 31, 45)[high], expansion=(1.0, 2.0, 4.0)[low])
        elif third == 3:
            genes |= dict(head_dim=(width // 2, width, 2 * width)[high], mlp_ratio=(2.0, 4.0, 6.0)[low])
        else:
            genes |= dict(expansion=(1.0, 2.0, 4.0)[high], mlp_ratio=(2.0, 4.0, 6.0)[low])
        block = GLiTBlock(num_heads, num_heads * third // 3, **genes)  # type: ignore[arg-type]
        blocks.append(block.effective())
    return Arch("glit", (Stage(embed_dim, tuple(blocks)),))


_THIRDS = (3, 0, 1, 3, 0, 1, 3, 1, 0, 3, 0, 3)
TINY = arch_from_codes(192, 3, (1, 4, 8, 4, 8, 8, 3, 6, 8, 4, 5, 8), _THIRDS)
# The authors released neither the genomes nor the widths of Small and Base. These two were chosen by us, not found by
# the authors: the fewest steps away from Tiny's genome, at DeiT's widths, such that parameters and multiply-adds in the
# official counting print as in the paper: 24.6M, 4.4G (24,622,120, 4.402G) and 96.1M, 17.0G (96,146,536, 17.038G).
SMALL = arch_from_codes(384, 6, (1, 4, 6, 4, 8, 8, 3, 6, 8, 4, 4, 4), _THIRDS)
BASE = arch_from_codes(768, 12, (1, 4, 6, 4, 2, 8, 3, 6, 8, 4, 4, 4), _THIRDS)


@register_model
def glit_tiny(pretrained: bool = False, **kwargs: Any) -> GLiT:
    """GLiT-Tiny, the released genome."""
    return _create_glit("glit_tiny", pretrained, **{"arch": TINY, **kwargs})


@register_model
def glit_small(pretrained: bool = False, **kwargs: Any) -> GLiT:
    """A GLiT of the size of GLiT-Small; its genome was chosen by us to meet the paper's budget."""
    return _create_glit("glit_small", pretrained, **{"arch": SMALL, **kwargs})


@register_model
def glit_base(pretrained: bool = False, **kwargs: Any) -> GLiT:
    """A GLiT of the size of GLiT-Base; its genome was chosen by us to meet the paper's budget."""
    return _create_glit("glit_base", pretrained, **{"arch": BASE, **kwargs})


@register_model
def glit(pretrained: bool = False, **kwargs: Any) -> GLiT:
    """Any GLiT: `timm.create_model("glit", arch=…)`; without `arch` it is GLiT-Tiny."""
    return _create_glit("glit", pretrained, **{"arch": TINY, **kwargs})
