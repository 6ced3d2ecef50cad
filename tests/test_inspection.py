"""What a network attends to: distances and similarities by hand, captured attention against every family's own output,
and the pictures and page of the command."""

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import timm
import torch
from PIL import Image
from test_timm_surface import SMALL, create
from timm.models import save_for_hf
from torch import Tensor, nn

from s3zoo.arch import Arch, LadderBlock, Stage
from s3zoo.artefact import save_model
from s3zoo.cli import main as cli
from s3zoo.models.attention import Layer, Part, attention_distance, capture, layout, whole_map

pytestmark = pytest.mark.usefixtures("one_thread")
NAN = math.nan
TIMM = {
    "vit": ("vit_tiny_patch16_224", dict(img_size=64, depth=2)),
    "vit with registers": ("vit_small_patch14_reg4_dinov2", dict(img_size=56, depth=2)),
    "swin": ("swin_tiny_patch4_window7_224", dict(img_size=64, window_size=4, depths=(2, 1, 2, 1))),
    "swin, padded": ("swin_tiny_patch4_window7_224", dict(img_size=48, window_size=5, depths=(2, 1, 1, 1))),
    "swin v2": ("swinv2_tiny_window8_256", dict(img_size=64, window_size=4, depths=(2, 1, 1, 1))),
    "swin v2 cr": ("swinv2_cr_tiny_224", dict(img_size=64, window_size=4, depths=(2, 1, 1, 1))),
}


def build(name: str) -> nn.Module:
    """A small network with attention that is far from uniform."""
    torch.manual_seed(0)
    if name == "ladder":
        arch = Arch("ladder", (Stage(8, (LadderBlock(3, 4, 1.0), LadderBlock(2, 4, 1.0))),), 16)
        model = timm.create_model("clip_ladder", arch=arch, tower="vit_tiny_patch16_224", img_size=64)
    elif name in SMALL:
        model = create(name, img_size=64)
    else:
        kind, args = TIMM[name]
        model = timm.create_model(kind, num_classes=10, **args)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(std=0.1) if parameter.ndim < 2 else parameter.mul_(6)
    return model.eval()


# Distances and similarities by hand

GRID = torch.tensor([[0.0, 0], [0, 1], [1, 0], [1, 1]])  # four tokens


@pytest.mark.parametrize(
    ("weights", "top_k", "expected"),
    [
        (torch.eye(4), 1, [0, 0, 0, 0]),
        (torch.eye(4), 3, [0, 0, 0, 0]),  # keys without attention are not looked at
        (torch.full((4, 4), 0.25), 4, [(2 + math.sqrt(2)) / 4] * 4),
        (torch.full((4, 4), 0.25), 1, [0, 1, 1, math.sqrt(2)]),  # among equals the first
        (torch.eye(4).flip(0), 1, [math.sqrt(2)] * 4),
        (torch.tensor([[0.1, 0.2, 0.3, 0.4]] * 4), 2, [(1 + math.sqrt(2)) / 2, (1 + math.sqrt(2)) / 2, 0.5, 0.5]),
        (torch.tensor([[0.1, 0.2, 0.3, 0.4]] * 4), 9, [(2 + math.sqrt(2)) / 4] * 4),
    ],
)
def test_distance_of_a_known_matrix(weights: Tensor, top_k: int, expected: list[float]) -> None:
    assert attention_distance(weights, GRID, GRID, top_k).tolist() == pytest.approx(expected)


def test_what_has_no_place_is_at_no_distance() -> None:
    """A class token before the tokens takes most attention, and changes nothing."""
    places = torch.cat([torch.full([1, 2], NAN), GRID])
    weights = torch.full((5, 5), 0.1)
    weights[:, 0] = 0.6
    found = attention_distance(weights, places, places, 4)
    assert found[0].isnan() and found[1:].tolist() == pytest.approx([(2 + math.sqrt(2)) / 4] * 4)


def boxes(*corners: tuple[float, float], size: float = 1) -> Tensor:
    return torch.tensor([[[y, x, y + size, x + size] for y, x in corners]])


def test_similarity_by_hand() -> None:
    """Of three heads two attend to the same of two keys; the third to both: its cosine with them is 1 / sqrt(2)."""
    weights = torch.tensor([[1.0, 0], [1, 0], [0.5, 0.5]]).reshape(1, 1, 3, 1, 2)
    places = boxes((0, 0), (0, 1))
    found = Layer("1", [Part((0, 1, 2), weights, places[:, :1], places)]).similarity()
    half = 1 / math.sqrt(2)
    assert found.tolist() == [pytest.approx(row) for row in ([1, 1, half], [1, 1, half], [half, half, 1])]


