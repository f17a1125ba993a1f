"""What a loop does after the optimizer's step that no step takes as its input: metrics, logs.

It goes by before the next step's first work, as the making of a batch does, and is told apart by
the text of the loop over the steps: a statement after the one with the optimizer's step makes no
input where nothing that it binds, or could change, is read by the statements before.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache

from profstack.findings.extents import lines_of
from profstack.findings.figures import CallGraph, Key, Report, Row, line_s

_OPTIMIZER, _WAIT = "(optimizer)", "(wait)"
_LOOPS = (ast.For, ast.AsyncFor, ast.While)
_Place = tuple[str, int]


@dataclass(frozen=True)
class AfterStep:
    """The share of the lines' time outside a step's work that is no input's, how much of that is
    outside operators, the line with most of it, and the user's own functions that it calls.
    """

    share: float
    outside_operators: float
    line: Row
    functions: frozenset[Key]


def after_step(report: Report) -> AfterStep | None:
    """What such statements take; None where there are none, or no lines were followed."""
    found = _statements(report)
    if found is None:
        return None
    file, statements = found
    graph = CallGraph(report)
    functions = _called(graph, statements)
    places = {(file, at) for each in statements for at in _lines(each)}
    for key in functions:
        places |= {(str(row["file"]), int(row["line"])) for row in lines_of(report, graph, key)}
    idle = [row for row in report["tables"]["module_lines"] if row["module"] in (None, _WAIT)]
    after = [row for row in idle if (row["file"], row["line"]) in places]
    whole, taken = sum(map(line_s, idle)), sum(map(line_s, after))
    if not whole or not taken:
        return None
    first = max(after, key=line_s)
    outside = sum(float(row["python_s"] or 0.0) for row in after) / taken
    return AfterStep(taken / whole, outside, first, frozenset(functions))


def _statements(report: Report) -> tuple[str, Sequence[ast.stmt]] | None:
    """The file of the loop over the steps, and its statements after the step that make no input."""
    rows = report["tables"].get("module_lines") or ()
    steps = [row for row in rows if row["module"] == _OPTIMIZER]
    if not steps:
        return None
    step = max(steps, key=line_s)
    texts = {str(row["file"]): row.get("text") for row in report.get("sources") or ()}
    text = texts.get(str(step["file"]))
    found = _without_input(text, int(step["line"])) if text else ()
    return (str(step["file"]), found) if found else None


@cache
def _without_input(text: str, step: int) -> tuple[ast.stmt, ...]:
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError, SystemError):
        return ()
    loops = [node for node in ast.walk(tree) if isinstance(node, _LOOPS) and step in _lines(node)]
    if not loops:
        return ()
    loop = max(loops, key=lambda node: node.lineno)
    # Several may stand on its line, whose time is not told apart.
    at = max(
        (at for at, each in enumerate(loop.body) if step in _lines(each)), default=len(loop.body)
    )
    header = [loop.test] if isinstance(loop, ast.While) else [loop.iter, loop.target]
    before = [*header, *loop.body[: at + 1]]
    read, bound = _names(before, ast.Load), _names(before, ast.Store)
    # What lives on from step to step could be changed by whoever has it; a module, a class or a
    # function is taken to be none of that.
    lasting = read - bound - _defined(tree)
    return tuple(
        each
        for each in loop.body[at + 1 :]
        if not _names([each], ast.Store) & read and not _names([each], ast.Load) & lasting
    )


def _names(nodes: Iterable[ast.AST], kind: type[ast.expr_context]) -> set[str]:
    inside = (each for node in nodes for each in ast.walk(node))
    return {each.id for each in inside if isinstance(each, ast.Name) and isinstance(each.ctx, kind)}


def _defined(tree: ast.AST) -> set[str]:
    """Names of modules, classes and functions, wherever a file makes them known."""
    names = set()
    for node in ast.walk(tree):
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            names |= {(each.asname or each.name).split(".")[0] for each in node.names}
        elif isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            names.add(node.name)
    return names


def _lines(node: ast.stmt) -> range:
    return range(node.lineno, (node.end_lineno or node.lineno) + 1)


def _called(graph: CallGraph, statements: Sequence[ast.stmt]) -> set[Key]:
    """The user's own functions that statements call by name, and those that these call."""
    inside = (each for node in statements for each in ast.walk(node))
    names = {_last(each.func) for each in inside if isinstance(each, ast.Call)}
    own = {key for key, row in graph.rows.items() if row["own"]}
    named = {key for key in own if key[2] in names}
    return named | (graph.below(named) & own)


def _last(function: ast.expr) -> str | None:
    """The name that a function is called by, without what it is taken from."""
    if isinstance(function, ast.Attribute):
        return function.attr
    return function.id if isinstance(function, ast.Name) else None
