"""The user's own functions that are called in a step and have nothing to do with the model's work.

They are neither called by a module, a backward pass or an optimizer, nor call one.
"""

from __future__ import annotations

import math
from typing import Any

from profstack.findings.afterstep import after_step
from profstack.findings.figures import CallGraph, Key, Report, module_rows, to_function

_WORK = ("torch/nn/modules/module.py", "torch/_tensor.py", "torch/optim/", "torch/autograd/")
_WORK_NAMES = ("_call_impl", "_wrapped_call_impl", "backward", "step", "zero_grad", "wrapper")
# Where else in a step the script's own functions run, outside modules.
_ELSEWHERE = (
    "(compiled functions)", "(loss)", "(before the optimizer)", "(outside modules)",
    "(not attributed)",
)  # fmt: skip
# Times of two layers that are as near are about the same.
_ABOUT = 1.2


def _is_work(key: Key) -> bool:
    """Whether a function is torch's way into a module, a backward pass or an optimizer."""
    file = key[0].replace("\\", "/")
    return any(part in file for part in _WORK) and key[2] in _WORK_NAMES


def before_first_work(report: Report, wait_s: float, slowed: float) -> list[dict[str, Any]]:
    """Evidence rows of the outermost such functions that may run while a step waits for `wait_s`
    before its first work, the longest first, in seconds per clean step.

    A function that took longer under cProfile runs elsewhere; unless profiling slowed its Python,
    by `slowed` at most, and nowhere else in the step is as much time: then it has all the wait.
    What makes no input since it is called after the optimizer's step is left out.
    Those whose time could not be calibrated are left out.
    """
    graph = CallGraph(report)
    ratio = _calibration(graph)
    if ratio is None:
        return []
    rows = []
    elsewhere_s = _elsewhere_s(report)
    after = after_step(report)
    for key in _outermost(graph):
        if after is not None and key in after.functions:
            continue
        row = graph.rows[key]
        clean_s = (row["total_s"] or 0.0) * ratio
        at_least_s = clean_s / max(slowed, 1.0)
        is_there = elsewhere_s < at_least_s <= _ABOUT * wait_s
        if not clean_s or not (clean_s <= _ABOUT * wait_s or is_there):
            continue
        rows.append(
            {
                "function": row["name"],
                "file": row["file"],
                "line": row["line"],
                "calls": row["calls"],
                "clean_s": min(clean_s, wait_s),
                "link": to_function(*key),
            }
        )
    return sorted(rows, key=lambda each: -each["clean_s"])


def _outermost(graph: CallGraph) -> list[Key]:
    work = [key for key in graph.rows if _is_work(key)]
    called = graph.below(work) | set(work)
    own = [key for key, row in graph.rows.items() if row["own"] and key not in called]
    apart = [key for key in own if not graph.below([key]) & set(work)]
    return [key for key in apart if not any(key in graph.below([other]) for other in apart)]


def _elsewhere_s(report: Report) -> float:
    """Time of a clean step outside modules, other than the wait and torch's own work in Python;
    infinite where the torch layer, which slows no Python, does not tell it."""
    rows = module_rows(report)
    times = [rows[name]["calibrated_s"] for name in _ELSEWHERE if name in rows]
    known = [float(time) for time in times if time is not None]
    return sum(known) if known and len(known) == len(times) else math.inf


def _calibration(graph: CallGraph) -> float | None:
    """Clean seconds of a second of the profiled steps; None where nothing was calibrated."""
    known = [row for row in graph.rows.values() if row["self_s"] and row["calibrated_s"]]
    first = max(known, key=lambda row: row["self_s"], default=None)
    return None if first is None else float(first["calibrated_s"] / first["self_s"])
