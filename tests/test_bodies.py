"""S4 on its other bodies from end to end at debug scale; a frozen tower in the pipeline, and its features on disk."""

import dataclasses
import hashlib
import importlib.util
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import timm
import torch
from PIL import Image
from safetensors.torch import load_file, save_file

from s3zoo import cost
from s3zoo.arch import Arch, Stage
from s3zoo.models import ladder
from s3zoo.models import tower as towers
from s3zoo.models.tower import build_tower, tower_features
from s3zoo.search import run as search_run
from s3zoo.search import s3
from s3zoo.search.command import plan
from s3zoo.search.config import SearchRun
from s3zoo.search.latency import LatencyTable
from s3zoo.search.phases import train_supernet
from s3zoo.search.run import first_space, prepare
from s3zoo.search.space_search import Decision
from s3zoo.space import S4_CLIP, Space
from s3zoo.supernet import Supernet
from s3zoo.training import features
from s3zoo.training.config import Data, Tower, Train, load_config, overridden
from s3zoo.training.data import ImageData
from s3zoo.training.distributed import Ranks
from s3zoo.training.features import FeatureData, check_not_augmented
from s3zoo.training.log import Log
from s3zoo.training.loop import Interrupted, ModelTask, Stop, SupernetTask, fit

pytestmark = pytest.mark.usefixtures("one_thread")

HERE = Path(__file__).parent
TOOL = HERE.parent / "tools" / "search.py"
ONE = Ranks(0, 1, torch.device("cpu"))
BODIES = ("swin", "shunted", "clip")


def config(name: str, *settings: str) -> SearchRun:
    return overridden(load_config(name, SearchRun, "search"), settings)


def search(run: SearchRun, folder: Path, stop: Stop | None = None) -> dict[str, Any]:
    return search_run.search(run, folder, ONE, Log(folder, tracks=False), stop or Stop())


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def weights(folder: Path) -> dict[str, str]:
    """Of the exported network and of the last checkpoint of every training."""
    newest = {max(place.parent.glob("step-*")) for place in folder.rglob("step-*")}
    files = [folder / "model/model.safetensors", *(place / "tensors.safetensors" for place in newest)]
    return {str(file.relative_to(folder)): digest(file) for file in files}


# S4 on every body


def on(body: str) -> SearchRun:
    """With a seed whose supernets tell networks apart in the sums of any torch: else a decision may be to stay."""
    return config(f"debug_s4_{body}", *(["seed=2"] if body == "swin" else []))


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    torch.set_num_threads(1)
    folders = {body: tmp_path_factory.mktemp(body) for body in BODIES}
    for body, folder in folders.items():
        search(on(body), folder)
    return folders


@pytest.mark.parametrize("body", BODIES)
def test_the_limit_holds_in_every_space_and_for_every_network(body: str, finished: dict[str, Path]) -> None:
    """Sizes are those of built networks, not of the closed form that the search goes by."""
    folder, run = finished[body], on(body)
    limit = run.space_search.upper
    tower = build_tower("test_vit", img_size=32, in_chans=1)
    args: dict[str, Any] = {"img_size": run.data.img_size, "in_chans": 1, "num_classes": 10}
    args |= {"tower": tower} if body == "clip" else {}

    def size(arch: Arch) -> int:
        kind = {"s3": "s3", "shunted": "shunted", "ladder": "clip_ladder"}[arch.family]
        arch = arch.effective(run.data.img_size)  # a window larger than the map is none
        return sum(p.numel() for p in timm.create_model(kind, arch=arch, **args).parameters())

    spaces = [Space.from_dict(json.loads(path.read_text())) for path in sorted(folder.glob("space*/space.json"))]
    largest = [size(space.largest()) for space in spaces]
    legal = [params < limit for params in largest]
    assert len(spaces) == 3 and not legal[0]  # as the paper's first spaces, it starts beyond the limit
    assert all(legal[legal.index(True) :]) and legal[-1]
    decisions = [row["decision"] for row in lines(folder / "space_search.jsonl")]
    assert all(decision["method"] == "s4" for decision in decisions)
    assert [decision["largest_after"] for decision in decisions] == largest[1:]
    evaluated = lines(folder / "space2/evaluated.jsonl")
    assert len(evaluated) == 12
    searched = {arch.effective(run.data.img_size) for arch in spaces[-1].enumerate()}
    for row in evaluated:
        arch = Arch.from_dict(row["arch"])
        assert row["params"] == size(arch) < limit and arch in searched


