"""The SQLite file that Nsight Systems exports: schema, columns as arrays, frames.

Nothing is written into the file or beside it. Any problem with it raises an `ExportError` that says
what to do.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import pandas as pd

from profstack.errors import ProfstackError

Ints = npt.NDArray[np.int64]
Objects = npt.NDArray[np.object_]
# Columns of a table by name: `Ints`, or `Objects`.
Columns = dict[str, npt.NDArray[Any]]

MAGIC = b"SQLite format 3\0"
# What nsys writes itself, newest first; all else is taken for an export.
REPORTS = (".nsys-rep", ".qdrep", ".qdstrm")
_AGAIN = "export it again: nsys export --type sqlite --force-overwrite true <report>.nsys-rep"
_GIVE = "give the file that nsys export --type sqlite has written"
# The name of things that have none in the file.
UNNAMED = "unnamed"
# Few enough to stay in the caches of a core.
_ROWS_AT_ONCE = 5_000
_IDS_AT_ONCE = 5_000
# Of a thread's global identifier, without the thread.
PROCESS_BITS = 0xFFFFFF
# Time to wait for a lock on the file; nsys itself takes longer to write it.
_PATIENCE_S = 1.0


class ExportError(ProfstackError):
    """A file is no readable export of Nsight Systems: missing, damaged or of another kind."""


def _error(path: Path, what: str, next_step: str) -> ExportError:
    return ExportError(what, where=str(path), next_step=next_step)


@dataclass(frozen=True)
class Column:
    """A column to read: whole numbers, -1 for none; or texts or payloads, None for none."""

    name: str
    needed: bool = False
    # Numbers that begin at 1: older files have 0 for none.
    from_one: bool = False
    kind: Literal["number", "text", "payload"] = "number"


def needed(**columns: str) -> dict[str, Column]:
    """Return columns of whole numbers that a table must have, by their keys."""
    return {key: Column(name, needed=True) for key, name in columns.items()}


class ExportFile:
    """An open export; use it in a `with`."""

    def __init__(self, path: Path) -> None:
        """Open the file; raises `ExportError` if it is no export of nsys or cut short."""
        self.path = path
        ahead = _checked_header(path)
        with self._readable():
            place = path.resolve()
            beside = place.with_name(f"{place.name}-wal").exists()
            # No lock and no file is left beside the file: in write-ahead mode two more would be
            # made there, even when it is only read.
            immutable = not beside and (ahead or not os.access(place.parent, os.W_OK))
            address = f"{place.as_uri()}?mode=ro" + ("&immutable=1" if immutable else "")
            self._database = sqlite3.connect(address, timeout=_PATIENCE_S, uri=True)
        try:
            # A kernel's name may be in any encoding.
            self._database.text_factory = lambda raw: raw.decode("utf-8", "replace")
            self.schema = self._read_schema()
        except BaseException:
            self._database.close()
            raise

    def __enter__(self) -> ExportFile:
        return self

    def __exit__(self, *_: object) -> None:
        self._database.close()

    def has(self, table: str) -> bool:
        """Return whether the export has this table."""
        return table in self.schema

    def rows(self, query: str, values: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        """Return the rows of a query that has few of them."""
        with self._readable():
            return self._database.execute(query, values).fetchall()

    def columns(
        self, table: str, wanted: Mapping[str, Column], where: str = "1", order: str = ""
    ) -> Columns:
        """Read columns of a table as arrays by the keys of `wanted`; empty ones without the table.

        `where` is SQL over the table's own columns, `order` the key to sort by; of two rows that
        begin together the longer one comes first. Raises `ExportError` if a needed column is not
        there or the file is damaged.
        """
        types = {
            key: np.int64 if column.kind == "number" else np.object_
            for key, column in wanted.items()
        }
        # With no rows the columns have their types.
        parts: list[Columns] = [{key: np.array([], kind) for key, kind in types.items()}]
        if table in self.schema:
            selected = ", ".join(self.expression(table, column) for column in wanted.values())
            with self._readable():
                cursor = self._database.execute(f'SELECT {selected} FROM "{table}" WHERE {where}')
                while chunk := cursor.fetchmany(_ROWS_AT_ONCE):
                    columns = zip(types.items(), zip(*chunk, strict=True), strict=True)
                    parts.append({key: np.array(each, kind) for (key, kind), each in columns})
        joined = {key: np.concatenate([part[key] for part in parts]) for key in wanted}
        # Since 2025 the order of rows is not guaranteed; most are sorted already.
        if not order or np.all(joined[order][:-1] < joined[order][1:]):
            return joined
        ties = (-joined["end"], joined[order]) if "end" in joined else (joined[order],)
        row = np.lexsort(ties)
        return {key: values[row] for key, values in joined.items()}

    def expression(self, table: str, column: Column) -> str:
        """Return SQL for a column that a table has, may lack, or has with 0 in place of null."""
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
            # Where no column may be null, 0 means none.
            whole = f"CASE WHEN typeof({read}) = 'integer' THEN {read} END"
            return f"NULLIF({whole}, 0)" if self.schema[table][column.name] else whole
        return f"IFNULL(NULLIF({read}, 0), -1)" if column.from_one else f"IFNULL({read}, -1)"

    def is_of(self, table: str, process: int) -> str:
        """Return SQL for the rows of a table that are of this process."""
        return f"{self.process_of(table)} = {process}" if table in self.schema else "0"

    def process_of(self, table: str) -> str:
        """Return SQL for the process of a row of a table."""
        for column in ("globalTid", "globalPid"):
            if column in self.schema[table]:
                return f"({column} >> 24) & {PROCESS_BITS}"
        raise self._unknown(table, "globalTid or globalPid")

    def strings(self, ids: Ints, *, otherwise: str | None = None) -> Objects:
        """Return the texts of these numbers; `otherwise` for -1 and for unknown numbers."""
        numbers = np.unique(ids).tolist()
        found: dict[int, str] = {}
        for at in range(0, len(numbers), _IDS_AT_ONCE):
            some = among("id", numbers[at : at + _IDS_AT_ONCE])
            found |= self.rows(f"SELECT id, CAST(value AS TEXT) FROM StringIds WHERE {some}")
        return mapped(ids, lambda number: found.get(number, otherwise))

    def numbers(self, enum: str, known: Mapping[str, int]) -> list[int]:
        """Return the numbers of these names in an enumeration: the file's own, or those known."""
        own: dict[str, int] = {}
        if "name" in self.schema.get(enum, ()):
            own = dict(self.rows(f'SELECT name, CAST(id AS INTEGER) FROM "{enum}"'))
        return [own.get(name, number) for name, number in known.items()]

    def words(self, enum: str, numbers: Ints, known: Mapping[int, str]) -> Objects:
        """Return meanings of numbers of an enumeration, in small letters; None if unknown.

        The file's own table gives the meaning, unless its words for a known number differ from
        ours; older files have no table, or one without every entry.
        """
        meanings = dict(known)
        if "label" in self.schema.get(enum, ()):
            query = f'SELECT id, CAST(label AS TEXT) FROM "{enum}" WHERE label IS NOT NULL'
            for number, label in self.rows(query):
                meaning = label.lower().replace("-", " ")
                if meaning in known.values() or number not in known:
                    meanings[number] = meaning
        return mapped(numbers, meanings.get)

    def _read_schema(self) -> dict[str, dict[str, bool]]:
        """Read each table's columns, and whether they are declared never to be null."""
        tables = [row[0] for row in self.rows("SELECT name FROM sqlite_master WHERE type='table'")]
        if "StringIds" not in tables:
            what = "is a SQLite file, but not an export of Nsight Systems"
            step = "make one: nsys export --type sqlite <report>.nsys-rep"
            raise _error(self.path, f"{what} (it has no table StringIds)", step)
        return {
            table: {
                row[1]: bool(row[3])
                for row in self.rows("SELECT * FROM pragma_table_info(?)", (table,))
            }
            for table in tables
        }

    def _unknown(self, table: str, column: str) -> ExportError:
        what = f"its table {table} has no column {column}, so it is of an nsys that is not known"
        return _error(self.path, what, "use nsys 2022 to 2026")

    @contextmanager
    def _readable(self) -> Iterator[None]:
        """Raise an error of SQLite, or of a value of the wrong type, as an ExportError."""
        try:
            yield
        except (sqlite3.Error, ValueError, TypeError, OverflowError) as error:
            step = "wait until nsys has written it" if "locked" in str(error) else _AGAIN
            what = f"cannot be read, it is damaged or not complete ({error})"
            raise _error(self.path, what, step) from None


