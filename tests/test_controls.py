"""Networks beside the winner: designed by hand, drawn at random, found by random search."""

import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from test_search import search
from toy_search import config as toy

from s3zoo import cli
from s3zoo.arch import Arch
from s3zoo.models import MODELS
from s3zoo.search import stock
from s3zoo.search.budget import Budget
from s3zoo.search.command import plan
from s3zoo.search.config import Controls
from s3zoo.search.finish import choose_stock
from s3zoo.search.latency import Timing
from s3zoo.search.records import read_space
from s3zoo.space import s3_space

DESIGNED = {
    "depth": 1, "embed_dim": (8, 12), "num_heads": (1, 2), "head_dim": 4, "window_size": 2, "mlp_ratio": 1
}  # fmt: skip
ALL = Controls(random=True, random_search=True, designed=DESIGNED)
RUN = replace(toy, final=replace(toy.final, mode="retrain", top=1), controls=ALL)


def test_the_designed_network_is_built_gene_by_gene() -> None:
    space = s3_space("s", (1,), (8,), (2,), (1,), (1,), num_stages=2)
    first, second = Controls(designed=DESIGNED).designed_arch(space).stages
    assert (first.embed_dim, second.embed_dim) == (8, 12) and len(first.blocks) == len(second.blocks) == 1
    assert (first.blocks[0].num_heads, second.blocks[0].num_heads) == (1, 2)
    assert second.blocks[0].head_dim == 4 and second.blocks[0].mlp_ratio == 1.0


@pytest.mark.parametrize(
    "designed, word",
    [
        (DESIGNED | {"depth": (1, 2, 3)}, "depth"),
        (DESIGNED | {"widht": 3}, "widht"),
        ({name: value for name, value in DESIGNED.items() if name != "mlp_ratio"}, "mlp_ratio"),
    ],
)
def test_a_design_that_does_not_fit_is_refused_by_the_name_of_the_gene(designed: dict, word: str) -> None:
    with pytest.raises(ValueError, match=f"look at {word}"):
        replace(RUN, controls=Controls(designed=designed))


def test_controls_need_a_training_that_is_the_same_for_all() -> None:
    with pytest.raises(ValueError, match="final.mode=retrain"):
        replace(toy, controls=ALL, final=replace(toy.final, mode="inherit"))
    with pytest.raises(ValueError, match="no network of the space.*final.mode=retrain"):
        replace(toy, controls=Controls(designed=DESIGNED | {"depth": 9}))
    with pytest.raises(ValueError, match="controls compare"):
        replace(RUN, final=replace(RUN.final, use_held_out=True))


def test_a_design_outside_the_space_has_no_latency() -> None:
    """However the metric is spelled."""
    designed = Controls(designed=DESIGNED | {"depth": 9})
    with pytest.raises(ValueError, match="a budget limits latency"):
        replace(RUN, controls=designed, arch_search=replace(RUN.arch_search, budgets=("Latency<=5ms",)))


def test_the_plan_counts_their_trainings() -> None:
    assert "3 x" in plan(RUN).partition("(control)")[0].rpartition("+")[2]
    assert "(control)" not in plan(replace(RUN, controls=Controls()))


@pytest.fixture(scope="module")
def result(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict, Path]:
    folder = tmp_path_factory.mktemp("controls")
    source = folder / "mine.py"
    source.write_text(
        "from dataclasses import replace\nfrom toy_search import config as toy\n"
        "from s3zoo.search.config import Controls\n"
        f"config = replace(toy, final=replace(toy.final, mode='retrain', top=1), controls={ALL!r})\n"
    )
    assert cli.main(["search", str(source), "--out", str(folder / "run")]) == 0
    return json.loads((folder / "run" / "result.json").read_text()), folder / "run"


def test_each_control_is_within_the_budget_and_counted_on_all_test_images(result: tuple[dict, Path]) -> None:
    found, folder = result
    rows = {row["control"]: row for row in found["controls"]}
    assert list(rows) == ["designed", "random", "random_search"]
    for row in rows.values():
        built = MODELS["s3"](Arch.from_dict(row["arch"]), **RUN.shape)
        assert row["params"] == sum(each.numel() for each in built.parameters()) <= 6000
        assert row["test"]["images"] == found["winners"][0]["test"]["images"] == 360
    assert Arch.from_dict(rows["designed"]["arch"]) == ALL.designed_arch(RUN.space).effective(8)
    assert rows["designed"]["inherited"] is None and rows["random_search"]["inherited"] is not None
    kept = json.loads((folder / "model" / "config.json").read_text())["s3zoo"]["provenance"]["controls"]
    assert [row["test"] for row in kept] == [row["test"] for row in rows.values()]


