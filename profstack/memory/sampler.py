"""Memory in use every millisecond while a slice lasts, by a thread of its own.

A line that takes memory and gives it back before it ends has grown by nothing when the next line
begins; what it held in between is seen from another thread alone.
"""

from __future__ import annotations

import _thread
import importlib
import os
import time
from array import array
from collections.abc import Callable
from typing import Any

from profstack.interrupts import is_scripts
from profstack.rawthreads import (
    GoneAtForks,
    at_forks,
    block_signals,
    no_more_forks,
    wait_until_gone,
)

INTERVAL_S = 0.001
# It answers in microseconds. Should it not, the script shall go on all the same.
_PATIENCE_S = 1.0
# When there are as many, every second one goes and the interval doubles.
MOST_SAMPLES = 16_384


class _Thread:
    """One run of the thread: locks to tell it to end, and to be told that it has begun and ended.

    It is a raw one: one of `threading` would show in the script's list of threads.
    """

    def __init__(self) -> None:
        self.halt, self.ready, self.gone = (_thread.allocate_lock() for _ in range(3))
        for lock in (self.halt, self.ready, self.gone):
            lock.acquire()
        self.native: int | None = None


class MemorySampler(GoneAtForks):
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
        self._signals: Any = importlib.import_module("_signal")
        self._thread: _Thread | None = None
        self._wanted_in: int | None = None

    def start(self) -> None:
        """Begin to sample; where no thread can be started there are no samples."""
        self._wanted_in = os.getpid()
        at_forks(self)
        self._begin()

    def stop(self) -> None:
        """End the thread and wait for it; safe to call twice, and in a forked child."""
        self._wanted_in = None
        no_more_forks(self)
        self._end()

    def release(self) -> None:
        """It has been stopped, and nobody will ask for its samples."""
        self.times, self.resident, self.heap = array("q"), array("q"), array("q")
        self.count = 0

    # -- forks -----------------------------------------------------------------------------------

    def forget(self) -> None:
        """In the child of a fork: this is another process's sampler."""
        self._wanted_in = self._thread = None

    # -- the thread ------------------------------------------------------------------------------

    def _begin(self) -> None:
        if self._thread is not None or self._forking or self._wanted_in != os.getpid():
            return
        thread = _Thread()
        try:
            _thread.start_new_thread(self._run, (thread,))
        except RuntimeError as error:
            if is_scripts(error):
                raise
            return
        self._thread = thread
        # A thread brings memory of its own, which is no line's.
        thread.ready.acquire(timeout=_PATIENCE_S)

    def _end(self) -> None:
        thread, self._thread = self._thread, None
        if thread is not None:
            thread.halt.release()
            thread.gone.acquire(timeout=_PATIENCE_S)
            wait_until_gone(thread.native, _PATIENCE_S)

    def _run(self, thread: _Thread) -> None:
        try:
            try:
                block_signals(self._signals)
                thread.native = _thread.get_native_id()
                self._read()
            finally:
                thread.ready.release()
            while not thread.halt.acquire(timeout=self._interval_s):
                resident, heap = self._read()
                self.keep(time.perf_counter_ns(), resident, heap)
        except Exception:
            pass  # it would be printed; there are no more samples, and none is missed by a line
        finally:
            thread.gone.release()

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
