"""The report in a terminal: a summary, the end of a run, verdict, findings, and single tables."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence

from profstack.analysis.benchmark import step_name
from profstack.code_owner import at_line, place_words
from profstack.findings.next_step import first_sentences, sureness_words
from profstack.findings.rules import OF_STEPS
from profstack.report.bench_page import is_measured
from profstack.report.overview import step_point
from profstack.report.page_tables import MOST_ROWS, compact
from profstack.report.screen import (
    CUT,
    WIDE,
    Piece,
    Screen,
    blocks,
    evidence_label,
    evidence_words,
    figure,
    finding_cost,
    finding_line,
    printable,
    style_of,
)
from profstack.report.terminal_bench import mean_words, print_headline, print_parts
from profstack.report.terminal_tables import (
    IMPORT_ALONE,
    has_no_step,
    highlights,
    is_import_alone,
    nsys_line,
    peak_bytes,
    print_ranks,
    print_top_tables,
)
from profstack.storage.schema.column import Table
from profstack.storage.schema.report import (
    Finding,
    LayerFacts,
    ProbeEffect,
    Report,
    RunPartName,
    StepBarPart,
    VerdictEvidence,
)
from profstack.units import format_bytes, format_count, format_seconds

_FORMATS: dict[str, Callable[[float], str]] = {
    "s": format_seconds,
    "bytes": format_bytes,
    **dict.fromkeys(("count", "flop", "mac", "rate"), format_count),
    "share": lambda value: f"{100 * value:.1f} %",
    "flag": lambda value: "yes" if value else "no",
}
# Statuses of layers that have data.
_WITH_DATA = ("recorded", "emitted")


# The summary --------------------------------------------------------------------------------

_TOP = 5


def summary(report: Report, *, width: int, colour: bool) -> str:
    """Return what `profstack show` prints: verdict, clean step, layers, heaviest rows, warnings."""
    screen = Screen(width, colour)
    if measured := is_measured(report["benchmark"]):
        print_headline(screen, report, *_rates(report))
    else:
        _headline(screen, report)
        if report["benchmark"]["median_s"] is not None and not is_import_alone(report):
            screen.line()
    _print_verdict(screen, report)
    print_ranks(screen, report)
    _print_run(screen, report)
    _print_bar(screen, report)
    parts = _drawn_parts(report)
    if report.get("verdict") or parts:
        screen.line()
    print_parts(screen, report)
    reasons = {layer["reason"] for layer in report["layers"]}
    if len(reasons) == 1 and all(layer["status"] == "skipped" for layer in report["layers"]):
        screen.line(f"layers: none, {next(iter(reasons))}")
    elif report["layers"] or not (measured or is_import_alone(report)):
        _layer_table(screen, report)
    print_top_tables(screen, report, _TOP)
    found = [finding_line(finding) for finding in report.get("findings") or []]
    more = [f"{len(found) - _TOP} more findings are on the page"] if len(found) > _TOP else []
    # A reason that is in the layer's own row is not repeated.
    findings: list[Piece] = [*((f"finding: {words}", "bold") for words in found[:_TOP]), *more]
    warned = [(f"warning: {text}", "yellow") for text in _warning_texts(report, reasons)]
    for lines in (highlights(report), findings, warned):
        screen.gap()
        for line in lines:
            screen.line(line)
    return screen.text()


def _headline(screen: Screen, report: Report) -> None:
    """Print what ran and how long a clean step takes."""
    if is_import_alone(report) and report["nsys"] is not None:
        screen.line(f"{report['nsys']['file']}: {IMPORT_ALONE}")
        screen.line("clean step: not measured")
        return
    mark, status, count = report["benchmark"], report["status"], report["step"]["count"]
    # Reports of older versions have no list of files.
    files = ", ".join(each["file"] for each in report.get("imports", ()))
    if has_no_step(report):
        screen.line(f"imported: {files}")
        return
    screen.line(
        f"{report['script'] or files}: ",
        "1 step, " if count == 1 else f"{count:,} steps, ",
        (status, style_of(status)),
        f": {report['status_reason']}" if report.get("status_reason") else "",
    )
    if mark["median_s"] is None:
        screen.line("clean step: not measured")
        return
    span = "no interval"
    if mark["ci95_low_s"] is not None and mark["ci95_high_s"] is not None:
        low, high = format_seconds(mark["ci95_low_s"]), format_seconds(mark["ci95_high_s"])
        span = f"{low} to {high} with 95 % confidence"
    median = (f"median {format_seconds(mark['median_s'])}", "bold")
    screen.line(f"{step_name(mark)}: ", median, f"  ({span}, n = {mark['n']}){mean_words(mark)}")
    items = "" if mark["items_per_s"] is None else f", {format_count(mark['items_per_s'])} items/s"
    watched = f" (watched by {watcher})" if (watcher := mark.get("first_step_layer")) else ""
    screen.paragraph(
        f"{format_count(mark['steps_per_s'])} steps/s{items}, IQR {format_seconds(mark['iqr_s'])}, "
        f"first step {format_seconds(mark['first_step_s'])}{watched}",
        *[" " * 12] * 2,
    )


def _layer_table(screen: Screen, report: Report) -> None:
    """Print a row per layer; for one without data the reason and the command that fills it."""
    effects = {effect["layer"]: effect for effect in report["probe_effect"]}

    def effect_words(layer: LayerFacts) -> str:
        words = probe_effect_words(effects.get(layer["name"]))
        if not layer["reason"]:
            return words
        if layer["status"] in _WITH_DATA:
            return f"{words}; {layer['reason']}"
        hint = layer["command"] if layer["status"] == "empty" else None
        return f"{layer['reason']}: {hint}" if hint else layer["reason"]

    more: tuple[tuple[str, str, Callable[[LayerFacts], Piece]], ...] = (
        ("technique", "l", lambda layer: layer["technique"] or "–"),
        ("memory", "r", lambda layer: format_bytes(layer["memory_bytes"])),
    )
    screen.rows(
        report["layers"],
        ("layer", "l", lambda layer: layer["name"]),
        ("status", "l", lambda layer: (layer["status"], style_of(layer["status"]))),
        ("steps", "r", lambda layer: str(layer["steps"]) if layer["steps"] is not None else "–"),
        *(more if screen.width >= WIDE else ()),
        ("probe effect", "l", effect_words),
    )


def probe_effect_words(effect: ProbeEffect | None) -> str:
    """Return the probe effect with its interval, and whether that tells it from 1.

    With a note it is an upper bound, or there is none.
    """
    if effect is None or effect["factor"] is None:
        return f"– ({effect['note']})" if effect is not None and effect["note"] else "–"
    words, low, high = f"{effect['factor']:.2f}", effect["ci95_low"], effect["ci95_high"]
    if effect["note"]:
        return f"≤ {words} ({effect['note']})"
    if low is None or high is None:
        return f"{words} (no interval: too few steps)"
    words += f" ({low:.2f} to {high:.2f})"
    return f"{words}, not distinguishable from 1.00" if low <= 1 <= high else words


def _warning_texts(report: Report, known: set[str | None]) -> list[str]:
    """Return the warnings of the run, but for reasons printed already, and of the benchmark.

    Those on which steps count come before those on how steady their times are.
    """
    warnings = report.get("warnings") or []
    of_steps = [each["text"] for each in warnings if each["slug"] in OF_STEPS]
    others = [each["text"] for each in warnings if each["slug"] not in OF_STEPS]
    texts = [*of_steps, *report["benchmark"]["warnings"], *others]
    return [text for text in texts if text not in known]


# The end of a run: one screen that says why a step takes its time, and what to do first ------

_FINDINGS = 3
_ROWS = 2
_WARNINGS = 2
# A warning's first sentence is cut at this many lines of the terminal.
_WARNING_LINES = 2
# A layer that made steps this many times as long is named.
_SLOW = 2.0


def ending(report: Report, *, width: int, colour: bool) -> str:
    """Return the screen that a run ends with; `profstack show` prints the rest."""
    screen = Screen(width, colour)
    _print_verdict(screen, report)
    _headline(screen, report)
    screen.paragraph("; ".join(_rates(report)), "", "  ")
    print_ranks(screen, report)
    _print_run(screen, report)
    _print_bar(screen, report)
    screen.gap()
    found = report.get("findings") or []
    verdict = report.get("verdict")
    # Reports of older versions have none.
    said = verdict.get("action", "") if verdict else ""
    for number, finding in enumerate(found[:_FINDINGS], 1):
        style = _STYLES.get(str(finding["severity"]), "")
        screen.paragraph(finding["title"], f"{number}. ", "   ", style)
        advice = first_sentences(finding["advice"] or "", _ADVICE if number == 1 else 0)
        # The verdict's line on what to do has it already.
        if advice and advice.partition(". ")[0] in said:
            advice = ""
        screen.paragraph(": ".join(filter(None, (finding_cost(finding), advice))), *_INDENTS)
    if (left := len(found) - _FINDINGS) > 0:
        screen.line(f"{left} more finding{'s' * (left > 1)}: profstack show --findings")
    print_top_tables(screen, report, _ROWS, parts=not _drawn_parts(report))
    screen.gap()
    _print_layers(screen, report)
    screen.paragraph(nsys_line(report) or "", "", "  ")
    _print_warnings(screen, report)
    return screen.text()


def _rates(report: Report) -> Iterator[str]:
    """Yield requests and tokens of an inference, peak memory, a step's operations, their rate, and
    its share of the measured peak.
    """
    if (asked := report.get("requests")) is not None:
        p50, p90, p99 = (format_seconds(asked[name]) for name in ("p50_s", "p90_s", "p99_s"))
        yield f"{asked['count']} requests: p50 {p50}, p90 {p90}, p99 {p99}"
    if (made := report.get("tokens")) is not None:
        first, later = (made["first_token_p50_s"], made["later_token_s"])
        each = f", then {format_seconds(later)} each" if later is not None else ""
        after = f", the first after {format_seconds(first)}{each}" if first is not None else ""
        yield f"{format_count(made['new_tokens_per_s'])} new tokens/s{after}"
    peak, roofline, step = peak_bytes(report), report.get("roofline"), step_point(report)
    if peak is not None:
        yield f"tensors at the peak of a step: {format_bytes(peak)}"
    if not roofline or step is None or not step["flop"]:
        return
    yield f"{format_count(step['flop'])} FLOP a step"
    if step["flop_per_s"]:
        # The steps per second in the headline are by the mean.
        of = " in the median step" if mean_words(report["benchmark"]) else ""
        shares = [row["value"] for row in roofline["mfu"] if row["source"] == "measured"]
        yield f"{format_count(step['flop_per_s'])} FLOP/s{of}{''.join(map(_of_peak, shares[:1]))}"
    elif step["seconds"]:
        yield f"no FLOP/s: {step['reason']}"


def _of_peak(share: float | None) -> str:
    if share is None:
        return ", more than the measured peak: one of the two is wrong"
    said = f"{100 * share:.0f} %" if share >= 0.005 else "less than 1 %"
    return f", {said} of the measured peak"


def _lacking(report: Report) -> list[LayerFacts]:
    """Return the layers without data."""
    return [layer for layer in report["layers"] if layer["status"] not in _WITH_DATA]


def _print_layers(screen: Screen, report: Report) -> None:
    """Print a line on all layers with data, and one on each without, with its command."""
    names = [layer["name"] for layer in report["layers"] if layer["status"] in _WITH_DATA]
    effects = {effect["layer"]: effect for effect in report["probe_effect"]}
    slow = [
        f"{name} {probe_effect_words(effects[name]).partition(' (')[0]}"
        for name in names
        if name in effects and (effects[name]["factor"] or 0.0) >= _SLOW
    ]
    words = f"layers: {', '.join(names)}" if names else ""
    if slow:
        words += f"; while they watched, a step took longer by a factor: {', '.join(slow)}"
    screen.paragraph(words, "", "  ")
    lacking = _lacking(report)
    reasons = {layer["reason"] for layer in lacking}
    if len(lacking) > 1 and len(reasons) == 1:
        missing = ", ".join(layer["name"] for layer in lacking)
        screen.paragraph(f"layers without data: {missing}: {reasons.pop()}", "", "  ")
        return
    for layer in lacking:
        status, command = layer["status"], layer["command"]
        words = f": {layer['reason']}" + (f"; next: {command}" if command else "")
        screen.line(f"{layer['name']} ", (status, style_of(status)), words)


def _print_warnings(screen: Screen, report: Report) -> None:
    """Print the first sentences of the first warnings."""
    known = {layer["reason"] for layer in _lacking(report)}
    texts = [text for text in _warning_texts(report, known) if text not in known]
    cut = False
    for text in texts[:_WARNINGS]:
        first = re.split(r"(?<=[.!?;]) ", printable(text))[0].rstrip(";")
        lines = screen.wrapped(f"warning: {first}", "", "  ", most=_WARNING_LINES)
        cut = cut or lines[-1].endswith(CUT)
        for number, line in enumerate(lines):
            head = "warning:" if number == 0 else ""
            screen.line((head, "yellow"), line.removeprefix(head))
    if (left := len(texts) - _WARNINGS) > 0:
        screen.line(f"{left} more warning{'s' * (left > 1)}: profstack show")
    elif cut:
        screen.line("the warnings in full: profstack show")


# The verdict, the step bar and the findings --------------------------------------------------

# The letter and the colour of each part of the step: letters, so that no colour is needed.
_DRAWN = {
    "data wait": ("W", "black on yellow"),
    "making the batch": ("W", "black on yellow"),
    "before the model's first call": ("W", "black on yellow"),
    "forward": ("F", "black on cyan"),
    "loss": ("L", "black on bright_cyan"),
    "backward": ("B", "white on blue"),
    "optimizer": ("O", "black on green"),
    "after the step": ("A", "black on bright_magenta"),
    "Python": ("P", "white on magenta"),
    "I/O": ("R", "black on bright_yellow"),
    "idle": ("-", "white on bright_black"),
    "other": ("x", "black on white"),
    "not attributed": ("?", "black on bright_white"),
}
_DRAWN_OF_RUN: dict[RunPartName, tuple[str, str]] = {
    "start-up and imports": ("i", "white on bright_black"),
    "model and data set-up": ("u", "black on bright_white"),
    "first step and compilation": ("c", "white on blue"),
    "steps": ("S", "black on cyan"),
    "waiting for data": ("W", "black on yellow"),
    "evaluation": ("E", "black on bright_cyan"),
    "checkpoints and saving": ("V", "black on green"),
    "logging and callbacks": ("L", "black on bright_yellow"),
    "other": ("x", "black on white"),
    "shutdown": ("d", "white on bright_black"),
}
# Parts below this share of the step are left out of the bar and its legend.
_LEAST = 0.005
# Below this width the evidence is printed without threshold and time.
_NARROW = 60
# Columns of the evidence that are not among its figures.
_EVIDENCE = frozenset(
    ("test", "share", "threshold_share", "time_s", "file", "line", "name", "link", "reason")
)
# Characters of advice under the first finding: its first sentence may only say where, the next
# one what to do.
_ADVICE = 150
_STYLES = {"high": "bold red", "medium": "yellow"}
_INDENTS = "   ", "   "


def _print_verdict(screen: Screen, report: Report) -> None:
    """Print the verdict's sentence and what to do; nothing without a verdict."""
    if not (verdict := report.get("verdict")):
        return
    for number, line in enumerate(screen.wrapped(f"verdict: {verdict['sentence'] or ''}")):
        head, _, rest = line.partition(" ")
        if number:
            screen.line((line, "bold"))
        else:
            screen.line((head, "bold reverse"), (f" {rest}", "bold"))
    if verdict.get("action"):
        screen.paragraph(f"next: {verdict['action']}")
    if words := sureness_words(report):
        screen.paragraph(words)


