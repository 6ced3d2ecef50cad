"""Figures: drawn once with matplotlib, shown in a page (light and dark) or saved as SVG or PDF for a paper.

    @drawing.style()
    def accuracy(rows) -> str:
        figure, ax = drawing.figure(460, 380)
        (point,) = ax.plot([28.3e6], [82.1], "o", color=drawing.colour("blue"))
        drawing.tag(point, "point", "S3-T: 82.1 %", name="s3_tiny")
        return drawing.svg(figure, "accuracy", label="Top-1 accuracy against parameters")

Artists take the colours of the light theme, by name from `colour`; `svg` writes them as CSS variables, which `css`
defines for both themes. A tagged artist becomes a group with a class and `data-` attributes; one with a text can be
reached with the keyboard, and the script of `page` shows the text. The same figure gives the same bytes with the same
version of matplotlib, which is imported when the first figure is drawn, not before.
"""

from __future__ import annotations

import io
import re
import statistics
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from html import escape
from pathlib import Path
from string import Template
from typing import TYPE_CHECKING, Any, TypeVar
from xml.etree import ElementTree

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.text import Text

# Colours of the page by name: light theme, dark theme.
THEME = {
    "back": ("#fbfbfd", "#12161c"),
    "card": ("#fefefe", "#1a2028"),
    "ink": ("#1c2430", "#e6eaf0"),
    "soft": ("#5b6675", "#9aa6b5"),
    "edge": ("#d9dee6", "#303947"),
}
# Colours of data, clear enough for small text. They are never the only sign: markers or line styles differ too.
SERIES = {
    "blue": ("#1d4ed8", "#7aa7ff"),
    "amber": ("#b45309", "#f3a951"),
    "green": ("#047857", "#4fd1a1"),
    "magenta": ("#a21caf", "#e58af0"),
    "slate": ("#475569", "#a9b6c8"),
    "red": ("#b91c1c", "#ff8f87"),
    "teal": ("#0e7490", "#5fd0e3"),
}
Colours = Mapping[str, tuple[str, str]]  # name -> light theme, dark theme
# Matplotlib's markers as characters, for legends in text.
SHAPES = {"o": "●", "s": "■", "^": "▲", "D": "◆", "P": "✚", "v": "▼", "*": "★", "X": "✖"}
FONT_SIZE = 11
DOUBT = 0.1  # of the processors that others use, or by which a machine is slower: from there on it is said
RUNTIMES = {"torch": "PyTorch", "compile": "torch.compile", "onnx": "ONNX Runtime"}
_SVG = "{http://www.w3.org/2000/svg}"
_HERE = Path(__file__).parent


# Colours


def colour(name: str) -> str:
    """The light theme's colour of a name of THEME or SERIES."""
    return (THEME | SERIES)[name][0]


def css(extra: Colours | None = None) -> str:
    """The CSS variables of all colours, for both themes; `extra` adds colours of data."""
    pairs = {**THEME, **SERIES, **(extra or {})}
    light, dark = (" ".join(f"--{name}: {both[i]};" for name, both in pairs.items()) for i in (0, 1))
    screen = "@media screen and (prefers-color-scheme: dark)"
    return f":root {{ color-scheme: light dark; {light} }}\n{screen} {{ :root {{ {dark} }} }}\n"


def quantity(number: float) -> str:
    """A count as papers print it: 28.3M, 4.62G."""
    rounded = float(f"{number:.3g}")
    unit, size = next(((u, s) for u, s in (("G", 1e9), ("M", 1e6), ("K", 1e3)) if rounded >= s), ("", 1))
    return f"{rounded / size:g}{unit}"


def aligned(rows: Sequence[Sequence[str]], sides: str) -> str:
    """Rows of cells as lines for a terminal; `sides` has < or > for each column, to which its cells are aligned."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = [[f"{c:{side}{width}}" for c, side, width in zip(row, sides, widths, strict=True)] for row in rows]
    return "\n".join("  ".join(line).rstrip() for line in lines)


def mean_and_spread(values: Collection[float]) -> str:
    """Mean and, of several values, their standard deviation."""
    spread = f" ± {statistics.stdev(values):.2f}" if len(values) > 1 else ""
    return f"{statistics.fmean(values):.2f}{spread}"


def where_run(setting: Mapping[str, Any]) -> str:
    """A device and its threads."""
    count = setting["threads"]
    threads = f" ({count} thread{'s' if count > 1 else ''})" if count else ""
    return f"{setting['device_name']}{threads}"


def where_measured(setting: Mapping[str, Any]) -> str:
    """Device, threads, batch and runtime of a measurement."""
    runtime = setting.get("runtime", "torch")
    return f"{where_run(setting)}, batch {setting['batch_size']}, {RUNTIMES.get(runtime, runtime)}"


def told_latency(check: Mapping[str, Any]) -> str:
    """What was promised and measured, in words; `check` is a result's latency_check."""
    ms = check["measured"]
    measured = "not measured on this device" if ms is None else f"{ms:.3g} ms measured"
    told = f"{check['promised']:.3g} ms promised, {measured} ({where_measured(check)})"
    doubts = told_doubts(check)
    return f"{told}; {doubts}" if doubts else told


