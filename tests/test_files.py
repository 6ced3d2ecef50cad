"""Files: whole or absent, folders old or new, JSON checked, and the previous state kept whatever happens."""

from __future__ import annotations

import contextlib
import errno
import itertools
import json
import os
import time
from pathlib import Path
from typing import Annotated, Literal

import pytest
import torch

from s3zoo import files
from s3zoo.checks import CLOSED, Range, typed
from s3zoo.files import Records, locked, read_json, replacing, replacing_files, settle, write_json, write_text


def test_a_file_is_replaced_at_once_or_not_at_all(tmp_path):
    path = tmp_path / "sub" / ("long" * 60 + ".json")  # with a suffix, its name would be too long
    write_json(path, {"a": 1})
    with pytest.raises(RuntimeError), replacing(path) as temporary:
        temporary.write_text("half")
        raise RuntimeError
    assert read_json(path) == {"a": 1} and list(path.parent.iterdir()) == [path]


def test_modes_follow_the_umask(tmp_path):
    before = os.umask(0o027)
    try:
        with replacing(tmp_path / "a") as temporary:
            temporary.unlink()
            os.close(os.open(temporary, os.O_CREAT | os.O_WRONLY, 0o600))  # as safetensors does
    finally:
        os.umask(before)
    assert (tmp_path / "a").stat().st_mode & 0o777 == 0o640


def test_what_a_kill_left_is_removed_when_it_is_old(tmp_path):
    for name in (".a.1.partial", ".a.2.partial", ".b.1.partial"):
        (tmp_path / name).write_text("half")
    for name in (".a.1.partial", ".b.1.partial"):
        os.utime(tmp_path / name, (0, time.time() - 2 * files.STALE))
    write_text(tmp_path / "a", "whole")
    assert sorted(p.name for p in tmp_path.iterdir()) == [".a.2.partial", ".b.1.partial", "a"]


def test_a_full_disk_leaves_the_file_as_it_was(tmp_path, monkeypatch):
    write_json(tmp_path / "x.json", {"a": 1})

    def full(*args):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(files.os, "fsync", full)
    with pytest.raises(ValueError, match="disk is full.*x.json.*intact"):
        write_json(tmp_path / "x.json", {"a": 2})
    assert read_json(tmp_path / "x.json") == {"a": 1} and len(list(tmp_path.iterdir())) == 1


# Folders


class Killed(BaseException):
    """The process ends here."""


class Dying:
    """A process that is killed before its n-th change of the file system, and changes nothing afterwards."""

    def __init__(self, left: int) -> None:
        self.left = left

    def before(self, change):
        def call(*args, **kwargs):
            if self.left <= 0:
                raise Killed
            self.left -= 1
            return change(*args, **kwargs)

        return call


def content(folder: Path) -> dict[str, str]:
    return {str(p.relative_to(folder)): p.read_text() for p in sorted(folder.rglob("*")) if p.is_file()}


def write_model(folder: Path, *, card: bool, version: str) -> None:
    with replacing_files(folder, ["weights", "card", "config"]) as place:
        for name in ("weights", *(["card"] if card else []), "config"):
            (place / name).write_text(version)


OTHERS = {"notes.txt": "mine", "figures/a.txt": "mine too"}


