"""The figures of a report, drawn with matplotlib from the numbers of `data`; each is named as its files are.

A method (runs that differ in their seed alone) has a colour, a marker and a line style; so has a space where there is
one method. Over several seeds a line is the mean and a band goes from the lowest to the highest.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from s3zoo import drawing
from s3zoo.arch import Arch
from s3zoo.drawing import colour, quantity, tag
from s3zoo.picture import picture
from s3zoo.search.report import data
from s3zoo.search.report.data import Group, Network, Run, Visit
from s3zoo.search.space_search import rank_correlation

TOP = 50  # networks of a generation that are drawn (AutoFormer Fig. 6)
LOOKS = (("blue", "o", "-"), ("amber", "s", "--"), ("green", "^", "-."), ("magenta", "D", ":"), ("teal", "v", "-"),
         ("red", "P", "--"), ("slate", "X", "-."))  # fmt: skip
METRICS = {"params": "parameters", "macs": "MACs", "latency": "latency (ms)"}
WIDE, HIGH = 520, 360


class Drawn(NamedTuple):
    name: str  # of its files
    label: str  # what it shows, in words
    figure: Any


def look(number: int) -> dict[str, Any]:
    name, marker, line = LOOKS[number % len(LOOKS)]
    return {"color": colour(name), "marker": marker, "linestyle": line}


def line_look(number: int) -> dict[str, Any]:
    return {key: value for key, value in look(number).items() if key != "marker"}


def file_name(text: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")


def says(network: Network, *more: str) -> str:
    """What is shown of a network when it is pointed at: its name, its figures, its genes."""
    costs = ", ".join(
        f"{value:.3g} ms" if metric == "latency" else f"{quantity(value)} {METRICS[metric]}"
        for metric, value in network.costs.items()
    )
    kind = "" if network.full else " (racing's estimate)"
    return "\n".join([network.key, f"{network.accuracy:.2f} %{kind}, {costs}", *more, data.told(network.arch)])


def legend(figure: Any, handles: Sequence[Any], columns: int = 3) -> None:
    if handles:
        figure.legend(handles=handles, loc="outside lower center", ncols=min(columns, len(handles)), fontsize=10)


def axes(found: Any) -> list[Any]:
    return list(np.atleast_1d(found).ravel())


def whole_numbers(axis: Any) -> None:
    from matplotlib.ticker import MaxNLocator

    axis.set_major_locator(MaxNLocator(integer=True, nbins=6))


def counts(axis: Any) -> None:
    """Ticks of large numbers as papers print them."""
    from matplotlib.ticker import FuncFormatter, MaxNLocator

    axis.set_major_locator(MaxNLocator(nbins=5, integer=True))
    axis.set_major_formatter(FuncFormatter(lambda value, _: quantity(value) if value > 0 else f"{value:g}"))


# The space


def moving(groups: Sequence[Group]) -> Iterator[Drawn]:
    """The choices of every dimension in every visited space, a figure per gene and a column per stage (S3 Fig. 2)."""
    searched: dict[tuple[str, str], None] = {}  # gene, stage
    for group in groups:
        for run in group.runs:
            for visit in run.visits:
                searched |= {_split(dim.name): None for dim in visit.space.searched}
    for gene in dict.fromkeys(gene for gene, _ in searched):
        stages = sorted(stage for other, stage in searched if other == gene)
        figure, found = drawing.figure(max(300, 60 + 125 * len(stages)), 230, 1, len(stages))
        columns = axes(found)
        for stage, ax in zip(stages, columns, strict=True):
            ax.set_title(stage or gene, size=11)
            whole_numbers(ax.xaxis)
            ax.set_xlabel("space")
            for number, group in enumerate(groups):
                for place, run in enumerate(group.runs):
                    offset = 0.12 * (number - (len(groups) - 1) / 2) + 0.03 * place
                    _trajectory(ax, run, gene, stage, look(number), offset, group.label if len(groups) > 1 else "")
            ax.margins(0.15)
            values = {c for group in groups for run in group.runs for c in _choices(run, gene, stage)}
            if len(values) <= 8:
                ax.set_yticks(sorted(values))
        columns[0].set_ylabel(gene)
        if len(groups) > 1:
            legend(figure, [_handle(group.label, number) for number, group in enumerate(groups)], 1)
        yield Drawn(f"space-{file_name(gene)}", f"Choices of {gene} in every visited space", figure)


def _split(name: str) -> tuple[str, str]:
    """A dimension's gene, and its stage or ""."""
    stage, _, gene = name.rpartition(".")
    return gene, stage


