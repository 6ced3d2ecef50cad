"""The page to browse: a plain table and plots drawn here, with a script that sorts and filters where scripts run."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from html import escape
from typing import Any

from s3zoo.cards.facts import quantity

Row = dict[str, Any]
PLOTTED = "ImageNet-1k"  # accuracies on other data do not compare
FAMILIES = {"s3": "S3", "autoformer": "AutoFormer", "glit": "GLiT", "shunted": "Shunted", "ladder": "CLIP ladder"}
# Of a row: key, title, and whether numbers stand in it.
COLUMNS = (
    ("name", "Model", False),
    ("family", "Family", False),
    ("img_size", "Input", True),
    ("params", "Parameters", True),
    ("macs", "MACs", True),
    ("macs_paper", "MACs, paper's count", True),
    ("top1", "Top-1 %", True),
    ("dataset", "On", False),
    ("whose", "Whose figure", False),
    ("throughput", "Images/s", True),
    ("weights", "Weights", False),
    ("licence", "Their licence", False),
)


def page(rows: Sequence[Row], throughput: dict[str, Any]) -> str:
    """The whole page; the same rows give the same bytes."""
    plots = "\n".join(
        plot(rows, key, title)
        for key, title in (("params", "parameters"), ("macs", "MACs"), ("throughput", "images per second"))
    )
    families = [name for name in FAMILIES if any(row["family"] == name for row in rows)]
    boxes = "\n".join(
        f'<label><input type="checkbox" name="family" value="{name}" checked> {_family(name)}</label>'
        for name in families
    )
    speed = ""
    if throughput:
        what, where, release = (escape(throughput[key]) for key in ("what", "machine", "torch"))
        speed = f" Images/s: {what}; batch {throughput['batch']}, torch {release}, {where}."
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>s3zoo: the models</title>
<link rel="icon" href="data:,">
<style>{STYLE}</style>
</head>
<body>
<main>
<h1>s3zoo: the models</h1>
<p>{len(rows)} networks. Where the figure is a paper's, it was not measured by this project.</p>
<section class="plots" aria-label="Top-1 accuracy on {PLOTTED} against size and speed">
{plots}
</section>
<p class="note">Accuracies on {PLOTTED} as the authors of the networks publish them, not measured here. T, S, B: tiny,
small, base. Models without one are in the table alone.</p>
<form id="controls" hidden>
<label class="search">Find <input type="search" id="find" placeholder="name, data, weights" autocomplete="off"></label>
<fieldset><legend>Families</legend>
{boxes}
</fieldset>
<label><input type="checkbox" id="trained"> only with weights to load</label>
<output id="count" aria-live="polite"></output>
</form>
<div class="scroll" tabindex="0" role="region" aria-label="Table of models">
<table id="zoo">
<thead><tr>{"".join(_head(*column) for column in COLUMNS)}</tr></thead>
<tbody>
{chr(10).join(_row(row) for row in rows)}
</tbody>
</table>
</div>
<p class="note">MACs as executed at the input size; of a CLIP ladder, parameters and MACs are the decoder's, without its
frozen tower, which images/s include.{speed}</p>
</main>
<script>{SCRIPT}</script>
</body>
</html>
"""


# Table


def _head(key: str, title: str, number: bool) -> str:
    return f'<th scope="col" data-key="{key}"{" class=number" if number else ""}>{escape(title)}</th>'


def _row(row: Row) -> str:
    loads = row["weights"] in ("bundled",) or row["weights"].startswith(("Hub", "cut"))
    cells = "".join(_cell(row, key, number) for key, _, number in COLUMNS)
    return f'<tr data-name="{escape(row["name"])}" data-family="{row["family"]}" data-loads="{int(loads)}">{cells}</tr>'