@pytest.mark.parametrize("existing", ["nothing", "others", "a model"])
def test_a_folder_is_the_old_or_the_new_one_wherever_a_kill_falls(tmp_path, monkeypatch, existing):
    """The process ends before the n-th change of the file system, for every n; nothing is cleaned up after it."""
    old = {"nothing": {}, "others": OTHERS, "a model": OTHERS | dict.fromkeys(("weights", "card", "config"), "1")}[
        existing
    ]
    new = {name: text for name, text in old.items() if name in OTHERS} | {"weights": "2", "config": "2"}
    seen = []
    for n in itertools.count():
        folder = tmp_path / str(n) / "model"
        for name, text in old.items():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_text(text)
        with monkeypatch.context() as patch:
            dying = Dying(n)
            for name in ("rename", "replace", "link", "rmdir", "unlink", "mkdir"):
                patch.setattr(os, name, dying.before(getattr(os, name)))
            patch.setattr(files.shutil, "rmtree", dying.before(files.shutil.rmtree))
            try:
                write_model(folder, card=False, version="2")
                killed = False
            except Killed:
                killed = True
        settle(folder)
        found = {name: text for name, text in content(folder).items() if ".partial" not in name}
        if existing == "a model":
            assert found in (old, new), f"killed before change {n}"
        else:  # without a config nobody takes it for a model
            assert found == new or "config" not in found, f"killed before change {n}"
            assert found.items() >= {k: v for k, v in OTHERS.items() if existing == "others"}.items()
        seen.append(found == new)
        write_model(folder, card=True, version="3")  # what was left does not hinder the next
        assert content(folder) == {k: v for k, v in new.items() if k in OTHERS} | dict.fromkeys(
            ("weights", "card", "config"), "3"
        )
        if existing == "a model":
            assert [p.name for p in folder.parent.iterdir()] == ["model"]
        if not killed:
            break
    assert seen[-1] and not seen[0]


def test_what_was_removed_does_not_come_back(tmp_path, monkeypatch):
    """After a kill the old model may still lie beside the new one; whoever removes the new one wants neither."""
    folder = tmp_path / "model"
    write_model(folder, card=True, version="1")
    rmtree = files.shutil.rmtree

    def killed(path, **options):
        if Path(path).name == ".model.old":
            raise Killed
        rmtree(path, **options)

    monkeypatch.setattr(files.shutil, "rmtree", killed)
    with pytest.raises(Killed):
        write_model(folder, card=True, version="2")
    monkeypatch.undo()
    assert set(content(folder).values()) == {"2"} and (tmp_path / ".model.old").exists()
    rmtree(folder)
    settle(folder)
    assert not folder.exists()


def test_a_reader_may_finish_what_a_writer_does(tmp_path, monkeypatch):
    folder, real = tmp_path / "model", files.settle
    write_model(folder, card=True, version="1")
    monkeypatch.setattr(files, "settle", lambda path: (real(path), real(path)))  # the reader's comes first
    write_model(folder, card=True, version="2")
    assert set(content(tmp_path).values()) == {"2"}


@pytest.mark.parametrize("kind", ["file", "new folder", "folder over another", "checkpoint"])
def test_a_power_failure_leaves_no_empty_file(tmp_path, monkeypatch, kind):
    """Whatever gets its name has reached the disk before, and the name does afterwards."""
    from s3zoo.training import checkpoint

    if kind == "folder over another":
        write_model(tmp_path / "model", card=True, version="1")
    synced, moved, fsync, replace = set(), [], os.fsync, os.replace

    def sync(file):
        fsync(file)
        status = os.fstat(file)
        synced.add((status.st_ino, status.st_mtime_ns))

    def move(source, target):
        source = Path(source)
        for path in [source, *source.rglob("*")]:
            assert (path.stat().st_ino, path.stat().st_mtime_ns) in synced, f"{path.name} is not on the disk"
        moved.append(Path(target).parent)
        replace(source, target)

    monkeypatch.setattr(files.os, "fsync", sync)
    monkeypatch.setattr(files.os, "replace", move)
    if kind == "file":
        write_text(tmp_path / "x", "1")
    elif kind == "checkpoint":
        checkpoint.save(tmp_path, 1, {"a": torch.ones(2)}, {})
    else:
        write_model(tmp_path / "model", card=True, version="2")
    for folder in moved:
        if folder.exists():  # else it was the place where the files were made
            assert folder.stat().st_ino in {inode for inode, _ in synced}
    assert moved


def test_a_folder_that_could_not_be_written_is_not_made(tmp_path):
    with pytest.raises(RuntimeError), replacing_files(tmp_path / "new", ["config"]):
        raise RuntimeError
    assert not list(tmp_path.iterdir())