def _choices(run: Run, gene: str, stage: str) -> list[float]:
    return [c for v in run.visits for dim in v.space.dims if _split(dim.name) == (gene, stage) for c in dim.choices]


def _handle(label: str, number: int, **changes: Any) -> Any:
    from matplotlib.lines import Line2D

    return Line2D([], [], label=label, **(look(number) | {"markersize": 6} | changes))


def _trajectory(
    ax: Any, run: Run, gene: str, stage: str, style: dict[str, Any], offset: float, label: str
) -> None:
    name = f"{stage}.{gene}" if stage else gene
    ends = []
    for visit in run.visits:
        dim = next((dim for dim in visit.space.dims if dim.name == name), None)
        if dim is None:
            continue
        x = visit.index + offset
        ends.append((x, dim.choices[0], dim.choices[-1]))
        thick: dict[str, Any] = {"linestyle": "-", "markersize": 6, "linewidth": 3, "alpha": 0.9}
        (mark,) = ax.plot([x] * len(dim.choices), dim.choices, **(style | thick))
        tag(mark, "point", "\n".join(filter(None, [
            f"{label + ', ' if label else ''}space{visit.index}, {name}", ", ".join(f"{c:g}" for c in dim.choices),
            _why(run, visit, name),
        ])))  # fmt: skip
    for low_or_high in (1, 2):
        ax.plot([end[0] for end in ends], [end[low_or_high] for end in ends], color=style["color"], linewidth=1,
                linestyle=(0, (3, 3)), alpha=0.6)  # fmt: skip


def _why(run: Run, visit: Visit, name: str) -> str:
    if visit.index >= len(run.decisions):
        return ""
    rows: list[dict[str, Any]] = run.decisions[visit.index].record["dims"]
    row = next((row for row in rows if row["name"] == name), {})
    slope, error = row.get("slope", row.get("z")), row.get("slope_error", row.get("z_error"))
    if slope is None:
        return row.get("note", "")
    what = "error per step" if "slope" in row else "accuracy per unit"
    spread = "" if error is None else f" ± {error:.2g}"
    moved = "stays" if row["before"] == row["after"] else f"moves to {', '.join(f'{c:g}' for c in row['after'])}"
    return f"slope {slope:.3g}{spread} points of {what}; {moved}"


