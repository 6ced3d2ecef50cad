"""Closed forms against built models (parameters) and torch's own counter (MACs), and against the published numbers."""

import random
from dataclasses import replace

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch.utils.flop_counter import FlopCounterMode

from s3zoo import cost
from s3zoo.arch import Arch, AutoFormerBlock, GLiTBlock, S3Block, ShuntedBlock, Stage
from s3zoo.models import MODELS
from s3zoo.space import SPACES

small = st.integers(1, 3)
ratio = st.sampled_from([0.5, 1, 1.7, 2, 3.5, 4])


@st.composite
def s3_archs(draw):
    blocks = st.builds(S3Block, st.integers(1, 9), small, st.sampled_from([4, 8, 12]), ratio)
    stage = st.builds(
        lambda dim, blocks: Stage(dim, tuple(blocks)), st.integers(3, 20), st.lists(blocks, min_size=1, max_size=3)
    )
    return Arch("s3", tuple(draw(st.lists(stage, min_size=1, max_size=4))), draw(st.integers(1, 5)))


@st.composite
def autoformer_archs(draw):
    blocks = st.builds(AutoFormerBlock, small, st.sampled_from([4, 8, 12]), ratio)
    stage = Stage(draw(st.integers(3, 20)), tuple(draw(st.lists(blocks, min_size=1, max_size=4))))
    return Arch("autoformer", (stage,), draw(st.sampled_from([4, 8])))


@st.composite
def glit_archs(draw):
    heads, locality = draw(st.integers(1, 4)), draw(st.sampled_from(["conv1d", "conv2d", "area"]))
    size = st.sampled_from([1, 2, 5, 40] if locality == "area" else [1, 3, 7])
    block = st.integers(0, heads).flatmap(
        lambda g: st.builds(
            GLiTBlock, st.just(heads), st.just(g), st.sampled_from([4, 8]), size, ratio, ratio, st.just(locality)
        )
    )
    blocks = [b for b in draw(st.lists(block, min_size=1, max_size=4))]
    return Arch("glit", (Stage(heads * draw(st.integers(2, 6)), tuple(blocks)),), draw(st.sampled_from([4, 8])))


@st.composite
def shunted_archs(draw):
    heads = small.map(lambda pairs: 2 * pairs)
    blocks = st.builds(ShuntedBlock, heads, st.sampled_from([1, 3, 8]), ratio)
    stage = st.builds(
        lambda dim, blocks: Stage(dim, tuple(blocks)), st.integers(2, 20), st.lists(blocks, min_size=1, max_size=2)
    )
    stages = draw(st.lists(stage, min_size=4, max_size=4))
    odd = tuple(ShuntedBlock(draw(small), b.head_dim, b.mlp_ratio) for b in stages[3].blocks)  # no halves there
    stages[3] = Stage(stages[3].embed_dim, odd)
    return Arch("shunted", tuple(stages), draw(st.sampled_from([2, 4, 6])), draw(st.integers(0, 2)))


def counted(arch: Arch, size: tuple[int, int], classes: int, chans: int) -> tuple[int, int]:
    """Parameters of the built model, and half of what torch counts in its forward pass."""
    model = MODELS[arch.family](arch, img_size=size, num_classes=classes, in_chans=chans, device="meta").eval()
    x = torch.empty(1, chans, *size, device="meta")
    if arch.family == "ladder":  # the frozen tower does not count
        x = model.tower_features(x)
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        model(x)
    macs = counter.get_total_flops() // 2
    if arch.family == "autoformer":  # nor do the lines of the grid that the code appends to every head to be faster
        rows, cols = (side // arch.patch_size for side in size)
        lines = -(-(2 + rows + cols) // 8) * 8
        macs -= 2 * (rows * cols + 1) ** 2 * lines * sum(block.num_heads for block in arch.stages[0].blocks)
    return sum(p.numel() for p in model.parameters()), macs


def agrees(arch: Arch, size: tuple[int, int], classes: int, chans: int) -> None:
    shape = {"img_size": size, "num_classes": classes, "in_chans": chans}
    assert (cost.params(arch, **shape), cost.macs(arch, **shape)) == counted(arch, size, classes, chans)


quick = settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])


@quick
@given(s3_archs(), st.tuples(st.integers(8, 70), st.integers(8, 70)), st.integers(1, 30), st.integers(1, 4))
def test_s3_cost_is_exact_at_any_size(arch, size, classes, chans):
    agrees(arch, size, classes, chans)


@quick
@given(autoformer_archs(), st.tuples(st.integers(1, 6), st.integers(1, 6)), st.integers(1, 30), st.integers(1, 4))
def test_autoformer_cost_is_exact(arch, grid, classes, chans):
    agrees(arch, (grid[0] * arch.patch_size, grid[1] * arch.patch_size), classes, chans)


@quick
@given(glit_archs(), st.tuples(st.integers(1, 6), st.integers(1, 6)), st.integers(1, 30), st.integers(1, 4))
def test_glit_cost_is_exact(arch, grid, classes, chans):
    agrees(arch, (grid[0] * arch.patch_size, grid[1] * arch.patch_size), classes, chans)


