"""The folder that is a model: what is written, that timm reads it back the same, and what is refused."""

from __future__ import annotations

import copy
import itertools
import json
import os
import random
import shutil
from pathlib import Path
from typing import Any

import pytest
import timm
import torch
from safetensors import SafetensorError, safe_open
from timm.models import save_for_hf
from torch import nn

from s3zoo import artefact
from s3zoo.arch import Arch, AutoFormerBlock, GLiTBlock, S3Block, Stage
from s3zoo.export import to_timm
from s3zoo.hub import make_repository
from s3zoo.models import folder as folders
from s3zoo.models.open import open_model, read_weights

ARCHS = {
    "s3": Arch(
        "s3", (Stage(16, (S3Block(3, 2, 4, 2.0), S3Block(4, 3, 8, 1.5))), Stage(24, (S3Block(3, 2, 12, 2.0),) * 2))
    ),
    "autoformer": Arch("autoformer", (Stage(24, (AutoFormerBlock(2, 8, 2.0), AutoFormerBlock(3, 8, 1.5))),)),
    "glit": Arch("glit", (Stage(24, (GLiTBlock(3, 3, 4, 3, 1.0, 2.0), GLiTBlock(3, 1, 8, 5, 2.0, 2.0))),)),
}
families = pytest.mark.parametrize("family", ARCHS)


def build(family: str, seed: int = 0, **kwargs: Any) -> Any:
    torch.manual_seed(seed)
    model = timm.create_model(family, arch=ARCHS[family], **{"img_size": 32, "num_classes": 7} | kwargs)
    for tensor in model.state_dict().values():  # buffers too
        if tensor.is_floating_point():
            tensor.copy_(torch.rand_like(tensor) * 0.5 + 0.1)
    return model.eval()


def config(folder: Path) -> dict[str, Any]:
    return json.loads((folder / "config.json").read_text())


@families
@pytest.mark.parametrize(
    "kwargs",
    [
        {},
        {"img_size": (32, 64), "in_chans": 4, "global_pool": ""},
        {"in_chans": 1, "num_classes": 0, "img_size": 64},
    ],
    ids=["plain", "four channels", "features"],
)
@torch.no_grad()
def test_round_trip(family: str, kwargs: dict[str, Any], tmp_path: Path) -> None:
    model = build(family, **kwargs)
    folder = artefact.save_model(tmp_path / "a" / "b", model)
    back = timm.create_model(f"local-dir:{folder}", pretrained=True).eval()
    ours, theirs = model.state_dict(), back.state_dict()
    assert ours.keys() == theirs.keys() and all(torch.equal(ours[k], theirs[k]) for k in ours)
    assert back.arch == model.arch and back.global_pool == model.global_pool
    size = kwargs.get("img_size", 32)
    x = torch.randn(2, kwargs.get("in_chans", 3), *((size, size) if isinstance(size, int) else size))
    assert torch.equal(back(x), model(x))
    assert tuple(back.pretrained_cfg["input_size"]) == x.shape[1:]


def test_contents(tmp_path: Path) -> None:
    model = build("autoformer")
    provenance = {"seed": 3, "data": {"name": "digits"}, "window": (7, 7)}
    artefact.save_model(tmp_path, model, provenance=provenance, pretrained_cfg={"license": "cc0-1.0", "mean": (0.5,)})
    assert sorted(p.name for p in tmp_path.iterdir()) == ["config.json", "model.safetensors"]
    written = config(tmp_path)
    assert written["architecture"] == "autoformer" and written["num_classes"] == 7 and written["num_features"] == 24
    assert written["global_pool"] == "avg"
    assert written["model_args"] == {"arch": ARCHS["autoformer"].to_dict(), "img_size": [32, 32], "global_pool": "avg"}
    cfg = written["pretrained_cfg"]
    assert cfg["input_size"] == [3, 32, 32] and cfg["license"] == "cc0-1.0" and cfg["mean"] == [0.5]
    assert cfg["first_conv"] == "patch_embed.proj" and cfg["classifier"] == "head" and "tag" not in cfg
    assert not {"url", "file", "hf_hub_id", "state_dict", "architecture"} & cfg.keys()
    ours = written["s3zoo"]
    assert ours["schema_version"] == 1 and ours["params"] == sum(p.numel() for p in model.parameters())
    assert ours["provenance"] == {"seed": 3, "data": {"name": "digits"}, "window": [7, 7]}
    with safe_open(tmp_path / "model.safetensors", "pt") as file:
        assert file.metadata() == {"format": "pt"}
    assert artefact.load_model_config(tmp_path, verify=True) == written
    assert Arch.parse(tmp_path / "config.json") == model.arch  # the config is an architecture file too


