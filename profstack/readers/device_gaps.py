"""Gaps of a device: the times in which no kernel ran on it, each with its cause.

The rules are the same for the framework's profiler and for Nsight Systems: both give the times of
kernels and copies, when the host began to launch each kernel, when the host's waits for the device
ended, and where steps begin. All times are integer nanoseconds on one clock.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from profstack.readers.torchtrace.columns import Ints
from profstack.storage.schema.column import Record

S = 1e-9

HOST_LATE = "host late"
SYNCHRONISATION = "synchronisation"
COPY = "copy"
DATA_WAIT = "data wait"
START = "start of step"
QUEUED = "queued"
UNKNOWN_CAUSE = "unknown"

# The launch time of a kernel where it is not known: later than any moment.
UNKNOWN = int(np.iinfo(np.int64).max)


@dataclass(frozen=True)
class Intervals:
    """Disjoint intervals, in order."""

    start: Ints
    end: Ints

    @classmethod
    def united(cls, start: Ints, end: Ints) -> Intervals:
        """Return the union of intervals that may overlap, in any order."""
        order = np.argsort(start, kind="stable")
        order = order[end[order] > start[order]]
        start, end = start[order], end[order]
        reach = np.maximum.accumulate(end)
        first = np.ones(len(start), np.bool_)
        first[1:] = start[1:] > reach[:-1]
        return cls(start[first], reach[np.append(first, True)[1:]])

    @cached_property
    def _lengths(self) -> Ints:
        return np.concatenate([np.zeros(1, np.int64), np.cumsum(self.end - self.start)])

    def before(self, moments: Ints) -> Ints:
        """Return the time in the intervals before each moment."""
        begun = np.searchsorted(self.start, moments, side="right")
        to_come = np.maximum(at(self.end, begun - 1) - moments, 0)
        return self._lengths[begun] - np.where(begun > 0, to_come, 0)

    def inside(self, begin: Ints, end: Ints) -> Ints:
        """Return the time in the intervals between two moments, for each pair."""
        return self.before(end) - self.before(begin)

    @property
    def total(self) -> int:
        """All time in the intervals."""
        return int(self._lengths[-1])

    def common(self, other: Intervals) -> Intervals:
        """Return the times in both; one may touch the next."""
        edges = np.unique(np.concatenate([self.start, self.end, other.start, other.end]))
        begin, end = edges[:-1], edges[1:]
        both = (self.inside(begin, end) > 0) & (other.inside(begin, end) > 0)
        return Intervals(begin[both], end[both])

    def cut(self, begin: int, end: int) -> Intervals:
        """Return the intervals cut to two moments."""
        first = np.searchsorted(self.end, begin, side="right")
        last = np.searchsorted(self.start, end, side="left")
        return Intervals(
            np.maximum(self.start[first:last], begin), np.minimum(self.end[first:last], end)
        )


@dataclass(frozen=True)
class Kernels:
    """The kernels of one device in the order of their begin, and when the host launched them.

    Where fills make a device busy they are among them.
    """

    start: Ints
    end: Ints
    # When the host began to launch it; UNKNOWN where that was not seen.
    launched: Ints


@dataclass(frozen=True)
class Host:
    """Work of the host that explains a device's idle time."""

    # Ends of waits for a device, in order.
    synchronised: Ints
    # From the begin of a step to its first work.
    waits: Intervals
    # Begins of steps, in order, and perhaps the end of the last one.
    edges: Ints


class Gaps(NamedTuple):
    """Times in which a device was idle, in order; kernels by position, -1 for none."""

    begin: Ints
    end: Ints
    cause: NDArray[np.str_]
    # The last kernel that had ended when the device fell idle.
    after: Ints
    # The kernel that ended the gap.
    before: Ints


def gaps_between(
    kernels: Kernels,
    busy: Intervals,
    copies: Intervals,
    host: Host,
    runs: Sequence[tuple[int, int]],
) -> Gaps:
    """Return the times in `runs`, disjoint and in order, in which the device was not `busy`."""
    by_end = np.argsort(kernels.end, kind="stable")
    parts = []
    for run in runs or [(0, 0)]:
        ran = busy.cut(*run)
        begin = np.concatenate([np.array(run[:1], np.int64), ran.end])
        end = np.concatenate([ran.start, np.array(run[1:], np.int64)])
        idle = end > begin
        begin, end = begin[idle], end[idle]
        next_ = np.searchsorted(kernels.start, end, side="left")
        before = np.where(at(kernels.start, next_) == end, next_, -1)
        ended = np.searchsorted(kernels.end[by_end], begin, side="right") - 1
        after = at(by_end, ended)
        # Of what runs after the gap, or after the run; no more work was not launched in time.
        launched = np.minimum(at(kernels.launched, next_, UNKNOWN), end)
        not_seen = at(kernels.launched, next_, 0) == UNKNOWN
        copied = copies.inside(begin, end)
        waited = host.waits.inside(begin, end)
        synchronised = at(host.synchronised, np.searchsorted(host.synchronised, begin), UNKNOWN)
        edge = at(host.edges, np.searchsorted(host.edges, begin), UNKNOWN)
        # A kernel that was launched before the device fell idle did not wait for the host.
        rules = [
            ((launched < begin) & (copied > 0), COPY),
            (launched < begin, QUEUED),
            (2 * copied >= end - begin, COPY),
            (not_seen, UNKNOWN_CAUSE),
            (2 * waited >= end - begin, DATA_WAIT),
            (synchronised <= launched, SYNCHRONISATION),
            ((edge <= end) & (edge < run[1]), START),
        ]
        cause = np.select([rule for rule, _ in rules], [cause for _, cause in rules], HOST_LATE)
        parts.append((begin, end, cause, after, before))
    return Gaps(*map(np.concatenate, zip(*parts, strict=True)))


def by_cause(gaps: Gaps, length: Ints | None = None) -> Iterator[tuple[Record, int, int]]:
    """Yield a row for each cause, and the kernels after and before its longest gap.

    `length` is the part of each gap that counts, else all of it.
    """
    length = gaps.end - gaps.begin if length is None else length
    kept = np.flatnonzero(length > 0)
    causes, first = np.unique(gaps.cause[kept], return_index=True)
    for cause in causes[np.argsort(first)]:
        some = kept[gaps.cause[kept] == cause]
        longest = some[np.argmax(length[some])]
        row: Record = {
            "cause": str(cause),
            "count": len(some),
            "total_s": int(length[some].sum()) * S,
            "longest_s": int(length[longest]) * S,
        }
        yield row, int(gaps.after[longest]), int(gaps.before[longest])


def at(values: NDArray[Any], positions: Ints, default: Any = -1) -> NDArray[Any]:
    """Return the values at positions; `default` at -1 and right behind the last."""
    return np.append(values, default)[positions]
