"""Detectors and segmenters from drawn data to pictures, through the commands: train, resume, test, predict."""

import contextlib
import io
import json
import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from s3zoo import cli
from s3zoo.paths import configs_dir
from s3zoo.transfer.mm.shapes import CLASSES, SEGMENTS, draw, write_ade, write_coco

COCO = "cascade-mask-rcnn_s3-tiny_fpn_1x_coco"
ROOT = Path(__file__).resolve().parent.parent

pytestmark = pytest.mark.usefixtures("one_thread_here")

# As a user would write it: what differs from a shipped config.
DETECTOR = """
_base_ = {base!r}
train_cfg = dict(max_epochs={epochs}, val_interval={epochs})
param_scheduler = [dict(type="LinearLR", start_factor=0.1, by_epoch=False, begin=0, end=4)]
default_hooks = dict(logger=dict(interval=1), checkpoint=dict(interval={epochs}))
"""
SEGMENTER = """
_base_ = {base!r}
train_cfg = dict(max_iters={iterations}, val_interval={iterations})
param_scheduler = [dict(type="LinearLR", start_factor=0.1, by_epoch=False, begin=0, end=4)]
default_hooks = dict(logger=dict(interval=1), checkpoint=dict(interval={iterations}))
"""


def write_config(path: Path, text: str, **numbers: int) -> Path:
    shipped = "detection/try_detection" if text is DETECTOR else "segmentation/try_segmentation"
    path.write_text(text.format(base=str(configs_dir() / f"{shipped}.py"), **numbers))
    return path


def s3zoo(*words: object) -> tuple[int, str, str]:
    """Exit code, output and error output of a command in this process: importing mmdet takes many seconds."""
    with contextlib.redirect_stdout(io.StringIO()) as out, contextlib.redirect_stderr(io.StringIO()) as err:
        code = cli.main([str(word) for word in words])
    return code, out.getvalue(), err.getvalue()


def scalars(work_dir: Path) -> list[dict[str, Any]]:
    """What mmengine has recorded of the last run in a folder: a row per iteration, and one per validation."""
    path = sorted(work_dir.glob("*/vis_data/scalars.json"))[-1]
    return [json.loads(line) for line in path.read_text().splitlines()]


@dataclass
class Trained:
    config: Path
    data: Path
    run: Path
    said: str

    @property
    def model(self) -> Path:
        return self.run / "model"


@pytest.fixture(scope="module")
def detector(tmp_path_factory: pytest.TempPathFactory) -> Trained:
    home = tmp_path_factory.mktemp("detector")
    data, config = write_coco(home / "coco"), write_config(home / "shapes.py", DETECTOR, epochs=6)
    arguments = ["--data", data, "--classes", ",".join(CLASSES), "--work-dir", home / "run"]
    code, said, errors = s3zoo("train_mm", config, *arguments)
    assert code == 0, errors
    return Trained(config, data, home / "run", said)


@pytest.fixture(scope="module")
def segmenter(tmp_path_factory: pytest.TempPathFactory) -> Trained:
    home = tmp_path_factory.mktemp("segmenter")
    data, config = write_ade(home / "ade", suffix=".png"), write_config(home / "segments.py", SEGMENTER, iterations=20)
    arguments = ["--data", data, "--classes", ",".join(SEGMENTS), "--work-dir", home / "run"]
    code, said, errors = s3zoo("train_mm", config, *arguments)
    assert code == 0, errors
    return Trained(config, data, home / "run", said)


# The drawn data


