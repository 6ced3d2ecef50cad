"""Evolution by ask and tell: against brute force, nothing twice, nothing outside, equal questions for equal answers."""

import math
import random
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from s3zoo.arch import Arch
from s3zoo.search.budget import Budget, Pricer, check_feasible
from s3zoo.search.evolution import Evolution, RandomSearch, pareto
from s3zoo.space import AUTOFORMER_TINY, Dim, Space, s3_space


def toy(depth: tuple[int, ...] = (1, 2), heads: tuple[int, ...] = (1, 2, 3)) -> Space:
    dims = (
        Dim("depth", depth, (1,)),
        Dim("embed_dim", (8, 16), (1,)),
        Dim("num_heads", heads, (1,), per_block=True),
        Dim("mlp_ratio", (1, 2), (1,), per_block=True),
        Dim("head_dim", (4,), (1,)),
    )
    return Space("toy", "autoformer", dims)


TOY = toy()  # 2 x (6 + 36) = 84 architectures
SMALL: dict[str, Any] = {"population": 10, "crossover": 5, "mutation": 5}


def ragged(arch: Arch) -> float:
    """A score without structure."""
    return random.Random(arch.key).random()


def heads(arch: Arch) -> int:
    return sum(block.num_heads for stage in arch.stages for block in stage.blocks)  # type: ignore[union-attr]


def run(engine: Evolution, score: Callable[[Arch], float]) -> Evolution:
    while archs := engine.ask():
        engine.tell([(arch, score(arch)) for arch in archs])
    return engine


# Against brute force


@pytest.mark.parametrize("kind", [Evolution, RandomSearch])
@pytest.mark.parametrize("seed", range(3))
def test_a_small_space_is_searched_to_the_end(kind: type[Evolution], seed: int) -> None:
    engine = kind(TOY, seed=seed, population=16, crossover=8, mutation=8, generations=30)
    sizes = []
    while archs := engine.ask():
        sizes.append(len(archs))
        engine.tell([(arch, ragged(arch)) for arch in archs])
    assert sizes == [16, 16, 16, 16, 16, 4]  # 84: the last generation is shorter, and there the search ends
    everything = {arch: ragged(arch) for arch in TOY.enumerate()}
    assert engine.evaluated == everything
    assert engine.best == max(everything.items(), key=lambda item: item[1])
    assert engine.top(5) == sorted(everything.items(), key=lambda item: -item[1])[:5]
    assert engine.ask() == []


@pytest.mark.parametrize("seed", range(5))
def test_the_optimum_of_a_smooth_score_is_found_early(seed: int) -> None:
    """3,768 architectures, 240 evaluations: random search would find the single best in one of 16 runs."""
    space = toy(depth=(1, 2, 3), heads=(1, 2, 3, 4, 5, 6))
    assert space.size() == 2 * (12 + 144 + 1728)

    def score(arch: Arch) -> float:
        return heads(arch) + sum(b.mlp_ratio for b in arch.stages[0].blocks) - arch.embed_dims[0] / 16

    best = max(space.enumerate(), key=score)
    engine = run(Evolution(space, seed=seed, population=20, crossover=10, mutation=10, generations=12), score)
    assert engine.best == (best, score(best)) and len(engine.evaluated) == 240


# Properties


@given(
    st.integers(0, 2**32), st.integers(1, 30), st.integers(1, 5), st.integers(1, 12), st.floats(0, 1), st.integers(1, 6)
)
@settings(max_examples=40)
def test_nothing_twice_nothing_outside(
    seed: int, population: int, generations: int, parents: int, share: float, most: int
) -> None:  # fmt: skip
    crossover = int(share * population)
    engine = Evolution(
        TOY, seed=seed, population=population, generations=generations, parents=parents,
        crossover=crossover, mutation=population - crossover, feasible=lambda a: heads(a) <= most,
    )  # fmt: skip
    asked: list[Arch] = []
    while archs := engine.ask():
        assert engine.ask() == archs  # asking is not a step
        asked += archs
        engine.tell([(arch, ragged(arch)) for arch in archs])
    within = [arch for arch in TOY.enumerate() if heads(arch) <= most]
    assert len(asked) == len(set(asked)) == min(population * generations, len(within))
    assert set(asked) <= set(within) and list(engine.evaluated) == asked
    best = [row["best"] for row in engine.history]
    assert best == sorted(best) and best[-1] == max(map(ragged, asked)) == engine.best[1]
    assert sum(row["size"] for row in engine.history) == len(asked)


@pytest.mark.parametrize(("crossover", "mutation"), [(0, 20), (20, 0)])
def test_children_come_from_the_best_of_all(crossover: int, mutation: int) -> None:
    """The width, which does not mutate here, is one of the parents'; a random one would be in one of four cases."""
    space = toy(depth=(3,), heads=tuple(range(1, 40))).replaced({"embed_dim": tuple(range(4, 164, 4))})
    options: dict[str, Any] = {"population": 20, "crossover": crossover, "mutation": mutation, "generations": 4}
    engine = Evolution(space, seed=0, **options, p_embed=0, max_tries=999)
    while archs := engine.ask():
        parents = sorted(engine.evaluated, key=ragged)[-10:]
        for arch in archs if parents else ():
            assert arch.embed_dims in {p.embed_dims for p in parents}
            if crossover:
                assert all(b in {p.stages[0].blocks[j] for p in parents} for j, b in enumerate(arch.stages[0].blocks))
        engine.tell([(arch, ragged(arch)) for arch in archs])
    assert len(engine.evaluated) == 80


