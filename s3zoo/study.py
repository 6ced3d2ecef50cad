"""`s3zoo study NAME`: many runs as one queue that may be killed at any time and goes on where it ended.

A study is a list of commands that each fill a run's folder. Those that read another run's folder wait for it. Every
process is entered in study.jsonl with its command when it begins, and again with its seconds and exit code when it
ends, so that no start is forgotten, not even if the machine stops; what a finished run leaves (result, scores, model)
can be copied to a second folder at once.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import re
import shlex
import shutil
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Iterable, Mapping
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

from s3zoo import scored
from s3zoo.checks import nearest
from s3zoo.drawing import mean_and_spread, quantity
from s3zoo.files import Records, check_writable, locked, read_bytes, shown
from s3zoo.search.config import SearchRun
from s3zoo.search.space_search import SpaceSearch
from s3zoo.training.config import TrainRun, load_config, overridden
from s3zoo.training.registry import listing

KEPT = (
    "result.json", "run.json", "clock.json", "test-*.json", "space_search.jsonl", "*/space.json", "*/*.jsonl",
    "*/search-*/*.json", "model*/*",
)  # fmt: skip
STARTED = "study.jsonl"  # which runs were begun, and how they ended: see starts()
LOCK = ".study.lock"
LOW_PRIORITY = 19
OTHER = r"\{([\w.-]+)\}"  # the folder of another run, in a command


@dataclass(frozen=True)
class StudyRun:
    """One run: its name, which is its folder's, and the command without s3zoo, --data and --out.

    `{other}` in a command is the folder of the run of that name, which is done first.
    """

    name: str
    command: str

    @property
    def needs(self) -> tuple[str, ...]:
        return tuple(re.findall(OTHER, self.command))


@dataclass(frozen=True)
class Study:
    """Runs in the order in which they are begun; what may be left out stands last."""

    name: str
    runs: tuple[StudyRun, ...]
    images: int  # for training, without those held out; for the forecast
    compared: tuple[tuple[str, str], ...] = ()  # methods, which are the names of runs before "-SEED", two by two

    def __post_init__(self) -> None:
        before: set[str] = set()
        for run in self.runs:
            if run.name in before or not re.fullmatch(r"\w[\w.-]*", run.name):
                raise ValueError(f"run {run.name!r} occurs twice or is no name for a folder; rename it.")
            if missing := set(run.needs) - before:
                raise ValueError(f"run {run.name!r} reads {', '.join(missing)}, which must stand before it.")
            before.add(run.name)
        methods = {method_of(name) for name in before}
        if unknown := {method for pair in self.compared for method in pair} - methods:
            raise ValueError(f"compared names {min(unknown)!r}, but the methods are {', '.join(sorted(methods))}.")


class Process(NamedTuple):
    process: subprocess.Popen[bytes]
    run: StudyRun
    begun: dict[str, Any]  # its first entry in study.jsonl
    logged: int  # bytes that its log had before


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="s3zoo study",
        description="Work through a list of runs, several at a time and at low priority. The same command goes on after"
        " an interruption.",
    )
    parser.add_argument("study", nargs="?", help="name of a study in configs/study, or a .py file")
    parser.add_argument("--data", metavar="ROOT", help="where the images are, for all runs")
    parser.add_argument("--out", type=Path, help="folder of the runs (default: runs/<name of the study>)")
    parser.add_argument("--keep", type=Path, metavar="FOLDER", help="copy what finished runs leave to this folder")
    parser.add_argument("--jobs", type=int, default=2, metavar="N", help="runs at a time (default: 2)")
    parser.add_argument("--only", action="append", metavar="RUN", help="only this run, and what it needs (repeatable)")
    instead = parser.add_mutually_exclusive_group()
    instead.add_argument("--table", type=Path, metavar="FILE", help="only write what the finished searches have scored")
    instead.add_argument("--summary", action="store_true", help="only print what finished runs reached, as Markdown")
    instead.add_argument("--dry-run", action="store_true", help="only show the hours of the runs that are not done")
    instead.add_argument("--list", action="store_true", help="only show the studies")
    arguments = parser.parse_args(argv)
    if arguments.list or arguments.study is None:
        print(listing("study"))
        return 0
    study = load_config(arguments.study, Study, "study")
    runs = _chosen(study, arguments.only)
    if arguments.jobs < 1:
        raise ValueError(f"--jobs is {arguments.jobs}, but must be at least 1.")
    out = arguments.out or Path("runs") / study.name
    if arguments.dry_run:
        print(hours(study, runs, out))
        return 0
    if arguments.summary:
        print(summary(study, _finished(runs, out, "run"), out))
        return 0
    if arguments.table:
        _check_table(arguments.table, study, out)
        done = _finished([run for run in runs if run.command.startswith("search ")], out, "search")
        folders = [out / run.name for run in done]
        count = scored.save(scored.of_runs(folders), arguments.table, scored.spaces_of_runs(folders))
        print(f"{count:,} networks of {len(done)} finished searches in {arguments.table}")
        return 0
    check_writable(out, "--out", folder=True)
    if arguments.keep:
        check_writable(arguments.keep, "--keep", folder=True)
        if arguments.keep.resolve().is_relative_to(out.resolve()):
            raise ValueError(f"--keep is {str(arguments.keep)!r}, where the runs are themselves; give another folder.")
    if left := [run for run in runs if not is_done(run, out)]:
        try:
            with ProcessPoolExecutor(1) as other:  # torch would stay in the memory of this one
                other.submit(_check_data, study, left, arguments.data).result()
        except BrokenProcessPool:
            why = "The process that looked for the images was ended from outside; see whether there is memory for it."
            raise ValueError(why) from None
    out.mkdir(parents=True, exist_ok=True)
    with locked(out / LOCK):
        return Queue(runs, out, arguments.data, arguments.keep).work(arguments.jobs)


def _chosen(study: Study, only: list[str] | None) -> list[StudyRun]:
    """The runs of these names and what they need, in the study's order."""
    if only is None:
        return list(study.runs)
    by_name = {run.name: run for run in study.runs}
    if unknown := [name for name in only if name not in by_name]:
        methods = dict.fromkeys(map(method_of, by_name))
        names = by_name if len(by_name) <= 12 else [f"{name}-SEED" for name in methods]
        hint = nearest(unknown[0], by_name, f"its runs are {', '.join(names)}.")
        raise ValueError(f"{study.name} has no run {unknown[0]!r}; {hint}")
    wanted = set(only)
    for run in reversed(study.runs):  # what is needed stands before
        if run.name in wanted:
            wanted |= set(run.needs)
    return [run for run in study.runs if run.name in wanted]


