"""A side-tuning decoder on a frozen CLIP encoder, S4's fourth backbone: only the decoder is searched, trained, counted
and stored.

S4 (its CLIP rows) gives four dimensions and sizes, but no equations. The reading built here has all four of them in it
and S4's baseline sizes come out: EVL's decoder, https://arxiv.org/abs/2208.03550, with a ladder in the manner of
Ladder Side-Tuning, https://arxiv.org/abs/2206.06522, before each layer. With D the width of the tower and N layers:

- One learnable query token of width D, zeros at first. Layer i reads y, the i-th of the last N block outputs of the
  tower: the residual stream with its class token, before the final norm.
- Ladder: y + up(QuickGELU(down(y))), D -> d -> D, where d is the stage's `embed_dim`. `up` starts at zero, so that
  training starts from EVL's decoder. ladder="linear": y + linear(y), D -> D; ladder="none": y.
- Layer: x + attention(LN(x), LN(ladder)) with an inner width of num_heads * head_dim, then x + mlp(LN(x)) with
  QuickGELU and a hidden width of D * mlp_ratio (of the stream, not of d).
- Head: LN, dropout, linear.
- gate=True: a layer reads m * (what the layer before read) + (1 - m) * ladder, m = sigmoid(a / 0.1), a learnable
  from 0; before the first layer stands its own y.
"""

import copy
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from timm.data import OPENAI_CLIP_MEAN, OPENAI_CLIP_STD
from timm.layers import Mlp, QuickGELU
from timm.models import checkpoint, generate_default_cfgs
from timm.models._features import feature_take_indices
from torch import Tensor, nn

from s3zoo.arch import Arch
from s3zoo.families.ladder import BASE, LadderBlock
from s3zoo.models._base import ArchLike, Size, Tokens, to_size
from s3zoo.models.layers import DropPath, HeadLinear, HeadProjection
from s3zoo.models.loading import FOLDER, IMAGENET, fit_weights, register
from s3zoo.models.official import unwrap
from s3zoo.models.tower import TOWER, Reader, build_tower, no_transformer

__all__ = ["Ladder"]  # register adds the entrypoints

LADDERS = ("bottleneck", "linear", "none")
GATE_TEMPERATURE = 0.1


class Bottleneck(nn.Module):
    def __init__(self, dim: int, bottleneck: int, device=None, dtype=None) -> None:
        super().__init__()
        self.down = nn.Linear(dim, bottleneck, device=device, dtype=dtype)
        self.act = QuickGELU()
        self.up = nn.Linear(bottleneck, dim, device=device, dtype=dtype)

    def forward(self, y: Tensor) -> Tensor:
        return self.up(self.act(self.down(y)))


class CrossAttention(nn.Module):
    """The query attends to the tower's tokens."""

    def __init__(self, dim: int, num_heads: int, head_dim: int, device=None, dtype=None) -> None:
        super().__init__()
        dd = {"device": device, "dtype": dtype}
        self.num_heads = num_heads
        self.head_dim = head_dim
        self.q = HeadLinear(dim, num_heads, head_dim, **dd)
        self.kv = HeadLinear(dim, 2, num_heads, head_dim, **dd)
        self.proj = HeadProjection(num_heads, head_dim, dim, **dd)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        B, Q, _ = x.shape
        q = self.q(x).reshape(B, Q, self.num_heads, self.head_dim).transpose(1, 2)  # (B, h, Q, d)
        kv = self.kv(y).reshape(B, y.shape[1], 2, self.num_heads, self.head_dim)  # (B, T, 2, h, d)
        k, v = kv.permute(2, 0, 3, 1, 4).unbind(0)  # (B, h, T, d)
        x = F.scaled_dot_product_attention(q, k, v).transpose(1, 2)  # (B, Q, h, d)
        return self.proj(x.reshape(B, Q, self.num_heads * self.head_dim))  # (B, Q, D)


class Block(nn.Module):
    """A layer of the decoder; gives the query and what it has read, which the next layer's gate mixes in."""

    def __init__(
        self, dim: int, bottleneck: int, genes: LadderBlock, ladder: str, gate: bool, drop_path: float = 0.0,
        device=None, dtype=None,
    ) -> None:  # fmt: skip
        super().__init__()
        dd = {"device": device, "dtype": dtype}
        self.ladder: nn.Module | None = None
        if ladder != "none":
            self.ladder = Bottleneck(dim, bottleneck, **dd) if ladder == "bottleneck" else nn.Linear(dim, dim, **dd)
        self.gate = nn.Parameter(torch.zeros(1, **dd)) if gate else None
        self.norm1 = nn.LayerNorm(dim, **dd)
        self.norm3 = nn.LayerNorm(dim, **dd)  # of the tower's tokens
        self.attn = CrossAttention(dim, genes.num_heads, genes.head_dim, **dd)
        self.drop_path1 = DropPath(drop_path)
        self.norm2 = nn.LayerNorm(dim, **dd)
        self.mlp = Mlp(dim, int(dim * genes.mlp_ratio), act_layer=QuickGELU, **dd)
        self.drop_path2 = DropPath(drop_path)

    def forward(self, x: Tensor, y: Tensor, before: Tensor) -> tuple[Tensor, Tensor]:
        if self.ladder is not None:
            y = y + self.ladder(y)
        if self.gate is not None:
            y = torch.lerp(y, before, torch.sigmoid(self.gate / GATE_TEMPERATURE))
        x = x + self.drop_path1(self.attn(self.norm1(x), self.norm3(y)))
        return x + self.drop_path2(self.mlp(self.norm2(x))), y


