"""From a config to a network: space search, supernet, architecture search, finish, export, in a folder that resumes.

Every phase leaves its result in the run's folder and is passed over when it is found there, so the same command goes
on wherever the last one ended:

    run.json                 config, data fingerprint, tower, versions, commit
    space0/ space1/ …        one folder per visited space: space.json, supernet/ (checkpoints), scores.jsonl (space
                             search), evaluated.jsonl (architecture search, all budgets)
    space_search.jsonl       the decision of every iteration, complete enough to be recomputed by hand
    features/                what a decoder's frozen tower made of the images, if that is kept (tower.cache)
    latency.json             where a budget limits latency: the milliseconds of every block, measured once
    space…/search-0/         the architecture search of budget 0: winner.json, pareto.json, finish-…/
    test-0.json …            how many test images the winner of each budget got right
    model/                   the exported network (model-0/, model-1/ … with several budgets)
    result.json              what was found; written last, after the test images were opened, once
"""

from __future__ import annotations

import dataclasses
import math
import random
import statistics
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from s3zoo.arch import Arch
from s3zoo.artefact import save_model
from s3zoo.files import Records, read_json, sha256, write_json
from s3zoo.models import MODELS
from s3zoo.search import space_search as spaces
from s3zoo.search.budget import Budget, Feasible, Limit, Pricer, check_feasible, extents
from s3zoo.search.config import SearchRun
from s3zoo.search.evaluate import Evaluator, RacingEvaluator
from s3zoo.search.evolution import Evolution, RandomSearch, pareto
from s3zoo.search.latency import LatencyTable, this_device
from s3zoo.search.published import official_autoformer_supernet
from s3zoo.space import Space, glit_details, glit_split
from s3zoo.supernet import Supernet, recalibrate
from s3zoo.training.accuracy import resumable_accuracy
from s3zoo.training.config import Train
from s3zoo.training.data import Batch, ImageData
from s3zoo.training.distributed import Ranks
from s3zoo.training.features import FeatureData, tower_of, tower_record
from s3zoo.training.folder import check_folder, claim_folder
from s3zoo.training.log import Log
from s3zoo.training.loop import ModelTask, Stop, SupernetTask, check, fit, seed_from
from s3zoo.training.provenance import provenance as record

HEALTH_IMAGES = 512


@dataclasses.dataclass
class Finished:
    """A network with its weights and what is known of it."""

    arch: Arch
    model: nn.Module
    inherited: float  # accuracy on the held-out images with the supernet's weights
    accuracy: float  # the same as finished


