"""Every shipped config of mmdet and mmseg: it builds, its parts fit, its recipe is Swin's, its header is true."""

import re
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("mmdet")
pytest.importorskip("mmseg")

import mmdet  # noqa: E402
import mmseg  # noqa: E402
from mmengine.config import Config  # noqa: E402
from mmengine.optim import build_optim_wrapper  # noqa: E402
from mmengine.registry import MODELS  # noqa: E402

from s3zoo.paths import configs_dir  # noqa: E402
from s3zoo.transfer.mm.config import load_mm_config, register, set_classes, without_pretrained  # noqa: E402
from s3zoo.transfer.mm.flops import parts  # noqa: E402

UPSTREAM = {"mmdet": Path(mmdet.__path__[0]), "mmseg": Path(mmseg.__path__[0])}
KINDS = ("detection", "segmentation")
NAMES = {kind: sorted(path.stem for path in (configs_dir() / kind).glob("*.py")) for kind in KINDS}
ALL = NAMES["detection"] + NAMES["segmentation"]
DISTINCT = [name for name in ALL if "ms-3x" not in name]  # 12 and 36 epochs have the same model

# The paper's Tables 2 and 3: parameters (M), FLOPs (G), box and mask AP after 12 and 36 epochs; mIoU, ms + flip
TABLE_2 = {
    "s3-tiny": (86, 748, (48.4, 42.0), (50.5, 43.8)),
    "s3-small": (107, 855, (50.8, 43.9), (52.6, 45.5)),
    "s3-base": (128, 947, (50.8, 43.7), (52.5, 45.4)),
    "swin-tiny": (86, 745, (48.1, 41.7), (50.4, 43.7)),
    "swin-small": (107, 838, (50.3, 43.4), (51.8, 44.7)),
    "swin-base": (145, 982, (50.5, 43.5), (51.9, 45.0)),
    "resnet-50": (82, 739, (41.2, 35.9), (46.3, 40.1)),
}
TABLE_3 = {
    "s3-tiny": (60, 954, "44.87", "46.27"),
    "s3-small": (81, 1071, "48.04", "49.31"),
    "swin-tiny": (60, 945, "44.51", "45.81"),
    "swin-small": (81, 1038, "47.60", "48.87"),
    "resnet-50": (67, 951, "42.05", "42.78"),
    "deit-small": (52, 1099, "43.15", "43.85"),
}


def test_what_is_shipped() -> None:
    families = ["autoformer-small", "glit-small", "shunted-small"]
    detectors = {f"cascade-mask-rcnn_{key}_fpn_{schedule}_coco" for key in TABLE_2 for schedule in ("1x", "ms-3x")}
    detectors |= {f"cascade-mask-rcnn_{key}_fpn_1x_coco" for key in families}
    segmenters = {f"upernet_{key}_160k_ade20k-512x512" for key in [*TABLE_3, *families, "s3-base", "swin-base"]}
    assert set(NAMES["detection"]) == detectors and set(NAMES["segmentation"]) == segmenters


@cache
def built(name: str) -> Any:
    """On the meta device: neither memory nor random numbers nor weights to fetch."""
    cfg = load_mm_config(name)
    register(cfg)
    with torch.device("meta"):
        return MODELS.build(cfg.model)


@pytest.mark.parametrize("name", DISTINCT)
def test_a_config_builds_and_has_the_papers_size(name: str) -> None:
    found = parts(built(name))
    params, macs = sum(part.params for part in found), sum(part.macs for part in found)
    header = " ".join((configs_dir() / kind_of(name) / f"{name}.py").read_text().split('"""')[1].split())
    assert f"{params / 1e6:.1f}M parameters, {macs / 1e9:.1f}G multiply-accumulates" in header
    table: dict[str, Any] = TABLE_2 if kind_of(name) == "detection" else TABLE_3
    key = name.split("_")[1]
    if key in table and key != "deit-small":  # which has a pyramid here, and in the paper none
        assert abs(params / 1e6 - table[key][0]) <= 0.51  # rounded as the paper does
        assert macs / 1e9 == pytest.approx(table[key][1], rel=0.005)  # asked for: 2 %


