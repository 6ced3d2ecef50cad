"""The stand-in for mmcv's compiled operators, against references in plain Python, and how it comes into place."""

import importlib
import importlib.metadata
import importlib.util
import math
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

pytest.importorskip("mmcv")

import mmcv  # noqa: E402
import mmcv.transforms  # noqa: E402  (before the fixture that changes mmcv's path)

import s3zoo.transfer.mm  # noqa: E402, F401
from s3zoo.transfer import mm  # noqa: E402
from s3zoo.transfer.mm import ops  # noqa: E402

pytestmark = pytest.mark.usefixtures("one_thread")
ROOT = Path(__file__).resolve().parent.parent
f32 = np.float32


# NMS


def iou(a, b, offset: int):
    """In float32, step by step, as the compiled operator computes it."""
    offset = f32(offset)
    area = [(box[2] - box[0] + offset) * (box[3] - box[1] + offset) for box in (a, b)]
    width = max(f32(0), min(a[2], b[2]) - max(a[0], b[0]) + offset)
    height = max(f32(0), min(a[3], b[3]) - max(a[1], b[1]) + offset)
    with np.errstate(invalid="ignore"):  # two empty boxes: not a number, which is not more than any threshold
        return width * height / (area[0] + area[1] - width * height)


def reference_nms(boxes: np.ndarray, scores: np.ndarray, threshold: float, offset: int) -> list[int]:
    kept: list[int] = []
    for i in sorted(range(len(boxes)), key=lambda i: -scores[i]):
        if not any(iou(boxes[j], boxes[i], offset) > f32(threshold) for j in kept):
            kept.append(i)
    return kept


def random_boxes(rng: np.random.Generator, n: int, whole: bool = False) -> np.ndarray:
    corner, size = rng.uniform(0, 30, (n, 2)), rng.uniform(0, 20, (n, 2))
    if whole:
        corner, size = (corner / 3).round(), (size / 3).round()  # small: an offset of 1 counts
    return np.concatenate([corner, corner + size], axis=1).astype(f32)


@pytest.mark.parametrize("offset", [0, 1])
@pytest.mark.parametrize("threshold", [0.1, 0.3, 0.5, 0.7])
def test_nms_keeps_what_the_reference_keeps(threshold: float, offset: int) -> None:
    rng = np.random.default_rng(0)
    differ = 0
    for n in (1, 7, 40, 60):
        boxes, scores = random_boxes(rng, n, whole=True), rng.permutation(n).astype(f32)
        expected = reference_nms(boxes, scores, threshold, offset)
        found = ops.nms(torch.from_numpy(boxes), torch.from_numpy(scores), threshold, offset)
        assert found.tolist() == expected
        differ += expected != reference_nms(boxes, scores, threshold, 1 - offset)
    assert differ, "the offset must make a difference in these cases"


def test_nms_compares_with_a_float32_threshold() -> None:
    """An overlap of 3 / 10 is, in float32, not more than 0.3 in float32, but more than 0.3 in double."""
    boxes = torch.tensor([[0, 0, 6.5, 1], [3.5, 0, 10, 1]])
    scores = torch.tensor([0.9, 0.8])
    assert reference_nms(boxes.numpy(), scores.numpy(), 0.3, 0) == [0, 1]
    assert ops.nms(boxes, scores, 0.3, 0).tolist() == [0, 1]
    assert torch.ops.torchvision.nms(boxes, scores, 0.3).tolist() == [0]  # what has to be taken care of


def test_nms_of_nothing() -> None:
    assert ops.nms(torch.zeros(0, 4), torch.zeros(0), 0.5).shape == (0,)
    kept, indices = mmcv_ops().nms(torch.zeros(0, 4), torch.zeros(0), 0.5)
    assert kept.shape == (0, 5) and indices.shape == (0,)


def mmcv_ops():
    return importlib.import_module("mmcv.ops")


