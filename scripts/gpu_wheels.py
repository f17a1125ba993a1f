"""Collect the wheels that the GPU check needs on a machine without a network.

A machine with a GPU often has torch, numpy, pandas, rich and jinja2, and no way to the package
index. The other packages that profstack imports are downloaded elsewhere, as wheels, and go into
a folder of their own there: nothing of the machine's environment is changed.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from importlib import metadata
from pathlib import Path

# profstack's base dependencies beside those, each with what it needs itself.
BASE = {
    "memory-profiler": (),
    "msgspec": (),
    "nvtx": (),
    "plotly": ("narwhals", "packaging"),
    "psutil": (),
    "snakeviz": ("tornado",),
}
# The second counter of operations; it asks for an old importlib-metadata.
EXTRA = {"flops-profiler": ("importlib-metadata<7", "zipp")}
PYTHON = "3.12"
# The newest that the wheels in question are built for, down to the oldest.
PLATFORMS = (
    *("manylinux_2_28_x86_64", "manylinux_2_17_x86_64", "manylinux2014_x86_64"),
    *("manylinux_2_5_x86_64", "manylinux1_x86_64"),
)


def requirements() -> list[str]:
    """Every package to download, in the form that pip takes."""
    found = [name for group in (BASE, EXTRA) for one in group.items() for name in (one[0], *one[1])]
    return list(dict.fromkeys(found))


def distribution(requirement: str) -> str:
    """The name in a requirement, without its bounds on the version."""
    return requirement.partition("<")[0]


def missing() -> list[str]:
    """Base dependencies that this interpreter has not."""
    return [name for name in BASE if not _has(name)]


def _has(name: str) -> bool:
    try:
        metadata.version(name)
    except metadata.PackageNotFoundError:
        return False
    return True


def listing() -> str:
    """The command that downloads the wheels where there is a network, and what is here already."""
    quoted = [f"'{name}'" if "<" in name else name for name in requirements()]
    platforms = " ".join(f"--platform {name}" for name in PLATFORMS)
    here = [name for name in requirements() if _has(distribution(name))]
    command = (
        f"pip download --dest wheels --only-binary=:all: --no-deps --python-version {PYTHON} "
        f"{platforms} {' '.join(quoted)}"
    )
    return "\n".join(
        (
            command,
            "",
            *requirements(),
            "",
            f"installed here: {', '.join(here) or 'none of them'}",
            "then, on the machine with the GPU: python scripts/gpu_check.py --wheelhouse wheels",
        )
    )


def install(wheelhouse: Path, target: Path, tell: Callable[[str], None]) -> str | None:
    """Put the wheels of a folder that are lacking here into `target`; why that failed, or None.

    Without dependencies: torch and numpy are there, and pip would look for them in the folder.
    """
    if not wheelhouse.is_dir():
        return f"{wheelhouse} is no folder; fill it with the command that --wheels prints"
    lacking = [name for name in requirements() if not _has(distribution(name))]
    if not lacking:
        tell("nothing is lacking: no wheel is installed")
        return None
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-index", "--no-deps"]
    command += ["--disable-pip-version-check", "--find-links", str(wheelhouse)]
    command += ["--target", str(target), *lacking]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode == 0:
        tell(f"installed for this check alone: {', '.join(lacking)}")
        return None
    last = done.stderr.strip().splitlines()[-1:] or ["pip said nothing"]
    return f"pip could not install {', '.join(lacking)}: {last[0]}"