def test_the_winners_give_the_reported_accuracies_in_a_new_process(finished: dict[str, Path]) -> None:
    code = (
        "import sys, s3zoo, timm, torch\n"
        "from s3zoo.training.config import Data\nfrom s3zoo.training.data import ImageData\n"
        "torch.set_num_threads(1)\n"
        "for folder, data in eval(sys.argv[1]):\n"
        "    model = timm.create_model('local-dir:' + folder, pretrained=True).eval()\n"
        "    right = total = 0\n"
        "    with torch.no_grad():\n"
        "        for images, targets in ImageData(Data(**data), 0).test_batches():\n"
        "            right += int((model(images).argmax(1) == targets).sum()); total += len(targets)\n"
        "    print(100 * right / total)\n"
    )
    runs = [(str(finished[b] / "model"), dataclasses.asdict(on(b).data)) for b in BODIES]
    ran = subprocess.run([sys.executable, "-c", code, repr(runs)], capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr
    for body, printed in zip(BODIES, ran.stdout.splitlines()[-3:], strict=True):
        winner = json.loads((finished[body] / "result.json").read_text())["winners"][0]
        assert float(printed) == pytest.approx(winner["test"]["top1"], abs=1e-9), body
        exported = json.loads((finished[body] / "model/config.json").read_text())
        assert exported["s3zoo"]["params"] == winner["params"]


# The tower in the pipeline


@pytest.fixture(scope="module")
def ladder_run(finished: dict[str, Path]) -> Path:
    return finished["clip"]


def test_features_kept_or_not_the_weights_are_the_same(ladder_run: Path, tmp_path: Path, monkeypatch) -> None:
    """The whole pipeline, bit for bit; and without a cache one tower runs once a batch, gets no gradient and stays."""
    built, seen = [], []
    create, compute = timm.create_model, towers.tower_features

    def created(*args: Any, **kwargs: Any) -> Any:
        built.append(create(*args, **kwargs))
        return built[-1]

    def computed(tower: Any, images: torch.Tensor, depth: int) -> torch.Tensor:
        seen.append(len(images))
        return compute(tower, images, depth)

    monkeypatch.setattr(towers.timm, "create_model", created)
    monkeypatch.setattr(features, "tower_features", computed)
    search(config("debug_s4_clip", "tower.cache=none"), tmp_path)
    assert weights(tmp_path) == weights(ladder_run) and len(weights(ladder_run)) == 5
    assert lines(tmp_path / "space2/evaluated.jsonl") == lines(ladder_run / "space2/evaluated.jsonl")
    assert not (tmp_path / "features").exists()

    real = [m for m in built if isinstance(m, timm.models.VisionTransformer) and not next(m.parameters()).is_meta]
    assert len(real) == 1  # over three spaces, all candidates and the retraining
    assert all(p.grad is None and not p.requires_grad for p in real[0].parameters())
    untouched = build_tower("test_vit", img_size=32, in_chans=1).state_dict()
    assert all(torch.equal(value, untouched[name]) for name, value in real[0].state_dict().items())
    assert set(seen) == {features.GROUP}  # whatever the size of the batch
    stored = load_file(next((ladder_run / "space0/supernet").glob("step-*")) / "tensors.safetensors")
    assert not any("tower" in name or "patch_embed" in name for name in stored)


def test_with_all_features_kept_the_tower_is_idle(ladder_run: Path, tmp_path: Path, monkeypatch) -> None:
    """A second run on the same images runs it on one group of each set, to see that they are the same."""
    seen = []
    compute = towers.tower_features
    monkeypatch.setattr(features, "tower_features", lambda *args: seen.append(len(args[1])) or compute(*args))
    settings = ("supernet.epochs=1", f"tower.cache_dir={ladder_run / 'features'}", "space_search.method=none")
    run = config("debug_s4_clip", *settings)
    other = prepare(run, tmp_path, ONE, Log(tmp_path, tracks=False), Stop())
    train_supernet(other, run.space, tmp_path / "space0", None)
    assert seen == [features.GROUP, features.GROUP]
    plain = ImageData(run.data, run.seed)
    tower = build_tower("test_vit", img_size=32, in_chans=1)
    images, targets = plain.search_at(np.array([3, 77]))
    kept, classes = other.data.search_at(np.array([3, 77]))
    assert torch.equal(classes, targets)
    torch.testing.assert_close(kept, tower_features(tower, images, 3), atol=1e-5, rtol=1e-5)


def start(folder: Path, *settings: str) -> subprocess.Popen:
    words = [part for setting in settings for part in ("--set", setting)]
    command = [sys.executable, str(TOOL), "debug_s4_clip", "--no-report", "--out", str(folder), *words]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(HERE.parent)}
    return subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True
    )


