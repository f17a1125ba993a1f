"""Where things lie, and how to start profstack as its users do."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

CHECKOUT = Path(__file__).resolve().parents[2]
TESTS = CHECKOUT / "tests"
LEFT_OUT = shutil.ignore_patterns(
    *(".*", "__pycache__", "*.egg-info", "build", "dist", "node_modules", "profstack-runs"),
    *("tests", "benchmarks"),
)
RunProfstack = Callable[..., "subprocess.CompletedProcess[str]"]


def clean_environment(**changes: str) -> dict[str, str]:
    """The environment less what would reach into a child's imports or into profstack itself."""
    ours = ("PYTHON", "PROFSTACK", "COVERAGE", "PYTEST")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(ours)}
    # Measuring the machine's peaks takes seconds, and is tried in its own tests.
    kept["PROFSTACK_PEAKS"] = "0"
    # Where processes share the cores, waiting OpenMP threads spin.
    kept.setdefault("OMP_NUM_THREADS", "1")
    if not _is_installed():
        kept["PYTHONPATH"] = str(CHECKOUT)
    return kept | changes


def run_python(
    *words: Any, code: int | None = 0, **keywords: Any
) -> subprocess.CompletedProcess[str]:
    """Python in a clean environment, which `env` adds to; it ends with `code`, or as it will."""
    environment = clean_environment(**{"PYTHONPATH": str(CHECKOUT), **keywords.pop("env", {})})
    if "input" not in keywords:
        keywords["stdin"] = subprocess.DEVNULL
    how = {"env": environment, "capture_output": True, "text": True, "timeout": 240, **keywords}
    done = subprocess.run([sys.executable, *map(str, words)], check=False, **how)
    assert code is None or done.returncode == code, done.stderr
    return done


def git(*words: str, cwd: Path | None = None) -> str:
    """Standard output of git, in the current folder unless told otherwise."""
    command = ["git", "-c", "user.name=x", "-c", "user.email=x@example.org", *words]
    return subprocess.run(command, cwd=cwd, check=True, capture_output=True, text=True).stdout


def raised_by(folder: Path, text: str = "@profile\ndef work(): pass\n") -> BaseException | None:
    """The error of a script of this text."""
    script = folder / f"raises{len(list(folder.iterdir()))}.py"
    script.write_text(text)
    try:
        exec(compile(text, str(script), "exec"), {})
    except Exception as error:
        return error
    return None


def package(folder: Path, name: str, layers: str, entry_points: str) -> Path:
    """A folder as the installation of a package leaves it, with a module NAME_layers."""
    info = folder / "site" / f"{name}-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(entry_points)
    (folder / "site" / f"{name}_layers.py").write_text(layers)
    return folder / "site"


@cache
def _is_installed() -> bool:
    """Whether `import profstack` finds this very checkout without help."""
    look = [sys.executable, "-I", "-c", "import profstack; print(profstack.__file__)"]
    answer = subprocess.run(look, capture_output=True, text=True, check=False)
    return Path(answer.stdout.strip() or "/").parent == CHECKOUT / "profstack"
