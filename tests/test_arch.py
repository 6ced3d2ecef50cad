"""`Arch`: what is written comes back, keys are stable everywhere, equal networks compare equal, defects are named."""

import copy
import dataclasses
import hashlib
import json
import math
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from s3zoo.arch import MIGRATIONS, Arch, AutoFormerBlock, GLiTBlock, LadderBlock, S3Block, ShuntedBlock, Stage

# Random architectures

ratios = st.one_of(st.integers(1, 8), st.floats(0.25, 8, allow_nan=False))
heads = st.integers(1, 12)
widths = st.integers(1, 128)


@st.composite
def glit_blocks(draw: st.DrawFn, num_heads: int) -> GLiTBlock:
    return GLiTBlock(
        num_heads=num_heads,
        global_heads=draw(st.integers(0, num_heads)),
        head_dim=draw(widths),
        kernel_size=draw(st.integers(0, 30)) * 2 + 1,
        expansion=draw(ratios),
        mlp_ratio=draw(ratios),
    )


@st.composite
def archs(draw: st.DrawFn, families: tuple[str, ...] = ("s3", "autoformer", "glit", "shunted", "ladder")) -> Arch:
    family = draw(st.sampled_from(families))
    if family == "glit":
        num_heads = draw(heads)
        blocks: Any = glit_blocks(num_heads)
        dims = st.integers(4, 64).map(lambda n: n * num_heads)
    else:
        kind = {"s3": S3Block, "autoformer": AutoFormerBlock, "shunted": ShuntedBlock, "ladder": LadderBlock}[family]
        genes: dict[str, Any] = dict(num_heads=heads, head_dim=widths, mlp_ratio=ratios)
        blocks = st.builds(kind, **genes, **({"window_size": st.integers(1, 40)} if family == "s3" else {}))
        dims = st.integers(4, 1024)
    count = {"s3": st.integers(1, 4), "shunted": st.just(4)}.get(family, st.just(1))
    stages = [Stage(draw(dims), tuple(draw(st.lists(blocks, min_size=1, max_size=3)))) for _ in range(draw(count))]
    stem_depth = draw(st.integers(0, 3)) if family == "shunted" else 0
    return Arch(family, tuple(stages), draw(st.sampled_from([0, 4, 8, 14])), stem_depth)


def shuffled(data: Any) -> Any:
    """The same data with the fields of every object in another order."""
    if isinstance(data, dict):
        return {k: shuffled(data[k]) for k in reversed(list(data))}
    return [shuffled(v) for v in data] if isinstance(data, list) else data


@given(archs())
def test_json_round_trip(arch: Arch) -> None:
    data = json.loads(arch.to_json())
    assert data == arch.to_dict() and data["schema_version"] == 1
    forms = (data, shuffled(data), arch.to_json(), arch.to_json(indent=2), json.dumps(shuffled(data)), arch)
    for form in forms:
        back = Arch.parse(form)
        assert back == arch and hash(back) == hash(arch) and back.key == arch.key
    assert pickle.loads(pickle.dumps(arch)) == copy.deepcopy(arch) == arch
    assert len({arch, Arch.from_dict(data)}) == 1


@given(archs())
def test_every_gene_counts(arch: Arch) -> None:
    """A change anywhere is another architecture with another key."""
    stage = arch.stages[-1]
    block = stage.blocks[-1]
    others = [dataclasses.replace(arch, patch_size=arch.patch_size + 1)]
    changed = [dataclasses.replace(block, mlp_ratio=block.mlp_ratio + 1)]
    changed += [dataclasses.replace(block, head_dim=block.head_dim + 1)]
    if isinstance(block, S3Block):
        changed.append(dataclasses.replace(block, window_size=block.window_size + 1))
    if isinstance(block, GLiTBlock):
        changed.append(dataclasses.replace(block, kernel_size=block.kernel_size + 2))
        changed.append(dataclasses.replace(block, expansion=block.expansion + 1))
    for new in changed:
        last = Stage(stage.embed_dim, (*stage.blocks[:-1], new))
        others.append(dataclasses.replace(arch, stages=(*arch.stages[:-1], last)))
    deeper = Stage(stage.embed_dim, (*stage.blocks, block))
    others.append(dataclasses.replace(arch, stages=(*arch.stages[:-1], deeper)))
    assert arch not in others
    assert len({arch.key, *(a.key for a in others)}) == 1 + len(others)


def test_whole_numbers_are_the_same_ratio() -> None:
    one, other = (Arch("autoformer", (Stage(8, (AutoFormerBlock(1, 8, ratio),)),)) for ratio in (4, 4.0))
    assert one == other and one.key == other.key and one.to_json() == other.to_json()


