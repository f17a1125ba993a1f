"""Import a file of Nsight Systems into a recording.

Only figures of the processes that were profiled are imported: the export also holds the machine's
name, its users, every environment variable and other programs, and stays where it is.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Literal, TypedDict

from profstack.errors import RecordingError, UsageError
from profstack.readers.device_gaps import S
from profstack.readers.formats import Format, Request, Taken, opened
from profstack.readers.nsys import rows as tables
from profstack.readers.nsys import tool
from profstack.readers.nsys.capture import GRAPH, Capture
from profstack.readers.nsys.device_time import (
    communication_rows,
    gap_rows,
    process_rows,
    step_rows,
)
from profstack.readers.nsys.export import Export, processes_of, read_process
from profstack.readers.nsys.export_file import MAGIC, REPORTS, ExportFile
from profstack.readers.nsys.rows import MOST_ROWS, REST, Rest
from profstack.readers.nsys.steps import NO_STEPS, names_of, steps_of
from profstack.readers.nvtx import DOMAIN, MODULE
from profstack.storage.folder import read_tables
from profstack.storage.schema.column import Record
from profstack.storage.schema.recorded import RECORDED_OF_NSYS
from profstack.units import format_seconds

FACT = "nsys"
ROWS_LEFT_OUT = "nsys-rows-left-out"
OTHER_PROGRAM = "nsys-other-program"
# Modules of a capture that the recording may lack: some are made in one of two runs only.
MOST_MISSING = 0.25


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


class CaptureFacts(TypedDict):
    """Totals over the steps of a capture, or over the whole of it; of all processes together.

    Steps and their times are those of the first process.
    """

    steps: int
    first_step: int | None
    last_step: int | None
    per: Literal["step", "capture"]
    step_range: str | None
    step_range_asked: bool
    captured_s: float
    steps_wall_s: float | None
    version: str | None
    schema: str | None
    process: int
    processes: list[int]
    # What no process has, and why.
    missing: dict[str, str]
    notes: list[list[str]]
    unlaunched: int
    graphs_whole: int
    open_ranges: int
    rest: dict[str, Rest]


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
    with opened(folder) as writer:
        writer.replace_all(frames)
        writer.facts({FACT: fact})


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


# --- All tables of all processes -----------------------------------------------------------------


def rows_of(
    exports: Iterable[Export], step_range: str | None = None, *, most: int | None = None
) -> tuple[dict[str, list[Record]], CaptureFacts]:
    """Return rows by table of all processes of a capture, and the facts of it.

    The first process is the capture's own. A process that makes no steps is seen in those of the
    first. `step_range` names the range that is a step; of each table a process has at most `most`
    rows and that of the rest. Raises UsageError where no range has that name.
    """
    rows: dict[str, list[Record]] = {name: [] for name in RECORDED_OF_NSYS}
    facts: CaptureFacts | None = None
    steps, begin_ns, earliest, latest = NO_STEPS, 0, 0, 0
    for export in exports:
        names = names_of(export.ranges)
        if facts is None:
            steps, begin_ns = steps_of(export, names, step_range), export.begin_ns
            own, earliest, latest = steps, begin_ns, export.end_ns
        else:
            own = steps.of_process(export, names)
        capture = Capture.of(export, own, names, begin_ns)
        nodes, is_own = len(rows["nsys_ranges"]), own.thread is not None
        found, rest = _tables(capture, most or MOST_ROWS, nodes, own_steps=is_own)
        one = _facts_of(capture, rest)
        facts = one if facts is None else _together(facts, one)
        for name, some in found.items():
            rows[name] += [{**row, "process": export.process} for row in some]
        earliest, latest = min(earliest, export.begin_ns), max(latest, export.end_ns)
    assert facts is not None
    facts["captured_s"] = (latest - earliest) * S
    return _since(rows, (begin_ns - earliest) * S), facts


# By table, the moments in its rows.
_MOMENTS = {"nsys_steps": "started_s", "nsys_longest_gaps": "started_s", "nsys_memory": "t_s"}


def _since(rows: dict[str, list[Record]], earlier_s: float) -> dict[str, list[Record]]:
    """Return the rows with moments since the first event of all processes."""
    moved: dict[str, list[Record]] = {
        name: [{**row, moment: float(row[moment] or 0) + earlier_s} for row in rows[name]]
        for name, moment in _MOMENTS.items()
        if earlier_s
    }
    return rows | moved


def _tables(
    capture: Capture, most: int, nodes: int, *, own_steps: bool
) -> tuple[dict[str, list[Record]], dict[str, Rest]]:
    """Return rows of one process by table, and the rest by table; `nodes` are before its own."""
    calls = tables.calls_of(capture)
    cut = {
        "nsys_ranges": tables.range_rows(capture, most, nodes),
        "nsys_stats": tables.stat_rows(capture, calls, most),
        "nsys_kernels": tables.kernel_rows(capture, most),
        "nsys_copies": tables.copy_rows(capture, most),
        "nsys_api": tables.api_rows(calls, most),
        "nsys_waits": tables.wait_rows(capture, most),
    }
    gaps, longest = gap_rows(capture)
    rows = {
        "nsys_processes": process_rows(capture, own_steps=own_steps),
        # Without a device they are those of the process that makes them.
        "nsys_steps": [row for row in step_rows(capture) if own_steps or row["device"]],
        **{name: some for name, (some, _) in cut.items()},
        "nsys_communication": communication_rows(capture),
        "nsys_backtraces": tables.backtrace_rows(capture),
        "nsys_memory": tables.memory_rows(capture.export, capture.begin_ns),
        "nsys_samples": tables.sample_rows(capture),
        "nsys_gaps": gaps,
        "nsys_longest_gaps": longest,
    }
    return rows, {name: rest for name, (_, rest) in cut.items() if rest is not None}


def _facts_of(capture: Capture, rest: Mapping[str, Rest]) -> CaptureFacts:
    """Return the facts of one process."""
    export, steps, work = capture.export, capture.steps, capture.work
    numbers = [number for number in steps.numbers if number is not None]
    wall = int((steps.times.end - steps.times.start).sum())
    return {
        "steps": len(steps),
        "first_step": min(numbers, default=None),
        "last_step": max(numbers, default=None),
        "per": "step" if len(steps) else "capture",
        "step_range": steps.range_name,
        "step_range_asked": steps.is_asked,
        "captured_s": (export.end_ns - export.begin_ns) * S,
        "steps_wall_s": wall * S if len(steps) else None,
        "version": export.version,
        "schema": export.schema,
        "process": export.process,
        "processes": [export.process],
        "missing": dict(export.missing),
        "notes": [[slug, text] for slug, text in export.notes],
        "unlaunched": int((work.call < 0).sum()),
        "graphs_whole": int((export.work["kind"].iloc[work.row] == GRAPH).sum()),
        "open_ranges": export.open_ranges,
        "rest": dict(rest),
    }


def _together(first: CaptureFacts, more: CaptureFacts) -> CaptureFacts:
    """Return the facts of the first processes with those of one more."""
    rest = dict(first["rest"])
    for name, each in more["rest"].items():
        known = rest.get(name, _NOTHING)
        rest[name] = Rest(
            rows=known["rows"] + each["rows"],
            things=known["things"] + each["things"],
            seconds=known["seconds"] + each["seconds"],
        )
    # Notes on the whole session are in every process.
    notes = [note for note in more["notes"] if note not in first["notes"]]
    return {
        **first,
        "processes": [*first["processes"], more["process"]],
        "missing": {name: why for name, why in first["missing"].items() if name in more["missing"]},
        "notes": [
            *first["notes"],
            *([slug, f"process {more['process']}: {text}"] for slug, text in notes),
        ],
        "unlaunched": first["unlaunched"] + more["unlaunched"],
        "graphs_whole": first["graphs_whole"] + more["graphs_whole"],
        "open_ranges": first["open_ranges"] + more["open_ranges"],
        "rest": rest,
    }


_NOTHING = Rest(rows=0, things=0, seconds=0.0)


# --- The format -----------------------------------------------------------------------------------


def take(files: Sequence[Path], request: Request) -> Taken:
    """Read the one report or export among `files`; see `Format`."""
    if len(files) > 1:
        raise UsageError(
            "one report of Nsight Systems is imported at a time",
            where=str(files[1]),
            next_step="import it with -o into a recording of its own",
        )
    frames, fact = read_file(
        files[0],
        nsys_path=request.nsys_path,
        process=request.process,
        step_range=request.step_range,
    )
    rows = frames["nsys_ranges"]
    paths = {str(row["name"]) for row in rows if (row["domain"], row["kind"]) == (DOMAIN, MODULE)}
    fact["notes"] += _other_program(files[0], paths, set(request.modules))
    return Taken(files, [_summary(fact)], replaced={**frames}, facts={FACT: fact})


def _other_program(source: Path, captured: set[str], recorded: set[str]) -> list[list[str]]:
    """Return a note where a capture has modules that the recording lacks.

    Raises RecordingError where it has none of them.
    """
    recorded = {path for path in recorded if not path.startswith("(")}
    if not captured or not recorded:
        return []
    known = {_last_names(path) for path in recorded}
    missing = {path for path in captured if _last_names(path) not in known}
    named = ", ".join(sorted(missing)[:3]) + (", ..." if len(missing) > 3 else "")
    if len(missing) == len(captured):
        raise RecordingError(
            f"is of another program: none of its {len(captured):,} modules ({named}) is in the "
            "recording",
            where=str(source),
            next_step="name the recording of the same program, or import it without --into",
        )
    if len(missing) <= MOST_MISSING * len(captured):
        return []
    text = (
        f"{len(missing):,} of the capture's {len(captured):,} modules are not in the recording "
        f"({named}): it may be of another program"
    )
    return [[OTHER_PROGRAM, text]]


# Names that wrappers of data parallelism and of torch.compile add to paths.
_WRAPPERS = frozenset(("module", "_orig_mod", "_fsdp_wrapped_module", "_forward_module"))


def _last_names(path: str) -> str:
    """Return a module's last two names; of a root, whose class may be a wrapper's, its own."""
    names = [name for name in path.split(".")[1:] if name not in _WRAPPERS]
    return ".".join(names[-2:]) or path


def _summary(facts: NsysImport) -> str:
    """Return what was imported, in one line."""
    steps = "1 step" if facts["steps"] == 1 else f"{facts['steps']:,} steps"
    if not facts["steps"]:
        steps = "no step range, so all figures are of the whole capture"
    elif facts["step_range"] is not None:
        steps += f", the ranges {facts['step_range']}"
    version = f" of nsys {facts['version']}" if facts["version"] else ""
    read, others = len(facts["processes"]), facts["other_processes"]
    more = f"; {read} processes side by side" if read > 1 else ""
    left = f"; {others} other process{'es' * (others > 1)} left out" if others else ""
    return f"{facts['file']}{version}: {steps}{more}{left}"


def _recognise(start: bytes, name: str) -> bool:
    """Tell an SQLite file by its content; a report, which has no public format, by its name."""
    return start.startswith(MAGIC) or name.endswith(REPORTS)


FORMAT = Format("Nsight Systems report", ".nsys-rep, .qdrep, .qdstrm, .sqlite", _recognise, take)
