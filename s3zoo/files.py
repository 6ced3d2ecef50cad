"""Files that survive a kill: each is whole or absent, a folder is the old or the new one, one process writes at a time.

Nothing here knows of torch. What is read back is checked; what cannot be used is said in one sentence with its name.
"""

from __future__ import annotations

import errno
import glob
import hashlib
import json
import math
import os
import re
import shutil
import tempfile
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from s3zoo.checks import Fields, typed

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

DOCUMENT_BYTES = 1 << 30  # bytes that no document exceeds: annotations of images have half of it
CONFIG_BYTES = 1 << 26  # the same of the config of a network
STALE = 3600.0  # seconds after which a temporary file that nobody writes to was left behind by a kill


def regular(path: Path) -> Path:
    """The path, unless something else than a file is there: whoever opens a named pipe waits for ever."""
    if path.exists() and not path.is_file():
        raise ValueError(f"{str(path)!r} is not a file")
    return path


def read_bytes(path: Path, most: int = DOCUMENT_BYTES) -> bytes:
    """The content of a file that is one and is no larger: some bytes on a disk may stand for more than memory holds."""
    with open(regular(path), "rb") as file:
        if (size := os.fstat(file.fileno()).st_size) > most:
            raise ValueError(f"{str(path)!r} has {size:,} bytes, but no such file has more than {most:,}")
        return file.read()


def shown(text: str) -> str:
    """The text without characters that steer a terminal, and those that file names in another encoding have."""
    return re.sub(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff]", lambda found: ascii(found[0])[1:-1], text)


