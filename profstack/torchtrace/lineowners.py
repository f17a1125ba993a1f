"""Whose every moment is on the thread whose lines are traced: a module's, a step part's, nobody's.

The marks of a slice (module calls, backward functions, optimizers) lie inside one another; a
moment belongs to the innermost one. So a line's time can be divided among the modules that it was
spent in, and the parts add up to the line.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

import numpy as np

from profstack.torchtrace.attribution import attribute
from profstack.torchtrace.events import HostEvents, Ints
from profstack.torchtrace.scopes import Scopes

NOBODYS = 0


class LineOwners:
    """Owners of moments and of events; numbers of modules, of step parts (below 0), or 0."""

    def __init__(
        self,
        events: HostEvents,
        boundaries_ns: Sequence[int],
        is_loss: Callable[[int], bool],
        left_out: Collection[int],
        threads: Ints,
    ) -> None:
        """`threads` are the one that makes the steps, then those that help it backward."""
        owned = attribute(events, boundaries_ns, is_loss, left_out, int(threads[0]))
        self._of_event = owned.owner
        self._times, self._owners = _timeline(owned.scopes, threads[:1])
        if len(threads) > 1:
            self._lay_in(*_timeline(owned.scopes, threads[1:]))

    def of_events(self, positions: Ints) -> Ints:
        """Owners of the events at `positions`."""
        found: Ints = self._of_event[positions]
        return found

    def at(self, times: Ints) -> Ints:
        """Owners at these times, in nanoseconds on the profiler's clock."""
        found: Ints = self._owners[np.searchsorted(self._times, times, side="right")]
        return found

    def cut(self, places: Ints, start: Ints, end: Ints) -> tuple[Ints, Ints, Ints]:
        """Stretches of time cut wherever the owner changes: places, owners and lengths."""
        first = np.searchsorted(self._times, start, side="right")
        last = np.maximum(np.searchsorted(self._times, end, side="left"), first)
        pieces = last - first + 1
        whose = np.repeat(np.arange(len(places)), pieces)
        number = np.arange(len(whose)) - np.repeat(np.cumsum(pieces) - pieces, pieces)
        at = first[whose] + number
        padded = np.concatenate((self._times, [0]))
        begin = np.where(number == 0, start[whose], padded[at - 1])
        until = np.where(number == pieces[whose] - 1, end[whose], padded[at])
        return places[whose], self._owners[at], until - begin

    def _lay_in(self, times: Ints, owners: Ints) -> None:
        """Lay the backward functions of other threads into the pass that waits for them.

        Where none of them is at work, the moment is the waiting thread's own.
        """
        both = np.unique(np.concatenate((self._times, times)))
        helping = owners[np.searchsorted(times, both, side="right")]
        own = self.at(both)
        self._owners = np.concatenate(([NOBODYS], np.where(helping != NOBODYS, helping, own)))
        self._times = both


def _timeline(scopes: Scopes, threads: Ints) -> tuple[Ints, Ints]:
    """Times at which the owner changes, and the owners: before the first time, and from each on."""
    events = scopes.events
    marks = np.flatnonzero((scopes.kind > 0) & np.isin(events.thread, threads))
    # What lasts no time holds none, and its end would stand before its beginning below.
    marks = marks[events.end[marks] > events.start[marks]]
    above = scopes.above[marks]
    owner = scopes.owner_of(scopes.scope[marks])
    around = np.where(above > 0, scopes.owner_of(scopes.scope[np.maximum(above - 1, 0)]), NOBODYS)
    depth = events.depth[marks].astype(np.int64)
    times = np.concatenate((events.end[marks], events.start[marks]))
    owners = np.concatenate((around, owner))
    begins = np.repeat([0, 1], len(marks))
    # At one moment inner marks end before outer ones, and outer ones begin before inner ones.
    order = np.lexsort((np.concatenate((-depth, depth)), begins, times))
    return times[order], np.concatenate(([NOBODYS], owners[order]))
