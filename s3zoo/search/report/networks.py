"""Figures of the networks of a search: found, weighed, trained, and what they took. Each is named as its files are."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from s3zoo import drawing
from s3zoo.arch import Arch
from s3zoo.drawing import colour, quantity, tag
from s3zoo.picture import picture
from s3zoo.search.report import data, looks
from s3zoo.search.report.data import Group, Network, Run, Visit
from s3zoo.search.report.looks import HIGH, METRICS, WIDE, Drawn
from s3zoo.search.space_search import rank_correlation

TOP = 50  # networks of a generation that are drawn (AutoFormer Fig. 6)


# Search


def generations(groups: Sequence[Group]) -> Iterator[Drawn]:
    """Best so far and the best networks of every generation, with random search beside it (AutoFormer Fig. 6)."""
    visits = [visit for group in groups for run in group.runs for visit in run.visits]
    places = {(visit.index, i): search.budget for visit in visits for i, search in enumerate(visit.searches)}
    alone = sum(len(group.runs) for group in groups) == 1
    for (index, number), budget in places.items():
        figure, ax = drawing.figure(WIDE, HIGH)
        handles = []
        for place, group in enumerate(groups):
            searches = [
                run.visits[index].searches[number] for run in group.runs
                if index < len(run.visits) and number < len(run.visits[index].searches)
            ]  # fmt: skip
            searches = [search for search in searches if search.generations]
            if not searches:
                continue
            xs, curves = searches[0].sizes, [[rows[0]["accuracy"] for rows in s.generations] for s in searches]
            spread = looks.banded(ax, xs, curves, **looks.line_look(place), linewidth=2)
            if not alone:
                ends = [f"{low:.2f} to {high:.2f}" if len(curves) > 1 else f"{low:.2f}" for low, _, high in spread]
                points = ax.scatter(xs[: len(ends)], [mean for _, mean, _ in spread], s=30, **looks.mark_look(place))
                tag(points, "point", [
                    f"{group.label}\nbest of {size} networks: {end} %" for size, end in zip(xs, ends, strict=False)
                ])  # fmt: skip
                handles.append(looks.handle(group.label, place))
                continue
            (run,), (search,) = group.runs, searches
            visit, method = run.visits[index], run.config["arch_search"]["method"]
            _dots(ax, xs, search.generations, visit, place)
            handles.append(looks.handle("random search" if method == "random" else method, place))
            if draws := data.random_search(visit, search, TOP):
                bests = [drawn[0].accuracy for drawn in draws]
                ax.plot(xs[: len(draws)], bests, **looks.line_look(1), linewidth=2)
                rows = [[{"key": n.key, "accuracy": n.accuracy, "network": n} for n in drawn] for drawn in draws]
                _dots(ax, xs, rows, visit, 1)
                handles.append(looks.handle("random search", 1))
        if not handles:
            continue
        ax.margins(0.06)
        looks.counts(ax.xaxis)
        ax.set(xlabel="networks scored", ylabel="accuracy on the held-out images (%)")
        ax.set_title(f"space{index}" + (f": {budget}" if budget else ""), size=12)
        looks.legend(figure, handles, 2 if alone else 1)
        name = f"search-space{index}" + (f"-budget{number}" if number else "")
        yield Drawn(name, f"Best so far in space{index} {budget}", figure)


def _dots(ax: Any, sizes: Sequence[int], found: Sequence[Sequence[dict[str, Any]]], visit: Visit, number: int) -> None:
    """The best networks so far at each of the sizes; one that stays is named where it comes in, then not again."""
    known = {network.key: network for network in visit.networks}
    seen: set[str] = set()
    new, old, texts = [], [], []
    for generation, (size, rows) in enumerate(zip(sizes, found, strict=False), 1):
        for row in rows[:TOP]:
            network = row.get("network") or known.get(row["key"])
            if row["key"] in seen or network is None:
                old.append((size, row["accuracy"]))
                continue
            seen.add(row["key"])
            new.append((size, row["accuracy"]))
            texts.append(looks.says(network, f"since generation {generation}"))
    style = looks.mark_look(number) | {"linewidths": 0}
    if old:
        ax.scatter(*zip(*old, strict=True), s=8, alpha=0.3, **style)
    if new:
        tag(ax.scatter(*zip(*new, strict=True), s=26, alpha=0.9, **style), "point", texts)


def sizes(groups: Sequence[Group]) -> Iterator[Drawn]:
    """Accuracy against each cost of all scored networks, with the Pareto front and the winners (AutoFormer Fig. 7)."""
    metrics = {m for g in groups for r in g.runs for v in r.visits for n in v.networks for m in n.costs}
    for metric in (metric for metric in METRICS if metric in metrics):
        for group in groups:
            networks = [(visit.index, n) for run in group.runs for visit in run.visits for n in visit.networks]
            networks = [(index, n) for index, n in networks if metric in n.costs]
            if not networks:
                continue
            figure, ax = drawing.figure(WIDE, HIGH)
            handles = []
            for index in sorted({index for index, _ in networks}):
                full = sorted((n for i, n in networks if i == index and n.full), key=lambda n: n.costs[metric])
                if full:
                    xs, ys = [n.costs[metric] for n in full], [n.accuracy for n in full]
                    points = ax.scatter(xs, ys, s=16, alpha=0.65, linewidths=0, **looks.mark_look(index))
                    tag(points, "point", [looks.says(n, f"space{index}") for n in full])
                    handles.append(looks.handle(f"space{index}", index, linestyle=""))
            estimates = sorted((n for _, n in networks if not n.full), key=lambda n: n.costs[metric])
            if estimates:
                hollow: dict[str, Any] = {"facecolors": "none", "edgecolors": colour("soft"), "linewidths": 0.8}
                xs, ys = [n.costs[metric] for n in estimates], [n.accuracy for n in estimates]
                points = ax.scatter(xs, ys, s=16, marker="o", **hollow)
                tag(points, "point estimate", [looks.says(n) for n in estimates])
                handles.append(looks.handle("racing's estimates", 6, linestyle="", marker="o", markerfacecolor="none"))
            for run in group.runs:
                _front(ax, run, metric)
            handles.append(looks.handle("Pareto front", 0, marker="", color=colour("ink"), linestyle="-"))
            if any(metric in winner for run in group.runs for winner in run.winners):
                handles.append(looks.handle("winner", 0, marker="*", color=colour("red"), linestyle="", markersize=11))
            ax.margins(0.06)
            if metric != "latency":
                looks.counts(ax.xaxis)
            ax.set(xlabel=METRICS[metric], ylabel="accuracy on the held-out images (%)")
            title = f"Accuracy against {METRICS[metric]}"
            ax.set_title(f"{group.label}" if len(groups) > 1 else title, size=12)
            looks.legend(figure, handles, 4)
            label = f"{title} of all scored networks of {group.label}, with the Pareto front and the winner"
            yield Drawn(looks.method_name(f"accuracy-{metric}", groups, group), label, figure)


def _front(ax: Any, run: Run, metric: str) -> None:
    best = data.front([network for visit in run.visits for network in visit.networks], metric)
    xs, ys = [network.costs[metric] for network in best], [network.accuracy for network in best]
    ax.step(xs, ys, where="post", color=colour("ink"), linewidth=1.2)
    if best:
        points = ax.scatter(xs, ys, s=22, facecolors="none", edgecolors=colour("ink"), linewidths=1)
        tag(points, "front", [looks.says(network, "on the Pareto front") for network in best])
    for row in run.winners:
        if metric not in row or row["inherited"] is None:
            continue
        network = Network(Arch.from_dict(row["arch"]), row["inherited"], {m: row[m] for m in METRICS if m in row})
        finished = [] if row.get("accuracy") is None else [f"as finished {row['accuracy']:.2f} % held-out"]
        test = [f"{row['test']['top1']:.2f} % of the test images"] if "test" in row else []
        (star,) = ax.plot(row[metric], row["inherited"], "*", color=colour("red"), markeredgecolor=colour("card"),
                          markersize=15, zorder=4)  # fmt: skip
        tag(star, "winner", looks.says(network, f"winner {row['budget']}".strip(), *finished, *test))


# Weights


def supernets(groups: Sequence[Group]) -> Iterator[Drawn]:
    """The loss of every supernet and the accuracies of three of its networks after each epoch (AutoFormer Fig. 4)."""
    for group in groups:
        trained: dict[int, list[list[dict[str, Any]]]] = {}
        for visit in (visit for run in group.runs for visit in run.visits if visit.epochs):
            trained.setdefault(visit.index, []).append(visit.epochs)
        found = sorted(trained.items())
        if not found:
            continue
        figure, (loss, accuracy) = drawing.figure(WIDE + 60, 300, 1, 2)
        lines = {"largest": "-", "random": "-.", "smallest": ":"}
        for index, seeds in found:
            for ax, key, style in [(loss, "loss", "-"), *((accuracy, key, line) for key, line in lines.items())]:
                curves = [[row[key] for row in epochs] for epochs in seeds if all(key in row for row in epochs)]
                if not curves:
                    continue
                longest = range(1, 1 + max(map(len, curves)))
                style_of = looks.look(index) | {"linestyle": style, "markersize": 4}
                spread = looks.banded(ax, longest, curves, **style_of)
                unit, what = ("", "loss") if key == "loss" else (" %", f"{key} network")
                ends = f"{spread[0][1]:.3g}{unit} after epoch 1, {spread[-1][1]:.3g}{unit} after epoch {len(spread)}"
                tag(ax.lines[-1], "line", f"space{index}: {what}\n{ends}")
        for ax, title in ((loss, "training loss"), (accuracy, "held-out accuracy (%)")):
            ax.set_title(title, size=11)
            ax.set_xlabel("epoch")
            looks.whole_numbers(ax.xaxis)
        handles = [looks.handle(f"space{index}", index, linestyle="-") for index, _ in found]
        handles += [looks.handle(name, 6, marker="", linestyle=line) for name, line in lines.items()]
        if len(groups) > 1:
            figure.suptitle(group.label, size=12, weight="bold")
        looks.legend(figure, handles, 6)
        name = looks.method_name("supernet", groups, group)
        yield Drawn(name, f"Loss and accuracies of the supernets of {group.label}", figure)


def audits(groups: Sequence[Group]) -> Iterator[Drawn]:
    """The same networks with inherited weights, finetuned and retrained (S3 Fig. 5)."""
    for group in groups:
        for run in group.runs:
            rows = next((visit.audit for visit in reversed(run.visits) if visit.audit), [])
            if not rows:
                continue
            rows = sorted(rows, key=lambda row: row["inherited"])
            figure, ax = drawing.figure(WIDE, 320)
            handles = []
            modes = {"inherited": "inherited", "finetune": "finetuned", "retrain": "retrained"}
            for number, (mode, name) in enumerate(modes.items()):
                own = [row[mode] for row in rows]
                points = ax.scatter(range(1, len(rows) + 1), own, s=45, **looks.mark_look(number))
                tag(points, "point", [
                    f"{row['arch'].key}\n{name} {row[mode]:.2f} %\n{data.told(row['arch'])}" for row in rows
                ])  # fmt: skip
                tau = ""
                if mode != "inherited" and len(rows) > 1:
                    tau = f" (τ {rank_correlation([row['inherited'] for row in rows], own):.2f})"
                handles.append(looks.handle(name + tau, number, linestyle=""))
            for place, row in enumerate(rows, 1):
                known = [row[mode] for mode in modes]
                ax.plot([place, place], [min(known), max(known)], color=colour("edge"), linewidth=1.5, zorder=0)
            ax.margins(0.1)
            looks.whole_numbers(ax.xaxis)
            ax.set(xlabel="networks, by inherited accuracy", ylabel="held-out accuracy (%)")
            looks.legend(figure, handles)
            name = looks.run_name("audit", groups, group, run)
            yield Drawn(name, f"Networks inherited, finetuned and retrained in {group.label}", figure)


# Genomes and costs


def genomes(groups: Sequence[Group]) -> Iterator[Drawn]:
    """The winners, and beside them the network of the same kind that people designed."""
    seen = set()
    for group in groups:
        for run in group.runs:
            for number, row in enumerate(run.winners):
                arch = Arch.from_dict(row["arch"])
                name = looks.run_name("genome", groups, group, run)
                what = f"Winner of {group.label}" + (f", {row['budget']}" if row["budget"] else "")
                seed = f", seed {run.seed}" if name != "genome" else ""
                name += f"-budget{number}" if number else ""
                label = f"{what}{seed}: {quantity(row['params'])} parameters"
                yield Drawn(name, label, picture(arch, (run.img_size,) * 2))
                for hand, other, size in data.designed(run, arch, row):
                    if other not in seen:
                        seen.add(other)
                        label = f"{hand}, designed by hand"
                        yield Drawn(f"genome-{looks.file_name(hand)}", label, picture(other, (size, size)))


def spent(groups: Sequence[Group]) -> Iterator[Drawn]:
    """Images seen and seconds taken by each phase; over several seeds the mean, with the range."""
    for group in groups:
        counted, timed = [data.images(run) for run in group.runs], [run.seconds for run in group.runs]
        names = list(dict.fromkeys(name for run in group.runs for name, _ in data.phases(run)))
        names = [name for name in names if any(name in each for each in counted + timed)]  # type: ignore[operator]
        if not names:
            continue
        both: list[tuple[Any, str, str]] = [(counted, "images x networks", "blue"), (timed, "seconds", "amber")]
        both = [each for each in both if any(each[0])]
        figure, found_axes = drawing.figure(300 * len(both), 90 + 24 * len(names), 1, len(both))
        for ax, (found, title, shade) in zip(first_of := looks.axes(found_axes), both, strict=True):
            for place, name in enumerate(names):
                values = [each[name] for each in found if name in each]
                if not values:
                    continue
                mean = sum(values) / len(values)
                (bar,) = ax.barh(place, mean, height=0.6, color=colour(shade))
                number = quantity(mean) if title != "seconds" else f"{mean:.3g}"
                tag(bar, "bar", f"{name}\n{number} {title}")
                ax.annotate(number, (mean, place), xytext=(4, 0), textcoords="offset points", va="center", size=9,
                            annotation_clip=False)  # fmt: skip
                if len(values) > 1:
                    ax.plot([min(values), max(values)], [place, place], color=colour("ink"), linewidth=1)
            ax.set_title(title, size=11)
            ax.set_yticks(range(len(names)), names if ax is first_of[0] else [""] * len(names))
            ax.set_ylim(len(names) - 0.4, -0.6)
            ax.grid(False, axis="y")
            ax.margins(x=0.2)
            looks.counts(ax.xaxis)
        if len(groups) > 1:
            figure.suptitle(group.label, size=12, weight="bold")
        name = looks.method_name("spent", groups, group)
        yield Drawn(name, f"Images and seconds spent per phase in {group.label}", figure)
