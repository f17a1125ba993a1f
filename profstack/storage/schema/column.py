"""Columns and tables: what each figure means, its unit, and why it may be missing.

A column is declared once. Recorded tables list their columns as lines of text; tables of the
report are typed rows (`TypedDict`) whose fields carry a `Column`. Headings, reasons for empty
cells, the JSON schema and the reference page are made from these objects.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, get_args, get_origin, get_type_hints

from profstack.errors import RecordingError

# A value that SQLite holds.
SqlValue = str | int | float | bytes | None
Row = tuple[SqlValue, ...]
# Rows of a recorded table, as layers hand them over.
Record = Mapping[str, SqlValue]
Records = Sequence[Record]

# How a number is to be read. A *clean* number was measured with no layer on. A *calibrated* one
# was seen by a layer and is given at the speed of the clean steps. A *raw* one is as the layer saw
# it, with the layer's own cost. A *counted* one is an exact count. A *rate* is a count of the layer
# `flops` over a calibrated time. A *fact* is no measurement: a line, a size, an index. In a *mixed*
# column each row says its own.
SENSES = ("clean", "calibrated", "raw", "counted", "rate", "fact", "mixed")

_UNITS = (
    ("_share", "share"),
    ("_per_s", "rate"),
    ("_s", "s"),
    ("_bytes", "bytes"),
    ("_flop", "flop"),
    ("_mac", "mac"),
)
_BARE_UNITS = {"bytes": "bytes", "flop": "flop", "share": "share"}
_PLAIN = frozenset(
    {"line", "index", "depth", "instance", "stream", "slice", "step", "batch_size"}
    | {"node", "parent", "process", "tensors"}
)
# Layers that numbers come from; the others (`profstack`, `step clock`) are never missing.
_LAYERS = frozenset(("cprofile", "flops", "memory", "nvtx", "torch", "watch"))
_SQL_TYPES: dict[object, str] = {float: "REAL", int: "INTEGER", str: "TEXT", bool: "BOOLEAN"}


@dataclass(frozen=True)
class Column:
    """One column; `name` and `type` (of SQL) are filled in from where it is declared.

    `layer` is the layer whose numbers these are, `sense` one of `SENSES` (None of words), `needs`
    the layer without which the column is empty. `empty` says why the whole column may be null,
    `cell` why single cells may be.
    """

    meaning: str
    sense: str | None = None
    layer: str | None = None
    needs: str | None = None
    heading: str | None = None
    empty: str | None = None
    cell: str | None = None
    name: str = ""
    type: str = ""

    @property
    def unit(self) -> str:
        """The unit in the name's ending: s, bytes, flop, mac, rate, count, plain, flag or text."""
        if self.type in ("TEXT", "JSON"):
            return "text"
        if self.type == "BOOLEAN":
            return "flag"
        if self.name in _PLAIN:
            return "plain"
        for ending, unit in _UNITS:
            if self.name.endswith(ending):
                return unit
        return _BARE_UNITS.get(self.name, "count")

    @property
    def label(self) -> str:
        """The heading: the name without its unit, in words, unless another one was given."""
        if self.heading is not None:
            return self.heading
        stem = self.name
        for ending, _ in _UNITS[2:]:
            if stem.endswith(ending):
                stem = stem[: -len(ending)]
                break
        return stem.replace("_", " ")


@dataclass(frozen=True)
class Doc:
    """The meaning of a field of the report that is no column; `keys` are in its mapping always."""

    meaning: str
    keys: tuple[str, ...] = ()


@dataclass(frozen=True)
class Given:
    """The layer that gives a whole table."""

    layer: str


@dataclass(frozen=True)
class Table:
    """A named, ordered list of columns; `given_by` is the layer without which it is empty."""

    name: str
    columns: tuple[Column, ...]
    given_by: str | None = None

    @property
    def names(self) -> tuple[str, ...]:
        """Column names in the order in which rows hold their values."""
        return tuple(column.name for column in self.columns)

    def column(self, name: str) -> Column | None:
        """Return the column of this name; None where the table has none."""
        return next((column for column in self.columns if column.name == name), None)

    def rows(self, records: Iterable[Record]) -> list[Row]:
        """Return rows in column order; a key that is no column raises RecordingError."""
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
    """Return a recorded table from lines `name TYPE meaning`."""
    parsed = []
    for line in columns:
        column, kind, meaning = line.split(" ", 2)
        parsed.append(Column(meaning, name=column, type=kind))
    return Table(name, tuple(parsed))


def by_name(*tables: Table) -> dict[str, Table]:
    """Return tables by their names."""
    return {each.name: each for each in tables}


def row_table(name: str, row: type, given_by: str | None = None) -> Table:
    """Return the table whose rows are of the typed dictionary `row`."""
    columns = []
    for key, hint in get_type_hints(row, include_extras=True).items():
        kind, column = _declared(hint)
        layer = column.layer or (given_by if column.sense is not None else None)
        # Facts about rows and the clock's figures are profstack's own: no layer lacks there.
        needs = column.needs or (layer if layer in _LAYERS else given_by)
        columns.append(dataclasses.replace(column, name=key, type=kind, layer=layer, needs=needs))
    return Table(name, tuple(columns), given_by)


def _declared(hint: object) -> tuple[str, Column]:
    """Return the SQL type and the `Column` of a field `Annotated[type, Column(...)]`."""
    inner, column = get_args(hint) if get_origin(hint) is Annotated else (hint, Column(""))
    options = [each for each in get_args(inner) if each is not type(None)] or [inner]
    return _SQL_TYPES.get(options[0], "TEXT" if isinstance(options[0], str) else "JSON"), column


# A function, in every table that names one.
FUNCTION_COLUMNS = (
    "file TEXT source file, or ~ for built-in functions",
    "line INTEGER line of the function's definition",
    "name TEXT function name",
)
