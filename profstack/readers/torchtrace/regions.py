"""Rows of named ranges: operators, kernels, operations and memory inside each range.

Three sources name ranges that a profile sees: `profstack.region`, the script's `record_function`,
and torch itself (a DataLoader's `__next__`). Which of them are open at a moment follows from their
begins and ends alone, not from how events nest: tasks that take turns leave ranges in another order
than they entered them. Optimizers are left to the module tree, which has rows for them.

A region of profstack's has the work that runs while it is the innermost one, or one within it by
its path, is: another task's region in between has its own. A range of another source has all that
runs while it is open, and its name alone, as in torch's own tables.

Limits: a `record_function` that was entered before the slice began leaves no event; and a task
that goes on after an `await` and enters no region counts for the one that was entered last.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from profstack.readers.flops.recorded_shapes import CountedEvents
from profstack.readers.torchtrace.attribution import Attribution, main_thread
from profstack.readers.torchtrace.columns import Bools, Ints
from profstack.readers.torchtrace.events import MEMORY_NAME, HostEvents
from profstack.storage.schema.column import Records
from profstack.storage.vocabulary import (
    AGAIN,
    MOST_REGIONS,
    OTHER_REGIONS,
    OWN_REGION,
    RANGE_PREFIX,
    REGION_PREFIX,
)

_S = 1e-9

# Named ranges and their sources -----------------------------------------------------------------
#
# A range names the purpose of the work in it; the work itself is that of the operators inside. So
# ranges are no rows of `operators`: those of `profstack.region`, `record_function` and torch itself
# are rows of `regions`, and optimizers have rows of their own among the modules.

FUNCTION, TORCH, OPTIMIZER = "record_function", "torch", "optimizer"
# torch's own ranges, `Optimizer.step#Adam.step`: rows of the module tree have all of their time.
_OPTIMIZERS = re.compile(r"Optimizer\.(step|zero_grad)#")
# Names of the other ranges that torch puts around work of its own.
_TORCH_RANGES = re.compile(
    r"enumerate\(Data|ProfilerStep#|Torch-Compiled Region|"
    r"TorchDynamo|Pregraph bytecode|DistributedDataParallel\.|DataParallel\.|"
    r"FullyShardedDataParallel\.|FSDP::|nccl:|gloo:|c10d::|"
    # The parts of a compilation, by torch's own clock and by its notes.
    r".* \(dynamo_timed\)$|[\w.]+_data: (.*, )?compile_id="
)
_COMPILED = re.compile(r"## |triton_")


# The source of every name, None for no range or for profstack's own bookkeeping.
Sources = list[str | None]


def range_sources(events: HostEvents, *, shapes: bool) -> Sources:
    """Find the ranges among the names of a slice's events.

    `shapes` means that the profile has the inputs of operators; without them ranges that were
    begun in C look like operators.
    """
    names = events.names
    # The first event of each name.
    firsts = np.full(len(names.values), -1, np.int64)
    firsts[names.ids[::-1]] = np.arange(len(events))[::-1]
    return [
        _source(name, events, first, shapes=shapes) if first >= 0 else None
        for name, first in zip(names.values, firsts.tolist(), strict=True)
    ]


def _source(name: str, events: HostEvents, first: int, *, shapes: bool) -> str | None:
    """Return the source of the ranges called `name` by their first event; None for no range."""
    if name.startswith(RANGE_PREFIX):
        return OWN_REGION if name.startswith(REGION_PREFIX) else None
    # Compiled code is work, though torch records it as it does a range.
    if name == MEMORY_NAME or _COMPILED.match(name):
        return None
    [event] = events.raw(np.array([first], np.int64))
    if not event.is_user_annotation() and not (shapes and _is_bare_range(name, event)):
        return None
    if _OPTIMIZERS.match(name):
        return OPTIMIZER
    return TORCH if _TORCH_RANGES.match(name) else FUNCTION


def _is_bare_range(name: str, event: Any) -> bool:
    """Return whether the event is a range that was begun in C (`_RecordFunctionFast`).

    It is recorded as an operator is, but has neither inputs nor a place in the backward graph, and
    torch has no operator of that name.
    """
    may_be = "::" not in name and not event.scope() and event.sequence_nr() < 0
    return may_be and not event.shapes() and not _has_schema(name)


@cache
def _has_schema(name: str) -> bool:
    """Return whether torch has an operator of this name: some are recorded without a namespace."""
    import torch

    return bool(torch._C._jit_get_schemas_for_operator(f"aten::{name}"))


# Work in the ranges -----------------------------------------------------------------------------

# Source and name of a range.
Key = tuple[str, str]


def region_records(
    owned: Attribution,
    index: int,
    device_ns: Ints,
    counted: CountedEvents | None,
    sources: Sources,
    *,
    memory: bool,
) -> Records:
    """Return rows of `region_work`, one per source and name of the ranges in the steps that count.

    `device_ns` is the device time that each event launched; without `counted` there are no
    operations, and bytes only where the profile saw `memory`. Ranges of optimizers are left out:
    the module tree has rows for them.
    """
    events, inside = owned.events, owned.inside
    keys = _keys(events, inside, sources)
    if not keys:
        return []
    ranges = OpenRanges(events, keys, main_thread(owned.scopes))
    operators = np.flatnonzero(owned.is_work)
    on_device = bool(device_ns.any())
    sets = ranges.sets_of(operators)
    host_s = ranges.sums(sets, events.self_time()[operators] * _S)
    device_s = ranges.sums(sets, device_ns[operators] * _S) if on_device else {}
    flop, net_bytes = dict[Key, float](), dict[Key, float]()
    if counted is not None:
        flop = ranges.sums(ranges.sets_of(counted.positions), counted.figures[:, 0])
    if memory:
        taken = np.flatnonzero(inside & events.memory)
        on_host = events.integers("device_index", taken) < 0
        nbytes = np.where(on_host, events.integers("nbytes", taken), 0)
        net_bytes = ranges.sums(ranges.sets_of(taken), nbytes)
    threads, wall_s = ranges.threads(), ranges.wall_s()
    return [
        {
            "slice": index,
            "source": key[0],
            "path": key[1],
            "calls": calls,
            "wall_s": wall_s.get(key, 0.0),
            "operator_s": host_s.get(key, 0.0),
            "device_s": device_s.get(key, 0.0) if on_device else None,
            "flop": flop.get(key),
            "host_net_bytes": net_bytes.get(key, 0) if memory else None,
            "threads": len(threads[key]),
        }
        for key, calls in Counter(ranges.names).items()
    ]


def _keys(events: HostEvents, inside: Bools, sources: Sources) -> dict[int, Key]:
    """Return source and name of every range, by its position, in order of thread and time."""
    names = events.names
    shown = np.array([source not in (None, OPTIMIZER) for source in sources], np.bool_)
    if not shown.any():
        return {}
    keys = {}
    seen: set[Key] = set()
    for position in np.flatnonzero(shown[names.ids] & inside).tolist():
        number = int(names.ids[position])
        source, name = sources[number], names.values[number]
        assert source is not None
        key = (source, name[len(REGION_PREFIX) :] if source == OWN_REGION else name)
        if key not in seen and len(seen) >= MOST_REGIONS:
            key = (source, OTHER_REGIONS)
        seen.add(key)
        keys[position] = key
    return keys


class OpenRanges:
    """The ranges that are open at every moment, thread by thread.

    `names` are the sources and names of all ranges, in order of thread and time; `sets` all sets
    of them that are open together at some moment. Work of a thread without ranges belongs to those
    open on the `main` one: it waits for its backward threads.
    """

    def __init__(self, events: HostEvents, keys: dict[int, Key], main: int) -> None:
        self._events = events
        self._keys = keys
        self._main = main
        self._numbers: dict[frozenset[Key], int] = {frozenset(): 0}
        # By thread: the moments at which something changes, and the set that is open from then on.
        self._opened: dict[int, tuple[Ints, Ints]] = {}
        marks: dict[int, list[int]] = defaultdict(list)
        for position in keys:
            marks[int(events.thread[position])].append(position)
        for thread in sorted(marks, key=lambda number: number != main):
            self._sweep(thread, marks[thread])
        self.sets = list(self._numbers)
        self.names = [
            (source, path.removesuffix(AGAIN) if source == OWN_REGION else path)
            for source, path in keys.values()
        ]

    def _sweep(self, thread: int, marks: list[int]) -> None:
        start, end = self._events.start, self._events.end
        # An end comes before a begin at the same moment; a range without duration is never open.
        edges = [(int(end[mark]), 0, mark) for mark in marks if end[mark] > start[mark]]
        edges += [(int(start[mark]), 1, mark) for mark in marks if end[mark] > start[mark]]
        times, states, stack = [], [], dict[int, Key]()
        for at, begins, mark in sorted(edges):
            if begins:
                stack[mark] = self._keys[mark]
            else:
                del stack[mark]
            opened = _open_keys(list(stack.values()))
            if thread != self._main and stack:
                around = int(self._look_up(self._main, np.array([at]))[0])
                opened |= list(self._numbers)[around]
            times.append(at)
            states.append(self._numbers.setdefault(opened, len(self._numbers)))
        self._opened[thread] = np.array(times, np.int64), np.array(states, np.int64)

    def sets_of(self, positions: Ints) -> Ints:
        """Return the number of the set of ranges that was open when each of these events began."""
        start, threads = self._events.start[positions], self._events.thread[positions]
        found = self._look_up(self._main, start)
        for thread in self._opened:
            if thread != self._main:
                own = np.where(threads == thread, self._look_up(thread, start), 0)
                found = np.where(own > 0, own, found)
        return found

    def _look_up(self, thread: int, moments: Ints) -> Ints:
        if thread not in self._opened:
            return np.zeros(len(moments), np.int64)
        times, states = self._opened[thread]
        # Before the first moment none is open.
        return np.append(0, states)[np.searchsorted(times, moments, side="right")]

    def sums(self, sets: Ints, values: NDArray[np.generic]) -> dict[Key, float]:
        """Return the sum over each range of the values of events, whose sets are given."""
        # Sums of whole numbers stay exact.
        added = np.zeros(len(self.sets), values.dtype)
        np.add.at(added, sets, values)
        found: dict[Key, float] = defaultdict(int)
        for number in np.flatnonzero(np.bincount(sets, minlength=len(added))).tolist():
            for key in self.sets[number]:
                found[key] += added[number].item()
        return found

    def threads(self) -> dict[Key, set[int]]:
        """Return the threads on which each range was entered."""
        found: dict[Key, set[int]] = defaultdict(set)
        for position, key in zip(self._keys, self.names, strict=True):
            found[key].add(int(self._events.thread[position]))
        return found

    def wall_s(self) -> dict[Key, float]:
        """Return how long each range was open, over the threads on which it was entered."""
        threads, found = self.threads(), defaultdict[Key, float](float)
        for thread, (times, states) in self._opened.items():
            spans = np.diff(times, append=times[-1:]) * _S
            for number, span in zip(states.tolist(), spans.tolist(), strict=True):
                for key in self.sets[number]:
                    if thread in threads[key]:
                        found[key] += span
        return found


def _open_keys(stack: list[Key]) -> frozenset[Key]:
    """Return the ranges of the current work; of profstack's, those on the innermost one's path."""
    others = {key for key in stack if key[0] != OWN_REGION}
    own = [path for source, path in stack if source == OWN_REGION and not path.endswith(AGAIN)]
    on_path = {path for path in own if path == own[-1] or own[-1].startswith(path + "/")}
    return frozenset((*others, *((OWN_REGION, path) for path in on_path)))
