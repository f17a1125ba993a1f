"""Recordings as an attacker, a bad disk or another program would leave them.

`kept(folder)` unpacks a small recording of a real run. `DAMAGES` are named damages of it: functions
that are given its folder. `random_damage(folder, chance)` draws one from a seed: a value of a wrong
type or size in any column, fact or field of any file, or damaged bytes.
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
    statements = "DELETE FROM facts WHERE key = ?", "INSERT INTO facts VALUES (?, ?)"

    def damage(folder):
        with closing(sqlite3.connect(folder / DATABASE, isolation_level=None)) as database:
            database.execute(statements[0], (key,))
            database.execute(statements[1], (key, value))

    return damage


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


def _one_table(table, value):
    """Return a damage: this SQL in place of every value of one table."""

    def damage(folder):
        with closing(sqlite3.connect(folder / DATABASE, isolation_level=None)) as database:
            names = ", ".join(f'"{name}" = {value}' for name, _ in schema_of(database)[table])
            database.execute(f'UPDATE "{table}" SET {names}')

    return damage


def _bytes(change):
    """Return a damage of the bytes of the database."""

    def damage(folder):
        path = folder / DATABASE
        content = bytearray(path.read_bytes())
        path.write_bytes(bytes(change(content)))

    return damage


def _put(at, replacement):
    def change(content):
        content[at : at + len(replacement)] = replacement
        return content

    return change


def _encoded(encoding):
    """Return a damage: the whole database written anew in another encoding of text."""

    def damage(folder):
        path = folder / DATABASE
        with closing(sqlite3.connect(path)) as old:
            lines = list(old.iterdump())
        path.unlink()
        with closing(sqlite3.connect(path)) as new:
            new.execute(f"PRAGMA encoding = '{encoding}'")
            new.executescript("\n".join(lines))

    return damage


def _shared_pages(folder):
    """Have every page of a large table be the same one: a small file with endless rows."""
    path = folder / DATABASE
    with closing(sqlite3.connect(path, isolation_level=None)) as database:
        for _ in range(5):
            database.execute("INSERT INTO calls SELECT * FROM calls")
        (root,) = database.execute(
            "SELECT rootpage FROM sqlite_master WHERE name = 'calls'"
        ).fetchone()
        (size,) = database.execute("PRAGMA page_size").fetchone()
        database.execute("PRAGMA journal_mode = DELETE")
    content = bytearray(path.read_bytes())
    at = (root - 1) * size
    assert content[at] == 5, "an interior page"
    cells = int.from_bytes(content[at + 3 : at + 5], "big")
    places = [
        at + int.from_bytes(content[at + 12 + 2 * n : at + 14 + 2 * n], "big") for n in range(cells)
    ]
    children = [int.from_bytes(content[place : place + 4], "big") for place in places]
    for child in children:
        # One level more: each child is as wide as the root, and all lead to the first leaf.
        begin = (child - 1) * size
        content[begin : begin + size] = content[at : at + size]
    for page in (root, *children):
        begin = (page - 1) * size
        leaf = int.from_bytes(content[(children[-1] - 1) * size :][8:12], "big")
        for place in places:
            target = children[0] if page == root else leaf
            content[begin + place - at : begin + place - at + 4] = target.to_bytes(4, "big")
    path.write_bytes(bytes(content))


def _many_rows(table, count):
    fill = f'INSERT INTO "{table}" SELECT t.* FROM "{table}" t'
    return sql(*[f"{fill} LIMIT {count}"] * 12)


def _instead_of(table, select):
    """Return a damage: a view in place of a table."""
    return sql(f'DROP TABLE "{table}"', f'CREATE VIEW "{table}" AS {select}')


_COUNTING = "WITH RECURSIVE n(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM n)"
_BLOB = "zeroblob(900000000)"
_STEPS = "step, plan, phase, slice, started_s, wall_s, cpu_s, device_s, wait_s, batch_size, shape"
_DEEP = "[" * 100_000 + "]" * 100_000
_WIDE_INT = "9" * 4000
_LONGER_INT = "9" * 6000

TABLES = {
    "a view that never ends": _instead_of("steps", f"{_COUNTING} SELECT x AS step FROM n"),
    "a view that makes blobs": _instead_of(
        "notes", f"SELECT 'a' AS slug, NULL AS layer, {_BLOB} AS text FROM steps"
    ),
    "a view of random texts": _instead_of(
        "notes", "SELECT 'a' AS slug, hex(randomblob(100000000)) AS text FROM steps, steps AS b"
    ),
    "facts as a view": sql(
        "ALTER TABLE facts RENAME TO old", "CREATE VIEW facts AS SELECT key, value FROM old"
    ),
    "an endless view of facts": _instead_of(
        "facts", f"{_COUNTING} SELECT 'k' || x AS key, '1' AS value FROM n"
    ),
    "a view with another name's case": sql(
        "ALTER TABLE notes RENAME TO old", f"CREATE VIEW NOTES AS {_COUNTING} SELECT x FROM n"
    ),
    "a generated column of blobs": sql(
        f"ALTER TABLE steps ADD COLUMN more BLOB GENERATED ALWAYS AS ({_BLOB}) VIRTUAL"
    ),
    "a generated column in place of one": sql(
        "ALTER TABLE steps DROP COLUMN flags",
        "ALTER TABLE steps ADD COLUMN flags TEXT AS (hex(zeroblob(100000000))) VIRTUAL",
    ),
    "columns that differ in case": sql("ALTER TABLE steps RENAME COLUMN wall_s TO WALL_S"),
    "a table in capitals": sql("ALTER TABLE steps RENAME TO x", "ALTER TABLE x RENAME TO STEPS"),
    "a trigger": sql(
        "CREATE TRIGGER bomb AFTER INSERT ON facts BEGIN "
        "DELETE FROM steps; INSERT INTO notes SELECT a.step, b.step, c.step "
        "FROM modules AS m, steps AS a, steps AS b, steps AS c; END"
    ),
    "a virtual table": sql(
        "DROP TABLE notes", "CREATE VIRTUAL TABLE notes USING fts4(slug, layer, text)"
    ),
    "without rowid": sql(
        "DROP TABLE notes", "CREATE TABLE notes (slug TEXT PRIMARY KEY, text TEXT) WITHOUT ROWID"
    ),
    "a check that makes blobs": sql(
        "DROP TABLE facts",
        f"CREATE TABLE facts (key TEXT, value TEXT CHECK (length({_BLOB}) > 1))",
        "PRAGMA ignore_check_constraints = 1",
        "INSERT INTO facts VALUES ('schema_version', '1')",
    ),
    "an index over an expression": sql(
        "CREATE INDEX slow ON facts (length(hex(zeroblob(1000000))) || key)"
    ),
    "no table of facts": sql("DROP TABLE facts"),
    "no table but facts": lambda folder: sql(
        *(f'DROP TABLE "{name}"' for name in _names(folder) if name != "facts")
    )(folder),
    "no slices": sql("DROP TABLE slices"),
    "no rows": lambda folder: sql(
        *(f'DELETE FROM "{name}"' for name in _names(folder) if name != "facts")
    )(folder),
    "a table more": sql("CREATE TABLE more (a, b)", "INSERT INTO more VALUES (1, x'00')"),
    "columns more": sql("ALTER TABLE steps ADD COLUMN more", "UPDATE steps SET more = x'00'"),
    "columns fewer": sql("DROP TABLE steps", "CREATE TABLE steps (step INTEGER)"),
    "a column twice": sql(
        "DROP TABLE notes", 'CREATE TABLE notes ("slug" TEXT, "slug " TEXT, "Text" TEXT)'
    ),
    "2,000 columns": sql(
        "DROP TABLE notes",
        f"CREATE TABLE notes ({', '.join(f'c{n} INTEGER' for n in range(2000))})",
    ),
    "10,000 tables": sql(
        "BEGIN", *(f"CREATE TABLE t{number} (a)" for number in range(10_000)), "COMMIT"
    ),
    "a text of 200 MB": sql("INSERT INTO notes VALUES ('a', NULL, hex(zeroblob(100000000)))"),
    "a blob of 200 MB": sql("INSERT INTO notes VALUES ('a', NULL, zeroblob(200000000))"),
    "5 million notes": sql(
        f"INSERT INTO notes SELECT * FROM ({_COUNTING} SELECT 'a', NULL, 't' FROM n LIMIT 5000000)"
    ),
    "a million steps": sql(
        f"INSERT INTO steps ({_STEPS}) SELECT x + 500, 1, 'train', 2, x, 0.001, 0.1, NULL, 0, 1, "
        f"'' FROM ({_COUNTING} SELECT x FROM n LIMIT 1000000)"
    ),
    "text that is no UTF-8": sql("INSERT INTO notes VALUES ('a', NULL, CAST(x'ff41' AS TEXT))"),
    "text with a zero": sql("INSERT INTO notes VALUES ('a', NULL, 'b' || char(0) || 'c')"),
    "surrogates in text": sql("INSERT INTO notes VALUES ('a', 'b', CAST(x'eda080' AS TEXT))"),
    "UTF-16": _encoded("UTF-16le"),
    "UTF-16, the other order": _encoded("UTF-16be"),
    "a write-ahead header": _bytes(_put(18, b"\2\2")),
    "a file format of the future": _bytes(_put(18, b"\7\7")),
    "a huge page count": _bytes(_put(28, b"\x7f\xff\xff\xff")),
    "an odd page size": _bytes(_put(16, b"\x12\x34")),
    "a page size of 65536": _bytes(_put(16, b"\0\1")),
    "a schema of the future": _bytes(_put(44, b"\0\0\0\x09")),
    "another encoding in the header": _bytes(_put(56, b"\0\0\0\2")),
    "an encoding that is not": _bytes(_put(56, b"\0\0\0\x09")),
    "a freed schema page": _bytes(_put(100, b"\0" * 200)),
    "every page shared": _shared_pages,
    "cut in the middle": _bytes(lambda content: content[: len(content) // 2]),
    "cut after the header": _bytes(lambda content: content[:100]),
    "empty": _bytes(lambda content: b""),
    "zeros": _bytes(lambda content: bytes(len(content))),
    "text in place of it": _bytes(lambda content: b"no database" * 1000),
    "pages of ones": _bytes(lambda content: content[:8192] + b"\xff" * (len(content) - 8192)),
    "a schema that is no SQL": sql(
        "PRAGMA writable_schema = 1",
        "UPDATE sqlite_master SET sql = 'CREATE TABLE notes (a' WHERE name = 'notes'",
    ),
    "a schema of another table": sql(
        "PRAGMA writable_schema = 1",
        "UPDATE sqlite_master SET rootpage = 1 WHERE name = 'notes'",
    ),
    "a schema of no page": sql(
        "PRAGMA writable_schema = 1",
        "UPDATE sqlite_master SET rootpage = 123456 WHERE name = 'notes'",
    ),
    "a table that is a call": sql(
        "PRAGMA writable_schema = 1",
        "UPDATE sqlite_master SET sql = 'CREATE TABLE notes (slug TEXT, layer TEXT, text TEXT "
        "DEFAULT (load_extension(''/tmp/x.so'')))' WHERE name = 'notes'",
    ),
}
for _value, _words in {
    "'text'": "text", "x'00ff'": "blobs", "9e999": "infinity", "-9e999": "less than all",
    "NULL": "null", "-9223372036854775808": "the lowest number", "9223372036854775807": "the most",
    "1e308": "huge floats", "-1": "negative", "''": "empty text", "0": "zero", "0.5": "halves",
    "'{\"a\": 1}'": "an object", "'[[1, 2], [3'": "a cut list", "char(27) || ']0;x'": "escapes",
}.items():  # fmt: skip
    for _kinds in (("INTEGER",), ("REAL",), ("TEXT", "JSON")):
        TABLES[f"{_words} in columns {_kinds[0]}"] = _whole_type(_value, _kinds)
for _table in (
    "slices", "steps", "modules", "functions", "calls", "memory", "watch_frames", "watch_samples",
    "layers", "artifacts", "notes", "module_times", "operators", "flop_counts", "lines", "launches",
):  # fmt: skip
    for _value in ("NULL", "'x'", "x'00'", "9e999", "-5", "9223372036854775807"):
        TABLES[f"{_value} throughout {_table}"] = _one_table(_table, _value)
for _path in (
    "../../../etc/passwd", "/etc/passwd", "a/../../b", "", ".", "..", "javascript:alert(1)",
    "//host/share", "a\0b", "x" * 5000, "~/x",
):  # fmt: skip
    TABLES[f"an artifact at {_path[:20]!r}"] = sql(
        f"UPDATE artifacts SET path = CAST(x'{_path.encode().hex()}' AS TEXT)"
    )

_FACT_KEYS = (
    "schema_version", "own_files", "synchronised", "plan_1", "cprofile_cost", "setup_1",
    "environment", "processes_made", "compilations_reason", "counts_by_phase",
    "steps_only_counted", "thread_readings", "recording_ended", "torch_layer_tables", "bench",
    "notebook_cells", "nsys", "uncaught", "remedy", "finishing", "origin_clock_s", "arming",
    "begin_at", "stopped_by", "cells", "step_parts",
)  # fmt: skip
_JSON = {
    "a number": "3", "a text": '"x"', "a list": "[1, 2, 3]", "an object": '{"a": 1}',
    "null": "null", "nan": "NaN", "infinity": "-Infinity", "deep": _DEEP, "long": _WIDE_INT,
    "longer": _LONGER_INT, "1e999": "1e999", "a surrogate": '"\\ud800"', "no JSON": "{",
    "nothing": "",
}  # fmt: skip
for _key in _FACT_KEYS:
    for _words, _text in _JSON.items():
        TABLES[f"the fact {_key} as {_words}"] = fact(_key, _text)
TABLES |= {
    "a fact without a value": sql("UPDATE facts SET value = NULL WHERE key = 'plan_1'"),
    "a fact that is a blob": sql("UPDATE facts SET value = x'7b7d' WHERE key = 'plan_1'"),
    "a fact without a key": sql("UPDATE facts SET key = NULL WHERE key = 'plan_1'"),
    "a fact twice": sql("INSERT INTO facts SELECT * FROM facts"),
    "a layer's table of texts": fact("x_layer_tables", '[{"name": "steps", "columns": "abc"}]'),
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


def _names(folder):
    with closing(sqlite3.connect(folder / DATABASE)) as database:
        return list(schema_of(database))


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


def _unreadable(path):
    path.chmod(0)


def _content(text):
    def write(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(text.encode("utf-8", "surrogatepass"))

    return write


_PLACES = (
    DATABASE, REPORT, "report.html", "logs/run.json", "logs/options.json", "logs/peaks.json",
    "logs/progress.jsonl", f"{DATABASE}-wal", f"{DATABASE}-journal", f"{DATABASE}-shm",
    "torch/trace.json", "torch/trace.json.gz",
)  # fmt: skip
_IN_PLACE = {
    "a pipe": _fifo,
    "a device": partial(_link, "/dev/zero"),
    "a device without content": partial(_link, "/dev/null"),
    "a link outside": partial(_link, "/etc/passwd"),
    "a link to nothing": partial(_link, "nowhere"),
    "a link to itself": lambda path: _link(path.name, path),
    "a folder": _folder,
    "a sparse gigabyte": _sparse,
}
FILES = {
    f"{words} in place of {place}": (lambda folder, put=put, place=place: put(folder / place))
    for place in _PLACES
    for words, put in _IN_PLACE.items()
} | {
    "an unreadable database": lambda folder: _unreadable(folder / DATABASE),
    "an unreadable report": lambda folder: _unreadable(folder / REPORT),
    "logs that lead outside": lambda folder: (
        shutil.rmtree(folder / "logs"), _link("/etc", folder / "logs")
    ),
    "a layer's folder that leads outside": lambda folder: _link("/etc", folder / "torch"),
    "logs that are a file": lambda folder: (
        shutil.rmtree(folder / "logs"), (folder / "logs").write_text("x")
    ),
}  # fmt: skip
_RUN_PARTS = ("script", "argv", "run", "environment", "in_process", "begun_clock_s")


def _written(place, text):
    return lambda folder: _content(text)(folder / place)


for _words, _text in _JSON.items():
    for _place in ("logs/run.json", "logs/peaks.json", "logs/options.json"):
        FILES[f"{_place} as {_words}"] = _written(_place, _text)
    for _part in _RUN_PARTS:
        FILES[f"{_part} of the run as {_words}"] = _written(
            "logs/run.json", f'{{"{_part}": {_text}}}'
        )

# The report ---------------------------------------------------------------------------------------


def _paths(value, path=(), most=3):
    """Yield the places in a report: of lists the first, a middle and the last entry."""
    if path:
        yield path
    if len(path) < most + 2 and isinstance(value, dict):
        for key, each in value.items():
            yield from _paths(each, (*path, key), most)
    elif isinstance(value, list) and value:
        yield from _paths(value[0], (*path, 0), most)


def report_with(path, text):
    """Return a damage: JSON, given as text, at a place of the report."""

    def damage(folder):
        report = json.loads((folder / REPORT).read_text())
        place = report
        for key in path[:-1]:
            place = place[key]
        place[path[-1]] = "<HERE>"
        (folder / REPORT).write_text(json.dumps(report).replace('"<HERE>"', text))

    return damage


def _report_text(change):
    def damage(folder):
        text = (folder / REPORT).read_text()
        (folder / REPORT).write_bytes(change(text))

    return damage


def _without(*path):
    def damage(folder):
        report = json.loads((folder / REPORT).read_text())
        place = report
        for key in path[:-1]:
            place = place[key]
        del place[path[-1]]
        (folder / REPORT).write_text(json.dumps(report))

    return damage


_KEPT_REPORT = json.loads(gzip.decompress((KEPT / "digits" / "report.json.gz").read_bytes()))
REPORTS = {
    "a byte order mark": _report_text(lambda text: b"\xef\xbb\xbf" + text.encode()),
    "UTF-16 in the report": _report_text(lambda text: text.encode("utf-16")),
    "a cut report": _report_text(lambda text: text.encode()[: len(text) // 2]),
    "a report that is a list": _report_text(lambda text: b"[]"),
    "an empty object": _report_text(lambda text: b"{}"),
    "an empty report": _report_text(lambda text: b""),
    "a deep report": _report_text(lambda text: _DEEP.encode()),
    "deep objects": _report_text(lambda text: b'{"a":' * 100_000 + b"1" + b"}" * 100_000),
    "keys twice": _report_text(
        lambda text: (text.rstrip().rstrip("}") + ', "tables": [], "benchmark": 3}').encode()
    ),
    "bytes that are no UTF-8": _report_text(lambda text: text.encode() + b"\xff"),
    "a second value": _report_text(lambda text: text.encode() + b"{}"),
}
for _place in _paths(_KEPT_REPORT):
    if len(_place) <= 2:
        REPORTS[f"without {'.'.join(map(str, _place))}"] = _without(*_place)
        _chosen = _JSON
    else:
        # Lower down the kinds of values take turns.
        _turn = sum(map(ord, "".join(map(str, _place))))
        _chosen = {word: _JSON[word] for word in (list(_JSON)[_turn % 12], "an object")}
    for _words, _text in _chosen.items():
        if _words not in ("no JSON", "nothing"):
            REPORTS[f"{'.'.join(map(str, _place))} as {_words}"] = report_with(_place, _text)

DAMAGES = {**TABLES, **FILES, **REPORTS}

# From a seed --------------------------------------------------------------------------------------

_VALUES = (
    None, 0, -1, 1, 7, 1 << 31, 1 << 53, (1 << 63) - 1, -(1 << 63), 0.5, -1.0, 1e30, 9e999, "",
    "x", "eval", "[]", "{", "\x1b", "~", "torch", "clean", "a/b.py", b"\0\xff", "\udcff", "9" * 400,
)  # fmt: skip
_TEXTS = (*_JSON.values(), '"eval"', "[]", "{}", "-1", "0.5", "true", '"clean"', "1e30", "[[]]")


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
    name = chance.choice((REPORT, REPORT, REPORT, "logs/run.json", "logs/peaks.json"))
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
