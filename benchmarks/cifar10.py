"""The tables and figures of docs/cifar10.md, from what `s3zoo study cifar10 --keep FOLDER` left.

    python benchmarks/cifar10.py --pack FOLDER    # finished runs without their weights into benchmarks/data/cifar10
    python benchmarks/cifar10.py                  # docs/cifar10.md and docs/cifar10-*.svg anew from these
"""

from __future__ import annotations

import argparse
import io
import math
import statistics
import tarfile
import tempfile
from collections.abc import Iterable
from pathlib import Path

from s3zoo import drawing
from s3zoo.files import Records, read_json
from s3zoo.search.report import data, figures
from s3zoo.study import Study, summary
from s3zoo.training.registry import load_config

ROOT = Path(__file__).resolve().parent.parent
KEPT, DOCS = ROOT / "benchmarks/data/cifar10", ROOT / "docs"
MARK = "<!-- {} by benchmarks/cifar10.py -->"
WEIGHTS = ".safetensors"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pack", type=Path, metavar="FOLDER", help="take finished runs from here")
    arguments = parser.parse_args()
    if arguments.pack:
        pack(arguments.pack)
        return
    study = load_config("cifar10", Study, "study")
    with tempfile.TemporaryDirectory() as scratch:
        for path in sorted(KEPT.glob("*.tar.xz")):
            with tarfile.open(path) as archive:
                archive.extractall(scratch, filter="data")
        searches = [run for run in study.runs if run.command.startswith("search ")]
        folders = [Path(scratch, run.name) for run in searches if Path(scratch, run.name).exists()]
        runs = data.read_all(folders)
        text = "\n\n".join([summary(study, study.runs, Path(scratch)), signal(runs), moves(runs), starts()])
        draw([run for run in runs if run.folder.name.startswith("s3-")], "s3")
        draw([run for run in runs if run.folder.name.startswith("s4_vit-")], "s4_vit")
    before, _, rest = (DOCS / "cifar10.md").read_text(encoding="utf-8").partition(MARK.format("written"))
    after = rest.partition(MARK.format("end of what was written"))[2]
    marks = MARK.format("written"), MARK.format("end of what was written")
    (DOCS / "cifar10.md").write_text(f"{before}{marks[0]}\n\n{text}\n\n{marks[1]}{after}", encoding="utf-8")


def pack(folder: Path) -> None:
    """Without times, owners and the place of the images, so that the same run gives the same archive."""
    KEPT.mkdir(parents=True, exist_ok=True)
    for run in sorted(path.parent for path in folder.glob("*/result.json")):
        place = read_json(run / "run.json")["config"]["data"]["root"]
        with tarfile.open(KEPT / f"{run.name}.tar.xz", "w:xz", preset=9) as archive:
            for path in sorted(run.rglob("*")):
                if path.is_file() and path.suffix != WEIGHTS:
                    entry = tarfile.TarInfo(str(path.relative_to(folder)))
                    content = path.read_bytes().replace(place.encode(), b"cifar10")
                    entry.size = len(content)
                    archive.addfile(entry, io.BytesIO(content))
        print(f"{run.name}: {(KEPT / f'{run.name}.tar.xz').stat().st_size:,} bytes")


def table(head: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    lines = [list(head), *map(list, rows)]
    lines.insert(1, ["---"] * len(lines[0]))
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def signal(runs: Iterable[data.Run]) -> str:
    """How much random networks of a space differ, beside the error of one score."""
    rows = []
    for run in runs:
        images = run.config["data"]["holdout"]
        for visit in run.visits:
            scores = [network.accuracy for network in visit.random if network.full]
            if len(scores) > 1:
                mean, spread = statistics.fmean(scores), statistics.stdev(scores)
                error = 100 * math.sqrt(mean / 100 * (1 - mean / 100) / images)
                best = f"{min(scores):.1f} to {max(scores):.1f}"
                where = f"{run.folder.name}, space{visit.index}"
                rows.append((where, f"{len(scores)}", f"{mean:.1f}", best, f"{spread:.2f}", f"{error:.2f}"))
    head = ("random networks of", "number", "mean (%)", "range", "standard deviation", "error of a score")
    return table(head, rows)


def moves(runs: Iterable[data.Run]) -> str:
    rows = []
    for run in runs:
        for index, decision in enumerate(run.decisions):
            rows.append((run.folder.name, f"space{index}", decision.told().replace("|", "/")))
    return table(("run", "from", "what moved"), rows)


def starts() -> str:
    """Every process that was started."""
    rows = [
        (row["name"], f"`s3zoo {row['command']}`", f"{row['seconds']:,}", "finished" if row["done"] else "stopped")
        for row in Records(KEPT / "study.jsonl", write=False).rows
    ]
    return table(("run", "command", "seconds", ""), rows)


def draw(runs: list[data.Run], name: str) -> None:
    """The figures of the report that the page shows."""
    if not runs:
        return
    groups = data.grouped(runs)
    with drawing.style():
        for panel in (figures.moving, figures.slopes, figures.distributions, figures.generations, figures.sizes):
            for drawn in panel(groups):
                drawing.save(drawn.figure, DOCS / f"cifar10-{name}-{drawn.name}.svg")


if __name__ == "__main__":
    main()
