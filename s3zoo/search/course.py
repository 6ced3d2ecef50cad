"""The course of a run: how long each of its phases took, and how much time is left.

Seconds are kept in `clock.json` of the run's folder, the one file that differs between two runs with the same bits:

    {"phases": [{"name": "space0: supernet", "seconds": 41.2}, …], "latency": {"0": 1.83}, "slower": {"0": 1.02}}

`latency` has the measured milliseconds of each budget's winner, where a budget promises some, and `slower` how many
times as slow as for the promise the machine was then.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from s3zoo.checks import COST, COST_IF_ANY, Fields
from s3zoo.drawing import duration
from s3zoo.files import read_json, write_json
from s3zoo.search.forecast import PASSES, Macs, Phase, planned
from s3zoo.training.config import to_dict

EVERY = 20.0  # seconds between two savings of the clock: a kill loses no more


def read_clock(path: Path) -> dict[str, Any]:
    """What `clock.json` of a run holds; a sentence if that is something else."""
    numbers: Fields = {"latency?": {"*": COST}, "slower?": {"*": COST_IF_ANY}}
    fields: Fields = {"phases": [{"name": str, "seconds": COST}], **numbers}
    return read_json(path, fields, remedy="remove it, and the search's own command goes on")


class Course:
    """Where a run is in its course. The log (a `training.log.Log`) asks it what to add to a line of progress;
    nothing of a result depends on it."""

    def __init__(
        self, folder: Path, config: Mapping[str, Any], train_images: int, log: Any, *, write: bool = True,
        run: str = "", clock: Callable[[], float] = time.monotonic, macs: Macs = PASSES,
    ) -> None:  # fmt: skip
        self._path, self._config, self._images = folder / "clock.json", config, train_images
        self._log, self._write, self._run, self._clock = log, write, run, clock
        self._known: dict[str, Any] = {"macs": macs}
        kept = read_clock(self._path) if write and self._path.exists() else {"phases": []}
        self.seconds: dict[str, float] = {row["name"]: row["seconds"] for row in kept["phases"]}
        self.latency: dict[str, float] = kept.get("latency", {})
        self.slower: dict[str, float | None] = kept.get("slower", {})
        self.best: float | None = None  # accuracy in percent
        self._now: str = ""
        self._begun = self._saved = self._before = 0.0
        self._share = self._earlier = 0.0  # of the phase that is done, and that earlier processes did
        self._part = self._parts = 0  # the number of the part under way, and how many there are (0: it is whole)

    @property
    def phases(self) -> list[Phase]:
        """All phases of the run, by what is known now."""
        return planned(self._config, self._images, **self._known)

    def ends(self, *, last: int, visited: int) -> None:
        """The space search is over: so many spaces were visited, and this one gives the result."""
        self._known |= {"last": last, "visited": visited}

    def follow(self, run: Any) -> None:
        """Go on with another config, whose phases are shorter."""
        self._config = to_dict(run)

    def beside(self, macs: float) -> None:
        """Timm's two networks are known now, and compute so much together for an image."""
        self._known["macs"] = self._known["macs"]._replace(stock=macs)

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Around the work of a phase."""
        self._now, self._before = name, self.seconds.get(name, 0.0)
        self._begun = self._saved = self._clock()
        self._share = self._earlier = 0.0
        self._part, self._parts = 0, 0
        needed = self.needed(name)
        told = [*([] if needed is None else [f"run: about {duration(needed)} left"]), *self._told_best()]
        self._log.say(f"{self.heading}: {name}" + (f" ({', '.join(told)})" if told else ""))
        self._log.course = self
        try:
            yield
        finally:
            self._log.course = None
            self._save()
            self._now = ""

    def part(self, number: int, of: int) -> None:
        """The phase consists of so many equal parts, and this one (from 0) begins."""
        if not self._parts:  # the first one here: those before it were done earlier
            self._earlier = number / of
        self._part, self._parts = number, of
        self.meter(0.0)

    def resumed(self, share: float) -> None:
        """So much of the part that begins was done by earlier processes, from 0 to 1."""
        self._earlier += share / max(1, self._parts)

    def meter(self, share: float) -> None:
        """So much of the part is done, from 0 to 1."""
        self._share = max(self._share, (self._part + share) / max(1, self._parts))
        if self._clock() - self._saved >= EVERY:
            self._save()

    def measured(self, budget: int, milliseconds: float, slower: float | None) -> None:
        """The latency of a budget's winner."""
        self.latency[str(budget)], self.slower[str(budget)] = milliseconds, slower
        self._save()

    def _save(self) -> None:
        self._saved = self._clock()
        if self._now:
            self.seconds[self._now] = round(self._before + self._saved - self._begun, 3)
        if self._write:
            rows = [{"name": name, "seconds": seconds} for name, seconds in self.seconds.items()]
            write_json(self._path, {"run": self._run, "phases": rows, "latency": self.latency, "slower": self.slower})

    # What is told

    @property
    def heading(self) -> str:
        """For example "phase 3 of 9"."""
        names = [phase.name for phase in self.phases]
        number = names.index(self._now) + 1 if self._now in names else len(names)
        return f"phase {number} of {len(names)}"

    def told(self) -> str:
        """The time left and the best network so far, for a line of progress."""
        left, rest = self.left(), self.rest()
        parts = [] if left is None else [f"phase: about {duration(left)} left"]
        parts += [] if left is None or rest is None else [f"run: about {duration(left + rest)} left"]
        return ", ".join(parts + self._told_best())

    def _told_best(self) -> list[str]:
        return [] if self.best is None else [f"best so far {self.best:.2f} %"]

    def left(self) -> float | None:
        """Seconds left of the phase under way, by what this process did of it; None before anything is known."""
        done = self._share - self._earlier
        if done <= 0:
            return None
        return (self._clock() - self._begun) * (1 - self._share) / done

    def rest(self) -> float | None:
        """Seconds of the phases after this one, by how long those took that are over; None before one has been."""
        taken, coming = self._divided(self._now)
        if coming and (left := self.left()) is not None:
            taken[coming[0]] = self._before + self._clock() - self._begun + left
        return _expected(coming[1:], taken)

    def needed(self, name: str) -> float | None:
        """Seconds of this phase, which is to begin, and of all after it; None before anything is known."""
        taken, coming = self._divided(name)
        return _expected(coming, taken)

    def _divided(self, name: str) -> tuple[dict[Phase, float], list[Phase]]:
        """The seconds of the phases before this one, as far as they were timed, and the phases from it on."""
        phases = self.phases
        at = next((i for i, phase in enumerate(phases) if phase.name == name), len(phases))
        return {phase: self.seconds[phase.name] for phase in phases[:at] if phase.name in self.seconds}, phases[at:]


def _expected(phases: Iterable[Phase], taken: Mapping[Phase, float]) -> float | None:
    """Seconds of phases by those of others: of their kind, training or scoring, if there are any; None without any."""

    def rate(timed: Iterable[Phase]) -> float | None:
        work = sum(phase.work for phase in timed)
        return sum(taken[phase] for phase in timed) / work if work else None

    overall = rate(taken)
    if overall is None:
        return None
    rates = {kind: rate([phase for phase in taken if phase.training == kind]) for kind in (True, False)}
    return sum((phase.work * (rates[phase.training] or overall) for phase in phases), 0.0)
