"""Search spaces: the Cartesian product of named dimensions, closed under sampling, mutation and crossover.

A `Dim` says which gene it sets, in which stages and with which factor; a dimension with one choice is a constant. So
one rule covers genes per block (AutoFormer), per stage (S3) and one number for the whole network (S4's Swin: width C
in stage 1 means C, 2C, 4C, 8C).
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import math
import operator
import random
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from s3zoo.arch import Arch, Stage
from s3zoo.checks import check, declared, typed
from s3zoo.families import FAMILIES, LARGEST

DEEPEST = 10_000  # blocks of a stage: more is a mistake, or meant to fill the memory

Value = int | float
Values = dict[str, Any]  # name -> value, or one value per block for a dimension `per_block`


@dataclass(frozen=True)
class Dim:
    """One search dimension."""

    gene: str  # "depth", "embed_dim" or a field of the family's block
    choices: tuple[Any, ...]  # numbers; or one word, which is a constant (GLiT's locality)
    scale: tuple[float, ...] = (1,)  # factor per stage; 0 where the dimension does not touch the stage
    step: float = 0.0  # S3's evolve step (gamma); 0: the dimension is not evolved
    per_block: bool = False
    blocks: tuple[int, ...] | None = None  # per block: only these indices (GLiT's second stage); None: all
    low: float = 1e-9  # the smallest possible choice: a choice of 0 or less is no network (S3 Eq. 8)
    high: float = math.inf
    unit: float = 1.0  # the paper's unit of x, where it is not the gene's (Q-K-V width = 32 x heads)
    label: str = ""

    def __post_init__(self) -> None:
        check(self)
        typed(self.choices, tuple[int | float | str, ...], "choices")
        word = any(isinstance(choice, str) for choice in self.choices)
        if word and (len(self.choices) > 1 or self.step):
            raise ValueError(f"dimension {self.name} has choices {self.choices}; a word must be the only one.")
        object.__setattr__(self, "choices", tuple(sorted(set(self.choices))))
        if not self.choices:
            raise ValueError(f"dimension {self.name} has no choices; give at least one.")
        if not word and (self.choices[0] < self.low or self.choices[-1] > self.high):
            raise ValueError(
                f"dimension {self.name} has choices {self.choices}; they must lie in {self.low}..{self.high}."
            )
        if self.per_block and sum(map(bool, self.scale)) != 1:
            raise ValueError(f"dimension {self.name} is per block, so it must touch exactly one stage.")
        if self.blocks is not None:
            object.__setattr__(self, "blocks", tuple(sorted(set(self.blocks))))
            if not self.per_block:
                raise ValueError(f"dimension {self.name} names blocks, so it must be per block.")

    @functools.cached_property
    def stages(self) -> tuple[int, ...]:
        return tuple(i for i, factor in enumerate(self.scale) if factor)

    @functools.cached_property
    def name(self) -> str:
        """The gene, with stage and blocks (from 1) where the dimension does not belong to all of them."""
        stages = self.stages
        prefix = f"stage{stages[0] + 1}." if len(stages) == 1 and len(self.scale) > 1 else ""
        suffix = f"[{','.join(str(j + 1) for j in self.blocks)}]" if self.blocks is not None else ""
        return prefix + (self.label or self.gene) + suffix

    def covers(self, index: int) -> bool:
        return self.blocks is None or index in self.blocks

    @property
    def spacing(self) -> float:
        """The distance between neighbouring choices (S4's step of a bound); S3's step where there is one choice."""
        if len(self.choices) == 1:
            return self.step
        return min(b - a for a, b in itertools.pairwise(self.choices))

    @property
    def searched(self) -> bool:
        return len(self.choices) > 1 or self.step > 0

    def replaced(self, choices: Iterable[Value]) -> Dim:
        """Other choices; where there are several, the step keeps its proportion to their distance."""
        new = dataclasses.replace(self, choices=tuple(choices))
        if len(self.choices) == 1 or len(new.choices) == 1:
            return new
        step = self.step * new.spacing / self.spacing
        return dataclasses.replace(new, step=int(step) if step == int(step) else step)

    def moved(self, delta: float) -> Dim:
        """All choices moved by `delta`; impossible ones are dropped, and at least one is always left."""
        kept = tuple(v + delta for v in self.choices if self.low <= v + delta <= self.high)
        if not kept:  # the farthest whole number of steps that leaves a choice
            one = math.copysign(self.spacing or abs(delta), delta)
            steps = abs(delta) / abs(one)
            return self if steps <= 1 else self.moved(one * (math.ceil(steps) - 1))
        return dataclasses.replace(self, choices=tuple(int(v) if float(v).is_integer() else v for v in kept))


class Draft(NamedTuple):
    """A network of a space that is not built: choices of the dimensions that are not per block (in the order of
    `Space.shared`), and for each block of each stage its number among the candidates of the stage."""

    shared: tuple[Value, ...]
    picks: tuple[tuple[int, ...], ...]


class Plan:
    """What drafts mean in one stage. The candidates of all its blocks are numbered in one row; blocks with the same
    choices have the same numbers. `key` are the shared choices that the genes of its blocks depend on."""

    def __init__(self, space: Space, stage: int) -> None:
        self.space, self.stage = space, stage
        own = [(i, dim) for i, dim in enumerate(space.shared) if stage in dim.stages]
        self._depth_at, depth = next((i, dim) for i, dim in own if dim.gene == "depth")
        at = [i for i, dim in own if dim.gene != "depth" and len(dim.choices) > 1]
        self.key: Callable[[Sequence[Value]], Any] = operator.itemgetter(*at) if at else lambda shared: ()
        depths = {choice: int(space.at(depth, stage, choice)) for choice in depth.choices}
        firsts: dict[tuple[Dim, ...], int] = {}
        self.groups: list[list[tuple[Value, ...]]] = []  # the candidates of each kind of block: genes in order
        self.names: list[tuple[str, ...]] = []
        spans = []
        for j in range(max(depths.values())):
            dims = tuple(space._block_dims(stage, j))
            if dims not in firsts:
                firsts[dims] = sum(map(len, self.groups))
                self.groups.append(list(itertools.product(*(dim.choices for dim in dims))))
                self.names.append(tuple(dim.name for dim in dims))
            spans.append((firsts[dims], math.prod(len(dim.choices) for dim in dims)))
        self._spans = {choice: spans[:count] for choice, count in depths.items()}
        self._all = spans
        self._built: dict[Any, tuple[int, list[Any]]] = {}
        self._numbers = {
            (first, genes): first + k
            for first, group in zip(firsts.values(), self.groups, strict=True)
            for k, genes in enumerate(group)
        }

    def spans(self, shared: Sequence[Value]) -> list[tuple[int, int]]:
        """For each block the number of its first candidate, and how many it has."""
        return self._spans[shared[self._depth_at]]

    def number(self, index: int, genes: tuple[Value, ...]) -> int:
        return self._numbers[self._all[index][0], genes]

    def blocks(self, shared: Sequence[Value]) -> tuple[int, list[Any]]:
        """The width of the stage and all candidates, made and checked when they are first asked for."""
        key = self.key(shared)
        if key not in self._built:
            space, family = self.space, FAMILIES[self.space.family]
            values = {dim.name: choice for dim, choice in zip(space.shared, shared, strict=True)}
            made: list[Any] = []
            width = space._size("embed_dim", self.stage, values)
            for names, group in zip(self.names, self.groups, strict=True):
                index = next(j for j, (first, _) in enumerate(self._all) if first == len(made))
                for genes in group:
                    block = space._block(self.stage, index, values | dict(zip(names, genes, strict=True)))
                    family.check(width, block)
                    made.append(block)
            self._built[key] = width, made
        return self._built[key]


@dataclass(frozen=True)
class Space:
    """A set of architectures of one family."""

    name: str
    family: str
    dims: tuple[Dim, ...]
    num_stages: int = 1
    patch_size: int = 0
    stem_depth: int = 0

    def __post_init__(self) -> None:
        check(self)
        family = FAMILIES.find(self.family)
        genes, words = dataclasses.fields(family.block), family.words()
        fields = {gene.name for gene in genes}
        covered: set[tuple[str, int, int | None]] = set()
        for dim in self.dims:
            if dim.gene not in fields | {"depth", "embed_dim"} or len(dim.scale) != self.num_stages:
                raise ValueError(
                    f"dimension {dim.name!r} does not fit family {self.family!r} with {self.num_stages} stages."
                )
            most = DEEPEST if dim.gene == "depth" else LARGEST
            top = dim.choices[-1]
            if not isinstance(top, str) and top * max(dim.scale, default=0) > most:
                raise ValueError(f"dimension {dim.name!r} has the choice {top}, but at most {most:,} is possible.")
            if dim.gene in words:
                typed(dim.choices[0], declared(family.block)[dim.gene], dim.gene)
            if dim.gene not in words and isinstance(dim.choices[0], str):
                raise ValueError(f"dimension {dim.name!r} has the choice {dim.choices[0]!r}, but must have numbers.")
            if dim.per_block and dim.gene in ("depth", "embed_dim"):
                raise ValueError(f"dimension {dim.name!r} cannot differ from block to block.")
            own = {(dim.gene, stage, j) for stage in dim.stages for j in dim.blocks or (None,)}
            for gene, stage, j in own:
                if {(gene, stage, j), (gene, stage, None)} & covered:
                    raise ValueError(f"{gene} of stage {stage + 1} is set by two dimensions; keep one.")
            covered |= own
        # head_dim may be left out (width / heads), and so may what has a default.
        optional = {gene.name for gene in genes if gene.default is not dataclasses.MISSING}
        for gene in sorted((fields | {"depth", "embed_dim"}) - optional - {"head_dim"}):
            for stage in range(self.num_stages):
                if not any(c[:2] == (gene, stage) for c in covered):
                    raise ValueError(f"space {self.name!r} has no dimension for {gene} of stage {stage + 1}.")

    def __getitem__(self, name: str) -> Dim:
        for dim in self.dims:
            if dim.name == name:
                return dim
        raise ValueError(f"{name!r} is no dimension of {self.name!r}; it has {', '.join(d.name for d in self.dims)}.")

    @property
    def searched(self) -> tuple[Dim, ...]:
        return tuple(dim for dim in self.dims if dim.searched)

    # Values of dimensions <-> architecture

    @functools.cached_property
    def _fractional(self) -> set[str]:
        return {gene for gene in {dim.gene for dim in self.dims} if FAMILIES[self.family].fractional(gene)}

    def at(self, dim: Dim, stage: int, choice: Any) -> Any:
        """The value of a dimension's gene in a stage."""
        if isinstance(choice, str):
            return choice
        value = choice * dim.scale[stage]
        return float(value) if dim.gene in self._fractional else round(value)

    def build(self, values: Mapping[str, Any]) -> Arch:
        """The architecture with these values; a value per block may be given as one value for all."""
        return self.assemble(values, [self._by_block(stage, values) for stage in range(self.num_stages)])

    def _size(self, gene: str, stage: int, values: Mapping[str, Any]) -> int:
        """Depth or width of a stage."""
        own = next(dim for dim in self.dims if dim.gene == gene and stage in dim.stages)
        return int(self.at(own, stage, values[own.name]))

    def _by_block(self, stage: int, values: Mapping[str, Any]) -> list[Values]:
        """Of the dimensions per block, the value of each block that they cover."""
        blocks: list[Values] = [{} for _ in range(self._size("depth", stage, values))]
        for dim in self._per_block[stage]:
            own, value = [block for j, block in enumerate(blocks) if dim.covers(j)], values[dim.name]
            for block, choice in zip(own, value if isinstance(value, tuple) else [value] * len(own), strict=True):
                block[dim.name] = choice
        return blocks

    def _block(self, stage: int, index: int, values: Mapping[str, Any]) -> Any:
        """One block; `values` has one value per dimension."""
        own = [dim for dim in self.dims if stage in dim.stages and dim.covers(index)]
        genes: dict[str, Any] = {dim.gene: self.at(dim, stage, values[dim.name]) for dim in own}
        width = genes.pop("embed_dim")
        del genes["depth"]
        if "num_heads" in genes:
            genes.setdefault("head_dim", width // genes["num_heads"])
        return FAMILIES[self.family].block(**genes)

    def values(self, arch: Arch) -> Values:
        """The inverse of `build` (values per block as tuples); ValueError if the architecture is not in the space."""
        values: Values = {}
        if arch.family == self.family and len(arch.stages) == self.num_stages:
            for dim in self.dims:
                stage = arch.stages[dim.stages[0]]
                if dim.gene in ("depth", "embed_dim"):
                    read: tuple[Any, ...] = (stage.depth if dim.gene == "depth" else stage.embed_dim,)
                else:
                    read = tuple(getattr(b, dim.gene) for j, b in enumerate(stage.blocks) if dim.covers(j))
                lookup = {self.at(dim, dim.stages[0], choice): choice for choice in dim.choices}
                if any(v not in lookup for v in read):
                    break
                chosen = tuple(lookup[v] for v in read)
                values[dim.name] = chosen if dim.per_block else chosen[0]
            else:
                if self.build(values) == arch:
                    return values
        raise ValueError(
            f"architecture {arch.key} is not in space {self.name!r}; sample it from there or name another."
        )

    def contains(self, arch: Arch) -> bool:
        try:
            self.values(arch)
        except ValueError:
            return False
        return True

    # Drawing. A block is a dict of its genes, so that it is exchanged and redrawn as a whole.

    @functools.cached_property
    def _per_block(self) -> list[list[Dim]]:
        return [[d for d in self.dims if d.per_block and d.stages == (s,)] for s in range(self.num_stages)]

    def _block_dims(self, stage: int, index: int) -> list[Dim]:
        return [dim for dim in self._per_block[stage] if dim.covers(index)]

    def candidates(self, stage: int, index: int) -> list[Values]:
        """Every choice of genes of one block."""
        dims = self._block_dims(stage, index)
        names = [dim.name for dim in dims]
        return [dict(zip(names, genes, strict=True)) for genes in itertools.product(*(dim.choices for dim in dims))]

    def assemble(self, values: Mapping[str, Any], blocks: list[list[Values]]) -> Arch:
        """The architecture with these values of stages and models, and these blocks in each stage."""
        stages = []
        for s, genes in enumerate(blocks):
            built = tuple(self._block(s, j, {**values, **own}) for j, own in enumerate(genes))
            stages.append(Stage(self._size("embed_dim", s, values), built))
        return Arch(self.family, tuple(stages), self.patch_size, self.stem_depth)

    # Drafts: networks as numbers, which are drawn, changed and priced without building anything

    @functools.cached_property
    def plans(self) -> list[Plan]:
        return [Plan(self, stage) for stage in range(self.num_stages)]

    @functools.cached_property
    def shared(self) -> tuple[Dim, ...]:
        """The dimensions that are not per block."""
        return tuple(dim for dim in self.dims if not dim.per_block)

    @functools.cached_property
    def _free(self) -> list[tuple[int, tuple[Value, ...], bool]]:
        """Of the shared dimensions with several choices: place, choices, and whether it is a depth."""
        return [(i, d.choices, d.gene == "depth") for i, d in enumerate(self.shared) if len(d.choices) > 1]

    def draft(self, arch: Arch) -> Draft:
        """The inverse of `built`."""
        values = self.values(arch)
        picks = (
            tuple(plan.number(j, tuple(own.values())) for j, own in enumerate(self._by_block(stage, values)))
            for stage, plan in enumerate(self.plans)
        )
        return Draft(tuple(values[dim.name] for dim in self.shared), tuple(picks))

    def built(self, draft: Draft) -> Arch:
        """The architecture; its blocks were checked when they were made, so they are not checked again."""
        stages = []
        for plan, picks in zip(self.plans, draft.picks, strict=True):
            width, blocks = plan.blocks(draft.shared)
            stages.append(Stage.trusted(width, tuple([blocks[pick] for pick in picks])))
        return Arch.trusted(self.family, tuple(stages), self.patch_size, self.stem_depth)

    def draw(self, rng: random.Random) -> Draft:
        """Every dimension uniformly."""
        number = rng.random
        shared = list(self._lowest)
        for i, choices, _ in self._free:
            shared[i] = choices[int(number() * len(choices))]
        picks = [tuple([first + int(number() * n) for first, n in plan.spans(shared)]) for plan in self.plans]
        return Draft(tuple(shared), tuple(picks))

    @functools.cached_property
    def _lowest(self) -> list[Value]:
        return [dim.choices[0] for dim in self.shared]

    def mutated(
        self, draft: Draft, rng: random.Random, *, p_depth: float = 0.2, p_embed: float = 0.2, p_block: float = 0.4
    ) -> Draft:
        """S3 supplement, Alg. 2: depths, widths (and other genes of a stage), then each block, as a whole."""
        number = rng.random
        shared = list(draft.shared)
        for i, choices, depth in self._free:
            if number() < (p_depth if depth else p_embed):
                others = [choice for choice in choices if choice != shared[i]]
                shared[i] = others[int(number() * len(others))]
        picks = []
        for plan, old in zip(self.plans, draft.picks, strict=True):
            spans = plan.spans(shared)
            new = [
                first + int(number() * n) if number() < p_block else pick
                for pick, (first, n) in zip(old, spans, strict=False)
            ]
            new += [first + int(number() * n) for first, n in spans[len(old) :]]
            picks.append(tuple(new))
        return Draft(tuple(shared), tuple(picks))

    def crossed(self, one: Draft, other: Draft, rng: random.Random) -> Draft:
        """Depth and width of a stage from one parent; each block from either parent that has it."""
        number, parents = rng.random, (one, other)
        by_stage = [parents[number() >= 0.5].shared for _ in range(self.num_stages)]
        shared = [
            # A gene of several stages is no stage's own: it has a coin of its own.
            (by_stage[dim.stages[0]] if len(dim.stages) == 1 else parents[number() >= 0.5].shared)[i]
            for i, dim in enumerate(self.shared)
        ]
        picks = []
        for plan, first, second in zip(self.plans, one.picks, other.picks, strict=True):
            depth = len(plan.spans(shared))
            longer = first if len(first) > len(second) else second
            new = [a if number() < 0.5 else b for a, b in zip(first, second, strict=False)][:depth]
            picks.append(tuple(new) + longer[len(new) : depth])
        return Draft(tuple(shared), tuple(picks))

    def sample(self, rng: random.Random) -> Arch:
        """Every dimension uniformly."""
        return self.built(self.draw(rng))

    def mutate(self, arch: Arch, rng: random.Random, **rates: float) -> Arch:
        """`mutated` of an architecture."""
        return self.built(self.mutated(self.draft(arch), rng, **rates))

    def crossover(self, first: Arch, second: Arch, rng: random.Random) -> Arch:
        """`crossed` of two architectures."""
        return self.built(self.crossed(self.draft(first), self.draft(second), rng))

    # Extent

    def largest(self) -> Arch:
        return self.build({dim.name: dim.choices[-1] for dim in self.dims})

    def smallest(self) -> Arch:
        return self.build({dim.name: dim.choices[0] for dim in self.dims})

    def extremes(self) -> tuple[Arch, ...]:
        """Architectures whose tensors together cover those of all others, axis by axis.

        One is enough but where genes divide a width, as more global heads of GLiT mean fewer local ones.
        """
        dividing = FAMILIES[self.family].dividing
        if not any(dim.gene in dividing and len(dim.choices) > 1 for dim in self.dims):
            return (self.largest(),)
        other = {dim.name: dim.choices[0 if dim.gene in dividing else -1] for dim in self.dims}
        return self.largest(), self.build(other)

    def cheapest(self, price: Callable[[Arch], float], *, measured: bool = False) -> Arch:
        """The architecture with the lowest price; see `extent`."""
        return self._end(price, 0, measured)

    def dearest(self, price: Callable[[Arch], float], *, measured: bool = False) -> Arch:
        """The architecture with the highest price; see `extent`."""
        return self._end(price, -1, measured)

    def extent(self, price: Callable[[Arch], float], *, measured: bool = False) -> tuple[float, float]:
        """The lowest and the highest price in the space, exact for parameters and MACs.

        Neither cost falls along most genes, so these stand at an end of their choices; the genes that trade (see
        `Family.trading`) are tried out. Costs are sums over blocks, so one stage is tried after the other, and in it
        one group of blocks with the same choices after the other. A `measured` price may fall along any gene of a
        block, so all of these are tried out; that it grows with depth and width and is a sum over blocks is assumed.
        """
        return price(self.cheapest(price, measured=measured)), price(self.dearest(price, measured=measured))

    def _trades(self, dim: Dim, measured: bool) -> bool:
        if len(dim.choices) == 1 or dim.gene in ("depth", "embed_dim"):
            return False
        if dim.gene == "num_heads" and not any(d.gene == "head_dim" for d in self.dims):
            return True  # heads are width // num_heads wide: 2 heads on 10 channels have 10 together, 3 have 9
        return measured or dim.gene in FAMILIES[self.family].trading

    def _end(self, price: Callable[[Arch], float], end: int, measured: bool) -> Arch:
        values = {dim.name: dim.choices[end] for dim in self.dims if not dim.per_block}
        blocks = [
            [{d.name: d.choices[end] for d in self._block_dims(s, j)} for j in range(self._size("depth", s, values))]
            for s in range(self.num_stages)
        ]
        trading = [dim for dim in self.dims if self._trades(dim, measured)]

        def best(candidates: list[tuple[Values, list[list[Values]]]]) -> tuple[Values, list[list[Values]]]:
            """The first one with the best price."""
            if len(candidates) == 1:
                return candidates[0]
            sign = 1 if end == 0 else -1
            return min(candidates, key=lambda candidate: sign * price(self.assemble(*candidate)))

        def combinations(dims: list[Dim]) -> list[Values]:
            """All choices of these dimensions together, beginning with the ends."""
            pools = [[dim.choices[end], *(c for c in dim.choices if c != dim.choices[end])] for dim in dims]
            return [dict(zip([d.name for d in dims], chosen, strict=True)) for chosen in itertools.product(*pools)]

        def best_blocks(values: Values, blocks: list[list[Values]], stage: int) -> tuple[Values, list[list[Values]]]:
            groups: dict[tuple[Dim, ...], list[int]] = {}
            for j in range(len(blocks[stage])):
                groups.setdefault(tuple(self._block_dims(stage, j)), []).append(j)
            for dims, group in groups.items():
                candidates = []
                for genes in combinations([dim for dim in dims if dim in trading]):
                    own = [block | genes if j in group else block for j, block in enumerate(blocks[stage])]
                    candidates.append((values, [*blocks[:stage], own, *blocks[stage + 1 :]]))
                values, blocks = best(candidates)
            return values, blocks

        found = []
        for shared in combinations([dim for dim in trading if len(dim.stages) > 1]):
            state = (values | shared, blocks)
            for stage in range(self.num_stages):
                own = combinations([dim for dim in trading if dim.stages == (stage,) and not dim.per_block])
                state = best([best_blocks(state[0] | chosen, state[1], stage) for chosen in own])
            found.append(state)
        return self.assemble(*best(found))

    def size(self) -> int:
        """The exact number of architectures (as genes, also where two of them are the same network)."""
        total = 0
        depth_dims = [dim for dim in self.dims if dim.gene == "depth"]
        for depths in itertools.product(*(dim.choices for dim in depth_dims)):
            values = {dim.name: depth for dim, depth in zip(depth_dims, depths, strict=True)}
            total += math.prod(
                len(dim.choices)
                for s in range(self.num_stages)
                for j in range(self._size("depth", s, values))
                for dim in self._block_dims(s, j)
            )
        return total * math.prod(len(d.choices) for d in self.dims if not d.per_block and d.gene != "depth")

    def enumerate(self) -> Iterator[Arch]:
        """Every architecture, for small spaces."""
        for shared in itertools.product(*(dim.choices for dim in self.shared)):
            spans = (plan.spans(shared) for plan in self.plans)
            pools = [itertools.product(*(range(first, first + n) for first, n in own)) for own in spans]
            yield from (self.built(Draft(shared, picks)) for picks in itertools.product(*pools))

    def moved(self, deltas: Mapping[str, float], name: str | None = None) -> Space:
        """The space with the choices of the named dimensions moved."""
        moved = {self[dim].name: self[dim].moved(delta) for dim, delta in deltas.items() if delta}
        return dataclasses.replace(self, dims=tuple(moved.get(d.name, d) for d in self.dims), name=name or self.name)

    def replaced(self, choices: Mapping[str, tuple[Value, ...]], name: str | None = None) -> Space:
        """The space with other choices in the named dimensions, whose evolve steps grow or shrink with them."""
        for wanted in choices:
            _ = self[wanted]
        dims = tuple(d.replaced(choices[d.name]) if d.name in choices else d for d in self.dims)
        return dataclasses.replace(self, dims=dims, name=name or self.name)

    # JSON

    def to_dict(self) -> dict[str, Any]:
        data = dataclasses.asdict(self)
        for dim in data["dims"]:
            if dim["high"] == math.inf:
                del dim["high"]  # JSON has no infinity
        return data

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Space:
        try:
            return cls(**{**data, "dims": tuple(Dim(**dim) for dim in data["dims"])})
        except (TypeError, KeyError, AttributeError, IndexError, OverflowError) as error:
            raise ValueError(f"The search space is not in the form that Space.to_dict writes ({error}).") from None


def __getattr__(name: str) -> Any:
    """The published spaces: `SPACES` has all by name, and each is also found as a constant such as `S3_INITIAL`.

    Functions that make spaces of a family stand in its file and are found here too (`s3_space`, `glit_split`).
    """
    if name == "SPACES":
        return {space.name: space for family in FAMILIES.values() for space in family.spaces()}
    for family in FAMILIES.values() if not name.startswith("_") else ():
        if hasattr(module := sys.modules[type(family).__module__], name):
            return getattr(module, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
