"""The same as `s3zoo train_mm`."""

import sys

from s3zoo.cli import main

sys.exit(main(["train_mm", *sys.argv[1:]]))
