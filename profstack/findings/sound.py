"""A report as the rules read it: rows that do not say what they are about are left out.

Recordings that were cut short, or were made by another version, may hold such rows; no rule could
name or link them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

# What a row of a table is known by.
_KEYS: Mapping[str, tuple[str, ...]] = {
    "modules": ("path", "depth"),
    "operators": ("name",),
    "kernels": ("name",),
    "functions": ("file", "line", "name"),
    "calls": ("caller", "callee", "calls"),
    "lines": ("file", "line"),
    "module_lines": ("file", "line"),
    "regions": ("path",),
}


def sound(report: Mapping[str, Any]) -> dict[str, Any]:
    """The report with such rows alone; the rest of it is the same objects."""
    tables = {
        name: _with_keys(rows, _KEYS[name]) if name in _KEYS else rows
        for name, rows in report["tables"].items()
    }
    missing: dict[str, Any] = {name: [] for name in _KEYS if name not in tables}
    return {**report, "tables": tables | missing}


def _with_keys(rows: Any, keys: tuple[str, ...]) -> list[dict[str, Any]]:
    # A missing key is another table's row, as made-up reports have them: it is let be.
    return [row for row in rows or () if not any(row.get(key, 0) is None for key in keys)]
