"""Official checkpoints become folders that timm loads; anything else is one sentence and writes nothing."""

from __future__ import annotations

import argparse
import hashlib
import json
import math
import os
import pickle
import random
import re
import subprocess
import sys
import zipfile
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import autoformer_reference as reference
import numpy as np
import pytest
import shunted_reference
import timm
import torch
from safetensors.torch import save_file
from test_autoformer import to_arch
from test_glit import random_state, tiny_arch
from test_s3 import official
from torch import Tensor

from s3zoo import artefact, cli
from s3zoo.arch import Arch
from s3zoo.convert import convert
from s3zoo.models.loading import grid_side
from s3zoo.models.official import read_checkpoint

pytestmark = pytest.mark.usefixtures("one_thread")

ROOT = Path(__file__).resolve().parent.parent


@cache
def tiny_supernet() -> dict[str, Tensor]:
    return reference.random_supernet(256, 4, 14, seed=7)


def small_supernet() -> dict[str, Tensor]:
    return reference.random_supernet(32, 4, 3, patches=16, patch_size=4, classes=5)


def load(folder: Path) -> Any:
    return timm.create_model(f"local-dir:{folder}", pretrained=True).eval()


# AutoFormer


@torch.no_grad()
def test_autoformer(tmp_path: Path) -> None:
    """The published subnet by default, any other with an architecture file, from the same supernet."""
    source = tmp_path / "supernet-tiny.pth"
    reference.save_supernet(tiny_supernet(), source)
    x = torch.randn(1, 3, 224, 224)
    assert cli.main(["convert", str(source), "--to", str(tmp_path / "published")]) == 0
    expected = reference.logits(tiny_supernet(), reference.PUBLISHED["tiny"], x)
    torch.testing.assert_close(load(tmp_path / "published")(x), expected, atol=1e-5, rtol=0)

    subnet = reference.random_subnet(reference.SUPERNETS["tiny"], random.Random(2))
    (tmp_path / "arch.json").write_text(to_arch(subnet).to_json())
    arch = str(tmp_path / "arch.json")
    assert cli.main(["convert", str(source), "--to", str(tmp_path / "other"), "--arch", arch]) == 0
    expected = reference.logits(tiny_supernet(), subnet, x)
    torch.testing.assert_close(load(tmp_path / "other")(x), expected, atol=1e-5, rtol=0)

    config = artefact.load_model_config(tmp_path / "published", verify=True)
    assert config["s3zoo"]["params"] == 5_867_944
    digest = hashlib.sha256(source.read_bytes()).hexdigest()
    came_from = {"file": "supernet-tiny.pth", "sha256": digest, "model": "autoformer_tiny"}
    assert config["s3zoo"]["provenance"] == {"converted_from": came_from}
    assert sorted(p.name for p in (tmp_path / "published").iterdir()) == ["config.json", "model.safetensors"]


@torch.no_grad()
def test_autoformer_of_another_size(tmp_path: Path) -> None:
    """Input size and classes are the checkpoint's; half precision becomes single."""
    weights = {name: tensor.half() for name, tensor in small_supernet().items()}
    torch.save({"model": {f"module.{k}": v for k, v in weights.items()}}, tmp_path / "a.pth")
    subnet = reference.Subnet(24, (2, 3), (2.0, 1.5))
    model = convert(tmp_path / "a.pth", tmp_path / "b", arch=to_arch(subnet, 8, 4))
    assert model.patch_embed.img_size == (16, 16) and model.num_classes == 5
    x = torch.randn(2, 3, 16, 16)
    expected = reference.logits({k: v.float() for k, v in weights.items()}, subnet, x, head_dim=8)
    torch.testing.assert_close(load(tmp_path / "b")(x), expected, atol=1e-5, rtol=0)


# S3 and GLiT


def official_s3(
    windows: tuple[int, ...] = (7, 7, 14, 7), depths: tuple[int, ...] = (2, 2, 6, 2), img_size: int = 224
) -> tuple[Any, dict[str, Tensor]]:
    """timm's network with random weights, and the same weights under the official names."""
    torch.manual_seed(0)
    options = {"window_size": windows, "depths": depths, "img_size": img_size}
    model = timm.create_model("swin_s3_tiny_224", device="meta", **options).to_empty(device="cpu").eval()
    for module in model.modules():
        if any(True for _ in module.buffers(recurse=False)):
            module.init_non_persistent_buffers()
    for p in model.parameters():
        p.data.uniform_(-0.05, 0.05)
    return model, official(model)


