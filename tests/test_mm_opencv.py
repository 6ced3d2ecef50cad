"""OpenCV's own libraries, loaded where what they are linked against cannot be found."""

import importlib.metadata
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("mmcv")

from s3zoo.transfer.mm import opencv  # noqa: E402

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="opencv-python needs libGL on Linux only")
ROOT = Path(__file__).resolve().parent.parent
# A name of the same length that no machine has stands for each library: what an administrator has not installed.
ABSENT = {
    "libGL.so.1": "libNO.so.1",
    "libglib-2.0.so.0": "libnone-2.0.so.0",
    "libgthread-2.0.so.0": "libnothing-2.0.so.0",
}
assert all(len(name) == len(other) for name, other in ABSENT.items())


@pytest.fixture
def widgets(tmp_path: Path) -> Path:
    """Qt's windows as opencv-python brings them, linked against libraries that do not exist."""
    libraries = Path(str(importlib.metadata.distribution("opencv-python").locate_file("opencv_python.libs")))
    for path in libraries.iterdir():
        if path.name.startswith("libQt5"):
            content = path.read_bytes()
            for name, other in ABSENT.items():
                content = content.replace(name.encode() + b"\0", other.encode() + b"\0")
            (tmp_path / path.name).write_bytes(content)
        else:
            (tmp_path / path.name).symlink_to(path)
    (found,) = tmp_path.glob("libQt5Widgets-*")
    return found


def run(code: str, path: Path) -> str:
    """In a process of its own, as what is loaded stays; there, `opencv` is the module without what it is a part of."""
    preface = f"""
import ctypes, runpy, sys, types
from pathlib import Path
opencv = types.SimpleNamespace(**runpy.run_path({opencv.__file__!r}))
path = sys.argv[1]
"""
    command = [sys.executable, "-c", preface + code, str(path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout


def test_it_loads_without_the_libraries_of_a_display(widgets: Path) -> None:
    said = run(
        f"""
try:
    ctypes.CDLL(path)
except OSError as error:
    print(error)
names = {sorted(ABSENT.values())!r}
assert opencv.load_library(Path(path), ("libother.so.1",)) == []  # nothing else is replaced
try:
    ctypes.CDLL(path)
    raise AssertionError("it can be loaded")
except OSError:
    pass
replaced = opencv.load_library(Path(path), tuple(names))
assert sorted(replaced) == names, replaced
core = next(Path(path).parent.glob("libQt5Core-*"))
version = ctypes.CDLL(str(core))._ZN14QtOpenCVPython8qVersionEv
version.restype = ctypes.c_char_p
print(version().decode(), core.name)
stack = [line.split()[1] for line in open("/proc/self/maps") if line.rstrip().endswith("[stack]")]
print(stack)
""",
        widgets,
    )
    refused, loaded, stack = said.splitlines()
    assert "cannot open shared object file" in refused and any(name in refused for name in ABSENT.values())
    version, name = loaded.split()
    assert name.endswith(f".so.{version}")  # a function of the real library answers
    assert stack == "['rw-p']"  # not executable, as it is where a library does not say that it needs none


def test_what_is_loaded_has_the_name_and_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "a.so"
    path.write_bytes(opencv.empty_library("libGL.so.1", opencv._machine()))
    assert run("print(hasattr(ctypes.CDLL(path), 'glClear'))", path) == "False\n"
    assert path.stat().st_size < 500
