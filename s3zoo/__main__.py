"""`python -m s3zoo` is the command `s3zoo`."""

import sys

from s3zoo.cli import main

sys.exit(main())
