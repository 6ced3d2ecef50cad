"""Curves of a run in TensorBoard, in Weights & Biases and in a class of one's own."""

import os
import sys
from collections.abc import Callable, Mapping
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from s3zoo.files import write_json
from s3zoo.training.clock import Clock, read_clock, seconds_of
from s3zoo.training.log import Log
from s3zoo.training.trackers import VARIABLE

CURVES = [
    ("supernet", 0, {"loss": 2.5, "lr": 0.5}),
    ("supernet", 1, {"loss": 1.5, "lr": 0.25}),
    ("final", 0, {"loss": 3}),
]


class Recorder:
    """A tracker of somebody else."""

    made: list["Recorder"] = []

    def __init__(self, folder: Path) -> None:
        self.folder, self.curves, self.closed = folder, [], False  # type: ignore[var-annotated]
        Recorder.made.append(self)

    def curve(self, name: str, step: int, values: Mapping[str, float]) -> None:
        self.curves.append((name, step, dict(values)))

    def close(self) -> None:
        self.closed = True


class Broken(Recorder):
    def curve(self, name: str, step: int, values: Mapping[str, float]) -> None:
        raise RuntimeError("no connection")


class FakeWandb(ModuleType):
    """What is used of wandb (as of 0.31): init(...) -> a run with define_metric, log and finish."""

    def __init__(self) -> None:
        super().__init__("wandb")
        self.__spec__ = ModuleSpec("wandb", None)
        self.runs: list[dict[str, Any]] = []

    def init(self, *, project: str, name: str, id: str, resume: str, dir: str, config: dict[str, Any]) -> "FakeWandb":
        self.runs.append({"project": project, "name": name, "id": id, "resume": resume, "dir": dir, "config": config})
        self.metrics: list[tuple[str, str]] = []
        self.rows: list[dict[str, float]] = []
        self.finished = False
        return self

    def define_metric(self, name: str, *, step_metric: str) -> None:
        self.metrics.append((name, step_metric))

    def log(self, row: dict[str, float]) -> None:
        self.rows.append(row)

    def finish(self) -> None:
        self.finished = True


def track(folder: Path) -> None:
    log = Log(folder)
    for curve in CURVES:
        log.curve(*curve)
    log.close()


