"""The report of a search: numbers computed by hand, runs that end anywhere, and the page in a real browser."""

import html
import json
import re
import shutil
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from test_search import ONE, RACING, quick, search, toy

from s3zoo import drawing
from s3zoo.arch import Arch, S3Block, Stage
from s3zoo.cli import main
from s3zoo.files import Records
from s3zoo.search.command import report
from s3zoo.search.course import Course
from s3zoo.search.forecast import planned
from s3zoo.search.report import data, networks
from s3zoo.search.report.page import PANELS, state
from s3zoo.search.report.page import page as page_of
from s3zoo.space import s3_space
from s3zoo.training.config import overridden, to_dict
from s3zoo.training.log import Log

SPACE = s3_space(
    "hand", (1, 2), (8, 16), (2,), (1,), (1,), steps=(1, 8, 2, 1, 1), head_dim=8, num_stages=1, patch_size=2
)


def network(depth: int, width: int, accuracy: float, full: bool = True, **costs: float) -> data.Network:
    block = S3Block(window_size=2, num_heads=1, head_dim=8, mlp_ratio=1.0)
    arch = Arch("s3", (Stage(width, (block,) * depth),), patch_size=2)
    return data.Network(arch, accuracy, {"params": 1000 * depth * width, "macs": 1.0} | costs, full)


FOUR = [network(1, 8, 80), network(1, 16, 84), network(2, 8, 90), network(2, 16, 92)]


# By hand


def test_distribution() -> None:
    xs, ys = data.edf([20, 10, 20, 40])
    assert xs.tolist() == [10, 20, 40] and ys.tolist() == [0.25, 0.75, 1]
    assert data.edf_at([20, 10, 20, 40], np.array([9, 10, 39.9, 40])).tolist() == [0, 0.25, 0.75, 1]
    low, high = data.edf_band([20, 10, 20, 40], np.array([5.0, 20.0, 40.0]), "a name")
    assert low[0] == high[0] == 0 and low[2] == high[2] == 1  # no resampled network is outside these
    assert low[1] <= 0.75 <= high[1] and 0.25 <= low[1] < high[1] <= 1
    again = data.edf_band([20, 10, 20, 40], np.array([5.0, 20.0, 40.0]), "a name")
    assert (low == again[0]).all() and (high == again[1]).all()
    assert len(data.grid([range(1000), range(5)])) == data.GRID


def test_errors_by_choice_and_top_tier() -> None:
    depth, width = SPACE["depth"], SPACE["embed_dim"]
    assert data.by_choice(FOUR, depth, SPACE) == {1: [20, 16], 2: [10, 8]}
    assert data.by_choice([*FOUR, network(2, 16, 99, full=False)], width, SPACE) == {8: [20, 10], 16: [16, 8]}
    tiers = data.tiers({1: [20, 16], 2: [10, 8]}, {"space_search": {"top": 50, "top_share": 0.5}})
    assert [(each["mean"], each["top"]) for each in tiers.values()] == [(18, 16), (9, 8)]


def test_front_has_no_estimates() -> None:
    estimate = network(1, 8, 99, full=False, params=1.0)
    assert [(n.costs["params"], n.accuracy) for n in data.front([*FOUR, estimate], "params")] == [
        (8000, 80), (16000, 90), (32000, 92),
    ]  # fmt: skip
    assert data.front(FOUR, "latency") == []


def test_random_search_is_drawn_as_far_as_its_networks_are_known() -> None:
    visit = data.Visit(0, SPACE, [], [], [], FOUR[:1], [], None, [], [], {})
    known, strange = {"key": FOUR[0].key}, {"key": "elsewhere"}
    assert data.random_search(visit, data.Search("", [], [], [[known], [strange, known]]), 1) == [FOUR[:1]]


def test_seeds_make_a_band() -> None:
    assert data.band([[1, 2, 3], [3, 4]]) == [(1, 2, 3), (2, 3, 4)]


def test_genes_in_words() -> None:
    blocks = [S3Block(window_size=w, num_heads=1, head_dim=8, mlp_ratio=1.5) for w in (2, 4)]
    arch = Arch("s3", (Stage(8, tuple(blocks)), Stage(16, (blocks[0],))), patch_size=2)
    lines = data.told(arch).splitlines()
    assert lines == ["depth 2 · 1", "embed_dim 8 · 16", "window_size 2 4 · 2", "num_heads 1 · 1", "head_dim 8 · 8",
                     "mlp_ratio 1.5 · 1.5"]  # fmt: skip


