"""What a run needs to know of other processes; a run without `torchrun` is the case of one rank."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn

from s3zoo.compat import NO_APPLE, before_leaving

T = TypeVar("T")


@dataclass(frozen=True)
class Ranks:
    rank: int
    world: int
    device: torch.device

    @property
    def first(self) -> bool:
        return self.rank == 0

    def sum(self, tensor: Tensor) -> None:
        if self.world > 1:
            dist.all_reduce(tensor)

    def share(self, items: list[T]) -> list[T]:
        """This rank's part of a list."""
        return items[self.rank :: self.world]

    def gather(self, own: list[Any]) -> list[Any]:
        """The whole list on every rank, in the order that `share` took apart."""
        if self.world == 1:
            return own
        parts: list[Any] = [None] * self.world
        dist.all_gather_object(parts, own)
        whole: list[Any] = [None] * sum(map(len, parts))
        for rank, part in enumerate(parts):
            whole[rank :: self.world] = part
        return whole

    def from_first(self, value: T) -> T:
        if self.world == 1:
            return value
        box = [value]
        dist.broadcast_object_list(box, src=0)
        return box[0]

    def wait(self) -> None:
        if self.world > 1:
            dist.barrier()

    def rank0_first(self, read: Callable[[], T]) -> T:
        """The first rank opens (and repairs) a file before the others look at it."""
        if self.first:
            value = read()
        self.wait()
        return value if self.first else read()


BUCKET = 2**22  # numbers of a gradient that are summed at once


