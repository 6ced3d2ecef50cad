"""Searches that are killed, stopped, restarted and shared by processes end with the same bits."""

import contextlib
import hashlib
import itertools
import json
import os
import re
import select
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from test_search import HERE, ONE, RACING, TOY, TOY_GLIT, finished, glit, raced, search, toy

from s3zoo.training import accuracy as counting
from s3zoo.training.accuracy import resumable_accuracy, wilson
from s3zoo.training.config import overridden
from s3zoo.training.data import ImageData
from s3zoo.training.loop import Interrupted, Stop

__all__ = ["finished", "glit", "raced"]  # fixtures
TOOL = HERE.parent / "tools" / "search.py"


def fingerprint(folder: Path) -> dict[str, str]:
    """What a run leaves behind that must not depend on how often it was interrupted."""
    kept = [p for p in sorted(folder.rglob("*")) if p.is_file() and p.suffix in (".json", ".jsonl", ".safetensors")]
    # run.json and config.json name the commit, clock.json has seconds; of checkpoints only the moments differ, not
    # where they lead.
    names = [str(p.relative_to(folder)) for p in kept if p.name not in ("run.json", "config.json", "clock.json")]
    newest = {
        str(max(f.glob("step-*")).relative_to(folder)) for f in {p.parent.parent for p in folder.rglob("state.json")}
    }
    names = [n for n in names if "/step-" not in n or n.rsplit("/", 1)[0] in newest]
    # Files name their run, which is another one where settings differ that come to the same.
    contents = {name: re.sub(rb'"run": "[0-9a-f]{16}"', b"", (folder / name).read_bytes()) for name in names}
    return {name: hashlib.sha256(content).hexdigest() for name, content in contents.items()}


def arguments(folder: Path, settings: tuple[str, ...], config: Path = TOY) -> list[str]:
    words = (part for setting in settings for part in ("--set", setting))
    return [str(config), "--no-report", "--out", str(folder), *words]


def environment() -> dict[str, str]:
    return {**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "PYTHONPATH": str(HERE.parent)}


def start(folder: Path, *settings: str, launcher: tuple[str, ...] = (), **options) -> subprocess.Popen:
    """The real command."""
    return subprocess.Popen(
        [sys.executable, *launcher, str(TOOL), *arguments(folder, settings, **options)], env=environment(), text=True,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True,
    )  # fmt: skip


class Born:
    """A process of the nursery; as much of Popen as is needed here."""

    def __init__(self, nursery: subprocess.Popen, output: Path, arguments: list[str]) -> None:
        self.nursery, self.output, self.returncode = nursery, output, None
        print(json.dumps({"arguments": arguments, "output": str(output)}), file=nursery.stdin, flush=True)
        self.pid = int(nursery.stdout.readline())

    def poll(self) -> int | None:
        if self.returncode is None and select.select([self.nursery.stdout], [], [], 0)[0]:
            self.wait()
        return self.returncode

    def wait(self) -> None:
        self.returncode = int(self.nursery.stdout.readline())

    def communicate(self, timeout: float) -> tuple[str, None]:
        deadline = time.monotonic() + timeout
        while self.poll() is None and time.monotonic() < deadline:
            time.sleep(0.01)
        return self.output.read_text(), None


@pytest.fixture(scope="module")
def born(tmp_path_factory):
    """Like `start`, without its seconds."""
    outputs = tmp_path_factory.mktemp("outputs")
    nursery = subprocess.Popen(
        [sys.executable, str(HERE / "nursery.py")], env=environment(), text=True, bufsize=1,
        stdin=subprocess.PIPE, stdout=subprocess.PIPE,
    )  # fmt: skip
    numbers = itertools.count()
    yield lambda folder, *settings, **options: Born(
        nursery, outputs / str(next(numbers)), arguments(folder, settings, **options)
    )
    nursery.stdin.close()
    nursery.wait(60)


def wait_for(process: subprocess.Popen | Born, pattern: str, folder: Path, lines: int = 0) -> None:
    """Until a file is there (with so many lines), as long as the run goes on."""
    deadline = time.monotonic() + 240
    while time.monotonic() < deadline:
        for found in folder.glob(pattern):
            with contextlib.suppress(FileNotFoundError):  # files of what is unfinished come and go
                if not lines or len(found.read_text().splitlines()) >= lines:
                    return
        if process.poll() is not None:
            pytest.fail(f"ended before {pattern}: {process.communicate(timeout=9)[0]}")
        time.sleep(0.002)
    pytest.fail(f"{pattern} never came")


def killed_and_resumed(start, folder: Path, phases, *settings: str, workers=(0, 2), **options) -> str:
    """Start, kill and start again, once for each phase, then let it end; what it says at last.

    The number of loader workers alternates between the starts.
    """
    workers = itertools.cycle(workers)
    for pattern, lines in phases:
        process = start(folder, *settings, f"data.workers={next(workers)}", **options)
        wait_for(process, pattern, folder, lines)
        kill(process)
        assert not (folder / "result.json").exists()
    process = start(folder, *settings, f"data.workers={next(workers)}", **options)
    output = process.communicate(timeout=240)[0]
    assert process.returncode == 0, output
    return output


