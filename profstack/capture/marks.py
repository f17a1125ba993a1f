"""Steps that the program marks itself, as a session does: their beginnings are known too.

What lies between two loops over steps is no step. The slice in progress ends with a loop, what it
still lacks comes first in the next one, and only the layers in the background see what is between.
The script's own `profstack.step()` ends no step while a session is open that marks steps.
"""

from __future__ import annotations

import time
import weakref
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from profstack.capture.engine import Engine
from profstack.capture.slices import SlicePlan, settle
from profstack.guard import strip_frame

# In shorter loops every step to settle would leave none to measure.
LONG_LOOP = 4
# The workload of a script that marks its steps itself, after a session has.
_BY_SCRIPT = object()
_IGNORED = (
    "profstack.step() was called while a session marks steps (Session.steps, Session.run or a "
    "decorated function): these calls end no step"
)

_MARKS: weakref.WeakKeyDictionary[Engine, Marks] = weakref.WeakKeyDictionary()


def marks_of(engine: Engine) -> Marks:
    """Return the marks of one engine, which all sessions inside its run share."""
    return _MARKS.setdefault(engine, Marks(engine))


class Marks:
    """Marks where steps begin and end, for one engine.

    A `workload` is anything that says by `==` whether the steps are the same work as before.
    """

    def __init__(self, engine: Engine) -> None:
        # Held weakly: the table above must not keep the engine alive.
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
        """Whether the recording has ended."""
        engine = self._reference()
        return engine is None or engine.events.done

    @property
    def complete(self) -> bool:
        """Whether everything that was planned of this workload is measured."""
        planned = None if self.over else self._engine.planned
        return self.over or (planned is not None and planned.kind == "watch" and planned.round > 0)

    @property
    def all_seen(self) -> bool:
        """Whether every layer has had its first slice of this workload."""
        planned = None if self.over else self._engine.planned
        return planned is not None and planned.round > 1

    def entered(self) -> None:
        """Count a session that opens and may mark steps."""
        self._open += 1

    def left(self) -> None:
        """Close a nested session; the outer one continues."""
        if self._begun_in == self._open:
            self.end(cut=self._inside)
        self._open -= 1
        if self._marking is not None and self._open < self._marking:
            self._marking = None

    def begin(self, workload: object) -> bool:
        """Begin a loop over steps and its first step.

        Returns false inside a step, of which the loop is then a part.
        """
        if self._inside or self.over or self._engine.step_by not in (None, "step"):
            return False
        self.end()
        self._inside = True
        self._begun_in = self._open
        self._marking = self._open if self._marking is None else min(self._marking, self._open)
        self._engine.events.accepts_step = self._accepts_step
        self._engine.events.guarded(self._begin, workload)
        return True

    def ended(self) -> None:
        """End a step and begin the next one."""
        if not self.over:
            self._engine.events.marked()

    def end(self, *, cut: bool = False) -> None:
        """End the loop with its latest step, or in the middle of one (`cut`)."""
        if (self._inside or self._loose) and not self.over:
            self._engine.events.guarded(self._end, cut)
        self._inside = self._loose = False

    def call(self, workload: object, function: Callable[[], Any]) -> Any:
        """Call a function whose return ends a step; what came before it belongs to that step."""
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
        """Call until all that was planned is measured or the time is over; each call is a step.

        For use after `begin`. Returns the last call's result, the number of calls, and whether
        they ended in time.
        """
        began, calls, in_time, result = time.perf_counter(), 0, True, None
        try:
            while in_time and not (calls and self.complete):
                # The last result must not be held while the next call needs the memory.
                result = None
                result = call()
                calls += 1
                self.ended()
                in_time = time.perf_counter() - began <= max_seconds or not self.all_seen
        except BaseException as error:
            self.end(cut=True)
            strip_frame(error)
            raise
        self.end()
        return result, calls, in_time

    def close(self, *, failed: bool) -> None:
        """End the last loop; a step that was left before its end counts unless it failed."""
        self.end(cut=self._inside)
        if not failed and not self.over:
            self._engine.events.guarded(self._count_cut)

    def _accepts_step(self) -> bool:
        """Return whether the call of `profstack.step()` in progress ends a step."""
        if self._marking is not None:
            if not self._noted:
                self._noted, note = True, self._engine.observers.log.note
                self._engine.events.guarded(note, "step-ignored", _IGNORED)
            return False
        if self._workload is not _BY_SCRIPT:
            # The step that ends here began unseen: the next one is the first.
            self._engine.events.guarded(self._begin, _BY_SCRIPT)
            return False
        return True

    # -- on the engine -------------------------------------------------------------------------

    def _begin(self, workload: object) -> None:
        self._count_cut()
        engine = self._engine
        self._steps_before = engine.log.total
        if workload == self._workload and engine.events.rule == "step":
            if self._last_loop >= LONG_LOOP:
                engine.begin_slice(settle(engine.queue.targets, engine.queue.finished_round))
            else:
                engine.next_slice()
            return
        self._workload, self._last_loop = workload, 0
        engine.start_over()

    def _end(self, cut: bool) -> None:
        engine, log = self._engine, self._engine.log
        if engine.events.rule is None:
            # Not one step was completed.
            engine.end_discovery(None)
            self._workload = None
            return
        planned, self._cut = engine.planned, cut
        self._last_loop = log.total - self._steps_before
        if planned is not None:
            missing, ended_before = self._missing(planned, cut), engine.queue.ended
            is_empty = not log.count
            if is_empty:
                engine.observers.discard()
            engine.end_slice(complete=not cut)
            if is_empty:
                # Its tools saw nothing but the end of the loop: they may begin with the next one.
                engine.queue.ended = ended_before
            if missing is not None:
                engine.queue.put_first(missing)
        engine.pause()

    def _missing(self, planned: SlicePlan, cut: bool) -> SlicePlan | None:
        """Return what the slice in progress lacks; all of it where its observers are discarded."""
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
