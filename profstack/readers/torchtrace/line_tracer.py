"""Trace the source lines of the script's own files, with times, for one slice.

The profiler knows the line of a call but not of an operator written with a sign (`a @ b`), so
lines are traced: the interpreter reports every line that the script's own code runs, the time is
stamped, and operators join by time (in `lines`). A line ends where the tracer is entered and begins
where it is left, so that the tracer's own time is no line's.

A function that runs very many lines is no longer traced after a budget. From then on a thread opens
short windows in which all lines are traced again: a few hundred of them say how the time outside
them is to be divided.
"""

from __future__ import annotations

import _thread
import contextlib
import dis
import functools
import gc
import inspect
import sys
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping
from statistics import median
from types import CodeType, FrameType
from typing import Any, NamedTuple

from profstack.code_owner import Places, script_folder
from profstack.environment import run_delay_s
from profstack.guard import WorkerThread, foreign_tracer, is_scripts, unseen_by_dynamo

# Line events after which a code object is no longer traced line by line, and calls of it after
# which its time is left on the line that calls it.
BUDGET = 10_000
# The place of times that belong to no line.
NO_LINE = -1
# Lines of one window, and the time between two: at first, and as a part of all the time before.
WINDOW = 64
_INTERVAL_NS = 500_000
_INTERVAL_SHARE = 0.01
# Only in what takes so long the time is looked at that others took on the processor.
_LONG_NS = 100_000
_now = time.time_ns
_SUSPENDS = inspect.CO_GENERATOR | inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR


class _CodeInfo:
    """One code object: whether it is the script's own, its lines' places, and its budget used."""

    def __init__(self, code: CodeType, own: bool) -> None:
        # Kept alive so that its address, by which it is found, is not used again.
        self.code = code
        self.own = own
        self.suspends = bool(code.co_flags & _SUSPENDS)
        self.places: dict[int, int] = {}
        self.spent = 0
        self.truncated = False
        self.calls = 0


class Window(NamedTuple):
    """When a window was opened, and the line that ran then."""

    opened_ns: int
    code: CodeType
    line: int


