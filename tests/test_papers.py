"""docs/papers.md: every command is taken, no table or figure is absent; what is new in its commands, in small."""

import dataclasses
import json
import re
import shlex
from pathlib import Path

import pytest
import timm
import torch
from PIL import Image

from s3zoo import cli
from s3zoo.arch import Arch, GLiTBlock, Stage
from s3zoo.files import read_json, write_json
from s3zoo.search import command
from s3zoo.search import run as search_run
from s3zoo.search.budget import Pricer
from s3zoo.search.config import SearchRun
from s3zoo.search.phases import choose_move
from s3zoo.space import glit_space
from s3zoo.training.config import load_config, overridden
from s3zoo.training.distributed import Ranks
from s3zoo.training.log import Log
from s3zoo.training.loop import Stop

PAGE = Path(__file__).parent.parent / "docs" / "papers.md"
COMMANDS = sorted(set(re.findall(r"`s3zoo ([^`]+)`", PAGE.read_text(encoding="utf-8"))))
METHOD = ["space_search.method=s3", "space_search.samples=100", "space_search.upper=inf", "space_search.top_share=1"]
FOLDERS = ("imagenet", "cifar10", "cifar100", "tiny_imagenet", "sun397", "coco", "ade20k", "vqa_v2", "data")


@pytest.mark.parametrize("line", COMMANDS)
def test_a_command_of_the_page_is_planned(line, tmp_path, monkeypatch, capsys):
    verb, *words = shlex.split(line)
    for module, verbs in (("mmdet", ("train_mm",)), ("transformers", ("vqa",))):
        if verb in verbs:
            pytest.importorskip(module)
    monkeypatch.chdir(tmp_path)
    if verb == "inspect":  # with weights that are here
        Image.new("L", (8, 8)).save("cat.jpg")
        assert cli.main([verb, "s3_nano", *words[1:]]) == 0, capsys.readouterr().err
        return
    if verb == "report":  # what it draws is seen in test_report.py
        monkeypatch.setattr("s3zoo.search.report.data.read_all", list)
        monkeypatch.setattr("s3zoo.search.report.page.write", lambda runs, out: out)
        assert cli.main([verb, *words]) == 0, capsys.readouterr().err
        return
    for name in FOLDERS:
        (tmp_path / name).mkdir()
    # Counting the weights of hundreds of candidates takes a minute a space; test_configs.py counts those of some.
    monkeypatch.setattr(command, "_supernet_weights", lambda run: [1])
    assert cli.main([verb, *words, *([] if verb == "zoo" else ["--dry-run"])]) == 0, capsys.readouterr().err
    assert capsys.readouterr().out or verb == "zoo"


@pytest.mark.parametrize(
    ("paper", "tables", "figures"), [("S3:", 5, 7), ("AutoFormer:", 6, 7), ("GLiT:", 6, 6), ("S4:", 6, 3)]
)
def test_no_table_and_no_figure_is_absent(paper, tables, figures):
    part = PAGE.read_text(encoding="utf-8").split(f"\n## {paper}")[1].split("\n## ")[0]
    titles = " ".join(re.findall(r"^### (Tables? [^:]*):", part, re.M))
    assert {int(n) for n in re.findall(r"\d", titles)} == set(range(1, tables + 1))
    drawn = re.findall(r"^\| ([\d, ]+)[:|]", part.split("### Figures")[1], re.M)
    assert {int(n) for n in re.findall(r"\d", " ".join(drawn))} == set(range(1, figures + 1))


