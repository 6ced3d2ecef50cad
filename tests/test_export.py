"""Exports: plain timm in a process without s3zoo, where timm differs and is refused, ONNX against PyTorch."""

import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import timm
import torch
from safetensors.torch import save_file

import s3zoo  # noqa: F401
from s3zoo.arch import Arch, AutoFormerBlock, GLiTBlock, LadderBlock, S3Block, ShuntedBlock, Stage
from s3zoo.artefact import save_model
from s3zoo.cli import main as s3zoo_command
from s3zoo.export import check_onnx, to_onnx, to_timm
from s3zoo.models.s3 import timm_differs, timm_model_args, to_timm_state_dict

ROOT = Path(__file__).resolve().parent.parent
pytestmark = pytest.mark.usefixtures("one_thread")


def uniform(dim: int, depths: tuple[int, ...], windows: tuple[int, ...], patch_size: int = 4) -> Arch:
    """Q-K-V narrower than the embedding, and its own ratio in every stage."""
    stages = (
        Stage(dim * 2**i, (S3Block(window, num_heads=1 + i, head_dim=6, mlp_ratio=1.5 + i),) * depth)
        for i, (depth, window) in enumerate(zip(depths, windows, strict=True))
    )
    return Arch("s3", tuple(stages), patch_size=patch_size)


def randomised(arch: Arch, seed: int = 0, **options) -> torch.nn.Module:
    """Every tensor far from its initial value, so that a wrong or forgotten one shows."""
    model = timm.create_model("s3", arch=arch, **{"num_classes": 7, **options}).eval()
    torch.manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.2)
    return model


PLAIN_PROCESS = """
import sys, timm, torch
from safetensors.torch import load_file
assert "s3zoo" not in sys.modules
for folder in sys.argv[1:]:
    seen = load_file(folder + "/seen.safetensors")
    model = timm.create_model("local-dir:" + folder + "/plain", pretrained=True).eval()
    with torch.no_grad():
        logits = model(seen["images"])
    maps = timm.create_model("local-dir:" + folder + "/plain", pretrained=True, features_only=True)(seen["images"])
    print(float((logits - seen["logits"]).abs().max()), float(logits.abs().max()), len(maps))
assert "s3zoo" not in sys.modules
"""


def test_a_process_without_s3zoo_gets_the_same_logits(tmp_path: Path, capsys) -> None:
    cases = {
        "shifted": (uniform(12, (2, 3, 2), (4, 4, 8)), {"img_size": 64}),  # stage 0 and 1 shifted, 2 one window
        "grey": (
            uniform(8, (2, 2), (4, 9), patch_size=2),
            {"img_size": (8, 8), "in_chans": 1},
        ),  # a window above the map
    }
    for name, (arch, options) in cases.items():
        model = randomised(arch, **options)
        folder = save_model(tmp_path / name / "ours", model, provenance={"seed": 3})
        verb, said = ["export", str(folder), "--to", "timm"], "same logits"
        if name == "grey":
            verb, said = ["publish", str(folder), "--layout", "timm", "--license", "mit"], "load it with: import timm;"
        assert s3zoo_command([*verb, "--out", str(tmp_path / name / "plain")]) == 0
        assert said in capsys.readouterr().out
        images = torch.randn(2, options.get("in_chans", 3), *model.img_size)
        with torch.no_grad():
            save_file({"images": images, "logits": model(images)}, tmp_path / name / "seen.safetensors")
    command = [sys.executable, "-c", PLAIN_PROCESS, *(str(tmp_path / name) for name in cases)]
    out = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert out.returncode == 0, out.stderr[-2000:]
    for line in out.stdout.splitlines():
        difference, scale, maps = map(float, line.split())
        assert difference <= 1e-5 * max(1, scale) and scale > 0.1 and maps >= 2
    assert len(out.stdout.splitlines()) == 2

    config = json.loads((tmp_path / "shifted/plain/config.json").read_text())
    assert config["architecture"] == "swin_s3_tiny_224"
    assert config["s3zoo"]["provenance"] == {"seed": 3}
    assert "no shifted window is padded" in config["s3zoo"]["layout"]
    card = (tmp_path / "shifted/plain/README.md").read_text()
    assert "no shifted window is padded" in card and "import s3zoo" not in card
    assert json.loads((tmp_path / "grey/plain/config.json").read_text())["pretrained_cfg"]["license"] == "mit"


