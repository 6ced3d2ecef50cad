"""Training one network: transfer helps, resizing keeps what was learned, runs resume, mistakes are sentences."""

import contextlib
import dataclasses
import hashlib
import io
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import timm
import torch
from PIL import Image
from safetensors.torch import load_file, save_file
from toy_train import ARCH, DIGITS, config

from s3zoo import cards
from s3zoo.artefact import load_model_config
from s3zoo.cli import main as cli
from s3zoo.models.open import model_with
from s3zoo.training.accuracy import resumable_accuracy
from s3zoo.training.config import Data, Train, TrainRun, load_config, to_dict
from s3zoo.training.data import ImageData
from s3zoo.training.datasets import DATASETS, find_data
from s3zoo.training.distributed import Ranks
from s3zoo.training.log import Log
from s3zoo.training.loop import Stop, layer_scales
from s3zoo.training.registry import entry, names
from s3zoo.training.run import Training, freeze, resolved

pytestmark = pytest.mark.usefixtures("one_thread_here")

ROOT = Path(__file__).resolve().parent.parent
ONE = Ranks(0, 1, torch.device("cpu"))
_BLOCK = {"head_dim": 8, "mlp_ratio": 2.0}
LARGER = {
    **ARCH,
    "stages": [
        {"embed_dim": 16, "blocks": [{"window_size": 4, "num_heads": 2, **_BLOCK}]},
        {"embed_dim": 32, "blocks": [{"window_size": 2, "num_heads": 4, **_BLOCK}] * 2},
    ],
}
SMALL, LARGE = tuple("01234"), tuple("56789")


def changed(run: TrainRun = config, **options) -> TrainRun:
    parts = {"data": DIGITS, "train": run.train}
    for part in parts:
        fields = {f.name for f in dataclasses.fields(parts[part])}
        mine = {key: options.pop(key) for key in list(options) if key in fields}
        parts[part] = dataclasses.replace(getattr(run, part), **mine)
    return dataclasses.replace(run, **parts, **options)


def train(run: TrainRun, folder: Path) -> dict:
    return Training(run, folder, ONE, Log(None, speaks=False), Stop())()


def command(*words: object) -> tuple[int, str]:
    """Exit code and what was said, by the command line."""
    out = io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(out):
        code = cli(["train", *map(str, words)])
    return code, out.getvalue()


def sha(folder: Path) -> str:
    return hashlib.sha256((folder / "model/model.safetensors").read_bytes()).hexdigest()


@pytest.fixture(scope="module")
def five(tmp_path_factory) -> Path:
    """A network that knows the digits 0 to 4."""
    folder = tmp_path_factory.mktemp("five")
    options = dict(
        train_limit=0, epochs=25, batch_size=64, warmup_epochs=2.0, label_smoothing=0.0, drop_path=0.0, ema=0.0,
        checkpoint_seconds=60,
    )  # fmt: skip
    run = changed(classes=SMALL, num_classes=5, model_args={"arch": LARGER}, **options)
    assert train(run, folder)["test"]["top1"] > 90
    return folder


