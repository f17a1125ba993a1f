"""Read cProfile's counts as the table of functions, with the cost that cProfile adds to a call.

profstack's wrappers of torch's functions are called while a profile is taken: their rows are
removed, and their callees are given to their callers.
"""

from __future__ import annotations

import gc
import importlib.util
import marshal
import os
import sys
from collections import defaultdict
from collections.abc import Iterable, Sequence
from functools import lru_cache
from itertools import product, repeat
from pathlib import Path
from statistics import median, quantiles
from time import perf_counter
from types import CodeType
from typing import Any

from profstack.guard import PACKAGE
from profstack.layer import Artifact
from profstack.storage.schema.column import Record, SqlValue

# File, line, name: the key of a function in pstats and snakeviz.
Function = tuple[str, int, str]
# `[primitive calls, calls, own s, total s, {caller: the same four}]` of every function.
Table = dict[Function, list[Any]]
# The columns of a function, and of its counts.
_PLACE = ("file", "line", "name")
_COUNTS = ("primitive_calls", "calls", "self_s", "total_s")


# profstack's folder and that of its wrappers, which may be a link.
_wrappers = importlib.util.find_spec("profstack.wrappers")
_FOLDERS = {PACKAGE, *((_wrappers and _wrappers.submodule_search_locations) or ())}
_OWN = tuple(os.path.join(os.path.realpath(folder), "") for folder in _FOLDERS)

# Functions that profstack's wrappers of torch's functions call before the function itself.
_GUARDS = frozenset({"is_compiling", "is_dynamo_compiling"})


@lru_cache(maxsize=4096)
def is_own(code_file: str) -> bool:
    """Return whether a source file belongs to profstack itself."""
    return code_file.startswith(_OWN) or os.path.realpath(code_file).startswith(_OWN)


def function_of(code: CodeType | str) -> Function:
    """Return the name pstats gives to a function."""
    if isinstance(code, str):
        return ("~", 0, code)
    return (code.co_filename, code.co_firstlineno, code.co_name)


def function_table(stats: Iterable[Any]) -> Table:
    """Return the table of the counts of `_lsprof`.

    Several functions of one name at one place are added up. The rows of profstack's own functions
    are removed; their callees are given to their callers.
    """
    table: Table = {}
    edges: dict[Function, dict[Function, list[Any]]] = defaultdict(dict)
    for entry in stats:
        function = function_of(entry.code)
        _add(table.setdefault(function, [0, 0, 0.0, 0.0, {}]), _four(entry))
        for call in entry.calls or ():
            callee = function_of(call.code)
            _add(edges[callee].setdefault(function, [0, 0, 0.0, 0.0]), _four(call))
    for function, callers in edges.items():
        if function in table:
            table[function][4] = callers
    for function in _innermost_first(table):
        # It may have been removed with another, as its only callee.
        if function in table:
            _splice(table, function)
    return {name: row for name, row in table.items() if "_lsprof.Profiler" not in name[2]}


def _four(entry: Any) -> tuple[int, int, float, float]:
    calls = entry.callcount
    return calls - entry.reccallcount, calls, entry.inlinetime, entry.totaltime


def _add(into: list[Any], four: Iterable[Any]) -> None:
    for position, value in enumerate(four):
        into[position] += value


def _innermost_first(table: Table) -> list[Function]:
    """Return profstack's own functions, callees before callers."""
    left = {function for function in table if is_own(function[0])}
    order = []
    while left:
        callers = {caller for callee in left for caller in table[callee][4] if caller != callee}
        # A cycle of them has no innermost one: any will do.
        function = next((own for own in sorted(left) if own not in callers), min(left))
        left.remove(function)
        order.append(function)
    return order


