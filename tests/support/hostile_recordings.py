"""Recordings as an attacker, a bad disk or another program would leave them.

`kept(folder)` unpacks a small recording of a real run. `TABLES` are named damages of it: functions
that are given its folder. `IN_PLACE` are other things in place of a file. `random_damage(folder,
chance)` draws from a seed: a value of a wrong type or size in any column, fact or field of any
file, or damaged bytes.
"""

import gzip
import json
import os
import shutil
import sqlite3
from contextlib import closing
from functools import partial
from pathlib import Path

KEPT = Path(__file__).parent / "data" / "recordings"
DATABASE, REPORT = "recording.sqlite", "report.json"
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


_BLOB = "zeroblob(900000000)"
_DEEP = "[" * 100_000 + "]" * 100_000

TABLES = {
    "a view that never ends": sql(
        "DROP TABLE steps",
        "CREATE VIEW steps AS WITH RECURSIVE n(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM n) "
        "SELECT x AS step FROM n",
    ),
    "a generated column in place of one": sql(
        "ALTER TABLE steps DROP COLUMN flags",
        "ALTER TABLE steps ADD COLUMN flags TEXT AS (hex(zeroblob(100000000))) VIRTUAL",
    ),
    "a table in capitals": sql("ALTER TABLE steps RENAME TO x", "ALTER TABLE x RENAME TO STEPS"),
    "a trigger": sql(
        "CREATE TRIGGER bomb AFTER INSERT ON facts BEGIN "
        "DELETE FROM steps; INSERT INTO notes SELECT a.step, b.step, c.step "
        "FROM modules AS m, steps AS a, steps AS b, steps AS c; END"
    ),
    "a virtual table": sql(
        "DROP TABLE notes", "CREATE VIRTUAL TABLE notes USING fts4(slug, layer, text)"
    ),
    "a check that makes blobs": sql(
        "DROP TABLE facts",
        f"CREATE TABLE facts (key TEXT, value TEXT CHECK (length({_BLOB}) > 1))",
        "PRAGMA ignore_check_constraints = 1",
        "INSERT INTO facts VALUES ('schema_version', '1')",
    ),
    "no table of facts": sql("DROP TABLE facts"),
    "2,000 columns": sql(
        "DROP TABLE notes",
        f"CREATE TABLE notes ({', '.join(f'c{n} INTEGER' for n in range(2000))})",
    ),
    "text that is no UTF-8": sql("INSERT INTO notes VALUES ('a', NULL, CAST(x'ff41' AS TEXT))"),
    "cut in the middle": _bytes(lambda content: content[: len(content) // 2]),
    "text in place of it": _bytes(lambda content: b"no database" * 1000),
    "a table that is a call": sql(
        "PRAGMA writable_schema = 1",
        "UPDATE sqlite_master SET sql = 'CREATE TABLE notes (slug TEXT, layer TEXT, text TEXT "
        "DEFAULT (load_extension(''/tmp/x.so'')))' WHERE name = 'notes'",
    ),
    "blobs in columns TEXT": _whole_type("x'00ff'", ("TEXT", "JSON")),
    "text in columns INTEGER": _whole_type("'text'", ("INTEGER",)),
    "null in columns INTEGER": _whole_type("NULL", ("INTEGER",)),
    "the most in columns INTEGER": _whole_type("9223372036854775807", ("INTEGER",)),
    "infinity in columns REAL": _whole_type("9e999", ("REAL",)),
    "the fact plan_1 as deep": fact("plan_1", _DEEP),
    "the fact nsys as a list": fact("nsys", "[1, 2, 3]"),
    "a fact without a value": sql("UPDATE facts SET value = NULL WHERE key = 'plan_1'"),
    "a layer's table that is steps": fact(
        "x_layer_tables",
        json.dumps([{
            "layer": "x", "name": "steps", "title": "t", "text": "t", "order": None,
            "largest": [], "join": None,
            "columns": [{"name": "a\" FROM x; --", "type": "TEXT", "meaning": "m", "sense": None,
                         "heading": None}],
        }]),
    ),
    "a layer's table with SQL": fact(
        "x_layer_tables",
        json.dumps([{
            "layer": "x", "name": 'x_" UNION SELECT 1; --', "title": "t", "text": "t",
            "order": "nothing", "largest": ["a"], "join": "lines",
            "columns": [{"name": "a", "type": "BLOB", "meaning": "m", "sense": "none",
                         "heading": None}],
        }]),
    ),
}  # fmt: skip


# Files --------------------------------------------------------------------------------------------


def _fifo(path):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.unlink(missing_ok=True)
    os.mkfifo(path)


def _link(target, path):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.unlink(missing_ok=True)
    path.symlink_to(target)


def _folder(path):
    path.unlink(missing_ok=True)
    path.mkdir(parents=True)


def _sparse(path):
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("wb") as file:
        file.truncate(GIGABYTE)


IN_PLACE = {
    "a pipe": _fifo,
    "a device": partial(_link, "/dev/zero"),
    "a link outside": partial(_link, "/etc/passwd"),
    "a link to nothing": partial(_link, "nowhere"),
    "a link to itself": lambda path: _link(path.name, path),
    "a folder": _folder,
    "a sparse gigabyte": _sparse,
}

# From a seed --------------------------------------------------------------------------------------

_VALUES = (
    None, 0, -1, 1, 7, 1 << 31, 1 << 53, (1 << 63) - 1, -(1 << 63), 0.5, -1.0, 1e30, 1e308, 9e999,
    -9e999, "", "x", "eval", "[]", "{", '{"a": 1}', "\x1b", "~", "torch", "clean", "a/b.py",
    b"\0\xff", "\udcff", "9" * 400,
)  # fmt: skip
_TEXTS = (
    "3", '"x"', "[1, 2, 3]", '{"a": 1}', "null", "NaN", "-Infinity", _DEEP, "9" * 4000, "9" * 6000,
    "1e999", '"\\ud800"', "{", "", '"eval"', "[]", "{}", "-1", "0.5", "true", '"clean"', "1e30",
    "[[]]",
)  # fmt: skip


def random_damage(folder, chance):
    """Damage a recording in one to three ways drawn from `chance`; return them in words."""
    kinds = (_any_cells, _any_fact, _any_field, _any_field, _any_bytes)
    return [chance.choice(kinds)(folder, chance) for _ in range(chance.choice((1, 1, 2, 3)))]


def _any_cells(folder, chance):
    """Put a value into a column: into all rows, or into some."""
    value = chance.choice(_VALUES)
    if isinstance(value, str):
        value = value.encode("utf-8", "surrogatepass")
    try:
        with closing(sqlite3.connect(folder / DATABASE, isolation_level=None)) as database:
            tables = [(name, columns) for name, columns in schema_of(database).items() if columns]
            table, columns = chance.choice(tables)
            name, kind = chance.choice(columns)
            where = chance.choice(("1", "1", f"rowid % 7 = {chance.randrange(7)}", "rowid = 1"))
            put = "CAST(? AS TEXT)" if isinstance(value, bytes) and kind == "TEXT" else "?"
            statement = f'UPDATE "{table}" SET "{name}" = {put} WHERE {where}'
            if chance.random() < 0.1:
                statement, value = f'DELETE FROM "{table}" WHERE {where} AND ? IS NOT 3', 1
            database.execute(statement, (value,))
    except (sqlite3.Error, IndexError) as error:
        return f"nothing ({error})"
    return f"{statement} with {str(value)[:40]}"


def _any_fact(folder, chance):
    """Put JSON into a place of a fact."""
    try:
        with closing(sqlite3.connect(folder / DATABASE, isolation_level=None)) as database:
            facts = database.execute("SELECT key, value FROM facts").fetchall()
            key, value = chance.choice(facts)
            text, words = _changed(value, chance)
            database.execute("UPDATE facts SET value = ? WHERE key = ?", (text, key))
    except (sqlite3.Error, ValueError, IndexError, TypeError, RecursionError) as error:
        return f"nothing ({error})"
    return f"fact {key}: {words}"


def _any_field(folder, chance):
    """Put JSON into a place of a file."""
    logs = [f"logs/{name}.json" for name in ("run", "peaks", "options")]
    name = chance.choice((REPORT, REPORT, REPORT, *logs))
    path = folder / name
    try:
        text, words = _changed(path.read_text(), chance)
    except (ValueError, OSError, RecursionError) as error:
        return f"nothing ({error})"
    path.write_text(text)
    return f"{name}: {words}"


def _changed(text, chance):
    """Return JSON with one value or key changed, and what was changed."""
    root = {"": json.loads(text)}
    place, key, path = root, "", []
    while isinstance(place[key], (dict, list)) and place[key] and chance.random() < 0.9:
        place = place[key]
        key = chance.choice(list(place) if isinstance(place, dict) else range(len(place)))
        path.append(str(key))
    if path and isinstance(place, dict) and chance.random() < 0.2:
        del place[key]
        return json.dumps(root[""]), f"without {'.'.join(path)}"
    new = chance.choice(_TEXTS)
    place[key] = "<HERE>"
    return json.dumps(root[""]).replace('"<HERE>"', new), f"{'.'.join(path)} is {new[:40]}"


def _any_bytes(folder, chance):
    """Change some bytes of a file, or cut it."""
    path = folder / chance.choice((DATABASE, DATABASE, DATABASE, REPORT, "logs/run.json"))
    content = bytearray(path.read_bytes())
    if not content:
        return "nothing"
    if chance.random() < 0.2:
        path.write_bytes(content[: chance.randrange(len(content))])
        return f"{path.name} cut"
    # The header and the roots of tables are near the begin.
    most = chance.choice((100, 4096, len(content), len(content)))
    places = [chance.randrange(min(most, len(content))) for _ in range(chance.choice((1, 4, 64)))]
    for place in places:
        content[place] = chance.choice((0, 1, 0x7F, 0x80, 0xFF, chance.randrange(256)))
    path.write_bytes(content)
    return f"{path.name} at {places[:4]}"
