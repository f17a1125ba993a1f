"""Owners of a step's memory, and holders of its peak.

Memory alive before the step is found by visiting all tensors; memory that the step took is in the
events of torch's allocators. Together they give the bytes alive at every moment, by kind.
"""

from __future__ import annotations

import importlib
import os
import sys
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from profstack.guard import Guard
from profstack.readers.memory import kinds
from profstack.readers.memory.blocks import (
    FOR_EVER,
    HOST,
    SINCE_EVER,
    AllocatorEvents,
    Blocks,
    Curves,
    blocks_of,
    module_peaks,
    read_allocator,
    signed,
)
from profstack.readers.torchtrace.attribution import Attribution, operators_around, received
from profstack.readers.torchtrace.columns import Ints
from profstack.readers.torchtrace.scopes import FORWARD
from profstack.storage.schema.column import Record, Records
from profstack.storage.vocabulary import OPTIMIZER

# --- Blocks that were alive before a slice began --------------------------------------------------

# Tensors found at its beginning have their kind; those found only at its end are in memory that no
# allocator records (shared with a DataLoader's worker, an array of NumPy's). Blocks that were freed
# in the slice but never found, and the rest of a device allocator's total, have no owner.

_Key = tuple[int, int]
# Kinds for which the end of a slice decides, not the place of the allocation.
_DECIDED_AT_END = (kinds.PARAMETERS, kinds.GRADIENTS, kinds.OPTIMIZER_STATE, kinds.BUFFERS)
_UNOWNED = kinds.NUMBERS[kinds.UNOWNED]
# The address of blocks of a device without a known tensor.
_NOWHERE = -1


class TensorBlocks:
    """Blocks by the tensors found before and after a slice.

    `modules` are the modules' entries by number; the profiler's clock is `clock_offset_ns` ahead of
    the clock of the blocks' releases.
    """

    def __init__(
        self,
        allocator: AllocatorEvents,
        start_ns: int,
        modules: Mapping[int, Any],
        clock_offset_ns: int,
    ) -> None:
        self._allocator, self._start, self._offset = allocator, start_ns, clock_offset_ns
        self._devices = {device: number for number, device in enumerate(allocator.devices)}
        alive = ((named.alive(), number) for number, named in modules.items())
        self._number = {id(module): number for module, number in alive if module is not None}

    def older(
        self, before: kinds.Alive, after: kinds.Alive, born: Blocks, given_back: Blocks
    ) -> tuple[Blocks, kinds.Owned]:
        """Return the blocks that the slice did not allocate, with their kinds and owners."""
        first_taken = _by_place(born, born.begin)
        ends = _by_place(given_back, given_back.end)
        begins: dict[_Key, int] = {}
        rows = {self._key(place): self._row(place, block) for place, block in before.blocks.items()}
        for place, block in after.blocks.items():
            key = self._key(place)
            if key not in rows and key not in first_taken:
                rows[key] = self._row(place, block)
                if place[0] == HOST:
                    begins[key] = self._allocator.used.get(place[1], self._start)
        for key, nbytes in _by_place(given_back, given_back.nbytes).items():
            # A device's allocator rounds sizes up, and tells what it took. On the CPU the tensors'
            # own size stands: torch may report the size of an older block at that address, one
            # allocated inside a profile and freed outside it.
            known, kind, owner = rows.get(key, (nbytes, _UNOWNED, 0))
            rows[key] = (known if key[0] == self._devices.get(HOST) else nbytes, kind, owner)
        for device, total in before.totals.items():
            number = self._device(device)
            found = sum(row[0] for key, row in rows.items() if key[0] == number)
            if total > found:
                rows[number, _NOWHERE] = (total - found, _UNOWNED, 0)
        for key, time in first_taken.items():
            # Allocated again: by then it had been freed.
            ends[key] = min(time, ends.get(key, FOR_EVER))
        for place, block in before.blocks.items():
            if block.died_ns:
                key = self._key(place)
                ends[key] = min(block.died_ns[0] + self._offset, ends.get(key, FOR_EVER))
        return _joined(rows, begins, ends)

    def correct(self, found: kinds.Owned, born: Blocks, after: kinds.Alive) -> None:
        """Correct the kinds of blocks that are alive at the end."""
        decided = {
            self._key(place): block
            for place, block in after.blocks.items()
            if block.kind in _DECIDED_AT_END
        }
        for at in np.flatnonzero(born.end == FOR_EVER).tolist():
            if block := decided.get((int(born.device[at]), int(born.address[at]))):
                found.kind[at] = kinds.NUMBERS[block.kind]
                found.owner[at] = self._owner(block) or found.owner[at]

    def _row(self, place: tuple[str, int], block: kinds.Block) -> tuple[int, int, int]:
        used = block.kind == kinds.HELD and place[1] in self._allocator.used
        return block.nbytes, kinds.NUMBERS[kinds.INPUTS if used else block.kind], self._owner(block)

    def _owner(self, block: kinds.Block) -> int:
        """Return the first module of a block; else a part of the step."""
        holders = (self._number.get(id(holder())) for holder in block.holders)
        numbers = [number for number in holders if number is not None]
        part = OPTIMIZER if block.kind == kinds.OPTIMIZER_STATE else 0
        return min(numbers, default=part)

    def _key(self, place: tuple[str, int]) -> _Key:
        return self._device(place[0]), signed(place[1])

    def _device(self, name: str) -> int:
        if name not in self._devices:
            self._devices[name] = len(self._allocator.devices)
            self._allocator.devices.append(name)
        return self._devices[name]


