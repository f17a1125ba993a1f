"""The verdict, the step bar and the findings in a terminal."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

from profstack.report.screen import (
    Screen,
    evidence_words,
    figure,
    file_name,
    finding_cost,
    first_sentences,
    label,
)
from profstack.storage.schema.report import Finding, Report, StepBarPart, VerdictEvidence
from profstack.units import format_seconds

# The letter and the colour of each part of the step: letters, so that no colour is needed.
_DRAWN = {
    "data wait": ("W", "black on yellow"),
    "before first work": ("W", "black on yellow"),
    "forward": ("F", "black on cyan"),
    "loss": ("L", "black on bright_cyan"),
    "backward": ("B", "white on blue"),
    "optimizer": ("O", "black on green"),
    "Python": ("P", "white on magenta"),
    "I/O": ("R", "black on bright_yellow"),
    "idle": ("-", "white on bright_black"),
    "other": ("x", "black on white"),
    "not attributed": ("?", "black on bright_white"),
}
_UNKNOWN = ("#", "reverse")
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
_ADVICE = 300
_STYLES = {"high": "bold red", "medium": "yellow"}


def print_verdict(screen: Screen, report: Report) -> None:
    """Print the verdict's sentence with its first words marked; nothing without a verdict."""
    verdict = report.get("verdict")
    if not verdict:
        return
    for number, line in enumerate(screen.wrapped(verdict["sentence"] or "")):
        head, colon, rest = line.partition(": ")
        if number or not colon:
            screen.line((line, "bold"))
        else:
            screen.line((head + colon, "bold reverse"), (rest, "bold"))


def drawn_parts(report: Report) -> list[StepBarPart]:
    """Return the parts of the step bar; none where nothing but a rest is known."""
    bar = report.get("step_bar")
    parts = [part for part in bar["parts"] if part["share"] >= _LEAST] if bar else []
    return parts if any(part["name"] != "not attributed" for part in parts) else []


def print_bar(screen: Screen, report: Report) -> None:
    """Print the clean step as a bar of letters with its legend; nothing where there is no bar."""
    bar, parts = report.get("step_bar"), drawn_parts(report)
    if not bar or not parts:
        return
    # Two columns are the bar's brackets.
    cells = cells_of([part["share"] for part in parts], screen.width - 2)
    drawn = [_DRAWN.get(part["name"], _UNKNOWN) for part in parts]
    stretches = ((sign * count, style) for (sign, style), count in zip(drawn, cells, strict=True))
    screen.line("[", *stretches, "]")
    owner = "the device's " if bar.get("time_line") == "device" else ""
    line = ""
    for part, (sign, _) in zip(parts, drawn, strict=True):
        name = f"{owner}idle" if part["name"] == "idle" else part["name"]
        time = format_seconds(part["seconds"])
        words = f"{sign} {name} {100 * part['share']:.0f} % ({time})"
        if line and len(line) + 3 + len(words) > screen.width:
            screen.line(line)
            line = words
        else:
            line = f"{line}   {words}" if line else words
    screen.line(line)
    screen.paragraph(bar.get("reason") or "")


def print_bar_note(screen: Screen, report: Report) -> None:
    """Print why a row of the modules has another time than the wait in the bar."""
    bar = report.get("step_bar")
    if bar and any(
        part["name"] in ("data wait", "before first work") and part["share"] >= _LEAST
        for part in bar["parts"]
    ):
        screen.paragraph(bar.get("note") or "")


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


def print_evidence(screen: Screen, report: Report) -> None:
    """Print all of the verdict: sentence, bar, and the evidence of every test."""
    verdict = report.get("verdict")
    if not verdict:
        screen.line("verdict: this report has none")
        return
    print_verdict(screen, report)
    margin = verdict.get("margin")
    if margin is not None:
        screen.line(f"margin: {100 * margin:.0f} points of the step's share")
    if drawn_parts(report):
        screen.line()
        print_bar(screen, report)
    if not verdict["evidence"]:
        return
    screen.line()
    more: tuple[tuple[str, str, Callable[[VerdictEvidence], str]], ...] = (
        ("from", "r", lambda row: f"{100 * row['threshold_share']:.0f} %"),
        ("time", "r", lambda row: format_seconds(row.get("time_s"))),
    )
    screen.rows(
        verdict["evidence"],
        ("test", "l", lambda row: row["test"]),
        ("share", "r", lambda row: figure("share", row.get("share"))),
        *(more if screen.width >= _NARROW else ()),
        ("what", "l", _figures),
    )


def _figures(row: Mapping[str, object]) -> str:
    """Return the figures and the place of a row of evidence."""
    if row.get("reason"):
        return str(row["reason"])
    place = str(row.get("name") or "")
    if row.get("file"):
        place = f"{file_name(row['file'])}:{row.get('line')} {place}".rstrip()
    figures = (
        f"{label(key)} {figure(key, value)}" for key, value in row.items() if key not in _EVIDENCE
    )
    return ", ".join(filter(None, (place, *figures)))


def print_first_findings(screen: Screen, findings: Sequence[Finding], most: int) -> None:
    """Print the first findings in a few lines each: title, gain and place, and what to do."""
    for number, finding in enumerate(findings[:most], 1):
        style = _STYLES.get(str(finding["severity"]), "")
        screen.paragraph(finding["title"], f"{number}. ", "   ", style)
        advice = first_sentences(finding["advice"] or "", _ADVICE if number == 1 else 0)
        screen.paragraph(": ".join(filter(None, (finding_cost(finding), advice))), *_INDENTS)
    left = len(findings) - most
    if left > 0:
        more = "1 more finding" if left == 1 else f"{left} more findings"
        screen.line(f"{more}: profstack show --findings")


_INDENTS = "   ", "   "


def print_findings(screen: Screen, findings: Sequence[Finding]) -> None:
    """Print all of every finding."""
    if not findings:
        screen.line("findings: none in this recording")
    for number, finding in enumerate(findings, 1):
        if number > 1:
            screen.line()
        severity = str(finding["severity"])
        style = _STYLES.get(severity, "bold")
        screen.paragraph(f"{number}. {finding['title']}", "", "   ", style)
        screen.paragraph("; ".join(_facts(finding, severity)), *_INDENTS)
        for row in finding["evidence"]:
            screen.paragraph(f"- {evidence_words(row)}", *_INDENTS)
        screen.paragraph(f"next: {finding['advice']}", *_INDENTS)


def _facts(finding: Finding, severity: str) -> Iterable[str]:
    """Return the slug, the place and the gain of a finding, and the layers that saw it."""
    yield f"{finding['slug']}, {severity}"
    if cost := finding_cost(finding):
        yield cost
    if finding.get("gain_reason"):
        yield f"no gain is told: {finding['gain_reason']}"
    if finding["layers"]:
        yield f"seen by {', '.join(map(str, finding['layers']))}"
