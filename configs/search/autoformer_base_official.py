"""A network for any budget from AutoFormer-B's published ImageNet supernet; as autoformer_tiny_official.

Expected:  82.4 % top-1 with 53.7M parameters is the published subnet of this supernet (the authors' figure); what this
           search finds was not run here.
Cost:      at most 1,000 networks on 10,000 images for each of three budgets, 6.4 x 10^17 FLOP by closed form
           (estimate), or 9 GPU-hours at an assumed 20 TFLOP/s.
Command:   torchrun --nproc-per-node 8 tools/search.py autoformer_base_official --data /path/to/imagenet
           (with --set supernet_weights=/path/to/supernet-base.pth)

The supernet was trained with 9 and 10 heads, so blocks of 8 heads, which the paper's space has too, are left out.
"""

import dataclasses

from s3zoo.search.config import ArchSearch, SearchRun
from s3zoo.space import AUTOFORMER_BASE
from s3zoo.training.config import load_config

config = dataclasses.replace(
    load_config("autoformer_tiny_official", SearchRun, "search"),
    name="autoformer_base_official",
    space=AUTOFORMER_BASE.replaced({"num_heads": (9, 10)}, name="autoformer_base_official"),
    supernet_weights="supernet-base.pth",
    arch_search=ArchSearch(budgets=("params<=48M", "params<=54M", "params<=62M")),
)
