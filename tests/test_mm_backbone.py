"""Networks as backbones of mmdet and mmseg: the same features as timm's, any image size, weights from anywhere."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import timm
import torch
from safetensors.torch import save_file
from timm.layers import resample_abs_pos_embed
from timm.models import _registry
from torch import Tensor, nn

pytest.importorskip("mmengine")

from mmengine.config import Config  # noqa: E402
from mmengine.model import BaseModule  # noqa: E402

from s3zoo.arch import Arch, AutoFormerBlock, GLiTBlock, S3Block, ShuntedBlock, Stage  # noqa: E402
from s3zoo.artefact import save_model  # noqa: E402
from s3zoo.transfer.mm import S3ZooBackbone, backbone, decay_exempt_keys  # noqa: E402
from s3zoo.transfer.mm.config import portable  # noqa: E402
from s3zoo.transfer.mm.pyramid import ResizePyramid, SimplePyramid  # noqa: E402

pytestmark = pytest.mark.usefixtures("one_thread")


ARCHS = {
    "s3": Arch("s3", tuple(
        Stage(16 * 2**i, (S3Block(window, 2**i, 16, 2.0),) * depth)
        for i, (window, depth) in enumerate(((7, 1), (7, 1), (14, 2), (7, 1)))
    )),
    "shunted": Arch("shunted", tuple(Stage(16 * 2**i, (ShuntedBlock(2, 8, 2.0),)) for i in range(4))),
    "autoformer": Arch("autoformer", (Stage(32, (AutoFormerBlock(2, 16, 2.0),) * 3),)),
    "glit": Arch("glit", (Stage(48, (GLiTBlock(3, 1, 16, 17, 2.0, 2.0), GLiTBlock(3, 3, 16, 17, 1.0, 2.0))),)),
}  # fmt: skip
MAPS = {"s3": (16, 32, 64, 128), "shunted": (16, 32, 64, 128), "resnet10t": (64, 128, 256, 512)}
NETWORKS = [*ARCHS, "resnet10t", "deit"]
DEIT = dict(embed_dim=32, depth=2, num_heads=2)


def make(network: str, **kwargs: Any) -> S3ZooBackbone:
    torch.manual_seed(0)
    if network in ARCHS:
        kwargs["model_args"] = dict(arch=ARCHS[network]) | kwargs.get("model_args", {})
    if network == "deit":
        network, kwargs["model_args"] = "deit_tiny_patch16_224", DEIT | kwargs.get("model_args", {})
    return S3ZooBackbone(network, **kwargs)


def images(height: int = 70, width: int = 101, batch: int = 1) -> Tensor:
    return torch.rand(batch, 3, height, width, generator=torch.Generator().manual_seed(1))


# Features


@pytest.mark.parametrize("network", NETWORKS)
def test_features_equal_timms(network: str) -> None:
    """The same image through timm's features_only, at a size that no stride divides where the network takes such."""
    net = make(network).eval()
    size = (80, 112) if net.plain else (70, 101)
    args: dict[str, Any] = dict(dynamic_img_size=True) if net.plain else {}
    if network in ARCHS:
        args |= dict(arch=ARCHS[network])
    name = network
    if network == "deit":
        name, args = "deit_tiny_patch16_224", args | DEIT
    indices = [net._take[0]] if net.plain else net._take
    features = timm.create_model(name, features_only=True, out_indices=indices, **args).eval()
    inner = getattr(features, "model", features)  # timm has a wrapper around networks, and another one of their parts
    missing = inner.load_state_dict(net.model.state_dict(), strict=False).missing_keys
    assert all(key.startswith(("norm.", "head.")) for key in missing), missing
    with torch.no_grad():
        ours, theirs = net.features(images(*size)), features(images(*size))
    assert len(ours) == len(theirs) == (1 if net.plain else 4)
    assert all(torch.equal(a, b) for a, b in zip(ours, theirs, strict=True))


