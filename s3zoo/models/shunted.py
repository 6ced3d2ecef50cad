"""Shunted Transformer: hierarchical vision transformers whose heads attend to tokens merged at two rates.

Paper: Shunted Self-Attention via Multi-Scale Token Aggregation, https://arxiv.org/abs/2111.15193
The published networks and any `Arch` of family "shunted" build. Rates of merging (8, 4, 2, 1 by stage) and the 64
channels of the stem are no genes: they are the official code's constants. Nothing depends on the input size.
"""

import math
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from timm.data import IMAGENET_DEFAULT_MEAN, IMAGENET_DEFAULT_STD
from timm.layers import ClassifierHead, get_device_dtype, register_notrace_module
from timm.models import build_model_with_cfg, checkpoint_seq, generate_default_cfgs, named_apply, register_model
from timm.models._builder import resolve_pretrained_cfg
from timm.models._features import feature_take_indices
from torch import Tensor, nn

from s3zoo.arch import Arch, ShuntedBlock, Stage
from s3zoo.models.layers import DropPath, HeadLinear, HeadProjection, trunc_normal_

__all__ = ["Shunted", "checkpoint_filter_fn"]  # register_model adds the entrypoints

ArchLike = Arch | Mapping[str, Any] | str | Path

STEM_DIM = 64
MERGING_RATES = (8, 4, 2, 1)  # of the coarse branch, by stage; the fine branch merges half as much in each direction


class HeadConv(nn.Module):
    """Depthwise 3 x 3 convolution of concatenated heads (B, H, W, h * d); weight (heads, head_dim, 1, 3, 3)."""

    def __init__(self, num_heads: int, head_dim: int, device=None, dtype=None) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(num_heads, head_dim, 1, 3, 3, device=device, dtype=dtype))
        self.bias = nn.Parameter(torch.empty(num_heads, head_dim, device=device, dtype=dtype))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        _normal_by_fan_out(self.weight, fan_out=9)
        nn.init.zeros_(self.bias)

    def forward(self, x: Tensor) -> Tensor:
        weight = self.weight.flatten(0, 1)  # (h * d, 1, 3, 3)
        x = F.conv2d(x.permute(0, 3, 1, 2), weight, self.bias.flatten(), padding=1, groups=weight.shape[0])
        return x.permute(0, 2, 3, 1)  # (B, H, W, h * d)


@register_notrace_module  # reason: padding follows the feature map
class MergedTokens(nn.Module):
    """Keys and values of tokens merged `rate` x `rate` to one; an axis shorter than the rate is padded to it."""

    def __init__(self, dim: int, num_heads: int, head_dim: int, rate: int, device=None, dtype=None) -> None:
        super().__init__()
        dd = {"device": device, "dtype": dtype}
        self.num_heads = num_heads
        self.head_dim = head_dim
        self.rate = rate
        self.sr = nn.Conv2d(dim, dim, rate, stride=rate, **dd)
        self.norm = nn.LayerNorm(dim, **dd)
        self.act = nn.GELU()
        self.kv = HeadLinear(dim, 2, num_heads, head_dim, **dd)
        self.local_conv = HeadConv(num_heads, head_dim, **dd)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        height, width = x.shape[1], x.shape[2]
        if height < self.rate or width < self.rate:
            x = F.pad(x, [0, 0, 0, max(self.rate - width, 0), 0, max(self.rate - height, 0)])
        x = self.sr(x.permute(0, 3, 1, 2)).permute(0, 2, 3, 1)  # (B, H / rate, W / rate, C)
        k, v = self.kv(self.act(self.norm(x))).chunk(2, dim=3)  # (B, H / rate, W / rate, h * d)
        v = v + self.local_conv(v)
        return _split_heads(k, self.num_heads, self.head_dim), _split_heads(v, self.num_heads, self.head_dim)


