"""The command `s3zoo`: finds the subcommand, runs it, and turns a user's mistake into one line.

A subcommand is a function `main(argv: list[str] | None = None) -> int` with its own argument parser in the module that
does the work. It is imported when it is called, so that `s3zoo --help` does not wait for torch.
"""

import argparse
import errno
import importlib
import io
import os
import signal
import sys
import threading
from collections.abc import Callable
from typing import NamedTuple, NoReturn

from s3zoo import __version__
from s3zoo.checks import nearest
from s3zoo.files import shown


class Command(NamedTuple):
    target: str  # module:function
    help: str


COMMANDS = {
    "doctor": Command("s3zoo.doctor:main", "print versions, devices, threads and which optional parts are present"),
    "convert": Command("s3zoo.convert:main", "turn an official checkpoint into safetensors and config.json"),
    "search": Command("s3zoo.search.command:main", "search an architecture"),
    "report": Command("s3zoo.search.report:main", "show what a search did, on one page and as figures for papers"),
    "specialise": Command(
        "s3zoo.search.specialise:main", "a network of a trained supernet for a device or size; nothing is trained"
    ),
    "extract": Command("s3zoo.search.extract:main", "write networks of a finished search's supernet as model folders"),
    "train": Command("s3zoo.training.command:main", "train, finetune, probe or distil a model on your images"),
    "docs": Command("s3zoo.manual:main", "list the documents that come with s3zoo, or print one"),
    "config": Command("s3zoo.training.registry:main", "list the configs, or write one as a Python file of your own"),
    "evaluate": Command("s3zoo.evaluate:main", "accuracy, size, speed and memory of models on a dataset"),
    "verify": Command("s3zoo.verify:main", "compare the accuracy of published weights with that on their card"),
    "predict": Command("s3zoo.predict:main", "the five likeliest classes of an image"),
    "inspect": Command("s3zoo.inspection:main", "draw what a network attends to: maps, distances, similarity of heads"),
    "publish": Command("s3zoo.hub:main", "make a Hugging Face Hub repository of a run or a model folder, and push it"),
    "export": Command("s3zoo.export:main", "write a model for plain timm or as ONNX, checked against PyTorch"),
    "study": Command("s3zoo.study:main", "work through a list of runs, killed and resumed at will"),
    "zoo": Command("s3zoo.zoo:main", "list every model; write the page to browse them and the model cards"),
    "train_mm": Command("s3zoo.transfer.mm.command:train", "train a detector or segmenter (mmdet, mmseg)"),
    "test_mm": Command("s3zoo.transfer.mm.command:test", "evaluate a detector or segmenter"),
    "predict_mm": Command("s3zoo.transfer.mm.command:predict", "draw boxes, masks or segments on images"),
    "flops_mm": Command("s3zoo.transfer.mm.flops:main", "parameters and FLOPs of a detector or segmenter, by part"),
    "vqa": Command("s3zoo.transfer.vqa.command:main", "train, evaluate and ask visual question answering"),
}

FIRST_SPEAKS = 20.0  # seconds that the other processes of torchrun give the first one
# What a command may raise to tell the user, in one sentence, what to do differently.
_USER_ERRORS = (
    ValueError,
    FileNotFoundError,
    FileExistsError,
    PermissionError,
    NotADirectoryError,
    IsADirectoryError,
)
# An OSError that has a number is the system's, and the words are ours.
_PLACE = "give a place that can be written, for example with --out"
_USER_ERRNOS = {
    errno.ENOSPC: "The disk is full: {place} could not be written; free some space and repeat the command.",
    errno.EDQUOT: "The disk quota is used up: {place} could not be written; free some space and repeat the command.",
    errno.EROFS: f"{{place}} is on a read-only file system; {_PLACE}.",
    errno.EACCES: "{place} may not be read or written by you; change its mode or give another path.",
    errno.EPERM: "{place} may not be read or written by you; change its mode or give another path.",
    errno.ENOENT: "There is no {place}; give a path that exists.",
    errno.EEXIST: "{place} exists already; give another path.",
    errno.ENOTDIR: "{place} cannot be, as a part of it is a file and no folder; give another path.",
    errno.EISDIR: "{place} is a folder, but must be a file; give another path.",
    errno.ENAMETOOLONG: "{place} is longer than the name of a file may be; give a shorter path.",
    errno.EIO: "{place} cannot be read or written (input/output error); look after the disk, or give another path.",
    errno.ENXIO: "{place} is no file that can be opened; give another path.",
    errno.EMFILE: "Too many files are open to open {place}; raise the limit (`ulimit -n`) and repeat the command.",
    errno.ELOOP: "{place} is a link that leads back to itself; give another path or remove the link.",
}