def test_a_killed_run_ends_with_the_same_bits(ladder_run: Path, tmp_path: Path) -> None:
    process = start(tmp_path, "supernet.checkpoint_seconds=0")
    deadline = time.monotonic() + 120
    while not list(tmp_path.glob("space1/supernet/step-*")):
        assert process.poll() is None and time.monotonic() < deadline, process.stdout.read()
        time.sleep(0.005)
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    assert not (tmp_path / "result.json").exists()
    process = start(tmp_path)
    output = process.communicate(timeout=240)[0]
    assert process.returncode == 0 and "resumed" in output, output
    assert weights(tmp_path) == weights(ladder_run)


def test_another_tower_is_refused(ladder_run: Path, tmp_path: Path) -> None:
    run = json.loads((ladder_run / "run.json").read_text())
    tower: Any = build_tower("test_vit", img_size=32, in_chans=1)
    assert run["tower"] == {"name": "test_vit", "sha256": tower.tower_source["sha256"]}
    state = tower.state_dict()
    save_file(state, tmp_path / "same.safetensors")
    state["norm.bias"] = state["norm.bias"] + 1e-3
    save_file(state, tmp_path / "other.safetensors")
    with pytest.raises(ValueError, match="a run with another tower"):
        search(config("debug_s4_clip", f"tower.weights={tmp_path / 'other.safetensors'}"), ladder_run)
    assert search(config("debug_s4_clip", f"tower.weights={tmp_path / 'same.safetensors'}"), ladder_run)
    with pytest.raises(ValueError, match=r"tower\.name"):
        search(config("debug_s4_clip", "tower.name=test_vit2"), ladder_run)
    shutil.copytree(ladder_run / "model", tmp_path / "model")
    path = tmp_path / "model/config.json"
    exported = json.loads(path.read_text())
    assert exported["s3zoo"]["provenance"]["tower"] == run["tower"]
    with pytest.raises(ValueError, match="not those that the decoder was trained with"):
        timm.create_model(
            f"local-dir:{tmp_path / 'model'}", pretrained=True, pretrained_tower=str(tmp_path / "other.safetensors")
        )


def test_a_latency_budget_of_decoders(tmp_path: Path) -> None:
    """The tower's time is part of the way to the first layer, and the table is for that tower."""
    run = config("debug_s4_clip")
    shape: dict[str, Any] = {"img_size": 32, "num_classes": 10, "in_chans": 1}
    table = LatencyTable.empty(run.space, **shape, tower="test_vit")
    table.cover(run.space, repeats=1)
    frame = next(ms for part, ms in table.entries.items() if part.genes is None and part.stage == 0)
    assert table.tower is not None and frame > 0
    table.save(tmp_path / "latency.json")
    assert LatencyTable.load(tmp_path / "latency.json", tower="test_vit", **shape).entries == table.entries
    with pytest.raises(ValueError, match="measured with tower 'test_vit'"):
        LatencyTable.load(tmp_path / "latency.json", tower="test_vit2")
    settings = ("space_search.method=none", "supernet.epochs=1", "final.mode=inherit", "tower.cache=none")
    limited = config(
        "debug_s4_clip", *settings, "arch_search.budgets=latency<=10000ms", "arch_search.latency_repeats=1"
    )
    winner = search(limited, tmp_path / "run")["winners"][0]
    assert 0 < winner["latency"] <= 10_000
    assert json.loads((tmp_path / "run/latency.json").read_text())["tower"] == "test_vit"


