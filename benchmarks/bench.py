"""How fast the networks, a supernet's steps and the parts of a search are, each next to its target and its peer.

    make bench                                         # everything; some minutes on two quiet cores
    python benchmarks/bench.py --only s3,autoformer    # some parts
    python benchmarks/bench.py --compile               # with and without torch.compile as well

Ratios are of interleaved runs in this process: processor time, one thread, float32, medians; 5 % are noise. Both sides
run eagerly. The allocator keeps what is freed, for both sides: fresh pages would be most of the noise. The peer of
AutoFormer is the same network without relative positions. The peak is that of a product of 2048 x 2048 matrices.
"""

import argparse
import copy
import json
import os
import random
import re
import statistics
import subprocess
import sys
import time
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import timm
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from s3zoo.cost import costs
from s3zoo.space import AUTOFORMER_TINY, GLIT_TINY, S3_INITIAL, s3_space
from s3zoo.supernet import Supernet

KEEP = {"MALLOC_MMAP_THRESHOLD_": str(2**32), "MALLOC_TRIM_THRESHOLD_": str(2**35), "OMP_NUM_THREADS": "1"}
MICRO = s3_space(  # its largest network has 0.94M parameters and 107M MACs
    "micro", (4, 5, 6), (48, 56, 64), (2, 4), (4, 5, 6), (2, 2.5, 3), steps=(1, 8, 2, 1, 0.5), head_dim=16,
    num_stages=3, patch_size=2,
)  # fmt: skip
Row = dict[str, Any]
Action = Callable[[], object]


def seconds(action: Action) -> float:
    start = time.process_time()
    action()
    return time.process_time() - start


def medians(*actions: Action, rounds: int) -> list[float]:
    """Of interleaved runs, after one that does not count."""
    times = [[seconds(action) for action in actions] for _ in range(rounds + 1)][1:]
    return [statistics.median(column) for column in zip(*times, strict=True)]


def forward(model: nn.Module, images: Tensor) -> Action:
    model.eval()
    return torch.inference_mode()(lambda: model(images))


def step(model: nn.Module, images: Tensor) -> Action:
    """Forward and backward pass; an optimizer would be the same on both sides."""
    targets = torch.arange(len(images)) % 10

    def run() -> None:
        model.train()
        for parameter in model.parameters():
            parameter.grad = None
        F.cross_entropy(model(images), targets).backward()

    return run


def peak() -> float:
    """FLOPs a second of a product, at best."""
    a, b = torch.randn(2, 2048, 2048)
    return 2 * 2048**3 / min(seconds(lambda: a @ b) for _ in range(15))


def ratio(what: str, peer: str, times: list[float], must: float, aim: float) -> Row:
    theirs, ours = times
    return {
        "what": what, "figure": round(theirs / ours, 3), "unit": "x", "must": must, "aim": aim, "peer": peer,
        "seconds": round(ours, 4), "peer_seconds": round(theirs, 4),
    }  # fmt: skip


# Parts


def s3() -> Iterator[Row]:
    images = torch.randn(8, 3, 224, 224)
    for size, must in (("tiny", 1.27), ("small", 1.45), ("base", 1.2)):
        ours, theirs = timm.create_model(f"s3_{size}"), timm.create_model(f"swin_s3_{size}_224")
        times = medians(forward(theirs, images), forward(ours, images), rounds=9 if size == "tiny" else 5)
        yield ratio(f"s3_{size} forward, 224, batch 8", f"timm's swin_s3_{size}_224", times, must, 1.4)
        if size == "tiny":
            times = medians(step(theirs, images), step(ours, images), rounds=5)
            yield ratio("s3_tiny training step", "timm's swin_s3_tiny_224", times, 1.12, 1.25)


KINDS = {  # of operations, by their names in a profile
    "linear layers": r"aten::(addmm|mm)$",
    "attention": r"aten::(bmm|baddbmm_?|_?softmax|_softmax_backward_data|_scaled_dot_product\w*)$",
    "GELU": r"aten::gelu",
    "layer norm": r"aten::native_layer_norm",
    "copies": r"aten::(copy_|cat|roll|index|index_select|index_put_|_index_put_impl_|fill_|constant_pad_nd)$",
    "all else": "",
}


def profile() -> Iterator[Row]:
    """Where S3's time goes, beside timm's: what no other attention, activation or copy can win back."""
    images = torch.randn(8, 3, 224, 224)
    for size, what, act in (
        ("tiny", "forward", forward), ("tiny", "training", step), ("small", "forward", forward),
        ("base", "forward", forward),
    ):  # fmt: skip
        peer = f"swin_s3_{size}_224"
        actions = [act(timm.create_model(name), images) for name in (f"s3_{size}", peer)]
        rounds = [[_by_kind(action) for action in actions] for _ in range(6)][1:]
        for kind in KINDS:
            ours, theirs = (statistics.median(both[i][kind] for both in rounds) for i in range(2))
            yield {"what": f"s3_{size} {what}, batch 8: {kind}", "figure": round(ours, 3), "unit": "s",
                   "peer": f"timm's {peer}: {theirs:.3f} s"}  # fmt: skip