def _splice(table: Table, own: Function) -> None:
    """Remove one of profstack's functions.

    The one function it wraps goes to its callers; its other calls (clocks, mostly) are no work of
    the script's and are subtracted.
    """
    around = {caller: four for caller, four in table.pop(own)[4].items() if caller in table}
    # If only others of profstack call it, they are the callers; they are removed later.
    callers = {caller: four for caller, four in around.items() if not is_own(caller[0])} or around
    for function, row in list(table.items()):
        through = row[4].pop(own, None)
        if through is None:
            continue
        if function[0] == "~" or function[2] in _GUARDS:
            _take_off(table, function, through)
        else:
            _pass_on(row[4], callers, through)


def _take_off(table: Table, function: Function, calls: list[Any]) -> None:
    """Subtract calls from a function; if none are left, also the calls that it made itself."""
    row = table[function]
    _add(row, (-value for value in calls))
    row[2:4] = max(row[2], 0.0), max(row[3], 0.0)
    if row[1] > 0:
        return
    del table[function]
    for callee, its in list(table.items()):
        through = its[4].pop(function, None)
        if through is not None and callee in table:
            _take_off(table, callee, through)


def _pass_on(
    into: dict[Function, list[Any]], callers: dict[Function, list[Any]], through: list[Any]
) -> None:
    """Give the calls made through a wrapper to the wrapper's callers.

    A wrapper calls what it wraps once per call, so that the counts are known; the times are
    shared out as the wrapper's are, which differ by its own fraction of a microsecond.
    """
    counts = sum(four[1] for four in callers.values())
    spent = sum(four[3] for four in callers.values())
    if len(callers) > 1 and counts != through[1]:
        return
    for caller, (primitive, calls, _, total) in callers.items():
        share = total / spent if spent else calls / counts
        part = (primitive, calls) if len(callers) > 1 else through[:2]
        times = (through[2] * calls / counts, through[3] * share)
        _add(into.setdefault(caller, [0, 0, 0.0, 0.0]), (*part, *times))


def merge_tables(into: Table, table: Table) -> None:
    """Add one slice's table to the table of all slices."""
    for function, row in table.items():
        sums = into.setdefault(function, [0, 0, 0.0, 0.0, {}])
        _add(sums, row[:4])
        for caller, four in row[4].items():
            _add(sums[4].setdefault(caller, [0, 0, 0.0, 0.0]), four)


def write_prof(path: Path, table: Table) -> Artifact:
    """Write a table as `profile.prof` or `startup.prof`, for pstats, snakeviz and gprof2dot.

    A function's entry has its primitive calls before all its calls; a caller's entry, after them.
    """
    stats = {
        function: (
            *row[:4],
            {
                caller: (calls, primitive, own, total)
                for caller, (primitive, calls, own, total) in row[4].items()
            },
        )
        for function, row in table.items()
    }
    path.parent.mkdir(exist_ok=True)
    with open(path, "wb") as file:
        marshal.dump(stats, file)
    return Artifact(path, "snakeviz, pstats, gprof2dot")


def records(table: Table, index: int | None) -> tuple[list[Record], list[Record]]:
    """Return rows of the tables `functions` and `calls`; index None is the start-up."""
    functions: list[Record] = [
        {"slice": index, **_place("", function), **_counts(row)} for function, row in table.items()
    ]
    calls: list[Record] = [
        {"slice": index, **_place("caller_", caller), **_place("callee_", callee), **_counts(four)}
        for callee, (*_, callers) in table.items()
        for caller, four in callers.items()
    ]
    return functions, calls


def _place(prefix: str, function: Sequence[SqlValue]) -> Record:
    return {f"{prefix}{column}": value for column, value in zip(_PLACE, function, strict=True)}


def _counts(row: Sequence[Any]) -> Record:
    return dict(zip(_COUNTS, row[:4], strict=True))


# --- The cost that cProfile adds to a call, measured in the process that it profiles --------------

# Of each call cProfile reads the clock twice. Its time between the readings counts as the callee's
# own time (`inner`), its time before and after as the caller's (`outer`). Both are measured on
# functions that do nothing, so that an empty function comes out at about 0 and the cost of a call
# without a profiler stays with the caller. Python functions and built-in ones differ.
#
# The loops are short and their data is in the caches: in a program each call costs this much or
# more, so that too little is subtracted rather than too much.