def run(command: Callable[[list[str]], int], argv: list[str]) -> int:
    """Run one subcommand and give its exit code: 2 for a user's mistake, 130 when interrupted.

    With S3ZOO_DEBUG=1 in the environment, exceptions pass through with their traceback.
    """
    if not _first():
        argparse.ArgumentParser.error = _misused  # type: ignore[assignment, method-assign]
    try:
        code = command(argv)
        sys.stdout.flush()
        return code
    except BrokenPipeError:  # the reader went away, as in `s3zoo doctor | head -1`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except KeyboardInterrupt:
        if _debug():
            raise
        print("s3zoo: interrupted", file=sys.stderr)
        return 130
    except (ValueError, OSError, RuntimeError) as error:
        number, name = getattr(error, "errno", None), getattr(error, "filename", None)
        if isinstance(error, RuntimeError) and str(error).startswith("Symlink loop"):  # pathlib's, before Python 3.13
            number, name = errno.ELOOP, str(error).partition("'")[2].rstrip("'")
        if _debug() or not (isinstance(error, _USER_ERRORS) or number in _USER_ERRNOS):
            raise
        text = str(error) or type(error).__name__
        if number in _USER_ERRNOS:
            name = os.fsdecode(name or "a file")
            text = _USER_ERRNOS[number].format(place=repr(name if len(name) < 200 else f"{name[:200]}…"))
        if _speaks():
            print(f"s3zoo: {shown(' '.join(text.split()))}", file=sys.stderr)
        return 2


def _speaks() -> bool:
    """Whether this process says what is wrong. Under torchrun the first one does; another, which as a rule met the same
    mistake, waits until torchrun ends it. If that does not happen the mistake is its own, and it speaks."""
    if _first():
        return True
    ended = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: ended.set())
    return not ended.wait(FIRST_SPEAKS)


def _first() -> bool:
    return os.environ.get("RANK", "0") == "0"


def _misused(parser: argparse.ArgumentParser, message: str) -> NoReturn:
    """In place of argparse's own, which every process of torchrun would say at once."""
    raise ValueError(f"{parser.prog}: {message}")


def main(argv: list[str] | None = None) -> int:
    if sys.platform == "win32":  # locks and signals are POSIX
        print("s3zoo: Windows is not supported; run s3zoo on Linux, macOS or in WSL 2.", file=sys.stderr)
        return 2
    argv = sys.argv[1:] if argv is None else argv
    if isinstance(sys.stdout, io.TextIOWrapper):  # names of files may be in another encoding
        sys.stdout.reconfigure(errors="backslashreplace")
    width = max(map(len, COMMANDS))
    parser = argparse.ArgumentParser(
        prog="s3zoo",
        description="Searched vision transformers as timm models.",
        epilog="subcommands:\n"
        + "".join(f"  {name:{width}}  {command.help}\n" for name, command in COMMANDS.items())
        + "\n`s3zoo <subcommand> --help` lists its options. S3ZOO_DEBUG=1 shows tracebacks.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"s3zoo {__version__}")
    parser.add_argument("subcommand", nargs="?")
    # Only what stands before the subcommand is ours; the rest belongs to the subcommand's own parser.
    name = parser.parse_args(argv[:1]).subcommand
    if name is None:
        parser.print_help()
        return 0
    if name not in COMMANDS:
        hint = nearest(name, COMMANDS, f"the subcommands are {', '.join(COMMANDS)}.")
        if _speaks():
            print(f"s3zoo: there is no subcommand {name!r}; {hint}", file=sys.stderr)
        return 2
    module, _, function = COMMANDS[name].target.partition(":")
    return run(lambda rest: getattr(importlib.import_module(module), function)(rest), argv[1:])


def _debug() -> bool:
    return os.environ.get("S3ZOO_DEBUG", "") not in ("", "0")
