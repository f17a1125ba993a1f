"""What tables and lines in a terminal are made of: cells, names cut to their room, no margins."""

from __future__ import annotations

import io
import os
import textwrap
from typing import Any, TextIO

from rich.console import Console
from rich.table import Table
from rich.text import Text

# From this width on there is room for what else the page shows.
WIDE = 110
# Statuses of layers that have data.
WITH_DATA = ("recorded", "emitted")
_STYLES = {
    "recorded": "green",
    "emitted": "green",
    "complete": "green",
    "measured": "green",
    "failed": "red",
}


def style_of(status: str) -> str:
    """The colour of a status; yellow for what is neither done nor failed."""
    return _STYLES.get(status, "yellow")


def printable(text: str) -> str:
    """Text that a terminal only shows: no escape sequences, no characters without an encoding."""
    kept = "".join(one if one.isprintable() else " " if one.isspace() else "?" for one in text)
    return kept.encode("utf-8", "replace").decode("utf-8")


# What texts of ours hold beyond ASCII, for terminals that have no more.
_PLAIN = str.maketrans({"µ": "u", "–": "-", "…": "~", "≤": "<=", "×": "x", "±": "+-"})


def fitting(text: str, encoding: str | None) -> str:
    """A text that can be written in an encoding; what it lacks is written plainly, or as `?`."""
    known = encoding or "ascii"
    try:
        text.encode(known)
    except (UnicodeEncodeError, LookupError):
        text = text.translate(_PLAIN)
        return text.encode("ascii", "replace").decode("ascii")
    return text


def colourful(stream: TextIO) -> bool:
    """Whether a stream is a terminal that is to have colours."""
    dumb = os.environ.get("TERM") == "dumb"
    # As https://no-color.org has it: set, and not empty.
    return stream.isatty() and not dumb and not os.environ.get("NO_COLOR")


def console(out: io.StringIO, width: int, colour: bool) -> Console:
    """A console that writes to `out`, in columns as wide as `width`, 40 at least."""
    return Console(
        file=out,
        width=max(width, 40),
        force_terminal=colour,
        no_color=not colour,
        color_system="standard" if colour else None,
        markup=False,
        highlight=False,
        legacy_windows=False,
    )


def without_margins(text: str) -> str:
    """Lines without the spaces that pad them to the width."""
    return "\n".join(line.rstrip() for line in text.splitlines()) + "\n"


def indented(words: str, width: int) -> list[Text]:
    """A paragraph that belongs to what stands above it, its later lines further in."""
    lines = textwrap.wrap(
        printable(words), max(width, 40), initial_indent="      ", subsequent_indent="        "
    )
    return [Text(line) for line in lines]


def plain_table(*columns: tuple[str, str]) -> Table:
    """A table without lines; each column is its heading and l or r."""
    table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
    for number, (heading, side) in enumerate(columns):
        numeric = side == "r"
        table.add_column(
            heading,
            justify="right" if numeric else "left",
            no_wrap=numeric or number == 0,
            overflow="fold" if not numeric and number else "ellipsis",
        )
    return table


def short_name(name: Any, room: int) -> Text:
    """A name cut to its room beside the numbers: its end tells more than its beginning."""
    text = printable(str(name))
    most = max(room, 16)
    return Text(text if len(text) <= most else "…" + text[1 - most :])