# Every number in the papers' tables of results, but for peers' columns besides their accuracy
PRINTED = {
    "S3: 1": "82.1 95.8 28.1M 4.7G 83.7 96.4 50M 9.5G 84.5 96.8 33G 84.0 96.6 71M 13.6G 84.7 96.9 46G 76.2 80.0"
    " 82.9 80.7 79.9 78.8 81.3 78.3 84.3 82.8 82.2 83.0 80.4 79.7 81.8 83.3 84.2",
    "S3: 2": "82M 739G 41.2 35.9 46.3 40.1 80M 889G 48.0 41.4 86M 745G 48.1 41.7 50.4 43.7 748G 48.4 42.0 50.5"
    " 43.8 101M 819G 44.3 38.3 48.1 41.6 107M 838G 50.3 43.4 51.8 44.7 855G 50.8 43.9 52.6 45.5 140M 972G"
    " 45.3 39.2 48.3 41.7 145M 982G 50.5 43.5 51.9 45.0 128M 947G 50.8 43.7 52.5 45.4",
    "S3: 3": "67M 951G 42.05 42.78 52M 1099G 43.15 43.85 60M 945G 44.51 45.81 954G 44.87 46.27 86M 1029G 43.82"
    " 44.85 121M 2772G 44.09 45.68 81M 1038G 47.60 48.87 1071G 48.04 49.31",
    "S3: 4": "4.1 26 64.65 65.12 7.8 45 65.44 65.71 4.5 29 67.13 67.40 4.6 67.84 68.00",
    "S3: 5": "28M 29M 4.7G 65.5 78.0 82.1",
    "AutoFormer: 1": "4 9M 14 34M 42 75M 500 1024 AdamW 1e-3 0.05 20 0.1",
    "AutoFormer: 2": "79.4 23.0M 69.7 80.1 22.9M 81.3 81.4 22.8M 71.5 80.4 81.7",
    "AutoFormer: 4": "5.7M 74.7 74.9 22.9M 81.7 81.8 53.7M 82.4 82.6",
    "AutoFormer: 5": "75.2 77.1 72.2 74.7 92.6 5.7M 1.3G 79.1 80.0 82.9 81.7 79.9 78.8 95.7 22.9M 5.1G 80.8 84.3 79.7"
    " 81.8 82.4 54M 11G",
    "AutoFormer: 6": "25M 12.1G 79.6 98.2 92.5 39M 23.4G 99.0 94.0 30M 9.5G 83.6 98.7 91.1 98.5 86M 55.4G 77.9 98.1"
    " 87.1 89.5 93.8 83.1 99.1 90.8 93.3 23M 16.5G 83.4 98.8 93.4 94.9",
    "GLiT: 1": "72.20 72.89 73.98 71.02",
    "GLiT: 2": "69.8 11.7M 1.8G 68.5 5.7M 1.3G 72.2 7.2M 1.4G 76.3 76.1 25.6M 4.1G 78.5 77.6 25.0M 4.3G 79.1 22.1M"
    " 4.6G 79.6 24.6M 4.4G 80.5 79.6 83.5M 15.6G 81.5 77.9 86.6M 17.6G 81.8 96.1M 17.0G 82.3",
    "GLiT: 4": "1.3G 72.2 1.4G 75.4 76.3 73.4",
    "GLiT: 5": "1.4G 76.3 0.9G 72.7 1.3G 73.3",
    "GLiT: 6": "1.4G 72.4 76.4 76.3",
    "S4: 1": "23M 35M 14M 35M 5M 21M 16M 35M",
    "S4: 2": "93.59 76.45 67.16 68.33 93.89 77.83 67.43 68.54 94.23 78.02 67.36 68.42 94.32 78.68 67.92 68.82"
    " 94.39 79.03 71.9 73.55 95.65 80.31 73.09 74.32 97.39 84.36 74.07 76.03 97.67 85.66 75.59 78.19 97.21"
    " 86.44 79.81 83.35 97.23 87.63 81.35 85.87",
    "S4: 4": "27.88 67.36 26.14 67.39 26.19 67.55 27.45 67.92",
    "S4: 5": "28.91 29.56 67.16 68.33 27.88 27.39 67.36 68.42 27.45 28.73 67.92 68.82 27.67 27.82 71.9 73.55 27.58"
    " 29.75 72.4 74.05 28.43 73.09 74.32 21.99 22.09 74.07 76.03 21.32 21.38 75.16 77.64 21.27 21.47 75.59"
    " 78.19",
    "S4: 6": "44.65 44.88 94.35 78.24 25.39 26.45 94.32 78.68 35.41 38.72 94.49 79.11 52.81 56.2 95.91 80.86 25.37"
    " 26.24 95.65 80.31 37.45 38.2 96.03 81.15 37.44 42.2 97.82 85.83 20.18 21.56 97.67 85.66 33.38 34.94"
    " 97.85 85.92",
}


@pytest.mark.parametrize("where", PRINTED)
def test_the_tables_are_as_printed(where):
    paper, _, table = where.partition(" ")
    part = PAGE.read_text(encoding="utf-8").split(f"\n## {paper}")[1].split("\n## ")[0]
    rows = re.split(rf"^### Tables? {table}\b", part, flags=re.M)[1].split("\n#")[0]
    words = re.findall(r"[\w.-]*\w", re.sub(r"`[^`]*`", "", rows))
    assert [number for number in PRINTED[where].split() if number not in words] == []


