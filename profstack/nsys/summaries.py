"""Rows of what ran in a capture: kernels, copies and calls by the range they belong to."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd

from profstack.nsys.capture import Capture
from profstack.nsys.grouping import Coded, Groups
from profstack.nsys.projection import COPY, GRAPH, Calls, calls_in
from profstack.torchtrace.columns import Ints

S = 1e-9
# Rows of one table; a program that puts a number into every range's name makes any number of them.
MOST_ROWS = 20_000
FILL = "fill"

Row = dict[str, Any]
# Rows, the largest first, and how many of them had to be left out.
Cut = tuple[list[Row], int]


def kernel_rows(capture: Capture) -> Cut:
    """Rows of `nsys_kernels`: kernels, and graphs that were traced whole."""
    work, frame = capture.work, capture.export.work
    some = np.flatnonzero(~work.moves)
    ran = frame.iloc[work.row[some]]
    calls = Coded.of(capture.export.calls["name"].iloc[capture.calls.row])
    kinds, names = capture.places(work.innermost[some])
    columns = {
        "name": Coded.of(ran["name"].where(ran["name"].notna(), ran["kind"])),
        "device": device_names(ran["device"]),
        "stream": Coded.of(ran["stream"]),
        "range_kind": kinds,
        "range_name": names,
        "launched_by": calls.at(work.call[some]),
        "in_graph": Coded.of(_in_graph(ran)),
    }
    groups = Groups.by(*columns.values())
    call = work.call[some]
    # Kernels without a call are groups of their own, whose sum says nothing.
    begun = capture.calls.start[call] if len(capture.calls.start) else work.start[some]
    delay = groups.sums(work.start[some] - begun)
    length = work.length[some]
    return _rows(
        groups,
        columns,
        {
            "calls": groups.calls,
            "device_s": groups.sums(length),
            "longest_s": groups.longest(length),
            "delay_s": [
                int(each) if columns["launched_by"].codes[first] >= 0 else None
                for each, first in zip(delay, groups.first, strict=True)
            ],
        },
        by="device_s",
    )


def copy_rows(capture: Capture) -> Cut:
    """Rows of `nsys_copies`: copies, and memory filled."""
    work, frame = capture.work, capture.export.work
    some = np.flatnonzero(work.moves)
    ran = frame.iloc[work.row[some]]
    kinds, names = capture.places(work.innermost[some])
    columns = {
        "direction": Coded.of(ran["direction"].where(ran["kind"] == COPY, FILL)),
        "from_memory": Coded.of(ran["from_memory"]),
        "to_memory": Coded.of(ran["to_memory"]),
        "device": device_names(ran["device"]),
        "range_kind": kinds,
        "range_name": names,
    }
    groups = Groups.by(*columns.values())
    length = work.length[some]
    values = {
        "calls": groups.sums(ran["copies"].to_numpy(np.int64)),
        "bytes": groups.sums(_bytes(ran)),
        "device_s": groups.sums(length),
        "longest_s": groups.longest(length),
    }
    return _rows(groups, columns, values, by="device_s")


def api_rows(capture: Capture) -> Cut:
    """Rows of `nsys_api`: calls of CUDA, of its libraries and of the system."""
    export, tree, steps = capture.export, capture.tree, capture.steps
    parts = (
        ("cuda", export.calls, capture.calls),
        (None, export.libraries, calls_in(export.libraries, tree, steps)),
        ("os", export.os_calls, calls_in(export.os_calls, tree, steps, lent=False)),
    )
    rows: list[Row] = []
    left_out = 0
    for library, frame, calls in parts:
        some, left = _api_rows(capture, frame, calls, library)
        rows += some
        left_out += left
    rows.sort(key=lambda row: -row["host_s"])
    return rows[:MOST_ROWS], left_out + max(len(rows) - MOST_ROWS, 0)


def step_rows(capture: Capture) -> list[Row]:
    """Rows of `nsys_steps` but for what a device was busy: per step and device, or per step."""
    steps, work = capture.steps, capture.work
    wall = (steps.times.end - steps.times.start).tolist()
    begun = (steps.times.start - capture.export.begin_ns).tolist()
    alone = [
        {
            "step": number,
            "device": None,
            "started_s": begun[position] * S,
            "wall_s": wall[position] * S,
        }
        for position, number in enumerate(steps.numbers)
    ]
    kernels = np.flatnonzero(~work.moves & (work.call >= 0))
    if not len(steps) or not capture.devices():
        return alone
    # Without a call of any kernel it is not known which step launched them.
    step = steps.at(capture.calls.start)[work.call[kernels]] if len(kernels) else kernels
    known = bool(len(capture.export.calls))
    device = capture.export.work["device"].to_numpy(np.int64)[work.row[kernels]]
    rows = []
    for number in capture.devices():
        own = device == number
        count = np.bincount(step[own], minlength=len(steps)).tolist()
        spent = np.bincount(step[own], work.length[kernels][own], minlength=len(steps)).tolist()
        rows += [
            {
                **row,
                "device": device_name(number),
                "kernels": count[position] if known else None,
                "device_s": spent[position] * S if known else None,
            }
            for position, row in enumerate(alone)
        ]
    return rows


def device_name(number: int) -> str:
    """A device as the torch layer calls it."""
    return f"cuda:{number}"


def device_names(column: pd.Series[int]) -> Coded:
    """A column of devices with their names."""
    found = Coded.of(column)
    return Coded(found.codes, [device_name(number) for number in found.values])


# -- how -------------------------------------------------------------------------------------------


def _api_rows(capture: Capture, frame: pd.DataFrame, calls: Calls, library: str | None) -> Cut:
    some = frame.iloc[calls.row]
    kinds, names = capture.places(calls.innermost)
    columns = {"name": Coded.of(some["name"]), "range_kind": kinds, "range_name": names}
    if library is None:
        columns["library"] = Coded.of(some["library"])
    groups = Groups.by(*columns.values())
    failed = groups.sums(some["failed"].to_numpy(np.bool_)) if "failed" in some else None
    values: dict[str, Sequence[Any] | Ints] = {
        "calls": groups.calls,
        "failed": failed if failed is not None else [None] * groups.count,
        "host_s": groups.sums(calls.length),
        "longest_s": groups.longest(calls.length),
    }
    rows, left_out = _rows(groups, columns, values, by="host_s")
    return [{"library": library, **row} for row in rows], left_out


def _rows(
    groups: Groups,
    columns: dict[str, Coded],
    values: dict[str, Any],
    *,
    by: str,
) -> Cut:
    """A row per group, the largest first; times from nanoseconds to seconds."""
    order = np.argsort(-np.asarray(values[by]), kind="stable")[:MOST_ROWS].tolist()
    rows = []
    for group in order:
        row = {name: column.value(groups.first[group]) for name, column in columns.items()}
        for name, value in values.items():
            one = value[group]
            one = None if one is None else int(one)
            row[name] = one * S if one is not None and name.endswith("_s") else one
        rows.append(row)
    return rows, groups.count - len(rows)


def _in_graph(work: pd.DataFrame) -> Ints:
    whole = (work["kind"] == GRAPH).to_numpy(np.bool_)
    return np.where(whole | work["in_graph"].to_numpy(np.bool_), 1, 0)


def _bytes(work: pd.DataFrame) -> Ints:
    size: Ints = np.nan_to_num(work["bytes"].to_numpy(np.float64)).astype(np.int64)
    return size
