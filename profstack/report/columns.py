"""How a column of the report is headed: short label, unit, meaning, and why it is empty."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from profstack import schema

# What a heading says where the column's name without its unit would not do.
_LABELS = {
    "artifacts.opens_in": "opens in",
    "flops.forward_mac": "forward MAC",
    "functions.corrected_self_s": "corrected self",
    "functions.primitive_calls": "not recursive",
    "lines.increment_bytes": "RSS growth",
    "lines.usage_bytes": "RSS after",
    "lines.watch_bytes": "RSS growth (watch)",
    "lines.watch_share": "watch share",
    "memory.rss_bytes": "resident set",
    "memory.t_s": "time",
    "modules.forward_flop": "forward FLOP",
    "modules.backward_flop": "backward FLOP",
    "modules.forward_mac": "forward MAC",
    "modules.flop_per_s": "FLOP/s",
    "modules.path": "module",
    "operators.moved_bytes": "moved",
    "operators.flop": "FLOP",
    "regions.flop": "FLOP",
    "steps.index": "step",
    "steps.wait_s": "wait",
}
_UNITS = (("_per_s", "rate"), ("_s", "s"), ("_bytes", "bytes"), ("_flop", "flop"), ("_mac", "mac"))
_BARE_UNITS = {"bytes": "bytes", "flop": "flop"}
_PLAIN = frozenset({"line", "index", "depth", "instance", "stream", "slice", "step", "batch_size"})


@dataclass(frozen=True)
class PageColumn:
    """One column as the page shows it; `reason` says why it is empty throughout, if it is."""

    key: str
    label: str
    unit: str
    meaning: str
    reason: str | None = None


def unit_of(column: str, kind: str = "REAL") -> str:
    """The unit a column's name ends in: s, bytes, flop, mac, rate, count, plain or text."""
    if kind in ("TEXT", "JSON"):
        return "text"
    if column in _PLAIN:
        return "plain"
    for ending, unit in _UNITS:
        if column.endswith(ending):
            return unit
    return _BARE_UNITS.get(column, "count")


def label_of(table: str, column: str) -> str:
    """The heading of a column: its name without the unit, in words."""
    special = _LABELS.get(f"{table}.{column}")
    if special is not None:
        return special
    for ending, _ in _UNITS[1:]:
        if column.endswith(ending):
            column = column[: -len(ending)]
            break
    return column.replace("_", " ")


def page_column(table: str, column: schema.Column, reasons: Mapping[str, str]) -> PageColumn:
    """The heading of one column of `schema.REPORT`."""
    return PageColumn(
        key=column.name,
        label=label_of(table, column.name),
        unit=unit_of(column.name, column.type),
        meaning=column.meaning,
        reason=reasons.get(f"{table}.{column.name}"),
    )
