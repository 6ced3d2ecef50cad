"""Every pipeline in seconds, on digits, for the tests."""

from dataclasses import replace

from s3zoo.search.config import ArchSearch, Final, SearchRun
from s3zoo.search.space_search import SpaceSearch
from s3zoo.space import S4_CLIP, S4_SHUNTED, S4_SWIN, S4_VIT, glit_space, s3_space
from s3zoo.training.config import Tower, Train
from s3zoo.training.registry import Registry, load_config

configs = Registry()


@configs.add
def debug_s3() -> SearchRun:
    """S3's pipeline in seconds, on digits, for the tests: a shift, both spaces searched, two budgets, finetuning.

    Expected:  that it ends; the accuracy means nothing.
    Cost:      seconds on one core.
    Command:   s3zoo search debug_s3
    """
    train = Train(
        epochs=2, batch_size=16, lr=1e-2, warmup_epochs=0.5, drop_path=0.0, sampling="sandwich", warm_start=True
    )
    return SearchRun(
        name="debug_s3",
        threads=1,
        space=s3_space(
            "debug_s3",
            depth=(1, 2),
            embed=(8, 16),
            window=(2, 4),
            heads=(1, 2),
            mlp=(1, 2),
            steps=(1, 8, 2, 1, 1),
            head_dim=8,
            num_stages=2,
            patch_size=2,
        ),
        data=replace(load_config("digits", SearchRun, "search").data, holdout=100, train_limit=160),
        supernet=train,
        space_search=SpaceSearch(
            method="s3", iterations=1, samples=16, tau=10.0, backtrack=True, search_each_space=True
        ),
        arch_search=ArchSearch(
            budgets=("params<=20K", "macs<=150K"), population=6, generations=2, parents=3, crossover=2, mutation=2
        ),
        final=Final(mode="finetune", train=replace(train, epochs=1, lr=3e-3)),
    )


@configs.add
def debug_s4() -> SearchRun:
    """S4's pipeline in seconds, on digits, for the tests: an illegal start, a limit, an audit, retraining.

    Expected:  that it ends; the accuracy means nothing.
    Cost:      seconds on one core.
    Command:   s3zoo search debug_s4
    """
    choices = {
        "depth": (2, 3),
        "embed_dim": (16, 24),
        "num_heads": (1, 2, 3),
        "mlp_ratio": (1.5, 2),
        "head_dim": (8,),
    }
    train = Train(epochs=2, batch_size=16, lr=1e-2, warmup_epochs=0.5, drop_path=0.1, sampling="uniform")
    return SearchRun(
        name="debug_s4",
        threads=1,
        space=replace(S4_VIT.replaced(choices, name="debug_s4"), patch_size=2),
        data=debug_s3().data,
        supernet=train,
        space_search=SpaceSearch(method="s4", iterations=2, pairs=3, upper=14e3, audit=2),
        arch_search=ArchSearch(
            budgets=("params<=14K",), population=6, generations=2, parents=3, crossover=2, mutation=2
        ),
        final=Final(mode="retrain", train=replace(train, epochs=1)),
    )


@configs.add
def debug_s4_swin() -> SearchRun:
    """S4's pipeline in seconds on Swin's body, on digits, for the tests: an illegal start, a limit, retraining.

    Expected:  that it ends; the accuracy means nothing.
    Cost:      seconds on one core.
    Command:   s3zoo search debug_s4_swin
    """
    vit = debug_s4()
    choices = {
        "embed_dim": (6, 9),
        "mlp_ratio": (1, 1.5, 2),
        "stage3.depth": (1, 2),
        "other_depths": (1,),
        "window_size": (2,),
    }
    return replace(
        vit,
        name="debug_s4_swin",
        space=replace(S4_SWIN.replaced(choices, name="debug_s4_swin"), patch_size=1),
        space_search=SpaceSearch(method="s4", iterations=2, pairs=2, upper=75e3),
        arch_search=replace(vit.arch_search, budgets=("params<=75K",)),
    )


