"""`s3zoo report RUN…`: what a search did, on one page, and every figure for a paper."""

from __future__ import annotations

import argparse
from pathlib import Path

from s3zoo.files import check_writable


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="s3zoo report",
        description="Show what a search did: one page that loads nothing from elsewhere (report.html), and each figure"
        " as PDF and SVG. The run may be finished, under way or broken off. Several runs are compared: those that"
        " differ in their seed alone as bands, others side by side.",
    )
    parser.add_argument("runs", nargs="+", type=Path, metavar="RUN", help="folder of a search, or of its seeds")
    parser.add_argument(
        "--out", type=Path, metavar="FOLDER", help="where to write (default: RUN/report; of several runs, report)"
    )
    arguments = parser.parse_args(argv)
    out = arguments.out or (arguments.runs[0] / "report" if len(arguments.runs) == 1 else Path("report"))
    if arguments.out:
        check_writable(out, "--out", folder=True)
    from s3zoo.search.report.data import read_all  # numpy is needed from here on

    runs = read_all(arguments.runs)
    check_writable(out, "--out", folder=True)
    from s3zoo.search.report.page import write

    print(f"wrote {write(runs, out)}")
    return 0