@pytest.mark.parametrize("trackers", [None, "tensorboard"])
def test_tensorboard(trackers: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    events_of = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator").EventAccumulator
    monkeypatch.delenv(VARIABLE, raising=False) if trackers is None else monkeypatch.setenv(VARIABLE, trackers)
    track(tmp_path)
    events = events_of(str(tmp_path / "tensorboard")).Reload()
    assert events.Tags()["scalars"] == ["supernet/loss", "supernet/lr", "final/loss"]
    assert [(event.step, event.value) for event in events.Scalars("supernet/loss")] == [(0, 2.5), (1, 1.5)]


def test_weights_and_biases(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wandb = FakeWandb()
    monkeypatch.setitem(sys.modules, "wandb", wandb)
    monkeypatch.setenv(VARIABLE, "wandb")
    monkeypatch.delenv("WANDB_PROJECT", raising=False)
    write_json(tmp_path / "run.json", {"config": {"seed": 3}})
    track(tmp_path)
    (run,) = wandb.runs
    assert (run["project"], run["name"], run["dir"]) == ("s3zoo", tmp_path.name, str(tmp_path))
    assert run["config"] == {"seed": 3} and run["resume"] == "allow"
    assert wandb.metrics == [("supernet/*", "supernet/step"), ("final/*", "final/step")]
    assert wandb.rows[1] == {"supernet/step": 1, "supernet/loss": 1.5, "supernet/lr": 0.25} and wandb.finished
    monkeypatch.setenv("WANDB_PROJECT", "mine")
    track(tmp_path)  # resumed
    track(tmp_path / "another")
    assert wandb.runs[1]["id"] == run["id"] != wandb.runs[2]["id"] and wandb.runs[1]["project"] == "mine"
    assert not (tmp_path / "tensorboard").exists()


def test_one_of_ones_own_and_one_that_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The run goes on without the latter, and says so once."""
    monkeypatch.setenv(VARIABLE, "test_trackers:Broken, test_trackers:Recorder")
    monkeypatch.setitem(sys.modules, "test_trackers", sys.modules[__name__])
    Recorder.made = []
    track(tmp_path)
    (tracker,) = [made for made in Recorder.made if type(made) is Recorder]
    assert tracker.folder == tmp_path and tracker.curves == CURVES and tracker.closed
    said = (tmp_path / "log.txt").read_text().splitlines()
    assert len(said) == 1 and "test_trackers:Broken failed (RuntimeError: no connection)" in said[0]


@pytest.mark.parametrize(
    ("named", "says"),
    [
        ("comet", "must name tensorboard, wandb, none, or a class as module:Class"),
        ("wandb", "wandb, which is not installed"),
        ("nowhere.at.all:Class", "cannot be imported"),
        ("test_trackers:Absent", "cannot be imported"),
    ],
)
def test_what_cannot_be_had_is_refused_before_any_work(
    named: str, says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("s3zoo.training.trackers.find_spec", lambda name: None)
    monkeypatch.setenv(VARIABLE, named)
    with pytest.raises(ValueError, match=says):
        Log(tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_nothing_is_tracked_if_nobody_asks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, "none")
    track(tmp_path / "none")
    monkeypatch.delenv(VARIABLE)
    monkeypatch.setattr("s3zoo.training.trackers.find_spec", lambda name: None)  # TensorBoard is not installed
    track(tmp_path / "absent")
    assert [path.name for path in tmp_path.rglob("*") if path.is_file()] == []


@pytest.mark.parametrize("make", [os.mkfifo, os.mkdir])
def test_what_stands_in_the_place_of_the_log_is_refused(tmp_path: Path, make: Callable[[Path], None]) -> None:
    make(tmp_path / "log.txt")
    with pytest.raises(ValueError, match="log.txt is no file"):
        Log(tmp_path, speaks=True)


@pytest.mark.parametrize("phases", ["[1]", '[{"name": "a", "seconds": "b"}]', '[{"name": "a"}]', "{}"])
def test_a_changed_clock_is_one_sentence(tmp_path: Path, phases: str) -> None:
    (tmp_path / "clock.json").write_text(f'{{"phases": {phases}}}')
    with pytest.raises(ValueError, match="clock.json") as error:
        read_clock(tmp_path / "clock.json")
    assert "\n" not in str(error.value)


def test_a_clock_that_is_killed_loses_seconds_not_minutes(tmp_path: Path) -> None:
    assert seconds_of(tmp_path) is None
    now = [100.0]
    with pytest.raises(KeyboardInterrupt), Clock(tmp_path, now=lambda: now[0]).phase("train"):
        now[0] += 75
        with Clock(tmp_path, write=False, now=lambda: now[0]).phase("train"):  # on another rank
            now[0] += 15
        assert seconds_of(tmp_path) == 0
        raise KeyboardInterrupt
    assert seconds_of(tmp_path) == 90
    log = Log(None, speaks=False)
    log.clock = Clock(tmp_path, now=lambda: now[0])
    with log.clock.phase("test"):
        steps = log.progress("test", total=10)
        for done in range(5):
            now[0] += 15
            steps.update(done)
        assert seconds_of(tmp_path) == 90 + 60  # it is saved every 20 s


def test_what_a_clock_cannot_know_is_not_told(tmp_path: Path) -> None:
    """Work that an earlier version did, or whose clock was removed."""
    (tmp_path / "train/step-00000100").mkdir(parents=True)
    with Clock(tmp_path).phase("train"):
        pass
    with Clock(tmp_path).phase("test"):
        pass
    assert seconds_of(tmp_path) is None and len(read_clock(tmp_path / "clock.json")["phases"]) == 2
