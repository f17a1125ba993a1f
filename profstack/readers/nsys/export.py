"""Read an export of Nsight Systems: the events of each process of a capture.

Files of nsys 2022 to 2026 differ in tables, columns and in the value for "none"; the `Export` does
not. Only events of the processes that were profiled are read: neither the environment of the run,
which the file holds in full, nor other programs of the machine, which CPU samples may show.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial, reduce
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from profstack.readers.nsys.export_file import (
    PROCESS_BITS,
    UNNAMED,
    Column,
    Columns,
    ExportError,
    ExportFile,
    Ints,
    Objects,
    among,
    frame_of,
    mapped,
    needed,
    numbered,
)
from profstack.readers.nvtx import DOMAIN
from profstack.readers.torchtrace.columns import Bools

# --- Tables of events -----------------------------------------------------------------------------

TABLE = "NVTX_EVENTS"
KERNELS = "CUPTI_ACTIVITY_KIND_KERNEL"
COPIES = "CUPTI_ACTIVITY_KIND_MEMCPY"
FILLS = "CUPTI_ACTIVITY_KIND_MEMSET"
GRAPHS = "CUPTI_ACTIVITY_KIND_GRAPH_TRACE"
WAITS = "CUPTI_ACTIVITY_KIND_SYNCHRONIZATION"
MEMORY = "CUDA_GPU_MEMORY_USAGE_EVENTS"
CUDA_CALLS = "CUPTI_ACTIVITY_KIND_RUNTIME"
OS_CALLS = "OSRT_API"
LIBRARIES = {"cudnn": "CUDNN_EVENTS", "cublas": "CUBLAS_EVENTS"}
SAMPLES = "COMPOSITE_EVENTS"
DEVICE_WORK = (KERNELS, COPIES, FILLS, GRAPHS)
_OTHER_EVENTS = (CUDA_CALLS, *LIBRARIES.values(), OS_CALLS, MEMORY, SAMPLES)

# --- NVTX: ranges, and the names of their domains and categories ----------------------------------

_DETAILS = "ANALYSIS_DETAILS"
PUSH_POP = "push_pop"
# A text is in the event itself, or among the strings if it was registered.
_TEXT = {"text": Column("text", kind="text"), "text_id": Column("textId", from_one=True)}
# Types of payloads; fractions are not read.
_PAYLOADS = ("int64Value", "int32Value", "uint32Value", "uint64Value")
_TYPES = "ENUM_NSYS_EVENT_TYPE"
# The types of events, by nsys's own names and with the numbers of all versions so far. Those with
# a t come from a text file of ranges that was imported by nsys.
_START_END = {"NvtxStartEndRange": 60, "NvtxtStartEndRange": 71}
_RANGES = {"NvtxPushPopRange": 59, "NvtxtPushPopRange": 70} | _START_END
_CATEGORY = {"NvtxCategory": 33, "NvtxtCategory": 64}
_DOMAIN = {"NvtxDomainCreate": 75}


def _is_type(file: ExportFile, types: Mapping[str, int]) -> str:
    """Return SQL for events of these types."""
    return among("eventType", file.numbers(_TYPES, types))


def domains_of(file: ExportFile) -> dict[tuple[int, int], str | None]:
    """Read the names of all domains, by process and number."""
    wanted = {**needed(thread="globalTid"), "domain": Column("domainId"), **_TEXT}
    read = file.columns(TABLE, wanted, _is_type(file, _DOMAIN))
    processes = ((read["thread"] >> 24) & PROCESS_BITS).tolist()
    keys = zip(processes, read["domain"].tolist(), strict=True)
    return dict(zip(keys, _texts(file, read).tolist(), strict=True))


def read_ranges(file: ExportFile, process: int) -> tuple[pd.DataFrame, list[str]]:
    """Read the ranges of a process, and the texts of those still open at the capture's end."""
    wanted = {
        **needed(start="start", end="end", thread="globalTid", type="eventType"),
        "domain": Column("domainId"),
        "category": Column("category", from_one=True),
        **{name: Column(name, kind="payload") for name in _PAYLOADS},
        **_TEXT,
    }
    where = f"{_is_type(file, _RANGES)} AND {file.is_of(TABLE, process)}"
    read = file.columns(TABLE, wanted, where, order="start")
    texts = _texts(file, read)
    # An older nsys gives a range that is still open the end of the capture itself. Both columns
    # are the same moment where the clock begins with the capture.
    known = [name for name in ("duration", "stopTime") if name in file.schema.get(_DETAILS, ())]
    found = (file.rows(f"SELECT {name} FROM {_DETAILS}") for name in known)
    ends = [end for rows in found for (end,) in rows if end]
    still_open = (read["end"] < read["start"]) | np.isin(read["end"], ends)
    domains = domains_of(file)
    start_end = np.isin(read["type"], file.numbers(_TYPES, _START_END))
    payloads = [read[name] for name in reversed(_PAYLOADS)]
    frame = frame_of(
        "ranges",
        {
            **read,
            "style": np.where(start_end, "start_end", PUSH_POP),
            "domain": mapped(read["domain"], lambda number: domains.get((process, number)) or ""),
            "category": _categories(file, process, read),
            "text": np.where(pd.isna(texts), "", texts),
            # The first one that is not None.
            "payload": reduce(lambda last, one: np.where(pd.isna(one), last, one), payloads),
        },
    )
    return frame[~still_open].reset_index(drop=True), frame["text"][still_open].tolist()


