"""Blocks of memory: allocated, freed, alive at a moment, and at the peak.

torch records every block that its allocators allocate and free, with its address, in a tree of
events; the flat list, which everything else is read from, holds no addresses. Events of one address
on one device follow each other: a block lives until it is freed, or until the address is allocated
again, where another thread freed it unseen. Blocks that the CPU's allocator gave out before the
profile are not recorded.

Times are nanoseconds of the profiler's clock.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from profstack.guard import Guard, replace
from profstack.readers.torchtrace.attribution import Attribution
from profstack.readers.torchtrace.columns import Bools, Ints, integers
from profstack.readers.torchtrace.events import HostEvents
from profstack.readers.torchtrace.scopes import FORWARD
from profstack.storage.schema.column import Record

# The end of blocks still alive, and the begin of blocks alive before.
FOR_EVER = np.iinfo(np.int64).max
SINCE_EVER = np.iinfo(np.int64).min


@dataclass
class AllocatorEvents:
    """Events in order of time; `nbytes` are below 0 where a block was freed.

    `position` is the event's among the slice's host events, -1 where another thread made it;
    `device` is an index of `devices`. `used` are addresses of the input blocks of the wanted
    operators, each with the time of its first use.
    """

    time: Ints
    address: Ints
    nbytes: Ints
    device: Ints
    position: Ints
    devices: list[str]
    used: dict[int, int]


@dataclass
class Blocks:
    """Blocks with the times of their allocation and release; one entry each.

    `position` and `freed` are the host events of both, -1 where there is none.
    """

    begin: Ints
    end: Ints
    address: Ints
    nbytes: Ints
    device: Ints
    position: Ints
    freed: Ints

    def __len__(self) -> int:
        return len(self.begin)

    def with_(self, other: Blocks) -> Blocks:
        """Return these and the others after them."""
        pairs = zip(vars(self).values(), vars(other).values(), strict=True)
        return Blocks(*map(np.concatenate, pairs))

    def chosen(self, chosen: Bools) -> Blocks:
        """Return some of the blocks."""
        return Blocks(*(column[chosen] for column in vars(self).values()))


def read_allocator(results: Any, events: HostEvents, asked: Ints) -> AllocatorEvents:
    """Read every event of the allocators in a profile that was taken with memory.

    `asked` are the positions of operators with wanted inputs; the profile must have been taken with
    shapes.
    """
    wanted = frozenset(integers(events.raw(asked), "start_ns").tolist()) if len(asked) else ()
    found, used = _walk(results.experimental_event_tree(), wanted)
    found.reverse()
    columns = list(zip(*found, strict=True)) or [()] * 5
    time, thread, address, nbytes = (np.array(column, np.int64) for column in columns[:4])
    numbers = {device: number for number, device in enumerate(dict.fromkeys(columns[4]))}
    device = np.fromiter(map(numbers.__getitem__, columns[4]), np.int64, len(found))
    order = np.argsort(time, kind="stable")
    order = order[nbytes[order] != 0]
    # The host event of every allocation; -1 on threads that are not observed.
    memory = np.flatnonzero(events.memory)
    raw = events.raw(memory)
    fields = ("start_ns", "start_thread_id", "nbytes")
    keys = zip(*(integers(raw, field).tolist() for field in fields), strict=True)
    known = dict(zip(keys, memory.tolist(), strict=True))
    # The tree holds the bits of a thread's number as they are.
    own = zip(time.tolist(), thread.tolist(), nbytes.tolist(), strict=True)
    position = np.fromiter((known.get(key, -1) for key in own), np.int64, len(time))
    every = (time, address, nbytes, device, position)
    time, address, nbytes, device, position = (column[order] for column in every)
    names = [str(device) for device in numbers]
    return AllocatorEvents(time, address, nbytes, device, position, names, used)


def _walk(
    roots: list[Any], wanted: Collection[int]
) -> tuple[list[tuple[Any, ...]], dict[int, int]]:
    """Collect allocations from the tree, last ones first, and inputs of the wanted operators."""
    from torch._C._profiler import _EventType

    is_allocation, is_operator = _EventType.Allocation, _EventType.TorchOp
    found: list[tuple[Any, ...]] = []
    used: dict[int, int] = {}
    stack = list(roots)
    while stack:
        event = stack.pop()
        tag = event.tag
        if tag == is_allocation:
            fields = event.extra_fields
            taken = (signed(fields.ptr), fields.alloc_size, fields.device)
            found.append((event.start_time_ns, event.start_tid, *taken))
            continue
        if tag == is_operator and event.start_time_ns in wanted:
            for address in _inputs(event.extra_fields.inputs):
                used[address] = min(used.get(address, FOR_EVER), event.start_time_ns)
        stack.extend(event.children)
    return found, used


def _inputs(inputs: list[Any]) -> Iterator[int]:
    """Yield addresses of the blocks of an operator's tensors."""
    for value in inputs:
        if isinstance(value, list):
            yield from _inputs(value)
        elif address := getattr(value, "storage_data_ptr", None):
            yield signed(address)


