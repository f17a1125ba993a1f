"""Time per source line of the script's own files, for one slice.

The profiler knows the line of a call but not of an operator written with a sign (`a @ b`), so
lines are traced: the interpreter tells of every line the script's own code runs, the time is
stamped, and operators join by time. A function that runs lines without end is let go after a
budget, and says so.
"""

from __future__ import annotations

import functools
import inspect
import linecache
import os
import sys
import sysconfig
import time
from collections.abc import Collection, Iterator, Sequence
from types import CodeType, FrameType
from typing import Any

import numpy as np

from profstack.interrupts import is_scripts
from profstack.passthrough import unseen_by_dynamo
from profstack.regions import RANGE_PREFIX
from profstack.torchtrace.attribution import in_steps
from profstack.torchtrace.events import Bools, HostEvents, Ints, sums

# Line events after which a code object is no longer traced line by line, and calls of it after
# which its time is left on the line that calls it.
BUDGET = 2000
_NOBODY = -1
_SUSPENDS = inspect.CO_GENERATOR | inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR


class _Traced:
    """One code object: whether it is the script's own, its lines' places, and what it has cost."""

    def __init__(self, code: CodeType, own: bool) -> None:
        # Held so that its address, by which it is found, is not used again.
        self.code = code
        self.own = own
        self.suspends = bool(code.co_flags & _SUSPENDS)
        self.places: dict[int, int] = {}
        self.spent = 0
        self.truncated = False
        self.calls = 0


class LineTracer:
    """Stamps `(time, line)` whenever the thread that started it runs a line of the script."""

    def __init__(self) -> None:
        self.times: list[int] = []
        self.places: list[int] = []
        self.runs: list[bool] = []
        self.lines: list[tuple[CodeType, int]] = []
        self.truncated: list[CodeType] = []
        # By address: the hash of a code object is worked out anew from all of it each time, and
        # equal ones may come from two files.
        self._codes: dict[int, _Traced] = {}
        self._root = script_folder()
        self._running = False
        # Why it ended before it was stopped.
        self.ended: str | None = None

    def start(self) -> None:
        """Trace from here on; frames of the script that are running already as well."""
        if sys.gettrace() is not None:
            raise RuntimeError("a debugger or a coverage tool uses sys.settrace")
        self._running = True
        # A script may compile for the first time in here: dynamo would take in these as well.
        own = type(self)
        for function in (own._global, own._local, own._line, own._stamp, own._stamp_nobody):
            unseen_by_dynamo(sys.modules["torch"], function, with_callees=True)
        innermost = None
        for frame in _stack(sys._getframe(1)):
            if frame.f_trace is None and self._known(frame.f_code).own:
                frame.f_trace = self._local
                innermost = innermost or frame
        if innermost is not None:
            self._stamp(innermost)
        sys.settrace(self._global)

    def stop(self) -> None:
        """Trace no more; safe to call twice."""
        if not self._running:
            return
        self._running = False
        # A tracer that the script has put in our place stays.
        if getattr(sys.gettrace(), "__self__", None) is self:
            sys.settrace(None)
        for frame in _stack(sys._getframe(1)):
            self._let_go(frame)

    def _let_go(self, frame: FrameType) -> None:
        if getattr(frame.f_trace, "__self__", None) is self:
            frame.f_trace = None
            frame.f_trace_lines = True

    def _global(self, frame: FrameType, event: str, argument: Any) -> Any:
        try:
            traced = self._codes.get(id(frame.f_code)) or self._known(frame.f_code)
            if not traced.own or not self._running:
                return None
            if traced.truncated:
                traced.calls += 1
                if traced.calls > BUDGET:
                    return None
                frame.f_trace_lines = False
                self._stamp(frame)
            elif traced.suspends and frame.f_lineno != frame.f_code.co_firstlineno:
                # A generator goes on in the middle of a line, which is no new line to run.
                self._stamp(frame)
        except BaseException as error:
            if self._is_for_script(error):
                raise
            return None
        return self._local

    def _local(self, frame: FrameType, event: str, argument: Any) -> Any:
        try:
            if not self._running:
                self._let_go(frame)
                return None
            if event == "line":
                self._line(frame)
            elif event == "return":
                caller = frame.f_back
                while caller is not None and caller.f_trace is None:
                    caller = caller.f_back
                if caller is not None:
                    self._stamp(caller)
                else:
                    self._stamp_nobody()
        except BaseException as error:
            if self._is_for_script(error):
                raise
            return None
        return self._local

    def _line(self, frame: FrameType) -> None:
        traced = self._known(frame.f_code)
        traced.spent += 1
        if traced.spent > BUDGET:
            if not traced.truncated:
                traced.truncated = True
                self.truncated.append(frame.f_code)
            # Returning None from a trace function would not end it: this does, for this call.
            frame.f_trace_lines = False
        self._stamp(frame, runs=True)

    def _is_for_script(self, error: BaseException) -> bool:
        """An error in here ends the tracing: it is the script's, or a defect that it never sees.

        The time from here on is no line's.
        """
        scripts = is_scripts(error)
        self.ended = "a signal's handler raised" if scripts else f"{type(error).__name__}: {error}"
        self._running = False
        if getattr(sys.gettrace(), "__self__", None) is self:
            sys.settrace(None)
        # It may have come between two columns.
        whole = min(len(self.places), len(self.runs), len(self.times))
        for column in (self.places, self.runs, self.times):
            del column[whole:]
        self._stamp_nobody()
        return scripts

    def _stamp_nobody(self) -> None:
        self.places.append(_NOBODY)
        self.runs.append(False)
        self.times.append(time.time_ns())

    def _stamp(self, frame: FrameType, *, runs: bool = False) -> None:
        """From now on time is spent on the frame's line; of a truncated one, on the first."""
        code = frame.f_code
        traced = self._known(code)
        line = code.co_firstlineno if traced.truncated else frame.f_lineno
        place = traced.places.get(line)
        if place is None:
            place = traced.places[line] = len(self.lines)
            self.lines.append((code, line))
        self.places.append(place)
        self.runs.append(runs and not traced.truncated)
        self.times.append(time.time_ns())

    def _known(self, code: CodeType) -> _Traced:
        traced = self._codes.get(id(code))
        if traced is None:
            traced = self._codes[id(code)] = _Traced(code, is_users(code.co_filename, self._root))
        return traced


