"""Decisions of S3 and S4, against examples worked out by hand and against brute force written here."""

import dataclasses
import itertools
import json
import math
import random
from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from s3zoo import cost
from s3zoo.arch import Arch
from s3zoo.search.budget import Budget
from s3zoo.search.s3 import decide as s3_decide
from s3zoo.search.s3 import samples as s3_samples
from s3zoo.search.s4 import Pair
from s3zoo.search.s4 import decide as s4_decide
from s3zoo.search.s4 import pairs as s4_pairs
from s3zoo.search.space_search import Decision, SpaceSearch, backtrack, equivalent_dims
from s3zoo.space import GLIT_TINY, S3_INITIAL, S4_CLIP, S4_SHUNTED, S4_SWIN, S4_VIT, Dim, Space, s3_space


def toy(depth: tuple[int, ...] = (2, 3, 4), embed: tuple[int, ...] = (32, 64, 96), **mlp: Any) -> Space:
    """Two searched dimensions; `mlp` may make the MLP ratio a third, per block."""
    dims = (
        Dim("depth", depth, (1,), 1),
        Dim("embed_dim", embed, (1,), 32),
        Dim("window_size", (7,), (1,)),
        Dim("num_heads", (1,), (1,)),
        Dim("head_dim", (32,), (1,)),
        Dim("mlp_ratio", mlp.get("mlp", (4,)), (1,), per_block=True),
    )
    return Space("toy", "s3", dims)


def toy_arch(space: Space, depth: int, embed: int) -> Arch:
    return space.build({d.name: d.choices[0] for d in space.dims} | {"depth": depth, "embed_dim": embed})


# Errors in percent of the nine networks of toy(), by depth (rows) and width (columns).
TABLE = {
    2: {32: 20.0, 64: 20.6, 96: 21.2},
    3: {32: 19.9, 64: 20.5, 96: 21.1},
    4: {32: 19.8, 64: 20.4, 96: 21.0},
}


def scored(space: Space, table: dict[int, dict[int, float]] = TABLE) -> list[tuple[Arch, float]]:
    return [(toy_arch(space, d, e), error) for d, row in table.items() for e, error in row.items()]


def rows(decision: Decision) -> dict[str, dict[str, Any]]:
    return {row["name"]: row for row in decision.to_dict()["dims"]}


def choices(decision: Decision, name: str) -> tuple[float, ...]:
    return decision.space[name].choices


# S3: the shift


def test_s3_worked_example() -> None:
    """top = 1: T is the best error of each subset.

    depth: E 20.6, 20.5, 20.4 and T 20.0, 19.9, 19.8, so E-T 20.3, 20.2, 20.1; slope -0.1; floor(-0.25) = -1: up by one.
    width: E 19.9, 20.5, 21.1 and T 19.8, 20.4, 21.0, so E-T 19.85, 20.45, 21.05; slope 0.6 a step of 32;
    floor(1.5) = 1: down by 32, and the choice 0 is dropped.
    """
    decision = s3_decide(toy(), scored(toy()), SpaceSearch(top=1))
    depth, embed = rows(decision)["depth"], rows(decision)["embed_dim"]
    assert [c["et"] for c in depth["choices"]] == pytest.approx([20.3, 20.2, 20.1])
    assert [c["mean"] for c in embed["choices"]] == pytest.approx([19.9, 20.5, 21.1])
    assert [c["top"] for c in embed["choices"]] == pytest.approx([19.8, 20.4, 21.0])
    assert [c["samples"] for c in embed["choices"]] == [3, 3, 3]
    assert (depth["slope"], embed["slope"]) == (pytest.approx(-0.1), pytest.approx(0.6))
    assert (depth["ratio"], embed["ratio"]) == (pytest.approx(-0.25), pytest.approx(1.5))
    assert (depth["shift"], embed["shift"]) == (1, -32)
    assert choices(decision, "depth") == (3, 4, 5)
    assert choices(decision, "embed_dim") == (32, 64)
    assert embed["dropped"] == [0] and embed["before"] == [32, 64, 96] and embed["after"] == [32, 64]
    assert decision.moved and decision.record["quality"]["mean"] == pytest.approx(20.5)


def test_s3_positive_slope_below_tau_does_not_move() -> None:
    decision = s3_decide(toy(), scored(toy()), SpaceSearch(top=1, tau=0.7))  # 0.6 / 0.7 = 0.857
    assert choices(decision, "embed_dim") == (32, 64, 96)
    assert choices(decision, "depth") == (3, 4, 5)


def noisy(spread: float) -> list[tuple[Arch, float]]:
    """Two networks of each depth 2, 3, 4, with errors of 20, 19.5 and 19 on average: the slope is -0.5.

    The mean of two draws from m +- spread has the variance spread^2 / 2, so with x = -1, 0, 1 the slope's is that of
    (y_3 - y_1) / 2: spread^2 / 4.
    """
    return [
        (toy_arch(toy(), depth, width), 20 - 0.5 * (depth - 2) + sign * spread)
        for depth in (2, 3, 4) for width, sign in ((32, 1), (96, -1))
    ]  # fmt: skip


@pytest.mark.parametrize("spread", [0.0, 0.2, 2.0])
@pytest.mark.parametrize("significance", [0.0, 1.0, 4.0])
def test_s3_moves_where_the_slope_exceeds_its_error(spread: float, significance: float) -> None:
    """With all samples as top tier, E-T error is the mean, whose error is known."""
    config = SpaceSearch(top_share=1, significance=significance)
    decision = s3_decide(toy(), noisy(spread), config)
    depth, embed = rows(decision)["depth"], rows(decision)["embed_dim"]
    assert depth["slope"] == pytest.approx(-0.5) and depth["slope_error"] == pytest.approx(spread / 2, rel=0.15)
    moves = 0.5 > significance * spread / 2
    assert (depth["wanted"], depth["steps"]) == (2, 2 if moves else 0) and bool(depth["note"]) == (not moves)
    assert choices(decision, "depth") == ((4, 5, 6) if moves else (2, 3, 4))
    assert embed["slope"] == pytest.approx(-spread) and embed["infeasible"] == [64]
    assert decision == s3_decide(toy(), noisy(spread), config)  # the bootstrap is seeded


