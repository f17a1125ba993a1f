"""Profiler events as columns: kinds, nesting, self time and owners, computed on arrays.

`torch.profiler` builds one Python object per event and walks a tree of them; here the accessors
of the raw events are read once into arrays, and everything after that is sorting and searching.
Times are integer nanoseconds. Events are only called; no table here needs torch itself.
"""

from __future__ import annotations

import re
import time
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise
from typing import Any, TypeVar

import numpy as np

from profstack.readers.torchtrace.columns import (
    Bools,
    ColumnarEvents,
    InputReader,
    Ints,
    RecordedInputs,
    SmallInts,
    StringColumn,
    blocks,
    column,
    distinct,
    integers,
    read_columns,
    value_key,
)
from profstack.storage.vocabulary import RANGE_PREFIX

# Kinds of activity ----------------------------------------------------------------------------
#
# Events know their kind from torch 2.13 on. Before, it follows from their other facts: whether
# they ran on a device, whether the program named them, and their names, which Kineto and the
# tracer of Python functions make by fixed rules.

HOST_KINDS = ("cpu_op", "user_annotation")
DEVICE_KINDS = ("kernel", "gpu_memcpy", "gpu_memset", "privateuse1_runtime_kernel")
# Calls of a device's runtime on the host.
RUNTIME_KINDS = ("cuda_runtime", "cuda_driver", "privateuse1_runtime", "xpu_runtime")
MEMORY_KIND, MEMORY_NAME = "cpu_instant_event", "[memory]"
PYTHON_KIND, OPERATOR_KIND = "python_function", "cpu_op"
COPY_KIND, SET_KIND = "gpu_memcpy", "gpu_memset"
# Kernels that move data between devices.
COMMUNICATION = re.compile(r"nccl|rccl|nvshmem|mscclpp", re.IGNORECASE)

# "file.py(12): name", a module's or an optimizer's call, and the repr of what is built in.
_PYTHON = re.compile(r".*\(\d+\): .|nn\.Module: |Optimizer: |<", re.DOTALL)
# cudaLaunchKernel, cuLaunchKernelEx, hipLaunchKernel; no operator of torch is named like them.
_RUNTIME = re.compile(r"(?:cuda|cu|hip|ur|ze)[A-Z]\w*(?:@\w+)?")
# Time of CUPTI and Kineto themselves; and waits between streams, which occupy no stream.
_OVERHEAD = frozenset(
    {
        "Activity Buffer Request",
        "Buffer Flush",
        "Command Buffer Full",
        "Instrumentation",
        "Lazy Function Loading",
        "Resource",
        "Runtime Triggered Module Loading",
        "Unrecognized",
    }
)
# An operator of torch's dispatcher, by its namespace.
_OPERATOR = re.compile(r"\w+::\w+$")
# Code that torch.compile made: it calls operators that are counted, and kernels that have no event
# (C++) or one without shapes (Triton). No input or output of it is recorded.
_COMPILED = re.compile(r"## Call CompiledFxGraph|triton_")
_WAITS = frozenset({"Context Sync", "Stream Sync", "Event Sync", "Stream Wait Event"})


Event = TypeVar("Event")


def kinds_of(events: Sequence[Any]) -> list[str]:
    """Return the kind of every event, in Kineto's words ("cpu_op", "kernel", "cuda_runtime")."""
    if isinstance(events, ColumnarEvents):
        kinds = events.strings("activity_type")
        return [kinds.values[number] for number in kinds.ids.tolist()]
    if not len(events) or hasattr(type(events[0]), "activity_type"):
        return list(column(events, "activity_type"))
    return list(map(inferred_kind, events))


def of_kinds(
    wanted: Collection[str], events: Sequence[Event], kinds: Sequence[str] | None
) -> list[Event]:
    """Return the events of these activity types; none where every event is the host's."""
    return [event for event, kind in zip(events, kinds or (), strict=False) if kind in wanted]


