"""Trace the source lines of the script's own files, with times, for one slice.

The profiler knows the line of a call but not of an operator written with a sign (`a @ b`), so
lines are traced: the interpreter reports every line that the script's own code runs, the time is
stamped, and operators join by time (in `lines`). A line ends where the tracer is entered and begins
where it is left, so that the tracer's own time is no line's.

The first runs of each line are stamped. After them it is counted, and stamped only where it takes
long or in a window: all lines of a short stretch, opened by the first line that begins after a set
time. So `lines` can estimate what the runs that were only counted took.
"""

from __future__ import annotations

import _thread
import dis
import functools
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
from profstack.guard import foreign_tracer, is_scripts, unseen_by_dynamo

# Runs of a line that are stamped in any case.
BUDGET = 500
# Lines after which tracing ends.
MOST_LINES = 2_000_000
# The place of times that belong to no line.
NO_LINE = -1
# Lines of one window, and the time between two: at first, and as a part of all the time before.
WINDOW = 32
_INTERVAL_NS = 200_000
_INTERVAL_SHARE = 0.001
# A line that takes so long is stamped wherever it runs: windows would see it too rarely.
LONG_LINE_NS = 10_000
# Only in what takes so long the time is looked at that others took on the processor.
_LONG_NS = 100_000
_now = time.time_ns
_SUSPENDS = inspect.CO_GENERATOR | inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR


class _CodeInfo:
    """One code object: whether it is the script's own, its lines' places, and their runs."""

    def __init__(self, code: CodeType, own: bool) -> None:
        # Kept alive so that its address, by which it is found, is not used again.
        self.code = code
        self.own = own
        self.suspends = bool(code.co_flags & _SUSPENDS)
        self.places: dict[int, int] = {}
        # By line: runs that were only counted; below 0, runs that are still stamped.
        self.counted: dict[int, int] = {}


