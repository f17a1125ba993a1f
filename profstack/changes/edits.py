"""The edit of the user's file that makes a change stay, as a unified diff that `git apply` takes.

The file's text is read with `ast` and changed by columns, so that all else of it stays as it is.
Where the place is not known, or the text does not say what the edit needs, there is the one line
to add instead.
"""

from __future__ import annotations

import ast
import difflib
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from profstack.changes.contract import Edit, Seen, Value

# Calls whose argument may also be given by its position alone.
_BY_POSITION = {"zero_grad": "set_to_none"}


@dataclass(frozen=True)
class Patch:
    """An edit: the file's text after it, or why there is none."""

    file: str
    before: str
    after: str | None
    reason: str | None = None

    def diff(self, root: Path) -> str | None:
        """Return the unified diff with paths from `root`; None without an edit, or outside it."""
        if self.after is None or self.after == self.before:
            return None
        try:
            name = Path(self.file).resolve().relative_to(root.resolve()).as_posix()
        except ValueError:
            return None
        lines = difflib.unified_diff(
            _lines(self.before), _lines(self.after), f"a/{name}", f"b/{name}", lineterm="\n"
        )
        made = [
            line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n"
            for line in lines
        ]
        return "".join(made)


def _lines(text: str) -> list[str]:
    """Return the lines as git has them: it knows no other ends than line feeds."""
    lines = text.split("\n")
    return [f"{line}\n" for line in lines[:-1]] + ([lines[-1]] if lines[-1] else [])


def patch_of(edit: Edit, value: Value | None, file: str, line: int, seen: Seen, text: str) -> Patch:
    """Return the edit of a file's text; `line` is where the change took hold."""
    after, reason = _edited(edit, _facts(value, seen), line, text)
    if after is not None:
        try:
            ast.parse(after)
        except SyntaxError:
            after, reason = None, f"line {line} cannot be changed by its columns"
    return Patch(file, text, after, None if after is not None else reason)


def _edited(edit: Edit, facts: Mapping[str, Any], line: int, text: str) -> tuple[str | None, str]:
    """Return the text with an edit, or why there is none."""
    try:
        source = _Source(text, ast.parse(text))
    except SyntaxError:
        return None, "the file is no Python"
    if "\r" in text.replace("\r\n", ""):
        return None, "the file's lines end in carriage returns"
    if edit.argument is not None:
        reason = f"line {line} has no call that the argument fits"
        return _with_argument(source, edit, line, facts), reason
    if edit.unwraps:
        return _unwrapped(source, edit, line), f"line {line} has no call with a function"
    template = edit.within or edit.before_loop or edit.line
    if " in the environment" in template:
        return None, "it is set in the environment"
    if "torch." in template and not source.imports_torch():
        return None, "the file does not import torch"
    if edit.within:
        filled = edit.within.format(**facts)
        return _within(source, filled, line), f"line {line} is no statement of its own"
    if edit.before_loop:
        name = facts["model"]
        if not isinstance(name, str) or not name.isidentifier() or name == "self":
            return None, "the model has no name of its own where it is called"
        filled = edit.before_loop.format(**facts)
        return _before_loop(source, filled, line, name), f"no loop is around line {line}"
    return _after_imports(source, edit.line.format(**facts)), ""


def words_of(edit: Edit, value: Value | None, seen: Seen) -> str:
    """Return the edit as one line to add, for a place that is not known."""
    facts = _facts(value, seen)
    facts["model"] = facts["model"] or "model"
    if edit.unwraps:
        return f"{edit.callee}(function, x) -> function(x)"
    if edit.argument is None:
        return (edit.line or edit.before_loop or edit.within).format(**facts)
    callee = "the optimizer" if edit.callee.startswith("{") else edit.callee
    return f"{callee}(..., {edit.argument[0]}={edit.argument[1].format(**facts)})"


def _facts(value: Value | None, seen: Seen) -> dict[str, Any]:
    root = seen.root
    names = {"model": root.get("name"), "block": root.get("block")}
    optimizers = {str(each["name"]) for each in seen.optimizers}
    return {"value": value, "device": seen.device, "optimizers": optimizers, **names}


