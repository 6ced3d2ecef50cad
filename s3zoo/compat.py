"""What older and newer releases of the packages that s3zoo stands on do differently; nothing else asks for versions."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

WRITES_ONNX = tuple(map(int, torch.__version__.split(".")[:2])) >= (2, 13)  # 2.9 cannot keep the batch size open
NO_APPLE = "Apple's GPU is not used: s3zoo computes on cpu and cuda"


def device_dtype(module: nn.Module) -> dict[str, Any]:
    """Where and as what the first parameter is kept, as arguments of a new layer (timm's get_device_dtype, 1.0.29)."""
    parameter = next(module.parameters(), None)
    return {} if parameter is None else {"device": parameter.device, "dtype": parameter.dtype}


def reset_head(head: Any, num_classes: int, pool_type: str | None, device: torch.device, dtype: torch.dtype) -> None:
    """A new classifier in timm's ClassifierHead, whose `reset` takes neither device nor dtype before timm 1.0.29."""
    default = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        with device:
            head.reset(num_classes, pool_type=pool_type)
    finally:
        torch.set_default_dtype(default)
    head.train(head.training)


class _Whole:
    """In the place of torch's record of the modules that are entered, which is not needed for the sum of all. Its hooks
    on gradients fail in torch 2.6 where a module is given a parameter (pooling by attention in timm's ViTs)."""

    parents = frozenset({"Global"})

    def __enter__(self) -> _Whole:
        return self

    def __exit__(self, *_: object) -> None:
        pass


def before_leaving() -> None:
    """Let the threads of gloo let go of the tensors of their last work, for which they need Python's lock: torch 2.6
    destroys a process group with that lock held, waits for these threads, and would wait for ever."""
    time.sleep(0.2)


def count_macs(call: Callable[[], Any], custom_mapping: dict[Any, Any] | None = None) -> tuple[int, Any]:
    """The multiply-accumulates of a call as torch counts them, and its result.

    Attention is computed product by product: torch before 2.10 counts nothing in the fused kernel of CPUs. Torch 2.6
    looks for what it may not take apart by overload, newer ones by operator.
    """
    mapping = dict(custom_mapping or {})
    mapping |= {operator.default: count for operator, count in mapping.items()}
    counter = FlopCounterMode(display=False, custom_mapping=mapping)
    counter.mod_tracker = _Whole()  # type: ignore[assignment]
    with torch.no_grad(), sdpa_kernel(SDPBackend.MATH), counter:
        result = call()
    return counter.get_total_flops() // 2, result


def refuse_empty_maps(model: nn.Module) -> None:
    """Let convolutions whose kernel is larger than the map fail on the device "meta", too, where torch 2.6 goes on with
    a map without pixels."""

    def check(layer: nn.Module, _: Any, output: torch.Tensor) -> None:
        if not output.numel():
            raise RuntimeError(f"The map is smaller than the kernel of {layer}.")

    for layer in model.modules():
        if isinstance(layer, nn.Conv2d):
            layer.register_forward_hook(check)
