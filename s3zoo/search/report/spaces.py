"""Figures of the spaces of a search: how they move, why, and how good they are. Each is named as its files are."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from s3zoo import drawing
from s3zoo.drawing import colour, quantity, tag
from s3zoo.search.report import data, looks
from s3zoo.search.report.data import Group, Run, Visit
from s3zoo.search.report.looks import HIGH, WIDE, Drawn

# How they move


def moving(groups: Sequence[Group]) -> Iterator[Drawn]:
    """The choices of every dimension in every visited space, a figure per gene and a column per stage (S3 Fig. 2)."""
    visits = [visit for group in groups for run in group.runs for visit in run.visits]
    searched = dict.fromkeys(_split(dim.name) for visit in visits for dim in visit.space.searched)  # gene, stage
    for gene in dict.fromkeys(gene for gene, _ in searched):
        stages = sorted(stage for other, stage in searched if other == gene)
        figure, found = drawing.figure(max(300, 60 + 125 * len(stages)), 230, 1, len(stages))
        columns = looks.axes(found)
        for stage, ax in zip(stages, columns, strict=True):
            ax.set_title(stage or gene, size=11)
            looks.whole_numbers(ax.xaxis)
            ax.set_xlabel("space")
            for number, group in enumerate(groups):
                for place, run in enumerate(group.runs):
                    offset = 0.12 * (number - (len(groups) - 1) / 2) + 0.03 * place
                    label = f"{group.label}, " if len(groups) > 1 else ""
                    _trajectory(ax, run, gene, stage, looks.look(number), offset, label)
            ax.margins(0.15)
            values = {c for group in groups for run in group.runs for c in _choices(run, gene, stage)}
            if len(values) <= 8:
                ax.set_yticks(sorted(values))
        columns[0].set_ylabel(gene)
        if len(groups) > 1:
            looks.legend(figure, [looks.handle(group.label, number) for number, group in enumerate(groups)], 1)
        yield Drawn(f"space-{looks.file_name(gene)}", f"Choices of {gene} in every visited space", figure)


def _split(name: str) -> tuple[str, str]:
    """A dimension's gene, and its stage or ""."""
    stage, _, gene = name.rpartition(".")
    return gene, stage


def _choices(run: Run, gene: str, stage: str) -> list[float]:
    return [c for v in run.visits for dim in v.space.dims if _split(dim.name) == (gene, stage) for c in dim.choices]


def _trajectory(ax: Any, run: Run, gene: str, stage: str, style: dict[str, Any], offset: float, label: str) -> None:
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
            f"{label}space{visit.index}, {name}", ", ".join(f"{c:g}" for c in dim.choices),
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
            errors = [row["z_error" if s4 else "slope_error"] for row in rows]
            scale = float(np.linalg.norm(values)) or 1.0 if s4 else 1.0
            figure, ax = drawing.figure(WIDE, 90 + 20 * len(rows))
            places = range(len(rows))
            for place, row, value, error in zip(places, rows, values, errors, strict=True):
                if error is not None:
                    ax.errorbar(value / scale, place, xerr=error / scale, color=colour("slate"), linewidth=1, capsize=2)
                shift = np.sign(sum(row["after"]) / len(row["after"]) - sum(row["before"]) / len(row["before"]))
                sign = {1: "^", -1: "v", 0: "o"}[int(shift)]
                face = {"markerfacecolor": "none"} if error is None else {}
                shade = colour("blue" if shift else "slate")
                (mark,) = ax.plot(value / scale, place, sign, color=shade, markersize=8, **face)
                before, after = (", ".join(f"{c:g}" for c in row[key]) for key in ("before", "after"))
                known = "error not known" if error is None else f"± {error:.2g}"
                tag(mark, "point", f"space{index}, {row['name']}\n{value:.3g} points, {known}\n{before} → {after}")
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
                                    edgecolors=looks.look(number)["color"])  # fmt: skip
                tag(points, "point", [
                    f"{group.label}, space{index}: cosine {move['cosine']:.3f}\nlargest network "
                    f"{quantity(move['largest'])}\n"
                    + ", ".join(f"{n} {d:+d}" for n, d in zip(record["moving"], move["direction"], strict=True) if d)
                    for move in best
                ])  # fmt: skip
            if record["cosine"] is not None:
                (mark,) = ax.plot(offset, record["cosine"], **(looks.look(number) | {"linestyle": ""}), markersize=9)
                tag(mark, "point", f"{group.label}, space{index}: taken, cosine {record['cosine']:.3f}")
            ax.annotate(f"{record['legal']} of {record['neighbours']}\nlegal", (offset, 1.04), ha="center", size=9,
                        color=colour("soft"))  # fmt: skip
    ax.margins(x=0.2)
    looks.whole_numbers(ax.xaxis)
    ax.set(ylim=(-1.05, 1.3), xlabel="space that is left", ylabel="cosine to the gradient")
    yield Drawn("coherence", "Cosine of the best legal moves to the gradient, and the number of legal moves", figure)


