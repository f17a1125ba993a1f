"""The functions that a step's loading goes to: first the one to look at, then the longest others.

What the loader calls has all of the loading, and says nothing by that. The one to look at is the
deepest of the user's own that still has most of it: all that it calls has less.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from profstack.findings.extents import heaviest_line
from profstack.findings.figures import (
    CallGraph,
    Key,
    Report,
    Row,
    line_s,
    short,
    to_function,
)
from profstack.findings.loading import MOSTLY, loaders

_MOST_ROWS = 3
# With less of the loading a function is not told of.
_LEAST_SHARE = 0.1


def loading_functions(report: Report, load_s: float) -> list[dict[str, Any]]:
    """Evidence rows, with whether each is the user's own: with what they call, the one to look at
    first; libraries' by their own time where none of them is the user's.
    """
    graph = CallGraph(report)
    roots = loaders(graph)
    whole = sum(graph.rows[key]["total_s"] for key in roots)
    if not whole:
        return []
    below = [graph.rows[key] for key in graph.below(roots) if key in graph.rows]
    own = sorted((row for row in below if row["own"]), key=lambda row: -row["total_s"])
    own = [row for row in own if row["total_s"] >= _LEAST_SHARE * whole]
    if not own:
        others = sorted((row for row in below if not row["own"]), key=lambda row: -row["self_s"])
        return [_row(report, graph, row, row["self_s"] / whole, load_s) for row in others[:1]]
    first = _deepest(graph, [row for row in own if row["total_s"] >= MOSTLY * whole]) or own[0]
    rows = [first, *(row for row in own if row is not first)][:_MOST_ROWS]
    return [_row(report, graph, row, row["total_s"] / whole, load_s) for row in rows]


def most_of_it(rows: list[dict[str, Any]]) -> str:
    """Which function the loading goes to, in words; nothing where none is known."""
    if not rows:
        return ""
    first, *others = rows
    much = "Most of it is" if first["loading_share"] >= MOSTLY else "The longest of it is"
    words = f"{much} {_place(first)}"
    if "called_from" in first:
        words += f", called from {first['called_from']}"
    called = next((row for row in others if row.get("called_from") == first["function"]), None)
    if called is not None and "heaviest_line" not in first:
        words += f"; the longest of what that calls is {_place(called)}"
    return f"{words}."


def _place(row: Mapping[str, Any]) -> str:
    return f"{row['function']} ({short(row['file'])}:{row['line']})"


def _key(row: Row) -> Key:
    return row["file"], row["line"], row["name"]


def _deepest(graph: CallGraph, rows: Iterable[Row]) -> Row | None:
    """The function that calls none of the others; the longest where several do not, or all do."""
    known = {_key(row): row for row in rows}
    last = [key for key in known if not (graph.below([key]) - {key}) & set(known)]
    return max((known[key] for key in last or known), key=lambda row: row["total_s"], default=None)


def _row(report: Report, graph: CallGraph, row: Row, share: float, load_s: float) -> dict[str, Any]:
    caller = _caller(graph, _key(row)) if row["own"] else None
    return {
        "function": row["name"],
        "file": row["file"],
        "line": row["line"],
        **({} if caller is None else {"called_from": caller[2]}),
        "own": row["own"],
        "calls": row["calls"],
        "clean_s": min(share, 1.0) * load_s,
        "loading_share": min(share, 1.0),
        **_inside(report, graph, row),
        "link": to_function(row["file"], row["line"], row["name"]),
    }


def _caller(graph: CallGraph, key: Key) -> Key | None:
    """The user's own function that calls this one for longest; None where only libraries do."""
    edges = [
        (edge["total_s"] or 0.0, caller)
        for caller, _, edge in graph.callers(lambda callee: callee == key)
        if caller != key and caller in graph.rows and graph.rows[caller]["own"]
    ]
    return max(edges, default=(0.0, None))[1]


def _inside(report: Report, graph: CallGraph, row: Row) -> dict[str, Any]:
    """The heaviest line of a function of the user's, where all its lines were followed.

    Lines have no time of the user's functions that they call: where these have most of the
    function's, a line would be blamed for theirs.
    """
    if not row["own"] or _in_others_s(graph, _key(row)) > (1 - MOSTLY) * row["total_s"]:
        return {}
    found = heaviest_line(report, graph, _key(row))
    if found is None or not line_s(found):
        return {}
    return {"heaviest_line": found["line"], "text": (found["source"] or "").strip()}


def _in_others_s(graph: CallGraph, key: Key) -> float:
    """How long a function is in others of the user's, called by itself or through a library."""
    waiting, seen, total = [key], {key}, 0.0
    while waiting:
        for callee, edge in graph.callees.get(waiting.pop(), ()):
            row = graph.rows.get(callee)
            if row is None or callee == key:
                continue
            if row["own"]:
                total += edge["total_s"] or 0.0
            elif callee not in seen:
                seen.add(callee)
                waiting.append(callee)
    return total
