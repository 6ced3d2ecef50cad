"""What only a GPU can show. Where there is none these tests are skipped; docs/gpu.md says what was run."""

import dataclasses

import numpy as np
import pytest
import torch
from test_loop import DATA, SPACE, TRAIN

from s3zoo.supernet import Supernet
from s3zoo.training.accuracy import hits
from s3zoo.training.data import ImageData
from s3zoo.training.distributed import Ranks, mixed_precision
from s3zoo.training.log import Log
from s3zoo.training.loop import SupernetTask, fit

pytestmark = pytest.mark.gpu
CUDA = torch.device("cuda", 0)


def trained(folder, amp=None, **options) -> tuple[Supernet, list[dict]]:
    torch.manual_seed(0)
    net = Supernet(SPACE, img_size=8, num_classes=10, in_chans=1, drop_path_rate=0.0, device=CUDA)
    config = dataclasses.replace(TRAIN, **options)
    data = ImageData(DATA, 0, device=CUDA)
    rows = fit(
        SupernetTask(net, config, 0), config, data, seed=0, ranks=Ranks(0, 1, CUDA), folder=folder, log=Log(None),
        name="test", amp=amp,
    )  # fmt: skip
    return net, rows


@pytest.mark.parametrize("options", [{}, {"sampling": "sandwich", "accumulate": 4}], ids=str)
def test_a_step_waits_once(tmp_path, options):
    """CUDA's own warnings count what the dispatch mode of test_loop.py cannot see: copies that wait."""
    trained(tmp_path / "warm", **options)
    torch.cuda.set_sync_debug_mode("warn")
    try:
        with pytest.warns(UserWarning, match="called a synchronizing CUDA operation") as waits:
            trained(tmp_path / "counted", checkpoint_seconds=99, **options)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert len([w for w in waits if w.filename.endswith("loop.py")]) <= 6 + 1  # six steps, and the end


def test_batches_are_pinned():
    images, targets, _ = next(ImageData(DATA, 0, device=CUDA).train_batches(0, 32))
    assert images.is_pinned() and targets.is_pinned()


def test_held_out_images_stay_on_the_device_and_are_the_same():
    there, here = ImageData(DATA, 0, device=CUDA), ImageData(DATA, 0)
    places = np.array([3, 1, 99])
    images, targets = there.search_at(places)
    assert images.device.type == "cuda" and torch.equal(images.cpu(), here.search_at(places)[0])
    assert hits(torch.nn.Flatten(), images, targets, CUDA).shape == (3,)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_mixed_precision_ends_near_single_precision(tmp_path, dtype):
    plain, _ = trained(tmp_path / "plain")
    mixed, rows = trained(tmp_path / "mixed", amp=dtype)
    assert 0 < (plain.flat - mixed.flat).abs().max() < 0.05
    assert ("skipped" in rows[-1]) == (dtype == torch.float16)


def test_the_type_of_mixed_precision_is_one_that_the_gpu_computes_with():
    major, _ = torch.cuda.get_device_capability(CUDA)
    assert mixed_precision(True, CUDA) == (torch.bfloat16 if major >= 8 else torch.float16)
    assert mixed_precision(True, CUDA, "float16") == torch.float16 and mixed_precision(False, CUDA) is None