@torch.no_grad()
def test_s3(tmp_path: Path) -> None:
    model, weights = official_s3()
    args = argparse.Namespace(cfg="S3-T.yaml")
    torch.save({"model": weights, "config": args, "max_accuracy": np.float64(82.1)}, tmp_path / "s3.pth")
    assert cli.main(["convert", str(tmp_path / "s3.pth"), "--to", str(tmp_path / "s3")]) == 0
    converted = load(tmp_path / "s3")
    x = torch.randn(1, 3, 224, 224)
    torch.testing.assert_close(converted(x), model(x), atol=1e-5, rtol=0)
    config = artefact.load_model_config(tmp_path / "s3", verify=True)
    assert config["architecture"] == "s3" and config["s3zoo"]["params"] == 28_328_674
    save_file(dict(model.state_dict()), tmp_path / "timm.safetensors")  # as on the Hub
    convert(tmp_path / "timm.safetensors", tmp_path / "again")
    assert artefact.load_model_config(tmp_path / "again")["s3zoo"]["sha256"] == config["s3zoo"]["sha256"]


def test_the_networks_for_384_are_known_by_their_tables(tmp_path: Path) -> None:
    _, weights = official_s3((24, 24, 24, 12), (2, 2, 18, 2), 384)
    torch.save({"model": weights}, tmp_path / "s3_small_384.pth")
    model = convert(tmp_path / "s3_small_384.pth", tmp_path / "out")
    config = artefact.load_model_config(tmp_path / "out", verify=True)
    assert config["s3zoo"]["provenance"]["converted_from"]["model"] == "s3_small_384"
    assert config["model_args"]["img_size"] == [384, 384] == config["pretrained_cfg"]["input_size"][1:]
    assert {block.window_size for stage in model.arch.stages for block in stage.blocks} == {24, 12}


def test_swin_is_not_s3(tmp_path: Path) -> None:
    """Its tables would be resized to S3's windows without a word."""
    _, weights = official_s3(windows=(7, 7, 7, 7))
    torch.save({"model": weights}, tmp_path / "swin.pth")
    with pytest.raises(ValueError, match="stage 2 has window 7 in the checkpoint, but 14 in the architecture"):
        convert(tmp_path / "swin.pth", tmp_path / "out")
    assert not (tmp_path / "out").exists()


def official_glit() -> dict[str, Tensor]:
    """Random weights with the names and shapes of the released GLiT-Tiny."""
    return random_state(tiny_arch(), (14, 14))


def test_glit(tmp_path: Path) -> None:
    """The logits of converted weights are GLiT's own test; here nothing may be lost and the folder must load."""
    weights = official_glit()
    assert len(weights) == 213
    torch.save({"model": weights, "args": argparse.Namespace(model="glit")}, tmp_path / "glit.pth")
    assert cli.main(["convert", str(tmp_path / "glit.pth"), "--to", str(tmp_path / "glit")]) == 0
    converted = load(tmp_path / "glit")
    state = converted.state_dict()
    assert sum(p.numel() for p in converted.parameters()) == 7_264_456
    assert len(state) == len(weights)
    ours = sorted(float(t.double().sum()) for t in state.values())
    theirs = sorted(float(t.double().sum()) for t in weights.values())
    assert all(math.isclose(a, b, rel_tol=1e-6, abs_tol=1e-6) for a, b in zip(ours, theirs, strict=True))
    assert torch.equal(converted.blocks[4].mlp.fc1.weight, weights["blocks.4.0.mlp.fc1.weight"])
    assert artefact.load_model_config(tmp_path / "glit")["architecture"] == "glit"