def test_drawn_masks_are_exact(tmp_path: Path) -> None:
    """Boxes and run lengths as pycocotools reads them are those of the drawn masks, hidden parts left out."""
    from pycocotools.coco import COCO

    write_coco(tmp_path / "coco", images=2, seed=5)
    with contextlib.redirect_stdout(io.StringIO()):
        coco = COCO(str(tmp_path / "coco" / "annotations" / "instances_val2017.json"))
    rng = np.random.default_rng(5)
    for image in range(2):
        _, shapes = draw(rng)
        rows = coco.loadAnns(coco.getAnnIds(imgIds=image))
        assert len(rows) == len(shapes)
        assert sum(mask.astype(int) for _, mask in shapes).max() == 1  # no pixel belongs to two shapes
        for row, (_, mask) in zip(rows, shapes, strict=True):
            assert np.array_equal(coco.annToMask(row).astype(bool), mask)
            x, y, w, h = (int(v) for v in row["bbox"])
            assert mask[y : y + h, x : x + w].sum() == mask.sum() == row["area"]
            assert mask[y, :].any() and mask[y + h - 1, :].any() and mask[:, x].any() and mask[:, x + w - 1].any()


# Detection


def test_a_detector_learns(detector: Trained) -> None:
    rows = scalars(detector.run)
    losses = [row["loss"] for row in rows if "loss" in row]
    assert len(losses) == 12 and np.mean(losses[-3:]) < 0.9 * np.mean(losses[:3])
    (metrics,) = [row for row in rows if "coco/bbox_mAP" in row]
    assert {"coco/bbox_mAP_50", "coco/segm_mAP", "coco/segm_mAP_50"} <= metrics.keys()
    assert 0 <= metrics["coco/bbox_mAP"] <= metrics["coco/bbox_mAP_50"] <= 1
    lines = detector.said.splitlines()
    assert len(lines) < 30 and lines[0].startswith("CascadeRCNN, 0.9M parameters") and "predict_mm" in lines[-1]
    assert {path.name for path in detector.model.iterdir()} == {"model.safetensors", "config.json", "config.py"}
    for name in ("config.json", "config.py"):  # which are published, and nobody else has these folders
        assert str(detector.data.parent) not in (detector.model / name).read_text()


def test_an_exported_detector_is_the_trained_one(detector: Trained, tmp_path: Path) -> None:
    """The folder with safetensors, tested, has the metrics of the last validation; so does the training checkpoint."""
    (expected,) = [row for row in scalars(detector.run) if "coco/bbox_mAP" in row]
    code, _, errors = s3zoo("test_mm", detector.model, "--work-dir", tmp_path / "none")
    assert code == 2 and "--data" in errors  # it does not say where its data was
    checkpoint = [detector.config, detector.run / "epoch_6.pth", "--classes", ",".join(CLASSES)]
    for i, model in enumerate(([detector.model], checkpoint)):
        code, said, errors = s3zoo("test_mm", *model, "--data", detector.data, "--work-dir", tmp_path / str(i))
        assert code == 0, errors
        metrics = json.loads((tmp_path / str(i) / "metrics.json").read_text())
        for name in ("coco/bbox_mAP", "coco/segm_mAP", "coco/bbox_mAP_50"):
            assert metrics[name] == pytest.approx(expected[name], abs=1e-9)
            assert name in said


def test_pictures_of_detections(detector: Trained, tmp_path: Path) -> None:
    from pycocotools.mask import decode

    images = sorted((detector.data / "val2017").iterdir())[:2]
    code, _, errors = s3zoo("predict_mm", detector.model, *images, "--out", tmp_path, "--threshold", 0.02)
    assert code == 0, errors
    rows = json.loads((tmp_path / "predictions.json").read_text())
    assert [row["image"] for row in rows] == list(map(str, images))
    for row, image in zip(rows, images, strict=True):
        before, after = Image.open(image), Image.open(tmp_path / row["picture"])
        assert after.size == before.size == (row["width"], row["height"])
        assert row["objects"], "at this threshold even a hardly trained network finds something"
        assert np.abs(np.asarray(after.convert("RGB"), int) - np.asarray(before, int)).max() > 100  # drawn on
        for found in row["objects"]:
            assert found["class"] == CLASSES[found["label"]] and 0.02 <= found["score"] <= 1
            x1, y1, x2, y2 = found["box"]
            assert 0 <= x1 <= x2 <= 128 and 0 <= y1 <= y2 <= 96
            mask = decode({"size": found["mask"]["size"], "counts": found["mask"]["counts"].encode()})
            assert mask.shape == (96, 128)
            y, x = np.nonzero(mask)  # masks are pasted into their boxes
            assert not len(x) or (x1 - 2 <= x.min() and x.max() <= x2 + 2 and y1 - 2 <= y.min() and y.max() <= y2 + 2)


