"""Profiler events as columns: nesting, self time and owners, computed on arrays.

`torch.profiler` builds one Python object per event and walks a tree of them; here the accessors
of the raw events are read once into arrays, and everything after that is sorting and searching.
Times are integer nanoseconds. Nothing in here imports torch: the events are only called.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import compress
from typing import Any

import numpy as np

from profstack.regions import RANGE_PREFIX
from profstack.torchtrace.columns import (
    Bools,
    Columns,
    Given,
    GivenReader,
    Interned,
    Ints,
    SmallInts,
    blocks,
    column,
    distinct,
    group,
    integers,
    sums,
    value_key,
)
from profstack.torchtrace.eventkinds import HOST_KINDS, MEMORY_KIND, MEMORY_NAME
from profstack.torchtrace.nesting import in_order, levels, nest_threads

# What reads events takes the columns' names from here too.
__all__ = ["ACCUMULATE", "EVALUATE", "HIDDEN_NAMES", "SLICE_RANGE", "Bools", "HostEvents"]
__all__ += [
    "Interned",
    "Ints",
    "around",
    "clip_to_steps",
    "column",
    "forward_of",
    "group",
    "holding",
]
__all__ += ["integers", "of_observed_thread", "read_host", "sums"]

INSTANT_ACCESSORS = ("nbytes", "device_index")
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


@dataclass
class HostEvents:
    """Host events sorted by thread and time, with their nesting.

    All arrays have one entry per event; `parent` is the position of the enclosing event or -1.
    `memory` marks instants whose `nbytes` were allocated (above 0) or freed (below).
    """

    source: Sequence[Any]
    names: Interned
    start: Ints
    end: Ints
    thread: Ints
    sequence: Ints
    memory: Bools
    parent: Ints
    depth: SmallInts
    # What was read besides in the one pass: of all events, of the memory instants alone, and what
    # operators were given.
    read: dict[str, Ints] = field(default_factory=dict)
    read_instants: dict[str, Ints] = field(default_factory=dict)
    read_given: Given | None = None

    def __len__(self) -> int:
        return len(self.start)

    def raw(self, positions: Ints) -> list[Any]:
        """The profiler's own events at `positions`."""
        source = self.source
        return [source[position] for position in positions.tolist()]

    def integers(self, accessor: str, positions: Ints | None = None) -> Ints:
        """What an accessor says of the events at `positions`, by default of all."""
        if accessor in self.read:
            return self.read[accessor][slice(None) if positions is None else positions]
        if positions is None:
            positions = np.arange(len(self))
        if accessor in self.read_instants and self.memory[positions].all():
            instants = np.flatnonzero(self.memory)
            return self.read_instants[accessor][np.searchsorted(instants, positions)]
        return integers(self.raw(positions), accessor)

    @cached_property
    def given(self) -> Given:
        """What every operator was given; all but operators have no inputs.

        The profile must have been taken with its shapes.
        """
        if self.read_given is not None:
            return self.read_given
        asked = np.flatnonzero(self.names.where(_is_given))
        reader = GivenReader(len(self))
        for part in blocks(len(asked)):
            reader.read(self.raw(asked[part]), asked[part])
        return reader.given()

    def values(self, positions: Ints, asked: Bools) -> tuple[list[Sequence[Any]], Ints]:
        """Inputs that are no tensors, of those events at `positions` that are `asked`.

        Gives the different ones, and the number of each event's among them; number 0 is that of
        events that were not asked.
        """
        numbers = np.zeros(len(positions), np.int64)
        chosen = np.flatnonzero(asked)
        raw = self.raw(positions[chosen])
        first, numbers_of_chosen = distinct(
            map(value_key, column(raw, "concrete_inputs")), len(raw)
        )
        numbers[chosen] = numbers_of_chosen + 1
        return [(), *(raw[position].concrete_inputs() for position in first.tolist())], numbers

    @property
    def duration(self) -> Ints:
        """Time in nanoseconds, children included."""
        return self.end - self.start

    def self_time(self) -> Ints:
        """Time in nanoseconds without the events directly inside."""
        duration = self.duration
        # The first place is for those that stand inside none.
        children = np.bincount(self.parent + 1, weights=duration, minlength=len(self) + 1)[1:]
        result: Ints = duration - children.astype(np.int64)
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
        return levels(self.depth)


def read_host(
    events: Sequence[Any], kinds: Sequence[str] | None = None, *, given: bool = False
) -> HostEvents:
    """The host's operators, ranges and memory instants among raw profiler events.

    `kinds` are the events' activity types; None says that all are the host's, as in a profile
    of the CPU alone. `given` reads in the same pass what every operator was given, which else is
    read when it is asked for, and then costs more.
    """
    accessors = ["start_ns", "duration_ns", "start_thread_id", "sequence_nr"]
    if kinds is not None:
        host = (kind in HOST_KINDS or kind == MEMORY_KIND for kind in kinds)
        events = list(compress(events, host))
        accessors.append("correlation_id")
    columns = Columns(events, accessors, (MEMORY_NAME, INSTANT_ACCESSORS))
    inputs = columns.read(_is_given if given else None)
    names, memory_read = columns.names, columns.of_name
    read = {**columns.integers}
    del columns
    if not HIDDEN_NAMES.isdisjoint(names.values):
        kept: Ints | None = np.flatnonzero(~names.where(HIDDEN_NAMES.__contains__))
    else:
        kept = None
    order = in_order(read["start_ns"], read["duration_ns"], read["start_thread_id"], kept)
    if order is not None:
        events = [events[position] for position in order.tolist()]
        names.ids = names.ids[order]
        for column_set in (read, memory_read):
            column_set.update({name: values[order] for name, values in column_set.items()})
        inputs = inputs.at(order) if inputs else None
    start, thread = read.pop("start_ns"), read.pop("start_thread_id")
    end = start + read.pop("duration_ns")
    parent, depth = nest_threads(start, end, thread)
    memory = names.where(lambda name: name == MEMORY_NAME)
    return HostEvents(
        source=events,
        names=names,
        start=start,
        end=end,
        thread=thread,
        sequence=read.pop("sequence_nr"),
        memory=memory,
        parent=parent,
        depth=depth,
        read=read,
        read_instants={name: values[memory] for name, values in memory_read.items()},
        read_given=inputs,
    )


def _is_given(name: str) -> bool:
    """Whether an event may be an operator's, which was given something."""
    return name != MEMORY_NAME and not name.startswith(RANGE_PREFIX)


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
    wanted = (events.integers("fwd_thread_id", backward) << 44) + events.sequence[backward]
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
