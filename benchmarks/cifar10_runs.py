"""What is kept of the CIFAR-10 study's runs: taken in, put back to go on with, and read together."""

from __future__ import annotations

import io
import shutil
import tarfile
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from s3zoo import scored
from s3zoo.arch import Arch
from s3zoo.drawing import quantity
from s3zoo.files import Records, read_json, write_json
from s3zoo.search.budget import Budget
from s3zoo.search.published import FinishedRun
from s3zoo.search.report import data
from s3zoo.space import Space
from s3zoo.study import Study, kept, method_of
from s3zoo.training import checkpoint
from s3zoo.training.registry import load_config

KEPT = Path(__file__).resolve().parent / "data/cifar10"
BEGUN = "begun"  # there: runs to go on with
RANKED = ("inherited", "accuracy")  # of a network of a supernet: with its weights, and trained from scratch
LABELS = {
    "s3": "S3", "s3_still": "S3, space stays", "s3_gentle": "S3, smaller steps", "swin": "Swin",
    "s4_vit": "S4-ViT", "autoformer": "AutoFormer", "deit": "DeiT", "deit_mini": "DeiT of more MACs",
    "s4_vit_step": "S4-ViT, by steps, fewer MACs", "s4_vit_free": "S4-ViT without a limit",
    "s3_vit": "S3 in S4-ViT's space", "s3_vit_free": "S3 in S4-ViT's space, without a limit",
    "glit": "GLiT", "glit_global": "GLiT's, all heads global", "glit_conv2d": "GLiT, larger, trained longer",
    "s4_swin": "S4-Swin", "swin_mini": "Swin", "s4_shunted": "S4-Shunted", "shunted": "Shunted",
}  # fmt: skip


def pack(folder: Path) -> None:
    """Take in what the runs of a study left, and every start."""
    study = load_config("cifar10", Study, "study")
    runs = sorted(path.parent for path in folder.glob("*/run.json"))
    finished = [run for run in runs if (run / "result.json").exists()]
    for run in finished:
        archive(run, KEPT / f"{run.name}.tar.xz", [path for path in kept(run) if path.suffix != ".safetensors"])
    done = {path.name.removesuffix(".tar.xz") for path in KEPT.glob("*.tar.xz")}
    needed = {name for run in study.runs if run.name not in done for name in (run.name, *run.needs)}
    for run in runs:
        if run.name in needed and any(run.rglob("step-*")):
            with tempfile.TemporaryDirectory() as scratch:
                light = supernet_alone(run, Path(scratch)) if run in finished else run
                archive(light, KEPT / BEGUN / f"{run.name}.tar.xz", list(state(light)))
    for path in KEPT.glob(f"{BEGUN}/*.tar.xz"):
        if path.name.removesuffix(".tar.xz") not in needed:
            path.unlink()
    if (folder / "study.jsonl").exists():
        known = Records(KEPT / "study.jsonl")
        known.append([row for row in Records(folder / "study.jsonl", write=False).rows if row not in known.rows])


def state(run: Path) -> Iterator[Path]:
    """The files that a run goes on from."""
    for path in sorted(run.rglob("*")):
        parts = path.relative_to(run).parts
        other = path.name.startswith(".") or parts[0] in ("log.txt", "tensorboard", "model", "report")
        if path.is_file() and not other:
            step = path.parent if path.parent.name.startswith("step-") else None
            if step is None or step == checkpoint.steps(path.parent.parent)[-1]:
                yield path


def supernet_alone(run: Path, scratch: Path) -> Path:
    """A folder with what other runs take from a finished one beside its records: the supernet that it searched last,
    without what an optimizer keeps."""
    place = FinishedRun(run).place / "supernet"
    tensors, about = checkpoint.load(place) or ({}, {})
    weights = {name: each for name, each in tensors.items() if name.startswith(("weight.", "average."))}
    target = scratch / run.name
    about = {name: value for name, value in about.items() if name != "sha256"}
    checkpoint.save(target / place.relative_to(run), about.pop("step"), weights, about)
    shutil.copyfile(run / "run.json", target / "run.json")
    return target


def archive(run: Path, target: Path, paths: Iterable[Path]) -> None:
    """Without times, owners and places of this machine, so that the same run gives the same archive."""
    config = read_json(run / "run.json")["config"]
    places = {config["data"]["root"]: "cifar10", (source := config.get("supernet_weights", "")): Path(source).name}
    target.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(target, "w:xz", preset=9) as packed:
        for path in sorted(paths):
            entry = tarfile.TarInfo(str(path.relative_to(run.parent)))
            content = path.read_bytes()
            for place, name in places.items() if path.suffix != ".safetensors" else ():
                content = content.replace(place.encode(), name.encode()) if place else content
            entry.size = len(content)
            packed.addfile(entry, io.BytesIO(content))
    print(f"{target.relative_to(KEPT)}: {target.stat().st_size:,} bytes")


