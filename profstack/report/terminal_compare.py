"""A comparison as text and as CSV."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator

from profstack.report.screen import printable
from profstack.storage.schema.comparison import Comparison
from profstack.units import format_seconds


def text(comparison: Comparison) -> str:
    """Return the comparison as lines of text; the first one is the answer."""
    return "".join(f"{printable(line)}\n" for line in _lines(comparison))


def _lines(comparison: Comparison) -> Iterator[str]:
    yield comparison["verdict"]["sentence"]
    for part in comparison["parts"]:
        yield f"  {part['of']:<5}{part['name']:<28}{format_seconds(part['difference_s'])}"


def as_csv(comparison: Comparison) -> str:
    """Return the rows of all tables as CSV, one row per line, with the table's name first."""
    out = io.StringIO()
    lines = csv.writer(out, lineterminator="\n")
    names = ("before", "after", "difference", "low", "high", "ratio", "beyond_noise")
    lines.writerow(("table", "status", "key", "file", "line", "unit", *names))
    for part in comparison["parts"]:
        ratio = part["after_s"] / part["before_s"] if part["before_s"] else None
        figures = (part["before_s"], part["after_s"], part["difference_s"])
        rest = (part["low_s"], part["high_s"], ratio, part["beyond_noise"])
        head = (part["of"], "both", part["name"], part["file"], part["line"], "s")
        lines.writerow((*head, *figures, *rest))
    for table in comparison["tables"]:
        for row in table["rows"]:
            place = (row["file"], row["line"], table["unit"])
            change = {**row["change"]}
            cells = (change[name] for name in names)
            lines.writerow((table["name"], row["status"], row["key"], *place, *cells))
    return out.getvalue()
