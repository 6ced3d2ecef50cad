"""A search without a config: what is planned for images and hours, how a folder is split, and that hours are kept."""

import dataclasses
import json
import shutil
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from test_search import search, toy

from s3zoo import cli, cost
from s3zoo.search import plan, start, stock
from s3zoo.search.around import network
from s3zoo.search.budget import Budget
from s3zoo.search.config import SearchRun
from s3zoo.training.config import Data, load_config, overridden
from s3zoo.training.splits import Digits, open_split

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """300 digits in class folders, without splits; the first image of 0 is there three times, once among the ones."""
    folder = tmp_path_factory.mktemp("data") / "mine"
    digits = Digits(train=True)
    for index in range(300):
        image, target = digits[index]
        (folder / str(target)).mkdir(parents=True, exist_ok=True)
        image.save(folder / str(target) / f"{index:04}.png")
    first = sorted((folder / "0").iterdir())[0]
    shutil.copy(first, folder / "0" / "copy.png")
    shutil.copy(first, folder / "1" / "copy.png")
    return folder


@pytest.fixture
def fast(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine of known speed."""
    monkeypatch.setattr(plan, "measured_speed", lambda *_, **__: (1e9, 2e9))
    monkeypatch.setattr(plan, "timed_in_turns", lambda *_: [1.0])
    monkeypatch.setattr(plan, "_TIMED", {})


def names(split) -> list[str]:
    return [split.name(i) for i in range(len(split))]


@pytest.mark.parametrize("seed", range(5))
def test_a_plain_folder_is_split_by_seed_stratified_with_copies_on_one_side(images: Path, seed: int) -> None:
    data = Data(name="", root=str(images), test_share=0.25, split_seed=seed)
    train, test = (open_split(data, which) for which in ("train", "test"))
    assert not set(names(train)) & set(names(test)) and len(train) + len(test) == 302
    whole = np.bincount(train.targets) + np.bincount(test.targets)
    assert np.abs(np.bincount(test.targets) - 0.25 * whole).max() <= 2.5  # copies may move two
    copies = [name for name in names(train) if name.endswith("copy.png")]
    assert len(copies) in (0, 2)
    again = open_split(data, "test")
    assert names(again) == names(test) and again.digest() != train.digest()
    other = open_split(dataclasses.replace(data, split_seed=seed + 9), "test")
    assert names(other) != names(test)


@pytest.mark.parametrize("budgets, hours", [((), 1.0), (("params<=60K",), 0.1), (("macs<=300K", "latency<=5ms"), 8.0)])
def test_a_plan_fits_the_hours_and_the_budget(images: Path, fast: None, budgets: tuple[str, ...], hours: float) -> None:
    made = plan.make_plan(str(images), budgets, hours)
    run = made.config
    assert (run.data.img_size, run.data.in_chans, run.data.num_classes) == (8, 1, 10)
    assert run.data.test_share == plan.TEST_SHARE and 40 <= run.data.holdout <= 60
    assert run.arch_search.budgets == budgets and run.hours == hours
    assert sum(seconds for _, seconds in made.phases) <= 3600 * hours
    assert run.controls.stock and run.arch_search.racing
    told = made.told()
    for word in ("image size", "space", "supernet", "final training", "minutes", "held out"):
        assert word in told
    longer = plan.make_plan(str(images), budgets, 4 * hours).config
    assert longer.supernet.epochs >= run.supernet.epochs and longer.final.train.epochs >= run.final.train.epochs


@pytest.mark.parametrize("others, factor, threads", [(0.1, 1.5, 2), (0.1, 1.05, 1), (0.5, 1.5, 1)])
def test_threads_that_others_leave_and_that_help(images: Path, monkeypatch, others, factor, threads) -> None:
    speed = lambda *_, threads=1, **__: (1e9 * factor ** (threads - 1),) * 2  # noqa: E731
    monkeypatch.setattr(plan, "measured_speed", speed)
    monkeypatch.setattr(plan, "watch_others", lambda: lambda: others)
    monkeypatch.setattr(plan.os, "cpu_count", lambda: 2)
    made = plan.make_plan(str(images), ("params<=60K",))
    assert made.config.threads == threads and ("50%" in made.told()) == (others == 0.5)


def test_settings_change_what_was_planned_and_what_is_told(images: Path, fast: None) -> None:
    usual = plan.make_plan(str(images), ("params<=60K",))
    changed = plan.make_plan(str(images), ("params<=60K",), settings=["supernet.epochs=3", "seed=7"])
    assert (changed.config.supernet.epochs, changed.config.seed) == (3, 7) and usual.config.supernet.epochs > 30
    assert dict(changed.phases)["space0: supernet"] < 0.1 * dict(usual.phases)["space0: supernet"]
    (told,) = [reason.value for reason in changed.reasons if reason.what == "supernet"]
    assert told.startswith("3 epochs") and "supernet.epochs=3, seed=7" in changed.told()


def test_a_plan_times_networks_in_their_runtime_each_once(images: Path, fast: None, monkeypatch) -> None:
    """Those of timm are asked for again when the run begins."""
    pytest.importorskip("onnxruntime")
    seen: list[tuple[str, str]] = []
    monkeypatch.setattr(plan, "runner", lambda model, _, runtime, __: seen.append((type(model).__name__, runtime)))
    run = plan.make_plan(str(images), ("latency<=5ms",), runtime="onnx").config
    assert {runtime for _, runtime in seen} == {"onnx"} and len(seen) > 5
    before = len(seen)
    plan.price_lists(run)
    assert len(seen) == before


def test_a_plan_around_a_network_keeps_to_its_size_and_to_the_budget(images: Path, fast: None) -> None:
    arch, _ = network("s3_nano")
    size = cost.params(arch, num_classes=10, in_chans=1, img_size=8)
    run = plan.make_plan(str(images), ("latency<=5ms", "params<=1M"), around="s3_nano").config
    assert run.arch_search.budgets == (f"latency<=5ms, params<={size}", "params<=1M")
    assert run.space.contains(arch) and run.controls.designed_arch(run.space) == arch and run.hours == 1
    made = plan.make_plan(str(images), (f"params<={size - 1}",), 0.5, around="s3_nano")
    assert not made.config.controls.designed and made.config.controls.stock and "not s3_nano itself" in made.told()
    assert sum(seconds for _, seconds in made.phases) <= 1800
    begun = plan.make_plan(str(images), around="s3_nano", start="s3_nano", controls=False).config
    assert (begun.start, begun.final.mode, len(begun.controls)) == ("s3_nano", "finetune", 0)


def test_few_images_begin_from_weights_that_fit(images: Path, fast: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where there are some, the hours and the budget allow it and they can be had; without a network at once."""

    def planned(*starts: str, budget: str = "params<=60K", hours: float = 1.0, **options) -> tuple[str, str]:
        monkeypatch.setattr(plan, "known_starts", lambda size, chans: list(starts))
        made = plan.make_plan(str(images), (budget,), hours, controls=False, **options)
        (reason,) = [reason for reason in made.reasons if reason.what == "weights"] or [plan.Reason("", "", "")]
        assert (made.config.final.mode == "finetune") == (made.config.start != "")
        return made.config.start, reason.why

    assert planned("s3_nano") == (
        "s3_nano",
        "few images; if yours are among those that it was trained on, give --no-start",
    )
    assert planned("s3_nano", start="") == ("", "")
    assert planned() == ("", "none that s3zoo knows is for such images")
    assert planned("s3_tiny", "s3_nano")[0] == "s3_nano"  # the first is beyond the budget
    assert "beyond the budget" in planned("s3_tiny")[1]
    assert "beyond the hours" in planned("s3_tiny", budget="params<=1G")[1]
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    begun = time.monotonic()
    start, why = planned("s3_tiny", budget="params<=1G", hours=1e5)
    assert start == "" and "s3_tiny" in why and "cannot be" in why and time.monotonic() - begun < 60
    monkeypatch.setattr(plan, "FEW", 10)
    assert planned("s3_nano") == ("", "there are 10 training images or more")


@pytest.mark.parametrize("rate, lr", [(None, 5e-4), (1e-3, 1e-3), (0.1, 2e-3)])
@pytest.mark.parametrize("around", [None, "s3_nano"])
def test_a_search_that_is_the_start_gives_the_rate(images: Path, fast: None, monkeypatch, around, rate, lr) -> None:
    """Of learning, but none higher than from scratch; other weights go on at a quarter of that."""
    given = dataclasses.replace(start.read_start("s3_nano"), rate=rate)
    monkeypatch.setattr(plan, "read_start", lambda place: given)
    run = plan.make_plan(str(images), start="mine", around=around, controls=False).config
    assert run.supernet.lr == run.final.train.lr == lr


def test_which_weights_fit_which_images(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    known = [("a.photos", 3, 32, 70.0), ("b.grey", 1, 32, 60.0), ("c.digits", 1, 8, 99.0), ("d.photos", 3, 32, 71.5)]
    for name, channels, size, accuracy in known:
        cfg, measured = {"input_size": [channels, size, size]}, {"provenance": {"metrics": [{"value": accuracy}]}}
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.json").write_text(json.dumps({"pretrained_cfg": cfg, "s3zoo": measured}))
    monkeypatch.setattr(start, "BUNDLED", tmp_path)
    found = {shape: start.known_starts(*shape) for shape in ((32, 3), (32, 1), (8, 1), (64, 3), (224, 3), (224, 1))}
    assert list(found.values()) == [["d.photos", "a.photos"], ["b.grey"], [], [], ["s3_tiny"], []]


def test_one_line_from_weights_that_are_there(images: Path, tmp_path: Path, monkeypatch, fast: None, capsys) -> None:
    """All networks of the supernet go on with its weights; those of timm have none, which is said."""
    monkeypatch.setattr(stock, "LISTS", {"transformer": ("test_vit",), "cnn": ("lcnet_050",)})
    words = ["search", "--data", str(images), "--start", "s3_nano", "--hours", "0.002", "--no-report"]
    assert cli.main([*words, "--out", str(tmp_path)]) == 0
    said = capsys.readouterr().out
    assert "transformer (test_vit), from scratch" in said and "the supernet begins with those of s3_nano" in said
    rows = {
        row["control"]: row.get("from_scratch", False)
        for row in json.loads((tmp_path / "result.json").read_text())["controls"]
    }
    assert rows == {"random": False, "transformer": True, "cnn": True}
    origin = json.loads((tmp_path / "model/config.json").read_text())["s3zoo"]["provenance"]
    assert origin["base"]["name"] == "s3_nano" and origin["final"].startswith(("finetune", "inherit"))


@pytest.mark.parametrize(
    "words, sentence",
    [
        (["--data", "{here}/none"], "no folder"),
        (["--data", "{images}", "--hours", "0"], "must be above 0"),
        (["--data", "{images}", "--budget", "params<=100"], "loosen the budget"),
        (["--data", "{images}", "--budget", "latency<=0.5ms"], "MACs and takes 1 ms, so loosen"),
        (["--data", "{here}"], "cannot be used as data"),
    ],
)
def test_what_cannot_be_planned_is_said(words, sentence, images: Path, tmp_path: Path, fast: None, capsys) -> None:
    words = [word.format(here=tmp_path, images=images) for word in words]
    assert cli.main(["search", *words, "--out", str(tmp_path / "run")]) == 2
    error = capsys.readouterr().err
    assert sentence in error and error.count("\n") == 1 and not (tmp_path / "run").exists()


def test_a_dry_run_opens_the_images_and_compares_the_splits(images: Path, tmp_path: Path, fast: None, capsys) -> None:
    for split in ("train", "val"):
        shutil.copytree(images, tmp_path / "mine" / split)
    words = ["search", "--data", str(tmp_path / "mine"), "--budget", "params<=60K", "--hours", "0.01", "--dry-run"]
    assert cli.main(words) == 2
    shown, error = capsys.readouterr()
    assert f"  {tmp_path / 'mine/val'}  " in shown and "  together " in shown
    assert "All 302 test images are training images" in error and error.count("\n") == 1


def test_one_line_from_a_folder_to_a_network(images: Path, tmp_path: Path, monkeypatch, fast: None, capsys) -> None:
    """The plan is shown and written as a config that is the run's; the same command then says that it is finished."""
    monkeypatch.setattr(stock, "LISTS", {"transformer": ("test_vit",), "cnn": ("lcnet_050",)})
    out = tmp_path / "run"
    words = ["search", "--data", str(images), "--budget", "params<=60K", "--hours", "0.002", "--no-report"]
    assert cli.main([*words, "--dry-run"]) == 0 and not out.exists()
    assert cli.main([*words, "--out", str(out)]) == 0
    said = capsys.readouterr().out
    assert said.count("  together ") == 2 and "winner " in said.partition("network ")[2]
    config = load_config(str(out / "config.py"), SearchRun, "search")
    stored = json.loads((out / "run.json").read_text())["config"]
    assert stored["supernet"]["epochs"] == config.supernet.epochs and stored["hours"] == 0.002
    result = json.loads((out / "result.json").read_text())
    assert result["winners"][0]["params"] <= 60_000
    rows = {row["control"]: row for row in result["controls"]}
    assert list(rows) == ["random", "transformer", "cnn"]
    assert rows["transformer"]["model"] == "test_vit" and rows["cnn"]["macs"] > 0
    assert all(row["test"]["low"] <= row["test"]["top1"] <= row["test"]["high"] for row in rows.values())
    kept = json.loads((out / "model" / "config.json").read_text())["s3zoo"]["provenance"]["controls"]
    assert [row.get("model") for row in kept] == [None, "test_vit", "lcnet_050"]
    same = [word.replace("params<=60K", "params <= 0.06M") for word in words]
    assert cli.main([*same, "--out", str(out)]) == 0
    assert "This run is finished" in capsys.readouterr().out
    for other in (["--budget", "params<=50K"], ["--budget", "params<=6"], ["--hours", "1"], ["--start", "s3_nano"],
                  ["--around", "s3_nano"], ["--runtime", "onnx"], ["--no-controls"]):  # fmt: skip
        assert cli.main(["search", "--data", str(images), *other, "--out", str(out)]) == 2
        assert f"{out / 'config.py'} is of a search with" in capsys.readouterr().err


def test_hours_are_kept_and_what_was_shortened_is_replayed(tmp_path: Path, monkeypatch) -> None:
    """With no time left the final training and the search are as short as can be, also when the run is resumed."""
    monkeypatch.setattr(plan, "measured_speed", lambda *_, **__: (1e3, 1e3))
    settings = ("space_search.method=none", "final.top=1", "final.mode=retrain", "hours=1e-6")
    run = overridden(toy(), settings)
    result = search(run, tmp_path)
    rows = [json.loads(line) for line in (tmp_path / "hours.jsonl").read_text().splitlines()]
    shortened = [setting for row in rows for setting in row["set"]]
    assert shortened == ["supernet.epochs=1", "arch_search.generations=1", "final.train.epochs=1"]
    epochs = {path.parent.name: len(path.read_text().splitlines()) for path in tmp_path.glob("space0/**/epochs.jsonl")}
    assert epochs == {"supernet": 1, "finish-0": 1}
    assert "are needed, so supernet.epochs=1" in (tmp_path / "log.txt").read_text()
    monkeypatch.setattr(plan.Pace, "_decided", lambda *_: pytest.fail("decided again"))
    (tmp_path / "result.json").unlink()
    assert search(run, tmp_path) == result


def test_finetuning_that_loses_is_not_kept(tmp_path: Path) -> None:
    """A learning rate that destroys everything."""
    settings = ("space_search.method=none", "final.top=1", "final.mode=finetune", "final.train.lr=100")
    run = overridden(toy(), [*settings, "supernet.epochs=3"])
    (winner,) = search(run, tmp_path)["winners"]
    assert winner["kept"] == "inherited" and winner["accuracy"] == winner["inherited"] > winner["finetuned"]
    assert "so the inherited weights are kept" in (tmp_path / "log.txt").read_text()


def test_the_nearest_network_of_timm_by_hand() -> None:
    known = {name: {"params": 1.0, "macs": macs} for name, macs in (("a", 10.0), ("b", 20.0), ("c", 40.0))}

    def chosen(target: float, budget: str = "") -> tuple[str, bool]:
        found = stock.nearest(known, {"macs": target}, Budget.parse(budget), "macs")
        return found["model"], found["within_budget"]

    assert [chosen(11), chosen(28), chosen(35)] == [("a", True), ("b", True), ("c", True)]
    assert [chosen(35, "macs<=30"), chosen(35, "macs<=5")] == [("b", True), ("c", False)]


def test_networks_of_timm_for_small_images() -> None:
    """Of 8 x 8 pixels: those whose maps vanish are passed over."""
    shape = {"img_size": 8, "num_classes": 3, "in_chans": 1}
    for kind in stock.LISTS:
        found = stock.nearest(stock.price_list(kind, shape, None), {"macs": 1e5}, Budget(), "macs")
        model = stock.build(found["model"], shape)
        assert model.eval()(torch.zeros(2, 1, 8, 8)).shape == (2, 3)
        assert found["params"] == sum(p.numel() for p in model.parameters())
