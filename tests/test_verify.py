"""Weights against their card: those that come with s3zoo, those of a Hub, a paper's figure, and all that cannot be."""

import json
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import timm
import torch
from hub_server import TOKENS, Store
from PIL import Image
from safetensors.torch import save
from test_hub import Hub
from torch import Tensor, nn

from s3zoo import verify
from s3zoo.cli import main as cli
from s3zoo.models.loading import BUNDLED

pytestmark = pytest.mark.usefixtures("one_thread")
NANO = BUNDLED / "s3_nano.digits"
SYNSETS = ("n01440764", "n01443537")  # the first two classes of ImageNet


def run(*words: Any) -> int:
    return cli(["verify", *map(str, words)])


def test_bundled_weights_pass(capsys: Any) -> None:
    assert run("s3_nano", "--data", "digits") == 0
    said = capsys.readouterr().out
    assert (
        said.startswith("s3_nano: pass: top-1 98.61 (") and "the card says 98.61 on digits (measured by s3zoo;" in said
    )


def photos(folder: Path, right: int, images: int) -> Path:
    """A part of ImageNet's validation set, of which so many images are of the first class."""
    for i in range(images):
        place = folder / "val" / SYNSETS[i >= right] / f"{i}.png"
        place.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(np.full((8, 8, 3), i, np.uint8)).save(place)
    return folder


def test_on_a_hub(tmp_path: Path) -> None:
    """Fetched from there: as published; with a card that promises more than the weights hold; and, by the name of a
    model alone, from the repository on its card, where other weights stand in, which say the first class."""
    theirs = timm.create_model("swin_s3_tiny_224").state_dict()
    theirs["head.fc.weight"].zero_()
    theirs["head.fc.bias"].copy_(torch.eye(1000)[0])
    server, repo = Hub(tmp_path), "timm/swin_s3_tiny_224.ms_in1k"
    store = Store(server.store)
    store.create(repo, private=False)
    store.commit(repo, "main", "weights", {"model.safetensors": store.put(save(theirs))}, store.find(repo, "main"))
    server.start()
    try:
        better = tmp_path / "better"
        better.mkdir()
        config = json.loads((NANO / "config.json").read_text())
        config["s3zoo"]["provenance"]["metrics"][0]["value"] += 1
        (better / "config.json").write_text(json.dumps(config))
        (better / "model.safetensors").write_bytes((NANO / "model.safetensors").read_bytes())
        ada = list(TOKENS)[0]
        *_, good, bad, named = server.do(
            ["raw", ada, "ada/nano", str(NANO)],
            ["raw", ada, "ada/better", str(better)],
            ["cli", "", ["verify", "hf-hub:ada/nano", "--data", "digits", "--json"]],
            ["cli", "", ["verify", "hf-hub:ada/better", "--data", "digits"]],
            ["cli", "", ["verify", "s3_tiny", "--data", str(photos(tmp_path / "imagenet", 4, images=5)), "--json"]],
        )
    finally:
        server.stop()
    assert good["code"] == named["code"] == 0 and bad["code"] == 1, good["err"] + bad["err"] + named["err"]
    (row,) = json.loads(good["out"])
    assert row["pass"] and row["whole"] and row["top1"] == row["card"] == pytest.approx(355 / 3.6)
    assert bad["out"].startswith("hf-hub:ada/better: FAIL: top-1 98.61") and "the card says 99.61" in bad["out"]
    (row,) = json.loads(named["out"])
    assert (row["card"], row["top1"], row["images"], row["pass"]) == (82.1, 80, 5, True)
    fetched = [line for line in server.asked() if line.startswith("GET ") and "model.safetensors" in line]
    assert [any(name in line for line in fetched) for name in ("ada/nano", "ada/better", repo)] == [True] * 3


class Constant(nn.Module):
    """Stands in for weights that cannot be fetched: it says the first class."""

    num_classes = 1000
    pretrained_cfg = {"num_classes": 1000, "input_size": (3, 8, 8)}

    def forward(self, x: Tensor) -> Tensor:
        return torch.eye(1000)[:1].expand(len(x), -1)


@pytest.mark.parametrize(("right", "code"), [(8, 0), (1, 1)])
def test_a_papers_figure_on_a_part_of_imagenet(
    right: int, code: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    """S3 prints 82.1 %: 8 of 10 agree with that (Wilson's interval from 49 to 94 %), 1 of 10 does not (to 40 %)."""
    photos(tmp_path, right, images=10)
    monkeypatch.setattr(verify, "open_model", lambda spec: Constant())
    assert run("s3_tiny", "--data", tmp_path, "--json") == code
    (row,) = json.loads(capsys.readouterr().out)
    assert (row["card"], row["whose"], row["images"], row["whole"]) == (82.1, "S3 paper", 10, False)
    assert row["top1"] == 10 * right and row["pass"] is (code == 0)
    assert run("s3_tiny", "--data", tmp_path) == code
    assert "of 10 of 50,000 images, so the interval decides" in capsys.readouterr().out


def test_a_tar_file_that_may_be_cut_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    photos(tmp_path / "photos", 8, images=10)
    with tarfile.open(tmp_path / "val.tar", "w") as tar:
        tar.add(tmp_path / "photos/val", ".")
    whole = (tmp_path / "val.tar").read_bytes().rstrip(b"\0")
    (tmp_path / "val.tar").write_bytes(whole + b"\0" * (-len(whole) % 512))
    monkeypatch.setattr(verify, "open_model", lambda spec: Constant())
    assert run("s3_tiny", "--data", tmp_path) == 0
    assert "lacks the end that tar files have" in capsys.readouterr().err


@pytest.mark.parametrize(("card", "passes"), [(82.0, True), (82.2, True), (82.21, False), (81.79, False)])
def test_on_all_images_the_tolerance_decides(card: float, passes: bool) -> None:
    row = {"top1": 82.0, "top1_low": 81.0, "top1_high": 83.0, "images": 50_000, "unreadable": 0}
    figure = {"card": card, "card_images": 50_000}
    assert verify.compare(row, figure, [], 0.2 + 1e-9)["pass"] is passes  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("spec", "says"),
    [
        ("glit_tiny", "cannot be downloaded (authors' file, to convert)"),
        ("s3_base_384", "cannot be downloaded (none)"),
        ("resnet18", "is no model of this zoo"),
        ("s3_nan", "did you mean 's3_nano'"),
    ],
)
def test_what_cannot_be_verified_is_one_sentence(spec: str, says: str, capsys: Any) -> None:
    assert run(spec, "--data", "digits") == 2
    said = capsys.readouterr().err
    assert says in said and said.count("\n") == 1
