"""`s3zoo search CONFIG`: regenerate a searched network from data."""

from __future__ import annotations

import argparse
import hashlib
import json
import random
import statistics
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from s3zoo.checks import Repeats, typed
from s3zoo.families import FAMILIES
from s3zoo.files import check_writable, sha256, write_json, write_text
from s3zoo.search.budget import Budget, Feasible, Limit, Pricer, extents
from s3zoo.search.config import Controls, SearchRun
from s3zoo.space import glit_details, glit_split
from s3zoo.training.config import Train, load_config, overridden, to_dict
from s3zoo.training.registry import listing, source_of

DEFAULT = "digits"
PLAN = "plan.json"  # what config.py of a search without a config says, as data


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="s3zoo search",
        description="Search a network: space search, supernet, architecture search, export. The same command resumes an"
        " interrupted run. Under torchrun the work is shared by all processes. With --data FOLDER and without a config,"
        " one is written that suits these images, this machine and --hours, and shown before it is run.",
    )
    parser.add_argument("config", nargs="?", help="name of a config in configs/search, or a .py file (default: digits)")
    parser.add_argument(
        "--set", action="append", default=[], metavar="KEY=VALUE", help="change a setting, e.g. supernet.lr=1e-3"
    )
    parser.add_argument("--data", metavar="ROOT", help="where the images are (short for --set data.root=ROOT)")
    parser.add_argument(
        "--budget", action="append", default=[], metavar="LIMITS",
        help="one winner within these, e.g. 'params<=5M, latency<=20ms' (repeatable; instead of the config's)",
    )  # fmt: skip
    parser.add_argument(
        "--from", dest="source", type=Path, metavar="RUN",
        help="instead of a config: search the supernet of this finished run again, with the scores it has",
    )  # fmt: skip
    begin = parser.add_mutually_exclusive_group()
    begin.add_argument(
        "--start", metavar="PLACE",
        help="begin from weights that are there, and train a fifth of the epochs: the file of an official AutoFormer"
        " supernet, a network (name, folder, hf-hub:…), the folder of a finished search",
    )  # fmt: skip
    begin.add_argument(
        "--no-start", action="store_true",
        help="begin from random weights (with --data and without a config, few images begin from weights that fit)",
    )  # fmt: skip
    parser.add_argument(
        "--around", metavar="NETWORK",
        help="search around this network's dimensions and below its parameters: a ViT, DeiT or Swin of timm, a name of"
        " the zoo, a folder; it is trained beside the winner",
    )  # fmt: skip
    parser.add_argument(
        "--runtime", choices=("torch", "compile", "onnx"),
        help="whose latency a budget limits: that of PyTorch, of torch.compile or of ONNX Runtime on a CPU",
    )  # fmt: skip
    parser.add_argument(
        "--hours", type=float, metavar="H",
        help="of clock, which are kept: phases shrink to what is left (with --data and without a config: default 1)",
    )  # fmt: skip
    parser.add_argument("--no-controls", action="store_true", help="train no networks beside the winner")
    parser.add_argument("--out", type=Path, help="folder of the run (default: runs/<name of the config>)")
    parser.add_argument(
        "--seeds", type=int, default=1, metavar="N", help="N runs with seeds from the config's on, and a table"
    )
    parser.add_argument(
        "--check-data", action="store_true", help="first compare all test images with all training images"
    )
    parser.add_argument(
        "--replay", action="store_true",
        help="show where each space of the run in --out would have moved with other settings, by its recorded scores",
    )  # fmt: skip
    parser.add_argument("--no-report", action="store_true", help="write no report at the end; see `s3zoo report`")
    parser.add_argument("--dry-run", action="store_true", help="show what would be done; a config needs no data")
    parser.add_argument("--show", action="store_true", help="list every setting with its value, default and effect")
    parser.add_argument("--list", action="store_true", help="show the configs; `s3zoo config NAME` shows one whole")
    arguments = parser.parse_args(argv)
    if arguments.list:
        print(listing("search"))
        return 0
    settings = arguments.set + ([f"data.root={arguments.data}"] if arguments.data else [])
    settings += [f"arch_search.budgets={tuple(arguments.budget)!r}"] if arguments.budget else []
    settings += [f"arch_search.latency_runtime={arguments.runtime}"] if arguments.runtime else []
    settings += [f"hours={arguments.hours}"] if arguments.hours is not None else []
    if arguments.no_controls:
        settings += [f"controls.{name}={value}" for name, value in to_dict(Controls()).items()]
    settings += ["start="] if arguments.no_start else []
    if arguments.data is not None and not (
        arguments.config or arguments.source or arguments.show or arguments.replay
    ):
        return _search_unasked(arguments)
    config = _config(arguments)
    if arguments.around:
        from s3zoo.search.around import around  # torch is needed from here on

        shape = [setting for setting in settings if setting.startswith("data.")]  # of which the limit depends
        config = around(overridden(config, shape), arguments.around)
    if arguments.start:
        from s3zoo.search.start import started

        config = started(config, arguments.start)
    return _search(arguments, overridden(config, settings))


