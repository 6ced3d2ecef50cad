"""Published AutoFormer supernets in a search: every subnet is the authors' network, and a run needs no training."""

from __future__ import annotations

import dataclasses
import json
import random
from functools import cache
from pathlib import Path

import autoformer_reference as reference
import numpy as np
import pytest
import timm
import torch
from PIL import Image
from test_search import search
from torch import Tensor

from s3zoo.arch import Arch
from s3zoo.families.autoformer import plain_space
from s3zoo.models import MODELS
from s3zoo.models.autoformer import subnet_state_dict
from s3zoo.search.command import main
from s3zoo.search.config import ArchSearch, SearchRun
from s3zoo.search.published import official_autoformer_supernet
from s3zoo.search.space_search import SpaceSearch
from s3zoo.space import AUTOFORMER_BASE, AUTOFORMER_SMALL, GLIT_TINY, Space
from s3zoo.training.config import Data, Train, load_config

pytestmark = pytest.mark.usefixtures("one_thread")

# Inside a supernet like the published ones in all but size: 128 wide, 4 heads of 32, columns that are never used.
SMALL = plain_space("small", (2, 3), (64, 96), (2, 3, 4), (2, 3.5), head_dim=32, patch_size=16)


@cache
def small_weights() -> dict[str, Tensor]:
    """128 wide, 4 heads, 3 blocks, for images of 32 x 32 and 4 classes."""
    return reference.random_supernet(128, 4, 3, patches=4, classes=4, seed=3)


def expected_logits(weights: dict[str, Tensor], arch: Arch, images: Tensor) -> Tensor:
    blocks = arch.stages[0].blocks
    subnet = reference.Subnet(
        arch.embed_dims[0], tuple(b.num_heads for b in blocks), tuple(b.mlp_ratio for b in blocks)
    )
    return reference.logits(weights, subnet, images, head_dim=blocks[0].head_dim)


@torch.no_grad()
def test_every_subnet_of_a_space() -> None:
    """All 504 of a small space, bit for bit what is cut from the checkpoint; some against the plain rules."""
    space = plain_space("all", (2, 3), (64, 96), (2, 3, 4), (2, 3.5), head_dim=32)
    net = official_autoformer_supernet(small_weights(), space)
    everything = list(space.enumerate())
    assert len(everything) == 2 * (6**2 + 6**3)
    for arch in everything:
        cut = subnet_state_dict(small_weights(), arch)
        found = dict(net.subnet(arch).named_parameters())
        assert cut.keys() == found.keys()
        assert all(torch.equal(found[name], value) for name, value in cut.items())
    images = torch.randn(2, 3, 32, 32)
    for arch in random.Random(0).sample(everything, 25):
        model = MODELS["autoformer"](arch, img_size=32, num_classes=4).eval()  # type: ignore[call-arg]
        model.load_state_dict(subnet_state_dict(small_weights(), arch))
        logits = net.subnet(arch).eval()(images)
        assert torch.equal(logits, model(images))
        torch.testing.assert_close(logits, expected_logits(small_weights(), arch, images), atol=1e-5, rtol=0)
    kept = net.state_dict()
    assert kept["patch_embed.proj.weight"].shape == (96, 3, 16, 16)  # columns that no network has are gone
    assert {n for n in kept if "qkv.bias" in n and n.startswith("blocks.0.")} == {
        f"blocks.0.attn.qkv.bias@{heads}" for heads in (2, 3, 4)
    }
    fewer = kept["blocks.0.attn.qkv.bias@2"]
    assert not torch.equal(kept["blocks.0.attn.qkv.bias@4"][:2], fewer)  # the reason why they are kept apart


@pytest.mark.slow
@pytest.mark.parametrize("space", [AUTOFORMER_SMALL, AUTOFORMER_BASE], ids=lambda space: space.name)
@torch.no_grad()
def test_the_larger_published_shapes(space: Space) -> None:
    """B with 8 heads, too, which its authors' config does not have."""
    shape = reference.SUPERNETS[space.name.removeprefix("autoformer_")]
    weights = reference.random_supernet(shape.embed_dim, shape.num_heads, shape.depth, seed=7)
    net = official_autoformer_supernet(weights, space)
    images = torch.randn(1, 3, 224, 224)
    for arch in (space.smallest(), space.largest(), space.sample(random.Random(2))):
        found = net.subnet(arch).eval()(images)
        torch.testing.assert_close(found, expected_logits(weights, arch, images), atol=1e-5, rtol=0)


@torch.no_grad()
def test_another_image_size_resizes_the_positions() -> None:
    net = official_autoformer_supernet(small_weights(), SMALL, img_size=48)
    arch = SMALL.sample(random.Random(0))
    assert net.subnet(arch).eval()(torch.randn(1, 3, 48, 48)).shape == (1, 4)
    small = official_autoformer_supernet(small_weights(), SMALL)
    for name, value in small.state_dict().items():
        assert torch.equal(net.state_dict()[name], value) != (name == "pos_embed")


