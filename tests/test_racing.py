"""Racing on synthetic per-image correctness: images with difficulties, networks with skills, correlated answers."""

import itertools
import json
import random
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from s3zoo.arch import Arch
from s3zoo.files import Records
from s3zoo.search import evaluate, racing
from s3zoo.search.evaluate import Evaluator, RacingEvaluator
from s3zoo.search.evolution import Evolution
from s3zoo.search.racing import Race, Score
from s3zoo.space import Dim, Space
from s3zoo.training.distributed import Ranks
from s3zoo.training.log import Log
from s3zoo.training.loop import Stop

Genome = tuple[int, ...]  # a race asks nothing of an architecture: here it is one of four genes per block


class World:
    """x_i = difficulty_i + skill + sum over blocks of (the gene's effect on image i) + noise > 0.

    About 80 % accuracy; two random networks disagree on about 6 % of the images, relatives on fewer. `spread` is the
    standard deviation of the accuracy over the space, in points.
    """

    def __init__(self, depth: int, spread: float, images: int, seed: int = 0) -> None:
        rng = np.random.default_rng(seed)
        self.depth, self.images = depth, images
        self.difficulty = rng.normal(0.84, 1, images)
        self.effects = rng.normal(0, 0.2 / depth**0.5, (depth, 4, images)).astype(np.float32)
        self.single, self.pairs = rng.normal(size=(depth, 4)), 0.5 * rng.normal(size=(depth, 4, 4))
        skills = [self.skill(tuple(genome)) for genome in rng.integers(4, size=(500, depth))]
        density = (abs(self.difficulty) < 0.1).mean() / 0.2  # accuracy per unit of skill
        self.middle, self.scale = np.mean(skills), spread / 100 / density / np.std(skills)
        self.bits: dict[Genome, np.ndarray] = {}
        self.calls: list[tuple[list[Genome], np.ndarray]] = []

    def skill(self, genome: Genome) -> float:
        alone = sum(self.single[j, g] for j, g in enumerate(genome))
        return alone + sum(self.pairs[j, a, b] for j, (a, b) in enumerate(itertools.pairwise(genome)))

    def right(self, genome: Genome) -> np.ndarray:
        if genome not in self.bits:
            noise = np.random.default_rng(genome).normal(0, 0.05, self.images)
            latent = self.difficulty + self.scale * (self.skill(genome) - self.middle) + noise
            self.bits[genome] = latent + sum(self.effects[j, g] for j, g in enumerate(genome)) > 0
        return self.bits[genome]

    def accuracy(self, genome: Genome) -> float:
        return 100 * float(self.right(genome).mean())

    def correct(self, genomes: Sequence[Any], images: np.ndarray) -> np.ndarray:
        self.calls.append((list(genomes), images))
        return np.stack([self.right(genome)[images] for genome in genomes])

    def generations(self, count: int, population: int = 50) -> list[list[Any]]:
        """What an evolution with plain evaluation would ask for."""
        rng, known = random.Random(0), dict[Genome, float]()
        asked = []
        for generation in range(count):
            best = sorted(known, key=lambda g: (-known[g], g))[:10]
            new: dict[Genome, float] = {}
            while len(new) < population:
                child = tuple(rng.randrange(4) for _ in range(self.depth))
                if generation and len(new) % 2:
                    child = tuple(map(rng.choice, zip(*rng.sample(best, 2), strict=True)))
                elif generation:
                    child = tuple(c if rng.random() < 0.2 else g for c, g in zip(child, rng.choice(best), strict=True))
                if rng.random() < 0.01:  # by and by, a stuck slot is left to chance
                    child = tuple(rng.randrange(4) for _ in child)
                if child not in known and child not in new:
                    new[child] = self.accuracy(child)
            known |= new
            asked.append(list(new))
        return asked


def raced(world: World, generations: list[list[Any]], **options: Any) -> tuple[dict[Any, Score], Race]:
    """A race over given generations of candidates."""
    race = Race(world.images, world.correct, **options)
    scores: dict[Any, Score] = {}
    for genomes in generations:
        best = sorted((s.accuracy for s in scores.values()), reverse=True)[: race.keep]
        scores |= zip(genomes, race(genomes, best), strict=True)
    return scores, race


