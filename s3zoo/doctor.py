"""Print versions, devices, threads and which optional parts are present."""

import argparse
import json
import os
import platform
import shutil
import sys
from importlib.metadata import packages_distributions, version
from typing import Any

from s3zoo import __version__, paths

CORE = ("torch", "torchvision", "timm", "safetensors", "huggingface_hub", "numpy")
EXTRAS = {  # by the name of the extra that installs them
    "mm": ("mmengine", "mmcv", "mmdet", "mmseg"),
    "vqa": ("transformers", "easy_vqa"),
    "export": ("onnx", "onnxruntime", "onnxscript"),
    "tensorboard": ("tensorboard",),
}
BROWSERS = ("chromium", "chromium-browser", "google-chrome")


def report() -> dict[str, Any]:
    """Everything doctor knows, ready for JSON; a part that is absent is None."""
    distributions = packages_distributions()  # by import name: the mm packages come from forks with other names

    def version_of(name: str) -> str | None:
        return version(distributions[name][0]) if name in distributions else None

    packages = {name: version_of(name) for name in CORE}
    problems = [f"{name} is not installed." for name, found in packages.items() if found is None]
    threads: dict[str, Any] = {
        "cpus": os.cpu_count(),
        "usable": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS"),
    }
    devices: list[str] = []
    caches: dict[str, str] = {}
    try:
        import torch
        from huggingface_hub.constants import HF_HUB_CACHE

        devices = _devices(torch)
        threads |= {"torch": torch.get_num_threads(), "torch between operators": torch.get_num_interop_threads()}
        caches = {"huggingface_hub": HF_HUB_CACHE, "torch": torch.hub.get_dir()}
    except Exception as error:  # an installation that does not even import is what a doctor has to be able to report
        problems.append(f"torch or huggingface_hub cannot be used: {type(error).__name__}: {error}")
    return {
        "s3zoo": {"version": __version__, "commit": paths.commit(), "configs": str(paths.configs_dir())},
        "python": {"version": platform.python_version(), "executable": sys.executable, "system": platform.platform()},
        "packages": packages,
        "devices": devices,
        "threads": threads,
        "caches": caches,
        "optional": {f"{name} [{extra}]": version_of(name) for extra, names in EXTRAS.items() for name in names},
        "programs": {
            "git": shutil.which("git"),
            "chromium": next(filter(None, map(shutil.which, BROWSERS)), None),
            "chromedriver": shutil.which("chromedriver"),
        },
        "problems": problems,
    }


def _devices(torch: Any) -> list[str]:
    from s3zoo.compat import NO_APPLE

    cuda = [f"cuda:{i} {torch.cuda.get_device_name(i)}" for i in range(torch.cuda.device_count())]
    apple = [f"mps ({NO_APPLE})"] if torch.backends.mps.is_available() else []
    return ["cpu", *cuda, *apple]


def _text(found: dict[str, Any]) -> str:
    lines = []
    for section, content in found.items():
        rows = content
        if isinstance(content, dict):
            rows = [f"{key:24} {'-' if value is None else value}" for key, value in content.items()]
        lines += [section, *(f"  {row}" for row in rows or ["none"])]
    return "\n".join(lines)


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="s3zoo doctor", description=__doc__)
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    args = parser.parse_args(argv)
    found = report()
    print(json.dumps(found, indent=2) if args.json else _text(found))
    return 1 if found["problems"] else 0
