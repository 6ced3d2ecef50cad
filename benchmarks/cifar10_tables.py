"""The tables of docs/cifar10.md, from what was kept of the CIFAR-10 study's runs."""

from __future__ import annotations

import math
import statistics
import textwrap
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import combinations
from pathlib import Path
from typing import Any

from cifar10_runs import KEPT, LABELS, RANKED, Found, arch_of, limit_of, random_searches, together, told, trained

from s3zoo import scored
from s3zoo.arch import Arch
from s3zoo.cards import table
from s3zoo.drawing import mean_and_spread, quantity
from s3zoo.search.budget import Budget
from s3zoo.search.config import SearchRun
from s3zoo.search.moves import replayed_moves
from s3zoo.search.report import data
from s3zoo.search.space_search import SpaceSearch, is_noise
from s3zoo.study import method_of, starts, summary

TWO_ERRORS = SpaceSearch(significance=2)
BODIES = {"s3": "Swin", "autoformer": "ViT", "glit": "GLiT", "shunted": "Shunted"}


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
    """Those of one method below its name, those of all at the end; before them, how to read them."""
    note = (
        "Of each method over its seeds, as `s3zoo report` draws them: the choices of every dimension in the visited"
        " spaces; what moved a space of the first seed, with standard errors (triangles point where a dimension went,"
        " hollow marks have too few samples for an error); the share of a space's random networks with at most an error"
        " (bands: bootstrap samples, or the lowest to the highest seed); the best network so far of the search; every"
        " scored network with the Pareto front and the winner (accuracies of several spaces are those of several"
        " supernets; hollow: estimates of racing)."
    )
    groups: dict[str, list[str]] = {}
    for name, label in drawn:
        method = name.split("-")[1]
        groups.setdefault(LABELS.get(method, "All"), []).append(f"![{label}]({name}.svg)")
    shown = ("\n".join([f"#### {title}\n", *links]) for title, links in groups.items())
    return "\n\n".join([textwrap.fill(note, 120), *shown])


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
            best = max(within, key=lambda network: (network.accuracy, -network.costs["params"]), default=None)
            last = ("–",) * 3
            if best:
                last = quantity(best.costs["params"]), quantity(best.costs["macs"]), f"{best.accuracy:.2f}"
            rows.append((run.folder.name, f"space{visit.index}", *cells, len(within), *last))
    note = (
        "Accuracies (%) on the held-out images, with the weights of that space's supernet. On the left, random networks"
        " of the space, and how many of them keep the limit: where they differ by less than the error of a score, a"
        " search there rests on noise, and where hardly one keeps the limit, the supernet trained other networks than"
        " those that may be chosen. On the right how many were scored in full and keep the limit, and the best of them"
        " (of equals the smaller one), in the form of S3's Table 5 and S4's Table 4 (which train these networks; here"
        " they have the supernet's weights)."
    )
    head = ("run", "space", "random networks", "within the limit", "mean", "standard deviation", "error of a score",
            "scored within the limit", "best: parameters", "MACs", "accuracy")  # fmt: skip
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
        " the papers, slopes need not exceed their errors (`s3zoo search --replay --out runs/cifar10/RUN --set"
        " space_search.significance=0`)."
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
        " (`s3zoo search --replay --out runs/cifar10/RUN --set space_search.slope_unit=step`)."
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
        (depth, mean_and_spread([each.test["top1"] for each in some]), told(each.params for each in some),
         ", ".join(sorted(each.name for each in some)))
        for depth, some in sorted(depths.items())
    ]  # fmt: skip
    note = (
        "All networks that were trained from scratch below S3's limit, by the number of blocks in the third stage. They"
        " differ in other dimensions, too, and in size."
    )
    head = ("blocks", "test top-1 (%), mean ± standard deviation", "parameters", "networks")
    return table("", textwrap.fill(note, 120), head, rows)


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
