"""The same as `s3zoo predict_mm`."""

import sys

from s3zoo.cli import main

sys.exit(main(["predict_mm", *sys.argv[1:]]))
