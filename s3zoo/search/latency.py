"""Latency without running every network: a table of parts, timed once on a device, whose sum tells a network's latency.

The parts are the blocks (one entry per stage, width and genes) and what lies around the stages: before the first, from
one to the next, after the last (one entry per widths on both sides). They are timed inside forward passes of whole
networks, two equal blocks in every stage, each pass measuring one candidate of every stage. So the entry of an S3 block
is the mean of a plain and a shifted one. The way to a decoder's first block leads through its tower, whose time counts.

The sum is corrected by what whole networks take (`Correction`), in PyTorch or in another runtime: blocks can be timed
one by one in PyTorch alone. A measurement has to pass three checks, else it is done again, and at last given up: whole
networks timed twice agree, large blocks are not faster than small ones, and whole networks agree with the corrected
sum.

A table is true for the machine as it was then. One of the whole networks is its `reference`: what is measured later,
the winner among it, is timed in turns with this one, which tells how much slower the machine has become.
"""

from __future__ import annotations

import dataclasses
import hashlib
import itertools
import json
import math
import platform
import random
import statistics
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from s3zoo import cost
from s3zoo.arch import Arch, Stage
from s3zoo.checks import COST, COUNT, Fields, typed
from s3zoo.drawing import DOUBT, RUNTIMES, told_others, told_speed, where_measured, where_run
from s3zoo.families import FAMILIES, Block
from s3zoo.files import Records, read_json, write_json
from s3zoo.models import MODELS
from s3zoo.search.latency_runtime import check_runtime, clock, runner, threads_set, timed_in_turns, watch_others
from s3zoo.space import Space
from s3zoo.training.distributed import Ranks
from s3zoo.training.log import Log
from s3zoo.training.loop import Stop
from s3zoo.training.resumable import resumable

SCHEMA_VERSION = 1
ALONE = Ranks(0, 1, torch.device("cpu"))
ROUNDS = 3  # over all networks, so that a slow minute of the machine does not fall on one candidate alone
WHOLE = 10  # networks that are timed as a whole
SWEEPS = 6  # how often, from the beginning to the end
TOLERANCE = 0.1  # by which two measurements may differ on average, and networks from what is predicted
SIZES = ("num_heads", "head_dim", "mlp_ratio")  # genes that only make a block larger
ATTEMPTS = 3  # to measure with so little noise, each with twice as many passes
PATIENCE = 8  # times that a network is timed anew while the machine is slower than it was


@dataclass(frozen=True)
class Part:
    """A block of a stage; or, without genes, what runs from the stage before to this one, or to the output."""

    stage: int
    embed_dims: tuple[int, ...]
    genes: Block | None = None


def parts(arch: Arch) -> Iterator[Part]:
    """The parts of a network, in the order in which they run."""
    dims = arch.embed_dims
    for s, stage in enumerate(arch.stages):
        yield Part(s, dims[max(0, s - 1) : s + 1])
        for block in stage.blocks:
            yield Part(s, (stage.embed_dim,), block)
    yield Part(len(dims), dims[-1:])


@dataclass(frozen=True)
class Setting:
    """What a measurement is true for."""

    family: str
    patch_size: int
    stem_depth: int
    img_size: int | tuple[int, int]
    num_classes: int
    in_chans: int
    batch_size: int
    device: str  # "cpu" or "cuda"
    device_name: str
    threads: int  # of the CPU; 0 on a GPU
    torch: str
    tower: str = ""  # family "ladder" only: its name in timm
    runtime: str = "torch"  # "compile": torch.compile; "onnx": ONNX Runtime

    @property
    def shape(self) -> dict[str, Any]:
        """What networks are built for."""
        return {"img_size": self.img_size, "num_classes": self.num_classes, "in_chans": self.in_chans}

    def __str__(self) -> str:
        return where_measured(dataclasses.asdict(self))


@dataclass(frozen=True)
class Correction:
    """From the sum of the parts to whole networks in their runtime; no coefficient is negative.

    milliseconds = fixed + parts x sum of the parts + blocks x number of blocks + gmacs x MACs / 10^9
    """

    fixed: float = 0.0
    parts: float = 1.0
    blocks: float = 0.0
    gmacs: float = 0.0
    error: float = 0.0  # mean relative error, each network predicted from the others

    def __call__(self, terms: Sequence[float]) -> float:
        return math.fsum(a * b for a, b in zip(dataclasses.astuple(self)[:4], terms, strict=True))


