"""What `s3zoo study cifar10` left, as networks with cards, a table of scored networks, a page and its figures.

    python benchmarks/cifar10.py --pack runs/cifar10    # take in what the runs left, then write all of it anew
    python benchmarks/cifar10.py                        # write it anew from what was taken in before
    python benchmarks/cifar10.py --unpack runs/cifar10  # on another machine: all runs as they were, to go on

Taken in: benchmarks/data/cifar10 (every finished run without its weights, what others go on from, and every start).
Written from that: the cards in s3zoo/weights, s3zoo/tables/cifar10.jsonl.xz with its card, docs/cifar10.md,
docs/cifar10*.svg. `make zoo` then brings the rest up to date.
"""

from __future__ import annotations

import argparse
import io
import math
import shutil
import statistics
import tarfile
import tempfile
import textwrap
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from itertools import combinations
from pathlib import Path
from typing import Any, NamedTuple

from s3zoo import drawing, hub, scored
from s3zoo.arch import Arch
from s3zoo.cards import table
from s3zoo.drawing import mean_and_spread, quantity
from s3zoo.families import FAMILIES
from s3zoo.files import Records, read_json, write_json, write_text
from s3zoo.search.budget import Budget
from s3zoo.search.config import SearchRun
from s3zoo.search.moves import replayed_moves
from s3zoo.search.published import FinishedRun
from s3zoo.search.report import data, looks, networks, spaces
from s3zoo.search.report.looks import file_name
from s3zoo.search.space_search import SpaceSearch, is_noise, rank_correlation
from s3zoo.study import Study, kept, method_of, starts, summary
from s3zoo.training import checkpoint
from s3zoo.training.registry import load_config
from s3zoo.zoo.page import COLOURS

ROOT = Path(__file__).resolve().parent.parent
KEPT, DOCS, WEIGHTS = ROOT / "benchmarks/data/cifar10", ROOT / "docs", ROOT / "s3zoo/weights"
BEGUN = "begun"  # there: runs to go on with
TABLE, TABLE_CARD = ROOT / "s3zoo/tables/cifar10.jsonl.xz", ROOT / "s3zoo/tables/README.md"
MARKS = "<!-- written by benchmarks/cifar10.py -->", "<!-- end of what was written by benchmarks/cifar10.py -->"
# Named before the runs: the first seed of each method, whatever came out of it, and the one that trains longer
METHODS = ("s3", "s4_vit", "autoformer", "glit", "s4_swin", "s4_shunted")
PUBLISHED = {f"{method}-0": f"{method}_micro.cifar10" for method in METHODS} | {"glit_conv2d-0": "glit_mini.cifar10"}
LABELS = {
    "s3": "S3", "s3_still": "S3, space stays", "s3_gentle": "S3, smaller steps", "swin": "Swin",
    "s4_vit": "S4-ViT", "autoformer": "AutoFormer", "deit": "DeiT", "deit_mini": "DeiT of more MACs",
    "s4_vit_step": "S4-ViT, by steps, fewer MACs", "s4_vit_free": "S4-ViT without a limit",
    "s3_vit": "S3 in S4-ViT's space", "s3_vit_free": "S3 in S4-ViT's space, without a limit",
    "glit": "GLiT", "glit_global": "DeiT", "glit_conv2d": "GLiT, larger, trained longer",
    "s4_swin": "S4-Swin", "swin_mini": "Swin", "s4_shunted": "S4-Shunted", "shunted": "Shunted",
}  # fmt: skip
TWO_ERRORS = SpaceSearch(significance=2)
RANKED = ("inherited", "accuracy")  # of a network of a supernet: with its weights, and trained from scratch
SEARCHES = {"evolution": "-", "random search": ":"}
BODIES = {"s3": "Swin", "autoformer": "ViT", "glit": "ViT, some heads convolve", "shunted": "Shunted"}  # in S4's words


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pack", type=Path, metavar="FOLDER", help="the study's folder: take in its runs")
    parser.add_argument("--unpack", type=Path, metavar="FOLDER", help="only put the runs there, to go on with")
    arguments = parser.parse_args()
    if arguments.unpack:
        return unpack(arguments.unpack)
    if arguments.pack:
        pack(arguments.pack)
    with recorded() as found:
        publish(found, arguments.pack)
        scored.save(found.networks(), TABLE)
        write_text(TABLE_CARD, inserted(TABLE_CARD, counts(scored.load(TABLE))))
        drawn = {name: (label, figure) for name, label, figure in pictures(found)}
        for path in DOCS.glob("cifar10*.svg"):
            path.unlink()
        for name, (_, figure) in drawn.items():
            drawing.save(figure, DOCS / f"{name}.svg")
        write_text(DOCS / "cifar10.svg", front(found))
        text = page(found, [(name, label) for name, (label, _) in drawn.items()])
        write_text(DOCS / "cifar10.md", inserted(DOCS / "cifar10.md", text))


