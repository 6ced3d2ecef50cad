"""A queue of runs: order, interruption, what is kept, what is listed."""

import itertools
import json
import lzma
import os
import shutil
import signal
import subprocess
import sys
import tarfile
import time
from dataclasses import replace
from pathlib import Path

import pytest
from toy_search import config as toy

from s3zoo import cli, scored
from s3zoo.search import latency_runtime
from s3zoo.search.budget import Pricer
from s3zoo.search.config import Controls
from s3zoo.search.forecast import forecast, training_forecast
from s3zoo.search.latency_runtime import training_speed
from s3zoo.study import Study, StudyRun, _at_low_priority, _check_data, _chosen, config_of, hours, last_line, starts
from s3zoo.training.config import TrainRun
from s3zoo.training.registry import load_config, names

A, B, C = StudyRun("a", "search x"), StudyRun("b", "train y --model {a}/model"), StudyRun("c", "search z")


def finish(out: Path, *names: str) -> None:
    """What runs that are done look like from outside."""
    for name in names:
        (out / name / "model").mkdir(parents=True)
        (out / name / "model" / "config.json").write_text(json.dumps({"of": name}))
        (out / name / "result.json").write_text(json.dumps({"name": name}))


def queue(folder: Path, **commands: str) -> list[str]:
    """The words for a study of these runs."""
    runs = "".join(f"StudyRun({name!r}, {command!r}), " for name, command in commands.items())
    text = f"from s3zoo.study import Study, StudyRun\nconfig = Study('queue', ({runs}), 1)\n"
    (folder / "queue.py").write_text(text)
    return ["study", str(folder / "queue.py"), "--out", str(folder / "out")]


def refused(words: list[str], folder: Path, capsys: pytest.CaptureFixture[str]) -> str:
    """The sentence with which a command is refused, which changes no file."""

    def files() -> dict[Path, bytes | None]:
        return {path: path.read_bytes() if path.is_file() else None for path in folder.rglob("*")}

    before = files()
    assert cli.main(words) == 2 and files() == before
    (line,) = capsys.readouterr().err.splitlines()
    return line


def test_a_run_names_what_it_reads() -> None:
    assert B.needs == ("a",) and A.needs == ()
    assert StudyRun("d", """search x --set 'controls.designed={"depth": 1}'""").needs == ()


@pytest.mark.parametrize(
    "runs, word", [((B, A), "before it"), ((A, A), "twice"), ((StudyRun("../x", "search"),), "no name")]
)
def test_a_study_that_cannot_be_worked_through_is_refused(runs: tuple[StudyRun, ...], word: str) -> None:
    with pytest.raises(ValueError, match=word):
        Study("s", runs, 1)


def test_only_takes_what_is_needed_too() -> None:
    study = Study("s", (A, B, C), 1)
    assert _chosen(study, ["b"]) == [A, B] and _chosen(study, ["c"]) == [C] and _chosen(study, None) == [A, B, C]
    runs = tuple(StudyRun(f"{method}-{seed}", "train x") for method in ("s3", "vit_random") for seed in range(9))
    with pytest.raises(ValueError, match="no run 'e'; .*s3-SEED, vit_random-SEED.$") as error:
        _chosen(Study("s", runs, 1), ["e"])
    assert "s3-0" not in str(error.value)
    with pytest.raises(ValueError, match="no run 'long-9'; did you mean 'long-0'"):
        _chosen(Study("s", (A, StudyRun("long-0", "train x")), 1), ["long-9"])


@pytest.mark.parametrize("name", names("study"))
def test_every_command_of_every_study_is_one_that_the_program_takes(name: str) -> None:
    study = load_config(name, Study, "study")
    for run in study.runs:
        assert config_of(run, study).seed == int(run.name.rpartition("-")[2])


def test_a_run_that_searches_another_ones_supernet_trains_none() -> None:
    study = load_config("cifar10", Study, "study")
    (run,) = (run for run in study.runs if run.name == "s4_vit_random-1")
    config = config_of(run, study)
    assert run.needs == ("s4_vit-1",) and config.arch_search.population == config.arch_search.generations == 1
    phases = {phase.name: phase.work for phase in forecast(config, 45_000)}
    assert not any(phases[name] for name in phases if "supernet" in name)
    assert phases["space0: finish"] > 1e13 > phases["space0: search"]


