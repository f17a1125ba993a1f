"""The recording's folder on disk: one SQLite file with every table, and the tools' own files.

The measured process writes slice by slice, each in a transaction of its own, so that a killed
run keeps what it had. Readers get plain rows; `analysis` joins them.
"""

from __future__ import annotations

import datetime
import hashlib
import json
import os
import shutil
import sqlite3
import time
import uuid
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypedDict, cast

from profstack.errors import RecordingError, UsageError
from profstack.storage.schema.column import Records, Table
from profstack.storage.schema.layer_table import LayerTable, declared
from profstack.storage.schema.recorded import RECORDED, SCHEMA_VERSION, TREES
from profstack.storage.untrusted import (
    MOST_DATABASE,
    MOST_TEXT,
    Rows,
    check_file,
    check_within,
    encodable,
    open_database,
    parsed,
    read_json,
    typed,
)

if TYPE_CHECKING:
    from profstack.storage.schema.facts import RunFile

# Ending, after a layer's name, of the fact that holds the declarations of its own tables.
LAYER_TABLES = "_layer_tables"
DATABASE = "recording.sqlite"
PROGRESS = "logs/progress.jsonl"
PAGE_MARKER = "logs/page-written"
PEAKS = "logs/peaks.json"
RUN_FILE = "logs/run.json"
OPTIONS_FILE = "logs/options.json"
# What `profstack try` measured of the recorded script.
TRIALS_FILE = "try.json"
RUNS = "profstack-runs"


@contextmanager
def _writable(output: str) -> Iterator[None]:
    """Turn an error of the file system into a RecordingError."""
    try:
        yield
    except OSError as error:
        raise RecordingError(
            f"cannot write the recording ({error.strerror})",
            where=str(error.filename or output),
            next_step="choose a writable folder with --output",
        ) from None


def create_folder(name: str, output: str | None, *, force: bool) -> Path:
    """Make the folder of a new recording; never overwrites one unless `force` is given.

    Raises RecordingError when the folder cannot be made or `output` is already in use.
    """
    with _writable(output or RUNS):
        if output is None:
            return _numbered_folder(Path(RUNS), name)
        folder = Path(output)
        if folder.exists() and not folder.is_dir():
            raise RecordingError(
                "it is a file, and a recording is a folder",
                where=output,
                next_step="choose another with --output",
            )
        if folder.exists() and any(folder.iterdir()):
            if not force:
                raise RecordingError(
                    "the folder is in use",
                    where=output,
                    next_step="choose another with --output, or replace it with --force",
                )
            _remove_recording(folder)
        (folder / "logs").mkdir(parents=True, exist_ok=True)
        return folder


def create_rank_folder(
    name: str, output: str | None, rank: int, launch: str, *, force: bool
) -> Path:
    """Make the folder `rank-00007` of one rank inside the folder that its launch shares.

    `launch` is a text that all ranks of the launch have in common: the first rank makes the
    numbered folder and writes its name under that text, and the other ranks read it there.
    """
    with _writable(RUNS):
        base = Path(output) if output is not None else _launch_folder(name, launch)
        return create_folder(name, str(base / f"rank-{rank:05d}"), force=force)


# Processes of one script that record; more of them would fill the disk with the same.
MOST_PROCESSES = 64


def create_process_folder(root: Path) -> Path | None:
    """Make the folder `process-<n>`, from 1 on, of a process that the script in `root` started.

    None where there are as many of them as may record.
    """
    for number in range(1, MOST_PROCESSES + 1):
        folder = root / f"process-{number}"
        with suppress(FileExistsError):
            folder.mkdir()
            (folder / "logs").mkdir()
            return folder
    return None


def process_folders(root: Path) -> list[Path]:
    """Return the recordings of the processes that the script in `root` started, by number."""
    numbered = ((each, each.name.removeprefix("process-")) for each in root.glob("process-*"))
    found = [(int(text), each) for each, text in numbered if text.isdecimal() and len(text) < 9]
    return [each for _, each in sorted(found) if (each / DATABASE).is_file()]


def _launch_folder(name: str, launch: str) -> Path:
    runs = Path(RUNS)
    marker = hashlib.sha256(launch.encode()).hexdigest()[:16]
    claim = runs / f".launch-{marker}"
    runs.mkdir(parents=True, exist_ok=True)
    folder = _numbered_folder(runs, name)
    try:
        # Write the whole file, then link it: a rank that finds the claim can read it.
        own = claim.with_name(f"{claim.name}-{os.getpid()}")
        own.write_text(folder.name, encoding="utf-8")
        os.link(own, claim)
    except FileExistsError:
        shared = runs / claim.read_text(encoding="utf-8")
        if shared.is_dir():
            shutil.rmtree(folder)
            folder = shared
        else:
            os.replace(own, claim)
    own.unlink(missing_ok=True)
    return folder


