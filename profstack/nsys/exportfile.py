"""The SQLite file itself: opened without a trace, its schema, and columns of its tables as arrays.

Nothing is ever written into the file or beside it. Whatever is wrong with it ends in an
`ExportError` that says what to do.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from profstack.errors import ProfstackError

Ints = npt.NDArray[np.int64]
Objects = npt.NDArray[np.object_]

_MAGIC = b"SQLite format 3\0"
_REPORTS = (".nsys-rep", ".qdrep", ".qdstrm")
_AGAIN = "export it again: nsys export --type sqlite --force-overwrite true <report>.nsys-rep"
# The name of what the file has no name for: it still counts.
UNNAMED = "unnamed"
_ROWS_AT_ONCE = 50_000
_IDS_AT_ONCE = 5_000
# Of a thread's global identifier, without the thread.
PROCESS_BITS = 0xFFFFFF
# Long enough for whoever looks at the file; nsys itself takes longer to write it.
_PATIENCE_S = 1.0


class ExportError(ProfstackError):
    """A file is not an export of Nsight Systems that can be read: missing, damaged or another."""


@dataclass(frozen=True)
class Column:
    """A column to read: whole numbers, with -1 for none; or texts, or payloads, with None."""

    name: str
    needed: bool = False
    # Numbers that nsys gives from 1 on: older files have 0 where there is none.
    from_one: bool = False
    kind: Literal["number", "text", "payload"] = "number"


class ExportFile:
    """An open export; use it in a `with`."""

    def __init__(self, path: Path) -> None:
        """Open the file; raises `ExportError` if it is no export of nsys or cut short."""
        self.path = path
        ahead = _checked_header(path)
        with self._told():
            address = _address(path, ahead=ahead)
            self._database = sqlite3.connect(address, timeout=_PATIENCE_S, uri=True)
        try:
            # A kernel's name is whatever a compiler made of it, in any encoding.
            self._database.text_factory = lambda raw: raw.decode("utf-8", "replace")
            self.schema = self._read_schema()
        except BaseException:
            self._database.close()
            raise

    def __enter__(self) -> ExportFile:
        return self

    def __exit__(self, *_: object) -> None:
        self._database.close()

    def has(self, *tables: str) -> bool:
        """Whether the export has one of these tables."""
        return any(table in self.schema for table in tables)

    def rows(self, query: str, values: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        """The rows of a query that has few of them."""
        with self._told():
            return self._database.execute(query, values).fetchall()

    def columns(
        self, table: str, wanted: Mapping[str, Column], where: str = "1", order: str = ""
    ) -> dict[str, Any]:
        """Columns of a table as arrays under our names; empty ones where there is no such table.

        `where` is SQL over the table's own columns, `order` the key of ours to sort by. Raises
        `ExportError` if a needed column is not there or the file is damaged.
        """
        parts: list[dict[str, Any]] = []
        if table in self.schema:
            told = ", ".join(self.expression(table, column) for column in wanted.values())
            with self._told():
                cursor = self._database.execute(f'SELECT {told} FROM "{table}" WHERE {where}')
                while chunk := cursor.fetchmany(_ROWS_AT_ONCE):
                    parts.append(_arrays(chunk, wanted))
        if not parts:
            parts.append({key: np.array([], dtype=_dtype(each)) for key, each in wanted.items()})
        joined = {key: np.concatenate([part[key] for part in parts]) for key in wanted}
        return _sorted(joined, order) if order else joined

    def expression(self, table: str, column: Column) -> str:
        """SQL for a column of a table that has it, may lack it, or has 0 in place of null."""
        blank = "-1" if column.kind == "number" else "NULL"
        if column.name not in self.schema[table]:
            if column.needed:
                raise self._unknown(table, column.name)
            return blank
        # `end` is a word of SQL.
        read = f'"{column.name}"'
        if column.kind == "text":
            return f"NULLIF(CAST({read} AS TEXT), '')"
        if column.kind == "payload":
            # Where no column may be null, 0 is all there is for none.
            whole = f"CASE WHEN typeof({read}) = 'integer' THEN {read} END"
            return f"NULLIF({whole}, 0)" if self.schema[table][column.name] else whole
        return f"IFNULL(NULLIF({read}, 0), -1)" if column.from_one else f"IFNULL({read}, -1)"

    def is_of(self, table: str, process: int) -> str:
        """SQL for the rows of a table that are of this process."""
        return f"{self.process_of(table)} = {process}" if table in self.schema else "0"

    def process_of(self, table: str) -> str:
        """SQL for the process that a row of a table is of."""
        for column in ("globalTid", "globalPid"):
            if column in self.schema[table]:
                return f"({column} >> 24) & {PROCESS_BITS}"
        raise self._unknown(table, "globalTid or globalPid")

    def strings(self, ids: Ints, *, otherwise: str | None = None) -> Objects:
        """The texts of these numbers; `otherwise` for -1 and for a number that has none."""
        numbers, where = np.unique(ids, return_inverse=True)
        found: dict[Any, str] = {}
        for at in range(0, len(numbers), _IDS_AT_ONCE):
            some = ",".join(str(int(number)) for number in numbers[at : at + _IDS_AT_ONCE])
            found |= self.rows(
                f"SELECT id, CAST(value AS TEXT) FROM StringIds WHERE id IN ({some})"
            )
        texts = np.empty(len(numbers), dtype=object)
        texts[:] = [found.get(int(number), otherwise) for number in numbers]
        named: Objects = texts[where]
        return named

    def words(self, enum: str, numbers: Ints, known: Mapping[int, str]) -> Objects:
        """What these numbers of an enumeration mean, in small letters; None where nobody says.

        The file's own table tells what a number means, unless it says it in words of its own for a
        number that is known; older files have no table, or one without every entry.
        """
        means = dict(known)
        if "label" in self.schema.get(enum, ()):
            rows = self.rows(
                f'SELECT id, CAST(label AS TEXT) FROM "{enum}" WHERE label IS NOT NULL'
            )
            for number, label in rows:
                said = label.lower().replace("-", " ")
                if said in known.values() or number not in known:
                    means[number] = said
        distinct, where = np.unique(numbers, return_inverse=True)
        texts = np.empty(len(distinct), dtype=object)
        texts[:] = [means.get(int(number)) for number in distinct]
        told: Objects = texts[where]
        return told

    def _read_schema(self) -> dict[str, dict[str, bool]]:
        """Each table's columns, and whether they are declared never to be null."""
        tables = [row[0] for row in self.rows("SELECT name FROM sqlite_master WHERE type='table'")]
        if "StringIds" not in tables:
            raise ExportError(
                "is a SQLite file, but not an export of Nsight Systems (it has no table StringIds)",
                where=str(self.path),
                next_step="make one: nsys export --type sqlite <report>.nsys-rep",
            )
        return {
            table: {
                row[1]: bool(row[3])
                for row in self.rows("SELECT * FROM pragma_table_info(?)", (table,))
            }
            for table in tables
        }

    def _unknown(self, table: str, column: str) -> ExportError:
        what = f"its table {table} has no column {column}, so it is of an nsys that is not known"
        return ExportError(what, where=str(self.path), next_step="use nsys 2022 to 2026")

    @contextmanager
    def _told(self) -> Iterator[None]:
        """Say in one line what SQLite, or a value that is not what its column is for, means."""
        try:
            yield
        except (sqlite3.Error, ValueError, TypeError, OverflowError) as error:
            step = "wait until nsys has written it" if "locked" in str(error) else _AGAIN
            raise ExportError(
                f"cannot be read, it is damaged or not complete ({error})",
                where=str(self.path),
                next_step=step,
            ) from None


