"""What a network of the zoo is to timm, apart from its blocks: `Hierarchical` (stages of maps) and `Plain` (tokens)."""

# No `from __future__ import annotations` here: a traced model is scripted with the annotation of forward's argument,
# which must then be the type and not its name.
import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from timm.layers import (
    ClassifierHead,
    global_pool_nlc,
    register_notrace_function,
    register_notrace_module,
    resample_abs_pos_embed,
)
from timm.models import checkpoint, checkpoint_seq, named_apply
from timm.models._features import feature_take_indices
from torch import Tensor, nn

from s3zoo.arch import Arch, Stage
from s3zoo.compat import device_dtype, reset_head
from s3zoo.families import FAMILIES
from s3zoo.models.layers import trunc_normal_

ArchLike = Arch | Mapping[str, Any] | str | Path
Size = int | tuple[int, int]


@torch.fx.wrap
@register_notrace_function
def check_images(x: Tensor, in_chans: int, smallest: int) -> Tensor:
    if x.ndim != 4 or x.shape[1] != in_chans or x.shape[2] < 1 or x.shape[3] < 1:
        raise ValueError(
            f"The input has shape {list(x.shape)}, but must be (batch, {in_chans}, height, width) with no empty axis; "
            "convert the images, or build the model with as many in_chans as they have."
        )
    if x.shape[2] < smallest or x.shape[3] < smallest:
        raise ValueError(
            f"The input is {x.shape[2]} x {x.shape[3]}, but both sides must be at least {smallest}; resize the images."
        )
    return x


def to_size(img_size: Any, valid: Callable[[int], bool], what: str) -> tuple[int, int]:
    """Height and width; `what` says which sides are `valid`."""
    size = tuple(img_size) if isinstance(img_size, tuple | list) else (img_size, img_size)
    if len(size) != 2 or any(isinstance(s, bool) or not isinstance(s, int) or s < 1 or not valid(s) for s in size):
        raise ValueError(f"img_size is {img_size!r}, but must be {what}.")
    return size[0], size[1]


class ZooModel(nn.Module):
    """What all networks have in common. `no_decay` matches parameters without weight decay besides factored biases."""

    family: str
    first_conv = "patch_embed.proj"
    classifier: str
    no_decay = r"(?!)"  # nothing

    def __init__(self, arch: Arch, in_chans: int, num_classes: int) -> None:
        super().__init__()
        self.arch = arch
        self.in_chans = in_chans
        self.num_classes = num_classes
        self.embed_dim = self.arch.embed_dims[0]
        self.num_features = self.head_hidden_size = self.arch.embed_dims[-1]

    @classmethod
    def parse(cls, arch: ArchLike) -> Arch:
        """The architecture, if this network can be built from it."""
        arch = Arch.parse(arch)
        if arch.family != cls.family:
            from s3zoo.models import ENTRYPOINTS  # which knows all families, this file among them

            raise ValueError(
                f"The architecture is of family {arch.family!r}, but {cls.__name__} builds family "
                f"{cls.family!r}; use the model {ENTRYPOINTS[arch.family]!r}."
            )
        return arch

    @staticmethod
    def make_block(arch: Arch, stage: int, index: int, *, drop_path: float = 0.0, device=None, dtype=None) -> nn.Module:
        """One block as the constructor builds it: nothing but genes, width and place decide, not the input size."""
        raise NotImplementedError

    def make_blocks(self, stage: int, drop_path_rate: float, device=None, dtype=None) -> list[nn.Module]:
        """The blocks of a stage; their drop path rises linearly over those of all stages."""
        depths = self.arch.depths
        first, step = sum(depths[:stage]), drop_path_rate / max(sum(depths) - 1, 1)
        return [
            self.make_block(self.arch, stage, i, drop_path=step * (first + i), device=device, dtype=dtype)
            for i in range(depths[stage])
        ]

    @torch.jit.ignore
    def init_weights(self, mode: str = "", needs_reset: bool = True) -> None:
        """Initialise as the official code; `needs_reset` also where modules have initialised themselves."""
        if mode:
            name = type(self).__name__
            raise ValueError(f"The initialisation mode is {mode!r}, but {name} has one only; leave the mode empty.")

        def init(module: nn.Module, name: str = "") -> None:
            if not self.init_layer(module) and needs_reset:
                getattr(module, "reset_parameters", lambda: None)()

        named_apply(init, self)

    def init_layer(self, module: nn.Module) -> bool:
        """Initialise a layer that is not left to itself; whether this is one."""
        if isinstance(module, nn.Linear):
            init_linear(module)
        return isinstance(module, nn.Linear)

    @torch.jit.ignore
    def no_weight_decay(self) -> set[str]:
        parameters = self.named_parameters()
        return {n for n, p in parameters if n.endswith(".bias") and p.ndim > 1 or re.search(self.no_decay, n)}

    def drop_ends(self, prune_norm: bool, prune_head: bool) -> None:
        """What else goes when layers are pruned."""
        if prune_norm:
            self.norm: nn.Module = nn.Identity()
        if prune_head:
            self.reset_classifier(0, "")

    def reset_classifier(self, num_classes: int, global_pool: str | None = None) -> None:
        raise NotImplementedError

    def forward_features(self, x: Tensor) -> Tensor:
        raise NotImplementedError

    def forward_head(self, x: Tensor, pre_logits: bool = False) -> Tensor:
        raise NotImplementedError

    def forward(self, x: Tensor) -> Tensor:
        return self.forward_head(self.forward_features(x))


