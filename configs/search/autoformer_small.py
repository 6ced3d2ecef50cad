"""AutoFormer-S on ImageNet-1k: as autoformer_tiny, in the paper's second space.

Expected:  81.7 % top-1 with 22.9M parameters and 5.1G MACs (the paper's figure, its Tables 4 and 5; not run here).
Cost:      500 epochs of 1,241 steps; 1.8 x 10^19 FLOP by closed form (estimate), or 250 GPU-hours at an assumed
           20 TFLOP/s. The paper used V100 GPUs and gives no hours.
Command:   torchrun --nproc-per-node 8 tools/search.py autoformer_small --data /path/to/imagenet

For the ablations of the paper's Table 2: `--set arch_search.method=random` (81.3 %, the paper's figure) and
`--set supernet.sharing=classical` (71.5 % inherited, the paper's figure).
"""

import dataclasses

from s3zoo.search.config import ArchSearch, SearchRun
from s3zoo.space import AUTOFORMER_SMALL
from s3zoo.training.config import load_config

config = dataclasses.replace(
    load_config("autoformer_tiny", SearchRun, "search"),
    name="autoformer_small",
    space=AUTOFORMER_SMALL,
    arch_search=ArchSearch(budgets=("params<=23M",)),
)
