"""Choose the hooks of each slice: the least that its observers and steps need."""

from __future__ import annotations

import statistics
import sys
import time
from _thread import get_ident
from collections.abc import Callable
from dataclasses import dataclass
from types import FrameType
from typing import Any

from profstack.capture import script_ranges, user_regions
from profstack.capture.hooks import DISCOVER, LIGHT, OFF, QUIET, RANGES, ROOT, TorchHooks
from profstack.capture.loops import Loops, Place
from profstack.capture.observers import Observers
from profstack.capture.setup_notes import SetupRecorder
from profstack.capture.slices import Event, SlicePlan
from profstack.capture.step_events import StepEvents
from profstack.capture.step_log import StepLog
from profstack.guard import compiling, has_compiled, unseen_by_dynamo
from profstack.layer import LISTENED, RANGED

# -- the end of a very short step, stamped at the price of one Python frame ----------------------
#
# A frame costs 2 to 3 us in a real step, whose caches are cold, and a 0.3 ms step under test may
# lose 1 % at most. So where steps are short, `Optimizer.step` ends the step, and the host alone
# keeps time, the hook itself writes the time down. What it leaves out (waiting time, batch size,
# the CPU time of every single step) is known from the steps of the other slices, or per slice.

# Steps up to here are short: the full boundary would take more than half a percent of them.
SHORT_S = 0.002


# The call site of one in so many is looked at: 2 us would be most of what a step may lose.
CHECKED = 8


@dataclass(slots=True)
class Aim:
    """The number of steps after which the slice in progress must be looked at."""

    steps: int = 0


def optimizer_hook(
    torch: Any,
    followed: Callable[[], Any],
    ends: list[float],
    aim: Aim,
    events: StepEvents,
    stack: list[Place],
) -> Callable[[Any, Any, Any], None]:
    """Return a hook after `Optimizer.step` that appends the time to `ends`.

    `events` get a look when `aim` is reached, a step from another place than `stack`, and the step
    of any other optimizer than the one followed or on any other thread. `ends` holds bare numbers,
    since a row for each step would take memory that the step's own caches lose.
    """
    under_dynamo, compiler = compiling(torch)
    look, other, elsewhere = events.look, events.optimizer_ended, events.elsewhere
    getframe, stepping, leave = sys._getframe, events.stepping, events.leave
    append, count, now, thread = ends.append, len, time.perf_counter, get_ident()

    def hook(optimizer: Any, args: Any, kwargs: Any) -> None:
        if under_dynamo() or compiler._is_compiling_flag:
            return
        if followed() is not optimizer or get_ident() != thread:
            other(optimizer)
            return
        append(now())
        if stepping:
            # Its start was reported: the hooks of the next slice are on.
            leave(optimizer)
        if not count(ends) % CHECKED:
            # As `Loops.same`, in place.
            frame: FrameType | None = getframe(1)
            for code, place in stack:
                if frame is None or frame.f_lasti != place or frame.f_code is not code:
                    elsewhere(getframe(1))
                    break
                frame = frame.f_back
            else:
                if frame is not None:
                    elsewhere(getframe(1))
        if count(ends) >= aim.steps:
            look()

    unseen_by_dynamo(torch, hook, with_callees=True)
    return hook


