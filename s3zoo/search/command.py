"""`s3zoo search CONFIG`: regenerate a searched network from data."""

from __future__ import annotations

import argparse
import statistics
from pathlib import Path
from typing import Any

from s3zoo.search.config import SearchRun
from s3zoo.training.config import load_config, overridden

DEFAULT = "digits"


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="s3zoo search",
        description="Search a network: space search, supernet, architecture search, export. The same command resumes an"
        " interrupted run. Under torchrun the work is shared by all processes.",
    )
    parser.add_argument(
        "config", nargs="?", default=DEFAULT, help="name of a config in configs/search, or a .py file (default: digits)"
    )
    parser.add_argument(
        "--set", action="append", default=[], metavar="KEY=VALUE", help="change a setting, e.g. supernet.lr=1e-3"
    )
    parser.add_argument("--data", metavar="ROOT", help="where the images are (short for --set data.root=ROOT)")
    parser.add_argument("--out", type=Path, help="folder of the run (default: runs/<name of the config>)")
    parser.add_argument(
        "--seeds", type=int, default=1, metavar="N", help="N runs with seeds from the config's on, and a table"
    )
    parser.add_argument("--dry-run", action="store_true", help="show what would be done; needs no data")
    arguments = parser.parse_args(argv)
    settings = arguments.set + ([f"data.root={arguments.data}"] if arguments.data else [])
    run = overridden(load_config(arguments.config, SearchRun, "search"), settings)
    if arguments.dry_run:
        print(plan(run, arguments.seeds))
        return 0
    out = arguments.out or Path("runs") / run.name
    from s3zoo.search.pipeline import Search  # torch is needed from here on
    from s3zoo.training.session import carry_out

    return carry_out(run, out, Search, seeds=arguments.seeds, table=seeds_table)


def seeds_table(results: list[dict[str, Any]]) -> str:
    """Test accuracy over seeds, with mean and standard deviation."""
    lines = [f"{'seed':>6}  {'test top-1':>10}  {'held-out':>9}  {'params':>9}  {'MACs':>9}"]
    for result in results:
        for row in result["winners"]:
            lines.append(
                f"{result['seed']:>6}  {row['test']['top1']:>10.2f}  {row['accuracy']:>9.2f}"
                f"  {row['params'] / 1e6:>8.3f}M  {row['macs'] / 1e6:>8.2f}M"
            )
    for index, row in enumerate(results[0]["winners"]):
        scores = [result["winners"][index]["test"]["top1"] for result in results]
        spread = statistics.stdev(scores) if len(scores) > 1 else 0.0
        lines.append(f"  mean  {statistics.fmean(scores):>10.2f} +- {spread:.2f}  {row['budget']}".rstrip())
    return "\n".join(lines)


def plan(run: SearchRun, seeds: int = 1) -> str:
    """What a run would do: sizes, ranges, steps, disk."""
    from s3zoo.search.budget import Budget, Pricer, ranges

    data, train, search = run.data, run.supernet, run.arch_search
    price = Pricer(**run.priced)
    shifts = run.space_search.iterations if run.space_search.method != "none" else 0
    supernets = 2 if run.hierarchy == "glit" else shifts + 1
    extent = ranges(run.space, price)
    evaluations = search.population * search.generations * max(1, len(search.budgets))
    disk = extent["params"][1] * 4 * 3 * 2 * supernets  # weights and two moments, two checkpoints
    lines = [
        f"run          {run.name}, seed {run.seed}" + (f" and {seeds - 1} more" if seeds > 1 else ""),
        f"data         {data.name or 'folder'} {data.root}, {data.img_size} x {data.img_size},"
        f" {data.num_classes} classes, {data.holdout} images held out for the search",
        f"space        {run.space.name}: {run.space.size():,} architectures",
        "parameters   {:,.0f} to {:,.0f}".format(*extent["params"]),
        "MACs         {:,.0f} to {:,.0f}".format(*extent["macs"]),
        *(f"  {d.name:<22} {', '.join(f'{c:g}' for c in d.choices)}" for d in run.space.dims if len(d.choices) > 1),
        *_tower_lines(run),
        f"space search {run.space_search.method}, {shifts} shifts",
        f"supernet     the weights of {run.supernet_weights}, nothing is trained"
        if run.supernet_weights
        else f"supernets    {supernets} x {train.epochs} epochs, batch {train.batch_size}, {train.sampling},"
        f" {train.sharing}",
        f"arch search  {search.method}, up to {evaluations:,} evaluations"
        + (f", budgets {'; '.join(str(Budget.parse(b)) for b in search.budgets)}" if search.budgets else ""),
        f"final        {run.final.mode}, top {run.final.top}",
        f"disk         about {disk * seeds / 1e6:,.0f} MB",
    ]
    return "\n".join(lines)


def _tower_lines(run: SearchRun) -> list[str]:
    if run.space.family != "ladder":
        return []
    from s3zoo.models.ladder import build_tower
    from s3zoo.training.features import shown

    tower: Any = build_tower(run.tower.name, img_size=run.data.img_size, in_chans=run.data.in_chans, device="meta")
    depth, tokens = run.space.largest().depths[0], tower.patch_embed.num_patches + tower.num_prefix_tokens
    size = 4 * depth * tokens * tower.embed_dim
    images = run.data.holdout + (run.data.train_limit if run.tower.cache == "all" else 0)
    known = run.tower.cache == "scored" or run.data.train_limit
    kept = f"kept of {images:,} images: {shown(size * images)}" if known else "kept of all training images"
    kept = "not kept" if run.tower.cache == "none" else kept
    return [
        f"tower        {run.tower.name} ({run.tower.weights} weights), frozen, neither counted nor stored",
        f"features     {shown(size)} an image in {depth} layers, {kept}",
    ]