def kill(process: subprocess.Popen | Born) -> None:
    """With its children: torchrun's ranks have sessions of their own, and so do loader workers."""
    for child in children(process.pid):
        os.kill(child, signal.SIGKILL)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()


def children(pid: int) -> list[int]:
    found = subprocess.run(["pgrep", "-P", str(pid)], capture_output=True, text=True).stdout
    return [int(child) for child in found.split()]


PHASES = [
    ("space0/supernet/step-*", 0),  # the first supernet
    ("space0/scores.jsonl", 1),  # scores of the space search
    ("space1/supernet/step-*", 0),  # after the decision
    ("space1/evaluated.jsonl", 1),  # evolution
    ("space1/search-0/finish-0/step-*", 0),  # finetuning
]


@pytest.mark.parametrize("workers", [0, 2])
def test_killed_in_every_phase_it_ends_with_the_same_bits(finished, born, tmp_path, workers):
    assert (finished / "space1/search-0/finish-0").exists(), "the toy visits two spaces"
    assert "resumed" in killed_and_resumed(born, tmp_path, PHASES, workers=[workers])
    assert fingerprint(tmp_path) == fingerprint(finished)


def test_killed_while_measuring_latency_and_auditing_it_ends_with_the_same_bits(born, tmp_path):
    """What is measured differs from run to run, so the run to compare with takes the table of the killed one."""
    settings = (
        "space_search.audit=2", "space_search.search_each_space=True", "final.top=1", "space_search.samples=10",
        "arch_search.budgets=('params<=6K, latency<=1000ms',)", "arch_search.latency_repeats=2",
    )  # fmt: skip
    killed, whole = tmp_path / "killed", tmp_path / "whole"
    phases = [
        ("latency.part.jsonl", 3),  # of the first space
        ("space0/search-0/finish-0/step-*", 0),  # the best of a space that is left again
        ("latency.part.jsonl", 1),  # of the second space
        ("space1/audit/scores.jsonl", 1),
        ("space1/audit/finetune-*/step-*", 0),
        ("space1/audit/retrain-*/step-*", 0),
    ]
    killed_and_resumed(born, killed, phases, *settings)
    assert not list(killed.rglob("*.part.jsonl"))
    kept = json.loads((killed / "clock.json").read_text())
    whole.mkdir()
    (whole / "clock.json").write_text(json.dumps(kept | {"phases": [], "run": ""}))
    timed = [json.loads(line) | {"run": ""} for line in (killed / "timed.jsonl").read_text().splitlines()]
    (whole / "timed.jsonl").write_text("".join(json.dumps(row) + "\n" for row in timed))
    search(overridden(toy(), [*settings, f"arch_search.latency_table={killed / 'latency.json'}"]), whole)
    assert fingerprint(killed) == fingerprint(whole)


def test_glit_killed_in_both_stages_ends_with_the_same_bits(glit, born, tmp_path):
    places = ("space0/supernet/step-*", 0), ("space0/evaluated.jsonl", 1)
    phases = [*places, *((pattern.replace("space0", "space1"), lines) for pattern, lines in places)]
    killed_and_resumed(born, tmp_path, phases, config=TOY_GLIT)
    assert fingerprint(tmp_path) == fingerprint(glit)


def test_killed_in_the_middle_of_a_race_it_ends_with_the_same_bits(raced, born, tmp_path):
    phases = [("space0/evaluated.part.jsonl", lines) for lines in (1, 20)]
    phases += [("space0/evaluated.jsonl", 40), ("space0/search-0/winner.json", 0)]
    killed_and_resumed(born, tmp_path, phases, *RACING)
    assert fingerprint(tmp_path) == fingerprint(raced)


def test_killed_after_the_last_test_image_it_concludes(finished, tmp_path):
    """All but the conclusion is there: the count of test images is taken from its file."""
    shutil.copytree(finished, tmp_path, dirs_exist_ok=True)
    (tmp_path / "result.json").unlink()
    shutil.rmtree(tmp_path / "model")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ImageData, "test_batches", lambda *_: pytest.fail("opened again"))
        search(toy(), tmp_path)
    assert fingerprint(tmp_path) == fingerprint(finished)


def test_sigterm_saves_and_says_how_to_resume(tmp_path):
    process = start(tmp_path, "supernet.epochs=50", "supernet.checkpoint_seconds=1000")
    wait_for(process, "space0/supernet/epochs.jsonl", tmp_path)
    process.send_signal(signal.SIGTERM)
    output = process.communicate(timeout=120)[0]
    assert process.returncode == 130 and "the same command resumes there" in output
    assert list(tmp_path.glob("space0/supernet/step-*"))


