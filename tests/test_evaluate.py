"""Evaluation: predictions as timm's own transforms give them, intervals, sizes, the table, refusals."""

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
from timm.data import create_transform, resolve_model_data_config

from s3zoo import evaluate
from s3zoo.cli import main as cli
from s3zoo.compat import count_macs
from s3zoo.training.accuracy import wilson
from s3zoo.training.datasets import find_data

pytestmark = pytest.mark.usefixtures("one_thread")
CLASSES = ("ant", "bee", "cow")
CPU = torch.device("cpu")


@pytest.mark.parametrize("images", [5, 40, 360])  # for which rounding leaves it at one end or the other
def test_an_interval_stays_within_0_and_100_percent(images: int) -> None:
    assert wilson(0, images)[0] == 0 < wilson(0, images)[1] < 1
    assert 0 < wilson(images, images)[0] < wilson(images, images)[1] <= 1


@pytest.fixture(scope="module")
def images(tmp_path_factory) -> Path:
    """val/<class>/: pictures of odd sizes, one of them grey."""
    root = tmp_path_factory.mktemp("data")
    rng = np.random.default_rng(0)
    for name in CLASSES:
        (root / "val" / name).mkdir(parents=True)
        for index in range(5):
            small = rng.integers(0, 256, (6, 7, 3), np.uint8)
            size = (int(rng.integers(40, 90)), int(rng.integers(40, 90)))
            Image.fromarray(small).resize(size, Image.Resampling.BICUBIC).save(root / f"val/{name}/{index}.jpg")
    Image.open(root / "val/bee/1.jpg").convert("L").save(root / "val/bee/1.jpg")
    return root


@pytest.fixture(scope="module")
def model_folder(tmp_path_factory) -> Path:
    """A network of timm with random weights, in timm's own layout."""
    from timm.models._hub import save_for_hf

    torch.manual_seed(0)
    model = timm.create_model("resnet10t", num_classes=3)
    noise = torch.nn.functional.interpolate(torch.randn(4, 3, 7, 7), size=80, mode="bicubic")
    with torch.no_grad():  # statistics of images, and no favourite class: the images decide
        for module in model.modules():
            if isinstance(module, torch.nn.BatchNorm2d):
                module.momentum = 1.0
        model.train()(noise)
        model.fc.bias.sub_(model.eval()(noise).mean(0))
    model.pretrained_cfg |= {"input_size": (3, 64, 64), "test_input_size": (3, 80, 80), "crop_pct": 0.9}
    model.pretrained_cfg |= {"mean": (0.4, 0.5, 0.6), "std": (0.2, 0.3, 0.25), "num_classes": 3}
    folder = tmp_path_factory.mktemp("net")
    save_for_hf(model, str(folder), safe_serialization=True)
    return folder


def command(*words: object) -> tuple[int, str, str]:
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = cli(["evaluate", *map(str, words)])
    return code, out.getvalue(), err.getvalue()


def plain_loop(folder: Path, root: Path) -> tuple[torch.Tensor, list[int]]:
    """timm's model, timm's transform, one image after the other."""
    model = timm.create_model(f"local-dir:{folder}", pretrained=True).eval()
    transform = create_transform(**resolve_model_data_config(model, use_test_size=True), is_training=False)
    logits, targets = [], []
    for number, name in enumerate(CLASSES):
        for path in sorted((root / name).glob("*.jpg")):
            with torch.no_grad():
                logits.append(model(transform(Image.open(path).convert("RGB"))[None])[0])
            targets.append(number)
    return torch.stack(logits), targets


@pytest.mark.parametrize(("batch_size", "workers"), [(4, 0), (15, 2)])
def test_predictions_are_those_of_a_plain_loop_with_timms_transforms(model_folder, images, batch_size, workers):
    expected, targets = plain_loop(model_folder, images / "val")
    split = evaluate.test_split(find_data(str(images)), None)
    model = evaluate.open_model(str(model_folder)).eval()
    found = list(evaluate.logits_of(model, split, np.arange(len(split)), CPU, batch_size, workers))
    logits, order = torch.cat([batch for _, batch in found]), np.concatenate([chunk for chunk, _ in found])
    assert split.targets[order].tolist() == targets
    assert torch.equal(logits.argmax(1), expected.argmax(1))
    torch.testing.assert_close(logits, expected, rtol=1e-4, atol=1e-5)
    assert len(set(logits.argmax(1).tolist())) > 1  # a network that always says the same would agree too


