"""Official checkpoint files: read without running what a pickle asks for, fetched once, kept in our layout.

The authors publish pickles that hold more than tensors (training arguments, numpy scalars). They are read with
`weights_only` and the few harmless types below, never without.
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

_logger = logging.getLogger(__name__)

StateDict = dict[str, Tensor]

LAYOUT_VERSION = 1  # of the converted files in the cache; a file of another version is converted again
TIMEOUT = 30  # seconds without a byte before a download is given up

_scalar = np.float64(0).__reduce__()[0]  # the function that rebuilds numpy scalars, at its place in this numpy
_SAFE_GLOBALS: list[Any] = [
    argparse.Namespace,
    np.dtype,
    (_scalar, "numpy.core.multiarray.scalar"),  # numpy 1 and 2 pickle the same function under different names
    (_scalar, "numpy._core.multiarray.scalar"),
    *(kind for kind in vars(np.dtypes).values() if isinstance(kind, type)),
]


def read_checkpoint(path: str | Path) -> StateDict:
    """The tensors of a checkpoint file (.pth or .safetensors), by name; anything else is a `ValueError`."""
    path = Path(path).expanduser()
    if not path.is_file():
        raise ValueError(f"There is no checkpoint file at {str(path)!r}; give the path of a .pth or .safetensors file.")
    with path.open("rb") as file:
        start = file.read(64)
    if not start:
        raise ValueError(f"{str(path)!r} is empty; download the checkpoint again.")
    if start.lstrip().startswith(b"<"):
        raise ValueError(f"{str(path)!r} is a web page, not a checkpoint; download the file itself.")
    if start.startswith(b"version https://git-lfs"):
        raise ValueError(f"{str(path)!r} is a Git LFS pointer, not a checkpoint; fetch it with `git lfs pull`.")
    if start[8:9] == b"{":  # 8 bytes of length, then JSON
        content = _read_safetensors(path)
    else:
        content = _read_pickle(path, is_pickle=start.startswith(b"\x80"))
    if isinstance(content, Mapping):
        content = next((content[k] for k in ("model", "state_dict") if isinstance(content.get(k), Mapping)), content)
    if (
        not isinstance(content, Mapping)
        or not content
        or not all(isinstance(k, str) and isinstance(v, Tensor) for k, v in content.items())
    ):
        raise ValueError(
            f"{str(path)!r} holds no model weights (tensors by name, directly or under 'model'); "
            "give the checkpoint that the authors published."
        )
    return clean_state_dict(dict(content))


def _read_safetensors(path: Path) -> Any:
    try:
        return load_file(path)
    except SafetensorError as error:
        raise ValueError(f"{str(path)!r} is truncated or damaged ({error}); download it again.") from None


def _read_pickle(path: Path, is_pickle: bool) -> Any:
    with torch.serialization.safe_globals(_SAFE_GLOBALS):
        try:
            wanted = torch.serialization.get_unsafe_globals_in_checkpoint(path)
        except (ValueError, RuntimeError):  # the format before zip files, or damaged: loading tells
            wanted = []
        if wanted:
            raise _wants_code(path, ", ".join(sorted(wanted)))
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # on pickle protocols: what cannot be read is refused below
                return torch.load(path, map_location="cpu", weights_only=True)
        except pickle.UnpicklingError as error:
            found = re.search(r"GLOBAL ([\w.]+)", str(error))
            if found:
                raise _wants_code(path, found[1]) from None
            if is_pickle:  # with an instruction that tensors do not need
                raise _wants_code(path, "it holds more than tensors") from None
        except Exception:  # torch raises many kinds here, from EOFError to RuntimeError
            pass
    raise ValueError(f"{str(path)!r} is truncated or not a checkpoint; download it again or give another file.")


def _wants_code(path: Path, names: str) -> ValueError:
    return ValueError(
        f"{str(path)!r} wants to run code while it is read ({names}), which is refused; "
        "give a file that holds tensors only, such as safetensors."
    )


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
    source = folder / Path(urlparse(url).path).name
    fetched = not source.is_file()
    if fetched:
        _download(url, source)
    try:
        published = read_checkpoint(source)
    except ValueError:
        if fetched:  # an error page, say: the next attempt must not find it
            source.unlink()
        raise
    _logger.warning("The weights of %s are unverified: their authors publish no sha256.", url)
    state_dict = convert(published)
    record = json.dumps({"url": url, "layout": LAYOUT_VERSION, "sha256": sha256(source)}, sort_keys=True)
    with replacing(target) as temporary:
        save_file({k: v.contiguous().clone() for k, v in state_dict.items()}, temporary, metadata={"s3zoo": record})
    return target


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
