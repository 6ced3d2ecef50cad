"""mmcv's compiled operators on torchvision's: what the detectors here need, where mmcv was installed without compiling.

mmcv reaches its operators through one extension module, `mmcv._ext`. `install` appends a finder for that module alone
to the end of the line, so that a compiled extension always wins. The operators have the extension's signatures: they
are called by mmcv's own layers and autograd functions, which stay as they are.
"""

from __future__ import annotations

import importlib
import sys
import types
from collections.abc import Callable, Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from typing import Any

import torch
import torchvision  # noqa: F401  (registers torch.ops.torchvision)
from mmengine.logging import print_log
from torch import Tensor

EXTENSION = "mmcv._ext"
HINT = (
    "compile mmcv for your torch (the section on compiled operators in docs/dense.md) or use a model without this "
    "operator"
)


# The operators. Arguments are named as mmcv's layers name them.


def nms(boxes: Tensor, scores: Tensor, iou_threshold: float, offset: int = 0) -> Tensor:
    """Indices of the boxes that no better one overlaps by more than the threshold, best first.

    Sides are x2 - x1 + offset in mmcv and x2 - x1 in torchvision, so the offset is added to x2 and y2. mmcv compares
    with a float32 threshold, torchvision with a double, so it is rounded first: else an overlap of exactly the
    threshold is kept by one and dropped by the other.
    """
    if boxes.numel() == 0:
        return torch.empty(0, dtype=torch.long, device=boxes.device)
    boxes, scores = boxes.float(), scores.float()
    if offset:
        boxes = boxes + boxes.new_tensor([0, 0, offset, offset])
    return torch.ops.torchvision.nms(boxes, scores, float(torch.tensor(iou_threshold, dtype=torch.float32)))


def _overlaps(box: Tensor, others: Tensor, offset: int) -> Tensor:
    """IoU of one box with several."""
    corner = torch.minimum(box[2:4], others[:, 2:4]) - torch.maximum(box[:2], others[:, :2])
    inter = (corner + offset).clamp(min=0).prod(dim=1)
    area = (box[2:4] - box[:2] + offset).prod()
    return inter / (area + (others[:, 2:4] - others[:, :2] + offset).prod(dim=1) - inter)


def softnms(
    boxes: Tensor,
    scores: Tensor,
    dets: Tensor,
    iou_threshold: float,
    sigma: float,
    min_score: float,
    method: int,
    offset: int,
) -> Tensor:
    """Soft-NMS (https://arxiv.org/abs/1704.04503); fills the first rows of `dets` with boxes and decayed scores.

    `method`: 0 drops what overlaps too much, 1 decays linearly, 2 by a Gaussian. Boxes below `min_score` are dropped.
    """
    boxes, scores = boxes.float().cpu(), scores.float().cpu().clone()
    left = torch.arange(len(boxes))
    kept: list[int] = []
    while len(left):
        best = int(scores[left].argmax())
        index = int(left[best])
        dets[len(kept), :4], dets[len(kept), 4] = boxes[index], scores[index]
        kept.append(index)
        # The extension swaps the best box with the first of the rest, which decides the order of equal scores.
        left[best] = left[0]
        left = left[1:]
        iou = _overlaps(boxes[index], boxes[left], offset)
        if method == 2:
            weight = torch.exp(-(iou * iou) / sigma)
        else:
            weight = torch.where(iou >= iou_threshold, 1 - iou if method else torch.zeros_like(iou), 1.0)
        scores[left] = scores[left] * weight
        left = left[~(scores[left] < min_score)]
    return torch.tensor(kept, dtype=torch.long)


def _refuse_max(pool_mode: int) -> None:
    if pool_mode != 1:
        raise NotImplementedError(
            f"RoIAlign with pool_mode='max' needs mmcv's compiled operators, torchvision averages only; set "
            f"pool_mode='avg', or {HINT}."
        )


def roi_align_forward(
    input: Tensor,
    rois: Tensor,
    output: Tensor,
    argmax_y: Tensor,
    argmax_x: Tensor,
    aligned_height: int,
    aligned_width: int,
    spatial_scale: float,
    sampling_ratio: int,
    pool_mode: int,
    aligned: bool,
) -> None:
    """RoIAlign into `output`; the argmax buffers belong to max pooling and stay as they are."""
    _refuse_max(pool_mode)
    pooled = torch.ops.torchvision.roi_align(
        input.float(), rois.float(), spatial_scale, aligned_height, aligned_width, sampling_ratio, aligned
    )  # in float32: half precision would also sum in it
    output.copy_(pooled)


def roi_align_backward(
    grad_output: Tensor,
    rois: Tensor,
    argmax_y: Tensor,
    argmax_x: Tensor,
    grad_input: Tensor,
    aligned_height: int,
    aligned_width: int,
    spatial_scale: float,
    sampling_ratio: int,
    pool_mode: int,
    aligned: bool,
) -> None:
    """The gradient of RoIAlign into `grad_input`; none to the boxes, as in mmcv."""
    _refuse_max(pool_mode)
    batch, channels, height, width = grad_input.shape
    grad = torch.ops.torchvision._roi_align_backward(
        grad_output.float(),
        rois.float(),
        spatial_scale,
        aligned_height,
        aligned_width,
        batch,
        channels,
        height,
        width,
        sampling_ratio,
        aligned,
    )
    grad_input.copy_(grad)


