"""The same as `s3zoo flops_mm`."""

import sys

from s3zoo.cli import main

sys.exit(main(["flops_mm", *sys.argv[1:]]))