def _drawn_parts(report: Report) -> list[StepBarPart]:
    """Return the parts of the step bar; none where nothing but a rest is known."""
    bar = report.get("step_bar")
    parts = [part for part in bar["parts"] if part["share"] >= _LEAST] if bar else []
    return parts if any(part["name"] != "not attributed" for part in parts) else []


def _print_bar(screen: Screen, report: Report) -> None:
    """Print the clean step as a bar of letters with its legend; nothing where there is no bar."""
    bar, parts = report.get("step_bar"), _drawn_parts(report)
    if not bar or not parts:
        return
    owner = "the device's " if bar.get("time_line") == "device" else ""
    _print_parts(
        screen,
        [
            (
                f"{owner}idle" if part["name"] == "idle" else part["name"],
                part["share"],
                part["seconds"],
                _DRAWN.get(part["name"], ("#", "reverse")),
            )
            for part in parts
        ],
    )
    screen.paragraph(bar.get("reason") or "")


def _print_run(screen: Screen, report: Report) -> None:
    """Print the whole run as such a bar; nothing where it was not divided."""
    rows = report.get("run_bar") or []
    added_s = sum(row["wall_s"] for row in rows if row["share"] is None)
    shares = [(row, share) for row in rows if (share := row["share"] or 0.0) >= _LEAST]
    if not shares:
        return
    program_s = sum(row["wall_s"] for row in rows) - added_s
    added = f"; profstack added {format_seconds(added_s)}" if added_s else ""
    rate = report["run"].get("items_per_s")
    items = f", {format_count(rate)} items/s in all of it" if rate else ""
    screen.line(f"the run, {format_seconds(program_s)}{items}{added}:")
    drawn = [
        (row["part"], share, row["wall_s"], _DRAWN_OF_RUN[row["part"]]) for row, share in shares
    ]
    _print_parts(screen, drawn)


