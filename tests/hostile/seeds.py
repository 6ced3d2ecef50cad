"""Valid inputs of every kind, from which the hostile ones are made: tiny, and written by s3zoo itself where it can.

Each maker writes one path below the folder that it is given; `RUNS` are made by commands, which are thereby the proof
that what is not damaged is accepted.
"""

from __future__ import annotations

import json
import tarfile
from pathlib import Path

import numpy as np
from PIL import Image

CLASSES = ("ant", "bee", "cow")
ARCH = {
    "schema_version": 1,
    "family": "s3",
    "patch_size": 2,
    "stages": [
        {"embed_dim": dim, "blocks": [{"window_size": 2, "num_heads": 1, "head_dim": 4, "mlp_ratio": 1.0}]}
        for dim in (8, 16)
    ],
}
QUICK = "threads=1 train.epochs=2 train.batch_size=4 train.warmup_epochs=0 data.img_size=8 data.workers=0"
SETTINGS = " ".join(f"--set {setting}" for setting in QUICK.split())

TRAIN = f"""
from s3zoo.training.config import Data, Train, TrainRun

size = dict(img_size=8, mean=(0.5,) * 3, std=(0.3,) * 3, crop_pct=1.0)
data = Data(name="", holdout=2, num_classes=3, workers=0, **size)
train = Train(epochs=2, batch_size=4, warmup_epochs=0, ema=0.9, checkpoint_seconds=0)
config = TrainRun(name="toy", model="s3", model_args={{"arch": {ARCH}}}, data=data, threads=1, train=train)
"""
SEARCH = """
from s3zoo.search.config import ArchSearch, Final, SearchRun
from s3zoo.search.space_search import SpaceSearch
from s3zoo.space import s3_space
from s3zoo.training.config import Data, Train

size = dict(img_size=8, mean=(0.5,) * 3, std=(0.3,) * 3, crop_pct=1.0)
data = Data(name="", holdout=4, num_classes=3, workers=0, **size)
train = Train(epochs=2, batch_size=4, warmup_epochs=0, sampling="sandwich", checkpoint_seconds=0)
steps = (1, 4, 2, 1, 1)
config = SearchRun(
    name="toy", threads=1, data=data, supernet=train,
    space=s3_space("toy", (1, 2), (8, 12), (2, 4), (1, 2), (1, 2), steps=steps, head_dim=4, num_stages=2, patch_size=2),
    space_search=SpaceSearch(method="s3", iterations=1, samples=6, tau=5),
    arch_search=ArchSearch(budgets=("params<=6K",), population=4, generations=2, parents=2, crossover=1, mutation=1),
    final=Final(mode="finetune", train=Train(epochs=2, batch_size=4, warmup_epochs=0, checkpoint_seconds=0)),
)
"""
RICH = f"""{SEARCH}
from dataclasses import replace
from s3zoo.search.config import Controls

config = replace(
    config, name="rich", hours=1.0, controls=Controls(random=True, random_search=True),
    space_search=SpaceSearch(method="s3", iterations=1, samples=6, tau=5, random_samples=2, audit=1),
    arch_search=replace(config.arch_search, budgets=("params<=30K", "params<=40K"), racing=True),
)
"""
TOWER = f"""{SEARCH}
from dataclasses import replace
from s3zoo.space import S4_CLIP
from s3zoo.training.config import Tower

choices = dict(depth=(1, 2), embed_dim=(8, 12), num_heads=(1, 2), mlp_ratio=(0.5, 1), head_dim=(8,))
config = replace(
    config, name="towered", space=S4_CLIP.replaced(choices, name="towered"), space_search=SpaceSearch(method="none"),
    data=replace(data, img_size=32, hflip=0, color_jitter=0, scale=(1, 1), ratio=(1, 1)),
    arch_search=replace(config.arch_search, budgets=("params<=99K",)),
    tower=Tower("test_vit", weights="random", cache="all"),
)
"""
SUPERNET = """
from s3zoo.families.autoformer import plain_space
from s3zoo.search.config import ArchSearch, Final, SearchRun
from s3zoo.training.config import Data, Train

size = dict(img_size=8, mean=(0.5,) * 3, std=(0.3,) * 3, crop_pct=1.0)
config = SearchRun(
    name="cut", threads=1, data=Data(name="", holdout=4, num_classes=3, workers=0, **size),
    space=plain_space("small", (1, 2), (16, 32), (1, 2), (1, 2), head_dim=16, patch_size=2),
    supernet=Train(epochs=1, batch_size=4, warmup_epochs=0, sampling="sandwich"),
    arch_search=ArchSearch(population=4, generations=2, parents=2, crossover=1, mutation=1),
    final=Final(mode="inherit"),
)
"""
STUDY = """
from s3zoo.study import Study, StudyRun

runs = (StudyRun("found", "search search.py"), StudyRun("run", "train train.py"))
config = Study(name="toy", runs=runs, images=12, compared=(("found", "run"),))
"""
VQA = f"""
from s3zoo.training.config import Train
from s3zoo.transfer.vqa.config import VqaData, VqaModelConfig, VqaRun

arch = {dict(ARCH, patch_size=4)}
data = VqaData(vocabulary_splits=("train",), min_occurrences=1, questions_per_image=2, max_tokens=8, img_size=16,
    workers=0)
model = VqaModelConfig(backbone="s3", backbone_args=dict(arch=arch), pretrained=False, bert="", layers=1, hidden=16)
train = Train(epochs=2, batch_size=2, lr=1e-3, warmup_steps=2, checkpoint_seconds=0)
config = VqaRun(name="toy", data=data, model=model, train=train, threads=1)
"""


