"""The report's tables of what Nsight Systems saw, and how that stands to the torch layer.

Recorded rows are totals over the steps of the capture; here they are figures per step, or of the
whole capture where no range tells its steps. Nothing of it is calibrated: nsys watched a run of
its own.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from statistics import median
from typing import Any

from profstack.merge.recorded import Recorded, Selection, nullable, records
from profstack.nsystables import REPORT_OF_NSYS
from profstack.units import format_count, format_seconds

FACT = "nsys"
DOMAIN = "profstack"
# Two observers each cost something per call: host times are held apart only beyond both of these.
HOST_SHARE = 0.30
HOST_FLOOR_S = 20e-6
# A kernel takes as long whoever looks on; clocks of a device move by less than this. The shortest
# kernels differ by the resolution of the time stamps alone.
DEVICE_SHARE = 0.10
DEVICE_FLOOR_S = 1e-6
# Counts differ where the steps did: by more than this share, a call is lacking.
CALLS_SHARE = 0.01
ONLY_NSYS = "seen by Nsight Systems alone"
ONLY_TORCH = "seen by the torch layer alone"

Row = dict[str, Any]

# By table, the columns that are totals over the steps of the capture.
_PER_STEP: dict[str, tuple[str, ...]] = {
    "nsys_ranges": (
        *("calls", "wall_s", "self_s", "api_calls", "api_s", "kernels", "device_s"),
        *("elsewhere_s", "copies", "copied_bytes", "copies_s"),
    ),
    "nsys_kernels": ("calls", "device_s"),
    "nsys_copies": ("calls", "bytes", "device_s"),
    "nsys_api": ("calls", "host_s", "failed"),
    "nsys_backtraces": ("calls", "host_s"),
    "nsys_samples": ("self_samples", "total_samples"),
    "nsys_gaps": ("count", "total_s"),
}
_FLAGS = {"nsys_ranges": "on_steps_thread", "nsys_kernels": "in_graph"}


def nsys_fact(recorded: Recorded) -> dict[str, Any] | None:
    """What was imported, and what of it is lacking; None where nothing was."""
    fact: dict[str, Any] | None = recorded.facts.get(FACT)
    return fact


def is_import_alone(recorded: Recorded) -> bool:
    """Whether the recording holds nothing but what was imported."""
    frames = recorded.frames
    return nsys_fact(recorded) is not None and not len(frames["steps"]) + len(frames["layers"])


def nsys_tables(
    recorded: Recorded, modules: Sequence[Mapping[str, Any]], torch: Selection | None = None
) -> dict[str, list[Row]]:
    """All tables `nsys_*` of the report; `modules` are its rows of the torch layer.

    `torch` are the slices that these rest on.
    """
    fact = nsys_fact(recorded)
    if fact is None:
        return {name: [] for name in REPORT_OF_NSYS}
    tables = {
        name: [_row(name, row, _divisor(fact)) for row in records(recorded.frames[name])]
        for name in REPORT_OF_NSYS
        if name in recorded.frames
    }
    _add_shares(tables["nsys_samples"])
    speed = _speed(recorded, tables["nsys_steps"], torch)
    tables["nsys_modules"] = (
        _modules(tables["nsys_ranges"], modules, speed) if fact["steps"] else []
    )
    return tables


def nsys_warnings(rows: Sequence[Mapping[str, Any]], notes: Iterable[Sequence[str]]) -> list[Row]:
    """What the import had to say, and a sentence on modules in which the two disagree."""
    told = [{"slug": slug, "text": text} for slug, text in notes]
    apart = [row for row in rows if row["disagreement"] is not None]
    if not apart:
        return told
    worst = max(apart, key=_seconds_apart)
    text = (
        f"Nsight Systems and the torch layer differ in {len(apart):,} of {len(rows):,} modules, "
        f"most in {worst['path']}: {worst['disagreement']}"
    )
    return [*told, {"slug": "nsys-disagrees", "text": text}]


def _divisor(fact: Mapping[str, Any]) -> int:
    """By what totals are divided: the steps of the capture, or 1 where they are not known."""
    return int(fact["steps"]) or 1


def _speed(recorded: Recorded, steps: Sequence[Row], torch: Selection | None) -> float:
    """How long a step of the capture took, over one of the torch layer's; 1 where nobody told.

    Two runs are not equally fast, nor are two observers: host times are compared as if they were.
    Of medians: the last step of a layer's slice lasts until a device is done.
    """
    took = [row["wall_s"] for row in steps if row["wall_s"]]
    if torch is None or not took:
        return 1.0
    beside = recorded.steps_of(torch.slices)["wall_s"].median()
    return _ratio(median(took), nullable(beside)) or 1.0


def _row(name: str, row: Row, steps: int) -> Row:
    """A recorded row as the report has it."""
    if name == "nsys_kernels":
        row["delay_s"] = _ratio(row["delay_s"], row["calls"])
    if name == "nsys_copies":
        row["bytes_per_s"] = _ratio(row["bytes"], row["device_s"])
    if name == "nsys_backtraces":
        row["stack"] = [_function(*frame) for frame in json.loads(row["stack"] or "[]")]
    if name in _FLAGS and row[_FLAGS[name]] is not None:
        row[_FLAGS[name]] = bool(row[_FLAGS[name]])
    for column in _PER_STEP.get(name, ()):
        if row[column] is not None:
            row[column] = row[column] / steps
    return row


def _function(symbol: str | None, library: str | None) -> str:
    """A frame of a stack in words: the function, and the library that it is in."""
    return f"{symbol or 'unknown function'}{f' ({library})' if library else ''}"


def _ratio(above: float | None, below: float | None) -> float | None:
    return above / below if above is not None and below else None


def _add_shares(samples: list[Row]) -> None:
    """Every sample has one innermost function: their sum is all of them."""
    whole = sum(row["self_samples"] or 0 for row in samples)
    for row in samples:
        row["self_share"] = _ratio(row["self_samples"], whole)


def _modules(
    ranges: Sequence[Row], modules: Sequence[Mapping[str, Any]], speed: float
) -> list[Row]:
    """Rows of `nsys_modules` in the torch layer's order; those that nsys alone saw come last."""
    seen = _by_path(ranges)
    if not seen:
        return []
    torch = {str(row["path"]): row for row in modules if not str(row["path"]).startswith("(")}
    # A module that no layer saw called stands in the tree for those inside it, without a figure.
    watched = any(row.get("calls") for row in torch.values())
    ran = [path for path, row in torch.items() if path in seen or row.get("calls")]
    return [
        _side_by_side(path, seen.get(path), torch.get(path), speed if watched else None)
        for path in (*ran, *(path for path in seen if path not in torch))
    ]


