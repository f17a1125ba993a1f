"""Shared by all tests: marks that follow from folders, and fixtures."""

from __future__ import annotations

import os
import shutil
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from tests.support.processes import CHECKOUT, LEFT_OUT, TESTS, RunProfstack, run_python
from tests.support.recorded_runs import RecordedRuns, recorded_runs

# Tests of the pytest plugin run pytest inside of it.
pytest_plugins = ("pytester",)

# A shell starts its background jobs with SIGINT ignored, and children inherit that.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# The same examples in every run, and no judgement of their speed: a busy machine changes nothing.
settings.register_profile(
    "profstack",
    deadline=None,
    derandomize=True,
    max_examples=50,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)
settings.load_profile("profstack")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark each test by the folder it lies in: unit, process, browser, timed, project or gpu."""
    for item in items:
        item.add_marker(item.path.relative_to(TESTS).parts[0])


@pytest.fixture(autouse=True, scope="module")
def _nothing_compiled() -> Iterator[None]:
    """What one module's tests had compiled is forgotten before the next: layers give way to it."""
    yield
    if "torch._dynamo" in sys.modules:
        import torch

        torch._dynamo.reset()
        torch._dynamo.utils.counters.clear()


@pytest.fixture
def run_profstack(tmp_path: Path) -> RunProfstack:
    """Start `python -m profstack ARGS`, in the test's own folder; keywords are `run_python`'s."""
    return lambda args, **how: run_python("-m", "profstack", *args, **{"cwd": tmp_path, **how})


@pytest.fixture(scope="session")
def recorded_run(tmp_path_factory: pytest.TempPathFactory) -> RecordedRuns:
    """Runs of `profstack run` by name, each made once for all workers; for reading alone."""
    base = tmp_path_factory.getbasetemp()
    # The workers of xdist have a folder each inside the session's.
    return recorded_runs((base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "runs")


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """A copy of the checkout, with the link."""
    target = tmp_path / "copy"
    shutil.copytree(CHECKOUT, target, symlinks=True, ignore=LEFT_OUT)
    assert (target / "profstack" / "wrappers").is_symlink()
    return target