class Ladder(Tokens):
    """The decoder that an `Arch` of family "ladder" describes, and the frozen tower that it reads (see `Reader`).

    The input is a batch of images, or of features that `tower_features` gave: (batch, layers, tokens, width), or a
    list of the layers. A decoder with fewer layers takes the last ones.

    Its feature maps are those of the tower's blocks that it reads, then what each layer reads of them, behind its
    ladder. The decoder itself has one token, the query.

    Args:
        arch: an `Arch`, its dict or JSON, or the path of a JSON file; its `patch_size` must be the tower's.
        tower: the name of a timm ViT, or one that `build_tower` gave (or any other: it is frozen here).
        pretrained_tower: load the tower's weights, or those of a file; of no effect if the tower is given built.
        tower_sha256: what the `fingerprint` of a tower given by name must be; empty: anything.
        ladder: "bottleneck", "linear" or "none".
        gate: mix what the layer before has read into what a layer reads.
        global_pool: "token" (the query) or "" (the same with an axis of one token).
        drop_rate: dropout before the classifier.
        drop_path_rate: stochastic depth of the last layer; it rises linearly from 0 at the first.
    """

    family = "ladder"
    no_decay = r"^query$"

    def __init__(
        self,
        arch: ArchLike,
        tower: str | nn.Module = TOWER,
        ladder: str = "bottleneck",
        gate: bool = False,
        img_size: Size = 224,
        in_chans: int = 3,
        num_classes: int = 1000,
        global_pool: str = "token",
        drop_rate: float = 0.0,
        drop_path_rate: float = 0.0,
        pretrained_tower: bool | str | Path = False,
        tower_sha256: str = "",
        device=None,
        dtype=None,
    ) -> None:
        super().__init__(self.parse(arch), in_chans, num_classes)
        dd = {"device": device, "dtype": dtype}
        if ladder not in LADDERS:
            raise ValueError(f"ladder is {ladder!r}, but must be one of {', '.join(map(repr, LADDERS))}.")
        self.global_pool = self.check_pool(global_pool)
        self.ladder = ladder
        self.gate = gate
        self.grad_checkpointing = False
        self.output_fmt = "NLC"
        self.dropped = 0  # layers at the end that were pruned: the others still read what they read
        size = self._size(img_size)
        if isinstance(tower, str):
            tower = build_tower(tower, pretrained_tower, size, in_chans, **dd, sha256=tower_sha256)
        self._check_tower(tower, size)
        self.reader = Reader(tower)
        self.embed_dim = self.num_features = self.head_hidden_size = self.reader.embed_dim
        depth, blocks = self.arch.depths[0], len(tower.blocks)  # type: ignore[arg-type]
        modules = [f"tower.blocks.{blocks - depth + i}" for i in range(depth)] + [f"blocks.{i}" for i in range(depth)]
        self.feature_info = [
            dict(num_chs=self.embed_dim, reduction=self.arch.patch_size, module=module) for module in modules
        ]

        self.query = nn.Parameter(torch.zeros(1, 1, self.embed_dim, **dd))
        self.blocks = nn.ModuleList(self.make_blocks(0, drop_path_rate, **dd))
        self.norm: nn.Module = nn.LayerNorm(self.embed_dim, **dd)
        self.head_drop = nn.Dropout(drop_rate)
        self.head = nn.Linear(self.embed_dim, num_classes, **dd) if num_classes else nn.Identity()
        self.init_weights(needs_reset=False)

    # The tower

    @property
    def tower(self) -> nn.Module:
        return self.reader.tower

    @property
    def img_size(self) -> tuple[int, int]:
        return self.reader.img_size

    def _size(self, img_size: Any) -> tuple[int, int]:
        patch = self.arch.patch_size
        return to_size(img_size, lambda side: side % patch == 0, f"a multiple of the patch size {patch}, or a pair")

    def _check_tower(self, tower: Any, size: tuple[int, int]) -> None:
        name = (getattr(tower, "pretrained_cfg", None) or {}).get("architecture", type(tower).__name__)
        if not all(hasattr(tower, part) for part in ("blocks", "num_prefix_tokens", "forward_intermediates")):
            raise no_transformer(name)
        embed = tower.patch_embed
        built, chans, patch = tuple(embed.img_size), embed.proj.weight.shape[1], embed.patch_size[0]
        if (built, chans) != (size, self.in_chans):
            raise ValueError(
                f"The tower {name} is built for img_size {built} and in_chans {chans}, but the decoder for "
                f"{size} and {self.in_chans}; build both for the same."
            )
        if patch != self.arch.patch_size:
            raise ValueError(
                f"The architecture has patch_size {self.arch.patch_size}, but the tower {name} has {patch}; set the "
                "architecture's to the tower's."
            )
        if self.arch.depths[0] > len(tower.blocks):
            raise ValueError(
                f"The decoder has {self.arch.depths[0]} layers, but the tower {name} only {len(tower.blocks)} blocks; "
                "take fewer layers or a deeper tower."
            )

    @staticmethod
    def shared_args(args: Mapping[str, Any], device=None) -> dict[str, Any]:
        """Arguments of the constructor with the tower built, for any number of decoders that share it."""
        tower = args.get("tower", TOWER)
        if isinstance(tower, str):
            pretrained, sha256 = args.get("pretrained_tower", False), args.get("tower_sha256", "")
            size, in_chans = args.get("img_size", 224), args.get("in_chans", 3)
            tower = build_tower(tower, pretrained, size, in_chans, device, sha256=sha256)
        return {**args, "tower": tower}

    def model_args(self) -> dict[str, Any]:
        """The arguments of the constructor that make this model besides its architecture, size and classes."""
        source: Any = getattr(self.tower, "tower_source", None)
        if source is None:
            raise ValueError("The tower is a module that cannot be found again; give it by its name in timm.")
        pretrained = source["pretrained"]
        return {
            "tower": source["name"],
            "pretrained_tower": str(pretrained) if isinstance(pretrained, Path) else pretrained,
            "tower_sha256": source["sha256"],
            "ladder": self.ladder,
            "gate": self.gate,
        }

    def set_input_size(self, img_size: Size) -> None:
        """Build the tower for another input size; the decoder is the same for all."""
        size = self._size(img_size)
        if size == self.img_size:
            return
        if hasattr(self.tower, "tower_source"):
            source: dict[str, Any] = {**self.tower.tower_source, "img_size": size}  # type: ignore[dict-item]
            tower: Any = build_tower(**source, device=next(self.tower.parameters()).device)
        else:
            tower = copy.deepcopy(self.tower)  # others may read this one
            tower.set_input_size(img_size=size)
        self.reader = Reader(tower)

    def tower_features(self, images: Tensor, depth: int | None = None) -> Tensor:
        """What decoders of up to `depth` layers (as many as this one has) read: (batch, depth, tokens, width)."""
        return self.reader.features(images, self._depth if depth is None else depth)

    # The decoder

    @property
    def _depth(self) -> int:
        """How many layers are read."""
        return len(self.blocks) + self.dropped

    def make_block(  # type: ignore[override]
        self, arch: Arch, stage: int, index: int, *, drop_path: float = 0.0, device=None, dtype=None
    ) -> Block:
        """One layer as the constructor builds it: genes and bottleneck decide, and the tower's width."""
        where = arch.stages[stage]
        genes = where.blocks[index]
        assert isinstance(genes, LadderBlock)
        return Block(
            self.embed_dim, where.embed_dim, genes, self.ladder, self.gate, drop_path, device=device, dtype=dtype
        )

    def init_weights(self, mode: str = "", needs_reset: bool = True) -> None:
        """Initialise the decoder; `needs_reset` also where modules have initialised themselves."""
        nn.init.zeros_(self.query)
        super().init_weights(mode, needs_reset)

    def init_layer(self, module: nn.Module) -> bool:
        if not isinstance(module, Block):
            return super().init_layer(module)
        if module.ladder is not None:  # its layers were initialised before it
            nn.init.zeros_(getattr(module.ladder, "up", module.ladder).weight)  # type: ignore[arg-type]
        if module.gate is not None:
            nn.init.zeros_(module.gate)
        return True

    def reset_classifier(self, num_classes: int, global_pool: str | None = None) -> None:
        super().reset_classifier(num_classes, global_pool)
        self.init_layer(self.head)

    def check_pool(self, global_pool: str) -> str:
        if global_pool not in ("token", ""):
            raise ValueError(
                f"global_pool is {global_pool!r}, but must be 'token' or '': a decoder has one query, none to pool."
            )
        return global_pool

    def __prepare_scriptable__(self) -> nn.Module:
        raise ValueError(
            "torch.jit.script cannot compile a decoder, whose tower is no part of it; use torch.jit.trace,"
            " torch.compile or `s3zoo export`."
        )

    def _run(self, block: nn.Module, *inputs: Tensor) -> tuple[Tensor, Tensor]:
        return checkpoint(block, *inputs) if self.grad_checkpointing else block(*inputs)

    def forward_intermediates(
        self,
        x: Tensor | Sequence[Tensor],
        indices: int | list[int] | None = None,
        return_prefix_tokens: bool = False,
        norm: bool = False,
        stop_early: bool = False,
        output_fmt: str = "NCHW",
        intermediates_only: bool = False,
    ) -> Any:
        """The maps in `indices` (the last n if an int) of those in `feature_info`, and the final features.

        Args:
            return_prefix_tokens: give pairs of a map and the tower's class token (B, 1, C).
            norm: apply the norm through which a layer reads to its map; the tower's have none.
            stop_early: run no layer after the last one that is wanted; the tower is always run.
            output_fmt: "NCHW" or "NLC".
        """
        if output_fmt not in ("NCHW", "NLC"):
            raise ValueError(f"output_fmt is {output_fmt!r}, but must be 'NCHW' or 'NLC'.")
        take, last = feature_take_indices(self._depth + len(self.blocks), indices)
        layers = self.reader(x, self._depth).to(self.query.dtype)  # (B, layers, T, D)
        found = [layers[:, i] for i in range(self._depth)]
        query, read = self.query.repeat(layers.shape[0], 1, 1), layers[:, 0]
        for i, block in enumerate(self.blocks[: max(last + 1 - self._depth, 0)] if stop_early else self.blocks):
            query, read = self._run(block, query, layers[:, i], read)
            found.append(block.norm3(read) if norm else read)  # type: ignore[operator]
        maps: list[Any] = []
        for i in take:
            prefix, tokens = found[i].tensor_split([self.reader.num_prefix_tokens], dim=1)
            if output_fmt == "NCHW":
                tokens = tokens.transpose(1, 2).unflatten(2, self.reader.grid_size).contiguous()  # (B, D, h, w)
            maps.append((tokens, prefix) if return_prefix_tokens and prefix.shape[1] else tokens)
        return maps if intermediates_only else (self.norm(query), maps)

    def prune_intermediate_layers(
        self, indices: int | list[int] = 1, prune_norm: bool = False, prune_head: bool = True
    ) -> list[int]:
        """Drop the layers that the intermediates `indices` do not need, but for the first."""
        take, last = feature_take_indices(self._depth + len(self.blocks), indices)
        kept = max(last + 1 - self._depth, 1)
        self.dropped += max(len(self.blocks) - kept, 0)
        self.keep_blocks(kept)
        self.drop_ends(prune_norm, prune_head)
        return take

    def forward_features(self, x: Tensor | Sequence[Tensor]) -> Tensor:
        """The query after the last layer and the norm, (batch, 1, width)."""
        layers = self.reader(x, self._depth).to(self.query.dtype)  # (B, layers, T, D)
        query, read = self.query.repeat(layers.shape[0], 1, 1), layers[:, 0]  # (B, 1, D), (B, T, D)
        for i, block in enumerate(self.blocks):
            query, read = self._run(block, query, layers[:, i], read)
        return self.norm(query)

    def forward_head(self, x: Tensor, pre_logits: bool = False) -> Tensor:
        x = self.head_drop(x[:, 0] if self.global_pool else x)
        return x if pre_logits else self.head(x)


