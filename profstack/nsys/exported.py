"""The SQLite file that Nsight Systems exports, read: what one process did in a capture.

Files of nsys 2022 to 2026 differ in tables, columns and in what stands for "none"; the `Export`
does not. Only rows of the target process are read: neither the environment of the run, which the
file holds in full, nor anything of another process gets into it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import pandas as pd

from profstack.nsys.callchains import read_callchains, read_samples
from profstack.nsys.exportedcalls import read_calls, read_libraries, read_os_calls
from profstack.nsys.exportednvtx import EventTypes, read_ranges
from profstack.nsys.exportedwork import read_memory, read_synchronisations, read_work
from profstack.nsys.exportfile import Column, ExportError, ExportFile
from profstack.nsys.exportframes import frame_of
from profstack.nsys.exporttarget import target_process

__all__ = ["Export", "ExportError", "read_export"]

OPEN_RANGES = "nsys-open-ranges"
UNTIMED_WORK = "nsys-untimed-work"
LOST_EVENTS = "nsys-lost-events"

# By frame: what it holds, and the option of nsys profile that it takes.
_TAKES = {
    "ranges": ("NVTX ranges", "nvtx in --trace"),
    "calls": ("CUDA calls", "cuda in --trace"),
    "libraries": ("calls of cuDNN or cuBLAS", "cudnn,cublas in --trace"),
    "os_calls": ("calls of the system", "osrt in --trace"),
    "work": ("device work", "cuda in --trace"),
    "synchronisations": ("waits for a device", "cuda in --trace"),
    "memory": ("device memory", "--cuda-memory-usage=true"),
    "samples": ("CPU samples", "--sample=process-tree"),
    "callchains": ("callchains", "--cudabacktrace, osrt in --trace, or --sample=process-tree"),
}
# Of the messages of nsys, those that say that something is not in the capture.
_LOSSES = ("drop", "lost", "not all", "incomplete", "overflow", "ran out")
_NAMES_SHOWN = 3
# nsys works in the process too, in threads of its own; what these do is none of the process.
_OBSERVER = "[NSys"


@dataclass(frozen=True)
class Export:
    """One process of a capture; all times in nanoseconds on the export's clock.

    Rows of every frame are by begin; a thread is known by its global identifier in the file.
    """

    source: str
    version: str | None = None
    schema: str | None = None
    process: int = 0
    # Processes that have events in the file, and are left out.
    others: int = 0
    begin_ns: int = 0
    end_ns: int = 0
    # Ranges that had no end when the capture ended; they are in no frame.
    open_ranges: int = 0
    ranges: pd.DataFrame = field(default_factory=partial(frame_of, "ranges"))
    # A correlation number stands in one call at most; -1 is none.
    calls: pd.DataFrame = field(default_factory=partial(frame_of, "calls"))
    libraries: pd.DataFrame = field(default_factory=partial(frame_of, "libraries"))
    os_calls: pd.DataFrame = field(default_factory=partial(frame_of, "os_calls"))
    work: pd.DataFrame = field(default_factory=partial(frame_of, "work"))
    synchronisations: pd.DataFrame = field(default_factory=partial(frame_of, "synchronisations"))
    memory: pd.DataFrame = field(default_factory=partial(frame_of, "memory"))
    samples: pd.DataFrame = field(default_factory=partial(frame_of, "samples"))
    callchains: pd.DataFrame = field(default_factory=partial(frame_of, "callchains"))
    threads: pd.DataFrame = field(default_factory=partial(frame_of, "threads"))
    # What the file has not, by the frame's name, and why.
    missing: dict[str, str] = field(default_factory=dict)
    # What a reader of the numbers has to know: slug and text.
    notes: list[tuple[str, str]] = field(default_factory=list)


def read_export(path: Path, wanted: int | None = None) -> Export:
    """What one process of a capture did: `wanted` by its number, else the one it is of.

    Raises `ExportError` if the file cannot be read, or has nothing of that process.
    """
    with ExportFile(path) as file:
        types = EventTypes.of(file)
        process, others = target_process(file, types, wanted)
        ranges, still_open = read_ranges(file, process, types)
        work, untimed = read_work(file, process)
        threads = _threads(file, process)
        observers = threads["thread"][threads["name"].str.startswith(_OBSERVER, na=False)]
        frames = {
            "ranges": ranges,
            "calls": read_calls(file, process),
            "libraries": read_libraries(file, process),
            "os_calls": _without(observers, read_os_calls(file, process)),
            "work": work,
            "synchronisations": read_synchronisations(file, process),
            "memory": read_memory(file, process),
            "samples": _without(observers, read_samples(file, process)),
            "callchains": read_callchains(file, process),
        }
        begin, end = _span(frames)
        told = _meta(file)
        return Export(
            source=path.name,
            version=told.get("EXPORT_PRODUCT_VERSION"),
            schema=told.get("EXPORT_SCHEMA_VERSION"),
            process=process,
            others=others,
            begin_ns=begin,
            end_ns=end,
            open_ranges=len(still_open),
            **frames,
            threads=threads,
            missing=_missing(frames),
            notes=[
                *_of_open_ranges(still_open),
                *_of_untimed_work(untimed),
                *_of_lost_events(file, process),
            ],
        )


def _meta(file: ExportFile) -> dict[str, str]:
    """What wrote the file; the table changed its name after 2022."""
    told: dict[str, str] = {}
    for table in ("EXPORT_META_DATA", "META_DATA_EXPORT"):
        if file.has(table):
            told |= file.rows(
                f"SELECT name, CAST(value AS TEXT) FROM {table} WHERE name LIKE '%VERSION'"
            )
    return told


def _threads(file: ExportFile, process: int) -> pd.DataFrame:
    """The last name of each thread."""
    wanted = {
        "thread": Column("globalTid", needed=True),
        "name": Column("nameId", needed=True),
    }
    read = file.columns("ThreadNames", wanted, file.is_of("ThreadNames", process))
    frame = frame_of("threads", {**read, "name": file.strings(read["name"])})
    ordered = frame.sort_values("thread", kind="stable")
    named: pd.DataFrame = ordered.drop_duplicates("thread", keep="last", ignore_index=True)
    return named


def _without(threads: pd.Series, frame: pd.DataFrame) -> pd.DataFrame:
    kept: pd.DataFrame = frame[~frame["thread"].isin(threads)].reset_index(drop=True)
    return kept


def _span(frames: dict[str, pd.DataFrame]) -> tuple[int, int]:
    """From the first begin of an event to the last end."""
    begins, ends = [], []
    for frame in frames.values():
        begin, end = ("t", "t") if "t" in frame else ("start", "end")
        if begin in frame and len(frame):
            begins.append(int(frame[begin].min()))
            ends.append(int(frame[end].max()))
    return min(begins, default=0), max(ends, default=0)


def _missing(frames: dict[str, pd.DataFrame]) -> dict[str, str]:
    """Of each frame without a row, why that may be; the file itself does not tell which it is."""
    return {
        name: f"no {what} of the process: nothing of it happened, or nsys ran without {option}"
        for name, (what, option) in _TAKES.items()
        if not len(frames[name])
    }


def _of_open_ranges(texts: list[str]) -> list[tuple[str, str]]:
    if not texts:
        return []
    names = sorted(set(texts))
    shown = ", ".join(names[:_NAMES_SHOWN]) + (", ..." if len(names) > _NAMES_SHOWN else "")
    told = "range was" if len(texts) == 1 else "ranges were"
    text = f"{len(texts)} {told} still open when the capture ended, and left out: {shown}"
    return [(OPEN_RANGES, text)]


def _of_untimed_work(count: int) -> list[tuple[str, str]]:
    if not count:
        return []
    text = f"{count} kernels, copies or graphs have no time in the file, and are left out"
    return [(UNTIMED_WORK, text)]


def _of_lost_events(file: ExportFile, process: int) -> list[tuple[str, str]]:
    """Whether nsys says of itself that it lost events; its own words may name paths and hosts."""
    columns = file.schema.get("DIAGNOSTIC_EVENT", {})
    if "text" not in columns:
        return []
    losses = " OR ".join(f"text LIKE '%{word}%'" for word in _LOSSES)
    severe = "severity >= 2" if "severity" in columns else "1"
    mine = "1"
    if "globalPid" in columns:
        # What is of the whole session has no process: null, 0, or bits above those of a process.
        mine = f"IFNULL({file.process_of('DIAGNOSTIC_EVENT')}, 0) IN (0, {process})"
    query = f"SELECT COUNT(*) FROM DIAGNOSTIC_EVENT WHERE {severe} AND {mine} AND ({losses})"
    ((count,),) = file.rows(query)
    if not count:
        return []
    text = f"nsys warns ({count} times) that events of this capture are not in it; counts are low"
    return [(LOST_EVENTS, text)]
