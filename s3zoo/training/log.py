"""What is seen while a run goes on: lines on the terminal and in `log.txt`, a progress bar, curves in trackers."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from tqdm import tqdm

from s3zoo.drawing import duration
from s3zoo.files import disk_full_as_user_error, shown
from s3zoo.training.clock import Clock
from s3zoo.training.trackers import Tracker, chosen

_PLAIN_SECONDS = 20.0  # between progress lines where there is no terminal


class Course(Protocol):
    """What work consists of several parts with a bar each: where this one stands in the whole."""

    @property
    def heading(self) -> str: ...
    def resumed(self, share: float) -> None: ...
    def meter(self, share: float) -> None: ...
    def told(self) -> str: ...


class Progress:
    """A bar on a terminal, a line now and then elsewhere."""

    def __init__(self, log: Log, name: str, total: int, start: int, quiet: bool) -> None:
        self._log, self._name, self._total, self._begin = log, name, total, start
        self._started = self._last = time.monotonic()
        self.done = start
        self._bar = None
        self._quiet = quiet
        if log.course is not None and start:
            log.course.resumed(start / total)
        if not quiet and sys.stderr.isatty():
            name = name if log.course is None else f"{log.course.heading}, {name}"
            self._bar = tqdm(total=total, initial=start, desc=name, leave=False, dynamic_ncols=True)

    def update(self, done: int, **values: float) -> None:
        self.done = done
        course = self._log.course
        if course is not None and self._total:
            course.meter(done / self._total)
        if self._log.clock is not None:
            self._log.clock.tick()
        if self._quiet:
            return
        numbers = " ".join(f"{k} {v:.4g}" for k, v in values.items())
        if self._bar is not None:
            whole = "" if course is None else course.told()
            self._bar.set_postfix_str(", ".join(filter(None, (numbers, whole))), refresh=False)
            self._bar.update(done - self._bar.n)
            return
        now = time.monotonic()
        if now - self._last >= _PLAIN_SECONDS and done < self._total:
            self._last = now
            left = (now - self._started) / max(1, done - self._begin) * (self._total - done)
            heading, whole = ("", "") if course is None else (f"{course.heading}, ", course.told())
            self._log.say(
                f"{heading}{self._name}: {done}/{self._total} {numbers} ({whole or f'about {duration(left)} left'})"
            )

    def close(self) -> None:
        if self._bar is not None:
            self._bar.close()
            self._bar = None


class Log:
    """What a run tells its user, on the terminal and in its folder. Only the first rank does."""

    def __init__(self, folder: Path | None, *, speaks: bool = True, tracks: bool = True) -> None:
        self._folder, self._speaks = folder, speaks
        self.course: Course | None = None
        self.clock: Clock | None = None
        self._progress: Progress | None = None
        self._to_open = chosen() if tracks and folder is not None and speaks else {}
        self._trackers: dict[str, Tracker] = {}
        if folder is not None and speaks:
            path = folder / "log.txt"
            if path.is_dir() or path.is_fifo() or path.is_socket():  # a pipe would wait for a reader for ever
                raise ValueError(f"{path} is no file, but the log of this run is written there; remove it.")
            folder.mkdir(parents=True, exist_ok=True)

    def say(self, text: str) -> None:
        if not self._speaks:
            return
        text = shown(text)
        tqdm.write(text, file=sys.stdout)
        sys.stdout.flush()
        if self._folder is not None:
            path = self._folder / "log.txt"
            with disk_full_as_user_error(path), open(path, "a", encoding="utf-8") as file:
                file.write(f"{time.strftime('%Y-%m-%d %H:%M:%S')} {text}\n")

    def progress(self, name: str, total: int, start: int = 0) -> Progress:
        self.close_progress()
        self._progress = Progress(self, name, total, start, quiet=not self._speaks)
        return self._progress

    def close_progress(self) -> None:
        if self._progress is not None:
            self._progress.close()
            self._progress = None

    def metrics(self, name: str, step: int, values: dict[str, float]) -> None:
        """A line for people and points for trackers."""
        self.say(f"{name}: epoch {step + 1}: " + ", ".join(f"{k} {v:.4g}" for k, v in values.items()))
        self.curve(name, step, values)

    def curve(self, name: str, step: int, values: dict[str, float]) -> None:
        """Points for trackers. One that fails is left out from then on: nobody's run ends for want of a curve."""
        while self._to_open:
            key, build = self._to_open.popitem()
            self._tracked(key, lambda: self._trackers.update({key: build(self._folder)}))  # noqa: B023 (called here)
        for key, tracker in list(self._trackers.items()):
            self._tracked(key, lambda: tracker.curve(name, step, values))  # noqa: B023

    def _tracked(self, key: str, action: Callable[[], None]) -> None:
        try:
            action()
        except Exception as error:  # whatever a tracker raises
            self._trackers.pop(key, None)
            self.say(f"The tracker {key} failed ({type(error).__name__}: {error}); the run goes on without it.")

    def close(self) -> None:
        self.close_progress()
        for key, tracker in list(self._trackers.items()):
            self._tracked(key, tracker.close)
        self._trackers = {}
