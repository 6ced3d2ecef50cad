"""The page of a report: panels of figures and tables, in body.html and with page.css beside this file."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from string import Template

from s3zoo import drawing
from s3zoo.drawing import mean_and_spread, quantity, told_control, told_doubts, where_measured
from s3zoo.files import replacing, write_text
from s3zoo.search.report import data, networks, spaces
from s3zoo.search.report.data import Group, Run
from s3zoo.search.report.looks import Drawn

HERE = Path(__file__).parent
KINDS = ("pdf", "svg")
Draw = Callable[[Sequence[Group]], Iterable[Drawn]]


@dataclass(frozen=True)
class Panel:
    name: str
    title: str
    about: str  # how to read it
    draw: tuple[Draw, ...] = ()
    table: Callable[[Sequence[Group]], str] = lambda groups: ""
    lacking: str = ""  # what to say where there is nothing to show


def write(runs: Sequence[Run], folder: Path) -> Path:
    """Write report.html and figures/*.pdf, *.svg into a folder; the path of the page."""

    def save(drawn: Drawn) -> None:
        for kind in KINDS:
            with replacing(folder / "figures" / f"{drawn.name}.{kind}") as temporary:
                drawing.save(drawn.figure, temporary, kind)

    path = folder / "report.html"
    write_text(path, page(runs, save))
    return path


def page(runs: Sequence[Run], each: Callable[[Drawn], None] = lambda drawn: None) -> str:
    """The whole page; `each` is called with every figure on it."""
    groups, parts = data.grouped(runs), []
    with drawing.style():
        for panel in PANELS:
            shown = []
            for drawn in (drawn for draw in panel.draw for drawn in draw(groups)):
                svg = drawing.svg(drawn.figure, drawn.name, label=drawn.label)
                links = " ".join(f'<a href="figures/{drawn.name}.{kind}">{kind.upper()}</a>' for kind in KINDS)
                caption = f"<figcaption>{escape(drawn.label)} <span>{links}</span></figcaption>"
                width = drawn.figure.get_figwidth() * 72
                kind = ' class="wide"' if width > 540 else ""
                shown.append(f'<figure{kind} style="--width: {1.15 * width:.0f}px">{svg}{caption}</figure>')
                each(drawn)
            parts.append(_section(panel, shown, panel.table(groups)))
    title = f"s3zoo: {', '.join(dict.fromkeys(run.name for run in runs))}"
    body = Template((HERE / "body.html").read_text(encoding="utf-8")).substitute(
        title=escape(title),
        state="\n".join(f"<li>{escape(line)}</li>" for line in state(runs)),
        contents="\n".join(f'<li><a href="#{panel.name}">{escape(panel.title)}</a></li>' for panel in PANELS),
        panels="\n".join(parts),
    )
    return drawing.page(title, body, styles=(HERE / "page.css").read_text(encoding="utf-8"))


def _section(panel: Panel, shown: list[str], table: str) -> str:
    empty = "" if shown or table else f'<p class="lacks">{escape(panel.lacking)}</p>'
    grid = f'<div class="figures">\n{"".join(shown)}\n</div>' if shown else ""
    return (
        f'<section id="{panel.name}" aria-labelledby="{panel.name}-title">\n<h2 id="{panel.name}-title">'
        f'{escape(panel.title)}</h2>\n<p class="note">{escape(panel.about)}</p>\n{grid}{table}{empty}\n</section>'
    )


def state(runs: Sequence[Run]) -> list[str]:
    """For each run whether it is finished, else how far it is and what is still to come."""
    lines = []
    for run in runs:
        name = f"{run.name}, seed {run.seed}"
        if run.result is not None:
            lines.append(f"{name}: finished.")
            continue
        shares = data.phases(run)
        under_way = [f"{phase} ({100 * share:.0f} %)" for phase, share in shares if 0 < share < 1]
        lacks = [phase for phase, share in shares if not share]
        parts = [f"under way: {', '.join(under_way)}"] if under_way else []
        parts += [f"not begun: {', '.join(lacks)}"] if lacks else []
        lines.append(f"{name}: not finished; {'; '.join(parts) or 'only the result is missing'}.")
    return lines


# Tables


def table(head: Sequence[str], rows: Sequence[Sequence[str]], label: str) -> str:
    """The first column has the names, the others numbers or words."""
    if not rows:
        return ""
    cells = "".join(f'<th scope="col">{escape(name)}</th>' for name in head)
    lines = "\n".join(
        f'<tr><th scope="row">{escape(row[0])}</th>' + "".join(f"<td>{escape(cell)}</td>" for cell in row[1:]) + "</tr>"
        for row in rows
    )
    return (
        f'<div class="scroll" tabindex="0" role="region" aria-label="{escape(label)}"><table><thead><tr>{cells}</tr>'
        f"</thead><tbody>\n{lines}\n</tbody></table></div>"
    )


def percent(value: float | None) -> str:
    return "–" if value is None else f"{value:.2f}"


def winners(groups: Sequence[Group]) -> str:
    rows = []
    for group in groups:
        tests: dict[str, list[float]] = {}  # of winners, by budget
        for run in group.runs:
            for row in [*run.winners, *(run.result or {}).get("controls", [])]:
                control, test = f", control: {told_control(row)}" if "control" in row else "", row.get("test")
                if test and not control:
                    tests.setdefault(row["budget"], []).append(test["top1"])
                interval = f"{test['top1']:.2f} ({test['low']:.2f} to {test['high']:.2f})" if test else "–"
                rows.append((
                    f"{group.label}, seed {run.seed}{control}", row["budget"] or "–", percent(row["inherited"]),
                    percent(row["accuracy"]), interval, quantity(row["params"]), quantity(row["macs"]),
                ))  # fmt: skip
        for budget, known in tests.items():
            if len(known) > 1 and len(group.runs) > 1:
                name = f"{group.label}, mean of {len(known)} seeds"
                rows.append((name, budget or "–", "–", "–", mean_and_spread(known), "–", "–"))
    head = ("run", "budget", "inherited %", "finished %", "test %", "parameters", "MACs")
    return table(head, rows, "Winners")


def finished(groups: Sequence[Group]) -> str:
    """AutoFormer's Table 4: what further training changes."""
    rows = []
    for run in (run for group in groups for run in group.runs):
        mode = {"inherit": "as inherited", "finetune": "finetuned", "retrain": "retrained"}[run.config["final"]["mode"]]
        for visit in run.visits:
            for search in visit.searches:
                for row, score in zip(search.chosen, search.finished, strict=False):
                    rows.append((f"{row['key']}, seed {run.seed}", f"space{visit.index} {search.budget}",
                                 percent(row["accuracy"]), mode, percent(score)))  # fmt: skip
    return table(("network", "where", "inherited %", "then", "held-out %"), rows, "Networks as finished")


def savings(groups: Sequence[Group]) -> str:
    found = [(run, row) for group in groups for run in group.runs for row in data.saving(run)]
    rows = [
        (f"seed {run.seed}, space{row['space']}", f"{row['networks']}", f"{row['full']}", f"{row['images']:,}",
         f"{row['without']:,}", f"{100 * (1 - row['images'] / row['without']):.1f} %")
        for run, row in found if row["without"]
    ]  # fmt: skip
    head = ("racing", "networks", "scored in full", "images seen", "without racing", "saved")
    latencies = [
        (f"seed {run.seed}, {winner['budget']}", f"{(check or {}).get('promised', winner['latency']):.3g}",
         f"{ms:.3g}" if (ms := run.latency.get(str(index))) is not None else "not measured",
         "; ".join(filter(None, (where_measured(check), told_doubts(check)))) if check else "–")
        for group in groups for run in group.runs for index, winner in enumerate(run.winners) if "latency" in winner
        for check in (winner.get("latency_check"),)
    ]  # fmt: skip
    of_latency = ("latency of the winner", "promised (ms)", "measured (ms)", "where")
    return table(head, rows, "What racing saved") + table(of_latency, latencies, "Latency")


def origins(groups: Sequence[Group]) -> str:
    parts = []
    for run in (run for group in groups for run in group.runs):
        about = run.about
        versions = ", ".join(f"{name} {version}" for name, version in about.get("versions", {}).items())
        facts = {
            "Command": about.get("command") or f"a config of one's own ({run.name}); its settings are below",
            "Versions": versions or "not recorded",
            "Commit": about.get("commit") or "not a clone",
            "Data": f"{run.config['data']['name'] or 'images in folders'}, fingerprint {about.get('data', 'unknown')}",
            "Held out": f"{run.config['data']['holdout']} images",
        }
        rows = "".join(f"<dt>{name}</dt><dd><code>{escape(str(text))}</code></dd>" for name, text in facts.items())
        settings = escape(json.dumps(run.config, indent=1))
        parts.append(
            f'<h3>{escape(run.name)}, seed {run.seed}</h3><dl class="origin">{rows}</dl>'
            f"<details><summary>All settings</summary><pre>{settings}</pre></details>"
        )
    return "".join(parts)


PANELS = (
    Panel(
        "result", "Result",
        "The best network of every budget, and what it is compared with: percent of the held-out images with the"
        " supernet's weights and as finished, and of the test images, with the 95 % interval.",
        table=winners, lacking="No network has been found yet.",
    ),
    Panel(
        "space", "The space",
        "The choices of every dimension in each visited space (as S3's Fig. 2); dashed lines join the lowest and the"
        " highest ones. Then what moved it, with standard errors: triangles point where a dimension went, hollow"
        " marks have too few samples for an error.",
        (spaces.moving, spaces.slopes, spaces.coherence), lacking="No space has been visited yet.",
    ),
    Panel(
        "errors", "How good the spaces are",
        "The share of a space's networks with at most an error (as S3's Fig. 6). Higher and further left is better."
        " Bands: 95 of 100 bootstrap samples or, over several seeds, the lowest to the highest. Networks are random"
        " ones where the run has them (space_search.random_samples), else those that the space search asked for, else"
        " the first generation of the search, which is drawn within the budget: spaces whose networks were drawn in"
        " different ways do not compare. Then the same by choice in the last space that has such networks, of the first"
        " seed, and the mean error of each choice's top tier (as S3's Fig. 3); networks whose blocks differ in a gene"
        " are left out there.",
        (spaces.distributions, spaces.choices), lacking="No network has been scored in full yet.",
    ),
    Panel(
        "search", "The search",
        "The line is the best network so far, the dots are the 50 best at each generation (as AutoFormer's Fig. 6)."
        " Random search is beside it where the run has it (controls.random_search, or space_search.random_samples), or"
        " where a run with arch_search.method=random is on the page. Only networks that saw all held-out images are"
        " shown.",
        (networks.generations,), lacking="No generation is complete yet.",
    ),
    Panel(
        "sizes", "Accuracy and size",
        "Every scored network with the weights of its supernet, the Pareto front and the winner (as AutoFormer's"
        " Fig. 7). Hollow grey points are estimates of racing; they are on no front. Accuracies of several spaces are"
        " those of several supernets.",
        (networks.sizes,), lacking="No network has been scored yet.",
    ),
    Panel(
        "supernet", "The supernets",
        "Loss of training, and accuracies of the smallest, the largest and a random network on up to 512 held-out"
        " images after each epoch (as AutoFormer's Fig. 4).",
        (networks.supernets,), lacking="No epoch of a supernet is complete, or the supernet was not trained here.",
    ),
    Panel(
        "weights", "Inherited, finetuned, retrained",
        "Accuracies of the same networks with the supernet's weights and after further training (as S3's Fig. 5 and"
        " AutoFormer's Table 4). τ is Kendall's rank correlation with the inherited accuracies; it needs an audit"
        " (space_search.audit).",
        (networks.audits,), finished, "No network has been finished yet.",
    ),
    Panel(
        "genome", "The winner's genome",
        "A column per block, a row per gene, the darker the larger within its row. Beside it a network of the same kind"
        " that people designed, for larger images: compare the shapes.",
        (networks.genomes,), lacking="No network has been found yet.",
    ),
    Panel(
        "costs", "What it took",
        "Images seen, counted once for each network that saw them, and seconds of each phase. Images that recalibrate"
        " batch norms and the looks at a supernet after each epoch are left out.",
        (networks.spent,), savings, "Nothing has been recorded yet.",
    ),
    Panel("origin", "Where it comes from", "What to type to do it again, and what it was done with.", table=origins),
)  # fmt: skip
