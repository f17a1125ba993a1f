"""Rows of launches and gaps: operators and kernels of a step, launch costs, idle times of devices.

The device's time is cut at the steps' ends on the host's clock: busy is the time in which at least
one kernel runs on any of its streams, so that busy and idle together are the step. Copies alone
do not make it busy; they are a cause of being idle.
"""

from __future__ import annotations

import bisect
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np

from profstack.readers.device_gaps import UNKNOWN, Host, Intervals, Kernels, by_cause, gaps_between
from profstack.readers.torchtrace.attribution import Attribution, main_thread
from profstack.readers.torchtrace.columns import Ints, StringColumn, integers, sums
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

BY_RUNTIME, BY_OPERATOR = "runtime calls", "operators"

# Some columns of a row.
_Row = dict[str, SqlValue]


@dataclass(frozen=True)
class _Work:
    """Work of one device: its kernels in order of their begin, and when it was busy or copied.

    `calls` are the numbers of the runtime's calls that launched the kernels, `operators` the host
    events that did; -1 where there is none.
    """

    kernels: Kernels
    names: list[str]
    calls: Ints
    operators: Ints
    busy: Intervals
    copies: Intervals


def launch_records(
    owned: Attribution, index: int, kernels: Sequence[Any] = (), runtime: Sequence[Any] = ()
) -> tuple[Records, Records]:
    """Return rows of `launches`, one per step that counts and device, and of `gaps`.

    `kernels` are the device's own events, copies among them, `runtime` the calls of its runtime;
    without kernels the rows have operators alone.
    """
    edges = owned.boundaries_ns
    counted = [step for step in range(len(edges) - 1) if step not in owned.left_out]
    called = _operator_columns(owned, index, counted)
    if not kernels:
        return [called[step] for step in counted], []
    # Begin and end of the runtime's calls by their correlation numbers.
    start = integers(runtime, "start_ns")
    spans = zip(start.tolist(), (start + integers(runtime, "duration_ns")).tolist(), strict=True)
    calls = dict(zip(integers(runtime, "correlation_id").tolist(), spans, strict=True))
    bounds = np.array(edges, np.int64)
    host = Host(_synchronised(owned, runtime), _waits(owned), bounds)
    # From the first to the last of consecutive steps.
    together = np.split(counted, np.flatnonzero(np.diff(counted) > 1) + 1)
    runs = [(edges[steps[0]], edges[steps[-1] + 1]) for steps in together if len(steps)]
    own_ns = owned.events.self_time()
    rows, gaps = list[_Row](), list[_Row]()
    for name, work in _by_device(owned, kernels, calls).items():
        busy_ns = work.busy.inside(bounds[:-1], bounds[1:]).tolist()
        # Kernels by the step in which the host launched them; they may run in a later one.
        launched = work.kernels.launched
        moments = np.where(launched == UNKNOWN, work.kernels.start, launched)
        step_of = np.searchsorted(bounds, moments, side="right") - 1
        for step in counted:
            here = step_of == step
            rows.append(
                {
                    **called[step],
                    "device": name,
                    **_launch_columns(work.calls[here], work.operators[here], calls, own_ns),
                    "busy_s": busy_ns[step] * _S,
                    "idle_s": (edges[step + 1] - edges[step] - busy_ns[step]) * _S,
                }
            )
        found = gaps_between(work.kernels, work.busy, work.copies, host, runs)
        for row, after, before in by_cause(found):
            around_it = _neighbour(work, after, owned, "after")
            around_it.update(_neighbour(work, before, owned, "before"))
            gaps.append({"slice": index, "device": name, **row, **around_it})
    return rows, gaps


# The host ---------------------------------------------------------------------------------------


