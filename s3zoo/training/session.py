"""From a command to its runs: seeds, processes, logs, interruptions, and one of them at a time in a folder."""

from __future__ import annotations

import dataclasses
import errno
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

from s3zoo.training import distributed
from s3zoo.training.checkpoint import told_when_full
from s3zoo.training.log import Log
from s3zoo.training.loop import Interrupted, Stop

Result = dict[str, Any]


def carry_out(
    run: Any, folder: Path, job: Callable[[Any, Path, distributed.Ranks, Log, Stop], Callable[[], Result]], *,
    seeds: int = 1, table: Callable[[list[Result]], str] = lambda results: "",
) -> int:  # fmt: skip
    """Do the job in its folder, or with several seeds in one folder each, and show their table; the exit code.

    A run is a dataclass with a seed and a device. Ctrl-C and SIGTERM let the job save and raise Interrupted, with words
    on how to resume.
    """
    if seeds < 1:
        raise ValueError(f"--seeds is {seeds}, but must be at least 1.")
    numbers = range(run.seed, run.seed + seeds)
    runs = [(dataclasses.replace(run, seed=seed), folder / f"seed{seed}" if seeds > 1 else folder) for seed in numbers]
    ranks = distributed.start(run.device)
    results = []
    try:
        with Stop().listening() as stop:
            for each, place in runs:
                with told_when_full(place), held(place, ranks):
                    log = Log(place, speaks=ranks.first)
                    try:
                        results.append(job(each, place, ranks, log, stop)())
                    except Interrupted as reason:
                        log.say(str(reason))
                        return 130
                    finally:
                        log.close()
        if seeds > 1 and ranks.first:
            print(table(results))
    finally:
        distributed.stop()
    return 0


@contextmanager
def held(folder: Path, ranks: distributed.Ranks) -> Iterator[None]:
    """Make the folder, and let no other run work in it meanwhile; what hinders the first rank is raised on all."""
    lock: int | None = None
    problem: Exception | None = None
    if ranks.first:
        try:
            folder.mkdir(parents=True, exist_ok=True)
            lock = _locked(folder / ".lock")
        except (OSError, ValueError) as error:
            problem = error
    try:
        problem = ranks.from_first(problem)
        if problem is not None:
            raise problem
        yield
    finally:
        if lock is not None:
            os.close(lock)


def _locked(path: Path) -> int | None:
    """The descriptor of the file, locked until it is closed or this process dies; None where there are no locks.

    By lockf and not flock: its locks are not inherited, so that loader workers which outlive a killed run for some
    seconds do not hinder the next. But they end when this process closes the file, in whatever place it was opened.
    """
    if fcntl is None:
        return None
    try:
        file = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
    except OSError:  # read-only, another user's, a full disk: the run's own files will tell
        return None
    try:
        fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        owner = os.pread(file, 20, 0).decode(errors="replace")
        os.close(file)
        if error.errno not in (errno.EAGAIN, errno.EACCES):
            return None
        raise ValueError(
            f"{path.parent} is in use by another process{f' ({owner})' if owner else ''}; wait until it ends, stop it,"
            " or give another --out."
        ) from None
    with suppress(OSError):  # its number is a help to those who are refused, no more
        os.ftruncate(file, 0)
        os.pwrite(file, str(os.getpid()).encode(), 0)
    return file
