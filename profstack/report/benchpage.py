"""What the page draws of a benchmark and of the roofline, cut to a size a browser bears.

A benchmark may hold a hundred thousand samples: the page gets their histogram. Warm-up curves
and the points of the roofline are cut in the same way, and what is left out is said.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from profstack.report.series import extremes
from profstack.report.tables import compact, left_out_text, number

Record = Mapping[str, Any]
# Fewer samples make no shape: each of them would be a bar.
FEWEST_SAMPLES = 12
MOST_BARS = 60
MOST_CALLS = 600
MOST_POINTS = 400
# The first calls are looked at one by one, however many come after them.
_FIRST_CALLS = 40
# Samples further than this many times the middle half's width beside it would leave the rest
# no room: they are counted at the edge.
_REACH = 4.0


@dataclass(frozen=True)
class Histogram:
    """Bars over samples: bar i counts those from `start_s + i * width_s` on.

    `below` and `beyond` are the samples that lie outside, `least_s` and `most_s` the extremes of
    all samples, so that the page can say how far out they are.
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

    points: list[list[float]]
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

    peaks: dict[str, Any]
    mfu: list[dict[str, Any]]
    points: list[dict[str, Any]]
    total: int
    left_out: str | None
    reason: str | None


# What the page has from elsewhere, or draws from a cut of it.
CUT_AWAY = frozenset({"samples_s", "counted_steps", "warmup_s"})


def is_measured(benchmark: Record) -> bool:
    """Whether the figures are those of `profstack bench`, and not of a run's clean steps."""
    return benchmark.get("target") is not None or benchmark.get("stopped_by") is not None


def bench_page(benchmark: Record) -> BenchPage:
    """The drawings of a report's `benchmark`."""
    warmup = [one for one in benchmark.get("warmup_s") or () if _is_time(one)]
    return BenchPage(
        measured=is_measured(benchmark),
        histogram=histogram(benchmark.get("samples_s") or ()),
        warmup=_warmup_curve(warmup, benchmark.get("warmup_steps")) if warmup else None,
    )


def histogram(samples_s: Sequence[float]) -> Histogram | None:
    """Bars over samples by Freedman and Diaconis' rule; None where there are too few."""
    ordered = sorted(one for one in samples_s if _is_time(one))
    if len(ordered) < FEWEST_SAMPLES:
        return None
    lower, _, upper = statistics.quantiles(ordered, n=4)
    reach = _REACH * (upper - lower)
    within = [one for one in ordered if lower - reach <= one <= upper + reach]
    start, end = within[0], within[-1]
    width = 2 * (upper - lower) / len(ordered) ** (1 / 3)
    if not width or end <= start:
        # More than half of the samples are the same: a clock's single tick.
        start, end, width = ordered[0], max(ordered[-1], ordered[0] * 1.001), math.inf
    bars = min(max(math.ceil((end - start) / width), 8), MOST_BARS)
    width = (end - start) / bars or 1e-9
    counts = [0] * bars
    below = beyond = 0
    for sample in ordered:
        if sample < start:
            below += 1
        elif sample > end:
            beyond += 1
        else:
            counts[min(int((sample - start) / width), bars - 1)] += 1
    return Histogram(start, width, counts, below, beyond, ordered[0], ordered[-1])


def _is_time(value: Any) -> bool:
    return isinstance(value, (int, float)) and math.isfinite(value) and value >= 0


def _warmup_curve(warmup_s: Sequence[float], steps: Any) -> WarmupCurve:
    """The calls before the samples: the first ones all, of the rest the extremes."""
    calls = [{"call": number, "wall_s": wall} for number, wall in enumerate(warmup_s, 1)]
    kept = calls[:_FIRST_CALLS] + extremes(
        calls[_FIRST_CALLS:], MOST_CALLS - _FIRST_CALLS, "wall_s"
    )
    return WarmupCurve(
        points=[[call["call"], compact(call["wall_s"])] for call in kept],
        total=len(calls),
        steps=steps if isinstance(steps, int) else None,
        left_out=None
        if len(kept) == len(calls)
        else f"{len(kept):,} of {len(calls):,} calls are drawn: "
        "of the later ones the extremes of each stretch.",
    )


def roofline_page(roofline: Record | None) -> Roofline | None:
    """The roofline for the page; None where the report has nothing of it."""
    facts = roofline or {}
    points = list(facts.get("points") or ())
    mfu = [dict(one) for one in facts.get("mfu") or ()]
    peaks = dict(facts.get("peaks") or {})
    if not (points or mfu or peaks.get("flop_per_s") or facts.get("reason")):
        return None
    points.sort(key=lambda point: number(point.get("seconds")), reverse=True)
    # The step and what has a place in the plot go before what has none.
    points.sort(key=lambda point: (point.get("kind") != "step", point.get("intensity") is None))
    kept = points[:MOST_POINTS]
    return Roofline(
        peaks=peaks,
        mfu=mfu,
        points=[{key: compact(value) for key, value in point.items()} for point in kept],
        total=len(points),
        left_out=left_out_text(len(kept), len(points), "those with the most time"),
        reason=facts.get("reason") or peaks.get("reason"),
    )
