"""Rows of source lines: the line tracer's stamps joined with the profiler's events by time.

Every moment between two stamps belongs to one line. It counts as operator time if any operator was
running, also on the threads of devices that do the backward pass the line waits for; the rest is
Python's. So the two add up to the line's time, and all lines to no more than the steps took.
"""

from __future__ import annotations

import linecache
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from profstack.code_owner import source_records
from profstack.readers.torchtrace.attribution import (
    Attribution,
    attribute,
    in_steps,
    operators_around,
)
from profstack.readers.torchtrace.columns import Bools, Floats, Ints, group, integers, sums
from profstack.readers.torchtrace.events import EVALUATE, SLICE_RANGE, HostEvents, launchers
from profstack.readers.torchtrace.line_tracer import LONG_LINE_NS, NO_LINE, LineTracer
from profstack.readers.torchtrace.scopes import Scopes
from profstack.readers.torchtrace.slice_tables import Frames, Notes, noting
from profstack.storage.schema.column import Record, Records, SqlValue
from profstack.storage.vocabulary import RANGE_PREFIX

_S = 1e-9

# Owners of moments on the thread whose lines are traced -----------------------------------------
#
# The marks of a slice (module calls, backward functions, optimizers) lie inside one another; a
# moment belongs to the innermost one. So a line's time can be divided among the modules that it was
# spent in, and the parts add up to the line.

NO_OWNER = 0


class LineOwners:
    """Owners of moments and of events; numbers of modules, of step parts (below 0), or 0."""

    def __init__(self, events: HostEvents, observed: LineSlice, threads: Ints) -> None:
        """`threads` are the one that makes the steps, then those that help it backward."""
        edges, left_out = observed.boundaries_ns, observed.left_out
        owned = attribute(events, edges, observed.is_loss, left_out, int(threads[0]))
        self.owned, self.of_events = owned, owned.owner
        self._times, self._owners = _timeline(owned.scopes, threads[:1])
        if len(threads) > 1:
            # Backward functions of other threads are laid into the pass that waits for them. Where
            # none of them runs, the moment belongs to the waiting thread.
            times, owners = _timeline(owned.scopes, threads[1:])
            both = np.unique(np.concatenate((self._times, times)))
            helping = owners[np.searchsorted(times, both, side="right")]
            own = np.where(helping != NO_OWNER, helping, self.at(both))
            self._times, self._owners = both, np.concatenate(([NO_OWNER], own))

    def at(self, times: Ints) -> Ints:
        """Return the owners at these times, in nanoseconds on the profiler's clock."""
        return np.take(self._owners, np.searchsorted(self._times, times, side="right"))

    def cut(self, places: Ints, start: Ints, end: Ints) -> tuple[Ints, Ints, Ints]:
        """Cut stretches of time wherever the owner changes: places, owners and lengths."""
        first = np.searchsorted(self._times, start, side="right")
        last = np.maximum(np.searchsorted(self._times, end, side="left"), first)
        pieces = last - first + 1
        stretch = np.repeat(np.arange(len(places)), pieces)
        number = np.arange(len(stretch)) - np.repeat(np.cumsum(pieces) - pieces, pieces)
        at = first[stretch] + number
        padded = np.concatenate((self._times, [0]))
        begin = np.where(number == 0, start[stretch], padded[at - 1])
        until = np.where(number == pieces[stretch] - 1, end[stretch], padded[at])
        return places[stretch], self._owners[at], until - begin


def _timeline(scopes: Scopes, threads: Ints) -> tuple[Ints, Ints]:
    """Return when the owner changes, and the owners: before the first time, and from each on."""
    events = scopes.events
    marks = np.flatnonzero((scopes.kind > 0) & np.isin(events.thread, threads))
    # Marks without duration own no time, and would be sorted end first below.
    marks = marks[events.end[marks] > events.start[marks]]
    above = scopes.above[marks]
    around = np.where(above > 0, scopes.owner_of(scopes.scope[np.maximum(above - 1, 0)]), NO_OWNER)
    owner = scopes.owner_of(scopes.scope[marks])
    # In a closure the moment is nobody's, and after it the optimizer's again.
    there = np.isin(events.thread[scopes.closures], threads)
    there &= events.end[scopes.closures] > events.start[scopes.closures]
    marks = np.concatenate((marks, scopes.closures[there]))
    holders = scopes.owner_of(scopes.scope[scopes.holders[there] - 1])
    around = np.concatenate((around, holders))
    owner = np.concatenate((owner, np.full(len(holders), NO_OWNER)))
    depth = events.depth[marks].astype(np.int64)
    times = np.concatenate((events.end[marks], events.start[marks]))
    owners = np.concatenate((around, owner))
    begins = np.repeat([0, 1], len(marks))
    # At one moment inner marks end before outer ones, and outer ones begin before inner ones.
    order = np.lexsort((np.concatenate((-depth, depth)), begins, times))
    return times[order], np.concatenate(([NO_OWNER], owners[order]))


