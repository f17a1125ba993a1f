"""Rows of collectives: each call in which ranks meet, with its bytes, begin and end.

torch names them by the backend that does them, `gloo:all_reduce` or `nccl:all_reduce`. The time of
one on the host is that of its work in a thread of the backend; of one on a device that of its
kernels. Beside the first run operators, beside the second kernels that compute on its device.
Begins and ends are in Unix time, so that those of several processes can be compared.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import numpy as np

from profstack.readers.device_gaps import Intervals
from profstack.readers.torchtrace.attribution import Attribution
from profstack.readers.torchtrace.columns import Bools, Ints, StringColumn, column, integers
from profstack.readers.torchtrace.events import (
    COMMUNICATION,
    COPY_KIND,
    SET_KIND,
    HostEvents,
    device_name,
    kinds_of,
    launchers,
)
from profstack.readers.torchtrace.operator_inputs import Unknown, arguments_of, tensor_bytes
from profstack.storage.schema.column import Records

_S = 1e-9
_ON_DEVICE = re.compile("nccl:|xccl:|hccl:")
_COLLECTIVE = re.compile(r"(?:gloo|nccl|mpi|ucc|xccl|hccl):\w+")


def collective_records(
    owned: Attribution, index: int, kernels: Sequence[Any], *, shapes: bool
) -> Records:
    """Return rows of `collectives`: those that begin in the steps that count, in their order.

    `shapes` means that the profile has the inputs of operators; without them bytes are null.
    """
    events = owned.events
    called = np.flatnonzero(owned.inside & events.names.where(_is_collective))
    if not len(called):
        return []
    # For each event the number of the collective that it lies in, from 1; 0 for none.
    within = events.inherit(_marks(len(events), called, np.arange(1, len(called) + 1)))
    # For each kernel the number of the collective that launched it.
    number = _launched_in(events, kernels, within)
    start, end, on_device = _spans(events, called, kernels, number)
    hidden = _hidden_ns(events, owned.inside & (within == 0), start, end)
    hidden[on_device] = _computing_ns(kernels, number, start, end)[on_device]
    order = np.argsort(start, kind="stable")
    steps = np.searchsorted(owned.boundaries_ns, events.start[called], side="right") - 1
    return [
        {
            "slice": index,
            "step": int(steps[at]),
            "name": events.names.values[events.names.ids[called[at]]],
            "bytes": _bytes_of(events, int(called[at])) if shapes else None,
            "started_s": float(start[at]) * _S,
            "ended_s": float(end[at]) * _S,
            "wall_s": float(end[at] - start[at]) * _S,
            "hidden_s": float(hidden[at]) * _S,
        }
        for at in order.tolist()
        # What the host did to begin work of a device is no time of that work.
        if on_device[at] or not _ON_DEVICE.match(events.names.values[events.names.ids[called[at]]])
    ]


def _is_collective(name: str) -> bool:
    return _COLLECTIVE.fullmatch(name) is not None


def _bytes_of(events: HostEvents, position: int) -> int | None:
    """Return the bytes of a collective's tensors; None where they are not told."""
    inputs = events.inputs
    shapes = inputs.shapes[inputs.shape_ids[position]]
    given = arguments_of(shapes, inputs.types[inputs.type_ids[position]], ())
    unknown = not given or any(isinstance(each, Unknown) for each in given)
    return None if unknown else tensor_bytes(given)


def _marks(size: int, at: Ints, values: Ints) -> Ints:
    marks = np.zeros(size, np.int64)
    marks[at] = values
    return marks


def _launched_in(events: HostEvents, kernels: Sequence[Any], within: Ints) -> Ints:
    launched = launchers(events, kernels)
    numbers: Ints = np.where(launched >= 0, within[np.maximum(launched, 0)], 0)
    return numbers


def _spans(
    events: HostEvents, called: Ints, kernels: Sequence[Any], number: Ints
) -> tuple[Ints, Ints, Bools]:
    """Return begin and end of each collective, and whether they are those of its kernels."""
    start, end = events.start[called].copy(), events.end[called].copy()
    on_device = np.zeros(len(called), np.bool_)
    begun = integers(kernels, "start_ns")
    ended = begun + integers(kernels, "duration_ns")
    own = np.flatnonzero(number > 0)
    at = number[own] - 1
    on_device[at] = True
    start[on_device], end[on_device] = np.iinfo(np.int64).max, 0
    np.minimum.at(start, at, begun[own])
    np.maximum.at(end, at, ended[own])
    return start, end, on_device


def _computing_ns(kernels: Sequence[Any], number: Ints, start: Ints, end: Ints) -> Ints:
    """Return for how long of each collective a kernel that computes ran on its device.

    These are neither copies and fills nor a collective's own, also not of one before the steps.
    """
    names = StringColumn.of(column(kernels, "name"), len(kernels))
    communicates = names.where(lambda name: COMMUNICATION.search(name) is not None)
    moves = np.isin(np.array(kinds_of(kernels), np.str_), (COPY_KIND, SET_KIND))
    computes = (number == 0) & ~communicates & ~moves
    devices = StringColumn.of(map(device_name, kernels), len(kernels))
    begun = integers(kernels, "start_ns")
    ended = begun + integers(kernels, "duration_ns")
    found = np.zeros(len(start), np.int64)
    for device in range(len(devices.values)):
        own = devices.ids == device
        computing = Intervals.united(begun[own & computes], ended[own & computes])
        at = np.unique(number[own & (number > 0)]) - 1
        found[at] = np.maximum(found[at], computing.inside(start[at], end[at]))
    return found


def _hidden_ns(events: HostEvents, counted: Bools, start: Ints, end: Ints) -> Ints:
    """Return for how long of each collective operators of the `counted` events ran beside it."""
    works = counted & events.names.where(lambda name: name.startswith("aten::"))
    at = np.flatnonzero(works)
    at = at[np.argsort(events.start[at], kind="stable")]
    begun, over = events.start[at], np.maximum.accumulate(events.end[at])
    # What begins within an earlier one counts from that one's end on: no moment counts twice.
    begun = np.maximum(begun, np.concatenate((begun[:1], over[:-1])))
    # Time of operators up to each begin, and from there to any moment.
    done = np.concatenate(([0], np.cumsum(over - begun)))

    def until(moments: Ints) -> Ints:
        known = np.searchsorted(begun, moments, side="right")
        last = np.maximum(known - 1, 0)
        past = np.maximum(over[last] - moments, 0) if len(over) else np.zeros(len(moments), int)
        found: Ints = done[known] - np.where(known > 0, past, 0)
        return found

    return until(end) - until(start)
