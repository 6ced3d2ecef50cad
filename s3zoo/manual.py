"""`s3zoo docs [NAME]`: the documentation that comes with this version, without a clone or a connection."""

import argparse
from pathlib import Path

from s3zoo.checks import nearest
from s3zoo.paths import docs_dir


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="s3zoo docs",
        description="List the documents, or print one.",
        epilog="example: s3zoo docs search | less",
    )
    parser.add_argument("name", nargs="?", help="a document of the list")
    name = parser.parse_args(argv).name
    found = documents()
    if name is None:
        width = max(map(len, found))
        for key, path in found.items():
            print(f"{key:{width}}  {path.read_text(encoding='utf-8').partition(chr(10))[0].lstrip('# ')}")
        print(f"They lie in {docs_dir()}.")
        return 0
    key = Path(name).name.removesuffix(".md")
    if key not in found:
        others = f"there are {', '.join(found)}."
        raise ValueError(f"There is no document {name!r}; {nearest(key, found, others)}")
    print(found[key].read_text(encoding="utf-8"), end="")
    return 0


def documents() -> dict[str, Path]:
    """The documents by name."""
    return {path.stem: path for path in sorted(docs_dir().glob("*.md"))}
