"""A lock by which runs of this user know of one another: measuring in the background gives way.

Each run holds the lock shared. Nobody holds it exclusively for longer than it takes to ask, so that
a run begins without waiting. Where the user has no cache folder, or the system no such locks, no
run knows of another.
"""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

from profstack.cache import cache_file

_LOCK = "runs.lock"
# The longest that a run waits for the lock, which is held for microseconds at a time.
_LONGEST_S = 0.004
_RETRY_S = 0.0005
# How often the lock is asked while something is measured.
POLL_S = 0.02


class GaveWayError(Exception):
    """Another run has begun: what was measured in the background has ended."""


@contextmanager
def announced() -> Iterator[None]:
    """Hold the lock as a run does; never fails and never waits for long."""
    lock = _opened()
    try:
        if lock is not None:
            end = time.monotonic() + _LONGEST_S
            while not _locks(lock, exclusive=False) and time.monotonic() < end:
                time.sleep(_RETRY_S)
        yield
    finally:
        if lock is not None:
            os.close(lock)


def is_running() -> bool:
    """Return whether a run holds the lock."""
    lock = _opened()
    if lock is None:
        return False
    try:
        return not _locks(lock, exclusive=True)
    finally:
        os.close(lock)


def _opened() -> int | None:
    path = cache_file(_LOCK)
    with suppress(OSError):
        if path is not None:
            path.parent.mkdir(parents=True, exist_ok=True)
            return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    return None


def _locks(lock: int, *, exclusive: bool) -> bool:
    """Try to lock; return False only where another process prevents it."""
    try:
        import fcntl

        fcntl.flock(lock, (fcntl.LOCK_EX if exclusive else fcntl.LOCK_SH) | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except (ImportError, OSError):
        # No such locks here: nobody knows of another.
        return True
    return True


def run_giving_way(
    command: Sequence[str], *, timeout: float, check: bool = False, **how: Any
) -> subprocess.CompletedProcess[str]:
    """Run a command like `subprocess.run`; raise `GaveWayError` and kill it when a run begins."""
    if how.pop("capture_output", False):
        how |= {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    if is_running():
        raise GaveWayError
    end = time.monotonic() + timeout
    with subprocess.Popen(command, **how) as process:
        try:
            while True:
                try:
                    said = process.communicate(timeout=POLL_S)
                    return subprocess.CompletedProcess(command, process.returncode, *said)
                except subprocess.TimeoutExpired:
                    if is_running():
                        raise GaveWayError from None
                    if time.monotonic() > end:
                        raise
        except BaseException:
            process.kill()
            raise
