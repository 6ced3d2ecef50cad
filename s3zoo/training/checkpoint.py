"""Files that survive a crash: whole or absent, checked by sha256, never a pickle.

A checkpoint is a folder `step-00000123` with `tensors.safetensors` and `state.json`; the newest two are kept. A JSONL
record is valid when its line is complete.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

SECONDS = 20.0  # between two moments at which work besides training is secured: a kill loses no more


@contextmanager
def told_when_full(path: Path) -> Iterator[None]:
    """A full disk is the user's to solve: say so in a sentence instead of a traceback."""
    try:
        yield
    except (OSError, SafetensorError) as error:
        full = getattr(error, "errno", None) in (errno.ENOSPC, errno.EDQUOT) or "No space left" in str(error)
        if not full:
            raise
        place = getattr(error, "filename", None) or path
        raise ValueError(
            f"The disk is full: {place} could not be written, but what was saved before is intact; free some space and"
            " repeat the same command to resume."
        ) from error


def write_text(path: Path, text: str) -> None:
    """Replace a file at once."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(path.name + ".tmp")
    with told_when_full(path):
        with open(temporary, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)


def write_json(path: Path, data: Any) -> None:
    write_text(path, json.dumps(data, indent=1) + "\n")


def read_json(path: Path) -> Any:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, OSError) as error:
        raise ValueError(f"{path} cannot be read as JSON ({error}); remove it or restore it to go on.") from None


class Records:
    """An append-only JSONL file; the line that a crash cut in half is dropped when it is opened again.

    Without a path, or with `write=False` (ranks but the first), rows are kept in memory alone.
    """

    def __init__(
        self, path: Path | None, *, keep: Callable[[dict[str, Any]], bool] | None = None, write: bool = True
    ) -> None:
        self.path = path if write else None
        self.rows: list[dict[str, Any]] = []
        content = path.read_bytes() if path is not None and path.exists() else b""
        for line in content.split(b"\n")[:-1]:
            try:
                row = json.loads(line)
            except ValueError:
                break
            if keep is not None and not keep(row):
                break
            self.rows.append(row)
        text = "".join(json.dumps(row) + "\n" for row in self.rows)
        if self.path is not None and content != text.encode():
            write_text(self.path, text)

    def cut(self, count: int) -> None:
        """Keep the first `count` rows only."""
        if count < len(self.rows):
            self.rows = self.rows[:count]
            if self.path is not None:
                write_text(self.path, "".join(json.dumps(row) + "\n" for row in self.rows))

    def clear(self) -> None:
        """Forget all rows and remove the file."""
        self.rows = []
        if self.path is not None:
            self.path.unlink(missing_ok=True)

    def append(self, rows: Iterable[dict[str, Any]]) -> None:
        rows = list(rows)
        self.rows += rows
        if self.path is None:
            return
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with told_when_full(self.path), open(self.path, "a", encoding="utf-8") as file:
            file.write("".join(json.dumps(row) + "\n" for row in rows))
            file.flush()
            os.fsync(file.fileno())


def sha256(path: Path) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def save(folder: Path, step: int, tensors: Mapping[str, Tensor], state: Mapping[str, Any]) -> Path:
    """Write one checkpoint, then remove all but the newest two."""
    folder.mkdir(parents=True, exist_ok=True)
    final = folder / f"step-{step:08d}"
    temporary = folder / f".{final.name}.tmp"
    for cut in folder.glob(".step-*.tmp"):  # by a kill in the middle of a save
        shutil.rmtree(cut, ignore_errors=True)
    try:
        with told_when_full(final):
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
    os.replace(temporary, final)
    for old in _all(folder)[:-2]:
        shutil.rmtree(old, ignore_errors=True)
    return final


def load(folder: Path, say: Callable[[str], None] = print) -> tuple[dict[str, Tensor], dict[str, Any]] | None:
    """The newest checkpoint that is intact, or None; a damaged one is passed over and said so."""
    for path in reversed(_all(folder)):
        try:
            state = json.loads((path / "state.json").read_text(encoding="utf-8"))
            if sha256(path / "tensors.safetensors") != state["sha256"]:
                raise ValueError("its checksum is wrong")
            return load_file(path / "tensors.safetensors"), state
        except (OSError, ValueError, KeyError, SafetensorError) as error:
            say(f"The checkpoint {path.name} is damaged ({error}); falling back to the one before it.")
    return None


def _all(folder: Path) -> list[Path]:
    return sorted(folder.glob("step-*")) if folder.is_dir() else []
