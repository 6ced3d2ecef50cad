"""A run's network as a folder that is a Hugging Face Hub repository, and its way to the Hub.

The folder holds `model.safetensors`, `config.json` and the card; `timm.create_model("hf-hub:owner/name")` and
`"local-dir:FOLDER"` load it once s3zoo is imported, and check that the weights are those that were published. Folders
of detectors, segmenters and models that answer questions have their own files besides.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
from huggingface_hub import CommitOperationAdd, HfApi, constants, get_token
from huggingface_hub.errors import HfHubHTTPError, HTTPError, OfflineModeIsEnabled, RepositoryNotFoundError

from s3zoo import __version__, cards
from s3zoo.artefact import load_model_config
from s3zoo.cards import tasks
from s3zoo.checks import Shown
from s3zoo.evaluate import input_size
from s3zoo.export import check_onnx, check_out, load, to_onnx, to_timm, write_repository, written
from s3zoo.files import check_not_read, check_writable, replacing_files, settle, sha256, write_json, write_text
from s3zoo.images import read_image
from s3zoo.models.folder import CONFIG, WEIGHTS, new_folder, read_json_object
from s3zoo.models.official import read_checkpoint
from s3zoo.models.open import open_model
from s3zoo.predict import predict
from s3zoo.scored import outcome
from s3zoo.search.budget import Budget
from s3zoo.search.extract import Networks
from s3zoo.search.latency import this_device
from s3zoo.search.latency_runtime import runner, threads_set, timed_in_turns
from s3zoo.search.published import FinishedRun

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


@dataclass(frozen=True)
class Extras:
    """What a card says besides: a title, what the model says of an image, how long it takes on this machine, and what
    other runs reached."""

    title: str | None = None
    sample: Path | None = None  # an image
    question: str | None = None  # on the image, for models that answer questions
    latency: bool = False
    beside: Sequence[Path] = ()  # folders of finished runs

    def describe(
        self, ours: dict[str, Any], ask: Callable[[Path], dict[str, Any]], source: Path, scratch: Path
    ) -> Path | None:
        """Put them into the config's own section; gives the picture of the sample, made in `scratch` or of `source`."""
        if self.title is not None:
            if self.title not in Shown() or not self.title.strip():
                raise ValueError(f"--title is {self.title!r}, but must be a line of text.")
            ours["title"] = self.title.strip()
        if self.sample is None:
            kept = source / cards.SAMPLE
            if not kept.is_file():
                ours.pop("sample", None)
            return kept if "sample" in ours else None
        picture = scratch / cards.SAMPLE
        image = read_image(self.sample, "RGB")
        image.thumbnail((512, 512))
        image.save(picture)
        ours["sample"] = ask(picture)
        return picture


def make_repository(
    source: Path, out: Path, *, repo_id: str | None = None, license: str | None = None, layout: str = "s3zoo",
    onnx: bool = False, extras: Extras | None = None,
) -> tuple[dict[str, Any], list[Path]]:  # fmt: skip
    """Write the folder `out` that is the Hub repository of the model in `source`; gives its config and files.

    The weights are copied byte for byte, once they are sure to be those that the config describes.

    Args:
        layout: "timm" for timm's own architecture, which plain timm loads, where the network has one.
        onnx: add the network as ONNX.
    """
    check_out(out, source)
    extras = extras or Extras()
    if license is not None and license not in cards.LICENCES:
        raise ValueError(f"--license is {license!r}, but must be one of {', '.join(cards.LICENCES)}.")
    found = read_json_object(source / CONFIG) if (source / CONFIG).is_file() else {}
    if "config" in found or found.get("model_type") == "s3zoo_vqa":
        return _task_repository(source, out, "config" in found, repo_id, license, extras, onnx or layout != "s3zoo")
    if extras.question is not None:
        raise ValueError(f"--question is given, but the model in {source} answers none; leave it out.")
    config = load_model_config(source, verify=True, plain=True)
    config["pretrained_cfg"]["hf_hub_filename"] = WEIGHTS  # as older versions did not say: see artefact
    if isinstance(config["model_args"].get("pretrained_tower"), str):  # a file of this machine; its sha256 stays
        config["model_args"]["pretrained_tower"] = True
    if license is not None:
        config["pretrained_cfg"]["license"] = license
    read_checkpoint(source / WEIGHTS)  # which refuses what is no number
    model: Any = None
    if onnx or (layout == "timm" and "arch" in config["model_args"]):
        if onnx and "arch" not in config["model_args"]:
            raise ValueError(f"{source} is in timm's layout; --onnx needs the folder that it was made of.")
        model, _ = load(str(source))
        model.pretrained_cfg["license"] = config["pretrained_cfg"].get("license")
    if extras.beside:
        runs = [outcome(run.expanduser()) for run in extras.beside]
        keys = ("test", "params", "macs", "command")
        rows = [{"control": each.name} | {key: getattr(each, key) for key in keys} for each in runs]
        known = config["s3zoo"]["provenance"].get("controls", [])  # one that is named again is told anew
        names = {row["control"] for row in rows}
        config["s3zoo"]["provenance"]["controls"] = [row for row in known if row["control"] not in names] + rows
    if extras.latency:
        config["s3zoo"]["latency"] = measured_latency(model or open_model(str(source)))

    def ask(image: Path) -> dict[str, Any]:
        (row,) = predict(str(source), [image], device="cpu")
        shown = [(found["name"], f"{found['probability']:.1%}") for found in row["classes"]]
        return {"head": ["Class", "Probability"], "rows": shown}

    with tempfile.TemporaryDirectory() as scratch:
        picture = extras.describe(config["s3zoo"], ask, source, Path(scratch))
        if layout == "timm" and model is not None:
            to_timm(out, model, config, repo_id=repo_id, sample=picture)
            config, files = load_model_config(out, plain=True), written(out)
        else:
            put = partial(shutil.copyfile, source / WEIGHTS)
            files = write_repository(out, config, put, repo_id=repo_id, sample=picture)
    if onnx:
        to_onnx(out / ONNX, model)
        files.append(out / ONNX)
    return config, files


