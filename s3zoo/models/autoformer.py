"""AutoFormer: plain vision transformers with searched width, depth, heads and MLP ratios.

Paper: AutoFormer: Searching Transformers for Visual Recognition, https://arxiv.org/abs/2107.00651
A class token is part of the sequence but not of the output, which is the mean over the patch tokens. Positions are
absolute (`pos_embed`) and relative: per block, two tables (vertical, horizontal) for the keys and two for the values.
"""

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from timm.data import IMAGENET_DEFAULT_MEAN, IMAGENET_DEFAULT_STD
from timm.layers import (
    Mlp,
    PatchEmbed,
    calculate_drop_path_rates,
    get_device_dtype,
    global_pool_nlc,
    register_notrace_function,
    resample_abs_pos_embed,
)
from timm.models import build_model_with_cfg, checkpoint, generate_default_cfgs, named_apply, register_model
from timm.models._builder import resolve_pretrained_cfg
from timm.models._features import feature_take_indices
from torch import Tensor, nn

from s3zoo.arch import Arch, AutoFormerBlock, Stage
from s3zoo.cost import RELATIVE_ROWS
from s3zoo.models import official
from s3zoo.models.layers import DropPath, HeadProjection, QkvLinear, trunc_normal_

__all__ = ["AutoFormer", "checkpoint_filter_fn", "largest_arch", "subnet_state_dict"]  # register_model adds the others

ArchLike = Arch | Mapping[str, Any] | str | Path
POOLS = ("avg", "token", "max", "avgmax", "")


@torch.fx.wrap
@register_notrace_function
def check_images(x: Tensor, in_chans: int, patch_size: int, img_size: tuple[int, int], dynamic: bool) -> Tensor:
    if x.ndim != 4 or x.shape[1] != in_chans:
        raise ValueError(
            f"The input has shape {list(x.shape)}, but must be (batch, {in_chans}, height, width); convert the images "
            f"or build the model with another in_chans."
        )
    height, width = x.shape[2], x.shape[3]
    if not dynamic and (height != img_size[0] or width != img_size[1]):
        raise ValueError(
            f"The images are {height} x {width}, but the model is built for {img_size[0]} x {img_size[1]}; resize "
            f"them, call set_input_size, or build the model with this img_size or with dynamic_img_size=True."
        )
    if height < patch_size or width < patch_size or height % patch_size != 0 or width % patch_size != 0:
        raise ValueError(
            f"The images are {height} x {width}, but both sides must be multiples of the patch size {patch_size}; "
            f"resize or pad them."
        )
    return x


@torch.fx.wrap
@register_notrace_function
def relative_rows(x: Tensor, height: int, width: int, max_distance: int) -> tuple[Tensor, Tensor]:
    """Which table row belongs to a query token and a line of keys, for tokens (class, then the grid row by row).

    Keys on one grid row share their vertical distance to a query, so there is one entry per query and grid row, and in
    the second tensor one per query and grid column. Distances are key - query, clamped; row 0 is for every pair with
    the class token, which is the first query and the first entry of each line.
    """

    row, col = torch.arange(height, device=x.device), torch.arange(width, device=x.device)
    vertical = (row - row[:, None]).clamp(-max_distance, max_distance) + max_distance + 1  # (h, h)
    horizontal = (col - col[:, None]).clamp(-max_distance, max_distance) + max_distance + 1  # (w, w)
    vertical = vertical.unsqueeze(1).expand(-1, width, -1).flatten(0, 1)  # (h * w, h)
    horizontal = horizontal.expand(height, -1, -1).flatten(0, 1)  # (h * w, w)
    return F.pad(vertical, [1, 0, 1, 0]), F.pad(horizontal, [1, 0, 1, 0])  # (N, 1 + h), (N, 1 + w)


