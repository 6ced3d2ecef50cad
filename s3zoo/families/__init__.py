"""What a family of networks is: one object that all of s3zoo asks, in one file that needs no torch.

The families of this package are found by the names of their files, those of other packages by the entry points of the
group "s3zoo.families" (see docs/extending.md). Each is imported when it is first asked for.
"""

from __future__ import annotations

import dataclasses
import importlib
import json
import logging
import sys
import typing
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib.metadata import entry_points
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

from s3zoo.checks import Range, declared, refusal, typed

_logger = logging.getLogger(__name__)

GROUP = "s3zoo.families"  # of entry points
BUILT_IN = ("s3", "autoformer", "glit", "shunted", "ladder")
LARGEST = 2**20  # of any one gene: far above every network, and small enough that sizes stay finite numbers


# Genes

Gene = Annotated[int, Range(1, LARGEST)]
Ratio = Annotated[float, Range(0, LARGEST, above=True)]


def check_ratio(block: Any, gene: str, width: int) -> None:
    """A gene that multiplies a width must leave a width of 1."""
    if int(width * getattr(block, gene)) < 1:
        raise refusal(gene, getattr(block, gene), f"at least 1 / {width}, for a width of 1")


@dataclass(frozen=True)
class Block:
    """The genes of one block: a subclass is a frozen dataclass whose fields say what they may be (see `checks`)."""

    def __post_init__(self) -> None:
        kinds = declared(type(self))
        for gene in (field.name for field in dataclasses.fields(self)):
            object.__setattr__(self, gene, typed(getattr(self, gene), kinds[gene], gene))

    @property
    def idle(self) -> dict[str, Any]:
        """Genes without effect, being of a branch that this block has not, and the values that stand for "none"."""
        return {}


@dataclass(frozen=True)
class AttentionBlock(Block):
    num_heads: Gene
    head_dim: Gene
    mlp_ratio: Ratio

    @property
    def qkv_dim(self) -> int:
        return self.num_heads * self.head_dim


# Costs


class Shape(NamedTuple):
    """What costs depend on besides widths and genes."""

    height: int
    width: int
    num_classes: int
    in_chans: int
    tower_dim: int  # of the frozen network, in families that read one
    patch_size: int
    stem_depth: int
    class_token: bool = True  # plain transformers: the tokens are one more than the patches


class Cost(NamedTuple):
    """Parameters, and MACs as executed and as the family's paper counts them (there also halves occur)."""

    params: int
    macs: int
    macs_paper: float


@dataclass(frozen=True)
class Official:
    """How a checkpoint of the authors is recognised: the family by a tensor, the published network by a number."""

    tensor: str  # no other family's checkpoint has it
    first_conv: str  # a convolution's weight: width, channels of images, patch
    models: Mapping[int, str]  # by the width of the first convolution, or by the number of blocks below `blocks`
    blocks: str = ""
    supernet: bool = False  # it is a supernet, from which the published network is cut


