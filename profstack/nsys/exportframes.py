"""The frames an export of Nsight Systems is read into: their columns, and what type each has.

Every frame has all its columns, whatever generation of nsys wrote the file and whatever was
traced; an empty frame has them too. Times are whole nanoseconds on the export's own clock.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import pandas as pd

# "object" columns hold str or None, but for payload: int or None.
FRAMES: dict[str, dict[str, str]] = {
    "ranges": {
        "start": "int64",
        "end": "int64",
        "thread": "int64",
        "style": "object",
        "domain": "object",
        "category": "object",
        "text": "object",
        "payload": "object",
    },
    "calls": {
        "start": "int64",
        "end": "int64",
        "thread": "int64",
        "name": "object",
        "correlation": "int64",
        "failed": "bool",
        "callchain": "int64",
    },
    "libraries": {
        "start": "int64",
        "end": "int64",
        "thread": "int64",
        "library": "object",
        "name": "object",
    },
    "os_calls": {
        "start": "int64",
        "end": "int64",
        "thread": "int64",
        "name": "object",
        "callchain": "int64",
    },
    "work": {
        "start": "int64",
        "end": "int64",
        "kind": "object",
        "name": "object",
        "device": "int64",
        "stream": "int64",
        "correlation": "int64",
        "bytes": "float64",
        # Copies in the row: several alike, one after the other, may stand in one.
        "copies": "int64",
        "direction": "object",
        "from_memory": "object",
        "to_memory": "object",
        "in_graph": "bool",
    },
    "synchronisations": {
        "start": "int64",
        "end": "int64",
        "device": "int64",
        "stream": "int64",
        "correlation": "int64",
        "kind": "object",
    },
    "memory": {
        "t": "int64",
        "device": "int64",
        "kind": "object",
        "bytes": "int64",
        "operation": "object",
        "address": "int64",
    },
    "samples": {"t": "int64", "thread": "int64", "callchain": "int64"},
    "callchains": {
        "source": "object",
        "id": "int64",
        "depth": "int64",
        "symbol": "object",
        "module": "object",
    },
    "threads": {"thread": "int64", "name": "object"},
}


def frame_of(name: str, columns: Mapping[str, Iterable[Any]] | None = None) -> pd.DataFrame:
    """The frame of that name with these columns, in its own order and types; empty without any."""
    frame: pd.DataFrame = pd.DataFrame(
        {
            column: pd.Series(() if columns is None else columns[column], dtype=kind)
            for column, kind in FRAMES[name].items()
        }
    )
    return frame
