"""Folders of detectors and segmenters: written, read back, and never a way to run something."""

import copy
import functools
import hashlib
import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

pytest.importorskip("mmengine")

from mmengine.config import Config  # noqa: E402
from mmengine.registry import MODELS, TASK_UTILS, TRANSFORMS  # noqa: E402
from PIL import Image  # noqa: E402

import s3zoo.transfer.mm  # noqa: E402, F401
from s3zoo import cli  # noqa: E402
from s3zoo.transfer.mm.config import register  # noqa: E402
from s3zoo.transfer.mm.folder import PARTS, STEPS, export_detector, load_detector  # noqa: E402

pytestmark = pytest.mark.usefixtures("one_thread")

ARCH = dict(
    schema_version=1,
    family="s3",
    stages=[dict(embed_dim=8, blocks=[dict(window_size=4, num_heads=1, head_dim=8, mlp_ratio=1.0)])] * 2,
)
CFG: dict[str, Any] = dict(
    default_scope="mmseg",
    custom_imports=dict(imports=["s3zoo.transfer.mm"], allow_failed_imports=False),
    model=dict(
        type="EncoderDecoder",
        data_preprocessor=dict(type="SegDataPreProcessor", size=(32, 32), mean=[0.0] * 3, std=[1.0] * 3),
        backbone=dict(type="S3ZooBackbone", model="s3", model_args=dict(arch=ARCH), pretrained=None),
        decode_head=dict(
            type="FCNHead",
            in_channels=8,
            in_index=1,
            channels=4,
            num_convs=1,
            num_classes=2,
            norm_cfg=dict(type="BN"),
            loss_decode=dict(type="CrossEntropyLoss", loss_weight=1.0),
        ),
        test_cfg=dict(mode="whole"),
    ),
    test_dataloader=dict(
        num_workers=0,
        dataset=dict(
            type="BaseSegDataset",
            data_root="",
            data_prefix=dict(img_path="images/validation", seg_map_path="annotations/validation"),
            pipeline=[dict(type="LoadImageFromFile"), dict(type="PackSegInputs")],
        ),
    ),
    optim_wrapper=dict(paramwise_cfg=dict(custom_keys={"norm": dict(decay_mult=0.0), "a.b": dict(decay_mult=0.0)})),
    note="it's \"quoted\" \\ and\nbroken",
)
META = dict(classes=("disc", "square"), palette=[(0, 0, 0), np.array([1, 2, 3])])


@functools.cache
def weights() -> dict[str, torch.Tensor]:
    register(Config(CFG))
    return MODELS.build(Config(CFG).model).state_dict()


def changed(path: str, value: Any) -> dict[str, Any]:
    """The config with one value set; `None` as the value removes."""
    cfg = copy.deepcopy(CFG)
    *above, last = path.split("/")
    node: Any = cfg
    for name in above:
        node = node[int(name)] if isinstance(node, list) else node.setdefault(name, {})
    if isinstance(node, list):
        node[int(last)] = value
    else:
        node[last] = value
    return cfg


def write_config(folder: Path, cfg: dict[str, Any]) -> None:
    """Another config, and its sha256, as whoever means harm would write it too."""
    (folder / "config.py").write_text("".join(f"{key} = {value!r}\n" for key, value in cfg.items()))
    content = json.loads((folder / "config.json").read_text()) | {"config": cfg}
    content["s3zoo"]["sha256"]["config.py"] = hashlib.sha256((folder / "config.py").read_bytes()).hexdigest()
    (folder / "config.json").write_text(json.dumps(content, default=str))


