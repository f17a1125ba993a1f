"""What calls cost in clean time, where the tools that saw them slowed them down.

cProfile's own cost per call was measured in the process that was profiled: it is taken off, both of
the calls that are asked about and of the whole step, and what is left is their share of the clean
step. Of traced lines nothing tells that cost: there it is the plain share of the slice's steps.
"""

from __future__ import annotations

from collections.abc import Iterable

from profstack.findings.figures import CallGraph, Key, Report, Row, clean_step_s, line_s
from profstack.findings.loops import loop_lines
from profstack.merge.functions import PROFILED
from profstack.merge.recorded import Recorded


def clean_s_of(
    recorded: Recorded, report: Report, graph: CallGraph, keys: Iterable[Key]
) -> float | None:
    """Clean seconds per step of these functions' own time together.

    None where there are none, or nothing tells what cProfile cost.
    """
    profiled, step_s = recorded.select("cprofile", PROFILED), clean_step_s(report)
    own = [graph.rows[key]["corrected_self_s"] for key in dict.fromkeys(keys) if key in graph.rows]
    if profiled is None or not profiled.steps or step_s is None or not own or None in own:
        return None
    cost_s = sum(
        row["self_s"] - row["corrected_self_s"]
        for row in graph.rows.values()
        if row["corrected_self_s"] is not None
    )
    whole = profiled.wall_s / profiled.steps - cost_s
    return min(float(sum(own)) / whole, 1.0) * step_s if whole > 0 else None


def line_costs(recorded: Recorded, report: Report, site: Row) -> float | None:
    """Clean seconds per step of the loop that a line is in: its share of the steps with lines.

    The lines of the loop are the neighbours that run about as often. None where lines were not
    followed to their end.
    """
    traced, step_s = recorded.select("torch", (("lines",),)), clean_step_s(report)
    if site["calls"] is None or traced is None or not traced.steps or step_s is None:
        return None
    whole = traced.wall_s / traced.steps
    return float(min(sum(map(line_s, loop_lines(report, site))) / whole, 1.0) * step_s)
