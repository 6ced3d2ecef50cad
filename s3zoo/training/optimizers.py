"""timm's optimizers and schedules: made for a task's weights, saved whole, refused where that cannot be exact.

What an optimizer remembers is what its `state_dict()` holds. In a checkpoint the tensors that it keeps for a weight are
`optimizer.<key>.<weight>` in tensors.safetensors; everything else is in state.json under "optimizer":

    {"groups": [{"betas": {"tuple": [0.9, 0.999]}, "lr": 0.001, …}, …],   the fields of its groups of weights
     "state": {"head.weight": {"step": 12}, …},                           what it keeps for a weight besides tensors
     "other": {"rng_state": …}}                                           what some keep besides both

where `{"tensor": "nested.0"}` stands for a tensor within lists or groups, `{"group": 0}` for the list that the first
group has, and `{"tuple": …}`, `{"dtype": …}` and `{"float": "inf"}` for what JSON does not know.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import torch
from timm.optim import create_optimizer_v2
from timm.scheduler import CosineLRScheduler, MultiStepLRScheduler
from timm.scheduler.scheduler import Scheduler
from torch import Tensor, nn
from torch.optim import Optimizer

from s3zoo.training.config import Train

if TYPE_CHECKING:
    from s3zoo.training.loop import TrainTask

logging.getLogger("timm.scheduler.cosine_lr").setLevel(logging.ERROR)  # that the cosine of one step is flat

# Those of timm's names behind which torch has a step in one kernel, which is three times as fast on a CPU. Not SGD: its
# kernel fails where some weights have momentum and others, which no step has met yet, have none (classical sharing).
FUSED = ("adagrad", "adam", "adamw")
TRIAL_STEPS = 7  # of `check_optimizer` before and after the cut: Lookahead's slow weights move every sixth step


def make_optimizer(task: TrainTask, train: Train) -> Optimizer:
    """Groups by weight decay and learning rate; timm's schedules multiply by a group's lr_scale."""
    groups: dict[tuple[bool, float], dict[str, Any]] = {}
    for name, weight in sorted(task.weights.items(), key=lambda item: item[0] in task.no_decay):  # these last
        exempt, scale = name in task.no_decay, task.lr_scale.get(name, 1.0)
        own = {"params": [], "weight_decay": 0.0 if exempt else train.weight_decay, "lr": train.lr, "lr_scale": scale}
        groups.setdefault((exempt, scale), own)["params"].append(weight)
    options: dict[str, Any] = {"lr": train.lr, "weight_decay": train.weight_decay, "momentum": train.momentum}
    if train.opt.lower().split("_")[-1] in FUSED:
        options["fused"] = True
    try:
        return create_optimizer_v2(list(groups.values()), opt=train.opt, **options)
    except (ValueError, TypeError, AssertionError, ImportError) as error:
        raise _unusable(train, error) from error


def _unusable(train: Train, error: BaseException) -> ValueError:
    reason = " ".join(str(error).split()).rstrip(".")
    return ValueError(
        f"opt is {train.opt!r}, which cannot be used here ({reason}); take one of timm's, such as adamw or sgd."
    )


def make_schedule(optimizer: Optimizer, train: Train, steps_per_epoch: int) -> Scheduler:
    warmup = train.warmup_steps or round(train.warmup_epochs * steps_per_epoch)
    common: dict[str, Any] = {"warmup_t": warmup, "warmup_lr_init": train.warmup_lr, "t_in_epochs": False}
    if train.schedule == "cosine":
        total = train.epochs * steps_per_epoch
        return CosineLRScheduler(optimizer, t_initial=total, lr_min=train.min_lr, **common)
    if train.schedule == "constant":
        return MultiStepLRScheduler(optimizer, [], **common | {"warmup_t": 0})
    assert train.schedule == "step", "Train has checked it"
    # timm looks one step ahead; with this it changes at the first step of the epoch.
    steps = [round(epoch * steps_per_epoch) + 1 for epoch in sorted(train.milestones)]
    return MultiStepLRScheduler(optimizer, steps, train.decay_rate, warmup_prefix=False, **common)


# State


def memory(optimizer: Optimizer) -> dict[Any, dict[str, Any]]:
    """What an optimizer keeps for each weight; a wrapper (timm's Lookahead) leaves that to the optimizer within."""
    return getattr(optimizer, "_base_optimizer", optimizer).state


def optimizer_state(optimizer: Optimizer, weights: Mapping[str, Tensor]) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """What the optimizer remembers, as named tensors and as JSON (see above)."""
    whole = dict(optimizer.state_dict())
    tensors: dict[str, Tensor] = {}
    nested: dict[str, Tensor] = {}
    rest: dict[str, dict[str, Any]] = {}
    for name, (index, _) in _numbered(optimizer, weights).items():
        for key, value in whole["state"].get(index, {}).items():
            if torch.is_tensor(value):
                tensors[f"optimizer.{key}.{name}"] = value
            else:
                rest.setdefault(name, {})[key] = _encoded(value, nested)
    first = whole["param_groups"][0]
    groups: list[dict[str, Any]] = []
    for group in whole["param_groups"]:
        # Some have one list for all groups (radamlegacy), into which one of them writes what the others read.
        common = [key for key, value in group.items() if groups and isinstance(value, list) and value is first.get(key)]
        fields = {key: _encoded(value, nested) for key, value in group.items() if key not in ("params", *common)}
        groups.append(fields | dict.fromkeys(common, {"group": 0}))
    other = {key: _encoded(value, nested) for key, value in whole.items() if key not in ("state", "param_groups")}
    return tensors | nested, {"groups": groups, "state": rest, "other": other}


def restore_optimizer(
    optimizer: Optimizer, weights: Mapping[str, Tensor], tensors: Mapping[str, Tensor], saved: Mapping[str, Any] | None
) -> None:
    """The inverse of `optimizer_state`. `saved` is None in checkpoints of version 1, which have the tensors alone."""
    if saved is None and not type(optimizer).__module__.startswith("torch.optim"):
        raise ValueError(
            f"an older version of s3zoo wrote it, which did not save all that {type(optimizer).__name__} remembers"
        )
    numbered = _numbered(optimizer, weights)
    state: dict[int, dict[str, Any]] = {}
    for full, value in tensors.items():
        kind, _, rest = full.partition(".")
        if kind == "optimizer":
            key, _, name = rest.partition(".")
            state.setdefault(numbered[name][0], {})[key] = value
    whole: dict[str, Any] = {"state": state, "param_groups": optimizer.state_dict()["param_groups"]}
    if saved is not None:
        device = next(iter(weights.values())).device
        for name, values in saved["state"].items():
            own = state.setdefault(numbered[name][0], {})
            own |= {key: _decoded(value, tensors, device) for key, value in values.items()}
        first = whole["param_groups"][0]
        for group, values in zip(whole["param_groups"], saved["groups"], strict=True):
            for key, value in values.items():
                group[key] = first[key] if value == {"group": 0} else _decoded(value, tensors, device)
        whole |= {key: _decoded(value, tensors, device) for key, value in saved["other"].items()}
    optimizer.load_state_dict(whole)
    kept = memory(optimizer)
    for index, weight in numbered.values():  # torch gives floats the weight's type: some optimizers have others
        for key, value in state.get(index, {}).items():
            if torch.is_tensor(value) and kept[weight][key].dtype != value.dtype:
                kept[weight][key] = value.to(kept[weight][key].device)


def _numbered(optimizer: Optimizer, weights: Mapping[str, Tensor]) -> dict[str, tuple[int, Tensor]]:
    """The number that `state_dict()` gives to each weight: their order in the groups."""
    names = {id(weight): name for name, weight in weights.items()}
    ordered = [weight for group in optimizer.param_groups for weight in group["params"]]
    return {names[id(weight)]: (index, weight) for index, weight in enumerate(ordered)}


def _encoded(value: Any, nested: dict[str, Tensor]) -> Any:
    if torch.is_tensor(value):
        name = f"nested.{len(nested)}"
        nested[name] = value
        return {"tensor": name}
    if isinstance(value, list):
        return [_encoded(item, nested) for item in value]
    if isinstance(value, tuple):
        return {"tuple": [_encoded(item, nested) for item in value]}
    if isinstance(value, torch.dtype):
        return {"dtype": str(value).removeprefix("torch.")}
    if isinstance(value, float) and not math.isfinite(value):
        return {"float": str(value)}
    if value is None or type(value) in (bool, int, float, str):
        return value
    raise ValueError(f"it keeps a {type(value).__name__}, which cannot be saved")


def _decoded(value: Any, tensors: Mapping[str, Tensor], device: torch.device) -> Any:
    if isinstance(value, list):
        return [_decoded(item, tensors, device) for item in value]
    if not isinstance(value, dict):
        return value
    ((kind, content),) = value.items()
    if kind == "tensor":
        return tensors[content].to(device)
    if kind == "tuple":
        return tuple(_decoded(item, tensors, device) for item in content)
    return float(content) if kind == "float" else getattr(torch, content)


class _Trial:
    """Weights of every shape that networks have, with gradients that are the same each time and, as in the loop, in the
    same place: timm's MARS before 1.0.30 keeps that place as its last gradient."""

    no_decay = {"bias"}
    lr_scale: dict[str, float] = {"bias": 0.5}

    def __init__(self) -> None:
        shapes = {"linear": (4, 3), "conv": (2, 3, 3, 3), "bias": (4,), "scale": (1,)}
        generator = torch.Generator().manual_seed(0)
        self.weights = {n: nn.Parameter(torch.randn(shape, generator=generator)) for n, shape in shapes.items()}
        for weight in self.weights.values():
            weight.grad = torch.empty_like(weight)

    def take(self, optimizer: Optimizer, schedule: Scheduler, steps: range) -> None:
        for step in steps:
            torch.manual_seed(step)
            schedule.step_update(step)
            for weight in self.weights.values():
                weight.grad.normal_()  # type: ignore[union-attr]
            optimizer.step()


@lru_cache
def check_optimizer(train: Train) -> None:
    """Refuse, before anything is trained, an optimizer that does not work here or would not resume exactly: a few steps
    in one go and the same steps with new objects in their middle must give the same bits."""

    def begin() -> tuple[_Trial, Optimizer, Scheduler]:
        trial: Any = _Trial()
        optimizer = make_optimizer(trial, train)
        return trial, optimizer, make_schedule(optimizer, train, 1)

    # Not compiled (Kron compiles itself): that takes minutes and is not what is tried.
    with torch.random.fork_rng(devices=[]), torch.compiler.set_stance("force_eager"):
        try:
            whole, optimizer, schedule = begin()
            whole.take(optimizer, schedule, range(TRIAL_STEPS))
            middle = {name: weight.detach().clone() for name, weight in whole.weights.items()}
            tensors, state = optimizer_state(optimizer, whole.weights)
            tensors = {name: tensor.clone() for name, tensor in tensors.items()}
            whole.take(optimizer, schedule, range(TRIAL_STEPS, 2 * TRIAL_STEPS))
            again, optimizer, schedule = begin()
            for name, weight in again.weights.items():
                weight.data.copy_(middle[name])
            restore_optimizer(optimizer, again.weights, tensors, state)
            again.take(optimizer, schedule, range(TRIAL_STEPS, 2 * TRIAL_STEPS))
            same = all(torch.equal(w, v) for w, v in zip(again.weights.values(), whole.weights.values(), strict=True))
        except (RuntimeError, ValueError, KeyError, IndexError, TypeError, AttributeError) as error:
            raise error if str(error).startswith("opt is") else _unusable(train, error) from error
    if not same:
        raise _unusable(train, ValueError("a run that is interrupted would not end as one that is not"))