def test_export_and_back(tmp_path: Path) -> None:
    folder = export_detector(Config(CFG), weights(), tmp_path / "out", META, dict(source="a test"))
    assert sorted(path.name for path in folder.iterdir()) == ["config.json", "config.py", "model.safetensors"]
    assert {path.stat().st_mode & 0o777 for path in folder.iterdir()} == {0o666 & ~umask()}
    assert Config.fromfile(str(folder / "config.py")).to_dict() == CFG  # mmengine reads it, too
    back = load_detector(folder)
    size = back.cfg.model.data_preprocessor.size
    assert size == (32, 32) and isinstance(size, tuple)
    assert back.cfg.test_dataloader.dataset.pipeline == CFG["test_dataloader"]["dataset"]["pipeline"]
    assert "optim_wrapper" not in back.cfg and "custom_imports" not in back.cfg and "note" not in back.cfg
    assert all(torch.equal(value, weights()[name]) for name, value in back.state_dict.items())
    assert back.dataset_meta == dict(classes=("disc", "square"), palette=[(0, 0, 0), (1, 2, 3)])
    content = json.loads((folder / "config.json").read_text())
    assert content["config"]["model"]["data_preprocessor"]["size"] == [32, 32]
    assert content["s3zoo"]["provenance"] == {"source": "a test"}
    assert content["s3zoo"]["params"] == sum(value.numel() for value in weights().values())
    export_detector(Config(changed("model/test_cfg/mode", "slide")), weights(), folder)  # replaces
    assert load_detector(folder).cfg.model.test_cfg.mode == "slide"


def umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


MARK = "MARK"  # stands for a file that must not come into being
POPEN = dict(type="subprocess.Popen", args=["touch", MARK])
EVAL = f"open('{MARK}', 'w')"
URL = "http://127.0.0.1:9/x.pkl"
HOSTILE = {
    "a program as backbone": ("model/backbone", POPEN),
    "a program as model": ("model", POPEN),
    "a call as preprocessor": ("model/data_preprocessor", dict(type="os.system", command=f"touch {MARK}")),
    "a builtin": ("model/decode_head", dict(type="builtins.eval", source=EVAL)),
    "a path into a package that is trusted": ("model/decode_head", dict(type="mmengine.utils.get_git_hash")),
    "a path into torch": ("model/neck", dict(type="torch.hub.load", repo_or_dir="a/b", model="c")),
    "deep in a list": ("model/auxiliary_head", [dict(type="FCNHead", deep=[[dict(deeper=(POPEN,))]])]),
    "beside a known word": ("model/test_cfg/rcnn", dict(nms=dict(type=EVAL, iou_threshold=0.5))),
    "a step of the pipeline": ("test_dataloader/dataset/pipeline/0", POPEN),
    "steps in a step": ("test_dataloader/dataset/pipeline/0", dict(type="Compose", transforms=[POPEN])),
    "test-time augmentation": ("tta_pipeline", [POPEN]),
    "a model around the model": ("tta_model", POPEN),
    "a scope that is imported": ("default_scope", "antigravity"),
    "a scope in a type": ("model/neck", dict(type="antigravity.FPN")),
    "no scope": ("default_scope", None),
    "text that is evaluated": ("model/motion", dict(type="CameraMotionCompensation", warp_mode=EVAL)),
    "a pickle as class weights": ("model/decode_head/loss_decode/class_weight", URL),
    "the same beside us": ("model/decode_head/loss_decode/class_weight", "weights.pkl"),
    "a pickle by a plain word": ("model/decode_head/loss_decode/class_weight", "pkl"),
    "images that are pickles": (
        "test_dataloader/dataset/pipeline/0", dict(type="LoadBiomedicalImageFromFile", decode_backend="pickle"),
    ),
    "a module as a way to resize": (
        "test_dataloader/dataset/pipeline/0", dict(type="Resize", scale=(4, 4), interpolation="antigravity"),
    ),
    "a step that makes steps": (
        "test_dataloader/dataset/pipeline/0", dict(type="RandomChoiceResize", scales=[4], resize_type="Resize"),
    ),
    "a module as padding": (
        "model/neck", dict(type="ConvModule", in_channels=8, out_channels=8, kernel_size=1, padding_mode="antigravity"),
    ),
    "a network that fetches its weights": ("model/backbone", dict(type="TIMMBackbone", model_name="resnet18")),
    "our backbone by another name": (
        "model/backbone",
        dict(type="mmengine.S3ZooBackbone", model="clip_ladder", model_args=dict(pretrained_tower="pkl")),
    ),
    "a config as teacher": ("model/teacher_config", "evil.py"),
    "a checkpoint by a plain word": ("model/teacher_ckpt", "evil"),
    "a language model of the Hub": ("model/language_model", dict(type="BertModel", name="evil")),
    "a network of the Hub": ("model/backbone/model", "hf-hub:evil/evil"),
    "a folder elsewhere": ("model/backbone/model", "/etc"),
    "an architecture from a file": ("model/backbone/model_args/arch", "/etc/passwd"),
    "a checkpoint among the arguments": ("model/backbone/model_args/checkpoint_path", "/etc/passwd"),
    "weights from an address": ("model/backbone/model_args/pretrained_cfg_overlay", dict(url=URL)),
    "data elsewhere": ("test_dataloader/dataset/data_prefix/img_path", "../../../etc"),
    "annotations elsewhere": ("test_dataloader/dataset/ann_file", "/etc/passwd"),
    "a type that is no text": ("model/neck", dict(type=7)),
    "a key that is code": ("model/neck", {"type": "FPN", EVAL: 1}),
}  # fmt: skip


