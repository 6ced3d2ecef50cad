"""AutoFormer against the authors' rules written out (autoformer_reference), and what only this family has."""

from __future__ import annotations

import random
from functools import cache
from pathlib import Path
from typing import Any

import autoformer_reference as reference
import pytest
import timm
import torch
from safetensors import safe_open
from timm.layers import resample_abs_pos_embed
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode

import s3zoo.models  # noqa: F401
from s3zoo.arch import Arch, AutoFormerBlock, Stage
from s3zoo.files import sha256
from s3zoo.models import official
from s3zoo.models.autoformer import AutoFormer, checkpoint_filter_fn, subnet_state_dict

pytestmark = pytest.mark.usefixtures("one_thread")

SIZES = ("tiny", "small", "base")
SMALL_ARCH = Arch(
    "autoformer", (Stage(24, tuple(AutoFormerBlock(h, 8, r) for h, r in ((2, 2.0), (3, 1.5), (1, 3.0)))),), patch_size=4
)


def to_arch(subnet: reference.Subnet, head_dim: int = 64, patch_size: int = 16) -> Arch:
    blocks = (AutoFormerBlock(h, head_dim, r) for h, r in zip(subnet.heads, subnet.mlp_ratios, strict=True))
    return Arch("autoformer", (Stage(subnet.embed_dim, tuple(blocks)),), patch_size)


@cache
def supernet(size: str) -> dict[str, Tensor]:
    return reference.random_supernet(*reference.SUPERNETS[size][:3], seed=SIZES.index(size))


@pytest.fixture
def images() -> Tensor:
    return torch.randn(1, 3, 224, 224, generator=torch.Generator().manual_seed(1))


def small(img_size: Any = 32, seed: int = 0, **kwargs: Any) -> AutoFormer:
    torch.manual_seed(seed)
    model = AutoFormer(SMALL_ARCH, img_size=img_size, num_classes=5, **kwargs)
    for p in model.parameters():
        torch.nn.init.normal_(p, std=0.3)
    return model.eval()


# The published networks and other subnets


@pytest.mark.parametrize("size", SIZES)
@torch.no_grad()
def test_published_subnet(size: str, images: Tensor) -> None:
    """A supernet through timm's normal loading path gives the published subnet's logits."""
    overlay = {"state_dict": supernet(size)}
    model = timm.create_model(f"autoformer_{size}", pretrained=True, pretrained_cfg_overlay=overlay).eval()
    expected = reference.logits(supernet(size), reference.PUBLISHED[size], images)
    assert 0.3 < expected.std() < 3
    torch.testing.assert_close(model(images), expected, atol=1e-5, rtol=0)


@torch.no_grad()
def test_the_bias_rule_matters(images: Tensor) -> None:
    right = reference.logits(supernet("tiny"), reference.PUBLISHED["tiny"], images)
    wrong = reference.logits(supernet("tiny"), reference.PUBLISHED["tiny"], images, split_bias=True)
    assert (right - wrong).abs().max() > 0.1


@pytest.mark.parametrize(
    ("size", "seed"),
    [
        pytest.param(size, seed, marks=[pytest.mark.slow] if seed >= fast else [])
        for size, fast in (("tiny", 20), ("small", 10), ("base", 4))
        for seed in range(20)
    ],
)
@torch.no_grad()
def test_random_subnet(size: str, seed: int, images: Tensor) -> None:
    subnet = reference.random_subnet(reference.SUPERNETS[size], random.Random(f"{size} {seed}"))
    arch = to_arch(subnet)
    model = AutoFormer(arch, device="meta").eval()
    model.load_state_dict(subnet_state_dict(supernet(size), arch), assign=True)
    torch.testing.assert_close(model(images), reference.logits(supernet(size), subnet, images), atol=1e-5, rtol=0)


@pytest.mark.parametrize("grid", [(4, 4), (3, 7), (20, 2), (1, 18)])  # beyond 15 rows or columns, distances are clamped
@torch.no_grad()
def test_any_grid(grid: tuple[int, int]) -> None:
    """Non-square grids and clamped distances, in double precision; a small supernet, and a subnet of it."""
    size = (grid[0] * 4, grid[1] * 4)
    weights = reference.random_supernet(32, 4, 3, patches=grid[0] * grid[1], patch_size=4, classes=5, seed=3)
    weights = {name: tensor.double() for name, tensor in weights.items()}
    x = torch.randn(2, 3, *size, dtype=torch.float64)
    for subnet in (reference.Subnet(24, (2, 3), (2.0, 1.5)), reference.Subnet(32, (4, 4, 4), (4.0, 4.0, 4.0))):
        arch = to_arch(subnet, head_dim=8, patch_size=4)
        model = AutoFormer(arch, img_size=size, num_classes=5, device="meta").eval()
        model.load_state_dict(subnet_state_dict(weights, arch), assign=True)
        expected = reference.logits(weights, subnet, x, head_dim=8)
        torch.testing.assert_close(model(x), expected, atol=1e-12, rtol=0)


