"""Every registered model is a whole timm model: what timm's generic tests demand, and the rest of the interface.

Released models are checked on the meta device at their own size and on the CPU at a small one; what is expensive and
depends on the code alone (tracing, export, checkpoints) on a small architecture of each family.
"""

import copy
import functools
import json
import math
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import timm
import torch
from safetensors.torch import save_file
from timm.models import group_parameters
from timm.models._features_fx import create_feature_extractor, get_graph_node_names
from timm.optim import create_optimizer_v2, param_groups_layer_decay
from torch import Tensor, nn

from s3zoo.arch import Arch, AutoFormerBlock, GLiTBlock, LadderBlock, S3Block, ShuntedBlock, Stage
from s3zoo.models import ENTRYPOINTS, MODELS, loading

pytestmark = pytest.mark.usefixtures("one_thread")

# Channels and classes of the networks whose weights come with s3zoo
BUNDLED = {
    path.name.partition(".")[0]: (cfg["input_size"][0], cfg["num_classes"])
    for path in loading.BUNDLED.iterdir()
    for cfg in [json.loads((path / "config.json").read_text())["pretrained_cfg"]]
}
# A small architecture of each family whose blocks differ; GLiT has three, which share little code.
SMALL = {
    "s3": Arch(
        "s3",
        (
            Stage(16, (S3Block(3, 2, 4, 2.0), S3Block(4, 3, 8, 1.5))),
            Stage(24, (S3Block(3, 2, 12, 2.0), S3Block(3, 1, 8, 3.0))),
            Stage(40, (S3Block(7, 5, 8, 2.0),)),
        ),
    ),
    "autoformer": Arch(
        "autoformer",
        (Stage(32, (AutoFormerBlock(4, 8, 2.0), AutoFormerBlock(3, 8, 1.5), AutoFormerBlock(2, 8, 2.0))),),
    ),
    "glit": Arch(
        "glit",
        (
            Stage(
                24, (GLiTBlock(3, 3, 4, 3, 1.0, 2.0), GLiTBlock(3, 0, 8, 5, 2.0, 2.0), GLiTBlock(3, 1, 8, 7, 1.0, 1.5))
            ),
        ),
    ),
    "shunted": Arch(
        "shunted",
        (
            Stage(8, (ShuntedBlock(2, 4, 2.0),)),
            Stage(12, (ShuntedBlock(2, 8, 1.5), ShuntedBlock(4, 3, 2.0))),
            Stage(20, (ShuntedBlock(4, 4, 2.0),)),
            Stage(24, (ShuntedBlock(3, 8, 3.0),)),
        ),
        stem_depth=1,
    ),
    "ladder": Arch("ladder", (Stage(7, (LadderBlock(2, 4, 1.5), LadderBlock(3, 5, 2.0), LadderBlock(1, 8, 1.0))),)),
    "glit_conv2d": Arch(
        "glit", (Stage(24, tuple(GLiTBlock(3, g, 4, k, 2.0, 1.5, "conv2d") for g, k in ((3, 1), (0, 3), (1, 5)))),)
    ),
    "glit_area": Arch(
        "glit", (Stage(24, tuple(GLiTBlock(3, g, 4, k, 1.5, 2.0, "area") for g, k in ((3, 1), (0, 4), (2, 7)))),)
    ),
}
ENTRY = {kind: ENTRYPOINTS[arch.family] for kind, arch in SMALL.items()}
ARGS: dict[str, dict[str, Any]] = {"ladder": {"tower": "test_vit"}}  # timm's own: width 64, 6 blocks, patch 16
GENERIC = [ENTRYPOINTS[family] for family in MODELS]
RELEASED = [name for family in MODELS for name in timm.list_models(module=family) if name not in GENERIC]
TINY = [name for name in RELEASED if name.endswith("_tiny")]

all_models = pytest.mark.parametrize("name", RELEASED + GENERIC)
families = pytest.mark.parametrize("family", SMALL)
SIZE = 64


