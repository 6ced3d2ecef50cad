"""The layers of this zoo as torch's own: `to_plain` for tools that know nn.Linear and nn.Conv2d and pass others by.

Layers here are stored so that a smaller network is a corner of a larger one, a linear layer to heads as (heads, 3,
head_dim, in) for example. LoRA, quantisation and the like look for nn.Linear. A plain network has such modules in
their place, computes the same and has the same numbers under the names and in the shapes of `plain_state_dict`;
`native_state_dict` is the way back. A family declares a layer of its own with `declare`.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from s3zoo.models.layers import HeadLinear, HeadProjection, QkvLinear


class Renamed(NamedTuple):
    """What a parameter is in the plain layer, and the way there and back (which gets the shape it had)."""

    name: str
    there: Callable[[Tensor], Tensor]
    back: Callable[[Tensor, torch.Size], Tensor]


class Declared(NamedTuple):
    build: Callable[[Any], nn.Module]  # the plain layer, on the meta device, for one of ours
    parameters: Mapping[str, Renamed]


_DECLARED: dict[type[nn.Module], Declared] = {}


def declare(layer: type[nn.Module], build: Callable[[Any], nn.Module], **parameters: Renamed) -> None:
    """Say what the plain form of a layer is. Parameters that are not named keep their name and shape; of a dotted name,
    the dot is written as two underscores."""
    _DECLARED[layer] = Declared(build, {name.replace("__", "."): to for name, to in parameters.items()})


def reshaped(name: str, there: Callable[[Tensor], Tensor]) -> Renamed:
    return Renamed(name, there, lambda value, shape: value.reshape(shape))


def _linear(layer: Any) -> nn.Module:
    return nn.Linear(layer.weight.shape[-1], layer.bias.numel(), device="meta", dtype=layer.weight.dtype)


def _projection(layer: Any) -> nn.Module:
    out, *heads = layer.weight.shape
    return nn.Linear(torch.Size(heads).numel(), out, device="meta", dtype=layer.weight.dtype)


for _kind in (QkvLinear, HeadLinear):
    declare(_kind, _linear, weight=reshaped("weight", lambda w: w.flatten(0, -2)), bias=reshaped("bias", torch.flatten))
declare(HeadProjection, _projection, weight=reshaped("weight", lambda w: w.flatten(1)))


def to_plain(model: nn.Module) -> nn.Module:
    """A copy of a network of the zoo whose layers are torch's own modules; the output is the same up to rounding."""
    plain = copy.deepcopy(model)
    state, renamed = plain_state_dict(model.state_dict(), model), _renamed(model)
    for path, module in list(plain.named_modules()):
        declared = _DECLARED.get(type(module))
        if declared is not None:
            parent, _, child = path.rpartition(".")
            new = declared.build(module).train(module.training)
            setattr(plain.get_submodule(parent), child, new)
    plain.load_state_dict({name: value.detach().clone() for name, value in state.items()}, assign=True)
    for name, parameter in model.named_parameters():
        new_name = renamed[name][0].name if name in renamed else name
        plain.get_parameter(new_name).requires_grad_(parameter.requires_grad)
    return plain


def plain_state_dict(state: Mapping[str, Tensor], like: nn.Module) -> dict[str, Tensor]:
    """Weights of the network `like` under the names and in the shapes that they have in `to_plain(like)`."""
    renamed, out = _renamed(like), {}
    for name, value in state.items():
        if name in renamed:
            to, _ = renamed[name]
            name, value = to.name, to.there(value)
        out[name] = value
    return out


def native_state_dict(state: Mapping[str, Tensor], like: nn.Module) -> dict[str, Tensor]:
    """The inverse: weights of `to_plain(like)` for `like`, which may be on the meta device."""
    back = {there.name: (name, there, shape) for name, (there, shape) in _renamed(like).items()}
    out = {}
    for plain_name, value in state.items():
        name, there, shape = back.get(plain_name, (plain_name, None, None))
        if there is not None and shape is not None:
            if value.numel() != shape.numel():
                raise ValueError(
                    f"The plain weights do not fit this {type(like).__name__} network: {plain_name!r} has shape "
                    f"{list(value.shape)}, which is no other form of {list(shape)}; load weights of this architecture."
                )
            value = there.back(value, shape).contiguous()
        out[name] = value
    return out


def _renamed(model: nn.Module) -> dict[str, tuple[Renamed, torch.Size]]:
    """By the name of a parameter what it is in the plain network, under its full name there, and its shape here."""
    found = {}
    for path, module in model.named_modules():
        declared, own = _DECLARED.get(type(module)), dict(module.named_parameters())
        for name, to in (declared.parameters if declared else {}).items():
            if name in own:
                found[f"{path}.{name}"] = to._replace(name=f"{path}.{to.name}"), own[name].shape
    return found
