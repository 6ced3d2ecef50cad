"""The list of the zoo: table, JSON, throughput, and the page in a real browser."""

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
import timm

import s3zoo  # noqa: F401
from s3zoo import zoo
from s3zoo.cli import main as s3zoo_command
from s3zoo.models import ENTRYPOINTS, MODELS, loading
from s3zoo.zoo.page import page, peers, plot

ROOT = Path(__file__).resolve().parent.parent
PAGE, THROUGHPUT = ROOT / "docs/zoo.html", ROOT / "docs/throughput.json"
NAMES = {name for family in MODELS for name in timm.list_models(module=family)} - set(ENTRYPOINTS.values())
# Those with an accuracy on ImageNet-1k that is their own: not the genomes that were chosen for their size.
BUNDLED = {path.name.partition(".")[0] for path in loading.BUNDLED.iterdir()}
GLIT = set(timm.list_models(module="glit")) & NAMES
PLOTTED = {name for name in NAMES if name.startswith(("s3_", "autoformer_", "glit_tiny", "shunted_"))} - BUNDLED
pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(scope="module")
def rows() -> list[dict[str, Any]]:
    return zoo.rows(zoo.read_throughput(THROUGHPUT))


def test_every_model_has_a_row(rows: list[dict[str, Any]]) -> None:
    by_name = {row["name"]: row for row in rows}
    assert set(by_name) == NAMES and len(rows) == len(NAMES)
    assert by_name["s3_tiny"]["params"] == 28_328_674 and by_name["glit_tiny"]["macs"] == 1_472_873_280
    assert (by_name["s3_tiny"]["top1"], by_name["s3_tiny"]["whose"]) == (82.1, "S3 paper")
    assert by_name["s3_tiny"]["weights"] == "Hub: timm/swin_s3_tiny_224.ms_in1k"
    assert by_name["s3_nano"]["weights"] == "bundled" and by_name["s3_nano"]["whose"] == "measured by s3zoo"
    assert by_name["glit_small"]["top1"] is None and by_name["shunted_tiny"]["licence"] == "unknown"


