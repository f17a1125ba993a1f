"""Rows of `nsys_ranges`: the places of a capture's ranges, with what was begun in them."""

from __future__ import annotations

from typing import Any

import numpy as np

from profstack.nsys.capture import Capture
from profstack.nsys.projection import COPY, NodeSums, outermost
from profstack.nsys.rangetree import RangeTree
from profstack.nsys.summaries import MOST_ROWS, S
from profstack.torchtrace.columns import Ints

_TIMES = ("wall_s", "self_s", "api_s", "device_s", "elsewhere_s", "copies_s")


def range_rows(capture: Capture) -> tuple[list[dict[str, Any]], int]:
    """The rows, each after the one around it, and how many places had to be left out."""
    tree, steps = capture.tree, capture.steps
    count = len(tree.nodes)
    wall = np.zeros(count, np.int64)
    np.add.at(wall, tree.node, steps.counted(tree.start, tree.end))
    values = {
        "calls": np.bincount(tree.node, minlength=count),
        "wall_s": wall,
        "self_s": _own(tree, wall),
        **_calls(capture),
        **_work(capture),
    }
    kept = _largest(tree, wall)
    number = {node: place for place, node in enumerate(kept, start=1)}
    rows = []
    for node, place in number.items():
        parent, label, on_steps = tree.nodes[node].parent, tree.nodes[node].label, None
        if steps.thread is not None:
            on_steps = int(tree.nodes[node].on_steps_thread)
        row: dict[str, Any] = {
            "node": place,
            "parent": number[parent] if parent >= 0 else None,
            **label._asdict(),
            "on_steps_thread": on_steps,
        }
        for name, value in values.items():
            one = None if value is None else int(value[node])
            row[name] = one * S if one is not None and name in _TIMES else one
        rows.append(row)
    return rows, count - len(kept)


def _own(tree: RangeTree, wall: Ints) -> Ints:
    """Time of each node without the nodes in it."""
    own: Ints = wall.copy()
    parent = np.array([node.parent for node in tree.nodes], np.int64)
    inner = np.flatnonzero(parent >= 0)
    np.subtract.at(own, parent[inner], wall[inner])
    own[own < 0] = 0
    return own


def _calls(capture: Capture) -> dict[str, Ints | None]:
    names = ("api_calls", "api_s")
    if "calls" in capture.export.missing:
        return dict.fromkeys(names)
    calls = capture.calls
    # A call that another one made has its time in it, on the thread that made both.
    calls = outermost(calls, calls.made_on)
    values = dict(zip(names, (np.ones_like(calls.start), calls.length), strict=True))
    every = np.arange(len(calls.start))
    return {**NodeSums.of_calls(capture.tree, calls, every, values).sums}


def _work(capture: Capture) -> dict[str, Ints | None]:
    """Device work by the call that began it."""
    names = ("kernels", "device_s", "elsewhere_s", "copies", "copied_bytes", "copies_s")
    if {"work", "calls"} & set(capture.export.missing):
        return dict.fromkeys(names)
    work, calls, frame = capture.work, capture.calls, capture.export.work
    some = np.flatnonzero(work.call >= 0)
    call, row, length = (column[some] for column in (work.call, work.row, work.length))
    moves = work.moves[some]
    is_copy = (frame["kind"] == COPY).to_numpy(np.bool_)[row]
    size = np.nan_to_num(frame["bytes"].to_numpy(np.float64)[row]).astype(np.int64)
    # Without kernels there may be no call to ask.
    elsewhere = calls.elsewhere[call] if len(call) else np.zeros(0, np.bool_)
    values = {
        "kernels": (~moves).astype(np.int64),
        "device_s": np.where(moves, 0, length),
        "elsewhere_s": np.where(moves | ~elsewhere, 0, length),
        "copies": np.where(moves, frame["copies"].to_numpy(np.int64)[row], 0),
        "copied_bytes": np.where(is_copy, size, 0),
        "copies_s": np.where(moves, length, 0),
    }
    return {**NodeSums.of_calls(capture.tree, calls, call, values).sums}


def _largest(tree: RangeTree, wall: Ints) -> list[int]:
    """The nodes in their order; of too many the ones with most time, with all around them."""
    if len(wall) <= MOST_ROWS:
        return list(range(len(wall)))
    kept: set[int] = set()
    for node in np.argsort(-wall, kind="stable").tolist():
        line = []
        while node >= 0 and node not in kept:
            line.append(node)
            node = tree.nodes[node].parent
        if len(kept) + len(line) > MOST_ROWS:
            break
        kept.update(line)
    return sorted(kept)
