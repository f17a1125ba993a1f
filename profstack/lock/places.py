"""Places in the user's code behind a difference: lines seen to run, sources, and what git says.

The lines are those of the run that was checked. Where several fit, the ones that were changed since
the lock was committed come first; without git, or in a shallow clone, all of them are named.
"""

from __future__ import annotations

import ast
import os
import re
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from profstack.lock.facts import CountedRun, parsed, waiting_call
from profstack.privacy import ask_git

_MOST_FILES = 200
_HUNK = re.compile(r"@@ -\S+ \+(\d+)(?:,(\d+))? @@")
_IMPORTED = (ast.Import, ast.ImportFrom)


@dataclass(frozen=True, order=True)
class Place:
    """A line of the user's: its file from the script's folder on, and its text."""

    file: str
    line: int
    text: str = ""

    @property
    def is_code(self) -> bool:
        """Return whether the line holds more than space and a comment."""
        return bool(self.text) and not self.text.startswith("#")

    def __str__(self) -> str:
        return f"{self.file}:{self.line}"


class Sources:
    """The user's code as one run saw it. `lock` is the path of the lock, for git."""

    def __init__(self, run: CountedRun, lock: Path) -> None:
        self._run, self._lock = run, lock
        self._operators = run.rows("line_operators")

    @cached_property
    def _files(self) -> list[str]:
        """Absolute paths of the user's files that ran."""
        rows = [row["file"] for table in ("functions", "lines") for row in self._run.rows(table)]
        own = (file for file in dict.fromkeys(rows) if self._run.is_own(file))
        whole = (os.path.realpath(os.path.join(self._run.root, file)) for file in own)
        return list(dict.fromkeys(file for file in whole if os.path.isfile(file)))[:_MOST_FILES]

    @cached_property
    def _ran(self) -> set[tuple[str, int]]:
        """Lines that were seen to run; empty where none could be traced."""
        rows = self._run.rows("lines")
        return {(self._whole(row["file"]), row["line"]) for row in rows if row["calls"] != 0}

    def _whole(self, file: str) -> str:
        return os.path.realpath(os.path.join(self._run.root, file))

    @cached_property
    def _changed(self) -> set[tuple[str, int]]:
        """Lines that were changed since the lock was committed."""
        lock = self._lock.resolve()
        commit = ask_git(lock.parent, "log", "-1", "--format=%H", "--", lock.name, timeout_s=_GIT_S)
        if not commit or not commit.strip():
            return set()
        return {
            (file, line)
            for file in self._files
            for line in _changed_lines(lock.parent, commit.strip(), file)
        }

    def _chosen(self, found: Iterable[tuple[str, int]], *, ran: bool = True) -> list[Place]:
        """Return places, each once: those that ran, and of these those that were changed."""
        lines = list(dict.fromkeys(found))
        if ran and any(line in self._ran for line in lines):
            lines = [line for line in lines if line in self._ran]
        changed = [line for line in lines if line in self._changed]
        return sorted(self.place(*line) for line in changed or lines)

    def place(self, file: str, line: int) -> Place:
        """Return the place of a line, with its text."""
        try:
            lines = Path(file).read_text(encoding="utf-8").splitlines()
        except (OSError, ValueError):
            lines = []
        text = lines[line - 1].strip() if 0 < line <= len(lines) else ""
        return Place(self._run.short(file), line, text)

    def changed(self) -> list[Place]:
        """Return the lines of code that were changed since the lock was committed."""
        lines = sorted(self._changed)
        return [place for place in (self.place(*line) for line in lines) if place.is_code]

    # -- what ran ------------------------------------------------------------------------------

    def of_operators(
        self, operators: Collection[str] = (), path: str | None = None, *, but: str | None = None
    ) -> list[Place]:
        """Return the lines that called operators: of the names, and of a module or step part.

        Without names any operator counts; `but` is a part whose operators do not.
        """
        found = []
        for row in self._operators:
            owner = self._run.path(row["module_id"])
            fits = path is None or owner == path or owner.startswith(f"{path}.")
            named = not operators or row["operator"] in operators
            if fits and named and (but is None or owner != but):
                found.append((self._whole(row["file"]), row["line"]))
        return self._chosen(found)

    def inside(self, key_name: str, places: Iterable[Place]) -> bool:
        """Return whether all places are in a function of that name in a lock, and there are any."""
        file, _, name = key_name.rpartition("::")
        spans = [
            range(node.lineno, (node.end_lineno or node.lineno) + 1)
            for qualified, node in _named(self._whole(file))
            if qualified == name
        ]
        found = list(places)
        return bool(found) and all(
            each.file == file and any(each.line in span for span in spans) for each in found
        )

    def of_function(self, key_name: str) -> list[Place]:
        """Return where a function is defined, by its name in a lock: `file.py::Class.name`."""
        file, _, name = key_name.rpartition("::")
        whole = self._whole(file)
        return [
            self.place(whole, node.lineno)
            for qualified, node in _named(whole)
            if qualified == name and os.path.isfile(whole)
        ][:1]

    def calls_of(self, names: Collection[str]) -> list[Place]:
        """Return the lines that call a function or method of one of the names."""
        found = []
        for file in self._files:
            for node in _nodes(file):
                if isinstance(node, ast.Call) and _called(node.func) in names:
                    found.append((file, _last_name_line(node.func)))
        return self._chosen(found)

    def waits(self, word: str) -> list[Place]:
        """Return the lines with a method such as `.cpu()`, in functions seen to call it."""
        name = word.strip(".()").rpartition(".")[2]
        callers = {
            (self._whole(row["caller_file"]), row["caller_line"])
            for row in self._run.rows("calls")
            if waiting_call(row["callee_file"], row["callee_name"]) == word
            and self._run.is_own(row["caller_file"])
        }
        places = self.calls_of([name])
        inside = [
            place
            for place in places
            for file, line in callers
            if place.file == self._run.short(file) and line <= place.line
        ]
        return inside or places

    def with_keyword(self, name: str) -> list[Place]:
        """Return the lines that set a keyword argument or a variable of that name."""
        found = []
        for file in self._files:
            for node in _nodes(file):
                if isinstance(node, ast.keyword) and node.arg == name:
                    found.append((file, node.value.lineno))
                elif isinstance(node, ast.Assign):
                    targets = (getattr(target, "id", "") for target in node.targets)
                    if any(each.lower() in (name, name.replace("_", "")) for each in targets):
                        found.append((file, node.lineno))
        return self._chosen(found, ran=False)

    # -- where a model is made -----------------------------------------------------------------

    def of_module(self, path: str, types: Callable[[str], str | None]) -> list[Place]:
        """Return where a module is made: the attribute in the class around it, or its variable.

        `types` gives the type of a module by its path.
        """
        parts = path.split(".")
        for depth in range(len(parts) - 1, 0, -1):
            around = types(".".join(parts[:depth]))
            found = self._attribute(around, parts[depth]) if around else []
            if found:
                return found
        rows = (row for row in self._run.rows("modules") if row["path"] == parts[0])
        labels = [str(row["label"]) for row in rows if row["label"]]
        for label in labels:
            if found := self._assigned(label.rpartition(".")[2]):
                return found
        return self.calls_of([re.sub(r"#\d+$", "", parts[0])])

    def _attribute(self, kind: str, name: str) -> list[Place]:
        """Return the lines of a class of the user's that set an attribute, or name a new child."""
        found = []
        for file in self._files:
            for node in _nodes(file):
                if isinstance(node, ast.ClassDef) and node.name == kind:
                    found += [(file, line) for line in _sets(node, name)]
        return self._chosen(found, ran=False)

    def _assigned(self, name: str) -> list[Place]:
        found = [
            (file, node.lineno)
            for file in self._files
            for node in _nodes(file)
            if isinstance(node, ast.Assign)
            and any(name in _target_names(target) for target in node.targets)
        ]
        return self._chosen(found, ran=False)


