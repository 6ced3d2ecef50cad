"""Other people's tools on networks of the zoo, as docs/works_with.md has them; `make compat` installs those."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import timm
import torch
from oldest import LARGEST_BATCH
from timm.data import Mixup
from timm.loss import SoftTargetCrossEntropy
from timm.optim import create_optimizer_v2
from timm.scheduler import create_scheduler_v2
from timm.utils import ModelEmaV3, dispatch_clip_grad
from torch import nn

import s3zoo
from s3zoo.arch import Arch, S3Block, Stage
from s3zoo.artefact import save_model
from s3zoo.evaluate import Seen
from s3zoo.export import to_onnx, to_timm
from s3zoo.training.datasets import find_data
from s3zoo.training.log import Log
from s3zoo.training.splits import open_split

pytestmark = pytest.mark.usefixtures("one_thread")
UNIFORM = Arch("s3", tuple(Stage(8 * 2**i, (S3Block(4, 1 + i, 6, 2.0),) * 2) for i in range(3)))


def small(seed: int = 0) -> Any:
    torch.manual_seed(seed)
    model = timm.create_model("s3", arch=UNIFORM, img_size=64, num_classes=5).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.2)
    return model


@pytest.fixture(scope="module")
def nano() -> Any:
    return timm.create_model("s3_nano.digits", pretrained=True).eval()


@pytest.fixture(scope="module")
def digits(nano: Any) -> torch.Tensor:
    """All 360 test images as the network reads them."""
    data = find_data("digits")
    split = open_split(data, data.test_split)
    return torch.stack([image for image in Seen(split, nano)[range(len(split))] if image is not None])


def agreement(a: Any, b: Any) -> float:
    return float((torch.as_tensor(a).argmax(1) == torch.as_tensor(b).argmax(1)).float().mean())


@pytest.mark.parametrize("layout", ["timm", "s3zoo"])
def test_transformers_opens_a_folder(layout: str, tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    model, x = small(), torch.randn(2, 3, 64, 64)
    (to_timm if layout == "timm" else save_model)(tmp_path, model)
    theirs = transformers.AutoModelForImageClassification.from_pretrained(tmp_path).eval()
    with torch.no_grad():
        torch.testing.assert_close(theirs(pixel_values=x).logits, model(x), rtol=1e-4, atol=1e-5)


def test_transformers_takes_a_model_as_backbone() -> None:
    transformers = pytest.importorskip("transformers")
    config = transformers.TimmBackboneConfig(backbone="s3_tiny", use_pretrained_backbone=False, out_indices=(1, 2, 3))
    with torch.no_grad():
        maps = transformers.TimmBackbone(config).eval()(torch.randn(1, 3, 64, 96)).feature_maps
    assert [tuple(m.shape) for m in maps] == [(1, 192, 8, 12), (1, 384, 4, 6), (1, 768, 2, 3)]


def test_segmentation_models_pytorch_takes_a_model_as_encoder() -> None:
    smp = pytest.importorskip("segmentation_models_pytorch")
    model = smp.Unet("tu-s3_tiny", encoder_weights=None, classes=3)
    loss = model(torch.randn(1, 3, 64, 96)).square().mean()
    loss.backward()
    assert model(torch.randn(1, 3, 64, 96)).shape == (1, 3, 64, 96)
    assert all(p.grad is not None for n, p in model.encoder.named_parameters() if ".head." not in n)


@pytest.mark.parametrize(("name", "share"), [("s3_tiny", 0.99), ("autoformer_tiny", 0.94)])
def test_int8_of_torchao_reaches_every_linear_weight(name: str, share: float) -> None:
    quantization = pytest.importorskip("torchao.quantization")
    plain = s3zoo.to_plain(timm.create_model(name))
    linear = [m for m in plain.modules() if isinstance(m, nn.Linear)]
    weights = sum(m.weight.numel() for m in linear)
    total = sum(p.numel() for p in plain.parameters())
    quantization.quantize_(plain, quantization.Int8WeightOnlyConfig())
    assert linear and all(type(m.weight.data) is not torch.Tensor for m in linear)
    assert weights / total > share


def test_int8_of_torchao_answers_as_float32(nano: Any, digits: torch.Tensor) -> None:
    quantization = pytest.importorskip("torchao.quantization")
    plain = s3zoo.to_plain(nano)
    quantization.quantize_(plain, quantization.Int8WeightOnlyConfig())
    with torch.no_grad():
        assert agreement(plain(digits), nano(digits)) >= 0.99


def test_onnx_runtime_quantises_an_export(nano: Any, digits: torch.Tensor, tmp_path: Path) -> None:
    onnxruntime = pytest.importorskip("onnxruntime")
    pytest.importorskip("onnxscript")
    from onnxruntime.quantization import QuantType, quantize_dynamic

    to_onnx(tmp_path / "nano.onnx", s3zoo.to_plain(nano))
    quantize_dynamic(tmp_path / "nano.onnx", tmp_path / "int8.onnx", weight_type=QuantType.QInt8)
    answers = []
    for name in ("nano.onnx", "int8.onnx"):
        session = onnxruntime.InferenceSession(tmp_path / name, providers=["CPUExecutionProvider"])
        answers.append(session.run(None, {"image": digits.numpy()})[0])
    with torch.no_grad():
        np.testing.assert_allclose(answers[0], nano(digits).numpy(), rtol=1e-3, atol=1e-3)
    assert agreement(*answers) >= 0.98 and not np.array_equal(*answers)


def test_a_loop_as_in_train_py_of_timm() -> None:
    """Optimiser, schedule, mixup, average of weights and layer decay, all timm's, on s3zoo's network."""
    torch.manual_seed(0)
    model = timm.create_model("s3", arch=UNIFORM, img_size=64, num_classes=5)
    optimizer = create_optimizer_v2(model, opt="adamw", lr=1e-2, weight_decay=0.05, layer_decay=0.9)
    scheduler, epochs = create_scheduler_v2(optimizer, num_epochs=3, warmup_epochs=1)
    mixup = Mixup(mixup_alpha=0.1, num_classes=5)
    average = ModelEmaV3(model, decay=0.9)
    images, labels = torch.randn(10, 3, 64, 64), torch.arange(10) % 5
    criterion, losses = SoftTargetCrossEntropy(), []
    for epoch in range(epochs):
        scheduler.step(epoch)
        for _ in range(3):
            x, y = mixup(images.clone(), labels)
            loss = criterion(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            dispatch_clip_grad(model.parameters(), 1.0)
            optimizer.step()
            average.update(model)
            losses.append(float(loss.detach()))
    assert np.mean(losses[-3:]) < losses[0] and average.module(images).isfinite().all()


def test_torch_export_keeps_logits_for_any_batch() -> None:
    model = small()
    batch = torch.export.Dim("batch", max=LARGEST_BATCH)
    program = torch.export.export(model, (torch.randn(2, 3, 64, 64),), dynamic_shapes=({0: batch},), strict=False)
    x = torch.randn(5, 3, 64, 64)
    with torch.no_grad():
        torch.testing.assert_close(program.module()(x), model(x), rtol=1e-4, atol=1e-5)


def test_weights_and_biases_without_a_connection(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The real client; a resumed run goes on under the same id."""
    pytest.importorskip("wandb")
    monkeypatch.setenv("S3ZOO_TRACKERS", "wandb")
    monkeypatch.setenv("WANDB_MODE", "offline")
    for step, loss in enumerate((2.625, 1.375)):
        log = Log(tmp_path)
        log.curve("supernet", step, {"loss": loss})
        log.close()
    assert not (tmp_path / "log.txt").exists()  # where a tracker that failed would be named
    written = sorted(tmp_path.glob("wandb/offline-run-*/*.wandb"))
    assert len(written) == 2 and len({path.name for path in written}) == 1
    for path, loss in zip(written, (b"2.625", b"1.375"), strict=True):
        content = path.read_bytes()
        assert b"supernet/loss" in content and b"supernet/step" in content and loss in content