def is_done(run: StudyRun, out: Path) -> bool:
    return (out / run.name / "result.json").exists()


def _nothing_left(runs: list[StudyRun], out: Path) -> str:
    return f"nothing is left to do: {len(runs)} of {len(runs)} runs are done in {out}"


def _finished(runs: Iterable[StudyRun], out: Path, what: str) -> list[StudyRun]:
    """Those of these runs that are done; a sentence if none is."""
    if found := [run for run in runs if is_done(run, out)]:
        return found
    raise ValueError(f"No {what} asked for is finished in {str(out)!r}; let one end, or give their folder as --out.")


def _check_table(path: Path, study: Study, out: Path) -> None:
    """Refuse to write over anything but a table, and into what belongs to the runs."""
    check_writable(path, "--table")
    own = [STARTED, LOCK, *(f"{run.name}{end}" for run in study.runs for end in ("", ".log"))]
    place = path.parent.resolve() / path.name  # a link is replaced, not what it leads to
    if any(place.is_relative_to((out / name).resolve()) for name in own):
        raise ValueError(f"--table is {str(path)!r}, which belongs to the runs of the study; give another place.")
    if path.exists():
        try:
            scored.load(f"{path.absolute()}/")  # with the slash it is no name of a bundled table
        except ValueError:
            raise ValueError(f"--table is {str(path)!r}, which is no table of networks; name a new file.") from None


