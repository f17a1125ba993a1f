"""Rows of source lines: the stamps of a line tracer joined with the profiler's events by time.

Every moment between two stamps is one line's. Of it, operators have what any of them was running,
also on the threads of devices that do the backward pass the line waits for; the rest is Python's.
So the two add up to the line's time, and all lines together to no more than the steps took.
"""

from __future__ import annotations

import linecache
import os
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from types import CodeType
from typing import Any

import numpy as np

from profstack.regions import RANGE_PREFIX
from profstack.torchtrace.attribution import in_steps
from profstack.torchtrace.events import (
    EVALUATE,
    SLICE_RANGE,
    Bools,
    HostEvents,
    Ints,
    integers,
    sums,
)
from profstack.torchtrace.linetrace import BUDGET, NOBODY, LineTracer

_S = 1e-9


@dataclass
class _Row:
    """What is known of one line; nanoseconds, None where it is not known."""

    calls: int | None = 0
    python: float = 0.0
    operator: float = 0.0
    backward: float = 0.0
    device: float = 0.0
    reason: str | None = None


def line_records(
    tracer: LineTracer,
    events: HostEvents,
    boundaries_ns: Sequence[int],
    index: int,
    left_out: Collection[int] = (),
    kernels: Sequence[Any] = (),
) -> tuple[list[dict[str, Any]], list[tuple[str, str]]]:
    """Rows of `lines`: time on each line inside operators, and the rest of the time on it.

    `boundaries_ns` are the start of the slice and the end of each step; the steps numbered in
    `left_out` are not counted. `kernels` are the raw events of devices; without any of them
    nothing is said of device time.
    """
    if not tracer.times:
        return [], [("no-lines", "no line of the script's own files ran in the slice")]
    stretches = _Stretches(tracer, boundaries_ns, left_out)
    chosen = in_steps(events, boundaries_ns, left_out)
    chosen &= np.isin(events.thread, _threads(events, chosen))
    operators = chosen & _operators(events)
    in_backward = events.inherit(_evaluates(events).astype(np.int64)) > 0
    wall = stretches.wall()
    inside = stretches.covered(events, operators)
    backward = stretches.covered(events, operators & in_backward)
    device = stretches.launched(events, chosen, kernels)
    by_line: dict[tuple[str, int], _Row] = {}
    cut = {id(code) for code in tracer.truncated}
    for number, (code, line) in enumerate(tracer.lines):
        row = by_line.setdefault((code.co_filename, line), _Row())
        if id(code) in cut:
            # Of a function that was let go no line's count is whole.
            row.calls, row.reason = None, _truncation(code)
        elif row.calls is not None:
            row.calls += int(stretches.calls[number])
        row.python += wall[number] - inside[number]
        row.operator += inside[number]
        row.backward += backward[number]
        row.device += device[number]
    records = [
        {
            "slice": index,
            "file": file,
            "line": line,
            "source": linecache.getline(file, line).rstrip("\n") or None,
            "calls": row.calls,
            "python_s": row.python * _S,
            "operator_s": row.operator * _S,
            "backward_s": row.backward * _S,
            "device_s": row.device * _S if len(kernels) else None,
            "reason": row.reason,
        }
        for (file, line), row in by_line.items()
    ]
    notes = [("lines-truncated", _truncation(code)) for code in tracer.truncated]
    if tracer.ended is not None:
        notes.append(("lines-truncated", f"lines were traced until {tracer.ended}"))
    return records, notes


def _truncation(code: CodeType) -> str:
    return (
        f"{os.path.basename(code.co_filename)}:{code.co_firstlineno} ({code.co_name}) ran more "
        f"than {BUDGET} lines in the slice: the rest of its time stands on its first line, and "
        f"after {BUDGET} more calls on the line that calls it"
    )