class Arming:
    """Chooses the hooks of each slice by its kind and the time of a clean step."""

    def __init__(
        self,
        hooks: TorchHooks,
        events: StepEvents,
        log: StepLog,
        observers: Observers,
        loops: Loops,
    ) -> None:
        self.hooks = hooks
        self.events = events
        self.log = log
        self.observers = observers
        self.loops = loops
        self.aim = Aim()
        # Whether only the ends of the steps in progress are stamped.
        self.is_quick = False
        self.setup = SetupRecorder(hooks.torch, log.writer.facts)
        # By plan: each loop has steps of its own.
        self._clean_means: dict[int, list[float]] = {}
        user_regions.switch_on()

    def learn(self, event: Event) -> None:
        """Note how long the steps of a slice took."""
        if event["kind"] == "clean" and (mean_s := event.get("mean_s")):
            self._clean_means.setdefault(self.log.plan, []).append(mean_s)

    def clean_mean_s(self) -> float | None:
        """Return the time of a clean step, None before the plan's first clean slice."""
        means = self._clean_means.get(self.log.plan)
        return statistics.median(means) if means else None

    def arm(self, planned: SlicePlan) -> None:
        """Put on the hooks of the slice, or of the one that a settle slice prepares."""
        observers = planned.observers or planned.prepares
        wanted = self.observers.calls_wanted(observers)
        if planned.kind == "whole":
            self.hooks.set_mode(RANGES)
            return
        calls_end_steps = self.events.rule == "module"
        if RANGED in wanted:
            mode = RANGES
        elif LISTENED in wanted:
            mode = DISCOVER
        elif calls_end_steps:
            mode = ROOT
        elif planned.kind == "watch" or (not observers and self._is_short(planned)):
            mode = QUIET
        elif planned.kind in ("clean", "settle") and not observers:
            mode = ROOT
        elif planned.observers:
            # Evaluation in the slice must be seen, or it would count as a part of the step.
            mode = LIGHT
        else:
            mode = OFF
        # The module that ends steps; else the one first called.
        root = self.events.first_module()
        if calls_end_steps:
            named = self.hooks.names.by_number().get(self.events.finder.source or 0)
            root = named.alive() if named is not None else None
        elif mode == ROOT and root is None:
            # The model of an earlier fold is gone: the next one is not known before its call.
            mode = DISCOVER
        self.hooks.set_mode(mode, root, backward=self.events.rule == "backward")
        if calls_end_steps and mode == ROOT and self.hooks.root_class is None:
            self.hooks.set_mode(DISCOVER)

    def begin(self, planned: SlicePlan) -> None:
        """Set what ends the steps of a slice that begins, and the listener to its calls."""
        self.hooks.emit_ranges(True)
        listener = self.observers.listener()
        self.hooks.listen(self.setup.beside(listener, planned, self.log.plan))
        # Also on what the script has loaded since the slice before.
        script_ranges.install()
        user_regions.forward_to(self.hooks.state)
        quick = self.quick_hook(planned) if listener is None else None
        self.is_quick = quick is not None
        self.hooks.exchange_step_hook(quick)
        # While ranges are emitted nothing else is done at a call.
        mode = self.hooks.state.mode
        events = self.events
        events.sees_all = mode in (DISCOVER, RANGES)
        events.waits = mode not in (RANGES, LIGHT)
        if events.follows_calls:
            events.waits = events.sees_all or not events.others_first
        events.begin_step()

    def end(self) -> None:
        """Detach the listener and the ranges: the slice is over."""
        user_regions.forward_to(None)
        self.hooks.listen(None)
        self.hooks.emit_ranges(False)
        self.setup.end(self.log.plan, self.log.total)

    def _is_short(self, planned: SlicePlan) -> bool:
        """Return whether steps are so short that only their ends are stamped.

        Round 1 records everything all the same: its steps give the batch size of the others. Each
        slice counts with its mean: a step that finds its batch ready is not short if the next one
        waits for two batches.
        """
        clean_s = self.clean_mean_s()
        if planned.round <= 1 or self.log.clock.has_device or clean_s is None:
            return False
        return clean_s < SHORT_S

    def quick_hook(self, planned: SlicePlan) -> Any:
        """Return the hook that stamps short steps; None where the usual one is needed.

        Dynamo guards the hooks of an optimizer it compiles: they may not change under it.
        """
        followed = self.events.followed_optimizer
        if followed is None or self.events.made_anew:
            return None
        if not self._is_short(planned) or has_compiled():
            return None
        if self.loops.begin_at.region is not None or self.loops.pending:
            return None
        ends, stack = self.log.quick_ends, self.loops.stack
        return optimizer_hook(self.hooks.torch, followed, ends, self.aim, self.events, stack)