@pytest.mark.parametrize(("locality", "sizes"), [("conv2d", (1, 3)), ("area", (2, 8))])
def test_glit_is_searched_with_another_locality(locality, sizes, tmp_path):
    """GLiT Table 6 in small: both stages, and the network that is retrained, saved and loaded."""
    space = glit_space(
        "small", 12, 3, depth=2, kernels=sizes, expansions=(1, 2), mlp=(1, 2), patch_size=2, locality=locality
    )
    run = dataclasses.replace(load_config("debug_glit", SearchRun, "search"), space=space)
    run = overridden(run, ["supernet.epochs=1", "final.train.epochs=1", "arch_search.budgets=()"])
    ranks = Ranks(0, 1, torch.device("cpu"))
    result = search_run.search(run, tmp_path, ranks, Log(tmp_path, tracks=False), Stop())
    (winner,) = result["winners"]
    arch = Arch.from_dict(winner["arch"])
    assert {block.locality for block in arch.stages[0].blocks} == {locality}
    model = timm.create_model(f"local-dir:{tmp_path / 'model'}", pretrained=True)
    assert model.num_prefix_tokens == (locality == "area")
    assert sum(p.numel() for p in model.parameters()) == winner["params"]


def test_glit_is_trained_as_printed(tmp_path):
    arch = Arch("glit", (Stage(12, (GLiTBlock(3, 1, 4, 3, 1.0, 1.0),)),), patch_size=2)
    args = {"arch": arch.to_dict(), "as_printed": True}
    settings = [f"model_args={args}", "train.epochs=1", "train.warmup_epochs=0", "data.train_limit=128"]
    words = [word for setting in settings for word in ("--set", setting)]
    assert cli.main(["train", "digits", "--model", "glit", "--out", str(tmp_path), *words]) == 0
    model = timm.create_model(f"local-dir:{tmp_path / 'model'}", pretrained=True)
    assert model.as_printed and model.blocks[0].local.expand.norms[0].num_batches_tracked > 0


def scores(arch):
    """Deeper and narrower is better; no training is needed for a run's files."""
    accuracy = 50.0 + 2 * arch.depths[0] - arch.embed_dims[0] / 10
    return {"arch": arch.to_dict(), "accuracy": accuracy, "params": 1.0, "macs": 1.0}


def test_a_run_replays_its_moves_with_another_threshold(tmp_path, capsys):
    run = overridden(load_config("debug_s4", SearchRun, "search"), METHOD)
    place = tmp_path / "space0"
    asked = []

    def score(archs):
        asked.extend(arch.effective(run.data.img_size) for arch in archs)
        return [scores(arch)["accuracy"] for arch in asked]

    moved = choose_move(run, run.space, 0, Pricer(**run.priced), score)
    place.mkdir()
    write_json(place / "space.json", run.space.to_dict())
    (place / "scores.jsonl").write_text("".join(json.dumps(scores(arch)) + "\n" for arch in asked))
    words = ["search", "debug_s4", "--replay", "--out", str(tmp_path), *(w for s in METHOD for w in ("--set", s))]

    def replayed(*settings):
        assert cli.main([*words, *(w for s in settings for w in ("--set", s))]) == 0
        return capsys.readouterr().out

    assert replayed() == f"space0: {moved.told()}\n"
    # E-T error falls by 2 a block: floor(-2 / tau) blocks more; and rises by 0.8 a step of 8 channels
    assert "depth [2, 3] -> [12, 13]" in replayed("space_search.tau=0.2")
    assert "depth [2, 3] -> [4, 5]" in replayed("space_search.tau=1.0")
    before = sorted(path.name for path in tmp_path.rglob("*"))
    assert "depth [2, 3] -> [3, 4]" in replayed("space_search.tau=2.0")
    assert sorted(path.name for path in tmp_path.rglob("*")) == before
    assert cli.main([*words, "--set", "space_search.method=none"]) == 2
    assert "moves no space" in capsys.readouterr().err
    (place / "scores.jsonl").write_text("".join(json.dumps(scores(arch)) + "\n" for arch in asked[1:]))
    assert cli.main(words) == 2
    assert "has no score of 1 of the 24 networks that this config asks for" in capsys.readouterr().err
    assert cli.main([*words[:3], "--out", str(tmp_path / "none")]) == 2
    assert "give the folder of a run as --out" in capsys.readouterr().err


def test_a_space_of_one_architecture_is_retrained_without_a_supernet(tmp_path):
    """AutoFormer Fig. 2 and GLiT Table 1 in small."""
    settings = ["space.depth=2", "space.embed_dim=16", "space.num_heads=2", "space.mlp_ratio=2", "supernet.epochs=0"]
    settings += ["final.mode=retrain", "final.train.epochs=1", "arch_search.budgets=()"]
    words = [word for setting in settings for word in ("--set", setting)]
    assert cli.main(["search", "debug_autoformer", "--out", str(tmp_path / "run"), *words]) == 0
    (winner,) = read_json(tmp_path / "run" / "result.json")["winners"]
    (stage,) = winner["arch"]["stages"]
    assert stage["embed_dim"] == 16 and [block["num_heads"] for block in stage["blocks"]] == [2, 2]
    assert [path.parent.name for path in (tmp_path / "run").rglob("epochs.jsonl")] == ["finish-0"]
