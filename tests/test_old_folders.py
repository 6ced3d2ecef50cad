"""A folder of each kind, as an earlier release wrote it: whatever changes, these open and are the same networks."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from s3zoo import cli
from s3zoo.artefact import load_model_config
from s3zoo.models.open import open_model

OLD = sorted(path for path in (Path(__file__).parent / "old").iterdir() if path.is_dir())
pytestmark = [pytest.mark.usefixtures("one_thread"), pytest.mark.parametrize("old", OLD, ids=lambda path: path.name)]


def changed_version(folder: Path, version: Any) -> None:
    path = folder / "config.json"
    config = json.loads(path.read_text())
    config["s3zoo"]["schema_version"] = version
    path.write_text(json.dumps(config))


def same(model: torch.nn.Module, folder: Path) -> bool:
    weights = load_file(folder / "model.safetensors")
    return all(torch.equal(value, weights[name]) for name, value in model.state_dict().items() if name in weights)


@pytest.mark.parametrize("kind", ["model", "run"])
def test_models(old: Path, kind: str, tmp_path: Path) -> None:
    model = open_model(str(old / kind))
    folder = old / kind if kind == "model" else old / kind / "model"
    assert same(model, folder) and len(model.state_dict()) == len(load_file(folder / "model.safetensors"))
    assert load_model_config(folder, verify=True)["num_classes"] == model.num_classes
    assert cli.main(["publish", str(old / kind), "--out", str(tmp_path / "published")]) == 0
    assert same(open_model(str(tmp_path / "published")), folder)


def test_a_model_for_plain_timm(old: Path) -> None:
    model = open_model(str(old / "model_in_timm_layout")).eval()
    config = load_model_config(old / "model_in_timm_layout", verify=True, plain=True)
    assert same(model, old / "model_in_timm_layout") and config["s3zoo"]["arch"]["family"] == "s3"


def test_a_finished_run(old: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The command that began it finds nothing to do; where the result is gone, it goes on from the checkpoint."""
    run = shutil.copytree(old / "run", tmp_path / "run")
    command = ["train", str(old / "run.py"), "--out", str(run)]
    assert cli.main(command) == 0 and "This run is finished" in capsys.readouterr().out
    before = json.loads((run / "result.json").read_text())
    for name in ("result.json", "test.json"):
        (run / name).unlink()
    shutil.rmtree(run / "model")
    assert cli.main(command) == 0
    after = json.loads((run / "result.json").read_text())
    assert same(open_model(str(run)), old / "run/model") and after["test"] == before["test"]


def test_a_question_answering_model(old: Path, tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    from s3zoo.transfer.vqa import model as vqa

    network, words, answers, _ = vqa.load(old / "vqa")
    assert same(network, old / "vqa") and answers == ["red", "yes"] and words.vocabulary[0] == "[PAD]"
    folder = shutil.copytree(old / "vqa", tmp_path / "first")  # version 1 had the checksum of the weights alone
    path = folder / "config.json"
    config = json.loads(path.read_text())
    config["s3zoo"] |= {"schema_version": 1, "sha256": config["s3zoo"]["sha256"]["model.safetensors"]}
    path.write_text(json.dumps(config))
    again, *_ = vqa.load(folder)
    assert same(again, old / "vqa")
    changed_version(folder, 99)
    with pytest.raises(ValueError, match="schema_version is 99, .* a newer release of s3zoo wrote it"):
        vqa.load(folder)


def test_a_segmenter(old: Path, tmp_path: Path) -> None:
    pytest.importorskip("mmseg")
    from PIL import Image

    Image.new("RGB", (32, 32)).save(tmp_path / "image.png")
    words = ["predict_mm", old / "segmenter", tmp_path / "image.png", "--out", tmp_path / "out"]
    assert cli.main([str(word) for word in words]) == 0
    (row,) = json.loads((tmp_path / "out/predictions.json").read_text())
    assert {part["class"] for part in row["segments"]} <= {"disc", "square"}
