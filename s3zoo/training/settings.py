"""Every setting of a config: its key for `--set`, its value, its default and what it does.

What it does is the comment at the field, on its line or above it: it is written once, where the field is.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
import re
import textwrap
from typing import Any, NamedTuple


class Setting(NamedTuple):
    key: str  # as `--set` takes it
    value: Any
    default: Any
    effect: str


def settings(config: Any, default: Any = None, prefix: str = "") -> list[Setting]:
    """All settings of a config beside those of `default` (its class' own unless given), in the order of the fields."""
    kind = type(config)
    default = kind() if default is None else default
    out: list[Setting] = []
    for field in dataclasses.fields(config):
        value, usual = getattr(config, field.name), getattr(default, field.name)
        if dataclasses.is_dataclass(value) and not hasattr(value, "family"):  # a space is one value
            out += settings(value, usual, f"{prefix}{field.name}.")
        else:
            out.append(Setting(prefix + field.name, value, usual, effect(kind, field.name)))
    return out


def effect(kind: type, name: str) -> str:
    """The comment at a field of a dataclass or of one that it extends."""
    return next((found[name] for base in kind.__mro__ if name in (found := _comments(base))), "")


@functools.cache
def _comments(kind: type) -> dict[str, str]:
    if not dataclasses.is_dataclass(kind):
        return {}
    out, above = {}, list[str]()
    for line in inspect.getsource(kind).splitlines():
        code, _, comment = line.strip().partition("  # ")
        if code.startswith("# "):
            above.append(code.removeprefix("# "))
        else:
            if found := re.match(r"(\w+): ", code):
                out[found[1]] = " ".join([*above, comment]).strip()
            above = []
    return out


def shown(value: Any) -> str:
    """A value as `--set` takes it; a space by its name."""
    if hasattr(value, "family"):
        return value.name
    return value if isinstance(value, str) and value else repr(value)


def listing(config: Any, default: Any) -> str:
    """For a terminal: key and value, the default where it is another, and the effect below."""
    lines = []
    for setting in settings(config, default):
        usual = "" if setting.value == setting.default else f"  (default: {shown(setting.default)})"
        lines.append(f"{setting.key} = {shown(setting.value)}{usual}")
        lines.append(textwrap.indent(textwrap.fill(setting.effect, 110), "    "))
    return "\n".join(lines)


def table(default: Any) -> str:
    """For a page: key, default and effect."""
    rows = [("Setting", "Default", "Effect"), ("---",) * 3]
    rows += [(f"`{s.key}`", f"`{shown(s.default)}`", s.effect) for s in settings(default, default)]
    return "\n".join(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in row)} |" for row in rows)
