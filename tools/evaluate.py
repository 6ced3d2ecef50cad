"""The same as `s3zoo evaluate`."""

import sys

from s3zoo.cli import main

sys.exit(main(["evaluate", *sys.argv[1:]]))
