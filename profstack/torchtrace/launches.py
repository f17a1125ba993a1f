"""What a step launches, what a launch costs the host, and why a device has nothing to do.

The device's time is cut at the steps' ends on the host's clock: busy is the time in which at least
one kernel runs on any of its streams, so that busy and idle together are the step. Copies alone
do not make it busy; they are a cause of being idle.
"""

from __future__ import annotations

import bisect
import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np

from profstack.devicegaps import UNKNOWN, Gaps, Host, Intervals, Kernels, by_cause, gaps_between
from profstack.torchtrace.attribution import Attribution, in_steps, main_thread
from profstack.torchtrace.eventkinds import COPY_KIND, SET_KIND, kinds_of
from profstack.torchtrace.events import Ints, around, integers, sums
from profstack.torchtrace.scopes import BACKWARD, EVALUATED, FORWARD, RECOMPUTED

_S = 1e-9
_OPERATOR = re.compile(r"\w+::\w+$")
_SYNCHRONISES = re.compile(r"Synchronize")
_READS_BACK = "aten::_local_scalar_dense"

BY_RUNTIME, BY_OPERATOR = "runtime calls", "operators"


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


def launch_records(
    owned: Attribution,
    index: int,
    boundaries_ns: Sequence[int],
    kernels: Sequence[Any] = (),
    runtime: Sequence[Any] = (),
    left_out: Collection[int] = (),
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Rows of `launches`, one per step that counts and device, and of `gaps`.

    `kernels` are the device's own events, copies among them, `runtime` the calls of its runtime;
    without kernels the rows tell operators alone.
    """
    edges = list(boundaries_ns)
    counted = [step for step in range(len(edges) - 1) if step not in left_out]
    called = _operators(owned, index, edges, counted, left_out)
    calls = _spans(runtime)
    by_device = _by_device(owned, kernels, calls)
    if not by_device:
        return [called[step] for step in counted], []
    bounds = np.array(edges, np.int64)
    host = Host(_synchronised(owned, runtime), _waits(owned, edges), bounds)
    runs = [(edges[first], edges[last + 1]) for first, last in _runs(counted)]
    own_ns = owned.events.self_time()
    rows, gaps = [], []
    for device, (work, sets, copies) in by_device.items():
        busy = _united([*((each.start, each.end) for each in work), *sets])
        busy_ns = busy.inside(bounds[:-1], bounds[1:]).tolist()
        launched = _launched_by_step(work, edges)
        for step in counted:
            rows.append(
                {
                    **called[step],
                    "device": device,
                    **_launches(launched.get(step, []), calls, own_ns),
                    "busy_s": busy_ns[step] * _S,
                    "idle_s": (edges[step + 1] - edges[step] - busy_ns[step]) * _S,
                }
            )
        found = gaps_between(_columns(work), busy, _united(copies), host, runs)
        gaps += _gap_rows(found, work, owned, index, device)
    return rows, gaps


# -- the host --------------------------------------------------------------------------------------


def _operators(
    owned: Attribution,
    index: int,
    edges: Sequence[int],
    counted: Sequence[int],
    left_out: Collection[int],
) -> dict[int, dict[str, Any]]:
    """The row of each step without its device: operators of torch's dispatcher, no ranges."""
    events = owned.events
    wanted = events.names.where(lambda name: _OPERATOR.match(name) is not None)
    wanted &= ~owned.is_range & ~events.memory & in_steps(events, edges, left_out)
    # Names given by the script may look like operators.
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


def _spans(runtime: Sequence[Any]) -> dict[int, tuple[int, int]]:
    """Begin and end of the runtime's calls by their correlation numbers."""
    numbers = integers(runtime, "correlation_id").tolist()
    start = integers(runtime, "start_ns")
    end = start + integers(runtime, "duration_ns")
    return dict(zip(numbers, zip(start.tolist(), end.tolist(), strict=True), strict=True))


def _synchronised(owned: Attribution, runtime: Sequence[Any]) -> Ints:
    """When the host ended to wait for a device, in order."""
    events = owned.events
    reads = np.flatnonzero(events.names.where(lambda name: name == _READS_BACK))
    waited = [event for event in runtime if _SYNCHRONISES.search(event.name())]
    ends = integers(waited, "start_ns") + integers(waited, "duration_ns")
    return np.sort(np.concatenate([events.end[reads], ends]))


def _waits(owned: Attribution, edges: Sequence[int]) -> Intervals:
    """From the beginning of each step to its first module call or backward pass."""
    scopes = owned.scopes
    working = np.isin(scopes.kind, (FORWARD, RECOMPUTED, BACKWARD, EVALUATED))
    working &= scopes.events.thread == main_thread(scopes)
    begins = np.sort(scopes.events.start[working]).tolist()
    waits: _Spans = []
    for begin, end in pairwise(edges):
        first = bisect.bisect_left(begins, begin)
        if first < len(begins) and begins[first] < end:
            waits.append((begin, begins[first]))
    return _united(waits)


# -- the devices -----------------------------------------------------------------------------------

# The kernels of a device, and the times in which it filled memory or copied.
_Spans = list[tuple[int, int]]
_Work = tuple[list[_Kernel], _Spans, _Spans]


def _by_device(
    owned: Attribution, kernels: Sequence[Any], calls: dict[int, tuple[int, int]]
) -> dict[str, _Work]:
    events = owned.events
    if not kernels:
        return {}
    numbers = events.integers("correlation_id").tolist()
    operators = {number: position for position, number in enumerate(numbers) if number > 0}
    devices: dict[str, _Work] = {}
    for event, kind in zip(kernels, kinds_of(kernels), strict=True):
        name = f"{event.device_type().name.lower()}:{event.device_index()}"
        work, sets, copies = devices.setdefault(name, ([], [], []))
        start = event.start_ns()
        end = start + event.duration_ns()
        if kind in (COPY_KIND, SET_KIND):
            (copies if kind == COPY_KIND else sets).append((start, end))
            continue
        operator = operators.get(event.linked_correlation_id(), -1)
        call = event.correlation_id()
        launched = int(events.start[operator]) if operator >= 0 else None
        if call in calls:
            launched = calls[call][0]
        else:
            call = -1
        work.append(_Kernel(start, end, launched, call, operator, event.name()))
    for work, _, _ in devices.values():
        work.sort(key=lambda kernel: kernel.start)
    return devices


def _columns(work: Sequence[_Kernel]) -> Kernels:
    launched = (UNKNOWN if each.launched is None else each.launched for each in work)
    count = len(work)
    return Kernels(
        np.fromiter((each.start for each in work), np.int64, count),
        np.fromiter((each.end for each in work), np.int64, count),
        np.fromiter(launched, np.int64, count),
    )


def _united(spans: _Spans) -> Intervals:
    both = np.array(spans, np.int64).reshape(-1, 2)
    return Intervals.united(both[:, 0], both[:, 1])


def _launched_by_step(work: Sequence[_Kernel], edges: Sequence[int]) -> dict[int, list[_Kernel]]:
    """Kernels by the step in which the host launched them; they may run in a later one."""
    steps: dict[int, list[_Kernel]] = {}
    for kernel in work:
        moment = kernel.start if kernel.launched is None else kernel.launched
        steps.setdefault(bisect.bisect_right(edges, moment) - 1, []).append(kernel)
    return steps


def _launches(
    kernels: Sequence[_Kernel], calls: dict[int, tuple[int, int]], own_ns: Ints
) -> dict[str, Any]:
    """How many kernels and launches, and the host time of these.

    A launch is a call of the runtime (one of a graph starts many kernels); where the profiler saw
    none of these calls, it is an operator with kernels, and its time the operator's own.
    """
    known = {kernel.call for kernel in kernels if kernel.call >= 0}
    operators = {kernel.operator for kernel in kernels if kernel.operator >= 0}
    columns: dict[str, Any] = {"kernels": len(kernels), "launches": None, "launches_s": None}
    if known or not kernels:
        total = sum(calls[call][1] - calls[call][0] for call in known)
        columns.update(launches=len(known), launches_s=total * _S, launched_by=BY_RUNTIME)
    elif operators:
        total = int(own_ns[list(operators)].sum())
        columns.update(launches=len(operators), launches_s=total * _S, launched_by=BY_OPERATOR)
    return columns


# -- gaps ------------------------------------------------------------------------------------------


def _gap_rows(
    gaps: Gaps, work: Sequence[_Kernel], owned: Attribution, index: int, device: str
) -> list[dict[str, Any]]:
    return [
        {
            "slice": index,
            "device": device,
            "cause": each.cause,
            "count": each.count,
            "total_s": each.total * _S,
            "longest_s": each.longest * _S,
            **_told(work[each.after] if each.after >= 0 else None, owned, "after"),
            **_told(work[each.before] if each.before >= 0 else None, owned, "before"),
        }
        for each in by_cause(gaps)
    ]


def _told(kernel: _Kernel | None, owned: Attribution, which: str) -> dict[str, Any]:
    """The operator that launched a kernel and its module; the kernel's own name without one."""
    if kernel is None:
        return {}
    names = owned.events.names
    known = kernel.operator >= 0
    return {
        f"{which}_operator": names.values[names.ids[kernel.operator]] if known else kernel.name,
        f"{which}_module_id": (int(owned.owner[kernel.operator]) or None) if known else None,
    }


def _runs(steps: Sequence[int]) -> list[tuple[int, int]]:
    """First and last of each run of consecutive steps."""
    runs: list[tuple[int, int]] = []
    for step in steps:
        if runs and runs[-1][1] == step - 1:
            runs[-1] = (runs[-1][0], step)
        else:
            runs.append((step, step))
    return runs