# The cache by itself

STILL = Data(
    name="digits", holdout=70, train_limit=90, num_classes=10, img_size=32, in_chans=1, mean=(0.3,), std=(0.4,),
    crop_pct=1.0, scale=(1, 1), ratio=(1, 1), hflip=0.0, color_jitter=0.0,
)  # fmt: skip


def feature_data(folder: Path | None, cache: str = "all", data: Data = STILL, stop: Stop | None = None) -> FeatureData:
    tower = build_tower("test_vit", img_size=data.img_size, in_chans=data.in_chans)
    return FeatureData(data, 0, tower, ONE, cache=cache, folder=folder, stop=stop)


def trained(data: FeatureData, folder: Path) -> str:
    """A decoder after a few epochs of fit(), as a hash."""
    data.reach(2)
    torch.manual_seed(0)
    arch = Arch("ladder", (Stage(8, (ladder.LadderBlock(2, 8, 1.0),) * 2),))
    model = ladder.Ladder(arch, data.tower, img_size=32, in_chans=1, num_classes=10, drop_path_rate=0.2)
    train = Train(epochs=3, batch_size=20, accumulate=2, lr=1e-2, warmup_epochs=0, ema=0.5)
    fit(ModelTask(model), train, data, seed=3, ranks=ONE, folder=folder, log=Log(None, speaks=False), name="decoder")
    values = b"".join(p.detach().numpy().tobytes() for p in model.parameters())
    return hashlib.sha256(values).hexdigest()


def test_fit_gives_the_same_bits_with_and_without_a_cache(tmp_path: Path) -> None:
    none = trained(feature_data(None, "none"), tmp_path / "a")
    first = trained(feature_data(tmp_path / "kept"), tmp_path / "b")
    again = trained(feature_data(tmp_path / "kept"), tmp_path / "c")
    workers = trained(feature_data(tmp_path / "more", data=dataclasses.replace(STILL, workers=2)), tmp_path / "d")
    assert none == first == again == workers
    flipped = feature_data(None, "none", data=dataclasses.replace(STILL, hflip=0.5))
    assert trained(flipped, tmp_path / "e") != none


def test_the_tower_runs_once_a_batch_for_all_networks_of_a_step(tmp_path: Path, monkeypatch) -> None:
    """The sandwich trains four decoders on every batch."""
    run = config("debug_s4_clip", "supernet.sampling=sandwich", "supernet.epochs=1", "supernet.batch_size=30")
    data = feature_data(None, "none")
    data.reach(3)
    supernet = Supernet(run.space, img_size=32, in_chans=1, num_classes=10, model_args={"tower": data.tower})
    seen: list[int] = []
    compute = towers.tower_features
    monkeypatch.setattr(features, "tower_features", lambda *args: seen.append(1) or compute(*args))
    monkeypatch.setattr(towers, "tower_features", lambda *args: pytest.fail("a decoder ran the tower itself"))
    log = Log(None, speaks=False)
    task = SupernetTask(supernet, run.supernet, 0)
    assert len(task.models(0)) == 4
    fit(task, run.supernet, data, seed=0, ranks=ONE, folder=tmp_path, log=log, name="supernet")
    assert len(seen) == 90 // 30


def test_s3_moves_decoders_too(tmp_path: Path) -> None:
    settings = ("space_search.method=s3", "space_search.samples=8", "space_search.iterations=1", "supernet.epochs=1")
    search(config("debug_s4_clip", *settings, "final.mode=inherit", "arch_search.budgets=()"), tmp_path)
    decisions = [row["decision"] for row in lines(tmp_path / "space_search.jsonl")]
    assert [decision["method"] for decision in decisions] == ["s3"]
    assert {row["name"] for row in decisions[0]["dims"]} == {"depth", "embed_dim", "num_heads", "mlp_ratio"}


