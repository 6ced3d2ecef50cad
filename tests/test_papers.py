"""docs/papers.md: every command is taken, no table or figure is absent; what is new in its commands, in small."""

import json
import re
import shlex
from pathlib import Path

import pytest
from PIL import Image

from s3zoo import cli
from s3zoo.files import read_json, write_json
from s3zoo.search import command
from s3zoo.search.budget import Pricer
from s3zoo.search.config import SearchRun
from s3zoo.search.phases import choose_move
from s3zoo.training.config import load_config, overridden

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


def scores(arch):
    """Deeper and narrower is better; no training is needed for a run's files."""
    return {"arch": arch.to_dict(), "accuracy": 50.0 + 2 * arch.depths[0] - arch.embed_dims[0] / 10}


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
