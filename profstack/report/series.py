"""Series for the charts: every step worth seeing, and few enough points to draw.

Thinning keeps what the eye looks for: all steps of the slices that were planned, all flagged
steps, and of every stretch of the rest its fastest and its slowest.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from profstack.report.tables import compact, left_out_text

Record = Mapping[str, Any]
MOST_POINTS = 4_000
# A step this many times its slice's median is drawn large: a point among thousands is not seen.
_OUTLIER = 2.0


@dataclass(frozen=True)
class StepSeries:
    """Steps as `[index, wall_s, slice, cpu_s, wait_s, phase, flags, counted, outlier]`."""

    points: list[list[Any]]
    total: int
    left_out: str | None


def step_series(
    steps: Sequence[Record], slices: Sequence[Record], benchmark: Mapping[str, Any]
) -> StepSeries:
    """The steps to draw, in order."""
    kinds = {entry["index"]: entry["kind"] for entry in slices}
    medians = {entry["index"]: entry.get("step_median_s") for entry in slices}
    counted = set(benchmark.get("counted_steps") or ())
    kept = _thinned(steps, kinds) if len(steps) > MOST_POINTS else list(steps)
    points = []
    for step in kept:
        median, wall = medians.get(step["slice"]), step["wall_s"]
        outlier = bool(median and wall and wall > _OUTLIER * median)
        fields = ("index", "wall_s", "slice", "cpu_s", "wait_s", "phase", "flags")
        values = [compact(step.get(field)) for field in fields]
        points.append([*values, int(step["index"] in counted), int(outlier)])
    return StepSeries(
        points,
        len(steps),
        left_out_text(len(kept), len(steps), "of the watched ones the extremes of each stretch"),
    )


def _thinned(steps: Sequence[Record], kinds: Mapping[Any, str]) -> list[Record]:
    """Planned and flagged steps as far as half the points go, and extremes of the rest."""
    first = [step for step in steps if kinds.get(step["slice"]) != "watch" or step.get("flags")]
    first = extremes(first, MOST_POINTS // 2, "wall_s")
    chosen = {step["index"] for step in first}
    rest = [step for step in steps if step["index"] not in chosen]
    both = first + extremes(rest, MOST_POINTS - len(first), "wall_s")
    return sorted(both, key=lambda step: step["index"])


def extremes(records: Sequence[Record], most: int, column: str) -> list[Record]:
    """At most `most` records: of each stretch the smallest and the largest in `column`."""
    if len(records) <= most:
        return list(records)
    stretches = max(most // 2, 1)
    kept: list[Record] = []
    for number in range(stretches):
        begin = number * len(records) // stretches
        stretch = records[begin : (number + 1) * len(records) // stretches]
        low = min(range(len(stretch)), key=lambda at: stretch[at][column] or 0.0)
        high = max(range(len(stretch)), key=lambda at: stretch[at][column] or 0.0)
        kept += [stretch[at] for at in sorted({low, high})]
    return kept


def memory_series(records: Sequence[Record], most: int = 2_000) -> list[Record]:
    """Memory samples to draw: extremes of the device's memory if there is one, else of RSS."""
    device = any(record.get("device_allocated_bytes") is not None for record in records)
    return extremes(records, most, "device_allocated_bytes" if device else "rss_bytes")