# What is kept of the runs


def pack(folder: Path) -> None:
    """Take in what the runs of a study left, and every start."""
    study = load_config("cifar10", Study, "study")
    runs = sorted(path.parent for path in folder.glob("*/run.json"))
    finished = [run for run in runs if (run / "result.json").exists()]
    for run in finished:
        archive(run, KEPT / f"{run.name}.tar.xz", [path for path in kept(run) if path.suffix != ".safetensors"])
    done = {path.name.removesuffix(".tar.xz") for path in KEPT.glob("*.tar.xz")}
    needed = {name for run in study.runs if run.name not in done for name in (run.name, *run.needs)}
    for run in runs:
        if run.name in needed and any(run.rglob("step-*")):
            with tempfile.TemporaryDirectory() as scratch:
                light = supernet_alone(run, Path(scratch)) if run in finished else run
                archive(light, KEPT / BEGUN / f"{run.name}.tar.xz", list(state(light)))
    for path in KEPT.glob(f"{BEGUN}/*.tar.xz"):
        if path.name.removesuffix(".tar.xz") not in needed:
            path.unlink()
    if (folder / "study.jsonl").exists():
        known = Records(KEPT / "study.jsonl")
        known.append([row for row in Records(folder / "study.jsonl", write=False).rows if row not in known.rows])


def state(run: Path) -> Iterator[Path]:
    """The files that a run goes on from."""
    for path in sorted(run.rglob("*")):
        parts = path.relative_to(run).parts
        other = path.name.startswith(".") or parts[0] in ("log.txt", "tensorboard", "model", "report")
        if path.is_file() and not other:
            step = path.parent if path.parent.name.startswith("step-") else None
            if step is None or step == checkpoint.steps(path.parent.parent)[-1]:
                yield path


def supernet_alone(run: Path, scratch: Path) -> Path:
    """A folder with what other runs take from a finished one beside its records: the supernet that it searched last,
    without what an optimizer keeps."""
    place = FinishedRun(run).place / "supernet"
    tensors, about = checkpoint.load(place) or ({}, {})
    weights = {name: each for name, each in tensors.items() if name.startswith(("weight.", "average."))}
    target = scratch / run.name
    about = {name: value for name, value in about.items() if name != "sha256"}
    checkpoint.save(target / place.relative_to(run), about.pop("step"), weights, about)
    shutil.copyfile(run / "run.json", target / "run.json")
    return target


def archive(run: Path, target: Path, paths: Iterable[Path]) -> None:
    """Without times, owners and places of this machine, so that the same run gives the same archive."""
    config = read_json(run / "run.json")["config"]
    places = {config["data"]["root"]: "cifar10", (source := config.get("supernet_weights", "")): Path(source).name}
    target.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(target, "w:xz", preset=9) as packed:
        for path in sorted(paths):
            entry = tarfile.TarInfo(str(path.relative_to(run.parent)))
            content = path.read_bytes()
            for place, name in places.items() if path.suffix != ".safetensors" else ():
                content = content.replace(place.encode(), name.encode()) if place else content
            entry.size = len(content)
            packed.addfile(entry, io.BytesIO(content))
    print(f"{target.relative_to(KEPT)}: {target.stat().st_size:,} bytes")


def unpack(folder: Path) -> None:
    """Put the runs that were taken in into a study's folder, but for those that it has; the queue goes on there."""
    paths = [*KEPT.glob("*.tar.xz"), *KEPT.glob(f"{BEGUN}/*.tar.xz")]
    for path in [path for path in paths if not (folder / path.name.removesuffix(".tar.xz")).exists()]:
        with tarfile.open(path) as packed:
            packed.extractall(folder, filter="data")
        about = folder / path.name.removesuffix(".tar.xz") / "run.json"
        run = read_json(about)
        if source := run["config"].get("supernet_weights"):  # as the queue names it, or the run is another one to it
            run["config"]["supernet_weights"] = str(folder / source)
            write_json(about, run)