def test_families_with_equal_genes_differ() -> None:
    assert AutoFormerBlock(1, 8, 4.0) != LadderBlock(1, 8, 4.0)
    with pytest.raises(ValueError, match=r"stages\[0\]\.blocks\[0\] is LadderBlock.*AutoFormerBlock"):
        Arch("autoformer", (Stage(8, (LadderBlock(1, 8, 4.0),)),))


# Keys

GOLDEN = {
    "s3": (
        '{"schema_version": 1, "family": "s3", "patch_size": 4, "stages": [{"embed_dim": 96, "blocks": ['
        '{"window_size": 7, "num_heads": 3, "head_dim": 32, "mlp_ratio": 3.5}]}, {"embed_dim": 160, "blocks": ['
        '{"window_size": 14, "num_heads": 5, "head_dim": 32, "mlp_ratio": 4.0}]}]}',
        "f4b3c74e405d",
    ),
    "autoformer": (
        '{"schema_version": 1, "family": "autoformer", "patch_size": 16, "stages": [{"embed_dim": 192, "blocks": ['
        '{"num_heads": 3, "head_dim": 64, "mlp_ratio": 3.5}, {"num_heads": 4, "head_dim": 64, "mlp_ratio": 4.0}]}]}',
        "18751e32034f",
    ),
    "glit": (
        '{"schema_version": 1, "family": "glit", "patch_size": 16, "stages": [{"embed_dim": 192, "blocks": ['
        '{"num_heads": 3, "global_heads": 1, "head_dim": 64, "kernel_size": 31, "expansion": 4.0, "mlp_ratio": 6.0, '
        '"locality": "conv1d"}]}]}',
        "29a85679f5d2",
    ),
    "shunted": (
        '{"schema_version": 1, "family": "shunted", "patch_size": 4, "stem_depth": 1, "stages": ['
        + ", ".join(
            f'{{"embed_dim": {dim}, "blocks": [{{"num_heads": 2, "head_dim": 32, "mlp_ratio": 8.0}}]}}'
            for dim in (64, 128, 256, 512)
        )
        + "]}",
        "c71adf86dff5",
    ),
    "ladder": (
        '{"schema_version": 1, "family": "ladder", "patch_size": 16, "stages": [{"embed_dim": 336, "blocks": ['
        '{"num_heads": 2, "head_dim": 64, "mlp_ratio": 3.5}]}]}',
        "e618bf180f7f",
    ),
}


@pytest.mark.parametrize("family", GOLDEN)
def test_golden_key(family: str) -> None:
    """Keys name cached evaluations and published folders: they may change only with the schema version."""
    text, key = GOLDEN[family]
    arch = Arch.from_json(text)
    assert arch.to_json() == text
    assert arch.key == key == hashlib.sha256(text.encode()).hexdigest()[:12]


# The effective form


def feature_map(size: int, patch: int, stage: int) -> int:
    """The side of a stage's map: padded to the patch, then to pairs."""
    side = math.ceil(size / patch)
    for _ in range(stage):
        side = math.ceil(side / 2)
    return side


sizes = st.one_of(st.integers(1, 400), st.tuples(st.integers(1, 400), st.integers(1, 400)))


@given(archs(), sizes)
def test_effective_is_idempotent(arch: Arch, size: Any) -> None:
    once = arch.effective(size)
    assert once.effective(size) == once
    assert once.depths == arch.depths and once.embed_dims == arch.embed_dims and once.patch_size == arch.patch_size
    if arch.family not in ("s3", "glit"):
        assert once == arch


@given(archs(("s3",)), sizes, st.integers(0, 50))
def test_effective_window(arch: Arch, size: Any, more: int) -> None:
    """Windows no smaller than the map are one window; smaller ones are kept as they are."""
    height, width = (size, size) if isinstance(size, int) else size
    grown = []
    for i, (stage, canonical) in enumerate(zip(arch.stages, arch.effective(size).stages, strict=True)):
        side = max(feature_map(height, arch.patch_size, i), feature_map(width, arch.patch_size, i))
        blocks = []
        for before, after in zip(stage.blocks, canonical.blocks, strict=True):
            assert isinstance(before, S3Block)
            assert after == dataclasses.replace(before, window_size=min(before.window_size, side))
            covers = before.window_size >= side
            blocks.append(dataclasses.replace(before, window_size=side + more) if covers else before)
        grown.append(Stage(stage.embed_dim, tuple(blocks)))
    assert dataclasses.replace(arch, stages=tuple(grown)).effective(size) == arch.effective(size)


