"""The heaviest modules, operators and functions as small tables of a summary."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from rich.table import Table
from rich.text import Text

from profstack.report.highlights import file_name
from profstack.report.nsystext import is_import_alone, nsys_tables
from profstack.report.tables import forward_only, operators_by_name, weight
from profstack.report.textparts import WIDE, plain_table, short_name
from profstack.units import format_count, format_seconds

# As Python names a method of a type that is not written in Python.
_METHOD = re.compile(r"^<method '([^']+)' of '([^']+)' objects>$")
# Below these widths columns are left out: a number that is cut is another number.
_NARROW, _NARROWEST = 72, 48


def _share(seconds: float | None, median: float | None) -> str:
    return "–" if seconds is None or not median else f"{100 * seconds / median:.1f} %"


def top_tables(
    report: Mapping[str, Any], width: int, most: int, *, parts: bool = True
) -> list[Table]:
    """The tables of what there is; see `modules` for `parts`."""
    if is_import_alone(report):
        return nsys_tables(report, width, most)
    tables = (
        modules(report, width, most, parts=parts),
        operators(report, width, most),
        functions(report, width, most),
    )
    return [table for table in tables if table is not None]


def modules(
    report: Mapping[str, Any], width: int, most: int, *, parts: bool = True
) -> Table | None:
    """The heaviest modules by their own time, and the parts of the step outside modules.

    Without `parts` the latter are left out.
    """
    records = report["tables"]["modules"]
    if not records:
        return None
    median = (report.get("benchmark") or {}).get("median_s")
    # A part that this workload has not, as a loss in inference, is no row with nothing in it.
    outside = [
        record
        for record in records
        if parts and str(record["path"]).startswith("(") and _took(record)
    ]
    inside = [record for record in records if not str(record["path"]).startswith("(")]
    roots = [record for record in inside if record["depth"] == 0]
    heavy = sorted(
        (record for record in inside if record["depth"] > 0), key=weight("self_s"), reverse=True
    )
    if not inside and not outside:
        return None
    has_backward = any(record.get("backward_s") for record in records)
    times = ("forward_s", *(("backward_s",) if has_backward else ()), "self_s", "calibrated_s")
    if width < _NARROW:
        times = times[-2:]
    shares = (("share", "r"),) if width >= _NARROWEST else ()
    rates = width >= WIDE and any(record.get("flop_per_s") is not None for record in inside)
    extra = (("FLOP/s", "r"),) if rates else ()
    named = ((name.removesuffix("_s"), "r") for name in times)
    table = plain_table(("module", "l"), *named, *shares, *extra)
    room = width - (57 if width >= _NARROW else 32) - 10 * len(extra)
    for record in forward_only([*roots, *heavy[:most], *outside]):
        table.add_row(
            short_name(record["path"], room),
            *(Text(format_seconds(record.get(column))) for column in times),
            *(Text(_share(record.get("calibrated_s"), median)) for _ in shares),
            *(Text(format_count(record.get("flop_per_s"))) for _ in extra),
        )
    return table


def _took(record: Mapping[str, Any]) -> bool:
    """Whether any time of a row is more than nothing."""
    return any(record.get(name) for name in ("forward_s", "backward_s", "self_s"))


def operators(report: Mapping[str, Any], width: int, most: int) -> Table | None:
    """The operators with the most time of their own."""
    records = operators_by_name(report["tables"]["operators"])
    if not records:
        return None
    calls = (("calls", "r"),) if width >= _NARROWEST else ()
    table = plain_table(("operator", "l"), *calls, ("self", "r"), ("calibrated", "r"))
    for record in sorted(records, key=weight("self_s"), reverse=True)[:most]:
        table.add_row(
            short_name(record["name"], width - 36),
            *(Text(format_count(record["calls"])) for _ in calls),
            Text(format_seconds(record["self_s"])),
            Text(format_seconds(record["calibrated_s"])),
        )
    return table


def functions(report: Mapping[str, Any], width: int, most: int) -> Table | None:
    """The Python functions of a step with the most time of their own."""
    records = [row for row in report["tables"]["functions"] if row.get("phase") == "step"]
    if not records:
        return None
    calls = (("calls", "r"),) if width >= _NARROWEST else ()
    table = plain_table(("function", "l"), *calls, ("self", "r"), ("total", "r"))
    for record in sorted(records, key=weight("self_s"), reverse=True)[:most]:
        name = _METHOD.sub(r"\2.\1", str(record["name"]))
        place = "" if record["file"] == "~" else f"  {file_name(record['file'])}:{record['line']}"
        table.add_row(
            short_name(f"{name}{place}", width - 36),
            *(Text(format_count(record["calls"])) for _ in calls),
            Text(format_seconds(record["self_s"])),
            Text(format_seconds(record["total_s"])),
        )
    return table
