"""Import profiles of cProfile (`.prof`): functions and calls, as the live layer has them.

Several files are added up, as pstats does. A profile is one sum: it has no steps, and all of its
figures are totals over the profiled time.
"""

from __future__ import annotations

import json
import math
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from profstack.errors import UsageError
from profstack.readers import unmarshal
from profstack.readers.cprofile import Table, merge_tables, records
from profstack.readers.formats import Format, Request, Taken, content, imported_layer, unreadable
from profstack.units import format_count, format_seconds

LAYER: Final = "cprofile"
MOST_BYTES: Final = 256 << 20
# What the child may take.
MOST_MEMORY: Final = 4 << 30
MOST_CPU_S: Final = 60
_LONGEST_NAME = 8192
_MOST_CALLS = 1 << 62
_MOST_S = 1e12
_DICT, _SMALL_TUPLE, _TUPLE = b"{)("


def recognise(start: bytes, name: str) -> bool:
    """Recognise marshal data that begins with a dictionary whose first key has three parts."""
    kinds = [byte & 0x7F for byte in start[:2]]
    if kinds == [_DICT, _SMALL_TUPLE]:
        return start[2:3] == b"\x03"
    return kinds == [_DICT, _TUPLE] and start[2:6] == b"\x03\0\0\0"


def read_prof(path: Path) -> Table:
    """Return the functions of a profile; raises UsageError for anything else."""
    data = content(path, MOST_BYTES)
    # Isolated: no folder of the user's is on its path, and no site-packages.
    limits = str(MOST_MEMORY), str(MOST_CPU_S)
    command = [sys.executable, "-I", "-S", unmarshal.__file__, *limits]
    try:
        child = subprocess.run(
            command, input=data, capture_output=True, timeout=5 * MOST_CPU_S, check=False
        )
        found = json.loads(child.stdout)
    except (subprocess.TimeoutExpired, ValueError):
        what = f"is damaged: it ended its reader, or took more than {MOST_CPU_S} s"
        raise unreadable(path, what) from None
    if "error" in found:
        raise unreadable(path, found["error"])
    try:
        return _table(found)
    except (LookupError, TypeError, ValueError) as error:
        raise unreadable(path, f"is no profile of cProfile ({error})") from None


def _table(found: Mapping[str, Sequence[Sequence[object]]]) -> Table:
    """Return the child's lists as a table of functions; raises an error for any other value."""
    functions = [_function(*each) for each in found["functions"]]
    table: Table = {}
    for number, *figures in found["rows"]:
        table[functions[_index(number)]] = [*_figures(figures), {}]
    for caller, callee, *figures in found["calls"]:
        counts = _figures(figures)
        table[functions[_index(callee)]][4][functions[_index(caller)]] = counts
    # The profiler's own end is no work of the program's.
    return {name: row for name, row in table.items() if "_lsprof.Profiler" not in name[2]}


def _index(number: object) -> int:
    if not isinstance(number, int) or number < 0:
        raise ValueError("a function that is not there")
    return number


def _function(file: object, line: object, name: object) -> tuple[str, int, str]:
    if not (isinstance(file, str) and isinstance(name, str) and isinstance(line, int)):
        raise ValueError("a function without file, line and name")
    if max(len(file), len(name)) > _LONGEST_NAME or not -1 <= line < 1 << 31:
        raise ValueError("a function whose name or line is too long")
    return file, max(line, 0), name


def _figures(figures: Sequence[object]) -> list[int | float | None]:
    """Return primitive calls, calls, own and total seconds; None for what is not known."""
    primitive, calls, own_s, total_s = figures
    for count in (primitive, calls):
        if count is not None and not (isinstance(count, int) and 0 <= count < _MOST_CALLS):
            raise ValueError("a count that is none")
    for seconds in (own_s, total_s):
        if seconds is not None and not _is_time(seconds):
            raise ValueError("a time that is none")
    return [primitive, calls, own_s, total_s]  # type: ignore[list-item]  # checked above


def _is_time(value: object) -> bool:
    return isinstance(value, (int, float)) and math.isfinite(value) and abs(value) < _MOST_S


def take(files: Sequence[Path], request: Request) -> Taken:
    """Read profiles of one run; see `Format`."""
    table, *others = (read_prof(path) for path in files)
    if others and any(None in four for row in table.values() for four in row[4].values()):
        raise unreadable(files[0], "knows callers by their calls alone", "import it by itself")
    for other in others:
        merge_tables(table, other)
    if not table:
        raise UsageError("has no function", where=str(files[0]), next_step="profile it again")
    functions, calls = records(table, request.slice)
    seconds = math.fsum(row[2] for row in table.values())
    count = sum(row[1] for row in table.values())
    names = ", ".join(path.name for path in files)
    summary = (
        f"{names}: {format_count(count)} calls of {format_count(len(table))} functions, "
        f"{format_seconds(seconds)}"
    )
    added = imported_layer(request, LAYER, "tracing", "cProfile", files, seconds)
    return Taken(files, [summary], {**added, "functions": functions, "calls": calls})


FORMAT = Format("profile of cProfile", ".prof, .pstats", recognise, take)
