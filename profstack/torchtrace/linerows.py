"""Rows of source lines: the stamps of a line tracer joined with the profiler's events by time.

Every moment between two stamps is one line's. Of it, operators have what any of them was running,
also on the threads of devices that do the backward pass the line waits for; the rest is Python's.
So the two add up to the line's time, and all lines together to no more than the steps took.
"""

from __future__ import annotations

import linecache
import os
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from types import CodeType
from typing import Any

import numpy as np

from profstack.interrupts import is_scripts
from profstack.regions import RANGE_PREFIX
from profstack.torchtrace.attribution import in_steps
from profstack.torchtrace.events import (
    EVALUATE,
    SLICE_RANGE,
    Bools,
    HostEvents,
    Ints,
)
from profstack.torchtrace.lineowners import LineOwners
from profstack.torchtrace.linestretches import Stretches
from profstack.torchtrace.linetrace import BUDGET, LineTracer
from profstack.torchtrace.sourcefiles import source_records

_S = 1e-9


@dataclass
class _Row:
    """What is known of one line; nanoseconds, None where it is not known."""

    calls: int | None = 0
    python: float = 0.0
    operator: float = 0.0
    backward: float = 0.0
    device: float = 0.0
    reason: str | None = None

    def record(self, *, has_device: bool) -> dict[str, Any]:
        """The columns of its row."""
        return {
            "calls": self.calls,
            "python_s": self.python * _S,
            "operator_s": self.operator * _S,
            "backward_s": self.backward * _S,
            "device_s": self.device * _S if has_device else None,
        }


@dataclass(frozen=True)
class LinedSlice:
    """What is known of a slice whose lines were traced.

    `boundaries_ns` are its start and the end of each step, on the profiler's clock; the steps
    numbered in `left_out`, from 0, are not counted. `kernels` are the raw events of devices;
    without any of them nothing is said of device time. `is_loss` says it of a module's number.
    """

    index: int
    boundaries_ns: Sequence[int]
    left_out: Collection[int] = ()
    kernels: Sequence[Any] = ()
    is_loss: Callable[[int], bool] = lambda number: False


Frames = dict[str, list[dict[str, Any]]]
Notes = list[tuple[str, str]]


def line_tables(
    tracer: LineTracer, events: HostEvents, observed: LinedSlice
) -> tuple[Frames, Notes]:
    """Rows of `lines` (time on each line inside operators, and the rest of the time on it), of
    `module_lines` (the same, divided among the modules that it was spent in) and of
    `source_files` (the text around them), and notes.

    The rows of a line in `module_lines` add up to its row in `lines`.
    """
    if not tracer.times:
        return {"lines": []}, [("no-lines", "no line of the script's own files ran in the slice")]
    threads = _threads(events, in_steps(events, observed.boundaries_ns, observed.left_out))
    owners, notes = _owners(events, observed, threads)
    parts = _parts(tracer, events, observed, owners, threads)
    frames: Frames = {"lines": _line_rows(tracer, parts, observed)}
    frames["source_files"] = source_records(_heaviest_first(parts), observed.index)
    if owners is not None:
        frames["module_lines"] = [
            {"slice": observed.index, "file": file, "line": line, "module_id": owner or None}
            | row.record(has_device=bool(len(observed.kernels)))
            for (file, line, owner), row in parts.items()
        ]
    notes += [("lines-truncated", _truncation(code)) for code in tracer.truncated]
    if tracer.ended is not None:
        notes.append(("lines-truncated", f"lines were traced until {tracer.ended}"))
    return frames, notes


def _heaviest_first(parts: dict[tuple[str, int, int], _Row]) -> list[str]:
    """The files of the lines, the one with the most time first."""
    times: dict[str, float] = {}
    for (file, _, _), part in parts.items():
        times[file] = times.get(file, 0.0) + part.python + part.operator
    return sorted(times, key=lambda file: times[file], reverse=True)


def _owners(
    events: HostEvents, observed: LinedSlice, threads: Ints
) -> tuple[LineOwners | None, Notes]:
    """Whose each moment is; the lines stand without it."""
    try:
        return LineOwners(
            *(events, observed.boundaries_ns, observed.is_loss, observed.left_out, threads)
        ), []
    except Exception as error:
        if is_scripts(error):
            raise
        return None, [("lines-unowned", f"no lines by module: {type(error).__name__}: {error}")]