def test_without_an_error_nothing_is_significant() -> None:
    """One sample of each choice says nothing of how samples differ."""
    samples = [(toy_arch(toy(), depth, 32), 20.0 - depth) for depth in (2, 3, 4)]
    row = rows(s3_decide(toy(), samples, SpaceSearch()))["depth"]
    assert row["slope_error"] is None and row["steps"] == 3
    assert not s3_decide(toy(), samples, SpaceSearch(significance=1.0)).moved
    pair = measured(S4_TOY, depth=4, embed_dim=3)
    alone = [next(m for m in pair if m[0].dim == name) for name in ("depth", "embed_dim")]
    data = s4_decide(S4_TOY, alone, s4(significance=1.0), toy_price)
    assert not data.moved and "no component of the gradient is significant" in data.reason
    assert s4_decide(S4_TOY, alone, s4(), toy_price).moved


@pytest.mark.parametrize(("significance", "direction"), [(0.0, [1, 1]), (2.0, [1, 0]), (7.0, [0, 0])])
def test_s4_follows_what_exceeds_its_error(significance: float, direction: list[int]) -> None:
    """Gains of 2 or 4 a block (mean 3, error of four pairs 1 / sqrt(4)), of 5 or -1 a step of width (2 and 3 / 2)."""
    pairs = []
    for name, gains, delta in (("depth", (2, 4, 2, 4), 1), ("embed_dim", (5, -1, 5, -1), 32)):
        pair = next(m[0] for m in measured(S4_TOY, depth=1, embed_dim=1) if m[0].dim == name)
        pairs += [(pair._replace(delta=delta), 50.0, 50.0 + gain) for gain in gains]
    decision = s4_decide(S4_TOY, pairs, s4(slope_unit="step", significance=significance), toy_price)
    found = rows(decision)
    assert [found[name]["z"] for name in ("depth", "embed_dim")] == pytest.approx([3, 2])
    assert [found[name]["z_error"] for name in ("depth", "embed_dim")] == pytest.approx([0.5, 1.5], rel=0.15)
    assert decision.record["direction"] == direction and decision.moved == any(direction)
    # Where the limit demands it, what is noise moves too: 168 is the largest, and a step of depth costs 10.
    if significance == 2.0:
        limited = s4_decide(S4_TOY, pairs, s4(slope_unit="step", significance=2.0, upper=150), toy_price)
        assert limited.record["direction"] == [1, -1]
        # Where it does not, noise moves nothing, though the one dimension with a gain can go no further.
        dims = [dataclasses.replace(dim, high=dim.choices[-1]) if dim.name == "depth" else dim for dim in S4_TOY.dims]
        deepest = dataclasses.replace(S4_TOY, dims=tuple(dims))
        stays = s4_decide(deepest, pairs, s4(slope_unit="step", significance=2.0), toy_price)
        assert not stays.moved and stays.reason == "no legal direction gains accuracy beyond its error"


def test_s3_rounding_to_nearest() -> None:
    """-0.25 rounds to 0: the slightest gain no longer grows; 1.5 rounds to 2: 32, 64, 96 become -32, 0 and 32."""
    decision = s3_decide(toy(), scored(toy()), SpaceSearch(top=1, rounding="nearest"))
    assert choices(decision, "depth") == (2, 3, 4)
    assert choices(decision, "embed_dim") == (32,)
    assert rows(decision)["embed_dim"]["dropped"] == [-32, 0]


def test_s3_raw_unit() -> None:
    """Width: 0.6 points per 32 channels = 0.01875 per channel; floor(0.047) = 0. Depth's step is 1: as before."""
    decision = s3_decide(toy(), scored(toy()), SpaceSearch(top=1, slope_unit="raw"))
    assert rows(decision)["embed_dim"]["slope"] == pytest.approx(0.01875)
    assert choices(decision, "embed_dim") == (32, 64, 96)
    assert choices(decision, "depth") == (3, 4, 5)


@pytest.mark.parametrize(("unit", "expected"), [("step", (11, 12, 13)), ("raw", (9, 10, 11))])
def test_s3_heads_are_measured_as_qkv_width(unit: str, expected: tuple[int, ...]) -> None:
    """0.3 points per head = 0.6 per step of 64 channels: floor(-1.5) = -2, so 4 heads up; per channel: one step up."""
    base = {dim.name: dim.choices[0] for dim in S3_INITIAL.dims}
    samples = [(S3_INITIAL.build(base | {"stage1.qkv_heads": h}), 30 - 0.3 * h) for h in (7, 8, 9)]
    decision = s3_decide(S3_INITIAL, samples, SpaceSearch(slope_unit=unit))
    assert choices(decision, "stage1.qkv_heads") == expected
    assert rows(decision)["stage1.qkv_heads"]["slope"] == pytest.approx({"step": -0.6, "raw": -0.3 / 32}[unit])
    assert [name for name, row in rows(decision).items() if row["shift"]] == ["stage1.qkv_heads"]


def test_s3_infeasible_choice_takes_no_part() -> None:
    """With 96 (E-T 17.85, slope -1.0 a step) the width would grow by 3 steps; without it, it shrinks by one."""
    table = {d: row | {96: 20.0 - d / 10 - 1.8} for d, row in TABLE.items()}  # 18.0, 17.9, 17.8
    grown = s3_decide(toy(), scored(toy(), table), SpaceSearch(top=1))
    assert choices(grown, "embed_dim") == (128, 160, 192)
    within = [(arch, error) for arch, error in scored(toy(), table) if arch.embed_dims[0] < 96]
    decision = s3_decide(toy(), within, SpaceSearch(top=1))
    assert choices(decision, "embed_dim") == (32, 64)
    assert rows(decision)["embed_dim"]["infeasible"] == [96]
    assert [c["samples"] for c in rows(decision)["embed_dim"]["choices"]] == [3, 3, 0]
    alone = [(arch, error) for arch, error in within if arch.embed_dims[0] == 64]
    still = s3_decide(toy(), alone, SpaceSearch(top=1))
    assert choices(still, "embed_dim") == (32, 64, 96) and "two choices" in rows(still)["embed_dim"]["note"]


def test_s3_steps_that_would_empty_a_dimension_are_cut() -> None:
    """10 points a step: floor(25) = 25 steps down; two of them leave 32 of 32, 64, 96."""
    table = {d: {32: 20.0, 64: 30.0, 96: 40.0} for d in (2, 3, 4)}
    row = rows(s3_decide(toy(), scored(toy(), table), SpaceSearch()))["embed_dim"]
    assert (row["wanted"], row["steps"], row["after"]) == (-25, -2, [32])
    assert "no choice" in row["note"]