@pytest.mark.parametrize(
    ("family", "params", "name"),
    [("s3", 1e5, "Swin-T"), ("s3", 6e7, "Swin-S"), ("autoformer", 2e7, "DeiT-S"), ("glit", 9e7, "DeiT-B")],
)
def test_baseline_is_the_nearest_in_size(family: str, params: float, name: str) -> None:
    from s3zoo.families import FAMILIES

    arch = next(iter(FAMILIES[family].designed().values()))
    found = data.baseline(arch, params)
    assert found is not None and found[0] == name


def test_designed_networks_have_the_sizes_of_timm() -> None:
    import timm

    from s3zoo import cost
    from s3zoo.families import FAMILIES

    known = {"Swin-T": "swin_tiny_patch4_window7_224", "DeiT-S": "deit_small_patch16_224"}
    for family, name in (("s3", "Swin-T"), ("glit", "DeiT-S")):
        model = timm.create_model(known[name], device="meta")
        assert cost.params(FAMILIES[family].designed()[name]) == sum(p.numel() for p in model.parameters())


# The course of a run


def test_phases_of_a_run() -> None:
    config = to_dict(toy())
    assert [phase.name for phase in planned(config, 128)] == [
        "space0: supernet", "space0: scores", "space1: supernet", "space1: search", "space1: finish", "test images",
    ]  # fmt: skip
    by_name = {phase.name: phase for phase in planned(config, 128)}
    assert by_name["space0: supernet"].images == 2 * 128 * 4 and by_name["space0: scores"].images == 20 * 60
    assert by_name["space1: search"].images == 12 * 3 * 60 and by_name["space1: finish"].images == 2 * 2 * 128
    stayed = [phase.name for phase in planned(config, last=0, visited=1)]
    assert stayed == ["space0: supernet", "space0: scores", "space0: search", "space0: finish", "test images"]
    back = [phase.name for phase in planned(config, last=0, visited=2)]
    assert back[-4:] == ["space1: supernet", "space0: search", "space0: finish", "test images"]
    each = to_dict(overridden(toy(), ["space_search.search_each_space=True", "space_search.random_samples=5"]))
    assert [phase.name for phase in planned(each)][:5] == [
        "space0: supernet", "space0: random networks", "space0: search", "space0: finish", "space0: scores",
    ]  # fmt: skip


