"""What cProfile has counted as the table of functions that pstats reads, without profstack's own.

profstack's wrappers stand between the script and torch while a profile is taken: their rows are
taken out, and what they called is handed to whoever called them.
"""

from __future__ import annotations

import importlib.util
import marshal
import os
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path
from types import CodeType
from typing import Any

from profstack.wrapper import Artifact

# file, line, name: what pstats and snakeviz call a function by.
Function = tuple[str, int, str]
# `[primitive calls, calls, own s, total s, {caller: the same four}]` of every function.
Table = dict[Function, list[Any]]


def _own_folders() -> tuple[str, ...]:
    """profstack's folder and that of its wrappers, which may be a link to one beside it."""
    wrappers = importlib.util.find_spec("profstack.wrappers")
    folders = {os.path.dirname(os.path.abspath(__file__))}
    folders.update((wrappers and wrappers.submodule_search_locations) or ())
    return tuple(os.path.join(os.path.realpath(folder), "") for folder in folders)


_OWN = _own_folders()

# What profstack's wrappers of torch's functions ask before they pass a call on.
_ASKED = frozenset({"is_compiling", "is_dynamo_compiling"})


def is_own(code_file: str) -> bool:
    """Whether a source file belongs to profstack itself."""
    return code_file.startswith(_OWN) or os.path.realpath(code_file).startswith(_OWN)


def function_of(code: CodeType | str) -> Function:
    """The name pstats gives to a function."""
    if isinstance(code, str):
        return ("~", 0, code)
    return (code.co_filename, code.co_firstlineno, code.co_name)


def function_table(stats: Iterable[Any]) -> Table:
    """The table of what `_lsprof` has counted.

    Several functions of one name at one place are added up. The rows of profstack's own
    functions are taken out; what they called is handed to their caller.
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
        # One may have gone with another, as its only callee.
        if function in table:
            _splice(table, function)
    for function in [name for name in table if "_lsprof.Profiler" in name[2]]:
        del table[function]
    return table


def _four(entry: Any) -> tuple[int, int, float, float]:
    calls = entry.callcount
    return calls - entry.reccallcount, calls, entry.inlinetime, entry.totaltime


def _add(into: list[Any], four: Iterable[Any]) -> None:
    for position, value in enumerate(four):
        into[position] += value


def _innermost_first(table: Table) -> list[Function]:
    """profstack's own functions, those that call others of them after those they call."""
    left = {function for function in table if is_own(function[0])}
    order = []
    while left:
        callers = {caller for callee in left for caller in table[callee][4] if caller != callee}
        # A circle of them has no innermost one: any will do.
        function = next((own for own in sorted(left) if own not in callers), min(left))
        left.remove(function)
        order.append(function)
    return order


def _splice(table: Table, own: Function) -> None:
    """Take one of profstack's functions out.

    The one function it wraps goes to its callers; what it calls besides (clocks, mostly) is no
    work of the script's and is taken off.
    """
    around = {caller: four for caller, four in table[own][4].items() if caller in table}
    # One that only others of them call hands on to those; they are taken out later.
    callers = {caller: four for caller, four in around.items() if not is_own(caller[0])} or around
    del table[own]
    for function, row in list(table.items()):
        through = row[4].pop(own, None)
        if through is None:
            continue
        if function[0] == "~" or function[2] in _ASKED:
            _take_off(table, function, through)
        else:
            _pass_on(row[4], callers, through)


def _take_off(table: Table, function: Function, calls: list[Any]) -> None:
    """Take calls off a function; if none are left, also those that it made itself."""
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
    """Write a table as a file that pstats, snakeviz and gprof2dot read.

    Of a function that has the primitive calls first, of its callers all calls first.
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


def records(table: Table, index: int | None) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Records of the tables `functions` and `calls`; index None is the start-up."""
    functions, calls = [], []
    for (file, line, name), (primitive, count, own, total, callers) in table.items():
        functions.append(
            {
                "slice": index,
                "file": file,
                "line": line,
                "name": name,
                "calls": count,
                "primitive_calls": primitive,
                "self_s": own,
                "total_s": total,
            }
        )
        for (caller_file, caller_line, caller_name), four in callers.items():
            calls.append(
                {
                    "slice": index,
                    "caller_file": caller_file,
                    "caller_line": caller_line,
                    "caller_name": caller_name,
                    "callee_file": file,
                    "callee_line": line,
                    "callee_name": name,
                    "primitive_calls": four[0],
                    "calls": four[1],
                    "self_s": four[2],
                    "total_s": four[3],
                }
            )
    return functions, calls
