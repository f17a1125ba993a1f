"""A comparison as Markdown for a pull request: the answer, the gates, and the rest folded."""

from __future__ import annotations

import html
from collections.abc import Iterator, Sequence

from profstack.code_owner import place_words
from profstack.compare.tables import one_sided
from profstack.compare.verdict import rounded
from profstack.report.screen import printable
from profstack.storage.schema.comparison import (
    Bar,
    ComparedTable,
    Comparison,
    PartChange,
    PartPlace,
)
from profstack.units import format_bytes, format_count, format_seconds

# Rows of a table; a comment on GitHub holds 65,536 characters.
_MOST_ROWS = 8
_FORMATS = {
    "s": format_seconds,
    "bytes": format_bytes,
    "flop": format_count,
    "count": format_count,
    "items/s": format_count,
}
# As entities these begin no markup.
_MARKUP = "\\`*_{}[]()#+-.!|~"
_RESULTS = {"kept": "kept", "broken": "**broken**", "unclear": "cannot tell"}


def markdown(comparison: Comparison) -> str:
    """Return the comparison as Markdown."""
    return "\n".join(_lines(comparison)) + "\n"


def _lines(comparison: Comparison) -> Iterator[str]:
    verdict = comparison["verdict"]
    yield f"### {words(verdict['sentence'])}"
    yield ""
    if verdict["action"]:
        yield f"To tell more: {words(verdict['action'])}."
        yield ""
    severe = [each for each in comparison["inequalities"] if each["severity"] == "high"]
    for each in severe:
        yield f"- Not equal: {words(each['text'])}"
    if severe:
        yield ""
    if comparison["gates"]:
        yield from _table(
            ("gate", "result", "figures"),
            (
                (code(gate["rule"]), _RESULTS[gate["result"]], words(gate["text"]))
                for gate in comparison["gates"]
            ),
        )
    bars: tuple[Bar, ...] = ("step", "run")
    for of in bars:
        if parts := [part for part in comparison["parts"] if part["of"] == of]:
            lines = list(_part_lines(of, parts))
            is_answer = verdict["figure"] == of
            yield from lines if is_answer else _folded(f"The {of} by part", lines)
    for table in comparison["tables"]:
        if table["rows"]:
            yield from _folded(table["title"], list(_compared(table)))
    for sentence in one_sided(comparison["tables"]):
        yield words(sentence)
        yield ""
    if comparison["findings"]:
        lines = [
            f"- {each['status']}: {words(each['title'])}"
            + (f" ({code(place_words(each['file'], each['line']))})" if each["file"] else "")
            for each in comparison["findings"]
        ]
        yield from _folded("Findings and warnings of one side alone", [*lines, ""])
    yield from _folded("What was compared", list(_sides(comparison)))


def _part_lines(of: Bar, parts: Sequence[PartChange]) -> Iterator[str]:
    shown = rounded(parts)
    rows: list[tuple[str, ...]] = []
    for part, before, after in sorted(shown.rows, key=lambda row: -abs(row[0]["difference_s"])):
        change = shown.words(after - before, "+")
        name = words(part["name"])
        cause = "; ".join(filter(None, map(_place, part["places"])))
        figures = (shown.words(before), shown.words(after))
        told = f"**{words(change)}**" if part["beyond_noise"] else words(change)
        rows.append((name, *figures, told, cause))
    whole = (shown.before, shown.after)
    difference = shown.words(whole[1] - whole[0], "+")
    rows.append(("together", *map(shown.words, whole), words(difference), ""))
    yield from _table((f"{of}, {shown.unit}", "before", "after", "difference", ""), rows)
    yield "Bold is beyond noise."
    yield ""


def _place(place: PartPlace) -> str:
    where = code(place_words(place["file"], place["line"])) if place["file"] else ""
    return " ".join(filter(None, (where, words(place["cause"] or ""))))


def _compared(table: ComparedTable) -> Iterator[str]:
    show = _FORMATS[table["unit"]]
    rows = []
    for row in table["rows"][:_MOST_ROWS]:
        change = row["change"]
        place = f" ({place_words(row['file'], row['line'])})" if row["file"] else ""
        status = "" if row["status"] == "both" else row["status"]
        difference = change["difference"]
        plus = "+" if (difference or 0.0) > 0 else ""
        told = f"{plus}{show(difference)}"
        figures = (show(change["before"]), show(change["after"]))
        told = f"**{told}**" if change["beyond_noise"] else told
        rows.append((code(f"{row['key']}{place}"), *figures, told, status))
    yield from _table((table["title"], "before", "after", "difference", ""), rows)
    more = len(table["rows"]) - _MOST_ROWS
    if more > 0:
        yield f"{more} more rows in compare.json."
        yield ""


def _sides(comparison: Comparison) -> Iterator[str]:
    for name, side in (("before", comparison["before"]), ("after", comparison["after"])):
        commit = f", commit {words(side['commit'][:10])}" if side["commit"] else ""
        yield (
            f"- {name}: {code(side['label'])}{commit}: recordings {side['recordings']}, "
            f"clean steps {side['steps']}"
        )
    for each in comparison["inequalities"]:
        yield f"- not equal: {words(each['text'])}"
    if comparison["measured"]:
        yield f"- {words(comparison['measured'])}"
    yield f"- profstack {comparison['profstack_version']}"
    yield ""


def _table(
    head: Sequence[str], rows: Iterator[Sequence[str]] | Sequence[Sequence[str]]
) -> list[str]:
    lines = [f"| {' | '.join(line)} |" for line in (head, *rows)]
    lines.insert(1, "|---" + "|---:" * (len(head) - 2) + "|---|")
    if head[0] == "gate":
        lines[1] = "|---" * len(head) + "|"
    return [*lines, ""]


def _folded(title: str, lines: Sequence[str]) -> Iterator[str]:
    yield f"<details><summary>{html.escape(title)}</summary>"
    # Markdown inside begins after an empty line.
    yield ""
    yield from lines
    yield "</details>"
    yield ""


def words(text: str) -> str:
    """Return text of any program as plain words of Markdown, on one line."""
    plain = html.escape(" ".join(printable(text).split()), quote=False)
    plain = plain.replace("@", "@\N{ZERO WIDTH SPACE}")
    # A full stop or a dash is markup at the beginning of a line alone, where no text begins.
    return "".join(f"&#{ord(one)};" if one in "\\`*_[]#|~" else one for one in plain)


def code(text: str) -> str:
    """Return a name as code, whatever it holds; a code host links nothing in it."""
    plain = html.escape(" ".join(printable(text).split()), quote=False)
    return f"<code>{''.join(f'&#{ord(one)};' if one in _MARKUP else one for one in plain)}</code>"