def test_backtracking_to_deeper_decoders(tmp_path: Path, monkeypatch) -> None:
    """The space that is left read fewer layers of the tower than the one that is searched in the end."""

    def shallower(space: Space, *args: Any, **kwargs: Any) -> Decision:
        return Decision(space.replaced({"depth": (2,)}), True, "", {"dims": []})

    monkeypatch.setattr(s3, "decide", shallower)
    monkeypatch.setattr(search_run, "backtrack", lambda *args: 0)
    settings = ("space_search.method=s3", "space_search.samples=2", "space_search.iterations=1", "supernet.epochs=1")
    settings += ("space_search.backtrack=true", "final.mode=inherit", "arch_search.budgets=()")
    result = search(config("debug_s4_clip", *settings), tmp_path)
    assert "best" in result["spaces"][0] and "best" not in result["spaces"][1]
    evaluated = lines(tmp_path / "space0/evaluated.jsonl")
    assert any(Arch.from_dict(row["arch"]).depths == (3,) for row in evaluated)


def test_an_interrupted_cache_is_continued(tmp_path: Path, monkeypatch) -> None:
    """Killed after two secured portions, then stopped by request after another; what is there is not computed again."""
    monkeypatch.setattr(features, "GROUP", 10)
    monkeypatch.setattr(features, "AUTOSAVE_SECONDS", -1.0)
    whole = feature_data(tmp_path / "whole")
    whole.reach(2)

    seen: list[int] = []
    compute = towers.tower_features

    def breaks(*args: Any) -> torch.Tensor:
        if len(seen) == 2:
            raise KeyboardInterrupt
        seen.append(1)
        return compute(*args)

    monkeypatch.setattr(features, "tower_features", breaks)
    with pytest.raises(KeyboardInterrupt):
        feature_data(tmp_path / "cut").reach(2)
    part = next((tmp_path / "cut").glob("scored-*"))
    secured = lines(part / "progress.jsonl")
    assert [(row["start"], row["stop"]) for row in secured] == [(0, 10), (10, 20)]
    scribbled = np.lib.format.open_memmap(part / "block-5.npy.part", "r+")
    scribbled[20:25] = 1.0  # a portion that was not secured
    scribbled.flush()

    monkeypatch.setattr(features, "tower_features", lambda *args: seen.append(1) or compute(*args))
    stop = Stop()
    stop.asked = True
    with pytest.raises(Interrupted, match="after 30 of 70 images"):
        feature_data(tmp_path / "cut", stop=stop).reach(2)
    seen.clear()
    feature_data(tmp_path / "cut").reach(2)
    assert len(seen) == 4 + 9  # 40 scored and 90 training images were left
    files = [p.relative_to(tmp_path / "whole") for p in sorted((tmp_path / "whole").rglob("*.npy"))]
    assert len(files) == 2 * 3 and not list((tmp_path / "cut").rglob("*.part"))
    assert all(digest(tmp_path / "cut" / file) == digest(tmp_path / "whole" / file) for file in files)


def test_a_deeper_decoder_adds_a_layer(tmp_path: Path) -> None:
    data = feature_data(tmp_path, "scored")
    data.reach(2)
    folder = next(tmp_path.iterdir())
    before = {p.name: p.stat().st_mtime_ns for p in folder.glob("*.npy")}
    data.reach(4)
    after = {p.name: p.stat().st_mtime_ns for p in folder.glob("*.npy")}
    assert after.keys() == {"targets.npy", *(f"block-{i}.npy" for i in (2, 3, 4, 5))}
    assert all(after[name] == when for name, when in before.items())
    places = np.arange(40)
    live = feature_data(None, "none")
    live.reach(4)
    assert torch.equal(data.search_at(places)[0], live.search_at(places)[0])
    data.reach(1)
    assert torch.equal(data.search_at(places)[0], live.search_at(places)[0][:, -1:])


