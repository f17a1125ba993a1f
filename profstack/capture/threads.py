"""CPU time and kinds of all threads and child processes.

Read outside the timed steps, and nowhere else: the clock of a thread is one system call, and its
name is read only after the slice. Threads and processes that began in the slice count from their
beginning; what those used that ended in it is the difference of the totals.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from dataclasses import asdict, dataclass

from profstack.environment import children_of, run_delay_s, thread_name, thread_numbers
from profstack.guard import Guard, native_numbers
from profstack.storage.schema.column import SqlValue
from profstack.storage.vocabulary import BACKWARD, MAIN, NATIVE, OTHER, OWN, PIN, WORKER

# What torch calls its threads and processes.
_WORKER_NAME, _PIN_NAME, _BACKWARD_NAME = "pt_data_worker", "pt_data_pin", "pt_autograd"
UNNAMED = "threads without a name"


def kind_of_thread(
    number: int, step: int, python: tuple[str, str | None] | None, common: set[str | None]
) -> tuple[str, str] | None:
    """Return kind and name of a thread of this process; None where it is gone.

    `step` is the thread that makes the steps, `python` what `python_threads` has of this one, and
    `common` are names that say nothing of a thread.
    """
    if number == step:
        return MAIN, python[0] if python is not None else "the steps' thread"
    if number in native_numbers:
        return OWN, "sampler of the watch"
    name = thread_name(number)
    if python is not None:
        called, made_of = python
        pins = name == _PIN_NAME or made_of == "torch.utils.data._utils.pin_memory"
        return (PIN, _PIN_NAME) if pins else (OTHER, called)
    if name is not None and name.startswith(_BACKWARD_NAME):
        return BACKWARD, name
    # Pools of native code inherit the name of the thread that began them.
    return (NATIVE, UNNAMED if name in common else name) if name is not None else None


def kind_of_process(process: int) -> tuple[str, str]:
    """Return kind and name of a process that this one has started."""
    name = thread_name(process, process)
    return (WORKER, _WORKER_NAME) if name == _WORKER_NAME else (OTHER, name or "process")


def python_threads() -> dict[int, tuple[str, str | None]]:
    """Return the threads of `threading` by native number: name and module of their function."""
    return {
        each.native_id: (each.name, getattr(getattr(each, "_target", None), "__module__", None))
        for each in threading.enumerate()
        if each.native_id is not None
    }


def started_by_multiprocessing() -> list[int]:
    """Return the children that `multiprocessing` knows, for where the kernel names none."""
    # The public function would wait for those that have ended.
    known = list(getattr(sys.modules.get("multiprocessing.process"), "_children", ()))
    return [child.pid for child in known if isinstance(child.pid, int)]


def made_by_multiprocessing() -> int:
    """Return how many processes `multiprocessing` has made here, ended ones too; 0 if unknown."""
    # An `itertools.count` shows its number without counting on only in its text.
    text = repr(getattr(sys.modules.get("multiprocessing.process"), "_process_counter", None))
    number = text.removeprefix("count(").removesuffix(")")
    return int(number) - 1 if number.isdigit() else 0


ENDED_THREADS, ENDED_PROCESSES = "threads that ended", "processes that ended"


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


@dataclass
class _ThreadRow:
    """A row of `thread_times`, without the number of its slice."""

    kind: str
    name: str
    process: int | None
    threads: int | None
    cpu_s: float | None
    delay_s: float | None = None


class ThreadTimes:
    """Reads clocks at edges; `reason` says why there is nothing, `took_s` what readings cost."""

    def __init__(self) -> None:
        self.reason: str | None = None
        self.readings = 0
        self.took_s = 0.0
        self._before: _Reading | None = None
        self._rows: list[_ThreadRow] = []
        # Kinds and names of the children so far: those that have ended can no longer be asked.
        self._known: dict[int, tuple[str, str]] = {}

    def begin(self) -> None:
        """Read the clocks before a clean slice of the calling thread."""
        self._rows = []
        self._before = self._read(None)

    def end(self) -> None:
        """Read the clocks after the slice; nothing where none had begun."""
        before, self._before = self._before, None
        if before is not None and (after := self._read(before)) is not None:
            with Guard(failed=self._fail):
                self._rows = self._compare(before, after)

    def discard(self) -> None:
        """Drop a slice that was cut short: clocks read now would count more than its steps."""
        self._before, self._rows = None, []

    def take(self) -> list[dict[str, SqlValue]]:
        """Return the rows of `thread_times` of the ended slice, without its number."""
        rows, self._rows = self._rows, []
        return [asdict(row) for row in rows]

    def facts(self) -> dict[str, int | float | str | None]:
        """Return facts about the readings themselves."""
        return {"readings": self.readings, "took_s": self.took_s, "reason": self.reason}

    # -- reading ---------------------------------------------------------------------------------

    def _read(self, before: _Reading | None) -> _Reading | None:
        if self.reason is None:
            with Guard(failed=self._fail):
                reading = self._read_first() if before is None else self._read_last(before)
                if reading is not None:
                    self.readings += 1
                    self.took_s += reading.took_s
                    return reading
                self.reason = "this system does not report the CPU time of single threads"
        return None

    def _fail(self, error: BaseException) -> None:
        self.reason = f"reading them failed: {type(error).__name__}: {error}"

    def _read_first(self) -> _Reading | None:
        """Read before the slice: the step's own clocks last, so that reading is no part of it."""
        begun = time.perf_counter()
        numbers = thread_numbers() if sys.platform == "linux" else None
        if numbers is None:
            return None
        own = threading.get_native_id()
        others = (self._children(), _waited_s(), run_delay_s(own), python_threads())
        threads = _thread_clocks(numbers)
        process_s = time.process_time()
        threads[own] = time.thread_time()
        return _Reading(own, time.perf_counter() - begun, process_s, threads, *others)

    def _read_last(self, before: _Reading) -> _Reading | None:
        """Read after the slice: the step's own clocks first."""
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
        others = (self._children(), _waited_s(), run_delay_s(own), python_threads())
        return _Reading(own, time.perf_counter() - begun, process_s, threads, *others)

    def _children(self) -> dict[int, float]:
        """Return the CPU time of all processes below this one that have not ended."""
        found: dict[int, float] = {}
        to_ask: list[tuple[int, int | None]] = [(os.getpid(), None)]
        to_ask += [(number, None) for number in python_threads() if number != os.getpid()]
        while to_ask:
            thread, process = to_ask.pop()
            numbers = children_of(thread, process)
            for child in started_by_multiprocessing() if numbers is None else numbers:
                if child not in found and (cpu_s := _cpu_s(child, _PROCESS)) is not None:
                    found[child] = cpu_s
                    to_ask.append((child, child))
                    if child not in self._known:
                        self._known[child] = kind_of_process(child)
        return found

    # -- the difference --------------------------------------------------------------------------

    def _compare(self, before: _Reading, after: _Reading) -> list[_ThreadRow]:
        rows = _own_rows(before, after)
        rest_s = after.process_s - before.process_s - sum(row.cpu_s or 0.0 for row in rows)
        # Threads that ran while the clocks were read, one after the other, make a difference too.
        running = max(1, sum(1 for row in rows if row.cpu_s))
        if rest_s > running * (before.took_s + after.took_s):
            rows.append(_ThreadRow(OTHER, ENDED_THREADS, 0, None, rest_s))
        for number, (child, cpu_s) in enumerate(sorted(after.children.items()), 1):
            # Read again: right after its start a child has its parent's name.
            kind, name = self._known[child] = kind_of_process(child)
            used_s = _used(cpu_s, before.children.get(child))
            threads = len(thread_numbers(child) or ()) or None
            rows.append(_ThreadRow(kind, name, number, threads, used_s))
        return rows + self._ended_children(before, after)

    def _ended_children(self, before: _Reading, after: _Reading) -> list[_ThreadRow]:
        """Return a row of processes waited for in the slice, also those that began in it."""
        gone = before.children.keys() - after.children.keys()
        used_s = None
        if before.waited_s is not None and after.waited_s is not None:
            # What they had used before the slice is not its own.
            earlier_s = sum(before.children[child] for child in gone)
            used_s = after.waited_s - before.waited_s - earlier_s
        known = {self._known.pop(child, (OTHER, ""))[0] for child in gone}
        if not gone and not used_s:
            return []
        if used_s is not None and used_s < 0:
            # They were not waited for: the system does not give what they used.
            used_s = None
        kind = known.pop() if len(known) == 1 else OTHER
        return [_ThreadRow(kind, ENDED_PROCESSES, None, None, used_s)]


