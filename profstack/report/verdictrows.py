"""The verdict as JSON, CSV and Markdown: its tests and the parts of the step, for programs."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

from profstack.report import rows
from profstack.report.page import finite
from profstack.report.textparts import printable
from profstack.tabletypes import table

Report = Mapping[str, Any]

_TESTS = table(
    "verdict",
    "test TEXT slug of the test",
    "share REAL what it measures, as a share of the clean step",
    "threshold_share REAL the share from which it can be the verdict",
    "time_s REAL that share of the clean median",
    "file TEXT where to look",
    "line INTEGER line",
    "reason TEXT why the share is not known",
    "link TEXT where its rows stand in the page",
)
_PARTS = table(
    "step_bar",
    "name TEXT part of the clean step",
    "seconds REAL time",
    "share REAL share of the clean median",
    "link TEXT where its rows stand in the page",
)


def as_json(report: Report) -> str:
    """Verdict and step bar as they stand in report.json."""
    chosen = {key: report.get(key) for key in ("verdict", "step_bar")}
    return json.dumps(finite(chosen), indent=1) + "\n"


def as_csv(report: Report) -> str:
    """A row for every test."""
    return rows.as_csv(_TESTS, _evidence(report))


def as_markdown(report: Report) -> str:
    """The sentence, a table of the parts of the step, and one of the tests."""
    verdict = report.get("verdict") or {}
    sentence = printable(str(verdict.get("sentence") or "no verdict")).replace("<", "&lt;")
    parts = (report.get("step_bar") or {}).get("parts") or []
    sections = [f"**{sentence}**\n"]
    sections += [rows.as_markdown(_PARTS, parts)] if parts else []
    sections += [rows.as_markdown(_TESTS, _evidence(report))] if _evidence(report) else []
    return "\n".join(sections)


def _evidence(report: Report) -> list[dict[str, Any]]:
    return list((report.get("verdict") or {}).get("evidence") or [])


WRITERS: dict[str, Callable[[Report], str]] = {
    "json": as_json,
    "csv": as_csv,
    "md": as_markdown,
}
