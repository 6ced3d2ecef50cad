"""Mistakes that are said once and early: by the first process of torchrun alone, and before the work."""

import argparse
import importlib.util
import os
import re
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from s3zoo import cli

ROOT = Path(__file__).parents[1]


def mistake(argv: list[str]) -> int:
    raise ValueError("it is wrong")


def misuse(argv: list[str]) -> int:
    argparse.ArgumentParser().parse_args(["--no-such-option"])
    return 0


@pytest.fixture
def second_rank(monkeypatch):
    before = signal.getsignal(signal.SIGTERM)
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setattr(argparse.ArgumentParser, "error", argparse.ArgumentParser.error)
    yield
    signal.signal(signal.SIGTERM, before)


@pytest.mark.parametrize("command", [mistake, misuse])
def test_another_rank_is_silent_when_torchrun_ends_it(second_rank, capsys, command):
    timer = threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGTERM))
    timer.start()
    assert cli.run(command, []) == 2
    timer.join()
    assert capsys.readouterr().err == ""


def test_another_rank_speaks_of_a_mistake_of_its_own(second_rank, capsys, monkeypatch):
    monkeypatch.setattr(cli, "FIRST_SPEAKS", 0.1)
    assert cli.run(mistake, []) == 2
    assert capsys.readouterr().err == "s3zoo: it is wrong\n"


def test_under_torchrun_one_sentence_and_exit_code_2():
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    command += [str(ROOT / "tools" / "search.py"), "no_such_config"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT)
    assert done.returncode != 0
    assert len([line for line in done.stderr.splitlines() if line.startswith("s3zoo: ")]) == 1
    assert 'Traceback (most recent call last):\n  File "' + str(ROOT / "tools") not in done.stderr
    codes = set(re.findall(r"exitcode\s*: *(-?\d+)", done.stderr))
    assert "2" in codes and codes <= {"2", "-15"}  # torchrun may end the other before it has read its command


VERBS = {
    "search": ("debug_s4", "--out"),
    "train": ("digits", "--out"),
    "extract": ("nowhere", "--out"),
    "specialise": ("autoformer_tiny", "--budget", "params<=6M", "--out"),
    "report": ("nowhere", "--out"),
    "inspect": ("s3_nano", "file", "--out"),
    "study --table": ("cifar10", "--table"),
    "study --out": ("cifar10", "--out"),
    "study --keep": ("cifar10", "--keep"),
    "export": ("s3_tiny", "--to", "timm", "--out"),
    "convert": ("nowhere.pth", "--to"),
    "publish": (str(ROOT / "s3zoo" / "weights" / "s3_nano.digits"), "--out"),
    "zoo --html": ("--html",),
    "zoo --plot": ("--plot",),
    "zoo --cards": ("--cards",),
    "zoo --throughput": ("--throughput", "--throughput-file"),
    "vqa train": ("train", "easy_vqa", "--out"),
    "vqa eval": ("eval", "nowhere", "--out"),
    "vqa predict": ("predict", "nowhere", "--out"),
    "train_mm": ("upernet_s3-tiny_160k_ade20k-512x512", "--data", "nowhere", "--work-dir"),
    "predict_mm": ("nowhere", "nothing.jpg", "--out"),
}


@pytest.mark.parametrize("verb", VERBS)
def test_where_nothing_can_be_written_nothing_is_begun(verb, tmp_path, monkeypatch, capsys):
    """A place below a file. What else is wrong with these commands, or would take long, is not met."""
    needs = "mmdet" if verb.endswith("_mm") else "transformers" if verb.startswith("vqa") else "torch"
    if importlib.util.find_spec(needs) is None:
        pytest.skip(f"needs {needs}")
    monkeypatch.chdir(tmp_path)
    Path("file").write_text("x")
    assert cli.main([verb.split()[0], *VERBS[verb], str(tmp_path / "file" / "x")]) == 2
    said = capsys.readouterr().err.splitlines()
    assert len(said) == 1 and "file" in said[0] and str(tmp_path) in said[0], said
    assert [path.name for path in tmp_path.iterdir()] == ["file"]
