"""What a setting may be, said where it is declared and checked in one place: types, ranges, words.

    @dataclass(frozen=True)
    class Train:
        epochs: Count = 300
        temperature: Annotated[float, Range(0, 1000, above=True)] = 1.0
        schedule: Literal["cosine", "step", "constant"] = "cosine"

        def __post_init__(self) -> None:
            check(self)

What comes from a file of JSON is checked by the same words; `Fields` say what an object in it holds.

What is wrong is a ValueError of one line that begins with the name of the field. NaN lies in no range, infinity only in
one without an end.
"""

from __future__ import annotations

import contextlib
import difflib
import functools
import math
import re
import reprlib
import types
import typing
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal, Never

# By the keys that an object must have ("key?": may have; "*": all others), what each holds: a type as above, the fields
# of an object, as a list of one what every item of a list holds, or as a tuple of one what it is unless it is null.
# Without "*" others are ignored.
Fields = Mapping[str, Any]
CLOSED: dict[str, Any] = {"*": Never}  # with these, others are refused

_repr = reprlib.Repr()
_repr.maxstring = _repr.maxother = 100


def show(value: Any) -> str:
    """A value on one line, shortened where it is long or deep."""
    return " ".join(_repr.repr(value).split())


def nearest(name: str, known: Iterable[str], otherwise: str = "") -> str:
    """The question whether the nearest of the known names was meant; `otherwise`, if none is near."""
    near = difflib.get_close_matches(name, list(known), n=1)
    return f"did you mean {near[0]!r}?" if near else otherwise


def refusal(path: str, value: Any, valid: Any) -> ValueError:
    return ValueError(f"{path or 'it'} is {show(value)}, but must be {valid}.")


@dataclass(frozen=True)
class Range:
    """From low to high, both included but where `above` or `below` says otherwise; of a tuple, every number."""

    low: float
    high: float = math.inf
    above: bool = False
    below: bool = False

    def __contains__(self, value: Any) -> bool:
        if isinstance(value, list | tuple):
            return all(v in self for v in value)
        return bool(
            (self.low < value if self.above else self.low <= value)
            and (value < self.high if self.below else value <= self.high)
        )

    def __str__(self) -> str:
        text = f"{'above' if self.above else 'at least'} {_shown(self.low)}"
        if self.high == math.inf:
            return text
        return f"{text} and {'below' if self.below else 'at most'} {_shown(self.high)}"


class Shown:
    """Text that can be shown: none with characters that steer a terminal."""

    def __contains__(self, value: str) -> bool:
        return not re.search(r"[\x00-\x1f\x7f-\x9f\ud800-\udfff]", value)

    def __str__(self) -> str:
        return "text without control characters"


Text = Annotated[str, Shown()]
Count = Annotated[int, Range(0, 10**9)]
Positive = Annotated[int, Range(1, 10**9)]
Amount = Annotated[float, Range(0, 10**6)]
Share = Annotated[float, Range(0, 1)]
BelowOne = Annotated[float, Range(0, 1, below=True)]
Seed = Annotated[int, Range(0, 2**63 - 1)]
Threads = Annotated[int, Range(1, 1024)]
Repeats = Annotated[int, Range(1, 1000)]  # runs with other seeds
Workers = Annotated[int, Range(0, 512)]
Interpolation = Literal["nearest", "bilinear", "bicubic", "box", "hamming", "lanczos"]  # Pillow's

# What files of several kinds hold: the accuracy on test images, a latency that was promised
COUNT = Annotated[int, Range(0, 10**18)]
COST, COST_IF_ANY = Annotated[float, Range(0, 10**18)], Annotated[float | None, Range(0, 10**18)]
PERCENT, PERCENT_IF_ANY = Annotated[float, Range(0, 100)], Annotated[float | None, Range(0, 100)]
TEST: Fields = {"top1": PERCENT, "low": PERCENT, "high": PERCENT, "images?": COUNT}
LATENCY: Fields = {
    "promised": COST, "measured": COST_IF_ANY, "slower?": COST_IF_ANY, "others?": COST, "device": str,
    "device_name": str, "threads": COUNT, "batch_size": COUNT, "runtime?": str,
}  # fmt: skip


