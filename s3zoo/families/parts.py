"""Parameters and MACs of the parts that several families have."""

from __future__ import annotations

from s3zoo.families import Cost, Shape

DEIT_HEADS = {"DeiT-T": 3, "DeiT-S": 6, "DeiT-B": 12}  # of 64 channels, in 12 blocks (DeiT's Table 1)


def head(dim: int, shape: Shape) -> int:
    return shape.num_classes * (dim + 1)


def mlp(dim: int, hidden: int) -> int:
    return 2 * dim * hidden + hidden + dim


def attention(dim: int, inner: int) -> int:
    return 3 * dim * inner + 3 * inner + inner * dim + dim


def grid(family: str, shape: Shape) -> int:
    """The number of patches of a plain transformer."""
    patch = shape.patch_size
    if shape.height % patch or shape.width % patch:
        raise ValueError(
            f"img_size is {shape.height} x {shape.width}, but must be a multiple of {patch} in family {family!r} with"
            " this patch size."
        )
    return (shape.height // patch) * (shape.width // patch)


def plain_frame(family: str, dim: int, shape: Shape) -> Cost:
    """Patches, class token, position embedding, norm and classifier."""
    patches, pixels = grid(family, shape), shape.patch_size**2 * shape.in_chans
    extra = int(shape.class_token)
    macs = patches * pixels * dim + dim * shape.num_classes
    return Cost((pixels + 1) * dim + (patches + 2 * extra) * dim + 2 * dim + head(dim, shape), macs, macs)