# Ranks

TORCHRUN = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")


@pytest.fixture(scope="module")
def two_ranks(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("ranks")
    process = start(folder, launcher=TORCHRUN)
    output = process.communicate(timeout=400)[0]
    assert process.returncode == 0, output
    return folder


def supernet_weights(folder: Path) -> dict[str, torch.Tensor]:
    from safetensors.torch import load_file

    newest = max((folder / "space0/supernet").glob("step-*"))
    tensors = load_file(newest / "tensors.safetensors")
    return {name: t for name, t in tensors.items() if name.startswith("weight.")}


def test_two_ranks_train_what_one_process_trains(finished, two_ranks):
    one, two = supernet_weights(finished), supernet_weights(two_ranks)
    assert one.keys() == two.keys() and len(one) > 10
    for name, weight in one.items():
        torch.testing.assert_close(two[name], weight, rtol=1e-3, atol=2e-4, msg=name)
    winners = json.loads((two_ranks / "result.json").read_text())["winners"]
    assert winners[0]["params"] <= 6_000


def test_two_ranks_race_to_what_one_process_finds(raced, tmp_path):
    """In the same supernet: answers are shared, decisions are the first rank's, also after a kill."""
    shutil.copytree(raced / "space0/supernet", tmp_path / "space0/supernet")
    shutil.copy(raced / "run.json", tmp_path)
    output = killed_and_resumed(
        start, tmp_path, [("space0/evaluated.part.jsonl", 20)], *RACING, workers=[0], launcher=TORCHRUN
    )
    assert "generation" in output and "finished" not in output
    assert fingerprint(tmp_path) == fingerprint(raced)


def test_two_ranks_search_a_network_with_batch_norms(glit, tmp_path):
    """GLiT's: their statistics are of the whole batch in training, and of each subnet in scoring."""
    process = start(tmp_path, config=TOY_GLIT, launcher=TORCHRUN)
    output = process.communicate(timeout=400)[0]
    assert process.returncode == 0, output
    one, two = supernet_weights(glit), supernet_weights(tmp_path)
    assert one.keys() == two.keys()
    for name, weight in one.items():
        if ".conv.bias" not in name:  # a batch norm follows: its gradient is nought but noise, which Adam scales up
            torch.testing.assert_close(two[name], weight, rtol=1e-3, atol=2e-4, msg=name)
    best = [json.loads((folder / "result.json").read_text())["winners"][0]["accuracy"] for folder in (glit, tmp_path)]
    assert best[0] == pytest.approx(best[1], abs=100 * 2.1 / 60)  # two of the held-out images


def test_a_killed_rank_is_restarted_and_the_result_is_the_same(two_ranks, tmp_path):
    process = start(tmp_path, launcher=(*TORCHRUN, "--max-restarts=1"))
    wait_for(process, "space0/supernet/step-*", tmp_path)
    _, second = children(process.pid)
    os.kill(second, signal.SIGKILL)
    output = process.communicate(timeout=400)[0]
    assert process.returncode == 0, output
    assert fingerprint(tmp_path) == fingerprint(two_ranks)


# Counting


def test_a_long_count_goes_on_where_it_was(tmp_path, monkeypatch):
    """Twelve images, right where the target is 0, in batches of 4, 0 (none readable), 5 and 3."""
    net = torch.nn.Linear(2, 2, bias=False)
    net.weight.data = torch.eye(2)
    targets = [[0, 0, 1, 0], [], [0, 1, 1, 1, 1], [0, 0, 0]]
    batches = [(torch.tensor([[1.0, 0.0]] * len(t)), torch.tensor(t, dtype=torch.long)) for t in targets]
    low, high = wilson(7, 12)
    whole = {"top1": 700 / 12, "low": 100 * low, "high": 100 * high, "images": 12}
    stop, seen = Stop(), []

    def from_batch(first):
        for index in range(first, 4):
            seen.append(index)
            stop.asked = len(seen) == 3
            yield batches[index]

    path = tmp_path / "score.json"
    with pytest.raises(Interrupted, match="stopped after 9 images"):
        resumable_accuracy(path, net, from_batch, ONE, stop)
    stop.asked = False
    assert resumable_accuracy(path, net, from_batch, ONE, stop) == whole and seen == [0, 1, 2, 3]
    assert resumable_accuracy(path, net, from_batch, ONE, stop) == whole and seen == [0, 1, 2, 3]

    # A crash finds what was secured, here with every batch.
    def crashes(first):
        yield from batches[first:2]
        raise KeyboardInterrupt

    monkeypatch.setattr(counting, "AUTOSAVE_SECONDS", -1.0)
    path.unlink()
    with pytest.raises(KeyboardInterrupt):
        resumable_accuracy(path, net, crashes, ONE, stop)
    assert json.loads(path.read_text()) == {"batches": 2, "right": 3, "images": 4, "whole": False}
