"""The report in a terminal: a summary of one screen, and single tables.

Works at any width and without colour. Names come from the program under measurement, so control
characters in them are shown as question marks and never reach the terminal.
"""

from __future__ import annotations

import io
import textwrap
from typing import TYPE_CHECKING, Any, Literal

from rich.table import Table
from rich.text import Text

from profstack.report.benchpage import is_measured
from profstack.report.benchparts import bench_parts
from profstack.report.benchtext import bench_headline, mean_told
from profstack.report.columns import label_of, unit_of
from profstack.report.findingtext import as_text as findings_text
from profstack.report.highlights import finding_lines, highlights
from profstack.report.nsystext import ALONE, is_import_alone
from profstack.report.tableblocks import blocks
from profstack.report.tables import MOST_ROWS, compact
from profstack.report.textparts import (
    WIDE,
    WITH_DATA,
    console,
    plain_table,
    printable,
    style_of,
    without_margins,
)
from profstack.report.toprows import top_tables
from profstack.report.verdicttext import bar_lines, note_lines, verdict_lines, verdict_text
from profstack.units import format_bytes, format_count, format_seconds

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from profstack import schema

Record = dict[str, Any]
_TOP = 5
_FORMATS: dict[str, Callable[[Any], str]] = {
    "s": format_seconds,
    "bytes": format_bytes,
    "count": format_count,
    "flop": format_count,
    "mac": format_count,
    "rate": format_count,
    "share": lambda value: f"{100 * value:.1f} %",
    "flag": lambda value: "yes" if value else "no",
}


def summary(report: Mapping[str, Any], *, width: int, colour: bool) -> str:
    """All that a terminal is told: the verdict, clean step time, layers, where the time goes."""
    out = io.StringIO()
    screen = console(out, width, colour)
    measured = is_measured(report.get("benchmark") or {})
    for line in bench_headline(report, width) if measured else headline(report, width):
        screen.print(line)
    for line in _judged(report, width):
        screen.print(line)
    for part in bench_parts(report, width):
        screen.print(part)
    why_none = _why_no_layer(report)
    if why_none is not None:
        screen.print(Text(printable(f"layers: none, {why_none}")))
    elif report.get("layers") or not (measured or is_import_alone(report)):
        screen.print(_layers(report, width))
    for table in top_tables(report, width, _TOP):
        screen.print()
        screen.print(table)
    for line in (*_highlights(report), *_findings(report), *_warnings(report)):
        screen.print(line)
    return without_margins(out.getvalue())


def table_text(
    table: schema.Table, records: Sequence[Mapping[str, Any]], *, width: int, colour: bool
) -> str:
    """Rows of one table with units, for reading; columns without any value are left out.

    What is wider than `width` characters stands in blocks, each with the names of the rows.
    """
    out = io.StringIO()
    names = [
        name for name in table.names if any(record.get(name) is not None for record in records)
    ]
    kinds = {column.name: column.type for column in table.columns}
    units = [unit_of(name, kinds[name]) for name in names]
    headings = [label_of(table.name, name) for name in names]
    columns = [
        [cell(record.get(name), unit) for record in records[:MOST_ROWS]]
        for name, unit in zip(names, units, strict=True)
    ]
    cut = _blocks(names, units, headings, columns, width)
    screen = console(out, width, colour)
    for number, places in enumerate(cut):
        shown = Table(box=None, pad_edge=False, header_style="bold")
        for place in places:
            numeric = units[place] != "text"
            side: Literal["left", "right"] = "right" if numeric else "left"
            shown.add_column(headings[place], justify=side, no_wrap=numeric, overflow="fold")
        for row in zip(*(columns[place] for place in places), strict=True):
            shown.add_row(*row)
        if number:
            screen.print()
        screen.print(shown)
    return without_margins(out.getvalue())


