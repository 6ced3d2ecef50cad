"""The table of scored networks: its spaces, how each network came to be scored, and the example of its card."""

import json
import lzma
import random
import re
import tarfile
from collections import Counter
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest

from s3zoo import cost, scored
from s3zoo.arch import Arch
from s3zoo.space import Space

CARD = Path(scored.__file__).parent / "tables/README.md"


def recorded(folder: Path) -> Path:
    """The search on digits: S3's samples in three spaces, evolution in the last."""
    folder.mkdir()
    with tarfile.open(Path(__file__).parent / "golden" / "digits_run.tar.xz") as archive:
        archive.extractall(folder, filter="data")
    return folder


def row(arch: Arch, accuracy: float, full: bool = True) -> dict[str, Any]:
    sizes = {"params": cost.params(arch, num_classes=10), "macs": cost.macs(arch, img_size=8, num_classes=10)}
    return {"arch": arch.to_dict(), "accuracy": accuracy, "full": full} | sizes


def write(path: Path, *rows: dict[str, Any]) -> None:
    path.write_text("".join(json.dumps(each) + "\n" for each in rows))


def samples(space: Space, count: int) -> list[Arch]:
    rng = random.Random(0)
    return [space.sample(rng).effective(8) for _ in range(count)]


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return recorded(tmp_path / "a-0")


def test_the_spaces_come_with_the_table(run: Path, tmp_path: Path) -> None:
    networks, spaces = scored.of_runs([run]), scored.spaces_of_runs([run])
    path = tmp_path / "table.jsonl.xz"
    assert scored.save(networks, path, spaces) == len(networks)
    assert scored.load(path) == networks and scored.spaces(path) == spaces
    assert list(spaces) == [("a-0", "digits"), ("a-0", "digits_1"), ("a-0", "digits_2")]
    assert {(each.run, each.space) for each in networks} == set(spaces)
    stored = json.loads((run / "space1/space.json").read_text())
    assert spaces["a-0", "digits_1"] == Space.from_dict(stored)


def test_a_table_of_an_earlier_version_has_neither_spaces_nor_origins(run: Path, tmp_path: Path) -> None:
    networks, path = scored.of_runs([run])[:3], tmp_path / "table.jsonl.xz"
    rows = [asdict(each) | {"arch": each.arch.to_dict()} for each in networks]
    lines = [json.dumps({name: value for name, value in row.items() if name != "origin"}) for row in rows]
    path.write_bytes(lzma.compress("\n".join(lines).encode()))
    assert scored.load(path) == [replace(each, origin="") for each in networks]
    assert scored.spaces(path) == {}


@pytest.mark.parametrize("definition", [3, None, {}, {"name": "s", "family": "s3", "dims": [{"gene": "depth"}]}])
def test_what_is_no_space_is_one_sentence(tmp_path: Path, definition: Any) -> None:
    path = tmp_path / "table.jsonl.xz"
    path.write_bytes(lzma.compress(json.dumps({"run": "a", "space": "s", "definition": definition}).encode()))
    with pytest.raises(ValueError, match="is no table of scored networks") as error:
        scored.spaces(path)
    assert "\n" not in str(error.value)


def test_a_network_is_told_by_what_chose_it_least(run: Path) -> None:
    """The first network is in one file, each other in one more than that before it; two are of a first generation."""
    place = run / "space2"
    *drawn, one, two = samples(scored.spaces_of_runs([run])["a-0", "digits_2"], 6)
    winner = json.loads((place / "search-0/winner.json").read_text())
    winner["history"][0]["size"] = 2
    (place / "search-0/winner.json").write_text(json.dumps(winner))
    write(place / "evaluated.jsonl", *(row(arch, 50.0, full=arch != two) for arch in (one, two, *drawn)))
    for count, name in enumerate(("scores", "random_search", "random"), 1):
        write(place / f"{name}.jsonl", *(row(arch, 50.0) for arch in drawn[count:]))
    found = {each.arch: each.origin for each in scored.of_run(run) if each.space == "digits_2" and not each.role}
    assert [found[arch] for arch in drawn] == ["search", "space", "random_within_limit", "random"]
    assert found[one] == found[two] == "random_within_limit" and len(found) == 6
    others = Counter((each.space, each.origin) for each in scored.of_run(run) if each.space != "digits_2")
    assert others == {("digits", "space"): 300, ("digits_1", "space"): 300}
    assert [each.origin for each in scored.of_run(run) if each.role] == [""]


def test_what_another_search_took_over_keeps_its_origin(run: Path, tmp_path: Path) -> None:
    """Random search in the supernet of evolution: it begins with the full scores of evolution, and one of the networks
    that it draws was an estimate there."""
    *firsts, evolved, estimated, new = samples(scored.spaces_of_runs([run])["a-0", "digits_2"], 53)
    first = [row(arch, 40.0) for arch in firsts]
    write(run / "space2/evaluated.jsonl", *first, row(evolved, 60.0), row(estimated, 40.0, full=False))
    again = recorded(tmp_path / "a_random-0")
    write(again / "space2/evaluated.jsonl", row(evolved, 60.0), row(estimated, 45.0), row(new, 50.0))
    about = json.loads((again / "run.json").read_text())
    about["config"] |= {"supernet_weights": "somewhere/a-0"}
    about["config"]["space_search"] |= {"method": "none"}
    about["config"]["arch_search"] |= {"method": "random"}
    (again / "run.json").write_text(json.dumps(about))
    networks = scored.of_runs([run, again])
    found = {each.arch: each for each in networks if each.space == "digits_2" and not each.role}
    told = [(found[arch].origin, found[arch].accuracy, found[arch].full) for arch in (evolved, estimated, new)]
    assert told == [("search", 60.0, True), ("random_within_limit", 45.0, True), ("random_within_limit", 50.0, True)]
    assert scored.spaces_of_runs([run, again]) == scored.spaces_of_runs([run])


def test_the_table_that_comes_with_s3zoo_has_the_space_of_every_network() -> None:
    networks, spaces = scored.load("cifar10"), scored.spaces("cifar10")
    assert {(each.run, each.space) for each in networks} == set(spaces)
    assert all((each.origin == "") == bool(each.role) for each in networks)
    assert all(each.arch == each.arch.effective(32) for each in networks)
    assert all(each.full for each in networks if each.origin in ("random", "space"))


def test_the_small_spaces_of_the_table_are_complete() -> None:
    """As the card says: all networks of S4-Swin and S4-Shunted, four of them estimated."""
    spaces, networks = scored.spaces("cifar10"), [each for each in scored.load("cifar10") if not each.role]
    estimated = 0
    for key in [key for key in spaces if key[0] in ("s4_swin-0", "s4_shunted-0")]:
        own = [each for each in networks if (each.run, each.space) == key]
        assert {each.arch for each in own} == {arch.effective(32) for arch in spaces[key].enumerate()}
        assert len(own) == spaces[key].size()
        estimated += sum(not each.full for each in own)
    assert estimated == 4


def test_the_example_of_the_card_searches_the_table(capsys: pytest.CaptureFixture[str]) -> None:
    (example,) = re.findall(r"```python\n(.*?)```", CARD.read_text(encoding="utf-8"), re.S)
    exec(example, names := {})
    assert names["space"].contains(names["best"])
    assert names["row"] == names["rows"][names["best"].effective(32)]
    assert f"{names['row'].accuracy}" in capsys.readouterr().out
