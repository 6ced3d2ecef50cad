"""Settings shared by all tests."""

import os
from collections.abc import Iterator

import pytest
import torch
from hypothesis import settings

os.environ.setdefault("MPLBACKEND", "Agg")
torch.set_num_threads(min(2, os.cpu_count() or 1))  # the same sums on a laptop and on a big machine
settings.register_profile("s3zoo", deadline=None)  # a loaded machine is not a failed property
settings.load_profile("s3zoo")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if not torch.cuda.is_available():
        for item in items:
            if "gpu" in item.keywords:
                item.add_marker(pytest.mark.skip(reason="needs CUDA"))


@pytest.fixture
def one_thread() -> Iterator[None]:
    """Small tensors gain nothing from a second thread and wait for it on a busy machine."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)
