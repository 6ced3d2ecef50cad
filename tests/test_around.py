"""A space around a network: it is in it, in the middle of every dimension, and its size is the limit."""

import json
import random
from pathlib import Path

import pytest
import timm

from s3zoo import cli, cost
from s3zoo.arch import Arch, S3Block, Stage
from s3zoo.models.loading import BUNDLED
from s3zoo.search.around import around, network, space_around
from s3zoo.search.config import SearchRun
from s3zoo.training.config import load_config

pytestmark = pytest.mark.usefixtures("one_thread")

NAMES = [
    "vit_tiny_patch16_224", "deit_small_patch16_224", "swin_tiny_patch4_window7_224", "s3_tiny", "shunted_tiny",
    "autoformer_small", "glit_tiny", "glit_small",
    *sorted(folder.name for folder in BUNDLED.glob("*.*")),  # from which a search may begin without being asked to
]  # fmt: skip


@pytest.mark.parametrize("name", NAMES)
def test_the_network_lies_in_the_middle_of_its_space(name: str) -> None:
    arch, side = network(name)
    space = space_around(arch, "mine")
    values = space.values(arch)
    for dim in space.dims:
        if len(dim.choices) == 3 and not dim.per_block:
            assert values[dim.name] == dim.choices[1], dim.name
    model = timm.create_model(name, device="meta")
    channels, *size = model.pretrained_cfg["input_size"]
    assert [side, side] == size and len(space.searched) >= 3 and space.size() > 20
    for end in (space.smallest(), space.largest(), *(space.sample(random.Random(seed)) for seed in range(30))):
        timm.create_model(arch.family, arch=end, device="meta")
    # As many parameters as the network itself; a ViT gets relative positions, and DeiT is a ViT.
    built = sum(p.numel() for p in model.parameters())
    lowest, ours, highest = (
        cost.params(each, num_classes=model.num_classes, in_chans=channels, img_size=side)
        for each in (space.smallest(), arch, space.largest())
    )
    assert ours == built if not name.startswith(("vit", "deit")) else built < ours < 1.03 * built
    assert lowest < ours < highest


def test_around_a_network_of_one_block_a_stage() -> None:
    """No space has networks of no block, or of no width."""
    blocks = (S3Block(window_size=2, num_heads=1, head_dim=4, mlp_ratio=1.0),)
    arch = Arch("s3", (Stage(4, blocks), Stage(8, blocks)), patch_size=2)
    space = space_around(arch, "mine")
    assert space.contains(arch) and space["stage1.depth"].choices == (1, 2)
    assert all(min(dim.choices) > 0 for dim in space.dims)


def test_the_run_gets_limit_budget_and_control() -> None:
    run = load_config("s4_vit_cifar10", SearchRun, "search")
    found = around(run, "vit_tiny_patch16_224")
    arch, _ = network("vit_tiny_patch16_224")
    limit = cost.params(arch, num_classes=10)
    assert found.space_search.upper == limit and found.arch_search.budgets == (f"params<={limit}",)
    assert found.controls.designed_arch(found.space) == arch and found.final.mode == "retrain"
    assert found.space.patch_size == 16 and found.space_search.method == run.space_search.method


def test_a_search_around_a_network(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """On images of 8 pixels a ViT has patches of one; the original stands beside the winner, not above its size."""
    source = Path(__file__).with_name("toy_search.py")
    words = ["search", str(source), "--around", "s3_nano", "--out", str(tmp_path), "--no-report"]
    assert cli.main([*words, "--set", "space_search.method=none"]) == 0
    result = json.loads((tmp_path / "result.json").read_text())
    (winner,) = result["winners"]
    (control,) = result["controls"]
    nano = network("s3_nano")[0]
    assert control["arch"] == nano.to_dict() and winner["params"] <= control["params"] == cost.params(
        nano, num_classes=10, in_chans=1
    )
    assert cli.main(["search", "debug_s4", "--around", "vit_tiny_patch16_224", "--dry-run"]) == 0
    assert "around_vit_tiny_patch16_224" in capsys.readouterr().out


@pytest.mark.parametrize("name, message", [("resnet18", "give a ViT, DeiT or Swin"), ("nothing_at_all", "no model")])
def test_what_cannot_be_searched_around(name: str, message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["search", "debug_s4", "--around", name, "--dry-run"]) == 2
    assert message in capsys.readouterr().err
