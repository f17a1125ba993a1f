"""Tables, findings and the verdict as JSON, CSV and Markdown for other programs."""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Literal

from profstack.report.page import finite
from profstack.report.page_tables import compact, number
from profstack.report.screen import evidence_words, finding_cost, printable
from profstack.storage.schema.column import Table
from profstack.storage.schema.report import Finding, Report

Format = Literal["json", "csv", "md"]
# Rows of any table of the report.
Rows = Sequence[Mapping[str, object]]

_FINDING_COLUMNS = (
    "slug", "severity", "title", "gain_s", "gain_is", "gain_reason", "run_s", "run_gain_s",
    "run_gain_is", "file",
    "line", "module", "layers", "evidence", "advice",
)  # fmt: skip
# Columns of the verdict's tests, and of the parts of the step.
_TESTS = ("test", "share", "threshold_share", "time_s", "file", "line", "reason", "link")
_PARTS = ("name", "seconds", "share", "link")


# Signs that Markdown reads as its own, in a table's cell and in running text.
_IN_CELL = str.maketrans({"\\": "\\\\", "|": "\\|", "<": "&lt;", "\n": " "})
_IN_TEXT = str.maketrans({**{sign: "\\" + sign for sign in "\\`*_[]|"}, "<": "&lt;"})


def in_order(rows: Rows, column: str, *, falling: bool) -> list[Mapping[str, object]]:
    """Return rows ordered by a column; those without a value there are last either way."""
    known = [row for row in rows if row.get(column) is not None]
    is_text = any(isinstance(row[column], (str, list)) for row in known)
    key: Callable[[object], Any] = str if is_text else number
    known.sort(key=lambda row: key(row[column]), reverse=falling)
    return known + [row for row in rows if row.get(column) is None]


def table_as(form: Format, table: Table, rows: Rows) -> str:
    """Return rows of a table: a JSON list, CSV with a header, or a Markdown table."""
    if form == "json":
        return _json({name: row.get(name) for name in table.names} for row in rows)
    return _text_table(form, table.names, rows)


def _json(rows: Iterable[Mapping[str, object]]) -> str:
    return "[\n" + ",\n".join(json.dumps(finite(row)) for row in rows) + "\n]\n"


def _text_table(form: Literal["csv", "md"], names: Sequence[str], rows: Rows) -> str:
    cells = [[_cell(row.get(name)) for name in names] for row in rows]
    if form == "csv":
        out = io.StringIO()
        csv.writer(out, lineterminator="\n").writerows([names, *cells])
        return out.getvalue()
    table = [names, ["---"] * len(names), *cells]
    return "".join(f"| {' | '.join(cell.translate(_IN_CELL) for cell in row)} |\n" for row in table)


def _cell(value: object) -> str:
    """Return a value as text that every encoding can write; nothing for null."""
    if value is None or (isinstance(value, float) and not math.isfinite(value)):
        return ""
    text = repr(value) if isinstance(value, float) else str(compact(value))
    return text.encode("utf-8", "replace").decode("utf-8")


def verdict_as(form: Format, report: Report) -> str:
    """Return the verdict: JSON as in report.json, CSV of the tests, or a Markdown section."""
    verdict, bar = report.get("verdict"), report.get("step_bar")
    if form == "json":
        return json.dumps(finite({"verdict": verdict, "step_bar": bar}), indent=1) + "\n"
    evidence = verdict["evidence"] if verdict else []
    if form == "csv":
        return _text_table("csv", _TESTS, evidence)
    sentence = (verdict["sentence"] if verdict else "") or "no verdict"
    sections = [f"**{printable(sentence).replace('<', '&lt;')}**\n"]
    if bar and bar["parts"]:
        sections.append(_text_table("md", _PARTS, bar["parts"]))
    if evidence:
        sections.append(_text_table("md", _TESTS, evidence))
    return "\n".join(sections)


def findings_as(form: Format, findings: Sequence[Finding]) -> str:
    """Return findings: JSON as in report.json, CSV with a header, or a Markdown section each."""
    if form == "json":
        return _json(findings) if findings else "[]\n"
    if form == "csv":
        # Lists are JSON here.
        rows: Rows = [
            {
                key: json.dumps(value) if isinstance(value, (list, dict)) else value
                for key, value in row.items()
            }
            for row in finite(findings)
        ]
        return _text_table("csv", _FINDING_COLUMNS, rows)
    if not findings:
        return "No findings in this recording.\n"
    return "\n".join(_section(number, finding) for number, finding in enumerate(findings, 1))


def _section(number: int, finding: Finding) -> str:
    """Return a finding as a section of Markdown, to be pasted where people discuss it."""
    facts = f"`{finding['slug']}`, {finding['severity']}"
    if cost := finding_cost(finding):
        facts += f"; {_escaped(cost)}"
    if finding.get("gain_reason"):
        lacks = "no gain: " * (finding["gain_s"] is None)
        facts += f"; {lacks}{_escaped(str(finding['gain_reason']))}"
    lines = [f"### {number}. {_escaped(finding['title'])}", "", facts, ""]
    if finding["evidence"]:
        lines += [*(f"- {_escaped(evidence_words(row))}" for row in finding["evidence"]), ""]
    return "\n".join([*lines, f"Next: {_escaped(str(finding['advice']))}"]) + "\n"


def _escaped(text: str) -> str:
    """Return text without the signs that Markdown reads as its own."""
    return printable(text).translate(_IN_TEXT)
