"""Shunted against its published rules, which shunted_reference.py writes out as plain tensor code."""

import math
import re
from dataclasses import replace
from typing import Any

import pytest
import timm
import torch
import torch.nn.functional as F
from shunted_reference import PUBLISHED, oracle, published_arch, random_arch, random_state, shapes
from torch import Tensor, nn

from s3zoo import cost
from s3zoo.arch import Arch, ShuntedBlock, Stage
from s3zoo.models import shunted
from s3zoo.models.shunted import Shunted
from s3zoo.space import S4_SHUNTED

pytestmark = pytest.mark.usefixtures("one_thread")


def load(name: str, state: dict[str, Any], **kwargs: Any) -> Any:
    """Through timm's own loading path."""
    cfg = dict(state_dict=state, **kwargs.pop("cfg", {}))
    return timm.create_model(name, pretrained=True, pretrained_cfg_overlay=cfg, **kwargs).eval()


def images(*shape: int, seed: int = 1) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


# The published networks


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_counts(name: str) -> None:
    _, _, params, entries, giga = PUBLISHED[name]
    model: Any = timm.create_model(name, device="meta")
    assert model.arch == published_arch(name)
    assert sum(p.numel() for p in model.parameters()) == params == cost.params(model.arch)
    assert len(model.state_dict()) == len(shapes(model.arch)) == entries
    assert round(cost.macs(model.arch) / 1e9, 3) == giga
    per_block = [sum(p.numel() for p in stage.blocks[0].parameters()) for stage in model.stages]
    assert per_block == [416_832, 669_824, 1_131_776, 3_177_984]


def test_generic_entrypoint_is_tiny_by_default() -> None:
    assert timm.create_model("shunted", device="meta").arch == published_arch("shunted_tiny")  # type: ignore[attr-defined]


@pytest.mark.parametrize(("m", "ratios"), [(6, (6, 6, 3, 3)), (7, (7, 7, 3.5, 3.5)), (8, (8, 8, 4, 4))])
def test_s4_space_builds_its_widths_on_a_stem_of_64(m: int, ratios: tuple[float, ...]) -> None:
    arch = S4_SHUNTED.build({d.name: d.choices[0] for d in S4_SHUNTED.dims} | {"mlp_ratio": m, "depth": 4})
    assert arch.depths == (2, 4, 12, 1) and arch.embed_dims == (36, 72, 144, 288)
    model: Any = timm.create_model("shunted", arch=arch, device="meta")
    assert model.stages[0].patch_embed.conv[-1].weight.shape == (36, 64, 2, 2)
    for stage, dim, heads, ratio in zip(model.stages, arch.embed_dims, (2, 4, 8, 16), ratios, strict=True):
        assert stage.blocks[0].attn.q.weight.shape == (heads, 18, dim)
        assert stage.blocks[0].mlp.fc1.weight.shape == (int(dim * ratio), dim)


# Against the oracle


