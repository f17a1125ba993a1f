"""The history of programs as text, as CSV, and as the page history.html."""

from __future__ import annotations

import csv
import io
from pathlib import Path

from profstack.report import html
from profstack.report.page import finite
from profstack.report.screen import Piece, Screen, printable
from profstack.storage.schema.history import History, HistoryChange, HistoryRun, ProgramHistory
from profstack.units import NOT_MEASURED, format_bytes, format_seconds

_KIND = html.PageKind(
    "history-main.js", (*html.STYLES, "history.css"), "history.json", "history -o"
)
_MARKS = {"step": "", "memory": "memory "}


def text(history: History, *, width: int, colour: bool) -> str:
    """Return the history as text: of each program its changes, then one line a run."""
    screen = Screen(width, colour)
    for program in history["programs"]:
        _print_program(screen, program)
        screen.gap()
    for left in history["left_out"]:
        screen.line((f"left out: {left['path']}: {left['reason']}", "yellow"))
    return screen.text()


def _print_program(screen: Screen, program: ProgramHistory) -> None:
    runs = program["runs"]
    first, last = runs[0]["started_at"][:10], runs[-1]["started_at"][:10]
    when = first if first == last else f"{first} to {last}"
    count = f"{len(runs)} run{'s' if len(runs) > 1 else ''}"
    screen.line((program["script"], "bold"), f": {count}, {when}")
    for change in program["changes"]:
        screen.paragraph(change["sentence"], "  ", "    ", style=change_style(change))
    if not program["changes"] and len(program["reasons"]) < len(_MARKS):
        screen.line("  no change that is more than noise")
    for reason in program["reasons"]:
        screen.paragraph(f"not searched for changes: {reason}", "  ", "    ")
    screen.gap()
    screen.rows(
        list(enumerate(runs)),
        ("started (UTC)", "l", lambda row: row[1]["started_at"][:16].replace("T", " ")),
        ("commit", "l", lambda row: commit_words(row[1])),
        ("step", "r", lambda row: format_seconds(row[1]["median_s"])),
        ("95 %", "r", lambda row: _reach(row[1])),
        ("memory", "r", lambda row: format_bytes(row[1]["memory_peak_bytes"])),
        ("verdict", "l", lambda row: row[1]["verdict"] or row[1]["reason"] or NOT_MEASURED),
        ("", "l", lambda row: _marks(program, row[0])),
    )


def commit_words(run: HistoryRun) -> str:
    """Return a run's commit in short; a plus says that files differed from it."""
    if run["commit"] is None:
        return NOT_MEASURED
    return run["commit"][:8] + ("+" if run["changed"] else "")


def _reach(run: HistoryRun) -> str:
    """Return how far the interval of the median reaches, as a share of the median."""
    low, middle, high = run["ci95_low_s"], run["median_s"], run["ci95_high_s"]
    if low is None or high is None or not middle:
        return NOT_MEASURED
    return f"±{100 * max(high - middle, middle - low) / middle:.1f} %"


def change_style(change: HistoryChange) -> str:
    """Return the colour of a change: red for more time or memory, green for less."""
    return "red" if change["after"] > change["before"] else "green"


def change_mark(change: HistoryChange) -> str:
    """Return a change in two words, for the line of its first run."""
    factor = change["after"] / change["before"]
    return f"{_MARKS[change['figure']]}{100 * (factor - 1):+.1f} %"


def _marks(program: ProgramHistory, place: int) -> Piece:
    found = [change for change in program["changes"] if change["run"] == place]
    if not found:
        return ""
    return "<- " + ", ".join(map(change_mark, found)), change_style(found[0])


def as_csv(history: History) -> str:
    """Return one row a run as CSV, with the changes that begin with it."""
    out = io.StringIO()
    lines = csv.writer(out, lineterminator="\n")
    columns = tuple(HistoryRun.__annotations__)
    lines.writerow(("script", *columns, "change"))
    for program in history["programs"]:
        for place, run in enumerate(program["runs"]):
            found = [each["sentence"] for each in program["changes"] if each["run"] == place]
            cells = (program["script"], *run.values(), " | ".join(found) or None)
            lines.writerow([printable(each) if isinstance(each, str) else each for each in cells])
    return out.getvalue()


# -- as a page: a chart of the runs and a table, for each program ----------------------------------


def write(history: History, path: Path) -> None:
    """Write the page to `path`; raise RecordingError where that cannot be done."""
    html.replace_text(path, render(history))


def render(history: History) -> str:
    """Return the page as HTML."""
    page = {"facts": finite(history), "overview": {}, "tables": {}}
    names = ", ".join(program["script"] for program in history["programs"])
    views = {"overview": "view-history.html"}
    return html.assemble(_KIND, page, f"History of {names}", views, history["profstack_version"])
