"""The engine of a run: keeps time at step boundaries and moves from slice to slice.

It runs in the measured process, on the thread that trains. Between slice edges it only stamps
times; at an edge it switches observers, with the garbage collector off. An error in here
disarms profstack with a note and never reaches the script.
"""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from types import FrameType
from typing import Any

from profstack.capture.arming import CHECKED, Arming
from profstack.capture.hooks import DISCOVER, OFF, TorchHooks
from profstack.capture.loops import LONG_ENOUGH, BeginAt, Loop, Loops
from profstack.capture.module_names import ModuleNames
from profstack.capture.observers import Observers
from profstack.capture.run_limits import Budget, EarlyPage, Limits
from profstack.capture.slices import Event, Observing, SlicePlan, SliceQueue, Targets, settle, watch
from profstack.capture.step_events import StepEvents
from profstack.capture.step_log import LOOP, StepLog, StopRun
from profstack.capture.step_rules import StepRule
from profstack.guard import CollectorOff, Guard
from profstack.layer import SliceData
from profstack.stats.clock import Clock
from profstack.storage.folder import append_event

_perf_counter, _process_time, _getframe = time.perf_counter, time.process_time, sys._getframe

# Where each call of a model is a step, one slice of the first round has so many: calls in a row
# tell whether the model is called again on its input.
CALLS_IN_A_ROW = 6
# Of longer calls a script may not make many.
SHORT_CALL_S = 0.1
# In slices of others the watch samples a step that takes longer than so many usual ones, than a few
# samples, or than a second where the usual time is not known yet.
OVERDUE = 5.0
SHORTEST_OVERDUE_S = 0.1
UNKNOWN_OVERDUE_S = 1.0


