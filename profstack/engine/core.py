"""The engine of a run: keeps time at step boundaries and moves from slice to slice.

It runs in the measured process, on the thread that trains. Between slice edges it only stamps
times; at an edge it switches observers, with the garbage collector off. Whatever goes wrong in
here disarms profstack with a note and never reaches the script.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from profstack.benchmark.clock import Clock
from profstack.engine.arming import Arming
from profstack.engine.course import Course
from profstack.engine.edges import Edges
from profstack.engine.keeper import StopRun
from profstack.engine.limits import Bounds, Limits
from profstack.engine.observers import Observers
from profstack.engine.pageturn import PageTurn
from profstack.engine.stepevents import StepEvents
from profstack.engine.steplog import StepLog
from profstack.hooks.state import DISCOVER
from profstack.hooks.torch_hooks import TorchHooks
from profstack.interrupts import is_scripts
from profstack.recording import Writer, tell
from profstack.regions import ModuleNames
from profstack.slices import Planned, Targets, settle, watch
from profstack.steps import Found
from profstack.wrapper import Captured

_perf_counter, _process_time = time.perf_counter, time.process_time


class Engine:
    """Keeps the steps that `StepEvents` finds; `limits` are those of `Limits`."""

    def __init__(
        self,
        folder: Path,
        torch: Any,
        writer: Writer,
        observers: Observers,
        make_plan: Callable[[], Iterator[Planned]],
        targets: Targets,
        *,
        live_optimizers: Callable[[], frozenset[int]],
        step_by: str | None = None,
        limits: Bounds = (None, None),
        wait_for_page: bool = True,
        origin: float | None = None,
    ) -> None:
        self.folder = folder
        self.stopped_by: str | None = None
        # What runs since the script's first line, by layer.
        self.tools: dict[str, Any] = {}
        self.observers = observers
        self.names = ModuleNames()
        self.events = StepEvents(self, live_optimizers, step_by)
        self.hooks = TorchHooks(torch, self.events, self.names)
        self.log = StepLog(writer, Clock(), origin)
        observers.on_give_way = self.hooks.stop_ranges
        self.arming = Arming(self.hooks, self.events, self.log, observers)
        self.course = Course(make_plan, targets)
        self._edges = Edges(self.arming, self.course)
        self._step_by = step_by
        self._limits = Limits(*limits)
        self._page = PageTurn(folder, wait=wait_for_page)
        self._discovering: tuple[tuple[str, str], ...] = ()
        self._slice: Planned | None = None
        self._most: int | None = None
        self._slice_start = 0.0

    @property
    def rule(self) -> str | None:
        """The step rule that stands, if one is found."""
        return self.events.rule

    def user_step(self) -> None:
        """`profstack.step()` was called."""
        self.events.user_step()

    def generation_arrived(self, module: Any) -> None:
        """`transformers` has loaded its generation code."""
        if not self.events.done:
            self.hooks.install_generate(module)

    # -- keeping steps -----------------------------------------------------------------------

    def begin(self, whole: tuple[tuple[str, str], ...] = ()) -> None:
        """Put the hooks on and wait for steps.

        `whole` are layers that observe a script that seems to have no steps; should one come all
        the same, what they saw is dropped and the plan begins.
        """
        self.hooks.install()
        self.hooks.set_mode(DISCOVER)
        self.observers.hand_over_background(self.tools)
        if whole and self._step_by in (None, "none"):
            since_origin = bool(self.tools)
            self.observers.hand_over(self.tools)
            self.tools.clear()
            self.log.begin_plan("whole", "other")
            self._begin_slice(Planned("whole", whole, 0, 1), since_origin=since_origin)
        else:
            self._discovering = self.observers.in_discovery()
        self.observers.watch(on=True)

    def begun(self) -> None:
        """The script does its first work, and how its steps end is not known yet."""
        if self._discovering and self._slice is None:
            self._slice = Planned("discovery", self._discovering, 0, 1)
            if self.observers.start(self._slice, self.log.next_slice, None):
                self.observers.watch(on=False)

    def adopt(self, found: Found, now: float) -> None:
        """Begin a new plan with the rule that was found; `now` is the time of the event."""
        discovered = self._end_discovery(found)
        self._end_slice(complete=False)
        course = self.course
        stopped_here = course.ended[1] == self.log.total
        self.observers.take_startup(self.tools)
        self.tools.clear()
        self.arming.forget()
        self._follow(found, discovered)
        if stopped_here:
            # The past steps were counted after the stop: the boundary is the same all the same.
            course.ended = (course.ended[0], self.log.total)
        course.begin()
        if found.past_ends and found.past_ends[-1] == now:
            self._next_slice()
        else:
            self._begin_slice(settle(course.targets, 0))
        self._check_limits()

    def _end_discovery(self, found: Found | None) -> dict[str, Captured]:
        """What the layers saw that began before the rule was known; nothing without a rule."""
        if self._slice is None or self._slice.kind != "discovery":
            return {}
        self._slice, self._discovering = None, ()
        return self._edges.end_discovery(found)

    def _follow(self, found: Found, discovered: Mapping[str, Captured]) -> None:
        """The steps that are over are written, and the rule that was found ends the next ones."""
        evaluating = self.events.evaluating
        trains = self.events.backward_seen or found.rule == "optimizer"
        phase = "train" if trains else "eval" if evaluating else "other"
        self.events.follow(found)
        self.log.begin_plan(found.rule, phase)
        self.log.startup(found, discovered)
        tell(self.folder, {"event": "rule", "rule": found.rule, "phase": phase})

    def last_boundary(self) -> float | None:
        """End of the latest step, if there is one."""
        return self.log.last if self.rule is not None else None

    def total_steps(self) -> int:
        """Steps so far, under all rules."""
        return self.log.total

    def boundary(self) -> None:
        """A step has ended; the hot path of a clean slice."""
        events, log, hooked = self.events, self.log, self.hooks.state
        if log.timed:
            log.record_event()
        rows, now = log.rows, _perf_counter()
        rows.append((now, _process_time(), events.activity, events.flags, events.shape))
        if hooked.listener is not None:
            hooked.listener.step_ended(log.total)
        if len(rows) >= self.arming.aim.steps:
            self.look()
        if hooked.listener is not None:
            hooked.listener.step_begun(log.total)
        # What the next step begins with; in place, since a call would cost as much again.
        events.activity = events.shape = None
        events.flags = 0
        events.waiting = events.waits

    def attention(self) -> None:
        """The step in progress holds something: it is to be looked at when it ends."""
        self.arming.aim.steps = 0

    def quick_ended(self, flags: int) -> None:
        """A step whose end was stamped alone, and which is to be looked at; it held `flags`."""
        if flags:
            self.log.flag_quick(flags)
        self.look()

    def look(self) -> None:
        """End the slice in progress if it has what it needs."""
        planned = self._slice
        assert planned is not None
        elapsed = self.log.last - self._slice_start
        count = self.log.count
        if planned.kind == "watch":
            self._watch(planned)
        elif (
            (count >= planned.steps and elapsed >= planned.min_s)
            or (self._most is not None and count >= self._most)
            or self._limits.reached(self.log.total)
        ):
            if self._is_mixed(planned):
                self.course.repeat(planned)
            self._end_slice(complete=True)
            self._next_slice()
        else:
            missing = max(planned.min_s - elapsed, 0.0) / max(elapsed / count, 1e-9)
            # At most twice as far: steps may become slower, and a slice may be endless.
            self._aim(max(planned.steps, count + int(min(missing, count)) + 1))
        self._check_limits()

    def _is_mixed(self, planned: Planned) -> bool:
        """Whether evaluation fell into a slice whose tool can not leave it out: it is repeated."""
        may_repeat = self.course.may_repeat(planned)
        return may_repeat and bool(self.log.with_evaluation()) and not self.observers.all_cut()

    def _aim(self, steps: int) -> None:
        """Look again when the slice has `steps` steps, or earlier where a limit says so."""
        limits = [steps] if self._most is None else [steps, self._most]
        limits += [self.log.count + ahead for ahead in self._limits.next_look(self.log.total)]
        self.arming.aim.steps = min(limits)

    def _watch(self, planned: Planned) -> None:
        """Nothing observes: look for the page now and then, and keep the log short."""
        for_page = planned.round == 0
        if for_page and self._page.is_over(self.log.last):
            self._end_slice(complete=True)
            self._next_slice()
        elif self.log.count >= StepLog.FLUSH:
            self._end_slice(complete=True)
            self.observers.flush()
            self._begin_slice(planned)
        else:
            self._aim(self.log.count + 1 if for_page else StepLog.FLUSH)

    # -- slices --------------------------------------------------------------------------------

    def _next_slice(self) -> None:
        if self._page.is_due(self.course.finished_round):
            self._page.ask()
            self._begin_slice(watch(0))
            return
        begun = False
        while not begun:
            planned = self.course.next(self.log.total)
            if planned.kind == "watch":
                self._page.ask()
                self._limits.plan_is_over()
            begun = self._begin_slice(planned)

    def _begin_slice(self, planned: Planned, *, since_origin: bool = False) -> bool:
        """Switch to the next slice; false when none of its observers could be switched on."""
        if not self._edges.switch_on(planned):
            return False
        self._slice = planned
        self._page.measuring()
        self._most = planned.longest(self.observers.step_limits(), self.log.total)
        self._slice_start = self._edges.begin(planned, since_origin=since_origin)
        self._aim(planned.steps)
        return True

    def _end_slice(self, *, complete: bool) -> None:
        """The slice in progress is over, if there is one."""
        planned, self._slice = self._slice, None
        if planned is not None:
            self.course.finished_round = planned.round
            self.log.stop(at_boundary=complete)
            tell(self.folder, self._edges.end(planned, complete=complete))

    # -- ending --------------------------------------------------------------------------------

    def _check_limits(self) -> None:
        reached = self._limits.reached(self.log.total)
        if reached is None or self._limits.asked >= 2:
            return
        self._limits.asked += 1
        self.stopped_by = reached
        if self._limits.asked == 2:
            # The script caught the first one: it is asked once more, and then let go.
            self.finish()
        raise StopRun(0)

    def disarm(self, error: BaseException) -> None:
        """An error in our own work: take everything off, note it, and leave the script alone."""
        self.events.done = True
        try:
            self.hooks.remove()
            self.observers.disarm(error)
        except Exception as another:
            # Nothing may reach the script, also not from a broken disk, but what is its own.
            if is_scripts(another):
                raise

    def detach(self) -> None:
        """Take every hook off without ending the slice: steps go by unseen until `rearm`."""
        self.events.done = True
        self.arming.detach()

    def rearm(self) -> None:
        """Put the hooks back on after `detach`; while they are on it does nothing."""
        if self.events.done:
            self.events.done = False
            self.arming.rearm(self._slice)

    def abandon(self) -> None:
        """In a forked child: nothing of it is recorded, and nothing is written from it."""
        self.events.done = True
        self.hooks.remove()
        self.observers.abandon()

    def finish(self) -> None:
        """End the slice in progress and take everything off; what was recorded is complete."""
        if self.events.done:
            return
        self.events.done = True
        try:
            kind = self._slice.kind if self._slice is not None else "discovery"
            found = self.events.conclude() if kind == "discovery" else None
            discovered = self._end_discovery(found)
            if found is not None:
                self._follow(found, discovered)
            if kind == "whole":
                self.log.stamp()
            self.observers.take_startup(self.tools)
            self._end_slice(complete=kind == "whole")
            if self.events.open_ended:
                self.log.count_open_step()
        finally:
            self.hooks.remove()
            self.observers.discard()
        self.observers.finish()
        self.log.finish(self.names)
