"""The decoder beside a frozen tower: its sizes, its equations written out, and that the tower stays what it was."""

import copy
import random
from dataclasses import replace
from typing import Any

import pytest
import timm
import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save_file
from timm.models import VisionTransformer
from torch import Tensor

from s3zoo import artefact, cost
from s3zoo.arch import Arch, LadderBlock, Stage
from s3zoo.compat import count_macs
from s3zoo.families.autoformer import plain_space
from s3zoo.models.ladder import Ladder
from s3zoo.models.tower import build_tower, fingerprint
from s3zoo.space import SPACES
from s3zoo.supernet import Supernet

TINY = "test_vit"  # timm's own: width 64, 6 blocks, patch 16

pytestmark = pytest.mark.usefixtures("one_thread")


def uniform(depth: int, ratio: float, heads: int, bottleneck: int, head_dim: int = 64, **kwargs: Any) -> Arch:
    return Arch("ladder", (Stage(bottleneck, (LadderBlock(heads, head_dim, ratio),) * depth),), **kwargs)


def small_tower(seed: int = 0, **kwargs: Any) -> VisionTransformer:
    torch.manual_seed(seed)
    args = dict(img_size=16, patch_size=4, in_chans=1, embed_dim=24, depth=5, num_heads=3, num_classes=0)
    return VisionTransformer(**{**args, **kwargs})  # type: ignore[arg-type]


SHAPE: dict[str, Any] = dict(img_size=16, in_chans=1, num_classes=5)
MIXED = Arch("ladder", (Stage(7, (LadderBlock(2, 4, 1.5), LadderBlock(3, 5, 2.0), LadderBlock(1, 8, 1.0))),), 4)


def small(seed: int = 0, arch: Arch = MIXED, **kwargs: Any) -> Ladder:
    """A small decoder with every parameter random, so that each of them matters."""
    kwargs = {**SHAPE, **kwargs}
    model = Ladder(arch, **{"tower": small_tower(), **kwargs})
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for p in model.parameters():
            p.add_(torch.randn(p.shape, generator=generator) * 0.2)
    return model


def images(batch: int = 4, seed: int = 1) -> Tensor:
    return torch.randn(batch, 1, 16, 16, generator=torch.Generator().manual_seed(seed))


# Sizes


@pytest.mark.parametrize(
    ("arch", "classes", "expected"),
    [
        (uniform(3, 3.5, 2, 336), 10, 15_155_194),
        (uniform(4, 4, 12, 384), 10, 30_731_530),
        (uniform(4, 4, 12, 384), 397, 31_029_133),
        (uniform(4, 4, 14, 384), 397, 32_603_533),
    ],
)
def test_parameter_counts(arch, classes, expected):
    """S4's baseline is printed as 31M on 10 classes and 32M on 397: ceilings of these."""
    model = timm.create_model("clip_ladder", arch=arch, num_classes=classes, device="meta")
    assert sum(p.numel() for p in model.parameters()) == expected == cost.params(arch, num_classes=classes)
    block: Any = arch.stages[0].blocks[0]
    a, b, c, d, dim = arch.depths[0], block.mlp_ratio, block.num_heads, arch.embed_dims[0], 768
    layer = 256 * c * dim + 192 * c + dim + 2 * b * dim**2 + b * dim + dim + 6 * dim + 2 * dim * d + d + dim
    assert expected == a * layer + 3 * dim + classes * (dim + 1)


@pytest.mark.parametrize("seed", range(6))
def test_closed_form_of_random_decoders(seed):
    rng = random.Random(seed)
    blocks = tuple(
        LadderBlock(rng.randint(1, 5), rng.choice((8, 33, 64)), rng.choice((0.7, 2, 3.5)))
        for _ in range(rng.randint(1, 5))
    )
    arch, classes = Arch("ladder", (Stage(rng.randint(1, 500), blocks),)), rng.choice((0, 7))
    model = Ladder(arch, num_classes=classes, device="meta")
    assert cost.params(arch, num_classes=classes) == sum(p.numel() for p in model.parameters())


