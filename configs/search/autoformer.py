"""AutoFormer on ImageNet-1k: the paper's three spaces, and searches in its published supernets."""

from dataclasses import replace

from s3zoo.search.config import ArchSearch, Final, SearchRun
from s3zoo.search.space_search import SpaceSearch
from s3zoo.space import AUTOFORMER_BASE, AUTOFORMER_SMALL, AUTOFORMER_TINY
from s3zoo.training.config import Train
from s3zoo.training.recipes import IMAGENET
from s3zoo.training.registry import Registry

configs = Registry()


@configs.add
def autoformer_tiny() -> SearchRun:
    """AutoFormer-T on ImageNet-1k: uniform sampling, weight entanglement, evolution, weights as inherited.

    Expected:  74.7 % top-1 with 5.7M parameters and 1.3G MACs (the paper's figure, its Tables 4 and 5; not run
               here).
    Cost:      500 epochs of 1,241 steps; 6.6 x 10^18 FLOP by closed form (estimate), or 90 GPU-hours at an assumed
               20 TFLOP/s. The paper used V100 GPUs and gives no hours.
    Command:   torchrun --nproc-per-node 8 -m s3zoo search autoformer_tiny --data /path/to/imagenet

    The folder holds train/<class>/ and val/<class>/. The released AutoFormer-T has MLP ratios of 3, outside the
    paper's Table 1; this space is the paper's. `--set final.mode=retrain` trains the winner anew (74.9 %, the
    paper's figure).
    """
    return SearchRun(
        name="autoformer_tiny",
        space=AUTOFORMER_TINY,
        data=IMAGENET,  # 10,000 images held out, as the paper prints; its code took 100 of each class, 100,000
        # Table 3; the paper prints no lowest learning rate, 1e-5 is DeiT's.
        supernet=Train(epochs=500, lr=1e-3, min_lr=1e-5, warmup_epochs=20, drop_path=0.1, sampling="uniform"),
        space_search=SpaceSearch(method="none"),
        arch_search=ArchSearch(
            budgets=("params<=6M",)
        ),  # with the relative positions, which the paper's 5.7M leaves out
        final=Final(mode="inherit", train=Train(epochs=300, lr=1e-3, min_lr=1e-5, warmup_epochs=20, drop_path=0.1)),
        audit_finetune=Train(epochs=40, lr=1e-4, min_lr=1e-6, warmup_epochs=5, drop_path=0.1),  # as autoformer_finetune
    )


@configs.add
def autoformer_small() -> SearchRun:
    """AutoFormer-S on ImageNet-1k: as autoformer_tiny, in the paper's second space.

    Expected:  81.7 % top-1 with 22.9M parameters and 5.1G MACs (the paper's figure, its Tables 4 and 5; not run
               here).
    Cost:      500 epochs of 1,241 steps; 1.8 x 10^19 FLOP by closed form (estimate), or 250 GPU-hours at an assumed
               20 TFLOP/s. The paper used V100 GPUs and gives no hours.
    Command:   torchrun --nproc-per-node 8 -m s3zoo search autoformer_small --data /path/to/imagenet

    For the ablations of the paper's Table 2: `--set arch_search.method=random` (81.3 %, the paper's figure) and
    `--set supernet.sharing=classical` (71.5 % inherited, the paper's figure).
    """
    return replace(
        autoformer_tiny(),
        name="autoformer_small",
        space=AUTOFORMER_SMALL,
        arch_search=ArchSearch(budgets=("params<=23M",)),
    )


@configs.add
def autoformer_base() -> SearchRun:
    """AutoFormer-B on ImageNet-1k: as autoformer_tiny, in the paper's third space.

    Expected:  82.4 % top-1 with 53.7M parameters and 11G MACs (the paper's figure, its Tables 4 and 5; not run
               here).
    Cost:      500 epochs of 1,241 steps; 4.5 x 10^19 FLOP by closed form (estimate), or 625 GPU-hours at an assumed
               20 TFLOP/s. The paper used V100 GPUs and gives no hours.
    Command:   torchrun --nproc-per-node 8 -m s3zoo search autoformer_base --data /path/to/imagenet

    The official code searches heads {9, 10} where the paper's Table 1 prints {8, 9, 10}; this space is the paper's.
    """
    return replace(
        autoformer_tiny(),
        name="autoformer_base",
        space=AUTOFORMER_BASE,
        arch_search=ArchSearch(budgets=("params<=54M",)),
    )