_Drawn = tuple[str, float, float, tuple[str, str]]


def _print_parts(screen: Screen, parts: Sequence[_Drawn]) -> None:
    """Print parts (name, share, seconds, letter and style) as a bar with its legend."""
    # Two columns are the bar's brackets.
    cells = cells_of([share for _, share, _, _ in parts], screen.width - 2)
    stretches = (
        (sign * count, style) for (*_, (sign, style)), count in zip(parts, cells, strict=True)
    )
    screen.line("[", *stretches, "]")
    line = ""
    for name, share, seconds, (sign, _) in parts:
        words = f"{sign} {name} {100 * share:.0f} % ({format_seconds(seconds)})"
        if line and len(line) + 3 + len(words) > screen.width:
            screen.line(line)
            line = ""
        line = f"{line}   {words}" if line else words
    screen.line(line)


def cells_of(shares: Sequence[float], room: int) -> list[int]:
    """Divide `room` cells by shares: by largest remainders, at least one cell for each."""
    whole = sum(max(share, 0.0) for share in shares)
    if not whole or room < len(shares):
        return [0] * len(shares)
    exact = [max(share, 0.0) / whole * (room - len(shares)) for share in shares]
    cells = [int(each) for each in exact]
    left = room - len(shares) - sum(cells)
    order = sorted(range(len(exact)), key=lambda place: cells[place] - exact[place])
    for place in order[:left]:
        cells[place] += 1
    return [each + 1 for each in cells]