@pytest.mark.parametrize("case", HOSTILE)
def test_a_folder_runs_nothing(case: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    mark, image = tmp_path / "mark", tmp_path / "image.png"
    Image.new("RGB", (32, 32)).save(image)
    path, value = HOSTILE[case]
    text = repr(changed(path, value)).replace(MARK, str(mark))
    folder = export_detector(Config(CFG), weights(), tmp_path / "model", META)
    write_config(folder, eval(text))
    for words in (["predict_mm", folder, image, "--out", tmp_path / "out"], ["test_mm", folder, "--data", tmp_path]):
        assert cli.main([str(word) for word in words]) == 2
        said = capsys.readouterr().err.strip()
        assert said.count("\n") == 0 and "is refused: " in said and "known parts only" in said, said
    assert not mark.exists()


@pytest.mark.parametrize("scope", ["mmdet", "mmseg"])
def test_no_other_part_of_the_packages_is_built(scope: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    register(Config(dict(default_scope=scope)))
    known = {name for kind in (MODELS, TASK_UTILS) for r in (kind, *kind.children.values()) for name in r.module_dict}
    steps = {name for r in (TRANSFORMS, *TRANSFORMS.children.values()) for name in r.module_dict}
    assert len(known - PARTS) > 300 and len(steps - STEPS) > 30
    names = [*(known - PARTS), *(f"{scope}.{name}" for name in PARTS)]
    places = [("model/neck", name) for name in names] + [("tta_pipeline", name) for name in steps - STEPS]
    folder = export_detector(Config(CFG), weights(), tmp_path / "model", META)
    monkeypatch.setattr(MODELS, "build", lambda *_: pytest.fail("it was built"))
    for path, name in places:
        write_config(folder, changed(path, dict(type=name)) | dict(default_scope=scope))
        with pytest.raises(ValueError, match="is none of the parts that a folder may name"):
            load_detector(folder)


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("model/decode_head/channels", "x"), ("model/decode_head/channels", 10**7), ("model/decode_head/in_index", 9),
        ("model/decode_head/norm_cfg", {}), ("model/decode_head/loss_decode", 3), ("model/backbone/out_indices", (9,)),
        ("model/neck", dict(type="FPN")), ("model/decode_head/align_corners", 7),
        ("model/decode_head/num_convs", 0), ("model/test_cfg", dict(mode="slide", stride=(0, 0), crop_size=(4, 4))),
        ("test_dataloader/dataset/pipeline/0", dict(type="Resize", scale="x")), ("model/test_cfg/mode", "x"),
        ("test_dataloader/dataset/pipeline/1", dict(type="Resize", scale=(4, 4), interpolation="x")),
    ],
)  # fmt: skip
def test_parts_that_do_not_fit_are_one_sentence(
    path: str, value: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """And no memory is taken for what is not in the folder."""
    Image.new("RGB", (32, 32)).save(tmp_path / "image.png")
    folder = export_detector(Config(CFG), weights(), tmp_path / "model", META)
    write_config(folder, changed(path, value))
    assert cli.main([str(w) for w in ("predict_mm", folder, tmp_path / "image.png", "--out", tmp_path / "out")]) == 2
    said = capsys.readouterr().err
    assert said.startswith("s3zoo: ") and said.count("\n") == 1, said


DROPPED = {
    "init_cfg": ("model/init_cfg", dict(type="Pretrained", checkpoint=URL)),
    "init_cfg of a part": ("model/decode_head/init_cfg", POPEN),
    "pretrained": ("model/pretrained", URL),
    "pretrained of the backbone": ("model/backbone/pretrained", URL),
    "hooks": ("custom_hooks", [POPEN]),
    "default hooks": ("default_hooks", dict(checkpoint=POPEN)),
    "imports": ("custom_imports", dict(imports=["antigravity"])),
    "a dataset": ("test_dataloader/dataset/type", "subprocess.Popen"),
    "a sampler": ("test_dataloader/sampler", POPEN),
    "collation": ("test_dataloader/collate_fn", POPEN),
    "a metric": ("test_evaluator", POPEN),
    "a loop": ("test_cfg", POPEN),
    "a visualizer": ("visualizer", POPEN),
    "a runner": ("runner_type", "subprocess.Popen"),
    "an optimizer": ("optim_wrapper", POPEN),
    "training data": ("train_dataloader", dict(dataset=POPEN)),
    "a checkpoint to begin with": ("load_from", URL),
    "the environment": ("env_cfg", dict(dist_cfg=POPEN)),
    "another way to read images": (
        "test_dataloader/dataset/pipeline/0",
        dict(type="LoadImageFromFile", backend_args=dict(backend="http")),
    ),
}


@pytest.mark.parametrize("case", DROPPED)
def test_everything_but_model_and_pipeline_is_left_out(case: str, tmp_path: Path) -> None:
    folder = export_detector(Config(CFG), weights(), tmp_path, META)
    write_config(folder, changed(*DROPPED[case]))
    expected = changed("model/test_cfg/mode", "whole")
    export_detector(Config(expected), weights(), tmp_path / "plain", META)
    assert load_detector(folder).cfg.to_dict() == load_detector(tmp_path / "plain").cfg.to_dict()


@pytest.mark.parametrize(
    ("name", "content", "sentence"),
    [
        ("model.safetensors", None, "holds no model.safetensors; give a folder with"),
        ("config.py", None, "holds no config.py"),
        ("model.safetensors", b"\x02\0\0\0\0\0\0\0{}", "is not the file that config.json describes"),
        ("config.json", b"{}", "was not written by s3zoo"),
        ("config.json", b"[1]", "is not valid"),
        ("config.py", b"default_scope = 'mmseg'", "is not the file that config.json describes"),
        ("config.json", b'{"s3zoo": {"sha256": ""}}', "does not say its schema_version"),
        ("config.json", b'{"s3zoo": {"schema_version": 9, "sha256": ""}}', "schema_version is 9, but must be"),
        ("config.py", b"import os", "is no config of literals .line 1 is no assignment.; export it again"),
        ("config.py", b"a = open('x')", "is no config of literals"),
        ("config.py", b"a = [i for i in b]", "is no config of literals"),
        ("config.py", b"a = ", "is no config of literals"),
        ("config.py", b"a = " + b"[" * 5000, "is no config of literals"),
        ("config.py", b"a = {[]: 1}", "is no config of literals"),
        ("config.py", b"a = 1", "default_scope is None"),
        ("config.py", b"default_scope = 'mmseg'", "it has no test_dataloader"),
    ],
)
def test_a_changed_folder_is_refused(name: str, content: bytes | None, sentence: str, tmp_path: Path) -> None:
    folder = export_detector(Config(CFG), weights(), tmp_path / "out")
    (folder / name).unlink()
    if content is not None:
        (folder / name).write_bytes(content)
    if name == "config.py" and content is not None and "is not the file" not in sentence:
        described = json.loads((folder / "config.json").read_text())
        described["s3zoo"]["sha256"]["config.py"] = hashlib.sha256(content).hexdigest()
        (folder / "config.json").write_text(json.dumps(described))
    with pytest.raises(ValueError, match=sentence) as caught:
        load_detector(folder)
    assert "\n" not in str(caught.value)


def test_what_cannot_be_exported(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="The config holds more than numbers, strings, lists and dicts"):
        export_detector(Config(dict(a=float("inf"))), {}, tmp_path / "out")
    with pytest.raises(ValueError, match="not plain JSON"):
        export_detector(Config(dict(a=1)), {}, tmp_path / "out", dict(classes={1}))
    (tmp_path / "file").touch()
    with pytest.raises(ValueError, match="file' is a file, but must be a folder"):
        export_detector(Config(dict(a=1)), {}, tmp_path / "file")
    assert not (tmp_path / "out").exists()
