"""How much of a step reads and writes files and sockets, outside the loading of data.

It is the own time of the functions that do so, by cProfile: built-in functions of files, sockets
and databases, and torch's own way of saving. Time that is called for by a `DataLoader` is loading,
and belongs to the wait; where a function is called from several places its time is divided as the
callers' edges are.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

# Methods of files and sockets, and functions of the system, as cProfile names them.
_BUILT_IN = re.compile(
    r"<method '(?:read\w*|write\w*|flush|close|truncate|recv\w*|send\w*|connect|accept|tofile"
    r"|execute\w*|commit|fetch\w*)' of '(?:_?io\.|_?socket\.|_?ssl\.|sqlite3\.|numpy\.|mmap\.)"
    r"|<built-in method (?:_?io\.open\w*|(?:posix|nt)\.(?:p?read\w*|p?write\w*|open|close|f\w*sync"
    r"|sendfile|stat|lstat|listdir|scandir|replace|rename|unlink|mkdir)|numpy\.\w*fromfile"
    r"|builtins\.print|torch\._C\.(?:write_\w+|get_(?:record|storage)\w*))>"
    r"|' of 'torch\._C\.PyTorchFile(?:Reader|Writer)'"
    r"|<method '(?:dump|load)' of '_pickle\."
)
# Written in Python, but their own time is the opening and closing of archives in C++.
_FILES = re.compile(r"torch[/\\]serialization\.py$")
_LOADERS = re.compile(r"torch[/\\]utils[/\\]data[/\\]")
# Recursion is followed no further than this.
_DEEPEST = 60


@dataclass(frozen=True)
class IoTime:
    """Seconds of a clean step, null with a reason; and the user's own function that asks for it."""

    seconds: float | None
    function: Mapping[str, Any] | None = None
    heaviest: Mapping[str, Any] | None = None
    reason: str | None = None


def io_time(tables: Mapping[str, Any]) -> IoTime:
    """What the tables `functions` and `calls` tell of it."""
    rows = [row for row in tables["functions"] if row.get("phase") == "step"]
    if not rows:
        return IoTime(None, reason="no slice of cProfile tells which functions a step calls")
    callers = callers_of(tables["calls"])
    found = [row for row in rows if is_io(row)]
    if any(row.get("calibrated_s") is None for row in found):
        why = "the slices of cProfile are too short, or slowed too much, to tell clean times"
        return IoTime(None, reason=why)
    outside: dict[str, float] = {}
    memo: dict[str, float] = {}
    for row in found:
        name = name_of(row)
        outside[name] = row["calibrated_s"] * (1 - _loading(name, callers, memo))
    seconds = sum(outside.values())
    if not seconds:
        return IoTime(0.0)
    by_name = {name_of(row): row for row in rows}
    heaviest = max(outside, key=lambda name: outside[name])
    return IoTime(seconds, asked_for(outside, callers, by_name), by_name[heaviest])


def loading_share(tables: Mapping[str, Any]) -> Callable[[Mapping[str, Any]], float]:
    """How much of a function's time the loading of data calls for, by its row."""
    callers, memo = callers_of(tables["calls"]), dict[str, float]()
    return lambda row: _loading(name_of(row), callers, memo)


def is_io(row: Mapping[str, Any]) -> bool:
    """Whether a function's own time is that of reading or writing."""
    if row["file"] == "~":
        return _BUILT_IN.search(str(row["name"])) is not None
    return _FILES.search(str(row["file"])) is not None


def name_of(row: Mapping[str, Any]) -> str:
    """A function as the table of calls names it."""
    return f"{row['file']}:{row['line']}({row['name']})"


def callers_of(calls: Any) -> dict[str, dict[str, float]]:
    """For every function the time it took from each of its callers."""
    edges: dict[str, dict[str, float]] = defaultdict(dict)
    for row in calls:
        if row.get("phase", "step") == "step" and row["caller"] != row["callee"]:
            edges[row["callee"]][row["caller"]] = float(row["total_s"] or 0.0)
    return edges


def _loading(
    name: str, callers: Mapping[str, Mapping[str, float]], memo: dict[str, float], depth: int = 0
) -> float:
    """The share of a function's time that the loading of data calls for."""
    if _LOADERS.search(name):
        return 1.0
    if name in memo:
        return memo[name]
    above = callers.get(name) or {}
    whole = sum(above.values())
    memo[name] = 0.0
    if whole and depth < _DEEPEST:
        memo[name] = (
            sum(time * _loading(caller, callers, memo, depth + 1) for caller, time in above.items())
            / whole
        )
    return memo[name]


def asked_for(
    outside: Mapping[str, float],
    callers: Mapping[str, Mapping[str, float]],
    by_name: Mapping[str, Mapping[str, Any]],
) -> Mapping[str, Any] | None:
    """The user's own function that most of the time was called from, the nearest one.

    `outside` are seconds by function, `callers` what `callers_of` gives, `by_name` their rows.
    """
    sums: dict[str, float] = defaultdict(float)
    for name, seconds in outside.items():
        at, seen = name, {name}
        while True:
            row = by_name.get(at)
            if row is not None and row.get("own"):
                sums[at] += seconds
                break
            above = {
                caller: time for caller, time in callers.get(at, {}).items() if caller not in seen
            }
            if not above:
                break
            at = max(above, key=lambda caller: above[caller])
            seen.add(at)
    return by_name[max(sums, key=lambda name: sums[name])] if sums else None