class LineTracer:
    """Stamps `(time, line)` whenever the thread that started it runs a line of the script."""

    def __init__(self) -> None:
        # By stamp: when its line began, and when the line before it had ended.
        self.times: list[int] = []
        self.entered: list[int] = []
        self.places: list[int] = []
        self.runs: list[bool] = []
        # By stamp: whether it is in a window, and the calls since the one before.
        self.in_window: list[bool] = []
        self.passed: list[int] = []
        # By stamp that was long before the next one: how long the thread waited for a processor.
        self.waited: dict[int, int] = {}
        self.lines: list[tuple[CodeType, int]] = []
        # By address: the hash of a code object is computed from all of it each time, and equal
        # ones may come from two files.
        self._codes: dict[int, _CodeInfo] = {}
        self._root = script_folder()
        self._running = False
        self._calls = 0
        self._native: int | None = None
        self._waited_ns = 0
        # Lines left in the open window, when the first was opened, and when the next may be.
        self._left = self._since_ns = self._due_ns = 0
        # Whether lines are only counted since the last stamp, the last of them that began (None
        # where it goes on after a call), and when.
        self._hidden = False
        self._last: tuple[_CodeInfo, int] | None = None
        self._last_ns = 0
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
        for function in (own._global, own._local, own._line, own._go_on, own._hide, own._add):
            unseen_by_dynamo(sys.modules["torch"], function, with_callees=True)
        innermost = None
        for frame in frames_outwards(sys._getframe(1)):
            if frame.f_trace is None and self._info(frame.f_code).own:
                frame.f_trace = self._local
                innermost = innermost or frame
        if innermost is not None:
            self._go_on(innermost, _now())
        sys.settrace(self._global)

    def stop(self) -> None:
        """Stop tracing; safe to call twice."""
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

    def _global(self, frame: FrameType, event: str, argument: Any) -> Any:
        entered = _now()
        try:
            self._calls += 1
            info = self._codes.get(id(frame.f_code)) or self._info(frame.f_code)
            if not info.own or not self._running:
                return None
            if info.suspends and frame.f_lineno != frame.f_code.co_firstlineno:
                # A generator goes on in the middle of a line, which is no new line to run.
                self._go_on(frame, entered)
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
                return None  # which leaves it to trace the frame
            if event == "return":
                caller = frame.f_back
                while caller is not None and caller.f_trace is None:
                    caller = caller.f_back
                if caller is not None:
                    self._go_on(caller, entered)
                else:
                    self._add(NO_LINE, entered)
        except BaseException as error:
            if self._is_for_script(error):
                raise
            return None
        return self._local

    def _line(self, frame: FrameType, entered: int) -> None:
        """Stamp or count a line that begins."""
        code, line = frame.f_code, frame.f_lineno
        info = self._codes.get(id(code)) or self._info(code)
        window = False
        if self._left:
            self._left -= 1
            window = True
        else:
            counted = info.counted.get(line, -BUDGET)
            if counted >= 0 and entered >= self._due_ns:
                self._open_window(entered)
                if not self._running:
                    self._add(NO_LINE, entered)
                    return
                window = True
            else:
                info.counted[line] = counted + 1
                if counted >= 0:
                    if not self._hidden or entered - self._last_ns >= LONG_LINE_NS:
                        self._hide(entered)
                    self._last = (info, line)
                    self._last_ns = entered
                    self._calls = 0
                    return
        place = info.places.get(line)
        self._add(self.place_of(code, line) if place is None else place, entered, True, window)

    def _open_window(self, now: int) -> None:
        """Stamp all lines for a while; end tracing where very many have run."""
        self._since_ns = self._since_ns or now
        self._due_ns = now + max(_INTERVAL_NS, round(_INTERVAL_SHARE * (now - self._since_ns)))
        self._left = WINDOW - 1
        if sum(sum(info.counted.values()) for info in self._codes.values()) > MOST_LINES:
            self._end(f"{MOST_LINES:,} lines had run")

    def _go_on(self, frame: FrameType, entered: int) -> None:
        """Stamp that the frame's line goes on, or hide it if its begin was only counted."""
        code, line = frame.f_code, frame.f_lineno
        if self._left or self._info(code).counted.get(line, 0) <= 0:
            self._add(self.place_of(code, line), entered, window=bool(self._left))
        else:
            self._hide(entered)

    def _hide(self, entered: int) -> None:
        """Let time from here on be that of lines that are only counted."""
        if not self._hidden or entered - self._last_ns >= LONG_LINE_NS:
            self._add(NO_LINE, entered)
            self._hidden = True
        self._last, self._last_ns = None, entered

    def _is_for_script(self, error: BaseException) -> bool:
        """End the tracing after an error in a trace function; return whether it is the script's.

        The time after it belongs to no line.
        """
        scripts = is_scripts(error)
        self._end("a signal's handler raised" if scripts else f"{type(error).__name__}: {error}")
        # The error may have come between the writes to two columns.
        columns = (self.places, self.runs, self.in_window, self.passed, self.entered, self.times)
        whole = min(len(column) for column in columns)
        for column in columns:
            del column[whole:]
        self._add(NO_LINE, _now())
        return scripts

    def _end(self, why: str) -> None:
        """End tracing; frames are let go at their next event."""
        self.ended = why
        self._running = False
        if getattr(sys.gettrace(), "__self__", None) is self:
            sys.settrace(None)

    def place_of(self, code: CodeType, line: int) -> int:
        """Return the number of a line, a new one where it has none yet."""
        places = self._info(code).places
        place = places.get(line)
        if place is None:
            place = places[line] = len(self.lines)
            self.lines.append((code, line))
        return place

    def _add(self, place: int, entered: int, runs: bool = False, window: bool = False) -> None:
        if self._hidden:
            if self._last is not None and entered - self._last_ns >= LONG_LINE_NS:
                self._add_long_line(*self._last)
            self._hidden = False
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

    def _add_long_line(self, info: _CodeInfo, line: int) -> None:
        """Stamp the begin of a line that was only counted."""
        info.counted[line] -= 1
        self.places.append(self.place_of(info.code, line))
        self.runs.append(True)
        self.in_window.append(False)
        self.passed.append(0)
        # Where the tracer was still at work when it had begun, from its end on.
        began = max(self._last_ns, self.times[-1])
        self.entered.append(began)
        self.times.append(began)

    def _look_at_waits(self) -> int:
        """Return how long the thread has waited for a processor since the last time."""
        seconds = run_delay_s(self._native) if self._native is not None else None
        if seconds is None:
            return 0
        before, self._waited_ns = self._waited_ns, round(seconds * 1e9)
        return max(0, self._waited_ns - before)

    def counted(self) -> Iterator[tuple[int, int]]:
        """Iterate over lines of which runs were only counted: their place, and how many."""
        for info in self._codes.values():
            for line, count in info.counted.items():
                if count > 0:
                    yield self.place_of(info.code, line), count

    def _info(self, code: CodeType) -> _CodeInfo:
        info = self._codes.get(id(code))
        if info is None:
            info = self._codes[id(code)] = _CodeInfo(code, is_users(code.co_filename, self._root))
        return info