class Found(NamedTuple):
    """The study and what its finished runs left, in a folder of their names."""

    study: Study
    folder: Path
    searches: list[data.Run]
    outcomes: dict[str, scored.Outcome]  # by run, in the study's order

    @property
    def methods(self) -> dict[str, list[scored.Outcome]]:
        """The seeds of each method."""
        found: dict[str, list[scored.Outcome]] = {}
        for name, outcome in self.outcomes.items():
            found.setdefault(method_of(name), []).append(outcome)
        return found

    def seeds(self, method: str) -> list[data.Run]:
        return [run for run in self.searches if method_of(run.folder.name) == method]

    def searched(self, method: str) -> bool:
        """Whether its networks were found by a search: its own, or that of a run that it reads."""
        runs = [run for run in self.study.runs if method_of(run.name) == method]
        return any(run.command.startswith("search ") or run.needs for run in runs)

    @property
    def supernets(self) -> list[data.Run]:
        """The searches that trained their own, and not another run's once more."""
        return [run for run in self.searches if not run.config["supernet_weights"]]

    def networks(self) -> list[scored.ScoredNetwork]:
        return scored.of_runs(run.folder for run in self.searches)


@contextmanager
def recorded() -> Iterator[Found]:
    study = load_config("cifar10", Study, "study")
    with tempfile.TemporaryDirectory() as scratch:
        for path in sorted(KEPT.glob("*.tar.xz")):
            with tarfile.open(path) as archive:
                archive.extractall(scratch, filter="data")
        done = [run for run in study.runs if Path(scratch, run.name).exists()]
        searches = data.read_all([Path(scratch, run.name) for run in done if run.command.startswith("search ")])
        yield Found(study, Path(scratch), searches, {run.name: scored.outcome(Path(scratch, run.name)) for run in done})


# Networks and the table of scored ones


def publish(found: Found, fresh: Path | None = None) -> None:
    """The card of every network that is published, with what was found beside it; weights from `fresh` where it has
    the run, else those that are there."""
    for run, name in PUBLISHED.items():
        place = fresh / run if fresh and (fresh / run / "model/model.safetensors").exists() else WEIGHTS / name
        if run in found.outcomes and place.exists():
            with tempfile.TemporaryDirectory() as scratch:
                extras = hub.Extras(title=f"{name.partition('.')[0]} on CIFAR-10", beside=beside(found, run))
                made = Path(scratch, name)
                hub.make_repository(hub.find_model(place), made, license="apache-2.0", extras=extras)
                shutil.rmtree(WEIGHTS / name, ignore_errors=True)
                shutil.copytree(made, WEIGHTS / name)
            print(f"{name}: {run}, with {len(extras.beside)} runs beside it")


def beside(found: Found, run: str) -> list[Path]:
    """The other seeds of a run, and all seeds of the methods that it is compared with."""
    with_it = {method_of(run)} | {name for pair in found.study.compared if method_of(run) in pair for name in pair}
    return [found.folder / name for name in found.outcomes if method_of(name) in with_it and name != run]


def counts(scores: Iterable[scored.ScoredNetwork]) -> str:
    """What the table has, for its card."""
    groups: dict[tuple[str, str], list[scored.ScoredNetwork]] = {}
    for each in scores:
        groups.setdefault((each.run, each.space), []).append(each)
    rows = []
    for (run, space), some in groups.items():
        full = [each.accuracy for each in some if each.full and each.accuracy is not None and not each.role]
        trained = ", ".join(f"{each.role} {each.test:.2f}" for each in some if each.role)
        span = f"{min(full):.2f} to {max(full):.2f}" if full else ""
        rows.append((run, space, len([each for each in some if not each.role]), len(full), span, trained))
    head = ("run", "space", "networks", "of these in full", "their accuracy (%)", "trained: test (%)")
    return f"{sum(row[2] for row in rows):,} networks were scored.\n\n{table('', '', head, rows)}"


# The page


def inserted(path: Path, text: str) -> str:
    """The file with the text in its place between the marks."""
    before, _, rest = path.read_text(encoding="utf-8").partition(MARKS[0])
    after = rest.partition(MARKS[1])[2]
    return f"{before}{MARKS[0]}\n\n{text}\n\n{MARKS[1]}{after}"


def page(found: Found, drawn: Iterable[tuple[str, str]]) -> str:
    """All tables, and the figures of these names and labels."""
    sections = [
        ("The networks", summary(found.study, found.study.runs, found.folder)),
        ("Methods under one limit", methods(found)),
        ("Inherited and trained from scratch", inherited(found)),
        ("How well supernets rank", ranks(found)),
        ("The visited spaces", visited(found.supernets)),
        ("What moved", moves(found.supernets)),
        ("S4's gradient", gradients(found.supernets)),
        ("S3's guidelines", "\n\n".join((guidelines(found.seeds("s3")), third_stages(found)))),
        ("Evolution", evolution(found)),
        ("Figures", figures(drawn)),
        ("Every start", started()),
    ]
    return "\n\n".join(f"### {title}\n\n{text}" for title, text in sections if text)