def test_images_of_all_kinds(detector: Trained, tmp_path: Path) -> None:
    """The picture is the image as it is looked at: three channels, eight bits, upright."""
    image = Image.open(sorted((detector.data / "val2017").iterdir())[0])
    for mode in ("L", "LA", "RGBA", "P", "1", "I;16"):
        image.convert("L" if mode == "I;16" else mode).convert(mode).save(tmp_path / f"{mode.replace(';', '')}.png")
    image.convert("CMYK").save(tmp_path / "cmyk.jpg")
    exif = Image.Exif()
    exif[0x0112] = 6  # orientation: the camera was held on its side
    image.save(tmp_path / "turned.jpg", exif=exif, quality=100)
    image.save(tmp_path / "turned.png", exif=exif)
    images = sorted(tmp_path.iterdir())
    # The folder of the run does for that of the model in it.
    code, _, errors = s3zoo("predict_mm", detector.run, *images, "--out", tmp_path / "out", "--threshold", 1)
    assert code == 0, errors
    rows = json.loads((tmp_path / "out" / "predictions.json").read_text())
    assert len(rows) == len(images) == 9 and len({row["picture"] for row in rows}) == 9
    for path, row in zip(images, rows, strict=True):
        turned = path.stem == "turned"
        assert (row["width"], row["height"]) == ((96, 128) if turned else (128, 96))
        drawn = Image.open(tmp_path / "out" / row["picture"]).convert("RGB")
        plain = image.transpose(Image.Transpose.ROTATE_270) if turned else image
        if path.stem in ("turned", "RGBA"):
            assert np.abs(coarse(drawn) - coarse(plain)).mean() < 6
        elif path.stem in ("L", "LA"):
            assert np.abs(coarse(drawn) - coarse(plain.convert("L").convert("RGB"))).mean() < 6


def coarse(image: Image.Image) -> np.ndarray:
    """In parts of 8 x 8 pixels: matplotlib 3.8 moves what it draws by about one."""
    return np.asarray(image.reduce(8), int)


def test_resuming(detector: Trained, tmp_path: Path) -> None:
    """Goes on behind the last iteration; the config that a checkpoint holds as Python text is not run."""
    run = shutil.copytree(detector.run, tmp_path / "run")
    path = run / "epoch_6.pth"
    from s3zoo.transfer.mm.checkpoints import read

    checkpoint = read(path)
    checkpoint["meta"]["config"] = f"open({str(tmp_path / 'was_here')!r}, 'w')"
    torch.save(checkpoint, path)
    (run / "last_checkpoint").write_text(str(path))
    arguments = [detector.config, "--data", detector.data, "--classes", ",".join(CLASSES), "--work-dir", run]
    code, _, errors = s3zoo("train_mm", *arguments)
    assert code == 2 and "--resume" in errors
    options = ["--resume", "--cfg-options", "train_cfg.max_epochs=7", "train_cfg.val_interval=9"]
    options += ["load_from=gone.pth", "model.backbone.pretrained=gone"]  # what the run began with is not needed again
    code, said, errors = s3zoo("train_mm", *arguments, *options)
    assert code == 0, errors
    assert "resumed epoch: 6, iter: 12" in said
    assert [row["step"] for row in scalars(run) if "loss" in row] == [13, 14]
    assert not (tmp_path / "was_here").exists()
    losses = [[row["loss"] for row in scalars(folder) if "loss" in row] for folder in (detector.run, run)]
    assert np.mean(losses[1]) < np.mean(losses[0][:3])  # the weights came along
    other = [*arguments[:3], "--classes", "disc", "--work-dir", run, "--resume"]
    code, _, errors = s3zoo("train_mm", *other)
    assert code == 2 and "does not fit the model" in errors and errors.count("\n") == 1