class TracingCosts(NamedTuple):
    """Nanoseconds that tracing takes of a line, outside the tracer's own functions.

    `stamp_ns` is the way into the tracer and out of it, once for each stretch of a line,
    `instruction_ns` the look of the interpreter whether an instruction begins a line, `call_ns`
    the look at a function that is called, and `return_ns` what its frame takes when it has ended.
    """

    stamp_ns: int = 0
    instruction_ns: float = 0.0
    call_ns: int = 0
    return_ns: int = 0

    def mean_with(self, other: TracingCosts) -> TracingCosts:
        """Return the mean of two measurements."""
        stamp, instruction, call, back = ((a + b) / 2 for a, b in zip(self, other, strict=True))
        return TracingCosts(round(stamp), instruction, round(call), round(back))

    def of_instructions(self, code: CodeType, line: int) -> float:
        """Return the cost of one run of a line's instructions."""
        return self.instruction_ns * _instructions(code).get(line, 0)


# What the tracing of an instruction takes as a multiple of others': the interpreter does not
# specialise those while it traces (measured on Python 3.11).
_WEIGHTS = {"LOAD_METHOD": 5.0, "LOAD_GLOBAL": 3.0, "UNPACK_SEQUENCE": 3.0, "LOAD_ATTR": 2.0}
_WEIGHTS |= {"BINARY_SUBSCR": 2.0, "STORE_SUBSCR": 2.0, "PRECALL": 1.8, "CALL": 1.8}


@functools.lru_cache(maxsize=64)
def _instructions(code: CodeType) -> Mapping[int, float]:
    instructions: list[tuple[int, int | None, float]] = []
    # By line: where its last loop begins, which most of its runs go through alone.
    loops: dict[int | None, int] = {}
    line: int | None = code.co_firstlineno
    for each in dis.get_instructions(code):
        positions = getattr(each, "positions", None)
        # Before Python 3.11 only the first instruction of a line has its number.
        line = positions.lineno if positions is not None else each.starts_line or line
        instructions.append((each.offset, line, _WEIGHTS.get(each.opname, 1.0)))
        if each.opcode in dis.hasjrel + dis.hasjabs and each.argval < each.offset:
            began = next(line for offset, line, _ in instructions if offset == each.argval)
            loops[began] = max(each.argval, loops.get(began, 0))
    counts = defaultdict[int, float](float)
    for offset, line, weight in instructions:
        if line is not None and offset >= loops.get(line, 0):
            counts[line] += weight
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
    codes = [names[name].__code__ for name in ("trial", "called")]
    tracer = LineTracer()
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
    before, after = taken[7][::2], taken[7][1::2]
    # The median: the processor is as busy as while lines were traced.
    if not all((taken[6], before, after, taken[8])):
        return TracingCosts()
    one, call, back, six = (median(each) for each in (taken[6], before, after, taken[8]))
    # Five assignments more, of two instructions each.
    instruction = max(0.0, (six - one) / 10 - _INSTRUCTION_NS)
    stamp = max(0.0, one - 2 * instruction)
    call_ns = max(0, round(call - one - _CALL_NS))
    return TracingCosts(round(stamp), instruction, call_ns, max(0, round(back - stamp)))


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
