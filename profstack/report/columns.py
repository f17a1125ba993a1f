"""How a column of the report is headed: short label, unit, meaning, and why it is empty."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from profstack import schema
from profstack.report.provenance import provenance

# What a heading says where the column's name without its unit would not do.
_LABELS = {
    "artifacts.opens_in": "opens in",
    "flops.forward_mac": "forward MAC",
    "call_paths.own": "own file",
    "functions.corrected_self_s": "corrected self",
    "functions.own": "own file",
    "functions.primitive_calls": "not recursive",
    "functions.watch_share": "watch share",
    "lines.allocated_bytes": "second source",
    "lines.increment_bytes": "RSS growth",
    "lines.largest_bytes": "largest growth",
    "lines.memory_source": "what the second source is",
    "lines.occurrences": "runs seen",
    "lines.own": "own file",
    "lines.usage_bytes": "RSS after",
    "lines.watch_bytes": "RSS growth (watch)",
    "lines.startup_share": "start-up share (watch)",
    "lines.watch_share": "watch share",
    "launches.launch_s": "host time per launch",
    "launches.launches_total_s": "host time of launches",
    "launches.operators": "operators called",
    "launches.operator_s": "host time per operator",
    "launches.outermost_operators": "of them outermost",
    "launches.kernels": "kernels launched",
    "memory.rss_bytes": "resident set",
    "memory.t_s": "time",
    "nsys_api.host_s": "host time",
    "nsys_api.longest_s": "longest call",
    "nsys_api.range_kind": "kind of range",
    "nsys_api.range_name": "in range",
    "nsys_backtraces.host_s": "host time",
    "nsys_backtraces.name": "function called",
    "nsys_backtraces.stack": "called from",
    "nsys_copies.bytes_per_s": "bytes per second",
    "nsys_copies.device_s": "device time",
    "nsys_copies.from_memory": "from",
    "nsys_copies.range_kind": "kind of range",
    "nsys_copies.range_name": "in range",
    "nsys_copies.to_memory": "to",
    "nsys_kernels.delay_s": "delay after launch",
    "nsys_kernels.device_s": "device time",
    "nsys_kernels.in_graph": "in a graph",
    "nsys_kernels.launched_by": "launched by",
    "nsys_kernels.range_kind": "kind of range",
    "nsys_kernels.range_name": "in range",
    "nsys_memory.bytes": "held",
    "nsys_memory.t_s": "time",
    "nsys_modules.device_ratio": "device ratio",
    "nsys_modules.device_s": "device (nsys)",
    "nsys_modules.calls": "calls (nsys)",
    "nsys_modules.host_ratio": "host ratio",
    "nsys_modules.host_s": "host (nsys)",
    "nsys_modules.path": "module",
    "nsys_modules.torch_calls": "calls (torch)",
    "nsys_modules.torch_device_s": "device (torch)",
    "nsys_modules.torch_host_s": "host (torch)",
    "nsys_ranges.api_calls": "CUDA calls",
    "nsys_ranges.api_s": "in CUDA calls",
    "nsys_ranges.copied_bytes": "copied",
    "nsys_ranges.copies_s": "copying",
    "nsys_ranges.device_s": "device time",
    "nsys_ranges.elsewhere_s": "of it by other threads",
    "nsys_ranges.name": "range",
    "nsys_ranges.on_steps_thread": "steps' thread",
    "nsys_ranges.wall_s": "host time",
    "nsys_ranges.self_s": "self",
    "nsys_samples.self_samples": "samples",
    "nsys_samples.self_share": "share",
    "nsys_samples.symbol": "function",
    "nsys_samples.total_samples": "samples with callees",
    "nsys_steps.busy_s": "device busy",
    "nsys_steps.device_s": "device time",
    "nsys_steps.idle_s": "device idle",
    "nsys_steps.started_s": "began",
    "nsys_steps.wall_s": "host time",
    "modules.forward_flop": "forward FLOP",
    "modules.backward_flop": "backward FLOP",
    "modules.forward_mac": "forward MAC",
    "modules.flop_per_s": "FLOP/s",
    "modules.host_net_bytes": "host memory kept",
    "modules.host_peak_bytes": "host peak",
    "modules.device_net_bytes": "device memory kept",
    "modules.recomputed_s": "recomputed",
    "outliers.index": "step",
    "outliers.factor": "of a clean step",
    "outliers.rss_bytes": "RSS growth",
    "outliers.doing": "what it was doing",
    "ranges.emit_s": "emitting",
    "modules.path": "module",
    "modules.python_s": "python",
    "lines.backward_s": "of it backward",
    "lines.reason": "why not whole",
    "operators.moved_bytes": "moved",
    "operators.flop": "FLOP",
    "regions.flop": "FLOP",
    "peak_holders.bytes": "at the peak",
    "regions.host_net_bytes": "host memory kept",
    "regions.measured_in": "measured in",
    "regions.operator_s": "in operators",
    "steps.index": "step",
    "steps.wait_s": "wait",
    "threads.cpu_s": "CPU",
    "threads.off_cpu_s": "did not run",
    "threads.no_core_s": "had no core",
    "watch.rss_bytes": "RSS growth",
    "watch.self_share": "share",
    "watch.total_share": "share with callees",
}
_UNITS = (
    ("_share", "share"),
    ("_per_s", "rate"),
    ("_s", "s"),
    ("_bytes", "bytes"),
    ("_flop", "flop"),
    ("_mac", "mac"),
)
_BARE_UNITS = {"bytes": "bytes", "flop": "flop", "share": "share"}
_PLAIN = frozenset(
    {"line", "index", "depth", "instance", "stream", "slice", "step", "batch_size"}
    | {"node", "parent", "process", "tensors"}
)


@dataclass(frozen=True)
class PageColumn:
    """One column as the page shows it.

    `reason` says why it is empty throughout, `cell_reason` why single cells are, if they are;
    `source` what its figures rest on, where that could be several things. `layer` and `kind` say
    whose its numbers are and in what sense (see `provenance`); null of words.
    """

    key: str
    label: str
    unit: str
    meaning: str
    reason: str | None = None
    cell_reason: str | None = None
    source: str | None = None
    layer: str | None = None
    kind: str | None = None


@dataclass(frozen=True)
class Told:
    """What the report tells of columns, by `table.column`."""

    reasons: Mapping[str, str] = field(default_factory=dict)
    cells: Mapping[str, str] = field(default_factory=dict)
    sources: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def by(cls, report: Mapping[str, Any]) -> Told:
        """What a report tells; an older one tells less."""
        keys = ("columns_reason", "cells_reason", "columns_source")
        return cls(*(report.get(key) or {} for key in keys))


def unit_of(column: str, kind: str = "REAL") -> str:
    """The unit a column's name ends in: s, bytes, flop, mac, rate, count, plain, flag or text."""
    if kind in ("TEXT", "JSON"):
        return "text"
    if kind == "BOOLEAN":
        return "flag"
    if column in _PLAIN:
        return "plain"
    for ending, unit in _UNITS:
        if column.endswith(ending):
            return unit
    return _BARE_UNITS.get(column, "count")


def label_of(table: str, column: str) -> str:
    """The heading of a column: its name without the unit, in words."""
    special = _LABELS.get(f"{table}.{column}")
    if special is not None:
        return special
    for ending, _ in _UNITS[2:]:
        if column.endswith(ending):
            column = column[: -len(ending)]
            break
    return column.replace("_", " ")


def page_column(table: str, column: schema.Column, told: Told) -> PageColumn:
    """The heading of one column of `schema.REPORT`."""
    key = f"{table}.{column.name}"
    layer, kind = provenance(table, column.name)
    return PageColumn(
        key=column.name,
        label=label_of(table, column.name),
        unit=unit_of(column.name, column.type),
        meaning=column.meaning,
        reason=told.reasons.get(key),
        cell_reason=told.cells.get(key),
        source=told.sources.get(key),
        layer=layer,
        kind=kind,
    )
