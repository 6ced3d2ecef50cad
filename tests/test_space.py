"""Search spaces: their sizes, and that sampling, mutation and crossover never leave them."""

import dataclasses
import itertools
import json
import math
import random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from s3zoo import cost
from s3zoo.arch import Arch, AutoFormerBlock, Block, GLiTBlock, LadderBlock, S3Block, ShuntedBlock, Stage
from s3zoo.search.budget import Pricer
from s3zoo.space import S4_SHUNTED, SPACES, Dim, Space, glit_details, glit_space, glit_split, s3_space

names = st.sampled_from(sorted(SPACES))
seeds = st.integers(0, 2**32)


def autoformer(depth: tuple[int, ...] = (1, 2, 3), family: str = "autoformer") -> Space:
    """24 + 96 + ... architectures: small enough to be counted, with genes per model and per block."""
    dims = (
        Dim("depth", depth, (1,), 1),
        Dim("embed_dim", (8, 16, 24), (1,), 8),
        Dim("num_heads", (1, 2), (1,), 1, per_block=True),
        Dim("mlp_ratio", (2, 4), (1,), 2, per_block=True),
        Dim("head_dim", (4,), (1,)),
    )
    return Space("small", family, dims)


def glit(depth: int) -> Space:
    return glit_space(
        "small", 6, 2, depth=depth, kernels=(3, 5), expansions=(1, 2), head_dims=(2, 4), mlp=(2, 4), groups=2
    )


# Sizes


@pytest.mark.parametrize(
    ("name", "size"),
    [
        ("autoformer_tiny", 1_056_964_608),
        ("autoformer_small", 77_103_263_459_313),
        ("autoformer_base", 6_245_364_340_204_353),
        ("s3_initial", 333_396**4),
        ("glit_tiny", 324**12),
        ("glit_small", 324**12),
        ("glit_base", 324**12),
        ("glit_tiny_conv2d", 324**12),
        ("glit_tiny_area", 324**12),
        ("s4_vit", 3 * (14**12 + 14**13 + 14**14)),
        ("s4_swin", 3 * 3 * 3),
        ("s4_shunted", 3 * 3 * 2),
        ("s4_clip", 3 * (14**3 + 14**4)),
    ],
)
def test_exact_cardinality(name: str, size: int) -> None:
    assert SPACES[name].size() == size


def test_every_named_space_has_its_size_tested() -> None:
    assert len(SPACES) == 13


@pytest.mark.parametrize(
    ("space", "size"),
    [
        (autoformer(), 3 * (4 + 16 + 64)),
        (autoformer((2,), "ladder"), 3 * 16),
        (s3_space("small", (1, 2), (8, 16), (2,), (1, 2), (2, 4), num_stages=2), (2 * (4 + 16)) ** 2),
        (glit(2), (3 * 2 * 2 * 2 * 2) ** 2),
        (glit_split(glit(3)), 3**3),
        (SPACES["s4_swin"], 27),
        (S4_SHUNTED, 18),
    ],
    ids=lambda value: value.name if isinstance(value, Space) else str(value),
)
def test_enumeration_is_the_space(space: Space, size: int) -> None:
    archs = list(space.enumerate())
    assert len(archs) == len(set(archs)) == space.size() == size
    assert all(space.contains(arch) for arch in archs)


def test_second_stage_of_glit_searches_what_matters() -> None:
    blocks = tuple(GLiTBlock(2, g, 4, 5, 2, 4) for g in (0, 1, 2, 2))
    space = glit_details(glit(4), Arch("glit", (Stage(6, blocks),)))
    # K and E in the local block, E and d_z in the mixed one, d_k and d_z in each global one; two choices each
    assert space.size() == 4 * 4 * 4**2 == len(set(space.enumerate()))
    assert {tuple(b.global_heads for b in a.stages[0].blocks) for a in space.enumerate()} == {(0, 1, 2, 2)}  # type: ignore[union-attr]


# Closure


@given(names, seeds)
def test_samples_are_in_the_space(name: str, seed: int) -> None:
    space = SPACES[name]
    arch = space.sample(random.Random(seed))
    assert space.contains(arch)
    assert arch == space.sample(random.Random(seed))
    assert Arch.from_json(arch.to_json()) == arch


