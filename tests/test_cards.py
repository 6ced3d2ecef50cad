"""Model cards: generated and not typed, parsed by the Hub's own library, and true to the papers and to the run."""

import copy
import json
import re
from pathlib import Path
from xml.etree import ElementTree

import pytest
import timm
import torch
from huggingface_hub import ModelCard

import s3zoo  # noqa: F401
from s3zoo import cards
from s3zoo.arch import Arch, S3Block, Stage
from s3zoo.artefact import load_model_config, save_model
from s3zoo.models import MODELS
from s3zoo.zoo import card_files

ROOT = Path(__file__).resolve().parent.parent
CARDS = ROOT / "model_cards"
NAMES = sorted(name for family in MODELS for name in timm.list_models(module=family))
# The places that a card may link to.
HOSTS = ("arxiv.org/", "huggingface.co/", "github.com/microsoft/Cream", "github.com/bychen515/GLiT",
         "github.com/OliverRensu/Shunted-Transformer", "github.com/huggingface/pytorch-image-models")  # fmt: skip
SVG = "{http://www.w3.org/2000/svg}"
pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(scope="module")
def generated() -> dict[str, str]:
    return card_files()


def content(file: str, text: str) -> object:
    """What a generated file says; how matplotlib writes paths may differ between its versions."""
    if not file.endswith(".svg"):
        return text
    elements = list(ElementTree.fromstring(text).iter())
    return [e.text for e in elements if e.tag == f"{SVG}text"], [e.get("data-block") for e in elements]


def check(text: str, folder: Path | None = None) -> None:
    """A card that the Hub accepts: metadata, links (those beside it, with `folder`), no path of a machine."""
    data = ModelCard(text).data
    assert data.library_name == "timm" and data.pipeline_tag == "image-classification"
    assert {"timm", "s3zoo"} <= set(data.tags) and data.get("license") in (None, *cards.LICENCES)
    assert all(0 <= result.metric_value <= 100 for result in data.get("eval_results") or [])
    for link in re.findall(r"\]\(([^)\s]+)\)", text):
        if "://" in link:
            assert link.startswith(tuple(f"https://{host}" for host in HOSTS)), link
        elif folder is not None:
            assert (folder / link).is_file(), link
    assert re.findall(r"(?<![\w.~])/(?:home|root|tmp|work|Users)/\S*", text) == []