# The promise


@pytest.mark.parametrize("spread", [0.3, 3])
def test_a_fifth_of_the_forwards_finds_the_winner(spread: float) -> None:
    """1,000 candidates of an evolution, 5,000 images, 20 image orders. (On average a seventh of the forwards.)"""
    world = World(12, spread, 5000)
    asked = world.generations(20)
    best = max(world.accuracy(arch) for archs in asked for arch in archs)
    close, shares = 0, []
    for order in range(20):
        scores, race = raced(world, asked, seed=order)
        winner = max(scores, key=lambda arch: scores[arch].accuracy)
        assert scores[winner] == (world.accuracy(winner), True, world.images)
        close += world.accuracy(winner) >= best - 0.1
        shares.append(race.forwards / (len(scores) * world.images))
    assert close >= 19, f"{close} of 20 orders"
    assert max(shares) <= 0.2, shares


def test_an_evolution_with_racing_ends_where_it_ends_without() -> None:
    """The race decides who becomes a parent here; 1,024 architectures, 192 of them asked for."""
    choices = {"depth": (5,), "embed_dim": (8,), "num_heads": (1, 2), "mlp_ratio": (1, 2), "head_dim": (4,)}
    dims = [Dim(gene, c, (1,), per_block=len(c) > 1) for gene, c in choices.items()]
    space, world = Space("racing", "autoformer", tuple(dims)), World(5, 1, 3000, seed=3)

    def correct(archs: Sequence[Arch], images: np.ndarray) -> np.ndarray:
        blocks = [arch.stages[0].blocks for arch in archs]
        return world.correct([tuple(int(2 * b.num_heads + b.mlp_ratio - 3) for b in bs) for bs in blocks], images)  # type: ignore[union-attr]

    options: dict[str, Any] = {"seed": 0, "population": 32, "crossover": 16, "mutation": 16, "generations": 6}
    plain = Evolution(space, **options)
    while archs := plain.ask():
        plain.tell(zip(archs, 100 * correct(archs, np.arange(world.images)).mean(1), strict=True))
    for order in range(2):
        engine, race = Evolution(space, **options), Race(world.images, correct, seed=order)
        while archs := engine.ask():
            scores = race(archs, [score for _, score in engine.top(10)])
            engine.tell((arch, score.accuracy) for arch, score in zip(archs, scores, strict=True))
        assert engine.best[1] >= plain.best[1] - 0.1 and len(engine.evaluated) == 192
        assert engine.best[1] == 100 * correct([engine.best[0]], np.arange(world.images)).mean()
        assert race.forwards < 0.35 * 192 * world.images  # a short search: its first generation weighs most


# Estimates


def test_estimates_are_unbiased_and_sharper_than_a_plain_sample() -> None:
    """Against incumbents that cannot be reached, everybody is dropped after the first 64 images."""
    world = World(12, 1, 1000, seed=1)
    (genomes,) = world.generations(1, 26)
    references, candidates = genomes[:20], genomes[20:]
    found = []
    for seed in range(400):
        race = Race(1000, world.correct, seed=seed, first=64, keep=1, pilots=20)
        race(references)
        scores = race(candidates, [101.0])
        assert all(score.images == 64 and not score.full for score in scores)
        found.append([score.accuracy for score in scores])
    truth = np.array([world.accuracy(arch) for arch in candidates])
    error = np.array(found) - truth
    assert (abs(error.mean(0)) < 4 * error.std(0) / 400**0.5).all()
    plain = np.sqrt(truth * (100 - truth) / 64 * (1 - 64 / 1000))  # of 64 images drawn evenly: about 5 points
    assert (error.std(0) < plain / 2.5).all()


@pytest.mark.parametrize("tolerance", [0.01, 10])
def test_estimates_rank_below_every_parent(tolerance: float) -> None:
    """Also if who is behind at any moment is dropped, with an estimate that may be far too high."""
    world = World(8, 2, 2000, seed=2)
    asked = world.generations(6, 40)
    for order in range(5):
        scores, _ = raced(world, asked, keep=10, tolerance=tolerance, seed=order)
        full = sorted((s.accuracy for s in scores.values() if s.full), reverse=True)
        estimated = [s for s in scores.values() if not s.full]
        assert len(full) >= 10 and len(estimated) > 100
        assert max(s.accuracy for s in estimated) < full[9]
        assert all(s.accuracy == world.accuracy(arch) for arch, s in scores.items() if s.full)