@pytest.mark.parametrize(
    ("fine", "expected"), [([0.25] * 4 + [0] * 4, 1), ([1.0] + [0] * 7, 0.5), ([0] * 7 + [1.0], 0)]
)
def test_heads_with_other_keys_are_compared_by_the_pixels_of_the_keys(fine: list[float], expected: float) -> None:
    """One head has two coarse keys and sees the first, another the four quarters of each."""
    coarse_keys = boxes((0, 0), (0, 2), size=2)
    fine_keys = boxes((0, 0), (0, 1), (1, 0), (1, 1), (0, 2), (0, 3), (1, 2), (1, 3))
    query = boxes((0, 0))
    parts = [
        Part((0,), torch.tensor([1.0, 0]).reshape(1, 1, 1, 1, 2), query, coarse_keys),
        Part((1,), torch.tensor(fine).reshape(1, 1, 1, 1, 8), query, fine_keys),
    ]
    found = Layer("1", parts).similarity()
    assert found.flatten().tolist() == pytest.approx([1, expected, expected, 1])


# What is captured


def attentions(model: nn.Module, x: Tensor) -> tuple[Tensor, list[Layer], Tensor | None]:
    with torch.no_grad(), capture(model) as captured:
        return model(x), captured.layers, captured.tokens


@pytest.mark.parametrize("name", [*SMALL, *TIMM])
def test_the_network_computes_what_it_did_and_is_left_as_it_was(name: str) -> None:
    """The values are multiplied with what was captured, so the output says that it is the attention."""
    model = build(name)
    size = TIMM[name][1]["img_size"] if name in TIMM else 64
    x = torch.randn(2, 3, size, size)
    with torch.inference_mode():
        before = model(x)
    seen, layers, tokens = attentions(model, x)
    torch.testing.assert_close(seen, before, rtol=1e-4, atol=1e-5)
    with torch.inference_mode():
        assert torch.equal(model(x), before)
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in model.modules())
    assert layers and tokens is not None and tokens.shape[0] == 2
    for layer in layers:
        assert sorted(head for part in layer.parts for head in part.heads) == list(range(layer.num_heads))
        for part in layer.parts:
            torch.testing.assert_close(part.weights.sum(-1), torch.ones(part.weights.shape[:-1]))
        alike = layer.similarity()
        torch.testing.assert_close(alike, alike.t())
        torch.testing.assert_close(alike.diagonal(), torch.ones(layer.num_heads))
        assert not layer.distance(3).isnan().any()


def dense(layer: Layer, rows: int, columns: int, pixels: float, image: int = 0) -> tuple[Tensor, Tensor]:
    """Attention between the tokens of a map, (heads, tokens, tokens), by the places of queries and keys, and what goes
    to padding, (heads, tokens)."""
    n = rows * columns
    (part,) = layer.parts
    full, lost = torch.zeros(len(part.heads), n, n), torch.zeros(len(part.heads), n)
    number = lambda box: None if box.isnan().any() else int(box[0] / pixels) * columns + int(box[1] / pixels)  # noqa: E731
    for g in range(len(part.queries)):
        queries, keys = ([number(box) for box in side[g]] for side in (part.queries, part.keys))
        for i, query in enumerate(queries):
            for j, key in enumerate(keys):
                if query is not None:
                    weight = part.weights[image, g, :, i, j]
                    (lost[:, query] if key is None else full[:, query, key]).add_(weight)
    return full, lost


@pytest.mark.parametrize("size", [64, 52])  # of 16 and 13 tokens: windows of 3 and 4 are padded
@pytest.mark.parametrize("index", [0, 1])  # the second is shifted
def test_s3_attends_where_it_is_said(size: int, index: int) -> None:
    model: Any = build("s3")
    x = torch.randn(1, 3, size, size)
    block = model.stages[0].blocks[index]
    inputs: list[Tensor] = []
    block.attn.register_forward_hook(lambda module, args, output: inputs.extend([args[0], output]))
    _, layers, _ = attentions(model, x)
    tokens, output = inputs
    heads, head_dim, side = block.attn.num_heads, block.attn.head_dim, size // 4
    full, lost = dense(layers[index], side, side, 4)
    values = block.attn.qkv(tokens).reshape(-1, heads, 3, head_dim)[:, :, 2].transpose(0, 1)  # (h, tokens, d)
    mixed = full @ values + lost.unsqueeze(-1) * block.attn.qkv.bias[:, 2].unsqueeze(1)
    expected = block.attn.proj(mixed.transpose(0, 1).flatten(1)).reshape(1, side, side, -1)
    torch.testing.assert_close(output, expected, rtol=1e-4, atol=1e-5)
    assert bool(lost.sum() > 0) == (side % block.attn.window_size > 0)


