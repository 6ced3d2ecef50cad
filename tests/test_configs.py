"""The shipped search configs keep what their texts promise, and `--set` changes what it names and nothing else."""

import dataclasses
import functools
import itertools
import json
import math
import random
import re
import shlex
import typing
from pathlib import Path
from typing import Any

import pytest
import timm
from hypothesis import given, settings
from hypothesis import strategies as st

from s3zoo import cli, cost
from s3zoo.checks import Range, declared
from s3zoo.models import ENTRYPOINTS
from s3zoo.search.budget import Budget, Pricer, check_feasible
from s3zoo.search.command import main, plan
from s3zoo.search.config import ArchSearch, Final, SearchRun
from s3zoo.search.s3 import samples as s3_samples
from s3zoo.search.space_search import SpaceSearch
from s3zoo.space import AUTOFORMER_BASE, SPACES, Space, glit_details, glit_split
from s3zoo.training.config import (
    Data,
    Distil,
    Run,
    Tower,
    Train,
    TrainRun,
    difference,
    keys,
    load_config,
    overridden,
    to_dict,
)
from s3zoo.training.datasets import find_data
from s3zoo.training.registry import FOLDERS, entry, names, source_of
from s3zoo.transfer.vqa.config import VqaData, VqaModelConfig, VqaRun

NAMES = sorted(names("search"))
FAMILIES = ("autoformer", "s3", "glit", "s4")  # papers, by the beginning of the name
BASELINES = [name for name in NAMES if name.endswith("_baseline")]  # one network each: S4's Table 3 without S4
PAPER = [n for n in NAMES if n.startswith(FAMILIES) and not n.endswith("_official") and n not in BASELINES]
BODIES = ("vit", "swin", "shunted", "clip")
SUPERNETS = {"autoformer": 1, "s3": 3, "glit": 2, "s4": 4}

# Training images of each dataset; SUN397 as its config assumes.
IMAGES = {"cifar10": 50_000, "cifar100": 50_000, "tiny_imagenet": 100_000, "sun397": 100_000, "digits": 1797 - 360}
IMAGENET_IMAGES = 1_281_167


@functools.cache
def config(name: str) -> SearchRun:
    return load_config(name, SearchRun, "search")


@functools.cache
def text(name: str) -> str:
    return entry(name, "search").text


def pricer(run: SearchRun) -> Pricer:
    width = {"debug_s4_clip": 64, "cifar10_s4_clip_2core": 256}.get(run.name, 768)  # of test_vit, TinyCLIP, CLIP ViT-B
    shape = {"img_size": run.data.img_size, "num_classes": run.data.num_classes, "in_chans": run.data.in_chans}
    return Pricer(**shape, tower_dim=width)


def images(name: str) -> int:
    """Training images without the held-out ones."""
    total = next((n for word, n in IMAGES.items() if re.search(rf"{word}(?!\d)", name)), IMAGENET_IMAGES)
    total = IMAGES["cifar10"] if name in BASELINES else total
    data = config(name).data
    return data.train_limit or (IMAGES["digits"] if data.name == "digits" else total) - data.holdout


# What every config promises


