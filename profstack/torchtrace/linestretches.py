"""The times between two stamps of a line tracer, and what of the profiler's events lies in them."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import numpy as np

from profstack.torchtrace.events import Bools, HostEvents, Ints, group, integers, sums
from profstack.torchtrace.lineowners import LineOwners
from profstack.torchtrace.linetrace import NOBODY, LineTracer

# Figures by line (its place among the tracer's) and owner.
Sums = dict[tuple[int, int], float]


class Stretches:
    """The times between two stamps of a tracer, each on one line.

    A line that is running when a step ends goes on in the next step. All sums are by line (its
    place in `tracer.lines`) and owner.
    """

    def __init__(
        self,
        tracer: LineTracer,
        boundaries_ns: Sequence[int],
        left_out: Collection[int],
        owners: LineOwners | None,
    ) -> None:
        edges = np.array(boundaries_ns, np.int64)
        times = np.array(tracer.times, np.int64)
        places = np.array(tracer.places, np.int64)
        before = np.searchsorted(times, edges[:-1], side="right") - 1
        going_on = np.where(before >= 0, places[np.maximum(before, 0)], NOBODY)
        all_times = np.concatenate([times, edges[:-1]])
        order = np.argsort(all_times, kind="stable")
        runs = np.concatenate([np.array(tracer.runs, np.bool_), np.zeros(len(edges) - 1, np.bool_)])
        self._times = all_times[order]
        self._places = np.concatenate([places, going_on])[order]
        self._until = np.minimum(np.append(self._times[1:], edges[-1]), edges[-1])
        counted = np.ones(len(edges) + 1, np.bool_)
        counted[[-1, len(edges) - 1, *left_out]] = False
        step = np.searchsorted(edges, self._times, side="right") - 1
        self._known = counted[step] & (self._places >= 0)
        self._runs = runs[order]
        self._owners = owners

    def _sums(self, places: Ints, owners: Ints, values: Ints) -> Sums:
        """Sums by line and owner."""
        if not len(places):
            return {}
        first, groups = group([places, owners])
        keys = zip(places[first].tolist(), owners[first].tolist(), strict=True)
        return dict(zip(keys, sums(groups, values, len(first)).tolist(), strict=True))

    def _lengths(self, stretch: Ints, start: Ints, end: Ints) -> Sums:
        """Sums of stretches of time; what belongs to no line, or to none at all, is left out."""
        known = (stretch >= 0) & self._known[stretch] & (end > start)
        places, start, end = self._places[stretch[known]], start[known], end[known]
        if self._owners is None:
            return self._sums(places, np.zeros_like(places), end - start)
        return self._sums(*self._owners.cut(places, start, end))

    def calls(self) -> Sums:
        """How often each line was begun."""
        begun = np.flatnonzero(self._known & self._runs)
        owners = self._owners.at(self._times[begun]) if self._owners else np.zeros_like(begun)
        return self._sums(self._places[begun], owners, np.ones_like(begun))

    def wall(self) -> Sums:
        """Time on each line."""
        return self._lengths(np.arange(len(self._times)), self._times, self._until)

    def covered(self, events: HostEvents, operators: Bools) -> Sums:
        """Time on each line in which any of the operators ran.

        An operator that runs lines of Python itself (a function of autograd's) has the time on
        the line that called it, not that on those.
        """
        chosen = np.flatnonzero(operators & (self._at(events.start) >= 0))
        if not len(chosen):
            return {}
        start, end = events.start[chosen], events.end[chosen]
        stretch = self._at(start)
        pieces = [(stretch, start, np.minimum(end, self._until[stretch]))]
        pieces += [
            self._later(int(stretch[one]), int(end[one]))
            for one in np.flatnonzero(end > self._until[stretch]).tolist()
        ]
        stretch, start, end = (np.concatenate(column) for column in zip(*pieces, strict=True))
        order = np.argsort(start, kind="stable")
        stretch, start, end = stretch[order], start[order], end[order]
        # Of what runs at one time only what goes on longer counts, from where the other ends.
        done = np.concatenate(([np.iinfo(np.int64).min], np.maximum.accumulate(end)[:-1]))
        return self._lengths(stretch, np.maximum(start, done), end)

    def _later(self, first: int, end: int) -> tuple[Ints, Ints, Ints]:
        """The further stretches of an operator's line that lie inside the operator."""
        last = int(np.searchsorted(self._times, end, side="left"))
        later = first + 1 + np.flatnonzero(self._places[first + 1 : last] == self._places[first])
        return later, self._times[later], np.minimum(self._until[later], end)

    def launched(self, events: HostEvents, chosen: Bools, kernels: Sequence[Any]) -> Sums:
        """Time of the kernels that the chosen operators and ranges on each line launched."""
        if not len(kernels):
            return {}
        numbers = events.integers("correlation_id")
        where = np.flatnonzero(chosen & (numbers > 0))
        by_correlation = dict(zip(numbers[where].tolist(), where.tolist(), strict=True))
        linked = integers(kernels, "linked_correlation_id").tolist()
        launched_by = np.array([by_correlation.get(number, -1) for number in linked], np.int64)
        lengths = integers(kernels, "duration_ns")[launched_by >= 0]
        launched_by = launched_by[launched_by >= 0]
        stretch = self._at(events.start[launched_by])
        known = (stretch >= 0) & self._known[stretch]
        places, launched_by = self._places[stretch[known]], launched_by[known]
        owners = self._owners.of_events(launched_by) if self._owners else np.zeros_like(places)
        return self._sums(places, owners, lengths[known])

    def _at(self, times: Ints) -> Ints:
        """The stretch that each time lies in; -1 before the first."""
        found: Ints = np.searchsorted(self._times, times, side="right") - 1
        return found