@pytest.mark.parametrize("name", ["swin", "swin, padded"])
@pytest.mark.parametrize("index", [0, 1])
def test_swin_attends_where_it_is_said(name: str, index: int) -> None:
    model: Any = build(name)
    block = model.layers[0].blocks[index]
    size = TIMM[name][1]["img_size"]
    inputs: list[Tensor] = []
    block.norm1.register_forward_hook(lambda module, args, output: inputs.append(output))
    _, layers, _ = attentions(model, torch.randn(1, 3, size, size))
    side, heads = size // 4, block.attn.num_heads
    full, lost = dense(layers[index], side, side, 4)
    qkv = block.attn.qkv(inputs[0]).reshape(side * side, 3, heads, -1)
    bias = block.attn.qkv.bias.reshape(3, heads, -1)[2]
    mixed = full @ qkv[:, 2].transpose(0, 1) + lost.unsqueeze(-1) * bias.unsqueeze(1)
    expected = block.attn.proj(mixed.transpose(0, 1).flatten(1)).reshape(1, side, side, -1)
    torch.testing.assert_close(block._attn(inputs[0]), expected, rtol=1e-4, atol=1e-5)
    assert bool(lost.sum() > 0) == (name == "swin, padded")


def test_autoformer_attends_where_it_is_said() -> None:
    """Values have relative positions of their own, which the places of queries and keys give."""
    model: Any = build("autoformer")
    block = model.blocks[1].attn
    inputs: list[Tensor] = []
    block.register_forward_hook(lambda module, args, output: inputs.extend([args[0], output]))
    _, layers, _ = attentions(model, torch.randn(1, 3, 64, 64))
    (part,) = layers[1].parts
    heads, head_dim = block.num_heads, block.head_dim
    values = block.qkv(inputs[0]).reshape(-1, heads, 3, head_dim)[:, :, 2]  # (tokens, h, d)
    centres = (part.keys[0, :, :2] / 16).nan_to_num(99)
    mixed = torch.zeros(17, heads, head_dim)
    for i in range(17):
        for j in range(17):
            rows = (centres[j] - centres[i] + 15).int().tolist() if i and j else [0, 0]
            offset = block.rel_v_vertical[rows[0]] + block.rel_v_horizontal[rows[1]]
            mixed[i] += part.weights[0, 0, :, i, j].unsqueeze(1) * (values[j] + offset)
    torch.testing.assert_close(inputs[1][0], block.proj(mixed.flatten(1)), rtol=1e-4, atol=1e-5)
    assert part.class_queries == 1 and part.queries[0, 0].isnan().all() and not part.queries[0, 1:].isnan().any()


