"""Rows of a report table as JSON, CSV and Markdown: plain values, no units, for other programs."""

from __future__ import annotations

import csv
import io
import json
from typing import TYPE_CHECKING, Any

from profstack.report.page import finite
from profstack.report.tables import compact

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from profstack.schema import Table

    Records = Sequence[Mapping[str, Any]]


def in_order(records: Records, column: str, *, falling: bool) -> list[Mapping[str, Any]]:
    """Records ordered by a column; those without a value there are last either way."""
    known = [record for record in records if record.get(column) is not None]
    unknown = [record for record in records if record.get(column) is None]
    if any(isinstance(record[column], (str, list)) for record in known):
        known.sort(key=lambda record: str(record[column]), reverse=falling)
    else:
        known.sort(key=lambda record: record[column], reverse=falling)
    return known + unknown


def as_json(table: Table, records: Records) -> str:
    """A JSON list with one row per line; null where nothing was measured."""
    rows = [{name: record.get(name) for name in table.names} for record in records]
    return "[\n" + ",\n".join(json.dumps(finite(row)) for row in rows) + "\n]\n"


def as_csv(table: Table, records: Records) -> str:
    """CSV with a header; empty where nothing was measured."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(table.names)
    for record in records:
        writer.writerow(_plain(record.get(name)) for name in table.names)
    return out.getvalue()


def as_markdown(table: Table, records: Records) -> str:
    """A Markdown table; what Markdown would read as its own is escaped."""
    lines = [_markdown_row(table.names), _markdown_row(["---"] * len(table.names))]
    for record in records:
        lines.append(_markdown_row([_plain(record.get(name)) for name in table.names]))
    return "\n".join(lines) + "\n"


def _plain(value: Any) -> str:
    """A value as text; nothing for null, and no characters that no encoding can write."""
    if value is None or (isinstance(value, float) and value - value != 0):
        return ""
    text = repr(value) if isinstance(value, float) else str(compact(value))
    return text.encode("utf-8", "replace").decode("utf-8")


def _markdown_row(cells: Sequence[str]) -> str:
    escaped = (
        cell.replace("\\", "\\\\").replace("|", "\\|").replace("<", "&lt;").replace("\n", " ")
        for cell in cells
    )
    return "| " + " | ".join(escaped) + " |"


WRITERS: dict[str, Callable[[Table, Records], str]] = {
    "json": as_json,
    "csv": as_csv,
    "md": as_markdown,
}
