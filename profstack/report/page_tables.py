"""Tables of the page: columns with labels, provenance and reasons, and a bounded number of rows.

What is left out is always said, with the place where the rest can be found.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from profstack.storage.schema.column import Column
from profstack.storage.schema.layer_table import JOINS
from profstack.storage.schema.report import (
    REPORT,
    Benchmark,
    LayerColumn,
    LayerTableFacts,
    Report,
    SliceFacts,
)
from profstack.storage.schema.rows import (
    CLEAN_SLICES,
    OTHER_SLICES,
    MemoryRow,
    ModuleRow,
    OperatorRow,
    RegionRow,
    StepRow,
)

# A row of any table of the report, and what rows are ordered by.
AnyRow = Mapping[str, object]
SortKey = float | tuple[bool, float]


def region_timed_in(row: RegionRow) -> str:
    """Return where a region's time is from: clean or raw slices of its clock, or torch's."""
    own = {CLEAN_SLICES: "clean", OTHER_SLICES: "raw"}
    return own.get((row["measured_in"] or "").split("; ")[0], "torch")


@dataclass(frozen=True)
class PageColumn:
    """One column as the page shows it.

    `reason` says why the whole column is empty, `cell_reason` why single cells may be; `source`
    what its figures rest on where there are several sources. `layer` gave the figures, and `kind`
    is their sense (see `SENSES`); both are null for a column of words.
    """

    key: str
    label: str
    unit: str
    meaning: str
    reason: str | None = None
    cell_reason: str | None = None
    source: str | None = None
    layer: str | None = None
    kind: str | None = None
    # The layer whose own table the column was taken from, beside the rows of this one.
    joined: str | None = None


def page_column(table: str, column: Column, notes: Report) -> PageColumn:
    """Return the heading of one column of a report's table; `notes` is the report.

    A report of an older version may lack the reasons for single cells.
    """
    key = f"{table}.{column.name}"
    return PageColumn(
        column.name,
        column.label,
        column.unit,
        column.meaning,
        notes["columns_reason"].get(key),
        notes.get("cells_reason", {}).get(key),
        notes["columns_source"].get(key),
        column.layer,
        column.sense,
    )


MOST_ROWS = 2_000
ELSEWHERE = "recording.sqlite and report.json"


@dataclass(frozen=True)
class PageTable:
    """A table of the page; `total` counts the rows before the cut."""

    name: str
    columns: tuple[PageColumn, ...]
    rows: list[list[object]]
    total: int
    left_out: str | None = None


# Significant digits of fractions, as the page says: all digits would make it 1 % larger.
DIGITS = 9


def compact(value: object, digits: int = DIGITS) -> object:
    """Return a value of the page: floats rounded, null for NaN, lists as text."""
    if isinstance(value, float):
        if not math.isfinite(value):
            return None
        short = value if value.is_integer() else float(f"{value:.{digits}g}")
        return int(short) if short.is_integer() and abs(short) < 1e15 else short
    if isinstance(value, (list, tuple)):
        return ", ".join(_item_text(item) for item in value)
    return value


def _item_text(item: object) -> str:
    """Return an entry of a list column as words."""
    if isinstance(item, Mapping):
        known = ((key, compact(value, 6)) for key, value in item.items() if value is not None)
        return " ".join(f"{key} {value}" for key, value in known)
    return str(item)


def number(value: object) -> float:
    """Return a figure to sort by; -1 for one that was not measured."""
    return float(value) if isinstance(value, (int, float)) and value == value else -1.0


def weight(*columns: str) -> Callable[[AnyRow], float]:
    """Return a sort key: the sum of these columns, as far as they were measured."""
    return lambda row: sum(max(number(row.get(column)), 0.0) for column in columns)


# The column by which the rows of a table are ordered, the largest first.
HEAVIEST = {
    "operators": "self_s",
    "kernels": "device_s",
    "functions": "self_s",
    "regions": "wall_s",
    "peak_holders": "bytes",
    "gaps": "total_s",
    "collectives": "wall_s",
    "ranks": "late_s",
    "rank_work": "more_s",
    "nsys_stats": "total_s",
    "nsys_kernels": "device_s",
    "nsys_copies": "device_s",
    "nsys_api": "host_s",
    "nsys_waits": "wait_s",
    "nsys_communication": "busy_s",
    "nsys_samples": "self_samples",
    "nsys_gaps": "total_s",
    "nsys_longest_gaps": "gap_s",
}


def left_out_text(kept: int, total: int, order: str, elsewhere: str = ELSEWHERE) -> str | None:
    """Return the sentence about rows that are not on the page; None if all are there."""
    if kept >= total:
        return None
    return f"{kept:,} of {total:,} rows are on this page ({order}); all are in {elsewhere}."


def page_table(
    name: str,
    records: Sequence[AnyRow],
    notes: Report,
    *,
    by: Callable[[AnyRow], SortKey] | None = None,
    most: int = MOST_ROWS,
    extra: Sequence[Column] = (),
) -> PageTable:
    """Return a table of the report for the page: the `most` heaviest rows, ordered by weight.

    `extra` are columns of the page alone; one that the report has too stays as it is.
    """
    known = REPORT[name]
    columns = (*known.columns, *(column for column in extra if column.name not in known.names))
    headings = [page_column(name, column, notes) for column in columns]
    if by is None:
        return _cut_table(name, headings, records, "the first", most)
    ordered = sorted(records, key=by, reverse=True)
    return _cut_table(name, headings, ordered, "those with the most time", most)


def _cut_table(
    name: str,
    columns: Sequence[PageColumn],
    records: Sequence[AnyRow],
    order: str,
    most: int = MOST_ROWS,
) -> PageTable:
    """Return the first `most` records as a table; `order` says which ones these are."""
    kept = records[:most]
    rows = [[compact(record.get(column.key)) for column in columns] for record in kept]
    left_out = left_out_text(len(kept), len(records), order)
    return PageTable(name, tuple(columns), rows, len(records), left_out)


# Parts of the step that are a forward pass; the others have their host time in `forward_s` too.
FORWARD_PARTS = frozenset({"(loss)"})


def forward_only(records: Iterable[ModuleRow]) -> list[ModuleRow]:
    """Return rows of modules without forward times of parts that are no forward pass."""
    return [
        {**row, "forward_s": None}
        if row["path"].startswith("(") and row["path"] not in FORWARD_PARTS
        else row
        for row in records
    ]


def module_records(records: Sequence[ModuleRow], most: int = MOST_ROWS) -> list[ModuleRow]:
    """Return at most `most` module rows in order, the heaviest with all modules around them."""
    if len(records) <= most:
        return list(records)
    heaviest = sorted(records, key=weight("forward_s", "backward_s"), reverse=True)[:most]
    wanted: set[str] = set()
    for record in heaviest:
        names = record["path"].split(".")
        wanted.update(".".join(names[:count]) for count in range(1, len(names) + 1))
    return [record for record in records if record["path"] in wanted]


_BY_MEMORY_PROFILER = (
    "increment_bytes",
    "difference_bytes",
    "reason",
    "usage_bytes",
    "occurrences",
)
# Tables of the page that are columns of `lines`: weights, other columns, and order in words.
_CUTS: dict[str, tuple[tuple[str, ...], tuple[str, ...], str]] = {
    "memory_lines": (
        ("largest_bytes", "increment_bytes", "allocated_bytes", "watch_bytes"),
        (
            *("usage_bytes", "occurrences", "memory_source"),
            *(f"memory_profiler_{name}" for name in _BY_MEMORY_PROFILER),
        ),
        "those that grew most",
    ),
    "watch_lines": (
        ("startup_share", "watch_share"),
        ("watch_bytes",),
        "those with the largest shares",
    ),
}


def line_table(name: str, records: Sequence[AnyRow], notes: Report) -> PageTable:
    """Return one of `_CUTS`: the lines with a figure other than 0 there, the heaviest first."""
    weights, others, order = _CUTS[name]
    seen = [row for row in records if any(row.get(key) for key in weights)]
    seen.sort(key=lambda row: [number(row.get(key)) for key in weights], reverse=True)
    wanted = {"file", "line", "source", *weights, *others}
    columns = [column for column in REPORT["lines"].columns if column.name in wanted]
    return _cut_table(name, [page_column("lines", each, notes) for each in columns], seen, order)


_SUMMED = ("calls", "self_s", "total_s", "device_s", "calibrated_s", "flop", "moved_bytes")


def operators_by_name(records: Sequence[OperatorRow]) -> list[dict[str, Any]]:
    """Return operators summed over shapes and modules, with the number of each of these.

    A sum with one part unknown is unknown: adding up only what was measured would be a smaller
    number that looks like the whole.
    """
    groups: defaultdict[str, list[OperatorRow]] = defaultdict(list)
    for record in records:
        groups[record["name"]].append(record)
    return [
        {
            "name": name,
            **{column: _sum(members, column) for column in _SUMMED},
            "shapes": len({member["shapes"] for member in members}),
            "modules": len({member["module"] for member in members}),
        }
        for name, members in groups.items()
    ]


def _sum(rows: Sequence[AnyRow], column: str) -> float | None:
    parts = [row.get(column) for row in rows]
    return None if None in parts else sum(map(number, parts))


def operator_summary(records: Sequence[OperatorRow], notes: Report) -> PageTable:
    """Return the table of operators summed by name."""
    table = REPORT["operators"]
    meant = {column.name: page_column("operators", column, notes) for column in table.columns}
    columns = (
        meant["name"],
        *(meant[column] for column in _SUMMED),
        _number_of("shapes", "number of different input shapes"),
        _number_of("modules", "number of modules it was called from"),
    )
    summed = sorted(operators_by_name(records), key=weight("self_s"), reverse=True)
    return _cut_table("operators_by_name", columns, summed, "those with the most time")


def _number_of(key: str, meaning: str) -> PageColumn:
    return PageColumn(key, key, "plain", meaning, layer="torch", kind="counted")


# -----------------------------------------------------------------------------
# Tables that layers declared themselves: each by itself, and beside the rows it can be joined to.
# -----------------------------------------------------------------------------


@dataclass(frozen=True)
class LayerPageTable:
    """A layer's own table with its heading."""

    layer: str
    title: str
    text: str
    table: PageTable


