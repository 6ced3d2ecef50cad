"""Networks with torch's own layers: the same function, the same numbers both ways, nothing that tools pass by."""

import copy
import re
from pathlib import Path
from typing import Any

import pytest
import timm
import torch
from test_timm_surface import SMALL
from torch import Tensor, nn

import s3zoo
from s3zoo.arch import Arch, GLiTBlock, LadderBlock, Stage
from s3zoo.artefact import save_model
from s3zoo.cards import registered_names
from s3zoo.cli import main as cli
from s3zoo.models import ENTRYPOINTS
from s3zoo.models.plain import native_state_dict, plain_state_dict, to_plain

pytestmark = pytest.mark.usefixtures("one_thread")
GLIT = Arch("glit", (Stage(24, (GLiTBlock(3, 1, 8, 5, 1.0, 2.0),)),))
LADDER = Arch("ladder", (Stage(8, (LadderBlock(3, 4, 1.0), LadderBlock(2, 4, 1.0))),), 16)
NETWORKS: dict[str, dict[str, Any]] = {name: {"arch": arch} for name, arch in SMALL.items()} | {
    "glit as printed": {"arch": GLIT, "as_printed": True},
    "ladder": {"arch": LADDER, "tower": "vit_tiny_patch16_224", "gate": True},
}
# What is no weight of a layer: positions, tokens, gates.
OTHER = r"pos_embed|cls_token|^query$|relative_position_bias_table|\.rel_[kv]_|\.gate$"


def build(name: str) -> nn.Module:
    torch.manual_seed(0)
    args = NETWORKS[name]
    model = timm.create_model(ENTRYPOINTS[args["arch"].family], img_size=64, num_classes=7, **args)
    with torch.no_grad():
        for value in model.parameters():
            value.add_(torch.randn_like(value) * 0.1)
    return model


@pytest.mark.parametrize("name", NETWORKS)
def test_the_same_network(name: str) -> None:
    model = build(name)
    x = torch.randn(2, 3, 64, 64)
    before = torch.get_rng_state()
    plain = s3zoo.to_plain(model)
    assert torch.equal(torch.get_rng_state(), before) and plain.training
    for each in (model, plain):
        each.eval()
    with torch.no_grad():
        expected, found = model(x), plain(x)
    torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-6 * max(1.0, float(expected.abs().max())))

    state = model.state_dict()
    assert plain_state_dict(state, model).keys() == plain.state_dict().keys()
    back = native_state_dict(plain.state_dict(), model)
    assert back.keys() == state.keys() and all(torch.equal(back[key], state[key]) for key in state)
    stored = {value.data_ptr() for value in state.values()}
    assert not stored & {value.data_ptr() for value in plain.state_dict().values()}  # a copy, the model is as it was


@pytest.mark.parametrize("name", NETWORKS)
def test_gradients_go_the_same_way(name: str) -> None:
    """So that what is trained in plain layers comes back as if it had been trained here."""
    model, x = build(name).eval(), torch.randn(2, 3, 64, 64)
    first = next(model.parameters()).requires_grad_(False)
    plain = to_plain(model)
    assert sum(not p.requires_grad for p in plain.parameters()) == 1
    for each in (model, plain):
        each(x).square().sum().backward()
    gradients = {key: p.grad for key, p in plain.named_parameters() if p.grad is not None}
    found = native_state_dict(gradients, model)
    expected: dict[str, Tensor] = {key: p.grad for key, p in model.named_parameters() if p.grad is not None}
    assert found.keys() == expected.keys() and first.grad is None
    for key, value in expected.items():
        torch.testing.assert_close(found[key], value, rtol=1e-4, atol=1e-5 * max(1.0, float(value.abs().max())))


