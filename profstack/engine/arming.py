"""What stands on torch's functions during a slice: the least that its observers and steps need."""

from __future__ import annotations

import statistics
from typing import Any

from profstack import userregions
from profstack.engine.observers import Observers
from profstack.engine.setup import Setup
from profstack.engine.stepevents import StepEvents
from profstack.engine.steplog import StepLog
from profstack.hooks.state import DISCOVER, LIGHT, OFF, QUIET, RANGES, ROOT
from profstack.hooks.torch_hooks import TorchHooks
from profstack.passthrough import has_compiled
from profstack.quickstep import SHORT_S, Aim, optimizer_hook
from profstack.slices import Planned
from profstack.wrapper import RANGED, TOLD


class Arming:
    """Chooses the hooks of each slice, from what its kind needs and how long a clean step takes."""

    def __init__(
        self, hooks: TorchHooks, events: StepEvents, log: StepLog, observers: Observers
    ) -> None:
        self.hooks = hooks
        self.events = events
        self.log = log
        self.observers = observers
        self.aim = Aim()
        self.setup = Setup(hooks.torch, log.writer.facts)
        self._clean_means: list[float] = []
        self._mode_before = OFF
        userregions.switch_on()

    def learn(self, ended: dict[str, Any]) -> None:
        """Take note of how long the steps of a slice took, from the event that tells of it."""
        if ended["kind"] == "clean" and ended.get("mean_s"):
            self._clean_means.append(ended["mean_s"])

    def forget(self) -> None:
        """A new plan begins: its steps are others."""
        self._clean_means.clear()

    def arm(self, planned: Planned) -> None:
        """Put on what the slice needs, or the one that a settle slice prepares."""
        observers = planned.observers or planned.prepares
        wanted = self.observers.calls_wanted(observers)
        if planned.kind == "whole":
            self.hooks.set_mode(RANGES)
            return
        calls_end_steps = self.events.rule == "module"
        if RANGED in wanted:
            mode = RANGES
        elif TOLD in wanted:
            mode = DISCOVER
        elif calls_end_steps:
            mode = ROOT
        elif planned.kind == "watch" or (not observers and self._is_short(planned)):
            mode = QUIET
        elif planned.kind in ("clean", "settle") and not observers:
            mode = ROOT
        elif planned.observers:
            # Evaluation in the slice must be seen, or it would pass for a part of the step.
            mode = LIGHT
        else:
            mode = OFF
        by_backward = self.events.rule == "backward"
        self.hooks.set_mode(mode, self._root(), backward=by_backward)
        if calls_end_steps and mode == ROOT and self.hooks.root_class is None:
            self.hooks.set_mode(DISCOVER)

    def begin(self, planned: Planned) -> None:
        """The observers of the slice have begun: what ends its steps, and who is told of calls."""
        self.hooks.emit_ranges(True)
        listener = self.observers.listener()
        self.hooks.listen(self.setup.beside(listener, planned, self.log.plan))
        userregions.tell(self.hooks.state)
        quick = None if listener is not None else self._quick_hook(planned)
        self.hooks.exchange_step_hook(quick)
        # While ranges are emitted nothing else is done at a call.
        self.events.waits = self.hooks.mode not in (RANGES, LIGHT) or self.events.follows_calls
        self.events.begin_step()

    def end(self) -> None:
        """The slice is over."""
        userregions.tell(None)
        self.hooks.listen(None)
        self.hooks.emit_ranges(False)
        self.setup.end()

    def detach(self) -> None:
        """Take every hook off; `rearm` puts the same ones back."""
        self._mode_before = self.hooks.mode
        self.hooks.remove()

    def rearm(self, planned: Planned | None) -> None:
        """Put the hooks of the slice in progress back on."""
        self.hooks.install()
        self.hooks.set_mode(self._mode_before, self.events.first_module())
        if planned is not None:
            self.hooks.exchange_step_hook(self._quick_hook(planned))

    def _is_short(self, planned: Planned) -> bool:
        """Whether steps are so short that their ends are stamped in the least time.

        Round 1 asks for everything all the same: its steps tell the batch size of the others. A
        step that finds its batch ready is no short step if the next one waits for two: each slice
        counts with its mean.
        """
        if planned.round <= 1 or self.log.clock.has_device or not self._clean_means:
            return False
        return statistics.median(self._clean_means) < SHORT_S

    def _quick_hook(self, planned: Planned) -> Any:
        """The hook that stamps short steps; None where the usual one must stand.

        Dynamo guards the hooks of an optimizer it compiles: they may not change under it.
        """
        followed = self.events.followed_optimizer
        if followed is None or not self._is_short(planned) or has_compiled():
            return None
        return optimizer_hook(
            self.hooks.torch,
            followed,
            self.log.quick_ends,
            self.aim,
            self.events.look,
            self.events.optimizer_ended,
        )

    def _root(self) -> Any:
        """The module whose calls are watched: the one that ends steps, else the first called."""
        if self.events.rule != "module":
            return self.events.first_module()
        named = self.hooks.names.by_number().get(self.events.finder.source or 0)
        return named.alive() if named is not None else None