def test_views_of_a_larger_network(tmp_path: Path) -> None:
    """A subnet that shares storage with a supernet is written alone and whole."""
    model = build("autoformer")
    expected = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    for parameter in model.parameters():
        big = torch.zeros([side + 5 for side in parameter.shape])
        corner = big[tuple(slice(side) for side in parameter.shape)]
        corner.copy_(parameter.detach())
        parameter.data = corner
    artefact.save_model(tmp_path, model)
    back = timm.create_model(f"local-dir:{tmp_path}", pretrained=True).state_dict()
    assert all(torch.equal(back[name], expected[name]) for name in expected)
    assert (tmp_path / "model.safetensors").stat().st_size < 4 * sum(t.numel() for t in expected.values()) + 10_000


def test_built_by_hand_or_wrapped(tmp_path: Path) -> None:
    from s3zoo.models.autoformer import AutoFormer

    class Wrapper(nn.Module):
        def __init__(self, module: nn.Module) -> None:
            super().__init__()
            self.module = module

    model = AutoFormer(ARCHS["autoformer"], img_size=48, num_classes=2, dynamic_img_size=True)
    artefact.save_model(tmp_path, Wrapper(model))  # as DistributedDataParallel wraps
    back = timm.create_model(f"local-dir:{tmp_path}", pretrained=True)
    assert back.dynamic_img_size and back.patch_embed.img_size == (48, 48)
    assert torch.equal(back.head.weight, model.head.weight)


def test_a_full_disk_leaves_the_old_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    artefact.save_model(tmp_path, build("glit"))
    before = {p.name: p.read_bytes() for p in tmp_path.iterdir()}

    def full_disk(tensors: Any, path: Path, **_: Any) -> None:  # with the words that safetensors gave
        path.write_bytes(b"half")
        raise SafetensorError("Error while serializing: I/O error: No space left on device (os error 28)")

    monkeypatch.setattr(folders, "save_file", full_disk)
    with pytest.raises(ValueError, match="disk is full: .*model.safetensors could not be written"):
        artefact.save_model(tmp_path, build("glit", seed=1))
    assert {p.name: p.read_bytes() for p in tmp_path.iterdir()} == before


def test_refused_models(tmp_path: Path) -> None:
    pruned = build("autoformer")
    pruned.prune_intermediate_layers([0], prune_norm=True)
    cases: list[tuple[Any, dict[str, Any], str]] = [
        (pruned, {}, "differs from its architecture: 'norm"),
        (nn.Linear(2, 2), {}, "Linear has no architecture"),
        (build("s3", features_only=True, out_indices=(1,)), {}, "has no architecture"),
        (timm.create_model("autoformer", arch=ARCHS["autoformer"], device="meta"), {}, "meta device"),
        (build("glit"), {"provenance": {"a": object()}}, "not plain JSON"),
        (build("glit"), {"provenance": {"a": float("nan")}}, "not plain JSON"),
        (build("glit"), {"pretrained_cfg": {"colour": 1}}, "timm does not know .*colour"),
    ]
    for model, kwargs, message in cases:
        with pytest.raises(ValueError, match=message) as caught:
            artefact.save_model(tmp_path / "new", model, **kwargs)
        assert "\n" not in str(caught.value)
    assert not (tmp_path / "new").exists()
    (tmp_path / "file").write_text("")
    with pytest.raises(ValueError, match="is a file"):
        artefact.save_model(tmp_path / "file", build("glit"))


