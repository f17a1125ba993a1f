"""Findings as text, JSON, CSV and Markdown: what was found wrong, what shows it, what to do."""

from __future__ import annotations

import csv
import io
import json
import textwrap
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from rich.text import Text

from profstack.report.highlights import first_sentences, is_lower_limit, place_of
from profstack.report.page import finite
from profstack.report.textparts import printable
from profstack.report.verdicttext import figure, label
from profstack.units import format_seconds

Findings = Sequence[Mapping[str, Any]]
COLUMNS = (
    "slug", "severity", "title", "gain_s", "gain_is", "gain_reason", "file", "line", "module",
    "layers", "evidence", "advice",
)  # fmt: skip
# What stands under the first finding: its first sentence may only say where, the next what to do.
_ADVICE = 300
_STYLES = {"high": "bold red", "medium": "yellow"}


def top_findings(report: Mapping[str, Any], width: int, most: int) -> Iterable[Text]:
    """The first findings in a few lines each: title, gain and place, and what to do first."""
    found = report.get("findings") or []
    if not found:
        return
    for number, finding in enumerate(found[:most], 1):
        title = printable(str(finding.get("title")))
        lines = textwrap.wrap(
            title, max(width, 40), initial_indent=f"{number}. ", subsequent_indent="   "
        )
        for line in lines:
            yield Text(line, style=_STYLES.get(str(finding.get("severity")), ""))
        words = _cost(finding)
        advice = first_sentences(finding.get("advice") or "", _ADVICE if number == 1 else 0)
        told = f"{words}: {advice}" if words and advice else words or advice
        yield from _indented(told, width)
    left = len(found) - most
    if left > 0:
        more = "1 more finding" if left == 1 else f"{left} more findings"
        yield Text(f"{more}: profstack show --findings")


def _cost(finding: Mapping[str, Any]) -> str:
    """Where a finding is, and what its mending gains."""
    words = []
    if (place := place_of(finding)) is not None:
        words.append(place)
    if finding.get("gain_s") is not None:
        told = finding.get("gain_is") or "estimated"
        bound = "at least" if is_lower_limit(finding) else "up to"
        words.append(f"{bound} {format_seconds(finding['gain_s'])} a step, {told}")
    return ", ".join(words)


def as_text(findings: Findings, width: int) -> Iterable[Text]:
    """All of every finding."""
    if not findings:
        yield Text("findings: none in this recording")
    for number, finding in enumerate(findings, 1):
        if number > 1:
            yield Text()
        severity = str(finding.get("severity"))
        head = f"{number}. {printable(str(finding.get('title')))}"
        for line in textwrap.wrap(head, max(width, 40), subsequent_indent="   "):
            yield Text(line, style=_STYLES.get(severity, "bold"))
        facts = [f"{finding.get('slug')}, {severity}"]
        if cost := _cost(finding):
            facts.append(cost)
        if finding.get("gain_reason"):
            facts.append(f"no gain is told: {finding['gain_reason']}")
        if finding.get("layers"):
            facts.append(f"seen by {', '.join(map(str, finding['layers']))}")
        yield from _indented("; ".join(facts), width)
        for row in finding.get("evidence") or []:
            yield from _indented(f"- {evidence_words(row)}", width)
        yield from _indented(f"next: {finding.get('advice')}", width)


def evidence_words(row: Any) -> str:
    """A row of evidence in a line: its figures with their units."""
    if not isinstance(row, Mapping):
        return str(row)
    return ", ".join(
        f"{label(str(key))} {figure(str(key), value)}"
        for key, value in row.items()
        if value is not None and key != "link"
    )


def _indented(words: str, width: int) -> Iterable[Text]:
    lines = textwrap.wrap(
        printable(words), max(width, 40), initial_indent="   ", subsequent_indent="   "
    )
    for line in lines:
        yield Text(line)


def as_json(findings: Findings) -> str:
    """A JSON list with one finding per line, as it stands in report.json."""
    if not findings:
        return "[]\n"
    return "[\n" + ",\n".join(json.dumps(finite(dict(row))) for row in findings) + "\n]\n"


def as_csv(findings: Findings) -> str:
    """CSV with a header; lists as JSON, nothing for null."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(COLUMNS)
    for finding in findings:
        writer.writerow(_plain(finding.get(name)) for name in COLUMNS)
    return out.getvalue()


def as_markdown(findings: Findings) -> str:
    """A section for each finding, to be pasted where people discuss it."""
    if not findings:
        return "No findings in this recording.\n"
    sections = []
    for number, finding in enumerate(findings, 1):
        lines = [f"### {number}. {_escaped(finding.get('title'))}", ""]
        facts = f"`{finding.get('slug')}`, {finding.get('severity')}"
        if cost := _cost(finding):
            facts += f"; {_escaped(cost)}"
        if finding.get("gain_reason"):
            facts += f"; no gain is told: {_escaped(finding['gain_reason'])}"
        lines += [facts, ""]
        rows = finding.get("evidence") or []
        lines += [f"- {_escaped(evidence_words(row))}" for row in rows]
        lines += [""] if rows else []
        lines.append(f"Next: {_escaped(finding.get('advice'))}")
        sections.append("\n".join(lines) + "\n")
    return "\n".join(sections)


def _plain(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, float):
        return repr(value)
    text = json.dumps(finite(value)) if isinstance(value, (list, dict)) else str(value)
    return text.encode("utf-8", "replace").decode("utf-8")


def _escaped(value: Any) -> str:
    """What Markdown would read as its own stays text."""
    words = printable(str(value))
    for sign in "\\`*_[]|":
        words = words.replace(sign, "\\" + sign)
    return words.replace("<", "&lt;")


WRITERS: dict[str, Callable[[Findings], str]] = {
    "json": as_json,
    "csv": as_csv,
    "md": as_markdown,
}