def _line_rows(
    tracer: LineTracer, parts: dict[tuple[str, int, int], _Row], observed: LinedSlice
) -> list[dict[str, Any]]:
    """Rows of `lines`: what all owners of a line have of it together."""
    whole: dict[tuple[str, int], _Row] = {}
    for (file, line, _), part in parts.items():
        row = whole.setdefault((file, line), _Row(reason=part.reason))
        row.calls = None if part.calls is None or row.calls is None else row.calls + part.calls
        for name in ("python", "operator", "backward", "device"):
            setattr(row, name, getattr(row, name) + getattr(part, name))
    return [
        {
            "slice": observed.index,
            "file": file,
            "line": line,
            "source": linecache.getline(file, line).rstrip("\n") or None,
            "reason": row.reason,
            **row.record(has_device=bool(len(observed.kernels))),
        }
        for (file, line), row in whole.items()
    ]


def _parts(
    tracer: LineTracer,
    events: HostEvents,
    observed: LinedSlice,
    owners: LineOwners | None,
    threads: Ints,
) -> dict[tuple[str, int, int], _Row]:
    """What is known of each line, by file, line and owner."""
    stretches = Stretches(tracer, observed.boundaries_ns, observed.left_out, owners)
    chosen = in_steps(events, observed.boundaries_ns, observed.left_out)
    chosen &= np.isin(events.thread, threads)
    operators = chosen & _operators(events)
    in_backward = events.inherit(_evaluates(events).astype(np.int64)) > 0
    parts: dict[tuple[int, int], _Row] = {(place, 0): _Row() for place in range(len(tracer.lines))}
    for name, sums_ in (
        ("calls", stretches.calls()),
        ("python", stretches.wall()),
        ("operator", stretches.covered(events, operators)),
        ("backward", stretches.covered(events, operators & in_backward)),
        ("device", stretches.launched(events, chosen, observed.kernels)),
    ):
        for key, value in sums_.items():
            setattr(parts.setdefault(key, _Row()), name, value)
    return _by_line(tracer, parts)


def _by_line(
    tracer: LineTracer, parts: dict[tuple[int, int], _Row]
) -> dict[tuple[str, int, int], _Row]:
    """The same by file and line; several code objects may stand on one line."""
    rows: dict[tuple[str, int, int], _Row] = {}
    cut = {id(code) for code in tracer.truncated}
    touched = {place for place, owner in parts if owner}
    for (place, owner), part in parts.items():
        code, line = tracer.lines[place]
        if not owner and place in touched and not (part.calls or part.python or part.device):
            # It was laid out for a line of which modules have all.
            continue
        row = rows.setdefault((code.co_filename, line, owner), _Row())
        if id(code) in cut:
            # Of a function that was let go no line's count is whole.
            row.calls, row.reason = None, _truncation(code)
        elif row.calls is not None:
            row.calls += int(part.calls or 0)
        row.python += part.python - part.operator
        row.operator += part.operator
        row.backward += part.backward
        row.device += part.device
    return rows


def _truncation(code: CodeType) -> str:
    return (
        f"{os.path.basename(code.co_filename)}:{code.co_firstlineno} ({code.co_name}) ran more "
        f"than {BUDGET} lines in the slice: the rest of its time stands on its first line, and "
        f"after {BUDGET} more calls on the line that calls it"
    )


def _operators(events: HostEvents) -> Bools:
    """Events that are no ranges, ours or the script's, and no allocations."""
    _, first = np.unique(events.names.ids, return_index=True)
    # All events of one name are ranges or none is: one of each is asked.
    noted = {
        str(event.name())
        for event in events.raw(first.astype(np.int64))
        if event.is_user_annotation() or event.name().startswith(RANGE_PREFIX)
    }
    return ~events.names.where(noted.__contains__) & ~events.memory


def _evaluates(events: HostEvents) -> Bools:
    return events.names.where(lambda name: name.startswith(EVALUATE))


def _threads(events: HostEvents, chosen: Bools) -> Ints:
    """The thread whose lines are traced, and those that do its backward work.

    The wrapper marks the first one; it waits for the others, so that their time is its line's.
    """
    evaluates = np.flatnonzero(_evaluates(events))
    made_on = events.integers("fwd_thread_id", evaluates)
    elsewhere = made_on != events.thread[evaluates]
    marked = events.thread[events.names.where(lambda name: name == SLICE_RANGE)]
    if not len(marked):
        busy = events.thread[chosen]
        threads, counts = np.unique(busy, return_counts=True)
        marked = threads[counts == counts.max(initial=0)][:1]
    helping = events.thread[evaluates[elsewhere & np.isin(made_on, marked)]]
    return np.concatenate([marked[:1], np.unique(helping)])
