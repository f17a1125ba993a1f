"""Installing profstack leaves an environment that holds something else as it was.

The environment holds diffusers, lightning and wandb, whose requirements overlap with those of
the profiling tools; flops-profiler's pin of importlib-metadata is what the base install must not
bring along.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

CHECKOUT = Path(__file__).resolve().parents[1]
HELD = ("diffusers", "lightning", "wandb")
# Next to nothing of what is installed is run: byte code of it all would be for nobody.
INSTALL = ("-m", "pip", "install", "-q", "--no-compile")

pytestmark = pytest.mark.slow


def run(*command: object) -> str:
    done = subprocess.run(
        [str(word) for word in command], capture_output=True, text=True, check=False, timeout=600
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return done.stdout


@pytest.fixture(scope="module")
def held(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The python of an environment that holds the three packages and what they require."""
    folder = tmp_path_factory.mktemp("held")
    run(sys.executable, "-m", "venv", folder)
    python = folder / "bin" / "python"
    constraints = ("-c", CHECKOUT / "constraints.txt")
    run(python, *INSTALL, *constraints, "torch", "setuptools>=77", *HELD)
    return python


def installed(python: Path) -> dict[str, str]:
    """Name and version of every package of an environment."""
    rows = json.loads(run(python, "-m", "pip", "list", "--format", "json"))
    return {normal(row["name"]): row["version"] for row in rows}


def normal(name: str) -> str:
    """One spelling for the many of a package's name."""
    return re.sub(r"[-_.]+", "-", name).lower()


def planned(python: Path, *what: object) -> dict[str, str]:
    """What pip would install, by name."""
    dry = ("--dry-run", "--quiet", "--no-build-isolation", "--report", "-")
    answer: dict[str, Any] = json.loads(run(python, "-m", "pip", "install", *dry, *what))
    metadata = (entry["metadata"] for entry in answer["install"])
    return {normal(entry["name"]): entry["version"] for entry in metadata}


def test_the_base_install_changes_no_installed_package(held: Path, copy: Path) -> None:
    before = installed(held)
    assert set(HELD) <= set(before)
    constraints = ("-c", CHECKOUT / "constraints.txt")
    # What makes an extra of flops-profiler: with it, pip would change what is there.
    changed = set(planned(held, *constraints, f"{copy}[all]")) & set(before)
    assert "importlib-metadata" in changed

    run(held, *INSTALL, "--no-build-isolation", *constraints, copy)
    after = installed(held)
    assert {name: after.get(name) for name in before} == before
    assert "profstack" in after
    assert "flops-profiler" not in after
    run(held, "-m", "pip", "check")
