"""The verdict and the step bar in a terminal: letters on a line, so that no colour is needed."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from rich.table import Table
from rich.text import Text

from profstack.report.textparts import plain_table, printable
from profstack.units import format_bytes, format_count, format_seconds

# How a part of the step is drawn: its letter, and its colour where there is one.
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
# Parts below this share of the step are not drawn nor named.
_LEAST = 0.005
# Below this width the evidence is told without threshold and time.
_NARROW = 60
_ENDINGS = (("_bytes", format_bytes), ("_per_s", format_count), ("_s", format_seconds))


def verdict_lines(report: Mapping[str, Any], width: int) -> Iterable[Text]:
    """The verdict's sentence, its first words marked; nothing where there is no verdict."""
    verdict = report.get("verdict") or {}
    sentence = printable(str(verdict.get("sentence") or ""))
    if not sentence:
        return
    for number, line in enumerate(textwrap.wrap(sentence, max(width, 40))):
        head, colon, rest = line.partition(": ")
        if number or not colon:
            yield Text(line, style="bold")
        else:
            yield Text.assemble((head + colon, "bold reverse"), (rest, "bold"))


def bar_lines(report: Mapping[str, Any], width: int) -> Iterable[Text]:
    """The clean step as a bar of letters with its legend; or why there is none."""
    told = report.get("step_bar") or {}
    parts = [part for part in told.get("parts") or [] if part["share"] >= _LEAST]
    # Where nothing but a rest is known the verdict has said why.
    if any(part["name"] != "not attributed" for part in parts):
        whose = "the device's " if told.get("time_line") == "device" else ""
        # What does not go to the bar: its brackets.
        yield _bar(parts, max(width, 40) - 2)
        yield from _legend(parts, max(width, 40), whose)
        for line in textwrap.wrap(printable(str(told.get("reason") or "")), max(width, 40)):
            yield Text(line)


def note_lines(report: Mapping[str, Any], width: int) -> Iterable[Text]:
    """Why a row of the modules has another time than the wait in the bar, where that is drawn."""
    told = report.get("step_bar") or {}
    drawn = {part["name"] for part in told.get("parts") or [] if part["share"] >= _LEAST}
    note = str(told.get("note") or "") if drawn & {"data wait", "before first work"} else ""
    return map(Text, textwrap.wrap(printable(note), max(width, 40)))


def _bar(parts: Sequence[Mapping[str, Any]], room: int) -> Text:
    line = Text("[")
    for part, cells in zip(parts, cells_of([part["share"] for part in parts], room), strict=True):
        letter, style = _DRAWN.get(part["name"], _UNKNOWN)
        line.append(letter * cells, style=style)
    line.append("]")
    return line


def cells_of(shares: Sequence[float], room: int) -> list[int]:
    """Whole cells for shares, `room` in all: by largest remainders, and one at least for each."""
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


def _legend(parts: Sequence[Mapping[str, Any]], width: int, whose: str) -> Iterable[Text]:
    """Letter, name, time and share of each part, as many to a line as fit."""
    words = [
        f"{_DRAWN.get(part['name'], _UNKNOWN)[0]} {whose if part['name'] == 'idle' else ''}"
        f"{printable(str(part['name']))} {100 * part['share']:.0f} % "
        f"({format_seconds(part['seconds'])})"
        for part in parts
    ]
    line = ""
    for word in words:
        if line and len(line) + 3 + len(word) > width:
            yield Text(line)
            line = word
        else:
            line = f"{line}   {word}" if line else word
    yield Text(line)


def verdict_text(report: Mapping[str, Any], width: int) -> Iterable[Text | Table]:
    """All of the verdict: sentence, bar, and the evidence of every test."""
    verdict = report.get("verdict") or {}
    if not verdict:
        yield Text("verdict: this report has none")
        return
    yield from verdict_lines(report, width)
    if verdict.get("margin") is not None:
        yield Text(f"margin: {100 * verdict['margin']:.0f} points of the step's share")
    bar = list(bar_lines(report, width))
    yield from [Text(), *bar] if bar else []
    evidence = verdict.get("evidence") or []
    if not evidence:
        return
    yield Text()
    more = (("from", "r"), ("time", "r")) if width >= _NARROW else ()
    table = plain_table(("test", "l"), ("share", "r"), *more, ("what", "l"))
    for row in evidence:
        share = row.get("share")
        table.add_row(
            Text(printable(str(row["test"]))),
            Text("–" if share is None else f"{100 * share:.1f} %"),
            *(Text(words) for words in _more(row)[: len(more)]),
            Text(printable(_what(row))),
        )
    yield table


def _more(row: Mapping[str, Any]) -> tuple[str, str]:
    """The threshold and the time of a row of evidence."""
    return f"{100 * row['threshold_share']:.0f} %", format_seconds(row.get("time_s"))


def _what(row: Mapping[str, Any]) -> str:
    """The figures and the place of a row of evidence."""
    if row.get("reason"):
        return str(row["reason"])
    words = []
    if row.get("file"):
        name = str(row["file"]).replace("\\", "/").rsplit("/", 1)[-1]
        words.append(f"{name}:{row.get('line')} {row.get('name') or ''}".rstrip())
    elif row.get("name"):
        words.append(str(row["name"]))
    told = ("test", "share", "threshold_share", "time_s", "file", "line", "name", "link", "reason")
    words += [f"{label(key)} {figure(key, value)}" for key, value in row.items() if key not in told]
    return ", ".join(words)


def label(key: str) -> str:
    """The name of a figure without its unit, in words."""
    if key.endswith("_per_s"):
        return key.removesuffix("_per_s").replace("_", " ") + "/s"
    for ending in ("_bytes", "_share", "_s"):
        if key.endswith(ending):
            return key.removesuffix(ending).replace("_", " ")
    return key.replace("_", " ")


def figure(key: str, value: Any) -> str:
    """A figure with the unit that its name ends in; a word as it is."""
    if value is None:
        return "–"
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return "yes" if value is True else "no" if value is False else str(value)
    if key.endswith("share"):
        return f"{100 * value:.1f} %"
    for ending, written in _ENDINGS:
        if key.endswith(ending):
            return written(value)
    return str(value) if key in ("line", "step", "index") else format_count(value)
