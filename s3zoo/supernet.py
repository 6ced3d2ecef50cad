"""Weight sharing in one place: a bank of tensors, and subnets whose parameters and gradients are views of it.

`Supernet.subnet(arch)` is an ordinary static model of the zoo. Its `Parameter`s are slices of the bank's tensors and
their `.grad`s are the same slices of the bank's gradients, so a backward pass through any number of subnets sums up
in the bank, and an optimizer step on the bank is seen by every subnet. `extract` makes the same slices and copies them.

Which slice is the corner rule (models/layers.py): leading indices on every axis, the centre on spatial ones.
"""

from __future__ import annotations

import copy
import dataclasses
import itertools
import warnings
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from s3zoo.arch import Arch, Stage
from s3zoo.models import MODELS
from s3zoo.models.layers import centered_axes, corner
from s3zoo.space import Space

Slices = tuple[slice, ...]

# Gradients of views are views, too; torch notes once that they are not laid out as it would have done.
warnings.filterwarnings("ignore", message="grad and param do not obey the gradient layout contract")


class Supernet:
    """The shared weights of all architectures of a space.

    sharing="entangled": one tensor per name, as large as any architecture needs (AutoFormer Eq. 6).
    sharing="classical": every candidate block of a layer has weights of its own (SPOS), and so has the frame around
    the blocks (patch embedding, norms, head) for every combination of widths.
    sharing="module": as classical, but a block's modules (attention, MLP, norms) are candidates one by one: two blocks
    share those whose tensors have the same shapes in both.
    """

    def __init__(
        self,
        space: Space,
        *,
        img_size: int | tuple[int, int] = 224,
        num_classes: int = 1000,
        in_chans: int = 3,
        sharing: str = "entangled",
        drop_path_rate: float = 0.0,
        device: torch.device | str = "cpu",
        model_args: Mapping[str, Any] | None = None,
        bias_per_head_count: bool = False,
    ) -> None:
        if sharing not in ("entangled", "classical", "module"):
            raise ValueError(f"sharing is {sharing!r}, but must be 'entangled', 'classical' or 'module'.")
        self.space, self.img_size, self.sharing = space, img_size, sharing
        self.device = torch.device(device)
        if space.family not in MODELS:
            raise ValueError(f"family is {space.family!r}, but networks exist only for {', '.join(MODELS)}.")
        self.model_type: Any = MODELS[space.family]
        self.bias_per_head_count = bias_per_head_count  # official AutoFormer supernets: their qkv bias does not nest
        self.model_args = {"img_size": img_size, "num_classes": num_classes, "in_chans": in_chans, **(model_args or {})}
        if hasattr(self.model_type, "shared_args"):  # a frozen part, built once for all subnets
            self.model_args = self.model_type.shared_args(self.model_args, self.device)
        depths = space.largest().depths
        self._offsets = [sum(depths[:i]) for i in range(len(depths))]
        self._drop_rates = torch.linspace(0, drop_path_rate, sum(depths)).tolist()
        self._blocks: dict[tuple[Any, ...], nn.Module] = {}
        self._frames: dict[tuple[int, ...], nn.Module] = {}
        self._slices: dict[int, list[tuple[str, Slices]]] = {}
        self._centered: dict[str, tuple[int, ...]] = {}
        self._fill_bank()

    # The bank

    def _fill_bank(self) -> None:
        """Allocate one flat buffer for all weights and one for all gradients, and initialise like the static models."""
        initial: dict[str, Tensor] = {}
        self.no_decay: set[str] = set()  # names of the bank's tensors that take no weight decay
        for arch in self._covering():
            model = self.model_type(arch, **self.model_args)
            no_decay = model.no_weight_decay()
            for name, bank_name in self._names(model, arch):
                value = model.get_parameter(name).detach()
                if name in no_decay or value.ndim <= 1:
                    self.no_decay.add(bank_name)
                held = initial.get(bank_name)
                if held is None:
                    initial[bank_name] = value
                elif held.shape != value.shape:
                    # Larger on one axis, perhaps smaller on another: take the larger extent of each.
                    union = value.new_zeros([max(a, b) for a, b in zip(held.shape, value.shape, strict=True)])
                    for part in (value, held):
                        union[self._corner(bank_name, part.shape, union.shape)] = part
                    initial[bank_name] = union
        sizes = {name: value.numel() for name, value in initial.items()}
        self.flat = torch.empty(sum(sizes.values()), device=self.device)
        self.gradient = torch.zeros_like(self.flat)
        self.bank: dict[str, nn.Parameter] = {}
        self.grads: dict[str, Tensor] = {}
        start = 0
        for name, value in initial.items():
            stop = start + sizes[name]
            self.bank[name] = nn.Parameter(self.flat[start:stop].view(value.shape))
            self.grads[name] = self.gradient[start:stop].view(value.shape)
            start = stop
        self.load_state_dict(initial)
        self.attach_gradients()

    def _covering(self) -> Iterator[Arch]:
        """Architectures that together name every tensor of the bank in its full size."""
        if self.sharing == "entangled":
            if self.bias_per_head_count:
                heads = next(d for d in self.space.dims if d.gene == "num_heads")
                for choice in reversed(heads.choices):
                    yield self.space.build({d.name: d.choices[-1] for d in self.space.dims} | {heads.name: choice})
            else:
                yield from (arch.effective(self.img_size) for arch in self.space.extremes())
            return
        # Otherwise: per combination of non-block values, as many networks as the most varied layer has candidates.
        free = [dim for dim in self.space.dims if not dim.per_block and dim.gene != "depth"]
        deepest = {dim.name: dim.choices[-1] for dim in self.space.dims if dim.gene == "depth"}
        depths = self.space.largest().depths
        candidates = [[self.space.candidates(s, j) for j in range(depth)] for s, depth in enumerate(depths)]
        most = max(len(c) for stage in candidates for c in stage)
        for chosen in itertools.product(*(dim.choices for dim in free)):
            values = deepest | {dim.name: choice for dim, choice in zip(free, chosen, strict=True)}
            for i in range(most):
                blocks = [[c[i % len(c)] for c in stage] for stage in candidates]
                yield self.space.assemble(values, blocks).effective(self.img_size)

    def _names(self, model: nn.Module, arch: Arch) -> Iterator[tuple[str, str]]:
        """The name of each parameter of a model, and the name of the bank's tensor that it is a slice of."""
        shapes = {name: value.shape for name, value in model.named_parameters()}
        for name, axes in centered_axes(model).items():
            self._centered[self._bank_name(name, arch, shapes)] = axes
        for name in shapes:
            yield name, self._bank_name(name, arch, shapes)

    def _bank_name(self, name: str, arch: Arch, shapes: Mapping[str, torch.Size]) -> str:
        """Where a parameter lies in the bank; `shapes` are those of all parameters of its block, or of the model."""
        place = self._place(name)
        if self.sharing != "entangled":
            if place is None:
                return f"{name}@{'-'.join(map(str, arch.embed_dims))}"
            stage = arch.stages[place[0]]
            if self.sharing == "module":
                block = f"{self.model_type.blocks_path(place[0])}.{place[1]}."
                module = block + name.removeprefix(block).split(".", 1)[0]
                own = [shape for key, shape in shapes.items() if key == module or key.startswith(module + ".")]
                return f"{name}@{'-'.join('x'.join(map(str, shape)) for shape in own)}"
            values = dataclasses.astuple(stage.blocks[place[1]])
            genes = "-".join(f"{v:g}" if isinstance(v, int | float) else str(v) for v in values)
            return f"{name}@{stage.embed_dim}-{genes}"
        if self.bias_per_head_count and place is not None and name.endswith("qkv.bias"):
            return f"{name}@{arch.stages[place[0]].blocks[place[1]].num_heads}"
        return name

    def _place(self, name: str) -> tuple[int, int] | None:
        """Stage and index of the block that a parameter belongs to."""
        for stage in range(self.space.num_stages):
            path = self.model_type.blocks_path(stage) + "."
            if name.startswith(path):
                return stage, int(name[len(path) :].split(".", 1)[0])
        return None

    def _corner(self, bank_name: str, small: Iterable[int], large: Iterable[int]) -> Slices:
        return corner(small, large, self._centered.get(bank_name, ()))

    def _located(
        self, names: Iterable[tuple[str, str]], tensors: Mapping[str, Tensor]
    ) -> Iterator[tuple[str, str, Slices]]:
        for name, bank_name in names:
            yield name, bank_name, self._corner(bank_name, tensors[name].shape, self.bank[bank_name].shape)

    # Subnets

    def subnet(self, arch: Arch) -> nn.Module:
        """The static model of an architecture on the shared weights: cached blocks put together, nothing copied."""
        arch = arch.effective(self.img_size)
        frame = self._frames.get(arch.embed_dims)
        if frame is None:
            frame = self._frames[arch.embed_dims] = self._view_of_frame(arch)
        model = _shallow(frame)
        model.arch = arch  # type: ignore[assignment]
        for s, stage in enumerate(arch.stages):
            parent = model
            *path, leaf = self.model_type.blocks_path(s).split(".")
            for part in path:  # copy what lies on the way, so that the cached frame keeps its own blocks
                child = _shallow(parent._modules[part])  # type: ignore[arg-type]
                parent._modules[part] = child
                parent = child
            blocks = [self._view_of_block(arch, s, j) for j in range(stage.depth)]
            container = parent._modules[leaf] = _shallow(parent._modules[leaf])  # type: ignore[arg-type]
            container._modules = {str(j): block for j, block in enumerate(blocks)}
        return model

    def _view_of_frame(self, arch: Arch) -> nn.Module:
        thin = dataclasses.replace(arch, stages=tuple(Stage(s.embed_dim, s.blocks[:1]) for s in arch.stages))
        with torch.device("meta"):
            frame = self.model_type(thin, **self.model_args, device="meta")
        for s in range(len(arch.stages)):
            container = frame.get_submodule(self.model_type.blocks_path(s))
            for index in list(container._modules):
                del container._modules[index]
        self._alias(frame, "", arch)
        return frame

    def _view_of_block(self, arch: Arch, stage: int, index: int) -> nn.Module:
        key = (stage, index, arch.stages[stage].embed_dim, arch.stages[stage].blocks[index])
        block = self._blocks.get(key)
        if block is None:
            rate = self._drop_rates[self._offsets[stage] + index]
            frame: Any = self._frames[arch.embed_dims]
            block = frame.make_block(arch, stage, index, drop_path=rate, device="meta")
            self._alias(block, f"{self.model_type.blocks_path(stage)}.{index}", arch)
            self._blocks[key] = block
        return block

    def _alias(self, module: nn.Module, prefix: str, arch: Arch) -> None:
        """Replace the parameters of a module by views of the bank, and make its buffers real."""
        dotted = prefix + "." if prefix else ""
        parts = dict(module.named_parameters())
        slices = []
        shapes = {dotted + name: value.shape for name, value in parts.items()}
        names = [(name, self._bank_name(dotted + name, arch, shapes)) for name in parts]
        for name, bank_name, place in self._located(names, parts):
            view = nn.Parameter(self.bank[bank_name].data[place])
            view.grad = self.grads[bank_name][place]
            owner, _, leaf = name.rpartition(".")
            module.get_submodule(owner)._parameters[leaf] = view
            slices.append((bank_name, place))
        self._slices[id(module)] = slices
        for part in module.modules():
            for name, buffer in part._buffers.items():
                if buffer is not None and buffer.is_meta:
                    part._buffers[name] = torch.empty_like(buffer, device=self.device)
            if hasattr(part, "reset_running_stats"):
                part.reset_running_stats()  # type: ignore[operator]
            if hasattr(part, "init_non_persistent_buffers"):
                part.init_non_persistent_buffers()  # type: ignore[operator]

    def used(self, arch: Arch) -> Iterator[tuple[str, Slices]]:
        """The slices of the bank that an architecture uses."""
        arch = arch.effective(self.img_size)
        self.subnet(arch)
        yield from self._slices[id(self._frames[arch.embed_dims])]
        for s, stage in enumerate(arch.stages):
            for j in range(stage.depth):
                yield from self._slices[id(self._view_of_block(arch, s, j))]

    def extract(self, arch: Arch, **model_args: Any) -> nn.Module:
        """A static model of its own with a copy of the weights (and of batch-norm statistics, see `recalibrate`)."""
        arch = arch.effective(self.img_size)
        model = self.model_type(arch, **{**self.model_args, **model_args}).to(self.device)
        own = dict(model.named_parameters())
        with torch.no_grad():
            for name, bank_name, place in self._located(self._names(model, arch), own):
                own[name].copy_(self.bank[bank_name][place])
            for name, buffer in self.subnet(arch).named_buffers():
                model.get_buffer(name).copy_(buffer)
        return model

    def whole(self) -> nn.Module:
        """All weights as the largest network, of which every other is a corner; a ValueError where it is not so."""
        largest = self.extract(self.space.largest())
        if any(isinstance(module, nn.modules.batchnorm._BatchNorm) for module in largest.modules()):
            raise ValueError(
                f"The networks of space {self.space.name!r} have batch norms, and each needs statistics of its own;"
                " `s3zoo extract` measures them for the networks that it writes."
            )
        shapes = {name: value.shape for name, value in largest.named_parameters()}
        if shapes != {name: value.shape for name, value in self.bank.items()}:
            entangled = self.sharing == "entangled"
            why = "no network has all of its weights" if entangled else f"its weights are shared {self.sharing!r}"
            raise ValueError(
                f"The supernet of space {self.space.name!r} is no single network: {why}; `s3zoo extract` writes"
                " networks of it."
            )
        return largest

    # Training

    def attach_gradients(self, only: set[str] | None = None) -> None:
        """Give the bank's tensors their gradients; with `only`, the others have none and optimizers skip them."""
        for name, weight in self.bank.items():
            weight.grad = self.grads[name] if only is None or name in only else None

    # State

    def state_dict(self) -> dict[str, Tensor]:
        return {name: weight.detach() for name, weight in self.bank.items()}

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Copy in place, so that every view stays valid."""
        missing, unknown = sorted(self.bank.keys() - state.keys()), sorted(state.keys() - self.bank.keys())
        if missing or unknown:
            raise ValueError(
                f"The weights belong to another space than {self.space.name!r}: {len(missing)} tensors are missing and"
                f" {len(unknown)} unknown, such as {(missing + unknown)[0]}; load this space's own."
            )
        for name, weight in self.bank.items():
            if state[name].shape != weight.shape:
                raise ValueError(
                    f"The weights belong to another space than {self.space.name!r}: {name} has shape"
                    f" {tuple(state[name].shape)}, but must have {tuple(weight.shape)}."
                )
        with torch.no_grad():
            for name, weight in self.bank.items():
                weight.copy_(state[name])

    def warm_start(self, state: Mapping[str, Tensor]) -> int:
        """Take over what this space shares with another one's weights; returns the number of elements taken."""
        taken = 0
        with torch.no_grad():
            for name, weight in self.bank.items():
                other = state.get(name)
                if other is None or other.ndim != weight.ndim:
                    continue
                shape = [min(a, b) for a, b in zip(weight.shape, other.shape, strict=True)]
                weight[self._corner(name, shape, weight.shape)] = other[self._corner(name, shape, other.shape)]
                taken += torch.Size(shape).numel()
        return taken


def recalibrate(model: nn.Module, batches: Iterable[Tensor]) -> int:
    """Set batch-norm statistics of a subnet to those of these inputs, from scratch; returns how many norms there are.

    Weights are shared, statistics cannot be: those left by other subnets' training are wrong for this one.
    """
    norms = [m for m in model.modules() if isinstance(m, nn.modules.batchnorm._BatchNorm)]
    if not norms:
        return 0
    momenta = [norm.momentum for norm in norms]
    was_training = model.training
    model.eval()
    for norm in norms:
        norm.reset_running_stats()
        norm.momentum = None  # cumulative average over the batches
        norm.train()
    with torch.no_grad():
        for inputs in batches:
            model(inputs)
    for norm, momentum in zip(norms, momenta, strict=True):
        norm.momentum = momentum
    model.train(was_training)
    return len(norms)


def _shallow(module: nn.Module) -> nn.Module:
    """The same module with a list of children of its own."""
    twin = copy.copy(module)
    twin._modules = dict(module._modules)
    return twin