def _cell(row: Row, key: str, number: bool) -> str:
    value = row.get(key)
    if key == "name":
        link = f'<a href="../model_cards/{row["name"]}/README.md">{row["name"]}</a>'
        return f'<th scope="row">{link}</th>'
    if value is None:
        return f'<td{" class=number" if number else ""} data-value="">–</td>'
    if key == "family":
        return f'<td data-value="{value}">{_family(value)}</td>'
    if key == "weights":
        short = value.partition(":")[0]
        return f'<td data-value="{escape(value)}" title="{escape(value)}">{escape(short)}</td>'
    if number and key != "img_size":
        text = f"{value:.1f}" if key == "top1" else quantity(value)
        return f'<td class=number data-value="{value}">{text}</td>'
    return f'<td{" class=number" if number else ""} data-value="{escape(str(value))}">{escape(str(value))}</td>'


def _family(name: str) -> str:
    return f'<i class="dot {name}"></i>{FAMILIES[name]}'


# Plots

WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 430, 320, 44, 16, 34, 44
SHAPES = {  # by family, around (0, 0)
    "s3": "M-6 0a6 6 0 1 0 12 0a6 6 0 1 0-12 0",
    "autoformer": "M-5.5-5.5h11v11h-11z",
    "glit": "M0-7L7 5.5H-7z",
    "shunted": "M0-7.5L7.5 0L0 7.5L-7.5 0z",
    "ladder": "M-6-2h4v-4h4v4h4v4h-4v4h-4v-4h-4z",
}


def points(rows: Sequence[Row], key: str) -> list[Row]:
    return [row for row in rows if row["dataset"] == PLOTTED and row["top1"] is not None and row.get(key)]


