"""A run's network as a folder that is a Hugging Face Hub repository, and its way to the Hub.

The folder holds `model.safetensors`, `config.json` and the card; `timm.create_model("hf-hub:owner/name")` and
`"local-dir:FOLDER"` load it once s3zoo is imported, and check that the weights are those that were published.
"""

from __future__ import annotations

import argparse
import re
import shutil
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from huggingface_hub import CommitOperationAdd, HfApi, get_token
from huggingface_hub.errors import HfHubHTTPError, HTTPError, OfflineModeIsEnabled, RepositoryNotFoundError

from s3zoo import __version__, cards
from s3zoo.artefact import load_model_config
from s3zoo.export import REPOSITORY, check_onnx, check_out, load, to_onnx, to_timm, write_repository
from s3zoo.files import check_writable, settle, sha256
from s3zoo.models.folder import CONFIG, WEIGHTS
from s3zoo.models.official import read_checkpoint
from s3zoo.search.budget import Budget

ONNX = "model.onnx"


def find_model(path: Path, budget: str | None = None) -> Path:
    """The model folder that is meant: `path` itself, or that of a run; of several, the one for the budget."""
    settle(path)
    if not path.is_dir():
        raise ValueError(f"There is no folder {str(path)!r}; give the folder of a run, or one with {WEIGHTS}.")
    if (path / CONFIG).is_file():
        return path
    found = sorted(path.glob("model")) + sorted(path.glob("model-*"), key=lambda p: (len(p.name), p.name))
    found = [folder for folder in found if (folder / CONFIG).is_file()]
    if not found:
        if (path / "run.json").is_file():
            raise ValueError(f"The run in {path} is not finished; the command that began it resumes it.")
        runs = sorted(p.name for p in path.iterdir() if (p / "run.json").is_file())
        if runs:
            raise ValueError(f"{path} holds {len(runs)} runs ({', '.join(runs)}); give the folder of one of them.")
        raise ValueError(f"{path} holds neither a model ({WEIGHTS}, {CONFIG}) nor a run; give the folder of either.")
    if len(found) == 1 and budget is None:
        return found[0]
    names = [str(load_model_config(folder)["s3zoo"]["provenance"].get("budget", "")) for folder in found]
    offer = "; ".join(f"{i}: {name}" for i, name in enumerate(names))
    if budget is None:
        raise ValueError(f"The run in {path} found {len(found)} networks ({offer}); choose one with --budget NUMBER.")
    if budget.isdecimal() and int(budget) < len(found):
        return found[int(budget)]
    if not budget.isdecimal() and str(Budget.parse(budget)) in names:
        return found[names.index(str(Budget.parse(budget)))]
    raise ValueError(f"--budget is {budget!r}, but the run in {path} has {offer}; give one of these numbers.")


def make_repository(
    source: Path, out: Path, *, repo_id: str | None = None, license: str | None = None, layout: str = "s3zoo",
    onnx: bool = False,
) -> tuple[dict[str, Any], list[Path]]:  # fmt: skip
    """Write the folder `out` that is the Hub repository of the model in `source`; gives its config and files.

    The weights are copied byte for byte, once they are sure to be those that the config describes.

    Args:
        layout: "timm" for timm's own architecture, which plain timm loads, where the network has one.
        onnx: add the network as ONNX.
    """
    check_out(out, source)
    config = load_model_config(source, verify=True, plain=True)
    config["pretrained_cfg"]["hf_hub_filename"] = WEIGHTS  # as older versions did not say: see artefact
    if isinstance(config["model_args"].get("pretrained_tower"), str):  # a file of this machine; its sha256 stays
        config["model_args"]["pretrained_tower"] = True
    if license is not None:
        if license not in cards.LICENCES:
            raise ValueError(f"--license is {license!r}, but must be one of {', '.join(cards.LICENCES)}.")
        config["pretrained_cfg"]["license"] = license
    read_checkpoint(source / WEIGHTS)  # which refuses what is no number
    model: Any = None
    if onnx or (layout == "timm" and "arch" in config["model_args"]):
        if onnx and "arch" not in config["model_args"]:
            raise ValueError(f"{source} is in timm's layout; --onnx needs the folder that it was made of.")
        model, _ = load(str(source))
        model.pretrained_cfg["license"] = config["pretrained_cfg"].get("license")
    if layout == "timm" and model is not None:
        to_timm(out, model, config, repo_id=repo_id)
        config = load_model_config(out, plain=True)
        files = [out / name for name in REPOSITORY]
    else:
        files = write_repository(out, config, partial(shutil.copyfile, source / WEIGHTS), repo_id=repo_id)
    if onnx:
        to_onnx(out / ONNX, model)
        files.append(out / ONNX)
    return config, files