def _categories(file: ExportFile, process: int, read: Columns) -> Objects:
    """Return the category of each range; a category belongs to a domain."""
    wanted = {"domain": Column("domainId"), "category": Column("category"), **_TEXT}
    where = f"{_is_type(file, _CATEGORY)} AND {file.is_of(TABLE, process)}"
    declared = file.columns(TABLE, wanted, where)
    keys = _joined(declared["domain"], declared["category"]).tolist()
    names = dict(zip(keys, _texts(file, declared).tolist(), strict=True))
    ranges = _joined(read["domain"], read["category"])
    return mapped(ranges, lambda number: names.get(number) or None)


def _joined(domain: Ints, category: Ints) -> Ints:
    """Return one number for both; no domain and the default one are the same."""
    return (np.maximum(domain, 0) << 32) | (category & 0xFFFFFFFF)


def _texts(file: ExportFile, read: Columns) -> Objects:
    inline = read["text"]
    return np.where(pd.isna(inline), file.strings(read["text_id"]), inline)


# --- The processes to read ------------------------------------------------------------------------

# Processes of one capture; those with the fewest events are left out beyond that.
MOST_PROCESSES = 32


def processes_of(file: ExportFile, wanted: int | None = None) -> tuple[list[int], int]:
    """Return the processes to read, the capture's own first, and the number of those left out.

    The first is the one with most ranges of profstack, else with most work on devices, else with
    most ranges, else with most events. With `wanted` it is that one alone. Raises `ExportError` if
    there is none.
    """
    ours, work, ranges = (Counter[int]() for _ in range(3))
    if file.has(TABLE):
        domains = domains_of(file)
        number = file.expression(TABLE, Column("domainId"))
        file.expression(TABLE, Column("eventType", needed=True))
        for pid, domain, count in file.rows(
            f"SELECT {file.process_of(TABLE)}, {number}, COUNT(*) FROM {TABLE} "
            f"WHERE {_is_type(file, _RANGES)} GROUP BY 1, 2"
        ):
            if pid:
                ranges[pid] += count
                ours[pid] += count * (domains.get((pid, domain)) == DOMAIN)
    every, sampled = ranges.copy(), Counter[int]()
    for table in filter(file.has, (*DEVICE_WORK, *_OTHER_EVENTS)):
        query = f'SELECT {file.process_of(table)}, COUNT(*) FROM "{table}" GROUP BY 1'
        found = {pid: count for pid, count in file.rows(query) if pid}
        (sampled if table == SAMPLES else every).update(found)
        if table in DEVICE_WORK:
            work.update(found)
    # Of a process that nsys did not start it has CPU samples alone: it may be anybody's.
    known = every or sampled
    if not known:
        raise ExportError(
            "holds no event of any process",
            where=str(file.path),
            next_step="profile again, with nsys profile --trace cuda,nvtx,osrt",
        )
    if wanted is not None and wanted not in known:
        most = ", ".join(f"{pid} ({count:,})" for pid, count in known.most_common(8))
        raise ExportError(
            f"holds no event of process {wanted}",
            where=str(file.path),
            next_step=f"--process is one of these (with their events): {most}",
        )
    order = sorted(known, key=lambda pid: (-ours[pid], -work[pid], -ranges[pid], -known[pid], pid))
    read = order[:MOST_PROCESSES] if every else order[:1]
    if wanted is not None:
        read = [wanted]
    return read, len(every | sampled) - len(read)