# Times between two stamps of a line tracer ------------------------------------------------------

# Figures by line (its place among the tracer's) and owner.
Sums = dict[tuple[int, int], float]
# A part of a stretch: the stretch, its owner and nanoseconds, as columns.
Pieces = tuple[Ints, Ints, Floats]

# Runs of a line in windows that stand for those that were only counted; where there are fewer, all
# that were stamped do.
FEWEST_RUNS = 20


class Stretches:
    """The times between two stamps of a tracer, each on one line.

    A line that is running when a step ends goes on in the next step. All sums are by line (its
    place in `tracer.lines`) and owner. What was stamped of a line that was also only counted is
    weighted to stand for all its runs.
    """

    def __init__(self, tracer: LineTracer, observed: LineSlice, owners: LineOwners | None) -> None:
        self._tracer, self._owners = tracer, owners
        edges = np.array(observed.boundaries_ns, np.int64)
        stamps = np.array((tracer.times, tracer.entered, tracer.places, tracer.in_window), np.int64)
        # What goes on at the edge of a step.
        before = np.searchsorted(stamps[0], edges[:-1], side="right") - 1
        going_on = np.where(before >= 0, stamps[:, before], NO_LINE)
        going_on[:2] = edges[:-1]
        columns = np.concatenate((stamps, going_on), axis=1)
        order = np.argsort(columns[0], kind="stable")
        self._times, entered, self._places, in_window = columns[:, order]
        self._until = np.minimum(np.append(entered[1:], edges[-1]), edges[-1])
        more = len(order) - len(tracer.times)
        self._runs = np.append(np.array(tracer.runs, np.bool_), np.zeros(more, np.bool_))[order]
        passed = np.append(np.array(tracer.passed, np.int64), np.zeros(more, np.int64))[order]
        self._passed = np.append(passed[1:], 0)
        waited = np.zeros(len(order), np.int64)
        waited[list(tracer.waited)] = list(tracer.waited.values())
        self._waited = waited[order]
        counted = np.ones(len(edges) + 1, np.bool_)
        counted[[-1, len(edges) - 1, *observed.left_out]] = False
        step = np.searchsorted(edges, self._times, side="right") - 1
        self._known = counted[step] & (self._places >= 0)
        self._trim()
        self.samples: dict[int, int] = {}
        self._weigh(in_window > 0)

    def _trim(self) -> None:
        """Take what tracing costs from both ends of each stretch."""
        costs = self._tracer.costs
        of_lines = np.array([*(costs.of_instructions(*line) for line in self._tracer.lines), 0.0])
        # A line that goes on after a call has had its instructions counted.
        self._slowed = np.where(self._runs, of_lines[self._places], costs.return_ns)
        room = np.maximum(self._until - self._times, 0)
        trimmed = np.minimum(costs.stamp_ns, np.maximum(room - 1, 0))
        # As often too much as too little is taken: that evens out in a line's sum alone.
        self._slowed += costs.stamp_ns - trimmed
        self._start, self._end = self._times + trimmed // 2, self._until - (trimmed - trimmed // 2)

    def _weigh(self, in_window: Bools) -> None:
        """Give the stamped runs of a line the weight of those that were only counted.

        Long runs are stamped wherever they are, and so stand for themselves.
        """
        self._weight = np.ones(len(self._times))
        is_long = self._runs & (self._until - self._times >= LONG_LINE_NS)
        for place, count in self._tracer.counted():
            there = (self._places == place) & ~is_long
            inside = there & in_window
            if np.count_nonzero(inside & self._runs) < FEWEST_RUNS:
                inside = there
            runs = np.count_nonzero(inside & self._runs)
            self.samples[place] = int(runs)
            if runs:
                self._weight[inside] += count / runs

    def sums(self, pieces: Pieces) -> Sums:
        """Return sums of times by line and owner; those of no line are left out."""
        stretch, owners, values = pieces
        known = self._known[stretch]
        stretch = stretch[known]
        return self._by_line(stretch, owners[known], values[known] * self._weight[stretch])

    def _by_line(self, stretch: Ints, owners: Ints, values: Floats) -> Sums:
        if not len(stretch):
            return {}
        places = self._places[stretch]
        first, groups = group([places, owners])
        keys = zip(places[first].tolist(), owners[first].tolist(), strict=True)
        return dict(zip(keys, sums(groups, values, len(first)).tolist(), strict=True))

    def _pieces(self, stretch: Ints, start: Ints, end: Ints) -> Pieces:
        """Return the parts of stretches, cut where the owner changes."""
        start, end = np.maximum(start, self._start[stretch]), np.minimum(end, self._end[stretch])
        known = (stretch >= 0) & self._known[stretch] & (end > start)
        stretch, start, end = stretch[known], start[known], end[known]
        if self._owners is None:
            return stretch, np.zeros_like(stretch), (end - start).astype(np.float64)
        stretch, owners, lengths = self._owners.cut(stretch, start, end)
        return stretch, owners, lengths.astype(np.float64)

    def calls(self) -> Sums:
        """Return how often each line was begun."""
        begun = np.flatnonzero(self._known & self._runs)
        owners = self._owners.at(self._times[begun]) if self._owners else np.zeros_like(begun)
        return self._by_line(begun, owners, self._weight[begun])

    def outside(self, within: Pieces) -> Pieces:
        """Return the time on each line outside the operators that `within` is of.

        Nor is it the line's where the tracer looked at functions called on it, and where other
        threads and programs had the processor.
        """
        wall = self._pieces(np.arange(len(self._times)), self._times, self._until)
        stretch, owners, lengths = (
            np.concatenate((wall[0], within[0])),
            np.concatenate((wall[1], within[1])),
            np.concatenate((wall[2], -within[2])),
        )
        count = len(self._times)
        whole = sums(stretch, lengths, count)
        costs = self._passed * self._tracer.costs.call_ns + self._slowed
        left = whole - costs
        left = np.maximum(left - self._waited, np.minimum(left, self._usual(left)))
        kept = left / np.where(whole > 0, whole, 1.0)
        return stretch, owners, lengths * kept[stretch]

    def _usual(self, lengths: Floats) -> Floats:
        """Return the median of each stretch's line: no stretch is made shorter than that."""
        usual = np.zeros(len(lengths))
        for place in np.unique(self._places[self._runs]).tolist():
            there = self._places == place
            usual[there] = np.median(lengths[there & self._runs])
        return usual

    def covered(self, events: HostEvents, operators: Bools) -> Pieces:
        """Return the time on each line in which any of the operators ran.

        An operator that runs lines of Python itself (an autograd function) counts on the line
        that called it, not on those.
        """
        chosen = np.flatnonzero(operators & (self._at(events.start) >= 0))
        if not len(chosen):
            return _NO_PIECES
        start, end = events.start[chosen], events.end[chosen]
        stretch = self._at(start)
        pieces = [(stretch, start, np.minimum(end, self._until[stretch]))]
        for one in np.flatnonzero(end > self._until[stretch]).tolist():
            # The further stretches of an operator's line that are inside the operator.
            after = int(stretch[one]) + 1
            last = int(np.searchsorted(self._times, end[one], side="left"))
            on_line = self._places[after:last] == self._places[after - 1]
            later = after + np.flatnonzero(on_line)
            pieces.append((later, self._times[later], np.minimum(self._until[later], end[one])))
        stretch, start, end = (np.concatenate(column) for column in zip(*pieces, strict=True))
        order = np.argsort(start, kind="stable")
        stretch, start, end = stretch[order], start[order], end[order]
        # Of operators that overlap, the later one counts from where the earlier one ends.
        done = np.concatenate(([np.iinfo(np.int64).min], np.maximum.accumulate(end)[:-1]))
        return self._pieces(stretch, np.maximum(start, done), end)

    def launched(self, events: HostEvents, chosen: Bools, kernels: Sequence[Any]) -> Pieces:
        """Return the time of the kernels that the chosen events on each line launched."""
        if not len(kernels):
            return _NO_PIECES
        launched_by = launchers(events, kernels, np.flatnonzero(chosen))
        lengths = integers(kernels, "duration_ns")[launched_by >= 0]
        launched_by = launched_by[launched_by >= 0]
        stretch = self._at(events.start[launched_by])
        owners = self._owners.of_events[launched_by] if self._owners else np.zeros_like(stretch)
        return stretch[stretch >= 0], owners[stretch >= 0], lengths[stretch >= 0].astype(np.float64)

    def places_at(self, times: Ints) -> Ints:
        """Return the place of the line that each time is on; below 0 for none."""
        at = self._at(times)
        return np.where(at >= 0, self._places[at], NO_LINE)

    def _at(self, times: Ints) -> Ints:
        """Return the stretch that each time is in; -1 before the first."""
        return np.searchsorted(self._times, times, side="right") - 1


