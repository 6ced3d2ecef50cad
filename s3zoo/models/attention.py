"""What a network attends to: attention captured at the softmax, where its keys lie in the image, how far it looks.

    with capture(model) as captured:
        model(images)
    for layer in captured.layers:
        print(layer.name, layer.distance(top_k=5).nanmedian())

Networks are not changed for this. While `capture` is open, `scaled_dot_product_attention` is computed as softmax and
product, and what every softmax inside a module gives is kept: whatever a family (of this zoo, of timm, of a plug-in)
computes around it, that is what the values are multiplied with.

Where queries and keys lie is the module's affair: `layout` knows this zoo's modules and timm's Swin, and takes others
for attention among all tokens of a map, behind class tokens, as in a ViT. A family that divides the map in another way
registers its module with `@layout.register`.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import singledispatch
from typing import Any

import torch
import torch.nn.functional as F
from timm.layers import to_2tuple
from timm.models import swin_transformer, swin_transformer_v2, swin_transformer_v2_cr
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from s3zoo.models import glit, ladder, s3, shunted

NOT_KEPT = (ladder.Reader, glit.LocalAttention)  # a frozen tower's attention, and GLiT's inside areas


@dataclass
class Part:
    """Heads of a layer that attend to the same keys. Places are boxes (top, left, bottom, right) in pixels of the
    input, as if the tokens tiled it evenly; NaN for what has no place in the image: class tokens and padding."""

    heads: tuple[int, ...]  # of the layer, from 0
    weights: Tensor  # (batch, groups, heads, queries, keys): a group is a window, or the whole map
    queries: Tensor  # (groups, queries, 4)
    keys: Tensor  # (groups, keys, 4)
    class_queries: int = 0  # so many of the first queries are class tokens or the like, not padding


@dataclass
class Layer:
    """The attention of one layer. Its name is its block's number, "7", behind that of its stage, "3-7"."""

    name: str
    parts: list[Part]

    @property
    def num_heads(self) -> int:
        return sum(len(part.heads) for part in self.parts)

    def distance(self, top_k: int) -> Tensor:
        """The `attention_distance` in pixels of every head and query that has a place: (heads, n), over the batch."""
        rows: dict[int, Tensor] = {}
        for part in self.parts:
            queries, keys = _centres(part.queries).unsqueeze(1), _centres(part.keys).unsqueeze(1)  # (groups, 1, n, 2)
            values = attention_distance(part.weights, queries, keys, top_k)  # (batch, groups, heads, queries)
            placed = ~part.queries.isnan().any(-1)  # (groups, queries)
            values = values.transpose(1, 2)[:, :, placed]  # (batch, heads, n)
            rows |= dict(zip(part.heads, values.transpose(0, 1).flatten(1), strict=True))
        return torch.stack([rows[head] for head in range(self.num_heads)])

    def similarity(self) -> Tensor:
        """How alike the heads attend, from 0 to 1: the cosine between the attention of two heads, mean over queries and
        batch, (heads, heads). Heads with other keys are compared on the pixels that the keys stand for."""
        out = torch.zeros(self.num_heads, self.num_heads)
        for one in self.parts:
            for two in self.parts:
                if one is two:
                    a = b = F.normalize(one.weights, dim=-1)
                else:
                    a, b = (part.weights / _length(part).unsqueeze(-1) for part in (one, two))
                    a = torch.einsum("bghqk,gkl->bghql", a, _overlap(one.keys, two.keys))
                real = (~one.queries.isnan().any(-1)).float()  # (groups, queries): padding does not count
                real[:, : one.class_queries] = 1
                cosines = torch.einsum("bghqk,bgiqk,gq->hi", a, b, real) / (len(a) * real.sum())
                out[torch.tensor(one.heads)[:, None], torch.tensor(two.heads)] = cosines
        return out

    def seen_from(self, place: tuple[float, float] | None, image: int = 0) -> list[tuple[Tensor, Tensor, Tensor]]:
        """Of every head: the attention of one query (keys), the keys' boxes, and the query's own box. The query is the
        one nearest to `place` (row and column in pixels), or the first class token where there is no such place."""
        found: dict[int, tuple[Tensor, Tensor, Tensor]] = {}
        for part in self.parts:
            group, query = 0, 0
            if place is not None:
                away = (_centres(part.queries) - torch.tensor(place)).square().sum(-1).nan_to_num(math.inf)
                group, query = divmod(int(away.argmin()), away.shape[1])
            for row, head in enumerate(part.heads):
                weights = part.weights[image, group, row, query]
                found[head] = weights, part.keys[group], part.queries[group, query]
        return [found[head] for head in range(self.num_heads)]

    @property
    def has_class_query(self) -> bool:
        return all(part.class_queries > 0 for part in self.parts)


