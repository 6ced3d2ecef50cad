"""Where S3 or S4 goes from a space, given a way to score networks: by a supernet, or by what a run has recorded."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Iterator
from pathlib import Path

from s3zoo.arch import Arch
from s3zoo.files import Records
from s3zoo.search import s3, s4
from s3zoo.search.budget import Pricer
from s3zoo.search.config import SearchRun
from s3zoo.search.records import check_scored, read_space
from s3zoo.search.space_search import Decision, SpaceSearch, equivalent_dims
from s3zoo.space import Space
from s3zoo.training.loop import seed_from


def choose_move(
    run: SearchRun, space: Space, index: int, sizes: Pricer, evaluate: Callable[[list[Arch]], list[float]]
) -> Decision:
    """Where S3 or S4 goes from a space, by the accuracies of the architectures that it asks for."""
    config = run.space_search
    rng = random.Random(seed_from(run.seed, "space", index))
    frozen = equivalent_dims(space, run.data.img_size)
    if config.method == "s3":
        identity: Callable[[Arch], Arch] = lambda arch: arch.effective(run.data.img_size)  # noqa: E731
        archs = s3.samples(space, config.samples, rng, within_limit(config, sizes), identity)
        if not archs:
            record = {"method": "s3", "samples": 0, "dims": []}
            return Decision(space, False, "it has no network within the limits", record)
        errors = [100 - score for score in evaluate(archs)]
        return s3.decide(space, list(zip(archs, errors, strict=True)), config, frozen=frozen)
    pairs = s4.pairs(space, config.pairs, rng, frozen=frozen)
    scores = iter(evaluate([arch for pair in pairs for arch in (pair.low_arch, pair.high_arch)]))
    measured = [(pair, next(scores), next(scores)) for pair in pairs]
    price: Callable[[Arch], float] = lambda arch: sizes(arch)[config.limit_metric]  # noqa: E731
    return s4.decide(space, measured, config, price, frozen=frozen)


def within_limit(config: SpaceSearch, sizes: Pricer) -> Callable[[Arch], bool]:
    return lambda arch: config.allows(sizes(arch)[config.limit_metric])


def replayed_moves(run: SearchRun, folder: Path) -> Iterator[str]:
    """What each visited space of a run would have moved to under these settings of the space search, in a line.

    Nothing is trained or scored: the accuracies are those in the run's scores.jsonl files.
    """
    if run.space_search.method == "none":
        raise ValueError(f"The config {run.name} moves no space (space_search.method is 'none'), so none is replayed.")
    for index in itertools.count():
        place = folder / f"space{index}"
        path = place / "scores.jsonl"
        if not path.exists() and index == 0:
            raise ValueError(f"{str(path)!r} does not exist; give the folder of a run as --out.")
        if not path.exists():
            return
        rows = Records(path, check=check_scored, write=False).rows
        known = {Arch.from_dict(row["arch"]): row["accuracy"] for row in rows if "arch" in row}

        def recorded(archs: list[Arch], scores: dict[Arch, float] = known, path: Path = path) -> list[float]:
            same = [arch.effective(run.data.img_size) for arch in archs]
            if lacking := [arch for arch in same if arch not in scores]:
                raise ValueError(
                    f"{path} has no score of {len(lacking)} of the {len(same)} networks that this config asks for; give"
                    " the run's own config and seed, and change only what decides on scores, such as space_search.tau,"
                    " rounding or significance."
                )
            return [scores[arch] for arch in same]

        space = read_space(place / "space.json")
        yield f"{place.name}: {choose_move(run, space, index, Pricer(**run.priced), recorded).told()}"