def test_refusals(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="num_classes is 10, but the supernet was trained with 4"):
        official_autoformer_supernet(small_weights(), SMALL, num_classes=10)
    with pytest.raises(ValueError, match="family 'glit', but the supernet is of 'autoformer'"):
        official_autoformer_supernet(small_weights(), GLIT_TINY)
    with pytest.raises(ValueError, match="lacks 'head.weight', so it is no official AutoFormer supernet"):
        official_autoformer_supernet({k: v for k, v in small_weights().items() if k != "head.weight"}, SMALL)
    with pytest.raises(ValueError, match="no checkpoint file at"):
        official_autoformer_supernet(tmp_path / "nothing.pth", SMALL)
    for changes in (
        {"space": GLIT_TINY},
        {"space_search": SpaceSearch(method="s4")},
        {"supernet": Train(sharing="classical")},
    ):
        with pytest.raises(ValueError, match="official supernet needs an AutoFormer space"):
            SearchRun(**{"name": "a", "space": SMALL, "supernet_weights": "a.pth", **changes})


# A run


def images_of(folder: Path, each: int, rng: np.random.Generator) -> None:
    """Noise in class folders; the classes are the published supernet's and have no names here."""
    for label in "abcd":
        (folder / label).mkdir(parents=True)
        for i in range(each):
            pixels = rng.integers(0, 256, (32, 32, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(folder / label / f"{i}.png")


def test_a_search_in_a_published_supernet(tmp_path: Path) -> None:
    """Evolution for two budgets; the exported network is the authors', and is scored as they would score it."""
    rng = np.random.default_rng(0)
    images_of(tmp_path / "data" / "train", 20, rng)
    images_of(tmp_path / "data" / "val", 5, rng)
    reference.save_supernet(small_weights(), tmp_path / "supernet.pth")
    run = SearchRun(
        name="published",
        threads=1,
        space=SMALL,
        data=Data(
            name="", root=str(tmp_path / "data"), test_split="val", holdout=40, num_classes=4, img_size=32, crop_pct=1.0
        ),
        supernet_weights=str(tmp_path / "supernet.pth"),
        arch_search=ArchSearch(
            budgets=("params<=200K", "250K<=params<=350K"),
            population=10,
            generations=3,
            parents=4,
            crossover=5,
            mutation=5,
        ),
    )
    result = search(run, tmp_path / "run")
    place = tmp_path / "run" / "space0"
    assert not (place / "supernet").exists()  # nothing was trained
    sizes = [row["params"] for row in result["winners"]]
    assert sizes[0] <= 200e3 and 250e3 <= sizes[1] <= 350e3

    mean, std = (torch.tensor(v).view(1, 3, 1, 1) for v in (run.data.mean, run.data.std))
    files = sorted((tmp_path / "data" / "val").glob("*/*.png"))
    pixels = torch.stack([torch.from_numpy(np.array(Image.open(f))).permute(2, 0, 1) for f in files])
    images = (pixels / 255 - mean) / std
    for index, row in enumerate(result["winners"]):
        model = timm.create_model(f"local-dir:{tmp_path / 'run' / f'model-{index}'}", pretrained=True).eval()
        with torch.no_grad():
            found = model(images)
        logits = expected_logits(small_weights(), Arch.from_dict(row["arch"]), images)
        torch.testing.assert_close(found, logits, atol=1e-4, rtol=0)
        right = (logits.argmax(1) == torch.arange(4).repeat_interleave(5)).float().mean().item()
        assert row["test"]["top1"] == pytest.approx(100 * right)
        config = json.loads((tmp_path / "run" / f"model-{index}" / "config.json").read_text())
        assert config["s3zoo"]["provenance"]["supernet"]["file"] == "supernet.pth"

    # Resumed, it is the same run; with another file under the same name it is refused.
    (tmp_path / "run" / "result.json").unlink()
    assert search(run, tmp_path / "run") == result
    (tmp_path / "run" / "result.json").unlink()
    other = reference.random_supernet(128, 4, 3, patches=4, classes=4, seed=4)
    reference.save_supernet(other, tmp_path / "supernet.pth")
    with pytest.raises(ValueError, match="holds a run with another file"):
        search(run, tmp_path / "run")
    five = reference.random_supernet(128, 4, 3, patches=4, classes=5)
    reference.save_supernet(five, tmp_path / "five.pth")
    with pytest.raises(ValueError, match="num_classes is 4, but the supernet was trained with 5"):
        search(dataclasses.replace(run, supernet_weights=str(tmp_path / "five.pth")), tmp_path / "other")


@pytest.mark.parametrize("size", ["tiny", "small", "base"])
def test_configs(size: str, capsys: pytest.CaptureFixture[str]) -> None:
    run = load_config(f"autoformer_{size}_official", SearchRun, "search")
    shape = reference.SUPERNETS[size]
    largest = run.space.largest()
    assert largest.embed_dims[0] <= shape.embed_dim and largest.depths[0] == shape.depth
    assert max(run.space["num_heads"].choices) == shape.num_heads
    assert main([f"autoformer_{size}_official", "--dry-run"]) == 0
    assert f"the weights of supernet-{size}.pth, nothing is trained" in capsys.readouterr().out
