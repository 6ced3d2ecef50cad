"""The bench on which cases are tried: a nursery and valid inputs; and the cases as parameters of tests.

Random cases depend on S3ZOO_HOSTILE_SEED (0 unless set) and on their number alone.
"""

from __future__ import annotations

import os
import random
import re
import shutil
import time
from collections.abc import Callable, Iterable, Iterator
from itertools import count, takewhile
from pathlib import Path
from typing import Any

import pytest
from cases import READERS, TABLE
from mutations import Make, damaged
from sandbox import Nursery, complaints
from seeds import MADE, RUNS

FAST_CASES = {"core": 7, "vqa": 3, "mm": 3}  # at random, for each kind of input: as many as commands that read one
SLOW_SECONDS = 1200 / 3  # for each nursery
RESUMED = ("run", "search", "vqa")
NEEDED = {"vqa": ("transformers",), "mm": ("mmdet", "mmseg")}


class Bench:
    def __init__(self, kind: str, home: Path) -> None:
        self.kind, self.home, self.nursery, self.tried = kind, home, Nursery(kind, home), 0
        self.valid = home / "valid"
        self.valid.mkdir()
        for maker in MADE[kind]:
            outcome = self.nursery.run([], self.valid, maker=maker)
            assert outcome["code"] == 0, outcome["err"]
        for command in RUNS[kind]:  # what is not damaged is accepted
            outcome = self.nursery.run(command.split(), self.valid)
            assert not [*complaints(outcome, (0,))], (command, *complaints(outcome, (0,)), outcome["err"])

    def named(self, command: str, damage: Any, codes: tuple[int, ...] = (2,), late: bool = False) -> None:
        """A case that must be refused, unless `codes` says otherwise."""
        folder = self._folder(command)
        if damage is not None:
            damage(folder)
        self._try(command, folder, codes, late, str(damage or ""))

    def random(self, seed: int, number: int) -> None:
        """A case that may be valid after all: not every change of a file matters to every command."""
        rng = random.Random(f"{seed}-{number}")
        inputs = READERS[self.kind]
        target = list(inputs)[number % len(inputs)]
        command = inputs[target][number // len(inputs) % len(inputs[target])]
        folder = self._folder(command)
        if target in RESUMED and rng.random() < 0.8:  # a run that was cut short
            (folder / target / "result.json").unlink()
        said = damaged(folder, target, rng)
        late = command.startswith(("train", "search", "vqa train", "test_mm"))
        self._try(command, folder, (0, 2), late, f"{said} (S3ZOO_HOSTILE_SEED={seed}, case {number})")

    def pipes(self) -> Iterator[tuple[str, str]]:
        """The runs that are resumed, and each of their files."""
        for target in READERS[self.kind].keys() & set(RESUMED):
            for path in sorted((self.valid / target).rglob("*")):
                if path.is_file() and path.name not in (".lock", "result.json"):
                    yield READERS[self.kind][target][0], str(path.relative_to(self.valid))

    def pipe(self, command: str, path: str) -> None:
        """A named pipe in the place of a file of a run that was cut short: whoever opens it waits for ever."""
        folder, change = self._folder(command), Make(path, "fifo")
        (folder / path.split("/")[0] / "result.json").unlink()
        change(folder)
        self._try(command, folder, (0, 2), True, str(change))

    def _folder(self, command: str) -> Path:
        """Copies of the valid inputs that the command names."""
        self.tried += 1
        folder = self.home / str(self.tried)
        (folder / "secret").mkdir(parents=True)
        (folder / "secret" / "file").write_text("secret")
        for path in self.valid.iterdir():
            if re.search(rf"(?<![\w.-]){re.escape(path.name)}(?![\w.-])", command):
                copy = shutil.copytree if path.is_dir() else shutil.copy
                copy(path, folder / path.name)
        return folder

    def _try(self, command: str, folder: Path, codes: tuple[int, ...], late: bool, said: str) -> None:
        outcome = self.nursery.run(command.split(), folder)
        wrong = [*complaints(outcome, codes, late)]
        shutil.rmtree(folder)
        if wrong:
            lines = [f"s3zoo {command}", said, *wrong, outcome["err"][-3000:]]
            pytest.fail("\n".join(lines).encode(errors="backslashreplace").decode(), pytrace=False)


def opened(kind: str, factory: pytest.TempPathFactory) -> Iterator[Bench]:
    for package in NEEDED.get(kind, ()):
        pytest.importorskip(package)
    bench = Bench(kind, factory.mktemp(kind))
    yield bench
    bench.nursery.close()


def named(kind: str) -> list[Any]:
    return [pytest.param(*case, id=f"{case.command[:60]} {case.damage or ''}".strip()) for case in TABLE[kind]]


def numbers(kind: str) -> range:
    return range(FAST_CASES[kind] * len(READERS[kind]))


def seed() -> int:
    return int(os.environ.get("S3ZOO_HOSTILE_SEED", "0"))


def many(bench: Bench, capsys: pytest.CaptureFixture[str]) -> None:
    """New random cases for minutes; all failures are told at the end."""
    chosen = seed() or random.SystemRandom().randrange(1, 10**9)
    end = time.monotonic() + float(os.environ.get("S3ZOO_HOSTILE_SECONDS", SLOW_SECONDS))
    cases = ((chosen, number) for number in takewhile(lambda _: time.monotonic() < end, count()))
    _each(bench, bench.random, cases, f"random cases with S3ZOO_HOSTILE_SEED={chosen}", capsys)


def every_pipe(bench: Bench, capsys: pytest.CaptureFixture[str]) -> None:
    _each(bench, bench.pipe, bench.pipes(), "pipes in the place of a file of a run", capsys)


def _each(
    bench: Bench, attempt: Callable[..., None], cases: Iterable[Any], what: str, capsys: pytest.CaptureFixture[str]
) -> None:
    number, failures = 0, []
    for case in cases:
        number += 1
        try:
            attempt(*case)
        except pytest.fail.Exception as failure:
            failures.append(str(failure))
    with capsys.disabled():
        print(f"\n{bench.kind}: {number} {what}, {len(failures)} failed")
    assert number and not failures, "\n\n".join(failures[:20])
