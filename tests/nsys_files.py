"""Writes SQLite exports as Nsight Systems of several years does, for tests that have no GPU.

Tables and columns are those of the published schemas: 2022 as nsys 2022.4 writes it, 2024 and 2026
with what came since, and "2021" for the time when no column could be null and a default stood for
"none". Tables are made when something is put into them, as nsys does it. Times are nanoseconds.
"""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path
from types import TracebackType
from typing import Any

GENERATIONS = ("2022", "2024", "2026")
OLDEST = "2021"
PID = 4242


def process_of(pid: int) -> int:
    """The global identifier of a process: virtual machine 1, no thread."""
    return (1 << 48) | (pid << 24)


def thread_of(pid: int, thread: int) -> int:
    """The global identifier of a thread, as it stands in every frame of an `Export`."""
    return process_of(pid) | thread


MAIN = thread_of(PID, PID)
AUTOGRAD = thread_of(PID, PID + 1)

_KERNEL = (
    "start end deviceId contextId streamId correlationId? globalPid? demangledName shortName "
    "mangledName? launchType? cacheConfig? registersPerThread gridX gridY gridZ blockX blockY "
    "blockZ staticSharedMemory dynamicSharedMemory localMemoryPerThread localMemoryTotal gridId "
    "sharedMemoryExecuted? graphNodeId? sharedMemoryLimitConfig?"
)
_CHAIN = "kernelMode? thumbCode? unresolved? specialEntry? originalIP? unwindMethod? stackDepth"
# Columns of nsys 2022.4; one that may be null has a question mark, all but the named are integers.
_TABLES = {
    "StringIds": "id value:TEXT",
    "ThreadNames": "nameId priority? globalTid?",
    "PROCESSES": "globalPid? pid? name:TEXT?",
    "ProcessStreams": "globalPid filenameId contentId",
    "TARGET_INFO_SYSTEM_ENV": "globalVid devStateName:TEXT name:TEXT nameEnum value:TEXT",
    "ANALYSIS_DETAILS": "globalVid duration startTime stopTime",
    "NVTX_EVENTS": "start end? eventType rangeId? category? color? text:TEXT? globalTid? "
    "endGlobalTid? textId? domainId? uint64Value? int64Value? doubleValue:REAL? uint32Value? "
    "int32Value? floatValue:REAL? jsonTextId? jsonText:TEXT?",
    "CUPTI_ACTIVITY_KIND_RUNTIME": "start end eventClass globalTid? correlationId? nameId "
    "returnValue callchainId?",
    "CUPTI_ACTIVITY_KIND_KERNEL": _KERNEL,
    "CUPTI_ACTIVITY_KIND_MEMCPY": "start end deviceId contextId streamId correlationId? "
    "globalPid? bytes copyKind deprecatedSrcId? srcKind? dstKind? srcDeviceId? srcContextId? "
    "dstDeviceId? dstContextId? migrationCause? graphNodeId? virtualAddress?",
    "CUPTI_ACTIVITY_KIND_MEMSET": "start end deviceId contextId streamId correlationId? "
    "globalPid? value bytes graphNodeId? memKind?",
    "CUPTI_ACTIVITY_KIND_SYNCHRONIZATION": "start end deviceId contextId streamId "
    "correlationId? globalPid? syncType eventId",
    "CUDNN_EVENTS": "start end eventClass globalTid? nameId",
    "CUBLAS_EVENTS": "start end eventClass globalTid? nameId",
    "OSRT_API": "start end eventClass globalTid? nameId returnValue nestingLevel? callchainId",
    "CUDA_GPU_MEMORY_USAGE_EVENTS": "start globalPid deviceId contextId address pc bytes memKind "
    "memoryOperationType name:TEXT? correlationId?",
    "COMPOSITE_EVENTS": "id start cpu? threadState? globalTid? cpuCycles",
    "CUDA_CALLCHAINS": "id symbol module unresolved? originalIP? stackDepth",
    "OSRT_CALLCHAINS": f"id symbol module {_CHAIN}",
    "SAMPLING_CALLCHAINS": f"id symbol module {_CHAIN}",
}
# What came since, by the generation that has it first.
_SINCE_2024 = {
    "CUPTI_ACTIVITY_KIND_GRAPH_TRACE": "start end deviceId graphId graphExecId? contextId "
    "greenContextId? streamId correlationId? globalPid?",
    "DIAGNOSTIC_EVENT": "timestamp timestampType source severity text:TEXT globalPid?",
    "GPU_METRICS": "rawTimestamp timestamp typeId metricId value",
}
_COLUMNS_SINCE = {
    "2024": {
        "NVTX_EVENTS": "binaryData:TEXT?",
        "CUPTI_ACTIVITY_KIND_KERNEL": "greenContextId?",
        "CUPTI_ACTIVITY_KIND_MEMCPY": "greenContextId?",
        "CUPTI_ACTIVITY_KIND_MEMSET": "greenContextId?",
        "CUPTI_ACTIVITY_KIND_SYNCHRONIZATION": "greenContextId?",
    },
    "2026": {
        "CUPTI_ACTIVITY_KIND_KERNEL": "qmdBulkReleaseDone? graphId? clusterX?",
        "CUPTI_ACTIVITY_KIND_MEMCPY": "copyCount?",
        "CUPTI_ACTIVITY_KIND_SYNCHRONIZATION": "deprecatedSyncType? eventSyncId?",
        "CUDA_GPU_MEMORY_USAGE_EVENTS": "streamId? localMemoryPoolSize?",
    },
}
_ENUMS = {
    "ENUM_CUDA_MEMCPY_OPER": {
        1: ("CUDA_MEMCPY_KIND_HTOD", "Host-to-Device"),
        2: ("CUDA_MEMCPY_KIND_DTOH", "Device-to-Host"),
        8: ("CUDA_MEMCPY_KIND_DTOD", "Device-to-Device"),
        9: ("CUDA_MEMCPY_KIND_HTOH", "Host-to-Host"),
        10: ("CUDA_MEMCPY_KIND_PTOP", "Peer-to-Peer"),
        11: ("CUDA_MEMCPY_KIND_UVM_HTOD", "Unified Host-to-Device"),
    },
    "ENUM_CUDA_MEM_KIND": {
        0: ("CUDA_MEMOPR_MEMORY_KIND_PAGEABLE", "Pageable"),
        1: ("CUDA_MEMOPR_MEMORY_KIND_PINNED", "Pinned"),
        2: ("CUDA_MEMOPR_MEMORY_KIND_DEVICE", "Device"),
        3: ("CUDA_MEMOPR_MEMORY_KIND_ARRAY", "Array"),
        4: ("CUDA_MEMOPR_MEMORY_KIND_MANAGED", "Managed"),
        5: ("CUDA_MEMOPR_MEMORY_KIND_DEVICE_STATIC", "Device Static"),
        6: ("CUDA_MEMOPR_MEMORY_KIND_MANAGED_STATIC", "Managed Static"),
    },
    "ENUM_CUDA_DEV_MEM_EVENT_OPER": {
        0: ("CUDA_DEV_MEM_EVENT_OPR_ALLOCATION", "Allocation"),
        1: ("CUDA_DEV_MEM_EVENT_OPR_DEALLOCATION", "Deallocation"),
    },
    "ENUM_CUPTI_SYNC_TYPE": {
        1: ("CUPTI_ACTIVITY_SYNCHRONIZATION_TYPE_EVENT_SYNCHRONIZE", "Event sync"),
        2: ("CUPTI_ACTIVITY_SYNCHRONIZATION_TYPE_STREAM_WAIT_EVENT", "Stream wait sync"),
        3: ("CUPTI_ACTIVITY_SYNCHRONIZATION_TYPE_STREAM_SYNCHRONIZE", "Stream sync"),
        4: ("CUPTI_ACTIVITY_SYNCHRONIZATION_TYPE_CONTEXT_SYNCHRONIZE", "Context sync"),
    },
    "ENUM_NSYS_EVENT_CLASS": {
        0: ("TRACE_PROCESS_EVENT_CUDA_RUNTIME", "CUDA runtime"),
        1: ("TRACE_PROCESS_EVENT_CUDA_DRIVER", "CUDA driver"),
        10: ("TRACE_PROCESS_EVENT_CUDA_START", "CUDA start"),
        13: ("TRACE_PROCESS_EVENT_CUDA_EGL_DRIVER", "CUDA EGL driver"),
        67: ("TRACE_PROCESS_EVENT_CUDABACKTRACE", "CUDA backtrace"),
        68: ("TRACE_PROCESS_EVENT_CUDABACKTRACE_START", "CUDA backtrace start"),
        69: ("TRACE_PROCESS_EVENT_CUDABACKTRACE_FINISH", "CUDA backtrace finish"),
    },
    "ENUM_NSYS_EVENT_TYPE": {
        33: ("NvtxCategory", "NvtxCategory"),
        34: ("NvtxMark", "NvtxMark"),
        59: ("NvtxPushPopRange", "NvtxPushPopRange"),
        60: ("NvtxStartEndRange", "NvtxStartEndRange"),
        75: ("NvtxDomainCreate", "NvtxDomainCreate"),
    },
}
_VERSIONS = {
    "2021": ("2021.5.1.118", "2.9.3"),
    "2022": ("2022.4.2.1", "3.0.0"),
    "2024": ("2024.3.1.75", "3.15.1"),
    "2026": ("2026.1.1.204", "3.24.14"),
}
# What stands for no process in messages about the whole session.
_WHOLE_SESSION = -(1 << 57)
_STYLES = {"push_pop": 59, "start_end": 60}


