"""The parts of a benchmark in the terminal: a short table for each that the report has.

What has no figure says why, under its table.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from rich.text import Text

from profstack.report.benchtext import interval
from profstack.report.textparts import WIDE, indented, plain_table, printable, short_name
from profstack.units import format_count, format_seconds

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.table import Table

Record = Mapping[str, Any]
# One interrupted call makes a mean of single calls, and leaves the factor as it is.
_AVERAGES = ("wrong and right", "means; the factor is the median of wrong over right, pair by pair")
_INVALID, _EMPTY = "invalid", "no figure"


def bench_parts(report: Record, width: int) -> Iterable[RenderableType]:
    """The parts that were asked for: a table each, what needs a sentence, and an empty line."""
    mark = report.get("benchmark") or {}
    compare, mistakes = mark.get("compare") or (), mark.get("mistakes") or ()
    ablation = mark.get("ablation") or ()
    rates, limits = mark.get("throughput") or (), mark.get("throughput_limits") or ()
    parts = (
        (_shapes(mark.get("by_shape") or ()), ()),
        (_throughput(rates, limits), _ends(rates, limits)),
        (_compare(compare), [(row.get("variant"), _why_no_result(row)) for row in compare]),
        (
            _mistakes(mistakes, width),
            [_AVERAGES, *((row.get("title"), _why_not(row)) for row in mistakes)],
        ),
        (_ablation(ablation), _errors(ablation)),
        (_mfu((report.get("roofline") or {}).get("mfu") or ()), ()),
    )
    for table, sentences in parts:
        if table is None:
            continue
        yield table
        for name, words in sentences:
            if words:
                yield from indented(f"{name}: {words}", width)
        yield Text()


def _why_not(mistake: Record) -> str | None:
    """Why a mistake has no figures; None where it has."""
    if mistake.get("error"):
        return str(mistake["error"])
    return None if mistake.get("applies") else str(mistake.get("note"))


def _why_no_result(row: Record) -> str | None:
    """Why a variant failed, or why its results could not be compared with the eager model's."""
    if row.get("reason"):
        return str(row["reason"])
    parts = str(row.get("note") or "").split("; ")
    apart = next((part for part in parts if part.startswith("not comparable: ")), None)
    return None if row.get("variant") == "eager" else apart


def _errors(cells: Sequence[Record]) -> list[tuple[str, Any]]:
    """Every reason for a cell without a figure once, under the word that stands in the cells."""
    found = dict.fromkeys(cell.get("error") or "" for cell in cells if cell.get("error"))
    empty = (cell for cell in cells if _is_empty(cell))
    notes = dict.fromkeys(cell.get("note") or "" for cell in empty)
    return [*((_INVALID, error) for error in found), *((_EMPTY, note) for note in notes)]


def _is_empty(cell: Record) -> bool:
    """Whether a cell has no figure of its own though nothing is wrong with it."""
    return bool(cell.get("valid")) and not cell.get("error") and cell.get("mean_s") is None


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
    """A row per data type: the knee, the maximum, and the largest batch."""
    if not (limits or rows):
        return None
    table = plain_table(
        ("throughput", "l"), ("knee", "r"), ("items/s", "r"), ("maximum", "r"), ("items/s", "r"),
        ("largest", "r"),
    )  # fmt: skip
    for limit in limits:
        table.add_row(
            Text(printable(str(limit.get("dtype")))),
            _whole(limit.get("knee_batch")),
            format_count(limit.get("knee_items_per_s")),
            _whole(limit.get("max_batch")),
            format_count(limit.get("max_items_per_s")),
            _whole(limit.get("largest_batch")),
        )
    return table


def _ends(rows: Sequence[Record], limits: Sequence[Record]) -> list[tuple[Any, Any]]:
    """What ended each search, and why a data type without a search has no figures."""
    known = {one.get("dtype") for one in limits}
    ends = [(one.get("dtype"), one.get("limited_by") or one.get("note")) for one in limits]
    for row in rows:
        if row.get("dtype") not in known and row.get("status") != "measured":
            known.add(row.get("dtype"))
            ends.append((row.get("dtype"), f"{row.get('status')}: {row.get('reason')}"))
    return ends


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
            words = str(row.get("status"))
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
    deviations = width >= WIDE
    table = plain_table(("timing mistake", "l"), ("wrong", "r"), ("right", "r"), ("factor", "l"))
    for row in rows:
        words = _factor(row, "factor", "ci95_low", "ci95_high")
        if _why_not(row) is not None:
            words = "failed" if row.get("error") else "cannot differ here"
        table.add_row(
            short_name(row.get("title"), width - (54 if deviations else 40)),
            _mean(row.get("wrong_s"), row.get("wrong_std_s") if deviations else None),
            _mean(row.get("right_s"), row.get("right_std_s") if deviations else None),
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
        return Text(_INVALID, style="red")
    return Text(_EMPTY if _is_empty(cell) else _mean(cell.get("mean_s"), cell.get("std_s")))


def _mfu(rows: Sequence[Record]) -> Table | None:
    """The share of each peak that the step reaches; a note where it would be above 100 %."""
    if not rows:
        return None
    table = plain_table(("MFU", "l"), ("of the peak", "r"), ("FLOP", "r"), ("note", "l"))
    for row in rows:
        value = row.get("value")
        note = row.get("warning") or ""
        table.add_row(
            Text(printable(f"{row.get('source')}, {row.get('dtype')}")),
            Text("–" if value is None else f"{100 * value:.1f} %"),
            format_count(row.get("flop")),
            Text(printable(str(note))),
        )
    return table
