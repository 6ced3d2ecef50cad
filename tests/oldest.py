"""What the oldest versions that are allowed cannot do (`make floors`); no other file of the tests asks for versions.

A test that cannot pass with them is named here with its reason. None is made weaker for them: what it demands of the
newest versions stays.
"""

from importlib.metadata import version

from packaging.version import Version


def older(package: str, release: str) -> bool:
    return Version(version(package)) < Version(release)


SKIPPED = {
    "test_glit.py::test_checkpointing_compiles_and_records_statistics_once": (
        older("torch", "2.7"),
        "compiled by torch 2.6, BatchNorm records each batch in the second pass as well",
    ),
}
# They keep the gradient itself, not a copy, as the last one, so a run cut in two would not end as a whole one.
REFUSED_OPTIMIZERS = ("mars", "cmars") if older("timm", "1.0.30") else ()
# Where a graph of any batch size must name the largest: torch 2.6 excludes 2**63 - 1 itself, and then refuses "any".
LARGEST_BATCH = 4096 if older("torch", "2.7") else None