# Segmentation


def test_a_segmenter_learns(segmenter: Trained) -> None:
    rows = scalars(segmenter.run)
    losses = [row["loss"] for row in rows if "loss" in row]
    assert len(losses) == 20 and np.mean(losses[-3:]) < 0.9 * np.mean(losses[:3])
    (metrics,) = [row for row in rows if "mIoU" in row]
    assert 0 < metrics["mIoU"] <= 100


def test_segments_and_their_metric(segmenter: Trained, tmp_path: Path) -> None:
    """mIoU of the written label maps, by its formula, is what the metric says; pixels with label 0 are not judged."""
    images = sorted((segmenter.data / "images" / "validation").iterdir())
    Image.new("RGB", (1, 1)).save(tmp_path / "pixel ü.png")
    words = [*images, tmp_path / "pixel ü.png", "--out", tmp_path / "pictures"]
    code, _, errors = s3zoo("predict_mm", segmenter.model, *words)
    assert code == 0, errors
    both, either = np.zeros(3), np.zeros(3)
    *rows, pixel = json.loads((tmp_path / "pictures" / "predictions.json").read_text())
    assert (pixel["width"], pixel["height"], len(pixel["segments"])) == (1, 1, 1)
    for row, image in zip(rows, images, strict=True):
        labels = np.asarray(Image.open(tmp_path / "pictures" / row["labels"]))
        truth = np.asarray(Image.open(segmenter.data / "annotations" / "validation" / f"{image.stem}.png"))
        assert labels.shape == truth.shape == (96, 128)
        assert Image.open(tmp_path / "pictures" / row["picture"]).size == (128, 96)
        assert sum(part["share"] for part in row["segments"]) == pytest.approx(1, abs=1e-3)
        for part in row["segments"]:
            assert part["class"] == SEGMENTS[part["label"] - 1]  # the masks have 0 for what is not judged
            assert part["share"] == pytest.approx((labels == part["label"]).mean(), abs=1e-4)
        for k in range(3):
            ours, theirs = (labels == k + 1) & (truth > 0), truth == k + 1
            both[k] += (ours & theirs).sum()
            either[k] += (ours | theirs).sum()
    code, said, errors = s3zoo("test_mm", segmenter.model, "--data", segmenter.data, "--work-dir", tmp_path / "test")
    assert code == 0, errors
    metrics = json.loads((tmp_path / "test" / "metrics.json").read_text())
    assert metrics["mIoU"] == pytest.approx(100 * (both / either).mean(), abs=0.006)  # rounded to two digits


def test_several_scales_and_flips(segmenter: Trained, tmp_path: Path) -> None:
    """Sees each image four times: another result than at one scale, and not a random one."""
    results = []
    for tta in ([], ["--tta"]):
        folder = tmp_path / f"test{len(tta)}"
        code, _, errors = s3zoo("test_mm", segmenter.model, "--data", segmenter.data, "--work-dir", folder, *tta)
        assert code == 0, errors
        results.append(json.loads((folder / "metrics.json").read_text())["mIoU"])
    assert results[0] != results[1] and results[1] > 0.5 * results[0]


# Other doors