def slopes(groups: Sequence[Group]) -> Iterator[Drawn]:
    """What moved each space: S3's slopes with the threshold, or S4's gradient with the direction that was taken."""
    every = [(group, run) for group in groups for run in group.runs]
    for number, (group, run) in enumerate(every):
        for index, decision in enumerate(run.decisions):
            rows = [row for row in decision.record["dims"] if row.get("slope", row.get("z")) is not None]
            if not rows:
                continue
            s4 = decision.record["method"] == "s4"
            values = [row["z"] if s4 else row["slope"] for row in rows]
            errors = [row["z_error" if s4 else "slope_error"] or 0.0 for row in rows]
            scale = float(np.linalg.norm(values)) or 1.0 if s4 else 1.0
            figure, ax = drawing.figure(WIDE, 90 + 20 * len(rows))
            places = range(len(rows))
            for place, row, value, error in zip(places, rows, values, errors, strict=True):
                ax.errorbar(value / scale, place, xerr=error / scale, color=colour("slate"), linewidth=1, capsize=2)
                shift = np.sign(sum(row["after"]) / len(row["after"]) - sum(row["before"]) / len(row["before"]))
                sign = {1: "^", -1: "v", 0: "o"}[int(shift)]
                (mark,) = ax.plot(value / scale, place, sign, color=colour("blue" if shift else "slate"), markersize=8)
                before, after = (", ".join(f"{c:g}" for c in row[key]) for key in ("before", "after"))
                what = f"space{index}, {row['name']}\n{value:.3g} ± {error:.2g} points"
                tag(mark, "point", f"{what}\n{before} → {after}")
            ax.axvline(0, color=colour("edge"))
            if not s4:
                settings = decision.record["options"]
                still = (0.0, 1.0) if settings["rounding"] == "floor" else (-0.5, 0.5)  # of the threshold (Eq. 8)
                ax.axvspan(*(settings["tau"] * end for end in still), color=colour("edge"), alpha=0.35, linewidth=0)
            ax.set_yticks(list(places), [row["name"] for row in rows])
            ax.set_ylim(len(rows) - 0.4, -0.6)
            unit = "per step" if decision.record["options"]["slope_unit"] == "step" else "per unit"
            slope = f"slope: points of error {unit}; grey: no move"
            ax.set_xlabel("gradient of accuracy, of length 1" if s4 else slope)
            seed = f", seed {run.seed}" if len(every) > 1 else ""
            ax.set_title(f"space{index}: {'gradient' if s4 else 'slopes'}{seed}", size=11)
            name = f"slopes-space{index}" + (f"-run{number}" if number else "")
            yield Drawn(name, f"What moved space{index} of {group.label}{seed}", figure)


def coherence(groups: Sequence[Group]) -> Iterator[Drawn]:
    """S4: how well the best legal moves agree with the gradient, and how many moves are legal."""
    found = [(group, run) for group in groups for run in group.runs if any("cosine" in d.record for d in run.decisions)]
    if not found:
        return
    figure, ax = drawing.figure(WIDE, 300)
    for number, (group, run) in enumerate(found):
        for index, decision in enumerate(run.decisions):
            record = decision.record
            best = record.get("best", [])
            offset = index + 0.1 * number
            if best:
                points = ax.scatter([offset] * len(best), [move["cosine"] for move in best], s=40, facecolors="none",
                                    edgecolors=look(number)["color"])  # fmt: skip
                tag(points, "point", [
                    f"{group.label}, space{index}: cosine {move['cosine']:.3f}\nlargest network "
                    f"{quantity(move['largest'])}\n"
                    + ", ".join(f"{n} {d:+d}" for n, d in zip(record["moving"], move["direction"], strict=True) if d)
                    for move in best
                ])  # fmt: skip
            if record["cosine"] is not None:
                (mark,) = ax.plot(offset, record["cosine"], **(look(number) | {"linestyle": ""}), markersize=9)
                tag(mark, "point", f"{group.label}, space{index}: taken, cosine {record['cosine']:.3f}")
            ax.annotate(f"{record['legal']} of {record['neighbours']}\nlegal", (offset, 1.04), ha="center", size=9,
                        color=colour("soft"))  # fmt: skip
    ax.set_ylim(-1.05, 1.3)
    ax.margins(x=0.2)
    whole_numbers(ax.xaxis)
    ax.set_xlabel("space that is left")
    ax.set_ylabel("cosine to the gradient")
    yield Drawn("coherence", "Cosine of the best legal moves to the gradient, and the number of legal moves", figure)


# Distributions