def signed(address: int) -> int:
    """Return an address as a signed number of the same bits, as columns hold it."""
    return address - (1 << 64) if address >> 63 else address


def blocks_of(allocator: AllocatorEvents) -> tuple[Blocks, Blocks]:
    """Return the blocks allocated in the profile, and those only freed in it."""
    order = np.lexsort((allocator.address, allocator.device))
    time, address, nbytes = allocator.time[order], allocator.address[order], allocator.nbytes[order]
    device, position = allocator.device[order], allocator.position[order]
    same = np.zeros(len(order), np.bool_)
    same[:-1] = (address[:-1] == address[1:]) & (device[:-1] == device[1:])
    # Allocated again without having been freed: another thread freed it, unseen.
    end = np.where(same, np.roll(time, -1), FOR_EVER)
    freed = np.where(same & (np.roll(nbytes, -1) < 0), np.roll(position, -1), -1)
    size = np.abs(nbytes)
    first = ~np.roll(same, 1)
    born = Blocks(time, end, address, size, device, position, freed)
    since, nowhere = np.full(len(order), SINCE_EVER), np.full(len(order), -1)
    older = Blocks(since, time, address, size, device, nowhere, position)
    return born.chosen(nbytes > 0), older.chosen((nbytes <= 0) & first)


# --- Bytes alive over a slice: levels at every moment, and their peak -----------------------------

HOST = "cpu"


class Curves:
    """Bytes alive after each moment at which a block was allocated or freed.

    Moments are in order of time; a moment's number is its rank. Moments outside the steps that
    count change levels, but none of them is the peak.
    """

    def __init__(
        self, blocks: Blocks, boundaries_ns: Sequence[int], left_out: Collection[int]
    ) -> None:
        self.blocks = blocks
        self._edges = np.array(boundaries_ns, np.int64)
        # If all steps of a slice hold evaluation, all of it counts, as for its times.
        whole = len(left_out) >= len(boundaries_ns) - 1
        self._left_out = np.array([] if whole else sorted(left_out), np.int64)
        ends = np.flatnonzero(blocks.end < FOR_EVER)
        times = np.concatenate((blocks.begin, blocks.end[ends]))
        block = np.concatenate((np.arange(len(blocks)), ends))
        is_begin = np.arange(len(times)) < len(blocks)
        # Of two events at the same moment the release comes first.
        order = np.lexsort((is_begin, times))
        self._block, self._is_begin = block[order], is_begin[order]
        self._times = times[order]
        rank = np.empty(len(order), np.int64)
        rank[order] = np.arange(len(order))
        self._begins = rank[: len(blocks)]
        self._ends = np.full(len(blocks), len(order))
        self._ends[ends] = rank[len(blocks) :]
        edges = self.rank_at(np.array(boundaries_ns, np.int64)).tolist()
        self.first, self.last = edges[0], edges[-1]
        # The moments of the steps that count, with the ones before each step.
        ranks = [
            np.arange(first, last + 1)
            for step, (first, last) in enumerate(pairwise(edges))
            if step not in left_out
        ]
        # If all steps of a slice hold evaluation, all of it counts, as for its times.
        self._counted = np.concatenate(ranks or [np.arange(self.first, self.last + 1)])

    def in_counted_steps(self, times: Ints) -> Bools:
        """Return which times are in the steps that count."""
        step = np.searchsorted(self._edges, times, side="right") - 1
        inside = (step >= 0) & (step < len(self._edges) - 1)
        return inside & ~np.isin(step, self._left_out)

    def rank_at(self, times: Ints) -> Ints:
        """Return the last moment up to each time; -1 before the first."""
        return np.searchsorted(self._times, times, side="right") - 1

    def levels(self, chosen: Bools) -> Ints:
        """Return bytes of the chosen blocks after each moment, with one entry before the first."""
        sizes = np.where(chosen, self.blocks.nbytes, 0)[self._block]
        steps = np.where(self._is_begin, sizes, -sizes)
        return np.concatenate(([0], np.cumsum(steps)))

    def peak(self, levels: Ints) -> int:
        """Return the first moment of the highest level in the steps that count."""
        return int(self._counted[levels[self._counted + 1].argmax()])

    def highest(self, levels: Ints) -> int:
        """Return the highest level in the steps that count."""
        return int(levels[self.peak(levels) + 1])

    def alive_at(self, rank: int) -> Bools:
        """Select the blocks alive after a moment."""
        return (self._begins <= rank) & (self._ends > rank)

    def risen(self, levels: Ints, starts: Ints, ends: Ints) -> Ints:
        """Return the highest rise of the level from each start until each end."""
        first = self.rank_at(starts) + 1
        last = np.maximum(self.rank_at(ends) + 1, first)
        # From one position to before another: one more entry for those that end last.
        padded = np.append(levels, levels[-1])
        pairs = np.stack((first, last + 1), axis=1).ravel()
        highest = np.maximum.reduceat(padded, pairs)[::2] if len(starts) else first
        return highest - levels[first]