# -- clocks ----------------------------------------------------------------------------------------

# How Linux numbers the CPU clocks of other threads and processes; see clock_getcpuclockid(3).
_PROCESS, _THREAD = 2, 6


def _cpu_s(number: int, which: int) -> float | None:
    """Return the CPU time of a thread of this process, or of any process; None if it is gone."""
    with Guard(OSError):
        return time.clock_gettime((~number << 3) | which)
    return None


def _thread_clocks(numbers: list[int]) -> dict[int, float]:
    return {each: cpu_s for each in numbers if (cpu_s := _cpu_s(each, _THREAD)) is not None}


def _waited_s() -> float | None:
    """Return the CPU time of all child processes that were waited for."""
    with Guard(ImportError):
        import resource

        used = resource.getrusage(resource.RUSAGE_CHILDREN)
        return used.ru_utime + used.ru_stime
    return None


def _used(after_s: float, before_s: float | None) -> float:
    """Return the time between two readings; all of it for what is new at the second."""
    return after_s - before_s if before_s is not None and before_s <= after_s else after_s


def _own_rows(before: _Reading, after: _Reading) -> list[_ThreadRow]:
    """Return rows of this process's threads; those of one name are one row."""
    # A thread that is ending is no longer Python's, but still has its kind.
    python = before.python | after.python
    step = before.step_thread
    common = {thread_name(step), thread_name(os.getpid())}
    rows: dict[tuple[str, str], _ThreadRow] = {}
    for number, cpu_s in after.threads.items():
        if (key := kind_of_thread(number, step, python.get(number), common)) is None:
            # It has ended since its clock was read: its time goes with that of the others.
            continue
        row = rows.setdefault(key, _ThreadRow(*key, 0, 0, 0.0))
        row.threads = (row.threads or 0) + 1
        row.cpu_s = (row.cpu_s or 0.0) + _used(cpu_s, before.threads.get(number))
        if number == step and before.delay_s is not None and after.delay_s is not None:
            row.delay_s = after.delay_s - before.delay_s
    return list(rows.values())