def checkpoint_filter_fn(state_dict: Mapping[str, Any], model: nn.Module) -> dict[str, Tensor]:
    """Weights of a decoder, if they are this one's."""
    return fit_weights(unwrap(state_dict), model, lambda name, value, shape: value)


# Registration


_NO_DECODERS = (
    "No decoder weights of {} are published; use pretrained=False with pretrained_tower=True, or load a trained folder"
    f" with {FOLDER}."
)
_CFG = IMAGENET | {
    "pool_size": None,
    "crop_pct": 0.9,
    "fixed_input_size": True,
    "mean": OPENAI_CLIP_MEAN,
    "std": OPENAI_CLIP_STD,
    "first_conv": (),  # only the tower has one, which is built for any number of channels
    "classifier": "head",
    "license": "apache-2.0",
}
default_cfgs = generate_default_cfgs({"clip_ladder_base.untrained": _CFG, "clip_ladder.untrained": _CFG})
_BASE = "S4's decoder before any search: 4 layers of 12 heads, MLP ratio 4, bottleneck 384."
_ANY = "Any decoder: `timm.create_model(\"clip_ladder\", arch=...)`; S4's baseline unless one is given."
register(Ladder, "clip_ladder_base", _BASE, _NO_DECODERS, arch=BASE)
register(Ladder, "clip_ladder", _ANY, _NO_DECODERS, arch=BASE)
