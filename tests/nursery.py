"""Starts `s3zoo search` in processes that have torch and timm imported already: a start takes no seconds.

Reads a line of JSON with the arguments and a file for the output, forks, answers with the process id and, when that
process has ended, with its exit code; then the next line.
"""

import contextlib
import json
import os
import sys

import s3zoo.search.latency
import s3zoo.search.run
import s3zoo.training.session  # noqa: F401
from s3zoo.cli import main

with contextlib.suppress(ImportError):  # where TensorBoard is not installed
    import torch.utils.tensorboard  # noqa: F401  for the children, as is s3zoo

s3zoo.search.latency.TOLERANCE = 1e9  # as in conftest.py

for line in sys.stdin:
    request = json.loads(line)
    child = os.fork()
    if not child:
        os.setsid()
        output = os.open(request["output"], os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(output, 1)
        os.dup2(output, 2)
        os.close(0)
        sys.exit(main(["search", *request["arguments"]]))
    print(child, flush=True)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