@pytest.mark.parametrize(
    "change",
    [
        {"mean": (0.5,)}, {"std": (0.5,)}, {"img_size": 48}, {"interpolation": "bilinear"}, {"train_limit": 80},
        {"crop_pct": 0.8},
    ],
    ids=lambda change: next(iter(change)),
)  # fmt: skip
def test_other_images_have_another_cache(change: dict[str, Any], tmp_path: Path) -> None:
    feature_data(tmp_path, "scored").reach(1)
    feature_data(tmp_path, "scored", data=dataclasses.replace(STILL, **change)).reach(1)
    assert len(list(tmp_path.iterdir())) == 2


def test_another_tower_has_another_cache(tmp_path: Path) -> None:
    data = feature_data(tmp_path, "scored")
    data.reach(1)
    state = dict(data.tower.state_dict())
    state["blocks.0.attn.qkv.bias"] = state["blocks.0.attn.qkv.bias"] + 1e-4
    save_file(state, tmp_path / "tower.safetensors")
    other = build_tower("test_vit", tmp_path / "tower.safetensors", img_size=32, in_chans=1)
    FeatureData(STILL, 0, other, ONE, cache="scored", folder=tmp_path).reach(1)
    assert len(list(tmp_path.glob("scored-*"))) == 2


def test_changed_files_are_noticed(tmp_path: Path) -> None:
    feature_data(tmp_path, "scored").reach(1)
    path = next(tmp_path.rglob("block-5.npy"))
    content = bytearray(path.read_bytes())
    content[-1] ^= 64  # of the last image
    path.write_bytes(content)
    with pytest.raises(ValueError, match="holds other features than the tower gives now"):
        feature_data(tmp_path, "scored").reach(1)
    path.write_bytes(content[:-100])
    with pytest.raises(ValueError, match="is damaged"):
        feature_data(tmp_path, "scored").reach(1)


def test_a_full_disk_is_told_before_anything_is_written(tmp_path: Path, monkeypatch) -> None:
    log = Log(tmp_path / "log", tracks=False)
    data = FeatureData(STILL, 0, feature_data(None, "none").tower, ONE, cache="all", folder=tmp_path / "kept", log=log)
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(features.shutil, "disk_usage", lambda path: usage._replace(free=features.SPARE + 5))
    with pytest.raises(ValueError, match=r"Features of 0.18 MB .* tower.cache_dir") as error:
        data.reach(2)
    assert "\n" not in str(error.value)
    assert 70 * (2 * 5 * 64 * 4 + 8) == 179_760  # images x (layers x tokens x width x 4 bytes + a label)
    assert "2 layers of 70 images, 0.18 MB" in (tmp_path / "log/log.txt").read_text()
    assert not list(tmp_path.rglob("*.part"))


def test_augmented_images_are_not_kept(tmp_path: Path) -> None:
    varied = dataclasses.replace(STILL, hflip=0.5, mixup=0.8)
    with pytest.raises(ValueError, match=r"augmented \(data.hflip, data.mixup\)") as error:
        feature_data(tmp_path, data=varied)
    assert "\n" not in str(error.value)
    feature_data(tmp_path, "scored", data=varied).reach(1)  # these are never augmented
    assert [path.name.partition("-")[0] for path in tmp_path.iterdir()] == ["scored"]
    check_not_augmented(STILL, "x", "y", "z")
    others = {"scale": (0.5, 1), "ratio": (0.5, 1), "random_crop_pad": 1, "color_jitter": 0.4, "reprob": 0.1}
    for key, value in (others | {"auto_augment": "rand-m9", "cutmix": 1.0, "repeated_aug": 3}).items():
        with pytest.raises(ValueError, match=rf"^x, but .* augmented \(data\.{key}\), so that y differ .* use z, or"):
            check_not_augmented(dataclasses.replace(STILL, **{key: value}), "x", "y", "z")