def test_cost_beside_another_tower():
    model = small()
    expected = {"img_size": 16, "num_classes": 5, "in_chans": 1, "tower_dim": 24}
    features = model.tower_features(images(1))
    assert cost.params(MIXED, **expected) == sum(p.numel() for p in model.parameters())
    assert cost.macs(MIXED, **expected) == count_macs(lambda: model(features))[0] > 0


def test_sizes_of_the_other_readings():
    """A linear ladder has D² + D parameters, a gate one per layer."""
    base = uniform(3, 2, 2, 7, head_dim=4, patch_size=4)

    def count(**kwargs: Any) -> int:
        return sum(p.numel() for p in Ladder(base, tower=small_tower(), **SHAPE, **kwargs).parameters())

    none = count(ladder="none")
    assert count() - none == 3 * (2 * 24 * 7 + 7 + 24)
    assert count(ladder="linear") - none == 3 * (24 * 24 + 24)
    assert count(ladder="none", gate=True) - none == 3


# Numbers


def reference(model: Ladder, x: Tensor, arch: Arch) -> Tensor:
    """The decoder step by step, on the plain block outputs of the tower."""
    tower: Any = model.tower
    w = dict(model.named_parameters())
    outputs = []
    hooks = [b.register_forward_hook(lambda *args: outputs.append(args[2])) for b in tower.blocks]
    with torch.no_grad():
        tower.forward_features(x)
    for hook in hooks:
        hook.remove()

    def norm(name: str, y: Tensor) -> Tensor:
        y = (y - y.mean(-1, keepdim=True)) / (y.var(-1, unbiased=False, keepdim=True) + 1e-5).sqrt()
        return y * w[f"{name}.weight"] + w[f"{name}.bias"]

    def linear(name: str, y: Tensor) -> Tensor:
        return y @ w[f"{name}.weight"].T + w[f"{name}.bias"]

    query, genes = w["query"].expand(len(x), 1, 24), arch.stages[0].blocks
    read = outputs[-len(genes)]
    for i, (block, y) in enumerate(zip(genes, outputs[-len(genes) :], strict=True)):
        at = f"blocks.{i}"
        if model.ladder == "bottleneck":
            inner = linear(f"{at}.ladder.down", y)
            y = y + linear(f"{at}.ladder.up", inner * torch.sigmoid(1.702 * inner))
        elif model.ladder == "linear":
            y = y + linear(f"{at}.ladder", y)
        if model.gate:
            mix = 1 / (1 + torch.exp(-w[f"{at}.gate"] / 0.1))
            y = mix * read + (1 - mix) * y
        read = y
        q_in, kv_in, heads = norm(f"{at}.norm1", query), norm(f"{at}.norm3", y), []
        for h in range(block.num_heads):  # type: ignore[union-attr]
            q = q_in @ w[f"{at}.attn.q.weight"][h].T + w[f"{at}.attn.q.bias"][h]
            k, v = (kv_in @ w[f"{at}.attn.kv.weight"][j, h].T + w[f"{at}.attn.kv.bias"][j, h] for j in (0, 1))
            weights = (q @ k.transpose(1, 2) / block.head_dim**0.5).softmax(-1)  # type: ignore[union-attr]
            heads.append(weights @ v @ w[f"{at}.attn.proj.weight"][:, h].T)
        query = query + sum(heads) + w[f"{at}.attn.proj.bias"]
        hidden = linear(f"{at}.mlp.fc1", norm(f"{at}.norm2", query))
        query = query + linear(f"{at}.mlp.fc2", hidden * torch.sigmoid(1.702 * hidden))
    return linear("head", norm("norm", query[:, 0]))


@pytest.mark.parametrize("gate", [False, True])
@pytest.mark.parametrize("ladder", ["bottleneck", "linear", "none"])
def test_the_equations(ladder, gate):
    model = small(ladder=ladder, gate=gate).eval()
    with torch.no_grad():
        torch.testing.assert_close(model(images()), reference(model, images(), MIXED), atol=1e-5, rtol=1e-5)


