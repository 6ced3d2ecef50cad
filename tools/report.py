"""The same as `s3zoo report`."""

import sys

from s3zoo.cli import main

sys.exit(main(["report", *sys.argv[1:]]))