@pytest.mark.parametrize("kind", ["detector", "segmenter"])
def test_inferencers_know_the_classes(kind: str, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    """mmdet's and mmseg's own inferencers, from the two files alone, show the classes that were trained."""
    from mmdet.apis import DetInferencer
    from mmseg.apis import MMSegInferencer

    trained: Trained = request.getfixturevalue(kind)
    for name in ("config.py", "model.safetensors"):
        shutil.copy(trained.model / name, tmp_path)
    open_one, names = (DetInferencer, CLASSES) if kind == "detector" else (MMSegInferencer, SEGMENTS)
    found = open_one(str(tmp_path / "config.py"), str(tmp_path / "model.safetensors"), device="cpu")
    assert tuple(found.model.dataset_meta["classes"]) == tuple(found.visualizer.dataset_meta["classes"]) == names
    assert len(found.visualizer.dataset_meta["palette"]) == len(names)
    images = sorted(trained.data.rglob("*/val*/*.[jp][pn]g") if kind == "segmenter" else trained.data.glob("val2017/*"))
    result = found(str(images[0]), return_datasamples=True, **({} if kind == "detector" else {"out_dir": ""}))
    sample = result["predictions"][0] if kind == "detector" else result
    predicted = sample.pred_instances.labels if kind == "detector" else sample.pred_sem_seg.data
    assert predicted.numel() and int(predicted.max()) < len(names)


@pytest.mark.parametrize("kind", ["detector", "segmenter"])
def test_publishing(kind: str, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    """The repository is the folder with a card; it opens as the folder does, and shows what it finds on an image."""
    from huggingface_hub import ModelCard

    trained: Trained = request.getfixturevalue(kind)
    tag = "object-detection" if kind == "detector" else "image-segmentation"
    image = next(trained.data.rglob("*.png" if kind == "segmenter" else "*.jpg"))
    words = [trained.run, "--out", tmp_path / "out", "--title", "Shapes", "--license", "mit", "--sample", image]
    code, said, errors = s3zoo("publish", *words)
    assert code == 0 and f"s3zoo predict_mm {tmp_path / 'out'}" in said, errors
    card = ModelCard.load(tmp_path / "out" / "README.md")
    assert card.data.license == "mit" and card.data.pipeline_tag == tag
    names = CLASSES if kind == "detector" else SEGMENTS
    assert "# Shapes" in card.text and ", ".join(names) in card.text and "](sample.png)" in card.text
    assert ("coco/bbox_mAP" if kind == "detector" else "mIoU") in card.text
    assert Image.open(tmp_path / "out/sample.png").size == (128, 96)
    from s3zoo.transfer.mm.folder import load_detector

    ours, theirs = load_detector(trained.model), load_detector(tmp_path / "out")
    assert all(torch.equal(theirs.state_dict[name], value) for name, value in ours.state_dict.items())
    code, _, errors = s3zoo("publish", trained.run, "--dry-run", "--question", "why?")
    assert code == 2 and "--question belongs to" in errors


@pytest.mark.parametrize("name", ["try_detection", "try_segmentation"])
def test_drawn_shapes_are_learned_from_another_network(name: str, tmp_path: Path) -> None:
    """`s3zoo train_mm try_…` draws its data; a network of one's own brings weights, channels and strides."""
    import timm

    from s3zoo.artefact import save_model
    from s3zoo.transfer.mm.folder import load_detector

    block = dict(window_size=4, num_heads=1, head_dim=8, mlp_ratio=1.0)
    stages = [dict(embed_dim=dim, blocks=[block]) for dim in (16, 24, 40)]
    arch = dict(schema_version=1, family="s3", stages=stages, patch_size=2)
    torch.manual_seed(1)
    network = timm.create_model("s3", arch=arch, img_size=32, num_classes=3)
    save_model(tmp_path / "mine" / "model", network)
    steps = ["train_cfg.max_epochs=1"] if "detection" in name else ["train_cfg.max_iters=2", "train_cfg.val_interval=2"]
    steps += ["drawn_shapes.train=4", "drawn_shapes.val=2", "optim_wrapper.optimizer.lr=0"]
    words = ["--backbone", tmp_path / "mine", "--work-dir", tmp_path / "run", "--cfg-options", *steps]
    code, said, errors = s3zoo("train_mm", name, *words)
    assert code == 0, errors
    exported = load_detector(tmp_path / "run" / "model")
    backbone = exported.state_dict["backbone.model.patch_embed.proj.weight"]
    assert torch.equal(backbone, network.patch_embed.proj.weight)  # brought along, and not moved at this rate
    model = exported.cfg.model
    if "detection" in name:
        assert model.neck.in_channels == [16, 24, 40]
        assert model.rpn_head.anchor_generator.strides == [2, 4, 8, 16, 32]
        assert model.roi_head.bbox_roi_extractor.featmap_strides == [2, 4, 8, 16]
        val = json.loads((tmp_path / "run/shapes/annotations/instances_val2017.json").read_text())
        assert len(val["images"]) == 2 and len(list((tmp_path / "run/shapes/train2017").iterdir())) == 4
        assert exported.dataset_meta["classes"] == CLASSES
    else:
        assert model.decode_head.in_channels == [16, 24, 40] and model.auxiliary_head.in_channels == 40
        assert exported.dataset_meta["classes"] == SEGMENTS


def test_no_network_is_said_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The Hub's client would ask six times, with half a minute of pauses."""
    import time

    from s3zoo.transfer.mm import S3ZooBackbone

    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", "http://127.0.0.1:9")
    for network in ("s3_tiny", "resnet18", "swin_tiny_patch4_window7_224"):
        backbone = S3ZooBackbone(model=network, pretrained=True)
        start = time.monotonic()
        with pytest.raises((ValueError, FileNotFoundError), match="is not in the cache and could not be fetched"):
            backbone.init_weights()
        assert time.monotonic() - start < 5


# Mistakes


def test_a_wrong_folder_is_answered_with_what_is_read_there(tmp_path: Path) -> None:
    name = COCO
    (tmp_path / "mine" / "val2017").mkdir(parents=True)
    (tmp_path / "mine" / "val2017" / "1.jpg").touch()
    code, said, errors = s3zoo("train_mm", name, "--data", tmp_path / "mine", "--work-dir", tmp_path / "run")
    assert code == 2 and not said and not (tmp_path / "run").exists()
    assert errors.startswith("s3zoo: ") and "--data" in errors and errors.count("\n") == 1
    annotations = [f"annotations/instances_{split}2017.json" for split in ("train", "val")]
    for name in (*annotations, "train2017/", "val2017/"):
        assert f" {tmp_path}/mine/{name}" in errors
    code, _, errors = s3zoo("test_mm", "upernet_s3-tiny_160k_ade20k-512x512", __file__, "--data", tmp_path / "mine")
    assert code == 2 and "checkpoint" in errors  # this file is none, which is said first
    code, _, errors = s3zoo("train_mm", "upernet_s3-tiny_160k_ade20k-512x512", "--data", tmp_path / "mine")
    assert code == 2 and f" {tmp_path}/mine/annotations/training/" in errors and errors.count("\n") == 1


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["train_mm", "cascade-mask-rcnn_s3-tini_fpn_1x_coco"], "did you mean 'cascade-mask-rcnn_s3-tiny_fpn_1x_coco'"),
        (["train_mm", "upernet_s3-base"], "did you mean 'upernet_s3-base_160k_ade20k-512x512'\\?$"),  # part of a name
        (["train_mm", "glit"], r"did you mean '\S+glit\S+' or '\S+glit\S+'\?$"),
        (["train_mm", "nowhere"], "one of the [0-9]+ names in configs/detection and configs/segmentation, such as '"),
        (["train_mm", "nowhere/x.py"], "no config file at 'nowhere/x.py'"),
        (["train_mm", "here/upernet_s3-tiny.py"], "did you mean 'upernet_s3-tiny_160k_ade20k-512x512'"),
        (["train_mm", "SHAPES", "--data", "DATA", "--classes", "disc,box", "--work-dir", "SHAPES"], "which is a file"),
        (["train_mm", "SHAPES", "--cfg-options", "modle.backbone.model=s3_small"], "did you mean 'model'"),
        (["train_mm", "SHAPES", "--cfg-options", "model.backbon.model=s3_small"], "did you mean 'model.backbone'"),
        (["train_mm", COCO, "--data", "DATA"], "80 classes such as 'person', .* --classes disc,box"),
        (["train_mm", "SHAPES", "--data", "DATA", "--classes", "disc,disc"], "different names"),
        (["train_mm", "SHAPES", "--data", "DATA", "--classes", "disc", "--amp", "--work-dir", "NEW"], "needs a GPU"),
        (["train_mm", "try_detection", "--work-dir", "NEW", "--cfg-options", "load_from=gone.pth"], "no such file"),
        (["test_mm", "SHAPES"], "give a config and its checkpoint"),
        (["test_mm", "SHAPES", "nowhere.pth"], "nowhere.pth"),
        (["test_mm", "FOLDER", "--tta", "--data", "DATA"], "tta_model"),
        (["predict_mm", "FOLDER", "--out", "NEW"], "No image"),
        (["predict_mm", "FOLDER", "nowhere.jpg", "--out", "NEW"], "no image at 'nowhere.jpg'"),
        (["predict_mm", "FOLDER", "SHAPES", "--out", "NEW"], "cannot be read as an image"),
        (["predict_mm", "FOLDER", "EMPTY", "--out", "NEW"], "cannot be read as an image"),
        (["predict_mm", "FOLDER", "SHAPES", "--out", "SHAPES"], "--out is '.*', which is a file"),
        (["predict_mm", "FOLDER", "SHAPES", "--out", "NEW", "--threshold", "30"], "from 0 to 1"),
        (["predict_mm", "FOLDER", "SHAPES", "--out", "NEW", "--device", "tpu"], "must be 'auto', 'cpu' or 'cuda'"),
        (
            ["predict_mm", "SHAPES", "CHECKPOINT", "SHAPES", "--out", "NEW", "--classes", "a"],
            "the classes it was trained with",
        ),
    ],
)
def test_mistakes(words: list[str], complaint: str, detector: Trained, tmp_path: Path) -> None:
    places = {"SHAPES": detector.config, "DATA": detector.data, "FOLDER": detector.model, "NEW": tmp_path / "new"}
    places |= {"EMPTY": tmp_path / "empty.jpg", "CHECKPOINT": detector.run / "epoch_6.pth"}
    places["EMPTY"].touch()
    code, _, errors = s3zoo(*(places.get(word, word) for word in words))
    assert code == 2 and not places["NEW"].exists()
    assert re.search(complaint, errors) and len(errors.strip().splitlines()) == 1


