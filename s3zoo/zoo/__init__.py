"""Every model of the zoo: as a table, as a page to browse, and as model cards.

The page loads nothing from elsewhere and works without scripts; with them its columns sort and its rows filter. An
accuracy that was not measured by this project is the paper's, and says so. --throughput measures images per second and
keeps them in a file.

examples:
  s3zoo zoo --family s3
  s3zoo zoo --cards --html docs/zoo.html        in a clone, after a model was added (`make zoo`)
  s3zoo zoo --throughput --html docs/zoo.html   measure what docs/throughput.json lacks, then write the page
"""

from __future__ import annotations

import argparse
import json
import os
import re
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

from s3zoo.drawing import aligned, quantity
from s3zoo.families import BUILT_IN, FAMILIES
from s3zoo.files import check_writable, read_json, write_json, write_text

# What needs torch is imported where it is used: the table comes out of a file.
LISTED = Path(__file__).with_name("models.json")  # the rows of s3zoo's own families; --listing writes it
BATCH, ROUNDS = 8, 3
Row = dict[str, Any]


def rows(throughput: dict[str, Any] | None = None, *, built: bool = True) -> list[Row]:
    """One dict per model of the zoo, the entrypoints that build any architecture left out.

    Unless `built`, the networks of s3zoo's own families are taken as the file beside this module has them.
    """
    measured = (throughput or {}).get("models", {})
    found = _built() if built or set(FAMILIES) != set(BUILT_IN) else json.loads(LISTED.read_text(encoding="utf-8"))
    for row in found:
        speed = measured.get(row["name"], {})
        row["throughput"] = speed["images_per_second"] if speed.get("arch") == row["arch"] else None
    return found


def _built() -> list[Row]:
    from s3zoo.cards import Facts, registered, registered_names, weights_source
    from s3zoo.cards.facts import NO_WEIGHTS

    out = []
    for name in registered_names():
        facts = Facts(registered(name))
        if facts.generic:
            continue
        accuracy = facts.accuracy() or {}
        row = {
            "name": name,
            "tag": facts.cfg.get("tag", ""),
            "family": facts.arch.family,
            "arch": facts.arch.key,
            "img_size": facts.input_size[1],
            "params": facts.params,
            **facts.macs(),
            "top1": accuracy.get("value"),
            "dataset": accuracy.get("dataset"),
            "whose": accuracy.get("whose"),
            "throughput": None,
            "weights": weights_source(facts.cfg),
            "licence": None if weights_source(facts.cfg) == NO_WEIGHTS else facts.licence,
        }
        out.append(row)
    return out


def table(found: Sequence[Row]) -> str:
    lines = [("model", "family", "params", "MACs", "top-1", "on", "whose figure", "weights")]
    for r in found:
        top1 = "-" if r["top1"] is None else f"{r['top1']:.1f}"
        sizes = (quantity(r["params"]), quantity(r["macs"]))
        lines.append((r["name"], r["family"], *sizes, top1, r["dataset"] or "-", r["whose"] or "-", r["weights"]))
    return aligned(lines, "<<>>><<<")


# Throughput


def measure(names: Sequence[str], say: Callable[[str], None]) -> Row:
    """Images per second of processor time on one thread, by model; rounds over all models, so that a slow minute of
    the machine does not fall on one of them."""
    import timm
    import torch

    from s3zoo.search.latency_runtime import threads_set

    models = {}
    for name in names:
        model: Any = timm.create_model(name).eval()
        models[name] = model, torch.randn(BATCH, *model.pretrained_cfg["input_size"])
    seconds: dict[str, list[float]] = {name: [] for name in names}
    with threads_set(1):
        for number in range(ROUNDS + 1):  # the first is not counted
            for name, (model, images) in models.items():
                start = time.process_time()
                model(images)
                spent = time.process_time() - start
                if number:
                    seconds[name].append(spent)
            say(f"throughput: round {number} of {ROUNDS} done")
    return {
        name: {
            "images_per_second": float(f"{BATCH / statistics.median(taken):.4g}"),
            "range": [float(f"{BATCH / max(taken):.4g}"), float(f"{BATCH / min(taken):.4g}")],
        }
        for name, taken in seconds.items()
    }


def read_throughput(path: Path) -> dict[str, Any]:
    if not path.exists():
        return {}
    remedy = "measure again with --throughput all, or name another --throughput-file"
    models = {"*": {"arch": str, "images_per_second": float}}
    return read_json(path, {"what": str, "machine": str, "torch": str, "batch": int, "models": models}, remedy=remedy)