def figures(drawn: Iterable[tuple[str, str]]) -> str:
    """Those of one method below its name; the last one is of all."""
    groups: dict[str, list[str]] = {}
    for name, label in drawn:
        method = name.split("-")[1]
        groups.setdefault(LABELS.get(method, "All"), []).append(f"![{label}]({name}.svg)")
    return "\n\n".join("\n".join([f"#### {title}\n", *links]) for title, links in groups.items())


def together(study: Study) -> list[list[str]]:
    """Methods that are compared with each other: they have one limit."""
    found: list[list[str]] = []
    for one, two in study.compared:
        group = next((group for group in found if {one, two} & set(group)), None)
        if group is None:
            found.append([two, one])
        else:
            group += [name for name in (two, one) if name not in group]
    return found


def told(values: Iterable[float]) -> str:
    low, high = quantity(min(values := list(values))), quantity(max(values))
    return low if low == high else f"{low} to {high}"


def approach(run: data.Run) -> str:
    if source := run.config["supernet_weights"]:
        return f"{run.config['arch_search']['method']} in the last space of {method_of(Path(source).name)}"
    own = {"s3": "S3", "s4": "S4", "none": "space stays"}[run.config["space_search"]["method"]]
    return "GLiT" if run.config["hierarchy"] == "glit" else own


def methods(found: Found) -> str:
    """In the form of S4's Tables 2, 3, 5 and 6."""
    rows = []
    for group in together(found.study):
        texts = {text for name in group for run in found.seeds(name) for text in run.config["arch_search"]["budgets"]}
        limits = [Budget.parse(text) for text in sorted(texts)]
        for name in group:
            outcomes, runs = found.methods.get(name, []), found.seeds(name)
            if not outcomes:
                continue
            own = [run for run in runs if not run.config["supernet_weights"]]
            updates = " / ".join(str(sum(decision.moved for decision in run.decisions)) for run in own) or "–"
            back = " / ".join(str(backtracked(run)) for run in runs if run.config["space_search"]["backtrack"]) or "–"
            how = f"{name} ({approach(runs[0]) if runs else 'designed'})"
            if runs:
                limit = str(limit_of(runs[0])) if limit_of(runs[0]).limits else "none"
            else:
                kept = [limit for limit in limits if all(limit.allows(vars(each)) for each in outcomes)]
                limit = str(max(kept, key=lambda limit: len(limit.limits), default="–"))
            rows.append((
                BODIES[arch_of(found, outcomes[0]).family], how, updates, back, limit,
                told(each.params for each in outcomes), told(each.macs for each in outcomes),
                mean_and_spread([each.test["top1"] for each in outcomes]), len(outcomes),
            ))  # fmt: skip
    forms = "2, 3 and 5" if all(limit_of(run).limits for run in found.searches) else "2, 3, 5 and 6"
    note = (
        f"In the form of S4's Tables {forms}; where there are several seeds, updates of the space and spaces gone"
        " back stand for each, and the accuracy is their mean ± standard deviation. A control that was"
        " designed for as many MACs as others, not for the limit, has none."
    )
    head = ("body", "method", "updates", "back", "limit", "parameters", "MACs", "CIFAR-10 test top-1 (%)", "seeds")
    return table("", textwrap.fill(note, 120), head, rows)


def limit_of(run: data.Run) -> Budget:
    return next((Budget.parse(text) for text in run.config["arch_search"]["budgets"]), Budget())


def backtracked(run: data.Run) -> int:
    """How many spaces a search went back to find networks within its limit."""
    return run.visits[-1].index - max(visit.index for visit in run.visits if visit.searches)


def inherited(found: Found) -> str:
    """In the form of AutoFormer's Table 2."""
    rows = []
    for name in found.methods:
        trained: dict[str, list[dict[str, Any]]] = {}
        for run in found.seeds(name):
            for row in [*run.winners, *(run.result or {}).get("controls", [])]:
                trained.setdefault(row.get("control", ""), []).append(row)
        for control, some in trained.items():
            config = found.seeds(name)[0].config
            method = control.replace("_", " ") or config["arch_search"]["method"]
            known = [[row[key] for row in some if row[key] is not None] for key in ("inherited", "accuracy")]
            tests = [row["test"]["top1"] for row in some]
            rows.append((
                name, f"{config['supernet']['sharing']}, {method}", *(mean_and_spread(v) if v else "–" for v in known),
                mean_and_spread(tests), told(row["params"] for row in some), len(some),
            ))  # fmt: skip
    note = (
        "In the form of AutoFormer's Table 2: the network that was found, with the supernet's weights and trained from"
        " scratch; held-out images but for the last accuracy (%)."
    )
    head = ("method", "weights and search", "inherited", "trained", "trained, test images", "parameters", "seeds")
    return table("", textwrap.fill(note, 120), head, rows)