def among(column: str, numbers: Sequence[int]) -> str:
    """Return SQL for rows with one of these numbers in a column."""
    return f"{column} IN ({', '.join(map(str, numbers))})"


def mapped(values: npt.NDArray[Any], function: Callable[[Any], str | None]) -> Objects:
    """Apply a function to values of which few differ; it is called once for each."""
    codes, distinct = pd.factorize(values, use_na_sentinel=False)
    results = [function(None if pd.isna(each) else each) for each in distinct]
    return np.array(results, dtype=object)[codes]


def _checked_header(path: Path) -> bool:
    """Return whether the file is in write-ahead mode.

    Raises `ExportError` unless it begins as SQLite files do and is as long as its header says.
    """
    if path.suffix in REPORTS:
        step = f"export it first: nsys export --type sqlite {path.name}"
        raise _error(path, "is a report of nsys, not its SQLite export", step)
    try:
        with path.open("rb") as file:
            header = file.read(100)
            size = os.fstat(file.fileno()).st_size
    except OSError as error:
        raise _error(path, f"cannot be read ({error.strerror or error})", _GIVE) from None
    if not size:
        raise _error(path, "is empty", _AGAIN)
    if not header.startswith(MAGIC):
        raise _error(path, "is not a SQLite file", _GIVE)
    # A page size of 1 means 65536. The number of pages is 0 if it is not kept.
    page = int.from_bytes(header[16:18], "big")
    whole = (65536 if page == 1 else page) * int.from_bytes(header[28:32], "big")
    if size < max(whole, 100):
        what = f"is cut short: {size:,} of {max(whole, 100):,} bytes are there"
        raise _error(path, what, _AGAIN)
    return header[18:20] == b"\x02\x02"


