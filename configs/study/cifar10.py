"""The searches on CIFAR-10 at 32 x 32 with their controls: what docs/cifar10.md reports.

S3 and S4-ViT with three seeds each, beside them the same searches without moving the space (for S4-ViT that is
AutoFormer); a network designed by hand, a random one and random search are trained within the first runs of each. The
other methods have one seed. What stands last is left out first.
"""

from s3zoo.study import Study, StudyRun

# Swin's proportions: widths double, depths 1 : 1 : 3, MLP ratio 4, all heads of one width.
SWIN = (
    '{"depth": (1, 1, 3), "embed_dim": (18, 36, 72), "num_heads": (1, 2, 4), "head_dim": 18, "window_size": 4,'
    ' "mlp_ratio": 4}'
)
# DeiT's: one width, MLP ratio 4.
DEIT = '{"depth": 5, "embed_dim": 40, "num_heads": 2, "head_dim": 20, "mlp_ratio": 4}'
ALL = "--set controls.random=true --set controls.random_search=true"


def _search(name: str, config: str, seed: int, more: str = "") -> StudyRun:
    return StudyRun(f"{name}-{seed}", f"search {config} --set seed={seed} --set threads=1 {more}".rstrip())


def _designed(network: str) -> str:
    return f"--set 'controls.designed={network}'"


def _still(seed: int) -> StudyRun:
    """S3 without its space search: one supernet, trained as long as the three."""
    more = "--set space_search.method=none --set space_search.backtrack=false --set supernet.epochs=9"
    return _search("s3_still", "cifar10_s3_2core", seed, more)


config = Study(
    name="cifar10",
    images=45_000,
    runs=(
        *(_search("s3", "cifar10_s3_2core", seed, f"{ALL} {_designed(SWIN)}") for seed in range(3)),
        *(_search("s4_vit", "cifar10_s4_vit_2core", seed, f"{ALL} {_designed(DEIT)}") for seed in range(3)),
        _search("autoformer", "cifar10_autoformer_2core", 0),
        _search("glit", "cifar10_glit_2core", 0),
        *(_still(seed) for seed in range(3)),
        *(_search("autoformer", "cifar10_autoformer_2core", seed) for seed in (1, 2)),
        _search("s4_swin", "cifar10_s4_swin_2core", 0),
        _search("s4_shunted", "cifar10_s4_shunted_2core", 0),
    ),
)
