"""What Nsight Systems saw, cut to what a browser bears: ranges, stacks, the curve of memory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from profstack.report.pathtree import path_records
from profstack.report.series import extremes
from profstack.report.tables import MOST_ROWS

Record = Mapping[str, Any]


def range_records(records: Sequence[Record], most: int = MOST_ROWS) -> list[Record]:
    """The ranges with the most time on host and device, each with those around it."""
    return path_records(records, most, ("wall_s", "device_s"))


def stack_records(records: Sequence[Record]) -> list[Record]:
    """Call stacks with a frame on each line: names of C++ functions hold commas."""
    return [{**record, "stack": "\n".join(record["stack"] or [])} for record in records]


def held_series(records: Sequence[Record], most: int = MOST_ROWS) -> list[Record]:
    """Memory events to draw, in order of time: of each device and kind the extremes."""
    if len(records) <= most:
        return list(records)
    series: dict[tuple[Any, Any], list[Record]] = {}
    for record in records:
        series.setdefault((record["device"], record["kind"]), []).append(record)
    share = max(most // len(series), 2)
    kept = [record for own in series.values() for record in extremes(own, share, "bytes")]
    return sorted(kept[:most], key=lambda record: record["t_s"])
