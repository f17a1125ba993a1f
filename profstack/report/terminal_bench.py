"""A benchmark in the terminal: its headline, and a short table for each part of it."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from profstack.report.screen import WIDE, Piece, Screen, figure, short_name, style_of
from profstack.storage.schema.report import (
    AblationCell,
    Benchmark,
    Mistake,
    Report,
    ThroughputLimit,
    ThroughputRow,
    VariantRow,
)
from profstack.units import format_count, format_seconds

# A mean further than this from the median, over the median, is printed beside it.
_UNEVEN = 0.05
_ENDED_BY = {
    "interval": "ended by the interval",
    "time": "ended by the time bound",
    "samples": "ended by the largest number of samples",
    "repeat": "as many as asked for",
    "interrupt": "interrupted",
}
_INDENTS = " " * 6, " " * 8


def print_headline(screen: Screen, report: Report, *rates: str) -> None:
    """Print the target, its median with interval and mode, the figures of it, and other rates."""
    mark, status = report["benchmark"], report["status"]
    screen.line(f"{mark.get('target') or report['script']}: ", (status, style_of(status)))
    if (median := mark["median_s"]) is None:
        screen.line("step: not measured")
    else:
        span = interval(mark["ci95_low_s"], mark["ci95_high_s"])
        screen.line(
            "step: ",
            (format_seconds(median), "bold"),
            f"  (95 % interval {span}" if span else "  (no interval",
            f", {mark['mode']}, n = {mark['n']}){mean_words(mark)}",
        )
        details = [", ".join(_rates(mark)), ", ".join(_sampling(mark)), "; ".join(rates)]
        for words in (*details, *_other_mode(mark), *_between_processes(mark)):
            screen.paragraph(words, *_INDENTS)
    screen.line()


def mean_words(mark: Benchmark) -> str:
    """Return the mean where it is far from the median: rates rest on the mean."""
    median, mean = mark["median_s"], mark.get("mean_s")
    if not median or mean is None or abs(mean / median - 1) <= _UNEVEN:
        return ""
    return f", mean {format_seconds(mean)}"


def _rates(mark: Benchmark) -> list[str]:
    """Return steps and items per second, and how busy the processor was."""
    items = "items/s unknown: no batch size"
    if mark["items_per_s"] is not None:
        items = f"{format_count(mark['items_per_s'])} items/s"
        if mark.get("batch_size") is not None:
            items += f" (batch of {mark['batch_size']}, {mark.get('batch_size_is')})"
    busy = "" if (cores := mark.get("cores_busy")) is None else f" ({cores:.2f} cores busy)"
    time = f"mean CPU time {format_seconds(mark.get('cpu_mean_s'))}{busy}"
    words = [f"{format_count(mark['steps_per_s'])} steps/s", items, time]
    if mark.get("device_median_s") is not None:
        words.append(f"device time {format_seconds(mark['device_median_s'])}")
    return words


def _sampling(mark: Benchmark) -> list[str]:
    """Return the spread of the samples, the calls before them, and what ended them."""
    first, calls, outliers = mark["first_step_s"], mark["warmup_steps"], mark.get("outliers")
    words = [f"IQR {format_seconds(mark['iqr_s'])}"]
    for name, seconds in (("standard deviation", mark["std_s"]), ("least", mark["min_s"])):
        if seconds is not None:
            words.append(f"{name} {format_seconds(seconds)}")
    words.append(f"first call {format_seconds(first)}")
    if calls is not None:
        words.append("1 warm-up call" if calls == 1 else f"{calls} warm-up calls")
    if outliers:
        words.append("1 outlier" if outliers == 1 else f"{outliers} outliers")
    if (ended := mark.get("stopped_by")) is not None:
        words.append(_ENDED_BY.get(ended, f"ended by {ended}"))
    return words


def interval(low_s: float | None, high_s: float | None) -> str | None:
    """Return an interval with enough digits to tell its ends apart; None where there is none."""
    if low_s is None or high_s is None:
        return None
    width = high_s - low_s
    if not 0 < width < 0.1 * high_s or high_s >= 59.95:
        return f"{format_seconds(low_s)} to {format_seconds(high_s)}"
    units = ((1.0, "s"), (1e-3, "ms"), (1e-6, "µs"), (1e-9, "ns"))
    scale, unit = next((one for one in units if high_s >= one[0]), units[-1])
    digits = min(6, max(0, math.ceil(0.5 - math.log10(width / scale))))
    return f"{low_s / scale:.{digits}f} to {high_s / scale:.{digits}f} {unit}"


def _other_mode(mark: Benchmark) -> Iterable[str]:
    """Return the median of the other way of timing, where both were measured."""
    pipelined, synchronised = mark.get("pipelined_median_s"), mark.get("synchronised_median_s")
    if pipelined is None or synchronised is None:
        return
    words = f"synchronised {format_seconds(synchronised)}"
    span = interval(mark["synchronised_ci95_low_s"], mark["synchronised_ci95_high_s"])
    if mark["mode"] == "synchronised":
        words = f"pipelined {format_seconds(pipelined)}"
        span = interval(mark["pipelined_ci95_low_s"], mark["pipelined_ci95_high_s"])
    yield words + (f" (95 % interval {span})" if span else "")


def _between_processes(mark: Benchmark) -> Iterable[str]:
    """Return the spread between fresh processes, the error bar of a comparison."""
    between = mark.get("between_process")
    medians = [one for one in (between and between["medians_s"]) or () if one is not None]
    if between is None or len(medians) < 2:
        return
    low, high, spread = between["low_s"], between["high_s"], between["spread"]
    apart = "" if spread is None else f", {100 * spread:.1f} % apart"
    yield (
        f"{len(medians)} fresh processes: {format_seconds(low)} to {format_seconds(high)}{apart}: "
        "the error bar of a comparison"
    )


# One interrupted call makes a mean of single calls, and leaves the factor as it is.
_AVERAGES = ("wrong and right", "means; the factor is the median of wrong over right, pair by pair")
_INVALID, _EMPTY = "invalid", "no figure"


def print_parts(screen: Screen, report: Report) -> None:
    """Print a table for each part that was asked for, and under it why figures are missing."""
    mark, roofline = report["benchmark"], report.get("roofline")
    if len(shapes := mark.get("by_shape") or []) > 1:
        screen.rows(
            shapes,
            ("input shapes", "l", lambda row: short_name(row["shape"], 30)),
            ("n", "r", lambda row: str(row["n"])),
            ("median", "r", lambda row: format_seconds(row["median_s"])),
            (
                "95 % interval",
                "l",
                lambda row: interval(row["ci95_low_s"], row["ci95_high_s"]) or "–",
            ),
        )
        screen.line()
    _throughput(screen, mark.get("throughput") or [], mark.get("throughput_limits") or [])
    if variants := mark.get("compare"):
        _compare(screen, variants)
    if mistakes := mark.get("mistakes"):
        _mistakes(screen, mistakes)
    if cells := mark.get("ablation"):
        _ablation(screen, cells)
    if roofline and (shares := roofline.get("mfu")):
        # A note says where the share would be above 100 %.
        screen.rows(
            shares,
            ("MFU", "l", lambda row: f"{row['source']}, {row['dtype']}"),
            ("of the peak", "r", lambda row: figure("share", row["value"])),
            ("FLOP", "r", lambda row: format_count(row["flop"])),
            ("note", "l", lambda row: row["warning"] or ""),
        )
        screen.line()


def _notes(screen: Screen, notes: Iterable[tuple[object, str | None]]) -> None:
    """Print sentences under a table, and an empty line."""
    for name, words in notes:
        screen.paragraph(f"{name}: {words}" if words else "", *_INDENTS)
    screen.line()


def _throughput(
    screen: Screen, rows: Sequence[ThroughputRow], limits: Sequence[ThroughputLimit]
) -> None:
    """Print the knee, the maximum and the largest batch of each data type."""
    if not (rows or limits):
        return
    screen.rows(
        limits,
        ("throughput", "l", lambda limit: str(limit["dtype"])),
        ("knee", "r", lambda limit: _whole(limit["knee_batch"])),
        ("items/s", "r", lambda limit: format_count(limit["knee_items_per_s"])),
        ("maximum", "r", lambda limit: _whole(limit["max_batch"])),
        ("items/s", "r", lambda limit: format_count(limit["max_items_per_s"])),
        ("largest", "r", lambda limit: _whole(limit["largest_batch"])),
    )
    ends = {limit["dtype"]: limit["limited_by"] or limit["note"] for limit in limits}
    for row in (row for row in rows if row["status"] != "measured"):
        ends.setdefault(row["dtype"], f"{row['status']}: {row['reason']}")
    _notes(screen, ends.items())


def _whole(value: int | None) -> str:
    """Return a count that must not be rounded."""
    return "–" if value is None else str(value)


def _compare(screen: Screen, rows: Sequence[VariantRow]) -> None:
    """Print time and speedup of each variant, and whether its results are the same."""
    screen.rows(
        rows,
        ("variant", "l", lambda row: row["variant"]),
        ("median", "r", lambda row: format_seconds(row["median_s"])),
        (
            "speedup",
            "r",
            lambda row: _factor(row["speedup"], row["speedup_low"], row["speedup_high"]),
        ),
        ("compile", "r", lambda row: format_seconds(row["compile_s"])),
        ("operators", "r", lambda row: _whole(row["operators"])),
        ("results", "l", _results),
    )
    _notes(screen, ((row["variant"], _why_no_result(row)) for row in rows))


def _results(row: VariantRow) -> Piece:
    """Return whether a variant's results are the eager model's."""
    words = {True: "equal", False: "differ", None: "–"}[row["equal"]]
    if row["equal"] is False and row["max_difference"] is not None:
        words += f" by {row['max_difference']:.2g}"
    if row["status"] != "measured":
        words = row["status"]
    return words, "red" if row["equal"] is False or row["status"] == "failed" else ""


def _why_no_result(row: VariantRow) -> str | None:
    """Return why a variant failed, or why its results were not compared with the eager model's."""
    if row["reason"] or row["variant"] == "eager":
        return row["reason"]
    notes = (row["note"] or "").split("; ")
    return next((note for note in notes if note.startswith("not comparable: ")), None)