def _task_repository(
    source: Path, out: Path, dense: bool, repo_id: str | None, license: str | None, extras: Extras, options: bool
) -> tuple[dict[str, Any], list[Path]]:
    """The repository of a detector, segmenter or model that answers questions, once the folder is sure to open."""
    if extras.latency or extras.beside or options:
        raise ValueError("--latency, --beside, --layout and --onnx are for networks that classify; leave them out.")
    if (extras.question is None) != (dense or extras.sample is None):
        raise ValueError("--question belongs to --sample and to models that answer questions; give both, or neither.")
    folder = new_folder(out)
    if dense:
        from s3zoo.transfer.mm.folder import KIND, load_detector  # a package that few have

        detector = load_detector(source)
        classes = detector.dataset_meta.get("classes", ())

        def ask(image: Path) -> dict[str, Any]:
            from s3zoo.transfer.mm.drawing import Predictor

            with detector.running():
                row = Predictor(detector.cfg, detector.state_dict, repr(str(source)))(image, image.parent)
            os.replace(image.parent / row["picture"], image)
            if "objects" in row:
                shown = [(each["class"], each["score"], each["box"]) for each in row["objects"]]
                return {"head": ["Class", "Score", "Box (x1, y1, x2, y2)"], "rows": shown}
            return {"head": ["Class", "Share"], "rows": [(each["class"], each["share"]) for each in row["segments"]]}
    else:
        from s3zoo.transfer.vqa import model as vqa
        from s3zoo.transfer.vqa.command import answered

        KIND = vqa.KIND
        classes = vqa.load(source)[2]

        def ask(image: Path) -> dict[str, Any]:
            found = answered(source, image, str(extras.question))
            return {"head": [str(extras.question), ""], "rows": [(answer, f"{p:.1%}") for answer, p in found]}

    config = KIND.read(source)
    if license is not None:
        config["s3zoo"]["license"] = license
    names = (*KIND.files, "README.md", cards.SAMPLE, CONFIG)
    with tempfile.TemporaryDirectory() as scratch, replacing_files(folder, names) as new:
        picture = extras.describe(config["s3zoo"], ask, source, Path(scratch))
        for path in [*(source / name for name in KIND.files), *([picture] if picture else [])]:
            shutil.copyfile(path, new / path.name)
        write_text(new / "README.md", tasks.render(config, classes, repo_id))
        write_json(new / CONFIG, config, indent=2)
    return config, [folder / name for name in names if (folder / name).is_file()]


def measured_latency(model: Any) -> dict[str, Any]:
    """Milliseconds for one image on one thread of this CPU: the least processor time of many passes."""
    with threads_set(1):
        run = runner(model, torch.randn(1, *input_size(model)), "torch", 1)
        (ms,) = timed_in_turns([run], 5, "cpu", 1)
    name, version = this_device("cpu")["device_name"], torch.__version__.partition("+")[0]
    where = {"device": name, "threads": 1, "batch": 1, "runtime": f"PyTorch {version}"}
    return {"ms": float(f"{ms:.3g}"), **where}