class Engine:
    """Times the steps that `StepEvents` finds, and switches the layers from slice to slice.

    `planned` is the slice in progress. `tools` are those that run since the script's first line,
    by layer.
    """

    def __init__(
        self,
        torch: Any,
        observers: Observers,
        make_plan: Callable[[], Iterator[SlicePlan]],
        targets: Targets,
        *,
        live_optimizers: Callable[[], frozenset[int]],
        step_by: str | None = None,
        limits: Limits | None = None,
        wait_for_page: bool = True,
        origin: float | None = None,
        budget: float | None = None,
        begin_at: BeginAt | None = None,
    ) -> None:
        self.folder = observers.writer.folder
        self.stopped_by: str | None = None
        self.step_by = step_by
        self.tools: dict[str, object] = {}
        self.planned: SlicePlan | None = None
        self.observers = observers
        self.names = ModuleNames()
        self.events = StepEvents(self, live_optimizers, step_by)
        self.hooks = TorchHooks(torch, self.events, self.names)
        self.log = StepLog(observers.writer, Clock(), origin)
        observers.on_give_way = self.hooks.stop_ranges
        self.loops = Loops(torch, begin_at)
        if self.loops.begin_at.text:
            observers.writer.facts({"begin_at": self.loops.begin_at.text})
        # The loop of the plan in progress.
        self._loop = self.loops.current
        self.arming = Arming(self.hooks, self.events, self.log, observers, self.loops)
        self.queue = SliceQueue(make_plan, targets)
        self._limits = limits if limits is not None else Limits()
        self._page = EarlyPage(self.folder, wait=wait_for_page)
        self._budget = Budget(budget, self.log.origin)
        # Since when the script stands still for a switch; None while it goes on.
        self._stopped: float | None = None
        self._discovering: Observing = ()
        self._most: int | None = None
        self._slice_start = 0.0
        # The mode of the hooks when they were detached.
        self._mode_before = OFF

    def generation_arrived(self, module: Any) -> None:
        """Hook the generation code that `transformers` has loaded."""
        if not self.events.done:
            self.hooks.install_generate(module)

    # -- keeping steps -----------------------------------------------------------------------

    def begin(self, whole: Observing = ()) -> None:
        """Put the hooks on and wait for steps.

        `whole` are layers that observe a script that seems to have no steps; should one come all
        the same, what they saw is dropped and the plan begins.
        """
        self.hooks.install()
        self.hooks.set_mode(DISCOVER)
        self.observers.hand_over_background(self.tools)
        if whole and self.step_by in (None, "none"):
            since_origin = bool(self.tools)
            self.observers.hand_over(self.tools)
            self.tools.clear()
            self.log.begin_plan("whole", "other")
            self.begin_slice(SlicePlan("whole", whole, 0, 1), since_origin=since_origin)
        else:
            self._discovering = self.observers.in_discovery()
        self.observers.watch(on=True)

    def start_over(self) -> None:
        """Look for the steps of other work: it begins now, and only `step` ends its steps."""
        self.end_discovery(None)
        self.end_slice(complete=False)
        self.hooks.set_mode(DISCOVER)
        self.observers.watch(on=True)
        self._discovering = self.observers.in_discovery()
        self.begin_discovery()
        self.events.start_over("step")

    def begin_discovery(self) -> None:
        """Begin the layers that observe before the step rule is known: the first work begins."""
        if self._discovering and self.planned is None:
            self.planned = SlicePlan("discovery", self._discovering, 0, 1)
            if self.observers.start(self.planned, self.log.next_slice, None):
                self.observers.watch(on=False)

    def end_discovery(self, rule: StepRule | None) -> dict[str, SliceData]:
        """Return what the layers saw that began before the rule was known; none without a rule."""
        if self.planned is None or self.planned.kind != "discovery":
            return {}
        self.planned, self._discovering = None, ()
        with CollectorOff():
            self.observers.stop()
            if rule is None or not rule.past_ends:
                self.observers.discard()
                return {}
            return self.observers.take([rule.first_start, *rule.past_ends], self.names.by_number())

    def adopt(self, rule: StepRule, now: float) -> None:
        """Begin a new plan with the rule that was found; `now` is the time of the event.

        Another optimizer whose steps are made where the one before made its own goes on with the
        plan of that.
        """
        discovered = self.end_discovery(rule)
        planned, queue = self.planned, self.queue
        goes_on = self.events.rule == rule.name == "optimizer"
        self.end_slice(complete=False)
        if goes_on and planned is not None:
            queue.interrupted(planned)
        self._budget.waiting = None
        stopped_here = queue.ended[1] == self.log.total
        self.observers.take_startup(self.tools)
        self.tools.clear()
        resumed = self._follow(rule, discovered, sys._getframe(1), goes_on=goes_on)
        if stopped_here:
            # The past steps were counted after the stop: the boundary is the same all the same.
            queue.ended = (queue.ended[0], self.log.total)
        if self._is_held():
            self.begin_slice(watch(0))
        elif resumed:
            self.begin_slice(settle(queue.targets, queue.finished_round))
        elif rule.past_ends and rule.past_ends[-1] == now:
            self.next_slice()
        else:
            self.begin_slice(settle(queue.targets, 0))
        self._check_limits()

    def _follow(
        self,
        rule: StepRule,
        discovered: Mapping[str, SliceData],
        frame: FrameType | None = None,
        *,
        goes_on: bool = False,
    ) -> bool:
        """Write the steps that are over, and let the rule end the next ones, made at `frame`.

        Returns whether they are of a loop that has a plan already.
        """
        trains = self.events.backward_seen or rule.name == "optimizer"
        phase = "train" if trains else "eval" if self.events.evaluating else "other"
        self.events.follow(rule)
        total = self.log.total + len(rule.past_ends)
        loop = self._loop = self.loops.begin(frame, self._state(), total, goes_on=goes_on)
        resumed = bool(loop.plan)
        if resumed:
            self.log.resume_plan(loop.plan)
        else:
            self.log.begin_plan(rule.name, phase, loop.facts() if frame is not None else None)
            loop.plan = self.log.plan
            append_event(self.folder, {"event": "rule", "rule": rule.name, "phase": phase})
        self.log.startup(rule, discovered)
        return resumed

    def boundary(self) -> None:
        """End a step; the hot path of a clean slice."""
        events, log, hooked = self.events, self.log, self.hooks.state
        if log.timed:
            log.record_event()
        rows, now, loops = log.rows, _perf_counter(), self.loops
        first, asked, loader_s = events.activity, events.asked, events.loader_s
        rows.append((now, _process_time(), first, events.flags, events.shape, asked, loader_s))
        if hooked.listener is not None:
            hooked.listener.step_ended(log.total)
        frame, state = _getframe(1), self._state() if loops.has_states else 0
        if not loops.same(frame, state):
            self.elsewhere(frame, state)
        if len(rows) >= self.arming.aim.steps:
            self.look()
        if hooked.listener is not None:
            hooked.listener.step_begun(log.total)
        # As `events.begin_step`, in place, since a call would cost as much again.
        events.activity = events.shape = events.asked = None
        events.loader_s = 0.0
        events.flags = 0
        events.waiting = events.waits

    def attention(self) -> None:
        """Look at the step in progress when it ends: it holds a flag."""
        self.arming.aim.steps = 0

    def quick_ended(self, flags: int) -> None:
        """Look at a step of which only the end was stamped; it held `flags`."""
        if flags:
            self.log.flag(flags)
        self.look()

    def _has_enough(self, planned: SlicePlan) -> bool:
        """Return whether the slice has its steps.

        Others come in the place of those with evaluation, where its tools can leave these out; at
        most as many again.
        """
        count = self.log.count
        if not planned.steps <= count < 2 * planned.steps or not self.observers.all_cut():
            return count >= planned.steps
        return count - len(self.log.left_out()) >= planned.steps

    def look(self) -> None:
        """End the slice in progress if it has what it needs."""
        planned = self.planned
        assert planned is not None
        elapsed = self.log.last - self._slice_start
        count = self.log.count
        if planned.kind == "watch":
            self._look_in_watch(planned)
        elif self.loops.pending and not self._limits.reached(self.log.total):
            # No layer observes what may be another loop.
            self._aim(count + 1)
        elif (
            (self._has_enough(planned) and elapsed >= planned.min_s)
            or (self._most is not None and count >= self._most)
            or self._limits.reached(self.log.total)
        ):
            if self.log.left_out() and not self.observers.all_cut():
                # Evaluation fell into it, and its tool cannot leave that out.
                self.queue.repeat(planned)
            self.end_slice(complete=True)
            self.next_slice()
        else:
            missing = max(planned.min_s - elapsed, 0.0) / max(elapsed / count, 1e-9)
            # At most twice as far: steps may become slower, and a slice may be endless.
            self._aim(max(planned.steps, count + int(min(missing, count)) + 1))
        self._check_limits()

    def _aim(self, steps: int) -> None:
        """Look again when the slice has `steps` steps, or earlier where a limit says so."""
        limits = [steps] if self._most is None else [steps, self._most]
        limits += [self.log.count + ahead for ahead in self._limits.next_look(self.log.total)]
        self.arming.aim.steps = min(limits)

    def _look_in_watch(self, planned: SlicePlan) -> None:
        """Look for the page now and then, and keep the log short: no layer observes."""
        if planned.round == 0 and not self._loop.planned and self._look_while_held(planned):
            return
        waits = self._budget.waiting
        if waits is not None and self._page.is_due(self.queue.finished_round):
            self._page.ask()
        for_page = planned.round == 0 and waits is None
        left_s = self._budget.wait_s(waits, self.log.last) if waits is not None else 0.0
        if (waits is not None and not left_s) or (for_page and self._page.is_over(self.log.last)):
            self._budget.waiting = None
            self.end_slice(complete=True)
            self.next_slice()
        elif self.log.count >= StepLog.FLUSH:
            self.end_slice(complete=True)
            self.observers.flush()
            self.begin_slice(planned)
        elif waits is not None:
            # At most twice as far, as in `look`.
            step_s = max((self.log.last - self._slice_start) / self.log.count, 1e-9)
            ahead = min(left_s / step_s, self.log.count)
            self._aim(min(self.log.count + int(ahead) + 1, StepLog.FLUSH))
        else:
            self._aim(self.log.count + 1 if for_page else StepLog.FLUSH)

    # -- loops ---------------------------------------------------------------------------------

    def _state(self) -> int:
        """Return the state of the step that ends, as far as it tells loops apart."""
        events = self.events
        self.loops.has_states = events.counts_calls or self.loops.begin_at.region is not None
        rows = self.log.rows
        since = rows[-2][0] if len(rows) > 1 else self.log.start
        calls, training = events.counts_calls, not events.evaluating
        return self.loops.state_now(calls=calls, training=training, since=since)

    def is_in_loop(self) -> bool:
        """Return whether the step that ends is made where the last one was, and seen one by one."""
        state = self.loops.state_now(calls=False, training=False, since=self.log.last)
        return not self.arming.is_quick and self.loops.is_there_again(sys._getframe(1), state)

    def elsewhere(self, frame: FrameType, state: int) -> None:
        """Take a step that was made elsewhere than the one before."""
        loops, was_pending = self.loops, self.loops.pending
        begun = loops.take(frame, state, self.log.total, delayed=self.events.open_ended)
        if begun is None and not loops.pending:
            return
        is_quick, planned = bool(self.log.quick_ends), self.planned
        # Only every eighth short step is looked at; while it is not known, every step is.
        for back in range(min(CHECKED, self.log.count) if is_quick else 1):
            self.log.flag(LOOP, back)
        goes_on = was_pending or (planned is not None and planned.kind == "watch")
        if planned is None or (begun is None and goes_on and not is_quick):
            return
        self.end_slice(complete=True)
        self.queue.interrupted(planned)
        if begun is not None:
            self._enter(begun)
        else:
            self.begin_slice(settle(self.queue.targets, self.queue.finished_round))
        self._check_limits()

    def _enter(self, loop: Loop) -> None:
        """Begin the plan of another loop, or go on with it."""
        # Slices of the loop before are priced without a clean step of it.
        self._budget.learn(float("inf"))
        self._budget.waiting = None
        phase = self.events.begin_loop()
        self._loop = loop
        if loop.plan:
            self.log.resume_plan(loop.plan)
        else:
            self.log.begin_plan(self.events.rule or "", phase, loop.facts())
            loop.plan = self.log.plan
        self.begin_slice(watch(0) if self._is_held() else settle(self.queue.targets, 0))

    def _is_held(self) -> bool:
        """Return whether the loop in progress is watched alone for now; else its plan begins.

        It may wait for `--begin-at`, or be short beside another.
        """
        loop = self._loop
        if not loop.planned:
            if loop.waits or self._missing_length() > 0:
                return True
            loop.planned = True
        self.queue.begin(loop.plan)
        return False

    def _missing_length(self) -> float:
        """Return how much longer the loop in progress has to be for a plan of its own."""
        # Ranks keep in step by counts of steps, and not by time.
        by_time = self.queue.targets.settle_s > 0
        others = (loop.length(by_time=by_time) for loop in self.loops.others() if not loop.waits)
        so_far = self._loop.length(by_time=by_time)
        if self.planned is not None:
            so_far += (self.log.last - self._slice_start) if by_time else self.log.count
        return LONG_ENOUGH * max(others, default=0.0) - so_far

    def _look_while_held(self, planned: SlicePlan) -> bool:
        """Look whether the plan of the loop may begin; return false where the watch goes on."""
        released = self.loops.released(self.log.total)
        if released is None and self._is_held():
            if self.log.count >= StepLog.FLUSH:
                return False
            first = self.loops.begin_at.step
            ahead = max(self.log.count, 1)
            if self._loop.waits:
                ahead = StepLog.FLUSH if first is None else first - self.log.total
            self._aim(min(self.log.count + ahead, StepLog.FLUSH))
            return True
        self.end_slice(complete=True)
        if released is not None:
            self._enter(released)
        else:
            self.next_slice()
        return True

    # -- slices --------------------------------------------------------------------------------

    def next_slice(self) -> None:
        """Begin the next slice of the plan whose observers can be switched on."""
        if self._is_held():
            self.begin_slice(watch(0))
            return
        if self._page.is_due(self.queue.finished_round):
            self._page.ask()
            self.begin_slice(watch(0))
            return
        begun = False
        while not begun:
            planned = self.queue.next(self.log.total)
            now = _perf_counter()
            standing_s = 0.0 if self._stopped is None else now - self._stopped
            if planned.prepares and self._budget.wait_s(planned.prepares, now, standing_s):
                self.queue.put_first(planned)
                self._budget.waiting = planned.prepares
                planned = watch(0)
            elif planned.kind == "watch":
                self._page.ask()
                self._limits.plan_is_over = True
            begun = self.begin_slice(planned)

    def begin_slice(self, planned: SlicePlan, *, since_origin: bool = False) -> bool:
        """Begin a slice, now or at the script's first line.

        Returns false when none of its observers could be switched on.
        """
        is_watched = not planned.observers and planned.kind != "clean"
        with CollectorOff():
            if not is_watched:
                # Before the tools start: its handshake would be in their rows.
                self.observers.watch(on=False)
                self.observers.look_out(self._step_began, self._overdue_s())
            self.arming.arm(planned)
            if planned.observers or planned.kind == "clean":
                # What was launched before would end, and be seen, in the slice.
                self.log.clock.synchronize()
            index, total = self.log.next_slice, self.log.total
            if planned.observers and not self.observers.start(planned, index, planned.steps, total):
                return False
        self.planned = planned
        self._page.measuring()
        self._most = planned.longest(self.observers.step_limits(), total)
        self.arming.begin(planned)
        if is_watched:
            self.observers.watch(on=True)
        stopped, self._stopped = self._stopped, None
        self._slice_start = self.log.begin_slice(
            planned, since_origin=since_origin, stopped=stopped
        )
        if stopped is not None:
            self._budget.spent_s += self._slice_start - stopped
        self._aim(
            max(planned.steps, CALLS_IN_A_ROW) if self._notes_calls(planned) else planned.steps
        )
        return True

    def _notes_calls(self, planned: SlicePlan) -> bool:
        """Return whether the slice is the one in which calls in a row are looked at."""
        if not self.events.counts_calls or planned.kind != "nvtx" or planned.round != 1:
            return False
        clean_s = self.arming.clean_mean_s()
        return clean_s is not None and clean_s < SHORT_CALL_S

    def _step_began(self) -> float:
        """Return when the step in progress began; no sooner than the slice."""
        return math.inf if self._stopped is not None else self.log.last

    def _overdue_s(self) -> float:
        """Return after how long a step is watched in a slice that the watch has not."""
        clean_s = self.arming.clean_mean_s()
        return UNKNOWN_OVERDUE_S if clean_s is None else max(OVERDUE * clean_s, SHORTEST_OVERDUE_S)

    def end_slice(self, *, complete: bool) -> None:
        """End the slice in progress, if there is one, and write what was seen of it."""
        planned, self.planned = self.planned, None
        if planned is None:
            return
        # The watch before its turn is of no round.
        self.queue.finished_round = planned.round or self.queue.finished_round
        self._stopped = _perf_counter()
        self.log.stop(at_boundary=complete)
        with CollectorOff():
            event = self._write_slice(planned, complete=complete)
        append_event(self.folder, event)

    def _write_slice(self, planned: SlicePlan, *, complete: bool) -> Event:
        log, observers = self.log, self.observers
        begun = _perf_counter()
        self.arming.end()
        observers.stop()
        if planned.observers or planned.kind == "clean":
            observers.watch(on=False)
        log.wait_for_device(planned, complete=complete)
        stuck = frozenset(name for name, _ in planned.observers if not observers.restarts(name))
        if stuck:
            self.queue.ended = (stuck, log.total)
        captured: dict[str, SliceData] = {}
        if log.is_foreign() or (not complete and planned.observers and log.count < planned.steps):
            observers.discard()
        else:
            stamps, modules = log.stamps(), self.names.by_number()
            captured = observers.take(stamps, modules, log.left_out(), complete=complete)
        event = log.end_slice(planned, captured, _perf_counter() - begun)
        log.write_modules(self.names)
        self.arming.learn(event)
        self._loop.learn(event["steps"], None if planned.observers else event.get("mean_s"))
        if planned.observers and event.get("mean_s") is not None:
            self._budget.unpriced.append((planned.observers, _perf_counter() - begun, event))
        if (clean_s := self.arming.clean_mean_s()) is not None:
            self._budget.learn(clean_s)
        return event

    def pause(self) -> None:
        """Let only the layers in the background observe: what comes now is no step."""
        self.hooks.set_mode(OFF)
        if self._stopped is not None:
            self._budget.spent_s += _perf_counter() - self._stopped
            self._stopped = None
        # No slice has so many steps.
        self.arming.aim.steps = 1 << 60
        self.observers.watch(on=True)

    # -- ending --------------------------------------------------------------------------------

    def _check_limits(self) -> None:
        reached = self._limits.reached(self.log.total)
        if reached is None or self._limits.asked >= 2:
            return
        self._limits.asked += 1
        self.stopped_by = reached
        if self._limits.asked == 2:
            # The script caught the first one: it is asked once more, and then left alone.
            self.finish()
        raise StopRun(0)

    def disarm(self, error: BaseException) -> None:
        """Take everything off and note why: an error in profstack's own work."""
        self.events.done = True
        # Nothing may reach the script but its own errors, also not from a broken disk.
        with Guard():
            self.hooks.remove()
            self.observers.disarm(error)

    def detach(self) -> None:
        """Take every hook off without ending the slice: steps go by unseen until `rearm`."""
        self.events.done = True
        self._mode_before = self.hooks.state.mode
        self.hooks.remove()

    def rearm(self) -> None:
        """Put the hooks back on after `detach`; while they are on it does nothing."""
        if self.events.done:
            self.events.done = False
            self.hooks.install()
            self.hooks.set_mode(self._mode_before, self.events.first_module())
            if self.planned is not None:
                self.hooks.exchange_step_hook(self.arming.quick_hook(self.planned))

    def abandon(self) -> None:
        """Take everything off in a forked child, of which nothing is recorded or written."""
        self.events.done = True
        self.hooks.remove()
        self.observers.abandon()

    def finish(self) -> None:
        """End the slice in progress and take everything off; what was recorded is complete."""
        if self.events.done:
            return
        self.events.done = True
        try:
            if self._budget.waiting is not None:
                percent = self._budget.percent or 0.0
                text = (
                    f"not all slices fitted into {percent:g} % of the run: "
                    f"profstack run --budget {3 * percent:g} takes more of them"
                )
                self.observers.log.note("budget", text)
            kind = self.planned.kind if self.planned is not None else "discovery"
            rule = self.events.conclude() if kind == "discovery" else None
            discovered = self.end_discovery(rule)
            if rule is not None:
                self._follow(rule, discovered)
            if kind == "whole":
                self.log.stamp()
            self.observers.take_startup(self.tools)
            self.end_slice(complete=kind == "whole")
            if self.events.open_ended:
                self.log.count_open_step()
        finally:
            self.hooks.remove()
            self.observers.discard()
        self.observers.finish()
        self.log.finish(self.names)
