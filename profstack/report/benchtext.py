"""The headline of a benchmark in the terminal: its median, and what else belongs to it."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

from rich.text import Text

from profstack.report.textparts import indented, printable, style_of
from profstack.units import format_count, format_seconds

Record = Mapping[str, Any]
# A mean further than this from the median, over it, is told beside it.
_UNEVEN = 0.05
_ENDED_BY = {
    "interval": "ended by the interval",
    "time": "ended by the time bound",
    "samples": "ended by the largest number of samples",
    "repeat": "as many as asked for",
    "interrupt": "interrupted",
}


def bench_headline(report: Record, width: int) -> Iterable[Text]:
    """What was measured, its median with interval and mode, and what else belongs to it."""
    mark = report.get("benchmark") or {}
    status = str(report.get("status"))
    first = Text(printable(f"{mark.get('target') or report.get('script')}: "))
    first.append(status, style=style_of(status))
    yield first
    if mark.get("median_s") is None:
        yield Text("step: not measured")
        yield Text()
        return
    line = Text("step: ")
    line.append(format_seconds(mark["median_s"]), style="bold")
    span = interval(mark.get("ci95_low_s"), mark.get("ci95_high_s"))
    line.append(f"  (95 % interval {span}" if span else "  (no interval")
    line.append(f", {printable(str(mark.get('mode')))}, n = {mark.get('n')})")
    line.append(mean_told(mark))
    yield line
    details = [", ".join(_rates(mark)), ", ".join(_shape_of_times(mark))]
    for words in (*details, *_modes(mark), *_between(mark)):
        yield from indented(words, width)
    yield Text()


def mean_told(mark: Record) -> str:
    """The mean, where it is far from the median: rates are by the mean, and say another step."""
    median, mean = mark.get("median_s"), mark.get("mean_s")
    if not median or mean is None or abs(mean / median - 1) <= _UNEVEN:
        return ""
    return f", mean {format_seconds(mean)}"


def _rates(mark: Record) -> list[str]:
    """Steps and items per second, and how busy the processor was."""
    words = [f"{format_count(mark.get('steps_per_s'))} steps/s"]
    if mark.get("items_per_s") is not None:
        words.append(f"{format_count(mark['items_per_s'])} items/s")
        if mark.get("batch_size") is not None:
            words[-1] += f" (batch of {mark['batch_size']}, {mark.get('batch_size_is')})"
    else:
        words.append("items/s unknown: no batch size")
    words.append(_processor(mark))
    if mark.get("device_median_s") is not None:
        words.append(f"device time {format_seconds(mark['device_median_s'])}")
    return words


def _processor(mark: Record) -> str:
    """CPU time and the cores that it keeps busy: means, in which all that interrupts is."""
    words = f"mean CPU time {format_seconds(mark.get('cpu_mean_s'))}"
    cores = mark.get("cores_busy")
    return words if cores is None else f"{words} ({cores:.2f} cores busy)"


def _shape_of_times(mark: Record) -> list[str]:
    """How the samples lie, and what went before them."""
    words = [f"IQR {format_seconds(mark.get('iqr_s'))}"]
    words.append(f"first call {format_seconds(mark.get('first_step_s'))}")
    if mark.get("warmup_steps") is not None:
        calls = mark["warmup_steps"]
        words.append("1 warm-up call" if calls == 1 else f"{calls} warm-up calls")
    if mark.get("outliers"):
        words.append("1 outlier" if mark["outliers"] == 1 else f"{mark['outliers']} outliers")
    ended = mark.get("stopped_by")
    if ended is not None:
        words.append(_ENDED_BY.get(str(ended), f"ended by {ended}"))
    return words


def interval(low_s: float | None, high_s: float | None) -> str | None:
    """An interval with as many digits as tell its ends apart; None where there is none."""
    if low_s is None or high_s is None:
        return None
    width = high_s - low_s
    if not 0 < width < 0.1 * high_s or high_s >= 59.95:
        return f"{format_seconds(low_s)} to {format_seconds(high_s)}"
    units = ((1.0, "s"), (1e-3, "ms"), (1e-6, "µs"), (1e-9, "ns"))
    scale, unit = next((one for one in units if high_s >= one[0]), units[-1])
    digits = min(6, max(0, math.ceil(0.5 - math.log10(width / scale))))
    return f"{low_s / scale:.{digits}f} to {high_s / scale:.{digits}f} {unit}"


def _modes(mark: Record) -> Iterable[str]:
    """The other way of timing, where both were measured."""
    other = "pipelined" if mark.get("mode") == "synchronised" else "synchronised"
    median = mark.get(f"{other}_median_s")
    if median is None or mark.get("pipelined_median_s") is None:
        return
    if mark.get("synchronised_median_s") is None:
        return
    span = interval(mark.get(f"{other}_ci95_low_s"), mark.get(f"{other}_ci95_high_s"))
    words = f"{other} {format_seconds(median)}"
    yield words + (f" (95 % interval {span})" if span else "")


def _between(mark: Record) -> Iterable[str]:
    """The spread between fresh processes: what a comparison has to reckon with."""
    between = mark.get("between_process") or {}
    medians = [one for one in between.get("medians_s") or () if one is not None]
    if len(medians) < 2:
        return
    spread = between.get("spread")
    words = f"{len(medians)} fresh processes: {format_seconds(between.get('low_s'))} to "
    words += format_seconds(between.get("high_s"))
    if spread is not None:
        words += f", {100 * spread:.1f} % apart"
    yield words + ": the error bar of a comparison"
