"""One training loop for supernets, retraining and finetuning.

Step t is a function of (seed, t): its batch, augmentation, Mixup, architectures and drop-path masks. So every rank
knows them without talking, an epoch can start in its middle, and a run resumed from a checkpoint is the same run.
"""

from __future__ import annotations

import hashlib
import math
import random
import signal
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from types import FrameType
from typing import Any, Protocol

import torch
import torch.nn.functional as F
from timm.optim import param_groups_layer_decay
from torch import Tensor, nn
from torch.utils._pytree import tree_flatten, tree_leaves, tree_map, tree_unflatten

from s3zoo.arch import Arch
from s3zoo.checks import Count, typed
from s3zoo.files import Records, check_run
from s3zoo.models.layers import DropPath
from s3zoo.space import Space
from s3zoo.supernet import Supernet
from s3zoo.training import checkpoint
from s3zoo.training.config import Train
from s3zoo.training.distributed import Ranks, separate_batch_norms, summing_gradient, synchronise_batch_norms
from s3zoo.training.log import Log
from s3zoo.training.optimizers import (
    check_optimizer,
    make_optimizer,
    make_schedule,
    memory,
    optimizer_state,
    restore_optimizer,
)


class Interrupted(Exception):
    """The user asked to stop; everything is saved."""


def seed_from(*parts: Any) -> int:
    """A seed from a name: the same on every machine, independent for different names."""
    digest = hashlib.sha256("/".join(map(str, parts)).encode()).digest()
    return int.from_bytes(digest[:8], "little") >> 1


