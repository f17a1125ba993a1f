"""A benchmark in the terminal: its headline, and a short table for each of its parts.

Only parts that the report has are printed. Times stand with their intervals, and what has no
figure says why.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from rich.text import Text

from profstack.report.textparts import plain_table, printable, short_name, style_of
from profstack.units import format_count, format_seconds

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.table import Table

Record = Mapping[str, Any]
_ENDED_BY = {
    "interval": "ended by the interval",
    "time": "ended by the time bound",
    "samples": "ended by the largest number of samples",
    "repeat": "as many as asked for",
}


def bench_headline(report: Record) -> Iterable[Text]:
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
    line.append(f", {printable(str(mark.get('mode')))}, n = {mark.get('n')}")
    ended = mark.get("stopped_by")
    line.append(f", {printable(_ENDED_BY.get(str(ended), str(ended)))})" if ended else ")")
    yield line
    yield Text("      " + printable(", ".join(_rates(mark))))
    yield Text("      " + printable(", ".join(_shape_of_times(mark))))
    yield from _modes(mark)
    yield from _between(mark)
    yield Text()


def _rates(mark: Record) -> list[str]:
    """Steps and items per second, and how busy the processor was."""
    words = [f"{format_count(mark.get('steps_per_s'))} steps/s"]
    if mark.get("items_per_s") is not None:
        words.append(f"{format_count(mark['items_per_s'])} items/s")
        if mark.get("batch_size") is not None:
            words[-1] += f" (batch of {mark['batch_size']}, {mark.get('batch_size_is')})"
    else:
        words.append("items/s unknown: no batch size")
    words.append(f"CPU time {format_seconds(mark.get('cpu_median_s'))}")
    if mark.get("device_median_s") is not None:
        words.append(f"device time {format_seconds(mark['device_median_s'])}")
    return words


def _shape_of_times(mark: Record) -> list[str]:
    """How the samples lie, and what went before them."""
    words = [f"IQR {format_seconds(mark.get('iqr_s'))}"]
    words.append(f"first call {format_seconds(mark.get('first_step_s'))}")
    if mark.get("warmup_steps") is not None:
        words.append(f"{mark['warmup_steps']} warm-up calls")
    if mark.get("outliers"):
        words.append(f"{mark['outliers']} outliers")
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


def _modes(mark: Record) -> Iterable[Text]:
    """The other way of timing, where both were measured."""
    other = "pipelined" if mark.get("mode") == "synchronised" else "synchronised"
    median = mark.get(f"{other}_median_s")
    if median is None or mark.get("pipelined_median_s") is None:
        return
    if mark.get("synchronised_median_s") is None:
        return
    span = interval(mark.get(f"{other}_ci95_low_s"), mark.get(f"{other}_ci95_high_s"))
    words = f"      {other} {format_seconds(median)}"
    yield Text(words + (f" (95 % interval {span})" if span else ""))


def _between(mark: Record) -> Iterable[Text]:
    """The spread between fresh processes: what a comparison has to reckon with."""
    between = mark.get("between_process") or {}
    medians = [one for one in between.get("medians_s") or () if one is not None]
    if len(medians) < 2:
        return
    spread = between.get("spread")
    words = f"      {len(medians)} fresh processes: {format_seconds(between.get('low_s'))} to "
    words += format_seconds(between.get("high_s"))
    if spread is not None:
        words += f", {100 * spread:.1f} % apart"
    yield Text(words + ": the error bar of a comparison")


def bench_parts(report: Record, width: int) -> Iterable[RenderableType]:
    """The parts that were asked for, each a table followed by an empty line."""
    mark = report.get("benchmark") or {}
    tables = (
        _shapes(mark.get("by_shape") or ()),
        _throughput(mark.get("throughput") or (), mark.get("throughput_limits") or ()),
        _compare(mark.get("compare") or ()),
        _mistakes(mark.get("mistakes") or (), width),
        _ablation(mark.get("ablation") or ()),
        _mfu((report.get("roofline") or {}).get("mfu") or ()),
    )
    for table in tables:
        if table is not None:
            yield table
            yield Text()


def _shapes(rows: Sequence[Record]) -> Table | None:
    """Step time by input shape, where there is more than one."""
    if len(rows) < 2:
        return None
    table = plain_table(("input shapes", "l"), ("n", "r"), ("median", "r"), ("95 % interval", "l"))
    for row in rows:
        span = interval(row.get("ci95_low_s"), row.get("ci95_high_s"))
        table.add_row(
            short_name(row.get("shape"), 30),
            str(row.get("n")),
            format_seconds(row.get("median_s")),
            span or "–",
        )
    return table


def _throughput(rows: Sequence[Record], limits: Sequence[Record]) -> Table | None:
    """A row per data type: the knee, the maximum, and what ended the search."""
    if not limits and not rows:
        return None
    table = plain_table(
        ("throughput", "l"), ("knee", "r"), ("items/s", "r"), ("maximum", "r"), ("items/s", "r"),
        ("largest", "r"), ("ended by", "l"),
    )  # fmt: skip
    known = {one.get("dtype") for one in limits}
    for limit in limits:
        table.add_row(
            Text(printable(str(limit.get("dtype")))),
            _whole(limit.get("knee_batch")),
            format_count(limit.get("knee_items_per_s")),
            _whole(limit.get("max_batch")),
            format_count(limit.get("max_items_per_s")),
            _whole(limit.get("largest_batch")),
            Text(printable(str(limit.get("limited_by") or limit.get("note") or "–"))),
        )
    for row in rows:
        if row.get("dtype") not in known and row.get("status") != "measured":
            known.add(row.get("dtype"))
            why = Text(printable(f"{row.get('status')}: {row.get('reason')}"))
            table.add_row(Text(printable(str(row.get("dtype")))), *("–",) * 5, why)
    return table


def _whole(value: Any) -> str:
    """A batch size, which nobody wants rounded."""
    return "–" if value is None else str(value)


def _compare(rows: Sequence[Record]) -> Table | None:
    """A row per variant: time, speedup, and whether its results are the same."""
    if not rows:
        return None
    table = plain_table(
        ("variant", "l"), ("median", "r"), ("speedup", "r"), ("compile", "r"), ("operators", "r"),
        ("results", "l"),
    )  # fmt: skip
    for row in rows:
        words = {True: "equal", False: "differ", None: "–"}[row.get("equal")]
        if row.get("equal") is False and row.get("max_difference") is not None:
            words += f" by {row['max_difference']:.2g}"
        if row.get("status") != "measured":
            words = f"{row.get('status')}: {row.get('reason')}"
        colour = "red" if row.get("equal") is False or row.get("status") == "failed" else ""
        table.add_row(
            Text(printable(str(row.get("variant")))),
            format_seconds(row.get("median_s")),
            _factor(row, "speedup", "speedup_low", "speedup_high"),
            format_seconds(row.get("compile_s")),
            _whole(row.get("operators")),
            Text(printable(words), style=colour),
        )
    return table


def _factor(row: Record, value: str, low: str, high: str) -> str:
    """A factor with its interval in brackets."""
    if row.get(value) is None:
        return "–"
    words = f"{row[value]:.2f}"
    if row.get(low) is not None and row.get(high) is not None:
        words += f" ({row[low]:.2f} to {row[high]:.2f})"
    return words


def _mistakes(rows: Sequence[Record], width: int) -> Table | None:
    """A row per mistake: wrong beside right; those that cannot differ here say so."""
    if not rows:
        return None
    table = plain_table(("timing mistake", "l"), ("wrong", "r"), ("right", "r"), ("factor", "l"))
    for row in rows:
        words = _factor(row, "factor", "ci95_low", "ci95_high")
        if row.get("error"):
            words = str(row["error"])
        elif not row.get("applies"):
            words = f"cannot differ here: {row.get('note')}"
        table.add_row(
            short_name(row.get("title"), width - 54),
            _mean(row.get("wrong_s"), row.get("wrong_std_s")),
            _mean(row.get("right_s"), row.get("right_std_s")),
            Text(printable(words)),
        )
    return table


def _mean(mean_s: float | None, std_s: float | None) -> str:
    words = format_seconds(mean_s)
    return words if std_s is None else f"{words} ± {format_seconds(std_s)}"


def _ablation(cells: Sequence[Record]) -> Table | None:
    """The cells in rows of clock and synchronisation; an invalid one says its error."""
    if not cells:
        return None
    table = plain_table(("ablation", "l"), ("after warm-up", "l"), ("without warm-up", "l"))
    places: dict[tuple[Any, ...], dict[bool, Record]] = {}
    for cell in cells:
        key = (cell.get("variant"), cell.get("timing"), cell.get("synchronise"))
        places.setdefault(key, {})[bool(cell.get("warmup"))] = cell
    for (variant, timing, synchronise), row in places.items():
        waited = "synchronised" if synchronise else "not synchronised"
        table.add_row(
            short_name(f"{variant}: {timing}, {waited}", 40),
            *(_ablation_cell(row.get(warm)) for warm in (True, False)),
        )
    return table


def _ablation_cell(cell: Record | None) -> Text:
    if cell is None:
        return Text("–")
    if cell.get("error") or not cell.get("valid"):
        said = printable(f"invalid: {cell.get('error') or cell.get('note')}")
        return Text(said, style="red")
    return Text(_mean(cell.get("mean_s"), cell.get("std_s")))


def _mfu(rows: Sequence[Record]) -> Table | None:
    """The share of each peak that the step reaches; above 100 % something is wrong."""
    if not rows:
        return None
    table = plain_table(("MFU", "l"), ("of the peak", "r"), ("FLOP", "r"), ("note", "l"))
    for row in rows:
        value = row.get("value")
        over = value is not None and value > 1
        note = row.get("warning") or ("above 100 %: one of the figures is wrong" if over else "")
        table.add_row(
            Text(printable(f"{row.get('source')}, {row.get('dtype')}")),
            Text("–" if value is None else f"{100 * value:.1f} %", style="red" if over else ""),
            format_count(row.get("flop")),
            Text(printable(str(note))),
        )
    return table