def test_training_starts_from_the_decoder_without_ladder():
    torch.manual_seed(0)
    model = Ladder(MIXED, tower=small_tower(), **SHAPE).eval()
    assert not model.query.any()
    plain = Ladder(MIXED, tower=model.tower, ladder="none", **SHAPE).eval()
    plain.load_state_dict({k: v for k, v in model.state_dict().items() if ".ladder." not in k})
    assert torch.equal(model(images()), plain(images()))


# The tower


def test_the_tower_is_no_part_of_the_model():
    model = small()
    assert not any("tower" in name for name in model.state_dict())
    assert not any(m is model.tower for m in model.modules())
    assert {id(p) for p in model.parameters()}.isdisjoint(id(p) for p in model.tower.parameters())
    model.train()
    assert not model.tower.training
    twin = copy.deepcopy(model)  # as an EMA does
    assert twin.tower is model.tower
    assert all(a is not b for a, b in zip(twin.parameters(), model.parameters(), strict=True))
    model.double()
    assert model(images().double()).dtype == torch.float64  # features come in the decoder's precision
    assert twin(images()).dtype == torch.float32


@pytest.mark.parametrize("gate", [False, True])
def test_a_training_step_leaves_the_tower_as_it_was(gate):
    tower = small_tower(proj_drop_rate=0.5).train()  # dropout would show if it were ever in training mode
    model = small(tower=tower, gate=gate).train()
    before = {name: value.clone() for name, value in tower.state_dict().items()}
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    tower.train()  # by someone else
    F.cross_entropy(model(images()), torch.arange(4)).backward()
    assert not tower.training and torch.equal(model(images()), model(images()))
    assert all(p.grad is None and not p.requires_grad for p in tower.parameters())
    assert all(p.grad is not None and p.grad.abs().max() > 0 for p in model.parameters())
    start = [p.detach().clone() for p in model.parameters()]
    optimizer.step()
    assert not any(torch.equal(a, b) for a, b in zip(start, model.parameters(), strict=True))
    assert all(torch.equal(before[name], value) for name, value in tower.state_dict().items())


def test_cached_features_train_identically():
    live, cached = small().train(), small().train()
    batches = [images(seed=s) for s in range(3)]
    features = [cached.tower_features(x, depth=5) for x in batches]  # more layers than this decoder reads
    assert features[0].shape == (4, 5, 17, 24) and not features[0].requires_grad
    cached.reader.__dict__["tower"] = None  # nothing runs it any more
    for model, inputs in ((live, batches), (cached, features)):
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
        for _ in range(2):
            for x in inputs:
                optimizer.zero_grad()
                F.cross_entropy(model(x), torch.arange(4)).backward()
                optimizer.step()
    assert all(torch.equal(a, b) for a, b in zip(live.parameters(), cached.parameters(), strict=True))
    assert torch.equal(cached(list(features[0].unbind(1))), live(batches[0]))  # a list of layers
    assert torch.equal(cached(features[0].half()), cached(features[0].half().float()))  # stored in half precision


def test_an_untrained_tower_is_the_same_each_time():
    torch.manual_seed(1)
    one = build_tower(TINY, img_size=32)
    number = torch.rand(1)
    torch.manual_seed(1)
    assert torch.equal(torch.rand(1), number)  # and building it draws no random number of the run
    two = build_tower(TINY, img_size=32)
    assert all(torch.equal(a, b) for a, b in zip(one.state_dict().values(), two.state_dict().values(), strict=True))


