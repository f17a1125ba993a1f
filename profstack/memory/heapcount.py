"""Bytes that allocators have given out and not had back: the second source beside the resident set.

The resident set grows by whole pages and only where the allocator asks the system for them; what
is taken from memory that was given back before does not show. The allocators' own counters know
it. glibc keeps one for `malloc`, which torch's CPU tensors come from; torch keeps one for CUDA.
"""

from __future__ import annotations

import ctypes
import sys
import time
from collections.abc import Callable
from functools import cache
from typing import Any

from profstack.interrupts import is_scripts

# In place of a number that could not be read.
UNKNOWN = -1

MALLOC = "malloc's bytes in use (glibc, mallinfo2)"
CUDA = "torch.cuda.memory_allocated"

# glibc walks all its free blocks to answer: 0.3 us in a fresh process, 30 ms in one with a hundred
# thousand of them. Reading may take as long as everything else in the slice, and this much more.
_GRACE_NS = 5_000_000
_PROBE_BYTES = 1 << 16
_PROBES = 3
_clock = time.perf_counter_ns


class _Mallinfo(ctypes.Structure):
    """`struct mallinfo2` of glibc 2.33 and newer."""

    _fields_ = tuple(
        (name, ctypes.c_size_t)
        for name in (
            *("arena", "ordblks", "smblks", "hblks", "hblkhd"),
            *("usmblks", "fsmblks", "uordblks", "fordblks", "keepcost"),
        )
    )


class HeapCounter:
    """Reads what `malloc` has given out, for one slice; `reason` says why it does not, or None."""

    def __init__(self) -> None:
        self._mallinfo, self.reason = _mallinfo()
        self._begun = _clock()
        self._spent = 0
        self._reads = 0

    def read(self) -> int:
        """Bytes in use now, `UNKNOWN` where they cannot be told or have become too dear."""
        if self.reason is not None:
            return UNKNOWN
        begun = _clock()
        info = self._mallinfo()
        in_use = int(info.uordblks + info.hblkhd)
        now = _clock()
        self._spent += now - begun
        self._reads += 1
        if 2 * self._spent > _GRACE_NS + now - self._begun:
            cost_us = self._spent / self._reads / 1e3
            self.reason = f"glibc took {cost_us:.0f} us to count malloc's bytes: no longer asked"
        return in_use


@cache
def _mallinfo() -> tuple[Callable[[], Any], str | None]:
    """The function of the C library, and why it is of no use here, or None."""
    try:
        # PyDLL keeps the lock of the interpreter: another thread is not let in at every line.
        function = ctypes.PyDLL(None).mallinfo2
    except (AttributeError, OSError, TypeError):
        return _Mallinfo, "this C library has no mallinfo2 (glibc 2.33 and newer have)"
    function.restype = _Mallinfo
    function.argtypes = ()
    if not _sees_tensors(function):
        return _Mallinfo, "torch's CPU tensors do not come from glibc's malloc here"
    return function, None


def _sees_tensors(mallinfo: Callable[[], Any]) -> bool:
    """Whether memory that torch takes is counted: other allocators may stand in malloc's place.

    The probe is below the size from which glibc maps memory, and so leaves its thresholds alone.
    """
    torch = sys.modules["torch"]
    for _ in range(_PROBES):
        before = mallinfo()
        held = torch.UntypedStorage(_PROBE_BYTES, device="cpu")
        after = mallinfo()
        del held
        grown = after.uordblks + after.hblkhd - before.uordblks - before.hblkhd
        # Other threads may allocate at the same time.
        if _PROBE_BYTES <= grown < 2 * _PROBE_BYTES:
            return True
    return False


def cuda_counter() -> Callable[[], tuple[int, int]] | None:
    """Reads bytes of live tensors on the current CUDA device, now and at their highest so far.

    None where the script has not begun to use CUDA. The highest is the script's own: it is never
    reset.
    """
    torch = sys.modules["torch"]
    if not torch.cuda.is_initialized():
        return None

    def read() -> tuple[int, int]:
        try:
            stats = torch.cuda.memory_stats_as_nested_dict()["allocated_bytes"]["all"]
        except RuntimeError as error:
            if is_scripts(error):
                raise
            raise RuntimeError(f"the device's memory could not be read: {error}") from None
        return stats["current"], stats["peak"]

    return read
