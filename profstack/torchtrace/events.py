"""Profiler events as columns: nesting, self time and owners, computed on arrays.

`torch.profiler` builds one Python object per event and walks a tree of them; here the accessors
of the raw events are read once into arrays, and everything after that is sorting and searching.
Times are integer nanoseconds. Nothing in here imports torch: the events are only called.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import compress, pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]

HOST_KINDS = ("cpu_op", "user_annotation")
DEVICE_KINDS = ("kernel", "gpu_memcpy", "gpu_memset", "privateuse1_runtime_kernel")
MEMORY_KIND = "cpu_instant_event"
EVALUATE = "autograd::engine::evaluate_function: "
ACCUMULATE = "torch::autograd::AccumulateGrad"
# A range at the start of a slice whose profile sees every thread: it says which one is observed.
SLICE_RANGE = "profstack::slice"
# Bookkeeping of the profiler's own, which its tables leave out as well.
HIDDEN_NAMES = frozenset(
    {
        "profiler::_record_function_enter",
        "profiler::_record_function_enter_new",
        "profiler::_record_function_exit",
        "aten::is_leaf",
        "aten::output_nr",
        "aten::_version",
    }
)


class _Numbers(dict[str, int]):
    """Numbers strings in the order in which they are first asked for."""

    def __missing__(self, text: str) -> int:
        number = self[text] = len(self)
        return number


class Interned:
    """Strings by number: `ids` of the events, `values` of the numbers."""

    def __init__(self, strings: Iterable[str], count: int) -> None:
        numbers = _Numbers()
        # The strings pass by one at a time: hundreds of thousands of them are never held.
        self.ids: Ints = np.fromiter(map(numbers.__getitem__, strings), np.int64, count)
        self.values = list(numbers)

    def where(self, test: Callable[[str], bool]) -> Bools:
        """Which events have a string that passes `test`, asked once per string."""
        passed = np.fromiter((test(text) for text in self.values), np.bool_, len(self.values))
        return passed[self.ids] if len(self.values) else np.zeros(0, np.bool_)

    def map(self, value: Callable[[str], int]) -> Ints:
        """A number for every event by its string, worked out once per string."""
        numbers = np.fromiter((value(text) for text in self.values), np.int64, len(self.values))
        return numbers[self.ids] if len(self.values) else np.zeros(0, np.int64)


@dataclass
class HostEvents:
    """Host events sorted by thread and time, with their nesting.

    All arrays have one entry per event; `parent` is the position of the enclosing event or -1.
    `memory` marks instants whose `nbytes` were allocated (above 0) or freed (below).
    """

    source: Sequence[Any]
    order: Ints
    names: Interned
    start: Ints
    end: Ints
    thread: Ints
    sequence: Ints
    memory: Bools
    parent: Ints
    depth: Ints

    def __len__(self) -> int:
        return len(self.start)

    def raw(self, positions: Ints) -> list[Any]:
        """The profiler's own events at `positions`."""
        source = self.source
        return [source[position] for position in self.order[positions].tolist()]

    @property
    def duration(self) -> Ints:
        """Time in nanoseconds, children included."""
        return self.end - self.start

    def self_time(self) -> Ints:
        """Time in nanoseconds without the events directly inside."""
        own = self.duration.copy()
        inside = self.parent >= 0
        children = np.bincount(
            self.parent[inside], weights=self.duration[inside], minlength=len(self)
        )
        result: Ints = own - children.astype(np.int64)
        return result

    def inherit(self, own: Ints) -> Ints:
        """`own` where it is not 0, else what the nearest enclosing event has; 0 if none."""
        owner: Ints = own.copy()
        for level in self.levels[1:]:
            above = owner[self.parent[level]]
            owner[level] = np.where(own[level] != 0, own[level], above)
        return owner

    @cached_property
    def levels(self) -> list[Ints]:
        """Positions of the events of every depth, the outermost first."""
        order = np.argsort(self.depth, kind="stable")
        counts = np.bincount(self.depth) if len(self) else np.zeros(1, np.int64)
        return list(np.split(order, np.cumsum(counts)[:-1]))


def read_host(events: Sequence[Any], kinds: Sequence[str] | None = None) -> HostEvents:
    """The host's operators, ranges and memory instants among raw profiler events.

    `kinds` are the events' activity types; None says that all are the host's, as in a profile
    of the CPU alone.
    """
    if kinds is not None:
        host = (kind in HOST_KINDS or kind == MEMORY_KIND for kind in kinds)
        events = list(compress(events, host))
    names = Interned(column(events, "name"), len(events))
    if not HIDDEN_NAMES.isdisjoint(names.values):
        shown = ~names.where(HIDDEN_NAMES.__contains__)
        events = list(compress(events, shown.tolist()))
        names.ids = names.ids[shown]
    start = integers(events, "start_ns")
    end = start + integers(events, "duration_ns")
    thread = integers(events, "start_thread_id")
    order = np.lexsort((-end, start, thread))
    names.ids = names.ids[order]
    start, end, thread = start[order], end[order], thread[order]
    parent, depth = nest_threads(start, end, thread)
    return HostEvents(
        source=events,
        order=order,
        names=names,
        start=start,
        end=end,
        thread=thread,
        sequence=integers(events, "sequence_nr")[order],
        memory=names.where(lambda name: name == "[memory]"),
        parent=parent,
        depth=depth,
    )


