"""The wheel holds all that is needed: built from a copy of the sources and used outside the clone."""

import json
import os
import shutil
import subprocess
import sys
import sysconfig
import venv
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
IN_WHEEL = ("s3zoo", "configs", "docs", "pyproject.toml", "setup.py", "README.md", "LICENSE", "NOTICE")


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built from a copy, so that neither build products in the clone nor files outside IN_WHEEL can help."""
    pytest.importorskip("build", reason="building a wheel needs build and setuptools, which are of the extra dev")
    source = tmp_path_factory.mktemp("source")
    for name in IN_WHEEL:
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, source / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(ROOT / name, source)
    (source / "configs" / "probe" / "deep").mkdir(parents=True)
    (source / "configs" / "probe" / "deep" / "some-run.py").write_text("answer = 42\n")
    command = [sys.executable, "-m", "build", "--wheel", "--no-isolation"]
    built = subprocess.run(command, cwd=source, capture_output=True, text=True)
    assert built.returncode == 0, built.stdout[-2000:] + built.stderr[-2000:]
    (path,) = (source / "dist").glob("*.whl")
    return path


@pytest.fixture(scope="module")
def outside(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A virtual environment with the wheel, that borrows the other packages from the one the tests run in."""
    home = tmp_path_factory.mktemp("outside")
    venv.create(home / "env", with_pip=False, symlinks=True)
    python = home / "env" / "bin" / "python"
    target = subprocess.check_output(
        [str(python), "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"], text=True
    ).strip()
    pip = [sys.executable, "-m", "pip", "--python", str(python), "install", "--quiet", "--no-deps", "--no-index"]
    subprocess.run([*pip, str(wheel)], check=True)
    # As a plain path entry, the borrowed site-packages come after the wheel and its .pth files (the editable
    # installation of the clone) are not read.
    Path(target, "borrowed.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return home


def run(outside: Path, *command: str) -> str:
    env = {key: value for key, value in os.environ.items() if key not in ("PYTHONPATH", "VIRTUAL_ENV")}
    program = [str(outside / "env" / "bin" / command[0]), *command[1:]]
    done = subprocess.run(program, cwd=outside, env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout


def test_contents(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    ours = [path for path in (ROOT / "s3zoo").rglob("*") if path.is_file() and "__pycache__" not in path.parts]
    files = {str(path.relative_to(ROOT)) for path in ours}
    configs = {f"s3zoo/{path.relative_to(ROOT)}" for path in (ROOT / "configs").rglob("*.py")}
    documents = {f"s3zoo/{path.relative_to(ROOT)}" for path in (ROOT / "docs").glob("*.md")}
    assert files | configs | documents <= set(names)
    assert not [name for name in names if name.startswith(("tests", "tools", "configs", "docs"))]
    licences = {name.rpartition("/")[2] for name in names if "dist-info/licenses/" in name}
    assert licences == {"LICENSE", "NOTICE"}


def test_doctor(outside: Path) -> None:
    found = json.loads(run(outside, "s3zoo", "doctor", "--json"))
    assert found["s3zoo"]["commit"] is None
    assert Path(found["s3zoo"]["configs"]).is_relative_to(outside)
    assert found["problems"] == []


def test_configs_and_documents_without_a_clone(outside: Path) -> None:
    """By `python -m s3zoo` and by the command."""
    assert "cifar10_s3_2core" in run(outside, "python", "-m", "s3zoo", "search", "--list")
    assert "SearchRun(" in run(outside, "s3zoo", "config", "search/digits")
    listed = [line.split()[0] for line in run(outside, "s3zoo", "docs").splitlines()[:-1]]
    assert listed == sorted(path.stem for path in (ROOT / "docs").glob("*.md"))
    assert run(outside, "s3zoo", "docs", "search") == (ROOT / "docs/search.md").read_text()


def test_models_weights_and_configs(outside: Path) -> None:
    """Bundled weights are found and give the accuracy that their config tells, with the network shut off."""
    code = """
import runpy, socket
from pathlib import Path
def refuse(*_): raise AssertionError("the network was touched")
socket.socket.connect = socket.getaddrinfo = refuse
import s3zoo, timm, torch
from s3zoo.paths import configs_dir
from s3zoo.training.splits import Digits
print(s3zoo.__file__)
print(*timm.list_models("s3_*"))
print(runpy.run_path(str(configs_dir() / "probe" / "deep" / "some-run.py"))["answer"])
model = timm.create_model("s3_nano.digits", pretrained=True).eval()
digits, cfg = Digits(train=False), model.pretrained_cfg
images = (torch.from_numpy(digits.data)[:, None] / 255 - cfg["mean"][0]) / cfg["std"][0]
print(cfg["file"])
bundled = sorted(path.name for path in Path(s3zoo.__file__).with_name("weights").iterdir())
assert all(timm.create_model(name, pretrained=True).pretrained_cfg["file"].endswith(name) for name in bundled)
print(*bundled)
print((model(images).argmax(1) == torch.from_numpy(digits.targets)).sum().item() * 100 / len(images))
"""
    file, models, answer, folder, bundled, accuracy = run(outside, "python", "-c", code).splitlines()
    assert Path(file).is_relative_to(outside) and Path(folder).is_relative_to(outside)
    assert {"s3_nano", "s3_tiny", "s3_small", "s3_base"} <= set(models.split())
    assert answer == "42"
    assert bundled.split() == sorted(path.name for path in (ROOT / "s3zoo/weights").iterdir())
    config = json.loads((ROOT / "s3zoo/weights/s3_nano.digits/config.json").read_text())
    assert float(accuracy) == config["s3zoo"]["provenance"]["metrics"][0]["value"]