class Family:
    """A family. What a subclass must give has no value here; the methods with a body are right for many families."""

    name: str  # in architectures, spaces and JSON
    block: type[Any]  # the genes of a block
    patch_size: int  # unless an architecture says otherwise
    stages: int | None = None  # how many an architecture has; None: any number
    has_stem_depth = False  # architectures may have `stem_depth` extra convolutions before the first stage
    reads_tower = False  # networks read a frozen network, which is neither searched nor stored nor counted
    batch_norms = False  # of which every subnet of a supernet needs statistics of its own
    trading: tuple[str, ...] = ()  # genes along which parameters or MACs may fall; along all others they never do
    dividing: tuple[str, ...] = ()  # genes that divide a width: the more for one branch, the less for the other
    model: str  # "module:class" of the network
    entrypoint: str  # timm's name of the model that takes any architecture
    official: Official | None = None  # None: nothing to convert

    # For cards and pages
    title: str
    summary: str  # one clause, without a full stop
    found: str = "Published by its authors."  # how; {name} is the model's
    source: str = ""  # of the sources in `figures`: where the family is described
    colour = "teal"  # of drawing.SERIES
    marker = "v"  # of drawing.SHAPES

    def check(self, embed_dim: int, block: Any) -> None:
        """Whether the block fits the width of its stage; a ValueError that begins with the gene if not."""
        if hasattr(block, "mlp_ratio"):
            check_ratio(block, "mlp_ratio", embed_dim)

    def class_token(self, arch: Any) -> bool:
        """Whether a plain transformer of this architecture has one; if not, its patch tokens are pooled."""
        return True

    def effective(self, block: Any, stage: int, img_size: tuple[int, int], patch_size: int) -> Any:
        """The block that stands for all that compute the same at an input of this height and width."""
        return dataclasses.replace(block, **block.idle) if block.idle else block

    def frame_cost(self, widths: tuple[int, ...], shape: Shape) -> Cost:
        """The costs of all that is no block, given the widths of the stages."""
        raise NotImplementedError

    def block_cost(self, block: Any, width: int, stage: int, shape: Shape) -> Cost:
        """The costs of one block in a stage (counted from 0) of this width."""
        raise NotImplementedError

    def priced(self, model_args: Mapping[str, Any]) -> bool:
        """Whether a network built with these arguments has the costs above."""
        return True

    def spaces(self) -> tuple[Any, ...]:
        """The published search spaces, each a `s3zoo.space.Space`."""
        return ()

    def designed(self) -> dict[str, Any]:
        """Networks of this kind that people designed, each a `s3zoo.arch.Arch`, by their names."""
        return {}

    def figures(self) -> dict[str, Any]:
        """What others have published of the models, as they print it, and the sources: the JSON beside the file, if
        there is one."""
        path = Path(str(sys.modules[type(self).__module__].__file__)).with_suffix(".json")
        return json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}

    @property
    def module(self) -> str:
        """The module that implements the networks."""
        return self.model.partition(":")[0]

    def fractional(self, gene: str) -> bool:
        """Whether a gene of a block may be a fraction."""
        return typing.get_type_hints(self.block).get(gene) is float

    def words(self) -> set[str]:
        """The genes of a block that are words."""
        kinds = declared(self.block).items()
        return {gene for gene, kind in kinds if kind is str or typing.get_origin(kind) is Literal}


# Registry


class Families(Mapping[str, Family]):
    """All families by name: those of this package, then others in the order in which they are found."""

    def __init__(self) -> None:
        self._known: dict[str, Family] = {}
        self._broken: dict[str, str] = {}  # entry points that could not be loaded, and why
        self._searched = False

    def register(self, family: Family) -> Family:
        if type(self._known.get(family.name, family)) is not type(family):
            raise ValueError(f"A family {family.name!r} is registered already; give yours another name.")
        return self._known.setdefault(family.name, family)

    def find(self, name: Any) -> Family:
        """The family of this name, or a sentence that names all."""
        if isinstance(name, str) and name in self:
            return self[name]
        reason = self._broken.get(name) if isinstance(name, str) else None
        why = f" (that of another package was left out, {reason})" if reason else ""
        raise refusal("family", name, "one of " + ", ".join(self) + why)

    def __getitem__(self, name: str) -> Family:
        if name not in self._known and name in BUILT_IN:
            importlib.import_module(f"{__name__}.{name}")
        if name not in self._known:
            self._search()
        return self._known[name]

    def __iter__(self) -> Iterator[str]:
        yield from BUILT_IN
        self._search()
        yield from [name for name in self._known if name not in BUILT_IN]

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def _search(self) -> None:
        """Import what other packages offer; one that cannot be imported is named and left out."""
        if self._searched:
            return
        self._searched = True  # at once: what is imported may ask for families itself
        for point in entry_points(group=GROUP):
            try:
                if point.name in BUILT_IN:
                    raise ValueError("s3zoo has a family of this name; it must have another")
                point.load()
                if point.name not in self._known:
                    raise ValueError(f"{point.value} registers no family of this name")
            except Exception as error:  # whatever a foreign module raises
                reason = f"{type(error).__name__}: {' '.join(str(error).split())}"
                self._broken[point.name] = reason
                package = point.dist.name if point.dist else "a package"
                _logger.warning(
                    "Family %r of %s is left out (%s); repair or uninstall it.", point.name, package, reason
                )


FAMILIES = Families()
register = FAMILIES.register
