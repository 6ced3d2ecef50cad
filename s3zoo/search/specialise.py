"""`s3zoo specialise SUPERNET`: a network of a trained supernet for a device or a size, without any training.

Candidates are compared on images held out of the training split; the test images are opened once for each
winner.
"""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path

import timm

from s3zoo.files import check_writable
from s3zoo.models.official import fetched
from s3zoo.search.config import SearchRun
from s3zoo.search.published import FinishedRun
from s3zoo.training.config import load_config, overridden

OFFICIAL = "autoformer_{}_official"  # the configs of its authors' supernets
SIZES = ("tiny", "small", "base")


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="s3zoo specialise",
        description="Search a trained supernet for the best network within a budget; nothing is trained.",
        epilog="example: s3zoo specialise autoformer_small --data /path/to/imagenet --budget 'latency<=20ms'",
    )
    names = ", ".join(f"autoformer_{size}" for size in SIZES)
    parser.add_argument("supernet", help=f"{names} (the authors', fetched once), its file, or the folder of a search")
    parser.add_argument("--data", metavar="ROOT", help="where the images are")
    parser.add_argument(
        "--budget", action="append", required=True, metavar="LIMITS", help="e.g. 'params<=6M, latency<=20ms'"
    )
    parser.add_argument("--config", help="of a file that is none of the published: a config with its space and images")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="change a setting")
    parser.add_argument("--out", type=Path, help="folder of the run (default: runs/specialise_<supernet>)")
    args = parser.parse_args(argv)
    if args.out is not None:
        check_writable(args.out, "--out", folder=True)
    run = specialised(args.supernet, tuple(args.budget), args.config)
    run = overridden(run, args.set + ([f"data.root={args.data}"] if args.data else []))
    from s3zoo.search.run import search
    from s3zoo.training.session import run_job

    return run_job(run, args.out or Path("runs") / run.name, search)


def specialised(supernet: str, budgets: tuple[str, ...], config: str | None = None) -> SearchRun:
    """The search of a supernet that is there, whose winners keep the weights that they have in it."""
    path = Path(supernet).expanduser()
    if path.is_dir():
        run = FinishedRun(path).again(budgets)
    else:
        size = supernet.removeprefix("autoformer_") if not path.is_file() else "" if config else _size(path)
        if size not in SIZES and not (config and path.is_file()):
            names = ", ".join(f"autoformer_{name}" for name in SIZES)
            raise ValueError(f"There is no supernet {supernet!r}; give {names}, a file, or the folder of a search.")
        run = load_config(config or OFFICIAL.format(size), SearchRun, "search")
        file = path if path.is_file() else fetched(str(timm.get_pretrained_cfg(f"autoformer_{size}").url))  # type: ignore[union-attr]
        run = replace(run, supernet_weights=str(file), arch_search=replace(run.arch_search, budgets=budgets))
    name = path.resolve().name if path.exists() else supernet
    return replace(run, name=f"specialise_{Path(name).stem}", final=replace(run.final, mode="inherit", top=1))


def _size(path: Path) -> str:
    """Which of the published supernets a file is, by its width."""
    from s3zoo.models.autoformer import largest_arch
    from s3zoo.models.official import read_checkpoint
    from s3zoo.space import SPACES

    width = largest_arch(read_checkpoint(path)).embed_dims[0]
    fits = [size for size in SIZES if SPACES[f"autoformer_{size}"].largest().embed_dims[0] <= width]
    return fits[-1] if fits else ""