def attention_distance(weights: Tensor, queries: Tensor, keys: Tensor, top_k: int) -> Tensor:
    """The mean distance of each query to the `top_k` keys that it attends to most (S3, Fig. 4): (..., queries).

    Args:
        weights: attention (..., queries, keys).
        queries, keys: their places, row and column (..., n, 2); a key without a place (NaN) is not counted, nor is one
            without attention. Among equals the first keys are taken.
    """
    weights = weights.masked_fill(keys.isnan().any(-1).unsqueeze(-2), 0)
    values, index = weights.sort(dim=-1, descending=True, stable=True)
    values, index = values[..., :top_k], index[..., :top_k]
    apart = (queries.unsqueeze(-2) - keys.unsqueeze(-3)).square().sum(-1).sqrt()  # (..., queries, keys)
    chosen = apart.expand_as(weights).gather(-1, index)
    counted = values > torch.finfo(torch.float32).tiny  # timm masks with -100, not with minus infinity
    return torch.where(counted, chosen, 0).sum(-1) / counted.sum(-1)


def _centres(boxes: Tensor) -> Tensor:
    return (boxes[..., :2] + boxes[..., 2:]) / 2


def _length(part: Part) -> Tensor:
    """The length of each query's attention, spread over the boxes of its keys: (batch, groups, heads, queries)."""
    weights = part.weights
    return torch.einsum("bghqk,gkl,bghql->bghq", weights, _overlap(part.keys, part.keys), weights).sqrt()


def _overlap(one: Tensor, two: Tensor) -> Tensor:
    """Inner products of attention that is spread evenly over the boxes of keys: (groups, keys of one, keys of two)."""
    low = torch.maximum(one[:, :, None, :2], two[:, None, :, :2])
    high = torch.minimum(one[:, :, None, 2:], two[:, None, :, 2:])
    areas = [(boxes[..., 2:] - boxes[..., :2]).prod(-1) for boxes in (one, two)]
    return (high - low).clamp(min=0).prod(-1) / (areas[0].unsqueeze(2) * areas[1].unsqueeze(1))


# Where queries and keys lie


@dataclass
class Layout:
    """Boxes in units of tokens (groups, n, 4), NaN for padding; of the keys for each part of the heads."""

    queries: Tensor
    parts: list[tuple[slice, Tensor]]  # of all heads those that have these keys


def whole_map(rows: int, columns: int) -> Layout:
    boxes = tokens(rows, columns).unsqueeze(0)
    return Layout(boxes, [(slice(None), boxes)])


@singledispatch
def layout(module: nn.Module, rows: int, columns: int, block: nn.Module) -> Layout:
    """Which tokens of a map the attention `module` in `block` takes as queries and as keys. Class tokens before them
    need not be said."""
    return whole_map(rows, columns)


def tokens(rows: int, columns: int, size: int = 1) -> Tensor:
    """The boxes of tokens that are `size` x `size` of the map's, row by row: (rows * columns, 4)."""
    top, left = torch.meshgrid(torch.arange(rows), torch.arange(columns), indexing="ij")
    corner = torch.stack([top, left], dim=-1).flatten(0, 1)
    return torch.cat([corner, corner + 1], dim=-1).float() * size


