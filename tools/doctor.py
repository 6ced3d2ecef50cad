"""The same as `s3zoo doctor`."""

import sys

from s3zoo.cli import main

sys.exit(main(["doctor", *sys.argv[1:]]))
