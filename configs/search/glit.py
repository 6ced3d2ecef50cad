"""GLiT on ImageNet-1k in three sizes."""

from dataclasses import replace

from s3zoo.search.config import ArchSearch, Final, SearchRun
from s3zoo.search.space_search import SpaceSearch
from s3zoo.space import GLIT_BASE, GLIT_SMALL, GLIT_TINY
from s3zoo.training.config import Train
from s3zoo.training.recipes import DEIT, IMAGENET
from s3zoo.training.registry import Registry

configs = Registry()


@configs.add
def glit_tiny() -> SearchRun:
    """GLiT-Tiny on ImageNet-1k: first the split into global and local heads, then the details of the blocks.

    Expected:  76.3 % top-1 with 7.2M parameters and 1.4G FLOPs (the paper's figure, its Table 3; not run here).
    Cost:      in each of two stages a supernet of 100 epochs and five trainings of 300; 3.3 x 10^19 FLOP by closed
               form (estimate), nearly all of it retraining, or 19 GPU-days at an assumed 20 TFLOP/s. The paper
               names GTX 1080 Ti GPUs and gives no days.
    Command:   torchrun --nproc-per-node 8 -m s3zoo search glit_tiny --data /path/to/imagenet

    The budget is in MACs as executed: the released network needs 1.47G. The official count, 1.33G, leaves half of a
    convolution out (its output is twice as wide, for the gate), and the paper prints 1.4G and 1.3G. The
    augmentation of the supernets is not printed; here it is DeiT's with its repeated augmentation, as for the
    retraining. The 25,600 images that the batch norms of each subnet see, as in SPOS, stay in memory: 3.9 GB for each
    process. The paper's other ways to be local (its Table 6) are other spaces: `--set space=glit_tiny_conv2d`,
    `--set space=glit_tiny_area`.
    """
    return SearchRun(
        name="glit_tiny",
        space=GLIT_TINY,
        hierarchy="glit",
        data=replace(IMAGENET, holdout=50_000, repeated_aug=3),
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
        # 50 x 20 = 1,000 evaluations and 0.1 are SPOS', and so are 200 batches of 128 images for the batch norms
        arch_search=ArchSearch(budgets=("macs<=1.48G",), p_block=0.1, calibration_images=200 * 128),
        final=Final(mode="retrain", top=5, train=DEIT),
    )


@configs.add
def glit_small() -> SearchRun:
    """GLiT-Small on ImageNet-1k: as glit_tiny, with 384 channels and 6 heads.

    Expected:  80.5 % top-1 with 24.6M parameters and 4.4G FLOPs (the paper's figure, its Table 3; not run here).
    Cost:      in each of two stages a supernet of 100 epochs and five trainings of 300; 1.1 x 10^20 FLOP by closed
               form (estimate), or 64 GPU-days at an assumed 20 TFLOP/s. The paper names GTX 1080 Ti GPUs and gives
               no days.
    Command:   torchrun --nproc-per-node 8 -m s3zoo search glit_small --data /path/to/imagenet

    Neither width nor network was released: the width is DeiT-Small's, and of its heads 0, 2, 4 or 6 are global. The
    budget is in MACs as executed, and fits this zoo's glit_small (4.91G), which has the paper's 4.4G in the
    official count.
    """
    tiny = glit_tiny()
    return replace(
        tiny,
        name="glit_small",
        space=GLIT_SMALL,
        arch_search=replace(tiny.arch_search, budgets=("macs<=4.95G",)),
    )


@configs.add
def glit_base() -> SearchRun:
    """GLiT-Base on ImageNet-1k: as glit_tiny, with 768 channels and 12 heads.

    Expected:  82.3 % top-1 with 96.1M parameters and 17.0G FLOPs (the paper's figure, its Table 3; not run here).
    Cost:      in each of two stages a supernet of 100 epochs and five trainings of 300; 4.2 x 10^20 FLOP by closed
               form (estimate), or 246 GPU-days at an assumed 20 TFLOP/s. The paper names GTX 1080 Ti GPUs and gives
               no days.
    Command:   torchrun --nproc-per-node 8 -m s3zoo search glit_base --data /path/to/imagenet

    Neither width nor network was released: the width is DeiT-Base's, and of its heads 0, 4, 8 or 12 are global. The
    budget is in MACs as executed, and fits this zoo's glit_base (19.05G), which has the paper's 17.0G in the
    official count.
    """
    tiny = glit_tiny()
    return replace(
        tiny,
        name="glit_base",
        space=GLIT_BASE,
        arch_search=replace(tiny.arch_search, budgets=("macs<=19.1G",)),
    )
