"""The report's tables of Nsight Systems, and how they compare with the torch layer.

Recorded rows are totals over the steps of the capture; here they are figures per step, or of the
whole capture where no range marks its steps. Nothing of it is calibrated: nsys watched a run of
its own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any, NamedTuple, cast

from profstack.storage.reader import Recorded, Selection, known_total, nullable, ratio, records
from profstack.storage.schema.nsys_rows import NsysModuleRow, NsysRangeRow, NsysStepRow
from profstack.storage.schema.report import REPORT_OF_NSYS, NsysFacts, NsysTables, ReportWarning
from profstack.storage.schema.rows import ModuleRow
from profstack.storage.untrusted import json_cell
from profstack.units import format_count, format_seconds

FACT = "nsys"
DOMAIN = "profstack"
# Two observers each cost something per call: host times differ only beyond both of these.
HOST_SHARE = 0.30
HOST_FLOOR_S = 20e-6
# A kernel takes as long under any observer; clocks of a device move by less than this. The shortest
# kernels differ by the resolution of the time stamps.
DEVICE_SHARE = 0.10
DEVICE_FLOOR_S = 1e-6
# Counts that differ by more than this share lack a call; less is a difference of the steps.
CALLS_SHARE = 0.01
ONLY_NSYS = "seen by Nsight Systems alone"
ONLY_TORCH = "seen by the torch layer alone"

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


def nsys_fact(recorded: Recorded) -> NsysFacts | None:
    """Return the facts of the import; None where nothing was imported."""
    fact: NsysFacts | None = recorded.facts.get(FACT)
    return fact


def nsys_tables(
    recorded: Recorded, modules: Sequence[ModuleRow], torch: Selection | None
) -> NsysTables:
    """Return all tables `nsys_*` of the report; `modules` are the torch layer's rows.

    `torch` are the slices that these are made from.
    """
    fact = nsys_fact(recorded)
    if fact is None:
        return cast("NsysTables", {name: [] for name in REPORT_OF_NSYS})
    steps = int(fact["steps"]) or 1
    read = {
        name: [_per_step(name, row, steps) for row in records(recorded.frames[name])]
        for name in REPORT_OF_NSYS
        if name in recorded.frames
    }
    tables = cast("NsysTables", {"nsys_modules": [], **read})
    # Each sample has one innermost function.
    samples = sum(row["self_samples"] or 0 for row in tables["nsys_samples"])
    for row in tables["nsys_samples"]:
        row["self_share"] = ratio(row["self_samples"], samples)
    if fact["steps"]:
        speed = _speed(recorded, tables["nsys_steps"], torch)
        tables["nsys_modules"] = _modules(tables["nsys_ranges"], modules, speed)
    return tables


def nsys_warnings(recorded: Recorded, rows: Sequence[NsysModuleRow]) -> list[ReportWarning]:
    """Return the notes of the import, and a warning of modules in which the two disagree."""
    fact = nsys_fact(recorded)
    notes = fact["notes"] if fact is not None else ()
    warnings: list[ReportWarning] = [{"slug": slug, "text": text} for slug, text in notes]
    apart = [row for row in rows if row["disagreement"] is not None]
    if apart:
        worst = max(apart, key=_seconds_apart)
        text = (
            f"Nsight Systems and the torch layer differ in {len(apart):,} of {len(rows):,} "
            f"modules, most in {worst['path']}: {worst['disagreement']}"
        )
        warnings.append({"slug": "nsys-disagrees", "text": text})
    return warnings


def _speed(recorded: Recorded, steps: Sequence[NsysStepRow], torch: Selection | None) -> float:
    """Return a step of the capture over one of the torch layer; 1 where either is unknown.

    Two runs are not equally fast, nor are two observers: host times are compared as if they were.
    Of medians: the last step of a layer's slice lasts until a device is done.
    """
    took = [row["wall_s"] for row in steps if row["wall_s"]]
    if torch is None or not took:
        return 1.0
    return ratio(median(took), nullable(recorded.steps_of(torch.slices)["wall_s"].median())) or 1.0


def _per_step(name: str, row: dict[str, Any], steps: int) -> dict[str, Any]:
    """Turn a recorded row into one of the report."""
    if name == "nsys_kernels":
        row["delay_s"] = ratio(row["delay_s"], row["calls"])
    if name == "nsys_copies":
        row["bytes_per_s"] = ratio(row["bytes"], row["device_s"])
    if name == "nsys_backtraces":
        row["stack"] = [
            f"{symbol or 'unknown function'}{f' ({library})' if library else ''}"
            for symbol, library in json_cell(row["stack"], list[tuple[str | None, str | None]])
        ]
    if name in _FLAGS and row[_FLAGS[name]] is not None:
        row[_FLAGS[name]] = bool(row[_FLAGS[name]])
    for column in _PER_STEP.get(name, ()):
        if row[column] is not None:
            row[column] = row[column] / steps
    return row


# --- Modules as nsys and the torch layer saw them -------------------------------------------------


class _Seen(NamedTuple):
    """Figures of one module by one observer, per step."""

    calls: float | None = None
    host_s: float | None = None
    device_s: float | None = None


def _modules(
    ranges: Sequence[NsysRangeRow], modules: Sequence[ModuleRow], speed: float
) -> list[NsysModuleRow]:
    """Rows of `nsys_modules` in the torch layer's order; those that only nsys saw come last."""
    seen = _by_path(ranges)
    if not seen:
        return []
    torch = {
        row["path"]: _Seen(row["calls"], row["forward_s"], row["forward_device_s"])
        for row in modules
        if not row["path"].startswith("(")
    }
    # A module that no layer saw called is in the tree for those inside it, without a figure.
    watched = any(each.calls for each in torch.values())
    ran = [path for path, each in torch.items() if path in seen or each.calls]
    rows: list[NsysModuleRow] = []
    for path in (*ran, *(path for path in seen if path not in torch)):
        ours, theirs = seen.get(path, _Seen()), torch.get(path, _Seen())
        row: NsysModuleRow = {
            "path": path,
            "calls": ours.calls,
            "torch_calls": theirs.calls,
            "host_s": ours.host_s,
            "torch_host_s": theirs.host_s,
            "host_ratio": ratio(ours.host_s, theirs.host_s),
            "device_s": ours.device_s,
            "torch_device_s": theirs.device_s,
            "device_ratio": ratio(ours.device_s, theirs.device_s),
            "disagreement": None,
        }
        row["disagreement"] = disagreement(row, speed) if watched else None
        rows.append(row)
    return rows