def is_operator(name: str) -> bool:
    """Return whether a name is an operator's, with its namespace (`aten::mm`)."""
    return _OPERATOR.match(name) is not None


def is_compiled(name: str) -> bool:
    """Return whether a name is that of code that torch.compile made."""
    return _COMPILED.match(name) is not None


def device_name(event: Any) -> str:
    """Return the device that an event ran on, as `cuda:0`."""
    return f"{event.device_type().name.lower()}:{event.device_index()}"


def has_python_calls() -> bool:
    """Return whether this torch lists calls of Python functions as events: from 2.13 on."""
    from torch._C._autograd import _KinetoEvent

    return hasattr(_KinetoEvent, "activity_type")


def inferred_kind(event: Any) -> str:
    """Return the kind of an event of a torch before 2.13."""
    name, annotated = event.name(), event.is_user_annotation()
    on_device = event.device_type().name != "CPU"
    if on_device and name == MEMORY_NAME:
        return MEMORY_KIND
    if annotated:
        return "gpu_user_annotation" if on_device else "user_annotation"
    if on_device:
        prefixes = {"Memcpy": COPY_KIND, "Memset": SET_KIND}
        return prefixes.get(name[:6], "cuda_sync" if name in _WAITS else "kernel")
    if name == MEMORY_NAME:
        return MEMORY_KIND
    if _RUNTIME.fullmatch(name):
        return "cuda_runtime"
    if name in _OVERHEAD:
        return "overhead"
    return PYTHON_KIND if _PYTHON.match(name) else OPERATOR_KIND


# Nesting --------------------------------------------------------------------------------------
#
# On one thread events either nest or lie apart, so that sorting and searching find the parents.


def _time_order(start: Ints, duration: Ints, thread: Ints, kept: Ints | None) -> Ints | None:
    """Sort the events `kept` by thread, start and descending end; ties stay as they are.

    None for `kept` means all events. None is returned if all are kept and in this order already,
    as they mostly are: for what is nearly in order a stable sort of one column costs little.
    """
    order = np.argsort(start if kept is None else start[kept], kind="stable")
    if kept is not None:
        order = kept[order]
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
    """Sort numbers from 0, stably; cheap where they fit 16 bits."""
    small = numbers.max(initial=0) < 2**15
    return np.argsort(numbers.astype(np.int16) if small else numbers, kind="stable")


def levels(depth: Ints | SmallInts) -> list[Ints]:
    """Return the positions of the events of every depth, the outermost first."""
    counts = np.bincount(depth) if len(depth) else np.zeros(1, np.int64)
    return list(np.split(_by_small(depth), np.cumsum(counts)[:-1]))


def nest_threads(start: Ints, end: Ints, thread: Ints) -> tuple[Ints, SmallInts]:
    """Find parents and depths of events sorted by thread, start and descending end."""
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


# Host events ----------------------------------------------------------------------------------

