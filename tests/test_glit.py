"""GLiT against its published rules, written out here as plain tensor code on the official names and layouts."""

import copy
import math
import random
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import timm
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from s3zoo import artefact, cost
from s3zoo.arch import Arch, GLiTBlock, Stage
from s3zoo.families.glit import arch_from_codes
from s3zoo.models import glit
from s3zoo.models.glit import GLiT

# The released genome: attending thirds of the heads and the code of each block.
THIRDS = (3, 0, 1, 3, 0, 1, 3, 1, 0, 3, 0, 3)
TINY_CODES = (1, 4, 8, 4, 8, 8, 3, 6, 8, 4, 5, 8)


def tiny_arch() -> Arch:
    """GLiT-Tiny from the table of its genes: (kind, head width, kernel, expansion, MLP ratio)."""
    table = [
        (3, 32, 1, 1, 4), (0, 1, 31, 2, 4), (1, 64, 31, 4, 6), (3, 64, 1, 1, 4), (0, 1, 45, 4, 4), (1, 64, 31, 4, 6),
        (3, 64, 1, 1, 2), (1, 64, 31, 4, 2), (0, 1, 45, 4, 4), (3, 64, 1, 1, 4), (0, 1, 31, 4, 4), (3, 128, 1, 1, 6),
    ]  # fmt: skip
    return Arch("glit", (Stage(192, tuple(GLiTBlock(3, *genes) for genes in table)),))


def random_arch(seed: int) -> Arch:
    rng = random.Random(seed)
    num_heads = rng.choice([1, 2, 3, 4, 6])
    dim = num_heads * rng.choice([4, 8, 12])
    blocks = tuple(
        GLiTBlock(
            num_heads,
            rng.randint(0, num_heads),
            head_dim=rng.choice([2, 4, 5, 16]),
            kernel_size=rng.choice([1, 3, 5, 31, 45]),
            expansion=rng.choice([0.5, 1, 1.5, 2, 4]),
            mlp_ratio=rng.choice([0.5, 2, 3.3, 6]),
        )
        for _ in range(rng.randint(1, 5))
    )
    return Arch("glit", (Stage(dim, blocks),), patch_size=rng.choice([8, 16]))


# The oracle: official names and layouts, none of the code under test


def shapes(arch: Arch, grid: tuple[int, int], num_classes: int = 1000, in_chans: int = 3) -> dict[str, tuple[int, ...]]:
    """Names and shapes of an official checkpoint."""
    D, p = arch.stages[0].embed_dim, arch.patch_size
    out: dict[str, tuple[int, ...]] = {
        "cls_token": (1, 1, D),
        "pos_embed": (1, 1 + grid[0] * grid[1], D),
        "patch_embed.proj.weight": (D, in_chans, p, p),
        "patch_embed.proj.bias": (D,),
    }
    for i, b in enumerate(arch.stages[0].blocks):
        assert isinstance(b, GLiTBlock)
        k = f"blocks.{i}.0."
        group = D // b.num_heads
        C_g, C_l = group * b.global_heads, group * (b.num_heads - b.global_heads)
        out |= {k + "norm1.weight": (D,), k + "norm1.bias": (D,)}
        if C_g:
            a = b.global_heads * b.head_dim
            out |= {k + "attn.qkv.weight": (3 * a, C_g), k + "attn.qkv.bias": (3 * a,)}
            out |= {k + "attn.proj.weight": (C_g, a), k + "attn.proj.bias": (C_g,)}
        if C_l:
            inner = int(C_l * b.expansion)
            out |= {k + "attn.net.1.weight": (2 * inner, C_l, 1), k + "attn.net.1.bias": (2 * inner,)}
            out |= {k + "attn.net.3.conv.weight": (inner, 1, b.kernel_size), k + "attn.net.3.conv.bias": (inner,)}
            out |= {k + f"attn.net.4.{s}": (inner,) for s in ("weight", "bias", "running_mean", "running_var")}
            out |= {k + "attn.net.4.num_batches_tracked": ()}
            out |= {k + "attn.net.6.weight": (C_l, inner, 1), k + "attn.net.6.bias": (C_l,)}
        f = int(b.mlp_ratio * D)
        out |= {k + "norm2.weight": (D,), k + "norm2.bias": (D,)}
        out |= {k + "mlp.fc1.weight": (f, D), k + "mlp.fc1.bias": (f,)}
        out |= {k + "mlp.fc2.weight": (D, f), k + "mlp.fc2.bias": (D,)}
    return out | {"norm.weight": (D,), "norm.bias": (D,), "head.weight": (num_classes, D), "head.bias": (num_classes,)}


