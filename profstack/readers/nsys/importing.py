"""Import a file of Nsight Systems into a recording.

Only figures of the processes that were profiled are imported: the export also holds the machine's
name, its users, every environment variable and other programs, and stays where it is.
"""

from __future__ import annotations

import contextlib
import sqlite3
import tempfile
from pathlib import Path

from profstack.errors import RecordingError
from profstack.readers.nsys import tool
from profstack.readers.nsys.export import processes_of, read_process
from profstack.readers.nsys.export_file import REPORTS, ExportFile
from profstack.readers.nsys.rows import MOST_ROWS, REST, CaptureFacts, Rest, rows_of
from profstack.storage.folder import Writer, read_tables
from profstack.storage.schema.column import Record
from profstack.storage.schema.recorded import RECORDED_OF_NSYS
from profstack.units import format_seconds

FACT = "nsys"
ROWS_LEFT_OUT = "nsys-rows-left-out"


# Rows of one table that a process has at least, however many there are.
FEWEST_ROWS = 1_000
# What the rows of a table are of, for the words on those that were added up.
_THINGS = {
    "nsys_ranges": ("ranges", "host time"),
    "nsys_kernels": ("kernels", "device time"),
    "nsys_copies": ("copies or fills", "device time"),
    "nsys_api": ("calls", "host time"),
    "nsys_waits": ("waits", "time"),
    "nsys_stats": ("calls, kernels or copies", "time"),
}


class NsysImport(CaptureFacts):
    """The fact `nsys` of a recording: the file, its processes, and totals."""

    file: str
    other_processes: int


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
    source: Path,
    *,
    nsys_path: str | None = None,
    process: int | None = None,
    step_range: str | None = None,
) -> tuple[dict[str, list[Record]], NsysImport]:
    """Read rows of all tables of nsys, and the fact, from a report or an export.

    `process` chooses one of several by its number; else all are read, first the one with
    profstack's ranges. `step_range` names the range that is a step.
    """
    with tempfile.TemporaryDirectory(prefix="profstack-nsys-") as folder:
        exported = source
        if source.suffix in REPORTS:
            exported = tool.sqlite_of(source, Path(folder), nsys_path=nsys_path)
        with ExportFile(exported) as file:
            processes, others = processes_of(file, process)
            exports = (read_process(file, number) for number in processes)
            # However many processes there are: no page is too large.
            most = max(MOST_ROWS // len(processes), FEWEST_ROWS)
            rows, facts = rows_of(exports, step_range, most=most)
    frames = {name: rows.get(name, []) for name in RECORDED_OF_NSYS}
    facts["notes"] += [[ROWS_LEFT_OUT, _rest_words(*each)] for each in facts["rest"].items()]
    return frames, {"file": source.name, "other_processes": others, **facts}


def _rest_words(table: str, rest: Rest) -> str:
    """Say what the row `(rest)` of a table adds up."""
    things, time = _THINGS[table]
    return (
        f"{table} has too many rows: {rest['things']:,} {things} with "
        f"{format_seconds(rest['seconds'])} of {time}, in the {rest['rows']:,} rows with the "
        f"least time, are one row, {REST}"
    )
