"""Which of the processes in a capture is the one to read, and how many others are left out."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from profstack.nsys.exportednvtx import TABLE, EventTypes, domains_of, is_type
from profstack.nsys.exportfile import Column, ExportError, ExportFile

OUR_DOMAIN = "profstack"
DEVICE_WORK = (
    "CUPTI_ACTIVITY_KIND_KERNEL",
    "CUPTI_ACTIVITY_KIND_MEMCPY",
    "CUPTI_ACTIVITY_KIND_MEMSET",
    "CUPTI_ACTIVITY_KIND_GRAPH_TRACE",
)
_OTHER_EVENTS = (
    "CUPTI_ACTIVITY_KIND_RUNTIME",
    "CUDNN_EVENTS",
    "CUBLAS_EVENTS",
    "OSRT_API",
    "CUDA_GPU_MEMORY_USAGE_EVENTS",
    "COMPOSITE_EVENTS",
)


@dataclass
class _Counted:
    """Events by process."""

    ours: Counter[int] = field(default_factory=Counter)
    work: Counter[int] = field(default_factory=Counter)
    ranges: Counter[int] = field(default_factory=Counter)
    all: Counter[int] = field(default_factory=Counter)


def target_process(
    file: ExportFile, types: EventTypes, wanted: int | None = None
) -> tuple[int, int]:
    """The process that the capture is of, and how many others have events in it.

    That is the one with most ranges of profstack, else with most work on devices, else with most
    ranges, else with most events; or the one `wanted`. Raises `ExportError` if there is none.
    """
    counted = _Counted()
    if file.has(TABLE):
        _count_ranges(file, counted, types)
    for table in (*DEVICE_WORK, *_OTHER_EVENTS):
        if file.has(table):
            found = _count_rows(file, table)
            counted.all.update(found)
            if table in DEVICE_WORK:
                counted.work.update(found)
    if not counted.all:
        raise ExportError(
            "holds no event of any process",
            where=str(file.path),
            next_step="profile again, with nsys profile --trace cuda,nvtx,osrt",
        )
    if wanted is not None and wanted not in counted.all:
        known = ", ".join(f"{pid} ({count:,})" for pid, count in counted.all.most_common(8))
        raise ExportError(
            f"holds no event of process {wanted}",
            where=str(file.path),
            next_step=f"--process is one of these (with their events): {known}",
        )
    by = (counted.ours, counted.work, counted.ranges, counted.all)
    target = wanted or max(counted.all, key=lambda pid: (*(each[pid] for each in by), -pid))
    return target, len(counted.all) - 1


def _count_rows(file: ExportFile, table: str) -> dict[int, int]:
    rows = file.rows(f'SELECT {file.process_of(table)}, COUNT(*) FROM "{table}" GROUP BY 1')
    return {pid: count for pid, count in rows if pid}


def _count_ranges(file: ExportFile, counted: _Counted, types: EventTypes) -> None:
    domains = domains_of(file, types)
    number = file.expression(TABLE, Column("domainId"))
    file.expression(TABLE, Column("eventType", needed=True))
    rows = file.rows(
        f"SELECT {file.process_of(TABLE)}, {number}, COUNT(*) FROM {TABLE} "
        f"WHERE {is_type(types.ranges)} GROUP BY 1, 2"
    )
    for pid, domain, count in rows:
        if pid:
            counted.all[pid] += count
            counted.ranges[pid] += count
            if domains.get((pid, domain)) == OUR_DOMAIN:
                counted.ours[pid] += count
