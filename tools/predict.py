"""The same as `s3zoo predict`."""

import sys

from s3zoo.cli import main

sys.exit(main(["predict", *sys.argv[1:]]))
