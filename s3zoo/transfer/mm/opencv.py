"""OpenCV on machines without a display's libraries, as servers and containers are.

mmcv depends on opencv-python, whose module is linked against Qt and through it against libGL and GLib, for windows that
nothing here opens. (mmdet's imaug brings opencv-python-headless, too; both write the folder cv2, and the last one in
wins, mostly the former.) Where such a library is missing, an empty one of its name is loaded in its place before cv2
is: the loader only asks for the name, and a function is looked for when it is called, which only windows do.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib
import importlib.util
import logging
import os
import re
import struct
import sys
import tempfile
from pathlib import Path

_logger = logging.getLogger(__name__)

DISPLAY = ("libGL.so.1", "libgthread-2.0.so.0", "libglib-2.0.so.0")  # what Qt needs to be loaded, and wheels leave out


def load() -> None:
    """Import cv2, on Linux also without the libraries of a display; raises ImportError if it cannot be."""
    if "cv2" not in sys.modules and sys.platform == "linux":
        spec = importlib.util.find_spec("cv2")
        for folder in (spec.submodule_search_locations if spec else None) or ():
            for path in Path(folder).glob("cv2*.so"):
                with contextlib.suppress(OSError):  # the import says it
                    missing = load_library(path)
                    if missing:
                        _logger.info("OpenCV runs without windows, as %s cannot be found.", " and ".join(missing))
    importlib.import_module("cv2")


def load_library(path: Path, replaceable: tuple[str, ...] = DISPLAY) -> list[str]:
    """Load a shared library with empty ones in place of the replaceable ones that it misses, whose names are given.

    Symbols are bound when they are used. A library that still cannot be loaded is left to whoever needs it.
    """
    replaced: list[str] = []
    while True:
        try:
            ctypes.CDLL(str(path), os.RTLD_LAZY)
        except OSError as error:
            found = re.match(r"(\S+): cannot open shared object file", str(error))
            if found and found[1] in replaceable and found[1] not in replaced:
                _load_empty(found[1])
                replaced.append(found[1])
                continue
        return replaced


def _load_empty(name: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / name
        path.write_bytes(empty_library(name, _machine()))
        ctypes.CDLL(str(path))  # stays, and is taken for every library of this name from now on


def _machine() -> int:
    """The processor as ELF numbers it, from the header of the running program."""
    with open("/proc/self/exe", "rb") as program:
        return struct.unpack_from("<H", program.read(20), 18)[0]


def empty_library(name: str, machine: int) -> bytes:
    """A shared library (ELF, 64 bits, little-endian) with a name (DT_SONAME) and nothing else.

    In the file: header (64 bytes), three program headers (56 each), names, one empty symbol (24), its hash table (16),
    and the dynamic section that says where these are.
    """
    names = b"\0" + name.encode() + b"\0"
    names += bytes(-len(names) % 8)
    at_names = 64 + 3 * 56
    at_symbols = at_names + len(names)
    at_hash = at_symbols + 24
    at_dynamic = at_hash + 16
    tags = dict(SONAME=(14, 1), STRTAB=(5, at_names), STRSZ=(10, len(names)), SYMTAB=(6, at_symbols), SYMENT=(11, 24))
    tags |= dict(HASH=(4, at_hash), NULL=(0, 0))
    dynamic = b"".join(struct.pack("<QQ", *tag) for tag in tags.values())
    size = at_dynamic + len(dynamic)
    header = b"\x7fELF\2\1\1" + bytes(9)
    header += struct.pack("<HHIQQQIHHHHHH", 3, machine, 1, 0, 64, 0, 0, 64, 56, 3, 64, 0, 0)  # 3: a shared object
    header += struct.pack("<IIQQQQQQ", 1, 6, 0, 0, 0, size, size, 0x10000)  # PT_LOAD, all of it, not executable
    header += struct.pack("<IIQQQQQQ", 2, 6, *[at_dynamic] * 3, *[len(dynamic)] * 2, 8)  # PT_DYNAMIC
    header += struct.pack("<IIQQQQQQ", 0x6474E551, 6, *[0] * 5, 16)  # PT_GNU_STACK: no executable stack is asked for
    return header + names + bytes(24) + struct.pack("<IIII", 1, 1, 0, 0) + dynamic
