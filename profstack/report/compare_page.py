"""The page of a comparison, compare.html: the answer, its parts, and every table side by side.

It is a page like report.html (see `profstack.report.html`): the answer is in it as it is, tables
are compressed, inflated when they are opened, and cut to a length that a browser draws quickly.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from profstack.findings.rules import RULES
from profstack.report import html
from profstack.report.page import finite
from profstack.report.page_tables import (
    MOST_ROWS,
    PageColumn,
    PageTable,
    compact,
    left_out_text,
    number,
)
from profstack.report.trees import change_picture
from profstack.storage.schema.column import row_table
from profstack.storage.schema.comparison import Change, ComparedTable, Comparison, TableRow

_KIND = html.PageKind(
    "comparison-main.js", (*html.STYLES, "comparison.css"), "compare.json", "compare"
)
# The table that has a picture of the modules beside it.
_MODULES = "modules"
# Rows of a table that the first view shows.
MOST_TOP = 3

# A row's columns on the page: its own fields, then those of its change.
_OWN = tuple(one for one in row_table("", list[TableRow]).columns if one.name != "change")
_CHANGE = row_table("", list[Change]).columns
_LABELS = {"key": "name", "low": "95 % from", "high": "95 % to", "beyond_noise": "more than noise"}
_OF_CHANGE = frozenset(("before", "after", "difference", "low", "high"))
_RATE = "items/s"


def write(comparison: Comparison, path: Path) -> None:
    """Write the page to `path`; raise RecordingError where that cannot be done."""
    html.replace_text(path, render(comparison))


def render(comparison: Comparison) -> str:
    """Return the page as HTML."""
    named = _view_names(comparison["tables"])
    tables = {name: _page_table(name, table) for name, table in named.items() if table["rows"]}
    facts = {key: value for key, value in comparison.items() if key != "tables"}
    page: dict[str, object] = {
        "facts": finite(facts),
        "overview": {
            "rules": _rules(comparison),
            "tops": [_top(name, table) for name, table in named.items()],
        },
        "tables": {
            name: {**vars(table), "columns": [asdict(column) for column in table.columns]}
            for name, table in tables.items()
        },
        "module_changes": _picture(named.get(_MODULES)),
    }  # fmt: skip
    views = {
        "overview": "view-comparison.html",
        **dict.fromkeys(tables, "view-changes.html"),
        "glossary": "view-glossary.html",
    }
    subject = f"{comparison['before']['label']} and {comparison['after']['label']}"
    return html.assemble(_KIND, page, subject, views, comparison["profstack_version"])


def _view_names(tables: Sequence[ComparedTable]) -> dict[str, ComparedTable]:
    """Return the tables by their part of addresses; none is the name of another view."""
    named: dict[str, ComparedTable] = {}
    for table in tables:
        name = stem = re.sub(r"[^a-z0-9]+", "-", table["name"].lower()).strip("-") or "table"
        while name in named or name in ("overview", "glossary", "all"):
            name += f"-{stem}"
        named[name] = table
    return named


def _rules(comparison: Comparison) -> list[dict[str, str]]:
    """Return what makes the findings that are gone or new, for the glossary."""
    slugs = {finding["slug"] for finding in comparison["findings"]}
    return [
        {"slug": rule.slug, "title": rule.title, "rule": rule.rule}
        for rule in RULES
        if rule.slug in slugs
    ]


# Tables -----------------------------------------------------------------------------------------


def _page_table(name: str, table: ComparedTable) -> PageTable:
    """Return a table of the page: the rows with the largest differences, and how many there are."""
    rows = table["rows"]
    kept = rows[:MOST_ROWS]
    cells = [
        [
            *(compact(row[column.name]) for column in _OWN),  # type: ignore[literal-required]  # names of the row's fields
            *(compact(row["change"][column.name]) for column in _CHANGE),  # type: ignore[literal-required]  # as above
        ]
        for row in kept
    ]
    said = [left_out_text(len(kept), len(rows), "the largest differences", _KIND.facts)]
    if left := table["left_out"]:
        verb = "is" if left == 1 else "are"
        said.append(f"{left:,} of both sides with next to no difference {verb} not listed.")
    left_out = " ".join(text for text in said if text) or None
    return PageTable(name, tuple(_columns(table)), cells, len(rows), left_out)


def _columns(table: ComparedTable) -> list[PageColumn]:
    """Return the headings; a column of the change has the table's unit."""
    changes = [row["change"] for row in table["rows"]]
    reasons = Counter(change["reason"] for change in changes if change["reason"])
    unit = "rate" if table["unit"] == _RATE else table["unit"]
    columns = []
    for column in (*_OWN, *_CHANGE):
        own = column in _OWN
        empty = not own and all(change[column.name] is None for change in changes)  # type: ignore[literal-required]  # names of the change's fields
        columns.append(
            PageColumn(
                column.name,
                _LABELS.get(column.name, column.label),
                unit if column.name in _OF_CHANGE else column.unit,
                column.meaning,
                next((reason for reason, _ in reasons.most_common(1) if empty), None),
                _CELL_REASONS.get(column.name),
            )
        )
    return columns


_CELL_REASONS = {
    "calls_before": "the first side does not have it, or its calls were not counted",
    "calls_after": "the second side does not have it, or its calls were not counted",
    "file": "no source file is known",
    "was": "it is called the same on both sides, or has no partner",
}


def _top(name: str, table: ComparedTable) -> dict[str, object]:
    """Return the rows of a table that changed most, for the first view; noise is left out."""
    moved = [
        row for row in table["rows"]
        if row["change"]["beyond_noise"] is not False and row["change"]["difference"]
    ]  # fmt: skip
    moved.sort(key=lambda row: -abs(number(row["change"]["difference"])))
    return {
        "view": name,
        "title": table["title"],
        "unit": "rate" if table["unit"] == _RATE else table["unit"],
        "total": len(table["rows"]),
        "reason": table["reason"],
        "rows": [finite(row) for row in moved[:MOST_TOP]],
    }


def _picture(modules: ComparedTable | None) -> dict[str, object] | None:
    """Return the modules by area, for times alone; None where there is nothing to draw."""
    made = change_picture(modules["rows"]) if modules and modules["unit"] == "s" else None
    if made is None:
        return None
    figures = {metric.key: metric.own for metric in made.metrics}
    return {**vars(made), "metrics": figures} if any(figures["larger"]) else None