@pytest.fixture(scope="module")
def toy(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("toy")
    train(config, folder)
    return folder


# Transfer


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_finetuning_on_other_classes_beats_scratch_at_equal_steps(five, tmp_path, seed):
    """Not so for every setting (docs/training.md): with fewer images or a lower rate it was a matter of luck."""
    options = dict(
        classes=LARGE, num_classes=5, train_limit=0, epochs=2, lr=1e-2, warmup_epochs=1.0, drop_path=0.0, ema=0.0,
        seed=seed, checkpoint_seconds=60,
    )  # fmt: skip
    scratch = train(changed(**options, model_args={"arch": LARGER}), tmp_path / "scratch")
    tuned = train(changed(**options, model=str(five), model_args={}, mode="finetune"), tmp_path / "tuned")
    rows = [(tmp_path / name / "train/epochs.jsonl").read_text().splitlines() for name in ("scratch", "tuned")]
    assert json.loads(rows[0][-1])["step"] == json.loads(rows[1][-1])["step"] == 44
    assert tuned["test"]["images"] == scratch["test"]["images"] > 150
    assert tuned["test"]["top1"] > scratch["test"]["top1"] + 4, (tuned["test"], scratch["test"])


def test_a_classifier_for_other_classes_of_the_same_number_is_new(five, tmp_path):
    run = changed(classes=LARGE, num_classes=5, model=str(five), model_args={}, mode="finetune")
    training = Training(run, tmp_path, ONE, Log(None, speaks=False), Stop())
    first = training.model.state_dict()
    stored = load_file(five / "model/model.safetensors")
    same = {name for name, value in stored.items() if torch.equal(value, first[name])}
    assert training.new_head and stored.keys() - same == {"head.fc.weight", "head.fc.bias"}
    kept = Training(changed(run, classes=SMALL), tmp_path / "kept", ONE, Log(None, speaks=False), Stop())
    assert not kept.new_head and torch.equal(kept.model.head.fc.weight, stored["head.fc.weight"])


def test_a_probe_moves_the_classifier_alone(five, tmp_path):
    train(changed(classes=LARGE, num_classes=5, model=str(five), model_args={}, mode="probe", epochs=1), tmp_path)
    before, after = (load_file(folder / "model/model.safetensors") for folder in (five, tmp_path))
    assert {n for n in before if not torch.equal(before[n], after[n])} == {"head.fc.weight", "head.fc.bias"}


def test_frozen_parts_stay(five, tmp_path):
    run = changed(classes=LARGE, num_classes=5, model=str(five), model_args={}, mode="finetune", freeze=2, epochs=1)
    train(run, tmp_path)
    before, after = (load_file(folder / "model/model.safetensors") for folder in (five, tmp_path))
    moved = {n for n in before if not torch.equal(before[n], after[n])}
    assert moved and not any(n.startswith(("patch_embed", "stages.0")) for n in moved)
    assert {n.split(".")[1] for n in moved if n.startswith("stages")} == {"1"}


def test_frozen_batch_norms_keep_their_statistics():
    model = timm.create_model("resnet10t", num_classes=3)
    frozen = freeze(model, 2)
    assert any(module is model.layer1 for module in frozen) and not any(module is model.layer2 for module in frozen)
    with pytest.raises(ValueError, match="freeze is 99, but ResNet has"):
        freeze(model, 99)


def test_layer_decay_is_a_power_of_the_distance_to_the_head():
    model = timm.create_model("autoformer_tiny", num_classes=3, device="meta")
    scales = layer_scales(model, 0.5)
    depth = len(model.blocks)
    assert scales["head.weight"] == 1.0
    # The final norm counts with the last layer; block i is depth - i layers below the head.
    ratio = {scales[f"blocks.{i}.mlp.fc1.weight"] / scales[f"blocks.{i + 1}.mlp.fc1.weight"] for i in range(depth - 1)}
    assert ratio == {0.5}
    assert scales["patch_embed.proj.weight"] == scales["blocks.0.mlp.fc1.weight"] / 2
    assert scales.keys() == dict(model.named_parameters()).keys()


# Another resolution


def ranks_of(logits: torch.Tensor) -> torch.Tensor:
    return logits.argsort(1).argsort(1).double()


def spearman(a: torch.Tensor, b: torch.Tensor) -> float:
    """Mean rank correlation of rows."""
    a, b = (r - r.mean(1, keepdim=True) for r in (ranks_of(a), ranks_of(b)))
    return float(((a * b).sum(1) / (a.norm(dim=1) * b.norm(dim=1))).mean())


TABLE = "relative_position_bias_table"


def finetuned_at(sizes: tuple[int, int], names: tuple[str, str], options: tuple[dict, dict], file: Path):
    """A network, and the same weights in one for larger images; the logits of both for the same smooth images.

    The weights are random, but larger than at the start of a training, and the tables make every other head look
    sideways and the others nearby, so that positions matter.
    """
    torch.manual_seed(0)
    small = timm.create_model(names[0], num_classes=20, **options[0]).eval()
    with torch.no_grad():
        for name, weight in small.named_parameters():
            if weight.ndim > 1 and TABLE not in name and "patch_embed" not in name:
                weight.mul_(4)
            if TABLE in name:
                away = torch.linspace(-1, 1, weight.shape[1])
                near, side = -30 * (away[:, None] ** 2 + away[None] ** 2), 8 * away[None].expand(len(away), -1)
                weight.copy_(torch.stack([side if head % 2 else near for head in range(len(weight))]))
    save_file(small.state_dict(), file)
    large = model_with(names[1], str(file), num_classes=20, **options[1]).eval()
    images = torch.nn.functional.interpolate(torch.randn(8, 3, 8, 8), size=sizes[1], mode="bicubic")
    with torch.no_grad():
        before = small(torch.nn.functional.interpolate(images, size=sizes[0], mode="bicubic", antialias=True))
        return large, before, large(images)


def test_a_larger_input_keeps_the_ranking_of_classes(tmp_path):
    """The paper's step from 224 to 384, with windows 7 -> 12, for a network of four blocks and 56 -> 96 pixels."""
    archs = []
    for window in (7, 12):
        block = {"window_size": window, "num_heads": 2, "head_dim": 8, "mlp_ratio": 2.0}
        stages = [{"embed_dim": dim, "blocks": [block] * 2} for dim in (16, 32)]
        archs.append({"schema_version": 1, "family": "s3", "patch_size": 4, "stages": stages})
    options = dict(arch=archs[0], img_size=56), dict(arch=archs[1], img_size=96)
    large, before, after = finetuned_at((56, 96), ("s3", "s3"), options, tmp_path / "w.safetensors")
    assert spearman(before, after) > 0.95
    assert abs(spearman(before, after.roll(1, 1))) < 0.5  # the measure tells other rankings from this one
    table = large.state_dict()[f"stages.0.blocks.0.attn.{TABLE}"]
    assert table.shape == (2, 23, 23)
    sideways = table[1]  # was 8 at the right end, -8 at the left, the same in every row: so it is still
    torch.testing.assert_close(sideways[:, [0, 11, 22]], torch.tensor([[-8.0, 0.0, 8.0]]).expand(23, 3))
    assert (sideways.diff(dim=1) > 0).all()
    torch.testing.assert_close(table[0, 11, 11], torch.tensor(0.0))
    torch.testing.assert_close(table[0, [0, 0, 22, 22], [0, 22, 0, 22]], torch.full((4,), -60.0), rtol=1e-4, atol=0.0)


@pytest.mark.slow
def test_s3_small_at_384_ranks_as_at_224(tmp_path):
    names = ("s3_small", "s3_small_384")
    large, before, after = finetuned_at((224, 384), names, ({}, {}), tmp_path / "w.safetensors")
    assert large.state_dict()[f"stages.0.blocks.0.attn.{TABLE}"].shape == (3, 47, 47)
    assert spearman(before, after) > 0.9


# The run


def measured_on_test(model, data: ImageData, path: Path) -> dict:
    return resumable_accuracy(path, model, data.test_batches, ONE, Stop())


def test_the_model_is_a_folder_of_timm(toy, tmp_path):
    result = json.loads((toy / "result.json").read_text())
    model = timm.create_model(f"local-dir:{toy / 'model'}", pretrained=True)
    again = measured_on_test(model, ImageData(DIGITS, 0), tmp_path / "test.json")
    assert again == result["test"] and again["images"] == 360
    described = json.loads((toy / "model/config.json").read_text())
    assert described["pretrained_cfg"]["label_names"] == list("0123456789")
    record = described["s3zoo"]["provenance"]
    assert (record["kind"], record["mode"], record["seed"]) == ("train", "scratch", 0)
    assert record["metrics"][0]["value"] == again["top1"] and "license" not in described["pretrained_cfg"]
    code, said = command(ROOT / "tests/toy_train.py", "--out", toy)
    assert code == 0 and "finished" in said


def test_the_cost_is_the_work_of_all_processes(tmp_path):
    """Whenever they worked, and wherever the folder was taken in between."""
    (tmp_path / "clock.json").write_text('{"phases": [{"name": "train", "seconds": 1000}]}')
    begun, log = time.monotonic(), Log(None, speaks=False)
    Training(config, tmp_path, ONE, log, Stop())()
    assert log.clock is not None and log.clock.seconds["train"] > 1000
    seconds = json.loads((tmp_path / "model/config.json").read_text())["s3zoo"]["provenance"]["cost"]["seconds"]
    assert 1000 <= seconds < 1000.1 + time.monotonic() - begun  # of which tenths are told


def test_killed_at_any_step_it_ends_with_the_same_bits(toy, tmp_path):
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    command = [sys.executable, ROOT / "tools/train.py", ROOT / "tests/toy_train.py", "--out", tmp_path]
    for step in (2, 7):
        process = subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL)
        deadline = time.monotonic() + 240
        while not (tmp_path / f"train/step-{step:08d}").exists() and process.poll() is None:
            assert time.monotonic() < deadline
            time.sleep(0.001)
        process.kill()
        assert process.wait() == -signal.SIGKILL and not (tmp_path / "result.json").exists()
    train(config, tmp_path)
    assert sha(tmp_path) == sha(toy)
    assert (tmp_path / "train/epochs.jsonl").read_text() == (toy / "train/epochs.jsonl").read_text()


