"""The course of a run: where it stands among its phases, and how much time is left."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from s3zoo.drawing import duration
from s3zoo.search.forecast import PASSES, Macs, Phase, planned
from s3zoo.training.clock import Clock
from s3zoo.training.config import to_dict


class Course:
    """Where a run is in its course. The log (a `training.log.Log`) asks it what to add to a line of progress;
    nothing of a result depends on it."""

    def __init__(
        self, folder: Path, config: Mapping[str, Any], train_images: int, log: Any, *, write: bool = True,
        run: str = "", clock: Callable[[], float] = time.monotonic, macs: Macs = PASSES,
    ) -> None:  # fmt: skip
        self.clock = Clock(folder, write=write, run=run, now=clock)
        self._config, self._images, self._log = config, train_images, log
        self._known: dict[str, Any] = {"macs": macs}
        self.best: float | None = None  # accuracy in percent
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
        self._share = self._earlier = 0.0
        self._part, self._parts = 0, 0
        needed = self.needed(name)
        with self.clock.phase(name):
            told = [*([] if needed is None else [f"run: about {duration(needed)} left"]), *self._told_best()]
            self._log.say(f"{self.heading}: {name}" + (f" ({', '.join(told)})" if told else ""))
            self._log.course = self
            try:
                yield
            finally:
                self._log.course = None

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

    def measured(self, budget: int, milliseconds: float, slower: float | None) -> None:
        """The latency of a budget's winner."""
        self.clock.latency[str(budget)], self.clock.slower[str(budget)] = milliseconds, slower
        self.clock.save()

    # What is told

    @property
    def heading(self) -> str:
        """For example "phase 3 of 9"."""
        names = [phase.name for phase in self.phases]
        number = names.index(self.clock.name) + 1 if self.clock.name in names else len(names)
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
        return self.clock.spent * (1 - self._share) / done

    def rest(self) -> float | None:
        """Seconds of the phases after this one, by how long those took that are over; None before one has been."""
        taken, coming = self._divided(self.clock.name)
        if coming and (left := self.left()) is not None:
            taken[coming[0]] = self.clock.before + self.clock.spent + left
        return _expected(coming[1:], taken)

    def needed(self, name: str) -> float | None:
        """Seconds of this phase, which is to begin, and of all after it; None before anything is known."""
        taken, coming = self._divided(name)
        return _expected(coming, taken)

    def _divided(self, name: str) -> tuple[dict[Phase, float], list[Phase]]:
        """The seconds of the phases before this one, as far as they were timed, and the phases from it on."""
        phases = self.phases
        seconds = self.clock.seconds
        at = next((i for i, phase in enumerate(phases) if phase.name == name), len(phases))
        return {phase: seconds[phase.name] for phase in phases[:at] if phase.name in seconds}, phases[at:]


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
