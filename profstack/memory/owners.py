"""Who owns the memory of one observed step, and who holds it at its peak.

What was alive before the step is found by going through all tensors; what the step took is told by
torch's allocators. Together they give the bytes that are alive at every moment, by kind.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from profstack.interrupts import is_scripts
from profstack.memory.alive import Alive, find_alive
from profstack.memory.before import Known
from profstack.memory.kinds import KINDS, Owned, Timeline, classify, timeline
from profstack.memory.liveness import Curves, module_peaks, operators_around
from profstack.memory.quiet import FirstGivenBack
from profstack.torchtrace.allocations import blocks_of, read_allocator
from profstack.torchtrace.attribution import Attribution
from profstack.torchtrace.events import Ints
from profstack.torchtrace.scopes import FORWARD

Frames = dict[str, Sequence[Mapping[str, Any]]]
Notes = list[tuple[str, str]]

_UNTOLD = (
    "torch's allocators told of no block in the step; they tell a profile of one thread, "
    "not one of all threads, which a script that trains on a thread of its own needs"
)


@dataclass(frozen=True)
class ObservedStep:
    """What is known of the slice beside its events.

    `boundaries_ns` are its start and the end of each step, on the profiler's clock, which is
    ahead of `time.perf_counter_ns` by `clock_offset_ns`; the steps numbered in `left_out` do not
    count. `modules` are the names of all modules by number.
    """

    index: int
    boundaries_ns: Sequence[int]
    left_out: Collection[int]
    modules: Mapping[int, Any]
    clock_offset_ns: int

    def is_loss(self, number: int) -> bool:
        """Whether a module is a loss."""
        named = self.modules.get(number)
        return named is not None and bool(named.is_loss)


class MemoryOwners:
    """Observes one slice: made before its profile begins, asked after its end."""

    def __init__(self) -> None:
        self._before: Alive | None = None
        self._problem = "the slice was asked before"
        self._first: FirstGivenBack | None = None
        try:
            self._before = find_alive(watched=True)
            self._first = FirstGivenBack()
        except Exception as error:
            self._keep(error)

    def begun(self) -> None:
        """The profile has begun, and the slice's first step has not."""
        first, self._first = self._first, None
        if first is not None:
            first.give_back()

    def tables(self, results: Any, owned: Attribution, step: ObservedStep) -> tuple[Frames, Notes]:
        """Rows of `memory_owners`, `peak_holders` and `module_peaks`, and notes."""
        before, self._before = self._before, None
        if before is not None:
            try:
                return _tables(before, find_alive(), results, owned, step)
            except Exception as error:
                self._keep(error)
        return {}, [("no-memory-owners", f"no owners of memory: {self._problem}")]

    def _keep(self, error: Exception) -> None:
        """The times of the slice stand without it."""
        if is_scripts(error):
            raise error
        self._problem = f"{type(error).__name__}: {error}"


def _tables(
    before: Alive, after: Alive, results: Any, owned: Attribution, step: ObservedStep
) -> tuple[Frames, Notes]:
    when = timeline(owned, step.boundaries_ns, step.is_loss)
    told = read_allocator(results, owned.events, _readers_of_inputs(owned, when))
    if not len(told.time):
        return {}, [("no-memory-owners", f"no owners of memory: {_UNTOLD}")]
    born, given_back = blocks_of(told)
    known = Known(told, step.boundaries_ns[0], step.modules, step.clock_offset_ns)
    older, of_older = known.older(before, after, born, given_back)
    of_born = classify(owned, born, when)
    known.correct(of_born, born, after)
    curves = Curves(older.with_(born), step.boundaries_ns, step.left_out)
    found = of_older.with_(of_born)
    frames: Frames = {
        "memory_owners": _owner_rows(curves, found, told.devices, step.index),
        "peak_holders": _holder_rows(curves, found, owned, told.devices, step.index),
        "module_peaks": module_peaks(curves, owned, told.devices, step.index),
    }
    return frames, _notes(before)


def _readers_of_inputs(owned: Attribution, when: Timeline) -> Ints:
    """Operators whose own inputs may be the step's: the outermost ones of forward work.

    That is directly inside a module's call, or outside all of them and next to a backward pass or a
    loss (a functional model, or a loss that is given its targets). What stands before a module's
    call makes its inputs rather than reads them.
    """
    events, scopes = owned.events, owned.scopes
    parent = np.maximum(events.parent, 0)
    called = (events.parent >= 0) & (scopes.kind[parent] == FORWARD)
    ahead = (scopes.nearest == 0) & when.loses_next(events.start)
    return np.flatnonzero((called | ahead) & (scopes.kind == 0) & ~events.memory)


def _owner_rows(
    curves: Curves, found: Owned, devices: Sequence[str], index: int
) -> list[dict[str, Any]]:
    """Rows of `memory_owners`: of each device the kinds that it ever held in the slice."""
    rows = []
    for number, device in enumerate(devices):
        here = curves.blocks.device == number
        peak = curves.peak(curves.levels(here))
        for kind, name in enumerate(KINDS):
            levels = curves.levels(here & (found.kind == kind))
            largest = curves.highest(levels)
            if largest:
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
    curves: Curves, found: Owned, owned: Attribution, devices: Sequence[str], index: int
) -> list[dict[str, Any]]:
    """Rows of `peak_holders`, the largest first: what is alive at each device's peak."""
    blocks, names = curves.blocks, owned.events.names
    around = operators_around(owned)
    rows = []
    for number, device in enumerate(devices):
        here = blocks.device == number
        alive = np.flatnonzero(curves.alive_at(curves.peak(curves.levels(here))) & here)
        sums: dict[tuple[int, int, str | None, int | None], list[int]] = {}
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
            entry = sums.setdefault(key, [0, 0])
            entry[0] += 1
            entry[1] += int(blocks.nbytes[block])
        for (kind, owner, name, backward), (tensors, nbytes) in sorted(
            sums.items(), key=lambda item: -item[1][1]
        ):
            rows.append(
                {
                    "slice": index,
                    "device": device,
                    "kind": KINDS[kind],
                    "module_id": owner or None,
                    "operator": name,
                    "backward": backward,
                    "tensors": tensors,
                    "bytes": nbytes,
                }
            )
    return rows


def _notes(before: Alive) -> Notes:
    notes = []
    if before.left_out:
        text = (
            f"{before.left_out} tensors that the script held before the step are in no row of the "
            "memory's owners: they were too many to be gone through"
        )
        notes.append(("tensors-left-out", text))
    if before.unread:
        text = (
            f"{before.unread} tensors are in no row of the memory's owners: where they lie "
            "could not be told (tensors under a transform, or laid out in a way of their own)"
        )
        notes.append(("tensors-unread", text))
    return notes