def _operator_columns(owned: Attribution, index: int, counted: Sequence[int]) -> dict[int, _Row]:
    """Return the columns of each step that need no device: operators of torch's dispatcher."""
    events, edges = owned.events, owned.boundaries_ns
    wanted = events.names.where(is_operator) & owned.is_work
    # Ranges named by the script may look like operators.
    doubtful = np.flatnonzero(wanted & ~events.names.where(lambda name: name.startswith("aten::")))
    wanted[doubtful] = events.integers("is_user_annotation", doubtful) == 0
    chosen, steps = np.flatnonzero(wanted), len(edges) - 1
    is_outer = around(events, chosen)[chosen] == 0
    step_of = np.searchsorted(edges, events.start[chosen], side="right") - 1
    calls = np.bincount(step_of, minlength=steps)
    outermost = np.bincount(step_of[is_outer], minlength=steps)
    inside = sums(step_of[is_outer], events.duration[chosen[is_outer]], steps)
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


def _synchronised(owned: Attribution, runtime: Sequence[Any]) -> Ints:
    """Return when the host stopped waiting for a device, in order."""
    events = owned.events
    reads = np.flatnonzero(events.names.where(lambda name: name == "aten::_local_scalar_dense"))
    waited = [event for event in runtime if "Synchronize" in event.name()]
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
    waits = np.array([(begin, first) for begin, end, first in firsts if first < end], np.int64)
    return Intervals.united(*waits.reshape(-1, 2).T)


# The devices ------------------------------------------------------------------------------------


def _by_device(
    owned: Attribution, kernels: Sequence[Any], calls: dict[int, tuple[int, int]]
) -> dict[str, _Work]:
    start = integers(kernels, "start_ns")
    end = start + integers(kernels, "duration_ns")
    numbers = integers(kernels, "correlation_id")
    numbers[~np.isin(numbers, list(calls))] = -1
    # The last place is for kernels without an operator.
    operators = launchers(owned.events, kernels)
    launched = np.append(owned.events.start, UNKNOWN)[operators]
    launched[numbers >= 0] = [calls[number][0] for number in numbers.tolist() if number >= 0]
    kinds = np.array(kinds_of(kernels))
    devices = StringColumn.of(map(device_name, kernels), len(kernels))
    is_copy = kinds == COPY_KIND
    found = {}
    for device, name in enumerate(devices.values):
        here = devices.ids == device
        work = np.flatnonzero(here & ~is_copy & (kinds != SET_KIND))
        work = work[np.argsort(start[work], kind="stable")]
        found[name] = _Work(
            Kernels(start[work], end[work], launched[work]),
            [kernels[at].name() for at in work.tolist()],
            numbers[work],
            operators[work],
            Intervals.united(start[here & ~is_copy], end[here & ~is_copy]),
            Intervals.united(start[here & is_copy], end[here & is_copy]),
        )
    return found


def _launch_columns(
    numbers: Ints, operators: Ints, calls: dict[int, tuple[int, int]], own_ns: Ints
) -> _Row:
    """Return how many kernels and launches there are, and the launches' host time.

    A launch is a call of the runtime (one of a graph starts many kernels); where the profiler saw
    none of these calls, it is an operator with kernels, and its time the operator's own.
    """
    known, operators = np.unique(numbers[numbers >= 0]), np.unique(operators[operators >= 0])
    columns: _Row = {"kernels": len(numbers), "launches": None, "launches_s": None}
    if len(known) or not len(numbers):
        total = sum(calls[call][1] - calls[call][0] for call in known.tolist())
        columns.update(launches=len(known), launches_s=total * _S, launched_by=BY_RUNTIME)
    elif len(operators):
        total = int(own_ns[operators].sum())
        columns.update(launches=len(operators), launches_s=total * _S, launched_by=BY_OPERATOR)
    return columns


# Gaps -------------------------------------------------------------------------------------------


def _neighbour(work: _Work, place: int, owned: Attribution, which: str) -> _Row:
    """Return the operator that launched a kernel and its module; without one, the kernel's name."""
    if place < 0:
        return {}
    names, operator = owned.events.names, int(work.operators[place])
    known = operator >= 0
    return {
        f"{which}_operator": names.values[names.ids[operator]] if known else work.names[place],
        f"{which}_module_id": (int(owned.owner[operator]) or None) if known else None,
    }
