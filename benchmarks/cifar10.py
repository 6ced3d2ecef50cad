"""What `s3zoo study cifar10` left, as networks with cards, a table of scored networks, a page and its figures.

    python benchmarks/cifar10.py --pack runs/cifar10    # take in what the runs left, then write all of it anew
    python benchmarks/cifar10.py                        # write it anew from what was taken in before
    python benchmarks/cifar10.py --unpack runs/cifar10  # on another machine: all runs without weights, to go on

Taken in: benchmarks/data/cifar10 (every finished run without its weights, what others go on from, and every start).
Written from that: the cards in s3zoo/weights, s3zoo/tables/cifar10.jsonl.xz with its card, docs/cifar10.md,
docs/cifar10*.svg. `make zoo` then brings the rest up to date.
"""

from __future__ import annotations

import argparse
import shutil
import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path

from cifar10_figures import front, pictures
from cifar10_runs import Found, pack, recorded, unpack
from cifar10_tables import page

from s3zoo import drawing, hub, scored
from s3zoo.cards import table
from s3zoo.files import write_text
from s3zoo.space import Space
from s3zoo.study import method_of

ROOT = Path(__file__).resolve().parent.parent
DOCS, WEIGHTS = ROOT / "docs", ROOT / "s3zoo/weights"
TABLE, TABLE_CARD = ROOT / "s3zoo/tables/cifar10.jsonl.xz", ROOT / "s3zoo/tables/README.md"
MARKS = "<!-- written by benchmarks/cifar10.py -->", "<!-- end of what was written by benchmarks/cifar10.py -->"
# Named before the runs: the first seed of each method, whatever came out of it, and the one that trains longer
METHODS = ("s3", "s4_vit", "autoformer", "glit", "s4_swin", "s4_shunted")
PUBLISHED = {f"{method}-0": f"{method}_micro.cifar10" for method in METHODS} | {"glit_conv2d-0": "glit_mini.cifar10"}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pack", type=Path, metavar="FOLDER", help="the study's folder: take in its runs")
    parser.add_argument("--unpack", type=Path, metavar="FOLDER", help="only put the runs there, to go on with")
    arguments = parser.parse_args()
    if arguments.unpack:
        if arguments.unpack.exists() and not arguments.unpack.is_dir():
            parser.error(f"--unpack is {str(arguments.unpack)!r}, which is a file; give a folder.")
        return unpack(arguments.unpack)
    if arguments.pack:
        if not any(arguments.pack.glob("*/run.json")):
            parser.error(f"--pack is {str(arguments.pack)!r}, which has no runs; give the folder of the study's runs.")
        pack(arguments.pack)
    with recorded() as found:
        publish(found, arguments.pack)
        scored.save(found.networks(), TABLE, found.spaces())
        write_text(TABLE_CARD, inserted(TABLE_CARD, counts(scored.load(TABLE), scored.spaces(TABLE))))
        drawn = {name: (label, figure) for name, label, figure in pictures(found)}
        for path in DOCS.glob("cifar10*.svg"):
            path.unlink()
        for name, (_, figure) in drawn.items():
            drawing.save(figure, DOCS / f"{name}.svg")
        write_text(DOCS / "cifar10.svg", front(found))
        text = page(found, [(name, label) for name, (label, _) in drawn.items()])
        write_text(DOCS / "cifar10.md", inserted(DOCS / "cifar10.md", text))


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


def counts(scores: Iterable[scored.ScoredNetwork], spaces: Mapping[tuple[str, str], Space]) -> str:
    """What the table has, for its card."""
    groups: dict[tuple[str, str], list[scored.ScoredNetwork]] = {}
    for each in scores:
        groups.setdefault((each.run, each.space), []).append(each)
    rows = []
    for (run, space), some in groups.items():
        full = [each.accuracy for each in some if each.full and each.accuracy is not None and not each.role]
        trained = ", ".join(f"{each.role} {each.test:.2f}" for each in some if each.role)
        span = f"{min(full):.2f} to {max(full):.2f}" if full else ""
        size = spaces[run, space].size()
        amount = f"{size:,}" if size < 1e6 else f"{size:.1e}"
        rows.append((run, space, amount, len([each for each in some if not each.role]), len(full), span, trained))
    head = ("run", "space", "its networks", "scored", "of these in full", "their accuracy (%)", "trained: test (%)")
    return f"{sum(row[3] for row in rows):,} networks were scored.\n\n{table('', '', head, rows)}"


def inserted(path: Path, text: str) -> str:
    """The file with the text in its place between the marks."""
    before, _, rest = path.read_text(encoding="utf-8").partition(MARKS[0])
    after = rest.partition(MARKS[1])[2]
    return f"{before}{MARKS[0]}\n\n{text}\n\n{MARKS[1]}{after}"


if __name__ == "__main__":
    main()