class ShuntedAttention(nn.Module):
    """Heads attend in turn to coarsely and to finely merged tokens, so that any even number of them is a corner."""

    def __init__(self, dim: int, num_heads: int, head_dim: int, rate: int, device=None, dtype=None) -> None:
        super().__init__()
        dd = {"device": device, "dtype": dtype}
        self.num_heads = num_heads
        self.head_dim = head_dim
        self.q = HeadLinear(dim, num_heads, head_dim, **dd)
        self.coarse = MergedTokens(dim, num_heads // 2, head_dim, rate, **dd)
        self.fine = MergedTokens(dim, num_heads // 2, head_dim, rate // 2, **dd)
        self.proj = HeadProjection(num_heads, head_dim, dim, **dd)

    def forward(self, x: Tensor) -> Tensor:
        B, H, W, _ = x.shape
        q = self.q(x).reshape(B, H * W, self.num_heads // 2, 2, self.head_dim).permute(3, 0, 2, 1, 4)
        k, v = self.coarse(x)
        coarse = F.scaled_dot_product_attention(q[0], k, v)  # (B, h / 2, H * W, d)
        k, v = self.fine(x)
        fine = F.scaled_dot_product_attention(q[1], k, v)  # (B, h / 2, H * W, d)
        x = torch.stack([coarse.transpose(1, 2), fine.transpose(1, 2)], dim=3)  # (B, H * W, h / 2, 2, d)
        return self.proj(x.reshape(B, H, W, self.num_heads * self.head_dim))  # (B, H, W, C)


class LocalAttention(nn.Module):
    """The last stage's: tokens are few and stay whole, the local convolution of values is added to the output."""

    def __init__(self, dim: int, num_heads: int, head_dim: int, device=None, dtype=None) -> None:
        super().__init__()
        dd = {"device": device, "dtype": dtype}
        self.num_heads = num_heads
        self.head_dim = head_dim
        self.q = HeadLinear(dim, num_heads, head_dim, **dd)
        self.kv = HeadLinear(dim, 2, num_heads, head_dim, **dd)
        self.local_conv = HeadConv(num_heads, head_dim, **dd)
        self.proj = HeadProjection(num_heads, head_dim, dim, **dd)

    def forward(self, x: Tensor) -> Tensor:
        B, H, W, _ = x.shape
        k, v = self.kv(x).chunk(2, dim=3)  # (B, H, W, h * d)
        heads = [_split_heads(y, self.num_heads, self.head_dim) for y in (self.q(x), k, v)]
        y = F.scaled_dot_product_attention(heads[0], heads[1], heads[2])  # (B, h, H * W, d)
        y = y.transpose(1, 2).reshape(B, H, W, self.num_heads * self.head_dim)
        return self.proj(y + self.local_conv(v))  # (B, H, W, C)


def _split_heads(x: Tensor, num_heads: int, head_dim: int) -> Tensor:
    return x.reshape(x.shape[0], x.shape[1] * x.shape[2], num_heads, head_dim).transpose(1, 2)  # (B, h, H * W, d)


class ConvMlp(nn.Module):
    """The detail-specific MLP: a depthwise convolution is added before the activation."""

    def __init__(self, dim: int, hidden: int, device=None, dtype=None) -> None:
        super().__init__()
        dd = {"device": device, "dtype": dtype}
        self.fc1 = nn.Linear(dim, hidden, **dd)
        self.dwconv = nn.Conv2d(hidden, hidden, 3, padding=1, groups=hidden, **dd)
        self.act = nn.GELU()
        self.fc2 = nn.Linear(hidden, dim, **dd)

    def forward(self, x: Tensor) -> Tensor:
        x = self.fc1(x).permute(0, 3, 1, 2)  # (B, hidden, H, W), channels last in memory
        x = self.act(x + self.dwconv(x))
        return self.fc2(x.permute(0, 2, 3, 1))  # (B, H, W, C)


class Block(nn.Module):
    """Pre-norm block. LayerNorms have eps 1e-6 around the branches and torch's 1e-5 inside, as the weights expect."""

    def __init__(
        self, dim: int, genes: ShuntedBlock, rate: int, drop_path: float = 0.0, device=None, dtype=None
    ) -> None:
        super().__init__()
        dd = {"device": device, "dtype": dtype}
        self.norm1 = nn.LayerNorm(dim, eps=1e-6, **dd)
        self.attn = (
            ShuntedAttention(dim, genes.num_heads, genes.head_dim, rate, **dd)
            if rate > 1
            else LocalAttention(dim, genes.num_heads, genes.head_dim, **dd)
        )
        self.drop_path1 = DropPath(drop_path)
        self.norm2 = nn.LayerNorm(dim, eps=1e-6, **dd)
        self.mlp = ConvMlp(dim, int(dim * genes.mlp_ratio), **dd)
        self.drop_path2 = DropPath(drop_path)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.drop_path1(self.attn(self.norm1(x)))
        return x + self.drop_path2(self.mlp(self.norm2(x)))


@register_notrace_module  # reason: the checks read the actual size
class Stem(nn.Module):
    """Images to tokens (B, H / patch, W / patch, C) by convolutions of 64 channels, all but the last at half size."""

    def __init__(
        self, in_chans: int, embed_dim: int, patch_size: int, extra_convs: int, device=None, dtype=None
    ) -> None:
        super().__init__()
        dd = {"device": device, "dtype": dtype}
        self.in_chans = in_chans
        self.smallest = patch_size - 1
        layers: list[nn.Module] = [nn.Conv2d(in_chans, STEM_DIM, 7, stride=2, padding=3, bias=False, **dd)]
        for _ in range(extra_convs):
            layers += [nn.BatchNorm2d(STEM_DIM, **dd), nn.ReLU(inplace=True)]
            layers += [nn.Conv2d(STEM_DIM, STEM_DIM, 3, padding=1, bias=False, **dd)]
        layers += [nn.BatchNorm2d(STEM_DIM, **dd), nn.ReLU(inplace=True)]
        layers += [nn.Conv2d(STEM_DIM, embed_dim, patch_size // 2, stride=patch_size // 2, **dd)]
        self.conv = nn.Sequential(*layers)
        self.norm = nn.LayerNorm(embed_dim, **dd)

    def forward(self, x: Tensor) -> Tensor:
        if x.ndim != 4 or x.shape[1] != self.in_chans:
            raise ValueError(
                f"The input has shape {list(x.shape)}, but must be (batch, {self.in_chans}, height, width); "
                "convert the images, or build the model with as many in_chans as they have."
            )
        if x.shape[2] < self.smallest or x.shape[3] < self.smallest:
            raise ValueError(
                f"The input is {x.shape[2]} x {x.shape[3]}, but both sides must be at least {self.smallest}; "
                "resize the images."
            )
        return self.norm(self.conv(x).permute(0, 2, 3, 1))  # (B, H / patch, W / patch, C)


class Downsample(nn.Module):
    """Overlapping 3 x 3 patches to tokens of the next stage, at half the size."""

    def __init__(self, dim: int, out_dim: int, device=None, dtype=None) -> None:
        super().__init__()
        self.proj = nn.Conv2d(dim, out_dim, 3, stride=2, padding=1, device=device, dtype=dtype)
        self.norm = nn.LayerNorm(out_dim, device=device, dtype=dtype)

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(self.proj(x.permute(0, 3, 1, 2)).permute(0, 2, 3, 1))  # (B, H / 2, W / 2, out)


class ShuntedStage(nn.Module):
    def __init__(self, patch_embed: nn.Module, blocks: list[nn.Module], dim: int, device=None, dtype=None) -> None:
        super().__init__()
        self.grad_checkpointing = False
        self.patch_embed = patch_embed
        self.blocks = nn.Sequential(*blocks)
        self.norm = nn.LayerNorm(dim, eps=1e-6, device=device, dtype=dtype)

    def forward(self, x: Tensor) -> Tensor:
        x = self.patch_embed(x)
        if self.grad_checkpointing and not torch.jit.is_scripting():
            return self.norm(checkpoint_seq(self.blocks, x))
        return self.norm(self.blocks(x))


class Shunted(nn.Module):
    """The network that an `Arch` of family "shunted" describes. Any input size works; `img_size` is the one it is
    meant for.

    Args:
        arch: an `Arch`, its dict or JSON, or the path of a JSON file.
        drop_rate: dropout before the classifier.
        drop_path_rate: stochastic depth of the last block; it rises linearly from 0 at the first.
    """

    def __init__(
        self,
        arch: ArchLike,
        img_size: int | tuple[int, int] = 224,
        in_chans: int = 3,
        num_classes: int = 1000,
        global_pool: str = "avg",
        drop_rate: float = 0.0,
        drop_path_rate: float = 0.0,
        device=None,
        dtype=None,
    ) -> None:
        super().__init__()
        dd = {"device": device, "dtype": dtype}
        arch = Arch.parse(arch)
        _check_arch(arch)
        self.arch = arch
        self.num_classes = num_classes
        self.global_pool = global_pool
        self.output_fmt = "NHWC"
        self.embed_dim = arch.embed_dims[0]
        self.num_features = self.head_hidden_size = arch.embed_dims[-1]
        self.feature_info = [
            dict(num_chs=dim, reduction=arch.patch_size * 2**i, module=f"stages.{i}")
            for i, dim in enumerate(arch.embed_dims)
        ]
        self.set_input_size(img_size)

        step = drop_path_rate / max(sum(arch.depths) - 1, 1)
        stages: list[nn.Module] = []
        done, in_dim = 0, 0
        for i, (depth, dim) in enumerate(zip(arch.depths, arch.embed_dims, strict=True)):
            patch_embed: nn.Module = (
                Downsample(in_dim, dim, **dd) if i else Stem(in_chans, dim, arch.patch_size, arch.stem_depth, **dd)
            )
            blocks = [self.make_block(arch, i, j, drop_path=step * (done + j), **dd) for j in range(depth)]
            stages.append(ShuntedStage(patch_embed, blocks, dim, **dd))
            done, in_dim = done + depth, dim
        self.stages = nn.Sequential(*stages)
        self.head = ClassifierHead(
            self.num_features, num_classes, pool_type=global_pool, drop_rate=drop_rate, input_fmt="NHWC", **dd
        )
        self.init_weights(needs_reset=False)

    @staticmethod
    def make_block(arch: Arch, stage: int, index: int, *, drop_path: float = 0.0, device=None, dtype=None) -> nn.Module:
        """One block as the constructor builds it: genes, width and stage decide, the input size does not."""
        where: Stage = arch.stages[stage]
        genes = where.blocks[index]
        assert isinstance(genes, ShuntedBlock)
        return Block(where.embed_dim, genes, MERGING_RATES[stage], drop_path, device=device, dtype=dtype)

    @staticmethod
    def blocks_path(stage: int) -> str:
        return f"stages.{stage}.blocks"

    @torch.jit.ignore
    def init_weights(self, mode: str = "", needs_reset: bool = True) -> None:
        """Initialise as the official code; `needs_reset` also where modules have initialised themselves."""
        if mode:
            raise ValueError(f"The initialisation mode is {mode!r}, but Shunted has one only; leave the mode empty.")

        def init(module: nn.Module, name: str = "") -> None:
            if isinstance(module, nn.Linear):
                trunc_normal_(module.weight, std=0.02)
                nn.init.zeros_(module.bias)
            elif isinstance(module, nn.Conv2d):
                kernel = module.kernel_size[0] * module.kernel_size[1]
                _normal_by_fan_out(module.weight, kernel * module.out_channels // module.groups)
                if module.bias is not None:
                    nn.init.zeros_(module.bias)
            elif needs_reset:
                getattr(module, "reset_parameters", lambda: None)()

        named_apply(init, self)

    @torch.jit.ignore
    def no_weight_decay(self) -> set[str]:
        return {name for name, p in self.named_parameters() if name.endswith(".bias") and p.ndim > 1}  # factored

    @torch.jit.ignore
    def group_matcher(self, coarse: bool = False) -> dict[str, Any]:
        fine = [
            (r"^stages\.(\d+)\.patch_embed", (0,)),
            (r"^stages\.(\d+)\.blocks\.(\d+)", None),
            (r"^stages\.(\d+)\.norm", (99999,)),  # with the last block
        ]
        return dict(stem=r"^stages\.0\.patch_embed", blocks=r"^stages\.(\d+)" if coarse else fine)

    @torch.jit.ignore
    def set_grad_checkpointing(self, enable: bool = True) -> None:
        for module in self.modules():
            if isinstance(module, ShuntedStage):
                module.grad_checkpointing = enable

    @torch.jit.ignore
    def get_classifier(self) -> nn.Module:
        return self.head.fc

    @torch.jit.ignore
    def reset_classifier(self, num_classes: int, global_pool: str | None = None) -> None:
        self.num_classes = num_classes
        if global_pool is not None:
            self.global_pool = global_pool
        self.head.reset(num_classes, pool_type=global_pool, **get_device_dtype(self))

    @torch.jit.ignore
    def set_input_size(self, img_size: int | tuple[int, int]) -> None:
        """Say which size the network is meant for; it takes any other as well."""
        size = tuple(img_size) if isinstance(img_size, tuple | list) else (img_size, img_size)
        smallest = self.arch.patch_size - 1
        if len(size) != 2 or any(isinstance(s, bool) or not isinstance(s, int) or s < smallest for s in size):
            raise ValueError(
                f"img_size is {img_size!r}, but must be an integer of at least {smallest} or a pair (height, width)."
            )
        self.img_size = size

    @torch.jit.ignore
    def forward_intermediates(
        self,
        x: Tensor,
        indices: int | list[int] | None = None,
        norm: bool = False,
        stop_early: bool = False,
        output_fmt: str = "NCHW",
        intermediates_only: bool = False,
    ) -> list[Tensor] | tuple[Tensor, list[Tensor]]:
        """The outputs of the stages in `indices` (the last n if an int), and the final features.

        Args:
            norm: no effect, as every stage ends in a norm of its own.
            stop_early: run no stage after the last one that is wanted.
            output_fmt: "NCHW" or "NHWC".
        """
        if output_fmt not in ("NCHW", "NHWC"):
            raise ValueError(f"output_fmt is {output_fmt!r}, but must be 'NCHW' or 'NHWC'.")
        take, last = feature_take_indices(len(self.stages), indices)
        maps = []
        for i, stage in enumerate(self.stages[: last + 1] if stop_early else self.stages):
            x = stage(x)
            if i in take:
                maps.append(x.permute(0, 3, 1, 2).contiguous() if output_fmt == "NCHW" else x)
        return maps if intermediates_only else (x, maps)

    @torch.jit.ignore
    def prune_intermediate_layers(
        self, indices: int | list[int] = 1, prune_norm: bool = False, prune_head: bool = True
    ) -> list[int]:
        """Drop the stages that the intermediates `indices` do not need; their norms stay, as they are part of them."""
        take, last = feature_take_indices(len(self.stages), indices)
        self.stages = self.stages[: last + 1]
        if prune_head:
            self.reset_classifier(0, "")
        return take

    def forward_features(self, x: Tensor) -> Tensor:
        return self.stages(x)

    def forward_head(self, x: Tensor, pre_logits: bool = False) -> Tensor:
        return self.head(x, pre_logits=True) if pre_logits else self.head(x)

    def forward(self, x: Tensor) -> Tensor:
        return self.forward_head(self.forward_features(x))


def _check_arch(arch: Arch) -> None:
    if arch.family != "shunted":
        raise ValueError(
            f"The architecture is of family {arch.family!r}, but Shunted builds family 'shunted'; use the model "
            f"{arch.family!r}."
        )
    if arch.patch_size % 2:
        raise ValueError(
            f"patch_size is {arch.patch_size}, but must be even in family 'shunted', whose stem starts at half size."
        )
    for i, stage in enumerate(arch.stages[:-1]):
        for j, block in enumerate(stage.blocks):
            if block.num_heads % 2:
                raise ValueError(
                    f"stages[{i}].blocks[{j}].num_heads is {block.num_heads}, but must be even in the first three "
                    "stages of family 'shunted', where half of the heads see coarser tokens."
                )


def _normal_by_fan_out(weight: Tensor, fan_out: int) -> None:
    if not weight.is_meta:
        nn.init.normal_(weight, std=math.sqrt(2 / fan_out))


# Checkpoints


def checkpoint_filter_fn(state_dict: Mapping[str, Any], model: nn.Module) -> dict[str, Tensor]:
    """Weights of our own or the official layout for this model."""
    for wrapper in ("model", "state_dict"):
        state_dict = state_dict[wrapper] if isinstance(state_dict.get(wrapper), Mapping) else state_dict
    weights = dict(state_dict)
    official = any(key.startswith("patch_embed1.") for key in weights)
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
        # timm fits channels and classes to the model after this filter.
        if value.shape != target.shape and name not in (_FIRST_CONV + ".weight", "head.fc.weight", "head.fc.bias"):
            wrong.append(f"{name!r} has shape {list(value.shape)} instead of {list(target.shape)}")
        out[name] = value.contiguous()
    for name in weights.keys() - out.keys():
        if name.startswith("head.fc."):
            out[name] = weights[name]
        else:
            wrong.append(f"{name!r} is not part of the model")
    if wrong:
        more = f" (and {len(wrong) - 1} more such differences)" if len(wrong) > 1 else ""
        raise ValueError(
            f"The checkpoint does not fit this Shunted network: {min(wrong)}{more}; load weights of this architecture."
        )
    return out


_FIRST_CONV = "stages.0.patch_embed.conv.0"


def _from_official_name(name: str) -> str:
    """Stages count from 1 in the names of their parts, the branches of the attention in those of their layers."""
    name = re.sub(r"^head\.", "head.fc.", name)
    name = re.sub(r"^(patch_embed|norm)(\d)\.", lambda m: f"stages.{int(m[2]) - 1}.{m[1]}.", name)
    name = re.sub(r"^block(\d)\.", lambda m: f"stages.{int(m[1]) - 1}.blocks.", name)
    branch = {"1": "coarse", "2": "fine"}
    name = re.sub(r"\.attn\.(sr|norm|kv|local_conv)([12])\.", lambda m: f".attn.{branch[m[2]]}.{m[1]}.", name)
    return name.replace(".dwconv.dwconv.", ".dwconv.")


def _from_official(name: str, value: Tensor, shape: torch.Size) -> Tensor:
    """A tensor of the official layout in ours; `shape` is the parameter's.

    Where heads are split between branches, the official order is the coarse half, then the fine half; ours alternates.
    """
    if not name.startswith("stages.3."):
        if ".attn.q." in name:
            value = value.reshape(2, shape[0] // 2, *shape[1:]).transpose(0, 1)  # (h / 2, 2, d, ...)
        elif name.endswith(".attn.proj.weight"):
            value = value.reshape(shape[0], 2, shape[1] // 2, shape[2]).transpose(1, 2)  # (out, h / 2, 2, d)
    return value.reshape(shape)


# Registration


def _create_shunted(variant: str, pretrained: bool = False, **kwargs: Any) -> Shunted:
    if pretrained:
        cfg = resolve_pretrained_cfg(variant, kwargs.get("pretrained_cfg"), kwargs.get("pretrained_cfg_overlay"))
        if not (cfg.has_weights or cfg.state_dict):
            raise ValueError((_NOTHING_PUBLISHED if variant == "shunted" else _ON_A_DRIVE).format(variant))
    feature_cfg = dict(out_indices=(0, 1, 2, 3), flatten_sequential=True, feature_cls="getter")
    return build_model_with_cfg(
        Shunted,
        variant,
        pretrained,
        pretrained_filter_fn=checkpoint_filter_fn,
        feature_cfg={**feature_cfg, **(kwargs.pop("feature_cfg", None) or {})},
        **kwargs,
    )


_FOLDER = "timm.create_model('local-dir:<folder>', pretrained=True)"
_NOTHING_PUBLISHED = f"No weights of {{}} are published; use pretrained=False, or load a trained folder with {_FOLDER}."
_ON_A_DRIVE = (
    "The weights of {} are published only behind a drive link that cannot be fetched automatically; use "
    f"pretrained=False, or convert the official checkpoint with `s3zoo convert` and load the folder with {_FOLDER}."
)


def _cfg(**kwargs: Any) -> dict[str, Any]:
    return {
        "num_classes": 1000,
        "input_size": (3, 224, 224),
        "pool_size": (7, 7),
        "crop_pct": 0.875,
        "interpolation": "bicubic",
        "mean": IMAGENET_DEFAULT_MEAN,
        "std": IMAGENET_DEFAULT_STD,
        "first_conv": _FIRST_CONV,
        "classifier": "head.fc",
        "license": "unknown",  # of the weights: their repository has no licence file
        "origin_url": "https://github.com/OliverRensu/Shunted-Transformer",
        "paper_name": "Shunted Self-Attention via Multi-Scale Token Aggregation",
        "paper_ids": "arXiv:2111.15193",
        **kwargs,
    }


default_cfgs = generate_default_cfgs(
    {
        "shunted_tiny.in1k": _cfg(),
        "shunted_small.in1k": _cfg(),
        "shunted_base.in1k": _cfg(),
        "shunted.untrained": _cfg(license="apache-2.0"),
    }
)


def _published(depths: tuple[int, ...], stem_depth: int) -> Arch:
    """The published networks differ in depth only, that of the stem included."""
    stages = (
        Stage(64 * 2**i, (ShuntedBlock(num_heads=2 * 2**i, head_dim=32, mlp_ratio=ratio),) * depth)
        for i, (depth, ratio) in enumerate(zip(depths, (8.0, 8.0, 4.0, 4.0), strict=True))
    )
    return Arch("shunted", tuple(stages), stem_depth=stem_depth)


ARCHS = {
    "shunted_tiny": _published((1, 2, 4, 1), stem_depth=0),
    "shunted_small": _published((2, 4, 12, 1), stem_depth=1),
    "shunted_base": _published((3, 4, 24, 2), stem_depth=2),
}


@register_model
def shunted_tiny(pretrained: bool = False, **kwargs: Any) -> Shunted:
    """Shunted-T at 224 x 224."""
    return _create_shunted("shunted_tiny", pretrained, **{"arch": ARCHS["shunted_tiny"], **kwargs})


@register_model
def shunted_small(pretrained: bool = False, **kwargs: Any) -> Shunted:
    """Shunted-S at 224 x 224."""
    return _create_shunted("shunted_small", pretrained, **{"arch": ARCHS["shunted_small"], **kwargs})


@register_model
def shunted_base(pretrained: bool = False, **kwargs: Any) -> Shunted:
    """Shunted-B at 224 x 224."""
    return _create_shunted("shunted_base", pretrained, **{"arch": ARCHS["shunted_base"], **kwargs})


@register_model
def shunted(pretrained: bool = False, **kwargs: Any) -> Shunted:
    """Any architecture of the family: `timm.create_model("shunted", arch=...)`; Shunted-T unless one is given."""
    return _create_shunted("shunted", pretrained, **{"arch": ARCHS["shunted_tiny"], **kwargs})
