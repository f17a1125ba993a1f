"""The edit of the user's file that makes a change stay, as a unified diff that `git apply` takes.

The file's text is read with `ast` and changed by columns, so that all else of it stays as it is.
Where the place is not known, or the text does not say what the edit needs, there is the one line
to add instead.
"""

from __future__ import annotations

import ast
import difflib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from profstack.changes.contract import Edit, Seen, Value

# Calls in a line's own text to which an argument can be added by its position alone.
_SETS = {"zero_grad": "set_to_none"}


@dataclass(frozen=True)
class Patch:
    """An edit: the file's text after it, or why there is none."""

    file: str
    before: str
    after: str | None
    reason: str | None = None

    def diff(self, root: Path) -> str | None:
        """Return the unified diff with paths from `root`; None without an edit."""
        if self.after is None or self.after == self.before:
            return None
        try:
            name = Path(self.file).resolve().relative_to(root.resolve()).as_posix()
        except ValueError:
            name = self.file.lstrip("/")
        lines = difflib.unified_diff(
            self.before.splitlines(keepends=True),
            self.after.splitlines(keepends=True),
            f"a/{name}",
            f"b/{name}",
        )
        made = [
            line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n"
            for line in lines
        ]
        return "".join(made)


def patch_of(edit: Edit, value: Value | None, file: str, line: int, seen: Seen, text: str) -> Patch:
    """Return the edit of a file's text; `line` is where the change took hold."""
    try:
        tree = ast.parse(text)
    except SyntaxError:
        return Patch(file, text, None, "the file is no Python")
    source = _Source(text, tree)
    facts = _facts(value, seen)
    if edit.argument is not None:
        after = _with_argument(source, edit, line, facts)
        reason = f"line {line} has no call that the argument fits"
    elif edit.within:
        after = _within(source, edit.within.format(**facts), line)
        reason = f"line {line} is no statement of its own"
    elif edit.before_loop:
        name = facts["model"]
        if not isinstance(name, str) or not name.isidentifier() or name == "self":
            return Patch(file, text, None, "the model has no name of its own where it is called")
        after = _before_loop(source, edit.before_loop.format(**facts), line)
        reason = f"no loop is around line {line}"
    else:
        filled = edit.line.format(**facts)
        after = None if " in the environment" in filled else _after_imports(source, filled)
        reason = "it is set in the environment" if after is None else ""
    return Patch(file, text, after, None if after is not None else reason)


def words_of(edit: Edit, value: Value | None, seen: Seen) -> str:
    """Return the edit as one line to add, for a place that is not known."""
    facts = _facts(value, seen)
    facts["model"] = facts["model"] or "model"
    if edit.argument is None:
        return (edit.line or edit.before_loop or edit.within).format(**facts)
    callee = "the optimizer" if edit.callee.startswith("{") else edit.callee
    return f"{callee}(..., {edit.argument[0]}={edit.argument[1].format(**facts)})"


def _facts(value: Value | None, seen: Seen) -> dict[str, Any]:
    root = seen.root
    names = {"model": root.get("name"), "block": root.get("block")}
    return {"value": value, "device": seen.device, **names}


class _Source:
    """A text with its tree; places are lines from 1 and columns in characters."""

    def __init__(self, text: str, tree: ast.Module) -> None:
        self.text, self.tree = text, tree
        self.lines = text.splitlines(keepends=True)

    def at(self, line: int, column: int) -> int:
        """Return the place in the text of a line and a column of `ast`, which counts bytes."""
        own = self.lines[line - 1].encode("utf-8")[:column].decode("utf-8")
        return sum(map(len, self.lines[: line - 1])) + len(own)

    def replaced(self, begin: int, end: int, by: str) -> str:
        """Return the text with a part of it replaced."""
        return self.text[:begin] + by + self.text[end:]

    def around(self, line: int, kinds: tuple[type[ast.AST], ...]) -> Iterator[Any]:
        """Yield the nodes of some kinds whose lines hold a line, the outermost first."""
        for node in ast.walk(self.tree):
            if isinstance(node, kinds) and node.lineno <= line <= (node.end_lineno or 0):
                yield node

    def margin(self, line: int) -> str:
        """Return the blanks that a line begins with."""
        text = self.lines[line - 1]
        return text[: len(text) - len(text.lstrip())]