# --- Calls of the host: CUDA runtime and driver, cuDNN, cuBLAS and the system ---------------------

# Marks among the calls of a library: its tracing began or ended.
_MARKS = (31, 32, 33, 34, 35, 36)
# Classes of calls in the table of CUDA, by nsys's own names; it has marks too.
_CALLS = {
    "TRACE_PROCESS_EVENT_CUDA_RUNTIME": 0,
    "TRACE_PROCESS_EVENT_CUDA_DRIVER": 1,
    "TRACE_PROCESS_EVENT_CUDA_EGL_DRIVER": 13,
}
# A second row of a call whose stack was taken: the same call once more, with the callchain.
_STACK = {"TRACE_PROCESS_EVENT_CUDABACKTRACE": 67}
_NO_MARK = f"eventClass NOT IN {_MARKS}"
_CLASSES = "ENUM_NSYS_EVENT_CLASS"
# 600 is "not ready", the answer to a query of an event or a stream: no error.
_NO_FAILURE = (0, 600)
_CALL = needed(start="start", end="end", thread="globalTid", name="nameId")


def read_calls(file: ExportFile, process: int) -> pd.DataFrame:
    """Read calls of the CUDA runtime and of the driver, by begin.

    A correlation number is in one call only: where a call of the driver was traced inside one of
    the runtime, the outer one has it.
    """
    more = {
        "correlation": Column("correlationId", needed=True, from_one=True),
        "returned": Column("returnValue"),
        "callchain": Column("callchainId", from_one=True),
        "class": Column("eventClass"),
    }
    kept = among("eventClass", file.numbers(_CLASSES, _CALLS | _STACK))
    read = _read(file, CUDA_CALLS, process, kept, **more)
    failed = ~np.isin(read["returned"], (*_NO_FAILURE, -1))
    # Names without the version of the interface, as in cudaLaunchKernel_v7000.
    names = mapped(read["name"], lambda name: re.sub(r"_v\d+$", "", name))
    frame = frame_of("calls", {**read, "failed": failed, "name": names})
    frame = _with_stacks(frame, np.isin(read["class"], file.numbers(_CLASSES, _STACK)))
    frame["correlation"] = frame["correlation"].mask(frame["correlation"].duplicated(), -1)
    return frame


def read_libraries(file: ExportFile, process: int) -> pd.DataFrame:
    """Read calls of cuDNN and cuBLAS, by begin."""
    frames = (
        frame_of("libraries", {**_read(file, table, process, _NO_MARK), "library": library})
        for library, table in LIBRARIES.items()
    )
    both: pd.DataFrame = pd.concat(frames).sort_values("start", kind="stable", ignore_index=True)
    return both