@given(names, seeds, st.floats(0, 1), st.floats(0, 1), st.floats(0, 1))
def test_mutation_stays_in_the_space(name: str, seed: int, p_depth: float, p_embed: float, p_block: float) -> None:
    space, rng = SPACES[name], random.Random(seed)
    arch = space.sample(rng)
    assert space.contains(space.mutate(arch, rng, p_depth=p_depth, p_embed=p_embed, p_block=p_block))
    assert space.mutate(arch, rng, p_depth=0, p_embed=0, p_block=0) == arch


@given(names, seeds)
def test_crossover_stays_in_the_space_and_takes_from_the_parents(name: str, seed: int) -> None:
    space, rng = SPACES[name], random.Random(seed)
    first, second = space.sample(rng), space.sample(rng)
    child = space.crossover(first, second, rng)
    assert space.contains(child)
    assert space.crossover(first, first, rng) == first
    for a, b, c in zip(first.stages, second.stages, child.stages, strict=True):
        assert c.embed_dim in (a.embed_dim, b.embed_dim) and c.depth in (a.depth, b.depth)
        if space.num_stages > 1 and name.startswith("s3"):  # a stage's depth and width are one parent's
            assert (c.depth, c.embed_dim) in ((a.depth, a.embed_dim), (b.depth, b.embed_dim))
        if any(dim.per_block for dim in space.dims):
            for j, block in enumerate(c.blocks):
                assert block in {parent.blocks[j] for parent in (a, b) if j < parent.depth}


@given(names, seeds)
def test_values_and_build_are_inverse(name: str, seed: int) -> None:
    space, rng = SPACES[name], random.Random(seed)
    arch = space.sample(rng)
    assert space.build(space.values(arch)) == arch
    tied = {dim.name: rng.choice(dim.choices) for dim in space.dims}
    read = space.values(space.build(tied))
    assert {k: set(v) if isinstance(v, tuple) else {v} for k, v in read.items()} == {k: {v} for k, v in tied.items()}


def test_uniform_samples_reach_every_architecture_alike() -> None:
    space, rng = autoformer((2,)), random.Random(0)
    count = dict.fromkeys(space.enumerate(), 0)
    for _ in range(100 * len(count)):
        count[space.sample(rng)] += 1
    chi2 = sum((n - 100) ** 2 / 100 for n in count.values())
    assert chi2 < 2 * len(count)  # 47 degrees of freedom: 95 lies at p < 1e-4


# Foreign architectures


def test_foreign_architectures_are_refused() -> None:
    space = autoformer()
    good = Arch("autoformer", (Stage(8, (AutoFormerBlock(1, 4, 2), AutoFormerBlock(2, 4, 4))),))
    assert space.contains(good)
    wrong: list[tuple[Block, ...]] = [
        (AutoFormerBlock(3, 4, 2),),  # heads
        (AutoFormerBlock(1, 5, 2),),  # head_dim
        (AutoFormerBlock(1, 4, 3),),  # MLP ratio
        (AutoFormerBlock(1, 4, 2),) * 4,  # depth
    ]
    foreign = [Arch("autoformer", (Stage(8, blocks),)) for blocks in wrong]
    foreign += [
        Arch("autoformer", (Stage(32, good.stages[0].blocks),)),
        Arch("ladder", (Stage(8, (LadderBlock(1, 4, 2),)),)),
        Arch("s3", (Stage(8, (S3Block(7, 1, 4, 2),)),)),
        dataclasses.replace(good, patch_size=8),
    ]
    for arch in foreign:
        assert not space.contains(arch)
        with pytest.raises(ValueError, match=f"{arch.key} is not in space 'small'"):
            space.values(arch)
    swin = SPACES["s4_swin"].smallest()
    uneven = dataclasses.replace(swin, stages=(*swin.stages[:3], dataclasses.replace(swin.stages[3], embed_dim=672)))
    assert SPACES["s4_swin"].contains(swin) and not SPACES["s4_swin"].contains(uneven)  # 84 x 8 beside 72 x 4


# Extremes


