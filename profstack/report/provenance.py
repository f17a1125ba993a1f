"""Where each number of the page comes from: the layer, and in what sense it is to be read.

There are seven senses. A *clean* number was measured with no layer on. A *calibrated* one was seen
by a layer and is told at the speed of the clean steps. A *raw* one is as the layer saw it, with
what the layer itself cost. A *counted* one is an exact count. A *rate* is a count of the layer
`flops` over a calibrated time of the layer that is named. A *fact* is no measurement: a line, a
size, an index. In a *mixed* column the rows are of several: each says its own. Every numeric column
has its entry here; there is no default, so that a new column cannot pass for something it is not.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from profstack.schema import CLEAN_SLICES, OTHER_SLICES

KINDS = ("clean", "calibrated", "raw", "counted", "rate", "fact", "mixed")

# By table, the columns of each layer and sense.
_SENSES: dict[str, dict[tuple[str, str], str]] = {
    "steps": {
        ("step clock", "raw"): "wall_s cpu_s device_s wait_s",
        ("profstack", "fact"): "index slice batch_size",
    },
    "modules": {
        ("torch", "raw"): (
            "forward_s backward_s recomputed_s self_s python_s forward_device_s backward_device_s "
            "host_net_bytes host_peak_bytes device_net_bytes device_peak_bytes"
        ),
        ("torch", "calibrated"): "calibrated_s",
        ("torch", "counted"): "calls",
        ("flops", "counted"): "forward_flop backward_flop forward_mac",
        ("torch", "rate"): "flop_per_s",
        ("profstack", "fact"): "instance depth parameters",
    },
    "operators": {
        ("torch", "raw"): "self_s total_s device_s",
        ("torch", "calibrated"): "calibrated_s",
        ("torch", "counted"): "calls moved_bytes",
        ("flops", "counted"): "flop",
    },
    "operators_by_name": {("torch", "counted"): "shapes modules"},
    "kernels": {
        ("torch", "raw"): "device_s",
        ("torch", "counted"): "calls",
        ("torch", "fact"): "stream",
    },
    "functions": {
        ("cprofile", "raw"): "self_s total_s corrected_self_s",
        ("cprofile", "calibrated"): "calibrated_s",
        ("cprofile", "counted"): "calls primitive_calls",
        ("watch", "raw"): "watch_share",
        ("cprofile", "fact"): "line",
    },
    "calls": {
        ("cprofile", "raw"): "self_s total_s",
        ("cprofile", "counted"): "calls",
    },
    "lines": {
        ("torch", "raw"): "python_s operator_s device_s backward_s",
        ("torch", "counted"): "calls",
        ("memory", "raw"): "usage_bytes increment_bytes largest_bytes allocated_bytes",
        ("memory", "counted"): "occurrences",
        ("watch", "raw"): "watch_share watch_bytes startup_share",
        ("profstack", "fact"): "line",
    },
    "module_lines": {
        ("torch", "raw"): "python_s operator_s device_s backward_s",
        ("torch", "counted"): "calls",
        ("profstack", "fact"): "line",
    },
    "memory": {
        # Read at the edges of slices, and of the host by the watch in between.
        ("profstack", "raw"): "rss_bytes device_allocated_bytes device_reserved_bytes",
        ("profstack", "fact"): "t_s step",
    },
    "memory_owners": {("torch", "raw"): "start_bytes peak_bytes largest_bytes end_bytes"},
    "peak_holders": {("torch", "raw"): "bytes share", ("torch", "counted"): "tensors"},
    "call_paths": {
        ("torch", "raw"): "total_s self_s device_s",
        ("torch", "counted"): "calls",
        ("torch", "fact"): "node parent line",
    },
    "threads": {
        ("step clock", "clean"): "cpu_s share off_cpu_s no_core_s",
        ("profstack", "counted"): "threads",
        ("profstack", "fact"): "process",
    },
    "launches": {
        ("torch", "raw"): "operator_s launch_s launches_total_s device_busy_s device_idle_s",
        ("torch", "counted"): "operators outermost_operators kernels launches",
        ("torch", "fact"): "step",
    },
    "gaps": {("torch", "raw"): "total_s longest_s", ("torch", "counted"): "count"},
    "regions": {
        ("profstack", "mixed"): "wall_s calls",
        ("torch", "raw"): "operator_s device_s host_net_bytes",
        ("torch", "counted"): "flop",
    },
    "ranges": {("nvtx", "raw"): "emit_s", ("nvtx", "counted"): "calls"},
    "watch": {
        ("watch", "raw"): "samples self_share total_share rss_bytes",
        ("watch", "fact"): "line",
    },
    "outliers": {
        ("step clock", "raw"): "wall_s factor",
        ("watch", "raw"): "rss_bytes samples",
        ("step clock", "fact"): "index",
    },
    "flops": {
        ("flops", "counted"): (
            "forward_flop backward_flop causal_forward_flop causal_backward_flop forward_mac"
        )
    },
    "artifacts": {("profstack", "fact"): "bytes"},
    "nsys_modules": {
        ("nsys", "raw"): "host_s device_s",
        ("nsys", "counted"): "calls",
        ("torch", "raw"): "torch_host_s torch_device_s",
        ("torch", "counted"): "torch_calls",
        ("profstack", "raw"): "host_ratio device_ratio",
    },
    "nsys_steps": {
        ("nsys", "raw"): "wall_s device_s busy_s idle_s",
        ("nsys", "counted"): "kernels",
        ("nsys", "fact"): "step started_s",
    },
    "nsys_ranges": {
        ("nsys", "raw"): "wall_s self_s api_s device_s elsewhere_s copies_s",
        ("nsys", "counted"): "calls api_calls kernels copies copied_bytes",
        ("nsys", "fact"): "node parent",
    },
    "nsys_kernels": {
        ("nsys", "raw"): "device_s longest_s delay_s",
        ("nsys", "counted"): "calls",
        ("nsys", "fact"): "stream",
    },
    "nsys_copies": {
        ("nsys", "raw"): "device_s longest_s bytes_per_s",
        ("nsys", "counted"): "calls bytes",
    },
    "nsys_api": {
        ("nsys", "raw"): "host_s longest_s",
        ("nsys", "counted"): "calls failed",
    },
    "nsys_backtraces": {("nsys", "raw"): "host_s", ("nsys", "counted"): "calls"},
    "nsys_memory": {("nsys", "counted"): "bytes", ("nsys", "fact"): "t_s"},
    "nsys_samples": {("nsys", "raw"): "self_samples total_samples self_share"},
    "nsys_gaps": {("nsys", "raw"): "total_s longest_s", ("nsys", "counted"): "count"},
}
_BY_COLUMN = {
    f"{table}.{column}": sense
    for table, senses in _SENSES.items()
    for sense, columns in senses.items()
    for column in columns.split()
}


def provenance(table: str, column: str) -> tuple[str | None, str | None]:
    """The layer and the sense of a column's numbers; None twice of one that holds no numbers."""
    return _BY_COLUMN.get(f"{table}.{column}", (None, None))


def region_timed_in(record: Mapping[str, Any]) -> str:
    """Where a region's time and calls are from: clean or raw slices of its clock, or torch's."""
    own = {CLEAN_SLICES: "clean", OTHER_SLICES: "raw"}
    return own.get(str(record.get("measured_in") or "").split("; ")[0], "torch")