def _by_place(blocks: Blocks, values: Ints) -> dict[_Key, int]:
    """Return a value of the earliest block at each place; blocks are in order of time."""
    keys = zip(blocks.device.tolist(), blocks.address.tolist(), strict=True)
    found: dict[_Key, int] = {}
    for key, value in zip(keys, values.tolist(), strict=True):
        found.setdefault(key, value)
    return found


def _joined(
    rows: Mapping[_Key, tuple[int, int, int]], begins: Mapping[_Key, int], ends: Mapping[_Key, int]
) -> tuple[Blocks, kinds.Owned]:
    table = [
        (begins.get(key, SINCE_EVER), ends.get(key, FOR_EVER), key[1], nbytes, key[0], kind, owner)
        for key, (nbytes, kind, owner) in rows.items()
    ]
    begin, end, address, size, device, kind, owner = np.array(table, np.int64).reshape(-1, 7).T
    nowhere = np.full(len(rows), -1, np.int64)
    blocks = Blocks(begin, np.maximum(begin, end), address, size, device, nowhere, nowhere)
    return blocks, kinds.Owned(kind, owner, np.zeros(len(rows), np.bool_))


# --- Keep a line of torch's from the script's standard error --------------------------------------

# While memory is profiled, the CPU's allocator warns of the first block freed in a profile that was
# allocated before it, and of every thousandth after it. torch has no switch for that warning alone.
# So the first one is a block of ours, freed while torch writes no warnings: for microseconds, so
# that none of the script's is lost.

# The level of torch's own log with errors and without warnings.
_ERRORS = 2
_FLAG = "FLAGS_caffe2_log_level"


def _level() -> Any:
    """Find the log level in torch's loaded library; None where there is none."""
    path = Path(sys.modules["torch"].__file__ or "").parent / "lib" / "libc10.so"
    if not hasattr(os, "RTLD_NOLOAD"):
        return None
    try:
        ctypes: Any = importlib.import_module("ctypes")
        return ctypes.c_int.in_dll(ctypes.CDLL(str(path), mode=os.RTLD_NOLOAD), _FLAG)
    except (ImportError, OSError, ValueError):
        return None


Frames = dict[str, Records]
# Kind, owner, operator, and whether a backward pass took the block.
_Holder = tuple[int, int, str | None, int | None]
Notes = list[tuple[str, str]]

_NO_EVENTS = (
    "torch's allocators recorded no block in the step; they do so in a profile of one thread, "
    "not in one of all threads, which a script that trains on a thread of its own needs"
)