def test_load_model_config_refuses(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="holds no config.json"):
        artefact.load_model_config(tmp_path / "nowhere")
    artefact.save_model(tmp_path, build("autoformer"))
    path, good = tmp_path / "config.json", config(tmp_path)

    for changed, message in (
        ({k: v for k, v in good.items() if k != "s3zoo"}, "was not written by s3zoo"),
        (good | {"s3zoo": good["s3zoo"] | {"schema_version": 2}}, "schema_version is 2, but must be 1: a newer"),
    ):
        path.write_text(json.dumps(changed))
        with pytest.raises(ValueError, match=message):
            artefact.load_model_config(tmp_path)
    path.write_text(json.dumps(good))

    weights = tmp_path / "model.safetensors"
    content = bytearray(weights.read_bytes())
    content[-3] ^= 1  # one flipped bit, which safetensors does not notice
    weights.write_bytes(content)
    assert artefact.load_model_config(tmp_path) == good
    with pytest.raises(ValueError, match="is not the file that config.json describes"):
        artefact.load_model_config(tmp_path, verify=True)
    weights.unlink()
    with pytest.raises(ValueError, match="holds no model.safetensors"):
        artefact.load_model_config(tmp_path)


# Whatever stands in a config.json, it is answered in a sentence, and reaches nothing outside its folder.

WRONG: list[Any] = [None, True, -1, 10**12, 1.5, "", "x" * 300, "/etc/passwd", "http://127.0.0.1:9/", [], [[]], {}]


def places(node: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    inside = node.items() if isinstance(node, dict) else enumerate(node) if isinstance(node, list) else ()
    return [path] * bool(path) + [place for key, value in inside for place in places(value, (*path, key))]


def put(node: Any, path: tuple[Any, ...], value: Any) -> Any:
    node = copy.deepcopy(node)
    inner = node
    for key in path[:-1]:
        inner = inner[key]
    inner[path[-1]] = value
    return node


@pytest.mark.parametrize("verb", ["load_model_config", "open_model"])
def test_no_config_makes_a_traceback(verb: str, tmp_path: Path) -> None:
    artefact.save_model(tmp_path, build("glit"), pretrained_cfg={"label_names": list("abcdefg")})
    path, good = tmp_path / "config.json", config(tmp_path)
    rng, tried = random.Random(0), 0
    cases = [(place, value) for place in places(good) for value in WRONG]
    for place, value in rng.sample(cases, 250 if verb == "load_model_config" else 120):
        path.write_text(json.dumps(put(good, place, value)))
        try:
            if verb == "open_model":
                open_model(str(tmp_path))
            else:
                artefact.load_model_config(tmp_path, verify=True)
        except ValueError as error:
            tried += 1
            assert "\n" not in str(error) and len(str(error)) < 600, (place, value)
    assert tried > 50


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("checkpoint_path", "/etc/passwd"),
        ("pretrained_cfg_overlay", {"url": "http://127.0.0.1:9/x.pth"}),
        ("pretrained_strict", False),
        ("pretrained_tower", "/etc/passwd"),
        ("arch", "/etc/passwd"),
        ("features_only", True),
        ("cache_dir", "/tmp"),
    ],
)
def test_arguments_of_a_closed_list(key: str, value: Any, tmp_path: Path) -> None:
    artefact.save_model(tmp_path, build("autoformer"))
    (tmp_path / "config.json").write_text(json.dumps(put(config(tmp_path), ("model_args", key), value)))
    with pytest.raises(ValueError, match=f"model_args.*{key}"):
        open_model(str(tmp_path))
    with pytest.raises((ValueError, TypeError), match=key):  # TypeError: what timm's create_model passes itself
        timm.create_model(f"local-dir:{tmp_path}", pretrained=True)