def _numbered_folder(runs: Path, name: str) -> Path:
    suffixes = [entry.name[len(name) + 1 :] for entry in runs.glob(f"{name}-*")]
    number = 1 + max((int(suffix) for suffix in suffixes if suffix.isdecimal()), default=0)
    while True:
        folder = runs / f"{name}-{number:04d}"
        with suppress(FileExistsError):
            folder.mkdir(parents=True)
            (folder / "logs").mkdir()
            return folder
        number += 1


def _remove_recording(folder: Path) -> None:
    """Empty the folder of an old recording; refuse if it holds anything that no run made."""
    if not is_recording(folder):
        raise RecordingError(
            "it is no recording, so --force does not replace it",
            where=str(folder),
            next_step="choose another folder with --output",
        )
    entries = list(folder.iterdir())
    own = _own_folders(folder)
    for entry in entries:
        begins = (DATABASE, "report.", TRIALS_FILE)
        is_file = entry.name.strip(".").startswith(begins)
        if not (entry.name in own if entry.is_dir() else is_file):
            raise RecordingError(
                f"it holds {entry.name}, which no run has made, so --force does not replace it",
                where=str(folder),
                next_step="move that away or choose another folder with --output",
            )
    for entry in entries:
        if entry.is_dir() and not entry.is_symlink():
            shutil.rmtree(entry)
        else:
            entry.unlink()


def _own_folders(folder: Path) -> Collection[str]:
    """Return the names of the folders that a run makes in its recording: logs, one per layer.

    A run that was killed early wrote its layers into the options of its process only.
    """
    names = {"logs"}
    with suppress(OSError, RecordingError):
        names.update(read_json(folder / OPTIONS_FILE, _LayerNames, inside=folder)["layers"])
    with suppress(OSError, RecordingError), open_database(folder / DATABASE) as database:
        names.update(str(name) for name, *_ in database.read(RECORDED["layers"])[1])
    for home in folder.glob("process-*"):
        files = (path for path in home.rglob("*") if not path.is_dir())
        if is_recording(home) or (home / OPTIONS_FILE).is_file() or not any(files):
            names.add(home.name)
    return names


class _LayerNames(TypedDict):
    layers: list[str]


def is_recording(folder: Path) -> bool:
    """Return whether a run made `folder`, also one that was killed before its first table."""
    return any((folder / name).is_file() for name in (DATABASE, PROGRESS, RUN_FILE))


def record_nothing(folder: Path, layers: Sequence[str], why: str) -> None:
    """Write the recording of a script without anything to record, with the reason."""
    writer = Writer(folder)
    reason = f"nothing to observe in the script: {why}"
    rows = [{"name": name, "status": "skipped", "reason": reason} for name in layers]
    writer.write({"layers": rows})
    writer.close()


# Values written instead of the text of the script's own files.
_TEXTS: dict[str, dict[str, str | None]] = {
    "lines": {"source": None},
    "memory_lines": {"source": None},
    "source_files": {"text": None, "reason": "it was left out at the user's wish"},
}