_NO_PIECES: Pieces = (np.zeros(0, np.int64), np.zeros(0, np.int64), np.zeros(0))


# Rows -------------------------------------------------------------------------------------------


_TIMES = ("python_s", "operator_s", "backward_s", "device_s")


@dataclass
class _Line:
    """Sums of one line: calls, None where they are not known, and nanoseconds by column."""

    calls: int | None = 0
    times: dict[str, float] = field(default_factory=lambda: dict.fromkeys(_TIMES, 0.0))
    reason: str | None = None
    samples: int | None = None

    def add_times(self, other: _Line) -> None:
        """Add the times of another line, or of another owner's part."""
        for column, time in other.times.items():
            self.times[column] += time

    def columns(self, *, has_device: bool) -> dict[str, SqlValue]:
        """Return the columns of its row."""
        times: Record = {column: time * _S for column, time in self.times.items()}
        return {"calls": self.calls, **times} | ({} if has_device else {"device_s": None})


# Parts of lines by file, line and owner.
_Parts = dict[tuple[str, int, int], _Line]


@dataclass(frozen=True)
class LineSlice:
    """Facts about a slice whose lines were traced.

    `boundaries_ns` are its start and the end of each step, on the profiler's clock; the steps
    numbered in `left_out`, from 0, are not counted. `kernels` are the raw events of devices;
    without any of them device times are null. `is_loss` is called with a module's number.
    """

    index: int
    boundaries_ns: Sequence[int]
    left_out: Collection[int] = ()
    kernels: Sequence[Any] = ()
    is_loss: Callable[[int], bool] = lambda number: False


