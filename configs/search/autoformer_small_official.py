"""A network for any budget from AutoFormer-S's published ImageNet supernet; as autoformer_tiny_official.

Expected:  81.7 % top-1 with 22.9M parameters is the published subnet of this supernet (the authors' figure); what this
           search finds was not run here.
Cost:      at most 1,000 networks on 10,000 images for each of three budgets, 2.4 x 10^17 FLOP by closed form
           (estimate), or 3.3 GPU-hours at an assumed 20 TFLOP/s.
Command:   torchrun --nproc-per-node 8 tools/search.py autoformer_small_official --data /path/to/imagenet
           (with --set supernet_weights=/path/to/supernet-small.pth)
"""

import dataclasses

from s3zoo.search.config import ArchSearch, SearchRun
from s3zoo.space import AUTOFORMER_SMALL
from s3zoo.training.config import load_config

config = dataclasses.replace(
    load_config("autoformer_tiny_official", SearchRun, "search"),
    name="autoformer_small_official",
    space=AUTOFORMER_SMALL,
    supernet_weights="supernet-small.pth",
    arch_search=ArchSearch(budgets=("params<=18M", "params<=23M", "params<=28M")),
)
