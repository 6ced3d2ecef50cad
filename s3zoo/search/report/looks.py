"""What the figures of a report have in common: how methods and spaces look, legends, bands over seeds, names of files.

A method (runs that differ in their seed alone) has a colour, a marker and a line style; so has a space where there is
one method. Over several seeds a line is the mean and a band goes from the lowest to the highest.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from s3zoo.drawing import colour, quantity
from s3zoo.search.report import data
from s3zoo.search.report.data import Group, Network, Run

LOOKS = (("blue", "o", "-"), ("amber", "s", "--"), ("green", "^", "-."), ("magenta", "D", ":"), ("teal", "v", "-"),
         ("red", "P", "--"), ("slate", "X", "-."))  # fmt: skip
METRICS = {"params": "parameters", "macs": "MACs", "latency": "latency (ms)"}
WIDE, HIGH = 520, 360


class Drawn(NamedTuple):
    name: str  # of its files
    label: str  # what it shows, in words
    figure: Any


def look(number: int) -> dict[str, Any]:
    name, marker, line = LOOKS[number % len(LOOKS)]
    return {"color": colour(name), "marker": marker, "linestyle": line}


def line_look(number: int) -> dict[str, Any]:
    return {key: value for key, value in look(number).items() if key != "marker"}


def mark_look(number: int) -> dict[str, Any]:
    return {key: value for key, value in look(number).items() if key != "linestyle"}


def file_name(text: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")


def says(network: Network, *more: str) -> str:
    """What is shown of a network when it is pointed at: its name, its figures, its genes."""
    costs = ", ".join(
        f"{value:.3g} ms" if metric == "latency" else f"{quantity(value)} {METRICS[metric]}"
        for metric, value in network.costs.items()
    )
    kind = "" if network.full else " (racing's estimate)"
    return "\n".join([network.key, f"{network.accuracy:.2f} %{kind}, {costs}", *more, data.told(network.arch)])


def legend(figure: Any, handles: Sequence[Any], columns: int = 3) -> None:
    if handles:
        figure.legend(handles=handles, loc="outside lower center", ncols=min(columns, len(handles)), fontsize=10)


def axes(found: Any) -> list[Any]:
    return list(np.atleast_1d(found).ravel())


def banded(ax: Any, xs: Sequence[float], curves: Sequence[Sequence[float]], **style: Any) -> list[tuple[float, ...]]:
    """Draw the mean of several seeds' curves, with the band that they fill; lowest, mean and highest at each place."""
    spread = data.band(curves)
    low, mean, high = zip(*spread, strict=True)
    if len(curves) > 1:
        ax.fill_between(xs[: len(spread)], low, high, color=style["color"], alpha=0.15, linewidth=0)
    ax.plot(xs[: len(spread)], mean, **style)
    return list(spread)


def run_name(name: str, groups: Sequence[Group], group: Group, run: Run) -> str:
    """A name for the files of one run, where there are several."""
    return name if len(groups) + len(group.runs) == 2 else f"{name}-{file_name(group.label)}-seed{run.seed}"


def whole_numbers(axis: Any) -> None:
    from matplotlib.ticker import MaxNLocator

    axis.set_major_locator(MaxNLocator(integer=True, nbins=6))


def counts(axis: Any) -> None:
    """Ticks of large numbers as papers print them."""
    from matplotlib.ticker import FuncFormatter, MaxNLocator

    axis.set_major_locator(MaxNLocator(nbins=5, integer=True))
    axis.set_major_formatter(FuncFormatter(lambda value, _: quantity(value) if value > 0 else f"{value:g}"))


def handle(label: str, number: int, **changes: Any) -> Any:
    from matplotlib.lines import Line2D

    return Line2D([], [], label=label, **(look(number) | {"markersize": 6} | changes))


def method_name(name: str, groups: Sequence[Group], group: Group) -> str:
    return name if len(groups) == 1 else f"{name}-method{list(groups).index(group) + 1}"