def told_doubts(check: Mapping[str, Any]) -> str:
    """What keeps a latency from being that of an idle machine, in words; nothing if nothing is known to."""
    slower, share, found = check.get("slower") or 1.0, check.get("others", 0.0), []
    if abs(slower - 1) > DOUBT and check["measured"] is not None:
        found.append(f"{told_speed(slower)}, at whose speed it takes {check['measured'] / slower:.3g} ms")
    if share > DOUBT:
        found.append(f"when promises were made, {told_others(share)}")
    return "; ".join(found)


def told_speed(slower: float) -> str:
    """How fast a machine is now."""
    how = f"{slower:.2g} times as slow" if slower > 1 else f"{1 / slower:.2g} times as fast"
    return f"the machine is {how} as when latencies were first measured"


def told_others(share: float) -> str:
    return f"other programs used {share:.0%} of this machine's processors"


def told_control(row: Mapping[str, Any]) -> str:
    """The name of a winner or of a network beside it, as a result has them, with what is not the winner's."""
    name = row.get("control", "winner")
    if "command" not in row:  # which a run beside it has, whose name stays as it is
        name = name.replace("_", " ") + (f" ({row['model']})" if "model" in row else "")
    name += "" if row.get("within_budget", True) else ", beyond the budget"
    return name + (", from scratch" if row.get("from_scratch") else "")


def duration(seconds: float) -> str:
    """A time in the unit that suits it: 40 s, 12 min, 3.5 h."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


# Figures


@contextmanager
def style() -> Iterator[None]:
    """The look of the project's figures; a context or a decorator around all drawing of a figure."""
    import matplotlib

    ink, soft, edge = colour("ink"), colour("soft"), colour("edge")
    look: Any = {
        "figure.dpi": 72,  # one point is one unit of the SVG
        "font.family": "DejaVu Sans",  # comes with matplotlib: the layout is the same on every machine
        "font.size": FONT_SIZE,
        "text.color": ink,
        "text.parse_math": False,
        "axes.edgecolor": edge,
        "axes.labelcolor": soft,
        "axes.labelsize": FONT_SIZE,
        "axes.titlecolor": ink,
        "axes.titlelocation": "left",
        "axes.titlesize": 13,
        "axes.titleweight": "bold",
        "axes.titlepad": 12,
        "axes.grid": True,
        "axes.axisbelow": True,
        "axes.facecolor": "none",
        "axes.spines.top": False,
        "axes.spines.right": False,
        "axes.spines.left": False,
        "grid.color": edge,
        "grid.linewidth": 1,
        "xtick.color": edge,
        "ytick.color": edge,
        "xtick.labelcolor": soft,
        "ytick.labelcolor": soft,
        "xtick.major.size": 0,
        "ytick.major.size": 0,
        "xtick.minor.size": 0,
        "ytick.minor.size": 0,
        "xtick.major.pad": 6,
        "ytick.major.pad": 6,
        "lines.linewidth": 1.5,
        "lines.markersize": 9,
        "legend.frameon": False,
        "legend.labelcolor": ink,
        "svg.fonttype": "none",  # text stays text
        "pdf.fonttype": 42,
    }
    with matplotlib.rc_context(look):
        yield


def figure(width: int, height: int, rows: int = 1, columns: int = 1) -> tuple[Figure, Any]:
    """A figure of that many units (pixels of a page at its natural size) and its axes, as `subplots` gives them."""
    from matplotlib.figure import Figure
    from matplotlib.layout_engine import ConstrainedLayoutEngine

    made = Figure(figsize=(width / 72, height / 72), layout=ConstrainedLayoutEngine(w_pad=8 / 72, h_pad=8 / 72))
    made.patch.set_visible(False)
    return made, made.subplots(rows, columns)


_Artist = TypeVar("_Artist", bound="Artist")


