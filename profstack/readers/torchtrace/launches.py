"""Rows of launches and gaps: operators and kernels of a step, launch costs, idle times of devices.

The device's time is cut at the steps' ends on the host's clock: busy is the time in which at least
one kernel runs on any of its streams, so that busy and idle together are the step. Copies alone
do not make it busy; they are a cause of being idle.
"""

from __future__ import annotations

import bisect
import re
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np

from profstack.readers.device_gaps import (
    UNKNOWN,
    Gaps,
    Host,
    Intervals,
    Kernels,
    by_cause,
    gaps_between,
)
from profstack.readers.torchtrace.attribution import Attribution, main_thread
from profstack.readers.torchtrace.columns import Ints, integers, sums
from profstack.readers.torchtrace.events import (
    COPY_KIND,
    SET_KIND,
    around,
    device_name,
    is_operator,
    kinds_of,
    launchers,
)
from profstack.readers.torchtrace.scopes import BACKWARD, EVALUATED, FORWARD, RECOMPUTED
from profstack.storage.schema.column import Records, SqlValue

_S = 1e-9
_SYNCHRONISES = re.compile(r"Synchronize")
_READS_BACK = "aten::_local_scalar_dense"

BY_RUNTIME, BY_OPERATOR = "runtime calls", "operators"

# Begin and end of times in nanoseconds.
_Spans = list[tuple[int, int]]
# Some columns of a row.
_Row = dict[str, SqlValue]


@dataclass(frozen=True)
class _Kernel:
    """One kernel: when it ran, and when the host began to launch it, if that is known."""

    start: int
    end: int
    launched: int | None
    # The runtime's call that launched it, by number; below 0 there is none.
    call: int
    # The host event that launched it, or -1.
    operator: int
    name: str


@dataclass
class _Device:
    """Work of one device: kernels in order of their begin, fills of memory, copies."""

    kernels: list[_Kernel]
    fills: _Spans
    copies: _Spans


def launch_records(
    owned: Attribution,
    index: int,
    kernels: Sequence[Any] = (),
    runtime: Sequence[Any] = (),
) -> tuple[Records, Records]:
    """Return rows of `launches`, one per step that counts and device, and of `gaps`.

    `kernels` are the device's own events, copies among them, `runtime` the calls of its runtime;
    without kernels the rows have operators alone.
    """
    edges = owned.boundaries_ns
    counted = [step for step in range(len(edges) - 1) if step not in owned.left_out]
    called = _operator_columns(owned, index, counted)
    calls = _call_spans(runtime)
    by_device = _by_device(owned, kernels, calls)
    if not by_device:
        return [called[step] for step in counted], []
    bounds = np.array(edges, np.int64)
    host = Host(_synchronised(owned, runtime), _waits(owned), bounds)
    # From the first to the last of consecutive steps.
    together = np.split(counted, np.flatnonzero(np.diff(counted) > 1) + 1)
    runs = [(edges[steps[0]], edges[steps[-1] + 1]) for steps in together if len(steps)]
    own_ns = owned.events.self_time()
    rows, gaps = list[_Row](), list[_Row]()
    for name, device in by_device.items():
        work = device.kernels
        busy = _united([*((each.start, each.end) for each in work), *device.fills])
        busy_ns = busy.inside(bounds[:-1], bounds[1:]).tolist()
        # Kernels by the step in which the host launched them; they may run in a later one.
        launched: dict[int, list[_Kernel]] = defaultdict(list)
        for kernel in work:
            moment = kernel.start if kernel.launched is None else kernel.launched
            launched[bisect.bisect_right(edges, moment) - 1].append(kernel)
        for step in counted:
            rows.append(
                {
                    **called[step],
                    "device": name,
                    **_launch_columns(launched[step], calls, own_ns),
                    "busy_s": busy_ns[step] * _S,
                    "idle_s": (edges[step + 1] - edges[step] - busy_ns[step]) * _S,
                }
            )
        found = gaps_between(_columns(work), busy, _united(device.copies), host, runs)
        gaps += _gap_rows(found, work, owned, index, name)
    return rows, gaps


# The host ---------------------------------------------------------------------------------------


def _operator_columns(owned: Attribution, index: int, counted: Sequence[int]) -> dict[int, _Row]:
    """Return the columns of each step that need no device: operators of torch's dispatcher."""
    events, edges = owned.events, owned.boundaries_ns
    wanted = events.names.where(is_operator) & owned.is_work
    # Ranges named by the script may look like operators.
    doubtful = np.flatnonzero(wanted & ~events.names.where(lambda name: name.startswith("aten::")))
    wanted[doubtful] = events.integers("is_user_annotation", doubtful) == 0
    chosen = np.flatnonzero(wanted)
    outer = chosen[around(events, chosen)[chosen] == 0]
    steps = len(edges) - 1
    all_of, outer_of = (
        np.searchsorted(edges, events.start[some], side="right") - 1 for some in (chosen, outer)
    )
    calls = np.bincount(all_of, minlength=steps)
    outermost = np.bincount(outer_of, minlength=steps)
    inside = sums(outer_of, events.duration[outer], steps)
    return {
        step: {
            "slice": index,
            "step": step,
            "operators": int(calls[step]),
            "outermost": int(outermost[step]),
            "operators_s": float(inside[step]) * _S,
        }
        for step in counted
    }