def test_publish_says_when_timm_has_no_such_network(tmp_path: Path, capsys) -> None:
    blocks = (AutoFormerBlock(2, 8, 2.0), AutoFormerBlock(3, 8, 1.5))
    model = timm.create_model("autoformer", arch=Arch("autoformer", (Stage(24, blocks),)), img_size=32, num_classes=3)
    folder = save_model(tmp_path / "ours", model)
    assert s3zoo_command(["publish", str(folder), "--layout", "timm", "--out", str(tmp_path / "out")]) == 2
    assert "Plain timm can only build networks of family 's3', not of family 'autoformer'" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_publish_adds_onnx(tmp_path: Path, capsys) -> None:
    onnxruntime = pytest.importorskip("onnxruntime")
    pytest.importorskip("onnxscript")
    model = randomised(uniform(8, (1, 1), (2, 2), patch_size=2), img_size=8)
    folder = save_model(tmp_path / "ours", model)
    assert s3zoo_command(["publish", str(folder), "--onnx", "--layout", "timm", "--out", str(tmp_path / "out")]) == 0
    assert "model.onnx " in capsys.readouterr().out
    images = torch.randn(3, 3, 8, 8)
    (found,) = onnxruntime.InferenceSession(tmp_path / "out/model.onnx").run(None, {"image": images.numpy()})
    with torch.no_grad():
        np.testing.assert_allclose(found, model(images).numpy(), rtol=1e-4, atol=1e-4)


def test_the_same_weights_give_the_same_bytes(tmp_path: Path) -> None:
    model = randomised(uniform(8, (1, 2, 1), (2, 2, 2), patch_size=2), img_size=16)
    to_timm(tmp_path / "a", model)
    to_timm(tmp_path / "b", model)
    names = sorted(path.name for path in (tmp_path / "a").iterdir())
    assert names == ["README.md", "config.json", "genome.svg", "model.safetensors"]
    for name in names:
        assert (tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes()


@pytest.mark.parametrize(
    ("arch", "img_size", "same"),
    [
        (uniform(8, (2, 2, 1), (4, 4, 4)), 64, True),
        (uniform(8, (2, 2, 1), (4, 4, 4)), (64, 128), True),
        (uniform(8, (2, 2, 2), (6, 6, 6)), 48, True),  # the maps of 6 and 3 are one window
        (uniform(8, (1, 1, 1), (3, 3, 3)), 64, True),  # padded, but nothing is shifted
        (uniform(8, (2, 2, 1), (3, 3, 3)), 64, False),  # 16 is no multiple of 3: padded and shifted
        (uniform(8, (2, 2, 1), (4, 4, 4)), (64, 72), False),  # on one axis only
        (uniform(8, (1, 2, 1), (4, 3, 4)), 64, False),  # in the second stage only
    ],
)
def test_where_timm_is_another_network(arch: Arch, img_size: int | tuple[int, int], same: bool) -> None:
    """The rule against timm's own model, whose logits are the judge."""
    model = randomised(arch, img_size=img_size)
    theirs = timm.create_model("swin_s3_tiny_224", num_classes=7, img_size=img_size, **timm_model_args(arch)).eval()
    theirs.load_state_dict(to_timm_state_dict(model))
    images = torch.randn(2, 3, *model.img_size)
    with torch.no_grad():
        difference = float((model(images) - theirs(images)).abs().max())
    assert (difference <= 1e-5) == same
    assert (timm_differs(arch, img_size) is None) == same


def test_refusals_name_the_reason(tmp_path: Path) -> None:
    mixed = Arch("s3", (Stage(8, (S3Block(2, 1, 8, 1.0), S3Block(2, 1, 8, 2.0))),))
    plain = Arch("autoformer", (Stage(16, (AutoFormerBlock(2, 8, 2.0),)),))
    cases = [
        (randomised(mixed, img_size=16), "different blocks"),
        (randomised(uniform(8, (2, 1), (3, 3)), img_size=16), "padded"),
        (randomised(uniform(8, (1, 1), (2, 4)), img_size=32), "two stages with different windows"),
        (randomised(uniform(8, (1, 1, 1), (2, 2, 2)), img_size=24), "halves odd sides"),
        (randomised(uniform(8, (1,), (2,)), img_size=18), "multiples of the patch size"),
        (randomised(uniform(8, (1,), (4,)), img_size=(8, 16)), "square windows only"),
        (timm.create_model("autoformer", arch=plain, img_size=32), "family 'autoformer'"),
    ]
    for model, reason in cases:
        with pytest.raises(ValueError, match=reason) as refused:
            to_timm(tmp_path / "out", model)
        assert "\n" not in str(refused.value)
    assert not (tmp_path / "out").exists()


def test_mistakes_are_one_line(tmp_path: Path, capsys, monkeypatch) -> None:
    def said(*arguments: str) -> str:
        assert s3zoo_command(["export", *arguments]) == 2
        (line,) = capsys.readouterr().err.splitlines()
        return line

    out = str(tmp_path / "out")
    assert "did you mean 's3_tiny'?" in said("s3_tiney", "--to", "timm", "--out", out)
    assert "holds no model" in said(str(tmp_path), "--to", "timm", "--out", out)
    assert "--untrained" in said("glit_small", "--to", "plain", "--out", out)
    assert "--img-size" in said("s3_tiny", "--to", "plain", "--out", out, "--img-size", "0")
    assert "--opset is 3" in said("s3_tiny", "--to", "onnx", "--out", out, "--opset", "3")
    assert "is a folder" in said("s3_tiny", "--to", "onnx", "--out", str(tmp_path))
    monkeypatch.setattr("s3zoo.models.as_onnx.WRITES_ONNX", False)  # an older torch
    assert "ONNX export needs torch 2.13 or newer, and this is" in said("s3_tiny", "--to", "onnx", "--out", out)
    monkeypatch.setattr("s3zoo.models.as_onnx.WRITES_ONNX", True)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "onnxruntime" else object())
    with pytest.raises(ValueError, match="needs onnxruntime; install with: pip install onnxruntime"):
        check_onnx("x.onnx")
    assert not Path(out).exists()