def test_the_same_network_is_not_asked_for_twice() -> None:
    """Windows of 7 and 14 are one network on a feature map of 7."""
    space = s3_space("s", (1, 2), (8,), (7, 14), (1, 2), (2,), num_stages=1)
    assert space.size() == 4 + 16
    networks = {arch.effective(28) for arch in space.enumerate()}
    assert len(networks) == 2 + 4
    engine = Evolution(space, seed=1, identity=lambda a: a.effective(28), population=4, crossover=2, mutation=2)
    run(engine, ragged)
    assert len(engine.evaluated) == 6 and {arch.effective(28) for arch in engine.evaluated} == networks
    assert all(map(space.contains, engine.evaluated))


def test_a_narrow_budget_is_kept_and_filled() -> None:
    """Uniform draws never meet this one; the drawing that comes with the budget does."""
    budget, price = Budget.parse("params<=5.6M"), Pricer(224)
    feasible = check_feasible(AUTOFORMER_TINY, budget, price, random.Random(0))
    engine = Evolution(
        AUTOFORMER_TINY, seed=0, feasible=feasible, draw=feasible.draw,
        population=8, crossover=4, mutation=4, generations=3,
    )  # fmt: skip
    run(engine, ragged)
    assert len(engine.evaluated) == 24 and all(price(arch)["params"] <= 5.6e6 for arch in engine.evaluated)
    assert feasible.checked > 100 + len(engine.evaluated)  # most are outside


def test_draws_in_vain_are_in_the_history() -> None:
    engine = Evolution(TOY, seed=0, **SMALL, generations=4, feasible=lambda a: heads(a) <= 3)
    run(engine, ragged)
    assert all(set(row) == {"best", "mean", "size", "outside", "repeated"} for row in engine.history)
    assert all(row["outside"] > 0 for row in engine.history) and engine.history[-1]["repeated"] > 0
    first = list(engine.evaluated.values())[:10]
    assert engine.history[0]["mean"] == pytest.approx(sum(first) / 10) and engine.history[0]["best"] == max(first)


def test_an_impossible_budget_asks_nothing() -> None:
    engine = Evolution(TOY, seed=0, feasible=lambda a: False)
    assert engine.ask() == [] and engine.ask() == []
    with pytest.raises(ValueError, match="Nothing is evaluated"):
        _ = engine.best


# Resuming is replaying


def test_equal_answers_give_equal_questions_in_any_portions() -> None:
    options: dict[str, Any] = {"seed": 5, "population": 12, "crossover": 6, "mutation": 6, "generations": 5}
    whole = run(Evolution(AUTOFORMER_TINY, **options), ragged)
    pieces = Evolution(AUTOFORMER_TINY, **options)
    shuffler = random.Random(0)
    while archs := pieces.ask():
        part = shuffler.sample(archs, shuffler.randint(1, len(archs)))
        pieces.tell([(arch, ragged(arch)) for arch in part])
        assert set(pieces.ask()).isdisjoint(part)
    assert list(pieces.evaluated.items()) == list(whole.evaluated.items()) and pieces.history == whole.history
    other = run(Evolution(AUTOFORMER_TINY, **{**options, "seed": 6}), ragged)
    assert set(other.evaluated) != set(whole.evaluated)


def test_equal_scores_are_ranked_by_key() -> None:
    engine = run(Evolution(TOY, seed=2, population=20, crossover=10, mutation=10, generations=2), lambda arch: 1.0)
    assert [a.key for a, _ in engine.top(40)] == sorted(a.key for a in engine.evaluated)


# Errors


def test_wrong_answers_are_refused() -> None:
    engine = Evolution(TOY, seed=0, population=4, crossover=2, mutation=2)
    first, *_ = engine.ask()
    stranger = next(arch for arch in TOY.enumerate() if arch not in engine.ask())
    with pytest.raises(ValueError, match=f"{stranger.key} was not asked for"):
        engine.tell([(stranger, 1.0)])
    for score in (math.nan, math.inf):
        with pytest.raises(ValueError, match="must be a finite number"):
            engine.tell([(first, score)])


# Pareto


@given(st.lists(st.tuples(st.integers(0, 6), st.integers(0, 6)), max_size=30), st.randoms(use_true_random=False))
def test_the_front_is_what_nothing_dominates(points: list[tuple[int, int]], shuffler: random.Random) -> None:
    archs = list(TOY.enumerate())
    records = [(arch, float(s), {"macs": float(c), "params": 0.0}) for arch, (s, c) in zip(archs, points, strict=False)]
    front = pareto(records, "macs")
    values = {(r[1], r[2]["macs"]) for r in records}
    undominated = {
        (s, c) for s, c in values if not any(t >= s and d <= c and (t, d) != (s, c) for t, d in values)
    }  # fmt: skip
    assert [(r[1], r[2]["macs"]) for r in front] == sorted(undominated, key=lambda v: v[1])
    for record in front:  # of equals, the first key
        equals = [r[0].key for r in records if (r[1], r[2]["macs"]) == (record[1], record[2]["macs"])]
        assert record[0].key == min(equals)
    shuffler.shuffle(records)
    assert pareto(records, "macs") == front
    assert len(pareto(records, "params")) == bool(records)
