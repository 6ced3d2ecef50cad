"""Work in pieces: whatever is killed, stopped or shared, every piece is done and recorded once."""

import io
import itertools
import os
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from s3zoo.files import Records
from s3zoo.training.distributed import Ranks
from s3zoo.training.log import Log
from s3zoo.training.loop import Interrupted, Stop
from s3zoo.training.resumable import fill_arrays, open_array, resumable, row_groups

ONE = Ranks(0, 1, torch.device("cpu"))


class Meeting:
    """Where the threads that stand for ranks exchange what they have."""

    def __init__(self, world: int) -> None:
        self.barrier, self.places = threading.Barrier(world, timeout=30), [None] * world


class Together(Ranks):
    """A rank among threads instead of processes."""

    def __init__(self, rank: int, meeting: Meeting) -> None:
        super().__init__(rank, len(meeting.places), torch.device("cpu"))
        object.__setattr__(self, "meeting", meeting)

    def _all(self, own: Any) -> list[Any]:
        self.meeting.places[self.rank] = own
        self.meeting.barrier.wait()
        found = list(self.meeting.places)
        self.meeting.barrier.wait()
        return found

    def gather(self, own: list[Any]) -> list[Any]:
        return [value for rank in zip(*self._all(own), strict=True) for value in rank]

    def from_first(self, value: Any) -> Any:
        return self._all(value)[0]

    def wait(self) -> None:
        self._all(None)


