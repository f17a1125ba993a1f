"""The watch: sample the workload's thread and its resident set every 10 ms.

It starts before the script's first line, so nothing may be imported here that a bare interpreter
has not loaded. Its thread is a raw one: `threading` does not list it, the process does not wait for
it, and it ends whenever the process forks.

A sample's weight is the watched time since the one before it, in units of 10 ms: long calls that
hold the interpreter's lock count in full. While the watch pauses its thread waits for a lock, and
wakes ten times a second if it is to look out for steps that take far longer than usual.
"""

import _thread
import os
import sys
import time

from profstack import guard
from profstack.environment import rss_bytes, rss_in, rss_text
from profstack.storage.vocabulary import WATCH_INTERVAL_S

# Like that of typing, which must not be imported here; type checkers know the name.
TYPE_CHECKING = False

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import CodeType, FrameType
    from typing import Any

    from profstack.storage.schema.column import Record


# --- Stacks and samples in memory -----------------------------------------------------------------

# Both are bounded, whatever the script does and for however long.

# Samples held before every second one is removed and its weight added to the next.
MOST_HELD = 50_000
# Different frames of the tree; beyond that a frame counts for its caller.
MOST_FRAMES = 50_000
# Frames of one stack, from the innermost.
DEEPEST = 500
_MOST_FILES = 10_000

# Kinds of source files: which of their frames are kept in a stack.
_KEPT, _MACHINERY, _PASSING, _OWN = range(4)
# profstack's modules through which the script's calls pass: frames inside are the script's work.
_PASSED_THROUGH = frozenset(
    os.path.join(guard.PACKAGE, *name.split("/")) + ".py"
    for name in (
        *("launch/child", "launch/in_process", "session", "capture/hooks", "capture/marks"),
        *("capture/region_outlet", "capture/step_rules", "capture/user_regions"),
    )
)


class Stacks:
    """Frames numbered from 1 as a tree: each number is a line and the stack that led to it."""

    def __init__(self) -> None:
        # Folders of profstack itself.
        self.own: tuple[str, ...] = (guard.PACKAGE,)
        # Whether a stack was cut short.
        self.cut = False
        self._numbers: dict[tuple[Any, ...], int] = {}
        self._new: list[Record] = []
        self._kinds: dict[str, int] = {}

    def place(self, frame: "FrameType | None") -> "int | None":
        """Return the number of the stack that ends in `frame`, 0 where there is no room for it.

        None where profstack itself is running.
        """
        chain: list[tuple[CodeType, int | None]] = []
        kinds, passed = self._kinds, False
        # Nothing else is done in the loop: while a frame is held here, so are the objects of a
        # function that has returned meanwhile.
        for _ in range(DEEPEST):
            if frame is None:
                break
            code = frame.f_code
            kind = kinds.get(code.co_filename)
            if kind is None:
                kind = self._kind(code.co_filename)
            if kind == _OWN and not passed:
                return None
            passed = passed or kind == _PASSING
            if kind == _KEPT or (kind == _MACHINERY and not chain):
                line = frame.f_lineno
                chain.append((code, _line_before(code, frame.f_lasti) if line is None else line))
            frame = frame.f_back
        self.cut = self.cut or frame is not None
        frame = None
        return self._number(chain)

    def _number(self, chain: "list[tuple[CodeType, int | None]]") -> int:
        numbers, parent = self._numbers, 0
        for code, line in reversed(chain):
            key = (parent, line, code.co_filename, code.co_name, code.co_firstlineno)
            number = numbers.get(key)
            if number is None:
                if len(numbers) >= MOST_FRAMES:
                    self.cut = True
                    break
                number = numbers[key] = len(numbers) + 1
                self._new.append(
                    {
                        "frame": number,
                        "parent": parent or None,
                        "file": code.co_filename,
                        "line": line,
                        "name": code.co_name,
                        "function_line": code.co_firstlineno,
                    }
                )
            parent = number
        return parent

    def _kind(self, file: str) -> int:
        kind = _KEPT
        if file.startswith("<frozen importlib"):
            # As in tracebacks: left out, unless the import machinery is the innermost frame.
            kind = _MACHINERY
        elif file.startswith(self.own):
            kind = _PASSING if file in _PASSED_THROUGH else _OWN
        if len(self._kinds) >= _MOST_FILES:
            self._kinds.clear()
        self._kinds[file] = kind
        return kind

    def take(self) -> "list[Record]":
        """Return rows of the frames that are new since the last time."""
        new, self._new = self._new, []
        return new

    def memory_bytes(self) -> int:
        """Return the memory of the tree, without the names, which belong to the script's code."""
        each = sys.getsizeof((0,) * 5) + 2 * sys.getsizeof(1 << 20)
        rows = sum(sys.getsizeof(row) for row in self._new[:1]) * len(self._new)
        return sys.getsizeof(self._numbers) + each * len(self._numbers) + rows


