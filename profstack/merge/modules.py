"""The table of modules: times of the torch layer, with the bytes and operations of others."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import pandas as pd

from profstack.merge.flops import BACKWARD, FORWARD, Counted, macs, whole
from profstack.merge.recorded import Recorded, Selection, nullable
from profstack.regions import OUTSIDE, STEP_PARTS, WAIT

TIMED = (("timed",), ("detail",), ("shared",), ("whole",))
_TIMES = ("forward_s", "forward_self_s", "backward_s", "backward_self_s")
_DEVICE_TIMES = ("recomputed_s", "forward_device_s", "backward_device_s")


def module_paths(recorded: Recorded) -> dict[int, str]:
    """Path of every module number, the step parts included."""
    frame = recorded.frames["modules"]
    paths = dict(zip(frame["module_id"].tolist(), frame["path"].tolist(), strict=True))
    return {**{int(number): str(path) for number, path in paths.items()}, **STEP_PARTS}


def modules(
    recorded: Recorded,
    timed: Selection | None,
    clean_s: float | None,
    memory: Mapping[int, Mapping[str, float | None]],
    record: Counted | None,
) -> list[dict[str, Any]]:
    """Rows of `modules`: the tree in order, then the parts of a step outside any module.

    `memory` are columns of bytes by module; `record` is the counter of operations whose figures
    stand here. A module that only one of the layers saw has a row all the same.
    """
    totals = recorded.rows("module_times", timed)
    summed = totals.groupby("module_id")[["calls", *_TIMES, *_DEVICE_TIMES]].sum(min_count=1)
    known = recorded.frames["modules"].set_index("module_id")
    counted = {number for number, _ in record.modules} if record is not None else set()
    rows = []
    for number in _tree_order(known, {*summed.index, *memory, *counted}):
        row = _module_row(number, known)
        if timed is not None and number in summed.index:
            row.update(_times(summed.loc[number], timed, clean_s))
            row["calls"] = timed.per_step(summed.loc[number]["calls"])
        row.update(memory.get(number, {}))
        row.update(_flop_columns(number, row, record))
        rows.append(row)
    for number in STEP_PARTS:
        if number in summed.index or number in counted:
            rows.append(_part_row(number, summed, timed, clean_s, record))
    return rows


def _flop_columns(number: int, row: Mapping[str, Any], record: Counted | None) -> dict[str, Any]:
    """Operations of one row, and their rate where its time is that of the same work."""
    if record is None:
        return {}
    forward = record.modules.get((number, FORWARD))
    backward = record.modules.get((number, BACKWARD))
    columns = {
        "forward_flop": whole(forward),
        "backward_flop": whole(backward),
        "forward_mac": whole(macs(forward)) if record.multiply_adds else None,
    }
    seconds = row.get("calibrated_s")
    # Without a count of the backward pass its time belongs to nothing that was counted.
    halved = record.total(BACKWARD) is None and bool(row.get("backward_s"))
    if forward is not None and seconds and seconds > 0 and not halved:
        columns["flop_per_s"] = (forward + (backward or 0.0)) / seconds
    return columns


def _tree_order(known: pd.DataFrame, seen: set[int]) -> list[int]:
    """Modules in pre-order: those that ran, and those around them."""
    numbers = known.index.tolist()
    parents: dict[int, Any] = dict(zip(numbers, map(nullable, known["parent_id"]), strict=True))
    wanted: set[int] = set()
    for number in seen & set(parents):
        upwards: int | None = number
        while upwards is not None and upwards not in wanted:
            wanted.add(upwards)
            upwards = parents[upwards]
    children: dict[int | None, list[int]] = {}
    for number in sorted(wanted):
        children.setdefault(parents[number], []).append(number)
    order: list[int] = []
    stack = list(reversed(children.get(None, [])))
    while stack:
        number = stack.pop()
        order.append(number)
        stack.extend(reversed(children.get(number, [])))
    return order


def _module_row(number: int, known: pd.DataFrame) -> dict[str, Any]:
    """What is known of a module without any layer."""
    facts = known.loc[number]
    return {
        "path": str(facts["path"]),
        "label": nullable(facts["label"]),
        "type": facts["type"],
        "instance": nullable(facts["instance"]),
        "depth": _depth(number, known),
        "aliases": json.loads(facts["aliases"]),
        "parameters": nullable(facts["parameters"]),
    }


def _depth(number: int, known: pd.DataFrame) -> int:
    depth = 0
    parent = nullable(known.loc[number]["parent_id"])
    while parent is not None:
        depth += 1
        parent = nullable(known.loc[int(parent)]["parent_id"])
    return depth


def _times(totals: pd.Series, timed: Selection, clean_s: float | None) -> dict[str, Any]:
    both = totals["forward_s"] + totals["backward_s"]
    return {
        "forward_s": timed.per_step(totals["forward_s"]),
        "backward_s": timed.per_step(totals["backward_s"]),
        "recomputed_s": timed.per_step(totals["recomputed_s"]),
        "self_s": timed.per_step(totals["forward_self_s"] + totals["backward_self_s"]),
        "forward_device_s": timed.per_step(totals["forward_device_s"]),
        "backward_device_s": timed.per_step(totals["backward_device_s"]),
        "calibrated_s": timed.calibrated(both, clean_s),
    }


def _part_row(
    number: int,
    summed: pd.DataFrame,
    timed: Selection | None,
    clean_s: float | None,
    record: Counted | None,
) -> dict[str, Any]:
    whole_script = timed is not None and timed.mode == "whole"
    row: dict[str, Any] = {
        # Of a script measured whole, what comes before its first model is the start-up.
        "path": "(start-up)" if whole_script and number == WAIT else STEP_PARTS[number],
        "type": "part of the step",
        "depth": 0,
        "aliases": [],
    }
    if timed is not None and number in summed.index:
        row["calls"] = timed.per_step(summed.loc[number]["calls"])
        row.update(_times(summed.loc[number], timed, clean_s))
    columns = _flop_columns(number, row, record)
    if number == OUTSIDE:
        # What no module did may have been done by the loss or the optimizer too.
        columns.pop("flop_per_s", None)
    return {**row, **columns}
