"""The report's tables of Nsight Systems, and how they compare with the torch layer.

Recorded rows are totals over the steps of the capture; here they are figures per step, or of the
whole capture where no range marks its steps. Nothing of it is calibrated: nsys watched a run of
its own.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from statistics import mean, median, stdev
from typing import Any, NamedTuple, cast

from profstack.stats.processes import student_quantile
from profstack.storage.reader import Recorded, Row, Selection, flags_of, known, known_total, ratio
from profstack.storage.schema.nsys_rows import NsysModuleRow, NsysRangeRow, NsysStepRow
from profstack.storage.schema.recorded import RECORDED_OF_NSYS
from profstack.storage.schema.report import REPORT_OF_NSYS, NsysFacts, NsysTables, ReportWarning
from profstack.storage.schema.rows import ModuleRow
from profstack.storage.untrusted import json_cell
from profstack.units import format_count, format_seconds

FACT = "nsys"
DOMAIN = "profstack"
CONFIDENCE = 0.95
# Two observers each cost something per call: host times differ only beyond both of these.
HOST_SHARE = 0.30
HOST_FLOOR_S = 20e-6
# A kernel takes as long under any observer; clocks of a device move by less than this. The shortest
# kernels differ by the resolution of the time stamps.
DEVICE_SHARE = 0.10
DEVICE_FLOOR_S = 1e-6
# Counts that differ by more than this share lack a call; less is a difference of the steps.
CALLS_SHARE = 0.01
# Steps of one kind have the same shapes but for this share of them, as the last batch of an epoch.
OTHER_SHAPES = 0.10
# Slices of the torch layer from which their spread is known.
FEWEST_SLICES = 3
ONLY_NSYS = "seen by Nsight Systems alone"
ONLY_TORCH = "seen by the torch layer alone"

# By table, the columns that are totals over the steps of the capture.
_PER_STEP: dict[str, tuple[str, ...]] = {
    "nsys_processes": (
        *("wall_s", "ranges", "api_calls", "kernels", "device_s", "busy_s", "copies", "copies_s"),
    ),
    "nsys_ranges": (
        *("calls", "wall_s", "self_s", "api_calls", "api_s", "kernels", "device_s"),
        *("projected_s", "elsewhere_s", "copies", "copied_bytes", "copies_s"),
    ),
    "nsys_stats": ("calls", "total_s"),
    "nsys_kernels": ("calls", "device_s"),
    "nsys_copies": ("calls", "bytes", "device_s"),
    "nsys_api": ("calls", "host_s", "failed"),
    "nsys_waits": ("calls", "wait_s"),
    "nsys_communication": ("calls", "device_s", "busy_s", "overlapped_s", "exposed_s"),
    "nsys_backtraces": ("calls", "host_s"),
    "nsys_samples": ("self_samples", "total_samples"),
    "nsys_gaps": ("count", "total_s", "fully_idle_s"),
}
_FLAGS = {
    "nsys_ranges": "on_steps_thread",
    "nsys_kernels": "in_graph",
    "nsys_processes": "own_steps",
}
# By table, what a column's share is of: the column, and the keys of rows that add up to all.
_SHARES = {
    "nsys_stats": ("share", "total_s", ("kind",)),
    # Each sample has one innermost function.
    "nsys_samples": ("self_share", "self_samples", ("process",)),
}


def nsys_fact(recorded: Recorded) -> NsysFacts | None:
    """Return the facts of the import as recorded; None where nothing was imported."""
    fact: NsysFacts | None = recorded.facts.get(FACT)
    return fact


def nsys_facts(recorded: Recorded, torch: Selection | None) -> NsysFacts | None:
    """Return the facts of the import, with its steps beside those of the torch layer."""
    fact = nsys_fact(recorded)
    if fact is None:
        return None
    steps = cast("list[NsysStepRow]", recorded.table("nsys_steps"))
    return {
        **fact,
        "step_ratio": _step_ratio(recorded, _of_main(steps, fact), torch),
        "not_compared": _why_not_compared(recorded, fact, steps, torch),
    }


def nsys_tables(
    recorded: Recorded, modules: Sequence[ModuleRow], torch: Selection | None
) -> NsysTables:
    """Return all tables `nsys_*` of the report; `modules` are the torch layer's rows.

    `torch` are the slices that these are made from.
    """
    fact = nsys_facts(recorded, torch)
    if fact is None:
        return cast("NsysTables", {name: [] for name in REPORT_OF_NSYS})
    processes = recorded.table("nsys_processes")
    # Of an older import there is one process.
    steps_of = {row["process"]: int(row["steps"]) for row in processes}
    read = {
        name: [
            _per_step(name, row, steps_of.get(row["process"], int(fact["steps"])) or 1, fact)
            for row in recorded.table(name)
        ]
        for name in REPORT_OF_NSYS
        if name in RECORDED_OF_NSYS
    }
    for name, (share, column, keys) in _SHARES.items():
        totals = Counter[tuple[Any, ...]]()
        for row in read[name]:
            totals[tuple(row[key] for key in keys)] += row[column] or 0
        for row in read[name]:
            row[share] = ratio(row[column], totals[tuple(row[key] for key in keys)])
    tables = cast("NsysTables", {"nsys_modules": [], **read})
    if fact["steps"]:
        compared = _Compared(recorded, tables["nsys_steps"], torch, fact)
        ranges = [row for row in tables["nsys_ranges"] if row["process"] == fact["process"]]
        tables["nsys_modules"] = _modules(ranges, modules, compared)
    return tables


def nsys_warnings(
    recorded: Recorded, rows: Sequence[NsysModuleRow], torch: Selection | None
) -> list[ReportWarning]:
    """Return the notes of the import, and a warning of modules in which the two disagree."""
    fact = nsys_facts(recorded, torch)
    notes = fact["notes"] if fact is not None else ()
    warnings: list[ReportWarning] = [{"slug": slug, "text": text} for slug, text in notes]
    both = any(row["calls"] and row["torch_calls"] for row in rows)
    if fact is None or torch is None or not both:
        return warnings
    if (why := fact.get("not_compared")) is not None:
        text = f"modules of Nsight Systems and of the torch layer are not compared: {why}"
        return [*warnings, {"slug": "nsys-not-compared", "text": text}]
    apart = [row for row in rows if row["disagreement"] is not None]
    if apart:
        speed = fact.get("step_ratio") or 1.0
        worst = max(apart, key=lambda row: _seconds_apart(row, speed))
        text = (
            f"Nsight Systems ({format_count(fact['steps'])} steps) and the torch layer "
            f"({torch.in_words()}) differ in {len(apart):,} of {len(rows):,} "
            f"modules, most in {worst['path']}: {worst['disagreement']}"
        )
        warnings.append({"slug": "nsys-disagrees", "text": text})
    return warnings


def _per_step(name: str, recorded: Row, steps: int, fact: NsysFacts) -> dict[str, Any]:
    """Turn a recorded row into one of the report."""
    row = dict(recorded)
    if row["process"] is None:
        row["process"] = fact["process"]
    if name == "nsys_kernels":
        row["delay_s"] = ratio(row["delay_s"], row["calls"])
    if name == "nsys_copies":
        row["bytes_per_s"] = ratio(row["bytes"], row["device_s"])
    if name == "nsys_stats":
        row["mean_s"] = ratio(row["total_s"], row["calls"])
    if name == "nsys_communication":
        row["overlapped_share"] = ratio(row["overlapped_s"], row["busy_s"])
    if name == "nsys_backtraces":
        row["stack"] = [
            f"{symbol or 'unknown function'}{f' ({library})' if library else ''}"
            for symbol, library in json_cell(row["stack"], list[tuple[str | None, str | None]])
        ]
    if name in _FLAGS and row[_FLAGS[name]] is not None:
        row[_FLAGS[name]] = bool(row[_FLAGS[name]])
    for column_name in _PER_STEP.get(name, ()):
        if row[column_name] is not None:
            row[column_name] = row[column_name] / steps
    return row


# --- Whether both observers saw the same steps ----------------------------------------------------


def _of_main(steps: Sequence[NsysStepRow], fact: NsysFacts) -> list[NsysStepRow]:
    """Return the rows of the process that makes the steps."""
    return [row for row in steps if row["process"] in (None, fact["process"])]


def _step_ratio(
    recorded: Recorded, steps: Sequence[NsysStepRow], torch: Selection | None
) -> float | None:
    """Return a step of the capture over one of the torch layer; None where either is unknown.

    Two runs are not equally fast, nor are two observers: host times are compared as if they were.
    Of medians: the last step of a layer's slice lasts until a device is done.
    """
    took = [row["wall_s"] for row in steps if row["wall_s"]]
    traced = [] if torch is None else known(recorded.steps_of(torch.slices), "wall_s")
    return ratio(median(took), median(traced)) if took and traced else None


def _why_not_compared(
    recorded: Recorded, fact: NsysFacts, steps: Sequence[NsysStepRow], torch: Selection | None
) -> str | None:
    """Say why modules of the two are not of the same steps; None where they may be.

    The recording knows the steps of its own run by their numbers, which the capture has too. Where
    it has none of these numbers all its steps must be alike.
    """
    if torch is None or not fact["steps"]:
        return None
    if fact.get("step_range") is not None:
        return f"the capture's steps are its ranges {fact['step_range']}, not the recording's steps"
    numbers = {row["step"] for row in _of_main(steps, fact)}
    captured = [row for row in recorded.table("steps") if row["step"] in numbers] or recorded.steps
    traced = recorded.steps_of(torch.slices)
    if torch.mixed:
        return "every slice of the torch layer holds evaluation"
    evaluated = sum("eval" in flags_of(row) for row in captured)
    if evaluated:
        return f"{evaluated} of the capture's {len(captured)} steps hold evaluation"
    kinds = [_kind_of(some) for some in (captured, traced) if some]
    if None in kinds:
        return "the steps have different shapes"
    if len(set(kinds)) > 1:
        return "the capture's steps are of other shapes or another phase than the torch layer's"
    return None


def _kind_of(steps: Sequence[Row]) -> tuple[object, object] | None:
    """Return the shape and phase that nearly all steps have; None where there is no such."""
    kinds = ((row["shape"] or "", row["phase"] or "") for row in steps)
    ((kind, count),) = Counter(kinds).most_common(1)
    return kind if count >= (1 - OTHER_SHAPES) * len(steps) else None


# --- Intervals ------------------------------------------------------------------------------------


def _reach(deviation: float, count: int) -> float:
    """Return half of the interval of a mean of so many values."""
    return student_quantile(CONFIDENCE, count - 1) * deviation / math.sqrt(count)


def _relative_reach(values: Sequence[float]) -> float | None:
    """Return half of the interval of the mean, as a share of it; None of fewer than two values."""
    return ratio(_reach(stdev(values), len(values)), mean(values)) if len(values) > 1 else None


class _Compared:
    """How steps of the two observers compare, and how exactly each knows its figures."""

    def __init__(
        self,
        recorded: Recorded,
        steps: Sequence[NsysStepRow],
        torch: Selection | None,
        fact: NsysFacts,
    ) -> None:
        self.steps = int(fact["steps"])
        self.speed = fact.get("step_ratio") or 1.0
        self.is_fair = fact.get("not_compared") is None
        on_device = defaultdict[int | None, float](float)
        for row in _of_main(steps, fact):
            if row["device_s"] is not None:
                on_device[row["step"]] += row["device_s"]
        # Of one module alone the spread of device time is not recorded: it is that of the steps.
        self.device_share = _relative_reach(list(on_device.values()))
        walls: list[float] = []
        self._by_slice: dict[str, dict[str, list[float]]] = {}
        if torch is not None:
            walls = known(recorded.steps_of(torch.slices), "wall_s")
            self._by_slice = _module_slices(recorded, torch)
        self.torch_share = _relative_reach(walls)

    def torch_reach(self, path: str, column: str, value: float | None) -> float | None:
        """Return half of the interval of a module's time by the torch layer.

        It is known by the spread of its slices and by that of their steps: the wider one counts.
        """
        if value is None or self.torch_share is None:
            return None
        of_steps = self.torch_share * value
        slices = self._by_slice.get(path, {}).get(column, [])
        if len(slices) < FEWEST_SLICES:
            return of_steps
        return max(of_steps, _reach(stdev(slices), len(slices)))


def _module_slices(recorded: Recorded, torch: Selection) -> dict[str, dict[str, list[float]]]:
    """Return the times of each module per step, by path and column, one of each slice."""
    slices = {row["slice"]: row["steps"] for row in recorded.slices}
    found: dict[str, dict[str, list[float]]] = {}
    columns = ("forward_s", "forward_device_s")
    for row in recorded.rows("module_times", torch):
        path, steps = recorded.module_path(row["module_id"]), slices[row["slice"]]
        if path is not None and steps:
            times = found.setdefault(path, {name: [] for name in columns})
            for name in columns:
                if row[name] is not None:
                    times[name].append(row[name] / steps)
    return found


# --- Modules as nsys and the torch layer saw them -------------------------------------------------


class _Seen(NamedTuple):
    """Figures of one module by one observer, per step."""

    calls: float | None = None
    host_s: float | None = None
    device_s: float | None = None
    # Standard deviation of the host time per step.
    deviation_s: float | None = None


def _modules(
    ranges: Sequence[NsysRangeRow], modules: Sequence[ModuleRow], compared: _Compared
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
            "host_reach_s": None
            if ours.deviation_s is None or compared.steps < 2
            else _reach(ours.deviation_s, compared.steps),
            "torch_host_s": theirs.host_s,
            "torch_host_reach_s": compared.torch_reach(path, "forward_s", theirs.host_s),
            "host_ratio": ratio(ours.host_s, theirs.host_s),
            "device_s": ours.device_s,
            "torch_device_s": theirs.device_s,
            "device_ratio": ratio(ours.device_s, theirs.device_s),
            "disagreement": None,
        }
        if watched and compared.is_fair:
            reach = compared.torch_reach(path, "forward_device_s", theirs.device_s)
            row["disagreement"] = disagreement(
                row, compared.speed, _both(_part(ours.device_s, compared.device_share), reach)
            )
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
        figures = (
            (row["calls"], row["wall_s"], row["device_s"], row["step_deviation_s"]) for row in own
        )
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


def _part(value: float | None, share: float | None) -> float | None:
    return None if value is None or share is None else value * share


def _both(one: float | None, other: float | None) -> float | None:
    """Return half of the interval of a difference; None where that of either is unknown."""
    return None if one is None or other is None else math.hypot(one, other)


def disagreement(row: NsysModuleRow, speed: float, device_reach_s: float | None) -> str | None:
    """Say what the two differ in beyond chance and the cost of watching; None where they agree.

    `speed` is a step of the capture over one of the torch layer, `device_reach_s` half of the
    interval of the difference in device time. Times whose interval is unknown prove nothing.
    """
    if not row["torch_calls"]:
        return ONLY_NSYS
    if not row["calls"]:
        return ONLY_TORCH
    words = []
    if _differ(row["calls"], row["torch_calls"], CALLS_SHARE, 0.0, 0.0):
        counts = format_count(row["calls"]), format_count(row["torch_calls"])
        words.append(f"calls {' against '.join(counts)}")
    own, other = row["host_s"], _part(row["torch_host_s"], speed)
    reach = _both(row["host_reach_s"], _part(row["torch_host_reach_s"], speed))
    if _differ(own, other, HOST_SHARE, HOST_FLOOR_S, reach):
        words.append(
            f"host time {format_seconds(own)} against {format_seconds(other)} "
            f"({format_seconds(row['torch_host_s'])} x {speed:.2f}, the ratio of the steps)"
        )
    own, other = row["device_s"], row["torch_device_s"]
    if _differ(own, other, DEVICE_SHARE, DEVICE_FLOOR_S, device_reach_s):
        words.append(f"device time {format_seconds(own)} against {format_seconds(other)}")
    return ", ".join(words) or None


def _differ(
    one: float | None, other: float | None, share: float, floor: float, reach: float | None
) -> bool:
    """Return whether two differ by more than a share of the smaller one, the floor and chance."""
    if one is None or other is None or reach is None:
        return False
    return abs(one - other) > max(share * min(one, other), floor, reach)


def _seconds_apart(row: NsysModuleRow, speed: float) -> float:
    """Return by how much time the two differ; if only one of them saw it, all of its time."""
    pairs = (
        (row["host_s"], _part(row["torch_host_s"], speed)),
        (row["device_s"], row["torch_device_s"]),
    )
    return float(max(abs((one or 0.0) - (other or 0.0)) for one, other in pairs))