class Search:
    """One run of a search in its folder."""

    def __init__(self, run: SearchRun, folder: Path, ranks: Ranks, log: Log, stop: Stop) -> None:
        self.run, self.folder, self.ranks, self.log, self.stop = run, folder, ranks, log, stop
        torch.set_num_threads(run.threads)
        self.amp = run.amp and ranks.device.type == "cuda"
        self.shape: dict[str, Any] = run.shape
        self.tower: Any = tower_of(run.tower, run.data, ranks.device) if run.space.family == "ladder" else None
        self.model_args = {} if self.tower is None else {"tower": self.tower}  # one for all networks of the run
        if self.tower is not None and run.space.largest().depths[0] > len(self.tower.blocks):
            raise ValueError(
                f"Space {run.space.name!r} has decoders of {run.space.largest().depths[0]} layers, but the tower"
                f" {run.tower.name} has fewer blocks; take a deeper tower or a shallower space."
            )
        self.data = self._images()
        self.data.check_splits()
        self.budgets = [Budget.parse(text) for text in run.arch_search.budgets] or [self._limits()]
        priced: dict[str, Any] = run.priced
        self.sizes = Pricer(**priced)  # of networks of any space
        identity = {"data": self.data.fingerprint} | ({} if self.tower is None else {"tower": tower_record(self.tower)})
        check_folder(folder, run, **identity)  # before minutes are spent on measuring
        self._check_settings()
        self.latency = self._latency_table()
        self.pricer = Pricer(**priced, latency=self.latency)  # of spaces that were visited
        self._measure(run.space)
        if run.space_search.method == "none":  # the only space there will be: say at once what it cannot give
            first = glit_split(run.space) if run.hierarchy == "glit" else run.space
            for budget in self.budgets:
                check_feasible(first, budget, self.pricer, random.Random(run.seed))
        elif run.space_search.method == "s3" and not spaces.s3_samples(run.space, 1, random.Random(0), self._limited):
            extent = "{:,.0f} to {:,.0f}".format(*extents(run.space, self.sizes)[run.space_search.limit_metric])
            raise ValueError(
                f"No sampled network of space {run.space.name!r} is within space_search.lower and upper; its"
                f" {run.space_search.limit_metric} go from {extent}, so change the limits or the space."
            )
        claim_folder(folder, run, ranks, **identity)
        if run.space_search.method != "none" and not self._some_feasible(run.space):
            budgets = " or ".join(map(str, self.budgets))
            self.log.say(f"{run.space.name} has no network within {budgets}: it must be left, or the search will fail")

    def _limits(self) -> Budget:
        """Where no budget is given, the networks of a searched space are held to the limits of its search."""
        config = self.run.space_search
        if config.method == "none" or (config.lower, config.upper) == (0.0, math.inf):
            return Budget()
        below = math.ceil(config.upper) - 1 if config.upper < math.inf else math.inf  # costs are whole numbers
        return Budget({config.limit_metric: Limit(config.lower, below)})

    def _check_settings(self) -> None:
        """Refuse before the first step what would be refused after the last one of a supernet."""
        run = self.run
        if not run.supernet_weights:
            check(run.supernet, self.data, self.ranks)
        if run.final.mode != "inherit" or run.space_search.audit:
            check(run.final.train, self.data, self.ranks)

    def _images(self) -> ImageData:
        run, ranks, tower = self.run, self.ranks, self.tower
        if tower is None:
            return ImageData(run.data, run.seed, rank=ranks.rank, world=ranks.world)
        folder = Path(run.tower.cache_dir) if run.tower.cache_dir else self.folder / "features"
        options: dict[str, Any] = {"cache": run.tower.cache, "folder": folder, "log": self.log, "stop": self.stop}
        return FeatureData(run.data, run.seed, tower, ranks, amp=self.amp, **options)

    def __call__(self) -> dict[str, Any]:
        path = self.folder / "result.json"
        if path.exists():
            self.log.say(f"This run is finished; its result is in {path}")
            return read_json(path)
        if self.run.hierarchy == "glit":
            finished, visited = self._glit()
        else:
            finished, visited = self._search_spaces()
        return self._conclude(finished, visited)

    # Spaces

    def _search_spaces(self) -> tuple[list[list[Finished]], list[dict[str, Any]]]:
        """Visit spaces as S3 or S4 leads, then search the last one (or, with backtracking, the last feasible one)."""
        config = self.run.space_search
        iterations = config.iterations if config.method != "none" else 0
        decisions = self._records(self.folder / "space_search.jsonl")
        visited: list[Space] = [self._first_space()]
        table: list[dict[str, Any]] = []
        previous: Supernet | None = None
        supernets: list[Supernet] = []
        for index in range(iterations + 1):
            space = visited[index]
            place = self.folder / f"space{index}"
            supernet = self._supernet(space, place, previous)
            supernets.append(supernet)
            previous = supernet
            row = self._space_row(space, index)
            table.append(row)
            if config.search_each_space and index < iterations:
                some = self._some_feasible(space)  # S3 may leave the budget and come back
                row["best"] = [self._row(best[0]) for best in self._search_space(supernet, place)] if some else None
            if index == iterations:
                break
            if index < len(decisions.rows):
                decision = spaces.Decision.from_dict(decisions.rows[index]["decision"])
            else:
                decision = self._decide(supernet, place, index)
                decisions.append([{"iteration": index, "decision": decision.to_dict()}])
            self._say_decision(index, decision)
            if not decision.moved:
                break
            visited.append(dataclasses.replace(decision.space, name=f"{self.run.space.name}_{index + 1}"))
        last = len(supernets) - 1
        if config.backtrack:
            last = spaces.backtrack(visited[: len(supernets)], self._some_feasible)
            if last < len(supernets) - 1:
                self.log.say(f"backtracked to space{last}: the later ones have no network within the budget")
                self._reach(visited[last])
        if config.audit:
            self._audit(supernets[last], self.folder / f"space{last}", config.audit)
        found = self._search_space(supernets[last], self.folder / f"space{last}")
        table[last]["best"] = [self._row(best[0]) for best in found]
        return found, table

    def _first_space(self) -> Space:
        """The config's; decoders never grow deeper than their tower."""
        space, tower = self.run.space, self.tower
        if tower is None:
            return space
        blocks = float(len(tower.blocks))
        dims = [dataclasses.replace(d, high=blocks) if d.gene == "depth" else d for d in space.dims]
        return dataclasses.replace(space, dims=tuple(dims))

    def _decide(self, supernet: Supernet, place: Path, index: int) -> spaces.Decision:
        """Score architectures of the space and ask S3 or S4 where to go."""
        config, space = self.run.space_search, supernet.space
        rng = random.Random(seed_from(self.run.seed, "space", index))
        evaluate = self._evaluator(supernet, place / "scores.jsonl", f"space{index}: scores")
        frozen = spaces.equivalent_dims(space, self.run.data.img_size)
        if config.method == "s3":
            archs = spaces.s3_samples(space, config.samples, rng, self._limited, evaluate.identity)
            if not archs:
                record = {"method": "s3", "samples": 0, "dims": []}
                return spaces.Decision(space, False, "it has no network within the limits", record)
            errors = [100 - score for score in evaluate(archs)]
            return spaces.s3_decide(space, list(zip(archs, errors, strict=True)), config, frozen=frozen)
        pairs = spaces.s4_pairs(space, config.pairs, rng, frozen=frozen)
        scores = evaluate([arch for pair in pairs for arch in (pair.low_arch, pair.high_arch)])
        measured = [(pair, scores[2 * i], scores[2 * i + 1]) for i, pair in enumerate(pairs)]
        return spaces.s4_decide(
            space, measured, config, lambda arch: self.sizes(arch)[config.limit_metric], frozen=frozen
        )

    def _limited(self, arch: Arch) -> bool:
        config = self.run.space_search
        return config.allows(self.sizes(arch)[config.limit_metric])

    def _say_decision(self, index: int, decision: spaces.Decision) -> None:
        moved = [
            f"{d['name']} {d['before']} -> {d['after']}" for d in decision.record["dims"] if d["before"] != d["after"]
        ]
        self.log.say(
            f"space{index}: " + ("; ".join(moved) or "stays") + (f" ({decision.reason})" if decision.reason else "")
        )

    def _some_feasible(self, space: Space) -> bool:
        try:
            for budget in self.budgets:
                check_feasible(space, budget, self.pricer, random.Random(0))
        except ValueError:
            return False
        return True

    def _space_row(self, space: Space, index: int) -> dict[str, Any]:
        ends = {metric: list(pair) for metric, pair in extents(space, self.pricer).items()}
        return {"space": space.name, "size": space.size(), "index": index, **ends}

    # Supernets

    def _supernet(self, space: Space, place: Path, previous: Supernet | None) -> Supernet:
        """The trained supernet of a space."""
        self._measure(space)
        self._reach(space)
        if self.run.supernet_weights:
            return self._published(space, place)
        train = self.run.supernet
        torch.manual_seed(seed_from(self.run.seed, "init", place.name))
        supernet = Supernet(
            space, sharing=train.sharing, drop_path_rate=train.drop_path, device=self.ranks.device, **self.shape,
            model_args=self.model_args,
        )  # fmt: skip
        if self.ranks.first:
            write_json(place / "space.json", space.to_dict())
        if train.warm_start and previous is not None:
            taken = supernet.warm_start(previous.state_dict())
            self.log.say(f"{place.name}: {taken} of {len(supernet.flat)} weights begin from the previous supernet's")
        self.log.say(f"{place.name}: {space.size():.3g} architectures, supernet with {len(supernet.flat):,} weights")
        rng = random.Random(seed_from(self.run.seed, "health", place.name))
        some = space.sample(rng)

        def health(epoch: int) -> dict[str, float]:
            images = np.arange(min(HEALTH_IMAGES, self.data.search_size))
            probe = self._evaluator(supernet, None, "health")
            return {
                name: float(probe.correct(arch, images).mean() * 100)
                for name, arch in (("smallest", space.smallest()), ("largest", space.largest()), ("random", some))
            }

        fit(
            SupernetTask(supernet, train, self.run.seed), train, self.data, seed=self.run.seed, ranks=self.ranks,
            folder=place / "supernet", log=self.log, name=f"{place.name}: supernet", stop=self.stop, amp=self.amp,
            at_epoch_end=health,
        )  # fmt: skip
        return supernet

    def _reach(self, space: Space) -> None:
        """Let the features of a frozen tower have the layers that this space's decoders read."""
        if isinstance(self.data, FeatureData):
            self.data.reach(space.largest().depths[0])

    def _published(self, space: Space, place: Path) -> Supernet:
        """The supernet of a file, as it is; the file must stay the same while the run lasts."""
        path = Path(self.run.supernet_weights).expanduser()
        supernet = official_autoformer_supernet(path, space, **self.shape, device=self.ranks.device)
        source, record = {"file": path.name, "sha256": sha256(path)}, place / "supernet.json"
        if record.exists() and read_json(record) != source:
            raise ValueError(
                f"{self.folder} holds a run with another file than {path}; restore that, or give another --out."
            )
        if self.ranks.first:
            write_json(place / "space.json", space.to_dict())
            write_json(record, source)
        self.log.say(
            f"{place.name}: {space.size():.3g} architectures, {len(supernet.flat):,} weights of {path.name};"
            " the supernet may have been trained on the held-out images, so take their accuracies as a ranking"
        )
        return supernet

    # Latency

    def _latency_table(self) -> LatencyTable | None:
        """If a budget limits latency: this run's table, or the one that the config names, or an empty one."""
        if not any("latency" in budget.limits for budget in self.budgets):
            return None
        table, options, path = None, self.run.arch_search, self.folder / "latency.json"
        shape = self.shape | {"tower": self.run.tower.name if self.tower is not None else ""}
        if self.ranks.first:
            here = {"batch_size": options.latency_batch, **this_device(self.ranks.device)}
            if options.latency_table:
                table = LatencyTable.load(path if path.exists() else options.latency_table, **shape)
            elif path.exists():
                table = LatencyTable.load(path, **shape, **here)
            else:
                batch_size, device = options.latency_batch, self.ranks.device
                table = LatencyTable.empty(self.run.space, **shape, batch_size=batch_size, device=device)
        table = self.ranks.from_first(table)
        assert table is not None
        table.tower = self.tower
        return table

    def _measure(self, space: Space) -> None:
        """Let the latency table cover a space; the numbers of the first rank hold on all."""
        if self.latency is None:
            return
        repeats, measured = self.run.arch_search.latency_repeats, self._records(self.folder / "latency.part.jsonl")
        self.latency.cover(space, repeats, log=self.log, measured=measured, ranks=self.ranks, stop=self.stop)
        if self.ranks.first:
            self.latency.save(self.folder / "latency.json")
        measured.clear()

    def _evaluator(self, supernet: Supernet, path: Path | None, name: str, *, racing: bool = False) -> Evaluator:
        records = self._records(path) if path is not None else Records(None)
        options = self.run.arch_search
        common: dict[str, Any] = {"price": self.pricer, "calibration_images": options.calibration_images, "name": name}
        if path is not None:
            common["unfinished"] = self._records(path.with_suffix(".part.jsonl"))
        if racing:
            common |= {"seed": seed_from(self.run.seed, "race"), "keep": max(options.parents, self.run.final.top)}
        kind = RacingEvaluator if racing else Evaluator
        return kind(supernet, self.data, self.ranks, self.log, records, self.stop, **common)

    def _records(self, path: Path) -> Records:
        return self.ranks.rank0_first(lambda: Records(path, write=self.ranks.first))

    # Architectures

    def _search_space(self, supernet: Supernet, place: Path) -> list[list[Finished]]:
        """For every budget the finished networks, best first."""
        rng = random.Random(seed_from(self.run.seed, "budget"))
        if not self.run.arch_search.budgets and not self._some_feasible(supernet.space):
            self.log.say(f"{place.name}: no network is within {self.budgets[0]}, so the search goes without limits")
            self.budgets = [Budget()]
        filters = [check_feasible(supernet.space, budget, self.pricer, rng) for budget in self.budgets]
        evaluate = self._evaluator(
            supernet, place / "evaluated.jsonl", f"{place.name}: search", racing=self.run.arch_search.racing
        )
        found = []
        for index, budget in enumerate(self.budgets):
            engine = self._engine(supernet.space, filters[index], evaluate.identity, index)
            where = f"{place.name}: {budget}" if budget.limits else place.name
            self._evolve(engine, evaluate, where)
            folder = place / f"search-{index}"
            self._write_archive(folder, engine, budget, evaluate)
            finished = [
                self._finish(supernet, arch, score, folder / f"finish-{i}")
                for i, (arch, score) in enumerate(engine.top(self.run.final.top))
            ]
            found.append(sorted(finished, key=lambda f: -f.accuracy))
        return found

    def _engine(self, space: Space, feasible: Feasible, identity: Callable[[Arch], Arch], index: int) -> Evolution:
        engine = RandomSearch if self.run.arch_search.method == "random" else Evolution
        seed = seed_from(self.run.seed, "evolution", index)
        names = ("population", "generations", "parents", "crossover", "mutation", "p_depth", "p_embed", "p_block")
        options: dict[str, Any] = {name: getattr(self.run.arch_search, name) for name in names}
        return engine(space, seed=seed, feasible=feasible, draw=feasible.draw, identity=identity, **options)

    def _evolve(self, engine: Evolution, evaluate: Evaluator, where: str) -> None:
        generation = 0
        while archs := engine.ask():
            if isinstance(evaluate, RacingEvaluator):
                scores = evaluate.generation(archs, [arch for arch, _ in engine.top(evaluate.keep)])
            else:
                scores = evaluate(archs)
            engine.tell(list(zip(archs, scores, strict=True)))
            generation += 1
            best, score = engine.best
            price = self.pricer(best)
            self.log.say(
                f"{where}: generation {generation}: best {score:.2f} % with {price['params'] / 1e6:.3g}M parameters,"
                f" {len(engine.evaluated)} scored"
            )
            self.log.curve(where, generation, {"best": score, "mean": statistics.fmean(scores)})

    def _write_archive(self, folder: Path, engine: Evolution, budget: Budget, evaluate: Evaluator) -> None:
        if not self.ranks.first:
            return
        full = [(a, score) for a, score in engine.evaluated.items() if evaluate.identity(a) in evaluate.scores]
        records = [(arch, score, self.pricer(arch)) for arch, score in full]
        archive = {
            metric: [self._scored(a, s) for a, s, _ in pareto(records, metric)] for metric in self.pricer(records[0][0])
        }
        write_json(folder / "pareto.json", archive)
        write_json(
            folder / "winner.json", {"budget": str(budget), "history": engine.history, **self._scored(*engine.best)}
        )

    def _scored(self, arch: Arch, score: float) -> dict[str, Any]:
        return {"accuracy": score, **self.pricer(arch), "arch": arch.to_dict()}

    # Finish

    def _finish(self, supernet: Supernet, arch: Arch, inherited: float, place: Path) -> Finished:
        """Inherit, finetune or retrain one architecture."""
        final = self.run.final
        return self._trained(supernet, arch, inherited, place, final.mode, final.train)

    def _trained(
        self, supernet: Supernet, arch: Arch, inherited: float, place: Path, mode: str, train: Train
    ) -> Finished:  # fmt: skip
        arch = arch.effective(self.run.data.img_size)
        images = self.run.arch_search.calibration_images
        if mode == "retrain":
            torch.manual_seed(seed_from(self.run.seed, "retrain", arch.key))
            args = {**self.shape, **self.model_args, "drop_path_rate": train.drop_path}
            model = MODELS[arch.family](arch, **args).to(self.ranks.device)
        else:
            options = {} if mode == "inherit" else {"drop_path_rate": train.drop_path}
            model = supernet.extract(arch, **options)
            recalibrate(model, (x.to(self.ranks.device) for x in self.data.calibration_batches(images)))
        if mode != "inherit":
            fit(
                ModelTask(model), train, self.data, seed=seed_from(self.run.seed, arch.key), ranks=self.ranks,
                folder=place, log=self.log, name=f"{mode} {arch.key}", stop=self.stop, amp=self.amp,
            )  # fmt: skip
        score = self._score(place / "score.json", model, lambda first: self.data.search_images(first=first))["top1"]
        return Finished(arch, model, inherited, score)

    def _score(self, path: Path, model: nn.Module, batches: Callable[[int], Iterable[Batch]]) -> dict[str, float]:
        return resumable_accuracy(path, model, batches, self.ranks, self.stop)

    def _row(self, finished: Finished) -> dict[str, Any]:
        return {"inherited": finished.inherited, **self._scored(finished.arch, finished.accuracy)}

    def _audit(self, supernet: Supernet, place: Path, count: int) -> None:
        """How well inherited accuracy ranks networks: finetune and retrain random ones (S3 Fig. 5)."""
        rng = random.Random(seed_from(self.run.seed, "audit"))
        archs = [supernet.space.sample(rng) for _ in range(count)]
        inherited = self._evaluator(supernet, place / "audit" / "scores.jsonl", "audit")(archs)
        rows = []
        for arch, score in zip(archs, inherited, strict=True):
            row: dict[str, Any] = {"arch": arch.to_dict(), "inherited": score}
            for mode in ("finetune", "retrain"):
                folder = place / "audit" / f"{mode}-{arch.key}"
                row[mode] = self._trained(supernet, arch, score, folder, mode, self.run.final.train).accuracy
            rows.append(row)
        report: dict[str, Any] = {"networks": rows}
        for mode in ("finetune", "retrain"):
            report[f"kendall_{mode}"] = kendall(inherited, [row[mode] for row in rows])
            self.log.say(
                f"audit: rank correlation with inherited accuracy after {mode}: {report[f'kendall_{mode}']:.3f}"
            )
        if self.ranks.first:
            write_json(place / "audit.json", report)

    # GLiT's hierarchy

    def _glit(self) -> tuple[list[list[Finished]], list[dict[str, Any]]]:
        """First the split of heads over blocks with plain details, then the details with that split (GLiT 3.3)."""
        if len(self.budgets) > 1:
            raise ValueError(
                f"hierarchy 'glit' takes one budget, but {len(self.budgets)} were given; run it once for each."
            )
        table: list[dict[str, Any]] = []
        found: list[list[Finished]] = []
        space = glit_split(self.run.space)
        for index in range(2):
            place = self.folder / f"space{index}"
            supernet = self._supernet(space, place, None)
            found = self._search_space(supernet, place)
            best = found[0][0]
            row = self._space_row(space, index)
            table.append(row | {"best": [self._row(best)]})
            space = glit_details(self.run.space, best.arch)
        return found, table

    # The end

    def _conclude(self, finished: list[list[Finished]], visited: list[dict[str, Any]]) -> dict[str, Any]:
        """Open the test images, once, and export the winners with what they give."""
        rows = []
        for index, (budget, best) in enumerate(zip(self.budgets, (f[0] for f in finished), strict=True)):
            path = self.folder / f"test-{index}.json"
            test = self._score(path, best.model, lambda first: self.data.test_batches(first=first))
            folder = self.folder / ("model" if len(self.budgets) == 1 else f"model-{index}")
            row = {"budget": str(budget), "test": test, **self._row(best)}
            rows.append(row)
            latency = f", {row['latency']:.3g} ms" if "latency" in row else ""
            self.log.say(
                f"{budget if budget.limits else 'winner'}: {test['top1']:.2f} % of {test['images']} test images"
                f" ({test['low']:.2f} to {test['high']:.2f}), {row['params'] / 1e6:.3g}M parameters,"
                f" {row['macs'] / 1e6:.4g}M MACs{latency}; in {folder}"
            )
            if self.ranks.first:
                held_out = {"top1": best.accuracy, "images": self.data.search_size}
                metrics = {"test": test, "held-out": held_out}
                provenance = record("search", self.run, self.folder, self.ranks, metrics=metrics)
                provenance |= {"space": self.run.space.name, "budget": str(budget), "final": self.run.final.mode}
                provenance["trajectory"] = self._trajectory(visited)
                provenance["cost"]["subnets_scored"] = self._subnets_scored()
                if self.run.supernet_weights:
                    provenance["supernet"] = read_json(self.folder / "space0" / "supernet.json")
                if self.tower is not None:
                    provenance["tower"] = tower_record(self.tower)
                data = self.run.data
                cfg = {
                    "mean": data.mean,
                    "std": data.std,
                    "crop_pct": data.crop_pct,
                    "interpolation": data.interpolation,
                }
                cfg["label_names"] = list(self.data.classes)
                save_model(folder, best.model, provenance=provenance, pretrained_cfg=cfg)
        result = {"name": self.run.name, "seed": self.run.seed, "winners": rows, "spaces": visited}
        if self.ranks.first:
            write_json(self.folder / "result.json", result)
        self.ranks.wait()
        return result

    def _trajectory(self, visited: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """The visited spaces: sizes, ranges, and the choices where there are several."""
        rows = []
        for row in visited:
            space = Space.from_dict(read_json(self.folder / f"space{row['index']}" / "space.json"))
            choices = {dim.name: list(dim.choices) for dim in space.dims if len(dim.choices) > 1}
            rows.append({key: value for key, value in row.items() if key != "best"} | {"choices": choices})
        return rows

    def _subnets_scored(self) -> int:
        """Over all spaces, each architecture as often as a supernet scored it anew."""
        files = [*self.folder.glob("space*/scores.jsonl"), *self.folder.glob("space*/evaluated.jsonl")]
        return sum("arch" in row for path in files for row in Records(path, write=False).rows)


def kendall(a: list[float], b: list[float]) -> float:
    """Kendall's tau-b."""
    concordant = discordant = ties_a = ties_b = 0
    for i in range(len(a)):
        for j in range(i):
            x, y = a[i] - a[j], b[i] - b[j]
            concordant += x * y > 0
            discordant += x * y < 0
            ties_a += x == 0
            ties_b += y == 0
    pairs = len(a) * (len(a) - 1) / 2
    scale = ((pairs - ties_a) * (pairs - ties_b)) ** 0.5
    return (concordant - discordant) / scale if scale else 0.0
