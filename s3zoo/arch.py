"""What a network *is*: a frozen, hashable `Arch` that is sampled, priced, built, stored and compared."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from s3zoo.checks import Range, refusal, show, typed
from s3zoo.families import FAMILIES, LARGEST, Block, Gene
from s3zoo.files import CONFIG_BYTES, parse_json, read_bytes
from s3zoo.versions import Migration, migrated

SCHEMA_VERSION = 1
MIGRATIONS: dict[int, Migration] = {}  # of the JSON of an architecture, from a version to the next


@dataclass(frozen=True)
class Stage:
    embed_dim: int
    blocks: tuple[Any, ...]  # of the family's type

    def __post_init__(self) -> None:
        typed(self.embed_dim, Gene, "embed_dim")
        object.__setattr__(self, "blocks", _tuple("blocks", self.blocks, Block, "block"))

    @classmethod
    def trusted(cls, embed_dim: int, blocks: tuple[Any, ...]) -> Stage:
        """Of parts that are checked already, as those of a space are."""
        stage = object.__new__(cls)
        stage.__dict__.update(embed_dim=embed_dim, blocks=blocks)
        return stage

    @property
    def depth(self) -> int:
        return len(self.blocks)


@dataclass(frozen=True)
class Arch:
    """A network of one family. Depth is the number of blocks, so no gene describes a layer that does not exist."""

    family: str
    stages: tuple[Stage, ...]
    patch_size: int = 0  # 0: the family's own
    stem_depth: int = 0  # extra convolutions of the stem, in families that have them

    def __post_init__(self) -> None:
        family = FAMILIES.find(self.family)
        object.__setattr__(self, "stages", _tuple("stages", self.stages, Stage, "stage"))
        if type(self.patch_size) is int and self.patch_size == 0:
            object.__setattr__(self, "patch_size", family.patch_size)
        typed(self.patch_size, Gene, "patch_size")
        typed(self.stem_depth, Annotated[int, Range(0, LARGEST)], "stem_depth")
        if self.stem_depth and not family.has_stem_depth:
            raise refusal("stem_depth", self.stem_depth, f"0 in family {self.family!r}")
        if family.stages and len(self.stages) != family.stages:
            given, valid = len(self.stages), f"a list of {family.stages} in family {self.family!r}"
            raise ValueError(f"stages is a list of {given}, but must be {valid}.")
        for i, stage in enumerate(self.stages):
            for j, block in enumerate(stage.blocks):
                where = f"stages[{i}].blocks[{j}]"
                if not isinstance(block, family.block):
                    raise refusal(where, block, f"a {family.block.__name__} in family {self.family!r}")
                _located(where, family.check, embed_dim=stage.embed_dim, block=block)

    @classmethod
    def trusted(cls, family: str, stages: tuple[Stage, ...], patch_size: int, stem_depth: int) -> Arch:
        """Of parts that are checked already, as those of a space are."""
        arch = object.__new__(cls)
        patch_size = patch_size or FAMILIES[family].patch_size
        arch.__dict__.update(family=family, stages=stages, patch_size=patch_size, stem_depth=stem_depth)
        return arch

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

        Genes of a branch that does not exist have no effect, a window is at most as large as the feature map.
        Architectures are compared, cached and built in this form.
        """
        height, width = (img_size, img_size) if isinstance(img_size, int) else img_size
        for side in (height, width):
            typed(side, Gene, "img_size")
        effective = FAMILIES[self.family].effective
        stages = tuple(
            Stage(stage.embed_dim, tuple(effective(b, i, (height, width), self.patch_size) for b in stage.blocks))
            for i, stage in enumerate(self.stages)
        )
        return self if stages == self.stages else dataclasses.replace(self, stages=stages)

    # JSON

    def to_dict(self) -> dict[str, Any]:
        stages = [{"embed_dim": s.embed_dim, "blocks": [dataclasses.asdict(b) for b in s.blocks]} for s in self.stages]
        data = {"schema_version": SCHEMA_VERSION, "family": self.family, "patch_size": self.patch_size}
        if FAMILIES[self.family].has_stem_depth:
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
        family = FAMILIES.find(fields["family"])
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
        patch_size = typed(fields.get("patch_size", family.patch_size), Gene, "patch_size")
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
            raise refusal("arch", source, "an Arch, a dict, or the path of a JSON file")
        if isinstance(source, str) and source.lstrip().startswith("{"):
            return cls.from_json(source)
        name = show(str(source))
        try:
            path = Path(source).expanduser()
            text = read_bytes(path, CONFIG_BYTES).decode() if path.is_file() else None
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
                raise refusal(f"model_args in {name}", args, "an object with the field arch")
            data = args["arch"]
        return cls.from_dict(data)


def _decoded(name: str, text: str) -> Any:
    try:
        return parse_json(text)
    except ValueError as error:
        raise ValueError(f"{name} is not valid JSON ({error}); give the JSON that Arch.to_json wrote.") from None


def _tuple(field: str, values: Any, kind: type[Any], name: str) -> tuple[Any, ...]:
    try:
        parts = tuple(values)
    except TypeError:
        parts = ()
    if not parts or not all(isinstance(part, kind) for part in parts):
        raise refusal(field, values, f"a list of at least one {name}")
    return parts


def _list(where: str, value: Any) -> list[Any]:
    if not isinstance(value, list | tuple) or not value:
        raise refusal(where, value, "a list with at least one entry")
    return list(value)


def _fields(where: str, value: Any, required: set[str], optional: set[str]) -> dict[str, Any]:
    valid = "an object with " + ", ".join(sorted(required | optional))
    if not isinstance(value, Mapping):
        raise refusal(where, value, valid)
    unknown = sorted(set(value) - required - optional, key=str)
    missing = sorted(required - set(value))
    if unknown:
        field = unknown[0]
        raise ValueError(f"{where} has the unknown field {show(field)} = {show(value[field])}; it must be {valid}.")
    if missing:
        raise ValueError(f"{where} lacks the field {missing[0]!r}; it must be {valid}.")
    return dict(value)


def _located(where: str, build: Callable[..., Any], **values: Any) -> Any:
    """Build a part of the architecture and say where it stands if a value is refused."""
    try:
        return build(**values)
    except ValueError as error:
        raise ValueError(f"{where}.{error}") from None


def __getattr__(name: str) -> Any:
    """The block types of all families by their names, such as `S3Block`."""
    for family in FAMILIES.values() if name.endswith("Block") else ():
        if family.block.__name__ == name:
            return family.block
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
