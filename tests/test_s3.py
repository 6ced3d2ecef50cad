"""S3 against timm's Swin, against attention written out token by token, and at sizes that timm cannot take."""

import math
import re
import warnings
from pathlib import Path
from typing import Any

import pytest
import timm
import torch
import torch.nn.functional as F
from safetensors.torch import save_file
from torch import Tensor, nn

from s3zoo.arch import Arch, S3Block, Stage
from s3zoo.models.s3 import S3, Block, WindowAttention, checkpoint_filter_fn, timm_model_args, to_timm_state_dict

pytestmark = pytest.mark.usefixtures("one_thread")

# One set of genes per stage, in timm's words and in ours; Q-K-V widths differ from the embedding widths.
TIMM_ARGS: dict[str, Any] = dict(
    embed_dim=12, depths=(2, 2, 3, 2), num_heads=(3, 2, 4, 5), head_dim=(8, 10, 6, 4), window_size=(7, 7, 14, 7),
    mlp_ratio=(2.0, 1.5, 3.0, 2.0),
)  # fmt: skip


def arch_of(args: dict[str, Any]) -> Arch:
    genes = zip(
        args["depths"], args["window_size"], args["num_heads"], args["head_dim"], args["mlp_ratio"], strict=True
    )
    stages = [
        Stage(args["embed_dim"] * 2**i, (S3Block(w, h, d, r),) * depth) for i, (depth, w, h, d, r) in enumerate(genes)
    ]
    return Arch("s3", tuple(stages))


ARCH = arch_of(TIMM_ARGS)


def randomise(model: nn.Module, seed: int = 0) -> nn.Module:
    """Every parameter random, norms and biases and tables too, with outputs of order one."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, p in model.named_parameters():
            std = 0.5 / math.sqrt(p[0].numel()) if p.ndim > 1 and "table" not in name else 0.3
            p.normal_(0, std, generator=generator)
            if "norm" in name and name.endswith("weight"):
                p.add_(1.0)
    return model.eval()


def swin(seed: int = 0, **kwargs: Any) -> nn.Module:
    return randomise(timm.create_model("swin_s3_tiny_224", **{**TIMM_ARGS, "num_classes": 10, **kwargs}), seed)


def ours(state: dict[str, Any], name: str = "s3", **kwargs: Any) -> Any:
    """Weights through timm's own loading path."""
    overlay = dict(state_dict=state, num_classes=10)
    kwargs = {"arch": ARCH, "num_classes": 10, "pretrained_cfg_overlay": overlay, **kwargs}
    return timm.create_model(name, pretrained=True, **kwargs).eval()


def images(height: int, width: int | None = None, batch: int = 1, chans: int = 3, seed: int = 1) -> Tensor:
    return torch.randn(batch, chans, height, width or height, generator=torch.Generator().manual_seed(seed))


def official(model: nn.Module) -> dict[str, Tensor]:
    """timm's weights as the authors save them: merging at the end of the stage before, `head`, buffers included."""
    out = {}
    for name, value in model.state_dict().items():
        name = re.sub(r"layers\.(\d+)\.downsample", lambda m: f"layers.{int(m[1]) - 1}.downsample", name)
        out[name.replace("head.fc.", "head.")] = value
    for name, value in model.named_buffers():
        out[name] = value
    assert any(name.endswith("attn_mask") for name in out) and any(name.endswith("position_index") for name in out)
    return out


# Against timm