def get_compiler_version() -> str:
    return "none (operators by torchvision)"


def get_compiling_cuda_version() -> str:
    return "not available"


OPERATORS: tuple[Callable[..., Any], ...] = (
    nms,
    softnms,
    roi_align_forward,
    roi_align_backward,
    get_compiler_version,
    get_compiling_cuda_version,
)


NO_OPERATOR = (
    "The mmcv operator {!r} is not available, as this mmcv was installed without compiled operators and torchvision has"
    f" no equal of it; {HINT}."
)
NO_IMGAUG = "imgaug's {} is not available, as imgaug is not installed; install it with `pip install imaug`."


# Import

# What mmdet imports for lane detection alone; imgaug brings two OpenCVs along, so a lean installation has it not.
IMGAUG = ("imgaug", *(f"imgaug.{name}" for name in ("augmenters", "augmentables")))
IMGAUG += tuple(f"imgaug.augmentables.{name}" for name in ("lines", "segmaps"))


class _Loader(Loader):
    """Makes a module of `members` in which any other name is a function that refuses by the sentence when called."""

    def __init__(self, sentence: str, members: tuple[Callable[..., Any], ...] = ()) -> None:
        self.sentence = sentence
        self.members = members

    def exec_module(self, module: types.ModuleType) -> None:
        for member in self.members:
            setattr(module, member.__name__, member)
        module.__getattr__ = self.absent  # type: ignore[method-assign]  # PEP 562
        if self.members:
            print_log("mmcv has no compiled operators: RoIAlign and NMS run on torchvision's.", logger="current")

    def absent(self, name: str) -> Callable[..., Any]:
        """mmcv and mmdet ask for all names when they are imported; only a call is an error."""
        if name.startswith("__"):
            raise AttributeError(name)

        def refuse(*args: Any, **kwargs: Any) -> Any:
            raise NotImplementedError(self.sentence.format(name))

        refuse.__name__ = refuse.__qualname__ = name
        return refuse


class _Finder(MetaPathFinder):
    def __init__(self, loader: _Loader, *names: str) -> None:
        self.loader = loader
        self.names = names

    def find_spec(self, fullname: str, path: Sequence[str] | None = None, target: Any = None) -> ModuleSpec | None:
        if fullname not in self.names:
            return None
        return ModuleSpec(fullname, self.loader, origin=__file__, is_package=fullname != EXTENSION)


_extension = _Finder(_Loader(NO_OPERATOR, OPERATORS), EXTENSION)
_imgaug = _Finder(_Loader(NO_IMGAUG), *IMGAUG)


def install(force: bool = False) -> None:
    """Make `mmcv._ext` importable, whatever was imported before; again is harmless.

    With `force` the stand-in comes before a compiled extension: for one that does not load ("undefined symbol").
    """
    if force and EXTENSION in sys.modules and not is_stand_in():
        raise ValueError("mmcv has loaded its compiled operators already; call install(force=True) before mmcv.ops is.")
    for finder in (_extension, _imgaug):
        if finder in sys.meta_path:
            sys.meta_path.remove(finder)
        sys.meta_path.append(finder)  # last: what is really installed wins
    if force:
        sys.meta_path.insert(0, sys.meta_path.pop(sys.meta_path.index(_extension)))
    imported = {name.partition(".")[0] for name in sys.modules}
    if "mmcv.ops" not in sys.modules and imported & {"mmdet", "mmseg"}:
        _repair()


def is_stand_in() -> bool:
    """Whether the operators are those of this module (so far: mmcv imports its extension with `mmcv.ops`)."""
    return getattr(sys.modules.get(EXTENSION), "__loader__", None) is _extension.loader


# The operators that modules import under another name.
RENAMED = {
    "mmdet.models.dense_heads.clr_head.clr_head": {"nms": "line_nms"},
    "mmdet.models.losses.focal_loss": {"_sigmoid_focal_loss": "sigmoid_focal_loss"},
    "mmseg.models.losses.focal_loss": {"_sigmoid_focal_loss": "sigmoid_focal_loss"},
}


def _repair() -> None:
    """Give modules of mmdet and mmseg the operators: without any they have put in the place of what they import from
    mmcv.ops None, or a class or function that raises, under the same name.
    """
    home = importlib.import_module("mmcv.ops")
    for name, module in list(sys.modules.items()):
        if name.partition(".")[0] in ("mmdet", "mmseg"):
            operators = {operator: operator for operator in home.__all__} | RENAMED.get(name, {})
            for own in operators.keys() & vars(module).keys():
                found = vars(module)[own]
                if found is None or getattr(found, "__module__", None) == name:
                    setattr(module, own, getattr(home, operators[own]))
