"""Takes in what Nsight Systems saw: from its file to tables of a recording.

Only figures of the process that was profiled get there: the export also holds the machine's name,
its users, every environment variable and other processes, and stays where it is.
"""

from __future__ import annotations

import sqlite3
import tempfile
from pathlib import Path
from typing import Any

from profstack.errors import RecordingError
from profstack.nsys import tool
from profstack.nsys.exported import read_export
from profstack.nsys.rows import rows_of
from profstack.nsystables import RECORDED_OF_NSYS
from profstack.recording import Writer, read_tables

FACT = "nsys"
# What nsys writes itself, newest first; all else is taken for an export.
REPORTS = frozenset((".nsys-rep", ".qdrep", ".qdstrm"))


def import_file(
    source: Path, folder: Path, *, nsys_path: str | None = None, process: int | None = None
) -> dict[str, Any]:
    """Put what `source` holds into the recording in `folder`, in place of an earlier import.

    `source` is an SQLite export, or a report, which is exported first by the nsys at `nsys_path`
    or wherever one is found. Returns the fact `nsys`. Raises ProfstackError where the file cannot
    be read, and then leaves the recording as it was.
    """
    # Before it is touched: it may be damaged, or of another version.
    read_tables(folder)
    frames, fact = read_file(source, nsys_path=nsys_path, process=process)
    write_import(folder, frames, fact)
    return fact


def write_import(
    folder: Path, frames: dict[str, list[dict[str, Any]]], fact: dict[str, Any]
) -> None:
    """Write what `read_file` has read into the recording in `folder`."""
    try:
        writer = Writer(folder)
        try:
            writer.replace_all(frames)
            writer.facts({FACT: fact})
        finally:
            writer.close()
    except (sqlite3.Error, OSError) as error:
        raise RecordingError(
            f"the import cannot be written ({error})",
            where=str(folder),
            next_step="import without --into, or with -o, into a folder that can be written",
        ) from None


def read_file(
    source: Path, *, nsys_path: str | None = None, process: int | None = None
) -> tuple[dict[str, list[dict[str, Any]]], dict[str, Any]]:
    """Rows of all tables of nsys, and the fact, of a report or an export.

    `process` chooses one of several by its number; else the one with profstack's ranges is taken.
    """
    with tempfile.TemporaryDirectory(prefix="profstack-nsys-") as folder:
        exported = source
        if source.suffix in REPORTS:
            exported = tool.sqlite_of(source, Path(folder), nsys_path=nsys_path)
        export = read_export(exported, process)
        rows, told = rows_of(export)
    frames = {name: rows.get(name, []) for name in RECORDED_OF_NSYS}
    fact = {
        "file": source.name,
        "version": export.version,
        "schema": export.schema,
        "process": export.process,
        "other_processes": export.others,
        "missing": dict(export.missing),
        "notes": [list(note) for note in (*export.notes, *_of_left_out(told["left_out"]))],
        **told,
    }
    return frames, fact


def _of_left_out(counts: dict[str, int]) -> list[tuple[str, str]]:
    """What had to be cut: a note of it each."""
    return [
        ("nsys-rows-left-out", f"{count:,} rows of {name} with the least time are left out")
        for name, count in counts.items()
        if count
    ]