def test_the_forecast_of_a_small_search_written_out() -> None:
    run = replace(toy, arch_search=replace(toy.arch_search, budgets=("macs<=20K",)))
    works = {phase.name: phase.work for phase in forecast(run, 128)}
    price = Pricer(**toy.shape)
    low, high = (price(arch)["macs"] for arch in (toy.space.smallest(), toy.space.largest()))
    # 2 epochs, 128 images, forward and backward three times a forward pass: largest, smallest and two of the mean
    mean = (works["space0: supernet"] / (2 * 128 * 3) - low - high) / 2
    assert low < mean < high
    assert works["space0: scores"] == pytest.approx(20 * 60 * mean)
    inside = works["space1: search"] / (12 * 3 * 60)
    assert low <= inside <= 20_000 < mean
    assert works["space1: finish"] == pytest.approx(2 * 2 * 128 * 3 * inside)
    beside = replace(run, controls=Controls(random=True, stock=True), final=replace(run.final, mode="retrain", top=1))
    controls = {phase.name: phase.work for phase in forecast(beside, 128)}["space1: controls"]
    assert controls == pytest.approx(3 * 2 * 128 * 3 * inside)  # a random network and two of timm's


def test_the_forecast_of_a_training_written_out() -> None:
    run = load_config("cifar10_swin_micro", TrainRun, "train")
    assert training_forecast(run, 45_000).work == 20 * 45_000 * 5_696_208 * 3 and training_speed(run)[0] > 1e8


def test_a_speed_is_measured_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[str] = []
    monkeypatch.setattr(latency_runtime, "training_speed", lambda run: seen.append(run.name) or (1e9, 2e9))
    runs = tuple(StudyRun(f"a-{seed}", f"train cifar10_swin_micro --set seed={seed}") for seed in range(2))
    assert hours(Study("s", runs, 1000), runs, tmp_path).count("20 epochs") == 2 and len(seen) == 1


def test_the_hours_are_those_that_are_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[str] = []
    monkeypatch.setattr(latency_runtime, "training_speed", lambda run: seen.append(run.name) or (1e9, 2e9))
    configs = ("cifar10_deit_micro", "cifar10_swin_micro", "cifar10_swin_micro")
    runs = tuple(StudyRun(f"a-{seed}", f"train {config}") for seed, config in enumerate(configs))
    finish(tmp_path, "a-0", "a-1")
    lines = hours(Study("s", runs, 45_000), runs, tmp_path).splitlines()
    assert seen == ["cifar10_swin_micro"] and sum("20 epochs" in line for line in lines) == 1
    # 20 epochs of 45,000 images, three times 5,696,208 MACs each, at 1e9 a second
    assert any(line.startswith("a-2 ") for line in lines) and "2 of 3 " in lines[-1] and " 4.3 hours" in lines[-1]
    finish(tmp_path, "a-2")
    assert len(hours(Study("s", runs, 45_000), runs, tmp_path).splitlines()) == len(seen) == 1