def module_peaks(
    curves: Curves, owned: Attribution, devices: Sequence[str], index: int
) -> list[Record]:
    """Return rows of `module_peaks`: the highest rise of memory in a call since its begin."""
    scopes, events = owned.scopes, owned.events
    calls = scopes.marks(FORWARD)
    if not len(calls):
        return []
    starts, ends = events.start[calls], events.end[calls]
    modules, of_call = np.unique(scopes.module[calls], return_inverse=True)
    none = np.zeros(len(modules), np.int64)
    found: dict[bool, Ints] = {}
    for number, device in enumerate(devices):
        risen = curves.risen(curves.levels(curves.blocks.device == number), starts, ends)
        np.maximum.at(found.setdefault(device == HOST, none.copy()), of_call, risen)
    host = found.get(True, none).tolist()
    on_devices = found[False].tolist() if False in found else [None] * len(modules)
    return [
        {
            "slice": index,
            "module_id": module,
            "host_peak_bytes": host_bytes,
            "device_peak_bytes": device_bytes,
        }
        for module, host_bytes, device_bytes in zip(modules.tolist(), host, on_devices, strict=True)
    ]


# -----------------------------------------------------------------------------
# torch's history of allocations on a CUDA device, over one slice.
#
# A process has one such history. If the script switches it during the slice, it is the script's
# own: from then on it is neither read nor ended here.
# -----------------------------------------------------------------------------

# Allocations that the history holds.
_MOST_ALLOCATIONS = 100_000
# All functions that begin and end a history call one of these.
_SWITCHES = ("_cuda_record_memory_history", "_cuda_record_memory_history_legacy")


class DeviceHistory:
    """Begins and ends a history; `problems` are notes, as slug and text."""

    def __init__(self) -> None:
        self.problems: list[tuple[str, str]] = []
        self._recording = False
        self._is_scripts = False
        # What takes our wrappers off torch's switches.
        self._unwrap: list[Callable[[], None]] = []

    def begin(self) -> None:
        """Start the history where the script uses a CUDA device and records none itself."""
        torch = sys.modules["torch"]
        is_recording = getattr(torch._C, "_cuda_isHistoryEnabled", None)
        if not torch.cuda.is_initialized() or is_recording is None or is_recording():
            return
        with self._noting_problems():
            torch.cuda.memory._record_memory_history(stacks="python", max_entries=_MOST_ALLOCATIONS)
            self._recording = True
            for name in _SWITCHES:
                if (original := getattr(torch._C, name, None)) is not None:
                    self._unwrap.append(replace(torch._C, name, self._noted(original)))

    def end(self, path: Path) -> bool:
        """End the history and write it to `path`; return whether there is a file."""
        self._unwrap_switches()
        if not self._recording:
            return False
        self._recording = False
        if self._is_scripts:
            text = "the script called torch.cuda.memory._record_memory_history meanwhile"
            self.problems.append(("no-snapshot", f"no history of the device's memory: {text}"))
            return False
        memory = sys.modules["torch"].cuda.memory
        written = False
        with self._noting_problems():
            try:
                memory._dump_snapshot(str(path))
                written = True
            finally:
                memory._record_memory_history(enabled=None)
        return written

    def abandon(self) -> None:
        """Leave the history alone in a forked child, which has no device."""
        self._unwrap_switches()
        self._recording = False

    def _noted(self, original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def switch(*arguments: Any, **keywords: Any) -> Any:
            self._is_scripts = True
            return original(*arguments, **keywords)

        return switch

    def _unwrap_switches(self) -> None:
        for unwrap in self._unwrap:
            unwrap()
        self._unwrap.clear()

    def _noting_problems(self) -> Guard:
        """Guard torch's private functions: without them the lines still have their figures."""

        def fail(error: BaseException) -> None:
            text = f"no history of the device's memory: {type(error).__name__}: {error}"
            self.problems.append(("no-snapshot", text))

        return Guard(failed=fail)
