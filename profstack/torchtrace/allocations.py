"""Blocks of memory from the allocators' events: when each was taken, by what, and given back.

torch tells every block that its allocators give out and take back, with its address, in a tree
of events; the flat list, which everything else is read from, holds no addresses. Events of one
address on one device follow each other: what is taken there lives until it is given back, or until
the address is given out anew, where another thread gave it back unseen. The CPU's allocator does
not tell of blocks that it gave out before the profile began.

Times are nanoseconds of the profiler's clock.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from profstack.torchtrace.events import Bools, HostEvents, Ints, integers

# The end of what is still alive, and the beginning of what was alive before.
FOR_EVER = np.iinfo(np.int64).max
SINCE_EVER = np.iinfo(np.int64).min


@dataclass
class AllocatorEvents:
    """Events in order of time; `nbytes` are below 0 where a block was given back.

    `position` is the event's among the slice's host events, -1 where another thread made it;
    `device` counts in `devices`. `used` are addresses of the blocks that the operators asked for
    had as inputs, each with the time of its first use.
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
    """Blocks by when they were taken and given back; one entry each.

    `position` and `freed` are the host events that did it, -1 where none did or none was seen.
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
        """These and the others after them."""
        return Blocks(
            *(np.concatenate((mine, theirs)) for mine, theirs in zip(self, other, strict=True))
        )

    def __iter__(self) -> Iterator[Ints]:
        yield from (self.begin, self.end, self.address, self.nbytes)
        yield from (self.device, self.position, self.freed)


def read_allocator(results: Any, events: HostEvents, asked: Ints) -> AllocatorEvents:
    """Every event of the allocators in a profile that was taken with its memory.

    `asked` are the positions of operators whose inputs are wanted; the profile must have been
    taken with shapes.
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
    position = _positions(events, time, thread, nbytes)
    return AllocatorEvents(
        time[order],
        address[order],
        nbytes[order],
        device[order],
        position[order],
        [str(device) for device in numbers],
        used,
    )


def _walk(
    roots: list[Any], wanted: Collection[int]
) -> tuple[list[tuple[Any, ...]], dict[int, int]]:
    """What the tree tells of allocations, last ones first, and of the operators asked for."""
    from torch._C._profiler import _EventType

    is_allocation, is_operator = _EventType.Allocation, _EventType.TorchOp
    found: list[tuple[Any, ...]] = []
    used: dict[int, int] = {}
    stack = list(roots)
    while stack:
        event = stack.pop()
        tag = event.tag
        if tag == is_allocation:
            told = event.extra_fields
            found.append(
                (
                    event.start_time_ns,
                    event.start_tid,
                    _signed(told.ptr),
                    told.alloc_size,
                    told.device,
                )
            )
            continue
        if tag == is_operator and event.start_time_ns in wanted:
            for address in _inputs(event.extra_fields.inputs):
                first = used.get(address, FOR_EVER)
                used[address] = min(first, event.start_time_ns)
        stack.extend(event.children)
    return found, used


def _inputs(inputs: list[Any]) -> Iterator[int]:
    """Addresses of the blocks that an operator's tensors lie in."""
    for value in inputs:
        if isinstance(value, list):
            yield from _inputs(value)
        else:
            address = getattr(value, "storage_data_ptr", None)
            if address:
                yield _signed(address)


def _signed(address: int) -> int:
    """An address as a column holds it; the highest half of the space keeps its bits."""
    return address - (1 << 64) if address >> 63 else address


def _positions(events: HostEvents, time: Ints, thread: Ints, nbytes: Ints) -> Ints:
    """The host event of every allocation; -1 for those of threads that are not observed."""
    memory = np.flatnonzero(events.memory)
    raw = events.raw(memory)
    keys = zip(
        integers(raw, "start_ns").tolist(),
        integers(raw, "start_thread_id").tolist(),
        integers(raw, "nbytes").tolist(),
        strict=True,
    )
    known = dict(zip(keys, memory.tolist(), strict=True))
    # The tree holds the bits of a thread's number as they are.
    asked = zip(time.tolist(), thread.tolist(), nbytes.tolist(), strict=True)
    return np.fromiter((known.get(key, -1) for key in asked), np.int64, len(time))


def blocks_of(told: AllocatorEvents) -> tuple[Blocks, Blocks]:
    """The blocks that were taken in the profile, and those that were only given back in it."""
    order = np.lexsort((told.address, told.device))
    address, device = told.address[order], told.device[order]
    taken = told.nbytes[order] > 0
    same = np.zeros(len(order), np.bool_)
    same[:-1] = (address[:-1] == address[1:]) & (device[:-1] == device[1:])
    after = np.minimum(np.arange(1, len(order) + 1), max(len(order) - 1, 0))
    after = order[after] if len(order) else after
    # Given out anew without having been given back: another thread did that, unseen.
    end = np.where(same, told.time[after], FOR_EVER) if len(order) else order
    freed = np.where(same & (told.nbytes[after] < 0), told.position[after], -1)
    first = np.ones(len(order), np.bool_)
    first[1:] = ~same[:-1]
    born = _chosen(told, order, taken, told.time[order], end, freed)
    only = ~taken & first
    given_back = told.position[order]
    since = np.full(len(order), SINCE_EVER)
    older = _chosen(told, order, only, since, told.time[order], given_back)
    older.position[:] = -1
    return born, older


def _chosen(
    told: AllocatorEvents, order: Ints, chosen: Bools, begin: Ints, end: Ints, freed: Ints
) -> Blocks:
    kept = order[chosen]
    return Blocks(
        begin[chosen].astype(np.int64),
        end[chosen].astype(np.int64),
        told.address[kept],
        np.abs(told.nbytes[kept]),
        told.device[kept],
        told.position[kept],
        freed[chosen].astype(np.int64),
    )
