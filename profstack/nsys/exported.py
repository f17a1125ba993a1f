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

from profstack.errors import ProfstackError
from profstack.nsys.exportframes import frame_of


class ExportError(ProfstackError):
    """A file is not an export of Nsight Systems that can be read: missing, damaged or another."""


@dataclass(frozen=True)
class Export:
    """One process of a capture; all times in nanoseconds on the export's clock."""

    source: str
    version: str | None = None
    schema: str | None = None
    process: int = 0
    others: int = 0
    begin_ns: int = 0
    end_ns: int = 0
    ranges: pd.DataFrame = field(default_factory=partial(frame_of, "ranges"))
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


def read_export(path: Path) -> Export:
    """What the target process of a capture did; raises `ExportError` if the file cannot be read."""
    raise ExportError("reading is not built yet", where=str(path))
