"""Figures: colours that follow the page, tagged marks, labels that cover nothing, the same bytes again."""

import re
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from s3zoo import drawing

OWN = {"mine": ("#123456", "#abcdef")}


def example(**options: Any) -> str:
    with drawing.style():
        figure, ax = drawing.figure(300, 200)
        ax.plot([1, 2], [1, 2], color=drawing.colour("blue"))
        (point,) = ax.plot([1], [1], "o", color=OWN["mine"][0])
        drawing.tag(point, "point", "a <network>\n82.1 %", name="net")
        drawing.tag(ax.text(2, 2, "end"), "name", name="net")
        return drawing.svg(figure, "example", label="An example", colours=OWN, **options)


def test_a_figure_for_a_page() -> None:
    text = example()
    root = ElementTree.fromstring(text)
    assert root.get("viewBox") == "0 0 300 200" and root.get("aria-label") == "An example"
    assert not re.search(r"#[0-9a-f]{6}\b|DejaVu|xlink|xmlns|<metadata", text)  # colours and font are the page's
    assert {"var(--blue)", "var(--mine)", "var(--ink)", "var(--soft)"} <= set(re.findall(r"var\(--\w+\)", text))
    (mark,) = [e for e in root.iter("g") if e.get("class") == "point"]
    assert (mark.get("data-name"), mark.get("tabindex"), mark.get("aria-label")) == ("net", "0", "a <network> 82.1 %")
    assert mark.findtext("title") == "a <network>\n82.1 %"
    (name,) = [e for e in root.iter("text") if e.get("class") == "name"]
    assert name.text == "end" and name.get("tabindex") is None
    assert example() == text


@pytest.mark.parametrize("count", [1, 2, 9, 40])
def test_every_point_of_a_cloud_speaks(count: int) -> None:
    """matplotlib draws few points one by one, and many as references to one."""
    with drawing.style():
        figure, ax = drawing.figure(300, 200)
        drawing.tag(ax.scatter(range(count), range(count)), "point", [f"network {i}" for i in range(count)])
        root = ElementTree.fromstring(drawing.svg(figure, "cloud", label="A cloud"))
    said = [each.findtext("title") for each in root.iter() if each.get("class") == "point"]
    assert said == [f"network {i}" for i in range(count)]


def test_a_figure_of_its_own_brings_both_themes() -> None:
    text = example(standalone=True)
    root = ElementTree.fromstring(text)
    assert root.tag == "{http://www.w3.org/2000/svg}svg" and (root.get("width"), root.get("height")) == ("300", "200")
    light, dark = text.split("prefers-color-scheme: dark")
    assert "--mine: #123456;" in light and "--mine: #abcdef;" in dark


@pytest.mark.parametrize(("name", "start"), [("plot.pdf", b"%PDF"), ("plot.svg", b"<?xml")])
def test_a_figure_for_a_paper(name: str, start: bytes, tmp_path: Path) -> None:
    written = []
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
        with drawing.style():
            figure, ax = drawing.figure(300, 200)
            ax.plot([1, 2], [1, 2])
        drawing.save(figure, tmp_path / folder / name)
        written.append((tmp_path / folder / name).read_bytes())
    assert written[0].startswith(start) and written[0] == written[1]
    with pytest.raises(ValueError, match="neither a .pdf nor a .svg file"):
        drawing.save(figure, tmp_path / "plot.png")


@drawing.style()
def test_labels_cover_nothing() -> None:
    figure, ax = drawing.figure(400, 300)
    points = [(x / 10, y / 10) for x in range(0, 11, 2) for y in range(0, 11, 2)]
    ax.plot(*zip(*points, strict=True), "o")
    first = drawing.label(ax, points, ["name"] * len(points))
    again = drawing.label(ax, points, ["a much longer name"] * len(points), avoid=points)
    made = [text for text in first + again if text is not None]
    assert len(made) >= len(points) and any(text is None for text in again)
    boxes = [text.get_window_extent() for text in made]
    places = [ax.transData.transform(point) for point in points]
    assert not any(a.overlaps(b) for i, a in enumerate(boxes) for b in boxes[:i])
    assert not any(box.contains(*place) for box in boxes for place in places)


def test_a_page_loads_nothing_and_knows_every_colour() -> None:
    text = drawing.page("A <title>", example(), colours=OWN)
    assert "<title>A &lt;title&gt;</title>" in text and not re.search(r"https?://|\bsrc=|@import|url\((?!#)", text)
    assert set(re.findall(r"var\((--\w+)\)", text)) <= set(re.findall(r"(--\w+): #", text))


def test_nothing_written_in_a_figure_is_cut_off(chromium: Any) -> None:
    """In every figure of the documents and cards, as a browser draws it."""
    root = Path(__file__).parent.parent
    pictures = [*root.glob("docs/*.svg"), *root.glob("model_cards/*/*.svg"), *root.glob("s3zoo/weights/*/*.svg")]
    assert len(pictures) > 30
    beyond = """const edge = document.documentElement.getBoundingClientRect();
        return [...document.querySelectorAll('text')].filter(text => {
            const box = text.getBoundingClientRect();
            return box.left < edge.left - 1 || box.right > edge.right + 1
                || box.top < edge.top - 1 || box.bottom > edge.bottom + 1;
        }).map(text => text.textContent)"""
    cut = {}
    for path in pictures:
        chromium.get(path.as_uri())
        if found := chromium.execute_script(beyond):
            cut[str(path.relative_to(root))] = found
    assert not cut
