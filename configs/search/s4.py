"""S4 on four backbones and four datasets at 224 x 224, its rivals, and each backbone without S4."""

import math
from dataclasses import replace
from typing import NamedTuple

from s3zoo.search.config import ArchSearch, Final, SearchRun
from s3zoo.search.space_search import SpaceSearch
from s3zoo.space import SPACES
from s3zoo.training.config import Tower, Train
from s3zoo.training.recipes import IMAGENET
from s3zoo.training.registry import Entry, Registry

configs = Registry()


class Dataset(NamedTuple):
    title: str
    num_classes: int
    holdout: int  # the paper is silent about it: 500 images of each class of CIFAR-10, ten of each of SUN397, …
    test_split: str
    steps: int  # in an epoch of batch 128
    images: str  # how to get them


class Body(NamedTuple):
    title: str
    limit: int  # millions of parameters
    headline: str  # of its search on CIFAR-10
    notes: str
    flop: str  # what the count of FLOP includes
    baseline: dict[str, tuple[float, ...]]  # the one network without S4
    baseline_notes: tuple[str, str]  # what it is, how many parameters it has
    baseline_cost: str


DATASETS = {
    "cifar10": Dataset(
        "CIFAR-10", 10, 5_000, "test", 351,
        """\
The place holds train/ and test/ with class folders, or train.tar and test.tar. Or let torchvision fetch the images:
`--set data.name=torch/cifar10 --set data.download=true --data cifar10`.""",
    ),
    "cifar100": Dataset(
        "CIFAR-100", 100, 5_000, "test", 351,
        """\
Images as for CIFAR-10, or fetched by torchvision:
`--set data.name=torch/cifar100 --set data.download=true --data cifar100`.""",
    ),
    "tiny_imagenet": Dataset(
        "Tiny ImageNet", 200, 10_000, "val", 703,
        """\
The folder is tiny-imagenet-200 as its archive unpacks, or holds train/<class>/ and val/<class>/. Or, with
`pip install datasets` (not tried here): `--set data.name=hfds/zh-plus/tiny-imagenet --set data.test_split=valid`
instead of --data. The labelled validation images are the test, as everywhere for this dataset.""",
    ),
    "sun397": Dataset(
        "SUN397", 397, 3_970, "test", 750,
        """\
The paper speaks of 100,000 images and prints no split; the cost is for 100,000 training images, ten of each class held
out. The folder holds train/<class>/ and test/<class>/; the archive's nested classes (such as
apartment_building/outdoor) need one folder with one name each. Or, with `pip install datasets` (not tried here):
`--set data.name=hfds/tanganke/sun397` instead of --data.""",
    ),
}  # fmt: skip

BODIES = {
    "vit": Body(
        "S4-ViT", 30, "the space moves three times and stays below 30M parameters; the winner is retrained",
        """\
The first space reaches 36.4M parameters; while no neighbour is below the limit, the space moves towards it.
The paper is silent about held-out images: here 500 of each class are, until the winner is retrained, on all training
images. `--set space_search.search_each_space=true --set final.use_held_out=false` searches and retrains in every
visited space, without them.""",
        "",
        {"depth": (12,), "embed_dim": (384,), "num_heads": (12,), "mlp_ratio": (4,)},
        (
            """\
12 blocks of width 384, 12 heads of 64, MLP ratio 4, with AutoFormer's relative positions. The paper does not say what
its ViT is; this one has the sizes that its tables print (rounded up).""",
            "28,853,386",
        ),
        "5.9 x 10^17 FLOP by closed form (estimate), or 8 GPU-hours",
    ),
    "swin": Body(
        "S4-Swin", 30, "the space moves three times and stays below 30M parameters, then retraining",
        """\
As s4_vit_cifar10 but for the space: one width, one MLP ratio and the depth of stage 3 are searched. The first space
reaches 31.1M parameters. Heads are Swin's 3, 6, 12 and 24 (the paper's text prints 12 for the last).""",
        "",
        {"embed_dim": (96,), "mlp_ratio": (4,), "stage3.depth": (6,)},
        ("Swin-T: width 96, blocks 2, 2, 6, 2, MLP ratio 4.", "27,527,044"),
        "4.0 x 10^17 FLOP by closed form (estimate), or 6 GPU-hours",
    ),
    "shunted": Body(
        "S4-Shunted", 22, "the space moves three times and stays below 22M parameters, then retraining",
        """\
As s4_vit_cifar10 but for the space and its limit: one width, the depth x (blocks 2, x, 3x, 1) and one MLP ratio m,
which means (m, m, m/2, m/2) over the stages, our reading. The first space is below the limit: its largest network has
19.3M.""",
        "",
        {"embed_dim": (64,), "mlp_ratio": (8,), "depth": (4,)},
        ("Shunted-S: width 64, blocks 2, 4, 12, 1, MLP ratios 8, 8, 4, 4.", "21,893,386"),
        "4.5 x 10^17 FLOP by closed form (estimate), or 6 GPU-hours",
    ),
    "clip": Body(
        "S4-CLIP", 30, "the space moves three times below 30M parameters",
        """\
As s4_vit_cifar10 but for the space and the tower, CLIP's ViT-B/16 (the paper does not say which). Only the decoder is
searched, trained and counted; what it looks like is our reading (s3zoo/models/ladder.py). The first space reaches 32.3M
parameters. Features of the 5,000 held-out images are kept on disk, 3.0 GB for each layer of the decoder; training
images are augmented as the paper says, so the tower sees them in every epoch. Weights of your own:
`--set tower.weights=FILE`.""",
        "the tower's forward passes included; ",
        {"depth": (4,), "embed_dim": (384,), "num_heads": (12,), "mlp_ratio": (4,)},
        (
            """\
The decoder of 4 layers with 12 heads, MLP ratio 4 and a bottleneck of 384 beside CLIP's frozen ViT-B/16; sizes are the
decoder's, rounded up as in the paper.""",
            "30,731,530",
        ),
        "6.5 x 10^17 FLOP by closed form (the tower's forward passes included; estimate), or 9 GPU-hours",
    ),
}  # fmt: skip