def test_two_processes_are_one(toy, tmp_path):
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    done = subprocess.run(
        [*launcher, ROOT / "tools/train.py", ROOT / "tests/toy_train.py", "--out", tmp_path],
        env=environment, capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    ours, theirs = (load_file(folder / "model/model.safetensors") for folder in (toy, tmp_path))
    for name, value in ours.items():
        torch.testing.assert_close(theirs[name], value, rtol=1e-4, atol=1e-5)
    assert done.stdout.count("test images") == 1  # only one of them speaks


@pytest.mark.slow
def test_compiled_training_ends_where_eager_does(toy, tmp_path):
    train(dataclasses.replace(config, compile=True), tmp_path)
    eager, compiled = (load_file(folder / "model/model.safetensors") for folder in (toy, tmp_path))
    assert eager.keys() == compiled.keys()
    for name, value in eager.items():
        assert torch.allclose(value, compiled[name], atol=1e-3), name


def test_a_network_of_timm_is_saved_in_its_own_layout(tmp_path):
    run = changed(model="resnet10t", model_args={}, img_size=32, train_limit=32, epochs=1)
    result = train(run, tmp_path)
    with pytest.raises(ValueError, match="'resnet10t', a network of timm's own, which has no genome"):
        load_model_config(tmp_path / "model")
    model = timm.create_model(f"local-dir:{tmp_path / 'model'}", pretrained=True)
    assert "tag" not in json.loads((tmp_path / "model/config.json").read_text())["pretrained_cfg"]
    assert model.pretrained_cfg["label_names"] == list("0123456789") and model.conv1[0].weight.shape[1] == 1
    data = ImageData(dataclasses.replace(DIGITS, img_size=32), 0)
    assert measured_on_test(model, data, tmp_path / "again.json") == result["test"]


def test_what_is_not_said_is_the_models(five):
    data = resolved(TrainRun(name="x", model=str(five), data=DATASETS["digits"]))
    assert (data.img_size, data.in_chans, data.mean, data.std, data.crop_pct) == (8, 1, (0.3,), (0.35,), 1.0)
    data = resolved(TrainRun(name="x", model="s3_base_384", data=DATASETS["digits"]))
    assert (data.img_size, data.in_chans, data.crop_pct) == (384, 3, 1.0)


# Folders, named sets, refusals


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """Two classes of grey images, eight of each for training and four for the test."""
    root = tmp_path_factory.mktemp("images")
    rng = np.random.default_rng(0)
    for split, count in (("train", 8), ("val", 4)):
        for name, low in (("bright", 155), ("dark", 0)):
            (root / split / name).mkdir(parents=True)
            for index in range(count):
                pixels = rng.integers(low, low + 100, (9, 10, 3), np.uint8)
                Image.fromarray(pixels).save(root / split / name / f"{index}.png")
    return root


def test_a_folder_in_one_command(five, folder, tmp_path):
    words = (five, "--data", folder, "--epochs", 3, "--out", tmp_path, "--set", "train.batch_size=8")
    code, said = command(*words, "--set", "data.workers=0", "--set", "threads=1")
    assert code == 0, said
    assert "16 images of 2 classes at 8 x 8" in said and "of 8 test images" in said
    described = json.loads((tmp_path / "model/config.json").read_text())
    assert described["pretrained_cfg"]["label_names"] == ["bright", "dark"] and described["num_classes"] == 2
    base = described["s3zoo"]["provenance"]["base"]
    assert base["name"] == five.name
    row = f"| Initialised from | {five.name} (licence not known; sha256 of the network before the first step `"
    assert row in cards.render(described) and "| Mode | finetune |" in cards.render(described)
    assert str(tmp_path) not in (tmp_path / "model/config.json").read_text()
    code, said = command(*words, "--set", "train.lr=1e-4")
    assert code == 2 and "differs in" in said and "train.lr" in said


def test_nothing_is_lost_in_silence(five, folder, tmp_path):
    """Images that cannot be read are counted in log and result; there is no result of none; mended ones are used."""
    images, out = tmp_path / "images", tmp_path / "out"
    shutil.copytree(folder, images)
    words = (five, "--data", images, "--epochs", 2, "--out", out, "--set", "train.batch_size=8", "--set", "threads=1")
    words += ("--set", "data.max_unreadable=20")
    broken = [images / "train" / "dark" / "3.png", *(images / "val").rglob("*.png")]
    kept = {path: path.read_bytes() for path in broken}
    for index, path in enumerate(broken):
        path.write_bytes(bytes([index]) * path.stat().st_size)
    for _ in range(2):
        code, said = command(*words)
        assert code == 2 and "None of the 8 test images" in said and "the same command goes on" in said, said
        assert not (out / "result.json").exists() and not (out / "model").exists()
    for path in broken[:-1]:
        path.write_bytes(kept[path])
    code, said = command(*words)
    result = json.loads((out / "result.json").read_text())
    assert code == 0 and result["test"]["images"] == 7
    assert "dark/3.png cannot be read; the run goes on without it" in (out / "log.txt").read_text()
    assert result["unreadable"] == {"training": 1, "test": 1}


def test_other_files_than_run_json_know_their_run(toy, tmp_path):
    """Without run.json, a run of other settings does not go on from these files; the same settings do."""
    run = tmp_path / "run"
    shutil.copytree(toy, run)
    names = ["result.json", "test.json", "train/epochs.jsonl", *(p.relative_to(run) for p in run.rglob("state.json"))]
    whole = json.loads((toy / "result.json").read_text())
    (run / "run.json").unlink()
    for name in names:  # any of them will do
        with pytest.raises(ValueError, match="is of another run"):
            train(changed(lr=1e-3), run)
        assert not (run / "run.json").exists()
        (run / name).rename(run / "kept")
        assert train(changed(workers=0, checkpoint_seconds=9), run).items() <= whole.items()
        (run / "run.json").unlink()


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("s3_tinny", "--data", "digits"), "no model or folder 's3_tinny'; did you mean 's3_tiny'?"),
        (("s3_tiny",), "No images are named"),
        (("s3_tiny", "--data", "cifar11"), "did you mean 'cifar10'?"),
        (("s3_tiny", "--data", "/nowhere"), "neither a folder nor one of"),
        (("TOY", "--set", "data.num_classes=7"), "data.num_classes is 7, but digits has 10 classes"),
        (("TOY", "--set", "data.classes=('0','x')"), "'x' is not among the classes of digits"),
        (("TOY", "--set", "mode=finetune"), "No weights are published for s3"),
        (("TOY", "--set", "weights=x"), "mode is 'scratch', but weights=x is set"),
        (("TOY", "--model", "autoformer_tiny", "--img-size", "32", "--weights", "FIVE"), "do not fit the model autof"),
        (("TOY", "--teacher", "FIVE"), "has 5 classes and reads 1 channels, but the data has 10 classes"),
        (("FIVE", "--data", "EMPTY"), "holds no split called 'train'"),
        (("EMPTY", "--data", "digits"), "holds no model"),
        (("FIVE/model/model.safetensors.txt", "--data", "digits"), "no model or folder"),
        (("TOY", "--set", "train.batch_size=4096"), "batch_size is 4096, but there are only"),
        (("TOY", "--root", "x"), "--root is 'x' without --data"),
    ],
)
def test_a_mistake_is_one_sentence(five, tmp_path, words, sentence):
    names = {"TOY": str(ROOT / "tests/toy_train.py"), "EMPTY": str(tmp_path / "empty"), "FIVE": str(five)}
    (tmp_path / "empty").mkdir()
    for name, path in names.items():
        words = tuple(word.replace(name, path) for word in words)
    code, said = command(*words, "--out", tmp_path / "out")
    assert code == 2 and sentence in said and said.count("\n") == 1, said
    assert not (tmp_path / "out/run.json").exists()