class Writer:
    """Writes a recording's tables; one per measured process.

    Without `keep_source` no text of the script's own files is written.
    """

    def __init__(self, folder: Path, *, keep_source: bool = True) -> None:
        self.folder = folder
        self.keep_source = keep_source
        # The thread that trains need not be the one that imported torch.
        self._database = sqlite3.connect(
            folder / DATABASE, timeout=60, check_same_thread=False, isolation_level=None
        )
        self._database.execute("PRAGMA journal_mode=WAL")
        self._database.execute("PRAGMA synchronous=OFF")
        self._tables = dict(RECORDED)
        for table in RECORDED.values():
            self._create(table)
        self.facts({"schema_version": SCHEMA_VERSION})

    def _create(self, table: Table) -> None:
        columns = ", ".join(f'"{column.name}" {column.type}' for column in table.columns)
        self._database.execute(f'CREATE TABLE IF NOT EXISTS "{table.name}" ({columns})')

    def declare(self, layer: str, tables: Sequence[LayerTable]) -> None:
        """Make room for the tables of a layer's own; raises UsageError for one that cannot be."""
        facts = [each.declare(layer) for each in tables]
        for each in tables:
            if each.name in self._tables:
                raise UsageError(f"the table {each.name!r} is taken", where=f"layer {layer}")
            self._tables[each.name] = each.table
            self._create(each.table)
        if facts:
            self.facts({f"{layer}{LAYER_TABLES}": facts})

    def write(self, frames: Mapping[str, Records]) -> None:
        """Append records to their tables, all of them or none."""
        with self._transaction():
            self._insert(frames)

    def replace(self, name: str, records: Records) -> None:
        """Put `records` in place of all rows of a table."""
        self.replace_all({name: records})

    def replace_all(self, frames: Mapping[str, Records]) -> None:
        """Put records in place of all rows of their tables, all of them or none."""
        with self._transaction():
            for name in frames:
                self._database.execute(f'DELETE FROM "{self._tables[name].name}"')
            self._insert(frames)

    def facts(self, facts: Mapping[str, object]) -> None:
        """Write single facts; a later value of a key replaces the earlier one."""
        with self._transaction():
            for key, value in facts.items():
                self._database.execute("DELETE FROM facts WHERE key = ?", (key,))
                self._database.execute("INSERT INTO facts VALUES (?, ?)", (key, json.dumps(value)))

    def reason(self, layer: str, text: str) -> None:
        """Write the reason of a layer's status, unless its row has one."""
        with self._transaction():
            update = "UPDATE layers SET reason = ? WHERE name = ? AND reason IS NULL"
            self._database.execute(update, (text, layer))

    def close(self) -> None:
        """Fold the write-ahead log into the one file and close it."""
        # As a plain file it can be read where nothing can be written. An error means that another
        # process is reading: the next reader folds the log in.
        with suppress(sqlite3.OperationalError):
            self._database.execute("PRAGMA journal_mode=DELETE")
        self._database.close()

    def _insert(self, frames: Mapping[str, Records]) -> None:
        for name, records in frames.items():
            table = self._tables[name]
            marks = ", ".join("?" * len(table.columns))
            if not self.keep_source and name in _TEXTS:
                records = [{**record, **_TEXTS[name]} for record in records]
            statement, rows = f'INSERT INTO "{name}" VALUES ({marks})', table.rows(records)
            self._database.execute("SAVEPOINT rows")
            try:
                self._database.executemany(statement, rows)
            except UnicodeEncodeError:
                # Arguments and names of files may hold bytes that are no UTF-8.
                self._database.execute("ROLLBACK TO rows")
                fitting = [
                    [encodable(value) if isinstance(value, str) else value for value in row]
                    for row in rows
                ]
                self._database.executemany(statement, fitting)
            self._database.execute("RELEASE rows")

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        # The connection commits at the end, or rolls back after an error.
        with self._database:
            self._database.execute("BEGIN IMMEDIATE")
            yield


def read_tables(folder: Path, names: Collection[str] | None = None) -> dict[str, Rows]:
    """Read the facts and all tables of a recording, or those named: column names and rows.

    They are of one moment.
    A table newer than the recording has no rows; a newer column is null in every row. Raises
    RecordingError where there is no recording, or it cannot be read or is none that a run makes.
    """
    try:
        with open_database(folder / DATABASE) as database:
            # What lacks its facts was killed before its first table, or is no recording.
            if "facts" not in database.tables:
                raise ValueError("no table of facts")
            read = {"facts": database.read(RECORDED["facts"])}
            facts = facts_of(read)
            if (version := facts.get("schema_version")) != SCHEMA_VERSION:
                raise RecordingError(
                    f"recorded with schema {version}, this profstack reads {SCHEMA_VERSION}",
                    where=str(folder),
                    next_step="use the profstack that recorded it, or run again",
                )
            added = {name: each.table for name, (_, each) in declared_tables(facts).items()}
            if taken := added.keys() & RECORDED.keys():
                raise ValueError(f"a layer declares the table {min(taken)!r}")
            wanted = {**RECORDED, **added} if names is None else {n: RECORDED[n] for n in names}
            others = {name: table for name, table in wanted.items() if name != "facts"}
            for name, table in others.items():
                read[name] = database.read(table)
                if name in TREES:
                    _check_tree(name, *read[name])
            if "artifacts" in read:
                columns, rows = read["artifacts"]
                check_within(str(row[columns.index("path")]) for row in rows)
            return read
    except FileNotFoundError:
        raise RecordingError(
            "there is no recording here", where=str(folder), next_step="profstack run script.py"
        ) from None


# Rows above a row, of all rows of a tree: what reads it holds so many.
_MOST_ABOVE = 10_000_000