# The paper's top-1 in percent, parameters and tables; 10^18 FLOP and GPU-hours, both estimates.
FIGURES = {
    "vit": {
        "cifar10": ("94.32", "25.4M", "Tables 2 and 6", 3.2, 45),
        "cifar100": ("78.68", "26.5M", "Tables 2 and 6", 3.2, 45),
        "tiny_imagenet": ("67.92", "27.5M", "Tables 2 and 4", 6.5, 90),
        "sun397": ("68.82", "28.7M", "Tables 2 and 5", 6.9, 95),
    },
    "swin": {
        "cifar10": ("95.65", "25.4M", "Tables 3 and 6", 2.1, 29),
        "cifar100": ("80.31", "26.2M", "Tables 3 and 6", 2.1, 29),
        "tiny_imagenet": ("73.09", "28.4M", "Tables 3 and 5", 4.1, 58),
        "sun397": ("74.32", "28.4M", "Tables 3 and 5", 4.4, 61),
    },
    "shunted": {
        "cifar10": ("97.67", "20.2M", "Tables 3 and 6", 1.8, 25),
        "cifar100": ("85.66", "21.6M", "Tables 3 and 6", 1.8, 25),
        "tiny_imagenet": ("75.59", "21.3M", "Tables 3 and 5", 3.7, 51),
        "sun397": ("78.19", "21.5M", "Tables 3 and 5", 3.9, 54),
    },
    "clip": {
        "cifar10": ("97.23", "20M", "Table 3", 4.3, 60),
        "cifar100": ("87.63", "26M", "Table 3", 4.3, 60),
        "tiny_imagenet": ("81.35", "28M", "Table 3", 8.6, 119),
        "sun397": ("85.87", "30M", "Table 3", 9.1, 126),
    },
}
BASELINES = {  # of the four datasets
    "vit": ("93.59 / 76.45 / 67.16 / 68.33", "29M / 29M / 29M / 30M", "Table 2"),
    "swin": ("94.39 / 79.03 / 71.9 / 73.55", "27M / 28M / 28M / 28M", "Table 3"),
    "shunted": ("97.39 / 84.36 / 74.07 / 76.03", "22M / 22M / 22M / 23M", "Table 3"),
    "clip": ("97.21 / 86.44 / 79.81 / 83.35", "31M / 31M / 31M / 32M", "Table 3"),
}
# CLIP's
SEEN = {"mean": (0.48145466, 0.4578275, 0.40821073), "std": (0.26862954, 0.26130258, 0.27577711)}

TEXT = """{headline}

Expected:  {top1} % top-1 with {params} parameters (the paper's figure, its {tables}; not run here).
Cost:      4 x 500 epochs of {steps} steps and 300 epochs of retraining; {flop} x 10^18 FLOP by closed form
           ({included}estimate), or {hours} GPU-hours at an assumed 20 TFLOP/s.
           Not measured; the paper names no hardware.
Command:   torchrun --nproc-per-node 4 -m s3zoo search {name} --data /path/to/{place}

{notes}
"""

BASELINE = """{title} without S4: one network, trained from scratch.

Expected:  {top1} % top-1 with {params} parameters on CIFAR-10, CIFAR-100, Tiny
           ImageNet and SUN397 (the paper's figure, its {table}; not run here).
Cost:      300 epochs of 390 steps on CIFAR-10;
           {cost}
           at an assumed 20 TFLOP/s. Not measured; the paper names no hardware.
Command:   torchrun --nproc-per-node 4 -m s3zoo search s4_{body}_baseline --data /path/to/cifar10

{what}
A space with one architecture: no supernet is trained, and the network is retrained exactly as
s4_{body}_cifar10 retrains its winner, on all training images. {exact} parameters with 10 classes.

The other datasets, with images as for s4_vit_cifar100 and so on: `--set data.num_classes=100`,
`--set data.num_classes=200 --set data.holdout=10000 --set data.test_split=val` (Tiny ImageNet),
`--set data.num_classes=397 --set data.holdout=3970` (SUN397), each with an --out of its own.
"""


