"""GLiT-Base on ImageNet-1k: as glit_tiny, with 768 channels and 12 heads.

Expected:  82.3 % top-1 with 96.1M parameters and 17.0G FLOPs (the paper's figure, its Table 3; not run here).
Cost:      in each of two stages a supernet of 100 epochs and five trainings of 300; 4.2 x 10^20 FLOP by closed form
           (estimate), or 246 GPU-days at an assumed 20 TFLOP/s. The paper names GTX 1080 Ti GPUs and gives no days.
Command:   torchrun --nproc-per-node 8 tools/search.py glit_base --data /path/to/imagenet

Neither width nor network was released: the width is DeiT-Base's, and of its heads 0, 4, 8 or 12 are global.
The budget is in MACs as executed, and fits this zoo's glit_base (19.05G), which has the paper's 17.0G in the official
count.
"""

import dataclasses

from s3zoo.search.config import SearchRun
from s3zoo.space import GLIT_BASE
from s3zoo.training.config import load_config

_tiny = load_config("glit_tiny", SearchRun, "search")
config = dataclasses.replace(
    _tiny,
    name="glit_base",
    space=GLIT_BASE,
    arch_search=dataclasses.replace(_tiny.arch_search, budgets=("macs<=19.1G",)),
)