class _Source:
    """A text with its tree; places are lines from 1 and columns in characters."""

    def __init__(self, text: str, tree: ast.Module) -> None:
        self.text, self.tree = text, tree
        self.lines = _lines(text)
        self.end = "\r\n" if "\r\n" in text else "\n"

    def at(self, line: int, column: int) -> int:
        """Return the place in the text of a line and a column of `ast`, which counts bytes."""
        own = self.lines[line - 1].encode("utf-8")[:column].decode("utf-8")
        return sum(map(len, self.lines[: line - 1])) + len(own)

    def span(self, node: Any) -> tuple[int, int]:
        """Return where a node begins and ends in the text."""
        return self.at(node.lineno, node.col_offset), self.at(node.end_lineno, node.end_col_offset)

    def replaced(self, *parts: tuple[int, int, str]) -> str:
        """Return the text with parts of it replaced: begin, end and new text of each."""
        text = self.text
        for begin, end, by in sorted(parts, reverse=True):
            text = text[:begin] + by + text[end:]
        return text

    def around(self, line: int, kinds: tuple[type[ast.AST], ...]) -> Iterator[Any]:
        """Yield the nodes of some kinds whose lines hold a line, the outermost first."""
        for node in ast.walk(self.tree):
            place: Any = node
            if isinstance(node, kinds) and place.lineno <= line <= (place.end_lineno or 0):
                yield node

    def margin(self, line: int) -> str:
        """Return the blanks that a line begins with."""
        text = self.lines[line - 1]
        return text[: len(text) - len(text.lstrip())]

    def imports_torch(self) -> bool:
        """Return whether the file knows torch by this name."""
        return any(map(_imports_torch, ast.walk(self.tree)))


def _imports_torch(node: ast.AST) -> bool:
    return isinstance(node, ast.Import) and any(
        (alias.asname or alias.name.partition(".")[0]) == "torch" for alias in node.names
    )


def _name(call: ast.Call) -> str:
    function = call.func
    return function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")


def _with_argument(source: _Source, edit: Edit, line: int, facts: Mapping[str, Any]) -> str | None:
    """Set a keyword of the call at a line; of several calls there the one of its name."""
    assert edit.argument is not None
    name, value = edit.argument[0], edit.argument[1].format(**facts)
    names = facts["optimizers"] if edit.callee.startswith("{") else {edit.callee}
    call = _call(source, line, names)
    if call is None:
        return None
    drops = (*edit.drops, *(edit.drops_at_0 if facts["value"] == 0 else ()))
    parts = [_without(source, call, each) for each in call.keywords if each.arg in drops]
    for keyword in call.keywords:
        if keyword.arg == name:
            begin, end = source.span(keyword.value)
            if "*" in value:
                value = f"{value.split(' *')[0]} * {_factor(keyword.value, source.text[begin:end])}"
            return source.replaced((begin, end, value), *parts)
    if "*" in value:
        return None
    if _BY_POSITION.get(_name(call)) == name and call.args:
        begin, end = source.span(call.args[0])
        return source.replaced((begin, end, value), *parts)
    kept = [each for each in (*call.args, *call.keywords) if getattr(each, "arg", "") not in drops]
    close = source.span(call)[1] - 1
    if not kept:
        return source.replaced((close, close, f"{name}={value}"), *parts)
    end = max(source.span(each)[1] for each in kept)
    # An argument in parentheses of its own ends behind them.
    rest = source.text[end:close]
    end += len(rest) - len(rest.lstrip(")"))
    return source.replaced((end, end, f", {name}={value}"), *parts)


def _call(source: _Source, line: int, names: Collection[str]) -> ast.Call | None:
    """Return the innermost call at a line of a function of one of these names."""
    calls = [call for call in source.around(line, (ast.Call,)) if _name(call) in names]
    call = min(calls, key=lambda each: (each.end_lineno or 0) - each.lineno, default=None)
    # What `**options` holds is not known.
    is_known = call is not None and all(keyword.arg is not None for keyword in call.keywords)
    return call if is_known else None


def _unwrapped(source: _Source, edit: Edit, line: int) -> str | None:
    """Call the function that a call is given, with the other arguments."""
    call = _call(source, line, {edit.callee})
    several = sum(_name(each) == edit.callee for each in source.around(line, (ast.Call,))) > 1
    if call is None or several or not call.args or isinstance(call.args[0], ast.Starred):
        return None
    kept = [*call.args[1:], *(each for each in call.keywords if each.arg not in edit.unwraps)]
    function, *rest = [source.text[slice(*source.span(each))] for each in (call.args[0], *kept)]
    if not isinstance(call.args[0], (ast.Name, ast.Attribute, ast.Subscript, ast.Call)):
        function = f"({function})"
    return source.replaced((*source.span(call), f"{function}({', '.join(rest)})"))