class LineTracer:
    """Stamps `(time, line)` whenever the thread that started it runs a line of the script."""

    def __init__(self) -> None:
        # By stamp: when its line began, and when the line before it had ended.
        self.times: list[int] = []
        self.entered: list[int] = []
        self.places: list[int] = []
        self.runs: list[bool] = []
        # By stamp: the number of its window from 1, 0 for none, and the calls since the one before.
        self.in_window: list[int] = []
        self.passed: list[int] = []
        # By stamp that was long before the next one: how long the thread waited for a processor.
        self.waited: dict[int, int] = {}
        self.lines: list[tuple[CodeType, int]] = []
        self.truncated: list[CodeType] = []
        # Windows in order of time, and stamps during which lines ran that were not traced.
        self.windows: list[Window] = []
        self.blind: list[int] = []
        # When the thread that opens windows was at work, and for how long: the other one may wait.
        self.opening: list[tuple[int, int]] = []
        # By address: the hash of a code object is computed from all of it each time, and equal
        # ones may come from two files.
        self._codes: dict[int, _CodeInfo] = {}
        self._root = script_folder()
        self._running = False
        self._calls = 0
        self._native: int | None = None
        self._waited_ns = 0
        # Lines left in the open window.
        self._left = 0
        self._opener: _WindowOpener | None = None
        # When the first function was truncated, and when the next window may open.
        self._since_ns = self._due_ns = 0
        self.costs = TracingCosts()
        # Why tracing ended before it was stopped.
        self.ended: str | None = None

    def start(self) -> None:
        """Start tracing, also frames of the script that are running already."""
        if (other := foreign_tracer()) is not None:
            raise RuntimeError(other)
        self.costs = _tracing_costs()
        self._running = True
        self._native = _thread.get_native_id()
        self._look_at_waits()
        # A script may compile for the first time while traced: dynamo must not compile these too.
        own = type(self)
        for function in (own._global, own._local, own._line, own._stamp, own._add):
            unseen_by_dynamo(sys.modules["torch"], function, with_callees=True)
        innermost = None
        for frame in frames_outwards(sys._getframe(1)):
            if frame.f_trace is None and self._info(frame.f_code).own:
                frame.f_trace = self._local
                innermost = innermost or frame
        if innermost is not None:
            self._stamp(innermost, _now())
        sys.settrace(self._global)

    def stop(self) -> None:
        """Stop tracing; safe to call twice."""
        # It runs on after an error, too.
        if self._opener is not None:
            self._opener.stop()
        if not self._running:
            return
        self._running = False
        # A tracer that the script has set instead of ours stays.
        if getattr(sys.gettrace(), "__self__", None) is self:
            sys.settrace(None)
        for frame in frames_outwards(sys._getframe(1)):
            self._release(frame)
        if sys.gettrace() is None:
            # Before and after: the processor is not equally fast all the time.
            self.costs = self.costs.mean_with(_tracing_costs())

    def _release(self, frame: FrameType) -> None:
        if getattr(frame.f_trace, "__self__", None) is self:
            frame.f_trace = None
            frame.f_trace_lines = True

    def _global(self, frame: FrameType, event: str, argument: Any) -> Any:
        entered = _now()
        try:
            self._calls += 1
            info = self._codes.get(id(frame.f_code)) or self._info(frame.f_code)
            if self._opener is not None and entered >= self._due_ns:
                # In a loop of calls the other thread is not needed, which may come late.
                self.open_window(frame)
            if not info.own or not self._running:
                return None
            if info.truncated and not self._left:
                info.calls += 1
                if info.calls > BUDGET:
                    # Its time is left on the line that calls it.
                    if self.blind[-1:] != [len(self.times) - 1]:
                        self.blind.append(len(self.times) - 1)
                    return None
                self._end_lines(frame)
                self._stamp(frame, entered)
            elif info.suspends and frame.f_lineno != frame.f_code.co_firstlineno:
                # A generator goes on in the middle of a line, which is no new line to run.
                self._stamp(frame, entered)
        except BaseException as error:
            if self._is_for_script(error):
                raise
            return None
        return self._local

    def _local(self, frame: FrameType, event: str, argument: Any) -> Any:
        entered = _now()
        try:
            if not self._running:
                self._release(frame)
                return None
            if event == "line":
                self._line(frame, entered)
            elif event == "return":
                caller = frame.f_back
                while caller is not None and caller.f_trace is None:
                    caller = caller.f_back
                if caller is not None:
                    self._stamp(caller, entered)
                else:
                    self._add(NO_LINE, entered)
        except BaseException as error:
            if self._is_for_script(error):
                raise
            return None
        return self._local

    def _line(self, frame: FrameType, entered: int) -> None:
        info = self._info(frame.f_code)
        if self._left:
            self._left -= 1
        elif info.spent < BUDGET:
            info.spent += 1
        else:
            if not info.truncated:
                info.truncated = True
                self.truncated.append(frame.f_code)
                self._open_windows()
            self._end_lines(frame)
        self._stamp(frame, entered, runs=True)

    def _end_lines(self, frame: FrameType) -> None:
        """End the tracing of lines for this call."""
        # Returning None from a trace function would not end it: this does.
        frame.f_trace_lines = False
        if self._left:
            # The other thread has opened a window meanwhile.
            frame.f_trace_lines = True

    def _open_windows(self) -> None:
        """Start the thread that opens windows, with the first function that needs them."""
        if self._opener is None:
            self._opener = _WindowOpener(self)
            self._since_ns = _now()
            self._due_ns = self._since_ns + _INTERVAL_NS
            # As many threads as this process may have.
            with contextlib.suppress(RuntimeError):
                self._opener.start()

    def open_window(self, frame: FrameType | None) -> None:
        """Trace all lines again for a while, if `frame` is in a function that is not traced.

        It is called where the traced thread calls a function, and on another thread while the
        traced one waits for it or runs an operator.
        """
        now = _now()
        if self._left or not self._running or now < self._due_ns:
            return
        interval = max(_INTERVAL_NS, round(_INTERVAL_SHARE * (now - self._since_ns)))
        self._due_ns = now + interval
        own = (each for each in frames_outwards(frame) if self._is_own(each.f_code))
        innermost = next(own, None)
        if innermost is None or not self._codes[id(innermost.f_code)].truncated:
            return
        for each in (innermost, *own):
            if each.f_trace is None or getattr(each.f_trace, "__self__", None) is self:
                each.f_trace = self._local
                each.f_trace_lines = True
        self.windows.append(Window(_now(), innermost.f_code, innermost.f_lineno))
        self._left = WINDOW

    def wait_s(self) -> float:
        """Return the time until the next window may open."""
        return max(_INTERVAL_NS, self._due_ns - _now()) / 1e9

    def _is_own(self, code: CodeType) -> bool:
        info = self._codes.get(id(code))
        return info is not None and info.own

    def _is_for_script(self, error: BaseException) -> bool:
        """End the tracing after an error in a trace function; return whether it is the script's.

        The time after it belongs to no line.
        """
        scripts = is_scripts(error)
        self.ended = "a signal's handler raised" if scripts else f"{type(error).__name__}: {error}"
        self._running = False
        if getattr(sys.gettrace(), "__self__", None) is self:
            sys.settrace(None)
        # The error may have come between the writes to two columns.
        columns = (self.places, self.runs, self.in_window, self.passed, self.entered, self.times)
        whole = min(len(column) for column in columns)
        for column in columns:
            del column[whole:]
        self._add(NO_LINE, _now())
        return scripts

    def _stamp(self, frame: FrameType, entered: int, *, runs: bool = False) -> None:
        """Stamp that the frame's line runs; of a truncated function, its first line."""
        code = frame.f_code
        info = self._info(code)
        window = len(self.windows) if self._left else 0
        hidden = info.truncated and not window
        line = code.co_firstlineno if hidden else frame.f_lineno
        self._add(self.place_of(code, line), entered, runs and not hidden, window)

    def place_of(self, code: CodeType, line: int) -> int:
        """Return the number of a line, a new one where it has none yet."""
        places = self._info(code).places
        place = places.get(line)
        if place is None:
            place = places[line] = len(self.lines)
            self.lines.append((code, line))
        return place

    def _add(self, place: int, entered: int, runs: bool = False, window: int = 0) -> None:
        if self.times and entered - self.times[-1] > _LONG_NS:
            self.waited[len(self.times) - 1] = self._look_at_waits()
        self.places.append(place)
        self.runs.append(runs)
        self.in_window.append(window)
        self.passed.append(self._calls)
        self._calls = 0
        self.entered.append(entered)
        now = _now()
        if now - entered > _LONG_NS:
            # Others ran while the tracer did: that is no line's.
            self._look_at_waits()
            now = _now()
        self.times.append(now)

    def _look_at_waits(self) -> int:
        """Return how long the thread has waited for a processor since the last time."""
        seconds = run_delay_s(self._native) if self._native is not None else None
        if seconds is None:
            return 0
        before, self._waited_ns = self._waited_ns, round(seconds * 1e9)
        return max(0, self._waited_ns - before)

    def left_to_callers(self, code: CodeType) -> bool:
        """Return whether calls of a function were left on the lines that call it."""
        return self._info(code).calls > BUDGET

    def _info(self, code: CodeType) -> _CodeInfo:
        info = self._codes.get(id(code))
        if info is None:
            info = self._codes[id(code)] = _CodeInfo(code, is_users(code.co_filename, self._root))
        return info