def random_state(arch: Arch, grid: tuple[int, int], seed: int = 0, **kwargs: Any) -> dict[str, Tensor]:
    """An official checkpoint with every tensor random, statistics included."""
    g = torch.Generator().manual_seed(seed)
    state = {}
    for name, shape in shapes(arch, grid, **kwargs).items():
        if name.endswith("num_batches_tracked"):
            state[name] = torch.randint(1, 1000, (), generator=g)
        elif name.endswith("running_var"):
            state[name] = torch.rand(shape, generator=g) + 0.5
        elif len(shape) == 1:
            norm = re.search(r"norm|net\.4\.weight", name) and name.endswith("weight")
            state[name] = 0.2 * torch.randn(shape, generator=g) + (1.0 if norm else 0.0)
        else:
            fan = math.prod(shape[1:]) if "token" not in name and "pos" not in name else 4
            state[name] = torch.randn(shape, generator=g) / math.sqrt(fan)
    return state


def layer_norm(x: Tensor, state: dict[str, Tensor], key: str) -> Tensor:
    centred = x - x.mean(-1, keepdim=True)
    normed = centred / (centred.square().mean(-1, keepdim=True) + 1e-6).sqrt()
    return normed * state[key + ".weight"] + state[key + ".bias"]


def attention(x: Tensor, s: dict[str, Tensor], k: str, heads: int, width: int) -> Tensor:
    B, N, _ = x.shape
    qkv = x @ s[k + "qkv.weight"].T + s[k + "qkv.bias"]
    q, key, v = (part.reshape(B, N, heads, width).transpose(1, 2) for part in qkv.chunk(3, dim=-1))
    logits = torch.einsum("bhid,bhjd->bhij", q, key) * width**-0.5
    weights = logits.exp() / logits.exp().sum(-1, keepdim=True)
    y = torch.einsum("bhij,bhjd->bihd", weights, v).reshape(B, N, heads * width)
    return y @ s[k + "proj.weight"].T + s[k + "proj.bias"]


