"""One tree of a step: Python functions, the operators they call, and the kernels these launch.

In a profile with stacks the calls of functions are events as operators are, on the same clock, so
that the nesting is known exactly. Events are merged by their path: the same function called twice
from the same place is one node with two calls.
"""

from __future__ import annotations

import ast
import os
import re
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import numpy as np

from profstack.readers.cprofile import is_own
from profstack.readers.torchtrace.attribution import Attribution, attribute
from profstack.readers.torchtrace.columns import Ints, StringColumn, column, integers
from profstack.readers.torchtrace.events import (
    DEVICE_KINDS,
    EVALUATE,
    HOST_KINDS,
    OPERATOR_KIND,
    PYTHON_KIND,
    clip_to_steps,
    kinds_of,
    launchers,
    of_observed_thread,
    read_host,
)
from profstack.storage.schema.column import Records
from profstack.storage.vocabulary import RANGE_PREFIX, STEP_PARTS, UNATTRIBUTED

_S = 1e-9

# Definitions of functions -----------------------------------------------------------------------
#
# The profiler has the line that a frame was at when it was entered. That is the line of the
# definition, but for generators, which are entered where they had yielded, and for functions that
# were running before the trace began.

_GENERATOR = "<genexpr>"


class Definitions:
    """Finds the first line of a function from any line in it; reads each source file once."""

    def __init__(self) -> None:
        self._lines = cache(_source_lines)
        self._spans = cache(_spans)

    def first_line(self, file: str, name: str, line: int) -> int:
        """Return the line of the definition (of its first decorator); `line` without a source."""
        if name == "<module>":
            return 1
        if name.startswith("<") and name != _GENERATOR:
            # Lambdas and comprehensions are entered where they begin.
            return line
        lines = self._lines(file)
        if not 0 < line <= len(lines):
            return line
        text = lines[line - 1].strip()
        if f"def {name}(" in text or text.startswith(("@", f"class {name}")):
            return line
        if name == _GENERATOR and " for " in text and "(" in text:
            # All in one line, as most are: no need to parse the whole file.
            return line
        spans = self._spans("\n".join(lines), name == _GENERATOR)
        around = (first for kind, first, last in spans if kind == name and first <= line <= last)
        return max(around, default=line)


def _source_lines(file: str) -> list[str]:
    # Not by `linecache`, which keeps every file that it has read.
    try:
        with open(file, encoding="utf-8", errors="replace") as source:
            return source.read().split("\n")
    except OSError:
        return []


# What holds statements.
_BLOCKS = ("body", "orelse", "finalbody", "handlers", "cases")


def _spans(source: str, generators: bool) -> list[tuple[str, int, int]]:
    """Return name, first and last line of the definitions in a source, or of its generators."""
    try:
        tree = ast.parse(source)
    # SystemError: Python 3.11 counts the depth of all threads' trees together, and may be misled.
    except (SyntaxError, ValueError, RecursionError, MemoryError, SystemError):
        return []
    if generators:
        found = (node for node in ast.walk(tree) if isinstance(node, ast.GeneratorExp))
        return [(_GENERATOR, node.lineno, node.end_lineno or node.lineno) for node in found]
    spans = []
    # No expression holds a definition, and they are nine tenths of the tree.
    left: list[ast.AST] = [tree]
    while left:
        node = left.pop()
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            first = min([node.lineno, *(each.lineno for each in node.decorator_list)])
            spans.append((node.name, first, node.end_lineno or node.lineno))
        for name in _BLOCKS:
            block = getattr(node, name, None)
            if isinstance(block, list):
                left += block
    return spans


# Callees: functions with their place, operators, kernels ----------------------------------------
#
# Some calls are no nodes of the tree, and their time stays with the caller: those of profstack
# itself, of code that starts programs and threads, and the steps that torch takes from `model(x)`
# to `forward`.

_FUNCTION, _OPERATOR, _KERNEL = "function", "operator", "kernel"

# The profiler's name of a Python function: file(line): name.
_PLACE = re.compile(r"(?s)(.*)\((\d+)\): (.*)")
# A method of a built-in object: its address in memory and pybind's own type are left out.
_OBJECT = re.compile(r"( of pybind11_builtins\.\w+)? object at 0x[0-9A-Fa-f]+>$")
# The call of a module, which takes the place of the function that `Module.__call__` is.
_MODULE_CALL = "nn.Module: "


# Functions in files of Python's and torch's that only call what they were given.
_PASSING = {
    "threading": ("", {"_bootstrap", "_bootstrap_inner", "run"}),
    "torch": ("nn/modules/module.py", {"_wrapped_call_impl", "_call_impl", "inner"}),
}
_PASSING_FILES = ("<frozen importlib", "<frozen runpy", "<frozen zipimport")
# Functions of torch that profstack's own call to check for compilation.
_COMPILE_CHECKS = frozenset({"is_compiling", "is_dynamo_compiling"})

