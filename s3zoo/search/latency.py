"""Latency without running every network: a table of parts, timed once on a device, whose sum is a network's latency.

The parts are the blocks (one entry per stage, width and genes) and what lies around the stages: before the first, from
one to the next, after the last (one entry per widths on both sides). They are timed inside forward passes of whole
networks, two equal blocks in every stage, each pass measuring one candidate of every stage. So the entry of an S3 block
is the mean of a plain and a shifted one. The way to a decoder's first block leads through its tower, whose time counts.
"""

from __future__ import annotations

import dataclasses
import hashlib
import itertools
import json
import math
import platform
import statistics
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from s3zoo.arch import Arch, Stage
from s3zoo.families import FAMILIES, Block
from s3zoo.files import Records, read_json, write_json
from s3zoo.models import MODELS
from s3zoo.space import Space
from s3zoo.training.distributed import Ranks
from s3zoo.training.log import Log
from s3zoo.training.loop import Stop
from s3zoo.training.resumable import resumable

SCHEMA_VERSION = 1
ALONE = Ranks(0, 1, torch.device("cpu"))
ROUNDS = 3  # over all networks, so that a slow minute of the machine does not fall on one candidate alone


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


class LatencyTable:
    """Milliseconds of one forward pass (fp32, eval mode) of any network whose parts were measured."""

    def __init__(self, setting: Setting, entries: dict[Part, float] | None = None) -> None:
        self.setting = setting
        self.entries: dict[Part, float] = dict(entries or {})
        self.tower: nn.Module | None = None  # one to share, else one is built when it is needed

    @classmethod
    def empty(
        cls, space: Space, *, img_size: int | tuple[int, int] = 224, num_classes: int = 1000, in_chans: int = 3,
        batch_size: int = 1, device: torch.device | str = "cpu", tower: str = "",
    ) -> LatencyTable:  # fmt: skip
        """A table for networks of the space's kind on a device of this machine, with nothing measured yet."""
        if batch_size < 1:
            raise ValueError(f"The batch size of a latency table is {batch_size}, but must be at least 1.")
        where, some = torch.device(device), space.smallest()
        kind = {"family": some.family, "patch_size": some.patch_size, "stem_depth": some.stem_depth}
        shape = {"img_size": img_size, "num_classes": num_classes, "in_chans": in_chans, "batch_size": batch_size}
        return cls(Setting(**kind, **shape, **this_device(where), torch=torch.__version__, tower=tower))  # type: ignore[arg-type]

    def __call__(self, arch: Arch) -> float:
        self._check_kind(arch)
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
        if repeats < 1:
            raise ValueError(f"Latencies are to be measured {repeats} times, but must be at least once.")
        setting, here = self.setting, this_device(self.setting.device)
        if ranks.first and here != {key: getattr(setting, key) for key in here}:
            raise ValueError(
                f"The latency table was measured on {_where(dataclasses.asdict(setting))} and lacks"
                f" {_show(missing[0])} of space {space.name!r}, but this is {_where(here)}; measure it there."
            )
        log, measured, stop = log or Log(None, speaks=False), measured or Records(None), stop or Stop()
        rounds = min(ROUNDS, repeats)
        archs = covering_archs(space, missing)
        order = [arch for _ in range(rounds) for arch in archs]
        identity = [repeats, dataclasses.asdict(setting), *(arch.key for arch in order)]
        task = hashlib.sha256(json.dumps(identity).encode()).hexdigest()[:16]
        if any(row["task"] != task for row in measured.rows):  # on another device, or already in the table
            measured.clear()
        meter = log.progress(f"latency of {space.name}", len(order), len(measured.rows))
        numbers = {part: i for i, part in enumerate(missing)}

        def timed(firsts: list[int]) -> Iterator[dict[str, Any]]:
            for first in firsts:
                for arch in order[first:]:
                    times = self._timed(arch, math.ceil(repeats / rounds))
                    yield {"task": task, "ms": [(numbers[part], ms) for part, ms in times if part in numbers]}

        def reached() -> str:
            return f"latency: stopped after {len(measured.rows)} of {len(order)} networks"

        done = len(measured.rows)
        items = [done] if done < len(order) else []
        for _ in resumable(items, timed, measured, ranks, stop, reached=reached, every=0.0):
            meter.update(len(measured.rows))
        log.close_progress()
        samples: dict[Part, list[float]] = {part: [] for part in missing}
        for row in measured.rows:
            for number, ms in row["ms"]:
                samples[missing[number]].append(ms)
        self.entries |= {part: float(f"{statistics.median(values):.6g}") for part, values in samples.items()}
        log.say(
            f"latency: {len(missing)} parts of {space.name} measured in {len(archs)} networks on"
            f" {_where(dataclasses.asdict(setting))}, batch {setting.batch_size}: the smallest network takes"
            f" {self(space.smallest()):.3g} ms, the largest {self(space.largest()):.3g} ms"
        )

    def measured(self, arch: Arch, repeats: int = 10) -> float | None:
        """The milliseconds that a network takes as a whole, the median; None if this is not the table's device."""
        here = this_device(self.setting.device)
        if here != {key: getattr(self.setting, key) for key in here}:
            return None
        return float(f"{statistics.median(map(math.fsum, self._passes(arch, repeats))):.6g}")

    def _timed(self, arch: Arch, passes: int) -> Iterator[tuple[Part, float]]:
        """The milliseconds of every part in every pass; the mean where a part runs more than once."""
        order = list(parts(arch))
        for times in self._passes(arch, passes):
            by_part: dict[Part, list[float]] = {}
            for part, ms in zip(order, times, strict=True):
                by_part.setdefault(part, []).append(ms)
            yield from ((part, statistics.fmean(values)) for part, values in by_part.items())

    def _passes(self, arch: Arch, passes: int) -> Iterator[list[float]]:
        """The milliseconds of the segments of each pass, in a network of random weights."""
        setting = self.setting
        height, width = setting.img_size if isinstance(setting.img_size, tuple) else (setting.img_size,) * 2
        args: dict[str, Any] = {key: getattr(setting, key) for key in ("img_size", "num_classes", "in_chans")}
        kind: Any = MODELS[setting.family]
        if setting.tower:
            args["tower"] = self.tower or setting.tower
            self.tower = (args := kind.shared_args(args, setting.device))["tower"]
        with torch.random.fork_rng(devices=[]):  # measured or reused, the run around it draws the same numbers
            model: Any = kind(arch, **args)
            images = torch.randn(setting.batch_size, setting.in_chans, height, width)
        yield from timed_segments(model.to(setting.device).eval(), images.to(setting.device), passes)

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
        return {"schema_version": SCHEMA_VERSION, **dataclasses.asdict(self.setting), "entries": rows}

    @classmethod
    def from_dict(cls, data: Any) -> LatencyTable:
        try:
            if data["schema_version"] != SCHEMA_VERSION:
                raise KeyError(f"schema_version {SCHEMA_VERSION}")
            fields = {field.name: data[field.name] for field in dataclasses.fields(Setting) if field.name != "tower"}
            fields["tower"] = data.get("tower", "")
            if isinstance(fields["img_size"], list):
                fields["img_size"] = tuple(fields["img_size"])
            block = FAMILIES[fields["family"]].block
            entries = {
                Part(row["stage"], tuple(row["embed_dims"]), block(**row["genes"]) if "genes" in row else None):
                float(row["ms"]) for row in data["entries"]
            }  # fmt: skip
            return cls(Setting(**fields), entries)
        except (TypeError, KeyError, ValueError, AttributeError) as error:
            raise ValueError(
                f"The latency table is not in the form that LatencyTable.save writes ({error}); measure it again."
            ) from None

    def save(self, path: str | Path) -> None:
        write_json(Path(path), self.to_dict())

    @classmethod
    def load(cls, path: str | Path, *, space: Space | None = None, **expected: Any) -> LatencyTable:
        """Read a table; refuse it if it lacks entries of `space` or its setting is not the one expected."""
        path = Path(path).expanduser()
        table = cls.from_dict(read_json(path))
        for key, value in expected.items():
            found = getattr(table.setting, key)
            if found != value:
                raise ValueError(
                    f"{path} was measured with {key} {found!r}, but {value!r} is needed; remove it to measure anew, or"
                    " give a table for this setting."
                )
        if space is not None and (missing := table.missing(space)):
            raise ValueError(
                f"{path} lacks {len(missing)} entries for space {space.name!r}, such as {_show(missing[0])}; measure"
                " that space."
            )
        return table