def sha256(path: Path) -> str:
    with open(regular(path), "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


@contextmanager
def disk_full_as_user_error(path: Path) -> Iterator[None]:
    """A full disk is the user's to solve: say so in a sentence instead of a traceback."""
    try:
        yield
    except Exception as error:  # an OSError, or safetensors' own kind with the same words
        if getattr(error, "errno", None) not in (errno.ENOSPC, errno.EDQUOT) and "No space left" not in str(error):
            raise
        place = getattr(error, "filename", None) or path
        raise ValueError(
            f"The disk is full: {place} could not be written, but what was saved before is intact; free some space and"
            " repeat the same command to resume."
        ) from error


def exists(path: Path, what: str) -> bool:
    """Whether there is something; a sentence if that cannot be said, or if it is a link that leads nowhere."""
    try:
        path.stat()
        return True
    except (FileNotFoundError, NotADirectoryError):
        if not path.is_symlink():
            return False
        reason = "it is a link that leads nowhere"
    except OSError as error:  # too long a name, links in a circle, a folder that may not be read
        reason = error.strerror or type(error).__name__
    name = str(path) if len(str(path)) <= 100 else f"{str(path)[:100]}…"
    raise ValueError(f"{what} is {name!r}, which cannot be opened ({reason}); give another path.") from None


# Writing


def check_writable(path: Path, option: str, *, folder: bool = False) -> None:
    """Refuse a file or folder that could not be written after the work, before it; nothing is left behind."""
    if exists(path, option) and path.is_dir() != folder:
        found, wanted = ("file", "folder") if folder else ("folder", "file")
        raise ValueError(f"{option} is {str(path)!r}, which is a {found}; name a {wanted}.")
    place = path.absolute() if folder else path.absolute().parent
    while not exists(place, option):
        place = place.parent
    longest = max(path.absolute().parts, key=lambda part: len(os.fsencode(part)))
    if len(os.fsencode(longest)) > os.pathconf(place, "PC_NAME_MAX"):  # which the system says of its own folders alone
        raise ValueError(f"{option} has {longest[:60]!r}… in it, which is too long for a name; give another path.")
    try:
        tempfile.TemporaryFile(dir=place).close()
        inside = list(path.iterdir()) if folder and path.is_dir() else []
    except OSError as error:
        reason = "is a file and no folder" if place.is_file() else f"cannot be written ({error.strerror})"
        raise ValueError(f"{option} is {str(path)!r}, but {str(place)!r} {reason}; give another path.") from None
    for each in inside:  # whoever writes to a pipe waits for ever
        if os.path.exists(each) and not os.path.isfile(each) and not os.path.isdir(each):
            raise ValueError(f"{option} is {str(path)!r}, where {each.name!r} is no file and no folder; remove it.")


def check_not_read(path: Path, option: str, read: Iterable[Path]) -> None:
    """Refuse to write over what is read."""
    if path.exists() and any(other.exists() and path.samefile(other) for other in read):
        raise ValueError(f"{option} is {str(path)!r}, which belongs to what is read; give another place.")


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A temporary path beside `path` that takes its place when the block succeeds and disappears when it fails.

    The file's mode follows the umask, whoever writes it (safetensors makes files that only their owner can read).
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    short = path.name[:40]  # a file name has at most 255 bytes
    for left in path.parent.glob(f".{glob.escape(short)}.*.partial"):
        with suppress(OSError):
            if time.time() - left.stat().st_mtime > STALE:
                left.unlink()
    temporary = path.with_name(f".{short}.{uuid.uuid4().hex}.partial")
    try:
        with disk_full_as_user_error(path):
            with open(temporary, "xb") as file:
                mode = os.fstat(file.fileno()).st_mode & 0o777
            yield temporary
            os.chmod(temporary, mode)
            move(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def move(source: Path, target: Path) -> None:
    """Rename a file or folder that is whole. Its content reaches the disk first: else, after a power failure, the new
    name could stand for an empty file.
    """
    for path in [*source.rglob("*"), source] if source.is_dir() else [source]:
        _sync(path)
    os.replace(source, target)
    _sync(target.parent)


def _sync(path: Path) -> None:
    if path.is_symlink() or not (path.is_dir() or path.is_file()):
        return
    with suppress(PermissionError):  # another's file in the same folder, which nobody has written to here
        file = os.open(path, os.O_RDONLY)
        try:
            os.fsync(file)
        finally:
            os.close(file)


def write_text(path: Path, text: str) -> None:
    with replacing(path) as temporary:
        temporary.write_bytes(text.encode(errors="backslashreplace"))  # names of files may be in another encoding


def write_json(path: Path, data: Any, *, indent: int = 1) -> None:
    write_text(path, json.dumps(data, indent=indent, allow_nan=False) + "\n")


@contextmanager
def replacing_files(folder: Path, names: Sequence[str]) -> Iterator[Path]:
    """An empty folder to write files into, which become the files `names` of `folder` all at once.

    Of `names`, those that the block does not write are removed from `folder`; its other files stay. The last name is
    the file without which a reader does not take the folder for whole (config.json, say).

    Where none of the files existed they are moved in, the last name last. Else a second folder is made of the new files
    and hard links to the others, and takes the place of the first: it becomes `.NAME.new`, the first `.NAME.old`, the
    second `NAME`, then `.NAME.old` is removed. After a kill between the last two renamings there is no `NAME`, but both
    others, and `settle` goes on; whoever opens or replaces such a folder calls it first. (`.NAME.old` alone is what was
    not removed any more: it never comes back.)
    """
    settle(folder)
    folder = folder.resolve()
    new, temporary = not folder.exists(), folder / f".{uuid.uuid4().hex}.partial"
    try:
        with disk_full_as_user_error(folder):
            for left in folder.glob(".*.partial"):
                if left.is_dir():
                    shutil.rmtree(left)
            temporary.mkdir(parents=True)
            yield temporary
            written = {path.name for path in temporary.iterdir()}
            assert names[-1] in written <= set(names), f"{sorted(written)} of {list(names)}"
            for name in written:  # safetensors makes files that only their owner can read
                os.chmod(temporary / name, temporary.stat().st_mode & 0o666)
            if any(os.path.lexists(folder / name) for name in names):
                _swap(temporary, folder, names)
            else:
                for name in names:
                    if name in written:
                        move(temporary / name, folder / name)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
        if new:
            with suppress(OSError):  # not empty: it succeeded
                folder.rmdir()


def _swap(made: Path, folder: Path, names: Sequence[str]) -> None:
    """Let `made`, with links to the files of `folder` that are not in `names`, take the place of `folder`."""
    for path in folder.iterdir():
        if path == made or path.name in names:
            continue
        if path.is_dir() and not path.is_symlink():
            shutil.copytree(path, made / path.name, symlinks=True, copy_function=_link)
        else:
            _link(path, made / path.name)
    shutil.copymode(folder, made)
    fresh, old = _beside(folder)
    try:
        for left in (fresh, old):
            if left.exists():
                shutil.rmtree(left)
        move(made, fresh)
        move(folder, old)
    except OSError as error:
        shutil.rmtree(fresh, ignore_errors=True)
        raise ValueError(
            f"{folder} holds files of an earlier model and cannot be replaced as a whole ({error.strerror}); write to"
            " a new folder instead."
        ) from None
    settle(folder)
    shutil.rmtree(old)


def _link(source: Any, target: Any) -> None:
    try:
        os.link(source, target, follow_symlinks=False)
    except OSError:  # a file system without hard links
        shutil.copy2(source, target, follow_symlinks=False)


def settle(folder: Path) -> None:
    """Finish a replacement of `folder` that a kill cut between its last two renamings."""
    folder = Path(os.path.realpath(folder))
    fresh, old = _beside(folder)
    if not os.path.lexists(folder) and fresh.is_dir() and old.is_dir():
        with suppress(FileNotFoundError):  # another process was faster
            move(fresh, folder)


def _beside(folder: Path) -> tuple[Path, Path]:
    return folder.with_name(f".{folder.name}.new"), folder.with_name(f".{folder.name}.old")


@contextmanager
def locked(path: Path, *, waiting: Callable[[], None] | None = None) -> Iterator[None]:
    """Hold the lock of a file until the block ends or this process dies.

    If another process holds it, `waiting()` is called and the lock waited for; without `waiting` it is a `ValueError`.
    Where files cannot be locked, nothing is.

    By lockf and not flock: its locks are not inherited, so that loader workers which outlive a killed run for some
    seconds do not hinder the next. But they end when this process closes the file, in whatever place it was opened.
    """
    file: int | None = None
    if fcntl is not None:
        with suppress(OSError):  # read-only, another user's, a full disk: the files themselves will tell
            file = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
    try:
        if file is not None:
            try:
                fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as error:
                if error.errno in (errno.EAGAIN, errno.EACCES):
                    if waiting is None:
                        owner = os.pread(file, 20, 0).decode(errors="replace")
                        raise ValueError(
                            f"{path.parent} is in use by another process{f' ({owner})' if owner else ''}; wait until it"
                            " ends, stop it, or give another --out."
                        ) from None
                    waiting()
                    fcntl.lockf(file, fcntl.LOCK_EX)
            with suppress(OSError):  # its number is a help to those who are refused, no more
                os.ftruncate(file, 0)
                os.pwrite(file, str(os.getpid()).encode(), 0)
        yield
    finally:
        if file is not None:
            os.close(file)


# JSON

DIGITS = 300  # of the largest whole numbers that are written, the sizes of spaces; a float holds no more


def parse_json(text: str | bytes) -> Any:
    """The value that a text in JSON has; a ValueError for anything else, for repeated keys and for NaN and infinity."""
    if not text.strip():
        raise ValueError("it is empty")
    try:
        return json.loads(
            text, parse_constant=_no_constant, parse_float=_finite, parse_int=_whole, object_pairs_hook=_no_duplicates
        )
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is no number")


def _finite(text: str) -> float:
    if math.isinf(number := float(text)):
        raise ValueError(f"{text[:20]} is too large a number")
    return number


def _whole(text: str) -> int:
    if len(text) > DIGITS:
        raise ValueError(f"{text[:20]}… has more than {DIGITS} digits")
    return int(text)


def _no_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        keys = [key for key, _ in pairs]
        raise ValueError(f"the key {next(key for key in keys if keys.count(key) > 1)!r} stands twice")
    return found


# Fields, or a function that raises a ValueError for what cannot be used
Check = Fields | Callable[[Any], object]


def read_json(path: Path, check: Check | None = None, *, remedy: str = "remove it or restore it to go on") -> Any:
    """The content of a JSON file, checked."""
    try:
        content = parse_json(read_bytes(path))
        if check is not None:
            _checked(content, check)
        return content
    except (ValueError, OSError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error).rstrip(".")
        raise ValueError(f"{path} cannot be read ({reason}); {remedy}.") from None


def _checked(content: Any, check: Check) -> None:
    if callable(check):
        check(content)
    else:
        typed(content, check, "")


def check_count(content: Any) -> None:
    """Refuse what is no count of images, of those that were classified rightly, and whether these are all."""
    typed(content, {"right": int, "images": int, "whole": bool, "batches": int}, "")
    if not (0 <= content["right"] <= content["images"] and content["batches"] >= 0):
        raise ValueError(f"it has {content['right']} right answers on {content['images']} images")


class Records:
    """An append-only JSONL file; the line that a crash cut in half is dropped when it is opened again.

    Without a path, or with `write=False` (ranks but the first), rows are kept in memory alone. With `run`, the identity
    of a run, each line names it, and a file of another run is refused. Each line is an object that passes the check.
    """

    def __init__(
        self, path: Path | None, *, check: Check | None = None,
        keep: Callable[[dict[str, Any]], bool] | None = None, write: bool = True, run: str = "",
    ) -> None:  # fmt: skip
        self.path, self.run = path if write else None, run
        self.rows: list[dict[str, Any]] = []
        if path is not None and path.exists() and not path.is_file():  # a pipe would be waited for
            raise ValueError(f"{path} is not a file; remove it, and what it should record is done again.")
        content = read_bytes(path) if path is not None and path.exists() else b""
        lines = content.split(b"\n")[:-1]
        for number, line in enumerate(lines, 1):
            row = None
            try:
                row = parse_json(line)
                typed(row, {}, "")
                _checked(row, check or {})
            except ValueError as error:
                if row is None and number == len(lines):
                    break
                reason = str(error).rstrip(".")
                raise ValueError(
                    f"Line {number} of {path} is not what s3zoo writes there ({reason}); remove the file, and what it"
                    " records is done again."
                ) from None
            check_run(row.pop("run", ""), run, path)
            if keep is not None and not keep(row):
                break
            self.rows.append(row)
        if self.path is not None and content != self._lines(self.rows).encode():
            write_text(self.path, self._lines(self.rows))

    def cut(self, count: int) -> None:
        """Keep the first `count` rows only."""
        if count < len(self.rows):
            self.rows = self.rows[:count]
            if self.path is not None:
                write_text(self.path, self._lines(self.rows))

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
        with disk_full_as_user_error(self.path), open(self.path, "a", encoding="utf-8") as file:
            file.write(self._lines(rows))
            file.flush()
            os.fsync(file.fileno())

    def _lines(self, rows: Iterable[dict[str, Any]]) -> str:
        owner = {"run": self.run} if self.run else {}
        return "".join(json.dumps(row | owner, allow_nan=False) + "\n" for row in rows)


def check_run(found: str, run: str, path: Path | None) -> None:
    """Refuse a file of another run; one that names none is of an older version."""
    if run and found and found != run:
        raise ValueError(
            f"{path} is of another run (other settings or other data) than this one; give another --out, or remove it."
        )
