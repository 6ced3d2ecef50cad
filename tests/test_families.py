"""A family is one object: one of another package works everywhere, and a broken one disturbs no other.

`mixzoo` is copied out of the tests and made to look installed, with an entry point; everything runs in processes of
their own, in which no test has imported anything.
"""

import json
import os
import shutil
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from s3zoo.drawing import SERIES
from s3zoo.families import FAMILIES, Families, Family
from s3zoo.space import SPACES

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture(scope="module")
def elsewhere(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("site")
    shutil.copytree(ROOT / "tests" / "mixzoo", place / "mixzoo", ignore=shutil.ignore_patterns("__pycache__"))
    (place / "brokenzoo.py").write_text("import a_module_that_is_not_there\n")
    (place / "emptyzoo.py").write_text("")
    for package, points in {
        "mixzoo": "mix = mixzoo.family",
        "brokenzoo": "broken = brokenzoo\nempty = emptyzoo\ns3 = brokenzoo",
    }.items():
        info = place / f"{package}-1.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0\n")
        (info / "entry_points.txt").write_text(f"[s3zoo.families]\n{points}\n")
    return place


def run(elsewhere: Path, *command: str) -> subprocess.CompletedProcess[str]:
    env = os.environ | {"PYTHONPATH": f"{elsewhere}{os.pathsep}{ROOT}"}
    return subprocess.run([sys.executable, *command], cwd=elsewhere, env=env, capture_output=True, text=True)


def python(elsewhere: Path, code: str) -> subprocess.CompletedProcess[str]:
    done = run(elsewhere, "-c", textwrap.dedent(code))
    assert done.returncode == 0, done.stderr[-3000:]
    return done


def command_line(elsewhere: Path, *words: str) -> str:
    done = run(elsewhere, "-m", "s3zoo", *words)
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


def test_architectures_spaces_and_costs_without_torch(elsewhere: Path) -> None:
    python(
        elsewhere,
        """
        import random, sys
        from s3zoo import cost
        from s3zoo.arch import Arch, MixBlock
        from s3zoo.space import MIX_TINY, SPACES

        arch = MIX_TINY.sample(random.Random(0))
        assert isinstance(arch.stages[0].blocks[0], MixBlock) and SPACES["mix_tiny"] is MIX_TINY
        assert Arch.from_json(arch.to_json()) == arch and MIX_TINY.contains(arch)
        assert cost.params(arch, img_size=8) > 0 and "torch" not in sys.modules
        """,
    )


def test_timm_supernet_and_costs(elsewhere: Path) -> None:
    python(
        elsewhere,
        """
        import random
        import timm, torch
        import s3zoo
        from torch.utils.flop_counter import FlopCounterMode
        from s3zoo import cost
        from s3zoo.space import MIX_TINY
        from s3zoo.supernet import Supernet

        size = dict(img_size=8, num_classes=5, in_chans=1)
        images = torch.randn(2, 1, 8, 8)
        assert timm.list_models("mix*", module="model") == ["mix", "mix_tiny"]
        for arch in (MIX_TINY.largest(), MIX_TINY.smallest()):
            model = timm.create_model("mix", arch=arch, **size).eval()
            assert model(images).shape == (2, 5)
            assert cost.params(arch, **size) == sum(p.numel() for p in model.parameters())
            with FlopCounterMode(display=False) as counter:
                model(images[:1])
            assert 2 * cost.macs(arch, **size) == counter.get_total_flops()
        maps = timm.create_model("mix_tiny", features_only=True, out_indices=(0, 1), img_size=16)
        assert [m.shape for m in maps(torch.randn(1, 3, 16, 16))] == [(1, 16, 4, 4)] * 2
        model.reset_classifier(3)
        assert model(images).shape == (2, 3)

        for sharing in ("entangled", "classical"):
            supernet = Supernet(MIX_TINY, sharing=sharing, **size)
            rng = random.Random(0)
            for arch in [MIX_TINY.largest(), *(MIX_TINY.sample(rng) for _ in range(4))]:
                with torch.no_grad():
                    view, copy = supernet.subnet(arch).eval(), supernet.extract(arch).eval()
                    assert torch.equal(view(images), copy(images))
        """,
    )