def check_target(repo_id: str, *, token: bool = True) -> None:
    """What can be known of a push before anything is sent."""
    if not re.fullmatch(r"[\w.-]+/[\w.-]+", repo_id):
        raise ValueError(f"--to is {repo_id!r}, but must be owner/name, as in my-name/s3-digits.")
    if token and get_token() is None:
        raise ValueError("There is no token for the Hub; log in with `hf auth login`, or set HF_TOKEN.")


class Pushed(NamedTuple):
    commit: str
    changed: bool  # False: all of it was there already
    url: str


def push(
    files: Sequence[Path], repo_id: str, *, private: bool = False, revision: str | None = None, tag: str | None = None,
    message: str = "Publish with s3zoo",
) -> Pushed:  # fmt: skip
    """Make the files the content of a Hub repository, in one commit; what is there already is not sent again.

    The token is the one that huggingface_hub finds (HF_TOKEN, or the file that `hf auth login` wrote).

    Args:
        revision: a branch, which is made if there is none of the name; by default main.
        tag: a name for the commit; one that names another commit stays where it is.
    """
    check_target(repo_id)
    api = HfApi(library_name="s3zoo", library_version=__version__)
    with _in_one_sentence(repo_id):
        url = str(api.create_repo(repo_id, private=private or None, exist_ok=True))
        if private and not api.repo_info(repo_id).private:
            raise ValueError(f"{repo_id} exists and is public; make it private on the Hub, or leave out --private.")
        if revision is not None:
            api.create_branch(repo_id, branch=revision, exist_ok=True)
        before = api.repo_info(repo_id, revision=revision).sha
        operations = [CommitOperationAdd(path.name, path) for path in files]
        commit = api.create_commit(repo_id, operations, commit_message=message, revision=revision)
        if tag is not None:
            refs = api.list_repo_refs(repo_id)
            named = next((ref.target_commit for ref in refs.tags if ref.name == tag), None)
            if named not in (None, commit.oid):
                raise ValueError(
                    f"{repo_id} is at commit {commit.oid[:8]}, but the tag {tag!r} names commit {str(named)[:8]} and is"
                    " not moved; repeat with another --tag."
                )
            if named is None:
                api.create_tag(repo_id, tag=tag, revision=commit.oid)
    return Pushed(commit.oid, commit.oid != before, url)


@contextmanager
def _in_one_sentence(repo_id: str) -> Iterator[None]:
    """What can go wrong on the way to the Hub, as a sentence for the user; the token is in none of them."""
    try:
        yield
    except OfflineModeIsEnabled:
        raise ValueError("HF_HUB_OFFLINE is set, so nothing can be pushed; unset it and repeat.") from None
    except (HTTPError, OSError, RuntimeError) as error:
        cause: BaseException = error
        while cause.__cause__ is not None and not isinstance(cause, HfHubHTTPError):  # hidden in a RuntimeError
            cause = cause.__cause__
        again = "nothing is half done: repeat the same command to go on"
        if not isinstance(cause, HfHubHTTPError):
            raise ValueError(f"The Hub could not be reached or went away ({_said(cause)}); {again}.") from None
        code = cause.response.status_code
        if code == 401 or (isinstance(cause, RepositoryNotFoundError) and code != 404):
            raise ValueError(
                "The Hub does not accept the token; log in anew with `hf auth login` (or set HF_TOKEN to another one)."
            ) from None
        if code in (403, 404):
            raise ValueError(
                f"The token may not write to {repo_id}, or there is no user or organisation"
                f" {repo_id.partition('/')[0]!r} ({_said(cause)}); give another --to or a token with write access."
            ) from None
        raise ValueError(f"The Hub refused with status {code} ({_said(cause)}); {again}.") from None


