"""Settings shared by all tests."""

import os
import shutil
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from hypothesis import settings
from oldest import SKIPPED

os.environ.setdefault("MPLBACKEND", "Agg")
torch.set_num_threads(min(2, os.cpu_count() or 1))  # the same sums on a laptop and on a big machine
settings.register_profile("s3zoo", deadline=None)  # a loaded machine is not a failed property
settings.load_profile("s3zoo")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if "gpu" in item.keywords and not torch.cuda.is_available():
            item.add_marker(pytest.mark.skip(reason="needs CUDA"))
        old, why = SKIPPED.get(item.nodeid.removeprefix("tests/").partition("[")[0], (False, ""))
        if old:
            item.add_marker(pytest.mark.skip(reason=why))


@pytest.fixture(autouse=True, scope="session")
def no_reports() -> Iterator[None]:
    """A search by the command ends with a report, which takes longer than a search of a test; test_report.py has it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("s3zoo.search.command.report", lambda runs, folder: "report: left out")
        yield


@pytest.fixture(autouse=True, scope="session")
def no_machine_is_too_busy() -> Iterator[None]:
    """Tests run beside each other, where latencies are refused with good reason; test_latency.py has that."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("s3zoo.search.latency.TOLERANCE", 1e9)
        yield


def _one_thread() -> Iterator[None]:
    """Small tensors gain nothing from a second thread and wait for it on a busy machine."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


one_thread = pytest.fixture(_one_thread)
one_thread_here = pytest.fixture(scope="module")(_one_thread)  # also for the fixtures of a module


@pytest.fixture(scope="module")
def chromium() -> Iterator[Any]:
    """A headless Chromium that keeps what the console says."""
    webdriver = pytest.importorskip("selenium.webdriver", reason="selenium is not installed")
    program = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    driver = shutil.which("chromedriver")
    if not program or not driver:
        pytest.skip("no chromium or no chromedriver on this machine")
    options = webdriver.ChromeOptions()
    options.binary_location = program
    for argument in ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"):
        options.add_argument(argument)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    running = webdriver.Chrome(options=options, service=webdriver.ChromeService(executable_path=driver))
    yield running
    running.quit()