def staged(family: str, num_stages: int, **choices: tuple[float, ...]) -> Space:
    """One value per gene and stage, the same choices in each stage (of heads also the same number in all of them)."""
    dims = []
    for gene, values in choices.items():
        if gene == "num_heads":
            dims.append(Dim(gene, values, (1,) * num_stages))
        else:
            dims += [Dim(gene, values, tuple(float(i == s) for i in range(num_stages))) for s in range(num_stages)]
    return Space("staged", family, tuple(dims), num_stages=num_stages)


GLIT_SPLIT_DIFFERS = glit_details(  # all-local, mixed and all-global blocks, with different choices each
    glit_space("g", 12, 2, depth=3, kernels=(3, 15, 31), expansions=(1, 2, 4), head_dims=(2, 6, 12), groups=2),
    glit_space("g", 12, 2, depth=3, groups=2).build(
        {"depth": 3, "embed_dim": 12, "num_heads": 2, "global_heads": (0, 1, 2), "kernel_size": 17, "expansion": 1}
        | {"head_dim": 6, "mlp_ratio": 2}
    ),
)
ENUMERATED = {
    "autoformer": (autoformer(), 32),
    "glit": (glit_space("g", 12, 2, depth=2, kernels=(3, 31), expansions=(1, 4), head_dims=(2, 12), groups=2), 32),
    "glit-split": (glit_split(glit_space("g", 12, 4, depth=2, groups=4)), 32),
    "glit-details": (GLIT_SPLIT_DIFFERS, 32),
    # a split free in all blocks beside kernels that differ: its best choice differs from block to block
    "glit-blocks": (
        Space(
            "g",
            "glit",
            (
                Dim("depth", (2,), (1,)),
                Dim("embed_dim", (12,), (1,)),
                Dim("num_heads", (2,), (1,)),
                Dim("global_heads", (0, 1, 2), (1,), per_block=True, low=0),
                Dim("kernel_size", (3,), (1,), per_block=True, blocks=(0,)),
                Dim("kernel_size", (301,), (1,), per_block=True, blocks=(1,)),
                Dim("expansion", (1,), (1,)),
                Dim("head_dim", (6,), (1,)),
                Dim("mlp_ratio", (1,), (1,)),
            ),
        ),
        32,
    ),
    "glit-heads": (  # more heads: narrower ones, hence fewer channels for the same global heads
        staged(
            "glit", 1, depth=(1, 2), embed_dim=(12, 24), num_heads=(2, 3, 4), global_heads=(1, 2), head_dim=(6,),
            kernel_size=(3, 31), expansion=(1, 4), mlp_ratio=(1,),
        ),
        32,
    ),
    "swin": (SPACES["s4_swin"], 224),
    # on a map of 14 a window of 13 needs padding to 26 and costs more than 14, which fits
    "s3-window": (s3_space("s", (1, 2), (8, 16), (5, 13, 14), (1, 2), (2,), num_stages=1), 56),
    "s3-windows": (s3_space("s", (1,), (8, 16), (3, 4, 7), (1, 2), (2, 3), num_stages=2), 52),
    "s3-staged": (
        staged("s3", 2, depth=(1, 2), embed_dim=(10, 12), window_size=(3, 4, 7), num_heads=(2, 3, 4), mlp_ratio=(2,)),
        (52, 40),
    ),
    "shunted": (
        staged("shunted", 4, depth=(1, 2), embed_dim=(8, 12), num_heads=(2, 4), mlp_ratio=(1.5,), head_dim=(2,)),
        32,
    ),
    "ladder": (autoformer((1, 2), "ladder"), 32),
}  # fmt: skip


@pytest.mark.parametrize("metric", ["params", "macs"])
@pytest.mark.parametrize("name", ENUMERATED)
def test_extent_is_that_of_all_architectures(name: str, metric: str) -> None:
    space, img_size = ENUMERATED[name]

    def price(arch: Arch) -> float:
        return getattr(cost, metric)(arch, img_size=img_size, num_classes=10)

    prices = [price(arch) for arch in space.enumerate()]
    assert space.extent(price) == (min(prices), max(prices))
    assert space.extent(price, measured=True) == (min(prices), max(prices))
    cheapest, dearest = space.cheapest(price), space.dearest(price)
    assert space.contains(cheapest) and space.contains(dearest)
    assert (price(cheapest), price(dearest)) == (min(prices), max(prices))