def test_s4s_scores_are_counted_by_its_pairs_and_what_came_before_is_over() -> None:
    """Of random networks there may be fewer than are asked for: some are drawn twice."""
    run = overridden(toy(), ["space_search.method=s4", "space_search.pairs=3", "space_search.random_samples=5"])
    asked = 2 * 3 * len(run.space.searched)
    visit = data.Visit(0, run.space, [], [FOUR[0]] * (asked // 2), FOUR, [], [], None, [], [], {})
    found = data.Run(Path(), to_dict(run), {}, [visit], [], None, {}, {}, [])
    shares = dict(data.phases(found))
    assert (shares["space0: random networks"], shares["space0: scores"], shares["space1: supernet"]) == (1, 0.5, 0)


def test_time_left(tmp_path: Path, capsys: Any) -> None:
    """A supernet of 3 x 1024 forward passes takes 30.72 s, so a second is worth 100; 1200 scores of networks follow."""
    now = [0.0]
    course = Course(tmp_path, to_dict(toy()), 128, Log(None), clock=lambda: now[0])
    with course.phase("space0: supernet"):
        assert course.told() == ""
        course.meter(0.0)
        now[0] = 15.36
        course.meter(0.5)
        assert course.left() == pytest.approx(15.36)
        work = 1200 + 3 * 1024 + 2160 + 3 * 512 + 60  # scores, supernet, search, finish, test images
        assert course.rest() == pytest.approx(work / 100)
        course.best = 91.5
        assert course.told() == "phase: about 15 s left, run: about 2 min left, best so far 91.50 %"
        now[0] = 30.72
    log = Log(None)
    again = Course(tmp_path, to_dict(toy()), 128, log, clock=lambda: now[0])
    assert again.clock.seconds == {"space0: supernet": 30.72}
    with again.phase("space0: scores"):
        again.part(1, 4)
        now[0] += 5
        again.meter(0.5)
        assert again.left() == pytest.approx(5 * (1 - 0.375) / 0.125)
    with again.phase("space2: finish"):
        again.part(0, 4)
        log.progress("first", total=100, start=100)  # finished earlier
        again.part(1, 4)
        meter = log.progress("second", total=100, start=60)
        assert again.told() == ""
        now[0] += 5
        meter.update(80)  # a fifth of a quarter in 5 s
        assert again.left() == pytest.approx(5 * (2 + 0.2) / 0.2)
    said = capsys.readouterr().out
    assert "phase 1 of 6: space0: supernet" in said and "phase 2 of 6: space0: scores (run: about 80 s left)" in said


# Reports of runs


@pytest.fixture(scope="module")
def run_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """With all that a run can have, and racing in a second one."""
    folder = tmp_path_factory.mktemp("report")
    settings = ("space_search.random_samples=24", "space_search.audit=3",
                "arch_search.budgets=('params<=6K, latency<=1000ms',)", "arch_search.latency_repeats=1")  # fmt: skip
    search(overridden(toy(), settings), folder)
    return folder


@pytest.fixture(scope="module")
def page(run_folder: Path) -> Path:
    """As the end of a search writes it."""
    path = run_folder / "report" / "report.html"
    assert report([run_folder], path.parent) == f"report: {path}"
    return path


def test_what_goes_wrong_at_the_end_of_a_search_is_only_told(run_folder: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    assert "could not be written" in report([run_folder], tmp_path / "file" / "x")


def test_every_panel_shows_something(page: Path) -> None:
    text = page.read_text()
    assert "finished." in text and "not finished" not in text and 'class="lacks"' not in text
    sections = dict(re.findall(r'<section id="(\w+)".*?>(.*?)</section>', text, re.S))
    assert list(sections) == [panel.name for panel in PANELS]
    for panel in PANELS:
        assert sections[panel.name].count("<svg") >= bool(panel.draw)
    for name in ("space-depth", "slopes-space0", "errors", "choices-depth", "search-space1", "accuracy-params",
                 "accuracy-latency", "supernet", "audit", "genome", "genome-swin-t", "spent"):  # fmt: skip
        for kind, start in (("pdf", b"%PDF"), ("svg", b"<?xml")):
            assert (page.parent / "figures" / f"{name}.{kind}").read_bytes().startswith(start)
    assert not re.search(r"https?://|\bsrc=|@import|url\((?!#)", re.sub(r"<pre>.*?</pre>", "", text, flags=re.S))
    assert "promised (ms)" in text and "not measured" not in text and "random search" in text


def test_figures_show_the_files(run_folder: Path, page: Path) -> None:
    """Marks are the rows of the run's files, counted and computed without the report's own reader."""
    text = page.read_text()
    rows = [row for path in run_folder.glob("space*/*.jsonl") if path.stem in ("scores", "random", "evaluated")
            for row in Records(path, write=False).rows]  # fmt: skip
    svgs = {re.search(r'aria-label="([^"]*)"', svg)[1]: svg for svg in re.findall(r"<svg.*?</svg>", text, re.S)}
    (sizes,) = [svg for label, svg in svgs.items() if label.startswith("Accuracy against parameters")]
    places = {(p.parent.name, json.dumps(row["arch"])) for p in run_folder.glob("space*/*.jsonl")
              if p.stem in ("scores", "random", "evaluated") for row in Records(p, write=False).rows}  # fmt: skip
    assert sizes.count('class="point"') == len(places) <= len(rows)
    best: list[float] = []
    for row in sorted(rows, key=lambda row: (row["params"], -row["accuracy"])):
        if not best or row["accuracy"] > best[-1]:
            best.append(row["accuracy"])
    assert sizes.count('class="front"') == len(best)
    winner = json.loads((run_folder / "result.json").read_text())["winners"][0]
    assert f"{winner['inherited']:.2f} %" in sizes and f"{winner['test']['top1']:.2f} % of the test images" in sizes
    audit = json.loads(next(run_folder.glob("space*/audit.json")).read_text())
    (drawn,) = [svg for label, svg in svgs.items() if "retrained" in label]
    assert drawn.count('class="point"') == 9 and f"τ {audit['kendall_retrain']:.2f}" in drawn


def test_a_winner_that_no_supernet_scored_has_no_star(run_folder: Path) -> None:
    (run,) = data.read_all([run_folder])
    run.result["winners"][0]["inherited"] = None
    with drawing.style():
        assert {drawn.name for drawn in networks.sizes(data.grouped([run]))} >= {"accuracy-params", "accuracy-macs"}


def test_racing_estimates_are_drawn_as_such(tmp_path: Path) -> None:
    search(overridden(toy(), RACING), tmp_path)
    (run,) = data.read_all([tmp_path])
    (visit,) = run.visits
    estimates = [n for n in visit.networks if not n.full]
    assert estimates and not any(n in data.front(visit.networks, "params") for n in estimates)
    (saved,) = data.saving(run)
    rows = Records(tmp_path / "space0/evaluated.jsonl", write=False).rows
    assert saved["images"] == rows[-1]["race"]["forwards"] < saved["without"] == saved["networks"] * 500
    assert data.images(run)["space0: search"] == saved["images"]
    text = page_of([run])
    assert text.count('class="point estimate"') == 2 * len(estimates)  # against parameters and MACs
    assert "racing&#x27;s estimate" in text or "racing's estimate" in text
    sample, _ = data.sample_of(run, visit)
    assert all(n.full for n in sample)


# What is taken away from a finished run to have one that was killed in a phase, and what is said of it then.
KILLED = {
    "space0: supernet": (("space0/scores*", "space0/random*", "space0/supernet/epochs.jsonl"), "not begun: space0: "),
    "space0: scores": ((), "under way: space0: scores ("),
    "space1: supernet": (("space1/random*", "space1/evaluated*", "space1/search-*", "space1/audit*"), "(50 %)"),
    "space1: audit": (("space1/evaluated*", "space1/search-*"), "under way: space1: audit (67 %)"),
    "space1: search": (("space1/search-0/winner.json", "space1/search-0/finish-*"), "space1: search (67 %)"),
    "space1: finish": (("space1/search-0/finish-1",), "under way: space1: finish (50 %)"),
}
# Panels that have nothing to show by then.
LACKS = {
    "space0: supernet": ["result", "errors", "search", "sizes", "supernet", "weights", "genome"],
    "space0: scores": ["result", "search", "weights", "genome"],
    "space1: supernet": ["result", "search", "weights", "genome"],
    "space1: audit": ["result", "search", "genome"],
    "space1: search": ["result", "genome"],
}


@pytest.mark.parametrize("phase", KILLED)
def test_a_killed_run_says_what_is_missing(run_folder: Path, tmp_path: Path, phase: str) -> None:
    """Files are taken away in the order in which a run makes them, so that what is left is what a kill leaves."""
    folder = tmp_path / "run"
    shutil.copytree(run_folder, folder, ignore=shutil.ignore_patterns("report", "model", "*.safetensors"))
    later = ["result.json", "test-0.json"]
    if phase.startswith("space0"):
        later += ["space_search.jsonl", "space1"]
    for pattern in (*KILLED[phase][0], *later):
        for path in folder.glob(pattern):
            shutil.rmtree(path) if path.is_dir() else path.unlink()
    with open(folder / "space0" / "supernet" / "epochs.jsonl", "a") as file:
        file.write('{"epoch": 1, "st')  # half a line
    cut = {"supernet/epochs.jsonl": "space1: supernet", "audit.json": "space1: audit",
           "search-0/generations.json": "space1: search"}  # fmt: skip
    for path in (folder / "space1" / name for name, when in cut.items() if when == phase):
        if path.suffix == ".jsonl":
            path.write_text(path.read_text().splitlines(keepends=True)[0])
        else:  # both have three entries
            kept = json.loads(path.read_text())
            path.write_text(json.dumps({"networks": kept["networks"][:2]} if isinstance(kept, dict) else kept[:2]))
    (run,) = data.read_all([folder])
    (line,) = state([run])
    assert "not finished" in line and KILLED[phase][1] in line and "test images" in line
    shares = dict(data.phases(run))
    assert shares[phase] < 1 and all(share == 1 for name, share in list(shares.items())[: list(shares).index(phase)])
    text = page_of([run])
    assert line in html.unescape(text) and text.count("<svg") >= 5
    lacks = re.findall(r'<section id="(\w+)"(?:(?!</section>).)*class="lacks"', text, re.S)
    assert lacks == LACKS.get(phase, [])


def test_several_runs_are_compared(run_folder: Path, tmp_path: Path) -> None:
    folders = []
    for name, settings in {"seed0": (), "seed1": ("seed=1",), "random": ("arch_search.method=random",)}.items():
        run = quick(overridden(toy(), settings))
        search(run, tmp_path / name)
        folders.append(tmp_path / name)
    runs = data.read_all(folders)
    groups = data.grouped(runs)
    assert [len(group.runs) for group in groups] == [2, 1]
    assert [group.label for group in groups] == ["method=evolution", "method=random"]
    text = page_of(runs)
    tests = [json.loads((folder / "result.json").read_text())["winners"][0]["test"]["top1"] for folder in folders[:2]]
    assert f"{np.mean(tests):.2f} ± {np.std(tests, ddof=1):.2f}" in text
    assert text.count("Error distribution of each visited space") == 4  # of two methods, as caption and label
    (tmp_path / "random").rename(tmp_path / "other")
    assert len(data.read_all([tmp_path])) == 2  # a folder of seeds


@pytest.mark.parametrize("kind", ["nothing", "file", "empty", "training", "broken", "audit", "no-out"])
def test_bad_input_is_one_sentence(kind: str, run_folder: Path, tmp_path: Path, capsys: Any) -> None:
    given, words = tmp_path / "run", []
    if kind == "file":
        given.write_text("")
    elif kind == "empty":
        given.mkdir()
    elif kind == "training":
        given = Path(__file__).parent / "old" / "v1" / "run"
    elif kind == "broken":
        shutil.copytree(run_folder, given, ignore=shutil.ignore_patterns("report", "*.safetensors"))
        (given / "space0" / "scores.jsonl").write_text('{"arch": 3}\n')
    elif kind == "audit":
        shutil.copytree(run_folder, given, ignore=shutil.ignore_patterns("report", "*.safetensors"))
        (path,) = given.glob("space*/audit.json")
        audit = json.loads(path.read_text())
        path.write_text(json.dumps(audit | {"networks": [audit["networks"][0] | {"finetune": None}]}))
    elif kind == "no-out":
        (tmp_path / "file").write_text("")
        given, words = run_folder, ["--out", str(tmp_path / "file")]
    before = sorted(tmp_path.rglob("*"))
    assert main(["report", str(given), *words]) == 2
    said = capsys.readouterr().err
    assert said.startswith("s3zoo: ") and said.count("\n") == 1 and (str(given) in said or "--out" in said)
    assert sorted(tmp_path.rglob("*")) == before


# In a browser


def test_the_page_of_the_default_search(chromium: Any, tmp_path: Path) -> None:
    """Of a recorded run of `s3zoo search digits`, which takes two minutes; without its checkpoints."""
    with tarfile.open(Path(__file__).parent / "golden" / "digits_run.tar.xz") as recorded:
        recorded.extractall(tmp_path / "digits", filter="data")
    assert main(["report", str(tmp_path / "digits"), "--out", str(tmp_path)]) == 0
    chromium.get((tmp_path / "report.html").as_uri())
    for panel in PANELS:
        section = chromium.find_element("id", panel.name)
        shown = section.find_elements("css selector", ".figure path, td, dd")
        assert len(shown) > 3 and section.rect["height"] > 100, panel.name
        assert not section.find_elements("css selector", ".lacks"), panel.name
    loaded = chromium.execute_script("return performance.getEntriesByType('resource').map(e => e.name)")
    assert [name for name in loaded if not name.startswith("data:")] == []
    assert [entry for entry in chromium.get_log("browser") if entry["level"] in ("SEVERE", "WARNING")] == []


@pytest.fixture(scope="module")
def browser(chromium: Any, page: Path) -> Any:
    chromium.get(page.as_uri())
    return chromium


def test_hover_and_keyboard(browser: Any) -> None:
    from selenium.webdriver import ActionChains, Keys

    tip = browser.find_element("css selector", "#tip")
    star = browser.find_element("css selector", "#sizes .winner")
    browser.execute_script("arguments[0].scrollIntoView({block: 'center'})", star)
    ActionChains(browser).move_to_element(star).perform()
    assert "winner" in tip.text and "embed_dim" in tip.text and "of the test images" in tip.text
    figure = browser.find_element("css selector", "#sizes .figure")
    assert len(figure.find_elements("css selector", "[tabindex='0']")) == 1  # one stop of the Tab key
    first = figure.find_element("css selector", "[tabindex='0']")
    browser.execute_script("arguments[0].focus()", first)
    shown = tip.text
    assert "parameters" in shown and "window_size" in shown
    ActionChains(browser).send_keys(Keys.ARROW_RIGHT).perform()
    assert tip.text != shown and "parameters" in tip.text
    ActionChains(browser).send_keys(Keys.ARROW_LEFT).perform()
    assert tip.text == shown
    ActionChains(browser).send_keys(Keys.ESCAPE).perform()
    assert not tip.is_displayed()
    ActionChains(browser).send_keys(Keys.TAB).perform()
    inside = "return arguments[0].contains(document.activeElement)"
    assert not browser.execute_script(inside, figure)
    loaded = browser.execute_script("return performance.getEntriesByType('resource').map(e => e.name)")
    assert [name for name in loaded if not name.startswith("data:")] == []
    assert [entry for entry in browser.get_log("browser") if entry["level"] in ("SEVERE", "WARNING")] == []


@pytest.mark.parametrize(
    ("width", "media", "theme"),
    [(360, "screen", "light"), (360, "screen", "dark"), (800, "screen", "light"), (1400, "screen", "dark"),
     (718, "print", "light")],
)  # fmt: skip
def test_nothing_is_cut_and_all_is_legible(browser: Any, width: int, media: str, theme: str) -> None:
    features = [{"name": "prefers-color-scheme", "value": theme}]
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": media, "features": features})
    screen = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 600}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", screen)
    assert browser.execute_script("return document.documentElement.scrollWidth <= innerWidth + 1")
    empty = browser.execute_script(
        "return [...document.querySelectorAll('section .figure')].filter(f => f.getBoundingClientRect().height < 60"
        " || f.querySelectorAll('path, use').length < 3).map(f => f.ariaLabel)"
    )
    assert empty == []
    small = browser.execute_script(
        "return [...document.querySelectorAll('.figure text')].map(t => t.getBoundingClientRect().height)"
        ".filter(h => h && h < 6).length"
    )
    assert small == 0
    ink = browser.execute_script("return getComputedStyle(document.querySelector('h1')).color")
    assert (sum(map(int, re.findall(r"\d+", ink)[:3])) > 3 * 128) == (theme == "dark")


def test_tensorboard_has_the_same_quantities(tmp_path: Path) -> None:
    events_of = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator").EventAccumulator
    from s3zoo.search import run as search_run
    from s3zoo.training.loop import Stop

    log = Log(tmp_path)
    run = overridden(toy(), ["final.mode=inherit", "final.top=1", "supernet.epochs=1"])
    search_run.search(run, tmp_path, ONE, log, Stop())
    log.close()
    events = events_of(str(tmp_path / "tensorboard"))
    events.Reload()
    tags = set(events.Tags()["scalars"])
    (found,) = data.read_all([tmp_path])
    visits = {visit.index: visit.space for visit in found.visits}
    for event in events.Scalars("space/stage1.embed_dim/highest"):
        assert event.value == visits[event.step]["stage1.embed_dim"].choices[-1]
    decision = found.decisions[0].record
    assert events.Scalars("slope/stage1.depth")[0].value == pytest.approx(decision["dims"][0]["slope"], rel=1e-6)
    assert events.Scalars("space search/error et")[0].value == pytest.approx(decision["quality"]["et"], rel=1e-6)
    last = found.visits[-1]
    best = [rows[0]["accuracy"] for rows in last.searches[0].generations]
    assert [e.value for e in events.Scalars(f"space{last.index}: params <= 6K/best")] == pytest.approx(best)
    assert "space0: scores, networks/best" in tags
    assert "phase 1 of 6: space0: supernet" in (tmp_path / "log.txt").read_text()
