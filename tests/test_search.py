"""The search from end to end at debug scale: results, other ways to search, refusals."""

import dataclasses
import json
import random
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import timm
import torch
from safetensors.torch import load_file
from scipy.stats import kendalltau

from s3zoo import cost, scored
from s3zoo.arch import Arch
from s3zoo.search import context as search_context
from s3zoo.search import run as search_run
from s3zoo.search import s3
from s3zoo.search.budget import Pricer, extents
from s3zoo.search.command import main, plan, seeds_table
from s3zoo.search.config import SearchRun
from s3zoo.search.forecast import forecast
from s3zoo.search.run import prepare
from s3zoo.search.space_search import Decision, SpaceSearch, rank_correlation
from s3zoo.space import Space, glit_split
from s3zoo.training.accuracy import hits, wilson
from s3zoo.training.config import load_config, overridden
from s3zoo.training.data import ImageData
from s3zoo.training.distributed import Ranks
from s3zoo.training.log import Log
from s3zoo.training.loop import Stop, seed_from

HERE = Path(__file__).parent
TOY = HERE / "toy_search.py"
TOY_GLIT = HERE / "toy_glit.py"
ONE = Ranks(0, 1, torch.device("cpu"))


def toy(path: Path = TOY, **changes) -> SearchRun:
    return dataclasses.replace(load_config(str(path), SearchRun, "search"), **changes)


def search(run: SearchRun, folder: Path) -> dict:
    return search_run.search(run, folder, ONE, Log(folder, tracks=False), Stop())


def quick(run: SearchRun) -> SearchRun:
    """Without space search and finetuning."""
    return dataclasses.replace(
        run, space_search=SpaceSearch(method="none"), final=dataclasses.replace(run.final, mode="inherit", top=1),
        supernet=dataclasses.replace(run.supernet, epochs=1, checkpoint_seconds=60),
    )  # fmt: skip


