"""Rows of `nsys_memory`: how much of what the capture saw taken was held, over time.

What was taken before the capture is not known: when it is given back, nothing is lowered. So a
curve begins at nothing, and is a lower bound of what the process held.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd

from profstack.nsys.exported import Export
from profstack.nsys.grouping import Coded, Groups
from profstack.nsys.summaries import S, device_names
from profstack.torchtrace.columns import Ints

# Points of one curve.
MOST_POINTS = 2_000
_TAKEN = "allocated"


def memory_rows(export: Export) -> list[dict[str, Any]]:
    """The curve of each device and kind of memory, over the whole capture."""
    frame = export.memory.sort_values("t", kind="stable")
    devices, kinds = device_names(frame["device"]), Coded.of(frame["kind"])
    groups = Groups.by(devices, kinds)
    moment = frame["t"].to_numpy(np.int64) - export.begin_ns
    rows = []
    for number, first in enumerate(groups.first):
        some = np.flatnonzero(groups.number == number)
        held = _held(frame.iloc[some])
        for point in _highest(held):
            rows.append(
                {
                    "t_s": int(moment[some[point]]) * S,
                    "device": devices.value(first),
                    "kind": kinds.value(first),
                    "bytes": int(held[point]),
                }
            )
    return rows


def _held(events: pd.DataFrame) -> Ints:
    """Bytes held after each event of one curve, in order of time.

    An address is given back by the size with which it was taken. One that is taken again without
    having been given back was given back unseen.
    """
    address = events["address"].to_numpy(np.int64)
    taken = (events["operation"] == _TAKEN).to_numpy(np.bool_)
    size = np.where(taken, events["bytes"].to_numpy(np.int64), 0)
    by_address = np.argsort(address, kind="stable")
    same = address[by_address][1:] == address[by_address][:-1]
    before = np.zeros(len(address), np.int64)
    before[by_address[1:]] = np.where(same, size[by_address[:-1]], 0)
    return np.cumsum(size - before)


def _highest(held: Ints) -> Ints:
    """Which points of a curve are kept: of each part of it the highest, and the last one."""
    if len(held) <= MOST_POINTS:
        return np.arange(len(held))
    edges = np.linspace(0, len(held) - 1, MOST_POINTS).astype(np.int64)
    part = np.repeat(np.arange(MOST_POINTS - 1), np.diff(edges))
    # In order of part and height, the last of each part is its highest; the earliest of these.
    order = np.lexsort((-np.arange(len(part)), held[:-1], part))
    last = np.flatnonzero(np.append(np.diff(part), 1))
    return np.append(order[last], len(held) - 1)