@pytest.mark.parametrize(
    ("size", "params"),
    [("tiny", 28_328_674), ("small", 49_737_298), ("base", 71_125_762)],
    ids=["tiny", "small", "base"],
)
def test_equals_timm(size: str, params: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The published repository in a Hub cache, `pretrained=True`: logits and every feature map."""
    with torch.device("meta"):
        theirs = timm.create_model(f"swin_s3_{size}_224")
    theirs = theirs.to_empty(device="cpu")
    for module in theirs.modules():
        if hasattr(module, "init_non_persistent_buffers"):
            module.init_non_persistent_buffers()
    randomise(theirs)
    repo = tmp_path / f"models--timm--swin_s3_{size}_224.ms_in1k"
    (repo / "refs").mkdir(parents=True)
    (repo / "refs" / "main").write_text("0" * 40)
    (repo / "snapshots" / ("0" * 40)).mkdir(parents=True)
    index = {n: b.clone() for n, b in theirs.named_buffers() if n.endswith("relative_position_index")}
    save_file({**theirs.state_dict(), **index}, repo / "snapshots" / ("0" * 40) / "model.safetensors")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)

    model = timm.create_model(f"s3_{size}", pretrained=True, cache_dir=tmp_path).eval()
    assert sum(p.numel() for p in model.parameters()) == params
    x = images(224)
    with torch.no_grad():
        expected, expected_maps = theirs.forward_intermediates(x)
        final, maps = model.forward_intermediates(x)
        for a, b in zip([final, *maps], [expected, *expected_maps], strict=True):
            assert a.shape == b.shape and (a - b).abs().max() < 1e-5 * max(1.0, float(b.abs().max()))
        logits = model(x)
        assert (logits - theirs(x)).abs().max() < 1e-5 and logits.std() > 0.05


@pytest.mark.parametrize(
    ("img_size", "windows"),
    [
        (384, (24, 24, 24, 12)),
        (448, (7, 7, 14, 7)),  # shifts in stages 3 and 4 too, though ours is built for 224
        ((224, 448), (7, 7, 14, 7)),  # shifts on one axis only
        ((32, 224), (14, 7, 14, 14)),  # windows cut on one axis only
    ],
    ids=str,
)
def test_equals_timm_at_other_sizes(img_size: Any, windows: tuple[int, ...]) -> None:
    """Where nothing is padded, timm built for the size is the reference; ours is built for another one."""
    height, width = (img_size, img_size) if isinstance(img_size, int) else img_size
    args = {**TIMM_ARGS, "window_size": windows}
    model = randomise(timm.create_model("s3", arch=arch_of(args), num_classes=10))
    model.set_input_size(img_size)
    theirs = timm.create_model("swin_s3_tiny_224", **args, num_classes=10, img_size=img_size).eval()
    theirs.load_state_dict(to_timm_state_dict(model))
    model.set_input_size(224)
    x = images(height, width)
    with torch.no_grad():
        assert (model(x) - theirs(x)).abs().max() < 1e-5


@pytest.mark.parametrize("layout", ["timm", "timm wrapped", "official", "official wrapped", "official without head"])
def test_foreign_layouts(layout: str) -> None:
    theirs = swin()
    state: dict[str, Any] = official(theirs) if layout.startswith("official") else theirs.state_dict()
    if layout.endswith("wrapped"):
        state = {"model": state, "epoch": 300}
    x = images(224)
    with torch.no_grad():
        if layout.endswith("without head"):
            state = {k: v for k, v in state.items() if not k.startswith("head")}
            model = ours(state, num_classes=0)
            assert (model.forward_features(x) - theirs.forward_features(x)).abs().max() < 1e-5
        else:
            assert (ours(state)(x) - theirs(x)).abs().max() < 1e-5


def test_round_trip_loses_nothing() -> None:
    theirs = swin()
    model = ours(theirs.state_dict())
    back = to_timm_state_dict(model)
    assert back.keys() == theirs.state_dict().keys()
    assert all(torch.equal(back[k], v) for k, v in theirs.state_dict().items())
    again = checkpoint_filter_fn(back, model)
    assert again.keys() == model.state_dict().keys()
    assert all(torch.equal(again[k], v) for k, v in model.state_dict().items())


def test_timm_builds_it_from_arguments() -> None:
    args = timm_model_args(ARCH)
    model = randomise(timm.create_model("s3", arch=ARCH, num_classes=10))
    theirs = timm.create_model("swin_s3_tiny_224", **args, num_classes=10).eval()
    theirs.load_state_dict(to_timm_state_dict(model))
    with torch.no_grad():
        assert (model(images(224)) - theirs(images(224))).abs().max() < 1e-5
    block = ARCH.stages[0].blocks[0]
    for bad in (
        Arch("s3", (Stage(12, (block, S3Block(7, 3, 8, 3.0))),)),
        Arch("s3", (Stage(12, (block,)), Stage(25, (block,)))),
    ):
        with pytest.raises(ValueError, match="timm's Swin cannot build"):
            timm_model_args(bad)


# Pretrained weights at another size


@pytest.mark.parametrize("windows", [12, (12, 12, 24, 12), (5, 7, 9, 1)])
def test_windows_can_change(windows: Any) -> None:
    """Tables are resized as timm's attention resizes its own; the same by loading and by `set_input_size`."""
    theirs = swin()
    per_stage = (windows,) * 4 if isinstance(windows, int) else windows
    model = ours(theirs.state_dict())
    model.set_input_size(img_size=(384, 320), window_size=windows)
    assert [b.window_size for s in model.arch.stages for b in s.blocks] == [
        w for w, depth in zip(per_stage, TIMM_ARGS["depths"], strict=True) for _ in range(depth)
    ]
    loaded = ours(theirs.state_dict(), arch=model.arch, img_size=(384, 320))
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), loaded.parameters(), strict=True))
    for stage, (layer, window) in enumerate(zip(theirs.layers, per_stage, strict=True)):
        attn = layer.blocks[1].attn
        attn.set_window_size((window, window))
        flat = attn.relative_position_bias_table  # (rows * columns, heads)
        table = model.stages[stage].blocks[1].attn.relative_position_bias_table
        for head in range(table.shape[0]):
            assert torch.allclose(table[head].flatten(), flat[:, head], atol=1e-6)
    with torch.no_grad():
        assert model(images(96, 80)).isfinite().all()