def test_a_killed_queue_goes_on_and_lists_every_start(tmp_path: Path) -> None:
    (tmp_path / "tiny.py").write_text(
        "from dataclasses import replace\nfrom toy_search import config as toy\n"
        "from s3zoo.search.space_search import SpaceSearch\n"
        "config = replace(toy, space_search=SpaceSearch(method='none'), final=replace(toy.final, mode='inherit'))\n"
    )
    (tmp_path / "queue.py").write_text(
        "from s3zoo.study import Study, StudyRun\n"
        f"first = StudyRun('first', 'search {tmp_path}/tiny.py --no-report')\n"
        f"second = StudyRun('second', 'train {{first}}/model --scratch --data digits --epochs 1')\n"
        "config = Study('queue', (first, second), 128)\n"
    )
    out, kept = tmp_path / "out", tmp_path / "kept"
    words = ["study", str(tmp_path / "queue.py"), "--out", str(out), "--keep", str(kept)]
    command = [sys.executable, "-m", "s3zoo", *words]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(Path(__file__).parent), *sys.path])}
    process = subprocess.Popen(command, env=environment)
    while not (out / "first" / "run.json").exists():
        assert process.poll() is None
        time.sleep(0.1)
    process.send_signal(signal.SIGTERM)
    assert process.wait(300) == 130
    assert not (out / "second").exists()
    assert subprocess.run(command, env=environment).returncode == 0
    rows = starts(out / "study.jsonl")
    assert [(row["name"], row["done"]) for row in rows] == [("first", False), ("first", True), ("second", True)]
    assert len((out / "study.jsonl").read_text().splitlines()) == 6  # when each begins and when it ends
    for name in ("first", "second"):
        one, two = (folder / name / "model" / "model.safetensors" for folder in (kept, out))
        assert one.read_bytes() == two.read_bytes()
        assert json.loads((kept / name / "result.json").read_text())
    assert not list(kept.rglob("*.pt*"))
    assert cli.main(["study", str(tmp_path / "queue.py"), "--out", str(out)]) == 0  # nothing is left to do


