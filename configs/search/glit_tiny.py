"""GLiT-Tiny on ImageNet-1k: first the split into global and local heads, then the details of the blocks.

Expected:  76.3 % top-1 with 7.2M parameters and 1.4G FLOPs (the paper's figure, its Table 3; not run here).
Cost:      in each of two stages a supernet of 100 epochs and five trainings of 300; 3.3 x 10^19 FLOP by closed form
           (estimate), nearly all of it retraining, or 19 GPU-days at an assumed 20 TFLOP/s. The paper names GTX 1080 Ti
           GPUs and gives no days.
Command:   torchrun --nproc-per-node 8 tools/search.py glit_tiny --data /path/to/imagenet

The budget is in MACs as executed: the released network needs 1.47G. The official count, 1.33G, leaves half of a
convolution out (its output is twice as wide, for the gate), and the paper prints 1.4G and 1.3G. The augmentation of the
supernets is not printed; here it is DeiT's, as for the retraining.
"""

import dataclasses

from s3zoo.search.config import ArchSearch, Final, SearchRun
from s3zoo.search.space_search import SpaceSearch
from s3zoo.space import GLIT_TINY
from s3zoo.training.config import Train
from s3zoo.training.recipes import DEIT, IMAGENET

config = SearchRun(
    name="glit_tiny",
    space=GLIT_TINY,
    hierarchy="glit",
    data=dataclasses.replace(IMAGENET, holdout=50_000),
    supernet=Train(
        epochs=100,
        opt="sgd",  # timm's "sgd" is Nesterov's
        lr=0.2,
        min_lr=0.0,
        warmup_epochs=0,
        weight_decay=1e-4,
        momentum=0.9,
        drop_path=0.0,
        sampling="uniform",
        sharing="classical",
    ),
    space_search=SpaceSearch(method="none"),
    arch_search=ArchSearch(budgets=("macs<=1.48G",), p_block=0.1),  # 50 x 20 = 1,000 evaluations and 0.1 are SPOS'
    final=Final(mode="retrain", top=5, train=DEIT),
)