def test_set_input_size_keeps_windows_and_refuses_nonsense() -> None:
    model = timm.create_model("s3_small", device="meta")
    model.set_input_size((256, 320))
    assert model.arch == timm.create_model("s3_small", device="meta").arch
    for windows in (0, (7, 7), (7, 7, 7, 0), "7777", 7.5, True):
        with pytest.raises(ValueError, match="window_size"):
            model.set_input_size(window_size=windows)


def test_patches_are_resampled() -> None:
    theirs = swin()
    model = ours(theirs.state_dict(), arch=Arch("s3", ARCH.stages, patch_size=2))
    assert model.patch_embed.proj.weight.shape[-1] == 2
    with torch.no_grad():
        assert model(images(30)).isfinite().all()


# The block, token by token


def attention_by_hand(attn: WindowAttention, x: Tensor, shifted: bool) -> Tensor:
    """Window attention as its definition says: for each token the tokens it sees, no rolling and no masks."""
    height, width, dim = x.shape
    heads, _, d, _ = attn.qkv.weight.shape
    window = (attn.relative_position_bias_table.shape[1] + 1) // 2

    def axis(size: int) -> list[tuple[int, bool]]:
        """For each position of the padded axis: its window, and whether the shift brought it there from the start."""
        if size <= window:
            return [(0, False)] * size
        padded = math.ceil(size / window) * window
        shift = window // 2 if shifted else 0
        return [((p - shift) % padded // window, p < shift) for p in range(padded)]

    rows, cols = axis(height), axis(width)
    x = F.pad(x, (0, 0, 0, len(cols) - width, 0, len(rows) - height))
    q, k, v = (
        torch.einsum("ijc,hdc->hijd", x, attn.qkv.weight[:, t]) + attn.qkv.bias[:, t, None, None] for t in range(3)
    )
    out = torch.zeros(height, width, heads, d)
    for i in range(height):
        for j in range(width):
            seen = [
                (a, b) for a in range(len(rows)) for b in range(len(cols)) if rows[a] == rows[i] and cols[b] == cols[j]
            ]
            for h in range(heads):
                scores = [
                    q[h, i, j] @ k[h, a, b] / math.sqrt(d)
                    + attn.relative_position_bias_table[h, i - a + window - 1, j - b + window - 1]
                    for a, b in seen
                ]
                weights = torch.stack(scores).softmax(0)
                out[i, j, h] = sum(w * v[h, a, b] for w, (a, b) in zip(weights, seen, strict=True))
    return torch.einsum("ijhd,chd->ijc", out, attn.proj.weight) + attn.proj.bias


@pytest.mark.parametrize("shifted", [False, True])
@pytest.mark.parametrize(
    ("height", "width", "window"),
    [(6, 6, 3), (7, 5, 3), (5, 7, 4), (4, 9, 4), (3, 2, 5), (9, 3, 4), (1, 6, 2), (5, 5, 1)],
)
def test_attention_token_by_token(height: int, width: int, window: int, shifted: bool) -> None:
    attn = WindowAttention(5, num_heads=2, head_dim=3, window_size=window, shifted=shifted)
    randomise(attn)
    x = torch.randn(2, height, width, 5, generator=torch.Generator().manual_seed(3))
    with torch.no_grad():
        y = attn(x)
        for i in range(2):
            assert torch.allclose(y[i], attention_by_hand(attn, x[i], shifted), atol=1e-5)


def test_a_far_row_cannot_leak_in() -> None:
    """10 rows, window 4: padded to 12 and shifted by 2, the windows are rows 0-1, 2-5, 6-9 and nothing else."""
    block = randomise(Block(8, S3Block(4, 2, 4, 2.0), shifted=True))
    x = torch.randn(1, 10, 11, 8, generator=torch.Generator().manual_seed(3))
    groups = [range(0, 2), range(2, 6), range(6, 10)]
    with torch.no_grad():
        y = block(x)
        for group in groups:
            for axis in (1, 2):
                changed = x.clone()
                changed.narrow(axis, group.start, len(group)).add_(1.0)
                moved = (block(changed) != y).any(3)[0].any(2 - axis)
                assert {i for i in range(10) if moved[i]} == set(group)


def test_bias_gradient_equals_indexing() -> None:
    attn = randomise(WindowAttention(4, num_heads=3, head_dim=2, window_size=5, shifted=False))
    table = attn.relative_position_bias_table
    for height, width in ((5, 5), (3, 5), (5, 2), (1, 1)):
        rows, cols = torch.meshgrid(torch.arange(height), torch.arange(width), indexing="ij")
        rows, cols = rows.flatten(), cols.flatten()
        expected = table[:, rows[:, None] - rows[None] + 4, cols[:, None] - cols[None] + 4]
        assert torch.equal(attn.relative_position_bias(height, width), expected)
        weight = torch.randn(expected.shape, generator=torch.Generator().manual_seed(0))
        (got,) = torch.autograd.grad((attn.relative_position_bias(height, width) * weight).sum(), table)
        (want,) = torch.autograd.grad((expected * weight).sum(), table)
        assert torch.allclose(got, want, atol=1e-6)


def test_a_window_larger_than_the_map_is_the_map() -> None:
    """The same network with windows of the map's size and the centre of the tables."""
    large = randomise(S3(Arch("s3", (Stage(8, (S3Block(9, 2, 4, 2.0),) * 2),)), img_size=20, num_classes=3))
    equal = S3(large.arch.effective(20), img_size=20, num_classes=3).eval()
    assert equal.arch.stages[0].blocks[0].window_size == 5
    state = {k: v[:, 4:-4, 4:-4] if "table" in k else v for k, v in large.state_dict().items()}
    equal.load_state_dict(state)
    with torch.no_grad():
        assert torch.equal(large(images(20)), equal(images(20)))


# Any architecture, any size


@pytest.mark.parametrize("seed", range(6))
def test_any_architecture_at_any_size(seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)

    def draw(low: int, high: int) -> int:
        return int(torch.randint(low, high + 1, (), generator=generator))

    stages = tuple(
        Stage(
            draw(3, 20), tuple(S3Block(draw(1, 6), draw(1, 3), draw(1, 7), draw(2, 8) / 2) for _ in range(draw(1, 3)))
        )
        for _ in range(draw(1, 5))
    )
    arch = Arch("s3", stages, patch_size=draw(1, 5))
    model = randomise(S3(arch, num_classes=4))
    for height, width in ((37, 23), (1, 50), (64, 64)):
        with torch.no_grad():
            _, maps = model.forward_intermediates(images(height, width))
            y = model(images(height, width))
        assert y.shape == (1, 4) and y.isfinite().all()
        assert [m.shape[1:] for m in maps] == [
            (s.embed_dim, math.ceil(height / (arch.patch_size * 2**i)), math.ceil(width / (arch.patch_size * 2**i)))
            for i, s in enumerate(stages)
        ]


def test_torchscript_decides_windows_when_it_runs() -> None:
    model = randomise(S3(ARCH, num_classes=4))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch calls TorchScript deprecated
        script = torch.jit.script(model)
    with torch.no_grad():
        for height, width in ((64, 64), (101, 77), (20, 130)):
            x = images(height, width)
            assert torch.allclose(script(x), model(x), atol=1e-5)