def read_os_calls(file: ExportFile, process: int) -> pd.DataFrame:
    """Read calls of the system's run-time library, by begin."""
    chain = Column("callchainId", from_one=True)
    return frame_of("os_calls", _read(file, OS_CALLS, process, _NO_MARK, callchain=chain))


def _read(file: ExportFile, table: str, process: int, of_class: str, **more: Column) -> Columns:
    """Read columns of a table of calls, with names in place of their numbers."""
    where = file.is_of(table, process)
    if "eventClass" in file.schema.get(table, ()):
        where += f" AND {of_class}"
    read = file.columns(table, {**_CALL, **more}, where, order="start")
    read["name"] = file.strings(read["name"], otherwise=UNNAMED)
    return read


def _with_stacks(frame: pd.DataFrame, is_stack: Bools) -> pd.DataFrame:
    """Give calls the callchains of their second rows; a row without a call stays."""
    if not is_stack.any():
        return frame
    calls, stacks = frame[~is_stack].copy(), frame[is_stack]
    known = calls[calls["correlation"] > 0]
    # A call of the runtime and one of the driver that it makes may have the same number: rows are
    # matched by name first, then to the outer call.
    for keys in (["thread", "correlation", "name"], ["thread", "correlation"]):
        first = known[keys].drop_duplicates()
        owner = stacks[keys].merge(first.assign(row=first.index), "left", keys)["row"].to_numpy()
        found = ~np.isnan(owner)
        chains = pd.Series(stacks["callchain"].to_numpy()[found], owner[found].astype(np.int64))
        chains = chains[~chains.index.duplicated()]
        lacking = chains.index[calls.loc[chains.index, "callchain"] < 0]
        calls.loc[lacking, "callchain"] = chains[lacking]
        stacks = stacks[~found]
    both = pd.concat([calls, stacks]) if len(stacks) else calls
    ordered: pd.DataFrame = both.sort_values("start", kind="stable", ignore_index=True)
    return ordered


# --- Work of devices: kernels, copies, fills, graphs, waits, and memory taken ---------------------

# Meanings of numbers where the file has no table of them.
_DIRECTION_WORDS = (
    *("host to device", "device to host", "host to array", "array to host"),
    *("array to array", "array to device", "device to array", "device to device"),
    *("host to host", "peer to peer", "unified host to device"),
    *("unified device to host", "unified device to device"),
)
_DIRECTIONS = dict(enumerate(_DIRECTION_WORDS, start=1))
_MEMORY_WORDS = (
    *("pageable", "pinned", "device", "array", "managed", "device static", "managed static"),
)
_MEMORIES = dict(enumerate(_MEMORY_WORDS))
_WAITS = {1: "event sync", 2: "stream wait sync", 3: "stream sync", 4: "context sync"}
_OPERATIONS = {0: "allocation", 1: "deallocation"}
_EVENTS = {"allocation": "allocated", "deallocation": "freed"}
_ON_DEVICE = {
    **needed(start="start", end="end", device="deviceId", stream="streamId"),
    "correlation": Column("correlationId", from_one=True, needed=True),
}
_NODE = {"node": Column("graphNodeId", from_one=True)}
_SIZES = {name: tuple(Column(f"{name}{axis}") for axis in "XYZ") for name in ("grid", "block")}
_EXTENTS = {column.name: column for columns in _SIZES.values() for column in columns}
# By kind of work: its table, and the columns that it has.
_WORK: dict[str, tuple[str, dict[str, Column]]] = {
    "kernel": (KERNELS, {**needed(name="demangledName"), **_EXTENTS, **_NODE}),
    "copy": (
        COPIES,
        {
            **needed(bytes="bytes", direction="copyKind"),
            "from_memory": Column("srcKind"),
            "to_memory": Column("dstKind"),
            "copies": Column("copyCount", from_one=True),
            **_NODE,
        },
    ),
    "set": (FILLS, {**needed(bytes="bytes"), "to_memory": Column("memKind"), **_NODE}),
    "graph": (GRAPHS, {"name": Column("graphId")}),
}
# All streams at once, in a wait for a whole context.
_NO_STREAM = 0xFFFFFFFF