@pytest.mark.parametrize("method", ["naive", "linear", "gaussian"])
@pytest.mark.parametrize("offset", [0, 1])
def test_soft_nms_fills_its_output(method: str, offset: int) -> None:
    """Through mmcv, which hands over a buffer for boxes and decayed scores."""
    rng = np.random.default_rng(1)
    boxes, scores = random_boxes(rng, 25), rng.uniform(0.05, 1, 25).astype(f32)
    left, expected = {i: float(scores[i]) for i in range(25)}, []
    while left:
        best = max(left, key=lambda i: left[i])
        expected.append((best, left.pop(best)))
        for i in list(left):
            overlap = float(iou(boxes[best], boxes[i], offset))
            if method == "gaussian":
                left[i] *= math.exp(-(overlap**2) / 0.5)
            elif overlap >= 0.3:
                left[i] *= 0 if method == "naive" else 1 - overlap
            if left[i] < 0.1:
                del left[i]
    dets, indices = mmcv_ops().soft_nms(boxes, scores, 0.3, 0.5, 0.1, method, offset)
    assert indices.tolist() == [i for i, _ in expected] and 1 < len(expected) < 25
    np.testing.assert_array_equal(dets[:, :4], boxes[indices])
    np.testing.assert_allclose(dets[:, 4], [score for _, score in expected], rtol=1e-5)


# RoIAlign


def reference_samples(roi, scale: float, size: tuple[int, int], ratio: int, aligned: bool, height: int, width: int):
    """For each output cell the (row, column, weight) of the pixels of which it is the sum."""
    shift = 0.5 if aligned else 0.0
    x1, y1, x2, y2 = (float(v) * scale - shift for v in roi[1:])
    w, h = x2 - x1, y2 - y1
    if not aligned:
        w, h = max(w, 1.0), max(h, 1.0)
    rows = ratio if ratio > 0 else math.ceil(h / size[0])
    cols = ratio if ratio > 0 else math.ceil(w / size[1])
    for i in range(size[0]):
        for j in range(size[1]):
            taps: list[tuple[int, int, float]] = []
            for a in range(rows):
                for b in range(cols):
                    y = y1 + (i + (a + 0.5) / rows) * h / size[0]
                    x = x1 + (j + (b + 0.5) / cols) * w / size[1]
                    if y < -1 or y > height or x < -1 or x > width:
                        continue  # outside the image: zero
                    y, x = min(max(y, 0), height - 1), min(max(x, 0), width - 1)
                    r, c = int(y), int(x)
                    r2, c2 = min(r + 1, height - 1), min(c + 1, width - 1)
                    for rr, wy in ((r, 1 - (y - r)), (r2, y - r)):
                        for cc, wx in ((c, 1 - (x - c)), (c2, x - c)):
                            taps.append((rr, cc, wy * wx / max(rows * cols, 1)))
            yield i, j, taps


ROIS = torch.tensor(
    [[0, 1.0, 2.0, 20.0, 17.0], [1, 3.3, 0.7, 9.1, 30.2], [1, -5.0, -4.0, 6.0, 8.0], [0, 10, 10, 10.5, 10.2]]
)


