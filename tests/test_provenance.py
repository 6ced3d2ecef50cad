"""The record of where a network comes from: its command does the run again, and it names no place on the machine."""

from __future__ import annotations

import dataclasses
import json
import shlex
from pathlib import Path

import pytest
import torch

from s3zoo.search.config import SearchRun
from s3zoo.space import SPACES
from s3zoo.training.config import Data, Run, TrainRun, load_config, overridden, to_dict
from s3zoo.training.distributed import Ranks
from s3zoo.training.provenance import _quoted, command, data_name, provenance

ONE = Ranks(0, 1, torch.device("cpu"))


def config(name: str) -> SearchRun:
    return load_config(name, SearchRun, "search")


@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("digits", []),
        ("digits", ["seed=3", "supernet.warm_start=true", "space_search.upper=2e6"]),
        ("digits", ['arch_search.budgets=("params<=1M","macs<=2M")', "arch_search.racing=true", "threads=2"]),
        ("autoformer_tiny", ["space=autoformer_small", "data.mean=(0.5,0.5,0.5)", "data.auto_augment=rand-m9-mstd0.5"]),
        ("debug_s3", ["space_search.lower=10", "final.train.lr=0.5"]),
    ],
)
def test_the_command_does_the_run_again(name: str, settings: list[str]) -> None:
    run = overridden(config(name), settings)
    words = shlex.split(str(command("search", run)))
    assert words[:3] == ["s3zoo", "search", name] and set(words[3::2]) <= {"--set"}
    assert overridden(config(words[2]), words[4::2]) == run
    assert len(words) == 3 + 2 * len(settings)


@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("s3_384", ["weights=", "mode=scratch"]),
        ("digits", ["mode=finetune", "freeze=1", "weights=runs/x"]),
        ("digits", ["data.classes=('3',)", "distil.teacher=runs/y", "train.ema=0.9"]),
    ],
)
def test_the_command_does_the_training_again(name: str, settings: list[str]) -> None:
    run = overridden(load_config(name, TrainRun, "train"), settings)
    words = shlex.split(str(command("train", run)))
    assert overridden(load_config(words[2], TrainRun, "train"), words[4::2]) == run


def test_what_a_command_cannot_say(tmp_path: Path) -> None:
    run = config("digits")
    assert command("search", dataclasses.replace(run, name="mine")) is None  # no shipped config
    space = dataclasses.replace(next(iter(SPACES.values())), name="mine")
    assert command("search", dataclasses.replace(run, space=space)) is None  # no space of that name
    elsewhere = dataclasses.replace(run, device="cpu", data=dataclasses.replace(run.data, root="/home/me/data"))
    assert command("search", elsewhere) == "s3zoo search digits --set data.root=ROOT"


def test_no_place_is_named(tmp_path: Path) -> None:
    begun = {"config": {}, "data": "ab" * 32, "versions": {"torch": "2"}, "commit": None}
    (tmp_path / "run.json").write_text(json.dumps(begun))
    data = Data(name="", root="/home/me/birds", num_classes=3)
    run = dataclasses.replace(config("digits"), name="own", data=data, supernet_weights="", seed=7)
    measured = {"test": {"top1": 90.0, "low": 80.0, "high": 95.0, "images": 40}, "held-out": {"top1": 92.5}}
    phases = [{"name": "space0: supernet", "seconds": 40.5}, {"name": "space0: search", "seconds": 2.0}]
    (tmp_path / "clock.json").write_text(json.dumps({"phases": phases}))
    record = provenance("search", run, tmp_path, ONE, metrics=measured)
    assert "/home/me" not in json.dumps(record)
    assert record["data"] == {"name": "birds", "fingerprint": "ab" * 32, "license": None}
    assert (record["seed"], record["config"], record["commit"], record["versions"]) == (7, "own", None, {"torch": "2"})
    assert record["settings"]["data"]["root"] == "birds" and record["settings"]["seed"] == 7
    assert record["settings"].keys() == to_dict(run).keys()
    assert record["cost"]["seconds"] == 42.5
    assert record["cost"]["device"] == "cpu" and record["cost"]["processes"] == 1
    test, held_out = record["metrics"]
    assert test == {
        "dataset": "birds", "split": "test", "metric": "top1", "value": 90.0, "low": 80.0, "high": 95.0, "images": 40
    }  # fmt: skip
    assert held_out["value"] == 92.5 and held_out["low"] is None


def test_names_of_data() -> None:
    assert data_name(Data(name="digits")) == "digits" and data_name(Data(name="torch/cifar10")) == "torch/cifar10"
    record = Run(name="x", data=Data(name="", root="some/where/"))
    assert data_name(record.data) == "where"


def test_commands_are_quoted_as_a_person_would() -> None:
    """And mean the same to a shell."""
    words = ["a=b", "arch_search.budgets=('params<=5M',)", "x y", "it's $HOME", 'say "hi"', "it's \"both\"", ""]
    for word in words:
        assert shlex.split(_quoted(word)) == [word]
    assert _quoted(words[1]) == f'"{words[1]}"' and _quoted("a=b") == "a=b"
