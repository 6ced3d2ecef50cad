"""The bench on which cases are tried: a nursery and valid inputs; and the cases as parameters of tests.

Random cases depend on S3ZOO_HOSTILE_SEED (0 unless set) and on their number alone.
"""

from __future__ import annotations

import functools
import os
import random
import re
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from cases import OPTIONS, READERS, SLOW, TABLE
from mutations import WORDS, damaged
from sandbox import Nursery, complaints
from seeds import MADE, RUNS

from s3zoo.training.config import keys, load_config

SLOW_SECONDS = 1200 / 3  # for each nursery
LATE = ("train", "search", "vqa train", "test_mm", "specialise", "extract", "study")  # work is done before all is read
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
        target, command = drawn(self.kind)[number % len(drawn(self.kind))]
        if target:
            folder = self._folder(f"{command} {target}")
            if f"--out {target}" in command and rng.random() < 0.8:  # a run that was cut short
                (folder / target / "result.json").unlink()
            said = damaged(folder, target, rng)
        else:
            command, said = self._typed(command, rng), ""
            folder = self._folder(command)
        codes = (0, 1, 2) if command.startswith("verify") else (0, 2)  # 1: another accuracy than on the card
        said = f"{said} (S3ZOO_HOSTILE_SEED={seed}, case {number})"
        self._try(command, folder, codes, command.startswith(LATE), said)

    def _typed(self, command: str, rng: random.Random) -> str:
        """The command with something in the place of one of its options."""
        option, word = rng.choice(OPTIONS[self.kind][command].split()), rng.choice(WORDS)
        if option == "--set":
            named = next((word for word in command.split() if word.endswith(".py")), "search.py")
            word = f"{rng.choice([*keys(load_config(str(self.valid / named), object, ''))])}={word}"
        return f"{command} {option} {word}"

    def _folder(self, command: str) -> Path:
        """Copies of the valid inputs that the command names, or that its study does."""
        command += " found run study.jsonl" if "study.py" in command else ""
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


@functools.cache
def drawn(kind: str) -> list[tuple[str, str]]:
    """What is damaged at random, and a command that reads it; or a command one of whose options is."""
    readers = [(target, command) for target, commands in READERS[kind].items() for command in commands]
    return readers + [("", command) for command in OPTIONS[kind]]


def numbers(kind: str) -> list[int]:
    """Of the random cases that are always tried: one for each of them that is quick."""
    return [number for number, (_, command) in enumerate(drawn(kind)) if not command.startswith(SLOW)]


def seed() -> int:
    return int(os.environ.get("S3ZOO_HOSTILE_SEED", "0"))


def many(bench: Bench, capsys: pytest.CaptureFixture[str]) -> None:
    """New random cases for minutes; a failure is told when it is found, and all of them at the end."""
    chosen = seed() or random.SystemRandom().randrange(1, 10**9)
    end, number, failures = time.monotonic() + float(os.environ.get("S3ZOO_HOSTILE_SECONDS", SLOW_SECONDS)), 0, []
    while time.monotonic() < end:
        try:
            bench.random(chosen, number)
        except pytest.fail.Exception as failure:
            failures.append(str(failure))
            with capsys.disabled():
                print(f"\n{failure}", flush=True)
        number += 1
    with capsys.disabled():
        print(f"\n{bench.kind}: {number} random cases with S3ZOO_HOSTILE_SEED={chosen}, {len(failures)} failed")
    assert number and not failures, "\n\n".join(failures[:20])