def distributions(groups: Sequence[Group]) -> Iterator[Drawn]:
    """The error distribution of every visited space, a figure per method (S3 Fig. 6)."""
    samples = [
        (group, [
            (index, [errors for run in group.runs if (errors := _errors(run, index))])
            for index in range(max((len(run.visits) for run in group.runs), default=0))
        ])
        for group in groups
    ]  # fmt: skip
    every = [errors for _, spaces in samples for _, seeds in spaces for errors in seeds]
    if not every:
        return
    low, high = min(map(min, every)), max(map(max, every))
    for group, spaces in samples:
        figure, ax = drawing.figure(WIDE, HIGH)
        handles = []
        for index, seeds in spaces:
            if not seeds:
                continue
            xs = data.grid(seeds)
            if len(seeds) == 1:
                middle = data.edf_at(seeds[0], xs)
                below, above = data.edf_band(seeds[0], xs, f"{group.label} {index}")
                count = len(seeds[0])
            else:
                rows = np.stack([data.edf_at(errors, xs) for errors in seeds])
                below, middle, above = rows.min(0), rows.mean(0), rows.max(0)
                count = sum(map(len, seeds))
            ax.fill_between(xs, below, above, step="post", color=look(index)["color"], alpha=0.15, linewidth=0)
            (line,) = ax.step(xs, middle, where="post", **line_look(index), linewidth=2)
            how = next(how for run in group.runs if (how := _how(run, index)))
            half = float(xs[np.searchsorted(middle, 0.5)]) if middle[-1] >= 0.5 else float(xs[-1])
            tag(line, "line", f"space{index}: {count} networks ({how})\nhalf of them have an error up to {half:.2f} %")
            handles.append(_handle(f"space{index} ({count} networks)", index, marker=""))
        ax.set_xlim(low, high if high > low else low + 1)
        ax.set_ylim(0, 1.02)
        ax.set_xlabel("error on the held-out images (%)")
        ax.set_ylabel("share of networks")
        ax.set_title(group.label if len(groups) > 1 else "Error distribution of the spaces", size=12)
        legend(figure, handles)
        yield Drawn(_own("errors", groups, group), f"Error distribution of each visited space of {group.label}", figure)


def _own(name: str, groups: Sequence[Group], group: Group) -> str:
    return name if len(groups) == 1 else f"{name}-method{list(groups).index(group) + 1}"


def _errors(run: Run, index: int) -> list[float]:
    found, _ = data.sample_of(run, run.visits[index]) if index < len(run.visits) else ([], "")
    return [network.error for network in found if network.full]


def _how(run: Run, index: int) -> str:
    return data.sample_of(run, run.visits[index])[1] if index < len(run.visits) else ""


def choices(groups: Sequence[Group]) -> Iterator[Drawn]:
    """Per gene: the error distribution of every choice, a column per stage, and the top-tier errors (S3 Fig. 3)."""
    for group in groups:
        run = group.runs[0]
        sampled = [visit for visit in run.visits if visit.random or visit.scores]
        if not sampled:
            continue
        visit = sampled[-1]
        networks, _ = data.sample_of(run, visit)
        by_dim = {dim.name: data.by_choice(networks, dim, visit.space) for dim in visit.space.searched}
        by_dim = {name: found for name, found in by_dim.items() if len(found) > 1}
        for gene in dict.fromkeys(_split(name)[0] for name in by_dim):
            own = {_split(name)[1] or gene: found for name, found in by_dim.items() if _split(name)[0] == gene}
            figure, found = drawing.figure(max(360, 60 + 125 * (len(own) + 1)), 260, 1, len(own) + 1)
            *columns, last = axes(found)
            every = [error for found in own.values() for errors in found.values() for error in errors]
            shown = dict.fromkeys(sorted({choice for found in own.values() for choice in found}))
            order = {choice: number for number, choice in enumerate(shown)}
            for ax, (stage, errors) in zip(columns, own.items(), strict=True):
                for choice, some in errors.items():
                    xs, ys = data.edf(some)
                    (line,) = ax.step(xs, ys, where="post", **line_look(order[choice]))
                    tag(line, "line", f"{stage}, {gene} {choice:g}\n{len(some)} networks, mean error"
                        f" {np.mean(some):.2f} %")  # fmt: skip
                ax.set_xlim(min(every), max(every) if max(every) > min(every) else min(every) + 1)
                ax.set_title(stage, size=10)
                ax.set_xlabel("error (%)", size=10)
            columns[0].set_ylabel("share of networks")
            ends = []
            for number, (stage, errors) in enumerate(own.items()):
                tier = data.tiers(errors, run.config)
                values, tops = list(tier), [each["top"] for each in tier.values()]
                last.plot(values, tops, **line_look(number))
                points = last.scatter(values, tops, s=30, color=look(number)["color"], marker=look(number)["marker"])
                tag(points, "point", [
                    f"{stage}, {gene} {choice:g}\ntop-tier error {each['top']:.2f} % (best {each['top_count']}),"
                    f" mean {each['mean']:.2f} %" for choice, each in tier.items()
                ])  # fmt: skip
                ends.append((values[-1], tops[-1]))
            last.set_title("top tier (%)", size=10)
            last.set_xlabel(gene, size=10)
            last.margins(x=0.3)
            legend(figure, [_handle(f"{choice:g}", number, marker="") for choice, number in order.items()], 8)
            for number, (stage, end) in enumerate(zip(own, ends, strict=True) if len(own) > 1 else ()):
                drawing.label(last, [end], [stage.removeprefix("stage")], size=8, color=look(number)["color"])
            name = _own(f"choices-{file_name(gene)}", groups, group)
            yield Drawn(name, f"Error distribution by {gene} in space{visit.index} of {group.label}", figure)


