"""The page of a history, history.html: a chart of the runs and a table, for each program."""

from __future__ import annotations

from pathlib import Path

from profstack.report import html
from profstack.report.page import finite
from profstack.storage.schema.history import History

_KIND = html.PageKind(
    "history-main.js", (*html.STYLES, "history.css"), "history.json", "history -o"
)


def write(history: History, path: Path) -> None:
    """Write the page to `path`; raise RecordingError where that cannot be done."""
    html.replace_text(path, render(history))


def render(history: History) -> str:
    """Return the page as HTML."""
    page = {"facts": finite(history), "overview": {}, "tables": {}}
    names = ", ".join(program["script"] for program in history["programs"])
    views = {"overview": "view-history.html.j2"}
    return html.assemble(_KIND, page, f"History of {names}", views, history["profstack_version"])