# Distributions


def distributions(groups: Sequence[Group]) -> Iterator[Drawn]:
    """The error distribution of every visited space, a figure per method (S3 Fig. 6)."""
    samples = [
        (group, [
            (index, [errors for run in group.runs if (errors := _sampled(run, index)[0])])
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
            ax.fill_between(xs, below, above, step="post", color=looks.look(index)["color"], alpha=0.15, linewidth=0)
            (line,) = ax.step(xs, middle, where="post", **looks.line_look(index), linewidth=2)
            how = next(how for run in group.runs if (how := _sampled(run, index)[1]))
            half = float(xs[np.searchsorted(middle, 0.5)]) if middle[-1] >= 0.5 else float(xs[-1])
            tag(line, "line", f"space{index}: {count} networks ({how})\nhalf of them have an error up to {half:.2f} %")
            handles.append(looks.handle(f"space{index} ({count} networks)", index, marker=""))
        ax.set(xlim=(low, high if high > low else low + 1), ylim=(0, 1.02))
        ax.set(xlabel="error on the held-out images (%)", ylabel="share of networks")
        ax.set_title(group.label if len(groups) > 1 else "Error distribution of the spaces", size=12)
        looks.legend(figure, handles)
        name = looks.method_name("errors", groups, group)
        yield Drawn(name, f"Error distribution of each visited space of {group.label}", figure)


def _sampled(run: Run, index: int) -> tuple[list[float], str]:
    """The errors of networks that stand for a space, and how these were drawn."""
    found, how = data.sample_of(run, run.visits[index]) if index < len(run.visits) else ([], "")
    return [network.error for network in found if network.full], how


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
            *columns, last = looks.axes(found)
            every = [error for found in own.values() for errors in found.values() for error in errors]
            shown = sorted({choice for found in own.values() for choice in found})
            order = {choice: number for number, choice in enumerate(shown)}
            for ax, (stage, errors) in zip(columns, own.items(), strict=True):
                for choice, some in errors.items():
                    xs, ys = data.edf(some)
                    (line,) = ax.step(xs, ys, where="post", **looks.line_look(order[choice]))
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
                last.plot(values, tops, **looks.line_look(number))
                points = last.scatter(values, tops, s=30, **looks.mark_look(number))
                tag(points, "point", [
                    f"{stage}, {gene} {choice:g}\ntop-tier error {each['top']:.2f} % (best {each['top_count']}),"
                    f" mean {each['mean']:.2f} %" for choice, each in tier.items()
                ])  # fmt: skip
                ends.append((values[-1], tops[-1]))
            last.set_title("top tier (%)", size=10)
            last.set_xlabel(gene, size=10)
            last.margins(x=0.3)
            handles = [looks.handle(f"{choice:g}", number, marker="") for choice, number in order.items()]
            looks.legend(figure, handles, 8)
            for number, (stage, end) in enumerate(zip(own, ends, strict=True) if len(own) > 1 else ()):
                drawing.label(last, [end], [stage.removeprefix("stage")], size=8, color=looks.look(number)["color"])
            name = looks.method_name(f"choices-{looks.file_name(gene)}", groups, group)
            yield Drawn(name, f"Error distribution by {gene} in space{visit.index} of {group.label}", figure)
