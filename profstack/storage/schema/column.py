"""Columns and tables: what each figure means, its unit, and why it may be missing.

A column is declared once. Recorded tables list their columns as lines of text; tables of the
report are typed rows (`TypedDict`) whose fields say what they mean, as in
`bytes: Annotated[Raw, "held | bytes at the peak", empty("there is no peak")]`; before the bar is a
heading. Headings, reasons for empty cells, the JSON schema and the reference page are made from
these declarations.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
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
# Whole numbers that name things: they are written in full.
PLAIN = frozenset(
    {"line", "index", "depth", "instance", "stream", "slice", "step", "batch_size"}
    | {"node", "parent", "process", "tensors", "first_number", "last_number"}
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
        if self.name in PLAIN:
            return "plain"
        units = [unit for ending, unit in _UNITS if self.name.endswith(ending)]
        return units[0] if units else _BARE_UNITS.get(self.name, "count")

    @property
    def label(self) -> str:
        """The heading: the name without its unit, in words, unless another one was given."""
        if self.heading is not None:
            return self.heading
        endings = [ending for ending, _ in _UNITS[2:] if self.name.endswith(ending)]
        return self.name.removesuffix(endings[0] if endings else "").replace("_", " ")


@dataclass(frozen=True)
class Note:
    """A note in the type of a field, beside its meaning: the field of `Column`, and its text."""

    about: str
    text: str


sense = partial(Note, "sense")
layer = partial(Note, "layer")
needs = partial(Note, "needs")
empty = partial(Note, "empty")
cell = partial(Note, "cell")
# Of a table: the layer without which it is empty. It is also the layer of the columns that name
# none, unless the table names another one by `layer`.
given_by = partial(Note, "given_by")
# A key that a mapping always has.
key = partial(Note, "key")

# Types of fields: null is what was not measured, or is not there.
Figure = float | None
Whole = int | None
Text = str | None
Flag = bool | None
# Types of columns with numbers, by their sense.
Clean = Annotated[Figure, sense("clean")]
Calibrated = Annotated[Figure, sense("calibrated")]
Raw = Annotated[Figure, sense("raw")]
RawWhole = Annotated[Whole, sense("raw")]
Counted = Annotated[Figure, sense("counted")]
CountedWhole = Annotated[Whole, sense("counted")]
Fact = Annotated[Whole, sense("fact")]
OwnFact = Annotated[Fact, layer("profstack")]
Moment = Annotated[Figure, sense("fact")]
Line = Annotated[int, sense("fact")]


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
            # A run waits for this, at the end of each slice.
            if not record.keys() <= known:
                unknown = sorted(record.keys() - known)
                raise RecordingError(f"table {self.name} has no column {unknown}")
            rows.append(tuple(map(record.get, names)))
        return rows


def columns(*lines: str) -> tuple[Column, ...]:
    """Return columns of a recorded table from lines `name TYPE meaning`."""
    parts = [line.split(" ", 2) for line in lines]
    return tuple(Column(meaning, name=name, type=kind) for name, kind, meaning in parts)


def declaration(hint: object) -> tuple[object, str, list[Note]]:
    """Return the bare type of a field `Annotated[type, meaning, note, ...]`, meaning and notes.

    A column's meaning can follow a heading: "heading | meaning".
    """
    bare, *said = get_args(hint) if get_origin(hint) is Annotated else (hint,)
    notes = [each for each in said if isinstance(each, Note)]
    text = next((each for each in said if isinstance(each, str)), "")
    heading, bar, meaning = text.rpartition(" | ")
    return bare, meaning, [*notes, Note("heading", heading)] if bar else notes


def row_table(name: str, field: object) -> Table:
    """Return the table of a field `Annotated[list[row], note, ...]`; its notes are of the table."""
    rows, _, notes = declaration(field)
    said = {note.about: note.text for note in notes}
    giver = said.get("given_by")
    columns = []
    for each, hint in get_type_hints(get_args(rows)[0], include_extras=True).items():
        bare, meaning, notes = declaration(hint)
        column = Column(meaning, **{note.about: note.text for note in notes})
        given = column.layer or (said.get("layer", giver) if column.sense is not None else None)
        # Facts about rows and the clock's figures are profstack's own: no layer lacks there.
        needed = column.needs or (given if given in _LAYERS else giver)
        # A list or mapping is kept as JSON.
        options = [option for option in get_args(bare) if option is not type(None)] or [bare]
        other = "TEXT" if isinstance(options[0], str) else "JSON"
        kind = _SQL_TYPES.get(options[0], other)
        columns.append(dataclasses.replace(column, name=each, type=kind, layer=given, needs=needed))
    return Table(name, tuple(columns), giver)


# The slice that a row belongs to.
(SLICE,) = columns("slice INTEGER slice")