def check(config: Any) -> None:
    """Every field of a dataclass holds what its declaration allows, or a sentence; lists become tuples."""
    for name, kind in declared(type(config)).items():
        value = getattr(config, name)
        if isinstance(typed(value, kind, name), tuple) and isinstance(value, list):
            object.__setattr__(config, name, tuple(value))


_hints = functools.cache(typing.get_type_hints)


def declared(cls: Any) -> dict[str, Any]:
    """The types of a dataclass's fields, with their ranges."""
    return _hints(cls, include_extras=True)


def typed(value: Any, kind: Any, path: str) -> Any:
    """The value in the type that is declared, or a sentence; of JSON, `path` may be empty."""
    if type(value) is kind:
        return value
    if isinstance(kind, Mapping):
        return _object(value, kind, path)
    if isinstance(kind, tuple):
        return None if value is None else typed(value, kind[0], path)
    if isinstance(kind, list):
        if not isinstance(value, list):
            raise refusal(path, value, "a list")
        return [typed(item, kind[0], f"{path}[{index}]") for index, item in enumerate(value)]
    origin, args = typing.get_origin(kind), typing.get_args(kind)
    if origin is Annotated:
        value = typed(value, args[0], path)
        for allowed in args[1:]:
            if value is not None and value not in allowed:
                raise refusal(path, value, allowed)
        return value
    if origin is Literal:
        if value in args:
            return value
        *others, last = map(repr, args)
        raise refusal(path, value, f"{', '.join(others)} or {last}" if others else last)
    if origin in (typing.Union, types.UnionType):
        for option in args:
            try:
                return typed(value, option, path)
            except ValueError:
                continue
    elif kind is float and isinstance(value, int | float) and not isinstance(value, bool):
        with contextlib.suppress(OverflowError):
            return float(value)
    elif origin is tuple and isinstance(value, list | tuple):
        inner = [args[0]] * len(value) if len(args) == 2 and args[1] is Ellipsis else list(args)
        if len(inner) == len(value):
            return tuple(typed(v, k, path) for v, k in zip(value, inner, strict=True))
    elif origin is dict and isinstance(value, dict):
        return {typed(k, args[0], path): typed(v, args[1], path) for k, v in value.items()}
    elif kind is Any:
        return value
    elif kind is Never:
        raise ValueError(f"{path} is unknown; remove it.")
    elif isinstance(kind, type) and isinstance(value, kind) and not (kind is int and isinstance(value, bool)):
        return value
    raise refusal(path, value, f"of type {_name(kind)}")


def _object(value: Any, fields: Fields, path: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise refusal(path, value, "an object")
    above = path if path.endswith(" ") else f"{path}." if path else ""  # 'file: ' stands before the names
    kinds = {key.removesuffix("?"): kind for key, kind in fields.items()}
    for key, kind in kinds.items():
        if key in value:
            typed(value[key], kind, above + key)
        elif key in fields and key != "*":
            raise ValueError(f"{above}{key} is missing.")
    for key in sorted(value.keys() - kinds.keys(), key=str) if "*" in kinds else ():
        typed(value[key], kinds["*"], f"{above}{show(key)[1:-1]}")
    return value


def _name(kind: Any) -> str:
    """A type as a reader writes it, without the ranges."""
    origin, args = typing.get_origin(kind), typing.get_args(kind)
    if origin is Annotated:
        return _name(args[0])
    if origin in (typing.Union, types.UnionType):
        return " | ".join(map(_name, args))
    if origin in (tuple, dict):
        return f"{origin.__name__}[{', '.join('...' if arg is Ellipsis else _name(arg) for arg in args)}]"
    return kind.__name__ if origin is None and isinstance(kind, type) else str(kind).replace("typing.", "")


def _shown(number: float) -> str:
    return f"{number:,}" if isinstance(number, int) else f"{number:g}"
