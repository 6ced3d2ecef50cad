"""The figures of docs/cifar10.md and the front page's picture, from what was kept of the CIFAR-10 study's runs."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from cifar10_runs import LABELS, RANKED, Found, arch_of, limit_of, random_searches, together, told, trained

from s3zoo import drawing
from s3zoo.drawing import quantity
from s3zoo.families import FAMILIES
from s3zoo.search.report import data, looks, networks, spaces
from s3zoo.search.report.looks import file_name
from s3zoo.search.space_search import rank_correlation
from s3zoo.study import method_of
from s3zoo.zoo.page import COLOURS

SEARCHES = {"evolution": "-", "random search": ":"}


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
                y = place + 0.78 / max(3, len(outcomes)) * (number - (len(outcomes) - 1) / 2)
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