def read_work(file: ExportFile, process: int) -> tuple[pd.DataFrame, int]:
    """Read the work of devices, by begin, and count what was left out because it has no time."""
    frames = [_work_of(file, process, kind) for kind in _WORK]
    work: pd.DataFrame = pd.concat([each for each in frames if len(each)] or frames[:1])
    # CUPTI gives both times as 0 where it could not take them.
    timed = (work["end"] > 0) & (work["end"] >= work["start"])
    work = work[timed].sort_values("start", kind="stable", ignore_index=True)
    return work, int((~timed).sum())


def _work_of(file: ExportFile, process: int, kind: str) -> pd.DataFrame:
    """Read one kind of work; what it does not have is None, and its bytes are NaN."""
    table, more = _WORK[kind]
    read = file.columns(table, {**_ON_DEVICE, **more}, file.is_of(table, process))
    none = np.full(len(read["start"]), -1)
    directions = file.words("ENUM_CUDA_MEMCPY_OPER", read.get("direction", none), _DIRECTIONS)
    names: dict[str, Callable[[], Any]] = {
        "kernel": lambda: file.strings(read["name"], otherwise=UNNAMED),
        "copy": lambda: mapped(directions, lambda words: f"copy {words}" if words else "copy"),
        "set": lambda: "fill",
        "graph": lambda: mapped(read["name"], lambda number: f"graph {number}"),
    }
    columns = {
        "bytes": np.nan,
        **read,
        "kind": kind,
        "name": names[kind](),
        "direction": directions,
        "from_memory": _memories(file, read.get("from_memory", none)),
        "to_memory": _memories(file, read.get("to_memory", none)),
        "copies": np.maximum(read.get("copies", none), 1),
        "in_graph": read["node"] != -1 if "node" in read else True,
        **{size: _extents(read, axes) for size, axes in _SIZES.items()},
    }
    return frame_of("work", columns)


def _extents(read: Columns, axes: Sequence[Column]) -> Objects | None:
    """Return the three extents of grids or blocks as texts, `64 1 1`; None where unknown."""
    if axes[0].name not in read:
        return None
    number, different = numbered(pd.DataFrame({axis.name: read[axis.name] for axis in axes}))
    # Older files have 0 for unknown.
    texts = [
        " ".join(map(str, row)) if min(row) > 0 else None
        for row in different.itertuples(index=False, name=None)
    ]
    return np.array(texts, dtype=object)[number]


def _memories(file: ExportFile, numbers: Ints) -> Objects:
    return file.words("ENUM_CUDA_MEM_KIND", numbers, _MEMORIES)


def read_synchronisations(file: ExportFile, process: int) -> pd.DataFrame:
    """Read waits of the host or of a stream, by begin; stream -1 is all of them."""
    wanted = {**_ON_DEVICE, **needed(kind="syncType")}
    read = file.columns(WAITS, wanted, file.is_of(WAITS, process), order="start")
    read["stream"] = np.where(read["stream"] == _NO_STREAM, -1, read["stream"])
    read["kind"] = file.words("ENUM_CUPTI_SYNC_TYPE", read["kind"], _WAITS)
    return frame_of("synchronisations", read)


def read_memory(file: ExportFile, process: int) -> pd.DataFrame:
    """Read allocations and frees of memory, by time; other events are left out."""
    wanted = {
        **needed(t="start", bytes="bytes", operation="memoryOperationType"),
        "device": Column("deviceId"),
        "kind": Column("memKind"),
        "address": Column("address"),
    }
    read = file.columns(MEMORY, wanted, file.is_of(MEMORY, process), order="t")
    operations = file.words("ENUM_CUDA_DEV_MEM_EVENT_OPER", read["operation"], _OPERATIONS)
    read["bytes"] = np.abs(read["bytes"])
    read["kind"] = _memories(file, read["kind"])
    read["operation"] = mapped(operations, _EVENTS.get)
    frame = frame_of("memory", read)
    known: pd.DataFrame = frame[frame["operation"].notna()].reset_index(drop=True)
    return known