@torch.no_grad()
def test_shunted(tmp_path: Path) -> None:
    """The rules behind the logits are Shunted's own test; here they must survive the file and the folder."""
    arch = shunted_reference.published_arch("shunted_tiny")
    weights = shunted_reference.random_state(arch)
    assert len(weights) == 260
    torch.save({"model": weights, "args": argparse.Namespace(config="shunted_T.py")}, tmp_path / "shunted.pth")
    assert cli.main(["convert", str(tmp_path / "shunted.pth"), "--to", str(tmp_path / "shunted")]) == 0
    x = torch.randn(1, 3, 64, 64)
    expected, _ = shunted_reference.oracle(weights, arch, x)
    torch.testing.assert_close(load(tmp_path / "shunted")(x), expected, atol=1e-5, rtol=0)
    config = artefact.load_model_config(tmp_path / "shunted", verify=True)
    assert config["architecture"] == "shunted" and config["s3zoo"]["params"] == 11_553_576

    searched = shunted_reference.random_arch(0)
    torch.save(shunted_reference.random_state(searched, num_classes=5), tmp_path / "searched.pth")
    (tmp_path / "arch.json").write_text(searched.to_json())
    model = convert(tmp_path / "searched.pth", tmp_path / "searched", arch=tmp_path / "arch.json")
    assert model.arch == searched and model.num_classes == 5
    for wrong in ("shunted_tiny", "shunted_small"):  # too small, and too deep a stem
        with pytest.raises(ValueError, match="does not fit this Shunted network") as caught:
            convert(tmp_path / "searched.pth", tmp_path / "out", model=wrong)
        assert "\n" not in str(caught.value)


# What is refused


class Malicious:
    """A pickle of this writes a file when it is read carelessly."""

    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(self.marker),)


def test_the_malicious_pickle_is_one(tmp_path: Path) -> None:
    pickle.loads(pickle.dumps(Malicious(tmp_path / "marker")))
    assert (tmp_path / "marker").is_dir()


Maker = Callable[[Path, Path], None]  # (checkpoint, marker)


def saved(content: Any, **kwargs: Any) -> Maker:
    return lambda path, _: torch.save(content() if callable(content) else content, path, **kwargs)


def raw(content: bytes) -> Maker:
    return lambda path, _: path.write_bytes(content) and None


def cut(make: Maker, keep: float) -> Maker:
    def write(path: Path, marker: Path) -> None:
        make(path, marker)
        content = path.read_bytes()
        path.write_bytes(content[: int(len(content) * keep)])

    return write


def compressed(path: Path, marker: Path) -> None:
    """As a bomb is: torch itself compresses nothing."""
    torch.save({"model": small_supernet()}, path)
    with zipfile.ZipFile(path) as archive:
        files = {name: archive.read(name) for name in archive.namelist()}
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in files.items():
            archive.writestr(name, content)


def without(key: str) -> dict[str, Tensor]:
    return {name: tensor for name, tensor in small_supernet().items() if name != key}


def malicious(protocol: str) -> Maker:
    def write(path: Path, marker: Path) -> None:
        content = {"model": small_supernet(), "args": Malicious(marker)}
        if protocol == "pickle":
            path.write_bytes(pickle.dumps(content))
        else:
            torch.save(content, path, _use_new_zipfile_serialization=protocol == "zip")

    return write