@pytest.mark.parametrize(
    ("change", "named"),
    [
        (dict(embed_dim=40), "embed_dim is 40"),
        (dict(depth=4), "number of blocks is 4"),
        (dict(num_heads=5), r"blocks\[0\].num_heads is 5"),
        (dict(head_dim=4), r"blocks\[0\].head_dim is 4"),
        (dict(mlp_ratio=8.0), r"blocks\[0\].mlp_ratio is 8.0"),
        (dict(patch_size=16), "patch size"),
    ],
)
def test_a_subnet_outside_the_supernet(change: dict[str, Any], named: str) -> None:
    genes = dict(embed_dim=24, depth=2, num_heads=2, head_dim=8, mlp_ratio=2.0, patch_size=4) | change
    block = AutoFormerBlock(genes["num_heads"], genes["head_dim"], genes["mlp_ratio"])
    arch = Arch("autoformer", (Stage(genes["embed_dim"], (block,) * genes["depth"]),), genes["patch_size"])
    weights = reference.random_supernet(32, 4, 3, patches=4, patch_size=4, classes=5)
    with pytest.raises(ValueError, match=named):
        subnet_state_dict(weights, arch)


# Cost and memory of the relative positions


@pytest.mark.parametrize("size", [(224, 224), (96, 160)])
def test_macs(size: tuple[int, int]) -> None:
    """Four products of tokens x 30 rows per block are what relative positions need; for speed, the class token, the
    grid's rows, again the class token, its columns and zeros up to a multiple of 8 are appended to each head."""
    model = timm.create_model("autoformer_tiny", img_size=size, num_classes=7, in_chans=2, device="meta")
    with FlopCounterMode(display=False) as counter:
        model(torch.empty(1, 2, *size, device="meta"))
    patches, d = size[0] * size[1] // 256, 192
    N, lines = patches + 1, {(224, 224): 32, (96, 160): 24}[size]
    expected = patches * 2 * 256 * d + 7 * d
    for heads, ratio in zip(*reference.PUBLISHED["tiny"][1:], strict=True):
        q = 64 * heads
        expected += 4 * N * d * q + 2 * N * N * (q + lines * heads) + 4 * 30 * N * q + 2 * N * d * int(d * ratio)
    assert counter.get_total_flops() == 2 * expected