def _by_kind(action: Action) -> dict[str, float]:
    """Seconds of each kind of operation."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as seen:
        action()
    totals = dict.fromkeys(KINDS, 0.0)
    for event in seen.key_averages():
        kind = next(kind for kind, names in KINDS.items() if re.match(names, event.key))
        totals[kind] += event.self_cpu_time_total / 1e6
    return totals


def without_positions(self: Any, x: Tensor, *_: Tensor) -> Tensor:
    B, N, _ = x.shape
    q, k, v = self.qkv(x).reshape(B, N, self.num_heads, 3, self.head_dim).permute(3, 0, 2, 1, 4).unbind(0)
    return self.proj(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(B, N, -1))


def autoformer() -> Iterator[Row]:
    images, ours = torch.randn(8, 3, 224, 224), timm.create_model("autoformer_tiny")
    plain: Any = copy.deepcopy(ours)
    for block in plain.blocks:
        block.attn.forward = types.MethodType(without_positions, block.attn)
    times = medians(forward(plain, images), forward(ours, images), rounds=21)
    yield ratio("autoformer_tiny forward, 224, batch 8", "without relative positions", times, 0.75, 0.85)
    times = medians(step(plain, images), step(ours, images), rounds=11)
    yield ratio("autoformer_tiny training step", "without relative positions", times, 0.77, 0.85)


def supernet() -> Iterator[Row]:
    images, arch = torch.randn(128, 3, 32, 32), MICRO.largest()
    bank = Supernet(MICRO, img_size=32, num_classes=10)
    view, static, best = step(bank.subnet(arch), images), step(bank.extract(arch), images), peak()
    flops = 6 * costs(arch, img_size=32, num_classes=10).macs * len(images)
    for name, must, taken in zip(("view", "static"), (0.33, 0.38), medians(view, static, rounds=11), strict=True):
        yield {
            "what": f"micro S3 training, {name}, 32 x 32, batch 128", "figure": round(flops / taken / best, 3),
            "unit": "of the peak", "must": must, "aim": 0.45, "seconds": round(taken, 4),
        }  # fmt: skip
    rng = random.Random(0)
    archs = [arch, MICRO.smallest(), MICRO.sample(rng), MICRO.sample(rng)]
    views, statics = ([step(make(a), images) for a in archs] for make in (bank.subnet, bank.extract))
    four, sandwich = medians(lambda: [f() for f in statics], lambda: [f() for f in views], rounds=7)
    yield {
        "what": "sandwich step", "figure": round(sandwich / four, 3), "unit": "x the time", "must": 1.05, "aim": 1.0,
        "peer": "its four networks, static", "less": True,
    }  # fmt: skip


def sampling() -> Iterator[Row]:
    from sampling import rates

    for space, must in ((S3_INITIAL, 30_000), (AUTOFORMER_TINY, 60_000), (GLIT_TINY, 50_000)):
        figure = round(rates(space, 50_000)[1])
        yield {"what": f"drawing under a budget, {space.name}", "figure": figure, "unit": "a second", "must": must,
               "aim": 100_000}  # fmt: skip


def optimizer() -> Iterator[Row]:
    models = [timm.create_model("s3_tiny") for _ in range(2)]
    steps = []
    for model, fused in zip(models, (None, True), strict=True):
        for parameter in model.parameters():
            parameter.grad = torch.randn_like(parameter)
        steps.append(torch.optim.AdamW(model.parameters(), fused=fused).step)
    yield ratio("AdamW step, 28M parameters, fused", "torch's default", medians(*steps, rounds=15), 1.0, 3.0)


def racing() -> Iterator[Row]:
    from racing import raced
    from record_correctness import read

    outcomes = [raced(*read(), order) for order in range(20)]
    worst = max(outcome.lost for outcome in outcomes)
    yield {"what": f"racing, winner at most {worst:.2f} points below the best",
           "figure": round(statistics.fmean(outcome.share for outcome in outcomes), 3),
           "unit": "of the forwards", "peer": "full evaluation"}  # fmt: skip


def shares() -> Iterator[Row]:
    images, best = torch.randn(8, 3, 224, 224), peak()
    for name in ("s3_tiny", "autoformer_tiny", "glit_tiny", "shunted_tiny"):
        model: Any = timm.create_model(name)
        flops = 2 * len(images) * costs(model.arch).macs
        (once,), (there_and_back,) = medians(forward(model, images), rounds=7), medians(step(model, images), rounds=5)
        for what, figure in (("forward", flops / once), ("training", 3 * flops / there_and_back)):
            yield {"what": f"{name} {what}", "figure": round(figure / best, 3), "unit": "of the peak", "must": 0.4}


def memory() -> Iterator[Row]:
    pairs = {"s3_tiny": "swin_s3_tiny_224", "autoformer_tiny": "deit_tiny_patch16_224"}
    for name, peer in pairs.items():
        for mode in ("inference", "training"):
            ours, theirs = (_child(__file__, "--memory", model, mode) for model in (name, peer))
            yield {"what": f"{name} peak memory, {mode}, batch 8", "figure": round(ours), "unit": "MB",
                   "peer": f"{peer}: {theirs:.0f} MB"}  # fmt: skip


def _child(*words: str) -> float:
    """The number that a Python process prints."""
    return float(subprocess.run([sys.executable, *words], check=True, capture_output=True).stdout)


def _grown(name: str, mode: str) -> float:
    """MB by which the process grows at most, beyond the imports and weights."""
    model, images = timm.create_model(name), torch.randn(8, 3, 224, 224)
    before = _most()
    (forward if mode == "inference" else step)(model, images)()
    return (_most() - before) / 1024


def _most() -> int:
    """Peak memory of this process in KB; getrusage would count that of the process that started it."""
    return int(re.search(r"VmHWM:\s+(\d+)", Path("/proc/self/status").read_text())[1])  # type: ignore[index]


def start() -> Iterator[Row]:
    clock = "import time; import timm; s = time.process_time(); {}; print(time.process_time() - s)"

    def child(code: str) -> float:
        return statistics.median(_child("-c", clock.format(code)) for _ in range(3))

    yield {"what": "import s3zoo after timm", "figure": round(child("import s3zoo"), 3), "unit": "s"}
    times = [child("timm.create_model('swin_s3_tiny_224')"), child("import s3zoo; timm.create_model('s3_tiny')")]
    yield {"what": "creating s3_tiny, import included", "figure": round(times[0] / times[1], 3), "unit": "x",
           "peer": "timm's swin_s3_tiny_224"}  # fmt: skip


def compiled() -> Iterator[Row]:
    """On the smallest of each kind; compiling takes minutes."""
    images = torch.randn(8, 3, 224, 224)
    for name in ("s3_tiny", "autoformer_tiny"):
        eager = timm.create_model(name)
        fast: Any = copy.deepcopy(eager)
        fast.compile()
        for what, act in (("forward", forward), ("training step", step)):
            times = medians(act(eager, images), act(fast, images), rounds=5)
            yield ratio(f"{name} {what}, torch.compile", "eager", times, 1.0, 1.2)


PARTS = {
    part.__name__: part
    for part in (s3, profile, autoformer, supernet, sampling, optimizer, racing, shares, memory, start, compiled)
}


def table(rows: list[Row]) -> str:
    lines = ["| work | figure | must reach | aim | peer |", "|---|---|---|---|---|"]
    for row in rows:
        figure, target = f"{row['figure']:,} {row['unit']}", ""
        if (must := row.get("must")) is not None:
            met = row["figure"] <= must if row.get("less") else row["figure"] >= must
            target = f"{must:,} ({'met' if met else 'no'})"
        lines.append(f"| {row['what']} | {figure} | {target} | {row.get('aim', '')} | {row.get('peer', '')} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help=f"comma-separated, of {', '.join(PARTS)}")
    parser.add_argument("--compile", action="store_true", help="torch.compile as well")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the rows; those of other parts stay")
    parser.add_argument("--memory", nargs=2, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    if arguments.memory:
        print(_grown(*arguments.memory))
        return
    chosen = arguments.only.split(",") if arguments.only else [name for name in PARTS if name != "compiled"]
    chosen += ["compiled"] if arguments.compile and "compiled" not in chosen else []
    if unknown := sorted(set(chosen) - set(PARTS)):
        parser.error(f"--only has {unknown[0]!r}, which is none of {', '.join(PARTS)}")
    known: dict[str, Row] = {}
    if arguments.json and arguments.json.exists():
        known = {row["what"]: row for row in json.loads(arguments.json.read_text())}
    for name in chosen:
        for row in PARTS[name]():
            print(f"{row['what']}: {row['figure']:,} {row['unit']}", file=sys.stderr)
            known[row["what"]] = row
        if arguments.json:
            arguments.json.write_text(json.dumps(list(known.values()), indent=1) + "\n")
    print(table(list(known.values())))


if __name__ == "__main__":
    if any(os.environ.get(key) != value for key, value in KEEP.items()):
        os.execve(sys.executable, [sys.executable, *sys.argv], os.environ | KEEP)
    main()
