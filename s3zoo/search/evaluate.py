"""Scores of subnets on the held-out images: every architecture once, shared between ranks, recorded as it goes."""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import numpy as np
from torch import Tensor, nn

from s3zoo.arch import Arch
from s3zoo.files import Records
from s3zoo.search.racing import Race, packed, unpacked
from s3zoo.supernet import Supernet, recalibrate
from s3zoo.training.accuracy import hits
from s3zoo.training.data import ImageData
from s3zoo.training.distributed import Ranks
from s3zoo.training.log import Log
from s3zoo.training.loop import Stop
from s3zoo.training.resumable import AUTOSAVE_SECONDS, Row, resumable

SUBNETS = 16  # of a rank between two records, or as many as take about AUTOSAVE_SECONDS
PART = 512  # images that are scored at once,
PIXELS = 128 * 224 * 224  # or as many as have so many pixels


class Evaluator:
    """Accuracies (in percent) of a supernet's subnets, kept in a JSONL file.

    Answers that are not an accuracy yet are kept in `unfinished`: which of certain images a subnet got right.
    """

    def __init__(
        self, supernet: Supernet, data: ImageData, ranks: Ranks, log: Log, records: Records, stop: Stop, *,
        price: Callable[[Arch], dict[str, float]], unfinished: Records | None = None, calibration_images: int = 1024,
        name: str = "scores",
    ) -> None:  # fmt: skip
        self.supernet, self.data, self.ranks, self.log, self.stop = supernet, data, ranks, log, stop
        self.price, self.name = price, name
        self._records, self._unfinished = records, unfinished or Records(None)
        self._calibration_images = calibration_images
        self._said = False
        self.scores: dict[Arch, float] = {
            Arch.from_dict(row["arch"]): row["accuracy"] for row in records.rows if "arch" in row
        }

    def identity(self, arch: Arch) -> Arch:
        return arch.effective(self.supernet.img_size)

    def ready(self, arch: Arch) -> nn.Module:
        """The subnet, ready to be scored."""
        model, images = self.supernet.subnet(arch), self.data.calibration_batches(self._calibration_images)
        norms = recalibrate(model, (x.to(self.ranks.device) for x in images))
        if norms and not self._said and self._records.path is not None:
            self._said = True
            self.log.say(
                f"{self.name}: the batch norms of every subnet are recalibrated on {self._calibration_images}"
                " training images"
            )
        return model.eval()

    def correct(self, arch: Arch, images: np.ndarray) -> np.ndarray:
        """Which of these held-out images the subnet classifies rightly."""
        model = self.ready(arch)
        return np.concatenate([self._hits(model, part) for part in self._parts(images)])

    def _parts(self, images: np.ndarray) -> list[np.ndarray]:
        size = max(1, min(PART, PIXELS // self.data.config.img_size**2))
        return np.array_split(images, -(-len(images) // size))

    def _hits(self, model: nn.Module, part: np.ndarray) -> np.ndarray:
        return hits(model, *self.data.search_at(part), self.ranks.device).numpy()

    def __call__(self, archs: Sequence[Arch]) -> list[float]:
        """The accuracies of these architectures; those that are new are scored, on all ranks together."""
        wanted = list(dict.fromkeys(self.identity(arch) for arch in archs))
        new = [arch for arch in wanted if arch not in self.scores]
        for answered in self.answers(new, np.arange(self.data.search_size)):
            fresh = {arch: float(right.mean() * 100) for arch, right in answered}
            self.scores |= fresh
            self._records.append(
                {"arch": arch.to_dict(), "accuracy": score, **self.price(arch)} for arch, score in fresh.items()
            )
        self._unfinished.clear()
        return [self.scores[self.identity(arch)] for arch in archs]

    def answers(self, archs: Sequence[Arch], images: np.ndarray) -> Iterator[list[tuple[Arch, np.ndarray]]]:
        """Which of these images each subnet classifies rightly: those that are complete, in the order of `archs`.

        The unit of work is a subnet's answers to one part of the images. For subnets A, B, C and two parts p, q, with
        two ranks and a kill after the first meeting, the file `unfinished` grows like this:

            rank 0 has A and C, rank 1 has B          rows: A p, A q from rank 0; B p from rank 1
            they meet: A is complete                  -> [(A, its answers to p and q, one after the other)]
            killed; the next process reads the rows   lacking: B (its part q) and C (both)
            rank 0 has B now, rank 1 has C            rows: B q; C p, C q
            they meet: B and C are complete           -> [(B, …), (C, …)]

        So no part is asked twice, a subnet is built on one rank only, and C waits for B, whoever is first: what the
        caller writes down does not depend on kills or on the number of ranks.
        """
        parts = self._parts(images)
        names = [hashlib.sha256(part.astype("<i8").tobytes()).hexdigest()[:16] for part in parts]
        known = {(row["arch"], row["images"]): row["right"] for row in self._unfinished.rows}
        given = 0

        def complete(arch: Arch) -> bool:
            return all((arch.key, name) in known for name in names)

        def asked(own: list[Arch]) -> Iterator[Row]:
            for arch in own:
                model = self.ready(arch)
                for name, part in zip(names, parts, strict=True):
                    if (arch.key, name) not in known:
                        yield {"arch": arch.key, "images": name, "right": packed(self._hits(model, part))}

        def reached() -> str:
            return f"{self.name}: stopped after {len(self.scores)} scores"

        def completed() -> list[tuple[Arch, np.ndarray]]:
            found = []
            for arch in itertools.takewhile(complete, archs[given:]):
                rows = [unpacked(known[arch.key, name], len(p)) for name, p in zip(names, parts, strict=True)]
                found.append((arch, np.concatenate(rows)))
            return found

        meter = self.log.progress(self.name, len(archs))
        work = resumable(
            [arch for arch in archs if not complete(arch)], asked, self._unfinished, self.ranks, self.stop,
            reached=reached, most=SUBNETS * len(parts), every=AUTOSAVE_SECONDS,
        )  # fmt: skip
        for rows in itertools.chain([self._unfinished.rows], work):
            known |= {(row["arch"], row["images"]): row["right"] for row in rows}
            if answered := completed():
                given += len(answered)
                yield answered
            best = {"best": max(self.scores.values())} if self.scores else {}
            meter.update(given, **best)
            if best and self._records.path is not None:
                self.log.curve(f"{self.name}, networks", len(self.scores), best)
        self.log.close_progress()


class RacingEvaluator(Evaluator):
    """Scores whole generations by racing. A generation is recorded when it is complete, with the state of the race;
    until then the answers of its networks are kept in `unfinished`."""

    def __init__(self, *args: Any, seed: int, keep: int, **options: Any) -> None:
        super().__init__(*args, **options)
        self.keep = keep
        self._race = Race(
            self.data.search_size, self._answers, seed=seed, keep=keep, identity=self.identity,
            agreed=self.ranks.from_first,
        )  # fmt: skip
        self._statistics: dict[Arch, dict[str, Tensor]] = {}
        self._replayed: list[list[dict[str, Any]]] = []  # generations of an earlier process, in their order
        self.scores = {}  # of full scores, filled as generations are replayed
        generation: list[dict[str, Any]] = []
        whole = 0
        for index, row in enumerate(self._records.rows):
            if "race" not in row:
                generation.append(row)
                continue
            self._race.forwards = row["race"]["forwards"]
            if row["race"].get("taken"):  # scores of another run with this supernet
                self._take(generation)
            else:
                self._replayed.append(generation)
            generation, whole = [], index + 1
        self._records.cut(whole)
        self._replayed.reverse()

    def ready(self, arch: Arch) -> nn.Module:
        """Statistics of batch norms are kept: a race asks about the same subnet again and again."""
        kept = self._statistics.get(arch)
        if kept is None:
            model = super().ready(arch)
            self._statistics[arch] = {name: buffer.clone() for name, buffer in model.named_buffers()}
            return model
        model = self.supernet.subnet(arch)
        for name, buffer in model.named_buffers():
            buffer.copy_(kept[name])
        return model.eval()

    def _answers(self, archs: Sequence[Arch], images: np.ndarray) -> np.ndarray:
        return np.stack([right for answered in self.answers(archs, images) for _, right in answered])

    def generation(self, archs: Sequence[Arch], parents: Sequence[Arch]) -> list[float]:
        """Scores of a generation; those who cannot become parents get an estimate below the parents' scores."""
        if self._replayed:
            return self._replay(archs)
        exact = [self.scores[self.identity(a)] for a in parents if self.identity(a) in self.scores]
        scores = self._race(archs, exact)
        rows: list[dict[str, Any]] = []
        for arch, score in zip(map(self.identity, archs), scores, strict=True):
            row = {"arch": arch.to_dict(), "accuracy": score.accuracy, "full": score.full, "images": score.images}
            if score.full and arch not in self.scores:
                self.scores[arch] = score.accuracy
                row["answers"] = self._race.answers(arch)
            rows.append(row | self.price(arch))
        self._records.append([*rows, {"race": {"forwards": self._race.forwards}}])
        self._unfinished.clear()
        self._statistics.clear()
        return [score.accuracy for score in scores]

    def _replay(self, archs: Sequence[Arch]) -> list[float]:
        """The scores of a generation of an earlier process. Full scores become known in the order they did there: an
        estimate of one search may be a full score of a later one."""
        rows = self._replayed.pop()
        recorded = [Arch.from_dict(row["arch"]) for row in rows]
        if recorded != [self.identity(arch) for arch in archs]:
            raise ValueError(
                f"{self.name}: the networks in evaluated.jsonl are not those that this search asks for; another version"
                " of s3zoo wrote them, so give another --out."
            )
        self._take([row for row in rows if "answers" in row])
        return [row["accuracy"] for row in rows]

    def _take(self, rows: Iterable[dict[str, Any]]) -> None:
        """Full scores of an earlier process or another run."""
        for row in rows:
            arch = Arch.from_dict(row["arch"])
            self.scores[arch] = row["accuracy"]
            if "answers" in row:
                self._race.remember(arch, row["answers"])
            else:  # scored without a race, which cannot learn from it which images are uncertain
                self._race.known[arch] = row["accuracy"]