def test_weights_of_another_architecture_name_both_sides(five, tmp_path):
    file = tmp_path / "x.safetensors"
    save_file({"conv1.weight": torch.zeros(4, 3, 3, 3), "fc.weight": torch.zeros(5, 4)}, file)
    with pytest.raises(ValueError, match=r"weights of the file .*x\.safetensors do not fit the model s3: .*S3"):
        model_with("s3", str(file), arch=ARCH, img_size=8, in_chans=1, num_classes=3)
    with pytest.raises(ValueError, match=r"x\.safetensors do not fit the model resnet10t: 'bn1.bias' is missing"):
        model_with("resnet10t", str(file), num_classes=3)
    with pytest.raises(ValueError, match=r"weights of .*five.* do not fit the model autoformer_tiny"):
        model_with("autoformer_tiny", str(five), num_classes=3)


def test_named_datasets_have_the_papers_classes_and_sizes():
    table = {name: (data.num_classes, data.img_size) for name, data in DATASETS.items()}
    assert table == {
        "cifar10": (10, 384), "cifar100": (100, 384), "flowers": (102, 384), "cars": (196, 384), "pets": (37, 384),
        "tiny_imagenet": (200, 224), "sun397": (397, 224), "digits": (10, 0),
    }  # fmt: skip
    data = find_data("torch/fashion_mnist", "somewhere", download=True)
    assert (data.name, data.root, data.download, data.num_classes) == ("torch/fashion_mnist", "somewhere", True, 0)