def test_extent_of_glit_tiny() -> None:
    """With the details in the middle all-local blocks are the dearest, mixed ones the cheapest."""
    assert glit_split(SPACES["glit_tiny"]).extent(cost.params) == (5_082_280, 6_761_128)


def test_extent_of_glit_tiny_by_hand() -> None:
    """Width 192 at 224 pixels, no head: the dearest block in parameters and the cheapest, over all 324."""
    dim, tokens = 192, 197

    def block(g: int, kernel: int, expansion: int, head: int, ratio: int) -> int:
        glob, loc = 64 * g, 64 * (3 - g)
        qkv, inner = g * head, loc * expansion
        attention = 4 * glob * qkv + 3 * qkv + glob if g else 0
        module = 3 * loc * inner + inner * (2 + kernel + 1 + 2) + loc if g < 3 else 0
        return 4 * dim + attention + module + 2 * dim * dim * ratio + dim * ratio + dim

    frame = (16 * 16 * 3 + 1) * dim + dim + tokens * dim + 2 * dim
    genes = itertools.product(range(4), (17, 31, 45), (1, 2, 4), (32, 64, 128), (2, 4, 6))
    every = [block(*values) for values in genes]
    found = SPACES["glit_tiny"].extent(lambda arch: cost.params(arch, num_classes=0))
    assert found == (frame + 12 * min(every), frame + 12 * max(every))


def test_extent_of_a_measured_price_tries_all_genes_of_blocks() -> None:
    """An MLP of ratio 2 that is slower than one of 4, as a measurement may say."""
    space = autoformer()

    def price(arch: Arch) -> float:
        return sum(stage.embed_dim + 100 / b.mlp_ratio for stage in arch.stages for b in stage.blocks)

    assert space.extent(price, measured=True) == (8 + 25, 3 * (24 + 50))


@given(names, seeds)
@settings(max_examples=50)
def test_extremes_cover_every_sample_axis_by_axis(name: str, seed: int) -> None:
    """Widths of the tensors of a block are at most those of one of the extremes."""

    def widths(block: Block) -> dict[str, float]:
        genes = {k: v for k, v in dataclasses.asdict(block).items() if isinstance(v, int | float)}
        if isinstance(block, GLiTBlock):
            genes["local_heads"] = block.local_heads
        return genes

    space = SPACES[name]
    arch = space.sample(random.Random(seed))
    covers = space.extremes()
    for i, stage in enumerate(arch.stages):
        assert stage.depth <= max(c.stages[i].depth for c in covers)
        assert stage.embed_dim <= max(c.stages[i].embed_dim for c in covers)
        for j, block in enumerate(stage.blocks):
            for gene, value in widths(block).items():
                assert value <= max(widths(c.stages[i].blocks[j])[gene] for c in covers)


# Moving


def dim(*choices: float, step: float = 1, **options: Any) -> Dim:
    return Dim("mlp_ratio", choices, (1,), step, **options)


@pytest.mark.parametrize(
    ("before", "delta", "after"),
    [
        (dim(2, 3, 4), 1, (3, 4, 5)),
        (dim(2, 3, 4), -2, (1, 2)),  # 0 is no network
        (dim(2, 3, 4), -3, (1,)),
        (dim(2, 3, 4), -4, (1,)),  # would be empty: the farthest step that leaves a choice
        (dim(2, 3, 4), -100, (1,)),
        (dim(3, 3.5, 4, step=0.5), -0.5, (2.5, 3, 3.5)),
        (dim(224, 256, 288, step=64), -256, (32,)),
        (dim(7, 14, step=7), -7, (7,)),
        (dim(7, 14, step=7), -14, (7,)),
        (dim(32, step=64), -64, (32,)),  # one choice, one step too many: it stays
        (dim(96, step=64), -128, (32,)),
        (dim(1, 2, high=3), 1, (2, 3)),
        (dim(1, 2, high=3), 2, (3,)),
        (dim(1, 2, high=3), 9, (3,)),
        (dim(0, 1, 2, low=0), -1, (0, 1)),
    ],
)
def test_choices_move_by_the_rules(before: Dim, delta: float, after: tuple[float, ...]) -> None:
    assert before.moved(delta).choices == after


