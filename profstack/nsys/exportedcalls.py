"""Calls of the host in an export: of the CUDA runtime and driver, cuDNN, cuBLAS and the system."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd

from profstack.nsys.exportfile import UNNAMED, Column, ExportFile, Ints, Objects
from profstack.nsys.exportframes import frame_of

CUDA_CALLS = "CUPTI_ACTIVITY_KIND_RUNTIME"
OS_CALLS = "OSRT_API"
LIBRARIES = {"cudnn": "CUDNN_EVENTS", "cublas": "CUBLAS_EVENTS"}
# Marks that the tracing of a library began, ended or failed; they stand among its calls.
_MARKS = (10, 11, 12, 31, 32, 33, 34, 35, 36)
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
    }
    read = _read(file, CUDA_CALLS, process, **more)
    failed = ~np.isin(read["returned"], (*_NO_FAILURE, -1))
    read["correlation"] = _once(read["correlation"])
    return frame_of("calls", {**read, "failed": failed, "name": _plain(read["name"])})


def read_libraries(file: ExportFile, process: int) -> pd.DataFrame:
    """Calls of cuDNN and cuBLAS, by begin."""
    frames = []
    for library, table in LIBRARIES.items():
        read = _read(file, table, process)
        read["library"] = np.full(len(read["start"]), library, dtype=object)
        frames.append(frame_of("libraries", read))
    both: pd.DataFrame = pd.concat(frames).sort_values("start", kind="stable", ignore_index=True)
    return both


def read_os_calls(file: ExportFile, process: int) -> pd.DataFrame:
    """Calls of the system's run-time library, by begin."""
    read = _read(file, OS_CALLS, process, callchain=Column("callchainId", from_one=True))
    return frame_of("os_calls", read)


def _read(file: ExportFile, table: str, process: int, **more: Column) -> dict[str, Any]:
    """Columns of a table of calls, with names in place of their numbers."""
    where = file.is_of(table, process)
    if "eventClass" in file.schema.get(table, ()):
        where += f" AND eventClass NOT IN {_MARKS}"
    read = file.columns(table, {**_CALL, **more}, where, order="start")
    read["name"] = file.strings(read["name"], otherwise=UNNAMED)
    return read


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
