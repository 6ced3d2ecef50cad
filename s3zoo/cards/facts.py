"""What a card or a row of the zoo says of a model, read off its config: sizes, weights, data, licence, figures."""

from __future__ import annotations

import functools
import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import timm

from s3zoo import cost
from s3zoo.arch import Arch
from s3zoo.families import FAMILIES, Family
from s3zoo.models import ENTRYPOINTS, model_names
from s3zoo.space import Space


class Dataset(NamedTuple):
    """What people know of the images under a name."""

    title: str
    terms: str | None = None  # of the images
    hub_id: str | None = None
    source: str = ""

    @property
    def full(self) -> str:
        return f"{self.title} ({self.source})" if self.source else self.title


_IMAGENET = Dataset("ImageNet-1k", "research and education only, by its terms of access", "imagenet-1k")
_UNSTATED = "no licence stated by its authors"
# By the names that runs, papers, torchvision and folders have for them, without case and signs.
DATASETS = {
    "imagenet": _IMAGENET,
    "imagenet1k": _IMAGENET,
    "digits": Dataset("digits", "cc-by-4.0", None, "scikit-learn; UCI Optical Recognition of Handwritten Digits"),
    "cifar10": Dataset("CIFAR-10", _UNSTATED, "uoft-cs/cifar10"),
    "cifar100": Dataset("CIFAR-100", _UNSTATED, "uoft-cs/cifar100"),
    "flowers102": Dataset("Flowers-102"),
    "stanfordcars": Dataset("Stanford Cars"),
    "oxfordiiitpet": Dataset("Oxford-IIIT Pet"),
    "tinyimagenet": Dataset("Tiny ImageNet"),
    "sun397": Dataset("SUN397"),
}
NO_WEIGHTS, TO_CONVERT = "none", "authors' file, to convert"
LOADABLE = ("bundled", "Hub", "cut from")  # how the sources of weights that `pretrained=True` loads begin


def dataset(name: str) -> Dataset:
    """The images that a run or a paper calls so; those that are not known here have their name alone."""
    return DATASETS.get(re.sub(r"[\W_]", "", name.rpartition("/")[2].lower()), Dataset(name))


@functools.cache
def paper_figures() -> dict[str, Any]:
    """What others have published of the models of the zoo: {"sources": ..., "models": ...}, as they print it."""
    found = [family.figures() for family in FAMILIES.values()]
    return {part: {k: v for one in found for k, v in one.get(part, {}).items()} for part in ("sources", "models")}


def registered_names() -> list[str]:
    """Every model that timm knows through s3zoo, family by family, small ones first."""
    sizes = ("nano", "micro", "mini", "tiny", "small", "base")

    def order(name: str) -> tuple[int, str]:
        return next((i for i, size in enumerate(sizes) if size in name.split("_")), -1), name

    return [name for family in FAMILIES for name in sorted(model_names(family), key=order)]


def registered(name: str) -> dict[str, Any]:
    """The config of a model of the zoo: what timm knows of it and, of bundled weights, where they come from."""
    return json.loads(_registered(name))


@functools.cache  # building it is slow, even without memory
def _registered(name: str) -> str:
    model: Any = timm.create_model(name, device="meta")
    cfg = {field: value for field, value in model.pretrained_cfg.items() if value is not None}
    channels, height, width = cfg["input_size"]
    args: dict[str, Any] = {"arch": model.arch.to_dict(), "img_size": [height, width]}
    ours: dict[str, Any] = {"arch_key": model.arch.key, "params": sum(p.numel() for p in model.parameters())}
    if cfg.get("file"):  # the folder of bundled weights
        ours |= json.loads(Path(cfg["file"], "config.json").read_text(encoding="utf-8"))["s3zoo"]
    config = {
        "architecture": name,
        "num_classes": model.num_classes,
        "num_features": model.num_features,
        "model_args": args | ({"in_chans": channels} if channels != 3 else {}),
        "pretrained_cfg": cfg,
        "s3zoo": ours,
    }
    return json.dumps(config)


def weights_source(cfg: dict[str, Any]) -> str:
    """In a few words, where the weights of a registered model come from."""
    if cfg.get("file"):
        return "bundled"
    if cfg.get("hf_hub_id"):
        return f"Hub: {cfg['hf_hub_id']}"
    if cfg.get("url"):
        return "cut from the authors' supernet"
    return NO_WEIGHTS if cfg.get("tag", "untrained") == "untrained" else TO_CONVERT