def _line_before(code: "CodeType", at: int) -> "int | None":
    """Return the line of the last instruction with one; the jump that ends a loop has none."""
    found = None
    for begin, _, line in code.co_lines():
        if begin > at:
            break
        found = line or found
    return found


class Samples:
    """Samples as parallel lists: a tuple for each would be work for the garbage collector."""

    def __init__(self) -> None:
        names = ("t_s", "frame", "region", "rss_bytes", "weight", "evaluating", "overdue")
        self._columns: dict[str, list[Any]] = {name: [] for name in names}
        self._weights = self._columns["weight"]

    def __len__(self) -> int:
        return len(self._weights)

    def add(
        self,
        t_s: float,
        rss: "int | None",
        frame: int = 0,
        region: "str | None" = None,
        weight: float = 0.0,
        evaluating: "int | None" = None,
        overdue: "int | None" = None,
    ) -> None:
        """Add a sample; with weight 0 a reading of the resident set without time."""
        sample = (t_s, frame or None, region, rss, weight, evaluating, overdue)
        for column, value in zip(self._columns.values(), sample, strict=True):
            column.append(value)
        if len(self) >= MOST_HELD:
            self._thin()

    def _thin(self) -> None:
        """Remove every second sample and add its weight to the next; keep those without weight."""
        weights, kept, owed = self._weights, 0, 0.0
        columns = self._columns.values()
        for number, weight in enumerate(weights):
            follows = weights[number + 1] if number + 1 < len(weights) else 0.0
            if weight and follows and not owed:
                owed = weight
                continue
            for column in columns:
                column[kept] = column[number]
            weights[kept] = weight + owed
            kept, owed = kept + 1, 0.0
        for column in columns:
            del column[kept:]

    def records(self) -> "list[Record]":
        """Return rows of all samples, in order of time."""
        columns = self._columns
        return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]

    def memory_bytes(self) -> int:
        """Return their memory: two floats, an integer, and a place in each list."""
        places = 8 * len(self._columns)
        return (2 * sys.getsizeof(0.0) + sys.getsizeof(1 << 40) + places) * len(self)


# How often a watch that pauses looks whether a step is overdue.
LOOK_OUT_S = 0.1
# Samples after which the interval doubles, and how often: 160 ms from the 50th minute on.
PER_LEVEL = 20_000
MOST_LEVELS = 4
_LONGEST_S = WATCH_INTERVAL_S * 2**MOST_LEVELS
# Samples may cost this share of the watched time. After the first ones, so that a start-up and a
# short script have the full interval, every so many samples choose the interval of the next ones.
MOST_SHARE = 0.005
PER_LOOK = 100
FIRST_LOOK = 30
# The same where the watch is all there is, for jobs of days (`--light`).
FIRST_LOOK_IF_SPARING, MOST_SHARE_IF_SPARING = 3, 0.0025
MOST_CHANGES = 8
# What a sample costs beside its own CPU time where Python code hands over the interpreter's lock
# for it: two changes of thread and cold caches. Between 0.1 ms and, on a busy machine, 0.9 ms.
HANDOVER_S = 0.0003

