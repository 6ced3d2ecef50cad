"""Searches that begin from weights that are there, and networks cut from a supernet for a budget without training.

The stand-in for a published supernet is in its authors' format, and has learned digits 0 to 4 by their rules.
"""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import autoformer_reference as reference
import pytest
import timm
import torch
import torch.nn.functional as F

from s3zoo import cli, cost
from s3zoo.arch import Arch
from s3zoo.families.autoformer import plain_space
from s3zoo.search import specialise
from s3zoo.search.around import space_around
from s3zoo.search.config import ArchSearch, Final, SearchRun
from s3zoo.search.run import search
from s3zoo.search.start import begin, read_start, started
from s3zoo.supernet import Supernet
from s3zoo.training.config import Data, Train
from s3zoo.training.distributed import start as start_ranks
from s3zoo.training.log import Log
from s3zoo.training.session import Stop
from s3zoo.training.splits import Digits

pytestmark = pytest.mark.usefixtures("one_thread")

SPACE = plain_space("small", (2, 3), (48, 64), (1, 2), (2, 3), head_dim=32, patch_size=2)
MARGIN = 20  # points of top-1 that the start is worth, at least


def data(classes: str) -> Data:
    return Data(
        name="digits", classes=tuple(classes), holdout=60, train_limit=120, num_classes=5, img_size=8, in_chans=1,
        mean=(0.3,), std=(0.35,), crop_pct=1.0, scale=(0.9, 1.0), ratio=(1.0, 1.0), hflip=0.0, color_jitter=0.0,
        workers=0,
    )  # fmt: skip


RUN = SearchRun(
    name="five_to_nine", threads=1, space=SPACE, data=data("56789"),
    supernet=Train(epochs=6, batch_size=32, lr=1e-3, warmup_epochs=1, drop_path=0.0, sampling="sandwich"),
    arch_search=ArchSearch(population=6, generations=2, parents=3, crossover=3, mutation=3),
    final=Final(mode="inherit"),
)  # fmt: skip


@pytest.fixture(scope="module")
def pretrained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.set_num_threads(1)
    digits = Digits(train=True)
    images = (torch.from_numpy(digits.data)[:, None] / 255 - 0.3) / 0.35
    labels = torch.from_numpy(digits.targets).long()
    images, labels = images[labels < 5], labels[labels < 5]
    weights = reference.random_supernet(64, 2, 3, patches=16, patch_size=2, classes=5, seed=0)
    weights["patch_embed_super.proj.weight"] = weights["patch_embed_super.proj.weight"][:, :1].clone()
    for value in weights.values():
        value.requires_grad_()
    steps, generator = 120, torch.Generator().manual_seed(0)
    optimizer = torch.optim.AdamW(weights.values(), lr=2e-3)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    sizes = [reference.Subnet(64, (2,) * 3, (3.0,) * 3), reference.Subnet(48, (1,) * 2, (2.0,) * 2)]
    for _ in range(steps):
        batch = torch.randint(len(images), (64,), generator=generator)
        found = [reference.logits(weights, size, images[batch], head_dim=32) for size in sizes]
        loss = sum(F.cross_entropy(each, labels[batch]) for each in found)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
    path = tmp_path_factory.mktemp("official") / "supernet-small.pth"
    reference.save_supernet({name: value.detach() for name, value in weights.items()}, path)
    return path


def done(run: SearchRun, folder: Path) -> dict[str, Any]:
    ranks = start_ranks("cpu")
    return search(run, folder, ranks, Log(folder, speaks=False), Stop())


def test_a_start_is_worth_its_margin(pretrained: Path, tmp_path: Path) -> None:
    """Digits 5 to 9 after the same short training, from random weights and from a supernet that knows 0 to 4."""
    scratch = done(RUN, tmp_path / "scratch")["winners"][0]["test"]["top1"]
    begun = done(replace(RUN, start=str(pretrained)), tmp_path / "begun")["winners"][0]["test"]["top1"]
    print(f"from scratch {scratch:.1f} %, started {begun:.1f} %")
    assert begun >= scratch + MARGIN
    origin = json.loads((tmp_path / "begun/model/config.json").read_text())["s3zoo"]["provenance"]
    assert origin["base"]["name"] == "supernet-small.pth"
    assert read_start(str(tmp_path / "begun")).rate == RUN.supernet.lr and read_start(str(pretrained)).rate is None
    # Its own supernet is a start, too; another one under the same name is refused while the run lasts.
    again = replace(RUN, name="again", start=str(tmp_path / "begun"), supernet=replace(RUN.supernet, epochs=1))
    once_more = done(again, tmp_path / "again")["winners"][0]["test"]["top1"]
    assert once_more >= scratch + MARGIN
    (tmp_path / "again/result.json").unlink()
    with pytest.raises(ValueError, match="another"):
        done(replace(again, start=str(pretrained)), tmp_path / "again")