@pytest.mark.parametrize(("spread", "tolerance"), [(0.1, 0.01), (5, 0.01), (0.1, 10), (5, 10)])
def test_the_first_generation_fills_the_parents(spread: float, tolerance: float) -> None:
    world = World(8, spread, 2000, seed=4)
    for order in range(5):
        scores, _ = raced(world, world.generations(1, 50), keep=10, tolerance=tolerance, seed=order)
        assert sum(score.full for score in scores.values()) >= 10


def test_no_surprise_in_few_images_is_no_reason_to_drop() -> None:
    """All references fail on the same 100 images; who gets ten of these right has often shown nothing in 64 images."""
    known, better = np.ones((2, 1000), bool)
    known[:100] = False
    better[10:100] = False

    def correct(who: Sequence[Any], images: np.ndarray) -> np.ndarray:
        return np.stack([(better if genome == "better" else known)[images] for genome in who])

    for seed in range(40):
        race = Race(1000, correct, seed=seed, keep=1, tolerance=0.005)
        race(list(range(5)))  # type: ignore[arg-type]
        assert race(["better"], [90.0]) == [(91.0, True, 1000)]  # type: ignore[list-item]


@given(st.integers(0, 2**32), st.integers(60, 400), st.floats(0.05, 0.95))
@settings(max_examples=40)
def test_whatever_the_answers_the_outstanding_one_survives(seed: int, images: int, ease: float) -> None:
    """Answers without any structure; one candidate is right wherever any other is, and on more images."""
    rng = np.random.default_rng(seed)
    archs: list[Any] = list(range(40))
    bits = dict(zip(archs, rng.random((40, images)) < ease, strict=True))
    star = archs[int(rng.integers(40))]
    bits[star] = np.any(list(bits.values()), axis=0)
    race = Race(images, lambda who, where: np.stack([bits[a][where] for a in who]), seed=seed, keep=5, first=20)
    scores = dict(zip(archs, race(archs), strict=True))
    assert scores[star].full and max(scores.values()) == scores[star]
    assert all(s.accuracy == 100 * bits[arch].mean() for arch, s in scores.items() if s.full)
    assert np.isfinite([s.accuracy for s in scores.values()]).all()
    assert race.forwards == sum(s.images for s in scores.values())


# Bookkeeping


def test_everybody_sees_the_same_images_once_and_all_are_counted() -> None:
    world = World(8, 1, 2000, seed=5)
    asked = world.generations(3, 30)
    world.calls.clear()
    scores, race = raced(world, asked, seed=9)
    assert race.forwards == sum(len(archs) * len(images) for archs, images in world.calls)
    assert race.forwards == sum(score.images for score in scores.values())
    seen: dict[Any, list[int]] = {}
    for archs, images in world.calls:
        for arch in archs:
            seen.setdefault(arch, []).extend(images.tolist())
    for arch, indices in seen.items():
        assert len(indices) == len(set(indices)) == scores[arch].images
        assert scores[arch].full == (len(indices) == world.images)
    dropped = [seen[arch] for arch in asked[2] if not scores[arch].full]
    assert len(dropped) > 10
    shortest = min(map(len, dropped))
    assert len({tuple(indices[:shortest]) for indices in dropped}) == 1


def test_a_seed_is_an_order_of_images() -> None:
    world = World(6, 1, 1000, seed=6)
    asked = world.generations(2, 30)
    first, second, other = (raced(world, asked, seed=seed)[0] for seed in (1, 1, 2))
    assert first == second != other


