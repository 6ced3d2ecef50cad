"""Older data are brought to the current version step by step; newer ones are refused in a sentence that says so."""

from typing import Any

import pytest

from s3zoo.versions import migrated

MIGRATIONS: Any = {
    1: lambda data: {"width": data.pop("dim"), **data},
    2: lambda data: {**data, "width": [data["width"]]},
}


@pytest.mark.parametrize(
    "old",
    [
        {"schema_version": 1, "dim": 8, "name": "a"},
        {"schema_version": 2, "width": 8, "name": "a"},
        {"schema_version": 3, "width": [8], "name": "a"},
    ],
)
def test_every_version_is_read(old: dict[str, Any]) -> None:
    before = dict(old)
    assert migrated(old, 3, MIGRATIONS) == {"schema_version": 3, "width": [8], "name": "a"}
    assert old == before


@pytest.mark.parametrize(
    ("version", "sentence"),
    [
        (4, "config.json: schema_version is 4, but must be an integer from 1 to 3: a newer release of s3zoo wrote it"),
        (0, "config.json: schema_version is 0, but must be an integer from 1 to 3."),
        (True, "schema_version is True, but must be"),
        ("1", "schema_version is '1', but must be"),
        (2.0, "schema_version is 2.0, but must be"),
        (None, "schema_version is None, but must be"),
    ],
)
def test_other_versions_are_refused(version: Any, sentence: str) -> None:
    with pytest.raises(ValueError) as error:
        migrated({"schema_version": version}, 3, MIGRATIONS, "config.json: ")
    assert sentence in str(error.value) and "\n" not in str(error.value)


def test_the_first_version_has_nothing_before_it() -> None:
    assert migrated({"schema_version": 1}, 1, {}) == {"schema_version": 1}
    with pytest.raises(ValueError, match="schema_version is 2, but must be 1: a newer release"):
        migrated({"schema_version": 2}, 1, {})