def create(family: str, **kwargs: Any) -> Any:
    """The small network as timm builds it."""
    return timm.create_model(ENTRY[family], **{"arch": SMALL[family], **ARGS.get(family, {}), **kwargs})


@functools.cache
def built_on_meta(name: str) -> nn.Module:
    with torch.no_grad():
        return timm.create_model(name, device="meta", dtype=torch.float32).eval()


def on_meta(name: str) -> nn.Module:
    """A released model at its own size, without memory or time."""
    return copy.deepcopy(built_on_meta(name))


def small(family: str, seed: int = 0, **kwargs: Any) -> nn.Module:
    """The small network with every parameter random, so that each of them matters."""
    torch.manual_seed(seed)
    model = create(family, **{"img_size": SIZE, "num_classes": 10, **kwargs})
    with torch.no_grad():
        for name, p in model.named_parameters():
            p.copy_(torch.randn_like(p) * 0.2 + (1.0 if "norm" in name and name.endswith("weight") else 0.0))
    return model


def cheap(name: str, **kwargs: Any) -> nn.Module:
    """A released model on the CPU with fast random weights: the proper initialisation would take most of the time."""
    model = timm.create_model(name, device="meta", img_size=SIZE, **kwargs).to_empty(device="cpu")
    for module in model.modules():
        if isinstance(module, nn.modules.batchnorm._BatchNorm):
            module.reset_running_stats()
        elif any(True for _ in module.buffers(recurse=False)):
            module.init_non_persistent_buffers()
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for p in model.parameters():
            p.uniform_(-0.05, 0.05, generator=generator)
    return model


def images(batch: int = 2, size: int = SIZE, chans: int = 3, seed: int = 1) -> Tensor:
    return torch.randn(batch, chans, size, size, generator=torch.Generator().manual_seed(seed))


def shapes(model: nn.Module) -> dict[str, torch.Size]:
    return {name: value.shape for name, value in model.state_dict().items()}


@pytest.mark.parametrize("family", ["autoformer", "glit", "glit_conv2d", "glit_area"])
def test_any_size_is_padded_to_whole_patches(family: str) -> None:
    model: Any = small(family, dynamic_img_size=True).eval()
    side = model.patch_size
    x = torch.randn(2, 3, 2 * side + 1, 3 * side - 1)
    padded = torch.zeros(2, 3, 3 * side, 3 * side)
    padded[:, :, : x.shape[2], : x.shape[3]] = x
    with torch.no_grad():
        assert torch.equal(model(x), model(padded)) and model(x[..., :1, :1]).shape == (2, 10)
    with pytest.raises(ValueError, match=f"{2 * side + 1} x {3 * side - 1}.*dynamic_img_size=True"):
        small(family)(x)


@families
def test_channels_last(family: str) -> None:
    model = small(family).eval()
    other = copy.deepcopy(model).to(memory_format=torch.channels_last)
    found = other(images().to(memory_format=torch.channels_last))
    assert torch.allclose(found, model(images()), atol=1e-4)
    found.sum().backward()
    assert all(p.grad is None or p.grad.shape == p.shape for p in other.parameters())
    assert all(torch.equal(a, b) for a, b in zip(other.state_dict().values(), model.state_dict().values(), strict=True))


# What timm knows about a model


@pytest.mark.parametrize("family", MODELS)
def test_listed(family: str) -> None:
    names, entry = timm.list_models(module=family), ENTRYPOINTS[family]
    assert entry in names and f"{entry}_{'base' if family == 'ladder' else 'tiny'}" in names
    assert set(timm.list_models(f"{entry}_*")) >= set(names) - {entry, *BUNDLED}  # those are named by their method
    for name in names:
        assert timm.is_model(name) and timm.models.is_model_in_modules(name, [family])
        assert timm.models.get_arch_pretrained_cfgs(name), f"{name} has no default_cfgs entry"


