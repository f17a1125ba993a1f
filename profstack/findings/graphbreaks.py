"""Graphs that torch.compile ended early.

`graph-breaks`: dynamo ended a graph at a line of the user's own, in a function whose compiled code
runs in the steps. What a break costs shows only where the code is compiled without it: no gain.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from profstack.findings.compiled import Break, Version, frames_of
from profstack.findings.made import Finding, finding
from profstack.privacy import home_relative

BROKEN = "graph-breaks"
# Places that are listed.
_MOST = 8
_REGION = re.compile(r"Torch-Compiled Region: (\d+)/\d+")
_UNKNOWN_COST = (
    "what a graph break costs shows only when the code is compiled without it; the graphs on both "
    "sides can not be fused, and what lies between runs as plain Python"
)


def ended_early(
    report: Mapping[str, Any], found: Sequence[Version], breaks: Sequence[Break]
) -> Finding | None:
    """The breaks in functions whose compiled code runs in the steps; None without any."""
    calls = _graphs_per_step(report)
    breaks = [
        each
        for each in breaks
        if calls is None or any(calls.get(frame) for frame in frames_of(found, each))
    ]
    if not breaks:
        return None
    breaks = sorted(breaks, key=lambda each: -each.times)
    graphs = None
    if calls is not None:
        frames = set().union(*(frames_of(found, each) for each in breaks))
        graphs = sum(count for frame, count in calls.items() if frame in frames)
    places = len({(each.file, each.line) for each in breaks})
    first = breaks[0]
    where = f"{_base(first.file)}:{first.line}" + (f" and {places - 1} more" * (places > 1))
    return finding(
        BROKEN,
        f"Graphs end early under torch.compile at {where}",
        severity="medium",
        gain_reason=_UNKNOWN_COST,
        file=home_relative(first.file),
        line=first.line,
        layers=() if calls is None else ("torch",),
        evidence=[
            {"graph_breaks": places, "graphs_per_step": graphs},
            *(_break_row(each) for each in breaks[:_MOST]),
        ],
        advice=f"At {where}: {first.reason}. Move what can not be compiled (printing, .item(), "
        "branches on a tensor's values, calls into other libraries) out of the compiled function, "
        "or use torch.cond and torch.where; compile with fullgraph=True to be told of each break.",
    )


def _break_row(each: Break) -> dict[str, Any]:
    file = home_relative(each.file)
    return {
        "reason": each.reason,
        "function": each.code,
        "file": file,
        "line": each.line,
        "times_compiled": each.times,
        "link": f"source/{file}:{each.line}",
    }


def _base(file: str) -> str:
    return re.split(r"[/\\]", file)[-1]


def _graphs_per_step(report: Mapping[str, Any]) -> dict[str, float] | None:
    """Calls per step of every compiled code, by its number; None where the torch layer saw none."""
    layers = {row["name"]: row["status"] for row in report.get("layers") or ()}
    if layers.get("torch") != "recorded":
        return None
    calls: dict[str, float] = {}
    for row in (report.get("tables") or {}).get("regions") or ():
        found = _REGION.search(str(row["path"]))
        if found is not None and row["calls"]:
            calls[found[1]] = calls.get(found[1], 0.0) + float(row["calls"])
    return calls