def test_weights_of_the_tower_from_a_file(tmp_path):
    torch.manual_seed(3)
    source = timm.create_model(TINY, img_size=32, num_classes=0)
    save_file(source.state_dict(), tmp_path / "tower.safetensors")
    tower = build_tower(TINY, tmp_path / "tower.safetensors", img_size=32)
    assert all(torch.equal(v, tower.state_dict()[name]) for name, v in source.state_dict().items())
    assert not torch.equal(tower.pos_embed, build_tower(TINY, img_size=32).pos_embed)
    lost = "blocks.1.mlp.fc1.weight"
    save_file({k: v for k, v in source.state_dict().items() if k != lost}, tmp_path / "tower.safetensors")
    with pytest.raises(ValueError, match=f"'{lost}' is missing"):
        build_tower(TINY, tmp_path / "tower.safetensors", img_size=32)


def test_leaving_the_meta_device_builds_the_tower():
    arch = uniform(2, 1, 1, 4, head_dim=4)
    model = timm.create_model("clip_ladder", arch=arch, tower=TINY, img_size=32, num_classes=3, device="meta")
    assert next(model.tower.parameters()).is_meta
    model.to_empty(device="cpu").init_weights()
    assert torch.equal(model.tower.pos_embed, build_tower(TINY, img_size=32).pos_embed)
    y = model(torch.randn(2, 3, 32, 32))
    assert y.shape == (2, 3) and y.isfinite().all()


# timm


@pytest.mark.parametrize("gate", [False, True])
def test_maps_of_the_tower_and_behind_the_ladders(gate):
    """Six maps of a decoder of three layers: the tower's last three blocks, and what each layer reads of them."""
    model = small(gate=gate).eval()
    outputs: list[Tensor] = []
    hooks = [b.register_forward_hook(lambda *args: outputs.append(args[2])) for b in model.tower.blocks]
    with torch.no_grad():
        final, maps = model.forward_intermediates(images(), return_prefix_tokens=True, output_fmt="NLC")
        for hook in hooks:
            hook.remove()
        tokens = [torch.cat(pair[::-1], dim=1) for pair in maps]
        assert [info["module"] for info in model.feature_info] == [f"tower.blocks.{i}" for i in (2, 3, 4)] + [
            f"blocks.{i}" for i in range(3)
        ]
        assert all(torch.equal(a, b) for a, b in zip(tokens[:3], outputs[2:], strict=True))
        before = outputs[2]
        for block, y, read in zip(model.blocks, outputs[2:], tokens[3:], strict=True):
            y = y + block.ladder(y)
            if gate:
                y = torch.lerp(y, before, torch.sigmoid(block.gate / 0.1))
            assert torch.allclose(read, y, atol=1e-6)
            before = read
        assert torch.equal(model.head(final[:, 0]), model(images()))
        fewer = copy.deepcopy(model)
        assert fewer.prune_intermediate_layers([1, 4]) == [1, 4] and len(fewer.blocks) == 2
        got = fewer.forward_intermediates(images(), [1, 4], output_fmt="NLC", intermediates_only=True)
        assert all(torch.equal(g, maps[i][0]) for g, i in zip(got, (1, 4), strict=True))


def test_another_input_size():
    """The tower is resized, a copy of it where others may read it; the decoder's weights serve all sizes."""
    model = small().eval()
    tower: Any = model.tower
    model.set_input_size((24, 16))
    assert tower.pos_embed.shape[1] == 17 and model.tower.pos_embed.shape[1] == 25
    x = torch.randn(2, 1, 24, 16)
    resized = small_tower(img_size=(24, 16))
    resized.load_state_dict(model.tower.state_dict())
    twin = small(tower=resized, img_size=(24, 16)).eval()
    assert torch.equal(model(x), twin(x)) and model(x).shape == (2, 5)