# Search


def generations(groups: Sequence[Group]) -> Iterator[Drawn]:
    """Best so far and the best networks of every generation, with random search beside it (AutoFormer Fig. 6)."""
    places: dict[tuple[int, int], str] = {}
    for group in groups:
        for run in group.runs:
            for visit in run.visits:
                places |= {(visit.index, number): search.budget for number, search in enumerate(visit.searches)}
    alone = sum(len(group.runs) for group in groups) == 1
    for (index, number), budget in places.items():
        figure, ax = drawing.figure(WIDE, HIGH)
        handles = []
        for place, group in enumerate(groups):
            found = [
                (run, run.visits[index], run.visits[index].searches[number])
                for run in group.runs
                if index < len(run.visits) and number < len(run.visits[index].searches)
            ]
            found = [each for each in found if each[2].generations and all(each[2].generations)]
            if not found:
                continue
            curves = [[rows[0]["accuracy"] for rows in search.generations] for _, _, search in found]
            spread = data.band(curves)
            xs = found[0][2].sizes[: len(spread)]
            if len(curves) > 1:
                ax.fill_between(xs, [low for low, _, _ in spread], [high for _, _, high in spread],
                                color=look(place)["color"], alpha=0.15, linewidth=0)  # fmt: skip
            ax.plot(xs, [mean for _, mean, _ in spread], **line_look(place), linewidth=2)
            if not alone:
                ends = [f"{low:.2f} to {high:.2f}" if len(curves) > 1 else f"{low:.2f}" for low, _, high in spread]
                points = ax.scatter(xs, [mean for _, mean, _ in spread], s=30, color=look(place)["color"],
                                    marker=look(place)["marker"])  # fmt: skip
                tag(points, "point", [
                    f"{group.label}\nbest of {size} networks: {end} %" for size, end in zip(xs, ends, strict=True)
                ])  # fmt: skip
            if alone:
                ((run, visit, search),) = found
                _dots(ax, search.sizes, search.generations, visit, place)
            kind = {"random": "random search"}.get(method := found[0][0].config["arch_search"]["method"], method)
            handles.append(_handle(kind if alone else group.label, place))
            if alone and (draws := data.random_search(visit, search, TOP)):
                ax.plot(search.sizes[: len(draws)], [rows[0].accuracy for rows in draws], **line_look(1), linewidth=2)
                rows = [[{"key": n.key, "accuracy": n.accuracy, "network": n} for n in drawn] for drawn in draws]
                _dots(ax, search.sizes, rows, visit, 1)
                handles.append(_handle("random search", 1))
        if not handles:
            continue
        ax.margins(0.06)
        counts(ax.xaxis)
        ax.set_xlabel("networks scored")
        ax.set_ylabel("accuracy on the held-out images (%)")
        ax.set_title(f"space{index}" + (f": {budget}" if budget else ""), size=12)
        legend(figure, handles, 2 if alone else 1)
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
            texts.append(says(network, f"since generation {generation}"))
    style: dict[str, Any] = {"color": look(number)["color"], "marker": look(number)["marker"], "linewidths": 0}
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
                    style: dict[str, Any] = {"color": look(index)["color"], "marker": look(index)["marker"]}
                    points = ax.scatter([n.costs[metric] for n in full], [n.accuracy for n in full], s=16, alpha=0.65,
                                        linewidths=0, **style)  # fmt: skip
                    tag(points, "point", [says(n, f"space{index}") for n in full])
                    handles.append(_handle(f"space{index}", index, linestyle=""))
            estimates = sorted((n for _, n in networks if not n.full), key=lambda n: n.costs[metric])
            if estimates:
                hollow: dict[str, Any] = {"facecolors": "none", "edgecolors": colour("soft"), "linewidths": 0.8}
                xs, ys = [n.costs[metric] for n in estimates], [n.accuracy for n in estimates]
                points = ax.scatter(xs, ys, s=16, marker="o", **hollow)
                tag(points, "point estimate", [says(n) for n in estimates])
                handles.append(_handle("racing's estimates", 6, linestyle="", marker="o", markerfacecolor="none"))
            for run in group.runs:
                _front(ax, run, metric)
            handles.append(_handle("Pareto front", 0, marker="", color=colour("ink"), linestyle="-"))
            if any(metric in winner for run in group.runs for winner in run.winners):
                handles.append(_handle("winner", 0, marker="*", color=colour("red"), linestyle="", markersize=11))
            ax.margins(0.06)
            if metric != "latency":
                counts(ax.xaxis)
            ax.set_xlabel(METRICS[metric])
            ax.set_ylabel("accuracy on the held-out images (%)")
            title = f"Accuracy against {METRICS[metric]}"
            ax.set_title(f"{group.label}" if len(groups) > 1 else title, size=12)
            legend(figure, handles, 4)
            label = f"{title} of all scored networks of {group.label}, with the Pareto front and the winner"
            yield Drawn(_own(f"accuracy-{metric}", groups, group), label, figure)


