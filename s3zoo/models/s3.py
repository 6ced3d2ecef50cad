"""S3: hierarchical vision transformers with searched windows, heads, Q-K-V widths and MLP ratios.

Paper: Searching the Search Space of Vision Transformer, https://arxiv.org/abs/2111.14725
The released networks are Swin transformers with larger windows; any `Arch` of family "s3" builds. Nothing depends on
the input size at construction: windows, shifts and padding are decided in `forward` from the actual feature map.
"""

import math
import re
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
import torch.nn.functional as F
from timm.layers import Mlp, PatchEmbed, register_notrace_module, resample_patch_embed, resize_rel_pos_bias_table
from timm.models import generate_default_cfgs
from torch import Tensor, nn

from s3zoo.arch import Arch, Stage
from s3zoo.families.s3 import ARCHS, S3Block
from s3zoo.models._base import ArchLike, BlockSequence, Hierarchical, Size
from s3zoo.models.layers import DropPath, HeadProjection, QkvLinear, attend, trunc_normal_
from s3zoo.models.loading import IMAGENET, fit_weights, register
from s3zoo.models.official import unwrap
from s3zoo.models.plain import Renamed, declare

# register adds the entrypoints
__all__ = ["S3", "checkpoint_filter_fn", "timm_differs", "timm_model_args", "to_timm_state_dict"]


@register_notrace_module  # reason: windows and shifts follow the feature map
class WindowAttention(nn.Module):
    """Self-attention inside (shifted) windows of a feature map, with a learned bias per head and relative position.

    An axis that is no longer than the window is one window: neither padded nor shifted there, and the bias is the
    centre of the table.
    """

    center_cropped = {"relative_position_bias_table": (1, 2)}

    def __init__(
        self, dim: int, num_heads: int, head_dim: int, window_size: int, shifted: bool, device=None, dtype=None
    ) -> None:
        super().__init__()
        dd = {"device": device, "dtype": dtype}
        self.num_heads = num_heads
        self.head_dim = head_dim
        self.window_size = window_size
        self.shifted = shifted
        self.qkv = QkvLinear(dim, num_heads, head_dim, **dd)
        side = 2 * window_size - 1
        self.relative_position_bias_table = nn.Parameter(torch.empty(num_heads, side, side, **dd))
        self.proj = HeadProjection(num_heads, head_dim, dim, **dd)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        trunc_normal_(self.relative_position_bias_table)

    def set_window_size(self, window_size: int) -> None:
        """Change the window; the table is interpolated to its size."""
        old = self.relative_position_bias_table
        self.window_size = window_size
        new = _resize_table(old.detach(), 2 * window_size - 1)
        self.relative_position_bias_table = nn.Parameter(new, requires_grad=old.requires_grad)

    def relative_position_bias(self, height: int, width: int) -> Tensor:
        # Entry (query, key) is table[query row - key row, query col - key col]. Overlapping views instead of an index:
        # the backward of unfold adds in a fixed order, that of table[index] does not.
        w = self.window_size
        table = self.relative_position_bias_table[:, w - height : w + height - 1, w - width : w + width - 1]
        views = table.unfold(1, height, 1).unfold(2, width, 1)  # (h, query row, col, key row, col from the end)
        return views.flip([3, 4]).reshape(self.num_heads, height * width, height * width)  # (h, n, n)

    def forward(self, x: Tensor) -> Tensor:
        batch, height, width, dim = x.shape
        win_h, win_w = min(self.window_size, height), min(self.window_size, width)
        shift_h = self.window_size // 2 if self.shifted and height > self.window_size else 0
        shift_w = self.window_size // 2 if self.shifted and width > self.window_size else 0
        rows, cols = (height + win_h - 1) // win_h, (width + win_w - 1) // win_w
        pad_h, pad_w = rows * win_h - height, cols * win_w - width

        # Pad, then roll: the other way round the rolled-in rows would not be the last ones, as the mask has them.
        if pad_h > 0 or pad_w > 0:
            x = F.pad(x, [0, 0, 0, pad_w, 0, pad_h])
        if shift_h > 0 or shift_w > 0:
            x = torch.roll(x, [-shift_h, -shift_w], [1, 2])
        n, windows = win_h * win_w, rows * cols
        # Before the partition, which is then one copy together with that into heads.
        qkv = self.qkv(x.flatten(1, 2)).view(batch, rows, win_h, cols, win_w, self.num_heads, 3, self.head_dim)
        qkv = qkv.permute(6, 0, 1, 3, 5, 2, 4, 7).contiguous()  # (3, B, rows, cols, h, win_h, win_w, d)
        bias = self.relative_position_bias(win_h, win_w).to(qkv.dtype)  # (h, n, n)
        if shift_h > 0 or shift_w > 0:
            # Rows and columns that the roll brought from the far side do not see those they now stand beside: -1e4 is
            # finite, and 0 after the softmax.
            far_h = torch.arange(rows * win_h, device=x.device) >= rows * win_h - shift_h
            far_w = torch.arange(cols * win_w, device=x.device) >= cols * win_w - shift_w
            region = 2 * far_h.to(torch.long)[:, None] + far_w.to(torch.long)[None, :]
            region = region.reshape(rows, win_h, cols, win_w).transpose(1, 2).reshape(windows, 1, n)
            apart = region.unsqueeze(2) != region.unsqueeze(3)  # (windows, 1, n, n)
            bias = bias.unsqueeze(0).masked_fill(apart, -1e4).flatten(0, 1)  # (windows * h, n, n)
            qkv = qkv.view(3, batch, windows * self.num_heads, n, self.head_dim)
        else:
            qkv = qkv.view(3, batch * windows, self.num_heads, n, self.head_dim)
        q, k, v = qkv.unbind(0)
        x = attend(q, k, v, bias, self.head_dim**-0.5)

        x = x.reshape(batch, rows, cols, self.num_heads, win_h, win_w, self.head_dim).permute(0, 1, 4, 2, 5, 3, 6)
        # A copy in any case: whether a view would do depends on the attention kernel, which an export may exchange.
        x = x.clone(memory_format=torch.contiguous_format)  # (B, rows, win_h, cols, win_w, h, d)
        x = self.proj(x.view(batch, rows * win_h, cols * win_w, self.num_heads * self.head_dim))  # (B, H, W, C)
        if shift_h > 0 or shift_w > 0:
            x = torch.roll(x, [shift_h, shift_w], [1, 2])
        return x[:, :height, :width]


