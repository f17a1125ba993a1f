"""The user's cache folder: files that only save time, such as the peaks of this machine.

Where there is no such folder, or it cannot be written, nothing is kept.
"""

from __future__ import annotations

import os
import stat
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
    """Return the text of a file in the cache; None where there is none that can be trusted.

    It must be a regular file of this user's or of root's that nobody else can write: its text
    becomes a part of pages.
    """
    path = cache_file(name)
    with suppress(OSError, ValueError):
        if path is None:
            return None
        # Not one that a link leads to; opening a pipe does not wait for a writer.
        flags = os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)
        with open(os.open(path, flags), encoding="utf-8") as file:
            return file.read() if _is_own(os.fstat(file.fileno())) else None
    return None


def _is_own(found: os.stat_result) -> bool:
    """Return whether it is a regular file that only this user and root can write."""
    if not stat.S_ISREG(found.st_mode):
        return False
    if not hasattr(os, "getuid"):
        # The system has no owners and modes of this kind.
        return True
    writable = found.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
    return found.st_uid in (os.getuid(), 0) and not writable


def keep_cached(name: str, text: str) -> None:
    """Replace a file of the cache as a whole; ignore errors of the file system."""
    path = cache_file(name)
    if path is None:
        return
    unfinished = path.with_suffix(f".{os.getpid()}")
    with suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            # Made anew, never through a link, and not writable for others whatever the mask is.
            unfinished.unlink(missing_ok=True)
            handle = os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            with open(handle, "w", encoding="utf-8") as file:
                file.write(text)
            os.replace(unfinished, path)
        finally:
            # A full disk may have left it.
            unfinished.unlink(missing_ok=True)