# Slow


def torchrun(tool: str, *words: object, cwd: Path) -> str:
    """Two processes without GPUs."""
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    env = {**os.environ, "OMP_NUM_THREADS": "1"}
    command += [str(ROOT / "tools" / tool), *map(str, words)]
    done = subprocess.run(command, cwd=cwd, env=env, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout


@pytest.mark.slow
def test_two_processes(tmp_path: Path) -> None:
    """The batch is shared, and the exported model is written once."""
    data, config = write_coco(tmp_path / "coco"), write_config(tmp_path / "shapes.py", DETECTOR, epochs=2)
    said = torchrun("train_mm.py", config, "--data", data, "--classes", "disc,box", "--work-dir", "run", cwd=tmp_path)
    losses = [row["loss"] for row in scalars(tmp_path / "run") if "loss" in row]
    assert len(losses) == 2  # four images, two at a time in each process: one iteration per epoch
    assert said.count("The model is in") == 1


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["detector", "segmenter"])
def test_two_processes_measure_what_one_does(kind: str, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    """Five images for two processes: one of them gets an image again, which must not count twice."""
    trained: Trained = request.getfixturevalue(kind)
    if kind == "detector":
        data, classes, checkpoint = write_coco(tmp_path / "five", images=5, seed=1), CLASSES, "epoch_6.pth"
    else:
        data, classes, checkpoint = write_ade(tmp_path / "five", 5, seed=1, suffix=".png"), SEGMENTS, "iter_20.pth"
    arguments = [trained.config, trained.run / checkpoint, "--data", data, "--classes", ",".join(classes)]
    code, said, errors = s3zoo("test_mm", *arguments, "--work-dir", tmp_path / "one")
    assert code == 0, errors
    twice = torchrun("test_mm.py", *arguments, "--work-dir", tmp_path / "two", cwd=tmp_path)
    one, two = (json.loads((tmp_path / run / "metrics.json").read_text()) for run in ("one", "two"))
    assert one == two and len(one) >= 3 and max(one.values()) > 0
    for name in one:  # a table, once
        assert said.count(f"{name:<20} ") == twice.count(f"{name:<20} ") == 1


@pytest.mark.slow
def test_overfitting_boxes_and_masks(tmp_path: Path) -> None:
    data, config = write_coco(tmp_path / "coco"), write_config(tmp_path / "shapes.py", DETECTOR, epochs=150)
    arguments = ["--data", data, "--classes", ",".join(CLASSES), "--work-dir", tmp_path / "run"]
    code, _, errors = s3zoo("train_mm", config, *arguments)
    assert code == 0, errors
    (metrics,) = [row for row in scalars(tmp_path / "run") if "coco/bbox_mAP" in row]
    print({name: value for name, value in metrics.items() if name.endswith(("mAP", "mAP_50"))})
    assert metrics["coco/bbox_mAP_50"] >= 0.5 and metrics["coco/segm_mAP_50"] >= 0.5


@pytest.mark.slow
def test_overfitting_segments(tmp_path: Path) -> None:
    data, config = write_ade(tmp_path / "ade"), write_config(tmp_path / "segments.py", SEGMENTER, iterations=300)
    arguments = ["--data", data, "--classes", ",".join(SEGMENTS), "--work-dir", tmp_path / "run"]
    code, _, errors = s3zoo("train_mm", config, *arguments)
    assert code == 0, errors
    (metrics,) = [row for row in scalars(tmp_path / "run") if "mIoU" in row]
    print(metrics)
    assert metrics["mIoU"] >= 50


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_one_real_step(tmp_path: Path) -> None:
    """S3-T Cascade Mask R-CNN as shipped (two images at 480 to 800 pixels, 512 regions each), from random weights."""
    import resource
    import time

    data = write_coco(tmp_path / "coco", images=2)
    options = ["model.backbone.pretrained=None", "train_cfg.max_epochs=1", "train_cfg.val_interval=2"]
    options += ["train_dataloader.num_workers=0", "train_dataloader.persistent_workers=False"]
    options += ["default_hooks.logger.interval=1", "train_dataloader.dataset.filter_cfg.min_size=8"]
    name = "cascade-mask-rcnn_s3-tiny_fpn_1x_coco"
    arguments = ["--data", data, "--classes", "disc,box", "--work-dir", tmp_path / "run", "--cfg-options", *options]
    start = time.perf_counter()
    code, said, errors = s3zoo("train_mm", name, *arguments)
    assert code == 0, errors
    (row,) = [row for row in scalars(tmp_path / "run") if "loss" in row]
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    print(f"{row['time']:.0f} s for the step of {time.perf_counter() - start:.0f} s, {peak:.1f} GB, loss {row['loss']}")
    # 85.67M with 80 classes; 78 fewer are 78 x (5 x 1025 + 257) in each of three box and mask heads
    assert said.startswith("CascadeRCNN, 84.4M") and np.isfinite(row["loss"]) and row["loss"] > 0