def _name(call: ast.Call) -> str:
    function = call.func
    return function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")


def _with_argument(source: _Source, edit: Edit, line: int, facts: Mapping[str, Any]) -> str | None:
    """Set a keyword of the call at a line; of several calls there the one of its name."""
    assert edit.argument is not None
    name, value = edit.argument[0], edit.argument[1].format(**facts)
    callee = edit.callee
    calls = [
        call
        for call in source.around(line, (ast.Call,))
        if _name(call) == callee or (callee.startswith("{") and _is_optimizer(_name(call)))
    ]
    if not calls:
        return None
    call = min(calls, key=lambda each: (each.end_lineno or 0) - each.lineno)
    for keyword in call.keywords:
        if keyword.arg == name:
            inner = keyword.value
            begin = source.at(inner.lineno, inner.col_offset)
            end = source.at(inner.end_lineno, inner.end_col_offset)
            if "*" in value:
                value = f"{value.split(' *')[0]} * {source.text[begin:end]}"
            return source.replaced(begin, end, value)
    if "*" in value:
        return None
    given = [*call.args, *(each.value for each in call.keywords)]
    close = source.at(call.end_lineno, call.end_col_offset) - 1
    if not given:
        return source.replaced(close, close, f"{name}={value}")
    last = max(given, key=lambda each: (each.end_lineno, each.end_col_offset))
    end = source.at(last.end_lineno, last.end_col_offset)
    # A generator in its own parentheses ends behind them.
    rest = source.text[end:close]
    end += len(rest) - len(rest.lstrip(")")) if ")" in rest and "," not in rest else 0
    return source.replaced(end, end, f", {name}={value}")


def _is_optimizer(name: str) -> bool:
    return name[:1].isupper()


def _statement(source: _Source, line: int) -> ast.stmt | None:
    """Return the innermost simple statement that holds a line."""
    simple = (ast.Assign, ast.AugAssign, ast.AnnAssign, ast.Expr, ast.Return)
    found = list(source.around(line, simple))
    return min(found, key=lambda each: (each.end_lineno or 0) - each.lineno, default=None)


def _within(source: _Source, head: str, line: int) -> str | None:
    """Put the statement at a line into a `with` block."""
    statement = _statement(source, line)
    if statement is None:
        return None
    first, last = statement.lineno - 1, statement.end_lineno or statement.lineno
    margin = source.margin(statement.lineno)
    if source.lines[first][: statement.col_offset].strip():
        return None
    block = [f"{margin}{head}\n"]
    block += [f"    {text}" if text.strip() else text for text in source.lines[first:last]]
    return "".join([*source.lines[:first], *block, *source.lines[last:]])


def _before_loop(source: _Source, added: str, line: int) -> str | None:
    """Put lines before the outermost loop, of the innermost function, around a line."""
    functions = list(source.around(line, (ast.FunctionDef, ast.AsyncFunctionDef)))
    inner = max(functions, key=lambda each: each.lineno, default=None)
    least = inner.lineno if inner is not None else 0
    loops = [loop for loop in source.around(line, (ast.For, ast.While)) if loop.lineno > least]
    if not loops:
        return None
    first = min(loop.lineno for loop in loops)
    margin = source.margin(first)
    block = [f"{margin}{text}\n" for text in added.splitlines()]
    return "".join([*source.lines[: first - 1], *block, *source.lines[first - 1 :]])


def _after_imports(source: _Source, added: str) -> str | None:
    """Put a line behind the imports at the top of a file, which has to import torch."""
    imports = [node for node in source.tree.body if isinstance(node, (ast.Import, ast.ImportFrom))]
    names = {
        alias.asname or alias.name
        for node in imports
        for alias in node.names
        if isinstance(node, ast.Import)
    }
    if "torch" not in names:
        return None
    last = max(node.end_lineno or node.lineno for node in imports)
    return "".join([*source.lines[:last], f"\n{added}\n", *source.lines[last:]])


def own_path(file: str, copied: Sequence[tuple[str, str]]) -> str:
    """Return the user's own path of a file of a copy: `copied` are pairs of copy and folder."""
    for copy, folder in copied:
        if file.startswith(copy):
            return folder + file[len(copy) :]
    return file