def layer_page_tables(tables: Sequence[LayerTableFacts]) -> list[LayerPageTable]:
    """Return the layers' own tables for the page, those with rows alone."""
    made = []
    for each in (each for each in tables if each["rows"]):
        headings = [_layer_column(column, each, "not known of it") for column in each["columns"]]
        table = _cut_table(each["name"], headings, each["rows"], "the heaviest")
        made.append(LayerPageTable(each["layer"], each["title"], each["text"], table))
    return made


def _layer_column(column: LayerColumn, table: LayerTableFacts, why_empty: str) -> PageColumn:
    """Return the heading of a column in a layer's own table."""
    return PageColumn(
        column["name"],
        column["label"],
        column["unit"],
        column["meaning"],
        cell_reason=why_empty,
        layer=table["layer"] if column["sense"] is not None else None,
        kind=column["sense"],
    )


def join_layers(whole: PageTable, tables: Sequence[LayerTableFacts]) -> PageTable:
    """Return a page's table with the figures of every layer's table that is joined to it."""
    for facts in tables:
        keys = JOINS.get(whole.name) if facts["join"] == whole.name else None
        if keys is None or not facts["rows"]:
            continue
        figures = [column for column in facts["columns"] if column["sense"] is not None]
        known: dict[tuple[object, ...], AnyRow]
        known = {tuple(row[key] for key in keys): row for row in facts["rows"]}
        places = [[column.key for column in whole.columns].index(key) for key in keys]
        added = [known.get(tuple(row[place] for place in places), {}) for row in whole.rows]
        why_empty = f"the layer {facts['layer']} saw nothing of it"
        columns = [
            replace(
                _layer_column(column, facts, why_empty),
                key=f"{facts['name']}_{column['name']}",
                label=f"{column['label']} ({facts['layer']})",
                joined=facts["layer"],
            )
            for column in figures
        ]
        rows = [
            [*row, *(compact(extra.get(column["name"])) for column in figures)]
            for row, extra in zip(whole.rows, added, strict=True)
        ]
        whole = replace(whole, columns=(*whole.columns, *columns), rows=rows)
    return whole


