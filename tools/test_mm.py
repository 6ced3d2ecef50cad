"""The same as `s3zoo test_mm`."""

import sys

from s3zoo.cli import main

sys.exit(main(["test_mm", *sys.argv[1:]]))