def test_s3_noise_of_a_sum_is_no_slope() -> None:
    """Equal errors in other summands: 0.1 + 0.2 is not 0.3 in floating point, but floor must not see it."""
    errors = {2: [0.1, 0.2, 0.3], 3: [0.2, 0.2, 0.2], 4: [0.3, 0.1, 0.2 - 1e-16]}
    table = {d: dict(zip((32, 64, 96), row, strict=True)) for d, row in errors.items()}
    decision = s3_decide(toy(), scored(toy(), table), SpaceSearch(top=3, top_share=1))
    assert choices(decision, "depth") == (2, 3, 4)


@pytest.mark.parametrize(
    ("top", "share", "expected", "count"),
    [(50, 0.05, 1.0, 1), (50, 0.25, 3.0, 5), (3, 0.25, 2.0, 3), (50, 1.0, 10.5, 20), (50, 0.01, 1.0, 1)],
)
def test_s3_top_tier(top: int, share: float, expected: float, count: int) -> None:
    """Errors 1..20: the best k have mean (k + 1) / 2."""
    samples = [(toy_arch(toy(), 2, 32), float(error)) for error in range(20, 0, -1)]
    quality = s3_decide(toy(), samples, SpaceSearch(top=top, top_share=share)).record["quality"]
    assert (quality["mean"], quality["top"], quality["top_count"]) == (10.5, expected, count)
    assert quality["et"] == (10.5 + expected) / 2


def test_s3_frozen_window() -> None:
    """At 224 the maps are 56, 28, 14 and 7 wide: windows 7 and 14 are the same network in stage 4 alone."""
    assert equivalent_dims(S3_INITIAL, 224) == {"stage4.window_size"}
    assert equivalent_dims(S3_INITIAL, 112) == {"stage3.window_size", "stage4.window_size"}
    assert equivalent_dims(S3_INITIAL, (224, 448)) == set()  # the longer side of the map counts
    assert equivalent_dims(S4_VIT, 224) == equivalent_dims(GLIT_TINY, 224) == set()
    base = {dim.name: dim.choices[0] for dim in S3_INITIAL.dims}
    names = ("stage3.window_size", "stage4.window_size")
    samples = [
        (S3_INITIAL.build(base | dict(zip(names, pair, strict=True))), 50.0 - sum(pair))
        for pair in itertools.product((7, 14), repeat=2)
    ]
    decision = s3_decide(S3_INITIAL, samples, SpaceSearch(), frozen=equivalent_dims(S3_INITIAL, 224))
    assert choices(decision, "stage3.window_size") == (7 + 7 * 18, 14 + 7 * 18)  # -7 a step: floor(-17.5) = -18
    assert choices(decision, "stage4.window_size") == (7, 14)
    assert decision.record["frozen"] == ["stage4.window_size"]


def test_s3_space_size_cap() -> None:
    """Two MLP ratios per block: 3 x (2^2 + 2^3 + 2^4) = 84 networks. The worked example's shift leaves two widths and
    depths 3, 4, 5: 2 x (2^3 + 2^4 + 2^5) = 112; without the growth in depth 2 x 28 = 56."""
    space = toy(mlp=(3, 4))
    free = s3_decide(space, scored(space), SpaceSearch(top=1, max_space_size=112))
    assert free.record["size_before"] == 84 and free.record["size_after"] == 112
    capped = s3_decide(space, scored(space), SpaceSearch(top=1, max_space_size=111))
    assert choices(capped, "depth") == (2, 3, 4) and choices(capped, "embed_dim") == (32, 64)
    assert capped.record["size_after"] == 56
    assert (rows(capped)["depth"]["wanted"], rows(capped)["depth"]["steps"]) == (1, 0)
    assert "depth grows by 0 of 1 steps" in capped.reason
    over = s3_decide(space, scored(space), SpaceSearch(top=1, max_space_size=10))
    assert "without growing" in over.reason and choices(over, "depth") == (2, 3, 4)


def test_s3_cap_lets_the_steepest_depth_grow() -> None:
    """Two stages of depth 2 or 3 with two ratios a block: (4 + 8)^2 = 144; one step in one stage 12 x 24 = 288."""
    space = s3_space("two", (2, 3), (32,), (7,), (1,), (3, 4), num_stages=2)
    base = {dim.name: dim.choices[0] for dim in space.dims}
    samples = [
        (space.build(base | {"stage1.depth": a, "stage2.depth": b}), 50 - 0.1 * a - 0.2 * b)
        for a, b in itertools.product((2, 3), repeat=2)
    ]
    assert s3_decide(space, samples, SpaceSearch()).record["size_after"] == 24 * 24
    capped = s3_decide(space, samples, SpaceSearch(max_space_size=300))
    assert (choices(capped, "stage1.depth"), choices(capped, "stage2.depth")) == ((2, 3), (3, 4))
    assert capped.record["size_after"] == 288


def test_s3_refuses_what_it_cannot_compare() -> None:
    space = toy(mlp=(3, 4))
    mixed = space.build({d.name: d.choices[0] for d in space.dims} | {"mlp_ratio": (3, 4)})
    with pytest.raises(ValueError, match="differ in mlp_ratio"):
        s3_decide(space, [(mixed, 10.0)], SpaceSearch())
    with pytest.raises(ValueError, match="in percent"):
        s3_decide(toy(), [(toy_arch(toy(), 2, 32), math.nan)], SpaceSearch())
    with pytest.raises(ValueError, match="within the limits"):
        s3_decide(toy(), [], SpaceSearch())
    with pytest.raises(ValueError, match="not in space"):
        s3_decide(toy(), [(toy_arch(toy(), 9, 32), 10.0)], SpaceSearch())


def test_s3_dimension_without_evolve_step_stays() -> None:
    """GLiT's dimensions have no evolve step."""
    base = {dim.name: dim.choices[0] for dim in GLIT_TINY.dims}
    samples = [(GLIT_TINY.build(base | {"mlp_ratio": m}), 50.0 - m) for m in (2, 4, 6)]
    decision = s3_decide(GLIT_TINY, samples, SpaceSearch())
    assert not decision.moved and decision.space == GLIT_TINY and decision.reason == "no dimension moves"
    assert rows(decision)["mlp_ratio"]["note"] == "has no evolve step"


def recomputed_shift(row: dict[str, Any], options: dict[str, Any]) -> float:
    """Eq. 7 and 8 from the record of one dimension, by another least-squares routine."""
    points = [(c["x"], (c["mean"] + c["top"]) / 2) for c in row["choices"] if c["samples"]]
    if len(points) < 2 or row["note"]:
        return 0
    slope = np.polyfit([x for x, _ in points], [y for _, y in points], 1)[0]
    ratio = round(slope / options["tau"], 6)
    return -(math.floor(ratio) if options["rounding"] == "floor" else math.floor(ratio + 0.5)) * row["step"]


