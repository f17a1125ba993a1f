"""CPU time of every thread and every child process, from one edge of a clean slice to the other.

Read outside the timed steps, and nowhere else: the clock of a thread is one system call, what it
is called is read after the slice alone. Threads and processes that began in the slice count from
their beginning; what those used that ended in it is the difference of the totals.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from dataclasses import dataclass
from typing import Any

from profstack.environment import children_of, run_delay_s, thread_name, thread_numbers
from profstack.interrupts import is_scripts
from profstack.threadkinds import (
    OTHER,
    kind_of_process,
    kind_of_thread,
    python_threads,
    started_by_multiprocessing,
)

ENDED_THREADS, ENDED_PROCESSES = "threads that ended", "processes that ended"
_NO_PROC = "this system does not tell the CPU time of single threads"


@dataclass
class _Reading:
    """Clocks at one edge, in seconds: of the whole process, its threads and its children."""

    step_thread: int
    took_s: float
    process_s: float
    threads: dict[int, float]
    children: dict[int, float]
    waited_s: float | None
    delay_s: float | None
    # Name and module of the function of those threads that Python has begun.
    python: dict[int, tuple[str, str | None]]


class ThreadTimes:
    """Reads at the edges; `reason` says why there is nothing, `took_s` what the readings cost."""

    def __init__(self) -> None:
        self.reason: str | None = None
        self.readings = 0
        self.took_s = 0.0
        self._before: _Reading | None = None
        self._rows: list[dict[str, Any]] = []
        # What the children known so far are, since those that have ended tell no more.
        self._known: dict[int, tuple[str, str]] = {}

    def begin(self) -> None:
        """A clean slice is about to begin on the calling thread."""
        self._rows = []
        self._before = self._guarded(None)

    def end(self) -> None:
        """The slice has ended; nothing where none had begun."""
        before, self._before = self._before, None
        after = self._guarded(before) if before is not None else None
        if before is None or after is None:
            return
        try:
            self._rows = self._compare(before, after)
        except Exception as error:
            self._failed(error)

    def discard(self) -> None:
        """The slice was cut short: clocks read now would tell of more than its steps."""
        self._before, self._rows = None, []

    def take(self) -> list[dict[str, Any]]:
        """Rows of `thread_times` of the slice that has ended, without its number."""
        rows, self._rows = self._rows, []
        return rows

    def facts(self) -> dict[str, Any]:
        """What is told of the readings themselves."""
        return {"readings": self.readings, "took_s": self.took_s, "reason": self.reason}

    # -- reading ---------------------------------------------------------------------------------

    def _guarded(self, before: _Reading | None) -> _Reading | None:
        if self.reason is not None:
            return None
        try:
            reading = self._read_first() if before is None else self._read_last(before)
        except Exception as error:
            self._failed(error)
            return None
        if reading is None:
            self.reason = _NO_PROC
            return None
        self.readings += 1
        self.took_s += reading.took_s
        return reading

    def _failed(self, error: Exception) -> None:
        if is_scripts(error):
            raise error
        self.reason = f"reading them failed: {type(error).__name__}: {error}"

    def _read_first(self) -> _Reading | None:
        """The step's own clocks come last: what reading takes is none of the slice's."""
        begun = time.perf_counter()
        numbers = thread_numbers() if sys.platform == "linux" else None
        if numbers is None:
            return None
        own = threading.get_native_id()
        children, python = self._children(), python_threads()
        delay_s, waited_s = run_delay_s(own), _waited_s()
        threads = _thread_clocks(numbers)
        process_s = time.process_time()
        threads[own] = time.thread_time()
        took_s = time.perf_counter() - begun
        return _Reading(own, took_s, process_s, threads, children, waited_s, delay_s, python)

    def _read_last(self, before: _Reading) -> _Reading | None:
        """The step's own clocks come first."""
        begun = time.perf_counter()
        own = before.step_thread
        # The end of a run may come on another thread than the steps'.
        own_s = _cpu_s(own, _THREAD)
        process_s = time.process_time()
        numbers = thread_numbers()
        if numbers is None:
            return None
        threads = _thread_clocks(numbers)
        threads.pop(own, None)
        if own_s is not None:
            threads[own] = own_s
        delay_s, waited_s = run_delay_s(own), _waited_s()
        children, python = self._children(), python_threads()
        took_s = time.perf_counter() - begun
        return _Reading(own, took_s, process_s, threads, children, waited_s, delay_s, python)

    def _children(self) -> dict[int, float]:
        """CPU time of all processes below this one that have not ended."""
        found: dict[int, float] = {}
        to_ask: list[tuple[int, int | None]] = [(os.getpid(), None)]
        to_ask += [(number, None) for number in python_threads() if number != os.getpid()]
        while to_ask:
            thread, process = to_ask.pop()
            numbers = children_of(thread, process)
            for child in started_by_multiprocessing() if numbers is None else numbers:
                cpu_s = _cpu_s(child, _PROCESS) if child not in found else None
                if cpu_s is not None:
                    found[child] = cpu_s
                    to_ask.append((child, child))
                    if child not in self._known:
                        self._known[child] = kind_of_process(child)
        return found

    # -- what lies between -----------------------------------------------------------------------

    def _compare(self, before: _Reading, after: _Reading) -> list[dict[str, Any]]:
        rows = _own_rows(before, after)
        total_s = after.process_s - before.process_s
        rest_s = total_s - sum(row["cpu_s"] for row in rows)
        # Threads that ran while the clocks were read, one after the other, make a difference too.
        running = max(1, sum(1 for row in rows if row["cpu_s"] > 0))
        if rest_s > running * (before.took_s + after.took_s):
            rows.append(_row(OTHER, ENDED_THREADS, 0, None, rest_s))
        for number, (child, cpu_s) in enumerate(sorted(after.children.items()), 1):
            # Read anew: what is told of one right after its start is what its parent is called.
            kind, name = self._known[child] = kind_of_process(child)
            used_s = _used(cpu_s, before.children.get(child))
            threads = len(thread_numbers(child) or ()) or None
            rows.append(_row(kind, name, number, threads, used_s))
        rows += self._ended_children(before, after)
        return rows

    def _ended_children(self, before: _Reading, after: _Reading) -> list[dict[str, Any]]:
        """Processes that were waited for in the slice, also those that began in it."""
        gone = before.children.keys() - after.children.keys()
        used_s = None
        if before.waited_s is not None and after.waited_s is not None:
            used_s = after.waited_s - before.waited_s
            # What they had used before the slice is not its own.
            used_s -= sum(before.children[child] for child in gone)
        known = {self._known.pop(child, (OTHER, ""))[0] for child in gone}
        if not gone and not used_s:
            return []
        if used_s is not None and used_s < 0:
            # Nobody waited for them: the system has told nobody what they used.
            used_s = None
        kind = known.pop() if len(known) == 1 else OTHER
        return [_row(kind, ENDED_PROCESSES, None, None, used_s)]