class TracingCosts(NamedTuple):
    """Nanoseconds that tracing takes of a line, outside the tracer's own functions.

    `stamp_ns` is the way into the tracer and out of it, once for each stretch of a line,
    `instruction_ns` the look of the interpreter whether an instruction begins a line, and `call_ns`
    the look at a function that is called.
    """

    stamp_ns: int = 0
    instruction_ns: float = 0.0
    call_ns: int = 0

    def mean_with(self, other: TracingCosts) -> TracingCosts:
        """Return the mean of two measurements."""
        stamp, instruction, call = ((a + b) / 2 for a, b in zip(self, other, strict=True))
        return TracingCosts(round(stamp), instruction, round(call))

    def of_instructions(self, code: CodeType, line: int) -> float:
        """Return the cost of one run of a line's instructions."""
        return self.instruction_ns * _instructions(code).get(line, 0)


@functools.lru_cache(maxsize=64)
def _instructions(code: CodeType) -> Mapping[int, int]:
    counts = defaultdict[int, int](int)
    line: int | None = code.co_firstlineno
    for each in dis.get_instructions(code):
        positions = getattr(each, "positions", None)
        # Before Python 3.11 only the first instruction of a line has its number.
        line = positions.lineno if positions is not None else each.starts_line or line
        if line is not None:
            counts[line] += 1
    return counts


