"""Who belongs where: calls of the host to ranges, and what devices did to the call that began it.

A kernel belongs to the call with the same correlation number, and with that call to the ranges
that were open when the call began, whichever stream it ran on and however long after. A call on a
thread without a range of its own at that moment (autograd's thread, replicas) belongs to what the
steps' thread was in; so does one in nothing but a mark, a range that tells nothing of whose work
it is. What no call in the file began belongs to no range.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import pandas as pd

from profstack.nsys.capturesteps import Steps
from profstack.nsys.rangetree import RangeTree
from profstack.torchtrace.columns import Bools, Ints

KERNEL, COPY, SET, GRAPH = "kernel", "copy", "set", "graph"


@dataclass(frozen=True)
class Calls:
    """Calls that count, in the order of their begin."""

    # Where each stands in its frame.
    row: Ints
    start: Ints
    length: Ints
    # The thread whose ranges it belongs to, and whether that is another one than its own.
    thread: Ints
    elsewhere: Bools
    # Position of the innermost range, or -1.
    innermost: Ints
    # The thread that made it, and whether a mark is open there besides.
    made_on: Ints
    marked: Bools


@dataclass(frozen=True)
class Work:
    """What ran on devices and counts, in the order of its begin."""

    row: Ints
    start: Ints
    length: Ints
    # Position of the call that launched it among `Calls`, or -1.
    call: Ints
    # Copies and fills; all else is kernels and whole graphs.
    moves: Bools
    # Position of the innermost range around the call, or -1.
    innermost: Ints


def calls_in(frame: pd.DataFrame, tree: RangeTree, steps: Steps, *, lent: bool = True) -> Calls:
    """The calls that begin in a step, or all without steps, with the ranges they belong to.

    `lent` calls of a thread without a range belong to the steps' thread; the system's calls are
    not: a worker that sleeps does so for no module.
    """
    start = frame["start"].to_numpy(np.int64)
    row = np.flatnonzero(steps.count(start))
    row = row[np.argsort(start[row], kind="stable")]
    start = start[row]
    # A wait may outlive the steps by minutes: what lies in them counts.
    length = steps.counted(start, frame["end"].to_numpy(np.int64)[row])
    made_on = frame["thread"].to_numpy(np.int64)[row]
    innermost = tree.innermost(made_on, start)
    thread, elsewhere, marked = made_on, np.zeros(len(row), np.bool_), np.zeros(len(row), np.bool_)
    if lent and steps.thread is not None:
        marked = (innermost >= 0) & (made_on != steps.thread)
        marked[marked] = tree.is_mark[innermost[marked]]
        elsewhere = ((innermost < 0) | marked) & (made_on != steps.thread)
        thread = np.where(elsewhere, steps.thread, made_on)
        lent_to = tree.innermost(thread[elsewhere], start[elsewhere])
        # Where the steps' thread is in nothing, the mark is better than none.
        innermost[elsewhere] = np.where(lent_to >= 0, lent_to, innermost[elsewhere])
    return Calls(row, start, length, thread, elsewhere, innermost, made_on, marked)


def outermost(calls: Calls, thread: Ints) -> Calls:
    """Without the calls that another call on the same `thread` made: their time is in that."""
    order = np.lexsort((-calls.length, calls.start, thread))
    end = (calls.start + calls.length)[order]
    first = np.ones(len(order), np.bool_)
    first[1:] = thread[order][1:] != thread[order][:-1]
    inner = np.zeros(len(order), np.bool_)
    for begin, until in zip(
        np.flatnonzero(first), [*np.flatnonzero(first)[1:], len(order)], strict=False
    ):
        reach = np.maximum.accumulate(end[begin:until])
        inner[begin + 1 : until] = end[begin + 1 : until] <= reach[:-1]
    kept = np.sort(order[~inner])
    return replace(
        calls, **{name: getattr(calls, name)[kept] for name in Calls.__dataclass_fields__}
    )


def work_in(frame: pd.DataFrame, all_calls: pd.DataFrame, calls: Calls, steps: Steps) -> Work:
    """The devices' work that a counted call began, and what ran in the steps without any call."""
    start = frame["start"].to_numpy(np.int64)
    launcher = _launchers(frame, all_calls)
    among = np.full(len(all_calls), -1, np.int64)
    among[calls.row] = np.arange(len(calls.row))
    call = np.where(launcher >= 0, _at(among, launcher), -1)
    row = np.flatnonzero((call >= 0) | ((launcher < 0) & steps.count(start)))
    row = row[np.argsort(start[row], kind="stable")]
    call = call[row]
    return Work(
        row,
        start[row],
        frame["end"].to_numpy(np.int64)[row] - start[row],
        call,
        frame["kind"].isin((COPY, SET)).to_numpy(np.bool_)[row],
        np.where(call >= 0, _at(calls.innermost, call), -1),
    )