def _check_data(study: Study, runs: Iterable[StudyRun], root: str | None) -> None:
    """Refuse a place without the images of these runs, before one begins."""
    from s3zoo.training.datasets import find_data
    from s3zoo.training.splits import find_split

    for run in runs:
        try:
            config = config_of(run, study)
        except ValueError:  # it names no config, but a network or images: it says itself what is wrong with them
            if root:
                find_data(root)
            continue
        if not root and (run.needs or "--data" in run.command):  # the place is in the other run, or in the command
            continue
        data = config.data
        if root:
            data = find_data(root, like=data) if isinstance(config, TrainRun) else replace(data, root=root)
        if not data.name:
            try:
                for split in (data.train_split, data.test_split):
                    find_split(data, split)
            except ValueError as error:
                raise ValueError(f"--data must be where the images of {run.name!r} are, but {error}") from None


class Queue:
    """The runs of a study in a folder."""

    def __init__(self, runs: list[StudyRun], out: Path, data: str | None, keep: Path | None) -> None:
        self.runs, self.out, self.data, self.keep = runs, out, data, keep
        self.started = Records(out / STARTED)
        self.working: list[Process] = []
        self.failed: set[str] = set()
        self.stopped = False

    def work(self, jobs: int) -> int:
        """Until all is done; 0 if it is, 1 if a run failed, 130 if interrupted."""
        for run in self.runs:
            if self._done(run) and self.keep and not self._kept(run, self.keep):
                keep(self.out / run.name, self.keep / run.name)
        if all(map(self._done, self.runs)):
            print(_nothing_left(self.runs, self.out), flush=True)
        before = {number: signal.signal(number, self._stop) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            while True:
                for process in [each for each in self.working if each.process.poll() is not None]:
                    self._end(process)
                ready = [] if self.stopped else self._ready()
                for run in ready[: jobs - len(self.working)]:
                    self._begin(run)
                if not self.working:
                    break
                time.sleep(0.5)
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
        for run in self.runs:
            if not self._done(run):
                print(f"{run.name}: {'failed' if run.name in self.failed else 'not done'}", flush=True)
        return 130 if self.stopped else int(bool(self.failed))

    def _done(self, run: StudyRun) -> bool:
        return is_done(run, self.out)

    def _kept(self, run: StudyRun, keep: Path) -> bool:
        result, copy = (folder / run.name / "result.json" for folder in (self.out, keep))
        return copy.exists() and read_bytes(copy) == read_bytes(result)

    def _ready(self) -> list[StudyRun]:
        done = {run.name for run in self.runs if self._done(run)}
        begun = {each.run.name for each in self.working} | self.failed | done
        return [run for run in self.runs if run.name not in begun and done >= set(run.needs)]

    def _begin(self, run: StudyRun) -> None:
        words = shlex.split(re.sub(OTHER, lambda found: shlex.quote(str(self.out / found[1])), run.command))
        words += (["--data", self.data] if self.data else []) + ["--out", str(self.out / run.name)]
        with open(self.out / f"{run.name}.log", "ab") as log:
            logged = log.tell()
            process = subprocess.Popen(
                [sys.executable, "-m", "s3zoo", *words], stdout=log, stderr=log, stdin=subprocess.DEVNULL,
                preexec_fn=_at_low_priority, start_new_session=True,
            )  # fmt: skip
        begun = {"name": run.name, "command": run.command, "begun": round(time.time())}
        self.started.append([begun])
        self.working.append(Process(process, run, begun, logged))
        print(f"{run.name}: s3zoo {run.command}", flush=True)

    def _end(self, ended: Process) -> None:
        self.working.remove(ended)
        run, code = ended.run, ended.process.returncode
        seconds = round(time.time() - ended.begun["begun"])
        row = ended.begun | {"code": code, "seconds": seconds, "done": self._done(run)}
        self.started.append([row])
        said = "done" if row["done"] else f"ended with code {code}"
        why = ""
        if row["done"]:
            if self.keep:
                keep(self.out / run.name, self.keep / run.name)
        elif not self.stopped:
            self.failed.add(run.name)
            log = self.out / f"{run.name}.log"
            why = f": {last_line(log, ended.logged)} ({log})"
        print(f"{run.name}: {said} after {seconds} s{why}", flush=True)

    def _stop(self, number: int, frame: Any) -> None:
        """Let the runs save and end."""
        self.stopped = True
        for each in self.working:
            each.process.send_signal(signal.SIGTERM)


def last_line(path: Path, since: int) -> str:
    """The last line of a log that is not empty, from a byte on; of a long log only the end is read."""
    try:
        with open(path, "rb") as file:
            file.seek(max(since, path.stat().st_size - 10_000))
            lines = file.read().decode(errors="replace").splitlines()
    except OSError:
        return "its log cannot be read"
    return shown(next((line.strip() for line in reversed(lines) if line.strip()), "it said nothing"))


def starts(path: Path) -> list[dict[str, Any]]:
    """Every start in study.jsonl by its time, as it ended; without `seconds` where its end was never entered."""
    found = {(row["begun"], row["name"]): row for row in Records(path, write=False).rows}
    return [found[key] for key in sorted(found)]


def _at_low_priority() -> None:
    os.nice(LOW_PRIORITY)
    with contextlib.suppress(OSError):  # Linux divides time between sessions first, and each run is one
        Path("/proc/self/autogroup").write_text(str(LOW_PRIORITY))


def keep(folder: Path, target: Path) -> None:
    """Copy what a finished run leaves, without checkpoints; its result last, so that a copy with a result is whole."""
    for path in sorted(kept(folder), key=lambda path: path == folder / "result.json"):
        place = target / path.relative_to(folder)
        place.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, place)


