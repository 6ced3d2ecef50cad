"""Bad folders, configs, datasets, checkpoints and settings, tried on the verbs for classifiers and searches.

A command that is given nonsense says one sentence, exits with 2 and leaves no trace: nothing is written, nothing is
imported or executed that the input names, no socket is opened, memory and time stay bounded.
"""

from collections.abc import Iterator

import pytest
from bench import Bench, drawn, many, named, numbers, opened, seed
from cases import TABLE

from s3zoo.cli import COMMANDS


@pytest.fixture(scope="module")
def core(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    yield from opened("core", tmp_path_factory)


@pytest.mark.parametrize(("command", "damage", "codes", "late"), named("core"))
def test_a_mistake_is_refused(core: Bench, command: str, damage, codes, late) -> None:
    core.named(command, damage, codes, late)


@pytest.mark.parametrize("number", numbers("core"))
def test_random_damage(core: Bench, number: int) -> None:
    core.random(seed(), number)


def test_every_verb_is_tried() -> None:
    tried = [case.command for kind in TABLE for case in TABLE[kind]]
    assert {command.split()[0] for command in tried} == set(COMMANDS) | {"python:scored.load", "python:report.read"}
    random = {command.split()[0] for kind in TABLE for _, command in drawn(kind)}
    assert set(COMMANDS) - random == {"doctor"}  # which reads nothing and takes no option


@pytest.mark.slow
@pytest.mark.timeout(0)
def test_more_random_damage(core: Bench, capsys: pytest.CaptureFixture[str]) -> None:
    many(core, capsys)
