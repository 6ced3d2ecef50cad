"""Configs by name, in the files of configs/search, configs/train and configs/vqa; `s3zoo config` writes one as Python.

A file defines `config`, or a `Registry` called `configs` whose names all begin with the file's: `s4_vit_cifar10` is in
s4.py, `digits` in digits.py.
"""

from __future__ import annotations

import argparse
import dataclasses
import difflib
import importlib.util
import inspect
import math
from collections.abc import Callable, Iterable
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple, TypeVar

from s3zoo.paths import configs_dir
from s3zoo.space import SPACES, Space

FOLDERS = ("search", "train", "vqa")
WIDTH = 120

T = TypeVar("T")


class Entry(NamedTuple):
    config: Any
    text: str  # what it is, what to expect of it, its cost and its command


class Registry(dict[str, Entry]):
    """Several configs in one file, by name."""

    def add(self, make: Callable[[], T]) -> Callable[[], T]:
        """Decorates a function that is called as its config, which it returns, and whose docstring is the text."""
        self[make.__name__] = Entry(make(), inspect.getdoc(make) or "")
        return make


def names(folder: str) -> dict[str, Path]:
    """The shipped configs of a folder, and the file that each is in."""
    found: dict[str, Path] = {}
    for path in sorted((configs_dir() / folder).glob("[!_]*.py")):
        module = _module(str(path), path)
        found |= dict.fromkeys(getattr(module, "configs", {path.stem: None}), path)
    return found


def entry(name: str, folder: str) -> Entry:
    """A shipped config and its text."""
    words = name.split("_")
    for end in range(len(words), 0, -1):  # a name begins with its file's
        path = configs_dir() / folder / f"{'_'.join(words[:end])}.py"
        if name.isidentifier() and path.is_file():
            module = _module(name, path)
            if end == len(words) and hasattr(module, "config"):
                return Entry(module.config, inspect.getdoc(module) or "")
            if name in getattr(module, "configs", {}):
                return module.configs[name]
    raise unknown(name, names(folder))


def unknown(name: str, known: Iterable[str]) -> ValueError:
    """That there is no config of this name, and the few that are nearest to it."""
    near = difflib.get_close_matches(name, list(known), n=3)
    hint = f"did you mean {' or '.join(map(repr, near))}?" if near else "give a path ending in .py or a name:"
    return ValueError(f"No config is called {name!r}; {hint} `s3zoo config` lists them all.")


def load_config(source: str, kind: type[T], folder: str) -> T:
    """The config of that name in `configs/<folder>`, or the `config` of the Python file at that path."""
    path = Path(source).expanduser()
    if path.suffix != ".py":
        config = entry(source, folder).config
    elif path.is_file():
        config = getattr(_module(source, path), "config", None)
    else:
        raise ValueError(
            f"No config file at {source!r}; give a path ending in .py or a name: `s3zoo config` lists them all."
        )
    if not isinstance(config, kind) or not dataclasses.is_dataclass(type(config)):
        wanted = "the config of a run" if kind is object else f"a {kind.__name__}"
        raise ValueError(f"The config {source!r} must define `config`, {wanted}; it has {type(config).__name__}.")
    return config


