"""The same as `s3zoo convert`."""

import sys

from s3zoo.cli import main

sys.exit(main(["convert", *sys.argv[1:]]))