def line_tables(
    tracer: LineTracer, events: HostEvents, observed: LineSlice
) -> tuple[Frames, Notes]:
    """Return rows of three tables, and notes.

    `lines` has the time on each line inside operators, and the rest of the time on it;
    `module_lines` the same, divided among the modules that it was spent in; `source_files` the
    text around them. The rows of a line in `module_lines` add up to its row in `lines`.
    """
    if not tracer.times:
        return {"lines": []}, [("no-lines", "no line of the script's own files ran in the slice")]
    index, edges, left_out = observed.index, observed.boundaries_ns, observed.left_out
    has_device = bool(len(observed.kernels))
    chosen = in_steps(events, edges, left_out)
    threads = _threads(events, chosen)
    owners, notes = None, Notes()
    with noting(notes, "lines-unowned", "no lines by module"):
        owners = LineOwners(events, observed, threads)
    chosen &= np.isin(events.thread, threads)
    stretches = Stretches(tracer, observed, owners)
    parts = _parts(tracer, events, observed, stretches, chosen)
    times = defaultdict[str, float](float)
    for (file, _, _), part in parts.items():
        times[file] += part.times["python_s"] + part.times["operator_s"]
    files = sorted(times, key=times.__getitem__, reverse=True)
    frames: Frames = {
        "lines": _line_rows(parts, index, has_device=has_device),
        "source_files": source_records(files, index),
    }
    if owners is not None:
        frames["module_lines"] = [
            {
                "slice": index,
                "file": file,
                "line": line,
                "module_id": owner or None,
                **part.columns(has_device=has_device),
            }
            for (file, line, owner), part in parts.items()
        ]
        frames["line_operators"] = _operator_rows(owners.owned, stretches, tracer, index)
    if tracer.ended is not None:
        notes.append(("lines-truncated", f"lines were traced until {tracer.ended}"))
    return frames, notes


def _operator_rows(
    owned: Attribution, stretches: Stretches, tracer: LineTracer, index: int
) -> Records:
    """Return rows of `line_operators`: calls by line, operator and owner, of forward work."""
    positions = np.arange(len(owned.events))
    # The script's own ranges may be named as operators are.
    owned = replace(owned, is_range=owned.is_range | ~_operators(owned.events))
    outermost = (operators_around(owned) == positions + 1) & owned.is_work & ~owned.in_backward
    chosen = np.flatnonzero(outermost)
    places = stretches.places_at(owned.events.start[chosen])
    chosen, places = chosen[places >= 0], places[places >= 0]
    calls = Counter[tuple[str, int, str, int]]()
    names = owned.events.names
    for at, place in zip(chosen.tolist(), places.tolist(), strict=True):
        code, line = tracer.lines[place]
        calls[code.co_filename, line, names.values[names.ids[at]], int(owned.owner[at])] += 1
    columns = ("slice", "file", "line", "operator", "module_id", "calls")
    return [
        dict(zip(columns, (index, file, line, name, owner or None, count), strict=True))
        for (file, line, name, owner), count in calls.items()
    ]


