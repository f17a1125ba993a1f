"""Blocks that were alive before a slice began, put together from everything that tells of them.

Tensors found at its beginning tell their kind; those found at its end alone came by a way that no
allocator sees (memory shared with a DataLoader's worker, an array of NumPy's); what was given back
in the slice but never found was somebody's; and what a device's allocator counts beyond all
that is nobody's.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from profstack.memory.alive import Alive, Block
from profstack.memory.kinds import (
    BUFFERS,
    GRADIENTS,
    HELD,
    INPUTS,
    NOBODY,
    NUMBERS,
    OPTIMIZER_STATE,
    PARAMETERS,
    Owned,
)
from profstack.memory.liveness import HOST
from profstack.regions import OPTIMIZER
from profstack.torchtrace.allocations import (
    FOR_EVER,
    SINCE_EVER,
    AllocatorEvents,
    Blocks,
)
from profstack.torchtrace.events import Ints

_Key = tuple[int, int]
# What the end of a slice says of blocks taken in it is better than where they were taken.
_TOLD_AT_END = (PARAMETERS, GRADIENTS, OPTIMIZER_STATE, BUFFERS)
# Stands for the blocks of a device that no tensor was found of.
_NOWHERE = -1


class Known:
    """What is known of blocks by the tensors found before and after a slice.

    `modules` are the names of all modules by number; `clock_offset_ns` is what the profiler's
    clock is ahead of the one that blocks' deaths were noted by.
    """

    def __init__(
        self,
        told: AllocatorEvents,
        start_ns: int,
        modules: Mapping[int, Any],
        clock_offset_ns: int,
    ) -> None:
        self._told, self._start, self._offset = told, start_ns, clock_offset_ns
        self._devices = {device: number for number, device in enumerate(told.devices)}
        alive = ((named.alive(), number) for number, named in modules.items())
        self._number = {id(module): number for module, number in alive if module is not None}

    def older(
        self, before: Alive, after: Alive, born: Blocks, given_back: Blocks
    ) -> tuple[Blocks, Owned]:
        """The blocks that the slice did not take, with their kinds and owners."""
        first_taken = _by_place(born, born.begin)
        ends = _by_place(given_back, given_back.end)
        begins: dict[_Key, int] = {}
        rows = {self._key(place): self._row(place, block) for place, block in before.blocks.items()}
        for place, block in after.blocks.items():
            key = self._key(place)
            if key not in rows and key not in first_taken:
                rows[key] = self._row(place, block)
                if place[0] == HOST:
                    begins[key] = self._told.used.get(place[1], self._start)
        for key, nbytes in _by_place(given_back, given_back.nbytes).items():
            # A device's allocator may have given out more than what lies in the block needs.
            _, kind, owner = rows.get(key, (0, NOBODY, 0))
            rows[key] = (nbytes, kind, owner)
        for device, total in before.totals.items():
            number = self._device(device)
            found = sum(row[0] for key, row in rows.items() if key[0] == number)
            if total > found:
                rows[number, _NOWHERE] = (total - found, NOBODY, 0)
        for key, time in first_taken.items():
            # Given out anew: by then it had been given back.
            ends[key] = min(time, ends.get(key, FOR_EVER))
        for place, block in before.blocks.items():
            if block.died_ns:
                key = self._key(place)
                ends[key] = min(block.died_ns[0] + self._offset, ends.get(key, FOR_EVER))
        return _joined(rows, begins, ends)

    def correct(self, found: Owned, born: Blocks, after: Alive) -> None:
        """Say of blocks that are alive at the end what they turned out to be."""
        kinds = {self._key(place): block for place, block in after.blocks.items()}
        places = zip(born.device.tolist(), born.address.tolist(), strict=True)
        open_ = (born.end == FOR_EVER).tolist()
        for at, (key, alive) in enumerate(zip(places, open_, strict=True)):
            block = kinds.get(key) if alive else None
            if block is not None and block.kind in _TOLD_AT_END:
                found.kind[at] = NUMBERS[block.kind]
                found.owner[at] = self._owner(block) or found.owner[at]

    def _row(self, place: tuple[str, int], block: Block) -> tuple[int, str, int]:
        used = block.kind == HELD and place[1] in self._told.used
        return block.nbytes, INPUTS if used else block.kind, self._owner(block)

    def _owner(self, block: Block) -> int:
        """The module a block belongs to, of several the first one; else a part of the step."""
        holders = (self._number.get(id(holder())) for holder in block.holders)
        numbers = [number for number in holders if number is not None]
        part = OPTIMIZER if block.kind == OPTIMIZER_STATE else 0
        return min(numbers, default=part)

    def _key(self, place: tuple[str, int]) -> _Key:
        address = place[1]
        return self._device(place[0]), address - (1 << 64) if address >> 63 else address

    def _device(self, name: str) -> int:
        number = self._devices.get(name)
        if number is None:
            number = self._devices[name] = len(self._told.devices)
            self._told.devices.append(name)
        return number


def _by_place(blocks: Blocks, values: Ints) -> dict[_Key, int]:
    """A value of the earliest of the blocks at each place; they are in order of time."""
    keys = zip(blocks.device.tolist(), blocks.address.tolist(), strict=True)
    found: dict[_Key, int] = {}
    for key, value in zip(keys, values.tolist(), strict=True):
        found.setdefault(key, value)
    return found


def _joined(
    rows: Mapping[_Key, tuple[int, str, int]], begins: Mapping[_Key, int], ends: Mapping[_Key, int]
) -> tuple[Blocks, Owned]:
    keys: Sequence[_Key] = list(rows)
    count = len(keys)
    begin = np.array([begins.get(key, SINCE_EVER) for key in keys], np.int64)
    end = np.array([ends.get(key, FOR_EVER) for key in keys], np.int64)
    nowhere = np.full(count, -1, np.int64)
    blocks = Blocks(
        begin,
        np.maximum(begin, end),
        np.array([key[1] for key in keys], np.int64),
        np.array([row[0] for row in rows.values()], np.int64),
        np.array([key[0] for key in keys], np.int64),
        nowhere,
        nowhere,
    )
    owned = Owned(
        np.array([NUMBERS[kind] for _, kind, _ in rows.values()], np.int64),
        np.array([owner for _, _, owner in rows.values()], np.int64),
        np.zeros(count, np.bool_),
    )
    return blocks, owned
