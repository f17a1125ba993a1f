"""Lines, tables and words of the terminal.

All that profstack prints of a report is made by a `Screen`. Names come from the program under
measurement: control characters in them are shown as question marks and never reach the terminal.
"""

from __future__ import annotations

import io
import os
import re
import textwrap
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TextIO, TypeVar

from rich.cells import cell_len
from rich.console import Console
from rich.table import Table
from rich.text import Text

from profstack.code_owner import place_words
from profstack.findings.next_step import first_sentences
from profstack.report.overview import LABELS
from profstack.storage.schema.column import PLAIN
from profstack.storage.schema.report import Finding
from profstack.units import format_bytes, format_count, format_seconds

# Text by itself, or with its style.
Piece = str | tuple[str, str]
# A heading, and the side on which its cells are aligned: l for words, r for figures.
Heading = tuple[str, str]
Row = TypeVar("Row")

# Narrower terminals get lines of this width, which the terminal folds itself.
NARROWEST = 40
# The end of text that was cut.
CUT = " ..."
# From this width on there is room for what else the page shows.
WIDE = 110
_DONE = ("recorded", "emitted", "complete", "measured")
_STYLES = {**dict.fromkeys(_DONE, "green"), "failed": "red"}
# Characters of our own texts beyond ASCII, for terminals that have no more.
_PLAIN = str.maketrans({"µ": "u", "–": "-", "…": "~", "≤": "<=", "×": "x", "±": "+-"})


class Screen:
    """Text of `width` columns, made line by line and table by table."""

    def __init__(self, width: int, colour: bool) -> None:
        self.width = max(width, NARROWEST)
        self._gap = False
        self._out = io.StringIO()
        self._console = Console(
            file=self._out,
            width=self.width,
            force_terminal=colour,
            no_color=not colour,
            color_system="standard" if colour else None,
            markup=False,
            highlight=False,
            legacy_windows=False,
        )

    def gap(self) -> None:
        """Leave an empty line before the next line or table, if one comes."""
        self._gap = True

    def _add(self, shown: Text | Table) -> None:
        if self._gap:
            self._console.print()
        self._gap = False
        self._console.print(shown)

    def line(self, *pieces: Piece) -> None:
        """Add a line made of pieces; an empty one without any."""
        self._add(Text.assemble(*map(_styled, pieces)))

    def paragraph(self, words: str, first: str = "", rest: str = "", style: str = "") -> None:
        """Add words folded to the width, with an indent for the first line and for the others."""
        for line in self.wrapped(words, first, rest):
            self.line((line, style))

    def wrapped(
        self, words: str, first: str = "", rest: str = "", most: int | None = None
    ) -> list[str]:
        """Return words as at most `most` lines that fit the width."""
        return textwrap.wrap(
            printable(words),
            self.width,
            initial_indent=first,
            subsequent_indent=rest,
            max_lines=most,
            placeholder=CUT,
        )

    def table(
        self, headings: Sequence[Heading], rows: Iterable[Sequence[Piece]], *, fold: bool = False
    ) -> None:
        """Add a table without rules; names in the first column are cut unless they may `fold`."""
        # Two columns between cells either way; rich folds words by where the padding is.
        padding = (0, 1) if fold else (0, 2, 0, 0)
        table = Table(box=None, pad_edge=False, header_style="bold", padding=padding)
        for number, (heading, side) in enumerate(headings):
            whole = side == "r" or (number == 0 and not fold)
            table.add_column(
                heading,
                justify="right" if side == "r" else "left",
                no_wrap=whole,
                overflow="ellipsis" if whole and not fold else "fold",
            )
        for row in rows:
            table.add_row(*(Text(*_styled(cell)) for cell in row))
        self._add(table)

    def rows(self, rows: Iterable[Row], *columns: tuple[str, str, Callable[[Row], Piece]]) -> None:
        """Add a table of rows: each column is its heading, its side, and what a cell shows."""
        cells = [[cell_of(row) for _, _, cell_of in columns] for row in rows]
        self.table([(heading, side) for heading, side, _ in columns], cells)

    def text(self) -> str:
        """Return all that was added, without spaces at the ends of lines."""
        return "\n".join(line.rstrip() for line in self._out.getvalue().splitlines()) + "\n"


def _styled(piece: Piece) -> tuple[str, str]:
    words, style = (piece, "") if isinstance(piece, str) else piece
    return printable(words), style


def style_of(status: str) -> str:
    """Return the colour of a status; yellow for one that is neither done nor failed."""
    return _STYLES.get(status, "yellow")


def printable(text: str) -> str:
    """Return text without escape sequences or characters that have no encoding."""
    kept = "".join(one if one.isprintable() else " " if one.isspace() else "?" for one in text)
    return kept.encode("utf-8", "replace").decode("utf-8")


def fitting(text: str, encoding: str | None) -> str:
    """Return text that can be written in an encoding; signs that it lacks in ASCII, or as `?`."""
    try:
        text.encode(encoding or "ascii")
    except (UnicodeEncodeError, LookupError):
        return text.translate(_PLAIN).encode("ascii", "replace").decode("ascii")
    return text


