"""What a run needs to know of other processes; a run without `torchrun` is the case of one rank."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

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

    def first_first(self, read: Callable[[], T]) -> T:
        """The first rank opens (and repairs) a file before the others look at it."""
        if self.first:
            value = read()
        self.wait()
        return value if self.first else read()


def start(device: str = "auto") -> Ranks:
    """Join the processes that `torchrun` started, if it did."""
    if device not in ("auto", "cpu", "cuda"):
        raise ValueError(f"device is {device!r}, but must be 'auto', 'cpu' or 'cuda'.")
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


def stop() -> None:
    if dist.is_initialized():
        dist.destroy_process_group()
