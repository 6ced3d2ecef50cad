"""Any network of s3zoo, and any timm model with feature maps, as a backbone of mmdet and mmseg.

backbone=dict(type="S3ZooBackbone", model="s3_tiny", pretrained=True, drop_path_rate=0.2)
"""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import timm
import torch.nn.functional as F
from mmengine.model import BaseModule
from mmengine.registry import MODELS
from timm.models import PretrainedCfg, SwinTransformer, group_parameters, split_model_name_tag
from torch import Tensor, nn

import s3zoo.models  # noqa: F401  (registers the networks)
from s3zoo.families import FAMILIES
from s3zoo.models._base import Hierarchical, ZooModel
from s3zoo.models.folder import WEIGHTS
from s3zoo.models.loading import accepting, check_reachable, load_weights
from s3zoo.models.open import described, read_weights, source
from s3zoo.models.s3 import swin_arch
from s3zoo.transfer.mm.pyramid import SCALES, ChannelNorm, ResizePyramid, SimplePyramid

_logger = logging.getLogger(__name__)

# Parts of parameter names that are kept out of weight decay, as Swin's recipes do: norms and positions. Biases keep
# theirs. The names of s3zoo's networks and timm's.
NO_DECAY = ("norm", "relative_position_bias_table", "rel_k_", "rel_v_", "pos_embed", "cls_token", "dist_token")


def decay_exempt_keys() -> dict[str, dict[str, float]]:
    """For `optim_wrapper = dict(paramwise_cfg=dict(custom_keys=...))`."""
    return {key: dict(decay_mult=0.0) for key in NO_DECAY}