class Attention(nn.Module):
    """Self-attention with 2-D relative positions on keys and values.

    logits_ij = q_i . (k_j + K[i,j]) / sqrt(head_dim) and out_i = sum_j a_ij (v_j + V[i,j]), where K and V are sums of a
    vertical and a horizontal table row. Instead of K and V (tokens x tokens x head_dim), queries are multiplied with
    the tables once and the products gathered; attention is summed per table row and multiplied with the tables.
    """

    def __init__(self, dim: int, num_heads: int, head_dim: int, device=None, dtype=None) -> None:
        super().__init__()
        dd = {"device": device, "dtype": dtype}
        self.num_heads = num_heads
        self.head_dim = head_dim
        self.scale = head_dim**-0.5
        self.qkv = QkvLinear(dim, num_heads, head_dim, **dd)
        self.rel_k_vertical = nn.Parameter(torch.empty(RELATIVE_ROWS, head_dim, **dd))
        self.rel_k_horizontal = nn.Parameter(torch.empty(RELATIVE_ROWS, head_dim, **dd))
        self.rel_v_vertical = nn.Parameter(torch.empty(RELATIVE_ROWS, head_dim, **dd))
        self.rel_v_horizontal = nn.Parameter(torch.empty(RELATIVE_ROWS, head_dim, **dd))
        self.proj = HeadProjection(num_heads, head_dim, dim, **dd)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        for table in (self.rel_k_vertical, self.rel_k_horizontal, self.rel_v_vertical, self.rel_v_horizontal):
            trunc_normal_(table, std=0.02)

    def forward(self, x: Tensor, vertical: Tensor, horizontal: Tensor) -> Tensor:
        B, N, _ = x.shape
        H, rows = self.num_heads, self.rel_k_vertical.shape[0]
        h, w = vertical.shape[1] - 1, horizontal.shape[1] - 1
        vertical, horizontal = vertical.expand(B, H, -1, -1), horizontal.expand(B, H, -1, -1)  # (B, H, N, 1 + h or w)
        q, k, v = self.qkv(x).reshape(B, N, H, 3, self.head_dim).permute(3, 0, 2, 1, 4).unbind(0)  # (B, H, N, d)
        q = q * self.scale

        products = q @ torch.cat([self.rel_k_vertical, self.rel_k_horizontal]).t()  # (B, H, N, 2 * rows)
        by_row = products[..., :rows].gather(-1, vertical)  # (B, H, N, 1 + h)
        by_col = products[..., rows:].gather(-1, horizontal)  # (B, H, N, 1 + w)
        bias = by_row[..., 1:].unsqueeze(-1) + by_col[..., 1:].unsqueeze(-2)  # (B, H, N, h, w)
        bias = torch.cat([by_row[..., :1] + by_col[..., :1], bias.flatten(-2)], dim=-1)  # (B, H, N, N)
        attn = (q @ k.transpose(-2, -1) + bias).softmax(dim=-1)

        on_class, on_grid = attn[..., :1], attn[..., 1:].reshape(B, H, N, h, w)
        zeros = attn.new_zeros([B, H, N, rows])
        sums_v = zeros.scatter_add(-1, vertical, torch.cat([on_class, on_grid.sum(-1)], dim=-1))
        sums_h = zeros.scatter_add(-1, horizontal, torch.cat([on_class, on_grid.sum(-2)], dim=-1))
        tables = torch.cat([self.rel_v_vertical, self.rel_v_horizontal])  # (2 * rows, d)
        x = attn @ v + torch.cat([sums_v, sums_h], dim=-1) @ tables  # (B, H, N, d)
        return self.proj(x.transpose(1, 2).reshape(B, N, H * self.head_dim))


class Block(nn.Module):
    def __init__(self, dim: int, genes: AutoFormerBlock, drop_path: float = 0.0, device=None, dtype=None) -> None:
        super().__init__()
        dd = {"device": device, "dtype": dtype}
        self.norm1 = nn.LayerNorm(dim, eps=1e-5, **dd)
        self.attn = Attention(dim, genes.num_heads, genes.head_dim, **dd)
        self.drop_path1 = DropPath(drop_path)
        self.norm2 = nn.LayerNorm(dim, eps=1e-5, **dd)
        self.mlp = Mlp(dim, int(dim * genes.mlp_ratio), **dd)
        self.drop_path2 = DropPath(drop_path)

    def forward(self, x: Tensor, vertical: Tensor, horizontal: Tensor) -> Tensor:
        x = x + self.drop_path1(self.attn(self.norm1(x), vertical, horizontal))
        return x + self.drop_path2(self.mlp(self.norm2(x)))


