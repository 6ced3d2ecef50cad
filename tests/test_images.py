"""One reader of images: whatever a file holds is an image or a sentence, and no file fills the memory."""

import io
import os
import resource
from pathlib import Path

import pytest
from PIL import Image

from s3zoo.images import read_image


def content(kind: str) -> bytes:
    stream = io.BytesIO()
    Image.new("RGB", (1, 2000) if kind == "narrow" else (40, 30), (9, 8, 7)).save(stream, "png")
    whole = stream.getvalue()
    width = whole.index(b"IHDR") + 4
    return {
        "narrow": whole, "empty": b"", "html": b"<html>", "cut": whole[:60],
        "larger than it says": whole[:width] + (60_000).to_bytes(4, "big") * 2 + whole[width + 8 :],
    }[kind]  # fmt: skip


@pytest.mark.parametrize("kind", ["narrow", "empty", "html", "cut", "larger than it says"])
def test_what_is_no_image_is_one_sentence(kind: str, tmp_path: Path) -> None:
    path = tmp_path / "a.png"
    path.write_bytes(content(kind))
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for file in (path, io.BytesIO(content(kind))):
        with pytest.raises(ValueError, match="cannot be read as an image") as caught:
            read_image(file, "RGB")
        assert "\n" not in str(caught.value)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 100_000  # KiB


def test_what_is_no_file_is_not_opened(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.png")  # whoever opens it waits for ever
    for name in ("pipe.png", ".", "absent.png"):
        with pytest.raises(ValueError, match="cannot be read as an image"):
            read_image(tmp_path / name, "RGB")


@pytest.mark.parametrize("error", [TypeError("x"), OverflowError("x"), AssertionError(), SyntaxError("x")])
def test_whatever_a_decoder_raises_is_the_images_fault(error: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise error

    monkeypatch.setattr(Image, "open", fail)
    with pytest.raises(ValueError, match="cannot be read as an image"):
        read_image(Path(__file__), "RGB")
    error = OSError(24, "Too many open files")
    with pytest.raises(OSError, match="Too many"):  # that is the machine's
        read_image(Path(__file__), "RGB")
