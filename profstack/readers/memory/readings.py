"""Memory readings over a slice: resident set, allocator counts, and a sampling thread."""

from __future__ import annotations

import ctypes
import sys
import time
from array import array
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from typing import Any, NamedTuple

from profstack.environment import rss_bytes
from profstack.guard import Guard, WorkerThread, is_scripts

# --- Bytes in use by allocators: the second source beside the resident set ------------------------

# The resident set grows by whole pages and only where the allocator gets them from the system;
# reuse of freed memory does not show. The allocators' own counters have it. glibc keeps one for
# `malloc`, which torch's CPU tensors come from; torch keeps one for CUDA.

# In place of a number that could not be read.
UNKNOWN = -1

MALLOC = "malloc's bytes in use (glibc, mallinfo2)"
CUDA = "torch.cuda.memory_allocated"

# glibc walks all its free blocks to answer: 0.3 us in a fresh process, 30 ms in one with a hundred
# thousand of them. Reading may take as long as everything else in the slice, and this much more.
_GRACE_NS = 5_000_000
_PROBE_BYTES = 1 << 16
_PROBES = 3


class _Mallinfo(ctypes.Structure):
    """`struct mallinfo2` of glibc 2.33 and newer."""

    _names = "arena ordblks smblks hblks hblkhd usmblks fsmblks uordblks fordblks keepcost"
    _fields_ = tuple((name, ctypes.c_size_t) for name in _names.split())


class HeapCounter:
    """Reads malloc's bytes in use, for one slice; `reason` says why it does not, or None."""

    def __init__(self) -> None:
        self._mallinfo, self.reason = _mallinfo()
        self._begun = _clock()
        self._spent = 0
        self._reads = 0

    def read(self) -> int:
        """Return the bytes in use, `UNKNOWN` where they cannot be read or reading is too slow."""
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
    """Return the function of the C library, and why it cannot be used, or None."""
    try:
        # PyDLL keeps the interpreter's lock, so that threads do not switch at every line.
        function = ctypes.PyDLL(None).mallinfo2
    except (AttributeError, OSError, TypeError):
        return _Mallinfo, "this C library has no mallinfo2 (glibc 2.33 and newer have)"
    function.restype = _Mallinfo
    function.argtypes = ()
    if not _sees_tensors(function):
        return _Mallinfo, "torch's CPU tensors do not come from glibc's malloc here"
    return function, None


def _sees_tensors(mallinfo: Callable[[], Any]) -> bool:
    """Return whether torch's memory is counted: another allocator may replace malloc.

    The probe is below the size from which glibc maps memory, and so does not move its thresholds.
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
    """Return a reader of bytes in live tensors on the current CUDA device, now and at their peak.

    None where the script does not use CUDA yet. The peak is the script's own: it is never reset.
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


# --- Memory in use every millisecond of a slice, by a thread of its own ---------------------------

# A line that allocates memory and frees it before it ends shows no growth when the next line
# begins; only another thread sees what it held in between.

INTERVAL_S = 0.001
# At this number every second sample is removed and the interval doubles.
MOST_SAMPLES = 16_384


