"""Publishing and loading: the folder that is a Hub repository, the way to a Hub and back, and what is refused.

The Hub is `hub_server.py` on loopback; the client is the real one, in child processes, because it reads its settings
when it is imported. One child takes a list of steps, since each spends seconds on importing torch.
"""

from __future__ import annotations

import json
import os
import pickle
import random
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import timm
import torch
from hub_server import TOKENS
from huggingface_hub import ModelCard
from safetensors import safe_open
from safetensors.torch import save_file

from s3zoo import export, hub
from s3zoo.arch import Arch, AutoFormerBlock, S3Block, Stage
from s3zoo.artefact import save_model
from s3zoo.cli import run
from s3zoo.families.autoformer import plain_space
from s3zoo.models import loading
from s3zoo.models.open import open_model
from s3zoo.supernet import Supernet

pytestmark = pytest.mark.usefixtures("one_thread")

ADA, BOB = TOKENS
BLOCKS = (S3Block(3, 2, 4, 2.0), S3Block(4, 3, 8, 1.5))
ARCHS = {
    "s3": Arch("s3", (Stage(16, BLOCKS), Stage(24, BLOCKS[:1]))),
    "autoformer": Arch("autoformer", (Stage(24, (AutoFormerBlock(2, 8, 2.0), AutoFormerBlock(3, 8, 1.5))),)),
}
BUNDLED = sorted(path.name for path in loading.BUNDLED.iterdir())
LOGITS = Path(__file__).parent / "golden" / "bundled.json"
SPACE = plain_space("small", (1, 2), (16, 24), (1, 2), (1, 2), head_dim=8, patch_size=8)
IMAGE = torch.linspace(-1, 1, 3 * 32 * 32).reshape(1, 3, 32, 32)


def save(folder: Path, family: str = "s3", seed: int = 0, **provenance: Any) -> Path:
    torch.manual_seed(seed)
    model = timm.create_model(family, arch=ARCHS[family], img_size=32, num_classes=5)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.uniform_(-0.3, 0.3)
    return save_model(folder, model, provenance=provenance, pretrained_cfg={"license": "mit"})


def supernet() -> Supernet:
    torch.manual_seed(5)
    return Supernet(SPACE, img_size=32, num_classes=5)


def logits(folder: Path) -> list[float]:
    """Computed from the tensors in the file, with no loader of ours or timm's in between."""
    config = json.loads((folder / "config.json").read_text())
    model = timm.create_model(config["architecture"], arch=config["model_args"]["arch"], img_size=32, num_classes=5)
    with safe_open(folder / "model.safetensors", "pt") as file:
        model.load_state_dict({name: file.get_tensor(name) for name in file.keys()})
    with torch.no_grad():
        return model.eval()(IMAGE)[0].tolist()


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[-3] ^= 1  # in a tensor, where safetensors itself notices nothing
    path.write_bytes(content)


