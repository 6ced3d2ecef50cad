"""The same as `s3zoo search`."""

import sys

from s3zoo.cli import main

sys.exit(main(["search", *sys.argv[1:]]))