@pytest.mark.parametrize("name", DISTINCT)
def test_the_parts_of_a_config_fit(name: str) -> None:
    model, cfg = built(name), load_mm_config(name)
    assert model.backbone.strides == (4, 8, 16, 32)
    channels = list(model.backbone.out_channels)
    if "neck" in cfg.model:
        assert cfg.model.neck.in_channels == channels
    else:
        assert cfg.model.decode_head.in_channels == channels
        assert cfg.model.auxiliary_head.in_channels == channels[2]
        assert model.decode_head.num_classes == model.auxiliary_head.num_classes == 150
    published = "glit" not in name and "shunted" not in name
    assert cfg.model.backbone.pretrained is (True if published else None)


def kind_of(name: str) -> str:
    return "detection" if name in NAMES["detection"] else "segmentation"


@pytest.mark.parametrize("name", DISTINCT)
def test_what_decays(name: str) -> None:
    """All weights of convolutions and linear layers; in the backbone no norm and no table or embedding of positions."""
    model, cfg = built(name), load_mm_config(name)
    decay = 0.05 if name in NAMES["detection"] else 0.01
    groups = build_optim_wrapper(model, cfg.optim_wrapper).optimizer.param_groups
    decays = {id(parameter): group["weight_decay"] for group in groups for parameter in group["params"]}
    norms = (torch.nn.LayerNorm, torch.nn.modules.batchnorm._BatchNorm)
    exempt = {f"{n}.{p}" for n, m in model.backbone.named_modules() if isinstance(m, norms) for p in ("weight", "bias")}
    wrong = []
    for key, parameter in model.named_parameters():
        inner = key.removeprefix("backbone.")
        position = re.search(r"relative_position_bias_table$|\.rel_[kv]_\w+$|pos_embed$|cls_token$", inner)
        free = key.startswith("backbone.") and (inner in exempt or position)
        if not parameter.requires_grad:
            continue
        if decays[id(parameter)] != (0.0 if free else decay):
            wrong.append((key, decays[id(parameter)]))
    assert not wrong and exempt


@pytest.mark.parametrize("name", ALL)
def test_the_header(name: str) -> None:
    text = (configs_dir() / kind_of(name) / f"{name}.py").read_text().split('"""')[1]
    header = " ".join(text.split())
    assert f"tools/train_mm.py {name} --data /path/to/" in header and "Cost:" in header and "not run here" in header
    key = name.split("_")[1]
    if kind_of(name) == "detection":
        epochs = 12 if "_1x_" in name else 36
        assert f"{epochs} epochs of 7,330 iterations" in header
        paper = TABLE_2.get(key)
        if paper:
            params, flops, *ap = paper
            box, mask = ap[epochs == 36]
            expected = f"{box} box AP and {mask} mask AP with {params}M parameters and {flops}G FLOPs"
            assert f"{expected} (the paper's figures, its Table 2" in header
    else:
        paper = TABLE_3.get(key)
        if paper:
            params, flops, single, multi = paper
            assert f"{single} mIoU, and {multi} at several scales and flipped, with {params}M parameters" in header
            assert f"and {flops}G FLOPs (the paper's figures, its Table 3" in header
    assert bool(paper) != ("no figure in" in header.split("Size:")[0])


def test_pretrained_is_taken_out_where_it_is() -> None:
    cfg = Config(dict(model=dict(backbone=dict(type="CSPDarknet", init_cfg=dict(type="Pretrained", checkpoint="x")))))
    without_pretrained(cfg)
    assert cfg.model.backbone == dict(type="CSPDarknet", init_cfg=None)  # which does not take `pretrained`


def test_one_class_is_for_detectors() -> None:
    """Pixels with label 0 are not judged: a segmenter of one class would be right everywhere."""
    cfg = load_mm_config("upernet_s3-tiny_160k_ade20k-512x512")
    with pytest.raises(ValueError, match="--classes is 'roof' alone"):
        set_classes(cfg, ["roof"])
    set_classes(cfg, ["ground", "roof"])
    assert cfg.model.decode_head.num_classes == 2
    cfg = load_mm_config("cascade-mask-rcnn_s3-tiny_fpn_1x_coco")
    set_classes(cfg, ["roof"])
    assert {head.num_classes for head in cfg.model.roi_head.bbox_head} == {1}