def verdict(report: Report, *, width: int, colour: bool) -> str:
    """Return the verdict with the step bar and the evidence of every test."""
    screen = Screen(width, colour)
    if not (judged := report.get("verdict")):
        screen.line("verdict: this report has none")
        return screen.text()
    _print_verdict(screen, report)
    if (margin := judged.get("margin")) is not None:
        screen.line(f"margin: {100 * margin:.0f} points of the step's share")
    if _drawn_parts(report):
        screen.line()
        _print_bar(screen, report)
    if not judged["evidence"]:
        return screen.text()
    screen.line()
    more: tuple[tuple[str, str, Callable[[VerdictEvidence], str]], ...] = (
        ("from", "r", lambda row: f"{100 * row['threshold_share']:.0f} %"),
        ("time", "r", lambda row: format_seconds(row.get("time_s"))),
    )
    screen.rows(
        judged["evidence"],
        ("test", "l", lambda row: row["test"]),
        ("share", "r", lambda row: figure("share", row.get("share"))),
        *(more if screen.width >= _NARROW else ()),
        ("what", "l", _figures),
    )
    return screen.text()


def _figures(row: Mapping[str, object]) -> str:
    """Return the figures and the place of a row of evidence."""
    if row.get("reason"):
        return str(row["reason"])
    place = str(row.get("name") or "")
    if row.get("file"):
        place = f"{place_words(str(row['file']), row.get('line'))} {place}".rstrip()
    others = {key: value for key, value in row.items() if key not in _EVIDENCE}
    figures = (f"{evidence_label(key)} {figure(key, value)}" for key, value in others.items())
    return ", ".join(filter(None, (place, *figures)))


