"""GLiT: Neural Architecture Search for Global and Local Image Transformer (https://arxiv.org/abs/2107.02960).

In every block the first heads' channels attend globally and the others stay local: by a convolution over the token
sequence, or by one of the two other ways that the paper compares (its Table 6). Differences between the paper and its
released code are settled in favour of the code, which the weights were trained with: GELU in the MLP, a gated linear
unit after the first pointwise convolution, one batch norm, no dropout. `as_printed` is the paper's side of it.
"""

# No `from __future__ import annotations` here: a traced model is scripted with the annotation of forward's argument,
# which must then be the type and not its name.
import contextlib
import math
import re
from collections.abc import Iterator, Mapping
from typing import Any

import torch
import torch.nn.functional as F
from timm.layers import Mlp, register_notrace_function
from timm.models import generate_default_cfgs
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from s3zoo.arch import Arch
from s3zoo.families import FAMILIES
from s3zoo.families.glit import BASE, SMALL, TINY, GLiTBlock
from s3zoo.models._base import ArchLike, Plain, Size
from s3zoo.models.layers import DropPath, HeadProjection, QkvLinear, depthwise_conv2d
from s3zoo.models.loading import IMAGENET, ON_A_DRIVE, fit_pos_embed, fit_weights, register
from s3zoo.models.official import unwrap
from s3zoo.models.plain import Renamed, declare