# What becomes of an event: a node; no node; no node, since it is profstack's, as are the built-in
# functions that it calls.
_SHOWN, _TRANSPARENT, _INTERNAL = range(3)


@dataclass(frozen=True)
class Callee:
    """Facts from an event's name: a node's kind, name and place, and whether it becomes one."""

    kind: str
    name: str
    file: str | None = None
    line: int | None = None
    visibility: int = _SHOWN
    # It is profstack's if its caller is.
    follows_caller: bool = False


def _function(name: str, definitions: Definitions) -> Callee:
    if name.startswith(_MODULE_CALL):
        # The class's function is profstack's while it gives modules their ranges.
        return Callee(_FUNCTION, name, visibility=_INTERNAL)
    match = _PLACE.fullmatch(name)
    if match is None:
        # A built-in function.
        return Callee(_FUNCTION, name, "~", 0, follows_caller=True)
    file, line, function, visibility = match[1], int(match[2]), match[3], _SHOWN
    if is_own(file):
        visibility = _INTERNAL
    elif file.startswith(_PASSING_FILES) or function in _passing().get(file, ()):
        visibility = _TRANSPARENT
    else:
        line = definitions.first_line(file, function, line)
    return Callee(_FUNCTION, function, file, line, visibility, function in _COMPILE_CHECKS)


@cache
def _passing() -> dict[str, set[str]]:
    """Return the functions of `_PASSING` by their file."""
    found = {}
    for name, (inner, functions) in _PASSING.items():
        file = getattr(sys.modules.get(name), "__file__", None)
        if file is not None:
            found[os.path.join(os.path.dirname(file), inner) if inner else file] = functions
    return found


# The tree ---------------------------------------------------------------------------------------


@dataclass
class Node:
    """One node of the tree; times in nanoseconds."""

    callee: Callee
    parent: Node | None
    calls: int = 0
    total: int = 0
    inside: int = 0
    device: int = 0
    children: dict[tuple[object, ...], Node] = field(default_factory=dict)

    def child(self, callee: Callee) -> Node:
        """Return the node of a callee, made at its first call."""
        key = (callee.kind, callee.name, callee.file, callee.line)
        found = self.children.get(key)
        if found is None:
            found = self.children[key] = Node(callee, self)
        return found

    def add(self, length: int, *, begun: bool) -> None:
        """Add a call, and its time to the caller's inner time."""
        assert self.parent is not None
        self.calls += begun
        self.total += length
        self.parent.inside += length

    def below(self) -> Iterator[Node]:
        """Iterate over all nodes below, callers before callees, in the order of first calls."""
        waiting = list(reversed(self.children.values()))
        while waiting:
            node = waiting.pop()
            yield node
            waiting.extend(reversed(node.children.values()))


def path_records(
    events: Sequence[Any],
    boundaries_ns: Sequence[int],
    modules: Mapping[int, Any],
    index: int,
    *,
    device: bool,
) -> Records:
    """Return rows of `call_paths` of a slice with stacks, callers before callees.

    `events` are all raw events of a profile that began with `SLICE_RANGE`, `boundaries_ns` the
    edges of its steps, `modules` the names of the modules by number; `device` means that one was
    in use, and times of kernels are known.
    """
    each = list(zip(events, kinds_of(events), of_observed_thread(events).tolist(), strict=True))
    functions = [event for event, kind, on in each if on and kind == PYTHON_KIND]
    host = read_host([event for event, kind, on in each if on and kind in HOST_KINDS])
    clip_to_steps(host, boundaries_ns)
    owned = attribute(host, boundaries_ns, lambda number: modules[number].is_loss)
    # Names of functions without what differs from one object to the next.
    texts = (
        _OBJECT.sub(">", name) if name.endswith(">") else name for name in column(functions, "name")
    )
    names = StringColumn.of(texts, len(functions))
    definitions = Definitions()
    callees = [_function(name, definitions) for name in names.values]
    calls = _calls(owned, functions, names.ids.astype(np.int64), len(callees))
    callees += [Callee(_OPERATOR, name) for name in host.names.values]
    root = Node(Callee(_FUNCTION, ""), None)
    of_event = _add_calls(root, calls, callees, _backward_callees(owned, modules))
    if device:
        kernels = [event for event, kind, _ in each if kind in DEVICE_KINDS]
        _add_kernels(
            root, launchers(host, kernels, np.array(sorted(of_event), np.int64)), of_event, kernels
        )
    nodes = list(root.below())
    numbers = {id(node): number for number, node in enumerate(nodes, 1)}
    return [
        {
            "slice": index,
            "node": numbers[id(node)],
            "parent": numbers.get(id(node.parent)),
            "kind": node.callee.kind,
            "name": node.callee.name,
            "file": node.callee.file,
            "line": node.callee.line,
            "calls": node.calls,
            # A kernel runs beside the host and takes none of its time.
            "total_s": None if node.callee.kind == _KERNEL else node.total * _S,
            "self_s": None if node.callee.kind == _KERNEL else (node.total - node.inside) * _S,
            "device_s": node.device * _S if device else None,
        }
        for node in nodes
    ]