def test_no_tensor_of_tokens_times_tokens_times_width() -> None:
    largest = 0

    class Watch(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            nonlocal largest
            out = func(*args, **(kwargs or {}))
            for tensor in out if isinstance(out, list | tuple) else [out]:
                if isinstance(tensor, Tensor):
                    largest = max(largest, tensor.untyped_storage().nbytes() // tensor.element_size())
            return out

    arch = Arch("autoformer", (Stage(64, (AutoFormerBlock(2, 64, 2.0),)),))
    model = AutoFormer(arch, img_size=320, num_classes=3)
    with Watch():
        model(torch.randn(1, 3, 320, 320)).sum().backward()
    N = 401
    assert 2 * N * N <= largest < 4 * N * N  # attention of two heads; the full tensors would be 64 * N * N


# Input sizes


@torch.no_grad()
def test_checkpoint_of_another_size() -> None:
    """The position embedding is resized, from the grid that the config names if that fits."""
    square, wide = small(32), small((16, 64))
    filtered = checkpoint_filter_fn(square.state_dict(), small(48))
    assert torch.equal(filtered["pos_embed"], resample_abs_pos_embed(square.pos_embed, [12, 12], [8, 8]))
    target = small(32)
    assert torch.equal(checkpoint_filter_fn(wide.state_dict(), target)["pos_embed"], wide.pos_embed)
    target.pretrained_cfg = {"input_size": (3, 16, 64)}  # type: ignore[assignment]
    filtered = checkpoint_filter_fn({"model": wide.state_dict()}, target)
    assert torch.equal(filtered["pos_embed"], resample_abs_pos_embed(wide.pos_embed, [8, 8], [4, 16]))
    with pytest.raises(ValueError, match="no square grid"):
        checkpoint_filter_fn(small((12, 16)).state_dict(), small(32))


# timm's surface, where AutoFormer has its own


@torch.no_grad()
def test_pooling() -> None:
    """`avg` leaves the class token out, `token` takes it alone."""
    model, x = small(), torch.randn(2, 3, 32, 32)
    tokens = model.forward_features(x)
    assert tokens.shape == (2, 65, 24)
    for pool, pooled in (("avg", tokens[:, 1:].mean(1)), ("token", tokens[:, 0]), ("max", tokens[:, 1:].amax(1))):
        model.reset_classifier(7, pool)
        torch.testing.assert_close(model(x), model.head(pooled))
        torch.testing.assert_close(model.forward_head(tokens, pre_logits=True), pooled)
    model.reset_classifier(0, "")
    assert torch.equal(model(x), tokens)


# Pretrained weights: supernets, fetched once and cut


@pytest.fixture
def release(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[str, Path]:
    """A file:// address of a supernet as published, and an empty cache."""
    monkeypatch.setattr(torch.hub, "_hub_dir", str(tmp_path / "hub"))
    path = tmp_path / "web" / "supernet-tiny.pth"
    path.parent.mkdir()
    reference.save_supernet(supernet("tiny"), path)
    return path.as_uri(), tmp_path / "hub" / "checkpoints"


@torch.no_grad()
def test_pretrained(release: tuple[str, Path], images: Tensor, monkeypatch: pytest.MonkeyPatch) -> None:
    url, cache_dir = release
    overlay = {"url": url}
    model = timm.create_model("autoformer_tiny", pretrained=True, pretrained_cfg_overlay=overlay).eval()
    expected = reference.logits(supernet("tiny"), reference.PUBLISHED["tiny"], images)
    torch.testing.assert_close(model(images), expected, atol=1e-5, rtol=0)
    (kept,) = cache_dir.glob("*.safetensors")
    with safe_open(kept, "pt") as file:
        assert sha256(cache_dir / "supernet-tiny.pth") in file.metadata()["s3zoo"]
    assert not list(cache_dir.glob("*.partial"))

    # The second time nothing is fetched or converted, whatever else is asked for.
    (cache_dir / "supernet-tiny.pth").unlink()
    monkeypatch.setattr(official, "read_checkpoint", None)
    monkeypatch.setattr(official.urllib.request, "urlopen", None)
    other = timm.create_model(
        "autoformer_tiny", True, pretrained_cfg_overlay=overlay, num_classes=10, in_chans=1, img_size=(128, 256)
    )
    patch = supernet("tiny")["patch_embed_super.proj.weight"][:192]
    torch.testing.assert_close(other.patch_embed.proj.weight, patch.sum(1, keepdim=True))
    assert other.head.weight.shape == (10, 192) and other.pos_embed.shape == (1, 129, 192)
    assert torch.equal(other.blocks[3].mlp.fc1.weight, model.blocks[3].mlp.fc1.weight)
    features = timm.create_model(
        "autoformer_tiny", pretrained=True, pretrained_cfg_overlay=overlay, features_only=True, out_indices=(3, 12)
    ).eval()
    theirs = model.forward_intermediates(images, indices=[3, 12], intermediates_only=True)
    assert all(torch.equal(a, b) for a, b in zip(features(images), theirs, strict=True))


@torch.no_grad()
def test_pretrained_with_another_subnet(release: tuple[str, Path], images: Tensor, tmp_path: Path) -> None:
    """`arch` cuts another subnet; `cache_dir` is honoured; a supernet put there by hand is used."""
    url, _ = release
    subnet = reference.random_subnet(reference.SUPERNETS["tiny"], random.Random(5))
    mine = tmp_path / "mine"
    mine.mkdir()
    reference.save_supernet(supernet("tiny"), mine / "supernet-tiny.pth")

    def load(arch: Arch) -> Any:
        overlay = {"url": url.replace("web", "gone")}
        return timm.create_model(
            "autoformer_tiny", pretrained=True, arch=arch, cache_dir=str(mine), pretrained_cfg_overlay=overlay
        )

    expected = reference.logits(supernet("tiny"), subnet, images)
    torch.testing.assert_close(load(to_arch(subnet)).eval()(images), expected, atol=1e-5, rtol=0)
    (kept,) = mine.glob("*.safetensors")
    content = kept.read_bytes()
    kept.write_bytes(content[:-1000])  # a copy that broke off is made again
    load(to_arch(subnet))
    assert kept.read_bytes() == content
    with pytest.raises(ValueError, match="embed_dim is 512, but this supernet holds at most 256"):
        load(to_arch(subnet._replace(embed_dim=512)))


def test_pretrained_without_network(release: tuple[str, Path]) -> None:
    url, cache_dir = release
    gone = url.replace("web", "gone")
    with pytest.raises(ValueError, match="Could not download") as caught:
        timm.create_model("autoformer_tiny", pretrained=True, pretrained_cfg_overlay={"url": gone})
    text = str(caught.value)
    assert gone in text and str(cache_dir / "supernet-tiny.pth") in text and "\n" not in text
    assert not list(cache_dir.iterdir())


def test_pretrained_gets_an_error_page(release: tuple[str, Path], tmp_path: Path) -> None:
    """It is refused and not kept, so that the next attempt can succeed."""
    url, cache_dir = release
    page = tmp_path / "page" / "supernet-tiny.pth"
    page.parent.mkdir()
    page.write_text("<!DOCTYPE html><html>Sign in</html>")
    with pytest.raises(ValueError, match="is a web page"):
        timm.create_model("autoformer_tiny", pretrained=True, pretrained_cfg_overlay={"url": page.as_uri()})
    assert not list(cache_dir.iterdir())
    timm.create_model("autoformer_tiny", pretrained=True, pretrained_cfg_overlay={"url": url})


def test_published_addresses() -> None:
    for size in SIZES:
        cfg = timm.get_pretrained_cfg(f"autoformer_{size}.ms_in1k")
        release = "https://github.com/silent-chen/AutoFormer-model-zoo/releases/download/v1.0"
        assert cfg.url == f"{release}/supernet-{size}.pth"
    assert timm.create_model("autoformer_small_384", device="meta").pos_embed.shape == (1, 577, 384)
