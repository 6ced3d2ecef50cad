"""Run a script that knows timm but not s3zoo, with the models of s3zoo among timm's.

python -m s3zoo.run validate.py --model s3_tiny --pretrained --data-dir /path/to/imagenet
torchrun --nproc-per-node 8 -m s3zoo.run train.py --model s3_tiny --data-dir /path/to/imagenet
"""

import os
import runpy
import sys
from pathlib import Path


def main(argv: list[str]) -> None:
    """As `python SCRIPT ARGS...`; that s3zoo is imported is all that is added."""
    if not argv or not os.path.isfile(argv[0]):
        given = repr(argv[0]) if argv else "nothing"
        print(f"s3zoo: {given} was given, but python -m s3zoo.run takes a script and its arguments.", file=sys.stderr)
        sys.exit(2)
    sys.argv = argv
    sys.path[0] = str(Path(argv[0]).resolve().parent)
    runpy.run_path(argv[0], run_name="__main__")


if __name__ == "__main__":
    main(sys.argv[1:])