def test_what_the_command_changes() -> None:
    short = started(replace(RUN, supernet=replace(RUN.supernet, epochs=10, warmup_epochs=5)), "s3_nano")
    assert (short.start, short.supernet.epochs, short.supernet.warmup_epochs) == ("s3_nano", 2, 1)
    assert short.final.mode == "finetune"


def test_weights_enter_by_the_corner_rule(tmp_path: Path) -> None:
    """A supernet around a network is the network, but for the head; other channels, patches and sizes are resized."""
    start = read_start("s3_nano")
    arch: Arch = start.model.arch
    dims = space_around(arch, "alone").dims  # of which here the network's own values alone
    kept = [d if d.per_block else replace(d, choices=(d.choices[len(d.choices) // 2],)) for d in dims]
    space = replace(space_around(arch, "alone"), dims=tuple(kept))
    supernet = Supernet(space, img_size=8, num_classes=7, in_chans=1)
    share = begin(supernet, start) / len(supernet.flat)
    assert 0.5 < share < 1  # the rest are values of genes that other blocks have, and the head
    image = torch.randn(2, 1, 8, 8)
    with torch.no_grad():
        ours, theirs = supernet.extract(arch).eval(), start.model.eval()
        assert torch.equal(ours.forward_features(image), theirs.forward_features(image))
    colour = Supernet(space, img_size=8, num_classes=7, in_chans=3)
    begin(colour, start)
    with torch.no_grad():  # a grey image in three channels is the grey image
        found = colour.extract(arch).eval().forward_features(image.repeat(1, 3, 1, 1))
        torch.testing.assert_close(found, theirs.forward_features(image), atol=1e-5, rtol=0)
    with pytest.raises(ValueError, match="family 's3', but the space 'small' is of 'autoformer'"):
        begin(Supernet(SPACE, img_size=8, num_classes=5, in_chans=1), start)
    plain = timm.create_model("autoformer", arch=SPACE.largest(), img_size=8, num_classes=5)
    other = Supernet(replace(SPACE, patch_size=4), img_size=32, num_classes=5, in_chans=1)
    assert begin(other, replace(start, model=plain, weights=plain.state_dict())) > 0.9 * len(other.flat)


def test_a_network_for_a_budget_without_training(pretrained: Path, tmp_path: Path, capsys: Any) -> None:
    """The winner is the authors' network of that size, chosen on held-out images; test images are opened once."""
    (tmp_path / "mine.py").write_text(
        "from test_start import RUN, data\nfrom dataclasses import replace\n"
        "config = replace(RUN, name='zero_to_four', data=data('01234'))\n"
    )
    small = cost.params(SPACE.smallest(), num_classes=5, in_chans=1, img_size=8)
    words = ["specialise", str(pretrained), "--config", str(tmp_path / "mine.py"), "--out", str(tmp_path / "run")]
    assert cli.main([*words, "--budget", f"params<={2 * small}"]) == 0
    (winner,) = json.loads((tmp_path / "run/result.json").read_text())["winners"]
    assert winner["params"] <= 2 * small and winner["test"]["top1"] > 80 and not list(tmp_path.rglob("step-*"))
    arch = Arch.from_dict(winner["arch"])
    weights = torch.load(pretrained, weights_only=False)["model"]
    blocks = arch.stages[0].blocks
    subnet = reference.Subnet(
        arch.embed_dims[0], tuple(b.num_heads for b in blocks), tuple(b.mlp_ratio for b in blocks)
    )
    model = timm.create_model(f"local-dir:{tmp_path / 'run/model'}", pretrained=True).eval()
    image = torch.randn(2, 1, 8, 8)
    with torch.no_grad():
        expected = reference.logits(weights, subnet, image, head_dim=32)
        torch.testing.assert_close(model(image), expected, atol=1e-4, rtol=0)
    assert cli.main(["specialise", "autoformer_huge", "--budget", "params<=1M"]) == 2
    assert "give autoformer_tiny, autoformer_small" in capsys.readouterr().err


@pytest.mark.parametrize("size", specialise.SIZES)
def test_the_authors_supernets_are_searched_on_held_out_images(size: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """10,000 of ImageNet's training images, never those of val; nothing is trained."""
    monkeypatch.setattr(specialise, "fetched", lambda url: Path(__file__))
    run = specialise.specialised(f"autoformer_{size}", ("params<=6M",))
    assert (run.data.train_split, run.data.holdout, run.data.test_split) == ("train", 10_000, "val")
    assert run.final.mode == "inherit" and run.space_search.method == "none"
    assert run.arch_search.budgets == ("params<=6M",) and run.supernet_weights
