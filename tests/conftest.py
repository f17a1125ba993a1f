"""Shared by all tests: where things lie, and how to start profstack as its users do."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest

CHECKOUT = Path(__file__).resolve().parent.parent

LEFT_OUT = shutil.ignore_patterns(
    *(".*", "__pycache__", "*.egg-info", "build", "dist", "node_modules", "profstack-runs"),
    *("tests", "benchmarks"),
)

RunProfstack = Callable[..., "subprocess.CompletedProcess[str]"]


def clean_environment(**changes: str) -> dict[str, str]:
    """The environment less what would reach into a child's imports or into profstack itself."""
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("PYTHON", "PROFSTACK", "COVERAGE", "PYTEST"))
    }
    # Measuring the machine's peaks takes seconds, and is tried in its own tests.
    kept["PROFSTACK_PEAKS"] = "0"
    if not _is_installed():
        kept["PYTHONPATH"] = str(CHECKOUT)
    return kept | changes


@cache
def _is_installed() -> bool:
    """Whether `import profstack` finds this very checkout without help."""
    answer = subprocess.run(
        [sys.executable, "-I", "-c", "import profstack; print(profstack.__file__)"],
        capture_output=True,
        text=True,
        check=False,
    )
    return Path(answer.stdout.strip() or "/").parent == CHECKOUT / "profstack"


@pytest.fixture(autouse=True, scope="module")
def _nothing_compiled() -> Iterator[None]:
    """What one module's tests had compiled is forgotten before the next: layers give way to it."""
    yield
    if "torch._dynamo" in sys.modules:
        import torch

        torch._dynamo.reset()
        torch._dynamo.utils.counters.clear()


@pytest.fixture(scope="session")
def checkout() -> Path:
    """The root of the checkout."""
    return CHECKOUT


@pytest.fixture(scope="session")
def examples(checkout: Path) -> Path:
    """The folder of the examples."""
    return checkout / "examples"


@pytest.fixture
def run_profstack(tmp_path: Path) -> RunProfstack:
    """Start `python -m profstack ARGS`; in the test's own folder unless told otherwise.

    `env` adds to the cleaned environment; further keywords go to `subprocess.run`.
    """

    def run(
        args: list[str],
        cwd: Path | None = None,
        env: dict[str, str] | None = None,
        **keywords: Any,
    ) -> subprocess.CompletedProcess[str]:
        if "input" not in keywords:
            keywords.setdefault("stdin", subprocess.DEVNULL)
        keywords.setdefault("timeout", 600)
        return subprocess.run(
            [sys.executable, "-m", "profstack", *map(str, args)],
            cwd=cwd or tmp_path,
            env=clean_environment(**(env or {})),
            capture_output=True,
            text=True,
            check=False,
            **keywords,
        )

    return run


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """A copy of the checkout, with the link."""
    target = tmp_path / "copy"
    shutil.copytree(CHECKOUT, target, symlinks=True, ignore=LEFT_OUT)
    assert (target / "profstack" / "wrappers").is_symlink()
    return target