@given(archs(("glit",)), widths, st.integers(0, 20), ratios)
def test_effective_genes_of_an_absent_branch(arch: Arch, head_dim: int, half: int, expansion: float) -> None:
    (stage,) = arch.stages
    for i, block in enumerate(stage.blocks):
        assert isinstance(block, GLiTBlock)
        attention = dataclasses.replace(block, head_dim=head_dim)
        convolution = dataclasses.replace(block, kernel_size=2 * half + 1, expansion=expansion)
        for other, present in ((attention, block.global_heads), (convolution, block.local_heads)):
            blocks = (*stage.blocks[:i], other, *stage.blocks[i + 1 :])
            changed = Arch("glit", (Stage(stage.embed_dim, blocks),), arch.patch_size)
            same = changed.effective(64) == arch.effective(64)
            assert same == (not present or other == block)


def test_effective_needs_a_size() -> None:
    arch = Arch.from_json(GOLDEN["s3"][0])
    for size in (0, -1, (0, 4), (4, 0.5), True):
        with pytest.raises(ValueError, match="img_size is"):
            arch.effective(size)  # type: ignore[arg-type]


# Defects: each is one line that names the field, the value and what is valid


def valid(family: str = "glit") -> dict[str, Any]:
    return json.loads(GOLDEN[family][0])


def place(data: Any, path: str) -> tuple[Any, Any]:
    """The object that a dotted path leads to (numbers are list entries), and the last part of the path."""
    *parents, last = (int(p) if p.isdigit() else p for p in path.split("."))
    for part in parents:
        data = data[part]
    return data, last


def put(path: str, value: Any, family: str = "glit") -> Callable[[], Any]:
    """A valid architecture with one value replaced."""

    def build() -> Any:
        target, last = place(data := valid(family), path)
        target[last] = value
        return data

    return build


def drop(path: str, family: str = "glit") -> Callable[[], Any]:
    def build() -> Any:
        target, last = place(data := valid(family), path)
        del target[last]
        return data

    return build


def text(old: str, new: str) -> Callable[[], Any]:
    assert old in GOLDEN["glit"][0]
    return lambda: GOLDEN["glit"][0].replace(old, new, 1)


