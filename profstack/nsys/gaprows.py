"""When devices were busy and why they were not, by the rules that the torch layer goes by.

Only what lies in steps counts. Without steps a device's time is from its first kernel to the end
of its last one: what was before, the capture's begin, is no gap of the program's.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from profstack.devicegaps import UNKNOWN, Host, Intervals, Kernels, by_cause, gaps_between
from profstack.nsys.capture import Capture
from profstack.nsys.capturesteps import Steps
from profstack.nsys.projection import COPY, SET, launched
from profstack.nsys.summaries import S, device_name
from profstack.nvtxranges import BACKWARD, DOMAIN, FORWARD, MODULE
from profstack.torchtrace.columns import Bools, Ints

# Calls that return when the device has done what they wait for; a copy within or to a device
# and one that says it is asynchronous do not.
_WAITS = re.compile(r"cu(da)?\w*Synchronize|cu(da)?Memcpy(?!\w*(Async|DtoD|Peer))")


@dataclass(frozen=True)
class _Device:
    """What ran on one device; positions in the export's frame of work."""

    name: str
    kernels: Ints
    busy: Intervals
    copies: Intervals


def add_busy(capture: Capture, rows: list[dict[str, Any]]) -> None:
    """Put into rows of `nsys_steps` how long their device was busy in each step."""
    times = capture.steps.times
    for device in _devices(capture):
        busy = device.busy.inside(times.start, times.end).tolist()
        own = [row for row in rows if row["device"] == device.name]
        for row, busy_ns in zip(own, busy, strict=bool(own)):
            row["busy_s"] = busy_ns * S
            row["idle_s"] = row["wall_s"] - busy_ns * S


def gap_rows(capture: Capture) -> list[dict[str, Any]]:
    """Rows of `nsys_gaps`; none where the file has no calls: every cause would be a guess."""
    if not len(capture.export.calls):
        return []
    frame, steps = capture.export.work, capture.steps
    start, end = (frame[name].to_numpy(np.int64) for name in ("start", "end"))
    begun = launched(frame, capture.export.calls, UNKNOWN)
    host = _host(capture)
    rows = []
    for device in _devices(capture):
        some = device.kernels
        if not len(some):
            continue
        kernels = Kernels(start[some], end[some], begun[some])
        runs = _runs(steps) or [(int(start[some[0]]), int(end[some].max()))]
        gaps = gaps_between(kernels, device.busy, device.copies, host, runs)
        # Between two steps the host does what belongs to neither.
        for cause in by_cause(gaps, steps.counted(gaps.begin, gaps.end)):
            rows.append(
                {
                    "device": device.name,
                    "cause": cause.cause,
                    "count": cause.count,
                    "total_s": cause.total * S,
                    "longest_s": cause.longest * S,
                    "after": _told(capture, some, cause.after),
                    "before": _told(capture, some, cause.before),
                }
            )
    return sorted(rows, key=lambda row: -row["total_s"])


def _devices(capture: Capture) -> Iterator[_Device]:
    """Everything that ran on each device, also what was launched before the first step."""
    frame = capture.export.work
    start, end, device = (frame[name].to_numpy(np.int64) for name in ("start", "end", "device"))
    copies, sets = ((frame["kind"] == kind).to_numpy(np.bool_) for kind in (COPY, SET))
    in_order = np.argsort(start, kind="stable")
    for number in capture.devices():
        own = device == number
        works, copied = own & ~copies, own & copies
        kernels = in_order[(works & ~sets)[in_order]]
        yield _Device(
            device_name(number),
            kernels,
            Intervals.united(start[works], end[works]),
            Intervals.united(start[copied], end[copied]),
        )


def _host(capture: Capture) -> Host:
    calls, steps = capture.export.calls, capture.steps
    names = calls["name"]
    waits = {name for name in names.unique() if _WAITS.match(str(name))}
    ended = calls["end"].to_numpy(np.int64)[names.isin(waits).to_numpy(np.bool_)]
    edges = np.unique([*steps.times.start.tolist(), *(until for _, until in _runs(steps))])
    return Host(np.sort(ended), _waits(capture), edges.astype(np.int64))


def _waits(capture: Capture) -> Intervals:
    """From the begin of each step to its first module, forward or backward range."""
    tree, steps = capture.tree, capture.steps
    begins = np.sort(tree.start[_working(capture)])
    first = np.searchsorted(begins, steps.times.start)
    known = first < len(begins)
    start, first = steps.times.start[known], begins[first[known]]
    inside = first < steps.times.end[known]
    return Intervals.united(start[inside], first[inside])


def _working(capture: Capture) -> Bools:
    """The ranges in which the model works, on the steps' thread."""
    tree = capture.tree
    labels = [node.label for node in tree.nodes]
    kinds = (MODULE, FORWARD, BACKWARD)
    works = np.array([each.domain == DOMAIN and each.kind in kinds for each in labels], np.bool_)
    on_thread: Bools = tree.thread == capture.steps.thread
    return works[tree.node] & tree.nests & on_thread


def _runs(steps: Steps) -> list[tuple[int, int]]:
    """Begin and end of each run of steps that follow each other."""
    start, end = steps.times.start.tolist(), steps.times.end.tolist()
    return [(start[first], end[last]) for first, last in steps.runs()]


def _told(capture: Capture, kernels: Ints, position: int) -> str | None:
    """A kernel and the range that it was launched in."""
    if position < 0:
        return None
    row = int(kernels[position])
    name = str(capture.export.work["name"].iloc[row])
    found = np.flatnonzero(capture.work.row == row)
    innermost = int(capture.work.innermost[found[0]]) if len(found) else -1
    if innermost < 0:
        return name
    return f"{name} in {capture.tree.nodes[int(capture.tree.node[innermost])].label.name}"