def _stack(frame: FrameType | None) -> Iterator[FrameType]:
    while frame is not None:
        yield frame
        frame = frame.f_back


def script_folder() -> str:
    """The folder of the running script; the working folder for code and standard input."""
    main = getattr(sys.modules.get("__main__"), "__file__", None)
    return os.path.dirname(os.path.abspath(main)) if main else os.getcwd()


@functools.cache
def _libraries() -> tuple[str, ...]:
    """Folders of installed code, each with its separator at the end."""
    paths = sysconfig.get_paths()
    return tuple(os.path.join(paths[name], "") for name in ("stdlib", "purelib", "platlib"))


def _is_cell(file: str) -> bool:
    """Whether a code object comes from a cell of a notebook, or from IPython's prompt."""
    folder = os.path.basename(os.path.dirname(file))
    return folder.startswith("ipykernel_") or file.startswith("<ipython-input-")


def is_users(file: str, root: str) -> bool:
    """Whether a code object's file is the user's own and not a library's."""
    if file in ("<string>", "<stdin>") or _is_cell(file):
        return True
    if file.startswith("<"):
        return False
    path = os.path.abspath(file)
    if path.startswith(_libraries()):
        return False
    own = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    if path.startswith((os.path.join(own, ""), os.path.join(os.path.dirname(own), "wrappers", ""))):
        return False
    return path.startswith(os.path.join(root, ""))