def _line_rows(parts: _Parts, index: int, *, has_device: bool) -> Records:
    """Return rows of `lines`: the sums over all owners of a line."""
    whole: dict[tuple[str, int], _Line] = {}
    for (file, line, _), part in parts.items():
        row = whole.setdefault((file, line), _Line(reason=part.reason))
        row.samples = part.samples
        row.calls = None if part.calls is None or row.calls is None else row.calls + part.calls
        row.add_times(part)
    return [
        {
            "slice": index,
            "file": file,
            "line": line,
            "source": linecache.getline(file, line).rstrip("\n") or None,
            "reason": row.reason,
            "samples": row.samples,
            **row.columns(has_device=has_device),
        }
        for (file, line), row in whole.items()
    ]


def _parts(
    tracer: LineTracer, events: HostEvents, observed: LineSlice, stretches: Stretches, chosen: Bools
) -> _Parts:
    """Return the sums of each line, by file, line and owner."""
    operators = chosen & _operators(events)
    in_backward = events.inherit(_evaluates(events).astype(np.int64)) > 0
    parts = defaultdict[tuple[int, int], _Line](_Line)
    for place in range(len(tracer.lines)):
        parts[place, NO_OWNER] = _Line()
    for key, calls in stretches.calls().items():
        parts[key].calls = round(calls)
    within = stretches.covered(events, operators)
    times = (
        stretches.outside(within),
        within,
        stretches.covered(events, operators & in_backward),
        stretches.launched(events, chosen, observed.kernels),
    )
    for column, pieces in zip(_TIMES, times, strict=True):
        for key, time in stretches.sums(pieces).items():
            parts[key].times[column] = max(time, 0.0)
    return _by_line(tracer, parts, stretches, whole=not observed.left_out)


def _by_line(
    tracer: LineTracer,
    parts: dict[tuple[int, int], _Line],
    stretches: Stretches,
    *,
    whole: bool,
) -> _Parts:
    """Join parts by file and line; several code objects may be on one line."""
    rows: _Parts = {}
    touched = {place for place, owner in parts if owner}
    for (place, owner), part in parts.items():
        code, line = tracer.lines[place]
        is_empty = not (part.calls or any(part.times.values()))
        # Prepared for a line that modules have all of.
        if is_empty and not owner and place in touched:
            continue
        row = rows.setdefault((code.co_filename, line, owner), _Line())
        samples = stretches.samples.get(place)
        if samples is not None:
            row.samples = (row.samples or 0) + samples
        if samples is not None and not whole:
            # Runs are not counted by step.
            row.calls = None
        elif row.calls is not None:
            row.calls += part.calls or 0
        row.add_times(part)
    return rows


def _operators(events: HostEvents) -> Bools:
    """Return which events are operators: neither ranges nor allocations."""
    _, first = np.unique(events.names.ids, return_index=True)
    # All events of one name are ranges or none is: one of each is looked at.
    ranges = {
        str(event.name())
        for event in events.raw(first.astype(np.int64))
        if event.is_user_annotation() or event.name().startswith(RANGE_PREFIX)
    }
    return ~events.names.where(ranges.__contains__) & ~events.memory


def _evaluates(events: HostEvents) -> Bools:
    return events.names.where(lambda name: name.startswith(EVALUATE))


def _threads(events: HostEvents, chosen: Bools) -> Ints:
    """Return the thread whose lines are traced, and those that do its backward work.

    The wrapper marks the first one; it waits for the others, so that their time is its line's.
    """
    evaluates = np.flatnonzero(_evaluates(events))
    made_on = events.integers("fwd_thread_id", evaluates)
    elsewhere = made_on != events.thread[evaluates]
    marked = events.thread[events.names.where(lambda name: name == SLICE_RANGE)]
    if not len(marked):
        threads, counts = np.unique(events.thread[chosen], return_counts=True)
        marked = threads[counts == counts.max(initial=0)][:1]
    helping = events.thread[evaluates[elsewhere & np.isin(made_on, marked)]]
    return np.concatenate([marked[:1], np.unique(helping)])