def _search_unasked(arguments: argparse.Namespace) -> int:
    """Write a config for these images and this machine, show it and run it; one that is there already is run."""
    from s3zoo.search.around import space_name
    from s3zoo.search.plan import make_plan
    from s3zoo.training.data import ImageData

    out = arguments.out or Path("runs") / (Path(arguments.data).resolve().name or "mine")
    path, hours = out / "config.py", 1.0 if arguments.hours is None else arguments.hours
    if path.exists():
        run = overridden(_planned(path), [f"data.root={arguments.data}"])
        own = [Budget.parse(text) for text in run.arch_search.budgets]
        asked = [Budget.parse(text) for text in arguments.budget] or own
        fits = {  # what the command says, and what the config has
            "another budget": len(asked) == len(own) and all(map(_is_of, asked, own)),
            "other hours": arguments.hours in (None, run.hours),
            "another start": ("" if arguments.no_start else arguments.start or run.start) == run.start,
            "another network": arguments.around is None or run.space.name == space_name(arguments.around),
            "another runtime": arguments.runtime in (None, run.arch_search.latency_runtime),
            "other controls": not (arguments.no_controls and run.controls),
        }
        if other := [name for name, same in fits.items() if not same]:
            raise ValueError(f"{path} is of a search with {' and '.join(other)}; give another --out.")
        print(f"{path} {'would be' if arguments.dry_run else 'is'} run as it is")
        return _search(arguments, overridden(run, arguments.set), out)
    options: dict[str, Any] = {"controls": not arguments.no_controls, "runtime": arguments.runtime or "torch"}
    options |= {"start": "" if arguments.no_start else arguments.start, "around": arguments.around}
    if not arguments.dry_run:  # what is wrong is said before the machine is measured
        check_writable(out, "--out", folder=True)
        options["out"] = out
    plan = make_plan(arguments.data, tuple(arguments.budget), hours, **options, settings=arguments.set)
    run = plan.config
    print(plan.told(), flush=True)
    ImageData(run.data, run.seed, say=print).check_splits()  # as the run will
    if arguments.dry_run:
        print(f"\nwithout --dry-run this is run, in {out}")
        return 0
    out.mkdir(parents=True, exist_ok=True)
    head = f"Written by `s3zoo search --data {arguments.data}`; an ordinary config, to be changed and used again."
    text = source_of(run, f"{head}\n\n{plan.told()}")
    write_json(out / PLAN, {"config": to_dict(run), "config.py": hashlib.sha256(text.encode()).hexdigest()})
    write_text(path, text)
    return _search(arguments, run, out)


def _is_of(asked: Budget, own: Budget) -> bool:
    """Whether a planned budget is that of the command: around a network, its size is limited besides."""
    return own == Budget({"params": own.limits.get("params", Limit()), **asked.limits})