@given(
    st.sets(st.integers(1, 40), min_size=1, max_size=5),
    st.integers(-60, 60).filter(bool),
    st.integers(1, 9),
    st.sampled_from([45, math.inf]),
)
def test_a_moved_dimension_is_possible_and_never_empty(
    choices: set[int], delta: int, step: int, high: float
) -> None:  # fmt: skip
    before = Dim("mlp_ratio", tuple(choices), (1,), step, high=high)
    after = before.moved(delta).choices
    assert after and all(0 < value <= high for value in after)
    possible = tuple(v + delta for v in sorted(choices) if 0 < v + delta <= high)
    assert after == possible or not possible
    assert all(isinstance(value, int) for value in after)


def test_a_space_moves_only_the_named_dimensions() -> None:
    space = SPACES["s3_initial"]
    moved = space.moved({"stage2.depth": 1, "stage3.qkv_heads": -2, "stage1.window_size": 0}, name="next")
    assert moved.name == "next"
    assert moved["stage2.depth"].choices == (3, 4, 5) and moved["stage3.qkv_heads"].choices == (5, 6, 7)
    changed = {d.name for d in space.dims if d != moved[d.name]}
    assert changed == {"stage2.depth", "stage3.qkv_heads"}
    with pytest.raises(ValueError, match="'stage9.depth' is no dimension of 's3_initial'; it has stage1.depth"):
        space.moved({"stage9.depth": 1})


@pytest.mark.parametrize(
    ("before", "choices", "step"),
    [
        (dim(336, 360, 384, step=24), (40, 48, 56), 8),  # S4's widths, small
        (dim(2, 4, 6, step=2), (1, 2, 3), 1),
        (dim(7, 8, 9, step=2), (3, 5), 4),
        (dim(3.5, 4, step=0.5), (1.5, 2), 0.5),
        (dim(12, 13, 14, step=1), (3.0, 3.5), 0.5),
        (dim(3, 4, step=0), (1, 3), 0),
        (dim(3, 4, step=1), (2,), 1),
        (dim(3, step=2), (1, 5, 9), 2),
    ],
)
def test_other_choices_take_the_step_along(before: Dim, choices: tuple[float, ...], step: float) -> None:
    """Or the smallest move of a small space would be one of the paper's size. Whole steps stay whole numbers."""
    after = before.replaced(choices)
    assert (after.choices, after.step, type(after.step)) == (choices, step, type(step))
    space = autoformer()
    assert space.replaced({"embed_dim": (4, 6, 8)})["embed_dim"].step == 2
    assert space.moved({"depth": -2})["depth"] == dataclasses.replace(space["depth"], choices=(1,))


# JSON and bad spaces


@pytest.mark.parametrize("space", [*SPACES.values(), glit_split(glit(3))], ids=lambda space: space.name)
def test_json_round_trip(space: Space) -> None:
    again = Space.from_dict(json.loads(json.dumps(space.to_dict(), allow_nan=False)))
    assert again == space and again.sample(random.Random(1)) == space.sample(random.Random(1))


@pytest.mark.parametrize("broken", [{"dims": []}, {}, {"dims": [{"gene": "depth"}]}, {"dims": 3}])
def test_broken_json_is_refused(broken: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"Space\.to_dict|has no dimension|must be"):
        Space.from_dict({"name": "x", "family": "s3", **broken})


def test_impossible_spaces_are_refused() -> None:
    dims = autoformer().dims
    with pytest.raises(ValueError, match="mlp_ratio of stage 1 is set by two"):
        Space("x", "autoformer", (*dims, dims[3]))
    with pytest.raises(ValueError, match="no dimension for mlp_ratio"):
        Space("x", "autoformer", dims[:3])
    with pytest.raises(ValueError, match="'kernel_size' does not fit"):
        Space("x", "autoformer", (*dims, Dim("kernel_size", (3,), (1,))))
    with pytest.raises(ValueError, match="no choices"):
        Dim("depth", (), (1,))
    with pytest.raises(ValueError, match="must lie in"):
        Dim("depth", (0, 1), (1,))
    with pytest.raises(ValueError, match="exactly one stage"):
        Dim("num_heads", (1,), (1, 1), per_block=True)


