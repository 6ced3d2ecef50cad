"""From a command to its runs: one at a time in a folder, and a sentence where the disk does not play along."""

from __future__ import annotations

import dataclasses
import errno
import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from s3zoo import cli, files
from s3zoo.search.config import SearchRun
from s3zoo.training.config import load_config, overridden, to_dict
from s3zoo.training.distributed import Ranks
from s3zoo.training.folder import check_folder
from s3zoo.training.session import held, run_job

ONE = Ranks(0, 1, torch.device("cpu"))


@dataclasses.dataclass
class Run:
    seed: int = 0
    device: str = "cpu"


def start(folder: Path, work: Callable[[Any], Any]) -> int:
    """The exit code of a command whose job is `work` with its log."""
    return cli.run(lambda _: run_job(Run(), folder, lambda run, place, ranks, log, stop: work(log)), [])


@pytest.mark.skipif(sys.platform == "win32", reason="has no fork")
def test_a_folder_is_one_run_s_as_long_as_its_process_lives(tmp_path, capfd):
    """And no longer: the worker that a killed run leaves behind does not hinder the next."""
    reading, writing = os.pipe()
    run = os.fork()
    if run == 0:  # the run, with a worker that inherits its files
        with held(tmp_path, ONE):
            worker = os.fork()
            if worker != 0:
                os.write(writing, str(worker).encode())
            time.sleep(60)
        os._exit(1)
    worker = int(os.read(reading, 20))
    try:
        assert start(tmp_path, lambda log: pytest.fail("two at a time")) == 2
        said = capfd.readouterr().err
        assert f"{tmp_path} is in use by another process ({run})" in said and len(said.splitlines()) == 1
        assert start(tmp_path / "another", lambda log: {}) == 0
        os.kill(run, signal.SIGKILL)
        os.waitpid(run, 0)
        os.kill(worker, 0)  # lives
        assert start(tmp_path, lambda log: {}) == 0
        assert start(tmp_path, lambda log: {}) == 0  # and it was given back
    finally:
        os.kill(worker, signal.SIGKILL)
        os.close(reading)
        os.close(writing)


def test_other_ranks_hear_of_it(tmp_path):
    class Second(Ranks):
        def from_first(self, value: Any) -> Any:
            assert value is None
            return ValueError("in use")

    with pytest.raises(ValueError, match="in use"), held(tmp_path / "new", Second(1, 2, torch.device("cpu"))):
        pytest.fail("went on")
    assert not (tmp_path / "new").exists()  # it is the first rank's


@pytest.mark.skipif(files.fcntl is None, reason="locks nothing")
def test_where_files_cannot_be_locked_a_run_goes_on(tmp_path, monkeypatch):
    (tmp_path / "a" / ".lock").mkdir(parents=True)  # cannot be opened for writing
    assert start(tmp_path / "a", lambda log: {}) == 0

    def unsupported(*args):
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(files.fcntl, "lockf", unsupported)
    assert start(tmp_path / "b", lambda log: {}) == 0


def one_line(capfd) -> str:
    said = capfd.readouterr().err.splitlines()
    assert len(said) == 1, said
    return said[0]


@pytest.mark.skipif(not Path("/dev/full").is_char_device(), reason="no /dev/full here")
def test_a_full_disk_is_said_in_one_line(tmp_path, capfd):
    def export(log):
        raise OSError(errno.ENOSPC, "No space left on device", "model.safetensors")

    assert start(tmp_path / "a", export) == 2
    assert "disk is full: model.safetensors could not be written" in one_line(capfd)
    (tmp_path / "b").mkdir()
    (tmp_path / "b/log.txt").symlink_to("/dev/full")
    assert start(tmp_path / "b", lambda log: log.say("hello")) == 2
    assert f"disk is full: {tmp_path / 'b/log.txt'} could not be written" in one_line(capfd)


@pytest.mark.parametrize(
    "number, words", [(errno.EROFS, "is on a read-only file system"), (errno.ENOSPC, "disk is full")]
)
def test_commands_say_what_the_disk_refuses(tmp_path, capfd, monkeypatch, number, words):
    def refused(self, *args, **kwargs):
        raise OSError(number, os.strerror(number), str(self))

    monkeypatch.setattr(Path, "mkdir", refused)
    assert start(tmp_path / "new", lambda log: {}) == 2
    line = one_line(capfd)
    assert words in line and str(tmp_path / "new") in line

    def other(argv):
        raise OSError(number, os.strerror(number), "x.onnx")

    assert cli.run(other, []) == 2  # a command without a run's folder
    line = one_line(capfd)
    assert words in line and "x.onnx" in line


def test_other_errors_of_the_system_keep_their_traceback(tmp_path):
    def broken(argv):
        raise OSError(errno.EDEADLK, "Resource deadlock avoided")

    with pytest.raises(OSError, match="deadlock"):
        cli.run(broken, [])


def test_a_folder_of_a_release_with_fewer_settings_is_resumed(tmp_path: Path) -> None:
    """What it did not store was at its default; any other value is another run."""
    run = load_config("debug_s3", SearchRun, "search")
    stored = to_dict(run)
    del stored["space_search"]["limit"], stored["supernet"]["freeze_unsampled"], stored["tower"]
    files.write_json(tmp_path / "run.json", {"config": stored})
    check_folder(tmp_path, run)
    other = overridden(run, ["supernet.freeze_unsampled=true", "space_search.upper=5e3"])
    with pytest.raises(ValueError, match=r"differs in space_search\.upper, supernet\.freeze_unsampled\)"):
        check_folder(tmp_path, other)


def test_a_config_that_was_changed_is_another_one(tmp_path: Path) -> None:
    run = load_config("debug_s3", SearchRun, "search")
    files.write_json(tmp_path / "run.json", {"config": to_dict(run) | {"supernet": 5}})
    with pytest.raises(ValueError, match=r"another config \(it differs in supernet\)"):
        check_folder(tmp_path, run)
