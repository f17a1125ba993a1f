"""What the memory tracer has read: times, the line being run, and bytes by every source."""

from __future__ import annotations

import time
from array import array
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from typing import NamedTuple

from profstack.environment import rss_bytes
from profstack.memory.heapcount import UNKNOWN, HeapCounter, cuda_counter
from profstack.memory.sampler import MemorySampler

# Stands for a line where no line of the script's is being run.
NOBODY = -1
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
    """What the columns have grown by since the start: no line's."""

    resident: int = 0
    heap: int = 0


class Readings:
    """Columns by event, the first `count` of each.

    `times` (`time.perf_counter_ns`), `places` (a number for the line that runs from there on),
    `runs` (the event that its run began with, or `~` that where it began unseen), and in bytes
    `resident`, `heap` and `device`, each `UNKNOWN` where it could not be read.
    """

    def __init__(self) -> None:
        self.heap_counter = HeapCounter()
        self.times, self.places, self.runs = _column(), _column(), _column()
        self.resident, self.heap, self.device = _column(), _column(), _column()
        self.count = 0
        self.place, self.run = NOBODY, NOBODY
        self._room = len(self.times)
        self._cuda = cuda_counter()
        self._resident = resident_reader()
        self._own = _Own()
        self.sampler = MemorySampler(_both(self._resident, self._own))

    @property
    def memory_bytes(self) -> int:
        """What the readings take themselves."""
        sampler = self.sampler
        columns = (*self._columns(), sampler.times, sampler.resident, sampler.heap)
        return sum(column.itemsize * len(column) for column in columns)

    def add(self, place: int, run: int) -> None:
        """Read memory; what grows from here on belongs to the line at `place`."""
        number = self.count
        if number == self._room:
            self._grow()
        self.places[number] = self.place = place
        self.runs[number] = self.run = run
        resident = self._resident()
        in_use = self.heap_counter.read()
        self.resident[number] = UNKNOWN if resident is None else resident - self._own.resident
        self.heap[number] = UNKNOWN if in_use == UNKNOWN else in_use - self._own.heap
        self.device[number] = self._cuda()[0] if self._cuda is not None else UNKNOWN
        self.times[number] = _clock()
        self.count = number + 1

    def release(self) -> None:
        """Nobody will ask for what was read: the columns' memory is given back."""
        self.times, self.places, self.runs = array("q"), array("q"), array("q")
        self.resident, self.heap, self.device = array("q"), array("q"), array("q")
        self.count = self._room = 0
        self.sampler.release()

    def now(self) -> Reading:
        """What is in use now."""
        resident = self._resident()
        in_use = self.heap_counter.read()
        device, peak = self._cuda() if self._cuda is not None else (None, None)
        return Reading(
            None if resident is None else resident - self._own.resident,
            None if in_use == UNKNOWN else in_use - self._own.heap,
            device,
            peak,
        )

    def _grow(self) -> None:
        resident, in_use = self._resident(), self.heap_counter.read()
        for column in self._columns():
            column.extend(array("q", bytes(8 * self._room)))
        self._room *= 2
        grown, in_use_now = self._resident(), self.heap_counter.read()
        if resident is not None and grown is not None:
            self._own.resident += grown - resident
        if UNKNOWN not in (in_use, in_use_now):
            self._own.heap += in_use_now - in_use

    def _columns(self) -> tuple[array[int], ...]:
        return (self.times, self.places, self.runs, self.resident, self.heap, self.device)


def _both(resident: Callable[[], int | None], own: _Own) -> Callable[[], tuple[int, int]]:
    """What the sampler's thread reads; it has its own count of what that costs."""
    counter = HeapCounter()

    def read() -> tuple[int, int]:
        now, in_use = resident(), counter.read()
        return (
            UNKNOWN if now is None else now - own.resident,
            UNKNOWN if in_use == UNKNOWN else in_use - own.heap,
        )

    return read


def _column() -> array[int]:
    """Room for readings, every page of it in memory already."""
    return array("q", bytes(8 * _ROOM))


def resident_reader() -> Callable[[], int | None]:
    """What reads the resident set in the least time here; psutil where the system has no file."""
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
