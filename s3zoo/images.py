"""Images from files, read as data: whatever is wrong with one is a sentence."""

from __future__ import annotations

import errno
from pathlib import Path
from typing import BinaryIO

from PIL import Image

from s3zoo.files import regular

LARGEST_IMAGE = 1 << 28  # bytes of a file
NARROW = 1000  # times as long as wide: resized by its shorter side, such an image would fill the memory


def read_image(file: Path | BinaryIO, mode: str) -> Image.Image:
    """The decoded image of a file, in Pillow's mode; a ValueError if it is none."""
    try:
        with Image.open(regular(file) if isinstance(file, Path) else file) as image:
            short, long = sorted(image.size)
            if long > NARROW * short:
                width, height = image.size
                raise ValueError(f"it is {width} x {height} pixels, more than {NARROW} times as long as wide")
            return image.convert(mode)
    except Exception as error:  # decoders raise many kinds where bytes are not what they expect
        if getattr(error, "errno", None) in (errno.EMFILE, errno.ENFILE, errno.ENOMEM):
            raise  # the machine's fault, not the image's
        name = repr(str(file)) if isinstance(file, Path) else "It"
        said = getattr(error, "strerror", None) or str(error) or type(error).__name__
        raise ValueError(f"{name} cannot be read as an image ({' '.join(said.split()).rstrip('.')}).") from None