def trained(found: Found) -> dict[str, list[dict[str, Any]]]:
    """The networks that were trained from scratch, by the run whose supernet has scored them, where it has several."""
    rows: dict[str, list[dict[str, Any]]] = {}
    for run in found.searches:
        some = [row for row in run.winners if None not in (row["inherited"], row["accuracy"])]
        rows.setdefault(run.config["supernet_weights"] or run.folder.name, []).extend(
            row | {"run": run.folder.name} for row in some
        )
    return {source: some for source, some in rows.items() if len(some) > 1}


def ranks(found: Found) -> str:
    """Whether the networks of one supernet have the same order after training."""
    rows, agreed, pairs = [], 0, 0
    for source, some in trained(found).items():
        both = [[(a[key] > b[key]) - (a[key] < b[key]) for a, b in combinations(some, 2)] for key in RANKED]
        signs = [one * two for one, two in zip(*both, strict=True)]
        agreed, pairs = agreed + signs.count(1), pairs + len(signs)
        listed = ", ".join(f"{row['run']} {row['inherited']:.2f} / {row['accuracy']:.2f}" for row in some)
        rows.append((source, listed, f"{signs.count(1)} of {len(signs)}"))
    if not rows:
        return ""
    rows.append(("all", "", f"{agreed} of {pairs}"))
    note = (
        "Networks of one supernet that were trained from scratch: accuracies (%) on the held-out images with the"
        " supernet's weights / after training, and how many pairs of them have the same order in both."
    )
    return table("", textwrap.fill(note, 120), ("supernet", "inherited / trained", "pairs in the same order"), rows)


def visited(runs: Iterable[data.Run]) -> str:
    """How much random networks of a space differ, beside the error of one score, and its best within the limit: in the
    form of S3's Table 5 and S4's Table 4."""
    rows = []
    for run in runs:
        images = run.config["data"]["holdout"]
        budget = limit_of(run)
        for visit in run.visits:
            drawn = [network for network in visit.random if network.full]
            scores, cells = [network.accuracy for network in drawn], ["–"] * 5
            if len(scores) > 1:
                mean, kept = statistics.fmean(scores), sum(budget.allows(network.costs) for network in drawn)
                error = 100 * math.sqrt(mean / 100 * (1 - mean / 100) / images)
                cells = [f"{len(scores)}", f"{kept}", f"{mean:.1f}", f"{statistics.stdev(scores):.2f}", f"{error:.2f}"]
            within = [network for network in visit.networks if network.full and budget.allows(network.costs)]
            best = max(within, key=lambda network: network.accuracy, default=None)
            last = ("–",) * 3
            if best:
                last = quantity(best.costs["params"]), quantity(best.costs["macs"]), f"{best.accuracy:.2f}"
            rows.append((run.folder.name, f"space{visit.index}", *cells, len(within), *last))
    note = (
        "Accuracies (%) on the held-out images, with the weights of that space's supernet. On the left, random networks"
        " of the space, and how many of them keep the limit: where they differ by less than the error of a score, a"
        " search there rests on noise, and where hardly one keeps the limit, the supernet trained other networks than"
        " those that may be chosen. On the right all that were scored in full and keep the limit, in the form of S3's"
        " Table 5 and S4's Table 4 (which train these networks; here they have the supernet's weights)."
    )
    head = ("run", "space", "random networks", "within the limit", "mean", "standard deviation", "error of a score",
            "all within the limit", "best: parameters", "MACs", "accuracy")  # fmt: skip
    return table("", textwrap.fill(note, 120), head, rows)


def moves(runs: Iterable[data.Run]) -> str:
    """What moved, how many slopes are signal, and what would have moved if that were not asked for."""
    rows = []
    for run in runs:
        on_any = replayed(run, significance=0.0) if run.decisions else []
        for index, (decision, other) in enumerate(zip(run.decisions, on_any, strict=True)):
            s3 = decision.record["method"] == "s3"
            slope, error = ("slope", "slope_error") if s3 else ("z", "z_error")
            sloped = [row for row in decision.record["dims"] if row.get(slope) is not None]
            beyond = sum(not is_noise(row[slope], row[error], TWO_ERRORS) for row in sloped)
            told = decision.told().replace("->", "to")
            signal = f"{beyond} of {len(sloped)}"
            rows.append((run.folder.name, f"space{index}", signal, told, "the same" if other == told else other))
    note = (
        "How many slopes exceed two standard errors, what moved, and what would have moved on the same scores if, as in"
        " the papers, slopes need not exceed their errors (`--replay --set space_search.significance=0`)."
    )
    head = ("run", "from", "slopes beyond two errors", "what moved", "would move on any slope")
    return table("", textwrap.fill(note, 120), head, rows)


