"""Checkpoint files: read without running what a pickle asks for; official ones fetched once, kept in our layout.

Authors publish pickles that hold more than tensors (training arguments, numpy scalars). Every one is read here, with
`weights_only` and the few harmless types below, never without, and its weights are found by one rule (`unwrap`).
"""

from __future__ import annotations

import argparse
import json
import logging
import pickle
import re
import shutil
import urllib.request
import warnings
import zipfile
import zlib
from collections.abc import Callable, Mapping
from http.client import HTTPException
from pathlib import Path
from typing import Any
from urllib.parse import urlparse

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save_file
from timm.models import clean_state_dict
from timm.models._hub import get_cache_dir
from torch import Tensor

from s3zoo.files import replacing, sha256
from s3zoo.models.folder import check_finite

_logger = logging.getLogger(__name__)

StateDict = dict[str, Tensor]

LAYOUT_VERSION = 1  # of the converted files in the cache; a file of another version is converted again
TIMEOUT = 30  # seconds without a byte before a download is given up

_scalar, _reconstruct = np.float64(0).__reduce__()[0], np.zeros(0).__reduce__()[0]
# What may be rebuilt from a pickle besides tensors: numbers and arrays of numpy, and plain holders of values. The mm
# package adds the curves that mmengine keeps (`allow`); there is no other list.
_ALLOWED: list[Any] = [
    argparse.Namespace,
    slice,
    np.ndarray,
    np.dtype,
    # numpy 1 and 2 pickle the same functions under different names
    *((function, f"{core}.multiarray.{name}") for core in ("numpy.core", "numpy._core")
      for function, name in ((_scalar, "scalar"), (_reconstruct, "_reconstruct"))),
    *(kind for kind in vars(np.dtypes).values() if isinstance(kind, type)),
]  # fmt: skip


def allow(*harmless: Any) -> None:
    """Let pickles rebuild these too: classes and functions that do nothing but hold values."""
    _ALLOWED.extend(harmless)


def read_file(file: Any, map_location: Any = "cpu") -> Any:
    """What a checkpoint holds (a path or an open file; pickled or safetensors); nothing in it is run.

    A `ValueError` says what is wrong: a web page, a damaged file (zip files have checksums, which torch ignores), or
    one that wants to run code.
    """
    if not isinstance(file, str | Path):
        return _unpickled(file, "The checkpoint", map_location)
    path = Path(file).expanduser()
    name = repr(str(path))
    if not path.is_file():
        raise ValueError(f"There is no checkpoint file at {name}; give the path of a .pth or .safetensors file.")
    with path.open("rb") as opened:
        start = opened.read(64)
    if not start:
        raise ValueError(f"{name} is empty; download the checkpoint again.")
    if start.lstrip().startswith(b"<"):
        raise ValueError(f"{name} is a web page, not a checkpoint; download the file itself.")
    if start.startswith(b"version https://git-lfs"):
        raise ValueError(f"{name} is a Git LFS pointer, not a checkpoint; fetch it with `git lfs pull`.")
    if start[8:9] == b"{":  # 8 bytes of length, then JSON
        try:
            return load_file(path, device=str(map_location) if isinstance(map_location, str | torch.device) else "cpu")
        except SafetensorError as error:
            raise ValueError(f"{name} is truncated or damaged ({error}); download it again.") from None
    if start.startswith(b"PK"):
        _check_zip(path, name)
    return _unpickled(path, name, map_location, is_pickle=start.startswith(b"\x80"))


def _check_zip(path: Path, name: str) -> None:
    try:
        with zipfile.ZipFile(path) as archive:
            packed = [entry.filename for entry in archive.infolist() if entry.compress_type != zipfile.ZIP_STORED]
            damaged = None if packed else archive.testzip()
    except (zipfile.BadZipFile, OSError, NotImplementedError, RuntimeError, EOFError, zlib.error):
        packed, damaged = [], "its table of contents"
    if packed or damaged:
        reason = f"{damaged} does not have its checksum" if damaged else f"{packed[0]} is compressed, as torch does not"
        raise ValueError(f"{name} is truncated or not a checkpoint: {reason}; download it again or give another file.")


def _unpickled(file: Any, name: str, map_location: Any, is_pickle: bool = False) -> Any:
    with torch.serialization.safe_globals(_ALLOWED), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # on pickle protocols: what cannot be read is refused below
        try:
            wanted = torch.serialization.get_unsafe_globals_in_checkpoint(file) if isinstance(file, Path) else []
        except (ValueError, RuntimeError, pickle.UnpicklingError):  # the format before zip files, or damaged
            wanted = []
        if wanted:
            raise _wants_code(name, ", ".join(sorted(wanted)))
        try:
            return torch.load(file, map_location=map_location, weights_only=True)
        except pickle.UnpicklingError as error:
            found = re.search(r"GLOBAL ([\w.]+)", str(error))
            if found:
                raise _wants_code(name, found[1]) from None
            if is_pickle:  # with an instruction that tensors do not need
                raise _wants_code(name, "it holds more than tensors") from None
        except (MemoryError, torch.OutOfMemoryError):
            raise
        except Exception:  # torch raises many kinds here, from EOFError to RuntimeError
            pass
    raise ValueError(f"{name} is truncated or not a checkpoint; download it again or give another file.")


