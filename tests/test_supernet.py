"""Views are slices of the bank: same outputs as extracted models bit for bit, same gradients as slicing by autograd."""

import random
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch.func import functional_call

from s3zoo.families.autoformer import plain_space
from s3zoo.models.layers import DropPath
from s3zoo.space import S4_SHUNTED, S4_SWIN, Dim, Space, glit_space, s3_space
from s3zoo.supernet import Supernet, recalibrate

pytestmark = pytest.mark.usefixtures("one_thread")

GLIT: dict[str, Any] = dict(depth=2, expansions=(1, 2), head_dims=(4,), mlp=(2, 3), patch_size=4)
SPACES = {
    "s3": s3_space(
        "s3", (1, 2), (12, 16), (2, 4), (1, 2), (2, 3), steps=(1, 4, 2, 1, 1), head_dim=8, num_stages=3, patch_size=2
    ),
    "autoformer": plain_space("autoformer", (2, 3), (16, 24), (1, 2), (2, 3), head_dim=8, patch_size=4),
    "glit": glit_space(
        "glit", 24, 3, depth=3, kernels=(3, 5), expansions=(1, 2), head_dims=(4, 8), mlp=(2, 3), patch_size=4
    ),
    "glit_conv2d": glit_space("glit_conv2d", 24, 3, kernels=(1, 3), locality="conv2d", **GLIT),
    "glit_area": glit_space("glit_area", 24, 3, kernels=(3, 8), locality="area", **GLIT),  # 16 patches
    # S4's bodies in small: heads are fixed, so that a smaller width means narrower heads (4, 5, 6 channels).
    "swin": replace(
        S4_SWIN.replaced({"embed_dim": (12, 15, 18), "mlp_ratio": (2, 3), "stage3.depth": (1, 2), "window_size": (3,)}),
        patch_size=2,
    ),
    "shunted": replace(
        S4_SHUNTED.replaced({"embed_dim": (8, 12, 16), "mlp_ratio": (2, 3), "depth": (1, 2)}),
        patch_size=2,
    ),
    "shunted_heads": Space(
        "shunted_heads",
        "shunted",
        (
            Dim("embed_dim", (6, 9), (1, 1, 2, 2)),
            Dim("num_heads", (2, 4), (1, 1, 1, 1)),
            Dim("head_dim", (3, 4), (1, 1, 1, 1)),
            Dim("mlp_ratio", (1, 1.5), (1, 1, 1, 1)),
            Dim("depth", (1, 2), (1, 1, 1, 1)),
        ),
        num_stages=4,
        patch_size=2,
    ),
}


def supernet(family: str, **options) -> Supernet:
    torch.manual_seed(0)
    net = Supernet(SPACES[family], img_size=16, num_classes=5, in_chans=1, **options)
    with torch.no_grad():  # biases, norms and tables too, so that every tensor matters
        net.flat.add_(torch.randn(net.flat.shape) * 0.1)
    return net


