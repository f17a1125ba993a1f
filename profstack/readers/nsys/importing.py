"""Import a file of Nsight Systems into a recording.

Only figures of the process that was profiled are imported: the export also holds the machine's
name, its users, every environment variable and other processes, and stays where it is.
"""

from __future__ import annotations

import contextlib
import sqlite3
import tempfile
from collections.abc import Sequence
from pathlib import Path

from profstack.errors import RecordingError, UsageError
from profstack.readers.formats import Format, Request, Taken
from profstack.readers.nsys import tool
from profstack.readers.nsys.export import read_export
from profstack.readers.nsys.export_file import MAGIC, REPORTS
from profstack.readers.nsys.rows import CaptureFacts, rows_of
from profstack.storage.folder import Writer, read_tables
from profstack.storage.schema.column import Record
from profstack.storage.schema.recorded import RECORDED_OF_NSYS

FACT = "nsys"


class NsysImport(CaptureFacts):
    """The fact `nsys` of a recording: the file, its process, and totals."""

    file: str
    version: str | None
    schema: str | None
    process: int
    other_processes: int
    missing: dict[str, str]
    notes: list[list[str]]


def import_file(
    source: Path, folder: Path, *, nsys_path: str | None = None, process: int | None = None
) -> NsysImport:
    """Import `source` into the recording in `folder`, in place of an earlier import.

    `source` is an SQLite export, or a report, which is exported first by the nsys at `nsys_path`
    or wherever one is found. Returns the fact `nsys`. Raises ProfstackError where the file cannot
    be read, and then leaves the recording as it was.
    """
    # Before it is touched: it may be damaged, or of another version.
    read_tables(folder)
    frames, fact = read_file(source, nsys_path=nsys_path, process=process)
    write_import(folder, frames, fact)
    return fact


def write_import(folder: Path, frames: dict[str, list[Record]], fact: NsysImport) -> None:
    """Write the result of `read_file` into the recording in `folder`."""
    try:
        with contextlib.closing(Writer(folder)) as writer:
            writer.replace_all(frames)
            writer.facts({FACT: fact})
    except (sqlite3.Error, OSError) as error:
        raise RecordingError(
            f"the import cannot be written ({error})",
            where=str(folder),
            next_step="import without --into, or with -o, into a folder that can be written",
        ) from None


def read_file(
    source: Path, *, nsys_path: str | None = None, process: int | None = None
) -> tuple[dict[str, list[Record]], NsysImport]:
    """Read rows of all tables of nsys, and the fact, from a report or an export.

    `process` chooses one of several by its number; else the one with profstack's ranges is read.
    """
    with tempfile.TemporaryDirectory(prefix="profstack-nsys-") as folder:
        exported = source
        if source.suffix in REPORTS:
            exported = tool.sqlite_of(source, Path(folder), nsys_path=nsys_path)
        export = read_export(exported, process)
        rows, facts = rows_of(export)
    frames = {name: rows.get(name, []) for name in RECORDED_OF_NSYS}
    left_out = [
        ["nsys-rows-left-out", f"{count:,} rows of {name} with the least time are left out"]
        for name, count in facts["left_out"].items()
    ]
    fact: NsysImport = {
        "file": source.name,
        "version": export.version,
        "schema": export.schema,
        "process": export.process,
        "other_processes": export.others,
        "missing": dict(export.missing),
        "notes": [*map(list, export.notes), *left_out],
        **facts,
    }
    return frames, fact


def take(files: Sequence[Path], request: Request) -> Taken:
    """Read the one report or export among `files`; see `Format`."""
    if len(files) > 1:
        raise UsageError(
            "one report of Nsight Systems is imported at a time",
            where=str(files[1]),
            next_step="import it with -o into a recording of its own",
        )
    frames, fact = read_file(files[0], nsys_path=request.nsys_path, process=request.process)
    summary = [_summary(fact)]
    return Taken(files, summary, replaced={**frames}, facts={FACT: fact})


def _summary(facts: NsysImport) -> str:
    """Return what was imported, in one line."""
    steps = "1 step" if facts["steps"] == 1 else f"{facts['steps']:,} steps"
    if not facts["steps"]:
        steps = "no step range, so all figures are of the whole capture"
    version = f" of nsys {facts['version']}" if facts["version"] else ""
    others = facts["other_processes"]
    left = f"; {others} other process{'es' * (others > 1)} left out" if others else ""
    return f"{facts['file']}{version}: {steps}{left}"


def _recognise(start: bytes, name: str) -> bool:
    """Tell an SQLite file by its content; a report, which has no public format, by its name."""
    return start.startswith(MAGIC) or name.endswith(REPORTS)


FORMAT = Format("Nsight Systems report", ".nsys-rep, .qdrep, .sqlite", _recognise, take)