def test_shunted_heads_take_turns_with_coarse_and_fine_keys() -> None:
    model: Any = build("shunted")
    block = model.stages[1].blocks[1].attn
    inputs: list[Tensor] = []
    block.register_forward_hook(lambda module, args, output: inputs.extend([args[0], output]))
    _, layers, _ = attentions(model, torch.randn(1, 3, 64, 64))
    layer = next(layer for layer in layers if layer.name == "2-2")
    assert [part.heads for part in layer.parts] == [(0, 2), (1, 3)]
    assert [float(part.keys[0, 0, 2]) for part in layer.parts] == [32, 16]  # rates 4 and 2 of tokens of 8 pixels
    mixed = torch.zeros(64, 4, block.head_dim)
    for part, merged in zip(layer.parts, (block.coarse, block.fine), strict=True):
        mixed[:, list(part.heads)] = (part.weights[0, 0] @ merged(inputs[0])[1][0]).transpose(0, 1)
    torch.testing.assert_close(inputs[1].reshape(64, -1), block.proj(mixed.flatten(1)), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", ["glit", "vit"])
def test_global_attention_is_of_all_tokens(name: str) -> None:
    model: Any = build(name)
    block = model.blocks[0].attn
    inputs: list[Tensor] = []
    block.register_forward_hook(lambda module, args, output: inputs.append(args[0]))
    _, layers, _ = attentions(model, torch.randn(1, 3, 64, 64))
    h = block.num_heads
    qkv = block.qkv(inputs[0])[0]  # (tokens, 3 * h * d)
    q, k = (qkv.reshape(17, 3, h, -1).unbind(1) if name == "vit" else qkv.reshape(17, h, 3, -1).unbind(2))[:2]
    expected = torch.einsum("ihd,jhd->hij", q, k).mul(q.shape[-1] ** -0.5).softmax(-1)
    (part,) = layers[0].parts
    torch.testing.assert_close(part.weights[0, 0], expected, rtol=1e-4, atol=1e-5)
    assert part.queries[0, 1:].tolist() == [[y, x, y + 16, x + 16] for y in range(0, 64, 16) for x in range(0, 64, 16)]


def test_uniform_attention_of_a_network_by_hand() -> None:
    """Without queries every key of a 2 x 2 window gets a quarter; tokens are 2 pixels apart."""
    model: Any = timm.create_model("s3_nano", pretrained=False).eval()
    attn = model.stages[0].blocks[0].attn
    assert attn.window_size == 2
    with torch.no_grad():
        attn.qkv.weight.zero_()
        attn.qkv.bias.zero_()
        attn.relative_position_bias_table.zero_()
    _, layers, _ = attentions(model, torch.randn(1, model.in_chans, 8, 8))
    pixels = 8 / model.patch_embed.grid_size[0]
    expected = pixels * (2 + math.sqrt(2)) / 4
    torch.testing.assert_close(layers[0].distance(4), torch.full_like(layers[0].distance(4), expected))
    assert layers[0].similarity().tolist() == [pytest.approx([1.0] * attn.num_heads)] * attn.num_heads


@pytest.mark.parametrize("name", ["s3", "autoformer", "glit", "vit"])
def test_output_tokens_are_those_of_the_last_block(name: str) -> None:
    model: Any = build(name)
    x = torch.randn(2, 3, 64, 64)
    _, _, tokens = attentions(model, x)
    with torch.inference_mode():
        (expected,) = model.forward_intermediates(x, indices=1, norm=False, intermediates_only=True)
    assert tokens is not None
    torch.testing.assert_close(tokens.permute(0, 3, 1, 2), expected, rtol=1e-4, atol=1e-5)


def test_a_plug_in_says_where_its_tokens_are() -> None:
    class Odd(nn.Module):
        """Queries see every other token only."""

        def forward(self, x: Tensor) -> Tensor:
            return torch.softmax(x @ x[:, ::2].transpose(1, 2), dim=-1) @ x[:, ::2]

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.patch_embed = nn.Conv2d(3, 4, 8, stride=8)
            self.patch_embed.patch_size = 8  # type: ignore[assignment]
            self.blocks = nn.ModuleList([Odd()])

        def forward(self, x: Tensor) -> Tensor:
            return self.blocks[0](self.patch_embed(x).flatten(2).transpose(1, 2))

    x = torch.randn(1, 3, 16, 16)
    with pytest.raises(ValueError, match="has 2 tokens where the map has 2 x 2"):
        attentions(Net(), x)

    @layout.register
    def _(module: Odd, rows: int, columns: int, block: nn.Module) -> Any:
        found = whole_map(rows, columns)
        found.parts = [(slice(None), found.queries[:, ::2])]
        return found

    _, layers, _ = attentions(Net(), x)
    assert layers[0].parts[0].keys[0].tolist() == [[0, 0, 8, 8], [8, 0, 16, 8]]


# The command


@pytest.fixture(scope="module")
def picture(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("pictures") / "a view <1>.png"
    noise = np.random.default_rng(0).integers(0, 255, (80, 120, 3), np.uint8)
    Image.fromarray(noise).save(path)
    return path


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Any:
    root = tmp_path_factory.mktemp("models")

    def folder(name: str) -> Path:
        path = root / name.replace(" ", "-")
        if not path.exists():
            model: Any = build(name)
            if name in TIMM:
                model.pretrained_cfg["input_size"] = (3, 64, 64)
                save_for_hf(model, path, model_config={"model_args": TIMM[name][1]})
            else:
                save_model(path, model)
        return path

    return folder


def run(*words: Any) -> int:
    return cli(["inspect", *map(str, words)])


@pytest.mark.parametrize("name", ["shunted", "glit", "ladder", "vit", "swin"])
def test_pictures_of_every_family(name: str, folders: Any, picture: Path, tmp_path: Path) -> None:
    model = build(name)
    _, layers, _ = attentions(model, torch.randn(1, 3, 64, 64))
    first, last = layers[0].name, layers[-1].name
    assert run(folders(name), picture, "--out", tmp_path, "--layers", first, last, "--heads", 1) == 0
    stem = "1-a-view-1-"
    expected = {"index.html", "inspect.json", "similarity.png", f"{stem}-tokens.png"}
    expected |= {f"{stem}-attention-{layer}.png" for layer in (first, last)}
    expected |= {
        f"similarity-{layer.name}.png" for layer in layers if layer.name in (first, last) and layer.num_heads > 1
    }
    expected |= {"distance-top5.png"} if name != "ladder" else set()  # its one query has no place
    assert {path.name for path in tmp_path.iterdir()} == expected
    found = json.loads((tmp_path / "inspect.json").read_text())
    assert [layer["layer"] for layer in found["layers"]] == [layer.name for layer in layers]
    assert [layer["heads"] for layer in found["layers"]] == [layer.num_heads for layer in layers]


def test_numbers_are_those_of_the_captured_attention(folders: Any, picture: Path, tmp_path: Path, capsys: Any) -> None:
    from timm.data import create_transform, resolve_model_data_config

    assert run(folders("s3"), picture, picture, "--out", tmp_path, "--top-k", 2, 4, "--at", 0.1, 0.9) == 0
    model: Any = timm.create_model(f"local-dir:{folders('s3')}", pretrained=True).eval()
    transform: Any = create_transform(**resolve_model_data_config(model), is_training=False)
    _, layers, _ = attentions(model, transform(Image.open(picture)).unsqueeze(0))
    found = json.loads((tmp_path / "inspect.json").read_text())
    for row, layer in zip(found["layers"], layers, strict=True):
        for k, distance in zip((2, 4), row["distance"], strict=True):
            values = layer.distance(k).numpy()
            assert distance["median"] == pytest.approx(np.median(values), abs=2e-3)
            assert distance["mean"] == pytest.approx(values.mean(), abs=2e-3)
    printed = capsys.readouterr().out.splitlines()
    assert printed[-1] == str(tmp_path / "index.html") and len(printed) == len(layers) + 2


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("--layers", "9-9"), "has no attention layer '9-9'; it has 1-1, 1-2, 2-1, 2-2, 3-1"),
        (("--heads", "3"), "has no head 3; it has"),
        (("--heads", "0"), "number below 1"),
        (("--at", "class"), "has no class token"),
        (("--at", "2", "0"), "two fractions from 0 to 1"),
    ],
)
def test_a_mistake_is_one_sentence_and_nothing_is_written(
    words: tuple[str, ...], says: str, folders: Any, picture: Path, tmp_path: Path, capsys: Any
) -> None:
    assert run(folders("s3"), picture, "--out", tmp_path / "out", *words) == 2
    said = capsys.readouterr().err
    assert says in said and said.count("\n") == 1 and not (tmp_path / "out").exists()