PYTHON, BUILTIN = "python", "builtin"

_CALLS = 500
_ROUNDS, _FEWEST = 15, 5
_LONGEST_S = 0.02


def measure() -> dict[str, object] | None:
    """Measure the seconds that cProfile adds to a call; None where that is not possible.

    Returns medians with their spread for `python` and for `builtin` functions, over `rounds`
    rounds of `calls` calls; spreads are interquartile ranges. `bytecode_factor` is the time of
    Python code without a single call under a profile function, over its time without: no count of
    calls covers that. Takes about 10 ms. Where this thread has a trace or profile function, nothing
    is done: it would be called for calls that are not the program's.
    """
    if sys.getprofile() is not None or sys.gettrace() is not None:
        return None
    rounds: list[dict[str, float]] = []
    began = perf_counter()
    try:
        # The first round is slower: the interpreter adapts to code that it runs often.
        _round()
        while len(rounds) < _ROUNDS:
            rounds.append(_round())
            if len(rounds) >= _FEWEST and perf_counter() - began > _LONGEST_S:
                break
    except (ValueError, KeyError):
        # Another tool has the profiler's place, or takes it meanwhile.
        return None
    costs: dict[str, dict[str, float]] = {PYTHON: {}, BUILTIN: {}}
    for kind, part in product(costs, ("inner", "outer")):
        seconds = [each[f"{kind}_{part}"] for each in rounds]
        first, middle, third = quantiles(seconds, n=4)
        costs[kind] |= {f"{part}_s": max(0.0, middle), f"{part}_spread_s": third - first}
    factor = median(each["bytecode_factor"] for each in rounds)
    return {**costs, "bytecode_factor": factor, "calls": _CALLS, "rounds": len(rounds)}


def _round() -> dict[str, float]:
    """Measure once: clean and profiled next to each other."""
    clean: dict[object, float] = {}
    for loop, call in _LOOPS.items():
        start = perf_counter()
        loop(call)
        clean[loop] = perf_counter() - start
    from _lsprof import Profiler

    profiler = Profiler()
    profiler.enable()
    try:
        for loop, call in _LOOPS.items():
            loop(call)
    finally:
        profiler.disable()
    # The own time of each loop under cProfile, and of the callees of two of them.
    own = {entry.code: entry.inlinetime for entry in profiler.getstats()}
    profiled = {loop: own[loop.__code__] for loop in _LOOPS}
    builtin = next(code for code in own if isinstance(code, str) and "gc.isenabled" in code)
    callees = {PYTHON: own[_empty.__code__], BUILTIN: own[builtin]}
    base, clean_base = profiled[_idle], clean[_idle]
    found = {"bytecode_factor": profiled[_compute] / clean[_compute]}
    for kind, loop in ((PYTHON, _call_python), (BUILTIN, _call_builtin)):
        # Without the loop's own code, which a profile function may slow down by itself.
        outer = (profiled[loop] - base) - (clean[loop] - clean_base)
        found |= {f"{kind}_inner": callees[kind] / _CALLS, f"{kind}_outer": outer / _CALLS}
    return found


def _empty() -> None:
    """Do nothing."""


def _idle(call: Any) -> None:
    for _ in repeat(None, _CALLS):
        pass


def _compute(call: Any) -> None:
    value, other = 1, 3
    for _ in repeat(None, _CALLS):
        value = value ^ other
        value = value + other if value < 100 else 1


# Two functions that do the same: a profile has one entry per code object.
def _call_python(call: Any) -> None:
    for _ in repeat(None, _CALLS):
        call()


def _call_builtin(call: Any) -> None:
    for _ in repeat(None, _CALLS):
        call()


_LOOPS: dict[Any, Any] = {
    _idle: None,
    _compute: None,
    _call_python: _empty,
    # It reads one flag: one of the shortest built-in functions without arguments.
    _call_builtin: gc.isenabled,
}
