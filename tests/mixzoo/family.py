"""A family of another package, for tests: every token is mixed with the mean of all, then passes an MLP."""

from dataclasses import dataclass

from s3zoo.arch import Arch, Stage
from s3zoo.families import Block, Cost, Family, Ratio, Shape, check_ratio, register
from s3zoo.families.parts import grid, mlp, plain_frame
from s3zoo.space import Dim, Space


@dataclass(frozen=True)
class MixBlock(Block):
    growth: Ratio


class Mix(Family):
    name = "mix"
    block = MixBlock
    patch_size = 4
    stages = 1
    model = "mixzoo.model:MixNet"
    entrypoint = "mix"
    title = "Mix"
    summary = "Mix: tokens that see the mean of all tokens"

    def check(self, embed_dim: int, block: MixBlock) -> None:
        check_ratio(block, "growth", embed_dim)

    def frame_cost(self, widths: tuple[int, ...], shape: Shape) -> Cost:
        return plain_frame(self.name, widths[0], shape)

    def block_cost(self, block: MixBlock, width: int, stage: int, shape: Shape) -> Cost:
        hidden, tokens = int(width * block.growth), grid(self.name, shape) + 1
        macs = 2 * tokens * width * hidden
        return Cost(2 * width + mlp(width, hidden), macs, macs)

    def spaces(self) -> tuple[Space, ...]:
        return (MIX_TINY,)


register(Mix())

MIX_TINY = Space(
    "mix_tiny",
    "mix",
    (
        Dim("depth", (1, 2, 3), step=1),
        Dim("embed_dim", (8, 12, 16), step=4),
        Dim("growth", (1, 1.5, 2), step=0.5, per_block=True),
    ),
    patch_size=2,
)
TINY = Arch("mix", (Stage(16, (MixBlock(1.5), MixBlock(2))),))