# -- clocks ----------------------------------------------------------------------------------------

# How Linux numbers the CPU clocks of other threads and processes; see clock_getcpuclockid(3).
_PROCESS, _THREAD = 2, 6


def _cpu_s(number: int, which: int) -> float | None:
    """CPU time of a thread of this process, or of any process; None where it is gone."""
    try:
        return time.clock_gettime((~number << 3) | which)
    except OSError as error:
        if is_scripts(error):
            raise
        return None


def _thread_clocks(numbers: list[int]) -> dict[int, float]:
    clocks = {number: _cpu_s(number, _THREAD) for number in numbers}
    return {number: cpu_s for number, cpu_s in clocks.items() if cpu_s is not None}


def _waited_s() -> float | None:
    """CPU time of all child processes that were waited for."""
    try:
        import resource
    except ImportError:
        return None
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _used(after_s: float, before_s: float | None) -> float:
    """Time between two readings; of one that was not there at the first, or another, its all."""
    return after_s - before_s if before_s is not None and before_s <= after_s else after_s


# -- rows ------------------------------------------------------------------------------------------


def _row(
    kind: str, name: str, process: int | None, threads: int | None, cpu_s: float | None
) -> dict[str, Any]:
    return {
        "kind": kind,
        "name": name,
        "process": process,
        "threads": threads,
        "cpu_s": cpu_s,
        "delay_s": None,
    }


def _own_rows(before: _Reading, after: _Reading) -> list[dict[str, Any]]:
    """Rows of this process's threads; those of one name are one row."""
    # One that is ending is Python's no more, but still was what it was.
    python = before.python | after.python
    step = before.step_thread
    common = {thread_name(step), thread_name(os.getpid())}
    rows: dict[tuple[str, str], dict[str, Any]] = {}
    for number, cpu_s in after.threads.items():
        key = kind_of_thread(number, step, python.get(number), common)
        if key is None:
            # It has ended since its clock was read: its time goes with that of the others.
            continue
        row = rows.setdefault(key, _row(*key, 0, 0, 0.0))
        row["threads"] += 1
        row["cpu_s"] += _used(cpu_s, before.threads.get(number))
        if number == step and before.delay_s is not None and after.delay_s is not None:
            row["delay_s"] = after.delay_s - before.delay_s
    return list(rows.values())