def onnx_logits(path: Path, images: torch.Tensor) -> np.ndarray:
    session = pytest.importorskip("onnxruntime").InferenceSession(str(path), providers=["CPUExecutionProvider"])
    return session.run(["logits"], {"image": images.numpy()})[0]


def test_onnx(tmp_path: Path, capsys) -> None:
    pytest.importorskip("onnxscript")
    mixed = (S3Block(4, 2, 8, 1.0), S3Block(2, 1, 8, 2.0))  # one window, then shifted ones
    model = randomised(Arch("s3", (Stage(8, mixed),), patch_size=2), img_size=8, in_chans=1, num_classes=3)
    cfg = {"mean": [0.3], "std": [0.4], "label_names": ["a", "b", "c"]}
    folder, path = save_model(tmp_path / "model", model, pretrained_cfg=cfg), tmp_path / "model.onnx"
    assert s3zoo_command(["export", str(folder), "--to", "onnx", "--opset", "18", "--out", str(path)]) == 0
    assert "largest difference" in capsys.readouterr().out
    for batch in (1, 5):
        images = torch.randn(batch, 1, 8, 8)
        with torch.no_grad():
            assert np.abs(onnx_logits(path, images) - model(images).numpy()).max() < 1e-4
    content = path.read_bytes()
    assert str(ROOT).encode() not in content and b"site-packages" not in content
    proto = pytest.importorskip("onnx").load(path)
    assert [o.version for o in proto.opset_import if not o.domain] == [18]
    notes = {entry.key: json.loads(entry.value) for entry in proto.metadata_props}
    assert (notes["mean"], notes["label_names"], notes["input_size"]) == ([0.3], ["a", "b", "c"], [1, 8, 8])


SMALL = {
    "s3": (uniform(8, (2, 2), (4, 4)), {"img_size": (32, 40)}),
    "autoformer": (Arch("autoformer", (Stage(32, (AutoFormerBlock(2, 16, 2.0),) * 2),)), {"img_size": 48}),
    "glit": (Arch("glit", (Stage(32, (GLiTBlock(2, 1, 16, 5, 2.0, 2.0),) * 2),)), {"img_size": 48}),
    "shunted": (
        Arch("shunted", tuple(Stage(16 * 2**i, (ShuntedBlock(2, 8, 2.0),)) for i in range(4))),
        {"img_size": 64},
    ),
    "clip_ladder": (
        Arch("ladder", (Stage(8, (LadderBlock(2, 8, 2.0),) * 2),)),
        {"img_size": 160, "tower": "test_vit"},
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", SMALL)
def test_onnx_of_every_family(name: str, tmp_path: Path) -> None:
    pytest.importorskip("onnxscript")
    arch, options = SMALL[name]
    model = timm.create_model(name, arch=arch, num_classes=5, **options).eval()
    assert to_onnx(tmp_path / "model.onnx", model) < 1e-4
    height, width = (options["img_size"],) * 2 if isinstance(options["img_size"], int) else options["img_size"]
    images = torch.randn(4, 3, height, width)
    with torch.no_grad():
        assert np.abs(onnx_logits(tmp_path / "model.onnx", images) - model(images).numpy()).max() < 1e-4