def fitted(terms: Sequence[Sequence[float]], times: Sequence[float]) -> Correction:
    """The correction whose relative errors are least, by least squares: of the sets of terms with coefficients that are
    not negative, the one that predicts each network best from the others."""
    x, y = np.array(terms), np.array(times)
    rows, ones = x / y[:, None], np.ones(len(y))
    if len(y) < 5:  # too few to leave one out
        factor = float(1 / rows[:, 1].mean())
        return Correction(parts=float(f"{factor:.6g}"), error=float(np.abs(factor * rows[:, 1] - 1).mean()))
    best = Correction(error=math.inf)
    for size in range(1, 5):
        for chosen in itertools.combinations(range(4), size):
            if not {1, 3} & set(chosen):  # nothing that tells networks of one depth apart
                continue
            own = rows[:, chosen]
            found = np.linalg.lstsq(own, ones, rcond=None)[0]
            left_out = [
                abs(own[i] @ np.linalg.lstsq(np.delete(own, i, 0), np.delete(ones, i), rcond=None)[0] - 1)
                for i in range(len(y))
            ]
            error = float(np.mean(left_out))
            if found.min() >= 0 and error < best.error:
                names = [("fixed", "parts", "blocks", "gmacs")[column] for column in chosen]
                values = {name: float(f"{value:.6g}") for name, value in zip(names, found, strict=True)}
                best = Correction(**{"parts": 0.0, **values}, error=float(f"{error:.4g}"))
    return best


_FIELDS: Fields = {
    "schema_version": int, "family": str, "device": Literal["cpu", "cuda"], "device_name": str, "torch": str,
    "tower?": str, "runtime?": Literal[tuple(RUNTIMES)], "img_size": COUNT | list,
    "correction?": {"*": COST},
    **dict.fromkeys(("patch_size", "stem_depth", "num_classes", "in_chans", "batch_size", "threads"), COUNT),
    "entries": [{"stage": COUNT, "embed_dims": [COUNT], "genes?": dict, "ms": COST}],
    "others?": COST, "reference?": {"arch": dict, "ms": COST},
}  # fmt: skip


def check_measured(row: dict[str, Any]) -> None:
    """A line of what was measured so far."""
    typed(row, {"task": str, "attempt": COUNT, "whole?": [COST], "ms?": [[COST]]}, "")
    if any(len(pair) != 2 or not isinstance(pair[0], int) for pair in row.get("ms", ())):
        raise ValueError("its 'ms' has something else than parts with their milliseconds")


class Reference(NamedTuple):
    """A network of a table, and its milliseconds as a whole when the table was measured."""

    arch: Arch
    ms: float


class Timing(NamedTuple):
    """The milliseconds of a network, and how many times those of then the table's reference takes now (None if there
    is none)."""

    ms: float
    slower: float | None

    @property
    def then(self) -> float:
        """The milliseconds if the machine were as fast as it was."""
        return self.ms / (self.slower or 1.0)