@dataclass(frozen=True)
class ObservedStep:
    """A slice beside its events.

    `boundaries_ns` are its start and the end of each step, on the profiler's clock, which is
    ahead of `time.perf_counter_ns` by `clock_offset_ns`; the steps numbered in `left_out` do not
    count. `modules` are the modules' entries by number.
    """

    index: int
    boundaries_ns: Sequence[int]
    left_out: Collection[int]
    modules: Mapping[int, Any]
    clock_offset_ns: int

    def is_loss(self, number: int) -> bool:
        """Return whether a module is a loss."""
        module = self.modules.get(number)
        return module is not None and bool(module.is_loss)


class MemoryOwners:
    """Observes one slice: made before its profile begins, read after its end."""

    def __init__(self) -> None:
        self._before: kinds.Alive | None = None
        self._problem = "the slice was asked before"
        # A block of the CPU's, to be freed right after the start of the profile.
        self._block: Any = None
        # The times of the slice are complete without the owners.
        with Guard(failed=self._fail):
            self._before = kinds.find_alive(watched=True)
            # A storage: unlike a tensor, no mode of the script's sees it.
            self._block = sys.modules["torch"].UntypedStorage(8)

    def begun(self) -> None:
        """Note that the profile has begun, and the slice's first step has not.

        Frees the block without the warning; where torch's log level is not found it is written.
        """
        # Freed at the latest where this function ends, also where the level is not found.
        block, self._block = self._block, None
        # A line on standard error is no reason to fail.
        with Guard():
            level = _level()
            before = level.value if level is not None else _ERRORS
            try:
                if 0 <= before < _ERRORS:
                    level.value = _ERRORS
                del block
            finally:
                if 0 <= before < _ERRORS:
                    level.value = before

    def tables(self, results: Any, owned: Attribution, step: ObservedStep) -> tuple[Frames, Notes]:
        """Return rows of `memory_owners`, `peak_holders` and `module_peaks`, and notes."""
        before, self._before = self._before, None
        if before is not None:
            with Guard(failed=self._fail):
                return _tables(before, kinds.find_alive(), results, owned, step)
        return {}, [("no-memory-owners", f"no owners of memory: {self._problem}")]

    def _fail(self, error: BaseException) -> None:
        self._problem = f"{type(error).__name__}: {error}"


def _tables(
    before: kinds.Alive, after: kinds.Alive, results: Any, owned: Attribution, step: ObservedStep
) -> tuple[Frames, Notes]:
    when = kinds.timeline(owned, step.boundaries_ns, step.is_loss)
    allocator = read_allocator(results, owned.events, _readers_of_inputs(owned, when))
    if not len(allocator.time):
        return {}, [("no-memory-owners", f"no owners of memory: {_NO_EVENTS}")]
    born, given_back = blocks_of(allocator)
    known = TensorBlocks(allocator, step.boundaries_ns[0], step.modules, step.clock_offset_ns)
    older, of_older = known.older(before, after, born, given_back)
    of_born = kinds.classify(owned, born, when)
    known.correct(of_born, born, after)
    curves = Curves(older.with_(born), step.boundaries_ns, step.left_out)
    found = of_older.with_(of_born)
    frames: Frames = {
        "memory_owners": _owner_rows(curves, found, allocator.devices, step.index),
        "peak_holders": _holder_rows(curves, found, owned, allocator.devices, step.index),
        "allocations": _allocation_rows(
            curves, of_born, born, owned, allocator.devices, step.index
        ),
        "module_peaks": module_peaks(curves, owned, allocator.devices, step.index),
    }
    return frames, _notes(before)


def _readers_of_inputs(owned: Attribution, when: kinds.Timeline) -> Ints:
    """Select operators whose inputs may be the step's: the outermost ones of forward work.

    They are directly inside a module's call, or outside all of them and next to a backward pass or
    a loss (a functional model, or a loss with targets). Operators before a module's call make its
    inputs rather than read them.
    """
    events, scopes = owned.events, owned.scopes
    parent = np.maximum(events.parent, 0)
    called = (events.parent >= 0) & (scopes.kind[parent] == FORWARD)
    ahead = (scopes.nearest == 0) & when.loses_next(events.start)
    return np.flatnonzero((called | ahead) & (scopes.kind == 0) & ~events.memory)