@all_models
def test_pretrained_cfg(name: str) -> None:
    for tag, cfg in timm.models.get_arch_pretrained_cfgs(name).items():
        assert (cfg.input_size[0], cfg.num_classes) == BUNDLED.get(name, (3, 1000)), tag
        assert cfg.license, tag
        if cfg.hf_hub_id:  # else timm would fall back to a pickle
            assert cfg.hf_hub_filename == "model.safetensors", tag
        if cfg.url:
            assert cfg.url.startswith("https://"), tag


@all_models
def test_unpublished_weights_are_one_sentence(name: str) -> None:
    cfg = timm.get_pretrained_cfg(name)
    if cfg.has_weights or cfg.custom_load:
        pytest.skip("weights are published")
    with pytest.raises(ValueError, match=name) as error:
        timm.create_model(name, pretrained=True, device="meta")
    assert "\n" not in str(error.value) and "use " in str(error.value)
    assert ("`s3zoo convert`" in str(error.value)) == (cfg.tag == "in1k")  # published where no program gets at it


@all_models
@torch.no_grad()
def test_default_cfg(name: str) -> None:
    """On the meta device, at the size of the config: what timm reads off a model before it trains or cuts it."""
    model = on_meta(name)
    state = model.state_dict()
    assert {t.device.type for t in state.values()} == {"meta"}
    cfg = model.default_cfg
    assert cfg["architecture"] == name
    classes = BUNDLED.get(name, (3, 1000))[1]
    assert state[cfg["classifier"] + ".weight"].shape[0] == model.num_classes == cfg["num_classes"] == classes
    if model.arch.family == "ladder":  # it has none: timm adapts that of the tower
        assert cfg["first_conv"] == () and model.tower.patch_embed.proj.weight.shape[1] == cfg["input_size"][0]
    else:
        assert state[cfg["first_conv"] + ".weight"].shape[1] == cfg["input_size"][0]
    assert model.get_classifier() is model.get_submodule(cfg["classifier"])
    assert model.embed_dim == model.feature_info[0]["num_chs"]
    levels = [(info["num_chs"], info["reduction"]) for info in model.feature_info]
    assert len(levels) >= 3 and [r for _, r in levels] == sorted(r for _, r in levels)
    assert all(model.get_submodule(info["module"]) is not None for info in model.feature_info)

    x = torch.empty(2, *cfg["input_size"], device="meta")
    features, maps = model.forward_intermediates(x)
    sides = [tuple(math.ceil(side / r) for side in cfg["input_size"][1:]) for _, r in levels]
    assert [m.shape for m in maps] == [(2, chans, *side) for (chans, _), side in zip(levels, sides, strict=True)]
    if cfg.get("pool_size"):
        assert model.output_fmt == "NHWC" and features.shape == (2, *cfg["pool_size"], model.num_features)
    else:
        assert features.ndim == 3 and features.shape[2] == model.num_features
    assert model.forward_head(features).shape == (2, classes)
    assert model.forward_head(features, pre_logits=True).shape == (2, model.head_hidden_size)

    model.reset_classifier(0)
    assert model.num_classes == 0 and isinstance(model.get_classifier(), nn.Identity)
    assert model.forward_head(features).shape == (2, model.num_features)
    assert model.forward_head(features, pre_logits=True).shape == (2, model.num_features)
    model.reset_classifier(0, "")
    assert model.forward_head(features).shape == features.shape

    model = on_meta(name).to(torch.float64)
    for classes in (0, 2):
        for training in (True, False):
            model.train(training)
            model.reset_classifier(classes)
            assert all(m.training == training for m in model.modules())
            assert {(p.device.type, p.dtype) for p in model.parameters()} == {("meta", torch.float64)}
    assert model.num_classes == 2 and model.forward_head(features.double()).shape == (2, 2)


