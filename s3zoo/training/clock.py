"""How long the phases of a run took, over all its starts, in `clock.json` of its folder.

It is the one file that differs between two runs with the same bits, and no result depends on it:

    {"phases": [{"name": "space0: supernet", "seconds": 41.2}, …], "whole": true, "latency": {"0": 1.83},
     "slower": {"0": 1.02}}

`whole` is false where work was done before there was a clock. `latency` has the measured milliseconds of each budget's
winner, where a budget of a search promises some, and `slower` how many times as slow as for the promise the machine was
then.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from s3zoo.checks import COST, COST_IF_ANY, Fields
from s3zoo.files import read_json, write_json

FILE = "clock.json"
EVERY = 20.0  # seconds between two savings: a kill loses no more


def read_clock(path: Path) -> dict[str, Any]:
    """What `clock.json` of a run holds; a sentence if that is something else."""
    numbers: Fields = {"latency?": {"*": COST}, "slower?": {"*": COST_IF_ANY}}
    fields: Fields = {"phases": [{"name": str, "seconds": COST}], "whole?": bool, **numbers}
    return read_json(path, fields, remedy="remove it, and the run's own command goes on")


def seconds_of(folder: Path) -> float | None:
    """How long a run worked, without the time between its starts; None if that is not known."""
    if not (folder / FILE).exists():
        return None
    kept = read_clock(folder / FILE)
    return sum(row["seconds"] for row in kept["phases"]) if kept.get("whole", True) else None


class Clock:
    """The seconds of a run's phases, and of the one under way what this process spends on it."""

    def __init__(
        self, folder: Path, *, write: bool = True, run: str = "", now: Callable[[], float] = time.monotonic
    ) -> None:
        self._path, self._write, self._run, self._now = folder / FILE, write, run, now
        none: dict[str, Any] = {"phases": [], "whole": not any(folder.glob("**/step-*"))}  # checkpoints: of before
        kept = read_clock(self._path) if write and self._path.exists() else none
        self._whole: bool = kept.get("whole", True)
        self.seconds: dict[str, float] = {row["name"]: row["seconds"] for row in kept["phases"]}
        self.latency: dict[str, float] = kept.get("latency", {})
        self.slower: dict[str, float | None] = kept.get("slower", {})
        self.name = ""
        self.before = 0.0  # what earlier starts spent on the phase
        self._begun = self._saved = 0.0

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Around the work of a phase."""
        self.name, self.before = name, self.seconds.get(name, 0.0)
        self._begun = self._now()
        self.save()
        try:
            yield
        finally:
            self.save()
            self.name = ""

    @property
    def spent(self) -> float:
        """Seconds of this process on the phase."""
        return self._now() - self._begun

    def tick(self) -> None:
        """The phase goes on."""
        if self.name and self._now() - self._saved >= EVERY:
            self.save()

    def save(self) -> None:
        self._saved = self._now()
        if self.name:
            self.seconds[self.name] = round(self.before + self.spent, 3)
        if self._write:
            rows = [{"name": name, "seconds": seconds} for name, seconds in self.seconds.items()]
            about = {"run": self._run, "phases": rows, "whole": self._whole}
            write_json(self._path, about | {"latency": self.latency, "slower": self.slower})
