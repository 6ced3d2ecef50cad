"""Predictions for a person: names, probabilities, folders, what cannot be read."""

import contextlib
import io
import json
import math
from pathlib import Path

import numpy as np
import pytest
import timm
import torch
from PIL import Image

from s3zoo.artefact import save_model
from s3zoo.cli import main as cli
from s3zoo.models.loading import BUNDLED
from s3zoo.models.open import class_names

pytestmark = pytest.mark.usefixtures("one_thread")
ARCH = {
    "schema_version": 1,
    "family": "s3",
    "patch_size": 2,
    "stages": [{"embed_dim": 8, "blocks": [{"window_size": 2, "num_heads": 1, "head_dim": 4, "mlp_ratio": 1.0}]}],
}


@pytest.fixture(scope="module")
def model_folder(tmp_path_factory) -> Path:
    """A network whose classifier has a bias only: its answer is known by hand."""
    model = timm.create_model("s3", arch=ARCH, img_size=8, num_classes=3)
    with torch.no_grad():
        model.head.fc.weight.zero_()
        model.head.fc.bias.copy_(torch.tensor([1.0, 3.0, 2.0]))
    names = {"label_names": ["ant", "bee", "cow"]}
    return save_model(tmp_path_factory.mktemp("model"), model, pretrained_cfg=names)


@pytest.fixture
def pictures(tmp_path) -> Path:
    (tmp_path / "sub").mkdir()
    for name in ("b.png", "a.jpg", "sub/c.PNG"):
        Image.fromarray(np.zeros((9, 12, 3), np.uint8)).save(tmp_path / name)
    (tmp_path / "notes.txt").write_text("not an image")
    return tmp_path


def command(*words: object) -> tuple[int, str, str]:
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = cli(["predict", *map(str, words)])
    return code, out.getvalue(), err.getvalue()


def test_names_and_probabilities_by_hand(model_folder, pictures):
    code, out, _ = command(model_folder, pictures / "b.png")
    total = math.exp(1) + math.exp(3) + math.exp(2)
    expected = [f"  {100 * math.exp(x) / total:5.1f} %  {name}" for x, name in ((3, "bee"), (2, "cow"), (1, "ant"))]
    assert code == 0 and out.splitlines() == [str(pictures / "b.png"), *expected]


def test_a_folder_stands_for_its_images(model_folder, pictures):
    code, out, _ = command(model_folder, pictures, "--json", "--top", 1)
    rows = [json.loads(line) for line in out.splitlines()]
    assert code == 0 and [Path(row["image"]).name for row in rows] == ["a.jpg", "b.png", "c.PNG"]
    assert all([guess["name"] for guess in row["classes"]] == ["bee"] for row in rows)


def test_what_cannot_be_read_is_said_and_the_rest_is_done(model_folder, pictures):
    (pictures / "broken.png").write_bytes(b"\x89PNG nonsense")
    code, out, err = command(model_folder, pictures / "broken.png", pictures / "b.png")
    assert code == 2 and "broken.png' cannot be read" in err and err.count("\n") == 1 and "bee" in out


@pytest.mark.parametrize("words", [("missing.png",), ("EMPTY",), ("b.png", "--top", "0"), ("b.png", "--device", "mps")])
def test_a_mistake_is_one_sentence(model_folder, pictures, words):
    (pictures / "EMPTY").mkdir()
    code, out, err = command(model_folder, *(pictures / w if i == 0 else w for i, w in enumerate(words)))
    assert code == 2 and not out and err.startswith("s3zoo: ") and err.count("\n") == 1


@pytest.mark.parametrize(
    "name, there",
    [("s3_nano.x", "weights are s3_nano.digits."), ("resnet50.x", "resnet50.a1_in1k"), ("s3.x", "leave the tag out")],
)
def test_weights_that_there_are(pictures, name, there):
    """Where a model is named with weights that it does not have."""
    code, out, err = command(name, pictures / "b.png")
    assert code == 2 and not out and there in err and err.count("\n") == 1


def test_imagenet_has_words():
    model = timm.create_model("s3_tiny", device="meta")
    names = class_names(model)
    assert len(names) == 1000 and names[1] == "goldfish, Carassius auratus" and names[285].startswith("Egyptian cat")
    model.pretrained_cfg["num_classes"] = 7
    assert class_names(timm.create_model("resnet10t", num_classes=7))[6] == "class 6"


@pytest.mark.parametrize("name", sorted(path.name for path in BUNDLED.iterdir()))
def test_bundled_networks_name_their_classes(name, pictures):
    code, out, _ = command(name, pictures / "b.png", "--json", "--top", 10)
    classes = json.loads(out)["classes"]
    card = (BUNDLED / name / "README.md").read_text()
    shown = card.partition("| Classes | ")[2].partition(" |")[0].partition(": ")[2].split(", ")
    assert code == 0 and {guess["name"] for guess in classes} == set(shown)
    assert sum(guess["probability"] for guess in classes) == pytest.approx(1, abs=1e-3)
    if name.endswith(".cifar10"):
        assert {"airplane", "cat", "truck"} < set(shown)
