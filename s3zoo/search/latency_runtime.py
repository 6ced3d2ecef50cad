"""How long whole networks take, in the runtime that people deploy them with: PyTorch as it is, compiled, or ONNX; and
how fast this machine trains and scores them.

Networks are timed in turns, so that a slow second of the machine falls on all of them, and of many passes the fastest
counts: what disturbs a pass only ever makes it slower. On one thread of a CPU the clock is the processor time of that
thread, which stands still while other programs have the processor. But they slow it down from where they are, too: who
has the other half of a core, or the caches, took 1.1 to 1.9 times the processor time from the same network, for parts
of a second on an idle virtual machine, and for as long as a program ran beside it (docs/search.md).
"""

from __future__ import annotations

import math
import os
import random
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from s3zoo import cost
from s3zoo.arch import Arch
from s3zoo.models import MODELS
from s3zoo.search.budget import Feasible, Pricer
from s3zoo.search.config import SearchRun
from s3zoo.search.forecast import STEP, shape_of
from s3zoo.training.config import TrainRun

SECONDS = 1.0  # networks that take next to nothing are run more often, until they took so long together
MOST = 20  # times as often


def check_runtime(runtime: str, device: torch.device | str) -> None:
    """Refuse what cannot be measured here, before anything is."""
    if runtime == "onnx":
        if torch.device(device).type != "cpu":  # before anybody installs packages for it
            raise ValueError("Latencies of runtime 'onnx' are those of a CPU; set device=cpu, or take 'torch'.")
        from s3zoo.models.as_onnx import check_onnx_packages

        check_onnx_packages()


def clock(device: torch.device | str, threads: int) -> Callable[[], float]:
    """Seconds on a CPU: of processor time on one thread, else by the wall."""
    return time.thread_time if torch.device(device).type == "cpu" and threads == 1 else time.perf_counter


def watch_others() -> Callable[[], float]:
    """From now on: a call gives the share of this machine's processors that other programs had meanwhile, or the
    hypervisor took; 0 where the system does not tell."""

    def worked() -> tuple[float, float, float]:
        try:
            fields = Path("/proc/stat").read_text(encoding="utf-8").split("\n", 1)[0].split()[1:9]
        except OSError:
            return 0.0, 0.0, 1.0
        user, nice, system, idle, waiting, *others = map(float, fields)
        busy = user + nice + system + sum(others)
        ticks = os.sysconf("SC_CLK_TCK")
        return busy / ticks, time.process_time(), (busy + idle + waiting) / ticks

    begun = worked()

    def share() -> float:
        busy, own, total = (b - a for a, b in zip(begun, worked(), strict=True))
        return max(0.0, busy - own) / total if total > 0 else 0.0

    return share


@contextmanager
def threads_set(threads: int) -> Iterator[None]:
    """So many threads meanwhile (0, on a GPU: as they are), and no gradients."""
    before = torch.get_num_threads()
    torch.set_num_threads(threads or before)
    try:
        with torch.inference_mode():
            yield
    finally:
        torch.set_num_threads(before)


def timed_in_turns(
    runs: Sequence[Callable[[], Any]], passes: int, device: torch.device | str, threads: int,
    seconds: float | None = None,
) -> list[float]:  # fmt: skip
    """The least milliseconds of each call, to six digits, after one that warms up."""
    device, now = torch.device(device), clock(device, threads)
    enough = 1e3 * (SECONDS if seconds is None else seconds)
    least = [math.inf] * len(runs)

    def one(run: Callable[[], Any]) -> float:
        if device.type == "cuda":
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            begin.record()
            run()
            end.record()
            torch.cuda.synchronize()
            return begin.elapsed_time(end)
        begun = now()
        run()
        return 1e3 * (now() - begun)

    for run in runs:
        one(run)
    done, spent = 0, 0.0
    while done < passes or (spent < enough and done < MOST * passes):
        for i, run in enumerate(runs):
            run()  # whoever deploys a network runs it again and again: what others leave in the caches must not count
            took = one(run)
            least[i] = min(least[i], took)
            spent += took
        done += 1
    return [float(f"{ms:.6g}") for ms in least]


def runner(model: Any, images: Tensor, runtime: str, threads: int) -> Callable[[], Any]:
    """A call that runs the network once."""
    model = model.eval()
    if runtime == "onnx":
        return _onnx_runner(model, images, threads)
    if runtime == "compile":
        model = torch.compile(model, dynamic=False)
    return lambda: model(images)


def _onnx_runner(model: nn.Module, images: Tensor, threads: int) -> Callable[[], Any]:
    """ONNX Runtime's CPU provider, with as many threads."""
    import onnxruntime

    from s3zoo.models.as_onnx import onnx_proto

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.inter_op_num_threads = threads, 1
    with torch.inference_mode(False):
        content = onnx_proto(model, images.clone()).SerializeToString()
    session = onnxruntime.InferenceSession(content, options, providers=["CPUExecutionProvider"])
    feed = {"image": images.numpy()}
    return lambda: session.run(None, feed)


# How fast a machine trains and scores


def measured_speed(
    run: SearchRun, seconds: float = 3.0, *, threads: int = 1, clock: Callable[[], float] = time.process_time
) -> tuple[float, float]:
    """Multiply-adds per second in training and in scoring, of a network of the space."""
    feasible = Feasible(run.space, run.budgets[0].without_latency, Pricer(**run.priced))
    arch = feasible.draw(random.Random(0)) or run.space.smallest()
    return speed_of(arch, run.shape, run.supernet.batch_size, seconds, threads=threads, clock=clock)


def training_speed(run: TrainRun) -> tuple[float, float]:
    """The same of a network of ours that is trained alone."""
    return speed_of(Arch.parse(run.model_args["arch"]), shape_of(run), run.train.batch_size)


def speed_of(
    arch: Arch, shape: Mapping[str, Any], batch: int, seconds: float = 3.0, *, threads: int = 1,
    clock: Callable[[], float] = time.process_time,
) -> tuple[float, float]:  # fmt: skip
    """Multiply-adds per second in training and in scoring, of this network."""
    with torch.random.fork_rng(devices=[]):
        model = MODELS[arch.family](arch, **shape)
        images = torch.randn(batch, shape["in_chans"], shape["img_size"], shape["img_size"])
    macs = cost.macs(arch, **shape) * batch

    def train() -> None:
        model.train()(images).square().mean().backward()

    @torch.no_grad()
    def score() -> None:
        model.eval()(images)

    def speed(step: Callable[[], None], passes: int) -> float:
        begun = clock()
        step()
        if (first := clock() - begun) > 2 * seconds:  # to warm up makes no difference then
            return passes * macs / first
        begun, count = clock(), 0
        while clock() - begun < seconds:
            step()
            count += 1
        return count * passes * macs / (clock() - begun)

    with threads_set(threads), torch.inference_mode(False):  # gradients are computed here
        return speed(train, STEP), speed(score, 1)
