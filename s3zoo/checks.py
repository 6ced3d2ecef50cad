"""What a setting may be, said where it is declared and checked in one place: types, ranges, words.

    @dataclass(frozen=True)
    class Train:
        epochs: Count = 300
        temperature: Annotated[float, Range(0, 1000, above=True)] = 1.0
        schedule: Literal["cosine", "step", "constant"] = "cosine"

        def __post_init__(self) -> None:
            check(self)

What is wrong is a ValueError of one line that begins with the name of the field. NaN lies in no range, infinity only in
one without an end.
"""

from __future__ import annotations

import contextlib
import functools
import math
import reprlib
import types
import typing
from dataclasses import dataclass
from typing import Annotated, Any, Literal

_repr = reprlib.Repr()
_repr.maxstring = _repr.maxother = 100


def show(value: Any) -> str:
    """A value on one line, shortened where it is long or deep."""
    return " ".join(_repr.repr(value).split())


def refusal(path: str, value: Any, valid: Any) -> ValueError:
    return ValueError(f"{path} is {show(value)}, but must be {valid}.")


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


Count = Annotated[int, Range(0, 10**9)]
Positive = Annotated[int, Range(1, 10**9)]
Amount = Annotated[float, Range(0, 10**6)]
Share = Annotated[float, Range(0, 1)]
BelowOne = Annotated[float, Range(0, 1, below=True)]
Seed = Annotated[int, Range(0, 2**63 - 1)]
Threads = Annotated[int, Range(1, 1024)]
Workers = Annotated[int, Range(0, 512)]


def check(config: Any) -> None:
    """Every field of a dataclass holds what its declaration allows, or a sentence."""
    for name, kind in declared(type(config)).items():
        typed(getattr(config, name), kind, name)


_hints = functools.cache(typing.get_type_hints)


def declared(cls: Any) -> dict[str, Any]:
    """The types of a dataclass's fields, with their ranges."""
    return _hints(cls, include_extras=True)


def typed(value: Any, kind: Any, path: str) -> Any:
    """The value in the type that is declared, or a sentence."""
    origin, args = typing.get_origin(kind), typing.get_args(kind)
    if origin is Annotated:
        value = typed(value, args[0], path)
        for allowed in args[1:]:
            if value not in allowed:
                raise refusal(path, value, allowed)
        return value
    if origin is Literal:
        if value in args:
            return value
        *others, last = map(repr, args)
        raise refusal(path, value, f"{', '.join(others)} or {last}")
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
    elif kind is Any:
        return value
    elif isinstance(kind, type) and isinstance(value, kind) and not (kind is int and isinstance(value, bool)):
        return value
    name = kind.__name__ if origin is None and isinstance(kind, type) else str(kind).replace("typing.", "")
    raise refusal(path, value, f"of type {name}")


def _shown(number: float) -> str:
    return f"{number:,}" if isinstance(number, int) else f"{number:g}"