def _planned(path: Path) -> SearchRun:
    """The config that was written there, from the JSON beside it: config.py in a folder that someone else made is not
    executed unless it is named."""
    plan = next((place for name in (PLAN, "run.json") if (place := path.with_name(name)).exists()), None)
    run, about = (None, {}) if plan is None else SearchRun.read(plan)
    if run is None or about.get("config.py", sha256(path)) != sha256(path):
        raise ValueError(
            f"{path} is not as `s3zoo search --data` wrote it; `s3zoo search {path} --out OTHER` runs it as it is."
        )
    return run


def _search(arguments: argparse.Namespace, run: SearchRun, out: Path | None = None) -> int:
    if arguments.show:
        from s3zoo.training import settings as all_settings

        print(all_settings.listing(run, SearchRun(name="")))
        return 0
    if arguments.dry_run:
        print(plan(run, arguments.seeds))
        return 0
    out = out or arguments.out or Path("runs") / run.name
    if arguments.replay:
        from s3zoo.search.moves import replayed_moves

        for line in replayed_moves(run, out):
            print(line)
        return 0
    from s3zoo.search.run import search  # torch is needed from here on
    from s3zoo.training.session import run_job

    def job(run: SearchRun, folder: Path, ranks: Any, log: Any, stop: Any) -> dict[str, Any]:
        result = search(run, folder, ranks, log, stop, check_data=arguments.check_data)
        if ranks.first and not arguments.no_report:
            log.say(report([folder], folder / "report"))
        ranks.wait()
        return result

    def summary(results: list[dict[str, Any]]) -> str:
        table = seeds_table(results)
        return table if arguments.no_report else f"{table}\n{report([out], out / 'report')}"

    return run_job(run, out, job, seeds=arguments.seeds, table=summary)


def report(runs: list[Path], folder: Path) -> str:
    """Write the report of runs, and say where it is. The result is safe by then, so what goes wrong is only told."""
    from s3zoo.search.report.data import read_all
    from s3zoo.search.report.page import write

    try:
        return f"report: {write(read_all(runs), folder)}"
    except Exception as error:  # no reason to let a search of days end in a traceback
        again = f"s3zoo report {' '.join(map(str, runs))}"
        return f"report: could not be written ({type(error).__name__}: {error}); `{again}` tries again"


def _config(arguments: argparse.Namespace) -> SearchRun:
    """The config that is named, or that of a finished run's supernet, or of the run whose moves are replayed."""
    if arguments.replay and not (arguments.config or arguments.source) and arguments.out:
        return SearchRun.read(arguments.out / "run.json")[0]
    if arguments.source is None:
        return load_config(arguments.config or DEFAULT, SearchRun, "search")
    if arguments.config is not None:
        raise ValueError(f"--from takes the config of {arguments.source}; leave {arguments.config!r} out.")
    from s3zoo.search.published import FinishedRun

    return FinishedRun(arguments.source).again(tuple(arguments.budget))


def seeds_table(results: list[dict[str, Any]]) -> str:
    """Test accuracy over seeds, with mean and standard deviation."""
    lines = [f"{'seed':>6}  {'test top-1':>10}  {'held-out':>9}  {'params':>9}  {'MACs':>9}"]
    for result in results:
        for row in result["winners"]:
            held_out = "-" if row["accuracy"] is None else f"{row['accuracy']:.2f}"
            lines.append(
                f"{result['seed']:>6}  {row['test']['top1']:>10.2f}  {held_out:>9}"
                f"  {row['params'] / 1e6:>8.3f}M  {row['macs'] / 1e6:>8.2f}M"
            )
    for index, row in enumerate(results[0]["winners"]):
        scores = [result["winners"][index]["test"]["top1"] for result in results]
        spread = statistics.stdev(scores) if len(scores) > 1 else 0.0
        lines.append(f"  mean  {statistics.fmean(scores):>10.2f} +- {spread:.2f}  {row['budget']}".rstrip())
    return "\n".join(lines)