@families
@torch.no_grad()
def test_features_only_options(family: str) -> None:
    args: dict[str, Any] = dict(img_size=SIZE, device="meta")
    full = create(family, **args)
    n = len(full.feature_info)
    for options, expected in (
        (dict(out_indices=(0, n - 2)), [0, n - 2]),
        (dict(out_indices=(-2, -1)), [n - 2, n - 1]),
        (dict(out_indices=2), [n - 2, n - 1]),
        (dict(feature_cfg=dict(out_indices=[1])), [1]),
        (dict(feature_cfg=dict(out_indices=[1]), out_indices=(0,), feature_cls="getter"), [0]),
    ):
        model = create(family, features_only=True, **args, **options)
        maps = model(torch.empty(1, 3, SIZE, SIZE, device="meta"))
        assert [m.shape[1] for m in maps] == model.feature_info.channels()
        assert model.feature_info.channels() == [full.feature_info[i]["num_chs"] for i in expected]
        assert model.feature_info.reduction() == [full.feature_info[i]["reduction"] for i in expected]


@all_models
def test_parameter_groups(name: str) -> None:
    model = on_meta(name)
    names = {n for n, _ in model.named_parameters()}
    for coarse in (False, True):
        groups = group_parameters(model, model.group_matcher(coarse=coarse))
        placed = [n for members in groups.values() for n in members]
        assert sorted(placed) == sorted(names)  # each once
        order = group_parameters(model, model.group_matcher(coarse=coarse), reverse=True)
        first, head = model.default_cfg["first_conv"], model.default_cfg["classifier"]
        stem = first + ".weight" if first else "query"
        assert order[stem] == 0 and order[head + ".weight"] == max(order.values()) == len(groups) - 1
        # Everything but the stem and the classifier lies between them, block by block.
        assert len(groups) >= (3 if coarse else sum(model.arch.depths) + 2)
        assert all(0 < i < len(groups) - 1 for n, i in order.items() if ".blocks." in f".{n}")

    exempt = model.no_weight_decay()
    assert exempt <= names
    decayed = set()
    optimizer = create_optimizer_v2(model, opt="adamw", lr=1e-3, weight_decay=0.1)
    index = {id(p): n for n, p in model.named_parameters()}
    for group in optimizer.param_groups:
        decayed |= {index[id(p)] for p in group["params"] if group["weight_decay"]}
    for n in decayed:  # only matrices and kernels are left
        assert not any(word in n for word in ("bias", "norm", "pos_embed", "cls_token", "table", "rel_pos", ".bn")), n
    for n, p in model.named_parameters():
        parts = n.split(".")
        matrix = parts[-1] in ("weight", "reduction") and not any("norm" in part or part == "bn" for part in parts)
        assert (n in decayed) == (matrix and p.ndim > 1), n
    assert param_groups_layer_decay(model, weight_decay=0.1, layer_decay=0.7)


@all_models
@torch.no_grad()
def test_prune_intermediate_layers(name: str) -> None:
    model = on_meta(name)
    before = sum(p.numel() for p in model.parameters())
    kept = model.prune_intermediate_layers([0, 1], prune_norm=True, prune_head=True)
    assert kept == [0, 1]
    assert sum(p.numel() for p in model.parameters()) < before
    x = torch.empty(1, *model.default_cfg["input_size"], device="meta")
    maps = model.forward_intermediates(x, indices=kept, intermediates_only=True)
    assert [m.shape[1] for m in maps] == [model.feature_info[i]["num_chs"] for i in kept]
    assert isinstance(model.get_classifier(), nn.Identity)


@families
@torch.no_grad()
def test_set_input_size(family: str) -> None:
    args: dict[str, Any] = dict(num_classes=10, device="meta")
    model = create(family, img_size=96, **args)
    assert model(torch.empty(1, 3, 96, 96, device="meta")).shape == (1, 10)
    for size in ((128, 64), (160, 160), 32):
        model.set_input_size(img_size=size)
        assert model.arch == SMALL[family]  # genes stay
        height, width = (size, size) if isinstance(size, int) else size
        assert model(torch.empty(1, 3, height, width, device="meta")).shape == (1, 10)
        built = create(family, img_size=size, **args)
        assert shapes(built) == shapes(model)


