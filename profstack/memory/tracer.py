"""Memory at every source line of the script's own files that runs in a slice.

The interpreter tells of every line; memory is read before it runs, so that what has grown since
the reading before belongs to the line that ran until then. What a function of the user's grows by
stands on its own lines and not on the line that calls it. A function that runs many lines in a
row is let go until a module is called or a step begins, after a budget for good, and says so.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable
from types import CodeType, FrameType
from typing import Any

from profstack.interrupts import is_scripts
from profstack.memory.heapcount import HeapCounter
from profstack.memory.readings import NOBODY, Readings
from profstack.passthrough import unseen_by_dynamo
from profstack.torchtrace import linetrace

# Events (calls, lines, returns) of one code object after which it is traced no more, and those in
# a row after which it rests: a loop of many rounds leaves some for the lines behind it.
BUDGET = 2000
_BURST = 100
# Calls of all functions there are, each of which the interpreter tells of, after which it ends.
MOST_CALLS = 2_000_000
# Where dynamo begins to compile a frame: it would go on to compile the tracer.
_DYNAMO = ("torch/_dynamo/convert_frame.py", "torch\\_dynamo\\convert_frame.py")
_SUSPENDS = inspect.CO_GENERATOR | inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR

COMPILES = "dynamo compiles: it would try to compile the tracer too"
OTHER_TRACER = "the script has set a trace function of its own"


class _Traced:
    """One code object of the script's own: its lines' places, and what it has cost."""

    def __init__(self, code: CodeType) -> None:
        # Held so that its address, by which it is found, is not used again.
        self.code = code
        self.suspends = bool(code.co_flags & _SUSPENDS)
        self.places: dict[int, int] = {}
        self.spent = 0
        self.in_a_row = 0
        self.stretch = 0
        self.rests = False


class _Frame:
    """One call that is traced, or the same generator from one call to the next.

    `run` is the run of the line that it is on: the number of the event it began with, or `~` that
    where it began unseen. The frame itself is not held, and what it holds can go.
    """

    __slots__ = ("run", "traced", "tracer")

    def __init__(self, tracer: MemoryTracer, traced: _Traced) -> None:
        self.tracer = tracer
        self.traced = traced
        self.run: int | None = None

    def event(self, frame: FrameType, event: str, argument: Any) -> Any:
        """What the interpreter calls for everything that happens in the frame."""
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
        except BaseException as error:
            if not tracer.caught(error):
                raise
        return self.event


class MemoryTracer:
    """Reads memory whenever the thread that started it runs a line of the script.

    The places of `readings` are numbers in `lines`; `on_end` is called when it has ended by itself.
    """

    def __init__(self, on_end: Callable[[], None] = lambda: None) -> None:
        self.readings = Readings()
        self._on_end = on_end
        self.lines: list[tuple[CodeType, int]] = []
        # What has rested at some time, and its events.
        self.let_go: dict[int, _Traced] = {}
        # Why it ended before it was stopped, and the error if there was one.
        self.ended: str | None = None
        self.error: BaseException | None = None
        self.running = False
        self._paused: tuple[int, int] | None = None
        self._files: dict[str, bool] = {}
        # By address: the hash of a code object is worked out anew from all of it each time, and
        # equal ones may come from two files.
        self._codes: dict[int, _Traced] = {}
        self._resting: list[_Traced] = []
        self._burst = _BURST
        # Changes whenever the script comes to something else.
        self._stretch = 0
        self._root = linetrace.script_folder()
        self._calls = 0
        self._hook: Any = self._called
        for kind in (MemoryTracer, _Frame, Readings, HeapCounter):
            _hide(kind)

    def start(self, *, wakes: bool = True) -> None:
        """Trace from here on; frames of the script that are running already as well.

        `wakes` says that `wake` will be called. Where it will not, before the step rule is known,
        the line that is being run has only just begun: it calls the first module.
        """
        if sys.gettrace() is not None:
            raise RuntimeError("a debugger or a coverage tool uses sys.settrace")
        self.readings.sampler.start()
        self.running = True
        self._burst = _BURST if wakes else BUDGET
        self._arm(sys._getframe(1), begins=not wakes)
        sys.settrace(self._hook)

    def wake(self) -> None:
        """The script has come to something else: what rests is traced again."""
        self._stretch += 1
        if not (self._resting and self.running):
            return
        for traced in self._resting:
            traced.rests = traced.spent > BUDGET
        self._resting.clear()
        self._arm(sys._getframe(1), begins=True)

    def _arm(self, frame: FrameType, *, begins: bool) -> None:
        """Trace all frames of the script's from this one outwards.

        `begins` says that the line which the innermost is on has only just begun.
        """
        innermost = None
        for outer in linetrace.frames_outwards(frame):
            if not (self._is_own(outer) and _is_free(outer)):
                continue
            traced = self._known(outer.f_code)
            state = self._state(outer)
            if state is None and not traced.rests:
                state = _Frame(self, traced)
                outer.f_trace = state.event
                if innermost is None:
                    state.run = self.readings.count if begins else ~self.readings.count
            innermost = innermost or outer
        self.back_to(innermost)

    def stop(self) -> None:
        """Trace no more; safe to call twice."""
        if self.running and sys.gettrace() is not self._hook:
            self.ended = OTHER_TRACER
        self._end()
        # It holds the tracer, which the tracer shall not do itself.
        self._hook = None
        self.readings.sampler.stop()
        for frame in linetrace.frames_outwards(sys._getframe(1)):
            let_go(frame)

    def pause(self) -> None:
        """A step has ended: what grows until the next one begins belongs to no line."""
        if self.running:
            self._paused = (self.readings.place, self.readings.run)
            self.readings.add(NOBODY, NOBODY)

    def go_on(self) -> None:
        """The next step begins, within the line that was being run."""
        if self.running:
            readings = self.readings
            if self._paused is None and readings.count == 1:
                # The slice has begun: so far nothing has run in it but its beginning.
                readings.count = 0
            place, run = self._paused or (readings.place, readings.run)
            self._paused = None
            self.readings.add(place, run)
            self.wake()

    def caught(self, error: BaseException) -> bool:
        """Whether an error in here is a defect of our own: it ends the tracing and is kept.

        Else a signal came in here, and its handler raised: the script gets that.
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
        # A tracer that the script has put in our place stays.
        if sys.gettrace() is self._hook:
            sys.settrace(None)
        if self.error is None:
            self.readings.add(NOBODY, NOBODY)
        if reason is not None:
            self.readings.sampler.stop()
            self._on_end()

    def release(self) -> None:
        """It has been stopped, and what it has seen is taken: nothing of it is held any more.

        A generator that is suspended holds the tracer itself, until it goes on or ends.
        """
        self.readings.release()
        self._on_end = lambda: None
        self.lines.clear()
        self.let_go.clear()
        self._codes.clear()
        self._resting.clear()
        self._files.clear()

    # -- what the interpreter tells --------------------------------------------------------------

    def _called(self, frame: FrameType, event: str, argument: Any) -> Any:
        try:
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
            state = self._state(frame)
            if state is None:
                state = _Frame(self, traced)
            if traced.suspends and frame.f_lineno != code.co_firstlineno:
                # A generator goes on in the middle of a line, which is no new run of it.
                self._go_on(frame, state)
            return state.event
        except BaseException as error:
            if not self.caught(error):
                raise
        return None

    def line(self, frame: FrameType, state: _Frame) -> bool:
        """A line of a traced frame begins; false when the frame is not to be traced on."""
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
        """From now on what grows belongs to the line of the nearest frame that is traced."""
        while frame is not None:
            state = self._state(frame)
            if state is not None and not state.traced.rests:
                self._go_on(frame, state)
                return
            frame = frame.f_back
        self.readings.add(NOBODY, NOBODY)

    def _go_on(self, frame: FrameType, state: _Frame) -> None:
        """The frame's line goes on to run."""
        if state.run is None:
            state.run = ~self.readings.count
        self.readings.add(self._place_of(state.traced, frame), state.run)

    def _place_of(self, traced: _Traced, frame: FrameType) -> int:
        # What the compiler has put in itself has no line.
        line = frame.f_lineno or traced.code.co_firstlineno
        place = traced.places.get(line)
        if place is None:
            place = traced.places[line] = len(self.lines)
            self.lines.append((traced.code, line))
        return place

    # -- whose code it is --------------------------------------------------------------------------

    def _is_own(self, frame: FrameType) -> bool:
        file = frame.f_code.co_filename
        if file.startswith("<"):
            # That of a script without a file is also the name of code which libraries make up.
            is_main = frame.f_globals.get("__name__") == "__main__"
            return is_main and linetrace.is_users(file, self._root)
        own = self._files.get(file)
        if own is None:
            own = self._files[file] = linetrace.is_users(file, self._root)
            if file.endswith(_DYNAMO):
                self._end(COMPILES)
        return own

    def _known(self, code: CodeType) -> _Traced:
        traced = self._codes.get(id(code))
        if traced is None:
            traced = self._codes[id(code)] = _Traced(code)
        return traced

    def _state(self, frame: FrameType) -> _Frame | None:
        state = getattr(frame.f_trace, "__self__", None)
        return state if isinstance(state, _Frame) and state.tracer is self else None


def _hide(kind: type) -> None:
    """Let dynamo look at none of its functions: they may run before it is known to compile."""
    for function in vars(kind).values():
        if inspect.isfunction(function):
            unseen_by_dynamo(sys.modules["torch"], function, with_callees=True)


def let_go(frame: FrameType) -> None:
    """Leave the frame as it was found, if a tracer of ours has it."""
    if isinstance(getattr(frame.f_trace, "__self__", None), _Frame):
        frame.f_trace = None


def _is_free(frame: FrameType) -> bool:
    """Whether nobody else traces the frame; a generator may still have an older tracer of ours."""
    return frame.f_trace is None or isinstance(getattr(frame.f_trace, "__self__", None), _Frame)