def _front(ax: Any, run: Run, metric: str) -> None:
    best = data.front([network for visit in run.visits for network in visit.networks], metric)
    xs, ys = [network.costs[metric] for network in best], [network.accuracy for network in best]
    ax.step(xs, ys, where="post", color=colour("ink"), linewidth=1.2)
    if best:
        points = ax.scatter(xs, ys, s=22, facecolors="none", edgecolors=colour("ink"), linewidths=1)
        tag(points, "front", [says(network, "on the Pareto front") for network in best])
    for row in run.winners:
        if metric not in row:
            continue
        network = Network(Arch.from_dict(row["arch"]), row["inherited"], {m: row[m] for m in METRICS if m in row})
        finished = [] if row.get("accuracy") is None else [f"as finished {row['accuracy']:.2f} % held-out"]
        test = [f"{row['test']['top1']:.2f} % of the test images"] if "test" in row else []
        (star,) = ax.plot(row[metric], row["inherited"], "*", color=colour("red"), markeredgecolor=colour("card"),
                          markersize=15, zorder=4)  # fmt: skip
        tag(star, "winner", says(network, f"winner {row['budget']}".strip(), *finished, *test))


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
            shade = look(index)["color"]
            for ax, key, style in [(loss, "loss", "-"), *((accuracy, key, line) for key, line in lines.items())]:
                curves = [[row[key] for row in epochs] for epochs in seeds if all(key in row for row in epochs)]
                spread = data.band(curves) if curves else []
                if not spread:
                    continue
                xs = list(range(1, len(spread) + 1))
                if len(curves) > 1:
                    ax.fill_between(xs, [each[0] for each in spread], [each[2] for each in spread], color=shade,
                                    alpha=0.12, linewidth=0)  # fmt: skip
                (line,) = ax.plot(xs, [each[1] for each in spread], color=shade, linestyle=style, markersize=4,
                                  marker=look(index)["marker"])  # fmt: skip
                unit = "" if key == "loss" else " %"
                what = "loss" if key == "loss" else f"{key} network"
                ends = f"{spread[0][1]:.3g}{unit} after epoch 1, {spread[-1][1]:.3g}{unit} after epoch {len(spread)}"
                tag(line, "line", f"space{index}: {what}\n{ends}")
        for ax, title in ((loss, "training loss"), (accuracy, "held-out accuracy (%)")):
            ax.set_title(title, size=11)
            ax.set_xlabel("epoch")
            whole_numbers(ax.xaxis)
        handles = [_handle(f"space{index}", index, linestyle="-") for index, _ in found]
        handles += [_handle(name, 6, marker="", linestyle=line) for name, line in lines.items()]
        if len(groups) > 1:
            figure.suptitle(group.label, size=12, weight="bold")
        legend(figure, handles, 6)
        yield Drawn(_own("supernet", groups, group), f"Loss and accuracies of the supernets of {group.label}", figure)


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
                style: dict[str, Any] = {"color": look(number)["color"], "marker": look(number)["marker"]}
                points = ax.scatter(range(1, len(rows) + 1), own, s=45, **style)
                tag(points, "point", [
                    f"{row['arch'].key}\n{name} {row[mode]:.2f} %\n{data.told(row['arch'])}" for row in rows
                ])  # fmt: skip
                tau = ""
                if mode != "inherited" and len(rows) > 1:
                    tau = f" (τ {rank_correlation([row['inherited'] for row in rows], own):.2f})"
                handles.append(_handle(name + tau, number, linestyle=""))
            for place, row in enumerate(rows, 1):
                known = [row[mode] for mode in modes]
                ax.plot([place, place], [min(known), max(known)], color=colour("edge"), linewidth=1.5, zorder=0)
            ax.margins(0.1)
            whole_numbers(ax.xaxis)
            ax.set_xlabel("networks, by inherited accuracy")
            ax.set_ylabel("held-out accuracy (%)")
            legend(figure, handles)
            suffix = "" if len(groups) + len(group.runs) == 2 else f"-{file_name(group.label)}-seed{run.seed}"
            yield Drawn(f"audit{suffix}", f"Networks inherited, finetuned and retrained in {group.label}", figure)