DRAWN = [*SPACES.values(), glit_details(SPACES["glit_tiny"], SPACES["glit_tiny"].sample(random.Random(3)))]


# Traces by hand


class Scripted(random.Random):
    """Answers from a list: a number for a coin, (index, of how many) for a choice."""

    def __init__(self, *answers: float | tuple[int, int]) -> None:
        super().__init__(0)
        self.answers = list(answers)

    def random(self) -> float:
        answer = self.answers.pop(0)
        return (answer[0] + 0.5) / answer[1] if isinstance(answer, tuple) else answer


ONE, TWO = 0.49, 0.5  # the coins of crossover: the first or the second parent


@pytest.mark.parametrize(("family", "block"), [("autoformer", AutoFormerBlock), ("ladder", LadderBlock)])
def test_trace_of_plain_transformers(family: str, block: Any) -> None:
    space = autoformer(family=family)
    arch = Arch(family, (Stage(8, (block(1, 4, 2), block(2, 4, 4))),))
    rng = Scripted(
        0.19, (1, 2),  # depth changes: of 1 and 3 the second
        0.2,  # width stays: 0.2 is not below 0.2
        0.39, (2, 4),  # first block: 2 heads, ratio 2
        0.4,  # second block stays
        (1, 4),  # the new third block: 1 head, ratio 4
    )  # fmt: skip
    mutated = space.mutate(arch, rng)
    assert mutated == Arch(family, (Stage(8, (block(2, 4, 2), block(2, 4, 4), block(1, 4, 4))),)) and not rng.answers
    # shallower: the last block goes, and nothing is asked about it
    rng = Scripted(0.0, (0, 2), 0.1, (1, 2), 0.9)
    assert space.mutate(arch, rng) == Arch(family, (Stage(24, (block(1, 4, 2),)),)) and not rng.answers

    other = Arch(family, (Stage(16, (block(2, 4, 2), block(1, 4, 4), block(2, 4, 2))),))
    rng = Scripted(
        TWO,  # depth 3 and width 16 of the second parent
        ONE,  # first block of the first parent
        TWO,  # second block of the second; the third exists in the second parent only
    )  # fmt: skip
    child = space.crossover(arch, other, rng)
    assert child == Arch(family, (Stage(16, (block(1, 4, 2), block(1, 4, 4), block(2, 4, 2))),)) and not rng.answers


def test_trace_of_s3() -> None:
    space = s3_space("small", (1, 2), (8, 16), (2, 4), (1, 2), (2, 4), num_stages=2, head_dim=4)
    a, b, c = S3Block(2, 1, 4, 2), S3Block(4, 1, 4, 4), S3Block(2, 2, 4, 4)
    arch = Arch("s3", (Stage(8, (a, b)), Stage(16, (c,))))
    rng = Scripted(
        0.5, 0.1, (0, 1),  # stage 1: depth stays, width becomes 16
        0.1, (0, 1), 0.5,  # stage 2: depth becomes 2, width stays
        0.4, 0.3, (7, 8),  # stage 1: first block stays; second: window 4, 2 heads, ratio 4
        0.4, (1, 8),  # stage 2: first block stays; the new one: window 2, 1 head, ratio 4
    )  # fmt: skip
    mutated = Arch("s3", (Stage(16, (a, S3Block(4, 2, 4, 4))), Stage(16, (c, S3Block(2, 1, 4, 4)))))
    assert space.mutate(arch, rng) == mutated and not rng.answers

    other = Arch("s3", (Stage(16, (c,)), Stage(8, (b, a))))
    rng = Scripted(
        ONE, TWO,  # stage 1 from the first parent (2 blocks, width 8), stage 2 from the second (2 blocks, width 8)
        TWO,  # stage 1: first block of the second parent; the second block exists in the first parent only
        ONE,  # stage 2: first block of the first parent; the second block exists in the second parent only
    )  # fmt: skip
    assert space.crossover(arch, other, rng) == Arch("s3", (Stage(8, (c, b)), Stage(8, (c, a)))) and not rng.answers


