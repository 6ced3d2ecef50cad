"""Imports point one way, the pure modules stay free of torch, and heavy optional packages stay in their corner.

Read off the sources, so that an import inside a function counts too.
"""

import ast
import subprocess
import sys
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent

# A unit is a module or package directly below s3zoo; it may import units of its own layer (without cycles) or below.
LAYERS = [
    {"checks", "compat", "drawing", "families", "files", "images", "paths", "versions"},
    {"arch"},
    {"space", "cost", "picture"},
    {"families.*"},
    {"models"},
    {"artefact", "supernet"},
    {"training"},
    {"search"},
    {"export", "cards", "convert", "transfer", "evaluate", "predict", "inspection", "scored"},
    {"hub", "study", "verify", "zoo"},
    {"cli", "doctor", "manual", "run"},
    {"__main__"},
]
LAYER = {unit: level for level, units in enumerate(LAYERS) for unit in units}

TORCH_FREE = {
    "s3zoo",
    "s3zoo.checks",
    "s3zoo.paths",
    "s3zoo.files",
    "s3zoo.images",
    "s3zoo.versions",
    "s3zoo.drawing",
    "s3zoo.arch",
    "s3zoo.space",
    "s3zoo.cost",
    "s3zoo.picture",
    "s3zoo.cli",
    "s3zoo.manual",
    "s3zoo.families",
} | {
    f"s3zoo.search.{name}"
    for name in ("evolution", "budget", "racing", "space_search", "s3", "s4", "course", "records")
} | {
    f"s3zoo.families.{path.stem}" for path in (ROOT / "s3zoo/families").glob("*.py") if path.stem != "__init__"
}
NEEDS_TORCH = {"torch", "torchvision", "timm", "safetensors", "transformers"}
# package -> the only place that may import it
CORNERS = {
    **dict.fromkeys(("mmengine", "mmcv", "mmdet", "mmseg", "mmpretrain"), "s3zoo.transfer"),
    "transformers": "s3zoo.transfer.vqa",
}

Sources = dict[str, str]  # module name -> source text


def project_sources() -> Sources:
    names = {}
    for path in sorted((ROOT / "s3zoo").rglob("*.py")):
        parts = path.relative_to(ROOT).with_suffix("").parts
        name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
        names[name] = path.read_text() + ("\n__is_package__ = True\n" if parts[-1] == "__init__" else "")
    return names


def imports(module: str, sources: Sources) -> set[str]:
    """The modules that `module` imports by name, relative ones resolved, `from a import b` as a.b where that exists."""
    is_package = "__is_package__ = True" in sources[module]
    found = set()
    for node in ast.walk(ast.parse(sources[module])):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                anchor = module.split(".")[: len(module.split(".")) - node.level + is_package]
                base = ".".join([*anchor, *([node.module] if node.module else [])])
            for alias in node.names:
                found.add(f"{base}.{alias.name}" if f"{base}.{alias.name}" in sources else base)
    return found


def unit(module: str) -> str | None:
    """What all families share is below architectures, the families are above spaces."""
    parts = module.split(".")
    if parts[:2] == ["s3zoo", "families"] and len(parts) > 2:
        return "families.*"
    return parts[1] if parts[0] == "s3zoo" and len(parts) > 1 else None


def within(module: str, place: str) -> bool:
    return module == place or module.startswith(place + ".")


def violations(sources: Sources) -> list[str]:
    said = []
    graph: dict[str, set[str]] = {}
    for module in sources:
        here = unit(module)
        if here is not None and here not in LAYER:
            said.append(f"{module}: {here} has no place in LAYERS")
            continue
        for target in sorted(imports(module, sources)):
            there = unit(target)
            if here and there and there != here:
                if there not in LAYER:
                    said.append(f"{module} imports {target}, which has no place in LAYERS")
                    continue
                graph.setdefault(here, set()).add(there)
                if LAYER[there] > LAYER[here]:
                    said.append(f"{module} imports {target}: upwards")
            for package, corner in CORNERS.items():
                if within(target, package) and not within(module, corner):
                    said.append(f"{module} imports {target}: only {corner} may")
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        said.append(f"cycle: {' -> '.join(error.args[1])}")
    for module in sorted(TORCH_FREE & sources.keys()):
        for reached in sorted(reachable(module, sources)):
            heavy = sorted(t for t in imports(reached, sources) if t.partition(".")[0] in NEEDS_TORCH)
            if heavy:
                said.append(f"{module} reaches {', '.join(heavy)} through {reached}")
    return said


def reachable(module: str, sources: Sources) -> set[str]:
    """`module` and every s3zoo module that importing it executes, parent packages included."""
    seen: set[str] = set()
    todo = [module]
    while todo:
        name = todo.pop()
        if name in seen or name not in sources:
            continue
        seen.add(name)
        parents = [".".join(name.split(".")[:n]) for n in range(1, len(name.split(".")))]
        todo += [*parents, *imports(name, sources)]
    return seen


def test_the_project_keeps_the_rules() -> None:
    assert violations(project_sources()) == []


@pytest.mark.parametrize(
    ("module", "line", "complaint"),
    [
        ("s3zoo.arch", "from s3zoo.models.s3 import S3", "upwards"),
        ("s3zoo.arch", "from . import space", "upwards"),
        ("s3zoo.models.s3", "def f():\n    from ..convert import convert", "upwards"),
        ("s3zoo.models.s3", "from ..search import evolution", "upwards"),
        ("s3zoo.cost", "import torch.nn as nn", "s3zoo.cost reaches torch.nn"),
        ("s3zoo.search", "import timm", "s3zoo.search.evolution reaches timm through s3zoo.search"),
        ("s3zoo.models.s3", "from mmdet.registry import MODELS", "only s3zoo.transfer may"),
        ("s3zoo.transfer", "import transformers", "only s3zoo.transfer.vqa may"),
        ("s3zoo.extra", "", "no place in LAYERS"),
        ("s3zoo.cost", "from .space import Space", "cycle"),
    ],
)
def test_a_breach_is_noticed(module: str, line: str, complaint: str) -> None:
    package = "\n__is_package__ = True\n"
    sources = dict.fromkeys(("s3zoo", "s3zoo.models", "s3zoo.search", "s3zoo.transfer"), package) | {
        "s3zoo.arch": "import json",
        "s3zoo.space": "from s3zoo import arch, cost",
        "s3zoo.cost": "from .arch import Arch",
        "s3zoo.models.s3": "import torch\nfrom ..arch import Arch\nfrom . import layers",
        "s3zoo.models.layers": "import timm",
        "s3zoo.convert": "from .models.s3 import S3",
        "s3zoo.search.evolution": "from ..space import Space",
        "s3zoo.transfer.vqa": "import transformers, mmengine",
    }
    assert violations(sources) == []
    sources[module] = sources.get(module, "") + "\n" + line
    assert any(complaint in sentence for sentence in violations(sources)), violations(sources)


def test_pure_modules_run_without_torch() -> None:
    """The same promise at run time: importing them, with every parent package, leaves torch alone."""
    modules = sorted(TORCH_FREE & project_sources().keys())
    assert {"s3zoo.arch", "s3zoo.space", "s3zoo.cost"} <= set(modules)
    modules.append("s3zoo.search.report.data")  # whose config can ask for a tower, in a function that it does not call
    code = f"import sys, {', '.join(modules)}; print(sorted({NEEDS_TORCH!r} & sys.modules.keys()))"
    assert subprocess.check_output([sys.executable, "-c", code], cwd=ROOT, text=True).strip() == "[]"