# What would be done

# Training images of datasets that are the same everywhere, by name and split.
IMAGES = {
    ("digits", "train"): 1437,
    ("torch/cifar10", "train"): 50_000,
    ("torch/cifar100", "train"): 50_000,
    ("torch/mnist", "train"): 60_000,
    ("torch/fashion_mnist", "train"): 60_000,
}


def plan(run: SearchRun, seeds: int = 1) -> str:
    """What a run would do: sizes, ranges, steps, disk."""
    typed(seeds, Repeats, "--seeds")
    data, train, search, moves = run.data, run.supernet, run.arch_search, run.space_search
    price = Pricer(**run.priced)
    shifts = moves.iterations if moves.method != "none" else 0
    stages = 2 if run.hierarchy == "glit" else shifts + 1
    searched = stages if run.hierarchy == "glit" or moves.search_each_space else 1
    extent = extents(run.space, price)
    evaluations = search.population * search.generations * len(run.budgets) * (1 + run.controls.random_search)
    several = [dim for dim in run.space.dims if len(dim.choices) > 1]
    scores = moves.samples if moves.method == "s3" else 2 * moves.pairs * len(several)
    networks = _network_weights(run, price)
    trainings = _trainings(run, networks, stages, searched)
    lines = [
        f"run          {run.name}, seed {run.seed}" + (f" and {seeds - 1} more" if seeds > 1 else ""),
        f"data         {data.name or 'folder'} {data.root}, {data.img_size} x {data.img_size},"
        f" {data.num_classes} classes, {data.holdout} images held out for the search",
        f"space        {run.space.name}: {run.space.size():,} architectures",
        "parameters   {:,.0f} to {:,.0f}".format(*extent["params"]),
        "MACs         {:,.0f} to {:,.0f}".format(*extent["macs"]),
        *(f"  {dim.name:<22} {', '.join(f'{c:g}' for c in dim.choices)}" for dim in several),
        *_tower_lines(run),
        f"space search {moves.method}, {shifts} shifts"
        + (f", up to {scores:,} evaluations for each" if shifts else ""),
        f"supernet     the weights of {run.supernet_weights}, nothing is trained"
        if run.supernet_weights
        else f"supernets    {stages} x {train.epochs} epochs, batch {train.batch_size}, {train.sampling},"
        f" {train.sharing}",
        f"arch search  {search.method}, up to {evaluations:,} evaluations"
        + (f" in each of {searched} {'stages' if run.hierarchy == 'glit' else 'spaces'}" if searched > 1 else "")
        + (f", budgets {'; '.join(map(str, run.budgets))}" if search.budgets else ""),
        f"final        {run.final.mode}, top {run.final.top}"
        + (", on the held-out images, too" if run.final.use_held_out else ""),
        f"steps        {_steps(run, trainings, seeds)}",
        f"disk         {_disk(run, trainings, networks, scores * shifts + evaluations * searched, seeds)}",
    ]
    return "\n".join(lines)


