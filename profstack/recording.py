"""The recording on disk: one folder, one SQLite file with every table, and the tools' own files.

The measured process writes slice by slice, each in a transaction of its own, so that a killed
run keeps what it had. Readers get plain rows; joining them is the business of `merge`.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from profstack.errors import RecordingError
from profstack.schema import RECORDED, SCHEMA_VERSION
from profstack.wrapper import Records

DATABASE = "recording.sqlite"
PROGRESS = "logs/progress.jsonl"
PAGE_MARKER = "logs/page-written"
RUNS = "profstack-runs"

# A table as read: the names of its columns, and its rows.
Rows = tuple[list[str], list[tuple[Any, ...]]]


def create_folder(name: str, output: str | None, *, force: bool) -> Path:
    """Make the folder of a new recording; never overwrites one unless `force` is given.

    Raises RecordingError when the folder cannot be made or `output` is already in use.
    """
    try:
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
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "logs").mkdir(exist_ok=True)
        return folder
    except OSError as error:
        raise RecordingError(
            f"cannot write the recording ({error.strerror})",
            where=str(error.filename or output or RUNS),
            next_step="choose a writable folder with --output",
        ) from None


def create_rank_folder(
    name: str, output: str | None, rank: int, launch: str, *, force: bool
) -> Path:
    """Make the folder `rank-00007` of one rank inside the folder that its launch shares.

    `launch` is what all ranks of the launch have in common: the first rank to come makes the
    numbered folder and leaves it there, the others find it by that.
    """
    try:
        base = Path(output) if output is not None else _launch_folder(name, launch)
        return create_folder(name, str(base / f"rank-{rank:05d}"), force=force)
    except OSError as error:
        raise RecordingError(
            f"cannot write the recording ({error.strerror})",
            where=str(error.filename or RUNS),
            next_step="choose a writable folder with --output",
        ) from None


def _launch_folder(name: str, launch: str) -> Path:
    runs = Path(RUNS)
    marker = hashlib.sha256(launch.encode()).hexdigest()[:16]
    claim = runs / f".launch-{marker}"
    runs.mkdir(parents=True, exist_ok=True)
    folder = _numbered_folder(runs, name)
    try:
        # Made whole and then linked: whoever finds the claim can read it.
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
    number = 1
    for entry in runs.glob(f"{name}-*"):
        suffix = entry.name[len(name) + 1 :]
        if suffix.isdecimal():
            number = max(number, int(suffix) + 1)
    while True:
        folder = runs / f"{name}-{number:04d}"
        try:
            folder.mkdir(parents=True)
        except FileExistsError:
            number += 1
            continue
        (folder / "logs").mkdir()
        return folder


def _remove_recording(folder: Path) -> None:
    """Empty the folder of an old recording; one that holds anything else is left alone."""
    if not is_recording(folder):
        raise RecordingError(
            "it is no recording, so --force does not replace it",
            where=str(folder),
            next_step="choose another folder with --output",
        )
    entries = list(folder.iterdir())
    for entry in entries:
        if not _is_ours(entry):
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


def _is_ours(entry: Path) -> bool:
    """Whether a run makes a file or folder of this name in its recording."""
    from profstack.registry import all_layer_names

    if entry.is_dir():
        return entry.name == "logs" or entry.name in all_layer_names()
    return entry.name.startswith(DATABASE) or entry.name.strip(".").startswith("report.")


def is_recording(folder: Path) -> bool:
    """Whether `folder` was made by a run, also by one that was killed before its first table."""
    return any((folder / name).is_file() for name in (DATABASE, PROGRESS, "logs/run.json"))


def record_nothing(folder: Path, layers: Sequence[str], why: str) -> None:
    """Write the recording of a script that gave nothing to record, and why."""
    writer = Writer(folder)
    reason = f"nothing to observe in the script: {why}"
    rows = [{"name": name, "status": "skipped", "reason": reason} for name in layers]
    writer.write({"layers": rows})
    writer.close()


# What stands in place of the columns that hold text of the script's own files.
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
        for table in RECORDED.values():
            columns = ", ".join(f'"{column.name}" {column.type}' for column in table.columns)
            self._database.execute(f'CREATE TABLE IF NOT EXISTS "{table.name}" ({columns})')
        self.facts({"schema_version": SCHEMA_VERSION})

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
                self._database.execute(f'DELETE FROM "{RECORDED[name].name}"')
            self._insert(frames)

    def facts(self, facts: Mapping[str, Any]) -> None:
        """Write single facts; a later value of the same key takes the earlier one's place."""
        with self._transaction():
            for key, value in facts.items():
                self._database.execute("DELETE FROM facts WHERE key = ?", (key,))
                self._database.execute("INSERT INTO facts VALUES (?, ?)", (key, json.dumps(value)))

    def reason(self, layer: str, text: str) -> None:
        """Let a layer's row say this, unless it gives a reason of its own."""
        with self._transaction():
            update = "UPDATE layers SET reason = ? WHERE name = ? AND reason IS NULL"
            self._database.execute(update, (text, layer))

    def close(self) -> None:
        """Fold the write-ahead log into the one file and close it."""
        try:
            # As a plain file it can be read where nothing can be written.
            self._database.execute("PRAGMA journal_mode=DELETE")
        except sqlite3.OperationalError:
            # Somebody reads it just now: the log stays until the next reader folds it in.
            pass
        self._database.close()

    def _insert(self, frames: Mapping[str, Records]) -> None:
        for name, records in frames.items():
            table = RECORDED[name]
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
                self._database.executemany(statement, [_encodable(row) for row in rows])
            self._database.execute("RELEASE rows")

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        self._database.execute("BEGIN IMMEDIATE")
        try:
            yield
        except BaseException:
            self._database.execute("ROLLBACK")
            raise
        self._database.execute("COMMIT")


