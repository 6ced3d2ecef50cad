"""Data of older schema versions: whatever a release of s3zoo has written, later releases read.

A kind of data has a current version and a table of migrations: from version 1 to 2, from 2 to 3, one small function
each. A change of a schema raises the version, adds one of them, and leaves a file of the version before in tests/old.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

Migration = Callable[[dict[str, Any]], dict[str, Any]]


def migrated(
    data: Mapping[str, Any], current: int, migrations: Mapping[int, Migration], where: str = ""
) -> dict[str, Any]:
    """The data in the form of the `current` version; `migrations[v]` makes version v + 1 of version v.

    Give what has the field `schema_version`. `where` says in errors whose it is ("config.json: "). Nothing that was
    given is changed.
    """
    version, oldest = data["schema_version"], min(migrations, default=current)
    valid = f"{current}" if oldest == current else f"an integer from {oldest} to {current}"
    if type(version) is not int or version < oldest:
        raise ValueError(f"{where}schema_version is {version!r}, but must be {valid}.")
    if version > current:
        raise ValueError(
            f"{where}schema_version is {version}, but must be {valid}: a newer release of s3zoo wrote it; install that "
            "one to read it."
        )
    new = dict(data)
    for step in range(version, current):
        new = {**migrations[step](new), "schema_version": step + 1}
    return new