class LatencyTable:
    """Milliseconds of one forward pass (fp32, eval mode) of any network whose parts were measured."""

    def __init__(
        self, setting: Setting, entries: dict[Part, float] | None = None, correction: Correction | None = None,
        reference: Reference | None = None, others: float = 0.0,
    ) -> None:  # fmt: skip
        self.setting = setting
        self.entries: dict[Part, float] = dict(entries or {})
        # Both are made with the first entries, then the same for all that come
        self.correction, self.reference = correction, reference
        self.others = others  # share of the machine's processors that other programs had meanwhile
        self._beside: Callable[[], Any] | None = None  # runs the reference
        self.tower: nn.Module | None = None  # one to share, else one is built when it is needed

    @classmethod
    def empty(
        cls, space: Space, *, img_size: int | tuple[int, int] = 224, num_classes: int = 1000, in_chans: int = 3,
        batch_size: int = 1, device: torch.device | str = "cpu", tower: str = "", threads: int = 0,
        runtime: str = "torch",
    ) -> LatencyTable:  # fmt: skip
        """A table for networks of the space's kind on a device of this machine, with nothing measured yet."""
        check_runtime(runtime, device)
        some = space.smallest()
        return cls(Setting(
            some.family, some.patch_size, some.stem_depth, img_size, num_classes, in_chans, batch_size,
            **this_device(device, threads), torch=torch.__version__, tower=tower, runtime=runtime,
        ))  # fmt: skip

    def __call__(self, arch: Arch) -> float:
        self._check_kind(arch)
        return self._sum(arch) if self.correction is None else self.correction(self._terms(arch))

    def _terms(self, arch: Arch) -> tuple[float, ...]:
        """What a correction multiplies."""
        setting = self.setting
        macs = cost.macs(arch.effective(setting.img_size), **setting.shape) * setting.batch_size
        return 1.0, self._sum(arch), float(sum(arch.depths)), macs / 1e9

    def _sum(self, arch: Arch) -> float:
        try:
            return math.fsum(self.entries[part] for part in parts(arch.effective(self.setting.img_size)))
        except KeyError as error:
            raise ValueError(
                f"The latency table has no entry for {_show(error.args[0])} of architecture {arch.key}; let it measure"
                " the space that this comes from."
            ) from None

    def missing(self, space: Space) -> list[Part]:
        """The parts of a space's networks that are not in the table."""
        self._check_kind(space.smallest())
        return [part for part in space_parts(space, self.setting.img_size) if part not in self.entries]

    def cover(
        self, space: Space, repeats: int = 10, *, log: Log | None = None, measured: Records | None = None,
        ranks: Ranks = ALONE, stop: Stop | None = None,
    ) -> None:  # fmt: skip
        """Measure what the table lacks of a space; what it has stays as it is.

        The first rank measures, and its numbers hold on all. When it is stopped nothing is added, but what was measured
        until then is in `measured`, where the next attempt continues.
        """
        missing = self.missing(space)
        if not missing:
            return
        if ranks.first:
            if not self.is_here:
                raise ValueError(
                    f"The latency table was measured on {where_run(dataclasses.asdict(self.setting))} and lacks"
                    f" {_show(missing[0])} of space {space.name!r}, but this is"
                    f" {where_run(self._here)}; measure it there."
                )
            check_runtime(self.setting.runtime, self.setting.device)
        log, measured, stop = log or Log(None, speaks=False), measured or Records(None), stop or Stop()
        entries, correction = self.entries, self.correction
        begun = measured.rows[0].get("attempt", 0) if measured.rows else 0
        runners: list[Callable[[], Any]] = []  # made once: in some runtimes that takes long
        for attempt in range(begun, ATTEMPTS):
            job = _Measurement(self, space, missing, repeats * 2**attempt, attempt, runners)
            others = watch_others()
            samples, sweeps = job(log, measured, ranks, stop)
            whole = [min(pair) for pair in zip(*sweeps, strict=True)]
            slower = 1.0
            if self.reference is not None:  # what comes later is put down as if it had been measured then
                slower = whole[job.whole.index(self.reference.arch)] / self.reference.ms
                whole = [ms / slower for ms in whole]
            self.entries = entries | {part: float(f"{min(values) / slower:.6g}") for part, values in samples.items()}
            terms = [self._terms(arch) for arch in job.whole]
            if not entries:
                self.correction = ranks.from_first(fitted(terms, whole))
            noise = ranks.from_first(self._noise(space, sweeps, fit=not entries))
            if not noise:
                break
            log.say(f"latency: {noise}; {'measured again' if attempt + 1 < ATTEMPTS else 'given up'}")
            self.entries, self.correction = entries, correction
            measured.clear()
        else:
            raise ValueError(
                f"The latencies on {self.setting} cannot be trusted: {noise}, also when measured {ATTEMPTS} times; let"
                " the machine do nothing else meanwhile, give a table of another time (arch_search.latency_table), or"
                " limit macs or params instead."
            )
        if self.reference is None:
            middle = sorted(range(len(whole)), key=whole.__getitem__)[len(whole) // 2]
            self.reference = ranks.from_first(Reference(job.whole[middle], whole[middle]))
            self._beside = runners[middle] if runners else None
        share = ranks.from_first(round(others(), 2))
        self.others = max(self.others, share)
        if share > DOUBT:
            log.say(f"latency: {told_others(share)}, so that networks may be faster alone")
        if abs(slower - 1) > DOUBT:
            log.say(f"latency: {told_speed(slower)}; what was measured now is put down as if it were as fast as then")
        told = [abs(self(arch) / ms - 1) for arch, ms in zip(job.whole, whole, strict=True)]
        error = self.correction.error if not entries and self.correction else statistics.fmean(told)
        low, high = space.extent(self, measured=True)  # the network with the fewest MACs need not be the fastest
        log.say(
            f"latency: {len(missing)} parts of {space.name} measured in {job.networks} networks on {self.setting};"
            f" whole networks take what is predicted within {error:.1%} on average, from {low:.3g} to {high:.3g} ms"
        )

    def _noise(self, space: Space, sweeps: list[list[float]], *, fit: bool) -> str:
        """What shows that this was measured on too busy a machine; nothing if all is well."""
        differ = statistics.fmean(abs(a - b) / min(a, b) for a, b in zip(*sweeps, strict=True))
        if differ > TOLERANCE:
            return f"two measurements of the same networks differ by {differ:.0%} on average"
        family = FAMILIES[space.family]
        shape = cost.shape_of(space.largest(), **self.setting.shape, tower_dim=cost.TOWER_DIM)
        blocks: dict[tuple[Any, ...], list[tuple[float, float]]] = {}
        for part, ms in self.entries.items():
            if part.genes is not None:
                macs = family.block_cost(part.genes, part.embed_dims[0], part.stage, shape).macs
                genes = dataclasses.asdict(part.genes)  # with another window, say, more MACs may well take less time
                alike = tuple(value for name, value in genes.items() if name not in SIZES)
                blocks.setdefault((part.stage, part.embed_dims[0], *alike), []).append((macs, ms))
        ends = [(min(pairs), max(pairs)) for pairs in blocks.values()]
        ratios = [high / low for (least, low), (most, high) in ends if most > least]
        ratio = statistics.geometric_mean(ratios) if ratios else 1.0
        if ratio < 1 - TOLERANCE:
            return f"the largest blocks of stages take {ratio:.0%} of the time of the smallest"
        if fit and self.correction is not None and self.correction.error > TOLERANCE:
            return f"whole networks differ from what their parts predict by {self.correction.error:.0%} on average"
        return ""

    @property
    def _here(self) -> dict[str, Any]:
        """This machine's device of the table's kind; its CPU if it has none."""
        gpu = self.setting.device == "cuda" and torch.cuda.is_available()
        return this_device("cuda" if gpu else "cpu", self.setting.threads)

    @property
    def is_here(self) -> bool:
        """Whether this is the device of the table."""
        here = self._here
        return here == {key: getattr(self.setting, key) for key in here}

    def measured(self, arch: Arch, repeats: int = 10) -> Timing | None:
        """How long a network takes as a whole; None if this is not the table's device."""
        return self.measured_model(self._build(arch), repeats) if self.is_here else None

    def measured_model(self, model: nn.Module, repeats: int = 10, patience: int = PATIENCE) -> Timing:
        """The same of any network that takes these images, in turns with the reference: again while that one is slower
        than it was, at most so many times."""
        setting = self.setting
        with threads_set(setting.threads):
            runs = [self._runner(model.to(setting.device))]
            if self.reference is None:
                return Timing(timed_in_turns(runs, repeats, setting.device, setting.threads)[0], None)
            self._beside = self._beside or self._runner(self._build(self.reference.arch))
            runs.append(self._beside)
            least = [math.inf, math.inf]
            for _ in range(patience):
                least = list(map(min, least, timed_in_turns(runs, repeats, setting.device, setting.threads)))
                if least[1] <= (1 + TOLERANCE / 2) * self.reference.ms:
                    break
            return Timing(least[0], float(f"{least[1] / self.reference.ms:.4g}"))

    def _runner(self, model: nn.Module) -> Callable[[], Any]:
        return runner(model, self._images(), self.setting.runtime, self.setting.threads)

    def _timed(self, arch: Arch, passes: int) -> Iterator[tuple[Part, float]]:
        """The milliseconds of every part in every pass; the mean where a part runs more than once."""
        order, setting = list(parts(arch)), self.setting
        now = clock(setting.device, setting.threads)
        with threads_set(setting.threads):
            for times in timed_segments(self._build(arch), self._images(), passes, now):
                by_part: dict[Part, list[float]] = {}
                for part, ms in zip(order, times, strict=True):
                    by_part.setdefault(part, []).append(ms)
                yield from ((part, statistics.fmean(values)) for part, values in by_part.items())

    def _build(self, arch: Arch) -> Any:
        """A network of random weights, ready to run. They are ordinary tensors, as those of whoever deploys it: made in
        inference mode, S3's networks take 7 % less time."""
        setting = self.setting
        args = setting.shape
        kind: Any = MODELS[setting.family]
        with torch.inference_mode(False), torch.random.fork_rng(devices=[]):  # the run around it draws the same numbers
            if setting.tower:
                args["tower"] = self.tower or setting.tower
                self.tower = (args := kind.shared_args(args, setting.device))["tower"]
            return kind(arch, **args).to(setting.device).eval()

    def _images(self) -> Tensor:
        setting = self.setting
        height, width = setting.img_size if isinstance(setting.img_size, tuple) else (setting.img_size,) * 2
        generator = torch.Generator().manual_seed(0)
        with torch.inference_mode(False):
            images = torch.randn(setting.batch_size, setting.in_chans, height, width, generator=generator)
            return images.to(setting.device)

    def _check_kind(self, arch: Arch) -> None:
        kind, own = (arch.family, arch.patch_size, arch.stem_depth), self.setting
        if kind != (own.family, own.patch_size, own.stem_depth):
            raise ValueError(
                f"The latency table is for family {own.family!r} with patch size {own.patch_size}, not for"
                f" {arch.family!r} with {arch.patch_size}; measure one for that."
            )

    # JSON

    def to_dict(self) -> dict[str, Any]:
        rows = []
        for part, ms in self.entries.items():
            genes = {} if part.genes is None else {"genes": dataclasses.asdict(part.genes)}
            rows.append({"stage": part.stage, "embed_dims": list(part.embed_dims), **genes, "ms": ms})
        more: dict[str, Any] = {} if self.correction is None else {"correction": dataclasses.asdict(self.correction)}
        if self.reference is not None:
            more["reference"] = {"arch": self.reference.arch.to_dict(), "ms": self.reference.ms}
        more["others"] = self.others
        return {"schema_version": SCHEMA_VERSION, **dataclasses.asdict(self.setting), **more, "entries": rows}

    @classmethod
    def from_dict(cls, data: Any) -> LatencyTable:
        try:
            typed(data, _FIELDS, "")
            if data["schema_version"] != SCHEMA_VERSION:
                raise KeyError(f"schema_version {SCHEMA_VERSION}")
            later = {"tower": "", "runtime": "torch"}  # what tables of earlier releases do not have
            fields = {each.name: (later | data)[each.name] for each in dataclasses.fields(Setting)}
            if isinstance(fields["img_size"], list):
                typed(data, {"img_size": [COUNT]}, "")
                fields["img_size"] = tuple(fields["img_size"])
            block = FAMILIES.find(fields["family"]).block
            entries = {
                Part(row["stage"], tuple(row["embed_dims"]), block(**row["genes"]) if "genes" in row else None):
                float(row["ms"]) for row in data["entries"]
            }  # fmt: skip
            correction = Correction(**data["correction"]) if "correction" in data else None
            table = cls(Setting(**fields), entries, correction, others=float(data.get("others", 0.0)))
            if "reference" in data:
                table.reference = Reference(Arch.from_dict(data["reference"]["arch"]), float(data["reference"]["ms"]))
                table._check_kind(table.reference.arch)
                if not table.reference.ms:
                    raise ValueError("a network of 0 ms")
            return table
        except (TypeError, KeyError, ValueError) as error:
            raise ValueError(
                f"The latency table is not in the form that LatencyTable.save writes ({error}); measure it again."
            ) from None

    def save(self, path: str | Path) -> None:
        write_json(Path(path), self.to_dict())

    @classmethod
    def load(cls, path: str | Path, **expected: Any) -> LatencyTable:
        """Read a table; refuse it if its setting is not the one expected."""
        path = Path(path).expanduser()
        content = read_json(path, {})
        try:
            table = cls.from_dict(content)
        except ValueError as error:
            raise ValueError(f"{path}: {error}") from None
        for key, value in expected.items():
            found = getattr(table.setting, key)
            if found != value:
                raise ValueError(
                    f"{path} was measured with {key} {found!r}, but {value!r} is needed; remove it to measure anew, or"
                    " give a table for this setting."
                )
        return table


@dataclass
class _Measurement:
    """One attempt to measure parts of a space: rounds over networks that show them, and whole networks before, between
    and after them."""

    table: LatencyTable
    space: Space
    missing: list[Part]
    repeats: int
    attempt: int
    runners: list[Callable[[], Any]]  # of the whole networks, once they are made
    networks: int = field(init=False)
    whole: list[Arch] = field(init=False)

    def __post_init__(self) -> None:
        rounds = min(ROUNDS, self.repeats)
        shown = covering_archs(self.space, self.missing)
        self.networks, self.passes = len(shown), math.ceil(self.repeats / rounds)
        known = [] if self.table.reference is None else [self.table.reference.arch]
        self.whole = list(dict.fromkeys([*known, *whole_archs(self.space, self.table.setting.img_size)]))
        every, spans = [arch for _ in range(rounds) for arch in shown], SWEEPS - 1
        ends = [len(every) * i // spans for i in range(SWEEPS)]
        self.steps: list[Arch | None] = [None]  # None: the whole networks
        for begin, end in itertools.pairwise(ends):
            self.steps += [*every[begin:end], None]

    def __call__(
        self, log: Log, measured: Records, ranks: Ranks, stop: Stop
    ) -> tuple[dict[Part, list[float]], list[list[float]]]:
        """The milliseconds of every part, and of the whole networks twice: the lowest of every second sweep, so that a
        busy while falls on both."""
        keys = [arch.key for arch in [*(step for step in self.steps if step), *self.whole]]
        identity = [self.repeats, dataclasses.asdict(self.table.setting), *keys]
        task = hashlib.sha256(json.dumps(identity).encode()).hexdigest()[:16]
        if any(row["task"] != task for row in measured.rows):  # on another device, or already in the table
            measured.clear()
        meter = log.progress(f"latency of {self.space.name}", len(self.steps), len(measured.rows))
        numbers = {part: i for i, part in enumerate(self.missing)}

        def timed(firsts: list[int]) -> Iterator[dict[str, Any]]:
            for first in firsts:
                for step in self.steps[first:]:
                    row: dict[str, Any] = {"task": task, "attempt": self.attempt}
                    if step is None:
                        yield row | {"whole": self._sweep()}
                    else:
                        times = self.table._timed(step, self.passes)
                        yield row | {"ms": [(numbers[part], ms) for part, ms in times if part in numbers]}

        def reached() -> str:
            return f"latency: stopped after {len(measured.rows)} of {len(self.steps)} networks"

        done = len(measured.rows)
        items = [done] if done < len(self.steps) else []
        for _ in resumable(items, timed, measured, ranks, stop, reached=reached, every=0.0):
            meter.update(len(measured.rows))
        log.close_progress()
        samples: dict[Part, list[float]] = {part: [] for part in self.missing}
        for number, ms in (pair for row in measured.rows for pair in row.get("ms", ())):
            samples[self.missing[number]].append(ms)
        sweeps = [row["whole"] for row in measured.rows if "whole" in row]
        return samples, [[min(times) for times in zip(*sweeps[first::2], strict=True)] for first in (0, 1)]

    def _sweep(self) -> list[float]:
        """Each whole network in its runtime, in turns."""
        setting = self.table.setting
        with threads_set(setting.threads):
            if not self.runners:
                self.runners += [self.table._runner(self.table._build(arch)) for arch in self.whole]
            return timed_in_turns(self.runners, self.repeats, setting.device, setting.threads)


def timed_segments(model: Any, images: Tensor, passes: int, now: Callable[[], float]) -> Iterator[list[float]]:
    """Milliseconds from the input to the first block, of every block, between stages, and to the output; per pass.

    Marks are set before the first block of a stage and after every block, so the segments add up to the whole pass.
    """
    on_gpu = images.device.type == "cuda"
    marks: list[Any] = []

    def mark(*_: Any) -> None:
        if on_gpu:
            event = torch.cuda.Event(enable_timing=True)
            event.record()
            marks.append(event)
        else:
            marks.append(now())

    for s in range(len(model.arch.stages)):
        blocks: list[nn.Module] = list(model.get_submodule(model.blocks_path(s)).children())
        blocks[0].register_forward_pre_hook(mark)
        for block in blocks:
            block.register_forward_hook(mark)
    for index in range(passes + 1):
        marks.clear()
        mark()
        model(images)
        mark()
        if on_gpu:
            torch.cuda.synchronize()
        if index:  # the first pass allocates and warms up
            yield [a.elapsed_time(b) if on_gpu else 1e3 * (b - a) for a, b in itertools.pairwise(marks)]


# Which parts there are, and which networks show them all


def space_parts(space: Space, img_size: int | tuple[int, int]) -> list[Part]:
    """Every part of every network of a space, without looking at every network: stage by stage."""
    base = {d.name: d.choices[-1 if d.gene == "depth" else 0] for d in space.dims if not d.per_block}
    depths = space.largest().depths
    candidates = [[space.candidates(s, j) for j in range(depth)] for s, depth in enumerate(depths)]
    found: dict[Part, None] = {}
    for s in range(space.num_stages):
        free = [
            dim for dim in space.dims if not dim.per_block and dim.gene != "depth"
            and (s in dim.stages or (dim.gene == "embed_dim" and s + 1 in dim.stages))
        ]  # fmt: skip
        most = max(map(len, candidates[s]))
        for chosen in itertools.product(*(dim.choices for dim in free)):
            values = base | {dim.name: choice for dim, choice in zip(free, chosen, strict=True)}
            for i in range(most):
                blocks = [[c[i % len(c)] for c in stage] for stage in candidates]
                found |= dict.fromkeys(parts(space.assemble(values, blocks).effective(img_size)))
    return list(found)


def covering_archs(space: Space, wanted: Iterable[Part]) -> list[Arch]:
    """Few networks that together have all these parts.

    A set cover, greedily: of all combinations of the stages' widths, the next network has the one under which most of
    the parts not yet covered can be measured at once, one block of each stage and what lies between the stages.
    """
    waiting: dict[tuple[int, int], list[Block]] = {}  # by stage and width
    frames: set[Part] = set()
    for part in wanted:
        if part.genes is None:
            frames.add(part)
        else:
            waiting.setdefault((part.stage, part.embed_dims[0]), []).append(part.genes)
    some = {key: blocks[0] for key, blocks in waiting.items()}
    own = [dim for dim in space.dims if dim.gene == "embed_dim"]
    least = {dim.name: dim.choices[0] for dim in space.dims}
    widths = []  # with a network to take blocks from where all that are wanted have been seen
    for chosen in itertools.product(*(dim.choices for dim in own)):
        arch = space.build(least | {dim.name: choice for dim, choice in zip(own, chosen, strict=True)})
        around = [part for part in parts(arch) if part.genes is None]
        widths.append((arch, around))

    def gain(option: tuple[Arch, list[Part]]) -> tuple[int, int]:
        lengths = [len(waiting.get(key, ())) for key in enumerate(option[0].embed_dims)]
        return sum(map(bool, lengths)) + len(frames.intersection(option[1])), sum(lengths)

    planned = []
    while frames or any(waiting.values()):
        arch, around = max(widths, key=gain)
        assert gain((arch, around))[0], "a part that no widths of the space have"
        frames.difference_update(around)
        stages = []
        for s, stage in enumerate(arch.stages):
            queue = waiting.get((s, stage.embed_dim))
            block = queue.pop() if queue else some.get((s, stage.embed_dim), stage.blocks[0])
            stages.append(Stage(stage.embed_dim, (block, block)))
        planned.append(dataclasses.replace(arch, stages=tuple(stages)))
    return planned


def whole_archs(space: Space, img_size: int | tuple[int, int]) -> list[Arch]:
    """Different networks of all sizes: the smallest, the largest, and random ones."""
    rng = random.Random(0)
    drawn = [space.smallest(), space.largest(), *(space.sample(rng) for _ in range(10 * WHOLE))]
    return list(dict.fromkeys(arch.effective(img_size) for arch in drawn))[:WHOLE]


# Words


def this_device(device: torch.device | str, threads: int = 0) -> dict[str, Any]:
    """A device of this machine, as tables name it; 0 threads are as many as PyTorch has now."""
    where = torch.device(device)
    if where.type == "cuda":
        return {"device": "cuda", "device_name": torch.cuda.get_device_name(where), "threads": 0}
    if where.type != "cpu":
        raise ValueError(f"Latency cannot be measured on {where.type!r}; use 'cpu' or 'cuda'.")
    return {"device": "cpu", "device_name": _cpu_name(), "threads": threads or torch.get_num_threads()}


def _cpu_name() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


def _show(part: Part) -> str:
    if part.genes is None:
        return f"the way to stage {part.stage + 1} with widths {part.embed_dims}"
    genes = ", ".join(f"{k} {v}" for k, v in dataclasses.asdict(part.genes).items())
    return f"a block of stage {part.stage + 1} with width {part.embed_dims[0]} ({genes})"
