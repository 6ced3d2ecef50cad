"""GLiT-Small on ImageNet-1k: as glit_tiny, with 384 channels and 6 heads.

Expected:  80.5 % top-1 with 24.6M parameters and 4.4G FLOPs (the paper's figure, its Table 3; not run here).
Cost:      in each of two stages a supernet of 100 epochs and five trainings of 300; 1.1 x 10^20 FLOP by closed form
           (estimate), or 64 GPU-days at an assumed 20 TFLOP/s. The paper names GTX 1080 Ti GPUs and gives no days.
Command:   torchrun --nproc-per-node 8 tools/search.py glit_small --data /path/to/imagenet

Neither width nor network was released: the width is DeiT-Small's, and of its heads 0, 2, 4 or 6 are global.
The budget is in MACs as executed, and fits this zoo's glit_small (4.91G), which has the paper's 4.4G in the official
count.
"""

import dataclasses

from s3zoo.search.config import SearchRun
from s3zoo.space import GLIT_SMALL
from s3zoo.training.config import load_config

_tiny = load_config("glit_tiny", SearchRun, "search")
config = dataclasses.replace(
    _tiny,
    name="glit_small",
    space=GLIT_SMALL,
    arch_search=dataclasses.replace(_tiny.arch_search, budgets=("macs<=4.95G",)),
)