@pytest.mark.parametrize("command", ["search cifar10_s3_2core", "train cifar10_swin_micro"])
def test_images_that_are_not_there_are_told_before_a_run_begins(
    command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = queue(tmp_path, a=command)
    assert "--data" in refused(words, tmp_path, capsys)
    assert "'/nope'" in refused([*words, "--data", "/nope"], tmp_path, capsys)
    assert str(tmp_path) in refused([*words, "--data", str(tmp_path)], tmp_path, capsys)  # neither train nor test
    (tmp_path / "train").mkdir()
    assert "'test'" in refused([*words, "--data", str(tmp_path)], tmp_path, capsys)
    (tmp_path / "val").mkdir()
    study = Study("s", (StudyRun("a", command),), 1)
    _check_data(study, study.runs, str(tmp_path))


def test_images_that_a_command_finds_by_itself_are_not_asked_for() -> None:
    commands = "search digits", "train digits", "train {a}/model --data digits", "search cifar10_s3_2core --data here"
    runs = tuple(StudyRun(name, command) for name, command in zip("abcd", commands, strict=True))
    again = StudyRun("e", "search --from {d}")
    _check_data(Study("s", (*runs, again), 1), (*runs, again), None)
    with pytest.raises(ValueError, match="'/nope'"):
        _check_data(Study("s", runs, 1), runs[2:3], "/nope")


def test_a_run_that_fails_says_why(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = queue(tmp_path, a="train digits --epochs many")
    assert cli.main(words) == 1
    log = tmp_path / "out" / "a.log"
    assert "'many'" in log.read_text().splitlines()[-1]
    (line,) = (line for line in capsys.readouterr().out.splitlines() if "ended with code 2" in line)
    assert log.read_text().splitlines()[-1] in line and str(log) in line


@pytest.mark.parametrize(
    "log, line", [(b"one\n\ntwo \n \n", "two"), (b"\xff" * 10**5 + b"\nlast\r\n", "last"), (b"a\rb\x1b", "b\\x1b")]
)
def test_the_last_line_of_a_log(tmp_path: Path, log: bytes, line: str) -> None:
    (tmp_path / "log").write_bytes(log)
    assert last_line(tmp_path / "log", 0) == line
    assert line not in last_line(tmp_path / "log", len(log))  # what an earlier start said
    assert last_line(tmp_path / "none", 0)


def test_runs_that_are_done_are_kept_at_the_start(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words, out, kept = queue(tmp_path, a="search digits", b="search digits"), tmp_path / "out", tmp_path / "kept"
    finish(out, "a", "b")
    finish(kept, "b")
    (kept / "b" / "result.json").write_text("{}")
    for _ in range(2):
        assert cli.main([*words, "--keep", str(kept)]) == 0
        assert len(capsys.readouterr().out.splitlines()) == 1  # nothing is left to do
        for path in ("a/result.json", "a/model/config.json", "b/result.json"):
            assert (kept / path).read_bytes() == (out / path).read_bytes()
        (kept / "a" / "model" / "config.json").write_bytes((out / "a" / "model" / "config.json").read_bytes())
    (kept / "a" / "model" / "config.json").write_text("{}")  # what is there whole is not copied again
    assert cli.main([*words, "--keep", str(kept)]) == 0
    assert (kept / "a" / "model" / "config.json").read_text() == "{}"


def test_a_copy_that_was_cut_short_is_made_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    words, copy = queue(tmp_path, a="search digits"), shutil.copyfile
    finish(tmp_path / "out", "a")
    with monkeypatch.context() as patch, pytest.raises(KeyError):
        patch.setattr(shutil, "copyfile", lambda one, two: {"result.json": copy}[Path(one).name](one, two))
        cli.main([*words, "--keep", str(tmp_path / "kept")])
    assert cli.main([*words, "--keep", str(tmp_path / "kept")]) == 0
    assert (tmp_path / "kept" / "a" / "model" / "config.json").exists()


@pytest.mark.parametrize("place", ["out", "out/a", "out/new", "kept/../out/x"])
def test_what_is_kept_lies_elsewhere(place: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = queue(tmp_path, a="search digits")
    finish(tmp_path / "out", "a")
    (tmp_path / "kept").mkdir()
    assert place in refused([*words, "--keep", str(tmp_path / place)], tmp_path, capsys)


def test_one_thing_is_asked_for_at_a_time(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = queue(tmp_path, a="search digits")
    options = ("--summary",), ("--table", str(tmp_path / "table.jsonl.xz")), ("--dry-run",), ("--list",)
    for one, two in itertools.combinations(options, 2):
        with pytest.raises(SystemExit) as error:
            cli.main([*words, *one, *two])
        assert error.value.code == 2 and not list(tmp_path.glob("*.xz"))
    for option in options[:2]:  # where no run is finished
        capsys.readouterr()
        assert "out" in refused([*words, *option], tmp_path, capsys)


def test_a_start_whose_end_nobody_saw_is_listed(tmp_path: Path) -> None:
    """As when the machine is shut down: the entry at its begin is all there is."""
    begun = {"name": "a-0", "command": "search x", "begun": 10}
    other = {"name": "b-0", "command": "search y", "begun": 12}
    again = begun | {"begun": 20}
    rows = [begun, other, other | {"code": 0, "seconds": 3, "done": True}, again, again | {"code": 0, "seconds": 9}]
    (tmp_path / "study.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    assert starts(tmp_path / "study.jsonl") == [begun, rows[2], rows[4]]


def test_runs_give_way_to_everything_else() -> None:
    def printed(command: str) -> str:
        process = subprocess.run(
            ["sh", "-c", command], preexec_fn=_at_low_priority, start_new_session=True, capture_output=True, text=True
        )
        return process.stdout

    assert printed("nice").strip() == "19"
    if Path("/proc/self/autogroup").exists() and printed("cat /proc/self/autogroup"):
        assert printed("cat /proc/self/autogroup").split()[-1] == "19"


def test_the_table_of_a_recorded_search(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with tarfile.open(Path(__file__).parent / "golden" / "digits_run.tar.xz") as recorded:
        recorded.extractall(tmp_path / "digits-0", filter="data")
    (run,) = [path.parent for path in tmp_path.glob("**/run.json")]
    (tmp_path / "queue.py").write_text(
        "from s3zoo.study import Study, StudyRun\n"
        f"config = Study('queue', (StudyRun({run.name!r}, 'search digits'), StudyRun('later', 'search digits')), 1)\n"
    )
    path = tmp_path / "table.jsonl.xz"
    command = ["study", str(tmp_path / "queue.py"), "--out", str(run.parent), "--table", str(path)]
    assert cli.main(command) == 0
    capsys.readouterr()
    assert cli.main(command) == 0  # over the table
    networks = scored.load(path)
    assert f"{len(networks):,} networks of 1 finished searches" in capsys.readouterr().out
    price = Pricer(img_size=8, in_chans=1, num_classes=10)
    assert all(price(each.arch) == {"params": each.params, "macs": each.macs} for each in networks[::50])
    result = json.loads((run / "result.json").read_text())
    (winner,) = [each for each in networks if each.role == "winner"]
    assert winner.arch.to_dict() == result["winners"][0]["arch"]
    assert (winner.accuracy, winner.trained) == (result["winners"][0]["inherited"], result["winners"][0]["accuracy"])
    assert winner.test == result["winners"][0]["test"]["top1"]
    inherited = [json.loads(line)["accuracy"] for line in (run / "space0" / "scores.jsonl").read_text().splitlines()]
    assert inherited and set(inherited) <= {each.accuracy for each in networks if each.space == "digits"}


@pytest.mark.parametrize(
    "place",
    ["a/result.json", "a/new.xz", "a/../later/new.xz", "later", "later.log", "study.jsonl", "notes.txt", "linked"],
)
def test_a_table_takes_the_place_of_a_table_alone(
    place: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words, out = queue(tmp_path, a="search digits", later="search digits"), tmp_path / "out"
    finish(out, "a")
    (out / "notes.txt").write_text("mine")
    shutil.copyfile(scored.BUNDLED / "cifar10.jsonl.xz", out / "notes.txt.jsonl.xz")
    (out / "linked").symlink_to(out / "a" / "result.json")
    assert place in refused([*words, "--table", str(out / place)], tmp_path, capsys)


def test_what_came_out_as_computed_by_hand(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "queue.py").write_text(
        "from s3zoo.study import Study, StudyRun\n"
        "names = ('a-0', 'a-1', 'a-2', 'b-0', 'b-1', 'b-2', 'c-0', 'later-0')\n"
        "runs = tuple(StudyRun(name, 'search digits') for name in names)\n"
        "config = Study('queue', runs, 1, compared=(('a', 'b'), ('a', 'c'), ('a', 'later')))\n"
    )
    tests = {"a-0": 70.0, "a-1": 72.0, "a-2": 74.0, "b-0": 69.0, "b-1": 71.0, "b-2": 70.0, "c-0": 60.0}
    for name, top1 in tests.items():
        test = {"top1": top1, "low": top1 - 1, "high": top1 + 1}
        row = {"test": test, "accuracy": 50.0, "params": 90_000, "macs": 6_000_000, "budget": "", "inherited": 40.0}
        row["arch"] = scored.load("cifar10")[0].arch.to_dict()
        (tmp_path / name).mkdir()
        result = {"name": name, "seed": 0, "winners": [row], "spaces": []}
        (tmp_path / name / "result.json").write_text(json.dumps(result))
    assert cli.main(["study", str(tmp_path / "queue.py"), "--out", str(tmp_path), "--summary"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert "| a-0 | 70.00 | 69.00 to 71.00 | 50.00 | 90K | 6M |" in lines
    assert "| a | 3 | 72.00 ± 2.00 |" in lines and "| c | 1 | 60.00 |" in lines
    # Differences 1, 1 and 4: mean 2, standard deviation sqrt(3), so its error is 1, times Student's 4.303
    assert "| a – b | 3 | +2.00 | -2.30 to +6.30 |" in lines and "| a – c | 1 | +10.00 | – |" in lines
    assert not any("later" in line for line in lines)


def test_the_outcome_of_a_training_is_that_of_its_network(tmp_path: Path) -> None:
    run = load_config("cifar10_swin_micro", TrainRun, "train")
    (tmp_path / "model").mkdir()
    config = {"architecture": "s3", "model_args": run.model_args, "num_classes": 10}
    config["pretrained_cfg"] = {"input_size": [3, 32, 32]}
    (tmp_path / "model" / "config.json").write_text(json.dumps(config))
    test = {"top1": 70.0, "low": 69.0, "high": 71.0}
    result = {"test": test, "held-out": {"top1": 71.0}, "params": 224_845}
    with pytest.raises(ValueError, match="not the folder of a finished run"):
        scored.outcome(tmp_path)
    (tmp_path / "result.json").write_text(json.dumps(result))
    found = scored.outcome(tmp_path)
    assert (found.test, found.held_out, found.params, found.macs) == (test, 71.0, 224_845, 5_696_208)
    (tmp_path / "model" / "config.json").write_text(json.dumps(config | {"model_args": {}}))
    with pytest.raises(ValueError, match="network of timm's"):
        scored.outcome(tmp_path)


def test_networks_of_timm_beside_a_winner_are_not_in_the_table(tmp_path: Path) -> None:
    with tarfile.open(Path(__file__).parent / "golden" / "digits_run.tar.xz") as recorded:
        recorded.extractall(tmp_path, filter="data")
    before = [each for each in scored.of_run(tmp_path) if each.role]
    result = json.loads((tmp_path / "result.json").read_text())
    stock = {"control": "cnn", "model": "lcnet_050", "inherited": None, "accuracy": 50.0}
    stock |= {"budget": "", "test": {"top1": 50.0, "low": 45.0, "high": 55.0}}
    (tmp_path / "result.json").write_text(json.dumps(result | {"controls": [stock | {"params": 1.0, "macs": 1.0}]}))
    assert [each for each in scored.of_run(tmp_path) if each.role] == before and len(before) == 1


def test_a_table_that_unpacks_to_more_than_any_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scored, "LARGEST", 1000)
    (tmp_path / "table.jsonl.xz").write_bytes(lzma.compress(bytes(10**6)))
    with pytest.raises(ValueError, match="more than 1,000 bytes"):
        scored.load(tmp_path / "table.jsonl.xz")


@pytest.mark.parametrize(
    "change", [{"accuracy": "x"}, {"accuracy": 101}, {"params": -1}, {"seed": None}, {"arch": 3}, {"full": 1}, {"x": 1}]
)
def test_a_table_with_another_row_is_one_sentence(tmp_path: Path, change: dict) -> None:
    arch = scored.load("cifar10")[0].arch.to_dict()
    row = {"run": "a", "seed": 0, "space": "s", "arch": arch, "params": 1, "macs": 2, "accuracy": None}
    path = tmp_path / "table.jsonl.xz"
    for content, good in ((row, True), (row | change, False)):
        path.write_bytes(lzma.compress(json.dumps(content).encode() + b"\n"))
        if good:
            assert len(scored.load(path)) == 1
    with pytest.raises(ValueError, match="is no table of scored networks") as error:
        scored.load(path)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("content", [None, b"", b"no xz", b'{"run": 1}\n'])
def test_what_is_no_table_is_one_sentence(tmp_path: Path, content: bytes | None) -> None:
    path = tmp_path / "table.jsonl.xz"
    if content is not None:
        path.write_bytes(lzma.compress(content) if content.startswith(b"{") else content)
    with pytest.raises(ValueError, match="table") as error:
        scored.load(path)
    assert "\n" not in str(error.value)


def test_a_search_in_another_runs_supernet_adds_to_that_runs_networks(tmp_path: Path) -> None:
    """Its scores that are the other's come once, the best of what it drew is a control."""
    for name in ("a-0", "a_random-0"):
        (tmp_path / name).mkdir()
        with tarfile.open(Path(__file__).parent / "golden" / "digits_run.tar.xz") as recorded:
            recorded.extractall(tmp_path / name, filter="data")
    alone = scored.of_runs([tmp_path / "a-0"])
    about = json.loads((tmp_path / "a_random-0/run.json").read_text())
    about["config"] |= {"supernet_weights": "somewhere/a-0"}
    about["config"]["space_search"] |= {"method": "none"}
    about["config"]["arch_search"] |= {"method": "random"}
    (tmp_path / "a_random-0/run.json").write_text(json.dumps(about))
    both = scored.of_runs([tmp_path / "a-0", tmp_path / "a_random-0"])
    assert both[: len(alone)] == alone and {each.run for each in both} == {"a-0"}
    assert [each.role for each in both[len(alone) :]] == ["random_search"]
    again = "s3zoo search --from a-0 --set arch_search.method=random"
    assert (scored.outcome(tmp_path / "a_random-0").command or "").startswith(again)
    assert "--from" not in (scored.outcome(tmp_path / "a-0").command or "")