def _blocks(
    names: list[str],
    units: list[str],
    headings: list[str],
    columns: list[list[Text]],
    width: int,
) -> list[list[int]]:
    """The blocks of a table, which begin with the row's name; a source line's is its place.

    For that the columns are changed: a file and a line of it become one.
    """

    def cut(lead: int | None) -> list[list[int]]:
        printed = [
            [heading, *(one.plain for one in cells)]
            for heading, cells in zip(headings, columns, strict=True)
        ]
        return blocks(printed, [unit == "text" for unit in units], width, lead)

    found = cut(names.index("name") if "name" in names else None)
    if len(found) < 2 or "name" in names or not {"file", "line"} <= {*names}:
        return found
    file, line = names.index("file"), names.index("line")
    places = zip(columns[file], columns[line], strict=True)
    columns[file] = [Text(f"{one.plain}:{other.plain}") for one, other in places]
    headings[file] = "file:line"
    for each in (names, units, headings, columns):
        del each[line]
    return cut(file)


def cell(value: Any, unit: str) -> Text:
    """One value with its unit; a dash for what was not measured."""
    if value is None or (isinstance(value, float) and value - value != 0):
        return Text("–")
    if isinstance(value, (int, float)) and unit in _FORMATS:
        return Text(_FORMATS[unit](value))
    return Text(printable(str(compact(value))))


def _judged(report: Mapping[str, Any], width: int) -> Iterable[Text]:
    """The verdict and the step bar, with an empty line after them."""
    lines = [*verdict_lines(report, width), *bar_lines(report, width)]
    # The modules, of which a row has another figure, stand below.
    lines += note_lines(report, width)
    yield from lines
    if lines:
        yield Text()


def verdict(report: Mapping[str, Any], *, width: int, colour: bool) -> str:
    """The verdict with the step bar and the evidence of every test."""
    out = io.StringIO()
    screen = console(out, width, colour)
    for part in verdict_text(report, width):
        screen.print(part)
    return without_margins(out.getvalue())


def found(findings: Sequence[Mapping[str, Any]], *, width: int, colour: bool) -> str:
    """All of every finding."""
    out = io.StringIO()
    screen = console(out, width, colour)
    for line in findings_text(findings, width):
        screen.print(line)
    return without_margins(out.getvalue())


def headline(report: Mapping[str, Any], width: int) -> Iterable[Text]:
    """What ran and how long a clean step takes."""
    if is_import_alone(report):
        yield Text(printable(f"{report['nsys']['file']}: {ALONE}"))
        yield Text("clean step: not measured")
        return
    benchmark = report.get("benchmark") or {}
    count = (report.get("step") or {}).get("count") or 0
    status = str(report.get("status"))
    steps = "1 step" if count == 1 else f"{count:,} steps"
    first = Text(printable(f"{report.get('script')}: {steps}, "))
    first.append(status, style=style_of(status))
    if report.get("status_reason"):
        first.append(printable(f": {report['status_reason']}"), style="none")
    yield first
    median = benchmark.get("median_s")
    if median is None:
        yield Text("clean step: not measured")
        return
    line = Text("clean step: ")
    line.append(format_seconds(median), style="bold")
    low, high = benchmark.get("ci95_low_s"), benchmark.get("ci95_high_s")
    if low is not None and high is not None:
        line.append(f"  (95 % interval {format_seconds(low)} to {format_seconds(high)}")
        line.append(f", n = {benchmark.get('n')})")
    else:
        line.append(f"  (no interval, n = {benchmark.get('n')})")
    line.append(mean_told(benchmark))
    yield line
    details = [f"{format_count(benchmark.get('steps_per_s'))} steps/s"]
    if benchmark.get("items_per_s") is not None:
        details.append(f"{format_count(benchmark['items_per_s'])} items/s")
    details.append(f"IQR {format_seconds(benchmark.get('iqr_s'))}")
    first_step = f"first step {format_seconds(benchmark.get('first_step_s'))}"
    watcher = benchmark.get("first_step_layer")
    details.append(first_step + (f" (watched by {printable(str(watcher))})" if watcher else ""))
    margin = " " * 12
    words = ", ".join(details)
    for line_ in textwrap.wrap(
        words, max(width, 40), initial_indent=margin, subsequent_indent=margin
    ):
        yield Text(line_)
    yield Text()


