"""Every table of a recording and of `report.json`: its columns, their types and their units.

A column's unit is the end of its name: `_s` seconds, `_bytes`, `_flop`, `_mac`, `_per_s`.
Recorded tables hold totals over their slice, as they were measured; report tables hold figures
per step. `None` (SQL NULL, JSON null) means not measured and is never written as 0.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from profstack.errors import RecordingError

SCHEMA_VERSION = 1

Row = tuple[Any, ...]


@dataclass(frozen=True)
class Column:
    """One column: its name, whose ending is its unit, its SQL type and what it says."""

    name: str
    type: str
    meaning: str


@dataclass(frozen=True)
class Table:
    """A named, ordered list of columns."""

    name: str
    columns: tuple[Column, ...]

    @property
    def names(self) -> tuple[str, ...]:
        """Column names in the order in which rows hold their values."""
        return tuple(column.name for column in self.columns)

    def rows(self, records: Iterable[Mapping[str, Any]]) -> list[Row]:
        """Rows in column order; a key that is no column is a defect and raises RecordingError."""
        names = self.names
        known = frozenset(names)
        rows = []
        for record in records:
            unknown = record.keys() - known
            if unknown:
                raise RecordingError(f"table {self.name} has no column {sorted(unknown)}")
            rows.append(tuple(record.get(name) for name in names))
        return rows


def _table(name: str, *columns: str) -> Table:
    """A table from lines `name TYPE meaning`."""
    parsed = []
    for line in columns:
        column, kind, meaning = line.split(" ", 2)
        parsed.append(Column(column, kind, meaning))
    return Table(name, tuple(parsed))


_FUNCTION_COLUMNS = (
    "file TEXT source file, or ~ for built-in functions",
    "line INTEGER line of the function's definition",
    "name TEXT function name",
)

# What the recording holds: slice by slice, totals over the slice.
RECORDED: dict[str, Table] = {
    table.name: table
    for table in (
        _table(
            "facts",
            "key TEXT name of the fact",
            "value TEXT its value as JSON",
        ),
        _table(
            "slices",
            "slice INTEGER number of the slice, from 0, in order of time",
            "kind TEXT startup, warmup, settle, clean, watch or the name of a layer",
            "layer TEXT name of the layer that observed, null when none did",
            "mode TEXT the layer's way of observing in this slice: timed, detail, lines, shared "
            "(with another layer) or whole (a workload without steps)",
            "plan INTEGER number of the plan, from 1: a new optimizer or model starts a new one",
            "phase TEXT train, eval or other",
            "round INTEGER number of the round, from 1; 0 before the first",
            "first_step INTEGER first step of the slice",
            "steps INTEGER steps in the slice",
            "started_s REAL host time since the recording began",
            "wall_s REAL host time over the slice's steps",
            "cpu_s REAL process CPU time over the slice's steps",
            "counted_steps INTEGER steps whose sum the layer's rows hold: those with evaluation "
            "are left out where the tool can tell steps apart",
            "counted_wall_s REAL host time over the counted steps",
            "settle_steps INTEGER steps let go by after the switch, before the slice",
            "stop_s REAL host time to stop the tool and take in its data; the script stood still",
        ),
        _table(
            "steps",
            "step INTEGER number of the step, from 0, over all phases",
            "plan INTEGER number of the plan it belongs to",
            "phase TEXT train, eval or other",
            "slice INTEGER the slice it belongs to",
            "started_s REAL host time since the recording began",
            "wall_s REAL host time",
            "cpu_s REAL process CPU time, all threads",
            "device_s REAL device time by events, null where there is no device",
            "wait_s REAL host time to the first module call or backward",
            "batch_size INTEGER leading dimension of the step's first input tensor",
            "shape TEXT shapes of the tensors the step's model was called with",
            "flags TEXT reasons that keep the step out of medians, separated by spaces: "
            "eval, checkpoint, switch, partial",
        ),
        _table(
            "modules",
            "module_id INTEGER number of the module object, from 1",
            "path TEXT module path; names in brackets are step parts outside any module",
            "label TEXT the script's variable that holds it, if there is one",
            "type TEXT class name",
            "instance INTEGER 1 for the first live instance of a root class, 2 for the second",
            "parent_id INTEGER enclosing module, null for a root",
            "aliases TEXT further paths of the same module, as a JSON list",
            "parameters INTEGER parameters of the module and its children",
        ),
        _table(
            "module_times",
            "slice INTEGER slice",
            "module_id INTEGER module",
            "calls INTEGER calls",
            "forward_s REAL time inside its forward calls, children included",
            "forward_self_s REAL the same without children",
            "backward_s REAL backward work of its forward, children included",
            "backward_self_s REAL the same without children",
            "forward_device_s REAL device time of kernels launched in forward",
            "backward_device_s REAL device time of kernels launched in its backward",
            "host_net_bytes INTEGER host bytes allocated less freed inside forward",
            "device_net_bytes INTEGER device bytes allocated less freed inside forward",
        ),
        _table(
            "operators",
            "slice INTEGER slice",
            "name TEXT operator",
            "shapes TEXT input shapes",
            "module_id INTEGER module whose forward called it or made its backward, or null",
            "backward INTEGER 1 for backward work",
            "calls INTEGER calls",
            "self_s REAL time without children",
            "total_s REAL time with children",
            "device_s REAL device time of the kernels it launched",
        ),
        _table(
            "kernels",
            "slice INTEGER slice",
            "name TEXT kernel",
            "device TEXT device",
            "stream INTEGER stream",
            "module_id INTEGER module, or null",
            "operator TEXT operator that launched it, or null",
            "calls INTEGER launches",
            "device_s REAL device time",
        ),
        _table(
            "functions",
            "slice INTEGER slice; null for the profile of the start-up",
            *_FUNCTION_COLUMNS,
            "calls INTEGER calls, recursive ones included",
            "primitive_calls INTEGER calls that were not recursive",
            "self_s REAL time without callees",
            "total_s REAL time with callees",
        ),
        _table(
            "calls",
            "slice INTEGER slice; null for the profile of the start-up",
            *(f"caller_{column}" for column in _FUNCTION_COLUMNS),
            *(f"callee_{column}" for column in _FUNCTION_COLUMNS),
            "calls INTEGER calls from this caller",
            "primitive_calls INTEGER those that were not recursive",
            "self_s REAL time in the callee without its own callees",
            "total_s REAL time in the callee with its own callees",
        ),
        _table(
            "lines",
            "slice INTEGER slice",
            "file TEXT source file",
            "line INTEGER line",
            "source TEXT text of the line",
            "calls INTEGER times the line was run",
            "python_s REAL time on the line outside operators and outside user functions it calls",
            "operator_s REAL time on the line inside operators",
            "device_s REAL device time of kernels launched from the line",
        ),
        _table(
            "memory",
            "t_s REAL host time since the recording began",
            "step INTEGER step",
            "rss_bytes INTEGER resident set of the process",
            "device_allocated_bytes INTEGER bytes in live tensors on the device",
            "device_reserved_bytes INTEGER bytes held by the device allocator",
        ),
        _table(
            "memory_lines",
            "slice INTEGER slice",
            "file TEXT source file",
            "line INTEGER line",
            "source TEXT text of the line",
            "usage_bytes INTEGER largest resident set after the line",
            "increment_bytes INTEGER growth of the resident set over the line, all runs together",
            "largest_bytes INTEGER the largest growth over one run of the line",
            "allocated_bytes INTEGER the same growth by the second source, null where it has none",
            "second_source TEXT what the second figure comes from, or why there is none",
            "occurrences INTEGER runs of the line that were seen",
        ),
        _table(
            "module_memory",
            "slice INTEGER slice",
            "module_id INTEGER module",
            "calls INTEGER calls seen",
            "host_net_bytes INTEGER growth of the resident set over its calls, children included",
            "device_net_bytes INTEGER growth of live device bytes over its calls",
            "device_peak_bytes INTEGER largest live device bytes inside one call",
        ),
        _table(
            "flop_counts",
            "slice INTEGER slice",
            "counter TEXT FlopCounterMode, recorded_shapes or flops-profiler",
            "module_id INTEGER module, null outside every module",
            "operator TEXT operator, null where the counter knows modules alone",
            "backward INTEGER 1 for backward work",
            "calls INTEGER calls",
            "flop INTEGER floating-point operations, a multiply-add is 2; null without a formula",
        ),
        _table(
            "ranges",
            "slice INTEGER slice",
            "kind TEXT step, module, forward, backward, optimizer or region",
            "name TEXT name of the range",
            "calls INTEGER ranges emitted",
            "emit_s REAL host time spent on emitting them",
        ),
        _table(
            "region_times",
            "slice INTEGER slice",
            "path TEXT names of the regions around it and its own, with slashes between",
            "calls INTEGER times it was entered",
            "wall_s REAL host time inside, regions within it included",
        ),
        _table(
            "watch_frames",
            "frame INTEGER number of the frame, from 1",
            "parent INTEGER the frame that called it, null for the outermost",
            "file TEXT source file",
            "line INTEGER line being run",
            "name TEXT function",
            "function_line INTEGER line of the function's definition",
        ),
        _table(
            "watch_samples",
            "t_s REAL host time since the recording began",
            "frame INTEGER innermost frame of the main thread",
            "region TEXT region or module path it was in, or null",
            "rss_bytes INTEGER resident set of the process",
            "weight REAL samples it stands for, above 1 where the watch thinned itself out",
        ),
        _table(
            "layers",
            "name TEXT layer",
            "technique TEXT counting, sampling or tracing",
            "tool TEXT what does the observing",
            "version TEXT its version",
            "status TEXT recorded, emitted, empty, unavailable, skipped or failed",
            "reason TEXT why, where the status is not recorded",
            "memory_bytes INTEGER growth of the resident set over the layer's slices",
            "truncated TEXT what was left out and why, or null",
        ),
        _table(
            "artifacts",
            "layer TEXT layer",
            "path TEXT path inside the recording",
            "opens_in TEXT tools that open it",
            "bytes INTEGER size",
        ),
        _table(
            "notes",
            "slug TEXT short name",
            "layer TEXT layer it concerns, or null",
            "text TEXT what happened and what follows",
        ),
    )
}

# What report.json holds: figures per step, one list of rows per table.
REPORT: dict[str, Table] = {
    table.name: table
    for table in (
        _table(
            "steps",
            "index INTEGER number of the step",
            "phase TEXT train, eval or other",
            "slice INTEGER slice",
            "wall_s REAL host time",
            "cpu_s REAL process CPU time",
            "device_s REAL device time by events",
            "wait_s REAL host time to the first module call or backward",
            "batch_size INTEGER leading dimension of the step's first input tensor",
        ),
        _table(
            "modules",
            "path TEXT module path; names in brackets are step parts outside any module",
            "label TEXT the script's variable",
            "type TEXT class name",
            "instance INTEGER number among live instances of the root's class",
            "depth INTEGER 0 for a root",
            "aliases JSON further paths of the same module",
            "calls REAL calls per step",
            "parameters INTEGER parameters, children included",
            "forward_s REAL host time in forward, children included",
            "backward_s REAL host time of the backward work of its forward, children included",
            "self_s REAL forward and backward host time without children",
            "forward_device_s REAL device time of kernels launched in forward",
            "backward_device_s REAL device time of kernels launched in its backward",
            "calibrated_s REAL forward and backward time at the speed of the clean steps",
            "forward_flop INTEGER floating-point operations in forward",
            "backward_flop INTEGER floating-point operations in backward",
            "forward_mac INTEGER multiply-adds in forward",
            "flop_per_s REAL operations per clean second",
            "host_net_bytes REAL host bytes allocated less freed inside forward",
            "device_net_bytes REAL device bytes allocated less freed inside forward",
            "device_peak_bytes REAL device peak inside forward",
        ),
        _table(
            "operators",
            "name TEXT operator",
            "shapes TEXT input shapes",
            "calls REAL calls per step",
            "self_s REAL host time without children",
            "total_s REAL host time with children",
            "device_s REAL device time",
            "calibrated_s REAL self time at the speed of the clean steps",
            "flop REAL floating-point operations",
            "moved_bytes REAL bytes read and written, from shapes and dtypes",
            "module TEXT module path",
        ),
        _table(
            "kernels",
            "name TEXT kernel",
            "calls REAL launches per step",
            "device_s REAL device time",
            "device TEXT device",
            "stream INTEGER stream",
            "module TEXT module path",
            "operator TEXT operator that launched it",
        ),
        _table(
            "functions",
            "phase TEXT step or startup",
            *_FUNCTION_COLUMNS,
            "calls REAL calls per step",
            "primitive_calls REAL calls per step that were not recursive",
            "self_s REAL host time without callees",
            "total_s REAL host time with callees",
            "calibrated_s REAL self time at the speed of the clean steps",
            "corrected_self_s REAL self time less the profiler's own cost per call",
            "watch_share REAL share of the watch's samples in which it was innermost",
        ),
        _table(
            "calls",
            "caller TEXT file:line(name) of the caller",
            "callee TEXT file:line(name) of the callee",
            "calls REAL calls per step",
            "self_s REAL time in the callee from this caller, without callees",
            "total_s REAL time in the callee from this caller, with callees",
        ),
        _table(
            "lines",
            "file TEXT source file",
            "line INTEGER line",
            "source TEXT text of the line",
            "calls REAL times run per step",
            "python_s REAL time outside operators",
            "operator_s REAL time inside operators",
            "device_s REAL device time of kernels launched from the line",
            "usage_bytes INTEGER resident set after the line",
            "increment_bytes INTEGER growth of the resident set over the line",
            "occurrences REAL times the memory layer saw the line",
            "watch_share REAL share of the watch's samples",
            "watch_bytes INTEGER growth of the resident set seen by the watch",
            "largest_bytes INTEGER largest growth of the resident set over one run of the line",
            "allocated_bytes INTEGER the growth by the memory layer's second source",
            "memory_source TEXT what the second figure comes from, or why there is none",
        ),
        _table(
            "memory",
            "t_s REAL host time since the recording began",
            "step INTEGER step",
            "rss_bytes INTEGER resident set of the process",
            "device_allocated_bytes INTEGER bytes in live tensors on the device",
            "device_reserved_bytes INTEGER bytes held by the device allocator",
        ),
        _table(
            "regions",
            "path TEXT region path",
            "calls REAL calls per step",
            "wall_s REAL host time",
            "device_s REAL device time",
            "flop REAL floating-point operations",
        ),
        _table(
            "ranges",
            "kind TEXT step, module, forward, backward, optimizer or region",
            "name TEXT name of the NVTX range",
            "calls REAL ranges per step",
            "emit_s REAL host time spent on emitting them, per step",
        ),
        _table(
            "watch",
            "phase TEXT startup, step or other (between steps of a plan, and after them)",
            "file TEXT source file",
            "line INTEGER line of the function's definition",
            "name TEXT function",
            "samples REAL samples in which it was on the stack",
            "self_share REAL share of the phase's samples in which it was innermost",
            "total_share REAL share of the phase's samples in which it was on the stack",
            "rss_bytes INTEGER growth of the resident set between samples that ended in it",
        ),
        _table(
            "outliers",
            "index INTEGER number of the step",
            "wall_s REAL host time",
            "factor REAL that over the clean median",
            "rss_bytes INTEGER growth of the resident set over the step",
            "samples REAL samples of the watch in it",
            "doing TEXT what most of them were doing: function and line, outermost first",
        ),
        _table(
            "flops",
            "counter TEXT counter",
            "forward_flop INTEGER operations in forward",
            "backward_flop INTEGER operations in backward",
            "forward_mac INTEGER multiply-adds in forward",
            "uncounted JSON operators without a formula: operator, calls, time_share",
        ),
        _table(
            "artifacts",
            "layer TEXT layer",
            "path TEXT path inside the recording",
            "opens_in TEXT tools that open it",
            "bytes INTEGER size",
        ),
    )
}
