"""Damage to files: by hand (`Edit`, `Put`, `Make`) for cases that have a name, and at random (`damaged`)."""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import os
import pickle
import random
import re
import shutil
import socket
import struct
import tarfile
import zipfile
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

GONE = object()  # as a value: remove the key
DEEP = "[" * 50_000
DIGITS = "@" + "9" * 5_000  # stands for a whole number that Python does not even parse
LONG = "x" * 300  # no file has such a name


class Run:
    """Unpickled, it imports a module and starts a program."""

    def __reduce__(self) -> Any:
        return eval, ("__import__('planted') or __import__('os').system('touch executed')",)


def _zip(name: str, content: bytes) -> bytes:
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as archive:
        archive.writestr(name, content)
    return stream.getvalue()


def safetensors(header: Any, data: bytes = b"") -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + data


def _png(width: int, height: int) -> bytes:
    """An image that says to be larger than it is."""
    head = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    parts = ((b"IHDR", head), (b"IDAT", zlib.compress(bytes(100))), (b"IEND", b""))
    chunks = (struct.pack(">I", len(v)) + k + v + struct.pack(">I", zlib.crc32(k + v)) for k, v in parts)
    return b"\x89PNG\r\n\x1a\n" + b"".join(chunks)


def _tar(*entries: tuple[str, bytes, str]) -> bytes:
    """Members by name, type and where they lead."""
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w") as tar:
        for name, kind, target in entries:
            entry = tarfile.TarInfo(name)
            entry.type, entry.linkname = kind, target
            tar.addfile(entry)
    return stream.getvalue()


CONTENTS = {
    "empty": b"",
    "bomb": _png(60_000, 60_000),
    "narrow": _png(1, 20_000),
    "tar-outside": _tar(("../secret/file.png", tarfile.REGTYPE, ""), ("/executed/x.png", tarfile.REGTYPE, "")),
    "tar-links": _tar(("ant/a.png", tarfile.SYMTYPE, "../secret/file"), ("bee/b.png", tarfile.LNKTYPE, "ant/a.png")),
    "tar-pipe": _tar(("ant/a.png", tarfile.FIFOTYPE, ""), ("bee/b.png", tarfile.CHRTYPE, "")),
    "html": b"<!DOCTYPE html><html><head><title>404</title></head><body>Not found</body></html>",
    "pickle": pickle.dumps(Run()),
    "torch-zip": _zip("archive/data.pkl", pickle.dumps(Run(), 2)),
    "zip": _zip("a.txt", b"hello"),
    "nul": bytes(4096),
    "utf-16": '{"a": 1}'.encode("utf-16"),
    "latin-1": b'{"a": "\xe9"}',
    "deep": DEEP.encode(),
    "list": b"[1, 2]",
    "number": b"3",
    "null": b"null",
    "huge-header": struct.pack("<Q", 2**62) + b"{}",
    "no-tensors": safetensors({}),
    "other-tensors": safetensors({"a": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}}, bytes(8)),
    "huge-tensor": safetensors({"a": {"dtype": "F32", "shape": [2**40], "data_offsets": [0, 2**42]}}, bytes(8)),
}
# What may stand at any place of a document: no type, sign, size or reference is safe to rely on.
VALUES: list[Any] = [
    GONE, None, True, False, 0, -1, 1, 7, 2**31, 10**30, DIGITS, 0.5, -0.5, 1e308, float("nan"), float("inf"), "", "x",
    "3", "nan", LONG, "../secret/file", "http://127.0.0.1:9/x", "local-dir:secret", "hf-hub:some/where", "os.system",
    "planted.run", "resnet50", "\ud800", "a\0b", [], {}, [[]], [None], [-1, -1], [1e9, 1e9], ["x"] * 3, {"x": {}},
    {"type": "os.system", "command": "touch executed"}, [[[[[[[[[]]]]]]]]],
]  # fmt: skip
EXTRA: dict[str, Any] = {
    "checkpoint_path": "secret/file", "file": "secret/file", "url": "http://127.0.0.1:9/x", "hf_hub_id": "some/where",
    "pretrained_cfg_overlay": {"url": "http://127.0.0.1:9/x"}, "pretrained_strict": False, "custom_load": "hf",
    "features_only": True, "auto_map": {"AutoModel": "planted.Model"}, "custom_imports": {"imports": ["planted"]},
    "default_scope": "planted", "init_cfg": {"type": "Pretrained", "checkpoint": "http://127.0.0.1:9/x"},
    "type": "os.system", "__class__": "x", "": "", "x": 1,
}  # fmt: skip