def replayed(run: data.Run, **settings: Any) -> list[str]:
    """Where the scores of each visited space would have led under other settings of the space search."""
    own, _ = SearchRun.read(run.folder / "run.json")
    other = replace(own, space_search=replace(own.space_search, **settings))
    return [line.partition(": ")[2].replace("->", "to") for line in replayed_moves(other, run.folder)]


def gradients(runs: Iterable[data.Run]) -> str:
    """S4's slopes in the same unit, and where they would have led."""
    rows = []
    for run in runs:
        if run.config["space_search"]["method"] == "s4":
            by_steps = replayed(run, slope_unit="step")
            for index, (decision, move) in enumerate(zip(run.decisions, by_steps, strict=True)):
                raw = decision.record["options"]["slope_unit"] == "raw"
                sloped = [row for row in decision.record["dims"] if row["z"] is not None]
                gains = {row["name"]: row["z"] * (row["step"] * row["unit"] if raw else 1) for row in sloped}
                each = ", ".join(f"{name} {gain:+.2f}" for name, gain in gains.items())
                rows.append((run.folder.name, f"space{index}", each, move))
    note = (
        "S4's Eq. 5 divides by the difference of values, so a channel is weighed against a block. What a step of each"
        " dimension gains in accuracy (points), and where the same scores would have led with slopes per step"
        " (`space_search.slope_unit=step`)."
    )
    return table("", textwrap.fill(note, 120), ("run", "from", "a step gains", "would move, by steps"), rows)


def guidelines(runs: Iterable[data.Run]) -> str:
    """Depth, windows, MLP ratios and Q-K-V widths of S3's spaces and networks, stage by stage."""
    rows = []
    for run in runs:
        groups = [(f"space{visit.index}", [network.arch for network in visit.random]) for visit in run.visits]
        groups.append(("winner", [Arch.from_dict(row["arch"]) for row in run.winners[:1]]))
        for name, archs in groups:
            if archs:
                rows.append((run.folder.name, name, *by_stage(archs)))
    note = (
        "What S3 concludes (§3): the third stage matters most and wants more blocks; windows and MLP ratios grow with"
        " depth; the Q-K-V width may be below the width. Means over random networks of each space, and of the winner,"
        " by stage."
    )
    head = ("run", "", "blocks", "width", "window", "MLP ratio", "Q-K-V width / width")
    return table("", textwrap.fill(note, 120), head, rows)


def third_stages(found: Found) -> str:
    """The first of these guidelines, asked of networks that were trained from scratch."""
    names = next(group for group in together(found.study) if "s3" in group)
    depths: dict[int, list[scored.Outcome]] = {}
    for outcome in (each for name in names for each in found.methods.get(name, [])):
        depths.setdefault(arch_of(found, outcome).depths[2], []).append(outcome)
    rows = [
        (depth, mean_and_spread([each.test["top1"] for each in some]), ", ".join(sorted(each.name for each in some)))
        for depth, some in sorted(depths.items())
    ]
    note = "All networks that were trained from scratch below S3's limit, by the number of blocks in the third stage."
    return table("", note, ("blocks", "test top-1 (%), mean ± standard deviation", "networks"), rows)


def by_stage(archs: Sequence[Arch]) -> Iterator[str]:
    stages = list(zip(*(arch.stages for arch in archs), strict=True))

    def cell(values: Iterable[Iterable[float]]) -> str:
        return " / ".join(f"{statistics.fmean(some):.3g}" for some in values)

    yield cell([stage.depth for stage in same] for same in stages)
    yield cell([stage.embed_dim for stage in same] for same in stages)
    blocks: Any = [[(block, stage.embed_dim) for stage in same for block in stage.blocks] for same in stages]
    yield cell([block.window_size for block, _ in same] for same in blocks)
    yield cell([block.mlp_ratio for block, _ in same] for same in blocks)
    yield cell([block.num_heads * block.head_dim / width for block, width in same] for same in blocks)


def random_searches(found: Found, run: data.Run) -> list[data.Search]:
    """Those of other runs in the supernet that this one ended with."""
    again = [each for each in found.searches if each.config["supernet_weights"] == run.folder.name]
    return [each.visits[-1].searches[0] for each in again]