class NsysFile:
    """An export in the making; `close`, or the end of its `with`, writes it."""

    def __init__(self, path: Path, generation: str = "2022") -> None:
        self.path = path
        self.generation = generation
        self.version, self.schema = _VERSIONS[generation]
        self._rows: dict[str, list[dict[str, Any]]] = {}
        self._strings: dict[str, int] = {}
        self._domains: dict[tuple[int, str], int] = {}
        self._categories: dict[tuple[int, str, str], int] = {}
        self._last = 0
        self._samples = 0

    def __enter__(self) -> NsysFile:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if kind is None:
            self.close()

    def range(
        self,
        start: int,
        end: int | None,
        text: str,
        *,
        domain: str = "profstack",
        category: str | None = "module",
        payload: int | None = None,
        thread: int = MAIN,
        style: str = "push_pop",
        pid: int = PID,
    ) -> None:
        """A range; without an end it is still open when the capture ends."""
        thread = _thread(thread, pid)
        domain_id = self._domain(domain, thread)
        category_id = None
        if category is not None:
            category_id = self._category(domain, category, thread)
        self.row(
            "NVTX_EVENTS",
            start=start,
            end=end if end is not None else _OPEN,
            eventType=_STYLES[style],
            category=category_id,
            domainId=domain_id,
            globalTid=thread,
            color=255,
            int64Value=payload,
            **self._text(text, registered=self.generation in ("2024", "2026")),
        )

    def call(
        self,
        start: int,
        end: int,
        name: str,
        correlation: int | None,
        *,
        thread: int = MAIN,
        failed: bool = False,
        callchain: int = 0,
        pid: int = PID,
    ) -> None:
        """A call of the CUDA runtime (cuda...) or of the driver (cu...)."""
        runtime = name.startswith("cuda")
        self.row(
            "CUPTI_ACTIVITY_KIND_RUNTIME",
            start=start,
            end=end,
            eventClass=0 if runtime else 1,
            globalTid=_thread(thread, pid),
            correlationId=correlation,
            nameId=self._string(f"{name}_v7000" if runtime else name),
            returnValue=2 if failed else 0,
            callchainId=callchain or None,
        )

    def backtrace(
        self,
        start: int,
        end: int,
        name: str,
        correlation: int | None,
        *,
        callchain: int,
        thread: int = MAIN,
        pid: int = PID,
    ) -> None:
        """The second row of a call whose stack was taken: the chain stands in it alone."""
        self.row(
            "CUPTI_ACTIVITY_KIND_RUNTIME",
            start=start,
            end=end,
            eventClass=67,
            globalTid=_thread(thread, pid),
            correlationId=correlation,
            nameId=self._string(name),
            returnValue=0,
            callchainId=callchain,
        )

    def kernel(
        self,
        start: int,
        end: int,
        name: str,
        correlation: int | None,
        *,
        device: int = 0,
        stream: int = 7,
        graph_node: int = 0,
        pid: int = PID,
    ) -> None:
        """A kernel on a device; of a graph if it has a node."""
        self.row(
            "CUPTI_ACTIVITY_KIND_KERNEL",
            start=start,
            end=end,
            deviceId=device,
            contextId=1,
            streamId=stream,
            correlationId=correlation,
            globalPid=process_of(pid),
            demangledName=self._string(name),
            shortName=self._string(name.split("<", maxsplit=1)[0]),
            graphNodeId=graph_node or None,
        )

    def copy(
        self,
        start: int,
        end: int,
        correlation: int | None,
        *,
        bytes: int,  # noqa: A002 - the frame's own word
        kind: str = "host to device",
        source: str = "pageable",
        target: str = "device",
        device: int = 0,
        stream: int = 7,
        graph_node: int = 0,
        count: int | None = None,
        pid: int = PID,
    ) -> None:
        """A copy, or since 2026 `count` of them; `kind` in words, as `Export.work` says it."""
        self.row(
            "CUPTI_ACTIVITY_KIND_MEMCPY",
            start=start,
            end=end,
            deviceId=device,
            contextId=1,
            streamId=stream,
            correlationId=correlation,
            globalPid=process_of(pid),
            bytes=bytes,
            copyKind=_number("ENUM_CUDA_MEMCPY_OPER", kind),
            srcKind=_number("ENUM_CUDA_MEM_KIND", source),
            dstKind=_number("ENUM_CUDA_MEM_KIND", target),
            graphNodeId=graph_node or None,
            copyCount=count,
        )

    def fill(
        self,
        start: int,
        end: int,
        correlation: int | None,
        *,
        bytes: int,  # noqa: A002 - the frame's own word
        target: str = "device",
        device: int = 0,
        stream: int = 7,
        graph_node: int = 0,
        pid: int = PID,
    ) -> None:
        """A memset."""
        self.row(
            "CUPTI_ACTIVITY_KIND_MEMSET",
            start=start,
            end=end,
            deviceId=device,
            contextId=1,
            streamId=stream,
            correlationId=correlation,
            globalPid=process_of(pid),
            bytes=bytes,
            memKind=_number("ENUM_CUDA_MEM_KIND", target),
            graphNodeId=graph_node or None,
        )

    def graph(
        self,
        start: int,
        end: int,
        correlation: int | None,
        *,
        graph: int = 1,
        device: int = 0,
        stream: int = 7,
        pid: int = PID,
    ) -> None:
        """A CUDA graph that was traced as a whole; exports of 2022 have no table for these."""
        if self.generation in ("2021", "2022"):
            raise ValueError("nsys of 2022 exports no graph that was traced as a whole")
        self.row(
            "CUPTI_ACTIVITY_KIND_GRAPH_TRACE",
            start=start,
            end=end,
            deviceId=device,
            contextId=1,
            graphId=graph,
            graphExecId=graph + 1,
            streamId=stream,
            correlationId=correlation,
            globalPid=process_of(pid),
        )

    def synchronise(
        self,
        start: int,
        end: int,
        correlation: int | None,
        *,
        kind: str = "stream",
        device: int = 0,
        stream: int = 7,
        pid: int = PID,
    ) -> None:
        """A wait for the device: "event", "stream wait", "stream" or "context"."""
        self.row(
            "CUPTI_ACTIVITY_KIND_SYNCHRONIZATION",
            start=start,
            end=end,
            deviceId=device,
            contextId=1,
            streamId=stream,
            correlationId=correlation,
            globalPid=process_of(pid),
            syncType=_number("ENUM_CUPTI_SYNC_TYPE", f"{kind} sync"),
        )

    def library(
        self,
        start: int,
        end: int,
        library: str,
        name: str,
        *,
        thread: int = MAIN,
        pid: int = PID,
    ) -> None:
        """A call of cuDNN or cuBLAS ("cudnn", "cublas")."""
        self.row(
            f"{library.upper()}_EVENTS",
            start=start,
            end=end,
            eventClass=28 if library == "cudnn" else 29,
            globalTid=_thread(thread, pid),
            nameId=self._string(name),
        )

    def os_call(
        self,
        start: int,
        end: int,
        name: str,
        *,
        thread: int = MAIN,
        callchain: int = 0,
        pid: int = PID,
    ) -> None:
        """A call of the system's run-time library."""
        self.row(
            "OSRT_API",
            start=start,
            end=end,
            eventClass=27,
            globalTid=_thread(thread, pid),
            nameId=self._string(name),
            nestingLevel=0,
            callchainId=callchain,
        )

    def memory(
        self,
        t: int,
        *,
        bytes: int,  # noqa: A002 - the frame's own word
        operation: str = "allocated",
        address: int = 4096,
        kind: str = "device",
        device: int = 0,
        pid: int = PID,
    ) -> None:
        """Memory taken ("allocated") or given back ("freed")."""
        self.row(
            "CUDA_GPU_MEMORY_USAGE_EVENTS",
            start=t,
            globalPid=process_of(pid),
            deviceId=device,
            contextId=1,
            address=address,
            bytes=bytes,
            memKind=_number("ENUM_CUDA_MEM_KIND", kind),
            memoryOperationType=0 if operation == "allocated" else 1,
        )

    def sample(self, t: int, callchain: int = 0, *, thread: int = MAIN, pid: int = PID) -> int:
        """A CPU sample; its number is that of its callchain, given or the next one."""
        self._samples = callchain or self._samples + 1
        self.row(
            "COMPOSITE_EVENTS",
            id=self._samples,
            start=t,
            cpu=0,
            threadState=1,
            globalTid=_thread(thread, pid),
            cpuCycles=1,
        )
        return self._samples

    def callchain(self, source: str, number: int, frames: list[tuple[str, str]]) -> None:
        """A callchain of "cuda", "os" or "cpu": function and library, innermost first."""
        table = {"cuda": "CUDA", "os": "OSRT", "cpu": "SAMPLING"}[source] + "_CALLCHAINS"
        for depth, (symbol, module) in enumerate(frames):
            self.row(
                table,
                id=number,
                symbol=self._string(symbol),
                module=self._string(module),
                stackDepth=depth,
            )

    def environment(self, name: str, value: str) -> None:
        """An environment variable of the machine that was profiled."""
        self.row(
            "TARGET_INFO_SYSTEM_ENV",
            globalVid=1 << 48,
            devStateName="Process",
            name=name,
            nameEnum=0,
            value=value,
        )

    def process(self, pid: int, name: str) -> None:
        """A process that ran on the machine, profiled or not."""
        self.row("PROCESSES", globalPid=process_of(pid), pid=pid, name=name)

    def thread_name(self, thread: int, name: str) -> None:
        """The name of a thread."""
        self.row("ThreadNames", nameId=self._string(name), priority=20, globalTid=thread)

    def diagnostic(self, text: str, *, severity: int = 2, pid: int | None = None) -> None:
        """A message of nsys about the capture, or about a process; 2022 has no table for these."""
        of_all = _WHOLE_SESSION if self.generation == "2026" else None
        self.row(
            "DIAGNOSTIC_EVENT",
            timestamp=0,
            source=1,
            severity=severity,
            text=text,
            globalPid=of_all if pid is None else process_of(pid),
        )

    def row(self, table: str, **values: Any) -> None:
        """A row as it stands in the file."""
        self._rows.setdefault(table, []).append(values)
        for time in (values.get("start"), values.get("end"), values.get("timestamp")):
            if isinstance(time, int):
                self._last = max(self._last, time)

    def string(self, text: str) -> int:
        """The number of a text that stands in the file once."""
        return self._string(text)

    def close(self) -> Path:
        """Write the file."""
        duration = self._last + 1000
        self.row(
            "ANALYSIS_DETAILS",
            globalVid=1 << 48,
            duration=duration,
            startTime=500,
            stopTime=duration + 500,
        )
        for row in self._rows.get("NVTX_EVENTS", ()):
            if row.get("end") is _OPEN:
                row["end"] = None if self.generation == "2026" else duration
        self._rows["StringIds"] = [{"id": n, "value": text} for text, n in self._strings.items()]
        with closing(sqlite3.connect(self.path)) as database, database:
            for table, rows in self._rows.items():
                self._write(database, table, rows)
            self._write_meta(database)
            if self.generation != OLDEST:
                for table, entries in _ENUMS.items():
                    database.execute(
                        f"CREATE TABLE {table} (id INTEGER PRIMARY KEY, name TEXT, label TEXT)"
                    )
                    labels = [(number, *named) for number, named in entries.items()]
                    database.executemany(f"INSERT INTO {table} VALUES (?, ?, ?)", labels)
            if self.generation == "2026":
                database.execute(
                    "CREATE TABLE NVTX_SCOPES (domainId INTEGER, scopeId INTEGER, path TEXT)"
                )
        return self.path

    def _write(self, database: sqlite3.Connection, table: str, rows: list[dict[str, Any]]) -> None:
        columns = self._columns(table)
        made = ", ".join(
            f"{name} {kind}" + ("" if null else " NOT NULL") for name, kind, null in columns
        )
        database.execute(f"CREATE TABLE {table} ({made})")
        # Since 2025 nsys says that rows come in no order that could be relied on.
        ordered = reversed(rows) if self.generation == "2026" else rows
        blanks = {name: _default(kind, null=null) for name, kind, null in columns}
        names = list(blanks)
        filled = (
            [blanks[name] if row.get(name) is None else row[name] for name in names]
            for row in ordered
        )
        marks = ", ".join("?" * len(names))
        database.executemany(f"INSERT INTO {table} VALUES ({marks})", filled)

    def _columns(self, table: str) -> list[tuple[str, str, bool]]:
        """Name, type and whether it may be null, of the columns this generation has."""
        known = _TABLES if self.generation in ("2021", "2022") else {**_TABLES, **_SINCE_2024}
        told = known[table].split()
        for since, added in _COLUMNS_SINCE.items():
            if self.generation >= since:
                told += added.get(table, "").split()
        columns = []
        for each in told:
            null = each.endswith("?") and self.generation != OLDEST
            name, _, kind = each.rstrip("?").partition(":")
            columns.append((name, kind or "INTEGER", null))
        return columns

    def _write_meta(self, database: sqlite3.Connection) -> None:
        told = [
            ("EXPORT_PRODUCT_NAME", "NVIDIA Nsight Systems"),
            ("EXPORT_PRODUCT_VERSION", self.version),
            ("EXPORT_SCHEMA_VERSION", self.schema),
            ("EXPORT_HOST", "secret-host"),
            ("EXPORT_USER", "secret-user"),
        ]
        newer = self.generation in ("2024", "2026")
        table = "META_DATA_EXPORT" if newer else "EXPORT_META_DATA"
        database.execute(f"CREATE TABLE {table} (name TEXT NOT NULL, value TEXT)")
        database.executemany(f"INSERT INTO {table} VALUES (?, ?)", told)
        if newer:
            database.execute("CREATE TABLE META_DATA_CAPTURE (name TEXT NOT NULL, value TEXT)")
            session = ("PROFILING_SESSION_UUID", "0f7e5a2c")
            database.execute("INSERT INTO META_DATA_CAPTURE VALUES (?, ?)", session)

    def _string(self, text: str) -> int:
        return self._strings.setdefault(text, len(self._strings) + 1)

    def _text(self, text: str, *, registered: bool) -> dict[str, Any]:
        return {"textId": self._string(text)} if registered else {"text": text}

    def _domain(self, domain: str, thread: int) -> int | None:
        """The number of a domain in a process: told by an event the first time, 0 the default."""
        if not domain:
            return 0
        key = (thread >> 24, domain)
        if key not in self._domains:
            self._domains[key] = 1 + sum(process == key[0] for process, _ in self._domains)
            text = self._text(domain, registered=self.generation == "2026")
            self.row(
                "NVTX_EVENTS",
                start=1,
                eventType=75,
                globalTid=thread,
                domainId=self._domains[key],
                **text,
            )
        return self._domains[key]

    def _category(self, domain: str, category: str, thread: int) -> int:
        key = (thread >> 24, domain, category)
        if key not in self._categories:
            same = sum(each[:2] == key[:2] for each in self._categories)
            self._categories[key] = 1 + same
            text = self._text(category, registered=self.generation == "2026")
            self.row(
                "NVTX_EVENTS",
                start=1,
                eventType=33,
                globalTid=thread,
                domainId=self._domain(domain, thread),
                category=1 + same,
                **text,
            )
        return self._categories[key]


_OPEN = object()


def _thread(thread: int, pid: int) -> int:
    """The thread; of another process than its own, that one's main thread."""
    return thread if (thread >> 24) & 0xFFFFFF == pid else thread_of(pid, pid)


def _number(enum: str, words: str) -> int:
    for number, (_, label) in _ENUMS[enum].items():
        if label.lower().replace("-", " ") == words:
            return number
    raise ValueError(f"{enum} has no {words!r}")


def _default(kind: str, *, null: bool) -> Any:
    if null:
        return None
    return {"TEXT": "", "REAL": 0.0}.get(kind, 0)