def test_known_networks_cost_nothing() -> None:
    world = World(6, 1, 500, seed=7)
    archs = world.generations(1, 12)[0]
    race = Race(500, world.correct, keep=12, identity=repr)
    scores = race([*archs, *archs])
    assert race.forwards == 12 * 500 and scores[:12] == scores[12:]  # all of them are among the 12 best
    assert race.known == {repr(arch): world.accuracy(arch) for arch in archs}
    again = race(archs)
    assert race.forwards == 12 * 500
    assert [score.accuracy for score in again] == [score.accuracy for score in scores[:12]]
    assert all(score.full and score.images == 0 for score in again) and race([]) == []


def test_a_race_goes_on_from_what_was_kept() -> None:
    world = World(8, 1, 2001, seed=8)
    asked = world.generations(4, 30)
    whole, race = raced(world, asked, seed=3)
    half, before = raced(world, asked[:2], seed=3)
    after = Race(2001, world.correct, seed=3)
    for arch, score in half.items():
        if score.full:
            after.remember(arch, before.answers(arch))
    assert after.known == before.known and after.forwards == 0
    for archs in asked[2:]:
        best = sorted((s.accuracy for s in half.values()), reverse=True)[:10]
        half |= zip(archs, after(archs, best), strict=True)
    assert half == whole and after.known == race.known and before.forwards + after.forwards == race.forwards
    with pytest.raises(ValueError, match="of 2008 images, but there are 100"):
        Race(100, world.correct).remember(asked[0][0], before.answers(asked[0][0]))


def test_processes_follow_the_first_one() -> None:
    """Sums that differ a little between machines must not let them drop different networks."""
    world = World(8, 0.3, 2000, seed=10)
    asked = world.generations(3, 40)
    decisions: list[Any] = []

    def decided(value: Any) -> Any:
        decisions.append(value)
        return value

    first, _ = raced(world, asked, agreed=decided)
    rng = np.random.default_rng(0)

    def followed(value: Any) -> Any:
        assert [part.shape for part in value] == [part.shape for part in decisions[0]]
        return decisions.pop(0)

    estimates = racing._Sampling.estimates

    def shaken(self: Any, right: np.ndarray) -> Any:
        estimate, variance = estimates(self, right)
        return estimate + rng.normal(0, 0.3, estimate.shape), variance

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(racing._Sampling, "estimates", shaken)
        alone, _ = raced(world, asked)
        second, _ = raced(world, asked, agreed=followed)
    assert second == first != alone and not decisions


SPACE = Space("racing", "autoformer", tuple(
    Dim(gene, choices, (1,), per_block=len(choices) > 1)
    for gene, choices in {
        "depth": (5,), "embed_dim": (8,), "num_heads": (1, 2), "mlp_ratio": (1, 2), "head_dim": (4,)
    }.items()
))  # fmt: skip
WORLD = World(5, 3, 1000, seed=11)


class Answered:
    """Mixed into evaluators: networks of a world instead of subnets. `patience` is how many parts they answer."""

    patience = 10**9
    parts = 0

    def ready(self, arch: Arch) -> Any:
        return tuple(int(2 * b.num_heads + b.mlp_ratio - 3) for b in arch.stages[0].blocks)  # type: ignore[union-attr]

    def _hits(self, model: Any, part: np.ndarray) -> np.ndarray:
        if self.parts == self.patience:
            raise KeyboardInterrupt
        self.parts += 1
        return WORLD.right(model)[part]


class Plain(Answered, Evaluator): ...


class Racing(Answered, RacingEvaluator): ...


def evaluator(kind: Any, folder: Path, **options: Any) -> Any:
    data = SimpleNamespace(search_size=1000, config=SimpleNamespace(img_size=224))  # parts of 125 images
    fakes: list[Any] = [SimpleNamespace(img_size=32), data, Ranks(0, 1, torch.device("cpu")), Log(None, speaks=False)]
    records, unfinished = Records(folder / "evaluated.jsonl"), Records(folder / "evaluated.part.jsonl")
    return kind(*fakes, records, Stop(), price=lambda arch: {}, unfinished=unfinished, **options)


def some_archs(count: int) -> list[Arch]:
    rng = random.Random(0)
    return list(dict.fromkeys(SPACE.sample(rng) for _ in range(count)))


