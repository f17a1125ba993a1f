"""Where the functions of the user's files begin and end, read from the recorded text.

Tools name a function by its first line alone. The next function that they have a row for need not
be the next one of the file: the one that holds the loop over the steps was running all along and
has none, and its lines would be taken for those of the function above it.
"""

from __future__ import annotations

import ast
import math
from dataclasses import dataclass
from functools import cache

from profstack.findings.figures import CallGraph, Key, Report, Row, line_s


@dataclass(frozen=True)
class Span:
    """A function's first line (that of its first decorator, as code objects have it) and last."""

    name: str
    first: int
    last: int


class Extents:
    """The functions of the files whose text was recorded."""

    def __init__(self, report: Report) -> None:
        self._files = {
            str(row["file"]): _by_line(row["text"])
            for row in report.get("sources") or ()
            if row.get("text")
        }

    def knows(self, file: str) -> bool:
        """Whether the text of a file is there, and is Python."""
        return self._files.get(file) is not None

    def around(self, file: str, line: int) -> Span | None:
        """The innermost function that a line stands in."""
        return (self._files.get(file) or {}).get(line)

    def holds(self, key: Key, line: int) -> bool:
        """Whether a line is one of a function's own, and not of one that is defined within it."""
        found = self.around(key[0], line)
        return found is not None and (found.name, found.first) == (key[2], key[1])


@cache
def _by_line(text: str) -> dict[int, Span] | None:
    """The innermost function of each line that has one; None of what is no Python."""
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError, SystemError):
        return None
    spans = []
    for node in ast.walk(tree):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            first = min([node.lineno, *(each.lineno for each in node.decorator_list)])
            spans.append(Span(node.name, first, node.end_lineno or node.lineno))
    found = {}
    for span in sorted(spans, key=lambda span: span.first):
        # What is defined within a function begins after it.
        found.update(dict.fromkeys(range(span.first, span.last + 1), span))
    return found


def lines_of(report: Report, graph: CallGraph, key: Key) -> list[Row]:
    """The rows of `lines` that are a function's own.

    Where the text of its file is not known, all up to the next function that has a row.
    """
    extents = Extents(report)
    rows = [row for row in report["tables"]["lines"] if row["file"] == key[0]]
    if extents.knows(key[0]):
        return [row for row in rows if extents.holds(key, row["line"])]
    later = [line for file, line, _ in graph.rows if file == key[0] and line > key[1]]
    return [row for row in rows if key[1] <= row["line"] < min(later, default=math.inf)]


def heaviest_line(report: Report, graph: CallGraph, key: Key) -> Row | None:
    """The line of a function with most time; None where its lines were not followed to the end."""
    inside = lines_of(report, graph, key)
    if not inside or any(row["reason"] for row in inside):
        return None
    return max(inside, key=line_s)


def function_around(report: Report, graph: CallGraph, file: str, line: int) -> Key | None:
    """The profiled function that a line stands in.

    None where the text of the file is not known, and for lines of a function that was running
    before the profiler was, as that of the loop is: it has no row.
    """
    span = Extents(report).around(file, line)
    key = None if span is None else (file, span.first, span.name)
    return key if key in graph.rows else None
