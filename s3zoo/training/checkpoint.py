"""Checkpoints of training: whole or absent, checked by sha256, never a pickle.

A checkpoint is a folder `step-00000123` with `tensors.safetensors` and `state.json`; the newest two are kept.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from s3zoo.files import disk_full_as_user_error, move, read_json, sha256, write_json


def save(folder: Path, step: int, tensors: Mapping[str, Tensor], state: Mapping[str, Any]) -> Path:
    """Write one checkpoint, then remove all but the newest two."""
    folder.mkdir(parents=True, exist_ok=True)
    final = folder / f"step-{step:08d}"
    temporary = folder / f".{final.name}.tmp"
    for cut in folder.glob(".step-*.tmp"):  # by a kill in the middle of a save
        shutil.rmtree(cut, ignore_errors=True)
    try:
        with disk_full_as_user_error(final):
            temporary.mkdir()
            contiguous = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
            save_file(contiguous, temporary / "tensors.safetensors", metadata={"format": "pt"})
            content = {"step": step, "sha256": sha256(temporary / "tensors.safetensors"), **state}
            write_json(temporary / "state.json", content)
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        raise
    if final.exists():
        shutil.rmtree(final)
    move(temporary, final)
    for old in steps(folder)[:-2]:
        shutil.rmtree(old, ignore_errors=True)
    return final


def load(folder: Path, say: Callable[[str], None] = print) -> tuple[dict[str, Tensor], dict[str, Any]] | None:
    """The newest checkpoint that is intact, or None; a damaged one is passed over and said so."""
    for path in reversed(steps(folder)):
        try:
            state = read_json(path / "state.json", {"step": int, "sha256": str})
            if sha256(path / "tensors.safetensors") != state["sha256"]:
                raise ValueError("its checksum is wrong")
            return load_file(path / "tensors.safetensors"), state
        except (OSError, ValueError, KeyError, SafetensorError) as error:
            reason = getattr(error, "strerror", None) or error
            say(f"The checkpoint {path.name} is damaged ({reason}); going on from the one before it or from the start.")
    return None


def steps(folder: Path) -> list[Path]:
    """The checkpoints in order; a copy by another name is none."""
    return sorted(path for path in folder.glob("step-*") if re.fullmatch(r"step-\d{8,}", path.name))