def dumped(document: Any) -> str:
    """JSON as hostile as the document, with numbers that are too long to be parsed."""
    return json.dumps(document, indent=1).replace(f'"{DIGITS}"', DIGITS[1:])


@dataclass(frozen=True)
class Edit:
    """One value of a JSON file, by its keys; whoever damages a file can also write its sha256 anew."""

    path: str
    keys: str
    value: Any

    def __call__(self, folder: Path) -> None:
        document = node = json.loads((folder / self.path).read_text())
        *above, last = self.keys.split(".")
        for key in above:
            node = node[int(key) if isinstance(node, list) else key]
        if self.value is GONE:
            del node[last]
        else:
            node[int(last) if isinstance(node, list) else last] = self.value
        (folder / self.path).write_text(dumped(document))

    def __str__(self) -> str:
        value = "gone" if self.value is GONE else str(self.value)[:20]
        return f"{self.path}:{self.keys}={value}"


@dataclass(frozen=True)
class Detector(Edit):
    """The same in the config of a detector's folder, which is there twice: as JSON and as Python text."""

    def __call__(self, folder: Path) -> None:
        Edit(f"{self.path}/config.json", f"config.{self.keys}", self.value)(folder)
        as_python(folder / self.path)


def as_python(folder: Path) -> None:
    """Write the config of a detector's folder as Python text, too, from its JSON."""
    config = json.loads((folder / "config.json").read_text())["config"]
    lines = "".join(f"{name} = {_with_tuples(value)!r}\n" for name, value in config.items())
    (folder / "config.py").write_text(lines, errors="backslashreplace")
    signed(folder / "config.py")


def _with_tuples(value: Any) -> Any:
    """JSON has no tuples, but sizes of images must be some."""
    if isinstance(value, dict):
        return {key: _with_tuples(each) for key, each in value.items()}
    if isinstance(value, list):
        numbers = value and all(isinstance(each, int | float) for each in value)
        return tuple(value) if numbers else [_with_tuples(each) for each in value]
    return value


@dataclass(frozen=True)
class Put:
    """Another content for a file, by its name in CONTENTS or as it is."""

    path: str
    content: str | bytes

    def __call__(self, folder: Path) -> None:
        content = self.content.encode() if isinstance(self.content, str) else self.content
        (folder / self.path).parent.mkdir(parents=True, exist_ok=True)
        (folder / self.path).write_bytes(CONTENTS.get(str(self.content), content))
        signed(folder / self.path)

    def __str__(self) -> str:
        return f"{self.path}={self.content[:20]!r}"


@dataclass(frozen=True)
class Add:
    """One more line at the end of a config of the user's own."""

    path: str
    line: str

    def __call__(self, folder: Path) -> None:
        with open(folder / self.path, "a") as file:
            file.write(f"{self.line}\n")

    def __str__(self) -> str:
        return f"{self.path}: {self.line}"


@dataclass(frozen=True)
class Make:
    """Something else than a file at a path: nothing, a folder, a FIFO, a link to itself or to nothing, a socket; or a
    file that is larger than any memory, without a byte on the disk."""

    path: str
    kind: str

    def __call__(self, folder: Path) -> None:
        path = folder / self.path
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)
        if self.kind == "folder":
            path.mkdir()
        elif self.kind == "fifo":
            os.mkfifo(path)
        elif self.kind == "socket":
            with socket.socket(socket.AF_UNIX) as made, contextlib.chdir(path.parent):  # such a name is short
                made.bind(path.name)
        elif self.kind == "sparse":
            with open(path, "wb") as file:
                file.truncate(1 << 36)
        elif self.kind in ("loop", "dangling"):
            path.symlink_to(path if self.kind == "loop" else folder / "nowhere")

    def __str__(self) -> str:
        return f"{self.path} is {self.kind}"


KINDS = ("nothing", "folder", "fifo", "loop", "dangling")


@dataclass(frozen=True)
class Copy:
    """What is valid at one path at another one, too: in the place of another file, or beside it."""

    source: str
    path: str

    def __call__(self, folder: Path) -> None:
        source, path = folder / self.source, folder / self.path
        if source.is_dir():
            shutil.copytree(source, path, dirs_exist_ok=True)
        else:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(source.read_bytes())
            signed(path)

    def __str__(self) -> str:
        return f"{self.source} also as {self.path}"


