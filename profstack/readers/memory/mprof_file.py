"""Import `mprofile_*.dat` of memory_profiler's `mprof run`: memory over time, functions, children.

`MEM` is the process's resident set (of `mprof run -C` its children's, too, which the file does not
say), `CHLD` that of one child of `mprof run -M`, `FUNC` a call of a function with `@profile`. All
are in MiB, with times in seconds since 1970.
"""

from __future__ import annotations

import math
import shlex
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from profstack.privacy import presentable_argv
from profstack.readers.formats import (
    Format,
    Request,
    Taken,
    content,
    extremes,
    imported_layer,
    origin_of,
    single,
    unreadable,
)
from profstack.storage.schema.column import Record
from profstack.storage.schema.layer_table import LayerTable, column
from profstack.units import format_bytes, format_count, format_seconds

LAYER: Final = "mprof"
MOST_BYTES: Final = 512 << 20
MOST_LINES: Final = 20_000_000
# Functions and children with rows of their own; a name with a number in it never ends.
MOST_NAMES: Final = 10_000
_LONGEST_LINE = 65_536
_MIB = float(1 << 20)
_MOST_MIB = 1e12
_MOST_S = 1e12
_FIELDS = ("MEM", "FUNC", "CHLD", "CMDLINE")

FUNCTIONS = LayerTable(
    "mprof_functions",
    (
        column("function", "TEXT", "function that was marked with @profile"),
        column("calls", "REAL", "calls", "counted"),
        column("wall_s", "REAL", "time in it, calls within it included", "raw"),
        column("grown_bytes", "REAL", "growth of the process over all of its calls", "raw"),
        column("largest_bytes", "INTEGER", "largest growth over one call", "raw"),
        column(
            "at_peak", "INTEGER", "1 where it was the innermost when the process held most", "fact"
        ),
    ),
    "marked functions",
    "Memory of the process when a function was entered, and when it returned.",
    order="largest_bytes",
    largest=("largest_bytes",),
)
CHILDREN = LayerTable(
    "mprof_children",
    (
        column("child", "TEXT", "child process, by its number"),
        column("readings", "REAL", "readings", "counted"),
        column("first_s", "REAL", "first reading, since the begin of the file", "fact"),
        column("last_s", "REAL", "last reading", "fact"),
        column("peak_bytes", "INTEGER", "the most that it held", "raw"),
    ),
    "child processes",
    "Memory of child processes, which is in none of the readings of the process itself.",
    order="peak_bytes",
    largest=("peak_bytes", "first_s", "last_s"),
)


@dataclass
class _Call:
    begin_s: float
    end_s: float
    grown: float


@dataclass
class Readings:
    """What a file holds: readings as seconds and MiB, calls by function, readings by child."""

    command: str | None = None
    memory: list[tuple[float, float]] = field(default_factory=list)
    calls: dict[str, list[_Call]] = field(default_factory=dict)
    children: dict[str, list[tuple[float, float]]] = field(default_factory=dict)
    # Lines of none of the kinds above.
    others: int = 0


def recognise(start: bytes, name: str) -> bool:
    """Recognise a file whose first line is one that mprof writes."""
    first, *words = start.split(b"\n", 1)[0].split(b" ")
    if first == b"CMDLINE":
        return True
    return first.decode("latin-1") in _FIELDS and len(words) >= 2 and _is_number(words[-1])


def _is_number(text: bytes) -> bool:
    try:
        return math.isfinite(float(text))
    except ValueError:
        return False


def read(path: Path) -> Readings:
    """Return the readings in a file; raises UsageError where a line is damaged."""
    text = content(path, MOST_BYTES)
    if text.count(b"\n") > MOST_LINES:
        raise unreadable(path, f"has more than {MOST_LINES:,} lines")
    found = Readings()
    kinds: dict[str, Callable[[Readings, str], None]] = {
        "MEM": _add_memory, "FUNC": _add_call, "CHLD": _add_child, "CMDLINE": _add_command,
    }  # fmt: skip
    for number, line in enumerate(_lines(text), 1):
        kind, _, rest = line.partition(" ")
        try:
            if kind in kinds:
                kinds[kind](found, rest)
            elif line.strip():
                found.others += 1
        except ValueError:
            # The last line is torn where the program was killed.
            if number > text.count(b"\n"):
                found.others += 1
                continue
            raise unreadable(path, f"line {number:,} is damaged") from None
    if not found.memory:
        raise unreadable(path, "has no reading of memory", "let the program run longer")
    found.memory.sort()
    return found


def _lines(text: bytes) -> Iterator[str]:
    at = 0
    while at < len(text):
        end = text.find(b"\n", at)
        end = len(text) if end < 0 else end
        yield text[at : min(end, at + _LONGEST_LINE)].decode("utf-8", "replace").rstrip("\r")
        at = end + 1