def test_unreadable_images_have_substitutes_in_the_cache_too(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    for split, count in (("train", 12), ("test", 2)):
        for label in "ab":
            (tmp_path / split / label).mkdir(parents=True)
            for i in range(count):
                pixels = rng.integers(0, 255, (32, 32, 3), dtype=np.uint8)
                Image.fromarray(pixels).save(tmp_path / split / label / f"{i:02}.png")
    for name in ("a/03.png", "b/11.png"):
        (tmp_path / "train" / name).write_bytes(b"broken")
    data = dataclasses.replace(
        STILL, name="", root=str(tmp_path), num_classes=2, in_chans=3, mean=(0.5,) * 3, std=(0.5,) * 3, holdout=6,
        train_limit=0,
    )  # fmt: skip
    batches = []
    for cache in ("none", "all"):
        images = feature_data(tmp_path / "kept", cache, data)
        images.reach(1)
        found = [(*images.mixup(x, y, 0), rows) for x, y, rows in images.train_batches(1, 4)]
        batches.append([torch.cat([part[i].flatten(1) if i == 0 else part[i] for part in found]) for i in range(3)])
        assert images.unreadable
    assert all(torch.equal(a, b) for a, b in zip(*batches, strict=True))


# Settings and mistakes


def test_mistakes_are_one_sentence(tmp_path: Path) -> None:
    weights = tmp_path / "tower.safetensors"
    save_file({"a": torch.zeros(1)}, weights)
    deep = S4_CLIP.replaced({"depth": (6, 7)})
    run = config("debug_s4_clip")
    for call, match in (
        (lambda: config("s4_swin_cifar10", "tower.name=test_vit"), "space family 's3' read none"),
        (lambda: config("debug_s4_clip", "tower.cache=some"), "tower.cache is 'some'"),
        (lambda: config("debug_s4_clip", "tower.name="), "must not be empty"),
        (lambda: plan(config("debug_s4_clip", "tower.name=test_vitt")), "which timm does not know"),
        (lambda: plan(config("debug_s4_clip", "tower.name=resnet10t")), "must be a timm vision transformer"),
        (lambda: search(config("debug_s4_clip", "tower.weights=/nowhere"), tmp_path / "a"), "no file with weights"),
        (lambda: search(config("debug_s4_clip", f"tower.weights={weights}"), tmp_path / "a"), "cannot be loaded"),
        (lambda: search(dataclasses.replace(run, space=deep), tmp_path / "a"), "has fewer blocks"),
        (lambda: search(config("debug_s4_clip", "data.hflip=0.5"), tmp_path / "a"), "tower.cache is 'all'"),
    ):
        with pytest.raises(ValueError, match=match) as error:
            call()
        assert "\n" not in str(error.value)
    assert not (tmp_path / "a/run.json").exists()


def test_a_plan_tells_of_the_tower() -> None:
    shown = plan(config("s4_clip_cifar10"))
    assert "parameters   15,155,194 to " in shown  # 768 wide
    assert "2.42 MB an image in 4 layers, kept of 5,000 images: 12.1 GB" in shown  # 4 x 197 x 768 x 4 bytes
    small = plan(config("debug_s4_clip"))
    lowest = cost.params(config("debug_s4_clip").space.smallest(), num_classes=10, tower_dim=64)
    assert re.search(rf"parameters +{lowest:,} to", small)


def test_decoders_do_not_grow_deeper_than_their_tower(tmp_path: Path) -> None:
    run = dataclasses.replace(config("debug_s4_clip"), tower=Tower("test_vit", weights="random"))
    space = first_space(prepare(run, tmp_path, ONE, Log(tmp_path, tracks=False), Stop()))
    assert space["depth"].high == 6 and space["depth"].choices == run.space["depth"].choices
    assert space.moved({"depth": 4})["depth"].choices == (6,)


def test_the_benchmark_reads_a_ladder_run(ladder_run: Path) -> None:
    path = HERE.parent / "benchmarks" / "winner_vs_random.py"
    spec = importlib.util.spec_from_file_location("winner_vs_random", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    winner, others = module.compare(ladder_run, 3)
    assert 0 <= winner <= 100 and len(others) == 3