class Evil:
    """Leaves a mark if anybody unpickles it."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> Any:
        return os.mkdir, (str(self.mark),)


# The folder


def test_two_exports_are_the_same_bytes(tmp_path: Path) -> None:
    """Of the same weights, saved twice in different runs of the exporter; and a repository made twice."""
    save(tmp_path / "a"), save(tmp_path / "b"), save(tmp_path / "c", seed=1)
    contents = []
    for name in ("a", "a", "b", "c"):
        out = tmp_path / f"out{len(contents)}"
        _, files = hub.make_repository(tmp_path / name, out, repo_id="zoo/net")
        assert sorted(p.name for p in out.iterdir()) == sorted(p.name for p in files)
        contents.append({path.name: path.read_bytes() for path in files})
        with safe_open(out / "model.safetensors", "pt") as file:
            assert file.metadata() == {"format": "pt"}
    assert {"model.safetensors", "config.json", "README.md"} <= set(contents[0])
    assert contents[0] == contents[1] == contents[2]
    assert contents[3]["model.safetensors"] != contents[0]["model.safetensors"]


def test_the_repository_of_a_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Of the budget that was chosen; the dry run shows all of it, writes nothing and needs no Hub."""
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "run.json").write_text("{}")
    save(tmp_path / "run" / "model-0", budget="params <= 20K")
    save(tmp_path / "run" / "model-1", seed=1, budget="macs <= 150K")
    before = sorted(tmp_path.rglob("*"))
    for budget in ("1", "macs<=150K"):
        dry = [str(tmp_path / "run"), "--budget", budget, "--dry-run", "--out", str(tmp_path / "out")]
        assert hub.main(dry) == 0
        shown = capsys.readouterr().out
        sha = json.loads((tmp_path / "run/model-1/config.json").read_text())["s3zoo"]["sha256"]
        assert f"sha256 {sha}" in shown and "\nlicense: mit\n" in shown
        assert ModelCard(shown[shown.index("---\n") :]).data.license == "mit"
    assert sorted(tmp_path.rglob("*")) == before

    assert hub.main([*dry[:3], "--out", str(tmp_path / "out"), "--license", "apache-2.0"]) == 0
    config = json.loads((tmp_path / "out/config.json").read_text())
    assert config["pretrained_cfg"]["license"] == "apache-2.0" and config["s3zoo"]["sha256"] == sha
    assert config["pretrained_cfg"]["hf_hub_filename"] == "model.safetensors"
    assert ModelCard.load(tmp_path / "out" / "README.md").data.license == "apache-2.0"
    loaded = timm.create_model(f"local-dir:{tmp_path / 'out'}", pretrained=True).eval()
    with torch.no_grad():
        assert loaded(IMAGE)[0].tolist() == logits(tmp_path / "run" / "model-1")
    with pytest.raises(ValueError, match="which belongs to what is read; give another place"):
        hub.main([str(tmp_path / "run" / "model-0"), "--out", str(tmp_path / "run" / "model-0")])
    assert not (tmp_path / "run/model-0/README.md").exists()


def test_the_repository_of_a_plain_timm_export(tmp_path: Path) -> None:
    block = S3Block(4, 2, 8, 2.0)
    arch = Arch("s3", (Stage(16, (block,) * 2), Stage(32, (block,) * 2)))
    model = timm.create_model("s3", arch=arch, img_size=32, num_classes=5).eval()
    export.to_timm(tmp_path / "plain", model)
    config, _ = hub.make_repository(tmp_path / "plain", tmp_path / "out", repo_id="zoo/net", license="mit")
    assert config["architecture"] == "swin_s3_tiny_224" and config["pretrained_cfg"]["license"] == "mit"
    loaded = timm.create_model(f"local-dir:{tmp_path / 'out'}", pretrained=True).eval()
    assert type(loaded).__module__ == "timm.models.swin_transformer"
    with torch.no_grad():
        torch.testing.assert_close(loaded(IMAGE), model(IMAGE), atol=1e-5, rtol=0)


