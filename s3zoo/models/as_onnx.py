"""Networks as ONNX programs."""

from __future__ import annotations

import importlib.util
import logging
import warnings
from typing import Any

import torch
from torch import Tensor

from s3zoo.compat import WRITES_ONNX

OPSET, OPSETS = 20, range(18, 24)
ONNX_PACKAGES = ("onnx", "onnxruntime", "onnxscript")


def check_onnx_packages() -> None:
    """Refuse to go on without what writes and runs ONNX."""
    if not WRITES_ONNX:
        raise ValueError(f"ONNX export needs torch 2.13 or newer, and this is torch {torch.__version__}; update torch.")
    missing = [name for name in ONNX_PACKAGES if importlib.util.find_spec(name) is None]
    if missing:
        raise ValueError(f"ONNX export needs {', '.join(missing)}; install with: pip install {' '.join(missing)}")


def onnx_proto(model: Any, images: Tensor, opset: int = OPSET, dynamic_shapes: Any = None) -> Any:
    """The model as ONNX has it, for images of this shape."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        logging.getLogger("torch.onnx").setLevel(logging.ERROR)
        program = torch.onnx.export(
            model, (images,), dynamo=True, verbose=False, external_data=False, opset_version=opset,
            input_names=["image"], output_names=["logits"], dynamic_shapes=dynamic_shapes,
        )  # fmt: skip
    assert program is not None
    return program.model_proto