def _backward_callees(owned: Attribution, modules: Mapping[int, Any]) -> dict[int, Callee]:
    """Return the node to put above each evaluation of a backward function, by its position."""
    evaluated = owned.events.names.where(lambda name: name.startswith(EVALUATE))
    owners = owned.owner[evaluated].tolist()
    parts = {
        owner: modules[owner].path if owner > 0 else STEP_PARTS.get(owner, STEP_PARTS[UNATTRIBUTED])
        for owner in set(owners)
    }
    made = {owner: Callee(_OPERATOR, f"backward of {name}") for owner, name in parts.items()}
    positions = np.flatnonzero(evaluated).tolist()
    return {at: made[owner] for at, owner in zip(positions, owners, strict=True)}


# Thread, begin, end, number of the callee, position of an operator or -1, and whether it began.
_Call = tuple[int, int, int, int, int, bool]


def _calls(
    owned: Attribution, events: Sequence[Any], function: Ints, functions: int
) -> Iterator[_Call]:
    """Return calls of functions and operators by thread and begin, callers before callees.

    Each has its thread, its begin and end, cut off at the step's edges, the number of its callee,
    the position of an operator among the host's events, else -1, and whether it began in the step
    rather than before it.
    """
    host, first, last = owned.events, owned.boundaries_ns[0], owned.boundaries_ns[-1]
    # Ranges are no operators: nothing calls them.
    kinds = StringColumn.of(kinds_of(host.raw(np.arange(len(host)))), len(host))
    chosen = kinds.where(lambda kind: kind == OPERATOR_KIND) & ~host.memory
    chosen &= ~host.names.where(lambda name: name.startswith(RANGE_PREFIX))
    operators = np.flatnonzero(chosen)
    begin = integers(events, "start_ns")
    start = np.concatenate((begin, host.start[operators]))
    until = np.concatenate((begin + integers(events, "duration_ns"), host.end[operators]))
    thread = np.concatenate((integers(events, "start_thread_id"), host.thread[operators]))
    callee = np.concatenate((function, host.names.ids[operators].astype(np.int64) + functions))
    position = np.concatenate((np.full(len(events), -1, np.int64), operators))
    inside = np.flatnonzero((until > first) & (start < last))
    # Of two that begin together the longer one calls, and of equal ones the function.
    keys = (position[inside], -until[inside], start[inside], thread[inside])
    order = inside[np.lexsort(keys)]
    columns = (
        thread[order],
        np.maximum(start[order], first),
        np.minimum(until[order], last),
        callee[order],
        position[order],
        start[order] >= first,
    )
    return zip(*(each.tolist() for each in columns), strict=True)


def _add_calls(
    root: Node, calls: Iterable[_Call], callees: Sequence[Callee], backward: Mapping[int, Callee]
) -> dict[int, Node]:
    """Add every call to the tree; return the nodes of the operators, by position.

    A call that ends after its caller, since a clock was read between the two, ends with it.
    """
    of_event: dict[int, Node] = {}
    # Running calls: end, node or the caller's node, and whether it is profstack's.
    running: list[tuple[int, Node, bool]] = []
    running_on = None
    for thread, start, until, number, position, begun in calls:
        if thread != running_on:
            running_on = thread
            running.clear()
        while running and running[-1][0] <= start:
            running.pop()
        limit, node, internal = running[-1] if running else (until, root, False)
        end, callee = min(until, limit), callees[number]
        if callee.visibility != _SHOWN or (internal and callee.follows_caller):
            running.append((end, node, callee.visibility == _INTERNAL or internal))
            continue
        for called in (backward.get(position), callee):
            if called is not None:
                node = node.child(called)
                node.add(end - start, begun=begun)
        if position >= 0:
            of_event[position] = node
        running.append((end, node, False))
    return of_event


def _add_kernels(
    root: Node, launched_by: Ints, of_event: Mapping[int, Node], kernels: Sequence[Any]
) -> None:
    """Add the kernels below the operators that launched them; others below the root."""
    lengths = integers(kernels, "duration_ns").tolist()
    names = column(kernels, "name")
    for name, position, length in zip(names, launched_by.tolist(), lengths, strict=True):
        node: Node | None = of_event.get(position, root).child(Callee(_KERNEL, name))
        assert node is not None
        node.calls += 1
        while node is not None:
            node.device += length
            node = node.parent