def _checked_header(path: Path) -> bool:
    """Whether the file is of the mode that writes ahead.

    Raises `ExportError` unless it begins as SQLite's do and is as long as it says.
    """
    where = str(path)
    if path.suffix in _REPORTS:
        step = f"export it first: nsys export --type sqlite {path.name}"
        raise ExportError("is a report of nsys, not its SQLite export", where=where, next_step=step)
    try:
        with path.open("rb") as file:
            header = file.read(100)
            size = os.fstat(file.fileno()).st_size
    except OSError as error:
        what = f"cannot be read ({error.strerror or error})"
        step = "give the file that nsys export --type sqlite has written"
        raise ExportError(what, where=where, next_step=step) from None
    if not size:
        raise ExportError("is empty", where=where, next_step=_AGAIN)
    if not header.startswith(_MAGIC):
        step = "give the file that nsys export --type sqlite has written"
        raise ExportError("is not a SQLite file", where=where, next_step=step)
    # A page size of 1 stands for 65536. The number of pages is 0 if nobody keeps it.
    page = int.from_bytes(header[16:18], "big")
    whole = (65536 if page == 1 else page) * int.from_bytes(header[28:32], "big")
    if size < max(whole, 100):
        what = f"is cut short: {size:,} of {max(whole, 100):,} bytes are there"
        raise ExportError(what, where=where, next_step=_AGAIN)
    return header[18:20] == b"\x02\x02"


def _address(path: Path, *, ahead: bool) -> str:
    """How to open the file so that SQLite leaves neither a lock nor a file beside it."""
    path = path.resolve()
    beside = path.with_name(f"{path.name}-wal").exists()
    # A file in the mode that writes ahead makes two more beside it, even when only read.
    immutable = not beside and (ahead or not os.access(path.parent, os.W_OK))
    return f"{path.as_uri()}?mode=ro" + ("&immutable=1" if immutable else "")


def _arrays(rows: list[tuple[Any, ...]], wanted: Mapping[str, Column]) -> dict[str, Any]:
    arrays = {}
    for (key, column), values in zip(wanted.items(), zip(*rows, strict=True), strict=True):
        array = np.empty(len(values), dtype=_dtype(column))
        array[:] = values
        arrays[key] = array
    return arrays


def _dtype(column: Column) -> Any:
    return np.int64 if column.kind == "number" else np.object_


def _sorted(columns: dict[str, Any], key: str) -> dict[str, Any]:
    """In order of `key`, and of two that begin together the longer one first."""
    first = columns[key]
    # nsys says since 2025 that its rows come in no order; most do, and then this costs nothing.
    if len(first) and np.all(first[:-1] < first[1:]):
        return columns
    ties = (-columns["end"], first) if "end" in columns else (first,)
    order = np.lexsort(ties)
    return {name: values[order] for name, values in columns.items()}