def test_an_evaluator_replays_what_was_known_when(tmp_path: Path) -> None:
    """Two searches share a race; the second scores in full what the first has only an estimate of."""
    archs, options = some_archs(60), {"seed": 0, "keep": 5}
    whole = evaluator(Racing, tmp_path, **options)
    first = whole.generation(archs, [])
    known = dict(whole.scores)
    estimated = [arch for arch in archs if whole.identity(arch) not in known]
    second = whole.generation(estimated[:6], [])
    assert whole.scores.keys() - known.keys()  # an estimate that has become a full score

    again = evaluator(Racing, tmp_path, **options)
    assert again.scores == {} and again.generation(archs, []) == first and again.scores == known
    assert again.generation(estimated[:6], []) == second and again.scores == whole.scores
    more = archs[-3:]
    assert again.generation(more, archs[:5]) == whole.generation(more, archs[:5])
    with pytest.raises(ValueError, match="are not those that this search asks for"):
        evaluator(Racing, tmp_path, **options).generation(archs[::-1], [])


@pytest.mark.parametrize("racing", [False, True])
@pytest.mark.parametrize("parts", [1, 9, 45])
def test_what_was_answered_before_a_crash_is_not_asked_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, racing: bool, parts: int
) -> None:
    """Where answers are slow, that is: with every part of a network's images something is recorded."""
    monkeypatch.setattr(evaluate, "AUTOSAVE_SECONDS", 0.0)
    archs = some_archs(20)
    kind, options = (Racing, {"seed": 0, "keep": 5}) if racing else (Plain, {})

    def scores(evaluator: Any) -> list[float]:
        return evaluator.generation(archs, []) if racing else evaluator(archs)

    whole = evaluator(kind, tmp_path / "whole", **options)
    expected = scores(whole)
    assert whole.parts > 60 and (racing or whole.parts == 8 * len(archs))

    cut = evaluator(kind, tmp_path / "cut", **options)
    cut.patience = parts
    with pytest.raises(KeyboardInterrupt):
        scores(cut)
    again = evaluator(kind, tmp_path / "cut", **options)
    assert scores(again) == expected
    assert again.parts == whole.parts - parts
    records = [(tmp_path / name / "evaluated.jsonl").read_bytes() for name in ("whole", "cut")]
    assert records[0] == records[1] and not list(tmp_path.rglob("*.part.jsonl"))
    if not racing:
        rows = [json.loads(line) for line in records[0].splitlines()]
        assert [Arch.from_dict(row["arch"]) for row in rows] == [whole.identity(arch) for arch in archs]


def test_the_worked_example_of_the_module() -> None:
    """Five images, predictions p and draws u as in its docstring, no relatives."""
    p, u = np.array([0.98, 0.9, 0.5, 0.5, 0.02]), np.array([0.7, 0.6, 0.4, 0.5, 0.9])
    sampling: Any = object.__new__(racing._Sampling)
    sampling.predicted, sampling.spread, sampling.weight = p, p * (1 - p), np.sqrt(p * (1 - p))
    sampling.priority, sampling.others = sampling.weight / u, np.zeros((0, 5))
    sampling.order = np.argsort(-sampling.priority)
    assert sampling.order.tolist() == [2, 3, 1, 0, 4]
    for answers, accuracy in (([True], 78), ([False], 38), ([True, False], 58), ([True, True], 78)):
        assert sampling.estimates(np.array([answers]))[0] == pytest.approx([accuracy])
    agreed = np.repeat([10, 9], [900, 30])
    assert racing._predicted(agreed, 10)[0] == pytest.approx(0.9966, abs=5e-5)


def test_few_images_are_simply_all_seen() -> None:
    world = World(6, 1, 60, seed=9)
    archs = world.generations(1, 20)[0]
    scores = Race(60, world.correct)(archs)
    assert scores == [(100 * world.right(arch).mean(), True, 60) for arch in archs]


@pytest.mark.parametrize("answer", [True, False])
def test_unanimous_answers_are_no_trouble(answer: bool) -> None:
    archs: list[Any] = list(range(30))
    race = Race(1000, lambda who, where: np.full((len(who), len(where)), answer), keep=5)
    scores = race(archs)
    assert {s.accuracy for s in scores if s.full} == {100.0 * answer}
    assert np.isfinite([s.accuracy for s in scores]).all()