def test_the_command_counts_as_the_loop(model_folder, images):
    logits, targets = plain_loop(model_folder, images / "val")
    right = sum(int(row.argmax()) == target for row, target in zip(logits, targets, strict=True))
    code, out, _ = command(model_folder, "--data", images, "--json", "--batch-size", 4)
    row = json.loads(out)[0]
    assert code == 0 and (row["images"], row["unreadable"]) == (15, 0)
    assert row["top1"] == pytest.approx(100 * right / 15) and row["top5"] == 100.0  # of three classes
    # Wilson's interval, written out.
    n, p, z = 15, right / 15, 1.96
    middle, half = p + z * z / (2 * n), z * math.sqrt(p * (1 - p) / n + z * z / (4 * n * n))
    assert row["top1_low"] == pytest.approx(100 * (middle - half) / (1 + z * z / n))
    assert row["top1_high"] == pytest.approx(100 * (middle + half) / (1 + z * z / n))
    assert row["input_size"] == [3, 80, 80] and row["throughput"] > 0
    same, out, _ = command(model_folder, "--data", images / "val", "--json", "--no-speed")  # the split itself
    assert same == 0 and json.loads(out)[0]["top1"] == row["top1"]


def test_an_unreadable_image_is_counted_and_left_out(model_folder, images, tmp_path):
    for name in CLASSES:
        (tmp_path / "test" / name).mkdir(parents=True)
        (tmp_path / "test" / name / "a.jpg").write_bytes((images / "val" / name / "0.jpg").read_bytes())
    (tmp_path / "test/ant/b.jpg").write_bytes(b"no image")
    _, out, _ = command(model_folder, "--data", tmp_path, "--no-speed")
    assert "3 images, 1 more could not be read" in out


def test_params_and_macs():
    """By hand for a network of two layers; in closed form for ours, as torch counts it."""
    model = torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3), torch.nn.Flatten(), torch.nn.Linear(4 * 6 * 6, 5))
    model.pretrained_cfg = {"input_size": (3, 8, 8)}
    row = evaluate.size(model, CPU)
    assert row["params"] == 4 * 27 + 4 + 144 * 5 + 5 and row["macs"] == 36 * 4 * 27 + 144 * 5
    ours = timm.create_model("glit_tiny", num_classes=7)
    assert evaluate.size(ours, CPU)["macs"] == count_macs(lambda: ours.eval()(torch.zeros(1, 3, 224, 224)))[0]
    attention = lambda: torch.nn.functional.scaled_dot_product_attention(*torch.ones(3, 1, 2, 5, 8))  # noqa: E731
    assert count_macs(attention)[0] == 2 * 2 * 5 * 5 * 8


def test_peak_memory_by_hand():
    """Weights, images, and two activations of one convolution after the other: the third replaces the first."""
    layers = [torch.nn.Conv2d(4, 4, 1, bias=False) for _ in range(3)]
    model, images = torch.nn.Sequential(*layers).eval(), torch.zeros(2, 4, 64, 64)
    with torch.inference_mode():
        found = evaluate.peak_memory(model, images)
    activation, weights = images.nbytes, 3 * 16 * 4
    assert weights + 3 * activation <= found <= weights + 3.5 * activation


def test_the_table_is_sorted(model_folder, images):
    code, out, _ = command("resnet10t", "resnet18", "--untrained", "--no-speed", "--sort", "params")
    lines = out.splitlines()
    assert code == 0 and [line.split()[0] for line in lines] == ["model", "resnet10t", "resnet18"]
    rows = [{"model": "a", "top1": 1.0, "params": 1}, {"model": "b", "top1": 2.0, "params": 2}]
    assert [row["model"] for row in evaluate.sort_rows(rows, "top1")] == ["b", "a"]
    assert [row["model"] for row in evaluate.sort_rows(rows, "params")] == ["a", "b"]


def test_classes_are_matched_by_name(images):
    """A model that knows more classes, in another order, is asked about these."""
    split = evaluate.test_split(find_data(str(images)), None)
    model = timm.create_model("resnet10t", num_classes=4)
    model.pretrained_cfg["label_names"] = ["dog", "cow", "ant", "bee"]
    assert evaluate.label_numbers(model, "x", split).tolist() == [2, 3, 1]
    model = timm.create_model("resnet10t", num_classes=3)
    assert evaluate.label_numbers(model, "x", split).tolist() == [0, 1, 2]
    model.pretrained_cfg["label_names"] = ["x", "y", "z"]
    with pytest.raises(ValueError, match=r"knows other classes \(x, y, z, …\) than .*\(ant, bee, cow, …\)"):
        evaluate.label_numbers(model, "net", split)


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("resnet10x", "--data", "DATA"), "no model or folder 'resnet10x'"),
        (("NET", "--data", "digits"), "has 3 classes, but digits has 10"),
        (("NET", "--data", "/nowhere"), "neither a folder nor one of"),
        (("NET", "--data", "/nowhere/imagenet"), "give a folder that exists"),  # not: did you mean 'tiny_imagenet'
        (("NET", "--data", "DATA", "--split", "night"), "no split called 'night'"),
        (("NET", "--batch-size", "0"), "--batch-size is 0"),
    ],
)
def test_a_mistake_is_one_sentence(model_folder, images, words, sentence):
    words = tuple(w.replace("NET", str(model_folder)).replace("DATA", str(images)) for w in words)
    code, out, err = command(*words)
    assert code == 2 and not out and sentence in err and err.count("\n") == 1, err