def test_trace_of_glit() -> None:
    space = glit(2)  # genes of a block in the order: global heads, kernel, expansion, head_dim, ratio
    a, b = GLiTBlock(2, 0, 2, 3, 1, 2), GLiTBlock(2, 2, 4, 5, 2, 4)
    genes = list(itertools.product((0, 1, 2), (3, 5), (1, 2), (2, 4), (2, 4)))
    # Depth and width have one choice and are not asked about.
    rng = Scripted(0.1, (genes.index((1, 5, 1, 4, 2)), len(genes)), 0.5)
    mutated = space.mutate(Arch("glit", (Stage(6, (a, b)),)), rng)
    assert mutated == Arch("glit", (Stage(6, (GLiTBlock(2, 1, 4, 5, 1, 2), b)),)) and not rng.answers
    rng = Scripted(ONE, TWO, ONE)  # the stage (no difference here), then a coin per block
    crossed = space.crossover(Arch("glit", (Stage(6, (a, b)),)), Arch("glit", (Stage(6, (b, a)),)), rng)
    assert crossed == Arch("glit", (Stage(6, (b, b)),)) and not rng.answers


def shunted(embed: int, ratio: float, x: int) -> Arch:
    stages = []
    for i, depth in enumerate((2, x, 3 * x, 1)):
        block = ShuntedBlock(2 * 2**i, embed // 2, ratio if i < 2 else ratio / 2)
        stages.append(Stage(embed * 2**i, (block,) * depth))
    return Arch("shunted", tuple(stages), stem_depth=1)


def test_trace_of_shunted() -> None:
    """No gene differs between blocks: numbers of the whole network, each with a coin of its own."""
    # width 36 -> 60, ratio stays, depths 3, 9 -> 4, 12; then 2 + 4 + 12 + 1 blocks, which have no genes
    rng = Scripted(0.1, (1, 2), 0.9, 0.15, (0, 1), *[0.4] * 19)
    assert S4_SHUNTED.mutate(shunted(36, 7, 3), rng) == shunted(60, 7, 4) and not rng.answers
    # four stages; then width, ratio, depths, other depths, heads; then 2 + 3 + 9 + 1 blocks that both have
    rng = Scripted(*[ONE] * 4, TWO, ONE, TWO, ONE, ONE, *[ONE] * 15)
    assert S4_SHUNTED.crossover(shunted(36, 7, 3), shunted(60, 8, 4), rng) == shunted(60, 7, 4) and not rng.answers


# Drafts


@pytest.mark.parametrize("space", DRAWN, ids=lambda space: space.name)
def test_drafts_are_architectures_in_numbers(space: Space) -> None:
    """Built from a draft is what the checked way builds, and back; what is drawn, mutated and crossed lies inside."""
    rng = random.Random(0)
    one, other = space.draw(rng), space.draw(rng)
    for draft in (one, other, space.mutated(one, rng), space.crossed(one, other, rng)):
        arch = space.built(draft)
        assert arch == Arch.from_json(arch.to_json()) and hash(arch) == hash(Arch.from_json(arch.to_json()))
        assert space.contains(arch) and space.draft(arch) == draft


@pytest.mark.parametrize("space", DRAWN, ids=lambda space: space.name)
@pytest.mark.parametrize("size", [32, 224])
def test_prices_of_drafts_are_those_of_the_networks(space: Space, size: int) -> None:
    price, rng = Pricer(size, num_classes=7), random.Random(1)
    quick = {metric: price.of_drafts(space, metric) for metric in ("params", "macs")}
    draft = space.draw(rng)
    for _ in range(20):
        assert {metric: of(draft) for metric, of in quick.items()} == price(space.built(draft))
        draft = space.mutated(draft, rng)


def test_a_block_that_cannot_be_is_refused_when_it_is_first_drawn() -> None:
    space = glit_space("g", 8, 2, depth=1, expansions=(0.1, 2))  # a tenth of 4 local channels is no channel
    with pytest.raises(ValueError, match=r"expansion is 0\.1, but must be at least 1 / "):
        for seed in range(20):
            space.sample(random.Random(seed))
