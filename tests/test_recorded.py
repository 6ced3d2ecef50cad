"""What benchmarks/ recorded: evolution against random search on a table of all networks of a space, and racing on
answers of a CIFAR-10 supernet's subnets."""

import importlib
import math
import statistics
from pathlib import Path
from typing import Any

import numpy as np
import pytest


@pytest.fixture(autouse=True)
def benchmarks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(Path(__file__).parents[1] / "benchmarks"))


def test_evolution_beats_random_search_at_equal_evaluations() -> None:
    benchmark: Any = importlib.import_module("evolution_vs_random")
    space, scores = benchmark.read()
    assert len(scores) == space.size() >= 2000 and set(scores) == set(space.enumerate())
    pairs = benchmark.compare(space, scores, 20)
    wins, losses = sum(a > b for a, b in pairs), sum(a < b for a, b in pairs)
    decided = wins + losses
    # Two-sided sign test: the chance of at least so many wins or losses among fair coins.
    p = 2 * sum(math.comb(decided, k) for k in range(wins, decided + 1)) / 2**decided
    assert wins > losses and p < 0.05
    assert statistics.fmean(a for a, _ in pairs) > statistics.fmean(b for _, b in pairs)
    assert max(max(pair) for pair in pairs) <= max(scores.values())


def test_a_fifth_of_the_forwards_finds_the_winner() -> None:
    benchmark: Any = importlib.import_module("racing")
    generations, right = benchmark.read()
    archs = [arch for archs in generations for arch in archs]
    assert right.shape == (len(set(archs)), 5000) and len(archs) == len(set(archs)) == 1000
    outcomes = [benchmark.raced(generations, right, order) for order in range(20)]
    assert sum(outcome.lost <= 0.1 for outcome in outcomes) >= 19, outcomes
    assert max(outcome.share for outcome in outcomes) <= 0.2, outcomes


def test_a_recording_is_read_as_it_was_written(tmp_path: Path) -> None:
    record = importlib.import_module("record_correctness")
    generations = [archs[:3] for archs in record.read()[0][:2]]
    right = np.random.default_rng(0).random((6, 37)) < 0.6
    record.write(tmp_path / "bits.npz", record.SPACE, generations, right)
    archs, bits = record.read(tmp_path / "bits.npz")
    assert archs == generations and (bits == right).all()
