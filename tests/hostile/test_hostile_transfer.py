"""Bad folders, configs, datasets, checkpoints and settings, tried on the verbs of VQA, detection and segmentation.

A command that is given nonsense says one sentence, exits with 2 and leaves no trace: nothing is written, nothing is
imported or executed that the input names, no socket is opened, memory and time stay bounded.
"""

from collections.abc import Iterator

import pytest
from bench import Bench, many, named, numbers, opened, seed


@pytest.fixture(scope="module")
def vqa(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    yield from opened("vqa", tmp_path_factory)


@pytest.fixture(scope="module")
def mm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    yield from opened("mm", tmp_path_factory)


@pytest.mark.parametrize(("command", "damage", "codes", "late"), named("vqa"))
def test_a_mistake_in_vqa_is_refused(vqa: Bench, command: str, damage, codes, late) -> None:
    vqa.named(command, damage, codes, late)


@pytest.mark.parametrize("number", numbers("vqa"))
def test_random_damage_in_vqa(vqa: Bench, number: int) -> None:
    vqa.random(seed(), number)


@pytest.mark.parametrize(("command", "damage", "codes", "late"), named("mm"))
def test_a_mistake_in_mm_is_refused(mm: Bench, command: str, damage, codes, late) -> None:
    mm.named(command, damage, codes, late)


@pytest.mark.parametrize("number", numbers("mm"))
def test_random_damage_in_mm(mm: Bench, number: int) -> None:
    mm.random(seed(), number)


@pytest.mark.slow
@pytest.mark.timeout(0)
@pytest.mark.parametrize("kind", ["vqa", "mm"])
def test_more_random_damage(
    kind: str, request: pytest.FixtureRequest, capsys: pytest.CaptureFixture[str]
) -> None:
    many(request.getfixturevalue(kind), capsys)
