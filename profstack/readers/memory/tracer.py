"""Memory at every source line of the script's own files that runs in a slice.

The interpreter calls the tracer for every line; memory is read before it runs, so that the growth
since the reading before belongs to the line that ran until then. Growth in a function of the user's
belongs to its own lines and not to the line that calls it. A function that runs many lines in a row
is not traced again until a module is called or a step begins, after a budget not at all; a warning
names it.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable
from types import CodeType, FrameType
from typing import Any

from profstack.code_owner import script_folder
from profstack.guard import foreign_tracer, is_scripts, unseen_by_dynamo
from profstack.readers.memory.readings import NO_LINE, HeapCounter, Readings
from profstack.readers.torchtrace import line_tracer

# Events (calls, lines, returns) of one code object after which its tracing ends, and events in a
# row after which it rests: a long loop leaves some events for the lines behind it.
BUDGET = 2000
_BURST = 100
# Calls of all functions, each of which calls the tracer, after which tracing ends.
MOST_CALLS = 2_000_000
# The file where dynamo begins to compile a frame: it would compile the tracer too.
_DYNAMO = ("torch/_dynamo/convert_frame.py", "torch\\_dynamo\\convert_frame.py")
_SUSPENDS = inspect.CO_GENERATOR | inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR

# Gets a frame, an event of it, the line that it is in, and whether it suspends as generators do.
Follower = Callable[[FrameType, str, list[int], bool], None]

COMPILES = "dynamo compiles: it would try to compile the tracer too"
OTHER_TRACER = "the script has set a trace function of its own"


class _TracedCode:
    """One code object of the script's own: its lines' places, and its events."""

    def __init__(self, code: CodeType) -> None:
        # Held so that its address, by which it is found, is not reused.
        self.code = code
        self.suspends = bool(code.co_flags & _SUSPENDS)
        self.places: dict[int, int] = {}
        self.spent = 0
        self.in_a_row = 0
        self.stretch = 0
        self.rests = False


class _Frame:
    """One call that is traced, or the same generator from one call to the next.

    `run` is the run of its current line: the number of the event it began with, or `~` that where
    the begin was not seen. The frame itself is not held, so that its objects can be freed.
    """

    __slots__ = ("run", "running", "traced", "tracer")

    def __init__(self, tracer: MemoryTracer, traced: _TracedCode) -> None:
        self.tracer = tracer
        self.traced = traced
        self.run: int | None = None
        # The line that a follower knows it to be in.
        self.running: list[int] = []

    def event(self, frame: FrameType, event: str, argument: Any) -> Any:
        """Handle an event of the frame: the interpreter's local trace function."""
        tracer = self.tracer
        try:
            if not tracer.running:
                let_go(frame)
                return None
            if event == "line" and not tracer.line(frame, self):
                # Returning None alone would not end it.
                frame.f_trace = None
                return None
            if event == "return":
                self.traced.spent += 1
                tracer.back_to(frame.f_back)
            if event in ("line", "return"):
                tracer.follow(frame, event, self.running, self.traced.suspends)
        except BaseException as error:
            if not tracer.caught(error):
                raise
        return self.event