def test_a_folder_that_cannot_be_renamed_is_refused_and_stays(tmp_path, monkeypatch):
    write_model(tmp_path / "model", card=True, version="1")
    replace = os.replace

    def busy(source, target):
        if Path(source).name == "model":
            raise OSError(errno.EBUSY, "Device or resource busy")
        replace(source, target)

    monkeypatch.setattr(files.os, "replace", busy)
    with pytest.raises(ValueError, match="model holds files .*Device or resource busy.*new folder"):
        write_model(tmp_path / "model", card=True, version="2")
    assert content(tmp_path) == {f"model/{name}": "1" for name in ("card", "config", "weights")}


# Locks


@pytest.mark.skipif(files.fcntl is None, reason="locks nothing")
def test_a_lock_that_another_process_holds_is_refused_or_waited_for(tmp_path):
    held, release = os.pipe(), os.pipe()
    child = os.fork()
    if child == 0:
        with locked(tmp_path / ".lock"):
            os.write(held[1], b"!")
            os.read(release[0], 1)
        os._exit(0)
    os.read(held[0], 1)
    with pytest.raises(ValueError, match=rf"in use by another process \({child}\)"), locked(tmp_path / ".lock"):
        pytest.fail("two at a time")
    told = []

    def waiting():
        told.append(True)
        os.write(release[1], b"!")

    with locked(tmp_path / ".lock", waiting=waiting):
        assert told and os.waitpid(child, 0)[1] == 0


# JSON and records


@pytest.mark.parametrize(
    "text, words",
    [
        ("", "it is empty"), ("x", "Expecting value"), ("{", "Expecting property name"),
        ('{"a": 1, "a": 2}', "'a' stands twice"),
        ('{"a": NaN}', "NaN is no number"), ('{"a": -Infinity}', "-Infinity"), ("[" * 100_000, "nested too deeply"),
        ("[]", r"it is \[\], but must be an object"), ("{}", "a is missing"), (b"\xff", "utf-8"),
        ('{"a": "1"}', "a is '1', but must be of type int"), ('{"a": null}', "a is None"), ('{"a": true}', "a is True"),
        ('{"a": 1e999}', "1e999 is too large"), ('{"a": 1' + "0" * 400 + "}", "more than 300 digits"),
    ],
)  # fmt: skip
def test_json_that_cannot_be_used_is_said_with_the_file_s_name(tmp_path, text, words):
    path = tmp_path / "state.json"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(ValueError, match=f"state.json cannot be read .*{words}.*; remove it or restore it"):
        read_json(path, {"a": int})


@pytest.mark.parametrize(
    "content, words",
    [
        ({"rows": [{"n": 1}], "by": {"x": 1.5}}, ""), ({"rows": [], "by": {}, "note": "x", "z": []}, ""),
        ({"rows": {}, "by": {}}, "^rows is {}, but must be a list"),
        ({"rows": [{"n": 1}, 3], "by": {}}, r"^rows\[1\] is 3, but must be an object"),
        ({"rows": [{"n": 1}, {}], "by": {}}, r"^rows\[1\].n is missing"),
        ({"rows": [{"n": 11}], "by": {}}, r"^rows\[0\].n is 11, but must be at least 0 and at most 10"),
        ({"rows": [], "by": {"x": 1, "y": "2"}}, "^by.y is '2', but must be of type float"),
        ({"rows": [], "by": {}, "note": 3}, "^note is 3, but must be of type str"), ({"rows": []}, "^by is missing"),
        ({"rows": [], "by": {}, "few": {"a": -1}}, "^few.a is -1.0, but must be at least 0"),
        ({"rows": [], "by": {}, "few": {"a": None}}, ""), ({"rows": [], "by": {}, "few": {}}, ""),
        ({"rows": [], "by": {}, "few": {"a": 1, "b": 1}}, "^few.b is unknown; remove it"),
        ({"rows": [], "by": {}, "word": "x"}, "^word is 'x', but must be 'a'[.]$"),
    ],
)  # fmt: skip
def test_fields_of_any_depth(content, words):
    few = CLOSED | {"a?": Annotated[float | None, Range(0)]}
    fields = {"rows": [{"n": Annotated[int, Range(0, 10)]}], "by": {"*": float}, "note?": str, "few?": few}
    fields["word?"] = Literal["a"]
    with pytest.raises(ValueError, match=words) if words else contextlib.nullcontext():
        typed(content, fields, "")


