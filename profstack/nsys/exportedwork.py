"""What ran on devices, by an export: kernels, copies, fills, graphs, waits, and memory taken."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd

from profstack.nsys.exportfile import UNNAMED, Column, ExportFile, Objects
from profstack.nsys.exportframes import frame_of

KERNELS = "CUPTI_ACTIVITY_KIND_KERNEL"
COPIES = "CUPTI_ACTIVITY_KIND_MEMCPY"
FILLS = "CUPTI_ACTIVITY_KIND_MEMSET"
GRAPHS = "CUPTI_ACTIVITY_KIND_GRAPH_TRACE"
WAITS = "CUPTI_ACTIVITY_KIND_SYNCHRONIZATION"
MEMORY = "CUDA_GPU_MEMORY_USAGE_EVENTS"

# What the numbers mean where the file has no table that says it.
_DIRECTIONS = {
    1: "host to device",
    2: "device to host",
    3: "host to array",
    4: "array to host",
    5: "array to array",
    6: "array to device",
    7: "device to array",
    8: "device to device",
    9: "host to host",
    10: "peer to peer",
    11: "unified host to device",
    12: "unified device to host",
    13: "unified device to device",
}
_MEMORIES = {
    0: "pageable",
    1: "pinned",
    2: "device",
    3: "array",
    4: "managed",
    5: "device static",
    6: "managed static",
}
_WAITS = {1: "event sync", 2: "stream wait sync", 3: "stream sync", 4: "context sync"}
_OPERATIONS = {0: "allocation", 1: "deallocation"}
_TOLD = {"allocation": "allocated", "deallocation": "freed"}
_ON_DEVICE = {
    "start": Column("start", needed=True),
    "end": Column("end", needed=True),
    "device": Column("deviceId", needed=True),
    "stream": Column("streamId", needed=True),
    "correlation": Column("correlationId", from_one=True, needed=True),
}
_NODE = {"node": Column("graphNodeId", from_one=True)}
# All streams at once, in a wait for a whole context.
_NO_STREAM = 0xFFFFFFFF


def read_work(file: ExportFile, process: int) -> tuple[pd.DataFrame, int]:
    """What ran on devices, by begin; and how much of it has no time, and was left out."""
    frames = [
        _kernels(file, process),
        _copies(file, process),
        _fills(file, process),
        _graphs(file, process),
    ]
    work: pd.DataFrame = pd.concat([each for each in frames if len(each)] or frames[:1])
    # CUPTI gives both times as 0 where it could not take them.
    timed = (work["end"] > 0) & (work["end"] >= work["start"])
    untimed = int((~timed).sum())
    if untimed:
        work = work[timed]
    work = work.sort_values("start", kind="stable", ignore_index=True)
    return work, untimed


def _kernels(file: ExportFile, process: int) -> pd.DataFrame:
    more = {"name": Column("demangledName", needed=True), **_NODE}
    read = _read(file, KERNELS, process, **more)
    return _frame("kernel", read, name=file.strings(read["name"], otherwise=UNNAMED))


def _copies(file: ExportFile, process: int) -> pd.DataFrame:
    more = {
        "bytes": Column("bytes", needed=True),
        "kind": Column("copyKind", needed=True),
        "from": Column("srcKind"),
        "to": Column("dstKind"),
        "copies": Column("copyCount", from_one=True),
        **_NODE,
    }
    read = _read(file, COPIES, process, **more)
    directions = file.words("ENUM_CUDA_MEMCPY_OPER", read["kind"], _DIRECTIONS)
    return _frame(
        "copy",
        read,
        name=_named("copy", directions),
        direction=directions,
        from_memory=_memories(file, read["from"]),
        to_memory=_memories(file, read["to"]),
        bytes=read["bytes"],
        copies=np.maximum(read["copies"], 1),
    )


def _fills(file: ExportFile, process: int) -> pd.DataFrame:
    more = {"bytes": Column("bytes", needed=True), "to": Column("memKind"), **_NODE}
    read = _read(file, FILLS, process, **more)
    names = np.full(len(read["start"]), "fill", dtype=object)
    return _frame(
        "set", read, name=names, to_memory=_memories(file, read["to"]), bytes=read["bytes"]
    )


def _graphs(file: ExportFile, process: int) -> pd.DataFrame:
    read = _read(file, GRAPHS, process, graph=Column("graphId"))
    numbers, where = np.unique(read["graph"], return_inverse=True)
    names = np.array([f"graph {number}" for number in numbers], dtype=object)
    return _frame("graph", read, name=names[where])


def _read(file: ExportFile, table: str, process: int, **more: Column) -> dict[str, Any]:
    return file.columns(table, {**_ON_DEVICE, **more}, file.is_of(table, process))


def _frame(kind: str, read: dict[str, Any], **columns: Any) -> pd.DataFrame:
    """Rows of the frame `work`; what a kind of work does not have is None, bytes NaN, copies 1."""
    count = len(read["start"])
    nothing = np.full(count, None, dtype=object)
    filled = {
        "kind": np.full(count, kind, dtype=object),
        "bytes": np.full(count, np.nan),
        "copies": np.ones(count, dtype=np.int64),
        "direction": nothing,
        "from_memory": nothing,
        "to_memory": nothing,
        "in_graph": read["node"] != -1 if "node" in read else np.ones(count, dtype=bool),
        **{name: read[name] for name in _ON_DEVICE},
        **columns,
    }
    return frame_of("work", filled)


def _memories(file: ExportFile, numbers: Any) -> Objects:
    return file.words("ENUM_CUDA_MEM_KIND", numbers, _MEMORIES)


def _named(what: str, words: Objects) -> Objects:
    """`what` with its words after it, if there are any."""
    codes, distinct = pd.factorize(words, use_na_sentinel=False)
    names = [what if pd.isna(each) else f"{what} {each}" for each in distinct]
    named: Objects = np.array(names, dtype=object)[codes]
    return named


def read_synchronisations(file: ExportFile, process: int) -> pd.DataFrame:
    """Waits of the host or of a stream, by begin; stream -1 is all of them."""
    wanted = {**_ON_DEVICE, "kind": Column("syncType", needed=True)}
    read = file.columns(WAITS, wanted, file.is_of(WAITS, process), order="start")
    read["stream"] = np.where(read["stream"] == _NO_STREAM, -1, read["stream"])
    read["kind"] = file.words("ENUM_CUPTI_SYNC_TYPE", read["kind"], _WAITS)
    return frame_of("synchronisations", read)


def read_memory(file: ExportFile, process: int) -> pd.DataFrame:
    """Memory that was taken and given back, by time; events of neither kind are left out."""
    wanted = {
        "t": Column("start", needed=True),
        "device": Column("deviceId"),
        "kind": Column("memKind"),
        "bytes": Column("bytes", needed=True),
        "operation": Column("memoryOperationType", needed=True),
        "address": Column("address"),
    }
    read = file.columns(MEMORY, wanted, file.is_of(MEMORY, process), order="t")
    operations = file.words("ENUM_CUDA_DEV_MEM_EVENT_OPER", read["operation"], _OPERATIONS)
    frame = frame_of(
        "memory",
        {
            **read,
            "bytes": np.abs(read["bytes"]),
            "kind": _memories(file, read["kind"]),
            "operation": np.array([_TOLD.get(each) for each in operations], dtype=object),
        },
    )
    known: pd.DataFrame = frame[frame["operation"].notna()].reset_index(drop=True)
    return known