@settings(max_examples=60)
@given(
    errors=st.lists(st.floats(0, 100), min_size=9, max_size=9),
    missing=st.sets(st.sampled_from([(d, e) for d in (2, 3, 4) for e in (32, 64, 96)]), max_size=7),
    rounding=st.sampled_from(["floor", "nearest"]),
    unit=st.sampled_from(["step", "raw"]),
)
def test_s3_decision_is_sound_and_recomputable(
    errors: list[float], missing: set[tuple[int, int]], rounding: str, unit: str
) -> None:
    space = toy()
    cells = [(d, e) for d in (2, 3, 4) for e in (32, 64, 96)]
    errors = [round(e, 3) for e in errors]  # a slope within noise of a whole number of tau would be a coin toss
    samples = [
        (toy_arch(space, *cell), error) for cell, error in zip(cells, errors, strict=True) if cell not in missing
    ]
    decision = s3_decide(space, samples, SpaceSearch(top=1, rounding=rounding, slope_unit=unit, tau=0.4123))
    text = json.dumps(decision.to_dict(), allow_nan=False)
    assert Decision.from_dict(json.loads(text)) == decision
    data = json.loads(text)
    for row in data["dims"]:
        after = row["after"]
        assert after and min(after) > 0 and after == list(decision.space[row["name"]].choices)
        if not row["note"]:
            shift = recomputed_shift(row, data["options"])
            assert row["shift"] == shift
            assert after == [v + shift for v in row["before"] if v + shift > 0]
    decision.space.smallest(), decision.space.largest()


# S3: the samples


def tied(space: Space, arch: Arch) -> dict[str, Any]:
    values = space.values(arch)
    assert all(len(set(v)) == 1 for v in values.values() if isinstance(v, tuple))
    return {name: v[0] if isinstance(v, tuple) else v for name, v in values.items()}