def _call_spans(runtime: Sequence[Any]) -> dict[int, tuple[int, int]]:
    """Return begin and end of the runtime's calls by their correlation numbers."""
    numbers = integers(runtime, "correlation_id").tolist()
    start = integers(runtime, "start_ns")
    end = start + integers(runtime, "duration_ns")
    return dict(zip(numbers, zip(start.tolist(), end.tolist(), strict=True), strict=True))


def _synchronised(owned: Attribution, runtime: Sequence[Any]) -> Ints:
    """Return when the host stopped waiting for a device, in order."""
    events = owned.events
    reads = np.flatnonzero(events.names.where(lambda name: name == _READS_BACK))
    waited = [event for event in runtime if _SYNCHRONISES.search(event.name())]
    ends = integers(waited, "start_ns") + integers(waited, "duration_ns")
    return np.sort(np.concatenate([events.end[reads], ends]))


def _waits(owned: Attribution) -> Intervals:
    """Return the times from each step's beginning to its first module call or backward pass."""
    scopes = owned.scopes
    working = np.isin(scopes.kind, (FORWARD, RECOMPUTED, BACKWARD, EVALUATED))
    working &= scopes.events.thread == main_thread(scopes)
    begins = [*np.sort(scopes.events.start[working]).tolist(), owned.boundaries_ns[-1]]
    firsts = [
        (begin, end, begins[bisect.bisect_left(begins, begin)])
        for begin, end in pairwise(owned.boundaries_ns)
    ]
    return _united([(begin, first) for begin, end, first in firsts if first < end])


# The devices ------------------------------------------------------------------------------------


def _by_device(
    owned: Attribution, kernels: Sequence[Any], calls: dict[int, tuple[int, int]]
) -> dict[str, _Device]:
    events = owned.events
    devices: dict[str, _Device] = {}
    if not kernels:
        return devices
    operators = launchers(events, kernels).tolist()
    for event, kind, operator in zip(kernels, kinds_of(kernels), operators, strict=True):
        device = devices.setdefault(device_name(event), _Device([], [], []))
        start = event.start_ns()
        end = start + event.duration_ns()
        if kind in (COPY_KIND, SET_KIND):
            (device.copies if kind == COPY_KIND else device.fills).append((start, end))
            continue
        call = event.correlation_id()
        launched = int(events.start[operator]) if operator >= 0 else None
        if call in calls:
            launched = calls[call][0]
        else:
            call = -1
        device.kernels.append(_Kernel(start, end, launched, call, operator, event.name()))
    for device in devices.values():
        device.kernels.sort(key=lambda kernel: kernel.start)
    return devices


def _columns(work: Sequence[_Kernel]) -> Kernels:
    return Kernels(
        np.array([each.start for each in work], np.int64),
        np.array([each.end for each in work], np.int64),
        np.array([UNKNOWN if each.launched is None else each.launched for each in work], np.int64),
    )


def _united(spans: _Spans) -> Intervals:
    both = np.array(spans, np.int64).reshape(-1, 2)
    return Intervals.united(both[:, 0], both[:, 1])


def _launch_columns(
    kernels: Sequence[_Kernel], calls: dict[int, tuple[int, int]], own_ns: Ints
) -> _Row:
    """Return how many kernels and launches there are, and the launches' host time.

    A launch is a call of the runtime (one of a graph starts many kernels); where the profiler saw
    none of these calls, it is an operator with kernels, and its time the operator's own.
    """
    known = {kernel.call for kernel in kernels if kernel.call >= 0}
    operators = {kernel.operator for kernel in kernels if kernel.operator >= 0}
    columns: _Row = {"kernels": len(kernels), "launches": None, "launches_s": None}
    if known or not kernels:
        total = sum(calls[call][1] - calls[call][0] for call in known)
        columns.update(launches=len(known), launches_s=total * _S, launched_by=BY_RUNTIME)
    elif operators:
        total = int(own_ns[list(operators)].sum())
        columns.update(launches=len(operators), launches_s=total * _S, launched_by=BY_OPERATOR)
    return columns


# Gaps -------------------------------------------------------------------------------------------


def _gap_rows(
    gaps: Gaps, work: Sequence[_Kernel], owned: Attribution, index: int, device: str
) -> list[_Row]:
    return [
        {
            "slice": index,
            "device": device,
            **row,
            **_neighbour(work[after] if after >= 0 else None, owned, "after"),
            **_neighbour(work[before] if before >= 0 else None, owned, "before"),
        }
        for row, after, before in by_cause(gaps)
    ]


def _neighbour(kernel: _Kernel | None, owned: Attribution, which: str) -> _Row:
    """Return the operator that launched a kernel and its module; without one, the kernel's name."""
    if kernel is None:
        return {}
    names = owned.events.names
    known = kernel.operator >= 0
    return {
        f"{which}_operator": names.values[names.ids[kernel.operator]] if known else kernel.name,
        f"{which}_module_id": (int(owned.owner[kernel.operator]) or None) if known else None,
    }
