"""The software a run took place with: versions of packages, and the commit of the script."""

from __future__ import annotations

import os

# Packages whose version may explain a number on the page.
PACKAGES = (
    "torch",
    "torchvision",
    "torchaudio",
    "triton",
    "numpy",
    "transformers",
    "accelerate",
    "datasets",
    "diffusers",
    "flash-attn",
    "lightning",
    "pytorch-lightning",
    "timm",
    "nvtx",
    "memory-profiler",
    "flops-profiler",
)


def package_version(name: str) -> str | None:
    """Version of an installed package by its metadata, without importing it."""
    from importlib import metadata

    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def package_versions(names: tuple[str, ...]) -> dict[str, str]:
    """Versions of those packages that are installed."""
    found = {name: package_version(name) for name in names}
    return {name: version for name, version in found.items() if version is not None}


def commit_facts(folder: str | os.PathLike[str]) -> dict[str, object]:
    """The git commit that `folder` stands on, and whether tracked files differ from it."""
    import subprocess

    # No lock is taken and no file monitor started: this looks and leaves nothing behind.
    git = ["git", "--no-optional-locks", "-c", "core.fsmonitor=false", "-C", os.fspath(folder)]

    def ask(*arguments: str) -> str | None:
        try:
            answer = subprocess.run(
                [*git, *arguments],
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                errors="replace",
                timeout=2,
                check=False,
            )
        except (OSError, subprocess.SubprocessError):
            return None
        return answer.stdout if answer.returncode == 0 else None

    if not _inside_git(folder):
        return {"commit": None, "changed": None}
    commit = ask("rev-parse", "HEAD")
    if commit is None:
        return {"commit": None, "changed": None}
    changes = ask("status", "--porcelain", "--untracked-files=no")
    return {"commit": commit.strip(), "changed": None if changes is None else bool(changes)}


def _inside_git(folder: str | os.PathLike[str]) -> bool:
    """Whether a folder above holds `.git`; spares starting git where it has nothing to say."""
    here = os.path.realpath(folder)
    while not os.path.exists(os.path.join(here, ".git")):
        above = os.path.dirname(here)
        if above == here:
            return False
        here = above
    return True