def test_s3_samples_have_even_shares() -> None:
    archs = s3_samples(S3_INITIAL, 120, random.Random(0), lambda arch: True)
    assert len(archs) == len(set(archs)) == 120
    counts = Counter(item for arch in archs for item in tied(S3_INITIAL, arch).items())
    for dim in S3_INITIAL.searched:
        assert {counts[dim.name, choice] for choice in dim.choices} == {120 // len(dim.choices)}
    assert archs == s3_samples(S3_INITIAL, 120, random.Random(0), lambda arch: True)
    assert archs != s3_samples(S3_INITIAL, 120, random.Random(1), lambda arch: True)


def test_s3_samples_under_a_budget() -> None:
    """Half of the space is too large: every choice still has samples, and all of them fit."""

    def feasible(arch: Arch) -> bool:
        return cost.params(arch, num_classes=10) < 10_500_000

    drawn = s3_samples(S3_INITIAL, 100, random.Random(0), lambda arch: True)
    assert 20 < sum(map(feasible, drawn)) < 80
    archs = s3_samples(S3_INITIAL, 90, random.Random(0), feasible)
    assert len(archs) == 90 and all(map(feasible, archs))
    counts = Counter(item for arch in archs for item in tied(S3_INITIAL, arch).items())
    for dim in S3_INITIAL.searched:
        assert min(counts[dim.name, choice] for choice in dim.choices) >= 0.7 * 90 / len(dim.choices)


def test_s3_samples_with_an_infeasible_choice() -> None:
    archs = s3_samples(S3_INITIAL, 40, random.Random(0), lambda arch: arch.embed_dims[0] != 288)
    assert len(archs) == 40 and {arch.embed_dims[0] for arch in archs} == {224, 256}


def test_s3_samples_end_where_the_space_ends() -> None:
    assert len(s3_samples(toy(), 1000, random.Random(0), lambda arch: True)) == 9
    assert len(s3_samples(toy(), 7, random.Random(0), lambda arch: True)) == 7
    assert s3_samples(toy(), 1000, random.Random(0), lambda arch: False) == []
    assert s3_samples(S4_VIT, 3, random.Random(0), lambda arch: False) == []  # 126 networks: drawn, not listed
    same = s3_samples(toy(), 5, random.Random(0), lambda arch: True, identity=lambda arch: arch.depths)
    assert sorted(arch.depths for arch in same) == [(2,), (3,), (4,)]
    few = s3_samples(S4_VIT, 5, random.Random(0), lambda arch: True, identity=lambda arch: arch.depths)
    assert sorted(arch.depths for arch in few) == [(12,), (13,), (14,)]


def test_s3_samples_are_distinct_networks() -> None:
    """At 32 pixels the maps are 8, 4, 2, 1 wide: windows count in stage 1 alone, where 14 means 8."""
    archs = s3_samples(S3_INITIAL, 100, random.Random(0), lambda arch: True, identity=lambda a: a.effective(32))
    assert len({arch.effective(32) for arch in archs}) == 100
    assert {b.window_size for arch in archs for b in arch.stages[3].blocks} == {7, 14}  # type: ignore[union-attr]


# Backtracking


def test_backtrack_steps_to_the_last_feasible_space() -> None:
    spaces = [toy(), toy((3, 4, 5)), toy((4, 5, 6)), toy((6, 7))]
    assert backtrack(spaces, lambda space: space.smallest().depths[0] <= 3) == 1
    assert backtrack(spaces, lambda space: True) == 3
    with pytest.raises(ValueError, match="None of the 4 visited spaces"):
        backtrack(spaces, lambda space: False)


# S4: worked examples on two dimensions

# Largest networks of toy((2, 3, 4), (64, 96, 128)) and its neighbours, when a network costs 10 x depth + width: 168 and
#   (-1,-1) 126  (-1,0) 158  (-1,1) 190  (0,-1) 136  (0,1) 200  (1,-1) 146  (1,0) 178  (1,1) 210
S4_TOY = toy((2, 3, 4), (64, 96, 128))


def toy_price(arch: Arch) -> float:
    return 10 * arch.depths[0] + arch.embed_dims[0]


def measured(space: Space, **slopes: float) -> list[tuple[Pair, float, float]]:
    """One pair of every named dimension, from its lowest to its second choice, with this accuracy per raw unit."""
    base = {dim.name: dim.choices[0] for dim in space.dims}
    found = []
    for name, slope in slopes.items():
        low, high = space[name].choices[:2]
        delta = (high - low) * space[name].unit
        pair = Pair(name, space.build(base | {name: low}), space.build(base | {name: high}), delta)
        found.append((pair, 50.0, 50.0 + slope * delta))
    return found


def s4_toy(depth: float, embed: float, **config: Any) -> Decision:
    return s4_decide(S4_TOY, measured(S4_TOY, depth=depth, embed_dim=embed), s4(**config), toy_price)


def s4(**config: Any) -> SpaceSearch:
    return SpaceSearch(method="s4", **config)


@pytest.mark.parametrize(
    ("upper", "z", "legal", "gamma", "cosine"),
    [
        (170, (4, 3), 4, [1, -1], 1 / (5 * 2**0.5)),  # legal: (-1,-1), (-1,0), (0,-1), (1,-1)
        (180, (4, 3), 5, [1, 0], 4 / 5),
        (178, (4, 3), 5, [1, 0], 4 / 5),  # at the limit is within it, as in a budget (Eq. 4 has <)
        (math.inf, (4, 3), 8, [1, 1], 7 / (5 * 2**0.5)),  # unconstrained
        (math.inf, (-4, 3), 8, [-1, 1], 7 / (5 * 2**0.5)),
        (170, (-4, -3), 4, [-1, -1], 7 / (5 * 2**0.5)),
        (170, (1, 0), 4, [1, -1], 1 / 2**0.5),
    ],
)
def test_s4_worked_examples(upper: float, z: tuple[float, float], legal: int, gamma: list[int], cosine: float) -> None:
    decision = s4_toy(*z, upper=upper)
    data = decision.to_dict()
    assert data["moving"] == ["depth", "embed_dim"] and data["z"] == pytest.approx(z)
    assert (data["neighbours"], data["legal"], data["relaxed"]) == (8, legal, False)
    assert data["direction"] == gamma and data["cosine"] == pytest.approx(cosine)
    assert choices(decision, "depth") == tuple(v + gamma[0] for v in (2, 3, 4))
    assert choices(decision, "embed_dim") == tuple(v + 32 * gamma[1] for v in (64, 96, 128))
    assert data["largest_before"] == 168
    assert data["largest_after"] == 168 + 10 * gamma[0] + 32 * gamma[1]
    assert data["best"][0]["direction"] == gamma and len(data["best"]) == min(5, legal)


def test_s4_gradient_is_the_mean_over_pairs() -> None:
    """Depth: (2 points / 1 + 3 points / 2 + 1 point / 1) / 3 = 1.5 a block; width: (3.2 / 32 + 0 / 64) / 2 = 0.05."""
    low = toy_arch(S4_TOY, 2, 64)
    pairs = [
        (Pair("depth", low, toy_arch(S4_TOY, 3, 64), 1), 50.0, 52.0),
        (Pair("depth", low, toy_arch(S4_TOY, 4, 64), 2), 50.0, 53.0),
        (Pair("depth", low, toy_arch(S4_TOY, 3, 64), 1), 60.0, 61.0),
        (Pair("embed_dim", low, toy_arch(S4_TOY, 2, 96), 32), 50.0, 53.2),
        (Pair("embed_dim", low, toy_arch(S4_TOY, 2, 128), 64), 50.0, 50.0),
    ]
    data = s4_decide(S4_TOY, pairs, s4(), toy_price).to_dict()
    assert data["z"] == pytest.approx([1.5, 0.05])
    by_name = {row["name"]: row for row in data["dims"]}
    assert by_name["depth"]["count"] == 3 and by_name["depth"]["pairs"][1] == [2, 50.0, 53.0]
    steps = s4_decide(S4_TOY, pairs, s4(slope_unit="step"), toy_price).to_dict()
    assert steps["z"] == pytest.approx([1.5, 1.6])  # 0.05 x 32 channels a step


def test_s4_slope_unit_changes_the_direction() -> None:
    """Raw z = (4, 0.25): (1, 0) has 4 / 4.008 = 0.998. In steps z = (4, 8): (1, 1) has 12 / (1.414 x 8.944) = 0.949."""
    raw, step = s4_toy(4, 0.25), s4_toy(4, 0.25, slope_unit="step")
    assert raw.record["direction"] == [1, 0] and raw.record["cosine"] == pytest.approx(0.998, abs=1e-3)
    assert step.record["direction"] == [1, 1] and step.record["cosine"] == pytest.approx(0.949, abs=1e-3)


def test_s4_span_makes_spaces_touch_at_one_value() -> None:
    """Spans are 2 and 64. Down they end at 0, which is no network, so only (0, 1), (1, 0) and (1, 1) are legal."""
    decision = s4_toy(4, 3, step="span")
    assert decision.record["legal"] == 3 and decision.record["direction"] == [1, 1]
    assert choices(decision, "depth") == (4, 5, 6) and choices(decision, "embed_dim") == (128, 160, 192)
    assert decision.record["largest_after"] == 60 + 192


def test_s4_bounds_of_zero_are_illegal() -> None:
    """Widths 32, 64, 96 cannot go down by 32, nor depths 1, 2 by one: what is left of 8 is (0, 1), (1, 0), (1, 1)."""
    space = toy((1, 2), (32, 64, 96))
    decision = s4_decide(space, measured(space, depth=-1, embed_dim=-1), s4(), toy_price)
    assert decision.record["legal"] == 3 and not decision.moved
    assert decision.reason == "every legal direction loses accuracy"


def test_highest_possible_choice() -> None:
    """Depth at most 4. S4: the 3 directions that deepen are illegal. S3: 2, 3, 4 go up by one and lose 5."""
    dims = (dataclasses.replace(S4_TOY.dims[0], high=4), *S4_TOY.dims[1:])
    space = dataclasses.replace(S4_TOY, dims=dims)
    moved = s4_decide(space, measured(space, depth=4, embed_dim=3), s4(), toy_price)
    assert moved.record["legal"] == 5 and moved.record["direction"] == [0, 1]
    samples = [(toy_arch(space, d, 64), 20 - 0.1 * d) for d in (2, 3, 4)]
    shifted = s3_decide(space, samples, SpaceSearch())
    assert choices(shifted, "depth") == (3, 4) and rows(shifted)["depth"]["dropped"] == [5]


def test_s4_stops() -> None:
    # z = (3, 4): cosines -0.99, -0.6, -0.8 and -0.14 of the four legal directions
    negative = s4_toy(3, 4, upper=170)
    assert not negative.moved and negative.space == S4_TOY
    assert negative.reason == "every legal direction loses accuracy"
    assert [entry["cosine"] for entry in negative.record["best"]] == pytest.approx(
        [-1 / (5 * 2**0.5), -0.6, -0.8, -7 / (5 * 2**0.5)]
    )
    assert negative.record["direction"] == [0, 0] and negative.record["cosine"] is None
    zero = s4_toy(0, 0, upper=170)
    assert not zero.moved and zero.reason == "the gradient is zero" and zero.record["legal"] == 4
    shut = s4_toy(4, 3, lower=165, upper=170)
    assert not shut.moved and shut.reason == "no neighbour is legal" and not shut.record["relaxed"]
    orthogonal = s4_toy(0, 1, lower=150, upper=170)  # (-1, 0) alone is legal; a cosine of 0 is not negative
    assert orthogonal.moved and orthogonal.record["direction"] == [-1, 0]
    frozen = s4_decide(S4_TOY, [], s4(), toy_price, frozen={"depth", "embed_dim"})
    assert not frozen.moved and frozen.reason == "no dimension can move" and frozen.record["neighbours"] == 0


def test_s4_illegal_start() -> None:
    """Nothing is below 100, so what is smaller than 168 counts: (-1,-1), (-1,0), (0,-1), (1,-1)."""
    gain = s4_toy(4, 3, upper=100)
    assert (gain.record["legal"], gain.record["relaxed"], gain.record["direction"]) == (4, True, [1, -1])
    assert gain.record["largest_after"] == 146
    loss = s4_toy(3, 4, upper=100)  # all cosines negative, but above the limit is no place to stop
    assert loss.moved and loss.record["direction"] == [1, -1] and "to come within the limits" in loss.reason
    kept = s4_toy(3, 4, upper=100, keep_illegal=True)
    assert not kept.moved and "has to filter" in kept.reason
    # 130 is legal for (-1,-1) alone, so the others do not count although they are smaller
    near = s4_toy(4, 3, upper=130)
    assert (near.record["legal"], near.record["relaxed"], near.record["direction"]) == (1, False, [-1, -1])


def test_s4_lower_limit() -> None:
    only = s4_toy(-4, -3, lower=150, upper=170)
    assert only.record["legal"] == 1 and only.record["direction"] == [-1, 0]
    small = s4_toy(4, 3, lower=220)  # 210 at most: what is larger than 168 counts
    assert (small.record["legal"], small.record["relaxed"], small.record["direction"]) == (4, True, [1, 1])


def test_s4_ties() -> None:
    """At 32 x depth + width < 300 all but (1, 1) are legal, and z = (1, 1) has cosine 0.707 with (0, 1) and (1, 0).

    With z = (1, sqrt(2) - 1), (1, 0) and (1, 1) have the same cosine: the one with fewer moves wins.
    """

    def even_price(arch: Arch) -> float:
        return 32 * arch.depths[0] + arch.embed_dims[0]

    decision = s4_decide(S4_TOY, measured(S4_TOY, depth=1, embed_dim=1), s4(upper=300), even_price)
    assert decision.record["legal"] == 7 and decision.record["direction"] == [0, 1]
    assert [entry["direction"] for entry in decision.record["best"][:2]] == [[0, 1], [1, 0]]
    assert s4_toy(1, 2**0.5 - 1).record["direction"] == [1, 0]


def test_s4_space_size_cap() -> None:
    """3 widths x (2^2 + 2^3 + 2^4) = 84 networks, 168 with one more block. Unconstrained, (1, 1) would win."""
    space = toy((2, 3, 4), (64, 96, 128), mlp=(3, 4))
    pairs = measured(space, depth=4, embed_dim=3)
    free = s4_decide(space, pairs, s4(max_space_size=168), toy_price, frozen={"mlp_ratio"})
    assert free.record["direction"] == [1, 1] and free.record["size_after"] == 168
    capped = s4_decide(space, pairs, s4(max_space_size=167), toy_price, frozen={"mlp_ratio"})
    assert capped.record["direction"] == [0, 1] and capped.record["legal"] == 5
    assert capped.record["frozen"] == ["mlp_ratio"] and capped.record["size_after"] == 84
    over = s4_decide(space, pairs, s4(max_space_size=10), toy_price, frozen={"mlp_ratio"})
    assert over.record["direction"] == [0, 1]  # already above the cap: it may move, but not grow


# S4 on the papers' spaces


def vit_params(depth: float, embed: float, heads: float, ratio: float, classes: int = 200) -> float:
    """S4's Eq. 3 with its two slips put right: 967 for 1539, and the projection's bias d for 5d."""
    d, c, b = embed, heads, ratio
    block = 4 * d + 256 * c * d + 192 * c + d + 7680 + 2 * b * d * d + b * d + d
    return 967 * d + depth * block + 2 * d + classes * (d + 1)


def swin_params(embed: float, ratio: float, depth: float, classes: int = 200) -> float:
    """Swin with depths 2, 2, x, 2, heads 3, 6, 12, 24 and window 7."""
    c, r, x = embed, ratio, depth
    square = (4 + 2 * r) * (138 + 16 * x) * c * c + 168 * c * c
    return square + ((9 + r) * (22 + 4 * x) + 123) * c + 169 * (66 + 12 * x) + classes * (8 * c + 1)


def params(classes: int) -> Callable[[Arch], float]:
    return lambda arch: cost.params(arch, num_classes=classes)


# name, smallest bound, largest bound, step: the order of the space's dimensions
VIT: list[tuple[str, float, float, float]] = [
    ("depth", 12, 14, 1),
    ("embed_dim", 336, 384, 24),
    ("num_heads", 2, 14, 2),
    ("mlp_ratio", 3.5, 4, 0.5),
]
SWIN: list[tuple[str, float, float, float]] = [
    ("embed_dim", 72, 96, 12),
    ("mlp_ratio", 3, 4, 0.5),
    ("stage3.depth", 4, 8, 2),
]


def brute_force(
    dims: list[tuple[str, float, float, float]], size: Callable[..., float], z: list[float], upper: float
) -> tuple[int, bool, list[tuple[float, tuple[int, ...]]]]:
    """Legal directions with cosines, from bounds and formulas alone."""
    neighbours = {}
    for gamma in itertools.product((-1, 0, 1), repeat=len(dims)):
        if any(gamma) and all(low + g * step > 0 for (_, low, _, step), g in zip(dims, gamma, strict=True)):
            neighbours[gamma] = size(*(high + g * step for (_, _, high, step), g in zip(dims, gamma, strict=True)))
    start = size(*(high for _, _, high, _ in dims))
    legal = [gamma for gamma, m in neighbours.items() if m < upper]
    relaxed = not legal and start >= upper
    if relaxed:
        legal = [gamma for gamma, m in neighbours.items() if m < start]
    norm = math.sqrt(sum(v * v for v in z))
    cosines = [
        (sum(a * b for a, b in zip(gamma, z, strict=True)) / norm / math.sqrt(sum(map(abs, gamma))), gamma)
        for gamma in legal
    ]
    return len(legal), relaxed, cosines


def test_s4_vit_at_30m_starts_illegal() -> None:
    """The largest network of the initial space has 36.4M parameters with 200 classes. Heads cannot go below 2, and of
    the 53 other neighbours one is below 30M: (13, 360, 14, 3.5) with 29,167,004. Larger is better here, so the only
    legal direction has a negative cosine: -(1 + 2 + 4) / (5 x 1.732) = -0.808."""
    z = dict(zip(("depth", "embed_dim", "num_heads", "mlp_ratio"), (1, 2, 2, 4), strict=True))
    pairs = measured(S4_VIT, **z)
    decision = s4_decide(S4_VIT, pairs, s4(upper=30e6), params(200))
    data = json.loads(json.dumps(decision.to_dict(), allow_nan=False))
    assert (data["neighbours"], data["legal"], data["relaxed"]) == (80, 1, False)
    assert (data["largest_before"], data["largest_after"]) == (36_430_664, 29_167_004)
    assert data["moving"] == list(z) and data["direction"] == [-1, -1, 0, -1]
    assert data["cosine"] == pytest.approx(-7 / (5 * 3**0.5))
    assert choices(decision, "depth") == (11, 12, 13) and choices(decision, "embed_dim") == (312, 336, 360)
    assert choices(decision, "num_heads") == (2, 4, 6, 8, 10, 12, 14) and choices(decision, "mlp_ratio") == (3, 3.5)
    literal = s4_decide(S4_VIT, pairs, s4(upper=30e6, keep_illegal=True), params(200))
    assert not literal.moved and literal.space == S4_VIT
    # 25M: no neighbour is legal, and what is smaller than 36.4M counts
    relaxed = s4_decide(S4_VIT, pairs, s4(upper=25e6), params(200)).record
    count, is_relaxed, cosines = brute_force(VIT, vit_params, [1, 2, 2, 4], 25e6)
    assert is_relaxed and relaxed["relaxed"] and relaxed["legal"] == count
    assert tuple(relaxed["direction"]) == max(cosines)[1]
    # unconstrained (Table 6): z is nearest to (0, 1, 1, 1) with 8 / (5 x 1.732) = 0.924, before (1, 1, 1, 1) with 0.9
    free = s4_decide(S4_VIT, pairs, s4(), params(200)).record
    assert free["legal"] == 53 and free["direction"] == [0, 1, 1, 1]
    assert free["cosine"] == pytest.approx(8 / (5 * 3**0.5))


def test_s4_walk_stays_below_the_limit() -> None:
    """Three moves from the illegal start, accuracy growing with size: from the first move on the limit holds."""
    space, rng = S4_VIT, random.Random(0)
    price = params(200)
    for _ in range(3):
        pairs = [
            (p, 10 * math.log(price(p.low_arch)), 10 * math.log(price(p.high_arch))) for p in s4_pairs(space, 10, rng)
        ]
        decision = s4_decide(space, pairs, s4(upper=30e6), price)
        space = decision.space
        assert price(space.largest()) == decision.record["largest_after"] < 30e6
    assert space != S4_VIT


@settings(max_examples=25)
@given(
    family=st.sampled_from(["vit", "swin"]),
    z=st.lists(st.floats(-5, 5).map(lambda v: round(v, 2)), min_size=4, max_size=4),
    upper=st.floats(10e6, 50e6),
)
def test_s4_equals_brute_force(family: str, z: list[float], upper: float) -> None:
    dims = VIT if family == "vit" else SWIN
    space = S4_VIT if family == "vit" else S4_SWIN
    z = z[: len(dims)]
    if not any(z):
        z[0] = 1.0
    size: Callable[..., float] = vit_params if family == "vit" else swin_params
    pairs = measured(space, **{name: slope for (name, *_), slope in zip(dims, z, strict=True)})
    decision = s4_decide(space, pairs, s4(upper=upper), params(200))
    data = decision.to_dict()
    legal, relaxed, cosines = brute_force(dims, size, z, upper)
    assert (data["legal"], data["relaxed"]) == (legal, relaxed)
    before = size(*(high for _, _, high, _ in dims))
    if decision.moved:
        best = max(value for value, _ in cosines)
        ties = [gamma for value, gamma in cosines if value > best - 1e-11]
        assert tuple(data["direction"]) == min(ties, key=lambda gamma: (sum(map(abs, gamma)), gamma))
        after = size(*(decision.space[name].choices[-1] for name, *_ in dims))
        assert after == pytest.approx(data["largest_after"], abs=0.5)
        assert after < upper or after < before  # legal, or smaller than before
    else:
        assert not legal or (before < upper and all(value < 0 for value, _ in cosines))
    assert Decision.from_dict(json.loads(json.dumps(data, allow_nan=False))) == decision


def test_s4_glit_moves_only_to_networks_that_exist() -> None:
    """global_heads 0..3 of 3 heads cannot move; kernels 17, 31, 45 move by 14 both ways; expansions 1, 2, 4 (by 1),
    head widths 32, 64, 128 (by 32) and MLP ratios 2, 4, 6 (by 2) only up: 3 x 2 x 2 x 2 - 1 = 23 of 242."""
    slopes = {"global_heads": 1, "kernel_size": 1, "expansion": 1, "head_dim": 1, "mlp_ratio": 1}
    decision = s4_decide(GLIT_TINY, measured(GLIT_TINY, **slopes), s4(), params(10))
    assert (decision.record["neighbours"], decision.record["legal"]) == (242, 23)
    assert decision.record["direction"] == [0, 1, 1, 1, 1] and choices(decision, "kernel_size") == (31, 45, 59)
    # the largest network of GLiT is an extreme of the (global, local) split, here the all-local one
    local = {dim.name: dim.choices[-1] for dim in decision.space.dims} | {"global_heads": 0}
    assert decision.record["largest_after"] == cost.params(decision.space.build(local), num_classes=10)
    assert decision.record["largest_after"] > cost.params(decision.space.largest(), num_classes=10)


def test_s4_limit_on_macs_holds_for_every_network() -> None:
    """On a 4 x 4 map a window of 3 pads to 36 tokens and one of 4 to 16: the largest window is not the dearest."""
    space = s3_space("small", (1, 2), (16, 24), (3, 4), (1, 2), (2, 3), steps=(1, 8, 1, 1, 1), head_dim=8, num_stages=1)

    def macs(arch: Arch) -> float:
        return cost.macs(arch, img_size=16, num_classes=10)

    dearest = max(map(macs, space.enumerate()))
    assert dearest > macs(space.largest())
    config = s4(limit_metric="macs", upper=dearest * 1.1)
    pairs = measured(space, depth=1, embed_dim=1, window_size=1, qkv_heads=0.1, mlp_ratio=1)
    steps = s4_decide(space, pairs, s4(slope_unit="step"), macs).record  # a head is 8 channels: 0.8 points a step
    assert dict(zip(steps["moving"], steps["z"], strict=True))["qkv_heads"] == pytest.approx(0.8)
    decision = s4_decide(space, pairs, config, macs)
    assert decision.moved and decision.record["largest_before"] == dearest
    assert decision.record["largest_after"] == max(map(macs, decision.space.enumerate())) < config.upper


@pytest.mark.parametrize("space", [S4_SHUNTED, S4_CLIP])
def test_s4_families_priced_by_others(space: Space) -> None:
    """Any callable is a price: here the number of blocks times the width of the last stage."""
    slopes = {dim.name: 1.0 for dim in space.searched}
    decision = s4_decide(space, measured(space, **slopes), s4(), lambda arch: sum(arch.depths) * arch.embed_dims[-1])
    assert decision.record["direction"] == [1] * len(slopes)
    assert decision.space.contains(decision.space.largest())


def test_s4_refuses_too_many_dimensions() -> None:
    slopes = {dim.name: 1.0 for dim in S3_INITIAL.searched}
    with pytest.raises(ValueError, match="n = 19 dimensions.*use method 's3'"):
        s4_decide(S3_INITIAL, measured(S3_INITIAL, **slopes), s4(), params(10), frozen={"stage4.window_size"})


def test_s4_dimensions_without_pairs_or_choice_stay() -> None:
    space = dataclasses.replace(S4_TOY, dims=(Dim("depth", (2,), (1,), 1), *S4_TOY.dims[1:]))
    data = s4_decide(space, measured(space, embed_dim=1), s4(), toy_price).to_dict()
    assert data["moving"] == ["embed_dim"] and data["dims"][0]["note"] == "has one choice"
    data = s4_decide(S4_TOY, measured(S4_TOY, embed_dim=1), s4(), toy_price).to_dict()
    assert data["moving"] == ["embed_dim"] and data["dims"][0]["note"] == "has no pairs"
    broken = [(pair, math.nan, high) for pair, _, high in measured(S4_TOY, embed_dim=1)]
    with pytest.raises(ValueError, match="not all finite"):
        s4_decide(S4_TOY, broken, s4(), toy_price)


# S4: the pairs


def test_s4_pairs_differ_in_one_dimension() -> None:
    pairs = s4_pairs(S4_VIT, 40, random.Random(0))
    assert Counter(pair.dim for pair in pairs) == {"depth": 40, "embed_dim": 40, "num_heads": 40, "mlp_ratio": 40}
    for pair in pairs:
        low, high = tied(S4_VIT, pair.low_arch), tied(S4_VIT, pair.high_arch)
        assert {name for name in low if low[name] != high[name]} == {pair.dim}
        assert pair.delta == high[pair.dim] - low[pair.dim] > 0
        if pair.dim == "depth":
            shallow, deep = pair.low_arch.stages[0].blocks, pair.high_arch.stages[0].blocks
            assert deep[: len(shallow)] == shallow and len(deep) > len(shallow)
    assert {pair.delta for pair in pairs if pair.dim == "embed_dim"} == {24, 48}
    assert pairs == s4_pairs(S4_VIT, 40, random.Random(0)) != s4_pairs(S4_VIT, 40, random.Random(1))


def test_s4_pairs_leave_out_frozen_dimensions_and_use_the_papers_unit() -> None:
    pairs = s4_pairs(S3_INITIAL, 3, random.Random(0), frozen=equivalent_dims(S3_INITIAL, 224))
    assert "stage4.window_size" not in {pair.dim for pair in pairs} and len(pairs) == 3 * 19
    assert {pair.delta for pair in pairs if pair.dim == "stage2.qkv_heads"} <= {32, 64}


# The settings


def test_settings_that_contradict_each_other() -> None:
    with pytest.raises(ValueError, match="below upper"):
        SpaceSearch(lower=5, upper=5)
    with pytest.raises(ValueError, match="backtrack"):
        SpaceSearch(method="s4", backtrack=True)
    assert [config.x_in_steps for config in (SpaceSearch(), s4(), s4(slope_unit="step"))] == [True, False, True]


def test_a_limit_is_a_budget() -> None:
    """Both ends belong to it, in the old spelling by numbers too; several ways to write it are one config."""
    limits = SpaceSearch(lower=10, upper=20)
    assert [limits.allows(c) for c in (9.9, 10, 20, 20.1)] == [False, True, True, False]
    assert limits == SpaceSearch(limit="10 <= params <= 20") and limits.budget == Budget.parse("params=10..20")
    assert SpaceSearch().budget == Budget()
    macs = dataclasses.replace(limits, limit="macs<=1.3G")
    assert (macs.limit_metric, macs.lower, macs.upper, macs.limit) == ("macs", 0.0, 1.3e9, "")
    assert dataclasses.replace(macs, upper=1e9).budget == Budget.parse("macs<=1G")
    for limit in ("params<=5M, macs<=1G", "latency<=3ms", "params<=fast"):
        with pytest.raises(ValueError, match="limit") as error:
            SpaceSearch(limit=limit)
        assert "\n" not in str(error.value)


def test_records_of_earlier_releases_are_read() -> None:
    """What is called direction and step now was gamma and tau."""
    decision = s4_toy(1, 1)
    stored = decision.to_dict()
    old = {"gamma" if key == "direction" else key: value for key, value in stored.items()}
    old["dims"] = [{"tau" if key == "step" else key: value for key, value in row.items()} for row in stored["dims"]]
    assert old != stored and Decision.from_dict(old) == Decision.from_dict(stored) == decision