def plot(rows: Sequence[Row], key: str, title: str) -> str:
    """Accuracy against one quantity, on a logarithmic axis; a line joins the sizes of a family at one input size."""
    shown = points(rows, key)
    if not shown:
        return ""
    low, high = min(row[key] for row in shown), max(row[key] for row in shown)
    low, high = low / 1.25, high * 1.25
    floor, roof = math.floor(min(row["top1"] for row in shown)), math.ceil(max(row["top1"] for row in shown))

    def x(value: float) -> float:
        return LEFT + (WIDTH - LEFT - RIGHT) * math.log(value / low) / math.log(high / low)

    def y(value: float) -> float:
        return HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * (value - floor) / (roof - floor)

    parts = [f'<text class="title" x="{LEFT}" y="18">Top-1 (%) against {title}</text>']
    for percent in range(floor, roof + 1, 2):
        at = f"{y(percent):.1f}"
        parts.append(f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{at}" y2="{at}"/>')
        parts.append(f'<text x="{LEFT - 6}" y="{y(percent) + 4:.1f}" text-anchor="end">{percent}</text>')
    for tick in _ticks(low, high):
        at = f"{x(tick):.1f}"
        parts.append(f'<line class="grid" x1="{at}" x2="{at}" y1="{TOP}" y2="{HEIGHT - BOTTOM}"/>')
        parts.append(f'<text x="{at}" y="{HEIGHT - BOTTOM + 18}" text-anchor="middle">{quantity(tick)}</text>')
    parts.append(f'<text x="{(LEFT + WIDTH - RIGHT) / 2:.0f}" y="{HEIGHT - 8}" text-anchor="middle">{title}</text>')
    parts += _lines(shown, key, x, y)
    places = [(x(row[key]), y(row["top1"])) for row in shown]
    for row, place, label in zip(shown, places, _labels([_short(row) for row in shown], places), strict=True):
        at = f'transform="translate({place[0]:.1f} {place[1]:.1f})"'
        tip = f"{row['name']}: {row['top1']:.1f} % ({row['whose']}), {quantity(row[key])} {title}"
        parts.append(
            f'<g class="point {row["family"]}" data-name="{row["name"]}" {at}><title>{escape(tip)}</title>'
            f'<path d="{SHAPES[row["family"]]}"/>{label}</g>'
        )
    frame = f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="Top-1 accuracy against {title}">'
    return "\n".join([frame, *parts, "</svg>"])


def _short(row: Row) -> str:
    """T, S, B; the rest of the name is said by colour and shape."""
    _, size, *rest = row["name"].split("_")
    return " ".join([size[0].upper(), *rest])


def _labels(texts: Sequence[str], places: Sequence[tuple[float, float]]) -> Iterator[str]:
    """Each text at the first side of its point where it covers no point and no other text."""
    taken = [(x - 6, y - 6, x + 6, y + 6) for x, y in places]
    for text, (x, y) in zip(texts, places, strict=True):
        wide = 7 * len(text)
        sides = [(10, 4), (-10 - wide, 4), (-wide / 2, 19), (-wide / 2, -11), (8, 16), (8, -8), (-8 - wide, 16)]
        boxes = [(dx, dy, (x + dx, y + dy - 9, x + dx + wide, y + dy + 1)) for dx, dy in sides]

        def free(box: tuple[float, float, float, float]) -> bool:
            inside = LEFT < box[0] and box[2] < WIDTH - 2 and TOP - 14 < box[1] and box[3] < HEIGHT - BOTTOM
            return inside and all(box[0] > t[2] or t[0] > box[2] or box[1] > t[3] or t[1] > box[3] for t in taken)

        dx, dy, box = next((place for place in boxes if free(place[2])), boxes[0])
        taken.append(box)
        yield f'<text x="{dx:g}" y="{dy:g}">{escape(text)}</text>'


def _lines(shown: Sequence[Row], key: str, x: Any, y: Any) -> Iterator[str]:
    for group in sorted({(row["family"], row["img_size"]) for row in shown}):
        same = sorted((row for row in shown if (row["family"], row["img_size"]) == group), key=lambda row: row[key])
        if len(same) > 1:
            path = " ".join(f"{x(row[key]):.1f},{y(row['top1']):.1f}" for row in same)
            yield f'<polyline class="line {group[0]}" points="{path}"/>'


def _ticks(low: float, high: float) -> list[float]:
    """1, 2 and 5 times powers of ten."""
    exponents = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    return [m * 10.0**e for e in exponents for m in (1, 2, 5) if low <= m * 10.0**e <= high]


STYLE = """
:root { color-scheme: light dark; --back: #fbfbfd; --card: #fff; --ink: #1c2430; --soft: #5b6675; --edge: #d9dee6;
  --s3: #1d4ed8; --autoformer: #b45309; --glit: #047857; --shunted: #a21caf; --ladder: #475569; }
@media (prefers-color-scheme: dark) { :root { --back: #12161c; --card: #1a2028; --ink: #e6eaf0; --soft: #9aa6b5;
  --edge: #303947; --s3: #7aa7ff; --autoformer: #f3a951; --glit: #4fd1a1; --shunted: #e58af0; --ladder: #a9b6c8; } }
* { box-sizing: border-box; }
body { margin: 0; background: var(--back); color: var(--ink); font: 16px/1.5 system-ui, sans-serif; }
main { max-width: 90rem; margin: 0 auto; padding: 1.5rem 1rem 3rem; }
h1 { font-size: 1.6rem; margin: 0 0 .25rem; }
p { margin: .25rem 0 1rem; }
.note { color: var(--soft); font-size: .875rem; }
.plots { display: grid; grid-template-columns: repeat(auto-fit, minmax(20rem, 1fr)); gap: 1rem; }
.plots svg { width: 100%; height: auto; background: var(--card); border: 1px solid var(--edge); border-radius: .6rem; }
svg text { fill: var(--soft); font: 11px system-ui, sans-serif; }
svg .title { fill: var(--ink); font-size: 13px; font-weight: 600; }
.grid { stroke: var(--edge); stroke-width: 1; }
.line { fill: none; stroke: currentColor; stroke-width: 1.5; opacity: .45; }
.point path { fill: currentColor; stroke: var(--card); }
svg .point text { fill: currentColor; font-weight: 600; }
.point.off, .point.off text { opacity: .08; }
.s3 { color: var(--s3); } .autoformer { color: var(--autoformer); } .glit { color: var(--glit); }
.shunted { color: var(--shunted); } .ladder { color: var(--ladder); }
.dot { display: inline-block; width: .7em; height: .7em; border-radius: 50%; background: currentColor;
  margin-right: .4em; }
form { display: flex; flex-wrap: wrap; gap: .75rem 1.5rem; align-items: center; margin: 1rem 0; }
form[hidden] { display: none; }
fieldset { display: flex; flex-wrap: wrap; gap: .25rem 1rem; border: 0; padding: 0; margin: 0; }
legend { position: absolute; clip-path: inset(50%); }
input[type=search] { font: inherit; padding: .3rem .6rem; border: 1px solid var(--edge); border-radius: .4rem;
  background: var(--card); color: inherit; min-width: 14rem; }
output { color: var(--soft); }
.scroll { overflow-x: auto; border: 1px solid var(--edge); border-radius: .6rem; background: var(--card); }
table { border-collapse: collapse; width: 100%; font-size: .875rem; }
th, td { padding: .4rem .6rem; text-align: left; white-space: nowrap; border-bottom: 1px solid var(--edge); }
thead th { white-space: normal; vertical-align: bottom; line-height: 1.2; }
tbody tr:last-child > * { border-bottom: 0; }
tbody tr:hover { background: color-mix(in srgb, var(--s3) 8%, transparent); }
thead th { color: var(--soft); font-weight: 600; }
tbody th { font-weight: 600; }
.number { text-align: right; font-variant-numeric: tabular-nums; }
thead button { all: unset; cursor: pointer; font-weight: inherit; }
thead button:focus-visible, a:focus-visible { outline: 2px solid var(--s3); outline-offset: 2px; }
th[aria-sort=ascending] button::after { content: " \\25B2"; }
th[aria-sort=descending] button::after { content: " \\25BC"; }
a { color: inherit; }
"""

SCRIPT = """
"use strict";
(() => {
  const body = document.querySelector("#zoo tbody");
  const heads = [...document.querySelectorAll("#zoo thead th")];
  const value = (row, column) => {
    const cell = row.cells[column];
    return cell.dataset.value === undefined ? cell.textContent : cell.dataset.value;
  };
  heads.forEach((head, column) => {
    const button = document.createElement("button");
    button.type = "button";
    button.textContent = head.textContent;
    head.replaceChildren(button);
    const number = head.classList.contains("number");
    button.addEventListener("click", () => {
      const down = head.getAttribute("aria-sort") === "ascending";
      heads.forEach((other) => other.removeAttribute("aria-sort"));
      head.setAttribute("aria-sort", down ? "descending" : "ascending");
      const rows = [...body.rows].sort((a, b) => {
        const [x, y] = [value(a, column), value(b, column)];
        if (x === "" || y === "") return (x === "") - (y === "");  // what is not known stays last
        const order = number ? x - y : x.localeCompare(y, "en", { numeric: true });
        return down ? -order : order;
      });
      body.append(...rows);
    });
  });
  const form = document.querySelector("#controls");
  const filter = () => {
    const words = document.querySelector("#find").value.toLowerCase().split(/\\s+/).filter(Boolean);
    const families = new Set([...form.querySelectorAll("[name=family]:checked")].map((box) => box.value));
    const trained = document.querySelector("#trained").checked;
    const shown = new Set();
    for (const row of body.rows) {
      const text = row.textContent.toLowerCase();
      row.hidden = !(families.has(row.dataset.family) && (!trained || row.dataset.loads === "1")
        && words.every((word) => text.includes(word)));
      if (!row.hidden) shown.add(row.dataset.name);
    }
    for (const point of document.querySelectorAll(".point")) {
      point.classList.toggle("off", !shown.has(point.dataset.name));
    }
    document.querySelector("#count").textContent = `${shown.size} of ${body.rows.length}`;
  };
  form.addEventListener("input", filter);
  form.addEventListener("submit", (event) => event.preventDefault());
  form.hidden = false;
  filter();
})();
"""