def _encodable(row: Sequence[Any]) -> list[Any]:
    """A row whose texts can be written: lone surrogates stand as Python writes them, \\udcff."""
    return [
        value.encode("utf-8", "backslashreplace").decode() if isinstance(value, str) else value
        for value in row
    ]


def read_tables(folder: Path) -> dict[str, Rows]:
    """All tables of a recording as column names and rows, as they stood at one moment.

    Raises RecordingError where there is no recording or it cannot be read.
    """
    path = folder / DATABASE
    if not path.is_file():
        raise RecordingError(
            "there is no recording here", where=str(folder), next_step="profstack run script.py"
        )
    try:
        database = sqlite3.connect(path, timeout=60)
        try:
            # One transaction: the run may be writing its next slice meanwhile.
            database.execute("BEGIN")
            _check_version(_read(database, "facts"), folder)
            return {name: _read_whole(database, name) for name in RECORDED}
        finally:
            database.close()
    except (sqlite3.Error, ValueError) as error:
        raise RecordingError(
            f"the recording cannot be read ({error})",
            where=str(path),
            next_step="run profstack again",
        ) from None


def _read_whole(database: sqlite3.Connection, name: str) -> Rows:
    """A table with all columns that it has by now.

    One that came after the recording was made has no rows, a later column no value in any.
    """
    known = {row[0] for row in database.execute("SELECT name FROM sqlite_master")}
    if name not in known:
        return list(RECORDED[name].names), []
    columns, rows = _read(database, name)
    later = [column for column in RECORDED[name].names if column not in columns]
    return [*columns, *later], [(*row, *(None for _ in later)) for row in rows] if later else rows


def _read(database: sqlite3.Connection, name: str) -> Rows:
    cursor = database.execute(f'SELECT * FROM "{name}"')
    return [column[0] for column in cursor.description], cursor.fetchall()


def _check_version(facts: Rows, folder: Path) -> None:
    version = facts_of({"facts": facts}).get("schema_version")
    if version != SCHEMA_VERSION:
        raise RecordingError(
            f"recorded with schema {version}, this profstack reads {SCHEMA_VERSION}",
            where=str(folder),
            next_step="use the profstack that recorded it, or run again",
        )


def facts_of(tables: Mapping[str, Rows]) -> dict[str, Any]:
    """The table of facts as a dictionary."""
    return {key: json.loads(value) for key, value in tables["facts"][1]}


def tell(folder: Path, event: Mapping[str, Any]) -> None:
    """Append one line to the progress log that the parent process follows."""
    line = json.dumps(event) + "\n"
    descriptor = os.open(folder / PROGRESS, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o666)
    try:
        os.write(descriptor, line.encode())
    finally:
        os.close(descriptor)