def init_linear(layer: nn.Linear) -> None:
    trunc_normal_(layer.weight)
    if layer.bias is not None:
        nn.init.zeros_(layer.bias)


class BlockSequence(nn.Sequential):
    """Blocks one after the other, recomputed in the backward pass if `grad_checkpointing`."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.grad_checkpointing = False

    def forward(self, x: Tensor) -> Tensor:
        if self.grad_checkpointing and not torch.jit.is_scripting():
            return checkpoint_seq(list(self), x)
        for block in self:
            x = block(x)
        return x


class Hierarchical(ZooModel):
    """Maps (B, H, W, C) through stages, each at half the size of the one before. Any input size works; `img_size` is
    the one that the network is meant for.
    """

    classifier = "head.fc"

    def __init__(
        self,
        arch: Arch,
        img_size: Size = 224,
        in_chans: int = 3,
        num_classes: int = 1000,
        global_pool: str = "avg",
        smallest: int = 1,
    ) -> None:
        """All but the layers: a family's constructor goes on with `patch_embed`, `stages`, `norm` and `head`.

        Args:
            smallest: the least height and width that the layers can take.
        """
        super().__init__(arch, in_chans, num_classes)
        self.global_pool = global_pool
        self.output_fmt = "NHWC"
        self.feature_info = [
            dict(num_chs=dim, reduction=self.arch.patch_size * 2**i, module=f"stages.{i}")
            for i, dim in enumerate(self.arch.embed_dims)
        ]
        self.smallest = smallest
        self.img_size = self.to_size(img_size)
        # Here and not in the class, where TorchScript would read them.
        self.patch_embed: Any
        self.stages: nn.Sequential
        self.norm: nn.Module
        self.head: ClassifierHead

    def make_head(self, drop_rate: float, device=None, dtype=None) -> ClassifierHead:
        return ClassifierHead(
            self.num_features,
            self.num_classes,
            self.global_pool,
            drop_rate,
            input_fmt="NHWC",
            device=device,
            dtype=dtype,
        )

    def to_size(self, img_size: Any) -> tuple[int, int]:
        what = f"an integer of at least {self.smallest} or a pair (height, width)"
        return to_size(img_size, lambda side: side >= self.smallest, what)

    @staticmethod
    def blocks_path(stage: int) -> str:
        return f"stages.{stage}.blocks"

    @torch.jit.ignore
    def group_matcher(self, coarse: bool = False) -> dict[str, Any]:
        fine = [
            (r"^stages\.(\d+)\.(?:downsample|patch_embed)", (0,)),
            (r"^stages\.(\d+)\.blocks\.(\d+)", None),
            (r"^stages\.(\d+)\.norm", (99999,)),  # with the last block
            (r"^norm", (99999,)),
        ]
        return dict(stem=r"^(?:stages\.0\.)?patch_embed", blocks=r"^stages\.(\d+)" if coarse else fine)

    @torch.jit.ignore
    def set_grad_checkpointing(self, enable: bool = True) -> None:
        for module in self.modules():
            if isinstance(module, BlockSequence):
                module.grad_checkpointing = enable

    @torch.jit.ignore
    def get_classifier(self) -> nn.Module:
        return self.head.fc

    @torch.jit.ignore
    def reset_classifier(self, num_classes: int, global_pool: str | None = None) -> None:
        self.num_classes = num_classes
        if global_pool is not None:
            self.global_pool = global_pool
        reset_head(self.head, num_classes, global_pool, **device_dtype(self))

    @torch.jit.ignore
    def set_input_size(self, img_size: Size) -> None:
        """Say which size the network is meant for; it takes any other as well."""
        self.img_size = self.to_size(img_size)

    @torch.jit.ignore
    def forward_intermediates(
        self,
        x: Tensor,
        indices: int | list[int] | None = None,
        norm: bool = False,
        stop_early: bool = False,
        output_fmt: str = "NCHW",
        intermediates_only: bool = False,
    ) -> list[Tensor] | tuple[Tensor, list[Tensor]]:
        """The outputs of the stages in `indices` (the last n if an int), and the final features.

        Args:
            norm: apply the final norm, if the family has one, to the last stage's map.
            stop_early: run no stage after the last one that is wanted.
            output_fmt: "NCHW" or "NHWC".
        """
        if output_fmt not in ("NCHW", "NHWC"):
            raise ValueError(f"output_fmt is {output_fmt!r}, but must be 'NCHW' or 'NHWC'.")
        take, last = feature_take_indices(len(self.stages), indices)
        maps = []
        x = self.patch_embed(check_images(x, self.in_chans, self.smallest))
        for i, stage in enumerate(self.stages[: last + 1] if stop_early else self.stages):
            x = stage(x)
            if i in take:
                y = self.norm(x) if norm and i == len(self.stages) - 1 else x
                maps.append(y.permute(0, 3, 1, 2).contiguous() if output_fmt == "NCHW" else y)
        return maps if intermediates_only else (self.norm(x), maps)

    @torch.jit.ignore
    def prune_intermediate_layers(
        self, indices: int | list[int] = 1, prune_norm: bool = False, prune_head: bool = True
    ) -> list[int]:
        """Drop the stages that the intermediates `indices` do not need; norms of stages stay, they are part of them."""
        take, last = feature_take_indices(len(self.stages), indices)
        self.stages = self.stages[: last + 1]
        self.drop_ends(prune_norm, prune_head)
        return take

    def forward_features(self, x: Tensor) -> Tensor:
        x = self.patch_embed(check_images(x, self.in_chans, self.smallest))
        return self.norm(self.stages(x))

    def forward_head(self, x: Tensor, pre_logits: bool = False) -> Tensor:
        return self.head(x, pre_logits=True) if pre_logits else self.head(x)


@register_notrace_module  # reason: the checks read the actual size
class PatchGrid(nn.Module):
    """Images to a grid of tokens (B, h, w, C), of the size the network is built for, or of any size if `dynamic`: it is
    padded with zeros to whole patches."""

    def __init__(
        self, img_size: Any, patch_size: int, in_chans: int, embed_dim: int, dynamic: bool, device=None, dtype=None
    ) -> None:
        super().__init__()
        self.patch_size = patch_size
        self.in_chans = in_chans
        self.dynamic = dynamic
        self.set_input_size(img_size)
        self.proj = nn.Conv2d(in_chans, embed_dim, patch_size, stride=patch_size, device=device, dtype=dtype)

    @torch.jit.ignore
    def set_input_size(self, img_size: Any) -> None:
        patch = self.patch_size
        what = f"a multiple of the patch size {patch}, or a pair (height, width) of such; a model built with"
        what += " dynamic_img_size=True takes images of any size"
        self.img_size = to_size(img_size, lambda side: side % patch == 0, what)
        self.grid_size = (self.img_size[0] // patch, self.img_size[1] // patch)

    def forward(self, x: Tensor) -> Tensor:
        x = check_images(x, self.in_chans, 1)
        height, width = x.shape[2], x.shape[3]
        if self.dynamic:
            if height % self.patch_size or width % self.patch_size:
                x = F.pad(x, [0, -width % self.patch_size, 0, -height % self.patch_size])
        elif height != self.img_size[0] or width != self.img_size[1]:
            raise ValueError(
                f"The input is {height} x {width}, but the model is built for {self.img_size[0]} x "
                f"{self.img_size[1]}; resize the images, call set_input_size((height, width)), or build the model with "
                "this img_size, or with dynamic_img_size=True, which takes any size."
            )
        return self.proj(x).permute(0, 2, 3, 1)  # (B, h, w, C)


class Tokens(ZooModel):
    """Networks of blocks of one width, with a linear classifier."""

    classifier = "head"

    def check_pool(self, global_pool: str) -> str:
        """The pooling, if the network has it."""
        raise NotImplementedError

    @staticmethod
    def blocks_path(stage: int) -> str:
        return "blocks"

    @torch.jit.ignore
    def group_matcher(self, coarse: bool = False) -> dict[str, Any]:
        stem = r"^(?:cls_token|pos_embed|patch_embed|query)"
        return dict(stem=stem, blocks=[(r"^blocks\.(\d+)", None), (r"^norm", (99999,))])

    @torch.jit.ignore
    def set_grad_checkpointing(self, enable: bool = True) -> None:
        self.grad_checkpointing = enable

    @torch.jit.ignore
    def get_classifier(self) -> nn.Module:
        return self.head

    @torch.jit.ignore
    def reset_classifier(self, num_classes: int, global_pool: str | None = None) -> None:
        if global_pool is not None:
            self.global_pool = self.check_pool(global_pool)
        dd = device_dtype(self)
        self.num_classes = num_classes
        self.head: nn.Module = nn.Linear(self.embed_dim, num_classes, **dd) if num_classes > 0 else nn.Identity()
        self.head.train(self.training)

    def keep_blocks(self, count: int) -> None:
        """Drop the blocks after so many."""
        stage, blocks = self.arch.stages[0], self.get_submodule("blocks")
        self.blocks = blocks[:count]  # type: ignore[index]
        self.arch = replace(self.arch, stages=(Stage(stage.embed_dim, stage.blocks[:count]),))


class Plain(Tokens):
    """Tokens (B, N, C), the class token first if there is one, through blocks of one width."""

    __constants__ = ["dynamic_img_size"]  # lets TorchScript leave out a branch
    no_decay = r"^(pos_embed|cls_token)$"
    pools: tuple[str, ...]
    norm_eps: float

    def __init__(
        self,
        arch: ArchLike,
        img_size: Size = 224,
        in_chans: int = 3,
        num_classes: int = 1000,
        global_pool: str = "avg",
        drop_rate: float = 0.0,
        drop_path_rate: float = 0.0,
        dynamic_img_size: bool = False,
        device=None,
        dtype=None,
    ) -> None:
        super().__init__(self.parse(arch), in_chans, num_classes)
        dd = {"device": device, "dtype": dtype}
        self.num_prefix_tokens = int(FAMILIES[self.family].class_token(self.arch))
        self.global_pool = self.check_pool(global_pool)
        self.dynamic_img_size = dynamic_img_size
        self.output_fmt = "NLC"
        self.patch_size = self.arch.patch_size
        self.grad_checkpointing = False
        self.feature_info = [
            dict(num_chs=self.embed_dim, reduction=self.patch_size, module=f"blocks.{i}")
            for i in range(self.arch.depths[0])
        ]
        self.patch_embed = PatchGrid(img_size, self.patch_size, in_chans, self.embed_dim, dynamic_img_size, **dd)
        grid = self.patch_embed.grid_size
        prefix = self.num_prefix_tokens
        self.cls_token = nn.Parameter(torch.empty(1, 1, self.embed_dim, **dd)) if prefix else None
        self.pos_embed = nn.Parameter(torch.empty(1, prefix + grid[0] * grid[1], self.embed_dim, **dd))
        self.blocks = nn.ModuleList(self.make_blocks(0, drop_path_rate, **dd))
        self.norm: nn.Module = nn.LayerNorm(self.embed_dim, eps=self.norm_eps, **dd)
        self.head_drop = nn.Dropout(drop_rate)
        self.head = nn.Linear(self.embed_dim, num_classes, **dd) if num_classes > 0 else nn.Identity()
        self.init_weights(needs_reset=False)

    def check_pool(self, global_pool: str) -> str:
        pools = [pool for pool in self.pools if pool != "token" or self.num_prefix_tokens]
        if global_pool not in pools:
            valid = ", ".join(map(repr, pools))
            raise ValueError(f"global_pool is {global_pool!r}, but must be one of {valid} ('' is no pooling).")
        return global_pool

    @torch.jit.ignore
    def init_weights(self, mode: str = "", needs_reset: bool = True) -> None:
        """Initialise as the official code; `needs_reset` also where modules have initialised themselves."""
        if not mode:  # there is no other
            trunc_normal_(self.pos_embed)
            if self.cls_token is not None:
                trunc_normal_(self.cls_token)
        super().init_weights(mode, needs_reset)

    @torch.jit.ignore
    def set_input_size(self, img_size: Size) -> None:
        """Build for another input size: the position embedding is resized."""
        old = self.patch_embed.grid_size
        self.patch_embed.set_input_size(img_size)
        new = self.patch_embed.grid_size
        if new != old:
            resized = resample_abs_pos_embed(
                self.pos_embed.detach(), list(new), list(old), num_prefix_tokens=self.num_prefix_tokens
            )
            self.pos_embed = nn.Parameter(resized, requires_grad=self.pos_embed.requires_grad)

    def embed(self, x: Tensor) -> tuple[Tensor, int, int]:
        """Tokens (B, N, C), the class token first if there is one, and the height and width of the grid of patches."""
        x = self.patch_embed(x)
        h, w = x.shape[1], x.shape[2]
        pos_embed = self.pos_embed
        if self.dynamic_img_size:
            grid = self.patch_embed.grid_size
            pos_embed = resample_abs_pos_embed(
                pos_embed, [h, w], [grid[0], grid[1]], num_prefix_tokens=self.num_prefix_tokens
            )
        x = x.flatten(1, 2)
        if self.cls_token is not None:
            x = torch.cat([self.cls_token.expand(x.shape[0], -1, -1), x], dim=1)
        return x + pos_embed, h, w  # (B, 1 + h * w, C)

    def positions(self, x: Tensor, height: int, width: int) -> tuple[Any, ...]:
        """What the blocks take besides the tokens `x`."""
        return ()

    def run_block(self, block: nn.Module, x: Tensor, *positions: Any) -> Tensor:
        return checkpoint(block, x, *positions) if self.grad_checkpointing else block(x, *positions)

    @torch.jit.ignore
    def forward_intermediates(
        self,
        x: Tensor,
        indices: int | list[int] | None = None,
        return_prefix_tokens: bool = False,
        norm: bool = False,
        stop_early: bool = False,
        output_fmt: str = "NCHW",
        intermediates_only: bool = False,
    ) -> Any:
        """The outputs of the blocks in `indices` (the last n if an int), and the final features.

        Args:
            return_prefix_tokens: give pairs of a map and the class token (B, 1, C), if there is one.
            norm: apply the final norm to every map.
            stop_early: run no block after the last one that is wanted.
            output_fmt: "NCHW" or "NLC".
        """
        if output_fmt not in ("NCHW", "NLC"):
            raise ValueError(f"output_fmt is {output_fmt!r}, but must be 'NCHW' or 'NLC'.")
        take, last = feature_take_indices(len(self.blocks), indices)
        x, h, w = self.embed(x)
        positions = self.positions(x, h, w)
        maps: list[Any] = []
        for i, block in enumerate(self.blocks[: last + 1] if stop_early else self.blocks):
            x = self.run_block(block, x, *positions)
            if i in take:
                y = self.norm(x) if norm else x
                tokens = y[:, self.num_prefix_tokens :]
                if output_fmt == "NCHW":
                    tokens = tokens.transpose(1, 2).unflatten(2, (h, w)).contiguous()  # (B, C, h, w)
                maps.append((tokens, y[:, :1]) if return_prefix_tokens and self.num_prefix_tokens else tokens)
        return maps if intermediates_only else (self.norm(x), maps)

    @torch.jit.ignore
    def prune_intermediate_layers(
        self, indices: int | list[int] = 1, prune_norm: bool = False, prune_head: bool = True
    ) -> list[int]:
        """Drop what the intermediates `indices` do not need."""
        take, last = feature_take_indices(len(self.blocks), indices)
        self.keep_blocks(last + 1)
        self.drop_ends(prune_norm, prune_head)
        return take

    def forward_head(self, x: Tensor, pre_logits: bool = False) -> Tensor:
        x = global_pool_nlc(x, pool_type=self.global_pool, num_prefix_tokens=self.num_prefix_tokens)
        x = self.head_drop(x)
        return x if pre_logits else self.head(x)
