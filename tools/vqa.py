"""The same as `s3zoo vqa`."""

import sys

from s3zoo.cli import main

sys.exit(main(["vqa", *sys.argv[1:]]))
