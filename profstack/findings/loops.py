"""Loops of the script, as far as the counts and the texts of their lines tell of them."""

from __future__ import annotations

import re
from collections.abc import Iterable

from profstack.findings.figures import Report, Row

# Names that a line sets, and what it sets them to; a sum, whose parts do not need it.
_ASSIGNS = re.compile(r"\s*([A-Za-z_]\w*(?:\s*,\s*[A-Za-z_]\w*)*)\s*=(?!=)(.*)")
_ADDS = re.compile(r"\s*([A-Za-z_]\w*)\s*(?:[-+]=|=\s*\1\s*[-+])(.*)")
_NAMES = re.compile(r"(?<![\w.])[A-Za-z_]\w*")
# Lines of one loop run about equally often.
_ABOUT = 2.0


def loop_lines(report: Report, site: Row) -> list[Row]:
    """The lines next to this one that run about as often, itself among them."""
    rows = {
        row["line"]: row
        for row in report["tables"]["lines"]
        if row["file"] == site["file"] and row["calls"]
    }
    found = [site]
    if (site["calls"] or 0.0) < 2:
        return found
    for way in (-1, 1):
        at = site["line"] + way
        while at in rows and 1 / _ABOUT <= rows[at]["calls"] / site["calls"] <= _ABOUT:
            found.append(rows[at])
            at += way
    return found


def carries(rows: Iterable[Row]) -> bool:
    """Whether lines of a loop, by their text, read a name before they set it: what is carried on
    from one run to the next. A sum is not, unless something else reads it in the loop.
    """
    reads: list[tuple[set[str], set[str]]] = []
    targets: set[str] = set()
    for row in sorted(rows, key=lambda row: row["line"]):
        for statement in str(row["source"] or "").split("#")[0].split(";"):
            if statement.lstrip().startswith("for "):
                continue
            added, assigned = _ADDS.match(statement), _ASSIGNS.match(statement)
            made = set(_NAMES.findall(assigned[1])) if assigned and not added else set()
            targets |= made | ({added[1]} if added else set())
            text = added[2] if added else assigned[2] if assigned else statement
            reads.append((set(_NAMES.findall(text)), made))
    held: set[str] = set()
    for read, made in reads:
        if read & (targets - held):
            return True
        held |= made
    return False


def calls_the_model(report: Report, site: Row) -> bool:
    """Whether a model of the script's is called about as often as a line runs, or oftener.

    Where the line's runs were not counted, or the whole loop is in it, a model that is called more
    than once may be in that loop.
    """
    least = max((site["calls"] or 0.0) / _ABOUT, 2.0)
    return any(
        row["depth"] == 0 and not str(row["path"]).startswith("(") and (row["calls"] or 0) >= least
        for row in report["tables"]["modules"]
    )
