"""Read damaged recordings with every command that reads them, each in a process with limits.

    python benchmarks/hostile_recordings.py                 all named damages
    python benchmarks/hostile_recordings.py --only tables   those of tables, files or reports
    python benchmarks/hostile_recordings.py --minutes 10    damages drawn from seeds
    python benchmarks/hostile_recordings.py --seed 77       the one of a seed again

A command may end with 0, or with 2 and one line. All else is printed: a traceback, an end by a
signal, more than 20 s of CPU time or 60 s in all, more than 1 GB of memory. The exit code is 1
where something was found.
"""

from __future__ import annotations

import argparse
import importlib
import io
import json
import os
import random
import resource
import shutil
import signal
import sqlite3
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from profstack import commands  # of this checkout
from tests.support import hostile_recordings as hostile
from tests.support.nsys_files import PID, NsysFile, thread_of

MOST_MB, MOST_S, ADDRESSES = 1024, 20, 3 << 30
# Imported once, before processes are forked.
_MODULES = (
    "commands.report commands.show commands.compare commands.history commands.view "
    "commands.import_ analysis.build findings.judge storage.reader report.html report.terminal "
    "report.export compare.comparison compare.history report.compare_page report.terminal_compare "
    "report.terminal_history report.compare_markdown report.history_page readers.nsys.importing "
    "launch.background_peaks"
)
# HONEST, EXPORT and DAMAGED are put in place of paths; what follows a minus is removed first.
_COMMANDS = {
    "tables": (
        "report DAMAGED", "show DAMAGED -report.json", "import EXPORT --into DAMAGED",
    ),
    "files": (
        "report DAMAGED", "show DAMAGED", "compare HONEST DAMAGED", "history DAMAGED",
        "view --no-browser DAMAGED", "import EXPORT --into DAMAGED",
    ),
    "reports": (
        "show DAMAGED", "show DAMAGED --findings", "show DAMAGED --table modules --format csv",
        "show DAMAGED --table steps --sort wall_s", "show DAMAGED --format json",
        "compare HONEST DAMAGED", "compare DAMAGED HONEST --format markdown", "history DAMAGED",
        "view --no-browser DAMAGED -report.html",
    ),
}  # fmt: skip
Damage = Callable[[Path], object]
sql, fact = hostile.sql, hostile.fact
DATABASE, REPORT = hostile.DATABASE, "report.json"
_COUNTING = "WITH RECURSIVE n(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM n)"
_STEPS = "step, plan, phase, slice, started_s, wall_s, cpu_s, device_s, wait_s, batch_size, shape"


def _every_table(statement: str) -> Damage:
    """Return a damage: a statement for every table but that of facts."""

    def damage(folder: Path) -> None:
        with closing(sqlite3.connect(folder / DATABASE)) as database:
            names = [name for name in hostile.schema_of(database) if name != "facts"]
        sql(*(f'{statement} "{name}"' for name in names))(folder)

    return damage