def on_ranks(world: int, job: Callable[[Ranks], Any]) -> list[Any]:
    """What the job gives on each rank; an exception counts as what it gives."""
    meeting, found = Meeting(world), [None] * world

    def one(rank: int) -> None:
        try:
            found[rank] = job(Together(rank, meeting))
        except BaseException as error:
            if not isinstance(error, Interrupted):  # the others would wait for this one
                meeting.barrier.abort()
            found[rank] = error

    threads = [threading.Thread(target=one, args=(rank,)) for rank in range(world)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return found


class Squares:
    """Squares of numbers; each is worked on for a second of its own clock. Killed or stopped after so many."""

    def __init__(self, killed: int = -1, stopped: int = -1) -> None:
        self.done: list[int] = []
        self.stop, self.killed, self.stopped = Stop(), killed, stopped

    def __call__(self, own: list[int]) -> Iterator[dict[str, int]]:
        for number in own:
            if len(self.done) == self.killed:
                raise KeyboardInterrupt
            self.done.append(number)
            self.stop.asked = self.stop.asked or len(self.done) == self.stopped
            yield {"number": number, "square": number**2}

    def clock(self) -> float:
        return float(len(self.done))


def squares(count: int, work: Squares, path: Path | None, ranks: Ranks = ONE, **options: Any) -> Counter[int]:
    """All squares, from the records of earlier attempts and those that are new."""
    records = ranks.rank0_first(lambda: Records(path, write=ranks.first))
    known = Counter(row["number"] for row in records.rows)
    options = {"reached": lambda: f"stopped after {len(records.rows)}", "clock": work.clock, **options}
    items = [number for number in range(count) if number not in known]
    for rows in resumable(items, work, records, ranks, work.stop, **options):
        assert rows and all(row["square"] == row["number"] ** 2 for row in rows)
        known.update(row["number"] for row in rows)
    assert known == Counter(row["number"] for row in records.rows)
    return known


def test_every_kill_point_loses_less_than_a_portion(tmp_path: Path) -> None:
    """Nine pieces, a portion every three seconds: at most the two since the last meeting are done again."""
    for killed in range(9):
        path = tmp_path / f"{killed}.jsonl"
        first, second = Squares(killed=killed), Squares()
        with pytest.raises(KeyboardInterrupt):
            squares(9, first, path, every=3.0)
        kept = [row["number"] for row in Records(path).rows]
        assert kept == first.done[: 3 * (killed // 3)]
        assert squares(9, second, path, every=3.0) == Counter(range(9))
        assert kept + second.done == list(range(9))


@given(
    count=st.integers(0, 12), every=st.floats(0, 5), most=st.integers(0, 4), ends=st.lists(st.integers(1, 5)),
    stops=st.booleans(),
)  # fmt: skip
def test_interrupted_again_and_again_every_piece_is_recorded_once(tmp_path_factory, count, every, most, ends, stops):
    path = tmp_path_factory.mktemp("squares") / "squares.jsonl"
    for end in ends:
        work = Squares(stopped=end) if stops else Squares(killed=end)
        before = len(Records(path).rows)
        try:
            squares(count, work, path, every=every, most=most)
        except KeyboardInterrupt:
            assert not stops
        except Interrupted as reason:  # what was begun is recorded, and the user hears how far it is
            assert stops and len(Records(path).rows) == before + end == int(str(reason).split()[2].rstrip(";"))
            assert "the same command resumes" in str(reason)
    assert squares(count, Squares(), path) == Counter(range(count))


def test_a_stop_that_was_asked_for_before_lets_one_piece_be_done(tmp_path: Path) -> None:
    """So that a run that is stopped at every start ends nevertheless."""
    for attempt in itertools.count(1):
        work = Squares()
        work.stop.asked = True
        try:
            assert squares(4, work, tmp_path / "s.jsonl") == Counter(range(4))
            break
        except Interrupted:
            assert work.done == [attempt - 1]
    assert attempt <= 5


@pytest.mark.parametrize("world", [2, 3])
@pytest.mark.parametrize("stopped", [-1, 1, 3])
def test_ranks_share_the_work_and_stop_together(tmp_path: Path, world: int, stopped: int) -> None:
    """Rank 1 alone is asked to stop; then all stop, and two ranks more or less go on where these ended."""
    path, works = tmp_path / "squares.jsonl", [Squares(stopped=stopped if rank == 1 else -1) for rank in range(world)]
    found = on_ranks(world, lambda ranks: squares(11, works[ranks.rank], path, ranks, every=2.0))
    assert [set(work.done) & set(range(rank, 11, world)) for rank, work in enumerate(works)] == [
        set(work.done) for work in works
    ]
    if stopped < 0:
        assert found == [Counter(range(11))] * world
    else:
        assert all(isinstance(error, Interrupted) for error in found), found
        assert Counter(row["number"] for row in Records(path).rows) == Counter(n for work in works for n in work.done)
    rest = [Squares() for _ in range(world + 1)]
    assert on_ranks(world + 1, lambda ranks: squares(11, rest[ranks.rank], path, ranks)) == [Counter(range(11))] * (
        world + 1
    )
    assert Counter(n for work in (*works, *rest) for n in work.done) == Counter(range(11))


@pytest.mark.parametrize("world", [1, 2, 3])
def test_a_stop_that_is_asked_for_when_all_is_done_interrupts_nothing(tmp_path: Path, world: int) -> None:
    """It comes to the last rank, between its last piece and the meeting: there is nothing to resume."""
    path, works = tmp_path / "squares.jsonl", [Squares() for _ in range(world)]

    def job(ranks: Ranks) -> Counter[int]:
        work = works[ranks.rank]

        def secure() -> None:
            work.stop.asked = ranks.rank == world - 1

        return squares(7, work, path, ranks, secure=secure)

    assert on_ranks(world, job) == [Counter(range(7))] * world
    assert works[-1].stop.asked


def test_one_item_is_work_of_the_first_rank(tmp_path: Path) -> None:
    """A stream of pieces that the other ranks hear of."""

    def job(ranks: Ranks) -> list[int]:
        records = Records(None)
        work = lambda own: ({"piece": i} for _ in own for i in range(5))  # noqa: E731
        list(resumable([0], work, records, ranks, Stop(), reached=str, most=2))
        return [row["piece"] for row in records.rows]

    assert on_ranks(3, job) == [[0, 1, 2, 3, 4]] * 3


# Arrays

ROWS = 23
TABLE = {"a": np.arange(ROWS * 6, dtype="<f4").reshape(ROWS, 2, 3), "b": np.arange(ROWS, dtype="<i8")}
COLUMNS: Any = {name: (array.dtype.str, array.shape) for name, array in TABLE.items()}


def fill(folder: Path, ranks: Ranks = ONE, *, killed: int = -1, **options: Any) -> list[range]:
    done: list[range] = []

    def work(own: list[range]) -> Iterator[dict[str, np.ndarray]]:
        for group in own:
            if len(done) == killed:
                raise KeyboardInterrupt
            done.append(group)
            yield {name: array[group.start : group.stop] for name, array in TABLE.items()}

    columns, stop = options.pop("columns", COLUMNS), options.pop("stop", Stop())
    meter = Log(None, speaks=False).progress("rows", ROWS)
    options = {"name": "rows", "meter": meter, "every": 0.0, **options}
    fill_arrays(folder, columns, row_groups(ROWS, 4), work, ranks, stop, **options)
    assert meter.done >= ROWS or not done
    return done


def check(folder: Path) -> None:
    assert {path.name for path in folder.iterdir()} == {"a.npy", "b.npy"}
    assert all(np.array_equal(np.load(folder / f"{name}.npy"), array) for name, array in TABLE.items())


@pytest.mark.parametrize("killed", range(6))
def test_arrays_are_continued_where_they_were_secured(tmp_path: Path, killed: int) -> None:
    with pytest.raises(KeyboardInterrupt):
        fill(tmp_path, killed=killed)
    assert not list(tmp_path.glob("*.npy"))
    for part in tmp_path.glob("*.part"):  # what lies beyond is not trusted
        np.lib.format.open_memmap(part, "r+")[4 * killed :] = 7
    assert len(fill(tmp_path)) == 6 - killed
    check(tmp_path)


def test_arrays_of_several_ranks(tmp_path: Path) -> None:
    stop = Stop()
    stop.asked = True
    found = on_ranks(2, lambda ranks: fill(tmp_path, ranks, stop=stop))
    assert all(isinstance(error, Interrupted) for error in found), found
    assert str(found[0]).startswith("rows: stopped after 8 of 23 images")
    assert list(map(len, on_ranks(3, lambda ranks: fill(tmp_path, ranks)))) == [2, 1, 1]
    check(tmp_path)


def test_other_columns_begin_anew_and_some_of_them_do_not(tmp_path: Path) -> None:
    """A kill between the renamings leaves some columns whole; a deeper decoder asks for others."""
    with pytest.raises(KeyboardInterrupt):
        fill(tmp_path, killed=2)
    assert len(fill(tmp_path, columns={"a": COLUMNS["a"]})) == 4
    assert (tmp_path / "a.npy").exists() and not (tmp_path / "b.npy").exists()
    with pytest.raises(KeyboardInterrupt):
        fill(tmp_path, columns={"b": COLUMNS["b"]}, killed=1)
    assert len(fill(tmp_path)) == 6
    check(tmp_path)


def npy(array: np.ndarray) -> bytes:
    stream = io.BytesIO()
    np.save(stream, array)
    return stream.getvalue()


WHOLE = npy(TABLE["a"])
DAMAGED = {
    "empty": b"", "cut": WHOLE[:-1], "cut in its header": WHOLE[:40], "a web page": b"<html>",
    "zip": b"PK\3\4" + bytes(99),
    "another shape": npy(TABLE["a"][:5]), "another type": npy(TABLE["a"].astype("<f8")),
    "objects": npy(np.array([{}, 1], dtype=object)),
    "a header that is code": WHOLE.replace(b"False", b"f((((", 1),
    "an open bracket": WHOLE.replace(b"'<f4'", b"'<f4(", 1),
    "negative": WHOLE.replace(b"(23, 2, 3)", b"(-3, 2, 3)", 1), "huge": WHOLE.replace(b"(23, 2, 3)", b"(10**99,3)", 1),
    "a pipe": None,
}  # fmt: skip


@pytest.mark.parametrize("damage", DAMAGED)
def test_a_damaged_array_is_said_and_a_damaged_beginning_done_again(tmp_path: Path, damage: str) -> None:
    with pytest.raises(KeyboardInterrupt):
        fill(tmp_path, killed=3)
    part, content = tmp_path / "a.npy.part", DAMAGED[damage]
    open_array(part, COLUMNS["a"])
    part.unlink()
    os.mkfifo(part) if content is None else part.write_bytes(content)
    with pytest.raises(ValueError, match=r"a\.npy\.part is damaged \(.*\); do this\.$") as error:
        open_array(part, COLUMNS["a"], "do this")
    assert "\n" not in str(error.value)
    assert len(fill(tmp_path)) == 6
    check(tmp_path)