# -----------------------------------------------------------------------------
# Series for the charts, thinned to as many points as a browser draws.
#
# All steps of planned slices and all flagged steps are kept, and the fastest and the slowest step
# of every stretch of the rest.
# -----------------------------------------------------------------------------

SeriesRow = TypeVar("SeriesRow", bound=Mapping[str, object])
MOST_POINTS = 4_000
# A step this many times its slice's median is drawn large, to be seen among thousands.
_OUTLIER = 2.0


@dataclass(frozen=True)
class StepSeries:
    """Steps as `[index, wall_s, slice, cpu_s, wait_s, phase, flags, counted, outlier]`."""

    points: list[list[object]]
    total: int
    left_out: str | None


def step_series(
    steps: Sequence[StepRow], slices: Sequence[SliceFacts], benchmark: Benchmark
) -> StepSeries:
    """Return the steps to draw, in order."""
    kinds: dict[int | None, str] = {entry["index"]: entry["kind"] for entry in slices}
    medians: dict[int | None, float | None]
    medians = {entry["index"]: entry["step_median_s"] for entry in slices}
    counted = set(benchmark["counted_steps"] or ())
    kept = _thinned(steps, kinds) if len(steps) > MOST_POINTS else steps
    points: list[list[object]] = []
    for step in kept:
        median, wall = medians.get(step["slice"]), step["wall_s"]
        outlier = bool(median and wall and wall > _OUTLIER * median)
        values = (step["index"], wall, step["slice"], step["cpu_s"], step["wait_s"], step["phase"])
        flags = (compact(step.get("flags")), int(step["index"] in counted), int(outlier))
        points.append([*map(compact, values), *flags])
    order = "of the watched ones the extremes of each stretch"
    return StepSeries(points, len(steps), left_out_text(len(kept), len(steps), order))


