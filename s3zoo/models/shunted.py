"""Shunted Transformer: hierarchical vision transformers whose heads attend to tokens merged at two rates.

Paper: Shunted Self-Attention via Multi-Scale Token Aggregation, https://arxiv.org/abs/2111.15193
The published networks and any `Arch` of family "shunted" build. Rates of merging (8, 4, 2, 1 by stage) and the 64
channels of the stem are no genes: they are the official code's constants. Nothing depends on the input size.
"""

import math
import re
from collections import OrderedDict
from collections.abc import Callable, Mapping
from typing import Any

import torch
import torch.nn.functional as F
from timm.layers import register_notrace_module
from timm.models import generate_default_cfgs
from torch import Tensor, nn

from s3zoo.arch import Arch
from s3zoo.families.shunted import ARCHS, MERGING_RATES, STEM_DIM, ShuntedBlock
from s3zoo.models._base import ArchLike, BlockSequence, Hierarchical, Size
from s3zoo.models.layers import DropPath, HeadLinear, HeadProjection, depthwise_conv2d
from s3zoo.models.loading import IMAGENET, ON_A_DRIVE, fit_weights, register
from s3zoo.models.official import unwrap
from s3zoo.models.plain import declare, reshaped

__all__ = ["Shunted", "checkpoint_filter_fn"]  # register adds the entrypoints


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

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Any:
        def convert(tensor: Tensor) -> Tensor:
            try:
                return fn(tensor)
            except RuntimeError:  # channels_last, which torch asks five axes for volumes only
                if tensor.ndim != 5:
                    raise
                return fn(tensor.flatten(0, 1)).view(tensor.shape)

        return super()._apply(convert, recurse)

    def forward(self, x: Tensor) -> Tensor:
        weight = self.weight.flatten(0, 1)  # (h * d, 1, 3, 3)
        x = depthwise_conv2d(x.permute(0, 3, 1, 2), weight, self.bias.flatten(), (1, 1))
        return x.permute(0, 2, 3, 1)  # (B, H, W, h * d)


class PlainHeadConv(nn.Module):
    """`HeadConv` with a convolution of torch."""

    def __init__(self, layer: HeadConv) -> None:
        super().__init__()
        width = layer.bias.numel()
        self.conv = nn.Conv2d(width, width, 3, padding=1, groups=width, device="meta", dtype=layer.weight.dtype)

    def forward(self, x: Tensor) -> Tensor:
        return self.conv(x.permute(0, 3, 1, 2)).permute(0, 2, 3, 1)  # (B, H, W, h * d)


declare(
    HeadConv,
    PlainHeadConv,
    weight=reshaped("conv.weight", lambda w: w.flatten(0, 1)),
    bias=reshaped("conv.bias", torch.flatten),
)


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