def _module(source: str, path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"s3zoo_config_{path.stem}", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except Exception as error:  # a config is a program: anything may go wrong in it
        reason = " ".join(str(error).split()).rstrip(".")
        kind_of = "" if isinstance(error, ValueError) else f"{type(error).__name__}: "
        raise ValueError(f"The config {source!r} cannot be read: {kind_of}{reason}.") from error
    return module


def listing(folder: str) -> str:
    """The names of a folder's configs, each with the first line of its text."""
    rows = {name: entry(name, folder).text.partition("\n")[0] for name in names(folder)}
    width = max(map(len, rows))
    return "\n".join(f"{name:{width}}  {line}" for name, line in rows.items())


# A config as Python


def source_of(config: Any, text: str = "") -> str:
    """A Python file that defines an equal config; only what differs from the defaults is written."""
    used: dict[str, set[str]] = {}
    body = _written(config, used, len("config = "), 0)
    lines = [f"from {module} import {', '.join(sorted(found))}" for module, found in sorted(used.items()) if found]
    head = (["import math", ""] if "math" in used else []) + lines
    text = text.replace("\\", "\\\\").replace('"""', "'''")  # a name in it may hold anything
    return (f'"""{text}\n"""\n\n' if text else "") + "\n".join(head) + f"\n\nconfig = {body}\n"


def _written(value: Any, used: dict[str, set[str]], start: int, indent: int) -> str:
    """The value as an expression; `start` columns are taken on its first line, `indent` on the others."""
    if isinstance(value, Space) and SPACES.get(value.name) == value:
        used.setdefault("s3zoo.space", set()).add("SPACES")
        return f"SPACES[{_text(value.name)}]"
    if isinstance(value, float) and math.isinf(value):
        used.setdefault("math", set())
        return "math.inf" if value > 0 else "-math.inf"
    if dataclasses.is_dataclass(value):
        used.setdefault(type(value).__module__, set()).add(type(value).__name__)
        head, tail = f"{type(value).__name__}(", ")"
        parts = [(f"{f.name}=", getattr(value, f.name)) for f in dataclasses.fields(value) if not _default(f, value)]
    elif isinstance(value, dict):
        head, tail = "{", "}"
        parts = [(f"{_text(key)}: ", item) for key, item in value.items()]
    elif isinstance(value, list | tuple):
        head, tail = ("[", "]") if isinstance(value, list) else ("(", ",)" if len(value) == 1 else ")")
        parts = [("", item) for item in value]
    else:
        return _text(value)
    flat = head + ", ".join(label + _written(item, used, 0, 0) for label, item in parts) + tail
    if "\n" not in flat and start + len(flat) <= WIDTH:
        return flat
    lines = [
        f"{' ' * (indent + 4)}{label}{_written(item, used, indent + 5 + len(label), indent + 4)},\n"
        for label, item in parts
    ]
    return f"{head}\n{''.join(lines)}{' ' * indent}{tail.lstrip(',')}"


def _text(value: Any) -> str:
    """Its repr, strings in double quotes."""
    plain = isinstance(value, str) and not set(value) & {'"', "'"}
    return f'"{repr(value)[1:-1]}"' if plain else repr(value)


def _default(field: dataclasses.Field[Any], owner: Any) -> bool:
    value = getattr(owner, field.name)
    if field.default_factory is not dataclasses.MISSING:
        return bool(value == field.default_factory())
    return bool(value == field.default)


def main(argv: list[str] | None = None) -> int:
    from s3zoo.training.config import overridden  # which takes load_config from here

    parser = argparse.ArgumentParser(
        prog="s3zoo config",
        description="Write a config as a Python file of your own: `s3zoo config s4_vit_cifar10 > mine.py`, then"
        " `s3zoo search mine.py`. Without a name, list them all.",
    )
    parser.add_argument(
        "name", nargs="?", help="name of a config, or a .py file; search/digits where a name occurs twice"
    )
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="change a setting")
    arguments = parser.parse_args(argv)
    if arguments.name is None:
        print("\n\n".join(f"{folder}\n{listing(folder)}" for folder in FOLDERS))
        return 0
    if arguments.name.endswith(".py"):
        config, text = load_config(arguments.name, object, "search"), ""
    else:
        config, text = _named(arguments.name)
    print(source_of(overridden(config, arguments.set), text), end="")
    return 0


def _named(name: str) -> Entry:
    """A shipped config by its name, in whatever folder it is."""
    folder, _, rest = name.rpartition("/")
    if folder and folder not in FOLDERS:
        raise ValueError(f"There are no configs in {folder!r}; the folders are {', '.join(FOLDERS)}.")
    found = [place for place in ([folder] if folder else FOLDERS) if rest in names(place)]
    if len(found) > 1:
        both = " or ".join(f"{place}/{rest}" for place in found)
        raise ValueError(f"{name!r} is the name of {len(found)} configs; write {both}.")
    if not found:
        raise unknown(name, {f"{place}/{each}" if folder else each for place in FOLDERS for each in names(place)})
    return entry(rest, found[0])