class AutoFormer(nn.Module):
    """The network that an `Arch` of family "autoformer" describes.

    Args:
        arch: an `Arch`, its dict or JSON, or the path of a JSON file.
        img_size: the size of the input, a multiple of the patch size on both sides.
        global_pool: "avg" (over the patch tokens), "token" (the class token), "max", "avgmax" or "" (none).
        drop_rate: dropout before the classifier.
        drop_path_rate: stochastic depth of the last block; it rises linearly from 0 at the first.
        dynamic_img_size: take any input size and resize the position embedding to it.
    """

    dynamic_img_size: torch.jit.Final[bool]

    def __init__(
        self,
        arch: ArchLike,
        img_size: int | tuple[int, int] = 224,
        in_chans: int = 3,
        num_classes: int = 1000,
        global_pool: str = "avg",
        drop_rate: float = 0.0,
        drop_path_rate: float = 0.0,
        dynamic_img_size: bool = False,
        device=None,
        dtype=None,
    ) -> None:
        super().__init__()
        dd = {"device": device, "dtype": dtype}
        arch = Arch.parse(arch)
        if arch.family != "autoformer":
            raise ValueError(
                f"The architecture is of family {arch.family!r}, but AutoFormer builds family 'autoformer'; use the "
                f"model {arch.family!r}."
            )
        self.arch = arch
        self.num_classes = num_classes
        self.in_chans = in_chans
        self.global_pool = _pool(global_pool)
        self.dynamic_img_size = dynamic_img_size
        self.output_fmt = "NLC"
        self.embed_dim = self.num_features = self.head_hidden_size = arch.embed_dims[0]
        self.num_prefix_tokens = 1
        self.patch_size = arch.patch_size
        self.max_distance = RELATIVE_ROWS // 2 - 1  # the rows are one for the class token and -14..14
        self.grad_checkpointing = False

        self.patch_embed = PatchEmbed(
            img_size=_to_size(img_size, arch.patch_size),
            patch_size=arch.patch_size,
            in_chans=in_chans,
            embed_dim=self.embed_dim,
            flatten=False,
            strict_img_size=False,
            **dd,
        )
        self.cls_token = nn.Parameter(torch.empty(1, 1, self.embed_dim, **dd))
        self.pos_embed = nn.Parameter(torch.empty(1, 1 + self.patch_embed.num_patches, self.embed_dim, **dd))
        depth = arch.depths[0]
        rates: Any = calculate_drop_path_rates(drop_path_rate, depth)
        self.blocks = nn.ModuleList(self.make_block(arch, 0, i, drop_path=rates[i], **dd) for i in range(depth))
        self.feature_info = [
            dict(num_chs=self.embed_dim, reduction=arch.patch_size, module=f"blocks.{i}") for i in range(depth)
        ]
        self.norm: nn.Module = nn.LayerNorm(self.embed_dim, eps=1e-5, **dd)
        self.head_drop = nn.Dropout(drop_rate)
        self.head: nn.Module = nn.Linear(self.embed_dim, num_classes, **dd) if num_classes > 0 else nn.Identity()
        self.init_weights(needs_reset=False)

    @staticmethod
    def make_block(arch: Arch, stage: int, index: int, *, drop_path: float = 0.0, device=None, dtype=None) -> nn.Module:
        """One block as the constructor builds it: its genes and the width decide, the input size does not."""
        genes = arch.stages[stage].blocks[index]
        assert isinstance(genes, AutoFormerBlock)
        return Block(arch.stages[stage].embed_dim, genes, drop_path, device=device, dtype=dtype)

    @staticmethod
    def blocks_path(stage: int) -> str:
        return "blocks"

    @torch.jit.ignore
    def init_weights(self, mode: str = "", needs_reset: bool = True) -> None:
        """Linear layers N(0, 0.02) truncated, biases 0; with `needs_reset` also every layer that resets itself."""

        def init(module: Any, name: str = "") -> None:
            if isinstance(module, nn.Linear):
                _init_linear(module)
            elif needs_reset and hasattr(module, "reset_parameters"):
                module.reset_parameters()

        if mode:
            raise ValueError(f"The initialisation mode is {mode!r}, but AutoFormer has one only; leave the mode empty.")
        trunc_normal_(self.pos_embed, std=0.02)
        trunc_normal_(self.cls_token, std=0.02)
        named_apply(init, self)

    @torch.jit.ignore
    def no_weight_decay(self) -> set[str]:
        # Tokens, tables, and biases that are factored here and therefore not 1-D.
        exempt = re.compile(r"^(pos_embed|cls_token)$|\.attn\.rel_[kv]_|\.qkv\.bias$")
        return {name for name, _ in self.named_parameters() if exempt.search(name)}

    @torch.jit.ignore
    def group_matcher(self, coarse: bool = False) -> dict[str, Any]:
        return dict(stem=r"^cls_token|pos_embed|patch_embed", blocks=[(r"^blocks\.(\d+)", None), (r"^norm", (99999,))])

    @torch.jit.ignore
    def set_grad_checkpointing(self, enable: bool = True) -> None:
        self.grad_checkpointing = enable

    @torch.jit.ignore
    def get_classifier(self) -> nn.Module:
        return self.head

    @torch.jit.ignore
    def reset_classifier(self, num_classes: int, global_pool: str | None = None) -> None:
        dd = get_device_dtype(self)
        self.num_classes = num_classes
        if global_pool is not None:
            self.global_pool = _pool(global_pool)
        self.head = _init_linear(nn.Linear(self.embed_dim, num_classes, **dd)) if num_classes > 0 else nn.Identity()
        self.head.train(self.training)

    @torch.jit.ignore
    def set_input_size(self, img_size: int | tuple[int, int]) -> None:
        """Build for another input size: the position embedding is resized, relative positions need nothing."""
        old = self.patch_embed.grid_size
        self.patch_embed.set_input_size(_to_size(img_size, self.patch_size))
        new = self.patch_embed.grid_size
        if new != old:
            resized = resample_abs_pos_embed(self.pos_embed.detach(), new_size=list(new), old_size=list(old))
            self.pos_embed = nn.Parameter(resized, requires_grad=self.pos_embed.requires_grad)

    def embed(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Tokens (B, N, C), the class token first, and the table rows of relative positions."""
        x = check_images(x, self.in_chans, self.patch_size, self.patch_embed.img_size, self.dynamic_img_size)
        x = self.patch_embed(x)
        h, w = x.shape[2], x.shape[3]
        x = x.flatten(2).transpose(1, 2)  # (B, h * w, C)
        pos_embed = self.pos_embed
        if self.dynamic_img_size:
            pos_embed = resample_abs_pos_embed(pos_embed, new_size=[h, w], old_size=self.patch_embed.grid_size)
        x = torch.cat([self.cls_token.expand(x.shape[0], -1, -1), x], dim=1) + pos_embed  # (B, N, C)
        vertical, horizontal = relative_rows(x, h, w, self.max_distance)
        return x, vertical, horizontal

    @torch.jit.ignore
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
        """The outputs of the blocks in `indices` (the last n if an int), and the final features.

        Args:
            return_prefix_tokens: give pairs of a map and the class token (B, 1, C).
            norm: apply the final norm to every map.
            stop_early: run no block after the last one that is wanted.
            output_fmt: "NCHW" or "NLC".
        """
        if output_fmt not in ("NCHW", "NLC"):
            raise ValueError(f"output_fmt is {output_fmt!r}, but must be 'NCHW' or 'NLC'.")
        take, last = feature_take_indices(len(self.blocks), indices)
        h, w = x.shape[-2] // self.patch_size, x.shape[-1] // self.patch_size
        x, vertical, horizontal = self.embed(x)
        maps: list[Any] = []
        for i, block in enumerate(self.blocks[: last + 1] if stop_early else self.blocks):
            run = partial(checkpoint, block) if self.grad_checkpointing else block
            x = run(x, vertical, horizontal)
            if i in take:
                y = self.norm(x) if norm else x
                tokens = y[:, 1:]
                if output_fmt == "NCHW":
                    tokens = tokens.transpose(1, 2).reshape(x.shape[0], -1, h, w)  # (B, C, h, w)
                maps.append((tokens, y[:, :1]) if return_prefix_tokens else tokens)
        return maps if intermediates_only else (self.norm(x), maps)

    @torch.jit.ignore
    def prune_intermediate_layers(
        self, indices: int | list[int] = 1, prune_norm: bool = False, prune_head: bool = True
    ) -> list[int]:
        take, last = feature_take_indices(len(self.blocks), indices)
        self.blocks = self.blocks[: last + 1]
        stage = self.arch.stages[0]
        self.arch = replace(self.arch, stages=(Stage(stage.embed_dim, stage.blocks[: last + 1]),))
        if prune_norm:
            self.norm = nn.Identity()
        if prune_head:
            self.reset_classifier(0, "")
        return take

    def forward_features(self, x: Tensor) -> Tensor:
        x, vertical, horizontal = self.embed(x)
        for block in self.blocks:
            if self.grad_checkpointing and not torch.jit.is_scripting():
                x = checkpoint(block, x, vertical, horizontal)
            else:
                x = block(x, vertical, horizontal)
        return self.norm(x)

    def forward_head(self, x: Tensor, pre_logits: bool = False) -> Tensor:
        x = global_pool_nlc(x, pool_type=self.global_pool, num_prefix_tokens=self.num_prefix_tokens)
        x = self.head_drop(x)
        return x if pre_logits else self.head(x)

    def forward(self, x: Tensor) -> Tensor:
        return self.forward_head(self.forward_features(x))


def _init_linear(layer: nn.Linear) -> nn.Linear:
    trunc_normal_(layer.weight, std=0.02)
    nn.init.zeros_(layer.bias)
    return layer


def _pool(global_pool: str) -> str:
    if global_pool not in POOLS:
        raise ValueError(f"global_pool is {global_pool!r}, but must be one of {', '.join(map(repr, POOLS))}.")
    return global_pool


def _to_size(img_size: int | Sequence[int], patch_size: int) -> tuple[int, int]:
    size = tuple(img_size) if isinstance(img_size, Sequence) else (img_size, img_size)
    if len(size) != 2 or any(isinstance(s, bool) or not isinstance(s, int) or s < 1 or s % patch_size for s in size):
        raise ValueError(
            f"img_size is {img_size!r}, but must be a multiple of the patch size {patch_size}, or a pair (height, "
            "width) of such."
        )
    return size


# Checkpoints


_TABLES = {  # official name -> ours, below a block
    f"attn.rel_pos_embed_{c}.embeddings_table_{axis[0]}": f"attn.rel_{c}_{axis}"
    for c in "kv"
    for axis in ("vertical", "horizontal")
}


def is_official(state_dict: Mapping[str, Any]) -> bool:
    return "patch_embed_super.proj.weight" in state_dict


def _check_official(state_dict: Mapping[str, Tensor]) -> int:
    """The depth of an official supernet, once it is sure that it has all of its tensors and no others."""
    depth = len({key.split(".")[1] for key in state_dict if key.startswith("blocks.")})
    layers = ("attn_layer_norm", "ffn_layer_norm", "attn.qkv", "attn.proj", "fc1", "fc2")
    pairs = [f"blocks.{i}.{layer}" for i in range(depth) for layer in layers]
    pairs += ["patch_embed_super.proj", "norm", "head"]
    expected = {"pos_embed", "cls_token", *(f"{pair}.{kind}" for pair in pairs for kind in ("weight", "bias"))}
    expected |= {f"blocks.{i}.{table}" for i in range(depth) for table in _TABLES}
    missing, unknown = sorted(expected - set(state_dict)), sorted(set(state_dict) - expected)
    if missing or unknown or not depth:
        wrong = f"lacks {missing[0]!r}" if missing else f"has the unknown {unknown[0]!r}" if unknown else "has no block"
        raise ValueError(
            f"The checkpoint {wrong}, so it is no official AutoFormer supernet (trained with relative positions); give "
            "one of supernet-tiny.pth, supernet-small.pth and supernet-base.pth."
        )
    return depth


def largest_arch(state_dict: Mapping[str, Tensor]) -> Arch:
    """The largest network that an official supernet holds."""
    depth = _check_official(state_dict)
    embed_dim, _, patch_size, _ = state_dict["patch_embed_super.proj.weight"].shape
    head_dim = state_dict["blocks.0.attn.rel_pos_embed_k.embeddings_table_v"].shape[1]
    num_heads = state_dict["blocks.0.attn.qkv.weight"].shape[0] // (3 * head_dim)
    mlp_ratio = state_dict["blocks.0.fc1.weight"].shape[0] / embed_dim
    block = AutoFormerBlock(num_heads=num_heads, head_dim=head_dim, mlp_ratio=mlp_ratio)
    return Arch("autoformer", (Stage(embed_dim, (block,) * depth),), patch_size)


def _check_inside(arch: Arch, largest: Arch) -> None:
    def refuse(gene: str, value: Any, valid: Any) -> ValueError:
        return ValueError(f"{gene} is {value}, but this supernet holds {valid}; choose a subnet inside it.")

    if arch.family != "autoformer" or arch.patch_size != largest.patch_size:
        raise refuse("family and patch size", (arch.family, arch.patch_size), (largest.family, largest.patch_size))
    dim = arch.embed_dims[0]
    if dim > largest.embed_dims[0]:
        raise refuse("embed_dim", dim, f"at most {largest.embed_dims[0]}")
    if arch.depths[0] > largest.depths[0]:
        raise refuse("the number of blocks", arch.depths[0], f"at most {largest.depths[0]}")
    for i, (block, most) in enumerate(zip(arch.stages[0].blocks, largest.stages[0].blocks, strict=False)):
        assert isinstance(block, AutoFormerBlock) and isinstance(most, AutoFormerBlock)
        if block.head_dim != most.head_dim:
            raise refuse(f"blocks[{i}].head_dim", block.head_dim, most.head_dim)
        if block.num_heads > most.num_heads:
            raise refuse(f"blocks[{i}].num_heads", block.num_heads, f"at most {most.num_heads}")
        hidden = int(largest.embed_dims[0] * most.mlp_ratio)
        if int(dim * block.mlp_ratio) > hidden:
            raise refuse(f"blocks[{i}].mlp_ratio", block.mlp_ratio, f"at most {hidden} hidden units")


def official_qkv_bias(bias: Tensor, num_heads: int, head_dim: int) -> Tensor:
    """The flat bias of an official supernet for a block with fewer heads, in our layout.

    Unlike the weight, whose row 3j + t is component j of (q, k, v)[t], the bias is cut as a plain prefix, so what a
    bias entry means depends on the number of heads: this parameter of a supernet does not nest.
    """
    return bias[: 3 * num_heads * head_dim].reshape(3, num_heads, head_dim).transpose(0, 1)  # (h, 3, d)


def subnet_state_dict(state_dict: Mapping[str, Tensor], arch: Arch) -> dict[str, Tensor]:
    """The weights of a subnet of an official supernet, in our layout; tensors are copies."""
    _check_inside(arch, largest_arch(state_dict))
    d = arch.embed_dims[0]
    out = {
        "cls_token": state_dict["cls_token"][..., :d],
        "pos_embed": state_dict["pos_embed"][..., :d],
        "patch_embed.proj.weight": state_dict["patch_embed_super.proj.weight"][:d],
        "patch_embed.proj.bias": state_dict["patch_embed_super.proj.bias"][:d],
    }
    for i, block in enumerate(arch.stages[0].blocks):
        assert isinstance(block, AutoFormerBlock)
        h, e, q, f = block.num_heads, block.head_dim, block.qkv_dim, int(d * block.mlp_ratio)
        prefix = f"blocks.{i}."
        source = {key.removeprefix(prefix): v for key, v in state_dict.items() if key.startswith(prefix)}
        qkv = source["attn.qkv.weight"][: 3 * q, :d].reshape(h, e, 3, d).transpose(1, 2)  # (h, 3, e, d)
        new = {
            "attn.qkv.weight": qkv,
            "attn.qkv.bias": official_qkv_bias(source["attn.qkv.bias"], h, e),
            "attn.proj.weight": source["attn.proj.weight"][:d, :q].reshape(d, h, e),
            "attn.proj.bias": source["attn.proj.bias"][:d],
            "mlp.fc1.weight": source["fc1.weight"][:f, :d],
            "mlp.fc1.bias": source["fc1.bias"][:f],
            "mlp.fc2.weight": source["fc2.weight"][:d, :f],
            "mlp.fc2.bias": source["fc2.bias"][:d],
        }
        for kind in ("weight", "bias"):
            new[f"norm1.{kind}"] = source[f"attn_layer_norm.{kind}"][:d]
            new[f"norm2.{kind}"] = source[f"ffn_layer_norm.{kind}"][:d]
        new |= {ours: source[theirs] for theirs, ours in _TABLES.items()}
        out |= {prefix + name: value for name, value in new.items()}
    out |= {f"norm.{kind}": state_dict[f"norm.{kind}"][:d] for kind in ("weight", "bias")}
    out |= {"head.weight": state_dict["head.weight"][:, :d], "head.bias": state_dict["head.bias"]}
    return {name: value.clone(memory_format=torch.contiguous_format) for name, value in out.items()}


def checkpoint_filter_fn(state_dict: dict[str, Any], model: AutoFormer) -> dict[str, Tensor]:
    """Weights for `model` from our layout or an official supernet, the position embedding resized if need be."""
    for key in ("model", "state_dict"):
        if isinstance(state_dict.get(key), Mapping):
            state_dict = state_dict[key]
    state_dict = subnet_state_dict(state_dict, model.arch) if is_official(state_dict) else dict(state_dict)
    _check_fits(state_dict, model)
    pos_embed, new = state_dict["pos_embed"], model.patch_embed.grid_size
    old = _source_grid(pos_embed.shape[1] - 1, model)
    state_dict["pos_embed"] = resample_abs_pos_embed(pos_embed, new_size=list(new), old_size=list(old))
    return state_dict


def _check_fits(state_dict: Mapping[str, Tensor], model: AutoFormer) -> None:
    """Names and shapes must be the model's, except for what is adapted: positions here, channels, classes by timm."""
    expected = {name: list(tensor.shape) for name, tensor in model.state_dict().items()}
    given = {name: list(tensor.shape) for name, tensor in state_dict.items()}
    free = []
    if given.get("pos_embed", [])[::2] == expected["pos_embed"][::2]:
        free.append("pos_embed")
    if model.in_chans != 3 and given.get("patch_embed.proj.weight", [0, 0])[1] == 3:
        free.append("patch_embed.proj.weight")
    if model.num_classes != (getattr(model, "pretrained_cfg", None) or {}).get("num_classes"):
        free += ["head.weight", "head.bias"]
    names = sorted((expected.keys() | given.keys()) - set(free))
    wrong = [name for name in names if expected.get(name) != given.get(name)]
    if wrong:
        raise ValueError(
            f"The checkpoint does not fit this AutoFormer: {wrong[0]} is {given.get(wrong[0], 'absent')} instead of "
            f"{expected.get(wrong[0], 'absent')} (and {len(wrong) - 1} more such differences); give weights of this "
            "architecture."
        )


def _source_grid(patches: int, model: AutoFormer) -> tuple[int, int]:
    """The grid that a position embedding was made for: the one its config names, else the model's, else a square."""
    size = (getattr(model, "pretrained_cfg", None) or {}).get("input_size")
    named = [tuple(side // model.patch_size for side in size[-2:])] if size else []
    side = math.isqrt(patches)
    for grid in (*named, model.patch_embed.grid_size, (side, side)):
        if grid[0] * grid[1] == patches:
            return grid
    raise ValueError(
        f"The checkpoint's position embedding has {patches} patches, which is no square grid; name its input_size in "
        "pretrained_cfg_overlay."
    )


# Entrypoints


def _arch(embed_dim: int, num_heads: str, mlp_ratios: Sequence[float]) -> Arch:
    blocks = (AutoFormerBlock(int(h), 64, r) for h, r in zip(num_heads.split(), mlp_ratios, strict=True))
    return Arch("autoformer", (Stage(embed_dim, tuple(blocks)),))


# The published subnets.
TINY = _arch(192, "3 3 3 3 3 3 3 3 3 3 4 3 3", (3.5, 3.5, 3, 3.5, 3, 3, 4, 4, 3.5, 4, 3.5, 4, 3.5))
SMALL = _arch(384, "6 6 5 7 5 5 5 6 6 7 7 6 7", (3, 3.5, 3, 3.5, 4, 4, 4, 4, 4, 4, 4, 3.5, 4))
BASE = _arch(576, "9 9 9 9 9 10 9 9 10 9 10 9 9 10", (3.5, 3.5, 4, 3.5, 4, 3.5, 3.5, 3, 4, 4, 3, 4, 3, 3.5))


def _create_autoformer(variant: str, pretrained: bool = False, **kwargs: Any) -> nn.Module:
    feature_cfg = dict(out_indices=3, feature_cls="getter") | kwargs.pop("feature_cfg", {})
    if pretrained:
        kwargs["pretrained_cfg_overlay"] = _with_weights(variant, kwargs)
    return build_model_with_cfg(
        AutoFormer,
        variant,
        pretrained,
        pretrained_filter_fn=checkpoint_filter_fn,
        feature_cfg=feature_cfg,
        **kwargs,
    )


def _with_weights(variant: str, kwargs: dict[str, Any]) -> dict[str, Any]:
    """The overlay of the pretrained config that makes timm load a file in our layout.

    What is published are supernets: fetched once, cut to the subnet, kept in the cache.
    """
    overlay = dict(kwargs.get("pretrained_cfg_overlay") or {})
    cfg = resolve_pretrained_cfg(variant, kwargs.get("pretrained_cfg"), overlay)
    if cfg.state_dict or cfg.file or cfg.hf_hub_id:
        return overlay
    if not cfg.url:
        instead = "take autoformer_tiny, autoformer_small or autoformer_base, or 'local-dir:FOLDER' of a saved network"
        if variant == "autoformer_small_384":
            instead = "start from autoformer_small with pretrained=True and img_size=384"
        raise ValueError(f"No pretrained weights are published for {variant}; use pretrained=False, or {instead}.")
    arch = Arch.parse(kwargs["arch"])
    name = f"{variant}.{cfg.tag}-{arch.key}" if cfg.tag else f"{variant}-{arch.key}"

    def cut(weights: dict[str, Tensor]) -> dict[str, Tensor]:
        return subnet_state_dict(weights, arch)

    return overlay | {"file": str(official.converted(str(cfg.url), name, cut, kwargs.get("cache_dir")))}


def _cfg(url: str = "", **kwargs: Any) -> dict[str, Any]:
    return {
        "url": url,
        "num_classes": 1000,
        "input_size": (3, 224, 224),
        "pool_size": None,
        "crop_pct": 0.875,
        "interpolation": "bicubic",
        "fixed_input_size": True,
        "mean": IMAGENET_DEFAULT_MEAN,
        "std": IMAGENET_DEFAULT_STD,
        "first_conv": "patch_embed.proj",
        "classifier": "head",
        "license": "mit",
        "paper_ids": "arXiv:2107.00651",
        "paper_name": "AutoFormer: Searching Transformers for Visual Recognition",
        "origin_url": "https://github.com/microsoft/Cream/tree/main/AutoFormer",
        **kwargs,
    }


_RELEASE = "https://github.com/silent-chen/AutoFormer-model-zoo/releases/download/v1.0/"

default_cfgs = generate_default_cfgs(
    {
        "autoformer_tiny.ms_in1k": _cfg(_RELEASE + "supernet-tiny.pth"),
        "autoformer_small.ms_in1k": _cfg(_RELEASE + "supernet-small.pth"),
        "autoformer_base.ms_in1k": _cfg(_RELEASE + "supernet-base.pth"),
        "autoformer_small_384.untrained": _cfg(input_size=(3, 384, 384)),
        "autoformer.untrained": _cfg(),
    }
)


@register_model
def autoformer_tiny(pretrained: bool = False, **kwargs: Any) -> nn.Module:
    return _create_autoformer("autoformer_tiny", pretrained, **{"arch": TINY} | kwargs)


@register_model
def autoformer_small(pretrained: bool = False, **kwargs: Any) -> nn.Module:
    return _create_autoformer("autoformer_small", pretrained, **{"arch": SMALL} | kwargs)


@register_model
def autoformer_base(pretrained: bool = False, **kwargs: Any) -> nn.Module:
    return _create_autoformer("autoformer_base", pretrained, **{"arch": BASE} | kwargs)


@register_model
def autoformer_small_384(pretrained: bool = False, **kwargs: Any) -> nn.Module:
    return _create_autoformer("autoformer_small_384", pretrained, **{"arch": SMALL} | kwargs)


@register_model
def autoformer(pretrained: bool = False, **kwargs: Any) -> nn.Module:
    """Any AutoFormer: pass `arch` (an `Arch`, its dict or JSON, or the path of a JSON file); without, the tiny one."""
    return _create_autoformer("autoformer", pretrained, **{"arch": TINY} | kwargs)