def check_target(repo_id: str, *, token: bool = True, tag: str | None = None, revision: str | None = None) -> None:
    """What can be known of a push before anything is sent."""
    if not re.fullmatch(r"[\w.-]+/[\w.-]+", repo_id):
        raise ValueError(f"--to is {repo_id!r}, but must be owner/name, as in my-name/s3-digits.")
    if token and get_token() is None:
        raise ValueError("There is no token for the Hub; log in with `hf auth login`, or set HF_TOKEN.")
    for option, name in (("--tag", tag), ("--revision", revision)):  # git's rules for names
        if name is not None and (not re.fullmatch(r"(?!-)[\w.+/-]+(?<![./])", name) or ".." in name or "//" in name):
            raise ValueError(
                f"{option} is {name!r}, which cannot name a commit; give letters, digits, '.', '-' and '_'."
            )


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
    check_target(repo_id, tag=tag, revision=revision)
    api = HfApi(library_name="s3zoo", library_version=__version__)
    with _in_one_sentence(repo_id):
        url = str(api.create_repo(repo_id, private=private or None, exist_ok=True))
        if private and not api.repo_info(repo_id).private:
            raise ValueError(f"{repo_id} exists and is public; make it private on the Hub, or leave out --private.")
        if revision is not None:
            api.create_branch(repo_id, branch=revision, exist_ok=True)
        before = api.repo_info(repo_id, revision=revision).sha
        named = _tagged(api, repo_id, tag)
        if named not in (None, before):
            raise ValueError(
                f"The tag {tag!r} of {repo_id} names commit {str(named)[:8]} and is not moved, and the branch is at"
                f" {str(before)[:8]} already; nothing was sent: repeat with another --tag."
            )
        operations = [CommitOperationAdd(path.name, path) for path in files]
        commit = api.create_commit(repo_id, operations, commit_message=message, revision=revision)
        if named not in (None, commit.oid):
            raise ValueError(
                f"The files are pushed, as commit {commit.oid[:8]} of {repo_id}, but the tag {tag!r} names commit"
                f" {str(named)[:8]} and is not moved; repeat with another --tag to name this one."
            )
    if tag is not None and named is None:
        with _in_one_sentence(repo_id, f"the files are pushed, as commit {commit.oid[:8]}, but have no tag"):
            api.create_tag(repo_id, tag=tag, revision=commit.oid)
    return Pushed(commit.oid, commit.oid != before, url)


def _tagged(api: HfApi, repo_id: str, tag: str | None) -> str | None:
    """The commit that a tag names, if there is one."""
    refs = api.list_repo_refs(repo_id).tags if tag is not None else []
    return next((ref.target_commit for ref in refs if ref.name == tag), None)


@contextmanager
def _in_one_sentence(repo_id: str, done: str = "nothing is half done") -> Iterator[None]:
    """What can go wrong on the way to the Hub, as a sentence for the user; the token is in none of them."""
    try:
        yield
    except OfflineModeIsEnabled:
        raise ValueError("HF_HUB_OFFLINE is set, so nothing can be pushed; unset it and repeat.") from None
    except (HTTPError, OSError, RuntimeError) as error:
        if _speaks_no_xet(error):
            raise ValueError(
                f"The server at {constants.ENDPOINT} does not take uploads by Xet, which the Hub's client prefers; set"
                " HF_HUB_DISABLE_XET=1 and repeat the same command."
            ) from None
        cause: BaseException = error
        while cause.__cause__ is not None and not isinstance(cause, HfHubHTTPError):  # hidden in a RuntimeError
            cause = cause.__cause__
        again = f"{done}: repeat the same command to go on"
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


def _speaks_no_xet(error: BaseException | None) -> bool:
    """Whether the client asked for a token of the Hub's storage, and the server knows of none."""
    while error is not None:
        if re.search(r"xet-\w+-token", str(error)):
            return True
        error = error.__cause__ or error.__context__
    return False


