"""What a network *is*: a frozen, hashable `Arch` that is sampled, priced, built, stored and compared."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import json
import reprlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from s3zoo.versions import Migration, migrated

SCHEMA_VERSION = 1
MIGRATIONS: dict[int, Migration] = {}  # of the JSON of an architecture, from a version to the next
LARGEST = 2**20  # of any one gene: far above every network, and small enough that sizes stay finite numbers


# Checks on one value: each returns the value in its stored form or raises with field, value and what is valid.

Check = Callable[[str, Any], Any]


_repr = reprlib.Repr()
_repr.maxstring = _repr.maxother = 100


def _show(value: Any) -> str:
    """A value on one line, shortened where it is long or deep."""
    return " ".join(_repr.repr(value).split())


def _bad(field: str, value: Any, valid: str) -> ValueError:
    return ValueError(f"{field} is {_show(value)}, but must be {valid}.")


def integer(low: int, *, odd: bool = False) -> Check:
    def check(field: str, value: Any) -> int:
        valid = f"an{' odd' if odd else ''} integer of at least {low} and at most {LARGEST}"
        if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= LARGEST:
            raise _bad(field, value, valid)
        if odd and value % 2 == 0:
            raise _bad(field, value, valid)
        return value

    return check


def positive(field: str, value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value <= LARGEST:  # NaN is in no range
        raise _bad(field, value, f"a number above 0 and at most {LARGEST}")
    return float(value)


def one_of(*names: str) -> Check:
    def check(field: str, value: Any) -> str:
        if value not in names or not isinstance(value, str):
            raise _bad(field, value, "one of " + ", ".join(map(repr, names)))
        return value

    return check


# The genes of a block, family by family.


@dataclass(frozen=True)
class _Block:
    checks: ClassVar[dict[str, Check]] = {}

    def __post_init__(self) -> None:
        for field, check in self.checks.items():
            object.__setattr__(self, field, check(field, getattr(self, field)))


@dataclass(frozen=True)
class S3Block(_Block):
    """Window attention and an MLP; Q-K-V width (`qkv_dim`) and embedding width are independent."""

    window_size: int
    num_heads: int
    head_dim: int
    mlp_ratio: float

    checks = {
        "window_size": integer(1),
        "num_heads": integer(1),
        "head_dim": integer(1),
        "mlp_ratio": positive,
    }

    @property
    def qkv_dim(self) -> int:
        return self.num_heads * self.head_dim


@dataclass(frozen=True)
class _AttentionBlock(_Block):
    num_heads: int
    head_dim: int
    mlp_ratio: float

    checks = {"num_heads": integer(1), "head_dim": integer(1), "mlp_ratio": positive}

    @property
    def qkv_dim(self) -> int:
        return self.num_heads * self.head_dim


class AutoFormerBlock(_AttentionBlock):
    """Global attention with 2-D relative positions on keys and values, and an MLP."""


class ShuntedBlock(_AttentionBlock):
    """Attention to tokens merged at two rates, and an MLP with a depthwise convolution inside."""


class LadderBlock(_AttentionBlock):
    """A decoder layer: a query reads the features of a frozen tower; the stage's width is the ladder's bottleneck."""


@dataclass(frozen=True)
class GLiTBlock(_Block):
    """The first `global_heads` of `num_heads` equal channel groups attend, the others pass a convolution module."""

    num_heads: int
    global_heads: int
    head_dim: int
    kernel_size: int
    expansion: float
    mlp_ratio: float
    locality: str = "conv1d"

    checks = {
        "num_heads": integer(1),
        "global_heads": integer(0),
        "head_dim": integer(1),
        "kernel_size": integer(1, odd=True),
        "expansion": positive,
        "mlp_ratio": positive,
        "locality": one_of("conv1d"),
    }

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.global_heads > self.num_heads:
            raise _bad("global_heads", self.global_heads, f"at most num_heads ({self.num_heads})")

    @property
    def local_heads(self) -> int:
        return self.num_heads - self.global_heads

    @property
    def qkv_dim(self) -> int:
        return self.global_heads * self.head_dim

    def effective(self) -> GLiTBlock:
        """The same block with the genes of an absent branch at fixed values."""
        block = self
        if not block.global_heads:
            block = dataclasses.replace(block, head_dim=1)
        if not block.local_heads:
            block = dataclasses.replace(block, kernel_size=1, expansion=1.0)
        return block


Block = S3Block | AutoFormerBlock | ShuntedBlock | LadderBlock | GLiTBlock


@dataclass(frozen=True)
class Family:
    """What `Arch` must know of a family: its genes, its default patch and how many stages it may have."""

    block: type[Any]
    patch_size: int
    stages: int | None  # None: any number
    trading: tuple[str, ...] = ()  # genes along which parameters or MACs may fall; along all others they never do


FAMILIES: dict[str, Family] = {
    # A larger window may need less padding; more global heads are fewer local ones, and more heads make each narrower.
    "s3": Family(S3Block, patch_size=4, stages=None, trading=("window_size",)),
    "autoformer": Family(AutoFormerBlock, patch_size=16, stages=1),
    "glit": Family(GLiTBlock, patch_size=16, stages=1, trading=("global_heads", "num_heads")),
    "shunted": Family(ShuntedBlock, patch_size=4, stages=4),
    "ladder": Family(LadderBlock, patch_size=16, stages=1),
}


@dataclass(frozen=True)
class Stage:
    embed_dim: int
    blocks: tuple[Block, ...]

    def __post_init__(self) -> None:
        integer(1)("embed_dim", self.embed_dim)
        object.__setattr__(self, "blocks", _tuple("blocks", self.blocks, _Block, "block"))

    @property
    def depth(self) -> int:
        return len(self.blocks)


@dataclass(frozen=True)
class Arch:
    """A network of one family. Depth is the number of blocks, so no gene describes a layer that does not exist."""

    family: str
    stages: tuple[Stage, ...]
    patch_size: int = 0  # 0: the family's own
    stem_depth: int = 0  # extra convolutions of Shunted's stem

    def __post_init__(self) -> None:
        family = FAMILIES.get(self.family) if isinstance(self.family, str) else None
        if family is None:
            raise _bad("family", self.family, "one of " + ", ".join(FAMILIES))
        object.__setattr__(self, "stages", _tuple("stages", self.stages, Stage, "stage"))
        if type(self.patch_size) is int and self.patch_size == 0:
            object.__setattr__(self, "patch_size", family.patch_size)
        integer(1)("patch_size", self.patch_size)
        integer(0)("stem_depth", self.stem_depth)
        if self.stem_depth and self.family != "shunted":
            raise _bad("stem_depth", self.stem_depth, f"0 in family {self.family!r}")
        if family.stages and len(self.stages) != family.stages:
            given, valid = len(self.stages), f"a list of {family.stages} in family {self.family!r}"
            raise ValueError(f"stages is a list of {given}, but must be {valid}.")
        for i, stage in enumerate(self.stages):
            for j, block in enumerate(stage.blocks):
                where = f"stages[{i}].blocks[{j}]"
                if not isinstance(block, family.block):
                    raise _bad(where, block, f"a {family.block.__name__} in family {self.family!r}")
                if isinstance(block, GLiTBlock) and stage.embed_dim % block.num_heads:
                    raise _bad(f"{where}.num_heads", block.num_heads, f"a divisor of embed_dim {stage.embed_dim}")
                widths = {"mlp_ratio": stage.embed_dim}
                if isinstance(block, GLiTBlock) and block.local_heads:
                    widths["expansion"] = stage.embed_dim * block.local_heads // block.num_heads
                for gene, width in widths.items():
                    if int(width * getattr(block, gene)) < 1:
                        raise _bad(f"{where}.{gene}", getattr(block, gene), f"at least 1 / {width}, for a width of 1")

    # Reading

    @property
    def depths(self) -> tuple[int, ...]:
        return tuple(stage.depth for stage in self.stages)

    @property
    def embed_dims(self) -> tuple[int, ...]:
        return tuple(stage.embed_dim for stage in self.stages)

    @functools.cached_property
    def key(self) -> str:
        """A short name that is the same on every machine and in every process."""
        return hashlib.sha256(self.to_json().encode()).hexdigest()[:12]

    def effective(self, img_size: int | tuple[int, int]) -> Arch:
        """The canonical form of all architectures that are the same network at this input size.

        A window at least as large as the feature map is the window that equals it; genes of a branch that does not
        exist have no effect. Architectures are compared, cached and built in this form.
        """
        height, width = (img_size, img_size) if isinstance(img_size, int) else img_size
        for side in (height, width):
            integer(1)("img_size", side)
        if self.family == "s3":
            stages = []
            for i, stage in enumerate(self.stages):
                limit = max(-(-height // (self.patch_size * 2**i)), -(-width // (self.patch_size * 2**i)))
                blocks = tuple(
                    b if b.window_size <= limit else dataclasses.replace(b, window_size=limit)  # type: ignore[union-attr]
                    for b in stage.blocks
                )
                stages.append(Stage(stage.embed_dim, blocks))
            return dataclasses.replace(self, stages=tuple(stages))
        if self.family == "glit":
            stages = [Stage(s.embed_dim, tuple(b.effective() for b in s.blocks)) for s in self.stages]  # type: ignore[union-attr]
            return dataclasses.replace(self, stages=tuple(stages))
        return self

    # JSON

    def to_dict(self) -> dict[str, Any]:
        stages = [{"embed_dim": s.embed_dim, "blocks": [dataclasses.asdict(b) for b in s.blocks]} for s in self.stages]
        data = {"schema_version": SCHEMA_VERSION, "family": self.family, "patch_size": self.patch_size}
        if self.family == "shunted":
            data["stem_depth"] = self.stem_depth
        return {**data, "stages": stages}

    def to_json(self, indent: int | None = None) -> str:
        return json.dumps(self.to_dict(), indent=indent)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Arch:
        """The strict inverse of `to_dict`: an unknown or missing field or an impossible value is a `ValueError`."""
        if isinstance(data, Mapping) and "schema_version" in data:
            data = migrated(data, SCHEMA_VERSION, MIGRATIONS)
        fields = _fields("arch", data, {"schema_version", "family", "stages"}, {"patch_size", "stem_depth"})
        family = FAMILIES.get(fields["family"]) if isinstance(fields["family"], str) else None
        if family is None:
            raise _bad("family", fields["family"], "one of " + ", ".join(FAMILIES))
        genes = dataclasses.fields(family.block)
        required = {f.name for f in genes if f.default is dataclasses.MISSING}
        optional = {f.name for f in genes} - required
        stages = []
        for i, item in enumerate(_list("stages", fields["stages"])):
            where = f"stages[{i}]"
            stage = _fields(where, item, {"embed_dim", "blocks"}, set())
            blocks = []
            for j, values in enumerate(_list(f"{where}.blocks", stage["blocks"])):
                at = f"{where}.blocks[{j}]"
                blocks.append(_located(at, family.block, **_fields(at, values, required, optional)))
            stages.append(_located(where, Stage, embed_dim=stage["embed_dim"], blocks=tuple(blocks)))
        patch_size = integer(1)("patch_size", fields.get("patch_size", family.patch_size))
        return cls(fields["family"], tuple(stages), patch_size, fields.get("stem_depth", 0))

    @classmethod
    def from_json(cls, text: str) -> Arch:
        return cls.from_dict(_decoded("The architecture", text))

    @classmethod
    def parse(cls, source: Arch | Mapping[str, Any] | str | Path) -> Arch:
        """An `Arch`, its dict, its JSON text, or the path of a file that holds it (also a network's `config.json`)."""
        if isinstance(source, Arch):
            return source
        if isinstance(source, Mapping):
            return cls.from_dict(source)
        if not isinstance(source, str | Path):
            raise _bad("arch", source, "an Arch, a dict, or the path of a JSON file")
        if isinstance(source, str) and source.lstrip().startswith("{"):
            return cls.from_json(source)
        name = _show(str(source))
        try:
            path = Path(source).expanduser()
            text = path.read_text(encoding="utf-8") if path.is_file() else None
        except UnicodeDecodeError:
            raise ValueError(f"{name} is not a text file; give the JSON file of an architecture.") from None
        except (OSError, RuntimeError) as error:  # RuntimeError: a home directory that does not exist
            reason = getattr(error, "strerror", None) or error
            raise ValueError(f"{name} cannot be read ({reason}); give the path of a JSON file.") from None
        if text is None:
            raise ValueError(f"No architecture file at {name}; give the path of a JSON file, a dict or an Arch.")
        data = _decoded(name, text)
        if isinstance(data, dict) and "model_args" in data:  # the config.json of an exported network
            args = data["model_args"]
            if not isinstance(args, dict) or "arch" not in args:
                raise _bad(f"model_args in {name}", args, "an object with the field arch")
            data = args["arch"]
        return cls.from_dict(data)


def _decoded(name: str, text: str) -> Any:
    try:
        return json.loads(text, parse_constant=_no_constant, object_pairs_hook=_no_duplicates)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{name} is not valid JSON ({error}); give the JSON that Arch.to_json wrote.") from None


def _no_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    data: dict[str, Any] = {}
    for field, value in pairs:
        if field in data:
            raise ValueError(f"the field {_show(field)} occurs twice, as {_show(data[field])} and {_show(value)}")
        data[field] = value
    return data


def _no_constant(name: str) -> float:
    raise ValueError(f"{name} is no number in JSON")


def _tuple(field: str, values: Any, kind: type[Any], name: str) -> tuple[Any, ...]:
    try:
        parts = tuple(values)
    except TypeError:
        parts = ()
    if not parts or not all(isinstance(part, kind) for part in parts):
        raise _bad(field, values, f"a list of at least one {name}")
    return parts


def _list(where: str, value: Any) -> list[Any]:
    if not isinstance(value, list | tuple) or not value:
        raise _bad(where, value, "a list with at least one entry")
    return list(value)


def _fields(where: str, value: Any, required: set[str], optional: set[str]) -> dict[str, Any]:
    valid = "an object with " + ", ".join(sorted(required | optional))
    if not isinstance(value, Mapping):
        raise _bad(where, value, valid)
    unknown = sorted(set(value) - required - optional, key=str)
    missing = sorted(required - set(value))
    if unknown:
        field = unknown[0]
        raise ValueError(f"{where} has the unknown field {_show(field)} = {_show(value[field])}; it must be {valid}.")
    if missing:
        raise ValueError(f"{where} lacks the field {missing[0]!r}; it must be {valid}.")
    return dict(value)


def _located(where: str, build: Callable[..., Any], **values: Any) -> Any:
    """Build a part of the architecture and say where it stands if a value is refused."""
    try:
        return build(**values)
    except ValueError as error:
        raise ValueError(f"{where}.{error}") from None