# The recipe


def upstream(package: str, name: str) -> Config:
    return Config.fromfile(UPSTREAM[package] / ".mim" / "configs" / name, import_custom_modules=False)


@pytest.mark.parametrize("name", NAMES["detection"])
def test_the_recipe_of_detectors(name: str) -> None:
    """Swin's, of which mmdet ships pipeline and optimizer with Mask R-CNN, and the heads with ConvNeXt."""
    cfg = load_mm_config(name)
    swin = upstream("mmdet", "swin/mask-rcnn_swin-t-p4-w7_fpn_ms-crop-3x_coco.py")
    heads = upstream("mmdet", "convnext/cascade-mask-rcnn_convnext-t-p4-w7_fpn_4conv1fc-giou_amp-ms-crop-3x_coco.py")
    assert cfg.train_dataloader.dataset.pipeline == swin.train_dataloader.dataset.pipeline
    assert cfg.val_dataloader == swin.val_dataloader and cfg.val_evaluator.metric == ["bbox", "segm"]
    assert cfg.optim_wrapper.optimizer == swin.optim_wrapper.optimizer
    assert cfg.optim_wrapper.optimizer == dict(type="AdamW", lr=1e-4, betas=(0.9, 0.999), weight_decay=0.05)
    assert cfg.model.roi_head == heads.model.roi_head and cfg.model.train_cfg == heads.model.train_cfg
    assert cfg.train_dataloader.batch_size * 8 == cfg.auto_scale_lr.base_batch_size == 16
    family, _, size = name.split("_")[1].partition("-")
    if family in ("s3", "swin"):
        expected = {"tiny": 0.0 if "_1x_" in name else 0.2, "small": 0.2, "base": 0.3}  # Swin-T's 1x config: 0.0
        assert cfg.model.backbone.drop_path_rate == expected[size]
    epochs, milestones = (12, [8, 11]) if "_1x_" in name else (36, [27, 33])
    warmup, steps = cfg.param_scheduler
    assert cfg.train_cfg.max_epochs == steps.end == epochs and steps.milestones == milestones and steps.gamma == 0.1
    assert warmup.end == 1000 and not warmup.by_epoch and steps.by_epoch
    if "ms-3x" in name:
        shorter = load_mm_config(name.replace("ms-3x", "1x")).model
        if family in ("s3", "swin"):
            shorter.backbone.drop_path_rate = cfg.model.backbone.drop_path_rate
        assert cfg.model == shorter


@pytest.mark.parametrize("name", NAMES["segmentation"])
def test_the_recipe_of_segmenters(name: str) -> None:
    cfg = load_mm_config(name)
    swin = upstream("mmseg", "swin/swin-tiny-patch4-window7-in1k-pre_upernet_8xb2-160k_ade20k-512x512.py")
    for key in ("train_dataloader", "val_dataloader", "param_scheduler", "train_cfg", "tta_model", "test_evaluator"):
        assert cfg[key] == swin[key]
    assert cfg.optim_wrapper.optimizer == swin.optim_wrapper.optimizer
    assert cfg.optim_wrapper.optimizer == dict(type="AdamW", lr=6e-5, betas=(0.9, 0.999), weight_decay=0.01)
    warmup, poly = cfg.param_scheduler
    assert warmup.end == poly.begin == 1500 and poly.end == cfg.train_cfg.max_iters == 160_000 and poly.power == 1
    assert cfg.train_dataloader.batch_size * 8 == cfg.auto_scale_lr.base_batch_size == 16
    assert cfg.model.data_preprocessor.size == (512, 512)
    for head in ("decode_head", "auxiliary_head"):
        assert {**swin.model[head], "in_channels": cfg.model[head].in_channels} == cfg.model[head]
    scales, flips, *_ = cfg.tta_pipeline[1].transforms
    assert [step.scale[1] / 512 for step in scales] == [0.5, 0.75, 1.0, 1.25, 1.5, 1.75]
    assert all(step.scale[0] == 4 * step.scale[1] for step in scales) and [flip.prob for flip in flips] == [0, 1]
