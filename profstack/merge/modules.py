"""The tables that come from the torch layer: modules, operators, kernels and lines."""

from __future__ import annotations

import json
from typing import Any

import pandas as pd

from profstack.merge.recorded import Recorded, Selection, nullable
from profstack.privacy import home_relative
from profstack.regions import STEP_PARTS, WAIT

TIMED = (("timed",), ("detail",), ("shared",), ("whole",))
_TIMES = ("forward_s", "forward_self_s", "backward_s", "backward_self_s")
_DEVICE_TIMES = ("forward_device_s", "backward_device_s")


def module_paths(recorded: Recorded) -> dict[int, str]:
    """Path of every module number, the step parts included."""
    frame = recorded.frames["modules"]
    paths = dict(zip(frame["module_id"].tolist(), frame["path"].tolist(), strict=True))
    return {**{int(number): str(path) for number, path in paths.items()}, **STEP_PARTS}


def modules(
    recorded: Recorded, timed: Selection | None, detail: Selection | None, clean_s: float | None
) -> list[dict[str, Any]]:
    """Rows of `modules`: the tree in order, then the parts of a step outside any module."""
    if timed is None:
        return []
    totals = recorded.rows("module_times", timed)
    summed = totals.groupby("module_id")[["calls", *_TIMES, *_DEVICE_TIMES]].sum(min_count=1)
    net = pd.Series(dtype=float)
    if detail is not None:
        memory = recorded.rows("module_times", detail)
        net = memory.groupby("module_id")["host_net_bytes"].sum(min_count=1)
    known = recorded.frames["modules"].set_index("module_id")
    rows = []
    for number in _tree_order(known, set(summed.index)):
        rows.append(_module_row(number, known, summed, net, timed, detail, clean_s))
    for number in STEP_PARTS:
        if number in summed.index:
            rows.append(_part_row(number, summed.loc[number], timed, clean_s))
    return rows


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


def _module_row(
    number: int,
    known: pd.DataFrame,
    summed: pd.DataFrame,
    net: pd.Series,
    timed: Selection,
    detail: Selection | None,
    clean_s: float | None,
) -> dict[str, Any]:
    facts = known.loc[number]
    path = str(facts["path"])
    row: dict[str, Any] = {
        "path": path,
        "label": nullable(facts["label"]),
        "type": facts["type"],
        "instance": nullable(facts["instance"]),
        "depth": _depth(number, known),
        "aliases": json.loads(facts["aliases"]),
        "parameters": nullable(facts["parameters"]),
    }
    if number in summed.index:
        row.update(_times(summed.loc[number], timed, clean_s))
        row["calls"] = timed.per_step(summed.loc[number]["calls"])
    if detail is not None and number in net.index:
        row["host_net_bytes"] = detail.per_step(net[number])
    return row


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
        "self_s": timed.per_step(totals["forward_self_s"] + totals["backward_self_s"]),
        "forward_device_s": timed.per_step(totals["forward_device_s"]),
        "backward_device_s": timed.per_step(totals["backward_device_s"]),
        "calibrated_s": timed.calibrated(both, clean_s),
    }


def _part_row(
    number: int, totals: pd.Series, timed: Selection, clean_s: float | None
) -> dict[str, Any]:
    return {
        # Of a script measured whole, what comes before its first model is the start-up.
        "path": "(start-up)" if timed.mode == "whole" and number == WAIT else STEP_PARTS[number],
        "type": "part of the step",
        "depth": 0,
        "aliases": [],
        "calls": timed.per_step(totals["calls"]),
        **_times(totals, timed, clean_s),
    }


def operators(
    recorded: Recorded, timed: Selection | None, clean_s: float | None
) -> list[dict[str, Any]]:
    """Rows of `operators`, the longest self time first."""
    if timed is None:
        return []
    paths = module_paths(recorded)
    frame = recorded.rows("operators", timed)
    keys = ["name", "shapes", "module_id"]
    summed = frame.groupby(keys, dropna=False)[["calls", "self_s", "total_s", "device_s"]].sum(
        min_count=1
    )
    rows = []
    for (name, shapes, module), totals in summed.sort_values("self_s", ascending=False).iterrows():
        number = nullable(module)
        rows.append(
            {
                "name": name,
                "shapes": nullable(shapes),
                "module": paths.get(int(number)) if number is not None else None,
                "calls": timed.per_step(totals["calls"]),
                "self_s": timed.per_step(totals["self_s"]),
                "total_s": timed.per_step(totals["total_s"]),
                "device_s": timed.per_step(totals["device_s"]),
                "calibrated_s": timed.calibrated(totals["self_s"], clean_s),
            }
        )
    return rows


def kernels(recorded: Recorded, timed: Selection | None) -> list[dict[str, Any]]:
    """Rows of `kernels`, the longest device time first."""
    if timed is None:
        return []
    paths = module_paths(recorded)
    frame = recorded.rows("kernels", timed)
    keys = ["name", "device", "stream", "module_id", "operator"]
    summed = frame.groupby(keys, dropna=False)[["calls", "device_s"]].sum(min_count=1)
    rows = []
    for key, totals in summed.sort_values("device_s", ascending=False).iterrows():
        name, device, stream, module, operator = (nullable(part) for part in key)
        rows.append(
            {
                "name": name,
                "device": device,
                "stream": stream,
                "module": paths.get(int(module)) if module is not None else None,
                "operator": operator,
                "calls": timed.per_step(totals["calls"]),
                "device_s": timed.per_step(totals["device_s"]),
            }
        )
    return rows


def lines(recorded: Recorded, selection: Selection | None) -> list[dict[str, Any]]:
    """Rows of `lines`, file by file."""
    if selection is None:
        return []
    frame = recorded.rows("lines", selection)
    columns = ["calls", "python_s", "operator_s", "device_s"]
    # A line whose count was given up in one slice has no count at all.
    uncounted = frame[frame["calls"].isna()].groupby(["file", "line"]).size()
    summed = frame.groupby(["file", "line", "source"], dropna=False)[columns].sum(min_count=1)
    rows = []
    for key, (_, totals) in zip(summed.index.tolist(), summed.iterrows(), strict=True):
        file, line, source = key
        known = (file, line) not in uncounted.index
        rows.append(
            {
                "file": home_relative(str(file)),
                "line": int(line),
                "source": nullable(source),
                "calls": selection.per_step(totals["calls"]) if known else None,
                "python_s": selection.per_step(totals["python_s"]),
                "operator_s": selection.per_step(totals["operator_s"]),
                "device_s": selection.per_step(totals["device_s"]),
            }
        )
    return rows