# Beside those that the tests refuse one by one.
TABLES: dict[str, Damage] = hostile.TABLES | {
    "a view of random texts": sql(
        "DROP TABLE notes",
        "CREATE VIEW notes AS SELECT 'a' AS slug, hex(randomblob(100000000)) AS text "
        "FROM steps, steps AS b",
    ),
    "an endless view of facts": sql(
        "DROP TABLE facts",
        f"CREATE VIEW facts AS {_COUNTING} SELECT 'k' || x AS key, '1' AS value FROM n",
    ),
    "no table but facts": _every_table("DROP TABLE"),
    "no slices": sql("DROP TABLE slices"),
    "no rows": _every_table("DELETE FROM"),
    "a table more": sql("CREATE TABLE more (a, b)", "INSERT INTO more VALUES (1, x'00')"),
    "columns more": sql("ALTER TABLE steps ADD COLUMN more", "UPDATE steps SET more = x'00'"),
    "columns fewer": sql("DROP TABLE steps", "CREATE TABLE steps (step INTEGER)"),
    "a column twice": sql(
        "DROP TABLE notes", 'CREATE TABLE notes ("slug" TEXT, "slug " TEXT, "Text" TEXT)'
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
    "text with a zero": sql("INSERT INTO notes VALUES ('a', NULL, 'b' || char(0) || 'c')"),
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
    "a fact without a key": sql("UPDATE facts SET key = NULL WHERE key = 'plan_1'"),
    "a fact twice": sql("INSERT INTO facts SELECT * FROM facts"),
    "a layer's table of texts": fact("x_layer_tables", '[{"name": "steps", "columns": "abc"}]'),
}
for _path in (
    "../../../etc/passwd", "/etc/passwd", "a/../../b", "", ".", "..", "javascript:alert(1)",
    "//host/share", "a\0b", "x" * 5000, "~/x",
):  # fmt: skip
    TABLES[f"an artifact at {_path[:20]!r}"] = sql(
        f"UPDATE artifacts SET path = CAST(x'{_path.encode().hex()}' AS TEXT)"
    )

_PLACES = (
    "recording.sqlite", "report.json", "report.html", "logs/run.json", "logs/options.json",
    "logs/peaks.json", "logs/progress.jsonl", "recording.sqlite-wal", "recording.sqlite-journal",
    "recording.sqlite-shm", "torch/trace.json", "torch/trace.json.gz",
)  # fmt: skip


def _in_place(put: Damage, *places: str) -> Damage:
    """Return a damage: something else in place of files of the recording."""
    return lambda folder: [put(folder / place) for place in places]


def _instead_of_logs(put: Damage) -> Damage:
    """Return a damage: something else in place of the folder of logs."""

    def damage(folder: Path) -> None:
        shutil.rmtree(folder / "logs")
        put(folder / "logs")

    return damage


FILES = {
    f"{words} in place of {place}": _in_place(put, place)
    for place in _PLACES
    for words, put in hostile.IN_PLACE.items()
} | {
    "an unreadable database": _in_place(lambda path: path.chmod(0), "recording.sqlite"),
    "an unreadable report": _in_place(lambda path: path.chmod(0), "report.json"),
    "a layer's folder that leads outside": _in_place(lambda path: path.symlink_to("/etc"), "torch"),
    "logs that lead outside": _instead_of_logs(lambda path: path.symlink_to("/etc")),
    "logs that are a file": _instead_of_logs(lambda path: path.write_text("x")),
}


def _report_text(change: Callable[[bytes], bytes]) -> Damage:
    """Return a damage of the report's bytes."""
    return _in_place(lambda path: path.write_bytes(change(path.read_bytes())), "report.json")


REPORTS = {
    "a byte order mark": _report_text(lambda text: b"\xef\xbb\xbf" + text),
    "UTF-16 in the report": _report_text(lambda text: text.decode().encode("utf-16")),
    "a cut report": _report_text(lambda text: text[: len(text) // 2]),
    "a report that is a list": _report_text(lambda text: b"[]"),
    "an empty object": _report_text(lambda text: b"{}"),
    "an empty report": _report_text(lambda text: b""),
    "a deep report": _report_text(lambda text: b"[" * 100_000 + b"]" * 100_000),
    "deep objects": _report_text(lambda text: b'{"a":' * 100_000 + b"1" + b"}" * 100_000),
    "keys twice": _report_text(
        lambda text: text.rstrip().rstrip(b"}") + b', "tables": [], "benchmark": 3}'
    ),
    "bytes that are no UTF-8": _report_text(lambda text: text + b"\xff"),
    "a second value": _report_text(lambda text: text + b"{}"),
}


# Damages drawn from a seed: a value of a wrong type or size in any column, fact or field of any
# file, or damaged bytes.

_VALUES: tuple[object, ...] = (
    None, 0, -1, 1, 7, 1 << 31, 1 << 53, (1 << 63) - 1, -(1 << 63), 0.5, -1.0, 1e30, 1e308, 9e999,
    -9e999, "", "x", "eval", "[]", "{", '{"a": 1}', "\x1b", "~", "torch", "clean", "a/b.py",
    b"\0\xff", "\udcff", "9" * 400,
)  # fmt: skip
_TEXTS = (
    "3", '"x"', "[1, 2, 3]", '{"a": 1}', "null", "NaN", "-Infinity", hostile.DEEP, "9" * 4000,
    "9" * 6000, "1e999", '"\\ud800"', "{", "", '"eval"', "[]", "{}", "-1", "0.5", "true",
    '"clean"', "1e30", "[[]]",
)  # fmt: skip


def random_damage(folder: Path, chance: random.Random) -> list[str]:
    """Damage a recording in one to three ways drawn from `chance`; return them in words."""
    kinds = (_any_cells, _any_fact, _any_field, _any_field, _any_bytes)
    return [chance.choice(kinds)(folder, chance) for _ in range(chance.choice((1, 1, 2, 3)))]


def _any_cells(folder: Path, chance: random.Random) -> str:
    """Put a value into a column: into all rows, or into some."""
    value: Any = chance.choice(_VALUES)
    if isinstance(value, str):
        value = value.encode("utf-8", "surrogatepass")
    try:
        with closing(sqlite3.connect(folder / DATABASE, isolation_level=None)) as database:
            tables = hostile.schema_of(database).items()
            table, columns = chance.choice([each for each in tables if each[1]])
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


def _any_fact(folder: Path, chance: random.Random) -> str:
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


def _any_field(folder: Path, chance: random.Random) -> str:
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


def _changed(text: str, chance: random.Random) -> tuple[str, str]:
    """Return JSON with one value or key changed, and what was changed."""
    root = {"": json.loads(text)}
    place: Any = root
    key: Any = ""
    path: list[str] = []
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


def _any_bytes(folder: Path, chance: random.Random) -> str:
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


class Bench:
    """Runs commands on damaged copies of a recording."""

    def __init__(self, folder: Path) -> None:
        self.honest = hostile.kept(folder / "honest")
        self.damaged, self._export = folder / "damaged", folder / "a.sqlite"
        self._out = folder / "out"
        with NsysFile(self._export) as file:
            for number in range(2):
                begin, thread = 1000 * (number + 1), thread_of(PID, PID)
                file.step(number, begin, begin + 900, thread=thread)
                file.range(begin + 100, begin + 500, "Net", thread=thread)
        self.ends: Counter[str] = Counter()

    def judge(self, words: str, command: str, damage: Damage) -> None:
        """Run a command on a damaged copy; print what it should not have done."""
        shutil.rmtree(self.damaged, ignore_errors=True)
        hostile.kept(self.damaged)
        said = damage(self.damaged)
        begun = time.perf_counter()
        paths = {"HONEST": self.honest, "EXPORT": self._export, "DAMAGED": self.damaged}
        arguments = [str(paths.get(word, word)) for word in command.split()]
        child = os.fork()
        if not child:
            self._run(arguments)
        _, status, used = os.wait4(child, 0)
        text = self._out.read_text("utf-8", "replace")
        end = _end(os.waitstatus_to_exitcode(status), used.ru_maxrss / 1024, text)
        self.ends[end.split(":")[0]] += 1
        if end not in ("0", "2"):
            shown = f" ({'; '.join(map(str, said))})" if isinstance(said, list) else ""
            took = time.perf_counter() - begun
            print(f"{words}{shown} | {command} | {end} | {took:.1f} s", flush=True)

    def _run(self, arguments: list[str]) -> None:
        """Run a command in this process and end it."""
        for name in [one[1:] for one in arguments if one in ("-report.json", "-report.html")]:
            path = self.damaged / name
            if path.is_file() or path.is_symlink():
                path.unlink()
        arguments = [one for one in arguments if not one.startswith("-report.")]
        resource.setrlimit(resource.RLIMIT_AS, (ADDRESSES, ADDRESSES))
        resource.setrlimit(resource.RLIMIT_CPU, (MOST_S, MOST_S))
        # What waits for a pipe takes no CPU time.
        signal.alarm(3 * MOST_S)
        out = os.open(self._out, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        for number in (1, 2):
            os.dup2(out, number)
        sys.stdout = io.TextIOWrapper(io.FileIO(1, "wb"), "utf-8", write_through=True)
        sys.stderr = io.TextIOWrapper(io.FileIO(2, "wb"), "utf-8", "replace", write_through=True)
        try:
            code = commands.main(arguments)
        except BaseException:
            traceback.print_exc()
            code = 99
        os._exit(code)


def _end(code: int, memory_mb: float, text: str) -> str:
    """Return the exit code as a text, or what a command should not have done."""
    lines = text.strip().splitlines()
    if code == 99 or "Traceback" in text:
        own = [line.strip() for line in lines if "profstack/" in line and "File" in line]
        return f"traceback: {own[-1] if own else ''} {lines[-1][:120]}"
    if code not in (0, 2):
        return f"ended with {code}: too long, or by a signal"
    if memory_mb > MOST_MB:
        return f"memory: {memory_mb:.0f} MB"
    if code == 2 and sum(line.startswith("profstack: ") for line in lines) != 1:
        return f"not one line: {lines}"
    return f"warning: {lines[-1]}" if "Warning" in text else str(code)


def _named(kinds: Sequence[str]) -> Iterator[tuple[str, str, Damage]]:
    """Yield words, command and damage of all named damages of some kinds."""
    damages = {"tables": TABLES, "files": FILES, "reports": REPORTS}
    for kind in kinds:
        for words, damage in damages[kind].items():
            for command in _COMMANDS[kind]:
                yield words, command, damage


def _drawn(seeds: Iterable[int]) -> Iterator[tuple[str, str, Damage]]:
    """Yield the same drawn from seeds."""
    every = sorted({each for kind in _COMMANDS.values() for each in kind})
    for seed in seeds:
        chance = random.Random(seed)
        command = chance.choice(every)
        yield f"seed {seed}", command, partial(random_damage, chance=chance)


def main() -> int:
    """Judge what the options say, and print how the commands ended."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", choices=tuple(_COMMANDS))
    parser.add_argument("--every", type=int, default=1, help="of named damages every N-th")
    parser.add_argument("--minutes", type=float)
    parser.add_argument("--seed", type=int)
    options = parser.parse_args()
    for name in _MODULES.split():
        importlib.import_module(f"profstack.{name}")
    cases = _named([options.only] if options.only else list(_COMMANDS))
    if options.seed is not None and options.minutes is None:
        cases = _drawn([options.seed])
    elif options.minutes is not None:
        first = options.seed or 0
        cases = _drawn(range(first, first + 1_000_000_000))
    end = time.monotonic() + 60 * (options.minutes or 1e6)
    with tempfile.TemporaryDirectory(prefix="profstack-hostile-") as name:
        os.environ["HOME"] = os.environ["XDG_CACHE_HOME"] = name
        bench = Bench(Path(name))
        for number, case in enumerate(cases):
            if time.monotonic() > end:
                break
            if number % options.every == 0:
                bench.judge(*case)
    print(f"{sum(bench.ends.values())} commands: {dict(bench.ends)}")
    return int(bool(bench.ends.keys() - {"0", "2"}))


if __name__ == "__main__":
    sys.exit(main())