def test_what_a_card_can_say_besides(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from PIL import Image

    names = ["ant", "bee", "cat", "dog", "eel"]
    folder = save(tmp_path / "model", command="s3zoo search x")
    config = json.loads((folder / "config.json").read_text())
    config["pretrained_cfg"]["label_names"] = names
    (folder / "config.json").write_text(json.dumps(config))
    Image.linear_gradient("L").save(tmp_path / "shade.png")
    (tmp_path / "seed1").mkdir()
    row = {"test": {"top1": 61.5, "low": 60.25, "high": 62.75}, "accuracy": 60.0, "params": 95_000, "macs": 6_000_000}
    row |= {"arch": ARCHS["s3"].to_dict(), "budget": "", "inherited": None}
    result = {"name": "seed1", "seed": 1, "spaces": [], "winners": [row]}
    (tmp_path / "seed1" / "result.json").write_text(json.dumps(result))
    words = [str(folder), "--title", "Five animals", "--sample", str(tmp_path / "shade.png"), "--latency"]
    words += ["--beside", str(tmp_path / "seed1")]
    assert hub.main([*words, "--out", str(tmp_path / "out")]) == 0
    card, found = (tmp_path / "out/README.md").read_text(), json.loads((tmp_path / "out/config.json").read_text())
    assert "\n# Five animals\n" in card and "| Classes | 5: ant, bee, cat, dog, eel |" in card
    assert "| seed1 | 61.50 | 60.25 to 62.75 | 95K | 6M |" in card
    row["test"]["top1"] = 62.0
    (tmp_path / "seed1" / "result.json").write_text(json.dumps(result))
    again = [str(tmp_path / "out"), "--beside", str(tmp_path / "seed1"), "--out", str(tmp_path / "again")]
    assert hub.main(again) == 0  # one that is named again is told anew
    assert (tmp_path / "again/README.md").read_text().count("| seed1 | 62.00 |") == 1
    assert "| 61.50 |" not in (tmp_path / "again/README.md").read_text()
    assert (tmp_path / "again/sample.png").read_bytes() == (tmp_path / "out/sample.png").read_bytes()
    (tmp_path / "again/sample.png").unlink()
    assert hub.main([str(tmp_path / "again"), "--out", str(tmp_path / "without")]) == 0
    assert "sample.png" not in (tmp_path / "without/README.md").read_text()
    took = found["s3zoo"]["latency"]
    assert 0 < took["ms"] < 10_000 and f"{took['ms']:.3g} ms an image on {took['device']}, 1 thread" in card
    model = timm.create_model(f"local-dir:{tmp_path / 'out'}", pretrained=True).eval()
    transform: Any = timm.data.create_transform(**timm.data.resolve_data_config(model=model))
    with torch.no_grad():
        best = model(transform(Image.open(tmp_path / "out/sample.png"))[None]).softmax(1)[0]
    assert f"| {names[int(best.argmax())]} | {best.max():.1%} |" in card and "](sample.png)" in card
    for wrong, message in (
        (["--sample", str(folder / "config.json")], "as an image"), (["--question", "why?"], "answers none"),
        (["--title", "a\nb"], "line of text"), (["--beside", str(folder)], "not the folder of a finished run"),
    ):  # fmt: skip
        assert run(hub.main, [str(folder), "--dry-run", *wrong]) == 2
        assert message in capsys.readouterr().err


def test_refused_on_the_spot(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    monkeypatch.setenv("HF_TOKEN", "")
    monkeypatch.setattr("huggingface_hub.constants.HF_TOKEN_PATH", str(tmp_path / "none"))
    for place in ("seeds/seed0", "seeds/seed1", "begun"):
        (tmp_path / place).mkdir(parents=True)
        (tmp_path / place / "run.json").write_text("{}")
    save(tmp_path / "several" / "model-0", budget="params <= 20K")
    save(tmp_path / "several" / "model-1", budget="macs <= 150K")
    flip(save(tmp_path / "flipped") / "model.safetensors")
    (tmp_path / "file").write_text("")
    good = str(save(tmp_path / "good"))
    cases = [
        (["nowhere", "--dry-run"], "no folder"),
        (["seeds", "--dry-run"], "holds 2 runs \\(seed0, seed1\\)"),
        (["begun", "--dry-run"], "not finished"),
        (["seeds/seed0/..", "--dry-run"], "give the folder of one"),
        (["several", "--dry-run"], "0: params <= 20K; 1: macs <= 150K"),
        (["several", "--dry-run", "--budget", "2"], "--budget is '2'"),
        (["several", "--dry-run", "--budget", "params<=3M"], "one of these numbers"),
        (["flipped", "--dry-run"], "not the file that config.json describes"),
        ([good, "--dry-run", "--license", "mine"], "apache-2.0"),
        ([good, "--dry-run", "--to", "only-a-name"], "owner/name"),
        ([good, "--out", str(tmp_path / "file")], "is a file"),
        ([good, "--to", "zoo/net"], "no token"),
        ([good, "--to", "zoo/net", "--dry-run", "--tag", "v 1"], "--tag is 'v 1', which cannot name a commit"),
        ([good, "--to", "zoo/net", "--dry-run", "--revision", "a..b"], "--revision is 'a..b', which cannot name"),
    ]
    for argv, message in cases:
        argv = [str(tmp_path / argv[0]), *argv[1:]]
        assert run(hub.main, argv) == 2
        said = capsys.readouterr().err.strip()
        assert re.search(message, said), said
        assert said.count("\n") == 0 and said.startswith("s3zoo: ")
    with pytest.raises(SystemExit, match="2"):
        hub.main([good])  # neither --to nor --out nor --dry-run


# Loading from a folder


@pytest.mark.parametrize("family", ARCHS)
def test_a_changed_file_is_refused(family: str, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    folder = save(tmp_path, family)
    model = timm.create_model(f"local-dir:{folder}", pretrained=True).eval()
    with torch.no_grad():
        assert model(IMAGE)[0].tolist() == logits(folder)
    assert model.pretrained_cfg["source"] == "local-dir" and model.pretrained_cfg["file"] == str(folder)
    assert "unverified" not in caplog.text
    flip(folder / "model.safetensors")
    with pytest.raises(ValueError, match="sha256") as caught:
        timm.create_model(f"local-dir:{folder}", pretrained=True)
    assert "\n" not in str(caught.value)
    timm.create_model(f"local-dir:{folder}")  # the architecture alone asks for no weights


def test_foreign_weights_are_said_to_be_unverified(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    folder = save(tmp_path)
    config = json.loads((folder / "config.json").read_text())
    del config["s3zoo"]
    (folder / "config.json").write_text(json.dumps(config))
    for _ in range(2):
        timm.create_model(f"local-dir:{folder}", pretrained=True)
    assert [record.getMessage() for record in caplog.records if "unverified" in record.getMessage()] == [
        f"The weights of {folder} are unverified: nobody recorded their sha256 for s3zoo."
    ]


@pytest.mark.parametrize("recorded", [True, False])
def test_a_pickle_is_never_opened(recorded: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder, mark = save(tmp_path / "model"), tmp_path / "mark"
    if not recorded:
        config = json.loads((folder / "config.json").read_text())
        del config["s3zoo"]
        (folder / "config.json").write_text(json.dumps(config))
    monkeypatch.setattr(torch, "load", lambda *_, **__: pytest.fail("a pickle was opened"))
    pickled = pickle.dumps(Evil(mark))
    (folder / "pytorch_model.bin").write_bytes(pickled)
    timm.create_model(f"local-dir:{folder}", pretrained=True)  # the pickle beside it is passed over
    (folder / "model.safetensors").write_bytes(pickled)
    with pytest.raises(ValueError, match="no intact safetensors"):
        timm.create_model(f"local-dir:{folder}", pretrained=True)
    (folder / "model.safetensors").unlink()
    with pytest.raises(ValueError, match="holds no model.safetensors"):
        timm.create_model(f"local-dir:{folder}", pretrained=True)
    assert not mark.exists()
    pickle.loads(pickled)  # it would have left its mark
    assert mark.exists()


# The way to a Hub and back

# Steps: ["publish" or "cli", token, argv] | ["load", token, name, [argument, value], …] | ["raw", token, repo, folder];
# a line of JSON each.
CHILD = """
import contextlib, io, json, logging, os, sys
import s3zoo, timm, torch
from huggingface_hub import HfApi
from s3zoo import cli
torch.set_num_threads(1)
image = torch.linspace(-1, 1, 3 * 32 * 32).reshape(1, 3, 32, 32)
log = io.StringIO()
logging.basicConfig(stream=log)
for kind, token, *rest in json.loads(sys.argv[1]):
    os.environ["HF_TOKEN"] = token
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        if kind in ("publish", "cli"):
            told = {"code": cli.main([*(["publish"] if kind == "publish" else []), *rest[0]])}
        elif kind == "raw":  # a repository of somebody else
            HfApi().create_repo(rest[0], exist_ok=True)
            told = {"code": 0, "commit": HfApi().upload_folder(repo_id=rest[0], folder_path=rest[1]).oid}
        else:
            try:
                with torch.no_grad():
                    model = timm.create_model(rest[0], pretrained=True, **dict(rest[1:])).eval()
                    told = {"logits": model(image)[0].tolist(), "cfg": model.pretrained_cfg}
            except Exception as error:
                told = {"error": type(error).__name__, "message": str(error)}
    print(json.dumps(told | {"out": out.getvalue(), "err": err.getvalue(), "log": log.getvalue()}), flush=True)
    log.seek(0), log.truncate()
"""


class Hub:
    """The server of a test session, its address, and children that talk to it."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.store, self.home = folder, folder / "store", folder / "home"
        self.said: list[str] = []  # all that children printed

    def start(self, *options: str, port: int = 0) -> None:
        command = [sys.executable, str(Path(__file__).with_name("hub_server.py")), str(self.store), "--port", str(port)]
        self.process = subprocess.Popen([*command, *options], stdout=subprocess.PIPE, text=True)
        assert self.process.stdout is not None
        self.address = self.process.stdout.readline().strip()
        self.port = int(self.address.rpartition(":")[2])

    def stop(self) -> None:
        self.process.terminate()
        self.process.wait()

    def begin(self, *steps: list[Any], **env: str) -> subprocess.Popen[str]:
        kept = {key: value for key, value in os.environ.items() if not key.startswith("HF_")}
        settings = {"HF_ENDPOINT": self.address, "HF_HOME": str(self.home), "HF_HUB_DISABLE_XET": "1"}
        settings |= {"HF_HUB_DISABLE_PROGRESS_BARS": "1", "HF_HUB_DISABLE_TELEMETRY": "1", "OMP_NUM_THREADS": "1"}
        command = [sys.executable, "-c", CHILD, json.dumps(steps)]
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        return subprocess.Popen(command, env=kept | settings | env, cwd=self.folder, **pipes)  # type: ignore[call-overload]

    def end(self, child: subprocess.Popen[str]) -> list[dict[str, Any]]:
        out, err = child.communicate(timeout=300)
        self.said += [out, err]
        assert child.returncode == 0, err[-2000:]
        return [json.loads(line) for line in out.splitlines()]

    def do(self, *steps: list[Any], **env: str) -> list[dict[str, Any]]:
        return self.end(self.begin(*steps, **env))

    def repo(self, name: str) -> dict[str, Any]:
        return json.loads((self.store / "repos.json").read_text())[name]

    def asked(self) -> list[str]:
        return (self.store / "requests.log").read_text().splitlines()


@pytest.fixture(scope="module")
def story(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """A server that dies in an upload, with a child that notices; meanwhile another server and all that goes well."""
    folder = tmp_path_factory.mktemp("hub")
    save(folder / "first"), save(folder / "second", "autoformer", seed=1)
    foreign, pickles = save(folder / "foreign"), save(folder / "pickles", seed=2)
    save_model(folder / "whole", supernet().whole(), supernet=SPACE)
    config = json.loads((foreign / "config.json").read_text())
    del config["s3zoo"], config["pretrained_cfg"]["hf_hub_filename"]
    for place in (foreign, pickles):
        (place / "config.json").write_text(json.dumps(config))
        (place / "pytorch_model.bin").write_bytes(pickle.dumps(Evil(folder / "mark")))
    (pickles / "model.safetensors").unlink()

    mortal, well = Hub(folder), Hub(folder)
    mortal.store, mortal.home = folder / "mortal", folder / "mortal-home"
    mortal.start("--die-in-upload", "4096")
    well.start()
    dying = mortal.begin(["publish", ADA, ["first", "--to", "zoo/net"]])  # the client tries for 23 s before it gives up
    net = ["--to", "zoo/net"]
    told = well.do(
        ["publish", "hf_wrong_token", ["first", *net]],
        ["publish", BOB, ["first", *net]],
        ["publish", ADA, ["first", "--to", "nobody/net"]],
        ["publish", ADA, ["first", *net, "--tag", "v1", "--message", "The first"]],
        ["publish", ADA, ["first", *net, "--tag", "v1"]],
        ["publish", BOB, ["second", *net]],
        ["publish", ADA, ["first", *net, "--private"]],
        ["publish", ADA, ["second", *net, "--revision", "trial"]],
        ["publish", ADA, ["second", *net]],
        ["publish", ADA, ["second", *net, "--tag", "v1"]],
        ["publish", ADA, ["first", "--to", "ada/secret", "--private"]],
        ["raw", ADA, "ada/foreign", str(foreign)],
        ["raw", ADA, "ada/pickles", str(pickles)],
        ["publish", ADA, ["whole", "--to", "zoo/whole"]],
    )
    yield well, mortal, dying, told
    well.stop()


def test_push(story: Any) -> None:
    well, _, _, told = story
    wrong, no_org, nobody, first, again, other, public, trial, second, moved, secret, *_ = told
    assert [step["code"] for step in told] == [2, 2, 2, 0, 0, 2, 2, 0, 0, 2, 0, 0, 0, 0]
    for step, message in [
        (wrong, "does not accept the token"), (no_org, "may not create a model under the namespace 'zoo'"),
        (nobody, "no user or organisation 'nobody'"), (other, "may not write to zoo/net"),
        (public, "exists and is public"), (moved, "nothing was sent: repeat with another --tag"),
    ]:  # fmt: skip
        lines = [line for line in step["err"].splitlines() if line.startswith("s3zoo: ")]
        assert len(lines) == 1 and message.lower() in lines[0].lower(), step["err"]
        assert "Traceback" not in step["err"]

    repo = well.repo("zoo/net")
    history, oid = [], repo["refs"]["main"]
    while oid:
        history.append(repo["commits"][oid]["message"])
        oid = repo["commits"][oid]["parent"]
    key = ARCHS["autoformer"].key
    assert history == [f"autoformer network {key}", "The first", "initial commit"]  # pushed twice, one commit
    assert "pushed to" in first["out"] and "nothing to push" in again["out"] and "pushed to" in second["out"]
    assert repo["tags"]["v1"] in first["out"] and repo["tags"]["v1"] in again["out"]
    assert repo["refs"]["trial"] != repo["refs"]["main"] and repo["refs"]["trial"] in trial["out"]
    assert not repo["private"] and well.repo("ada/secret")["private"] and secret["code"] == 0
    files = repo["commits"][repo["refs"]["main"]]["files"]
    assert {"README.md", "config.json", "model.safetensors"} <= set(files)
    config = json.loads((well.folder / "second" / "config.json").read_text())
    assert files["model.safetensors"]["sha256"] == config["s3zoo"]["sha256"] and files["model.safetensors"]["lfs"]


def test_pull(story: Any) -> None:
    """In a fresh process by branch, tag and commit; what others published; then without network from the cache."""
    well, *_ = story
    repo, before = well.repo("zoo/net"), len(well.asked())
    names = ["zoo/net", "zoo/net@v1", f"zoo/net@{repo['tags']['v1']}", "zoo/net@trial", "ada/foreign", "ada/pickles"]
    archs = [SPACE.smallest(), SPACE.largest(), SPACE.sample(random.Random(0))]
    *online, small, large, some = well.do(
        *(["load", "", f"hf-hub:{name}"] for name in names), ["load", ADA, "hf-hub:ada/secret"],
        *(["load", "", "hf-hub:zoo/whole", ["arch", arch.to_dict()]] for arch in archs),
    )  # fmt: skip
    with torch.no_grad():  # any size from one file
        for arch, step in zip(archs, (small, large, some), strict=True):
            assert step["logits"] == supernet().extract(arch).eval()(IMAGE)[0].tolist()
    first, second = logits(well.folder / "first"), logits(well.folder / "second")
    assert [step.get("logits") for step in online] == [second, first, first, second, first, None, first]
    assert online[0]["cfg"]["source"] == "hf-hub" and online[0]["cfg"]["hf_hub_id"] == "zoo/net"
    assert "file" not in online[0]["cfg"]
    unverified = [step["log"].count("unverified") for step in online]
    assert unverified == [0, 0, 0, 0, 1, 0, 0]
    assert "has no model.safetensors" in online[5]["message"] and online[5]["error"] == "ValueError"
    assert not [line for line in well.asked()[before:] if "pytorch_model" in line]

    cache = well.home / "hub" / "models--zoo--net" / "snapshots"
    flip((cache / repo["tags"]["v1"] / "model.safetensors").resolve())
    weights = well.home / "hub/models--ada--secret/snapshots" / well.repo("ada/secret")["refs"]["main"]
    (weights / "model.safetensors").unlink()
    (weights / "model.safetensors").write_bytes(pickle.dumps(Evil(well.folder / "mark")))
    names = ["zoo/net", "zoo/net@v1", "ada/secret", "ada/pickles", "zoo/unknown"]
    steps: list[list[Any]] = [["load", "", f"hf-hub:{name}"] for name in names]
    steps.append(["publish", ADA, ["first", "--to", "zoo/net"]])
    offline = well.do(*steps, HF_HUB_OFFLINE="1", HF_ENDPOINT="http://127.0.0.1:9")
    assert offline[0]["logits"] == second
    assert [step.get("error") for step in offline[1:3]] == ["ValueError"] * 2
    for step, reason in zip(offline[1:3], ("sha256 differs", "no intact safetensors"), strict=True):
        assert reason in step["message"] and "\n" not in step["message"]
    assert offline[3]["error"] == "FileNotFoundError" and "not in the cache" in offline[3]["message"]
    assert offline[4]["error"] == "LocalEntryNotFoundError"  # timm's, which finds no config
    assert offline[5]["code"] == 2 and "HF_HUB_OFFLINE is set" in offline[5]["err"]
    assert not (well.folder / "mark").exists()


def test_a_server_that_dies(story: Any) -> None:
    """The push ends with a sentence and no commit; when the server is back, the same command finishes it."""
    well, mortal, dying, _ = story
    (failed,) = mortal.end(dying)
    assert failed["code"] == 2 and mortal.process.wait() == 1
    (line,) = [line for line in failed["err"].splitlines() if line.startswith("s3zoo: ")]
    assert "repeat the same command" in line and "Traceback" not in failed["err"]
    assert [c["message"] for c in mortal.repo("zoo/net")["commits"].values()] == ["initial commit"]
    assert list((mortal.store / "objects").iterdir()) != [] and "lfs-objects" in "".join(mortal.asked())
    mortal.start(port=mortal.port)
    try:
        (again, loaded) = mortal.do(
            ["publish", ADA, ["first", "--to", "zoo/net"]], ["load", "", "hf-hub:zoo/net"]
        )  # fmt: skip
    finally:
        mortal.stop()
    assert again["code"] == 0 and "pushed to" in again["out"]
    assert loaded["logits"] == logits(well.folder / "first")
    assert len(mortal.repo("zoo/net")["commits"]) == 2


def test_a_server_without_xet(story: Any) -> None:
    """Which the client takes for granted: the sentence says what to do, and not that the token may not write."""
    pytest.importorskip("hf_xet")
    well, *_ = story
    (told,) = well.do(["publish", ADA, ["second", "--to", "ada/xet"]], HF_HUB_DISABLE_XET="0")
    (line,) = [line for line in told["err"].splitlines() if line.startswith("s3zoo: ")]
    assert told["code"] == 2 and "HF_HUB_DISABLE_XET=1" in line and "Traceback" not in told["err"]


def test_the_token_is_nowhere(story: Any) -> None:
    """Neither printed nor in a file: folders, caches, what the server was sent to keep."""
    well, mortal, _, told = story
    texts = [json.dumps(told), *well.said, *mortal.said]
    assert len(texts) > 3 and not [text for text in texts for token in (ADA, BOB) if token in text]
    files = [path for path in well.folder.rglob("*") if path.is_file()]
    assert len(files) > 20
    assert not [path for path in files for token in (ADA, BOB) if token.encode() in path.read_bytes()]


# Weights that come with s3zoo


def test_bundled_weights_give_the_accuracy_on_their_card() -> None:
    from s3zoo.training.splits import Digits

    folder = loading.BUNDLED / "s3_nano.digits"
    assert (folder / "model.safetensors").stat().st_size < 1_000_000
    config = json.loads((folder / "config.json").read_text())
    model = timm.create_model("s3_nano.digits", pretrained=True).eval()
    assert model.arch == Arch.from_dict(config["model_args"]["arch"]) == timm.create_model("s3_nano").arch
    cfg = model.pretrained_cfg
    digits = Digits(train=False)
    images = (torch.from_numpy(digits.data)[:, None] / 255 - cfg["mean"][0]) / cfg["std"][0]
    with torch.no_grad():
        right = (model(images).argmax(1) == torch.from_numpy(digits.targets)).sum().item()
    (test,) = [m for m in config["s3zoo"]["provenance"]["metrics"] if m["split"] == "test"]
    assert (test["images"], len(images)) == (360, 360) and right * 100 / 360 == test["value"]
    (result,) = ModelCard.load(folder / "README.md").data.eval_results
    assert result.metric_type == "accuracy" and result.metric_value == pytest.approx(test["value"], abs=0.005)
    assert config["s3zoo"]["provenance"]["command"] == "s3zoo search digits"


def _fixed_image(cfg: dict[str, Any]) -> torch.Tensor:
    """Waves of another length in each channel, the same in every version of torch."""
    channels, height, width = cfg["input_size"]
    grid = torch.arange(channels * height * width, dtype=torch.float64).reshape(1, channels, height, width)
    return torch.sin(grid * 0.37).float()


def _logits(name: str) -> torch.Tensor:
    model = timm.create_model(name, pretrained=True).eval()
    with torch.no_grad():
        return model(_fixed_image(model.pretrained_cfg))[0]


@pytest.mark.parametrize("name", BUNDLED)
def test_bundled_weights_give_the_recorded_logits(name: str) -> None:
    """`python tests/test_hub.py` adds those of networks that are new; what is recorded stays until it is taken out."""
    assert (loading.BUNDLED / name / "model.safetensors").stat().st_size <= 3_000_000
    expected = json.loads(LOGITS.read_text())[name]
    torch.testing.assert_close(_logits(name), torch.tensor(expected), rtol=0, atol=1e-4)
    names = timm.get_pretrained_cfg(name).label_names
    assert names and len(expected) == len(names)


def test_bundled_files_are_what_publish_writes(tmp_path: Path) -> None:
    """So nothing in the bundle was changed by hand."""
    for folder in loading.BUNDLED.iterdir():
        _, files = hub.make_repository(folder, tmp_path / folder.name)
        assert sorted(p.name for p in folder.iterdir()) == sorted(p.name for p in files)
        for path in files:
            if path.suffix != ".svg":  # how matplotlib writes paths may differ between its versions
                assert path.read_bytes() == (folder / path.name).read_bytes(), path.name


def test_bundled_weights_give_way_to_the_users(tmp_path: Path) -> None:
    model = timm.create_model("s3_nano").eval()
    save_file(model.state_dict(), tmp_path / "mine.safetensors")
    image = torch.rand(1, 1, 8, 8)
    for overlay in ({"state_dict": model.state_dict()}, {"file": str(tmp_path / "mine.safetensors")}):
        loaded = timm.create_model("s3_nano", pretrained=True, pretrained_cfg_overlay=overlay).eval()
        with torch.no_grad():
            assert torch.equal(loaded(image), model(image))


@pytest.mark.parametrize("name", ["s3_tiny", "autoformer_tiny", "glit_tiny", "shunted_tiny", "vit_tiny_patch16_224"])
def test_a_web_page_in_the_place_of_weights_is_called_one(name: str, tmp_path: Path) -> None:
    """torch would advise to load it without the care that it takes."""
    page = tmp_path / "weights.pth"
    page.write_text("<!DOCTYPE html><html>Sign in</html>")
    with pytest.raises(ValueError, match="is a web page") as caught:
        open_model(name, pretrained_cfg_overlay={"file": str(page)})
    for own in ({"pretrained_cfg": {"file": str(page)}}, {"checkpoint_path": str(page), "pretrained": False}):
        with pytest.raises(ValueError, match="is a web page"):
            open_model(name, **own)
    if not name.startswith("vit"):  # which is timm's own code alone
        with pytest.raises(ValueError, match="is a web page"):
            timm.create_model(name, pretrained=True, pretrained_cfg_overlay={"file": str(page)})
    assert "\n" not in str(caught.value) and "weights_only" not in str(caught.value)


def test_a_file_of_weights_for_a_network_of_timm(tmp_path: Path) -> None:
    model = timm.create_model("test_vit", num_classes=10)
    save_file(model.state_dict(), tmp_path / "mine.safetensors")
    overlay = {"file": str(tmp_path / "mine.safetensors"), "num_classes": 10}
    opened = open_model("test_vit", pretrained_cfg_overlay=overlay, num_classes=10)
    assert all(torch.equal(opened.state_dict()[key], value) for key, value in model.state_dict().items())


if __name__ == "__main__":
    known = json.loads(LOGITS.read_text()) if LOGITS.exists() else {}
    recorded = {name: known.get(name) or [round(x, 6) for x in _logits(name).tolist()] for name in BUNDLED}
    LOGITS.write_text(json.dumps(recorded, indent=1) + "\n")