def line_records(
    tracer: LineTracer,
    events: HostEvents,
    boundaries_ns: Sequence[int],
    index: int,
    left_out: Collection[int] = (),
) -> tuple[list[dict[str, Any]], list[tuple[str, str]]]:
    """Rows of `lines`: time on each line inside operators, and the rest of the time on it.

    `boundaries_ns` are the start of the slice and the end of each step; the steps numbered in
    `left_out` are not counted.
    """
    if not tracer.times:
        return [], [("no-lines", "no line of the script's own files ran in the slice")]
    edges = np.array(boundaries_ns, np.int64)
    times, places, runs = _stamps(tracer, edges)
    counted = np.ones(len(edges) + 1, np.bool_)
    counted[[-1, len(edges) - 1, *left_out]] = False
    stamped = counted[np.searchsorted(edges, times, side="right") - 1] & (places >= 0)
    count = len(tracer.lines)
    until = np.minimum(np.append(times[1:], edges[-1]), edges[-1])
    wall = sums(places[stamped], np.maximum(until - times, 0)[stamped], count)
    calls = np.bincount(places[stamped & runs], minlength=count)
    inside = in_steps(events, boundaries_ns, left_out)
    stretch, time_in = _operator_times(events, inside, times, until)
    known = stamped[stretch]
    operators = sums(places[stretch][known], time_in[known], count)
    cut = {id(code) for code in tracer.truncated}
    by_line: dict[tuple[str, int], list[Any]] = {}
    for number, (code, line) in enumerate(tracer.lines):
        row = by_line.setdefault((code.co_filename, line), [0, 0.0, 0.0])
        # Of a function that was let go no line's count is whole.
        row[0] = None if row[0] is None or id(code) in cut else row[0] + int(calls[number])
        row[1] += wall[number] - operators[number]
        row[2] += operators[number]
    records = [
        {
            "slice": index,
            "file": file,
            "line": line,
            "source": linecache.getline(file, line).rstrip("\n") or None,
            "calls": calls_,
            "python_s": python * 1e-9,
            "operator_s": operator * 1e-9,
        }
        for (file, line), (calls_, python, operator) in by_line.items()
    ]
    notes = [("lines-truncated", _truncation(code)) for code in tracer.truncated]
    if tracer.ended is not None:
        notes.append(("lines-truncated", f"lines were traced until {tracer.ended}"))
    return records, notes


def _truncation(code: CodeType) -> str:
    return (
        f"{os.path.basename(code.co_filename)}:{code.co_firstlineno} ({code.co_name}) ran more "
        f"than {BUDGET} lines in the slice: the rest of its time stands on its first line, and "
        f"after {BUDGET} more calls on the line that calls it"
    )


def _operator_times(
    events: HostEvents, inside: Bools, times: Ints, until: Ints
) -> tuple[Ints, Ints]:
    """The stretch between two stamps that an operator began in, and its time within.

    A line that runs inside an operator (a Python function of autograd's) has the operators begun
    there; the operator around it has its time up to there. Ranges span lines: they are looked
    through.
    """
    operators = _operators(events) & inside
    if not operators.any():
        return np.zeros(0, np.int64), np.zeros(0, np.int64)
    threads, counts = np.unique(events.thread[operators], return_counts=True)
    operators &= events.thread == threads[counts.argmax()]
    stretch = np.searchsorted(times, events.start, side="right") - 1
    nearest = events.inherit(np.where(operators, np.arange(1, len(events) + 1), 0))
    around = np.where(events.parent >= 0, nearest[np.maximum(events.parent, 0)], 0)
    within = (around > 0) & (stretch[np.maximum(around - 1, 0)] == stretch)
    top = np.flatnonzero(operators & ~within & (stretch >= 0))
    end = np.minimum(events.end[top], until[stretch[top]])
    return stretch[top], end - events.start[top]


def _operators(events: HostEvents) -> Bools:
    """Events that are no ranges, ours or the script's, and no allocations."""
    _, first = np.unique(events.names.ids, return_index=True)
    # All events of one name are ranges or none is: one of each is asked.
    noted = {
        str(event.name())
        for event in events.raw(first.astype(np.int64))
        if event.is_user_annotation() or event.name().startswith(RANGE_PREFIX)
    }
    return ~events.names.where(noted.__contains__) & ~events.memory


def _stamps(tracer: LineTracer, edges: Ints) -> tuple[Ints, Ints, Bools]:
    """Times, places and whether the line began to run, with a stamp at every boundary.

    A line that is running when a step ends goes on in the next step.
    """
    times = np.array(tracer.times, np.int64)
    places = np.array(tracer.places, np.int64)
    before = np.searchsorted(times, edges[:-1], side="right") - 1
    going_on = np.where(before >= 0, places[np.maximum(before, 0)], _NOBODY)
    all_times = np.concatenate([times, edges[:-1]])
    order = np.argsort(all_times, kind="stable")
    runs = np.concatenate([np.array(tracer.runs, np.bool_), np.zeros(len(edges) - 1, np.bool_)])
    return all_times[order], np.concatenate([places, going_on])[order], runs[order]