def windows(rows: int, columns: int, window: Sequence[int], shift: Sequence[int], *, pad_first: bool = True) -> Layout:
    """Windows of a map that is rolled by `shift` and padded to whole windows, in the one or the other order."""
    index = torch.arange(rows * columns).reshape(rows, columns)

    def pad(index: Tensor) -> Tensor:
        return F.pad(index, [0, -columns % window[1], 0, -rows % window[0]], value=-1)

    index = pad(index) if pad_first else index
    index = torch.roll(index, [-shift[0], -shift[1]], [0, 1])
    index = index if pad_first else pad(index)
    index = index.unfold(0, window[0], window[0]).unfold(1, window[1], window[1]).flatten(2).flatten(0, 1)
    boxes = torch.cat([tokens(rows, columns), torch.full([1, 4], math.nan)])[index]  # (windows, n, 4)
    return Layout(boxes, [(slice(None), boxes)])


@layout.register
def _(module: s3.WindowAttention, rows: int, columns: int, block: nn.Module) -> Layout:
    size = module.window_size
    shift = [size // 2 if module.shifted and side > size else 0 for side in (rows, columns)]
    return windows(rows, columns, (min(size, rows), min(size, columns)), shift)


@layout.register(swin_transformer.WindowAttention)
@layout.register(swin_transformer_v2.WindowAttention)
@layout.register(swin_transformer_v2_cr.WindowMultiHeadAttention)
def _(module: nn.Module, rows: int, columns: int, block: Any) -> Layout:
    return windows(rows, columns, to_2tuple(block.window_size), to_2tuple(block.shift_size), pad_first=False)


@layout.register
def _(module: shunted.ShuntedAttention, rows: int, columns: int, block: nn.Module) -> Layout:
    parts = []
    for first, merged in enumerate((module.coarse, module.fine)):  # heads take turns
        keys = tokens(max(rows // merged.rate, 1), max(columns // merged.rate, 1), merged.rate)
        keys = keys.minimum(torch.tensor([rows, columns] * 2))  # where the map is smaller than the rate
        parts.append((slice(first, None, 2), keys.unsqueeze(0)))
    return Layout(tokens(rows, columns).unsqueeze(0), parts)


# Capturing


@dataclass
class _Call:
    module: nn.Module
    input: Any
    weights: list[Tensor] = field(default_factory=list)


@dataclass
class Captured:
    layers: list[Layer] = field(default_factory=list)  # in the order of their computation
    # What the last block puts out, before the last norm and without class tokens: (batch, rows, columns, channels). Of
    # a decoder on a frozen tower it is the tower's.
    tokens: Tensor | None = None


@contextmanager
def capture(model: nn.Module) -> Iterator[Captured]:
    """Open around one forward pass of the model, whose attention and output tokens it keeps, on the CPU."""
    names = {module: name for name, module in model.named_modules()}
    found = Captured()
    calls: list[_Call] = []  # those that are under way

    def enter(module: nn.Module, inputs: tuple[Any, ...]) -> None:
        calls.append(_Call(module, inputs[0] if inputs else None))

    def leave(module: nn.Module, inputs: tuple[Any, ...], output: Any) -> None:
        call = calls.pop()
        if call.weights:
            layer = _layer(names[module], call, calls)
            if layer.name in [other.name for other in found.layers]:  # another one of the same block
                layer.name = names[module]
            found.layers.append(layer)

    def keep(weights: Tensor) -> None:
        owners = [call for call in calls[1:] if not isinstance(call.module, nn.Softmax)]
        if owners and not isinstance(owners[-1].module, NOT_KEPT):  # without an owner it is of no module of this model
            owners[-1].weights.append(weights.detach().float().cpu())

    def keep_tokens(module: nn.Module, inputs: tuple[Any, ...], output: Tensor) -> None:
        if output.ndim == 3:
            output = output[:, getattr(vit, "num_prefix_tokens", 0) :].unflatten(1, _grid(vit, calls[0].input))
        found.tokens = output.detach().float().cpu()

    vit = getattr(model, "tower", model)
    blocks = [module for name, module in vit.named_modules() if re.search(r"(^|\.)blocks\.\d+$", name)]
    handles = [module.register_forward_pre_hook(enter) for module in names]
    handles += [module.register_forward_hook(keep_tokens) for module in blocks[-1:]]
    handles += [module.register_forward_hook(leave) for module in names]
    try:
        with _AtSoftmax(keep):
            yield found
    finally:
        for handle in handles:
            handle.remove()


class _AtSoftmax(TorchFunctionMode):
    def __init__(self, keep: Any) -> None:
        super().__init__()
        self.keep = keep

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if function is F.scaled_dot_product_attention:
            weights, value = _in_the_open(*args, **kwargs)
            self.keep(weights)
            return weights @ value
        result = function(*args, **kwargs)
        if function in (F.softmax, torch.softmax, Tensor.softmax) and result.ndim >= 3:
            self.keep(result)
        return result


def _in_the_open(
    query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None = None, dropout_p: float = 0.0,
    is_causal: bool = False, scale: float | None = None, enable_gqa: bool = False,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """The weights of `scaled_dot_product_attention`, and the values that they are multiplied with; no dropout."""
    if enable_gqa:
        repeats = query.shape[-3] // key.shape[-3]
        key, value = key.repeat_interleave(repeats, -3), value.repeat_interleave(repeats, -3)
    scores = (query * (query.shape[-1] ** -0.5 if scale is None else scale)) @ key.transpose(-2, -1)
    if is_causal:
        attn_mask = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).tril()
    if attn_mask is not None and attn_mask.dtype == torch.bool:
        scores = scores.masked_fill(~attn_mask, -math.inf)
    elif attn_mask is not None:
        scores = scores + attn_mask
    return scores.softmax(dim=-1), value


def _layer(path: str, call: _Call, around: list[_Call]) -> Layer:
    """Captured weights with their places. `around` are the calls from the model's down to the block's."""
    model: Any = around[0].module
    images = around[0].input
    maps = [c.input.shape[1:3] for c in (*around[1:], call) if isinstance(c.input, Tensor) and c.input.ndim == 4]
    vit = getattr(model, "tower", model)  # whose patches the tokens are, unless there are maps
    rows, columns = maps[-1] if maps else _grid(vit, images)
    prefix = 0 if maps else getattr(vit, "num_prefix_tokens", 0)
    places = layout(call.module, rows, columns, around[-1].module)
    pieces = call.weights
    if len(places.parts) == 1:  # computed in one or in several pieces
        pieces = [torch.cat([piece.flatten(0, -3) for piece in pieces])]

    def fit(boxes: Tensor, count: int, queries: bool = False) -> Tensor:
        """Places of so many tokens, those before the map's at none."""
        known = boxes.shape[1]
        if queries and count < known and len(boxes) == 1:  # not the map's, but a class token or a query of its own
            return torch.full([1, count, 4], math.nan)
        if count not in (known, known + prefix):
            raise ValueError(
                f"The attention of {path} has {count} tokens where the map has {rows} x {columns}; this zoo's families "
                "and timm's ViT and Swin are known, others say where their tokens are (s3zoo.models.attention.layout)."
            )
        return F.pad(boxes, [0, 0, count - known, 0], value=math.nan)

    scale = torch.tensor([images.shape[-2] / rows, images.shape[-1] / columns] * 2)
    weights = [
        piece.reshape(len(images), len(keys), -1, *piece.shape[-2:])
        for piece, (_, keys) in zip(pieces, places.parts, strict=True)
    ]
    heads = range(sum(part.shape[2] for part in weights))
    parts = [
        Part(
            tuple(heads[which]),
            part,
            fit(places.queries, part.shape[-2], queries=True) * scale,
            fit(keys, part.shape[-1]) * scale,
            class_queries=prefix if part.shape[-2] >= rows * columns else part.shape[-2],
        )
        for part, (which, keys) in zip(weights, places.parts, strict=True)
    ]
    name = "-".join(str(int(number) + 1) for number in re.findall(r"\.(\d+)(?=\.|$)", path))
    return Layer(name or path, parts)


def _grid(vit: Any, images: Tensor) -> tuple[int, int]:
    embed = getattr(vit, "patch_embed", None)
    if embed is None or not hasattr(embed, "patch_size"):
        raise ValueError(f"{type(vit).__name__} has no patch_embed, so that its tokens cannot be placed in the image.")
    height, width = to_2tuple(embed.patch_size)
    return images.shape[-2] // height, images.shape[-1] // width
