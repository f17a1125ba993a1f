"""Memory in use every millisecond while a slice lasts, by a thread of its own.

A line that takes memory and gives it back before it ends has grown by nothing when the next line
begins; what it held in between is seen from another thread alone.
"""

from __future__ import annotations

import _thread
import os
import time
from array import array
from collections.abc import Callable

INTERVAL_S = 0.001
# When there are as many, every second one goes and the interval doubles.
MOST_SAMPLES = 16_384


class MemorySampler:
    """Calls `read` until it is stopped, which gives the bytes in use by two sources.

    Columns by sample, the first `count` of each: `times` (`time.perf_counter_ns`), `resident`
    and `heap`.
    """

    def __init__(self, read: Callable[[], tuple[int, int]]) -> None:
        self._read = read
        # Full from the start: the slice would see them grow.
        self.times = array("q", bytes(8 * MOST_SAMPLES))
        self.resident = array("q", bytes(8 * MOST_SAMPLES))
        self.heap = array("q", bytes(8 * MOST_SAMPLES))
        self.count = 0
        self._interval_s = INTERVAL_S
        self._halt = _thread.allocate_lock()
        self._ready = _thread.allocate_lock()
        self._gone = _thread.allocate_lock()
        self._pid: int | None = None

    def start(self) -> None:
        """Begin to sample; where no thread can be started there are no samples."""
        for lock in (self._halt, self._ready, self._gone):
            lock.acquire()
        try:
            # One of `threading` would show in the script's list of threads.
            _thread.start_new_thread(self._run, ())
        except RuntimeError:
            return
        self._pid = os.getpid()
        # A thread brings memory of its own, which is no line's.
        self._ready.acquire(timeout=1.0)

    def stop(self) -> None:
        """End the thread and wait for it; safe to call twice, and in a forked child."""
        pid, self._pid = self._pid, None
        if pid is not None:
            self._halt.release()
        # A child has none of its parent's threads.
        if pid == os.getpid():
            self._gone.acquire(timeout=1.0)

    def _run(self) -> None:
        try:
            try:
                self._read()
            finally:
                self._ready.release()
            while not self._halt.acquire(timeout=self._interval_s):
                resident, heap = self._read()
                self.keep(time.perf_counter_ns(), resident, heap)
        except Exception:
            pass  # it would be printed; there are no more samples, and none is missed by a line
        finally:
            self._gone.release()

    def keep(self, now: int, resident: int, heap: int) -> None:
        """Add a sample."""
        if self.count == MOST_SAMPLES:
            self._thin()
        self.times[self.count] = now
        self.resident[self.count] = resident
        self.heap[self.count] = heap
        self.count += 1

    def _thin(self) -> None:
        """Of each two samples the higher one stays."""
        for kept in range(MOST_SAMPLES // 2):
            first, second = 2 * kept, 2 * kept + 1
            grown = self.resident[second] + self.heap[second]
            higher = second if grown > self.resident[first] + self.heap[first] else first
            for column in (self.times, self.resident, self.heap):
                column[kept] = column[higher]
        self.count = MOST_SAMPLES // 2
        self._interval_s *= 2
