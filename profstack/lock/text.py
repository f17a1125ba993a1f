"""The answer of a check as text."""

from __future__ import annotations

from collections.abc import Sequence

from profstack.lock.differences import Comparison, Difference
from profstack.lock.facts import STEP, Key
from profstack.lock.lockfile import natural
from profstack.lock.meaning import Cause, shown
from profstack.lock.places import Place

_MOST_ROWS, _MOST_PLACES, _MOST_CHANGED = 30, 3, 5


def answer(
    script: str,
    lock: str,
    comparison: Comparison,
    causes: Sequence[Cause],
    left: Sequence[Difference],
    changed: Sequence[Place] = (),
    *,
    whole: bool,
) -> str:
    """Return the lines on a check that found differences; with `whole` all facts that differ.

    `changed` are lines that were changed since the lock was committed: the ones that no cause names
    are shown where they are few.
    """
    count = len(comparison.differences)
    differ = "1 fact differs" if count == 1 else f"{count} facts differ"
    lines = [f"{script} does other work than {lock} says: {differ} of {comparison.compared}", ""]
    for number, cause in enumerate(causes, 1):
        lines += _cause(number, cause)
    rest = list(left) if causes and not whole else comparison.differences
    if rest:
        if causes:
            lines += ["", "all facts that differ:" if whole else "facts without a known cause:"]
        lines += table(rest, len(rest) if whole else _MOST_ROWS)
    named = {place for cause in causes for place in cause.places[:_MOST_PLACES]}
    others = [place for place in changed if place not in named]
    if 0 < len(others) <= _MOST_CHANGED:
        lines += ["", "also changed since the lock was committed:"]
        lines += [f"     {place}  {place.text[:100]}" for place in others]
    return "\n".join(lines)


def _cause(number: int, cause: Cause) -> list[str]:
    first = cause.places[0] if cause.places else None
    head = f"{number}. {cause.text}" + (f", {first}" if first is not None else "")
    lines = [head]
    for place in cause.places[:_MOST_PLACES]:
        where = f"{place}  " if place is not first else ""
        if place.text:
            lines.append(f"     {where}{place.text[:100]}")
    if len(cause.places) > _MOST_PLACES:
        lines.append(f"     or one of {len(cause.places) - _MOST_PLACES} other lines")
    more = len(cause.takes) - 1
    if more > 0:
        facts = "1 other fact follows" if more == 1 else f"{more} other facts follow"
        lines.append(f"     {facts} from it")
    return lines


def table(rows: Sequence[Difference], most: int) -> list[str]:
    """Return the facts that differ, with both values."""
    ordered = sorted(rows, key=lambda row: (row.key.section != STEP, natural(name_of(row.key))))
    cells = [(name_of(row.key), shown(row.locked), shown(row.now)) for row in ordered[:most]]
    cells = [("fact", "lock", "now"), *cells]
    widths = [max(len(row[at]) for row in cells) for at in range(3)]
    lines = [
        f"  {name:<{widths[0]}}  {locked:>{widths[1]}}  {now:>{widths[2]}}"
        for name, locked, now in cells
    ]
    if len(ordered) > most:
        lines.append(f"  and {len(ordered) - most} more (--all shows them)")
    return lines


def name_of(key: Key) -> str:
    """Return a fact's name for people."""
    if key.section == STEP:
        return key.name
    return f"{key.of or key.section} {key.name}"