@configs.add
def autoformer_tiny_official() -> SearchRun:
    """A network for any budget from AutoFormer-T's published ImageNet supernet; nothing is trained.

    Expected:  75.3 % top-1 with 5.87M parameters is the published subnet of this supernet (the authors' figure);
               what this search finds was not run here.
    Cost:      at most 1,000 networks on 10,000 images for each of three budgets, 9 x 10^16 FLOP by closed form
               (estimate), or 1.3 GPU-hours at an assumed 20 TFLOP/s.
    Command:   torchrun --nproc-per-node 8 -m s3zoo search autoformer_tiny_official --data /path/to/imagenet

    Download supernet-tiny.pth first (its address: timm.get_pretrained_cfg("autoformer_tiny").url) and name it with
    `--set supernet_weights=/path/to/supernet-tiny.pth`. Other budgets: `--set
    'arch_search.budgets=("latency<=20ms",)'`. The supernet may have been trained on the images that are held out
    here, so their accuracies rank networks but are too high; the test images, the validation set, were not. The
    published subnet has MLP ratios of 3, outside the paper's space, which is the one searched.
    """
    return replace(
        autoformer_tiny(),
        name="autoformer_tiny_official",
        supernet_weights="supernet-tiny.pth",
        arch_search=ArchSearch(budgets=("params<=6M", "params<=7.5M", "params<=9M")),
    )


@configs.add
def autoformer_small_official() -> SearchRun:
    """A network for any budget from AutoFormer-S's published ImageNet supernet; as autoformer_tiny_official.

    Expected:  81.7 % top-1 with 22.9M parameters is the published subnet of this supernet (the authors' figure);
               what this search finds was not run here.
    Cost:      at most 1,000 networks on 10,000 images for each of three budgets, 2.4 x 10^17 FLOP by closed form
               (estimate), or 3.3 GPU-hours at an assumed 20 TFLOP/s.
    Command:   torchrun --nproc-per-node 8 -m s3zoo search autoformer_small_official --data /path/to/imagenet
               (with --set supernet_weights=/path/to/supernet-small.pth)
    """
    return replace(
        autoformer_tiny_official(),
        name="autoformer_small_official",
        space=AUTOFORMER_SMALL,
        supernet_weights="supernet-small.pth",
        arch_search=ArchSearch(budgets=("params<=18M", "params<=23M", "params<=28M")),
    )


@configs.add
def autoformer_base_official() -> SearchRun:
    """A network for any budget from AutoFormer-B's published ImageNet supernet; as autoformer_tiny_official.

    Expected:  82.4 % top-1 with 53.7M parameters is the published subnet of this supernet (the authors' figure);
               what this search finds was not run here.
    Cost:      at most 1,000 networks on 10,000 images for each of three budgets, 6.4 x 10^17 FLOP by closed form
               (estimate), or 9 GPU-hours at an assumed 20 TFLOP/s.
    Command:   torchrun --nproc-per-node 8 -m s3zoo search autoformer_base_official --data /path/to/imagenet
               (with --set supernet_weights=/path/to/supernet-base.pth)

    The supernet was trained with 9 and 10 heads, so blocks of 8 heads, which the paper's space has too, are left
    out.
    """
    return replace(
        autoformer_tiny_official(),
        name="autoformer_base_official",
        space=AUTOFORMER_BASE.replaced({"num_heads": (9, 10)}, name="autoformer_base_official"),
        supernet_weights="supernet-base.pth",
        arch_search=ArchSearch(budgets=("params<=48M", "params<=54M", "params<=62M")),
    )