def launched(frame: pd.DataFrame, all_calls: pd.DataFrame, unknown: int) -> Ints:
    """When the host began to launch each row of work; `unknown` where the file does not tell."""
    launcher = _launchers(frame, all_calls)
    return np.where(launcher >= 0, _at(all_calls["start"].to_numpy(np.int64), launcher), unknown)


def _launchers(frame: pd.DataFrame, calls: pd.DataFrame) -> Ints:
    """The row of the call with the same correlation number, -1 where there is none.

    Of several the one that began first: a call of the runtime that makes one of the driver.
    """
    numbers = calls["correlation"].to_numpy(np.int64)
    order = np.lexsort((calls["start"].to_numpy(np.int64), numbers))
    order = order[numbers[order] > 0]
    if not len(order):
        return np.full(len(frame), -1, np.int64)
    wanted = frame["correlation"].to_numpy(np.int64)
    found = np.minimum(np.searchsorted(numbers[order], wanted), len(order) - 1)
    return np.where(numbers[order[found]] == wanted, order[found], -1)


def _at(values: Ints, positions: Ints) -> Ints:
    """Values at positions; where a position is below 0 the value is any."""
    return values[positions] if len(values) else np.full(len(positions), -1, np.int64)


@dataclass(frozen=True)
class NodeSums:
    """Of each node of a tree: what began while one of its ranges was open, ranges within too."""

    sums: dict[str, Ints]

    @classmethod
    def of_calls(
        cls, tree: RangeTree, calls: Calls, call: Ints, values: dict[str, Ints]
    ) -> NodeSums:
        """Add up `values` of things that calls, by position, began: each where its call belongs.

        That of a mark is in the mark's row as well, on the thread that made it.
        """
        sums = cls.of(tree, calls.thread[call], calls.start[call], values).sums
        marked = calls.marked[call]
        if marked.any():
            some = call[marked]
            own = {name: value[marked] for name, value in values.items()}
            more = cls.of(tree, calls.made_on[some], calls.start[some], own).sums
            sums = {name: total + more[name] for name, total in sums.items()}
        return cls(sums)

    @classmethod
    def of(cls, tree: RangeTree, thread: Ints, moments: Ints, values: dict[str, Ints]) -> NodeSums:
        """Add up `values` of things that began at `moments` on threads, each once per node."""
        begin = _first_uncovered(tree)
        order = np.lexsort((moments, thread))
        total = {name: np.zeros(len(tree.nodes), np.int64) for name in values}
        running = {
            name: np.concatenate([np.zeros(1, np.int64), np.cumsum(value[order])])
            for name, value in values.items()
        }
        ends = np.searchsorted(thread[order], np.unique(thread), side="right")
        low = 0
        for number, high in zip(np.unique(thread).tolist(), ends.tolist(), strict=True):
            some = np.flatnonzero((tree.thread == number) & (begin < tree.end))
            times = moments[order[low:high]]
            first = low + np.searchsorted(times, begin[some], side="left")
            last = low + np.searchsorted(times, tree.end[some], side="left")
            for name, sums in running.items():
                np.add.at(total[name], tree.node[some], sums[last] - sums[first])
            low = high
        return cls(total)


def _first_uncovered(tree: RangeTree) -> Ints:
    """From when on each range adds to its node: not while an earlier one of it is open still."""
    begin: Ints = tree.start.copy()
    reach: dict[tuple[int, int], int] = {}
    for position in np.flatnonzero(~tree.nests)[np.argsort(tree.start[~tree.nests])].tolist():
        key = int(tree.node[position]), int(tree.thread[position])
        before = reach.get(key, int(begin[position]))
        begin[position] = max(begin[position], before)
        reach[key] = max(before, int(tree.end[position]))
    return begin
