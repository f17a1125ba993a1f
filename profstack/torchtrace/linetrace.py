"""Time per source line of the script's own files, for one slice.

The profiler knows the line of a call but not of an operator written with a sign (`a @ b`), so
lines are traced: the interpreter tells of every line the script's own code runs, the time is
stamped, and operators join by time (in `linerows`). A function that runs lines without end is let
go after a budget, and says so.
"""

from __future__ import annotations

import functools
import inspect
import sys
import time
from collections.abc import Iterator
from types import CodeType, FrameType
from typing import Any

from profstack.interrupts import is_scripts
from profstack.ownfiles import Places, script_folder
from profstack.passthrough import unseen_by_dynamo

__all__ = ["BUDGET", "NOBODY", "LineTracer", "is_users", "script_folder"]

# Line events after which a code object is no longer traced line by line, and calls of it after
# which its time is left on the line that calls it.
BUDGET = 2000
NOBODY = -1
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
        for frame in frames_outwards(sys._getframe(1)):
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
        for frame in frames_outwards(sys._getframe(1)):
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
        self.places.append(NOBODY)
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


def frames_outwards(frame: FrameType | None) -> Iterator[FrameType]:
    """The frame, the one that called it, and so on."""
    while frame is not None:
        yield frame
        frame = frame.f_back


@functools.cache
def _places(root: str) -> Places:
    return Places.of(root)


def is_users(file: str, root: str) -> bool:
    """Whether a code object's file is the user's own, for a script in the folder `root`."""
    return _places(root).is_own(file)