def evolution(found: Found) -> str:
    rows = []
    for run in found.supernets:
        again = random_searches(found, run)
        drawn = [(search.generations[-1][0]["accuracy"], search.sizes[-1]) for search in again]
        for visit in run.visits:
            for search in (search for search in visit.searches if search.generations):
                bests = [best[0]["accuracy"] for best in search.generations]
                if search.random:
                    drawn.append((search.random[-1][0]["accuracy"], search.sizes[len(search.random) - 1]))
                beside = "; ".join(f"{best:.2f} of {count}" for best, count in drawn) or "–"
                rows.append((
                    run.folder.name, f"space{visit.index}", f"{bests[0]:.2f} of {search.sizes[0]}",
                    f"{bests[-1]:.2f} of {search.sizes[len(bests) - 1]}", beside,
                ))  # fmt: skip
    note = (
        "Best accuracy (%) on the held-out images, with the supernet's weights, and the number of networks it is the"
        " best of: the first generation is drawn at random within the limit, as random search draws all of its own."
    )
    head = ("run", "space", "first generation", "last generation", "random search")
    return table("", textwrap.fill(note, 120), head, rows)


def started() -> str:
    """Every process that was started."""
    rows = []
    for row in starts(KEPT / "study.jsonl"):
        seconds, ended = "–", "cut off"
        if "seconds" in row:
            seconds, ended = f"{row['seconds']:,}", "finished" if row["done"] else "stopped"
        rows.append((row["name"], f"`s3zoo {row['command']}`", seconds, ended))
    return table("", "", ("run", "command", "seconds", ""), rows)


# Figures


def pictures(found: Found) -> Iterator[tuple[str, str, Any]]:
    """Of every method that searches, the figures of the report that the page shows: name of the file, label, figure."""
    with drawing.style():
        for method in found.methods:
            runs = [run for run in found.seeds(method) if not run.config["supernet_weights"]]
            if not runs:
                continue
            moved = {row["name"].partition(".")[2] or row["name"] for run in runs for decision in run.decisions
                     for row in decision.record["dims"] if row["before"] != row["after"]}  # fmt: skip
            wanted = {f"space-{file_name(gene)}" for gene in moved}
            wanted |= {f"accuracy-{next(iter(limit_of(runs[0]).limits), 'params')}"}
            for panel in (spaces.moving, spaces.slopes, spaces.distributions, networks.generations, networks.sizes,
                          networks.audits):  # fmt: skip
                for drawn in panel(data.grouped(runs[:1] if panel is spaces.slopes else runs)):
                    if drawn.name in wanted or panel not in (spaces.moving, networks.sizes):
                        yield f"cifar10-{method}-{drawn.name}", drawn.label, drawn.figure
        if pairs := searched_twice(found):
            yield "cifar10-random", "Best so far of evolution and of random search in the same supernets", rivals(pairs)
        if found_twice := trained(found):
            yield "cifar10-ranks", "Inherited accuracy against that after training", ranked(found_twice)


def searched_twice(found: Found) -> dict[str, dict[str, tuple[data.Search, data.Search]]]:
    """By method and run: its evolution and a random search with as many scores."""
    pairs: dict[str, dict[str, tuple[data.Search, data.Search]]] = {}
    for run in found.supernets:
        own = [search for visit in run.visits for search in visit.searches if search.generations]
        for drawn in random_searches(found, run):
            if drawn.sizes == own[-1].sizes:
                pairs.setdefault(method_of(run.folder.name), {})[run.folder.name] = own[-1], drawn
    return pairs


def rivals(methods: dict[str, dict[str, tuple[data.Search, data.Search]]]) -> Any:
    """A panel for each method, a colour for each seed."""
    figure, panels = drawing.figure(260 * len(methods) + 60, 340, 1, len(methods))
    for ax, (method, pairs) in zip(looks.axes(panels), methods.items(), strict=True):
        for name, searches in pairs.items():
            seed = int(name.rpartition("-")[2])
            for search, (what, line) in zip(searches, SEARCHES.items(), strict=True):
                bests = [best[0]["accuracy"] for best in search.generations]
                ax.plot(search.sizes, bests, **looks.look(seed) | {"linestyle": line, "markersize": 5})
                drawing.tag(ax.lines[-1], "line", f"{name}: {what}\nbest of {search.sizes[-1]}: {bests[-1]:.2f} %")
        ax.set_title(LABELS[method], size=11)
        ax.set_xlabel("networks scored")
    looks.axes(panels)[0].set_ylabel("best so far (% of held-out images)")
    seeds = sorted({int(name.rpartition("-")[2]) for pairs in methods.values() for name in pairs})
    handles = [looks.handle(f"seed {seed}", seed, linestyle="") for seed in seeds]
    handles += [looks.handle(what, 6, marker="", linestyle=line) for what, line in SEARCHES.items()]
    looks.legend(figure, handles, 6)
    return figure