@pytest.mark.parametrize("name", ["shunted_tiny", "shunted_small"])
@torch.no_grad()
def test_published_networks_equal_the_official_rules(name: str) -> None:
    arch = published_arch(name)
    state = random_state(arch)
    x = images(1, 3, 224, 224)
    expected, maps = oracle(state, arch, x)
    model = load(name, {"model": state})
    assert expected.std() > 0.5
    assert (model(x) - expected).abs().max() < 1e-5
    got = model.forward_intermediates(x, intermediates_only=True)
    assert [tuple(m.shape) for m in got] == [(1, 64 * 2**i, 56 // 2**i, 56 // 2**i) for i in range(4)]
    assert all((a - b).abs().max() < 1e-4 for a, b in zip(got, maps, strict=True))


@pytest.mark.parametrize("seed", range(10))
@torch.no_grad()
def test_random_genomes_equal_the_official_rules(seed: int) -> None:
    """In double precision, where a norm with the wrong eps shows."""
    arch = random_arch(seed)
    size = ((32, 32), (64, 48), (75, 50), (33, 97))[seed % 4]
    state = {k: v.double() for k, v in random_state(arch, seed, num_classes=7, in_chans=2).items()}
    x = images(2, 2, *size, seed=seed).double()
    args: dict[str, Any] = dict(num_classes=7, in_chans=2, dtype=torch.float64)
    model: Any = timm.create_model("shunted", arch=arch.to_dict(), img_size=size, **args).eval()
    model.load_state_dict(shunted.checkpoint_filter_fn(state, model))
    trained = {n: s for n, s in shapes(arch, 7, 2).items() if "running" not in n and "tracked" not in n}
    assert sum(p.numel() for p in model.parameters()) == sum(map(math.prod, trained.values()))
    expected, maps = oracle(state, arch, x)
    assert expected.std() > 0.1
    assert (model(x) - expected).abs().max() < 1e-10
    features = timm.create_model("shunted", arch=arch, features_only=True, **args).eval()
    features.load_state_dict({f"model.{k}": v for k, v in model.state_dict().items() if not k.startswith("head.")})
    assert all((a - b).abs().max() < 1e-10 for a, b in zip(features(x), maps, strict=True))


@torch.no_grad()
def test_sizes() -> None:
    """Odd sizes as the official code takes them, and maps smaller than the merging, where it fails."""
    model: Any = timm.create_model("shunted", arch=random_arch(3), num_classes=5).eval()
    for height, width in ((225, 225), (200, 304), (32, 31), (16, 100), (3, 3), (4, 64)):
        maps = model.forward_intermediates(torch.zeros(1, 3, height, width), intermediates_only=True)
        side = [(math.ceil(height / 2) // 2, math.ceil(width / 2) // 2)]
        for _ in range(3):
            side.append((math.ceil(side[-1][0] / 2), math.ceil(side[-1][1] / 2)))
        assert [tuple(m.shape[2:]) for m in maps] == side
        assert model(torch.zeros(1, 3, height, width)).isfinite().all()
    attention = model.stages[0].blocks[0].attn.coarse
    x = images(1, 5, 3, attention.sr.in_channels)
    for small, padded in zip(attention(x), attention(F.pad(x, (0, 0, 0, 5, 0, 3))), strict=True):
        assert torch.equal(small, padded)


@torch.no_grad()
def test_patch_size_sets_the_last_convolution_of_the_stem() -> None:
    model: Any = timm.create_model("shunted", arch=replace(random_arch(0), patch_size=2), num_classes=5).eval()
    maps = model.forward_intermediates(torch.zeros(1, 3, 32, 32), intermediates_only=True)
    assert [m.shape[2] for m in maps] == [16, 8, 4, 2] == [32 // f["reduction"] for f in model.feature_info]


# Checkpoints


def test_conversion_loses_nothing() -> None:
    """Back from our layout by the inverse permutation, bit for bit and key for key."""
    arch = random_arch(4)
    assert any(b.num_heads > 2 for stage in arch.stages[:3] for b in stage.blocks)
    state = random_state(arch, num_classes=5)
    model = load("shunted", state, arch=arch, num_classes=5, cfg=dict(num_classes=5))
    back = {}
    for name, value in model.state_dict().items():
        if re.match(r"stages\.[012]\..*attn\.q\.", name):  # coarse, fine, coarse, ... to halves
            value = torch.cat([value[0::2], value[1::2]])
        elif re.match(r"stages\.[012]\..*attn\.proj\.weight", name):
            value = torch.cat([value[:, 0::2], value[:, 1::2]], dim=1)
        name = re.sub(r"\.(coarse|fine)\.(\w+)\.", lambda m: f".{m[2]}{1 if m[1] == 'coarse' else 2}.", name)
        name = re.sub(r"^stages\.(\d)\.(\w+?)s?\.", lambda m: f"{m[2]}{int(m[1]) + 1}.", name)
        name = name.replace(".dwconv.", ".dwconv.dwconv.").replace("head.fc.", "head.")
        back[name] = value.reshape(state[name].shape)
    assert back.keys() == state.keys()
    assert all(torch.equal(back[n], v) and back[n].dtype == v.dtype for n, v in state.items())


# The rest of the interface


def test_impossible_architectures_are_one_sentence() -> None:
    arch = random_arch(0)
    odd = Stage(8, (ShuntedBlock(2, 4, 2.0), ShuntedBlock(3, 4, 2.0)))
    for wrong, named in (
        (replace(arch, stages=(arch.stages[0], odd, *arch.stages[2:])), r"stages\[1\]\.blocks\[1\]\.num_heads is 3"),
        (replace(arch, patch_size=5), "patch_size is 5"),
    ):
        with pytest.raises(ValueError, match=named) as error:
            Shunted(wrong)
        assert "even" in str(error.value) and "\n" not in str(error.value)
    with pytest.raises(ValueError, match="at least 3"):
        Shunted(arch, img_size=2, device="meta")
    with pytest.raises(ValueError, match="at least 3"):
        Shunted(arch)(torch.zeros(1, 3, 2, 64))


def test_initialisation_is_the_official_one() -> None:
    torch.manual_seed(0)
    model = Shunted(Arch("shunted", tuple(Stage(d, (ShuntedBlock(4, 16, 2.0),)) for d in (64, 64, 96, 96))))
    for name, p in model.named_parameters():
        owner: Any = model.get_submodule(name.rpartition(".")[0])
        if name.endswith("bias"):
            assert not p.any(), name
        elif "norm" in name or isinstance(owner, nn.BatchNorm2d):
            assert (p == 1).all(), name
        elif p.ndim >= 4 and "kv" not in name:  # convolutions: normal by fan out
            depthwise_3x3 = "local_conv" in name or "dwconv" in name
            fan_out = 9 if depthwise_3x3 else p.shape[0] * p.shape[2] * p.shape[3]
            assert p.std().item() == pytest.approx(math.sqrt(2 / fan_out), rel=0.15), name
        else:
            assert p.std().item() == pytest.approx(0.02, rel=0.1) and p.abs().max() <= 2.0, name


def test_pruning_keeps_the_norm_of_the_last_stage_that_is_left() -> None:
    torch.manual_seed(0)
    model: Any = timm.create_model("shunted", arch=random_arch(5)).eval()
    x = images(1, 3, 32, 32)
    with torch.no_grad():
        before = model.forward_intermediates(x, [1], intermediates_only=True)[0]
        model.prune_intermediate_layers([1], prune_norm=True)
        assert torch.equal(model.forward_intermediates(x, [1], intermediates_only=True)[0], before)
    assert len(model.stages) == 2