def test_the_model_module_may_be_imported_first(elsewhere: Path) -> None:
    python(elsewhere, "import mixzoo.model, timm; assert timm.create_model('mix_tiny').arch.family == 'mix'")


def test_search_card_and_command_line(elsewhere: Path, tmp_path: Path) -> None:
    config = tmp_path / "mine.py"
    config.write_text(
        textwrap.dedent(
            """
            import dataclasses
            from mixzoo.family import MIX_TINY
            from s3zoo.search.config import SearchRun
            from s3zoo.training.config import load_config

            _run = load_config("debug_s3", SearchRun, "search")
            _search = dataclasses.replace(_run.arch_search, budgets=("params<=3K",))
            config = dataclasses.replace(_run, name="mine", space=MIX_TINY, arch_search=_search)
            """
        )
    )
    command_line(elsewhere, "search", str(config), "--out", str(tmp_path / "run"), "--dry-run")
    command_line(elsewhere, "search", str(config), "--out", str(tmp_path / "run"), "--no-report")
    (model,) = (path.parent for path in tmp_path.rglob("run/**/config.json"))
    found = json.loads((model / "config.json").read_text())
    assert found["architecture"] == "mix" and found["s3zoo"]["params"] <= 3000
    python(
        elsewhere,
        f"""
        import json, s3zoo, timm, torch
        from s3zoo import cards
        card = cards.files(json.load(open("{model}/config.json")))["README.md"]
        assert "Mix: tokens that see the mean of all tokens." in card and "growth" in card
        model = timm.create_model("local-dir:{model}", pretrained=True).eval()
        assert model(torch.randn(1, 1, 8, 8)).shape == (1, 10)
        """,
    )


def test_zoo_page_and_cards(elsewhere: Path, tmp_path: Path) -> None:
    words = ("--json", "--html", str(tmp_path / "zoo.html"), "--cards", str(tmp_path / "cards"))
    (row,) = json.loads(command_line(elsewhere, "zoo", "--family", "mix", *words))
    assert row["name"] == "mix_tiny" and row["params"] > 0 and row["macs"] == row["macs_paper"]
    page = (tmp_path / "zoo.html").read_text()
    assert 'data-name="mix_tiny" data-family="mix"' in page and f"--mix: {SERIES[Family.colour][0]};" in page
    assert {path.name for path in (tmp_path / "cards").iterdir()} >= {"mix", "mix_tiny", "s3_tiny"}
    assert "growth" in (tmp_path / "cards" / "mix_tiny" / "README.md").read_text()


def test_a_broken_family_is_named_and_left_out(elsewhere: Path) -> None:
    done = python(
        elsewhere,
        """
        import timm
        import s3zoo
        from s3zoo.arch import Arch
        from s3zoo.families import FAMILIES

        assert list(FAMILIES) == ["s3", "autoformer", "glit", "shunted", "ladder", "mix"]
        timm.create_model("s3_nano")
        for name, reason in (("broken", "a_module_that_is_not_there"), ("empty", "registers no family")):
            try:
                Arch.from_dict({"schema_version": 1, "family": name, "stages": []})
            except ValueError as error:
                assert f"family is {name!r}" in str(error) and "one of s3" in str(error) and reason in str(error)
            else:
                raise AssertionError(name)
        """,
    )
    for name in ("broken", "empty", "s3"):
        assert sum(f"Family {name!r} of brokenzoo is left out" in line for line in done.stderr.splitlines()) == 1


def test_a_name_is_taken_once() -> None:
    class Other(Family):
        name = "s3"

    families = Families()
    families.register(FAMILIES["s3"])
    with pytest.raises(ValueError, match="'s3' is registered already"):
        families.register(Other())


@pytest.mark.parametrize("family", FAMILIES.values(), ids=lambda family: family.name)
def test_what_a_family_says_of_itself(family: Family) -> None:
    figures = family.figures()
    cited = {model["source"] for model in figures["models"].values()}
    cited |= {figure["source"] for model in figures["models"].values() for figure in model["figures"]}
    assert cited | {family.source} <= set(figures["sources"])
    assert all(SPACES[space.name] is space and space.family == family.name for space in family.spaces())