def test_a_named_dataset_may_lie_in_folders(folder):
    data = find_data("pets", str(folder))
    assert (data.name, data.root, data.train_split, data.img_size) == ("", str(folder), "train", 384)
    assert find_data("pets", "elsewhere").name == "torch/oxford_iiit_pet"


@pytest.mark.parametrize("recipe", ["transfer", "s4_scratch", "digits"])
def test_a_folder_takes_the_place_of_a_recipes_dataset(folder, tmp_path, recipe):
    like = load_config(recipe, TrainRun, "train").data
    data = find_data(str(folder), like=like)
    assert (data.name, data.root, data.num_classes) == ("", str(folder), 0)
    assert (data.train_split, data.test_split) == ("train", "test")
    assert (data.img_size, data.mixup) == (like.img_size, like.mixup)
    if recipe != "digits":  # no images in it: where the recipe's own dataset lies
        assert find_data(str(tmp_path), like=like) == dataclasses.replace(like, root=str(tmp_path))


def test_tiny_imagenet_as_it_is_unpacked(tmp_path):
    names = [f"n{i:08d}" for i in range(3)]
    (tmp_path / "wnids.txt").write_text("\n".join(reversed(names)))
    lines = []
    for number, name in enumerate(names):
        for split, place in (("train", f"train/{name}/images"), ("val", "val/images")):
            (tmp_path / place).mkdir(parents=True, exist_ok=True)
            Image.new("RGB", (8, 8), (number, 0, 0)).save(tmp_path / place / f"{split}_{number}.JPEG")
        lines.append(f"val_{number}.JPEG\t{name}\t0\t0\t1\t1\n")
    (tmp_path / "val/val_annotations.txt").write_text("".join(lines))
    data = ImageData(Data(name="", root=str(tmp_path), num_classes=3, img_size=8, holdout=0, test_split="val"), 0)
    assert data.classes == tuple(names) and data.split.targets.tolist() == [0, 1, 2]
    assert next(data.test_batches())[1].tolist() == [0, 1, 2]


