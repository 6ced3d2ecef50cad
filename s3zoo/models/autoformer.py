"""AutoFormer: plain vision transformers with searched width, depth, heads and MLP ratios.

Paper: AutoFormer: Searching Transformers for Visual Recognition, https://arxiv.org/abs/2107.00651
A class token is part of the sequence but not of the output, which is the mean over the patch tokens. Positions are
absolute (`pos_embed`) and relative: per block, two tables (vertical, horizontal) for the keys and two for the values.
"""

from collections.abc import Mapping
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from timm.layers import Mlp, register_notrace_function
from timm.models import checkpoint, generate_default_cfgs
from timm.models._builder import resolve_pretrained_cfg
from torch import Tensor, nn

from s3zoo.arch import Arch, Stage
from s3zoo.families.autoformer import BASE, RELATIVE_ROWS, SMALL, TINY, AutoFormerBlock
from s3zoo.models import official
from s3zoo.models._base import Plain
from s3zoo.models.layers import DropPath, HeadProjection, QkvLinear, attend, trunc_normal_
from s3zoo.models.loading import IMAGENET, build, fit_pos_embed, fit_weights, register
from s3zoo.models.official import unwrap

__all__ = ["AutoFormer", "checkpoint_filter_fn", "largest_arch", "subnet_state_dict"]  # register adds the others

MAX_DISTANCE = RELATIVE_ROWS // 2 - 1  # the rows are one for the class token and -14..14


@torch.fx.wrap
@register_notrace_function
def relative_rows(x: Tensor, height: int, width: int, max_distance: int = MAX_DISTANCE) -> tuple[Tensor, Tensor]:
    """Which table rows belong to a query and the lines of the grid, and on which lines the keys are.

    Tokens are the class, then the grid row by row. Keys on one grid row share their vertical distance to a query, those
    on one column their horizontal one, so the lines are the class and the grid's rows, then the class and the grid's
    columns, then nothing up to a multiple of 8, which makes products faster. The first tensor (tokens, lines) counts
    rows of the vertical and the horizontal table, one below the other: distances are key - query, clamped; a table's
    row 0 is for every pair with the class token. The second (tokens, lines) is 1 where a token is on a line.
    """
    row, col = torch.arange(height, device=x.device), torch.arange(width, device=x.device)
    vertical = (row - row[:, None]).clamp(-max_distance, max_distance) + max_distance + 1  # (h, h)
    horizontal = (col - col[:, None]).clamp(-max_distance, max_distance) + max_distance + 1  # (w, w)
    vertical = vertical.unsqueeze(1).expand(-1, width, -1).flatten(0, 1)  # (h * w, h)
    horizontal = horizontal.expand(height, -1, -1).flatten(0, 1)  # (h * w, w)
    vertical, horizontal = F.pad(vertical, [1, 0, 1, 0]), F.pad(horizontal, [1, 0, 1, 0])  # (N, 1 + h), (N, 1 + w)
    rows = torch.cat([vertical, horizontal + 2 * (max_distance + 1)], dim=1)
    row = F.pad(row.unsqueeze(1).expand(-1, width).flatten() + 1, [1, 0])  # (N)
    col = F.pad(col.expand(height, -1).flatten() + 1, [1, 0])
    on_row = row.unsqueeze(1) == torch.arange(height + 1, device=x.device)
    on_col = col.unsqueeze(1) == torch.arange(width + 1, device=x.device)
    lines = torch.cat([on_row, on_col], dim=1).to(x.dtype)
    rest = -lines.shape[1] % 8
    return F.pad(rows, [0, rest]), F.pad(lines, [0, rest])