@pytest.mark.parametrize("network", NETWORKS)
@pytest.mark.parametrize("size", [(70, 101), (64, 64), (33, 200)])
def test_maps_at_four_strides_from_any_size(network: str, size: tuple[int, int]) -> None:
    net = make(network).eval()
    with torch.no_grad():
        maps = net(images(*size))
    assert net.strides == (4, 8, 16, 32) and net.out_channels == MAPS.get(network, (256,) * 4)
    if network == "shunted":  # its stem halves twice, the second time without padding
        first = [-(-side // 2) // 2 for side in size]
        sides = [[-(-side // 2**i) for side in first] for i in range(4)]
    elif net.plain:  # padded to the patch, then enlarged or halved
        grid = [-(-side // 16) for side in size]
        sides = [[4 * g for g in grid], [2 * g for g in grid], grid, [-(-g // 2) for g in grid]]
    else:
        sides = [[-(-side // stride) for side in size] for stride in net.strides]
    assert [list(m.shape) for m in maps] == [[1, c, *s] for c, s in zip(net.out_channels, sides, strict=True)]


@pytest.mark.parametrize("network", NETWORKS)
def test_every_parameter_is_used(network: str) -> None:
    """Data parallel training stops at parameters without a gradient."""
    net = make(network)
    sum(m.square().sum() for m in net(images(batch=2))).backward()
    assert [name for name, p in net.named_parameters() if p.grad is None] == []
    assert make(network, out_indices=[1]).out_channels == net.out_channels[1:2]
    net = make(network, out_indices=(1,))
    (only,) = net(images(batch=2))
    only.square().sum().backward()
    assert [name for name, p in net.named_parameters() if p.grad is None] == [] and net.strides == (8,)


def to_mmdet_swin(weights: dict[str, Tensor]) -> dict[str, Tensor]:
    """The names and layouts of mmdet's SwinTransformer for those of an S3ZooBackbone."""
    names = {
        "model.": "",
        "patch_embed.proj": "patch_embed.projection",
        ".attn.": ".attn.w_msa.",
        ".mlp.fc1": ".ffn.layers.0.0",
        ".mlp.fc2": ".ffn.layers.1",
    }
    out = {}
    for name, value in weights.items():
        for ours, theirs in names.items():
            name = name.replace(ours, theirs)
        if ".downsample." in name:  # at the end of the stage before; its channels are in ours' order
            stage, rest = int(name.split(".")[1]), name.split(".downsample.")[1]
            name = f"stages.{stage - 1}.downsample.{rest}" + ("" if "norm" in rest else ".weight")
            value = value.flatten(1) if "reduction" in rest else value.flatten()
        elif ".qkv." in name:
            value = value.transpose(0, 1).flatten(0, 2)  # (3 * heads * head_dim, ...)
        elif name.endswith("w_msa.proj.weight"):
            value = value.flatten(1)
        elif "bias_table" in name:
            value = value.flatten(1).t()
        out[name] = value
    return out


@pytest.mark.parametrize("size", [(100, 132), (128, 128), (101, 99)])
def test_swin_equals_mmdets_at_sizes_that_need_padding(size: tuple[int, int]) -> None:
    """An independent network that pads before it rolls; also the output norms, and timm's Swin built as S3."""
    from mmdet.models import SwinTransformer

    args = dict(embed_dim=16, depths=(2, 2, 2, 2), num_heads=(1, 2, 4, 8))
    ours = make("swin_tiny_patch4_window7_224", model_args=args | dict(window_size=3)).eval()
    assert ours.name == "s3"
    depths, heads = args["depths"], args["num_heads"]
    theirs = SwinTransformer(embed_dims=16, depths=depths, num_heads=heads, window_size=3, patch_norm=True)
    for norm in (ours.norm0, ours.norm3):  # as if trained
        nn.init.normal_(norm.weight), nn.init.normal_(norm.bias)
    result = theirs.load_state_dict(to_mmdet_swin(ours.state_dict()), strict=False)
    assert not result.unexpected_keys and all("relative_position_index" in key for key in result.missing_keys)
    theirs.eval()
    with torch.no_grad():
        for a, b in zip(ours(images(*size)), theirs(images(*size)), strict=True):
            torch.testing.assert_close(a, b, atol=2e-5, rtol=1e-4)


# Training


def test_training_mode_keeps_frozen_stages_and_norms() -> None:
    net = make("s3", frozen_stages=2, drop_path_rate=0.5)
    assert net.train() is net and net.eval() is net and net.train(True) is net
    frozen = {name for name, p in net.named_parameters() if not p.requires_grad}
    expected = ("model.patch_embed.", "model.stages.0.", "model.stages.1.", "norm0.", "norm1.")
    assert frozen == {name for name, _ in net.named_parameters() if name.startswith(expected)}
    assert not net.model.stages[1].training and not net.model.stages[1].blocks[0].drop_path1.training
    assert net.model.stages[2].training and net.norm2.training and not net.norm1.training
    x = images(64, 64)
    assert torch.equal(net(x)[1], net(x)[1]) and not torch.equal(net(x)[3], net(x)[3])  # drop path
    only_stem = make("shunted", frozen_stages=0)
    frozen = {name for name, p in only_stem.named_parameters() if not p.requires_grad}
    assert frozen == {n for n, _ in only_stem.named_parameters() if n.startswith("model.stages.0.patch_embed.")}
    blocks = make("autoformer", frozen_stages=1)
    frozen = {name for name, p in blocks.named_parameters() if not p.requires_grad}
    stem = ("model.patch_embed.", "model.cls_token", "model.pos_embed", "model.blocks.0.")
    assert frozen == {n for n, _ in blocks.named_parameters() if n.startswith(stem)}


def test_batch_norms_stand_still_if_told() -> None:
    net = make("resnet10t", norm_eval=True, frozen_stages=1).train()
    before = {name: value.clone() for name, value in net.named_buffers()}
    net(images(batch=2))
    assert all(torch.equal(value, before[name]) for name, value in net.named_buffers())
    moving = make("resnet10t", frozen_stages=1).train()
    before = {name: value.clone() for name, value in moving.named_buffers()}
    moving(images(batch=2))
    moved = {name for name, value in moving.named_buffers() if not torch.equal(value, before[name])}
    assert moved == {name for name in before if name.startswith(("model.layer2", "model.layer3", "model.layer4"))}


def test_checkpointing_recomputes() -> None:
    calls = []
    net = make("s3", with_cp=True)
    net.model.stages[2].blocks[0].mlp.register_forward_pre_hook(lambda *args: calls.append(1))
    sum(m.sum() for m in net(images())).backward()
    assert len(calls) == 2


def test_drop_path_rate_reaches_the_blocks() -> None:
    net = make("s3", drop_path_rate=0.4)
    rates = [m.drop_prob for m in net.modules() if hasattr(m, "drop_prob")]
    assert rates == pytest.approx([0, 0, 0.1, 0.1, 0.2, 0.2, 0.3, 0.3, 0.4, 0.4])


@pytest.mark.parametrize("network", NETWORKS)
def test_decay_exemptions_are_norms_and_positions(network: str) -> None:
    """By the kind of module that owns a parameter, not by its name."""
    net = make(network)
    matched = {n for n, _ in net.named_parameters() if any(key in f"backbone.{n}" for key in decay_exempt_keys())}
    expected = {
        f"{name}.{parameter}"
        for name, module in net.named_modules()
        for parameter, _ in module.named_parameters(recurse=False)
        if isinstance(module, nn.LayerNorm)  # batch norms of ResNet and of Shunted's stem decay, as in mmdet
    }
    extra = matched - expected
    assert expected <= matched and all(".local.norm." in n for n in extra if n.endswith(("weight", "bias")))
    assert {n.rsplit(".", 1)[-1] for n in extra} == {
        "s3": {"relative_position_bias_table"},
        "shunted": set(),
        "autoformer": {"cls_token", "pos_embed", *(f"rel_{c}_{a}" for c in "kv" for a in ("vertical", "horizontal"))},
        "glit": {"cls_token", "pos_embed", "weight", "bias"},
        "deit": {"cls_token", "pos_embed"},
        "resnet10t": set(),
    }[network]


# Building


@pytest.mark.parametrize("package", ["mmdet", "mmseg"])
def test_both_packages_find_it(package: str) -> None:
    import importlib

    registry = importlib.import_module(f"{package}.registry").MODELS
    net = registry.build(dict(type="S3ZooBackbone", model="s3", model_args=dict(arch=ARCHS["s3"].to_dict())))
    assert type(net) is S3ZooBackbone
    dotted = dict(type="s3zoo.transfer.mm.backbone.S3ZooBackbone", model="resnet10t")
    assert type(registry.build(dotted)) is S3ZooBackbone


def test_output_norms() -> None:
    """On for attention networks whose stages end without a norm, and to be had for others."""
    assert {n: make(n).out_norm for n in NETWORKS} == {
        "s3": True, "shunted": False, "resnet10t": False, "autoformer": True, "glit": True, "deit": True
    }  # fmt: skip
    assert make("shunted", out_norm=True).norm3.weight.shape == (128,)
    bare = make("s3", out_norm=False)
    assert not hasattr(bare, "norm0")
    x = images()
    net = make("s3").eval()
    nn.init.normal_(net.norm2.weight), nn.init.normal_(net.norm2.bias)
    with torch.no_grad():
        y, z = net.features(x)[2], net(x)[2]
    mean, var = y.mean(dim=1, keepdim=True), y.var(dim=1, keepdim=True, unbiased=False)
    expected = (y - mean) / (var + 1e-5).sqrt() * net.norm2.weight[:, None, None] + net.norm2.bias[:, None, None]
    torch.testing.assert_close(z, expected)


def test_a_plain_network_is_normed_once_and_positions_are_resized() -> None:
    net = make("autoformer").eval()
    nn.init.normal_(net.model.norm.weight)
    seen: list[Tensor] = []
    net.pyramid.register_forward_pre_hook(lambda module, args: seen.append(args[0]))
    with torch.no_grad():
        net(images(96, 64))
        fixed = make("autoformer", img_size=(96, 64)).eval()
        weights = {k: v for k, v in net.model.state_dict().items() if k != "pos_embed"}
        resized = resample_abs_pos_embed(net.model.pos_embed, [6, 4], [14, 14], interpolation="bicubic")
        fixed.model.load_state_dict(weights | {"pos_embed": resized})
        tokens = fixed.model.forward_features(images(96, 64))[:, 1:]  # ends with the final norm
    torch.testing.assert_close(seen[0], tokens.transpose(1, 2).unflatten(2, (6, 4)))


def test_pyramid_branches() -> None:
    """Each level by hand from its layers."""
    torch.manual_seed(0)
    pyramid, x = SimplePyramid(8, out_channels=6), torch.randn(2, 8, 5, 3)
    first, second, third, fourth = pyramid.branches

    def norm(y: Tensor) -> Tensor:
        return (y - y.mean(1, keepdim=True)) / (y.var(1, keepdim=True, unbiased=False) + 1e-5).sqrt()

    def head(branch: Any, y: Tensor) -> Tensor:
        return norm(branch.conv2(norm(branch.conv1(y))))

    up = first.up2(nn.functional.gelu(norm(first.up1(x))))
    pooled = nn.functional.max_pool2d(nn.functional.pad(x, [0, 1, 0, 1], value=float("-inf")), 2)
    expected = [head(first, up), head(second, second.up1(x)), head(third, x), head(fourth, pooled)]
    for y, z in zip(pyramid(x), expected, strict=True):
        torch.testing.assert_close(y, z)
    assert make("glit", pyramid=dict(out_channels=32), out_indices=(0, 3)).out_channels == (32, 32)


def test_pyramid_without_parameters() -> None:
    """The map itself at stride 16; for even sides its half is the mean of 2 x 2 pixels; constants stay constant."""
    net = make("deit", pyramid="resize").eval()
    assert not list(net.pyramid.parameters()) and net.strides == (4, 8, 16, 32)
    assert net.out_channels == (net.out_channels[0],) * 4
    x = torch.randn(2, 8, 6, 4)
    first, second, third, fourth = ResizePyramid(8)(x)
    assert (first.shape, second.shape) == ((2, 8, 24, 16), (2, 8, 12, 8)) and third is x
    torch.testing.assert_close(fourth, torch.nn.functional.avg_pool2d(x, 2))
    torch.testing.assert_close(
        second[..., 1, 1], (x[..., 0, 0] * 9 + 3 * (x[..., 0, 1] + x[..., 1, 0]) + x[..., 1, 1]) / 16
    )
    odd = ResizePyramid(1, levels=(0, 3))(torch.ones(1, 1, 5, 3))
    assert [y.shape[2:] for y in odd] == [(20, 12), (3, 2)] and all((y == 1).all() for y in odd)


@pytest.mark.parametrize(
    ("kwargs", "sentence"),
    [
        (dict(model="s3_tinny"), "There is no model or folder 's3_tinny'; did you mean 's3_tiny'"),
        (dict(model="s3_tiny.nobody"), "There are no weights 's3_tiny.nobody'; there are s3_tiny.ms_in1k."),
        (dict(model="without_maps"), "without_maps does not give its feature maps"),
        (dict(model="clip_ladder", model_args=dict(tower="test_vit")), "reads a frozen network, .* images of one size"),
        (dict(model="resnet10t", out_indices=(1, 4)), r"out_indices is \(1, 4\), but resnet10t has the maps 0 to 3"),
        (dict(model="resnet10t", out_indices=(2, 1)), r"out_indices is \(2, 1\), but must ascend"),
        (dict(model="resnet10t", pyramid=dict(out_channels=8)), "pyramid is given, but resnet10t has maps at several"),
        (dict(model="deit_tiny_patch16_224", pyramid="deconv"), "pyramid is 'deconv', but must be 'resize' or a dict"),
        (dict(model="resnet10t", model_args=dict(arch="x")), "resnet10t does not take these model_args: .*'arch'"),
        (dict(model="resnet10t", init_cfg=dict(type="Normal")), "must be dict.type='Pretrained', checkpoint=...."),
        (dict(pretrained=True, init_cfg=dict(type="Pretrained", checkpoint="x")), "Both pretrained .* leave one out"),
        (dict(model="local-dir:/nowhere"), "There is no model or folder 'local-dir:/nowhere'"),
    ],
)
def test_mistakes_are_answered_in_a_sentence(
    kwargs: dict[str, Any], sentence: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A network of one's own, since timm teaches more of its own to give their maps with each release
    monkeypatch.setitem(_registry._model_entrypoints, "without_maps", lambda **kwargs: nn.Linear(1, 1))
    with pytest.raises(ValueError, match=sentence):
        S3ZooBackbone(**kwargs)


# Weights


def fill(net: nn.Module, seed: int = 3) -> nn.Module:
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for p in net.parameters():
            p.copy_(torch.randn(p.shape, generator=generator) * 0.1)
    return net


def assert_loaded(net: S3ZooBackbone, trained: nn.Module) -> None:
    weights = trained.state_dict()
    ours = net.model.state_dict()
    assert ours and all(torch.equal(value, weights[name]) for name, value in ours.items())


@pytest.fixture(scope="module")
def trained() -> nn.Module:
    return fill(timm.create_model("s3", arch=ARCHS["s3"], num_classes=7))


@pytest.fixture(scope="module")
def sources(trained: nn.Module, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    folder = tmp_path_factory.mktemp("weights")
    save_model(folder / "model", trained)
    save_file(trained.state_dict(), folder / "plain.safetensors")
    torch.save({"model": trained.state_dict(), "epoch": 3}, folder / "official.pth")
    torch.save({"state_dict": {f"module.{k}": v for k, v in trained.state_dict().items()}}, folder / "parallel.pth")
    torch.save({"state_dict": {f"encoder.{k}": v for k, v in trained.state_dict().items()}}, folder / "inside.pth")
    files = ("plain.safetensors", "official.pth", "parallel.pth", "inside.pth")
    return {"folder": str(folder / "model")} | {name: str(folder / name) for name in files}


@pytest.mark.parametrize("source", ["folder", "plain.safetensors", "official.pth", "parallel.pth", "inside.pth"])
@pytest.mark.parametrize("way", ["pretrained", "init_cfg"])
def test_weights_come_from_files_and_folders(
    way: str, source: str, sources: dict[str, str], trained: nn.Module
) -> None:
    where: dict[str, Any] = dict(pretrained=sources[source])
    if way == "init_cfg" or source == "inside.pth":  # only init_cfg has a prefix
        prefix = dict(prefix="encoder.") if source == "inside.pth" else {}
        where = dict(init_cfg=dict(type="Pretrained", checkpoint=sources[source], **prefix))
    net = make("s3", **where)
    before = net.norm0.weight.clone()
    net.init_weights()
    assert_loaded(net, trained)
    assert torch.equal(net.norm0.weight, before)  # not part of a classifier
    net.init_weights()  # again is harmless
    assert_loaded(net, trained)


def test_a_folder_is_a_network_too(
    sources: dict[str, str], trained: nn.Module, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    shutil.copytree(sources["folder"], "resnet10t")
    assert S3ZooBackbone("resnet10t").out_channels == MAPS["resnet10t"]  # a network's name goes before a folder's
    for model in (sources["folder"], "local-dir:" + sources["folder"], "./resnet10t"):
        net = S3ZooBackbone(model, pretrained=True, drop_path_rate=0.1)
        net.init_weights()
        assert_loaded(net, trained)


def test_a_published_config_needs_no_folder_of_its_author(sources: dict[str, str], tmp_path: Path) -> None:
    folder = shutil.copytree(sources["folder"], tmp_path / "mine")
    own = dict(model=str(folder), pretrained=True, drop_path_rate=0.1)
    coco = dict(data_root=str(tmp_path), ann_file="a.json", data_prefix=dict(img=str(tmp_path / "images")))
    cfg = Config(
        dict(
            model=dict(backbone=dict(type="S3ZooBackbone", **own)),
            test_dataloader=dict(dataset=dict(type="RepeatDataset", dataset=coco)),
            test_evaluator=dict(ann_file=str(tmp_path / "a.json")),
            work_dir=str(tmp_path),
        )
    )
    before = cfg.to_dict()
    net = S3ZooBackbone(**own)
    published = portable(cfg, net.written_out)
    assert cfg.to_dict() == before and str(tmp_path) not in published.pretty_text
    assert published.test_evaluator.ann_file == "a.json" and published.test_dataloader.dataset.dataset.data_root == ""
    shutil.rmtree(folder)
    kwargs = {key: value for key, value in published.model.backbone.items() if key != "type"}
    assert kwargs["pretrained"] is None and kwargs["drop_path_rate"] == 0.1
    again = S3ZooBackbone(**kwargs)
    assert {k: v.shape for k, v in again.state_dict().items()} == {k: v.shape for k, v in net.state_dict().items()}
    named = Config(dict(model=dict(backbone=dict(type="S3ZooBackbone", model="s3_tiny", pretrained=True))))
    assert portable(named, S3ZooBackbone("s3_tiny").written_out).model == named.model  # a name says it to everybody


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Puts weights of a repository into an otherwise empty cache of the Hub, which cannot be reached."""
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)

    def publish(repository: str, net: nn.Module, files: Path | None = None) -> None:
        folder = tmp_path / f"models--{repository.replace('/', '--')}"
        (folder / "refs").mkdir(parents=True)
        (folder / "refs" / "main").write_text("0123")
        snapshot = folder / "snapshots" / "0123"
        if files is not None:
            shutil.copytree(files, snapshot)
        else:
            snapshot.mkdir(parents=True)
            save_file({k: v.contiguous() for k, v in net.state_dict().items()}, snapshot / "model.safetensors")

    return publish


def test_hub_weights(hub: Any, sources: dict[str, str], trained: nn.Module) -> None:
    hub("someone/bare", trained)
    hub("someone/s3", trained, Path(sources["folder"]))
    for source in ("hf-hub:someone/bare", "someone/bare", "someone/s3"):
        net = make("s3", pretrained=source)
        net.init_weights()
        assert_loaded(net, trained)
    net = S3ZooBackbone("hf-hub:someone/s3", pretrained=True)
    net.init_weights()
    assert_loaded(net, trained)
    with pytest.raises((ValueError, FileNotFoundError), match="someone/else cannot be opened: .* not in the cache"):
        make("s3").load("someone/else")


def test_published_weights_by_name(hub: Any) -> None:
    """Swin as S3, by True and by name: at a size without padding the same maps as timm's."""
    small = dict(embed_dim=24, depths=(1, 1, 2, 1), num_heads=(1, 2, 3, 4))
    swin = fill(timm.create_model("swin_tiny_patch4_window7_224", **small))
    hub("timm/swin_tiny_patch4_window7_224.ms_in1k", swin)
    net = S3ZooBackbone("swin_tiny_patch4_window7_224.ms_in1k", small, pretrained=True).eval()
    net.init_weights()
    named = S3ZooBackbone("s3", dict(arch=net.args["arch"]), pretrained="swin_tiny_patch4_window7_224.ms_in1k").eval()
    named.init_weights()
    with torch.no_grad():
        theirs = swin.eval().forward_intermediates(images(224, 224), intermediates_only=True)
        for a, b, c in zip(net.features(images(224, 224)), named.features(images(224, 224)), theirs, strict=True):
            assert torch.equal(a, b)
            torch.testing.assert_close(a, c, rtol=1e-3, atol=1e-4)


def test_timms_networks_load_strictly(tmp_path: Path) -> None:
    trained = fill(timm.create_model("resnet10t", num_classes=5))
    save_file(trained.state_dict(), tmp_path / "five.safetensors")
    net = S3ZooBackbone("resnet10t", pretrained=str(tmp_path / "five.safetensors"))
    net.init_weights()
    assert_loaded(net, trained)
    deit = fill(timm.create_model("deit_tiny_patch16_224", num_classes=0, **DEIT))
    save_file(deit.state_dict(), tmp_path / "deit.safetensors")
    net = make("deit", pretrained=str(tmp_path / "deit.safetensors"), img_size=96)
    net.init_weights()
    resized = resample_abs_pos_embed(deit.pos_embed, [6, 6], [14, 14], interpolation="bicubic")
    torch.testing.assert_close(net.model.pos_embed, resized)
    assert torch.equal(net.model.blocks[0].mlp.fc1.weight, deit.blocks[0].mlp.fc1.weight)
    with pytest.raises(ValueError, match=r"The weights in '.*deit.safetensors' do not fit resnet10t: .*Missing key"):
        S3ZooBackbone("resnet10t").load(str(tmp_path / "deit.safetensors"))


def test_positions_follow_the_size_that_the_folder_names(tmp_path: Path) -> None:
    """4 x 6 patches are as many as 6 x 4, but are not the same."""
    old = fill(timm.create_model("autoformer", arch=ARCHS["autoformer"], img_size=(64, 96), num_classes=3))
    save_model(tmp_path / "model", old)
    for model, args in ((str(tmp_path / "model"), {}), ("autoformer", dict(arch=ARCHS["autoformer"]))):
        net = S3ZooBackbone(model, args, img_size=(96, 64), pretrained=str(tmp_path / "model"))
        net.init_weights()
        resized = resample_abs_pos_embed(old.pos_embed, [6, 4], [4, 6], interpolation="bicubic")
        torch.testing.assert_close(net.model.pos_embed, resized)
    same = S3ZooBackbone(str(tmp_path / "model"), pretrained=True)
    same.init_weights()
    assert_loaded(same, old)


def test_a_detectors_backbone_comes_back_whole(tmp_path: Path) -> None:
    old = fill(make("autoformer"))
    torch.save({"state_dict": {f"backbone.{k}": v for k, v in old.state_dict().items()} | {"neck.w": torch.zeros(1)}},
               tmp_path / "detector.pth")  # fmt: skip
    for init_cfg in (dict(), dict(prefix="backbone."), dict(prefix="backbone")):
        cfg = dict(type="Pretrained", checkpoint=str(tmp_path / "detector.pth"), **init_cfg)
        net = make("autoformer", init_cfg=cfg)
        net.init_weights()
        assert all(torch.equal(v, old.state_dict()[k]) for k, v in net.state_dict().items())
    with pytest.raises(ValueError, match=r"detector.pth' does not fit the model: 'model.\S+' is missing .and \d+ more"):
        make("s3").load(str(tmp_path / "detector.pth"))


def test_sources_that_are_none(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ValueError, match="'no/such/file.pth' is no file or folder here"):
        make("s3").load("no/such/file.pth")
    with pytest.raises(ValueError, match="has no weight that starts with 'neck.'"):
        monkeypatch.setattr(backbone, "read_weights", lambda source: ({"a": torch.zeros(1)}, None))
        make("s3").load("x", "neck")
    with pytest.raises(ValueError, match="No weights are published for shunted|No weights of shunted are published"):
        make("shunted", pretrained=True).init_weights()
    with pytest.raises(ValueError, match="No weights are published as coatnet_0_224; give a file or a folder"):
        make("deit").load("coatnet_0_224")


def test_mmengines_initialisation_leaves_loaded_weights_alone(sources: dict[str, str], trained: nn.Module) -> None:
    """mmengine calls init_weights of children, and timm's networks have such a method, which starts from scratch."""

    class Detector(BaseModule):
        def __init__(self) -> None:
            super().__init__()
            self.backbone = make("s3", pretrained=sources["folder"])

    detector = Detector()
    detector.init_weights()
    assert_loaded(detector.backbone, trained)
