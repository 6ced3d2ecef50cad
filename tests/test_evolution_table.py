"""Evolution against random search on the recorded table of all networks of a supernet's space."""

import importlib
import math
import statistics
from pathlib import Path
from typing import Any

import pytest

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"


@pytest.fixture
def benchmark(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    return importlib.import_module("evolution_vs_random")


def test_evolution_beats_random_search_at_equal_evaluations(benchmark: Any) -> None:
    space, scores = benchmark.read()
    assert len(scores) == space.size() >= 2000 and set(scores) == set(space.enumerate())
    pairs = benchmark.compare(space, scores, 20)
    wins, losses = sum(a > b for a, b in pairs), sum(a < b for a, b in pairs)
    decided = wins + losses
    # Two-sided sign test: the chance of at least so many wins or losses among fair coins.
    p = 2 * sum(math.comb(decided, k) for k in range(wins, decided + 1)) / 2**decided
    assert wins > losses and p < 0.05
    assert benchmark.sign_test(wins, losses) == pytest.approx(p)
    assert statistics.fmean(a for a, _ in pairs) > statistics.fmean(b for _, b in pairs)
    assert max(max(pair) for pair in pairs) <= max(scores.values())


def test_the_sign_test_is_the_textbooks(benchmark: Any) -> None:
    assert benchmark.sign_test(9, 1) == pytest.approx(2 * (10 + 1) / 1024)
    assert benchmark.sign_test(1, 9) == benchmark.sign_test(9, 1)
    assert benchmark.sign_test(5, 5) == benchmark.sign_test(0, 0) == 1
