"""The same as `s3zoo zoo`."""

import sys

from s3zoo.cli import main

sys.exit(main(["zoo", *sys.argv[1:]]))