REFUSED: dict[str, tuple[Maker, str]] = {
    "missing": (lambda path, _: None, "There is no checkpoint file"),
    "a folder": (lambda path, _: path.mkdir(), "There is no checkpoint file"),
    "empty": (raw(b""), "is empty"),
    "web page": (raw(b"\n<!DOCTYPE html><html><body>404</body></html>"), "is a web page"),
    "git lfs": (raw(b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n"), "is a Git LFS pointer"),
    "noise": (raw(random.Random(0).randbytes(5000)), "truncated or not a checkpoint"),
    "text": (raw(b"hello world, this is no checkpoint at all\n" * 10), "truncated or not a checkpoint"),
    "truncated zip": (cut(saved(lambda: {"model": small_supernet()}), 0.7), "truncated or not a checkpoint"),
    "truncated old format": (
        cut(saved(lambda: {"model": small_supernet()}, _use_new_zipfile_serialization=False), 0.7),
        "truncated or not a checkpoint",
    ),
    "truncated safetensors": (
        cut(lambda path, _: save_file(small_supernet(), path), 0.7),
        "is truncated or damaged",
    ),
    "a compressed zip": (compressed, "data.pkl is compressed"),
    "runs code": (malicious("zip"), r"wants to run code .*(posix|nt)\.mkdir"),
    "runs code, old format": (malicious("old"), r"wants to run code .*(posix|nt)\.mkdir"),
    "runs code, plain pickle": (malicious("pickle"), r"wants to run code .*more than tensors"),
    "a whole module": (saved(lambda: torch.nn.Linear(2, 2)), r"wants to run code .*torch\.nn\.modules\.linear\.Linear"),
    "a list": (saved([torch.zeros(1)]), "holds no model weights"),
    "no tensors": (saved({"model": {"a": 1}}), "holds no model weights"),
    "nothing": (saved({"model": {}}), "holds no model weights"),
    "another network": (
        saved(lambda: {"model": timm.create_model("resnet10t").state_dict()}),
        "none of S3, AutoFormer, GLiT or Shunted",
    ),
    "a plain ViT": (
        saved(lambda: timm.create_model("vit_tiny_patch16_224", depth=1).state_dict()),
        "none of S3, AutoFormer, GLiT or Shunted",
    ),
    "a supernet of unknown width": (saved(small_supernet), "No published autoformer network has width 32"),
    "a supernet without tables": (
        saved(lambda: without("blocks.1.attn.rel_pos_embed_v.embeddings_table_h")),
        "lacks 'blocks.1.attn.rel_pos_embed_v.embeddings_table_h'",
    ),
    "half of S3": (
        saved(lambda: {k: v for k, v in official_s3()[1].items() if not k.startswith("layers.3.")}),
        "is no s3_tiny: it lacks 'layers.3",
    ),
    "half of GLiT": (
        saved(lambda: {k: v for k, v in official_glit().items() if not k.startswith("blocks.7.")}),
        "does not fit this GLiT network: 'blocks.7",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refused(case: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    make, message = REFUSED[case]
    path, marker, folder = tmp_path / "checkpoint.pth", tmp_path / "marker", tmp_path / "out"
    make(path, marker)
    arch = []
    if "without tables" in case:
        (tmp_path / "arch.json").write_text(to_arch(reference.Subnet(24, (2,), (2.0,)), 8, 4).to_json())
        arch = ["--arch", str(tmp_path / "arch.json")]
    assert cli.main(["convert", str(path), "--to", str(folder), *arch]) == 2
    out, err = capsys.readouterr()
    assert out == "" and err.count("\n") == 1 and re.search(message, err), err
    assert not folder.exists() and not marker.exists()


@pytest.mark.parametrize("family", ["s3", "glit", "shunted"])
def test_whatever_a_checkpoint_lacks_is_one_sentence(family: str, tmp_path: Path, monkeypatch) -> None:
    published = {"s3": lambda: official_s3()[1], "glit": official_glit}
    shunted = shunted_reference.published_arch("shunted_tiny")
    state = published.get(family, lambda: shunted_reference.random_state(shunted))()
    kinds = {re.sub(r"\d+", "0", name): name for name in state if not name.endswith(("index", "mask", "tracked"))}
    assert len(kinds) > 15
    for lost in kinds.values():
        rest = {name: value for name, value in state.items() if name != lost}
        monkeypatch.setattr("s3zoo.convert.read_checkpoint", lambda *_, rest=rest, **options: rest)
        with pytest.raises(ValueError) as caught:
            convert(tmp_path / "official.pth", tmp_path / "out")
        assert "\n" not in str(caught.value) and not (tmp_path / "out").exists(), lost


@pytest.mark.parametrize(
    ("kwargs", "message"),
    [
        ({"model": "s3_tiny"}, "The model is 's3_tiny', but the checkpoint is of autoformer"),
        ({"model": "resnet50"}, "The model is 'resnet50'"),
        ({"model": "autoformer_tiny"}, "this supernet holds"),
        ({"arch": to_arch(reference.Subnet(40, (2,), (2.0,)), 8, 4)}, "embed_dim is 40"),
        ({"arch": "nowhere.json"}, "No architecture file"),
        ({"arch": Arch.parse(timm.create_model("s3_tiny", device="meta").arch)}, "of family 's3', but the checkpoint"),
    ],
)
def test_refused_arguments(kwargs: dict[str, Any], message: str, tmp_path: Path) -> None:
    torch.save(small_supernet(), tmp_path / "a.pth")
    with pytest.raises(ValueError, match=message) as caught:
        convert(tmp_path / "a.pth", tmp_path / "out", **kwargs)
    assert "\n" not in str(caught.value) and not (tmp_path / "out").exists()


def test_reading(tmp_path: Path) -> None:
    """Harmless extras of official files, in the formats of then and now."""
    weights = {"a": torch.arange(3.0), "b": torch.tensor(2)}
    extras = {"args": argparse.Namespace(x=[1]), "best": np.float32(1.5), "top": np.float64(2.5), "n": np.int64(3)}
    cases: list[tuple[str, Any, bool]] = [
        ("zip", {"model": weights} | extras, True),
        ("old", {"state_dict": weights} | extras, False),
        ("flat", weights, True),
        ("ddp", {"model": {f"module.{k}": v for k, v in weights.items()}}, True),
    ]
    for name, content, is_zip in cases:
        torch.save(content, tmp_path / name, _use_new_zipfile_serialization=is_zip)
        read = read_checkpoint(tmp_path / name)
        assert read.keys() == weights.keys() and all(torch.equal(read[k], weights[k]) for k in weights), name
    # numpy 1 pickled its scalars under another name.
    old = (tmp_path / "old").read_bytes().replace(b"numpy._core.multiarray", b"numpy.core.multiarray")
    (tmp_path / "numpy1").write_bytes(old)
    assert read_checkpoint(tmp_path / "numpy1").keys() == weights.keys()


def test_the_tool(tmp_path: Path) -> None:
    """tools/convert.py is a door to the same command."""
    torch.save(small_supernet(), tmp_path / "a.pth")
    (tmp_path / "arch.json").write_text(to_arch(reference.Subnet(24, (2,), (2.0,)), 8, 4).to_json())
    command = [sys.executable, str(ROOT / "tools" / "convert.py"), "a.pth", "--to", "out", "--arch", "arch.json"]
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, env=env)
    assert done.returncode == 0, done.stderr
    assert json.loads((tmp_path / "out" / "config.json").read_text())["architecture"] == "autoformer"


def test_the_same_file_is_the_same_network_everywhere(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The model's own weights unless the averaged ones are asked for; if there are no others, they are taken."""
    arch = to_arch(reference.Subnet(16, (1,), (1.0,)), 8, 4)
    options = {"arch": arch, "img_size": 16, "num_classes": 3}
    own = timm.create_model("autoformer", **options).state_dict()
    averaged = {name: value + 1 for name, value in own.items()}
    torch.save({"model_ema": averaged, "model": own, "optimizer": {}}, tmp_path / "both.pth")
    torch.save({"state_dict_ema": averaged}, tmp_path / "averaged.pth")

    def overlaid(name: str) -> Tensor:
        overlay = {"file": str(tmp_path / name), "num_classes": 3, "input_size": (3, 16, 16)}
        return timm.create_model("autoformer", pretrained=True, pretrained_cfg_overlay=overlay, **options).head.bias

    assert torch.equal(read_checkpoint(tmp_path / "both.pth")["head.bias"], own["head.bias"])
    assert torch.equal(read_checkpoint(tmp_path / "both.pth", ema=True)["head.bias"], averaged["head.bias"])
    assert torch.equal(overlaid("both.pth"), own["head.bias"])
    assert not caplog.records
    assert torch.equal(overlaid("averaged.pth"), averaged["head.bias"])
    assert "holds averaged weights (EMA) only" in caplog.text
    torch.save({"model": own}, tmp_path / "own.pth")
    with pytest.raises(ValueError, match="holds no averaged weights"):
        read_checkpoint(tmp_path / "own.pth", ema=True)


def test_every_flipped_byte_of_the_weights_is_noticed(tmp_path: Path) -> None:
    path = tmp_path / "a.pth"
    torch.save({"model": {"a": torch.arange(1000.0)}}, path)
    good = path.read_bytes()
    data = good.index(torch.arange(1000.0).numpy().tobytes())
    for place in range(data, data + 4000, 97):
        path.write_bytes(good[:place] + bytes([good[place] ^ 4]) + good[place + 1 :])
        with pytest.raises(ValueError, match="does not have its checksum; download it again"):
            read_checkpoint(path)
    for value in (float("nan"), float("inf")):
        torch.save({"model": {"a": torch.tensor([1.0, value])}}, path)
        with pytest.raises(ValueError, match="NaN or infinite values in a:.* S3ZOO_ALLOW_NONFINITE=1"):
            read_checkpoint(path)


@pytest.mark.parametrize("shape", [(1, 0, 8), (1, 1, 8), (1, 4, 8), (197, 8), ()])
def test_positions_of_no_grid_are_said_with_their_shape(shape: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match=re.escape(f"pos_embed has shape {list(shape)}, but must be [1, 1 + patches")):
        grid_side(torch.zeros(shape))
    assert grid_side(torch.zeros(1, 197, 8)) == 14