@pytest.mark.parametrize("ladder", ["bottleneck", "linear"])
def test_a_saved_folder_comes_back(tmp_path, ladder):
    arch = uniform(2, 1.5, 2, 5, head_dim=4)
    args = dict(tower=TINY, img_size=32, num_classes=4, ladder=ladder, gate=ladder == "linear")
    model = timm.create_model("clip_ladder", arch=arch, **args).eval()
    with torch.no_grad():
        for p in model.parameters():
            p.copy_(torch.randn_like(p) * 0.2)
    artefact.save_model(tmp_path, model)
    config = artefact.load_model_config(tmp_path, verify=True)
    assert config["architecture"] == "clip_ladder"
    assert config["s3zoo"]["params"] == sum(p.numel() for p in model.parameters())
    assert load_file(tmp_path / "model.safetensors").keys() == model.state_dict().keys()
    x = torch.randn(2, 3, 32, 32)
    back = timm.create_model(f"local-dir:{tmp_path}", pretrained=True).eval()
    assert back.arch == arch and torch.equal(back(x), model(x))
    other = timm.create_model(f"local-dir:{tmp_path}", pretrained=True, num_classes=7).eval()
    assert torch.equal(other.forward_features(x), model.forward_features(x)) and other(x).shape == (2, 7)


def test_the_fingerprint_of_a_tower():
    """Changes with any weight, but not where timm only resamples for another input."""
    tower = build_tower(TINY, img_size=32)
    source = fingerprint(tower)
    state = {name: value.clone() for name, value in tower.state_dict().items()}
    state["pos_embed"] += 1
    tower.load_state_dict(state)
    assert fingerprint(tower) == source
    for name in ("cls_token", "blocks.5.mlp.fc2.bias"):
        changed = {**state, name: state[name] + 1e-6}
        tower.load_state_dict(changed)
        assert fingerprint(tower) != source
    assert build_tower(TINY, img_size=32, sha256=source) is not None
    with pytest.raises(ValueError, match="not those that the decoder was trained with"):
        build_tower(TINY, img_size=32, sha256="0" * 64)
    assert build_tower(TINY, img_size=32, dtype=torch.float64, sha256=source).pos_embed.dtype == torch.float64


def test_a_tower_of_unknown_origin_is_not_saved(tmp_path):
    with pytest.raises(ValueError, match="cannot be found again"):
        artefact.save_model(tmp_path, small())


def test_the_baseline():
    model = timm.create_model("clip_ladder_base", num_classes=10, device="meta")
    assert model.arch == uniform(4, 4, 12, 384)
    assert model.tower.pretrained_cfg["architecture"] == "vit_base_patch16_clip_quickgelu_224"
    assert model(torch.empty(2, 3, 224, 224, device="meta")).shape == (2, 10)
    assert model.pretrained_cfg["mean"] == model.tower.pretrained_cfg["mean"]
    assert model.pretrained_cfg["std"] == model.tower.pretrained_cfg["std"]
    assert model.pretrained_cfg["crop_pct"] == model.tower.pretrained_cfg["crop_pct"]


def test_mistakes_are_one_sentence():
    tower = small_tower()
    s3 = SPACES["s3_initial"].smallest()

    def build(arch: Arch = MIXED, **kwargs: Any) -> Ladder:
        return Ladder(arch, **{"tower": tower, **SHAPE, **kwargs})

    model = build()
    wide = model.tower_features(images(), depth=2)
    for call, match in (
        (lambda: build(s3), "family 's3'.* use the model 's3'"),
        (lambda: timm.create_model("s3", arch=MIXED), "use the model 'clip_ladder'"),
        (lambda: build_tower("test_vitt"), "'test_vitt', which timm does not know"),
        (lambda: build_tower("resnet10t"), "resnet10t, but must be a timm vision transformer"),
        (lambda: build_tower(TINY, "nowhere.safetensors"), "no file with weights of the tower at 'nowhere"),
        (lambda: build(ladder="rope"), "ladder is 'rope'"),
        (lambda: build(global_pool="avg"), "global_pool is 'avg'"),
        (lambda: build(img_size=18), "img_size is 18, but must be a multiple of the patch size 4"),
        (lambda: torch.jit.script(model), "torch.jit.script cannot compile a decoder"),
        (lambda: build(img_size=20), r"img_size \(16, 16\) and in_chans 1"),
        (lambda: build(replace(MIXED, patch_size=8)), "patch_size 8, but the tower"),
        (lambda: build(uniform(6, 1, 1, 4, patch_size=4)), "6 layers, but the tower .* only 5 blocks"),
        (lambda: build(tower=timm.create_model("resnet10t", in_chans=1)), "must be a timm vision transformer"),
        (lambda: model(torch.zeros(1, 3, 16, 16)), r"shape \[1, 3, 16, 16\]"),
        (lambda: model(torch.zeros(1, 1, 20, 16)), r"must be \(batch, 1, 16, 16\)"),
        (lambda: model(wide), "have 2 layers, but the decoder reads 3"),
        (lambda: model.init_weights("jax"), "mode is 'jax'"),
        (lambda: timm.create_model("clip_ladder_base", pretrained=True, device="meta"), "clip_ladder_base are publ"),
    ):
        with pytest.raises(ValueError, match=match) as error:
            call()
        assert "\n" not in str(error.value)