def convolution(x: Tensor, s: dict[str, Tensor], k: str) -> Tensor:
    x = F.conv1d(x.transpose(1, 2), s[k + "1.weight"], s[k + "1.bias"])  # (B, 2 I, N)
    value, gate = x.chunk(2, dim=1)
    x = value / (1 + (-gate).exp())
    weight = s[k + "3.conv.weight"]
    inner, _, size = weight.shape
    taps = F.pad(x, (size // 2, size // 2)).unfold(2, size, 1)  # (B, I, N, K)
    x = (taps * weight[None]).sum(-1) + s[k + "3.conv.bias"][:, None]
    mean, var = s[k + "4.running_mean"][:, None], s[k + "4.running_var"][:, None]
    x = (x - mean) / (var + 1e-5).sqrt() * s[k + "4.weight"][:, None] + s[k + "4.bias"][:, None]
    x = x / (1 + (-x).exp())
    return F.conv1d(x, s[k + "6.weight"], s[k + "6.bias"]).transpose(1, 2)


def oracle(s: dict[str, Tensor], arch: Arch, x: Tensor) -> Tensor:
    """The logits, by the rules of the official code."""
    D = arch.stages[0].embed_dim
    x = F.conv2d(x, s["patch_embed.proj.weight"], s["patch_embed.proj.bias"], stride=arch.patch_size)
    x = x.reshape(x.shape[0], D, -1).transpose(1, 2)
    x = torch.cat([s["cls_token"].repeat(x.shape[0], 1, 1), x], dim=1) + s["pos_embed"]
    for i, b in enumerate(arch.stages[0].blocks):
        assert isinstance(b, GLiTBlock)
        k = f"blocks.{i}.0."
        y = layer_norm(x, s, k + "norm1")
        C_g = D // b.num_heads * b.global_heads
        parts = []
        if C_g:
            parts.append(attention(y[:, :, :C_g], s, k + "attn.", b.global_heads, b.head_dim))
        if C_g < D:
            parts.append(convolution(y[:, :, C_g:], s, k + "attn.net."))
        x = x + torch.cat(parts, dim=2)
        y = layer_norm(x, s, k + "norm2") @ s[k + "mlp.fc1.weight"].T + s[k + "mlp.fc1.bias"]
        y = y * 0.5 * (1 + torch.erf(y / math.sqrt(2)))
        x = x + y @ s[k + "mlp.fc2.weight"].T + s[k + "mlp.fc2.bias"]
    return layer_norm(x, s, "norm")[:, 0] @ s["head.weight"].T + s["head.bias"]


def load(name: str, state: dict[str, Any], **kwargs: Any) -> Any:
    """Through timm's own loading path."""
    cfg = dict(state_dict=state, **kwargs.pop("cfg", {}))
    return timm.create_model(name, pretrained=True, pretrained_cfg_overlay=cfg, **kwargs).eval()


# The published network


def test_tiny_is_the_released_genome() -> None:
    model: Any = timm.create_model("glit_tiny", device="meta")
    assert model.arch == tiny_arch()
    per_block = [sum(p.numel() for p in b.parameters()) for b in model.blocks]
    assert per_block == [
        370_848, 531_840, 676_288, 444_864, 777_600, 676_288, 297_024, 380_608, 777_600, 444_864, 766_848, 740_736
    ]  # fmt: skip
    assert sum(p.numel() for p in model.parameters()) == 7_264_456
    assert len(model.state_dict()) == len(shapes(tiny_arch(), (14, 14))) == 213
    assert {m.eps for m in model.modules() if isinstance(m, nn.LayerNorm)} == {1e-6}


def test_tiny_macs() -> None:
    """The official counter leaves out the gate's half of the first convolution: 197 times the sum of C_l^2 E."""
    official = cost.macs_paper(tiny_arch())
    assert cost.params(tiny_arch()) == 7_264_456 and round(official / 1e6, 1) == 1332.5
    assert cost.macs(tiny_arch()) - official == 197 * (192**2 * (2 + 4 + 4 + 4) + 3 * 128**2 * 4)


@pytest.mark.parametrize(
    ("name", "dim", "heads", "millions", "giga"),
    [("glit_small", 384, 6, "24.6", "4.4"), ("glit_base", 768, 12, "96.1", "17.0")],
)
def test_small_and_base_meet_the_budget_of_the_paper(name: str, dim: int, heads: int, millions: str, giga: str) -> None:
    model: Any = timm.create_model(name, device="meta")
    blocks = model.arch.stages[0].blocks
    assert model.embed_dim == dim and {b.num_heads for b in blocks} == {heads}
    assert [3 * b.global_heads // heads for b in blocks] == list(THIRDS)
    params, macs = sum(p.numel() for p in model.parameters()), cost.macs_paper(model.arch)
    for value, printed in ((params / 1e6, millions), (macs / 1e9, giga)):
        assert f"{value:.1f}" == printed == str(math.floor(value * 10) / 10)  # rounded or truncated


def test_codes() -> None:
    assert arch_from_codes(192, 3, TINY_CODES, THIRDS) == tiny_arch()
    arch = arch_from_codes(384, 6, (0, 8, 5), (3, 0, 2))
    assert arch.stages[0].blocks == (
        GLiTBlock(6, 6, 32, 1, 1.0, 2.0), GLiTBlock(6, 0, 1, 45, 4.0, 4.0), GLiTBlock(6, 4, 64, 31, 2.0, 6.0)
    )  # fmt: skip


# Against the oracle


def test_tiny_equals_the_published_rules() -> None:
    state = random_state(tiny_arch(), (14, 14))
    x = torch.randn(1, 3, 224, 224, generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        expected = oracle(state, tiny_arch(), x)
        got = load("glit_tiny", {"model": state})(x)
    assert expected.std() > 0.5
    assert (got - expected).abs().max() < 1e-5


@pytest.mark.parametrize("seed", range(12))
def test_random_genomes_equal_the_published_rules(seed: int) -> None:
    arch = random_arch(seed)
    grid = ((4, 4), (2, 5), (1, 3))[seed % 3]
    size = (grid[0] * arch.patch_size, grid[1] * arch.patch_size)
    state = random_state(arch, grid, seed, num_classes=7, in_chans=2)
    x = torch.randn(2, 2, *size, generator=torch.Generator().manual_seed(seed))
    model: Any = timm.create_model("glit", arch=arch.to_dict(), img_size=size, num_classes=7, in_chans=2).eval()
    model.load_state_dict(glit.checkpoint_filter_fn(state, model))
    assert sum(p.numel() for p in model.parameters()) == sum(
        math.prod(s) for n, s in shapes(arch, grid, 7, 2).items() if "running" not in n and "tracked" not in n
    )
    with torch.no_grad():
        expected = oracle(state, arch, x)
        assert (model(x) - expected).abs().max() < 1e-5


def test_conversion_loses_nothing() -> None:
    """Back from our layout by the inverse permutation, bit for bit and key for key."""
    arch, grid = Arch("glit", (Stage(24, (GLiTBlock(3, 2, 5, 3, 1.5, 2.0), GLiTBlock(3, 0, 8, 5, 2.0, 2.0))),)), (2, 2)
    state = random_state(arch, grid, num_classes=5)
    size = grid[0] * arch.patch_size
    model = load("glit", state, arch=arch, img_size=size, num_classes=5, cfg=dict(num_classes=5))
    back = {}
    inverse = {"expand": "1", "conv": "3.conv", "norm": "4", "proj": "6"}
    for name, value in model.state_dict().items():
        if ".attn.qkv." in name or ".local.expand." in name:
            value = value.transpose(0, 1)
        name = re.sub(r"\.local\.(\w+)\.", lambda m: f".attn.net.{inverse[m[1]]}.", name)
        name = re.sub(r"^blocks\.(\d+)\.", r"blocks.\1.0.", name)
        back[name] = value.reshape(state[name].shape)
    assert back.keys() == state.keys()
    assert all(torch.equal(back[n], v) and back[n].dtype == v.dtype for n, v in state.items())


# The corner layout


def test_a_smaller_local_branch_is_the_corner_of_a_larger_one() -> None:
    """Cutting each tensor of ours gives what cutting values, gates and kernel centre gives in the flat layout."""
    large = Arch("glit", (Stage(12, (GLiTBlock(3, 1, 4, 7, 4.0, 2.0),)),))
    state = random_state(large, (2, 2), num_classes=3)
    model = load("glit", state, arch=large, img_size=32, num_classes=3, cfg=dict(num_classes=3))
    local = model.blocks[0].local
    assert {n: tuple(p.shape) for n, p in local.named_parameters() if n != "norm.weight"} == {
        "expand.weight": (32, 2, 8), "expand.bias": (32, 2), "conv.weight": (32, 1, 7), "conv.bias": (32,),
        "norm.bias": (32,), "proj.weight": (8, 32), "proj.bias": (8,),
    }  # fmt: skip
    assert local.center_cropped == {"conv.weight": (2,)}

    dim, inner, size = 4, 6, 3  # 2 of 3 heads become 1; 32 become 6 inner channels; kernel 7 becomes 3
    small = glit.LocalConv1d(dim, GLiTBlock(1, 0, 1, size, inner / dim, 1.0)).eval()
    with torch.no_grad():
        for (name, p), (_, q) in zip(small.state_dict().items(), local.state_dict().items(), strict=True):
            offset = [(q.shape[a] - p.shape[a]) // 2 if (name, a) == ("conv.weight", 2) else 0 for a in range(p.ndim)]
            p.copy_(q[tuple(slice(o, o + n) for o, n in zip(offset, p.shape, strict=True))])
    k = "blocks.0.0.attn.net."
    cut = {n: v[:inner] for n, v in state.items() if n.startswith(k) and "tracked" not in n}
    rows = [*range(inner), *range(32, 32 + inner)]
    cut[k + "1.weight"], cut[k + "1.bias"] = state[k + "1.weight"][rows][:, :dim], state[k + "1.bias"][rows]
    cut[k + "3.conv.weight"] = state[k + "3.conv.weight"][:inner, :, 2:5]
    cut[k + "6.weight"], cut[k + "6.bias"] = state[k + "6.weight"][:dim, :inner], state[k + "6.bias"][:dim]
    x = torch.randn(2, 9, dim)
    with torch.no_grad():
        assert torch.allclose(small(x, 2, 4), convolution(x, cut, k), atol=1e-5)


def naive_attention(x: Tensor, local: Any, reach: Tensor) -> Tensor:
    """One head after the other; `reach[i, j]`: whether token i may look at token j."""
    y = torch.zeros_like(x)
    for h in range(local.qkv.weight.shape[0]):
        q, k, v = (x @ local.qkv.weight[h, t].T + local.qkv.bias[h, t] for t in range(3))
        logits = (q @ k.transpose(1, 2) / math.sqrt(q.shape[-1])).masked_fill(~reach, -math.inf)
        y = y + logits.softmax(-1) @ v @ local.proj.weight[:, h].T
    return y + local.proj.bias


@pytest.mark.parametrize("prefix", [0, 1])
@pytest.mark.parametrize("area", [1, 2, 3, 5, 12, 50])
def test_attention_in_areas(area: int, prefix: int) -> None:
    """Patches look at those of their run, the class token at all; 12 patches, also in runs that do not divide them."""
    torch.manual_seed(0)
    local = glit.LocalAttention(6, GLiTBlock(3, 1, 4, area, 1.5, 2.0, "area")).eval()  # two heads of int(3 * 1.5)
    assert local.qkv.weight.shape == (2, 3, 4, 6)
    with torch.no_grad():
        for p in local.parameters():
            p.copy_(torch.randn_like(p))
    run = torch.arange(12) // area
    reach = torch.zeros(prefix + 12, prefix + 12, dtype=torch.bool)
    reach[prefix:, prefix:] = run[:, None] == run
    reach[:prefix] = True
    x = torch.randn(2, prefix + 12, 6)
    with torch.no_grad():
        assert torch.allclose(local(x, 3, 4), naive_attention(x, local, reach), atol=1e-5)


def test_convolution_on_the_map_of_patches() -> None:
    torch.manual_seed(0)
    local = glit.LocalConv2d(4, GLiTBlock(1, 0, 1, 3, 1.5, 1.0, "conv2d")).eval()
    with torch.no_grad():
        for value in local.state_dict().values():
            if value.is_floating_point():
                value.copy_(torch.rand_like(value) + 0.1)
        x = torch.randn(2, 15, 4)
        pairs = torch.einsum("bnc,ogc->bnog", x, local.expand.weight) + local.expand.bias
        inner = (pairs[..., 0] * torch.sigmoid(pairs[..., 1])).reshape(2, 3, 5, 6)
        padded = F.pad(inner, (0, 0, 1, 1, 1, 1))
        summed = sum(
            padded[:, i : i + 3, j : j + 5] * local.conv.weight[:, 0, i, j] for i in range(3) for j in range(3)
        )
        norm: Any = local.norm
        y = (summed + local.conv.bias - norm.running_mean) / (norm.running_var + 1e-5).sqrt() * norm.weight + norm.bias
        expected = (y * torch.sigmoid(y)).reshape(2, 15, 6) @ local.proj.weight.T + local.proj.bias
        assert torch.allclose(local(x, 3, 5), expected, atol=1e-5)


def test_conv2d_pools_the_patches_and_has_no_class_token() -> None:
    """GLiT 4.3: "we remove the CLS token and add a global average pooling", also where all heads attend."""
    for heads in (1, 3):
        arch = Arch("glit", (Stage(12, (GLiTBlock(3, heads, 4, 3, 2.0, 2.0, "conv2d"),)),))
        model: Any = timm.create_model("glit", arch=arch, img_size=64, num_classes=5).eval()
        assert model.global_pool == "avg" and model.num_prefix_tokens == 0 and model.pos_embed.shape == (1, 16, 12)
        assert not any("cls_token" in name for name in model.state_dict())
        with torch.no_grad():
            features = model.forward_features(images(2))
            assert features.shape == (2, 16, 12)
            assert torch.allclose(model(images(2)), model.head(features.mean(1)), atol=1e-6)
        with pytest.raises(ValueError, match="global_pool is 'token', but must be one of 'avg', ''"):
            model.reset_classifier(3, "token")


def test_as_printed_is_swish_and_a_norm_before_the_gate(tmp_path: Path) -> None:
    """GLiT Eq. 3 and Fig. 3; the released code's network is another, and keeps its weights' names."""
    arch = Arch("glit", (Stage(12, (GLiTBlock(3, 1, 4, 3, 2.0, 2.0),)),))
    torch.manual_seed(0)
    model: Any = timm.create_model("glit", arch=arch, img_size=64, num_classes=5, as_printed=True)
    released: Any = timm.create_model("glit", arch=arch, img_size=64, num_classes=5)
    new = {name for name in model.state_dict() if name not in released.state_dict()}
    kinds = ("weight", "bias", "running_mean", "running_var", "num_batches_tracked")
    assert new == {f"blocks.0.local.expand.norms.{i}.{kind}" for i in range(2) for kind in kinds}
    assert model.blocks[0].local.expand.norms[0].num_features == 16  # 8 local channels, expanded
    for net, act in ((model, nn.SiLU), (released, nn.GELU)):
        assert type(net.blocks[0].mlp.act) is act and type(net.blocks[0].local.act) is nn.SiLU
    expand = model.blocks[0].local.expand
    with torch.no_grad():
        for value in expand.state_dict().values():
            if value.is_floating_point():
                value.copy_(torch.rand_like(value) + 0.1)
        x = torch.randn(2, 17, 8)
        pairs = torch.einsum("bnc,ogc->bnog", x, expand.weight) + expand.bias

        def normed(y: Tensor, norm: nn.BatchNorm1d) -> Tensor:
            mean, var = y.mean((0, 1)), y.var((0, 1), unbiased=False)
            return (y - mean) / (var + 1e-5).sqrt() * norm.weight + norm.bias

        expected = normed(pairs[..., 0], expand.norms[0]) * torch.sigmoid(normed(pairs[..., 1], expand.norms[1]))
        assert torch.allclose(expand.train()(x), expected, atol=1e-5)
    artefact.save_model(tmp_path, model.eval())
    back = timm.create_model(f"local-dir:{tmp_path}", pretrained=True).eval()
    with torch.no_grad():
        assert back.as_printed and torch.equal(back(images(2)), model(images(2)))


# Training


def mixed(**kwargs: Any) -> Any:
    """All three kinds of blocks, every tensor random."""
    blocks = (GLiTBlock(3, 3, 4, 3, 1.0, 2.0), GLiTBlock(3, 0, 8, 5, 2.0, 2.0), GLiTBlock(3, 1, 8, 31, 4.0, 1.5))
    arch = Arch("glit", (Stage(24, blocks),))
    model: Any = timm.create_model("glit", arch=arch, img_size=64, num_classes=6, **kwargs)
    model.load_state_dict(glit.checkpoint_filter_fn(random_state(arch, (4, 4), num_classes=6), model))
    return model


def images(batch: int = 2, seed: int = 0) -> Tensor:
    return torch.randn(batch, 3, 64, 64, generator=torch.Generator().manual_seed(seed))


def batch_norms(model: nn.Module) -> Iterator[nn.BatchNorm1d]:
    return (m for m in model.modules() if isinstance(m, nn.BatchNorm1d))


def test_checkpointing_changes_nothing_not_even_statistics() -> None:
    plain, saving = mixed(drop_path_rate=0.3).train(), mixed(drop_path_rate=0.3).train()
    saving.set_grad_checkpointing()
    for step in range(2):
        outputs = []
        for model in (plain, saving):
            torch.manual_seed(step)
            y = model(images(4, seed=step))
            y.square().sum().backward()
            outputs.append(y)
        assert torch.equal(*outputs)
    for (name, a), (_, b) in zip(plain.named_parameters(), saving.named_parameters(), strict=True):
        assert a.grad is not None and b.grad is not None and torch.equal(a.grad, b.grad), name
    for (name, a), (_, b) in zip(plain.named_buffers(), saving.named_buffers(), strict=True):
        assert torch.equal(a, b), name
    assert {m.momentum for m in batch_norms(saving)} == {0.1}


def test_checkpointing_compiles_and_records_statistics_once() -> None:
    plain, saving = mixed().train(), mixed().train()
    saving.set_grad_checkpointing()
    torch._dynamo.reset()
    x = images(2)
    compiled = torch.compile(saving, fullgraph=True, backend="aot_eager")(x)
    assert torch.allclose(compiled, plain(x), atol=1e-5)
    compiled.sum().backward()
    assert all(p.grad is not None for p in saving.parameters())
    for (name, a), (_, b) in zip(plain.named_buffers(), saving.named_buffers(), strict=True):
        assert torch.allclose(a, b, atol=1e-6), name


def test_initialisation() -> None:
    torch.manual_seed(0)
    arch = Arch("glit", (Stage(192, tiny_arch().stages[0].blocks[1:4]),))
    model = GLiT(arch, num_classes=100)
    for name, p in model.named_parameters():
        if name.endswith("norm.weight") or re.search(r"norm\d?\.weight", name):
            assert (p == 1).all(), name
        elif ".local." in name and "norm" not in name:  # torch's default of convolutions: U(-1, 1) / sqrt(fan in)
            part = name.split(".")[-2]
            inner = model.get_parameter(name.rsplit(".", 2)[0] + ".conv.bias").shape[0]
            channels = model.get_parameter(name.rsplit(".", 2)[0] + ".proj.bias").shape[0]
            bound = {"expand": channels, "conv": 31, "proj": inner}[part] ** -0.5
            assert p.abs().max() <= bound and (p.numel() < 1000 or p.abs().max() > 0.95 * bound), name
        elif name.endswith("bias") and "patch_embed" not in name:
            assert (p == 0).all(), name
        elif "patch_embed" not in name:
            assert 0.017 < p.std() < 0.023, name


# Sizes and pooling


def test_sizes() -> None:
    model = mixed().eval()
    x = images(1)
    wide = torch.randn(1, 3, 32, 128)
    dynamic = mixed(dynamic_img_size=True).eval()
    with torch.no_grad():
        assert torch.equal(dynamic(x), model(x))
        for shape in ((32, 128), (96, 48)):  # the first has as many patches as 64 x 64, in another grid
            other = copy.deepcopy(model)
            other.pos_embed.requires_grad_(False)
            other.set_input_size(shape)
            old = model.pos_embed[:, 1:].reshape(1, 4, 4, -1).permute(0, 3, 1, 2)
            new = F.interpolate(old, size=[s // 16 for s in shape], mode="bicubic", antialias=True)
            expected = torch.cat([model.pos_embed[:, :1], new.flatten(2).transpose(1, 2)], dim=1)
            assert torch.allclose(other.pos_embed, expected, atol=1e-6) and not other.pos_embed.requires_grad
            x = torch.randn(1, 3, *shape)
            assert torch.allclose(dynamic(x), other(x), atol=1e-5)
            maps = other.forward_intermediates(x, intermediates_only=True)
            assert maps[0].shape == (1, 24, shape[0] // 16, shape[1] // 16)
    for bad in (wide, torch.randn(1, 3, 64, 65), torch.randn(1, 3, 60, 64), torch.randn(1, 4, 64, 64), x[0]):
        with pytest.raises(ValueError) as error:
            model(bad)
        assert "\n" not in str(error.value) and str(list(bad.shape)[-1]) in str(error.value)
    for size in (100, (64, 40), 15):
        with pytest.raises(ValueError, match="multiple of the patch size 16.*dynamic_img_size=True"):
            model.set_input_size(size)


def test_pooling() -> None:
    model = mixed().eval()
    x = images(2)
    with torch.no_grad():
        features = model.forward_features(x)
        assert features.shape == (2, 17, 24)
        assert torch.equal(model.forward_head(features, pre_logits=True), features[:, 0])
        assert torch.equal(model(x), model.head(features[:, 0]))
        model = mixed(global_pool="avg").eval()
        assert torch.allclose(model(x), model.head(features[:, 1:].mean(1)), atol=1e-6)
        with_prefix = model.forward_intermediates(x, [2], return_prefix_tokens=True, norm=True, output_fmt="NLC")[1]
        assert torch.equal(torch.cat(with_prefix[0][::-1], dim=1), features)
    for pool in ("map", "max", 3):
        with pytest.raises(ValueError, match="global_pool"):
            GLiT(model.arch, global_pool=pool)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="global_pool"):
        model.reset_classifier(3, "median")


def test_pruned_model_says_what_it_is() -> None:
    model = mixed()
    model.prune_intermediate_layers([0, 1])
    assert model.arch.depths == (2,) == (len(model.blocks),)
