"""Where functions of a stack are defined: the profiler tells the line a frame was at when entered.

That is the line of the definition, but for generators, which are entered where they had yielded,
and for functions that were running before the trace began.
"""

from __future__ import annotations

import ast
from functools import cache

MODULE = "<module>"
GENERATOR = "<genexpr>"


class Definitions:
    """Finds the first line of a function from any line in it; reads each source file once."""

    def __init__(self) -> None:
        self._lines = cache(_source_lines)
        self._spans = cache(_spans)

    def first_line(self, file: str, name: str, line: int) -> int:
        """Line of the definition (of its first decorator); `line` where no source tells."""
        if name == MODULE:
            return 1
        if name.startswith("<") and name != GENERATOR:
            # Lambdas and comprehensions are entered where they begin.
            return line
        lines = self._lines(file)
        if not 0 < line <= len(lines):
            return line
        text = lines[line - 1].strip()
        if f"def {name}(" in text or text.startswith(("@", f"class {name}")):
            return line
        if name == GENERATOR and " for " in text and "(" in text:
            # All in one line, as most are: the whole file need not be parsed.
            return line
        around = [
            first
            for kind, first, last in self._spans("\n".join(lines))
            if kind == name and first <= line <= last
        ]
        return max(around, default=line)


def _source_lines(file: str) -> list[str]:
    # Not by `linecache`, which keeps what it has read.
    try:
        with open(file, encoding="utf-8", errors="replace") as source:
            return source.read().split("\n")
    except OSError:
        return []


def _spans(source: str) -> list[tuple[str, int, int]]:
    """Name, first and last line of everything in a file that has a code of its own."""
    try:
        tree = ast.parse(source)
    # SystemError: Python 3.11 counts the depth of all threads' trees together, and may be misled.
    except (SyntaxError, ValueError, RecursionError, MemoryError, SystemError):
        return []
    spans = []
    for node in ast.walk(tree):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            first = min([node.lineno, *(each.lineno for each in node.decorator_list)])
            spans.append((node.name, first, node.end_lineno or node.lineno))
        elif isinstance(node, ast.GeneratorExp):
            spans.append((GENERATOR, node.lineno, node.end_lineno or node.lineno))
    return spans