# Supernets


SPACE = replace(
    plain_space("ladder", (2, 3), (4, 6, 7), (1, 2, 3), (1, 1.5), head_dim=4, patch_size=4), family="ladder"
)


def supernet(**options: Any) -> Supernet:
    torch.manual_seed(0)
    net = Supernet(SPACE, img_size=16, num_classes=5, in_chans=1, **options)
    with torch.no_grad():
        net.flat.add_(torch.randn(net.flat.shape) * 0.1)
    return net


@pytest.mark.parametrize("sharing", ["entangled", "classical"])
def test_a_view_equals_the_extracted_model_bit_for_bit(sharing):
    tower = small_tower()
    net = supernet(sharing=sharing, model_args={"tower": tower, "gate": True})
    assert not any("tower" in name for name in net.bank)
    rng = random.Random(1)
    for arch in [SPACE.largest(), SPACE.smallest(), *(SPACE.sample(rng) for _ in range(6))]:
        view: Any = net.subnet(arch).eval()
        own: Any = net.extract(arch).eval()
        assert view.tower is own.tower is tower
        with torch.no_grad():
            y = view(images())
            assert torch.equal(y, own(images()))
            deepest = net.subnet(SPACE.largest()).tower_features(images())  # type: ignore[operator]
            assert torch.equal(view(deepest), y)  # a shallower decoder reads the last of the layers


def test_the_corner_of_a_smaller_decoder():
    net = supernet(model_args={"tower": small_tower()})
    large, small = (dict(net.subnet(a).named_parameters()) for a in (SPACE.largest(), SPACE.smallest()))
    for name, shape in {
        "blocks.1.attn.q.weight": (1, 4, 24),
        "blocks.1.attn.kv.weight": (2, 1, 4, 24),
        "blocks.1.attn.proj.weight": (24, 1, 4),
        "blocks.1.ladder.down.weight": (4, 24),
        "blocks.1.ladder.up.weight": (24, 4),
        "blocks.1.mlp.fc1.weight": (24, 24),
        "blocks.1.mlp.fc2.weight": (24, 24),
    }.items():
        assert small[name].shape == shape and small[name].numel() < large[name].numel()
        assert torch.equal(small[name], large[name][tuple(slice(n) for n in shape)])
    net.gradient.zero_()
    F.cross_entropy(net.subnet(SPACE.smallest()).train()(images()), torch.arange(4)).backward()
    grad = net.grads["blocks.1.ladder.down.weight"]
    assert grad[:4].abs().max() > 0 and not grad[4:].any()


def test_a_tower_given_by_name_is_built_once(monkeypatch):
    built = []
    create = timm.create_model
    monkeypatch.setattr(timm, "create_model", lambda *args, **kwargs: built.append(args) or create(*args, **kwargs))
    space = replace(SPACE, patch_size=16)
    net = Supernet(space, img_size=32, num_classes=5, model_args={"tower": TINY})
    subnets: list[Any] = [net.subnet(space.sample(random.Random(i))) for i in range(4)]
    subnets.append(net.extract(space.smallest()))
    assert len(built) == 1 and len({id(s.tower) for s in subnets}) == 1
    assert not next(subnets[0].tower.parameters()).is_meta
