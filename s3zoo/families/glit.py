"""GLiT: blocks that mix attention heads and local heads, which are convolutions unless `locality` says otherwise."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from s3zoo.arch import Arch, Stage
from s3zoo.checks import Range, refusal
from s3zoo.families import LARGEST, Block, Cost, Family, Gene, Official, Ratio, Shape, check_ratio, register
from s3zoo.families.parts import DEIT_HEADS, attention, grid, mlp, plain_frame
from s3zoo.space import Dim, Space


@dataclass(frozen=True)
class GLiTBlock(Block):
    """The first `global_heads` of `num_heads` equal channel groups attend to all tokens, the others stay local.

    `locality` is how: "conv1d" or "conv2d", a convolution module whose depthwise kernel has `kernel_size` taps or
    `kernel_size` x `kernel_size`, or "area", attention among `kernel_size` tokens. `expansion` is by how much the inner
    width of the module, or the width of queries, keys and values, exceeds that of the local channels.
    """

    num_heads: Gene
    global_heads: Annotated[int, Range(0, LARGEST)]
    head_dim: Gene
    kernel_size: Gene
    expansion: Ratio
    mlp_ratio: Ratio
    locality: Literal["conv1d", "conv2d", "area"] = "conv1d"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.global_heads > self.num_heads:
            raise refusal("global_heads", self.global_heads, f"at most num_heads ({self.num_heads})")
        if self.locality != "area" and self.kernel_size % 2 == 0:
            raise refusal("kernel_size", self.kernel_size, "odd")

    @property
    def local_heads(self) -> int:
        return self.num_heads - self.global_heads

    @property
    def qkv_dim(self) -> int:
        return self.global_heads * self.head_dim

    @property
    def idle(self) -> dict[str, Any]:
        attention = {} if self.global_heads else {"head_dim": 1}
        return attention if self.local_heads else attention | {"kernel_size": 1, "expansion": 1.0}

    def local_width(self, embed_dim: int) -> int:
        """Channels of the local heads."""
        return embed_dim * self.local_heads // self.num_heads

    def inner_width(self, embed_dim: int) -> int:
        """Channels inside the local module, or of its queries."""
        if self.locality == "area":
            return self.local_heads * int(embed_dim // self.num_heads * self.expansion)
        return int(self.local_width(embed_dim) * self.expansion)


class GLiT(Family):
    name = "glit"
    block = GLiTBlock
    patch_size = 16
    stages = 1
    batch_norms = True
    trading = ("global_heads", "num_heads")  # more global heads are fewer local ones, more heads make each narrower
    dividing = ("global_heads",)
    model = "s3zoo.models.glit:GLiT"
    entrypoint = "glit"
    official = Official(
        tensor="blocks.0.0.norm1.weight", first_conv="patch_embed.proj.weight", models={192: "glit_tiny"}
    )
    title = "GLiT"
    summary = "GLiT: blocks that mix attention heads and convolution heads"
    found = (
        "Found by the authors with a hierarchical search on ImageNet-1k; this project's implementation:"
        " `s3zoo search {name}`."
    )
    source = "glit"
    colour = "green"
    marker = "^"

    def check(self, embed_dim: int, block: Any) -> None:
        if embed_dim % block.num_heads:
            raise refusal("num_heads", block.num_heads, f"a divisor of embed_dim {embed_dim}")
        super().check(embed_dim, block)
        if block.local_heads:
            width = embed_dim // block.num_heads if block.locality == "area" else block.local_width(embed_dim)
            check_ratio(block, "expansion", width)

    def class_token(self, arch: Arch) -> bool:
        """A 2-D convolution needs the tokens as a map, in which a class token has no place (GLiT 4.3)."""
        return all(block.locality != "conv2d" for block in arch.stages[0].blocks)

    def effective(self, block: Any, stage: int, img_size: tuple[int, int], patch_size: int) -> Any:
        block = super().effective(block, stage, img_size, patch_size)
        if block.locality != "area":
            return block
        patches = max((img_size[0] // patch_size) * (img_size[1] // patch_size), 1)
        return dataclasses.replace(block, kernel_size=min(block.kernel_size, patches))

    def frame_cost(self, widths: tuple[int, ...], shape: Shape) -> Cost:
        return plain_frame(self.name, widths[0], shape)

    def block_cost(self, block: Any, width: int, stage: int, shape: Shape) -> Cost:
        """GLiT's own counter takes the first pointwise convolution without its gate (half of its outputs)."""
        patches, hidden, inner = grid(self.name, shape), int(width * block.mlp_ratio), block.qkv_dim
        tokens = patches + shape.class_token
        local, expanded = block.local_width(width), block.inner_width(width)
        attended = width - local
        params = 4 * width + mlp(width, hidden)
        if attended:
            params += attention(attended, inner)
        macs = 2 * tokens * width * hidden + tokens * inner * (4 * attended + 2 * tokens)
        if block.locality == "area":  # queries of patches meet their area, that of the class token meets all
            areas, rest = divmod(patches, block.kernel_size)
            pairs = areas * block.kernel_size**2 + rest**2 + (tokens if shape.class_token else 0)
            params += attention(local, expanded) if local else 0
            macs += expanded * (4 * tokens * local + 2 * pairs)
            return Cost(params, macs, macs)
        taps = block.kernel_size ** (2 if block.locality == "conv2d" else 1)
        if local:  # pointwise to pairs, depthwise, batch norm, pointwise
            params += 2 * (local + 1) * expanded + (taps + 1) * expanded + 2 * expanded
            params += (expanded + 1) * local
        gate = tokens * expanded * local
        paper = macs + tokens * expanded * (local + taps + local)
        return Cost(params, paper + gate, paper)

    def priced(self, model_args: Mapping[str, Any]) -> bool:
        return not model_args.get("as_printed")  # which has more norms

    def spaces(self) -> tuple[Space, ...]:
        return GLIT_TINY, GLIT_SMALL, GLIT_BASE, GLIT_TINY_CONV2D, GLIT_TINY_AREA

    def designed(self) -> dict[str, Arch]:
        """DeiT: all heads are global."""
        block = GLiTBlock(num_heads=1, global_heads=1, head_dim=64, kernel_size=1, expansion=1.0, mlp_ratio=4.0)
        return {
            name: Arch("glit", (Stage(64 * n, (dataclasses.replace(block, num_heads=n, global_heads=n),) * 12),))
            for name, n in DEIT_HEADS.items()
        }