@dataclass(frozen=True)
class PlannedTraining:
    """Trainings of one kind."""

    kind: str
    times: int
    train: Train
    weights: int  # of what is trained
    held_out: int = 0  # images that are trained on beside the training images

    def steps(self, images: int) -> int:
        """Of one of them; without a number of images, for every 1,000."""
        batch, epochs = self.train.batch_size, self.train.epochs
        return epochs * ((images + self.held_out) // batch) if images else round(epochs * 1000 / batch)


def _trainings(run: SearchRun, networks: list[int], stages: int, searched: int) -> list[PlannedTraining]:
    """All trainings of a run; spaces that are still to be found are taken to be as large as the first."""
    final, audit = run.final, run.space_search.audit
    sizes = [] if run.supernet_weights else _supernet_weights(run)
    times = stages // max(1, len(sizes))
    found = [PlannedTraining("supernet", times, run.supernet, size) for size in sizes]
    if final.mode != "inherit":
        more = run.data.holdout if final.use_held_out else 0
        times = final.top if run.hierarchy == "glit" and final.top == 1 else searched * final.top  # of one split none
        found += [PlannedTraining(final.mode, times, final.train, size, more) for size in networks]
    if run.controls:
        found += [PlannedTraining("control", len(run.controls), final.train, size) for size in networks]
    if audit:
        found += [PlannedTraining("audit", audit, train, max(networks)) for train in run.audit_trains.values()]
    return [training for training in found if training.train.epochs]


def _supernet_weights(run: SearchRun) -> list[int]:
    """How many weights the supernet of the first space has, or those of GLiT's two stages."""
    from s3zoo.supernet import Supernet  # torch is needed from here on

    spaces, tower = [run.space], run.bare_tower()
    if run.hierarchy == "glit":
        spaces = [glit_split(run.space), glit_details(run.space, run.space.sample(random.Random(0)))]
    args: dict[str, Any] = {"device": "meta"} | ({} if tower is None else {"tower": tower})
    made = (Supernet(s, sharing=run.supernet.sharing, device="meta", model_args=args, **run.shape) for s in spaces)
    return [len(supernet.flat) for supernet in made]


def _network_weights(run: SearchRun, price: Pricer) -> list[int]:
    """For each budget the parameters of a large network within it."""
    largest, found = int(price(run.space.largest())["params"]), []
    for budget in run.budgets:
        feasible, rng = Feasible(run.space, budget.without_latency, price), random.Random(0)
        drawn = [int(price(arch)["params"]) for _ in range(20) if (arch := feasible.draw(rng)) is not None]
        found.append(max(drawn, default=largest))
    return found


def _steps(run: SearchRun, trainings: list[PlannedTraining], seeds: int) -> str:
    data = run.data
    known = 0 if data.classes else IMAGES.get((data.name, data.train_split), 0)
    images = max(0, min(known - data.holdout, data.train_limit or known)) if known else data.train_limit
    alike: Counter[tuple[str, int]] = Counter()
    for training in trainings:
        alike[training.kind, training.steps(images)] += training.times
    total = seeds * sum(one * times for (_, one), times in alike.items())
    parts = " + ".join(f"{times} x {one:,} ({kind})" for (kind, one), times in alike.items())
    where = f"with {images:,} training images" if images else "for every 1,000 training images"
    parts += f", for {seeds} seeds" if seeds > 1 else ""
    return f"up to {total:,} {where}: {parts}" if trainings else "none"


def _disk(run: SearchRun, trainings: list[PlannedTraining], networks: list[int], rows: int, seeds: int) -> str:
    """Weights and what the optimizer remembers of them in every checkpoint, the exported models, a row a score."""
    from s3zoo.training.features import shown

    checkpoints = sum(4 * each.times * each.weights * _copies(each.train) for each in trainings)
    rest = 4 * sum(networks) + rows * len(json.dumps(run.space.largest().to_dict()))
    least, most = (shown(seeds * (count * checkpoints + rest)) for count in (1, 2))
    text = f"about {least}" + (f", {most} once trainings have lasted for two checkpoints" if trainings else "")
    text += ", if later spaces are as large as the first" if run.space_search.method != "none" else ""
    return text + (", and the features" if FAMILIES[run.space.family].reads_tower and run.tower.cache != "none" else "")


def _copies(train: Train) -> int:
    """How many numbers a checkpoint has for each weight."""
    import torch

    from s3zoo.training.loop import ModelTask
    from s3zoo.training.optimizers import make_optimizer

    layer = torch.nn.Linear(8, 8, bias=False)
    optimizer = make_optimizer(ModelTask(layer), train)
    optimizer.step()
    kept = sum(value.numel() for value in optimizer.state[layer.weight].values() if torch.is_tensor(value))
    return 1 + kept // 64 + bool(train.ema)


def _tower_lines(run: SearchRun) -> list[str]:
    if (tower := run.bare_tower()) is None:
        return []
    from s3zoo.training.features import shown

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