def findings(found: Sequence[Finding], *, width: int, colour: bool) -> str:
    """Return all of every finding."""
    screen = Screen(width, colour)
    if not found:
        screen.line("findings: none in this recording")
    for number, finding in enumerate(found, 1):
        if number > 1:
            screen.line()
        style = _STYLES.get(str(finding["severity"]), "bold")
        screen.paragraph(f"{number}. {finding['title']}", "", "   ", style)
        facts = [f"{finding['slug']}, {finding['severity']}", finding_cost(finding)]
        rest = finding.get("gain_reason") or ""
        if rest and finding["gain_s"] is None:
            facts.append(f"no gain: {rest}")
            rest = ""
        if finding["layers"]:
            facts.append(f"seen by {', '.join(map(str, finding['layers']))}")
        screen.paragraph("; ".join(filter(None, facts)), *_INDENTS)
        for row in finding["evidence"]:
            screen.paragraph(f"- {evidence_words(row)}", *_INDENTS)
        rest = f" {rest[:1].upper()}{rest[1:]}." if rest else ""
        screen.paragraph(f"next: {finding['advice']}{rest}", *_INDENTS)
    return screen.text()


# Single tables ------------------------------------------------------------------------------


def table_text(
    table: Table, rows: Sequence[Mapping[str, object]], *, width: int, colour: bool
) -> str:
    """Return rows of one table with units; columns without any value are left out.

    A table wider than `width` characters is cut into blocks, each with the names of the rows.
    """
    names = [name for name in table.names if any(row.get(name) is not None for row in rows)]
    columns = [column for column in table.columns if column.name in names]
    printed = [
        [column.label, *(cell(row.get(column.name), column.unit) for row in rows[:MOST_ROWS])]
        for column in columns
    ]
    is_text = [column.unit == "text" for column in columns]
    cut = blocks(printed, is_text, width, names.index("name") if "name" in names else None)
    if len(cut) > 1 and "name" not in names and {"file", "line"} <= {*names}:
        # The name of a source line is its place: one column in front of every block.
        file, line = names.index("file"), names.index("line")
        pairs = zip(printed[file][1:], printed[line][1:], strict=True)
        printed[file] = ["file:line", *(at_line(name, number) for name, number in pairs)]
        del printed[line], is_text[line]
        cut = blocks(printed, is_text, width, file - (line < file))
    screen = Screen(width, colour)
    for number, places in enumerate(cut):
        if number:
            screen.line()
        screen.table(
            [(printed[place][0], "l" if is_text[place] else "r") for place in places],
            zip(*(printed[place][1:] for place in places), strict=True),
            fold=True,
        )
    return screen.text()


def cell(value: object, unit: str) -> str:
    """Return one value with its unit; a dash for what was not measured."""
    if value is None or (isinstance(value, float) and not math.isfinite(value)):
        return "–"
    if isinstance(value, (int, float)) and unit in _FORMATS:
        return _FORMATS[unit](value)
    return printable(str(compact(value)))
