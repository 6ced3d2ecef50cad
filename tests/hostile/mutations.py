"""Damage to files: by hand (`Edit`, `Put`, `Make`) for cases that have a name, and at random (`damaged`)."""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import os
import pickle
import random
import shutil
import struct
import zipfile
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


CONTENTS = {
    "empty": b"",
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
    lines = "".join(f"{name} = {value!r}\n" for name, value in config.items())
    (folder / "config.py").write_text(lines, errors="backslashreplace")
    signed(folder / "config.py")


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
    """Something else than a file at a path: nothing, a folder, a FIFO, a link to itself or to nothing."""

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
        elif self.kind in ("loop", "dangling"):
            path.symlink_to(path if self.kind == "loop" else folder / "nowhere")

    def __str__(self) -> str:
        return f"{self.path} is {self.kind}"


KINDS = ("nothing", "folder", "fifo", "loop", "dangling")


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


def damaged(folder: Path, target: str, rng: random.Random) -> str:
    """Damage one file below `target` at random, and say how."""
    root = folder / target
    files = [p for p in (sorted(root.rglob("*")) if root.is_dir() else [root]) if p.is_file() and p.name != ".lock"]
    path = rng.choice(files)
    if path.suffix in (".safetensors", ".svg", ".md") and rng.random() < 0.5:  # documents have more ways to be wrong
        path = next((p for p in files if p.suffix in (".json", ".jsonl")), path)
    name = str(path.relative_to(folder))
    way = rng.random()
    if way < 0.1:
        change: Any = Make(name, rng.choice(KINDS))
    elif way < 0.25:
        change = Put(name, rng.choice(list(CONTENTS)))
    elif path.suffix in (".json", ".jsonl") and way < 0.9:
        return _value_changed(path, name, rng)
    else:
        change = Cut(name, rng.random(), rng.random() < 0.5)
    change(folder)
    return str(change)


def _value_changed(path: Path, name: str, rng: random.Random) -> str:
    """One value of a document, chosen at random; of a table of records, of one of its rows."""
    lines = path.suffix == ".jsonl"
    text = path.read_text()
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
    if rng.random() < 0.1:  # a key more
        nodes = [node[key] for node, key, _ in places if isinstance(node[key], dict)]
        if nodes:
            key = rng.choice(list(EXTRA))
            rng.choice(nodes)[key] = EXTRA[key]
            said = f"{name}: one more key {key!r}"
    if "said" not in locals():
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
