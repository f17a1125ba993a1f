"""From the memory tracer's readings to figures by source line.

A stretch lies between two readings and belongs to one run of one line; what memory grew by over
it is the line's own. Stretches are counted with the step in which they began.
"""

from __future__ import annotations

import linecache
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from profstack.memory.heapcount import CUDA, MALLOC, UNKNOWN
from profstack.memory.readings import NOBODY, Readings
from profstack.memory.sampler import MemorySampler
from profstack.memory.tracer import MemoryTracer
from profstack.torchtrace.events import Bools, Ints

_NEVER = np.iinfo(np.int64).min


@dataclass
class LineFigures:
    """What is known of one line; bytes, None where they could not be read."""

    usage_bytes: int | None = None
    increment_bytes: int | None = None
    largest_bytes: int | None = None
    malloc_bytes: int | None = None
    cuda_bytes: int | None = None
    occurrences: int = 0


@dataclass(frozen=True)
class Source:
    """Bytes by one source at the beginning and the end of each stretch, and whether both are known.

    `grown` is 0 where they are not.
    """

    before: Ints
    after: Ints
    grown: Ints
    known: Bools


class Stretches:
    """The stretches of a slice that are counted; all columns have one entry for each of them."""

    def __init__(
        self, tracer: MemoryTracer, edges: Sequence[float], left_out: Collection[int]
    ) -> None:
        readings = tracer.readings
        count = readings.count
        times = _whole(readings.times, count)
        self._times, self._chosen = times, _counted(times, edges, left_out)
        self._chosen &= _whole(readings.places, count)[:-1] != NOBODY
        self.place = _whole(readings.places, count)[:-1][self._chosen]
        run = _whole(readings.runs, count)[:-1][self._chosen]
        # A run keeps its number; whether it began in the slice is told by its first event.
        self.run = np.where(run < 0, ~run, run)
        self.begins = run == np.flatnonzero(self._chosen)
        self.resident = self._source(readings.resident, count)
        self.heap = self._source(readings.heap, count)
        self.device = self._source(readings.device, count)

    def _source(self, column: Any, count: int) -> Source:
        values = _whole(column, count)
        before, after = values[:-1][self._chosen], values[1:][self._chosen]
        known = (before != UNKNOWN) & (after != UNKNOWN)
        return Source(before, after, np.where(known, after - before, 0), known)

    def at(self, times: Ints) -> Ints:
        """The stretch that each time lies in; -1 where it is in none that counts."""
        number = np.full(len(self._times) + 1, -1, np.int64)
        number[1:-1][self._chosen] = np.arange(len(self.place))
        found: Ints = number[np.searchsorted(self._times, times, side="right")]
        return found


def _whole(column: Any, count: int) -> Ints:
    return np.frombuffer(column, np.int64, count)


def _counted(times: Ints, stamps: Sequence[float], left_out: Collection[int]) -> Bools:
    """Stretches that began in a step that counts; one that the first step began within does too."""
    edges = np.array([round(stamp * 1e9) for stamp in stamps], np.int64)
    step = np.searchsorted(edges, times[:-1], side="right") - 1
    step[(step < 0) & (times[1:] > edges[0])] = 0
    counts = np.ones(len(edges) + 1, np.bool_)
    # The last two: after the last step, and (as -1) before the first.
    counts[[len(edges) - 1, -1, *left_out]] = False
    chosen: Bools = counts[step]
    return chosen


def line_figures(
    tracer: MemoryTracer, stamps: Sequence[float], left_out: Collection[int] = ()
) -> dict[tuple[str, int], LineFigures]:
    """Figures by file and line of all lines that ran in the steps between `stamps`."""
    if tracer.readings.count < 2:
        return {}
    stretches = Stretches(tracer, stamps, left_out)
    count = len(tracer.lines)
    places = stretches.place
    seen = np.bincount(places, minlength=count) > 0
    sums = {
        "increment_bytes": _sums(places, stretches.resident, count),
        "malloc_bytes": _sums(places, stretches.heap, count),
        "cuda_bytes": _sums(places, stretches.device, count),
    }
    occurrences = np.bincount(places[stretches.begins], minlength=count)
    sampler = tracer.readings.sampler
    highest = {
        "usage_bytes": _usage(stretches, count),
        "largest_bytes": np.maximum(
            _largest(stretches, stretches.resident, sampler, sampler.resident, count),
            _largest(stretches, stretches.heap, sampler, sampler.heap, count),
        ),
    }
    found: dict[tuple[str, int], LineFigures] = {}
    for place in np.flatnonzero(seen).tolist():
        code, line = tracer.lines[place]
        new = (code.co_filename, line) not in found
        figures = found.setdefault((code.co_filename, line), LineFigures())
        figures.occurrences += int(occurrences[place])
        for name, (total, known) in sums.items():
            value = int(total[place]) if known[place] else None
            setattr(figures, name, value if new else _plus(getattr(figures, name), value))
        for name, most in highest.items():
            value = int(most[place]) if most[place] != _NEVER else None
            setattr(figures, name, _most(getattr(figures, name), value))
    return found