def images(folder: Path) -> None:
    rng = np.random.default_rng(0)
    for split, count in (("train", 4), ("test", 2)):
        for name in CLASSES:
            place = folder / "data" / split / name
            place.mkdir(parents=True)
            for number in range(count):
                Image.fromarray(rng.integers(0, 256, (9, 10, 3), np.uint8)).save(place / f"{number}.png")


def tars(folder: Path) -> None:
    """The same images as archives, without what depends on the time."""
    (folder / "tars").mkdir()
    for split in ("train", "test"):
        source = folder / "data" / split
        with tarfile.open(folder / "tars" / f"{split}.tar", "w") as tar:
            for path in sorted(source.rglob("*.png")):
                entry = tarfile.TarInfo(path.relative_to(source).as_posix())
                entry.size = path.stat().st_size
                with path.open("rb") as file:
                    tar.addfile(entry, file)


def model(folder: Path) -> None:
    import timm
    import torch

    from s3zoo.artefact import save_model

    torch.manual_seed(0)
    names = {"label_names": list(CLASSES), "license": "mit"}
    save_model(folder / "model", timm.create_model("s3", arch=ARCH, img_size=8, num_classes=3), pretrained_cfg=names)


def plain(folder: Path) -> None:
    """A network of timm's own in timm's layout, as `s3zoo train` writes it."""
    import timm
    from timm.models._hub import save_for_hf

    args = {"img_size": 16, "patch_size": 8, "depth": 1, "embed_dim": 24, "num_heads": 3}
    network = timm.create_model("vit_tiny_patch16_224", num_classes=3, **args)
    network.pretrained_cfg |= {"label_names": list(CLASSES), "input_size": (3, 16, 16), "num_classes": 3}
    save_for_hf(network, str(folder / "plain"), {"s3zoo": {"provenance": {}}}, args, safe_serialization=True)


def checkpoint(folder: Path) -> None:
    """A training script's file of a small S3 network in the official layout, and its architecture."""
    import timm
    import torch

    from s3zoo.models.s3 import to_timm_state_dict

    network = timm.create_model("s3", arch=ARCH, img_size=8, num_classes=3)
    weights = {name.replace("head.fc.", "head."): value for name, value in to_timm_state_dict(network).items()}
    weights = {_official(name): value for name, value in weights.items()}
    torch.save({"model": weights, "epoch": 3}, folder / "official.pth")
    (folder / "arch.json").write_text(json.dumps(ARCH))


def _official(name: str) -> str:
    """timm has the merging of patches before a stage, the authors behind the one before it."""
    parts = name.split(".")
    if parts[0] == "layers" and parts[2] == "downsample":
        parts[1] = str(int(parts[1]) - 1)
    return ".".join(parts)


def supernet(folder: Path) -> None:
    """The file of an AutoFormer supernet as its authors write it."""
    import autoformer_reference as reference

    weights = reference.random_supernet(32, 2, 2, patches=16, patch_size=2, classes=3, seed=0)
    reference.save_supernet(weights, folder / "supernet.pth")


def tables(folder: Path) -> None:
    """Latencies of the search's space, and a table of scored networks."""
    from s3zoo import cost, scored
    from s3zoo.search.config import SearchRun
    from s3zoo.search.latency import Correction, LatencyTable, space_parts
    from s3zoo.training.config import load_config

    run = load_config(str(folder / "search.py"), SearchRun, "search")
    table = LatencyTable.empty(run.space, **run.shape, threads=1)
    table.entries = dict.fromkeys(space_parts(run.space, run.data.img_size), 0.5)
    table.correction = Correction(fixed=0.1)
    table.save(folder / "latency.json")
    arch = run.space.smallest()
    known = scored.ScoredNetwork("found", 0, "toy", arch, cost.params(arch), cost.macs(arch, img_size=8), 50.0)
    scored.save([known] * 3, folder / "table.jsonl.xz")
    (folder / "study.jsonl").write_text('{"name": "found", "command": "search search.py", "code": 0}\n')


def vqa_data(folder: Path) -> None:
    from test_vqa import write_vqa_v2

    for split, first in (("train2014", 1), ("val2014", 50), ("test2015", 90)):
        write_vqa_v2(folder / "vqa-data", split, images=3, prefix=not split.startswith("test"), first=first)
    rows = [{"question_id": (50 + i) * 1000 + n, "answer": "yes"} for i in range(3) for n in range(i + 1)]
    (folder / "results.json").write_text(json.dumps(rows))