@pytest.mark.parametrize("aligned", [True, False])
@pytest.mark.parametrize(("size", "ratio"), [((7, 7), 0), ((3, 5), 2), ((2, 2), 1)])
def test_roi_align_writes_output_and_gradient_in_place(size: tuple[int, int], ratio: int, aligned: bool) -> None:
    torch.manual_seed(0)
    images, scale = torch.randn(2, 3, 16, 12), 0.5
    expected, gradient = torch.zeros(4, 3, *size), torch.zeros_like(images)
    upstream = torch.randn(4, 3, *size)
    for n, roi in enumerate(ROIS):
        image = int(roi[0])
        for i, j, taps in reference_samples(roi, scale, size, ratio, aligned, 16, 12):
            for r, c, weight in taps:
                expected[n, :, i, j] += images[image, :, r, c] * weight
                gradient[image, :, r, c] += upstream[n, :, i, j] * weight
    settings = dict(
        aligned_height=size[0],
        aligned_width=size[1],
        spatial_scale=scale,
        sampling_ratio=ratio,
        pool_mode=1,
        aligned=aligned,
    )
    output, argmax_y, argmax_x = torch.full_like(expected, 7.0), torch.zeros(0), torch.zeros(0)
    assert ops.roi_align_forward(images, ROIS, output, argmax_y, argmax_x, **settings) is None
    torch.testing.assert_close(output, expected, atol=1e-5, rtol=1e-5)
    grad_input = torch.full_like(images, 7.0)
    assert ops.roi_align_backward(upstream, ROIS, argmax_y, argmax_x, grad_input, **settings) is None
    torch.testing.assert_close(grad_input, gradient, atol=1e-4, rtol=1e-4)
    assert argmax_y.numel() == argmax_x.numel() == 0

    leaf = images.clone().requires_grad_()  # the same through mmcv's layer and its autograd function
    pooled = mmcv_ops().RoIAlign(size, scale, ratio, aligned=aligned)(leaf, ROIS)
    pooled.backward(upstream)
    torch.testing.assert_close(pooled, expected, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(leaf.grad, gradient, atol=1e-4, rtol=1e-4)


def test_roi_align_pools_half_precision_in_float32() -> None:
    images = torch.randn(2, 3, 16, 12, generator=torch.Generator().manual_seed(0)).bfloat16()
    output = torch.zeros(4, 3, 7, 7, dtype=torch.bfloat16)
    ops.roi_align_forward(images, ROIS.bfloat16(), output, images, images, 7, 7, 0.5, 0, 1, True)
    whole = torch.zeros(4, 3, 7, 7)
    ops.roi_align_forward(images.float(), ROIS.bfloat16().float(), whole, whole, whole, 7, 7, 0.5, 0, 1, True)
    assert torch.equal(output, whole.bfloat16())


def test_max_pooling_is_refused() -> None:
    with pytest.raises(NotImplementedError, match="pool_mode='max' needs mmcv's compiled operators"):
        mmcv_ops().RoIAlign(7, pool_mode="max")(torch.zeros(1, 1, 8, 8), ROIS[:1])
    with pytest.raises(NotImplementedError, match="set pool_mode='avg'"):
        ops.roi_align_backward(*[torch.zeros(1)] * 5, 1, 1, 1.0, 0, 0, True)


def test_other_operators_say_what_to_do() -> None:
    with pytest.raises(NotImplementedError, match=r"operator 'roi_pool_forward' is not available.*compile mmcv"):
        mmcv_ops().RoIPool(7)(torch.zeros(1, 1, 8, 8), ROIS[:1])
    assert "torchvision" in mmcv_ops().get_compiler_version()
    assert mmcv_ops().get_compiling_cuda_version() == "not available"


# Import


def test_the_extension_is_this_module_and_is_announced_once(capsys: pytest.CaptureFixture[str]) -> None:
    mmcv_ops()
    capsys.readouterr()
    assert ops.is_stand_in() and sys.modules["mmcv._ext"].__spec__.origin == ops.__file__
    from mmcv.utils import ext_loader

    assert ext_loader.check_ops_exist()
    ops.install()
    ops.install()
    assert sum(finder is ops._extension for finder in sys.meta_path) == 1
    said = capsys.readouterr()
    assert "torchvision" not in said.out + said.err


def test_a_compiled_extension_wins_unless_forced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "_ext.py").write_text("")
    monkeypatch.setattr(mmcv, "__path__", [*mmcv.__path__, str(tmp_path)])
    loaded = sys.modules.pop("mmcv._ext", None)
    try:
        assert importlib.util.find_spec("mmcv._ext").origin == str(tmp_path / "_ext.py")
        ops.install(force=True)
        assert importlib.util.find_spec("mmcv._ext").origin == ops.__file__
        assert sys.meta_path[0] is ops._extension and sys.meta_path[-1] is ops._imgaug  # imgaug is never forced
        monkeypatch.setitem(sys.modules, "mmcv._ext", type(sys)("mmcv._ext"))
        with pytest.raises(ValueError, match="loaded its compiled operators already"):
            ops.install(force=True)
    finally:
        ops.install()
        if loaded is not None:
            sys.modules["mmcv._ext"] = loaded