@dataclass(frozen=True)
class Rename:
    """Another name for a file or folder, in bytes: it need not be in UTF-8."""

    path: str
    name: bytes

    def __call__(self, folder: Path) -> None:
        place = os.fsencode(folder / self.path)
        os.rename(place, os.path.join(os.path.dirname(place), self.name))

    def __str__(self) -> str:
        return f"{self.path} is called {self.name!r}"


@dataclass(frozen=True)
class Weights:
    """One tensor of a safetensors file, by its number, that is whole but not what it should be."""

    path: str
    number: int
    how: str

    def __call__(self, folder: Path) -> None:
        from safetensors.torch import load_file, save_file

        tensors = load_file(folder / self.path)
        name = sorted(tensors)[self.number % len(tensors)]
        tensor = tensors.pop(name)
        if self.how == "other name":
            tensors["x" + name] = tensor
        elif self.how != "gone":
            tensors[name] = {
                "nan": lambda: tensor.double() * float("nan"), "inf": lambda: tensor.double() + float("inf"),
                "long": lambda: tensor.long(), "half": lambda: tensor.half(), "flat": lambda: tensor.reshape(-1),
                "empty": lambda: tensor.new_empty(0), "deep": lambda: tensor.reshape(1, *tensor.shape),
            }[self.how]()  # fmt: skip
        save_file(tensors, folder / self.path, metadata={"format": "pt"})
        signed(folder / self.path)

    def __str__(self) -> str:
        return f"{self.path}: tensor {self.number} is {self.how}"


HOWS = ("nan", "inf", "long", "half", "flat", "empty", "deep", "gone", "other name")


@dataclass(frozen=True)
class Rows:
    """Lines of a table that are missing, twice there or in another order."""

    path: str
    how: str

    def __call__(self, folder: Path) -> None:
        lines = (folder / self.path).read_text().splitlines(keepends=True)
        middle = len(lines) // 2
        changed = {
            "without one": lines[:middle] + lines[middle + 1 :], "twice": lines + lines, "reversed": lines[::-1],
            "half": lines[:middle],
        }[self.how]  # fmt: skip
        (folder / self.path).write_text("".join(changed))

    def __str__(self) -> str:
        return f"{self.path}, {self.how}"


ORDERS = ("without one", "twice", "reversed", "half")


@dataclass(frozen=True)
class Both:
    """Two changes, one after the other."""

    first: Any
    second: Any

    def __call__(self, folder: Path) -> None:
        self.first(folder)
        self.second(folder)

    def __str__(self) -> str:
        return f"{self.first}, {self.second}"


@dataclass(frozen=True)
class Cut:
    """A file without its end (or with one bit flipped), at a part of its length."""

    path: str
    part: float
    flip: bool = False

    def __call__(self, folder: Path) -> None:
        content = bytearray((folder / self.path).read_bytes())
        place = int(self.part * max(0, len(content) - 1))
        if self.flip:
            content[place] ^= 1 << (place % 8)
        else:
            del content[place:]
        (folder / self.path).write_bytes(content)
        if self.part < 0.9:  # else it is the file that was damaged on the way
            signed(folder / self.path)

    def __str__(self) -> str:
        return f"{self.path} {'flipped' if self.flip else 'cut'} at {self.part:.3f}"


def signed(path: Path) -> None:
    """Record the sha256 of damaged weights in the config beside it, as whoever damages them on purpose would."""
    config = path.with_name("config.json")
    if path.name == "config.json" or not config.is_file():
        return
    try:
        document = json.loads(config.read_text())
        sums = document["s3zoo"]["sha256"]
    except (ValueError, KeyError, TypeError):
        return
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    if isinstance(sums, dict) and path.name in sums:
        sums[path.name] = digest
    elif isinstance(sums, str) and path.name == "model.safetensors":
        document["s3zoo"]["sha256"] = digest
    config.write_text(dumped(document))


NAMES = (b"caf\xe9", b"\x1b[2J", b"a\nb", b" ", b"-x", b"'\";", b"$(touch executed)")


