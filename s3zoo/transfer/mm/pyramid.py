"""Feature pyramids from the one map of a plain vision transformer."""

import math
from collections import OrderedDict

import torch.nn.functional as F
from torch import Tensor, nn

SCALES = (0.25, 0.5, 1, 2)  # of the maps' strides, in units of the one map's: 4, 8, 16 and 32 from 16


class ChannelNorm(nn.LayerNorm):
    """LayerNorm over the channels of maps (B, C, H, W)."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x.permute(0, 2, 3, 1)).permute(0, 3, 1, 2).contiguous()  # (B, C, H, W)


class SimplePyramid(nn.Module):
    """Maps at strides 4, 8, 16 and 32 from one at stride 16 (https://arxiv.org/abs/2203.16527, its figure 2c).

    The map is enlarged by transposed convolutions or halved by max pooling, and each result passes a 1 x 1 and a 3 x 3
    convolution. A map of another stride gives strides in the same proportion: 1/4, 1/2, 1 and 2 times its own.

    Args:
        in_channels: channels of the one map.
        out_channels: channels of each of the pyramid's.
        levels: which of the four are made.
    """

    def __init__(self, in_channels: int, out_channels: int = 256, levels: tuple[int, ...] = (0, 1, 2, 3)) -> None:
        super().__init__()
        self.out_channels = out_channels
        half, quarter = in_channels // 2, in_channels // 4
        resize: list[dict[str, nn.Module]] = [
            dict(
                up1=nn.ConvTranspose2d(in_channels, half, 2, stride=2),
                up_norm=ChannelNorm(half),
                act=nn.GELU(),
                up2=nn.ConvTranspose2d(half, quarter, 2, stride=2),
            ),
            dict(up1=nn.ConvTranspose2d(in_channels, half, 2, stride=2)),
            {},
            dict(pool=nn.MaxPool2d(2, ceil_mode=True)),  # the last row of an odd side counts, as in other networks
        ]
        channels = (quarter, half, in_channels, in_channels)
        self.branches = nn.ModuleList()
        for level in levels:
            layers = resize[level] | dict(  # "norm" in a name keeps a parameter out of weight decay
                conv1=nn.Conv2d(channels[level], out_channels, 1, bias=False),
                norm1=ChannelNorm(out_channels),
                conv2=nn.Conv2d(out_channels, out_channels, 3, padding=1, bias=False),
                norm2=ChannelNorm(out_channels),
            )
            self.branches.append(nn.Sequential(OrderedDict(layers)))

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        return tuple(branch(x) for branch in self.branches)


class ResizePyramid(nn.Module):
    """The same strides without any parameter: the map itself, enlarged or halved bilinearly.

    Args:
        in_channels: channels of the one map, and of each of the pyramid's.
        levels: which of the four are made.
    """

    def __init__(self, in_channels: int, levels: tuple[int, ...] = (0, 1, 2, 3)) -> None:
        super().__init__()
        self.out_channels = in_channels
        self.levels = levels

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        return tuple(self._resized(x, SCALES[level]) for level in self.levels)

    def _resized(self, x: Tensor, scale: float) -> Tensor:
        size = [math.ceil(side / scale) for side in x.shape[2:]]
        return x if scale == 1 else F.interpolate(x, size=size, mode="bilinear", align_corners=False)