def run(code: str) -> str:
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout + done.stderr


# As if these packages were not installed; finders that are not the path's still answer.
HIDE = """
import importlib.machinery
find = importlib.machinery.PathFinder.find_spec
importlib.machinery.PathFinder.find_spec = classmethod(
    lambda cls, name, *args: None if name.partition(".")[0] in {names!r} else find(name, *args)
)
"""


def test_it_works_whatever_was_imported_first_and_without_imgaug() -> None:
    """mmdet without operators puts placeholders in place of them; the import of its models even fails."""
    said = run(
        HIDE.format(names=["imgaug"])
        + """
import mmdet.structures.mask.structures as early
assert early.roi_align.__module__ == early.__name__
try:
    import mmdet.models
except ModuleNotFoundError as error:
    assert error.name == "mmcv._ext", error
else:
    raise AssertionError("mmcv has compiled operators: this test has no object")
import s3zoo.transfer.mm
import mmcv.ops, mmdet.models, mmdet.datasets
import mmdet.models.losses.focal_loss as focal, mmdet.models.dense_heads.clr_head.clr_head as lanes
assert early.roi_align is mmcv.ops.roi_align
assert focal._sigmoid_focal_loss is mmcv.ops.sigmoid_focal_loss  # imported under another name
assert lanes.nms is mmcv.ops.line_nms  # not mmcv.ops.nms
from mmdet.datasets.transforms import ImageAug
import imgaug
assert imgaug.__loader__ is s3zoo.transfer.mm.ops._imgaug.loader
try:
    imgaug.augmenters.Sequential([])
except NotImplementedError as error:
    print(error)
"""
    )
    assert said.count("RoIAlign and NMS run on torchvision's") == 1
    assert "imgaug's Sequential is not available, as imgaug is not installed; install it with `pip install" in said


# What is not installed


def test_without_the_packages_one_sentence_says_what_to_install() -> None:
    code = HIDE.format(names=["mmengine", "mmcv"])
    code += """
import s3zoo, s3zoo.transfer
try:
    import s3zoo.transfer.mm
except ImportError as error:
    assert isinstance(error, ValueError)
    print(error)
"""
    said = "mmengine and mmcv cannot be found; install the packages with pip install 's3zoo[mm]'.\n"
    assert run(code) == said


def test_an_opencv_without_libgl_is_answered_with_the_repair() -> None:
    error = "ImportError('libGL.so.1: cannot open shared object file: No such file or directory')"
    code = f"""
import importlib, importlib.abc, sys
class Broken(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name == "cv2":
            raise {error}
sys.meta_path.insert(0, Broken())
import s3zoo.transfer.mm
"""
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    names = ("opencv-python-headless", "opencv-python")  # as s3zoo looks for them
    version = next(d.version for name in names for d in importlib.metadata.distributions(name=name))
    assert done.stderr.splitlines()[-1].endswith(
        "OpenCV cannot be imported (libGL.so.1: cannot open shared object file: No such file or directory); repair it "
        f"with `pip install --force-reinstall --no-deps opencv-python-headless=={version}`."
    )


def test_require_names_what_is_missing() -> None:
    mm.require("mmengine")
    with pytest.raises(mm.NotInstalled, match=r"^mmnothing cannot be found; install .* pip install 's3zoo\[mm\]'\.$"):
        mm.require("mmengine", "mmnothing")
