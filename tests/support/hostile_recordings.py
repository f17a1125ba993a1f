"""Recordings as an attacker, a bad disk or another program would leave them.

`kept(folder)` unpacks a small recording of a real run. `TABLES` are named damages of it: functions
that are given its folder. `IN_PLACE` are other things in place of a file.
"""

import gzip
import json
import os
import shutil
import sqlite3
from contextlib import closing
from pathlib import Path

from tests.support.made_up import made_up

KEPT = Path(__file__).parent / "data" / "recordings"
DATABASE = "recording.sqlite"
GIGABYTE = 1 << 30


def kept(folder, name="digits"):
    """Unpack a kept recording into a folder that is not there yet."""
    shutil.copytree(KEPT / name, folder)
    for packed in folder.glob("*.gz"):
        packed.with_suffix("").write_bytes(gzip.decompress(packed.read_bytes()))
        packed.unlink()
    return folder


# Tables -------------------------------------------------------------------------------------------


def sql(*statements):
    """Return a damage of the database by statements of SQL."""

    def damage(folder):
        with closing(sqlite3.connect(folder / DATABASE, isolation_level=None)) as database:
            for each in statements:
                database.execute(each)

    return damage


def fact(key, value):
    """Return a damage: a fact with this JSON, given as text."""
    return sql(
        f"DELETE FROM facts WHERE key = '{key}'",
        f"INSERT INTO facts VALUES ('{key}', CAST(x'{value.encode().hex()}' AS TEXT))",
    )


def schema_of(database):
    """Return the columns of every table, with their types."""
    tables = database.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall()
    return {
        name: [row[1:3] for row in database.execute(f'PRAGMA table_info("{name}")')]
        for (name,) in tables
    }


def _whole_type(value, kinds):
    """Return a damage: this SQL in place of every value in the columns of some types."""

    def damage(folder):
        with closing(sqlite3.connect(folder / DATABASE, isolation_level=None)) as database:
            for table, columns in schema_of(database).items():
                if table != "facts":
                    for name, kind in columns:
                        if kind in kinds:
                            database.execute(f'UPDATE "{table}" SET "{name}" = {value}')

    return damage


def _bytes(change):
    """Return a damage of the bytes of the database."""

    def damage(folder):
        path = folder / DATABASE
        content = bytearray(path.read_bytes())
        path.write_bytes(bytes(change(content)))

    return damage


DEEP = "[" * 100_000 + "]" * 100_000
_WIDE = ", ".join(f"c{number} INTEGER" for number in range(2000))
_MADE = made_up("damages")
TABLES = {name: sql(*statements) for name, statements in _MADE["statements"].items()}
TABLES |= {name: _whole_type(*given) for name, given in _MADE["columns"].items()}
TABLES |= {
    name: fact("x_layer_tables", json.dumps([table])) for name, table in _MADE["declared"].items()
}
TABLES |= {
    "2,000 columns": sql("DROP TABLE notes", f"CREATE TABLE notes ({_WIDE})"),
    "cut in the middle": _bytes(lambda content: content[: len(content) // 2]),
    "text in place of it": _bytes(lambda content: b"no database" * 1000),
    "the fact plan_1 as deep": fact("plan_1", DEEP),
    "the fact nsys as a list": fact("nsys", "[1, 2, 3]"),
}


# Files --------------------------------------------------------------------------------------------


def _instead(make):
    """Return a function that makes another thing in place of a file."""

    def put(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.unlink(missing_ok=True)
        make(path)

    return put


def _sparse(path):
    with path.open("wb") as file:
        file.truncate(GIGABYTE)


IN_PLACE = {
    "a pipe": _instead(os.mkfifo),
    "a device": _instead(lambda path: path.symlink_to("/dev/zero")),
    "a link outside": _instead(lambda path: path.symlink_to("/etc/passwd")),
    "a link to nothing": _instead(lambda path: path.symlink_to("nowhere")),
    "a link to itself": _instead(lambda path: path.symlink_to(path.name)),
    "a folder": _instead(Path.mkdir),
    "a sparse gigabyte": _instead(_sparse),
}