class _Stretches:
    """The times between two stamps of a tracer, each on one line; `calls` counts the lines' runs.

    A line that is running when a step ends goes on in the next step.
    """

    def __init__(
        self, tracer: LineTracer, boundaries_ns: Sequence[int], left_out: Collection[int]
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
        self._count = len(tracer.lines)
        begun = self._places[self._known & runs[order]]
        self.calls = np.bincount(begun, minlength=self._count)

    def _by_line(self, stretch: Ints, values: Ints) -> Any:
        """Sums per line; what belongs to no line, or to no stretch at all, is left out."""
        known = (stretch >= 0) & self._known[stretch]
        return sums(self._places[stretch[known]], values[known], self._count)

    def wall(self) -> Any:
        """Time on each line."""
        every = np.arange(len(self._times))
        return self._by_line(every, np.maximum(self._until - self._times, 0))

    def covered(self, events: HostEvents, operators: Bools) -> Any:
        """Time on each line in which any of the operators ran.

        An operator that runs lines of Python itself (a function of autograd's) has the time on
        the line that called it, not that on those.
        """
        chosen = np.flatnonzero(operators & (self._at(events.start) >= 0))
        if not len(chosen):
            return np.zeros(self._count)
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
        return self._by_line(stretch, np.maximum(end - np.maximum(start, done), 0))

    def _later(self, first: int, end: int) -> tuple[Ints, Ints, Ints]:
        """The further stretches of an operator's line that lie inside the operator."""
        last = int(np.searchsorted(self._times, end, side="left"))
        later = first + 1 + np.flatnonzero(self._places[first + 1 : last] == self._places[first])
        return later, self._times[later], np.minimum(self._until[later], end)

    def launched(self, events: HostEvents, chosen: Bools, kernels: Sequence[Any]) -> Any:
        """Time of the kernels that the chosen operators and ranges on each line launched."""
        if not len(kernels):
            return np.zeros(self._count)
        numbers = events.integers("correlation_id")
        where = np.flatnonzero(chosen & (numbers > 0))
        by_correlation = dict(zip(numbers[where].tolist(), where.tolist(), strict=True))
        linked = integers(kernels, "linked_correlation_id").tolist()
        launched_by = np.array([by_correlation.get(number, -1) for number in linked], np.int64)
        known = launched_by >= 0
        lengths = integers(kernels, "duration_ns")[known]
        return self._by_line(self._at(events.start[launched_by[known]]), lengths)

    def _at(self, times: Ints) -> Ints:
        """The stretch that each time lies in; -1 before the first."""
        found: Ints = np.searchsorted(self._times, times, side="right") - 1
        return found


def _operators(events: HostEvents) -> Bools:
    """Events that are no ranges, ours or the script's, and no allocations."""
    _, first = np.unique(events.names.ids, return_index=True)
    # All events of one name are ranges or none is: one of each is asked.
    noted = {
        str(event.name())
        for event in events.raw(first.astype(np.int64))
        if event.is_user_annotation() or event.name().startswith(RANGE_PREFIX)
    }
    return ~events.names.where(noted.__contains__) & ~events.memory


def _evaluates(events: HostEvents) -> Bools:
    return events.names.where(lambda name: name.startswith(EVALUATE))


def _threads(events: HostEvents, chosen: Bools) -> Ints:
    """The thread whose lines are traced, and those that do its backward work.

    The wrapper marks the first one; it waits for the others, so that their time is its line's.
    """
    evaluates = np.flatnonzero(_evaluates(events))
    made_on = events.integers("fwd_thread_id", evaluates)
    elsewhere = made_on != events.thread[evaluates]
    marked = events.thread[events.names.where(lambda name: name == SLICE_RANGE)]
    if not len(marked):
        busy = events.thread[chosen]
        threads, counts = np.unique(busy, return_counts=True)
        marked = threads[counts == counts.max(initial=0)][:1]
    helping = events.thread[evaluates[elsewhere & np.isin(made_on, marked)]]
    return np.concatenate([marked[:1], np.unique(helping)])
