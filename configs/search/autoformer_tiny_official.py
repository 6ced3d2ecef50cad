"""A network for any budget from AutoFormer-T's published ImageNet supernet; nothing is trained.

Expected:  75.3 % top-1 with 5.87M parameters is the published subnet of this supernet (the authors' figure); what this
           search finds was not run here.
Cost:      at most 1,000 networks on 10,000 images for each of three budgets, 9 x 10^16 FLOP by closed form (estimate),
           or 1.3 GPU-hours at an assumed 20 TFLOP/s.
Command:   torchrun --nproc-per-node 8 tools/search.py autoformer_tiny_official --data /path/to/imagenet

Download supernet-tiny.pth first (its address: timm.get_pretrained_cfg("autoformer_tiny").url) and name it with
`--set supernet_weights=/path/to/supernet-tiny.pth`. Other budgets: `--set 'arch_search.budgets=("latency<=20ms",)'`.
The supernet may have been trained on the images that are held out here, so their accuracies rank networks but are too
high; the test images, the validation set, were not. The published subnet has MLP ratios of 3, outside the paper's
space, which is the one searched.
"""

import dataclasses

from s3zoo.search.config import ArchSearch, SearchRun
from s3zoo.training.config import load_config

config = dataclasses.replace(
    load_config("autoformer_tiny", SearchRun, "search"),
    name="autoformer_tiny_official",
    supernet_weights="supernet-tiny.pth",
    arch_search=ArchSearch(budgets=("params<=6M", "params<=7.5M", "params<=9M")),
)