def kept(folder: Path) -> list[Path]:
    """The files that a finished run leaves."""
    found = [path for pattern in KEPT for path in folder.glob(pattern)]
    return [path for path in dict.fromkeys(found) if path.is_file() and path.stat().st_size]


# What came out

T_QUANTILE = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262)  # Student's, 97.5 %, from 1 on


def summary(study: Study, runs: Iterable[StudyRun], out: Path) -> str:
    """Tables of what the finished runs reached: each run, the mean of each method, and the methods compared."""
    found = [scored.outcome(out / run.name) for run in runs if is_done(run, out)]
    lines = ["| run | test top-1 (%) | 95 % interval | held-out (%) | parameters | MACs |", "|---|---|---|---|---|---|"]
    for each in found:
        interval, held_out = f"{each.test['low']:.2f} to {each.test['high']:.2f}", each.held_out
        held = "–" if held_out is None else f"{held_out:.2f}"
        sizes = f"{quantity(each.params)} | {quantity(each.macs)}"
        lines.append(f"| {each.name} | {each.test['top1']:.2f} | {interval} | {held} | {sizes} |")
    methods: dict[str, dict[str, float]] = {}  # test accuracies by seed
    for each in found:
        methods.setdefault(method_of(each.name), {})[each.name.rpartition("-")[2]] = each.test["top1"]
    lines += ["", "| method | seeds | test top-1 (%), mean ± standard deviation |", "|---|---|---|"]
    for method, tests in methods.items():
        lines.append(f"| {method} | {len(tests)} | {mean_and_spread(tests.values())} |")
    rows = [difference(*pair, methods) for pair in study.compared if all(method in methods for method in pair)]
    head = ["| compared | seeds of both | mean difference (points) | 95 % interval |", "|---|---|---|---|"]
    return "\n".join([*lines, "", *head, *rows] if rows else lines)