def test_the_committed_cards_are_up_to_date(generated: dict[str, str]) -> None:
    """If this fails: `make zoo`, and look at the difference."""
    committed = {str(path.relative_to(CARDS)): path.read_text() for path in CARDS.rglob("*") if path.is_file()}
    assert set(committed) == set(generated)
    assert [name for name in committed if content(name, committed[name]) != content(name, generated[name])] == []
    assert {path.partition("/")[0] for path in generated} == set(NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_a_card_is_in_order(name: str, generated: dict[str, str]) -> None:
    text = generated[f"{name}/README.md"]
    check(text, CARDS / name)
    for heading in ("## Size", "## Genome", "## Use", "## Intended use and limits", "## Licence", "## Paper"):
        assert text.count(heading + "\n") == 1
    picture = ElementTree.fromstring(generated[f"{name}/genome.svg"])
    arch = timm.create_model(name, device="meta").arch
    assert len({cell.get("data-block") for cell in picture.iter(f"{SVG}path")} - {None}) == sum(arch.depths)


# Typed from the papers' tables.
TOP1 = {
    "s3_tiny": "82.1", "s3_small": "83.7", "s3_base": "84.0", "s3_small_384": "84.5", "s3_base_384": "84.7",
    "autoformer_tiny": "74.7", "autoformer_small": "81.7", "autoformer_base": "82.4", "autoformer_small_384": "83.4",
    "glit_tiny": "76.3", "glit_small": "80.5", "glit_base": "82.3", "shunted_tiny": "79.8", "shunted_small": "82.9",
    "shunted_base": "84.0",
}  # fmt: skip


@pytest.mark.parametrize("name", TOP1)
def test_figures_of_papers_are_marked_as_theirs(name: str, generated: dict[str, str]) -> None:
    text = generated[f"{name}/README.md"]
    section = text.split("## Published results\n")[1].split("\n## ")[0]
    assert "**not measured by this project**" in section
    first = next(line for line in section.splitlines() if line.startswith("| ImageNet-1k"))
    assert first.split(" | ")[2] == TOP1[name] and ("paper" in first or "authors" in first)
    assert "## Measured" not in text and ModelCard(text).data.eval_results is None
    if name in ("glit_small", "glit_base"):
        assert "another network" in section


def test_sizes_are_the_ones_of_the_golden_file(generated: dict[str, str]) -> None:
    golden = json.loads((ROOT / "tests/golden/zoo.json").read_text())
    for name in set(golden) & set(NAMES):
        assert f"| Parameters | {golden[name]['params']:,} |" in generated[f"{name}/README.md"]
    assert "| MACs, as executed and as the family's paper counts | 4.62G |" in generated["s3_tiny/README.md"]
    assert "| MACs, as executed | 1.47G |" in generated["glit_tiny/README.md"]  # 1.4729G
    assert "| MACs, as the family's paper counts | 1.33G |" in generated["glit_tiny/README.md"]  # 1.3325G


def code(text: str) -> list[str]:
    return re.findall(r"```python\n(.*?)```", text, re.S)


def test_the_bundled_network_loads_as_its_card_says(generated: dict[str, str], capsys) -> None:
    text = generated["s3_nano/README.md"]
    exec(code(text)[0], space := {})
    assert "indices" in capsys.readouterr().out
    assert space["output"].shape == (1, 10)
    measured = ModelCard(text).data.eval_results
    assert len(measured) == 1 and measured[0].dataset_split == "test"
    row = next(line for line in text.split("## Measured")[1].splitlines() if "| test |" in line)
    assert f"{measured[0].metric_value:.2f}" in row and re.search(r"\d\d\.\d\d to \d\d\.\d\d", row)


def test_published_snippets_name_what_timm_knows(generated: dict[str, str]) -> None:
    for name in NAMES:
        for snippet in code(generated[f"{name}/README.md"]):
            (model,) = re.findall(r'create_model\("([^"]+)"', snippet)
            if model == "local-dir:PLAIN":  # written by the command above it
                continue
            known = timm.get_pretrained_cfg(model)
            assert known is not None, model
            assert ("pretrained=True" in snippet) == bool(known.has_weights), model


PROVENANCE = {
    "kind": "search",
    "command": "s3zoo search digits --set seed=3",
    "config": "digits",
    "seed": 3,
    "data": {"name": "digits", "fingerprint": "abc", "license": "cc-by-4.0"},
    "versions": {"s3zoo": "0.1.0", "torch": "2.15.0"},
    "commit": None,
    "cost": {"seconds": 3723.4, "device": "cpu", "threads": 1, "processes": 1, "subnets_scored": 1234},
    "metrics": [
        {"split": "test", "value": 97.5, "low": 95.3, "high": 98.7, "images": 360},
        {"split": "held-out", "value": 96.0, "low": None, "high": None, "images": 300},
    ],
    "space": "digits",
    "budget": "params <= 150K",
    "final": "finetune",
    "trajectory": [
        {"space": "digits", "size": 6354, "params": [14208, 122342], "macs": [1, 2], "choices": {"a": [1, 2]}},
        {"space": "digits_1", "size": 9999, "params": [20000, 200000], "macs": [1, 2], "choices": {"a": [2, 3]}},
    ],
}
for metric in PROVENANCE["metrics"]:
    metric |= {"dataset": "digits", "metric": "top1"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A searched network, uniform in its stages, with its card beside it."""
    stages = (Stage(8, (S3Block(2, 1, 8, 1.0),) * 2), Stage(16, (S3Block(2, 2, 8, 2.0),)))
    torch.manual_seed(0)
    model = timm.create_model("s3", arch=Arch("s3", stages, patch_size=2), img_size=8, in_chans=1, num_classes=10)
    cfg = {"mean": [0.3], "std": [0.4]}
    path = save_model(tmp_path_factory.mktemp("run") / "model", model, provenance=PROVENANCE, pretrained_cfg=cfg)
    for name, text in cards.files(load_model_config(path)).items():
        (path / name).write_text(text)
    return path


def test_the_card_of_a_search(folder: Path, monkeypatch, capsys) -> None:
    text = (folder / "README.md").read_text()
    check(text, folder)
    assert "| test | top-1 accuracy (%) | 97.50 | 95.30 to 98.70 | 360 |" in text
    assert "| held-out | top-1 accuracy (%) | 96.00 | none (used for selection) | 300 |" in text
    for said in ("`s3zoo search digits --set seed=3`", "| Seed | 3 |", "1 h 2 min", "1,234 subnets scored"):
        assert said in text
    assert "| digits_1 | 1e+04 | 20K to 200K | 1 to 2 | a [1, 2] to [2, 3] |" in text
    assert "| Commit |" not in text and "Published results" not in text
    (result,) = ModelCard(text).data.eval_results
    assert (result.metric_value, result.dataset_type, result.dataset_split) == (97.5, "digits", "test")
    assert result.metric_args == {"images": 360, "interval_95": [95.3, 98.7]}
    monkeypatch.chdir(folder)
    exec(code(text)[0], space := {})
    assert space["output"].shape == (1, 10)
    assert "s3zoo export FOLDER --to timm" in text and "import timm" in code(text)[1]


def test_the_card_tells_what_a_winner_was_trained_on(folder: Path) -> None:
    config = load_model_config(folder)
    assert "Trained on" not in cards.render(config)
    config["s3zoo"]["provenance"]["use_held_out"] = True
    assert "| Trained on | the held-out images, too |" in cards.render(config)


def test_the_card_tells_all_that_changed_between_spaces(folder: Path) -> None:
    """Dimensions that came to one choice, that were fixed otherwise, and that were opened by it."""
    config = load_model_config(folder)
    visited = [{"a": [1, 2], "b": [3, 4], "c": [5, 6]}, {"a": [1], "c": [5, 6], "d[2]": [7, 8]}]
    config["s3zoo"]["provenance"]["trajectory"] = [{"space": f"x_{i}", "choices": v} for i, v in enumerate(visited)]
    text = cards.render(config)
    assert re.search(r"\| x_1 \|.*\| a \[1, 2\] to \[1\]; b \[3, 4\] fixed; d\[2\] to \[7, 8\] \|", text)
    assert re.search(r"\| x_0 \|.*\| - \|", text)


def test_the_card_tells_seeds_and_controls(folder: Path) -> None:
    """Runs of one command that differ in their seed are averaged; of a single one there is nothing to average."""
    config = load_model_config(folder)
    row = {"params": 95_000, "macs": 6_000_000, "test": {"top1": 96.5, "low": 94.0, "high": 98.0}}
    mine = [row | {"control": f"a-{seed}", "command": f"s3zoo search digits --set seed={seed}"} for seed in (0, 1)]
    other = row | {"control": "b-0", "command": "s3zoo train b"}
    config["s3zoo"]["provenance"]["controls"] = [*mine, other, row | {"control": "random", "latency": 1.5}]
    section = cards.render(config).partition("## Beside it")[2].partition("\n## ")[0]
    assert "| a-1 | 96.50 | 94.00 to 98.00 | 95K | 6M |  | `s3zoo search digits --set seed=1` |" in section
    assert "| random | 96.50 | 94.00 to 98.00 | 95K | 6M | 1.5 |  |" in section
    # 97.5, 96.5 and 96.5
    assert "| `s3zoo search digits` | 3 | 96.83 ± 0.58 |" in section and "| `s3zoo train b` | 1 |" not in section
    config["s3zoo"]["provenance"]["controls"] = [{k: v for k, v in mine[0].items() if k != "command"}]
    section = cards.render(config).partition("## Beside it")[2].partition("\n## ")[0]
    assert "Command" not in section and "Latency" not in section and "Seeds" not in section
    config["s3zoo"]["provenance"]["controls"] = [row | {"control": f"c-{seed}"} for seed in range(2)]
    assert "| c | 2 | 96.50 ± 0.00 |" in cards.render(config)


@pytest.mark.parametrize(
    ("name", "title"),
    [("cifar10", "CIFAR-10"), ("torch/cifar100", "CIFAR-100"), ("ImageNet-1k", "ImageNet-1k"),
     ("imagenet", "ImageNet-1k"), ("hfds/zh-plus/tiny-imagenet", "Tiny ImageNet"), ("my_birds", "my_birds")],
)  # fmt: skip
def test_data_is_named_as_people_write_it(folder: Path, name: str, title: str) -> None:
    config = load_model_config(folder)
    metric = {**PROVENANCE["metrics"][0], "dataset": name}
    config["s3zoo"]["provenance"] = {"kind": "train", "data": {"name": name}, "metrics": [metric]}
    text = cards.render(config)
    assert f"| {title} | test |" in text and f"trained on {title} only" in text
    assert cards.Facts(config).accuracy() == {"value": 97.5, "dataset": title, "whose": "measured by s3zoo"}


def test_the_card_of_a_training(folder: Path) -> None:
    config = load_model_config(folder)
    base = {"name": "s3_tiny", "sha256": "ab" * 32, "license": "mit"}
    record = {"kind": "train", "mode": "finetune", "base": base, "data": {"name": "torch/cifar10"}}
    record |= {"teacher": {"name": "resnet50", "sha256": "cd" * 32, "kind": "hard"}}
    record |= {"metrics": [{**PROVENANCE["metrics"][0], "dataset": "torch/cifar10"}]}
    config["s3zoo"]["provenance"] = record
    text = cards.render(config)
    before = f"s3_tiny (licence mit; sha256 of the network before the first step `{'ab' * 32}`)"
    assert f"| Initialised from | {before} |" in text and "## How it was trained" in text
    assert f"| Teacher | resnet50 (hard labels; sha256 of its weights `{'cd' * 32}`) |" in text
    data = ModelCard(text).data
    assert data.datasets == ["uoft-cs/cifar10"] and data.eval_results[0].dataset_type == "uoft-cs/cifar10"
    assert "Data: CIFAR-10, no licence stated by its authors." in text


def test_a_card_says_only_what_is_known(folder: Path) -> None:
    config = load_model_config(folder)
    published = cards.render(config, repo_id="someone/tiny-digits")
    assert '"hf-hub:someone/tiny-digits", pretrained=True' in published and "# tiny-digits\n" in published
    old = copy.deepcopy(config)
    old["s3zoo"]["provenance"] = {"data": "abc", "seed": 1, "settings": {str(i): i for i in range(99)}}
    old["pretrained_cfg"].pop("license", None)
    text = cards.render(old)
    check(text)
    assert "| Settings | `s3zoo.provenance.settings` in config.json |" in text  # which are hundreds
    assert "Weights: no licence given." in text
    assert ModelCard(text).data.license is None and "| Seed | 1 |" in text and "## Measured" not in text
    mixed = copy.deepcopy(config)
    mixed["model_args"]["arch"]["stages"][0]["blocks"][0]["mlp_ratio"] = 3.0
    assert "plain timm" not in cards.render(mixed)  # timm has one setting per stage
    assert "plain timm" in cards.render(config)