def colourful(stream: TextIO) -> bool:
    """Return whether a stream is a terminal that wants colours."""
    dumb = os.environ.get("TERM") == "dumb"
    # As https://no-color.org has it: set, and not empty.
    return stream.isatty() and not dumb and not os.environ.get("NO_COLOR")


def short_name(name: object, room: int) -> str:
    """Return a name cut to its room; its end is kept, which tells more than its beginning."""
    text = printable(str(name))
    most = max(room, 16)
    return text if len(text) <= most else "…" + text[1 - most :]


# Tables that are wider than the screen are cut into blocks, one below the other. Every block begins
# with the column that tells the rows apart, so that each figure has its name beside it.

# Between two columns.
_GAP = 2
# Longer texts are folded within their column, which gets at most this share of the screen.
_SHARE_OF_LEAD, _SHARE_OF_TEXT = 0.45, 0.3


def blocks(
    columns: Sequence[Sequence[str]], is_text: Sequence[bool], width: int, lead: int | None = None
) -> list[list[int]]:
    """Return the numbers of the columns of each block; one block where all columns fit.

    A column is its heading and its cells as they are printed; `width` is in characters. `lead`
    is the column that begins each block; by default the text column with most different cells.
    """
    natural = [max(map(cell_len, column), default=0) for column in columns]
    if len(columns) < 2 or sum(natural) + _GAP * (len(columns) - 1) <= width:
        return [list(range(len(columns)))]
    if lead is None:
        texts = [place for place, text in enumerate(is_text) if text]
        lead = max(texts, key=lambda place: len(set(columns[place])), default=0)
    room = max(width, NARROWEST)
    taken = list(natural)
    for place in (place for place, text in enumerate(is_text) if text):
        share = _SHARE_OF_LEAD if place == lead else _SHARE_OF_TEXT
        taken[place] = min(natural[place], int(room * share))
    found: list[list[int]] = []
    left = 0
    for place in (place for place in range(len(columns)) if place != lead):
        if not found or taken[place] + _GAP > left:
            found.append([lead])
            left = room - taken[lead]
        found[-1].append(place)
        left -= taken[place] + _GAP
    return found


# -----------------------------------------------------------------------------
# Figures, places and findings in words, for the terminal and for exported text.
# -----------------------------------------------------------------------------

# Characters of a finding's advice in a summary.
_LONGEST = 220
_ENDINGS = (("_bytes", format_bytes), ("_per_s", format_count), ("_s", format_seconds))


def label(key: str) -> str:
    """Return the name of a figure without its unit, in words."""
    stem = re.sub("_(bytes|share|s)$", "", re.sub("_per_s$", "/s", key))
    return stem.replace("_", " ")


def evidence_label(key: str) -> str:
    """Return the name of a figure of evidence in words; empty for one that is not shown."""
    return LABELS.get(key, label(key))


def figure(key: str, value: object) -> str:
    """Return a figure with the unit that its name ends in; a word as it is."""
    if value is None:
        return "–"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if not isinstance(value, (int, float)):
        return str(value)
    if key.endswith("share"):
        return f"{100 * value:.1f} %"
    for ending, written in _ENDINGS:
        if key.endswith(ending):
            return written(value)
    return f"{value:.0f}" if key in PLAIN else format_count(value)


def evidence_words(row: object) -> str:
    """Return a row of evidence in a line: its figures with their units."""
    if not isinstance(row, Mapping):
        return str(row)
    return ", ".join(
        f"{evidence_label(str(key))} {figure(str(key), value)}"
        for key, value in row.items()
        if value is not None and key != "link" and evidence_label(str(key))
    )


def _place_and_gain(finding: Finding, limit: str) -> list[str]:
    """Return the line of a finding, else its module, and the time that a remedy gains.

    What is not known is left out. `limit` precedes the time, unless it is a lower limit.
    """
    words = [finding["module"]] if finding["module"] else []
    if finding["file"]:
        words = [place_words(finding["file"], finding["line"])]
    if finding["gain_s"] is not None:
        first = next(iter(finding["evidence"]), None)
        # The lower one of two limits that are far from each other.
        is_lower = isinstance(first, Mapping) and first.get("limits_agree") is False
        gain = f"{'at least ' if is_lower else limit}{format_seconds(finding['gain_s'])} a step"
        words.append(f"{gain}, {finding['gain_is'] or 'estimated'}")
    if (run_s := finding.get("run_s")) is not None:
        saved = finding["run_gain_s"]
        takes = f"{format_seconds(run_s)} of the run"
        if saved is not None and finding.get("run_gain_is") == "at most":
            limit = "at most "
            saved = saved if saved < run_s else None
            takes = limit + takes if saved is None else takes
        words.append(takes if saved is None else f"{limit}{format_seconds(saved)} of {takes}")
    return words


def finding_cost(finding: Finding) -> str:
    """Return where a finding is, and the time that a remedy gains."""
    return ", ".join(_place_and_gain(finding, "about "))


def finding_line(finding: Finding) -> str:
    """Return a finding in one paragraph: title, place, gain, and what to do."""
    words = _place_and_gain(finding, "")
    cost = f" ({'; '.join(words)})" if words else ""
    advice = f". {first_sentences(finding['advice'], _LONGEST)}" if finding["advice"] else ""
    return f"{finding['title']}{cost}{advice}"