def searched(body: str, dataset: str) -> SearchRun:
    """S4's section 6.1: supernets of 500 epochs, and a retraining of 300 with "all same" settings."""
    data, limit = DATASETS[dataset], BODIES[body].limit
    train = Train(epochs=500, batch_size=128, lr=5e-4, min_lr=1e-5, warmup_epochs=5, drop_path=0.2, sampling="uniform")
    run = SearchRun(
        name=f"s4_{body}_{dataset}",
        space=SPACES[f"s4_{body}"],
        data=replace(IMAGENET, num_classes=data.num_classes, holdout=data.holdout, test_split=data.test_split),
        supernet=train,
        space_search=SpaceSearch(method="s4", iterations=3, pairs=40, limit_metric="params", upper=limit * 1e6),
        # Refuses nothing unless the space could not reach the limit
        arch_search=ArchSearch(budgets=(f"params<={limit}M",)),
        final=Final(mode="retrain", use_held_out=True, train=replace(train, epochs=300)),
    )
    if body != "clip":
        return run
    tower = Tower("vit_base_patch16_clip_quickgelu_224.openai", cache="scored")
    return replace(run, data=replace(run.data, **SEEN), tower=tower)


def baseline(body: str) -> SearchRun:
    """The network that S4's tables compare with, as a space of one architecture."""
    run = searched(body, "cifar10")
    return replace(
        run,
        name=f"s4_{body}_baseline",
        space=run.space.replaced(BODIES[body].baseline, name=f"s4_{body}_baseline"),
        supernet=replace(run.supernet, epochs=0),
        space_search=SpaceSearch(method="none"),
        arch_search=ArchSearch(population=1, generations=1, crossover=0, mutation=0),
    )


for body, about in BODIES.items():
    for dataset, images in DATASETS.items():
        run = searched(body, dataset)
        top1, params, tables, flop, hours = FIGURES[body][dataset]
        first = dataset == "cifar10"
        notes = [about.notes] if first else []
        notes.append(images.images if body == "vit" else f"Images as for s4_vit_{dataset}.")
        what = about.headline if first else f"as s4_{body}_cifar10"
        text = TEXT.format(
            headline=f"{about.title} on {images.title} at 224 x 224: {what}.", top1=top1, params=params, tables=tables,
            steps=images.steps, flop=flop, included=about.flop, hours=hours, name=run.name, place=dataset,
            notes="\n".join(notes),
        )  # fmt: skip
        configs[run.name] = Entry(run, text.strip())
    top1, params, table = BASELINES[body]
    what, exact = about.baseline_notes
    text = BASELINE.format(
        title=about.title.removeprefix("S4-"), top1=top1, params=params, table=table, cost=about.baseline_cost,
        body=body, what=what, exact=exact,
    )  # fmt: skip
    configs[f"s4_{body}_baseline"] = Entry(baseline(body), text.strip())


@configs.add
def s4_vit_cifar10_unconstrained() -> SearchRun:
    """S4-ViT on CIFAR-10 without a limit: as s4_vit_cifar10, but the space goes where accuracy leads.

    Expected:  94.49 % top-1 with 35.4M parameters (the paper's figure, its Table 6; not run here).
    Cost:      4 x 500 epochs of 351 steps and 300 epochs of retraining; 3.2 x 10^18 FLOP by closed form if the space
               stays as large as the first (estimate), or 45 GPU-hours at an assumed 20 TFLOP/s. The paper names no
               hardware.
    Command:   torchrun --nproc-per-node 4 -m s3zoo search s4_vit_cifar10_unconstrained --data /path/to/cifar10
    """
    run = searched("vit", "cifar10")
    return replace(
        run,
        name="s4_vit_cifar10_unconstrained",
        space_search=replace(run.space_search, upper=math.inf),
        arch_search=ArchSearch(),
    )


@configs.add
def s4_vit_cifar10_s3() -> SearchRun:
    """S4's rival on CIFAR-10: S3 in the same space, back to the last space that has networks within 30M parameters.

    Expected:  94.23 % top-1 with 29M parameters (the paper's figure, its Table 2; not run here).
    Cost:      4 x 500 epochs of 351 steps and 300 epochs of retraining; 3.2 x 10^18 FLOP by closed form if the space
               stays as large as the first (estimate), or 45 GPU-hours at an assumed 20 TFLOP/s. The paper names no
               hardware.
    Command:   torchrun --nproc-per-node 4 -m s3zoo search s4_vit_cifar10_s3 --data /path/to/cifar10

    Only the rule that moves the space differs from s4_vit_cifar10. S3 knows no limit there: the limit comes in with
    the architecture search. Its evolve steps are the distances of the choices, and tau is S3's own.
    """
    return replace(
        searched("vit", "cifar10"),
        name="s4_vit_cifar10_s3",
        space_search=SpaceSearch(
            method="s3", iterations=3, samples=1000, tau=0.4, top=50, top_share=1.0, backtrack=True
        ),
    )
