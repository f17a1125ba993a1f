"""The edge of a slice: its tools are switched on or off, and what they saw is written.

The garbage collector is off meanwhile, and the clean slices around do not see the pause.
"""

from __future__ import annotations

import time
from typing import Any

from profstack.collector import collector_off
from profstack.engine.arming import Arming
from profstack.engine.course import Course
from profstack.slices import Planned
from profstack.steps import Found
from profstack.wrapper import Captured


class Edges:
    """Begins and ends slices, for the engine that knows when and which."""

    def __init__(self, arming: Arming, course: Course) -> None:
        self._arming = arming
        self._course = course
        self._log = arming.log
        self._observers = arming.observers
        self._names = arming.hooks.names

    def switch_on(self, planned: Planned) -> bool:
        """Put on what the slice needs; false when none of its observers could be switched on."""
        with collector_off():
            if not is_watched(planned):
                # Before the tools start: its handshake would stand in their rows.
                self._observers.watch(on=False)
            self._arming.arm(planned)
            if planned.observers or planned.kind == "clean":
                # What was launched before would be done, and seen, in the slice.
                self._log.clock.synchronize()
            return not planned.observers or self._observers.start(
                planned, self._log.next_slice, planned.steps, self._log.total
            )

    def begin(self, planned: Planned, *, since_origin: bool) -> float:
        """The slice begins, now or at the script's first line; returns the time of its start."""
        self._arming.begin(planned)
        if is_watched(planned):
            self._observers.watch(on=True)
        return self._log.begin_slice(planned, since_origin=since_origin)

    def end(self, planned: Planned, *, complete: bool) -> dict[str, Any]:
        """Switch the observers off, take in what they saw, and write the slice.

        Returns the event that tells of it.
        """
        log, observers = self._log, self._observers
        with collector_off():
            begun = time.perf_counter()
            self._arming.end()
            observers.stop()
            log.wait_for_device(planned, complete=complete)
            names = frozenset(name for name, _ in planned.observers)
            stuck = frozenset(name for name in names if not observers.restarts(name))
            if stuck:
                self._course.ended = (stuck, log.total)
            if not complete and planned.observers and log.count < planned.steps:
                observers.discard()
                captured = {}
            else:
                captured = observers.take(
                    log.stamps(), self._names.by_number(), log.with_evaluation(), complete=complete
                )
            log.end_slice(planned, captured, time.perf_counter() - begun)
            log.write_modules(self._names)
            ended = log.progress(planned)
            self._arming.learn(ended)
        return ended

    def end_discovery(self, found: Found | None) -> dict[str, Captured]:
        """What the layers saw that began before the rule was known; nothing without a rule."""
        with collector_off():
            self._observers.stop()
            if found is None or not found.past_ends:
                self._observers.discard()
                return {}
            stamps = [found.first_start, *found.past_ends]
            return self._observers.take(stamps, self._names.by_number())


def is_watched(planned: Planned) -> bool:
    """Whether the watch observes the slice, as everywhere that nothing else does."""
    return not planned.observers and planned.kind != "clean"
