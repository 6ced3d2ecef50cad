"""Long work besides training, in pieces: shared by ranks, secured every few seconds, resumed by the same command.

Scores of subnets, races, latencies, test images, features of a tower and labels of a teacher all go through one
function, `resumable`, so that records, ranks, the stop flag and the clock are nowhere else. A caller says

    items     what is still to be done, the same list on all ranks: what the records show as done is left out of it
    work      given this rank's items, does them one after the other and yields a row, in JSON's types, for each piece
    records   where rows are kept: a `Records` file, or anything with `append(rows)`

and gets the rows of all ranks back, portion by portion. For example, with two ranks and items a, b, c, d, e:

    rank 0   a  c  | e             rank 0's share is a, c, e and rank 1's is b, d; at each | the ranks meet. Their rows
    rank 1   b     | d             are exchanged, appended to the file (a, c, b, then e, d) and handed to the caller.

A portion ends when `every` seconds have passed on a rank or a stop was asked for, but not before its first piece: so a
run that is stopped again and again ends nevertheless. Three things can happen to it:

    killed    at most the pieces since the last meeting are lost; rows of the file are not done again
    stopped   the pieces under way are completed and recorded, the caller has them, then `Interrupted` is raised on all
              ranks, whichever of them was asked
    ranks     rows come in another order in the file, but each is of one piece of work, done on one rank: who reads them
              goes by what they say, not by their order

Work that only one process may do (a timing, an image after the other) is one item: the other ranks have no share, and
meet the first one every few seconds.

Arrays are too large for a file of JSON. `fill_arrays` puts their rows into .npy files and records which are there.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from tokenize import TokenError
from typing import Any, Protocol, TypeVar

import numpy as np

from s3zoo.files import Records, disk_full_as_user_error, move, regular
from s3zoo.training.distributed import Ranks
from s3zoo.training.log import Progress
from s3zoo.training.loop import Interrupted, Stop

AUTOSAVE_SECONDS = 20.0  # between two savings of work besides training: a kill loses no more

T = TypeVar("T")
Row = dict[str, Any]


class Appendable(Protocol):
    def append(self, rows: Iterable[Row]) -> None: ...


def resumable(
    items: Sequence[T],
    work: Callable[[list[T]], Iterable[Row]],
    records: Appendable,
    ranks: Ranks,
    stop: Stop,
    *,
    reached: Callable[[], str],
    secure: Callable[[], None] = lambda: None,
    most: int = 0,
    every: float = AUTOSAVE_SECONDS,
    clock: Callable[[], float] = time.monotonic,
) -> Iterator[list[Row]]:
    """Do the items, shared by the ranks; yields the rows of all ranks as they are recorded. See the module.

    Args:
        reached: what to say when it is stopped: "scores: stopped after 12 of 40 subnets".
        secure: called on every rank before its rows are recorded; brings onto the disk what rows only speak of.
        most: pieces of a rank in a portion at most (0: as many as the time allows).
    """
    rows = iter(work(ranks.share(list(items))))
    over = not items
    while not over:
        fresh: list[Row] = []
        own_over, begun = True, clock()
        for row in rows:
            fresh.append(row)
            if stop.asked or len(fresh) == most or clock() - begun >= every:
                own_over = False
                break
        secure()
        portions = ranks.gather([(fresh, stop.asked, own_over)])
        news = [row for portion, _, _ in portions for row in portion]
        over = all(ended for _, _, ended in portions)
        if news:
            records.append(news)
            yield news
        if not over and any(asked for _, asked, _ in portions):
            raise Interrupted(f"{reached()}; the same command resumes there.")


Column = tuple[str, tuple[int, ...]]  # dtype and shape of an array; its first axis is that of the images


def row_groups(rows: int, size: int) -> list[range]:
    return [range(start, min(start + size, rows)) for start in range(0, rows, size)]


def open_array(path: Path, column: Column, remedy: str = "remove it and begin again") -> np.ndarray:
    """The array of a .npy file, left on the disk; a ValueError unless it is of this type and shape."""
    try:
        array = np.lib.format.open_memmap(regular(path), mode="r")
    except (OSError, ValueError, SyntaxError, TokenError, OverflowError, MemoryError, RecursionError) as error:
        said = " ".join(str(error).split())[:100]
        raise ValueError(f"{path} is damaged ({said}); {remedy}.") from None
    if (array.dtype, array.shape) != (np.dtype(column[0]), column[1]):
        said = f"it holds {array.dtype} {array.shape}, not {np.dtype(column[0])} {column[1]}"
        raise ValueError(f"{path} is damaged ({said}); {remedy}.")
    return array


def _begun(path: Path, column: Column) -> bool:
    try:
        return open_array(path, column) is not None
    except ValueError:
        return False


def fill_arrays(
    folder: Path,
    columns: Mapping[str, Column],
    groups: Sequence[range],
    work: Callable[[list[range]], Iterable[Mapping[str, np.ndarray]]],
    ranks: Ranks,
    stop: Stop,
    *,
    name: str,
    meter: Progress,
    every: float = AUTOSAVE_SECONDS,
) -> None:
    """Write `<column>.npy` files: `work` gives, for each group of rows (images), their values in every column.

    A file has its name when it is whole. Until then it ends in `.part` and `progress.jsonl` says which of its rows are
    on the disk for sure.
    """
    parts = {column: folder / f"{column}.npy.part" for column in columns}
    fields = {"columns": [str], "start": int, "stop": int}
    progress = ranks.rank0_first(lambda: Records(folder / "progress.jsonl", check=fields, write=ranks.first))
    there = bool(progress.rows) and all(_begun(parts[name], column) for name, column in columns.items())
    if not ranks.from_first(there and all(name in row["columns"] for row in progress.rows for name in columns)):
        progress.clear()
        if ranks.first:
            for column, (dtype, shape) in columns.items():
                parts[column].unlink(missing_ok=True)
                np.lib.format.open_memmap(parts[column], "w+", dtype, shape)
    ranks.wait()
    before = {(row["start"], row["stop"]) for row in progress.rows}
    layouts: Any = {column: open_array(path, columns[column]) for column, path in parts.items()}
    left = [group for group in groups if (group.start, group.stop) not in before]

    count = sum(stop - start for start, stop in before)  # of rows on the disk

    with ExitStack() as stack, disk_full_as_user_error(folder):
        files = {column: stack.enter_context(open(path, "r+b")) for column, path in parts.items()}

        def written(own: list[range]) -> Iterator[Row]:
            for group, values in zip(own, work(own), strict=True):
                for column, layout in layouts.items():
                    # Not through the map: on a full disk that would be the end of the process, not an error, and two
                    # nodes that share a file system would overwrite each other's rows in a common page.
                    content = np.ascontiguousarray(values[column], layout.dtype)
                    assert content.shape == (len(group), *layout.shape[1:]), f"{content.shape} for {len(group)} rows"
                    files[column].seek(layout.offset + group.start * layout.strides[0])
                    files[column].write(content.tobytes())
                meter.update(meter.done + len(group) * ranks.world)  # until the ranks meet, a guess
                yield {"columns": [*columns], "start": group.start, "stop": group.stop}

        def secure() -> None:
            for file in files.values():
                file.flush()
                os.fsync(file.fileno())

        def reached() -> str:
            return f"{name}: stopped after {count} of {groups[-1].stop} images"

        options: Any = {"reached": reached, "secure": secure, "every": every}
        for rows in resumable(left, written, progress, ranks, stop, **options):
            count += sum(row["stop"] - row["start"] for row in rows)
            meter.update(count)
    if ranks.first:
        for column, part in parts.items():
            move(part, folder / f"{column}.npy")
        progress.clear()
    ranks.wait()