class Block(nn.Module):
    def __init__(
        self, dim: int, genes: S3Block, shifted: bool, drop_path: float = 0.0, device=None, dtype=None
    ) -> None:
        super().__init__()
        dd = {"device": device, "dtype": dtype}
        self.norm1 = nn.LayerNorm(dim, **dd)
        self.attn = WindowAttention(dim, genes.num_heads, genes.head_dim, genes.window_size, shifted, **dd)
        self.drop_path1 = DropPath(drop_path)
        self.norm2 = nn.LayerNorm(dim, **dd)
        self.mlp = Mlp(dim, int(dim * genes.mlp_ratio), **dd)
        self.drop_path2 = DropPath(drop_path)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.drop_path1(self.attn(self.norm1(x)))
        return x + self.drop_path2(self.mlp(self.norm2(x)))


def _neighbours(x: Tensor) -> Tensor:
    """2 x 2 tokens side by side, in the order (row, column, channel); odd sides are padded."""
    batch, height, width, dim = x.shape
    if height % 2 > 0 or width % 2 > 0:
        x = F.pad(x, [0, 0, 0, width % 2, 0, height % 2])
    # (B, H / 2, W / 2, 4 * C)
    return x.reshape(batch, (height + 1) // 2, 2, (width + 1) // 2, 2, dim).transpose(2, 3).flatten(3)


@register_notrace_module  # reason: padding follows the feature map
class PatchMerging(nn.Module):
    """2 x 2 neighbours to one token of another width; channels come first, so that widths are corners."""

    def __init__(self, dim: int, out_dim: int, device=None, dtype=None) -> None:
        super().__init__()
        dd = {"device": device, "dtype": dtype}
        self.norm = nn.LayerNorm((dim, 2, 2), **dd)
        self.reduction = nn.Parameter(torch.empty(out_dim, dim, 2, 2, **dd))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        trunc_normal_(self.reduction)

    def forward(self, x: Tensor) -> Tensor:
        # The parameters are brought into the order of the map and not the map into theirs: they are smaller.
        x = _neighbours(x)
        weight, bias = self.norm.weight.permute(1, 2, 0).flatten(), self.norm.bias.permute(1, 2, 0).flatten()  # (4 * C)
        x = F.layer_norm(x, weight.shape, weight, bias, self.norm.eps)  # (B, H / 2, W / 2, 4 * C)
        return F.linear(x, self.reduction.permute(0, 2, 3, 1).flatten(1))  # (B, H / 2, W / 2, out)


@register_notrace_module  # reason: padding follows the feature map
class PlainPatchMerging(nn.Module):
    """`PatchMerging` with a norm and a linear layer of torch on (row, column, channel)."""

    def __init__(self, layer: PatchMerging) -> None:
        super().__init__()
        dd: dict[str, Any] = {"device": "meta", "dtype": layer.reduction.dtype}
        inputs = layer.norm.weight.numel()
        self.norm = nn.LayerNorm(inputs, eps=layer.norm.eps, **dd)
        self.reduction = nn.Linear(inputs, layer.reduction.shape[0], bias=False, **dd)

    def forward(self, x: Tensor) -> Tensor:
        return self.reduction(self.norm(_neighbours(x)))  # (B, H / 2, W / 2, out)


def _norm_back(value: Tensor, shape: torch.Size) -> Tensor:
    return value.reshape(2, 2, shape[0]).permute(2, 0, 1)


declare(
    PatchMerging,
    PlainPatchMerging,
    norm__weight=Renamed("norm.weight", lambda w: w.permute(1, 2, 0).flatten(), _norm_back),
    norm__bias=Renamed("norm.bias", lambda b: b.permute(1, 2, 0).flatten(), _norm_back),
    reduction=Renamed(
        "reduction.weight", lambda w: w.permute(0, 2, 3, 1).flatten(1),
        lambda w, shape: w.reshape(shape[0], 2, 2, shape[1]).permute(0, 3, 1, 2),
    ),
)  # fmt: skip


class S3(Hierarchical):
    """The network that an `Arch` of family "s3" describes. Any input size works; `img_size` is the one it is meant for.

    Args:
        arch: an `Arch`, its dict or JSON, or the path of a JSON file.
        drop_rate: dropout before the classifier.
        drop_path_rate: stochastic depth of the last block; it rises linearly from 0 at the first.
        kwargs: in_chans, num_classes and global_pool, as in timm.
    """

    family = "s3"
    no_decay = r"relative_position_bias_table$|\.downsample\.norm\."  # factored here and therefore not 1-D

    def __init__(
        self, arch: ArchLike, img_size: Size = 224, *, drop_rate: float = 0.0, drop_path_rate: float = 0.0,
        device=None, dtype=None, **kwargs: Any,
    ) -> None:  # fmt: skip
        super().__init__(self.parse(arch), img_size, **kwargs)
        dd = {"device": device, "dtype": dtype}
        dims = self.arch.embed_dims
        self.patch_embed = PatchEmbed(
            img_size=self.img_size,
            patch_size=self.arch.patch_size,
            in_chans=self.in_chans,
            embed_dim=self.embed_dim,
            norm_layer=nn.LayerNorm,
            output_fmt="NHWC",
            strict_img_size=False,
            dynamic_img_pad=True,
            **dd,
        )
        stages = []
        for i, dim in enumerate(dims):
            blocks = BlockSequence(*self.make_blocks(i, drop_path_rate, **dd))
            downsample = PatchMerging(dims[i - 1], dim, **dd) if i else nn.Identity()
            stages.append(nn.Sequential(OrderedDict(downsample=downsample, blocks=blocks)))
        self.stages = nn.Sequential(*stages)
        self.norm = nn.LayerNorm(self.num_features, **dd)
        self.head = self.make_head(drop_rate, **dd)
        self.init_weights(needs_reset=False)

    @staticmethod
    def make_block(arch: Arch, stage: int, index: int, *, drop_path: float = 0.0, device=None, dtype=None) -> nn.Module:
        """One block as the constructor builds it: genes, width and parity decide, the input size does not."""
        genes = arch.stages[stage].blocks[index]
        assert isinstance(genes, S3Block)
        return Block(arch.stages[stage].embed_dim, genes, index % 2 == 1, drop_path, device=device, dtype=dtype)

    @torch.jit.ignore
    def set_input_size(self, img_size: Size | None = None, window_size: int | Sequence[int] | None = None) -> None:
        """Say which size the network is meant for; windows stay unless given, as one number or one per stage."""
        if img_size is not None:
            super().set_input_size(img_size)
            self.patch_embed.set_input_size(self.img_size)
        if window_size is None:
            return
        sizes = list(window_size) if isinstance(window_size, Sequence) else [window_size] * len(self.stages)
        if len(sizes) != len(self.stages) or any(isinstance(w, bool) or not isinstance(w, int) or w < 1 for w in sizes):
            raise ValueError(
                f"window_size is {window_size!r}, but must be an integer of at least 1, or one for each of "
                f"the {len(self.stages)} stages."
            )
        stages = []
        for i, (stage, size) in enumerate(zip(self.arch.stages, sizes, strict=True)):
            for module in self.stages[i].modules():
                if isinstance(module, WindowAttention):
                    module.set_window_size(size)
            blocks: list[Any] = [replace(block, window_size=size) for block in stage.blocks]  # type: ignore[arg-type]
            stages.append(Stage(stage.embed_dim, tuple(blocks)))
        self.arch = replace(self.arch, stages=tuple(stages))

    @torch.jit.ignore
    def prune_intermediate_layers(self, *args: Any, **kwargs: Any) -> list[int]:
        take = super().prune_intermediate_layers(*args, **kwargs)
        self.arch = replace(self.arch, stages=self.arch.stages[: len(self.stages)])
        return take


# Checkpoints


def _resize_table(table: Tensor, side: int) -> Tensor:
    """A table (h, s, s) for another window, with BEiT's geometric spacing: near distances keep their bias."""
    heads, old = table.shape[0], table.shape[1]
    if old == side:
        return table
    if old == 1:
        return table.expand(heads, side, side).clone()
    window = (side + 1) // 2
    flat = table.flatten(1).t()  # (s * s, h)
    flat = resize_rel_pos_bias_table(flat.contiguous(), (window, window), (side * side, heads))
    return flat.t().reshape(heads, side, side).to(table.dtype)


def _from_flat(name: str, value: Tensor, shape: torch.Size) -> Tensor:
    """A tensor of timm's (and the official) layout in ours; `shape` is the parameter's."""
    if ".attn.qkv." in name:
        return value.reshape(3, shape[0], shape[2], *shape[3:]).transpose(0, 1)  # (h, 3, d, ...)
    if ".attn.proj.weight" in name:
        return value.reshape(shape)  # (out, h, d)
    if ".downsample.reduction" in name:
        return value.reshape(shape[0], 2, 2, shape[1]).permute(0, 3, 2, 1)  # stored as (out, col, row, C)
    if ".downsample.norm." in name:
        return value.reshape(2, 2, shape[0]).permute(2, 1, 0)  # stored as (col, row, C)
    if name.endswith("relative_position_bias_table"):
        side = math.isqrt(value.shape[0])
        return value.reshape(side, side, shape[0]).permute(2, 0, 1)  # (h, s, s)
    return value


def _to_flat(name: str, value: Tensor) -> Tensor:
    """The inverse of `_from_flat`."""
    if ".attn.qkv." in name:
        return value.transpose(0, 1).flatten(0, 2)
    if ".attn.proj.weight" in name:
        return value.flatten(1)
    if ".downsample.reduction" in name:
        return value.permute(0, 3, 2, 1).flatten(1)
    if ".downsample.norm." in name:
        return value.permute(2, 1, 0).flatten()
    if name.endswith("relative_position_bias_table"):
        return value.permute(1, 2, 0).flatten(0, 1)
    return value


def checkpoint_filter_fn(state_dict: Mapping[str, Any], model: nn.Module) -> dict[str, Tensor]:
    """Weights of our own, timm's or the official layout for this model; tables follow the windows, patches the patch.

    The official layout has the merging at the end of a stage, the classifier at `head`, and saves its buffers.
    """
    buffers = ("relative_position_index", "attn_mask")
    weights = {k: v for k, v in unwrap(state_dict).items() if not k.endswith(buffers)}
    flat = any(k.startswith("layers.") for k in weights)
    if flat:
        moved = "head.weight" in weights or any(k.startswith("layers.0.downsample.") for k in weights)
        weights = {_from_flat_name(k, official=moved): v for k, v in weights.items()}

    def adapt(name: str, value: Tensor, shape: torch.Size) -> Tensor:
        if flat:
            value = _from_flat(name, value, shape)
        if name.endswith("relative_position_bias_table"):
            value = _resize_table(value, shape[-1])
        elif name == "patch_embed.proj.weight" and value.shape[-2:] != shape[-2:]:
            value = resample_patch_embed(value, list(shape[-2:]))
        return value

    return fit_weights(weights, model, adapt)


def _from_flat_name(name: str, official: bool) -> str:
    if official:
        name = re.sub(r"^layers\.(\d+)\.downsample", lambda m: f"layers.{int(m[1]) + 1}.downsample", name)
        name = re.sub(r"^head\.(?!fc\.)", "head.fc.", name)
    return re.sub(r"^layers\.", "stages.", name).replace(".reduction.weight", ".reduction")


def to_timm_state_dict(model: S3) -> dict[str, Tensor]:
    """The weights under the names and in the shapes of timm's `SwinTransformer`: what `checkpoint_filter_fn` undoes.

    timm cuts windows to the feature map of its `img_size` when it builds, so the tables are cut to this model's.
    """
    out = {}
    height, width = model.patch_embed.img_size
    for name, value in model.state_dict().items():
        match = re.fullmatch(r"stages\.(\d+)\..*relative_position_bias_table", name)
        if match:
            reduction = model.arch.patch_size * 2 ** int(match[1])
            window = (value.shape[1] + 1) // 2
            h, w = min(window, -(-height // reduction)), min(window, -(-width // reduction))
            value = value[:, window - h : window + h - 1, window - w : window + w - 1]
        key = re.sub(r"^stages\.", "layers.", name).replace(".reduction", ".reduction.weight")
        out[key] = _to_flat(name, value).contiguous()
    return out


def check_official(state_dict: Mapping[str, Tensor], model: Any) -> None:
    """The filter resizes tables to the model's windows; a conversion must not: Swin-T is no S3-T with other windows."""
    for s, stage in enumerate(model.arch.stages):
        for b, block in enumerate(stage.blocks):
            rows = state_dict[f"layers.{s}.blocks.{b}.attn.relative_position_bias_table"].shape[0]
            if rows != (2 * block.window_size - 1) ** 2:
                raise ValueError(
                    f"Block {b} of stage {s} has window {(math.isqrt(rows) + 1) // 2} in the checkpoint, but "
                    f"{block.window_size} in the architecture; give the checkpoint's architecture."
                )


def swin_arch(net: Any) -> Arch:
    """The architecture of a Swin of timm's."""
    stages = []
    for layer in net.layers:
        blocks = []
        for block in layer.blocks:
            side, other = block.window_size
            heads = block.attn.num_heads
            if side != other or block.attn.qkv.bias is None:
                raise ValueError("timm's Swin with windows that are not square or without Q-K-V bias cannot be built.")
            qkv = block.attn.qkv.weight.shape[0] // 3
            blocks.append(S3Block(side, heads, qkv // heads, block.mlp.fc1.out_features / block.dim))
        stages.append(Stage(layer.blocks[0].dim, tuple(blocks)))
    return Arch("s3", tuple(stages), net.patch_embed.patch_size[0])


def timm_model_args(arch: Arch) -> dict[str, Any]:
    """The arguments with which timm's `swin_s3_tiny_224` builds this architecture, where timm can."""
    dims = arch.embed_dims
    uneven = [i for i, stage in enumerate(arch.stages) if len(set(stage.blocks)) > 1]
    if arch.family != "s3" or uneven or any(dim != dims[0] * 2**i for i, dim in enumerate(dims)):
        what = f"stage {uneven[0]} has different blocks" if uneven else f"it is {arch.family} with widths {list(dims)}"
        raise ValueError(
            f"timm's Swin cannot build this architecture ({what}); it needs equal blocks in a stage and widths "
            f"that double, so export it as s3zoo's 's3'."
        )
    first: list[Any] = [stage.blocks[0] for stage in arch.stages]
    genes = {name: [getattr(b, name) for b in first] for name in ("num_heads", "head_dim", "window_size", "mlp_ratio")}
    return dict(patch_size=arch.patch_size, embed_dim=dims[0], depths=list(arch.depths), **genes)


def timm_differs(arch: Arch, img_size: Size) -> str | None:
    """Why timm's Swin with `timm_model_args(arch)` is another network at this size; None if it is the same one."""
    sides = [img_size, img_size] if isinstance(img_size, int) else list(img_size)
    at = f"at {sides[0]} x {sides[1]}"
    if any(side % arch.patch_size for side in sides):
        return f"{at} the sides are no multiples of the patch size {arch.patch_size}, which timm does not pad"
    sides = [side // arch.patch_size for side in sides]
    windows = [stage.blocks[0].window_size for stage in arch.effective(img_size).stages]  # type: ignore[union-attr]
    if len(windows) == 2 and any(w < min(max(windows), max(sides) // 2**i) for i, w in enumerate(windows)):
        return "it has two stages with different windows, which timm reads as height and width of one window"
    for i, (stage, window) in enumerate(zip(arch.stages, windows, strict=True)):
        if i:
            if any(side % 2 for side in sides):
                return f"{at} the map of stage {i - 1} is {sides[0]} x {sides[1]}, and timm halves odd sides downwards"
            sides = [side // 2 for side in sides]
        if min(window, sides[0]) != min(window, sides[1]):
            return f"{at} the map of stage {i} is {sides[0]} x {sides[1]}, and timm loads square windows only"
        if stage.depth > 1 and any(side > window and side % window for side in sides):
            return (
                f"{at} stage {i} has shifted windows of {window} on a map of {sides[0]} x {sides[1]}, which are padded,"
                " and timm shifts before it pads"
            )
    return None


# Registration


def _hub(size: str) -> dict[str, Any]:
    # The explicit file name keeps timm from falling back to a pickle.
    return _CFG | dict(
        hf_hub_id=f"timm/swin_s3_{size}_224.ms_in1k",
        hf_hub_filename="model.safetensors",
        origin_url="https://github.com/microsoft/Cream/tree/main/AutoFormerV2",
    )


_CFG = IMAGENET | {
    "pool_size": (7, 7),
    "crop_pct": 0.9,
    "classifier": "head.fc",
    "license": "mit",
    "paper_name": "Searching the Search Space of Vision Transformer",
    "paper_ids": "arXiv:2111.14725",
}
_384 = _CFG | dict(input_size=(3, 384, 384), pool_size=(12, 12), crop_pct=1.0)

default_cfgs = generate_default_cfgs(
    {
        "s3_tiny.ms_in1k": _hub("tiny"),
        "s3_small.ms_in1k": _hub("small"),
        "s3_base.ms_in1k": _hub("base"),
        "s3_small_384.untrained": _384,
        "s3_base_384.untrained": _384,
        "s3.untrained": _CFG,
    }
)


def _refusal(instead: str) -> str:
    return (
        f"No weights are published for {{}}: use {instead}, finetune it yourself, or name a file with"
        " pretrained_cfg_overlay=dict(file=...)."
    )


_ANY = "Any architecture of the family: `timm.create_model(\"s3\", arch=...)`; S3-T unless one is given."
register(S3, "s3_tiny", "S3-T at 224 x 224.", arch=ARCHS["s3_tiny"])
register(S3, "s3_small", "S3-S at 224 x 224.", arch=ARCHS["s3_small"])
register(S3, "s3_base", "S3-B at 224 x 224.", arch=ARCHS["s3_base"])
for _name, _title in (("s3_small", "S3-S"), ("s3_base", "S3-B")):
    _what = f"{_title} at 384 x 384, with windows scaled to the map."
    _instead = _refusal(f"{_name} with pretrained=True, img_size=384")
    register(S3, f"{_name}_384", _what, _instead, arch=ARCHS[f"{_name}_384"], img_size=384)
register(S3, "s3", _ANY, _refusal("s3_tiny, s3_small or s3_base"), arch=ARCHS["s3_tiny"])