class MemorySampler(WorkerThread):
    """Calls `read`, which returns the bytes in use by two sources, until it is stopped.

    Columns by sample, the first `count` of each: `times` (`time.perf_counter_ns`), `resident`
    and `heap`.
    """

    def __init__(self, read: Callable[[], tuple[int, int]]) -> None:
        super().__init__()
        self._read = read
        # Full size from the start: the slice would see them grow.
        self.times, self.resident, self.heap = (_column(MOST_SAMPLES) for _ in range(3))
        self.count = 0
        self._interval_s = INTERVAL_S

    def release(self) -> None:
        """Free the samples; it has been stopped before."""
        self.times = self.resident = self.heap = array("q")
        self.count = 0

    def begin_thread(self) -> None:
        """Start the thread; there are no samples where the process may have no more threads."""
        with Guard(RuntimeError):
            super().begin_thread()

    def prepare(self) -> None:
        """Read once: a thread brings memory of its own, which is no line's."""
        self._read()

    def work(self, halt: Any) -> None:
        """Sample until `halt` can be acquired."""
        while not halt.acquire(timeout=self._interval_s):
            resident, heap = self._read()
            self.keep(time.perf_counter_ns(), resident, heap)

    def keep(self, now: int, resident: int, heap: int) -> None:
        """Add a sample; of too many, keep the higher one of each two before."""
        if self.count == MOST_SAMPLES:
            for kept in range(MOST_SAMPLES // 2):
                pair = (2 * kept, 2 * kept + 1)
                higher = max(pair, key=lambda number: self.resident[number] + self.heap[number])
                for column in (self.times, self.resident, self.heap):
                    column[kept] = column[higher]
            self.count = MOST_SAMPLES // 2
            self._interval_s *= 2
        number = self.count
        self.times[number], self.resident[number], self.heap[number] = now, resident, heap
        self.count = number + 1


# The place of readings while no line of the script runs.
NO_LINE = -1
_ROOM = 1 << 14
_clock = time.perf_counter_ns


class Reading(NamedTuple):
    """Bytes in use at one moment, None where they could not be read."""

    resident: int | None
    heap: int | None
    device: int | None
    device_peak: int | None


@dataclass
class _Own:
    """Growth of the columns themselves since the start, which belongs to no line."""

    resident: int = 0
    heap: int = 0

    def net(self, resident: int | None, in_use: int) -> tuple[int, int]:
        """Return a reading without the columns' own growth, `UNKNOWN` where it failed."""
        known = UNKNOWN if resident is None else resident - self.resident
        return known, in_use if in_use == UNKNOWN else in_use - self.heap


class Readings:
    """Columns by event, the first `count` of each.

    `times` (`time.perf_counter_ns`), `places` (a number for the line that runs from there on),
    `runs` (the event that its run began with, or `~` that where it began unseen), and in bytes
    `resident`, `heap` and `device`, each `UNKNOWN` where it could not be read.
    """

    def __init__(self) -> None:
        self.heap_counter = HeapCounter()
        self.times, self.places, self.runs = (_column(_ROOM) for _ in range(3))
        self.resident, self.heap, self.device = (_column(_ROOM) for _ in range(3))
        self.count = 0
        self.place, self.run = NO_LINE, NO_LINE
        self._room = len(self.times)
        self._cuda = cuda_counter()
        self._resident, self._own = resident, own = resident_reader(), _Own()
        # The sampler's thread counts its own cost.
        counter = HeapCounter()
        self.sampler = MemorySampler(lambda: own.net(resident(), counter.read()))

    @property
    def memory_bytes(self) -> int:
        """Memory of the readings themselves."""
        sampler = self.sampler
        columns = (*self._columns(), sampler.times, sampler.resident, sampler.heap)
        return sum(column.itemsize * len(column) for column in columns)

    def add(self, place: int, run: int) -> None:
        """Read memory; growth from here on belongs to the line at `place`."""
        number = self.count
        if number == self._room:
            self._grow()
        self.places[number] = self.place = place
        self.runs[number] = self.run = run
        net = self._own.net(self._resident(), self.heap_counter.read())
        self.resident[number], self.heap[number] = net
        self.device[number] = self._cuda()[0] if self._cuda is not None else UNKNOWN
        self.times[number] = _clock()
        self.count = number + 1

    def release(self) -> None:
        """Free the columns."""
        self.times = self.places = self.runs = array("q")
        self.resident = self.heap = self.device = array("q")
        self.count = self._room = 0
        self.sampler.release()

    def now(self) -> Reading:
        """Read the memory in use now."""
        net = self._own.net(self._resident(), self.heap_counter.read())
        device = self._cuda() if self._cuda is not None else (None, None)
        return Reading(*(None if value == UNKNOWN else value for value in net), *device)

    def _grow(self) -> None:
        resident, in_use = self._resident(), self.heap_counter.read()
        for column in self._columns():
            column.extend(_column(self._room))
        self._room *= 2
        grown, in_use_now = self._resident(), self.heap_counter.read()
        if resident is not None and grown is not None:
            self._own.resident += grown - resident
        if UNKNOWN not in (in_use, in_use_now):
            self._own.heap += in_use_now - in_use

    def _columns(self) -> tuple[array[int], ...]:
        return (self.times, self.places, self.runs, self.resident, self.heap, self.device)


def _column(room: int) -> array[int]:
    """Return a column with room for readings, all of its pages in memory."""
    return array("q", bytes(8 * room))


def resident_reader() -> Callable[[], int | None]:
    """Return the fastest reader of the resident set; psutil where the system has no file."""
    if rss_bytes() is not None:
        return rss_bytes
    psutil = import_module("psutil")
    process = psutil.Process()

    def read() -> int | None:
        try:
            return int(process.memory_info().rss)
        except psutil.Error:
            return None

    return read
