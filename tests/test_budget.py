"""Budgets: their text, what a space can cost, and the answer to one that nothing meets."""

import math
import random
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from s3zoo import cost
from s3zoo.arch import Arch, S3Block, Stage
from s3zoo.search.budget import Budget, Limit, Pricer, check_feasible
from s3zoo.space import AUTOFORMER_TINY, S4_SWIN, SPACES, Dim, Space

# Text


@pytest.mark.parametrize(
    ("text", "limits"),
    [
        ("params<=5M", {"params": (0, 5e6)}),
        ("params <= 5m", {"params": (0, 5e6)}),
        ("Params≤5.5M", {"params": (0, 5.5e6)}),
        ("5M>=params", {"params": (0, 5e6)}),
        ("params>=300K", {"params": (3e5, math.inf)}),
        ("1.5e6<=params", {"params": (1.5e6, math.inf)}),
        ("1G<=macs<=1.3G", {"macs": (1e9, 1.3e9)}),
        ("1.3G >= macs >= 1G", {"macs": (1e9, 1.3e9)}),
        ("params=4M..6M", {"params": (4e6, 6e6)}),
        ("params = 4M ..", {"params": (4e6, math.inf)}),
        ("macs=..900M", {"macs": (0, 9e8)}),
        ("latency<=20ms", {"latency": (0, 20)}),
        ("latency=1.5..2.5 ms", {"latency": (1.5, 2.5)}),
        ("params<=5M, 1G<=macs<=1.3G", {"params": (0, 5e6), "macs": (1e9, 1.3e9)}),
        ("params>=4M, params<=6M, params<=5M", {"params": (4e6, 5e6)}),
        ("params<=5867944", {"params": (0, 5867944)}),
        ("params<=5.867944M", {"params": (0, 5867944)}),
        ("", {}),
        ("no limit", {}),
    ],
)
def test_text_is_read(text: str, limits: dict[str, tuple[float, float]]) -> None:
    assert Budget.parse(text) == Budget({metric: Limit(*ends) for metric, ends in limits.items()})


@pytest.mark.parametrize(
    "text",
    [
        "params", "params<5M", "params=5M", "flops<=1G", "params<=", "<=5M", "params<=5M macs<=1G", "params<=5X",
        "params<=5Mi", "params<=-5M", "latency<=5M", "latency<=5s", "params<=5ms", "params<=5M,", "6M<=params<=4M",
        "params=6M..4M", "params<=0", "params<=nan", "params<=1e999", "1M<=params>=2M", "..", "params=..",
    ],
)  # fmt: skip
def test_other_text_is_refused_in_a_sentence(text: str) -> None:
    with pytest.raises(ValueError) as error:
        Budget.parse(text)
    assert str(error.value).endswith(".") and "\n" not in str(error.value) and len(str(error.value)) > 30


@pytest.mark.parametrize(
    ("budget", "text"),
    [
        (Budget({"macs": Limit(1e9, 1.3e9), "params": Limit(high=5e6)}), "params <= 5M, 1G <= macs <= 1.3G"),
        (Budget({"params": Limit(low=150_000)}), "150K <= params"),
        (Budget({"latency": Limit(0, 12.5)}), "latency <= 12.5 ms"),
        (Budget({"params": Limit(high=999)}), "params <= 999"),
        (Budget({"params": Limit()}), "no limit"),
        (Budget(), "no limit"),
    ],
)
def test_text_is_written(budget: Budget, text: str) -> None:
    assert str(budget) == text


@given(
    st.dictionaries(
        st.sampled_from(["params", "macs", "latency"]),
        st.tuples(st.floats(0, 1e12), st.just(math.inf) | st.floats(1e-3, 1e13)).filter(lambda x: x[0] <= x[1]),
    )
)
def test_what_is_written_is_read_back(limits: dict[str, tuple[float, float]]) -> None:
    budget = Budget({metric: Limit(*ends) for metric, ends in limits.items()})
    assert Budget.parse(str(budget)) == budget and hash(Budget.parse(str(budget))) == hash(budget)


def test_limits_include_their_ends() -> None:
    budget = Budget.parse("10<=params<=20, macs<=5")
    assert budget.allows({"params": 10, "macs": 5}) and budget.allows({"params": 20, "macs": 0})
    assert not budget.allows({"params": 9, "macs": 5}) and not budget.allows({"params": 20, "macs": 6})
    assert budget.excess({"params": 15, "macs": 5}) == 0
    assert budget.excess({"params": 5, "macs": 6}) == pytest.approx(0.5 + 0.2)
    with pytest.raises(ValueError, match="'memory', but can limit only params, macs, latency"):
        Budget({"memory": Limit(high=1)})
    with pytest.raises(AttributeError):
        budget.limits = {}  # type: ignore[misc]


# Prices


def test_prices_are_those_of_the_network_that_is_built() -> None:
    """A window larger than the feature map has no larger table: 14 on a map of 8 is 8."""
    arch = Arch("s3", (Stage(8, (S3Block(14, 2, 4, 2),)),))
    same = Arch("s3", (Stage(8, (S3Block(8, 2, 4, 2),)),))
    asked = []
    price = Pricer(32, num_classes=10, in_chans=1, latency=lambda a: float(len(asked.append(a) or asked)))  # type: ignore[func-returns-value]
    assert price(arch) == price(same) == price(arch)
    assert price(arch)["params"] == cost.params(same, img_size=32, num_classes=10, in_chans=1)
    assert price(arch)["macs"] == cost.macs(same, img_size=32, num_classes=10, in_chans=1)
    assert price(arch)["latency"] == 1 and asked == [same]  # measured once
    price(arch)["params"] = 0
    assert price(arch)["params"] > 0
    assert set(Pricer(32)(arch)) == {"params", "macs"}


