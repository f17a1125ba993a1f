"""Steps that the program marks itself, as a session does: where one begins is known, too.

What lies between two loops over steps is no step. The slice in progress ends with a loop, what it
still lacks comes first in the next one, and only the layers in the background see what is between.
The script's own `profstack.step()` ends no step as long as a session is open that marks them.
"""

from __future__ import annotations

import time
import weakref
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from profstack.engine.core import Engine
from profstack.engine.keeper import StopRun
from profstack.hooks.state import DISCOVER, OFF
from profstack.interrupts import is_scripts
from profstack.passthrough import strip_frame
from profstack.slices import Planned, settle

# In shorter loops every step to settle would leave none to measure.
LONG_LOOP = 4
_NEVER = 1 << 60
# The workload of a script that says itself where its steps end, after a session has.
_OWN_WORD = object()
_IGNORED = (
    "profstack.step() was called while a session marks steps (Session.steps, Session.run or a "
    "decorated function): these calls end no step"
)

_MARKS: weakref.WeakKeyDictionary[Engine, Marks] = weakref.WeakKeyDictionary()


def marks_of(engine: Engine) -> Marks:
    """The marks of one engine, which all sessions inside its run share."""
    return _MARKS.setdefault(engine, Marks(engine))


class Marks:
    """Tells one engine where steps begin and end.

    A `workload` is anything that says by `==` whether the steps are the same work as before.
    """

    def __init__(self, engine: Engine) -> None:
        # The engine holds this alone by its methods, and the table above must not keep it alive.
        self._reference = weakref.ref(engine)
        self._workload: object = None
        self._inside = False
        # Steps end where a function returns, and what comes before the next call belongs to it.
        self._loose = False
        self._cut = False
        self._steps_before = 0
        self._last_loop = 0
        # Sessions that are open inside one another, and the outermost of those that mark steps.
        self._open = 0
        self._marking: int | None = None
        # In which of them the latest loop has begun.
        self._begun_in = 0
        self._noted = False

    @property
    def _engine(self) -> Engine:
        engine = self._reference()
        assert engine is not None, "a session holds its engine"
        return engine

    @property
    def over(self) -> bool:
        """Whether nothing is recorded any more."""
        engine = self._reference()
        return engine is None or engine.events.done

    @property
    def complete(self) -> bool:
        """Whether everything that was planned of this workload is measured."""
        planned = None if self.over else self._engine._slice
        return self.over or (planned is not None and planned.kind == "watch" and planned.round > 0)

    @property
    def all_seen(self) -> bool:
        """Whether every layer has had its first slice of this workload."""
        planned = None if self.over else self._engine._slice
        return planned is not None and planned.round > 1

    def entered(self) -> None:
        """A session is open that may mark steps."""
        self._open += 1

    def left(self) -> None:
        """It is over, while the engine goes on with what is around it."""
        if self._begun_in == self._open:
            self.end(cut=self._inside)
        self._open -= 1
        if self._marking is not None and self._open < self._marking:
            self._marking = None

    def begin(self, workload: object) -> bool:
        """A loop over steps begins, its first step now; false inside a step: it is part of that."""
        if self._inside or self.over or self._engine._step_by not in (None, "step"):
            return False
        self.end()
        self._inside = True
        self._begun_in = self._open
        self._marking = self._open if self._marking is None else min(self._marking, self._open)
        self._engine.events.on_word = self._is_own_word
        self._guarded(self._begin, workload)
        return True

    def ended(self) -> None:
        """A step has ended and the next one begins."""
        if not self.over:
            self._engine.events.marked()

    def end(self, *, cut: bool = False) -> None:
        """The loop has ended with its latest step, or in the middle of one (`cut`)."""
        if (self._inside or self._loose) and not self.over:
            self._guarded(self._end, cut)
        self._inside = self._loose = False

    def call(self, workload: object, function: Callable[[], Any]) -> Any:
        """Call a function, the end of which ends a step; what came before it belongs to it."""
        begun = self._loose and not self._inside and workload == self._workload
        if not begun and not self.begin(workload):
            return function()
        self._loose = self._inside = True
        try:
            result = function()
        except BaseException:
            self.end(cut=True)
            raise
        self.ended()
        self._inside = False
        return result

    def repeat(self, call: Callable[[], Any], max_seconds: float) -> tuple[Any, int, bool]:
        """After `begin`: call, each call a step, until all that was planned is over or the time is.

        Returns the last call's result, the number of calls, and whether they ended in time.
        """
        began, calls, in_time = time.perf_counter(), 0, True
        result = None
        try:
            while in_time and not (calls and self.complete):
                # What the last call gave must not be held while the next one needs the memory.
                result = None
                result = call()
                calls += 1
                self.ended()
                late = time.perf_counter() - began > max_seconds
                in_time = not (late and self.all_seen)
        except BaseException as error:
            self.end(cut=True)
            strip_frame(error)
            raise
        self.end()
        return result, calls, in_time

    def close(self, *, failed: bool) -> None:
        """No more steps come; a step that was left before its end counts unless it failed."""
        self.end(cut=self._inside)
        if not failed and not self.over:
            self._guarded(self._count_cut)

    def _is_own_word(self) -> bool:
        """Whether the call of `profstack.step()` that is just made ends a step."""
        if self._marking is not None:
            if not self._noted:
                self._noted = True
                self._guarded(self._engine.observers.note, "step-ignored", _IGNORED)
            return False
        if self._workload is not _OWN_WORD:
            # The step that ends here began while nobody looked: the next one is the first.
            self._guarded(self._begin, _OWN_WORD)
            return False
        return True

    # -- what becomes of it --------------------------------------------------------------------

    def _begin(self, workload: object) -> None:
        self._count_cut()
        engine = self._engine
        self._steps_before = engine.log.total
        if workload == self._workload and engine.rule == "step":
            if self._last_loop >= LONG_LOOP:
                engine._begin_slice(settle(engine.course.targets, engine.course.finished_round))
            else:
                engine._next_slice()
            return
        self._workload, self._last_loop = workload, 0
        engine._end_discovery(None)
        engine._end_slice(complete=False)
        engine.hooks.set_mode(DISCOVER)
        engine.observers.watch(on=True)
        engine._discovering = engine.observers.in_discovery()
        engine.begun()
        engine.events.start_over("step")

    def _end(self, cut: bool) -> None:
        engine, log = self._engine, self._engine.log
        if engine.rule is None:
            # Not one step was completed.
            engine._end_discovery(None)
            self._workload = None
            return
        planned, self._cut = engine._slice, cut
        self._last_loop = log.total - self._steps_before
        if planned is not None:
            missing, ended_before = self._missing(planned, cut), engine.course.ended
            is_empty = not log.count
            if is_empty:
                engine.observers.discard()
            engine._end_slice(complete=not cut)
            if is_empty:
                # Its tools saw nothing but the end of the loop: they may begin with the next one.
                engine.course.ended = ended_before
            if missing is not None:
                engine.course.put_first(missing)
        engine.hooks.set_mode(OFF)
        engine.arming.aim.steps = _NEVER
        engine.observers.watch(on=True)

    def _missing(self, planned: Planned, cut: bool) -> Planned | None:
        """What the slice in progress still lacks; all of it where its observers are discarded."""
        log = self._engine.log
        if planned.kind == "settle":
            return None
        if cut and planned.observers and log.count < planned.steps:
            return planned
        return replace(
            planned,
            steps=max(1, planned.steps - log.count),
            min_s=max(0.0, planned.min_s - (log.last - log.start)),
        )

    def _count_cut(self) -> None:
        if self._cut:
            self._cut = False
            self._engine.log.count_open_step()

    def _guarded(self, action: Callable[..., None], *arguments: Any) -> None:
        try:
            action(*arguments)
        except StopRun:
            raise
        except BaseException as error:
            scripts = is_scripts(error)
            self._engine.disarm(error)
            if scripts:
                raise