def _sets(node: ast.ClassDef, name: str) -> Iterator[int]:
    for inner in ast.walk(node):
        if isinstance(inner, ast.Assign | ast.AnnAssign):
            targets = inner.targets if isinstance(inner, ast.Assign) else [inner.target]
            if any(isinstance(each, ast.Attribute) and each.attr == name for each in targets):
                yield inner.lineno


def _target_names(target: ast.AST) -> set[str]:
    return {
        name
        for node in ast.walk(target)
        for name in (getattr(node, "id", None), getattr(node, "attr", None))
        if name
    }


def _nodes(file: str) -> Iterator[ast.AST]:
    tree = parsed(file)
    return iter(()) if tree is None else ast.walk(tree)


def _named(file: str) -> Iterator[tuple[str, ast.FunctionDef | ast.AsyncFunctionDef]]:
    """Yield the functions of a file with their names and those of the classes around them."""

    def visit(node: ast.AST, around: str) -> Iterator[tuple[str, ast.AST]]:
        for child in ast.iter_child_nodes(node):
            inside = around
            if isinstance(child, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                inside = f"{around}.{child.name}".lstrip(".")
                yield inside, child
            yield from visit(child, inside)

    tree = parsed(file)
    for name, node in visit(tree, "") if tree is not None else ():
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield name, node


def _called(function: ast.expr) -> str:
    return str(getattr(function, "attr", None) or getattr(function, "id", ""))


def _last_name_line(function: ast.expr) -> int:
    """Return the line of the name that is called: of a chain of calls the last one."""
    return function.end_lineno or function.lineno


# What git says ------------------------------------------------------------------------------------


_GIT_S = 5.0


def _changed_lines(folder: Path, commit: str, file: str) -> Iterator[int]:
    words = ("diff", "--no-ext-diff", "--no-color", "-U0", commit, "--", file)
    for line in (ask_git(folder, *words, timeout_s=_GIT_S) or "").splitlines():
        if match := _HUNK.match(line):
            first, count = int(match[1]), int(match[2] or 1)
            yield from range(first, first + count)