def unpack(folder: Path) -> None:
    """Put the runs that were taken in into a study's folder, but for those that it has; the queue goes on there."""
    paths = [*KEPT.glob("*.tar.xz"), *KEPT.glob(f"{BEGUN}/*.tar.xz")]
    for path in [path for path in paths if not (folder / path.name.removesuffix(".tar.xz")).exists()]:
        with tarfile.open(path) as packed:
            packed.extractall(folder, filter="data")
        about = folder / path.name.removesuffix(".tar.xz") / "run.json"
        run = read_json(about)
        if source := run["config"].get("supernet_weights"):  # as the queue names it, or the run is another one to it
            run["config"]["supernet_weights"] = str(folder / source)
            write_json(about, run)


class Found(NamedTuple):
    """The study and what its finished runs left, in a folder of their names."""

    study: Study
    folder: Path
    searches: list[data.Run]
    outcomes: dict[str, scored.Outcome]  # by run, in the study's order

    @property
    def methods(self) -> dict[str, list[scored.Outcome]]:
        """The seeds of each method."""
        found: dict[str, list[scored.Outcome]] = {}
        for name, outcome in self.outcomes.items():
            found.setdefault(method_of(name), []).append(outcome)
        return found

    def seeds(self, method: str) -> list[data.Run]:
        return [run for run in self.searches if method_of(run.folder.name) == method]

    def searched(self, method: str) -> bool:
        """Whether its networks were found by a search: its own, or that of a run that it reads."""
        runs = [run for run in self.study.runs if method_of(run.name) == method]
        return any(run.command.startswith("search ") or run.needs for run in runs)

    @property
    def supernets(self) -> list[data.Run]:
        """The searches that trained their own, and not another run's once more."""
        return [run for run in self.searches if not run.config["supernet_weights"]]

    def networks(self) -> list[scored.ScoredNetwork]:
        return scored.of_runs(run.folder for run in self.searches)

    def spaces(self) -> dict[tuple[str, str], Space]:
        return scored.spaces_of_runs(run.folder for run in self.searches)


@contextmanager
def recorded() -> Iterator[Found]:
    study = load_config("cifar10", Study, "study")
    with tempfile.TemporaryDirectory() as scratch:
        for path in sorted(KEPT.glob("*.tar.xz")):
            with tarfile.open(path) as archive:
                archive.extractall(scratch, filter="data")
        done = [run for run in study.runs if Path(scratch, run.name).exists()]
        searches = data.read_all([Path(scratch, run.name) for run in done if run.command.startswith("search ")])
        yield Found(study, Path(scratch), searches, {run.name: scored.outcome(Path(scratch, run.name)) for run in done})


def together(study: Study) -> list[list[str]]:
    """Methods that are compared with each other: they have one limit."""
    found: list[list[str]] = []
    for one, two in study.compared:
        group = next((group for group in found if {one, two} & set(group)), None)
        if group is None:
            found.append([two, one])
        else:
            group += [name for name in (two, one) if name not in group]
    return found


def limit_of(run: data.Run) -> Budget:
    return next((Budget.parse(text) for text in run.config["arch_search"]["budgets"]), Budget())


def arch_of(found: Found, outcome: scored.Outcome) -> Arch:
    return Arch.from_dict(read_json(found.folder / outcome.name / "model/config.json")["model_args"]["arch"])


def trained(found: Found) -> dict[str, list[dict[str, Any]]]:
    """The networks that were trained from scratch, by the run whose supernet has scored them, where it has several."""
    rows: dict[str, list[dict[str, Any]]] = {}
    for run in found.searches:
        some = [row for row in run.winners if None not in (row["inherited"], row["accuracy"])]
        rows.setdefault(run.config["supernet_weights"] or run.folder.name, []).extend(
            row | {"run": run.folder.name} for row in some
        )
    return {source: some for source, some in rows.items() if len(some) > 1}


def random_searches(found: Found, run: data.Run) -> list[data.Search]:
    """Those of other runs in the supernet that this one ended with."""
    again = [each for each in found.searches if each.config["supernet_weights"] == run.folder.name]
    return [each.visits[-1].searches[0] for each in again]


def told(values: Iterable[float]) -> str:
    low, high = quantity(min(values := list(values))), quantity(max(values))
    return low if low == high else f"{low} to {high}"