_perf_counter, _get_ident = time.perf_counter, _thread.get_ident


class Sampler(guard.ForkSafeThread):
    """Samples while resumed; `origin` is when the recording began, by `perf_counter`.

    It follows the thread that resumed it last, else the one that made it. A `sparing` one keeps
    the full interval for 3 seconds, another one for 30, and costs half as much from then on.
    """

    def __init__(self, origin: float, *, sparing: bool = False) -> None:
        self._full = PER_LOOK * (FIRST_LOOK_IF_SPARING if sparing else FIRST_LOOK)
        self._most_share = MOST_SHARE_IF_SPARING if sparing else MOST_SHARE
        self.stacks = Stacks()
        self.interval_s = WATCH_INTERVAL_S
        self.taken = 0
        # Since when it samples less often, and the interval from then on.
        self.thinned: list[tuple[float, float]] = []
        # Why it stopped, if it failed; and whether it gave way to a profiler.
        self.failure: str | None = None
        self.gave_way = False
        self._samples = Samples()
        self._gc, self._signals = guard.import_unseen("gc"), guard.import_unseen("_signal")
        self._origin = origin
        self._pid = os.getpid()
        self._made_on = self._followed = _get_ident()
        self._wanted = self._closed = False
        # When the step in progress began, None without a look-out; after how long it is overdue.
        self._began: Callable[[], float] | None = None
        self._overdue_s = 0.0
        # Whether what is sampled is such a step.
        self._overdue = False
        # Begin of the watched time of the next sample; during a pause, how much of it has passed.
        self._since = 0.0
        self._before = 0.0
        self._most_bytes = 0
        # CPU time of the thread at the last look at its cost, and the samples since then for which
        # the lock was handed over; how often the interval was changed for it.
        self._cpu_s = 0.0
        self._handovers = self._changes = 0
        # The interpreter hands the lock over once it was waited for so long; a bit less.
        self._patience_s = 0.9 * sys.getswitchinterval()
        self._unread = False
        self._alive = self._ending = False
        self._native: int | None = None
        # The first is released to wake the thread; the others by the thread when it pauses, and
        # when it has ended.
        self._wake, self._still, self._ended = (guard.locked_lock() for _ in range(3))
        guard.watch_forks(self)

    def resume(self) -> None:
        """Watch the calling thread from here on."""
        if self._closed or os.getpid() != self._pid:
            return
        self._followed = _get_ident()
        if _is_profiled():
            self.gave_way = True
            self.pause()
            return
        if self._wanted and (self._alive or self.forking):
            return
        self._stop_looking_out()
        now = _perf_counter()
        self._since = now - self._before
        self._read(now)
        self._wanted = True
        if self._alive:
            self._poke()
        else:
            self.begin_thread()

    def pause(self) -> None:
        """Pause until it is resumed: the thread waits when this returns."""
        if os.getpid() != self._pid:
            return
        self._stop_looking_out()
        if not self._wanted:
            return
        self._wanted = False
        self._ask(self._still)
        now = _perf_counter()
        # An overdue sample has missed its time: what it would have seen is not known.
        self._before = min(now - self._since, self.interval_s)
        self._read(now)

    def look_out(self, began: "Callable[[], float]", overdue_s: float) -> None:
        """Sample a step of the calling thread while it is overdue, and pause otherwise.

        `began` returns when the step in progress began, by `perf_counter`; it is called on the
        sampler's thread.
        """
        if self._closed or self.gave_way or os.getpid() != self._pid:
            return
        self.pause()
        self._followed = _get_ident()
        self._began, self._overdue_s = began, overdue_s
        if self._alive:
            self._poke()
        else:
            self.begin_thread()

    def _stop_looking_out(self) -> None:
        if self._began is not None:
            self._began = None
            self._ask(self._still)
            self._overdue = False

    def flush(self) -> "tuple[list[Record], list[Record]]":
        """Return rows of the frames and of the samples since the last time."""
        watched, began, overdue_s = self._wanted, self._began, self._overdue_s
        self.pause()
        self.memory_bytes()
        samples, self._samples = self._samples, Samples()
        frames = self.stacks.take()
        if watched:
            self.resume()
        elif began is not None:
            self.look_out(began, overdue_s)
        return frames, samples.records()

    def has_seen(self) -> bool:
        """Return whether there is a sample of any frame; call it when sampling has ended."""
        return any(row["frame"] is not None for row in self._samples.records())

    def memory_bytes(self) -> int:
        """Return the most memory it has held, as far as it was measured."""
        held = self.stacks.memory_bytes() + self._samples.memory_bytes()
        self._most_bytes = max(self._most_bytes, held)
        return self._most_bytes

    def close(self) -> None:
        """End the thread for good and keep what was not flushed. Safe to call twice."""
        if self._closed or os.getpid() != self._pid:
            return
        self._closed = True
        self._wanted = False
        self._began = None
        self.end_thread()
        guard.unwatch_forks(self)

    # --- The thread

    def begin_thread(self) -> None:
        """Start the thread if it is wanted and no fork is in progress; else after the fork."""
        is_wanted = self._wanted or self._began is not None
        if not is_wanted or self._alive or self.forking or os.getpid() != self._pid:
            return
        self._ending = False
        self._alive = True
        # As many threads as this process may have, or an interpreter about to end.
        with guard.Guard(RuntimeError, self._not_started, always=True):
            _thread.start_new_thread(self._run, ())

    def _not_started(self, error: BaseException) -> None:
        self._alive = False
        self.failure = str(error)

    def _poke(self) -> None:
        if self._wake.locked():
            self._wake.release()

    def _ask(self, answer: "Any") -> None:
        """Wake the thread, and wait for its answer."""
        answer.acquire(False)
        if self._alive:
            self._poke()
            answer.acquire(True, guard.PATIENCE_S)

    def end_thread(self) -> None:
        """End the thread, and wait until it is gone for the system too."""
        if not self._alive:
            return
        self._ending = True
        self._ask(self._ended)
        guard.wait_until_gone(self._native)

    def _run(self) -> None:
        try:
            guard.block_signals(self._signals)
            self._native = _thread.get_native_id()
            self._cpu_s = time.thread_time()
            self._watch()
        except BaseException as error:
            self._wanted = False
            self._began = None
            self.failure = f"{type(error).__name__}: {error}"
        finally:
            self._alive = False
            for answer in (self._still, self._ended):
                if answer.locked():
                    answer.release()

    def _watch(self) -> None:
        # Bound once: a method bound at each wait is an allocation too, see `_sample`.
        wait, still = self._wake.acquire, self._still
        while not self._ending:
            if not self._wanted and not self._is_overdue():
                if still.locked():
                    still.release()
                if self._began is None:
                    wait()
                else:
                    wait(*self._for_seconds(LOOK_OUT_S))
                continue
            left = self._since + self.interval_s - _perf_counter()
            if left > 0:
                wait(*self._for_seconds(left))
            elif _is_profiled():
                self.gave_way = True
                return
            else:
                self._sample()

    def _is_overdue(self) -> bool:
        """Return whether the watch looks out for long steps, and one is in progress."""
        looked_at = self._overdue
        # A call may start a collection, as in `_sample`.
        collecting = self._gc.isenabled()
        self._gc.disable()
        now, began = _perf_counter(), self._began
        try:
            is_late = began is not None and now - began() > self._overdue_s
        except IndexError:
            # The slice ended meanwhile, and its steps are being forgotten.
            is_late = False
        finally:
            if collecting:
                self._gc.enable()
        self._overdue = is_late and not _is_profiled()
        if self._overdue and not looked_at:
            # What came before was not watched.
            self._since = now
        return self._overdue

    def _for_seconds(self, seconds: float) -> "tuple[bool, float]":
        """Return the arguments of a wait, made as in `_sample`: a call would make a tuple."""
        collecting = self._gc.isenabled()
        self._gc.disable()
        arguments = (True, seconds)
        if collecting:
            self._gc.enable()
        return arguments

    def _sample(self) -> None:
        if self._unread:
            # The script may have closed the file: open it again.
            rss_bytes()
        text = rss_text()
        collecting = self._gc.isenabled()
        # An allocation may start a collection, and finalizers of the script's objects must not run
        # on this thread. Nothing in between releases the interpreter's lock.
        self._gc.disable()
        try:
            rss = rss_in(text)
            self._unread = rss is None
            # The user's region of the followed thread, if the script has any.
            module = sys.modules.get("profstack.capture.user_regions")
            current: Callable[[int], str | None] | None = getattr(module, "current", None)
            region = current(self._followed) if current is not None else None
            steps = sys.modules.get("profstack.capture.step_events")
            evaluating = 1 if getattr(steps, "evaluates", False) else None
            number = self.stacks.place(_frame_of(self._followed) or _frame_of(self._made_on))
            now = _perf_counter()
            weight = (now - self._since) / WATCH_INTERVAL_S if number is not None else 0.0
            overdue = None if self._wanted else 1
            self._samples.add(
                now - self._origin, rss, number or 0, region, weight, evaluating, overdue
            )
            if now - self._since > self.interval_s + self._patience_s:
                self._handovers += 1
            self._since = now
            self.taken += 1
            if self.taken % PER_LOOK == 0 or self.taken % PER_LEVEL == 0:
                self._choose_interval(now)
        finally:
            if collecting:
                self._gc.enable()

    def _choose_interval(self, now: float) -> None:
        """Choose how often to sample, by the length of the run and by what samples cost."""
        least_s = WATCH_INTERVAL_S * 2 ** min(self.taken // PER_LEVEL, MOST_LEVELS)
        interval_s = max(self.interval_s, least_s)
        if self.taken % PER_LOOK == 0:
            cpu_s = time.thread_time()
            cost_s = (cpu_s - self._cpu_s + HANDOVER_S * self._handovers) / PER_LOOK
            self._cpu_s, self._handovers = cpu_s, 0
            # Rounded up to whole intervals of 10 ms.
            needed = -(-cost_s // (self._most_share * WATCH_INTERVAL_S))
            needed_s = min(max(needed * WATCH_INTERVAL_S, least_s), _LONGEST_S)
            differs = not 0.5 * interval_s < needed_s < 1.5 * interval_s
            if differs and self._changes < MOST_CHANGES and self.taken >= self._full:
                self._changes += 1
                interval_s = needed_s
        if interval_s != self.interval_s:
            self.interval_s = interval_s
            self.thinned.append((now - self._origin, interval_s))

    def _read(self, now: float) -> None:
        """Read the resident set at the edge of a pause: growth in between belongs to no sample."""
        self._samples.add(now - self._origin, rss_bytes())

    # --- Forks

    def forget(self) -> None:
        """Drop everything in the child of a fork: this is the parent's sampler."""
        self._closed = True
        self._wanted = self._alive = False
        self._began = None
        self._samples = Samples()
        self.stacks = Stacks()


def _frame_of(thread: int) -> "Any":
    return sys._current_frames().get(thread)


# Read once: a missing attribute makes an error, which is an allocation as in `_sample`.
_MONITORING: "Any" = getattr(sys, "monitoring", None)


def _is_profiled() -> bool:
    """Return whether a profiler counts this thread's calls too, as cProfile does from 3.12 on."""
    return _MONITORING is not None and _MONITORING.get_tool(_MONITORING.PROFILER_ID) is not None