def test_what_is_shown_steers_no_terminal():
    assert files.shown("caf\udce9 \x1b[2J\x9b é\n") == r"caf\udce9 \x1b[2J\x9b é" + "\n"


def test_what_is_no_file_is_not_read(tmp_path):
    os.mkfifo(tmp_path / "fifo")  # reading it would wait for ever
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    for name in ("fifo", "loop", "absent", "x" * 300, "."):
        with pytest.raises(ValueError, match="cannot be read"):
            read_json(tmp_path / name)
    for name in ("fifo", "."):
        with pytest.raises(ValueError, match="is not a file"):
            files.sha256(tmp_path / name)


def test_numbers_that_json_has_not_are_not_written(tmp_path):
    with pytest.raises(ValueError, match="JSON compliant"):
        write_json(tmp_path / "a.json", float("nan"))
    assert not list(tmp_path.iterdir())


def test_a_real_full_disk(tmp_path):
    """The kernel's own refusal, through /dev/full."""
    try:
        open("/dev/full", "w").close()
    except OSError:
        pytest.skip("no /dev/full here")
    records = Records(tmp_path / "rows.jsonl")
    (tmp_path / "rows.jsonl").symlink_to("/dev/full")
    with pytest.raises(ValueError, match="disk is full"):
        records.append([{"a": 1}])


def test_records_drop_the_line_that_a_crash_cut(tmp_path):
    path = tmp_path / "rows.jsonl"
    records = Records(path)
    records.append([{"step": 1}, {"step": 2}])
    whole = path.read_text()
    path.write_text(whole + '{"step": 3')
    assert Records(path).rows == [{"step": 1}, {"step": 2}]
    assert path.read_text() == whole
    assert Records(path, keep=lambda row: row["step"] <= 1).rows == [{"step": 1}]
    assert json.loads(path.read_text()) == {"step": 1}


def test_a_damaged_line_is_not_taken_for_the_end(tmp_path):
    """What comes after it would be lost in silence."""
    path = tmp_path / "rows.jsonl"
    path.write_text('{"step": 1}\n{"st\x01p": 2}\n{"step": 3}\n')
    with pytest.raises(ValueError, match="Line 2 of .*rows.jsonl"):
        Records(path)
    path.write_text('{"step": 1}\n' + "\0" * 99 + "\n")  # after a power failure
    assert Records(path).rows == [{"step": 1}]


def test_other_ranks_keep_rows_in_memory(tmp_path):
    records = Records(tmp_path / "rows.jsonl", write=False)
    records.append([{"a": 1}])
    assert records.rows == [{"a": 1}] and not (tmp_path / "rows.jsonl").exists()


def test_a_row_that_s3zoo_did_not_write_is_named(tmp_path):
    (tmp_path / "rows.jsonl").write_text('{"step": 1}\n{"stop": 2}\n')
    with pytest.raises(ValueError, match="Line 2 of .*rows.jsonl .*step is missing.*remove the file"):
        Records(tmp_path / "rows.jsonl", check={"step": int})


@pytest.mark.parametrize("folder", [True, False])
def test_a_place_that_cannot_be_written_is_refused_before_the_work(tmp_path, folder):
    (tmp_path / "file").write_text("x")
    (tmp_path / "folder").mkdir()
    wrong = dict.fromkeys(("file/x", "file/x/y"), "file' is a file and no folder")
    wrong |= {"file": "is a file; name a folder"} if folder else {"folder": "is a folder; name a file"}
    for name, words in wrong.items():
        with pytest.raises(ValueError, match=f"^--out is '.*{words}"):
            files.check_writable(tmp_path / name, "--out", folder=folder)
    with pytest.raises(ValueError, match="^--out is '/proc/.* cannot be written"):  # to nobody, root included
        files.check_writable(Path("/proc/s3zoo/x"), "--out", folder=folder)
    for name in ("new", "new/deep/er", "folder/new", "folder" if folder else "file"):
        files.check_writable(tmp_path / name, "--out", folder=folder)
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["file", "folder"]  # nothing is left behind