def timed_segments(model: Any, images: Tensor, passes: int) -> Iterator[list[float]]:
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
            marks.append(time.perf_counter())

    for s in range(len(model.arch.stages)):
        blocks: list[nn.Module] = list(model.get_submodule(model.blocks_path(s)).children())
        blocks[0].register_forward_pre_hook(mark)
        for block in blocks:
            block.register_forward_hook(mark)
    with torch.inference_mode():
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


# Words


def this_device(device: torch.device | str) -> dict[str, Any]:
    """A device of this machine, as tables name it."""
    where = torch.device(device)
    if where.type == "cuda":
        return {"device": "cuda", "device_name": torch.cuda.get_device_name(where), "threads": 0}
    if where.type != "cpu":
        raise ValueError(f"Latency cannot be measured on {where.type!r}; use 'cpu' or 'cuda'.")
    return {"device": "cpu", "device_name": _cpu_name(), "threads": torch.get_num_threads()}


def _cpu_name() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


def _where(setting: dict[str, Any]) -> str:
    threads = f" ({setting['threads']} threads)" if setting["threads"] else ""
    return f"{setting['device_name']}{threads}"


def _show(part: Part) -> str:
    if part.genes is None:
        return f"the way to stage {part.stage + 1} with widths {part.embed_dims}"
    genes = ", ".join(f"{k} {v}" for k, v in dataclasses.asdict(part.genes).items())
    return f"a block of stage {part.stage + 1} with width {part.embed_dims[0]} ({genes})"
