"""How events nest: their order by thread and time, which one each lies in, and how deep.

On one thread events either nest or lie apart, so that sorting and searching tell all of it.
"""

from __future__ import annotations

from itertools import pairwise

import numpy as np

from profstack.torchtrace.columns import Ints, SmallInts


def in_order(start: Ints, duration: Ints, thread: Ints, kept: Ints | None) -> Ints | None:
    """The events `kept` by thread, start and descending end; as given where all are equal.

    None says that all are, and in this order already, as the profiler mostly gives them: for what
    is nearly in order a stable sort of one column costs little.
    """
    order: Ints = (
        np.argsort(start, kind="stable")
        if kept is None
        else kept[np.argsort(start[kept], kind="stable")]
    )
    sorted_ = start[order]
    same = sorted_[1:] == sorted_[:-1]
    if same.any():
        tied = np.flatnonzero(np.append(same, False) | np.insert(same, 0, False))
        among = order[tied]
        order[tied] = among[np.lexsort((-duration[among], start[among]))]
    if len(thread) and (thread != thread[0]).any():
        _, number = np.unique(thread, return_inverse=True)
        order = order[_by_small(number[order])]
    return None if kept is None and (order == np.arange(len(order))).all() else order


def _by_small(numbers: Ints | SmallInts) -> Ints:
    """A stable sort of numbers from 0, which costs little where they fit 16 bits."""
    small = numbers.max(initial=0) < 2**15
    order: Ints = np.argsort(numbers.astype(np.int16) if small else numbers, kind="stable")
    return order


def levels(depth: Ints | SmallInts) -> list[Ints]:
    """Positions of the events of every depth, the outermost first."""
    counts = np.bincount(depth) if len(depth) else np.zeros(1, np.int64)
    return list(np.split(_by_small(depth), np.cumsum(counts)[:-1]))


def nest_threads(start: Ints, end: Ints, thread: Ints) -> tuple[Ints, SmallInts]:
    """Parents and depths of events sorted by thread, start and descending end."""
    parent = np.full(len(start), -1, np.int64)
    depth = np.zeros(len(start), np.int32)
    if not len(start):
        return parent, depth
    edges = np.flatnonzero(np.diff(thread)) + 1
    for first, last in zip([0, *edges], [*edges, len(start)], strict=True):
        parents, depths = _nest(start[first:last], end[first:last])
        parent[first:last] = np.where(parents >= 0, parents + first, -1)
        depth[first:last] = depths
    return parent, depth


def _nest(start: Ints, end: Ints) -> tuple[Ints, Ints]:
    """Parents and depths on one thread, where events either nest or lie apart.

    The depth of an event is the number of events begun before it less those ended by then; its
    parent is the last event one level up that began before it.
    """
    count = len(start)
    # Doubled, so that an instant can end half a nanosecond after it began.
    begin = 2 * start
    finish = np.where(end > start, 2 * end, 2 * start + 1)
    depth = np.arange(count) - np.searchsorted(np.sort(finish), begin, side="right")
    depth = np.maximum(depth, 0)
    parent = np.full(count, -1, np.int64)
    for above, here in pairwise(levels(depth)):
        if not len(above) or not len(here):
            continue
        position = np.searchsorted(above, here) - 1
        found = above[np.maximum(position, 0)]
        parent[here] = np.where((position >= 0) & (finish[found] >= begin[here]), found, -1)
    return parent, depth