# Numbers, at a small size


@pytest.mark.parametrize("name", RELEASED)
def test_forward_and_backward(name: str) -> None:
    model = cheap(name, num_classes=42).eval()
    x = images(batch=2, chans=model.default_cfg["input_size"][0])
    with torch.no_grad():
        y = model(x)
        assert y.shape == (2, 42) and y.isfinite().all()
        final, maps = model.forward_intermediates(x)
        features = model.forward_features(x)
        assert torch.allclose(final, features, atol=1e-5)
        assert len(maps) >= 3 and all(m.ndim == 4 and m.isfinite().all() for m in maps)
        assert torch.allclose(model.forward_head(features), y, atol=1e-5)
    y = model.train()(x)
    (y - 1).square().mean().backward()
    without = [n for n, p in model.named_parameters() if p.grad is None]
    assert not without and y.shape == (2, 42)
    assert all(p.grad is not None and p.grad.isfinite().all() for p in model.parameters())


@families
def test_gradients_checkpointing_and_determinism(family: str) -> None:
    torch.set_num_threads(2)
    model = small(family).train()
    x = images()

    def run(checkpointing: bool) -> tuple[Tensor, dict[str, Tensor]]:
        run_model = copy.deepcopy(model)
        run_model.set_grad_checkpointing(checkpointing)
        y = run_model(x)
        y.square().mean().backward()
        return y.detach(), {n: p.grad for n, p in run_model.named_parameters() if p.grad is not None}

    y, grads = run(False)
    assert grads.keys() == {n for n, _ in model.named_parameters()}
    assert all(g.abs().max() > 0 for g in grads.values())
    again, same = run(False)
    assert torch.equal(y, again) and all(torch.equal(same[n], g) for n, g in grads.items())  # bit for bit, 2 threads
    saved, cut = run(True)
    assert torch.allclose(y, saved, atol=1e-6)
    assert all(torch.allclose(cut[n], g, rtol=1e-4, atol=1e-6) for n, g in grads.items())

    model.eval()
    final, maps = model.forward_intermediates(x)
    model.set_grad_checkpointing(True)
    final2, maps2 = model.forward_intermediates(x)
    assert torch.allclose(final, final2, atol=1e-5)
    assert all(torch.allclose(a, b, atol=1e-5) for a, b in zip(maps, maps2, strict=True))


@families
def test_intermediates_and_features_agree(family: str) -> None:
    model = small(family).eval()
    x = images()
    n = len(model.feature_info)
    with torch.no_grad():
        final, maps = model.forward_intermediates(x)
        assert torch.equal(final, model.forward_features(x))
        assert len(maps) == n
        for indices, expected in ((2, [n - 2, n - 1]), ([0, 2], [0, 2]), ([-1], [n - 1])):
            for stop_early in (False, True):
                got = model.forward_intermediates(x, indices, stop_early=stop_early, intermediates_only=True)
                assert len(got) == len(expected)
                assert all(torch.equal(g, maps[i]) for g, i in zip(got, expected, strict=True))
        normed = model.forward_intermediates(x, [n - 1], norm=True, intermediates_only=True)[0]
        assert torch.allclose(normed, maps[-1]) == (family == "shunted")  # Shunted's stages end in a norm of their own
        with pytest.raises(ValueError, match="output_fmt"):
            model.forward_intermediates(x, output_fmt="CHWN")

        state = model.state_dict()
        features = create(
            family,
            img_size=SIZE,
            num_classes=10,
            features_only=True,
            out_indices=(0, 1),
            pretrained=True,
            pretrained_cfg_overlay=dict(state_dict=state, num_classes=10),
        ).eval()
        for a, b in zip(features(x), maps[:2], strict=True):
            assert torch.equal(a, b)


