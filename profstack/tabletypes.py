"""What a table is: columns with a name, an SQL type and a meaning, in an order."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from profstack.errors import RecordingError

Row = tuple[Any, ...]


@dataclass(frozen=True)
class Column:
    """One column: its name, whose ending is its unit, its SQL type and what it says."""

    name: str
    type: str
    meaning: str


@dataclass(frozen=True)
class Table:
    """A named, ordered list of columns."""

    name: str
    columns: tuple[Column, ...]

    @property
    def names(self) -> tuple[str, ...]:
        """Column names in the order in which rows hold their values."""
        return tuple(column.name for column in self.columns)

    def rows(self, records: Iterable[Mapping[str, Any]]) -> list[Row]:
        """Rows in column order; a key that is no column is a defect and raises RecordingError."""
        names = self.names
        known = frozenset(names)
        rows = []
        for record in records:
            unknown = record.keys() - known
            if unknown:
                raise RecordingError(f"table {self.name} has no column {sorted(unknown)}")
            rows.append(tuple([record.get(name) for name in names]))
        return rows


def table(name: str, *columns: str) -> Table:
    """A table from lines `name TYPE meaning`."""
    parsed = []
    for line in columns:
        column, kind, meaning = line.split(" ", 2)
        parsed.append(Column(column, kind, meaning))
    return Table(name, tuple(parsed))


# A function, in every table that names one.
FUNCTION_COLUMNS = (
    "file TEXT source file, or ~ for built-in functions",
    "line INTEGER line of the function's definition",
    "name TEXT function name",
)
