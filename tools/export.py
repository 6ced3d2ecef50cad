"""The same as `s3zoo export`."""

import sys

from s3zoo.cli import main

sys.exit(main(["export", *sys.argv[1:]]))
