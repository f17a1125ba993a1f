"""The user's own functions that are called in a step and have nothing to do with the model's work.

They are neither called by a module, a backward pass or an optimizer, nor call one.
"""

from __future__ import annotations

from typing import Any

from profstack.findings.figures import CallGraph, Report, to_function

_WORK = ("torch/nn/modules/module.py", "torch/_tensor.py", "torch/optim/", "torch/autograd/")
_WORK_NAMES = ("_call_impl", "_wrapped_call_impl", "backward", "step", "zero_grad", "wrapper")

_Key = tuple[str, int, str]


def _is_work(key: _Key) -> bool:
    """Whether a function is torch's way into a module, a backward pass or an optimizer."""
    file = key[0].replace("\\", "/")
    return any(part in file for part in _WORK) and key[2] in _WORK_NAMES


def outside_modules(report: Report, at_most_s: float) -> list[dict[str, Any]]:
    """Evidence rows of the outermost such functions, the longest first, in seconds per clean step.

    Those that take more than `at_most_s`, or whose time could not be calibrated, are left out.
    """
    graph = CallGraph(report)
    work = [key for key in graph.rows if _is_work(key)]
    called = graph.below(work) | set(work)
    own = [key for key, row in graph.rows.items() if row["own"] and key not in called]
    apart = [key for key in own if not graph.below([key]) & set(work)]
    outermost = [key for key in apart if not any(key in graph.below([other]) for other in apart)]
    rows = []
    for key in outermost:
        row = graph.rows[key]
        ratio = _calibration(graph)
        if ratio is None or not row["total_s"] or row["total_s"] * ratio > at_most_s:
            continue
        rows.append(
            {
                "function": row["name"],
                "file": row["file"],
                "line": row["line"],
                "calls": row["calls"],
                "clean_s": row["total_s"] * ratio,
                "link": to_function(*key),
            }
        )
    return sorted(rows, key=lambda each: -each["clean_s"])


def _calibration(graph: CallGraph) -> float | None:
    """Clean seconds of a second of the profiled steps; None where nothing was calibrated."""
    known = [row for row in graph.rows.values() if row["self_s"] and row["calibrated_s"]]
    first = max(known, key=lambda row: row["self_s"], default=None)
    return None if first is None else float(first["calibrated_s"] / first["self_s"])