def ranked(by_supernet: dict[str, list[dict[str, Any]]]) -> Any:
    """A line through the networks of each supernet: it rises where the supernet ranks as training does."""
    figure, ax = drawing.figure(520, 400)
    handles = []
    for number, (source, some) in enumerate(by_supernet.items()):
        some = sorted(some, key=lambda row: row["inherited"])
        tau = rank_correlation(*([row[key] for row in some] for key in RANKED))
        ax.plot(*([row[key] for row in some] for key in RANKED), linewidth=1, markersize=7, **looks.look(number))
        said = [f"{row['run']}\ninherited {row['inherited']:.2f} %, trained {row['accuracy']:.2f} %" for row in some]
        drawing.tag(ax.lines[-1], "line", "\n".join(said))
        handles.append(looks.handle(f"{source} (τ {tau:.2f})", number))
    ax.margins(0.08)
    ax.set(xlabel="with the supernet's weights", ylabel="trained from scratch")
    ax.set_title("Held-out accuracy (%) of networks that share a supernet")
    looks.legend(figure, handles)
    return figure


@drawing.style()
def front(found: Found) -> str:
    """The front page's picture: test accuracies of found networks beside those designed by hand, a row for each method
    and a mark for each seed, methods with one limit together. What others find in a method's supernet is left out, and
    what has no limit."""
    from matplotlib.lines import Line2D

    hidden = [run for run in found.searches if run.config["supernet_weights"] or not limit_of(run).limits]
    shown = [name for name in found.methods if name not in {method_of(run.folder.name) for run in hidden}]
    groups = [[name for name in group if name in shown] for group in together(found.study)]
    groups += [[name] for name in shown if not any(name in group for group in groups)]
    groups = [group for group in groups if group]
    rows = sum(map(len, groups)) + 0.5 * (len(groups) - 1)
    figure, ax = drawing.figure(520, 120 + round(29 * rows))
    ax.set_title("CIFAR-10: test top-1 (%)")
    card, place, ticks = drawing.colour("card"), 0.0, {}
    for group in groups:
        for method in group:
            outcomes, searched = found.methods[method], found.searched(method)
            family = arch_of(found, outcomes[0]).family
            shade = COLOURS[family][0]
            for number, each in enumerate(outcomes):
                y = place + 0.26 * (number - (len(outcomes) - 1) / 2)
                top1, low, high = each.test["top1"], each.test["low"], each.test["high"]
                ax.plot([low, high], [y, y], color=shade, linewidth=1)
                (mark,) = ax.plot(
                    top1, y, FAMILIES[family].marker, color=shade if searched else card, markersize=7,
                    markeredgecolor=card if searched else shade, markeredgewidth=0.5 if searched else 1.5, zorder=3,
                )  # fmt: skip
                sizes = f"{quantity(each.params)} parameters, {quantity(each.macs)} MACs"
                says = f"{each.name}\n{top1:.2f} % ({low:.2f} to {high:.2f})\n{sizes}"
                drawing.tag(mark, "point", says, name=each.name)
            sizes = f"{told(each.params for each in outcomes)}, {told(each.macs for each in outcomes)} MACs"
            ticks[place] = f"{LABELS.get(method, method)}\n{sizes}"
            place += 1
        place += 0.5
    ax.set_yticks(list(ticks), list(ticks.values()), size=9)
    ax.set_ylim(place - 1, -0.5)
    ax.grid(visible=False, axis="y")
    ax.margins(x=0.05)
    ax.set_xlabel("% of 10,000 test images; bars: 95 % intervals")
    soft = drawing.colour("soft")
    kinds = {"found by a search": (soft, card, 0.5), "designed by hand": (card, soft, 1.5)}
    handles = [
        Line2D([], [], linestyle="", marker="o", color=face, markeredgecolor=edge, markeredgewidth=width, label=name)
        for name, (face, edge, width) in kinds.items()
    ]
    figure.legend(handles=handles, loc="outside lower center", ncols=2)
    label = "Test accuracy on CIFAR-10 of networks that searches found and of networks designed by hand"
    return drawing.svg(figure, "cifar10", label=label, colours=COLOURS, standalone=True)


def arch_of(found: Found, outcome: scored.Outcome) -> Arch:
    return Arch.from_dict(read_json(found.folder / outcome.name / "model/config.json")["model_args"]["arch"])


if __name__ == "__main__":
    main()