def test_random_search_scores_as_many_networks_and_keeps_the_best(result: tuple[dict, Path]) -> None:
    found, folder = result
    (path,) = folder.glob("space*/random_search.jsonl")
    scores = [row["accuracy"] for row in map(json.loads, path.read_text().splitlines()) if "arch" in row]
    row = next(row for row in found["controls"] if row["control"] == "random_search")
    assert row["inherited"] == max(scores)
    assert len(scores) <= RUN.arch_search.population * RUN.arch_search.generations
    others = [path for name in ("scores", "evaluated", "random") for path in folder.glob(f"space*/{name}.jsonl")]
    every = len(scores) + sum(len(path.read_text().splitlines()) for path in others)
    cost = json.loads((folder / "model" / "config.json").read_text())["s3zoo"]["provenance"]["cost"]
    assert cost["subnets_scored"] == every


def test_a_random_network_is_of_the_supernet_that_finetunes_it(tmp_path: Path) -> None:
    """The first space is left by then."""
    moves = replace(toy.space_search, tau=100.0)  # where larger networks are better, by one step
    run = replace(toy, controls=Controls(random=True), space_search=moves, final=replace(toy.final, top=1))
    found = search(run, tmp_path)
    assert [row["space"] for row in found["spaces"]] == ["toy", "toy_1"]
    last = read_space(tmp_path / "space1" / "space.json")
    assert last.contains(Arch.from_dict(found["controls"][0]["arch"]))


def test_networks_of_timm_are_timed_once_and_those_that_are_chosen_like_the_winner(tmp_path, monkeypatch) -> None:
    """On a busy machine all of them with a winner's patience took longer than the search."""
    once, patiently = {"a": 1.0, "b": 3.0, "c": 3.5, "d": 9.0, "e": 20.0, "f": 1.0}, {"c": 5.0, "f": 0.5}
    timed: list[str] = []

    def measured_model(name: str, _: int, patience: int) -> Timing:
        timed.append(name if patience == 1 else f"{name}!")
        return Timing(*(once[name], 1.0) if patience == 1 else (2 * patiently[name], 2.0))  # half as fast as then

    monkeypatch.setattr(stock, "LISTS", {"transformer": ("e", "d", "c", "b", "a"), "cnn": ("f",)})
    monkeypatch.setattr(stock, "_sizes", lambda name, **_: {"params": 1.0, "macs": float(ord(name))})
    monkeypatch.setattr(stock, "build", lambda name, _: name)
    table = SimpleNamespace(is_here=True, measured_model=measured_model)
    log, ranks = SimpleNamespace(say=print), SimpleNamespace(first=True, wait=lambda: None)
    costs = {"params": 1.0, "macs": 100.0, "latency": 4.0}
    context = SimpleNamespace(run=RUN, latency=table, pricer=lambda _: costs, ranks=ranks, log=log)
    chosen = choose_stock(context, tmp_path, RUN.space.smallest(), Budget.parse("latency<=4ms"))
    assert timed == ["a", "b", "c", "d", "c!", "f", "f!"]
    found = {kind: (row["model"], row["latency"], row["within_budget"]) for kind, row in chosen.items()}
    assert found == {"transformer": ("c", 5.0, False), "cnn": ("f", 0.5, True)}


@pytest.mark.parametrize("name", ["hf-hub:some/where", "local-dir:x", "resnet50x", "test_vit"])
def test_only_networks_of_the_list_are_built_from_a_folder(name: str) -> None:
    chosen = {"model": "resnet18", "within_budget": True, "params": 1.0, "macs": 1.0}
    stock.check_chosen({"cnn": chosen})
    with pytest.raises(ValueError, match="not in the list"):
        stock.check_chosen({"cnn": chosen | {"model": name}})
    with pytest.raises(ValueError, match="not in the list"):
        stock.check_chosen({"other": chosen})


def test_a_design_beyond_the_budget_is_refused_before_anything_is_trained(tmp_path: Path, capsys) -> None:
    source = tmp_path / "mine.py"
    source.write_text(
        "from dataclasses import replace\nfrom toy_search import config as toy\n"
        "from s3zoo.search.config import Controls\n"
        "config = replace(toy, final=replace(toy.final, mode='retrain'), controls=Controls(designed="
        f"{DESIGNED | {'embed_dim': 64}!r}))\n"
    )
    assert cli.main(["search", str(source), "--out", str(tmp_path / "run")]) == 2
    assert "not within params <= 6K; make it smaller" in capsys.readouterr().err
    assert not (tmp_path / "run").exists()
