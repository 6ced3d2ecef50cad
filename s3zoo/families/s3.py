"""S3: hierarchical, attention in shifted windows; a released network is a Swin transformer with larger windows."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

from s3zoo.arch import Arch, Stage
from s3zoo.families import Block, Cost, Family, Gene, Official, Ratio, Shape, register
from s3zoo.families.parts import attention, head, mlp
from s3zoo.space import Dim, Space


@dataclass(frozen=True)
class S3Block(Block):
    """Window attention and an MLP; Q-K-V width (`qkv_dim`) and embedding width are independent."""

    window_size: Gene
    num_heads: Gene
    head_dim: Gene
    mlp_ratio: Ratio

    @property
    def qkv_dim(self) -> int:
        return self.num_heads * self.head_dim


class S3(Family):
    name = "s3"
    block = S3Block
    patch_size = 4
    trading = ("window_size",)  # a larger window may need less padding
    model = "s3zoo.models.s3:S3"
    entrypoint = "s3"
    official = Official(
        tensor="layers.0.blocks.0.attn.relative_position_bias_table",
        first_conv="patch_embed.proj.weight",
        models={6: "s3_tiny", 18: "s3_small", 30: "s3_base"},
        blocks="layers.2.blocks.",
    )
    title = "S3"
    summary = "S3: hierarchical, attention in shifted windows"
    found = (
        "Found by the authors, who searched the search space on ImageNet-1k; this project's implementation:"
        " `s3zoo search s3`."
    )
    source = "s3"
    colour = "blue"
    marker = "o"

    def effective(self, block: Any, stage: int, img_size: tuple[int, int], patch_size: int) -> S3Block:
        """A window at least as large as the feature map is the window that equals it."""
        limit = max(-(-side // (patch_size * 2**stage)) for side in img_size)
        return block if block.window_size <= limit else dataclasses.replace(block, window_size=limit)

    def frame_cost(self, widths: tuple[int, ...], shape: Shape) -> Cost:
        pixels, last = shape.patch_size**2 * shape.in_chans, widths[-1]
        params = (pixels + 1 + 2) * widths[0] + 2 * last + head(last, shape)  # convolution, norms, classifier
        height, width = _map(0, shape)
        macs = height * width * pixels * widths[0] + last * shape.num_classes
        for i in range(1, len(widths)):  # norm and reduction of patch merging
            height, width = _map(i, shape)
            params += 8 * widths[i - 1] + 4 * widths[i - 1] * widths[i]
            macs += height * width * 4 * widths[i - 1] * widths[i]
        return Cost(params, macs, macs)

    def block_cost(self, block: Any, width: int, stage: int, shape: Shape) -> Cost:
        inner, hidden = block.qkv_dim, int(width * block.mlp_ratio)
        table = (2 * block.window_size - 1) ** 2 * block.num_heads
        tokens = pairs = area = 1  # products over the two axes
        for side in _map(stage, shape):
            window = min(side, block.window_size)
            tokens *= -(-side // window) * window  # padded to whole windows
            pairs *= window
            area *= side
        macs = tokens * inner * (4 * width + 2 * pairs) + 2 * area * width * hidden
        return Cost(4 * width + attention(width, inner) + table + mlp(width, hidden), macs, macs)

    def spaces(self) -> tuple[Space, ...]:
        return S3_INITIAL, S4_SWIN

    def designed(self) -> dict[str, Arch]:
        """Swin's Table 7 at 224 x 224."""

        def swin(width: int, depth: int) -> Arch:
            stages = []
            for i, blocks in enumerate((2, 2, depth, 2)):
                block = S3Block(window_size=7, num_heads=width // 32 * 2**i, head_dim=32, mlp_ratio=4.0)
                stages.append(Stage(width * 2**i, (block,) * blocks))
            return Arch("s3", tuple(stages))

        return {"Swin-T": swin(96, 6), "Swin-S": swin(96, 18), "Swin-B": swin(128, 18)}


def _map(stage: int, shape: Shape) -> tuple[int, int]:
    """Height and width of a stage's feature map; each stage halves the one before, rounding up."""
    reduction = shape.patch_size * 2**stage
    return -(-shape.height // reduction), -(-shape.width // reduction)


register(S3())


def s3_space(
    name: str, depth: tuple[int, ...], embed: tuple[int, ...], window: tuple[int, ...], heads: tuple[int, ...],
    mlp: tuple[float, ...], *, steps: tuple[float, float, float, float, float] = (1, 64, 7, 2, 0.5), head_dim: int = 32,
    num_stages: int = 4, patch_size: int = 4,
) -> Space:  # fmt: skip
    """An S3 space that is the same in every stage; `steps` for depth, width, window, heads and MLP ratio.

    S3 section 4.1 prints the lists of heads and MLP ratios swapped; heads and Q-K-V width are one dimension there
    (heads x 32 = Q-K-V width, whose step of 64 is two heads).
    """
    dims = []
    for stage in range(num_stages):
        scale = tuple(float(i == stage) for i in range(num_stages))
        dims += [
            Dim("depth", depth, scale, steps[0]),
            Dim("embed_dim", embed, scale, steps[1]),
            Dim("window_size", window, scale, steps[2], per_block=True),
            Dim("num_heads", heads, scale, steps[3], per_block=True, unit=head_dim, label="qkv_heads"),
            Dim("mlp_ratio", mlp, scale, steps[4], per_block=True),
            Dim("head_dim", (head_dim,), scale),
        ]
    return Space(name, "s3", tuple(dims), num_stages=num_stages, patch_size=patch_size)


S3_INITIAL = s3_space("s3_initial", (2, 3, 4), (224, 256, 288), (7, 14), (7, 8, 9), (3, 3.5, 4))
# S4's text prints "3, 6, 12 and 12" heads; 24 in stage 4 is Swin's. MLP {3, 3.5, 4} is its text, (3.5, 4) its Table 1.
S4_SWIN = Space(
    "s4_swin",
    "s3",
    (
        Dim("embed_dim", (72, 84, 96), (1, 2, 4, 8), 12),
        Dim("mlp_ratio", (3, 3.5, 4), (1, 1, 1, 1), 0.5),
        Dim("depth", (4, 6, 8), (0, 0, 1, 0), 2),
        Dim("depth", (2,), (1, 1, 0, 1), label="other_depths"),
        Dim("num_heads", (3,), (1, 2, 4, 8)),
        Dim("window_size", (7,), (1, 1, 1, 1)),
    ),
    num_stages=4,
)


def _released(depths: tuple[int, ...], window_sizes: tuple[int, ...]) -> Arch:
    """The released networks differ in depth and windows only."""
    return Arch(
        "s3",
        tuple(
            Stage(96 * 2**i, (S3Block(window_size=window, num_heads=3 * 2**i, head_dim=32, mlp_ratio=4.0),) * depth)
            for i, (depth, window) in enumerate(zip(depths, window_sizes, strict=True))
        ),
    )


ARCHS = {
    "s3_tiny": _released((2, 2, 6, 2), (7, 7, 14, 7)),
    "s3_small": _released((2, 2, 18, 2), (14, 14, 14, 7)),
    "s3_base": _released((2, 2, 30, 2), (7, 7, 14, 7)),
    "s3_small_384": _released((2, 2, 18, 2), (24, 24, 24, 12)),
    "s3_base_384": _released((2, 2, 30, 2), (12, 12, 24, 12)),
}
