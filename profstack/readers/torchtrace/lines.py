"""Rows of source lines: the line tracer's stamps joined with the profiler's events by time.

Every moment between two stamps belongs to one line. It counts as operator time if any operator was
running, also on the threads of devices that do the backward pass the line waits for; the rest is
Python's. So the two add up to the line's time, and all lines to no more than the steps took.
"""

from __future__ import annotations

import linecache
import os
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field
from types import CodeType
from typing import Any

import numpy as np

from profstack.readers.torchtrace.attribution import attribute, in_steps
from profstack.readers.torchtrace.columns import Bools, Ints, group, integers, sums
from profstack.readers.torchtrace.events import EVALUATE, SLICE_RANGE, HostEvents, launchers
from profstack.readers.torchtrace.line_tracer import BUDGET, NO_LINE, LineTracer
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
        self.of_events = owned.owner
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
    depth = events.depth[marks].astype(np.int64)
    times = np.concatenate((events.end[marks], events.start[marks]))
    owners = np.concatenate((around, scopes.owner_of(scopes.scope[marks])))
    begins = np.repeat([0, 1], len(marks))
    # At one moment inner marks end before outer ones, and outer ones begin before inner ones.
    order = np.lexsort((np.concatenate((-depth, depth)), begins, times))
    return times[order], np.concatenate(([NO_OWNER], owners[order]))


# Times between two stamps of a line tracer ------------------------------------------------------

# Figures by line (its place among the tracer's) and owner.
Sums = dict[tuple[int, int], float]


class Stretches:
    """The times between two stamps of a tracer, each on one line.

    A line that is running when a step ends goes on in the next step. All sums are by line (its
    place in `tracer.lines`) and owner.
    """

    def __init__(self, tracer: LineTracer, observed: LineSlice, owners: LineOwners | None) -> None:
        edges = np.array(observed.boundaries_ns, np.int64)
        times = np.array(tracer.times, np.int64)
        places = np.array(tracer.places, np.int64)
        before = np.searchsorted(times, edges[:-1], side="right") - 1
        going_on = np.where(before >= 0, places[np.maximum(before, 0)], NO_LINE)
        all_times = np.concatenate([times, edges[:-1]])
        order = np.argsort(all_times, kind="stable")
        runs = np.concatenate([np.array(tracer.runs, np.bool_), np.zeros(len(edges) - 1, np.bool_)])
        self._times = all_times[order]
        self._places = np.concatenate([places, going_on])[order]
        self._until = np.minimum(np.append(self._times[1:], edges[-1]), edges[-1])
        counted = np.ones(len(edges) + 1, np.bool_)
        counted[[-1, len(edges) - 1, *observed.left_out]] = False
        step = np.searchsorted(edges, self._times, side="right") - 1
        self._known = counted[step] & (self._places >= 0)
        self._runs = runs[order]
        self._owners = owners

    def _sums(self, places: Ints, owners: Ints, values: Ints) -> Sums:
        """Return sums by line and owner."""
        if not len(places):
            return {}
        first, groups = group([places, owners])
        keys = zip(places[first].tolist(), owners[first].tolist(), strict=True)
        return dict(zip(keys, sums(groups, values, len(first)).tolist(), strict=True))

    def _lengths(self, stretch: Ints, start: Ints, end: Ints) -> Sums:
        """Return sums of stretches of time; those of no line, or before the first, are left out."""
        known = (stretch >= 0) & self._known[stretch] & (end > start)
        places, start, end = self._places[stretch[known]], start[known], end[known]
        if self._owners is None:
            return self._sums(places, np.zeros_like(places), end - start)
        return self._sums(*self._owners.cut(places, start, end))

    def calls(self) -> Sums:
        """Return how often each line was begun."""
        begun = np.flatnonzero(self._known & self._runs)
        owners = self._owners.at(self._times[begun]) if self._owners else np.zeros_like(begun)
        return self._sums(self._places[begun], owners, np.ones_like(begun))

    def wall(self) -> Sums:
        """Return the time on each line."""
        return self._lengths(np.arange(len(self._times)), self._times, self._until)

    def covered(self, events: HostEvents, operators: Bools) -> Sums:
        """Return the time on each line in which any of the operators ran.

        An operator that runs lines of Python itself (an autograd function) counts on the line
        that called it, not on those.
        """
        chosen = np.flatnonzero(operators & (self._at(events.start) >= 0))
        if not len(chosen):
            return {}
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
        return self._lengths(stretch, np.maximum(start, done), end)

    def launched(self, events: HostEvents, chosen: Bools, kernels: Sequence[Any]) -> Sums:
        """Return the time of the kernels that the chosen events on each line launched."""
        if not len(kernels):
            return {}
        launched_by = launchers(events, kernels, np.flatnonzero(chosen))
        lengths = integers(kernels, "duration_ns")[launched_by >= 0]
        launched_by = launched_by[launched_by >= 0]
        stretch = self._at(events.start[launched_by])
        known = (stretch >= 0) & self._known[stretch]
        places, launched_by = self._places[stretch[known]], launched_by[known]
        owners = self._owners.of_events[launched_by] if self._owners else np.zeros_like(places)
        return self._sums(places, owners, lengths[known])

    def _at(self, times: Ints) -> Ints:
        """Return the stretch that each time is in; -1 before the first."""
        return np.searchsorted(self._times, times, side="right") - 1


