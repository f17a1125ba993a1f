"""Tables for the page: columns once, rows as plain lists, and never more rows than a page bears.

What is left out is always said, with the place where the rest can be found.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from profstack import schema
from profstack.report.columns import PageColumn, Told, page_column
from profstack.report.provenance import provenance

Record = Mapping[str, Any]
MOST_ROWS = 2_000
ELSEWHERE = "recording.sqlite and report.json"


@dataclass(frozen=True)
class PageTable:
    """A table as the page carries it; `total` counts the rows before the cut."""

    name: str
    columns: tuple[PageColumn, ...]
    rows: list[list[Any]]
    total: int
    left_out: str | None = None


# Of fractions, as the page says beside them: all of them would make it a hundredth larger.
DIGITS = 9


def compact(value: Any, digits: int = DIGITS) -> Any:
    """A value as the page carries it: whole ones as they are, no NaN, lists as text."""
    if isinstance(value, float):
        if value - value != 0:  # NaN and infinities are no figures
            return None
        short = value if value == int(value) else float(f"{value:.{digits}g}")
        return int(short) if short == int(short) and abs(short) < 1e15 else short
    if isinstance(value, (list, tuple)):
        return ", ".join(_item_text(item) for item in value)
    return value


def _item_text(item: Any) -> str:
    """An entry of a list column as words."""
    if isinstance(item, Mapping):
        known = ((key, compact(value, 6)) for key, value in item.items() if value is not None)
        return " ".join(f"{key} {value}" for key, value in known)
    return str(item)


def number(value: Any) -> float:
    """A figure for sorting; what was not measured comes last."""
    return float(value) if isinstance(value, (int, float)) and value == value else -1.0


def weight(*columns: str) -> Callable[[Record], float]:
    """A sort key: the sum of these columns, as far as they were measured."""
    return lambda record: sum(max(number(record.get(column)), 0.0) for column in columns)


def left_out_text(kept: int, total: int, order: str) -> str | None:
    """What to say about rows that are not on the page; None if all are there."""
    if kept >= total:
        return None
    return f"{kept:,} of {total:,} rows are on this page ({order}); all are in {ELSEWHERE}."


def page_table(
    name: str,
    records: Sequence[Record],
    told: Told,
    *,
    by: Callable[[Record], Any] | None = None,
    most: int = MOST_ROWS,
    extra: Sequence[schema.Column] = (),
) -> PageTable:
    """A table of the report for the page: the `most` heaviest rows, in order of weight.

    `extra` are columns of the page's own; one that the report has by itself stays as it is.
    """
    kept = list(records)
    if by is not None:
        kept.sort(key=by, reverse=True)
    kept = kept[:most]
    known = schema.REPORT[name]
    columns = (*known.columns, *(column for column in extra if column.name not in known.names))
    order = "those with the most time" if by is not None else "the first"
    return PageTable(
        name=name,
        columns=tuple(page_column(name, column, told) for column in columns),
        rows=[[compact(record.get(column.name)) for column in columns] for record in kept],
        total=len(records),
        left_out=left_out_text(len(kept), len(records), order),
    )


# Parts of the step that are a forward pass: the others have their host time in that column too.
FORWARD_PARTS = frozenset({"(loss)"})


def forward_only(records: Sequence[Record]) -> list[Record]:
    """Rows of modules for reading: no forward time where none was; it stays in `self_s`."""
    return [
        {**row, "forward_s": None}
        if str(row["path"]).startswith("(") and row["path"] not in FORWARD_PARTS
        else row
        for row in records
    ]


def module_records(records: Sequence[Record], most: int = MOST_ROWS) -> list[Record]:
    """Module rows in their own order; beyond `most` the lightest go, never a kept row's parent."""
    if len(records) <= most:
        return list(records)
    heaviest = sorted(records, key=weight("forward_s", "backward_s"), reverse=True)[:most]
    wanted: set[str] = set()
    for record in heaviest:
        names = str(record["path"]).split(".")
        wanted.update(".".join(names[:count]) for count in range(1, len(names) + 1))
    return [record for record in records if record["path"] in wanted]


# Tables that the page cuts out of `lines`: what one layer saw, and in which order.
_CUTS: dict[str, tuple[tuple[str, ...], tuple[str, ...], str]] = {
    "memory_lines": (
        (
            *("file", "line", "source", "largest_bytes", "increment_bytes", "allocated_bytes"),
            *("usage_bytes", "occurrences", "watch_bytes", "memory_source"),
        ),
        ("largest_bytes", "increment_bytes", "allocated_bytes", "watch_bytes"),
        "those that grew most",
    ),
    "watch_lines": (
        ("file", "line", "source", "startup_share", "watch_share", "watch_bytes"),
        ("startup_share", "watch_share"),
        "those with the largest shares",
    ),
}


def line_table(name: str, records: Sequence[Record], told: Told) -> PageTable:
    """One of `_CUTS`: the lines with something above or below 0 there, the heaviest first."""
    wanted, weights, order = _CUTS[name]
    seen = [record for record in records if any(record.get(key) for key in weights)]
    seen.sort(key=lambda record: [number(record.get(key)) for key in weights], reverse=True)
    whole = page_table("lines", seen, told)
    kept = [at for at, column in enumerate(whole.columns) if column.key in wanted]
    return PageTable(
        name=name,
        columns=tuple(whole.columns[at] for at in kept),
        rows=[[row[at] for at in kept] for row in whole.rows],
        total=whole.total,
        left_out=left_out_text(len(whole.rows), len(seen), order),
    )


_SUMMED = ("calls", "self_s", "total_s", "device_s", "calibrated_s", "flop", "moved_bytes")


def operators_by_name(records: Sequence[Record]) -> list[dict[str, Any]]:
    """Operators summed over shapes and modules.

    A sum with one part unknown is unknown: adding up only what was measured would be a smaller
    number that looks like the whole.
    """
    groups: dict[str, list[Record]] = {}
    for record in records:
        groups.setdefault(str(record["name"]), []).append(record)
    summed = []
    for name, members in groups.items():
        row: dict[str, Any] = {"name": name}
        for column in _SUMMED:
            parts = [member.get(column) for member in members]
            row[column] = None if None in parts else sum(number(part) for part in parts)
        row["shapes"] = len({member.get("shapes") for member in members})
        row["modules"] = len({member.get("module") for member in members})
        summed.append(row)
    return summed


def operator_summary(records: Sequence[Record], told: Told) -> PageTable:
    """The table of operators summed by name."""
    table = schema.REPORT["operators"]
    meant = {column.name: page_column("operators", column, told) for column in table.columns}
    columns = (
        meant["name"],
        *(meant[column] for column in _SUMMED),
        _number_of("shapes", "number of different input shapes"),
        _number_of("modules", "number of modules it was called from"),
    )
    summed = sorted(operators_by_name(records), key=weight("self_s"), reverse=True)
    kept = summed[:MOST_ROWS]
    rows = [[compact(row[column.key]) for column in columns] for row in kept]
    left_out = left_out_text(len(kept), len(summed), "those with the most time")
    return PageTable("operators_by_name", columns, rows, len(summed), left_out)


def _number_of(key: str, meaning: str) -> PageColumn:
    layer, kind = provenance("operators_by_name", key)
    return PageColumn(key, key, "plain", meaning, layer=layer, kind=kind)
