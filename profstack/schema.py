"""Every table of a recording and of `report.json`: its columns, their types and their units.

A column's unit is the end of its name: `_s` seconds, `_bytes`, `_flop`, `_mac`, `_per_s`.
Recorded tables hold totals over their slice, as they were measured; report tables hold figures
per step. `None` (SQL NULL, JSON null) means not measured and is never written as 0.
"""

from __future__ import annotations

from profstack.recordedtables import RECORDED
from profstack.tabletypes import FUNCTION_COLUMNS, Column, Row, Table, table

__all__ = ["RECORDED", "REPORT", "SCHEMA_VERSION", "Column", "Row", "Table"]

SCHEMA_VERSION = 1

# What report.json holds: figures per step, one list of rows per table.
REPORT: dict[str, Table] = {
    each.name: each
    for each in (
        table(
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
        table(
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
        table(
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
        table(
            "kernels",
            "name TEXT kernel",
            "calls REAL launches per step",
            "device_s REAL device time",
            "device TEXT device",
            "stream INTEGER stream",
            "module TEXT module path",
            "operator TEXT operator that launched it",
        ),
        table(
            "functions",
            "phase TEXT step or startup",
            *FUNCTION_COLUMNS,
            "calls REAL calls per step",
            "primitive_calls REAL calls per step that were not recursive",
            "self_s REAL host time without callees",
            "total_s REAL host time with callees",
            "calibrated_s REAL self time at the speed of the clean steps",
            "corrected_self_s REAL self time less the profiler's own cost per call",
            "watch_share REAL share of the watch's samples of steps in which it was innermost",
        ),
        table(
            "calls",
            "caller TEXT file:line(name) of the caller",
            "callee TEXT file:line(name) of the callee",
            "calls REAL calls per step",
            "self_s REAL time in the callee from this caller, without callees",
            "total_s REAL time in the callee from this caller, with callees",
        ),
        table(
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
            "watch_share REAL share of the watch's samples in steps",
            "watch_bytes INTEGER growth of the resident set seen by the watch",
            "largest_bytes INTEGER largest growth within one run of the line, by either source",
            "allocated_bytes INTEGER the growth by the memory layer's second source",
            "memory_source TEXT what the second figure comes from, or why there is none",
            "startup_share REAL share of the watch's samples in the start-up",
        ),
        table(
            "memory",
            "t_s REAL host time since the recording began",
            "step INTEGER step",
            "rss_bytes INTEGER resident set of the process",
            "device_allocated_bytes INTEGER bytes in live tensors on the device",
            "device_reserved_bytes INTEGER bytes held by the device allocator",
        ),
        table(
            "regions",
            "path TEXT region path",
            "calls REAL calls per step",
            "wall_s REAL host time",
            "device_s REAL device time",
            "flop REAL floating-point operations",
            "measured_in TEXT the slices that the figures are from",
        ),
        table(
            "ranges",
            "kind TEXT step, module, forward, backward, optimizer or region",
            "name TEXT name of the NVTX range",
            "calls REAL ranges per step",
            "emit_s REAL host time spent on emitting them, per step",
        ),
        table(
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
        table(
            "outliers",
            "index INTEGER number of the step",
            "wall_s REAL host time",
            "factor REAL that over the clean median",
            "rss_bytes INTEGER growth of the resident set over the step",
            "samples REAL samples of the watch in it",
            "doing TEXT what most of them were doing: function and line, outermost first",
        ),
        table(
            "flops",
            "counter TEXT counter",
            "forward_flop INTEGER operations in forward",
            "backward_flop INTEGER operations in backward",
            "causal_forward_flop INTEGER the same of forward, with attention called as causal "
            "counted as its mask leaves it; null without such attention",
            "causal_backward_flop INTEGER the same of backward",
            "forward_mac INTEGER multiply-adds in forward",
            "difference TEXT by how much its forward and backward differ from the record's, in "
            "which operators and why",
            "uncounted JSON operators without a formula: operator, calls, time_share",
            "note TEXT why it has no figures",
        ),
        table(
            "artifacts",
            "layer TEXT layer",
            "path TEXT path inside the recording",
            "opens_in TEXT tools that open it",
            "bytes INTEGER size",
        ),
    )
}