class Attention(nn.Module):
    """Self-attention with 2-D relative positions on keys and values.

    logits_ij = q_i . (k_j + K[i,j]) / sqrt(head_dim) and out_i = sum_j a_ij (v_j + V[i,j]), where K and V are sums of a
    vertical and a horizontal table row. Instead of K and V (tokens x tokens x head_dim), queries are multiplied with
    the tables once, and what a query needs of that is appended to it, one number per line of the grid. To keys and
    values is appended on which lines they are. Then one product gives the logits with positions, and the other the
    output and, next to it, the attention summed per line, which is multiplied with the tables.
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
            trunc_normal_(table)

    def forward(self, x: Tensor, rows: Tensor, lines: Tensor) -> Tensor:
        B, N, _ = x.shape
        H, d = self.num_heads, self.head_dim
        q, k, v = self.qkv(x).reshape(B, N, H, 3, d).permute(3, 0, 2, 1, 4).unbind(0)  # (B, H, N, d)
        rows, lines = rows.expand(B, H, -1, -1), lines.to(q.dtype).expand(B, H, -1, -1)  # (B, H, N, lines)
        products = q @ torch.cat([self.rel_k_vertical, self.rel_k_horizontal]).t()  # (B, H, N, table rows)
        q = torch.cat([q, products.gather(-1, rows)], dim=-1)
        x = attend(
            q, torch.cat([k, lines], dim=-1), torch.cat([v, lines], dim=-1), scale=self.scale
        )  # (B, H, N, d + lines)
        sums = torch.zeros_like(products).scatter_add(-1, rows, x[..., d:])  # (B, H, N, table rows)
        x = x[..., :d] + sums @ torch.cat([self.rel_v_vertical, self.rel_v_horizontal])
        return self.proj(x.transpose(1, 2).reshape(B, N, H * d))


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

    def forward(self, x: Tensor, rows: Tensor, lines: Tensor) -> Tensor:
        x = x + self.drop_path1(self.attn(self.norm1(x), rows, lines))
        return x + self.drop_path2(self.mlp(self.norm2(x)))


class AutoFormer(Plain):
    """The network that an `Arch` of family "autoformer" describes.

    Args:
        arch: an `Arch`, its dict or JSON, or the path of a JSON file.
        img_size: the size of the input, a multiple of the patch size on both sides.
        global_pool: "avg" (over the patch tokens), "token" (the class token), "max", "avgmax" or "" (none).
        drop_rate: dropout before the classifier.
        drop_path_rate: stochastic depth of the last block; it rises linearly from 0 at the first.
        dynamic_img_size: take any input size, padded to whole patches, and resize the position embedding to it.
    """

    family = "autoformer"
    no_decay = Plain.no_decay + r"|\.attn\.rel_[kv]_"
    pools = ("avg", "token", "max", "avgmax", "")
    norm_eps = 1e-5

    @staticmethod
    def make_block(arch: Arch, stage: int, index: int, *, drop_path: float = 0.0, device=None, dtype=None) -> nn.Module:
        """One block as the constructor builds it: its genes and the width decide, the input size does not."""
        genes = arch.stages[stage].blocks[index]
        assert isinstance(genes, AutoFormerBlock)
        return Block(arch.stages[stage].embed_dim, genes, drop_path, device=device, dtype=dtype)

    @torch.jit.ignore
    def reset_classifier(self, num_classes: int, global_pool: str | None = None) -> None:
        super().reset_classifier(num_classes, global_pool)
        self.init_layer(self.head)

    def positions(self, x: Tensor, height: int, width: int) -> tuple[Tensor, Tensor]:
        return relative_rows(x, height, width)

    def forward_features(self, x: Tensor) -> Tensor:
        x, height, width = self.embed(x)
        rows, lines = self.positions(x, height, width)
        for block in self.blocks:
            if self.grad_checkpointing and not torch.jit.is_scripting():
                x = checkpoint(block, x, rows, lines)
            else:
                x = block(x, rows, lines)
        return self.norm(x)


# Checkpoints


_TABLES = {  # official name -> ours, below a block
    f"attn.rel_pos_embed_{c}.embeddings_table_{axis[0]}": f"attn.rel_{c}_{axis}"
    for c in "kv"
    for axis in ("vertical", "horizontal")
}


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
    weights = unwrap(state_dict)
    if "patch_embed_super.proj.weight" in weights:  # an official supernet
        weights = subnet_state_dict(weights, model.arch)

    def adapt(name: str, value: Tensor, shape: torch.Size) -> Tensor:
        return fit_pos_embed(value, model) if name == "pos_embed" else value

    return fit_weights(weights, model, adapt)


# Registration


def _create(model: Any, filter_fn: Any, variant: str, pretrained: bool, refusal: str, **kwargs: Any) -> nn.Module:
    """What is published are supernets: fetched once, cut to the subnet, kept in the cache in our layout."""
    overlay = dict(kwargs.get("pretrained_cfg_overlay") or {})
    cfg = resolve_pretrained_cfg(variant, kwargs.get("pretrained_cfg"), overlay)
    if pretrained and cfg.url and not (cfg.state_dict or cfg.file or cfg.hf_hub_id):
        arch = Arch.parse(kwargs["arch"])
        name = f"{variant}.{cfg.tag}-{arch.key}" if cfg.tag else f"{variant}-{arch.key}"
        cut = partial(subnet_state_dict, arch=arch)
        overlay["file"] = str(official.converted(str(cfg.url), name, cut, kwargs.get("cache_dir")))
    return build(model, filter_fn, variant, pretrained, refusal, **kwargs | {"pretrained_cfg_overlay": overlay})


_CFG = IMAGENET | {
    "pool_size": None,
    "crop_pct": 0.875,
    "fixed_input_size": True,
    "classifier": "head",
    "license": "mit",
    "paper_ids": "arXiv:2107.00651",
    "paper_name": "AutoFormer: Searching Transformers for Visual Recognition",
    "origin_url": "https://github.com/microsoft/Cream/tree/main/AutoFormer",
}
_RELEASE = "https://github.com/silent-chen/AutoFormer-model-zoo/releases/download/v1.0/"
default_cfgs = generate_default_cfgs(
    {
        "autoformer_tiny.ms_in1k": _CFG | {"url": _RELEASE + "supernet-tiny.pth"},
        "autoformer_small.ms_in1k": _CFG | {"url": _RELEASE + "supernet-small.pth"},
        "autoformer_base.ms_in1k": _CFG | {"url": _RELEASE + "supernet-base.pth"},
        "autoformer_small_384.untrained": _CFG | {"input_size": (3, 384, 384)},
        "autoformer.untrained": _CFG,
    }
)
for _size, _arch in (("tiny", TINY), ("small", SMALL), ("base", BASE)):
    _what = f"AutoFormer-{_size[0].upper()} at 224 x 224."
    register(AutoFormer, f"autoformer_{_size}", _what, create=_create, arch=_arch)
_REFUSAL = "No pretrained weights are published for {}; use pretrained=False, or "
_ANY = 'Any AutoFormer: `timm.create_model("autoformer", arch=...)`; without `arch` it is AutoFormer-T.'
_START = _REFUSAL + "start from autoformer_small with pretrained=True and img_size=384."
_TAKE = _REFUSAL + "take autoformer_tiny, autoformer_small or autoformer_base, or 'local-dir:FOLDER' of a saved one."
register(AutoFormer, "autoformer_small_384", "AutoFormer-S at 384 x 384.", _START, create=_create, arch=SMALL)
register(AutoFormer, "autoformer", _ANY, _TAKE, create=_create, arch=TINY)