@MODELS.register_module()
class S3ZooBackbone(BaseModule):
    """Feature maps (B, C, H, W) at strides 4, 8, 16 and 32, from images of any size.

    Networks of maps (S3, Swin, Shunted, ResNet, ...) give those of their stages, each with an output norm where the
    network has none of its own. Plain vision transformers (AutoFormer, GLiT, DeiT, ...) give one map, of which a
    `SimplePyramid` (or `ResizePyramid`) makes four. timm's Swin is built as s3zoo's S3, which is the same network
    except that it pads a map before it rolls it, as Swin's detection code does: timm's lets the last rows see the first
    ones.

    Args:
        model: the name of a network, a folder that s3zoo wrote, or "hf-hub:user/repository".
        model_args: further arguments of the network, such as `arch`.
        out_indices: which maps to give, 0 being stride 4; all unless given.
        frozen_stages: -1: nothing; 0: the embedding of patches (the stem); k: also the first k stages and their output
            norms, or the first k blocks of a plain network.
        norm_eval: batch norms keep their statistics in training.
        with_cp: recompute activations in the backward pass, to save memory.
        out_norm: whether each stage's map gets a LayerNorm (norm0, norm1, ...); a plain network's one map gets its own
            final norm. Unless given, yes for attention networks whose stages do not end in a norm.
        pretrained: True (the weights published for `model`, or those in its folder), False, the name of a network, a
            .safetensors or .pth file, a folder, or a Hub id. They are loaded in `init_weights`.
        drop_path_rate: stochastic depth of the last block.
        img_size: the size that positions are made for, where a network has a fixed grid of them (224 as a rule); other
            sizes work too, by bicubic resizing.
        pyramid: of a plain network: arguments of `SimplePyramid`, such as dict(out_channels=256), or "resize" for the
            map itself at four sizes, without parameters (`ResizePyramid`).
        init_cfg: dict(type="Pretrained", checkpoint=..., prefix=...) is another way to say `pretrained`.
    """

    _is_init: bool

    def __init__(
        self,
        model: str = "s3_tiny",
        model_args: Mapping[str, Any] | None = None,
        out_indices: Sequence[int] | None = None,
        frozen_stages: int = -1,
        norm_eval: bool = False,
        with_cp: bool = False,
        out_norm: bool | None = None,
        pretrained: bool | str | None = False,
        drop_path_rate: float | None = None,
        img_size: int | tuple[int, int] | None = None,
        pyramid: Mapping[str, Any] | str | None = None,
        init_cfg: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(init_cfg=None)
        self.pretrained, self.prefix = _source(pretrained, init_cfg)
        self.frozen_stages = frozen_stages
        self.norm_eval = norm_eval
        sizes = dict(drop_path_rate=drop_path_rate, img_size=img_size)
        args = dict(model_args or {}) | {name: value for name, value in sizes.items() if value is not None}
        name, args, self.published = _resolve(model, args)
        # What stands for a folder or a repository in a config that is to be read without it.
        self.written_out = dict(model=name, model_args=args) if isinstance(self.published, str) else None
        net, self.name, self.args = _build(name, args)

        info = _feature_info(net, self.name)
        self.plain = len(info) > 1 and len({stride for _, stride, _ in info}) == 1
        count = len(SCALES) if self.plain else len(info)
        self.out_indices = tuple(range(count)) if out_indices is None else tuple(out_indices)
        if not self.out_indices or any(i not in range(count) for i in self.out_indices):
            raise ValueError(
                f"out_indices is {out_indices!r}, but {self.name} has the maps 0 to {count - 1}; choose among them."
            )
        if list(self.out_indices) != sorted(set(self.out_indices)):
            raise ValueError(f"out_indices is {out_indices!r}, but must ascend.")
        if pyramid and not self.plain:
            raise ValueError(f"pyramid is given, but {self.name} has maps at several strides itself; leave it out.")
        chosen = [info[-1]] if self.plain else [info[i] for i in self.out_indices]
        self._take = [index for index, _, _ in chosen]
        if out_norm is None:
            out_norm = self.plain or _wants_norm(net, self._take)
        keep_norm = self.plain and out_norm
        net.prune_intermediate_layers(self._take, prune_norm=not keep_norm, prune_head=True)
        if with_cp:
            net.set_grad_checkpointing(True)
        self.model = net
        # Zoo networks of maps pad for themselves, convolutions need no padding.
        needs_multiple = self.plain or (not isinstance(net, Hierarchical) and _has_attention(net))
        self.multiple = info[-1][1] if needs_multiple else 1

        self.out_norm = out_norm
        self.out_channels: tuple[int, ...]
        self.strides: tuple[int, ...]
        if self.plain:
            _, stride, channels = info[-1]
            self.pyramid = _pyramid(pyramid, channels, self.out_indices)
            self.out_channels = (self.pyramid.out_channels,) * len(self.out_indices)
            self.strides = tuple(int(stride * SCALES[i]) for i in self.out_indices)
        else:
            self.out_channels = tuple(channels for _, _, channels in chosen)
            self.strides = tuple(stride for _, stride, _ in chosen)
            if out_norm:
                for i, channels in zip(self.out_indices, self.out_channels, strict=True):
                    self.add_module(f"norm{i}", ChannelNorm(channels))
        self._freeze()

    # Forward

    def features(self, x: Tensor) -> list[Tensor]:
        """The network's own maps (B, C, H, W): what timm's features_only gives, before norms and pyramid."""
        pad_h, pad_w = -x.shape[2] % self.multiple, -x.shape[3] % self.multiple
        if pad_h or pad_w:
            x = F.pad(x, [0, pad_w, 0, pad_h])
        net: Any = self.model
        return net.forward_intermediates(x, indices=self._take, stop_early=True, intermediates_only=True)

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        maps = self.features(x)
        if self.plain:
            norm: Any = getattr(self.model, "norm", None) if self.out_norm else None
            last = norm(maps[-1].permute(0, 2, 3, 1)).permute(0, 3, 1, 2) if norm is not None else maps[-1]
            return self.pyramid(last)
        if self.out_norm:
            return tuple(getattr(self, f"norm{i}")(y) for i, y in zip(self.out_indices, maps, strict=True))
        return tuple(maps)

    # Training

    def train(self, mode: bool = True) -> S3ZooBackbone:
        super().train(mode)
        self._freeze()
        if mode and self.norm_eval:
            for module in self.modules():
                if isinstance(module, nn.modules.batchnorm._BatchNorm):
                    module.eval()
        return self

    def _freeze(self) -> None:
        if self.frozen_stages < 0:
            return
        net: Any = self.model
        groups = group_parameters(net, net.group_matcher(coarse=True), reverse=True)
        for name, parameter in net.named_parameters():
            if groups[name] <= self.frozen_stages:
                parameter.requires_grad_(False)
        for i in range(self.frozen_stages):
            getattr(self, f"norm{i}", nn.Identity()).requires_grad_(False)
        for module in self.modules():  # drop path and batch norms inside them stand still, too
            parameters = list(module.parameters())
            if parameters and not any(parameter.requires_grad for parameter in parameters):
                module.eval()

    # Weights

    def init_weights(self) -> None:
        """Load the pretrained weights, once. The networks have initialised themselves when they were built, and timm's
        own `init_weights`, which mmengine would call on a child, would do that again.
        """
        if not self._is_init and self.pretrained:
            self.load(self.pretrained, self.prefix)
        self._is_init = True

    @accepting()
    def load(self, place: Any, prefix: str | None = None) -> None:
        """Load the network's weights from what `pretrained` may be, or say in one sentence why they do not fit."""
        if place is True:
            if not self.published:
                raise ValueError(f"No weights are published for {self.name}; give a file or a folder as `pretrained`.")
            place = self.published
        if isinstance(place, str) and timm.is_model(split_model_name_tag(place)[0]):
            place = _pretrained_cfg(place)
        args: dict[str, Any]
        if isinstance(place, PretrainedCfg):
            if not place.has_weights and not isinstance(self.model, ZooModel):  # s3zoo's networks say why
                raise ValueError(f"No weights are published as {place.architecture}; give a file or a folder.")
            args = dict(pretrained_cfg=place, num_classes=place.num_classes)
            what = f"of {place.hf_hub_id or place.url or place.architecture}"
        else:
            weights, input_size = read_weights(place)
            prefix = prefix or ("backbone" if any(key.startswith("backbone.") for key in weights) else "")
            prefix = prefix if prefix.endswith(".") or not prefix else prefix + "."
            weights = {key.removeprefix(prefix): value for key, value in weights.items() if key.startswith(prefix)}
            if not weights:
                raise ValueError(f"{place!r} has no weight that starts with {prefix!r}; correct the prefix.")
            if any(key.startswith("model.") for key in weights):  # of a backbone like this one
                return load_weights(self, weights, repr(place))
            # With the model's own number of classes timm is strict. The filter of s3zoo's networks is strict in any
            # case, and ignores a classifier of another number, whatever it is called there.
            ours = isinstance(self.model, ZooModel)
            classes = 0 if ours else _num_classes(weights, self.model)
            overlay = dict(state_dict=weights, source="", input_size=input_size, num_classes=1 if ours else classes)
            args = dict(pretrained_cfg_overlay=overlay, num_classes=classes)
            what = f"in {place!r}"
        loaded = self._pretrained_net(args, what).state_dict()
        self.model.load_state_dict({name: loaded[name] for name in self.model.state_dict()})

    def _pretrained_net(self, args: dict[str, Any], what: str) -> nn.Module:
        """The whole network as timm loads it, with its filters for other layouts and sizes."""
        try:
            if getattr(args.get("pretrained_cfg"), "hf_hub_id", None):
                check_reachable(args["pretrained_cfg"].hf_hub_id)
            return timm.create_model(self.name, pretrained=True, **self.args | args)
        except (ValueError, FileNotFoundError):
            raise
        except (OSError, RuntimeError) as error:
            said = " ".join(str(error).split())
            said = said if len(said) < 300 else said[:300] + " ..."
            problem = "cannot be fetched" if isinstance(error, OSError) else f"do not fit {self.name}"
            raise ValueError(f"The weights {what} {problem}: {said}") from None


def _source(pretrained: Any, init_cfg: Any) -> tuple[Any, str | None]:
    """Where weights come from, whichever way it is said."""
    if init_cfg is None or init_cfg == []:
        return pretrained, None
    if pretrained:
        raise ValueError(f"Both pretrained ({pretrained!r}) and init_cfg ({init_cfg!r}) are given; leave one out.")
    cfg = init_cfg[0] if isinstance(init_cfg, Sequence) and len(init_cfg) == 1 else init_cfg
    kind = cfg.get("type") if isinstance(cfg, Mapping) else None
    if getattr(kind, "__name__", kind) not in ("Pretrained", "PretrainedInit") or "checkpoint" not in cfg:
        raise ValueError(
            f"init_cfg is {init_cfg!r}, but must be dict(type='Pretrained', checkpoint=...): the network initialises "
            "itself."
        )
    return cfg["checkpoint"], cfg.get("prefix")


def _resolve(model: str, args: dict[str, Any]) -> tuple[str, dict[str, Any], Any]:
    """timm's name of the network, all of its arguments, and where its own weights are."""
    place = source(model)
    if place == model and ":" not in model:
        return split_model_name_tag(model)[0], args, _pretrained_cfg(model)
    config = described(place)
    if place.startswith("local-dir:"):
        place = str(Path(place.removeprefix("local-dir:")).resolve())  # "./name" is no network's name from here on
    return config["architecture"], {**(config.get("model_args") or {}), **args}, place


def _pretrained_cfg(name: str) -> PretrainedCfg | None:
    """timm's record of the weights that a name, perhaps with a tag, stands for."""
    model, tag = split_model_name_tag(name)
    known = [n for n in timm.list_pretrained(model + ".*") if split_model_name_tag(n)[0] == model]
    if tag and name not in known:
        raise ValueError(f"There are no weights {name!r}; there are {', '.join(known) or 'none of this network'}.")
    cfg = timm.get_pretrained_cfg(name)
    if cfg is not None and cfg.hf_hub_id and not cfg.hf_hub_filename:
        cfg = dataclasses.replace(cfg, hf_hub_filename=WEIGHTS)  # explicit: timm does not fall back to a pickle then
    return cfg


def _build(name: str, args: dict[str, Any]) -> tuple[Any, str, dict[str, Any]]:
    """The network, and the name and arguments with which it is built."""

    def create(name: str, args: dict[str, Any]) -> Any:
        try:
            return timm.create_model(name, num_classes=0, **args)
        except TypeError as error:
            raise ValueError(f"{name} does not take these model_args: {error}.") from None

    net = create(name, args)
    if isinstance(net, SwinTransformer):
        _logger.info("%s is built as s3zoo's S3, which pads before it rolls.", name)
        own = {k: args[k] for k in ("drop_path_rate", "img_size", "in_chans", "drop_rate") if k in args}
        name, args = "s3", own | dict(arch=swin_arch(net))
        net = create(name, args)
    elif getattr(net, "dynamic_img_size", None) is False:
        args = args | dict(dynamic_img_size=True)
        net = create(name, args)
    return net, name, args


def _pyramid(
    kind: Mapping[str, Any] | str | None, channels: int, levels: tuple[int, ...]
) -> SimplePyramid | ResizePyramid:
    if kind == "resize":
        return ResizePyramid(channels, levels)
    if isinstance(kind, str):
        raise ValueError(f"pyramid is {kind!r}, but must be 'resize' or a dict of arguments such as out_channels.")
    return SimplePyramid(channels, levels=levels, **dict(kind or {}))


def _feature_info(net: Any, name: str) -> list[tuple[int, int, int]]:
    """Index, stride and channels of the maps; a stem's map at stride 2 is none of them, as in mmdet's ResNet."""
    if isinstance(net, ZooModel) and FAMILIES[net.family].reads_tower:
        raise ValueError(f"{name} reads a frozen network, which takes images of one size; use another network.")
    if not hasattr(net, "forward_intermediates") or not hasattr(net, "group_matcher"):
        raise ValueError(f"{name} does not give its feature maps (timm's forward_intermediates); use another network.")
    info = net.feature_info
    info = info if isinstance(info, list) else info.info
    maps = [(i, int(entry["reduction"]), int(entry["num_chs"])) for i, entry in enumerate(info)]
    return maps if isinstance(net, ZooModel) else [entry for entry in maps if entry[1] >= 4] or maps


def _has_attention(net: nn.Module) -> bool:
    return any("attention" in type(module).__name__.lower() for module in net.modules())


def _wants_norm(net: Any, indices: list[int]) -> bool:
    """Whether this is an attention network whose stages leave their sums as they are."""
    info = net.feature_info if isinstance(net.feature_info, list) else net.feature_info.info
    stage = net.get_submodule(info[indices[-1]]["module"])
    last = list(stage.children())[-1:] or [stage]
    return _has_attention(net) and "norm" not in type(last[0]).__name__.lower()


def _num_classes(weights: Mapping[str, Tensor], net: Any) -> int:
    """How many classes the weights are for: with that many, timm loads them strictly."""
    names = net.pretrained_cfg.get("classifier") or ()
    for name in [names] if isinstance(names, str) else names:
        if f"{name}.weight" in weights:
            return len(weights[f"{name}.weight"])
    return 0