@pytest.fixture(scope="module")
def finished(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("toy")
    search(toy(), folder)
    return folder


def test_a_model_tells_of_choices_that_came_down_to_one(tmp_path: Path) -> None:
    """As every other change of its spaces; what had one choice in all of them is left out."""
    first = toy().space
    for index, space in enumerate((first, first.replaced({"stage1.depth": (1,), "stage2.depth": (2, 3)}))):
        (tmp_path / f"space{index}").mkdir()
        (tmp_path / f"space{index}/space.json").write_text(json.dumps(space.to_dict()))
    before, after = (row["choices"] for row in search_run._trajectory(tmp_path, [{"index": 0}, {"index": 1}]))
    assert (before["stage1.depth"], after["stage1.depth"]) == ([1, 2], [1])
    assert (before["stage2.depth"], after["stage2.depth"]) == ([1, 2], [2, 3])
    assert before.keys() == after.keys() == {dim.name for dim in first.dims if len(dim.choices) > 1}


def test_held_out_images_go_into_the_final_training(tmp_path, monkeypatch):
    """128 training and 60 held-out images: 5 batches of 32 an epoch, and not 4. What they say is said nowhere."""
    settings = ("space_search.method=none", "final.top=1", "final.use_held_out=true", "supernet.epochs=1", "seed=3")
    run, fit, seeds = overridden(toy(), settings), search_context.fit, []
    spy = lambda *args, **options: (seeds.append(options["seed"]), fit(*args, **options))[1]  # noqa: E731
    monkeypatch.setattr(search_context, "fit", spy)
    result = search(run, tmp_path)
    assert seeds == [3, seed_from(3, Arch.from_dict(result["winners"][0]["arch"]).key)]
    trainings = {path.parent.name: path.read_text().splitlines() for path in tmp_path.glob("space0/**/epochs.jsonl")}
    steps = {name: json.loads(lines[-1])["step"] for name, lines in trainings.items()}
    assert steps == {"supernet": 128 // 32, "finish-0": 2 * ((128 + 60) // 32)}
    assert result["use_held_out"] is True and result == {k: v for k, v in stored(tmp_path).items() if k != "run"}
    assert result["winners"][0]["accuracy"] is None and result["winners"][0]["inherited"] > 0
    provenance = json.loads((tmp_path / "model" / "config.json").read_text())["s3zoo"]["provenance"]
    assert provenance["use_held_out"] is True
    assert [row["split"] for row in provenance["metrics"]] == ["test"]
    assert " - " in seeds_table([result]) and "on the held-out images, too" in plan(run)
    assert "2 x" not in plan(run) and f"1 x {2 * (188 // 32)} (finetune)" in plan(run)


@pytest.mark.parametrize("most, rare", [(1_400, True), (2_000, False)])
def test_a_space_mostly_outside_the_budget_is_told(tmp_path, most: int, rare: bool):
    """Some 2 % of its networks have at most 1,400 parameters, and 20 % at most 2,000."""
    run, rng = overridden(quick(toy()), (f"arch_search.budgets=('params<={most}',)",)), random.Random(1)
    share = sum(Pricer(**run.shape)(run.space.sample(rng))["params"] <= most for _ in range(1000)) / 1000
    assert (share < 0.05) is rare
    search(run, tmp_path)
    assert ("so its supernet mostly trains others" in (tmp_path / "log.txt").read_text()) is rare


def stored(folder: Path) -> dict:
    return json.loads((folder / "result.json").read_text())


RACING = (
    "arch_search.racing=True", "arch_search.budgets=('params<=6K', 'params<=5K')", "data.holdout=500",
    "space_search.method=none", "final.mode=inherit", "final.top=1", "supernet.epochs=1",
)  # fmt: skip


@pytest.fixture(scope="module")
def raced(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("raced")
    search(overridden(toy(), RACING), folder)
    return folder


@pytest.fixture(scope="module")
def glit(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("glit")
    search(toy(TOY_GLIT), folder)
    return folder


def test_the_result_describes_itself(finished):
    result = json.loads((finished / "result.json").read_text())
    winner = result["winners"][0]
    arch = Arch.from_dict(winner["arch"])
    assert winner["params"] == cost.params(arch, img_size=8, num_classes=10, in_chans=1) <= 6_000
    assert [row["index"] for row in result["spaces"]] == list(range(len(result["spaces"])))
    run = json.loads((finished / "run.json").read_text())
    assert run["config"]["seed"] == 0 and len(run["data"]) == 64 and run["versions"]["torch"] == torch.__version__
    scored = [json.loads(line) for line in (finished / "space0/scores.jsonl").read_text().splitlines()]
    assert len(scored) == 20 and len({json.dumps(row["arch"]) for row in scored}) == 20
    decision = json.loads((finished / "space_search.jsonl").read_text().splitlines()[0])["decision"]
    assert decision["samples"] == 20 and Space.from_dict(decision["space"])
    evaluated = [json.loads(p) for p in next(finished.glob("space*/evaluated.jsonl")).read_text().splitlines()]
    archs = [Arch.from_dict(row["arch"]).effective(8) for row in evaluated]
    assert len(archs) == len(set(archs)) and all(row["params"] <= 6_000 for row in evaluated)


def test_the_exported_network_gives_the_reported_accuracy_in_a_new_process(finished):
    code = (
        "import sys, s3zoo, timm, torch\n"
        "from s3zoo.training.config import Data\nfrom s3zoo.training.data import ImageData\n"
        "from s3zoo.training.accuracy import hits\n"
        "torch.set_num_threads(1)\n"
        "model = timm.create_model('local-dir:' + sys.argv[1], pretrained=True).eval()\n"
        "data = ImageData(Data(**eval(sys.argv[2])), 0)\n"
        "right = torch.cat([hits(model, *batch, torch.device('cpu')) for batch in data.test_batches()])\n"
        "print(100 * int(right.sum()) / len(right))\n"
    )
    data = repr(dataclasses.asdict(toy().data))
    printed = subprocess.run(
        [sys.executable, "-c", code, str(finished / "model"), data], capture_output=True, text=True, check=True
    ).stdout
    reported = json.loads((finished / "result.json").read_text())["winners"][0]["test"]["top1"]
    assert float(printed.splitlines()[-1]) == pytest.approx(reported, abs=1e-9)
    config = json.loads((finished / "model/config.json").read_text())
    assert config["s3zoo"]["provenance"]["metrics"][0]["value"] == reported


def test_a_finished_run_is_not_run_again(finished, monkeypatch):
    monkeypatch.setattr(search_run, "search_spaces", lambda context: pytest.fail("ran again"))
    assert search(toy(), finished) == json.loads((finished / "result.json").read_text())


def test_the_test_images_are_opened_once_and_last(tmp_path, monkeypatch):
    opened = []
    real = ImageData.test_batches

    def watched(self, *args):
        opened.append((tmp_path / "space0/evaluated.jsonl").exists() and not (tmp_path / "result.json").exists())
        return real(self, *args)

    monkeypatch.setattr(ImageData, "test_batches", watched)
    search(quick(toy()), tmp_path)
    assert opened == [True]


# Other ways to search


def test_an_untrained_supernet_decides_otherwise(finished, tmp_path):
    run = toy()
    search(dataclasses.replace(run, supernet=dataclasses.replace(run.supernet, epochs=0)), tmp_path)
    shifts = []
    for folder in (finished, tmp_path):
        decision = json.loads((folder / "space_search.jsonl").read_text().splitlines()[0])["decision"]
        shifts.append({row["name"]: row["wanted"] for row in decision["dims"]})
    assert shifts[0] != shifts[1], shifts


def test_s4_keeps_every_space_and_architecture_below_the_limit(tmp_path):
    limit = 12_000
    run = toy(space_search=SpaceSearch(method="s4", iterations=2, pairs=2, upper=limit))
    fixed = {d.name: d.choices[:1] for d in run.space.dims if d.gene in ("window_size", "mlp_ratio")}
    run = dataclasses.replace(
        quick(run), space=run.space.replaced(fixed), space_search=run.space_search,
        arch_search=dataclasses.replace(run.arch_search, budgets=()),
    )  # fmt: skip
    result = search(run, tmp_path)
    decisions = [json.loads(line)["decision"] for line in (tmp_path / "space_search.jsonl").read_text().splitlines()]
    assert decisions and all(d["method"] == "s4" for d in decisions)
    legal = [s["params"][1] < limit for s in result["spaces"]]
    assert all(legal[legal.index(True) :]) and legal[-1]
    last = tmp_path / f"space{len(legal) - 1}"
    for line in (last / "evaluated.jsonl").read_text().splitlines():
        assert json.loads(line)["params"] < limit


def test_many_budgets_share_one_supernet_and_its_scores(tmp_path):
    run = quick(toy())
    run = dataclasses.replace(
        run, arch_search=dataclasses.replace(run.arch_search, budgets=("params<=3K", "params=3K..4K"))
    )
    result = search(run, tmp_path)
    small, large = result["winners"]
    assert small["params"] <= 3000 <= large["params"] <= 4000
    for index in range(2):
        timm.create_model(f"local-dir:{tmp_path / f'model-{index}'}", pretrained=True)
        pareto = json.loads((tmp_path / f"space0/search-{index}/pareto.json").read_text())
        for metric in ("params", "macs"):
            front = pareto[metric]
            assert front == sorted(front, key=lambda row: (row[metric], row["accuracy"]))
            assert len({row["accuracy"] for row in front}) == len(front)
    evaluated = [json.loads(line)["arch"] for line in (tmp_path / "space0/evaluated.jsonl").read_text().splitlines()]
    assert len(evaluated) == len({json.dumps(arch) for arch in evaluated})


def test_the_best_of_every_generation(raced):
    """Of each budget's search, from the networks that were scored in full; the last list begins with the winner."""
    rows = [json.loads(line) for line in (raced / "space0/evaluated.jsonl").read_text().splitlines()]
    full = {Arch.from_dict(row["arch"]).key: row["accuracy"] for row in rows if row.get("full")}
    for index in range(2):
        lists = json.loads((raced / f"space0/search-{index}/generations.json").read_text())
        assert len(lists) == 3 and list(map(len, lists)) == sorted(map(len, lists))
        for best in lists:
            scores = [row["accuracy"] for row in best]
            assert scores == sorted(scores, reverse=True) and len(best) == len({row["key"] for row in best}) <= 50
            assert all(row["params"] <= (6_000, 5_000)[index] for row in best)
        winner = json.loads((raced / f"space0/search-{index}/winner.json").read_text())
        assert (lists[-1][0]["accuracy"], lists[-1][0]["params"]) == (winner["accuracy"], winner["params"])
        assert {row["accuracy"] for row in lists[-1]} <= set(full.values())


def test_racing_drops_some_and_scores_its_winner_in_full(raced):
    rows = [json.loads(line) for line in (raced / "space0/evaluated.jsonl").read_text().splitlines()]
    assert sum("race" in row for row in rows) == 2 * 3
    assert any("arch" in row and not row["full"] for row in rows)
    winner = json.loads((raced / "space0/search-0/winner.json").read_text())
    arch = Arch.from_dict(winner["arch"]).effective(8)
    assert any("arch" in row and row["full"] and Arch.from_dict(row["arch"]) == arch for row in rows)
    assert winner["params"] <= 6_000


def test_search_each_space_and_audit(tmp_path):
    options = {"samples": 10, "search_each_space": True, "audit": 3, "tau": 15, "random_samples": 7}
    run = toy(space_search=SpaceSearch(method="s3", iterations=1, **options))
    fast = dataclasses.replace(run.final.train, epochs=1, checkpoint_seconds=60)
    run = dataclasses.replace(
        run, supernet=dataclasses.replace(run.supernet, epochs=1, checkpoint_seconds=60),
        final=dataclasses.replace(run.final, top=1, train=fast),
        arch_search=dataclasses.replace(run.arch_search, generations=1),
        audit_finetune=dataclasses.replace(fast, epochs=2),
    )  # fmt: skip
    result = search(run, tmp_path)
    assert all(row["best"][0]["params"] <= 6_000 for row in result["spaces"])
    for index, row in enumerate(result["spaces"]):  # also of the last
        lines = [json.loads(line) for line in (tmp_path / f"space{index}/random.jsonl").read_text().splitlines()]
        space = Space.from_dict(json.loads((tmp_path / f"space{index}/space.json").read_text()))
        assert 5 <= len(lines) <= 7 and all(Arch.from_dict(line["arch"]).family == space.family for line in lines)
        assert all(line["accuracy"] * 60 / 100 == pytest.approx(round(line["accuracy"] * 60 / 100)) for line in lines)
        assert len(json.loads((tmp_path / f"space{index}/search-0/generations.json").read_text())) == 1
        assert row["best"]
    audit = json.loads(next(tmp_path.glob("space*/audit.json")).read_text())
    assert len(audit["networks"]) == 3 and -1 <= audit["kendall_retrain"] <= 1
    for mode, epochs in (("finetune", 2), ("retrain", 1)):
        logs = list(tmp_path.glob(f"space*/audit/{mode}-*/epochs.jsonl"))
        assert len(logs) == 3 and {len(log.read_text().splitlines()) for log in logs} == {epochs}


LIMITED = ("space_search.upper=2000", "space_search.iterations=3", "space_search.samples=10", "supernet.epochs=1")


@pytest.fixture
def growing(monkeypatch):
    """Whatever the scores, the widths grow by a step."""

    def wider(space, scored, config, **options):
        after = space.moved({dim.name: dim.step for dim in space.searched if dim.gene == "embed_dim"})
        return Decision(after, True, "", {"method": "s3", "samples": len(scored), "dims": []})

    monkeypatch.setattr(s3, "decide", wider)


@pytest.mark.parametrize("budgets", ["('params<=2000',)", "()"])
def test_s3_steps_back_from_a_space_beyond_the_limits(growing, tmp_path, budgets):
    """With and without a budget of its own: then that of the space search holds."""
    run = overridden(toy(), [*LIMITED, "space_search.backtrack=True", f"arch_search.budgets={budgets}"])
    result = search(run, tmp_path)
    smallest = [space["params"][0] for space in result["spaces"]]
    assert smallest[-2] < 2000 < smallest[-1]
    last = json.loads((tmp_path / "space_search.jsonl").read_text().splitlines()[-1])["decision"]
    assert not last["moved"] and last["reason"] == "it has no network within the limits"
    assert f"backtracked to space{len(smallest) - 2}" in (tmp_path / "log.txt").read_text()
    assert result["winners"][0]["params"] < 2000
    (winner,) = [network for network in scored.of_run(tmp_path) if network.role]
    assert winner.space == result["spaces"][-2]["space"]


def test_without_a_budget_limits_hold_where_they_can(growing, tmp_path):
    run = overridden(toy(), [*LIMITED, "arch_search.budgets=()"])  # no way back
    result = search(run, tmp_path)
    assert result["winners"][0]["params"] > 2000 and result["winners"][0]["budget"] == "no limit"
    assert "no network is within params <= 2K, so the search goes without" in (tmp_path / "log.txt").read_text()


def test_glits_hierarchy(glit):
    result = json.loads((glit / "result.json").read_text())
    first, second = (Space.from_dict(json.loads((glit / f"space{i}/space.json").read_text())) for i in range(2))
    split = Arch.from_dict(result["spaces"][0]["best"][0]["arch"])
    winner = Arch.from_dict(result["winners"][0]["arch"])
    heads = [block.global_heads for block in split.stages[0].blocks]
    assert [block.global_heads for block in winner.stages[0].blocks] == heads
    assert first.size() == 4**3 and second.size() == 9**3
    assert "recalibrated" in (glit / "log.txt").read_text() or all(g == 3 for g in heads)


@pytest.mark.parametrize("top", [1, 2])
def test_glits_first_stage_trains_only_what_is_chosen_from(top, tmp_path):
    settings = (
        f"final.top={top}", "final.mode=retrain", "final.train.epochs=1", "final.train.batch_size=32",
        "final.train.warmup_epochs=0", "arch_search.generations=1", "supernet.epochs=1",
    )  # fmt: skip
    run = overridden(toy(TOY_GLIT), settings)
    search(run, tmp_path)
    trained = [len(list((tmp_path / f"space{index}").glob("**/finish-*/epochs.jsonl"))) for index in range(2)]
    assert trained == ([0, 1] if top == 1 else [2, 2])
    works = {phase.name: phase.training for phase in forecast(run, 128)}
    assert works["space0: finish"] is (top == 2) and works["space1: finish"] is True
    assert f"{sum(trained)} x {128 // 32} (retrain)" in plan(run)


def test_random_search_has_the_same_interface(tmp_path):
    run = quick(toy())
    run = dataclasses.replace(run, arch_search=dataclasses.replace(run.arch_search, method="random", generations=2))
    assert search(run, tmp_path)["winners"][0]["params"] <= 6_000


# Refusals and the command


def test_a_changed_config_is_refused_with_its_keys(finished, capsys):
    run = toy()
    changed = dataclasses.replace(run, seed=1, supernet=dataclasses.replace(run.supernet, lr=1.0))
    with pytest.raises(ValueError, match=r"differs in seed, supernet\.lr"):
        search(changed, finished)
    harmless = dataclasses.replace(run, data=dataclasses.replace(run.data, workers=1))
    assert search(harmless, finished)


def test_an_infeasible_budget_is_answered_before_training(tmp_path):
    run = quick(toy())
    run = dataclasses.replace(run, arch_search=dataclasses.replace(run.arch_search, budgets=("params<=10",)))
    with pytest.raises(ValueError, match="params"):
        search(run, tmp_path)
    assert not (tmp_path / "space0").exists()


def test_glits_budget_is_that_of_its_first_stage(tmp_path):
    """In the whole space there are such networks, but not with the plain details of the first stage."""
    run = toy(TOY_GLIT)
    least = [extents(space, Pricer(**run.priced))["macs"][0] for space in (run.space, glit_split(run.space))]
    assert least[0] < least[1]
    with pytest.raises(ValueError, match="macs"):
        search(overridden(run, [f"arch_search.budgets=('macs<={(least[0] + least[1]) / 2}',)"]), tmp_path)
    assert not (tmp_path / "run.json").exists()
    with pytest.raises(ValueError, match="takes one budget, but 2 were given"):
        overridden(run, ["arch_search.budgets=('macs<=1G', 'macs<=2G')"])


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("arch_search.population=8", "population of 8"),
        ("final.train.opt=foo", "foo"),
        ("final.train.schedule=foo", "'foo'"),
        ("final.train.batch_size=1000", "only 128 training images"),
        ("supernet.batch_size=30", None),  # one process, no micro-batches: this is fine
        ("supernet.accumulate=5", "multiple of"),
    ],
)
def test_what_training_would_refuse_is_refused_before_it(tmp_path, setting, message):
    def begin():
        return prepare(overridden(toy(), [setting]), tmp_path, ONE, Log(tmp_path, tracks=False), Stop())

    if message is None:
        assert begin()
        return
    with pytest.raises(ValueError, match=message) as error:
        begin()
    assert "\n" not in str(error.value) and not (tmp_path / "run.json").exists()


def test_nodes_that_do_not_share_the_folder_are_told(tmp_path):
    """Ranks that see different run.json files: a stand-in for a second node that sees none."""

    class Two(Ranks):
        def gather(self, own):
            return [*own, ""] if "config" in str(own[0]) else own

    ranks = Two(0, 1, torch.device("cpu"))
    with pytest.raises(ValueError, match="give an --out that all nodes share"):
        prepare(quick(toy()), tmp_path, ranks, Log(tmp_path, tracks=False), Stop())


def test_more_unreadable_images_may_be_allowed_later(finished):
    run = toy()
    allowed = dataclasses.replace(run, data=dataclasses.replace(run.data, max_unreadable=5))
    assert search(allowed, finished) == json.loads((finished / "result.json").read_text())


def test_limits_that_no_network_meets_are_answered_before_training(tmp_path):
    run = toy(space_search=SpaceSearch(method="s3", iterations=1, samples=5, upper=10))
    with pytest.raises(ValueError, match="params go from 1,148 to 5,462"):
        search(run, tmp_path)
    assert not (tmp_path / "run.json").exists()


def test_dry_run_needs_no_data(capsys):
    assert main([str(TOY), "--dry-run", "--set", "data.name=", "--set", "data.root=/nowhere"]) == 0
    shown = capsys.readouterr().out
    assert "20,736 architectures" in shown  # (2 widths x (8 + 8^2 blocks))^2
    assert "params <= 6K" in shown and "2 x 2 epochs" in shown
    assert "steps        up to 32 with 128 training images: 2 x 8 (supernet) + 2 x 8 (finetune)" in shown
    assert "disk         about 0." in shown


def test_the_plan_counts_pairs_of_dimensions_that_can_move():
    """A dimension with one choice has a step, but no pair of networks differs in it."""
    run = overridden(toy(), ["space_search.method=s4", "space_search.pairs=2", "space.stage1.depth=(1,)"])
    moving = sum(len(dim.choices) > 1 for dim in run.space.dims)
    assert moving < len(run.space.searched) and f"up to {2 * 2 * moving} evaluations for each" in plan(run)


def test_the_plan_knows_how_large_a_run_becomes(finished):
    """In the numbers it keeps: networks so small are mostly names in their files. The second space, which is where sums
    in floating point lead, counts as the first."""
    told = re.search(r"about [\d.]+ MB, ([\d.]+) MB once", plan(toy()))
    files = [path for path in finished.rglob("*.safetensors") if finished / "space1/supernet" not in path.parents]
    again = [path for path in files if finished / "space0/supernet" in path.parents]
    assert again
    kept = [tensor for path in files + again for tensor in load_file(path).values()]
    records = sum(path.stat().st_size for path in finished.rglob("*.jsonl"))
    size = (4 * sum(tensor.numel() for tensor in kept) + records) / 1e6
    assert told is not None and size / 1.5 < float(told[1]) < 1.5 * size


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nothing"], "No config is called 'nothing'"),
        ([str(TOY), "--seeds", "0"], "--seeds is 0"),
        ([str(TOY), "--seeds", "0", "--dry-run"], "--seeds is 0"),
        ([str(TOY), "--set", "arch_search.budgets=('params<=fast',)", "--dry-run"], "params<=fast"),
    ],
)
def test_mistakes_get_one_sentence(arguments, message, tmp_path):
    with pytest.raises(ValueError, match=message) as error:
        main([*arguments, "--out", str(tmp_path / "run")])
    assert "\n" not in str(error.value)


