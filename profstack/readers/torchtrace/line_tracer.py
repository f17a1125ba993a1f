"""Trace the source lines of the script's own files, with times, for one slice.

The profiler knows the line of a call but not of an operator written with a sign (`a @ b`), so
lines are traced: the interpreter reports every line that the script's own code runs, the time is
stamped, and operators join by time (in `lines`). A function that runs very many lines is no longer
traced after a budget; a note says so.
"""

from __future__ import annotations

import functools
import inspect
import sys
import time
from collections.abc import Iterator
from types import CodeType, FrameType
from typing import Any

from profstack.code_owner import Places, script_folder
from profstack.guard import foreign_tracer, is_scripts, unseen_by_dynamo

# Line events after which a code object is no longer traced line by line, and calls of it after
# which its time is left on the line that calls it.
BUDGET = 2000
# The place of times that belong to no line.
NO_LINE = -1
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


class LineTracer:
    """Stamps `(time, line)` whenever the thread that started it runs a line of the script."""

    def __init__(self) -> None:
        self.times: list[int] = []
        self.places: list[int] = []
        self.runs: list[bool] = []
        self.lines: list[tuple[CodeType, int]] = []
        self.truncated: list[CodeType] = []
        # By address: the hash of a code object is computed from all of it each time, and equal
        # ones may come from two files.
        self._codes: dict[int, _CodeInfo] = {}
        self._root = script_folder()
        self._running = False
        # Why tracing ended before it was stopped.
        self.ended: str | None = None

    def start(self) -> None:
        """Start tracing, also frames of the script that are running already."""
        if (other := foreign_tracer()) is not None:
            raise RuntimeError(other)
        self._running = True
        # A script may compile for the first time while traced: dynamo must not compile these too.
        own = type(self)
        for function in (own._global, own._local, own._line, own._stamp, own._stamp_no_line):
            unseen_by_dynamo(sys.modules["torch"], function, with_callees=True)
        innermost = None
        for frame in frames_outwards(sys._getframe(1)):
            if frame.f_trace is None and self._info(frame.f_code).own:
                frame.f_trace = self._local
                innermost = innermost or frame
        if innermost is not None:
            self._stamp(innermost)
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

    def _release(self, frame: FrameType) -> None:
        if getattr(frame.f_trace, "__self__", None) is self:
            frame.f_trace = None
            frame.f_trace_lines = True

    def _global(self, frame: FrameType, event: str, argument: Any) -> Any:
        try:
            info = self._codes.get(id(frame.f_code)) or self._info(frame.f_code)
            if not info.own or not self._running:
                return None
            if info.truncated:
                info.calls += 1
                if info.calls > BUDGET:
                    return None
                frame.f_trace_lines = False
                self._stamp(frame)
            elif info.suspends and frame.f_lineno != frame.f_code.co_firstlineno:
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
                self._release(frame)
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
                    self._stamp_no_line()
        except BaseException as error:
            if self._is_for_script(error):
                raise
            return None
        return self._local

    def _line(self, frame: FrameType) -> None:
        info = self._info(frame.f_code)
        info.spent += 1
        if info.spent > BUDGET:
            if not info.truncated:
                info.truncated = True
                self.truncated.append(frame.f_code)
            # Returning None from a trace function would not end it: this does, for this call.
            frame.f_trace_lines = False
        self._stamp(frame, runs=True)

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
        whole = min(len(self.places), len(self.runs), len(self.times))
        for column in (self.places, self.runs, self.times):
            del column[whole:]
        self._stamp_no_line()
        return scripts

    def _stamp_no_line(self) -> None:
        self.places.append(NO_LINE)
        self.runs.append(False)
        self.times.append(time.time_ns())

    def _stamp(self, frame: FrameType, *, runs: bool = False) -> None:
        """Stamp that the frame's line runs; of a truncated function, its first line."""
        code = frame.f_code
        info = self._info(code)
        line = code.co_firstlineno if info.truncated else frame.f_lineno
        place = info.places.get(line)
        if place is None:
            place = info.places[line] = len(self.lines)
            self.lines.append((code, line))
        self.places.append(place)
        self.runs.append(runs and not info.truncated)
        self.times.append(time.time_ns())

    def _info(self, code: CodeType) -> _CodeInfo:
        info = self._codes.get(id(code))
        if info is None:
            info = self._codes[id(code)] = _CodeInfo(code, is_users(code.co_filename, self._root))
        return info


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