RECIPES = sorted(names("train"))


@pytest.mark.parametrize("name", RECIPES)
def test_every_recipe_loads_says_what_it_costs_and_names_known_models(name):
    run = load_config(name, TrainRun, "train")
    text = entry(name, "train").text
    assert run.name == name and "Expected:" in text and "Cost:" in text and "Command:" in text
    assert f"s3zoo train {name}" in text or name in ("finetune", "probe", "scratch")
    assert timm.is_model(run.model) and (not run.weights or timm.is_model(run.weights))
    assert not timm.is_model(name)  # else the command could not tell them apart
    json.dumps(to_dict(run))


def test_the_papers_figures_are_in_the_recipes():
    s3 = load_config("s3_384", TrainRun, "train").train
    assert (s3.epochs, s3.schedule, s3.lr, s3.weight_decay) == (10, "constant", 1e-5, 1e-8)
    scratch = ("glit_scratch", "s3_scratch", "autoformer_scratch")
    repeated = {name: load_config(name, TrainRun, "train").data.repeated_aug for name in scratch}
    assert repeated == {"glit_scratch": 3, "s3_scratch": 1, "autoformer_scratch": 1}  # DeiT, as GLiT: 3
    assert load_config("autoformer_finetune", TrainRun, "train").train.epochs == 40
    deit = load_config("transfer", TrainRun, "train")
    assert deit.train == Train(
        epochs=1000, batch_size=768, opt="sgd", lr=0.01, min_lr=1e-5, warmup_epochs=5, weight_decay=1e-4, drop_path=0.0
    )
    assert (deit.data.reprob, deit.data.mixup, deit.data.cutmix) == (0.0, 0.8, 1.0)
    assert load_config("autoformer_distil", TrainRun, "train").distil.kind == "hard"
