"""A finished run's supernet: searched again under another budget, cut into networks."""

import dataclasses
import json
import random
import shutil
from pathlib import Path

import pytest
import timm
import torch
from safetensors.torch import load_file

from s3zoo import cli
from s3zoo.arch import Arch
from s3zoo.search.budget import Budget
from s3zoo.search.config import SearchRun
from s3zoo.search.evaluate import RacingEvaluator
from s3zoo.search.extract import choose
from s3zoo.search.published import FinishedRun
from s3zoo.training.config import from_dict, load_config, to_dict
from s3zoo.training.registry import names

TESTS = Path(__file__).parent


@pytest.fixture(scope="module", params=["toy_search", "toy_glit"])
def run(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp(request.param) / "run"
    source = TESTS / f"{request.param}.py"
    assert cli.main(["search", str(source), "--set", "final.mode=inherit", "--out", str(folder)]) == 0
    return folder


def test_an_extracted_winner_is_the_one_that_the_run_exported(run: Path, tmp_path: Path) -> None:
    """Batch norms included, which are set anew on the same images."""
    assert cli.main(["extract", str(run), "--arch", str(run / "model" / "config.json"), "--out", str(tmp_path)]) == 0
    own, extracted = (load_file(folder / "model.safetensors") for folder in (run / "model", tmp_path))
    assert own.keys() == extracted.keys()
    assert all(torch.equal(own[name], extracted[name]) for name in own)
    model = timm.create_model(f"local-dir:{tmp_path}", pretrained=True)
    assert model.pretrained_cfg["label_names"] == [str(digit) for digit in range(10)]


def test_all_networks_come_out_of_one_file(run: Path, tmp_path: Path, capsys) -> None:
    """`publish RUN --supernet`: what is loaded with arch=… is what the supernet extracts, bit for bit."""
    finished = FinishedRun(run)
    code = cli.main(["publish", str(run), "--supernet", "--license", "mit", "--out", str(tmp_path / "out")])
    if finished.space.family == "glit":
        error = capsys.readouterr().err
        assert code == 2 and "have batch norms" in error and "s3zoo extract" in error
        return
    assert code == 0
    supernet, rng = finished.supernet(torch.device("cpu")), random.Random(0)
    images = torch.randn(2, 1, 8, 8, generator=torch.Generator().manual_seed(0))
    archs = [finished.space.smallest(), finished.space.largest(), *(finished.space.sample(rng) for _ in range(4))]
    for arch in archs:
        model = timm.create_model(f"local-dir:{tmp_path / 'out'}", pretrained=True, arch=arch.to_dict()).eval()
        expected = supernet.extract(arch).eval()
        assert model.state_dict().keys() == expected.state_dict().keys()
        assert torch.equal(model(images), expected(images))
    largest = timm.create_model(f"local-dir:{tmp_path / 'out'}", pretrained=True)
    assert largest.arch == finished.space.largest().effective(8)
    other = timm.create_model(f"local-dir:{tmp_path / 'out'}", pretrained=True, arch=archs[2].to_dict(), num_classes=3)
    assert other(images).shape == (2, 3)
    stage = dataclasses.replace(archs[1].stages[0], embed_dim=archs[1].stages[0].embed_dim + 1)
    foreign = dataclasses.replace(archs[1], stages=(stage, *archs[1].stages[1:]))
    with pytest.raises(ValueError, match="is not in the space"):
        timm.create_model(f"local-dir:{tmp_path / 'out'}", pretrained=True, arch=foreign.to_dict())
    card = (tmp_path / "out/README.md").read_text()
    assert "The whole supernet of space" in card and "arch = {" in card


def test_it_is_searched_again_without_training_and_with_the_scores_it_has(run: Path, tmp_path: Path, capsys) -> None:
    shutil.copytree(run, tmp_path / "run")
    run = tmp_path / "run"
    rows = [json.loads(line) for line in _scores(run).read_text().splitlines()]  # with latencies of another device
    _scores(run).write_text("".join(json.dumps(row | {"latency": 9.0}) + "\n" for row in rows))
    params = [row["params"] for row in rows if "arch" in row]
    limit = sorted(params)[len(params) // 2]
    words = ["search", "--from", str(run), "--budget", f"params<={limit}", "--out", str(tmp_path / "again")]
    assert cli.main(words) == 0
    said = capsys.readouterr().out
    assert f"{len(params)} scores are those of run" in said and "epoch" not in said
    (winner,) = json.loads((tmp_path / "again" / "result.json").read_text())["winners"]
    assert winner["params"] <= limit
    assert not list((tmp_path / "again").rglob("step-*"))
    before = {row["accuracy"] for row in rows if "arch" in row}
    after = [row for row in map(json.loads, _scores(tmp_path / "again").read_text().splitlines()) if "arch" in row]
    assert {row["accuracy"] for row in after[: len(params)]} <= before and len(after) >= len(params)
    assert not any("latency" in row for row in after)


def test_a_race_takes_over_full_scores_with_costs_of_its_own(tmp_path: Path, capsys, monkeypatch) -> None:
    """A search with racing, then one of its supernet under a latency: what is known is not asked again."""
    words = ["search", str(TESTS / "toy_search.py"), "--set", "final.mode=inherit", "--set", "arch_search.racing=True"]
    words += ["--set", "data.holdout=300", "--set", "space_search.method=none", "--no-report"]
    words += ["--set", "arch_search.latency_repeats=1"]
    assert cli.main([*words, "--out", str(tmp_path / "run")]) == 0
    rows = [row for row in map(json.loads, _scores(tmp_path / "run").read_text().splitlines()) if "arch" in row]
    full = {str(row["arch"]): row["accuracy"] for row in rows if row["full"]}
    asked: list[Arch] = []
    ready = RacingEvaluator.ready
    monkeypatch.setattr(RacingEvaluator, "ready", lambda self, arch: asked.append(arch) or ready(self, arch))
    again = ["search", "--from", str(tmp_path / "run"), "--budget", "latency<=1000ms", "--no-report"]
    assert cli.main([*again, "--out", str(tmp_path / "again")]) == 0
    assert f"{len(full)} scores are those of run" in capsys.readouterr().out
    assert asked and not full.keys() & {str(arch.to_dict()) for arch in asked}
    found = [json.loads(line) for line in _scores(tmp_path / "again").read_text().splitlines()]
    taken = {str(row["arch"]): row["accuracy"] for row in found[: len(full)]}
    assert taken == full and found[len(full)]["race"]["taken"]
    assert all(row["latency"] > 0 for row in found if "arch" in row)
    result = (tmp_path / "again" / "result.json").read_text()
    (tmp_path / "again" / "result.json").unlink()
    asked.clear()
    assert cli.main([*again, "--out", str(tmp_path / "again")]) == 0  # a resumed run has them, too
    assert (tmp_path / "again" / "result.json").read_text() == result and not asked


def _scores(folder: Path) -> Path:
    return sorted(folder.glob("space*/evaluated.jsonl"))[-1]


def _row(key: int, accuracy: float, macs: int) -> dict:
    block = {"num_heads": key, "head_dim": 4, "mlp_ratio": 1.0}
    stages = [{"embed_dim": 8, "blocks": [block]}]
    arch = {"schema_version": 1, "family": "autoformer", "patch_size": 2, "stages": stages}
    return {"arch": arch, "accuracy": accuracy, "macs": macs, "params": 10 * macs}


ROWS = [_row(1, 50.0, 10), _row(2, 40.0, 11), _row(3, 60.0, 20), _row(4, 70.0, 30), _row(5, 65.0, 40)]


@pytest.mark.parametrize(
    "budget, count, heads",
    [
        ("", None, [4]),
        ("macs<=25", None, [3]),
        ("params<=110", None, [1]),
        ("", 1, [4]),
        ("", 2, [1, 4]),
        ("", 9, [1, 3, 4]),
    ],
)
def test_what_is_chosen_of_five_networks_by_hand(budget: str, count: int | None, heads: list[int]) -> None:
    found = choose(ROWS, Budget.parse(budget), count)
    assert [arch.stages[0].blocks[0].num_heads for arch, _ in found] == heads


@pytest.mark.parametrize(
    "words, sentence",
    [
        (["extract", "{here}", "--out", "{here}/x"], "no result.json"),
        (["search", "--from", "{here}"], "no result.json"),
        (["search", "digits", "--from", "{here}"], "leave 'digits' out"),
        (["search", "toy", "--budget", "params<=x"], "params<=x"),
    ],
)
def test_what_cannot_be_is_said(words: list[str], sentence: str, tmp_path: Path, capsys) -> None:
    words = [word.format(here=tmp_path) for word in words]
    words = [str(TESTS / "toy_search.py") if word == "toy" else word for word in words]
    assert cli.main(words) == 2
    error = capsys.readouterr().err
    assert sentence in error and error.count("\n") == 1


def test_an_architecture_of_another_space_is_refused(run: Path, tmp_path: Path, capsys) -> None:
    other = Arch.from_dict(ROWS[0]["arch"]).to_json()
    assert cli.main(["extract", str(run), "--arch", other, "--out", str(tmp_path / "x")]) == 2
    assert "is not in space" in capsys.readouterr().err


@pytest.mark.parametrize("name", [name for name in names("search") if "official" not in name])
def test_every_config_comes_back_from_what_a_run_stores(name: str) -> None:
    config = load_config(name, SearchRun, "search")
    assert from_dict(SearchRun, json.loads(json.dumps(to_dict(config)))) == config