@dataclass(frozen=True)
class Facts:
    """A config, asked. `repo_id` is where on the Hub it is or will be."""

    config: dict[str, Any]
    repo_id: str | None = None

    @functools.cached_property
    def arch(self) -> Arch:
        return Arch.parse(self.config["s3zoo"]["arch"] if self.plain else self.config["model_args"]["arch"])

    @property
    def space(self) -> Space | None:
        """Of a supernet, the space of its networks."""
        found = self.config["s3zoo"].get("supernet")
        return Space.from_dict(found) if found else None

    @property
    def family(self) -> Family:
        return FAMILIES[self.arch.family]

    @property
    def plain(self) -> bool:
        """In timm's own layout."""
        return "arch" not in self.config["model_args"]

    @property
    def name(self) -> str:
        return self.config["s3zoo"]["model"] if self.plain else self.config["architecture"]

    @property
    def generic(self) -> bool:
        """The entrypoint that builds any architecture, with no weights."""
        return self.name in ENTRYPOINTS.values() and not self.config["s3zoo"].get("sha256")

    @property
    def own(self) -> bool:
        """A folder of its own rather than a name of the zoo."""
        return self.plain or self.name in ENTRYPOINTS.values() and not self.generic

    @property
    def tagged(self) -> str:
        tag = self.cfg.get("tag")
        return f"{self.name}.{tag}" if tag and tag != "untrained" else self.name

    @property
    def title(self) -> str:
        if given := self.config["s3zoo"].get("title"):
            return given
        if self.repo_id:
            return self.repo_id.rpartition("/")[2]
        if self.generic:
            return f"{self.name}: any architecture of its family"
        if self.name in ENTRYPOINTS.values():
            return f"{self.arch.family} network {self.arch.key}" + (f" on {self.dataset.title}" if self.dataset else "")
        return f"{self.paper['name']} ({self.name})" if self.paper else self.tagged

    @property
    def cfg(self) -> dict[str, Any]:
        return self.config["pretrained_cfg"]

    @property
    def provenance(self) -> dict[str, Any]:
        return self.config["s3zoo"].get("provenance") or {}

    @property
    def paper(self) -> dict[str, Any]:
        """What others published of it; empty if nothing."""
        return paper_figures()["models"].get(self.name, {})

    @property
    def params(self) -> int:
        return self.config["s3zoo"]["params"]

    @property
    def input_size(self) -> tuple[int, int, int]:
        args = self.config["model_args"]
        sides = args.get("img_size") or self.cfg["input_size"][1:]
        height, width = (sides, sides) if isinstance(sides, int) else sides
        return args.get("in_chans", 3), height, width

    def macs(self) -> dict[str, int]:
        """Multiply-accumulates as executed and as the family's paper counts; empty where no formula holds."""
        if not self.family.priced(self.config["model_args"]):
            return {}
        in_chans, height, width = self.input_size
        shape: dict[str, Any] = {"img_size": (height, width), "in_chans": in_chans}
        shape["num_classes"] = self.config["num_classes"]
        if self.family.reads_tower:
            shape["tower_dim"] = self.config["num_features"]
        found = cost.costs(self.arch, **shape)
        return {"macs": found.macs, "macs_paper": int(found.macs_paper)}

    @property
    def has_weights(self) -> bool:
        return self.own or weights_source(self.cfg) not in (NO_WEIGHTS, TO_CONVERT)

    @property
    def metrics(self) -> list[dict[str, Any]]:
        """What the run that made the weights has measured."""
        return [m for m in self.provenance.get("metrics") or [] if m.get("value") is not None]

    @property
    def data(self) -> dict[str, Any]:
        """What the provenance says of the data; older ones have a fingerprint only."""
        data = self.provenance.get("data") or {}
        return data if isinstance(data, dict) else {"fingerprint": data}

    @property
    def dataset(self) -> Dataset | None:
        """What the weights were trained on."""
        if self.provenance:
            return dataset(self.data["name"]) if self.data.get("name") else None
        return _IMAGENET if self.paper and self.cfg.get("tag", "").endswith("in1k") else None

    @property
    def licence(self) -> str | None:
        """Of the weights; where there are none, of the code."""
        return "apache-2.0" if not self.own and weights_source(self.cfg) == NO_WEIGHTS else self.cfg.get("license")

    def accuracy(self) -> dict[str, Any] | None:
        """Its top-1: {"value", "dataset", "whose"}, measured on test images if it was, else of the paper."""
        for m in self.metrics:
            if m["split"] == "test" and m["metric"] == "top1":
                title = dataset(m["dataset"]).title
                return {"value": m["value"], "dataset": title, "whose": "measured by s3zoo"}
        if self.paper and not self.paper.get("other_network"):
            figure = next(f for f in self.paper["figures"] if f["metric"] == "top-1")
            whose = paper_figures()["sources"][figure["source"]]["whose"]
            return {"value": figure["value"], "dataset": figure["dataset"], "whose": whose}
        return None