def _wants_code(name: str, names: str) -> ValueError:
    return ValueError(
        f"{name} wants to run code while it is read ({names}), which is refused; give a file that holds tensors only, "
        "such as safetensors."
    )


def unwrap(content: Any, *, ema: bool = False, name: str = "The checkpoint") -> StateDict:
    """The weights by name in what a training script saved, where they may lie beside the optimizer's state.

    They are the model's own, and with `ema` the averaged ones; a file that has only averaged weights gives these, and
    says so.
    """
    own, averaged = ("model", "state_dict"), ("model_ema", "state_dict_ema")
    for _ in range(2):  # a state_dict may lie in a model
        if not isinstance(content, Mapping):
            break
        held = [key for key in own + averaged if isinstance(content.get(key), Mapping)]
        chosen = next((key for key in held if (key in averaged) == ema), None)
        if chosen is None and ema:
            raise ValueError(f"{name} holds no averaged weights (EMA) under {' or '.join(map(repr, averaged))}.")
        if chosen is None and held:
            chosen = held[0]
            _logger.warning("%s holds averaged weights (EMA) only, under %r; these are taken.", name, chosen)
        if chosen is None:
            break
        content, ema = content[chosen], False
    if (
        not isinstance(content, Mapping)
        or not content
        or not all(isinstance(k, str) and isinstance(v, Tensor) for k, v in content.items())
    ):
        raise ValueError(
            f"{name} holds no model weights (tensors by name, directly or under 'model' or 'state_dict'); give the"
            " checkpoint that the authors published."
        )
    return clean_state_dict(dict(content))


def read_checkpoint(path: str | Path, *, ema: bool = False) -> StateDict:
    """The tensors of a checkpoint file (.pth or .safetensors), by name; anything else is a `ValueError`."""
    weights = unwrap(read_file(path), ema=ema, name=repr(str(path)))
    check_finite(weights, repr(str(path)))
    return weights


def converted(
    url: str, name: str, convert: Callable[[StateDict], StateDict], cache_dir: str | Path | None = None
) -> Path:
    """The safetensors file `name` in the cache, made from the checkpoint at `url` if it is not there yet.

    The source is downloaded unless it already lies in the cache (by hand, say). Its address and sha256 are recorded in
    the file made from it.
    """
    folder = Path(cache_dir or get_cache_dir())
    target = folder / f"{name}.safetensors"
    if _record(target).items() >= {"url": url, "layout": LAYOUT_VERSION}.items():
        return target
    source = fetched(url, folder)
    published = read_checkpoint(source)
    _logger.warning("The weights of %s are unverified: their authors publish no sha256.", url)
    state_dict = convert(published)
    record = json.dumps({"url": url, "layout": LAYOUT_VERSION, "sha256": sha256(source)}, sort_keys=True)
    with replacing(target) as temporary:
        save_file({k: v.contiguous().clone() for k, v in state_dict.items()}, temporary, metadata={"s3zoo": record})
    return target


def fetched(url: str, cache_dir: str | Path | None = None) -> Path:
    """The checkpoint at `url` in the cache, downloaded unless it lies there."""
    path = Path(cache_dir or get_cache_dir()) / Path(urlparse(url).path).name
    if not path.is_file():
        _download(url, path)
        try:
            read_checkpoint(path)
        except ValueError:  # an error page, say: the next attempt must not find it
            path.unlink()
            raise
    return path


def _record(path: Path) -> dict[str, Any]:
    """What `converted` wrote about the file; empty if there is none that can be used."""
    try:
        with safe_open(path, "pt") as file:
            return json.loads((file.metadata() or {})["s3zoo"])
    except (OSError, SafetensorError, KeyError, ValueError):
        return {}


def _download(url: str, path: Path) -> None:
    # torch.hub.download_url_to_file waits for ever on a dead connection and takes a cut-off file for a whole one.
    _logger.info("Downloading %s to %s", url, path)
    try:
        with replacing(path) as temporary:
            with urllib.request.urlopen(url, timeout=TIMEOUT) as response, temporary.open("wb") as file:
                shutil.copyfileobj(response, file, 1 << 20)
                size, expected = file.tell(), response.headers.get("Content-Length")
            if expected is not None and size != int(expected):
                raise OSError(f"got {size} of {expected} bytes")
    except (OSError, HTTPException) as error:  # URLError and timeouts are OSErrors
        raise ValueError(f"Could not download {url} ({error}); get this file and place it at {path}.") from None
