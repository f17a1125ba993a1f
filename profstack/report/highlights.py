"""What a run's counting, memory and watch layers found, in a line each."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from profstack.report.tables import weight
from profstack.units import format_bytes, format_count, format_seconds


def highlights(report: Mapping[str, Any]) -> list[str]:
    """The lines of a summary; none of a layer that found nothing. Names in them are as recorded."""
    lines = (_flops(report), _growth(report), _startup(report), _outliers(report))
    return [line for line in lines if line is not None]


def _flops(report: Mapping[str, Any]) -> str | None:
    """Operations of a step by the counter of record, and what it leaves out."""
    source = (report.get("columns_source") or {}).get("modules.forward_flop") or ""
    rows = report["tables"].get("flops") or []
    record = next((row for row in rows if source.startswith(str(row["counter"]))), None)
    if record is None:
        return None
    words = f"operations: {format_count(record.get('forward_flop'))} FLOP forward"
    if record.get("backward_flop") is not None:
        words += f", {format_count(record['backward_flop'])} backward"
    words += f" per step ({record['counter']})"
    left = [str(row.get("operator")) for row in record.get("uncounted") or []]
    return words + (f"; without a formula: {', '.join(left)}" if left else "")


def _growth(report: Mapping[str, Any]) -> str | None:
    """The line over which memory grew most at once."""
    lines = [row for row in report["tables"].get("lines") or [] if row.get("largest_bytes")]
    if not lines:
        return None
    line = max(lines, key=weight("largest_bytes"))
    source = str(line.get("source") or "").strip()
    return f"memory: largest growth {format_bytes(line['largest_bytes'])} at {_at(line)}  {source}"


def _startup(report: Mapping[str, Any]) -> str | None:
    """The lines of the script that its start-up went to."""
    rows = report["tables"].get("lines") or []
    lines = [row for row in rows if (row.get("startup_share") or 0.0) >= 0.01]
    lines.sort(key=weight("startup_share"), reverse=True)
    shares = [f"{100 * line['startup_share']:.0f} % {_at(line)}" for line in lines[:3]]
    return f"start-up: {', '.join(shares)}" if shares else None


def _outliers(report: Mapping[str, Any]) -> str | None:
    """How many steps are out of line, and the slowest of them."""
    rows = report["tables"].get("outliers") or []
    if not rows:
        return None
    slowest = max(rows, key=weight("wall_s"))
    count = "1 step" if len(rows) == 1 else f"{len(rows)} steps"
    doing = f": {slowest['doing']}" if slowest.get("doing") else ""
    took = format_seconds(slowest.get("wall_s"))
    return f"out of line: {count}; step {slowest['index']} took {took}{doing}"


def _at(line: Mapping[str, Any]) -> str:
    return f"{file_name(line['file'])}:{line['line']}"


def file_name(path: Any) -> str:
    """The last part of a path, as any system writes it."""
    return str(path).replace("\\", "/").rsplit("/", 1)[-1]