class Stop:
    """Ctrl-C and SIGTERM ask for a stop at the next safe moment; a second Ctrl-C does not wait."""

    def __init__(self) -> None:
        self.asked = False

    def _ask(self, signum: int, frame: FrameType | None) -> None:
        if self.asked and signum == signal.SIGINT:
            raise KeyboardInterrupt
        self.asked = True

    @contextmanager
    def listening(self) -> Iterator[Stop]:
        before = {s: signal.signal(s, self._ask) for s in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield self
        finally:
            for signum, handler in before.items():
                signal.signal(signum, handler)


# What is trained, and on what

Inputs = Any  # a tensor, or a dict or tuple of tensors, whose first axis is that of the samples


class TrainData(Protocol):
    """What the loop asks of data; `ImageData` is one."""

    train_size: int

    def train_batches(
        self, epoch: int, batch_size: int, start_batch: int = 0
    ) -> Iterator[tuple[Inputs, Tensor, Tensor]]: ...

    def mixup(self, images: Inputs, targets: Tensor, step: int, smoothing: float = 0.0) -> tuple[Inputs, Tensor]: ...


class TrainTask(Protocol):
    """Weights, and the models whose losses are summed in a step."""

    weights: dict[str, nn.Parameter]
    no_decay: set[str]
    lr_scale: dict[str, float]  # of the weights whose learning rate is not train.lr: a factor on it
    gradient: Tensor  # of all weights, flat

    def models(self, step: int) -> list[nn.Module]:
        """The models of a step, in training mode."""
        ...

    def loss(
        self, model: nn.Module, inputs: Inputs, targets: Tensor, *, smoothing: float, step: int, rows: Tensor
    ) -> Tensor:
        """The sum of the samples' losses; `rows` are the samples' places in the global batch of the step."""
        ...

    def before_step(self, optimizer: torch.optim.Optimizer) -> None: ...
    def after_step(self, optimizer: torch.optim.Optimizer) -> None: ...
    def buffers(self) -> dict[str, Tensor]: ...


def cross_entropy(logits: Tensor, targets: Tensor, smoothing: float) -> Tensor:
    """Summed over samples; targets are classes or, after Mixup, probabilities that are smoothed already."""
    smoothing = smoothing if targets.ndim == 1 else 0.0
    return F.cross_entropy(logits.float(), targets, label_smoothing=smoothing, reduction="sum")


class SupernetTask:
    """Uniform (one architecture a step) or sandwich (largest, smallest, two random ones) training."""

    def __init__(self, supernet: Supernet, train: Train, seed: int) -> None:
        self.supernet, self.train, self.seed = supernet, train, seed
        self.weights, self.no_decay, self.gradient = supernet.bank, supernet.no_decay, supernet.gradient
        self.lr_scale: dict[str, float] = {}
        self._archs: list[Arch] = []
        self._taught: dict[int, Tensor] = {}  # what the largest network said of this step's samples
        self._before: dict[tuple[str, str], Tensor] = {}

    def models(self, step: int) -> list[nn.Module]:
        self._archs = step_archs(self.supernet.space, self.train.sampling, self.seed, step)
        self._taught = {}
        return [self.supernet.subnet(arch).train() for arch in self._archs]

    def loss(
        self, model: nn.Module, inputs: Inputs, targets: Tensor, *, smoothing: float, step: int, rows: Tensor
    ) -> Tensor:
        logits = model(inputs)
        if self.train.distil == "inplace":  # the largest, which comes first, learns the labels, the others its answers
            if (part := int(rows[0])) in self._taught:
                return cross_entropy(logits, self._taught[part], 0.0)
            self._taught[part] = logits.detach().float().softmax(1)
        return cross_entropy(logits, targets, smoothing)

    def before_step(self, optimizer: torch.optim.Optimizer) -> None:
        """Let the optimizer skip what no architecture of this step uses."""
        if self.supernet.sharing != "entangled":
            self.supernet.attach_gradients({name for arch in self._archs for name, _ in self.supernet.used(arch)})
        elif self.train.freeze_unsampled:
            self._before = {key: value.clone() for key, value in self._movable(optimizer)}

    def after_step(self, optimizer: torch.optim.Optimizer) -> None:
        if self.supernet.sharing != "entangled":
            self.supernet.attach_gradients()
        elif self.train.freeze_unsampled:
            self._restore_unsampled(optimizer)

    def _movable(self, optimizer: torch.optim.Optimizer) -> Iterator[tuple[tuple[str, str], Tensor]]:
        """The weights and the optimizer's memory of them, element by element."""
        for name, weight in self.weights.items():
            yield (name, ""), weight.detach()
            for key, value in memory(optimizer).get(weight, {}).items():
                if torch.is_tensor(value) and value.shape == weight.shape:
                    yield (name, key), value

    def _restore_unsampled(self, optimizer: torch.optim.Optimizer) -> None:
        """Undo the step where no architecture of it reached."""
        sampled = {name: torch.zeros_like(weight, dtype=torch.bool) for name, weight in self.weights.items()}
        for arch in self._archs:
            for name, corner in self.supernet.used(arch):
                sampled[name][corner] = True
        for (name, key), value in self._movable(optimizer):
            before = self._before.get((name, key))  # None: the optimizer's memory began in this step
            value.copy_(torch.where(sampled[name], value, torch.zeros_like(value) if before is None else before))

    def buffers(self) -> dict[str, Tensor]:
        return {}


class ModelTask:
    """One static model: its parameters that require a gradient.

    Args:
        frozen: modules that stay in evaluation mode (no batch statistics, no drop path).
        lr_scale: factors on the learning rate, by name of the parameter.
    """

    def __init__(
        self, model: nn.Module, *, frozen: Sequence[nn.Module] = (), lr_scale: Mapping[str, float] | None = None
    ) -> None:
        self.model, self.frozen, self.lr_scale = model, frozen, dict(lr_scale or {})
        self.weights = {name: p for name, p in model.named_parameters() if p.requires_grad}
        exempt: set[str] = getattr(model, "no_weight_decay", set)()
        self.no_decay = {name for name, p in self.weights.items() if p.ndim <= 1 or name in exempt}
        total = sum(p.numel() for p in self.weights.values())
        device = next(iter(self.weights.values())).device
        self.gradient = torch.zeros(total, device=device)
        start = 0
        for weight in self.weights.values():
            weight.grad = self.gradient[start : start + weight.numel()].view(weight.shape)
            start += weight.numel()

    def models(self, step: int) -> list[nn.Module]:
        self.model.train()
        for module in self.frozen:
            module.eval()
        return [self.model]

    def loss(
        self, model: nn.Module, inputs: Inputs, targets: Tensor, *, smoothing: float, step: int, rows: Tensor
    ) -> Tensor:
        return cross_entropy(model(inputs), targets, smoothing)

    def before_step(self, optimizer: torch.optim.Optimizer) -> None: ...

    def after_step(self, optimizer: torch.optim.Optimizer) -> None: ...

    def buffers(self) -> dict[str, Tensor]:
        return {name: b for name, b in self.model.named_buffers() if b.numel()}


def layer_scales(model: nn.Module, decay: float) -> dict[str, float]:
    """timm's layer-wise learning rates: `decay` once more for every layer further from the head."""
    names = {id(p): name for name, p in model.named_parameters()}
    groups = param_groups_layer_decay(model, layer_decay=decay)
    return {names[id(p)]: group["lr_scale"] for group in groups for p in group["params"]}


def step_archs(space: Space, sampling: str, seed: int, step: int) -> list[Arch]:
    """The architectures of a step."""
    rng = random.Random(seed_from(seed, "arch", step))
    if sampling == "uniform":
        return [space.sample(rng)]
    return [space.largest(), space.smallest(), space.sample(rng), space.sample(rng)]


# The loop


class LossScale:
    """float16 has no numbers below 6e-8, so a loss is multiplied before the backward pass and its gradient divided
    after it. A gradient that overflows costs the step and halves the factor; after many good steps it is doubled."""

    PATIENCE = 2000  # good steps

    def __init__(self, dtype: torch.dtype | None) -> None:
        self.on = dtype == torch.float16
        self.factor, self.good, self.skipped = 2.0**16 if self.on else 1.0, 0, 0

    def overflowed(self) -> bool:
        """After a step whose gradient is not finite: whether a smaller factor may help."""
        self.good, self.skipped = 0, self.skipped + 1
        self.factor /= 2
        return self.factor >= 1

    def went_well(self) -> None:
        self.good += 1
        if self.on and self.good % self.PATIENCE == 0:
            self.factor *= 2

    def state(self) -> dict[str, Any]:
        return {"loss_scale": [self.factor, self.good, self.skipped]} if self.on else {}

    def restore(self, state: dict[str, Any]) -> None:
        if self.on and "loss_scale" in state:
            self.factor, self.good, self.skipped = state["loss_scale"]


def steps_in_epoch(train: Train, data: TrainData, ranks: Ranks) -> int:
    """Whole batches only."""
    if train.batch_size > data.train_size:
        raise ValueError(
            f"batch_size is {train.batch_size}, but there are only {data.train_size} training images; lower it."
        )
    train.check_batch(ranks.world)
    return data.train_size // train.batch_size


def check(train: Train, data: TrainData, ranks: Ranks) -> None:
    """Refuse now what `fit` would refuse after hours of something else."""
    steps_in_epoch(train, data, ranks)
    if train.epochs:
        check_optimizer(train)


def fit(
    task: TrainTask,
    train: Train,
    data: TrainData,
    *,
    seed: int,
    ranks: Ranks,
    folder: Path,
    log: Log,
    name: str,
    stop: Stop | None = None,
    amp: torch.dtype | None = None,
    at_epoch_end: Any = None,
    run: str = "",
) -> list[dict[str, Any]]:
    """Train to the end, from the newest checkpoint in `folder` if there is one; returns the epochs' records.

    `amp` is the type of mixed precision, or None. `at_epoch_end(epoch)` may add to the record of an epoch. `run` names
    the run in checkpoints and records; those of another one are refused.
    """
    stop = stop or Stop()
    steps_per_epoch = steps_in_epoch(train, data, ranks)
    total = train.epochs * steps_per_epoch
    if not total:
        return []  # an untrained control
    check_optimizer(train)
    optimizer = make_optimizer(task, train)
    schedule = make_schedule(optimizer, train, steps_per_epoch)
    average = {name: tensor.clone() for name, tensor in _averaged(task).items()} if train.ema else {}
    scale = LossScale(amp)

    start, running = 0, (0.0, 0)
    saved = checkpoint.load(folder, log.say)
    if saved is not None:
        tensors, state = saved
        check_run(state.get("run", ""), run, folder)
        try:
            typed(state, {"step": Count, "running": tuple[float, Count]}, "")
            _restore(task, optimizer, average, tensors, state)
            scale.restore(state)
        except (KeyError, ValueError, TypeError, AttributeError) as error:  # a file that was changed
            why = f"it lacks {error}" if isinstance(error, KeyError) else str(error).rstrip(".")
            raise ValueError(
                f"The checkpoint in {folder} cannot be resumed from ({why}); remove that folder to begin anew."
            ) from error
        start, running = state["step"], tuple(state["running"])  # type: ignore[assignment]
        if start < total:
            log.say(f"{name}: resumed at step {start} of {total}")
    options: Any = {"check": {"step": int}, "keep": lambda row: row["step"] <= start, "run": run}
    records = ranks.rank0_first(lambda: Records(folder / "epochs.jsonl", write=ranks.first, **options))

    def save(step: int) -> None:
        if ranks.first:
            tensors, state = _state(task, optimizer, average)
            checkpoint.save(folder, step, tensors, {"run": run, "running": running, **state, **scale.state()})

    last_save = time.monotonic()
    meter = log.progress(name, total, start)
    step = start
    while step < total:
        epoch, first = divmod(step, steps_per_epoch)
        batches = data.train_batches(epoch, train.batch_size, start_batch=first)
        for images, targets, rows in batches:
            images, targets = _moved(images, ranks.device), _moved(targets, ranks.device)
            images, targets = data.mixup(images, targets, step, train.label_smoothing)
            schedule.step_update(step)
            try:
                loss, asked = _step(task, optimizer, images, targets, rows, train, step, seed, ranks, amp, scale, stop)
            except FloatingPointError as error:
                log.close_progress()
                good = "the last good checkpoint is kept" if checkpoint.steps(folder) else "nothing was saved yet"
                remedy = _remedy(task, images, targets, train, begun=step > start)
                raise ValueError(f"{name}: {error} at step {step}; {good} in {folder}. {remedy}") from None
            if train.ema:
                _average(average, _averaged(task), train.ema)
            step += 1
            running = (running[0] + loss, running[1] + 1)
            meter.update(step, loss=running[0] / running[1])
            if step % steps_per_epoch == 0:
                lr = optimizer.param_groups[0]["lr"]
                row = {"epoch": epoch, "step": step, "loss": running[0] / running[1], "lr": lr}
                row |= {"skipped": scale.skipped} if scale.on else {}
                running = (0.0, 0)
                if at_epoch_end is not None:
                    row |= at_epoch_end(epoch)
                records.append([row])
                log.metrics(name, epoch, {k: v for k, v in row.items() if k not in ("epoch", "step")})
            # Ranks agree on the moment by the clock of the first one only at a stop: saving needs no agreement.
            if asked or step == total or time.monotonic() - last_save > train.checkpoint_seconds:
                save(step)
                last_save = time.monotonic()
            if asked:
                log.close_progress()
                raise Interrupted(f"{name}: stopped at step {step} of {total}; the same command resumes there.")
            if step % steps_per_epoch == 0:
                break
    log.close_progress()
    if train.ema:  # what was averaged is what is used from here on
        with torch.no_grad():
            for key, tensor in _averaged(task).items():
                tensor.copy_(average[key])
    return records.rows


def _step(
    task: TrainTask, optimizer: torch.optim.Optimizer, images: Inputs, targets: Tensor, rows: Tensor, train: Train,
    step: int, seed: int, ranks: Ranks, amp: torch.dtype | None, scale: LossScale, stop: Stop,
) -> tuple[float, bool]:  # fmt: skip
    """Sum the gradients of all models of the step over all samples and ranks, then one optimizer step.

    Returns the loss, and whether some rank was asked to stop; raises FloatingPointError, on all ranks and before any
    weight is changed, if the loss or the gradient is not finite. The host waits for the device once.
    """
    task.gradient.zero_()
    total_loss = torch.zeros((), dtype=torch.float64, device=ranks.device)
    sharded = ranks.world > 1 or train.accumulate > 1
    models = task.models(step)
    for index, model in enumerate(models):
        if ranks.world > 1:
            synchronise_batch_norms(model)
        parts = list(zip(*(_chunks(part, train.accumulate) for part in (images, targets, rows)), strict=True))
        for number, (part_images, part_targets, part_rows) in enumerate(parts, 1):
            if sharded:
                _place_rows(model, train.batch_size, _moved(part_rows, ranks.device))
            torch.manual_seed(seed_from(seed, "drop", step, index))
            with torch.autocast(ranks.device.type, dtype=amp) if amp else nullcontext():
                loss = task.loss(
                    model, part_images, part_targets, smoothing=train.label_smoothing, step=step, rows=part_rows
                )
            loss = loss / train.batch_size
            last = model is models[-1] and number == len(parts)
            with summing_gradient(task.gradient, model, ranks) if last else nullcontext():
                (loss * scale.factor).backward()
            total_loss += loss.detach().double() / len(models)
        if sharded:  # subnets share their blocks, and others than this one are evaluated and calibrated between steps
            _place_rows(model, 0, None)
            separate_batch_norms(model)
    if scale.on:
        task.gradient.div_(scale.factor)
    agreed = torch.stack([total_loss.float(), torch.full((), float(stop.asked), device=ranks.device)])
    ranks.sum(agreed)
    norm_of_all = torch.linalg.vector_norm(task.gradient)
    loss_value, asked, norm = torch.cat([agreed, norm_of_all[None]]).tolist()
    if not math.isfinite(loss_value):
        raise FloatingPointError(f"the loss became {loss_value}")
    if not math.isfinite(norm):
        if scale.on and scale.overflowed():
            return loss_value, asked > 0
        raise FloatingPointError(f"the norm of the gradient became {norm}")
    scale.went_well()
    task.before_step(optimizer)
    if train.clip_grad:
        torch.nn.utils.clip_grad_norm_([w for w in task.weights.values() if w.grad is not None], train.clip_grad)
    optimizer.step()
    task.after_step(optimizer)
    return loss_value, asked > 0


def _remedy(task: TrainTask, images: Inputs, targets: Tensor, train: Train, *, begun: bool) -> str:
    """What to do about a loss or gradient that is no number, by what is no number already."""
    if not _finite(targets) or not _finite(images):
        return (
            "The images or labels of this step are not finite numbers themselves: check data.mean, data.std,"
            " data.mixup and data.cutmix."
        )
    if not begun and not all(map(_finite, [*task.weights.values(), *task.buffers().values()])):
        return "The weights that it began with are not all finite numbers: begin with others."
    return f"Lower the learning rate ({train.lr:g}) or set clip_grad, and start again."


def _finite(inputs: Inputs) -> bool:
    return all(bool(tensor.isfinite().all()) for tensor in tree_leaves(inputs))


def _moved(inputs: Inputs, device: torch.device) -> Inputs:
    return tree_map(lambda tensor: tensor.to(device, non_blocking=True), inputs)


def _chunks(inputs: Inputs, count: int) -> list[Inputs]:
    """The samples in `count` parts."""
    tensors, form = tree_flatten(inputs)
    return [tree_unflatten(part, form) for part in zip(*(each.chunk(count) for each in tensors), strict=True)]


def _place_rows(model: nn.Module, batch: int, rows: Tensor | None) -> None:
    """Tell drop path which samples of the global batch it sees."""
    for module in model.modules():
        if isinstance(module, DropPath):
            module.batch, module.rows = batch, rows


# State


def _averaged(task: TrainTask) -> dict[str, Tensor]:
    """What an exponential moving average is taken of: weights and, as in timm's ModelEmaV3, batch-norm statistics."""
    return {name: weight.detach() for name, weight in task.weights.items()} | task.buffers()


def _average(average: dict[str, Tensor], now: dict[str, Tensor], decay: float) -> None:
    floats = [name for name in average if average[name].is_floating_point()]
    torch._foreach_lerp_([average[name] for name in floats], [now[name] for name in floats], 1 - decay)
    for name in average.keys() - floats:  # counters
        average[name].copy_(now[name])


def _state(
    task: TrainTask, optimizer: torch.optim.Optimizer, average: dict[str, Tensor]
) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """What a training goes on from: named tensors, and the rest as JSON."""
    tensors: dict[str, Tensor] = {f"weight.{name}": w for name, w in task.weights.items()}
    tensors |= {f"buffer.{name}": b for name, b in task.buffers().items()}
    tensors |= {f"average.{name}": w for name, w in average.items()}
    remembered, rest = optimizer_state(optimizer, task.weights)
    return {name: t.detach().clone() for name, t in (tensors | remembered).items()}, {"optimizer": rest}


def _restore(
    task: TrainTask, optimizer: torch.optim.Optimizer, average: dict[str, Tensor], tensors: dict[str, Tensor],
    state: dict[str, Any],
) -> None:  # fmt: skip
    with torch.no_grad():
        for name, weight in task.weights.items():
            weight.copy_(tensors[f"weight.{name}"])
        for name, buffer in task.buffers().items():
            buffer.copy_(tensors[f"buffer.{name}"])
        for name, mean in average.items():
            mean.copy_(tensors[f"average.{name}"])
    restore_optimizer(optimizer, task.weights, tensors, state.get("optimizer"))
