"""Callchains in an export, and the CPU samples that have nothing else."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd

from profstack.nsys.exportedcalls import CUDA_CALLS, OS_CALLS
from profstack.nsys.exportfile import UNNAMED, Column, ExportFile, Objects
from profstack.nsys.exportframes import frame_of

SAMPLES = "COMPOSITE_EVENTS"
# By source: the table of the chains, the table of what they are of, and its column that says which.
_CHAINS = {
    "cuda": ("CUDA_CALLCHAINS", CUDA_CALLS, "callchainId"),
    "os": ("OSRT_CALLCHAINS", OS_CALLS, "callchainId"),
    "cpu": ("SAMPLING_CALLCHAINS", SAMPLES, "id"),
}


def read_samples(file: ExportFile, process: int) -> pd.DataFrame:
    """CPU samples, by time; a sample and its callchain have one number."""
    wanted = {
        "t": Column("start", needed=True),
        "thread": Column("globalTid", needed=True),
        "callchain": Column("id", needed=True),
    }
    read = file.columns(SAMPLES, wanted, file.is_of(SAMPLES, process), order="t")
    return frame_of("samples", read)


def read_callchains(file: ExportFile, process: int) -> pd.DataFrame:
    """The callchains of the process's own calls and samples; chains of others are left out."""
    frames = []
    for source, (table, owners, column) in _CHAINS.items():
        if column not in file.schema.get(owners, ()):
            continue
        where = f'id IN (SELECT "{column}" FROM "{owners}" WHERE {file.is_of(owners, process)})'
        wanted = {
            "id": Column("id", needed=True),
            "depth": Column("stackDepth", needed=True),
            "symbol": Column("symbol", needed=True),
            "module": Column("module", needed=True),
        }
        read = file.columns(table, wanted, where)
        frames.append(_frame(file, source, read))
    known = [frame for frame in frames if len(frame)]
    if not known:
        return frame_of("callchains")
    order = ["source", "id", "depth"]
    chains: pd.DataFrame = pd.concat(known).sort_values(order, kind="stable", ignore_index=True)
    return chains


def _frame(file: ExportFile, source: str, read: dict[str, Any]) -> pd.DataFrame:
    return frame_of(
        "callchains",
        {
            **read,
            "source": np.full(len(read["id"]), source, dtype=object),
            "symbol": file.strings(read["symbol"], otherwise=UNNAMED),
            "module": _file_names(file.strings(read["module"])),
        },
    )


def _file_names(paths: Objects) -> Objects:
    """Libraries without the folders they lie in, which are the machine's own business."""
    codes, distinct = pd.factorize(paths, use_na_sentinel=False)
    names = [None if pd.isna(path) else path.replace("\\", "/").split("/")[-1] for path in distinct]
    cut: Objects = np.array(names, dtype=object)[codes]
    return cut