def tag(artist: _Artist, kind: str, text: str | Sequence[str] = "", **data: str) -> _Artist:
    """Give an artist's group in the SVG the class `kind` and `data-` attributes. With a text it can be focused, and the
    text is shown while it is pointed at or focused; lines of the text are lines there. Of the points of a line or
    collection, each has its own out of a list of texts."""
    attributes = {"class": kind, **{f"data-{key}": value for key, value in data.items()}}
    setattr(artist, "s3zoo_tag", (attributes, text))  # noqa: B010 (matplotlib's artists declare no such attribute)
    return artist


def label(
    ax: Axes, points: Sequence[tuple[float, float]], texts: Sequence[str], *, avoid: Sequence[tuple[float, float]] = (),
    size: float = FONT_SIZE, **properties: Any,
) -> list[Text | None]:  # fmt: skip
    """Write each text beside its point, at the first side where it covers no point, no point of `avoid` and no label
    that this function has put there before; None where every side is taken. Call it last: it settles the layout."""
    _settle(ax.figure)
    frame = ax.get_window_extent()
    places = [tuple(ax.transData.transform(point)) for point in points]
    others = [tuple(ax.transData.transform(point)) for point in avoid]
    taken = [(x - 6, y - 6, x + 6, y + 6) for x, y in places + others] + getattr(ax, "s3zoo_labels", [])
    high = 0.75 * size
    made: list[Text | None] = []
    for (x, y), point, text in zip(places, points, texts, strict=True):
        wide = 0.62 * size * len(text)
        sides = ((9, -high / 2), (-9 - wide, -high / 2), (-wide / 2, 9), (-wide / 2, -9 - high), (7, 7), (7, -7 - high),
                 (-7 - wide, 7), (-7 - wide, -7 - high))  # fmt: skip

        def free(box: tuple[float, ...]) -> bool:
            inside = frame.x0 < box[0] and box[2] < frame.x1 + 8 and frame.y0 < box[1] and box[3] < frame.y1 + 12
            return inside and all(box[0] > t[2] or t[0] > box[2] or box[1] > t[3] or t[1] > box[3] for t in taken)

        boxes = [(dx, dy, (x + dx, y + dy, x + dx + wide, y + dy + high)) for dx, dy in sides]
        found = next(((dx, dy, box) for dx, dy, box in boxes if free(box)), None)
        if found is None:
            made.append(None)
            continue
        taken.append(found[2])
        note = ax.annotate(text, point, found[:2], textcoords="offset points", size=size, **properties)
        note.set_in_layout(False)
        made.append(note)
    setattr(ax, "s3zoo_labels", taken)  # noqa: B010
    return made


def _settle(figure: Any) -> None:
    """Lay the figure out once and for all, so that positions in it are known; laying out is what takes time."""
    from matplotlib.layout_engine import ConstrainedLayoutEngine

    if isinstance(figure.get_layout_engine(), ConstrainedLayoutEngine):
        figure.draw_without_rendering()
        figure.set_layout_engine("none")


# Output


def svg(
    figure: Figure, name: str, *, label: str, colours: Colours | None = None, standalone: bool = False
) -> str:
    """The figure as an `<svg>` for a page that has `css` (with the same extra `colours`), or as a file of its own.

    `name` is unique on the page; `label` says what the figure shows to those who do not see it.
    """
    _settle(figure)
    tags = {}
    for number, artist in enumerate(figure.findobj(lambda artist: hasattr(artist, "s3zoo_tag"))):
        artist.set_gid(f"tag-{number}")
        tags[f"tag-{number}"] = getattr(artist, "s3zoo_tag")  # noqa: B009
    root = ElementTree.fromstring(_render(figure, name))
    root.tag = "svg"
    root.attrib = {
        "viewBox": root.attrib["viewBox"],
        "class": "figure",
        "role": "group",
        "aria-label": label,
        "style": "stroke-linejoin: round; stroke-linecap: butt",
    }
    variables = {light: f"var(--{key})" for key, (light, _) in {**SERIES, **THEME, **(colours or {})}.items()}
    _simplify(root, tags, variables)
    width, height = root.attrib["viewBox"].split()[2:]
    if standalone:
        root.attrib |= {"width": width, "height": height, "role": "img", "xmlns": _SVG[1:-1]}
        root.attrib["style"] += "; font-family: system-ui, sans-serif"
        root.insert(0, ElementTree.Element("rect", {
            "width": width, "height": height, "rx": "8", "style": "fill: var(--card)",
        }))  # fmt: skip
        root.insert(0, ElementTree.Element("style"))
        root[0].text = f"\n{css(colours)}"
        root.insert(0, ElementTree.Element("title"))
        root[0].text = label
    return ElementTree.tostring(root, encoding="unicode") + ("\n" if standalone else "")