class MemoryTracer:
    """Reads memory whenever the thread that started it runs a line of the script.

    The places of `readings` are indexes of `lines`; `on_end` is called when it ends by itself.
    `follow` gets the calls, lines and returns that are traced, each after its reading.
    """

    def __init__(
        self, on_end: Callable[[], None] = lambda: None, follow: Follower = lambda *_: None
    ) -> None:
        self.readings = Readings()
        self.follow = follow
        self._on_end = on_end
        self.lines: list[tuple[CodeType, int]] = []
        # Code that has rested at some time.
        self.let_go: dict[int, _TracedCode] = {}
        # Why it ended before it was stopped, and the error if there was one.
        self.ended: str | None = None
        self.error: BaseException | None = None
        self.running = False
        self._paused: tuple[int, int] | None = None
        self._files: dict[str, bool] = {}
        # By address: hashing a code object is slow, and equal ones may come from two files.
        self._codes: dict[int, _TracedCode] = {}
        self._resting: list[_TracedCode] = []
        self._burst = _BURST
        # Changes with every module call and step.
        self._stretch = 0
        self._root = script_folder()
        self._calls = 0
        self._hook: Any = self._called
        # Hidden from dynamo: they may run before a compilation is noticed.
        for kind in (MemoryTracer, _Frame, Readings, HeapCounter):
            for function in filter(inspect.isfunction, vars(kind).values()):
                unseen_by_dynamo(sys.modules["torch"], function, with_callees=True)

    def start(self, *, wakes: bool = True) -> None:
        """Trace from here on; frames of the script that are running already as well.

        `wakes` means that `wake` will be called. It is not before the step rule is known; then the
        current line has only just begun: it calls the first module.
        """
        if (other := foreign_tracer()) is not None:
            raise RuntimeError(other)
        self.readings.sampler.start()
        self.running = True
        self._burst = _BURST if wakes else BUDGET
        self._arm(sys._getframe(1), begins=not wakes)
        sys.settrace(self._hook)

    def wake(self) -> None:
        """Trace resting code again: a module is called or a step begins."""
        self._stretch += 1
        if not (self._resting and self.running):
            return
        for traced in self._resting:
            traced.rests = traced.spent > BUDGET
        self._resting.clear()
        self._arm(sys._getframe(1), begins=True)

    def _arm(self, frame: FrameType, *, begins: bool) -> None:
        """Trace all frames of the script's from this one outwards.

        `begins` means that the current line of the innermost frame has only just begun.
        """
        innermost = None
        for outer in line_tracer.frames_outwards(frame):
            # No other tool traces the frame; an older tracer of ours may be left.
            free = outer.f_trace is None or isinstance(_tracer_of(outer), _Frame)
            if not (self._is_own(outer) and free):
                continue
            traced = self._known(outer.f_code)
            state = self._state(outer)
            if state is None and not traced.rests:
                state = _Frame(self, traced)
                state.running.append(outer.f_lineno)
                outer.f_trace = state.event
                if innermost is None:
                    state.run = self.readings.count if begins else ~self.readings.count
            innermost = innermost or outer
        self.back_to(innermost)

    def stop(self) -> None:
        """End tracing; safe to call twice."""
        if self.running and sys.gettrace() is not self._hook:
            self.ended = OTHER_TRACER
        self._end()
        # The hook holds the tracer: drop the cycle.
        self._hook = None
        self.readings.sampler.stop()
        for frame in line_tracer.frames_outwards(sys._getframe(1)):
            state = self._state(frame)
            if state is not None and self.ended is None:
                self._follow_last(frame, state)
            let_go(frame)

    def _follow_last(self, frame: FrameType, state: _Frame) -> None:
        """Tell the follower of the line in progress, which ends with the slice."""
        try:
            self.follow(frame, "line", state.running, state.traced.suspends)
        except BaseException as error:
            if not self.caught(error):
                raise

    def pause(self) -> None:
        """Pause at the end of a step: growth until the next one belongs to no line."""
        if self.running:
            self._paused = (self.readings.place, self.readings.run)
            self.readings.add(NO_LINE, NO_LINE)

    def go_on(self) -> None:
        """Continue with the next step, within the line that was being run."""
        if self.running:
            readings = self.readings
            if self._paused is None and readings.count == 1:
                # The slice has just begun: nothing has run in it.
                readings.count = 0
            place, run = self._paused or (readings.place, readings.run)
            self._paused = None
            self.readings.add(place, run)
            self.wake()

    def caught(self, error: BaseException) -> bool:
        """Return whether an error in here is our own, which ends the tracing and is kept.

        Else a signal's handler raised in here: the error goes to the script.
        """
        if is_scripts(error):
            self._end("after a signal handler had raised")
            return False
        self.error = self.error or error
        self._end(str(error))
        return True

    def _end(self, reason: str | None = None) -> None:
        if not self.running:
            return
        self.running = False
        self.ended = self.ended or reason
        # A tracer that the script has set instead stays.
        if sys.gettrace() is self._hook:
            sys.settrace(None)
        if self.error is None:
            self.readings.add(NO_LINE, NO_LINE)
        if reason is not None:
            self.readings.sampler.stop()
            self._on_end()

    def release(self) -> None:
        """Free everything; it has been stopped, and its readings were taken.

        A suspended generator holds the tracer itself, until it continues or ends.
        """
        self.readings.release()
        self._on_end, self.follow = lambda: None, lambda *_: None
        for held in (self.lines, self.let_go, self._codes, self._resting, self._files):
            held.clear()

    def _called(self, frame: FrameType, event: str, argument: Any) -> Any:
        try:
            if not self.running:
                # It was stopped in another thread, where no one could end it for this one.
                if getattr(sys.gettrace(), "__self__", None) is self:
                    sys.settrace(None)
                return None
            code = frame.f_code
            own = self._files.get(code.co_filename)
            if own is None:
                own = self._is_own(frame)
            self._calls += 1
            if self._calls > MOST_CALLS:
                self._end(f"after {MOST_CALLS} calls of functions")
            if not (own and self.running):
                return None
            traced = self._codes.get(id(code)) or self._known(code)
            if traced.rests:
                return None
            traced.spent += 1
            state = self._state(frame) or _Frame(self, traced)
            if traced.suspends and frame.f_lineno != code.co_firstlineno:
                # A generator goes on in the middle of a line, which is no new run of it.
                self._go_on(frame, state)
            self.follow(frame, event, state.running, traced.suspends)
            return state.event
        except BaseException as error:
            if not self.caught(error):
                raise
        return None

    def line(self, frame: FrameType, state: _Frame) -> bool:
        """Read memory at the begin of a line; return False when the frame is traced no further."""
        traced = state.traced
        if sys.gettrace() is not self._hook:
            self._end(OTHER_TRACER)
            return False
        traced.spent += 1
        if traced.stretch != self._stretch:
            traced.stretch, traced.in_a_row = self._stretch, 0
        traced.in_a_row += 1
        if traced.in_a_row > self._burst or traced.spent > BUDGET:
            if not traced.rests:
                traced.rests = True
                self._resting.append(traced)
                self.let_go[id(traced)] = traced
            self.back_to(frame.f_back)
            return False
        state.run = self.readings.count
        self.readings.add(self._place_of(traced, frame), state.run)
        return True

    def back_to(self, frame: FrameType | None) -> None:
        """Give further growth to the line of the nearest traced frame."""
        while frame is not None:
            state = self._state(frame)
            if state is not None and not state.traced.rests:
                self._go_on(frame, state)
                return
            frame = frame.f_back
        self.readings.add(NO_LINE, NO_LINE)

    def _go_on(self, frame: FrameType, state: _Frame) -> None:
        """Give further growth to the frame's current line."""
        if state.run is None:
            state.run = ~self.readings.count
        self.readings.add(self._place_of(state.traced, frame), state.run)

    def _place_of(self, traced: _TracedCode, frame: FrameType) -> int:
        # Code inserted by the compiler has no line.
        line = frame.f_lineno or traced.code.co_firstlineno
        if line not in traced.places:
            traced.places[line] = len(self.lines)
            self.lines.append((traced.code, line))
        return traced.places[line]

    def _is_own(self, frame: FrameType) -> bool:
        file = frame.f_code.co_filename
        if file.startswith("<"):
            # A script without a file shares its file name with generated code of libraries.
            is_main = frame.f_globals.get("__name__") == "__main__"
            return is_main and line_tracer.is_users(file, self._root)
        own = self._files.get(file)
        if own is None:
            own = self._files[file] = line_tracer.is_users(file, self._root)
            if file.endswith(_DYNAMO):
                self._end(COMPILES)
        return own

    def _known(self, code: CodeType) -> _TracedCode:
        return self._codes.setdefault(id(code), _TracedCode(code))

    def _state(self, frame: FrameType) -> _Frame | None:
        state = _tracer_of(frame)
        return state if isinstance(state, _Frame) and state.tracer is self else None


def let_go(frame: FrameType) -> None:
    """Remove a tracer of ours from the frame."""
    if isinstance(_tracer_of(frame), _Frame):
        frame.f_trace = None


def _tracer_of(frame: FrameType) -> Any:
    return getattr(frame.f_trace, "__self__", None)
