"""Checkpoints: whole or absent, checked, and the previous one kept."""

import errno
import os

import pytest
import torch

from s3zoo.training import checkpoint


def save(folder, step):
    checkpoint.save(folder, step, {"weight": torch.full((3,), float(step))}, {"note": step})


def test_round_trip_keeps_the_newest_two(tmp_path):
    assert checkpoint.load(tmp_path) is None
    for step in (1, 2, 30):
        save(tmp_path, step)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["step-00000002", "step-00000030"]
    tensors, state = checkpoint.load(tmp_path)
    assert torch.equal(tensors["weight"], torch.full((3,), 30.0)) and state["note"] == 30 and state["step"] == 30


@pytest.mark.parametrize(
    "damage", ["cut", "flip", "no state", "half state", "empty", "pipe", "state is a pipe", "folder", "no tensors"]
)
def test_a_damaged_checkpoint_falls_back_to_the_one_before(tmp_path, damage):
    save(tmp_path, 1)
    save(tmp_path, 2)
    tensors, state = tmp_path / "step-00000002/tensors.safetensors", tmp_path / "step-00000002/state.json"
    content = tensors.read_bytes()
    if damage == "cut":
        tensors.write_bytes(content[: len(content) // 2])
    elif damage == "flip":
        tensors.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    elif damage == "no state":
        state.unlink()
    elif damage == "half state":
        state.write_text(state.read_text()[:10])
    elif "pipe" in damage:  # whoever opens it waits for ever
        path = tensors if damage == "pipe" else state
        path.unlink()
        os.mkfifo(path)
    elif damage == "folder":
        tensors.unlink()
        tensors.mkdir()
    elif damage == "no tensors":
        tensors.unlink()
    else:
        tensors.write_bytes(b"")
    said = []
    assert checkpoint.load(tmp_path, said.append)[1]["step"] == 1
    assert len(said) == 1 and "step-00000002 is damaged" in said[0] and "[Errno" not in said[0]


def test_what_a_kill_left_of_an_earlier_save_is_removed(tmp_path):
    save(tmp_path, 1)
    (tmp_path / ".step-00000002.tmp").mkdir()
    (tmp_path / ".step-00000002.tmp/tensors.safetensors").write_bytes(b"half")
    save(tmp_path, 3)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["step-00000001", "step-00000003"]


def test_a_full_disk_is_said_and_loses_nothing(tmp_path, monkeypatch):
    save(tmp_path, 1)

    def full(*args, **kwargs):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(checkpoint, "save_file", full)
    with pytest.raises(ValueError, match="disk is full.*intact"):
        save(tmp_path, 2)
    assert [p.name for p in tmp_path.iterdir()] == ["step-00000001"]
