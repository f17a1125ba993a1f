"""A comparison as text and as CSV."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator, Sequence

from profstack.code_owner import place_words
from profstack.compare.tables import one_sided
from profstack.compare.verdict import brackets, rounded
from profstack.report.screen import printable
from profstack.storage.schema.comparison import (
    Bar,
    Change,
    ComparedTable,
    Comparison,
    PartChange,
    TableRow,
)
from profstack.units import format_bytes, format_count, format_seconds

# Rows of a table that are printed; all of them are in compare.json.
_MOST_ROWS = 5
_FORMATS = {
    "s": format_seconds,
    "bytes": format_bytes,
    "flop": format_count,
    "count": format_count,
    "items/s": format_count,
}
_MARKS = {"both": " ", "moved": "~", "gone": "-", "new": "+"}


def text(comparison: Comparison) -> str:
    """Return the comparison as lines of text; the first one is the answer."""
    return "".join(f"{printable(line)}\n" for line in _lines(comparison))


def _lines(comparison: Comparison) -> Iterator[str]:
    verdict = comparison["verdict"]
    yield verdict["sentence"]
    if verdict["action"]:
        yield f"To tell more: {verdict['action']}."
    yield ""
    for side in (comparison["before"], comparison["after"]):
        which = "before" if side is comparison["before"] else "after"
        count = side["recordings"]
        recordings = "1 recording" if count == 1 else f"{count} recordings"
        yield f"{which:<7}{side['label']}: {recordings}, {side['steps']} clean steps"
    if comparison["measured"]:
        yield comparison["measured"]
    if comparison["inequalities"]:
        yield ""
        yield "Not equal on both sides:"
        yield from (f"  {each['text']}" for each in comparison["inequalities"])
    bars: tuple[Bar, ...] = ("step", "run")
    for of in bars:
        if parts := [part for part in comparison["parts"] if part["of"] == of]:
            yield ""
            yield from _part_lines(of, parts)
    for table in comparison["tables"]:
        yield from _table_lines(table)
    if unrecorded := one_sided(comparison["tables"]):
        yield ""
        yield from unrecorded
    if comparison["findings"]:
        yield ""
        yield "Findings and warnings of one side alone (+ new, - gone):"
        for each in comparison["findings"]:
            place = place_words(each["file"], each["line"]) if each["file"] else ""
            yield f"  {_MARKS[each['status']]} {each['title']}{f' ({place})' if place else ''}"


def _part_lines(of: Bar, parts: Sequence[PartChange]) -> Iterator[str]:
    shown = rounded(parts)
    yield f"The {of} by part, {shown.unit}; * is beyond noise:"
    rows = sorted(shown.rows, key=lambda row: -abs(row[0]["difference_s"]))
    width = max(len(part["name"]) for part in parts)
    for part, before, after in rows:
        mark = "*" if part["beyond_noise"] else " "
        figures = (shown.words(before), shown.words(after), shown.words(after - before, "+"))
        columns = "".join(f"{figure:>10}" for figure in figures)
        yield f"{mark} {part['name']:<{width}}{columns}{brackets(part)}"
    difference = shown.words(shown.after - shown.before, "+")
    figures = (shown.words(shown.before), shown.words(shown.after), difference)
    yield f"  {'together':<{width}}{''.join(f'{figure:>10}' for figure in figures)}"


def _table_lines(table: ComparedTable) -> Iterator[str]:
    """Yield the rows that changed beyond noise, the largest first; nothing where none has."""
    told = [row for row in table["rows"] if row["change"]["beyond_noise"]]
    if not told:
        return
    yield ""
    yield f"{table['title']} (+ new, - gone, ~ moved):"
    for row in told[:_MOST_ROWS]:
        yield f"  {_MARKS[row['status']]} {_row_words(row, table)}"
    if len(told) > _MOST_ROWS:
        yield f"    {len(told) - _MOST_ROWS} more: --format csv"


def _row_words(row: TableRow, table: ComparedTable) -> str:
    change, words = row["change"], _FORMATS[table["unit"]]
    place = "" if row["file"] is None else f"{row['file']}:{row['line']} "
    was = f" (was {row['was']})" if row["was"] else ""
    return f"{words(change['before'])} -> {words(change['after'])}  {place}{row['key']}{was}"


_FIGURES = ("before", "after", "difference", "low", "high", "ratio", "beyond_noise")


def as_csv(comparison: Comparison) -> str:
    """Return the parts and the rows of all tables as CSV, the table's name first."""
    out = io.StringIO()
    lines = csv.writer(out, lineterminator="\n")
    lines.writerow(("table", "status", "key", "file", "line", "unit", *_FIGURES))
    for part in comparison["parts"]:
        ratio = part["after_s"] / part["before_s"] if part["before_s"] else None
        change: Change = {
            "before": part["before_s"],
            "after": part["after_s"],
            "difference": part["difference_s"],
            "low": part["low_s"],
            "high": part["high_s"],
            "ratio": ratio,
            "beyond_noise": part["beyond_noise"],
            "reason": None,
        }
        head = (f"parts of the {part['of']}", "both", part["name"], part["file"], part["line"], "s")
        lines.writerow((*map(_plain, head), *_cells(change)))
    for table in comparison["tables"]:
        for row in table["rows"]:
            name = (table["name"], row["status"], row["key"])
            head = (*name, row["file"], row["line"], table["unit"])
            lines.writerow((*map(_plain, head), *_cells(row["change"])))
    return out.getvalue()


def _plain(cell: object) -> object:
    """Return a cell without the control characters that a name may hold."""
    return printable(cell) if isinstance(cell, str) else cell


def _cells(change: Change) -> Iterator[object]:
    figures = {**change}
    return (figures[name] for name in _FIGURES)
