"""What several families share: attention, projections stored per head, and drop path that does not depend on sharding.

Every parameter is stored so that a smaller network's tensor is the leading corner of a larger one's, each gene on its
own axis (the corner rule). A module names the exceptions, spatial axes that are cropped around their centre, in
`center_cropped = {parameter name: axes}`.
"""

from collections.abc import Iterable, Sequence

import torch
import torch.nn.functional as F
from timm.layers import register_notrace_function
from timm.layers import trunc_normal_ as timm_trunc_normal_
from torch import Tensor, nn


def corner(small: Iterable[int], large: Iterable[int], centered: Sequence[int] = ()) -> tuple[slice, ...]:
    """Where a smaller network's tensor lies in a larger one's; `centered` are the axes cropped around their centre."""
    starts = [(whole - part) // 2 if axis in centered else 0
              for axis, (part, whole) in enumerate(zip(small, large, strict=True))]  # fmt: skip
    return tuple(slice(start, start + part) for start, part in zip(starts, small, strict=True))


def centered_axes(model: nn.Module) -> dict[str, tuple[int, ...]]:
    """Of each parameter of a model that has such axes."""
    return {
        f"{prefix}.{name}" if prefix else name: axes
        for prefix, module in model.named_modules()
        for name, axes in getattr(module, "center_cropped", {}).items()
    }


def trunc_normal_(tensor: Tensor) -> Tensor:
    """timm's, and nothing at all on the meta device, where it is slow and supernets make blocks by the thousand."""
    return tensor if tensor.is_meta else timm_trunc_normal_(tensor, std=0.02)


@torch.fx.wrap
@register_notrace_function  # reason: asks for the device and the gradient
def attend(q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None = None, scale: float = 1.0) -> Tensor:
    """softmax(scale * q k^T + bias) v for (B, h, n, d), with a bias (h, n, n) that has no -inf.

    Plain products while a CPU trains: there torch has no fused attention with a bias that learns, and what it does
    instead looks for rows without a key and copies more; without a bias the fused one is slower backwards.
    """
    if not (q.device.type == "cpu" and torch.is_grad_enabled() and q.requires_grad):
        mask = None if bias is None else bias.unsqueeze(0)
        return F.scaled_dot_product_attention(q, k, v, attn_mask=mask, scale=scale)
    batch, heads, n, _ = q.shape
    q, k, v = q.flatten(0, 1), k.flatten(0, 1), v.flatten(0, 1)
    if bias is None:
        logits = torch.bmm(q * scale, k.transpose(1, 2))  # (B * h, n, keys)
    else:  # one pass writes the bias, the product is added to it
        logits = bias.repeat(batch, 1, 1).baddbmm_(q, k.transpose(1, 2), alpha=scale)
    return torch.bmm(logits.softmax(dim=2), v).view(batch, heads, n, v.shape[2])


@torch.fx.wrap
@register_notrace_function  # reason: FX of torch 2.6 does not trace a number of groups that is read off a weight
def depthwise_conv2d(x: Tensor, weight: Tensor, bias: Tensor | None, padding: tuple[int, int]) -> Tensor:
    return F.conv2d(x, weight, bias, padding=padding, groups=weight.shape[0])


class HeadLinear(nn.Module):
    """A linear layer to heads; weight (*shape, in), so that heads and their width are corners."""

    def __init__(self, in_dim: int, *shape: int, device=None, dtype=None) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(*shape, in_dim, device=device, dtype=dtype))
        self.bias = nn.Parameter(torch.empty(*shape, device=device, dtype=dtype))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        trunc_normal_(self.weight)
        nn.init.zeros_(self.bias)

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x, self.weight.flatten(0, -2), self.bias.flatten())  # (..., product of shape)


class QkvLinear(HeadLinear):
    """A linear layer to queries, keys and values; weight (heads, 3, head_dim, in)."""

    def __init__(self, in_dim: int, num_heads: int, head_dim: int, device=None, dtype=None) -> None:
        super().__init__(in_dim, num_heads, 3, head_dim, device=device, dtype=dtype)


class HeadProjection(nn.Module):
    """A linear layer from concatenated heads; weight (out, heads, head_dim)."""

    def __init__(self, num_heads: int, head_dim: int, out_dim: int, device=None, dtype=None) -> None:
        super().__init__()
        dd = {"device": device, "dtype": dtype}
        self.weight = nn.Parameter(torch.empty(out_dim, num_heads, head_dim, **dd))
        self.bias = nn.Parameter(torch.empty(out_dim, **dd))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        trunc_normal_(self.weight)
        nn.init.zeros_(self.bias)

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x, self.weight.flatten(1), self.bias)  # (..., out)


class DropPath(nn.Module):
    """Stochastic depth per sample, scaled to keep the expectation.

    A rank of a distributed run sets `batch` and `rows`: the mask is drawn for the whole global batch and this rank's
    rows are taken, so that a sample's fate depends on the seed and its place in the batch, not on the number of ranks.
    """

    rows: torch.Tensor | None

    def __init__(self, drop_prob: float = 0.0) -> None:
        super().__init__()
        self.drop_prob = float(drop_prob)
        self.batch = 0
        self.rows = None

    def forward(self, x: Tensor) -> Tensor:
        if self.drop_prob == 0.0 or not self.training:
            return x
        keep = 1.0 - self.drop_prob
        rows = self.rows
        mask = x.new_empty([x.shape[0] if rows is None else self.batch]).bernoulli_(keep)
        if rows is not None:
            mask = mask[rows]
        return x * (mask / keep).view([-1] + [1] * (x.ndim - 1))

    def extra_repr(self) -> str:
        return f"drop_prob={self.drop_prob:.3f}"