def difference(one: str, two: str, methods: Mapping[str, Mapping[str, float]]) -> str:
    """A row on two methods, paired by seed: runs of one seed share the held-out images and the order of the others."""
    seeds = sorted(methods[one].keys() & methods[two].keys())
    apart = [methods[one][seed] - methods[two][seed] for seed in seeds]
    mean, interval = f"{statistics.fmean(apart):+.2f}" if apart else "–", "–"
    if 1 < len(apart) <= len(T_QUANTILE) + 1:
        half = T_QUANTILE[len(apart) - 2] * statistics.stdev(apart) / len(apart) ** 0.5
        interval = f"{statistics.fmean(apart) - half:+.2f} to {statistics.fmean(apart) + half:+.2f}"
    return f"| {one} – {two} | {len(seeds)} | {mean} | {interval} |"


def method_of(run: str) -> str:
    """The name of a run without its seed."""
    return run.rpartition("-")[0] or run


# The hours


def hours(study: Study, runs: Iterable[StudyRun], out: Path) -> str:
    """A table of what each run computes that is not done, and how long it takes one core, as fast as it is now."""
    runs = list(runs)
    left = [run for run in runs if not is_done(run, out)]
    if not left:
        return _nothing_left(runs, out)
    from s3zoo.search.forecast import Phase, forecast, training_forecast
    from s3zoo.search.latency_runtime import measured_speed, training_speed

    lines, total = [f"{'run':<24} {'phase':<28} {'TMACs':>8} {'hours':>7}"], 0.0
    speeds: dict[str, tuple[float, float]] = {}  # each measured once, which takes seconds
    for run in left:
        config, speed = config_of(run, study), (1.0, 1.0)
        if isinstance(config, SearchRun):
            works, kind = forecast(config, study.images), config.space.family
            speed = speeds[kind] = speeds.get(kind) or measured_speed(config)
        elif "arch" in config.model_args:
            works, kind = [training_forecast(config, study.images)], config.name
            speed = speeds[kind] = speeds.get(kind) or training_speed(config)
        else:
            works = [Phase("network not known before")]
        for work in works:
            seconds, amount = work.seconds(*speed), work.work / 1e12
            total += seconds
            lines.append(f"{run.name:<24} {work.name:<28} {amount:>8.1f} {seconds / 3600:>7.2f}")
    measured = ", ".join(f"{f}: {a / 1e9:.1f} and {b / 1e9:.1f}" for f, (a, b) in speeds.items())
    if speeds:
        lines.append(f"GMAC/s in training and scoring: {measured}")
    done = len(runs) - len(left)
    return "\n".join([*lines, f"{done} of {len(runs)} runs are done; {total / 3600:.1f} hours of one core are left"])


def config_of(run: StudyRun, study: Study) -> SearchRun | TrainRun:
    """The config behind a command; where a run's supernet is searched again, its first space stands for its last."""
    verb, *rest = shlex.split(run.command)
    if not rest or (rest[0] == "--from" and len(run.needs) != 1):
        raise ValueError(f"run {run.name!r} is {run.command!r}, which names no config and no {{run}} of the study.")
    name, *rest = rest
    settings = [setting for word, setting in zip(rest, rest[1:], strict=False) if word == "--set"]
    if name == "--from":
        (source,) = (config_of(other, study) for other in study.runs if (other.name,) == run.needs)
        if not isinstance(source, SearchRun):
            raise ValueError(f"run {run.name!r} searches the supernet of {run.needs[0]!r}, which is no search.")
        # any folder: that of the other run may not be there yet
        found = replace(source, supernet_weights=".", space_search=SpaceSearch(method="none"), hierarchy="none")
        return overridden(found, settings)
    if verb == "search":
        return overridden(load_config(name, SearchRun, "search"), settings)
    return overridden(load_config(name, TrainRun, "train"), settings)
