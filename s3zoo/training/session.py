"""From a command to its runs: seeds, processes, logs, interruptions, and one of them at a time in a folder."""

from __future__ import annotations

import dataclasses
import shutil
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

from s3zoo.checks import Repeats, typed
from s3zoo.files import disk_full_as_user_error, locked
from s3zoo.training import distributed
from s3zoo.training.log import Log
from s3zoo.training.loop import Interrupted, Stop

Result = dict[str, Any]
# All that is in a run's folder before the first step
BEGUN = {".lock", "clock.json", "log.txt", "run.json", "tensorboard", "wandb"}


def run_job(
    run: Any, folder: Path, job: Callable[[Any, Path, distributed.Ranks, Log, Stop], Result], *,
    seeds: int = 1, table: Callable[[list[Result]], str] = lambda results: "",
) -> int:  # fmt: skip
    """Do the job in its folder, or with several seeds in one folder each, and show their table; the exit code.

    A run is a dataclass with a seed and a device. Ctrl-C and SIGTERM let the job save and raise Interrupted, with words
    on how to resume.
    """
    typed(seeds, Repeats, "--seeds")
    numbers = range(run.seed, run.seed + seeds)
    runs = [(dataclasses.replace(run, seed=seed), folder / f"seed{seed}" if seeds > 1 else folder) for seed in numbers]
    ranks = distributed.start(run.device)
    results = []
    try:
        with Stop().listening() as stop:
            for each, place in runs:
                with disk_full_as_user_error(place), held(place, ranks):
                    log = Log(place, speaks=ranks.first)
                    try:
                        results.append(job(each, place, ranks, log, stop))
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
    """Make the folder, and let no other run work in it meanwhile; what hinders the first rank is raised on all.

    A start that is refused leaves nothing behind.
    """
    with ExitStack() as stack:
        problem: Exception | None = None
        if ranks.first:
            try:
                new = [place for place in (folder, *folder.parents) if not place.exists()]
                before = set() if new else set(folder.iterdir())
                folder.mkdir(parents=True, exist_ok=True)
                stack.enter_context(locked(folder / ".lock"))
                stack.push(lambda kind, *_: _remove_begun(folder, before, new) if kind else None)
            except (OSError, ValueError) as error:
                problem = error
        problem = ranks.from_first(problem)
        if problem is not None:
            raise problem
        yield


def _remove_begun(folder: Path, before: set[Path], new: list[Path]) -> None:
    """Take away what a run made before its first step, and the folders that are new, unless there is more by now."""
    made = set(folder.iterdir()) - before
    if {path.name for path in made} <= BEGUN:
        for path in made:
            shutil.rmtree(path) if path.is_dir() else path.unlink()
        with suppress(OSError):  # not empty
            for place in new:
                place.rmdir()
