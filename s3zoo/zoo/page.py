"""The page to browse the zoo: a table, and plots of accuracy against size and speed with the papers' peers.

body.html, page.css and page.js beside this file are its text, its style and the script that sorts and filters; without
scripts the page is a plain table under plots.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from html import escape
from pathlib import Path
from string import Template
from typing import Any

from s3zoo import drawing
from s3zoo.cards.facts import LOADABLE
from s3zoo.drawing import quantity
from s3zoo.families import FAMILIES

Row = dict[str, Any]
PLOTTED = "ImageNet-1k"  # accuracies on other data do not compare
COLOURS = {name: drawing.SERIES[family.colour] for name, family in FAMILIES.items()}
AXES = {"params": "parameters", "macs": "MACs", "throughput": "images per second"}
# Of a row: key, title, and whether numbers stand in it.
COLUMNS = (
    ("name", "Model", False),
    ("family", "Family", False),
    ("img_size", "Input", True),
    ("params", "Parameters", True),
    ("macs", "MACs", True),
    ("macs_paper", "MACs, paper's count", True),
    ("top1", "Top-1 %", True),
    ("dataset", "Dataset", False),
    ("whose", "Source of top-1", False),
    ("throughput", "Images/s", True),
    ("weights", "Weights", False),
    ("licence", "Licence of weights", False),
)


def page(rows: Sequence[Row], throughput: dict[str, Any]) -> str:
    """The whole page; the same rows give the same bytes with the same matplotlib."""
    here = Path(__file__).parent
    families = _families(rows)
    speed = ""
    if throughput:
        what, where, release = (escape(throughput[key]) for key in ("what", "machine", "torch"))
        speed = f" Images/s: {what}; batch {throughput['batch']}, torch {release}, {where}."
    body = Template((here / "body.html").read_text(encoding="utf-8")).substitute(
        count=len(rows),
        dataset=PLOTTED,
        plots="\n".join(f"<figure>{svg}</figure>" for svg in (plot(rows, key) for key in AXES) if svg),
        legend="\n".join(f"<li>{_family(name)}</li>" for name in families),
        boxes="\n".join(
            f'<label><input type="checkbox" name="family" value="{name}" checked> {_family(name)}</label>'
            for name in families
        ),
        head="".join(f'<th scope="col" data-key="{key}"{_class(number)}>{name}</th>' for key, name, number in COLUMNS),
        rows="\n".join(map(_row, rows)),
        peers="\n".join(map(_peer, peers())),
        speed=speed,
    )
    return drawing.page(
        "s3zoo: the models",
        body,
        colours=COLOURS,
        styles=(here / "page.css").read_text(encoding="utf-8"),
        scripts=(here / "page.js").read_text(encoding="utf-8"),
    )


def peers() -> list[Row]:
    """Networks that the papers compare with (peers.json), with params and macs, and the name of their source."""
    found = json.loads(Path(__file__).with_name("peers.json").read_text(encoding="utf-8"))
    return [
        peer | {
            "params": round(peer["params_m"] * 1e6),
            "macs": round(peer["macs_g"] * 1e9),
            "source": found["sources"][peer["source"]]["name"],
        }
        for peer in found["peers"]
    ]  # fmt: skip


# Table


def _class(number: bool) -> str:
    return ' class="number"' if number else ""


def _row(row: Row) -> str:
    loads = row["weights"].startswith(LOADABLE)
    cells = "".join(_cell(row, *column) for column in COLUMNS)
    return f'<tr data-name="{escape(row["name"])}" data-family="{row["family"]}" data-loads="{int(loads)}">{cells}</tr>'


def _cell(row: Row, key: str, title: str, number: bool) -> str:
    value = row.get(key)
    if key == "name":
        return f'<th scope="row"><a href="../model_cards/{value}/README.md">{value}</a></th>'
    text = "–" if value is None else escape(str(value))
    hover = ""
    if value is not None and key == "family":
        text = _family(value)
    elif value is not None and key == "weights":
        text, hover = escape(value.partition(":")[0]), f' title="{escape(value)}"'
    elif value is not None and number and key != "img_size":
        text = f"{value:.1f}" if key == "top1" else quantity(value)
    known = "" if value is None else escape(str(value))
    return f'<td{_class(number)} data-title="{title}" data-value="{known}"{hover}>{text}</td>'


def _peer(peer: Row) -> str:
    sizes = "".join(f'<td class="number">{quantity(peer[key])}</td>' for key in ("params", "macs"))
    return (
        f'<tr><th scope="row">{escape(peer["name"])}</th><td class="number">{peer["img_size"]}</td>{sizes}'
        f'<td class="number">{peer["top1"]:.1f}</td><td>{escape(peer["source"])}</td></tr>'
    )


# Families


def _families(rows: Sequence[Row]) -> list[str]:
    return [name for name in FAMILIES if any(row["family"] == name for row in rows)]


def _family(name: str) -> str:
    shape = drawing.SHAPES[FAMILIES[name].marker]
    return f'<i style="color: var(--{name})" aria-hidden="true">{shape}</i>{escape(FAMILIES[name].title)}'


# Plots


def points(rows: Sequence[Row], key: str) -> list[Row]:
    return [row for row in rows if row["dataset"] == PLOTTED and row["top1"] is not None and row.get(key)]


@drawing.style()
def plot(rows: Sequence[Row], key: str, *, standalone: bool = False) -> str:
    """Accuracy against one quantity as SVG, "" if nothing is known; a line joins the sizes of a family at one input
    size, peers are grey. A file of its own (`standalone`) has a legend."""
    shown = points(rows, key)
    if not shown:
        return ""
    figure, ax = draw(shown, [peer for peer in peers() if peer.get(key)], key, legend=standalone)
    label = f"Top-1 accuracy on {PLOTTED} against {AXES[key]}"
    return drawing.svg(figure, key, label=label, colours=COLOURS, standalone=standalone)


def draw(shown: Sequence[Row], others: Sequence[Row], key: str, *, legend: bool) -> tuple[Any, Any]:
    """The plot of `plot` as a matplotlib figure with its axes."""
    from matplotlib.ticker import FuncFormatter, LogLocator, MultipleLocator, NullLocator

    figure, ax = drawing.figure(520, 410 if legend else 390)
    ax.set_title(f"Top-1 (%) against {AXES[key]}")
    ax.set_xlabel(AXES[key])
    ax.set_xscale("log")
    sizes = [row[key] for row in [*shown, *others]]
    ax.set_xlim(min(sizes) / 1.2, max(sizes) * 1.2)
    accuracies = [row["top1"] for row in [*shown, *others]]
    ax.set_ylim(math.floor(min(accuracies)) - 0.2, math.ceil(max(accuracies)) + 0.2)
    ax.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    ax.xaxis.set_major_formatter(FuncFormatter(lambda value, _: quantity(value)))
    ax.xaxis.set_minor_locator(NullLocator())
    ax.yaxis.set_major_locator(MultipleLocator(2))

    card, soft = drawing.colour("card"), drawing.colour("soft")
    lines = {peer["line"]: [other for other in others if other["line"] == peer["line"]] for peer in others}
    for same in lines.values():
        xs, ys = [peer[key] for peer in same], [peer["top1"] for peer in same]
        drawing.tag(ax.plot(xs, ys, color=soft, linewidth=1, linestyle=(0, (3, 3)), alpha=0.6)[0], "peer")
    for peer in others:
        (mark,) = ax.plot(peer[key], peer["top1"], "o", color=card, markeredgecolor=soft, markersize=5)
        says = f"{peer['name']}\n{peer['top1']:.1f} %, {quantity(peer[key])} {AXES[key]}\n{peer['source']}"
        drawing.tag(mark, "peer", says)
    for group in sorted({(row["family"], row["img_size"]) for row in shown}):
        same = sorted((row for row in shown if (row["family"], row["img_size"]) == group), key=lambda row: row[key])
        xs, ys = [row[key] for row in same], [row["top1"] for row in same]
        ax.plot(xs, ys, color=COLOURS[group[0]][0], alpha=0.5)
    for row in shown:
        (mark,) = ax.plot(
            row[key], row["top1"], FAMILIES[row["family"]].marker, color=COLOURS[row["family"]][0],
            markeredgecolor=card, markeredgewidth=0.5, zorder=3,
        )  # fmt: skip
        says = f"{row['name']}\n{row['top1']:.1f} % ({row['whose']}), {quantity(row[key])} {AXES[key]}"
        drawing.tag(mark, "point", says, name=row["name"])
    if legend:
        from matplotlib.lines import Line2D

        handles = [
            Line2D(
                [], [], linestyle="", marker=FAMILIES[name].marker, color=COLOURS[name][0], label=FAMILIES[name].title
            )
            for name in _families(shown)
        ]
        handles.append(Line2D([], [], linestyle="", marker="o", markersize=5, color=card,
                              markeredgecolor=soft, label="others"))  # fmt: skip
        figure.legend(handles=handles, loc="outside lower center", ncols=len(handles))

    places = [(row[key], row["top1"]) for row in shown]
    beside = [(peer[key], peer["top1"]) for peer in others]
    for row, place in zip(shown, places, strict=True):
        look: dict[str, Any] = {"color": COLOURS[row["family"]][0], "weight": "bold"}
        for text in drawing.label(ax, [place], [_short(row)], avoid=places + beside, **look):
            if text is not None:
                drawing.tag(text, "name", name=row["name"])
    for line, same in lines.items():
        for end in (same[-1], same[0], *same[1:-1]):  # the first point of the line with room for its name
            (text,) = drawing.label(ax, [(end[key], end["top1"])], [line], avoid=places + beside, size=9, color=soft)
            if text is not None:
                drawing.tag(text, "peer")
                break
    return figure, ax


def _short(row: Row) -> str:
    """T, S, B; colour and shape tell the family."""
    _, *parts = row["name"].split("_")
    return " ".join([parts[0][0].upper(), *parts[1:]]) if parts else row["name"]