def test_seeds_give_a_table_with_mean_and_spread():
    rows = [
        {"test": {"top1": top}, "accuracy": 90.0, "params": 1e5, "macs": 2e6, "budget": "b"} for top in (90.0, 94.0)
    ]
    table = seeds_table([{"seed": i, "winners": [row]} for i, row in enumerate(rows)])
    assert "92.00 +- 2.83" in table


def test_rank_correlation_is_scipys():
    rng = np.random.default_rng(0)
    for _ in range(20):
        a, b = rng.integers(0, 6, 12).tolist(), rng.integers(0, 6, 12).tolist()  # with ties
        assert rank_correlation(a, b) == pytest.approx(kendalltau(a, b).statistic)


def test_rank_correlation_and_wilson_by_hand():
    assert rank_correlation([1, 2, 3], [1, 2, 3]) == 1 and rank_correlation([1, 2, 3], [3, 2, 1]) == -1
    assert rank_correlation([1, 2, 3, 4], [1, 3, 2, 4]) == pytest.approx(4 / 6)
    assert rank_correlation([1, 1, 1], [1, 2, 3]) == 0
    assert rank_correlation([1, 1, 2], [1, 2, 3]) == pytest.approx(2 / 6**0.5)  # tau-b: 2 of 3 pairs, one tied
    low, high = wilson(90, 100)  # 0.825 and 0.945 in the tables
    assert (round(low, 3), round(high, 3)) == (0.826, 0.945)
    net = torch.nn.Linear(2, 2, bias=False)
    net.weight.data = torch.eye(2)
    batch = (torch.tensor([[1.0, 0.0], [0.0, 1.0], [1.0, 0.0]]), torch.tensor([0, 1, 1]))
    assert hits(net, *batch, torch.device("cpu")).tolist() == [True, True, False]