def _said(error: BaseException) -> str:
    text = getattr(error, "server_message", None) or str(error) or type(error).__name__
    token = get_token()
    return " ".join((text.replace(token, "…") if token else text).split())[:200].rstrip(".")


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="s3zoo publish",
        description="Make a Hugging Face Hub repository of a run's network, or of a model folder (also of a detector, a"
        " segmenter, a model that answers questions), and push it. Pushing"
        " the same again changes nothing; a push that failed can be repeated.",
        epilog="example: s3zoo publish runs/digits --dry-run, then s3zoo publish runs/digits --to my-name/s3-digits",
    )
    parser.add_argument("source", type=Path, help="folder of a search or training, or of a model")
    parser.add_argument("--to", metavar="OWNER/NAME", help="push to this repository on the Hub; it is made if need be")
    parser.add_argument("--out", type=Path, metavar="DIR", help="write the repository into this folder")
    parser.add_argument("--dry-run", action="store_true", help="show files and card; touch neither network nor --out")
    parser.add_argument("--budget", metavar="N", help="of a run with several budgets, which (number, or the budget)")
    parser.add_argument("--supernet", action="store_true", help="of a finished search: all of its networks in one file")
    parser.add_argument("--title", help="of the card (default: the repository's name, or what the network is)")
    parser.add_argument("--sample", type=Path, metavar="IMAGE", help="show on the card what the model says of it")
    parser.add_argument("--question", help="about the --sample, for models that answer questions")
    parser.add_argument("--latency", action="store_true", help="measure it on this CPU, one thread, for the card")
    parser.add_argument(
        "--beside", type=Path, action="append", default=[], metavar="RUN",
        help="show on the card what this finished run reached, too: a seed, a control (repeatable)",
    )  # fmt: skip
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
        check_target(args.to, token=not args.dry_run, tag=args.tag, revision=args.revision)
    if args.onnx:
        check_onnx(ONNX)  # before anything is written
    source = args.source.expanduser() if args.supernet else find_model(args.source.expanduser(), args.budget)
    if args.out is not None and not args.dry_run:
        check_writable(args.out.expanduser(), "--out", folder=True)
        runs = [place.expanduser() for place in (args.source, *args.beside)]
        check_not_read(args.out.expanduser(), "--out", [at for run in runs for at in (run, *run.glob("model*"))])
    with tempfile.TemporaryDirectory() as scratch, tempfile.TemporaryDirectory() as whole:
        if args.supernet:
            Networks(FinishedRun(source), None).write_whole(Path(whole))
            source = Path(whole)
        out = Path(scratch) if args.dry_run or args.out is None else args.out.expanduser()
        options = {"repo_id": args.to, "license": args.license, "layout": args.layout, "onnx": args.onnx}
        options["extras"] = Extras(args.title, args.sample, args.question, args.latency, args.beside)
        config, files = make_repository(source, out, **options)
        for path in files:
            print(f"{path.name:<20} {path.stat().st_size:>12,} bytes  sha256 {sha256(path)}")
        task = "architecture" not in config
        if not (config["s3zoo"] if task else config["pretrained_cfg"]).get("license"):
            print("The weights have no licence, so nobody may use them; say one with --license.", file=sys.stderr)
        if args.dry_run:
            print("\n" + (out / "README.md").read_text(encoding="utf-8"), end="")
            return 0
        if args.out is not None:
            print(f"load it with: {_loading(config, f'local-dir:{out}')}")
        if args.to is not None:
            own = tasks.title_of(config) if task else f"{config['architecture']} network {config['s3zoo']['arch_key']}"
            message = args.message or own
            options = {"private": args.private, "revision": args.revision, "tag": args.tag, "message": message}
            pushed = push(files, args.to, **options)
            done = "pushed to" if pushed.changed else "nothing to push: all of it is already at"
            at = args.tag or args.revision
            name = f"{args.to}@{at}" if at else args.to
            print(f"{done} {pushed.url}, commit {pushed.commit}")
            print(f"load it with: {_loading(config, f'hf-hub:{name}')}")
    return 0


def _loading(config: dict[str, Any], name: str) -> str:
    if "architecture" in config:
        imports = "import s3zoo, timm" if "arch" in config["model_args"] else "import timm"
        return f'{imports}; timm.create_model("{name}", pretrained=True)'
    place, _, where = name.partition(":")
    repo, _, revision = where.partition("@")
    at = f" --revision {revision}" if revision else ""
    get, folder = (f"hf download {repo}{at} --local-dir FOLDER; ", "FOLDER") if place == "hf-hub" else ("", where)
    return f"{get}s3zoo {tasks.TASKS[tasks.task_of(config)][2].replace('FOLDER', folder)}"