def _check_tree(table: str, names: Sequence[str], rows: Sequence[tuple[Any, ...]]) -> None:
    """Raise ValueError where the rows of a table form no trees, or a row has no number."""
    number, above = map(names.index, TREES[table])
    group = names.index("slice") if "slice" in names else None
    parents = {(row[group] if group is not None else None, row[number]): row[above] for row in rows}
    if len(parents) < len(rows) or any(key is None for _, key in parents):
        raise ValueError(f"{table} has a number twice, or a row without one")
    depths: dict[tuple[object, object], int] = {}
    for group_of, number_of in parents:
        key = group_of, number_of
        way = []
        while key in parents and key not in depths:
            way.append(key)
            depths[key] = -1
            key = group_of, parents[key]
        depth = depths.get(key, 0)
        if depth < 0:
            raise ValueError(f"{table} has a row that is below itself")
        for each in reversed(way):
            depth += 1
            depths[each] = depth
    if sum(depths.values()) > _MOST_ABOVE:
        raise ValueError(f"{table} is nested too deep")


def facts_of(tables: Mapping[str, Rows]) -> dict[str, Any]:
    """Return the table of facts as a dictionary; raise ValueError for one of another type."""
    from profstack.storage.schema.facts import type_of

    facts = {}
    for key, value in tables["facts"][1]:
        if not isinstance(key, str) or not isinstance(value, str):
            raise ValueError("a fact without a name or a value")
        try:
            facts[key] = typed(parsed(value), type_of(key), whole=False)
        except ValueError as error:
            raise ValueError(f"fact {key[:40]}: {error}") from None
    return facts


def declared_tables(facts: Mapping[str, Any]) -> Mapping[str, tuple[str, LayerTable]]:
    """Return the tables that layers added to a recording by name, each with its layer."""
    return declared(
        [each for key, tables in facts.items() if key.endswith(LAYER_TABLES) for each in tables]
    )


def append_event(folder: Path, event: Mapping[str, object]) -> None:
    """Append one line to the progress log that the parent process follows."""
    line = json.dumps(event) + "\n"
    descriptor = os.open(folder / PROGRESS, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o666)
    try:
        os.write(descriptor, line.encode())
    finally:
        os.close(descriptor)


# --- The run: what was run, when, and how it ended ------------------------------------------------
#
# A file beside the tables: the process that starts the run writes it, not the layers.


def write_run(folder: Path, content: Mapping[str, object]) -> None:
    """Write the file of the run in `folder`, whole: whoever is killed leaves the one before."""
    # A process that outlives the script writes it too.
    unfinished = folder / f"{RUN_FILE}~{os.getpid()}"
    unfinished.write_text(json.dumps(content), encoding="utf-8")
    unfinished.replace(folder / RUN_FILE)


def read_run(folder: Path) -> RunFile:
    """Read the file of the run; empty if the parent process was killed before it wrote one.

    Raise RecordingError where it is damaged.
    """
    from profstack.storage.schema.facts import RunFile

    try:
        return cast("RunFile", read_json(folder / RUN_FILE, RunFile, inside=folder))
    except FileNotFoundError:
        return {}


# Files of a recording that are read and written by their names.
_FILES = (DATABASE, *(f"{DATABASE}-{end}" for end in ("wal", "shm", "journal")))
_FILES += ("report.json", "report.html", PROGRESS, PEAKS, RUN_FILE, OPTIONS_FILE, TRIALS_FILE)


def check_files(folder: Path) -> None:
    """Raise RecordingError where another thing is in the place of a recording's file.

    A link that leads out of the folder, a pipe or a device would be read or written instead.
    """
    for name in _FILES:
        with suppress(FileNotFoundError):
            most = MOST_DATABASE if name.startswith(DATABASE) else MOST_TEXT
            check_file(folder / name, inside=folder, most=most)


def run_times(started: float, duration_s: float) -> dict[str, str | float]:
    """Return a new number for a run that has just ended, and its times."""
    return {
        "id": str(uuid.uuid4()),
        "started_at": iso(started),
        "finished_at": iso(time.time()),
        "duration_s": duration_s,
    }


def exit_facts(code: int) -> dict[str, int | None]:
    """Return exit code and signal of a process; a negative code means killed by that signal."""
    return {"exit_code": code if code >= 0 else None, "signal": -code if code < 0 else None}


def iso(seconds: float) -> str:
    """Format seconds since 1970 as the reports write a time."""
    moment = datetime.datetime.fromtimestamp(seconds, datetime.timezone.utc)
    return moment.isoformat(timespec="milliseconds")