def update_throughput(path: Path, archs: dict[str, str], again: bool, say: Callable[[str], None]) -> dict[str, Any]:
    """Measure the models (keys of their architectures by name) that the file lacks, with `again` all, and write it."""
    setting = {
        "what": "images per second of processor time on one thread, fp32, random weights, median of the rounds",
        "machine": f"{os.cpu_count()} CPU cores, shared with other work",
        "torch": version("torch").partition("+")[0],
        "batch": BATCH,
        "rounds": ROUNDS,
    }
    old = {} if again else read_throughput(path)
    if old and {key: old.get(key) for key in setting} != setting:
        raise ValueError(f"{path} was measured on another machine or with another torch; use --throughput all.")
    known = {name: entry for name, entry in old.get("models", {}).items() if entry["arch"] == archs.get(name)}
    lacking = [name for name in archs if name not in known]
    found = measure(lacking, say) if lacking else {}
    entries = {name: known.get(name) or {"arch": key, **found[name]} for name, key in archs.items()}
    new = setting | {"models": entries}
    write_json(path, new)
    return new


# Files


def listing(found: Sequence[Row]) -> str:
    """The text of models.json."""
    own = [row | {"throughput": None} for row in found if row["family"] in BUILT_IN]
    return json.dumps(own, indent=1) + "\n"


def in_readme(text: str, found: Sequence[Row]) -> str:
    """The text of a README with its table of models, the one that begins with "| model |", made anew."""
    from s3zoo.cards import table

    rows = [
        (f"`{r['name']}`", quantity(r["params"]), quantity(r["macs"]), "–" if r["top1"] is None else f"{r['top1']:.1f}",
         r["dataset"] or "", r["whose"] or "", r["weights"])
        for r in found
    ]  # fmt: skip
    made = table("", "", ("model", "parameters", "MACs", "top-1", "on", "whose figure", "weights"), rows)
    new, times = re.subn(r"^\| model \|.*(?:\n\|.*)*", lambda _: made, text, flags=re.M)
    if times != 1:
        raise ValueError(f"--readme names a file with {times} tables that begin with '| model |', but must have one.")
    return new


def card_files() -> dict[str, str]:
    """The text of every file under model_cards, by path."""
    from s3zoo.cards import files, registered, registered_names

    out: dict[str, str] = {}
    for name in registered_names():
        out |= {f"{name}/{file}": text for file, text in files(registered(name)).items()}
    return out


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="s3zoo zoo", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--family", choices=tuple(FAMILIES), help="of the table alone")
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    parser.add_argument("--html", metavar="PATH", type=Path, help="write the page to browse")
    parser.add_argument("--plot", metavar="PATH", type=Path, help="write accuracy against parameters as a .svg file")
    parser.add_argument("--cards", metavar="FOLDER", type=Path, nargs="?", const=Path("model_cards"),
                        help="write a card per model (into model_cards unless given)")  # fmt: skip
    parser.add_argument("--listing", metavar="PATH", type=Path, help="write what the table is printed from")
    parser.add_argument("--readme", metavar="PATH", type=Path, help="write this file's table of models anew")
    parser.add_argument("--throughput", choices=("missing", "all"), nargs="?", const="missing",
                        help="measure images per second of what the file lacks, or of all models")  # fmt: skip
    parser.add_argument("--throughput-file", metavar="PATH", type=Path, default=Path("docs/throughput.json"),
                        help="where throughput is kept (default: %(default)s)")  # fmt: skip
    args = parser.parse_args(argv)
    files = {"--html": args.html, "--plot": args.plot, "--listing": args.listing, "--readme": args.readme}
    files |= {"--throughput-file": args.throughput and args.throughput_file}
    for option, path in files.items():
        if path:
            check_writable(path, option)
    if args.cards:
        check_writable(args.cards, "--cards", folder=True)
    if args.readme and not args.readme.is_file():
        raise ValueError(f"--readme is {str(args.readme)!r}, which is no file; give one with a table of models.")

    def say(text: str) -> None:
        print(text, file=sys.stderr, flush=True)

    if args.throughput:
        archs = {row["name"]: row["arch"] for row in rows()}
        throughput = update_throughput(args.throughput_file, archs, args.throughput == "all", say)
    else:
        throughput = read_throughput(args.throughput_file)
    found = rows(throughput, built=bool(args.cards or args.html or args.plot or args.listing or args.readme))
    if args.cards:
        cards = card_files()
        for path, text in cards.items():
            write_text(args.cards / path, text)
        say(f"wrote the cards of {len({path.partition('/')[0] for path in cards})} models into {args.cards}")
    if args.listing:
        write_text(args.listing, listing(found))
    if args.readme:
        write_text(args.readme, in_readme(args.readme.read_text(encoding="utf-8"), found))
    if args.html or args.plot:
        from s3zoo.zoo.page import page, plot
    if args.html:
        write_text(args.html, page(found, throughput))
        say(f"wrote {args.html}")
    if args.plot:
        write_text(args.plot, plot(found, "params", standalone=True))
        say(f"wrote {args.plot}")
    shown = [row for row in found if args.family in (None, row["family"])]
    print(json.dumps(shown, indent=1) if args.json else table(shown))
    return 0