# --- Frames -------------------------------------------------------------------------------------

# Every frame has all its columns, whatever generation of nsys wrote the file and whatever was
# traced; an empty frame has them too. Times are whole nanoseconds on the export's own clock.
# A row of `work` may hold several equal copies, one after the other: `copies` is their number.
_COLUMNS = {
    "ranges": "start end thread style domain category text payload",
    "calls": "start end thread name correlation failed callchain",
    "libraries": "start end thread library name",
    "os_calls": "start end thread name callchain",
    "work": "start end kind name device stream correlation bytes copies direction from_memory "
    "to_memory in_graph grid block",
    "synchronisations": "start end device stream correlation kind",
    "memory": "t device kind bytes operation address",
    "samples": "t thread callchain",
    "callchains": "source id depth symbol module",
    "threads": "thread name",
}
# Types of columns that are no int64. "object" is str or None, but for payload: int or None.
_OBJECTS = (
    "style domain category text payload name library kind direction from_memory to_memory "
    "operation source symbol module grid block"
)
_TYPES = {**dict.fromkeys(_OBJECTS.split(), "object"), "failed": "bool", "in_graph": "bool"}
# The type of each column by frame.
FRAMES = {
    name: {column: _TYPES.get(column, "int64") for column in columns.split()}
    for name, columns in _COLUMNS.items()
}
FRAMES["work"]["bytes"] = "float64"


def frame_of(name: str, columns: Mapping[str, Any] | None = None) -> pd.DataFrame:
    """Return the frame of that name with these columns in its order and types, or an empty one.

    A column may be one value for all rows.
    """
    given = columns or dict.fromkeys(FRAMES[name], ())
    index = range(next(len(values) for values in given.values() if not np.isscalar(values)))
    types = FRAMES[name].items()
    frame: pd.DataFrame = pd.DataFrame(
        {column: pd.Series(given[column], index=index, dtype=kind) for column, kind in types}
    )
    return frame


def numbered(frame: pd.DataFrame) -> tuple[Ints, pd.DataFrame]:
    """Return the number of each row, the same for equal rows, and the different rows in order.

    A capture may have a million kernels of a hundred names: values are numbered once, and the rest
    is done on the numbers.
    """
    codes = pd.DataFrame({name: pd.factorize(frame[name])[0] for name in frame})
    number = codes.groupby(list(codes), sort=False).ngroup().to_numpy(np.int64)
    return number, frame[~codes.duplicated().to_numpy(np.bool_)]