def _thinned(steps: Sequence[StepRow], kinds: Mapping[int | None, str]) -> list[StepRow]:
    """Return planned and flagged steps up to half the points, and extremes of the rest."""
    first = [step for step in steps if kinds.get(step["slice"]) != "watch" or step.get("flags")]
    first = extremes(first, MOST_POINTS // 2, "wall_s")
    chosen = {step["index"] for step in first}
    rest = [step for step in steps if step["index"] not in chosen]
    both = first + extremes(rest, MOST_POINTS - len(first), "wall_s")
    return sorted(both, key=lambda step: number(step["index"]))


def extremes(records: Sequence[SeriesRow], most: int, column: str) -> list[SeriesRow]:
    """Return at most `most` rows: of each stretch the smallest and the largest in `column`."""
    if len(records) <= most:
        return list(records)
    stretches = max(most // 2, 1)
    kept: list[SeriesRow] = []
    for place in range(stretches):
        begin = place * len(records) // stretches
        stretch = records[begin : (place + 1) * len(records) // stretches]
        values = [max(number(row.get(column)), 0.0) for row in stretch]
        low, high = values.index(min(values)), values.index(max(values))
        kept += [stretch[at] for at in sorted({low, high})]
    return kept


def memory_series(records: Sequence[MemoryRow], most: int = 2_000) -> list[MemoryRow]:
    """Return memory samples to draw: extremes of the device's memory, else of the RSS."""
    device = any(record["device_allocated_bytes"] is not None for record in records)
    return extremes(records, most, "device_allocated_bytes" if device else "rss_bytes")