def _owner_rows(
    curves: Curves, found: kinds.Owned, devices: Sequence[str], index: int
) -> list[Record]:
    """Return rows of `memory_owners`: of each device the kinds that it held in the slice."""
    rows: list[Record] = []
    for number, device in enumerate(devices):
        here = curves.blocks.device == number
        peak = curves.peak(curves.levels(here))
        for kind, name in enumerate(kinds.KINDS):
            levels = curves.levels(here & (found.kind == kind))
            if largest := curves.highest(levels):
                rows.append(
                    {
                        "slice": index,
                        "device": device,
                        "kind": name,
                        "start_bytes": int(levels[curves.first + 1]),
                        "peak_bytes": int(levels[peak + 1]),
                        "largest_bytes": largest,
                        "end_bytes": int(levels[curves.last + 1]),
                    }
                )
    return rows


def _holder_rows(
    curves: Curves, found: kinds.Owned, owned: Attribution, devices: Sequence[str], index: int
) -> list[Record]:
    """Return rows of `peak_holders`, the largest first: blocks alive at each device's peak."""
    blocks, names = curves.blocks, owned.events.names
    around = operators_around(owned)
    rows: list[Record] = []
    for number, device in enumerate(devices):
        here = blocks.device == number
        alive = np.flatnonzero(curves.alive_at(curves.peak(curves.levels(here))) & here)
        tensors, sizes = Counter[_Holder](), Counter[_Holder]()
        for block in alive.tolist():
            position = int(blocks.position[block])
            taken_in_slice = position >= 0
            operator = int(around[position]) if taken_in_slice else 0
            key = (
                int(found.kind[block]),
                int(found.owner[block]),
                names.values[names.ids[operator - 1]] if operator else None,
                int(found.backward[block]) if taken_in_slice else None,
            )
            tensors[key] += 1
            sizes[key] += int(blocks.nbytes[block])
        rows += [
            {
                "slice": index,
                "device": device,
                "kind": kinds.KINDS[key[0]],
                "module_id": key[1] or None,
                "operator": key[2],
                "backward": key[3],
                "tensors": tensors[key],
                "bytes": nbytes,
            }
            for key, nbytes in sizes.most_common()
        ]
    return rows


def _allocation_rows(
    curves: Curves,
    found: kinds.Owned,
    born: Blocks,
    owned: Attribution,
    devices: Sequence[str],
    index: int,
) -> list[Record]:
    """Return rows of `allocations`: blocks given out in the steps that count, by who took them."""
    # One entry more, for blocks without an event.
    is_received = np.append(received(owned), [False])[born.position]
    counted = np.flatnonzero(curves.in_counted_steps(born.begin) & ~is_received)
    blocks, sizes = Counter[tuple[int, int]](), Counter[tuple[int, int]]()
    for at in counted.tolist():
        key = int(born.device[at]), int(found.owner[at])
        blocks[key] += 1
        sizes[key] += int(born.nbytes[at])
    return [
        {
            "slice": index,
            "device": devices[device],
            "module_id": owner or None,
            "blocks": count,
            "bytes": sizes[device, owner],
        }
        for (device, owner), count in blocks.items()
    ]


def _notes(before: kinds.Alive) -> Notes:
    left_out = (
        f"{before.left_out} tensors that the script held before the step are in no row of the "
        "memory's owners: they were too many to be gone through"
    )
    unread = (
        f"{before.unread} tensors are in no row of the memory's owners: where they lie "
        "is not known (tensors under a transform, or laid out in a way of their own)"
    )
    notes = (
        (before.left_out, "tensors-left-out", left_out),
        (before.unread, "tensors-unread", unread),
    )
    return [(slug, text) for count, slug, text in notes if count]