@pytest.mark.parametrize("name", ["s3_tiny", "autoformer_tiny", "glit_tiny", "shunted_tiny", "clip_ladder_base"])
def test_every_weight_is_in_a_layer_that_tools_know(name: str) -> None:
    """Of the published sizes; before, a third of S3-T's weights were in none."""
    assert name in registered_names()
    plain = to_plain(timm.create_model(name, device="meta"))
    known = (nn.Linear, nn.Conv1d, nn.Conv2d, nn.LayerNorm, nn.BatchNorm1d, nn.BatchNorm2d)
    outside = {
        f"{path}.{key}".lstrip(".")
        for path, module in plain.named_modules()
        for key, _ in module.named_parameters(recurse=False)
        if not isinstance(module, known)
    }
    assert not [key for key in outside if not re.search(OTHER, key)]


@pytest.mark.parametrize("name", NETWORKS)
def test_layers_are_called_and_not_only_kept(name: str) -> None:
    """A tool that replaces or hooks a module must be heard."""
    plain, heard = to_plain(build(name)).eval(), set()
    layers = {path: m for path, m in plain.named_modules() if isinstance(m, nn.Linear | nn.Conv1d | nn.Conv2d)}
    for path, layer in layers.items():
        layer.register_forward_hook(lambda *_, path=path: heard.add(path))  # type: ignore[misc]
    with torch.no_grad():
        plain(torch.randn(1, 3, 64, 64))
    assert heard == set(layers)


@pytest.mark.parametrize("name", ["s3", "glit", "shunted", "autoformer"])
def test_a_folder_in_plain_layout_loads_like_any_other(name: str, tmp_path: Path, capsys: Any) -> None:
    model = build(name).eval()
    save_model(tmp_path / "native", model, provenance={"seed": 3})
    assert cli(["export", str(tmp_path / "native"), "--to", "plain", "--out", str(tmp_path / "plain")]) == 0
    assert "layers of torch give the same logits" in capsys.readouterr().out
    from safetensors.torch import load_file

    tensors = load_file(tmp_path / "plain" / "model.safetensors")
    plain = to_plain(model)
    assert tensors.keys() == plain.state_dict().keys()
    plain.load_state_dict(tensors)
    loaded = timm.create_model(f"local-dir:{tmp_path / 'plain'}", pretrained=True).eval()
    state = model.state_dict()
    assert all(torch.equal(value, state[key]) for key, value in loaded.state_dict().items())
    other = timm.create_model(f"local-dir:{tmp_path / 'plain'}", pretrained=True, num_classes=3)
    assert other.num_classes == 3  # a new classifier, the rest as it was


def test_weights_of_another_network_are_refused() -> None:
    model = build("autoformer")
    state = copy.deepcopy(to_plain(model).state_dict())
    state["blocks.0.attn.qkv.weight"] = state["blocks.0.attn.qkv.weight"][:-3]
    with pytest.raises(ValueError, match="'blocks.0.attn.qkv.weight' has shape"):
        native_state_dict(state, model)


@pytest.mark.parametrize("name", [name for name in NETWORKS if name != "glit as printed"])
def test_lora_of_peft_trains_and_comes_back(name: str) -> None:
    peft = pytest.importorskip("peft", reason="peft is no dependency")
    model, x = build(name).eval(), torch.randn(4, 3, 64, 64)
    plain = to_plain(model)
    targets = [path for path, _ in plain.named_modules() if path.rpartition(".")[2] in ("qkv", "q", "kv")]
    lora = peft.get_peft_model(plain, peft.LoraConfig(r=2, target_modules=targets))
    optimizer = torch.optim.Adam([p for p in lora.parameters() if p.requires_grad], 1e-2)
    losses = []
    for _ in range(8):
        losses.append(nn.functional.cross_entropy(lora(x), torch.arange(4)))
        optimizer.zero_grad()
        losses[-1].backward()
        optimizer.step()
    assert losses[-1] < losses[0]
    with torch.no_grad():
        expected = lora.eval()(x)
        model.load_state_dict(native_state_dict(lora.merge_and_unload().state_dict(), model))
        torch.testing.assert_close(model(x), expected, rtol=1e-4, atol=1e-5)