# --- Callchains, and CPU samples ------------------------------------------------------------------

# By source: the table of the chains, the table of their events, and its column with the number.
_CHAINS = {
    "cuda": ("CUDA_CALLCHAINS", CUDA_CALLS, "callchainId"),
    "os": ("OSRT_CALLCHAINS", OS_CALLS, "callchainId"),
    "cpu": ("SAMPLING_CALLCHAINS", SAMPLES, "id"),
}


def read_samples(file: ExportFile, process: int) -> pd.DataFrame:
    """Read CPU samples, by time; a sample and its callchain have one number."""
    wanted = needed(t="start", thread="globalTid", callchain="id")
    read = file.columns(SAMPLES, wanted, file.is_of(SAMPLES, process), order="t")
    return frame_of("samples", read)


def read_callchains(file: ExportFile, process: int) -> pd.DataFrame:
    """Read the callchains of the process's own calls and samples."""
    frames = []
    for source, (table, owners, column) in _CHAINS.items():
        if column not in file.schema.get(owners, ()):
            continue
        where = f'id IN (SELECT "{column}" FROM "{owners}" WHERE {file.is_of(owners, process)})'
        wanted = needed(id="id", depth="stackDepth", symbol="symbol", module="module")
        read = file.columns(table, wanted, where)
        read["symbol"] = file.strings(read["symbol"], otherwise=UNNAMED)
        # Libraries without their folders, which are private to the machine.
        read["module"] = mapped(
            file.strings(read["module"]), lambda path: path and re.split(r"[\\/]", path)[-1]
        )
        frames.append(frame_of("callchains", {**read, "source": source}))
    order = ["source", "id", "depth"]
    every: pd.DataFrame = pd.concat([frame_of("callchains"), *frames])
    chains: pd.DataFrame = every.sort_values(order, kind="stable", ignore_index=True)
    return chains


# --- The export -----------------------------------------------------------------------------------

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
# Words in the messages of nsys that report lost events.
_LOSSES = ("drop", "lost", "not all", "incomplete", "overflow", "ran out")
_NAMES_SHOWN = 3
# Threads of nsys itself in the process: their events are left out.
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
    begin_ns: int = 0
    end_ns: int = 0
    # Ranges that had no end when the capture ended; they are in no frame.
    open_ranges: int = 0
    ranges: pd.DataFrame = field(default_factory=partial(frame_of, "ranges"))
    # A correlation number is in one call at most; -1 is none.
    calls: pd.DataFrame = field(default_factory=partial(frame_of, "calls"))
    libraries: pd.DataFrame = field(default_factory=partial(frame_of, "libraries"))
    os_calls: pd.DataFrame = field(default_factory=partial(frame_of, "os_calls"))
    work: pd.DataFrame = field(default_factory=partial(frame_of, "work"))
    synchronisations: pd.DataFrame = field(default_factory=partial(frame_of, "synchronisations"))
    memory: pd.DataFrame = field(default_factory=partial(frame_of, "memory"))
    samples: pd.DataFrame = field(default_factory=partial(frame_of, "samples"))
    callchains: pd.DataFrame = field(default_factory=partial(frame_of, "callchains"))
    threads: pd.DataFrame = field(default_factory=partial(frame_of, "threads"))
    # Frames without rows, by name, and why.
    missing: dict[str, str] = field(default_factory=dict)
    # Notes: slug and text.
    notes: list[tuple[str, str]] = field(default_factory=list)


def read_export(path: Path, wanted: int | None = None) -> Export:
    """Read one process of a capture: the one numbered `wanted`, else the capture's own.

    Raises `ExportError` if the file cannot be read, or has nothing of that process.
    """
    with ExportFile(path) as file:
        processes, _ = processes_of(file, wanted)
        return read_process(file, processes[0])