def _add_command(found: Readings, rest: str) -> None:
    found.command = rest


def _reading(mib: str, seconds: str) -> tuple[float, float]:
    """Return seconds and MiB; raises ValueError for what is neither."""
    moment, held = float(seconds), float(mib)
    if not (abs(held) < _MOST_MIB and abs(moment) < _MOST_S):
        raise ValueError
    return moment, held


def _add_memory(found: Readings, rest: str) -> None:
    mib, seconds = rest.split()
    found.memory.append(_reading(mib, seconds))


def _add_call(found: Readings, rest: str) -> None:
    words = rest.split(" ")
    # The depth of the stack is last, in files of version 0.55 and later.
    numbers = words[-5:] if words[-1].isdigit() else words[-4:]
    name = " ".join(words[: -len(numbers)])
    held_mib, begin_s, then_mib, end_s = numbers[:4]
    begin, held = _reading(held_mib, begin_s)
    end, then = _reading(then_mib, end_s)
    if name not in found.calls and len(found.calls) >= MOST_NAMES:
        name = "(more functions)"
    found.calls.setdefault(name, []).append(_Call(begin, end, then - held))


def _add_child(found: Readings, rest: str) -> None:
    child, mib, seconds = rest.split()
    reading = _reading(mib, seconds)
    if child not in found.children and len(found.children) >= MOST_NAMES:
        child = ""
    found.children.setdefault(child, []).append(reading)


def take(files: Sequence[Path], request: Request) -> Taken:
    """Read one file of mprof; see `Format`."""
    found = read(single(files, "file of mprof"))
    first_s, last_s = found.memory[0][0], found.memory[-1][0]
    taken = Taken(files, [])
    origin_s = origin_of(request, first_s, taken, LAYER)
    peak_s, peak = max(found.memory, key=lambda each: each[1])
    kept = extremes([held for _, held in found.memory])
    rows: list[Record] = [
        {"t_s": found.memory[at][0] - origin_s, "rss_bytes": round(found.memory[at][1] * _MIB)}
        for at in kept
    ]
    truncated = f"{found.others:,} lines of no known kind" if found.others else None
    if len(kept) < len(found.memory):
        text = f"of {len(found.memory):,} readings the highest and lowest {len(kept):,}"
        truncated = f"{truncated}; {text}" if truncated else text
    added = imported_layer(
        request, LAYER, "sampling", "memory_profiler (mprof)", files, last_s - first_s,
        started_s=first_s - origin_s, truncated=truncated,
    )  # fmt: skip
    added["memory"] = rows
    tables = []
    if found.calls:
        tables.append(FUNCTIONS)
        added[FUNCTIONS.name] = list(_function_rows(found, peak_s, request.slice))
    if found.children:
        tables.append(CHILDREN)
        added[CHILDREN.name] = list(_child_rows(found, origin_s, request.slice))
    count = format_count(len(found.memory))
    summary = (
        f"{files[0].name}: {count} readings in {format_seconds(last_s - first_s)}, "
        f"at most {format_bytes(peak * _MIB)}"
    )
    if found.command:
        summary += f", of {_presentable(found.command)}"
    taken.summary, taken.tables = [summary], {LAYER: tables}
    taken.added |= added
    return taken


def _presentable(command: str) -> str:
    """Return a command line without its secrets."""
    try:
        words = shlex.split(command)
    except ValueError:
        words = command.split()
    return shlex.join(presentable_argv(words))


def _function_rows(found: Readings, peak_s: float, index: int) -> Iterator[Record]:
    spans = [(each.begin_s, each.end_s, name) for name in found.calls for each in found.calls[name]]
    open_then = (each for each in spans if each[0] <= peak_s <= each[1])
    innermost = max(open_then, default=(0.0, 0.0, None))[2]
    for function, calls in found.calls.items():
        yield {
            "slice": index,
            "function": function,
            "calls": len(calls),
            "wall_s": math.fsum(max(call.end_s - call.begin_s, 0.0) for call in calls),
            "grown_bytes": round(math.fsum(call.grown for call in calls) * _MIB),
            "largest_bytes": round(max(call.grown for call in calls) * _MIB),
            "at_peak": int(function == innermost),
        }


def _child_rows(found: Readings, origin_s: float, index: int) -> Iterator[Record]:
    for child, readings in found.children.items():
        times = [moment for moment, _ in readings]
        yield {
            "slice": index,
            "child": f"process {child}" if child else "(more processes)",
            "readings": len(readings),
            "first_s": min(times) - origin_s,
            "last_s": max(times) - origin_s,
            "peak_bytes": round(max(held for _, held in readings) * _MIB),
        }


FORMAT = Format("file of memory_profiler's mprof", ".dat", recognise, take)