def _factor(node: ast.expr, text: str) -> str:
    """Return an expression as a factor."""
    return text if isinstance(node, (ast.Constant, ast.Name, ast.Attribute)) else f"({text})"


def _without(source: _Source, call: ast.Call, keyword: ast.keyword) -> tuple[int, int, str]:
    """Return the part of the text that has a keyword of a call, with the comma before or after."""
    begin, end = source.span(keyword)
    before = source.text[:begin].rstrip()
    if before.endswith(","):
        return len(before) - 1, end, ""
    rest = source.text[end : source.span(call)[1]]
    after = len(rest) - len(rest.lstrip())
    if rest.lstrip().startswith(","):
        tail = rest[after + 1 :]
        return begin, end + after + 1 + len(tail) - len(tail.lstrip(" ")), ""
    return begin, end, ""


def _statement(source: _Source, line: int) -> ast.stmt | None:
    """Return the innermost simple statement that holds a line."""
    simple = (ast.Assign, ast.AugAssign, ast.AnnAssign, ast.Expr, ast.Return)
    found = list(source.around(line, simple))
    return min(found, key=lambda each: (each.end_lineno or 0) - each.lineno, default=None)


def _within(source: _Source, head: str, line: int) -> str | None:
    """Put the statement at a line into a `with` block."""
    statement = _statement(source, line)
    if statement is None or any(map(_is_on_lines, ast.walk(statement))):
        return None
    first, last = statement.lineno - 1, statement.end_lineno or statement.lineno
    margin = source.margin(statement.lineno)
    if source.lines[first][: statement.col_offset].strip():
        return None
    block = [f"{margin}{head}{source.end}"]
    block += [f"    {text}" if text.strip() else text for text in source.lines[first:last]]
    return "".join([*source.lines[:first], *block, *source.lines[last:]])


def _is_on_lines(node: ast.AST) -> bool:
    """Return whether a node is a text of several lines, of which none may be moved."""
    is_text = isinstance(node, ast.JoinedStr) or (
        isinstance(node, ast.Constant) and isinstance(node.value, (str, bytes))
    )
    return is_text and getattr(node, "lineno", 0) != getattr(node, "end_lineno", 0)


def _before_loop(source: _Source, added: str, line: int, name: str) -> str | None:
    """Put lines before the outermost loop around a line that does not make what has the name.

    Loops of other functions around that of the line do not count.
    """
    functions = list(source.around(line, (ast.FunctionDef, ast.AsyncFunctionDef)))
    inner = max(functions, key=lambda each: each.lineno, default=None)
    least = inner.lineno if inner is not None else 0
    loops = [
        loop
        for loop in source.around(line, (ast.For, ast.While))
        if loop.lineno > least and not _makes(loop, name)
    ]
    if not loops:
        return None
    first = min(loop.lineno for loop in loops)
    margin = source.margin(first)
    block = [f"{margin}{text}{source.end}" for text in added.splitlines()]
    return "".join([*source.lines[: first - 1], *block, *source.lines[first - 1 :]])


def _makes(loop: ast.AST, name: str) -> bool:
    return any(
        isinstance(node, ast.Name) and node.id == name and isinstance(node.ctx, ast.Store)
        for node in ast.walk(loop)
    )


def _after_imports(source: _Source, added: str) -> str | None:
    """Put a line behind the import of torch at the top of a file, and those that follow it."""
    last, end = 0, source.end
    for node in source.tree.body:
        is_import = isinstance(node, (ast.Import, ast.ImportFrom))
        if is_import and (last or _imports_torch(node)):
            last = node.end_lineno or node.lineno
        elif last:
            break
    if not last:
        return None
    return "".join([*source.lines[:last], f"{end}{added}{end}", *source.lines[last:]])


def own_path(file: str, copied: Sequence[tuple[str, str]]) -> str:
    """Return the user's own path of a file of a copy: `copied` are pairs of copy and folder."""
    for copy, folder in copied:
        if file.startswith(copy):
            return folder + file[len(copy) :]
    return file
