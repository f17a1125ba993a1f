"""What the tests with a real Nsight Systems share: the tool itself, and an nvtx that it takes.

Where it cannot be had they are skipped with the reason; with PROFSTACK_NEEDS_NSYS=1 in the
environment, as continuous integration sets it, they fail instead.
"""

from __future__ import annotations

import fcntl
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NoReturn

import pytest
from conftest import clean_environment

OLD_NVTX = "0.2.11"


def absent(reason: str) -> NoReturn:
    """Skip the test, or fail it where nsys has to be there."""
    if os.environ.get("PROFSTACK_NEEDS_NSYS") == "1":
        pytest.fail(reason)
    pytest.skip(reason)


@contextmanager
def alone() -> Iterator[None]:
    """While this holds no other test runs nsys: two that start together may fail one another."""
    with open(Path(tempfile.gettempdir()) / "profstack-tests-nsys.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


@pytest.fixture(scope="module")
def nsys() -> str:
    path = shutil.which("nsys")
    if path is None:
        absent("Nsight Systems (nsys) is not installed")
    return path


@pytest.fixture(scope="module")
def is_old(nsys: str) -> bool:
    """Whether it knows nvtx up to 0.2.11 alone."""
    told = subprocess.run([nsys, "--version"], capture_output=True, text=True, check=True).stdout
    year = re.search(r"(\d{4})\.\d", told)
    assert year is not None, told
    return int(year[1]) <= 2022


@pytest.fixture(scope="module")
def nvtx_path(is_old: bool, tmp_path_factory: pytest.TempPathFactory) -> str | None:
    """A folder with an nvtx that this nsys takes; None where the installed one will do."""
    if not is_old:
        return None
    folder = tmp_path_factory.mktemp("nvtx")
    pip = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--target", str(folder)]
    done = subprocess.run(
        [*pip, "--only-binary", ":all:", f"nvtx=={OLD_NVTX}"],
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        absent(f"nvtx {OLD_NVTX} cannot be installed here: {done.stderr.strip()[-200:]}")
    return str(folder)


def environment_with(python_path: str | None, **changes: str) -> dict[str, str]:
    """A clean environment with one thread per process, and `python_path` put first."""
    environment = clean_environment(OMP_NUM_THREADS="1", **changes)
    paths = [python_path, environment.get("PYTHONPATH")]
    environment["PYTHONPATH"] = os.pathsep.join(path for path in paths if path)
    return environment


def find_importer(nsys: str) -> Path:
    for above in Path(os.path.realpath(nsys)).parents:
        for folder in ("", "lib/nsight-systems/"):
            for found in above.glob(f"{folder}host-linux-*/QdstrmImporter"):
                return found
    absent("nsys has made no report, and its importer is not installed")