def _factor(value: float | None, low: float | None, high: float | None) -> str:
    """Return a factor with its interval in brackets."""
    if value is None:
        return "–"
    return f"{value:.2f}" + ("" if low is None or high is None else f" ({low:.2f} to {high:.2f})")


def _mistakes(screen: Screen, rows: Sequence[Mistake]) -> None:
    """Print the wrong time beside the right one for each mistake of timing."""
    wide = screen.width >= WIDE

    def factor(row: Mistake) -> str:
        if _why_no_factor(row) is not None:
            return "failed" if row["error"] else "cannot differ here"
        return _factor(row["factor"], row["ci95_low"], row["ci95_high"])

    room = screen.width - (54 if wide else 40)
    screen.rows(
        rows,
        ("timing mistake", "l", lambda row: short_name(row["title"], room)),
        ("wrong", "r", lambda row: _mean(row["wrong_s"], row["wrong_std_s"] if wide else None)),
        ("right", "r", lambda row: _mean(row["right_s"], row["right_std_s"] if wide else None)),
        ("factor", "l", factor),
    )
    _notes(screen, [_AVERAGES, *((row["title"], _why_no_factor(row)) for row in rows)])


def _why_no_factor(mistake: Mistake) -> str | None:
    """Return why a mistake has no figures; None where it has."""
    if mistake["error"]:
        return mistake["error"]
    return None if mistake["applies"] else str(mistake["note"])


