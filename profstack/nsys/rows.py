"""From an export to what a recording keeps of it: rows of the tables of nsys, and the facts."""

from __future__ import annotations

from typing import Any

import numpy as np

from profstack.nsys.capture import Capture
from profstack.nsys.exported import Export
from profstack.nsys.gaprows import add_busy, gap_rows
from profstack.nsys.memorycurve import memory_rows
from profstack.nsys.projection import GRAPH
from profstack.nsys.rangerows import range_rows
from profstack.nsys.stackrows import backtrace_rows, sample_rows
from profstack.nsys.summaries import S, api_rows, copy_rows, kernel_rows, step_rows

Rows = dict[str, list[dict[str, Any]]]


def rows_of(export: Export) -> tuple[Rows, dict[str, Any]]:
    """Rows by table, totals over the steps of a capture or over the whole of it, and its facts."""
    capture = Capture.of(export)
    steps = step_rows(capture)
    add_busy(capture, steps)
    cut = {
        "nsys_ranges": range_rows(capture),
        "nsys_kernels": kernel_rows(capture),
        "nsys_copies": copy_rows(capture),
        "nsys_api": api_rows(capture),
    }
    rows = {
        "nsys_steps": steps,
        **{name: some for name, (some, _) in cut.items()},
        "nsys_backtraces": backtrace_rows(capture),
        "nsys_memory": memory_rows(export),
        "nsys_samples": sample_rows(capture),
        "nsys_gaps": gap_rows(capture),
    }
    left_out = {name: count for name, (_, count) in cut.items() if count}
    return rows, {**_facts(capture), "left_out": left_out}


def _facts(capture: Capture) -> dict[str, Any]:
    export, steps, work = capture.export, capture.steps, capture.work
    numbers = [number for number in steps.numbers if number is not None]
    wall = int((steps.times.end - steps.times.start).sum())
    graphs = (export.work["kind"] == GRAPH).to_numpy(np.bool_)[work.row]
    return {
        "steps": len(steps),
        "first_step": min(numbers, default=None),
        "last_step": max(numbers, default=None),
        "per": "step" if len(steps) else "capture",
        "captured_s": (export.end_ns - export.begin_ns) * S,
        "steps_wall_s": wall * S if len(steps) else None,
        "unlaunched": int((work.call < 0).sum()),
        "graphs_whole": int(graphs.sum()),
        "open_ranges": export.open_ranges,
    }