def bert(folder: Path) -> None:
    from transformers import BertConfig, BertModel

    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
    BertModel(BertConfig(vocab_size=8, **sizes)).save_pretrained(folder / "bert")  # type: ignore[arg-type]
    (folder / "bert" / "vocab.txt").write_text("[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\nwhat\nis\nit\n")


def detectors(folder: Path) -> None:
    """A detector's and a segmenter's folder, the user's configs of both, a checkpoint, and data."""
    import torch
    from mmengine.registry import MODELS
    from test_mm_e2e import DETECTOR, SEGMENTER, write_config

    from s3zoo.transfer.mm.config import load_mm_config, portable, register, set_classes
    from s3zoo.transfer.mm.folder import export_detector
    from s3zoo.transfer.mm.shapes import CLASSES as SHAPES
    from s3zoo.transfer.mm.shapes import SEGMENTS, write_ade, write_coco

    write_coco(folder / "coco", images=2)
    write_ade(folder / "ade", images=2)
    for name, text, names, options in (
        ("detector", DETECTOR, SHAPES, {"epochs": 1}), ("segmenter", SEGMENTER, SEGMENTS, {"iterations": 1}),
    ):  # fmt: skip
        write_config(folder / f"{name}.py", text, **options)
        cfg = load_mm_config(str(folder / f"{name}.py"))
        set_classes(cfg, names)
        register(cfg)
        network = MODELS.build(cfg.model)
        meta = {"classes": names, "palette": [(9 * i, 8, 7) for i in range(len(names))]}
        export_detector(portable(cfg), network.state_dict(), folder / name, meta, {})
        torch.save({"meta": {"dataset_meta": meta}, "state_dict": network.state_dict()}, folder / f"{name}.pth")


CONFIGS = {
    "train.py": TRAIN, "search.py": SEARCH, "rich.py": RICH, "towered.py": TOWER, "supernet.py": SUPERNET,
    "study.py": STUDY, "vqa.py": VQA,
}  # fmt: skip


def files(folder: Path) -> None:
    for name, text in CONFIGS.items():
        (folder / name).write_text(text)
    Image.new("RGB", (20, 16), (200, 100, 50)).save(folder / "image.png")
    Image.new("RGB", (20, 16), (200, 100, 50)).save(folder / "photo.jpg")
    entry = {"arch": "x", "images_per_second": 3.5, "range": [3.0, 4.0]}
    fields = {"what": "", "machine": "", "torch": "", "batch": 8, "rounds": 3, "models": {"s3_tiny": entry}}
    (folder / "speed.json").write_text(json.dumps(fields))


MAKERS = {
    f.__name__: f for f in (files, images, tars, model, plain, checkpoint, supernet, tables, vqa_data, bert, detectors)
}  # fmt: skip
# The nursery that makes them, in this order: makers by name, then commands.
MADE = {
    "core": ("files", "images", "tars", "model", "plain", "checkpoint", "supernet", "tables"),
    "vqa": ("files", "model", "vqa_data", "bert"),
    "mm": ("files", "model", "detectors"),
}
TAUGHT = (
    "train train.py --teacher model --set distil.cache=true --set data.hflip=0 --set data.scale=(1,1) --set"
    " data.ratio=(1,1) --set data.color_jitter=0 --set train.ema=0 --data data --out taught"
)
TIMED = "search search.py --set arch_search.latency_table=latency.json --set space_search.method=none --budget"
SEGMENTING = "train_mm segmenter.py --data ade --classes ground,disc,box"
RUNS = {
    "core": (
        "train train.py --data data --out run",
        TAUGHT,
        "search search.py --data data --out found --no-report",
        "search rich.py --start model --data data --out rich --no-report",
        "search towered.py --data data --out towered --no-report",
        "search --data data --hours 0.001 --no-controls --no-report --out planned",
        "export model --to timm --out timm",
        "convert official.pth --arch arch.json --to converted",
        "evaluate model plain --data data --no-speed",
        "predict run image.png",
        "inspect model image.png --out inspected",
        "extract rich --pareto 2 --out extracted",
        "search --from rich --budget params<=30K --data data --out again --no-report",
        "search search.py --start found --data data --out started --no-report",
        "search search.py --around model --data data --out around --no-report --set space_search.method=none",
        f"{TIMED} latency<=9ms --data data --out timed --no-report",
        "specialise supernet.pth --config supernet.py --budget params<=99K --data data --out cut",
        "publish found --supernet --out whole",
        "publish model --beside found --beside run --out beside",
        "study study.py --out . --summary",
        "study study.py --out . --table written.jsonl.xz",
        "study study.py --out .",
        "python:scored.load table.jsonl.xz",
        "config search.py",
    ),
    "vqa": ("vqa train vqa.py --data vqa-data --out vqa", "vqa ask vqa/model image.png what?", "publish vqa --dry-run"),
    "mm": (
        "predict_mm segmenter photo.jpg --out pictures", "flops_mm segmenter.py",
        f"{SEGMENTING} --work-dir work", "publish detector --dry-run",
    ),
}  # fmt: skip