B = "stages.0.blocks.0"
AT = "stages[0].blocks[0]"
DEFECTS: dict[str, tuple[Callable[[], Any], tuple[str, ...]]] = {
    "unknown field": (put("depth", 12), ("arch", "'depth' = 12", "an object with")),
    "unknown gene": (put(f"{B}.window_size", 7), (AT, "'window_size' = 7", "kernel_size")),
    "gene of another family": (put(f"{B}.expansion", 2.0, "s3"), (AT, "'expansion' = 2.0", "window_size")),
    "field that is no string": (lambda: {**valid(), 3: 4}, ("unknown field 3 = 4", "an object with")),
    "missing version": (drop("schema_version"), ("arch lacks", "'schema_version'", "an object with")),
    "missing gene": (drop(f"{B}.head_dim"), (AT + " lacks", "'head_dim'")),
    "later version": (put("schema_version", 2), ("schema_version is 2", "must be 1")),
    "version as bool": (put("schema_version", True), ("schema_version is True", "must be 1")),
    "unknown family": (put("family", "swin"), ("family is 'swin'", "one of s3, autoformer, glit")),
    "stages empty": (put("stages", []), ("stages is []", "at least one")),
    "stage as list": (put("stages.0", [192]), ("stages[0] is [192]", "an object with blocks, embed_dim")),
    "two stages in a plain family": (
        lambda: {**valid(), "stages": 2 * valid()["stages"]},
        ("stages is a list of 2", "a list of 1 in family 'glit'"),
    ),
    "three stages where four are needed": (
        lambda: {**valid("shunted"), "stages": valid("shunted")["stages"][:3]},
        ("stages is a list of 3", "a list of 4 in family 'shunted'"),
    ),
    "blocks empty": (put("stages.0.blocks", []), ("stages[0].blocks is []", "at least one")),
    "blocks as depth": (put("stages.0.blocks", 12), ("stages[0].blocks is 12", "a list")),
    "block as nested list": (put(B, [[3, 1]]), (AT + " is [[3, 1]]", "an object with")),
    "zero width": (put("stages.0.embed_dim", 0), ("stages[0].embed_dim is 0", "at least 1")),
    "width as bool": (put("stages.0.embed_dim", True), ("stages[0].embed_dim is True", "of type int")),
    "astronomic width": (put("stages.0.embed_dim", 10**400), ("stages[0].embed_dim is 1000", "at most 1,048,576")),
    "zero heads": (put(f"{B}.num_heads", 0, "s3"), (AT + ".num_heads is 0", "at least 1")),
    "heads that do not divide": (put(f"{B}.num_heads", 5), (AT + ".num_heads is 5", "divisor of embed_dim 192")),
    "negative global heads": (put(f"{B}.global_heads", -1), (AT + ".global_heads is -1", "at least 0")),
    "too many global heads": (put(f"{B}.global_heads", 4), (AT + ".global_heads is 4", "at most num_heads (3)")),
    "even kernel": (put(f"{B}.kernel_size", 30), (AT + ".kernel_size is 30", "odd")),
    "zero ratio": (put(f"{B}.mlp_ratio", 0), (AT + ".mlp_ratio is 0", "above 0")),
    "NaN": (put(f"{B}.mlp_ratio", math.nan), (AT + ".mlp_ratio is nan", "above 0")),
    "infinity": (put(f"{B}.mlp_ratio", math.inf), (AT + ".mlp_ratio is inf", "at most")),
    "a float that overflows": (text('"mlp_ratio": 6.0', '"mlp_ratio": 1e999'), ("1e999 is too large a number",)),
    "an integer that overflows": (put(f"{B}.mlp_ratio", 10**400), (AT + ".mlp_ratio is 1000", "of type float")),
    "no hidden unit": (put(f"{B}.mlp_ratio", 0.001), (AT + ".mlp_ratio is 0.001", "at least 1 / 192")),
    "no inner channel": (put(f"{B}.expansion", 0.001), (AT + ".expansion is 0.001", "at least 1 / 128")),
    "unknown locality": (
        put(f"{B}.locality", "conv3d"),
        (AT + ".locality is 'conv3d'", "'conv1d', 'conv2d' or 'area'"),
    ),
    "zero patch": (put("patch_size", 0), ("patch_size is 0", "at least 1")),
    "stem of another family": (put("stem_depth", 1), ("stem_depth is 1", "0 in family 'glit'")),
    "negative stem": (put("stem_depth", -1, "shunted"), ("stem_depth is -1", "at least 0")),
    "long value": (put("family", "x" * 10_000), ("family is 'xxx", "one of")),
    "deep value": (put("family", json.loads("[" * 90 + "]" * 90)), ("family is [[[", "one of")),
    "nothing": (lambda: None, ("arch is None", "an Arch, a dict, or the path")),
    "NaN in text": (text('"mlp_ratio": 6.0', '"mlp_ratio": NaN'), ("not valid JSON", "NaN")),
    "duplicate field": (
        text('"family": "glit"', '"family": "s3", "family": "glit"'),
        ("'family' stands twice", "give the JSON"),
    ),
    "truncated text": (lambda: GOLDEN["glit"][0][:-2], ("not valid JSON", "delimiter", "give the JSON")),
    "Python instead of JSON": (lambda: str(valid()), ("not valid JSON", "double quotes", "give the JSON")),
    "text after the end": (lambda: GOLDEN["glit"][0] + "}", ("not valid JSON", "Extra data", "give the JSON")),
    "bottomless text": (lambda: '{"family": ' * 200_000, ("not valid JSON", "give the JSON")),
}


@pytest.mark.parametrize("name", DEFECTS)
def test_defects(name: str) -> None:
    build, named = DEFECTS[name]
    source = build()
    with pytest.raises(ValueError) as error:
        Arch.parse(source)
    message = str(error.value)
    assert all(part in message for part in named), message
    assert "\n" not in message and len(message) < 500, message
    assert message.endswith(".") and type(error.value) is ValueError


def test_the_valid_ones_are_valid() -> None:
    """The defects above are the only thing wrong with what they were put into."""
    for family in GOLDEN:
        assert Arch.parse(valid(family)).family == family
    assert Arch.parse(put(f"{B}.locality", "conv1d")()) == Arch.parse(drop(f"{B}.locality")()) == Arch.parse(valid())
    assert Arch.parse(drop("patch_size")()) == Arch.parse(valid())
    assert Arch.parse(" \n" + GOLDEN["glit"][0]) == Arch.parse(valid())


def test_an_absent_local_branch_may_have_any_expansion() -> None:
    block = GLiTBlock(3, 3, 4, 1, 0.001, 1.0)
    assert Arch("glit", (Stage(12, (block,)),)).stages[0].blocks == (block,)


