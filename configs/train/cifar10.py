"""Networks designed by hand in the families of the searches on CIFAR-10, below their limits and trained as theirs."""

from s3zoo.search.config import Controls, SearchRun
from s3zoo.training.config import TrainRun
from s3zoo.training.registry import Registry, load_config

configs = Registry()


def _designed(name: str, search: str, **genes: object) -> TrainRun:
    """A network of a search's family with these genes and that search's images and final training."""
    run = load_config(search, SearchRun, "search")
    arch = Controls(designed=genes).designed_arch(run.space)
    args = {"arch": arch.to_dict(), "img_size": run.data.img_size}
    return TrainRun(name=name, model=arch.family, model_args=args, data=run.data, train=run.final.train)


@configs.add
def cifar10_swin_micro() -> TrainRun:
    """A Swin of 5.7M MACs on CIFAR-10, the control of S3: widths double, depths 1 : 1 : 3, MLP ratio 4.

    Expected:  67.09 ± 0.82 % of the test images (seeds 0 to 3, docs/cifar10.md).
    Cost:      20 epochs of 45,000 images of 32 x 32, about 40 minutes of one core (estimate).
    Command:   s3zoo train cifar10_swin_micro --data /path/to/cifar10
    """
    return _designed(
        "cifar10_swin_micro", "cifar10_s3_2core", depth=(1, 1, 3), embed_dim=(18, 36, 72), num_heads=(1, 2, 4),
        head_dim=18, window_size=4, mlp_ratio=4,
    )  # fmt: skip


@configs.add
def cifar10_deit_micro() -> TrainRun:
    """A DeiT of 94K parameters on CIFAR-10, the control of S4-ViT and AutoFormer: one width, MLP ratio 4.

    Expected:  71.18 ± 0.72 % of the test images (seeds 0 to 2, docs/cifar10.md).
    Cost:      20 epochs of 45,000 images of 32 x 32, about 40 minutes of one core (estimate).
    Command:   s3zoo train cifar10_deit_micro --data /path/to/cifar10

    It has AutoFormer's relative positions, as the found networks do.
    """
    return _designed(
        "cifar10_deit_micro", "cifar10_s4_vit_2core", depth=4, embed_dim=40, num_heads=2, head_dim=20, mlp_ratio=4
    )


@configs.add
def cifar10_deit_mini() -> TrainRun:
    """A DeiT of 10.5M MACs on CIFAR-10: as much computation as S4-ViT's winners have with seeds 1 and 2.

    Expected:  72.89 ± 0.28 % of the test images (seeds 1 and 2, docs/cifar10.md).
    Cost:      20 epochs of 45,000 images of 32 x 32, about 45 minutes of one core (estimate).
    Command:   s3zoo train cifar10_deit_mini --data /path/to/cifar10

    S4-ViT's limit is on parameters, and a ViT of many heads spends more MACs for each: below 95K parameters those
    winners have 10.6M and 10.7M MACs, cifar10_deit_micro 7.7M. This one has 127K parameters.
    """
    return _designed(
        "cifar10_deit_mini", "cifar10_s4_vit_2core", depth=4, embed_dim=48, num_heads=3, head_dim=16, mlp_ratio=4
    )


@configs.add
def cifar10_glit_global_micro() -> TrainRun:
    """A DeiT of 6.8M MACs on CIFAR-10, the control of GLiT: all heads are global, MLP ratio 4.

    Expected:  67.53 % of the test images (seed 0, docs/cifar10.md).
    Cost:      20 epochs of 45,000 images of 32 x 32, about 30 minutes of one core (estimate).
    Command:   s3zoo train cifar10_glit_global_micro --data /path/to/cifar10
    """
    return _designed(
        "cifar10_glit_global_micro", "cifar10_glit_2core", depth=3, embed_dim=48, num_heads=3, global_heads=3,
        head_dim=16, kernel_size=19, expansion=1, mlp_ratio=4,
    )  # fmt: skip


@configs.add
def cifar10_swin_mini() -> TrainRun:
    """A Swin of 519K parameters on CIFAR-10, the control of S4-Swin: four stages, widths double, MLP ratio 4.

    Expected:  67.51 % of the test images (seed 0, docs/cifar10.md).
    Cost:      20 epochs of 45,000 images of 32 x 32, about 25 minutes of one core (estimate).
    Command:   s3zoo train cifar10_swin_mini --data /path/to/cifar10
    """
    return _designed(
        "cifar10_swin_mini", "cifar10_s4_swin_2core", depth=(1, 1, 3, 1), embed_dim=(18, 36, 72, 144),
        num_heads=(1, 2, 4, 8), head_dim=18, window_size=4, mlp_ratio=4,
    )  # fmt: skip


@configs.add
def cifar10_shunted_micro() -> TrainRun:
    """A Shunted-T of a quarter of its width, 730K parameters, on CIFAR-10: the control of S4-Shunted.

    Expected:  78.15 % of the test images (seed 0, docs/cifar10.md).
    Cost:      20 epochs of 45,000 images of 32 x 32, about 25 minutes of one core (estimate).
    Command:   s3zoo train cifar10_shunted_micro --data /path/to/cifar10
    """
    return _designed(
        "cifar10_shunted_micro", "cifar10_s4_shunted_2core", depth=(1, 2, 4, 1), embed_dim=(16, 32, 64, 128),
        num_heads=(2, 4, 8, 16), head_dim=8, mlp_ratio=(8, 8, 4, 4),
    )  # fmt: skip
