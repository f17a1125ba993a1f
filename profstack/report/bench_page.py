"""The benchmark and the roofline on the page, cut to a size that a browser draws quickly.

A benchmark may hold a hundred thousand samples: the page gets their histogram. Warm-up curves
and the points of the roofline are cut too, and the page says what is left out.
"""

from __future__ import annotations

import math
import statistics
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass

from profstack.report.page_tables import compact, extremes, left_out_text, number
from profstack.storage.schema.report import Benchmark, Peaks, Utilization
from profstack.storage.schema.report import Roofline as RooflineFacts

# Fewer samples have no shape: each of them would be a bar.
FEWEST_SAMPLES = 12
MOST_BARS = 60
MOST_CALLS = 600
MOST_POINTS = 400
# The first calls are all drawn, however many come after them.
_FIRST_CALLS = 40
# Samples further from the middle half than this many times its width are counted at the edge:
# drawn, they would leave the rest no room.
_REACH = 4.0


@dataclass(frozen=True)
class Histogram:
    """Bars over samples: bar i counts those from `start_s + i * width_s` on.

    `below` and `beyond` count the samples outside of the bars, `least_s` and `most_s` are the
    extremes of all samples.
    """

    start_s: float
    width_s: float
    counts: list[int]
    below: int
    beyond: int
    least_s: float
    most_s: float


@dataclass(frozen=True)
class WarmupCurve:
    """Calls before the samples as `[number from 1, seconds]`; the first `steps` are warm-up."""

    points: list[list[object]]
    total: int
    steps: int | None
    left_out: str | None


@dataclass(frozen=True)
class BenchPage:
    """The drawings of a benchmark; `measured` says whether `profstack bench` made the report."""

    measured: bool
    histogram: Histogram | None
    warmup: WarmupCurve | None


@dataclass(frozen=True)
class Roofline:
    """Peaks, shares of them, and the heaviest points; `total` counts the points before the cut."""

    peaks: Peaks | dict[str, object]
    mfu: list[Utilization]
    points: list[dict[str, object]]
    total: int
    left_out: str | None
    reason: str | None


# Fields that the page has from elsewhere, or draws from a cut of them.
CUT_AWAY = frozenset({"samples_s", "counted_steps", "warmup_s"})


def is_measured(benchmark: Benchmark) -> bool:
    """Return whether the figures are of `profstack bench`, not of a run's clean steps."""
    return benchmark.get("target") is not None or benchmark.get("stopped_by") is not None


def bench_page(benchmark: Benchmark) -> BenchPage:
    """Return the drawings of a report's `benchmark`."""
    warmup = [one for one in benchmark.get("warmup_s") or () if _is_time(one)]
    return BenchPage(
        measured=is_measured(benchmark),
        histogram=histogram(benchmark.get("samples_s") or ()),
        warmup=_warmup_curve(warmup, benchmark["warmup_steps"]) if warmup else None,
    )


def histogram(samples_s: Sequence[float]) -> Histogram | None:
    """Return bars over samples by the rule of Freedman and Diaconis; None if there are too few."""
    ordered = sorted(one for one in samples_s if _is_time(one))
    if len(ordered) < FEWEST_SAMPLES:
        return None
    lower, _, upper = statistics.quantiles(ordered, n=4)
    reach = _REACH * (upper - lower)
    within = [one for one in ordered if lower - reach <= one <= upper + reach]
    start, end = within[0], within[-1]
    width = 2 * (upper - lower) / len(ordered) ** (1 / 3)
    if not width or end <= start:
        # More than half of the samples are the same: one tick of the clock.
        start, end, width = ordered[0], max(ordered[-1], ordered[0] * 1.001), math.inf
    bars = min(max(math.ceil((end - start) / width), 8), MOST_BARS)
    width = (end - start) / bars or 1e-9
    counts = [0] * bars
    below, last = bisect_left(ordered, start), bisect_right(ordered, end)
    for sample in ordered[below:last]:
        counts[min(int((sample - start) / width), bars - 1)] += 1
    return Histogram(start, width, counts, below, len(ordered) - last, ordered[0], ordered[-1])


def _is_time(value: float | None) -> bool:
    return isinstance(value, (int, float)) and math.isfinite(value) and value >= 0


def _warmup_curve(warmup_s: Sequence[float], steps: int | None) -> WarmupCurve:
    """Return the calls before the samples: all of the first, and extremes of the rest."""
    calls = [{"call": place, "wall_s": wall} for place, wall in enumerate(warmup_s, 1)]
    first, later = calls[:_FIRST_CALLS], calls[_FIRST_CALLS:]
    kept = first + extremes(later, MOST_CALLS - _FIRST_CALLS, "wall_s")
    left_out = None
    if len(kept) < len(calls):
        left_out = f"{len(kept):,} of {len(calls):,} calls are drawn: "
        left_out += "of the later ones the extremes of each stretch."
    points = [[call["call"], compact(call["wall_s"])] for call in kept]
    return WarmupCurve(points, len(calls), steps, left_out)


def roofline_page(roofline: RooflineFacts | None) -> Roofline | None:
    """Return the roofline for the page; None where the report has none."""
    if roofline is None:
        return None
    peaks, mfu = roofline.get("peaks"), roofline.get("mfu") or []
    reason = roofline.get("reason") or (peaks and peaks.get("reason"))
    points = list(roofline.get("points") or [])
    if not (points or mfu or (peaks and peaks.get("flop_per_s")) or roofline.get("reason")):
        return None
    # The step and the points with a place in the plot come first, the heaviest of them in front.
    points.sort(key=lambda one: -number(one["seconds"]))
    points.sort(key=lambda one: (one["kind"] != "step", one["intensity"] is None))
    kept = points[:MOST_POINTS]
    return Roofline(
        peaks=peaks or {},
        mfu=mfu,
        points=[{key: compact(value) for key, value in point.items()} for point in kept],
        total=len(points),
        left_out=left_out_text(len(kept), len(points), "those with the most time"),
        reason=reason,
    )
