"""Rows of call stacks: where calls of the runtime and of the system came from, and CPU samples."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from profstack.nsys.capture import Capture
from profstack.nsys.grouping import Coded, Groups
from profstack.nsys.summaries import S
from profstack.torchtrace.columns import Ints

# Stacks of one source, and functions of CPU samples.
MOST_STACKS = 200
MOST_FUNCTIONS = 2_000
# Functions of one stack: one of a recursion without end says no more after these.
MOST_DEEP = 100
CUDA, SYSTEM, CPU = "cuda", "os", "cpu"
NO_STACK = "no stack recorded"

Function = tuple[str | None, str | None]


class _Stacks:
    """The stacks of one source: which rows of it are alike, and what stands in them."""

    def __init__(self, callchains: pd.DataFrame, source: str) -> None:
        some = callchains[callchains["source"] == source]
        some = some.sort_values(["id", "depth"], kind="stable")
        symbols, modules = Coded.of(some["symbol"]), Coded.of(some["module"])
        frames = Groups.by(symbols, modules)
        self.frame = frames.number
        self.functions: list[Function] = [
            (symbols.value(row), modules.value(row)) for row in frames.first
        ]
        self.ids, self.first = np.unique(some["id"].to_numpy(np.int64), return_index=True)
        self.end = np.append(self.first[1:], len(some))

    def positions(self, ids: Ints) -> Ints:
        """Where the stacks of these numbers stand, -1 for those that the file does not have."""
        if not len(self.ids):
            return np.full(len(ids), -1, np.int64)
        found = np.minimum(np.searchsorted(self.ids, ids), len(self.ids) - 1)
        return np.where(self.ids[found] == ids, found, -1)

    def alike(self) -> Ints:
        """A number for each stack, the same for stacks of the same functions."""
        depth = np.arange(len(self.frame)) - np.repeat(self.first, self.end - self.first)
        # 64 mixed bits of function and place, added up: of a million stacks that differ, two
        # have the same sum in one capture of ten million.
        mixed = _mixed(self.frame.astype(np.uint64) + (depth.astype(np.uint64) << np.uint64(32)))
        running = np.concatenate([np.zeros(1, np.uint64), np.cumsum(mixed, dtype=np.uint64)])
        sums = running[self.end] - running[self.first]
        return Coded.of(sums).codes

    def text(self, position: int) -> str:
        """A stack as JSON: function and library, innermost first."""
        first = int(self.first[position])
        last = min(int(self.end[position]), first + MOST_DEEP)
        return json.dumps([self.functions[frame] for frame in self.frame[first:last]])


def backtrace_rows(capture: Capture) -> list[dict[str, Any]]:
    """Rows of `nsys_backtraces`: of each source the stacks with most time, or most samples."""
    export, steps = capture.export, capture.steps
    rows = []
    for source, frame in ((CUDA, export.calls), (SYSTEM, export.os_calls)):
        start = frame["start"].to_numpy(np.int64)
        counts = steps.count(start)
        some = frame[counts]
        length = steps.counted(start[counts], some["end"].to_numpy(np.int64))
        rows += _of_source(export.callchains, source, some, length)
    samples = export.samples[steps.count(export.samples["t"].to_numpy(np.int64))]
    return rows + _of_source(export.callchains, CPU, samples, None)


def sample_rows(capture: Capture) -> list[dict[str, Any]]:
    """Rows of `nsys_samples`: functions by the CPU samples in which they were on the stack."""
    export = capture.export
    samples = export.samples[capture.steps.count(export.samples["t"].to_numpy(np.int64))]
    stacks = _Stacks(export.callchains, CPU)
    position = stacks.positions(samples["callchain"].to_numpy(np.int64))
    weight = np.bincount(position[position >= 0], minlength=len(stacks.ids))
    own = np.zeros(len(stacks.functions), np.int64)
    np.add.at(own, stacks.frame[stacks.first], weight)
    # A function that is on a stack twice was on it in one sample.
    on = np.repeat(np.arange(len(stacks.ids)), stacks.end - stacks.first)
    once = ~pd.DataFrame({"stack": on, "frame": stacks.frame}).duplicated().to_numpy(np.bool_)
    total = np.zeros(len(stacks.functions), np.int64)
    np.add.at(total, stacks.frame[once], weight[on[once]])
    order = np.lexsort((-total, -own))
    rows = [
        _row(stacks.functions[each], int(own[each]), int(total[each]))
        for each in order[:MOST_FUNCTIONS].tolist()
        if total[each]
    ]
    without = int((position < 0).sum())
    return rows + ([_row((NO_STACK, None), without, without)] if without else [])


def _row(function: Function, own: int, total: int) -> dict[str, Any]:
    symbol, library = function
    return {"symbol": symbol, "library": library, "self_samples": own, "total_samples": total}


def _of_source(
    callchains: pd.DataFrame, source: str, events: pd.DataFrame, length: Ints | None
) -> list[dict[str, Any]]:
    stacks = _Stacks(callchains, source)
    position = stacks.positions(events["callchain"].to_numpy(np.int64))
    some = np.flatnonzero(position >= 0)
    if not len(some):
        return []
    alike = stacks.alike()
    columns = [Coded(alike[position[some]], [])]
    names = None if length is None else Coded.of(events["name"].iloc[some])
    groups = Groups.by(*columns, *([names] if names is not None else []))
    spent = groups.sums(length[some]) if length is not None else None
    order = np.argsort(-(groups.calls if spent is None else spent), kind="stable")
    return [
        {
            "source": source,
            "name": names.value(groups.first[group]) if names is not None else None,
            "stack": stacks.text(int(position[some[groups.first[group]]])),
            "calls": int(groups.calls[group]),
            "host_s": int(spent[group]) * S if spent is not None else None,
        }
        for group in order[:MOST_STACKS].tolist()
    ]


def _mixed(values: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Bits spread over the whole number, so that sums of different values differ."""
    for multiplier in (0xBF58476D1CE4E5B9, 0x94D049BB133111EB):
        values = (values + np.uint64(0x9E3779B97F4A7C15)) * np.uint64(multiplier)
        values ^= values >> np.uint64(29)
    return values