def test_the_list_of_configs() -> None:
    """Recipes of the papers, versions for two cores, the default and a debug config for every pipeline."""
    expected = {"digits", "s3", *(f"s4_vit_cifar10{variant}" for variant in ("", "_unconstrained", "_s3"))}
    expected |= {f"{family}_{size}" for family in ("autoformer", "glit") for size in ("tiny", "small", "base")}
    expected |= {f"s4_{b}_{data}" for b in BODIES for data in ("cifar10", "cifar100", "tiny_imagenet", "sun397")}
    expected |= {f"s4_{body}_baseline" for body in BODIES}
    expected |= {f"cifar10_{what}_2core" for what in ("s3", *(f"s4_{body}" for body in BODIES), "autoformer", "glit")}
    expected |= {f"debug_{what}" for what in ("s3", "s4", "s4_swin", "s4_shunted", "s4_clip", "autoformer", "glit")}
    assert expected <= set(NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_name_and_text(name: str) -> None:
    assert config(name).name == name
    assert {"Expected", "Cost", "Command"} <= {line.partition(":")[0] for line in text(name).splitlines()}
    assert max(map(len, text(name).splitlines())) <= 120


@pytest.mark.parametrize("name", NAMES)
def test_the_command_as_printed(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    """The command line, and every `--set` that the text recommends, is understood; no data is needed to plan."""
    command = next(line for line in text(name).splitlines() if line.startswith("Command:"))
    before, _, rest = command.partition("s3zoo search")
    assert main([*shlex.split(rest.strip().rstrip(")")), "--dry-run"]) == 0
    assert capsys.readouterr().out.startswith(f"run          {name}, seed 0")
    recommended = re.findall(r"--set\s+('[^']+'|[^\s`)]+)", text(name))
    assert len(recommended) == text(name).count("--set")
    for together in re.findall(r"(?:--set\s+(?:'[^']+'|[^\s`)]+)\s*)+", text(name)):
        overridden(config(name), [setting for setting in shlex.split(together) if setting != "--set"])

    ranks = int(found[1]) if (found := re.search(r"--nproc-per-node (\d+)", before)) else 1
    for train in (config(name).supernet, config(name).final.train):
        assert train.batch_size % (2 * ranks * train.accumulate) == 0  # Mixup pairs the images of a rank
        assert train.batch_size <= images(name)
        assert train.warmup_epochs < train.epochs or (train.epochs == 0 and name in BASELINES)


@pytest.mark.parametrize("name", NAMES)
def test_plan(name: str) -> None:
    run = config(name)
    shown = plan(run)
    archs = [run.space.smallest(), run.space.largest()]
    if run.space.family == "glit":  # more global heads are not more parameters: look at all blocks
        base = {dim.name: dim.choices[-1] for dim in run.space.dims}
        archs = [run.space.build(base | genes) for genes in run.space.candidates(0, 0)]
    prices = [int(pricer(run)(arch)["params"]) for arch in archs]
    assert f"parameters   {min(prices):,} to {max(prices):,}" in shown
    assert f"{run.space.size():,} architectures" in shown
    if name in PAPER:
        count = SUPERNETS[name.partition("_")[0]]
        assert f"supernets    {count} x {RECIPES[name.partition('_')[0]]['epochs']} epochs" in shown


@pytest.mark.parametrize(
    ("name", "steps"),
    [  # epochs x whole batches; digits: 1,437 images without the 500 that are held out
        ("digits", "up to 1,092 with 937 training images: 3 x 84 (supernet) + 1 x 840 (finetune)"),
        ("debug_s3", "up to 80 with 160 training images: 2 x 20 (supernet) + 4 x 10 (finetune)"),  # 2 spaces, 2 budgets
        ("debug_s4", "up to 110 with 160 training images: 3 x 20 (supernet) + 1 x 10 (retrain) + 4 x 10 (audit)"),
        ("debug_glit", "up to 120 with 160 training images: 2 x 20 (supernet) + 4 x 20 (retrain)"),  # top 2, 2 stages
        ("s3", "up to 879 for every 1,000 training images: 3 x 293 (supernet)"),  # 300 x 1000 / 1024
        ("autoformer_tiny_official", "none"),
    ],
)
def test_steps_of_a_plan(name: str, steps: str) -> None:
    assert f"\nsteps        {steps}\n" in plan(config(name))


def test_images_of_a_plan() -> None:
    """Known by the dataset's name, else by the limit; not where classes are chosen."""
    cifar = overridden(config("digits"), ["data.name=torch/cifar10", "data.holdout=10000"])
    assert "with 40,000 training images: 3 x 3,744 (supernet)" in plan(cifar)  # 12 x 312
    assert "with 256 training images: 3 x 24 (supernet)" in plan(overridden(cifar, ["data.train_limit=256"]))
    assert "for every 1,000 training images" in plan(overridden(cifar, ["data.classes=('cat', 'dog')"]))


def test_evaluations_of_a_plan() -> None:
    assert "up to 12 evaluations in each of 2 stages" in plan(config("debug_glit"))  # 6 x 2
    assert "up to 24 evaluations in each of 2 spaces" in plan(config("debug_s3"))  # and 2 budgets
    assert "up to 500 evaluations, budgets" in plan(config("digits"))


def test_disk_of_a_plan() -> None:
    """Entangled: the largest network. Classical: a set of weights for every candidate block. As many numbers again as
    the optimizer keeps."""

    def disk(run: SearchRun, seeds: int = 1) -> tuple[float, float]:
        found = re.search(r"disk         about ([\d.]+) MB, ([\d.]+) MB once", plan(run, seeds))
        assert found is not None
        return float(found[1]), float(found[2])

    quiet = ["arch_search.population=1", "arch_search.crossover=0", "arch_search.mutation=0", "final.mode=inherit"]
    run = overridden(config("digits"), [*quiet, "space_search.method=none", "arch_search.budgets=()"])
    largest = 4e-6 * cost.params(run.space.largest(), img_size=8, num_classes=10, in_chans=1)
    one, two = disk(run)
    assert two - one == pytest.approx(3 * largest, rel=0.02)  # weights and two moments in a checkpoint
    assert disk(run, seeds=3) == pytest.approx((3 * one, 3 * two), rel=0.02)
    one, two = disk(overridden(run, ["supernet.opt=sgd", "supernet.ema=0.9"]))
    assert two - one == pytest.approx(3 * largest, rel=0.02)  # weights, momentum and their average
    one, two = disk(overridden(run, ["supernet.opt=sgd"]))
    assert two - one == pytest.approx(2 * largest, rel=0.02)

    glit = overridden(config("debug_glit"), quiet)
    entangled, classical = (disk(overridden(glit, [f"supernet.sharing={kind}"])) for kind in ("entangled", "classical"))
    # Counted in the bank of runs: 60,994 weights, then of a drawn split 143,086 at most; with momentum.
    assert classical[1] - classical[0] > 2 * (entangled[1] - entangled[0])
    assert 8 * (60_994 + 60_994) < 1e6 * (classical[1] - classical[0]) < 8 * (60_994 + 143_086)


def test_an_optimizer_that_timm_lacks_is_named_by_the_plan() -> None:
    with pytest.raises(ValueError, match=r"opt is 'adamwww', which cannot be used here .*; take one of timm's"):
        plan(overridden(config("digits"), ["supernet.opt=adamwww"]))


@pytest.mark.parametrize("name", NAMES)
def test_budgets_are_feasible(name: str) -> None:
    run = config(name)
    price, rng = pricer(run), random.Random(0)
    for budget in map(Budget.parse, run.arch_search.budgets):
        if run.hierarchy == "none":
            check_feasible(run.space, budget, price, rng)
            continue
        first = check_feasible(glit_split(run.space), budget, price, rng)  # both stages work within the budget
        for _ in range(3):
            found = first.draw(rng)
            assert found is not None
            check_feasible(glit_details(run.space, found), budget, price, rng)


@pytest.mark.parametrize("name", [name for name in NAMES if config(name).space_search.method == "s3"])
def test_the_limit_leaves_choices_to_compare(name: str) -> None:
    """S3 fits a line through the choices that have samples within the limit: one point is no line."""
    run = config(name)
    price, limit = pricer(run), run.space_search
    found = s3_samples(run.space, 40, random.Random(0), lambda a: limit.allows(price(a)[limit.limit_metric]))
    for dim in run.space.searched:
        seen = {str(run.space.values(arch)[dim.name]) for arch in found}
        assert len(dim.choices) == 1 or len(seen) > 1, dim.name


@pytest.mark.parametrize("name", [name for name in NAMES if config(name).space_search.method == "s4"])
def test_s4_can_come_below_its_limit(name: str) -> None:
    run = config(name)
    limit = run.space_search
    assert limit.allows(pricer(run)(run.space.smallest())[limit.limit_metric])
    # Where there is a limit, the first space breaks it, as the paper's does, but for Shunted's.
    below = limit.upper == math.inf or name.startswith("s4_shunted")
    assert limit.allows(pricer(run)(run.space.largest())[limit.limit_metric]) == below


@pytest.mark.parametrize("name", NAMES)
def test_json(name: str) -> None:
    stored = to_dict(config(name))
    assert json.loads(json.dumps(stored, allow_nan=False)) == stored
    assert Space.from_dict(stored["space"]) == config(name).space
    assert difference(stored, to_dict(load_config(name, SearchRun, "search"))) == []
    leaves = [key for key in keys(config(name)) if key != "space"]
    assert all(functools.reduce(lambda d, part: d[part], key.split("."), stored) is not None for key in leaves)


def test_lists_in_a_config_are_tuples() -> None:
    """As `--set` makes them: equal configs are equal, and can be keys."""
    listed = Train(schedule="step", milestones=[3, 5.5])  # type: ignore[arg-type]
    assert listed == Train(schedule="step", milestones=(3, 5.5)) and hash(listed) == hash(dataclasses.replace(listed))
    assert to_dict(listed)["milestones"] == [3, 5.5]


# The papers' recipes, typed from the papers

RECIPES: dict[str, dict[str, Any]] = {
    "autoformer": {  # Table 3
        "epochs": 500, "opt": "adamw", "batch_size": 1024, "lr": 1e-3, "schedule": "cosine", "weight_decay": 5e-2,
        "warmup_epochs": 20, "label_smoothing": 0.1, "drop_path": 0.1, "sampling": "uniform", "sharing": "entangled",
    },
    "s3": {  # section 4.1
        "epochs": 300, "opt": "adamw", "batch_size": 1024, "lr": 1e-3, "min_lr": 1e-5, "schedule": "cosine",
        "weight_decay": 0.05, "warmup_epochs": 20, "label_smoothing": 0.1, "drop_path": 0.2, "sampling": "sandwich",
    },
    "glit": {  # section 4.1
        "epochs": 100, "opt": "sgd", "momentum": 0.9, "batch_size": 1024, "lr": 0.2, "min_lr": 0.0, "drop_path": 0.0,
        "schedule": "cosine", "weight_decay": 1e-4, "label_smoothing": 0.1, "warmup_epochs": 0, "sampling": "uniform",
        "sharing": "classical",
    },
    "s4": {  # section 6.1
        "epochs": 500, "opt": "adamw", "batch_size": 128, "lr": 5e-4, "min_lr": 1e-5, "schedule": "cosine",
        "weight_decay": 0.05, "warmup_epochs": 5, "label_smoothing": 0.1, "drop_path": 0.2, "sampling": "uniform",
    },
}  # fmt: skip
HELD_OUT = {"glit": 50_000, "tiny_imagenet": 10_000, "sun397": 3_970, "cifar": 5_000}  # ImageNet: 10,000


def test_an_audit_finetunes_as_autoformer_and_glit_calibrates_as_spos() -> None:
    for name in ("s3", "autoformer_tiny", "autoformer_small", "autoformer_base"):
        assert config(name).audit_trains["finetune"].epochs == 40  # AutoFormer's Table 4
        assert config(name).audit_trains["retrain"].epochs == 300
    own = overridden(config("debug_s4"), ["audit_finetune.epochs=3", "audit_finetune.batch_size=16"])
    assert "+ 2 x 30 (audit) + 2 x 10 (audit)" in plan(own)
    for name in ("glit_tiny", "glit_small", "glit_base"):
        assert config(name).arch_search.calibration_images == 25_600  # SPOS: 200 batches of 128


@pytest.mark.parametrize("name", PAPER)
def test_recipes_of_the_papers(name: str) -> None:
    run = config(name)
    recipe = RECIPES[name.partition("_")[0]]
    assert {key: getattr(run.supernet, key) for key in recipe} == recipe
    assert run.data.holdout == next((count for word, count in HELD_OUT.items() if word in name), 10_000)
    assert run.data.img_size == 224
    # DeiT's augmentation
    assert (run.data.mixup, run.data.cutmix, run.data.reprob) == (0.8, 1.0, 0.25)
    assert run.data.auto_augment == "rand-m9-mstd0.5-inc1"
    # DeiT repeats an image three times, and so does GLiT, which takes its settings; AutoFormer's Table 3 says no
    assert run.data.repeated_aug == (3 if run.space.family == "glit" else 1)
    search = run.arch_search
    assert (search.population, search.generations, search.parents) == (50, 20, 10)
    assert (search.crossover, search.mutation) == (25, 25)


def test_what_follows_the_supernets() -> None:
    for name in ("autoformer_tiny", "autoformer_small", "autoformer_base", "s3"):
        assert config(name).final.mode == "inherit"
    s3, s4 = config("s3").space_search, config("s4_vit_cifar10").space_search
    assert (s3.method, s3.iterations, s3.tau) == ("s3", 2, 0.4)
    for name in ("s3", "s4_vit_cifar10_s3"):  # S3's printed 50 best, of however many; small runs take 5 %
        assert (config(name).space_search.top, config(name).space_search.top_share) == (50, 1.0)
    assert config("cifar10_s3_2core").space_search.top_share == 0.05
    # S4 6.1: the retraining is "all same as supernet", which has batch 128 and drop path 0.2
    again, searched = load_config("s4_scratch", TrainRun, "train"), config("s4_vit_tiny_imagenet")
    assert (again.train.batch_size, again.train.drop_path, again.train.epochs) == (128, 0.2, 300)
    assert again.train == searched.final.train
    for key in ("img_size", "auto_augment", "reprob", "mixup", "cutmix"):
        for data in (again.data, find_data("cifar100", like=again.data), find_data("sun397", like=again.data)):
            assert getattr(data, key) == getattr(searched.data, key), key
    assert find_data("cifar100", like=again.data).num_classes == 100
    assert (s4.method, s4.iterations, s4.pairs, s4.limit_metric, s4.upper) == ("s4", 3, 40, "params", 30e6)
    for name in ("glit_tiny", "glit_small", "glit_base"):
        run = config(name)
        assert (run.hierarchy, run.final.mode, run.final.top) == ("glit", "retrain", 5)
        assert (run.final.train.epochs, run.final.train.opt, run.final.train.lr) == (300, "adamw", 1e-3)
    classes = {"cifar10": 10, "cifar100": 100, "tiny_imagenet": 200, "sun397": 397}
    for (data, count), body in itertools.product(classes.items(), BODIES):
        run = config(f"s4_{body}_{data}")
        assert run.data.num_classes == count and run.final.mode == "retrain"
        assert run.final.train == dataclasses.replace(run.supernet, epochs=300)  # "other settings are all same"
        limit = 22e6 if body == "shunted" else 30e6
        assert (run.space_search.upper, run.arch_search.budgets) == (limit, (f"params<={limit / 1e6:g}M",))
        assert (run.space_search.iterations, run.space_search.pairs) == (3, 40)
        assert run.space == SPACES[f"s4_{body}"]
        assert dataclasses.replace(run.data, mean=(), std=()) == dataclasses.replace(
            config(f"s4_vit_{data}").data, mean=(), std=()
        )


@pytest.mark.parametrize(
    ("body", "counts", "printed"),
    [
        ("vit", {10: 28_853_386}, (29, 29, 29, 30)),
        (
            "swin",
            {200: 27_673_154, 397: 27_824_647},
            None,
        ),  # the paper prints 27/28/28/28: neither rounded nor ceilings
        ("shunted", {200: 21_990_856, 397: 22_091_917}, (22, 22, 22, 23)),
        ("clip", {10: 30_731_530, 397: 31_029_133}, (31, 31, 31, 32)),
    ],
)
def test_the_networks_without_s4(body: str, counts: dict[int, int], printed: tuple[int, ...] | None) -> None:
    """One architecture, with the sizes of the paper's Table 3 (millions, rounded up); trained as S4's winner is."""
    run, searched = config(f"s4_{body}_baseline"), config(f"s4_{body}_cifar10")
    assert run.space.size() == 1
    assert (run.data, run.final, run.tower) == (searched.data, searched.final, searched.tower)
    assert run.supernet.epochs == 0 and run.space_search.method == "none"
    network = run.space.largest()
    for classes, params in counts.items():
        model = timm.create_model(ENTRYPOINTS[network.family], arch=network, num_classes=classes, device="meta")
        assert sum(p.numel() for p in model.parameters()) == params == cost.params(network, num_classes=classes)
    if printed is not None:
        sizes = [cost.params(network, num_classes=classes) for classes in (10, 100, 200, 397)]
        assert tuple(math.ceil(size / 1e6) for size in sizes) == printed


def test_variants_differ_in_one_thing() -> None:
    base = to_dict(config("s4_vit_cifar10"))

    def changed(name: str) -> set[str]:
        return set(difference(base, to_dict(config(name)))) - {"name"}

    assert changed("s4_vit_cifar10_unconstrained") == {"space_search.upper", "arch_search.budgets"}
    assert {key.partition(".")[0] for key in changed("s4_vit_cifar10_s3")} == {"space_search"}
    assert changed("s4_vit_cifar100") == {"data.num_classes"}


# `--set`


def test_set_reaches_every_kind_of_value() -> None:
    run = overridden(
        config("digits"),
        [
            "seed=7", "supernet.lr=1", "data.workers = 2", "data.mean=[0.5]", "supernet.warm_start=True", "device=cpu",
            "space_search.upper=2e6", "arch_search.budgets=('params<=5M', '1G<=macs<=2G')", "final.train.epochs=3",
            "space=autoformer_base", "data.root=/some where/a=b", "data.auto_augment=", "supernet.lr=2e-3",
        ],
    )  # fmt: skip
    assert run.seed == 7 and run.data.workers == 2 and run.final.train.epochs == 3
    assert run.supernet.lr == 2e-3  # the last word counts
    assert run.data.mean == (0.5,) and isinstance(run.data.mean, tuple)
    assert run.supernet.warm_start is True and run.device == "cpu"
    assert run.arch_search.budgets == ("params<=5M", "1G<=macs<=2G")
    assert run.space == AUTOFORMER_BASE
    assert run.data.root == "/some where/a=b" and run.data.auto_augment == ""
    assert isinstance(overridden(run, ["supernet.lr=1"]).supernet.lr, float)
    assert overridden(run, ["space_search.upper=inf"]).space_search.upper == math.inf
    assert config("digits").seed == 0  # the original is left alone


@pytest.mark.parametrize(
    ("setting", "complaint"),
    [
        ("supernet.epochs=many", "supernet.epochs is 'many', but must be of type int"),
        ("supernet.epochs=2.5", "supernet.epochs is 2.5, but must be of type int"),
        ("supernet.epochs=True", "supernet.epochs is True, but must be of type int"),
        ("supernet.epochs=inf", "supernet.epochs is inf, but must be of type int"),
        ("supernet.lr=fast", "supernet.lr is 'fast', but must be of type float"),
        ("supernet.lr=None", "supernet.lr is None, but must be of type float"),
        ("supernet.warm_start=1", "supernet.warm_start is '1', but must be true or false"),
        ("data.mean=0.5", r"data.mean is 0.5, but must be of type tuple\[float, ...\]"),
        ("data.mean=(1, 'a')", "data.mean is 'a', but must be of type float"),
        ("data.scale=(0.1, 0.5, 1)", r"data.scale is .* must be of type tuple\[float, float\]"),
        ("arch_search.budgets=(5,)", "arch_search.budgets is 5, but must be of type str"),
        ("data=digits", "data is 'digits', but must be of type Data"),
        ("space=autofromer_tiny", "space is 'autofromer_tiny', but must be one of .*; did you mean 'autoformer_tiny'"),
        ("supernet.epoch=1", "unknown key 'supernet.epoch'; did you mean 'supernet.epochs'"),
        ("supernt.epochs=1", "unknown key 'supernt.epochs'; did you mean 'supernet.epochs'"),
        ("final.train.weight_deca=1", "did you mean 'final.train.weight_decay'"),
        ("holdout=1", "did you mean 'data.holdout'"),
        ("zzz=1", "unknown key 'zzz'; valid here: name, data, seed"),
        ("seed.more=1", "'seed.more', but 'seed' holds no further keys"),
        ("seed", "'seed'; write it as name=value"),
        # refused by the field's owner, not by its type
        ("space_search.tau=0", "space_search.tau is 0.0, but must be"),
        ("final.mode=inherited", "final.mode is 'inherited', but must be 'inherit'"),
        ("hierarchy=glit", "needs a GLiT space"),
        ("space.name=other", "'name' is no dimension of 'digits'; it has "),
        ("supernet.batch_size=-4", "^supernet.batch_size is -4, but must be at least 1"),
        ("final.train.drop_path=1", "^final.train.drop_path is 1.0, but must be at least 0 and below 1"),
        ("data.crop_pct=1.5", "^data.crop_pct is 1.5, but must be at least 0 and at most 1"),
        ("arch_search.p_depth=2", "^arch_search.p_depth is 2.0, but must be at least 0 and at most 1"),
        *((f"data.{key}=0", f"^data.{key} is 0.*before it opens the images.*set data.{key}")
          for key in ("num_classes", "img_size", "in_chans", "crop_pct")),
        # what used to run into the depths
        ("a.b.c.d=1", "unknown key 'a.b.c.d'; valid here: name, data"),
        ("data.mean=" + "(" * 5000, "^data.mean is "),
        ("data.holdout=0", "data.holdout is 0, but .*; set it to at least 1"),
        ("data.scale=(1, 0.5)", r"data.scale is \(1.0, 0.5\), but must go from a number above 0 upwards"),
        ("device=gpu", "device is 'gpu', but must be 'auto', 'cpu' or 'cuda'"),
        ("space.depths=3", "'depths' is no dimension of .*; it has "),
        ("space.stage1.depth=deep", "^space.stage1.depth is 'deep', but must be the choices of a dimension: a number,"),
        ("space.stage1.depth=0", "dimension stage1.depth has choices"),
        ("supernet.milestones=(-1,)", r"^supernet.milestones is \(-1.0,\), but must be at least 0"),
        # of two keys
        ("supernet.accumulate=3", r"^supernet.batch_size is 128, but must be a multiple of accumulate \(3\)"),
        ("arch_search.population=40", r"crossover 25 \+ mutation 25 must not be more than the population of 40"),
    ],
)  # fmt: skip
def test_set_refuses(setting: str, complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint) as caught:
        overridden(config("digits"), [setting])
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("name", "setting", "reason"),
    [
        ("s4_vit_cifar10", "final.mode=inherit", "final.mode is 'inherit', which trains nothing"),
        ("s4_vit_cifar10", "final.top=2", "final.top is 2, and the best of them is chosen on these images"),
        ("s4_vit_cifar10", "space_search.audit=3", "space_search.audit compares networks on these images"),
        ("s4_swin_sun397", "space_search.search_each_space=true", "space_search.search_each_space compares spaces"),
        ("glit_tiny", "final.use_held_out=true", "final.top is 5, and the best of them is chosen on these images"),
    ],
)
def test_held_out_images_are_not_trained_on_where_they_decide(name: str, setting: str, reason: str) -> None:
    with pytest.raises(ValueError, match=f"^final.use_held_out is True, but {reason}.*; set final.use_held_out=false"):
        overridden(config(name), [setting])
    overridden(config(name), [setting, "final.use_held_out=false"])


def test_who_trains_on_held_out_images() -> None:
    """S4's configs, as nothing is chosen after the retraining, and the one for accuracy; in all others the held-out
    images decide, or nothing is trained."""
    assert {name for name in names("search") if config(name).final.use_held_out} == {
        name for name in names("search") if name.startswith("s4_") or name == "cifar10_glit_conv2d_2core"
    }


@pytest.mark.parametrize(
    ("name", "settings_"),
    [
        ("debug_s4", ["space_search.backtrack=true", "space_search.method=s3"]),
        ("digits", ["arch_search.population=10", "arch_search.crossover=5", "arch_search.mutation=5"]),
        ("digits", ["supernet.batch_size=50", "supernet.accumulate=5"]),
        ("digits", ["space_search.lower=2e5", "space_search.upper=3e5"]),
        ("debug_glit", ["hierarchy=none", "space=s4_vit", "space_search.method=s4"]),
        ("debug_s4", ["space.depth=(12, 13)", "space=s4_vit", "space.embed_dim=336"]),
    ],
)
def test_the_order_of_settings_is_no_matter(name: str, settings_: list[str]) -> None:
    first, *others = (overridden(config(name), list(order)) for order in itertools.permutations(settings_))
    assert all(other == first for other in others) and first != config(name)


def test_training_alone_needs_neither_a_holdout_nor_a_shape() -> None:
    """0 stands for the model's own there."""
    run = overridden(
        load_config("digits", TrainRun, "train"),
        [f"data.{key}=0" for key in ("holdout", "num_classes", "img_size", "in_chans", "crop_pct")],
    )
    assert (run.data.holdout, run.data.img_size) == (0, 0)
    for setting, complaint in (("train.batch_size=0", "train.batch_size is 0"), ("threads=0", "threads is 0")):
        with pytest.raises(ValueError, match=f"^{complaint}, but must be at least 1"):
            overridden(run, [setting])


def shown(value: Any) -> str:
    """As a user would write it."""
    if isinstance(value, Space):
        return value.name
    return value if isinstance(value, str) else str(value).lower() if isinstance(value, bool) else repr(value)


def value_at(run: SearchRun, key: str) -> Any:
    return functools.reduce(getattr, key.split("."), run)


KEYS = [(name, key) for name in NAMES for key in keys(config(name))]


@given(pairs=st.lists(st.sampled_from(KEYS), min_size=1, max_size=6))
@settings(max_examples=150)
def test_setting_a_value_to_itself_changes_nothing(pairs: list[tuple[str, str]]) -> None:
    for name, own in itertools.groupby(sorted(pairs), key=lambda pair: pair[0]):
        run = config(name)
        texts = [
            f"{key}={shown(value_at(run, key))}"
            for _, key in own
            if key != "space" or SPACES.get(run.space.name) == run.space  # a space of the config's own has no name
        ]
        assert overridden(run, texts) == run


NUMBERS = [
    (name, key)
    for name, key in KEYS
    if key.startswith(("data.", "supernet.", "final.train.", "seed"))
    and type(value_at(config(name), key)) in (int, float)
]

def allowed(name: str, key: str) -> Range:
    *path, leaf = key.split(".")
    owner = functools.reduce(getattr, path, config(name))
    return next(r for r in typing.get_args(declared(type(owner))[leaf]) if isinstance(r, Range))


@given(place=st.sampled_from(NUMBERS), share=st.floats(0, 1, exclude_min=True, exclude_max=True))
@settings(max_examples=150)
def test_setting_a_number_changes_that_number_alone(place: tuple[str, str], share: float) -> None:
    name, key = place
    run, old, limits = config(name), value_at(config(name), key), allowed(*place)
    number = limits.low + share * (limits.high - limits.low)
    *path, leaf = key.split(".")
    kind = typing.get_type_hints(type(functools.reduce(getattr, path, run)))[leaf]
    if kind is int:
        number = math.ceil(number)
    if key.endswith(("batch_size", "accumulate")):
        number = 2 ** (1 + int(number) % 8) if key.endswith("batch_size") else 1  # whole micro-batches
    new = overridden(run, [f"{key}={number}"])
    assert value_at(new, key) == number and type(value_at(new, key)) is kind
    assert difference(to_dict(run), to_dict(new)) == ([key] if old != number else [])


@pytest.mark.parametrize("kind", [Data, Train, Tower, Distil, TrainRun, SearchRun, SpaceSearch, ArchSearch, Final,
                                  VqaData, VqaModelConfig, VqaRun])  # fmt: skip
def test_every_number_has_a_range_and_no_range_has_nan(kind: type) -> None:
    """Of every config's every field: a value beyond either end is refused with the name, the value and the range."""
    required = {"name": "x"} if issubclass(kind, Run | VqaRun) else {}
    for field, hint in declared(kind).items():
        plain = typing.get_type_hints(kind)[field]
        if plain not in (int, float) and not (typing.get_origin(plain) is tuple and float in typing.get_args(plain)):
            continue
        limits = next(r for r in typing.get_args(hint) if isinstance(r, Range))
        beyond = [limits.low - 1, *([limits.low] if limits.above else []), *([limits.high] if limits.below else [])]
        beyond += [] if limits.high == math.inf else [limits.high + 1, math.inf]
        for number in [*beyond, math.nan]:
            value = number if plain in (int, float) else (number,) * len(getattr(kind(**required), field) or (0,))
            with pytest.raises(ValueError, match=rf"^{field} is .*, but must be (above|at least|of type)") as caught:
                kind(**required | {field: value})
            assert "\n" not in str(caught.value)


def test_every_word_is_one_of_those_declared() -> None:
    kinds = (Data, Run, Train, Tower, Distil, TrainRun, SearchRun, SpaceSearch, ArchSearch, Final, VqaData, VqaRun)
    hints = {(kind, field): hint for kind in kinds for field, hint in declared(kind).items()}
    words = {place: typing.get_args(h) for place, h in hints.items() if typing.get_origin(h) is typing.Literal}
    assert len(words) > 15
    for (kind, field), valid in words.items():
        required = {"name": "x"} if issubclass(kind, Run | VqaRun) else {}
        with pytest.raises(ValueError, match=f"^{field} is 'zzz', but must be {valid[0]!r}.* or {valid[-1]!r}\\.$"):
            kind(**required | {field: "zzz"})


@pytest.mark.parametrize(
    ("setting", "complaint"),
    [
        ("model.heads=5", r"^model.hidden is 64, but must be a multiple of heads \(5\)"),
        ("data.max_tokens=2", "^data.max_tokens is 2, but must be at least 3"),
        ("data.mean=(1, 2)", r"^data.mean is .* must be of type tuple\[float, float, float\]"),
        ("data.train_splits=()", "^data.train_splits is empty"),
    ],
)
def test_settings_of_question_answering_are_checked_too(setting: str, complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        overridden(load_config("easy_vqa", VqaRun, "vqa"), [setting])


def test_every_key_is_listed_once() -> None:
    listed = list(keys(config("s3")))
    assert len(listed) == len(set(listed))
    assert {"name", "seed", "data.root", "supernet.lr", "space", "space_search.tau", "final.train.lr"} <= set(listed)
    assert not [key for key in listed if key.startswith("space.")]  # a space is set as a whole


# Files


def test_a_config_is_found_by_path_from_anywhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also one that builds on a shipped config, and one given relative to the home folder."""
    (tmp_path / "mine.py").write_text(
        "import dataclasses\nfrom s3zoo.search.config import SearchRun\nfrom s3zoo.training.config import load_config\n"
        "config = dataclasses.replace(load_config('glit_small', SearchRun, 'search'), seed=3)\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    for source in (str(tmp_path / "mine.py"), "mine.py", "~/mine.py"):
        assert load_config(source, SearchRun, "search") == dataclasses.replace(config("glit_small"), seed=3)


ALL = [(folder, name) for folder in FOLDERS for name in names(folder)]


@pytest.mark.parametrize(("folder", "name"), ALL)
def test_a_config_written_as_python_is_the_same_config(folder: str, name: str, tmp_path: Path) -> None:
    run, text = entry(name, folder)
    path = tmp_path / "mine.py"
    path.write_text(source_of(run, text))
    assert load_config(str(path), type(run), folder) == run
    assert max(map(len, path.read_text().splitlines())) <= 120
    assert compile(path.read_text(), "mine.py", "exec").co_consts[0].strip() == text.strip()


def test_a_config_from_the_command_line_runs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """`s3zoo config NAME > mine.py && s3zoo search mine.py --dry-run`, also with settings, and the lists."""

    def said(*words: str, code: int = 0) -> str:
        assert cli.main(list(words)) == code
        shown = capsys.readouterr()
        return shown.err if code else shown.out

    path = tmp_path / "mine.py"
    path.write_text(said("config", "debug_s4", "--set", "seed=7", "--set", "space_search.upper=inf"))
    assert "upper=math.inf" not in path.read_text()  # the default
    assert said("search", str(path), "--dry-run").startswith("run          debug_s4, seed 7\n")
    path.write_text(said("config", str(path), "--set", "seed=8"))
    assert load_config(str(path), SearchRun, "search").seed == 8
    everything = said("config")
    assert all(f"\n{name} " in everything for _, name in ALL)
    assert said("search", "--list") in everything and said("train", "--list") in everything
    assert "digits' is the name of 2 configs; write search/digits or train/digits" in said("config", "digits", code=2)
    assert "did you mean 's4_vit_cifar10'" in said("config", "s4_vit_cifr10", code=2)
    assert "no configs in 'detection'" in said("config", "detection/x", code=2)
    for name in ("../search/digits", "s4", "S4_vit", "debug"):
        assert "No config is called" in said("search", name, code=2)


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        ("config = (", r"cannot be read: SyntaxError: .*mine.py, line 1"),
        ("import s3zo", "cannot be read: ModuleNotFoundError: No module named 's3zo'"),
        ("from s3zoo.space import S5", "cannot be read: ImportError"),
        ("config = SearchRun()", "cannot be read: NameError"),
        ("from s3zoo.training.config import Train\nconfig = Train(epoch=1)", "cannot be read: TypeError: .*'epoch'"),
        ("1 / 0", "cannot be read: ZeroDivisionError: division by zero"),
        ("raise RuntimeError('two\\nlines.')", r"cannot be read: RuntimeError: two lines\.$"),
        ("from s3zoo.training.config import Train\nTrain(batch_size=0)", "cannot be read: batch_size is 0, but must"),
        ("run = 1", "must define `config`, a SearchRun; it has NoneType"),
        ("from s3zoo.space import S4_VIT\nconfig = S4_VIT", "must define `config`, a SearchRun; it has Space"),
    ],
)
def test_a_broken_config_is_named(content: str, complaint: str, tmp_path: Path) -> None:
    path = tmp_path / "mine.py"
    path.write_text(content)
    with pytest.raises(ValueError, match=complaint) as caught:
        load_config(str(path), SearchRun, "search")
    assert "mine.py" in str(caught.value) and "\n" not in str(caught.value)


def test_a_missing_config_is_named() -> None:
    with pytest.raises(ValueError, match=r"No config is called 'digit'; did you mean 'digits'") as caught:
        load_config("digit", SearchRun, "search")
    assert len(str(caught.value)) < 200  # of dozens of names, the nearest
    with pytest.raises(ValueError, match=r"No config is called 'qqqq'; give a path ending in \.py or a name"):
        load_config("qqqq", SearchRun, "search")
    with pytest.raises(ValueError, match="No config file at 'nowhere/digits.py'"):
        load_config("nowhere/digits.py", SearchRun, "search")


@pytest.mark.parametrize(
    ("command", "complaint"),
    [
        ("train transfer --data cifar10", "data.name is 'torch/cifar10', but no place for it is given"),
        ("search s4_vit_cifar10 --set data.name=torch/cifar10", "but no place for it is given"),
        ("train digits --set threads=0", "threads is 0, but must be at least 1"),
        ("evaluate s3_tiny --data digits --threads 100000", "--threads is 100000, but must be at least 1"),
    ],
)
def test_a_mistake_on_the_command_line_is_one_sentence(
    command: str, complaint: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert cli.main(command.split()) == 2
    said = capsys.readouterr().err
    assert complaint in said and said.count("\n") == 1


def test_difference() -> None:
    old = {"a": 1, "b": {"c": [1, 2], "d": {"e": "x"}}, "gone": 0, "same": {"k": None}}
    new = {"a": 1, "b": {"c": [1, 3], "d": {"e": "y"}}, "new": 0, "same": {"k": None}}
    assert difference(old, new) == ["b.c", "b.d.e", "gone", "new"]
    assert difference(old, old) == []
    assert difference({"a": {"b": 1}}, {"a": 1}) == ["a"]
    assert difference(to_dict(Train()), to_dict(Train(lr=2e-3, epochs=1))) == ["epochs", "lr"]