# Genomes and costs


def genomes(groups: Sequence[Group]) -> Iterator[Drawn]:
    """The winners, and beside them the network of the same kind that people designed."""
    seen = set()
    for group in groups:
        for run in group.runs:
            for number, row in enumerate(run.winners):
                arch = Arch.from_dict(row["arch"])
                suffix = "" if len(groups) + len(group.runs) == 2 else f"-{file_name(group.label)}-seed{run.seed}"
                name = f"genome{suffix}" + (f"-budget{number}" if number else "")
                what = f"Winner of {group.label}" + (f", {row['budget']}" if row["budget"] else "")
                seed = f", seed {run.seed}" if suffix else ""
                label = f"{what}{seed}: {quantity(row['params'])} parameters"
                yield Drawn(name, label, picture(arch, (run.img_size,) * 2))
                for hand, other, size in data.designed(run, arch, row):
                    if other not in seen:
                        seen.add(other)
                        label = f"{hand}, designed by hand"
                        yield Drawn(f"genome-{file_name(hand)}", label, picture(other, (size, size)))


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
        for ax, (found, title, shade) in zip(first_of := axes(found_axes), both, strict=True):
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
            counts(ax.xaxis)
        if len(groups) > 1:
            figure.suptitle(group.label, size=12, weight="bold")
        yield Drawn(_own("spent", groups, group), f"Images and seconds spent per phase in {group.label}", figure)