def images(seed: int = 0) -> torch.Tensor:
    return torch.randn(4, 1, 16, 16, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("sharing", ["entangled", "classical", "module"])
@pytest.mark.parametrize("family", SPACES)
def test_a_view_equals_the_extracted_model_bit_for_bit(family, sharing):
    net = supernet(family, sharing=sharing)
    rng = random.Random(1)
    space = net.space
    for arch in [space.largest(), space.smallest(), *(space.sample(rng) for _ in range(6))]:
        view = net.subnet(arch).eval()
        recalibrate(view, [images(1)])
        copy = net.extract(arch).eval()
        with torch.no_grad():
            assert torch.equal(view(images()), copy(images()))
        assert copy.arch == arch.effective(16)
        own = {p.untyped_storage().data_ptr() for p in copy.parameters()}
        assert net.flat.untyped_storage().data_ptr() not in own  # a copy, not a view


@pytest.mark.parametrize("family", SPACES)
def test_gradients_are_those_of_slicing_with_autograd(family):
    net = supernet(family)
    rng = random.Random(2)
    archs = [net.space.largest(), net.space.smallest(), net.space.sample(rng)]
    leaves = {name: w.detach().clone().requires_grad_() for name, w in net.bank.items()}
    total = 0.0
    for arch in archs:
        model = net.extract(arch).train()
        arch = arch.effective(16)
        located = net._located(net._names(model, arch), dict(model.named_parameters()))
        sliced = {name: leaves[bank_name][corner] for name, bank_name, corner in located}
        total = total + F.cross_entropy(functional_call(model, sliced, (images(),)), torch.arange(4))
    total.backward()

    net.gradient.zero_()
    for arch in archs:
        F.cross_entropy(net.subnet(arch).train()(images()), torch.arange(4)).backward()
    for name, leaf in leaves.items():
        expected = torch.zeros_like(leaf) if leaf.grad is None else leaf.grad
        torch.testing.assert_close(net.grads[name], expected, rtol=1e-5, atol=1e-7, msg=name)
        assert net.bank[name].grad is net.grads[name]


@pytest.mark.parametrize("family", SPACES)
def test_a_cached_view_sees_an_optimizer_step(family):
    net = supernet(family)
    arch = net.space.sample(random.Random(3))
    view = net.subnet(arch)
    optimizer = torch.optim.AdamW(net.bank.values(), lr=0.01)
    F.cross_entropy(view.train()(images()), torch.arange(4)).backward()
    before = view.eval()(images()).detach()
    optimizer.step()
    after = view.eval()(images()).detach()
    assert not torch.equal(before, after)
    recalibrate(view, [images(1)])
    assert torch.equal(view.eval()(images()), net.extract(arch).eval()(images()))


def test_views_are_cached_by_block_and_share_storage():
    net = supernet("s3")
    rng = random.Random(4)
    a = net.space.sample(rng)
    first, again = net.subnet(a), net.subnet(a)
    assert first is not again
    assert all(p is q for p, q in zip(first.parameters(), again.parameters(), strict=True))
    storage = net.flat.untyped_storage().data_ptr()
    assert all(p.untyped_storage().data_ptr() == storage for p in first.parameters())
    # A frame that was used for a deeper network is not changed by a shallower one.
    deep, shallow = (
        net.space.largest(),
        net.space.build({d.name: d.choices[-1] for d in net.space.dims} | {"stage1.depth": 1}),
    )
    deep_before = net.subnet(deep)
    count = len(list(deep_before.parameters()))
    net.subnet(shallow)
    assert len(list(deep_before.parameters())) == count


def test_the_corner_of_a_smaller_block_lies_inside_the_larger_ones():
    """AutoFormer Eq. 6, and the centre of the table for a smaller window."""
    net = supernet("s3")
    large, small = net.subnet(net.space.largest()), net.subnet(net.space.smallest())
    qkv = "stages.0.blocks.0.attn.qkv.weight"
    big, little = large.get_parameter(qkv), small.get_parameter(qkv)
    heads, _, width, dim = little.shape
    assert torch.equal(little, big[:heads, :, :width, :dim])
    assert little.shape != big.shape
    tables = [n for n, _ in small.named_parameters() if "table" in n and "stages.0.blocks.0" in n]
    assert len(tables) == 1
    big, little = large.get_parameter(tables[0]), small.get_parameter(tables[0])
    assert big.shape == (2, 7, 7) and little.shape == (1, 3, 3)
    assert torch.equal(little, big[:1, 2:5, 2:5])


@pytest.mark.parametrize(("family", "block"), [("swin", "stages.1.blocks.1"), ("shunted", "stages.1.blocks.0")])
def test_a_narrower_head_is_a_corner_of_every_head(family, block):
    """S4's Swin and Shunted: the first channels of each head, not the first channels of all heads together."""
    net = supernet(family)
    wide = {d.name: d.choices[-1] for d in net.space.dims}
    narrow = wide | {"embed_dim": net.space["embed_dim"].choices[0]}
    large, small = (dict(net.subnet(net.space.build(values)).named_parameters()) for values in (wide, narrow))
    genes = [net.space.build(values).stages[1].blocks[0] for values in (wide, narrow)]
    assert genes[0].num_heads == genes[1].num_heads and genes[0].head_dim > genes[1].head_dim
    if family == "swin":
        taken = {"attn.qkv.weight": (6, 3, 4, 24), "attn.qkv.bias": (6, 3, 4), "attn.proj.weight": (24, 6, 4)}
    else:
        taken = {"attn.q.weight": (4, 4, 16), "attn.q.bias": (4, 4), "attn.proj.weight": (16, 4, 4)}
        taken |= {"attn.coarse.kv.weight": (2, 2, 4, 16), "attn.fine.kv.bias": (2, 2, 4)}
        taken |= {"attn.fine.local_conv.weight": (2, 4, 1, 3, 3), "attn.coarse.sr.weight": (16, 16, 4, 4)}
    for name, shape in taken.items():
        part, whole = small[f"{block}.{name}"], large[f"{block}.{name}"]
        assert part.shape == shape and part.numel() < whole.numel(), name
        assert torch.equal(part, whole[tuple(slice(n) for n in shape)]), name


def test_fewer_heads_of_a_shunted_block_keep_their_branch():
    net = supernet("shunted_heads")
    many = {d.name: d.choices[-1] for d in net.space.dims}
    few = many | {"num_heads": 2}
    x = torch.randn(1, 6, 6, 9)
    parts = []
    for values in (many, few):
        attention = net.subnet(net.space.build(values)).get_submodule("stages.0.blocks.0.attn")
        seen = []
        hook = attention.proj.register_forward_pre_hook(lambda _, inputs, seen=seen: seen.append(inputs[0]))
        attention(x)
        hook.remove()
        parts.append(seen[0].unflatten(-1, (-1, 4)))  # (B, H, W, h, d)
    assert parts[0].shape[3] == 4 and parts[1].shape[3] == 2
    torch.testing.assert_close(parts[0][..., :2, :], parts[1])


def test_classical_sharing_keeps_candidates_apart():
    net = supernet("autoformer", sharing="classical")
    space = net.space
    base = {d.name: d.choices[0] for d in space.dims}
    one, other = space.build(base), space.build(base | {"mlp_ratio": 3})
    net.gradient.zero_()
    F.cross_entropy(net.subnet(one).train()(images()), torch.arange(4)).backward()
    used = {name for name, _ in net.used(one)}
    touched = {name for name, grad in net.grads.items() if grad.abs().sum() > 0}
    assert touched <= used
    blocks = {name for name, _ in net.used(other) if "blocks" in name}
    assert blocks and not blocks & used  # no block of one is a block of the other
    assert {n for n, _ in net.used(other)} & used  # but the frame of equal width is shared


def test_sharing_by_module_keeps_the_choices_of_a_module_apart():
    net = supernet("autoformer", sharing="module")
    base = {d.name: d.choices[0] for d in net.space.dims}
    one, other = net.space.build(base), net.space.build(base | {"mlp_ratio": 3})
    first, second = ({name for name, _ in net.used(arch) if "blocks" in name} for arch in (one, other))
    assert first and {name.split("@")[0] for name in first} == {name.split("@")[0] for name in second}
    apart = {name.split("@")[0].split(".")[2] for name in first ^ second}
    assert apart == {"mlp"}  # all of its tensors, the bias of its output too, and nothing else
    assert not any(".mlp." in name for name in first & second)
    for name, corner in net.used(one):  # no tensor is cut: candidates share whole tensors or nothing
        assert corner == tuple(slice(0, n) for n in net.bank[name].shape)


@pytest.mark.parametrize("family", SPACES)
def test_the_largest_network_drops_paths_as_the_static_one_does(family):
    net = supernet(family, drop_path_rate=0.3)
    arch = net.space.largest()
    static = net.model_type(arch.effective(16), **net.model_args, drop_path_rate=0.3)
    rates = [[m.drop_prob for m in model.modules() if isinstance(m, DropPath)] for model in (net.subnet(arch), static)]
    assert rates[0] == pytest.approx(rates[1]) and max(rates[0]) == pytest.approx(0.3)


def test_drop_path_rates_are_spaced_over_the_supernets_depth():
    net = supernet("autoformer", drop_path_rate=0.3)
    view = net.subnet(net.space.smallest())  # 2 of 3 blocks
    rates = [m.drop_prob for m in view.modules() if type(m).__name__ == "DropPath"]
    assert sorted(set(rates)) == pytest.approx([0.0, 0.15])  # not 0 and 0.3, as a network of its own would have


def test_recalibration_forgets_other_subnets():
    net = supernet("glit")
    arch = net.space.smallest()  # all local
    view = net.subnet(arch)
    view.train()(images(5) * 100)  # statistics of something else
    assert recalibrate(view, [images(1), images(2)]) == 3
    norm = next(m for m in view.modules() if isinstance(m, torch.nn.BatchNorm1d))
    seen = []
    hook = norm.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0]))
    with torch.no_grad():
        view.eval()(images(1)), view.eval()(images(2))
    hook.remove()
    expected = torch.stack([x.transpose(0, 1).flatten(1).mean(1) for x in seen]).mean(0)
    torch.testing.assert_close(norm.running_mean, expected)
    assert norm.momentum == 0.1


