"""The configuration of a search run."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

from s3zoo.arch import Arch, Stage
from s3zoo.checks import Amount, Count, Positive, Range, Share, check, typed
from s3zoo.families import FAMILIES
from s3zoo.files import read_json
from s3zoo.search.budget import Budget
from s3zoo.search.records import ABOUT
from s3zoo.search.space_search import SpaceSearch
from s3zoo.space import S3_INITIAL, Space
from s3zoo.training.config import Run, Tower, Train, from_dict


@dataclass(frozen=True)
class ArchSearch:
    """The search for an architecture in a trained supernet (S3 supplement Alg. 2; AutoFormer 3.3)."""

    method: Literal["evolution", "random"] = "evolution"  # random: the baseline at equal evaluations
    budgets: tuple[str, ...] = ()  # one winner each, e.g. ("params<=5M", "1G<=macs<=1.3G"); none: one without limits
    population: Annotated[int, Range(1, 10**6)] = 50  # networks a generation
    generations: Annotated[int, Range(1, 10**6)] = 20  # the first is random
    parents: Positive = 10  # the best so far, from which new networks are made
    crossover: Count = 25  # networks a generation with genes of two parents
    mutation: Count = 25  # networks a generation with some genes of a parent drawn again; the rest are random
    p_depth: Share = 0.2  # probability that a mutation draws the depth of a stage again
    p_embed: Share = 0.2  # the same of its width
    p_block: Share = 0.4  # the same of each block, as a whole
    racing: bool = False  # score on growing parts of the held-out images, drop candidates unlikely to become parents
    calibration_images: Positive = 1024  # for batch norms, where there are any
    # Images at once where latency is measured
    latency_batch: Annotated[int, Range(1, 10**6)] = 1
    latency_repeats: Annotated[int, Range(1, 10**6)] = 10  # how often each block is timed
    latency_table: str = ""  # file of a table that was measured on another device; empty: this one is
    latency_threads: Count = 0  # of a CPU; 0: as many as the run has
    # What runs the networks: PyTorch, torch.compile or ONNX Runtime's CPU provider
    latency_runtime: Literal["torch", "compile", "onnx"] = "torch"

    def __post_init__(self) -> None:
        check(self)
        for text in self.budgets:
            Budget.parse(text)
        if self.crossover + self.mutation > self.population:
            raise ValueError(
                f"crossover {self.crossover} + mutation {self.mutation} must not be more than the population of"
                f" {self.population}; lower them or raise the population."
            )


@dataclass(frozen=True)
class Final:
    """What becomes of the best architectures."""

    # "inherit" the supernet's weights as they are; "finetune" them; or "retrain" from scratch
    mode: Literal["inherit", "finetune", "retrain"] = "inherit"
    top: Positive = 1  # so many of the best are finished; the best of them on the held-out images is kept
    # Train the one network on the held-out images, too: nothing is chosen any more, and nothing measured on them
    use_held_out: bool = False
    train: Train = field(default_factory=Train)

    def __post_init__(self) -> None:
        check(self)


@dataclass(frozen=True)
class Controls:
    """Networks that are finished like the winner, under the same budget: they say what the search bought."""

    random: bool = False  # one drawn from the config's space; with final.mode finetune, from the one that is searched
    random_search: bool = False  # the best of as many random networks as the search scored, in the same supernet
    stock: bool = False  # timm's transformer and CNN of the nearest latency or MACs, of a list of small ones
    # One designed by hand: for each gene, depth and embed_dim a value, or one for each stage; or an architecture's JSON
    designed: dict = field(default_factory=dict)

    def __post_init__(self) -> None:
        check(self)

    def __len__(self) -> int:
        return self.random + self.random_search + 2 * self.stock + bool(self.designed)

    def designed_arch(self, space: Space) -> Arch:
        """The network designed by hand, of the family of this space."""
        if "stages" in self.designed:
            return Arch.from_dict(self.designed)
        genes = {name: value if isinstance(value, tuple | list) else (value,) * space.num_stages
                 for name, value in self.designed.items()}  # fmt: skip
        block = FAMILIES[space.family].block
        fields = {field.name: field.default is dataclasses.MISSING for field in dataclasses.fields(block)}
        fields |= {"depth": True, "embed_dim": True}
        needed = {name for name, must in fields.items() if must}
        wrong = (genes.keys() - fields.keys()) | (needed - genes.keys())
        wrong |= {name for name, values in genes.items() if len(values) != space.num_stages}
        if wrong:
            raise ValueError(
                f"controls.designed must give {', '.join(sorted(needed))}, each as one value or as {space.num_stages},"
                f" one for each stage of {space.name!r}; look at {', '.join(sorted(wrong))}."
            )
        stages = []
        for values in ({name: each[stage] for name, each in genes.items()} for stage in range(space.num_stages)):
            depth, width = values.pop("depth"), values.pop("embed_dim")
            stages.append(Stage(width, (block(**values),) * depth))
        return Arch(space.family, tuple(stages), space.patch_size, space.stem_depth)


@dataclass(frozen=True)
class SearchRun(Run):
    """Space search, supernet, architecture search, finish."""

    space: Space = S3_INITIAL  # what is searched: a space by its name, or one built in a config of your own
    # Phases of the search; "glit": first the split into global and local heads, then the details of the blocks
    hierarchy: Literal["none", "glit"] = "none"
    supernet: Train = field(default_factory=lambda: Train(sampling="sandwich", drop_path=0.2))
    # Where the first supernet begins: the file of an official AutoFormer supernet, a network (name, folder, hf-hub:…)
    # or the folder of a finished run; empty: from random weights
    start: str = ""
    # File of an official AutoFormer supernet, or folder of a finished run: searched as it is, none is trained
    supernet_weights: str = ""
    space_search: SpaceSearch = field(default_factory=lambda: SpaceSearch(method="none"))
    arch_search: ArchSearch = field(default_factory=ArchSearch)
    final: Final = field(default_factory=Final)
    # How an audit (space_search.audit) finetunes; it retrains with final.train. 0 epochs: finetunes with that, too.
    audit_finetune: Train = field(default_factory=lambda: Train(epochs=0))
    controls: Controls = field(default_factory=Controls)
    tower: Tower = field(default_factory=Tower)  # of family "ladder" only
    hours: Amount = 0.0  # of clock: phases shrink to what is left of them; 0: as long as it takes

    def __post_init__(self) -> None:
        super().__post_init__()
        # Networks are priced and built for a shape that is known before the images are.
        for name in ("num_classes", "img_size", "in_chans", "crop_pct", "mean", "std", "interpolation"):
            if not (value := getattr(self.data, name)):
                raise ValueError(
                    f"data.{name} is {value!r}, but a search must know it before it opens the images, because networks"
                    f" are priced first; set data.{name}."
                )
        if not self.data.holdout:
            raise ValueError(
                "data.holdout is 0, but a search compares networks on images that are held out; set it to at least 1."
            )
        if not FAMILIES[self.space.family].reads_tower and self.tower != Tower():
            raise ValueError(
                f"tower is set, but networks of space family {self.space.family!r} read none; leave it, or take a space"
                " of family 'ladder' such as s4_clip."
            )
        self._check_held_out()
        self._check_controls()
        if self.hierarchy == "glit" and (self.space.family != "glit" or self.space_search.method != "none"):
            raise ValueError("hierarchy 'glit' needs a GLiT space and space_search.method 'none'.")
        if self.hierarchy == "glit" and (count := len(self.arch_search.budgets)) > 1:
            raise ValueError(f"hierarchy 'glit' takes one budget, but {count} were given; run it once for each.")
        self._check_supernet_weights()

    def _check_supernet_weights(self) -> None:
        given = self.supernet_weights
        if self.start and (given or self.supernet.sharing != "entangled"):
            raise ValueError(
                f"start is {self.start!r}, but only a supernet that is trained, with supernet.sharing 'entangled',"
                " begins somewhere; leave it, or supernet_weights."
            )
        if not given:
            return
        official = FAMILIES[self.space.family].official
        fits = official is not None and official.supernet and self.supernet.sharing == "entangled"
        folder = not Path(given).suffix.startswith(".pt")  # by its name: a run is read where the other is not, too
        if self.space_search.method != "none" or not (fits or folder):
            raise ValueError(
                f"supernet_weights is {given!r}: a file of an official supernet needs an AutoFormer space,"
                " space_search.method 'none' and supernet.sharing 'entangled', and the folder of a finished run is best"
                " given as --from."
            )

    def _check_held_out(self) -> None:
        """Held-out images are trained on only if nothing is chosen or compared on them afterwards."""
        if not self.final.use_held_out:
            return
        reasons = {
            "final.mode is 'inherit', which trains nothing": self.final.mode == "inherit",
            f"final.top is {self.final.top}, and the best of them is chosen on these images": self.final.top > 1,
            "space_search.audit compares networks on these images": self.space_search.audit > 0,
            "space_search.search_each_space compares spaces on these images": self.space_search.search_each_space,
            "controls compare networks that were trained alike": bool(self.controls),
        }
        if applying := [reason for reason, applies in reasons.items() if applies]:
            raise ValueError(f"final.use_held_out is True, but {applying[0]}; set final.use_held_out=false.")

    def _check_controls(self) -> None:
        """Networks are compared after the same training; finetuned ones begin with the supernet's weights, and those
        of timm, which has none there, are said to begin from scratch."""
        if self.controls and self.final.mode == "inherit":
            raise ValueError(
                "controls are set, but final.mode is 'inherit', which trains nothing; set final.mode=retrain, so that"
                " all networks are trained alike, or final.mode=finetune."
            )
        if self.controls.designed:
            inside = self.space.contains(self.controls.designed_arch(self.space))
            if not inside and self.final.mode == "finetune":
                raise ValueError(
                    "controls.designed is no network of the space, so it has no weights to be finetuned; set"
                    " final.mode=retrain."
                )
            if not inside and any("latency" in budget.limits for budget in self.budgets):
                raise ValueError(
                    "controls.designed is set, but a budget limits latency, which is measured for the blocks of the"
                    " space only; leave one of them."
                )

    @classmethod
    def read(cls, path: Path) -> tuple[SearchRun, dict[str, Any]]:
        """The config in a run.json, as data, and what else stands there."""

        def check(content: Any) -> None:
            typed(content, ABOUT, "")
            if "space" not in content["config"]:
                raise ValueError("it is of a training and no search")
            from_dict(cls, content["config"])

        about = read_json(path, check, remedy="give the folder of a search")
        return from_dict(cls, about.pop("config")), about

    @property
    def budgets(self) -> tuple[Budget, ...]:
        """What winners are held to: where no budget is given, the limit of the space search."""
        limit = Budget() if self.space_search.method == "none" else self.space_search.budget
        return tuple(map(Budget.parse, self.arch_search.budgets)) or (limit,)

    @property
    def audit_trains(self) -> dict[str, Train]:
        """The trainings of each network of an audit."""
        finetune = self.audit_finetune if self.audit_finetune.epochs else self.final.train
        return {"finetune": finetune, "retrain": self.final.train}

    @property
    def shape(self) -> dict[str, Any]:
        """What networks are built for."""
        data = self.data
        return {"img_size": data.img_size, "num_classes": data.num_classes, "in_chans": data.in_chans}

    @property
    def priced(self) -> dict[str, Any]:
        """What decides on costs besides the architecture."""
        tower = self.bare_tower()
        return self.shape if tower is None else self.shape | {"tower_dim": tower.embed_dim}

    def bare_tower(self) -> Any:
        """The frozen network that decoders read, without its weights; None for other families."""
        if not FAMILIES[self.space.family].reads_tower:
            return None
        from s3zoo.models.tower import build_tower  # torch is needed from here on

        return build_tower(self.tower.name, img_size=self.data.img_size, in_chans=self.data.in_chans, device="meta")
