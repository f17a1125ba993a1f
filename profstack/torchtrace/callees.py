"""What a call in a profile with stacks is of: a function with its place, an operator or a kernel.

Some calls are no nodes of the tree, and their time stays with whoever called them: those of
profstack itself, of what starts programs and threads, and the steps that torch takes from
`model(x)` to `forward`.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import profstack
from profstack.torchtrace.columns import column
from profstack.torchtrace.definitions import Definitions

FUNCTION, OPERATOR, KERNEL = "function", "operator", "kernel"
BUILTIN_FILE = "~"

# What the profiler calls a Python function: file(line): name.
_PLACE = re.compile(r"(?s)(.*)\((\d+)\): (.*)")
# A method of a built-in object: where that lies in memory says nothing, and pybind's own type
# says less.
_OBJECT = re.compile(r"( of pybind11_builtins\.\w+)? object at 0x[0-9A-Fa-f]+>$")
# The call of a module, which takes the place of the function that `Module.__call__` is.
_MODULE_CALL = "nn.Module: "

_PROFSTACK = tuple(
    os.path.join(folder, "")
    for folder in (
        *(os.path.abspath(each) for each in profstack.__path__),
        *(os.path.realpath(each) for each in profstack.__path__),
        *(
            os.path.join(os.path.dirname(os.path.realpath(each)), "wrappers")
            for each in profstack.__path__
        ),
    )
)
# Of files of Python's and torch's: functions that only hand on what they were called for.
_PASSING = {
    "threading": ("", {"_bootstrap", "_bootstrap_inner", "run"}),
    "torch": ("nn/modules/module.py", {"_wrapped_call_impl", "_call_impl", "inner"}),
}
_PASSING_FILES = ("<frozen importlib", "<frozen runpy", "<frozen zipimport")
# Functions of torch that profstack's own call to know whether to stand back.
_ASKED = frozenset({"is_compiling", "is_dynamo_compiling"})

# What becomes of an event: a node; none; none, since it is profstack's, as are the built-in
# functions that it calls.
SHOWN, PASSED, OURS = range(3)


@dataclass(frozen=True)
class Callee:
    """What an event's name says: a node's kind, name and place, and whether it becomes one."""

    kind: str
    name: str
    file: str | None = None
    line: int | None = None
    fate: int = SHOWN
    # Who calls it decides whether it is profstack's.
    follows: bool = False


def called_texts(events: Sequence[Any]) -> Iterator[str]:
    """Names of functions without what differs from one object to the next."""
    for name in column(events, "name"):
        yield _OBJECT.sub(">", name) if name.endswith(">") else name


def called_functions(names: Sequence[str]) -> list[Callee]:
    """What is called by each of these names of functions."""
    definitions = Definitions()
    return [_function(name, definitions) for name in names]


def _function(name: str, definitions: Definitions) -> Callee:
    if name.startswith(_MODULE_CALL):
        # The class's function is profstack's while it gives modules their ranges.
        return Callee(FUNCTION, name, fate=OURS)
    match = _PLACE.fullmatch(name)
    if match is None:
        return Callee(FUNCTION, name, BUILTIN_FILE, 0, follows=True)
    file, line, function = match[1], int(match[2]), match[3]
    fate = _fate(file, function)
    first = definitions.first_line(file, function, line) if fate == SHOWN else line
    return Callee(FUNCTION, function, file, first, fate, follows=function in _ASKED)


def _fate(file: str, function: str) -> int:
    if file.startswith(_PROFSTACK):
        return OURS
    passes = file.startswith(_PASSING_FILES) or function in _passing().get(file, ())
    return PASSED if passes else SHOWN


@cache
def _passing() -> dict[str, set[str]]:
    """Functions of `_PASSING` by the file that their code names."""
    found = {}
    for name, (inner, functions) in _PASSING.items():
        file = getattr(sys.modules.get(name), "__file__", None)
        if file is not None:
            found[os.path.join(os.path.dirname(file), inner) if inner else file] = functions
    return found