register(GLiT())


def glit_space(
    name: str, embed_dim: int, num_heads: int, *, depth: int = 12, kernels: tuple[int, ...] = (17, 31, 45),
    expansions: tuple[int, ...] = (1, 2, 4), head_dims: tuple[int, ...] | None = None, mlp: tuple[int, ...] = (2, 4, 6),
    patch_size: int = 16, groups: int = 3, locality: str = "conv1d",
) -> Space:  # fmt: skip
    """GLiT Table 2. The (G, L) split moves in thirds of the heads; d_k = 3 x head_dim is 96, 192, 384 at width 192."""
    width = embed_dim // num_heads
    dims = (
        Dim("depth", (depth,)),
        Dim("embed_dim", (embed_dim,)),
        Dim("num_heads", (num_heads,)),
        Dim("global_heads", tuple(num_heads * g // groups for g in range(groups + 1)), per_block=True, low=0),
        Dim("kernel_size", kernels, per_block=True),
        Dim("expansion", expansions, per_block=True),
        Dim("head_dim", head_dims or (width // 2, width, width * 2), per_block=True),
        Dim("mlp_ratio", mlp, per_block=True),
    )
    words = () if locality == "conv1d" else (Dim("locality", (locality,)),)
    return Space(name, "glit", dims + words, patch_size=patch_size)


def glit_split(space: Space) -> Space:
    """GLiT's first stage: the (G, L) split is searched, the details of blocks stand at their middle choices."""
    middle = {d.name: (d.choices[len(d.choices) // 2],) for d in space.dims if d.per_block and d.gene != "global_heads"}
    return space.replaced(middle, name=f"{space.name}_split")


def glit_details(space: Space, arch: Arch) -> Space:
    """GLiT's second stage: the split of `arch` is fixed, and the details are searched that matter there.

    d_k and d_z in all-global blocks, K and E in all-local ones, E and d_z in mixed ones; the others stand at their
    middle choices, as in the released network.
    """
    searched = {"global": {"head_dim", "mlp_ratio"}, "local": {"kernel_size", "expansion"}}
    searched["mixed"] = {"expansion", "mlp_ratio"}
    kinds: dict[str, list[int]] = {}
    splits: dict[int, list[int]] = {}
    for j, block in enumerate(arch.stages[0].blocks):
        kind = "local" if not block.global_heads else "mixed" if block.local_heads else "global"
        kinds.setdefault(kind, []).append(j)
        splits.setdefault(block.global_heads, []).append(j)
    dims: list[Dim] = []
    for dim in space.dims:
        if dim.gene == "global_heads":
            dims += [dataclasses.replace(dim, choices=(g,), blocks=tuple(at)) for g, at in sorted(splits.items())]
        elif dim.per_block:
            middle = (dim.choices[len(dim.choices) // 2],)
            free = [j for kind, at in kinds.items() if dim.gene in searched[kind] for j in at]
            rest = [j for kind, at in kinds.items() if dim.gene not in searched[kind] for j in at]
            dims += [dataclasses.replace(dim, blocks=tuple(free))] if free else []
            dims += [dataclasses.replace(dim, choices=middle, blocks=tuple(rest))] if rest else []
        else:
            dims.append(dim)
    return dataclasses.replace(space, name=f"{space.name}_details", dims=tuple(dims))


GLIT_TINY = glit_space("glit_tiny", 192, 3)
GLIT_SMALL = glit_space("glit_small", 384, 6)
GLIT_BASE = glit_space("glit_base", 768, 12)
# GLiT 4.3: the other ways to be local, all else being equal
GLIT_TINY_CONV2D = glit_space("glit_tiny_conv2d", 192, 3, kernels=(3, 5, 7), locality="conv2d")
GLIT_TINY_AREA = glit_space("glit_tiny_area", 192, 3, kernels=(14, 28, 49), locality="area")


def arch_from_codes(embed_dim: int, num_heads: int, codes: Sequence[int], thirds: Sequence[int]) -> Arch:
    """The architecture of the official genome: per block the attending thirds of the heads and a code 0..8.

    The meaning of a code depends on the kind of block: (kernel, expansion) where all heads are local, (head width,
    MLP ratio) where all are global, (expansion, MLP ratio) where both occur.
    """
    blocks = []
    width = embed_dim // num_heads
    for third, code in zip(thirds, codes, strict=True):
        high, low = divmod(code, 3)
        genes: dict[str, Any] = dict(head_dim=width, kernel_size=31, expansion=1.0, mlp_ratio=4.0)
        if third == 0:
            genes |= dict(kernel_size=(17, 31, 45)[high], expansion=(1.0, 2.0, 4.0)[low])
        elif third == 3:
            genes |= dict(head_dim=(width // 2, width, 2 * width)[high], mlp_ratio=(2.0, 4.0, 6.0)[low])
        else:
            genes |= dict(expansion=(1.0, 2.0, 4.0)[high], mlp_ratio=(2.0, 4.0, 6.0)[low])
        block = GLiTBlock(num_heads, num_heads * third // 3, **genes)
        blocks.append(dataclasses.replace(block, **block.idle))
    return Arch("glit", (Stage(embed_dim, tuple(blocks)),))


_THIRDS = (3, 0, 1, 3, 0, 1, 3, 1, 0, 3, 0, 3)
TINY = arch_from_codes(192, 3, (1, 4, 8, 4, 8, 8, 3, 6, 8, 4, 5, 8), _THIRDS)
# The authors released neither the genomes nor the widths of Small and Base. These two were chosen by us, not found by
# the authors: the fewest steps away from Tiny's genome, at DeiT's widths, such that parameters and multiply-adds in the
# official counting print as in the paper: 24.6M, 4.4G (24,622,120, 4.402G) and 96.1M, 17.0G (96,146,536, 17.038G).
SMALL = arch_from_codes(384, 6, (1, 4, 6, 4, 8, 8, 3, 6, 8, 4, 4, 4), _THIRDS)
BASE = arch_from_codes(768, 12, (1, 4, 6, 4, 2, 8, 3, 6, 8, 4, 4, 4), _THIRDS)