def test_parts_built_by_hand() -> None:
    block = AutoFormerBlock(1, 8, 4.0)
    bad: list[tuple[Callable[[], Any], str]] = [
        (lambda: Stage(8, ()), r"blocks is \(\), but must be a list of at least one block"),
        (lambda: Stage(8, 5), "blocks is 5, but must be a list"),  # type: ignore[arg-type]
        (lambda: Stage(8, ("block",)), "blocks is .'block',., but must be a list"),  # type: ignore[arg-type]
        (lambda: Stage(8, block), "blocks is AutoFormerBlock.*, but must be a list"),  # type: ignore[arg-type]
        (lambda: Arch("autoformer", ()), r"stages is \(\), but must be a list of at least one stage"),
        (lambda: Arch("autoformer", (block,)), "stages is .*, but must be a list"),  # type: ignore[arg-type]
        (lambda: Arch("autoformer", None), "stages is None, but must be a list"),  # type: ignore[arg-type]
        (lambda: Arch("autoformer", (Stage(8, (block,)),), False), "patch_size is False"),
        (lambda: Arch("autoformer", (Stage(8, (block,)),), 0.0), "patch_size is 0.0"),  # type: ignore[arg-type]
    ]
    for build, message in bad:
        with pytest.raises(ValueError, match=message):
            build()


# Files


def test_files(tmp_path: Path) -> None:
    arch = Arch.parse(valid())
    plain = tmp_path / "arch.json"
    plain.write_text(arch.to_json(indent=2))
    config = tmp_path / "config.json"
    config.write_text(json.dumps({"architecture": "glit", "model_args": {"arch": arch.to_dict(), "img_size": 64}}))
    for path in (plain, str(plain), config):
        assert Arch.parse(path) == arch


def test_defects_of_files(tmp_path: Path) -> None:
    contents: dict[str, tuple[bytes, tuple[str, ...]]] = {
        "empty.json": (b"", ("empty.json' is not valid JSON", "give the JSON")),
        "cut.json": (GOLDEN["glit"][0].encode()[:50], ("cut.json' is not valid JSON", "give the JSON")),
        "page.json": (b"<!doctype html>", ("page.json' is not valid JSON", "give the JSON")),
        "image.json": (b"\x89PNG\r\n\x1a\n\xff\xfe", ("image.json' is not a text file", "give the JSON")),
        "list.json": (b"[1, 2]", ("arch is [1, 2]", "an object with")),
        "null.json": (b"null", ("arch is None", "an object with")),
        "noarch.json": (b'{"model_args": {"img_size": 64}}', ("model_args in", "{'img_size': 64}", "field arch")),
        "badargs.json": (b'{"model_args": [1]}', ("model_args in", "[1]", "field arch")),
        "badarch.json": (b'{"model_args": {"arch": "x.json"}}', ("arch is 'x.json'", "an object with")),
    }
    sources: dict[Any, tuple[str, ...]] = {
        str(tmp_path): ("No architecture file", "give the path"),
        tmp_path / "missing.json": ("No architecture file", "missing.json", "give the path"),
        "~nobody-of-that-name/arch.json": ("cannot be read", "give the path"),
        "x" * 5000: ("give the path",),
        "a\0b": ("No architecture file", "give the path"),
        "": ("No architecture file", "give the path"),
        "glit_tiny": ("No architecture file at 'glit_tiny'", "give the path"),
    }
    for name, (content, named) in contents.items():
        (tmp_path / name).write_bytes(content)
        sources[tmp_path / name] = named
    for source, named in sources.items():
        with pytest.raises(ValueError) as error:
            Arch.parse(source)
        message = str(error.value)
        assert all(part in message for part in named) and "\n" not in message and len(message) < 500, message


@pytest.mark.parametrize("path", sorted(Path(__file__).parent.glob("old/*/arch/*.json")), ids=lambda path: path.stem)
def test_what_earlier_releases_wrote_still_opens(path: Path) -> None:
    """A file of every schema version and family, named by family and key; never changed, only added to."""
    family, key = path.stem.split("-")
    arch = Arch.parse(path)
    assert arch.family == family and arch.key == key


def test_an_older_version_is_migrated(monkeypatch: pytest.MonkeyPatch) -> None:
    """As it will be when the schema has changed once: say, version 1 had called patch_size patch."""
    monkeypatch.setattr("s3zoo.arch.SCHEMA_VERSION", 2)
    monkeypatch.setitem(MIGRATIONS, 1, lambda data: {"patch_size": data.pop("patch"), **data})
    old = valid()
    old["patch"] = old.pop("patch_size")
    assert Arch.parse(old) == Arch.parse(valid() | {"schema_version": 2})
    with pytest.raises(ValueError, match="schema_version is 3, but must be an integer from 1 to 2: a newer release"):
        Arch.parse(valid() | {"schema_version": 3})
