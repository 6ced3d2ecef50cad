"""The same as `s3zoo publish`."""

import sys

from s3zoo.cli import main

sys.exit(main(["publish", *sys.argv[1:]]))