@families
def test_pretrained_with_other_channels_and_classes(family: str, tmp_path: Path) -> None:
    """Through timm's loading path, in our own layout: nothing may be lost on the way."""
    own: dict[str, Any] = {}
    if family == "ladder":  # channels are the tower's, which timm adapts where it has weights
        own = {"pretrained_tower": str(tmp_path / "tower.safetensors")}
        save_file(small(family).tower.state_dict(), own["pretrained_tower"])
    source = small(family, **own).eval()
    state = source.state_dict()
    overlay = dict(state_dict=state, num_classes=10)

    def load(**kwargs: Any) -> nn.Module:
        kwargs = {"img_size": SIZE, "num_classes": 10, **own, **kwargs}
        return create(family, pretrained=True, pretrained_cfg_overlay=dict(overlay), **kwargs).eval()

    x = images()
    with torch.no_grad():
        y = source(x)
        assert torch.equal(load()(x), y)
        features = source.forward_head(source.forward_features(x), pre_logits=True)
        for classes in (5, 0):
            model = load(num_classes=classes)
            assert torch.equal(model.forward_head(model.forward_features(x), pre_logits=True), features)
        gray = load(in_chans=1)
        assert torch.allclose(gray(x[:, :1]), source(x[:, :1].expand(-1, 3, -1, -1)), atol=1e-4)
    overlay["state_dict"] = dict(list(state.items())[: len(state) // 2])  # a truncated file
    with pytest.raises(ValueError) as error:
        load()
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("defect", ["missing", "additional", "of another shape", "another family's"])
@families
def test_weights_that_do_not_fit_are_one_sentence(family: str, defect: str) -> None:
    state = small(family).state_dict()
    name = next(name for name in state if "mlp.fc1.weight" in name)
    if defect == "missing":
        del state[name]
    elif defect == "additional":
        name = f"{name}.extra"
        state[name] = torch.zeros(1)
    elif defect == "of another shape":
        state[name] = torch.zeros(3, 2)
    else:
        other = small(next(kind for kind in SMALL if ENTRY[kind] != ENTRY[family])).state_dict()
        state, name = other, next(name for name in state if name not in other)
    with pytest.raises(ValueError, match=name) as error:
        overlay = dict(state_dict=state, num_classes=10)
        create(family, img_size=SIZE, num_classes=10, pretrained=True, pretrained_cfg_overlay=overlay)
    assert "\n" not in str(error.value)


@families
def test_arch_in_every_form(family: str, tmp_path: Path) -> None:
    arch = SMALL[family]
    path = tmp_path / "arch.json"
    path.write_text(arch.to_json(indent=1))
    for form in (arch, arch.to_dict(), arch.to_json(), path, str(path)):
        model = create(family, arch=form, device="meta", img_size=SIZE)
        assert model.arch == arch
    wrong = next(kind for kind in SMALL if ENTRY[kind] != ENTRY[family])
    with pytest.raises(ValueError, match=arch.family) as error:
        create(family, arch=SMALL[wrong])
    assert "\n" not in str(error.value)


@families
def test_bad_input_is_one_sentence(family: str) -> None:
    model = small(family).eval()
    for shape in ((1, 4, SIZE, SIZE), (1, 1, SIZE, SIZE), (3, SIZE, SIZE), (1, 3, 0, SIZE)):
        with pytest.raises(ValueError) as error:
            model(torch.zeros(shape))
        assert "\n" not in str(error.value), shape
    for size in (0, -4, (64,), (64, 0), "64", 6.4, True):
        with pytest.raises(ValueError, match="img_size"):
            create(family, img_size=size, device="meta")
        with pytest.raises(ValueError, match="img_size"):
            create(family, img_size=SIZE, device="meta").set_input_size(img_size=size)


# Options


@families
def test_drop_rate_and_drop_path_rate(family: str) -> None:
    x = images()
    plain = small(family).eval()
    with torch.no_grad():
        y = plain(x)
        for option in ("drop_rate", "drop_path_rate"):
            model = small(family, **{option: 0.5}).eval()
            assert torch.equal(model(x), y)  # no effect in evaluation
            model.train()
            for m in model.modules():
                if isinstance(m, nn.modules.batchnorm._BatchNorm):
                    m.eval()
            torch.manual_seed(0)
            first = model(x)
            torch.manual_seed(1)
            assert not torch.equal(first, model(x)), option
    model = create(family, drop_path_rate=0.3, device="meta")
    rates = [m.drop_prob for m in model.modules() if hasattr(m, "drop_prob")]
    depth = sum(SMALL[family].depths)
    linear = [0.3 * i / (depth - 1) for i in range(depth)]
    assert np.allclose(sorted(set(np.round(rates, 6))), linear, atol=1e-6)
    assert np.allclose(rates, np.repeat(linear, len(rates) // depth), atol=1e-6)


@families
def test_global_pool(family: str) -> None:
    model = small(family).eval()
    x = images()
    with torch.no_grad():
        avg = model.forward_head(model.forward_features(x), pre_logits=True)
        model.reset_classifier(0, "")
        unpooled = model(x)
        assert model.global_pool == "" and torch.equal(unpooled, model.forward_features(x))
        if family == "ladder":
            assert unpooled.shape == (2, 1, model.num_features) and torch.equal(avg, unpooled[:, 0])
            with pytest.raises(ValueError, match="'avg', but must be 'token' or '': a decoder has one query"):
                model.reset_classifier(7, "avg")
            return
        model.reset_classifier(7, "avg")
        assert model.global_pool == "avg" and model(x).shape == (2, 7)
        pooled = model.forward_head(model.forward_features(x), pre_logits=True)
        dims = (1, 2) if unpooled.ndim == 4 else (1,)
        skip = unpooled.ndim == 3 and unpooled.shape[1] != (SIZE // model.arch.patch_size) ** 2  # a class token
        tokens = unpooled[:, 1:] if skip else unpooled
        assert torch.allclose(pooled, tokens.mean(dims), atol=1e-5)
        if family not in ("glit", "glit_area"):  # which read the class token
            assert torch.allclose(avg, pooled, atol=1e-6)


@families
def test_dtype_and_channels(family: str) -> None:
    model = create(family, img_size=SIZE, in_chans=5, num_classes=3, dtype=torch.float64)
    assert {p.dtype for p in model.parameters()} == {torch.float64}
    y = model.eval()(images(chans=5).double())
    assert y.dtype == torch.float64 and y.shape == (2, 3)


@families
def test_init_weights_after_to_empty(family: str) -> None:
    model = create(family, img_size=SIZE, num_classes=10, device="meta")
    model.to_empty(device="cpu")
    with torch.no_grad():
        for t in [*model.parameters(), *model.buffers()]:
            t.fill_(math.nan if t.is_floating_point() else 0)
    torch.manual_seed(0)
    model.init_weights(needs_reset=True)
    assert all(t.isfinite().all() for t in [*model.parameters(), *model.buffers()])
    torch.manual_seed(0)
    built = create(family, img_size=SIZE, num_classes=10)
    for (n, a), (_, b) in zip(model.state_dict().items(), built.state_dict().items(), strict=True):
        assert a.shape == b.shape
        if a.is_floating_point() and a.numel() > 200:  # the same distribution, drawn in another order
            assert abs(a.std() - b.std()) < 0.35 * b.std() + 1e-8, n
        elif b.numel() and torch.equal(b, b.flatten()[0].expand_as(b)):  # a constant
            assert torch.equal(a, b), n
    with torch.no_grad():
        assert model.eval()(images()).isfinite().all()


# Tracing, compiling, export


def quiet_script(model: nn.Module) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return torch.jit.script(model)


def traced(model: nn.Module) -> nn.Module:
    """The FX graph up to the last node, in timm's way (its list of modules that are not traced)."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        train_nodes, eval_nodes = get_graph_node_names(model)
        assert train_nodes[-1] == eval_nodes[-1]
        return create_feature_extractor(model, {eval_nodes[-1]: "y"})


def quiet_trace(model: nn.Module, x: Tensor) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return torch.jit.trace(model, x, strict=False)


@families
@torch.no_grad()
def test_torchscript(family: str) -> None:
    model, x = small(family).eval(), images(batch=1)
    if family == "ladder":
        with pytest.raises(ValueError, match="torch.jit.script cannot compile a decoder.*use torch.jit.trace"):
            quiet_script(model)
        return
    assert torch.allclose(quiet_script(model)(x), model(x), rtol=1e-4, atol=1e-5)


@families
@torch.no_grad()
def test_fx(family: str) -> None:
    model, x = small(family).eval(), images()
    fx, y = traced(model).eval(), model(x)
    assert torch.equal(fx(x)["y"], y)
    compiled = quiet_trace(fx, x) if family == "ladder" else quiet_script(fx)
    assert torch.allclose(compiled(x)["y"], y, rtol=1e-4, atol=1e-5)


@families
def test_jit_trace(family: str) -> None:
    model, x = small(family).eval(), images(seed=2)
    with torch.no_grad():
        assert torch.allclose(quiet_trace(model, images())(x), model(x), rtol=1e-4, atol=1e-5)


@families
def test_fx_backward(family: str) -> None:
    fx = traced(small(family, drop_path_rate=0.1).train()).train()
    fx(images())["y"].square().mean().backward()
    assert not [n for n, p in fx.named_parameters() if p.grad is None]


@pytest.mark.parametrize("backend", ["aot_eager", pytest.param("inductor", marks=pytest.mark.slow)])
@families
def test_compile_without_graph_breaks(family: str, backend: str) -> None:
    """In one graph for every batch size: logits and gradients are those of the model as it is."""
    model = small(family).train()
    reference = copy.deepcopy(model)
    torch._dynamo.reset()
    compiled = torch.compile(model, fullgraph=True, backend=backend)
    for batch in (2, 5):
        x = images(batch)
        torch._dynamo.mark_dynamic(x, 0)
        with torch._dynamo.config.patch(error_on_recompile=batch != 2):
            y = compiled(x)
        expected = reference(x)
        assert (y - expected).abs().max() < 1e-5 * max(1.0, float(expected.abs().max()))
        model.zero_grad()
        reference.zero_grad()
        y.square().mean().backward()
        expected.square().mean().backward()
        for (n, a), (_, b) in zip(model.named_parameters(), reference.named_parameters(), strict=True):
            assert a.grad is not None and b.grad is not None
            assert (a.grad - b.grad).abs().max() < 1e-5 * max(1.0, float(b.grad.abs().max())), n


@families
def test_onnx(family: str, tmp_path: Path) -> None:
    onnxruntime = pytest.importorskip("onnxruntime")
    pytest.importorskip("onnxscript")
    model = small(family).eval()
    x = images(batch=1)
    path = tmp_path / "model.onnx"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(model, (x,), path, dynamo=True, verbose=False)
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    (y,) = session.run(None, {session.get_inputs()[0].name: x.numpy()})
    with torch.no_grad():
        assert np.allclose(y, model(x).numpy(), rtol=1e-3, atol=1e-4)


# What the supernet builds on


@families
def test_blocks_are_built_one_by_one(family: str) -> None:
    model = small(family)
    for s, stage in enumerate(model.arch.stages):
        blocks = model.get_submodule(model.blocks_path(s))
        assert len(blocks) == stage.depth
        for i, block in enumerate(blocks):
            made = model.make_block(model.arch, s, i, drop_path=0.1, device="meta")
            assert type(made) is type(block)
            assert shapes(made) == shapes(block)
            assert {m.drop_prob for m in made.modules() if hasattr(m, "drop_prob")} == {0.1}


@families
def test_center_cropped_axes_exist(family: str) -> None:
    for name, module in small(family).named_modules():
        for parameter, axes in getattr(module, "center_cropped", {}).items():
            owner = dict(module.named_parameters())
            assert parameter in owner, (name, parameter)
            assert all(0 <= axis < owner[parameter].ndim for axis in axes)