class Stem(nn.Module):
    """Images to tokens (B, H / patch, W / patch, C) by convolutions of 64 channels, all but the last at half size."""

    def __init__(
        self, in_chans: int, embed_dim: int, patch_size: int, extra_convs: int, device=None, dtype=None
    ) -> None:
        super().__init__()
        dd = {"device": device, "dtype": dtype}
        layers: list[nn.Module] = [nn.Conv2d(in_chans, STEM_DIM, 7, stride=2, padding=3, bias=False, **dd)]
        for _ in range(extra_convs):
            layers += [nn.BatchNorm2d(STEM_DIM, **dd), nn.ReLU(inplace=True)]
            layers += [nn.Conv2d(STEM_DIM, STEM_DIM, 3, padding=1, bias=False, **dd)]
        layers += [nn.BatchNorm2d(STEM_DIM, **dd), nn.ReLU(inplace=True)]
        layers += [nn.Conv2d(STEM_DIM, embed_dim, patch_size // 2, stride=patch_size // 2, **dd)]
        self.conv = nn.Sequential(*layers)
        self.norm = nn.LayerNorm(embed_dim, **dd)

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(self.conv(x).permute(0, 2, 3, 1))  # (B, H / patch, W / patch, C)


class Downsample(nn.Module):
    """Overlapping 3 x 3 patches to tokens of the next stage, at half the size."""

    def __init__(self, dim: int, out_dim: int, device=None, dtype=None) -> None:
        super().__init__()
        self.proj = nn.Conv2d(dim, out_dim, 3, stride=2, padding=1, device=device, dtype=dtype)
        self.norm = nn.LayerNorm(out_dim, device=device, dtype=dtype)

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(self.proj(x.permute(0, 3, 1, 2)).permute(0, 2, 3, 1))  # (B, H / 2, W / 2, out)


class Shunted(Hierarchical):
    """The network that an `Arch` of family "shunted" describes. Any input size works; `img_size` is the one it is
    meant for.

    Args:
        arch: an `Arch`, its dict or JSON, or the path of a JSON file.
        drop_rate: dropout before the classifier.
        drop_path_rate: stochastic depth of the last block; it rises linearly from 0 at the first.
        kwargs: in_chans, num_classes and global_pool, as in timm.
    """

    family = "shunted"
    first_conv = "stages.0.patch_embed.conv.0"

    def __init__(
        self, arch: ArchLike, img_size: Size = 224, *, drop_rate: float = 0.0, drop_path_rate: float = 0.0,
        device=None, dtype=None, **kwargs: Any,
    ) -> None:  # fmt: skip
        arch = self.parse(arch)
        # What the stem's first convolution halves must still hold one patch of its last one.
        super().__init__(arch, img_size, smallest=arch.patch_size - 1, **kwargs)
        dd = {"device": device, "dtype": dtype}
        stages = []
        for i, dim in enumerate(arch.embed_dims):
            patch_embed: nn.Module = (
                Downsample(arch.embed_dims[i - 1], dim, **dd)
                if i
                else Stem(self.in_chans, dim, arch.patch_size, arch.stem_depth, **dd)
            )
            blocks = BlockSequence(*self.make_blocks(i, drop_path_rate, **dd))
            norm = nn.LayerNorm(dim, eps=1e-6, **dd)
            stages.append(nn.Sequential(OrderedDict(patch_embed=patch_embed, blocks=blocks, norm=norm)))
        self.patch_embed = nn.Identity()  # the first stage has the stem
        self.stages = nn.Sequential(*stages)
        self.norm = nn.Identity()  # each stage ends in its own
        self.head = self.make_head(drop_rate, **dd)
        self.init_weights(needs_reset=False)

    @classmethod
    def parse(cls, arch: ArchLike) -> Arch:
        arch = super().parse(arch)
        if arch.patch_size % 2:
            raise ValueError(
                f"patch_size is {arch.patch_size}, but must be even in family 'shunted', whose stem starts at half "
                "size."
            )
        for i, stage in enumerate(arch.stages[:-1]):
            for j, block in enumerate(stage.blocks):
                if block.num_heads % 2:
                    raise ValueError(
                        f"stages[{i}].blocks[{j}].num_heads is {block.num_heads}, but must be even in the first three "
                        "stages of family 'shunted', where half of the heads see coarser tokens."
                    )
        return arch

    @staticmethod
    def make_block(arch: Arch, stage: int, index: int, *, drop_path: float = 0.0, device=None, dtype=None) -> nn.Module:
        """One block as the constructor builds it: genes, width and stage decide, the input size does not."""
        where = arch.stages[stage]
        genes = where.blocks[index]
        assert isinstance(genes, ShuntedBlock)
        return Block(where.embed_dim, genes, MERGING_RATES[stage], drop_path, device=device, dtype=dtype)

    def init_layer(self, module: nn.Module) -> bool:
        if isinstance(module, nn.Conv2d):
            kernel = module.kernel_size[0] * module.kernel_size[1]
            _normal_by_fan_out(module.weight, kernel * module.out_channels // module.groups)
            if module.bias is not None:
                nn.init.zeros_(module.bias)
            return True
        return super().init_layer(module)


def _normal_by_fan_out(weight: Tensor, fan_out: int) -> None:
    if not weight.is_meta:
        nn.init.normal_(weight, std=math.sqrt(2 / fan_out))


# Checkpoints


def checkpoint_filter_fn(state_dict: Mapping[str, Any], model: nn.Module) -> dict[str, Tensor]:
    """Weights of our own or the official layout for this model."""
    weights = unwrap(state_dict)
    official = any(key.startswith("patch_embed1.") for key in weights)
    if official:
        weights = {_from_official_name(key): value for key, value in weights.items()}

    def adapt(name: str, value: Tensor, shape: torch.Size) -> Tensor:
        return _from_official(name, value, shape) if official else value

    return fit_weights(weights, model, adapt)


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


_CFG = IMAGENET | {
    "pool_size": (7, 7),
    "crop_pct": 0.875,
    "first_conv": Shunted.first_conv,
    "classifier": "head.fc",
    "license": "unknown",  # of the weights: their repository has no licence file
    "origin_url": "https://github.com/OliverRensu/Shunted-Transformer",
    "paper_name": "Shunted Self-Attention via Multi-Scale Token Aggregation",
    "paper_ids": "arXiv:2111.15193",
}
default_cfgs = generate_default_cfgs(
    {
        "shunted_tiny.in1k": _CFG,
        "shunted_small.in1k": _CFG,
        "shunted_base.in1k": _CFG,
        "shunted.untrained": _CFG | {"license": "apache-2.0"},
    }
)
for _name, _arch in ARCHS.items():
    register(Shunted, _name, f"Shunted-{_name[8].upper()} at 224 x 224.", ON_A_DRIVE, arch=_arch)
_ANY = "Any architecture of the family: `timm.create_model(\"shunted\", arch=...)`; Shunted-T unless one is given."
register(Shunted, "shunted", _ANY, arch=ARCHS["shunted_tiny"])