def of_observed_thread(events: Sequence[Any]) -> Bools:
    """Which events of a profile of all threads belong to the observed one.

    A device's thread that runs its backward functions belongs to it too.
    """
    names = Interned(column(events, "name"), len(events))
    threads = integers(events, "start_thread_id")
    observed = np.unique(threads[names.where(lambda name: name == SLICE_RANGE)])
    evaluates = np.flatnonzero(names.where(lambda name: name.startswith(EVALUATE)))
    made_by = integers([events[position] for position in evaluates.tolist()], "fwd_thread_id")
    working = threads[evaluates[np.isin(made_by, observed)]]
    return np.isin(threads, np.concatenate((observed, working)))


def clip_to_steps(
    events: HostEvents, boundaries_ns: Sequence[int], left_out: Collection[int] = ()
) -> None:
    """Cut off what events have outside the steps that count.

    A step may end inside a range (`Optimizer.step`), which then counts up to there; the clocks of
    the profiler and of the steps differ by less than a microsecond, which must lose no event.
    """
    first, last = boundaries_ns[0], boundaries_ns[-1]
    events.start = np.where(events.end > first, np.maximum(events.start, first), events.start)
    until = np.full(len(boundaries_ns) + 1, np.iinfo(np.int64).max)
    end = last
    for step in range(len(boundaries_ns) - 2, -1, -1):
        if step in left_out:
            end = boundaries_ns[step]
        until[step + 1] = end if step not in left_out else until[0]
    step_of = np.searchsorted(boundaries_ns, events.start, side="right")
    events.end = np.minimum(events.end, until[step_of])


def column(events: Sequence[Any], accessor: str) -> Iterable[Any]:
    """What one accessor says of every event, one after the other."""
    # Through the class, so that no bound method is made for each event.
    return map(getattr(type(events[0]), accessor), events) if len(events) else ()


def integers(events: Sequence[Any], accessor: str) -> Ints:
    """A column of integers; identifiers that only fit an unsigned number keep their bits."""
    try:
        return np.fromiter(column(events, accessor), np.int64, len(events))
    except OverflowError:
        unsigned = np.fromiter(column(events, accessor), np.uint64, len(events))
        return unsigned.astype(np.int64)


def nest_threads(start: Ints, end: Ints, thread: Ints) -> tuple[Ints, Ints]:
    """Parents and depths of events sorted by thread, start and descending end."""
    parent = np.full(len(start), -1, np.int64)
    depth = np.zeros(len(start), np.int64)
    if not len(start):
        return parent, depth
    edges = np.flatnonzero(np.diff(thread)) + 1
    for first, last in zip([0, *edges], [*edges, len(start)], strict=True):
        parents, depths = nest(start[first:last], end[first:last])
        parent[first:last] = np.where(parents >= 0, parents + first, -1)
        depth[first:last] = depths
    return parent, depth


def nest(start: Ints, end: Ints) -> tuple[Ints, Ints]:
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
    order = np.argsort(depth, kind="stable")
    levels = np.split(order, np.cumsum(np.bincount(depth))[:-1]) if count else []
    for above, here in pairwise(levels):
        if not len(above) or not len(here):
            continue
        position = np.searchsorted(above, here) - 1
        found = above[np.maximum(position, 0)]
        parent[here] = np.where((position >= 0) & (finish[found] >= begin[here]), found, -1)
    return parent, depth


def forward_of(events: HostEvents, backward: Ints, forward: Bools) -> Ints:
    """For every position in `backward` the forward event that made it; -1 where none did.

    They share the sequence number and the forward thread. Of several forward events with one
    number (an operator and those inside it, or one before it that made no node) the last made
    the node.
    """
    candidates = np.flatnonzero(forward & (events.sequence >= 0))
    result = np.full(len(backward), -1, np.int64)
    if not len(candidates) or not len(backward):
        return result
    keys = (events.thread[candidates] << 44) + events.sequence[candidates]
    order = np.lexsort((events.start[candidates], keys))
    keys, candidates = keys[order], candidates[order]
    wanted = (integers(events.raw(backward), "fwd_thread_id") << 44) + events.sequence[backward]
    position = np.searchsorted(keys, wanted, side="right") - 1
    found = (position >= 0) & (keys[np.maximum(position, 0)] == wanted)
    found &= events.sequence[backward] >= 0
    result[found] = candidates[position[found]]
    return result


def around(events: HostEvents, marked: Ints) -> Ints:
    """For every event the position plus 1 of the nearest marked one around it; 0 for none."""
    marks = np.zeros(len(events), np.int64)
    marks[marked] = marked + 1
    nearest = events.inherit(marks)
    return np.where(events.parent >= 0, nearest[np.maximum(events.parent, 0)], 0)


def holding(events: HostEvents, marked: Ints) -> Bools:
    """Which events have a marked one somewhere inside."""
    marks = np.zeros(len(events), np.bool_)
    marks[marked] = True
    found = np.zeros(len(events), np.bool_)
    for level in reversed(events.levels[1:]):
        inner = level[marks[level] | found[level]]
        found[events.parent[inner]] = True
    return found


def group(keys: Sequence[Ints]) -> tuple[Ints, Ints]:
    """Group events by several columns: first position of each group, and every event's group.

    The columns are small whole numbers (positions in a list, module numbers), so that together
    they fit one number.
    """
    combined = np.zeros(len(keys[0]), np.int64)
    for column_ in keys:
        low = int(column_.min(initial=0))
        combined = combined * (int(column_.max(initial=0)) - low + 1) + (column_ - low)
    _, first, inverse = np.unique(combined, return_index=True, return_inverse=True)
    return first.astype(np.int64), inverse.astype(np.int64)


def sums(groups: Ints, values: NDArray[Any], count: int) -> NDArray[np.float64]:
    """Sum of `values` per group."""
    added: NDArray[np.float64] = np.bincount(groups, weights=values, minlength=count).astype(
        np.float64
    )
    return added