def _plus(first: int | None, second: int | None) -> int | None:
    """The sum for a line of several code objects (a comprehension), if both are known."""
    return None if first is None or second is None else first + second


def _most(first: int | None, second: int | None) -> int | None:
    return max((value for value in (first, second) if value is not None), default=None)


def _sums(places: Ints, source: Source, count: int) -> tuple[Ints, Bools]:
    """The sum by place, and whether every stretch of the place is known."""
    total = np.zeros(count, np.int64)
    np.add.at(total, places, source.grown)
    return total, np.bincount(places[~source.known], minlength=count) == 0


def _usage(stretches: Stretches, count: int) -> Ints:
    """The largest resident set at the end of a run, by place."""
    highest = np.full(count, _NEVER)
    last = np.zeros(len(stretches.run), np.bool_)
    # Of equal values the first is given: the last stretch of each run, seen from behind.
    _, from_behind = np.unique(stretches.run[::-1], return_index=True)
    last[len(last) - 1 - from_behind] = True
    last &= stretches.resident.known
    np.maximum.at(highest, stretches.place[last], stretches.resident.after[last])
    return highest


def _largest(
    stretches: Stretches, source: Source, sampler: MemorySampler, column: Any, count: int
) -> Ints:
    """The largest growth since the beginning of a run at any time within it, by place.

    It is 0 where a run only gave back.
    """
    highest = np.full(count, _NEVER)
    since_run = _since_run(stretches.run, source.grown)
    known = source.known
    highest[stretches.place[known]] = 0
    np.maximum.at(highest, stretches.place[known], since_run[known])
    samples = _whole(column, sampler.count)
    at = stretches.at(_whole(sampler.times, sampler.count))
    within = (at >= 0) & (samples != UNKNOWN)
    at, samples = at[within], samples[within]
    at, samples = at[known[at]], samples[known[at]]
    sampled = samples - source.before[at] + (since_run - source.grown)[at]
    np.maximum.at(highest, stretches.place[at], sampled)
    return highest


def _since_run(run: Ints, grown: Ints) -> Ints:
    """What memory has grown by since the beginning of the run, at the end of each stretch."""
    order = np.argsort(run, kind="stable")
    after = np.cumsum(grown[order])
    first = np.flatnonzero(np.diff(run[order], prepend=-1))
    before_run = after[first] - grown[order][first]
    found = np.empty(len(run), np.int64)
    found[order] = after - np.repeat(before_run, np.diff(np.append(first, len(run))))
    return found


def line_records(
    figures: dict[tuple[str, int], LineFigures], index: int, unread: str | None
) -> list[dict[str, Any]]:
    """Rows of `memory_lines`; `unread` is why malloc's bytes are not known where they are not."""
    records = []
    for (file, line), found in figures.items():
        allocated, source = found.malloc_bytes, MALLOC
        if found.cuda_bytes:
            allocated, source = found.cuda_bytes, CUDA
        elif allocated is None:
            source = unread or "malloc's bytes could not be read at all of its runs"
        records.append(
            {
                "slice": index,
                "file": file,
                "line": line,
                "source": linecache.getline(file, line).rstrip("\n") or None,
                "usage_bytes": found.usage_bytes,
                "increment_bytes": found.increment_bytes,
                "largest_bytes": found.largest_bytes,
                "allocated_bytes": allocated,
                "second_source": source,
                "occurrences": found.occurrences,
            }
        )
    return records


def timeline(readings: Readings) -> tuple[Ints, Ints]:
    """All that was read of the resident set: times (`time.perf_counter_ns`) and bytes."""
    count, sampler = readings.count, readings.sampler
    times = np.concatenate([_whole(readings.times, count), _whole(sampler.times, sampler.count)])
    values = np.concatenate(
        [_whole(readings.resident, count), _whole(sampler.resident, sampler.count)]
    )
    order = np.argsort(times, kind="stable")
    order = order[values[order] != UNKNOWN]
    return times[order], values[order]


def truncations(tracer: MemoryTracer) -> list[str]:
    """What a reader should know of each function that was let go at some time."""
    told = []
    for traced in tracer.let_go.values():
        code = traced.code
        rest = "on no line" if code.co_name == "<module>" else "on the line that calls it"
        file = code.co_filename.replace("\\", "/").rpartition("/")[2]
        told.append(
            f"{file}:{code.co_firstlineno} ({code.co_name}) runs so many lines that it was traced "
            f"for {traced.spent} events alone: what it grew by otherwise stands {rest}"
        )
    return told