def plain(**choices: tuple[float, ...]) -> Space:
    genes = {"depth": (1, 2), "embed_dim": (8, 16), "num_heads": (1, 3), "mlp_ratio": (2, 4), "head_dim": (4,)}
    genes |= choices  # type: ignore[arg-type]
    dims = [Dim(g, c, (1,), per_block=g in ("num_heads", "mlp_ratio")) for g, c in genes.items()]
    return Space("plain", "autoformer", tuple(dims))


# Feasibility


def refusal(space: Space, text: str, price: Callable[[Arch], dict[str, float]]) -> str:
    with pytest.raises(ValueError) as error:
        check_feasible(space, Budget.parse(text), price, random.Random(0))
    assert "\n" not in str(error.value) and str(error.value).count(". ") == 0 and str(error.value).endswith(".")
    return str(error.value)


def test_an_infeasible_limit_is_answered_with_the_ranges() -> None:
    price = Pricer(224)
    low = cost.params(AUTOFORMER_TINY.smallest())
    high = cost.params(AUTOFORMER_TINY.largest())
    assert (low, high) == (5_366_056, 10_517_272)
    said = refusal(AUTOFORMER_TINY, "params<=2M", price)
    assert "'autoformer_tiny' is within params <= 2M" in said
    assert "params from 5.367M to 10.51M and macs from 1.222G to 2.347G" in said  # rounded inwards
    assert "11M <= params" in refusal(AUTOFORMER_TINY, "params>=11M, macs<=2G", price)
    for text in ("params<=5.367M", "params>=10.51M"):  # what is printed as feasible is feasible
        assert check_feasible(AUTOFORMER_TINY, Budget.parse(text), price, random.Random(0))


def test_an_infeasible_combination_is_answered_too() -> None:
    said = refusal(AUTOFORMER_TINY, "params<=5.5M, macs>=2G", Pricer(224))
    assert "draws" in said and "the nearest has params" in said and "params from 5.367M to 10.51M" in said
    said = refusal(S4_SWIN, "params<=12M, macs>=4G", Pricer(224))
    assert "the whole space" in said and "the nearest has" in said


def test_a_limit_without_a_price_is_refused() -> None:
    assert "latency is not measured" in refusal(AUTOFORMER_TINY, "latency<=3ms", Pricer(224))


def test_latency_is_a_budget_like_any_other() -> None:
    price = Pricer(224, latency=lambda arch: 0.5 * arch.depths[0])
    said = refusal(AUTOFORMER_TINY, "latency<=5.9ms", price)
    assert "latency from 6 ms to 7 ms" in said
    feasible = check_feasible(AUTOFORMER_TINY, Budget.parse("latency<=6ms"), price, random.Random(0))
    rng = random.Random(1)
    drawn = [feasible.draw(rng) for _ in range(10)]
    assert all(arch is not None and arch.depths == (12,) for arch in drawn)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("autoformer_tiny", "params<=5.45M"),  # about one in 10^9 uniform draws
        ("autoformer_tiny", "params>=10.4M, macs>=2.3G"),
        ("autoformer_small", "21M<=params<=21.1M, macs<=4.55G"),
        ("glit_tiny", "params<=3M"),
        ("s3_initial", "params<=6M, macs<=5G"),
    ],
)
def test_narrow_budgets_are_drawn_from(name: str, text: str) -> None:
    space, budget, price = SPACES[name], Budget.parse(text), Pricer(224)
    feasible = check_feasible(space, budget, price, random.Random(0))
    first = [feasible.draw(random.Random(seed)) for seed in range(4)]
    assert first == [feasible.draw(random.Random(seed)) for seed in range(4)]
    found = [arch for arch in first if arch is not None]
    assert len(set(found)) >= 2
    assert all(space.contains(arch) and budget.allows(price(arch)) for arch in found)


def test_draws_are_uniform_where_the_budget_is_wide() -> None:
    space = plain(depth=(1,), embed_dim=(8,))
    price = Pricer(16, num_classes=0)
    dearest = max(price(arch)["params"] for arch in space.enumerate())
    feasible = check_feasible(space, Budget({"params": Limit(high=dearest - 1)}), price, random.Random(0))
    rng, count = random.Random(0), dict.fromkeys(space.enumerate(), 0)
    for _ in range(600):
        arch = feasible.draw(rng)
        assert arch is not None
        count[arch] += 1
    assert sorted(map(bool, count.values())) == [False, True, True, True]  # 4 architectures, one too dear
    assert all(150 < n < 250 for n in count.values() if n)


def test_what_is_looked_at_is_counted() -> None:
    space, price = plain(), Pricer(16, num_classes=0)
    median = sorted(price(arch)["params"] for arch in space.enumerate())[len(list(space.enumerate())) // 2]
    budget = Budget({"params": Limit(high=median)})
    feasible = check_feasible(space, budget, price, random.Random(0))
    checked = feasible.checked
    outcome = [feasible(arch) for arch in space.enumerate()]
    assert feasible.checked - checked == len(outcome) and not all(outcome)
    assert outcome == [price(arch)["params"] <= median for arch in space.enumerate()]


def test_no_limit_admits_everything() -> None:
    feasible = check_feasible(plain(), Budget(), Pricer(16), random.Random(0))
    assert all(map(feasible, plain().enumerate()))
