"""Read files that others sent: bounded in size, depth and time, and of the types that are expected.

A recording, a report, a lock and kept times may come from anybody. Whatever is in them, reading
ends soon, in memory that is in proportion to the file, with values of the declared types; all else
is a `RecordingError` in one line. Limits are far above what a run writes.
"""

from __future__ import annotations

import json
import os
import re
import sqlite3
import stat
import time
import types
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing, contextmanager
from functools import cache, cached_property, partial
from pathlib import Path, PureWindowsPath
from typing import (
    Annotated,
    Any,
    Literal,
    Union,
    get_args,
    get_origin,
    get_type_hints,
    is_typeddict,
)

from profstack.errors import RecordingError
from profstack.storage.schema.column import Column, Table

# Bytes of a text file, and of a database with its write-ahead log.
MOST_TEXT = 128 << 20
MOST_DATABASE = 256 << 20
# Lists and objects inside one another.
MOST_DEEP = 60
# A whole number beyond 64 bits is nothing that was counted, a larger float nothing measured.
_LARGEST_INT, _LARGEST_FLOAT = 2**63, 1e30

# Files --------------------------------------------------------------------------------------------


def check_file(path: Path, *, inside: Path | None = None, most: int = MOST_TEXT) -> Path:
    """Return where a file really is; raise RecordingError unless it is a regular one.

    With `inside` it must be in that folder, also where it is a link. Raise FileNotFoundError where
    there is none.
    """
    try:
        place = path.resolve(strict=True)
        found = place.stat()
    except FileNotFoundError:
        if path.is_symlink():
            raise _error(path, "is a link to nothing") from None
        raise
    except (OSError, RuntimeError, ValueError) as error:
        raise _error(path, f"cannot be read ({getattr(error, 'strerror', error)})") from None
    if inside is not None and not place.is_relative_to(inside.resolve()):
        raise _error(path, "is a link that leads out of its folder")
    if not stat.S_ISREG(found.st_mode):
        raise _error(path, "is no regular file")
    if found.st_size > most:
        raise _error(path, f"is too large: {found.st_size:,} bytes, at most {most:,} are read")
    return place