def _why_no_layer(report: Mapping[str, Any]) -> str | None:
    """The one reason for which every layer was skipped; None where that is not so."""
    layers = report.get("layers") or []
    reasons = {layer.get("reason") for layer in layers if layer["status"] == "skipped"}
    all_skipped = all(layer["status"] == "skipped" for layer in layers)
    return str(reasons.pop()) if all_skipped and len(reasons) == 1 else None


def _layers(report: Mapping[str, Any], width: int) -> Table:
    """A row per layer; for one without data the reason and the command that fills it."""
    effects = {effect["layer"]: effect for effect in report.get("probe_effect") or []}
    extra = (("technique", "l"), ("memory", "r")) if width >= WIDE else ()
    table = plain_table(
        ("layer", "l"), ("status", "l"), ("steps", "r"), *extra, ("probe effect", "l")
    )
    for layer in report.get("layers") or []:
        status = str(layer["status"])
        words = probe_effect_words(effects.get(layer["name"]))
        if layer.get("reason"):
            said = printable(str(layer["reason"]))
            words = f"{words}; {said}" if status in WITH_DATA else said
            if status == "empty" and layer.get("command"):
                words += printable(f": {layer['command']}")
        table.add_row(
            Text(printable(str(layer["name"]))),
            Text(status, style=style_of(status)),
            Text(str(layer["steps"]) if layer.get("steps") is not None else "–"),
            *(_technique(layer) if extra else ()),
            Text(words),
        )
    return table


def _technique(layer: Mapping[str, Any]) -> tuple[Text, Text]:
    """How a layer observes, and what its tool holds in memory."""
    technique = printable(str(layer.get("technique") or "–"))
    return Text(technique), Text(format_bytes(layer.get("memory_bytes")))


def probe_effect_words(effect: Mapping[str, Any] | None) -> str:
    """The probe effect with its interval, and whether that tells it from 1.

    With a note it is an upper bound, or there is none.
    """
    if effect is None or effect.get("factor") is None:
        note = (effect or {}).get("note")
        return f"– ({printable(str(note))})" if note else "–"
    words = f"{effect['factor']:.2f}"
    if effect.get("note"):
        return f"≤ {words} ({printable(str(effect['note']))})"
    low, high = effect.get("ci95_low"), effect.get("ci95_high")
    if low is None or high is None:
        return f"{words} (no interval: too few steps)"
    words += f" ({low:.2f} to {high:.2f})"
    return f"{words}, not distinguishable from 1.00" if low <= 1 <= high else words


def _highlights(report: Mapping[str, Any]) -> Iterable[Text]:
    """What the counting, the memory and the watch found, a paragraph each."""
    lines = highlights(report)
    if lines:
        yield Text()
    for line in lines:
        yield Text(printable(line))


def _findings(report: Mapping[str, Any]) -> Iterable[Text]:
    """What was found wrong, a paragraph each, the first ones."""
    found = finding_lines(report)
    if found:
        yield Text()
    for words in found[:_TOP]:
        line = Text("finding: ", style="bold")
        line.append(printable(words), style="none")
        yield line
    if len(found) > _TOP:
        yield Text(f"{len(found) - _TOP} more findings are on the page")


def _warnings(report: Mapping[str, Any]) -> Iterable[Text]:
    """The warnings of the run and of the benchmark, one paragraph each."""
    # What a layer's own row says of it already is not said again.
    told = {layer.get("reason") for layer in report.get("layers") or []}
    texts = [warning.get("text") for warning in report.get("warnings") or []]
    texts = [text for text in texts if text not in told]
    for warning in (report.get("benchmark") or {}).get("warnings") or []:
        texts.append(warning.get("text") if isinstance(warning, dict) else warning)
    if texts:
        yield Text()
    for text in texts:
        line = Text("warning: ", style="yellow")
        line.append(printable(str(text)), style="none")
        yield line
