"""Calls of the host in an export: of the CUDA runtime and driver, cuDNN, cuBLAS and the system."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd

from profstack.nsys.exportfile import UNNAMED, Column, ExportFile, Ints, Objects
from profstack.nsys.exportframes import frame_of
from profstack.torchtrace.columns import Bools

CUDA_CALLS = "CUPTI_ACTIVITY_KIND_RUNTIME"
OS_CALLS = "OSRT_API"
LIBRARIES = {"cudnn": "CUDNN_EVENTS", "cublas": "CUBLAS_EVENTS"}
# Marks that the tracing of a library began or ended; they stand among its calls.
_MARKS = (31, 32, 33, 34, 35, 36)
# Classes of what is a call in the table of CUDA's, by nsys's own names; marks stand there too.
_CALLS = {
    "TRACE_PROCESS_EVENT_CUDA_RUNTIME": 0,
    "TRACE_PROCESS_EVENT_CUDA_DRIVER": 1,
    "TRACE_PROCESS_EVENT_CUDA_EGL_DRIVER": 13,
}
# A second row of a call whose stack was taken: the same call once more, with the callchain.
_STACK = {"TRACE_PROCESS_EVENT_CUDABACKTRACE": 67}
_NO_MARK = f"eventClass NOT IN {_MARKS}"
_CLASSES = "ENUM_NSYS_EVENT_CLASS"
# Not ready: what a query of an event or a stream says when asked too early, not an error.
_NO_FAILURE = (0, 600)
_CALL = {
    "start": Column("start", needed=True),
    "end": Column("end", needed=True),
    "thread": Column("globalTid", needed=True),
    "name": Column("nameId", needed=True),
}


def read_calls(file: ExportFile, process: int) -> pd.DataFrame:
    """Calls of the CUDA runtime and of the driver, by begin.

    A correlation number stands once: where a call of the driver was traced inside one of the
    runtime, the outer one has it.
    """
    more = {
        "correlation": Column("correlationId", needed=True, from_one=True),
        "returned": Column("returnValue"),
        "callchain": Column("callchainId", from_one=True),
        "class": Column("eventClass"),
    }
    calls, stacks = _classes(file, _CALLS), _classes(file, _STACK)
    kept = f"eventClass IN ({', '.join(map(str, calls + stacks))})"
    read = _read(file, CUDA_CALLS, process, kept, **more)
    failed = ~np.isin(read["returned"], (*_NO_FAILURE, -1))
    frame = frame_of("calls", {**read, "failed": failed, "name": _plain(read["name"])})
    frame = _with_stacks(frame, np.isin(read["class"], stacks))
    frame["correlation"] = _once(frame["correlation"].to_numpy(np.int64))
    return frame


def read_libraries(file: ExportFile, process: int) -> pd.DataFrame:
    """Calls of cuDNN and cuBLAS, by begin."""
    frames = []
    for library, table in LIBRARIES.items():
        read = _read(file, table, process, _NO_MARK)
        read["library"] = np.full(len(read["start"]), library, dtype=object)
        frames.append(frame_of("libraries", read))
    both: pd.DataFrame = pd.concat(frames).sort_values("start", kind="stable", ignore_index=True)
    return both


def read_os_calls(file: ExportFile, process: int) -> pd.DataFrame:
    """Calls of the system's run-time library, by begin."""
    chain = Column("callchainId", from_one=True)
    read = _read(file, OS_CALLS, process, _NO_MARK, callchain=chain)
    return frame_of("os_calls", read)


def _read(
    file: ExportFile, table: str, process: int, of_class: str, **more: Column
) -> dict[str, Any]:
    """Columns of a table of calls, with names in place of their numbers."""
    where = file.is_of(table, process)
    if "eventClass" in file.schema.get(table, ()):
        where += f" AND {of_class}"
    read = file.columns(table, {**_CALL, **more}, where, order="start")
    read["name"] = file.strings(read["name"], otherwise=UNNAMED)
    return read


def _classes(file: ExportFile, known: Mapping[str, int]) -> list[int]:
    """The numbers of these classes: the file's own, or those that are published."""
    told: dict[str, int] = {}
    if "name" in file.schema.get(_CLASSES, ()):
        told = {name: int(number) for number, name in file.rows(f"SELECT id, name FROM {_CLASSES}")}
    return [told.get(name, number) for name, number in known.items()]


def _with_stacks(frame: pd.DataFrame, is_stack: Bools) -> pd.DataFrame:
    """The calls, each with the callchain of its second row; one without a first row stays."""
    if not is_stack.any():
        return frame
    calls, stacks = frame[~is_stack].copy(), frame[is_stack]
    known = calls[calls["correlation"] > 0]
    # Of several with one number, a call of the runtime and one of the driver that it makes, each
    # has its own; what is named otherwise in its second row is the outer one.
    for keys in (["thread", "correlation", "name"], ["thread", "correlation"]):
        first = known[keys].drop_duplicates()
        whose = stacks[keys].merge(first.assign(row=first.index), "left", keys)["row"].to_numpy()
        found = ~np.isnan(whose)
        chains = pd.Series(stacks["callchain"].to_numpy()[found], whose[found].astype(np.int64))
        chains = chains[~chains.index.duplicated()]
        lacking = chains.index[calls.loc[chains.index, "callchain"] < 0]
        calls.loc[lacking, "callchain"] = chains[lacking]
        stacks = stacks[~found]
    both = pd.concat([calls, stacks]) if len(stacks) else calls
    ordered: pd.DataFrame = both.sort_values("start", kind="stable", ignore_index=True)
    return ordered


def _plain(names: Objects) -> Objects:
    """Names without the version of the interface, as in cudaLaunchKernel_v7000."""
    codes, distinct = pd.factorize(names, use_na_sentinel=False)
    plain = pd.Series(distinct, dtype="object").str.replace(r"_v\d+$", "", regex=True)
    cut: Objects = plain.to_numpy(dtype=object)[codes]
    return cut


def _once(correlations: Ints) -> Ints:
    """These numbers, each only where it stands first."""
    again = pd.Series(correlations).duplicated().to_numpy()
    return np.where(again, -1, correlations)