def _said(error: BaseException) -> str:
    text = getattr(error, "server_message", None) or str(error) or type(error).__name__
    token = get_token()
    return " ".join((text.replace(token, "…") if token else text).split())[:200].rstrip(".")


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="s3zoo publish",
        description="Make a Hugging Face Hub repository of a run's network, or of a model folder, and push it. Pushing"
        " the same again changes nothing; a push that failed can be repeated.",
        epilog="example: s3zoo publish runs/digits --dry-run, then s3zoo publish runs/digits --to my-name/s3-digits",
    )
    parser.add_argument("source", type=Path, help="folder of a search or training, or of a model")
    parser.add_argument("--to", metavar="OWNER/NAME", help="push to this repository on the Hub; it is made if need be")
    parser.add_argument("--out", type=Path, metavar="DIR", help="write the repository into this folder")
    parser.add_argument("--dry-run", action="store_true", help="show files and card; touch neither network nor --out")
    parser.add_argument("--budget", metavar="N", help="of a run with several budgets, which (number, or the budget)")
    parser.add_argument("--license", metavar="ID", help="of the weights, in the Hub's spelling, such as apache-2.0")
    parser.add_argument(
        "--layout", choices=("s3zoo", "timm"), default="s3zoo",
        help="timm: timm's own architecture, which needs no s3zoo to load, if it has one for the network"
        " (default: the genome)",
    )  # fmt: skip
    parser.add_argument("--onnx", action="store_true", help=f"add {ONNX}, for any batch size")
    parser.add_argument("--private", action="store_true", help="a repository that is made is private")
    parser.add_argument("--revision", metavar="BRANCH", help="push to this branch (default: main)")
    parser.add_argument("--tag", help="name the pushed commit, such as v1")
    parser.add_argument("--message", help="of the commit")
    args = parser.parse_args(argv)
    if not (args.to or args.out or args.dry_run):
        parser.error("say what to do: --dry-run shows the repository, --out DIR writes it, --to OWNER/NAME pushes it")
    if args.to is not None:
        check_target(args.to, token=not args.dry_run)
    if args.onnx:
        check_onnx(ONNX)  # before anything is written
    source = find_model(args.source.expanduser(), args.budget)
    if args.out is not None and not args.dry_run:
        check_writable(args.out.expanduser(), "--out", folder=True)
    with tempfile.TemporaryDirectory() as scratch:
        out = Path(scratch) if args.dry_run or args.out is None else args.out.expanduser()
        options = {"repo_id": args.to, "license": args.license, "layout": args.layout, "onnx": args.onnx}
        config, files = make_repository(source, out, **options)
        imports = "import s3zoo, timm" if "arch" in config["model_args"] else "import timm"
        for path in files:
            print(f"{path.name:<20} {path.stat().st_size:>12,} bytes  sha256 {sha256(path)}")
        if not config["pretrained_cfg"].get("license"):
            print("The weights have no licence, so nobody may use them; say one with --license.", file=sys.stderr)
        if args.dry_run:
            print("\n" + (out / "README.md").read_text(encoding="utf-8"), end="")
            return 0
        if args.out is not None:
            print(f'load it with: {imports}; timm.create_model("local-dir:{out}", pretrained=True)')
        if args.to is not None:
            message = args.message or f"{config['architecture']} network {config['s3zoo']['arch_key']}"
            options = {"private": args.private, "revision": args.revision, "tag": args.tag, "message": message}
            pushed = push(files, args.to, **options)
            done = "pushed to" if pushed.changed else "nothing to push: all of it is already at"
            at = args.tag or args.revision
            name = f"{args.to}@{at}" if at else args.to
            print(f"{done} {pushed.url}, commit {pushed.commit}")
            print(f'load it with: {imports}; timm.create_model("hf-hub:{name}", pretrained=True)')
    return 0
