"""The user's cache folder: files that only save time, such as the peaks of this machine.

Where there is no such folder, or it cannot be written, nothing is kept.
"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path


def cache_file(name: str) -> Path | None:
    """Return the place of a file in the cache; None where the user has no cache folder."""
    folder = Path(os.environ.get("XDG_CACHE_HOME", ""))
    with suppress(RuntimeError):
        # The standard says to ignore a relative one.
        folder = folder if folder.is_absolute() else Path.home() / ".cache"
        return folder / "profstack" / name
    return None


def read_cached(name: str) -> str | None:
    """Return the text of a file in the cache; None where there is none that can be read."""
    path = cache_file(name)
    with suppress(OSError, ValueError):
        return path.read_text(encoding="utf-8") if path else None
    return None


def keep_cached(name: str, text: str) -> None:
    """Replace a file of the cache as a whole; ignore errors of the file system."""
    path = cache_file(name)
    if path is None:
        return
    unfinished = path.with_suffix(f".{os.getpid()}")
    with suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            unfinished.write_text(text, encoding="utf-8")
            os.replace(unfinished, path)
        finally:
            # A full disk may have left it.
            unfinished.unlink(missing_ok=True)