class Attention(nn.Module):
    """Self-attention among the global channels of a block."""

    def __init__(self, dim: int, num_heads: int, head_dim: int, device=None, dtype=None) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.head_dim = head_dim
        self.qkv = QkvLinear(dim, num_heads, head_dim, device=device, dtype=dtype)
        self.proj = HeadProjection(num_heads, head_dim, dim, device=device, dtype=dtype)

    def split(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        B, N, _ = x.shape
        qkv = self.qkv(x).view(B, N, self.num_heads, 3, self.head_dim).permute(3, 0, 2, 1, 4)  # (3, B, h, N, d)
        q, k, v = qkv.unbind(0)
        return q, k, v

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.split(x)
        x = F.scaled_dot_product_attention(q, k, v)  # (B, h, N, d), scaled by d^-0.5
        return self.proj(x.transpose(1, 2).flatten(2))  # (B, N, C)


class GatedLinear(nn.Module):
    """Linear layer and gated linear unit; weight (out, 2, in), so that a value and its gate are cut together.

    With `norms`, a batch norm stands between the two, in two parts for the same reason.
    """

    def __init__(self, in_dim: int, out_dim: int, norms: bool = False, device=None, dtype=None) -> None:
        super().__init__()
        dd = {"device": device, "dtype": dtype}
        self.weight = nn.Parameter(torch.empty(out_dim, 2, in_dim, **dd))
        self.bias = nn.Parameter(torch.empty(out_dim, 2, **dd))
        self.norms = nn.ModuleList([nn.BatchNorm1d(out_dim, **dd) for _ in range(2)]) if norms else None
        self.reset_parameters()

    def reset_parameters(self) -> None:
        bound = 1 / math.sqrt(self.weight.shape[-1])  # torch's default of the pointwise convolution that this is
        nn.init.uniform_(self.weight, -bound, bound)
        nn.init.uniform_(self.bias, -bound, bound)

    def project(self, x: Tensor) -> Tensor:
        # The weight is reordered, not the output: a GLU over interleaved pairs takes three times as long backwards.
        weight = self.weight.transpose(0, 1).flatten(0, 1)  # (2 * out, in)
        return F.linear(x, weight, self.bias.t().flatten())  # (B, N, 2 * out)

    def forward(self, x: Tensor) -> Tensor:
        x = self.project(x)
        if self.norms is not None:
            parts = []
            for part, norm in zip(x.chunk(2, dim=2), self.norms):  # noqa: B905 (TorchScript has no strict)
                parts.append(norm(part.transpose(1, 2)).transpose(1, 2))
            x = torch.cat(parts, dim=2)
        return F.glu(x)  # (B, N, out)


class LocalConv1d(nn.Module):
    """Locality "conv1d": gated expansion, depthwise convolution along the raster sequence of tokens, projection.

    The class token takes part as the first element of the sequence.
    """

    center_cropped = {"conv.weight": (2,)}
    conv_type: Any = nn.Conv1d

    def __init__(self, dim: int, genes: GLiTBlock, as_printed: bool = False, device=None, dtype=None) -> None:
        super().__init__()
        dd = {"device": device, "dtype": dtype}
        hidden = int(dim * genes.expansion)
        self.expand = GatedLinear(dim, hidden, as_printed, **dd)
        self.padding = genes.kernel_size // 2
        self.conv = self.conv_type(hidden, hidden, genes.kernel_size, padding=self.padding, groups=hidden, **dd)
        self.norm = nn.BatchNorm1d(hidden, **dd)
        self.act = nn.SiLU()
        self.proj = nn.Linear(hidden, dim, **dd)

    def init_weights(self) -> None:
        self.proj.reset_parameters()  # a pointwise convolution: torch's default, not the 0.02 of the linear layers

    def convolve(self, x: Tensor, height: int, width: int) -> Tensor:
        # As 2-D convolution of one row: several times faster than conv1d, which has no channels-last kernel.
        weight = self.conv.weight.unsqueeze(2)  # (I, 1, 1, K)
        return depthwise_conv2d(x.unsqueeze(2), weight, self.conv.bias, (0, self.padding)).squeeze(2)

    def forward(self, x: Tensor, height: int, width: int) -> Tensor:
        B, N, _ = x.shape
        x = self.convolve(self.expand(x).transpose(1, 2), height, width)  # (B, I, N), channels last in memory
        x = x.transpose(1, 2).flatten(0, 1)  # (B * N, I)
        return self.proj(self.act(self.norm(x))).view(B, N, -1)  # (B, N, C)


class LocalConv2d(LocalConv1d):
    """Locality "conv2d": the same on the map of patches, without a class token."""

    center_cropped = {"conv.weight": (2, 3)}  # type: ignore[dict-item]
    conv_type = nn.Conv2d

    def convolve(self, x: Tensor, height: int, width: int) -> Tensor:
        return self.conv(x.unflatten(2, (height, width))).flatten(2)


class PlainGatedLinear(GatedLinear):
    """`GatedLinear` with a linear layer of torch, all values before all gates."""

    def __init__(self, layer: GatedLinear) -> None:
        nn.Module.__init__(self)
        out_dim, _, in_dim = layer.weight.shape
        self.linear = nn.Linear(in_dim, 2 * out_dim, device="meta", dtype=layer.weight.dtype)
        self.norms = layer.norms

    def reset_parameters(self) -> None:
        self.linear.reset_parameters()

    def project(self, x: Tensor) -> Tensor:
        return self.linear(x)


class PlainLocalConv1d(LocalConv1d):
    """`LocalConv1d` that calls its convolution."""

    def __init__(self, layer: LocalConv1d) -> None:
        nn.Module.__init__(self)
        for name, module in layer.named_children():
            self.add_module(name, module)

    def convolve(self, x: Tensor, height: int, width: int) -> Tensor:
        return self.conv(x)


def _gates_last(value: Tensor) -> Tensor:
    return value.transpose(0, 1).flatten(0, 1)  # (out, 2, ...) -> (2 * out, ...)


def _gates_within(value: Tensor, shape: torch.Size) -> Tensor:
    return value.reshape(2, shape[0], *shape[2:]).transpose(0, 1)


declare(
    GatedLinear,
    PlainGatedLinear,
    weight=Renamed("linear.weight", _gates_last, _gates_within),
    bias=Renamed("linear.bias", _gates_last, _gates_within),
)
declare(LocalConv1d, PlainLocalConv1d)


@torch.fx.wrap
@register_notrace_function  # reason: branches on the number of tokens
def attend_in_areas(q: Tensor, k: Tensor, v: Tensor, patches: int, area: int) -> Tensor:
    """Attention (B, heads, N, d) of the last `patches` tokens among runs of `area` of them (the last run may be
    shorter), and of those before, the class token, to all."""
    B, H, N, D = q.shape
    first = N - patches
    rest = N - patches % area
    out = []
    if first > 0:
        out.append(F.scaled_dot_product_attention(q[:, :, :first], k, v))
    if rest > first:  # whole areas as so many heads
        runs = [t[:, :, first:rest].reshape(B, -1, area, D) for t in (q, k, v)]
        out.append(F.scaled_dot_product_attention(runs[0], runs[1], runs[2]).reshape(B, H, rest - first, D))
    if rest < N:
        out.append(F.scaled_dot_product_attention(q[:, :, rest:], k[:, :, rest:], v[:, :, rest:]))
    return torch.cat(out, dim=2)


class LocalAttention(Attention):
    """Locality "area": attention of a patch token to the `kernel_size` tokens of its area.

    The paper gives areas of 14, 28 and 49 tokens and no shape. Here they are runs of the raster sequence, as for the
    convolution; of its 14 x 14 patches 14 and 28 are one row and two. Areas do not overlap. The class token lies in
    none: it attends to all tokens, and no patch to it.
    """

    def __init__(self, dim: int, genes: GLiTBlock, as_printed: bool = False, device=None, dtype=None) -> None:
        heads = genes.local_heads
        super().__init__(dim, heads, int(dim // heads * genes.expansion), device=device, dtype=dtype)
        self.area = genes.kernel_size

    def forward(self, x: Tensor, height: int, width: int) -> Tensor:  # type: ignore[override]
        q, k, v = self.split(x)
        x = attend_in_areas(q, k, v, height * width, self.area)
        return self.proj(x.transpose(1, 2).flatten(2))  # (B, N, C)


# The gene `locality` chooses the module; it is built as module(dim, genes, as_printed, device=, dtype=) and maps
# (B, N, dim), given the height and width of the grid of patches.
LOCALITIES: dict[str, Any] = {"conv1d": LocalConv1d, "conv2d": LocalConv2d, "area": LocalAttention}


class Block(nn.Module):
    """Pre-norm block: attention on the first channels, locality on the others, concatenated; then an MLP."""

    def __init__(
        self, dim: int, genes: GLiTBlock, drop_path: float = 0.0, as_printed: bool = False, device=None, dtype=None
    ) -> None:
        super().__init__()
        dd = {"device": device, "dtype": dtype}
        self.global_dim = dim * genes.global_heads // genes.num_heads
        self.local_dim = dim * genes.local_heads // genes.num_heads
        self.norm1 = nn.LayerNorm(dim, eps=1e-6, **dd)
        self.attn = Attention(self.global_dim, genes.global_heads, genes.head_dim, **dd) if genes.global_heads else None
        local = LOCALITIES[genes.locality]
        self.local = local(self.local_dim, genes, as_printed, **dd) if genes.local_heads else None
        self.norm2 = nn.LayerNorm(dim, eps=1e-6, **dd)
        self.mlp = Mlp(dim, int(dim * genes.mlp_ratio), act_layer=nn.SiLU if as_printed else nn.GELU, **dd)
        self.drop_path = DropPath(drop_path)

    def mix(self, x: Tensor, height: int, width: int) -> Tensor:
        if self.local is None:
            return self.attn(x)  # type: ignore[misc]
        if self.attn is None:
            return self.local(x, height, width)
        x_global, x_local = x.split([self.global_dim, self.local_dim], dim=2)
        # (B, N, C), no joint projection
        return torch.cat([self.attn(x_global), self.local(x_local, height, width)], dim=2)

    def forward(self, x: Tensor, height: int, width: int) -> Tensor:
        x = x + self.drop_path(self.mix(self.norm1(x), height, width))
        return x + self.drop_path(self.mlp(self.norm2(x)))


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


class GLiT(Plain):
    """Any network of the GLiT family.

    Args:
        arch: an `Arch` of family "glit", its dict, its JSON, or the path of its JSON file.
        img_size: input size (one number or height and width), a multiple of the patch size.
        global_pool: 'token' (the class token, as trained), 'avg' (mean over the patch tokens) or '' (no pooling);
            by default 'token', but 'avg' where the locality "conv2d" leaves no class token.
        as_printed: Swish in the MLP (Eq. 3) and a batch norm before the gate of the convolution module, too ("each
            convolutional layer is followed by normalization", 3.1.1), in place of the released code's GELU and one
            norm. The last pointwise convolution has no norm in either, and the dropouts have no printed rate.
        dynamic_img_size: take any input size, padded to whole patches, and resize the position embedding to it.
    """

    family = "glit"
    pools = ("token", "avg", "")
    norm_eps = 1e-6

    def __init__(
        self, arch: ArchLike, img_size: Size = 224, *, global_pool: str | None = None, as_printed: bool = False,
        **kwargs: Any,
    ) -> None:  # fmt: skip
        arch = self.parse(arch)
        self.as_printed = as_printed
        if global_pool is None:
            global_pool = "token" if FAMILIES[self.family].class_token(arch) else "avg"
        super().__init__(arch, img_size, global_pool=global_pool, **kwargs)

    def model_args(self) -> dict[str, Any]:
        """The arguments of the constructor that make this model besides its architecture, size and classes."""
        return {"as_printed": True} if self.as_printed else {}

    def make_block(  # type: ignore[override]
        self, arch: Arch, stage: int, index: int, *, drop_path: float = 0.0, device=None, dtype=None
    ) -> Block:
        """One block as the constructor builds it: genes, width and `as_printed` decide."""
        where = arch.stages[stage]
        return Block(where.embed_dim, where.blocks[index], drop_path, self.as_printed, device=device, dtype=dtype)

    def init_layer(self, module: nn.Module) -> bool:
        if hasattr(module, "init_weights"):
            module.init_weights()  # type: ignore[operator]
            return True
        return super().init_layer(module)

    def positions(self, x: Tensor, height: int, width: int) -> tuple[Any, ...]:
        return height, width

    def run_block(self, block: nn.Module, x: Tensor, *positions: Any) -> Tensor:
        if self.grad_checkpointing:
            if torch.compiler.is_compiling():  # records statistics once by itself, and knows no context_fn
                return checkpoint(block, x, *positions, use_reentrant=False)
            contexts = lambda: (contextlib.nullcontext(), _frozen_statistics(block))  # noqa: E731
            return checkpoint(block, x, *positions, use_reentrant=False, context_fn=contexts)
        return block(x, *positions)

    def forward_features(self, x: Tensor) -> Tensor:
        x, height, width = self.embed(x)
        for block in self.blocks:
            if self.grad_checkpointing and not torch.jit.is_scripting():
                x = self.run_block(block, x, height, width)
            else:
                x = block(x, height, width)
        return self.norm(x)


# Checkpoints


def checkpoint_filter_fn(state_dict: Mapping[str, Any], model: GLiT) -> dict[str, Tensor]:
    """Weights of our own or the official layout for this model, the position embedding resized to its grid."""
    weights = unwrap(state_dict)
    official = any(key.startswith("blocks.0.0.") for key in weights)
    if official:
        weights = {_from_official_name(key): value for key, value in weights.items()}

    def adapt(name: str, value: Tensor, shape: torch.Size) -> Tensor:
        if name == "pos_embed":
            return fit_pos_embed(value, model)
        return _from_official(name, value, shape) if official else value

    return fit_weights(weights, model, adapt)


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


# Registration


_CFG = IMAGENET | {
    "fixed_input_size": True,
    "pool_size": None,
    "crop_pct": 0.875,
    "classifier": "head",
    "license": "apache-2.0",
    "origin_url": "https://github.com/bychen515/GLiT",
    "paper_name": "GLiT: Neural Architecture Search for Global and Local Image Transformer",
    "paper_ids": "arXiv:2107.02960",
}
default_cfgs = generate_default_cfgs(
    {
        "glit_tiny.in1k": _CFG | {"license": "unknown"},  # of the weights: their repository has no licence file
        "glit_small.untrained": _CFG,
        "glit_base.untrained": _CFG,
        "glit.untrained": _CFG,
    }
)
_OURS = "A GLiT of the size of {}; its genome was chosen by us to meet the paper's budget."
register(GLiT, "glit_tiny", "GLiT-Tiny, the released genome.", ON_A_DRIVE, arch=TINY)
register(GLiT, "glit_small", _OURS.format("GLiT-Small"), arch=SMALL)
register(GLiT, "glit_base", _OURS.format("GLiT-Base"), arch=BASE)
register(GLiT, "glit", 'Any GLiT: `timm.create_model("glit", arch=…)`; without `arch` it is GLiT-Tiny.', arch=TINY)