def test_the_readme_has_the_same_table(rows: list[dict[str, Any]], tmp_path: Path, capsys) -> None:
    """If this fails: `make zoo`."""
    text = (ROOT / "README.md").read_text()
    assert zoo.in_readme(text, rows) == text
    found = [[cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines() if "| `" in line[:3]]
    assert [line[0].strip("`") for line in found] == [row["name"] for row in rows]
    assert ["`s3_tiny`", "28.3M", "4.62G", "82.1", "ImageNet-1k", "S3 paper"] in [line[:-1] for line in found]
    assert ["`s3_micro`", "171K", "6M", "68.0", "CIFAR-10", "measured by s3zoo", "bundled"] in found
    (tmp_path / "other.md").write_text("no table")
    for name, message in (("other.md", "0 tables"), ("none.md", "no file")):
        assert s3zoo_command(["zoo", "--readme", str(tmp_path / name)]) == 2
        assert message in capsys.readouterr().err


MANY = """
import json, sys
from pathlib import Path
import timm, torch
from s3zoo import artefact, cards, zoo
from s3zoo.families import FAMILIES
from s3zoo.models import ENTRYPOINTS, MODELS, loading
from s3zoo.space import SPACES
from s3zoo.zoo.page import page, plot

place, before = Path(sys.argv[1]), {row["name"] for row in zoo.rows()}
metric = {"dataset": "torch/flowers102", "split": "test", "metric": "top1", "value": 50.0, "low": 49.0, "high": 51.0}
made = {"kind": "train", "command": "s3zoo train x", "data": {"name": "torch/flowers102"}, "metrics": [metric]}
for family, entry in ENTRYPOINTS.items():
    if FAMILIES[family].reads_tower:
        continue
    arch = next(space for space in SPACES.values() if space.family == family).smallest()
    for number, (name, size) in enumerate((("odd", 64), ("found_by_me", 96))):
        model = timm.create_model(entry, arch=arch, img_size=size, num_classes=3)
        own = {"label_names": ["a", "b", "c"], "license": "mit"}
        artefact.save_model(place / f"{family}_{name}.my-data{number}", model, provenance=made, pretrained_cfg=own)
loading.BUNDLED = place
for model in MODELS.values():
    loading.register_bundled(model)
rows = zoo.rows()
new = [row for row in rows if row["name"] not in before]
assert len(new) == 2 * 4, new
assert {(row["dataset"], row["top1"], row["weights"]) for row in new} == {("Flowers-102", 50.0, "bundled")}
assert all(row["name"] in zoo.table(rows) for row in new)
text, svg = page(rows, {}), plot(rows, "params")
files = zoo.card_files()
readme = zoo.in_readme("before\\n\\n| model |\\n|---|\\n| old |\\n\\nafter\\n", rows)
for row in new:
    assert f'data-name="{row["name"]}"' in text and row["name"] not in svg  # other data than the plot's
    assert f"| `{row['name']}` |" in readme and "| old |" not in readme and readme.endswith("\\n\\nafter\\n")
    card = files[f"{row['name']}/README.md"]
    assert "| Classes | 3: a, b, c |" in card and "trained on Flowers-102 only" in card
    model = timm.create_model(f"{row['name']}.my-data{int('found' in row['name'])}", pretrained=True).eval()
    assert model(torch.zeros(1, *model.pretrained_cfg["input_size"])).shape == (1, 3)
"""


def test_bundled_networks_of_any_family_and_data_are_shown(tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, "-c", MANY, str(tmp_path)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]


def test_the_table_needs_no_torch(rows: list[dict[str, Any]], tmp_path: Path) -> None:
    """It comes out of a file, which says what the built networks do."""
    assert zoo.LISTED.read_text() == zoo.listing(rows), "write it again with `make zoo`"
    code = "import sys; from s3zoo import cli; cli.main(['zoo']); print(sorted({'torch', 'timm'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True)
    *lines, imported = done.stdout.splitlines()
    assert imported == "[]" and {line.split()[0] for line in lines[1:]} == NAMES


def test_the_command_prints_and_writes(tmp_path: Path, monkeypatch, capsys) -> None:
    monkeypatch.chdir(tmp_path)
    assert s3zoo_command(["zoo", "--family", "glit", "--html", "zoo.html", "--cards"]) == 0
    head, *lines = capsys.readouterr().out.splitlines()
    assert head.startswith("model") and {line.split()[0] for line in lines} == GLIT
    (tiny,) = [line for line in lines if line.startswith("glit_tiny")]
    assert "7.26M" in tiny and "76.3" in tiny and head.index("whose") == tiny.index("GLiT paper")
    sizes = [line.split()[0] for line in lines if line.split()[0] not in BUNDLED]
    assert sizes == ["glit_tiny", "glit_small", "glit_base"]
    assert "s3_tiny" in (tmp_path / "zoo.html").read_text()
    assert (tmp_path / "model_cards/s3_tiny/README.md").is_file()
    assert s3zoo_command(["zoo", "--family", "glit", "--json"]) == 0
    assert [row["name"] for row in json.loads(capsys.readouterr().out)] == [line.split()[0] for line in lines]


def test_throughput_is_measured_once(tmp_path: Path, capsys) -> None:
    path = tmp_path / "throughput.json"
    nano = {"s3_nano": timm.create_model("s3_nano", device="meta").arch.key}
    first = zoo.update_throughput(path, nano, False, print)
    assert capsys.readouterr().out.count("round") == zoo.ROUNDS + 1
    low, high = first["models"]["s3_nano"]["range"]
    assert 0 < low <= first["models"]["s3_nano"]["images_per_second"] <= high
    assert zoo.update_throughput(path, nano, False, print) == first
    assert capsys.readouterr().out == ""
    path.write_text(json.dumps(first).replace(nano["s3_nano"], "another"))
    zoo.update_throughput(path, nano, False, print)
    assert "round" in capsys.readouterr().out  # it was another network
    path.write_text(json.dumps(first | {"torch": "1.0"}))
    with pytest.raises(ValueError, match="--throughput all"):
        zoo.update_throughput(path, nano, False, print)
    path.write_text(json.dumps(first | {"machine": 3}))  # which the page says
    with pytest.raises(ValueError, match="machine is 3, but must be of type str.*; measure again"):
        zoo.read_throughput(path)


def figures(text: str) -> list[ElementTree.Element]:
    return [ElementTree.fromstring(svg) for svg in re.findall(r"<svg.*?</svg>", text, re.S)]


def marks(figure: ElementTree.Element, kind: str) -> dict[str, str]:
    """What the marks of a figure say, by the first line of it, which is a name."""
    texts = [str(mark.findtext("title")) for mark in figure.iter("g") if mark.get("class") == kind]
    return {text.partition("\n")[0]: text for text in texts if text != "None"}


def content(text: str) -> object:
    """What a page says; how matplotlib writes paths may differ between its versions."""
    words = [[e.text for e in figure.iter() if e.tag in ("text", "title")] for figure in figures(text)]
    return words, re.sub(r"<svg.*?</svg>", "", text, flags=re.S)


def test_the_committed_page_is_up_to_date(rows: list[dict[str, Any]]) -> None:
    """If this fails: `make zoo`."""
    throughput = zoo.read_throughput(THROUGHPUT)
    assert {row["name"] for row in rows if row["throughput"]} >= NAMES - BUNDLED
    text = PAGE.read_text()
    assert content(page(rows, throughput)) == content(text)
    assert page(rows, throughput) == page(rows, throughput)
    assert not re.search(r"https?://|\bsrc=|@import|url\((?!#)", text)  # nothing is fetched
    for target in re.findall(r'href="(\.\./[^"]+)"', text):
        assert (PAGE.parent / target).is_file()


def test_without_scripts_it_is_a_table_and_plots() -> None:
    text = PAGE.read_text()
    assert text.count("<tr data-name=") == len(NAMES) and re.search(r'id="controls" hidden', text)
    plots = figures(text)
    assert [set(marks(plot, "point")) for plot in plots] == [PLOTTED] * 3
    assert "82.1 % (S3 paper), 28.3M parameters" in marks(plots[0], "point")["s3_tiny"]


# Typed from the tables that peers.json names.
PEERS = {
    "DeiT-T": (72.2, 5.7e6, 1.2e9, "AutoFormer paper, Table 5"),
    "Swin-S": (83.0, 50e6, 8.7e9, "S3 paper, Table 1"),
    "ResNet50": (76.2, 25.5e6, 4.1e9, "S3 paper, Table 1"),
    "RegNetY-16GF": (80.4, 83e6, 16e9, "S3 paper, Table 1"),
    "PVT-Large": (81.7, 61.4e6, 9.8e9, "PVT paper, Table 2"),
    "ConvNeXt-B": (83.8, 89e6, 15.4e9, "ConvNeXt's authors, README of their repository"),
}


def test_peers_are_drawn_with_their_source(rows: list[dict[str, Any]]) -> None:
    known = {peer["name"]: (peer["top1"], peer["params"], peer["macs"], peer["source"]) for peer in peers()}
    assert {name: known[name] for name in PEERS} == PEERS
    for key in ("params", "macs"):
        drawn = marks(ElementTree.fromstring(plot(rows, key)), "peer")
        assert set(drawn) == set(known) and all(drawn[name].endswith(known[name][3]) for name in known)
    assert marks(ElementTree.fromstring(plot(rows, "throughput")), "peer") == {}  # was not measured


@pytest.fixture(scope="module")
def browser(chromium: Any) -> Any:
    chromium.get(PAGE.as_uri())
    return chromium


def visible(browser: Any) -> list[str]:
    return browser.execute_script(
        "return [...document.querySelectorAll('#zoo tbody tr')].filter(r => r.offsetParent).map(r => r.dataset.name)"
    )


def column(browser: Any, key: str) -> list[str]:
    return browser.execute_script(
        "const i = [...document.querySelectorAll('#zoo thead th')].findIndex(h => h.dataset.key === arguments[0]);"
        "return [...document.querySelectorAll('#zoo tbody tr')].map(r => r.cells[i].dataset.value)",
        key,
    )


def known(values: list[str]) -> list[float]:
    """Those of a sorted column that are known; the others come last."""
    found = [float(value) for value in values if value]
    assert all(values[: len(found)])
    return found


def click(browser: Any, selector: str) -> None:
    browser.find_element("css selector", selector).click()


def test_no_width_cuts_the_table(browser: Any) -> None:
    for width in (360, 1000, 1184, 1185, 1200, 1201, 1280, 1366, 1440, 1920, 2560):
        screen = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": False}
        browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", screen)
        shown, whole = browser.execute_script(
            "const box = document.querySelector('#zoo').parentElement; return [box.clientWidth, box.scrollWidth]"
        )
        assert whole <= shown, width
    browser.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})