# Texts of the user's own files ------------------------------------------------------------------
#
# For listings of whole files: only of files that have rows anyway, and of no very large one, since
# a recording is sent to people and must stay small.

# Bytes of one file, and of all together, that are kept.
LARGEST = 200_000
LARGEST_SUM = 2_000_000


def source_records(files: Iterable[str], index: int) -> Records:
    """Return rows of `source_files` in the order given, with the reason for a missing text.

    The text is the one that lines are quoted from: as it was when the script was read, if it has
    been changed since.
    """
    left = LARGEST_SUM
    rows: list[Record] = []
    for file in files:
        text = "".join(linecache.getlines(file)).encode("utf-8", "replace")
        reason = None
        if not text:
            reason = "its text could not be read"
        elif len(text) > LARGEST:
            reason = f"it has more than {LARGEST // 1000} kB"
        elif len(text) > left:
            reason = f"the files before it have {LARGEST_SUM // 1_000_000} MB together"
        else:
            left -= len(text)
        rows.append(
            {
                "slice": index,
                "file": file,
                "text": text.decode("utf-8") if reason is None else None,
                "bytes": len(text) or None,
                "reason": reason,
            }
        )
    return rows


# Rows -------------------------------------------------------------------------------------------


_TIMES = ("python_s", "operator_s", "backward_s", "device_s")


@dataclass
class _Line:
    """Sums of one line: calls, None where they are not known, and nanoseconds by column."""

    calls: int | None = 0
    times: dict[str, float] = field(default_factory=lambda: dict.fromkeys(_TIMES, 0.0))
    reason: str | None = None

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
    parts = _parts(tracer, events, observed, Stretches(tracer, observed, owners), chosen)
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
    notes += [("lines-truncated", _truncation(code)) for code in tracer.truncated]
    if tracer.ended is not None:
        notes.append(("lines-truncated", f"lines were traced until {tracer.ended}"))
    return frames, notes


def _line_rows(parts: _Parts, index: int, *, has_device: bool) -> Records:
    """Return rows of `lines`: the sums over all owners of a line."""
    whole: dict[tuple[str, int], _Line] = {}
    for (file, line, _), part in parts.items():
        row = whole.setdefault((file, line), _Line(reason=part.reason))
        row.calls = None if part.calls is None or row.calls is None else row.calls + part.calls
        row.add_times(part)
    return [
        {
            "slice": index,
            "file": file,
            "line": line,
            "source": linecache.getline(file, line).rstrip("\n") or None,
            "reason": row.reason,
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
        parts[key].calls = int(calls)
    times = (
        stretches.wall(),
        stretches.covered(events, operators),
        stretches.covered(events, operators & in_backward),
        stretches.launched(events, chosen, observed.kernels),
    )
    for column, by_key in zip(_TIMES, times, strict=True):
        for key, time in by_key.items():
            parts[key].times[column] = time
    return _by_line(tracer, parts)


def _by_line(tracer: LineTracer, parts: dict[tuple[int, int], _Line]) -> _Parts:
    """Join parts by file and line; several code objects may be on one line."""
    rows: _Parts = {}
    truncated = {id(code) for code in tracer.truncated}
    touched = {place for place, owner in parts if owner}
    for (place, owner), part in parts.items():
        code, line = tracer.lines[place]
        times = part.times
        if (
            not owner
            and place in touched
            and not (part.calls or times["python_s"] or times["device_s"])
        ):
            # Prepared for a line that modules have all of.
            continue
        row = rows.setdefault((code.co_filename, line, owner), _Line())
        if id(code) in truncated:
            # No count of a line is complete in a function that is no longer traced.
            row.calls, row.reason = None, _truncation(code)
        elif row.calls is not None:
            row.calls += part.calls or 0
        times["python_s"] -= times["operator_s"]
        row.add_times(part)
    return rows


def _truncation(code: CodeType) -> str:
    return (
        f"{os.path.basename(code.co_filename)}:{code.co_firstlineno} ({code.co_name}) ran more "
        f"than {BUDGET} lines in the slice: the rest of its time stands on its first line, and "
        f"after {BUDGET} more calls on the line that calls it"
    )


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