_TRIAL = """def called():
    pass
def trial():
    this = that = None
    for _ in range(40):
        this = that
        called()
        this = that; that = this; this = that; that = this; this = that; that = this
"""
# What the call in it takes by itself, and one of its instructions.
_CALL_NS, _INSTRUCTION_NS = 40, 2


def _tracing_costs() -> TracingCosts:
    """Measure the costs by lines that do next to nothing."""
    names: dict[str, Any] = {}
    exec(compile(_TRIAL, "<trial of the line tracer>", "exec"), names)
    if sys.gettrace() is not None:
        return TracingCosts()
    tracer, codes = LineTracer(), [names[name].__code__ for name in ("trial", "called")]
    tracer._codes = {id(code): _CodeInfo(code, own=True) for code in codes}
    tracer._running = True
    sys.settrace(tracer._global)
    try:
        names["trial"]()
    finally:
        sys.settrace(None)
    taken = defaultdict[int, list[int]](list)
    for place, began, ended in zip(tracer.places, tracer.times, tracer.entered[1:], strict=False):
        taken[tracer.lines[place][1]].append(ended - began)
    # A call is followed by the first line of the function; what comes after it is shorter.
    taken[7] = taken[7][::2]
    # The median: the processor is as busy as while lines were traced.
    if not all(taken[line] for line in (6, 7, 8)):
        return TracingCosts()
    one, call, six = (median(taken[line]) for line in (6, 7, 8))
    # Five assignments more, of two instructions each.
    instruction = max(0.0, (six - one) / 10 - _INSTRUCTION_NS)
    call_ns = max(0, round(call - one - _CALL_NS))
    return TracingCosts(round(max(0.0, one - 2 * instruction)), instruction, call_ns)


class _WindowOpener(WorkerThread):
    """Opens windows of the tracer that makes it, for the thread that makes it."""

    # How long the traced thread may keep the interpreter's lock from this one.
    _PATIENCE_S = 0.0002

    def __init__(self, tracer: LineTracer) -> None:
        super().__init__()
        self._tracer = tracer
        self._thread = _thread.get_ident()
        self._before: float | None = None
        # The interval as Python gives it back: it keeps whole microseconds.
        self._ours = self._PATIENCE_S

    def stop(self) -> None:
        """End the thread."""
        super().stop()
        self._restore()

    def end_thread(self) -> None:
        """End the thread before a fork, whose child has the script's own interval."""
        super().end_thread()
        self._restore()

    def _restore(self) -> None:
        before, self._before = self._before, None
        if before not in (None, self._ours) and sys.getswitchinterval() == self._ours:
            sys.setswitchinterval(before)

    def prepare(self) -> None:
        """Have the interpreter switch threads more often, while the slice lasts."""
        if self._before is None:
            self._before = sys.getswitchinterval()
        sys.setswitchinterval(self._PATIENCE_S)
        self._ours = sys.getswitchinterval()

    def work(self, halt: Any) -> None:
        """Open a window at each interval, until `halt` can be acquired."""
        collects = gc.isenabled
        while not halt.acquire(timeout=self._tracer.wait_s()):
            # Finalizers of the script's objects must not run on this thread.
            collected, began = collects(), _now()
            gc.disable()
            try:
                self._tracer.open_window(sys._current_frames().get(self._thread))
            finally:
                if collected:
                    gc.enable()
                self._tracer.opening.append((began, _now() - began))


def frames_outwards(frame: FrameType | None) -> Iterator[FrameType]:
    """Iterate over the frame, the one that called it, and so on."""
    while frame is not None:
        yield frame
        frame = frame.f_back


@functools.cache
def _places(root: str) -> Places:
    return Places.of(root)


def is_users(file: str, root: str) -> bool:
    """Return whether a file is the user's own, for a script in the folder `root`."""
    return _places(root).is_own(file)