def damaged(folder: Path, target: str, rng: random.Random) -> str:
    """Damage one file or folder below `target` at random, and say how."""
    root = folder / target
    places = sorted(root.rglob("*")) if root.is_dir() else [root]
    files = [p for p in places if p.is_file() and p.name != ".lock"]
    path = rng.choice(files)
    if path.suffix in (".safetensors", ".svg", ".md") and rng.random() < 0.5:  # documents have more ways to be wrong
        path = next((p for p in files if p.suffix in (".json", ".jsonl")), path)
    name, way = str(path.relative_to(folder)), rng.random()
    change: Any = Cut(name, rng.random(), rng.random() < 0.5)
    if way < 0.1:
        change = Make(name, rng.choice((*KINDS, "socket")))
    elif way < 0.13 and root.is_dir():
        change = Make(str(rng.choice(places).relative_to(folder)), rng.choice(KINDS))
    elif way < 0.25:
        change = Put(name, rng.choice(list(CONTENTS)))
    elif way < 0.26:
        change = Rename(name, rng.choice(NAMES) + os.fsencode(path.suffix))
    elif way < 0.3:
        alike = [p for p in files if p.suffix == path.suffix]
        change = Copy(str(rng.choice(alike).relative_to(folder)), name)
    elif way < 0.34:
        beside = rng.choice(places).relative_to(folder)
        change = Copy(str(beside), str(beside.with_name(_other_name(beside.name, rng))))
    elif path.suffix == ".jsonl" and way < 0.42:
        change = Rows(name, rng.choice(ORDERS))
    elif path.suffix in (".json", ".jsonl") and way < 0.9 and path.stat().st_size:
        return _value_changed(path, name, rng)
    elif path.suffix == ".safetensors" and way < 0.8:
        change = Weights(name, rng.randrange(10**6), rng.choice(HOWS))
    change(folder)
    return str(change)


def _other_name(name: str, rng: random.Random) -> str:
    """As a person or another program might call a copy: space0 -> spacex, step-00000002 -> step-3."""
    head, number, rest = re.fullmatch(r"(.*?)(\d*)(\D*)", name, re.S).groups()  # type: ignore[union-attr]
    others = [f"{head}{other}{rest}" for other in ("x", "9", "-1", "99999999", " (copy)", "")]
    return rng.choice([other for other in (*others, f"{name}.bak", f".{name}") if other not in (name, "", ".")])


# What is typed in the place of a setting or an option: short, so that what is valid after all ends soon
WORDS = (
    "", "x", "-1", "0", "1", "2", "-0", "nan", "inf", "-inf", "1e308", "-1e-320", str(10**30), str(-(2**63)), "0.5",
    "3,4", "None", "True", "()", "(1,)", "(1,2)", "(0,0)", "(nan,)", "[]", "{}", "{'x':1}", "('a',)", "'", "(" * 300,
    "é", "a=b", ".", "~", "-", "--", "image.png", "data", "nowhere", "http://127.0.0.1:9/x", LONG, "\x1b[31m", "\udce9",
    "params<=5K", "params<=-1", "params>=1e400", "macs<=x", "latency<=1ms,latency<=2ms", "params<=5K,macs<=1,x<=1",
)  # fmt: skip


def _value_changed(path: Path, name: str, rng: random.Random) -> str:
    """One value of a document, chosen at random; of a table of records, of one of its rows."""
    text = path.read_text()
    lines = path.suffix == ".jsonl" or "\n{" in text  # mmengine's have the name of one document
    documents = [json.loads(line) for line in text.splitlines()] if lines else [json.loads(text)]
    row = rng.randrange(len(documents))
    places: list[tuple[Any, Any, str]] = []

    def walk(node: Any, where: str) -> None:
        for key, value in list(node.items() if isinstance(node, dict) else enumerate(node))[:50]:
            places.append((node, key, f"{where}.{key}"))
            if isinstance(value, dict | list):
                walk(value, f"{where}.{key}")

    holder = [documents[row]]
    walk(holder, "")
    dicts = [node[key] for node, key, _ in places if isinstance(node[key], dict)]
    if rng.random() < 0.1 and dicts:  # a key more
        key = rng.choice(list(EXTRA))
        rng.choice(dicts)[key] = EXTRA[key]
        said = f"{name}: one more key {key!r}"
    else:
        depth = rng.randrange(1, 8)  # else most of the places are deep inside the genome
        near = [place for place in places if place[2].count(".") <= depth]
        node, key, where = rng.choice(near)
        value = rng.choice(VALUES)
        if value is GONE:
            node.pop(key)
        else:
            node[key] = value
        said = f"{name}{where[2:]} = {'gone' if value is GONE else str(value)[:40]}"
    documents[row : row + 1] = holder
    path.write_text("".join(json.dumps(d) + "\n" for d in documents) if lines else dumped(*documents or [None]))
    if path.name != "config.json":
        signed(path)
    elif path.with_name("config.py").is_file():
        with contextlib.suppress(ValueError, KeyError, AttributeError, TypeError):  # no config is left
            as_python(path.parent)
    return said