def test_warm_start_takes_the_overlap():
    old = supernet("s3")
    moved: Space = old.space.moved({"stage1.embed_dim": 4, "stage2.window_size": 2, "stage1.qkv_heads": 1})
    torch.manual_seed(9)
    new = Supernet(moved, img_size=16, num_classes=5, in_chans=1)
    before = {name: w.detach().clone() for name, w in new.bank.items()}
    assert new.warm_start(old.state_dict()) > 0
    qkv = "stages.0.blocks.0.attn.qkv.weight"
    inside = tuple(slice(0, n) for n in old.bank[qkv].shape)
    assert torch.equal(new.bank[qkv][inside], old.bank[qkv])
    assert torch.equal(new.bank[qkv][2:], before[qkv][2:])  # what the old space did not have stays


def test_weights_of_another_space_are_refused():
    net = supernet("s3")
    with pytest.raises(ValueError, match="another space"):
        net.load_state_dict(supernet("autoformer").state_dict())
    wider = Supernet(net.space.moved({"stage1.embed_dim": 4}), img_size=16, num_classes=5, in_chans=1)
    with pytest.raises(ValueError, match="has shape"):
        net.load_state_dict(wider.state_dict())
    with pytest.raises(ValueError, match="sharing"):
        supernet("s3", sharing="elastic")