INSTANT_ACCESSORS = ("nbytes", "device_index")
EVALUATE = "autograd::engine::evaluate_function: "
ACCUMULATE = "torch::autograd::AccumulateGrad"
# A range at the start of a slice whose profile sees every thread: it marks the observed one.
SLICE_RANGE = "profstack::slice"
# The profiler's own bookkeeping, which its tables leave out as well.
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
    names: StringColumn
    start: Ints
    end: Ints
    thread: Ints
    sequence: Ints
    memory: Bools
    parent: Ints
    depth: SmallInts
    # Columns read in the same pass: of all events, of the memory instants alone, and inputs.
    read: dict[str, Ints] = field(default_factory=dict)
    read_instants: dict[str, Ints] = field(default_factory=dict)
    read_inputs: RecordedInputs | None = None

    def __len__(self) -> int:
        return len(self.start)

    def raw(self, positions: Ints) -> list[Any]:
        """Return the profiler's own events at `positions`."""
        source = self.source
        return [source[position] for position in positions.tolist()]

    def integers(self, accessor: str, positions: Ints | None = None) -> Ints:
        """Read an accessor of the events at `positions`, by default of all."""
        if accessor in self.read:
            return self.read[accessor][slice(None) if positions is None else positions]
        if positions is None:
            positions = np.arange(len(self))
        if accessor in self.read_instants and self.memory[positions].all():
            instants = np.flatnonzero(self.memory)
            return self.read_instants[accessor][np.searchsorted(instants, positions)]
        return integers(self.raw(positions), accessor)

    @cached_property
    def inputs(self) -> RecordedInputs:
        """Recorded inputs of every operator; other events have none.

        The profile must have been taken with shapes.
        """
        if self.read_inputs is not None:
            return self.read_inputs
        operators = np.flatnonzero(self.names.where(_has_inputs))
        reader = InputReader(len(self))
        for part in blocks(len(operators)):
            reader.read(self.raw(operators[part]), operators[part])
        return reader.inputs()

    def values(self, positions: Ints, wanted: Bools) -> tuple[list[Sequence[Any]], Ints]:
        """Read inputs that are no tensors, of those events at `positions` that are `wanted`.

        Returns the different ones, and for each event its number among them; number 0 is that of
        events that were not wanted.
        """
        numbers = np.zeros(len(positions), np.int64)
        chosen = np.flatnonzero(wanted)
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
        """Return time in nanoseconds without the events directly inside."""
        duration = self.duration
        # The first place is for those inside none.
        children = np.bincount(self.parent + 1, weights=duration, minlength=len(self) + 1)[1:]
        return duration - children.astype(np.int64)

    def inherit(self, own: Ints) -> Ints:
        """Return `own` where it is not 0, else that of the nearest enclosing event; 0 if none."""
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
    events: Sequence[Any], kinds: Sequence[str] | None = None, *, inputs: bool = False
) -> HostEvents:
    """Read the host's operators, ranges and memory instants among raw profiler events.

    `kinds` are the events' activity types; None means that all are the host's, as in a profile
    of the CPU alone. `inputs` reads the operators' inputs in the same pass; later it costs more.
    """
    accessors = ["start_ns", "duration_ns", "start_thread_id", "sequence_nr"]
    if kinds is not None:
        wanted = frozenset((*HOST_KINDS, MEMORY_KIND))
        if isinstance(events, ColumnarEvents):
            events = events.at(events.strings("activity_type").where(wanted.__contains__))
        else:
            events = of_kinds(wanted, events, kinds)
        accessors.append("correlation_id")
    names, read, of_memory, recorded = read_columns(
        events, accessors, (MEMORY_NAME, INSTANT_ACCESSORS), _has_inputs if inputs else None
    )
    kept = None
    if not HIDDEN_NAMES.isdisjoint(names.values):
        kept = np.flatnonzero(~names.where(HIDDEN_NAMES.__contains__))
    order = _time_order(read["start_ns"], read["duration_ns"], read["start_thread_id"], kept)
    if order is not None:
        if isinstance(events, ColumnarEvents):
            events = events.at(order)
        else:
            events = [events[position] for position in order.tolist()]
        names.ids = names.ids[order]
        for column_set in (read, of_memory):
            column_set.update({name: values[order] for name, values in column_set.items()})
        recorded = recorded.at(order) if recorded else None
    start, thread, sequence = map(read.pop, ("start_ns", "start_thread_id", "sequence_nr"))
    end = start + read.pop("duration_ns")
    parent, depth = nest_threads(start, end, thread)
    memory = names.where(lambda name: name == MEMORY_NAME)
    instants = {name: values[memory] for name, values in of_memory.items()}
    return HostEvents(
        events, names, start, end, thread, sequence, memory, parent, depth, read, instants, recorded
    )


def _has_inputs(name: str) -> bool:
    """Return whether an event may be an operator's, which has inputs."""
    return name != MEMORY_NAME and not name.startswith(RANGE_PREFIX)


