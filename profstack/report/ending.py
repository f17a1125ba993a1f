"""What a run ends with: one screen that says why a step takes its time, and what to do first.

All of it, with every layer and warning, is what `profstack show` prints.
"""

from __future__ import annotations

import io
import re
import textwrap
from collections.abc import Iterable, Mapping
from typing import Any

from rich.text import Text

from profstack.report.benchtext import mean_told
from profstack.report.findingtext import top_findings
from profstack.report.highlights import peak_bytes
from profstack.report.nsystext import nsys_line
from profstack.report.text import headline, probe_effect_words
from profstack.report.textparts import WITH_DATA, console, printable, style_of, without_margins
from profstack.report.toprows import top_tables
from profstack.report.verdicttext import bar_lines, verdict_lines
from profstack.units import format_bytes, format_count

_FINDINGS = 3
_ROWS = 2
_WARNINGS = 2
# A warning's first sentence is cut at this many lines of the terminal.
_WARNING_LINES = 2
_CUT = " ..."
# A layer that made steps this many times as long is named.
_SLOW = 2.0


def ending(report: Mapping[str, Any], *, width: int, colour: bool) -> str:
    """The screen, in `width` columns."""
    out = io.StringIO()
    screen = console(out, width, colour)
    for line in verdict_lines(report, width):
        screen.print(line)
    for line in (*_without_gap(headline(report, width)), *_rates(report, width)):
        screen.print(line)
    bar = list(bar_lines(report, width))
    for line in bar:
        screen.print(line)
    found = list(top_findings(report, width, _FINDINGS))
    if found:
        screen.print()
    for line in found:
        screen.print(line)
    for table in top_tables(report, width, _ROWS, parts=not bar):
        screen.print()
        screen.print(table)
    rest = [*_layers(report, width), *_nsys(report, width), *_warnings(report, width)]
    if rest:
        screen.print()
    for line in rest:
        screen.print(line)
    return without_margins(out.getvalue())


def _without_gap(lines: Iterable[Text]) -> list[Text]:
    """Lines without an empty one at their end."""
    kept = list(lines)
    return kept[:-1] if kept and not kept[-1].plain else kept


def _rates(report: Mapping[str, Any], width: int) -> Iterable[Text]:
    """Peak memory, operations and what share of the machine's peak they are, in a line."""
    words = []
    peak = peak_bytes(report)
    if peak is not None:
        words.append(f"tensors at the peak of a step: {format_bytes(peak)}")
    roofline = report.get("roofline") or {}
    step = next((row for row in roofline.get("points") or [] if row["kind"] == "step"), None)
    if step is not None and step.get("flop"):
        # The steps per second above are by the mean.
        of = " in the median step" if mean_told(report.get("benchmark") or {}) else ""
        words += _work(step, roofline.get("mfu") or [], of)
    for line in textwrap.wrap("; ".join(words), max(width, 40), subsequent_indent="  "):
        yield Text(printable(line))


def _work(step: Mapping[str, Any], shares: Iterable[Mapping[str, Any]], of: str) -> list[str]:
    """Operations of a step, their rate, and its share of the measured peak or why there is none."""
    words = [f"{format_count(step['flop'])} FLOP a step"]
    if not step.get("flop_per_s"):
        return [*words, f"no FLOP/s: {step['reason']}"] if step.get("seconds") else words
    rate = f"{format_count(step['flop_per_s'])} FLOP/s{of}"
    measured = next((row for row in shares if row["source"] == "measured"), None)
    if measured is None:
        return [*words, rate]
    share = measured["value"]
    if share is None:
        return [*words, f"{rate}, more than the measured peak: one of the two is wrong"]
    said = f"{100 * share:.0f} %" if share >= 0.005 else "less than 1 %"
    return [*words, f"{rate}, {said} of the measured peak"]


def _layers(report: Mapping[str, Any], width: int) -> Iterable[Text]:
    """A line on all layers; and one on each that has no data, with the command that fills it."""
    layers = report.get("layers") or []
    seen = [row for row in layers if row["status"] in WITH_DATA]
    effects = {row["layer"]: row for row in report.get("probe_effect") or []}
    if seen:
        names = ", ".join(str(row["name"]) for row in seen)
        words = f"layers: {names}"
        slow = [
            f"{row['name']} {probe_effect_words(effects[row['name']]).partition(' (')[0]}"
            for row in seen
            if ((effects.get(row["name"]) or {}).get("factor") or 0.0) >= _SLOW
        ]
        if slow:
            words += f"; while they watched, a step took longer by a factor: {', '.join(slow)}"
        yield from _wrapped(words, width)
    lacking = _lacking(report)
    reasons = {row.get("reason") for row in lacking}
    if len(lacking) > 1 and len(reasons) == 1:
        names = ", ".join(str(row["name"]) for row in lacking)
        yield from _wrapped(f"layers without data: {names}: {reasons.pop()}", width)
        return
    for row in lacking:
        line = Text(f"{printable(str(row['name']))} ")
        line.append(str(row["status"]), style=style_of(str(row["status"])))
        words = f": {row.get('reason')}"
        if row.get("command"):
            words += f"; next: {row['command']}"
        yield line.append(printable(words), style="none")


def _lacking(report: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """The layers without data."""
    return [row for row in report.get("layers") or [] if row["status"] not in WITH_DATA]


def _nsys(report: Mapping[str, Any], width: int) -> Iterable[Text]:
    """What Nsight Systems saw of its own run of the script."""
    line = nsys_line(report)
    if line is not None:
        yield from _wrapped(line, width)


def _warnings(report: Mapping[str, Any], width: int) -> Iterable[Text]:
    """The first sentences of the first warnings."""
    told = {row.get("reason") for row in _lacking(report)}
    texts = [warning.get("text") for warning in report.get("warnings") or []]
    for warning in (report.get("benchmark") or {}).get("warnings") or []:
        texts.append(warning.get("text") if isinstance(warning, dict) else warning)
    texts = [text for text in texts if text not in told]
    cut = False
    for text in texts[:_WARNINGS]:
        first = re.split(r"(?<=[.!?;]) ", printable(str(text)))[0].rstrip(";")
        lines = textwrap.wrap(
            f"warning: {first}",
            max(width, 40),
            subsequent_indent="  ",
            max_lines=_WARNING_LINES,
            placeholder=_CUT,
        )
        cut = cut or lines[-1].endswith(_CUT)
        for number, line in enumerate(lines):
            head = "warning:" if number == 0 else ""
            yield Text.assemble((head, "yellow"), line.removeprefix(head))
    left = len(texts) - _WARNINGS
    if left > 0:
        yield Text(f"{left} more warning{'s' if left > 1 else ''}: profstack show")
    elif cut:
        yield Text("the warnings in full: profstack show")


def _wrapped(words: str, width: int) -> Iterable[Text]:
    for line in textwrap.wrap(printable(words), max(width, 40), subsequent_indent="  "):
        yield Text(line)