@configs.add
def debug_s4_shunted() -> SearchRun:
    """S4's pipeline in seconds on Shunted's body, on digits, for the tests: an illegal start, a limit, retraining.

    Expected:  that it ends; the accuracy means nothing.
    Cost:      seconds on one core.
    Command:   s3zoo search debug_s4_shunted
    """
    vit = debug_s4()
    choices = {"embed_dim": (4, 6), "mlp_ratio": (2, 3, 4), "depth": (1, 2)}
    return replace(
        vit,
        name="debug_s4_shunted",
        space=replace(S4_SHUNTED.replaced(choices, name="debug_s4_shunted"), patch_size=2),
        space_search=SpaceSearch(method="s4", iterations=2, pairs=2, upper=110e3),
        arch_search=replace(vit.arch_search, budgets=("params<=110K",), calibration_images=64),
    )


@configs.add
def debug_s4_clip() -> SearchRun:
    """S4's pipeline in seconds with decoders beside a tiny frozen tower of random weights, on digits, for the tests.

    Expected:  that it ends; the accuracy means nothing.
    Cost:      seconds on one core.
    Command:   s3zoo search debug_s4_clip

    Images are not augmented, so the features of all of them are kept: the tower sees each image once.
    """
    vit = debug_s4()
    choices = {"depth": (2, 3), "embed_dim": (8, 12), "num_heads": (1, 2, 3), "mlp_ratio": (0.5, 1), "head_dim": (8,)}
    return replace(
        vit,
        name="debug_s4_clip",
        space=S4_CLIP.replaced(choices, name="debug_s4_clip"),
        data=replace(vit.data, img_size=32, scale=(1, 1), ratio=(1, 1), random_crop_pad=0),
        space_search=SpaceSearch(method="s4", iterations=2, pairs=3, upper=42e3),
        arch_search=replace(vit.arch_search, budgets=("params<=42K",)),
        tower=Tower("test_vit", weights="random", cache="all"),
    )


@configs.add
def debug_autoformer() -> SearchRun:
    """AutoFormer's pipeline in seconds, on digits, for the tests: Mixup, accumulation, averaged weights, inheritance.

    Expected:  that it ends; the accuracy means nothing.
    Cost:      seconds on one core.
    Command:   s3zoo search debug_autoformer
    """
    s4 = debug_s4()
    return SearchRun(
        name="debug_autoformer",
        threads=1,
        space=replace(s4.space, name="debug_autoformer"),
        data=replace(s4.data, mixup=0.2, cutmix=0.5, reprob=0.1),
        supernet=Train(
            epochs=3,
            batch_size=16,
            accumulate=2,
            lr=1e-2,
            warmup_epochs=0.5,
            clip_grad=1.0,
            ema=0.9,
            sampling="uniform",
            freeze_unsampled=True,
        ),
        space_search=SpaceSearch(method="none"),
        arch_search=ArchSearch(
            budgets=("params<=14K, 100K<=macs<=400K",), population=6, generations=2, parents=3, crossover=2, mutation=2
        ),
        final=Final(mode="inherit", train=s4.final.train),
    )


@configs.add
def debug_glit() -> SearchRun:
    """GLiT's two stages in seconds, on digits, for the tests: classical sharing, batch norms, two networks retrained.

    Expected:  that it ends; the accuracy means nothing.
    Cost:      seconds on one core.
    Command:   s3zoo search debug_glit
    """
    return SearchRun(
        name="debug_glit",
        threads=1,
        space=glit_space(
            "debug_glit", 24, 3, depth=3, kernels=(3, 5, 7), expansions=(1, 2), mlp=(1, 2, 3), patch_size=2
        ),
        hierarchy="glit",
        data=debug_s3().data,
        supernet=Train(
            epochs=2,
            batch_size=16,
            opt="sgd",
            lr=0.1,
            min_lr=0.0,
            warmup_epochs=0,
            weight_decay=1e-4,
            drop_path=0.0,
            sampling="uniform",
            sharing="classical",
        ),
        space_search=SpaceSearch(method="none"),
        arch_search=ArchSearch(
            budgets=("macs<=450K",),
            population=6,
            generations=2,
            parents=3,
            crossover=2,
            mutation=2,
            calibration_images=64,
        ),
        final=Final(mode="retrain", top=2, train=Train(epochs=2, batch_size=16, lr=1e-2, warmup_epochs=0.5)),
    )