def test_in_a_browser(browser: Any) -> None:
    assert set(visible(browser)) == NAMES
    plots = browser.find_elements("css selector", ".figures svg")
    names = [{p.get_attribute("data-name") for p in plot.find_elements("css selector", ".point")} for plot in plots]
    assert names == [PLOTTED] * 3

    before = visible(browser)
    for key in ("params", "macs", "throughput"):
        click(browser, f"th[data-key={key}] button")
        up = known(column(browser, key))
        assert up == sorted(up) and list(map(str, up)) != sorted(map(str, up))  # as numbers, not as text
        click(browser, f"th[data-key={key}] button")
        assert known(column(browser, key)) == up[::-1]
    assert visible(browser) != before
    click(browser, "th[data-key=top1] button")
    accuracies = column(browser, "top1")
    assert known(accuracies) == sorted(known(accuracies)) and not all(accuracies)
    assert browser.find_element("css selector", "th[data-key=top1]").get_attribute("aria-sort") == "ascending"
    click(browser, "th[data-key=name] button")
    assert visible(browser) == sorted(NAMES)

    field = browser.find_element("css selector", "#find")
    field.send_keys("glit")
    assert set(visible(browser)) == GLIT
    assert browser.find_element("css selector", "#count").text == f"{len(GLIT)} of {len(NAMES)}"
    point = browser.find_element("css selector", ".point[data-name=glit_tiny]")
    browser.execute_script("arguments[0].focus()", point)
    tip = browser.find_element("css selector", "#tip")
    assert tip.text.splitlines()[0] == "glit_tiny" and "76.3 % (GLiT paper)" in tip.text
    lit = browser.find_elements("css selector", ".point:not(.off)")
    assert {point.get_attribute("data-name") for point in lit} == {"glit_tiny"}
    field.clear()
    field.send_keys(" ")
    click(browser, "input[value=s3]")
    assert set(visible(browser)) == NAMES - set(timm.list_models(module="s3"))
    click(browser, "input[value=s3]")
    click(browser, "#trained")
    trained = {"s3_tiny", "s3_small", "s3_base", "autoformer_tiny", "autoformer_small", "autoformer_base"}
    assert set(visible(browser)) == trained | BUNDLED
    assert browser.find_element("css selector", ".peer").is_displayed()
    click(browser, "#peers")
    assert not browser.find_element("css selector", ".peer").is_displayed()
    errors = [entry for entry in browser.get_log("browser") if entry["level"] in ("SEVERE", "WARNING")]
    assert errors == []


@pytest.mark.parametrize(
    ("width", "media"), [*((width, "screen") for width in (320, 360, 500, 800, 1000, 1200, 1600)), (718, "print")]
)
def test_nothing_is_cut_at_any_width(browser: Any, width: int, media: str) -> None:
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": media})
    screen = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 600}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", screen)
    cut = browser.execute_script(
        "return [document.documentElement, ...document.querySelectorAll('.scroll, td, th, .figures > *')]"
        ".filter(e => e.scrollWidth > e.clientWidth + 1).map(e => e.outerHTML.slice(0, 80))"
    )
    assert cut == []
