"""Racing on recorded answers of a CIFAR-10 supernet's subnets."""

import importlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"


@pytest.fixture
def benchmark(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    return importlib.import_module("racing")


def test_a_fifth_of_the_forwards_finds_the_winner(benchmark: Any) -> None:
    generations, right = benchmark.read()
    archs = [arch for archs in generations for arch in archs]
    assert right.shape == (len(set(archs)), 5000) and len(archs) == len(set(archs)) == 1000
    outcomes = [benchmark.raced(generations, right, order) for order in range(20)]
    assert sum(outcome.lost <= 0.1 for outcome in outcomes) >= 19, outcomes
    assert max(outcome.share for outcome in outcomes) <= 0.2, outcomes


def test_a_recording_is_read_as_it_was_written(benchmark: Any, tmp_path: Path) -> None:
    record = importlib.import_module("record_correctness")
    generations = [archs[:3] for archs in record.read()[0][:2]]
    right = np.random.default_rng(0).random((6, 37)) < 0.6
    record.write(tmp_path / "bits.npz", record.SPACE, generations, right)
    archs, bits = record.read(tmp_path / "bits.npz")
    assert archs == generations and (bits == right).all()