def _by_path(ranges: Sequence[Row]) -> dict[str, Row]:
    """What nsys saw of each module's forward calls.

    A module stands in several rows where it was called in several places; one inside itself is a
    part of the outer one. Ranges inside a backward pass, or in another thread beside calls in the
    steps' own, are work done again there (checkpointing): the torch layer keeps that apart too.
    """
    nodes = {row["node"]: row for row in ranges}
    found: dict[str, list[Row]] = {}
    for row in ranges:
        if row["kind"] == "module" and row["domain"] == DOMAIN and not _is_inside(row, nodes):
            found.setdefault(str(row["name"]), []).append(row)
    return {path: _summed(rows) for path, rows in found.items()}


def _is_inside(row: Row, nodes: Mapping[int, Row]) -> bool:
    """Whether the row lies in a backward pass, or in a call of the same module."""
    above = nodes.get(row["parent"])
    while above is not None:
        same = above["kind"] == "module" and above["name"] == row["name"]
        if same or above["kind"] == "backward":
            return True
        above = nodes.get(above["parent"])
    return False


def _summed(rows: list[Row]) -> Row:
    own = [row for row in rows if row["on_steps_thread"]] or rows
    return {
        column: None if None in values else sum(values)
        for column in ("calls", "wall_s", "device_s")
        for values in ([row[column] for row in own],)
    }


def _side_by_side(path: str, seen: Row | None, torch: Any, speed: float | None) -> Row:
    """One module as both saw it; without `speed` the torch layer saw no module's calls."""
    seen, torch = seen or {}, torch or {}
    row: Row = {
        "path": path,
        "calls": seen.get("calls"),
        "torch_calls": torch.get("calls"),
        "host_s": seen.get("wall_s"),
        "torch_host_s": torch.get("forward_s"),
        "device_s": seen.get("device_s"),
        "torch_device_s": torch.get("forward_device_s"),
    }
    row["host_ratio"] = _ratio(row["host_s"], row["torch_host_s"])
    row["device_ratio"] = _ratio(row["device_s"], row["torch_device_s"])
    row["disagreement"] = _disagreement(row, speed) if speed else None
    return row


def _disagreement(row: Row, speed: float) -> str | None:
    """What the two differ in beyond what watching costs; None where they agree."""
    if not row["torch_calls"]:
        return ONLY_NSYS
    if not row["calls"]:
        return ONLY_TORCH
    words = []
    if _differ(row["calls"], row["torch_calls"], CALLS_SHARE, 0.0):
        words.append(
            f"calls {format_count(row['calls'])} against {format_count(row['torch_calls'])}"
        )
    own, other = row["host_s"], row["torch_host_s"]
    if _differ(own, None if other is None else other * speed, HOST_SHARE, HOST_FLOOR_S):
        words.append(f"host time {format_seconds(own)} against {format_seconds(other)}")
        # What is in every row is said where it changes what is seen.
        if abs(speed - 1) > HOST_SHARE:
            words[-1] += f", in steps that took {speed:.2f} times as long"
    own, other = row["device_s"], row["torch_device_s"]
    if _differ(own, other, DEVICE_SHARE, DEVICE_FLOOR_S):
        words.append(f"device time {format_seconds(own)} against {format_seconds(other)}")
    return ", ".join(words) or None


def _differ(one: float | None, other: float | None, share: float, floor: float) -> bool:
    """Whether two figures differ by more than a share of the smaller one, and than the floor."""
    if one is None or other is None:
        return False
    return abs(one - other) > max(share * min(one, other), floor)


def _seconds_apart(row: Mapping[str, Any]) -> float:
    """By how much time the two differ; what only one of them saw, by all of it."""
    pairs = ((row["host_s"], row["torch_host_s"]), (row["device_s"], row["torch_device_s"]))
    return float(max(abs((one or 0.0) - (other or 0.0)) for one, other in pairs))
