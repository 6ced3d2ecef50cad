"""How long whole networks take, in the runtime that people deploy them with: PyTorch as it is, compiled, or ONNX.

Networks are timed in turns, so that a slow second of the machine falls on all of them, and of many passes the lowest
tenth counts: what disturbs a pass only ever makes it slower. On one thread of a CPU the clock is the processor time of
that thread, which stands still while other programs have the processor.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

SECONDS = 1.0  # networks that take next to nothing are run more often, until they took so long together
MOST = 20  # times as often


def check_runtime(runtime: str, device: torch.device | str) -> None:
    """Refuse what cannot be measured here, before anything is."""
    if runtime == "onnx":
        from s3zoo.models.as_onnx import check_onnx_packages

        check_onnx_packages()
        if torch.device(device).type != "cpu":
            raise ValueError("Latencies of runtime 'onnx' are those of a CPU; set device=cpu, or take 'torch'.")


def clock(device: torch.device | str, threads: int) -> Callable[[], float]:
    """Seconds on a CPU: of processor time on one thread, else by the wall."""
    return time.thread_time if torch.device(device).type == "cpu" and threads == 1 else time.perf_counter


def typical(values: Sequence[float]) -> float:
    """The value below which a tenth of them lies, to six digits."""
    return float(f"{np.quantile(values, 0.1):.6g}")


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
    runs: Sequence[Callable[[], Any]], passes: int, device: torch.device | str, threads: int
) -> list[float]:
    """The typical milliseconds of each call, after one that warms up."""
    device, now = torch.device(device), clock(device, threads)
    times: list[list[float]] = [[] for _ in runs]

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
    spent = 0.0
    while len(times[0]) < passes or (spent < 1e3 * SECONDS and len(times[0]) < MOST * passes):
        for run, own in zip(runs, times, strict=True):
            own.append(one(run))
            spent += own[-1]
    return [typical(own) for own in times]


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