@settings(quick, max_examples=10)  # counting takes longer there
@given(shunted_archs(), st.tuples(st.integers(5, 70), st.integers(5, 70)), st.integers(1, 30), st.integers(1, 4))
def test_shunted_cost_is_exact_at_any_size(arch, size, classes, chans):
    agrees(arch, size, classes, chans)


@pytest.mark.parametrize("space", [s for s in SPACES.values() if s.family in MODELS], ids=lambda s: s.name)
def test_cost_is_exact_in_the_papers_spaces(space):
    agrees(space.sample(random.Random(1)), (224, 224), 1000, 3)


def test_no_classes_means_no_head():
    arch = SPACES["autoformer_tiny"].smallest()
    agrees(arch, (224, 224), 0, 3)


# Swin's and ViT's counts as written in the literature, by formulas that share nothing with cost.py


@pytest.mark.parametrize("x", [4, 6, 8])
@pytest.mark.parametrize("c", [72, 84, 96])
def test_swin_closed_form(c, x):
    """params = (4+2r)(138+16x)C² + 168C² + [(9+r)(22+4x)+123]C + 169(66+12x) + n(8C+1)"""
    space, r, n = SPACES["s4_swin"], 4, 200
    arch = space.build({d.name: d.choices[-1] for d in space.dims} | {"embed_dim": c, "stage3.depth": x})
    expected = (4 + 2 * r) * (138 + 16 * x) * c**2 + 168 * c**2 + ((9 + r) * (22 + 4 * x) + 123) * c
    assert cost.params(arch, num_classes=n) == expected + 169 * (66 + 12 * x) + n * (8 * c + 1)


def test_s4_swin_baseline():
    space = SPACES["s4_swin"]
    arch = space.build({d.name: d.choices[-1] for d in space.dims} | {"stage3.depth": 6})
    assert cost.params(arch, num_classes=200) == 27_673_154
    assert cost.params(arch, num_classes=397) == 27_824_647


@pytest.mark.parametrize(("depth", "ratio", "heads", "dim"), [(12, 3.5, 2, 336), (14, 4, 14, 384), (12, 4, 6, 384)])
def test_s4_vit_size_formula(depth, ratio, heads, dim):
    """S4 Eq. 3 with its two slips corrected: 967d for 1539d, and d for 5d."""
    arch = Arch("autoformer", (Stage(dim, (AutoFormerBlock(heads, 64, ratio),) * depth),))
    block = 4 * dim + 256 * heads * dim + 192 * heads + dim + 7680 + 2 * ratio * dim**2 + ratio * dim + dim
    assert cost.params(arch, num_classes=200) == 967 * dim + depth * block + 2 * dim + 200 * (dim + 1)


@pytest.mark.parametrize("x", [3, 4])
@pytest.mark.parametrize("m", [6, 7, 8])
@pytest.mark.parametrize("e", [36, 48, 60])
def test_shunted_closed_form(e, m, x):
    """Terms per layer as they stand in the official code, summed over depths (2, x, 3x, 1), widths e, 2e, 4e, 8e."""
    space, n = SPACES["s4_shunted"], 200
    values = {d.name: d.choices[-1] for d in space.dims} | {"embed_dim": e, "mlp_ratio": m, "depth": x}
    expected = 149 * 64 + 9 * 64**2 + 2 * 64 + 4 * 64 * e + 3 * e + n * (8 * e + 1)
    kernels = (8**2 + 4**2, 4**2 + 2**2, 2**2 + 1**2, 0)
    for i, (depth, ratio) in enumerate(zip((2, x, 3 * x, 1), (m, m, m / 2, m / 2), strict=True)):
        d = e * 2**i
        h = int(ratio * d)
        attention = (4 + kernels[i]) * d**2 + (20 if kernels[i] else 14) * d
        expected += depth * (attention + 2 * d * h + 11 * h + d + 4 * d) + 2 * d
        expected += (9 * d // 2 * d + 3 * d) if i else 0
    assert cost.params(space.build(values), num_classes=n) == expected


def test_s4_shunted_baseline():
    """Its width of 64 is no choice of the space."""
    space = SPACES["s4_shunted"].replaced({"embed_dim": (64,)})
    assert cost.params(space.largest(), num_classes=200) == 21_990_856
    assert cost.params(space.largest(), num_classes=397) == 22_091_917


def test_costs_refuse_what_no_model_takes():
    arch = SPACES["autoformer_tiny"].smallest()
    with pytest.raises(ValueError, match="multiple of 16"):
        cost.macs(arch, img_size=100)
    with pytest.raises(ValueError, match="in_chans 0"):
        cost.params(arch, in_chans=0)
    arch = SPACES["s4_shunted"].smallest()
    with pytest.raises(ValueError, match="sides of at least 3"):
        cost.macs(arch, img_size=(2, 64))
    with pytest.raises(ValueError, match="even patch size"):
        cost.params(replace(arch, patch_size=5))
    with pytest.raises(ValueError, match="num_heads is 3, but must be even in stage 1"):
        cost.params(replace(arch, stages=(Stage(6, (ShuntedBlock(3, 2, 1),)), *arch.stages[1:])))