def _by_path(ranges: Sequence[NsysRangeRow]) -> dict[str, _Seen]:
    """Return what nsys saw of each module's forward calls.

    A module has several rows where it was called in several places; one inside itself is a part of
    the outer one. Ranges inside a backward pass, or in another thread beside calls in the steps'
    own, are work done again there (checkpointing): the torch layer keeps that apart too.
    """
    nodes = {row["node"]: row for row in ranges}
    found: dict[str, list[NsysRangeRow]] = {}
    for row in ranges:
        if row["kind"] == "module" and row["domain"] == DOMAIN and not _is_inside(row, nodes):
            found.setdefault(str(row["name"]), []).append(row)
    seen = {}
    for path, rows in found.items():
        own = [row for row in rows if row["on_steps_thread"]] or rows
        figures = ((row["calls"], row["wall_s"], row["device_s"]) for row in own)
        seen[path] = _Seen(*map(known_total, zip(*figures, strict=True)))
    return seen


def _is_inside(row: NsysRangeRow, nodes: Mapping[int | None, NsysRangeRow]) -> bool:
    """Return whether the row is in a backward pass, or in a call of the same module."""
    above = nodes.get(row["parent"])
    while above is not None:
        same = above["kind"] == "module" and above["name"] == row["name"]
        if same or above["kind"] == "backward":
            return True
        above = nodes.get(above["parent"])
    return False


def disagreement(row: NsysModuleRow, speed: float) -> str | None:
    """Say what the two differ in beyond the cost of watching; None where they agree."""
    if not row["torch_calls"]:
        return ONLY_NSYS
    if not row["calls"]:
        return ONLY_TORCH
    words = []
    if _differ(row["calls"], row["torch_calls"], CALLS_SHARE, 0.0):
        counts = format_count(row["calls"]), format_count(row["torch_calls"])
        words.append(f"calls {' against '.join(counts)}")
    own, other = row["host_s"], row["torch_host_s"]
    if _differ(own, None if other is None else other * speed, HOST_SHARE, HOST_FLOOR_S):
        words.append(f"host time {format_seconds(own)} against {format_seconds(other)}")
        # The speed is the same in every row: it is said where it changes what is seen.
        if abs(speed - 1) > HOST_SHARE:
            words[-1] += f", in steps that took {speed:.2f} times as long"
    own, other = row["device_s"], row["torch_device_s"]
    if _differ(own, other, DEVICE_SHARE, DEVICE_FLOOR_S):
        words.append(f"device time {format_seconds(own)} against {format_seconds(other)}")
    return ", ".join(words) or None


def _differ(one: float | None, other: float | None, share: float, floor: float) -> bool:
    """Return whether two figures differ by more than a share of the smaller one, and the floor."""
    if one is None or other is None:
        return False
    return abs(one - other) > max(share * min(one, other), floor)


def _seconds_apart(row: NsysModuleRow) -> float:
    """Return by how much time the two differ; if only one of them saw it, all of its time."""
    pairs = ((row["host_s"], row["torch_host_s"]), (row["device_s"], row["torch_device_s"]))
    return float(max(abs((one or 0.0) - (other or 0.0)) for one, other in pairs))
