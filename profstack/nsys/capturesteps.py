"""The steps of a capture: the ranges that profstack puts round each, all on one thread.

Where a capture has them, only what lies inside them counts: start-up, warm-up and what comes after
the last one are no part of a figure per step. A capture of another program has none, and counts
whole.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np

from profstack.devicegaps import Intervals
from profstack.nsys.exported import Export
from profstack.nvtxranges import CUT, DOMAIN, STEP
from profstack.torchtrace.columns import Bools, Ints

PUSH_POP = "push_pop"
_NUMBER = re.compile(r"step (\d+)$")


@dataclass(frozen=True)
class Steps:
    """When each step began and ended, in order; nanoseconds on the capture's clock."""

    # The thread that makes them; None where there are none.
    thread: int | None
    numbers: list[int | None]
    times: Intervals

    def __len__(self) -> int:
        return len(self.numbers)

    def at(self, moments: Ints) -> Ints:
        """Position of the step in which each moment lies, -1 where in none."""
        found = np.searchsorted(self.times.start, moments, side="right") - 1
        if not len(self):
            return found
        return np.where((found >= 0) & (moments < self.times.end[found]), found, -1)

    def count(self, moments: Ints) -> Bools:
        """Whether each moment counts: it lies in a step, or the capture has none."""
        return self.at(moments) >= 0 if len(self) else np.ones(len(moments), np.bool_)

    def counted(self, start: Ints, end: Ints) -> Ints:
        """How much of the time between two moments counts."""
        return self.times.inside(start, end) if len(self) else end - start

    def runs(self) -> list[tuple[int, int]]:
        """First and last position of each run of steps that follow each other by their numbers."""
        runs: list[tuple[int, int]] = []
        for position, number in enumerate(self.numbers):
            before = self.numbers[position - 1] if position else None
            if runs and number is not None and before is not None and number == before + 1:
                runs[-1] = (runs[-1][0], position)
            else:
                runs.append((position, position))
        return runs


def steps_of(export: Export) -> Steps:
    """The steps that were captured from begin to end."""
    ranges = export.ranges
    ours = (ranges["domain"] == DOMAIN) & (ranges["category"] == STEP)
    some = ranges[ours & (ranges["style"] == PUSH_POP)]
    none = Intervals(np.zeros(0, np.int64), np.zeros(0, np.int64))
    if not len(some):
        return Steps(None, [], none)
    thread = int(some["thread"].value_counts().index[0])
    some = some[some["thread"] == thread].sort_values("start", kind="stable")
    start, end = (some[name].to_numpy(np.int64) for name in ("start", "end"))
    # One that begins before the last has ended would count its time twice.
    apart = np.ones(len(start), np.bool_)
    apart[1:] = start[1:] >= np.maximum.accumulate(end)[:-1]
    # One that was cut off, by the end of its slice or of the script, was never seen whole.
    cut = ranges[(ranges["domain"] == DOMAIN) & (ranges["category"] == CUT)]
    moments = cut.loc[cut["thread"] == thread, "start"].to_numpy(np.int64)
    cut_off = np.searchsorted(start, moments, side="right") - 1
    apart[cut_off[(cut_off >= 0) & (moments < end[cut_off])]] = False
    some = some[apart]
    given = zip(some["payload"], some["text"], strict=True)
    numbers = [_number(payload, text) for payload, text in given]
    return Steps(thread, numbers, Intervals(start[apart], end[apart]))


def _number(payload: object, text: object) -> int | None:
    """The number of a step: what the range carries, else what its text says."""
    if isinstance(payload, (int, np.integer)):
        return int(payload)
    said = _NUMBER.match(str(text))
    return int(said[1]) if said else None