def test_a_network_of_timm_loads_whole_or_not_at_all(tmp_path: Path) -> None:
    model = timm.create_model("test_vit", num_classes=3)
    save_for_hf(model, tmp_path, model_config={"num_classes": 3})
    pickled = tmp_path / "pytorch_model.bin"
    assert torch.equal(open_model(str(tmp_path)).head.weight, model.head.weight)
    content = bytearray(pickled.read_bytes())
    content[len(content) // 2] ^= 1
    pickled.write_bytes(content)
    with pytest.raises(ValueError, match="does not have its checksum"):
        open_model(str(tmp_path))
    save_for_hf(model, tmp_path, model_config={"num_classes": 3}, safe_serialization=True)
    found = open_model(str(tmp_path))
    assert torch.equal(found.head.weight, model.head.weight) and "state_dict" not in found.pretrained_cfg
    written = config(tmp_path)
    for key, value in (("pretrained_strict", False), ("checkpoint_path", "x"), ("weight_init", "/etc/passwd")):
        (tmp_path / "config.json").write_text(json.dumps(written | {"model_args": {key: value}}))
        with pytest.raises(ValueError, match="model_args"):
            open_model(str(tmp_path))


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_weights_that_are_no_numbers(value: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = build("glit")  # which has statistics of batch norms too
    for name in ("head.weight", next(n for n, _ in model.named_buffers() if n.endswith("running_var"))):
        broken = copy.deepcopy(model)
        broken.state_dict()[name].view(-1)[1] = value
        artefact.save_model(tmp_path / name, broken)
        for way in (lambda at: open_model(str(at)), lambda at: make_repository(at, tmp_path / "out")):
            with pytest.raises(ValueError, match=f"NaN or infinite values in {name}.*S3ZOO_ALLOW_NONFINITE=1"):
                way(tmp_path / name)
        assert not (tmp_path / "out").exists()
    monkeypatch.setenv("S3ZOO_ALLOW_NONFINITE", "1")
    assert not open_model(str(tmp_path / "head.weight")).head.weight.isfinite().all()


def test_a_network_much_larger_than_its_weights_takes_no_memory(tmp_path: Path) -> None:
    artefact.save_model(tmp_path, build("s3"))
    written = config(tmp_path)
    written["model_args"]["arch"]["stages"][1]["embed_dim"] = 24 << 12
    (tmp_path / "config.json").write_text(json.dumps(written))
    with pytest.raises(ValueError, match=r"holds [\d,]+ weights, but the network that they are for has about [\d,]+"):
        open_model(str(tmp_path))


def test_a_refused_config_beside_weights_is_said(tmp_path: Path) -> None:
    artefact.save_model(tmp_path, build("s3"))
    assert read_weights(str(tmp_path))[1] == (3, 32, 32)
    written = config(tmp_path)
    for wrong in ({"architecture": "../x"}, {"pretrained_cfg": {"url": "http://127.0.0.1:9/x"}}, {"num_classes": "x"}):
        (tmp_path / "config.json").write_text(json.dumps(written | wrong))
        with pytest.raises(ValueError, match="config.json"):
            read_weights(str(tmp_path / "model.safetensors"))


# A kill at any moment


def publish(folder: Path, model: Any) -> None:
    make_repository(folder.parents[1] / str(model.number), folder)


WRITERS = {"save": artefact.save_model, "publish": publish, "export": to_timm}


@pytest.mark.usefixtures("one_thread")
@pytest.mark.parametrize("way", WRITERS)
def test_after_a_kill_a_folder_is_the_old_model_or_the_new_one(way: str, tmp_path: Path) -> None:
    """Every change of the disk that writing makes is counted, and the process dies before each in turn."""
    arch = Arch("s3", (Stage(16, (S3Block(4, 2, 8, 2.0),)), Stage(32, (S3Block(4, 4, 8, 2.0),))))
    models = [timm.create_model("s3", arch=arch, img_size=32, num_classes=7).eval() for _ in range(2)]
    for number, model in enumerate(models):
        model.number = number
        artefact.save_model(tmp_path / str(number), model)
    WRITERS[way](tmp_path / "first" / "model", models[0])
    (tmp_path / "first" / "model" / "notes.txt").write_text("mine")
    found = []
    for moment in itertools.count():
        place = shutil.copytree(tmp_path / "first", tmp_path / f"kill {moment}") / "model"
        child = os.fork()
        if not child:
            left = moment

            def dies(change: Any) -> Any:
                def call(*args: Any, **kwargs: Any) -> Any:
                    nonlocal left
                    if not left:
                        os._exit(7)
                    left -= 1
                    return change(*args, **kwargs)

                return call

            for name in ("replace", "rename", "link", "unlink", "rmdir", "mkdir", "chmod"):
                setattr(os, name, dies(getattr(os, name)))
            WRITERS[way](place, models[1])
            os._exit(0)
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        artefact.load_model_config(place, verify=True, plain=True)  # which finishes what was begun
        found.append({path.name: path.read_bytes() for path in place.iterdir() if path.is_file()})
        if code == 0:
            break
        assert code == 7
    old, new = found[0], found[-1]
    assert old["config.json"] != new["config.json"] and old["notes.txt"] == new["notes.txt"] == b"mine"
    assert moment > 10 and all(files in (old, new) for files in found) and len([f for f in found if f == new]) > 1