def of_observed_thread(events: Sequence[Any]) -> Bools:
    """Return which events of a profile of all threads belong to the observed thread.

    A device's thread that runs its backward functions belongs to it too.
    """
    names = StringColumn.of(column(events, "name"), len(events))
    threads = integers(events, "start_thread_id")
    observed = np.unique(threads[names.where(lambda name: name == SLICE_RANGE)])
    evaluates = np.flatnonzero(names.where(lambda name: name.startswith(EVALUATE)))
    made_by = integers([events[position] for position in evaluates.tolist()], "fwd_thread_id")
    working = threads[evaluates[np.isin(made_by, observed)]]
    return np.isin(threads, np.concatenate((observed, working)))


def clip_to_steps(
    events: HostEvents, boundaries_ns: Sequence[int], left_out: Collection[int] = ()
) -> None:
    """Cut events off at the edges of the steps that count.

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


def latest_operators(events: HostEvents, operators: Bools, threads: Ints, numbers: Ints) -> Ints:
    """Find operators by thread and sequence number; -1 where none has so low a number.

    Of the `operators` on a thread it is the one with the highest number up to the one looked for,
    and of several with that number the last. One on another thread may be found as well.
    """
    candidates = np.flatnonzero(operators & (events.sequence >= 0))
    if not len(candidates) or not len(threads):
        return np.full(len(threads), -1, np.int64)
    keys = (events.thread[candidates] << 44) + events.sequence[candidates]
    order = np.lexsort((events.start[candidates], keys))
    position = np.searchsorted(keys[order], (threads << 44) + numbers, side="right") - 1
    return np.where(position >= 0, candidates[order][np.maximum(position, 0)], -1)


def forward_of(events: HostEvents, backward: Ints, forward: Bools) -> Ints:
    """Return for every position in `backward` the forward event that made it, or -1.

    They share the sequence number and the forward thread. Of several forward events with one
    number (an operator and those inside it, or one before it that made no node) the last made
    the node.
    """
    threads, numbers = events.integers("fwd_thread_id", backward), events.sequence[backward]
    found = latest_operators(events, forward, threads, numbers)
    matches = (events.sequence[found] == numbers) & (events.thread[found] == threads)
    return np.where((found >= 0) & (numbers >= 0) & matches, found, -1)


def launchers(events: HostEvents, kernels: Sequence[Any], among: Ints | None = None) -> Ints:
    """Return for every kernel the position of the event that launched it; -1 where none is known.

    They share a correlation number. `among` are the positions that are looked through, by default
    all.
    """
    numbers = events.integers("correlation_id", among).tolist()
    positions = range(len(events)) if among is None else among.tolist()
    known = {number: at for number, at in zip(numbers, positions, strict=True) if number > 0}
    linked = integers(kernels, "linked_correlation_id").tolist()
    return np.array([known.get(number, -1) for number in linked], np.int64)


def around(events: HostEvents, marked: Ints) -> Ints:
    """Return for every event the nearest marked one around it: its position plus 1, 0 for none."""
    marks = np.zeros(len(events), np.int64)
    marks[marked] = marked + 1
    nearest = events.inherit(marks)
    return np.where(events.parent >= 0, nearest[np.maximum(events.parent, 0)], 0)


def holding(events: HostEvents, marked: Ints) -> Bools:
    """Return which events have a marked one somewhere inside."""
    marks = np.zeros(len(events), np.bool_)
    marks[marked] = True
    found = np.zeros(len(events), np.bool_)
    for level in reversed(events.levels[1:]):
        inner = level[marks[level] | found[level]]
        found[events.parent[inner]] = True
    return found


def clock_offset_ns() -> int:
    """Return how far the profiler's clock is ahead of `time.perf_counter`: the best of 5 readings.

    Another thread or program may run between the readings of the two clocks.
    """
    readings = []
    for _ in range(5):
        before, there, after = time.perf_counter_ns(), time.time_ns(), time.perf_counter_ns()
        readings.append((after - before, there - (before + after) // 2))
    return min(readings)[1]
