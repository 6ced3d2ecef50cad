"""The networks of the family mix."""

from typing import Any

import torch
from timm.layers import Mlp
from timm.models import generate_default_cfgs
from torch import Tensor, nn

from mixzoo.family import TINY, MixBlock
from s3zoo.arch import Arch
from s3zoo.models._base import Plain
from s3zoo.models.loading import IMAGENET, fit_pos_embed, fit_weights, register
from s3zoo.models.official import unwrap


class Block(nn.Module):
    def __init__(self, dim: int, genes: MixBlock, device=None, dtype=None) -> None:
        super().__init__()
        dd = {"device": device, "dtype": dtype}
        self.norm = nn.LayerNorm(dim, **dd)
        self.mlp = Mlp(dim, int(dim * genes.growth), **dd)

    def forward(self, x: Tensor) -> Tensor:
        x = x + x.mean(1, keepdim=True)
        return x + self.mlp(self.norm(x))


class MixNet(Plain):
    family = "mix"
    pools = ("avg", "token", "")
    norm_eps = 1e-6

    @staticmethod
    def make_block(arch: Arch, stage: int, index: int, *, drop_path: float = 0.0, device=None, dtype=None) -> nn.Module:
        where = arch.stages[stage]
        return Block(where.embed_dim, where.blocks[index], device=device, dtype=dtype)

    def forward_features(self, x: Tensor) -> Tensor:
        x, _, _ = self.embed(x)
        for block in self.blocks:
            x = block(x)
        return self.norm(x)


def checkpoint_filter_fn(state_dict: dict[str, Any], model: MixNet) -> dict[str, Tensor]:
    def adapt(name: str, value: Tensor, shape: torch.Size) -> Tensor:
        return fit_pos_embed(value, model) if name == "pos_embed" else value

    return fit_weights(unwrap(state_dict), model, adapt)


default_cfgs = generate_default_cfgs(
    {name: {**IMAGENET, "classifier": "head", "fixed_input_size": True} for name in ("mix_tiny", "mix")}
)
register(MixNet, "mix_tiny", "A small one.", arch=TINY)
register(MixNet, "mix", "Any network of the family.", arch=TINY)