def read_process(file: ExportFile, process: int) -> Export:
    """Read one process of an open file; raises `ExportError` if it cannot be read."""
    ranges, still_open = read_ranges(file, process)
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
    timed = [frame for frame in frames.values() if len(frame)]
    begins = [frame[name].min() for frame in timed for name in ("t", "start") if name in frame]
    ends = [frame[name].max() for frame in timed for name in ("t", "end") if name in frame]
    # The table changed its name after 2022.
    versions: dict[str, str] = {}
    for table in filter(file.has, ("EXPORT_META_DATA", "META_DATA_EXPORT")):
        query = f"SELECT name, CAST(value AS TEXT) FROM {table} WHERE name LIKE '%VERSION'"
        versions |= file.rows(query)
    return Export(
        source=file.path.name,
        version=versions.get("EXPORT_PRODUCT_VERSION"),
        schema=versions.get("EXPORT_SCHEMA_VERSION"),
        process=process,
        begin_ns=int(min(begins, default=0)),
        end_ns=int(max(ends, default=0)),
        open_ranges=len(still_open),
        **frames,
        threads=threads,
        # The file does not say which reason it is.
        missing={
            name: f"no {what} of the process: nothing of it happened, or nsys ran without {how}"
            for name, (what, how) in _TAKES.items()
            if not len(frames[name])
        },
        notes=list(_notes(still_open, untimed, _lost_events(file, process))),
    )


def _threads(file: ExportFile, process: int) -> pd.DataFrame:
    """Read the last name of each thread."""
    wanted = needed(thread="globalTid", name="nameId")
    read = file.columns("ThreadNames", wanted, file.is_of("ThreadNames", process))
    frame = frame_of("threads", {**read, "name": file.strings(read["name"])})
    ordered = frame.sort_values("thread", kind="stable")
    named: pd.DataFrame = ordered.drop_duplicates("thread", keep="last", ignore_index=True)
    return named


def _without(threads: pd.Series, frame: pd.DataFrame) -> pd.DataFrame:
    kept: pd.DataFrame = frame[~frame["thread"].isin(threads)].reset_index(drop=True)
    return kept


def _notes(still_open: list[str], untimed: int, lost: int) -> Iterator[tuple[str, str]]:
    if still_open:
        names = sorted(set(still_open))
        shown = ", ".join(names[:_NAMES_SHOWN]) + (", ..." if len(names) > _NAMES_SHOWN else "")
        verb = "range was" if len(still_open) == 1 else "ranges were"
        text = f"{len(still_open)} {verb} still open when the capture ended, and left out: {shown}"
        yield OPEN_RANGES, text
    if untimed:
        text = f"{untimed} kernels, copies or graphs have no time in the file, and are left out"
        yield UNTIMED_WORK, text
    if lost:
        text = "that events of this capture are not in it; counts are low"
        yield LOST_EVENTS, f"nsys warns ({lost} times) {text}"


def _lost_events(file: ExportFile, process: int) -> int:
    """Count warnings of nsys about lost events; their texts may name paths and hosts."""
    columns = file.schema.get("DIAGNOSTIC_EVENT", {})
    if "text" not in columns:
        return 0
    losses = " OR ".join(f"text LIKE '%{word}%'" for word in _LOSSES)
    severe = "severity >= 2" if "severity" in columns else "1"
    mine = "1"
    if "globalPid" in columns:
        # Messages about the whole session have no process: null, 0, or bits above a process's.
        mine = f"IFNULL({file.process_of('DIAGNOSTIC_EVENT')}, 0) IN (0, {process})"
    query = f"SELECT COUNT(*) FROM DIAGNOSTIC_EVENT WHERE {severe} AND {mine} AND ({losses})"
    ((count,),) = file.rows(query)
    return int(count)
