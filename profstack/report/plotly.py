"""The library that draws the page's charts: plotly's own file, packed as the page carries it.

The file is taken as it stands from the installed package `plotly`, its licence in it, and goes
into the page as text that no browser runs. The page makes it a script when the first chart comes
into sight; the policy of the page knows that one script by its hash. Importing the package is not
needed and would take longer than reading the file.
"""

from __future__ import annotations

import base64
import hashlib
import importlib.util
import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from profstack.report.packing import packed_text

_LONGEST_NOTICE = 400


@dataclass(frozen=True)
class Library:
    """A script as the page carries it.

    `text` is the script, compressed and written as the page's other parts are; `digest` is the
    SHA-256 of the script itself, as a content security policy names it; `notice` names what it is
    and whose, in one line.
    """

    text: str
    digest: str
    notice: str


@cache
def library() -> Library | None:
    """plotly's file, packed; None where the package is not installed or has no such file."""
    file = _file()
    if file is None:
        return None
    try:
        script = file.read_bytes().decode("utf-8-sig")
    except (OSError, ValueError):
        return None
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    return Library(packed_text(script), f"sha256-{digest}", _notice(script))


def _file() -> Path | None:
    """Where the installed package keeps the file, whether or not it is there."""
    try:
        found = importlib.util.find_spec("plotly")
    except (ImportError, ValueError):
        return None
    folders = found.submodule_search_locations if found else None
    return Path(next(iter(folders))) / "package_data" / "plotly.min.js" if folders else None


def _notice(script: str) -> str:
    """The first comment of a script in one line, as far as it is a notice and no licence text."""
    comment = re.match(r"\s*/\*+(.*?)\*/", script[:4_000], re.DOTALL)
    if comment is None:
        return "plotly.js, as shipped by the package plotly"
    lines = (line.strip(" *") for line in comment[1].splitlines())
    return ". ".join(line.rstrip(".") for line in lines if line)[:_LONGEST_NOTICE]
