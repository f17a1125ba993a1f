"""Made-up reports for rules: what a test does not say is null, or empty."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from profstack.storage.schema.report import (
    REPORT,
    Attribution,
    Benchmark,
    LaunchMeans,
    Processes,
    Roofline,
    Run,
    StepFacts,
)

_PARTS: dict[str, tuple[type, dict[str, Any]]] = {
    "run": (Run, {}),
    "step": (StepFacts, {"count": 0}),
    "benchmark": (Benchmark, {"n": 0, "counted_steps": []}),
    "processes": (Processes, {"sentences": []}),
    "launching": (LaunchMeans, {"steps": 0}),
}
_NULLABLE: dict[str, type] = {"attribution": Attribution, "roofline": Roofline}
_LISTS = ("argv", "slices", "probe_effect", "layers", "findings", "warnings", "sources")


def row(table: str, **known: Any) -> dict[str, Any]:
    """A row of a table with all its columns; of a step, where the table has phases."""
    empty: dict[str, Any] = dict.fromkeys(REPORT[table].names)
    if "phase" in empty:
        empty["phase"] = "step"
    return empty | known


def completed(report: Mapping[str, Any]) -> dict[str, Any]:
    """A report with all parts, all tables and all columns of its rows."""
    made: dict[str, Any] = {
        "environment": {},
        "setup": {"steps": 0, "reason": None, "tf32_products": None, "tf32_convolutions": None},
        "status_reason": None,
        "nsys": None,
        **{name: [] for name in _LISTS},
        **report,
    }
    for name, (kind, known) in _PARTS.items():
        made[name] = {**dict.fromkeys(kind.__annotations__), **known, **report.get(name, {})}
    for name, kind in _NULLABLE.items():
        part = report.get(name)
        made[name] = None if part is None else {**dict.fromkeys(kind.__annotations__), **part}
    tables = report.get("tables", {})
    made["tables"] = {name: [row(name, **each) for each in tables.get(name, ())] for name in REPORT}
    return made