@contextmanager
def summing_gradient(gradient: Tensor, model: nn.Module, ranks: Ranks, bucket: int = BUCKET) -> Iterator[None]:
    """Sum a flat gradient over ranks while the model's backward pass, in the block, still computes the rest of it.

    The gradients of the model's parameters are views of `gradient`, which holds its sums with those of other models
    already. A piece of it is sent off once all parameters that lie in it have theirs; pieces from the last to the
    first, as a backward pass fills them, and in the same order on all ranks. Afterwards the whole sum is there.
    """
    if ranks.world == 1:
        yield
        return
    pieces = gradient.split(bucket)
    missing = [0] * len(pieces)  # parameters that lie in a piece and have no gradient yet
    pending: list[Any] = []

    def send() -> None:
        while len(pending) < len(pieces) and not missing[-1 - len(pending)]:
            pending.append(dist.all_reduce(pieces[-1 - len(pending)], async_op=True))

    def note(places: range) -> Callable[[Tensor], None]:
        def noted(parameter: Tensor) -> None:
            for place in places:
                missing[place] -= 1
            send()

        return noted

    hooks = []
    for parameter in model.parameters():
        if parameter.requires_grad and parameter.grad is not None:
            first = parameter.grad.storage_offset()
            extent = sum((n - 1) * s for n, s in zip(parameter.grad.shape, parameter.grad.stride(), strict=True))
            places = range(first // bucket, (first + extent) // bucket + 1)
            for place in places:
                missing[place] += 1
            hooks.append(parameter.register_post_accumulate_grad_hook(note(places)))
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()
    missing[:] = [0] * len(pieces)  # what is left has no part in the loss
    send()
    for work in pending:
        work.wait()


class _Sum(torch.autograd.Function):
    """The sum over ranks; every rank's loss depends on it, so gradients are summed, too."""

    @staticmethod
    def forward(ctx: Any, own: Tensor) -> Tensor:
        whole = own.clone(memory_format=torch.contiguous_format)
        dist.all_reduce(whole)
        return whole

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        return _Sum.forward(ctx, gradients[0])


class _SynchronisedBatchNorm(nn.modules.batchnorm._BatchNorm):
    """Batch norm over the batches of all ranks; torch's own exists for GPUs only.

    Ranks have equally many samples, so means of means are means.
    """

    def forward(self, x: Tensor) -> Tensor:
        if not self.training:
            return self._and_act(super().forward(x))
        assert self.running_mean is not None and self.running_var is not None and self.momentum is not None
        assert self.num_batches_tracked is not None
        axes, shape = [0, *range(2, x.ndim)], [1, -1] + [1] * (x.ndim - 2)
        count = dist.get_world_size()
        # Less what all ranks know, as E[x^2] - E[x]^2 cancels; and so in float32: under autocast, x is bfloat16.
        centred = x - self.running_mean.view(shape)
        moments = torch.stack([centred.mean(axes), centred.square().mean(axes)])
        mean, square = _Sum.apply(moments) / count
        variance = (square - mean * mean).clamp_min(0)
        with torch.no_grad():
            n = x.numel() / x.shape[1] * count
            self.running_mean.add_(mean, alpha=self.momentum)  # by momentum towards running_mean + mean
            self.running_var.lerp_(variance * n / (n - 1), self.momentum)
            self.num_batches_tracked += 1
        scale = self.weight * torch.rsqrt(variance + self.eps)
        normed = (centred - mean.view(shape)) * scale.view(shape) + self.bias.view(shape)
        return self._and_act(normed.to(x.dtype))

    def _and_act(self, x: Tensor) -> Tensor:
        """timm's BatchNormAct2d drops out and activates, too."""
        parts: Any = self
        return parts.act(parts.drop(x)) if hasattr(self, "act") else x

    def _check_input_dim(self, input: Tensor) -> None: ...


def synchronise_batch_norms(model: nn.Module) -> None:
    """Let the batch norms of a model see the whole global batch. Parameters, buffers and names stay what they are."""
    for module in model.modules():
        if isinstance(module, nn.BatchNorm1d | nn.BatchNorm2d):
            module.__dict__["plain_class"] = type(module)
            module.__class__ = _SynchronisedBatchNorm  # type: ignore[assignment]


def separate_batch_norms(model: nn.Module) -> None:
    """Undo `synchronise_batch_norms`."""
    for module in model.modules():
        if isinstance(module, _SynchronisedBatchNorm):
            module.__class__ = module.__dict__.pop("plain_class")


def start(device: str = "auto") -> Ranks:
    """Join the processes that `torchrun` started, if it did."""
    if device not in ("auto", "cpu", "cuda"):
        why = f" ({NO_APPLE})" if device == "mps" else ""
        raise ValueError(f"device is {device!r}{why}, but must be 'auto', 'cpu' or 'cuda'.")
    if device == "cuda" and not torch.cuda.is_available():
        raise ValueError("device is 'cuda', but torch sees no GPU; use device=cpu or auto.")
    on_gpu = device != "cpu" and torch.cuda.is_available()
    world = int(os.environ.get("WORLD_SIZE", "1"))
    local = int(os.environ.get("LOCAL_RANK", "0"))
    where = torch.device("cuda", local) if on_gpu else torch.device("cpu")
    if on_gpu:
        torch.cuda.set_device(where)
    if world > 1 and not dist.is_initialized():
        # After a restart torchrun's store still holds the addresses of the processes before: a prefix keeps them apart.
        store, rank, world = next(dist.rendezvous("env://"))
        store = dist.PrefixStore(f"restart-{os.environ.get('TORCHELASTIC_RESTART_COUNT', '0')}", store)
        dist.init_process_group("nccl" if on_gpu else "gloo", store=store, rank=rank, world_size=world)
    return Ranks(dist.get_rank() if world > 1 else 0, world, where)


def mixed_precision(wanted: bool, device: torch.device, dtype: str = "auto") -> torch.dtype | None:
    """The type of mixed precision on a GPU: bfloat16 where it computes with it, float16 on older ones (V100)."""
    if not wanted or device.type != "cuda":
        return None
    if dtype == "auto":
        dtype = "bfloat16" if torch.cuda.is_bf16_supported(including_emulation=False) else "float16"
    return getattr(torch, dtype)


def stop() -> None:
    if dist.is_initialized():
        before_leaving()
        dist.destroy_process_group()