def read_text(path: Path, *, inside: Path | None = None) -> str:
    """Return the text of a file; raise as `check_file` does, and for what is no UTF-8."""
    place = check_file(path, inside=inside)
    try:
        # It may have been replaced since by a pipe, whose opening would wait.
        with open(os.open(place, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:
            return file.read(MOST_TEXT).decode("utf-8")
    except FileNotFoundError:
        raise
    except (OSError, UnicodeDecodeError) as error:
        raise _error(path, f"cannot be read ({getattr(error, 'strerror', error)})") from None


def read_json(path: Path, hint: object, *, inside: Path | None = None) -> Any:
    """Return the JSON in a file, of the type `hint` (see `typed`); raise as `read_text` does."""
    text = read_text(path, inside=inside)
    try:
        return typed(parsed(text), hint)
    except ValueError as error:
        raise _error(path, str(error)) from None


def check_within(paths: Iterable[str]) -> None:
    """Raise ValueError where the path of a recording's own file leads out of its folder."""
    for path in paths:
        pure = PureWindowsPath(path)
        if pure.anchor or ".." in pure.parts:
            raise ValueError(f"the file {path[:200]!r} leads out of the recording's folder")


def _error(path: Path, what: str) -> RecordingError:
    return RecordingError(what, where=str(path), next_step="take it from where it was made again")


# JSON ---------------------------------------------------------------------------------------------

_SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")


def parsed(text: str) -> Any:
    """Return the value of JSON of any kind; null for NaN, as where nothing was measured.

    Lone surrogates, which no encoding can write, become as in Python's own texts: `\\udcff`.
    Raise ValueError with one line for all that is no JSON, or nested too deep.
    """
    try:
        # The decoder would call a function with the name of each such constant.
        value = json.loads(text, parse_constant=lambda _: None)
    except (ValueError, RecursionError) as error:
        why = "nested too deep" if isinstance(error, RecursionError) else str(error)
        raise ValueError(f"damaged JSON ({why.splitlines()[0]})") from None
    return _encodable(value, 0) if _SURROGATE.search(text) else value


def encodable(text: str) -> str:
    """Return a text with lone surrogates written as Python does, \\udcff."""
    return text.encode("utf-8", "backslashreplace").decode()


def _encodable(value: Any, depth: int) -> Any:
    if isinstance(value, str):
        return encodable(value)
    if depth > MOST_DEEP:
        raise ValueError("nested too deep")
    if isinstance(value, dict):
        return {encodable(key): _encodable(each, depth + 1) for key, each in value.items()}
    return [_encodable(each, depth + 1) for each in value] if isinstance(value, list) else value


# Types --------------------------------------------------------------------------------------------


class MismatchError(ValueError):
    """A value of another type than the declared one, and its place."""

    def __init__(self, what: str) -> None:
        super().__init__(what)
        self.what, self.place = what, ""

    def below(self, key: str | int) -> MismatchError:
        """Return the error with one more step on the way to the value."""
        self.place = f"[{key}]{self.place}" if isinstance(key, int) else f".{key}{self.place}"
        return self

    def __str__(self) -> str:
        return f"{self.place.lstrip('.')[:200]} {self.what}".strip()


def typed(value: Any, hint: object, *, whole: bool = True) -> Any:
    """Return a value of JSON; raise MismatchError unless it is of the type `hint`.

    Known are the types that reports are declared with. Keys that are not declared may be there.
    A declared one that is missing becomes null or empty, since it is later than what wrote the
    value, or is an error where its type has neither. Unless it must be `whole`, it stays missing.
    """
    _checker(hint, whole)(value)
    return value


Check = Callable[[Any], None]


@cache
def _checker(hint: object, whole: bool) -> Check:
    """Return the function that raises MismatchError unless a value is of a type."""
    by_type = _by_type(hint, whole)
    wanted = " or ".join(_WORDS.get(kind, kind.__name__) for kind in by_type)

    def check(value: Any) -> None:
        inner = by_type.get(type(value))
        if inner is None:
            raise MismatchError(f"is {_WORDS.get(type(value), 'a value')}, not {wanted}")
        inner(value)

    return check


_WORDS: dict[type, str] = {
    types.NoneType: "null",
    str: "text",
    int: "a whole number",
    float: "a number",
    bool: "true or false",
    list: "a list",
    dict: "an object",
}


def _anything(value: Any) -> None:
    """Accept a value of a type that needs no more."""


def _number(value: float) -> None:
    if not -_LARGEST_FLOAT <= value <= _LARGEST_FLOAT:
        raise MismatchError("is no finite number of a usual size")


def _whole(value: float) -> None:
    if not -_LARGEST_INT <= value < _LARGEST_INT or value != int(value):
        raise MismatchError("is no whole number of 64 bits")


def _by_type(hint: object, whole: bool) -> dict[type, Check]:
    """Return what to check of a value by the types that it may have."""
    origin, arguments = get_origin(hint), get_args(hint)
    if origin is Annotated:
        return _by_type(arguments[0], whole)
    if origin in (Union, types.UnionType):
        options = [_by_type(each, whole) for each in arguments]
        return {kind: check for each in options for kind, check in each.items()}
    if origin is Literal:
        return {type(each): _one_of(frozenset(arguments)) for each in arguments}
    if origin is list:
        return {list: _items(_checker(arguments[0], whole))}
    if origin is tuple:
        return {list: _parts([_checker(each, whole) for each in arguments])}
    if origin is dict:
        return {dict: _values(_checker(arguments[1], whole))}
    if isinstance(hint, type) and is_typeddict(hint):
        return {dict: _Fields(hint, whole)}
    if hint is object or hint is Any:
        return _PLAIN
    if hint in _SCALARS:
        return _SCALARS[hint]
    raise TypeError(f"no check for {hint!r}")


def _one_of(values: frozenset[object]) -> Check:
    def check(value: Any) -> None:
        if value not in values:
            raise MismatchError(f"is {str(value)[:40]!r}, which this profstack does not know")

    return check


def _items(inner: Check) -> Check:
    def check(values: list[Any]) -> None:
        for index, value in enumerate(values):
            try:
                inner(value)
            except MismatchError as error:
                raise error.below(index) from None

    return check


def _parts(inner: list[Check]) -> Check:
    def check(values: list[Any]) -> None:
        if len(values) != len(inner):
            raise MismatchError(f"has {len(values)} values, not {len(inner)}")
        for each, value in zip(inner, values, strict=True):
            each(value)

    return check


def _values(inner: Check) -> Check:
    def check(values: dict[str, Any]) -> None:
        for key, value in values.items():
            try:
                inner(value)
            except MismatchError as error:
                raise error.below(key) from None

    return check


class _Fields:
    """Checks the fields of an object; what they are is found out when there is one."""

    def __init__(self, hint: type, whole: bool) -> None:
        self._hint, self._whole = hint, whole

    @cached_property
    def _known(self) -> list[tuple[str, Check, Callable[[], object] | None]]:
        """Name and check of each field, and what makes the value of a missing one."""
        needed: frozenset[str] = self._hint.__required_keys__ if self._whole else frozenset()  # type: ignore[attr-defined]  # every TypedDict has it
        return [
            (key, _checker(hint, self._whole), partial(_empty, hint) if key in needed else None)
            for key, hint in get_type_hints(self._hint, include_extras=True).items()
        ]

    def __call__(self, values: dict[str, Any]) -> None:
        """Raise MismatchError unless the fields are of their types; add those that are missing."""
        for key, check, empty in self._known:
            if key in values:
                try:
                    check(values[key])
                except MismatchError as error:
                    raise error.below(key) from None
            elif empty is not None:
                values[key] = empty()
                if values[key] is _NO_EMPTY:
                    raise MismatchError(f"lacks {key!r}")


_NO_EMPTY = object()


def _empty(hint: object) -> object:
    """Return the value of a type that says that there is nothing, or `_NO_EMPTY`."""
    if get_origin(hint) is Annotated:
        return _empty(get_args(hint)[0])
    if isinstance(hint, type) and is_typeddict(hint):
        # A part of the report that was not there: nothing in it was measured.
        fields = {key: _empty(each) for key, each in get_type_hints(hint).items()}
        return {key: None if each is _NO_EMPTY else each for key, each in fields.items()}
    if types.NoneType in _by_type(hint, whole=True):
        return None
    origin = get_origin(hint)
    return origin() if origin in (list, dict) else _NO_EMPTY


def _plain(value: Any, depth: int = 0) -> None:
    """Check values of any type: how deep they are, and the sizes of numbers."""
    if depth > MOST_DEEP:
        raise MismatchError("is nested too deep")
    for each in value.values() if type(value) is dict else value:
        kind = type(each)
        if kind is dict or kind is list:
            _plain(each, depth + 1)
        elif kind is int:
            _whole(each)
        elif kind is float:
            _number(each)


def json_cell(text: str | None, hint: object) -> Any:
    """Return the list that a cell of a table holds as JSON, empty for null.

    Raise RecordingError where it is not of the type `hint`.
    """
    try:
        return typed(parsed(text or "[]"), hint)
    except ValueError as error:
        raise RecordingError(f"a cell of a table cannot be read ({error})") from None


_PLAIN: dict[type, Check] = {
    **dict.fromkeys((types.NoneType, str, bool), _anything),
    int: _whole,
    float: _number,
    list: _plain,
    dict: _plain,
}
_SCALARS: dict[object, dict[type, Check]] = {
    str: {str: _anything},
    bool: {bool: _anything},
    int: {int: _whole, float: _whole},
    float: {float: _number, int: _number},
    None: {types.NoneType: _anything},
    types.NoneType: {types.NoneType: _anything},
}


# Databases ----------------------------------------------------------------------------------------

# A table as read: the names of its columns, and its rows.
Rows = tuple[list[str], list[tuple[Any, ...]]]

# The one form in which a run makes its tables. Views, triggers, indexes, generated columns, checks
# and virtual tables are code that would run here.
_CREATE = re.compile(
    r'CREATE TABLE "?([a-z][a-z0-9_]{0,60})"? ?\('
    r'((?:"?[a-z][a-z0-9_]{0,60}"? (?:TEXT|INTEGER|REAL|BOOLEAN|JSON)(?:, )?)+)\)'
)
_COLUMN = re.compile(r'"?([a-z][a-z0-9_]*)"? [A-Z]+')
_MOST_TABLES = 400
# Bytes of one value; a run's largest are texts of source files.
_MOST_VALUE = 8 << 20
_MOST_FACT = 64 << 20
_MOST_CELLS = 8_000_000
_ROWS_AT_ONCE = 64
# The file has at least so many bytes for each row.
_LEAST_ROW = 4
# CPU time, and instructions of SQLite between two looks at it.
_MOST_S = 30.0
_OPERATIONS = 100_000
_SQL_TYPES: dict[str, frozenset[type]] = {
    "TEXT": frozenset((str,)),
    "JSON": frozenset((str,)),
    "INTEGER": frozenset((int,)),
    "BOOLEAN": frozenset((int,)),
    "REAL": frozenset((float, int)),
}
# Bytes and operations of a whole run, and counts of anything else.
_LARGEST_COUNT = 1 << 53
_LARGEST = dict.fromkeys(("bytes", "flop", "mac"), 1 << 62)


class Database:
    """An open database of a recording, at one moment; it is made by `open_database`."""

    def __init__(self, connection: sqlite3.Connection, size: int) -> None:
        self.connection, self._size = connection, size
        self._cells = self._rows = self._characters = 0
        self.tables = self._tables()

    def _tables(self) -> dict[str, list[str]]:
        """Return the columns of each table."""
        query = "SELECT name, sql FROM sqlite_master"
        found = self.connection.execute(query).fetchmany(_MOST_TABLES + 1)
        if len(found) > _MOST_TABLES:
            raise ValueError(f"more than {_MOST_TABLES} tables")
        tables: dict[str, list[str]] = {}
        for name, made in found:
            match = _CREATE.fullmatch(made) if isinstance(made, str) else None
            if match is None or match[1] != name or name in tables:
                raise ValueError(f"{str(name)[:40]!r} is no table as a run makes them")
            tables[name] = _COLUMN.findall(match[2])
        return tables

    def read(self, table: Table) -> Rows:
        """Read the columns of a table; raise ValueError where values are of other types.

        A table that is not there has no rows; a column that is not there is null in every row.
        """
        names = list(table.names)
        known = self.tables.get(table.name)
        if known is None:
            return names, []
        selected = ", ".join(f'"{name}"' if name in known else "NULL" for name in names)
        most = _MOST_FACT if table.name == "facts" else _MOST_VALUE
        _limit(self.connection, LENGTH=most)
        cursor = self.connection.execute(f'SELECT {selected} FROM "{table.name}"')
        columns = [each for each in table.columns if each.name in known]
        places = [names.index(each.name) for each in columns]
        rows: list[tuple[Any, ...]] = []
        while chunk := cursor.fetchmany(_ROWS_AT_ONCE):
            rows += chunk
            self._rows += len(chunk)
            self._cells += len(chunk) * len(names)
            given = list(zip(*chunk, strict=True))
            for column, at in zip(columns, places, strict=True):
                if (why := _mismatch(column, given[at])) is not None:
                    raise ValueError(f"{table.name}.{column.name} {why}")
                if column.type == "TEXT":
                    self._characters += sum(map(len, filter(None, given[at])))
            # Pages that several others point to would be read without end.
            if self._rows * _LEAST_ROW > self._size or self._characters > self._size:
                raise ValueError("its pages are damaged")
            if self._cells > _MOST_CELLS:
                raise ValueError(f"more than {_MOST_CELLS:,} values")
        return names, rows


def _mismatch(column: Column, values: tuple[Any, ...]) -> str | None:
    """Return why these are no values of a column; None where they are."""
    found = set(map(type, values))
    has_null = types.NoneType in found
    found.discard(types.NoneType)
    if not found <= _SQL_TYPES[column.type]:
        return f"has values that are no {column.type}"
    if found and str not in found:
        most = _LARGEST_FLOAT if float in found else _LARGEST.get(column.unit, _LARGEST_COUNT)
        numbers = [value for value in values if value is not None] if has_null else values
        if not -most <= min(numbers) <= max(numbers) <= most:
            return "has numbers out of all proportion"
    return None


@contextmanager
def open_database(path: Path) -> Iterator[Database]:
    """Open a recording's database to read it at one moment; raise RecordingError if that fails.

    Errors in the `with` block that its content is to blame for become such ones, too. Raise
    FileNotFoundError where there is none.
    """
    place = check_file(path, inside=path.parent, most=MOST_DATABASE)
    log = path.with_name(f"{path.name}-wal")
    size = place.stat().st_size
    has_log = False
    try:
        size += check_file(log, inside=path.parent, most=MOST_DATABASE).stat().st_size
        has_log = True
    except FileNotFoundError:
        pass
    try:
        with place.open("rb") as file:
            is_ahead = file.read(20)[18:] == b"\2\2"
        # With a write-ahead log the last one that closes it folds it in. Without one, the file is
        # read as it is: nothing is written, and no file is made beside it.
        mode = "rw" if has_log else "ro&immutable=1" if is_ahead else "ro"
        address = f"{place.as_uri()}?mode={mode}"
        with closing(sqlite3.connect(address, timeout=60, uri=True)) as connection:
            _bound(connection)
            # One transaction: the run may be writing its next slice meanwhile.
            connection.execute("BEGIN")
            yield Database(connection, size)
    except RecordingError:
        raise
    except (sqlite3.Error, ValueError, OSError, OverflowError) as error:
        said = " ".join(str(error).split())
        raise RecordingError(
            f"the recording cannot be read ({said})",
            where=str(path),
            next_step="run profstack again",
        ) from None


def _bound(connection: sqlite3.Connection) -> None:
    """Limit what a database can have SQLite do, before its schema is read."""
    for each in ("trusted_schema = OFF", "query_only = ON", "cell_size_check = ON"):
        connection.execute(f"PRAGMA {each}")
    _limit(connection, LENGTH=_MOST_FACT, SQL_LENGTH=1 << 16, COLUMN=200)
    end = time.process_time() + _MOST_S
    connection.set_progress_handler(lambda: time.process_time() > end, _OPERATIONS)


def _limit(connection: sqlite3.Connection, **limits: int) -> None:
    """Set limits of SQLite by their names; Python 3.10 cannot."""
    if hasattr(connection, "setlimit"):
        for name, most in limits.items():
            connection.setlimit(getattr(sqlite3, f"SQLITE_LIMIT_{name}"), most)