def test_the_page_in_a_browser(chromium: Any, folders: Any, picture: Path, tmp_path: Path) -> None:
    assert run(folders("autoformer"), picture, "--out", tmp_path, "--top-k", 3, 5) == 0
    assert "http" not in (tmp_path / "index.html").read_text().replace("http://www.w3.org", "")
    chromium.get((tmp_path / "index.html").as_uri())
    assert chromium.find_element("css selector", "h1").text.endswith("attends to")
    assert "a view <1>.png" in chromium.find_elements("css selector", "h2")[1].text
    for width in (360, 1300):
        screen = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 600}
        chromium.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", screen)
        pictures = chromium.execute_script(
            "return [...document.images].map(i => [i.naturalWidth, i.getBoundingClientRect().width, i.alt.length])"
        )
        assert len(pictures) == 7 and all(all(sizes) for sizes in pictures)  # tokens, three layers and their similarity
        cut = chromium.execute_script(
            "return document.documentElement.scrollWidth > document.documentElement.clientWidth"
        )
        assert not cut
    marks = chromium.find_elements("css selector", ".figure .point")
    assert len(marks) == 3 * 3  # two numbers of keys and similarity, three layers
    chromium.execute_script("arguments[0].focus()", marks[0])
    tip = chromium.find_element("css selector", "#tip").text
    distance = json.loads((tmp_path / "inspect.json").read_text())["layers"][0]["distance"][0]
    assert tip.startswith("Layer 1\n") and f"median {distance['median']:.1f}, mean {distance['mean']:.1f}" in tip
    assert [entry for entry in chromium.get_log("browser") if entry["level"] in ("SEVERE", "WARNING")] == []