def _mean(mean_s: float | None, std_s: float | None) -> str:
    words = format_seconds(mean_s)
    return words if std_s is None else f"{words} ± {format_seconds(std_s)}"


def _ablation(screen: Screen, cells: Sequence[AblationCell]) -> None:
    """Print the cells in rows of clock and synchronisation."""
    rows: dict[str, dict[bool, AblationCell]] = {}
    for cell in cells:
        waited = "synchronised" if cell["synchronise"] else "not synchronised"
        name = f"{cell['variant']}: {cell['timing']}, {waited}"
        rows.setdefault(name, {})[cell["warmup"]] = cell
    screen.rows(
        rows.items(),
        ("ablation", "l", lambda row: short_name(row[0], 40)),
        ("after warm-up", "l", lambda row: _ablation_cell(row[1].get(True))),
        ("without warm-up", "l", lambda row: _ablation_cell(row[1].get(False))),
    )
    # Every reason for a cell without a figure once, under the word that is in the cells.
    errors = dict.fromkeys(cell["error"] for cell in cells if cell["error"])
    empty = dict.fromkeys(cell["note"] for cell in cells if _is_empty(cell))
    _notes(screen, [*((_INVALID, error) for error in errors), *((_EMPTY, note) for note in empty)])


def _is_empty(cell: AblationCell) -> bool:
    """Return whether a cell has no figure of its own though nothing is wrong with it."""
    return cell["valid"] and not cell["error"] and cell["mean_s"] is None


def _ablation_cell(cell: AblationCell | None) -> Piece:
    if cell is None:
        return "–"
    if cell["error"] or not cell["valid"]:
        return _INVALID, "red"
    return _EMPTY if _is_empty(cell) else _mean(cell["mean_s"], cell["std_s"])