def save(figure: Figure, path: str | Path, kind: str = "") -> None:
    """Write the figure for a paper, in the colours of the light theme: as pdf or svg, by `kind` or the file's name."""
    path = Path(path)
    kinds = {"pdf": {"CreationDate": None}, "svg": {"Date": None}}
    kind = kind or path.suffix.removeprefix(".")
    if kind not in kinds:
        raise ValueError(f"{path} is neither a .pdf nor a .svg file: figures are written as one of these.")
    import matplotlib

    with style(), matplotlib.rc_context({"svg.hashsalt": "s3zoo"}):
        figure.savefig(path, format=kind, metadata=kinds[kind], facecolor="white")


def page(title: str, body: str, *, colours: Colours | None = None, styles: str = "", scripts: str = "") -> str:
    """A whole HTML page that loads nothing: the project's style and the script for tagged artists, with what is added.

    Classes that the style knows: `figures` (a grid of `<figure>`s), `note`, `scroll`, `number`, `controls`.
    """
    frame = Template((_HERE / "page.html").read_text(encoding="utf-8"))
    return frame.substitute(
        title=escape(title),
        style=css(colours) + (_HERE / "page.css").read_text(encoding="utf-8") + styles,
        body=body,
        script=(_HERE / "page.js").read_text(encoding="utf-8") + scripts,
    )


def _render(figure: Figure, name: str) -> str:
    import matplotlib

    text = io.StringIO()
    with style(), matplotlib.rc_context({"svg.hashsalt": name}):  # ids differ from figure to figure on a page
        figure.savefig(text, format="svg", metadata={"Date": None})
    return text.getvalue()


def _simplify(element: ElementTree.Element, tags: Mapping[str, Any], variables: Mapping[str, str]) -> None:
    """What a page needs: no namespaces, no metadata, no groups or ids that nothing refers to, colours as variables, the
    page's font, hundredths; tagged groups get their attributes."""
    for child in list(element):
        child.tag = child.tag.removeprefix(_SVG)
        if child.tag in ("metadata", "style") or child.tag == "defs" and [g.tag for g in child] == [f"{_SVG}style"]:
            element.remove(child)
            continue
        href = child.attrib.pop("{http://www.w3.org/1999/xlink}href", None)
        if href:
            child.set("href", href)
        if "style" in child.attrib:
            text = re.sub(r"#[0-9a-f]{6}", lambda found: variables.get(found[0], found[0]), child.attrib["style"])
            child.set("style", re.sub(r"font-family: [^;]*;? ?|font: ([^;']*)'[^;]*(;|$)", r"\1", text).strip("; "))
        for key in ("d", "x", "y", "transform", "width", "height"):
            if key in child.attrib:
                child.set(key, " ".join(re.sub(r"-?\d+\.\d+", _hundredths, child.attrib[key]).split()))
        if child.attrib.get("transform", "").startswith("rotate(-0 "):
            del child.attrib["transform"]
        _simplify(child, tags, variables)
        child.text, child.tail = child.text if child.text and child.text.strip() else None, "\n"
        if child.tag == "g":
            name = child.attrib.pop("id", "")
            if name in tags:
                attributes, text = tags[name]
                if not isinstance(text, str):
                    points = [*child.iter("use")] or [*child.iter("path")]  # few points are drawn without references
                    assert len(points) == len(text), f"{len(points)} points for {len(text)} texts"
                    for point, own in zip(points, text, strict=True):
                        point.attrib |= attributes
                        _speak(point, own)
                    continue
                if len(child) == 1 and not text:
                    child[0].attrib |= attributes
                    element[list(element).index(child)] = child[0]
                    continue
                child.attrib |= attributes
                if text:
                    _speak(child, text)
            elif not child.attrib:  # a group for nothing
                at = list(element).index(child)
                element.remove(child)
                for offset, inner in enumerate(child):
                    element.insert(at + offset, inner)


def _speak(element: ElementTree.Element, text: str) -> None:
    element.attrib |= {"tabindex": "0", "role": "img", "aria-label": " ".join(text.split())}
    element.insert(0, ElementTree.Element("title"))
    element[0].text = text


def _hundredths(found: re.Match[str]) -> str:
    return f"{float(found[0]):.2f}".rstrip("0").rstrip(".")
