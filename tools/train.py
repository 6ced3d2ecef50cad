"""The same as `s3zoo train`."""

import sys

from s3zoo.cli import main

sys.exit(main(["train", *sys.argv[1:]]))
