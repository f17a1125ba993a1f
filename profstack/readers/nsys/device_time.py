"""When devices were busy, idle or communicating: steps, gaps with their causes, collectives.

The rules of gaps are those of the torch layer. Only time in steps counts. Without steps a device's
time is from its first work to the end of its last: the time before is no gap of the program's.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from profstack.readers.device_gaps import (
    UNKNOWN,
    Gaps,
    Host,
    Intervals,
    Kernels,
    S,
    at,
    by_cause,
    gaps_between,
)
from profstack.readers.nsys.capture import COPY, SET, Capture, device_name, launched
from profstack.readers.nvtx import BACKWARD, DOMAIN, FORWARD, MODULE
from profstack.readers.torchtrace.columns import Bools, Ints
from profstack.readers.torchtrace.events import COMMUNICATION
from profstack.storage.schema.column import Record

# --- Devices --------------------------------------------------------------------------------------


class _Device(NamedTuple):
    """One device: its work by position in the export's frame, in order, and when it did any.

    Work launched before the first step is among it.
    """

    number: int
    # Kernels, whole graphs and fills.
    work: Ints
    busy: Intervals
    copying: Intervals
    # Kernels, graphs, fills and copies.
    in_use: Intervals

    @property
    def name(self) -> str:
        return device_name(self.number)


def _devices(capture: Capture) -> Iterator[_Device]:
    """Yield each device that worked in the steps, or for them."""
    frame = capture.export.work
    start, end, device = (frame[name].to_numpy(np.int64) for name in ("start", "end", "device"))
    copies = (frame["kind"] == COPY).to_numpy(np.bool_)
    in_order = np.argsort(start, kind="stable")
    worked = capture.steps.counted(start, end) > 0
    worked[capture.work.row] = True
    for number in np.unique(device[worked]).tolist():
        own = device == number
        busy, copying, in_use = (
            Intervals.united(start[some], end[some]) for some in (own & ~copies, own & copies, own)
        )
        work = in_order[(own & ~copies)[in_order]]
        yield _Device(number, work, busy, copying, in_use)


def step_rows(capture: Capture) -> list[Record]:
    """Return rows of `nsys_steps`: per step and device, or per step where no device worked."""
    steps, work = capture.steps, capture.work
    wall = (steps.times.end - steps.times.start).tolist()
    begun = (steps.times.start - capture.begin_ns).tolist()
    alone: list[Record] = [
        {"step": number, "device": None, "started_s": begun_ns * S, "wall_s": wall_ns * S}
        for number, begun_ns, wall_ns in zip(steps.numbers, begun, wall, strict=True)
    ]
    if not alone:
        return []
    kernels = np.flatnonzero(~work.moves & (work.call >= 0))
    # Without a call of any kernel it is not known which step launched them.
    step = steps.at(capture.calls.start)[work.call[kernels]]
    known = bool(len(capture.export.calls))
    device = capture.export.work["device"].to_numpy(np.int64)[work.row[kernels]]
    rows: list[Record] = []
    for each in _devices(capture):
        own = device == each.number
        count = np.bincount(step[own], minlength=len(steps)).tolist()
        spent = np.bincount(step[own], work.length[kernels][own], minlength=len(steps)).tolist()
        busy = each.busy.inside(steps.times.start, steps.times.end).tolist()
        in_use = each.in_use.inside(steps.times.start, steps.times.end).tolist()
        rows += [
            {
                **row,
                "device": each.name,
                "kernels": count[position] if known else None,
                "device_s": spent[position] * S if known else None,
                "busy_s": busy[position] * S,
                "idle_s": (wall[position] - busy[position]) * S,
                "fully_idle_s": (wall[position] - in_use[position]) * S,
            }
            for position, row in enumerate(alone)
        ]
    return rows or alone


def process_rows(capture: Capture, *, own_steps: bool) -> list[Record]:
    """Return rows of `nsys_processes`: of one process, by device."""
    export, steps, work, tree = capture.export, capture.steps, capture.work, capture.tree
    span = int((steps.times.end - steps.times.start).sum())
    common: Record = {
        "device": None,
        "steps": len(steps),
        "own_steps": int(own_steps),
        "wall_s": (span if len(steps) else export.end_ns - export.begin_ns) * S,
        "ranges": len(tree.start),
        "api_calls": None if "calls" in export.missing else len(capture.calls.row),
    }
    device = export.work["device"].to_numpy(np.int64)[work.row]
    copies = export.work["copies"].to_numpy(np.int64)[work.row]
    rows: list[Record] = []
    for number in np.unique(device).tolist():
        kernels, moved = ((device == number) & which for which in (~work.moves, work.moves))
        begin, length = work.start[kernels], work.length[kernels]
        rows.append(
            {
                **common,
                "device": device_name(number),
                "kernels": int(kernels.sum()),
                "device_s": int(length.sum()) * S,
                "busy_s": Intervals.united(begin, begin + length).total * S,
                "copies": int(copies[moved].sum()),
                "copies_s": int(work.length[moved].sum()) * S,
            }
        )
    return rows or [common]


# --- Gaps -----------------------------------------------------------------------------------------

# Calls that return when the device has done what they wait for; a copy within or to a device
# and one that says it is asynchronous do not.
_WAITS = re.compile(r"cu(da)?\w*Synchronize|cu(da)?Memcpy(?!\w*(Async|DtoD|Peer))")
# Of the longest gaps of all devices of a process.
MOST_GAPS = 100


def gap_rows(capture: Capture) -> tuple[list[Record], list[Record]]:
    """Return rows of `nsys_gaps` and of `nsys_longest_gaps`.

    There are none where the file has no calls: causes would be guesses.
    """
    if not len(capture.export.calls):
        return [], []
    frame, steps = capture.export.work, capture.steps
    start, end = (frame[name].to_numpy(np.int64) for name in ("start", "end"))
    begun = launched(frame, capture.export.calls, UNKNOWN)
    host = _host(capture)
    innermost = np.full(len(frame), -1, np.int64)
    innermost[capture.work.row] = capture.work.innermost
    rows, longest = list[Record](), list[Record]()
    for device in _devices(capture):
        some = device.work
        if not len(some):
            continue
        work = Kernels(start[some], end[some], begun[some])
        runs = steps.runs() or [(int(start[some[0]]), int(end[some].max()))]
        gaps = gaps_between(work, device.busy, device.copying, host, runs)
        # Time between two steps belongs to neither.
        length = steps.counted(gaps.begin, gaps.end)
        copying = device.copying.common(steps.times) if len(steps) else device.copying
        idle = length - copying.inside(gaps.begin, gaps.end)

        rows += [
            {
                "device": device.name,
                **row,
                "fully_idle_s": int(idle[(gaps.cause == row["cause"]) & (length > 0)].sum()) * S,
                **_around(capture, some, innermost, after, before),
            }
            for row, after, before in by_cause(gaps, length)
        ]
        longest += _longest_rows(capture, device, gaps, innermost)
    rows.sort(key=lambda row: float(row["total_s"] or 0), reverse=True)
    longest.sort(key=lambda row: float(row["gap_s"] or 0), reverse=True)
    return rows, longest[:MOST_GAPS]


def _longest_rows(
    capture: Capture, device: _Device, gaps: Gaps, innermost: Ints
) -> Iterator[Record]:
    """Yield rows of the longest gaps of a device, of each its whole time."""
    fully = gaps.end - gaps.begin - device.copying.inside(gaps.begin, gaps.end)
    step = capture.steps.at(gaps.begin)
    for place in np.argsort(gaps.begin - gaps.end, kind="stable")[:MOST_GAPS].tolist():
        after, before = int(gaps.after[place]), int(gaps.before[place])
        yield {
            "device": device.name,
            "started_s": (int(gaps.begin[place]) - capture.begin_ns) * S,
            "step": capture.steps.numbers[step[place]] if step[place] >= 0 else None,
            "gap_s": int(gaps.end[place] - gaps.begin[place]) * S,
            "fully_idle_s": int(fully[place]) * S,
            "cause": str(gaps.cause[place]),
            **_around(capture, device.work, innermost, after, before),
        }


def _around(capture: Capture, work: Ints, innermost: Ints, after: int, before: int) -> Record:
    """Return what ran after and before a gap, with ranges; `work` are positions in the export."""
    labels = {}
    for name, place in (("after", after), ("before", before)):
        labels[name] = None if place < 0 else _label(capture, int(work[place]), innermost)
    return labels


def _host(capture: Capture) -> Host:
    calls, steps, tree = capture.export.calls, capture.steps, capture.tree
    names = calls["name"]
    waits = {name for name in names.unique() if _WAITS.match(str(name))}
    ended = calls["end"].to_numpy(np.int64)[names.isin(waits).to_numpy(np.bool_)]
    edges = np.array([*steps.times.start.tolist(), *(until for _, until in steps.runs())], np.int64)
    # From each step's begin to the first range in which the model works, on the steps' thread.
    labels = [node.label for node in tree.nodes]
    kinds = (MODULE, FORWARD, BACKWARD)
    works = np.array([each.domain == DOMAIN and each.kind in kinds for each in labels], np.bool_)
    works = works[tree.node] & tree.nests & (tree.thread == steps.thread)
    begins = np.sort(tree.start[works])
    start, end = steps.times.start, steps.times.end
    first = at(begins, np.searchsorted(begins, start), UNKNOWN)
    inside = first < end
    return Host(np.sort(ended), Intervals.united(start[inside], first[inside]), np.unique(edges))


def _label(capture: Capture, row: int, innermost: Ints) -> str:
    """Return the name of a row of work, and the range that it was launched in."""
    name, tree = str(capture.export.work["name"].iloc[row]), capture.tree
    inside = int(innermost[row])
    return f"{name} in {tree.nodes[int(tree.node[inside])].label.name}" if inside >= 0 else name


# --- Communication between devices, and what ran meanwhile ----------------------------------------

_COLLECTIVE = re.compile(
    r"AllReduce|AllGather|ReduceScatter|AllToAll|Broadcast|Reduce|SendRecv|Send|Recv"
)


def communication_rows(capture: Capture) -> list[Record]:
    """Return rows of `nsys_communication`: kernels of collectives, by device and kind."""
    work, frame = capture.work, capture.export.work
    kernels = np.flatnonzero(~work.moves)
    row = work.row[kernels]
    names = frame["name"].iloc[row]
    collective = {
        name: found[0] if (found := _COLLECTIVE.search(str(name))) else str(name)
        for name in names.unique()
        if COMMUNICATION.search(str(name))
    }
    if not collective:
        return []
    communicates = names.isin(collective).to_numpy(np.bool_)
    device = frame["device"].to_numpy(np.int64)
    start, end = (frame[name].to_numpy(np.int64) for name in ("start", "end"))
    # What computes may have been launched before the steps.
    computes = ~frame["kind"].isin((COPY, SET)).to_numpy(np.bool_)
    computes &= ~frame["name"].isin(collective).to_numpy(np.bool_)
    rows: list[Record] = []
    for number in np.unique(device[row[communicates]]).tolist():
        own: Bools = computes & (device == number)
        computing = Intervals.united(start[own], end[own])
        here = np.flatnonzero(communicates & (device[row] == number))
        kinds = np.array([collective[name] for name in names.iloc[here]], np.object_)
        for kind in sorted(set(kinds.tolist())):
            some = row[here[kinds == kind]]
            busy = Intervals.united(start[some], end[some])
            overlapped = int(computing.inside(busy.start, busy.end).sum())
            rows.append(
                {
                    "device": device_name(number),
                    "collective": kind,
                    "calls": len(some),
                    "device_s": int((end[some] - start[some]).sum()) * S,
                    "busy_s": busy.total * S,
                    "overlapped_s": overlapped * S,
                    "exposed_s": (busy.total - overlapped) * S,
                }
            )
    return sorted(rows, key=lambda each: float(each["device_s"] or 0), reverse=True)
